/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of two layouts over one memory, against an owner per byte. */
#include "layout/layout.h"

#include <string.h>

#include "base/rng.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

#define MEMORY (1u << 20)
#define PAGES_MAX 64u

struct pool {
	struct tn_layout l;
	uint64_t base[5 * 5];
	uint64_t table[5 * 5];
};

/* At whatever place of the memory, which has no address. */
static bool pool_make(struct pool *p, struct tn_rng *rng, const struct tn_geometry *g, const struct tn_pool_shape *shape,
		      uint64_t first)
{
	const struct tn_mapped_range range = {.bytes = MEMORY};
	const struct tn_mapping memory = {.range = &range, .nranges = 1};
	uint64_t each, regions[5 * 5];
	struct tn_pool_layout layout;
	uint32_t n;

	assert_int_equal(tn_layout_regions(g, shape, &n, &each), 0);
	for (uint32_t i = 0; i < n; i++)
		regions[i] = first + i * each;
	assert_int_equal(tn_layout_fill(g, shape, regions, p->base, &layout), 0);
	return tn_layout_init(g, &layout, &memory, p->table, &p->l) == 0;
}

/* By byte of the memory: which pages of the pool have it (one at most). */
static void own(const struct pool *p, int16_t *owner)
{
	memset(owner, 0xff, MEMORY * sizeof(*owner));
	for (uint32_t layer = 0; layer < p->l.geometry.layers; layer++)
		for (uint32_t plane = 0; plane < p->l.geometry.nplanes; plane++)
			for (uint64_t page = 0; page < p->l.npages; page++) {
				uint64_t at = p->l.base[layer * p->l.geometry.nplanes + plane] + page * p->l.stride[plane];

				for (uint32_t i = 0; i < p->l.page_bytes[plane]; i++) {
					assert_int_equal(owner[at + i], -1);
					owner[at + i] = (int16_t)page;
				}
			}
}

static bool note(void *arg, uint64_t first, uint64_t end)
{
	assert_true(end <= PAGES_MAX);
	for (uint64_t i = first; i < end; i++)
		((bool *)arg)[i] = true;
	return false;
}

static uint32_t compare(const struct pool *a, const struct pool *b)
{
	static int16_t owner[2][MEMORY];
	static bool want[PAGES_MAX][PAGES_MAX], got[PAGES_MAX];
	struct tn_overlap o;
	uint32_t n = 0;

	own(a, owner[0]);
	own(b, owner[1]);
	memset(want, 0, sizeof(want));
	for (uint32_t i = 0; i < MEMORY; i++)
		if (owner[0][i] >= 0 && owner[1][i] >= 0)
			want[owner[0][i]][owner[1][i]] = true;
	tn_overlap_init(&o, &a->l, &b->l);
	for (uint64_t page = 0; page < a->l.npages; page++) {
		memset(got, 0, sizeof(got));
		assert_false(tn_overlap_any(&o, page, note, got));
		assert_memory_equal(got, want[page], sizeof(got));
		for (uint32_t i = 0; i < PAGES_MAX; i++)
			n += got[i];
	}
	if (n > 0)
		assert_true(o.nways > 0);
	return o.nways;
}

static void pages_that_share_bytes_are_found_whatever_the_layouts(void **state)
{
	uint32_t listed = 0, all = 0, none = 0;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < 300; round++) {
		struct tn_geometry g = tn_test_geometry(&rng), h = tn_rng_below(&rng, 2) ? g : tn_test_geometry(&rng);
		struct tn_pool_shape s = tn_test_pool(&rng, &g), t = tn_rng_below(&rng, 2) ? s : tn_test_pool(&rng, &h);
		static struct pool a, b;
		uint32_t ways;

		if (!pool_make(&a, &rng, &g, &s, tn_rng_below(&rng, 2) * 4096) ||
		    !pool_make(&b, &rng, &h, &t, tn_rng_below(&rng, 3) * tn_rng_below(&rng, 5000)))
			continue; /* it does not fit the memory */
		ways = compare(&a, &b);
		compare(&b, &a);
		none += ways == 0;
		listed += ways > 0 && ways <= TN_OVERLAP_WAYS;
		all += ways > TN_OVERLAP_WAYS;
	}
	printf("# %u pairs do not overlap, %u in few ways, %u in many\n", none, listed, all);
	assert_true(listed > 20 && all > 20);
}

/* K and V of a group, over the same tensors as another group's: as vLLM lays hybrid models out. */
static void equal_bases_and_strides_are_one_way_and_multiples_are_few(void **state)
{
	struct tn_geometry g = {
		.layers = 4, .page_tokens = 16, .pages_per_block = 1, .nplanes = 2,
		.planes = {{TN_PLANE_K, 1, 16, 16}, {TN_PLANE_V, 1, 16, 16}}};
	struct tn_geometry half = g;
	struct tn_pool_shape s = {TN_POOL_PLANES_PAGES, 0, 40}, t = s;
	static struct pool a, b;
	struct tn_rng rng;

	tn_rng_seed(&rng, 1);
	assert_true(pool_make(&a, &rng, &g, &s, 0) && pool_make(&b, &rng, &g, &s, 0));
	assert_int_equal(compare(&a, &b), 1);
	/* fewer layers */
	g.layers = 3;
	assert_true(pool_make(&b, &rng, &g, &s, 0));
	assert_int_equal(compare(&a, &b), 1);
	/* pages of twice the size, half as many */
	half.page_tokens = 32;
	t.npages = 20;
	assert_true(pool_make(&b, &rng, &half, &t, 0));
	assert_int_equal(compare(&a, &b), 1);
	assert_int_equal(compare(&b, &a), 1);
	/* side by side: nothing */
	assert_true(pool_make(&b, &rng, &g, &s, 4 * 2 * 40 * 512));
	assert_int_equal(compare(&a, &b), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_that_share_bytes_are_found_whatever_the_layouts),
		cmocka_unit_test(equal_bases_and_strides_are_one_way_and_multiples_are_few),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
