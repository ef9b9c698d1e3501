/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which cache has how much of a prompt, and in which tier: a tree of prefixes over many caches, for routers.
 *
 * An engine's block hash covers all blocks before it. So a prefix is there as far as the hashes of its blocks are there one after the other, and
 * the tree is one table by hash. Each entry has a word of 4 bits per cache, one bit for each tier.
 *
 * Memory is taken at create and never grows: (8 + caches / 2) bytes, rounded up to whole words, for each of 4/3 of the blocks. What comes when the
 * table is full is left out, and counted.
 *
 * Any thread; look-ups share a lock, changes take it alone.
 */
#ifndef TENUTO_PREFIX_TREE_H
#define TENUTO_PREFIX_TREE_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_tree;

/** Most caches of a tree. */
#define TN_TREE_CACHES_MAX 1024u
/** Most blocks of a tree. */
#define TN_TREE_BLOCKS_MAX (UINT64_C(1) << 31)

/**
 * struct tn_tree_prefix - what a cache has of a prompt
 * @blocks: by enum tn_tier: blocks from the first on, each of which lies in that tier or in a better one. TN_TIER_NONE: 0
 */
struct tn_tree_prefix {
	uint32_t blocks[5];
};

/** struct tn_tree_stats - @blocks there are, of at most @max_blocks; @left_out: blocks that found no place; @bytes of memory */
struct tn_tree_stats {
	uint64_t blocks;
	uint64_t max_blocks;
	uint64_t left_out;
	uint64_t bytes;
};

/** tn_tree_create - 0 and *out; -EINVAL: none of both, or too many; -ENOMEM */
TN_API int tn_tree_create(uint64_t max_blocks, uint32_t caches, struct tn_tree **out);

/** tn_tree_destroy - no call with it is under way, and nobody subscribes for it; NULL is fine */
TN_API void tn_tree_destroy(struct tn_tree *tree);

/**
 * tn_tree_key - the key of a block: the last 8 bytes of the engine's hash, as a big-endian integer
 *
 * vLLM makes the integers that its events have of its hashes in the same way.
 */
TN_API uint64_t tn_tree_key(const void *hash, size_t bytes);

/** tn_tree_store - a block lies in a tier of a cache. Return: 0, also if it was known; -ENOSPC: the table is full; -EINVAL */
TN_API int tn_tree_store(struct tn_tree *tree, uint32_t cache, enum tn_tier tier, uint64_t key);

/** tn_tree_remove - a block lies in that tier no more. Return: 0, also if it was not known; -EINVAL */
TN_API int tn_tree_remove(struct tn_tree *tree, uint32_t cache, enum tn_tier tier, uint64_t key);

/** tn_tree_clear - nothing lies in that cache any more. Goes through the whole table. Return: 0, -EINVAL */
TN_API int tn_tree_clear(struct tn_tree *tree, uint32_t cache);

/**
 * tn_tree_find - the longest prefix of a prompt in each cache
 * @keys: n of them, first block first
 * @out:  one for each cache
 *
 * Return: blocks of the longest prefix of all caches, or -EINVAL.
 */
TN_API long tn_tree_find(struct tn_tree *tree, const uint64_t *keys, size_t n, struct tn_tree_prefix *out);

/** tn_tree_stats - a snapshot of the figures. Return: 0, -EINVAL */
TN_API int tn_tree_stats(struct tn_tree *tree, struct tn_tree_stats *out);

/**
 * tn_tree_digest - a sum over the blocks of a cache, which does not depend on the order in which they came
 * @blocks: out: how many there are
 *
 * Equal digests: two trees know the same of a cache. Goes through the whole table. Return: the sum; 0 for a cache that there is not.
 */
TN_API uint64_t tn_tree_digest(struct tn_tree *tree, uint32_t cache, uint64_t *blocks);

#ifdef __cplusplus
}
#endif
#endif
