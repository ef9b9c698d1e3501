/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the real engines share: the table of open files, the check of a request, the progress of a
 * transfer that takes several system calls, and the waker.
 *
 * Private to src/ioengine and its tests.
 */
#ifndef TN_IOENGINE_ENGINE_H
#define TN_IOENGINE_ENGINE_H

#include <pthread.h>
#include <sys/types.h>

#include "base/fork.h"
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

/* What a real engine's object begins with. */
struct tn_ioengine {
	struct tn_io io;
	struct tn_iofiles *files;
};

void tn_iofiles_init(struct tn_iofiles *files, const struct tn_log *log);
void tn_iofiles_fini(struct tn_iofiles *files);

/* Operations of the contract, for engines that begin with struct tn_ioengine. */
int tn_ioengine_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file);
int tn_ioengine_lend(struct tn_io *io, uint32_t file, struct tn_io_lent *lent);
int tn_ioengine_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file);
int tn_ioengine_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st);
int tn_ioengine_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length);
int tn_ioengine_unlink(struct tn_io *io, const char *path);

/* Whether the file may be closed: 0, -EBADF or -EBUSY. */
int tn_iofiles_may_close(const struct tn_iofiles *files, uint32_t file);
/* Gives the lock back, unless the file was adopted, and closes. */
void tn_iofiles_close(struct tn_iofiles *files, uint32_t file);
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
	struct tn_io_req *next; /* in one of the engine's queues */
	const void *engine; /* the engine that has the request; NULL when it is not in flight */
	uint32_t index; /* first piece not fully moved */
	uint32_t skip;  /* bytes of that piece that were moved */
	uint32_t count; /* pieces handed to the kernel now */
	uint32_t want;  /* bytes of these pieces */
	uint32_t flags;
	uint32_t slot; /* place in the io_uring engine's table of requests that the kernel may have */
};

static inline struct tn_ioxfer *tn_ioxfer_of(struct tn_io_req *req)
{
	_Static_assert(sizeof(struct tn_ioxfer) <= sizeof(req->engine), "fits the engine words");
	return (struct tn_ioxfer *)(void *)req->engine;
}

/* Whether the request moves bytes. The others wait for the file system, however long that takes. */
static inline bool tn_ioxfer_is(const struct tn_io_req *req)
{
	return req->op == TN_IO_READ || req->op == TN_IO_WRITE;
}

struct tn_ioqueue {
	struct tn_io_req *head, **tail;
};

static inline void tn_ioqueue_init(struct tn_ioqueue *q)
{
	q->head = NULL;
	q->tail = &q->head;
}

static inline void tn_ioqueue_push(struct tn_ioqueue *q, struct tn_io_req *req)
{
	tn_ioxfer_of(req)->next = NULL;
	*q->tail = req;
	q->tail = &tn_ioxfer_of(req)->next;
}

static inline struct tn_io_req *tn_ioqueue_pop(struct tn_ioqueue *q)
{
	struct tn_io_req *req = q->head;

	if (req) {
		q->head = tn_ioxfer_of(req)->next;
		if (!q->head)
			q->tail = &q->head;
	}
	return req;
}

/* A registered range of memory. */
struct tn_iobuffer {
	uintptr_t base;
	size_t bytes;
	uint32_t first; /* the kernel's number of its first GiB */
};

/* Takes a request: clears its outputs and checks it. 0, or -EINVAL / -EBADF, with which the request completes. */
int tn_ioxfer_begin(struct tn_iofiles *files, const struct tn_iobuffer *buffers, uint32_t nbuffers,
		    struct tn_io_req *req, const void *engine);

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

/* ---- waiting for the file system ------------------------------------------------------------- */

struct tn_fileworks;

#define TN_FILEWORKS_EACH 2u /* per file: one thread reserves space, one does the rest */

/* A thread of one file. */
struct tn_filework {
	struct tn_fileworks *all;
	pthread_t thread;
	bool started;
	/* Under lock, which no thread holds while it waits for the file system: */
	pthread_mutex_t lock;
	pthread_cond_t news; /* todo is not empty, or stop */
	struct tn_ioqueue todo;
	bool stop;
};

struct tn_fileworks {
	struct tn_iofiles *files;
	void (*wake)(void *arg); /* called by the threads after they finished a request */
	void *arg;
	uint32_t out; /* owner only: posted and not taken back */
	struct tn_io_req *done; /* shared: newest first */
	struct tn_filework of[TN_IO_FILES_MAX][TN_FILEWORKS_EACH];
};

void tn_fileworks_init(struct tn_fileworks *all, struct tn_iofiles *files, void (*wake)(void *arg), void *arg);
/* Posts a request that is no transfer to a thread of its file; 0, or -errno: no thread could be started. */
int tn_fileworks_post(struct tn_fileworks *all, struct tn_io_req *req);
/* The finished requests with their status, linked by tn_ioxfer's next; or NULL. */
struct tn_io_req *tn_fileworks_take(struct tn_fileworks *all);
/* Ends a file's threads before it is closed; none of its requests is in flight. */
void tn_fileworks_stop(struct tn_fileworks *all, uint32_t file);
void tn_fileworks_fini(struct tn_fileworks *all);

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
#define TN_URING_NO_BUFFERS 8u   /* registered buffers */
#define TN_URING_NO_EXT_ARG 16u  /* waiting with a time-out in one call, 5.11 */
#define TN_URING_NO_VEC_FIXED 32u /* scattered transfers in registered buffers, 6.15 */
#define TN_URING_NO_ANY 63u

int tn_ioengine_uring_create(const struct tn_ioengine_opts *opts, unsigned without, struct tn_io **out);
int tn_ioengine_posix_create(const struct tn_ioengine_opts *opts, struct tn_io **out);

/* What POSIX threads share with the engine that they replace; all of it outlives the threads. */
struct tn_ioposix_heir {
	struct tn_iofiles *files;
	struct tn_waker *waker;
	const struct tn_iobuffer *buffers;
	const uint32_t *nbuffers;
};

int tn_ioengine_posix_create_heir(const struct tn_ioengine_opts *opts, const struct tn_ioposix_heir *heir,
				  struct tn_io **out);
/*
 * Takes over a request of the other engine, which may have moved it in part; this engine's poll returns it. Owner
 * thread.
 */
void tn_ioengine_posix_take(struct tn_io *io, struct tn_io_req *req);
/* Any thread, after tn_waker_wake of the shared waker returned true: makes the sleeper return. */
void tn_ioengine_posix_signal(struct tn_io *io);

#endif
