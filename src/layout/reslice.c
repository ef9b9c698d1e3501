/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor-parallel re-slicing: which bytes of which source shards make up a destination shard's object.
 *
 * Tensor parallelism cuts KV along heads. Rank r of T holds heads [r*H/T, (r+1)*H/T) of the whole, so
 * a plan is found by walking the destination in stored order and asking, head range by head range, who
 * holds it. It works on objects in host buffers, never on an engine's pool.
 */
#include <errno.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/error.h"

/* A plan being written: copies beyond max are counted only, except the last, which is still being merged. */
struct planner {
	struct tn_copy *plan;
	size_t max;
	long n;
	struct tn_copy last;
};

static void plan_flush(struct planner *w)
{
	if (w->last.length == 0)
		return;
	if (w->plan && (size_t)w->n < w->max)
		w->plan[w->n] = w->last;
	w->n++;
	w->last.length = 0;
}

static void plan_add(struct planner *w, uint32_t src, uint64_t src_offset, uint64_t dst_offset, uint32_t length)
{
	struct tn_copy *c = &w->last;

	/* The destination is walked without gaps, so copies are neighbours as soon as their sources are. */
	if (c->length && c->src == src && c->src_offset + c->length == src_offset) {
		c->length += length; /* at most an object's bytes */
		return;
	}
	plan_flush(w);
	*c = (struct tn_copy){src_offset, dst_offset, src, length};
}

static int plane_resliceable(const struct tn_geometry *g, uint32_t i, uint32_t src_tp, uint32_t dst_tp)
{
	const struct tn_plane *p = &g->planes[i];
	uint64_t rows = g->page_order == TN_PAGE_HND ? g->page_tokens : 1;

	if (p->kind == TN_PLANE_LATENT || p->kind == TN_PLANE_STATE)
		return tn_fail(-EINVAL, "plane %u holds %s, which is not cut along heads: it cannot be re-sliced", i,
			       p->kind == TN_PLANE_LATENT ? "latents (stored once, as TP 0/1)" : "recurrent state");
	if (p->heads != g->planes[0].heads)
		return tn_fail(-EINVAL, "plane %u has %u heads, plane 0 has %u: only planes cut alike can be re-sliced", i,
			       p->heads, g->planes[0].heads);
	if ((uint64_t)p->heads * src_tp % dst_tp != 0)
		return tn_fail(-EINVAL, "plane %u: %u heads on each of %u shards cannot be shared out to %u whole", i,
			       p->heads, src_tp, dst_tp);
	if (rows * p->head_dim * p->elem_bits % 8 != 0)
		return tn_fail(-EINVAL, "plane %u: a head of %u elements of %u bits has no whole bytes", i, p->head_dim,
			       p->elem_bits);
	return 0;
}

int tn_reslice_geometry(const struct tn_geometry *g, uint32_t src_tp, uint32_t dst_tp, struct tn_geometry *out)
{
	struct tn_geometry d;
	int rc = tn_geometry_check(g);

	if (rc)
		return rc;
	if (src_tp == 0 || dst_tp == 0 || (src_tp % dst_tp != 0 && dst_tp % src_tp != 0))
		return tn_fail(-EINVAL, "TP %u to %u: one must divide the other", src_tp, dst_tp);
	d = *g;
	for (uint32_t i = 0; i < g->nplanes; i++) {
		uint64_t heads = (uint64_t)g->planes[i].heads * src_tp / dst_tp;

		rc = plane_resliceable(g, i, src_tp, dst_tp);
		if (rc)
			return rc;
		if (heads > UINT32_MAX)
			return tn_fail(-EOVERFLOW, "plane %u: %llu heads on one of %u shards", i,
				       (unsigned long long)heads, dst_tp);
		d.planes[i].heads = (uint32_t)heads;
	}
	rc = tn_geometry_check(&d);
	if (rc == 0)
		*out = d;
	return rc;
}

/* What the walk over one plane needs to know. */
struct cut {
	uint32_t src_heads, dst_heads; /* of a shard */
	uint64_t first_head; /* of the destination, counted over all shards */
	uint64_t unit; /* bytes of one head that lie together in both shards: NHD one token's, HND one page's */
};

/*
 * One group of heads that lie side by side, one unit each: a token in NHD, a page in HND. With i groups
 * before it, the group starts at i * heads * unit in either shard.
 */
static void plan_group(struct planner *w, const struct cut *c, uint64_t group, uint64_t src_plane, uint64_t dst_plane)
{
	for (uint32_t h = 0; h < c->dst_heads;) {
		uint64_t head = c->first_head + h;
		uint32_t in_src = (uint32_t)(head % c->src_heads);
		uint32_t run = c->src_heads - in_src;

		if (run > c->dst_heads - h)
			run = c->dst_heads - h;
		plan_add(w, (uint32_t)(head / c->src_heads), src_plane + (group * c->src_heads + in_src) * c->unit,
			 dst_plane + (group * c->dst_heads + h) * c->unit, (uint32_t)(run * c->unit));
		h += run;
	}
}

long tn_reslice_plan(const struct tn_geometry *g, uint32_t src_tp, uint32_t dst_tp, uint32_t dst_rank,
		     struct tn_copy *plan, size_t max)
{
	struct planner w = {.plan = plan, .max = max};
	uint64_t src_plane = 0, dst_plane = 0;
	struct tn_geometry d;
	int rc = tn_reslice_geometry(g, src_tp, dst_tp, &d);

	if (rc)
		return rc;
	if (dst_rank >= dst_tp)
		return tn_fail(-EINVAL, "destination rank %u: there are %u shards", dst_rank, dst_tp);
	for (uint32_t i = 0; i < g->nplanes; i++) {
		const struct tn_plane *p = &g->planes[i];
		uint64_t tokens = g->page_order == TN_PAGE_HND ? g->page_tokens : 1;
		uint64_t groups = (uint64_t)g->pages_per_block * (g->page_tokens / tokens);
		struct cut c = {
			.src_heads = p->heads,
			.dst_heads = d.planes[i].heads,
			.first_head = (uint64_t)dst_rank * d.planes[i].heads,
			.unit = tokens * p->head_dim * p->elem_bits / 8,
		};

		for (uint64_t group = 0; group < groups; group++)
			plan_group(&w, &c, group, src_plane, dst_plane);
		src_plane += (uint64_t)tn_geometry_page_bytes(g, i) * g->pages_per_block;
		dst_plane += (uint64_t)tn_geometry_page_bytes(&d, i) * g->pages_per_block;
	}
	plan_flush(&w);
	return w.n;
}

void tn_reslice_run(const struct tn_copy *plan, size_t n, const void *const *src, void *dst)
{
	for (size_t i = 0; i < n; i++)
		memcpy((char *)dst + plan[i].dst_offset, (const char *)src[plan[i].src] + plan[i].src_offset,
		       plan[i].length);
}
