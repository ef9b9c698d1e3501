/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine's object: uring.c moves bytes, uring_ring.c sets the ring up, and hands over to threads when
 * the kernel refuses it.
 */
#ifndef TN_IOENGINE_URING_H
#define TN_IOENGINE_URING_H

#include <liburing.h>

#include "ioengine/engine.h"

struct tn_uring {
	struct tn_ioengine e;
	struct io_uring ring;
	struct tn_fork_fd fork; /* the ring refers to the files, and a child's copy to the ring */
	struct tn_iofiles files;
	const struct tn_clock *clock;
	const struct tn_alloc *alloc;
	const struct tn_log *log;
	uint32_t depth;
	uint32_t inflight; /* requests taken and not returned */
	struct tn_list live; /* requests that the kernel has, or will get with the next call */
	struct tn_list again; /* requests to hand to the kernel once more */
	struct tn_list ready; /* completed requests, to be returned */
	/* Features that the kernel has. */
	bool fixed_files;
	bool ext_arg;
	struct tn_io *work[TN_IO_FILES_MAX]; /* by file: threads that wait for the file system; NULL: none were needed so far */
	uint32_t work_out; /* requests that those have */
	bool refused; /* the kernel took io_uring away; the ring is gone, or on its way out */
	uint32_t nthreads;
	int end_fd; /* hangs up when the kernel has ended all of the ring's requests and freed the ring; -1: that was noticed */
	struct tn_io *threads; /* shared: the engine that took over; NULL: none has, or none could be started yet */
	/* Waking. */
	int event_fd;
	bool event_armed;
	uint64_t event_value; /* target of the armed read */
	/* Written by other threads, so not in the cache lines above. */
	struct tn_waker waker __attribute__((aligned(64)));
};

/* user_data of entries that are no requests. Requests are aligned, so no request has such an address. */
#define TN_URING_TAG_WAKE 1u
#define TN_URING_TAG_CANCEL 2u

static inline void tn_uring_finish(struct tn_uring *u, struct tn_io_req *req, int status)
{
	req->status = status;
	tn_ioqueue_put(&u->ready, req);
}

/* The ring and its features; 0 or -errno. */
int tn_uring_setup(struct tn_uring *u, unsigned without);
void tn_uring_teardown(struct tn_uring *u);
/* Whether a result of io_uring_enter is a refusal for good, unlike an interrupt or a lack of memory. */
bool tn_uring_is_refusal(int err);
/* A file was opened, or is about to be closed (fd -1). */
void tn_uring_register_file(struct tn_uring *u, uint32_t file, int fd);

/* Gives up the ring and hands its requests to threads. The caller has collected the kernel's completions so far. */
void tn_uring_fall_back(struct tn_uring *u, int err);
/*
 * After the refusal: submit and poll of the engine that took over. The poll may return early, and leaves requests in
 * ready.
 */
unsigned tn_uring_refused_submit(struct tn_uring *u, struct tn_io_req **reqs, unsigned n);
unsigned tn_uring_refused_poll(struct tn_uring *u, struct tn_io_req **done, unsigned max, uint64_t timeout_ns);

#endif
