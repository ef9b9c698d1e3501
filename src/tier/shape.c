/* SPDX-License-Identifier: Apache-2.0 */
/* From a geometry to the shape of its blocks: padding on disk, and how many objects move together. */
#include "tier/shape.h"

#include <errno.h>

#include "base/error.h"
#include "store/store.h"

int tn_shape_init(const struct tn_geometry *g, struct tn_shape *shape)
{
	uint32_t bytes, padded, iovs, k, least;

	if (tn_geometry_check(g))
		return tn_error_last()->code;
	bytes = tn_geometry_object_bytes(g);
	iovs = g->nplanes * g->pages_per_block;
	if (bytes > TN_TIER_OBJECT_MAX)
		return tn_fail(-EINVAL, "objects of %u bytes (one layer of one block): at most %u; use smaller blocks",
			       bytes, TN_TIER_OBJECT_MAX);
	if (iovs > TN_OBJECT_IOVS_MAX)
		return tn_fail(-EINVAL, "%u pages x %u planes an object: at most %u pieces; use fewer pages a block",
			       g->pages_per_block, g->nplanes, TN_OBJECT_IOVS_MAX);
	if (g->layers > TN_STORE_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u layers: at most %u", g->layers, TN_STORE_OBJECTS_MAX);
	padded = (bytes + TN_STORE_BLOCK_ALIGN - 1) / TN_STORE_BLOCK_ALIGN * TN_STORE_BLOCK_ALIGN;
	k = TN_CHUNK_BYTES / padded;
	if (k * iovs > TN_OBJECT_IOVS_MAX)
		k = TN_OBJECT_IOVS_MAX / iovs;
	least = (g->layers + TN_CHUNKS_MAX - 1) / TN_CHUNKS_MAX;
	if (k < least)
		k = least;
	if (k * (uint64_t)iovs > TN_OBJECT_IOVS_MAX)
		return tn_fail(-EINVAL, "%u layers of %u pieces each: too scattered; use fewer pages a block", g->layers, iovs);
	if (k > g->layers)
		k = g->layers;
	*shape = (struct tn_shape){
		.layers = g->layers,
		.object_bytes = bytes,
		.padded_bytes = padded,
		.object_iovs = iovs,
		.chunk_objects = k,
		.chunks = (g->layers + k - 1) / k,
		.slot_bytes = (uint64_t)padded * g->layers,
	};
	return 0;
}
