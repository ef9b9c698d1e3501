/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block headers on their way: a bounded cache of the checksums they hold, and merged reads and writes of
 * headers that lie side by side (blocks saved together have neighbouring slots).
 *
 * Owner thread only. What the bytes of a header mean is the store's (tn_store_header_*).
 */
#ifndef TN_TIER_HEADERS_H
#define TN_TIER_HEADERS_H

#include "store/store.h"
#include "tier/mover.h"

struct tn_headers;

struct tn_headers_opts {
	struct tn_mover *mover;
	struct tn_store *store;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	uint64_t cache_bytes;
};

/* One header that is wanted: what it must say, and where its checksums go. */
struct tn_header_want {
	tn_slot slot;
	struct tn_key key;
	struct tn_key space_id;
	uint32_t space_epoch;
	uint64_t sequence; /* as the index has it; 0: unknown */
	const struct tn_shape *shape;
	uint64_t *checks; /* out: shape->layers values */
	void *owner;
	uint32_t index;
};

/* One header to write; its data is on disk. */
struct tn_header_put {
	tn_slot slot;
	struct tn_store_entry entry;
	struct tn_key space_id;
	uint32_t space_epoch;
	uint32_t group;
	const struct tn_shape *shape;
	const uint64_t *checks;
	void *owner;
	uint32_t index;
};

typedef void (*tn_header_want_done)(const struct tn_header_want *want, int status);
typedef void (*tn_header_put_done)(const struct tn_header_put *put, int status);

int tn_headers_create(const struct tn_headers_opts *opts, struct tn_headers **out);
void tn_headers_destroy(struct tn_headers *h);

/* Fills want->checks from the cache. */
bool tn_headers_cached(struct tn_headers *h, const struct tn_header_want *want);
/*
 * Starts one read for as many of the n wants, from the first on, as lie side by side; returns how many, 0
 * if no buffer is free. done per want: 0, -EBADMSG (not the header of that block), or the I/O error.
 */
uint32_t tn_headers_read(struct tn_headers *h, const struct tn_header_want *wants, uint32_t n, tn_header_want_done done);
/* Likewise for writing. On success the checksums are in the cache. */
uint32_t tn_headers_write(struct tn_headers *h, const struct tn_header_put *puts, uint32_t n, tn_header_put_done done);
/* Most headers that one call takes. */
#define TN_HEADERS_BATCH 16u

void tn_headers_counts(const struct tn_headers *h, uint64_t *cache_hits, uint64_t *reads);

#endif
