/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own names of blocks: the hashes by which an engine and its routers know them.
 *
 * A cache knows a block by its key, which no router knows. So an engine says at each save what it calls the blocks. The process that owns the
 * cache keeps the names in memory, beside the blocks, in a table of fixed size. What is published (tenuto/publish.h) takes them from there.
 *
 * A name is not stored. After a restart a block has none until its engine saves it, or names it, again. A block without a name is told by
 * tn_cache_events alone, under its key.
 */
#ifndef TENUTO_NAMES_H
#define TENUTO_NAMES_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_space;

/** Most bytes of an engine's hash. */
#define TN_NAME_HASH_BYTES 32u
/** Most tokens of a block that are kept with its name. */
#define TN_NAME_TOKENS_MAX 1024u

/**
 * struct tn_block_names - what an engine calls consecutive blocks of one prompt
 * @size:         sizeof(struct tn_block_names)
 * @hash_bytes:   of each hash, 1 to TN_NAME_HASH_BYTES. A hash of 8 bytes is a big-endian integer, and is published as one
 * @group:        the engine's KV cache group
 * @block_tokens: tokens per block
 * @hashes:       n * hash_bytes, first block first
 * @parent:       hash of the block before the first; NULL: the first block begins the prompt
 * @token_ids:    n * block_tokens; NULL: not told. They are the prompt itself, in memory of the cache's owner
 */
struct tn_block_names {
	size_t size;
	uint32_t hash_bytes;
	uint32_t group;
	uint32_t block_tokens;
	const void *hashes;
	const void *parent;
	const uint32_t *token_ids;
};

/**
 * tn_names_keep - keep names from now on
 * @max_blocks: names to be kept; of more, those go that were given first. 164 bytes each, and 4 bytes per token
 * @max_tokens: token ids kept per block, up to TN_NAME_TOKENS_MAX; 0: none. A block with more tokens keeps none
 *
 * Once per cache, by the process that opened it. Any thread. Return: 0, -EINVAL, -EEXIST (names are kept already), -ENOMEM.
 */
TN_API int tn_names_keep(struct tn_cache *cache, uint32_t max_blocks, uint32_t max_tokens);

/**
 * tn_names_give - what the engine calls these blocks
 * @keys:  n consecutive blocks of one prompt
 *
 * Call it before tn_save_begin: then the first event of a block has its name. If a block is there already and had no name, its STORED events
 * are raised once more. Any thread. Waits for the owner's answer in an attached process, and for the cache's own thread only in that case.
 *
 * Return: 0; -ENOTSUP: the cache keeps no names, and none of this did harm; -EINVAL with the value; -ESHUTDOWN in an attached process.
 */
TN_API int tn_names_give(struct tn_space *space, const struct tn_key *keys, size_t n, const struct tn_block_names *names);

/**
 * struct tn_block_name - the name of one block
 * @block_tokens: tokens of the block
 * @group:        the engine's KV cache group
 * @ntokens:      token ids that are kept: @block_tokens or 0
 * @hash_bytes:   of @hash; 0: the block has no name
 * @parent_bytes: of @parent; 0: the block begins a prompt
 */
struct tn_block_name {
	uint32_t block_tokens;
	uint32_t group;
	uint32_t ntokens;
	uint8_t hash_bytes;
	uint8_t parent_bytes;
	unsigned char hash[TN_NAME_HASH_BYTES];
	unsigned char parent[TN_NAME_HASH_BYTES];
};

/**
 * tn_names_find - the name of a block, by the number of its space and its key, as events have them
 * @token_ids: @max_tokens of them, or NULL
 *
 * Of a cache that this process has opened. Any thread. Return: 1: it has a name; 0: it has none; -EINVAL, -ENOTSUP.
 */
TN_API int tn_names_find(struct tn_cache *cache, uint16_t space, const struct tn_key *key, struct tn_block_name *out, uint32_t *token_ids,
			 uint32_t max_tokens);

#ifdef __cplusplus
}
#endif
#endif
