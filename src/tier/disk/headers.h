/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block headers: buffers that they are read into and written from, what they must say, and a bounded cache of the checksums they hold.
 * What the bytes of a header mean is the store's (tn_store_header_*); moving them is the rings' part.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DISK_HEADERS_H
#define TN_TIER_DISK_HEADERS_H

#include "layout/layout.h"
#include "store/store.h"

/* Headers that may be on their way at once; each has a buffer, by number. */
#define TN_HEADER_BUFFERS 256u
#define TN_HEADER_NO_BUFFER UINT32_MAX

struct tn_headers;

struct tn_headers_opts {
	struct tn_store *store;
	const struct tn_alloc *alloc;
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
};

/* Headers of blocks of a shape, each as a block of one object. */
static inline struct tn_shape tn_header_shape(const struct tn_shape *s)
{
	uint32_t bytes = tn_store_header_size(s->layers);

	return (struct tn_shape){.layers = 1, .object_bytes = bytes, .padded_bytes = bytes, .object_iovs = 1, .chunk_objects = 1,
				 .first_objects = 1, .chunks = 1, .slot_bytes = bytes};
}

int tn_headers_create(const struct tn_headers_opts *opts, struct tn_headers **out);
void tn_headers_destroy(struct tn_headers *h);

/* Fills want->checks from the cache. */
bool tn_headers_cached(struct tn_headers *h, const struct tn_header_want *want);
/* A free buffer for a block of the caller's, or TN_HEADER_NO_BUFFER: neither reads nor writes get all of them. */
uint32_t tn_headers_take(struct tn_headers *h, bool write, uint32_t block);
void tn_headers_give(struct tn_headers *h, uint32_t buffer);
uint32_t tn_headers_block(const struct tn_headers *h, uint32_t buffer);
/* The memory of the buffers, and by buffer its offset there. They lie one behind the other. */
const struct tn_mapping *tn_headers_memory(const struct tn_headers *h);
const uint64_t *tn_headers_offsets(const struct tn_headers *h);
/* What was read: 0, and the checksums are there, and cached; or -EBADMSG: it is not the header of that block. */
int tn_headers_decode(struct tn_headers *h, uint32_t buffer, const struct tn_header_want *want);
void tn_headers_encode(struct tn_headers *h, uint32_t buffer, const struct tn_header_put *put);
/* It is on disk: the checksums are cached. */
void tn_headers_written(struct tn_headers *h, tn_slot slot, const struct tn_key *key, uint64_t sequence, uint32_t n,
			const uint64_t *checks);

void tn_headers_counts(const struct tn_headers *h, uint64_t *cache_hits, uint64_t *reads);

#endif
