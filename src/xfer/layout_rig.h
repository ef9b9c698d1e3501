/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with a pool and an agent each, for tests that move blocks between pools of other layouts and TP sizes. */
#ifndef TN_XFER_LAYOUT_RIG_H
#define TN_XFER_LAYOUT_RIG_H

#include <string.h>

#include <tenuto/xfer.h>

#include "tn_test.h"

#define LAYERS 3u
#define TOKENS 48u
#define DIM_BYTES 256u
#define POOL_BYTES (4u << 20)
#define RUNS_MAX 256u

/* Heads per rank, tokens per page and order of a pool, and the agent that has it. */
struct side {
	struct tn_xfer_agent *agent;
	struct tn_geometry geometry;
	struct tn_pool_share share;
	struct tn_pool_range range;
	uint64_t base[LAYERS * 2];
	unsigned char *bytes;
	const uint32_t *pages;
	uint32_t npages;
};

static inline void side_new(struct side *s, const char *name, uint32_t tp, uint32_t rank, uint32_t page_tokens, uint32_t pool_order, uint32_t page_order)
{
	const char *specs[] = {"memory"};
	struct tn_pool_shape shape = {pool_order, 0, 16};
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_section section;

	s->geometry = (struct tn_geometry){.layers = LAYERS, .page_tokens = page_tokens, .pages_per_block = 1, .page_order = page_order, .nplanes = 2,
					   .planes = {{TN_PLANE_K, 8 / tp, 128, 16}, {TN_PLANE_V, 8 / tp, 128, 16}}};
	s->bytes = calloc(1, POOL_BYTES);
	assert_non_null(s->bytes);
	s->range = (struct tn_pool_range){(uintptr_t)s->bytes, POOL_BYTES};
	s->share = (struct tn_pool_share){.geometry = s->geometry, .rank = {tp, rank, 8}, .nranges = 1, .range = &s->range};
	assert_int_equal(tn_layout_fill(&s->geometry, &shape, NULL, s->base, &s->share.layout), 0);
	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.backends = specs;
	opts.nbackends = 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &s->agent), 0);
	section = (struct tn_xfer_section){.address = (uintptr_t)s->bytes, .bytes = POOL_BYTES};
	assert_int_equal(tn_xfer_register(s->agent, TN_XFER_DRAM, &section, 1), 0);
}

static inline void side_free(struct side *s)
{
	assert_int_equal(tn_xfer_agent_destroy(s->agent), 0);
	free(s->bytes);
}

/* Where the bytes of a head of the model and a token lie. */
static inline unsigned char *at(const struct side *s, uint32_t layer, uint32_t plane, uint32_t head, uint32_t token)
{
	const struct tn_geometry *g = &s->geometry;
	uint32_t heads = g->planes[0].heads, h = head - s->share.rank.tp_rank * heads, t = token % g->page_tokens;
	uint64_t in_page = (g->page_order == TN_PAGE_NHD ? t * heads + h : h * g->page_tokens + t) * (uint64_t)DIM_BYTES;

	return s->bytes + tn_layout_offset(&s->share.layout, g, layer, plane, s->pages[token / g->page_tokens]) + in_page;
}

static inline void exchange_metadata(struct side *from, struct side *to)
{
	unsigned char metadata[8192];
	int64_t n = tn_xfer_metadata(from->agent, TN_XFER_DRAM, NULL, 0, metadata, sizeof(metadata));

	assert_in_range(n, 1, sizeof(metadata));
	assert_int_equal(tn_xfer_load(to->agent, metadata, (size_t)n, NULL), 0);
}

#endif
