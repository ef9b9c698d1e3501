/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: the segment and slot tables written to two regions in turn, so that the log can be
 * reused and recovery need not read all of it.
 *
 * Incremental: only pages that differ from what the region holds are written. Fuzzy: a few pages at a time,
 * while the owner goes on. Exact all the same: replay begins at the log position at which the
 * checkpoint began, records say what a slot *is*, and a page shows only what is durable. A block whose insert
 * is still on its way is left out; the block's record comes later in the log. The root is written last.
 * A checkpoint needs no space in the log, so a checkpoint can always empty a full log.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 200000000ull
#define WANTED_NS 10000000u /* the device is wanted for something else: ask again */
#define SOFT_PAGES_MIN 64u
#define SOFT_EVERY_NS 60000000000ull /* a store that is only read forgets at most so much of its recency when killed */

static void next_step(struct tn_store_device *d);

/* ---- pages -------------------------------------------------------------------------------------------------- */

/* Whether the checkpoint says anything of a slot: a block whose record is not durable yet is left to the log. */
static bool listed(const struct tn_store_device *d, uint32_t local, bool settling)
{
	struct tn_slot_meta meta = d->meta[local];

	if (meta.state == TN_SLOT_COMMITTED && !tn_store_in_doubt(d, local))
		return !settling;
	return meta.state == TN_SLOT_QUARANTINED || meta.failures > 0;
}

static void fill_page(struct tn_store_device *d, uint32_t number, struct tn_disk_page *page)
{
	struct tn_store *s = d->store;
	uint64_t item = (uint64_t)number << 6, first = tn_store_slot_item(s, 0);

	memset(page, 0, sizeof(*page));
	memcpy(page->device_uuid, d->super.device_uuid, sizeof(page->device_uuid));
	page->checkpoint = d->ckpt.number + 1;
	page->number = number;
	if (item >= first)
		page->generation = d->segs[tn_store_segment_of(s, (uint32_t)(item - first))].generation;
	for (uint32_t i = 0; i < TN_DISK_RECORDS; i++, item++) {
		bool settling = tn_store_settling(d, number) >> i & 1;

		if (item < first && number * TN_DISK_RECORDS + i < s->segment_count) {
			tn_store_record_fill(d, item, &page->rec[i]);
			if (settling) /* an assignment that is not durable yet is left to the log, too */
				page->rec[i].kind = TN_DISK_EMPTY;
		} else if (item >= first && listed(d, (uint32_t)(item - first), settling)) {
			tn_store_record_fill(d, item, &page->rec[i]);
		}
	}
	tn_disk_seal(&page->head, TN_DISK_MAGIC_PAGE, sizeof(*page));
}

/* Pages of segments without a shape are never read, and so never written. */
static bool unused(const struct tn_store_device *d, uint32_t number)
{
	const struct tn_store *s = d->store;

	return number >= s->table_pages && d->segs[(number - s->table_pages) / s->segment_pages].shape == TN_SHAPE_NONE;
}

/* So many of the pages whose recency alone has changed are written, too: each time those behind the last ones. */
static void take_soft_pages(struct tn_store_device *d, uint32_t most)
{
	struct tn_store_ckpt *c = &d->ckpt;
	const uint64_t *soft = c->soft[c->region];
	uint32_t n = tn_store_page_count(d->store), p = tn_bit_next(soft, c->soft_from[c->region], n);

	for (; p < n && most > 0; p = tn_bit_next(soft, p + 1, n)) {
		most -= !tn_bit_test(c->dirty[c->region], p);
		tn_bit_set(c->dirty[c->region], p);
	}
	c->soft_from[c->region] = p < n ? p : 0;
}

/*
 * Pages yield to reads like any write in the background, as long as the log has free space: who waits for that space
 * must not wait for reads as well.
 */
static bool may_go(struct tn_store_device *d, uint32_t bytes)
{
	const struct tn_store *s = d->store;
	struct tn_store_ckpt *c = &d->ckpt;

	if (!s->cb.may_write || c->hurry || d->log.full || d->log.next.position - d->log.tail >= d->super.log_bytes / 4 * 3)
		return true;
	if (!s->cb.may_write(s->cb.arg, d->index, bytes))
		return false;
	c->granted = bytes;
	return true;
}

/* Serialises and writes the next run of pages. 0; -ENOENT: none is left; -EAGAIN: not now. */
static int write_batch(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;
	struct tn_disk_page *page = c->buffer;
	uint64_t *dirty = c->dirty[c->region], at = d->super.checkpoint_offset[c->region] + sizeof(struct tn_disk_root);
	uint32_t n = tn_store_page_count(d->store), first = tn_bit_next(dirty, c->cursor, n), end;

	while (first < n && unused(d, first))
		first = tn_bit_next(dirty, first + 1, n);
	for (end = first; end < n && end < first + TN_STORE_BATCH_PAGES && tn_bit_test(dirty, end) && !unused(d, end);)
		end++;
	c->cursor = first;
	if (first == n)
		return -ENOENT;
	if (!may_go(d, (end - first) * TN_DISK_PAGE))
		return -EAGAIN;
	for (; c->cursor < end; c->cursor++) {
		tn_bit_clear(dirty, c->cursor);
		tn_bit_clear(c->soft[c->region], c->cursor); /* the other region has the old recency still */
		fill_page(d, c->cursor, &page[c->cursor - first]);
	}
	tn_store_req_submit(&c->req, TN_IO_WRITE, at + (uint64_t)first * TN_DISK_PAGE, page, (end - first) * TN_DISK_PAGE);
	return 0;
}

/* ---- the root ------------------------------------------------------------------------------------------------- */

static void fill_root(struct tn_store_device *d, struct tn_disk_root *root)
{
	root->checkpoint = d->ckpt.number + 1;
	root->log_position = d->ckpt.start.position;
	root->log_sequence = d->ckpt.start.sequence;
	root->epoch = d->store->epoch;
	root->next_sequence = d->store->sequence;
	root->page_count = tn_store_page_count(d->store);
	root->log_required = d->ckpt.log_required;
	root->super = d->super;
	tn_disk_seal(&root->head, TN_DISK_MAGIC_ROOT, sizeof(*root));
}

static void root_durable(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;

	c->number++;
	c->region = !c->region;
	c->soft_any = tn_bit_next(c->soft[c->region], 0, tn_store_page_count(d->store)) < tn_store_page_count(d->store);
	c->phase = TN_CKPT_IDLE;
	c->retry.failures = 0;
	c->root_unknown = false;
	d->log.tail = c->start.position;
	if (d->log.full)
		tn_store_log_step(d, tn_now_ns(d->store->clock));
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static void fail(struct tn_store_device *d, int status)
{
	struct tn_store_ckpt *c = &d->ckpt;

	/* What of it reached the disk is unknown: the next attempt at this region writes everything. */
	memset(c->dirty[c->region], 0xff, (tn_store_page_count(d->store) + 63) / 64 * sizeof(uint64_t));
	c->phase = TN_CKPT_IDLE;
	c->doubt = 0;
	tn_store_retry_later(d, &c->retry, RETRY_NS, "checkpoint", status);
	if (d->log.full)
		tn_store_waits_settle(d, status);
}

static void step_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	tn_store_observe_req(r, status);
	if (d->ckpt.granted)
		d->store->cb.written(d->store->cb.arg, d->index, d->ckpt.granted);
	d->ckpt.granted = 0;
	if (status || d->ckpt.doubt) {
		fail(d, status ? status : d->ckpt.doubt);
		return;
	}
	if (d->ckpt.phase == TN_CKPT_SYNC_ROOT) {
		root_durable(d);
		return;
	}
	if (d->ckpt.phase == TN_CKPT_SYNC_VOID)
		d->ckpt.root_unknown = false;
	if (d->ckpt.phase != TN_CKPT_PAGES)
		d->ckpt.phase++;
	next_step(d);
}

static void next_step(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;
	int rc;

	switch (c->phase) {
	case TN_CKPT_VOID:
	case TN_CKPT_ROOT:
		memset(c->buffer, 0, sizeof(struct tn_disk_root));
		if (c->phase == TN_CKPT_ROOT)
			fill_root(d, c->buffer);
		c->root_unknown = true;
		tn_store_req_submit(&c->req, TN_IO_WRITE, d->super.checkpoint_offset[c->region], c->buffer,
				    sizeof(struct tn_disk_root));
		return;
	case TN_CKPT_PAGES:
		rc = write_batch(d);
		if (rc != -ENOENT) /* the root goes, or the step asks again */
			return;
		c->phase = TN_CKPT_LOG;
		__attribute__((fallthrough));
	case TN_CKPT_LOG:
		/* A group at the start position proves later that the log is still there; not worth failing for. */
		if (d->log.next.position == c->start.position && !d->log.full && d->log.retry.failures == 0) {
			d->log.force = true;
			tn_store_log_step(d, tn_now_ns(d->store->clock));
			if (!d->log.full)
				return;
		}
		c->phase = TN_CKPT_SYNC_PAGES;
		__attribute__((fallthrough));
	case TN_CKPT_SYNC_VOID:
	case TN_CKPT_SYNC_PAGES:
	case TN_CKPT_SYNC_ROOT:
		c->log_required = d->log.next.position > c->start.position;
		tn_store_req_submit(&c->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	case TN_CKPT_IDLE:
		return;
	}
}

void tn_store_ckpt_start(struct tn_store_device *d, bool final)
{
	struct tn_store_ckpt *c = &d->ckpt;

	assert(c->phase == TN_CKPT_IDLE);
	/* Pages show what is durable; all else must be in the log from here on. */
	c->start = d->durable.reached;
	c->cursor = 0;
	c->soft_from[c->region] = final ? 0 : c->soft_from[c->region];
	take_soft_pages(d, final ? UINT32_MAX : SOFT_PAGES_MIN + tn_store_page_count(d->store) / 64);
	c->soft_due_ns = 0;
	/* A root that may be the newest valid one must be gone for certain before the pages that it names change. */
	c->phase = c->root_unknown ? TN_CKPT_VOID : TN_CKPT_PAGES;
	next_step(d);
}

static uint64_t ask_again_ns(const struct tn_store_ckpt *c, uint64_t now_ns)
{
	return c->phase == TN_CKPT_PAGES && !c->req.busy ? now_ns + WANTED_NS : TN_STORE_NEVER;
}

uint64_t tn_store_ckpt_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_ckpt *c = &d->ckpt;

	if (d->store->read_only)
		return TN_STORE_NEVER;
	if ((c->phase == TN_CKPT_LOG || c->phase == TN_CKPT_PAGES) && !c->req.busy) {
		if (tn_store_index_off(d) || c->doubt)
			fail(d, c->doubt ? c->doubt : -EIO);
		else
			next_step(d);
		return ask_again_ns(c, now_ns);
	}
	/* With a group in doubt under way the log will be rewound: no root may require what lies behind that. */
	if (tn_store_index_off(d) || c->phase != TN_CKPT_IDLE || d->log.doubt)
		return TN_STORE_NEVER;
	/* A checkpoint frees the log up to where it is durable. */
	if (d->log.next.position - d->log.tail < d->super.log_bytes / 2 || d->durable.reached.position == d->log.tail) {
		if (!c->soft_any)
			return TN_STORE_NEVER;
		if (c->soft_due_ns == 0)
			c->soft_due_ns = now_ns + SOFT_EVERY_NS;
		if (now_ns < c->soft_due_ns)
			return c->soft_due_ns;
	}
	/* Each flush tries once, however often checkpoints have failed: its group waits for space in the log. */
	if (now_ns < c->retry.ns && !(d->flush_waiting && d->log.full))
		return c->retry.ns;
	tn_store_ckpt_start(d, false);
	return ask_again_ns(c, now_ns);
}

void tn_store_ckpt_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->ckpt.req, d, step_done);
}

int tn_store_ckpt_format(struct tn_store_device *d)
{
	uint32_t pages = (d->super.segment_count + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	size_t bytes = sizeof(struct tn_disk_root) + (size_t)pages * TN_DISK_PAGE;
	struct tn_disk_root *root = tn_store_pages_get(d->store, bytes);
	struct tn_disk_page *page;
	int rc;

	if (!root)
		return tn_fail(-ENOMEM, "no memory for a checkpoint");
	page = (struct tn_disk_page *)(void *)(root + 1);
	for (uint32_t i = 0; i < pages; i++) {
		memcpy(page[i].device_uuid, d->super.device_uuid, sizeof(page[i].device_uuid));
		page[i].checkpoint = 1;
		page[i].number = i;
		tn_disk_seal(&page[i].head, TN_DISK_MAGIC_PAGE, sizeof(page[i]));
	}
	root->checkpoint = 1;
	root->log_sequence = 1;
	root->next_sequence = 1;
	root->page_count = pages + d->super.segment_count * d->super.segment_pages;
	root->super = d->super;
	tn_disk_seal(&root->head, TN_DISK_MAGIC_ROOT, sizeof(*root));
	rc = tn_store_sync_io(d, TN_IO_WRITE, d->super.checkpoint_offset[0], root, (uint32_t)bytes);
	/* A root of an earlier life holds a superblock that must not be found. */
	memset(root, 0, sizeof(*root));
	if (rc == 0 && !d->made)
		rc = tn_store_sync_io(d, TN_IO_WRITE, d->super.checkpoint_offset[1], root, sizeof(*root));
	if (rc == 0)
		rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
	tn_store_pages_put(d->store, root, bytes);
	return rc;
}
