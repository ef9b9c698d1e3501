/* SPDX-License-Identifier: Apache-2.0 */
#include "simdisk.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "simmedia.h"

#define DEPTH_MAX 4096u
#define CALL_NS 500u /* what a call of poll costs: a caller that spins still sees time pass */
#define IDLE_NS 1000000000u /* an endless wait for nothing returns after this */

struct handle {
	struct sim_file *file; /* NULL: free */
	bool writable, locked, direct;
	uint32_t in_flight;
};

/* A request in flight. */
struct flight {
	struct tn_io_req *req;
	struct sim_write *write; /* NULL: a read, a sync, or a request that was refused */
	uint64_t due_ns;
	uint64_t returned; /* of a sync: it covers what poll had returned until then */
	uint64_t size; /* of a sync: the file's length then */
	int refused; /* 0 or -errno that was decided at submit */
	bool torn; /* fails after a part of it happened */
	bool lost; /* a sync that gives up what it covered */
};

struct fault {
	struct tn_simdisk_fault f;
	uint64_t seen;
};

struct tn_simdisk {
	struct tn_io io;
	struct tn_simdisk_opts opts;
	struct tn_clock clock;
	struct sim_media media;
	struct tn_rng rng;
	uint64_t now_ns;
	struct handle handles[TN_IO_FILES_MAX];
	struct flight *flights;
	uint32_t nflights;
	struct fault faults[TN_SIMDISK_FAULTS_MAX];
	uint32_t nfaults;
	uint64_t events, writes, syncs, returned;
	uint64_t boot; /* power cuts so far */
	uint64_t history;
	uint64_t off_at;
	bool off;
	bool woken;
	tn_simdisk_event_fn on_event;
	void *on_event_arg;
};

static const struct tn_io_ops simdisk_ops;

struct tn_simdisk *tn_simdisk_of(struct tn_io *io)
{
	return tn_container_of(io, struct tn_simdisk, io);
}

static uint64_t clock_now(void *arg)
{
	return ((const struct tn_simdisk *)arg)->now_ns;
}

static uint64_t clock_wall(void *arg)
{
	return 1767225600000000000u + ((const struct tn_simdisk *)arg)->now_ns; /* 2026-01-01 */
}

static void event(struct tn_simdisk *d, uint64_t what, uint64_t a, uint64_t b)
{
	uint64_t h[5] = {d->history, what, a, b, d->now_ns};

	d->history = tn_hash64(h, sizeof(h));
	d->events++;
	if (d->on_event)
		d->on_event(d->on_event_arg, d, d->events);
	if (d->off_at && d->events >= d->off_at)
		d->off = true;
}

/* ---- life ------------------------------------------------------------------------------------- */

static struct tn_simdisk *disk_new(const struct tn_simdisk_opts *o)
{
	struct tn_simdisk *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->flights = calloc(o->depth, sizeof(*d->flights));
	if (!d->flights) {
		free(d);
		return NULL;
	}
	d->io.ops = &simdisk_ops;
	d->opts = *o;
	d->clock = (struct tn_clock){.now_ns = clock_now, .wall_ns = clock_wall, .arg = d};
	tn_rng_seed(&d->rng, o->seed);
	return d;
}

int tn_simdisk_create(const struct tn_simdisk_opts *opts, struct tn_simdisk **out)
{
	struct tn_simdisk_opts o = *opts;
	struct tn_simdisk *d;

	o.capacity_bytes = o.capacity_bytes ? o.capacity_bytes : UINT64_MAX;
	o.depth = o.depth ? o.depth : 128;
	o.align = o.align ? o.align : 4096;
	o.read_ns = o.read_ns ? o.read_ns : 80000;
	o.write_ns = o.write_ns ? o.write_ns : 20000;
	o.sync_ns = o.sync_ns ? o.sync_ns : 300000;
	if (o.depth > DEPTH_MAX)
		return tn_fail(-EINVAL, "depth %u: must be at most %u", o.depth, DEPTH_MAX);
	if (o.align < SIM_SECTOR || o.align > SIM_PAGE || (o.align & (o.align - 1)))
		return tn_fail(-EINVAL, "align %u: must be a power of two in 512..4096", o.align);
	d = disk_new(&o);
	if (!d)
		return tn_fail(-ENOMEM, "no memory for a simulated disk");
	d->now_ns = 1000000000u; /* nobody shall take 0 for a time */
	sim_media_init(&d->media);
	*out = d;
	return 0;
}

void tn_simdisk_destroy(struct tn_simdisk *d)
{
	if (!d)
		return;
	sim_media_destroy(&d->media);
	free(d->flights);
	free(d);
}

static void disk_destroy(struct tn_io *io)
{
	assert(tn_simdisk_of(io)->nflights == 0); /* the contract's rule; tn_simdisk_destroy has none */
	tn_simdisk_destroy(tn_simdisk_of(io));
}

int tn_simdisk_clone(const struct tn_simdisk *d, uint64_t seed, struct tn_simdisk **out)
{
	struct tn_simdisk *c = disk_new(&d->opts);

	if (!c)
		return tn_fail(-ENOMEM, "no memory for a simulated disk");
	tn_rng_seed(&c->rng, seed);
	c->now_ns = d->now_ns;
	c->writes = d->writes;
	c->returned = d->returned;
	c->boot = d->boot;
	sim_media_clone(&d->media, &c->media);
	*out = c;
	return 0;
}

struct tn_io *tn_simdisk_io(struct tn_simdisk *d)
{
	return &d->io;
}

const struct tn_clock *tn_simdisk_clock(struct tn_simdisk *d)
{
	return &d->clock;
}

uint64_t tn_simdisk_next_ns(const struct tn_simdisk *d)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 0; i < d->nflights; i++)
		if (d->flights[i].due_ns < next)
			next = d->flights[i].due_ns;
	return next;
}

void tn_simdisk_advance(struct tn_simdisk *d, uint64_t ns)
{
	d->now_ns += ns;
}

/* ---- crashes, faults, looking inside -------------------------------------------------------------- */

void tn_simdisk_crash(struct tn_simdisk *d, enum tn_simdisk_crash mode, uint64_t seed)
{
	uint64_t h[3] = {d->history, (uint64_t)mode, seed};
	struct tn_rng rng;

	tn_rng_seed(&rng, seed);
	d->nflights = 0;
	memset(d->handles, 0, sizeof(d->handles));
	d->returned++; /* what had completed counts as returned: the next process' syncs cover it */
	sim_media_crash(&d->media, mode, d->returned, &rng);
	d->boot += mode != TN_SIMDISK_KILL;
	d->history = tn_hash64(h, sizeof(h));
	d->off = d->woken = false;
	d->off_at = 0;
}

uint64_t tn_simdisk_boot(const struct tn_simdisk *d)
{
	return d->boot + 1;
}

uint64_t tn_simdisk_events(const struct tn_simdisk *d)
{
	return d->events;
}

uint64_t tn_simdisk_writes(const struct tn_simdisk *d)
{
	return d->writes;
}

uint64_t tn_simdisk_syncs(const struct tn_simdisk *d)
{
	return d->syncs;
}

void tn_simdisk_on_event(struct tn_simdisk *d, tn_simdisk_event_fn fn, void *arg)
{
	d->on_event = fn;
	d->on_event_arg = arg;
}

void tn_simdisk_power_off_at(struct tn_simdisk *d, uint64_t at)
{
	d->off_at = at;
	d->off = at && d->events >= at;
}

bool tn_simdisk_is_off(const struct tn_simdisk *d)
{
	return d->off;
}

int tn_simdisk_set_faults(struct tn_simdisk *d, const struct tn_simdisk_fault *faults, uint32_t n)
{
	if (n > TN_SIMDISK_FAULTS_MAX)
		return tn_fail(-EINVAL, "%u faults: at most %u", n, TN_SIMDISK_FAULTS_MAX);
	for (uint32_t i = 0; i < n; i++)
		d->faults[i] = (struct fault){.f = faults[i]};
	d->nfaults = n;
	return 0;
}

static struct sim_file *file_or_fail(const struct tn_simdisk *d, const char *path, int *err)
{
	struct sim_file *f = sim_file_find(&d->media, path);

	*err = f ? 0 : tn_fail(-ENOENT, "%s: no such file on the simulated disk", path);
	return f;
}

static struct sim_file *range_or_fail(const struct tn_simdisk *d, const char *path, uint64_t offset, uint64_t len,
				      int *err)
{
	struct sim_file *f = file_or_fail(d, path, err);

	if (f && (offset > f->size || len > f->size - offset)) {
		*err = tn_fail(-EINVAL, "%s: %llu bytes at %llu lie beyond its end", path, (unsigned long long)len,
			       (unsigned long long)offset);
		return NULL;
	}
	return f;
}

int tn_simdisk_bad_range(struct tn_simdisk *d, const char *path, uint64_t offset, uint64_t len)
{
	int err;
	struct sim_file *f = file_or_fail(d, path, &err);

	if (!f)
		return err;
	f->bad_from = offset;
	f->bad_to = offset + len;
	return 0;
}

int tn_simdisk_corrupt(struct tn_simdisk *d, const char *path, uint64_t offset, uint64_t len, uint64_t seed)
{
	int err;
	struct sim_file *f = range_or_fail(d, path, offset, len, &err);
	struct tn_rng rng;

	if (!f)
		return err;
	tn_rng_seed(&rng, seed);
	for (uint64_t i = 0; i < len; i++) {
		uint8_t byte;

		sim_file_read(f, offset + i, &byte, 1);
		byte ^= (uint8_t)(1 + tn_rng_below(&rng, 255));
		sim_file_poke(f, offset + i, &byte, 1);
	}
	return 0;
}

int tn_simdisk_truncate(struct tn_simdisk *d, const char *path, uint64_t size)
{
	int err;
	struct sim_file *f = file_or_fail(d, path, &err);

	if (f)
		sim_file_resize(f, size);
	return err;
}

void tn_simdisk_set_capacity(struct tn_simdisk *d, uint64_t bytes)
{
	d->opts.capacity_bytes = bytes;
}

int tn_simdisk_peek(const struct tn_simdisk *d, const char *path, uint64_t offset, void *buf, size_t len)
{
	int err;
	struct sim_file *f = range_or_fail(d, path, offset, len, &err);

	if (f)
		sim_file_read(f, offset, buf, len);
	return err;
}

int tn_simdisk_poke(struct tn_simdisk *d, const char *path, uint64_t offset, const void *buf, size_t len)
{
	int err;
	struct sim_file *f = range_or_fail(d, path, offset, len, &err);

	if (f)
		sim_file_poke(f, offset, buf, len);
	return err;
}

int64_t tn_simdisk_size(const struct tn_simdisk *d, const char *path)
{
	int err;
	struct sim_file *f = file_or_fail(d, path, &err);

	return f ? (int64_t)f->size : err;
}

uint64_t tn_simdisk_history(const struct tn_simdisk *d)
{
	return d->history;
}

uint64_t tn_simdisk_digest(const struct tn_simdisk *d)
{
	return sim_media_digest(&d->media);
}

/* ---- files -------------------------------------------------------------------------------------- */

static int powered(const struct tn_simdisk *d)
{
	return d->off ? tn_fail(-ENODEV, "the simulated disk has no power") : 0;
}

static struct handle *handle_of(struct tn_simdisk *d, uint32_t file)
{
	return file < TN_IO_FILES_MAX && d->handles[file].file ? &d->handles[file] : NULL;
}

static int disk_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	struct sim_file *f = sim_file_find(&d->media, path);
	uint32_t h = 0;
	int err = powered(d);

	if (err)
		return err;
	while (h < TN_IO_FILES_MAX && d->handles[h].file)
		h++;
	if (h == TN_IO_FILES_MAX)
		return tn_fail(-EMFILE, "%s: %u files are open already", path, TN_IO_FILES_MAX);
	if (f && (flags & TN_IO_CREATE) && (flags & TN_IO_EXCLUSIVE))
		return tn_fail(-EEXIST, "%s: exists", path);
	if (!f && !(flags & TN_IO_CREATE))
		return tn_fail(-ENOENT, "%s: no such file", path);
	if (f && (flags & TN_IO_LOCK) && f->locked)
		return tn_fail(-EBUSY, "%s: locked by another owner", path);
	if (!f) {
		f = sim_file_create(&d->media, path);
		event(d, 1, tn_hash64(path, strlen(path)), 0);
	}
	d->handles[h] = (struct handle){
		.file = f,
		.writable = !(flags & TN_IO_READ_ONLY),
		.locked = flags & TN_IO_LOCK,
		.direct = !(flags & TN_IO_BUFFERED),
	};
	f->opens++;
	if (flags & TN_IO_LOCK)
		f->locked = true;
	*file = h;
	return 0;
}

static int disk_close(struct tn_io *io, uint32_t file)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	struct handle *h = handle_of(d, file);

	if (!h)
		return tn_fail(-EBADF, "file %u: not open", file);
	if (h->in_flight)
		return tn_fail(-EBUSY, "file %u: %u requests are in flight", file, h->in_flight);
	if (h->locked)
		h->file->locked = false;
	h->file->opens--;
	h->file = NULL;
	return 0;
}

static void fill_stat(const struct tn_simdisk *d, const struct handle *h, struct tn_io_stat *st)
{
	*st = (struct tn_io_stat){
		.size_bytes = h->file->size,
		.offset_align = h->direct ? d->opts.align : 1,
		.memory_align = h->direct ? d->opts.align : 1,
		.links = !h->file->unlinked,
		.direct = h->direct,
	};
}

static int disk_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	const struct handle *h = handle_of(d, file);

	if (!h)
		return tn_fail(-EBADF, "file %u: not open", file);
	fill_stat(d, h, st);
	return powered(d);
}

static int allocate(struct tn_simdisk *d, uint32_t file, uint64_t offset, uint64_t length)
{
	struct handle *h = handle_of(d, file);
	uint64_t end;

	if (!h || !h->writable)
		return tn_fail(-EBADF, "file %u: not open for writing", file);
	if (length == 0)
		return tn_fail(-EINVAL, "%s: 0 bytes cannot be allocated", h->file->path);
	if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX)
		return tn_fail(-EFBIG, "%s: %llu bytes at %llu are more than a file can have", h->file->path,
			       (unsigned long long)length, (unsigned long long)offset);
	if (end <= h->file->size)
		return 0;
	if (sim_media_bytes(&d->media) + (end - h->file->size) > d->opts.capacity_bytes)
		return tn_fail(-ENOSPC, "%s: no space for %llu more bytes", h->file->path,
			       (unsigned long long)(end - h->file->size));
	h->file->size = end;
	event(d, 2, file, end);
	return 0;
}

static int disk_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	int err = powered(d);

	return err ? err : allocate(d, file, offset, length);
}

static int disk_unlink(struct tn_io *io, const char *path)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	struct sim_file *f = sim_file_find(&d->media, path);
	int err = powered(d);

	if (err)
		return err;
	if (!f)
		return tn_fail(-ENOENT, "%s: no such file", path);
	f->unlinked = true;
	event(d, 3, tn_hash64(path, strlen(path)), 0);
	return 0;
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* 0, or what is wrong with a request. */
static int check_request(const struct tn_simdisk *d, const struct handle *h, const struct tn_io_req *r)
{
	uint64_t sum = 0, align = h && h->direct ? d->opts.align : 1;

	if (!h)
		return -EBADF;
	if (r->op == TN_IO_SYNC)
		return 0;
	if (r->op >= TN_IO_OPS)
		return -EINVAL;
	if ((r->op == TN_IO_WRITE || r->op == TN_IO_ALLOCATE) && !h->writable)
		return -EBADF;
	if (r->op == TN_IO_ALLOCATE || r->op == TN_IO_STAT)
		return r->iov && r->iov_count == 1 && (r->op == TN_IO_ALLOCATE || r->iov->iov_base) &&
		       (r->op == TN_IO_ALLOCATE || r->iov->iov_len == sizeof(struct tn_io_stat)) ? 0 : -EINVAL;
	if (r->length == 0 || r->iov_count == 0 || r->offset % align || r->length % align ||
	    r->offset > (uint64_t)INT64_MAX - r->length)
		return -EINVAL;
	for (uint32_t i = 0; i < r->iov_count; i++) {
		if (r->iov[i].iov_len == 0 || r->iov[i].iov_len > r->length - sum)
			return -EINVAL;
		sum += r->iov[i].iov_len;
		if ((uintptr_t)r->iov[i].iov_base % align || r->iov[i].iov_len % align)
			return -EINVAL;
	}
	return sum == r->length ? 0 : -EINVAL;
}

/* Mean latency as asked, a twentieth of the requests ten times slower. */
static uint64_t latency(struct tn_simdisk *d, const struct tn_io_req *r)
{
	uint64_t mean = r->op == TN_IO_READ ? d->opts.read_ns : r->op == TN_IO_SYNC ? d->opts.sync_ns : d->opts.write_ns;
	uint64_t ns = mean / 4 + (uint64_t)(tn_rng_unit(&d->rng) * (double)mean * 1.5);

	return tn_rng_below(&d->rng, 20) == 0 ? ns * 10 : ns;
}

static void apply_faults(struct tn_simdisk *d, struct flight *fl, const char *path)
{
	for (uint32_t i = 0; i < d->nfaults; i++) {
		struct fault *fault = &d->faults[i];
		const struct tn_simdisk_fault *f = &fault->f;

		if (f->op != fl->req->op || (f->path && strncmp(path, f->path, strlen(f->path)) != 0))
			continue;
		if (fault->seen++ < f->from || fault->seen - f->from > f->count)
			continue;
		if (f->percent && tn_rng_below(&d->rng, 100) >= f->percent)
			continue;
		if (f->kind == TN_SIMDISK_SLOW) {
			fl->due_ns += f->delay_ns;
			continue;
		}
		fl->refused = f->kind == TN_SIMDISK_ENOSPC ? -ENOSPC : -EIO;
		fl->torn = true;
		fl->lost = f->kind == TN_SIMDISK_SYNC_LOST;
	}
}

static int space_for(const struct tn_simdisk *d, const struct sim_file *f, const struct tn_io_req *r)
{
	uint64_t end = r->offset + r->length;

	if (end > f->size && sim_media_bytes(&d->media) + (end - f->size) > d->opts.capacity_bytes)
		return -ENOSPC;
	return 0;
}

static uint64_t iov_hash(const struct tn_io_req *r)
{
	uint64_t h[2] = {r->offset, 0};

	for (uint32_t i = 0; i < r->iov_count; i++) {
		h[1] ^= tn_hash64(r->iov[i].iov_base, r->iov[i].iov_len);
		h[0] = tn_hash64(h, sizeof(h));
	}
	return h[0];
}

static void start(struct tn_simdisk *d, struct tn_io_req *r)
{
	struct flight *fl = &d->flights[d->nflights++];
	struct handle *h = handle_of(d, r->file);

	*fl = (struct flight){.req = r, .due_ns = d->now_ns + latency(d, r)};
	r->status = -EINPROGRESS;
	r->transferred = 0;
	r->issue_ns = d->now_ns;
	fl->refused = d->off ? -ENODEV : check_request(d, h, r);
	if (h)
		h->in_flight++;
	if (!fl->refused && r->op == TN_IO_WRITE)
		fl->refused = space_for(d, h->file, r);
	if (fl->refused) {
		fl->due_ns = d->now_ns;
		return;
	}
	apply_faults(d, fl, h->file->path);
	switch (r->op) {
	case TN_IO_READ:
		for (uint32_t i = 0; i < r->iov_count && !d->opts.keep_memory; i++)
			memset(r->iov[i].iov_base, 0xDB, r->iov[i].iov_len);
		break;
	case TN_IO_WRITE:
		fl->write = sim_write_start(h->file, ++d->writes, r->offset, r->iov, r->iov_count);
		event(d, 4, r->file, iov_hash(r));
		break;
	case TN_IO_SYNC:
		d->syncs++;
		fl->returned = d->returned;
		fl->size = h->file->size;
		event(d, 5, r->file, 0);
		break;
	default: /* nothing happens before its end */
		break;
	}
}

static unsigned disk_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	unsigned left = d->opts.depth - d->nflights;

	n = n < left ? n : left;
	if (n && d->opts.submit_short_percent && tn_rng_below(&d->rng, 100) < d->opts.submit_short_percent)
		n = tn_rng_below(&d->rng, n + 1);
	for (unsigned i = 0; i < n; i++)
		start(d, reqs[i]);
	return n;
}

static void finish_read(struct tn_simdisk *d, struct sim_file *f, struct tn_io_req *r)
{
	uint64_t at = r->offset, end = f->size;

	if (f->bad_to > r->offset && f->bad_from < r->offset + r->length) {
		r->status = -EIO;
		return;
	}
	for (uint32_t i = 0; i < r->iov_count && at < end; i++) {
		size_t n = r->iov[i].iov_len < end - at ? r->iov[i].iov_len : end - at;

		sim_file_read(f, at, r->iov[i].iov_base, n);
		at += n;
		r->transferred += (uint32_t)n;
	}
	r->status = r->transferred == r->length ? 0 : -EIO;
}

/* The moment at which the medium does what was asked. */
static void finish(struct tn_simdisk *d, struct flight *fl)
{
	struct tn_io_req *r = fl->req;
	struct handle *h = handle_of(d, r->file);

	r->status = fl->refused;
	if (d->off && !r->status)
		r->status = -ENODEV;
	if (h)
		h->in_flight--;
	if (d->off || (fl->refused && !fl->torn))
		return; /* with the power off a write stays in flight: the crash decides about it */
	if (r->op == TN_IO_READ && !fl->refused) {
		finish_read(d, h->file, r);
	} else if (r->op == TN_IO_WRITE) {
		/* Memory of a write must not change before poll returned it. */
		assert(sim_write_unchanged(fl->write, r->iov, r->iov_count));
		sim_write_apply(h->file, fl->write, fl->torn, &d->rng);
		r->transferred = fl->torn ? 0 : r->length;
		event(d, 6, r->file, r->offset);
	} else if (r->op == TN_IO_SYNC) {
		if (!fl->refused)
			sim_file_flush(h->file, fl->returned, fl->size);
		else if (fl->lost)
			sim_file_flush_lost(h->file, fl->returned);
		event(d, 7, r->file, (uint64_t)-r->status);
	} else if (r->op == TN_IO_ALLOCATE && !fl->refused) {
		r->status = allocate(d, r->file, r->offset, r->iov->iov_len);
	} else if (r->op == TN_IO_STAT && !fl->refused) {
		fill_stat(d, h, r->iov->iov_base);
	}
}

static int by_time(const void *a, const void *b)
{
	const struct flight *x = a, *y = b;

	return (x->due_ns > y->due_ns) - (x->due_ns < y->due_ns);
}

static unsigned disk_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct tn_simdisk *d = tn_simdisk_of(io);
	uint64_t until;
	unsigned n = 0;

	d->now_ns += CALL_NS;
	qsort(d->flights, d->nflights, sizeof(*d->flights), by_time);
	if (__atomic_exchange_n(&d->woken, false, __ATOMIC_ACQUIRE))
		timeout_ns = 0;
	if (timeout_ns == UINT64_MAX && d->nflights == 0)
		timeout_ns = IDLE_NS;
	until = timeout_ns > UINT64_MAX - d->now_ns ? UINT64_MAX : d->now_ns + timeout_ns;
	if (d->nflights && d->flights[0].due_ns <= until)
		until = d->flights[0].due_ns;
	if (until > d->now_ns)
		d->now_ns = until;
	while (n < max && n < d->nflights && d->flights[n].due_ns <= d->now_ns) {
		finish(d, &d->flights[n]);
		done[n] = d->flights[n].req;
		n++;
	}
	/* Syncs submitted from now on cover these. */
	for (unsigned i = 0; i < n; i++) {
		d->returned++;
		if (d->flights[i].write)
			d->flights[i].write->returned = d->returned;
	}
	d->nflights -= n;
	memmove(d->flights, d->flights + n, d->nflights * sizeof(*d->flights));
	return n;
}

static int disk_cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct tn_simdisk *d = tn_simdisk_of(io);

	for (uint32_t i = 0; i < d->nflights; i++) {
		struct flight *fl = &d->flights[i];

		if (fl->req != req)
			continue;
		/* Half of the time it comes too late; otherwise a part of a write may have happened. */
		if (!fl->refused && tn_rng_below(&d->rng, 2)) {
			fl->refused = -ECANCELED;
			fl->torn = true;
			fl->due_ns = d->now_ns;
		}
		return 0;
	}
	return tn_fail(-ENOENT, "the request is not in flight");
}

static int disk_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent)
{
	return tn_fail(-ENOTSUP, "simulated file %u has no descriptor to share", file);
}

static int disk_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	return tn_fail(-ENOTSUP, "%s: the simulated disk adopts no files", lent->name);
}

static void disk_wake(struct tn_io *io)
{
	__atomic_store_n(&tn_simdisk_of(io)->woken, true, __ATOMIC_RELEASE);
}

static const struct tn_io_ops simdisk_ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "sim",
	.open = disk_open,
	.close = disk_close,
	.stat = disk_stat,
	.allocate = disk_allocate,
	.unlink = disk_unlink,
	.submit = disk_submit,
	.poll = disk_poll,
	.cancel = disk_cancel,
	.lend = disk_lend,
	.adopt = disk_adopt,
	.wake = disk_wake,
	.destroy = disk_destroy,
};
