/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of spaces in host memory: never exceeded, however blocks come in, and nobody pays for a neighbour's. And what a
 * space with larger blocks does to the host tier of those that are there.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache_internal.h"
#include "cache_rig.h"
#include "tn_test.h"

#define QUOTA 4u

/* Another tenant of the same cache, whose calls go through a rig of its own; host_blocks 0: no limit. */
static void tenant_open(struct rig *r, const char *name, uint32_t host_blocks, struct rig *out)
{
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = RIG_POOL_PAGES};
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_quota quota;
	uint32_t k, v;

	rig_plane(r, 0, 0, 0, &k);
	rig_plane(r, 0, 1, 0, &v);
	*out = *r;
	tn_identity_init(&id);
	id.tenant = name;
	id.model = "test";
	tn_shard_init(&shard);
	tn_quota_init(&quota);
	if (host_blocks)
		quota.host_bytes = (uint64_t)host_blocks * RIG_LAYERS * RIG_PAGES * (k + v);
	assert_int_equal(tn_space_open(r->cache, &id, &shard, &r->g, &quota, &out->space), 0);
	assert_int_equal(tn_pool_register(out->space, &layout, r->bases, TN_MEM_HOST, &out->pool), 0);
}

static void tenant_close(struct rig *t)
{
	assert_int_equal(tn_pool_unregister(t->pool), 0);
	tn_space_close(t->space);
}

static uint32_t in_host(struct rig *t, uint64_t first, uint32_t n)
{
	struct tn_key key;
	struct tn_match m = {.size = sizeof(m)};
	uint32_t found = 0;
	uint8_t tier;

	for (uint32_t i = 0; i < n; i++) {
		key = rig_key(first + i);
		found += tn_match(t->space, &key, 1, &tier, &m, 0) == 1 && tier == TN_TIER_HOST;
	}
	return found;
}

/* Two saves at once, so that no block has arrived when the last one asks for its place. */
static void saves_at_once_do_not_exceed_the_host_quota(void **state)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *save[2];
	struct tn_key keys[8];
	uint32_t pages[8 * RIG_PAGES];
	struct rig r, t;

	rig_set_up(&r, 0, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	for (uint32_t s = 0; s < 2; s++) {
		for (uint32_t i = 0; i < 8; i++)
			keys[i] = rig_key(1 + s * 8 + i);
		for (uint32_t i = 0; i < 8 * RIG_PAGES; i++)
			pages[i] = s * 8 * RIG_PAGES + i;
		assert_int_equal(tn_save_begin(t.space, t.pool, keys, 8, pages, NULL, &save[s]), 0);
	}
	for (uint32_t s = 0; s < 2; s++) {
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save[s], l, NULL), 0);
		assert_int_equal(tn_save_commit(save[s]), 0);
	}
	for (uint32_t s = 0; s < 2; s++)
		assert_int_equal(tn_save_end(save[s], rig_soon(), &res), 0);
	assert_int_equal(rig_stats(&r).host_blocks, QUOTA);
	tenant_close(&t);
	rig_tear_down(&r);
}

static void promotion_and_prefetch_keep_to_the_host_quota(void **state)
{
	struct tn_save_result res;
	struct tn_key keys[16];
	struct rig r, t;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	rig_save(&t, 1, 16, 0, &res);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	assert_true(rig_stats(&r).host_blocks <= QUOTA);
	assert_int_equal(rig_load(&t, 1, 16), 16);
	assert_true(rig_stats(&r).host_blocks <= QUOTA);
	for (uint32_t i = 0; i < 16; i++)
		keys[i] = rig_key(i + 1);
	assert_int_equal(tn_prefetch(t.space, keys, 16, rig_soon()), 16);
	for (int i = 0; i < 200; i++) {
		assert_true(rig_stats(&r).host_blocks <= QUOTA);
		usleep(100);
	}
	assert_int_equal(rig_load(&t, 1, 16), 16);
	assert_true(rig_stats(&r).host_blocks <= QUOTA);
	tenant_close(&t);
	rig_tear_down(&r);
}

static void a_space_at_its_quota_recycles_its_own_blocks_and_no_neighbours(void **state)
{
	struct tn_save_result res;
	struct rig r, t;

	rig_set_up(&r, 0, 4u << 20, 64); /* 30 host slots */
	tenant_open(&r, "small", QUOTA, &t);
	rig_save(&r, 1, 20, 0, &res);
	assert_int_equal(res.host_only, 20);
	for (uint64_t first = 1; first <= 33; first += 4) {
		rig_save(&t, first, 4, 0, &res);
		assert_int_equal(res.host_only, 4);
		assert_int_equal(in_host(&t, first, 4), 4);
		assert_int_equal(in_host(&r, 1, 20), 20);
		assert_int_equal(rig_stats(&r).host_blocks, 24);
	}
	assert_int_equal(rig_load(&t, 33, 4), 4);
	tenant_close(&t);
	rig_tear_down(&r);
}

static void promotion_at_the_quota_recycles_own_blocks(void **state)
{
	struct tn_save_result res;
	struct rig r, t;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	rig_save(&t, 1, 8, 0, &res);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(rig_load(&t, 1, 4), 4);
		assert_int_equal(in_host(&t, 1, 4), 4);
		assert_int_equal(rig_load(&t, 5, 4), 4);
		assert_int_equal(in_host(&t, 5, 4), 4);
	}
	tenant_close(&t);
	rig_tear_down(&r);
}

/* Memory runs out at each of the allocations for the second space in turn. */
static void a_larger_space_without_memory_leaves_the_host_tier_as_it_was(void **state)
{
	static struct tn_alloc_counter counter;
	struct tn_save_result res;
	uint32_t opened = 0;

	for (size_t n = 0; n < 8 && opened == 0; n++) {
		struct tn_geometry large;
		struct tn_identity id;
		struct tn_shard shard;
		struct tn_space *space;
		struct rig r;

		rig_set_up(&r, 0, 4u << 20, 64);
		large = r.g;
		large.pages_per_block *= 4;
		tn_identity_init(&id);
		id.model = "large";
		tn_shard_init(&shard);
		tn_alloc_counter_init(&counter);
		counter.fail_after = n;
		r.cache->alloc = &counter.alloc;
		if (tn_space_open(r.cache, &id, &shard, &large, NULL, &space) == 0) {
			opened += space->host_ok;
			tn_space_close(space);
		}
		counter.fail_after = SIZE_MAX;
		r.cache->alloc = &tn_alloc_system;
		rig_save(&r, 1, 4, 0, &res);
		assert_int_equal(res.host_only, 4);
		assert_int_equal(in_host(&r, 1, 4), 4);
		assert_int_equal(rig_load(&r, 1, 4), 4);
		rig_tear_down(&r);
	}
	assert_int_equal(opened, 1);
}

/* What is on disk when a space is opened fits its quota, before anything is saved. */
static void what_was_recovered_fits_the_quota(void **state)
{
	struct tn_save_result res;
	struct tn_identity id;
	struct tn_space *space;
	struct tn_shard shard;
	struct tn_quota quota;
	struct rig r, t;
	uint32_t k, v;

	rig_set_up(&r, 64u << 20, 0, 64);
	tenant_open(&r, "small", 0, &t);
	rig_save(&t, 1, 16, 0, &res);
	tenant_close(&t);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_stats(&r).disk_blocks, 16);
	rig_plane(&r, 0, 0, 0, &k);
	rig_plane(&r, 0, 1, 0, &v);
	tn_identity_init(&id);
	id.tenant = "small";
	id.model = "test";
	tn_shard_init(&shard);
	tn_quota_init(&quota);
	quota.disk_bytes = (uint64_t)QUOTA * RIG_LAYERS * RIG_PAGES * (k + v);
	assert_int_equal(tn_space_open(r.cache, &id, &shard, &r.g, &quota, &space), 0);
	assert_int_equal(rig_stats(&r).disk_blocks, QUOTA);
	tn_space_close(space);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(saves_at_once_do_not_exceed_the_host_quota),
		cmocka_unit_test(promotion_and_prefetch_keep_to_the_host_quota),
		cmocka_unit_test(a_space_at_its_quota_recycles_its_own_blocks_and_no_neighbours),
		cmocka_unit_test(a_larger_space_without_memory_leaves_the_host_tier_as_it_was),
		cmocka_unit_test(promotion_at_the_quota_recycles_own_blocks),
		cmocka_unit_test(what_was_recovered_fits_the_quota),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
