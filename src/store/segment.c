/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments and slots: what a segment is divided into, the states with all counters and lists, and the life of a slot once
 * it is reserved (reserve.c).
 *
 * Everything is O(1) or a scan of a few words. A segment goes: not allocated -> unassigned -> assigned to a shape ->
 * (emptied) -> another shape. What the disk must be told about that is only flagged here; log.c and checkpoint.c write
 * it, with the records that are filled here. reserve.c, above, decides which segment is taken, and when.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define LARGE_SLOT_BYTES 65536u /* slots from this size on begin at multiples that suit drives */
#define LARGE_SLOT_ALIGN 16384u

/* ---- shapes: a class is a shape's number ---------------------------------------------------------------------------------------- */

int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape)
{
	uint64_t align = slot_bytes >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_PLACE_ALIGN, n, unused;
	struct tn_store_shape *sh;

	slot_bytes = tn_round_up(slot_bytes, align);
	for (uint32_t i = 0; i < s->nshapes; i++) {
		if (s->shape[i].slot_bytes == slot_bytes && s->shape[i].header_bytes == header_bytes) {
			*shape = i;
			return 0;
		}
	}
	if (s->nshapes == TN_STORE_SHAPES_MAX)
		return tn_fail(-ENOSPC, "more than %u slot sizes in one store", TN_STORE_SHAPES_MAX);
	n = (s->segment_bytes - TN_DISK_PAGE) / (slot_bytes + header_bytes);
	if (n > (uint64_t)s->segment_pages * TN_DISK_RECORDS)
		n = (uint64_t)s->segment_pages * TN_DISK_RECORDS;
	while (n > 0 && tn_round_up(TN_DISK_PAGE + n * header_bytes, align) + n * slot_bytes > s->segment_bytes)
		n--;
	if (n == 0)
		return tn_fail(-EINVAL, "a block of %llu bytes does not fit into this store's segments of %llu: in an empty directory, make a store of %llu "
			       "bytes at least (a segment is a 64th), or one with the geometry of these blocks",
			       (unsigned long long)slot_bytes, (unsigned long long)s->segment_bytes,
			       64 * (unsigned long long)tn_round_up(slot_bytes + header_bytes + 2 * TN_DISK_PAGE, 65536));
	unused = s->segment_bytes - tn_round_up(TN_DISK_PAGE + n * header_bytes, align) - n * slot_bytes;
	if (unused > s->segment_bytes / 4)
		tn_log(s->log, TN_LOG_WARN, "blocks of %llu bytes leave %llu %% of each segment of %llu unused: a larger store, or one that is made with their "
		       "geometry, has segments that suit them", (unsigned long long)slot_bytes,
		       (unsigned long long)(100 * unused / s->segment_bytes), (unsigned long long)s->segment_bytes);
	sh = &s->shape[s->nshapes];
	*sh = (struct tn_store_shape){
		.slot_bytes = slot_bytes,
		.header_bytes = header_bytes,
		.slot_count = (uint32_t)n,
		.data_offset = tn_round_up(TN_DISK_PAGE + n * header_bytes, align)};
	for (uint32_t d = 0; d < TN_DEVICES_MAX; d++)
		tn_list_init(&sh->has_free[d]);
	s->most_slots = s->most_slots > n ? s->most_slots : (uint32_t)n;
	*shape = s->nshapes++;
	return 0;
}

bool tn_store_shape_of(struct tn_store *s, const struct tn_disk_shape *is, uint32_t *shape)
{
	return is->slot_bytes > 0 && is->slot_bytes <= s->segment_bytes && is->header_bytes > 0 &&
	       is->header_bytes % TN_DISK_PAGE == 0 && is->header_bytes <= tn_store_header_size(TN_OBJECTS_MAX) &&
	       tn_store_shape_get(s, is->slot_bytes, is->header_bytes, shape) == 0 &&
	       s->shape[*shape].slot_bytes == is->slot_bytes && s->shape[*shape].slot_count == is->slot_count;
}

static uint64_t padded(uint32_t bytes)
{
	return tn_round_up(bytes, TN_PLACE_ALIGN);
}

int tn_store_class(struct tn_store *s, uint32_t nobjects, const uint32_t *object_bytes, uint32_t *cls)
{
	uint64_t total = 0;

	if (nobjects == 0 || nobjects > TN_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u objects a block: must be 1..%u", nobjects, TN_OBJECTS_MAX);
	for (uint32_t i = 0; i < nobjects; i++) {
		if (object_bytes[i] == 0)
			return tn_fail(-EINVAL, "object %u has no bytes", i);
		total += padded(object_bytes[i]);
	}
	return tn_store_shape_get(s, total, tn_store_header_size(nobjects), cls);
}

uint64_t tn_store_bytes_for(uint64_t blocks, uint32_t ndirs, uint32_t nobjects, const uint32_t *object_bytes,
			    uint64_t *segment_bytes)
{
	uint64_t slot = 0, per_segment, reserve, segments;

	for (uint32_t i = 0; i < nobjects; i++)
		slot += padded(object_bytes[i]);
	slot = tn_round_up(slot, slot >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_PLACE_ALIGN);
	slot += tn_store_header_size(nobjects);
	/* Freed slots wait for their records, and some segments may belong to another class in part. */
	reserve = blocks / 16 + 64 * (uint64_t)ndirs;
	if (blocks > UINT64_MAX / 2 / slot) /* absurd: more than a store can address, which open will say */
		return UINT64_MAX;
	if (*segment_bytes == 0) {
		uint64_t want = (blocks + reserve) * slot / 64;

		if (want < 8 * slot)
			want = 8 * slot;
		*segment_bytes = tn_round_up(want < (4u << 20)	 ? 4u << 20
					     : want > (1u << 30) ? (slot > (1u << 28) ? 4 * slot : 1u << 30)
								 : want,
					     65536);
	}
	per_segment = *segment_bytes > TN_DISK_PAGE + LARGE_SLOT_ALIGN + slot
			      ? (*segment_bytes - TN_DISK_PAGE - LARGE_SLOT_ALIGN) / slot
			      : 1;
	segments = (blocks + reserve + per_segment - 1) / per_segment;
	segments = (segments + ndirs - 1) / ndirs * ndirs;
	return segments > UINT64_MAX / *segment_bytes ? UINT64_MAX : segments * *segment_bytes;
}

/* ---- what is to be written -------------------------------------------------------------------------------------- */

void tn_store_page_dirty(struct tn_store_device *d, uint32_t page)
{
	tn_bit_set(d->ckpt.dirty[0], page);
	tn_bit_set(d->ckpt.dirty[1], page);
}

void tn_store_item_changed(struct tn_store_device *d, uint64_t item)
{
	tn_store_page_dirty(d, (uint32_t)(item >> 6));
	if (d->unlogged.word[item >> 6] >> (item & 63) & 1)
		return;
	if (d->log.unlogged++ == 0)
		d->log.oldest_ns = tn_now_ns(d->store->clock);
	tn_map_set(&d->unlogged, item);
}

static void slot_changed(struct tn_store_device *d, uint32_t local)
{
	tn_store_item_changed(d, tn_store_slot_item(d->store, local));
}

void tn_store_header_dirty(struct tn_store_device *d, uint32_t segment)
{
	d->log.headers_dirty += !d->segs[segment].header_dirty;
	d->segs[segment].header_dirty = true;
}

static struct tn_disk_shape shape_of_segment(const struct tn_store_device *d, uint32_t segment)
{
	const struct tn_store_shape *sh;

	if (d->segs[segment].shape == TN_SHAPE_NONE)
		return (struct tn_disk_shape){0};
	sh = &d->store->shape[d->segs[segment].shape];
	return (struct tn_disk_shape){sh->slot_bytes, sh->header_bytes, sh->slot_count};
}

void tn_store_record_fill(struct tn_store_device *d, uint64_t item, struct tn_disk_record *rec)
{
	struct tn_store *s = d->store;
	uint64_t first = tn_store_slot_item(s, 0);
	struct tn_index_entry e = {0};
	struct tn_slot_meta meta;
	uint32_t local;

	*rec = (struct tn_disk_record){0};
	if (item < first) {
		rec->segment = (uint32_t)(item >> 6) * TN_DISK_RECORDS + (item & 63);
		rec->generation = d->segs[rec->segment].generation;
		rec->shape = shape_of_segment(d, rec->segment);
		rec->kind = rec->shape.slot_count > 0 ? TN_DISK_SEGMENT : TN_DISK_EMPTY;
		return;
	}
	local = (uint32_t)(item - first);
	meta = d->meta[local];
	rec->segment = tn_store_segment_of(s, local);
	rec->index = tn_store_index_of(s, local);
	rec->generation = d->segs[rec->segment].generation;
	rec->failures = meta.failures;
	rec->sequence = meta.sequence;
	if (meta.state == TN_SLOT_QUARANTINED)
		rec->kind = TN_DISK_QUARANTINED;
	if (meta.state != TN_SLOT_COMMITTED || tn_store_in_doubt(d, local))
		return;
	s->cb.describe(s->cb.arg, tn_store_global(d, local), d->cookie[local], &e);
	e.sequence = rec->sequence;
	tn_disk_record_block(rec, &e);
}

void tn_store_segment_seal(const struct tn_store_device *d, uint32_t segment, struct tn_disk_segment *h)
{
	const struct tn_store_segment *sg = &d->segs[segment];

	memset(h, 0, sizeof(*h));
	memcpy(h->device_uuid, d->super.device_uuid, sizeof(h->device_uuid));
	h->segment = segment;
	h->generation = sg->generation;
	h->shape = shape_of_segment(d, segment);
	h->prepared = sg->prepared;
	tn_disk_seal(&h->head, TN_DISK_MAGIC_SEGMENT, sizeof(*h));
}

/* ---- states -------------------------------------------------------------------------------------------------------- */

void tn_store_segment_place(struct tn_store_device *d, uint32_t segment)
{
	struct tn_store_segment *sg = &d->segs[segment];

	tn_list_del(&sg->link);
	if (sg->shape == TN_SHAPE_NONE) {
		if (segment < d->allocated && segment < d->limit && d->prep.segment != segment)
			tn_list_push(&d->unassigned, &sg->link);
	} else if (sg->slots[TN_SLOT_FREE] > 0 && !sg->closed) {
		tn_list_push(&d->store->shape[sg->shape].has_free[d->index], &sg->link);
	}
}

static void count_state(struct tn_store_device *d, struct tn_store_segment *sg, enum tn_slot_state state, int by)
{
	sg->slots[state] += (uint32_t)by;
	d->slots[state] += (uint64_t)(int64_t)by;
	d->store->slots[state] += (uint64_t)(int64_t)by;
	if (state == TN_SLOT_FREE && !sg->closed)
		d->store->shape[sg->shape].free_slots[d->index] += (uint64_t)(int64_t)by;
}

void tn_store_slot_set(struct tn_store_device *d, uint32_t local, enum tn_slot_state state)
{
	uint32_t segment = tn_store_segment_of(d->store, local), page = local >> 6;
	struct tn_store_segment *sg = &d->segs[segment];
	enum tn_slot_state old = d->meta[local].state;
	bool was_empty = tn_store_used(sg) == 0, had_free = sg->slots[TN_SLOT_FREE] > 0;

	if (old == state)
		return;
	count_state(d, sg, old, -1);
	count_state(d, sg, state, 1);
	d->meta[local].state = state;
	if (state != TN_SLOT_RESERVED && state != TN_SLOT_COMMITTED)
		d->doubtful[page] &= ~(1ull << (local & 63));
	d->free[page] &= ~(1ull << (local & 63));
	d->free[page] |= (uint64_t)(state == TN_SLOT_FREE) << (local & 63);
	if (was_empty != (tn_store_used(sg) == 0))
		d->empty += was_empty ? UINT32_MAX : 1;
	if (had_free != (sg->slots[TN_SLOT_FREE] > 0))
		tn_store_segment_place(d, segment);
}

/* ---- assigning segments ------------------------------------------------------------------------------------ */

/* Forgets the slots. Those that were quarantined stay as bits of d->free, because their places on the medium are bad. */
static void clear_segment(struct tn_store_device *d, uint32_t segment)
{
	struct tn_store *s = d->store;
	uint32_t first = segment * s->segment_pages;

	for (uint32_t p = first; p < first + s->segment_pages; p++) {
		d->free[p] = 0;
		for (uint32_t i = 0; i < TN_DISK_RECORDS; i++)
			if (d->meta[p << 6 | i].state == TN_SLOT_QUARANTINED)
				d->free[p] |= 1ull << i;
		memset(&d->meta[(size_t)p * 64], 0, 64 * sizeof(*d->meta));
		tn_store_page_dirty(d, s->table_pages + p);
	}
}

/* Of n slots, the first at `start` and of `each` bytes, those that touch the range begin with one failure. */
static void suspect(struct tn_store_device *d, uint32_t segment, uint32_t n, uint64_t start, uint64_t each, uint64_t from,
		    uint64_t to)
{
	for (uint64_t i = from > start ? (from - start) / each : 0; i < n && start + i * each < to; i++) {
		uint32_t local = tn_store_local_of(d->store, segment, (uint32_t)i);

		d->meta[local] = (struct tn_slot_meta){.state = TN_SLOT_FREE, .failures = 1};
		slot_changed(d, local);
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

void tn_store_segment_fill(struct tn_store_device *d, uint32_t segment)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];
	uint32_t n = s->shape[sg->shape].slot_count;

	count_state(d, sg, TN_SLOT_FREE, (int)n);
	d->empty++;
	if (!sg->closed) {
		d->assigned++;
		d->assigned_slots += n;
	}
	for (uint32_t i = 0; i < n; i += TN_DISK_RECORDS)
		d->free[segment * s->segment_pages + i / TN_DISK_RECORDS] =
			(1ull << (n - i < TN_DISK_RECORDS ? n - i : TN_DISK_RECORDS)) - 1;
	tn_store_segment_place(d, segment);
}

void tn_store_segment_assign(struct tn_store_device *d, uint32_t segment, uint32_t shape)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];

	assert(tn_store_segment_clean(d, segment) && segment < d->limit);
	if (d->victim == segment)
		d->victim = UINT32_MAX;
	clear_segment(d, segment);
	if (sg->shape != TN_SHAPE_NONE) {
		for (int k = 0; k < TN_SLOT_STATES; k++)
			count_state(d, sg, (enum tn_slot_state)k, -(int)sg->slots[k]);
		d->empty--;
		d->assigned--;
		d->assigned_slots -= s->shape[sg->shape].slot_count;
		carry_over(d, segment, &s->shape[sg->shape], &s->shape[shape]);
	}
	sg->shape = shape;
	sg->generation++;
	sg->cursor = 0;
	sg->closed = false;
	sg->warm = (float)s->recency; /* blocks that come into the segment are new */
	tn_store_header_dirty(d, segment);
	tn_store_item_changed(d, tn_store_segment_item(segment));
	tn_store_segment_fill(d, segment);
}

/* Not if most of its slots are bad: the segment would be passed round, and fail everywhere. */
bool tn_store_segment_movable(const struct tn_store_device *d, uint32_t segment, uint32_t shape)
{
	const struct tn_store_segment *sg = &d->segs[segment];

	return sg->shape != TN_SHAPE_NONE && sg->shape != shape &&
	       sg->slots[TN_SLOT_QUARANTINED] <= d->store->shape[sg->shape].slot_count / 2;
}

/* ---- the life of a slot: per block, so a few words of memory each ---------------------------------------------------- */

uint64_t tn_store_next_sequence(struct tn_store *s)
{
	return s->sequence++;
}

static void warm(struct tn_store_device *d, uint32_t local, uint32_t recency)
{
	struct tn_store_segment *sg = &d->segs[tn_store_segment_of(d->store, local)];
	uint32_t n = d->store->shape[sg->shape].slot_count / 2;

	d->store->recency = d->store->recency > recency ? d->store->recency : recency;
	sg->warm += ((float)recency - sg->warm) / (float)(n > 4 ? n : 4);
}

void tn_store_publish(struct tn_store *s, tn_slot slot, uint32_t cookie, const struct tn_index_entry *entry)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(d->meta[local].state == TN_SLOT_RESERVED);
	assert(entry->sequence < s->sequence && entry->space < s->spaces.count);
	d->cookie[local] = cookie;
	d->meta[local].sequence = entry->sequence;
	tn_store_slot_set(d, local, TN_SLOT_COMMITTED);
	slot_changed(d, local);
	d->log.published_bytes += s->shape[d->segs[tn_store_segment_of(s, local)].shape].slot_bytes;
	warm(d, local, entry->recency);
	if (!tn_store_in_doubt(d, local))
		return;
	tn_log(s->log, TN_LOG_ERROR, "%s: slot %u was being written when a sync failed: its block is given up", d->path, slot);
	d->lost_blocks++;
	d->untold = true;
	d->tell_ns = 0;
}

void tn_store_unreserve(struct tn_store *s, tn_slot slot)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(d->meta[local].state == TN_SLOT_RESERVED);
	tn_store_slot_set(d, local, TN_SLOT_FREE);
}

static void change_committed(struct tn_store *s, tn_slot slot, enum tn_slot_state state)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(d->meta[local].state == TN_SLOT_COMMITTED);
	tn_store_slot_set(d, local, state);
	slot_changed(d, local);
}

void tn_store_update(struct tn_store *s, tn_slot slot)
{
	change_committed(s, slot, TN_SLOT_COMMITTED);
}

void tn_store_remove(struct tn_store *s, tn_slot slot)
{
	change_committed(s, slot, TN_SLOT_FREEING);
}

bool tn_store_offline(const struct tn_store *s, tn_slot slot)
{
	return tn_store_device_of(s, slot)->hs.health == TN_OFFLINE;
}

/* Where everything fails no slot is to blame: reads of an offline device, and writes of one that is read-only, too. */
static bool fails_everywhere(const struct tn_store_device *d, enum tn_slot_state state)
{
	return d->hs.health == TN_OFFLINE || (state == TN_SLOT_RESERVED && d->hs.health == TN_READ_ONLY);
}

void tn_store_fail_slot(struct tn_store *s, tn_slot slot, bool eio)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);
	struct tn_slot_meta *m = &d->meta[local];

	assert(m->state == TN_SLOT_COMMITTED || m->state == TN_SLOT_RESERVED);
	if (eio && fails_everywhere(d, m->state)) {
		tn_store_slot_set(d, local, TN_SLOT_FREEING);
		slot_changed(d, local);
		return;
	}
	m->failures += m->failures < TN_SLOT_FAILURES_MAX;
	if (eio || m->failures >= 2) {
		tn_log(s->log, TN_LOG_WARN, "%s: slot %u is never used again (%s)", d->path, slot,
		       eio ? "I/O error" : "failed verification twice");
		tn_store_slot_set(d, local, TN_SLOT_QUARANTINED);
	} else {
		tn_store_slot_set(d, local, TN_SLOT_FREEING);
	}
	slot_changed(d, local);
}

uint32_t tn_store_cookie(const struct tn_store *s, tn_slot slot)
{
	const struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	return d->meta[local].state == TN_SLOT_COMMITTED ? d->cookie[local] : UINT32_MAX;
}

uint64_t tn_store_sequence(const struct tn_store *s, tn_slot slot)
{
	struct tn_slot_meta m = tn_store_device_of(s, slot)->meta[tn_store_local(s, slot)];

	return m.state == TN_SLOT_COMMITTED ? m.sequence : 0;
}

void tn_store_touch(struct tn_store *s, tn_slot slot, uint32_t recency)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	warm(d, local, recency);
	tn_bit_set(d->ckpt.soft[0], s->table_pages + (local >> 6));
	tn_bit_set(d->ckpt.soft[1], s->table_pages + (local >> 6));
	d->ckpt.soft_any = true;
}

void tn_store_locate(const struct tn_store *s, tn_slot slot, struct tn_store_place *place)
{
	const struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot), segment = tn_store_segment_of(s, local);
	uint64_t base = tn_store_segment_offset(d, segment), index = tn_store_index_of(s, local);
	const struct tn_store_shape *sh;

	assert(d->segs[segment].shape != TN_SHAPE_NONE);
	sh = &s->shape[d->segs[segment].shape];
	assert(index < sh->slot_count);
	*place = (struct tn_store_place){
		.device = d->index,
		.file = d->file,
		.data_offset = base + sh->data_offset + index * sh->slot_bytes,
		.header_offset = base + TN_DISK_PAGE + index * sh->header_bytes,
		.header_bytes = sh->header_bytes,
		.slot_bytes = sh->slot_bytes,
	};
}

void tn_store_uuid(const struct tn_store *s, tn_slot slot, uint64_t uuid[2])
{
	memcpy(uuid, tn_store_device_of(s, slot)->super.device_uuid, 16);
}
