/* SPDX-License-Identifier: Apache-2.0 */
#include "block/keys.h"

#include <errno.h>
#include <limits.h>

#include "base/error.h"

/* Domains of hashes whose input is not a block's tokens: their chains start here instead of at zero or at a key. */
static const struct tn_key domain_extra = {{0x6172747865206e74u, 1}};
static const struct tn_key domain_hashes = {{0x736568736168746eu, 2}};

/* How many keys there are to write: whole blocks of `each` among n, at most max. -EINVAL if something is missing. */
static long count_blocks(const void *from, size_t n, uint64_t each, const struct tn_key *keys, size_t max)
{
	size_t blocks = n / each;

	if (!from && n)
		return tn_fail(-EINVAL, "tokens or hashes NULL: %zu were announced", n);
	if (blocks > max)
		blocks = max;
	if (!keys && blocks)
		return tn_fail(-EINVAL, "keys NULL: there are %zu to write", blocks);
	if (blocks > LONG_MAX / TN_HASH_BYTES_MAX)
		return tn_fail(-EINVAL, "%zu blocks: more than can be counted", blocks);
	return (long)blocks;
}

struct tn_key tn_block_key_root(const struct tn_secret *secret, const void *extra, size_t extra_bytes)
{
	const struct tn_key none = {{0, 0}};

	return extra_bytes ? tn_hash_chain(secret, &domain_extra, extra, extra_bytes) : none;
}

struct tn_key tn_block_key_next(const struct tn_secret *secret, const struct tn_key *before, const uint32_t *tokens, uint64_t block_tokens)
{
	return tn_hash_chain(secret, before, tokens, block_tokens * sizeof(*tokens));
}

long tn_block_keys_tokens(const struct tn_secret *secret, uint64_t block_tokens, const uint32_t *tokens, size_t n,
			  const void *extra, size_t extra_bytes, struct tn_key *keys, size_t max)
{
	struct tn_key prev;
	long blocks;

	if (block_tokens == 0)
		return tn_fail(-EINVAL, "block_tokens 0: a block must have tokens");
	if (!extra && extra_bytes)
		return tn_fail(-EINVAL, "extra NULL: %zu bytes were announced", extra_bytes);
	blocks = count_blocks(tokens, n, block_tokens, keys, max);
	prev = tn_block_key_root(secret, extra, extra_bytes);
	for (long i = 0; i < blocks; i++)
		prev = keys[i] = tn_block_key_next(secret, &prev, tokens + (size_t)i * block_tokens, block_tokens);
	return blocks;
}

long tn_block_keys_hashes(const struct tn_secret *secret, uint32_t pages_per_block, const void *hashes,
			  size_t hash_bytes, size_t npages, struct tn_key *keys, size_t max)
{
	const unsigned char *bytes = hashes;
	long blocks;

	if (pages_per_block == 0)
		return tn_fail(-EINVAL, "pages_per_block 0: a block must have pages");
	if (hash_bytes < TN_HASH_BYTES_MIN || hash_bytes > TN_HASH_BYTES_MAX)
		return tn_fail(-EINVAL, "hash_bytes %zu: must be %u to %u", hash_bytes, TN_HASH_BYTES_MIN,
			       TN_HASH_BYTES_MAX);
	blocks = count_blocks(hashes, npages, pages_per_block, keys, max);
	for (long i = 0; i < blocks; i++)
		keys[i] = tn_hash_chain(secret, &domain_hashes,
					bytes + (((size_t)i + 1) * pages_per_block - 1) * hash_bytes, hash_bytes);
	return blocks;
}
