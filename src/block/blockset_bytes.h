/* SPDX-License-Identifier: Apache-2.0 */
/* A set of blocks as bytes (tenuto/blockset.h): head, share, entries, checksum. What the two sides have in common. */
#ifndef TN_BLOCK_BLOCKSET_BYTES_H
#define TN_BLOCK_BLOCKSET_BYTES_H

#include <tenuto/blockset.h>

#include "base/hash.h"

#define TN_BLOCKSET_VERSION 1u
/* Most bytes of a share that are believed: of the most layers, planes and ranges. */
#define TN_BLOCKSET_SHARE_MAX (UINT64_C(1) << 20)

static const char tn_blockset_magic[8] = {'T', 'N', 'B', 'L', 'O', 'C', 'K', 'S'};

struct tn_blockset_head {
	char magic[8];
	uint32_t version;
	uint32_t per_block; /* pages */
	uint64_t bytes;
	uint64_t cursor;
	uint64_t words_address;
	uint32_t words;
	uint32_t blocks;
	uint64_t share_bytes;
};
_Static_assert(sizeof(struct tn_blockset_head) == 56, "as it is written");

/* Before an entry's pages. */
struct tn_blockset_entry {
	struct tn_key key;
	uint64_t value;
	uint32_t word;
};
#define TN_BLOCKSET_ENTRY_BYTES 28u
_Static_assert(offsetof(struct tn_blockset_entry, word) + 4 == TN_BLOCKSET_ENTRY_BYTES, "as it is written");

static inline uint64_t tn_blockset_entry_bytes(const struct tn_blockset_head *h)
{
	return TN_BLOCKSET_ENTRY_BYTES + (uint64_t)h->per_block * sizeof(uint32_t);
}

/* No product here is above 2^57: blocks have 20 bits, pages 32. */
static inline uint64_t tn_blockset_bytes(const struct tn_blockset_head *h)
{
	return sizeof(*h) + h->share_bytes + h->blocks * tn_blockset_entry_bytes(h) + sizeof(uint64_t);
}

#endif
