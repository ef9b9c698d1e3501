/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: reserving slots, segments that are taken for it, and what of a store's slots is free, for whom.
 *
 * When no slot of a shape is left, a segment without a shape is taken. If there is none, the file begins to get longer
 * (allocate.c). Until then a segment whose preparation stops (prepare.c) is taken, or an empty segment of another
 * shape. move.c takes segments with blocks, and only when the owner asks for that.
 */
#include "store/store_internal.h"

/* ---- segments ------------------------------------------------------------------------------------------------- */

static bool take_unassigned(struct tn_store_device *d, uint32_t shape)
{
	struct tn_store_segment *sg;

	if (tn_list_empty(&d->unassigned))
		return false;
	sg = tn_container_of(d->unassigned.next, struct tn_store_segment, link);
	tn_store_segment_assign(d, (uint32_t)(sg - d->segs), shape);
	return true;
}

/* A segment of another shape in which nothing is left. */
static bool take_empty(struct tn_store_device *d, uint32_t shape)
{
	for (uint32_t i = 0; d->empty > 0 && i < d->allocated && i < d->limit; i++) {
		if (!tn_store_segment_movable(d, i, shape) || !tn_store_segment_clean(d, i))
			continue;
		if (d->victim == i && d->victim_shape != shape)
			continue;
		tn_store_segment_assign(d, i, shape);
		return true;
	}
	return false;
}

static bool grow(struct tn_store_device *d, uint32_t shape)
{
	if (take_unassigned(d, shape))
		return true;
	tn_store_allocate(d, tn_now_ns(d->store->clock));
	/* Better a segment that is not fully prepared than another class's. */
	if (tn_store_prepare_stop(d) && take_unassigned(d, shape))
		return true;
	return take_empty(d, shape);
}

/* ---- slots ------------------------------------------------------------------------------------------------------ */

/* Up to n free slots of one segment, neighbours first: the search goes on where the last search ended. */
static uint32_t take_slots(struct tn_store_device *d, uint32_t segment, uint32_t n, tn_slot *slots, uint32_t stride)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];
	uint32_t got = 0;

	for (uint32_t k = 0; k <= s->segment_pages && got < n && sg->free > 0; k++) {
		uint32_t part = (sg->cursor + k) % s->segment_pages, page = segment * s->segment_pages + part;

		while (d->free[page] && got < n) {
			uint32_t local = page << 6 | (uint32_t)__builtin_ctzll(d->free[page]);

			tn_store_slot_set(d, local, TN_SLOT_RESERVED);
			slots[got++ * stride] = tn_store_global(d, local);
		}
		if (got == n)
			sg->cursor = part;
	}
	return got;
}

static uint32_t reserve_on(struct tn_store_device *d, uint32_t shape, uint32_t n, tn_slot *slots, uint32_t stride)
{
	struct tn_list *list = &d->store->shape[shape].has_free[d->index];
	uint32_t got = 0;

	while (got < n) {
		struct tn_store_segment *sg;

		if (tn_list_empty(list) && !grow(d, shape))
			break;
		if (tn_list_empty(list)) /* the new segment is beyond those that may be used */
			break;
		sg = tn_container_of(list->next, struct tn_store_segment, link);
		got += take_slots(d, (uint32_t)(sg - d->segs), n - got, slots + (size_t)got * stride, stride);
	}
	return got;
}

/* Moves the taken slots to the front, keeping their order. */
static uint32_t compact(tn_slot *slots, uint32_t n)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < n; i++)
		if (slots[i] != TN_SLOT_NONE)
			slots[k++] = slots[i];
	return k;
}

uint32_t tn_store_reserve(struct tn_store *s, uint32_t cls, uint32_t n, tn_slot *slots)
{
	uint32_t shape = s->cls[cls].shape, nd = s->ndevices, got = 0;

	assert(cls < s->nclasses);
	if (s->read_only)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		slots[i] = TN_SLOT_NONE;
	/* Block i goes to device i modulo their number; each gets its blocks as neighbours. */
	for (uint32_t k = 0; k < nd && k < n; k++) {
		struct tn_store_device *d = &s->dev[(s->next_device + k) % nd];

		if (tn_store_device_writable(d))
			got += reserve_on(d, shape, (n - k + nd - 1) / nd, slots + k, nd);
	}
	got = compact(slots, n);
	for (uint32_t k = 0; k < nd && got < n; k++) {
		struct tn_store_device *d = &s->dev[k];

		if (tn_store_device_writable(d))
			got += reserve_on(d, shape, n - got, slots + got, 1);
	}
	s->next_device = (s->next_device + got) % nd;
	if (got < n)
		s->starved = true;
	return got;
}

void tn_store_unreserve(struct tn_store *s, tn_slot slot)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(TN_META_STATE(d->meta[local]) == TN_SLOT_RESERVED);
	tn_store_slot_set(d, local, TN_SLOT_FREE);
}

void tn_store_free_slots(const struct tn_store *s, uint32_t cls, uint64_t *free_now, uint64_t *freeing)
{
	uint32_t shape = s->cls[cls].shape;
	*freeing = *free_now = 0;
	for (uint32_t i = 0; i < s->ndevices; i++) {
		const struct tn_store_device *d = &s->dev[i];

		if (!tn_store_device_writable(d)) /* and what is removed there does not become free by itself */
			continue;
		for (uint32_t k = 0; k < d->allocated && !tn_store_log_stuck(d); k++)
			if (d->segs[k].shape == shape && !d->segs[k].closed)
				*freeing += d->segs[k].freeing;
		*free_now += s->shape[shape].free_slots[i];
		for (const struct tn_list *l = d->unassigned.next; l != &d->unassigned; l = l->next)
			*free_now += s->shape[shape].slot_count;
		if (d->alloc.retry_ns == 0 && d->allocated < d->limit)
			*free_now += (uint64_t)(d->limit - d->allocated) * s->shape[shape].slot_count;
	}
}

uint64_t tn_store_slots(const struct tn_store *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		n += s->dev[i].assigned_slots + (uint64_t)(s->dev[i].limit - s->dev[i].assigned) * s->most_slots;
	return n;
}

bool tn_store_frees_for(const struct tn_store *s, tn_slot slot, uint32_t cls)
{
	const struct tn_store_device *d = tn_store_device_of(s, slot);
	const struct tn_store_segment *sg = &d->segs[tn_store_segment_of(s, tn_store_local(s, slot))];

	return sg->shape == s->cls[cls].shape && !sg->closed && tn_store_device_writable(d) && !tn_store_log_stuck(d);
}
