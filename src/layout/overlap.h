/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages of two pools share bytes, when the pools lie over one memory in layouts of their own. Pure.
 *
 * Pools of KV groups usually have equal bases and strides in what they share: then page p of one overlaps page p of the other, in one
 * way for all their planes. A few such ways are found once, and asking for a page takes a division for each. Layouts that
 * have more ways are asked plane by plane.
 */
#ifndef TN_LAYOUT_OVERLAP_H
#define TN_LAYOUT_OVERLAP_H

#include "layout/layout.h"

#define TN_OVERLAP_WAYS 8u

/* One plane of one layer: pages at `at`, `at + stride`, ... */
struct tn_plane_span {
	uint64_t at;
	uint64_t stride;
	uint64_t npages;
	uint32_t bytes;
};

/* False: no page of one shares a byte with a page of the other. Exact for equal strides; else see tn_layout_init. */
bool tn_planes_touch(const struct tn_plane_span *a, const struct tn_plane_span *b);

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
