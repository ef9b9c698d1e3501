/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a pool's order to addresses.
 *
 * Every order, whatever its nesting, comes down to one base address per (layer, plane) and one page
 * stride per plane; computing those here, with all overflow checks, leaves tn_layout_address a single
 * multiply-add. The order inside a page does not matter here: a page is moved whole.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/error.h"

/* What all orders share: strides and offsets inside the regions, before addresses are known. */
struct shape {
	uint64_t stride[TN_PLANES_MAX]; /* page to page */
	uint64_t offset[TN_PLANES_MAX]; /* of page 0 of the plane, from its layer's start (0 in PLANE_REGION) */
	uint64_t layer_offset; /* layer to layer within one region (CROSS_LAYER only) */
	uint32_t page_bytes[TN_PLANES_MAX];
	uint32_t region_count;
	uint64_t region_bytes;
};

static int pool_check(const struct tn_pool_layout *pool)
{
	if (pool->order > TN_POOL_CROSS_LAYER)
		return tn_fail(-EINVAL, "pool order %u is unknown, the last is %u", pool->order, TN_POOL_CROSS_LAYER);
	if ((pool->alignment & (pool->alignment - 1)) != 0)
		return tn_fail(-EINVAL, "alignment %u: must be a power of two, or 0 for none", pool->alignment);
	if (pool->npages == 0)
		return tn_fail(-EINVAL, "npages 0: a pool has at least one page");
	if (pool->npages > (UINT64_C(1) << 32))
		return tn_fail(-EOVERFLOW, "npages %llu: page indices have 32 bits", (unsigned long long)pool->npages);
	return 0;
}

/* No overflow: v <= 2^30 and alignment <= 2^31. */
static uint64_t align_up(uint64_t v, uint32_t alignment)
{
	return alignment > 1 ? (v + alignment - 1) & ~((uint64_t)alignment - 1) : v;
}

/*
 * Products here are at most: a page over all planes 8 * 2^31, times layers 2^12, times pages 2^32, which
 * is 2^80 and overflows 64 bits: region_bytes is checked, and all else is a part of it.
 */
static int shape_of(const struct tn_geometry *g, const struct tn_pool_layout *pool, struct shape *s)
{
	uint64_t page_sum = 0, page_max = 0, unit;
	int rc = tn_geometry_check(g);

	if (rc == 0)
		rc = pool_check(pool);
	if (rc)
		return rc;
	memset(s, 0, sizeof(*s));
	for (uint32_t p = 0; p < g->nplanes; p++) {
		s->page_bytes[p] = tn_geometry_page_bytes(g, p);
		s->stride[p] = align_up(s->page_bytes[p], pool->alignment);
		s->offset[p] = page_sum;
		page_sum += s->stride[p];
		page_max = s->stride[p] > page_max ? s->stride[p] : page_max;
	}
	unit = page_sum; /* bytes of a region for each page of the pool */
	s->region_count = g->layers;
	if (pool->order == TN_POOL_PLANE_REGION) {
		s->region_count = g->layers * g->nplanes;
		unit = page_max;
	} else if (pool->order == TN_POOL_CROSS_LAYER) {
		s->region_count = 1;
		s->layer_offset = page_sum;
		unit = page_sum * g->layers;
	}
	if (__builtin_mul_overflow(unit, pool->npages, &s->region_bytes) || s->region_bytes > PTRDIFF_MAX)
		return tn_fail(-EOVERFLOW, "a region of %llu pages of %llu bytes does not fit the address space",
			       (unsigned long long)pool->npages, (unsigned long long)unit);
	for (uint32_t p = 0; p < g->nplanes; p++) {
		if (pool->order == TN_POOL_PLANES_PAGES)
			s->offset[p] *= pool->npages; /* below region_bytes */
		else if (pool->order == TN_POOL_PLANE_REGION)
			s->offset[p] = 0;
		else
			s->stride[p] = unit;
	}
	return 0;
}

int tn_layout_regions(const struct tn_geometry *g, const struct tn_pool_layout *pool, uint32_t *count,
		      uint64_t *bytes_each)
{
	struct shape s;
	int rc = shape_of(g, pool, &s);

	if (rc)
		return rc;
	*count = s.region_count;
	*bytes_each = s.region_bytes;
	return 0;
}

uint64_t tn_layout_region_bytes(const struct tn_layout *l, uint32_t region)
{
	if (l->pool.order == TN_POOL_PLANE_REGION)
		return l->stride[region % l->geometry.nplanes] * l->pool.npages;
	return l->region_bytes;
}

/* Heap sort of region numbers by address: no memory of its own, and pools of 32,768 regions exist. */
static void sift_down(uintptr_t *order, size_t i, size_t n, void *const *bases)
{
	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		uintptr_t t = order[i];

		if (child + 1 < n && (uintptr_t)bases[order[child + 1]] > (uintptr_t)bases[order[child]])
			child++;
		if ((uintptr_t)bases[t] >= (uintptr_t)bases[order[child]])
			return;
		order[i] = order[child];
		order[child] = t;
	}
}

static void sort_by_address(uintptr_t *order, size_t n, void *const *bases)
{
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	for (size_t i = n / 2; i-- > 0;)
		sift_down(order, i, n, bases);
	for (size_t end = n; end-- > 1;) {
		uintptr_t t = order[0];

		order[0] = order[end];
		order[end] = t;
		sift_down(order, 0, end, bases);
	}
}

/* Two layers in one memory would overwrite each other without any error: refuse it at registration. */
static int regions_check(const struct tn_layout *l, void *const *bases, uintptr_t *scratch)
{
	for (uint32_t r = 0; r < l->region_count; r++) {
		uintptr_t end;

		if (!bases[r])
			return tn_fail(-EINVAL, "region %u of %u has no address", r, l->region_count);
		if (__builtin_add_overflow((uintptr_t)bases[r], tn_layout_region_bytes(l, r), &end))
			return tn_fail(-EOVERFLOW, "region %u at %p with %llu bytes wraps around the address space", r,
				       bases[r], (unsigned long long)tn_layout_region_bytes(l, r));
	}
	sort_by_address(scratch, l->region_count, bases);
	for (uint32_t i = 1; i < l->region_count; i++) {
		uint32_t a = (uint32_t)scratch[i - 1], b = (uint32_t)scratch[i];

		if ((uintptr_t)bases[b] - (uintptr_t)bases[a] < tn_layout_region_bytes(l, a))
			return tn_fail(-EINVAL, "regions %u at %p and %u at %p overlap: each has %llu bytes", a, bases[a],
				       b, bases[b], (unsigned long long)tn_layout_region_bytes(l, a));
	}
	return 0;
}

int tn_layout_init(const struct tn_geometry *g, const struct tn_pool_layout *pool, void *const *bases,
		   uintptr_t *table, struct tn_layout *out)
{
	struct tn_layout l = {.pool = *pool};
	struct shape s;
	int rc = shape_of(g, pool, &s);

	if (rc)
		return rc;
	l.geometry = *g;
	memcpy(l.stride, s.stride, sizeof(l.stride));
	memcpy(l.page_bytes, s.page_bytes, sizeof(l.page_bytes));
	l.region_count = s.region_count;
	l.region_bytes = s.region_bytes;
	l.base = table;
	rc = regions_check(&l, bases, table);
	if (rc)
		return rc;
	for (uint32_t layer = 0; layer < g->layers; layer++) {
		for (uint32_t p = 0; p < g->nplanes; p++) {
			uint32_t region = layer;

			if (pool->order == TN_POOL_PLANE_REGION)
				region = layer * g->nplanes + p;
			else if (pool->order == TN_POOL_CROSS_LAYER)
				region = 0;
			table[layer * g->nplanes + p] =
				(uintptr_t)bases[region] + layer * s.layer_offset + s.offset[p];
		}
	}
	*out = l;
	return 0;
}

uint32_t tn_layout_object_iov(const struct tn_layout *l, uint32_t layer, const uint32_t *pages, struct iovec *iov)
{
	/*
	 * Regions may be neighbours in memory by chance, but are registered with devices one by one: no piece
	 * reaches from one into the next. Only this order has the planes of a layer in different regions.
	 */
	const bool plane_regions = l->pool.order == TN_POOL_PLANE_REGION;
	uint32_t n = 0;

	for (uint32_t p = 0; p < l->geometry.nplanes; p++) {
		for (uint32_t i = 0; i < l->geometry.pages_per_block; i++) {
			char *at = tn_layout_address(l, layer, p, pages[i]);

			if (n > 0 && (i > 0 || !plane_regions) &&
			    (char *)iov[n - 1].iov_base + iov[n - 1].iov_len == at) {
				iov[n - 1].iov_len += l->page_bytes[p];
				continue;
			}
			iov[n++] = (struct iovec){at, l->page_bytes[p]};
		}
	}
	return n;
}
