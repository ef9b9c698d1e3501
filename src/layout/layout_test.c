/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: properties of addresses over random geometries and all pool orders, on real memory. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "lab/models.h"
#include "layout/layout.h"
#include "tn_test.h"
#include "tn_test_geometry.h"

/* A pool in real memory: each region is its own allocation, so that a sanitizer sees every stray byte. */
struct pool {
	struct tn_geometry g;
	struct tn_pool_shape layout;
	struct tn_layout l;
	struct tn_memory_range *range;
	uint32_t count;
	uint64_t *table;
	struct tn_mapped_range *mapped;
	struct tn_mapping memory;
};

static struct tn_mapping compiled; /* the memory of what was compiled last */

/* A pool whose regions are ranges of a memory, compiled. */
static int compile(const struct tn_geometry *g, const struct tn_pool_shape *shape, const struct tn_memory_range *range,
		   uint32_t n, uint64_t *table, struct tn_layout *out)
{
	static struct tn_mapped_range mapped[TN_LAYERS_MAX * TN_PLANES_MAX];
	const size_t most = (size_t)g->layers * g->nplanes; /* regions; those without a range lie behind the last range */
	uint64_t *base = calloc(most, sizeof(*base)), *regions = calloc(most, sizeof(*regions));
	struct tn_pool_layout layout;
	int rc;

	for (size_t i = 1; i < most; i++)
		regions[i] = regions[i - 1] + (i <= n ? range[i - 1].bytes : 0);
	rc = tn_layout_fill(g, shape, regions, base, &layout);
	tn_mapping_init(&compiled, mapped, range, n);
	if (rc == 0)
		rc = tn_layout_init(g, &layout, &compiled, table, out);
	free(regions);
	free(base);
	return rc;
}

static void pool_make(struct pool *p, const struct tn_geometry *g, const struct tn_pool_shape *layout)
{
	uint32_t count;
	uint64_t bytes, unit = 0;

	p->g = *g;
	p->layout = *layout;
	assert_int_equal(tn_layout_regions(g, layout, &count, &bytes), 0);
	p->count = count;
	p->range = calloc(count, sizeof(*p->range));
	p->table = calloc(g->layers * g->nplanes, sizeof(*p->table));
	assert_non_null(p->range);
	p->mapped = calloc(count, sizeof(*p->mapped));
	assert_non_null(p->table);
	assert_non_null(p->mapped);
	for (uint32_t i = 0; i < g->nplanes; i++) {
		uint64_t a = layout->alignment ? layout->alignment : 1;
		uint64_t one = (tn_geometry_page_bytes(g, i) + a - 1) / a * a;

		if (layout->order == TN_POOL_PLANE_REGION)
			unit = one > unit ? one : unit;
		else
			unit += one;
	}
	if (layout->order == TN_POOL_CROSS_LAYER)
		unit *= g->layers;
	assert_int_equal(bytes, unit * layout->npages);
	for (uint32_t r = 0; r < count; r++) {
		uint64_t size = bytes;

		if (layout->order == TN_POOL_PLANE_REGION) {
			uint64_t a = layout->alignment ? layout->alignment : 1;

			size = (tn_geometry_page_bytes(g, r % g->nplanes) + a - 1) / a * a * layout->npages;
		}
		p->range[r] = (struct tn_memory_range){.address = malloc(size), .bytes = size};
		assert_non_null(p->range[r].address);
		memset(p->range[r].address, 0xee, size);
	}
	assert_int_equal(compile(g, layout, p->range, count, p->table, &p->l), 0);
	tn_mapping_init(&p->memory, p->mapped, p->range, count);
}

static void pool_free(struct pool *p)
{
	for (uint32_t r = 0; r < p->count; r++)
		free(p->range[r].address);
	free(p->range);
	free(p->table);
	free(p->mapped);
}

/* The region in which len bytes at addr lie; fails the test if there is none. */
static uint32_t region_of(const struct pool *p, const void *addr, size_t len)
{
	for (uint32_t r = 0; r < p->count; r++) {
		uintptr_t base = (uintptr_t)p->range[r].address, at = (uintptr_t)addr;

		if (at >= base && at + len <= base + p->range[r].bytes)
			return r;
	}
	fail_msg("%zu bytes at %p lie in no region", len, addr);
	return 0;
}

/* The id of a page's plane, as a pattern that no other one has. */
static void fill(unsigned char *at, size_t len, uint64_t id)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, id);
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)tn_rng_next(&rng);
}

static uint64_t plane_id(const struct pool *p, uint32_t layer, uint32_t plane, uint64_t page)
{
	return (page * p->g.layers + layer) * TN_PLANES_MAX + plane;
}

static void for_random_pools(int rounds, void (*check)(struct pool *p, struct tn_rng *rng))
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int i = 0; i < rounds; i++) {
		struct tn_geometry g = tn_test_geometry(&rng);
		struct tn_pool_shape layout = tn_test_pool(&rng, &g);
		struct pool p;

		pool_make(&p, &g, &layout);
		check(&p, &rng);
		pool_free(&p);
	}
}

static void check_no_overlap(struct pool *p, struct tn_rng *rng)
{
	unsigned char want[16384];
	uint64_t covered = 0, total = 0;

	for (uint32_t layer = 0; layer < p->g.layers; layer++) {
		for (uint32_t pl = 0; pl < p->g.nplanes; pl++) {
			for (uint64_t page = 0; page < p->layout.npages; page++) {
				unsigned char *at = tn_layout_address(&p->l, &p->memory, layer, pl, page);
				uint32_t r = region_of(p, at, p->l.page_bytes[pl]);

				if (p->layout.alignment > 1)
					assert_int_equal((uintptr_t)(at - (unsigned char *)p->range[r].address) %
								 p->layout.alignment, 0);
				fill(at, p->l.page_bytes[pl], plane_id(p, layer, pl, page));
				covered += p->l.page_bytes[pl];
			}
		}
	}
	for (uint32_t layer = 0; layer < p->g.layers; layer++) {
		for (uint32_t pl = 0; pl < p->g.nplanes; pl++) {
			for (uint64_t page = 0; page < p->layout.npages; page++) {
				assert_true(p->l.page_bytes[pl] <= sizeof(want));
				fill(want, p->l.page_bytes[pl], plane_id(p, layer, pl, page));
				assert_memory_equal(tn_layout_address(&p->l, &p->memory, layer, pl, page), want, p->l.page_bytes[pl]);
			}
		}
	}
	for (uint32_t r = 0; r < p->count; r++)
		total += p->range[r].bytes;
	assert_true(covered <= total);
	if (p->layout.alignment <= 1)
		assert_int_equal(covered, total);
}

static void planes_never_overlap_lie_in_their_regions_and_fill_them(void **state)
{
	for_random_pools(150, check_no_overlap);
}

static void pick_pages(struct pool *p, struct tn_rng *rng, uint32_t *pages)
{
	uint32_t n = (uint32_t)p->layout.npages, all[64];
	bool neighbours = tn_rng_below(rng, 2);

	assert_true(n <= 64);
	for (uint32_t i = 0; i < n; i++)
		all[i] = i;
	for (uint32_t i = n - 1; i > 0 && !neighbours; i--) {
		uint32_t j = tn_rng_below(rng, i + 1), t = all[i];

		all[i] = all[j];
		all[j] = t;
	}
	memcpy(pages, all, p->g.pages_per_block * sizeof(*pages));
}

static void check_object(struct pool *p, struct tn_rng *rng)
{
	uint32_t pages[16], layer = tn_rng_below(rng, p->g.layers), used, i = 0;
	struct iovec iov[TN_PLANES_MAX * 16];
	size_t off = 0, sum = 0;

	pick_pages(p, rng, pages);
	used = tn_layout_object_iov(&p->l, &p->memory, layer, pages, iov);
	assert_in_range(used, 1, p->g.nplanes * p->g.pages_per_block);
	for (uint32_t n = 0; n < used; n++) {
		sum += iov[n].iov_len;
		region_of(p, iov[n].iov_base, iov[n].iov_len);
		if (n > 0 && p->layout.order != TN_POOL_PLANE_REGION) /* neighbours would have been merged */
			assert_ptr_not_equal((char *)iov[n - 1].iov_base + iov[n - 1].iov_len, iov[n].iov_base);
	}
	assert_int_equal(sum, tn_geometry_object_bytes(&p->g));
	/* walked byte by byte, the entries are the planes in stored order */
	for (uint32_t pl = 0; pl < p->g.nplanes; pl++) {
		for (uint32_t n = 0; n < p->g.pages_per_block; n++) {
			if (i < used && off == iov[i].iov_len) {
				i++;
				off = 0;
			}
			assert_true(i < used);
			assert_ptr_equal((char *)iov[i].iov_base + off, tn_layout_address(&p->l, &p->memory, layer, pl, pages[n]));
			off += p->l.page_bytes[pl];
			assert_true(off <= iov[i].iov_len);
		}
	}
	assert_int_equal(i, used - 1);
	assert_int_equal(off, iov[i].iov_len);
}

static void an_objects_iov_covers_its_bytes_in_stored_order_and_merges_neighbours(void **state)
{
	for_random_pools(2000, check_object);
}

static void pieces_never_reach_from_one_range_into_the_next(void **state)
{
	struct tn_geometry g;
	struct tn_pool_shape pool = {TN_POOL_PLANE_REGION, 0, 4};
	const uint32_t pages[] = {0, 1, 2, 3};
	const uintptr_t region = 4 * (32 << 10);
	struct tn_memory_range range[64];
	struct iovec iov[8];
	struct tn_layout l;
	uint64_t table[64];

	/* K and V side by side in memory, and the object takes all of both: still one piece for each */
	assert_int_equal(tn_model_find("llama3-8b", &g), 0);
	for (uintptr_t i = 0; i < 64; i++)
		range[i] = (struct tn_memory_range){.address = (void *)((UINT64_C(1) << 32) + i * region), .bytes = region};
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_object_iov(&l, &compiled, 5, pages, iov), 2);
	assert_ptr_equal(iov[1].iov_base, range[11].address);
	/* in one range of both planes they are one piece */
	pool.order = TN_POOL_PLANES_PAGES;
	for (uintptr_t i = 0; i < 32; i++)
		range[i] = (struct tn_memory_range){.address = (void *)((UINT64_C(1) << 32) + i * 2 * region), .bytes = 2 * region};
	assert_int_equal(compile(&g, &pool, range, 32, table, &l), 0);
	assert_int_equal(tn_layout_object_iov(&l, &compiled, 5, pages, iov), 1);
}

static void check_round_trip(struct pool *p, struct tn_rng *rng)
{
	uint32_t from[16], to[16], n, bytes = tn_geometry_object_bytes(&p->g);
	struct tn_pool_shape other_layout = tn_test_pool(rng, &p->g);
	struct iovec iov[TN_PLANES_MAX * 16];
	unsigned char *object = malloc(bytes), *at;
	struct pool other;

	assert_non_null(object);
	pool_make(&other, &p->g, &other_layout);
	pick_pages(p, rng, from);
	pick_pages(&other, rng, to);
	for (uint32_t layer = 0; layer < p->g.layers; layer++) {
		for (uint32_t pl = 0; pl < p->g.nplanes; pl++)
			for (uint32_t i = 0; i < p->g.pages_per_block; i++)
				fill(tn_layout_address(&p->l, &p->memory, layer, pl, from[i]), p->l.page_bytes[pl],
				     plane_id(p, layer, pl, i));
		at = object;
		n = tn_layout_object_iov(&p->l, &p->memory, layer, from, iov);
		for (uint32_t i = 0; i < n; at += iov[i++].iov_len)
			memcpy(at, iov[i].iov_base, iov[i].iov_len);
		at = object;
		n = tn_layout_object_iov(&other.l, &other.memory, layer, to, iov);
		for (uint32_t i = 0; i < n; at += iov[i++].iov_len)
			memcpy(iov[i].iov_base, at, iov[i].iov_len);
		assert_int_equal(at - object, bytes);
		for (uint32_t pl = 0; pl < p->g.nplanes; pl++)
			for (uint32_t i = 0; i < p->g.pages_per_block; i++)
				assert_memory_equal(tn_layout_address(&p->l, &p->memory, layer, pl, from[i]),
						    tn_layout_address(&other.l, &other.memory, layer, pl, to[i]), p->l.page_bytes[pl]);
	}
	pool_free(&other);
	free(object);
}

static void what_one_order_gathers_any_other_scatters_back(void **state)
{
	for_random_pools(200, check_round_trip);
}

static struct tn_geometry llama(void)
{
	struct tn_geometry g;

	assert_int_equal(tn_model_find("llama3-8b", &g), 0);
	return g;
}

static void addresses_are_those_of_the_engines_tensors(void **state)
{
	/* Hand-computed: K and V of 32 KiB per page, 100 pages, 32 layers, at made-up addresses. */
	const uint64_t page = 32 << 10;
	struct tn_geometry g = llama();
	struct tn_pool_shape pool = {TN_POOL_PLANES_PAGES, 0, 100};
	struct tn_memory_range range[64];
	struct tn_layout l;
	uint64_t table[64];

	for (uintptr_t i = 0; i < 64; i++)
		range[i] = (struct tn_memory_range){.address = (void *)(UINT64_C(0x100000000) * (i + 1)), .bytes = UINT64_C(0xc0000000)};
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 3, 1, 7), (uintptr_t)range[3].address + 100 * page + 7 * page);
	pool.order = TN_POOL_PAGES_PLANES;
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 3, 1, 7), (uintptr_t)range[3].address + (7 * 2 + 1) * page);
	pool.order = TN_POOL_PLANE_REGION;
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 3, 1, 7), (uintptr_t)range[3 * 2 + 1].address + 7 * page);
	pool.order = TN_POOL_CROSS_LAYER;
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 3, 1, 7), (uintptr_t)range[0].address + ((7 * 32 + 3) * 2 + 1) * page);
	pool.alignment = 65536;
	assert_int_equal(compile(&g, &pool, range, 64, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 3, 1, 7), (uintptr_t)range[0].address + ((7 * 32 + 3) * 2 + 1) * 65536);
}

static void scale_planes_and_mla_have_their_own_sizes(void **state)
{
	struct tn_geometry g = {
		.layers = 2, .page_tokens = 16, .pages_per_block = 1, .nplanes = 4,
		.planes = {{TN_PLANE_K, 8, 128, 8}, {TN_PLANE_V, 8, 128, 8},
			   {TN_PLANE_SCALE_K, 8, 1, 32}, {TN_PLANE_SCALE_V, 8, 1, 32}},
	};
	struct tn_pool_shape pool = {TN_POOL_PLANE_REGION, 0, 10};
	struct tn_memory_range range[8];
	struct tn_layout l;
	uint64_t table[8];
	uint32_t count;
	uint64_t bytes;

	/* Each range is as large as its plane's pages: a smaller one is refused. */
	for (uintptr_t i = 0; i < 8; i++)
		range[i] = (struct tn_memory_range){.address = (void *)(UINT64_C(0x10000000) * (i + 1)),
						    .bytes = 10 * 16 * 8 * (i % 4 < 2 ? 128 : 4)};
	assert_int_equal(compile(&g, &pool, range, 8, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 1, 3, 2), (uintptr_t)range[7].address + 2 * 512);
	range[6].bytes--;
	assert_int_equal(compile(&g, &pool, range, 8, table, &l), -EINVAL);
	assert_int_equal(tn_model_find("deepseek-v3", &g), 0);
	pool.order = TN_POOL_PAGES_PLANES;
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), 0);
	assert_int_equal(count, 61);
	assert_int_equal(bytes, 10 * 16 * 576 * 2);
}

static void absurd_pools_are_refused_with_the_value(void **state)
{
	struct tn_geometry g = llama();
	struct tn_pool_shape pool = {TN_POOL_PLANES_PAGES, 0, 0};
	uint32_t count = 7;
	uint64_t bytes = 7;

	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EINVAL);
	pool.npages = UINT64_C(1) << 63;
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EOVERFLOW);
	assert_non_null(strstr(tn_error_last()->text, "9223372036854775808"));
	pool.npages = UINT64_MAX;
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EOVERFLOW);
	pool = (struct tn_pool_shape){TN_POOL_CROSS_LAYER, UINT32_C(1) << 31, UINT64_C(1) << 32};
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EOVERFLOW);
	/* 2^63 bytes: no overflow of 64 bits, but more than an address space */
	pool = (struct tn_pool_shape){TN_POOL_CROSS_LAYER, UINT32_C(1) << 25, UINT64_C(1) << 32};
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EOVERFLOW);
	pool = (struct tn_pool_shape){TN_POOL_CROSS_LAYER, 3, 10};
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EINVAL);
	pool = (struct tn_pool_shape){TN_POOL_CROSS_LAYER + 1, 0, 10};
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EINVAL);
	pool = (struct tn_pool_shape){TN_POOL_PLANES_PAGES, 0, 10};
	g.layers = 0;
	assert_int_equal(tn_layout_regions(&g, &pool, &count, &bytes), -EINVAL);
	assert_int_equal(count, 7);
	assert_int_equal(bytes, 7);
}

/* Two planes, of 4 KiB and 1 KiB per page, in one layer. */
static struct tn_geometry two_planes(void)
{
	return (struct tn_geometry){
		.layers = 1, .page_tokens = 16, .pages_per_block = 1, .nplanes = 2,
		.planes = {{TN_PLANE_K, 2, 64, 16}, {TN_PLANE_SCALE_K, 2, 16, 16}},
	};
}

/* A memory of 1 MiB in one range, of which nothing is read. */
static int lay_out(uint64_t npages, uint64_t first, uint64_t first_stride, uint64_t second, uint64_t second_stride)
{
	const struct tn_memory_range range = {.address = (void *)(UINT64_C(1) << 32), .bytes = 1 << 20};
	const uint64_t base[2] = {first, second};
	struct tn_pool_layout pool = {.npages = npages, .base = base, .stride = {first_stride, second_stride}};
	struct tn_geometry g = two_planes();
	struct tn_layout l = {.npages = 7};
	struct tn_mapped_range mapped;
	struct tn_mapping memory;
	uint64_t table[2];
	int rc;

	tn_mapping_init(&memory, &mapped, &range, 1);
	rc = tn_layout_init(&g, &pool, &memory, table, &l);
	assert_int_equal(l.npages, rc ? 7 : npages);
	return rc;
}

static void pages_that_overlap_or_lie_outside_of_the_memory_are_refused(void **state)
{
	const uint64_t kib = 1024;

	/* one plane behind the other, in either order, and in the gaps that the other leaves */
	assert_int_equal(lay_out(16, 0, 4 * kib, 64 * kib, kib), 0);
	assert_int_equal(lay_out(16, 16 * kib, 4 * kib, 0, kib), 0);
	assert_int_equal(lay_out(16, 0, 5 * kib, 4 * kib, 5 * kib), 0);
	assert_int_equal(lay_out(16, 0, 8 * kib, 5 * kib, 8 * kib), 0);
	/* by one byte */
	assert_int_equal(lay_out(16, 0, 4 * kib, 64 * kib - 1, kib), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "overlap"));
	assert_int_equal(lay_out(16, 16 * kib - 1, 4 * kib, 0, kib), -EINVAL);
	assert_int_equal(lay_out(16, 0, 5 * kib, 4 * kib - 1, 5 * kib), -EINVAL);
	assert_int_equal(lay_out(16, 0, 5 * kib, 4 * kib + 1, 5 * kib), -EINVAL);
	/* only page 15 of one and page 0 of the other */
	assert_int_equal(lay_out(16, 0, 8 * kib, 15 * 8 * kib, 8 * kib), -EINVAL);
	assert_int_equal(lay_out(16, 0, 8 * kib, 15 * 8 * kib + 4 * kib, 8 * kib), 0);
	/* different strides: between each other where no page of one ever meets one of the other */
	assert_int_equal(lay_out(16, 0, 8 * kib, 4 * kib, 16 * kib), 0);
	assert_int_equal(lay_out(16, 0, 8 * kib, 4 * kib, 6 * kib), -EINVAL);
	/* a stride that is shorter than the page */
	assert_int_equal(lay_out(16, 0, 4 * kib - 1, 512 * kib, kib), -EINVAL);
	assert_int_equal(lay_out(1, 0, 0, 512 * kib, kib), -EINVAL);
	/* the last byte of the memory, and one more */
	assert_int_equal(lay_out(16, 1024 * kib - 64 * kib, 4 * kib, 0, kib), 0);
	assert_int_equal(lay_out(16, 1024 * kib - 64 * kib + 1, 4 * kib, 0, kib), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "do not lie in one range"));
	assert_int_equal(lay_out(16, 1024 * kib, 4 * kib, 0, kib), -EINVAL);
	assert_int_equal(lay_out(16, UINT64_MAX - kib, 4 * kib, 0, kib), -EINVAL);
	assert_int_equal(lay_out(16, 0, UINT64_MAX / 2, 0, kib), -EINVAL);
	assert_int_equal(lay_out(UINT32_MAX, 0, UINT64_C(1) << 33, 0, kib), -EINVAL);
	assert_int_equal(lay_out(0, 0, 4 * kib, 512 * kib, kib), -EINVAL);
	assert_int_equal(lay_out(UINT64_C(1) << 32, 0, 4 * kib, 512 * kib, kib), -EOVERFLOW);
}

static void offsets_and_lengths_that_leave_a_range_are_found_out_before_they_are_addresses(void **state)
{
	unsigned char bytes[3][4096];
	const struct tn_memory_range range[3] = {{bytes[2], 4096}, {NULL, 8192}, {bytes[0], 4096}};
	struct tn_mapped_range mapped[3];
	struct tn_mapping m;

	tn_mapping_init(&m, mapped, range, 3);
	assert_ptr_equal(tn_mapping_address(&m, 4095), bytes[2] + 4095);
	assert_ptr_equal(tn_mapping_address(&m, 12288 + 17), bytes[0] + 17);
	assert_true(tn_mapping_has(&m, 0, 4096) && tn_mapping_has(&m, 12288, 4096) && tn_mapping_has(&m, 4095, 1));
	/* into the next range, behind the last one, and sums that wrap */
	assert_true(!tn_mapping_has(&m, 0, 4097) && !tn_mapping_has(&m, 4095, 2) && !tn_mapping_has(&m, 12288, 4097));
	assert_true(!tn_mapping_has(&m, 16384, 1) && !tn_mapping_has(&m, TN_NO_OFFSET, 1) && !tn_mapping_has(&m, TN_NO_OFFSET, 0));
	assert_true(!tn_mapping_has(&m, 16, UINT64_MAX - 15) && !tn_mapping_has(&m, 12289, UINT64_MAX));
	/* a range that no CPU may touch: its bytes are in the memory, and have no address */
	assert_ptr_equal(tn_mapping_find(&m, 4096, 8192), &mapped[1]);
	assert_true(!tn_mapping_has(&m, 4096, 1) && !tn_mapping_has(&m, 12287, 1));
}

static void a_plane_lies_in_one_range_and_ranges_come_in_any_order(void **state)
{
	struct tn_geometry g = llama();
	struct tn_pool_shape pool = {TN_POOL_PLANES_PAGES, 0, 10};
	const uintptr_t region = 10 * (64 << 10);
	struct tn_memory_range range[32];
	struct tn_layout l;
	uint64_t table[64];

	for (uintptr_t i = 0; i < 32; i++)
		range[i] = (struct tn_memory_range){.address = (void *)((UINT64_C(1) << 32) + (i * 7 % 32) * region), .bytes = region};
	assert_int_equal(compile(&g, &pool, range, 32, table, &l), 0);
	assert_int_equal(tn_layout_address(&l, &compiled, 9, 0, 0), (uintptr_t)range[9].address);
	/* one range less: the last layer lies nowhere */
	assert_int_equal(compile(&g, &pool, range, 31, table, &l), -EINVAL);
	/* a range that ends early: the planes behind it would begin in the next, or reach over */
	range[8].bytes -= 1;
	assert_int_equal(compile(&g, &pool, range, 32, table, &l), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(planes_never_overlap_lie_in_their_regions_and_fill_them),
		cmocka_unit_test(an_objects_iov_covers_its_bytes_in_stored_order_and_merges_neighbours),
		cmocka_unit_test(pieces_never_reach_from_one_range_into_the_next),
		cmocka_unit_test(what_one_order_gathers_any_other_scatters_back),
		cmocka_unit_test(addresses_are_those_of_the_engines_tensors),
		cmocka_unit_test(scale_planes_and_mla_have_their_own_sizes),
		cmocka_unit_test(absurd_pools_are_refused_with_the_value),
		cmocka_unit_test(pages_that_overlap_or_lie_outside_of_the_memory_are_refused),
		cmocka_unit_test(a_plane_lies_in_one_range_and_ranges_come_in_any_order),
		cmocka_unit_test(offsets_and_lengths_that_leave_a_range_are_found_out_before_they_are_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
