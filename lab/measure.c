/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tn_io_measure: the rates of a directory's device when it reads, writes, and does both together.
 *
 * One file is written once before anything is timed. Rounds of all measurements follow alternately, so that a device that
 * drifts harms all measurements alike; the median of each counts. The file has no name while it is used: whatever
 * happens, the file goes.
 */
#include "lab/measure.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "ioengine/ioengine.h"
#include "lab/paced.h"

#define ROUNDS 5u
#define DEPTH_MAX 1024u
#define PROBES 32u /* single small transfers per round and kind */
#define PROBE_BYTES 4096u
#define PAGE 4096u
#define SECOND_NS 1000000000ull

enum kind { READ, WRITE, MIXED, KINDS };

struct measure {
	const struct tn_io_measure_opts *o;
	struct tn_log log;
	struct tn_paced *paced;
	struct tn_io *io;
	uint32_t file;
	struct tn_io_stat st;
	struct tn_rng rng;
	void *raw; /* the allocation; mem is its first whole page */
	size_t raw_bytes;
	char *mem;
	struct iovec iov[DEPTH_MAX];
	struct tn_io_req req[DEPTH_MAX];
	double bps[KINDS][ROUNDS];
	double latency[2][ROUNDS * PROBES]; /* reads, writes; ns */
	uint32_t steps_done;
};

static uint64_t now_ns(void)
{
	return tn_now_ns(&tn_clock_system);
}

/* ---- transfers --------------------------------------------------------------------------------------------- */

static int submit(struct measure *m, uint32_t i, uint8_t op, uint64_t offset, uint32_t bytes)
{
	struct tn_io_req *req = &m->req[i];

	m->iov[i] = (struct iovec){m->mem + (size_t)i * m->o->request_bytes, bytes};
	*req = (struct tn_io_req){.op = op, .file = m->file, .offset = offset, .length = bytes,
				  .iov = &m->iov[i], .iov_count = op == TN_IO_SYNC ? 0 : 1};
	return tn_io_submit(m->io, &req, 1) == 1 ? 0 : tn_fail(-EAGAIN, "the I/O engine takes no request");
}

static int request_failed(const struct measure *m, const struct tn_io_req *req)
{
	return tn_fail(req->status, "%s: a %s of %u bytes failed: %s", m->o->dir, req->op == TN_IO_READ ? "read" : "write",
		       req->length, strerror(-req->status));
}

/* Makes one transfer or sync, and waits for it. */
static int transfer_one(struct measure *m, uint8_t op, uint64_t offset, uint32_t bytes)
{
	struct tn_io_req *done;
	int rc = submit(m, 0, op, offset, bytes);

	if (rc)
		return rc;
	while (tn_io_poll(m->io, &done, 1, SECOND_NS) == 0)
		;
	return done->status ? request_failed(m, done) : 0;
}

static uint64_t random_offset(struct measure *m, uint32_t bytes)
{
	return (uint64_t)tn_rng_below(&m->rng, (uint32_t)(m->o->file_bytes / bytes)) * bytes;
}

static int submit_next(struct measure *m, enum kind kind, uint32_t i)
{
	bool write = kind == WRITE || (kind == MIXED && i % 2);

	return submit(m, i, write ? TN_IO_WRITE : TN_IO_READ, random_offset(m, m->o->request_bytes), m->o->request_bytes);
}

/*
 * Keeps depth requests in flight for ns. Reads, and reads with writes: counts bytes until the last completion within
 * that time. Requests that end later are not counted, because by then one kind may be alone. Writes: counts all bytes
 * until they are synced.
 */
static int run(struct measure *m, enum kind kind, uint64_t ns, double *bps)
{
	uint64_t start = now_ns(), end = start + ns, now, last = start, bytes = 0, all = 0;
	struct tn_io_req *done[64];
	uint32_t flying = 0;
	int rc = 0;

	for (uint32_t i = 0; i < m->o->depth && rc == 0; i++) {
		rc = submit_next(m, kind, i);
		flying += rc == 0;
	}
	while (flying) {
		unsigned n = tn_io_poll(m->io, done, 64, SECOND_NS);

		now = now_ns();
		for (unsigned i = 0; i < n; i++, flying--) {
			if (done[i]->status)
				rc = request_failed(m, done[i]);
			all += done[i]->length;
			if (now <= end || bytes == 0) {
				bytes = all;
				last = now;
			}
			if (now < end && rc == 0) {
				rc = submit_next(m, kind, (uint32_t)(done[i] - m->req));
				flying += rc == 0;
			}
		}
	}
	if (rc == 0 && kind == WRITE) {
		rc = transfer_one(m, TN_IO_SYNC, 0, 0);
		bytes = all;
		last = now_ns();
	}
	*bps = (double)bytes * 1e9 / (double)(last > start ? last - start : 1);
	return rc;
}

static int probe(struct measure *m, uint8_t op, double *ns)
{
	int rc = 0;

	for (uint32_t i = 0; i < PROBES && rc == 0; i++) {
		uint64_t start = now_ns();

		rc = transfer_one(m, op, random_offset(m, PROBE_BYTES), PROBE_BYTES);
		ns[i] = (double)(now_ns() - start);
	}
	return rc;
}

/* ---- the whole --------------------------------------------------------------------------------------------- */

static int step(struct measure *m)
{
	double done = (double)++m->steps_done / (1 + ROUNDS * (KINDS + 1));

	if (m->o->progress && !m->o->progress(m->o->progress_arg, done))
		return tn_fail(-ECANCELED, "stopped as asked");
	return 0;
}

/* Writes the whole file, so that the measurements meet written extents. */
static int fill(struct measure *m)
{
	uint64_t *w = (uint64_t *)(void *)m->mem, each = (uint64_t)m->o->depth * m->o->request_bytes;
	int rc = tn_io_allocate(m->io, m->file, 0, m->o->file_bytes);

	/* No zeros and no repetition: some devices notice both. */
	for (uint64_t i = 0; i < each / 8; i++)
		w[i] = tn_rng_next(&m->rng);
	for (uint64_t at = 0; at < m->o->file_bytes && rc == 0; at += m->o->request_bytes)
		rc = transfer_one(m, TN_IO_WRITE, at, m->o->request_bytes);
	return rc ? rc : transfer_one(m, TN_IO_SYNC, 0, 0);
}

static int measure_all(struct measure *m)
{
	uint64_t slice = (uint64_t)(m->o->seconds * 1e9 / (ROUNDS * KINDS));
	int rc = fill(m);

	rc = rc ? rc : step(m);
	for (uint32_t r = 0; r < ROUNDS && rc == 0; r++) {
		for (int k = 0; k < KINDS && rc == 0; k++) {
			rc = run(m, k, slice, &m->bps[k][r]);
			rc = rc ? rc : step(m);
		}
		rc = rc ? rc : probe(m, TN_IO_READ, &m->latency[0][r * PROBES]);
		rc = rc ? rc : probe(m, TN_IO_WRITE, &m->latency[1][r * PROBES]);
		rc = rc ? rc : step(m);
	}
	return rc;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static uint64_t median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return (uint64_t)(v[n / 2] < 1 ? 1 : v[n / 2]);
}

static void conclude(struct measure *m, struct tn_mix *mix)
{
	*mix = (struct tn_mix){
		.version = TN_MIX_VERSION,
		.read_bps = median(m->bps[READ], ROUNDS),
		.write_bps = median(m->bps[WRITE], ROUNDS),
		.mixed_bps = median(m->bps[MIXED], ROUNDS),
		.read_latency_ns = median(m->latency[0], ROUNDS * PROBES),
		.write_latency_ns = median(m->latency[1], ROUNDS * PROBES),
		.measured_s = tn_wall_ns(&tn_clock_system) / SECOND_NS,
	};
	snprintf(mix->source, sizeof(mix->source), "measured: requests of %u bytes, %u in flight, %s, %s", m->o->request_bytes,
		 m->o->depth, m->st.direct ? "O_DIRECT" : "through the page cache", m->io->ops->name);
}

/* ---- up and down ------------------------------------------------------------------------------------------- */

static int open_engine(struct measure *m)
{
	struct tn_ioengine_opts eo = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &m->log, .depth = 1};
	struct tn_mix mix;
	struct tn_paced_opts po = {.mix = &mix, .stretch = m->o->device_stretch, .alloc = &tn_alloc_system,
				   .clock = &tn_clock_system, .log = &m->log};
	struct tn_io *inner;
	int rc;

	while (eo.depth < m->o->depth)
		eo.depth *= 2;
	rc = tn_ioengine_create(&eo, &inner);
	if (rc || !m->o->device_model) {
		m->io = rc ? NULL : inner;
		return rc;
	}
	rc = tn_mixfile_load(m->o->device_model, &mix);
	if (rc == 0)
		rc = tn_paced_create(&po, &m->paced);
	if (rc == 0)
		rc = tn_io_paced_create(inner, eo.depth, m->paced, &m->io);
	if (rc)
		tn_io_destroy(inner);
	return rc;
}

static int open_file(struct measure *m)
{
	char path[PATH_MAX];
	int rc;

	if ((size_t)snprintf(path, sizeof(path), "%s/" TN_MIXFILE_NAME ".%d", m->o->dir, (int)getpid()) >= sizeof(path))
		return tn_fail(-ENAMETOOLONG, "directory %.100s...: the name is too long", m->o->dir);
	rc = tn_io_open(m->io, path, TN_IO_CREATE | TN_IO_EXCLUSIVE, &m->file);
	if (rc)
		return rc;
	rc = tn_io_stat(m->io, m->file, &m->st);
	if (rc == 0 && m->o->request_bytes % m->st.offset_align)
		rc = tn_fail(-EINVAL, "request_bytes %u: must be a multiple of %u in %s", m->o->request_bytes, m->st.offset_align,
			     m->o->dir);
	(void)tn_io_unlink(m->io, path);
	return rc;
}

static int set_up(struct measure *m)
{
	int rc = open_engine(m);

	if (rc)
		return rc;
	m->raw_bytes = (size_t)m->o->depth * m->o->request_bytes + PAGE;
	m->raw = tn_get(&tn_alloc_system, m->raw_bytes);
	if (!m->raw)
		return tn_fail(-ENOMEM, "no memory for %u requests of %u bytes", m->o->depth, m->o->request_bytes);
	m->mem = (char *)m->raw + (PAGE - (uintptr_t)m->raw % PAGE) % PAGE;
	tn_rng_seed(&m->rng, m->o->seed);
	return open_file(m);
}

static int check(const struct tn_io_measure_opts *o)
{
	if (!o->dir)
		return tn_fail(-EINVAL, "dir is missing");
	if (!(o->seconds >= 0.1 && o->seconds <= 3600))
		return tn_fail(-EINVAL, "seconds %g: must be 0.1 to 3600", o->seconds);
	if (o->depth == 0 || o->depth > DEPTH_MAX)
		return tn_fail(-EINVAL, "depth %u: must be 1 to %u", o->depth, DEPTH_MAX);
	if (o->request_bytes < PROBE_BYTES || o->request_bytes > 64u << 20 || o->request_bytes % PROBE_BYTES)
		return tn_fail(-EINVAL, "request_bytes %u: must be a multiple of %u, to 64 MiB", o->request_bytes, PROBE_BYTES);
	if (o->file_bytes < o->request_bytes || o->file_bytes % o->request_bytes || o->file_bytes > 1ull << 40)
		return tn_fail(-EINVAL, "file_bytes %llu: must be a multiple of request_bytes, to 1 TiB",
			       (unsigned long long)o->file_bytes);
	return 0;
}

void tn_io_measure_opts_init(struct tn_io_measure_opts *opts)
{
	*opts = (struct tn_io_measure_opts){
		.seconds = 6,
		.file_bytes = 256u << 20,
		.request_bytes = 256u << 10,
		.depth = 64,
		.store = true,
		.device_stretch = 16,
		.seed = 1,
	};
}

int tn_io_measure(const struct tn_io_measure_opts *opts, struct tn_mix *out)
{
	struct tn_mix mix;
	struct measure *m;
	int rc;

	if (!opts || !out)
		return tn_fail(-EINVAL, "tn_io_measure: opts or out is missing");
	rc = check(opts);
	if (rc)
		return rc;
	m = tn_get(&tn_alloc_system, sizeof(*m));
	if (!m)
		return tn_fail(-ENOMEM, "no memory");
	m->o = opts;
	m->log = (struct tn_log){opts->log, opts->log_arg, TN_LOG_WARN};
	rc = set_up(m);
	if (rc == 0)
		rc = measure_all(m);
	if (rc == 0)
		conclude(m, &mix);
	tn_io_destroy(m->io);
	tn_paced_destroy(m->paced);
	tn_put(&tn_alloc_system, m->raw, m->raw_bytes);
	tn_put(&tn_alloc_system, m, sizeof(*m));
	if (rc == 0 && opts->store && !opts->device_model)
		rc = tn_mixfile_save(opts->dir, &mix);
	if (rc == 0)
		*out = mix;
	return rc;
}
