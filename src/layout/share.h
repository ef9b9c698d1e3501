/* SPDX-License-Identifier: Apache-2.0 */
/* What share.c and map.c have in common: which heads a rank has, and which range of a share's memory an offset lies in. Pure. */
#ifndef TN_LAYOUT_SHARE_H
#define TN_LAYOUT_SHARE_H

#include <stdbool.h>
#include <tenuto/layout.h>

/* KV heads of a rank. They were checked. */
static inline uint32_t tn_rank_heads_count(const struct tn_rank_heads *s)
{
	return s->kv_heads > s->tp_size ? s->kv_heads / s->tp_size : 1;
}

/* The first of them. */
static inline uint32_t tn_rank_heads_first(const struct tn_rank_heads *s)
{
	return s->kv_heads > s->tp_size ? s->tp_rank * (s->kv_heads / s->tp_size) : s->tp_rank / (s->tp_size / s->kv_heads);
}

/* A range, and how many bytes of the memory are before it. Offsets are asked for in rising order mostly, so the search goes on from the last answer. */
struct tn_share_cursor {
	uint32_t range;
	uint64_t offset;
};

/* False: the memory ends before the offset. */
static inline bool tn_share_find(const struct tn_pool_share *s, struct tn_share_cursor *at, uint64_t offset)
{
	if (offset < at->offset)
		*at = (struct tn_share_cursor){0};
	while (offset - at->offset >= s->range[at->range].bytes) {
		if (at->range + 1 == s->nranges)
			return false;
		at->offset += s->range[at->range++].bytes;
	}
	return true;
}

#endif
