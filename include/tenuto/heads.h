/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head groups: the KV heads of a model in parts that every tensor-parallel size has whole, so that ranks of each size read and write shares of the same
 * blocks (docs/shares.md).
 *
 * A model's blocks lie in one space per head group (struct tn_shard: head_group, head_groups), whatever the TP size of who writes them. A rank opens the
 * spaces of its groups, and creates a pool for each over its own memory: a view of the group's heads within its pages. It begins a load or save per group. A
 * look-up asks the spaces of all groups (tn_match_all): a block is found once every share of it is stored.
 *
 * Pure functions over plain values: nothing here allocates, blocks or keeps state. Threads: any.
 */
#ifndef TENUTO_HEADS_H
#define TENUTO_HEADS_H

#include <tenuto/error.h>
#include <tenuto/layout.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most TP ranks that share blocks, unless who stores them says another number. */
#define TN_HEAD_GROUPS_TP_DEFAULT 8u

/**
 * struct tn_head_groups - the head groups of a model, and which of them a rank has
 * @heads:   KV heads per group
 * @total:   groups of the model
 * @first:   the rank's first group
 * @count:   how many groups the rank has
 * @replica: 0 on the first of the ranks that have these heads, else 1 and up. Replicas hold the same bytes: the first one saves for all
 */
struct tn_head_groups {
	uint32_t heads;
	uint32_t total;
	uint32_t first;
	uint32_t count;
	uint32_t replica;
};

/**
 * tn_head_groups_of - the groups that ranks of all TP sizes up to one can share
 * @g:       geometry of the rank's share, all of its heads. The page order is the same for ranks of all sizes, also for one that has one head
 * @rank:    which heads these are
 * @most_tp: a number that every TP size divides which is to share the blocks, 0: TN_HEAD_GROUPS_TP_DEFAULT. It is part of what the blocks are: all ranks of all
 *           sizes give the same
 *
 * There are as many groups as the greatest common divisor of kv_heads and @most_tp. Where ranks replicate heads (GQA with more ranks than heads) each has one
 * group. Latents (MLA) have no heads: one group, which every rank has; @rank's kv_heads is not looked at.
 *
 * Return: 0 and *out; -EINVAL with the value and what to do: heads that the rank does not have, or groups that it has not whole; recurrent state.
 */
TN_API int tn_head_groups_of(const struct tn_geometry *g, const struct tn_rank_heads *rank, uint32_t most_tp, struct tn_head_groups *out);

/**
 * tn_head_group_geometry - the geometry of a group's space and pools, the same for ranks of every TP size
 * @g: of the rank's share
 *
 * Pages in the order token, head (TN_PAGE_NHD) become pages of one token each, because the heads of a group lie apart there.
 *
 * Return: 0 and *out; -EINVAL (a head of parts of bytes), -EOVERFLOW (too many tokens per block).
 */
TN_API int tn_head_group_geometry(const struct tn_geometry *g, const struct tn_head_groups *groups, struct tn_geometry *out);

/**
 * tn_head_group_layout - where a group's pages lie within a rank's pages
 * @g, @layout: of the rank's share
 * @group:      counted from the rank's first, below @groups->count
 * @base:       memory for layers * nplanes offsets, which must outlive @out
 *
 * In the order token, head each plane of a layer must have its pages one behind the other, without bytes between them. Else use TN_PAGE_HND.
 *
 * Return: 0 and *out; -EINVAL (no such group; other strides in that order), -EOVERFLOW (too many tokens), or what tn_head_group_geometry says.
 */
TN_API int tn_head_group_layout(const struct tn_geometry *g, const struct tn_pool_layout *layout, const struct tn_head_groups *groups, uint32_t group,
				uint64_t *base, struct tn_pool_layout *out);

/**
 * tn_head_group_pages - a group's pages of a rank's pages, the same for all its groups
 * @g:     of the rank's share
 * @pages: @n indices in the rank's pool
 * @out:   memory for @max indices of the group's pool, or NULL to only count
 *
 * Return: how many there are: @n, or page_tokens times @n in the order token, head (more than @max: nothing was written).
 */
TN_API size_t tn_head_group_pages(const struct tn_geometry *g, const uint32_t *pages, size_t n, uint32_t *out, size_t max);

#ifdef __cplusplus
}
#endif
#endif
