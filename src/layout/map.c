/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of two pools hold the same elements, as runs.
 *
 * Tokens are walked in segments that end where a page of either pool ends. Within a segment a plane is a nest of two loops, heads and tokens, each with a stride on
 * either side. What is contiguous on both sides becomes bytes, what is left becomes a run. Runs that follow each other at equal distances become one. That depends on
 * the order of the walk: pages innermost is best for pools with consecutive pages, layers innermost for pools whose pages have all layers. Both are counted, and the
 * one with fewer runs is written.
 */
#include <errno.h>
#include <stdbool.h>

#include "base/error.h"
#include "layout/share.h"

/* One plane, on one side. */
struct side {
	uint64_t head_stride, token_stride; /* bytes within a page */
	uint64_t first; /* offset of the first common head in a page */
	uint32_t plane;
};

/* One plane, on both. */
struct cut {
	struct side mine, theirs;
	uint64_t heads; /* that both have; 0: none */
	uint64_t unit; /* bytes of one head and token; by_page: of one head and page */
	bool by_page; /* its pages are not cut by tokens */
};

struct mapper {
	const struct tn_pool_share *mine, *theirs;
	const struct tn_pool_pages *pages;
	struct cut cut[TN_PLANES_MAX];
	struct tn_pool_run *runs; /* NULL: only count */
	size_t max;
	int64_t n;
	struct tn_pool_run last; /* may still grow; count 0: none */
	struct tn_share_cursor at[2], last_at[2];
};

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

static void flush(struct mapper *m)
{
	if (!m->last.count)
		return;
	if (m->runs && (size_t)m->n < m->max)
		m->runs[m->n] = m->last;
	m->n++;
	m->last.count = 0;
}

/* Whether b goes on where a ends, on both sides; makes one of them. */
static bool join(struct tn_pool_run *a, const struct tn_pool_run *b)
{
	uint64_t mine = a->mine + (a->count - 1) * a->mine_stride, theirs = a->theirs + (a->count - 1) * a->theirs_stride;
	uint64_t mine_step = b->mine - mine, theirs_step = b->theirs - theirs;

	if (a->bytes != b->bytes || b->mine <= mine || b->theirs <= theirs)
		return false;
	if ((a->count > 1 && (mine_step != a->mine_stride || theirs_step != a->theirs_stride)) ||
	    (b->count > 1 && (mine_step != b->mine_stride || theirs_step != b->theirs_stride)))
		return false;
	a->mine_stride = mine_step;
	a->theirs_stride = theirs_step;
	a->count += b->count;
	return true;
}

static void add(struct mapper *m, const struct tn_pool_run *run)
{
	bool same = m->at[0].range == m->last_at[0].range && m->at[1].range == m->last_at[1].range;

	if (m->last.count && same && join(&m->last, run))
		return;
	flush(m);
	m->last = *run;
	m->last_at[0] = m->at[0];
	m->last_at[1] = m->at[1];
}

/* ---- one plane of one segment -------------------------------------------------------------------------------------- */

struct loop {
	uint64_t count, mine, theirs; /* strides */
};

/* Makes bytes of loops that are contiguous on both sides. Returns how many loops are left, the longest last. */
static unsigned collapse(struct loop loop[2], uint64_t *bytes)
{
	unsigned n = 2;

	for (unsigned i = 0; i < n;) {
		if (loop[i].count == 1 || (loop[i].mine == *bytes && loop[i].theirs == *bytes)) {
			*bytes *= loop[i].count;
			loop[i] = loop[--n];
			i = 0;
		} else {
			i++;
		}
	}
	if (n == 2 && loop[0].count > loop[1].count) {
		struct loop longest = loop[0];

		loop[0] = loop[1];
		loop[1] = longest;
	}
	return n;
}

/* Where a page of a plane begins. The range of it is in *at. */
static uint64_t page_address(const struct tn_pool_share *s, struct tn_share_cursor *at, uint32_t layer, uint32_t plane, uint32_t page)
{
	uint64_t base = s->layout.base[layer * s->geometry.nplanes + plane];

	tn_share_find(s, at, base); /* the share was checked */
	return s->range[at->range].address + (base - at->offset) + page * s->layout.stride[plane];
}

/* Tokens [token, token + n), which lie in one page on either side. */
static void add_segment(struct mapper *m, uint32_t layer, uint32_t plane, uint64_t token, uint64_t n)
{
	const struct cut *c = &m->cut[plane];
	uint64_t mine_tokens = m->mine->geometry.page_tokens, theirs_tokens = m->theirs->geometry.page_tokens, tokens = c->by_page ? 1 : n;
	struct loop loop[2] = {{c->heads, c->mine.head_stride, c->theirs.head_stride}, {tokens, c->mine.token_stride, c->theirs.token_stride}};
	struct tn_pool_run run = {.bytes = c->unit, .count = 1};
	unsigned loops;

	if (!c->heads)
		return;
	run.mine = page_address(m->mine, &m->at[0], layer, c->mine.plane, m->pages->mine[token / mine_tokens]) + c->mine.first;
	run.theirs = page_address(m->theirs, &m->at[1], layer, c->theirs.plane, m->pages->theirs[token / theirs_tokens]) + c->theirs.first;
	if (!c->by_page) {
		run.mine += token % mine_tokens * c->mine.token_stride;
		run.theirs += token % theirs_tokens * c->theirs.token_stride;
	}
	loops = collapse(loop, &run.bytes);
	if (loops) {
		run.count = loop[loops - 1].count;
		run.mine_stride = loop[loops - 1].mine;
		run.theirs_stride = loop[loops - 1].theirs;
	}
	for (uint64_t i = 0; i < (loops == 2 ? loop[0].count : 1); i++) {
		add(m, &run);
		run.mine += loops == 2 ? loop[0].mine : 0;
		run.theirs += loops == 2 ? loop[0].theirs : 0;
	}
}

/* ---- planes -------------------------------------------------------------------------------------------------------- */

/* The plane of g that is the same as plane i of `like`: the same kind, after as many of that kind. nplanes: there is none. */
static uint32_t same_plane(const struct tn_geometry *like, uint32_t i, const struct tn_geometry *g)
{
	uint32_t before = 0, k;

	for (k = 0; k < i; k++)
		before += like->planes[k].kind == like->planes[i].kind;
	for (k = 0; k < g->nplanes; k++)
		if (g->planes[k].kind == like->planes[i].kind && before-- == 0)
			return k;
	return k;
}

static bool is_cut(const struct tn_plane *p)
{
	return p->kind != TN_PLANE_LATENT && p->kind != TN_PLANE_STATE;
}

static bool same_rank(const struct tn_rank_heads *a, const struct tn_rank_heads *b)
{
	return a->tp_size == b->tp_size && a->tp_rank == b->tp_rank;
}

static struct side side_of(const struct tn_geometry *g, uint32_t plane, uint64_t skip, uint64_t unit, bool by_page)
{
	bool by_token = g->page_order == TN_PAGE_NHD || by_page;
	struct side s = {.plane = plane};

	s.head_stride = by_token ? unit : g->page_tokens * unit;
	s.token_stride = by_token ? g->planes[plane].heads * unit : unit;
	s.first = skip * s.head_stride;
	return s;
}

/* Pages of this plane cannot be cut by tokens: they are moved whole, or head by head. */
static int cut_by_page(const struct mapper *m, uint32_t i, struct cut *c)
{
	const struct tn_geometry *a = &m->mine->geometry, *b = &m->theirs->geometry;
	const struct tn_plane *p = &a->planes[i];
	uint64_t head_bits = (uint64_t)p->head_dim * p->elem_bits * (p->kind == TN_PLANE_STATE ? 1 : a->page_tokens);
	bool whole = c->heads == p->heads && c->heads == b->planes[c->theirs.plane].heads && same_rank(&m->mine->rank, &m->theirs->rank);

	c->by_page = true;
	if (a->page_tokens != b->page_tokens || m->pages->tokens % a->page_tokens || (p->kind == TN_PLANE_STATE && !whole))
		return tn_fail(-EINVAL, "plane %u holds %s: pages of one size, whole pages%s are wanted", i,
			       p->kind == TN_PLANE_STATE ? "recurrent state" : "elements that are no whole bytes per head and token",
			       p->kind == TN_PLANE_STATE ? " and equal ranks" : "");
	if (a->page_order == TN_PAGE_HND && b->page_order == TN_PAGE_HND && head_bits % 8 == 0) {
		c->unit = head_bits / 8;
		return 0;
	}
	if (a->page_order != b->page_order || !whole)
		return tn_fail(-EINVAL, "plane %u: %u elements of %u bits per head and token are no whole bytes, so neither heads can be cut nor the page order "
			       "changed", i, p->head_dim, p->elem_bits);
	c->heads = 1;
	c->unit = tn_geometry_page_bytes(a, i);
	return 0;
}

static int cut_plane(struct mapper *m, uint32_t i)
{
	const struct tn_geometry *a = &m->mine->geometry, *b = &m->theirs->geometry;
	const struct tn_plane *p = &a->planes[i], *q;
	uint32_t k = same_plane(a, i, b), mine = 0, theirs = 0;
	struct cut *c = &m->cut[i];
	int rc = 0;

	if (k == b->nplanes)
		return tn_fail(-EINVAL, "plane %u of kind %u: the other pool has no such plane", i, p->kind);
	q = &b->planes[k];
	if (p->head_dim != q->head_dim || p->elem_bits != q->elem_bits || (!is_cut(p) && p->heads != q->heads))
		return tn_fail(-EINVAL, "plane %u has %u elements of %u bits per head, the other pool's has %u of %u: they are of different models", i,
			       p->head_dim, p->elem_bits, q->head_dim, q->elem_bits);
	*c = (struct cut){.heads = p->heads, .theirs.plane = k, .unit = (uint64_t)p->head_dim * p->elem_bits / 8};
	if (is_cut(p)) {
		uint32_t first, end;

		mine = tn_rank_heads_first(&m->mine->rank);
		theirs = tn_rank_heads_first(&m->theirs->rank);
		first = mine > theirs ? mine : theirs;
		end = mine + p->heads < theirs + q->heads ? mine + p->heads : theirs + q->heads;
		c->heads = end > first ? end - first : 0;
		mine = c->heads ? first - mine : 0;
		theirs = c->heads ? first - theirs : 0;
	}
	if (p->kind == TN_PLANE_STATE || (uint64_t)p->head_dim * p->elem_bits % 8)
		rc = cut_by_page(m, i, c);
	c->mine = side_of(a, i, mine, c->unit, c->by_page);
	c->theirs = side_of(b, k, theirs, c->unit, c->by_page);
	return rc;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------ */

static int check_pages(const struct tn_pool_share *s, const uint32_t *page, uint32_t n, uint64_t tokens, const char *whose)
{
	uint64_t need = tokens / s->geometry.page_tokens + (tokens % s->geometry.page_tokens != 0);

	if (need > n || (need && !page))
		return tn_fail(-EINVAL, "%llu tokens: %s list has %u pages of %u", (unsigned long long)tokens, whose, n, s->geometry.page_tokens);
	for (uint64_t i = 0; i < need; i++)
		if (page[i] >= s->layout.npages)
			return tn_fail(-EINVAL, "entry %llu of %s list is page %u: the pool has %llu", (unsigned long long)i, whose, page[i],
				       (unsigned long long)s->layout.npages);
	return 0;
}

static int check(const struct tn_pool_share *mine, const struct tn_pool_share *theirs, const struct tn_pool_pages *pages)
{
	int rc = pages ? tn_pool_share_check(mine) : tn_fail(-EINVAL, "no pages");

	if (rc == 0)
		rc = tn_pool_share_check(theirs);
	if (rc)
		return rc;
	if (mine->geometry.layers != theirs->geometry.layers || mine->geometry.nplanes != theirs->geometry.nplanes)
		return tn_fail(-EINVAL, "%u layers of %u planes and %u layers of %u planes: as many are wanted", mine->geometry.layers, mine->geometry.nplanes,
			       theirs->geometry.layers, theirs->geometry.nplanes);
	if (mine->rank.kv_heads != theirs->rank.kv_heads)
		return tn_fail(-EINVAL, "kv_heads %u and %u: they are of different models", mine->rank.kv_heads, theirs->rank.kv_heads);
	rc = check_pages(mine, pages->mine, pages->nmine, pages->tokens, "my");
	return rc ? rc : check_pages(theirs, pages->theirs, pages->ntheirs, pages->tokens, "their");
}

/* Layers from `layer` on, up to `end`. */
static void walk_tokens(struct mapper *m, uint32_t layer, uint32_t end, uint32_t plane, uint32_t planes)
{
	uint64_t mine = m->mine->geometry.page_tokens, theirs = m->theirs->geometry.page_tokens, n;

	for (uint64_t t = 0; t < m->pages->tokens; t += n) {
		n = m->pages->tokens - t;
		n = n < mine - t % mine ? n : mine - t % mine;
		n = n < theirs - t % theirs ? n : theirs - t % theirs;
		for (uint32_t l = layer; l < end; l++)
			for (uint32_t p = plane; p < planes; p++)
				add_segment(m, l, p, t, n);
	}
}

/* How many runs; pages_inside: the innermost loop is that of pages. */
static int64_t walk(struct mapper *m, bool pages_inside)
{
	const struct tn_geometry *g = &m->mine->geometry;

	m->n = 0;
	m->last.count = 0;
	if (!pages_inside)
		walk_tokens(m, 0, g->layers, 0, g->nplanes);
	for (uint32_t l = 0; l < g->layers && pages_inside; l++)
		for (uint32_t p = 0; p < g->nplanes; p++)
			walk_tokens(m, l, l + 1, p, p + 1);
	flush(m);
	return m->n;
}

int64_t tn_pool_map(const struct tn_pool_share *mine, const struct tn_pool_share *theirs, const struct tn_pool_pages *pages, struct tn_pool_run *runs,
		    size_t max)
{
	struct mapper m = {.mine = mine, .theirs = theirs, .pages = pages};
	int64_t inside, outside;
	int rc = check(mine, theirs, pages);

	for (uint32_t i = 0; rc == 0 && i < mine->geometry.nplanes; i++)
		rc = cut_plane(&m, i);
	if (rc)
		return rc;
	inside = walk(&m, true);
	outside = walk(&m, false);
	m.runs = runs;
	m.max = max;
	return runs ? walk(&m, inside <= outside) : inside < outside ? inside : outside;
}
