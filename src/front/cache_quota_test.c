/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quotas of spaces in host memory: never exceeded, however blocks come in, and nobody pays for a neighbour's. And what a
 * space with larger blocks does to the host tier of those that are there.
 */
#include <unistd.h>

#include "base/alloc_rig.h"
#include "core/core.h"
#include "cache_rig.h"

#define QUOTA 4u

/* Another tenant of the same cache; host_blocks UINT64_MAX: no limit. */
static void tenant_open(struct rig *r, const char *name, uint64_t host_blocks, struct rig_space *out)
{
	struct tn_quota quota = rig_quota(r, UINT64_MAX, host_blocks);

	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.tenant = name, .quota = &quota}, out), 0);
}

/* Two saves at once, so that no block has arrived when the last one asks for its place. */
static void saves_at_once_do_not_exceed_the_host_quota(void **state)
{
	struct tn_save *save[2];
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 0, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	for (uint32_t s = 0; s < 2; s++)
		save[s] = rig_save_begin(&t, 1 + s * 8, 8, s * 8 * RIG_PAGES, NULL);
	for (uint32_t s = 0; s < 2; s++)
		rig_save_give(&t, save[s]);
	for (uint32_t s = 0; s < 2; s++)
		rig_save_end(&t, save[s]);
	assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_HOST], QUOTA);
	rig_space_close(&t);
	rig_tear_down(&r);
}

static void promotion_and_prefetch_keep_to_the_host_quota(void **state)
{
	struct tn_key keys[16];
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	rig_save(&t, 1, 16, 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_true(rig_stats(&r).tier_blocks[TN_TIER_HOST] <= QUOTA);
	assert_int_equal(rig_load(&t, 1, 16), 16);
	assert_true(rig_stats(&r).tier_blocks[TN_TIER_HOST] <= QUOTA);
	rig_keys(1, 16, keys);
	assert_int_equal(tn_prefetch(t.space, keys, 16, tn_test_deadline()), 16);
	for (int i = 0; i < 200; i++) {
		assert_true(rig_stats(&r).tier_blocks[TN_TIER_HOST] <= QUOTA);
		usleep(100);
	}
	assert_int_equal(rig_load(&t, 1, 16), 16);
	assert_true(rig_stats(&r).tier_blocks[TN_TIER_HOST] <= QUOTA);
	rig_space_close(&t);
	rig_tear_down(&r);
}

static void a_space_at_its_quota_recycles_its_own_blocks_and_no_neighbours(void **state)
{
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 0, 4u << 20, 64); /* 30 host slots */
	tenant_open(&r, "small", QUOTA, &t);
	for (uint64_t first = 1; first <= 11; first += 10)
		assert_int_equal(rig_save(r.s, first, 10, 0).host_only, 10);
	for (uint64_t first = 1; first <= 801; first += 100) {
		assert_int_equal(rig_save(&t, first, 4, 0).host_only, 4);
		assert_int_equal(rig_count_host(&t, first, 4), 4);
		assert_int_equal(rig_count_host(r.s, 1, 20), 20);
		assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_HOST], 24);
	}
	assert_int_equal(rig_load(&t, 801, 4), 4);
	rig_space_close(&t);
	rig_tear_down(&r);
}

static void promotion_at_the_quota_recycles_own_blocks(void **state)
{
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	tenant_open(&r, "small", QUOTA, &t);
	rig_save(&t, 1, 8, 0);
	assert_int_equal(rig_flush(&r), 0);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(rig_load(&t, 1, 4), 4);
		assert_int_equal(rig_count_host(&t, 1, 4), 4);
		assert_int_equal(rig_load(&t, 5, 4), 4);
		assert_int_equal(rig_count_host(&t, 5, 4), 4);
	}
	rig_space_close(&t);
	rig_tear_down(&r);
}

/* Memory runs out at each of the allocations for the second space in turn. */
static void a_larger_space_without_memory_leaves_the_host_tier_as_it_was(void **state)
{
	static struct tn_alloc_counter counter;
	uint32_t opened = 0;

	for (size_t n = 0; n < 8 && opened == 0; n++) {
		struct rig_space_opts large = {.model = "large", .pages_per_block = 4 * RIG_PAGES, .no_pool = true};
		struct rig_space t;
		struct rig r;

		rig_set_up(&r, 0, 4u << 20, 64);
		tn_alloc_counter_init(&counter);
		counter.fail_after = n;
		r.cache->alloc = &counter.alloc;
		if (rig_space_open(&r, &large, &t) == 0) {
			opened += tn_space_in(t.space, r.cache->row.memory);
			rig_space_close(&t);
		}
		counter.fail_after = SIZE_MAX;
		r.cache->alloc = &tn_alloc_system;
		assert_int_equal(rig_save(r.s, 1, 4, 0).host_only, 4);
		assert_int_equal(rig_count_host(r.s, 1, 4), 4);
		assert_int_equal(rig_load(r.s, 1, 4), 4);
		rig_tear_down(&r);
	}
	assert_int_equal(opened, 1);
}

/* What is on disk when a space is opened fits its quota, before anything is saved. */
static void what_was_recovered_fits_the_quota(void **state)
{
	struct tn_quota quota;
	struct rig_space t;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	tenant_open(&r, "small", UINT64_MAX, &t);
	rig_save(&t, 1, 16, 0);
	rig_space_close(&t);
	rig_reopen(&r);
	assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], 16);
	quota = rig_quota(&r, QUOTA, UINT64_MAX);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.tenant = "small", .quota = &quota}, &t), 0);
	assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], QUOTA);
	rig_space_close(&t);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(saves_at_once_do_not_exceed_the_host_quota),
		cmocka_unit_test(promotion_and_prefetch_keep_to_the_host_quota),
		cmocka_unit_test(a_space_at_its_quota_recycles_its_own_blocks_and_no_neighbours),
		RIG_EMBEDDED_TEST(a_larger_space_without_memory_leaves_the_host_tier_as_it_was, "it replaces the allocator, which the session's thread reads"),
		cmocka_unit_test(promotion_at_the_quota_recycles_own_blocks),
		cmocka_unit_test(what_was_recovered_fits_the_quota),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
