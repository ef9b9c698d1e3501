/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: a rank maps, reads and writes only what its master has allowed. */
#include <sys/mman.h>

#include "heap/heap_internal.h"
#include "heap/heap_rig.h"

#define RANKS 3u
#define BIT(rank) (UINT64_C(1) << (rank))
#define ALL (BIT(RANKS) - 1)

static struct tn_heap_opts opts_with_tokens(void)
{
	struct tn_heap_opts o = heap_opts(16);

	o.need_tokens = 1;
	return o;
}

static struct tn_heap_opts opts_of(const struct tn_heap_token *token)
{
	struct tn_heap_opts o;

	tn_heap_opts_init(&o);
	o.token = *token;
	return o;
}

/* A rank of this process, with rights. */
static struct tn_heap *join_with(struct tn_heap *master, uint32_t rank, uint64_t read, uint64_t write)
{
	struct tn_heap_token token;
	struct tn_heap_opts o;

	assert_int_equal(tn_heap_token_make(master, rank, read, write, &token), 0);
	o = opts_of(&token);
	return heap_open(RANKS, rank, &o);
}

static int put(struct tn_heap *heap, uint64_t key, uint32_t owner, uint32_t flags)
{
	return heap_put(heap, key, HEAP_PAGE, owner, flags);
}

static int get(struct tn_heap *heap, uint64_t key)
{
	return heap_get(heap, key, HEAP_PAGE);
}

static void nobody_joins_without_a_token_that_is_for_his_rank(void **state)
{
	struct tn_heap_opts o = opts_with_tokens(), other;
	struct tn_heap_token first, second;
	struct tn_heap *heap, *joined;

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	assert_int_equal(tn_heap_create(heap_name, RANKS, 1, NULL, &joined), -EACCES);
	assert_int_equal(tn_heap_token_make(heap, 1, ALL, ALL, &first), 0);
	other = opts_of(&first);
	assert_int_equal(tn_heap_create(heap_name, RANKS, 2, &other, &joined), -EACCES);
	for (uint32_t i = 0; i < 2; i++) {
		other.token.word[i] ^= 1;
		assert_int_equal(tn_heap_create(heap_name, RANKS, 1, &other, &joined), -EACCES);
		other.token.word[i] ^= 1;
	}
	assert_int_equal(tn_heap_token_make(heap, 1, ALL, ALL, &second), 0); /* the first one is void now */
	other = opts_of(&first);
	assert_int_equal(tn_heap_create(heap_name, RANKS, 1, &other, &joined), -EACCES);
	other = opts_of(&second);
	joined = heap_open(RANKS, 1, &other);
	assert_int_equal(tn_heap_token_make(joined, 2, ALL, ALL, &first), -EPERM);
	assert_int_equal(tn_heap_token_make(heap, RANKS, ALL, ALL, &first), -EINVAL);
	assert_int_equal(tn_heap_token_make(heap, 1, BIT(RANKS), 0, &first), -EINVAL);
	tn_heap_destroy(joined);
	joined = heap_open(RANKS, 1, &other); /* it may leave and come back */
	tn_heap_destroy(joined);
	tn_heap_destroy(heap);
}

static void who_may_read_does_not_write(void **state)
{
	struct tn_heap_opts o = opts_with_tokens();
	struct tn_heap *heap, *reader;
	struct tn_heap_meta meta;
	struct tn_heap_plan plan;
	uint64_t key = 1;

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	reader = join_with(heap, 1, BIT(0), 0);
	assert_int_equal(tn_heap_write_rights(heap), ALL);
	assert_int_equal(tn_heap_write_rights(reader), 0);
	assert_int_equal(put(heap, 1, 0, 0), 0);
	assert_int_equal(put(heap, 2, 2, 0), 0);
	assert_int_equal(get(reader, 1), 0);
	assert_int_equal(get(reader, 2), -EACCES);
	assert_int_equal(get(reader, 3), -ENOENT);
	assert_int_equal(tn_heap_hold(reader, &key, 8, &meta), 0);
	assert_true(heap_is_filled(tn_heap_ptr(reader, 0, meta.payload_off), HEAP_PAGE, 1));
	assert_int_equal(tn_heap_release(reader, &meta), 0);
	assert_int_equal(put(reader, 4, 0, 0), -EACCES);
	key = 5;
	assert_int_equal(tn_heap_reserve(reader, &key, 8, 8, 0, 0, &plan), -EACCES);
	assert_int_equal(tn_heap_open_for_write(reader, &key, 8, 8, 1, 0, &plan), -EACCES);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, 0, &plan), 0);
	assert_int_equal(tn_heap_commit(reader, &plan), -EACCES);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	assert_null(tn_heap_ptr(reader, 2, heap->memory.layout.heap_base));
	assert_non_null(tn_heap_ptr(reader, 2, 0));
	assert_int_equal(heap_stats(reader, 2).ready_count, 1);
	/* What it was sent does not let it write, either. */
	assert_true(mmap(NULL, HEAP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reader->memory.payload_fd[0], 0) == MAP_FAILED);
	assert_int_equal(reader->memory.payload_fd[1], -1);
	assert_int_equal(reader->memory.payload_fd[2], -1);
	tn_heap_destroy(reader);
	tn_heap_destroy(heap);
}

static void who_may_write_into_one_heap_writes_into_no_other(void **state)
{
	struct tn_heap_opts o = opts_with_tokens();
	struct tn_heap *heap, *writer;

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	writer = join_with(heap, 1, BIT(1), BIT(1) | BIT(2));
	assert_int_equal(tn_heap_write_rights(writer), BIT(1) | BIT(2));
	assert_int_equal(put(writer, 1, 2, 0), 0);
	assert_int_equal(get(heap, 1), 0);
	assert_int_equal(get(writer, 1), -EACCES);
	assert_int_equal(put(writer, 2, 0, 0), -EACCES);
	assert_int_equal(put(writer, 3, 2, TN_HEAP_REPLICAS(2)), -EACCES); /* at ranks 2 and 0 */
	assert_int_equal(put(writer, 4, 1, TN_HEAP_REPLICAS(2)), 0);
	assert_int_equal(get(writer, 4), 0); /* the replica that it may read */
	assert_int_equal(put(writer, 5, RANKS, 0), -EINVAL);
	tn_heap_destroy(writer);
	tn_heap_destroy(heap);
}

static void who_may_not_write_there_removes_and_evicts_nothing(void **state)
{
	struct tn_heap_opts o = opts_with_tokens();
	struct tn_heap *heap, *writer;
	uint64_t key[] = {1, 2, 3, 4};

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	writer = join_with(heap, 1, ALL, BIT(1));
	assert_int_equal(put(heap, key[0], 0, 0), 0);
	assert_int_equal(put(heap, key[1], 1, 0), 0);
	assert_int_equal(put(heap, key[2], 1, TN_HEAP_REPLICAS(2)), 0);
	assert_int_equal(put(heap, key[3], 1, 0), 0);
	assert_int_equal(tn_heap_remove(writer, &key[0], 8), -EACCES);
	assert_int_equal(tn_heap_remove(writer, &key[1], 8), 0);
	assert_int_equal(tn_heap_remove(writer, &key[2], 8), -EACCES);
	assert_int_equal(heap_stats(heap, 1).ready_count, 2); /* no replica of it went */
	assert_int_equal(tn_heap_evict_until_below(writer, 0), 2);
	assert_int_equal(heap_stats(heap, 0).ready_count, 1);
	assert_int_equal(heap_stats(heap, 1).ready_count, 0);
	assert_int_equal(heap_stats(heap, 2).ready_count, 1);
	assert_int_equal(tn_heap_evict_until_below(heap, 0), 2);
	tn_heap_destroy(writer);
	tn_heap_destroy(heap);
}

struct intruder {
	struct tn_heap_token token;
	uint64_t offset;
	uint32_t owner;
	bool writes;
};

/* Rank 1: an access to an address that it should leave alone. */
static int intrude(void *arg)
{
	const struct intruder *i = arg;
	struct tn_heap_opts o = opts_of(&i->token);
	struct tn_heap *heap = heap_open(RANKS, 1, &o);
	volatile unsigned char *at = heap->memory.base[i->owner] + i->offset;

	signal(SIGSEGV, SIG_DFL);
	if (i->writes)
		*at = 1;
	else
		return *at;
	return 0;
}

static void a_stray_access_ends_the_process_and_harms_no_object(void **state)
{
	struct tn_heap_opts o = opts_with_tokens();
	struct intruder i = {.writes = true};
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	i.offset = heap->memory.layout.heap_base;
	assert_int_equal(put(heap, 1, 0, 0), 0);
	assert_int_equal(tn_heap_token_make(heap, 1, BIT(0), 0, &i.token), 0);
	assert_int_equal(heap_join_process(heap_process(intrude, &i)), 1000 + SIGSEGV);
	i.owner = 2;
	i.writes = false;
	heap_wait_until(tn_heap_life_of(tn_heap_load64(&heap->memory.dir->member[1].life)) == TN_HEAP_NOBODY);
	assert_int_equal(heap_join_process(heap_process(intrude, &i)), 1000 + SIGSEGV);
	assert_int_equal(get(heap, 1), 0);
	tn_heap_destroy(heap);
}

static void a_new_master_needs_all_rights_and_gives_tokens_of_its_own(void **state)
{
	struct tn_heap_opts o = opts_with_tokens(), other;
	struct tn_heap *heap, *some, *all;
	struct tn_heap_token old;

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	some = join_with(heap, 1, ALL, BIT(1));
	all = join_with(heap, 2, ALL, ALL);
	assert_int_equal(tn_heap_token_make(heap, 0, ALL, ALL, &old), 0);
	tn_heap_destroy(heap); /* as if it had died */
	assert_int_equal(tn_heap_take_over(some), -EACCES);
	assert_int_equal(tn_heap_take_over(all), 0);
	assert_int_equal(put(some, 1, 1, 0), 0);
	assert_int_equal(put(some, 2, 2, 0), -EACCES);
	other = opts_of(&old);
	other.master_rank = 2;
	assert_int_equal(tn_heap_create(heap_name, RANKS, 0, &other, &heap), -EACCES);
	assert_int_equal(tn_heap_token_make(all, 0, ALL, 0, &other.token), 0);
	heap = heap_open(RANKS, 0, &other);
	assert_int_equal(get(heap, 1), 0);
	tn_heap_destroy(heap);
	tn_heap_destroy(some);
	tn_heap_destroy(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_joins_without_a_token_that_is_for_his_rank),
		cmocka_unit_test(who_may_read_does_not_write),
		cmocka_unit_test(who_may_write_into_one_heap_writes_into_no_other),
		cmocka_unit_test(who_may_not_write_there_removes_and_evicts_nothing),
		cmocka_unit_test(a_stray_access_ends_the_process_and_harms_no_object),
		cmocka_unit_test(a_new_master_needs_all_rights_and_gives_tokens_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
