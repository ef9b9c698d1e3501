/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and slots: their states, with all counters and lists, and what about them is still to be logged.
 *
 * Everything is O(1) or a scan of a few words. A segment goes: not allocated -> unassigned -> assigned
 * to a shape -> (emptied: move.c) -> another shape. What must be written about that is only flagged
 * here; log.c and checkpoint.c write it. reserve.c and move.c, above, decide which segment is taken, and when.
 */
#include <string.h>

#include "store/store_internal.h"

/* ---- state of slots ------------------------------------------------------------------------------------- */

void tn_store_slot_dirty(struct tn_store_device *d, uint32_t local)
{
	uint32_t page = d->store->table_pages + (local >> 6);

	tn_bit_set(d->ckpt.dirty[0], page);
	tn_bit_set(d->ckpt.dirty[1], page);
}

void tn_store_slot_unlogged(struct tn_store_device *d, uint32_t local)
{
	uint64_t bit = 1ull << (local & 63);

	if (d->unlogged[local >> 6] & bit)
		return;
	if (d->log.unlogged++ == 0 && d->log.segments_unlogged == 0)
		d->log.oldest_ns = tn_now_ns(d->store->clock);
	d->unlogged[local >> 6] |= bit;
	tn_bit_set(d->unlogged_pages, local >> 6);
}

void tn_store_segment_unlogged(struct tn_store_device *d, uint32_t segment)
{
	if (d->segs[segment].unlogged)
		return;
	if (d->log.segments_unlogged++ == 0 && d->log.unlogged == 0)
		d->log.oldest_ns = tn_now_ns(d->store->clock);
	d->segs[segment].unlogged = true;
}

void tn_store_segment_place(struct tn_store_device *d, uint32_t segment)
{
	struct tn_store_segment *sg = &d->segs[segment];

	tn_list_del(&sg->link);
	if (sg->shape == TN_SHAPE_NONE) {
		if (segment < d->allocated && segment < d->limit && d->prep.segment != segment)
			tn_list_push(&d->unassigned, &sg->link);
	} else if (sg->free > 0 && !sg->closed) {
		tn_list_push(&d->store->shape[sg->shape].has_free[d->index], &sg->link);
	}
}

static void count_state(struct tn_store_device *d, struct tn_store_segment *sg, enum tn_slot_state state, int by)
{
	struct tn_store *s = d->store;
	uint64_t n = (uint64_t)(int64_t)by;

	switch (state) {
	case TN_SLOT_FREE:
		sg->free += (uint32_t)by;
		if (!sg->closed)
			s->shape[sg->shape].free_slots[d->index] += n;
		return;
	case TN_SLOT_RESERVED:
		d->reserved += n;
		s->reserved += n;
		break;
	case TN_SLOT_COMMITTED:
		d->committed += n;
		s->committed += n;
		break;
	case TN_SLOT_FREEING:
		d->freeing += n;
		sg->freeing += (uint32_t)by;
		break;
	case TN_SLOT_QUARANTINED:
		d->quarantined += n;
		sg->quarantined += (uint32_t)by;
		return;
	}
	sg->used += (uint32_t)by;
}

void tn_store_slot_set(struct tn_store_device *d, uint32_t local, enum tn_slot_state state)
{
	uint32_t segment = tn_store_segment_of(d->store, local), page = local >> 6;
	struct tn_store_segment *sg = &d->segs[segment];
	enum tn_slot_state old = TN_META_STATE(d->meta[local]);
	bool was_empty = sg->used == 0, had_free = sg->free > 0;

	if (old == state)
		return;
	count_state(d, sg, old, -1);
	count_state(d, sg, state, 1);
	d->meta[local] = TN_META_WITH_STATE(d->meta[local], state);
	if (state != TN_SLOT_RESERVED && state != TN_SLOT_COMMITTED)
		d->doubtful[page] &= ~(1ull << (local & 63));
	if (state == TN_SLOT_FREE)
		d->free[page] |= 1ull << (local & 63);
	else
		d->free[page] &= ~(1ull << (local & 63));
	if (was_empty != (sg->used == 0))
		d->empty += was_empty ? UINT32_MAX : 1;
	if (had_free != (sg->free > 0))
		tn_store_segment_place(d, segment);
}

/* ---- assigning segments ------------------------------------------------------------------------------------ */

/* Forgets the slots. Those that were quarantined stay as bits of d->free, because their places on the medium are bad. */
static void clear_segment(struct tn_store_device *d, uint32_t segment)
{
	struct tn_store *s = d->store;
	uint32_t first = segment * s->segment_pages;

	d->quarantined -= d->segs[segment].quarantined;
	d->segs[segment].quarantined = 0;
	for (uint32_t p = first; p < first + s->segment_pages; p++) {
		d->free[p] = 0;
		for (uint32_t i = 0; i < TN_DISK_RECORDS; i++)
			if (TN_META_STATE(d->meta[p << 6 | i]) == TN_SLOT_QUARANTINED)
				d->free[p] |= 1ull << i;
		memset(&d->meta[(size_t)p * 64], 0, 64 * sizeof(*d->meta));
		tn_bit_set(d->ckpt.dirty[0], s->table_pages + p);
		tn_bit_set(d->ckpt.dirty[1], s->table_pages + p);
	}
}

/* Of n slots, the first at `start` and of `each` bytes, those that touch the range begin with one failure. */
static void suspect(struct tn_store_device *d, uint32_t segment, uint32_t n, uint64_t start, uint64_t each, uint64_t from,
		    uint64_t to)
{
	for (uint64_t i = from > start ? (from - start) / each : 0; i < n && start + i * each < to; i++) {
		uint32_t local = tn_store_local_of(d->store, segment, (uint32_t)i);

		d->meta[local] = TN_META(0, 1, TN_SLOT_FREE);
		tn_store_slot_unlogged(d, local);
	}
}

/*
 * The places of slots that were quarantined under the old shape: the next failure there quarantines a slot of the new
 * one. Nothing is quarantined at once, because each move would round the bad places up to whole slots, until no slot
 * were left.
 */
static void carry_over(struct tn_store_device *d, uint32_t segment, const struct tn_store_shape *old,
		       const struct tn_store_shape *shape)
{
	uint32_t first = segment * d->store->segment_pages;

	for (uint32_t p = first; p < first + d->store->segment_pages; p++) {
		for (uint64_t left = d->free[p]; left; left &= left - 1) {
			uint64_t i = (uint64_t)(p - first) * TN_DISK_RECORDS + (uint64_t)__builtin_ctzll(left);
			uint64_t at[2] = {TN_DISK_PAGE + i * old->header_bytes, old->data_offset + i * old->slot_bytes};
			uint64_t len[2] = {old->header_bytes, old->slot_bytes};

			for (int k = 0; k < 2; k++) {
				suspect(d, segment, shape->slot_count, TN_DISK_PAGE, shape->header_bytes, at[k], at[k] + len[k]);
				suspect(d, segment, shape->slot_count, shape->data_offset, shape->slot_bytes, at[k],
					at[k] + len[k]);
			}
		}
		d->free[p] = 0; /* the bits of the new shape's slots are set later */
	}
}

void tn_store_segment_assign(struct tn_store_device *d, uint32_t segment, uint32_t shape)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];
	uint32_t n = s->shape[shape].slot_count;

	assert(tn_store_segment_clean(d, segment) && segment < d->limit);
	if (d->victim == segment)
		d->victim = UINT32_MAX;
	clear_segment(d, segment);
	if (sg->shape == TN_SHAPE_NONE) {
		d->empty++;
		d->assigned++;
	} else {
		if (!sg->closed)
			s->shape[sg->shape].free_slots[d->index] -= sg->free;
		d->assigned_slots -= s->shape[sg->shape].slot_count;
		carry_over(d, segment, &s->shape[sg->shape], &s->shape[shape]);
	}
	d->assigned_slots += n;
	s->shape[shape].free_slots[d->index] += n;
	sg->shape = shape;
	sg->generation++;
	sg->free = n;
	sg->cursor = 0;
	sg->closed = false;
	sg->warm = (float)s->recency; /* blocks that come into the segment are new */
	for (uint32_t i = 0; i < n; i += TN_DISK_RECORDS) {
		uint32_t k = n - i < TN_DISK_RECORDS ? n - i : TN_DISK_RECORDS;

		d->free[segment * s->segment_pages + i / TN_DISK_RECORDS] = (1ull << k) - 1;
	}
	if (!sg->header_dirty)
		d->log.headers_dirty++;
	sg->header_dirty = true;
	tn_store_segment_unlogged(d, segment);
	tn_bit_set(d->ckpt.dirty[0], segment / TN_DISK_RECORDS);
	tn_bit_set(d->ckpt.dirty[1], segment / TN_DISK_RECORDS);
	tn_store_segment_place(d, segment);
}

/* Not if most of its slots are bad: the segment would be passed round, and fail everywhere. */
bool tn_store_segment_movable(const struct tn_store_device *d, uint32_t segment, uint32_t shape)
{
	const struct tn_store_segment *sg = &d->segs[segment];

	return sg->shape != TN_SHAPE_NONE && sg->shape != shape &&
	       sg->quarantined <= d->store->shape[sg->shape].slot_count / 2;
}
