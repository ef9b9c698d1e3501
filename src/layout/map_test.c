/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of different layouts and TP sizes: runs move each common element, and nothing else, as a plain model of the pools says. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

#define ROUNDS 400
#define LAYERS_MAX 4u
#define RANGES_MAX 32u
#define PAGES_MAX 32u
#define RUNS_MAX 65536u

/* A pool with its memory. */
struct pool {
	struct tn_pool_share share;
	uint64_t base[LAYERS_MAX * TN_PLANES_MAX];
	struct tn_pool_range range[RANGES_MAX];
	unsigned char *bytes[RANGES_MAX];
	uint32_t page[PAGES_MAX]; /* of the tokens */
	uint32_t npages;
};

/* Of one model, whatever its ranks and pools. */
struct model {
	uint32_t layers, nplanes, kv_heads;
	struct tn_plane planes[TN_PLANES_MAX];
	uint64_t tokens;
	bool odd; /* elements that are no whole bytes */
};

static struct tn_pool_run runs[RUNS_MAX];

static uint32_t heads_of(const struct model *m, uint32_t tp)
{
	return m->kv_heads > tp ? m->kv_heads / tp : 1;
}

static void *make_bytes(uint64_t n, unsigned char with)
{
	void *p = malloc(n);

	assert_non_null(p);
	memset(p, with, n);
	return p;
}

/* Offsets count through the ranges: some pools have one for each region, some one for all. */
static void pool_memory(struct pool *p, const struct tn_geometry *g, const struct tn_pool_shape *shape, bool one, unsigned char with)
{
	uint32_t count;
	uint64_t each;

	assert_int_equal(tn_layout_regions(g, shape, &count, &each), 0);
	assert_int_equal(tn_layout_fill(g, shape, NULL, p->base, &p->share.layout), 0);
	p->share.nranges = one || count > RANGES_MAX ? 1 : count;
	for (uint32_t i = 0; i < p->share.nranges; i++) {
		uint64_t n = p->share.nranges == 1 ? each * count : each;

		p->bytes[i] = make_bytes(n, with);
		p->range[i] = (struct tn_pool_range){(uintptr_t)p->bytes[i], n};
	}
	p->share.range = p->range;
}

static void pool_make(struct pool *p, const struct model *m, struct tn_rng *rng, uint32_t tp, uint32_t rank, unsigned char with)
{
	static const uint32_t sizes[] = {4, 8, 12, 16, 2};
	struct tn_geometry g = {.layers = m->layers, .page_tokens = m->odd ? 8 : sizes[tn_rng_below(rng, 5)], .pages_per_block = 1,
				.page_order = m->odd ? TN_PAGE_HND : tn_rng_below(rng, 2), .nplanes = m->nplanes};
	struct tn_pool_shape shape;
	uint32_t used = 0;

	*p = (struct pool){.share.rank = {tp, rank, m->kv_heads}};
	memcpy(g.planes, m->planes, sizeof(g.planes));
	for (uint32_t i = g.nplanes; i-- > 1;) { /* planes in any order, but those of a kind in theirs */
		uint32_t k = tn_rng_below(rng, i + 1);
		struct tn_plane swap = g.planes[i];
		bool passes = false;

		for (uint32_t j = k; j <= i; j++)
			passes |= j != k && j != i && (g.planes[j].kind == g.planes[k].kind || g.planes[j].kind == swap.kind);
		if (passes || g.planes[k].kind == swap.kind)
			continue;
		g.planes[i] = g.planes[k];
		g.planes[k] = swap;
	}
	for (uint32_t i = 0; i < g.nplanes; i++)
		if (g.planes[i].kind != TN_PLANE_LATENT)
			g.planes[i].heads = heads_of(m, tp);
	p->npages = (uint32_t)((m->tokens + g.page_tokens - 1) / g.page_tokens);
	shape = tn_test_pool(rng, &g);
	shape.npages += p->npages;
	assert_int_equal(tn_geometry_check(&g), 0);
	pool_memory(p, &g, &shape, tn_rng_below(rng, 2), with);
	p->share.geometry = g;
	for (uint32_t i = 0; i < p->npages; used++) /* rising with gaps, sometimes backwards */
		if (used + (p->npages - i) >= shape.npages || tn_rng_below(rng, 3))
			p->page[i++] = used;
	if (tn_rng_below(rng, 4) == 0)
		for (uint32_t i = 0; i < p->npages / 2; i++) {
			uint32_t swap = p->page[i];

			p->page[i] = p->page[p->npages - 1 - i];
			p->page[p->npages - 1 - i] = swap;
		}
}

static void pool_free(struct pool *p)
{
	for (uint32_t i = 0; i < p->share.nranges; i++)
		free(p->bytes[i]);
}

static unsigned char *at_offset(const struct pool *p, uint64_t offset)
{
	uint32_t i = 0;

	for (; offset >= p->range[i].bytes; i++)
		offset -= p->range[i].bytes;
	return p->bytes[i] + offset;
}

/* Where element (layer, plane, head of the model, token) lies; NULL: this rank has not got the head. */
static unsigned char *element(const struct pool *p, uint32_t layer, uint32_t plane, uint32_t head, uint64_t token)
{
	const struct tn_geometry *g = &p->share.geometry;
	const struct tn_plane *q = &g->planes[plane];
	const struct tn_rank_heads *s = &p->share.rank;
	uint32_t first = q->kind == TN_PLANE_LATENT ? 0 : s->kv_heads >= s->tp_size ? s->tp_rank * q->heads : s->tp_rank * s->kv_heads / s->tp_size;
	uint64_t row = q->head_dim * q->elem_bits, in_page = token % g->page_tokens, bits;

	if (head < first || head >= first + q->heads)
		return NULL;
	bits = g->page_order == TN_PAGE_NHD ? (in_page * q->heads + (head - first)) * row : ((head - first) * g->page_tokens + in_page) * row;
	return at_offset(p, tn_layout_offset(&p->share.layout, g, layer, plane, p->page[token / g->page_tokens]) + bits / 8);
}

/* The n-th plane of that kind. */
static uint32_t find_plane(const struct tn_geometry *g, uint32_t kind, uint32_t n)
{
	for (uint32_t i = 0; i < g->nplanes; i++)
		if (g->planes[i].kind == kind && n-- == 0)
			return i;
	fail();
	return 0;
}

static struct model random_model(struct tn_rng *rng)
{
	static const uint32_t kinds[] = {TN_PLANE_K, TN_PLANE_V, TN_PLANE_LATENT, TN_PLANE_SCALE_K, TN_PLANE_K};
	struct model m = {.layers = 1 + tn_rng_below(rng, LAYERS_MAX), .nplanes = 1 + tn_rng_below(rng, 5), .kv_heads = 1u << tn_rng_below(rng, 5)};

	m.tokens = 1 + tn_rng_below(rng, 48);
	m.odd = tn_rng_below(rng, 8) == 0;
	if (m.odd)
		m.tokens = 8 * (1 + m.tokens / 8);
	for (uint32_t i = 0; i < m.nplanes; i++)
		m.planes[i] = (struct tn_plane){kinds[i], 1, m.odd ? 3 : 2 * (1 + tn_rng_below(rng, 4)), tn_rng_below(rng, 2) || m.odd ? 4 : 16};
	return m;
}

/* Copies, element by element, what both pools have. */
static void copy_plainly(const struct model *m, const struct pool *from, const struct pool *to)
{
	for (uint32_t i = 0; i < m->nplanes; i++) {
		uint32_t before = 0, heads = m->planes[i].kind == TN_PLANE_LATENT ? 1 : m->kv_heads, a, b;

		for (uint32_t k = 0; k < i; k++)
			before += m->planes[k].kind == m->planes[i].kind;
		a = find_plane(&from->share.geometry, m->planes[i].kind, before);
		b = find_plane(&to->share.geometry, m->planes[i].kind, before);
		for (uint32_t layer = 0; layer < m->layers; layer++)
			for (uint32_t head = 0; head < heads; head++)
				for (uint64_t token = 0; token < m->tokens; token += m->odd ? 8 : 1) {
					const unsigned char *source = element(from, layer, a, head, token);
					unsigned char *dest = element(to, layer, b, head, token);

					if (source && dest)
						memcpy(dest, source, (size_t)m->planes[i].head_dim * m->planes[i].elem_bits * (m->odd ? 8 : 1) / 8);
				}
	}
}

/* All of a run in one range: a transfer's list finds it in one section. */
static void in_one_range(const struct pool *p, uint64_t address, uint64_t stride, uint64_t count, uint64_t bytes)
{
	uint64_t end = address + (count - 1) * stride + bytes;
	uint32_t i = 0;

	while (i < p->share.nranges && (address < p->range[i].address || end > p->range[i].address + p->range[i].bytes))
		i++;
	assert_true(i < p->share.nranges);
}

static void run_all(const struct pool *a, const struct pool *b, const struct tn_pool_run *run, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		in_one_range(a, run[i].mine, run[i].mine_stride, run[i].count, run[i].bytes);
		in_one_range(b, run[i].theirs, run[i].theirs_stride, run[i].count, run[i].bytes);
		for (uint64_t k = 0; k < run[i].count; k++)
			memcpy((void *)(uintptr_t)(run[i].theirs + k * run[i].theirs_stride), (void *)(uintptr_t)(run[i].mine + k * run[i].mine_stride),
			       run[i].bytes);
	}
}

/* Most runs that are needed: one for each plane and pair of pages, or for each head or token where the page orders differ. */
static int64_t most_runs(const struct model *m, const struct pool *a, const struct pool *b)
{
	uint64_t pairs = a->npages + b->npages, each = 1, heads = heads_of(m, a->share.rank.tp_size);

	if (a->share.geometry.page_order != b->share.geometry.page_order || a->share.geometry.page_tokens != b->share.geometry.page_tokens)
		each = heads < 16 ? heads : 16;
	return (int64_t)(m->layers * m->nplanes * pairs * each);
}

static uint64_t digest(const struct pool *p)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < p->share.nranges; i++)
		sum = sum * 31 + tn_hash64(p->bytes[i], p->range[i].bytes);
	return sum;
}

static void fill_randomly(const struct pool *p, struct tn_rng *rng)
{
	for (uint32_t i = 0; i < p->share.nranges; i++)
		for (uint64_t k = 0; k < p->range[i].bytes; k++)
			p->bytes[i][k] = (unsigned char)tn_rng_next(rng);
}

static void save(const struct pool *p, unsigned char **copy)
{
	for (uint32_t i = 0; i < p->share.nranges; i++) {
		copy[i] = malloc(p->range[i].bytes);
		assert_non_null(copy[i]);
		memcpy(copy[i], p->bytes[i], p->range[i].bytes);
	}
}

static void compare_and_free(const struct pool *p, unsigned char **copy)
{
	for (uint32_t i = 0; i < p->share.nranges; i++) {
		assert_memory_equal(copy[i], p->bytes[i], p->range[i].bytes);
		free(copy[i]);
	}
}

static void runs_move_what_both_ranks_have_and_no_other_byte(void **state)
{
	static const uint32_t tps[] = {1, 2, 4, 8, 16};
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < ROUNDS; i++) {
		struct model m = random_model(&rng);
		uint32_t a_tp = tps[tn_rng_below(&rng, 5)], b_tp = tps[tn_rng_below(&rng, 5)];
		struct pool a, b;
		struct tn_pool_pages pages;
		unsigned char *by_runs[RANGES_MAX], *before[RANGES_MAX];
		uint64_t source;
		int64_t n;

		pool_make(&a, &m, &rng, a_tp, tn_rng_below(&rng, a_tp), 0);
		pool_make(&b, &m, &rng, b_tp, tn_rng_below(&rng, b_tp), 0xee);
		fill_randomly(&a, &rng);
		source = digest(&a);
		save(&b, before);
		pages = (struct tn_pool_pages){a.page, b.page, a.npages, b.npages, m.tokens};
		n = tn_pool_map(&a.share, &b.share, &pages, NULL, 0);
		tn_test_ended((int)(n < 0 ? n : 0));
		assert_in_range(n, 0, RUNS_MAX);
		assert_true(n <= most_runs(&m, &a, &b));
		assert_int_equal(tn_pool_map(&a.share, &b.share, &pages, runs, RUNS_MAX), n);
		run_all(&a, &b, runs, n);
		save(&b, by_runs);
		for (uint32_t k = 0; k < b.share.nranges; k++) {
			memcpy(b.bytes[k], before[k], b.range[k].bytes);
			free(before[k]);
		}
		copy_plainly(&m, &a, &b);
		compare_and_free(&b, by_runs);
		assert_int_equal(digest(&a), source);
		pool_free(&a);
		pool_free(&b);
	}
}

/* A pool as vLLM has it: pages of 16 tokens, a region for each layer. */
static void serving_pool(struct pool *p, uint32_t tp, uint32_t rank, uint32_t order, uint32_t npages)
{
	struct tn_geometry g = {.layers = 2, .page_tokens = 16, .pages_per_block = 1, .page_order = order, .nplanes = 2,
				.planes = {{TN_PLANE_K, 8 / tp, 128, 16}, {TN_PLANE_V, 8 / tp, 128, 16}}};
	struct tn_pool_shape shape = {TN_POOL_PLANES_PAGES, 0, npages};

	*p = (struct pool){.share.rank = {tp, rank, 8}, .npages = npages};
	pool_memory(p, &g, &shape, false, 0);
	p->share.geometry = g;
	for (uint32_t i = 0; i < npages && i < PAGES_MAX; i++)
		p->page[i] = i;
}

static int64_t count_runs(const struct pool *a, const struct pool *b, uint64_t tokens)
{
	struct tn_pool_pages pages = {a->page, b->page, a->npages, b->npages, tokens};

	return tn_pool_map(&a->share, &b->share, &pages, runs, RUNS_MAX);
}

static void lists_are_as_short_as_the_layouts_allow(void **state)
{
	struct pool four, eight, other;

	serving_pool(&four, 4, 1, TN_PAGE_NHD, 32);
	serving_pool(&eight, 8, 3, TN_PAGE_NHD, 32);
	/* Consecutive pages: one run for each layer, of one head per token, as V follows K on both sides. */
	assert_int_equal(count_runs(&four, &eight, 512), 2);
	assert_int_equal(runs[0].count, 2 * 512);
	assert_int_equal(runs[0].bytes, 256);
	assert_int_equal(runs[0].mine_stride, 512);
	assert_int_equal(runs[0].theirs_stride, 256);
	assert_int_equal(runs[0].mine - four.range[0].address, 256); /* head 3 is the second one of rank 1 of 4 */
	/* A rank with other heads has nothing in common. */
	serving_pool(&other, 8, 4, TN_PAGE_NHD, 32);
	assert_int_equal(count_runs(&four, &other, 512), 0);
	pool_free(&other);
	/* Equal ranks: pages as they are. */
	serving_pool(&other, 4, 1, TN_PAGE_NHD, 32);
	assert_int_equal(count_runs(&four, &other, 512), 2);
	assert_int_equal(runs[0].bytes, 16 * 2 * 256);
	pool_free(&other);
	/* The other order within a page: a run for each head and page, or better. */
	serving_pool(&other, 4, 1, TN_PAGE_HND, 32);
	assert_in_range(count_runs(&four, &other, 512), 1, 2 * 2 * 2 * 32);
	pool_free(&other);
	pool_free(&four);
	pool_free(&eight);
}

static void a_share_survives_as_bytes(void **state)
{
	struct tn_rng rng;
	unsigned char bytes[4096];
	uint64_t table[256];

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 100; i++) {
		struct model m = random_model(&rng);
		struct tn_pool_share back;
		struct pool p;
		int64_t n, words;

		pool_make(&p, &m, &rng, 4, tn_rng_below(&rng, 4), 0);
		n = tn_pool_share_store(&p.share, NULL, 0);
		assert_in_range(n, 1, sizeof(bytes));
		assert_int_equal(tn_pool_share_store(&p.share, bytes, (size_t)n), n);
		words = tn_pool_share_load(bytes, (size_t)n, &back, NULL, 0);
		assert_int_equal(words, m.layers * m.nplanes + 2 * p.share.nranges);
		assert_int_equal(tn_pool_share_load(bytes, (size_t)n, &back, table, 256), words);
		assert_memory_equal(&back.geometry, &p.share.geometry, sizeof(back.geometry));
		assert_memory_equal(back.layout.base, p.base, m.layers * m.nplanes * sizeof(*p.base));
		assert_memory_equal(back.layout.stride, p.share.layout.stride, m.nplanes * sizeof(uint64_t));
		assert_memory_equal(back.range, p.range, p.share.nranges * sizeof(*p.range));
		assert_memory_equal(&back.rank, &p.share.rank, sizeof(back.rank));
		assert_int_equal(back.layout.npages, p.share.layout.npages);
		for (uint32_t k = 0; k < 20; k++) {
			size_t at = tn_rng_below(&rng, (uint32_t)n);

			bytes[at] ^= (unsigned char)(1u << tn_rng_below(&rng, 8));
			assert_true(tn_pool_share_load(bytes, (size_t)n, &back, table, 256) < 0);
			assert_int_equal(tn_pool_share_load(bytes, at, &back, table, 256), -EBADMSG);
			tn_pool_share_store(&p.share, bytes, sizeof(bytes));
		}
		bytes[8] = 2;
		assert_int_equal(tn_pool_share_load(bytes, (size_t)n, &back, table, 256), -EPROTONOSUPPORT);
		pool_free(&p);
	}
}

/* A call that is refused, and says which value it was. */
static void refused(int64_t rc, const char *text)
{
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, text));
}

static void shares_that_make_no_sense_are_named(void **state)
{
	struct tn_pool_share s;
	uint64_t base[4];
	struct pool p;

	serving_pool(&p, 4, 1, TN_PAGE_NHD, 4);
	s = p.share;
	s.rank.tp_rank = 4;
	refused(tn_pool_share_check(&s), "tp_rank 4 of tp_size 4");
	s = p.share;
	s.rank.kv_heads = 6;
	refused(tn_pool_share_check(&s), "kv_heads 6 over tp_size 4");
	s.rank.kv_heads = 16;
	refused(tn_pool_share_check(&s), "plane 0 has 2 heads");
	s = p.share;
	s.nranges = 0;
	refused(tn_pool_share_check(&s), "0 ranges");
	s = p.share;
	s.memory = TN_MEMORY_FD;
	refused(tn_pool_share_check(&s), "memory 1");
	s = p.share;
	s.layout.npages++;
	refused(tn_pool_share_check(&s), "layer 0, plane 1: 5 pages");
	s = p.share;
	memcpy(base, p.base, sizeof(base));
	base[3] = UINT64_MAX;
	s.layout.base = base;
	refused(tn_pool_share_check(&s), "layer 1, plane 1");
	s = p.share;
	s.layout.stride[1] = 1;
	refused(tn_pool_share_check(&s), "a stride of 1 bytes");
	pool_free(&p);
}

static void pools_of_different_models_are_refused(void **state)
{
	struct pool a, b;

	serving_pool(&a, 4, 1, TN_PAGE_NHD, 4);
	serving_pool(&b, 8, 3, TN_PAGE_NHD, 4);
	refused(count_runs(&a, &b, 65), "my list has 4 pages");
	b.npages = 3;
	refused(count_runs(&a, &b, 64), "their list has 3 pages");
	b.npages = 4;
	b.page[2] = 4;
	refused(count_runs(&a, &b, 64), "entry 2 of their list is page 4");
	b.page[2] = 2;
	b.share.geometry.planes[1].head_dim = 64;
	refused(count_runs(&a, &b, 64), "plane 1 has 128 elements");
	b.share.geometry.planes[1] = b.share.geometry.planes[0];
	refused(count_runs(&a, &b, 64), "the other pool has no such plane");
	b.share.geometry.layers = 1;
	refused(count_runs(&a, &b, 64), "2 layers of 2 planes and 1 layers");
	pool_free(&a);
	pool_free(&b);
}

static void what_cannot_be_cut_by_heads_is_refused(void **state)
{
	struct pool a, b;

	serving_pool(&a, 4, 1, TN_PAGE_NHD, 4);
	serving_pool(&b, 4, 1, TN_PAGE_NHD, 4);
	a.share.geometry.planes[0] = b.share.geometry.planes[0] = (struct tn_plane){TN_PLANE_STATE, 2, 128, 16};
	assert_in_range(count_runs(&a, &b, 64), 1, 4);
	refused(count_runs(&a, &b, 60), "plane 0 holds recurrent state");
	b.share.rank.tp_rank = 2;
	refused(count_runs(&a, &b, 64), "equal ranks");
	b.share.rank.tp_rank = 1;
	a.share.geometry.planes[0] = b.share.geometry.planes[0] = (struct tn_plane){TN_PLANE_K, 2, 3, 4};
	assert_in_range(count_runs(&a, &b, 64), 1, 4);
	b.share.geometry.page_order = TN_PAGE_HND;
	refused(count_runs(&a, &b, 64), "3 elements of 4 bits");
	pool_free(&a);
	pool_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(runs_move_what_both_ranks_have_and_no_other_byte),
		cmocka_unit_test(lists_are_as_short_as_the_layouts_allow),
		cmocka_unit_test(a_share_survives_as_bytes),
		cmocka_unit_test(shares_that_make_no_sense_are_named),
		cmocka_unit_test(pools_of_different_models_are_refused),
		cmocka_unit_test(what_cannot_be_cut_by_heads_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
