/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a pool's order to offsets, and from those to addresses.
 *
 * Every order, whatever its nesting, comes down to one base per (layer, plane) and one page stride per plane;
 * computing and checking those here leaves a page's address a multiply-add, once its plane's address is found. The
 * order inside a page does not matter here: a page is moved whole.
 *
 * Beside it: the pieces of objects, copying into them, and which pages of two layouts over one memory share bytes.
 */
#include "layout/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* What all orders share: strides and offsets inside the regions, before addresses are known. */
struct regions {
	uint64_t stride[TN_PLANES_MAX]; /* page to page */
	uint64_t offset[TN_PLANES_MAX]; /* of page 0 of the plane, from its layer's start (0 in PLANE_REGION) */
	uint64_t layer_offset; /* layer to layer within one region (CROSS_LAYER only) */
	uint32_t region_count;
	uint64_t region_bytes;
};

static int shape_check(const struct tn_pool_shape *shape)
{
	if (shape->order > TN_POOL_CROSS_LAYER)
		return tn_fail(-EINVAL, "pool order %u is unknown, the last is %u", shape->order, TN_POOL_CROSS_LAYER);
	if ((shape->alignment & (shape->alignment - 1)) != 0)
		return tn_fail(-EINVAL, "alignment %u: must be a power of two, or 0 for none", shape->alignment);
	if (shape->npages == 0)
		return tn_fail(-EINVAL, "npages 0: a pool has at least one page");
	if (shape->npages > (UINT64_C(1) << 32))
		return tn_fail(-EOVERFLOW, "npages %llu: page indices have 32 bits", (unsigned long long)shape->npages);
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
static int regions_of(const struct tn_geometry *g, const struct tn_pool_shape *shape, struct regions *s)
{
	uint64_t page_sum = 0, page_max = 0, unit;
	int rc = tn_geometry_check(g);

	if (rc == 0)
		rc = shape_check(shape);
	if (rc)
		return rc;
	memset(s, 0, sizeof(*s));
	for (uint32_t p = 0; p < g->nplanes; p++) {
		s->stride[p] = align_up(tn_geometry_page_bytes(g, p), shape->alignment);
		s->offset[p] = page_sum;
		page_sum += s->stride[p];
		page_max = s->stride[p] > page_max ? s->stride[p] : page_max;
	}
	unit = page_sum; /* bytes of a region for each page of the pool */
	s->region_count = g->layers;
	if (shape->order == TN_POOL_PLANE_REGION) {
		s->region_count = g->layers * g->nplanes;
		unit = page_max;
	} else if (shape->order == TN_POOL_CROSS_LAYER) {
		s->region_count = 1;
		s->layer_offset = page_sum;
		unit = page_sum * g->layers;
	}
	if (__builtin_mul_overflow(unit, shape->npages, &s->region_bytes) || s->region_bytes > PTRDIFF_MAX)
		return tn_fail(-EOVERFLOW, "a region of %llu pages of %llu bytes does not fit the address space",
			       (unsigned long long)shape->npages, (unsigned long long)unit);
	for (uint32_t p = 0; p < g->nplanes; p++) {
		if (shape->order == TN_POOL_PLANES_PAGES)
			s->offset[p] *= shape->npages; /* below region_bytes */
		else if (shape->order == TN_POOL_PLANE_REGION)
			s->offset[p] = 0;
		else
			s->stride[p] = unit;
	}
	return 0;
}

int tn_layout_regions(const struct tn_geometry *g, const struct tn_pool_shape *shape, uint32_t *count,
		      uint64_t *bytes_each)
{
	struct regions s;
	int rc = regions_of(g, shape, &s);

	if (rc)
		return rc;
	*count = s.region_count;
	*bytes_each = s.region_bytes;
	return 0;
}

int tn_layout_fill(const struct tn_geometry *g, const struct tn_pool_shape *shape, const uint64_t *regions, uint64_t *base,
		   struct tn_pool_layout *out)
{
	struct regions s;
	int rc = regions_of(g, shape, &s);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < g->layers * g->nplanes; i++) {
		uint32_t layer = i / g->nplanes, region = layer;
		uint64_t at;

		if (shape->order == TN_POOL_PLANE_REGION)
			region = i;
		else if (shape->order == TN_POOL_CROSS_LAYER)
			region = 0;
		if (__builtin_mul_overflow(region, s.region_bytes, &at))
			at = UINT64_MAX;
		if (regions)
			at = regions[region];
		if (at > PTRDIFF_MAX || __builtin_add_overflow(at, layer * s.layer_offset + s.offset[i % g->nplanes], &base[i]))
			return tn_fail(-EOVERFLOW, "region %u at %llu is beyond any memory", region, (unsigned long long)at);
	}
	out->npages = shape->npages;
	out->base = base;
	memcpy(out->stride, s.stride, sizeof(out->stride));
	return 0;
}

/* ---- planes ----------------------------------------------------------------------------------------------- */

/* One plane of one layer: pages at `at`, `at + stride`, ... */
struct plane_span {
	uint64_t at;
	uint64_t stride;
	uint64_t npages;
	uint32_t bytes;
};

static uint64_t end_of(const struct plane_span *s)
{
	return s->at + (s->npages - 1) * s->stride + s->bytes;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

/*
 * False: no page of one shares a byte with a page of the other. Exact for equal strides; else see tn_layout_init.
 *
 * A page of b begins before or behind one of a by the distance of the planes plus whole strides of both: by any number that
 * leaves the same remainder by the strides' greatest common divisor. The two such numbers next to zero decide.
 */
static bool planes_touch(const struct plane_span *a, const struct plane_span *b)
{
	uint64_t step, ahead;

	if (a->at >= end_of(b) || b->at >= end_of(a))
		return false;
	step = a->stride == b->stride ? a->stride : common_divisor(a->stride, b->stride);
	ahead = b->at >= a->at ? (b->at - a->at) % step : (step - (a->at - b->at) % step) % step;
	return ahead < a->bytes || step - ahead < b->bytes;
}

/* ---- checks ----------------------------------------------------------------------------------------------- */

static struct plane_span span_of(const struct tn_geometry *g, const struct tn_pool_layout *pool, uint64_t i)
{
	uint32_t p = (uint32_t)(i % g->nplanes);

	return (struct plane_span){pool->base[i], pool->stride[p], pool->npages, tn_geometry_page_bytes(g, p)};
}

static int by_base(const void *a, const void *b, void *base)
{
	const uint64_t *at = base, x = at[*(const uint64_t *)a], y = at[*(const uint64_t *)b];

	return (x > y) - (x < y);
}

/* Two layers in the same bytes would overwrite each other without any error. The spans are known not to overflow. */
static int overlap_check(const struct tn_geometry *g, const struct tn_pool_layout *pool, uint64_t *order)
{
	size_t n = (size_t)g->layers * g->nplanes;

	for (size_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof(*order), by_base, (void *)(uintptr_t)pool->base);
	for (size_t i = 0; i < n; i++) {
		struct plane_span a = span_of(g, pool, order[i]);

		for (size_t k = i + 1; k < n && pool->base[order[k]] < end_of(&a); k++) {
			struct plane_span b = span_of(g, pool, order[k]);

			if (planes_touch(&a, &b))
				return tn_fail(-EINVAL, "layer %u plane %u at %llu and layer %u plane %u at %llu overlap: %llu pages, strides "
					       "of %llu and %llu bytes", (uint32_t)(order[i] / g->nplanes), (uint32_t)(order[i] % g->nplanes),
					       (unsigned long long)a.at, (uint32_t)(order[k] / g->nplanes), (uint32_t)(order[k] % g->nplanes),
					       (unsigned long long)b.at, (unsigned long long)a.npages, (unsigned long long)a.stride,
					       (unsigned long long)b.stride);
		}
	}
	return 0;
}

static int layout_check(const struct tn_geometry *g, const struct tn_pool_layout *pool)
{
	int rc = tn_geometry_check(g);

	if (rc)
		return rc;
	if (pool->npages == 0)
		return tn_fail(-EINVAL, "npages 0: a pool has at least one page");
	if (pool->npages > UINT32_MAX)
		return tn_fail(-EOVERFLOW, "npages %llu: at most 2^32 - 1", (unsigned long long)pool->npages);
	for (uint32_t p = 0; p < g->nplanes; p++)
		if (pool->stride[p] < tn_geometry_page_bytes(g, p))
			return tn_fail(-EINVAL, "plane %u: a stride of %llu bytes, and pages of %u", p,
				       (unsigned long long)pool->stride[p], tn_geometry_page_bytes(g, p));
	return 0;
}

/* ---- compiling -------------------------------------------------------------------------------------------- */

/* The range that a plane lies in, or NULL. */
static const struct tn_mapped_range *range_of(const struct plane_span *s, const struct tn_mapping *memory)
{
	uint64_t bytes;

	if (__builtin_mul_overflow(s->npages - 1, s->stride, &bytes) || __builtin_add_overflow(bytes, s->bytes, &bytes))
		return NULL;
	return tn_mapping_find(memory, s->at, bytes);
}

int tn_layout_init(const struct tn_geometry *g, const struct tn_pool_layout *pool, const struct tn_mapping *memory, uint64_t *table,
		   struct tn_layout *out)
{
	struct tn_layout l = {.npages = pool->npages, .base = table};
	const struct tn_mapped_range *range, *last = NULL;
	int rc = layout_check(g, pool);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < g->layers * g->nplanes; i++) {
		struct plane_span s = span_of(g, pool, i);

		range = range_of(&s, memory);
		if (!range)
			return tn_fail(-EINVAL, "layer %u plane %u: %llu pages of %u bytes from offset %llu on, each %llu behind the one before, "
				       "do not lie in one range of the memory", i / g->nplanes, i % g->nplanes,
				       (unsigned long long)s.npages, s.bytes, (unsigned long long)s.at, (unsigned long long)s.stride);
		l.planes_apart |= i % g->nplanes > 0 && range != last;
		last = range;
	}
	rc = overlap_check(g, pool, table);
	if (rc)
		return rc;
	l.geometry = *g;
	memcpy(table, pool->base, (size_t)g->layers * g->nplanes * sizeof(*table));
	for (uint32_t p = 0; p < g->nplanes; p++) {
		l.stride[p] = pool->stride[p];
		l.page_bytes[p] = tn_geometry_page_bytes(g, p);
	}
	*out = l;
	return 0;
}

/* ---- objects ---------------------------------------------------------------------------------------------- */

bool tn_layout_is_mapped(const struct tn_layout *l, const struct tn_mapping *m, uint32_t layer)
{
	for (uint32_t p = 0; p < l->geometry.nplanes; p++)
		if (!tn_mapping_has(m, l->base[layer * l->geometry.nplanes + p], (l->npages - 1) * l->stride[p] + l->page_bytes[p]))
			return false;
	return true;
}

uint32_t tn_layout_object_iov(const struct tn_layout *l, const struct tn_mapping *m, uint32_t layer, const uint32_t *pages, struct iovec *iov)
{
	const uint32_t nplanes = l->geometry.nplanes, npages = l->geometry.pages_per_block;
	const bool apart = l->planes_apart;
	struct iovec *next = iov;
	char *end = NULL; /* of the last piece; NULL: nothing may be added to it */

	for (uint32_t p = 0; p < nplanes; p++) {
		char *base = tn_layout_address(l, m, layer, p, 0);
		const uint64_t stride = l->stride[p];
		const uint32_t bytes = l->page_bytes[p];

		/* Ranges may be neighbours by chance, but are registered with devices one by one. */
		end = apart ? NULL : end;
		for (uint32_t i = 0; i < npages; i++) {
			char *at = base + pages[i] * stride;

			if (at == end)
				next[-1].iov_len += bytes;
			else
				*next++ = (struct iovec){at, bytes};
			end = at + bytes;
		}
	}
	return (uint32_t)(next - iov);
}

uint32_t tn_layout_align(const struct tn_layout *layout, const struct tn_mapping *m)
{
	uint32_t planes = layout->geometry.nplanes;
	uint64_t all = 4096;

	for (uint32_t i = 0; i < layout->geometry.layers * planes; i++)
		all |= (uintptr_t)tn_mapping_address(m, layout->base[i]);
	for (uint32_t p = 0; p < planes; p++)
		all |= layout->stride[p] | layout->page_bytes[p];
	return (uint32_t)(all & -all);
}

uint32_t tn_span_object(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, struct iovec *iov)
{
	if (span->layout)
		return tn_layout_object_iov(span->layout, span->memory, layer, span->pages, iov);
	iov[0] = (struct iovec){tn_mapping_address(span->memory, span->flat) + (size_t)layer * shape->padded_bytes, shape->object_bytes};
	return 1;
}

uint32_t tn_iov_cut(struct iovec *to, const struct iovec *from, uint32_t n, uint64_t skip, uint32_t *len)
{
	uint32_t made = 0, left = *len;

	for (uint32_t i = 0; i < n && left > 0; i++) {
		size_t have = from[i].iov_len;

		if (skip >= have) {
			skip -= have;
			continue;
		}
		have -= skip;
		if (have > left)
			have = left;
		to[made++] = (struct iovec){(char *)from[i].iov_base + skip, have};
		skip = 0;
		left -= (uint32_t)have;
	}
	*len = left;
	return made;
}

void tn_iov_copy(const struct iovec *dst, const struct iovec *src, size_t len)
{
	size_t di = 0, si = 0, doff = 0, soff = 0;

	while (len > 0) {
		size_t n = dst[di].iov_len - doff;

		if (n > src[si].iov_len - soff)
			n = src[si].iov_len - soff;
		if (n > len)
			n = len;
		memcpy((char *)dst[di].iov_base + doff, (const char *)src[si].iov_base + soff, n);
		len -= n;
		doff += n;
		soff += n;
		if (doff == dst[di].iov_len) {
			di++;
			doff = 0;
		}
		if (soff == src[si].iov_len) {
			si++;
			soff = 0;
		}
	}
}

void tn_span_store(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, const void *src,
		   struct iovec *iov)
{
	const struct tn_layout *l = span->layout;
	struct iovec from = {(void *)(uintptr_t)src, shape->object_bytes};
	const char *plane = src;

	if (span->page_count == 0) {
		tn_span_object(span, shape, layer, iov);
		tn_iov_copy(iov, &from, shape->object_bytes);
		return;
	}
	for (uint32_t p = 0; p < l->geometry.nplanes; p++) {
		char *base = tn_layout_address(l, span->memory, layer, p, 0);
		size_t bytes = l->page_bytes[p];

		for (uint32_t i = span->page_first; i < span->page_first + span->page_count; i++)
			memcpy(base + span->pages[i] * l->stride[p], plane + i * bytes, bytes);
		plane += l->geometry.pages_per_block * bytes;
	}
}

/* ---- pages that two layouts share ------------------------------------------------------------------------- */

static struct plane_span plane_of(const struct tn_layout *l, uint32_t plane)
{
	uint32_t p = plane % l->geometry.nplanes;

	return (struct plane_span){l->base[plane], l->stride[p], l->npages, l->page_bytes[p]};
}

static uint32_t plane_count(const struct tn_layout *l)
{
	return l->geometry.layers * l->geometry.nplanes;
}

/* The planes i of `from` and k of `to` lie to each other as those of the way do. */
static bool is_way(const struct tn_overlap *o, uint32_t way, const struct plane_span *i, const struct plane_span *k)
{
	struct plane_span a = plane_of(o->from, o->way[way].from), b = plane_of(o->to, o->way[way].to);

	return b.at - a.at == k->at - i->at && a.stride == i->stride && b.stride == k->stride && a.bytes == i->bytes &&
	       b.bytes == k->bytes;
}

void tn_overlap_init(struct tn_overlap *o, const struct tn_layout *from, const struct tn_layout *to)
{
	*o = (struct tn_overlap){.from = from, .to = to};
	for (uint32_t i = 0; i < plane_count(from) && o->nways <= TN_OVERLAP_WAYS; i++) {
		struct plane_span a = plane_of(from, i);

		for (uint32_t k = 0; k < plane_count(to) && o->nways <= TN_OVERLAP_WAYS; k++) {
			struct plane_span b = plane_of(to, k);
			uint32_t way = 0;

			if (!planes_touch(&a, &b))
				continue;
			while (way < o->nways && !is_way(o, way, &a, &b))
				way++;
			if (way < o->nways)
				continue;
			if (way < TN_OVERLAP_WAYS) {
				o->way[way].from = i;
				o->way[way].to = k;
			}
			o->nways++;
		}
	}
}

/* Pages [*first, *end) of b that share bytes with the page of a. */
static void pages_at(const struct plane_span *a, const struct plane_span *b, uint64_t page, uint64_t *first, uint64_t *end)
{
	uint64_t at = a->at + page * a->stride, past = at + a->bytes;

	*first = at < b->at + b->bytes ? 0 : (at - b->at - b->bytes) / b->stride + 1;
	*end = past <= b->at ? 0 : (past - b->at - 1) / b->stride + 1;
	if (*end > b->npages)
		*end = b->npages;
}

static bool pair_taken(const struct tn_overlap *o, uint32_t i, uint32_t k, uint64_t page,
		       bool (*taken)(void *arg, uint64_t first, uint64_t end), void *arg)
{
	struct plane_span a = plane_of(o->from, i), b = plane_of(o->to, k);
	uint64_t first, end;

	pages_at(&a, &b, page, &first, &end);
	return first < end && taken(arg, first, end);
}

bool tn_overlap_any(const struct tn_overlap *o, uint64_t page, bool (*taken)(void *arg, uint64_t first, uint64_t end),
		    void *arg)
{
	for (uint32_t way = 0; way < o->nways && o->nways <= TN_OVERLAP_WAYS; way++)
		if (pair_taken(o, o->way[way].from, o->way[way].to, page, taken, arg))
			return true;
	for (uint32_t i = 0; i < plane_count(o->from) && o->nways > TN_OVERLAP_WAYS; i++)
		for (uint32_t k = 0; k < plane_count(o->to); k++)
			if (pair_taken(o, i, k, page, taken, arg))
				return true;
	return false;
}
