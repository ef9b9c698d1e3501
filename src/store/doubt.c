/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the end of a sync means. A good sync covers the log and the space table as they were when the sync was sent.
 * When a sync fails, the kernel (or the drive) gives up what the sync covered, and the next sync returns 0 as if
 * nothing had happened. So nothing that was written since the last good sync may be believed to be on the disk, though
 * it can be read.
 *
 * A group, cycle or checkpoint under way fails, and the log is written anew from where the last good sync had left it,
 * with records that say what each slot is now. Blocks whose data no good sync covers - still being written, or
 * published since - are in doubt: they are logged as removed, left out of checkpoints, and the owner is asked to remove
 * them. Groups that name blocks in doubt were written before. Until those groups are written over, a process that dies
 * leaves such blocks to the next process: readable, but not on the disk. Syncs of a device never overlap (io.c): of two
 * that overlap, one might be told the error and the other be believed.
 */
#include <string.h>

#include "store/store_internal.h"

#define TELL_NS 100000000ull /* an owner that did not remove a block is asked again after so long */

void tn_store_sync_begins(struct tn_store_device *d)
{
	d->sync_position = d->log.position;
	d->sync_sequence = d->log.sequence;
	d->sync_spaces = d->spaces_unsynced;
}

static void covered(struct tn_store_device *d)
{
	d->log.synced_position = d->sync_position;
	d->log.synced_sequence = d->sync_sequence;
	if (!d->sync_spaces || !d->spaces_unsynced)
		return;
	d->spaces_unsynced = false;
	d->spaces_copy = !d->spaces_copy;
}

/* Puts slots of one page, whose data may be lost, in doubt. Returns how many of the slots hold blocks. */
static uint32_t doubt_page(struct tn_store_device *d, uint32_t p, uint64_t unsynced)
{
	uint32_t blocks = 0;

	for (uint32_t i = 0; i < TN_DISK_RECORDS; i++) {
		enum tn_slot_state state = TN_META_STATE(d->meta[p << 6 | i]);
		bool lost = state == TN_SLOT_RESERVED || (state == TN_SLOT_COMMITTED && (unsynced >> i & 1));

		if (!lost || (d->doubtful[p] >> i & 1))
			continue;
		d->doubtful[p] |= 1ull << i;
		blocks += state == TN_SLOT_COMMITTED;
	}
	return blocks;
}

static void failed(struct tn_store_device *d, int status)
{
	struct tn_store *s = d->store;
	struct tn_store_log *log = &d->log;
	struct tn_store_durable *u = &d->durable;
	/* Of what the cycle covers the data was synced before its mark is written. */
	bool synced = u->phase == TN_DURABLE_MARK || u->phase == TN_DURABLE_SYNC;
	uint32_t blocks = 0;

	if (!d->running) /* while opening nothing can be in doubt: the open fails */
		return;
	if (log->phase != TN_LOG_IDLE)
		log->doubt = status;
	if (u->phase != TN_DURABLE_IDLE)
		u->doubt = status;
	if (d->ckpt.phase != TN_CKPT_IDLE)
		d->ckpt.doubt = status;
	for (uint32_t i = 0; i < d->allocated; i++) {
		struct tn_store_segment *sg = &d->segs[i];

		if (tn_store_segment_settling(sg) && !sg->header_dirty) {
			sg->header_dirty = true;
			log->headers_dirty++;
		}
		for (uint32_t p = i * s->segment_pages; sg->used > 0 && p < (i + 1) * s->segment_pages; p++)
			blocks += doubt_page(d, p, d->unlogged[p] | d->inflight[p] | d->logged[p] | (synced ? 0 : d->covered[p]));
	}
	if (d->spaces_unsynced)
		d->spaces_generation = 0;
	d->spaces_unsynced = false;
	tn_store_log_anew(d);
	if (log->phase == TN_LOG_IDLE)
		tn_store_log_rewind(d);
	if (blocks > 0) {
		tn_log(s->log, TN_LOG_ERROR, "%s: a sync failed (%s): %u blocks that were not durable yet are given up", d->path,
		       strerror(-status), blocks);
		d->lost_blocks += blocks;
		d->untold = true;
		d->tell_ns = 0;
	}
	tn_store_waits_settle(d, status); /* every flush that waits would have covered the lost blocks */
}

void tn_store_sync_ended(struct tn_store_device *d, int status)
{
	if (status)
		failed(d, status);
	else
		covered(d);
}

void tn_store_doubt_publish(struct tn_store_device *d, uint32_t local)
{
	if (!tn_store_in_doubt(d, local))
		return;
	tn_log(d->store->log, TN_LOG_ERROR, "%s: slot %u was being written when a sync failed: its block is given up", d->path,
	       tn_store_global(d, local));
	d->lost_blocks++;
	d->untold = true;
	d->tell_ns = 0;
}

uint64_t tn_store_doubt_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store *s = d->store;
	bool any = false;

	if (d->tell_ns == TN_STORE_NEVER || now_ns < d->tell_ns || !s->cb.evict)
		return d->tell_ns;
	for (uint32_t p = 0; p < s->slot_pages; p++) {
		for (uint64_t left = d->doubtful[p]; left; left &= left - 1) {
			uint32_t local = p << 6 | (uint32_t)__builtin_ctzll(left);

			if (TN_META_STATE(d->meta[local]) != TN_SLOT_COMMITTED)
				continue;
			any = true;
			s->cb.evict(s->cb.arg, tn_store_global(d, local), d->cookie[local]);
		}
	}
	d->untold = false;
	d->tell_ns = any ? now_ns + TELL_NS : TN_STORE_NEVER;
	return d->tell_ns;
}
