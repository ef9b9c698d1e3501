/* SPDX-License-Identifier: Apache-2.0 */
/* Head groups: which ranks can share them, and that ranks of each size see the same bytes as the same object. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/heads.h>

#include "base/rng.h"
#include "layout/layout.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

static struct tn_geometry share_of(uint32_t heads)
{
	return (struct tn_geometry){.layers = 2, .page_tokens = 4, .pages_per_block = 3, .page_order = TN_PAGE_HND, .nplanes = 2,
				    .planes = {{TN_PLANE_K, heads, 8, 16}, {TN_PLANE_V, heads, 8, 16}}};
}

static uint32_t heads_of(uint32_t kv_heads, uint32_t tp_size)
{
	return kv_heads > tp_size ? kv_heads / tp_size : 1;
}

static void a_group_is_the_smallest_share_of_any_size(void **state)
{
	static const struct {
		uint32_t kv_heads, tp_size, tp_rank, most;
		struct tn_head_groups want; /* heads, total, first, count, replica */
	} row[] = {
		{8, 1, 0, 0, {1, 8, 0, 8, 0}},
		{8, 2, 1, 0, {1, 8, 4, 4, 0}},
		{8, 8, 5, 8, {1, 8, 5, 1, 0}},
		{8, 2, 1, 4, {2, 4, 2, 2, 0}},
		{32, 4, 3, 8, {4, 8, 6, 2, 0}},
		{2, 1, 0, 8, {1, 2, 0, 2, 0}},
		{2, 8, 5, 8, {1, 2, 1, 1, 1}}, /* four ranks have each head: the second of the second */
		{1, 8, 3, 8, {1, 1, 0, 1, 3}},
		{6, 2, 1, 8, {3, 2, 1, 1, 0}},
		{6, 3, 2, 6, {1, 6, 4, 2, 0}},
		{5, 1, 0, 8, {5, 1, 0, 1, 0}}, /* no other size divides them */
		{40, 8, 7, 8, {5, 8, 7, 1, 0}},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct tn_geometry g = share_of(heads_of(row[i].kv_heads, row[i].tp_size)), d;
		struct tn_rank_heads rank = {row[i].tp_size, row[i].tp_rank, row[i].kv_heads};
		struct tn_head_groups h;

		assert_int_equal(tn_head_groups_of(&g, &rank, row[i].most, &h), 0);
		if (memcmp(&h, &row[i].want, sizeof(h)) != 0)
			fail_msg("row %zu: heads %u, total %u, first %u, count %u, replica %u", i, h.heads, h.total, h.first, h.count, h.replica);
		assert_int_equal(tn_head_group_geometry(&g, &h, &d), 0);
		assert_int_equal(d.planes[1].heads, row[i].want.heads);
	}
}

static void latents_are_one_group_that_every_rank_has(void **state)
{
	struct tn_geometry g = share_of(1), d;
	struct tn_pool_layout layout = {.npages = 7, .base = (uint64_t[2]){1000, 2000}, .stride = {100}}, view;
	struct tn_head_groups h;
	uint32_t pages[2] = {3, 5}, out[2];
	uint64_t base[2];

	g.nplanes = 1;
	g.page_order = TN_PAGE_NHD;
	g.planes[0].kind = TN_PLANE_LATENT;
	assert_int_equal(tn_head_groups_of(&g, &(struct tn_rank_heads){.tp_size = 4, .tp_rank = 3}, 8, &h), 0);
	assert_memory_equal(&h, (&(struct tn_head_groups){1, 1, 0, 1, 3}), sizeof(h));
	assert_int_equal(tn_head_group_geometry(&g, &h, &d), 0);
	assert_memory_equal(&d, &g, sizeof(g));
	assert_int_equal(tn_head_group_layout(&g, &layout, &h, 0, base, &view), 0);
	assert_int_equal(view.stride[0], 100);
	assert_int_equal(view.npages, 7);
	assert_memory_equal(base, (&(uint64_t[2]){1000, 2000}), sizeof(base));
	assert_int_equal(tn_head_group_pages(&g, pages, 2, out, 2), 2);
	assert_memory_equal(out, pages, sizeof(out));
}

/* The text of the last error has both. */
static void assert_said(int rc, const char *value, const char *what_to_do)
{
	assert_int_equal(rc, -EINVAL);
	if (!strstr(tn_error_last()->text, value) || !strstr(tn_error_last()->text, what_to_do))
		fail_msg("'%s' has no '%s' or no '%s'", tn_error_last()->text, value, what_to_do);
}

static void heads_that_no_group_fits_are_refused_with_what_to_do(void **state)
{
	struct tn_pool_layout layout = {.npages = 2, .base = (uint64_t[4]){0}, .stride = {1000, 1000}}, view;
	struct tn_geometry g = share_of(1);
	struct tn_head_groups h = {0};
	uint64_t base[4];

	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){2, 0, 3}, 8, &h), "kv_heads 3 over tp_size 2", "one must divide the other");
	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){3, 0, 3}, 8, &h), "kv_heads 3 over tp_size 3", "give a most_tp that 3 divides");
	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){2, 0, 8}, 8, &h), "plane 0 has 1 heads", "make 4 per rank");
	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){2, 2, 8}, 8, &h), "tp_rank 2 of tp_size 2", "below the size");
	assert_int_equal(h.total, 0);
	g = share_of(2);
	assert_int_equal(tn_head_groups_of(&g, &(struct tn_rank_heads){1, 0, 2}, 8, &h), 0);
	assert_int_equal(tn_head_group_layout(&g, &layout, &h, 1, base, &view), 0);
	assert_said(tn_head_group_layout(&g, &layout, &h, 2, base, &view), "head group 2", "the rank has 2");
	g.page_order = TN_PAGE_NHD;
	assert_said(tn_head_group_layout(&g, &layout, &h, 1, base, &view), "1000 bytes", "TN_PAGE_HND");
	g.page_order = TN_PAGE_HND;
	g.planes[1].kind = TN_PLANE_LATENT;
	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){1, 0, 2}, 8, &h), "1 planes of latents", "a space of its own");
	g.planes[1].kind = TN_PLANE_STATE;
	assert_said(tn_head_groups_of(&g, &(struct tn_rank_heads){1, 0, 2}, 8, &h), "recurrent state", "by rank");
	g = share_of(2);
	g.page_tokens = 1, g.planes[0].head_dim = 1, g.planes[0].elem_bits = 4;
	assert_int_equal(tn_head_groups_of(&g, &(struct tn_rank_heads){1, 0, 2}, 8, &h), 0);
	assert_said(tn_head_group_geometry(&g, &h, &g), "1 elements of 4 bits", "no whole bytes");
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* A rank's pool, each byte of which follows from where it belongs in the model. */
struct rank {
	struct tn_geometry g;
	struct tn_head_groups h;
	struct tn_pool_layout layout;
	uint64_t base[64];
	unsigned char *memory;
};

static unsigned char byte_of(uint32_t layer, uint32_t plane, uint32_t head, uint32_t token, uint32_t byte)
{
	uint64_t at = ((((uint64_t)layer * 8 + plane) * 64 + head) * 512 + token) * 256 + byte;

	return (unsigned char)(at * 0x9e3779b97f4a7c15u >> 56);
}

/* Where a byte of a head lies in the page: the definition of both orders. */
static uint64_t in_page(const struct tn_geometry *g, uint32_t plane, uint32_t head, uint32_t token, uint32_t byte)
{
	const struct tn_plane *p = &g->planes[plane];
	uint64_t row = p->head_dim * p->elem_bits / 8;
	uint64_t rows = g->page_order == TN_PAGE_NHD ? (uint64_t)token * p->heads + head : (uint64_t)head * g->page_tokens + token;

	return rows * row + byte;
}

/* Block b lies in the pages from b * pages_per_block on, the last ones first. */
static uint32_t page_of(const struct tn_geometry *g, uint32_t page)
{
	return 2 * g->pages_per_block - 1 - page;
}

static void rank_open(struct rank *r, const struct tn_geometry *model, const struct tn_rank_heads *heads, uint32_t order)
{
	struct tn_pool_shape shape = {.order = order, .npages = 2 * model->pages_per_block};
	uint64_t bytes;
	uint32_t regions;

	*r = (struct rank){.g = *model};
	for (uint32_t p = 0; p < r->g.nplanes; p++)
		r->g.planes[p].heads = heads_of(heads->kv_heads, heads->tp_size);
	assert_int_equal(tn_head_groups_of(&r->g, heads, 8, &r->h), 0);
	assert_int_equal(tn_layout_regions(&r->g, &shape, &regions, &bytes), 0);
	assert_int_equal(tn_layout_fill(&r->g, &shape, NULL, r->base, &r->layout), 0);
	r->memory = calloc(regions, bytes);
	assert_non_null(r->memory);
	for (uint32_t layer = 0; layer < r->g.layers; layer++)
		for (uint32_t p = 0; p < r->g.nplanes; p++)
			for (uint32_t head = 0; head < r->g.planes[p].heads; head++)
				for (uint32_t token = 0; token < 2 * tn_geometry_block_tokens(&r->g); token++)
					for (uint32_t b = 0; b < r->g.planes[p].head_dim * r->g.planes[p].elem_bits / 8; b++)
						r->memory[tn_layout_offset(&r->layout, &r->g, layer, p, page_of(&r->g, token / r->g.page_tokens)) +
							  in_page(&r->g, p, head, token % r->g.page_tokens, b)] =
							byte_of(layer, p, r->h.first * r->h.heads + head, token, b);
}

/* The object of a layer of block 1 of a group, as a cache reads it from the pool. */
static size_t object_of(const struct rank *r, uint32_t group, uint32_t layer, unsigned char *out)
{
	struct tn_pool_layout view;
	struct tn_geometry d;
	uint32_t pages[64], mine[1024], n;
	uint64_t base[64];
	size_t at = 0;

	for (uint32_t i = 0; i < r->g.pages_per_block; i++)
		pages[i] = page_of(&r->g, r->g.pages_per_block + i);
	assert_int_equal(tn_head_group_geometry(&r->g, &r->h, &d), 0);
	assert_int_equal(tn_head_group_layout(&r->g, &r->layout, &r->h, group - r->h.first, base, &view), 0);
	n = (uint32_t)tn_head_group_pages(&r->g, pages, r->g.pages_per_block, mine, 1024);
	assert_int_equal(n, d.pages_per_block);
	for (uint32_t p = 0; p < d.nplanes; p++) {
		for (uint32_t i = 0; i < n; i++) {
			assert_true(mine[i] < view.npages);
			memcpy(out + at, r->memory + tn_layout_offset(&view, &d, layer, p, mine[i]), tn_geometry_page_bytes(&d, p));
			at += tn_geometry_page_bytes(&d, p);
		}
	}
	return at;
}

static struct tn_geometry random_model(struct tn_rng *rng)
{
	struct tn_geometry g = tn_test_geometry(rng);

	for (uint32_t p = 0; p < g.nplanes; p++)
		g.planes[p].kind = p % 2 ? TN_PLANE_V : TN_PLANE_K;
	return g;
}

/* An order of pools in which groups of that page order can be viewed. */
static uint32_t any_order(struct tn_rng *rng, const struct tn_geometry *g)
{
	if (g->page_order == TN_PAGE_HND)
		return tn_rng_below(rng, TN_POOL_CROSS_LAYER + 1);
	return tn_rng_below(rng, 2) ? TN_POOL_PLANES_PAGES : TN_POOL_PLANE_REGION;
}

static void ranks_of_each_size_have_the_same_objects(void **state)
{
	static unsigned char first[1 << 20], other[1 << 20];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < tn_test_cases(30); i++) {
		const uint32_t kv_heads = 1u << tn_rng_below(&rng, 5);
		struct tn_geometry model = random_model(&rng);
		struct rank whole, r;

		rank_open(&whole, &model, &(struct tn_rank_heads){1, 0, kv_heads}, any_order(&rng, &model));
		for (uint32_t tp = 1; tp <= 8; tp *= 2) {
			for (uint32_t rank = 0; rank < tp; rank++) {
				rank_open(&r, &model, &(struct tn_rank_heads){tp, rank, kv_heads}, any_order(&rng, &model));
				for (uint32_t group = r.h.first; group < r.h.first + r.h.count; group++) {
					uint32_t layer = tn_rng_below(&rng, model.layers);
					size_t n = object_of(&whole, group, layer, first);

					assert_int_equal(object_of(&r, group, layer, other), n);
					assert_memory_equal(first, other, n);
				}
				free(r.memory);
			}
		}
		free(whole.memory);
	}
}

/* So that nobody who claims pages of one group has to look at the others'. */
static void views_of_two_groups_share_no_bytes(void **state)
{
	const struct tn_mapped_range range = {.bytes = 1 << 20, .address = (void *)64};
	const struct tn_mapping memory = {.range = &range, .nranges = 1};
	const struct tn_geometry model = share_of(4);

	for (uint32_t order = TN_POOL_PLANES_PAGES; order <= TN_POOL_CROSS_LAYER; order++) {
		struct tn_layout layout[2];
		uint64_t base[2][64], table[2][64];
		struct tn_overlap overlap;
		struct rank r;

		rank_open(&r, &model, &(struct tn_rank_heads){1, 0, 4}, order);
		for (uint32_t i = 0; i < 2; i++) {
			struct tn_pool_layout view;
			struct tn_geometry d;

			assert_int_equal(tn_head_group_geometry(&r.g, &r.h, &d), 0);
			assert_int_equal(tn_head_group_layout(&r.g, &r.layout, &r.h, 1 + i, base[i], &view), 0);
			assert_int_equal(tn_layout_init(&d, &view, &memory, table[i], &layout[i]), 0);
		}
		tn_overlap_init(&overlap, &layout[0], &layout[1]);
		assert_int_equal(overlap.nways, 0);
		free(r.memory);
	}
}

/* What an object is, by itself: of one head its tokens, one after the other. */
static void the_object_of_one_head_has_its_tokens_one_after_the_other(void **state)
{
	static unsigned char object[1 << 16];

	for (uint32_t order = TN_PAGE_NHD; order <= TN_PAGE_HND; order++) {
		struct tn_geometry model = share_of(4);
		const unsigned char *at = object;
		struct rank r;

		model.page_order = order;
		rank_open(&r, &model, &(struct tn_rank_heads){2, 1, 4}, TN_POOL_PLANES_PAGES);
		assert_int_equal(r.h.heads, 1);
		object_of(&r, 3, 1, object);
		for (uint32_t p = 0; p < 2; p++)
			for (uint32_t token = 12; token < 24; token++) /* of block 1 */
				for (uint32_t b = 0; b < 16; b++)
					assert_int_equal(*at++, byte_of(1, p, 3, token, b));
		free(r.memory);
	}
}

/* The heads of a token have whole bytes together. */
static void a_head_of_half_bytes_is_as_far_from_the_next_token_as_its_token(void **state)
{
	struct tn_geometry model = {.layers = 1, .nplanes = 1, .page_tokens = 16, .pages_per_block = 1, .page_order = TN_PAGE_NHD,
				    .planes = {{.kind = TN_PLANE_K, .heads = 6, .head_dim = 3, .elem_bits = 4}}};
	uint64_t base = 0, moved;
	struct tn_pool_layout layout = {.base = &base, .npages = 8, .stride = {16 * 9}}, view;
	struct tn_head_groups h;

	assert_int_equal(tn_head_groups_of(&model, &(struct tn_rank_heads){1, 0, 6}, 1, &h), 0);
	assert_int_equal(h.total, 1);
	assert_int_equal(tn_head_group_layout(&model, &layout, &h, 0, &moved, &view), 0);
	assert_int_equal(view.stride[0], 9);
	assert_int_equal(view.npages, 8 * 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_group_is_the_smallest_share_of_any_size),
		cmocka_unit_test(latents_are_one_group_that_every_rank_has),
		cmocka_unit_test(heads_that_no_group_fits_are_refused_with_what_to_do),
		cmocka_unit_test(ranks_of_each_size_have_the_same_objects),
		cmocka_unit_test(views_of_two_groups_share_no_bytes),
		cmocka_unit_test(a_head_of_half_bytes_is_as_far_from_the_next_token_as_its_token),
		cmocka_unit_test(the_object_of_one_head_has_its_tokens_one_after_the_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
