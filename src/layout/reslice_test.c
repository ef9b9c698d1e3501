/* SPDX-License-Identifier: Apache-2.0 */
/* Re-slicing: each destination byte exactly once, from the head it belongs to, and back again. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "lab/models.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

#define TP_MAX 16u

static const uint32_t tp_pairs[][2] = {{4, 8}, {8, 4}, {2, 1}, {1, 2}, {1, 8}, {8, 1}, {3, 3}, {2, 16}, {3, 6}};

/* A geometry of one of src_tp shards that can be cut for dst_tp. */
static struct tn_geometry random_shard(struct tn_rng *rng, uint32_t src_tp, uint32_t dst_tp)
{
	struct tn_geometry g = tn_test_geometry(rng);
	uint32_t heads = 1 + tn_rng_below(rng, 3);

	if (dst_tp > src_tp)
		heads *= dst_tp / src_tp;
	for (uint32_t i = 0; i < g.nplanes; i++) {
		if (g.planes[i].kind == TN_PLANE_LATENT || g.planes[i].kind == TN_PLANE_STATE)
			g.planes[i].kind = TN_PLANE_V;
		g.planes[i].heads = heads;
	}
	return g;
}

/*
 * The value of each element follows from where it belongs in the model (head over all shards), so both
 * sides can be written independently of any plan. 4-bit elements go in pairs.
 */
static void fill_object(const struct tn_geometry *g, uint32_t rank, unsigned char *at)
{
	for (uint32_t p = 0; p < g->nplanes; p++) {
		uint32_t heads = g->planes[p].heads, row = g->planes[p].head_dim * g->planes[p].elem_bits / 8;
		uint32_t outer = g->page_order == TN_PAGE_NHD ? g->page_tokens : heads;
		uint32_t inner = g->page_order == TN_PAGE_NHD ? heads : g->page_tokens;

		for (uint32_t page = 0; page < g->pages_per_block; page++) {
			for (uint32_t o = 0; o < outer; o++) {
				for (uint32_t n = 0; n < inner; n++) {
					uint32_t token = g->page_order == TN_PAGE_NHD ? o : n;
					uint64_t head = (uint64_t)rank * heads + (g->page_order == TN_PAGE_NHD ? n : o);
					struct tn_rng rng;

					tn_rng_seed(&rng, ((head * 64 + page) * 64 + token) * 8 + p);
					for (uint32_t b = 0; b < row; b++)
						*at++ = (unsigned char)tn_rng_next(&rng);
				}
			}
		}
	}
}

struct shards {
	struct tn_geometry g;
	uint32_t n, bytes;
	void *object[TP_MAX];
};

static void shards_make(struct shards *s, const struct tn_geometry *g, uint32_t n, bool filled)
{
	s->g = *g;
	s->n = n;
	s->bytes = tn_geometry_object_bytes(g);
	for (uint32_t r = 0; r < n; r++) {
		s->object[r] = calloc(1, s->bytes);
		assert_non_null(s->object[r]);
		if (filled)
			fill_object(g, r, s->object[r]);
	}
}

static void shards_free(struct shards *s)
{
	for (uint32_t r = 0; r < s->n; r++)
		free(s->object[r]);
}

/* Makes, checks and carries out the plans for all ranks of dst. */
static void reslice(const struct shards *src, struct shards *dst)
{
	for (uint32_t rank = 0; rank < dst->n; rank++) {
		long n = tn_reslice_plan(&src->g, src->n, dst->n, rank, NULL, 0);
		uint64_t at = 0;
		struct tn_copy *plan;

		assert_true(n > 0);
		plan = calloc((size_t)n, sizeof(*plan));
		assert_non_null(plan);
		assert_int_equal(tn_reslice_plan(&src->g, src->n, dst->n, rank, plan, (size_t)n), n);
		for (long i = 0; i < n; i++) {
			/* rising, without gap or overlap, is: each byte exactly once */
			assert_int_equal(plan[i].dst_offset, at);
			assert_true(plan[i].length > 0);
			assert_true(plan[i].src < src->n);
			assert_true(plan[i].src_offset + plan[i].length <= src->bytes);
			if (i > 0) /* else they would have been merged */
				assert_true(plan[i].src != plan[i - 1].src ||
					    plan[i].src_offset != plan[i - 1].src_offset + plan[i - 1].length);
			at += plan[i].length;
		}
		assert_int_equal(at, dst->bytes);
		tn_reslice_run(plan, (size_t)n, (const void *const *)src->object, dst->object[rank]);
		free(plan);
	}
}

static void every_destination_byte_comes_once_and_from_its_head(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 100; i++) {
		const uint32_t *tp = tp_pairs[(size_t)i % (sizeof(tp_pairs) / sizeof(tp_pairs[0]))];
		struct tn_geometry g = random_shard(&rng, tp[0], tp[1]), d;
		struct shards src, dst, want;

		assert_int_equal(tn_reslice_geometry(&g, tp[0], tp[1], &d), 0);
		shards_make(&src, &g, tp[0], true);
		shards_make(&dst, &d, tp[1], false);
		shards_make(&want, &d, tp[1], true);
		assert_int_equal((uint64_t)src.n * src.bytes, (uint64_t)dst.n * dst.bytes);
		reslice(&src, &dst);
		for (uint32_t r = 0; r < dst.n; r++)
			assert_memory_equal(dst.object[r], want.object[r], dst.bytes);
		shards_free(&src);
		shards_free(&dst);
		shards_free(&want);
	}
}

static void four_to_eight_and_back_is_identity(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < 40; i++) {
		struct tn_geometry g = random_shard(&rng, 4, 8), d, back;
		struct shards four, eight, again;

		assert_int_equal(tn_reslice_geometry(&g, 4, 8, &d), 0);
		assert_int_equal(tn_reslice_geometry(&d, 8, 4, &back), 0);
		assert_memory_equal(&g, &back, sizeof(g));
		shards_make(&four, &g, 4, false);
		for (uint32_t r = 0; r < 4; r++)
			for (uint32_t b = 0; b < four.bytes; b++)
				((unsigned char *)four.object[r])[b] = (unsigned char)tn_rng_next(&rng);
		shards_make(&eight, &d, 8, false);
		shards_make(&again, &g, 4, false);
		reslice(&four, &eight);
		reslice(&eight, &again);
		for (uint32_t r = 0; r < 4; r++)
			assert_memory_equal(four.object[r], again.object[r], four.bytes);
		shards_free(&four);
		shards_free(&eight);
		shards_free(&again);
	}
}

static struct tn_geometry llama_tp(uint32_t tp, uint32_t order)
{
	struct tn_geometry g;

	assert_int_equal(tn_model_find("llama3-8b", &g), 0);
	g.planes[0].heads = g.planes[1].heads = 8 / tp;
	g.page_order = order;
	return g;
}

static void plans_are_as_short_as_the_order_allows(void **state)
{
	struct tn_geometry g = llama_tp(4, TN_PAGE_HND);
	const long pages = g.pages_per_block;
	struct tn_copy plan[2];

	/* HND: a page's heads lie together, so one copy a plane and page (and source) */
	assert_int_equal(tn_reslice_plan(&g, 4, 8, 5, NULL, 0), 2 * pages);
	assert_int_equal(tn_reslice_plan(&g, 4, 2, 1, NULL, 0), 2 * pages * 2);
	/* NHD: one per token */
	g.page_order = TN_PAGE_NHD;
	assert_int_equal(tn_reslice_plan(&g, 4, 8, 5, NULL, 0), 2 * pages * 16);
	/* the same TP: one copy of everything */
	assert_int_equal(tn_reslice_plan(&g, 4, 4, 2, plan, 2), 1);
	assert_int_equal(plan[0].src, 2);
	assert_int_equal(plan[0].length, tn_geometry_object_bytes(&g));
}

static void nothing_is_written_beyond_the_room_given(void **state)
{
	struct tn_geometry g = llama_tp(4, TN_PAGE_NHD);
	struct tn_copy plan[3] = {{0}}, guard = {77, 77, 77, 77};

	plan[2] = guard;
	assert_true(tn_reslice_plan(&g, 4, 8, 0, plan, 2) > 2);
	assert_true(plan[1].length > 0);
	assert_memory_equal(&plan[2], &guard, sizeof(guard));
}

static void what_cannot_be_cut_whole_is_refused(void **state)
{
	struct tn_geometry g = llama_tp(4, TN_PAGE_NHD), out = {.layers = 7};

	assert_int_equal(tn_reslice_plan(&g, 0, 8, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_reslice_plan(&g, 4, 0, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_reslice_plan(&g, 4, 6, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_reslice_plan(&g, 4, 8, 8, NULL, 0), -EINVAL);
	assert_int_equal(tn_reslice_plan(&g, 4, 8, UINT32_MAX, NULL, 0), -EINVAL);
	assert_int_equal(tn_reslice_plan(&g, 4, 16, 0, NULL, 0), -EINVAL); /* half a head */
	assert_non_null(strstr(tn_error_last()->text, "2 heads on each of 4 shards"));
	assert_int_equal(tn_reslice_geometry(&g, UINT32_C(1) << 31, 1, &out), -EOVERFLOW);
	assert_int_equal(tn_reslice_geometry(&g, UINT32_C(1) << 20, 1, &out), -EOVERFLOW);
	g.planes[1].heads = 4;
	assert_int_equal(tn_reslice_geometry(&g, 4, 2, &out), -EINVAL);
	g = llama_tp(4, TN_PAGE_NHD);
	g.planes[1].kind = TN_PLANE_STATE;
	assert_int_equal(tn_reslice_geometry(&g, 4, 2, &out), -EINVAL);
	g = llama_tp(4, TN_PAGE_NHD);
	g.planes[0] = (struct tn_plane){TN_PLANE_K, 2, 3, 4}; /* a token of 12 bits per head */
	g.planes[1] = g.planes[0];
	assert_int_equal(tn_reslice_geometry(&g, 4, 2, &out), -EINVAL);
	g.page_order = TN_PAGE_HND; /* 16 tokens of a head are whole bytes */
	assert_int_equal(tn_reslice_geometry(&g, 4, 2, &out), 0);
	out.layers = 7;
	assert_int_equal(tn_model_find("deepseek-v3", &g), 0);
	assert_int_equal(tn_reslice_geometry(&g, 1, 2, &out), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "stored once"));
	assert_int_equal(out.layers, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_destination_byte_comes_once_and_from_its_head),
		cmocka_unit_test(four_to_eight_and_back_is_identity),
		cmocka_unit_test(plans_are_as_short_as_the_order_allows),
		cmocka_unit_test(nothing_is_written_beyond_the_room_given),
		cmocka_unit_test(what_cannot_be_cut_whole_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
