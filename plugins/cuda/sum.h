/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksum kernel, but for its barriers: XXH3-64 over the XXH3-64 of an object's 4 KiB leaves, seeded with the object's length, as
 * src/base/checksum.h has it. The same lines on the host, where tests run them.
 *
 * A block of TN_SUM_LANES lanes takes an object, TN_SUM_LEAVES leaves per turn, four lanes per leaf. A turn is three steps with a barrier behind
 * each: every lane makes its part of a leaf's hash, one lane per leaf joins the four parts, and lane 0 feeds the hashes into the root. The
 * root runs along: it needs the last eight hashes alone, so that objects of any length need no memory but the block's own.
 */
#ifndef TN_CUDA_SUM_H
#define TN_CUDA_SUM_H

#include "xxh3.h"

#define TN_SUM_LEAF 4096u
#define TN_SUM_LEAVES 32u
#define TN_SUM_LANES (4 * TN_SUM_LEAVES)

/**
 * struct tn_sum_block - what the lanes of a block share
 * @hash: of the last eight leaves of the turn before, and of the leaves of this one
 * @part: of a leaf, from four lanes
 * @root: the accumulators of the root
 */
struct tn_sum_block {
	uint64_t hash[8 + TN_SUM_LEAVES];
	uint64_t part[TN_SUM_LANES];
	struct tn_xxh3_pair root[4];
};

/** tn_sum_turns - how many turns an object takes: one at least, as one without bytes has a sum, too */
TN_HD uint64_t tn_sum_turns(const struct tn_cuda_object *object)
{
	uint64_t turn = (uint64_t)TN_SUM_LEAF * TN_SUM_LEAVES;

	return object->bytes == 0 ? 1 : (object->bytes + turn - 1) / turn;
}

/* The leaf's bytes: flat where they lie in one piece. */
TN_HD struct tn_xxh3_input tn_sum_leaf(const union tn_cuda_entry *ring, const struct tn_cuda_object *object, uint64_t leaf)
{
	struct tn_xxh3_input in;
	uint64_t at = leaf * TN_SUM_LEAF;

	in.flat = 0;
	in.ring = ring;
	in.bytes = object->bytes - at < TN_SUM_LEAF ? object->bytes - at : TN_SUM_LEAF;
	for (in.first = object->first; at >= ring[in.first % TN_CUDA_RING].span.bytes; in.first++)
		at -= ring[in.first % TN_CUDA_RING].span.bytes;
	in.skip = at;
	if (ring[in.first % TN_CUDA_RING].span.bytes - at >= in.bytes)
		in.flat = ring[in.first % TN_CUDA_RING].span.from + at;
	return in;
}

/** tn_sum_parts - first step of a turn, by every lane */
TN_HD void tn_sum_parts(struct tn_sum_block *block, const union tn_cuda_entry *ring, const struct tn_cuda_object *object, uint64_t turn, uint32_t lane)
{
	uint64_t leaf = turn * TN_SUM_LEAVES + lane / 4;
	struct tn_xxh3_input in;

	if (leaf * TN_SUM_LEAF >= object->bytes)
		return;
	in = tn_sum_leaf(ring, object, leaf);
	if (in.bytes == TN_SUM_LEAF && in.flat != 0 && in.flat % 16 == 0)
		block->part[lane] = tn_xxh3_part_4096((const struct tn_cuda_16 *)(uintptr_t)in.flat, lane % 4);
	else if (in.bytes > TN_XXH3_SHORT)
		block->part[lane] = tn_xxh3_part(&in, lane % 4);
	else if (lane % 4 == 0)
		block->part[lane] = tn_xxh3_short(&in, 0);
}

/** tn_sum_join - second step, by the first TN_SUM_LEAVES lanes */
TN_HD void tn_sum_join(struct tn_sum_block *block, const struct tn_cuda_object *object, uint64_t turn, uint32_t lane)
{
	uint64_t at = (turn * TN_SUM_LEAVES + lane) * TN_SUM_LEAF, bytes;

	if (at >= object->bytes)
		return;
	bytes = object->bytes - at < TN_SUM_LEAF ? object->bytes - at : TN_SUM_LEAF;
	block->hash[8 + lane] = bytes > TN_XXH3_SHORT ? tn_xxh3_join(bytes, &block->part[4 * lane]) : block->part[4 * lane];
}

/* The root of few leaves: their hashes are all in the block. */
TN_HD uint64_t tn_sum_short_root(const struct tn_sum_block *block, uint64_t bytes, uint64_t seed)
{
	struct tn_xxh3_input in;

	in.flat = (uint64_t)(uintptr_t)&block->hash[8];
	in.ring = NULL;
	in.skip = 0;
	in.first = 0;
	in.bytes = bytes;
	return tn_xxh3_short(&in, seed);
}

/** tn_sum_root - third step, by one lane; in the last turn it writes the sum */
TN_HD void tn_sum_root(struct tn_sum_block *block, struct tn_cuda_object *object, uint64_t turn)
{
	uint64_t leaves = (object->bytes + TN_SUM_LEAF - 1) / TN_SUM_LEAF, bytes = 8 * leaves, seed = object->bytes, part[4];
	uint64_t done = turn * TN_SUM_LEAVES, n = leaves - done < TN_SUM_LEAVES ? leaves - done : TN_SUM_LEAVES;

	if (bytes <= TN_XXH3_SHORT) {
		object->sum = tn_sum_short_root(block, bytes, seed);
		return;
	}
	for (uint32_t pair = 0; pair < 4; pair++) {
		struct tn_xxh3_pair *p = &block->root[pair];
		const uint64_t *h = &block->hash[8 + 2 * pair];

		if (turn == 0)
			tn_xxh3_begin(p, pair);
		for (uint64_t s = done / 8; 8 * (s - done / 8) < n && s < (bytes - 1) / 64; s++, h += 8)
			tn_xxh3_stripe(p, pair, s, h[0], h[1], seed);
		if (done + n == leaves)
			part[pair] = tn_xxh3_end(p, pair, block->hash[n + 2 * pair], block->hash[n + 2 * pair + 1], seed);
	}
	if (done + n == leaves)
		object->sum = tn_xxh3_join(bytes, part);
	for (uint32_t i = 0; i < 8; i++)
		block->hash[i] = block->hash[TN_SUM_LEAVES + i];
}

#endif
