/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What block headers tell: the index of a device whose checkpoints or log are lost, the slots of single damaged
 * checkpoint pages, and what a segment is whose own header is damaged. Large sequential reads; what does not decode is
 * free. A removed block may come back this way (its header is still there): its bytes are verified on every read like
 * any other's.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/rebuild.h"

#define WINDOW_BYTES (32u << 20)
#define SEARCH_BYTES (4u << 20)
#define HEADER_MAX (13u * TN_DISK_PAGE)

/* bytes 0: it cannot be read. */
typedef void (*header_fn)(struct tn_store_table *t, uint32_t segment, uint32_t index, const void *page, uint32_t bytes);

/* ---- headers at their places --------------------------------------------------------------------------------- */

static void adopt_header(struct tn_store_table *t, uint32_t segment, uint32_t index, const void *page, uint32_t bytes)
{
	const struct tn_disk_head *head = page;
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	uint32_t local = tn_store_local_of(s, segment, index);
	struct tn_disk_page *p = &t->page[local >> 6];
	struct tn_store_header h;

	if (bytes == 0) {
		d->salvage.unreadable++;
		return;
	}
	if (tn_store_header_decode(page, bytes, d->super.device_uuid, tn_store_global(d, local), &h)) {
		d->salvage.damaged += head->magic == TN_DISK_MAGIC_BLOCK;
		return;
	}
	if (h.entry.sequence > t->max_sequence)
		t->max_sequence = h.entry.sequence;
	if (!tn_store_spaces_adopt(s, &h)) {
		d->salvage.dropped++;
		return;
	}
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

/* Does the header bear out what the index says of the slot? If not, no space has its number: recovery drops it durably. */
static void compare_header(struct tn_store_table *t, uint32_t segment, uint32_t index, const void *page, uint32_t bytes)
{
	struct tn_store_device *d = t->dev;
	uint32_t local = tn_store_local_of(d->store, segment, index);
	struct tn_disk_page *p = &t->page[local >> 6];
	struct tn_disk_record *r = &p->rec[local & 63];
	struct tn_store_header h;

	if (p->generation != t->seg[segment].generation || r->kind != TN_DISK_BLOCK)
		return;
	if (bytes > 0 && tn_store_header_decode(page, bytes, d->super.device_uuid, tn_store_global(d, local), &h) == 0 &&
	    tn_key_eq(&h.entry.key, &r->key) && h.entry.sequence == r->sequence) {
		t->fitting++;
		return;
	}
	t->unfit++;
	r->space = UINT16_MAX;
}

/* Calls fn for slots [index, end) of a segment whose record is known. */
static int read_headers(struct tn_store_table *t, uint32_t segment, uint32_t index, uint32_t end, header_fn fn)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	const struct tn_disk_record *seg = &t->seg[segment];
	uint32_t hb = seg->seg.header_bytes, per_window = WINDOW_BYTES / hb;
	uint32_t chunks = WINDOW_BYTES / TN_STORE_BULK_BYTES + 1;
	uint64_t base = tn_store_segment_offset(d, segment) + TN_DISK_PAGE;
	unsigned char *window = tn_store_pages_get(s, WINDOW_BYTES);
	uint8_t bad[WINDOW_BYTES / TN_STORE_BULK_BYTES + 1];

	if (!window)
		return tn_fail(-ENOMEM, "no memory to read block headers");
	while (index < end) {
		uint32_t n = end - index < per_window ? end - index : per_window;

		memset(bad, 0, chunks);
		tn_store_bulk_read(d, base + (uint64_t)index * hb, window, (uint64_t)n * hb, bad);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t at = (uint64_t)i * hb;
			bool spoilt = bad[at / TN_STORE_BULK_BYTES] || bad[(at + hb - 1) / TN_STORE_BULK_BYTES];

			/* One unreadable sector spoils the large read: try its headers one by one. */
			spoilt = spoilt && tn_store_sync_io(d, TN_IO_READ, base + (uint64_t)(index + i) * hb, window + at, hb);
			fn(t, segment, index + i, window + at, spoilt ? 0 : hb);
		}
		index += n;
	}
	tn_store_pages_put(s, window, WINDOW_BYTES);
	return 0;
}

int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts)
{
	struct tn_store *s = t->dev->store;
	const struct tn_disk_record *seg = &t->seg[segment];
	uint32_t index = first_part * TN_DISK_RECORDS, end = index + parts * TN_DISK_RECORDS;

	if (segment >= t->dev->allocated)
		return 0;
	for (uint32_t i = 0; i < parts; i++)
		t->page[segment * s->segment_pages + first_part + i].generation = seg->generation;
	return read_headers(t, segment, index, end < seg->seg.slot_count ? end : seg->seg.slot_count, adopt_header);
}

int tn_store_compare_headers(struct tn_store_table *t, uint32_t segment)
{
	t->fitting = t->unfit = 0;
	return read_headers(t, segment, 0, t->seg[segment].seg.slot_count, compare_header);
}

/* ---- a segment without a header ------------------------------------------------------------------------------- */

/* Shape of the blocks of a valid header that lies where headers of that shape do; its sequence, or 0. */
static uint64_t proves(struct tn_store_device *d, uint32_t segment, uint64_t at, const void *page, uint64_t bytes,
		       uint32_t *shape)
{
	const struct tn_disk_block *b = page;
	struct tn_store *s = d->store;
	struct tn_store_header h;
	uint64_t total = 0, local;

	if (b->head.magic != TN_DISK_MAGIC_BLOCK)
		return 0;
	local = b->slot - (uint64_t)tn_store_global(d, 0);
	if (b->slot < tn_store_global(d, 0) || local >= (uint64_t)s->slot_pages << 6 || (local & 63) >= TN_DISK_RECORDS ||
	    tn_store_segment_of(s, (uint32_t)local) != segment ||
	    tn_store_header_decode(page, bytes < HEADER_MAX ? bytes : HEADER_MAX, d->super.device_uuid, b->slot, &h))
		return 0;
	for (uint32_t i = 0; i < h.nobjects; i++)
		total += tn_round_up(h.object_bytes[i], TN_STORE_BLOCK_ALIGN);
	if (at != TN_DISK_PAGE + (uint64_t)tn_store_index_of(s, (uint32_t)local) * b->header_bytes || total == 0 ||
	    total > s->segment_bytes || tn_store_shape_get(s, total, b->header_bytes, shape) ||
	    tn_store_index_of(s, (uint32_t)local) >= s->shape[*shape].slot_count)
		return 0;
	return h.entry.sequence;
}

/*
 * What the segment is, from its block headers alone: its shape is that of the newest one, since a segment is given to
 * another shape only when it is empty. Older headers at other places are of an earlier shape, and are not looked at
 * again.
 */
static int infer(struct tn_store_table *t, uint32_t segment, bool *known)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	uint64_t base = tn_store_segment_offset(d, segment), newest = 0;
	unsigned char *window = tn_store_pages_get(s, SEARCH_BYTES + HEADER_MAX);
	uint32_t shape = TN_SHAPE_NONE, best = TN_SHAPE_NONE;

	if (!window)
		return tn_fail(-ENOMEM, "no memory to read block headers");
	for (uint64_t at = TN_DISK_PAGE; at < s->segment_bytes; at += SEARCH_BYTES) {
		uint64_t n = s->segment_bytes - at;

		n = n < SEARCH_BYTES + HEADER_MAX ? n : SEARCH_BYTES + HEADER_MAX;
		tn_store_patient_read(d, base + at, window, n);
		for (uint64_t i = 0; i < n && i < SEARCH_BYTES; i += TN_DISK_PAGE) {
			uint64_t sequence = proves(d, segment, at + i, window + i, n - i, &shape);

			if (sequence <= newest)
				continue;
			newest = sequence;
			best = shape;
		}
	}
	tn_store_pages_put(s, window, SEARCH_BYTES + HEADER_MAX);
	*known = newest > 0;
	if (!*known)
		return 0;
	t->seg[segment].seg.slot_bytes = s->shape[best].slot_bytes;
	t->seg[segment].seg.header_bytes = s->shape[best].header_bytes;
	t->seg[segment].seg.slot_count = s->shape[best].slot_count;
	return 0;
}

/* ---- a whole device --------------------------------------------------------------------------------------------- */

enum header_state { HEADER_GOOD, HEADER_UNUSED, HEADER_DAMAGED };

static enum header_state read_segment(struct tn_store_table *t, uint32_t i, struct tn_disk_segment *h)
{
	struct tn_store_device *d = t->dev;
	struct tn_disk_record *r = &t->seg[i];
	uint32_t shape;

	r->segment = i;
	tn_store_patient_read(d, tn_store_segment_offset(d, i), h, TN_DISK_PAGE);
	if (tn_disk_segment_damaged(h))
		return HEADER_DAMAGED;
	if (tn_disk_segment_check(h, TN_DISK_PAGE, d->super.device_uuid, i))
		return HEADER_UNUSED;
	r->generation = h->generation;
	if (h->generation == 0 ||
	    !tn_store_shape_of(d->store, h->slot_bytes, h->header_bytes, h->slot_count, &shape))
		return HEADER_UNUSED;
	r->seg.slot_bytes = h->slot_bytes;
	r->seg.header_bytes = h->header_bytes;
	r->seg.slot_count = h->slot_count;
	return HEADER_GOOD;
}

static int rebuild_segment(struct tn_store_table *t, uint32_t i, struct tn_disk_segment *h, uint32_t generation)
{
	static const struct tn_disk_segment blank;
	struct tn_store_salvage *v = &t->dev->salvage;
	enum header_state state = read_segment(t, i, h);
	bool known = state == HEADER_GOOD;
	int rc = 0;

	if (state == HEADER_DAMAGED) {
		rc = infer(t, i, &known);
		t->seg[i].generation = generation; /* higher than any that is known: no older header fits it */
		v->segments_without += known;
		v->segments_lost += !known && memcmp(h, &blank, sizeof(blank)) != 0;
	}
	if (rc || !known)
		return rc;
	t->seg[i].kind = TN_DISK_SEGMENT;
	v->segments++;
	return tn_store_rebuild_parts(t, i, 0, t->dev->store->segment_pages);
}

int tn_store_rebuild(struct tn_store_table *t)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	size_t words = (s->table_pages + s->slot_pages + 63) / 64 * sizeof(uint64_t);
	struct tn_disk_segment *h = tn_store_pages_get(s, TN_DISK_PAGE);
	uint32_t generation = 0;
	int rc = 0;

	if (!h)
		return tn_fail(-ENOMEM, "no memory to read segment headers");
	memset(t->page, 0, (size_t)s->slot_pages * TN_DISK_PAGE);
	memset(t->seg, 0, s->segment_count * sizeof(*t->seg));
	memset(&d->salvage, 0, sizeof(d->salvage));
	memset(d->ckpt.dirty[0], 0xff, words);
	memset(d->ckpt.dirty[1], 0xff, words);
	for (uint32_t i = 0; i < d->allocated; i++) {
		read_segment(t, i, h);
		generation = generation > t->seg[i].generation ? generation : t->seg[i].generation;
	}
	for (uint32_t i = 0; i < d->allocated && rc == 0; i++)
		rc = rebuild_segment(t, i, h, generation + 1);
	tn_store_pages_put(s, h, TN_DISK_PAGE);
	d->log.tail = d->log.position = 0;
	d->log.sequence = 1;
	t->max_epoch = d->super.epoch;
	return rc;
}

void tn_store_tell_salvage(const struct tn_store_device *d)
{
	const struct tn_store_salvage *v = &d->salvage;

	tn_log(d->store->log, TN_LOG_INFO,
	       "%s: saved %llu blocks from the headers of %u segments (%u of them had lost their own header); not saved: %llu damaged and "
	       "%llu unreadable block headers, %llu blocks older than another of their key, %llu of dropped or unknown spaces, %u "
	       "segments without a good header",
	       d->path, (unsigned long long)d->committed, v->segments, v->segments_without, (unsigned long long)v->damaged,
	       (unsigned long long)v->unreadable, (unsigned long long)v->superseded, (unsigned long long)v->dropped,
	       v->segments_lost);
}
