/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values shared by all public headers: keys, planes, the geometry of KV blocks, limits.
 */
#ifndef TENUTO_TYPES_H
#define TENUTO_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** struct tn_key - names a block by its content: a chained hash of all tokens up to the block's end */
struct tn_key {
	uint64_t word[2];
};

/** Most devices of a cache: the directories that it is opened with. */
#define TN_DEVICES_MAX 16
/** Most planes of one layer: K, V, their scales and zero points, and two to spare. */
#define TN_PLANES_MAX 8
/** Most layers of a shard. */
#define TN_LAYERS_MAX 4096u
/** Most pages of a block. */
#define TN_BLOCK_PAGES_MAX 4096u
/** Most bytes of an object (one layer of one block) that a layout describes; a cache takes 128 MiB at most. */
#define TN_OBJECT_BYTES_MAX (UINT32_C(1) << 30)
/** Default size of an object: the block is made of as many pages as that takes. */
#define TN_OBJECT_BYTES_DEFAULT (UINT32_C(256) << 10)

enum tn_plane_kind {
	TN_PLANE_K,
	TN_PLANE_V,
	TN_PLANE_LATENT,  /**< the one plane of multi-head latent attention */
	TN_PLANE_SCALE_K, /**< scales of quantised keys */
	TN_PLANE_SCALE_V,
	TN_PLANE_STATE,   /**< recurrent state: heads x head_dim a page, not per token */
};

/**
 * struct tn_plane - one plane of one layer
 * @kind:      what it holds
 * @heads:     KV heads of this shard in the plane (1 for latent)
 * @head_dim:  elements a head and token
 * @elem_bits: bits an element: 4, 8, 16, 32
 */
struct tn_plane {
	uint32_t kind;
	uint32_t heads;
	uint32_t head_dim;
	uint32_t elem_bits;
};

/** How the bytes inside one page of one plane are ordered. Part of a space's fingerprint. */
enum tn_page_order {
	TN_PAGE_NHD, /**< token, head, element */
	TN_PAGE_HND, /**< head, token, element */
};

/**
 * struct tn_geometry - the shape of the KV cache of one shard and group
 * @layers:          layers of this shard
 * @page_tokens:     tokens per page
 * @pages_per_block: pages per block
 * @page_order:      enum tn_page_order
 * @nplanes:         used entries of @planes
 *
 * A page of plane p has page_tokens * heads * head_dim * elem_bits / 8 bytes (a state plane: without the
 * page_tokens); an object (one layer of one block) has pages_per_block times the sum over the planes.
 * Stored order is [plane][page], the page's own order inside.
 */
struct tn_geometry {
	uint32_t layers;
	uint32_t page_tokens;
	uint32_t pages_per_block;
	uint32_t page_order;
	uint32_t nplanes;
	struct tn_plane planes[TN_PLANES_MAX];
};

/** What kind of memory an engine registers. */
enum tn_memory_kind {
	TN_MEMORY_HOST,	  /**< addresses of this process */
	TN_MEMORY_FD,	  /**< files that others map, too: memfd, hugetlbfs */
	TN_MEMORY_DEVICE, /**< addresses of an accelerator */
};

/**
 * struct tn_memory_range - bytes that follow each other, of a memory (tn_memory_register)
 * @address:   of the first; TN_MEMORY_FD: not used
 * @bytes:     how many, above 0
 * @fd_offset: TN_MEMORY_FD: where they begin in the file
 * @fd:        TN_MEMORY_FD: the file
 * @device:    TN_MEMORY_DEVICE: which device's
 */
struct tn_memory_range {
	void *address;
	uint64_t bytes;
	uint64_t fd_offset;
	int32_t fd;
	uint32_t device;
};

/** Where a block lies. */
enum tn_tier { TN_TIER_NONE, TN_TIER_DEVICE, TN_TIER_HOST, TN_TIER_DISK, TN_TIER_REMOTE };

/** Arrays by enum tn_tier have so many members: a tier that is added later finds its place in them. */
#define TN_TIERS_MAX 8u

/** A deadline that never comes; deadlines are absolute CLOCK_MONOTONIC times in ns. */
#define TN_FOREVER UINT64_MAX

#ifdef __cplusplus
}
#endif
#endif
