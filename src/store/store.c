/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store as a whole: opening, closing, and what is known of it. The parts are in their own files (store_internal.h lists
 * them), and nothing below calls what is here: a store that is open lives by its steps (step.c).
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/boot.h"
#include "base/error.h"
#include "store/store_internal.h"
#include "store/waits.h"

static const struct tn_store_events events = {
	.sync_begins = tn_store_sync_begins,
	.sync_ended = tn_store_sync_ended,
	.file_deleted = tn_store_file_deleted,
};

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void *take(struct tn_store *s, size_t n, size_t size)
{
	size_t bytes = tn_array_bytes(n, size);
	void *p = tn_get(s->alloc, bytes);

	if (p)
		s->index_bytes += bytes;
	return p;
}

static void give(struct tn_store *s, void *p, size_t n, size_t size)
{
	if (p)
		s->index_bytes -= n * size;
	tn_put(s->alloc, p, n * size);
}

static uint32_t bitmap_words(uint32_t bits)
{
	return (bits + 63) / 64;
}

static int device_get(struct tn_store_device *d)
{
	struct tn_store *s = d->store;
	uint32_t words = bitmap_words(s->table_pages + s->slot_pages);

	d->segs = take(s, s->segment_count, sizeof(*d->segs));
	d->free = take(s, s->slot_pages, sizeof(*d->free));
	d->unlogged = take(s, s->slot_pages, sizeof(*d->unlogged));
	d->inflight = take(s, s->slot_pages, sizeof(*d->inflight));
	d->logged = take(s, s->slot_pages, sizeof(*d->logged));
	d->covered = take(s, s->slot_pages, sizeof(*d->covered));
	d->doubtful = take(s, s->slot_pages, sizeof(*d->doubtful));
	d->unlogged_pages = take(s, bitmap_words(s->slot_pages), sizeof(uint64_t));
	d->logged_pages = take(s, bitmap_words(s->slot_pages), sizeof(uint64_t));
	d->covered_pages = take(s, bitmap_words(s->slot_pages), sizeof(uint64_t));
	d->meta = take(s, (size_t)s->slot_pages * 64, sizeof(*d->meta));
	d->cookie = take(s, (size_t)s->slot_pages * 64, sizeof(*d->cookie));
	d->ckpt.dirty[0] = take(s, words, sizeof(uint64_t));
	d->ckpt.dirty[1] = take(s, words, sizeof(uint64_t));
	d->ckpt.soft[0] = take(s, words, sizeof(uint64_t));
	d->ckpt.soft[1] = take(s, words, sizeof(uint64_t));
	d->ckpt.buffer = tn_store_pages_get(s, TN_STORE_BATCH_PAGES * TN_DISK_PAGE);
	d->log.group = tn_store_pages_get(s, TN_STORE_GROUP_BYTES);
	d->log.header_page = tn_store_pages_get(s, TN_DISK_PAGE);
	d->durable.mark = tn_store_pages_get(s, sizeof(*d->durable.mark));
	d->spaces_page = tn_store_pages_get(s, sizeof(*d->spaces_page));
	d->hs.buffer = tn_store_pages_get(s, TN_DISK_PAGE);
	if (!d->segs || !d->free || !d->unlogged || !d->inflight || !d->logged || !d->covered || !d->doubtful ||
	    !d->unlogged_pages || !d->logged_pages || !d->covered_pages || !d->durable.mark || !d->meta || !d->cookie || !d->ckpt.dirty[0] || !d->ckpt.dirty[1] || !d->ckpt.soft[0] || !d->ckpt.soft[1] || !d->ckpt.buffer ||
	    !d->log.group || !d->log.header_page || !d->spaces_page || !d->hs.buffer)
		return tn_fail(-ENOMEM, "no memory for %u slots: lower max_slots", s->slot_pages * TN_DISK_RECORDS);
	for (uint32_t i = 0; i < s->segment_count; i++) {
		tn_list_init(&d->segs[i].link);
		d->segs[i].shape = TN_SHAPE_NONE;
	}
	return 0;
}

static void device_put(struct tn_store_device *d)
{
	struct tn_store *s = d->store;
	uint32_t words = bitmap_words(s->table_pages + s->slot_pages);

	if (!s->slot_pages)
		return;
	give(s, d->segs, s->segment_count, sizeof(*d->segs));
	give(s, d->free, s->slot_pages, sizeof(*d->free));
	give(s, d->unlogged, s->slot_pages, sizeof(*d->unlogged));
	give(s, d->inflight, s->slot_pages, sizeof(*d->inflight));
	give(s, d->logged, s->slot_pages, sizeof(*d->logged));
	give(s, d->covered, s->slot_pages, sizeof(*d->covered));
	give(s, d->doubtful, s->slot_pages, sizeof(*d->doubtful));
	give(s, d->unlogged_pages, bitmap_words(s->slot_pages), sizeof(uint64_t));
	give(s, d->logged_pages, bitmap_words(s->slot_pages), sizeof(uint64_t));
	give(s, d->covered_pages, bitmap_words(s->slot_pages), sizeof(uint64_t));
	give(s, d->meta, (size_t)s->slot_pages * 64, sizeof(*d->meta));
	give(s, d->cookie, (size_t)s->slot_pages * 64, sizeof(*d->cookie));
	give(s, d->ckpt.dirty[0], words, sizeof(uint64_t));
	give(s, d->ckpt.dirty[1], words, sizeof(uint64_t));
	give(s, d->ckpt.soft[0], words, sizeof(uint64_t));
	give(s, d->ckpt.soft[1], words, sizeof(uint64_t));
	tn_store_pages_put(s, d->ckpt.buffer, TN_STORE_BATCH_PAGES * TN_DISK_PAGE);
	tn_store_pages_put(s, d->log.group, TN_STORE_GROUP_BYTES);
	tn_store_pages_put(s, d->log.header_page, TN_DISK_PAGE);
	tn_store_pages_put(s, d->durable.mark, sizeof(*d->durable.mark));
	tn_store_pages_put(s, d->spaces_page, sizeof(*d->spaces_page));
	tn_store_pages_put(s, d->hs.buffer, TN_DISK_PAGE);
	tn_store_pages_put(s, d->prep.buffer, TN_STORE_BULK_BYTES);
}

static void destroy(struct tn_store *s)
{
	for (uint32_t i = 0; s->dev && i < s->ndevices; i++) {
		if (s->dev[i].open)
			tn_io_close(s->io, s->dev[i].file);
		device_put(&s->dev[i]);
	}
	for (uint32_t i = 0; i < s->nclasses; i++)
		tn_put(s->alloc, s->cls[i].bytes, s->cls[i].nobjects * sizeof(*s->cls[i].bytes));
	give(s, s->shape, TN_STORE_SHAPES_MAX, sizeof(*s->shape));
	give(s, s->cls, TN_STORE_CLASSES_MAX, sizeof(*s->cls));
	give(s, s->waits, 1, sizeof(*s->waits));
	tn_store_pages_put(s, s->spaces, sizeof(*s->spaces));
	give(s, s->dev, TN_DEVICES_MAX, sizeof(*s->dev));
	tn_put(s->alloc, s, sizeof(*s));
}

/* ---- open ------------------------------------------------------------------------------------------------------ */

static int create(const struct tn_store_opts *o, struct tn_store **out)
{
	struct tn_store *s;

	if (o->ndirs == 0 || o->ndirs > TN_DEVICES_MAX)
		return tn_fail(-EINVAL, "%u directories: must be 1..%u", o->ndirs, TN_DEVICES_MAX);
	s = tn_get(o->alloc, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "no memory for a store");
	s->io = o->io;
	s->alloc = o->alloc;
	s->clock = o->clock;
	s->log = o->log;
	s->cb = o->cb;
	s->events = &events;
	s->read_only = o->read_only;
	s->rebuild = o->rebuild;
	s->prepare = o->prepare && !o->read_only;
	s->ndevices = o->ndirs;
	s->slow_read_ns = o->slow_read_ns;
	s->durability_ns = o->durability_ns ? o->durability_ns : TN_STORE_DURABILITY_NS;
	memcpy(s->boot, o->boot, sizeof(s->boot));
	if (s->boot[0] == 0 && s->boot[1] == 0)
		tn_boot_id(s->boot);
	tn_store_budget_init(s, o->write_bytes_per_day);
	tn_list_init(&s->queued);
	s->dev = take(s, TN_DEVICES_MAX, sizeof(*s->dev));
	s->shape = take(s, TN_STORE_SHAPES_MAX, sizeof(*s->shape));
	s->cls = take(s, TN_STORE_CLASSES_MAX, sizeof(*s->cls));
	s->waits = take(s, 1, sizeof(*s->waits));
	s->spaces = tn_store_pages_get(s, sizeof(*s->spaces));
	for (uint32_t i = 0; s->dev && i < TN_DEVICES_MAX; i++) {
		s->dev[i].store = s;
		s->dev[i].index = i;
	}
	if (!s->dev || !s->shape || !s->cls || !s->waits || !s->spaces) {
		destroy(s);
		return tn_fail(-ENOMEM, "no memory for a store");
	}
	*out = s;
	return 0;
}

static int device_start(struct tn_store_device *d, uint64_t capacity_bytes)
{
	struct tn_store *s = d->store;
	struct tn_io_stat st = {0};
	uint64_t limit, room;
	int rc = device_get(d);

	if (rc == 0 && !d->absent)
		rc = tn_io_stat(s->io, d->file, &st);
	if (rc)
		return rc;
	d->align = st.offset_align > st.memory_align ? st.offset_align : st.memory_align;
	d->in_memory = st.in_memory;
	tn_list_init(&d->unassigned);
	d->victim = UINT32_MAX;
	d->tell_ns = TN_STORE_NEVER;
	tn_store_commit_init(d);
	tn_store_ckpt_init(d);
	tn_store_health_init(d);
	tn_store_prepare_init(d);
	tn_store_allocate_init(d);
	tn_store_look_init(d);
	if (d->absent) /* no segment of it is there to be used */
		return 0;
	room = (st.size_bytes - d->super.segments_offset) / s->segment_bytes;
	d->allocated = room < s->segment_count ? (uint32_t)room : s->segment_count;
	d->limit = s->segment_count;
	limit = capacity_bytes / s->ndevices / s->segment_bytes + (capacity_bytes / s->ndevices % s->segment_bytes > 0);
	if (capacity_bytes > 0 && limit < d->limit)
		d->limit = limit > 0 ? (uint32_t)limit : 1;
	d->leaving = d->limit;
	for (uint32_t i = d->limit; i < s->segment_count; i++)
		d->segs[i].closed = true;
	if (limit > s->segment_count)
		tn_log(s->log, TN_LOG_WARN,
		       "%s: was made for %u segments, %llu bytes, and cannot grow to %llu: going on with those (its index has a fixed place; "
		       "a larger store begins in an empty directory)",
		       d->path, s->segment_count, (unsigned long long)(s->segment_count * s->segment_bytes),
		       (unsigned long long)(capacity_bytes / s->ndevices));
	return 0;
}

/* The groups that recovery found from again_position on, as far as they can be read. */
static int write_groups_again(struct tn_store_device *d)
{
	struct tn_store_log *log = &d->log;
	uint64_t position = log->again_position, size = d->super.log_bytes;
	int rc = 0;

	for (uint64_t i = log->again_sequence; i < log->sequence && position < log->position && rc == 0; i++) {
		uint64_t to_end = size - position % size, at = d->super.log_offset + position % size;
		uint32_t bytes, n = (uint32_t)(to_end < TN_STORE_GROUP_BYTES ? to_end : TN_STORE_GROUP_BYTES);

		if (tn_store_sync_io(d, TN_IO_READ, at, log->group, n) ||
		    tn_disk_group_check(log->group, n, d->super.device_uuid, position, i, 0, &bytes))
			break;
		rc = tn_store_sync_io(d, TN_IO_WRITE, at, log->group, bytes);
		position += bytes;
	}
	return rc;
}

/*
 * What recovery read may have been given up by a failed sync of the last session: readable, but not durable, and no
 * sync will ever make it so. Of the log that can be any group behind the mark, of checkpoints only the root. They are
 * written again with the same bytes, and so is the mark, so that a power cut here does no harm;
 * the space table goes into its other copy with the next commit.
 */
static int write_again(struct tn_store_device *d)
{
	uint64_t root_at = d->super.checkpoint_offset[!d->ckpt.region];
	struct tn_disk_root *root = d->ckpt.buffer;
	int rc;

	d->spaces_generation = 0;
	d->log.epoch = d->store->epoch;
	d->log.synced_position = d->durable.position = d->log.position;
	d->log.synced_sequence = d->durable.sequence = d->log.sequence;
	if (d->lost) /* a whole checkpoint follows */
		return 0;
	rc = write_groups_again(d);
	if (rc == 0)
		rc = tn_store_mark_again(d);
	if (rc == 0 && tn_store_sync_io(d, TN_IO_READ, root_at, root, sizeof(*root)) == 0 &&
	    tn_disk_root_check(root, sizeof(*root), &d->super) == 0)
		rc = tn_store_sync_io(d, TN_IO_WRITE, root_at, root, sizeof(*root));
	return rc ? rc : tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
}

/*
 * A session begins: a group of the new epoch in the log, then the superblocks that say so. In this order,
 * so that a superblock whose epoch the log does not reach means a damaged log.
 */
static int begin_session(struct tn_store *s)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++) {
		s->dev[i].running = true;
		rc = s->dev[i].absent ? 0 : write_again(&s->dev[i]);
	}
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++) {
		struct tn_store_device *d = &s->dev[i];
		uint64_t before = d->log.position;

		if (d->absent)
			continue;
		/* Groups that were not believed are never read again, whatever later marks say. */
		if (d->lost || d->distrusted || d->log.position - d->log.tail >= d->super.log_bytes / 2)
			rc = tn_store_ckpt_wait(d, true);
		if (rc == 0)
			rc = tn_store_durable_start(d);
		d->log.force = true;
		while (rc == 0 && (d->log.force || d->log.phase != TN_LOG_IDLE) && !d->log.full && d->log.failures == 0 &&
		       d->hs.health != TN_OFFLINE) {
			tn_store_log_step(d, tn_now_ns(s->clock));
			if (d->log.phase != TN_LOG_IDLE)
				tn_store_poll(s, 1000000);
		}
		if (rc == 0 && (d->log.failures > 0 || d->hs.health == TN_OFFLINE))
			rc = tn_fail(-EIO, "%s: the index log cannot be written", d->path);
		if (rc)
			break;
		d->log.force = false;
		rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
		if (rc)
			break;
		d->super.epoch = s->epoch;
		if (d->log.position > before)
			d->super.log_epoch = s->epoch;
		d->super.sequence_floor = s->sequence;
		d->super.opened_wall_ns = tn_wall_ns(s->clock);
		d->super.owner_pid = (uint32_t)getpid();
		rc = tn_store_super_write(d, TN_DISK_OPEN);
	}
	return rc;
}

int tn_store_open(const struct tn_store_opts *o, struct tn_store **out)
{
	uint64_t start = tn_now_ns(o->clock);
	struct tn_store *s = NULL;
	int rc = create(o, &s);

	if (rc)
		return rc;
	rc = tn_store_set_open(s, o);
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		rc = device_start(&s->dev[i], o->capacity_bytes);
	if (rc == 0)
		rc = tn_store_spaces_load(s);
	if (rc == 0)
		rc = tn_store_recover(s);
	s->recovery_ns = tn_now_ns(s->clock) - start;
	if (rc == 0 && !s->read_only)
		rc = begin_session(s);
	if (rc) {
		/* A commit of one device may be under way while another failed. */
		while (s->inflight > 0)
			tn_store_poll(s, 1000000);
		destroy(s);
		return rc;
	}
	tn_log(s->log, TN_LOG_INFO, "%s with %llu blocks in %.3f s", s->rebuild ? "rebuilt" : "opened",
	       (unsigned long long)s->committed, (double)s->recovery_ns / 1e9);
	s->opened = true;
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++)
		tn_store_allocate_ahead(&s->dev[i], tn_now_ns(s->clock)); /* so that the first save need not wait for it */
	*out = s;
	return 0;
}

int tn_store_close(struct tn_store *s)
{
	int rc = 0, status;

	if (!s)
		return 0;
	s->closing = true;
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (s->dev[i].alloc.req.busy)
			(void)tn_io_cancel(s->io, &s->dev[i].alloc.req.io);
	if (!s->read_only)
		rc = tn_store_flush_wait(s);
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++) {
		struct tn_store_device *d = &s->dev[i];

		if (tn_store_index_off(d))
			continue;
		status = tn_store_ckpt_wait(d, true);
		/* The group that the checkpoint had asked for may end after it. */
		while (s->inflight > 0)
			tn_store_poll(s, 1000000);
		if (status == 0)
			status = tn_store_super_write(d, TN_DISK_CLEAN);
		rc = rc ? rc : status;
	}
	while (s->inflight > 0)
		tn_store_poll(s, 1000000);
	destroy(s);
	return rc;
}

/* ---- facts ------------------------------------------------------------------------------------------------------------ */

struct tn_secret tn_store_secret(const struct tn_store *s)
{
	return (struct tn_secret){{s->dev[0].super.secret[0], s->dev[0].super.secret[1]}};
}

uint32_t tn_store_file(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices && s->dev[device].index == device);
	return s->dev[device].absent ? TN_IO_NO_FILE : s->dev[device].file;
}

uint32_t tn_store_align(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices);
	return s->dev[device].align;
}

bool tn_store_writable(const struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++)
		if (tn_store_device_writable(&s->dev[i]))
			return true;
	return false;
}

uint32_t tn_store_devices(const struct tn_store *s)
{
	return s->ndevices;
}

uint64_t tn_store_index_bytes(const struct tn_store *s)
{
	return s->index_bytes;
}

uint64_t tn_store_recovery_ns(const struct tn_store *s)
{
	return s->recovery_ns;
}

static uint64_t used_bytes(const struct tn_store_device *d)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < d->allocated; i++)
		if (d->segs[i].shape != TN_SHAPE_NONE)
			n += (uint64_t)d->segs[i].used * d->store->shape[d->segs[i].shape].slot_bytes;
	return n;
}

int tn_store_stats(const struct tn_store *s, uint32_t device, struct tn_device_stats *st)
{
	const struct tn_store_device *d;
	size_t n;

	if (device >= s->ndevices)
		return -ENOENT;
	d = &s->dev[device];
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	n = strlen(d->path);
	n = n < sizeof(st->path) ? n : sizeof(st->path) - 1;
	memcpy(st->path, d->path, n);
	st->health = d->hs.health;
	st->capacity_bytes = (uint64_t)d->limit * s->segment_bytes;
	st->used_bytes = used_bytes(d);
	st->blocks = d->committed;
	st->quarantined_slots = d->quarantined;
	st->bytes_read = d->bytes_read;
	st->bytes_written = d->bytes_written;
	st->meta_bytes_written = d->meta_bytes_written;
	st->read_errors = d->read_errors;
	st->write_errors = d->write_errors;
	st->lost_blocks = d->lost_blocks;
	st->deleted = d->deleted;
	return 0;
}
