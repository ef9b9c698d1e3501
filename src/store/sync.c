/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is durable, as far as memory knows: which changes wait for what, what flushes wait for, and what the end of a
 * sync means. Nothing is started from here: the log, the cycle, a look or a request calls this file when something has
 * come true, or will not. Flushes that wait for nothing more end: by a call of their `done`, up and out of the store.
 *
 * A good sync covers the log and the space table as they were when the sync was sent. When a sync fails, the kernel (or
 * the drive) gives up what the sync covered, and the next sync returns 0 as if nothing had happened. So nothing that was
 * written since the last good sync may be believed to be on the disk, though it can be read.
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

/* ---- flushes ------------------------------------------------------------------------------------------------------ */

static bool waits(const struct tn_store_wait *w)
{
	return w->sweep > 0 || w->ticket > 0 || w->look > 0;
}

void tn_store_flush_end(struct tn_store *s, struct tn_store_flush *f)
{
	void (*done)(void *arg, int status) = f->done;

	for (uint32_t i = 0; i < s->ndevices; i++)
		if (waits(&f->wait[i]))
			return;
	f->done = NULL;
	s->flushes--;
	done(f->arg, f->status);
}

void tn_store_waits_settle(struct tn_store_device *d, int status)
{
	struct tn_store *s = d->store;

	d->flush_waiting = false;
	for (uint32_t i = 0; i < TN_FLUSHES_MAX && s->flushes > 0; i++) {
		struct tn_store_flush *f = &s->flush[i];
		struct tn_store_wait *w = &f->wait[d->index];

		if (!f->done)
			continue;
		if (status && waits(w)) {
			f->status = f->status ? f->status : status;
			*w = (struct tn_store_wait){0, 0, 0};
		}
		/* The sweep has come round: what was flagged before the flush is in groups that were written. */
		if (w->sweep > 0 && d->log.phase == TN_LOG_IDLE && d->log.swept >= w->sweep)
			*w = (struct tn_store_wait){.ticket = d->log.next.sequence};
		if (w->look <= d->look.ended)
			w->look = 0;
		if (w->ticket <= d->durable.reached.sequence)
			w->ticket = 0;
		d->flush_waiting |= w->sweep > 0;
		tn_store_flush_end(s, f);
	}
}

/* ---- what the log and the cycle have done --------------------------------------------------------------------------- */

void tn_store_map_move(struct tn_store_device *d, struct tn_store_map *from, struct tn_store_map *to)
{
	uint32_t n = tn_store_page_count(d->store);

	for (uint32_t p = tn_bit_next(from->any, 0, n); p < n; p = tn_bit_next(from->any, p + 1, n)) {
		to->word[p] |= from->word[p];
		from->word[p] = 0;
		tn_bit_set(to->any, p);
		tn_bit_clear(from->any, p);
	}
}

void tn_store_map_empty(struct tn_store_device *d, struct tn_store_map *map,
			void (*each)(struct tn_store_device *d, uint64_t item))
{
	uint32_t n = tn_store_page_count(d->store);

	for (uint32_t p = tn_bit_next(map->any, 0, n); p < n; p = tn_bit_next(map->any, p + 1, n)) {
		uint64_t left = map->word[p];

		map->word[p] = 0;
		tn_bit_clear(map->any, p);
		for (; left; left &= left - 1)
			each(d, (uint64_t)p << 6 | (uint64_t)__builtin_ctzll(left));
	}
}

void tn_store_log_anew(struct tn_store_device *d)
{
	tn_store_map_empty(d, &d->covered, tn_store_item_changed);
	tn_store_map_empty(d, &d->logged, tn_store_item_changed);
	d->durable.since_ns = 0;
}

void tn_store_log_rewind(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;

	log->next = log->synced;
	log->epoch++;
}

/* ---- the end of a sync ------------------------------------------------------------------------------------------------ */

static void covered(struct tn_store_device *d)
{
	d->log.synced = d->sync_sent;
	if (!d->sync_spaces || !d->spaces_unsynced)
		return;
	d->spaces_unsynced = false;
	d->spaces_copy = !d->spaces_copy;
	d->spaces_single = true;
	d->durable.spaces = d->spaces_generation;
}

/* Puts slots of one page, whose data may be lost, in doubt. Returns how many of the slots hold blocks. */
static uint32_t doubt_page(struct tn_store_device *d, uint32_t p, uint64_t unsynced)
{
	uint32_t blocks = 0;

	for (uint32_t i = 0; i < TN_DISK_RECORDS; i++) {
		enum tn_slot_state state = d->meta[p << 6 | i].state;
		bool lost = state == TN_SLOT_RESERVED || (state == TN_SLOT_COMMITTED && (unsynced >> i & 1));

		if (!lost || tn_store_in_doubt(d, p << 6 | i))
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
	bool synced = u->phase > TN_DURABLE_DATA;
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
		if (tn_store_segment_settling(d, i))
			tn_store_header_dirty(d, i);
		for (uint32_t p = i * s->segment_pages; tn_store_used(&d->segs[i]) > 0 && p < (i + 1) * s->segment_pages; p++) {
			uint32_t w = s->table_pages + p;
			uint64_t unsynced = d->unlogged.word[w] | d->inflight.word[w] | d->logged.word[w];

			blocks += doubt_page(d, p, unsynced | (synced ? 0 : d->covered.word[w]));
		}
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

uint64_t tn_store_doubt_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store *s = d->store;
	bool any = false;

	if (d->tell_ns == TN_STORE_NEVER || now_ns < d->tell_ns || !s->cb.evict)
		return d->tell_ns;
	for (uint32_t p = 0; p < s->slot_pages; p++) {
		for (uint64_t left = d->doubtful[p]; left; left &= left - 1) {
			uint32_t local = p << 6 | (uint32_t)__builtin_ctzll(left);

			if (d->meta[local].state != TN_SLOT_COMMITTED)
				continue;
			any = true;
			s->cb.evict(s->cb.arg, tn_store_global(d, local), d->cookie[local]);
		}
	}
	d->untold = false;
	d->tell_ns = any ? now_ns + TELL_NS : TN_STORE_NEVER;
	return d->tell_ns;
}
