/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gds backend: files to memory of devices, past host memory, by the plugin gds (tenuto/device_file.h).
 *
 * A queue of the plugin has STREAMS threads that ask the library. Pieces that follow each other in a file go as one transfer of the queue; if it fails, the agent tries
 * each of them again, alone. A job has up to WINDOW transfers in the queue, and puts the next one there when one is over. A stop waits for those that are there. Bytes,
 * offsets and addresses are multiples of TN_DEVICE_FILE_ALIGN. Nothing is synced. Host memory is the file backend's.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/device_file.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "io/io.h"
#include "xfer/backends.h"

#define STREAMS 8u
#define WINDOW 16u
#define TRANSFER_PIECES 64u
#define TRANSFER_BYTES (4u << 20)
#define START_NS 10000000000u /* the library starts in a second or two; without its kernel driver it was seen to take minutes */
#define DETAIL_BYTES 256u
#define COST_LATENCY_NS 50000u
#define COST_BYTES_PER_S 4000000000u

struct gds {
	const struct tn_device_file_ops *ops;
	struct tn_device_file_queue *queue;
};

/* What a FILE section has. */
struct file {
	struct tn_device_file *file;
	bool by_path;
};

struct transfer {
	struct tn_device_file_transfer t; /* first */
	struct tn_xfer_job *job;
	uint32_t first; /* piece of the job */
};

struct work {
	struct gds *gds;
	uint32_t npieces, ntransfers;
	struct iovec *iov; /* by piece */
	pthread_mutex_t lock; /* of why */
	char why[sizeof(((struct tn_device_file_transfer *)0)->detail)]; /* of the transfer that has failed whose pieces come first; "": none has */
	uint32_t why_piece;
	struct transfer transfer[];
};

/* What a job keeps in its words: how many transfers were taken to be begun, and how many parties are left that may touch the job. */
enum { TAKEN, LEFT };

/* ---- sections ---------------------------------------------------------------------------------------------------------- */

/* As the file backend does, which has the same paths. */
static int create_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);

	if (fd < 0)
		return tn_fail(-errno, "file %s: %s", path, strerror(errno));
	close(fd);
	return 0;
}

static int open_file(const struct gds *g, const struct tn_xfer_section *s, struct file *file)
{
	char detail[DETAIL_BYTES] = "";
	unsigned flags;
	const char *path;
	int rc = 0;

	file->by_path = s->meta && *s->meta;
	if (!file->by_path) {
		int mode = s->device > INT32_MAX ? -1 : fcntl((int)s->device, F_GETFL);

		if (mode < 0)
			return tn_fail(-EBADF, "file section of device %llu without a path: the device is no open descriptor", (unsigned long long)s->device);
		if (!(mode & O_DIRECT))
			return tn_fail(-ENOTSUP, "descriptor %llu is open without O_DIRECT: backend gds wants it", (unsigned long long)s->device);
		rc = g->ops->add((int)s->device, &file->file, detail, sizeof(detail));
		return rc ? tn_fail(rc, "descriptor %llu: %s", (unsigned long long)s->device, detail) : 0;
	}
	path = tn_xfer_file_path(s->meta, &flags);
	if (flags & TN_IO_CREATE)
		rc = create_file(path);
	if (rc)
		return rc;
	rc = g->ops->acquire(path, !(flags & TN_IO_READ_ONLY), &file->file, detail, sizeof(detail));
	return rc ? tn_fail(rc, "file %s: %s", path, detail) : 0;
}

static int gds_section_add(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle)
{
	struct file *file;
	int rc;

	*handle = NULL;
	if (segment != TN_XFER_FILE)
		return 0;
	file = tn_get(&tn_alloc_system, sizeof(*file));
	if (!file)
		return -ENOMEM;
	rc = open_file(backend, section, file);
	if (rc)
		tn_put(&tn_alloc_system, file, sizeof(*file));
	else
		*handle = file;
	return rc;
}

static void gds_section_remove(void *backend, void *handle)
{
	const struct gds *g = backend;
	struct file *file = handle;

	if (!file)
		return;
	if (file->by_path)
		g->ops->release(file->file);
	else
		g->ops->remove(file->file);
	tn_put(&tn_alloc_system, file, sizeof(*file));
}

/* ---- from pieces to transfers ------------------------------------------------------------------------------------------ */

static bool file_is_remote(const struct tn_xfer_job *job)
{
	return job->remote_segment == TN_XFER_FILE;
}

static const struct file *file_of(const struct tn_xfer_job *job, uint32_t piece)
{
	return file_is_remote(job) ? job->piece[piece].remote_section : job->piece[piece].local_section;
}

static uint64_t offset_of(const struct tn_xfer_job *job, uint32_t piece)
{
	return file_is_remote(job) ? job->piece[piece].remote : job->piece[piece].local;
}

static uint64_t address_of(const struct tn_xfer_job *job, uint32_t piece)
{
	return file_is_remote(job) ? job->piece[piece].local : job->piece[piece].remote;
}

static int set_piece(const struct tn_xfer_job *job, struct work *w, uint32_t i)
{
	uint64_t bytes = job->piece[i].bytes, offset = offset_of(job, i), address = address_of(job, i);

	if ((bytes | offset | address) % TN_DEVICE_FILE_ALIGN)
		return tn_fail(-ENOTSUP, "%llu bytes at %llu of a file, device address %#llx: backend gds moves multiples of %u bytes, from and to such multiples",
			       (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)address, TN_DEVICE_FILE_ALIGN);
	w->iov[i] = (struct iovec){(void *)(uintptr_t)address, bytes};
	return 0;
}

static void transfer_done(struct tn_device_file_transfer *t);

/* The pieces from `first` on that go as one. */
static void set_transfer(struct tn_xfer_job *job, struct work *w, struct transfer *x, uint32_t first)
{
	uint64_t offset = offset_of(job, first), end = offset + TRANSFER_BYTES;
	uint32_t n = 0;

	do {
		offset += job->piece[first + n].bytes;
		n++;
	} while (!job->alone && n < TRANSFER_PIECES && offset < end && first + n < job->npieces && file_of(job, first + n) == file_of(job, first) &&
		 offset_of(job, first + n) == offset);
	*x = (struct transfer){
		.t = {.file = file_of(job, first)->file, .piece = w->iov + first, .npieces = n, .offset = offset_of(job, first), .done = transfer_done},
		.job = job,
		.first = first,
	};
	x->t.write = (job->op == TN_XFER_WRITE) == file_is_remote(job);
}

static void work_free(struct work *w)
{
	uint32_t n = w->npieces;

	pthread_mutex_destroy(&w->lock);
	tn_put(&tn_alloc_system, w->iov, tn_array_bytes((uint64_t)n + 1, sizeof(*w->iov)));
	tn_put(&tn_alloc_system, w, sizeof(*w) + tn_array_bytes(n, sizeof(w->transfer[0])));
}

static int gds_prepare(void *backend, struct tn_xfer_job *job)
{
	uint32_t n = job->npieces;
	struct work *w = tn_get(&tn_alloc_system, sizeof(*w) + tn_array_bytes(n, sizeof(w->transfer[0])));
	int rc = 0;

	if (!w)
		return tn_fail(-ENOMEM, "no memory for %u pieces", n);
	pthread_mutex_init(&w->lock, NULL);
	w->gds = backend;
	w->npieces = n;
	w->iov = tn_get(&tn_alloc_system, tn_array_bytes((uint64_t)n + 1, sizeof(*w->iov)));
	if (!w->iov)
		rc = tn_fail(-ENOMEM, "no memory for %u pieces", n);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = set_piece(job, w, i);
	for (uint32_t i = 0; i < n && rc == 0; i += w->transfer[w->ntransfers++].t.npieces)
		set_transfer(job, w, &w->transfer[w->ntransfers], i);
	if (rc)
		work_free(w);
	else
		job->work = w;
	return rc;
}

static void gds_forget(void *backend, struct tn_xfer_job *job)
{
	work_free(job->work);
	job->work = NULL;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------------- */

/* The last party calls ended. Whoever has called this does not touch the job any more. */
static void leave(struct tn_xfer_job *job)
{
	if (__atomic_sub_fetch(&job->word[LEFT], 1, __ATOMIC_ACQ_REL) == 0)
		job->ended(job);
}

static void end_pieces(const struct transfer *x, int status)
{
	for (uint32_t i = 0; i < x->t.npieces; i++) {
		struct tn_xfer_piece *p = &x->job->piece[x->first + i];

		p->shared = x->t.npieces > 1;
		tn_xfer_piece_end(p, status ? 0 : p->bytes, status);
	}
}

/* Puts the next transfer into the queue; those behind a stop end at once. The caller is a party itself. */
static void begin_next(struct tn_xfer_job *job)
{
	struct work *w = job->work;
	uint64_t i;

	while ((i = __atomic_fetch_add(&job->word[TAKEN], 1, __ATOMIC_ACQ_REL)) < w->ntransfers) {
		if (!tn_xfer_job_stopped(job)) {
			w->gds->ops->submit(w->gds->queue, &w->transfer[i].t);
			return;
		}
		end_pieces(&w->transfer[i], -ECANCELED);
		__atomic_sub_fetch(&job->word[LEFT], 1, __ATOMIC_ACQ_REL);
	}
}

static void transfer_done(struct tn_device_file_transfer *t)
{
	struct transfer *x = (struct transfer *)(void *)t;
	struct tn_xfer_job *job = x->job;
	struct work *w = job->work;

	pthread_mutex_lock(&w->lock);
	if (t->status && (!w->why[0] || x->first < w->why_piece)) { /* the agent names the first descriptor that has failed */
		w->why_piece = x->first;
		snprintf(w->why, sizeof(w->why), "%s", t->detail);
	}
	pthread_mutex_unlock(&w->lock);
	end_pieces(x, t->status);
	begin_next(job);
	leave(job);
}

static void gds_post(void *backend, struct tn_xfer_job *job)
{
	struct work *w = job->work;

	pthread_mutex_lock(&w->lock);
	w->why[0] = 0;
	pthread_mutex_unlock(&w->lock);
	job->word[LEFT] = (uint64_t)w->ntransfers + 1;
	for (uint32_t i = 0; i < WINDOW && i < w->ntransfers; i++)
		begin_next(job);
	leave(job);
}

static size_t gds_why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes)
{
	struct work *w = job->work;
	size_t n;

	pthread_mutex_lock(&w->lock);
	n = w->why[0] ? (size_t)snprintf(out, bytes, "%s", w->why) + 1 : 0;
	pthread_mutex_unlock(&w->lock);
	return n < bytes ? n : bytes;
}

/* ---- the backend ------------------------------------------------------------------------------------------------------- */

static int open_queue(struct gds *g)
{
	char detail[DETAIL_BYTES] = "";
	int rc = tn_device_file_open("gds", &g->ops);

	if (rc)
		return tn_fail_cause(rc, "backend gds");
	rc = g->ops->start(tn_now_ns(&tn_clock_system) + START_NS, detail, sizeof(detail));
	if (rc == 0)
		rc = g->ops->queue_create(TN_DEVICE_FILE_SYNC, STREAMS, &g->queue, detail, sizeof(detail));
	return rc ? tn_fail(rc, "backend gds: %s", detail) : 0;
}

static int gds_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct gds *g;
	int rc;

	if (n)
		return tn_fail(-EINVAL, "backend gds: %s is no parameter of it: it has none", params[0].key);
	g = tn_get(&tn_alloc_system, sizeof(*g));
	if (!g)
		return -ENOMEM;
	rc = open_queue(g);
	if (rc)
		tn_put(&tn_alloc_system, g, sizeof(*g));
	else
		*out = g;
	return rc;
}

static void gds_destroy(void *backend)
{
	struct gds *g = backend;

	g->ops->queue_destroy(g->queue);
	tn_put(&tn_alloc_system, g, sizeof(*g));
}

static int gds_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	if (peer)
		return tn_fail(-ENOTSUP, "it moves files of its own agent only");
	if (!(local == TN_XFER_VRAM && remote == TN_XFER_FILE) && !(local == TN_XFER_FILE && remote == TN_XFER_VRAM))
		return tn_fail(-ENOTSUP, "it moves VRAM from and to FILE");
	return 0;
}

static void gds_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	*out = (struct tn_xfer_cost){COST_LATENCY_NS, COST_BYTES_PER_S};
}

const struct tn_xfer_backend_ops tn_xfer_gds_ops = {
	.size = sizeof(struct tn_xfer_backend_ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_VRAM | 1u << TN_XFER_FILE,
	.name = "gds",
	.create = gds_create,
	.destroy = gds_destroy,
	.section_add = gds_section_add,
	.section_remove = gds_section_remove,
	.query = tn_xfer_file_query,
	.can = gds_can,
	.cost = gds_cost,
	.prepare = gds_prepare,
	.forget = gds_forget,
	.post = gds_post,
	.why = gds_why,
};
