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
#include "store/store_internal.h"

#define WINDOW_BYTES (32u << 20)
#define SEARCH_BYTES (4u << 20)
#define HEADER_MAX (13u * TN_DISK_PAGE)

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

	if (tn_store_checked(d, tn_store_header_decode(page, bytes, d->super.device_uuid, tn_store_global(d, local), &h))) {
		d->salvage.damaged += head->magic == TN_DISK_MAGIC_BLOCK;
		d->salvage.unreadable += head->magic == UINT32_MAX;
		return;
	}
	if (h.entry.sequence > t->max_sequence)
		t->max_sequence = h.entry.sequence;
	if (!tn_store_spaces_adopt(s, &h)) {
		d->salvage.dropped++;
		return;
	}
	p->rec[local & 63] = (struct tn_disk_record){.segment = segment, .index = index, .generation = p->generation};
	tn_disk_record_block(&p->rec[local & 63], &h.entry);
}

/* Does the header bear out what the index says of the slot? If not, no space has its number: recovery drops it durably. */
static void compare_header(struct tn_store_table *t, uint32_t segment, uint32_t index, const void *page, uint32_t bytes)
{
	struct tn_store_device *d = t->dev;
	uint32_t local = tn_store_local_of(d->store, segment, index);
	struct tn_disk_page *p = &t->page[local >> 6];
	struct tn_disk_record *r = &p->rec[local & 63];
	struct tn_store_header h;

	if (p->generation != tn_store_seg(t, segment)->generation || r->kind != TN_DISK_BLOCK)
		return;
	if (tn_store_header_decode(page, bytes, d->super.device_uuid, tn_store_global(d, local), &h) == 0 &&
	    tn_key_eq(&h.entry.key, &r->key) && h.entry.sequence == r->sequence) {
		t->fitting++;
		return;
	}
	t->unfit++;
	r->space = UINT16_MAX;
}

/* Calls fn for slots [index, end) of a segment whose record is known. What cannot be read is 0xff. */
static int read_headers(struct tn_store_table *t, uint32_t segment, uint32_t index, uint32_t end, header_fn fn)
{
	struct tn_store_device *d = t->dev;
	uint32_t bytes = tn_store_seg(t, segment)->shape.header_bytes, n;
	uint64_t base = tn_store_segment_offset(d, segment) + TN_DISK_PAGE;
	unsigned char *window = tn_store_pages_get(d->store, WINDOW_BYTES);

	if (!window)
		return tn_fail(-ENOMEM, "no memory to read block headers");
	for (; index < end; index += n) {
		n = end - index < WINDOW_BYTES / bytes ? end - index : WINDOW_BYTES / bytes;
		tn_store_bulk_read(d, base + (uint64_t)index * bytes, window, (uint64_t)n * bytes);
		for (uint32_t i = 0; i < n; i++)
			fn(t, segment, index + i, window + (size_t)i * bytes, bytes);
	}
	tn_store_pages_put(d->store, window, WINDOW_BYTES);
	return 0;
}

int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts)
{
	struct tn_store *s = t->dev->store;
	const struct tn_disk_record *seg = tn_store_seg(t, segment);
	uint32_t index = first_part * TN_DISK_RECORDS, end = index + parts * TN_DISK_RECORDS;

	if (segment >= t->dev->allocated)
		return 0;
	for (uint32_t i = 0; i < parts; i++)
		t->page[segment * s->segment_pages + first_part + i].generation = seg->generation;
	return read_headers(t, segment, index, end < seg->shape.slot_count ? end : seg->shape.slot_count, adopt_header);
}

int tn_store_compare_headers(struct tn_store_table *t, uint32_t segment)
{
	t->fitting = t->unfit = 0;
	return read_headers(t, segment, 0, tn_store_seg(t, segment)->shape.slot_count, compare_header);
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
		total += tn_round_up(h.object_bytes[i], TN_PLACE_ALIGN);
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
		tn_store_bulk_read(d, base + at, window, n);
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
	tn_store_seg(t, segment)->shape =
		(struct tn_disk_shape){s->shape[best].slot_bytes, s->shape[best].header_bytes, s->shape[best].slot_count};
	return 0;
}

/* ---- a whole device --------------------------------------------------------------------------------------------- */

enum header_state { HEADER_GOOD, HEADER_UNUSED, HEADER_DAMAGED };

static enum header_state read_segment(struct tn_store_table *t, uint32_t i, struct tn_disk_segment *h)
{
	struct tn_store_device *d = t->dev;
	struct tn_disk_record *r = tn_store_seg(t, i);
	uint32_t shape;
	int rc;

	r->segment = i;
	tn_store_bulk_read(d, tn_store_segment_offset(d, i), h, TN_DISK_PAGE);
	rc = tn_store_checked(d, tn_disk_segment_check(h, TN_DISK_PAGE, d->super.device_uuid, i));
	if (rc)
		return rc == -EBADMSG ? HEADER_DAMAGED : HEADER_UNUSED;
	r->generation = h->generation;
	if (h->generation == 0 || !tn_store_shape_of(d->store, &h->shape, &shape))
		return HEADER_UNUSED;
	r->shape = h->shape;
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
		tn_store_seg(t, i)->generation = generation; /* higher than any that is known: no older header fits it */
		v->segments_without += known;
		v->segments_lost += !known && memcmp(h, &blank, sizeof(blank)) != 0;
	}
	if (rc || !known)
		return rc;
	tn_store_seg(t, i)->kind = TN_DISK_SEGMENT;
	v->segments++;
	return tn_store_rebuild_parts(t, i, 0, t->dev->store->segment_pages);
}

int tn_store_rebuild(struct tn_store_table *t)
{
	struct tn_store_device *d = t->dev;
	struct tn_store *s = d->store;
	size_t words = (tn_store_page_count(s) + 63) / 64 * sizeof(uint64_t);
	struct tn_disk_segment *h = d->log.header[0].page;
	uint32_t generation = 0;
	int rc = 0;

	memset(t->seg_page, 0, (size_t)tn_store_page_count(s) * TN_DISK_PAGE);
	memset(&d->salvage, 0, sizeof(d->salvage));
	memset(d->ckpt.dirty[0], 0xff, words);
	memset(d->ckpt.dirty[1], 0xff, words);
	for (uint32_t i = 0; i < d->allocated; i++) {
		read_segment(t, i, h);
		generation = generation > tn_store_seg(t, i)->generation ? generation : tn_store_seg(t, i)->generation;
	}
	for (uint32_t i = 0; i < d->allocated && rc == 0; i++)
		rc = rebuild_segment(t, i, h, generation + 1);
	d->log.tail = d->log.next.position = 0;
	d->log.next.sequence = 1;
	t->max_epoch = d->super.epoch;
	return rc;
}
