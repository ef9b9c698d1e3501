/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index log of a device and its group commit.
 *
 * Nothing is queued: a slot or segment that changed is marked, and a commit sweeps the marks into one
 * group, describing each slot as it is now. So memory is bounded by the slot table, a publish is
 * never refused, and a full log only delays. The order of a commit is what durability rests on:
 *
 *	seal the group -> write a changed space table and new segment headers -> fdatasync (block data,
 *	block headers, those) -> write the group -> fdatasync -> removed slots become free, flushes end.
 *
 * One group at a time, without gaps in sequence and position; a group never wraps around the region's end.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 50000000ull
#define RETRY_MAX_NS 5000000000ull
#define COMMIT_SLOTS 2048u /* so many changes do not wait any longer */

static void advance(struct tn_store_device *d);

/* ---- records ---------------------------------------------------------------------------------------------- */

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

/* ---- sealing ------------------------------------------------------------------------------------------------ */

static uint32_t seal_segments(struct tn_store_device *d, struct tn_disk_record *rec, uint32_t n, uint32_t max)
{
	for (uint32_t i = 0; i < d->allocated && d->log.segments_unlogged > 0 && n < max; i++) {
		if (!d->segs[i].unlogged)
			continue;
		tn_store_segment_record(d, i, &rec[n++]);
		d->segs[i].unlogged = false;
		d->segs[i].inflight = true;
		d->log.segments_unlogged--;
	}
	return n;
}

/* Goes round the slot table once, from where the last sweep stopped, until the group is full. */
static uint32_t seal_slots(struct tn_store_device *d, struct tn_disk_record *rec, uint32_t n, uint32_t max)
{
	struct tn_store_log *log = &d->log;
	uint32_t pages = d->store->slot_pages, at = log->cursor;

	while (log->unlogged > 0 && n < max) {
		uint32_t p = tn_bit_next(d->unlogged_pages, at, pages);

		log->swept += p - at;
		at = p;
		if (p == pages) {
			at = 0;
			continue;
		}
		while (d->unlogged[p] && n < max) {
			uint32_t local = p << 6 | (uint32_t)__builtin_ctzll(d->unlogged[p]);
			uint64_t bit = 1ull << (local & 63);

			tn_store_record_fill(d, local, &rec[n]);
			log->has_inserts |= rec[n++].kind == TN_DISK_BLOCK;
			d->unlogged[p] &= ~bit;
			d->inflight[p] |= bit;
			log->unlogged--;
		}
		if (!d->unlogged[p])
			tn_bit_clear(d->unlogged_pages, p);
	}
	if (log->unlogged == 0)
		log->swept += pages;
	log->cursor = at;
	return n;
}

static bool seal(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;
	uint64_t size = d->super.log_bytes, used = log->position - log->tail, room = size - used;
	uint64_t to_end = size - log->position % size;
	struct tn_disk_record *rec = (struct tn_disk_record *)(void *)(log->group + 1);
	uint32_t n;

	room = room < to_end ? room : to_end;
	room = room < TN_STORE_GROUP_BYTES ? room : TN_STORE_GROUP_BYTES;
	log->full = room < TN_DISK_PAGE;
	if (log->full)
		return false;
	log->has_inserts = false;
	n = seal_segments(d, rec, 0, (uint32_t)(room / sizeof(*rec)) - 1);
	if (log->segments_unlogged == 0)
		n = seal_slots(d, rec, n, (uint32_t)(room / sizeof(*rec)) - 1);
	memset(log->group, 0, sizeof(*log->group));
	memcpy(log->group->device_uuid, d->super.device_uuid, sizeof(d->super.device_uuid));
	log->group->epoch = d->store->epoch;
	log->group->sequence = log->sequence;
	log->group->position = log->position;
	log->group->records = n;
	log->group->bytes = (uint32_t)tn_round_up((n + 1) * sizeof(*rec), TN_DISK_PAGE);
	memset(rec + n, 0, log->group->bytes - (n + 1) * sizeof(*rec));
	tn_disk_seal(&log->group->head, TN_DISK_MAGIC_LOG, log->group->bytes);
	log->sealed++;
	log->force = false;
	log->urgent = false;
	log->oldest_ns = tn_now_ns(d->store->clock);
	return true;
}

/* Flushes that waited for a sweep now wait for this commit, if the sweep has come round. */
static void sealed(struct tn_store_device *d)
{
	struct tn_store *s = d->store;

	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && s->flushes > 0; i++) {
		struct tn_store_wait *w = &s->flush[i].wait[d->index];

		if (s->flush[i].used && w->sweep > 0 && d->log.segments_unlogged == 0 && d->log.swept >= w->sweep) {
			w->sweep = 0;
			w->ticket = d->log.sealed;
		}
	}
}

/* ---- the end of a commit -------------------------------------------------------------------------------------- */

static void settle_record(struct tn_store_device *d, const struct tn_disk_record *rec, bool durable)
{
	struct tn_store *s = d->store;
	uint32_t local;
	uint64_t bit;

	if (rec->kind == TN_DISK_SEGMENT) {
		struct tn_store_segment *sg = &d->segs[rec->segment];

		sg->inflight = false;
		if (!durable && !sg->unlogged) {
			sg->unlogged = true;
			d->log.segments_unlogged++;
		}
		if (!durable && !sg->header_dirty) {
			sg->header_dirty = true;
			d->log.headers_dirty++;
		}
		tn_bit_set(d->ckpt.dirty[0], rec->segment / TN_DISK_RECORDS);
		tn_bit_set(d->ckpt.dirty[1], rec->segment / TN_DISK_RECORDS);
		return;
	}
	local = tn_store_local_of(s, rec->segment, rec->index);
	bit = 1ull << (local & 63);
	d->inflight[local >> 6] &= ~bit;
	if (!durable) {
		tn_store_slot_unlogged(d, local);
		return;
	}
	tn_store_slot_dirty(d, local);
	if (TN_META_STATE(d->meta[local]) == TN_SLOT_FREEING && !(d->unlogged[local >> 6] & bit))
		tn_store_slot_set(d, local, TN_SLOT_FREE);
}

static void finish(struct tn_store_device *d, int status)
{
	struct tn_store_log *log = &d->log;
	const struct tn_disk_record *rec = (const struct tn_disk_record *)(const void *)(log->group + 1);

	for (uint32_t i = 0; i < log->group->records; i++)
		settle_record(d, &rec[i], status == 0);
	log->phase = TN_LOG_IDLE;
	log->doubt = 0;
	log->done = log->sealed;
	if (status == 0 && log->spaces_written) {
		d->spaces_generation = d->spaces_page->generation;
		d->spaces_copy = !d->spaces_copy;
	}
	log->spaces_written = false;
	if (status == 0) {
		log->position += log->group->bytes;
		log->sequence++;
		log->failures = 0;
		log->retry_ns = 0;
	} else {
		uint64_t delay = RETRY_NS << (log->failures < 7 ? log->failures : 7);

		if (log->failures++ == 0)
			tn_log(d->store->log, TN_LOG_ERROR, "%s: index log: %s; trying again", d->path, strerror(-status));
		log->retry_ns = tn_now_ns(d->store->clock) + (delay < RETRY_MAX_NS ? delay : RETRY_MAX_NS);
	}
	tn_store_flush_settle(d, status);
}

/* ---- the steps of a commit -------------------------------------------------------------------------------------- */

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

static bool write_segment_header(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;
	uint32_t i = 0;

	if (log->headers_dirty == 0)
		return false;
	while (!d->segs[i].header_dirty)
		i++;
	log->segment = i;
	tn_store_segment_seal(d, i, log->header_page);
	tn_store_req_submit(&log->req, TN_IO_WRITE, tn_store_segment_offset(d, i), log->header_page,
			    sizeof(*log->header_page));
	return true;
}

/* Begins the first step from `from` on that has something to do. */
static void begin_step(struct tn_store_device *d, enum tn_log_phase from)
{
	struct tn_store_log *log = &d->log;
	struct tn_store *s = d->store;

	if (from <= TN_LOG_SPACES && d->spaces_generation < s->spaces->generation) {
		log->phase = TN_LOG_SPACES;
		*d->spaces_page = *s->spaces;
		tn_disk_seal(&d->spaces_page->head, TN_DISK_MAGIC_SPACES, sizeof(*d->spaces_page));
		tn_store_req_submit(&log->req, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(!d->spaces_copy), d->spaces_page,
				    sizeof(*d->spaces_page));
		log->has_inserts = true; /* the sync is needed for this as well */
		return;
	}
	if (from <= TN_LOG_SEGMENT && write_segment_header(d)) {
		log->phase = TN_LOG_SEGMENT;
		log->has_inserts = true;
		return;
	}
	if (from <= TN_LOG_SYNC_DATA && log->has_inserts) {
		log->phase = TN_LOG_SYNC_DATA;
		tn_store_req_submit(&log->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	}
	log->phase = TN_LOG_WRITE;
	tn_store_req_submit(&log->req, TN_IO_WRITE, d->super.log_offset + log->position % d->super.log_bytes, log->group,
			    log->group->bytes);
}

static void step_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_log *log = &d->log;

	tn_store_observe(d->store, d->index, (enum tn_io_op)r->io.op, 0, tn_now_ns(d->store->clock) - r->start_ns, status);
	if (status || log->doubt) {
		finish(d, status ? status : log->doubt);
		return;
	}
	switch (log->phase) {
	case TN_LOG_SPACES:
		log->spaces_written = true;
		begin_step(d, TN_LOG_SEGMENT);
		return;
	case TN_LOG_SEGMENT:
		if (d->segs[log->segment].generation == log->header_page->generation) {
			d->segs[log->segment].header_dirty = false;
			log->headers_dirty--;
		}
		begin_step(d, TN_LOG_SEGMENT);
		return;
	case TN_LOG_SYNC_DATA:
		begin_step(d, TN_LOG_WRITE);
		return;
	case TN_LOG_WRITE:
		log->phase = TN_LOG_SYNC;
		tn_store_req_submit(&log->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	case TN_LOG_SYNC:
		finish(d, 0);
		advance(d);
		return;
	case TN_LOG_IDLE:
		break;
	}
	assert(!"a log request ended that was never begun");
}

/* Starts a commit now, if one can be started. */
static void commit(struct tn_store_device *d)
{
	if (d->log.phase != TN_LOG_IDLE || d->store->read_only || d->hs.health == TN_OFFLINE || !seal(d))
		return;
	sealed(d);
	begin_step(d, TN_LOG_SPACES);
}

/* After a commit: what waits behind it need not wait for the next step. */
static void advance(struct tn_store_device *d)
{
	if (d->flush_waiting || d->log.force || d->log.unlogged >= COMMIT_SLOTS)
		commit(d);
}

uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_log *log = &d->log;
	uint64_t due = TN_STORE_NEVER;

	if (d->store->read_only || log->phase != TN_LOG_IDLE || d->hs.health == TN_OFFLINE)
		return TN_STORE_NEVER;
	if (log->unlogged > 0 || log->segments_unlogged > 0)
		due = log->oldest_ns + TN_STORE_COMMIT_DELAY_NS;
	if (d->flush_waiting || log->force || log->urgent || log->unlogged >= COMMIT_SLOTS)
		due = now_ns;
	if (due != TN_STORE_NEVER && due < log->retry_ns)
		due = log->retry_ns;
	if (due <= now_ns) {
		commit(d);
		/* Still idle: the log is full; the end of the checkpoint goes on from here. */
		due = TN_STORE_NEVER;
	}
	return due;
}

void tn_store_log_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->log.req, d, step_done);
}

/* ---- flush --------------------------------------------------------------------------------------------------------- */

static void flush_end(struct tn_store *s, struct tn_store_flush *f)
{
	void (*done)(void *arg, int status) = f->done;
	void *arg = f->arg;
	int status = f->status;

	f->used = false;
	s->flushes--;
	s->last_flush = status;
	done(arg, status);
}

static bool waits(const struct tn_store *s, const struct tn_store_flush *f)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (f->wait[i].sweep > 0 || f->wait[i].ticket > 0)
			return true;
	return false;
}

void tn_store_flush_settle(struct tn_store_device *d, int status)
{
	struct tn_store *s = d->store;

	d->flush_waiting = false;
	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && s->flushes > 0; i++) {
		struct tn_store_flush *f = &s->flush[i];
		struct tn_store_wait *w = &f->wait[d->index];

		if (!f->used)
			continue;
		if (status && (w->sweep > 0 || w->ticket > 0)) {
			f->status = f->status ? f->status : status;
			*w = (struct tn_store_wait){0, 0};
		}
		if (w->ticket > 0 && w->ticket <= d->log.done)
			w->ticket = 0;
		d->flush_waiting = d->flush_waiting || w->sweep > 0;
		if (!waits(s, f))
			flush_end(s, f);
	}
}

static bool pending(const struct tn_store_device *d)
{
	return d->log.unlogged > 0 || d->log.segments_unlogged > 0 ||
	       d->spaces_generation < d->store->spaces->generation;
}

void tn_store_flush(struct tn_store *s, void (*done)(void *arg, int status), void *arg)
{
	struct tn_store_flush *f = NULL;

	for (uint32_t i = 0; i < TN_STORE_FLUSHES_MAX && !f; i++)
		if (!s->flush[i].used)
			f = &s->flush[i];
	if (!f) {
		done(arg, tn_fail(-EAGAIN, "%u flushes under way: wait for one to end", TN_STORE_FLUSHES_MAX));
		return;
	}
	*f = (struct tn_store_flush){.done = done, .arg = arg, .used = true};
	s->flushes++;
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++) {
		struct tn_store_device *d = &s->dev[i];

		if (d->untold)
			f->status = -EIO; /* blocks of whose loss the owner does not know */
		if (d->hs.health == TN_OFFLINE && (pending(d) || d->log.phase != TN_LOG_IDLE)) {
			f->status = -EIO;
			continue;
		}
		if (pending(d)) {
			f->wait[i].sweep = d->log.swept + s->slot_pages;
			d->flush_waiting = true;
		} else if (d->log.phase != TN_LOG_IDLE) {
			f->wait[i].ticket = d->log.sealed;
		}
	}
	if (!waits(s, f)) {
		flush_end(s, f);
		return;
	}
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].flush_waiting)
			commit(&s->dev[i]);
}

static void flush_waited(void *arg, int status)
{
	*(int *)arg = status;
}

int tn_store_flush_wait(struct tn_store *s)
{
	int status = 1;

	tn_store_flush(s, flush_waited, &status);
	while (status == 1) {
		tn_store_step(s, tn_now_ns(s->clock));
		if (status == 1)
			tn_store_poll(s, 1000000);
	}
	return status;
}
