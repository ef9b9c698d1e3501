/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that move between sizes of blocks while somebody holds blocks in them: a save of another size gets
 * a segment that can go, or -ENOSPC when none can, and never waits for a lease; nor does a flush or the end of the cache.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "cache_rig.h"
#include "tn_test.h"

#define BIG_DIM 128u  /* 256 KiB a block */
#define MID_DIM 64u   /* 128 KiB */
#define SMALL_DIM 16u /* 32 KiB */
#define BIG_PER_SEGMENT 15u /* of 4 MiB */

static uint64_t pin(struct rig *r, uint64_t id)
{
	struct tn_key key = rig_key(id);
	struct tn_match m;

	assert_int_equal(tn_match(r->space, &key, 1, NULL, &m, TN_MATCH_PIN), 1);
	return m.pin;
}

static uint32_t count(struct rig *r, uint64_t first, uint32_t n)
{
	struct tn_match m;
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);

		found += tn_match(r->space, &key, 1, NULL, &m, 0) == 1;
	}
	return found;
}

/* tn_cache_close on a thread of its own, so that a test can tell that it does not return. */
static void *close_main(void *arg)
{
	struct rig *r = arg;

	return (void *)(intptr_t)tn_cache_close(r->cache);
}

static int close_in_time(struct rig *r)
{
	struct timespec until;
	pthread_t thread;
	void *status;

	assert_int_equal(tn_pool_unregister(r->pool), 0);
	tn_space_close(r->space);
	assert_int_equal(pthread_create(&thread, NULL, close_main, r), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	if (pthread_timedjoin_np(thread, &status, &until))
		fail_msg("tn_cache_close does not return");
	return (int)(intptr_t)status;
}

/*
 * 31 segments full of one size and one of another, then a third size: the two oldest segments have one pinned block each,
 * stay as they are with all that is in them, and the next one goes.
 */
static void a_save_of_another_size_passes_over_segments_that_somebody_holds(void **state)
{
	struct rig r, second, third;
	struct tn_save_result res;
	uint64_t pins[2];

	rig_set_up(&r, 128u << 20, 0, BIG_DIM);
	assert_int_equal(rig_close(&r), 0);
	r.opts.policy = "default";
	assert_int_equal(rig_open(&r), 0);
	rig_open_second(&r, MID_DIM, NULL, &second);
	rig_open_second(&r, SMALL_DIM, NULL, &third);
	for (uint64_t i = 0; i < 464; i += 8) {
		rig_save(&r, 1 + i, 8, 0, &res);
		assert_int_equal(res.stored, 8);
	}
	rig_save(&second, 4001, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	assert_int_equal(count(&r, 1, 464), 464);
	for (uint32_t s = 0; s < 2; s++)
		pins[s] = pin(&r, 3 + s * BIG_PER_SEGMENT);
	rig_save(&third, 5001, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	assert_int_equal(count(&r, 1, 2 * BIG_PER_SEGMENT), 2 * BIG_PER_SEGMENT);
	assert_int_equal(count(&r, 1, 464), 464 - BIG_PER_SEGMENT);
	assert_int_equal(rig_load(&third, 5001, 8), 8);
	for (uint32_t s = 0; s < 2; s++)
		assert_int_equal(tn_unpin(r.space, pins[s]), 0);
	rig_close_second(&third);
	rig_close_second(&second);
	rig_tear_down(&r);
}

/* A block in every segment is pinned: -ENOSPC at once, and nothing was evicted for it. When one is let go, it works. */
static void a_save_that_no_segment_can_go_for_fails_at_once_and_evicts_nothing(void **state)
{
	struct tn_save_result res;
	uint64_t pins[4], begun;
	uint32_t before;
	struct rig r, t;

	rig_set_up(&r, 16u << 20, 0, BIG_DIM);
	rig_open_second(&r, SMALL_DIM, NULL, &t);
	/* As many as the policy lets in, in all four segments. */
	rig_save(&r, 1, 52, 0, &res);
	assert_int_equal(res.stored, 52);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	before = count(&r, 1, 52);
	for (uint32_t s = 0; s < 4; s++)
		pins[s] = pin(&r, 2 + s * BIG_PER_SEGMENT);
	begun = rig_now_ns();
	for (uint32_t i = 0; i < 10; i++) {
		rig_save(&t, 5001 + 8 * i, 8, 0, &res);
		assert_int_equal(res.failed + res.rejected, 8);
		assert_int_equal(res.failed ? res.error : -ENOSPC, -ENOSPC);
	}
	printf("# ten saves failed in %.3f s\n", (double)(rig_now_ns() - begun) / 1e9);
	assert_true(rig_now_ns() - begun < 8 * RIG_SECOND);
	assert_true(count(&r, 1, 52) >= before - 8); /* those that the policy gave up for the new ones' entries */
	for (uint32_t s = 0; s < 4; s++)
		assert_int_equal(tn_unpin(r.space, pins[s]), 0);
	rig_save(&t, 5101, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	rig_close_second(&t);
	rig_tear_down(&r);
}

/* The same with a host tier: the blocks that were admitted to the disk wait in host memory, and nobody for the leases. */
static void neither_a_flush_nor_the_end_waits_for_leases(void **state)
{
	struct tn_save_result res;
	struct rig r, t;

	rig_set_up(&r, 8u << 20, 2u << 20, MID_DIM);
	rig_open_second(&r, SMALL_DIM, NULL, &t);
	for (uint64_t i = 0; i < 40; i += 8) {
		rig_save(&r, 1 + i, 8, 0, &res);
		assert_int_equal(res.stored, 8);
		assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	}
	pin(&r, 1); /* one in each of the two segments */
	pin(&r, 40);
	rig_save(&t, 5001, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	assert_int_equal(tn_flush(r.cache, rig_soon()), -ENOSPC);
	assert_int_equal(count(&r, 1, 40), 40);
	assert_int_equal(rig_load(&t, 5001, 8), 8);
	rig_close_second(&t);
	assert_int_equal(close_in_time(&r), -ENOSPC);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(count(&r, 1, 40), 40);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_of_another_size_passes_over_segments_that_somebody_holds),
		cmocka_unit_test(a_save_that_no_segment_can_go_for_fails_at_once_and_evicts_nothing),
		cmocka_unit_test(neither_a_flush_nor_the_end_waits_for_leases),
	};

	return cmocka_run_group_tests_name("cache-moves", tests, NULL, NULL);
}
