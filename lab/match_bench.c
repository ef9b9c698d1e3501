/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_match_bench_run: what a look-up of a long prefix costs among millions of blocks.
 *
 * A registry of its own has made-up blocks, all "on disk". Each round looks up and pins random blocks,
 * as tn_match does, so that the table and the records come from memory and not from a CPU cache.
 */
#include "lab/match_bench.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "block/block.h"

#define SPACE 1u

static struct tn_key key_of(uint64_t seed, uint64_t i)
{
	struct tn_rng rng;
	struct tn_key key;

	tn_rng_seed(&rng, seed ^ i * 0x9e3779b97f4a7c15u);
	key.word[0] = tn_rng_next(&rng);
	key.word[1] = tn_rng_next(&rng);
	return key;
}

static int fill(struct tn_registry *reg, uint32_t entries, uint64_t seed)
{
	const struct tn_key none = {{0, 0}};

	for (uint32_t i = 0; i < entries; i++) {
		struct tn_key key = key_of(seed, i);
		tn_block b;
		int rc = tn_block_adopt(reg, SPACE, &key, &none, &b);

		if (rc < 0)
			return rc;
		tn_block_set_residency(reg, b, TN_TIER_DISK, TN_PRESENT);
	}
	return 0;
}

/* The caller's buffers of one look-up. */
struct lookup {
	struct tn_key *keys;
	tn_block *blocks;
	uint8_t *tiers;
};

static int measure(struct tn_registry *reg, const struct tn_match_bench *b, const struct lookup *l, double *ns_per_key)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, b->seed + 1);
	for (uint32_t r = 0; r < b->rounds; r++) {
		uint64_t start;
		uint32_t found;

		for (uint32_t i = 0; i < b->keys; i++)
			l->keys[i] = key_of(b->seed, tn_rng_below(&rng, b->entries));
		start = tn_now_ns(&tn_clock_system);
		found = tn_registry_find(reg, SPACE, l->keys, b->keys, true, l->blocks, l->tiers);
		ns_per_key[r] = (double)(tn_now_ns(&tn_clock_system) - start) / b->keys;
		for (uint32_t i = 0; i < found; i++)
			tn_block_unpin(reg, l->blocks[i]);
		if (found != b->keys)
			return tn_fail(-EIO, "a look-up found %u of %u blocks: the registry is broken", found, b->keys);
	}
	return 0;
}

int tn_match_bench_run(const struct tn_match_bench *b, double *ns_per_key, uint64_t *index_bytes)
{
	const struct tn_alloc *sys = &tn_alloc_system;
	struct tn_registry_opts o = {.max_blocks = b->entries, .alloc = sys};
	struct tn_registry *reg = NULL;
	struct lookup l;
	int rc;

	if (b->entries == 0 || b->keys == 0 || b->rounds == 0)
		return tn_fail(-EINVAL, "%u entries, %u keys, %u rounds: each must be at least 1", b->entries, b->keys,
			       b->rounds);
	l.keys = tn_get(sys, tn_array_bytes(b->keys, sizeof(*l.keys)));
	l.blocks = tn_get(sys, tn_array_bytes(b->keys, sizeof(*l.blocks)));
	l.tiers = tn_get(sys, b->keys);
	rc = l.keys && l.blocks && l.tiers ? tn_registry_create(&o, &reg)
					   : tn_fail(-ENOMEM, "no memory for %u keys", b->keys);
	if (!rc)
		rc = fill(reg, b->entries, b->seed);
	if (!rc)
		rc = measure(reg, b, &l, ns_per_key);
	*index_bytes = rc ? 0 : tn_registry_bytes(reg);
	tn_registry_destroy(reg);
	tn_put(sys, l.tiers, b->keys);
	tn_put(sys, l.blocks, tn_array_bytes(b->keys, sizeof(*l.blocks)));
	tn_put(sys, l.keys, tn_array_bytes(b->keys, sizeof(*l.keys)));
	return rc;
}
