/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a slot and a segment are at this moment, in the form in which the disk has it: records of log groups and of
 * checkpoint pages, and the headers of segments. Fills memory; log.c, checkpoint.c and prepare.c write it.
 */
#include <string.h>

#include "store/store_internal.h"

void tn_store_record_fill(struct tn_store_device *d, uint32_t local, struct tn_disk_record *rec)
{
	struct tn_store *s = d->store;
	uint64_t meta = d->meta[local];
	uint32_t segment = tn_store_segment_of(s, local);
	struct tn_store_entry e;

	memset(rec, 0, sizeof(*rec));
	rec->segment = segment;
	rec->index = tn_store_index_of(s, local);
	rec->generation = d->segs[segment].generation;
	rec->failures = (uint8_t)TN_META_FAILURES(meta);
	rec->sequence = TN_META_SEQUENCE(meta);
	if (TN_META_STATE(meta) == TN_SLOT_QUARANTINED)
		rec->kind = TN_DISK_QUARANTINED;
	if (TN_META_STATE(meta) != TN_SLOT_COMMITTED || tn_store_in_doubt(d, local))
		return;
	memset(&e, 0, sizeof(e));
	s->cb.describe(s->cb.arg, tn_store_global(d, local), d->cookie[local], &e);
	rec->kind = TN_DISK_BLOCK;
	rec->flags = e.flags;
	rec->space = e.space;
	rec->recency = e.recency;
	rec->key = e.key;
	rec->parent = e.parent;
}

void tn_store_segment_record(const struct tn_store_device *d, uint32_t segment, struct tn_disk_record *rec)
{
	const struct tn_store_segment *sg = &d->segs[segment];

	memset(rec, 0, sizeof(*rec));
	rec->segment = segment;
	rec->generation = sg->generation;
	if (sg->shape == TN_SHAPE_NONE)
		return;
	rec->kind = TN_DISK_SEGMENT;
	rec->seg.slot_bytes = d->store->shape[sg->shape].slot_bytes;
	rec->seg.header_bytes = d->store->shape[sg->shape].header_bytes;
	rec->seg.slot_count = d->store->shape[sg->shape].slot_count;
}

void tn_store_segment_seal(const struct tn_store_device *d, uint32_t segment, struct tn_disk_segment *h)
{
	const struct tn_store_segment *sg = &d->segs[segment];

	memset(h, 0, sizeof(*h));
	memcpy(h->device_uuid, d->super.device_uuid, sizeof(h->device_uuid));
	h->segment = segment;
	h->generation = sg->generation;
	if (sg->shape != TN_SHAPE_NONE) {
		h->slot_bytes = d->store->shape[sg->shape].slot_bytes;
		h->header_bytes = d->store->shape[sg->shape].header_bytes;
		h->slot_count = d->store->shape[sg->shape].slot_count;
	}
	h->prepared = sg->prepared;
	tn_disk_seal(&h->head, TN_DISK_MAGIC_SEGMENT, sizeof(*h));
}
