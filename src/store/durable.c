/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the log of a device is durable. Groups are written without waiting for a sync (log.c), so that the death of
 * the process costs nothing. A power cut may take groups, or the data of the blocks that groups name. From time to
 * time, and for each flush, a cycle makes durable what was written before the cycle began:
 *
 *	fdatasync (block data, headers, groups) -> the mark, which says how far -> fdatasync -> removed slots become free.
 *
 * After a power cut recovery believes the groups before the mark. The second sync makes certain that recovery finds the
 * mark: only the mark tells a group whose blocks are durable from a group whose blocks may be lost. The two copies of
 * the mark are written alternately, and the older copy is never overwritten before the newer one is durable.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 50000000ull
#define RETRY_MAX_NS 5000000000ull

/* ---- what waits for the cycle ------------------------------------------------------------------------------------ */

static void swap_maps(uint64_t **a, uint64_t **b)
{
	uint64_t *t = *a;

	*a = *b;
	*b = t;
}

/* What was logged until now is what the cycle that begins will make durable. */
static void cover(struct tn_store_device *d)
{
	swap_maps(&d->logged, &d->covered);
	swap_maps(&d->logged_pages, &d->covered_pages);
	for (uint32_t i = 0; i < d->allocated; i++) {
		d->segs[i].covered = d->segs[i].logged;
		d->segs[i].logged = false;
	}
}

static void settle_slot(struct tn_store_device *d, uint32_t local)
{
	uint32_t p = local >> 6;
	bool changed = (d->unlogged[p] | d->inflight[p] | d->logged[p]) >> (local & 63) & 1;

	tn_store_slot_dirty(d, local);
	if (TN_META_STATE(d->meta[local]) == TN_SLOT_FREEING && !changed)
		tn_store_slot_set(d, local, TN_SLOT_FREE);
}

/* Takes the slots of a map out of it, to be settled or to be logged anew. */
static void empty_map(struct tn_store_device *d, uint64_t *map, uint64_t *pages, void (*each)(struct tn_store_device *, uint32_t))
{
	uint32_t n = d->store->slot_pages;

	for (uint32_t p = tn_bit_next(pages, 0, n); p < n; p = tn_bit_next(pages, p + 1, n)) {
		uint64_t left = map[p];

		map[p] = 0;
		tn_bit_clear(pages, p);
		for (; left; left &= left - 1)
			each(d, p << 6 | (uint32_t)__builtin_ctzll(left));
	}
}

static void settle(struct tn_store_device *d)
{
	empty_map(d, d->covered, d->covered_pages, settle_slot);
	for (uint32_t i = 0; i < d->allocated; i++) {
		if (!d->segs[i].covered)
			continue;
		d->segs[i].covered = false;
		tn_bit_set(d->ckpt.dirty[0], i / TN_DISK_RECORDS);
		tn_bit_set(d->ckpt.dirty[1], i / TN_DISK_RECORDS);
	}
}

void tn_store_log_anew(struct tn_store_device *d)
{
	empty_map(d, d->covered, d->covered_pages, tn_store_slot_unlogged);
	empty_map(d, d->logged, d->logged_pages, tn_store_slot_unlogged);
	for (uint32_t i = 0; i < d->allocated; i++) {
		struct tn_store_segment *sg = &d->segs[i];

		if (sg->logged || sg->covered)
			tn_store_segment_unlogged(d, i);
		sg->logged = sg->covered = false;
	}
	d->durable.since_ns = 0;
}

/* ---- the cycle ------------------------------------------------------------------------------------------------------ */

static void mark_fill(struct tn_store_device *d, uint64_t sequence)
{
	struct tn_store_durable *u = &d->durable;

	memset(u->mark, 0, sizeof(*u->mark));
	memcpy(u->mark->device_uuid, d->super.device_uuid, sizeof(u->mark->device_uuid));
	u->mark->generation = ++u->generation;
	u->mark->sequence = sequence;
	u->mark->epoch = d->store->epoch;
	memcpy(u->mark->boot, d->store->boot, sizeof(u->mark->boot));
	tn_disk_seal(&u->mark->head, TN_DISK_MAGIC_MARK, sizeof(*u->mark));
}

static void failed(struct tn_store_device *d, int status)
{
	struct tn_store_durable *u = &d->durable;
	uint64_t delay = RETRY_NS << (u->failures < 7 ? u->failures : 7);

	if (u->failures++ == 0 && !d->deleted)
		tn_log(d->store->log, TN_LOG_ERROR, "%s: making the index durable: %s; trying again", d->path, strerror(-status));
	u->phase = TN_DURABLE_IDLE;
	u->doubt = 0;
	u->retry_ns = tn_now_ns(d->store->clock) + (delay < RETRY_MAX_NS ? delay : RETRY_MAX_NS);
	/* After a failed sync doubt.c has done this before. */
	tn_store_log_anew(d);
	tn_store_waits_settle(d, status);
}

static void ended(struct tn_store_device *d)
{
	struct tn_store_durable *u = &d->durable;

	u->phase = TN_DURABLE_IDLE;
	u->failures = 0;
	u->retry_ns = 0;
	u->mark_copy = !u->mark_copy;
	u->sequence = u->cover_sequence;
	u->position = u->cover_position;
	settle(d);
	tn_store_waits_settle(d, 0);
}

bool tn_store_durable_done(struct tn_store_device *d, int status)
{
	struct tn_store_durable *u = &d->durable;

	if (status || u->doubt) {
		failed(d, status ? status : u->doubt);
		return false;
	}
	switch (u->phase) {
	case TN_DURABLE_DATA:
		u->phase = TN_DURABLE_MARK;
		mark_fill(d, u->cover_sequence);
		tn_store_req_submit(&u->req, TN_IO_WRITE, TN_DISK_MARK_OFFSET(!u->mark_copy), u->mark, sizeof(*u->mark));
		return true; /* a space table may have waited for the sync */
	case TN_DURABLE_MARK:
		u->phase = TN_DURABLE_SYNC;
		tn_store_req_submit(&u->req, TN_IO_SYNC, 0, NULL, 0);
		return false;
	case TN_DURABLE_SYNC:
		ended(d);
		return true;
	case TN_DURABLE_IDLE:
		break;
	}
	assert(!"a sync ended that was never begun");
	return false;
}

static void begin(struct tn_store_device *d)
{
	struct tn_store_durable *u = &d->durable;

	u->cover_sequence = d->log.sequence;
	u->cover_position = d->log.position;
	u->since_ns = 0;
	d->log.urgent = false;
	cover(d);
	u->phase = TN_DURABLE_DATA;
	tn_store_req_submit(&u->req, TN_IO_SYNC, 0, NULL, 0);
}

uint64_t tn_store_durable_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_durable *u = &d->durable;
	const struct tn_store_log *log = &d->log;
	bool idle = log->phase == TN_LOG_IDLE;
	uint64_t due = TN_STORE_NEVER;

	if (!u->running || u->phase != TN_DURABLE_IDLE || log->doubt || tn_store_index_off(d) ||
	    (u->sequence == log->sequence && !tn_store_spaces_blocked(d)))
		return TN_STORE_NEVER;
	if (u->since_ns > 0 && d->store->durability_ns < TN_STORE_NEVER - u->since_ns)
		due = u->since_ns + d->store->durability_ns;
	/* The log is reused only up to where it is durable. */
	if (log->full || log->position - u->position >= d->super.log_bytes / 4 || (log->urgent && idle && log->unlogged == 0) ||
	    tn_store_spaces_blocked(d))
		due = now_ns;
	if (due != TN_STORE_NEVER && due < u->retry_ns)
		due = u->retry_ns;
	if (tn_store_waits_for_groups(d))
		due = now_ns;
	if (due > now_ns)
		return due;
	begin(d);
	return TN_STORE_NEVER;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

int tn_store_mark_load(struct tn_store_device *d, struct tn_disk_mark *mark)
{
	struct tn_store_durable *u = &d->durable;
	bool found = false;

	for (unsigned i = 0; i < 2; i++) {
		if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_MARK_OFFSET(i), u->mark, sizeof(*u->mark)) ||
		    tn_disk_mark_check(u->mark, sizeof(*u->mark), d->super.device_uuid) ||
		    (found && u->mark->generation < mark->generation))
			continue;
		*mark = *u->mark;
		u->mark_copy = i;
		found = true;
	}
	u->generation = found ? mark->generation : 0;
	return found ? 0 : -ENOENT;
}

int tn_store_mark_again(struct tn_store_device *d)
{
	struct tn_store_durable *u = &d->durable;
	uint64_t at = TN_DISK_MARK_OFFSET(u->mark_copy);

	if (u->generation == 0 || tn_store_sync_io(d, TN_IO_READ, at, u->mark, sizeof(*u->mark)) ||
	    tn_disk_mark_check(u->mark, sizeof(*u->mark), d->super.device_uuid))
		return 0;
	return tn_store_sync_io(d, TN_IO_WRITE, at, u->mark, sizeof(*u->mark));
}

int tn_store_durable_start(struct tn_store_device *d)
{
	struct tn_store_durable *u = &d->durable;
	int rc;

	u->sequence = d->log.synced_sequence;
	u->position = d->log.synced_position;
	mark_fill(d, u->sequence);
	rc = tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_MARK_OFFSET(!u->mark_copy), u->mark, sizeof(*u->mark));
	if (rc == 0)
		u->mark_copy = !u->mark_copy;
	u->running = rc == 0;
	return rc;
}
