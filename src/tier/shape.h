/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of the blocks of a space, as disk and memory see it. */
#ifndef TN_TIER_SHAPE_H
#define TN_TIER_SHAPE_H

#include "layout/layout.h"

/* Chunks of a block: limits the per-operation tables. */
#define TN_CHUNKS_MAX 128u
/* A chunk is as many objects as fit in this, at least one; larger objects are read in pieces of it. */
#define TN_IO_BYTES (1u << 20)
#define TN_CHUNK_BYTES (256u << 10)
/* The first chunk, if it need not be a whole one. */
#define TN_FIRST_CHUNK_BYTES (64u << 10)
#define TN_TIER_OBJECT_MAX (128u << 20)

/* 0, or -EINVAL with the limit that the geometry passes. */
int tn_shape_init(const struct tn_geometry *g, struct tn_shape *shape);

/* Blocks that so many tokens before an end may reach into, if the end is a block's; g passed tn_geometry_check. */
uint32_t tn_shape_window_blocks(const struct tn_geometry *g, uint32_t window_tokens);

/* The smallest blocks of which so many bytes are full before the tables of blocks are, if nobody has said how large blocks are. */
uint64_t tn_shape_least_block(uint64_t bytes);

#endif
