/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ten million blocks: the memory of all that the index holds (promise: 96 bytes per block), and that no block is lost.
 * The time of a look-up is printed, not judged: see `tenuto bench match`.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/alloc_rig.h"
#include "base/rng.h"
#include "block/block.h"
#include "policy/policy.h"
#include "tn_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BLOCKS 1000000 /* sanitizers make it ten times slower */
#else
#define BLOCKS 10000000
#endif

enum { PREFIX = 8192, LOOKUPS = 51 };

/* What the store's slot table adds: a sequence number and a cookie per slot (src/store). */
#define STORE_BYTES_A_SLOT 12u
/* What the cache adds: when a block was last used, for the index on disk (src/core). */
#define RECENCY_BYTES_A_BLOCK 4u
#define BYTES_A_BLOCK_MAX 96.0

static struct tn_key key(uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return (struct tn_key){{x ^ (x >> 31), x * 0xd6e8feb86659fd93u}};
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Chains of 64 blocks. */
static void fill(struct tn_registry *reg)
{
	struct tn_key parent = {{0, 0}};

	for (uint64_t i = 0; i < BLOCKS; i++) {
		struct tn_key k = key(i);
		tn_block b;

		assert_int_equal(tn_block_adopt(reg, 1, &k, i % 64 ? &parent : NULL, &b), 0);
		tn_block_set_residency(reg, b, TN_TIER_DISK, TN_PRESENT);
		parent = k;
	}
}

static int compare_u64(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void look_up(struct tn_registry *reg)
{
	static struct tn_key keys[PREFIX];
	static tn_block found[PREFIX];
	static uint8_t tiers[PREFIX];
	uint64_t spent_ns[LOOKUPS];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < LOOKUPS; round++) {
		uint64_t start_ns;

		for (uint32_t i = 0; i < PREFIX; i++)
			keys[i] = key(tn_rng_below(&rng, BLOCKS));
		start_ns = now_ns();
		assert_int_equal(tn_registry_find(reg, 1, keys, PREFIX, true, found, tiers), PREFIX);
		spent_ns[round] = now_ns() - start_ns;
		for (uint32_t i = 0; i < PREFIX; i++)
			tn_block_unpin(reg, found[i]);
	}
	qsort(spent_ns, LOOKUPS, sizeof(spent_ns[0]), compare_u64);
	print_message("# look-up and pin of random prefixes of %d among %d blocks: median %.1f ns a key\n", PREFIX, BLOCKS,
		      (double)spent_ns[LOOKUPS / 2] / PREFIX);
}

static void all_blocks_are_found_in_96_bytes_each(void **state)
{
	struct tn_alloc_counter c;
	struct tn_registry_opts opts = {.max_blocks = BLOCKS, .alloc = &c.alloc};
	struct tn_registry *reg;
	double index_bytes;

	tn_alloc_counter_init(&c);
	assert_int_equal(tn_registry_create(&opts, &reg), 0);
	index_bytes = (double)c.live_bytes / BLOCKS + STORE_BYTES_A_SLOT + RECENCY_BYTES_A_BLOCK;
	print_message("# registry, store slot and recency: %.2f bytes a block\n", index_bytes);
	for (size_t i = 0; tn_policy_at(i); i++) {
		const struct tn_policy_opts po = {.capacity = BLOCKS, .seed = 1, .alloc = &c.alloc};
		size_t before = c.live_bytes;
		struct tn_policy *p;
		double total;

		assert_int_equal(tn_policy_at(i)->create(&po, &p), 0);
		total = index_bytes + (double)(c.live_bytes - before) / BLOCKS;
		print_message("# with policy %s: %.2f bytes a block\n", tn_policy_at(i)->name, total);
		assert_true(total <= BYTES_A_BLOCK_MAX);
		p->ops->destroy(p);
	}
	fill(reg);
	assert_int_equal(tn_registry_count(reg), BLOCKS);
	look_up(reg);
	tn_registry_destroy(reg);
	assert_int_equal(c.live_bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_blocks_are_found_in_96_bytes_each),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
