/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of an io_uring engine when the kernel refuses io_uring_enter, from a sandbox that began after it was
 * created: threads take over (posix.c), on the same files and with the same waker, and nobody above notices.
 *
 * Requests that the kernel has not taken yet go to the threads at once. Requests that it has taken may still read and write
 * memory, but their completions cannot come any more: io_uring_enter posts them. So the ring is closed. The kernel then ends
 * the ring's requests by itself. When all are over, a pipe hangs up whose far end is registered with the ring alone. It is
 * not known which requests had succeeded. Reads and writes are done again, which does no harm: their memory and their place
 * in the file belong to them until they are returned. A sync is not done again: the kernel reports an error of it only once,
 * and the report may be lost. So the sync counts as failed.
 *
 * This waits for the kernel's end of the requests in flight, as a poll does; the device ends that.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "ioengine/uring.h"

#define LOOK_NS 2000000u /* between two looks at the pipe, while the ring ends */

/* The engine that took over; NULL if no thread can be started now. */
static struct tn_io *threads_of(struct tn_uring *u)
{
	const struct tn_ioengine_opts o = {.kind = TN_IOENGINE_POSIX, .depth = u->depth, .threads = u->nthreads,
					   .alloc = u->alloc, .clock = u->clock, .log = u->log};
	const struct tn_ioposix_heir heir = {&u->files, &u->waker, u->buffers, &u->nbuffers};
	struct tn_io *io;

	if (!u->threads && tn_ioengine_posix_create_heir(&o, &heir, &io) == 0)
		__atomic_store_n(&u->threads, io, __ATOMIC_RELEASE);
	return u->threads;
}

static void fail(struct tn_uring *u, struct tn_io_req *req, int status)
{
	req->status = status;
	tn_ioqueue_push(&u->ready, req);
}

/* For a request that the kernel does not have, or has no longer. */
static void hand_over(struct tn_uring *u, struct tn_io_req *req)
{
	struct tn_io *threads = threads_of(u);

	tn_uring_unlive(u, req);
	if (tn_ioxfer_of(req)->flags & TN_IOXFER_CANCELLED)
		fail(u, req, -ECANCELED);
	else if (!threads)
		fail(u, req, tn_ioxfer_failed(&u->files, req, -EIO));
	else
		tn_ioengine_posix_take(threads, req);
}

/* The ring is gone, and with it the results of the requests that the kernel had. */
static void ring_has_ended(struct tn_uring *u)
{
	close(u->end_fd);
	u->end_fd = -1;
	for (uint32_t i = 0; i < u->depth; i++) {
		struct tn_io_req *req = u->live[i];

		if (!req)
			continue;
		if (req->op == TN_IO_SYNC && !(tn_ioxfer_of(req)->flags & TN_IOXFER_CANCELLED)) {
			tn_uring_unlive(u, req);
			fail(u, req, tn_ioxfer_failed(&u->files, req, -EIO));
		} else {
			hand_over(u, req);
		}
	}
}

void tn_uring_fall_back(struct tn_uring *u, int err)
{
	struct io_uring_sq *sq = &u->ring.sq;
	struct tn_io_req *req;

	u->refused = true;
	u->fixed_files = false;
	tn_log(u->log, TN_LOG_WARN, "io_uring_enter: %s; %u requests are carried over, and %u threads used from now on",
	       strerror(-err), u->depth - u->free_slots, u->nthreads);
	/* The kernel takes entries in order and says in khead how many it took. */
	for (unsigned i = *sq->khead; i != sq->sqe_tail; i++) {
		uint64_t data = sq->sqes[i & *sq->kring_mask].user_data;

		if (data != TN_URING_TAG_WAKE && data != TN_URING_TAG_CANCEL)
			hand_over(u, (struct tn_io_req *)(uintptr_t)data);
	}
	while ((req = tn_ioqueue_pop(&u->again)))
		hand_over(u, req);
	tn_uring_close_ring(u);
	u->event_armed = false;
	if (u->free_slots == u->depth)
		ring_has_ended(u);
}

unsigned tn_uring_refused_submit(struct tn_uring *u, struct tn_io_req **reqs, unsigned n)
{
	struct tn_io *threads = threads_of(u);
	unsigned k = 0;

	if (n > u->depth - u->inflight)
		n = u->depth - u->inflight;
	if (threads)
		k = tn_io_submit(threads, reqs, n);
	for (; !threads && k < n; k++) {
		int err = tn_ioxfer_begin(&u->files, u->buffers, u->nbuffers, reqs[k], u);

		fail(u, reqs[k], err ? err : -EIO);
	}
	u->inflight += k;
	return k;
}

unsigned tn_uring_refused_poll(struct tn_uring *u, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct pollfd end = {.fd = u->end_fd, .events = POLLIN};
	const struct timespec nap = {0, LOOK_NS};
	struct tn_io *threads;
	unsigned n;

	if (u->end_fd >= 0) {
		if (poll(&end, 1, 0) > 0)
			ring_has_ended(u);
		else if (timeout_ns > LOOK_NS)
			timeout_ns = LOOK_NS;
	}
	if (u->ready.head)
		return 0; /* the caller takes the requests in ready first */
	threads = threads_of(u);
	if (!threads) { /* nobody could wake a sleeper */
		if (timeout_ns)
			nanosleep(&nap, NULL);
		return 0;
	}
	n = tn_io_poll(threads, done, max, timeout_ns);
	u->inflight -= n;
	return n;
}
