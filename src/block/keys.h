/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of blocks: from tokens, or from an engine's own page hashes. Pure; any thread.
 *
 * The key of block i is tn_hash_chain(secret, key of block i-1, tokens of block i). What else the KV bytes
 * depend on (adapter, images, salt) goes into the first block as `extra`: the hash of extra, taken in a domain
 * of its own so that no tokens can imitate it, takes the place of the first block's parent. A trailing part of a
 * block has no key.
 */
#ifndef TN_BLOCK_KEYS_H
#define TN_BLOCK_KEYS_H

#include <stddef.h>
#include <tenuto/types.h>

#include "base/hash.h"

#define TN_HASH_BYTES_MIN 16u
#define TN_HASH_BYTES_MAX 32u

/* What stands in the place of the first block's parent; and the key of the block behind another one, or behind that. */
struct tn_key tn_block_key_root(const struct tn_secret *secret, const void *extra, size_t extra_bytes);
struct tn_key tn_block_key_next(const struct tn_secret *secret, const struct tn_key *before, const uint32_t *tokens, uint64_t block_tokens);

/* Keys of the whole blocks among n tokens, at most max. Returns how many were written, or -EINVAL. */
long tn_block_keys_tokens(const struct tn_secret *secret, uint64_t block_tokens, const uint32_t *tokens, size_t n,
			  const void *extra, size_t extra_bytes, struct tn_key *keys, size_t max);

/*
 * Keys of the whole blocks among npages pages, from the engine's chained hash of each page
 * (hash_bytes 16..32): the last page's hash names the block. Same return.
 */
long tn_block_keys_hashes(const struct tn_secret *secret, uint32_t pages_per_block, const void *hashes,
			  size_t hash_bytes, size_t npages, struct tn_key *keys, size_t max);

#endif
