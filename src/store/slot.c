/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a slot once it is reserved (reserve.c): published, used, removed or given up. Called per block, so each is a
 * few words of memory; what the disk must be told is only marked (segment.c).
 */
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

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

void tn_store_publish(struct tn_store *s, tn_slot slot, uint32_t cookie, const struct tn_store_entry *entry)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(TN_META_STATE(d->meta[local]) == TN_SLOT_RESERVED);
	assert(entry->sequence < s->sequence && entry->space < s->spaces->count);
	d->cookie[local] = cookie;
	d->meta[local] = TN_META(entry->sequence, TN_META_FAILURES(d->meta[local]), TN_SLOT_RESERVED);
	tn_store_slot_set(d, local, TN_SLOT_COMMITTED);
	tn_store_slot_unlogged(d, local);
	tn_store_slot_dirty(d, local);
	tn_store_doubt_publish(d, local);
	warm(d, local, entry->recency);
}

void tn_store_update(struct tn_store *s, tn_slot slot)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(TN_META_STATE(d->meta[local]) == TN_SLOT_COMMITTED);
	tn_store_slot_unlogged(d, local);
	tn_store_slot_dirty(d, local);
}

void tn_store_remove(struct tn_store *s, tn_slot slot)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	assert(TN_META_STATE(d->meta[local]) == TN_SLOT_COMMITTED);
	tn_store_slot_set(d, local, TN_SLOT_FREEING);
	tn_store_slot_unlogged(d, local);
	tn_store_slot_dirty(d, local);
}

void tn_store_fail_slot(struct tn_store *s, tn_slot slot, bool eio)
{
	struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);
	uint64_t m = d->meta[local];
	unsigned failures = TN_META_FAILURES(m) < 15 ? TN_META_FAILURES(m) + 1 : 15;

	assert(TN_META_STATE(m) == TN_SLOT_COMMITTED || TN_META_STATE(m) == TN_SLOT_RESERVED);
	d->meta[local] = TN_META(TN_META_SEQUENCE(m), failures, TN_META_STATE(m));
	if (eio || failures >= 2) {
		tn_log(s->log, TN_LOG_WARN, "%s: slot %u is never used again (%s)", d->path, slot,
		       eio ? "I/O error" : "failed verification twice");
		tn_store_slot_set(d, local, TN_SLOT_QUARANTINED);
	} else {
		tn_store_slot_set(d, local, TN_SLOT_FREEING);
	}
	tn_store_slot_unlogged(d, local);
	tn_store_slot_dirty(d, local);
}

uint32_t tn_store_cookie(const struct tn_store *s, tn_slot slot)
{
	const struct tn_store_device *d = tn_store_device_of(s, slot);
	uint32_t local = tn_store_local(s, slot);

	return TN_META_STATE(d->meta[local]) == TN_SLOT_COMMITTED ? d->cookie[local] : UINT32_MAX;
}

uint64_t tn_store_sequence(const struct tn_store *s, tn_slot slot)
{
	uint64_t m = tn_store_device_of(s, slot)->meta[tn_store_local(s, slot)];

	return TN_META_STATE(m) == TN_SLOT_COMMITTED ? TN_META_SEQUENCE(m) : 0;
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
