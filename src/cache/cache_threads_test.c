/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads and loads at once, and loads that end early.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "cache/cache_internal.h"
#include "cache_rig.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

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

	for (uint32_t i = 0; i < 32; i++)
		keys[i] = rig_key(i + 1);
	for (uint32_t i = 0; i < 32 * RIG_PAGES; i++)
		pages[i] = l->first_page + i;
	for (int round = 0; round < 20; round++) {
		if (tn_load_begin(l->r->space, l->r->pool, keys, 32, pages, NULL, &load))
			return NULL;
		l->good = tn_load_wait(load, RIG_LAYERS - 1, rig_soon());
		if (tn_load_end(load, rig_soon(), NULL))
			l->good = -1;
	}
	return NULL;
}

static void loads_of_one_prefix_share_its_reads(void **state)
{
	struct tn_save_result res;
	struct loader l[4];
	pthread_t t[4];
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(&r, 1, 32, 0, &res);
	for (uint32_t i = 0; i < 4; i++) {
		l[i] = (struct loader){&r, 256 + i * 128, -1};
		assert_int_equal(pthread_create(&t[i], NULL, load_thread, &l[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(l[i].good, 32);
		for (uint32_t k = 0; k < 32 * RIG_PAGES; k++)
			rig_content(&r, 1 + k / RIG_PAGES, k % RIG_PAGES, l[i].first_page + k, true);
	}
	assert_true(rig_stats(&r).joined_blocks > 0);
	assert_int_equal(rig_stats(&r).load_blocks, 4 * 20 * 32);
	assert_true(rig_stats(&r).verified_objects + rig_stats(&r).joined_blocks * RIG_LAYERS == 4 * 20 * 32 * RIG_LAYERS);
	rig_tear_down(&r);
}

static void cancelled_loads_end_and_never_hang(void **state)
{
	struct tn_save_result res;
	struct tn_key keys[64];
	uint32_t pages[64 * RIG_PAGES];
	struct tn_rng rng;
	struct rig r;

	tn_rng_seed(&rng, tn_test_seed());
	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(&r, 1, 64, 0, &res);
	for (uint32_t i = 0; i < 64; i++)
		keys[i] = rig_key(i + 1);
	for (uint32_t i = 0; i < 64 * RIG_PAGES; i++)
		pages[i] = 256 + i;
	for (int round = 0; round < 300; round++) {
		struct tn_load_opts lo;
		struct tn_load *load;
		uint8_t busy[8];
		int rc;

		tn_load_opts_init(&lo);
		if (tn_rng_below(&rng, 2))
			lo.deadline_ns = rig_now_ns() + tn_rng_below(&rng, 1000000);
		assert_int_equal(tn_load_begin(r.space, r.pool, keys, 64, pages, &lo, &load), 0);
		if (tn_rng_below(&rng, 2))
			assert_int_equal(tn_load_cancel(load), 0);
		if (tn_rng_below(&rng, 2))
			assert_true(tn_load_wait(load, tn_rng_below(&rng, RIG_LAYERS), rig_soon()) >= 0);
		rc = tn_load_end(load, tn_rng_below(&rng, 2) ? rig_now_ns() + tn_rng_below(&rng, 100000) : 0, busy);
		assert_int_equal(rc == -EBUSY ? tn_load_end(load, rig_soon(), busy) : rc, 0);
	}
	assert_int_equal(rig_load(&r, 1, 64), 64);
	rig_tear_down(&r);
}

/* More loads than there are IOCBs, given up before an executor has looked at them: what they leave behind is found. */
static void a_load_after_many_that_were_cancelled_is_read(void **state)
{
	enum { LOADS = 160 };
	struct tn_load *load[LOADS];
	struct tn_save_result res;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	for (uint32_t i = 0; i < LOADS; i += 32)
		rig_save(&r, 1 + i, 32, 0, &res);
	assert_int_equal(rig_close(&r), 0);
	r.opts.max_ops = LOADS + 1;
	r.opts.scheduler = "none";
	assert_int_equal(rig_open(&r), 0);
	for (int round = 0; round < 10; round++) {
		for (uint32_t i = 0; i < LOADS; i++) {
			struct tn_key key = rig_key(1 + i);
			uint32_t pages[RIG_PAGES];

			for (uint32_t p = 0; p < RIG_PAGES; p++)
				pages[p] = i * RIG_PAGES + p;
			assert_int_equal(tn_load_begin(r.space, r.pool, &key, 1, pages, NULL, &load[i]), 0);
		}
		usleep(500 * (useconds_t)round);
		for (uint32_t i = 0; i < LOADS; i++)
			assert_int_equal(tn_load_cancel(load[i]), 0);
		for (uint32_t i = 0; i < LOADS; i++)
			assert_int_equal(tn_load_end(load[i], rig_soon(), NULL), 0);
		assert_int_equal(rig_load(&r, 1, 32), 32);
	}
	rig_tear_down(&r);
}

/* A completion between a waiter's last look and its sleep must not be missed. */
static void no_wait_sleeps_through_its_completion(void **state)
{
	uint32_t pages[RIG_PAGES] = {512, 513, 514, 515}, rounds = tn_test_soak() ? 2000000 : 60000;
	struct tn_key key = rig_key(1);
	struct tn_save_result res;
	struct tn_load *load;
	uint64_t begin;
	struct rig r;

	rig_set_up(&r, 0, 16u << 20, 64);
	rig_save(&r, 1, 1, 0, &res);
	for (uint32_t i = 0; i < rounds; i++) {
		assert_int_equal(tn_load_begin(r.space, r.pool, &key, 1, pages, NULL, &load), 0);
		begin = rig_now_ns();
		assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, begin + 20 * RIG_SECOND), 1);
		assert_true(rig_now_ns() - begin < 19 * RIG_SECOND); /* a deadline would end the sleep */
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

		for (uint32_t i = 0; i < 8; i++)
			keys[i] = rig_key(first + i);
		for (uint32_t i = 0; i < 8 * RIG_PAGES; i++)
			pages[i] = 512 + i;
		if (tn_match(r->space, keys, 8, NULL, &m, TN_MATCH_PIN) <= 0)
			continue;
		if (tn_load_begin(r->space, r->pool, keys, m.blocks, pages, NULL, &load) == 0) {
			p->lost += tn_load_wait(load, RIG_LAYERS - 1, rig_soon()) != (int)m.blocks;
			p->lost += tn_load_end(load, rig_soon(), NULL) != 0;
		}
		p->held++;
		if (tn_unpin(r->space, m.pin))
			p->lost++;
	}
	return NULL;
}

static void a_lease_taken_while_blocks_are_evicted_holds(void **state)
{
	struct tn_save_result res;
	pthread_t t;

	for (int host = 0; host < 2; host++) {
		struct pinner p = {.stop = 0};
		struct rig r;

		rig_set_up(&r, 64u << 20, 0, 64);
		assert_int_equal(rig_close(&r), 0);
		r.opts.disk_blocks = 64;
		r.opts.host_bytes = host ? 4u << 20 : 0;
		assert_int_equal(rig_open(&r), 0);
		p.r = &r;
		assert_int_equal(pthread_create(&t, NULL, pin_and_load, &p), 0);
		for (uint64_t i = 0; i < 150; i++)
			rig_save(&r, 1 + 100 * (i % PINNED_CHAINS), 8, 0, &res);
		__atomic_store_n(&p.stop, 1, __ATOMIC_RELEASE);
		pthread_join(t, NULL);
		assert_true(p.held > 0);
		assert_int_equal(p.lost, 0);
		assert_true(rig_stats(&r).evicted_disk_blocks > 0);
		rig_tear_down(&r);
	}
}

static int hang_syncs(struct tn_cache *cache, void *arg)
{
	const struct tn_fault f = {.kind = TN_FAULT_HANG, .op = TN_IO_SYNC, .count = UINT64_MAX};

	return tn_io_faulty_set(arg, &f, 1);
}

static int calm(struct tn_cache *cache, void *arg)
{
	tn_io_faulty_set(arg, NULL, 0);
	tn_io_faulty_release(arg);
	return 0;
}

static void a_drop_whose_sync_hangs_ends_at_its_deadline_and_can_be_repeated(void **state)
{
	struct tn_save_result res;
	struct tn_space *other;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_io *faulty;
	uint64_t begin;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(rig_close(&r), 0);
	faulty = rig_open_faulty(&r);
	rig_save(&r, 1, 8, 0, &res);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	tn_identity_init(&id);
	id.tenant = "other";
	id.model = "test";
	tn_shard_init(&shard);
	assert_int_equal(tn_space_open(r.cache, &id, &shard, &r.g, NULL, &other), 0);
	assert_int_equal(tn_owner_call(r.cache, hang_syncs, faulty), 0);
	begin = rig_now_ns();
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_space_drop(other, rig_now_ns() + RIG_SECOND / 5), -ETIMEDOUT);
	assert_true(rig_now_ns() - begin < 10 * RIG_SECOND);
	assert_int_equal(rig_load(&r, 1, 8), 8);
	assert_int_equal(tn_owner_call(r.cache, calm, faulty), 0);
	assert_int_equal(tn_space_drop(other, rig_soon()), 0);
	tn_space_close(other);
	assert_int_equal(rig_load(&r, 1, 8), 8);
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

#define EXECUTORS(f) {"with executor threads: " #f, f, with_executors, without, NULL}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_wait_sleeps_through_its_completion),
		cmocka_unit_test(loads_of_one_prefix_share_its_reads),
		cmocka_unit_test(cancelled_loads_end_and_never_hang),
		cmocka_unit_test(a_lease_taken_while_blocks_are_evicted_holds),
		cmocka_unit_test(a_drop_whose_sync_hangs_ends_at_its_deadline_and_can_be_repeated),
		EXECUTORS(loads_of_one_prefix_share_its_reads),
		EXECUTORS(cancelled_loads_end_and_never_hang),
		EXECUTORS(a_load_after_many_that_were_cancelled_is_read),
		EXECUTORS(a_lease_taken_while_blocks_are_evicted_holds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
