/* SPDX-License-Identifier: Apache-2.0 */
/* From a geometry to the shape of its blocks: padding on disk, and how many objects move together. */
#include "tier/shape.h"

#include <errno.h>

#include "base/error.h"
#include "store/store.h"

/*
 * The first layer is waited for by an engine that has nothing else to do, so the chunk that it comes in is small; not of
 * blocks that are one chunk anyway, where it would make two requests of one.
 */
static uint32_t first_objects(uint32_t layers, uint32_t padded, uint32_t k)
{
	uint32_t first = padded < TN_FIRST_CHUNK_BYTES ? TN_FIRST_CHUNK_BYTES / padded : 1;

	if (k >= layers || first >= k || 1 + (layers - first + k - 1) / k > TN_CHUNKS_MAX)
		return k;
	return first;
}

int tn_shape_init(const struct tn_geometry *g, struct tn_shape *shape)
{
	uint32_t bytes, padded, iovs, k, least, first;

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
	if (g->layers > TN_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u layers: at most %u", g->layers, TN_OBJECTS_MAX);
	padded = (bytes + TN_PLACE_ALIGN - 1) / TN_PLACE_ALIGN * TN_PLACE_ALIGN;
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
	first = first_objects(g->layers, padded, k);
	*shape = (struct tn_shape){
		.layers = g->layers,
		.object_bytes = bytes,
		.padded_bytes = padded,
		.object_iovs = iovs,
		.chunk_objects = k,
		.first_objects = first,
		.chunks = 1 + (g->layers - first + k - 1) / k,
		.slot_bytes = (uint64_t)padded * g->layers,
	};
	return 0;
}

uint32_t tn_shape_window_blocks(const struct tn_geometry *g, uint32_t window_tokens)
{
	uint64_t block_tokens = tn_geometry_block_tokens(g);

	return (uint32_t)(window_tokens / block_tokens + (window_tokens % block_tokens != 0));
}

#define USUAL_BLOCK_BYTES (64u << 10)
#define LEAST_BLOCK_BYTES (4u << 10)
#define SMALL_TABLE (1u << 18) /* blocks: tables up to this size are made for smaller blocks, too */

uint64_t tn_shape_least_block(uint64_t bytes)
{
	uint64_t least = USUAL_BLOCK_BYTES;

	while (least > LEAST_BLOCK_BYTES && bytes / (least / 2) <= SMALL_TABLE)
		least /= 2;
	return least;
}
