/* SPDX-License-Identifier: Apache-2.0 */
/* The heap's calls between real processes. */
#include <sys/resource.h>

#include "base/rng.h"
#include "heap/heap_internal.h"
#include "heap/heap_rig.h"

#define BYTES (3u * HEAP_PAGE + 512u)

static void put(struct tn_heap *heap, uint64_t key, uint64_t bytes, uint32_t owner)
{
	assert_int_equal(heap_put(heap, key, bytes, owner, 0), 0);
}

static void *plan_ptr(struct tn_heap *heap, const struct tn_heap_plan *plan)
{
	return tn_heap_ptr(heap, plan->dst_rank, plan->payload_base);
}

static const void *meta_ptr(struct tn_heap *heap, const struct tn_heap_meta *meta)
{
	return tn_heap_ptr(heap, meta->owner_rank, meta->payload_off);
}

/* Rank 1: puts object 1 into rank 0's heap, and writes object 2 there in place. */
static int produce(void *arg)
{
	struct tn_heap *heap = heap_open(2, 1, NULL);
	struct tn_heap_plan plan;
	uint64_t key = 2;

	put(heap, 1, BYTES, 0);
	assert_int_equal(tn_heap_open_for_write(heap, &key, sizeof(key), BYTES, 0, 0, &plan), 0);
	assert_int_equal(plan.dst_rank, 0);
	assert_int_equal(plan.n_pages, 4);
	heap_fill(plan_ptr(heap, &plan), BYTES, key);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	tn_heap_destroy(heap);
	return 0;
}

static void what_one_process_writes_another_reads_in_place_under_a_lease(void **state)
{
	struct tn_heap_opts o = heap_opts(64);
	unsigned char copy[BYTES];
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 1, bytes;
	pid_t producer;

	heap_new_name();
	producer = heap_process(produce, NULL);
	heap = heap_open(2, 0, &o);
	heap_wait_until(tn_heap_get(heap, &key, sizeof(key), copy, sizeof(copy), &bytes) == 0);
	assert_int_equal(bytes, BYTES);
	assert_true(heap_is_filled(copy, bytes, key));
	key = 2;
	heap_wait_until(tn_heap_hold(heap, &key, sizeof(key), &meta) == 0);
	assert_int_equal(heap_join_process(producer), 0);
	assert_int_equal(meta.owner_rank, 0);
	assert_true(heap_is_filled(meta_ptr(heap, &meta), meta.bytes_total, key));
	assert_int_equal(tn_heap_remove(heap, &key, sizeof(key)), 0);
	assert_int_equal(tn_heap_get_location(heap, &key, sizeof(key), &meta), -ENOENT);
	for (uint64_t k = 100; k < 115; k++) /* all the rest of the heap */
		put(heap, k, 4 * HEAP_PAGE, 0);
	assert_true(heap_is_filled(meta_ptr(heap, &meta), meta.bytes_total, key));
	assert_int_equal(heap_stats(heap, 0).leases, 1);
	assert_int_equal(tn_heap_release(heap, &meta), 0);
	assert_int_equal(tn_heap_release(heap, &meta), -EINVAL);
	put(heap, 200, 4 * HEAP_PAGE, 0);
	tn_heap_destroy(heap);
}

static void bad_values_are_refused_by_name(void **state)
{
	struct tn_heap_opts o = heap_opts(64), bad = o;
	struct tn_heap_plan plan = {.header_off = 100};
	struct tn_heap_stats st = {.size = 8};
	struct tn_heap_meta meta = {.owner_rank = 5};
	struct tn_heap *heap, *other, *third;
	uint64_t key = 1;

	heap_new_name();
	assert_int_equal(tn_heap_create("", 1, 0, &o, &heap), -EINVAL);
	assert_int_equal(tn_heap_create("a/b", 1, 0, &o, &heap), -EINVAL);
	assert_int_equal(tn_heap_create(heap_name, 0, 0, &o, &heap), -EINVAL);
	assert_int_equal(tn_heap_create(heap_name, 2, 2, &o, &heap), -EINVAL);
	assert_int_equal(tn_heap_create(heap_name, TN_HEAP_RANKS_MAX + 1, 0, &o, &heap), -EINVAL);
	bad.page_bytes = 5000;
	assert_int_equal(tn_heap_create(heap_name, 1, 0, &bad, &heap), -EINVAL);
	bad = o;
	bad.water_lo = 101;
	assert_int_equal(tn_heap_create(heap_name, 1, 0, &bad, &heap), -EINVAL);
	bad = o;
	bad.heap_bytes = 0;
	assert_int_equal(tn_heap_create(heap_name, 1, 0, &bad, &heap), -EINVAL);
	heap = heap_open(2, 0, &o);
	assert_int_equal(tn_heap_create(heap_name, 2, 0, &o, &other), -EEXIST);
	o.timeout_ns = TN_TEST_SECOND;
	assert_int_equal(tn_heap_create(heap_name, 3, 1, &o, &other), -EINVAL);
	other = heap_open(2, 1, NULL);
	assert_int_equal(tn_heap_take_over(other), -EBUSY);
	assert_int_equal(tn_heap_create(heap_name, 2, 1, &o, &third), -EEXIST);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 0, 1, 0, 0, &plan), -EINVAL);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 0, 0, 0, &plan), -EINVAL);
	assert_int_equal(tn_heap_open_for_write(other, &key, 8, 1, 2, 0, &plan), -EINVAL);
	assert_int_equal(tn_heap_open_for_write(other, &key, 8, 1, 0, 4, &plan), -EINVAL);
	assert_int_equal(tn_heap_open_for_write(other, &key, 8, 65 * HEAP_PAGE, 0, 0, &plan), -EFBIG);
	assert_int_equal(tn_heap_commit(heap, &plan), -EINVAL);
	assert_int_equal(tn_heap_release(heap, &meta), -EINVAL);
	assert_int_equal(tn_heap_stats_get(heap, 0, &st), -EINVAL);
	st.size = sizeof(st);
	assert_int_equal(tn_heap_stats_get(heap, 2, &st), -EINVAL);
	assert_int_equal(tn_heap_evict_until_below(other, 101), -EINVAL);
	assert_int_equal(tn_heap_remove(other, &key, 8), -ENOENT);
	assert_null(tn_heap_ptr(heap, 2, 0));
	assert_null(tn_heap_ptr(heap, 0, UINT64_MAX));
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
	tn_heap_destroy(NULL);
}

static void an_object_is_immutable_until_it_is_removed(void **state)
{
	struct tn_heap_opts o = heap_opts(64);
	struct tn_heap_plan plan, again;
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 7, word, bytes;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, TN_HEAP_ANY, 0, &plan), 0);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, TN_HEAP_ANY, 0, &again), -EEXIST);
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), -EAGAIN);
	assert_int_equal(tn_heap_remove(heap, &key, 8), -EAGAIN);
	assert_int_equal(tn_heap_abandon(heap, &plan), 0);
	assert_int_equal(tn_heap_commit(heap, &plan), -ESTALE);
	assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), -ENOENT);
	put(heap, key, 8, TN_HEAP_ANY);
	assert_int_equal(tn_heap_put(heap, &key, 8, &word, 8, 0, 0), -EEXIST);
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 7, &bytes), -ENOBUFS);
	assert_int_equal(bytes, 8);
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), 0);
	assert_true(heap_is_filled(&word, 8, key));
	assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), 0);
	*(uint64_t *)tn_heap_ptr(heap, 0, meta.payload_off) ^= 1;
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), -EBADMSG);
	assert_int_equal(heap_stats(heap, 0).failures, 1);
	assert_int_equal(heap_stats(heap, 0).cas_failures, 1);
	assert_int_equal(tn_heap_remove(heap, &key, 8), 0);
	heap_wait_until(heap_stats(heap, 0).heap_used == 0); /* what was abandoned comes back soon */
	tn_heap_destroy(heap);
}

/* As a kernel does it: without a checksum. */
static void what_a_kernel_made_ready_is_read_unverified_and_counted(void **state)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap_plan plan;
	struct tn_heap *heap;
	uint64_t key = 7, word, bytes;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, 0, &plan), 0);
	heap_fill(plan_ptr(heap, &plan), 8, key);
	assert_true(tn_heap_finish(tn_heap_slot_at(tn_heap_ptr(heap, 0, 0), plan.header_off), plan.epoch, 0, TN_HEAP_READY));
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), 0);
	assert_true(heap_is_filled(&word, 8, key));
	assert_int_equal(heap_stats(heap, 0).unverified_reads, 1);
	tn_heap_destroy(heap);
}

static void eviction_takes_the_oldest_and_passes_pins_and_leases_by(void **state)
{
	enum { PAGES = 1000, OBJECTS = 20000 };
	struct tn_heap_opts o = heap_opts(PAGES);
	struct tn_heap_plan plan;
	struct tn_heap_meta meta, held;
	struct tn_heap_stats st;
	struct tn_heap *heap;
	uint64_t pinned = 1000000, key = 0;

	heap_new_name();
	o.water_hi = 95;
	o.water_lo = 85;
	o.order = TN_HEAP_FIFO;
	heap = heap_open(1, 0, &o);
	assert_int_equal(tn_heap_open_for_write(heap, &pinned, 8, 8, 0, TN_HEAP_PIN, &plan), 0);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	put(heap, 0, 8, 0);
	assert_int_equal(tn_heap_hold(heap, &key, 8, &held), 0);
	for (key = 1; key < OBJECTS; key++)
		put(heap, key, 8, 0);
	st = heap_stats(heap, 0);
	assert_int_equal(st.ready_count + st.evictions, OBJECTS + 1);
	assert_int_equal(st.heap_used, st.ready_count * HEAP_PAGE);
	assert_in_range(st.ready_count, PAGES * 85 / 100, PAGES * 95 / 100);
	for (key = 1; key < OBJECTS; key++)
		assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), key < OBJECTS + 2 - st.ready_count ? -ENOENT : 0);
	assert_int_equal(tn_heap_get_location(heap, &pinned, 8, &meta), 0);
	assert_true(heap_is_filled(meta_ptr(heap, &held), 8, 0));
	assert_int_equal(tn_heap_release(heap, &held), 0);
	assert_int_equal(tn_heap_evict_until_below(heap, 10), st.ready_count - PAGES / 10);
	assert_int_equal(tn_heap_evict_until_below(heap, 0), PAGES / 10 - 1);
	assert_int_equal(heap_stats(heap, 0).ready_count, 1);
	tn_heap_destroy(heap);
}

static void objects_of_priority_go_after_the_others(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap_plan plan;
	struct tn_heap_meta meta;
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	for (uint64_t key = 0; key < 4; key++) {
		assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, key < 2 ? TN_HEAP_PRIORITY : 0, &plan), 0);
		assert_int_equal(tn_heap_commit(heap, &plan), 0);
	}
	assert_int_equal(tn_heap_evict_until_below(heap, 50), 2);
	for (uint64_t key = 0; key < 4; key++)
		assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), key < 2 ? 0 : -ENOENT);
	assert_int_equal(tn_heap_evict_until_below(heap, 25), 1); /* object 0 was read before object 1 */
	assert_int_equal(tn_heap_get_location(heap, (uint64_t[]){0}, 8, &meta), -ENOENT);
	assert_int_equal(tn_heap_get_location(heap, (uint64_t[]){1}, 8, &meta), 0);
	tn_heap_destroy(heap);
}

static void a_full_heap_of_pinned_objects_says_so(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap_plan plan;
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	for (uint64_t key = 0; key < 5; key++) {
		assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, TN_HEAP_PIN, &plan), key < 4 ? 0 : -ENOSPC);
		if (key < 4)
			assert_int_equal(tn_heap_commit(heap, &plan), 0);
	}
	assert_int_equal(heap_stats(heap, 0).oom, 1);
	tn_heap_destroy(heap);
}

/* Small extents are merged, large ones are split. */
static void a_heap_that_was_full_of_small_objects_takes_large_ones_and_back(void **state)
{
	enum { PAGES = 100 };
	struct tn_heap_opts o = heap_opts(PAGES);
	struct tn_heap_meta meta;
	struct tn_heap *heap;

	heap_new_name();
	o.order = TN_HEAP_FIFO;
	heap = heap_open(1, 0, &o);
	for (uint32_t round = 0; round < 5; round++) {
		for (uint64_t key = 0; key < 2 * PAGES; key++)
			put(heap, 1000 * round + key, 8, 0);
		assert_int_equal(heap_stats(heap, 0).ready_count, PAGES);
		put(heap, 1000 * round + 500, 64 * HEAP_PAGE, 0);
		assert_int_equal(heap_stats(heap, 0).ready_count, PAGES - 64 + 1);
		put(heap, 1000 * round + 501, 32 * HEAP_PAGE, 0);
		for (uint64_t key = 500; key < 502; key++) {
			uint64_t k = 1000 * round + key;

			assert_int_equal(tn_heap_get_location(heap, &k, 8, &meta), 0);
			assert_true(heap_is_filled(meta_ptr(heap, &meta), meta.bytes_total, k));
		}
	}
	tn_heap_destroy(heap);
}

/* Rank 1: claims an extent of rank 0's heap by itself. */
static int reserve(void *arg)
{
	struct tn_heap *heap = heap_open(2, 1, NULL);
	struct tn_heap_plan plan, twice, lost;
	uint64_t key = 0, last = 9;

	put(heap, 100, 2 * HEAP_PAGE, 0);
	put(heap, 101, 2 * HEAP_PAGE, 0);
	put(heap, 102, 2 * HEAP_PAGE, 0);
	for (uint64_t k = 100; k < 103; k++)
		assert_int_equal(tn_heap_remove(heap, &k, 8), 0);
	assert_int_equal(tn_heap_reserve(heap, &key, 8, 2 * HEAP_PAGE, 0, 0, &plan), 0);
	assert_int_equal(tn_heap_reserve(heap, &key, 8, 2 * HEAP_PAGE, 0, 0, &twice), 0);
	assert_int_equal(tn_heap_reserve(heap, &last, 8, 2 * HEAP_PAGE, 0, 0, &lost), 0);
	assert_true(plan.announces && twice.announces && lost.announces); /* nobody was asked */
	heap_fill(plan_ptr(heap, &plan), 2 * HEAP_PAGE, key);
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	assert_int_equal(tn_heap_commit(heap, &twice), 0);
	put(heap, 1, 8, 0);
	raise(SIGKILL);
	return 0;
}

static void a_producer_reserves_by_itself_and_the_first_object_of_a_key_counts(void **state)
{
	struct tn_heap_opts o = heap_opts(16);
	unsigned char copy[2 * HEAP_PAGE];
	struct tn_heap *heap;
	uint64_t key = 0, bytes;
	pid_t producer;

	heap_new_name();
	producer = heap_process(reserve, NULL);
	heap = heap_open(2, 0, &o);
	heap_wait_until(tn_heap_get(heap, &key, 8, copy, sizeof(copy), &bytes) == 0);
	assert_true(heap_is_filled(copy, bytes, key));
	assert_int_equal(heap_join_process(producer), 1000 + SIGKILL);
	heap_wait_until(heap_stats(heap, 0).heap_used == 3 * HEAP_PAGE);
	assert_int_equal(heap_stats(heap, 0).ready_count, 2);
	assert_int_equal(heap_stats(heap, 0).ann_ring_depth, 0);
	assert_int_equal(tn_heap_get(heap, &key, 8, copy, sizeof(copy), &bytes), 0);
	assert_true(heap_is_filled(copy, bytes, key));
	tn_heap_destroy(heap);
}

static void an_open_that_sweeps_and_finds_the_key_is_refused(void **state)
{
	struct tn_heap_opts o = heap_opts(2);
	struct tn_heap_plan plan, second;
	struct tn_heap *heap;
	uint64_t key = 3, word, bytes;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	put(heap, 1, 8, 0);
	put(heap, 2, 8, 0);
	assert_int_equal(tn_heap_remove(heap, (uint64_t[]){2}, 8), 0);
	assert_int_equal(tn_heap_reserve(heap, &key, 8, 8, 0, 0, &plan), 0);
	assert_true(plan.announces);
	heap_fill(plan_ptr(heap, &plan), 8, key);
	/* As a kernel does it, and before the next sweep. */
	assert_true(tn_heap_finish(tn_heap_slot_at(tn_heap_ptr(heap, 0, 0), plan.header_off), plan.epoch, 0, TN_HEAP_READY));
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, 0, &second), -EEXIST); /* nothing is free: it sweeps */
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), 0);
	assert_true(heap_is_filled(&word, 8, key));
	assert_int_equal(tn_heap_remove(heap, &key, 8), 0);
	assert_int_equal(tn_heap_get(heap, &key, 8, &word, 8, &bytes), -ENOENT);
	heap_wait_until(heap_stats(heap, 0).heap_used == heap_stats(heap, 0).ready_count * HEAP_PAGE);
	put(heap, 4, 8, 0);
	put(heap, 5, 8, 0);
	tn_heap_destroy(heap);
}

/* Rank 1: opens object 1, stops itself, then writes and commits it. 3: the commit was refused. */
static int stop_while_writing(void *arg)
{
	struct tn_heap *heap = heap_open(2, 1, NULL);
	struct tn_heap_plan plan;
	uint64_t key = 1;
	int rc;

	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, HEAP_PAGE, 0, 0, &plan), 0);
	raise(SIGSTOP);
	memset(plan_ptr(heap, &plan), 0xee, HEAP_PAGE);
	rc = tn_heap_commit(heap, &plan);
	tn_heap_destroy(heap);
	return rc == -ESTALE ? 3 : 0;
}

static void a_producer_that_was_stopped_for_too_long_harms_nobody(void **state)
{
	struct tn_heap_opts o = heap_opts(4);
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 1;
	pid_t producer;
	int status;

	heap_new_name();
	o.reclaim_ns = TN_TEST_SECOND / 20;
	producer = heap_process(stop_while_writing, NULL);
	heap = heap_open(2, 0, &o);
	assert_int_equal(waitpid(producer, &status, WUNTRACED), producer);
	assert_true(WIFSTOPPED(status));
	heap_wait_until(tn_heap_get_location(heap, &key, 8, &meta) == -ENOENT);
	assert_int_equal(heap_stats(heap, 0).reclaims, 1);
	for (uint64_t k = 1; k < 4; k++) /* all but the memory that the producer may write still */
		put(heap, k, HEAP_PAGE, 0);
	assert_int_equal(heap_stats(heap, 0).heap_used, 4 * HEAP_PAGE);
	assert_int_equal(kill(producer, SIGCONT), 0);
	assert_int_equal(heap_join_process(producer), 3);
	heap_wait_until(heap_stats(heap, 0).heap_used == 3 * HEAP_PAGE);
	put(heap, 4, HEAP_PAGE, 0);
	for (uint64_t k = 1; k < 5; k++) {
		assert_int_equal(tn_heap_get_location(heap, &k, 8, &meta), 0);
		assert_true(heap_is_filled(meta_ptr(heap, &meta), HEAP_PAGE, k));
	}
	assert_int_equal(heap_stats(heap, 1).cas_failures, 1);
	tn_heap_destroy(heap);
}

/* Rank 0: a master that has object 1, and one that is being written; it waits to be killed. */
static int lead(void *arg)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap = heap_open(2, 0, &o);
	struct tn_heap_plan plan;
	uint64_t key = 2;

	put(heap, 1, 2 * HEAP_PAGE, 1);
	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 1, 0, &plan), 0);
	put(heap, 3, 8, 0);
	pause();
	return 0;
}

static void another_rank_takes_over_from_a_dead_master(void **state)
{
	struct tn_heap *heap, *other;
	struct tn_heap_meta meta;
	struct tn_heap_plan plan;
	uint64_t key = 3, mine = 4;
	pid_t master;

	heap_new_name();
	master = heap_process(lead, NULL);
	heap = heap_open(2, 1, NULL);
	heap_wait_until(tn_heap_get_location(heap, &key, 8, &meta) == 0);
	assert_int_equal(tn_heap_open_for_write(heap, &mine, 8, 8, 1, 0, &plan), 0);
	key = 1;
	assert_int_equal(tn_heap_hold(heap, &key, 8, &meta), 0);
	heap_kill(master);
	assert_int_equal(tn_heap_remove(heap, &key, 8), -ESHUTDOWN);
	assert_int_equal(heap_stats(heap, 1).failures, 1);
	assert_true(heap_is_filled(meta_ptr(heap, &meta), 2 * HEAP_PAGE, 1));
	assert_int_equal(tn_heap_take_over(heap), 0);
	assert_int_equal(tn_heap_take_over(heap), 0);
	key = 2;
	heap_wait_until(tn_heap_get_location(heap, &key, 8, &meta) == -ENOENT); /* its producer is dead */
	assert_int_equal(tn_heap_evict_until_below(heap, 100), 0); /* the master has ended that life */
	assert_int_equal(tn_heap_commit(heap, &plan), 0);
	assert_int_equal(tn_heap_remove(heap, &mine, 8), 0);
	other = heap_open(2, 0, &(struct tn_heap_opts){.size = sizeof(struct tn_heap_opts), .master_rank = 1, .timeout_ns = TN_TEST_SECOND});
	key = 3;
	assert_int_equal(tn_heap_remove(other, &key, 8), 0);
	assert_int_equal(heap_stats(heap, 0).heap_used, 0);
	assert_int_equal(heap_stats(heap, 1).heap_used, 2 * HEAP_PAGE);
	key = 1;
	assert_int_equal(tn_heap_get_location(other, &key, 8, &meta), 0);
	assert_int_equal(tn_heap_release(heap, &meta), 0);
	tn_heap_destroy(other);
	tn_heap_destroy(heap);
}

/* Rank 1: holds an object until it is killed. */
static int hold_for_ever(void *arg)
{
	struct tn_heap *heap = heap_open(2, 1, NULL);
	struct tn_heap_meta meta;
	uint64_t key = 0;

	assert_int_equal(tn_heap_hold(heap, &key, 8, &meta), 0);
	pause();
	return 0;
}

static void a_live_plan_survives_the_death_of_another_rank(void **state)
{
	struct tn_heap_opts o = heap_opts(64);
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(2, 0, &o);
	put(heap, 0, 8, 0);
	for (uint64_t key = 1; key < 6; key++) {
		pid_t other = heap_process(hold_for_ever, NULL);
		struct tn_heap_plan plan;

		heap_wait_until(heap_stats(heap, 0).leases == 1);
		assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, 0, &plan), 0);
		kill(other, SIGKILL);
		heap_join_process(other);
		heap_wait_until(heap_stats(heap, 0).leases == 0);
		assert_int_equal(tn_heap_evict_until_below(heap, 100), 0); /* the master has ended that life */
		assert_int_equal(tn_heap_commit(heap, &plan), 0);
	}
	assert_int_equal(heap_stats(heap, 0).reclaims, 0);
	tn_heap_destroy(heap);
}

static void objects_that_producers_reserved_do_not_make_the_others_go(void **state)
{
	struct tn_heap_opts o = heap_opts(64);
	struct tn_heap_plan plan[8];
	struct tn_heap *heap;

	heap_new_name();
	heap = heap_open(1, 0, &o);
	for (uint64_t key = 0; key < 8; key++)
		put(heap, key, 8 * HEAP_PAGE, 0);
	for (uint64_t key = 1; key < 8; key++)
		assert_int_equal(tn_heap_remove(heap, &key, 8), 0);
	heap_wait_until(heap_stats(heap, 0).heap_used == 8 * HEAP_PAGE);
	for (uint64_t key = 100; key < 107; key++) {
		assert_int_equal(tn_heap_reserve(heap, &key, 8, 8 * HEAP_PAGE, 0, 0, &plan[key - 100]), 0);
		assert_true(plan[key - 100].announces);
		assert_int_equal(tn_heap_commit(heap, &plan[key - 100]), 0);
	}
	for (uint64_t key = 100; key < 107; key++) /* perhaps before they are counted */
		heap_wait_until(tn_heap_remove(heap, &key, 8) == 0);
	assert_int_equal(tn_heap_evict_until_below(heap, 50), 0);
	assert_int_equal(heap_stats(heap, 0).ready_count, 1);
	tn_heap_destroy(heap);
}

static int lead_three(void *arg)
{
	struct tn_heap_opts o = heap_opts(4);

	heap_open(3, 0, &o);
	pause();
	return 0;
}

/* Rank 2: an object that it commits when it goes on. */
static int stop_with_a_plan(void *arg)
{
	struct tn_heap *heap = heap_open(3, 2, NULL);
	struct tn_heap_plan plan;
	uint64_t key = 1;

	assert_int_equal(tn_heap_open_for_write(heap, &key, 8, 8, 0, 0, &plan), 0);
	raise(SIGSTOP);
	return tn_heap_commit(heap, &plan) ? 1 : 0;
}

static void a_take_over_without_descriptors_fails_and_ends_nobodys_life(void **state)
{
	struct rlimit few, usual;
	pid_t master, producer;
	struct tn_heap *heap;
	int status, unused[6];

	heap_new_name();
	master = heap_process(lead_three, NULL);
	producer = heap_process(stop_with_a_plan, NULL);
	heap = heap_open(3, 1, NULL);
	assert_int_equal(waitpid(producer, &status, WUNTRACED), producer);
	assert_true(WIFSTOPPED(status));
	heap_kill(master);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	few = usual;
	for (uint32_t i = 0; i < 6; i++)
		unused[i] = dup(0);
	few.rlim_cur = (rlim_t)unused[5] + 1; /* what a master opens, and a pidfd, but no file of /proc */
	for (uint32_t i = 0; i < 6; i++)
		close(unused[i]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	status = tn_heap_take_over(heap);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
	assert_int_equal(status, -EMFILE);
	assert_non_null(strstr(tn_error_last()->text, "lives is not known"));
	assert_int_equal(tn_heap_take_over(heap), 0);
	assert_int_equal(tn_heap_evict_until_below(heap, 100), 0);
	kill(producer, SIGCONT);
	assert_int_equal(heap_join_process(producer), 0);
	tn_heap_destroy(heap);
}

/* Rank 0: lets go of three extents of rank 1's heap, admits object 1, then stops before it hears of more. */
static int lead_and_stop(void *arg)
{
	struct tn_heap_opts o = heap_opts(8);
	struct tn_heap *heap = heap_open(2, 0, &o);
	struct tn_heap_meta meta;
	uint64_t key = 1;

	for (uint64_t k = 10; k < 13; k++)
		put(heap, k, HEAP_PAGE, 1);
	for (uint64_t k = 10; k < 13; k++)
		assert_int_equal(tn_heap_remove(heap, &k, 8), 0);
	put(heap, 9, 8, 0);
	heap_wait_until(tn_heap_get_location(heap, &key, 8, &meta) == 0);
	raise(SIGSTOP);
	return 0;
}

static void a_new_master_takes_in_only_what_was_admitted(void **state)
{
	struct tn_heap_plan later, unfinished, first;
	struct tn_heap_meta meta;
	struct tn_heap *heap;
	uint64_t key = 1, other = 2, ready = 9;
	pid_t master;
	int status;

	heap_new_name();
	master = heap_process(lead_and_stop, NULL);
	heap = heap_open(2, 1, NULL);
	heap_wait_until(tn_heap_get_location(heap, &ready, 8, &meta) == 0);
	/* In this order the duplicate lies where a scan comes first. */
	assert_int_equal(tn_heap_reserve(heap, &key, 8, HEAP_PAGE, 1, 0, &first), 0);
	assert_int_equal(tn_heap_reserve(heap, &other, 8, HEAP_PAGE, 1, 0, &unfinished), 0);
	assert_int_equal(tn_heap_reserve(heap, &key, 8, HEAP_PAGE, 1, 0, &later), 0);
	assert_true(first.announces && unfinished.announces && later.announces && later.header_off < first.header_off);
	heap_fill(plan_ptr(heap, &first), HEAP_PAGE, key);
	assert_int_equal(tn_heap_commit(heap, &first), 0);
	assert_int_equal(waitpid(master, &status, WUNTRACED), master);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(tn_heap_commit(heap, &later), 0);
	heap_kill(master);
	assert_int_equal(tn_heap_take_over(heap), 0);
	assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), 0);
	assert_int_equal(meta.header_off, first.header_off);
	assert_int_equal(tn_heap_get_location(heap, &other, 8, &meta), -ENOENT); /* nobody has announced it */
	assert_int_equal(tn_heap_commit(heap, &unfinished), 0);
	heap_wait_until(tn_heap_get_location(heap, &other, 8, &meta) == 0);
	heap_wait_until(heap_stats(heap, 1).ready_count == 2); /* the duplicate goes */
	assert_int_equal(tn_heap_get_location(heap, &key, 8, &meta), 0);
	assert_int_equal(meta.header_off, first.header_off);
	tn_heap_destroy(heap);
}

/* A word of memory that all share, by a process that is broken. */
static void scribble(struct tn_heap *heap, struct tn_rng *rng)
{
	struct tn_heap_directory *dir = heap->memory.dir;
	struct tn_heap_ctl *ctl = tn_heap_ptr(heap, 0, 0);
	struct tn_heap_slot *s = tn_heap_slot_of(&heap->memory, 0, tn_rng_below(rng, heap->memory.layout.hdr_count));
	uint64_t *const words[] = {&ctl->heap_base, &ctl->heap_limit, &ctl->bump_ptr, &ctl->hdr_base, &ctl->ann_base, &ctl->lease_base, &ctl->bytes,
				   &s->header.payload_base, &s->header.bytes_total, &dir->bytes, &dir->segment_bytes, &dir->reclaim_ns};
	uint32_t *const halves[] = {&ctl->hdr_count, &ctl->hdr_head, &ctl->ann_capacity, &ctl->ann_head, &ctl->ann_tail, &ctl->water_hi, &ctl->water_lo,
				    &ctl->ranks, &ctl->page_bytes, &s->header.n_pages, &s->header.page_size, &s->extra.size_class, &dir->page_bytes,
				    &dir->slots, &dir->order, &dir->places, &dir->ranks};
	uint64_t value = tn_rng_next(rng) >> tn_rng_below(rng, 64);
	uint32_t at = tn_rng_below(rng, (uint32_t)(sizeof(words) / sizeof(words[0]) + sizeof(halves) / sizeof(halves[0])));

	if (at < sizeof(words) / sizeof(words[0]))
		__atomic_store_n(words[at], value, __ATOMIC_RELAXED);
	else
		__atomic_store_n(halves[at - sizeof(words) / sizeof(words[0])], (uint32_t)value, __ATOMIC_RELAXED);
}

/* What the calls return is not compared: the heap is damaged. No access may lie outside of it. */
static void no_word_of_the_shared_memory_is_believed_twice(void **state)
{
	unsigned char bytes[2 * HEAP_PAGE] = {0};
	struct tn_rng rng;

	if (TN_TEST_THREAD_SANITIZER)
		tn_test_skip("the races are the point");
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t round = 0; round < 100; round++) {
		struct tn_heap_opts o = heap_opts(16);
		struct tn_heap_stats st = {.size = sizeof(st)};
		struct tn_heap_plan plan;
		struct tn_heap *heap;
		uint64_t n;

		heap_new_name();
		o.reclaim_ns = 1000000;
		heap = heap_open(1, 0, &o);
		for (uint64_t key = 0; key < 40; key++) {
			scribble(heap, &rng);
			tn_heap_put(heap, &key, 8, bytes, 1 + tn_rng_below(&rng, sizeof(bytes)), 0, 0);
			if (tn_heap_reserve(heap, (uint64_t[]){key + 100}, 8, HEAP_PAGE, 0, 0, &plan) == 0 && plan.n_pages == 1) {
				memset(plan_ptr(heap, &plan), 1, HEAP_PAGE);
				tn_heap_commit(heap, &plan);
			}
			tn_heap_get(heap, (uint64_t[]){tn_rng_below(&rng, 140)}, 8, bytes, sizeof(bytes), &n);
			tn_heap_stats_get(heap, 0, &st);
			if (tn_rng_below(&rng, 4) == 0)
				tn_heap_remove(heap, &key, 8);
		}
		tn_heap_evict_until_below(heap, 0);
		tn_heap_destroy(heap);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_process_writes_another_reads_in_place_under_a_lease),
		cmocka_unit_test(bad_values_are_refused_by_name),
		cmocka_unit_test(an_object_is_immutable_until_it_is_removed),
		cmocka_unit_test(what_a_kernel_made_ready_is_read_unverified_and_counted),
		cmocka_unit_test(eviction_takes_the_oldest_and_passes_pins_and_leases_by),
		cmocka_unit_test(objects_of_priority_go_after_the_others),
		cmocka_unit_test(a_full_heap_of_pinned_objects_says_so),
		cmocka_unit_test(a_heap_that_was_full_of_small_objects_takes_large_ones_and_back),
		cmocka_unit_test(a_producer_reserves_by_itself_and_the_first_object_of_a_key_counts),
		cmocka_unit_test(an_open_that_sweeps_and_finds_the_key_is_refused),
		cmocka_unit_test(a_producer_that_was_stopped_for_too_long_harms_nobody),
		cmocka_unit_test(another_rank_takes_over_from_a_dead_master),
		cmocka_unit_test(a_live_plan_survives_the_death_of_another_rank),
		cmocka_unit_test(objects_that_producers_reserved_do_not_make_the_others_go),
		cmocka_unit_test(a_take_over_without_descriptors_fails_and_ends_nobodys_life),
		cmocka_unit_test(a_new_master_takes_in_only_what_was_admitted),
		cmocka_unit_test(no_word_of_the_shared_memory_is_believed_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
