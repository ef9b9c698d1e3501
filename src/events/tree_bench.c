/* SPDX-License-Identifier: Apache-2.0 */
/* How long the prefix tree takes: look-ups of 512 keys, and events, with a million blocks in the tree. */
#include <stdlib.h>
#include <time.h>
#include <tenuto/prefix_tree.h>

#include "tn_test.h"

#define BLOCKS 1000000u
#define KEYS 512u

static uint64_t key_of(uint64_t i)
{
	i *= 0x9e3779b97f4a7c15u;
	return i ^ i >> 29;
}

/* Of this thread: others on the machine do not count. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double microseconds_of_a_lookup(struct tn_tree *tree, struct tn_tree_prefix *out)
{
	uint64_t keys[KEYS], begun = cpu_ns();

	for (uint64_t round = 0; round < 2000; round++) {
		uint64_t first = round * 7919 % (BLOCKS - KEYS);

		for (uint64_t i = 0; i < KEYS; i++)
			keys[i] = key_of(first + i);
		assert_int_equal(tn_tree_find(tree, keys, KEYS, out), KEYS);
	}
	return (double)(cpu_ns() - begun) / 2000 / 1000;
}

static void look_ups_take_microseconds(void **state)
{
	static const uint32_t caches[] = {16, 64};

	for (int c = 0; c < 2; c++) {
		struct tn_tree_prefix out[64];
		struct tn_tree_stats stats;
		struct tn_tree *tree;
		uint64_t begun;
		double store, find;

		assert_int_equal(tn_tree_create(BLOCKS, caches[c], &tree), 0);
		begun = cpu_ns();
		for (uint64_t i = 0; i < BLOCKS; i++)
			tn_tree_store(tree, (uint32_t)i / 100 % caches[c], TN_TIER_DISK, key_of(i));
		store = (double)(cpu_ns() - begun) / BLOCKS;
		for (uint64_t i = 0; i < BLOCKS; i++)
			tn_tree_store(tree, 3, TN_TIER_HOST, key_of(i));
		find = microseconds_of_a_lookup(tree, out);
		tn_tree_stats(tree, &stats);
		printf("# %u caches: a look-up of %u keys takes %.1f us, an event %.0f ns; %.1f bytes per block\n", caches[c], KEYS, find, store,
		       (double)stats.bytes / (double)stats.max_blocks);
		assert_true(find < 1000);
		tn_tree_destroy(tree);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(look_ups_take_microseconds)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
