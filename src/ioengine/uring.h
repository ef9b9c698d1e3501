/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine's object: uring.c moves bytes, uring_setup.c finds out what the kernel can do, uring_refused.c
 * takes over when the kernel refuses io_uring_enter.
 */
#ifndef TN_IOENGINE_URING_H
#define TN_IOENGINE_URING_H

#include <liburing.h>

#include "ioengine/engine.h"

#define TN_URING_BUFFERS 64u         /* handles */
#define TN_URING_KERNEL_BUFFERS 1024u /* the kernel's table, one entry per GiB */
#define TN_URING_BUFFER_SHIFT 30u    /* the kernel takes at most 1 GiB per buffer */

/* Linux 6.15; newer than Debian 12's header. */
#define TN_URING_OP_READV_FIXED 60
#define TN_URING_OP_WRITEV_FIXED 61

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
	/* Requests that the kernel has or will get. The owner keeps this list in case the kernel refuses io_uring_enter. */
	struct tn_io_req **live;
	uint32_t *free_slot;
	uint32_t free_slots;
	struct tn_ioqueue again; /* requests to hand to the kernel once more */
	struct tn_ioqueue ready; /* completed requests, to be returned */
	/* Features that the kernel has: uring_setup.c. */
	bool fixed_files;
	bool vec_fixed;
	bool ext_arg;
	bool sparse_buffers;
	struct tn_iobuffer buffers[TN_URING_BUFFERS];
	uint32_t nbuffers;
	uint32_t nkernel_buffers;
	struct tn_fileworks work; /* for requests that may wait in the kernel */
	/* uring_refused.c */
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

/* Enters a request in the table of those that the kernel may have, and takes it out. */
static inline void tn_uring_live(struct tn_uring *u, struct tn_io_req *req)
{
	uint32_t slot = u->free_slot[--u->free_slots];

	tn_ioxfer_of(req)->slot = slot;
	u->live[slot] = req;
}

static inline void tn_uring_unlive(struct tn_uring *u, struct tn_io_req *req)
{
	uint32_t slot = tn_ioxfer_of(req)->slot;

	u->live[slot] = NULL;
	u->free_slot[u->free_slots++] = slot;
}

/* uring_setup.c: the ring and its features; 0 or -errno. */
int tn_uring_setup(struct tn_uring *u, unsigned without);
void tn_uring_teardown(struct tn_uring *u);
void tn_uring_close_ring(struct tn_uring *u);
/* Whether a result of io_uring_enter is a refusal for good, unlike an interrupt or a lack of memory. */
bool tn_uring_is_refusal(int err);
/* A file was opened, or is about to be closed (fd -1). */
void tn_uring_register_file(struct tn_uring *u, uint32_t file, int fd);
int tn_uring_register_buffer(struct tn_io *io, void *base, size_t bytes, uint16_t *buffer);

/* uring_refused.c */

/* Gives up the ring and hands its requests to threads. The caller has collected the kernel's completions so far. */
void tn_uring_fall_back(struct tn_uring *u, int err);
/*
 * After the refusal: submit and poll of the engine that took over. The poll may return early, and leaves requests in
 * ready.
 */
unsigned tn_uring_refused_submit(struct tn_uring *u, struct tn_io_req **reqs, unsigned n);
unsigned tn_uring_refused_poll(struct tn_uring *u, struct tn_io_req **done, unsigned max, uint64_t timeout_ns);

#endif
