/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's compiled layout: from (page, layer, plane) to offsets in a memory, and from an object to the pieces of memory that it
 * gathers: in the pages of a registered pool, or flat in a host slot, which has the order and padding of the slot on disk. Offsets become
 * addresses by a mapping of the memory (mapping.h). Pure; a layout is read-only once it is made, so any number of threads may use it.
 */
#ifndef TN_LAYOUT_LAYOUT_H
#define TN_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <sys/uio.h>
#include <tenuto/layout.h>

#include "layout/mapping.h"

/* offset = base[layer * nplanes + plane] + page * stride[plane] */
struct tn_layout {
	struct tn_geometry geometry;
	uint64_t npages;
	uint64_t stride[TN_PLANES_MAX];
	uint32_t page_bytes[TN_PLANES_MAX];
	bool planes_apart; /* some layer has planes in two ranges of the memory: no piece reaches from one into the next */
	uint64_t *base;	   /* layers * nplanes offsets in the memory, owned by the caller of tn_layout_init */
};

/*
 * Compiles the layout of a pool over the ranges of a memory, whose addresses do not matter; table: memory for layers * nplanes offsets,
 * which must outlive *out. 0, or -EINVAL, -EOVERFLOW with the value in the detail: a stride that is shorter than a page, a page that lies
 * outside of the memory or in two of its ranges, pages that overlap. *out is set only on success; table is scratch until then.
 *
 * Planes of different strides may lie between each other only where no two pages could overlap at whatever index: what
 * the greatest common divisor of the strides leaves possible is refused.
 */
int tn_layout_init(const struct tn_geometry *g, const struct tn_pool_layout *pool, const struct tn_mapping *memory, uint64_t *table,
		   struct tn_layout *out);

/* Whether blocks of both have the same pages: all that is used of them is equal. Both have passed tn_geometry_check. */
bool tn_geometry_same(const struct tn_geometry *a, const struct tn_geometry *b);

/*
 * Address of a page's plane in this mapping of the memory; the caller has checked page < npages, layer, plane, and that the layer is mapped: all pages
 * of a plane lie in one range.
 */
static inline void *tn_layout_address(const struct tn_layout *l, const struct tn_mapping *m, uint32_t layer, uint32_t plane, uint64_t page)
{
	return tn_mapping_address(m, l->base[layer * l->geometry.nplanes + plane]) + page * l->stride[plane];
}

/* Whether all bytes of a layer's planes are in the mapping. Those of the memory that the layout was compiled for are, unless no CPU may touch them. */
bool tn_layout_is_mapped(const struct tn_layout *l, const struct tn_mapping *m, uint32_t layer);

/*
 * The memory of one object in stored order ([plane][page]), neighbours merged; pages: pages_per_block page indices, each
 * < npages; iov: nplanes * pages_per_block entries. Returns the entries used.
 */
uint32_t tn_layout_object_iov(const struct tn_layout *l, const struct tn_mapping *m, uint32_t layer, const uint32_t *pages, struct iovec *iov);

/* The largest power of two, up to 4096, that divides every address and length of every page and plane of a pool; all of it is mapped. */
uint32_t tn_layout_align(const struct tn_layout *layout, const struct tn_mapping *m);

/* ---- objects in memory ------------------------------------------------------------------------------------ */

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
	const struct tn_mapping *memory;
	const struct tn_layout *layout; /* NULL: flat */
	const uint32_t *pages;          /* of this block; with layout */
	uint32_t page_first, page_count; /* the pages of the block that are wanted; page_count 0: all */
	uint64_t flat;			/* without layout: offset in the memory */
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

/* The pieces of one object in stored order; iov: shape->object_iovs entries. */
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

/* ---- layouts over one memory ------------------------------------------------------------------------------ */

/*
 * Which pages of two pools share bytes, when the pools lie over one memory in layouts of their own.
 *
 * Pools of KV groups usually have equal bases and strides in what they share: then page p of one overlaps page p of the
 * other, in one way for all their planes. A few such ways are found once, and asking for a page takes a division for
 * each. Layouts that have more ways are asked plane by plane.
 */
#define TN_OVERLAP_WAYS 8u

struct tn_overlap {
	const struct tn_layout *from, *to; /* must outlive it */
	uint32_t nways; /* 0: no page of one overlaps a page of the other; above TN_OVERLAP_WAYS: all pairs of planes */
	struct {
		uint32_t from, to; /* planes: layer * nplanes + plane */
	} way[TN_OVERLAP_WAYS];
};

void tn_overlap_init(struct tn_overlap *o, const struct tn_layout *from, const struct tn_layout *to);

/*
 * Calls taken(arg, first, end) for pages [first, end) of `to` that share bytes with a page of `from`, until it says true;
 * whether it did. Pages may be named more than once.
 */
bool tn_overlap_any(const struct tn_overlap *o, uint64_t page, bool (*taken)(void *arg, uint64_t first, uint64_t end),
		    void *arg);

#endif
