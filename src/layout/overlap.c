/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/overlap.h"

static uint64_t end_of(const struct tn_plane_span *s)
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
 * A page of b begins before or behind one of a by the distance of the planes plus whole strides of both: by any number that
 * leaves the same remainder by the strides' greatest common divisor. The two such numbers next to zero decide.
 */
bool tn_planes_touch(const struct tn_plane_span *a, const struct tn_plane_span *b)
{
	uint64_t step, ahead;

	if (a->at >= end_of(b) || b->at >= end_of(a))
		return false;
	step = a->stride == b->stride ? a->stride : common_divisor(a->stride, b->stride);
	ahead = b->at >= a->at ? (b->at - a->at) % step : (step - (a->at - b->at) % step) % step;
	return ahead < a->bytes || step - ahead < b->bytes;
}

static struct tn_plane_span span_of(const struct tn_layout *l, uint32_t plane)
{
	uint32_t p = plane % l->geometry.nplanes;

	return (struct tn_plane_span){l->base[plane], l->stride[p], l->npages, l->page_bytes[p]};
}

static uint32_t planes_of(const struct tn_layout *l)
{
	return l->geometry.layers * l->geometry.nplanes;
}

/* The planes i of `from` and k of `to` lie to each other as those of the way do. */
static bool is_way(const struct tn_overlap *o, uint32_t way, const struct tn_plane_span *i, const struct tn_plane_span *k)
{
	struct tn_plane_span a = span_of(o->from, o->way[way].from), b = span_of(o->to, o->way[way].to);

	return b.at - a.at == k->at - i->at && a.stride == i->stride && b.stride == k->stride && a.bytes == i->bytes &&
	       b.bytes == k->bytes;
}

void tn_overlap_init(struct tn_overlap *o, const struct tn_layout *from, const struct tn_layout *to)
{
	*o = (struct tn_overlap){.from = from, .to = to};
	for (uint32_t i = 0; i < planes_of(from) && o->nways <= TN_OVERLAP_WAYS; i++) {
		struct tn_plane_span a = span_of(from, i);

		for (uint32_t k = 0; k < planes_of(to) && o->nways <= TN_OVERLAP_WAYS; k++) {
			struct tn_plane_span b = span_of(to, k);
			uint32_t way = 0;

			if (!tn_planes_touch(&a, &b))
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
static void pages_at(const struct tn_plane_span *a, const struct tn_plane_span *b, uint64_t page, uint64_t *first, uint64_t *end)
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
	struct tn_plane_span a = span_of(o->from, i), b = span_of(o->to, k);
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
	for (uint32_t i = 0; i < planes_of(o->from) && o->nways > TN_OVERLAP_WAYS; i++)
		for (uint32_t k = 0; k < planes_of(o->to); k++)
			if (pair_taken(o, i, k, page, taken, arg))
				return true;
	return false;
}
