/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: shapes and classes, segments, slots and their states.
 *
 * Everything is O(1) or a scan of a few words. A segment goes: not allocated -> unassigned -> assigned
 * to a shape -> (emptied: move.c) -> another shape. What must be written about that is only marked
 * here; log.c and checkpoint.c write it.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define LARGE_SLOT_BYTES 65536u /* from here on slots begin where drives like it */
#define LARGE_SLOT_ALIGN 16384u

/* ---- classes ------------------------------------------------------------------------------------------ */

int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape)
{
	uint64_t align = slot_bytes >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_STORE_BLOCK_ALIGN, n, start;
	struct tn_store_shape *sh;

	slot_bytes = tn_round_up(slot_bytes, align);
	for (uint32_t i = 0; i < s->nshapes; i++) {
		if (s->shape[i].slot_bytes == slot_bytes && s->shape[i].header_bytes == header_bytes) {
			*shape = i;
			return 0;
		}
	}
	if (slot_bytes + header_bytes + TN_DISK_PAGE > s->segment_bytes)
		return tn_fail(-EINVAL, "a block of %llu bytes does not fit into this store's segments of %llu: use another directory or "
			       "instance for larger blocks",
			       (unsigned long long)slot_bytes, (unsigned long long)s->segment_bytes);
	if (s->nshapes == TN_STORE_SHAPES_MAX)
		return tn_fail(-ENOSPC, "more than %u slot sizes in one store", TN_STORE_SHAPES_MAX);
	n = (s->segment_bytes - TN_DISK_PAGE) / (slot_bytes + header_bytes);
	if (n > (uint64_t)s->segment_pages * TN_DISK_RECORDS)
		n = (uint64_t)s->segment_pages * TN_DISK_RECORDS;
	for (;; n--) {
		start = tn_round_up(TN_DISK_PAGE + n * header_bytes, align);
		if (start + n * slot_bytes <= s->segment_bytes)
			break;
	}
	if (n == 0)
		return tn_fail(-EINVAL, "a block of %llu bytes does not fit into this store's segments of %llu: use another directory or "
			       "instance for larger blocks",
			       (unsigned long long)slot_bytes, (unsigned long long)s->segment_bytes);
	sh = &s->shape[s->nshapes];
	*sh = (struct tn_store_shape){
		.slot_bytes = slot_bytes, .header_bytes = header_bytes, .slot_count = (uint32_t)n, .data_offset = start};
	for (uint32_t d = 0; d < TN_DEVICES_MAX; d++)
		tn_list_init(&sh->has_free[d]);
	s->most_slots = s->most_slots > n ? s->most_slots : (uint32_t)n;
	*shape = s->nshapes++;
	return 0;
}

bool tn_store_shape_of(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t slot_count, uint32_t *shape)
{
	return slot_bytes > 0 && slot_bytes <= s->segment_bytes && header_bytes > 0 && header_bytes % TN_DISK_PAGE == 0 &&
	       header_bytes <= tn_store_header_size(TN_STORE_OBJECTS_MAX) &&
	       tn_store_shape_get(s, slot_bytes, header_bytes, shape) == 0 && s->shape[*shape].slot_bytes == slot_bytes &&
	       s->shape[*shape].slot_count == slot_count;
}

static uint64_t padded(uint32_t bytes)
{
	return tn_round_up(bytes, TN_STORE_BLOCK_ALIGN);
}

static bool same_class(const struct tn_store_class *c, uint32_t nobjects, const uint32_t *bytes, bool uniform)
{
	if (c->nobjects != nobjects)
		return false;
	if (!c->bytes)
		return uniform && c->uniform_bytes == bytes[0];
	return !uniform && memcmp(c->bytes, bytes, nobjects * sizeof(*bytes)) == 0;
}

int tn_store_class(struct tn_store *s, uint32_t nobjects, const uint32_t *object_bytes, uint32_t *cls)
{
	struct tn_store_class c = {.nobjects = nobjects};
	bool uniform = true;
	uint64_t total = 0;
	int rc;

	if (nobjects == 0 || nobjects > TN_STORE_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u objects a block: must be 1..%u", nobjects, TN_STORE_OBJECTS_MAX);
	for (uint32_t i = 0; i < nobjects; i++) {
		if (object_bytes[i] == 0)
			return tn_fail(-EINVAL, "object %u has no bytes", i);
		uniform = uniform && object_bytes[i] == object_bytes[0];
		total += padded(object_bytes[i]);
	}
	for (uint32_t i = 0; i < s->nclasses; i++) {
		if (same_class(&s->cls[i], nobjects, object_bytes, uniform)) {
			*cls = i;
			return 0;
		}
	}
	if (s->nclasses == TN_STORE_CLASSES_MAX)
		return tn_fail(-ENOSPC, "more than %u kinds of blocks in one store", TN_STORE_CLASSES_MAX);
	rc = tn_store_shape_get(s, total, tn_store_header_size(nobjects), &c.shape);
	if (rc)
		return rc;
	if (uniform) {
		c.uniform = padded(object_bytes[0]);
		c.uniform_bytes = object_bytes[0];
	} else {
		c.offset = tn_get(s->alloc, (nobjects + 1) * sizeof(*c.offset));
		c.bytes = tn_get(s->alloc, nobjects * sizeof(*c.bytes));
		if (!c.offset || !c.bytes) {
			tn_put(s->alloc, c.offset, (nobjects + 1) * sizeof(*c.offset));
			tn_put(s->alloc, c.bytes, nobjects * sizeof(*c.bytes));
			return tn_fail(-ENOMEM, "no memory for a class of %u objects", nobjects);
		}
		memcpy(c.bytes, object_bytes, nobjects * sizeof(*c.bytes));
		for (uint32_t i = 0; i < nobjects; i++)
			c.offset[i + 1] = c.offset[i] + padded(object_bytes[i]);
	}
	s->cls[s->nclasses] = c;
	*cls = s->nclasses++;
	return 0;
}

uint64_t tn_store_object_offset(const struct tn_store *s, uint32_t cls, uint32_t i)
{
	const struct tn_store_class *c = &s->cls[cls];

	assert(cls < s->nclasses && i <= c->nobjects);
	return c->offset ? c->offset[i] : c->uniform * i;
}

uint64_t tn_store_bytes_for(uint64_t blocks, uint32_t ndirs, uint32_t nobjects, const uint32_t *object_bytes,
			    uint64_t *segment_bytes)
{
	uint64_t slot = 0, per_segment, reserve, segments;

	for (uint32_t i = 0; i < nobjects; i++)
		slot += padded(object_bytes[i]);
	slot = tn_round_up(slot, slot >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_STORE_BLOCK_ALIGN);
	slot += tn_store_header_size(nobjects);
	/* Freed slots wait for their record, and some segments may be partly another class's. */
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

bool tn_store_device_writable(const struct tn_store_device *d)
{
	return !d->store->read_only && (d->hs.health == TN_HEALTHY || d->hs.health == TN_SLOW);
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

/* Forgets the slots; those that were quarantined stay as bits of d->free, for their places on the medium are bad. */
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

/* Of n slots, each bytes long and the first at start, those that touch the range begin with a failure. */
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
 * The places of slots that were quarantined under the old shape: the next failure there quarantines a slot of the new one.
 * Not at once, because each move would round the bad places up to whole slots and in the end nothing were left.
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
		d->free[p] = 0; /* those that the new shape has are set again */
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
	sg->warm = (float)s->recency; /* what comes into it is new */
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

uint64_t tn_store_segment_step(struct tn_store_device *d, uint64_t now_ns)
{
	if (d->store->read_only || !tn_store_device_writable(d))
		return TN_STORE_NEVER;
	return tn_store_allocate_step(d, now_ns);
}

/* ---- reserving ------------------------------------------------------------------------------------------------ */

/* Up to n free slots of one segment, neighbours first: the search goes on where the last one ended. */
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
		if (tn_list_empty(list)) /* the new segment is beyond what may be used */
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
	uint32_t shape = s->cls[cls].shape, nd = s->ndevices, want = n, got = 0;
	uint64_t held = s->committed + s->reserved;

	assert(cls < s->nclasses);
	if (s->read_only)
		return 0;
	if (s->capacity_blocks > 0) {
		if (held >= s->capacity_blocks)
			want = 0;
		else if (want > s->capacity_blocks - held)
			want = (uint32_t)(s->capacity_blocks - held);
	}
	for (uint32_t i = 0; i < want; i++)
		slots[i] = TN_SLOT_NONE;
	/* Block i goes to device i modulo their number; each gets its blocks as neighbours. */
	for (uint32_t k = 0; k < nd && k < want; k++) {
		struct tn_store_device *d = &s->dev[(s->next_device + k) % nd];

		if (tn_store_device_writable(d))
			got += reserve_on(d, shape, (want - k + nd - 1) / nd, slots + k, nd);
	}
	got = compact(slots, want);
	for (uint32_t k = 0; k < nd && got < want; k++) {
		struct tn_store_device *d = &s->dev[k];

		if (tn_store_device_writable(d))
			got += reserve_on(d, shape, want - got, slots + got, 1);
	}
	s->next_device = (s->next_device + got) % nd;
	if (got < want)
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

uint32_t tn_store_file(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices && s->dev[device].index == device);
	return s->dev[device].absent ? TN_IO_NO_FILE : s->dev[device].file;
}

uint32_t tn_store_align(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices);
	return s->dev[device].align;
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

bool tn_store_writable(const struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (tn_store_device_writable(&s->dev[i]))
			return true;
	return false;
}

void tn_store_free_slots(const struct tn_store *s, uint32_t cls, uint64_t *free_now, uint64_t *freeing)
{
	uint32_t shape = s->cls[cls].shape;
	uint64_t room = 0, held = s->committed + s->reserved;

	*freeing = 0;
	for (uint32_t i = 0; i < s->ndevices; i++) {
		const struct tn_store_device *d = &s->dev[i];

		if (!tn_store_device_writable(d)) /* nor does what is removed there become free by itself */
			continue;
		for (uint32_t k = 0; k < d->allocated && !tn_store_log_stuck(d); k++)
			if (d->segs[k].shape == shape && !d->segs[k].closed)
				*freeing += d->segs[k].freeing;
		room += s->shape[shape].free_slots[i];
		for (const struct tn_list *l = d->unassigned.next; l != &d->unassigned; l = l->next)
			room += s->shape[shape].slot_count;
		if (d->alloc.retry_ns == 0 && d->allocated < d->limit)
			room += (uint64_t)(d->limit - d->allocated) * s->shape[shape].slot_count;
	}
	if (s->capacity_blocks > 0) {
		uint64_t left = held < s->capacity_blocks ? s->capacity_blocks - held : 0;

		room = room < left ? room : left;
	}
	*free_now = room;
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
