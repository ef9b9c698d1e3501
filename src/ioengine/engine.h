/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the real engines share: the table of open files, the check of a request, the progress of a
 * transfer that takes several system calls, and the waker.
 *
 * Private to src/ioengine and its tests.
 */
#ifndef TN_IOENGINE_ENGINE_H
#define TN_IOENGINE_ENGINE_H

#include <sys/types.h>

#include "base/fork.h"
#include "base/list.h"
#include "base/log.h"
#include "io/io.h"
#include "ioengine/ioengine.h"

/* ---- files ----------------------------------------------------------------------------------- */

struct tn_iofile {
	int fd; /* -1: free */
	struct tn_fork_fd fork; /* a forked child closes its copy: it would keep the lock */
	bool direct;
	bool read_only;
	bool adopted; /* the lock is the lender's */
	bool sparse; /* the log has been told that space cannot be reserved */
	uint32_t inflight;
	uint32_t offset_align;
	uint32_t memory_align;
	char name[48]; /* end of the path, for messages */
};

struct tn_iofiles {
	struct tn_iofile f[TN_IO_FILES_MAX];
	const struct tn_log *log;
};

static inline int tn_iofiles_fd(const struct tn_iofiles *files, uint32_t file)
{
	return files->f[file].fd;
}

/* What a real engine's object begins with. */
struct tn_ioengine {
	struct tn_io io;
	struct tn_iofiles *files;
};

void tn_iofiles_init(struct tn_iofiles *files, const struct tn_log *log);
void tn_iofiles_fini(struct tn_iofiles *files);

/* Operations of the contract, for engines that begin with struct tn_ioengine. */
int tn_ioengine_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file);
int tn_ioengine_close(struct tn_io *io, uint32_t file);
int tn_ioengine_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent);
int tn_ioengine_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file);
int tn_ioengine_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st);
int tn_ioengine_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length);
int tn_ioengine_unlink(struct tn_io *io, const char *path);

/* Makes the entries of the directory that path lies in durable; 0 or -errno. */
int tn_iofiles_sync_directory(const char *path);
/* Does a request that is no transfer, on whatever thread may wait for it; its status. */
int tn_iofiles_do(struct tn_iofiles *files, struct tn_io_req *req);

/* ---- transfers ------------------------------------------------------------------------------- */

/* Most pieces the kernel takes in one call (UIO_MAXIOV); longer requests take several. */
#define TN_IOXFER_PIECES 1024u

#define TN_IOXFER_CANCELLED 1u
#define TN_IOXFER_ASYNC 2u /* would have blocked once: let a kernel worker wait */
#define TN_IOXFER_COUNTED 4u /* counted in its file's inflight */

/* Lies in the request's engine words while it is in flight. */
struct tn_ioxfer {
	struct tn_list link; /* in one of the engine's queues */
	const void *engine; /* the engine that has the request; NULL when it is not in flight */
	uint32_t index; /* first piece not fully moved */
	uint32_t skip;  /* bytes of that piece that were moved */
	uint32_t count; /* pieces handed to the kernel now */
	uint32_t want;  /* bytes of these pieces */
	uint32_t flags;
	uint32_t queued; /* POSIX engine, under its lock: no thread has begun it */
};

static inline struct tn_ioxfer *tn_ioxfer_of(struct tn_io_req *req)
{
	_Static_assert(sizeof(struct tn_ioxfer) <= sizeof(req->engine), "fits the engine words");
	return (struct tn_ioxfer *)(void *)req->engine;
}

/* Any thread: whether the owner has asked for an early end. One that is seen late does no harm. */
static inline bool tn_ioxfer_is_cancelled(struct tn_io_req *req)
{
	return __atomic_load_n(&tn_ioxfer_of(req)->flags, __ATOMIC_RELAXED) & TN_IOXFER_CANCELLED;
}

static inline void tn_ioxfer_cancel(struct tn_io_req *req)
{
	__atomic_or_fetch(&tn_ioxfer_of(req)->flags, TN_IOXFER_CANCELLED, __ATOMIC_RELAXED);
}

/* Moves a request to the end of a queue. */
static inline void tn_ioqueue_put(struct tn_list *queue, struct tn_io_req *req)
{
	tn_list_del(&tn_ioxfer_of(req)->link);
	tn_list_push(queue, &tn_ioxfer_of(req)->link);
}

static inline struct tn_io_req *tn_ioqueue_first(const struct tn_list *queue)
{
	_Static_assert(offsetof(struct tn_ioxfer, link) == 0, "the link is the first of the engine words");
	return tn_list_empty(queue) ? NULL : tn_container_of(queue->next, struct tn_io_req, engine);
}

static inline struct tn_io_req *tn_ioqueue_pop(struct tn_list *queue)
{
	struct tn_io_req *req = tn_ioqueue_first(queue);

	if (req)
		tn_list_del(&tn_ioxfer_of(req)->link);
	return req;
}

/* Whether the request moves bytes. The others wait for the file system, however long that takes. */
static inline bool tn_ioxfer_is(const struct tn_io_req *req)
{
	return req->op == TN_IO_READ || req->op == TN_IO_WRITE;
}

/* Takes a request: clears its outputs and checks it. 0, or -EINVAL / -EBADF, with which the request completes. */
int tn_ioxfer_begin(struct tn_iofiles *files, struct tn_io_req *req, const void *engine);

/* Gives the request back to its owner. */
void tn_ioxfer_end(struct tn_iofiles *files, struct tn_io_req *req);

/*
 * The next piece of work: *n pieces at the returned address, x->want bytes. A piece that was moved in
 * part is finished alone, through *one, so the caller's array is neither copied nor changed.
 */
const struct iovec *tn_ioxfer_next(struct tn_io_req *req, struct iovec *one, uint32_t *n);

/* After res bytes were moved. 0: all is done; 1: go on with tn_ioxfer_next; -EIO: the transfer ended early (logged). */
int tn_ioxfer_advance(const struct tn_iofiles *files, struct tn_io_req *req, uint32_t res);

/* Logs a failure that the kernel reported and returns it. */
int tn_ioxfer_failed(const struct tn_iofiles *files, const struct tn_io_req *req, int status);

/* ---- waking ------------------------------------------------------------------------------------ */

/*
 * Wakers store woken, then read sleeping; the owner stores sleeping, then reads woken. All four are
 * sequentially consistent, so at least one side sees the other (Dekker): either the owner does not go
 * to sleep, or the waker makes the system call. The waker that clears sleeping makes the call, so only one does.
 */
struct tn_waker {
	uint32_t woken;
	uint32_t sleeping;
};

/* Any thread; true: the caller must make the sleeper return. */
static inline bool tn_waker_wake(struct tn_waker *w)
{
	__atomic_store_n(&w->woken, 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&w->sleeping, __ATOMIC_SEQ_CST) &&
	       __atomic_exchange_n(&w->sleeping, 0, __ATOMIC_SEQ_CST);
}

/* Owner, after sleeping or instead of it; true: there was a wake. */
static inline bool tn_waker_finish(struct tn_waker *w)
{
	__atomic_store_n(&w->sleeping, 0, __ATOMIC_RELAXED);
	return __atomic_exchange_n(&w->woken, 0, __ATOMIC_SEQ_CST);
}

/* Owner, before sleeping; false: do not sleep, there was a wake. */
static inline bool tn_waker_prepare(struct tn_waker *w)
{
	__atomic_store_n(&w->sleeping, 1, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&w->woken, __ATOMIC_SEQ_CST))
		return true;
	tn_waker_finish(w);
	return false;
}

/* ---- engines ----------------------------------------------------------------------------------- */

/* Features of io_uring that are switched off, so that tests see what older kernels do. */
#define TN_URING_NO_DEFER 1u     /* DEFER_TASKRUN, 6.1 */
#define TN_URING_NO_COOP 2u      /* COOP_TASKRUN, SINGLE_ISSUER, SUBMIT_ALL; 5.18 to 6.0 */
#define TN_URING_NO_FILES 4u     /* registered files */
#define TN_URING_NO_EXT_ARG 8u   /* waiting with a time-out in one call, 5.11 */
#define TN_URING_NO_ANY 15u

int tn_ioengine_uring_create(const struct tn_ioengine_opts *opts, unsigned without, struct tn_io **out);
int tn_ioengine_posix_create(const struct tn_ioengine_opts *opts, struct tn_io **out);

/* What POSIX threads share with the engine that they work for; all of it outlives the threads. */
struct tn_ioposix_parent {
	struct tn_iofiles *files;
	struct tn_waker *waker; /* of who sleeps in the threads' poll; NULL: nobody does */
	void (*ended)(void *arg); /* called by the threads, with their lock held: there is a completion; NULL: a poll notices */
	void *arg;
};

int tn_ioengine_posix_create_for(const struct tn_ioengine_opts *opts, const struct tn_ioposix_parent *parent,
				 struct tn_io **out);
/*
 * Takes over a request of the parent, which may have moved it in part; this engine's poll returns it. Owner thread.
 */
void tn_ioengine_posix_take(struct tn_io *io, struct tn_io_req *req);
/* Any thread, after tn_waker_wake of the shared waker returned true: makes the sleeper return. */
void tn_ioengine_posix_signal(struct tn_io *io);

#endif
