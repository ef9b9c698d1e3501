/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV geometry: from (page, layer, plane) to addresses, and from objects to the bytes they gather.
 *
 * Pure functions over plain values: nothing here allocates, blocks or keeps state.
 */
#ifndef TENUTO_LAYOUT_H
#define TENUTO_LAYOUT_H

#include <sys/uio.h>

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Geometry of a well-known model (--model NAME of the command line): one bf16 shard with TP 1. */
struct tn_model {
	const char *name;
	struct tn_geometry geometry;
};

/**
 * tn_model_at - the models known by name, in a fixed order
 *
 * Any thread. Return: the i-th model, or NULL past the last.
 */
TN_API const struct tn_model *tn_model_at(size_t i);

/**
 * tn_model_find - a model's geometry by name ("llama3-8b", "qwen3-32b", ...)
 *
 * Any thread. Return: 0 and *out, or -ENOENT with the known names in the detail.
 */
TN_API int tn_model_find(const char *name, struct tn_geometry *out);

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
 * struct tn_layout - a pool's compiled layout: address = base[layer * nplanes + plane] + page * stride[plane]
 *
 * Fill it with tn_layout_init; read-only afterwards, so any number of threads may use it.
 */
struct tn_layout {
	struct tn_geometry geometry;
	struct tn_pool_layout pool;
	uint64_t stride[TN_PLANES_MAX]; /**< bytes from one page to the next, by plane */
	uint32_t page_bytes[TN_PLANES_MAX];
	uint32_t region_count;
	uint64_t region_bytes; /**< of the largest region; tn_layout_region_bytes tells each one's */
	uintptr_t *base; /**< layers * nplanes addresses, owned by the caller of tn_layout_init */
};

/**
 * tn_layout_regions - how many memory regions a pool of this order has, and how large each one is
 *
 * PLANES_PAGES and PAGES_PLANES: one per layer; PLANE_REGION: layers x planes, layer-major;
 * CROSS_LAYER: one. With planes of different page sizes PAGES_PLANES and CROSS_LAYER place each
 * plane (each aligned to pool->alignment) behind the one before; regions of PLANE_REGION then
 * differ in size, and @bytes_each is the largest.
 *
 * Any thread. Return: 0, or -EINVAL / -EOVERFLOW with the value in the detail.
 */
TN_API int tn_layout_regions(const struct tn_geometry *g, const struct tn_pool_layout *pool, uint32_t *count,
			     uint64_t *bytes_each);

/**
 * tn_layout_init - compile a layout
 * @bases:  the regions' addresses, tn_layout_regions of them
 * @table:  memory for layers * nplanes addresses, which must outlive @out
 *
 * Any thread. Return: 0, or -EINVAL / -EOVERFLOW with the value in the detail (also when a region would
 * wrap around the address space, or two regions overlap). *out is set only on success; @table is scratch until then.
 */
TN_API int tn_layout_init(const struct tn_geometry *g, const struct tn_pool_layout *pool, void *const *bases,
			  uintptr_t *table, struct tn_layout *out);

/** tn_layout_region_bytes - bytes of region @region (< region_count); never more than region_bytes */
TN_API uint64_t tn_layout_region_bytes(const struct tn_layout *l, uint32_t region);

/** tn_layout_address - address of a page's plane; the caller has checked page < npages, layer, plane */
static inline void *tn_layout_address(const struct tn_layout *l, uint32_t layer, uint32_t plane, uint64_t page)
{
	return (void *)(l->base[layer * l->geometry.nplanes + plane] + page * l->stride[plane]);
}

/**
 * tn_layout_object_iov - the memory of one object in stored order ([plane][page]), neighbours of one region merged
 * @pages: pages_per_block page indices, each < npages
 * @iov:   room for nplanes * pages_per_block entries
 *
 * Any thread. Return: entries used.
 */
TN_API uint32_t tn_layout_object_iov(const struct tn_layout *l, uint32_t layer, const uint32_t *pages,
				     struct iovec *iov);

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
 * @plan:     room for @max copies, or NULL to only count
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
