/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store as a whole: opening, closing, what is known of it, and its steps, by which a store that is open lives: each
 * part of each device does what is due, and says when to ask again. The parts are in their own files (store_internal.h
 * lists them), and nothing below calls what is here.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/proc.h"
#include "store/store_internal.h"

#define SLOW_READ_NS 500000000ull /* the default */

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* The next bytes of the device's memory, which begins with the pages for direct I/O; while there is none, only counts. */
static void *carve(struct tn_store_device *d, size_t n, size_t size)
{
	unsigned char *p = d->memory ? d->memory + d->memory_bytes : NULL;

	d->memory_bytes += tn_round_up(n * size, 64);
	return p;
}

static void carve_map(struct tn_store_device *d, struct tn_store_map *m)
{
	uint32_t pages = tn_store_page_count(d->store);

	m->word = carve(d, pages, sizeof(*m->word));
	m->any = carve(d, (pages + 63) / 64, sizeof(*m->any));
}

static void carve_all(struct tn_store_device *d)
{
	struct tn_store *s = d->store;
	uint32_t words = (tn_store_page_count(s) + 63) / 64;

	d->memory_bytes = 0;
	d->ckpt.buffer = carve(d, TN_STORE_BATCH_PAGES, TN_DISK_PAGE);
	d->log.group = carve(d, 1, TN_STORE_GROUP_BYTES);
	for (uint32_t i = 0; i < TN_LOG_HEADERS; i++)
		d->log.header[i].page = carve(d, 1, TN_DISK_PAGE);
	d->durable.mark = carve(d, 1, sizeof(*d->durable.mark));
	d->spaces_page = carve(d, 1, sizeof(*d->spaces_page));
	d->hs.buffer = carve(d, 1, TN_DISK_PAGE);
	d->prep.buffer = carve(d, s->prepare, TN_STORE_BULK_BYTES);
	d->segs = carve(d, s->segment_count, sizeof(*d->segs));
	d->free = carve(d, s->slot_pages, sizeof(*d->free));
	d->doubtful = carve(d, s->slot_pages, sizeof(*d->doubtful));
	d->meta = carve(d, (size_t)s->slot_pages * 64, sizeof(*d->meta));
	d->cookie = carve(d, (size_t)s->slot_pages * 64, sizeof(*d->cookie));
	carve_map(d, &d->unlogged);
	carve_map(d, &d->inflight);
	carve_map(d, &d->logged);
	carve_map(d, &d->covered);
	for (int i = 0; i < 2; i++) {
		d->ckpt.dirty[i] = carve(d, words, sizeof(uint64_t));
		d->ckpt.soft[i] = carve(d, words, sizeof(uint64_t));
	}
}

static int device_get(struct tn_store_device *d)
{
	struct tn_store *s = d->store;

	carve_all(d);
	d->memory = tn_store_pages_get(s, d->memory_bytes);
	if (!d->memory)
		return tn_fail(-ENOMEM, "no memory for %u slots: lower max_slots", s->slot_pages * TN_DISK_RECORDS);
	carve_all(d);
	for (uint32_t i = 0; i < s->segment_count; i++) {
		tn_list_init(&d->segs[i].link);
		d->segs[i].shape = TN_SHAPE_NONE;
	}
	return 0;
}

static void destroy(struct tn_store *s)
{
	for (uint32_t i = 0; i < s->ndevices; i++) {
		if (s->dev[i].open)
			tn_io_close(s->io, s->dev[i].file);
		tn_store_pages_put(s, s->dev[i].memory, s->dev[i].memory_bytes);
	}
	tn_put(s->alloc, s, sizeof(*s));
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t tn_store_step(struct tn_store *s, uint64_t now_ns)
{
	uint64_t next = TN_STORE_NEVER;

	tn_store_requeue(s);
	tn_store_each(d, s) {
		if ((s->starved && d->slots[TN_SLOT_FREEING] > 0) || d->victim != UINT32_MAX)
			d->log.urgent = d->log.unlogged > 0 || d->durable.reached.sequence < d->log.next.sequence;
		next = earlier(next, tn_store_probe_step(d, now_ns));
		next = earlier(next, tn_store_log_step(d, now_ns));
		next = earlier(next, tn_store_durable_step(d, now_ns));
		next = earlier(next, tn_store_ckpt_step(d, now_ns));
		if (s->opened && !s->closing) {
			next = earlier(next, tn_store_move_step(d, now_ns));
			next = earlier(next, tn_store_doubt_step(d, now_ns));
			next = earlier(next, tn_store_allocate_step(d, now_ns));
			next = earlier(next, tn_store_prepare_step(d, now_ns));
		}
	}
	s->starved = false;
	if (s->look_again)
		next = now_ns;
	s->look_again = false;
	return s->stalled ? now_ns : next;
}

/* ---- waiting: at open and close -------------------------------------------------------------------------- */

static void turn(struct tn_store *s)
{
	tn_store_step(s, tn_now_ns(s->clock));
	tn_store_poll(s, 1000000);
}

static void flush_waited(void *arg, int status)
{
	*(int *)arg = status;
}

int tn_store_flush_wait(struct tn_store *s)
{
	int status = 1;

	tn_store_flush(s, flush_waited, &status);
	while (status == 1)
		turn(s);
	return status;
}

int tn_store_ckpt_wait(struct tn_store_device *d, bool final)
{
	uint64_t number;

	d->ckpt.hurry = true;
	/* A checkpoint that is under way began too early. */
	while (d->ckpt.phase != TN_CKPT_IDLE)
		turn(d->store);
	number = d->ckpt.number;
	tn_store_ckpt_start(d, final);
	while (d->ckpt.phase != TN_CKPT_IDLE)
		turn(d->store);
	d->ckpt.hurry = false;
	return d->ckpt.number > number ? 0 : tn_fail(-EIO, "%s: the checkpoint could not be written", d->path);
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
	s->read_only = o->read_only;
	s->rebuild = o->rebuild;
	s->prepare = o->prepare && !o->read_only;
	s->ndevices = o->ndirs;
	s->slow_read_ns = o->slow_read_ns ? o->slow_read_ns : SLOW_READ_NS;
	s->durability_ns = o->durability_ns ? o->durability_ns : TN_STORE_DURABILITY_NS;
	memcpy(s->boot, o->boot, sizeof(s->boot));
	if (s->boot[0] == 0 && s->boot[1] == 0)
		tn_boot_id(s->boot);
	tn_store_budget_init(s, o->write_bytes_per_day);
	tn_list_init(&s->queued);
	s->index_bytes = sizeof(*s);
	s->dev = s->device;
	for (uint32_t i = 0; i < TN_DEVICES_MAX; i++) {
		s->dev[i].store = s;
		s->dev[i].index = i;
	}
	*out = s;
	return 0;
}

static int device_start(struct tn_store_device *d, uint64_t capacity_bytes)
{
	struct tn_store *s = d->store;
	struct tn_io_stat st = {0};
	uint64_t limit, there;
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
	tn_store_log_init(d);
	tn_store_ckpt_init(d);
	d->hs.health = d->absent ? TN_OFFLINE : s->read_only ? TN_READ_ONLY : TN_HEALTHY;
	tn_store_background_init(d);
	if (d->absent) /* no segment of it is there to be used */
		return 0;
	there = (st.size_bytes - d->super.segments_offset) / s->segment_bytes;
	d->allocated = there < s->segment_count ? (uint32_t)there : s->segment_count;
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
	uint64_t position = log->again.position, size = d->super.log_bytes;
	int rc = 0;

	for (uint64_t i = log->again.sequence; i < log->next.sequence && position < log->next.position && rc == 0; i++) {
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
 * the space table goes into its other copy with the next commit, and behind a sync into the one it was read from.
 */
static int write_again(struct tn_store_device *d)
{
	uint64_t root_at = d->super.checkpoint_offset[!d->ckpt.region];
	struct tn_disk_root *root = d->ckpt.buffer;
	int rc;

	d->spaces_generation = 0;
	d->log.epoch = d->store->epoch;
	d->log.synced = d->durable.reached = d->log.next;
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
		uint64_t before = d->log.next.position;

		if (d->absent)
			continue;
		/* Groups that were not believed are never read again, whatever later marks say. */
		if (d->lost || d->distrusted || d->log.next.position - d->log.tail >= d->super.log_bytes / 2)
			rc = tn_store_ckpt_wait(d, true);
		if (rc == 0)
			rc = tn_store_durable_start(d);
		d->log.force = true;
		while (rc == 0 && (d->log.force || d->log.phase != TN_LOG_IDLE) && !d->log.full && d->log.retry.failures == 0 &&
		       d->hs.health != TN_OFFLINE) {
			tn_store_log_step(d, tn_now_ns(s->clock));
			if (d->log.phase != TN_LOG_IDLE)
				tn_store_poll(s, 1000000);
		}
		if (rc == 0 && (d->log.retry.failures > 0 || d->hs.health == TN_OFFLINE))
			rc = tn_fail(-EIO, "%s: the index log cannot be written", d->path);
		if (rc)
			break;
		d->log.force = false;
		rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
		if (rc == 0 && d->spaces_single)
			rc = tn_store_spaces_copy(d);
		if (rc)
			break;
		d->super.epoch = s->epoch;
		if (d->log.next.position > before)
			d->super.log_epoch = s->epoch;
		d->super.sequence_floor = s->sequence;
		d->super.opened_wall_ns = tn_wall_ns(s->clock);
		d->super.owner_pid = (uint32_t)getpid();
		rc = tn_store_super_write(d, TN_DISK_OPEN, d->hs.buffer); /* with syncs, that cover the space table's copy */
		d->spaces_single &= rc != 0;
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
	       (unsigned long long)s->slots[TN_SLOT_COMMITTED], (double)s->recovery_ns / 1e9);
	s->opened = true;
	for (uint32_t i = 0; i < s->ndevices && !s->read_only; i++)
		tn_store_allocate_step(&s->dev[i], tn_now_ns(s->clock)); /* so that the first save need not wait for it */
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
			status = tn_store_super_write(d, TN_DISK_CLEAN, d->hs.buffer);
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

const char *tn_store_path(const struct tn_store *s, uint32_t device)
{
	assert(device < s->ndevices);
	return s->dev[device].absent ? "" : s->dev[device].path;
}

bool tn_store_deleted(const struct tn_store *s)
{
	tn_store_each(d, s)
		if (d->deleted)
			return true;
	return false;
}

bool tn_store_writable(const struct tn_store *s)
{
	tn_store_each(d, s)
		if (tn_store_device_writable(d))
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
			n += (uint64_t)tn_store_used(&d->segs[i]) * d->store->shape[d->segs[i].shape].slot_bytes;
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
	st->blocks = d->slots[TN_SLOT_COMMITTED];
	st->quarantined_slots = d->slots[TN_SLOT_QUARANTINED];
	st->bytes_read = d->bytes_read;
	st->bytes_written = d->bytes_written;
	st->meta_bytes_written = d->meta_bytes_written;
	st->read_errors = d->read_errors;
	st->write_errors = d->write_errors;
	st->lost_blocks = d->lost_blocks;
	st->deleted = d->deleted;
	return 0;
}
