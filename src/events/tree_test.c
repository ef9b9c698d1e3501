/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree: against a model by brute force, in a table that fills up, and with what cannot be. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <tenuto/prefix_tree.h>

#include "base/rng.h"
#include "tn_test.h"

#define KEYS 300u
#define CACHES 37u
#define TIERS 4u

static bool has[CACHES][KEYS][TIERS];

static uint64_t key_of(uint32_t i)
{
	return (uint64_t)i * 0x9e3779b97f4a7c15u; /* 0, too */
}

static uint32_t longest(uint32_t cache, uint32_t tier, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		bool any = false;

		for (uint32_t t = 0; t <= tier; t++)
			any |= has[cache][first + i][t];
		if (!any)
			return i;
	}
	return n;
}

static void check(struct tn_tree *tree, uint32_t first, uint32_t n)
{
	struct tn_tree_prefix out[CACHES];
	uint64_t keys[KEYS];
	uint32_t best = 0;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = key_of(first + i);
	assert_true(tn_tree_find(tree, keys, n, out) >= 0);
	for (uint32_t c = 0; c < CACHES; c++)
		for (uint32_t t = 0; t < TIERS; t++) {
			assert_int_equal(out[c].blocks[t + 1], longest(c, t, first, n));
			best = out[c].blocks[t + 1] > best ? out[c].blocks[t + 1] : best;
		}
	assert_int_equal(tn_tree_find(tree, keys, n, out), best);
}

static void it_finds_what_a_search_through_all_finds(void **state)
{
	struct tn_tree_stats stats;
	struct tn_tree *tree;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	assert_int_equal(tn_tree_create(KEYS, CACHES, &tree), 0);
	for (uint32_t step = 0; step < 60000; step++) {
		uint32_t c = tn_rng_below(&rng, 3) ? tn_rng_below(&rng, CACHES) : 3, k = tn_rng_below(&rng, KEYS), t = tn_rng_below(&rng, TIERS);
		bool store = tn_rng_below(&rng, step / 20000 + 2) != 0;

		has[c][k][t] = store;
		assert_int_equal(store ? tn_tree_store(tree, c, (enum tn_tier)(t + 1), key_of(k)) : tn_tree_remove(tree, c, (enum tn_tier)(t + 1), key_of(k)), 0);
		if (step % 97 == 0)
			check(tree, tn_rng_below(&rng, 100), tn_rng_below(&rng, 200));
		if (step % 7001 == 0) {
			memset(has[c], 0, sizeof(has[c]));
			assert_int_equal(tn_tree_clear(tree, c), 0);
			check(tree, 0, KEYS);
		}
	}
	for (uint32_t c = 0; c < CACHES; c++)
		assert_int_equal(tn_tree_clear(tree, c), 0);
	assert_int_equal(tn_tree_stats(tree, &stats), 0);
	assert_int_equal(stats.blocks, 0);
	tn_tree_destroy(tree);
}

static void a_full_tree_leaves_out_what_comes_and_says_so(void **state)
{
	struct tn_tree_stats stats;
	uint64_t blocks[2];
	struct tn_tree *tree, *other;

	assert_int_equal(tn_tree_create(100, 1, &tree), 0);
	assert_int_equal(tn_tree_create(100, 17, &other), 0);
	for (uint64_t i = 0; i < 100; i++) {
		assert_int_equal(tn_tree_store(tree, 0, TN_TIER_DISK, i), 0);
		assert_int_equal(tn_tree_store(other, 16, TN_TIER_DISK, 99 - i), 0);
	}
	for (uint64_t i = 1000; i < 1010; i++)
		tn_tree_store(tree, 0, TN_TIER_DISK, i);
	assert_int_equal(tn_tree_stats(tree, &stats), 0);
	assert_int_equal(stats.blocks, 100);
	assert_int_equal(stats.left_out, 9); /* keys 0 and 1 are one */
	assert_int_equal(tn_tree_remove(tree, 0, TN_TIER_DISK, 1000), 0);
	assert_true(tn_tree_digest(tree, 0, &blocks[0]) == tn_tree_digest(other, 16, &blocks[1]));
	assert_int_equal(blocks[0], 99);
	assert_int_equal(blocks[1], 99);
	tn_tree_store(other, 16, TN_TIER_HOST, 5);
	assert_true(tn_tree_digest(tree, 0, &blocks[0]) != tn_tree_digest(other, 16, &blocks[1]));
	tn_tree_destroy(other);
	tn_tree_destroy(tree);
}

static void keys_are_the_ends_of_hashes(void **state)
{
	unsigned char hash[32];

	for (int i = 0; i < 32; i++)
		hash[i] = (unsigned char)i;
	assert_true(tn_tree_key(hash, 32) == UINT64_C(0x18191a1b1c1d1e1f));
	assert_true(tn_tree_key(hash, 8) == UINT64_C(0x0001020304050607));
	assert_true(tn_tree_key(hash, 2) == 1);
}

static void what_cannot_be_is_refused(void **state)
{
	struct tn_tree *tree;

	assert_int_equal(tn_tree_create(0, 1, &tree), -EINVAL);
	assert_int_equal(tn_tree_create(1, TN_TREE_CACHES_MAX + 1, &tree), -EINVAL);
	assert_int_equal(tn_tree_create(1, 1, &tree), 0);
	assert_int_equal(tn_tree_store(tree, 1, TN_TIER_DISK, 1), -EINVAL);
	assert_int_equal(tn_tree_store(tree, 0, TN_TIER_NONE, 1), -EINVAL);
	assert_int_equal(tn_tree_find(tree, NULL, 1, NULL), -EINVAL);
	tn_tree_destroy(tree);
	tn_tree_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_finds_what_a_search_through_all_finds),
		cmocka_unit_test(a_full_tree_leaves_out_what_comes_and_says_so),
		cmocka_unit_test(keys_are_the_ends_of_hashes),
		cmocka_unit_test(what_cannot_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
