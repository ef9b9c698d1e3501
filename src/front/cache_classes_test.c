/* SPDX-License-Identifier: Apache-2.0 */
/* Two sizes of blocks in one store: each finds places in a store full of the other, and nobody's order counts. */

#include "cache_rig.h"

#define SMALL_DIM 16u /* 32 KiB per block */
#define BIG_DIM 64u   /* 128 KiB */
#define DISK_BYTES (32u << 20)

/* Saves blocks first.. one by one as chains of their own would be; how many are there afterwards. */
static uint32_t save(struct rig_space *s, uint64_t first, uint32_t n)
{
	uint32_t saved = 0;

	for (uint32_t i = 0; i < n; i += 32)
		saved += rig_save(s, first + i, 32, 0).stored;
	return saved;
}

static void each_size_finds_places_in_a_store_full_of_the_other(void **state)
{
	for (int big_first = 0; big_first < 2; big_first++) {
		struct rig_space t;
		struct rig r;
		uint32_t full, left;

		rig_set_up(&r, DISK_BYTES, 0, BIG_DIM);
		if (big_first) {
			rig_open_second(&r, SMALL_DIM, &t);
		} else {
			assert_int_equal(rig_close(&r), 0);
			rig_dimensions(&r, SMALL_DIM);
			assert_int_equal(rig_open(&r), 0);
			rig_open_second(&r, BIG_DIM, &t);
		}
		assert_int_equal(save(r.s, 1, 1600), 1600);
		assert_int_equal(rig_flush(&r), 0);
		full = rig_count(r.s, 1, 1600);
		assert_true(full >= (big_first ? 200u : 800u));
		/* Three segments of big ones, or one of small ones: what they need goes, and no more. */
		assert_int_equal(save(&t, 5001, 64), 64);
		assert_int_equal(rig_load(&t, 5001, 64), 64);
		left = rig_count(r.s, 1, 1600);
		assert_true(left >= full / 2 && left < full);
		/* And on and on: the second size goes on to take from the first, which is not used any more. */
		assert_int_equal(save(&t, 5065, 1600), 1600);
		assert_true(rig_count(&t, 5001, 1664) >= (big_first ? 800u : 200u));
		assert_int_equal(save(r.s, 3001, 64), 64);
		assert_int_equal(rig_load(r.s, 3001, 64), 64);
		rig_space_close(&t);
		rig_tear_down(&r);
	}
}

static void sizes_that_are_used_in_turn_both_keep_blocks(void **state)
{
	uint32_t big = 0, small = 0, samples = 0;
	struct rig_space t;
	struct rig r;

	/* Whole segments move, so the shares are only as even as there are many of them. */
	rig_set_up(&r, 4 * DISK_BYTES, 0, BIG_DIM);
	rig_open_second(&r, SMALL_DIM, &t);
	for (uint64_t round = 0; round < 60; round++) {
		assert_int_equal(save(r.s, 1 + round * 32, 32), 32);
		assert_int_equal(save(&t, 10001 + round * 128, 128), 128);
		if (round % 5 != 4 || round < 20)
			continue;
		big += rig_count(r.s, 1, 1920);
		small += rig_count(&t, 10001, 7680);
		samples++;
	}
	/*
	 * An even share is 15 of the 31 segments. The shares swing by turns: 0 to 20 of big ones, 10 to 29 of small ones were
	 * seen, at the same round more or less by the time that commits take. So the mean of the rounds counts.
	 */
	print_message("# %u of big ones, %u of small ones\n", big / samples / 31, small / samples / 113);
	assert_true(big / samples >= 4 * 31);
	assert_true(small / samples >= 4 * 113);
	rig_space_close(&t);
	rig_tear_down(&r);
}

static void the_space_that_is_opened_first_does_not_decide_the_capacity(void **state)
{
	uint64_t capacity[2];
	struct rig_space t;
	struct rig r;
	uint32_t before;

	rig_set_up(&r, DISK_BYTES, 0, BIG_DIM);
	rig_open_second(&r, SMALL_DIM, &t);
	assert_int_equal(save(&t, 1, 608), 608);
	before = rig_count(&t, 1, 608);
	assert_true(before >= 600);
	rig_space_close(&t);
	assert_int_equal(rig_close(&r), 0);
	for (int big_first = 0; big_first < 2; big_first++) {
		rig_dimensions(&r, big_first ? BIG_DIM : SMALL_DIM);
		assert_int_equal(rig_open(&r), 0);
		assert_true(rig_stats(&r).capacity_blocks >= before);
		assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], before);
		rig_open_second(&r, big_first ? SMALL_DIM : BIG_DIM, &t);
		assert_int_equal(rig_count(big_first ? &t : r.s, 1, 608), before);
		capacity[big_first] = rig_stats(&r).capacity_blocks;
		rig_space_close(&t);
		assert_int_equal(rig_close(&r), 0);
	}
	assert_int_equal(capacity[0], capacity[1]);
	assert_int_equal(rig_open(&r), 0);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_size_finds_places_in_a_store_full_of_the_other),
		cmocka_unit_test(sizes_that_are_used_in_turn_both_keep_blocks),
		cmocka_unit_test(the_space_that_is_opened_first_does_not_decide_the_capacity),
	};

	return cmocka_run_group_tests_name("cache-classes", tests, NULL, NULL);
}
