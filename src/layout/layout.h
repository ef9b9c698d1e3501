/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's compiled layout: from (page, layer, plane) to addresses, and from an object to the pieces of memory that it
 * gathers. Pure; a layout is read-only once it is made, so any number of threads may use it.
 */
#ifndef TN_LAYOUT_LAYOUT_H
#define TN_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <sys/uio.h>
#include <tenuto/layout.h>

/* address = base[layer * nplanes + plane] + page * stride[plane] */
struct tn_layout {
	struct tn_geometry geometry;
	uint64_t npages;
	uint64_t stride[TN_PLANES_MAX];
	uint32_t page_bytes[TN_PLANES_MAX];
	bool planes_apart; /* some layer has planes in two ranges of the memory: no piece reaches from one into the next */
	uintptr_t *base;   /* layers * nplanes addresses, owned by the caller of tn_layout_init */
};

/*
 * Compiles the layout of a pool over the ranges of a memory; table: memory for layers * nplanes addresses, which must outlive
 * *out. 0, or -EINVAL, -EOVERFLOW with the value in the detail: a stride that is shorter than a page, a page that lies
 * outside of the memory or in two of its ranges, pages that overlap. *out is set only on success; table is scratch until then.
 *
 * Planes of different strides may lie between each other only where no two pages could overlap at whatever index: what
 * the greatest common divisor of the strides leaves possible is refused.
 */
int tn_layout_init(const struct tn_geometry *g, const struct tn_pool_layout *pool, const struct tn_memory_range *range,
		   size_t nranges, uintptr_t *table, struct tn_layout *out);

/* Whether blocks of both have the same pages: all that is used of them is equal. Both have passed tn_geometry_check. */
bool tn_geometry_same(const struct tn_geometry *a, const struct tn_geometry *b);

/* Address of a page's plane; the caller has checked page < npages, layer, plane. */
static inline void *tn_layout_address(const struct tn_layout *l, uint32_t layer, uint32_t plane, uint64_t page)
{
	return (void *)(l->base[layer * l->geometry.nplanes + plane] + page * l->stride[plane]);
}

/*
 * The memory of one object in stored order ([plane][page]), neighbours merged; pages: pages_per_block page indices, each
 * < npages; iov: nplanes * pages_per_block entries. Returns the entries used.
 */
uint32_t tn_layout_object_iov(const struct tn_layout *l, uint32_t layer, const uint32_t *pages, struct iovec *iov);

/* The largest power of two, up to 4096, that divides every address and length of every page and plane of a pool. */
uint32_t tn_layout_align(const struct tn_layout *layout);

#endif
