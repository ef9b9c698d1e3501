/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index log of a device.
 *
 * Nothing is queued: a slot or segment that changed is flagged, and a commit sweeps the flags into one group,
 * describing each slot as it is now. So memory is bounded by the slot table, a publish is never refused, and a full log
 * only delays. A group is written soon after the changes and waits for no sync, so that the group survives the death of
 * the process. What makes the group durable comes later and is in durable.c. The order is:
 *
 *	seal the group -> write a changed space table and new segment headers -> write the group.
 *
 * One group at a time, without gaps in sequence and position; a group never wraps around the region's end. commit.c,
 * above, decides what may go on when a group has ended.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 50000000ull
#define RETRY_MAX_NS 5000000000ull
#define GROUP_PERIOD_NS 50000000ull /* between groups that nobody waits for: records wait at most this long */
#define COMMIT_SLOTS 2048u /* so many changes do not wait any longer */
#define STUCK_FAILURES 3u  /* within half a second */

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

			tn_store_record_fill(d, local, &rec[n++]);
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
	n = seal_segments(d, rec, 0, (uint32_t)(room / sizeof(*rec)) - 1);
	if (log->segments_unlogged == 0)
		n = seal_slots(d, rec, n, (uint32_t)(room / sizeof(*rec)) - 1);
	memset(log->group, 0, sizeof(*log->group));
	memcpy(log->group->device_uuid, d->super.device_uuid, sizeof(d->super.device_uuid));
	log->group->epoch = log->epoch;
	log->group->sequence = log->sequence;
	log->group->position = log->position;
	log->group->records = n;
	log->group->bytes = (uint32_t)tn_round_up((n + 1) * sizeof(*rec), TN_DISK_PAGE);
	memset(rec + n, 0, log->group->bytes - (n + 1) * sizeof(*rec));
	tn_disk_seal(&log->group->head, TN_DISK_MAGIC_LOG, log->group->bytes);
	log->force = false;
	if (n > 0 && d->durable.since_ns == 0)
		d->durable.since_ns = log->oldest_ns;
	log->oldest_ns = log->last_ns = tn_now_ns(d->store->clock);
	return true;
}

/* ---- the end of a commit -------------------------------------------------------------------------------------- */

static void settle_record(struct tn_store_device *d, const struct tn_disk_record *rec, bool written)
{
	uint32_t local, p;
	uint64_t bit;

	if (rec->kind == TN_DISK_SEGMENT) {
		struct tn_store_segment *sg = &d->segs[rec->segment];

		sg->inflight = false;
		sg->logged |= written;
		if (!written)
			tn_store_segment_unlogged(d, rec->segment);
		if (!written && !sg->header_dirty) {
			sg->header_dirty = true;
			d->log.headers_dirty++;
		}
		return;
	}
	local = tn_store_local_of(d->store, rec->segment, rec->index);
	p = local >> 6;
	bit = 1ull << (local & 63);
	d->inflight[p] &= ~bit;
	if (!written) {
		tn_store_slot_unlogged(d, local);
		return;
	}
	d->logged[p] |= bit;
	tn_bit_set(d->logged_pages, p);
}

static void finish(struct tn_store_device *d, int status)
{
	struct tn_store_log *log = &d->log;
	const struct tn_disk_record *rec = (const struct tn_disk_record *)(const void *)(log->group + 1);

	for (uint32_t i = 0; i < log->group->records; i++)
		settle_record(d, &rec[i], status == 0);
	log->phase = TN_LOG_IDLE;
	if (status == 0) {
		log->position += log->group->bytes;
		log->sequence++;
		log->failures = 0;
		log->retry_ns = 0;
	} else {
		uint64_t delay = RETRY_NS << (log->failures < 7 ? log->failures : 7);

		if (log->failures++ == 0 && !d->deleted)
			tn_log(d->store->log, TN_LOG_ERROR, "%s: index log: %s; trying again", d->path, strerror(-status));
		log->retry_ns = tn_now_ns(d->store->clock) + (delay < RETRY_MAX_NS ? delay : RETRY_MAX_NS);
		if (log->doubt)
			tn_store_log_rewind(d);
		log->doubt = 0;
	}
	tn_store_waits_settle(d, status);
	if (tn_store_index_off(d)) /* since this commit began: nobody writes what is left */
		tn_store_waits_settle(d, d->deleted ? -ESTALE : -EIO);
}

void tn_store_log_rewind(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;

	log->position = log->synced_position;
	log->sequence = log->synced_sequence;
	log->epoch++;
}

/* ---- the steps of a commit -------------------------------------------------------------------------------------- */

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
		return;
	}
	if (from <= TN_LOG_SEGMENT && write_segment_header(d)) {
		log->phase = TN_LOG_SEGMENT;
		return;
	}
	log->phase = TN_LOG_WRITE;
	tn_store_req_submit(&log->req, TN_IO_WRITE, d->super.log_offset + log->position % d->super.log_bytes, log->group,
			    log->group->bytes);
}

bool tn_store_log_done(struct tn_store_device *d, int status)
{
	struct tn_store_log *log = &d->log;

	if (status || log->doubt) {
		finish(d, status ? status : log->doubt);
		return false;
	}
	switch (log->phase) {
	case TN_LOG_SPACES:
		d->spaces_generation = d->spaces_page->generation;
		d->spaces_unsynced = true;
		begin_step(d, TN_LOG_SEGMENT);
		return false;
	case TN_LOG_SEGMENT:
		if (d->segs[log->segment].generation == log->header_page->generation) {
			d->segs[log->segment].header_dirty = false;
			log->headers_dirty--;
		}
		begin_step(d, TN_LOG_SEGMENT);
		return false;
	case TN_LOG_WRITE:
		finish(d, 0);
		return true;
	case TN_LOG_IDLE:
		break;
	}
	assert(!"a log request ended that was never begun");
	return false;
}

/* Starts a commit now, if one can be started. */
static void commit(struct tn_store_device *d)
{
	if (d->log.phase != TN_LOG_IDLE || d->store->read_only || tn_store_index_off(d) || tn_store_spaces_blocked(d) || !seal(d))
		return;
	tn_store_waits_swept(d);
	begin_step(d, TN_LOG_SPACES);
}

void tn_store_log_advance(struct tn_store_device *d)
{
	const struct tn_store_log *log = &d->log;

	if (d->flush_waiting || log->force || (log->urgent && tn_store_log_changed(log)) || log->unlogged >= COMMIT_SLOTS)
		commit(d);
}

uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_log *log = &d->log;
	uint64_t due = TN_STORE_NEVER;

	if (d->store->read_only || log->phase != TN_LOG_IDLE || tn_store_index_off(d))
		return TN_STORE_NEVER;
	if (tn_store_log_changed(log)) {
		due = log->last_ns + GROUP_PERIOD_NS;
		due = due > log->oldest_ns ? due : log->oldest_ns;
		if (log->urgent)
			due = now_ns;
	}
	if (d->flush_waiting || log->force || log->unlogged >= COMMIT_SLOTS)
		due = now_ns;
	if (due != TN_STORE_NEVER && due < log->retry_ns)
		due = log->retry_ns;
	if (due <= now_ns) {
		commit(d);
		/* Still idle: the log is full, or a space table waits. The end of the checkpoint or sync goes on from here. */
		due = TN_STORE_NEVER;
	}
	return due;
}

bool tn_store_log_stuck(const struct tn_store_device *d)
{
	return d->log.failures >= STUCK_FAILURES || d->durable.failures >= STUCK_FAILURES ||
	       (d->log.full && d->ckpt.failures >= STUCK_FAILURES);
}
