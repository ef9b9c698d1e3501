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

static uint32_t page_count(const struct tn_store *s)
{
	return s->table_pages + s->slot_pages;
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

static void fill_segment_page(struct tn_store_device *d, uint32_t number, struct tn_disk_page *page)
{
	uint32_t first = number * TN_DISK_RECORDS;

	for (uint32_t i = 0; i < TN_DISK_RECORDS && first + i < d->store->segment_count; i++) {
		const struct tn_store_segment *sg = &d->segs[first + i];

		tn_store_segment_record(d, first + i, &page->rec[i]);
		/* An assignment that is not durable yet is left to the log. */
		if (tn_store_segment_settling(sg))
			page->rec[i].kind = TN_DISK_EMPTY;
	}
}

static void fill_slot_page(struct tn_store_device *d, uint32_t p, struct tn_disk_page *page)
{
	page->generation = d->segs[p / d->store->segment_pages].generation;
	for (uint32_t i = 0; i < TN_DISK_RECORDS; i++) {
		uint32_t local = p << 6 | i;
		uint64_t meta = d->meta[local];
		bool settling = tn_store_settling(d, p) >> i & 1;

		if (TN_META_STATE(meta) == TN_SLOT_QUARANTINED || TN_META_FAILURES(meta) > 0 ||
		    (TN_META_STATE(meta) == TN_SLOT_COMMITTED && !settling && !tn_store_in_doubt(d, local)))
			tn_store_record_fill(d, local, &page->rec[i]);
		if (settling && page->rec[i].kind == TN_DISK_BLOCK)
			memset(&page->rec[i], 0, sizeof(page->rec[i]));
	}
}

static void fill_page(struct tn_store_device *d, uint32_t number, struct tn_disk_page *page)
{
	struct tn_store *s = d->store;

	memset(page, 0, sizeof(*page));
	memcpy(page->device_uuid, d->super.device_uuid, sizeof(page->device_uuid));
	page->checkpoint = d->ckpt.number + 1;
	page->number = number;
	if (number < s->table_pages)
		fill_segment_page(d, number, page);
	else
		fill_slot_page(d, number - s->table_pages, page);
	tn_disk_seal(&page->head, TN_DISK_MAGIC_PAGE, sizeof(*page));
}

/* Must this page be written? Pages of segments without a shape are never read. */
static bool wanted(struct tn_store_device *d, uint32_t number)
{
	struct tn_store *s = d->store;

	if (number >= s->table_pages &&
	    d->segs[(number - s->table_pages) / s->segment_pages].shape == TN_SHAPE_NONE)
		return false;
	return tn_bit_test(d->ckpt.dirty[d->ckpt.region], number) || tn_bit_test(d->ckpt.soft[d->ckpt.region], number);
}

/* First page at or after from that may have to be written. */
static uint32_t next_candidate(const struct tn_store_device *d, uint32_t from, uint32_t n)
{
	const struct tn_store_ckpt *c = &d->ckpt;
	uint32_t hard = tn_bit_next(c->dirty[c->region], from, n), soft = n;

	if (c->soft_budget > 0)
		soft = tn_bit_next(c->soft[c->region], from > c->soft_from[c->region] ? from : c->soft_from[c->region], n);
	return hard < soft ? hard : soft;
}

static uint64_t page_offset(const struct tn_store_device *d, uint32_t number)
{
	return d->super.checkpoint_offset[d->ckpt.region] + sizeof(struct tn_disk_root) + (uint64_t)number * TN_DISK_PAGE;
}

/* How many pages from the cursor on go in one write; the first one does. */
static uint32_t run_length(struct tn_store_device *d)
{
	const struct tn_store_ckpt *c = &d->ckpt;
	uint32_t n = page_count(d->store), budget = c->soft_budget, k = 0;

	for (uint32_t p = c->cursor; k < TN_STORE_BATCH_PAGES && p < n && wanted(d, p); p++, k++) {
		if (tn_bit_test(c->dirty[c->region], p))
			continue;
		if (budget == 0 || p < c->soft_from[c->region])
			break;
		budget--;
	}
	return k;
}

/*
 * Pages yield to reads like any write in the background, as long as the log has free space: who waits for that space
 * must not wait for reads as well.
 */
static bool may_go(struct tn_store_device *d, uint32_t bytes)
{
	const struct tn_store *s = d->store;
	struct tn_store_ckpt *c = &d->ckpt;

	if (!s->cb.may_write || c->hurry || d->log.full || d->log.position - d->log.tail >= d->super.log_bytes / 4 * 3)
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
	uint32_t n = page_count(d->store), first, count;

	do {
		c->cursor = next_candidate(d, c->cursor, n);
		if (c->cursor == n)
			return -ENOENT;
	} while (!wanted(d, c->cursor) && ++c->cursor);
	count = run_length(d);
	assert(count > 0);
	if (!may_go(d, count * TN_DISK_PAGE))
		return -EAGAIN;
	first = c->cursor;
	for (uint32_t k = 0; k < count; k++) {
		if (!tn_bit_test(c->dirty[c->region], c->cursor) && --c->soft_budget == 0)
			c->soft_from[c->region] = c->cursor + 1;
		tn_bit_clear(c->soft[c->region], c->cursor); /* the other region has the old recency still */
		tn_bit_clear(c->dirty[c->region], c->cursor);
		fill_page(d, c->cursor++, &page[k]);
	}
	tn_store_req_submit(&c->req, TN_IO_WRITE, page_offset(d, first), page, count * TN_DISK_PAGE);
	return 0;
}

/* ---- the root ------------------------------------------------------------------------------------------------- */

static void fill_root(struct tn_store_device *d, struct tn_disk_root *root)
{
	memset(root, 0, sizeof(*root));
	root->checkpoint = d->ckpt.number + 1;
	root->log_position = d->ckpt.start_position;
	root->log_sequence = d->ckpt.start_sequence;
	root->epoch = d->store->epoch;
	root->next_sequence = d->store->sequence;
	root->page_count = page_count(d->store);
	root->log_required = d->ckpt.log_required;
	root->super = d->super;
	tn_disk_seal(&root->head, TN_DISK_MAGIC_ROOT, sizeof(*root));
}

static void root_durable(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;

	c->number++;
	if (c->soft_budget > 0) /* to the end: the next one begins in front again */
		c->soft_from[c->region] = 0;
	c->region = !c->region;
	c->soft_any = tn_bit_next(c->soft[c->region], 0, page_count(d->store)) < page_count(d->store);
	c->phase = TN_CKPT_IDLE;
	c->failures = 0;
	c->root_unknown = false;
	d->log.tail = c->start_position;
	if (d->log.full)
		tn_store_log_step(d, tn_now_ns(d->store->clock));
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static void fail(struct tn_store_device *d, int status)
{
	struct tn_store_ckpt *c = &d->ckpt;

	/* What of it reached the disk is unknown: the next attempt at this region writes everything. */
	memset(c->dirty[c->region], 0xff, (page_count(d->store) + 63) / 64 * sizeof(uint64_t));
	c->phase = TN_CKPT_IDLE;
	c->doubt = 0;
	c->retry_ns = tn_now_ns(d->store->clock) + (RETRY_NS << (c->failures < 5 ? c->failures : 5));
	if (c->failures++ == 0 && !d->deleted)
		tn_log(d->store->log, TN_LOG_ERROR, "%s: checkpoint: %s; trying again", d->path, strerror(-status));
	if (d->log.full)
		tn_store_waits_settle(d, status);
}

static void step_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	tn_store_observe(d->store, d->index, (enum tn_io_op)r->io.op, 0, tn_now_ns(d->store->clock) - r->start_ns, status);
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

static void write_root(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;

	tn_store_req_submit(&c->req, TN_IO_WRITE, d->super.checkpoint_offset[c->region], c->buffer,
			    sizeof(struct tn_disk_root));
}

static void next_step(struct tn_store_device *d)
{
	struct tn_store_ckpt *c = &d->ckpt;
	int rc;

	switch (c->phase) {
	case TN_CKPT_VOID:
		memset(c->buffer, 0, sizeof(struct tn_disk_root));
		write_root(d);
		return;
	case TN_CKPT_PAGES:
		rc = write_batch(d);
		if (rc != -ENOENT) /* the root goes, or the step asks again */
			return;
		c->phase = TN_CKPT_LOG;
		__attribute__((fallthrough));
	case TN_CKPT_LOG:
		/* A group at the start position proves later that the log is still there; not worth failing for. */
		if (d->log.position == c->start_position && !d->log.full && d->log.failures == 0) {
			d->log.force = true;
			tn_store_log_step(d, tn_now_ns(d->store->clock));
			if (!d->log.full)
				return;
		}
		c->phase = TN_CKPT_SYNC_PAGES;
		__attribute__((fallthrough));
	case TN_CKPT_SYNC_VOID:
	case TN_CKPT_SYNC_PAGES:
		c->log_required = d->log.position > c->start_position;
		tn_store_req_submit(&c->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	case TN_CKPT_ROOT:
		fill_root(d, c->buffer);
		c->root_unknown = true;
		write_root(d);
		return;
	case TN_CKPT_SYNC_ROOT:
		tn_store_req_submit(&c->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	case TN_CKPT_IDLE:
		break;
	}
	assert(!"a checkpoint went on that was never begun");
}

void tn_store_ckpt_start(struct tn_store_device *d, bool final)
{
	struct tn_store_ckpt *c = &d->ckpt;

	assert(c->phase == TN_CKPT_IDLE);
	/* Pages show what is durable; all else must be in the log from here on. */
	c->start_position = d->durable.position;
	c->start_sequence = d->durable.sequence;
	c->cursor = 0;
	c->soft_budget = final ? UINT32_MAX : SOFT_PAGES_MIN + page_count(d->store) / 64;
	c->soft_from[c->region] = final ? 0 : c->soft_from[c->region];
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
	if (tn_store_index_off(d))
		return TN_STORE_NEVER;
	if (c->phase != TN_CKPT_IDLE)
		return TN_STORE_NEVER;
	/* A checkpoint frees the log up to where it is durable. */
	if (d->log.position - d->log.tail < d->super.log_bytes / 2 || d->durable.position == d->log.tail) {
		if (!c->soft_any)
			return TN_STORE_NEVER;
		if (c->soft_due_ns == 0)
			c->soft_due_ns = now_ns + SOFT_EVERY_NS;
		if (now_ns < c->soft_due_ns)
			return c->soft_due_ns;
	}
	if (now_ns < c->retry_ns)
		return c->retry_ns;
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
