/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV geometry: sizes of pages, objects and blocks, where a pool's pages lie in a memory, TP re-slicing, and what has to be copied between pools of different
 * layouts and TP sizes.
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

/* ---- shares: pools of several ranks or engines ------------------------------------------------------------------- */

/** Most ranges of the memory of a share. */
#define TN_POOL_RANGES_MAX 4096u

/**
 * struct tn_rank_heads - which KV heads of a model a tensor-parallel rank has
 * @tp_size:  tensor-parallel ranks
 * @tp_rank:  which of them, below @tp_size
 * @kv_heads: KV heads of the whole model
 *
 * One of @tp_size and @kv_heads divides the other. With more heads than ranks, rank r has heads [r * n, (r + 1) * n) with n = kv_heads / tp_size. With more ranks
 * than heads (GQA), each head is on m = tp_size / kv_heads ranks: rank r has head r / m. Latents are whole on every rank.
 */
struct tn_rank_heads {
	uint32_t tp_size;
	uint32_t tp_rank;
	uint32_t kv_heads;
};

/** struct tn_pool_range - bytes of a memory that follow each other, by the address that their owner has for them */
struct tn_pool_range {
	uint64_t address;
	uint64_t bytes;
};

/**
 * struct tn_pool_share - a rank's pool, as others have to know it: layout, memory and shard
 * @geometry: of the shard; K, V and scale planes have as many heads as @rank gives it
 * @layout:   where pages lie; offsets count through @range
 * @rank:     which KV heads
 * @memory:   TN_MEMORY_HOST or TN_MEMORY_DEVICE
 * @device:   TN_MEMORY_DEVICE: which one
 * @nranges:  1 to TN_POOL_RANGES_MAX
 * @range:    the memory's bytes; each plane of a layer lies in one range
 */
struct tn_pool_share {
	struct tn_geometry geometry;
	struct tn_pool_layout layout;
	struct tn_rank_heads rank;
	uint32_t memory;
	uint32_t device;
	uint32_t nranges;
	const struct tn_pool_range *range;
};

/**
 * tn_pool_share_check - whether a share makes sense: its pages lie in its memory, its planes have the shard's heads
 *
 * Any thread. Return: 0, or -EINVAL / -EOVERFLOW with the field and value in the detail.
 */
TN_API int tn_pool_share_check(const struct tn_pool_share *share);

/**
 * tn_pool_share_store - a share as bytes with magic, version and checksum, for another process
 *
 * Little-endian: magic "TNSHARE\0", u32 version, u32 nranges, u64 bytes of all, the geometry (TN_GEOMETRY_BYTES), u32 tp_size, tp_rank, kv_heads, memory,
 * device, zero, u64 npages, TN_PLANES_MAX u64 strides, the bases, u64 address and bytes of each range, u64 XXH3-64 of all before.
 *
 * Any thread. Return: how many bytes it has (more than @len: nothing was written), or what tn_pool_share_check says.
 */
TN_API int64_t tn_pool_share_store(const struct tn_pool_share *share, void *buf, size_t len);

/**
 * tn_pool_share_load - the inverse; everything is checked, nothing trusted
 * @table: memory for @words numbers, to which @out refers: layers * nplanes bases, and two for each range
 *
 * Any thread. Return: how many numbers it has (more than @words: *out is not set), or -EBADMSG (magic, length, checksum), -EPROTONOSUPPORT (version), or
 * what tn_pool_share_check says; *out is set only on success.
 */
TN_API int64_t tn_pool_share_load(const void *buf, size_t len, struct tn_pool_share *out, uint64_t *table, size_t words);

/**
 * struct tn_pool_pages - the same tokens in two pools
 * @mine:    page indices in one pool, in the order of their tokens; @nmine of them
 * @theirs:  in the other pool; @ntheirs of them
 * @tokens:  how many, from the first token of the first page of both lists on
 */
struct tn_pool_pages {
	const uint32_t *mine;
	const uint32_t *theirs;
	uint32_t nmine;
	uint32_t ntheirs;
	uint64_t tokens;
};

/** struct tn_pool_run - @count pieces of @bytes each, at equal distances in either pool; addresses as the ranges of the shares have them */
struct tn_pool_run {
	uint64_t mine;
	uint64_t theirs;
	uint64_t mine_stride;
	uint64_t theirs_stride;
	uint64_t bytes;
	uint64_t count;
};

/**
 * tn_pool_map - which bytes of two pools hold the same elements
 * @mine, @theirs: pools of one model: equal layers, and planes that differ in their order and heads at most
 * @runs:          memory for @max runs, or NULL to only count
 *
 * The pools may differ in the order of their planes, in pool and page order, page size, TP size and rank. What both ranks have is in the runs: heads of one rank alone
 * are not. A run lies in one range on either side. Ranks that replicate a head hold the same bytes: a reader needs one of them, a writer writes all.
 *
 * State, and elements that are no whole bytes where heads are cut or orders differ, are refused, unless both pools have equal ranks and pages.
 *
 * Any thread. Return: number of runs (may exceed @max: nothing beyond @max is written), or -EINVAL / -EOVERFLOW with the value in the detail.
 */
TN_API int64_t tn_pool_map(const struct tn_pool_share *mine, const struct tn_pool_share *theirs, const struct tn_pool_pages *pages,
			   struct tn_pool_run *runs, size_t max);

#ifdef __cplusplus
}
#endif
#endif
