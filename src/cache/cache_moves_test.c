/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that move between sizes of blocks while somebody holds blocks in them: a save of another size gets
 * a segment that can go, or -ENOSPC when none can, and never waits for a lease; nor does a flush or the end of the cache.
 * For transfers it waits, but not for ever.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache_internal.h"
#include "cache_rig.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

#define BIG_DIM 128u  /* 256 KiB per block */
#define MID_DIM 64u   /* 128 KiB */
#define SMALL_DIM 16u /* 32 KiB */
#define BIG_PER_SEGMENT 15u /* of 4 MiB */

static uint64_t pin(struct rig *r, uint64_t id)
{
	struct tn_key key = rig_key(id);
	struct tn_match m = {.size = sizeof(m)};

	assert_int_equal(tn_match(r->space, &key, 1, NULL, &m, TN_MATCH_PIN), 1);
	return m.pin;
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
	assert_int_equal(rig_count(&r, 1, 464), 464);
	for (uint32_t s = 0; s < 2; s++)
		pins[s] = pin(&r, 3 + s * BIG_PER_SEGMENT);
	rig_save(&third, 5001, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	assert_int_equal(rig_count(&r, 1, 2 * BIG_PER_SEGMENT), 2 * BIG_PER_SEGMENT);
	assert_int_equal(rig_count(&r, 1, 464), 464 - BIG_PER_SEGMENT);
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
	before = rig_count(&r, 1, 52);
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
	assert_true(rig_count(&r, 1, 52) >= before - 8); /* those that the policy gave up for the new ones' entries */
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
	assert_int_equal(rig_count(&r, 1, 40), 40);
	assert_int_equal(rig_load(&t, 5001, 8), 8);
	rig_close_second(&t);
	assert_int_equal(close_in_time(&r), -ENOSPC);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_count(&r, 1, 40), 40);
	rig_tear_down(&r);
}

/* ---- transfers ------------------------------------------------------------------------------------------------ */

#define SEGMENTS 4u
#define BLOCKS 48u /* the policy lets in some more */
#define IN_EACH (BLOCKS - (SEGMENTS - 1) * BIG_PER_SEGMENT) /* of the segments, at least */
#define LOAD_PAGE 900u /* where neither space's saves are */

struct slow_reads {
	struct tn_io *io;
	uint64_t ns;
};

/* On the owner thread: not before recovery has read all that it wants. */
static int slow_down(struct tn_cache *cache, void *arg)
{
	struct slow_reads *slow = arg;
	struct tn_fault late = {.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .delay_ns = slow->ns};

	return tn_io_faulty_set(slow->io, &late, 1);
}

/* A store of four segments with big blocks in all of them, on a disk whose reads take so long. */
static void set_up_full(struct rig *r, struct rig *t, uint64_t read_ns)
{
	struct slow_reads slow = {.ns = read_ns};
	struct tn_io_faulty_opts none = {0};
	struct tn_save_result res;

	rig_set_up(r, SEGMENTS << 22, 0, BIG_DIM);
	rig_save(r, 1, BLOCKS, 0, &res);
	assert_int_equal(res.stored, BLOCKS);
	assert_int_equal(tn_flush(r->cache, rig_soon()), 0);
	assert_int_equal(rig_close(r), 0);
	rig_faults(&none);
	slow.io = rig_open_faulty(r);
	assert_int_equal(tn_owner_call(r->cache, slow_down, &slow), 0);
	rig_open_second(r, SMALL_DIM, NULL, t);
}

/* A load of the first blocks of so many segments, as far as they are there; NULL: none is. */
static struct tn_load *begin_load(struct rig *r, uint32_t first_page, uint32_t segments)
{
	struct tn_load *load = NULL;
	struct tn_key keys[SEGMENTS * IN_EACH];
	uint32_t pages[SEGMENTS * IN_EACH * RIG_PAGES], n = 0;

	for (uint32_t i = 0; i < segments * IN_EACH; i++) {
		uint64_t id = 1 + i / segments + i % segments * BIG_PER_SEGMENT;

		if (rig_count(r, id, 1) == 1)
			keys[n++] = rig_key(id);
	}
	for (uint32_t i = 0; i < n * RIG_PAGES; i++)
		pages[i] = first_page + i;
	if (n > 0)
		assert_int_equal(tn_load_begin(r->space, r->pool, keys, n, pages, NULL, &load), 0);
	return load;
}

static void end_load(struct tn_load *load)
{
	assert_int_equal(tn_load_end(load, rig_soon(), NULL), 0);
}

static void a_save_of_another_size_waits_for_the_loads_that_are_all_that_holds_the_segments(void **state)
{
	struct tn_save_result res;
	struct tn_load *load;
	struct rig r, t;

	set_up_full(&r, &t, RIG_SECOND / 5);
	load = begin_load(&r, LOAD_PAGE, SEGMENTS);
	rig_save(&t, 5001, 8, 0, &res);
	assert_int_equal(res.stored, 8);
	assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, rig_soon()), SEGMENTS * IN_EACH);
	end_load(load);
	rig_close_second(&t);
	rig_tear_down(&r);
}

/* Reads that take three seconds: a save waits for one of them, and not at all when every segment has a lease, too. */
static void it_waits_for_a_second_and_not_at_all_beside_leases(void **state)
{
	uint64_t pins[SEGMENTS], begun, ns;
	struct tn_save_result res;
	struct tn_load *load;
	struct rig r, t;

	set_up_full(&r, &t, 3 * RIG_SECOND);
	for (uint32_t s = 0; s < SEGMENTS; s++)
		pins[s] = pin(&r, 1 + s * BIG_PER_SEGMENT);
	load = begin_load(&r, LOAD_PAGE, SEGMENTS);
	begun = rig_now_ns();
	rig_save(&t, 5001, 2, 0, &res);
	ns = rig_now_ns() - begun;
	assert_int_equal(res.error, -ENOSPC);
	assert_true(ns < RIG_SECOND);
	assert_int_equal(tn_unpin(r.space, pins[1]), 0);
	begun = rig_now_ns();
	rig_save(&t, 5001, 2, 0, &res);
	ns = rig_now_ns() - begun;
	assert_int_equal(tn_load_end(load, 0, NULL), -EBUSY);
	assert_int_equal(res.error, -ENOSPC);
	assert_in_range(ns, RIG_SECOND, 5 * RIG_SECOND / 2); /* before the loads end */
	end_load(load);
	for (uint32_t s = 0; s < SEGMENTS; s++)
		if (s != 1)
			assert_int_equal(tn_unpin(r.space, pins[s]), 0);
	rig_close_second(&t);
	rig_tear_down(&r);
}

/* Beside a load it waits for, another segment is let go by the last who had a lease on it: that one goes. */
static void while_it_waits_a_segment_that_leases_held_may_go(void **state)
{
	struct tn_key key = rig_key(5001);
	uint32_t pages[RIG_PAGES] = {0, 1, 2, 3};
	struct tn_save_result res = {.size = sizeof(res)};
	uint64_t pins[SEGMENTS];
	struct tn_save_opts so;
	struct tn_save *save;
	struct tn_load *load;
	struct rig r, t;

	set_up_full(&r, &t, RIG_SECOND * 3 / 4);
	for (uint32_t s = 1; s < SEGMENTS; s++)
		pins[s] = pin(&r, BIG_PER_SEGMENT * s + 1);
	load = begin_load(&r, LOAD_PAGE, 1);
	tn_save_opts_init(&so);
	assert_int_equal(tn_save_begin(t.space, t.pool, &key, 1, pages, &so, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, rig_now_ns() + RIG_SECOND / 20, &res), -ETIMEDOUT);
	assert_int_equal(tn_unpin(r.space, pins[2]), 0);
	assert_int_equal(tn_save_end(save, rig_soon(), &res), 0);
	assert_int_equal(res.stored, 1);
	assert_int_equal(rig_count(&r, 1, BIG_PER_SEGMENT), BIG_PER_SEGMENT);
	assert_int_equal(rig_count(&r, 1 + 2 * BIG_PER_SEGMENT, BIG_PER_SEGMENT), 0);
	assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, rig_soon()), IN_EACH);
	end_load(load);
	for (uint32_t s = 1; s < SEGMENTS; s += 2)
		assert_int_equal(tn_unpin(r.space, pins[s]), 0);
	rig_close_second(&t);
	rig_tear_down(&r);
}

/* Slots in every segment, of a save whose bytes its caller has not given yet: as little as for a lease. */
static void it_does_not_wait_for_a_save_that_waits_for_its_caller(void **state)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save_opts so;
	struct tn_save *save;
	struct rig r, t;
	uint64_t begun;

	rig_set_up(&r, SEGMENTS << 22, 0, BIG_DIM);
	rig_open_second(&r, SMALL_DIM, NULL, &t);
	for (uint32_t i = 0; i < BLOCKS; i++)
		keys[i] = rig_key(1 + i);
	for (uint32_t i = 0; i < BLOCKS * RIG_PAGES; i++)
		pages[i] = i;
	tn_save_opts_init(&so);
	assert_int_equal(tn_save_begin(r.space, r.pool, keys, BLOCKS, pages, &so, &save), 0);
	begun = rig_now_ns();
	rig_save(&t, 5001, 2, 900, &res);
	assert_int_equal(res.error, -ENOSPC);
	assert_true(rig_now_ns() - begun < RIG_SECOND);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL), 0);
	assert_int_equal(tn_save_commit(save), 0);
	/* Now only transfers are in the way. */
	rig_save(&t, 5001, 2, 900, &res);
	assert_int_equal(res.stored, 2);
	assert_int_equal(tn_save_end(save, rig_soon(), &res), 0);
	assert_int_equal(res.stored, BLOCKS);
	rig_close_second(&t);
	rig_tear_down(&r);
}

struct traffic {
	struct rig *r;
	uint32_t first_page;
	uint32_t stop;
	uint64_t loads;
	pthread_t thread;
};

static void *load_without_a_pause(void *arg)
{
	struct traffic *t = arg;

	while (!__atomic_load_n(&t->stop, __ATOMIC_RELAXED)) {
		struct tn_load *load = begin_load(t->r, t->first_page, SEGMENTS);

		if (!load)
			continue;
		end_load(load);
		t->loads++;
	}
	return NULL;
}

/* Saves blocks of two new sizes beside the loads; how many fail. */
static uint32_t save_beside_loads(uint64_t *loads, uint64_t *longest_ns)
{
	struct traffic traffic[2];
	struct tn_save_result res;
	uint32_t failed = 0;
	struct rig r, t[2];

	set_up_full(&r, &t[0], RIG_SECOND / 500);
	rig_open_second(&r, MID_DIM, NULL, &t[1]);
	for (uint32_t i = 0; i < 2; i++) {
		traffic[i] = (struct traffic){.r = &r, .first_page = LOAD_PAGE + i * SEGMENTS * IN_EACH * RIG_PAGES};
		assert_int_equal(pthread_create(&traffic[i].thread, NULL, load_without_a_pause, &traffic[i]), 0);
	}
	usleep(5000);
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t begun = rig_now_ns(), ns;

		rig_save(&t[i], 5001 + 100 * i, 4, 0, &res);
		ns = rig_now_ns() - begun;
		*longest_ns = ns > *longest_ns ? ns : *longest_ns;
		failed += res.stored != 4;
	}
	for (uint32_t i = 0; i < 2; i++) {
		__atomic_store_n(&traffic[i].stop, 1, __ATOMIC_RELAXED);
		pthread_join(traffic[i].thread, NULL);
		*loads += traffic[i].loads;
		rig_close_second(&t[i]);
	}
	rig_tear_down(&r);
	return failed;
}

/* The loads hold every segment most of the time, though none for long. */
static void saves_of_a_new_size_find_a_place_beside_short_loads(void **state)
{
	uint32_t rounds = 20, failed = 0;
	uint64_t longest_ns = 0, loads = 0;

	for (uint32_t round = 0; round < rounds; round++)
		failed += save_beside_loads(&loads, &longest_ns);
	printf("# %u of %u saves failed beside %llu loads; the longest took %.3f s\n", failed, 2 * rounds, (unsigned long long)loads,
	       (double)longest_ns / 1e9);
	assert_in_range(failed, 0, rounds / 5); /* of those that failed at once three of four did */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_of_another_size_passes_over_segments_that_somebody_holds),
		cmocka_unit_test(a_save_that_no_segment_can_go_for_fails_at_once_and_evicts_nothing),
		cmocka_unit_test(neither_a_flush_nor_the_end_waits_for_leases),
		cmocka_unit_test(a_save_of_another_size_waits_for_the_loads_that_are_all_that_holds_the_segments),
		cmocka_unit_test(it_waits_for_a_second_and_not_at_all_beside_leases),
		cmocka_unit_test(while_it_waits_a_segment_that_leases_held_may_go),
		cmocka_unit_test(it_does_not_wait_for_a_save_that_waits_for_its_caller),
		cmocka_unit_test(saves_of_a_new_size_find_a_place_beside_short_loads),
	};

	return cmocka_run_group_tests_name("cache-moves", tests, NULL, NULL);
}
