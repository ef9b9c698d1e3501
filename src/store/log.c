/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index log of a device, how far the log is durable, and flushes.
 *
 * Nothing is queued: a slot or segment that changed is flagged, and a commit sweeps the flags into one group,
 * describing each slot as it is now. So memory is bounded by the slot table, a publish is never refused, and a full log
 * only delays. A group is written soon after the changes and waits for no sync, so that the group survives the death of
 * the process:
 *
 *	seal the group -> write a changed space table and new segment headers -> write the group.
 *
 * One group at a time, without gaps in sequence and position; a group never wraps around the region's end.
 *
 * A power cut may take groups, or the data of the blocks that groups name. From time to time, and for each flush, a cycle
 * makes durable what was written before the cycle began:
 *
 *	fdatasync (block data, headers, groups) -> the second copy of a changed space table -> the mark, which says how far ->
 *	fdatasync -> removed slots become free.
 *
 * After a power cut recovery believes the groups before the mark. The second sync makes certain that recovery finds the
 * mark: only the mark tells a group whose blocks are durable from a group whose blocks may be lost. The two copies of
 * the mark are written alternately, and the older copy is never overwritten before the newer one is durable.
 *
 * A group may wait for a cycle and a cycle for a group, and flushes wait for both. So the end of either asks both whether
 * they may go on: what waits behind a group or a sync need not wait for the next step of the store.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define RETRY_NS 50000000ull
#define GROUP_PERIOD_NS 50000000ull /* between groups that nobody waits for: records wait at most this long */
#define COMMIT_SLOTS 2048u /* so many changes do not wait any longer */
#define COMMIT_BYTES (8u << 20) /* nor do blocks of so many bytes: they are what a process that dies now would lose */

/* ---- sealing a group ------------------------------------------------------------------------------------------------ */

/* Describes in the group what is unlogged on pages [from, end), until the group is full. The page at which to go on. */
static uint32_t sweep(struct tn_store_device *d, uint32_t from, uint32_t end, uint32_t max)
{
	struct tn_disk_group *g = d->log.group;
	struct tn_disk_record *rec = (struct tn_disk_record *)(void *)(g + 1);
	uint32_t p;

	for (p = tn_bit_next(d->unlogged.any, from, end); p < end && g->records < max; p = tn_bit_next(d->unlogged.any, p, end)) {
		uint64_t item = (uint64_t)p << 6 | (uint64_t)__builtin_ctzll(d->unlogged.word[p]);

		tn_store_record_fill(d, item, &rec[g->records++]);
		tn_map_clear(&d->unlogged, item);
		tn_map_set(&d->inflight, item);
		d->log.unlogged--;
	}
	return p;
}

/* Segments first, then once round the slot table, from where the last sweep stopped. */
static void sweep_all(struct tn_store_device *d, uint32_t max)
{
	struct tn_store_log *log = &d->log;
	uint32_t first = d->store->table_pages, end = tn_store_page_count(d->store), from = first + log->cursor, to;

	if (sweep(d, 0, first, max) < first)
		return;
	to = sweep(d, from, end, max);
	log->swept += to - from;
	if (to == end) {
		to = sweep(d, first, from, max);
		log->swept += to - first;
	}
	log->cursor = to - first;
}

static bool seal(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;
	struct tn_disk_group *g = log->group;
	uint64_t size = d->super.log_bytes, free_bytes = size - (log->next.position - log->tail);
	uint64_t to_end = size - log->next.position % size, used;

	free_bytes = free_bytes < to_end ? free_bytes : to_end;
	free_bytes = free_bytes < TN_STORE_GROUP_BYTES ? free_bytes : TN_STORE_GROUP_BYTES;
	log->full = free_bytes < TN_DISK_PAGE;
	if (log->full)
		return false;
	memset(g, 0, sizeof(*g));
	sweep_all(d, (uint32_t)(free_bytes / sizeof(struct tn_disk_record)) - 1);
	memcpy(g->device_uuid, d->super.device_uuid, sizeof(g->device_uuid));
	g->epoch = log->epoch;
	g->sequence = log->next.sequence;
	g->position = log->next.position;
	used = sizeof(*g) + g->records * sizeof(struct tn_disk_record);
	g->bytes = (uint32_t)tn_round_up(used, TN_DISK_PAGE);
	memset((char *)g + used, 0, g->bytes - used);
	tn_disk_seal(&g->head, TN_DISK_MAGIC_LOG, g->bytes);
	log->force = false;
	log->published_bytes = 0;
	log->headers_next = 0;
	if (g->records > 0 && d->durable.since_ns == 0)
		d->durable.since_ns = log->oldest_ns;
	log->oldest_ns = log->last_ns = tn_now_ns(d->store->clock);
	return true;
}

/* ---- writing a group ------------------------------------------------------------------------------------------------ */

/*
 * Several at once: a save that needs many segments has no record before their headers are written. One pass per group: what changed behind
 * it is of the next group.
 */
static bool write_segment_headers(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;
	uint32_t n = 0;

	log->headers_status = 0;
	for (; log->headers_dirty > 0 && n < TN_LOG_HEADERS && log->headers_next < d->store->segment_count; log->headers_next++) {
		struct tn_log_header *h = &log->header[n];

		if (!d->segs[log->headers_next].header_dirty)
			continue;
		h->segment = log->headers_next;
		tn_store_segment_seal(d, h->segment, h->page);
		tn_store_req_submit(&h->req, TN_IO_WRITE, tn_store_segment_offset(d, h->segment), h->page, sizeof(*h->page));
		n++;
	}
	log->headers_open = n;
	return n > 0;
}

/* Begins the first step from `from` on that has something to do. */
static void begin_step(struct tn_store_device *d, enum tn_log_phase from)
{
	struct tn_store_log *log = &d->log;
	struct tn_store *s = d->store;

	if (from <= TN_LOG_SPACES && d->spaces_generation < s->spaces.generation) {
		log->phase = TN_LOG_SPACES;
		*d->spaces_page = s->spaces;
		tn_disk_seal(&d->spaces_page->head, TN_DISK_MAGIC_SPACES, sizeof(*d->spaces_page));
		tn_store_req_submit(&log->req, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(!d->spaces_copy), d->spaces_page,
				    sizeof(*d->spaces_page));
		return;
	}
	if (from <= TN_LOG_SEGMENT && write_segment_headers(d)) {
		log->phase = TN_LOG_SEGMENT;
		return;
	}
	log->phase = TN_LOG_WRITE;
	tn_store_req_submit(&log->req, TN_IO_WRITE, d->super.log_offset + log->next.position % d->super.log_bytes, log->group,
			    log->group->bytes);
}

static void group_ended(struct tn_store_device *d, int status)
{
	struct tn_store_log *log = &d->log;

	log->phase = TN_LOG_IDLE;
	if (status == 0) {
		tn_store_map_move(d, &d->inflight, &d->logged);
		log->next.position += log->group->bytes;
		log->next.sequence++;
		log->retry = (struct tn_store_retry){0};
	} else {
		tn_store_map_empty(d, &d->inflight, tn_store_item_changed);
		tn_store_retry_later(d, &log->retry, RETRY_NS, "index log", status);
		if (log->doubt)
			tn_store_log_rewind(d);
		log->doubt = 0;
	}
	tn_store_waits_settle(d, status);
}

static void advance(struct tn_store_device *d)
{
	uint64_t now_ns = tn_now_ns(d->store->clock);

	tn_store_log_step(d, now_ns);
	tn_store_durable_step(d, now_ns);
}

static void log_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_log *log = &d->log;

	tn_store_observe_req(r, status);
	if (status || log->doubt) {
		group_ended(d, status ? status : log->doubt);
		return;
	}
	if (log->phase == TN_LOG_WRITE) {
		group_ended(d, 0);
		advance(d);
		return;
	}
	d->spaces_generation = d->spaces_page->generation;
	d->spaces_unsynced = true;
	begin_step(d, TN_LOG_SEGMENT);
}

static void header_done(struct tn_store_req *r, int status)
{
	struct tn_log_header *h = tn_container_of(r, struct tn_log_header, req);
	struct tn_store_device *d = r->dev;
	struct tn_store_log *log = &d->log;

	tn_store_observe_req(r, status);
	if (status && !log->headers_status)
		log->headers_status = status;
	if (!status && !log->doubt && d->segs[h->segment].generation == h->page->generation) {
		d->segs[h->segment].header_dirty = false;
		log->headers_dirty--;
	}
	if (--log->headers_open > 0)
		return;
	if (log->headers_status || log->doubt)
		group_ended(d, log->headers_status ? log->headers_status : log->doubt);
	else
		begin_step(d, TN_LOG_SEGMENT);
}

/* A space table waits until the one before it is durable in both places. */
static bool spaces_blocked(const struct tn_store_device *d)
{
	return (d->spaces_unsynced || d->spaces_single) && d->spaces_generation < d->store->spaces.generation;
}

uint64_t tn_store_log_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_log *log = &d->log;
	uint64_t due = TN_STORE_NEVER;

	if (d->store->read_only || log->phase != TN_LOG_IDLE || tn_store_index_off(d))
		return TN_STORE_NEVER;
	if (log->unlogged > 0) {
		due = log->last_ns + GROUP_PERIOD_NS;
		due = due > log->oldest_ns ? due : log->oldest_ns;
		if (log->urgent || log->unlogged >= COMMIT_SLOTS || log->published_bytes >= COMMIT_BYTES)
			due = now_ns;
		due = due > log->retry.ns ? due : log->retry.ns;
	}
	if (d->flush_waiting || log->force) /* each flush tries once, however often the log has failed */
		due = now_ns;
	if (due > now_ns)
		return due;
	if (!spaces_blocked(d) && seal(d))
		begin_step(d, TN_LOG_SPACES);
	/* Still idle: the log is full, or a space table waits. The end of the checkpoint or sync goes on from here. */
	return TN_STORE_NEVER;
}

/* ---- the cycle ------------------------------------------------------------------------------------------------------ */

/* A change became durable. */
static void settle(struct tn_store_device *d, uint64_t item)
{
	uint64_t first = tn_store_slot_item(d->store, 0);
	uint32_t page = (uint32_t)(item >> 6);
	bool changed = tn_store_settling(d, page) >> (item & 63) & 1;

	tn_store_page_dirty(d, page);
	if (item >= first && !changed && d->meta[item - first].state == TN_SLOT_FREEING)
		tn_store_slot_set(d, (uint32_t)(item - first), TN_SLOT_FREE);
}

static void mark_fill(struct tn_store_device *d, uint64_t sequence)
{
	struct tn_store_durable *u = &d->durable;

	memset(u->mark, 0, sizeof(*u->mark));
	memcpy(u->mark->device_uuid, d->super.device_uuid, sizeof(u->mark->device_uuid));
	u->mark->generation = ++u->generation;
	u->mark->sequence = sequence;
	u->mark->epoch = d->store->epoch;
	u->mark->spaces = u->spaces;
	memcpy(u->mark->boot, d->store->boot, sizeof(u->mark->boot));
	tn_disk_seal(&u->mark->head, TN_DISK_MAGIC_MARK, sizeof(*u->mark));
}

static void durable_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;
	struct tn_store_durable *u = &d->durable;

	tn_store_observe_req(r, status);
	status = status ? status : u->doubt;
	if (status) {
		u->phase = TN_DURABLE_IDLE;
		u->doubt = 0;
		tn_store_retry_later(d, &u->retry, RETRY_NS, "making the index durable", status);
		tn_store_log_anew(d); /* after a failed sync this was done before (sync.c) */
		tn_store_waits_settle(d, status);
		return;
	}
	if (u->phase == TN_DURABLE_MARK) {
		u->phase = TN_DURABLE_SYNC;
		tn_store_req_submit(&u->req, TN_IO_SYNC, 0, NULL, 0);
		return;
	}
	if (u->phase == TN_DURABLE_DATA && d->spaces_single) {
		u->phase = TN_DURABLE_SPACES;
		tn_store_req_submit(&u->req, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(!d->spaces_copy), d->spaces_page,
				    sizeof(*d->spaces_page));
		return; /* no newer table is written before the cycle ends */
	}
	if (u->phase == TN_DURABLE_DATA || u->phase == TN_DURABLE_SPACES) {
		u->copies_spaces = u->phase == TN_DURABLE_SPACES;
		u->phase = TN_DURABLE_MARK;
		mark_fill(d, u->cover.sequence);
		tn_store_req_submit(&u->req, TN_IO_WRITE, TN_DISK_MARK_OFFSET(!u->mark_copy), u->mark, sizeof(*u->mark));
	} else {
		u->phase = TN_DURABLE_IDLE;
		d->spaces_single &= !u->copies_spaces;
		u->retry = (struct tn_store_retry){0};
		u->mark_copy = !u->mark_copy;
		u->reached = u->cover;
		tn_store_map_empty(d, &d->covered, settle);
		tn_store_waits_settle(d, 0);
	}
	advance(d); /* after the first sync, too: a space table may have waited for it */
}

/* Do flushes wait for the cycle: for groups that were written, or for a group that can be written only after the cycle? */
static bool flushes_wait(const struct tn_store_device *d)
{
	const struct tn_store *s = d->store;

	if (d->flush_waiting && (spaces_blocked(d) || d->log.full))
		return true;
	for (uint32_t i = 0; i < TN_FLUSHES_MAX && s->flushes > 0; i++) {
		uint64_t ticket = s->flush[i].wait[d->index].ticket;

		if (s->flush[i].done && ticket > d->durable.reached.sequence && ticket <= d->log.next.sequence)
			return true;
	}
	return false;
}

uint64_t tn_store_durable_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store_durable *u = &d->durable;
	struct tn_store_log *log = &d->log;
	bool idle = log->phase == TN_LOG_IDLE;
	uint64_t due = TN_STORE_NEVER;

	if (!u->running || u->phase != TN_DURABLE_IDLE || log->doubt || tn_store_index_off(d) ||
	    (u->reached.sequence == log->next.sequence && !spaces_blocked(d)))
		return TN_STORE_NEVER;
	if (u->since_ns > 0 && d->store->durability_ns < TN_STORE_NEVER - u->since_ns)
		due = u->since_ns + d->store->durability_ns;
	/* The log is reused only up to where it is durable. */
	if (log->full || log->next.position - u->reached.position >= d->super.log_bytes / 4 || (log->urgent && idle && log->unlogged == 0) ||
	    spaces_blocked(d))
		due = now_ns;
	if (due != TN_STORE_NEVER && due < u->retry.ns)
		due = u->retry.ns;
	if (flushes_wait(d)) /* each flush tries once, here, too */
		due = now_ns;
	if (due > now_ns)
		return due;
	u->cover = log->next;
	u->since_ns = 0;
	log->urgent = false;
	tn_store_map_move(d, &d->logged, &d->covered);
	u->phase = TN_DURABLE_DATA;
	tn_store_req_submit(&u->req, TN_IO_SYNC, 0, NULL, 0);
	return TN_STORE_NEVER;
}

/* ---- flushes -------------------------------------------------------------------------------------------------------- */

/*
 * A file that was deleted lives on as long as it is open: reads, writes and syncs succeed, and the last close loses all
 * of them. So a sync counts only if the file still has a name after the sync (io.c), and a flush that has nothing to write
 * looks for the name, too. What such a file holds stays in the cache until the cache closes: the file is as good as host
 * memory. Nothing new goes into the file, no flush succeeds, and the next opening of the directory begins a new store.
 */
static void begin_look(struct tn_store_device *d)
{
	d->look.begun++;
	tn_store_req_submit(&d->look.req, TN_IO_STAT, 0, &d->look.req.stat, sizeof(d->look.req.stat));
}

static void look_done(struct tn_store_req *r, int status)
{
	struct tn_store_device *d = r->dev;

	d->look.ended = d->look.begun;
	if (d->look.again)
		begin_look(d);
	d->look.again = false;
	if (status == 0)
		tn_store_waits_settle(d, 0);
}

/* Looks whether the file still has a name, later than now; the number that look.ended will have then. */
static uint64_t check_file_has_name(struct tn_store_device *d)
{
	if (!d->look.req.busy)
		begin_look(d);
	else
		d->look.again = true;
	return d->look.begun + d->look.again;
}

/* The newest space table is believed, whichever device it is read from. */
static bool others_have_spaces(const struct tn_store_device *d)
{
	const struct tn_store *s = d->store;

	for (uint32_t i = 0; i < s->ndevices; i++)
		if (i != d->index && s->dev[i].hs.health != TN_OFFLINE)
			return true;
	return d->spaces_generation >= s->spaces.generation;
}

/* An offline device writes nothing. Of what it has not written only the space table may be durable all the same: elsewhere. */
static int offline_flush(const struct tn_store_device *d)
{
	bool pending = d->log.unlogged > 0 || d->log.phase != TN_LOG_IDLE || d->durable.reached.sequence < d->log.next.sequence;

	if (d->absent)
		return 0;
	return pending || !others_have_spaces(d) ? -EIO : 0;
}

/* What the flush waits for on this device; an error that it will end with, or 0. */
static int begin_flush(struct tn_store_device *d, struct tn_store_wait *w)
{
	const struct tn_store_log *log = &d->log;

	if (d->deleted)
		return -ESTALE;
	if (d->hs.health == TN_OFFLINE)
		return d->untold ? -EIO : offline_flush(d);
	if (log->unlogged > 0 || d->spaces_generation < d->store->spaces.generation)
		w->sweep = log->swept + d->store->slot_pages;
	else if (log->phase != TN_LOG_IDLE)
		w->ticket = log->next.sequence + 1;
	else if (d->durable.reached.sequence < log->next.sequence)
		w->ticket = log->next.sequence;
	else
		w->look = check_file_has_name(d);
	d->flush_waiting |= w->sweep > 0;
	return d->untold ? -EIO : 0; /* blocks of whose loss the owner does not know */
}

/* A flush waits, on each device, for everything published and removed before it. Its end comes from sync.c. */
void tn_store_flush(struct tn_store *s, void (*done)(void *arg, int status), void *arg)
{
	struct tn_store_flush *f = s->flush;

	if (s->flushes == TN_FLUSHES_MAX) {
		done(arg, tn_fail(-EAGAIN, "%u flushes under way: wait for one to end", TN_FLUSHES_MAX));
		return;
	}
	while (f->done)
		f++;
	*f = (struct tn_store_flush){.done = done, .arg = arg};
	s->flushes++;
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++) {
		int rc = begin_flush(&s->dev[i], &f->wait[i]);

		f->status = rc ? rc : f->status;
	}
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (f->wait[i].sweep > 0 || f->wait[i].ticket > 0)
			advance(&s->dev[i]);
	tn_store_flush_end(s, f);
}

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

/* Reads one copy, as far as it can be read. */
static int mark_read(struct tn_store_device *d, unsigned copy)
{
	struct tn_disk_mark *mark = d->durable.mark;

	tn_store_bulk_read(d, TN_DISK_MARK_OFFSET(copy), mark, sizeof(*mark));
	return tn_store_checked(d, tn_disk_mark_check(mark, sizeof(*mark), d->super.device_uuid));
}

static int mark_write(struct tn_store_device *d, unsigned copy)
{
	return tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_MARK_OFFSET(copy), d->durable.mark, sizeof(*d->durable.mark));
}

int tn_store_mark_load(struct tn_store_device *d, struct tn_disk_mark *mark, bool *damaged)
{
	static const struct tn_disk_head blank;
	struct tn_store_durable *u = &d->durable;
	bool blanks = false;

	*damaged = false;
	u->generation = 0;
	for (unsigned i = 0; i < 2; i++) {
		int rc = mark_read(d, i);

		blanks |= memcmp(&u->mark->head, &blank, sizeof(blank)) == 0;
		*damaged |= rc == -EBADMSG;
		if (rc || u->mark->generation <= u->generation)
			continue;
		*mark = *u->mark;
		u->mark_copy = i;
		u->generation = mark->generation;
	}
	/* Only the first mark of a device stands alone. No power cut tears a mark: all it says is in one sector. */
	*damaged &= !(blanks && u->generation < 2);
	u->spaces = u->generation > 0 ? mark->spaces : 0;
	return u->generation > 0 ? 0 : -ENOENT;
}

int tn_store_mark_again(struct tn_store_device *d)
{
	const struct tn_store_durable *u = &d->durable;

	return u->generation > 0 && mark_read(d, u->mark_copy) == 0 ? mark_write(d, u->mark_copy) : 0;
}

int tn_store_spaces_copy(struct tn_store_device *d)
{
	return tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(!d->spaces_copy), d->spaces_page, sizeof(*d->spaces_page));
}

int tn_store_durable_start(struct tn_store_device *d)
{
	struct tn_store_durable *u = &d->durable;
	int rc;

	u->reached = d->log.synced;
	mark_fill(d, u->reached.sequence);
	rc = mark_write(d, !u->mark_copy);
	u->mark_copy ^= rc == 0;
	u->running = rc == 0;
	return rc;
}

void tn_store_log_init(struct tn_store_device *d)
{
	tn_store_req_init(&d->log.req, d, log_done);
	for (uint32_t i = 0; i < TN_LOG_HEADERS; i++)
		tn_store_req_init(&d->log.header[i].req, d, header_done);
	tn_store_req_init(&d->durable.req, d, durable_done);
	tn_store_req_init(&d->look.req, d, look_done);
}
