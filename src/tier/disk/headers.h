/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block headers: buffers that they are read into and written from, what they must say, and a bounded cache of the checksums they hold.
 * What the bytes of a header mean is the store's (tn_store_header_*); moving them is the rings' part.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DISK_HEADERS_H
#define TN_TIER_DISK_HEADERS_H

#include "tier/drives.h"

struct tn_headers;

struct tn_headers_opts {
	struct tn_store *store;
	const struct tn_alloc *alloc;
	uint64_t cache_bytes;
};

int tn_headers_create(const struct tn_headers_opts *opts, struct tn_headers **out);
void tn_headers_destroy(struct tn_headers *h);

/* Fills want->checks from the cache. */
bool tn_headers_cached(struct tn_headers *h, const struct tn_header_want *want);
/* A free buffer for a block of the caller's, or TN_HEADER_NO_BUFFER: neither reads nor writes get all of them. */
uint32_t tn_headers_take(struct tn_headers *h, bool write, uint32_t block);
void tn_headers_give(struct tn_headers *h, uint32_t buffer);
const struct tn_header_buffers *tn_headers_buffers(const struct tn_headers *h);
/* What was read: 0, and the checksums are there, and cached; or -EBADMSG: it is not the header of that block. */
int tn_headers_decode(struct tn_headers *h, uint32_t buffer, const struct tn_header_want *want);
void tn_headers_encode(struct tn_headers *h, uint32_t buffer, const struct tn_header_put *put);
/* It is on disk: the checksums are cached. */
void tn_headers_written(struct tn_headers *h, tn_slot slot, const struct tn_key *key, uint64_t sequence, uint32_t n,
			const uint64_t *checks);

void tn_headers_counts(const struct tn_headers *h, uint64_t *cache_hits, uint64_t *reads);

#endif
