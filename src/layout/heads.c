/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head groups: which parts of a model's KV heads ranks of several TP sizes have whole, and views of one part within a rank's pages. It knows neither spaces
 * nor pools.
 */
#include <errno.h>
#include <string.h>

#include <tenuto/heads.h>

#include "base/error.h"
#include "layout/share.h"

static uint32_t gcd(uint32_t a, uint32_t b)
{
	while (b) {
		uint32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Whether the planes are cut along heads; latents are not, and are whole on each rank. */
static int cut_along_heads(const struct tn_geometry *g, bool *cut)
{
	uint32_t latents = 0;

	for (uint32_t i = 0; i < g->nplanes; i++) {
		if (g->planes[i].kind == TN_PLANE_STATE)
			return tn_fail(-EINVAL, "plane %u holds recurrent state, which is not cut along heads: store it by rank", i);
		latents += g->planes[i].kind == TN_PLANE_LATENT;
	}
	if (latents && latents < g->nplanes)
		return tn_fail(-EINVAL, "%u planes of latents and %u others: give each kind a space of its own", latents, g->nplanes - latents);
	*cut = latents == 0;
	return 0;
}

static int check_heads(const struct tn_geometry *g, const struct tn_rank_heads *rank)
{
	uint32_t heads;

	if (rank->kv_heads == 0 || (rank->kv_heads % rank->tp_size != 0 && rank->tp_size % rank->kv_heads != 0))
		return tn_fail(-EINVAL, "kv_heads %u over tp_size %u: one must divide the other", rank->kv_heads, rank->tp_size);
	heads = tn_rank_heads_count(rank);
	for (uint32_t i = 0; i < g->nplanes; i++)
		if (g->planes[i].heads != heads)
			return tn_fail(-EINVAL, "plane %u has %u heads: kv_heads %u over tp_size %u make %u per rank", i, g->planes[i].heads, rank->kv_heads,
				       rank->tp_size, heads);
	return 0;
}

int tn_head_groups_of(const struct tn_geometry *g, const struct tn_rank_heads *rank, uint32_t most_tp, struct tn_head_groups *out)
{
	struct tn_head_groups h = {.heads = 1, .total = 1, .count = 1};
	bool cut = false;
	int rc = g ? tn_geometry_check(g) : tn_fail(-EINVAL, "no geometry");

	if (rc == 0)
		rc = cut_along_heads(g, &cut);
	if (rc)
		return rc;
	if (!rank || rank->tp_size == 0 || rank->tp_rank >= rank->tp_size)
		return tn_fail(-EINVAL, "tp_rank %u of tp_size %u: a rank below the size is wanted", rank ? rank->tp_rank : 0, rank ? rank->tp_size : 0);
	most_tp = most_tp ? most_tp : TN_HEAD_GROUPS_TP_DEFAULT;
	if (!cut) {
		h.heads = g->planes[0].heads;
		h.replica = rank->tp_rank;
		*out = h;
		return 0;
	}
	rc = check_heads(g, rank);
	if (rc)
		return rc;
	h.total = gcd(rank->kv_heads, most_tp);
	h.heads = rank->kv_heads / h.total;
	if (g->planes[0].heads % h.heads != 0)
		return tn_fail(-EINVAL, "kv_heads %u over tp_size %u: a rank has %u heads, and a head group for TP sizes that divide %u has %u; give a most_tp that %u "
			       "divides, or store by rank", rank->kv_heads, rank->tp_size, g->planes[0].heads, most_tp, h.heads, rank->tp_size);
	h.count = g->planes[0].heads / h.heads;
	h.first = tn_rank_heads_first(rank) / h.heads;
	h.replica = rank->tp_size > rank->kv_heads ? rank->tp_rank % (rank->tp_size / rank->kv_heads) : 0;
	*out = h;
	return 0;
}

/* ---- views ------------------------------------------------------------------------------------------------------ */

/* Heads of a token lie side by side, so that those of one group lie apart from token to token. */
static bool by_token(const struct tn_geometry *g)
{
	return g->page_order == TN_PAGE_NHD && g->planes[0].kind != TN_PLANE_LATENT;
}

/* Bytes of a head that lie together: of NHD one token's, of HND one page's. */
static uint64_t unit_bytes(const struct tn_geometry *g, uint32_t plane)
{
	uint64_t tokens = by_token(g) ? 1 : g->page_tokens;

	return tokens * g->planes[plane].head_dim * g->planes[plane].elem_bits / 8;
}

int tn_head_group_geometry(const struct tn_geometry *g, const struct tn_head_groups *groups, struct tn_geometry *out)
{
	struct tn_geometry d;
	uint64_t tokens;

	if (!g || !groups)
		return tn_fail(-EINVAL, "no geometry, or no head groups");
	d = *g;
	for (uint32_t i = 0; i < g->nplanes; i++) {
		uint64_t bits = (by_token(g) ? 1 : (uint64_t)g->page_tokens) * g->planes[i].head_dim * g->planes[i].elem_bits;

		if (groups->total > 1 && bits % 8 != 0)
			return tn_fail(-EINVAL, "plane %u: a head of %u elements of %u bits has no whole bytes", i, g->planes[i].head_dim, g->planes[i].elem_bits);
		d.planes[i].heads = groups->heads;
	}
	if (by_token(g)) {
		tokens = (uint64_t)g->page_tokens * g->pages_per_block;
		if (tokens > TN_BLOCK_PAGES_MAX)
			return tn_fail(-EOVERFLOW, "%llu tokens per block in pages of the order token, head: at most %u", (unsigned long long)tokens,
				       TN_BLOCK_PAGES_MAX);
		d.page_tokens = 1;
		d.pages_per_block = (uint32_t)tokens;
	}
	if (tn_geometry_check(&d))
		return tn_error_last()->code;
	*out = d;
	return 0;
}

/* Of pages in the order token, head: one token behind the other, through all pages. */
static int view_tokens(const struct tn_geometry *g, struct tn_pool_layout *l)
{
	if (l->npages > (UINT64_C(1) << 32) / g->page_tokens)
		return tn_fail(-EOVERFLOW, "%llu pages of %u tokens: at most 2^32 tokens", (unsigned long long)l->npages, g->page_tokens);
	for (uint32_t i = 0; i < g->nplanes; i++) {
		if (l->npages > 1 && l->stride[i] != tn_geometry_page_bytes(g, i))
			return tn_fail(-EINVAL, "plane %u: a stride of %llu bytes for pages of %u: in the order token, head a group's tokens must be equally far apart. Use "
				       "the order head, token (TN_PAGE_HND), or pages of a plane one behind the other", i, (unsigned long long)l->stride[i],
				       tn_geometry_page_bytes(g, i));
		l->stride[i] = tn_geometry_page_bytes(g, i) / g->page_tokens; /* a head alone may have no whole bytes */
	}
	l->npages *= g->page_tokens;
	return 0;
}

int tn_head_group_layout(const struct tn_geometry *g, const struct tn_pool_layout *layout, const struct tn_head_groups *groups, uint32_t group,
			 uint64_t *base, struct tn_pool_layout *out)
{
	struct tn_pool_layout l;
	struct tn_geometry d;
	int rc = tn_head_group_geometry(g, groups, &d);

	if (rc)
		return rc;
	if (!layout || !base || !out || layout->npages == 0)
		return tn_fail(-EINVAL, "a layout of one page at least, and memory for offsets are wanted");
	if (group >= groups->count)
		return tn_fail(-EINVAL, "head group %u: the rank has %u", group, groups->count);
	l = *layout;
	rc = by_token(g) ? view_tokens(g, &l) : 0;
	if (rc)
		return rc;
	for (uint32_t layer = 0; layer < g->layers; layer++) {
		for (uint32_t i = 0; i < g->nplanes; i++) {
			uint32_t at = layer * g->nplanes + i;

			base[at] = layout->base[at] + (groups->total > 1 ? group * groups->heads * unit_bytes(g, i) : 0);
		}
	}
	l.base = base;
	*out = l;
	return 0;
}

size_t tn_head_group_pages(const struct tn_geometry *g, const uint32_t *pages, size_t n, uint32_t *out, size_t max)
{
	uint32_t tokens = by_token(g) ? g->page_tokens : 1;

	if (!out || n * tokens > max)
		return n * tokens;
	for (size_t i = 0; i < n; i++)
		for (uint32_t t = 0; t < tokens; t++)
			*out++ = pages[i] * tokens + t;
	return n * tokens;
}
