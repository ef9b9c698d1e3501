/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV geometry: sizes of pages, objects and blocks, where a pool's pages lie in a memory, and TP re-slicing.
 *
 * Pure functions over plain values: nothing here allocates, blocks or keeps state.
 */
#ifndef TENUTO_LAYOUT_H
#define TENUTO_LAYOUT_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * tn_geometry_raw - a geometry whose objects are simply @object_bytes of bytes (one plane, one page a block)
 *
 * Any thread. Return: 0, or -EINVAL for 0 layers or 0 bytes, -EOVERFLOW beyond TN_OBJECT_BYTES_MAX or TN_LAYERS_MAX.
 */
TN_API int tn_geometry_raw(uint32_t layers, uint64_t object_bytes, struct tn_geometry *out);

/**
 * tn_geometry_check - whether a geometry makes sense
 *
 * Any thread. Return: 0, or -EINVAL / -EOVERFLOW with the field and value in the detail.
 */
TN_API int tn_geometry_check(const struct tn_geometry *g);

/** tn_geometry_page_bytes - bytes of one page of plane @plane; @g must have passed tn_geometry_check */
TN_API uint32_t tn_geometry_page_bytes(const struct tn_geometry *g, uint32_t plane);

/** tn_geometry_object_bytes - bytes of one layer of one block; @g must have passed tn_geometry_check */
TN_API uint32_t tn_geometry_object_bytes(const struct tn_geometry *g);

/** tn_geometry_block_bytes - bytes of a whole block; @g must have passed tn_geometry_check */
TN_API uint64_t tn_geometry_block_bytes(const struct tn_geometry *g);

/** tn_geometry_block_tokens - tokens of a whole block, 1 to below 2^44; @g must have passed tn_geometry_check */
TN_API uint64_t tn_geometry_block_tokens(const struct tn_geometry *g);

/**
 * tn_geometry_default_pages - the smallest pages_per_block that makes objects >= TN_OBJECT_BYTES_DEFAULT
 * @g: everything but pages_per_block is set; that field is not looked at
 *
 * Any thread. Return: pages (TN_BLOCK_PAGES_MAX at most), or 0 if @g does not make sense (the detail says why).
 */
TN_API uint32_t tn_geometry_default_pages(const struct tn_geometry *g);

/**
 * Serialised size of a geometry: magic "TNGEOM\0\0", u32 version, u32 layers, page_tokens, pages_per_block,
 * page_order, nplanes, TN_PLANES_MAX x 4 u32 of planes (zero where unused), u64 XXH3-64 of all before; little-endian.
 */
#define TN_GEOMETRY_BYTES 168u

/**
 * tn_geometry_store - canonical little-endian form with magic and version
 *
 * Any thread. Return: bytes written (TN_GEOMETRY_BYTES), -ENOBUFS, or what tn_geometry_check says.
 */
TN_API int tn_geometry_store(const struct tn_geometry *g, void *buf, size_t len);

/**
 * tn_geometry_load - the inverse; everything is checked, nothing trusted
 *
 * Any thread. Return: bytes read, or -EBADMSG (magic, length, checksum), -EPROTONOSUPPORT (version), or
 * what tn_geometry_check says; *g is set only on success.
 */
TN_API int tn_geometry_load(const void *buf, size_t len, struct tn_geometry *g);

/**
 * struct tn_pool_layout - where a pool's pages lie in a memory, in any order
 * @npages: pages of the pool; page indices are below
 * @base:   by layer * nplanes + plane: offset of page 0 in the memory; layers * nplanes of them
 * @stride: by plane: bytes from one page to the next, the page's bytes or more
 *
 * Offsets count through the ranges of the memory in their order. A plane of a layer lies in one range.
 */
struct tn_pool_layout {
	uint64_t npages;
	const uint64_t *base;
	uint64_t stride[TN_PLANES_MAX];
};

/** Orders of pools that engines use: tn_layout_fill fills a layout from each. */
enum tn_pool_order {
	TN_POOL_PLANES_PAGES, /**< one region per layer: [planes][pages][page bytes] (vLLM FlashAttention) */
	TN_POOL_PAGES_PLANES, /**< one region per layer: [pages][planes][page bytes] (vLLM FlashInfer) */
	TN_POOL_PLANE_REGION, /**< one region per layer and plane: [pages][page bytes] (SGLang) */
	TN_POOL_CROSS_LAYER,  /**< one region: [pages][layers][planes][page bytes] */
};

/**
 * struct tn_pool_shape - a pool in one of those orders
 * @order:     enum tn_pool_order
 * @alignment: each page's start is a multiple of this from its region's start: page strides are
 *             rounded up to it; 0 or 1 for none; a power of two
 * @npages:    pages of the pool, at most 2^32
 */
struct tn_pool_shape {
	uint32_t order;
	uint32_t alignment;
	uint64_t npages;
};

/**
 * tn_layout_regions - how many regions of memory a pool of this order has, and how large each one is
 *
 * PLANES_PAGES and PAGES_PLANES: one per layer; PLANE_REGION: layers x planes, layer-major;
 * CROSS_LAYER: one. With planes of different page sizes PAGES_PLANES and CROSS_LAYER place each
 * plane (each aligned to shape->alignment) behind the one before; regions of PLANE_REGION then
 * differ in size, and @bytes_each is the largest.
 *
 * Any thread. Return: 0, or -EINVAL / -EOVERFLOW with the value in the detail.
 */
TN_API int tn_layout_regions(const struct tn_geometry *g, const struct tn_pool_shape *shape, uint32_t *count,
			     uint64_t *bytes_each);

/**
 * tn_layout_fill - the layout of a pool in one of the orders that engines use
 * @regions: offset of each region in the memory; NULL: one behind the other from 0 on, each of bytes_each
 * @base:    memory for layers * nplanes offsets, which must outlive @out
 *
 * Any thread. Return: 0, or the errors of tn_layout_regions, and -EOVERFLOW for an offset above 2^63 - 1.
 */
TN_API int tn_layout_fill(const struct tn_geometry *g, const struct tn_pool_shape *shape, const uint64_t *regions,
			  uint64_t *base, struct tn_pool_layout *out);

/** tn_layout_offset - where a page's plane begins in the memory; the caller has checked layer, plane and page */
static inline uint64_t tn_layout_offset(const struct tn_pool_layout *l, const struct tn_geometry *g, uint32_t layer,
					uint32_t plane, uint64_t page)
{
	return l->base[layer * g->nplanes + plane] + page * l->stride[plane];
}

/** struct tn_copy - one piece of a re-slicing plan: length bytes from src_offset to dst_offset */
struct tn_copy {
	uint64_t src_offset;
	uint64_t dst_offset;
	uint32_t src; /**< index of the source shard's object */
	uint32_t length;
};

/**
 * tn_reslice_geometry - geometry of a destination shard, from that of a source shard
 *
 * State planes and latent planes are not cut by tensor parallelism in a way that a copy could follow, and are refused;
 * MLA is stored once, as TP 0/1, and needs no re-slicing. Where an engine replicates KV heads over ranks, the TP
 * sizes given here are those of the distinct shards.
 *
 * Any thread. Return: 0 and *out, -EINVAL (a TP size of 0; neither divides the other; heads or bytes would be
 * split), -EOVERFLOW (the result is too large), or what tn_geometry_check says about @g.
 */
TN_API int tn_reslice_geometry(const struct tn_geometry *g, uint32_t src_tp, uint32_t dst_tp, struct tn_geometry *out);

/**
 * tn_reslice_plan - how objects of @src_tp tensor-parallel shards become the object of one of @dst_tp shards
 * @g:        geometry of a *source* shard
 * @dst_rank: which destination shard
 * @plan:     memory for @max copies, or NULL to only count
 *
 * Offsets are into objects in stored order; tn_copy.src is the rank of the source shard. Copies rise in
 * dst_offset, cover the destination exactly once, and neighbours are merged.
 *
 * Any thread. Return: number of copies the plan has (may exceed @max: nothing beyond @max is written), or
 * the errors of tn_reslice_geometry, or -EINVAL for a @dst_rank that is not < @dst_tp.
 */
TN_API long tn_reslice_plan(const struct tn_geometry *g, uint32_t src_tp, uint32_t dst_tp, uint32_t dst_rank,
			    struct tn_copy *plan, size_t max);

/**
 * tn_reslice_run - carry out a plan in host memory
 * @src: the source shards' objects by rank (only those the plan names are read)
 * @dst: the destination object, which overlaps none of them
 *
 * Any thread.
 */
TN_API void tn_reslice_run(const struct tn_copy *plan, size_t n, const void *const *src, void *dst);

#ifdef __cplusplus
}
#endif
#endif
