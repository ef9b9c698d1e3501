/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of one block lie in memory: in the pages of a registered pool, or flat in a host
 * slot, which has the order and padding of the slot on disk.
 */
#ifndef TN_LAYOUT_SPAN_H
#define TN_LAYOUT_SPAN_H

#include "layout/layout.h"

/* Shape of the blocks of one space, in memory and on disk; read-only once made (tier/shape.h). */
struct tn_shape {
	uint32_t layers;
	uint32_t object_bytes;
	uint32_t padded_bytes; /* of an object, on disk and in host slots */
	uint32_t object_iovs;  /* most pieces of one object in a pool */
	uint32_t chunk_objects; /* objects moved together: one I/O, one completion */
	uint32_t first_objects; /* of the first chunk, which somebody waits for: not more than of the others */
	uint32_t chunks;
	uint64_t slot_bytes;
};

/* Most pieces of one object, or of the objects of one transfer. */
#define TN_OBJECT_IOVS_MAX 4096u

struct tn_span {
	const struct tn_layout *layout; /* NULL: flat */
	const uint32_t *pages;          /* of this block; with layout */
	uint32_t page_first, page_count; /* the pages of the block that are wanted; page_count 0: all */
	unsigned char *flat;            /* without layout */
};

static inline uint32_t tn_shape_chunk_first(const struct tn_shape *s, uint32_t chunk)
{
	return chunk ? s->first_objects + (chunk - 1) * s->chunk_objects : 0;
}

static inline uint32_t tn_shape_chunk_count(const struct tn_shape *s, uint32_t chunk)
{
	uint32_t first = tn_shape_chunk_first(s, chunk), most = chunk ? s->chunk_objects : s->first_objects;

	return s->layers - first < most ? s->layers - first : most;
}

/* The chunk that an object is of. */
static inline uint32_t tn_shape_chunk_of(const struct tn_shape *s, uint32_t object)
{
	return object < s->first_objects ? 0 : 1 + (object - s->first_objects) / s->chunk_objects;
}

/* The pieces of one object in stored order; iov has room for shape->object_iovs. */
uint32_t tn_span_object(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, struct iovec *iov);

/*
 * Writes one object that lies contiguously at src, or only its wanted pages, into the span; iov is scratch for
 * shape->object_iovs pieces.
 */
void tn_span_store(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, const void *src,
		   struct iovec *iov);

/* The pieces of the first *len of the bytes from `skip` on in a list of n; returns how many, *len is less by what they hold. */
uint32_t tn_iov_cut(struct iovec *to, const struct iovec *from, uint32_t n, uint64_t skip, uint32_t *len);

/* Copies len bytes from one list of pieces to another; both hold at least that many. */
void tn_iov_copy(const struct iovec *dst, const struct iovec *src, size_t len);

#endif
