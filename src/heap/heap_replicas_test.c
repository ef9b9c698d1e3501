/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that lie at two or three ranks: who reads which replica, and what is left when one is lost. */
#include "heap/heap_rig.h"

#define RANKS 3u
#define BYTES (HEAP_PAGE + 512u)

static struct tn_heap *intruder; /* puts an object at rank 1 before the next copy */
static int intruder_rc;

uint64_t __real_tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache);
uint64_t __wrap_tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache);

/* Ranks 0 to 2, all of this process. */
static void open_ranks(struct tn_heap *heap[RANKS], uint32_t pages)
{
	struct tn_heap_opts o = heap_opts(pages);

	heap_new_name();
	for (uint32_t r = 0; r < RANKS; r++)
		heap[r] = heap_open(RANKS, r, &o);
}

static void close_ranks(struct tn_heap *heap[RANKS])
{
	for (uint32_t r = RANKS; r--;)
		tn_heap_destroy(heap[r]);
}

static int put(struct tn_heap *heap, uint64_t key, uint32_t owner, uint32_t replicas)
{
	return heap_put(heap, key, BYTES, owner, TN_HEAP_REPLICAS(replicas));
}

uint64_t __wrap_tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache)
{
	struct tn_heap *heap = intruder;

	intruder = NULL;
	if (heap)
		intruder_rc = put(heap, 8, 1, 1);
	return __real_tn_checksum_copy(dst, src, len, past_cache);
}

/* Rank of the replica that a rank finds; -1: none. */
static int found_at(struct tn_heap *heap, uint64_t key)
{
	struct tn_heap_meta meta;
	int rc = tn_heap_get_location(heap, &key, 8, &meta);

	assert_true(rc == 0 || rc == -ENOENT);
	if (rc)
		return -1;
	assert_true(heap_is_filled(tn_heap_ptr(heap, meta.owner_rank, meta.payload_off), BYTES, key));
	return (int)meta.owner_rank;
}

static int get(struct tn_heap *heap, uint64_t key)
{
	return heap_get(heap, key, BYTES);
}

static void an_object_lies_at_as_many_ranks_as_was_wanted_and_goes_as_one(void **state)
{
	struct tn_heap *heap[RANKS];
	uint64_t key = 7;

	open_ranks(heap, 16);
	for (uint32_t n = 1; n <= RANKS; n++) {
		assert_int_equal(put(heap[0], key, 2, n), 0);
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(heap_stats(heap[0], r).ready_count, (r + 1) % RANKS < n);
		assert_int_equal(found_at(heap[2], key), 2);
		assert_int_equal(found_at(heap[0], key), n > 1 ? 0 : 2); /* its own, if it has one */
		assert_int_equal(found_at(heap[1], key), n > 2 ? 1 : 2);
		assert_int_equal(put(heap[1], key, 1, 1), -EEXIST);
		assert_int_equal(tn_heap_remove(heap[1], &key, 8), 0);
		assert_int_equal(tn_heap_remove(heap[1], &key, 8), -ENOENT);
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(found_at(heap[r], key), -1);
	}
	assert_int_equal(heap_stats(heap[0], 0).bytes_tx, (1 + 2 + 3) * BYTES);
	assert_int_equal(heap_stats(heap[0], 0).pages, (1 + 2 + 3) * 2);
	assert_true(heap_stats(heap[0], 0).page_time_ns > 0);
	for (uint32_t r = 0; r < RANKS; r++)
		heap_wait_until(heap_stats(heap[0], r).heap_used == 0);
	assert_int_equal(put(heap[0], key, 0, 4), -EINVAL);
	assert_int_equal(tn_heap_evict_until_below(heap[0], 0), 0);
	close_ranks(heap);
}

static void more_replicas_than_ranks_are_refused(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(2, 0, &o);
	assert_int_equal(put(heap, 1, 0, 3), -EINVAL);
	assert_int_equal(put(heap, 1, 1, 2), 0);
	tn_heap_destroy(heap);
}

/* A rank, until it is killed. */
static int stay(void *arg)
{
	struct tn_heap *heap = heap_open(RANKS, *(uint32_t *)arg, NULL);
	uint64_t key = 100 + *(uint32_t *)arg, word = 0;

	assert_int_equal(tn_heap_put(heap, &key, 8, &word, 8, 0, 0), 0);
	pause();
	return 0;
}

static void the_replica_of_a_living_owner_is_used_when_the_other_one_dies(void **state)
{
	struct tn_heap_opts o = heap_opts(16);
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	pid_t pid[RANKS];

	heap_new_name();
	heap = heap_open(RANKS, 0, &o);
	for (uint32_t r = 1; r < RANKS; r++) {
		pid[r] = heap_process(stay, &r);
		heap_wait_until(tn_heap_get_location(heap, (uint64_t[]){100 + r}, 8, &meta) == 0);
	}
	assert_int_equal(put(heap, 7, 1, 2), 0);
	assert_int_equal(found_at(heap, 7), 1);
	kill(pid[1], SIGKILL);
	assert_int_equal(heap_join_process(pid[1]), 1000 + SIGKILL);
	heap_wait_until(found_at(heap, 7) == 2);
	kill(pid[2], SIGKILL);
	assert_int_equal(heap_join_process(pid[2]), 1000 + SIGKILL);
	assert_int_equal(tn_heap_evict_until_below(heap, 100), 0); /* the master has ended both lives */
	assert_int_equal(get(heap, 7), 0); /* the memory is there still */
	tn_heap_destroy(heap);
}

static void a_damaged_replica_is_not_what_a_reader_gets(void **state)
{
	struct tn_heap *heap[RANKS];
	struct tn_heap_meta meta[2];
	uint64_t key = 7;

	open_ranks(heap, 16);
	assert_int_equal(put(heap[0], key, 1, 2), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_heap_get_location(heap[1 + i], &key, 8, &meta[i]), 0);
	*(uint64_t *)tn_heap_ptr(heap[0], 1, meta[0].payload_off) ^= 1;
	assert_int_equal(get(heap[1], key), 0);
	assert_int_equal(heap_stats(heap[0], 1).failures, 1);
	assert_int_equal(get(heap[2], key), 0);
	assert_int_equal(heap_stats(heap[0], 2).failures, 0);
	tn_heap_slot_at(tn_heap_ptr(heap[0], 1, 0), meta[0].header_off)->header.payload_base = UINT64_C(1) << 60; /* nor if its header is */
	assert_int_equal(get(heap[1], key), 0);
	*(uint64_t *)tn_heap_ptr(heap[0], 2, meta[1].payload_off) ^= 1;
	assert_int_equal(get(heap[0], key), -EBADMSG);
	close_ranks(heap);
}

static void one_replica_that_is_evicted_leaves_the_other(void **state)
{
	struct tn_heap *heap[RANKS];
	uint64_t key = 1000;

	open_ranks(heap, 16);
	assert_int_equal(put(heap[0], 7, 1, 2), 0);
	while (heap_stats(heap[0], 1).evictions == 0) {
		assert_int_equal(put(heap[0], key++, 1, 1), 0);
		assert_true(key < 1100);
	}
	assert_int_equal(found_at(heap[1], 7), 2);
	assert_int_equal(put(heap[0], 7, 1, 2), -EEXIST);
	assert_int_equal(get(heap[1], 7), 0);
	close_ranks(heap);
}

static void what_does_not_fit_everywhere_lies_nowhere(void **state)
{
	struct tn_heap *heap[RANKS];
	struct tn_heap_plan plan;
	uint64_t key;

	open_ranks(heap, 4);
	for (key = 0; key < 2; key++) {
		assert_int_equal(tn_heap_open_for_write(heap[0], &key, 8, 2 * HEAP_PAGE, 2, TN_HEAP_PIN, &plan), 0);
		assert_int_equal(tn_heap_commit(heap[0], &plan), 0);
	}
	key = 7;
	assert_int_equal(tn_heap_open_for_write(heap[1], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(2), &plan), -ENOSPC);
	assert_int_equal(heap_stats(heap[0], 2).oom, 1);
	assert_int_equal(heap_stats(heap[0], 1).heap_used, 0);
	assert_int_equal(found_at(heap[0], key), -1);
	assert_int_equal(put(heap[1], key, 1, 1), 0);
	close_ranks(heap);
}

static void a_commit_writes_the_other_replicas(void **state)
{
	struct tn_heap *heap[RANKS];
	struct tn_heap_plan plan, bad;
	uint64_t key = 7;

	open_ranks(heap, 16);
	assert_int_equal(tn_heap_reserve(heap[0], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(3), &plan), 0);
	assert_int_equal(plan.copies, 2);
	assert_int_equal(tn_heap_remove(heap[0], &key, 8), -EAGAIN);
	heap_fill(tn_heap_ptr(heap[0], plan.dst_rank, plan.payload_base), BYTES, key);
	bad = plan;
	bad.copies = 3;
	assert_int_equal(tn_heap_commit(heap[0], &bad), -EINVAL);
	assert_int_equal(tn_heap_commit(heap[0], &plan), 0);
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_int_equal(found_at(heap[r], key), r);
		assert_int_equal(get(heap[r], key), 0);
		assert_int_equal(heap_stats(heap[0], r).unverified_reads, 0);
	}
	/* What was committed, removed and written by somebody else is not written again. */
	assert_int_equal(tn_heap_remove(heap[0], &key, 8), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(put(heap[1], 20 + r, r, 1), 0);
	assert_int_equal(tn_heap_commit(heap[0], &plan), -ESTALE);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(get(heap[0], 20 + r), 0);
	/* As a kernel does it that knows of one replica. */
	key = 8;
	assert_int_equal(tn_heap_open_for_write(heap[0], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(2), &plan), 0);
	heap_fill(tn_heap_ptr(heap[0], 1, plan.payload_base), BYTES, key);
	assert_true(tn_heap_finish(tn_heap_slot_at(tn_heap_ptr(heap[0], 1, 0), plan.header_off), plan.epoch, 0, TN_HEAP_READY));
	assert_int_equal(found_at(heap[2], key), 1); /* its own is not READY */
	assert_int_equal(tn_heap_commit(heap[0], &plan), 0);
	assert_int_equal(found_at(heap[2], key), 2);
	key = 9;
	assert_int_equal(tn_heap_open_for_write(heap[0], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(2), &plan), 0);
	assert_int_equal(tn_heap_abandon(heap[0], &plan), 0);
	assert_int_equal(found_at(heap[2], key), -1);
	heap_wait_until(heap_stats(heap[0], 1).heap_used == heap_stats(heap[0], 2).heap_used);
	close_ranks(heap);
}

static void what_a_commit_copies_from_is_no_other_objects_memory_meanwhile(void **state)
{
	struct tn_heap *heap[RANKS];
	struct tn_heap_plan plan;
	uint64_t key = 7;

	open_ranks(heap, 2); /* one object of two pages per rank */
	for (uint32_t replicas = 2; replicas <= RANKS; replicas++) {
		assert_int_equal(tn_heap_open_for_write(heap[0], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(replicas), &plan), 0);
		heap_fill(tn_heap_ptr(heap[0], 1, plan.payload_base), BYTES, key);
		intruder = heap[2];
		assert_int_equal(tn_heap_commit(heap[0], &plan), 0);
		assert_null(intruder);
		assert_int_equal(intruder_rc, -ENOSPC);
		for (uint32_t r = 0; r < RANKS; r++)
			assert_int_equal(get(heap[r], key), 0);
		assert_int_equal(tn_heap_remove(heap[0], &key, 8), 0);
	}
	close_ranks(heap);
}

static void what_a_kernel_committed_and_is_gone_is_not_copied(void **state)
{
	struct tn_heap *heap[RANKS];
	struct tn_heap_plan plan;
	uint64_t key = 7;

	open_ranks(heap, 2);
	assert_int_equal(tn_heap_open_for_write(heap[0], &key, 8, BYTES, 1, TN_HEAP_REPLICAS(2), &plan), 0);
	heap_fill(tn_heap_ptr(heap[0], 1, plan.payload_base), BYTES, key);
	assert_true(tn_heap_finish(tn_heap_slot_at(tn_heap_ptr(heap[0], 1, 0), plan.header_off), plan.epoch, 0, TN_HEAP_READY));
	assert_int_equal(put(heap[2], 8, 1, 1), 0); /* evicts it, and has its memory */
	assert_int_equal(tn_heap_commit(heap[0], &plan), -ESTALE);
	assert_int_equal(get(heap[0], key), -ENOENT);
	assert_int_equal(get(heap[0], 8), 0);
	assert_int_equal(put(heap[0], key, 2, 1), 0); /* where the other replica was to go */
	close_ranks(heap);
}

static void a_new_master_finds_all_replicas(void **state)
{
	struct tn_heap *heap[RANKS];

	open_ranks(heap, 16);
	assert_int_equal(put(heap[1], 7, 0, 3), 0);
	tn_heap_destroy(heap[0]); /* as if it had died */
	assert_int_equal(tn_heap_take_over(heap[1]), 0);
	assert_int_equal(found_at(heap[1], 7), 1);
	assert_int_equal(found_at(heap[2], 7), 2);
	assert_int_equal(put(heap[2], 7, 0, 1), -EEXIST);
	assert_int_equal(tn_heap_remove(heap[2], (uint64_t[]){7}, 8), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(heap_stats(heap[1], r).ready_count, 0);
	tn_heap_destroy(heap[2]);
	tn_heap_destroy(heap[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_object_lies_at_as_many_ranks_as_was_wanted_and_goes_as_one),
		cmocka_unit_test(more_replicas_than_ranks_are_refused),
		cmocka_unit_test(the_replica_of_a_living_owner_is_used_when_the_other_one_dies),
		cmocka_unit_test(a_damaged_replica_is_not_what_a_reader_gets),
		cmocka_unit_test(one_replica_that_is_evicted_leaves_the_other),
		cmocka_unit_test(what_does_not_fit_everywhere_lies_nowhere),
		cmocka_unit_test(a_commit_writes_the_other_replicas),
		cmocka_unit_test(what_a_commit_copies_from_is_no_other_objects_memory_meanwhile),
		cmocka_unit_test(what_a_kernel_committed_and_is_gone_is_not_copied),
		cmocka_unit_test(a_new_master_finds_all_replicas),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
