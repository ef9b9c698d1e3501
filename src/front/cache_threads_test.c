/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads and loads at once, and loads that end early.
 */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/rng.h"
#include "cache_rig.h"
#include "core/core.h"
#include "ioengine/faulty_rig.h"

struct loader {
	struct rig *r;
	uint32_t first_page;
	int good;
};

static void *load_thread(void *arg)
{
	struct loader *l = arg;
	struct tn_load *load;
	struct tn_key keys[32];
	uint32_t pages[32 * RIG_PAGES];

	rig_keys(1, 32, keys);
	rig_pages(l->r->s, l->first_page, 32, pages);
	for (int round = 0; round < 20; round++) {
		if (tn_load_begin(l->r->s->space, l->r->s->pool, keys, 32, pages, NULL, &load))
			return NULL;
		l->good = tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline());
		if (tn_load_end(load, tn_test_deadline(), NULL))
			l->good = -1;
	}
	return NULL;
}

static void loads_of_one_prefix_share_its_reads(void **state)
{
	struct loader l[4];
	pthread_t t[4];
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 32, 0);
	for (uint32_t i = 0; i < 4; i++) {
		l[i] = (struct loader){&r, 256 + i * 128, -1};
		assert_int_equal(pthread_create(&t[i], NULL, load_thread, &l[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(l[i].good, 32);
		rig_check_blocks(r.s, 1, 32, l[i].first_page);
	}
	assert_true(rig_stats(&r).joined_blocks > 0);
	assert_int_equal(rig_stats(&r).load_blocks, 4 * 20 * 32);
	assert_true(rig_stats(&r).verified_objects + rig_stats(&r).joined_blocks * RIG_LAYERS == 4 * 20 * 32 * RIG_LAYERS);
	rig_tear_down(&r);
}

static void cancelled_loads_end_and_never_hang(void **state)
{
	struct tn_rng rng;
	struct rig r;

	tn_rng_seed(&rng, tn_test_seed());
	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 64, 0);
	for (int round = 0; round < 300; round++) {
		struct tn_load_opts lo;
		struct tn_load *load;
		uint8_t busy[8];
		int rc;

		tn_load_opts_init(&lo);
		if (tn_rng_below(&rng, 2))
			lo.deadline_ns = tn_test_now() + tn_rng_below(&rng, 1000000);
		load = rig_load_begin(r.s, 1, 64, 256, &lo);
		if (tn_rng_below(&rng, 2))
			assert_int_equal(tn_load_cancel(load), 0);
		if (tn_rng_below(&rng, 2))
			assert_true(tn_load_wait(load, tn_rng_below(&rng, RIG_LAYERS), tn_test_deadline()) >= 0);
		rc = tn_load_end(load, tn_rng_below(&rng, 2) ? tn_test_now() + tn_rng_below(&rng, 100000) : 0, busy);
		assert_int_equal(rc == -EBUSY ? tn_load_end(load, tn_test_deadline(), busy) : rc, 0);
	}
	assert_int_equal(rig_load(r.s, 1, 64), 64);
	rig_tear_down(&r);
}

/* More loads than there are IOCBs, given up before an executor has looked at them: what they leave behind is found. */
static void a_load_after_many_that_were_cancelled_is_read(void **state)
{
	enum { LOADS = 160 };
	struct tn_load *load[LOADS];
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	for (uint32_t i = 0; i < LOADS; i += 32)
		rig_save(r.s, 1 + i, 32, 0);
	assert_int_equal(rig_close(&r), 0);
	r.o.cache.max_ops = LOADS + 1;
	r.o.cache.scheduler = "none";
	assert_int_equal(rig_open(&r), 0);
	for (int round = 0; round < 10; round++) {
		for (uint32_t i = 0; i < LOADS; i++)
			load[i] = rig_load_begin(r.s, 1 + i, 1, i * RIG_PAGES, NULL);
		usleep(500 * (useconds_t)round);
		for (uint32_t i = 0; i < LOADS; i++)
			assert_int_equal(tn_load_cancel(load[i]), 0);
		for (uint32_t i = 0; i < LOADS; i++)
			rig_load_end(r.s, load[i]);
		assert_int_equal(rig_load(r.s, 1, 32), 32);
	}
	rig_tear_down(&r);
}

/* A completion between a waiter's last look and its sleep must not be missed. */
static void no_wait_sleeps_through_its_completion(void **state)
{
	uint32_t rounds = tn_test_cases(60000);
	struct rig r;

	rig_set_up(&r, 0, 16u << 20, 64);
	rig_save(r.s, 1, 1, 0);
	for (uint32_t i = 0; i < rounds; i++) {
		struct tn_load *load = rig_load_begin(r.s, 1, 1, 512, NULL);
		uint64_t deadline = tn_test_deadline();

		assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, deadline), 1);
		assert_true(tn_test_now() < deadline); /* which ends the sleep if nothing else does */
		assert_int_equal(tn_load_end(load, 0, NULL), 0);
	}
	rig_tear_down(&r);
}

struct pinner {
	struct rig *r;
	uint32_t stop; /* shared */
	uint32_t held, lost;
};

#define PINNED_CHAINS 20u

/* What a lease holds can be loaded, whatever is evicted meanwhile. */
static void *pin_and_load(void *arg)
{
	struct pinner *p = arg;
	struct rig *r = p->r;
	struct tn_rng rng;

	tn_rng_seed(&rng, 7);
	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
		uint64_t first = 1 + 100ull * tn_rng_below(&rng, PINNED_CHAINS);
		uint32_t pages[8 * RIG_PAGES];
		struct tn_key keys[8];
		struct tn_load *load;
		struct tn_match m = {.size = sizeof(m)};

		rig_keys(first, 8, keys);
		rig_pages(r->s, 512, 8, pages);
		if (tn_match(r->s->space, keys, 8, NULL, &m, TN_MATCH_PIN) <= 0)
			continue;
		if (tn_load_begin(r->s->space, r->s->pool, keys, m.blocks, pages, NULL, &load) == 0) {
			p->lost += tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline()) != (int)m.blocks;
			p->lost += tn_load_end(load, tn_test_deadline(), NULL) != 0;
		}
		p->held++;
		if (tn_unpin(r->s->space, m.pin))
			p->lost++;
	}
	return NULL;
}

static void a_lease_taken_while_blocks_are_evicted_holds(void **state)
{
	pthread_t t;

	for (int host = 0; host < 2; host++) {
		struct pinner p = {.stop = 0};
		struct rig r;

		rig_init(&r, 64u << 20, 0, 64);
		r.o.cache.disk_blocks = 64;
		r.o.cache.host_bytes = host ? 4u << 20 : 0;
		assert_int_equal(rig_open(&r), 0);
		p.r = &r;
		assert_int_equal(pthread_create(&t, NULL, pin_and_load, &p), 0);
		for (uint64_t i = 0; i < 150; i++)
			rig_save(r.s, 1 + 100 * (i % PINNED_CHAINS), 8, 0);
		__atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
		pthread_join(t, NULL);
		assert_true(p.held > 0);
		assert_int_equal(p.lost, 0);
		assert_true(rig_stats(&r).evicted_blocks[TN_TIER_DISK] > 0);
		rig_tear_down(&r);
	}
}

static void a_drop_whose_sync_hangs_ends_at_its_deadline_and_can_be_repeated(void **state)
{
	const struct tn_fault hang = {.kind = TN_FAULT_HANG, .op = TN_IO_SYNC, .count = UINT64_MAX};
	struct rig_space other;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	r.o.faulty = true;
	rig_must_open(&r);
	rig_save(r.s, 1, 8, 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.tenant = "other"}, &other), 0);
	rig_fault(&r, &hang, 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_space_drop(other.space, tn_test_now() + RIG_SECOND / 5), -ETIMEDOUT);
	assert_int_equal(rig_load(r.s, 1, 8), 8);
	rig_calm(&r);
	assert_int_equal(tn_test_ended(tn_space_drop(other.space, tn_test_deadline())), 0);
	rig_space_close(&other);
	assert_int_equal(rig_load(r.s, 1, 8), 8);
	rig_tear_down(&r);
}

/* ---- an operation that is another thread's while its beginner is still on his way out ------------------------------- */

static __thread bool wakes_late;
static uint32_t at_wake, go_on; /* shared, relaxed: they must order nothing */
static struct tn_io_ops late_ops;
static void (*engine_wake)(struct tn_io *io);

static void late_wake(struct tn_io *io)
{
	if (wakes_late)
		__atomic_store_n(&at_wake, 1, __ATOMIC_RELAXED);
	while (wakes_late && !__atomic_load_n(&go_on, __ATOMIC_RELAXED))
		usleep(100);
	engine_wake(io);
}

static int make_late(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
{
	int rc = tn_engine_open(e, depth, out);

	if (rc)
		return rc;
	late_ops = *(*out)->ops;
	engine_wake = late_ops.wake;
	late_ops.wake = late_wake;
	(*out)->ops = &late_ops;
	return 0;
}

static int open_late(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	int rc = tn_cache_create(opts, out);

	if (rc)
		return rc;
	(*out)->engines.make = make_late;
	return tn_cache_start(*out);
}

static void *prefetch_thread(void *arg)
{
	struct loader *l = arg;
	struct tn_key key = rig_key(1);

	wakes_late = true;
	l->good = tn_prefetch(l->r->s->space, &key, 1, tn_test_deadline());
	return NULL;
}

/* Nobody has woken the owner for what was begun before, but whoever asks it something does: in some turn after that there is an operation again. */
static bool prefetches_after_a_turn(struct rig *r)
{
	struct tn_key key = rig_key(2);

	rig_stats(r);
	return tn_prefetch(r->s->space, &key, 1, tn_test_deadline()) == 1;
}

/* ThreadSanitizer says whether the first of them still looks at the operation. */
static void a_prefetch_that_is_over_before_its_beginner_returns_is_another_ones(void **state)
{
	struct loader l = {.good = -1};
	pthread_t t;
	struct rig r;

	rig_init(&r, 16u << 20, 1u << 20, 64);
	r.o.cache.max_ops = 1;
	r.o.open = open_late;
	assert_int_equal(rig_open(&r), 0);
	l.r = &r;
	assert_int_equal(pthread_create(&t, NULL, prefetch_thread, &l), 0);
	rig_until(&r, __atomic_load_n(&at_wake, __ATOMIC_RELAXED));
	rig_until(&r, prefetches_after_a_turn(&r)); /* with the only operation */
	__atomic_store_n(&go_on, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	assert_int_equal(l.good, 1);
	rig_tear_down(&r);
}

static int with_executors(void **state)
{
	rig_executors = 2;
	return 0;
}

static int without(void **state)
{
	rig_executors = 0;
	return 0;
}

static void skip_executors(void **state)
{
	*state = (void *)(uintptr_t)RIG_NO_EXECUTORS;
	rig_skip(state);
}

#define EXECUTORS(f) {"with executor threads: " #f, rig_has_executors() ? (f) : skip_executors, with_executors, without, NULL}

int main(void)
{
	const char *wakes = "it does not wake the owner's engine itself";
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_wait_sleeps_through_its_completion),
		cmocka_unit_test(loads_of_one_prefix_share_its_reads),
		cmocka_unit_test(cancelled_loads_end_and_never_hang),
		cmocka_unit_test(a_lease_taken_while_blocks_are_evicted_holds),
		RIG_TEST(a_prefetch_that_is_over_before_its_beginner_returns_is_another_ones, rig_attached ? wakes : rig_namespace ? RIG_FAULTY : NULL),
		RIG_FAULTY_TEST(a_drop_whose_sync_hangs_ends_at_its_deadline_and_can_be_repeated),
		EXECUTORS(loads_of_one_prefix_share_its_reads),
		EXECUTORS(cancelled_loads_end_and_never_hang),
		EXECUTORS(a_load_after_many_that_were_cancelled_is_read),
		EXECUTORS(a_lease_taken_while_blocks_are_evicted_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
