/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index rebuilt from headers: for a device whose checkpoints or log are lost, and for the slots of
 * single damaged checkpoint pages. Large sequential reads; what does not decode is free. A removed block
 * may come back this way (its header is still there): its bytes are verified on every read like any other's.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define WINDOW_BYTES (32u << 20)

static void adopt_header(struct tn_store_table *t, uint32_t segment, uint32_t index, const void *page, uint32_t bytes)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	uint32_t local = tn_store_local_of(s, segment, index);
	struct tn_disk_page *p = &t->page[local >> 6];
	struct tn_store_header h;

	if (tn_store_header_decode(page, bytes, d->super.device_uuid, tn_store_global(d, local), &h))
		return;
	if (h.entry.sequence > t->max_sequence)
		t->max_sequence = h.entry.sequence;
	if (!tn_store_spaces_adopt(s, &h))
		return;
	p->rec[local & 63] = (struct tn_disk_record){.kind = TN_DISK_BLOCK,
						     .flags = h.entry.flags,
						     .space = h.entry.space,
						     .recency = h.entry.recency,
						     .sequence = h.entry.sequence,
						     .key = h.entry.key,
						     .parent = h.entry.parent,
						     .segment = segment,
						     .index = index,
						     .generation = p->generation};
}

int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	const struct tn_disk_record *seg = &t->seg[segment];
	uint32_t hb = seg->seg.header_bytes, index = first_part * TN_DISK_RECORDS;
	uint32_t end = index + parts * TN_DISK_RECORDS, per_window = WINDOW_BYTES / hb;
	uint32_t chunks = WINDOW_BYTES / TN_STORE_BULK_BYTES + 1;
	uint64_t base = tn_store_segment_offset(d, segment) + TN_DISK_PAGE;
	unsigned char *window;
	uint8_t bad[WINDOW_BYTES / TN_STORE_BULK_BYTES + 1];

	if (segment >= d->allocated)
		return 0;
	if (end > seg->seg.slot_count)
		end = seg->seg.slot_count;
	window = tn_store_pages_get(s, WINDOW_BYTES);
	if (!window)
		return tn_fail(-ENOMEM, "no memory to read block headers");
	for (uint32_t i = 0; i < parts; i++)
		t->page[segment * s->segment_pages + first_part + i].generation = seg->generation;
	while (index < end) {
		uint32_t n = end - index < per_window ? end - index : per_window;

		memset(bad, 0, chunks);
		tn_store_bulk_read(d, base + (uint64_t)index * hb, window, (uint64_t)n * hb, bad);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t at = (uint64_t)i * hb;
			bool spoilt = bad[at / TN_STORE_BULK_BYTES] || bad[(at + hb - 1) / TN_STORE_BULK_BYTES];

			/* One unreadable sector spoils the large read: try its headers one by one. */
			if (spoilt && tn_store_sync_io(d, TN_IO_READ, base + (uint64_t)(index + i) * hb, window + at, hb))
				continue;
			adopt_header(t, segment, index + i, window + at, hb);
		}
		index += n;
	}
	tn_store_pages_put(s, window, WINDOW_BYTES);
	return 0;
}

int tn_store_rebuild(struct tn_store_table *t)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	size_t words = (s->table_pages + s->slot_pages + 63) / 64 * sizeof(uint64_t);
	struct tn_disk_segment *h = tn_store_pages_get(s, TN_DISK_PAGE);
	uint32_t shape;
	int rc = 0;

	if (!h)
		return tn_fail(-ENOMEM, "no memory to read segment headers");
	memset(t->page, 0, (size_t)s->slot_pages * TN_DISK_PAGE);
	memset(t->seg, 0, s->segment_count * sizeof(*t->seg));
	memset(d->ckpt.dirty[0], 0xff, words);
	memset(d->ckpt.dirty[1], 0xff, words);
	for (uint32_t i = 0; i < d->allocated && rc == 0; i++) {
		struct tn_disk_record *r = &t->seg[i];

		if (tn_store_sync_io(d, TN_IO_READ, tn_store_segment_offset(d, i), h, TN_DISK_PAGE) ||
		    tn_disk_segment_check(h, TN_DISK_PAGE, d->super.device_uuid, i))
			continue;
		r->segment = i;
		r->generation = h->generation;
		if (h->generation == 0 ||
		    !tn_store_shape_of(s, h->slot_bytes, h->header_bytes, h->slot_count, &shape))
			continue;
		r->kind = TN_DISK_SEGMENT;
		r->seg.slot_bytes = h->slot_bytes;
		r->seg.header_bytes = h->header_bytes;
		r->seg.slot_count = h->slot_count;
		rc = tn_store_rebuild_parts(t, i, 0, s->segment_pages);
	}
	tn_store_pages_put(s, h, TN_DISK_PAGE);
	d->log.tail = d->log.position = 0;
	d->log.sequence = 1;
	t->max_epoch = d->super.epoch;
	return rc;
}
