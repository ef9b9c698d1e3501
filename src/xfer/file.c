/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file backend: memory to files and block devices, by the engines of the I/O contract.
 *
 * A thread owns the engine. It opens and closes files, takes posted jobs in their order, and keeps up to SLOTS requests in flight. Pieces that follow each other in
 * the file go as one request; if it fails, the agent tries each of them again, alone. A transfer that ends early (the file was truncated, the disk is full) is a failure, as the contract says. Nothing is synced.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "ioengine/ioengine.h"
#include "xfer/backends.h"

#define SLOTS 64u
#define SLOT_PIECES 64u
#define REQUEST_BYTES (1u << 20)
#define DIRECT_ALIGN 4096u
#define COST_LATENCY_NS 100000u
#define COST_BYTES_PER_S 1000000000u

/* An open file; sections of the same one share it. */
struct file {
	struct tn_list link;
	uint32_t handle;
	uint32_t refs;
	uint64_t fd; /* of a section without a path */
	char path[TN_XFER_META_BYTES]; /* with its mode; "": none */
};

struct slot {
	struct tn_io_req req; /* first: completions are slots */
	struct slot *next_free;
	struct tn_xfer_job *job;
	struct tn_xfer_piece *piece;
	uint32_t npieces;
	struct iovec iov[SLOT_PIECES];
};

/* What another thread wants of the owner, and waits for. */
struct errand {
	struct errand *next;
	const struct tn_xfer_section *open; /* NULL: close */
	struct file *file;
	struct tn_error error;
	int rc;
	bool done;
};

struct files {
	struct tn_io *io;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t answered;
	struct errand *errands;
	struct tn_xfer_job *posted, **last;
	bool stop;
	uint32_t engine; /* enum tn_ioengine_kind */
	/* Of the owner's thread. */
	struct tn_list open;
	struct tn_xfer_job *running, **running_last;
	struct slot *free;
	struct slot slot[SLOTS];
};

/* What a job keeps in its words. */
enum { NEXT_PIECE, IN_FLIGHT, IS_CANCELLED };

static bool is_file(uint32_t segment)
{
	return segment == TN_XFER_FILE || segment == TN_XFER_BLOCK;
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

static int adopt(struct files *f, uint64_t fd, uint32_t *handle)
{
	struct tn_io_lent lent = {.fd = (int)fd, .offset_align = 1, .memory_align = 1};
	int flags = fd > INT32_MAX ? -1 : fcntl((int)fd, F_GETFL);
	struct stat st;

	if (flags < 0 || fstat((int)fd, &st))
		return tn_fail(-EBADF, "file section of device %llu without a path: the device is no open descriptor", (unsigned long long)fd);
	if (flags & O_APPEND)
		return tn_fail(-EINVAL, "descriptor %llu has O_APPEND: all would be written at the end; open it without", (unsigned long long)fd);
	snprintf(lent.name, sizeof(lent.name), "descriptor %llu", (unsigned long long)fd);
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return tn_fail(-EINVAL, "%s: a regular file or a block device is wanted", lent.name);
	lent.read_only = (flags & O_ACCMODE) == O_RDONLY;
	lent.direct = flags & O_DIRECT;
	if (lent.direct)
		lent.offset_align = lent.memory_align = DIRECT_ALIGN;
	return tn_io_adopt(f->io, &lent, handle);
}

static int open_path(struct files *f, const char *meta, uint32_t *handle)
{
	unsigned flags;
	const char *path = tn_xfer_file_path(meta, &flags);

	return tn_io_open(f->io, path, flags, handle);
}

static int open_file(struct files *f, const struct tn_xfer_section *s, struct file **out)
{
	const char *meta = s->meta ? s->meta : "";
	struct tn_list *pos;
	struct file *file;
	int rc;

	for (pos = f->open.next; pos != &f->open; pos = pos->next) {
		file = tn_container_of(pos, struct file, link);
		if (!strcmp(file->path, meta) && (*meta || file->fd == s->device)) {
			file->refs++;
			*out = file;
			return 0;
		}
	}
	file = tn_get(&tn_alloc_system, sizeof(*file));
	if (!file)
		return -ENOMEM;
	snprintf(file->path, sizeof(file->path), "%s", meta);
	file->fd = s->device;
	file->refs = 1;
	rc = *meta ? open_path(f, meta, &file->handle) : adopt(f, s->device, &file->handle);
	if (rc) {
		tn_put(&tn_alloc_system, file, sizeof(*file));
		return rc;
	}
	tn_list_push(&f->open, &file->link);
	*out = file;
	return 0;
}

static void close_file(struct files *f, struct file *file)
{
	if (--file->refs)
		return;
	tn_list_del(&file->link);
	tn_io_close(f->io, file->handle); /* nothing of it is in flight: the agent has counted its users */
	tn_put(&tn_alloc_system, file, sizeof(*file));
}

static int ask(struct files *f, struct errand *e)
{
	pthread_mutex_lock(&f->lock);
	e->next = f->errands;
	f->errands = e;
	tn_io_wake(f->io);
	while (!e->done)
		pthread_cond_wait(&f->answered, &f->lock);
	pthread_mutex_unlock(&f->lock);
	return e->rc ? tn_fail(e->rc, "%s", e->error.text) : 0;
}

static int file_section_add(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle)
{
	struct errand e = {.open = section};
	int rc;

	if (!is_file(segment)) {
		*handle = NULL;
		return 0;
	}
	rc = ask(backend, &e);
	if (rc == 0)
		*handle = e.file;
	return rc;
}

static void file_section_remove(void *backend, void *handle)
{
	struct errand e = {.file = handle};

	if (handle)
		ask(backend, &e);
}

int tn_xfer_file_query(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, struct tn_xfer_found *out)
{
	unsigned flags;
	struct stat st;
	uint64_t bytes;
	int fd, rc;

	*out = (struct tn_xfer_found){0};
	if (!is_file(segment))
		return -ENOTSUP;
	rc = section->meta && *section->meta ? stat(tn_xfer_file_path(section->meta, &flags), &st) : fstat((int)section->device, &st);
	if (rc)
		return errno == ENOENT || errno == ENOTDIR || errno == EBADF ? 0 : tn_fail(-errno, "file %s: %s", section->meta ? section->meta : "(descriptor)", strerror(errno));
	out->exists = 1;
	out->bytes = (uint64_t)st.st_size;
	if (!S_ISBLK(st.st_mode))
		return 0;
	fd = section->meta && *section->meta ? open(tn_xfer_file_path(section->meta, &flags), O_RDONLY | O_NONBLOCK | O_CLOEXEC) : fcntl((int)section->device, F_DUPFD_CLOEXEC, 3);
	if (fd >= 0 && ioctl(fd, BLKGETSIZE64, &bytes) == 0)
		out->bytes = bytes;
	if (fd >= 0)
		close(fd);
	return 0;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------------- */

static uint64_t file_offset(const struct tn_xfer_job *job, const struct tn_xfer_piece *p)
{
	return is_file(job->remote_segment) ? p->remote : p->local;
}

static struct file *file_of(const struct tn_xfer_job *job, const struct tn_xfer_piece *p)
{
	return is_file(job->remote_segment) ? p->remote_section : p->local_section;
}

static void fill(struct slot *s, struct tn_xfer_job *job)
{
	bool remote_file = is_file(job->remote_segment);
	struct tn_xfer_piece *p = &job->piece[job->word[NEXT_PIECE]];
	uint64_t left = job->npieces - job->word[NEXT_PIECE];

	s->job = job;
	s->piece = p;
	s->npieces = 0;
	s->req = (struct tn_io_req){
		.op = (job->op == TN_XFER_READ) == remote_file ? TN_IO_READ : TN_IO_WRITE,
		.file = file_of(job, p)->handle,
		.offset = file_offset(job, p),
		.iov = s->iov,
	};
	while (s->npieces < left && s->npieces < (job->alone ? 1 : SLOT_PIECES)) {
		struct tn_xfer_piece *next = p + s->npieces;

		if (s->npieces && (s->req.length + next->bytes > REQUEST_BYTES || file_of(job, next) != file_of(job, p) ||
				   file_offset(job, next) != s->req.offset + s->req.length))
			break;
		s->iov[s->npieces++] = (struct iovec){(void *)(uintptr_t)(remote_file ? next->local : next->remote), next->bytes};
		s->req.length += (uint32_t)next->bytes;
	}
	s->req.iov_count = s->npieces;
}

/* Of the first piece that was not moved as a whole: which file, and where in it. */
static size_t file_why(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes)
{
	for (uint32_t i = 0; i < job->npieces; i++) {
		const struct tn_xfer_piece *p = &job->piece[i];
		int status = __atomic_load_n(&p->status, __ATOMIC_ACQUIRE);
		const struct file *file = file_of(job, p);
		size_t n;

		if (!status || status == -EINPROGRESS || status == -ECANCELED)
			continue;
		n = (size_t)snprintf(out, bytes, "%s%.200s: %llu of %llu bytes at %llu", *file->path ? "file " : "descriptor", file->path,
				     (unsigned long long)__atomic_load_n(&p->moved, __ATOMIC_RELAXED), (unsigned long long)p->bytes,
				     (unsigned long long)file_offset(job, p)) + 1;
		return n < bytes ? n : bytes;
	}
	return 0;
}

/* Hands pieces of a job to the engine. False: the engine or the slots are full. */
static bool issue(struct files *f, struct tn_xfer_job *job)
{
	while (job->word[NEXT_PIECE] < job->npieces) {
		struct slot *s = f->free;
		struct tn_io_req *req;

		if (tn_xfer_job_stopped(job)) {
			for (; job->word[NEXT_PIECE] < job->npieces; job->word[NEXT_PIECE]++)
				tn_xfer_piece_end(&job->piece[job->word[NEXT_PIECE]], 0, -ECANCELED);
			break;
		}
		if (!s)
			return false;
		fill(s, job);
		req = &s->req;
		if (!tn_io_submit(f->io, &req, 1))
			return false;
		f->free = s->next_free;
		job->word[NEXT_PIECE] += s->npieces;
		job->word[IN_FLIGHT]++;
	}
	return true;
}

static void complete(struct files *f, struct slot *s)
{
	uint64_t left = s->req.transferred;

	for (uint32_t i = 0; i < s->npieces; i++) {
		struct tn_xfer_piece *p = &s->piece[i];
		uint64_t moved = left < p->bytes ? left : p->bytes;

		left -= moved;
		p->shared = s->npieces > 1;
		tn_xfer_piece_end(p, moved, moved == p->bytes ? 0 : s->req.status ? s->req.status : -EIO);
	}
	s->job->word[IN_FLIGHT]--;
	s->next_free = f->free;
	f->free = s;
}

static void cancel_slots(struct files *f, struct tn_xfer_job *job)
{
	if (job->word[IS_CANCELLED] || !tn_xfer_job_stopped(job))
		return;
	job->word[IS_CANCELLED] = 1;
	for (uint32_t i = 0; i < SLOTS && job->word[IN_FLIGHT]; i++)
		if (f->slot[i].job == job)
			tn_io_cancel(f->io, &f->slot[i].req); /* -ENOENT: a slot that is free */
}

/* Goes on with every job, and ends those that are over. */
static void proceed(struct files *f)
{
	struct tn_xfer_job **at = &f->running, *job;
	bool full = false;

	while ((job = *at) != NULL) {
		if (!full || tn_xfer_job_stopped(job))
			full |= !issue(f, job);
		cancel_slots(f, job);
		if (job->word[NEXT_PIECE] == job->npieces && !job->word[IN_FLIGHT]) {
			*at = job->next;
			if (!*at)
				f->running_last = at;
			job->ended(job);
		} else {
			at = &job->next;
		}
	}
}

/* ---- the thread -------------------------------------------------------------------------------------------------------- */

/* Takes what others have left; false: the end. */
static bool collect(struct files *f)
{
	struct errand *e;
	bool stop;

	pthread_mutex_lock(&f->lock);
	while ((e = f->errands) != NULL) {
		f->errands = e->next;
		pthread_mutex_unlock(&f->lock); /* a file system may be slow, and who posts does not wait for it */
		if (e->open)
			e->rc = open_file(f, e->open, &e->file);
		else
			close_file(f, e->file);
		pthread_mutex_lock(&f->lock);
		e->error = *tn_error_last();
		e->done = true;
		pthread_cond_broadcast(&f->answered);
	}
	if (f->posted) {
		*f->running_last = f->posted;
		f->running_last = f->last;
		f->posted = NULL;
		f->last = &f->posted;
	}
	stop = f->stop;
	pthread_mutex_unlock(&f->lock);
	return !stop;
}

static void *run(void *arg)
{
	struct files *f = arg;
	struct tn_ioengine_opts opts = {.kind = f->engine, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct errand *started;
	int rc;

	pthread_mutex_lock(&f->lock);
	started = f->errands;
	f->errands = NULL;
	rc = started->rc = tn_ioengine_create(&opts, &f->io);
	started->error = *tn_error_last();
	started->done = true;
	pthread_cond_broadcast(&f->answered);
	pthread_mutex_unlock(&f->lock);
	while (rc == 0 && collect(f)) {
		struct tn_io_req *done[SLOTS];
		unsigned n;

		proceed(f);
		n = tn_io_poll(f->io, done, SLOTS, UINT64_MAX);
		for (unsigned i = 0; i < n; i++)
			complete(f, (struct slot *)(void *)done[i]);
	}
	tn_io_destroy(f->io);
	return NULL;
}

static void file_post(void *backend, struct tn_xfer_job *job)
{
	struct files *f = backend;

	pthread_mutex_lock(&f->lock);
	job->next = NULL;
	*f->last = job;
	f->last = &job->next;
	tn_io_wake(f->io);
	pthread_mutex_unlock(&f->lock);
}

static void file_cancel(void *backend, struct tn_xfer_job *job)
{
	tn_io_wake(((struct files *)backend)->io);
}

static void file_free(struct files *f)
{
	pthread_cond_destroy(&f->answered);
	pthread_mutex_destroy(&f->lock);
	tn_put(&tn_alloc_system, f, sizeof(*f));
}

static void file_destroy(void *backend)
{
	struct files *f = backend;

	pthread_mutex_lock(&f->lock);
	f->stop = true;
	tn_io_wake(f->io);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	assert(tn_list_empty(&f->open));
	file_free(f);
}

static int start(struct files *f)
{
	struct errand e = {0};
	int rc;

	f->errands = &e;
	rc = -tn_thread_start(&f->thread, run, f);
	if (rc)
		return tn_fail(rc, "backend file: a thread: %s", strerror(-rc));
	pthread_mutex_lock(&f->lock);
	while (!e.done)
		pthread_cond_wait(&f->answered, &f->lock);
	pthread_mutex_unlock(&f->lock);
	if (e.rc == 0)
		return 0;
	pthread_join(f->thread, NULL);
	return tn_fail(e.rc, "backend file: %s", e.error.text);
}

static int file_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	uint32_t engine = TN_IOENGINE_AUTO;
	struct files *f;
	int rc;

	for (uint32_t i = 0; i < n; i++) {
		if (strcmp(params[i].key, "engine"))
			return tn_fail(-EINVAL, "backend file: %s is no parameter of it: engine", params[i].key);
		engine = !strcmp(params[i].value, "uring") ? TN_IOENGINE_URING : !strcmp(params[i].value, "posix") ? TN_IOENGINE_POSIX : UINT32_MAX;
		if (!strcmp(params[i].value, "auto"))
			engine = TN_IOENGINE_AUTO;
		if (engine == UINT32_MAX)
			return tn_fail(-EINVAL, "backend file: engine=%s: auto, uring or posix is wanted", params[i].value);
	}
	f = tn_get(&tn_alloc_system, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->engine = engine;
	f->last = &f->posted;
	f->running_last = &f->running;
	tn_list_init(&f->open);
	for (uint32_t i = 0; i < SLOTS; i++) {
		f->slot[i].next_free = f->free;
		f->free = &f->slot[i];
	}
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->answered, NULL);
	rc = start(f);
	if (rc) {
		file_free(f);
		return rc;
	}
	*out = f;
	return 0;
}

static int file_can(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer)
{
	if (peer)
		return tn_fail(-ENOTSUP, "it moves files of its own agent only");
	if (is_file(local) == is_file(remote) || (local != TN_XFER_DRAM && remote != TN_XFER_DRAM))
		return tn_fail(-ENOTSUP, "it moves DRAM from and to FILE and BLOCK");
	return 0;
}

static void file_cost(void *backend, bool peer, struct tn_xfer_cost *out)
{
	*out = (struct tn_xfer_cost){COST_LATENCY_NS, COST_BYTES_PER_S};
}

const struct tn_xfer_backend_ops tn_xfer_file_ops = {
	.size = sizeof(struct tn_xfer_backend_ops),
	.abi = TN_XFER_BACKEND_ABI,
	.segments = 1u << TN_XFER_DRAM | 1u << TN_XFER_FILE | 1u << TN_XFER_BLOCK,
	.name = "file",
	.create = file_create,
	.destroy = file_destroy,
	.section_add = file_section_add,
	.section_remove = file_section_remove,
	.query = tn_xfer_file_query,
	.can = file_can,
	.cost = file_cost,
	.post = file_post,
	.cancel = file_cancel,
	.why = file_why,
};
