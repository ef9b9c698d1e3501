/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that move between sizes of blocks while somebody holds blocks in them: a save of another size gets
 * a segment that can go, or -ENOSPC when none can, and never waits for a lease; nor does a flush or the end of the cache.
 * For transfers it waits, but not for ever.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "cache_rig.h"
#include "ioengine/faulty_rig.h"

#define BIG_DIM 128u  /* 256 KiB per block */
#define MID_DIM 64u   /* 128 KiB */
#define SMALL_DIM 16u /* 32 KiB */
#define BIG_PER_SEGMENT 15u /* of 4 MiB */
#define SEGMENTS 4u /* of the stores below */

/* The same machine on a simulated disk, where time is no chance. */
static struct rig_opts simulated_opts(void)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = SEGMENTS << 22;
	o.segment_bytes = 4u << 20;
	o.cache.max_ops = 16;
	o.cache.max_op_blocks = 256;
	o.layers = RIG_LAYERS;
	o.pages_per_block = RIG_PAGES;
	o.heads = 2;
	o.head_dim = BIG_DIM;
	o.npages = RIG_POOL_PAGES;
	o.faulty = true;
	return o;
}

static struct rig *simulated(void)
{
	struct rig_opts o = simulated_opts();

	return rig_start(&o);
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

	rig_space_close(r->s);
	assert_int_equal(pthread_create(&thread, NULL, close_main, r), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	if (pthread_timedjoin_np(thread, &status, &until))
		fail_msg("tn_cache_close does not return");
	r->cache = NULL;
	return (int)(intptr_t)status;
}

/*
 * 31 segments full of one size and one of another, then a third size: the two oldest segments have one pinned block each,
 * stay as they are with all that is in them, and the next one goes.
 */
static void a_save_of_another_size_passes_over_segments_that_somebody_holds(void **state)
{
	struct rig_space second, third;
	struct rig r;
	uint64_t pins[2];

	rig_init(&r, 128u << 20, 0, BIG_DIM);
	r.o.cache.policy = "default";
	assert_int_equal(rig_open(&r), 0);
	rig_open_second(&r, MID_DIM, &second);
	rig_open_second(&r, SMALL_DIM, &third);
	for (uint64_t i = 0; i < 464; i += 8) {
		assert_int_equal(rig_save(r.s, 1 + i, 8, 0).stored, 8);
	}
	assert_int_equal(rig_save(&second, 4001, 8, 0).stored, 8);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_count(r.s, 1, 464), 464);
	for (uint32_t s = 0; s < 2; s++)
		pins[s] = rig_pin(r.s, 3 + s * BIG_PER_SEGMENT, 1);
	assert_int_equal(rig_save(&third, 5001, 8, 0).stored, 8);
	assert_int_equal(rig_count(r.s, 1, 2 * BIG_PER_SEGMENT), 2 * BIG_PER_SEGMENT);
	assert_int_equal(rig_count(r.s, 1, 464), 464 - BIG_PER_SEGMENT);
	assert_int_equal(rig_load(&third, 5001, 8), 8);
	for (uint32_t s = 0; s < 2; s++)
		rig_unpin(r.s, pins[s]);
	rig_space_close(&third);
	rig_space_close(&second);
	rig_tear_down(&r);
}

/* A block in every segment is pinned: -ENOSPC at once, and nothing was evicted for it. When one is let go, it works. */
static void a_save_that_no_segment_can_go_for_fails_at_once_and_evicts_nothing(void **state)
{
	struct rig *r = simulated();
	struct tn_save_result res;
	struct rig_space t;
	uint64_t pins[SEGMENTS];
	uint32_t before;

	rig_open_second(r, SMALL_DIM, &t);
	/* As many as the policy lets in, in all four segments. */
	assert_int_equal(rig_save(r->s, 1, 52, 0).stored, 52);
	assert_int_equal(rig_flush(r), 0);
	before = rig_count(r->s, 1, 52);
	for (uint32_t s = 0; s < SEGMENTS; s++)
		pins[s] = rig_pin(r->s, 2 + s * BIG_PER_SEGMENT, 1);
	for (uint32_t i = 0; i < 10; i++) {
		uint64_t begun = rig_now(r);

		res = rig_save(&t, 5001 + 8 * i, 8, 0);
		assert_int_equal(res.failed + res.rejected, 8);
		assert_int_equal(res.failed ? res.error : -ENOSPC, -ENOSPC);
		assert_true(rig_now(r) - begun < RIG_SECOND / 10);
	}
	assert_true(rig_count(r->s, 1, 52) >= before - 8); /* those that the policy gave up for the new ones' entries */
	for (uint32_t s = 0; s < SEGMENTS; s++)
		rig_unpin(r->s, pins[s]);
	assert_int_equal(rig_save(&t, 5101, 8, 0).stored, 8);
	rig_space_close(&t);
	rig_tear_down(r);
}

static void allocate_late(struct rig *r)
{
	static const struct tn_fault late = {
		.kind = TN_FAULT_LATE, .op = TN_IO_ALLOCATE, .count = UINT64_MAX, .delay_ns = 30 * RIG_SECOND};

	rig_fault(r, &late, 1);
}

/* The only segment cannot go, and the file system takes half a minute for the next one: the store is not full. */
static void a_save_waits_for_the_file_to_get_longer_if_no_segment_can_go(void **state)
{
	struct rig_opts o = simulated_opts();
	struct rig_space t;
	uint64_t pin, begun;
	struct rig *r;

	o.prepare = allocate_late;
	r = rig_simulated(&o);
	rig_must_open(r);
	rig_open_second(r, SMALL_DIM, &t);
	assert_int_equal(rig_save(r->s, 1, 1, 0).stored, 1);
	pin = rig_pin(r->s, 1, 1);
	begun = rig_now(r);
	assert_int_equal(rig_save(&t, 5001, 8, 0).stored, 8);
	assert_true(rig_now(r) - begun > 10 * RIG_SECOND);
	assert_int_equal(rig_load(&t, 5001, 8), 8);
	rig_unpin(r->s, pin);
	rig_space_close(&t);
	rig_tear_down(r);
}

/* The same with a host tier: the blocks that were admitted to the disk wait in host memory, and nobody for the leases. */
static void neither_a_flush_nor_the_end_waits_for_leases(void **state)
{
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 8u << 20, 2u << 20, MID_DIM);
	rig_open_second(&r, SMALL_DIM, &t);
	for (uint64_t i = 0; i < 40; i += 8) {
		assert_int_equal(rig_save(r.s, 1 + i, 8, 0).stored, 8);
		assert_int_equal(rig_flush(&r), 0);
	}
	rig_pin(r.s, 1, 1); /* one in each of the two segments */
	rig_pin(r.s, 40, 1);
	assert_int_equal(rig_save(&t, 5001, 8, 0).stored, 8);
	assert_int_equal(rig_flush(&r), -ENOSPC);
	assert_int_equal(rig_count(r.s, 1, 40), 40);
	assert_int_equal(rig_load(&t, 5001, 8), 8);
	rig_space_close(&t);
	assert_int_equal(close_in_time(&r), -ENOSPC);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_count(r.s, 1, 40), 40);
	rig_tear_down(&r);
}

/* ---- transfers ------------------------------------------------------------------------------------------------ */

#define BLOCKS 48u /* the policy lets in some more */
#define IN_EACH (BLOCKS - (SEGMENTS - 1) * BIG_PER_SEGMENT) /* of the segments, at least */
#define LOAD_PAGE 900u /* where neither space's saves are */

static void slow_reads(struct rig *r, uint64_t ns)
{
	const struct tn_fault late = {.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .delay_ns = ns};

	rig_fault(r, &late, 1);
}

static void fill(struct rig *r)
{
	for (uint32_t i = 0; i < BLOCKS; i += BLOCKS / 2) /* a process that has attached has no more than half of the slots at a time */
		assert_int_equal(rig_save(r->s, 1 + i, BLOCKS / 2, i * RIG_PAGES).stored, BLOCKS / 2);
	assert_int_equal(rig_flush(r), 0);
}

/* A simulated store of four segments with big blocks in all of them, on a disk whose reads take so long. */
static struct rig *full(struct rig_space *t, uint64_t read_ns)
{
	struct rig *r = simulated();

	fill(r);
	rig_reopen(r); /* not before recovery has read all that it wants */
	slow_reads(r, read_ns);
	rig_open_second(r, SMALL_DIM, t);
	return r;
}

/* A load of the first blocks of so many segments, as far as they are there; NULL: none is. */
static struct tn_load *begin_load(struct rig *r, uint32_t first_page, uint32_t segments)
{
	struct tn_load *load = NULL;
	struct tn_key keys[SEGMENTS * IN_EACH];
	uint32_t pages[SEGMENTS * IN_EACH * RIG_PAGES], n = 0;

	for (uint32_t i = 0; i < segments * IN_EACH; i++) {
		uint64_t id = 1 + i / segments + i % segments * BIG_PER_SEGMENT;

		if (rig_count(r->s, id, 1) == 1)
			keys[n++] = rig_key(id);
	}
	rig_pages(r->s, first_page, n, pages);
	if (n > 0)
		assert_int_equal(tn_load_begin(r->s->space, r->s->pool, keys, n, pages, NULL, &load), 0);
	return load;
}

static void a_save_of_another_size_waits_for_the_loads_that_are_all_that_holds_the_segments(void **state)
{
	struct rig_space t;
	struct rig *r = full(&t, RIG_SECOND / 5);
	struct tn_load *load = begin_load(r, LOAD_PAGE, SEGMENTS);

	assert_int_equal(rig_save(&t, 5001, 8, 0).stored, 8);
	assert_int_equal(rig_load_wait(r->s, load, RIG_LAYERS - 1), SEGMENTS * IN_EACH);
	rig_load_end(r->s, load);
	rig_space_close(&t);
	rig_tear_down(r);
}

/* Reads that take three seconds: a save waits for one of them, and not at all when every segment has a lease, too. */
static void it_waits_for_a_second_and_not_at_all_beside_leases(void **state)
{
	struct rig_space t;
	struct rig *r = full(&t, 3 * RIG_SECOND);
	uint64_t pins[SEGMENTS], begun;
	struct tn_load *load;

	for (uint32_t s = 0; s < SEGMENTS; s++)
		pins[s] = rig_pin(r->s, 1 + s * BIG_PER_SEGMENT, 1);
	load = begin_load(r, LOAD_PAGE, SEGMENTS);
	begun = rig_now(r);
	assert_int_equal(rig_save(&t, 5001, 2, 0).error, -ENOSPC);
	assert_true(rig_now(r) - begun < RIG_SECOND / 10);
	rig_unpin(r->s, pins[1]);
	begun = rig_now(r);
	assert_int_equal(rig_save(&t, 5001, 2, 0).error, -ENOSPC);
	assert_in_range(rig_now(r) - begun, RIG_SECOND, RIG_SECOND + RIG_SECOND / 10);
	assert_int_equal(tn_load_end(load, 0, NULL), -EBUSY);
	rig_load_end(r->s, load);
	for (uint32_t s = 0; s < SEGMENTS; s++)
		if (s != 1)
			rig_unpin(r->s, pins[s]);
	rig_space_close(&t);
	rig_tear_down(r);
}

/* Beside a load it waits for, another segment is let go by the last who had a lease on it: that one goes. */
static void while_it_waits_a_segment_that_leases_held_may_go(void **state)
{
	struct rig_space t;
	struct rig *r = full(&t, RIG_SECOND * 3 / 4);
	uint64_t pins[SEGMENTS];
	struct tn_save *save;
	struct tn_load *load;

	for (uint32_t s = 1; s < SEGMENTS; s++)
		pins[s] = rig_pin(r->s, BIG_PER_SEGMENT * s + 1, 1);
	load = begin_load(r, LOAD_PAGE, 1);
	save = rig_save_begin(&t, 5001, 1, 0, NULL);
	rig_save_give(&t, save);
	rig_run(r, RIG_SECOND / 20);
	assert_int_equal(tn_save_end(save, 1, NULL), -ETIMEDOUT);
	rig_unpin(r->s, pins[2]);
	assert_int_equal(rig_save_end(&t, save).stored, 1);
	assert_int_equal(rig_count(r->s, 1, BIG_PER_SEGMENT), BIG_PER_SEGMENT);
	assert_int_equal(rig_count(r->s, 1 + 2 * BIG_PER_SEGMENT, BIG_PER_SEGMENT), 0);
	assert_int_equal(rig_load_wait(r->s, load, RIG_LAYERS - 1), IN_EACH);
	rig_load_end(r->s, load);
	for (uint32_t s = 1; s < SEGMENTS; s += 2)
		rig_unpin(r->s, pins[s]);
	rig_space_close(&t);
	rig_tear_down(r);
}

/* Slots in every segment, of a save whose bytes its caller has not given yet: as little as for a lease. */
static void it_does_not_wait_for_a_save_that_waits_for_its_caller(void **state)
{
	struct rig *r = simulated();
	struct tn_save *save;
	struct rig_space t;
	uint64_t begun;

	rig_open_second(r, SMALL_DIM, &t);
	save = rig_save_begin(r->s, 1, BLOCKS, 0, NULL);
	begun = rig_now(r);
	assert_int_equal(rig_save(&t, 5001, 2, 900).error, -ENOSPC);
	assert_true(rig_now(r) - begun < RIG_SECOND / 10);
	rig_save_give(r->s, save);
	/* Now only transfers are in the way. */
	assert_int_equal(rig_save(&t, 5001, 2, 900).stored, 2);
	assert_int_equal(rig_save_end(r->s, save).stored, BLOCKS);
	rig_space_close(&t);
	rig_tear_down(r);
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
		if (tn_load_end(load, tn_test_deadline(), NULL))
			return NULL;
		t->loads++;
	}
	return NULL;
}

/* Saves blocks of two new sizes beside the loads; how many fail. */
static uint32_t save_beside_loads(uint64_t *loads)
{
	struct traffic traffic[2];
	struct rig_space t[2];
	uint32_t failed = 0;
	struct rig r;

	rig_init(&r, SEGMENTS << 22, 0, BIG_DIM);
	r.o.faulty = true;
	rig_must_open(&r);
	fill(&r);
	rig_reopen(&r);
	slow_reads(&r, RIG_SECOND / 500);
	rig_open_second(&r, SMALL_DIM, &t[0]);
	rig_open_second(&r, MID_DIM, &t[1]);
	for (uint32_t i = 0; i < 2; i++) {
		traffic[i] = (struct traffic){.r = &r, .first_page = LOAD_PAGE + i * SEGMENTS * IN_EACH * RIG_PAGES};
		assert_int_equal(pthread_create(&traffic[i].thread, NULL, load_without_a_pause, &traffic[i]), 0);
	}
	usleep(5000);
	for (uint32_t i = 0; i < 2; i++)
		failed += rig_save(&t[i], 5001 + 100 * i, 4, 0).stored != 4;
	for (uint32_t i = 0; i < 2; i++) {
		__atomic_store_n(&traffic[i].stop, 1, __ATOMIC_RELAXED);
		pthread_join(traffic[i].thread, NULL);
		*loads += traffic[i].loads;
		rig_space_close(&t[i]);
	}
	rig_tear_down(&r);
	return failed;
}

/* The loads hold every segment most of the time, though none for long. */
static void saves_of_a_new_size_find_a_place_beside_short_loads(void **state)
{
	uint32_t rounds = 20, failed = 0;
	uint64_t loads = 0;

	for (uint32_t round = 0; round < rounds; round++)
		failed += save_beside_loads(&loads);
	printf("# %u of %u saves failed beside %llu loads\n", failed, 2 * rounds, (unsigned long long)loads);
	assert_in_range(failed, 0, rounds / 5); /* of those that failed at once three of four did */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_of_another_size_passes_over_segments_that_somebody_holds),
		RIG_SIMULATED_TEST(a_save_that_no_segment_can_go_for_fails_at_once_and_evicts_nothing),
		RIG_SIMULATED_TEST(a_save_waits_for_the_file_to_get_longer_if_no_segment_can_go),
		RIG_EMBEDDED_TEST(neither_a_flush_nor_the_end_waits_for_leases, "a lease ends with the process that has it"),
		RIG_SIMULATED_TEST(a_save_of_another_size_waits_for_the_loads_that_are_all_that_holds_the_segments),
		RIG_SIMULATED_TEST(it_waits_for_a_second_and_not_at_all_beside_leases),
		RIG_SIMULATED_TEST(while_it_waits_a_segment_that_leases_held_may_go),
		RIG_SIMULATED_TEST(it_does_not_wait_for_a_save_that_waits_for_its_caller),
		RIG_FAULTY_TEST(saves_of_a_new_size_find_a_place_beside_short_loads),
	};

	return cmocka_run_group_tests_name("cache-moves", tests, NULL, NULL);
}
