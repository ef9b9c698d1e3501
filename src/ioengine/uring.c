/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine: one ring, one thread, batches.
 *
 * A submit is one system call per CALL_BYTES of the batch, mostly one for all of it. A poll takes completions from shared memory and
 * enters the kernel only to wait, or when the kernel says that completions are waiting to be run
 * (DEFER_TASKRUN). wake writes to an eventfd that is read through the ring, and only while the owner
 * sleeps. How the ring comes and goes, also when a sandbox forbids io_uring_enter, is in uring_ring.c; the progress of split and
 * short transfers in xfer.c. Allocations and STAT go to threads (posix.c). Syncs are never
 * tried in the submitting call, by the kernel's own rule. Transfers are. A transfer that would have to wait (for a frozen file
 * system, a full queue) goes to a kernel thread; a write to a file system that is being frozen does so since Linux 6.12.
 *
 * The ring is created for a single issuer: create, and everything else but wake, is for one thread.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "ioengine/uring.h"

/*
 * A call ends with the request that brings it to so many bytes. The kernel holds back ("plugs") the requests of a call until its end, if it has more than
 * two, and merges neighbours. Small requests gain by that. With large ones the device would begin later, and one that serves requests side by side
 * would have fewer of them: calls of this size are 1.05 to 1.1 times as fast (docs/results/2026-11-22-store-vs-fio.md).
 */
#define CALL_BYTES (512u << 10)

static void prep_transfer(struct io_uring_sqe *sqe, int fd, struct tn_io_req *req)
{
	bool reading = req->op == TN_IO_READ;
	uint64_t offset = req->offset + req->transferred;
	const struct iovec *iov;
	struct iovec one;
	uint32_t n;

	iov = tn_ioxfer_next(req, &one, &n);
	if (n == 1)
		io_uring_prep_rw(reading ? IORING_OP_READ : IORING_OP_WRITE, sqe, fd, iov->iov_base, (unsigned)iov->iov_len, offset);
	else
		io_uring_prep_rw(reading ? IORING_OP_READV : IORING_OP_WRITEV, sqe, fd, iov, n, offset);
}

/* Puts the next piece of work of a request into the submission queue; false: the queue is full. */
static bool prep(struct tn_uring *u, struct tn_io_req *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
	int fd = u->fixed_files ? (int)req->file : tn_iofiles_fd(&u->files, req->file);

	if (!sqe)
		return false;
	if (req->op == TN_IO_SYNC)
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
	else
		prep_transfer(sqe, fd, req);
	if (u->fixed_files)
		sqe->flags |= IOSQE_FIXED_FILE;
	if (tn_ioxfer_of(req)->flags & TN_IOXFER_ASYNC)
		sqe->flags |= IOSQE_ASYNC;
	io_uring_sqe_set_data(sqe, req);
	return true;
}

static void collect(struct tn_uring *u);

/* Judges the result of io_uring_enter. False: the kernel refuses for good, and threads have taken over all requests. */
static bool still_served(struct tn_uring *u, int answer)
{
	assert(answer != -EEXIST); /* the caller is not the thread that created the engine */
	if (answer >= 0 || !tn_uring_is_refusal(answer))
		return true;
	collect(u);
	tn_uring_fall_back(u, answer);
	return false;
}

/*
 * Hands the submission queue to the kernel. Entries that the kernel does not take now (out of memory, completions not
 * collected) stay in the queue and go with the next call.
 */
static void flush(struct tn_uring *u)
{
	unsigned left;

	while (!u->refused && (left = io_uring_sq_ready(&u->ring)) > 0) {
		int n = io_uring_submit(&u->ring);

		if (!still_served(u, n))
			return;
		if (n < 0 ? n != -EINTR : io_uring_sq_ready(&u->ring) == left)
			return;
	}
}

static void prep_again(struct tn_uring *u)
{
	struct tn_io_req *req;

	while (!u->refused && (req = tn_ioqueue_first(&u->again)) && prep(u, req))
		tn_ioqueue_put(&u->live, req);
}

/* Any thread. */
static void wake(void *arg)
{
	struct tn_uring *u = arg;
	const uint64_t one = 1;
	struct tn_io *threads;

	if (!tn_waker_wake(&u->waker))
		return;
	/* The owner sleeps where u->threads says: it changed from ring to threads before it announced its sleep. */
	threads = __atomic_load_n(&u->threads, __ATOMIC_ACQUIRE);
	if (threads) {
		tn_ioengine_posix_signal(threads);
	} else {
		ssize_t n = write(u->event_fd, &one, sizeof(one));

		assert(n == (ssize_t)sizeof(one)); /* blocks only after 2^64 - 2 unread wake-ups */
	}
}

/*
 * Hands a request that waits for the file system to the file's threads. Each file has its own, because a file system that hangs
 * must not hold up the files of another. Each file has two: reserving space may take long, and every commit of a log asks for
 * the file's state; the store has one reservation per file under way at most.
 *
 * They are threads, not IORING_OP_FALLOCATE and IORING_OP_STATX, because an allocation also truncates (after -ENOSPC, and to
 * grow a file where no space can be reserved), and io_uring can do that only since Linux 6.9.
 */
static int post(struct tn_uring *u, struct tn_io_req *req)
{
	const struct tn_ioengine_opts o = {.depth = u->depth, .threads = 2, .alloc = u->alloc, .clock = u->clock, .log = u->log};
	const struct tn_ioposix_parent parent = {.files = &u->files, .ended = wake, .arg = u};
	struct tn_io **work = &u->work[req->file];
	int err = *work ? 0 : tn_ioengine_posix_create_for(&o, &parent, work);

	if (err)
		return err;
	tn_ioengine_posix_take(*work, req);
	u->work_out++;
	return 0;
}

static unsigned uring_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct tn_uring *u = (struct tn_uring *)io;
	uint64_t now = tn_now_ns(u->clock), bytes = 0;
	unsigned k;

	if (u->refused)
		return tn_uring_refused_submit(u, reqs, n);
	if (n > u->depth - u->inflight)
		n = u->depth - u->inflight;
	for (k = 0; k < n && !u->refused; k++) {
		struct tn_io_req *req = reqs[k];
		int err;

		if (io_uring_sq_space_left(&u->ring) == 0) {
			flush(u);
			bytes = 0;
			if (u->refused || io_uring_sq_space_left(&u->ring) == 0)
				break;
		}
		err = tn_ioxfer_begin(&u->files, req, u);
		req->issue_ns = now;
		u->inflight++;
		if (!err && !tn_ioxfer_is(req) && req->op != TN_IO_SYNC) {
			err = post(u, req);
			if (!err)
				continue;
		}
		if (err) {
			tn_uring_finish(u, req, err);
		} else {
			bool ok = prep(u, req);

			assert(ok);
			tn_ioqueue_put(&u->live, req);
			bytes += req->length;
			if (bytes >= CALL_BYTES) {
				flush(u);
				bytes = 0;
			}
		}
	}
	flush(u);
	if (u->refused && k < n)
		k += tn_uring_refused_submit(u, reqs + k, n - k);
	return k;
}

/* The kernel's result of a request or of a part of it: finishes the request, or queues the rest again. */
static void handle_result(struct tn_uring *u, struct tn_io_req *req, int res)
{
	int more;

	if (res == -EAGAIN || res == -EINTR) {
		if (tn_ioxfer_is_cancelled(req)) {
			tn_uring_finish(u, req, -ECANCELED);
			return;
		}
		tn_ioxfer_of(req)->flags |= TN_IOXFER_ASYNC;
		tn_ioqueue_put(&u->again, req);
		return;
	}
	if (res < 0) {
		tn_uring_finish(u, req, res == -ECANCELED ? res : tn_ioxfer_failed(&u->files, req, res));
		return;
	}
	more = req->op == TN_IO_SYNC ? 0 : tn_ioxfer_advance(&u->files, req, (uint32_t)res);
	if (more <= 0)
		tn_uring_finish(u, req, more);
	else if (tn_ioxfer_is_cancelled(req))
		tn_uring_finish(u, req, -ECANCELED);
	else
		tn_ioqueue_put(&u->again, req);
}

static unsigned take_ready(struct tn_uring *u, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	while (n < max && !tn_list_empty(&u->ready)) {
		struct tn_io_req *req = tn_ioqueue_pop(&u->ready);

		tn_ioxfer_end(&u->files, req);
		u->inflight--;
		done[n++] = req;
	}
	return n;
}

static unsigned take_work(struct tn_uring *u, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < TN_IO_FILES_MAX && n < max; i++)
		if (u->work[i])
			n += tn_io_poll(u->work[i], done + n, max - n, 0);
	u->work_out -= n;
	u->inflight -= n;
	return n;
}

/* Takes the kernel's results from shared memory. */
static void collect(struct tn_uring *u)
{
	unsigned head, seen = 0;
	struct io_uring_cqe *cqe;

	io_uring_for_each_cqe(&u->ring, head, cqe) {
		seen++;
		if (cqe->user_data == TN_URING_TAG_WAKE)
			u->event_armed = false;
		else if (cqe->user_data != TN_URING_TAG_CANCEL)
			handle_result(u, (struct tn_io_req *)(uintptr_t)cqe->user_data, cqe->res);
	}
	io_uring_cq_advance(&u->ring, seen);
}

/* Returns up to max completed requests. Makes no system call, unless parts must be submitted again. */
static unsigned harvest(struct tn_uring *u, struct tn_io_req **done, unsigned max)
{
	unsigned n = 0;

	if (!u->refused)
		collect(u);
	if (u->work_out)
		n = take_work(u, done, max);
	if (!tn_list_empty(&u->again)) {
		prep_again(u);
		flush(u);
	}
	return n + take_ready(u, done + n, max - n);
}

/* Lets the kernel post the completions that wait to be posted. Does not sleep. */
static void run_pending_completions(struct tn_uring *u)
{
	prep_again(u);
	flush(u);
	if (!u->refused && (*u->ring.sq.kflags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
		still_served(u, io_uring_get_events(&u->ring));
}

static void to_timespec(uint64_t ns, struct __kernel_timespec *ts)
{
	ts->tv_sec = (long long)(ns / 1000000000u);
	ts->tv_nsec = (long long)(ns % 1000000000u);
}

/* Waits in the ring; the wake-up is a read of the eventfd, armed in the same call. */
static void wait_in_ring(struct tn_uring *u, uint64_t ns)
{
	struct __kernel_timespec ts;
	struct io_uring_cqe *cqe;

	if (!u->event_armed) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

		if (!sqe) {
			flush(u);
			return;
		}
		io_uring_prep_read(sqe, u->event_fd, &u->event_value, sizeof(u->event_value), 0);
		sqe->user_data = TN_URING_TAG_WAKE;
		u->event_armed = true;
	}
	to_timespec(ns, &ts);
	still_served(u, io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, ns == UINT64_MAX ? NULL : &ts, NULL));
}

/* Before 5.11 a wait with time-out would cost a timeout request: poll(2) both descriptors instead. */
static void wait_in_poll(struct tn_uring *u, uint64_t ns)
{
	struct pollfd fds[2] = {{.fd = u->ring.ring_fd, .events = POLLIN}, {.fd = u->event_fd, .events = POLLIN}};
	struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	uint64_t value;

	flush(u);
	if (u->refused)
		return;
	if (ppoll(fds, 2, ns == UINT64_MAX ? NULL : &ts, NULL) > 0 && (fds[1].revents & POLLIN)) {
		ssize_t n = read(u->event_fd, &value, sizeof(value));

		assert(n == (ssize_t)sizeof(value)); /* poll(2) said that there is a value, and only the owner reads */
	}
	run_pending_completions(u);
}

static unsigned uring_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct tn_uring *u = (struct tn_uring *)io;
	uint64_t now, deadline;
	unsigned n = harvest(u, done, max);

	if (n || max == 0)
		return n;
	run_pending_completions(u);
	n = harvest(u, done, max);
	if (!n && u->refused) {
		n = tn_uring_refused_poll(u, done, max, timeout_ns);
		return n ? n : take_ready(u, done, max);
	}
	if (n || timeout_ns == 0)
		return n;
	now = tn_now_ns(u->clock);
	if (__builtin_add_overflow(now, timeout_ns, &deadline))
		deadline = UINT64_MAX;
	for (; now < deadline; now = tn_now_ns(u->clock)) {
		bool woken = true;

		if (tn_waker_prepare(&u->waker)) {
			if (u->ext_arg)
				wait_in_ring(u, deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
			else
				wait_in_poll(u, deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
			woken = tn_waker_finish(&u->waker);
		}
		n = harvest(u, done, max);
		if (n || woken || u->refused)
			return n;
	}
	return 0;
}

static int uring_cancel(struct tn_io *io, struct tn_io_req *req)
{
	struct tn_uring *u = (struct tn_uring *)io;
	const void *engine = tn_ioxfer_of(req)->engine;
	struct io_uring_sqe *sqe;

	if (u->threads && engine == u->threads)
		return tn_io_cancel(u->threads, req);
	if (engine && req->file < TN_IO_FILES_MAX && engine == u->work[req->file])
		return tn_io_cancel(u->work[req->file], req);
	if (engine != u)
		return tn_fail(-ENOENT, "the request is not in flight");
	tn_ioxfer_cancel(req);
	if (u->refused)
		return 0; /* the request ends with the ring */
	sqe = io_uring_get_sqe(&u->ring);
	if (!sqe) {
		flush(u);
		if (u->refused)
			return 0;
		sqe = io_uring_get_sqe(&u->ring);
	}
	if (!sqe)
		return tn_fail(-EAGAIN, "the submission queue is full; poll first");
	io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)req, 0);
	sqe->user_data = TN_URING_TAG_CANCEL;
	flush(u);
	return 0;
}

static void uring_wake(struct tn_io *io)
{
	wake(io);
}

static int uring_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file)
{
	struct tn_uring *u = (struct tn_uring *)io;
	int err = tn_ioengine_open(io, path, flags, file);

	if (!err)
		tn_uring_register_file(u, *file, tn_iofiles_fd(&u->files, *file));
	return err;
}

static int uring_close(struct tn_io *io, uint32_t file)
{
	struct tn_uring *u = (struct tn_uring *)io;
	int err = tn_ioengine_close(io, file);

	if (err)
		return err;
	tn_io_destroy(u->work[file]);
	u->work[file] = NULL;
	tn_uring_register_file(u, file, -1);
	return 0;
}

static int uring_adopt(struct tn_io *io, const struct tn_io_lent *lent, uint32_t *file)
{
	struct tn_uring *u = (struct tn_uring *)io;
	int err = tn_ioengine_adopt(io, lent, file);

	if (!err)
		tn_uring_register_file(u, *file, tn_iofiles_fd(&u->files, *file));
	return err;
}

static void uring_destroy(struct tn_io *io)
{
	struct tn_uring *u = (struct tn_uring *)io;

	assert(u->inflight == 0);
	for (uint32_t i = 0; i < TN_IO_FILES_MAX; i++)
		tn_io_destroy(u->work[i]);
	tn_io_destroy(u->threads);
	tn_uring_teardown(u);
	tn_iofiles_fini(&u->files);
	tn_put(u->alloc, u, sizeof(*u));
}

static const struct tn_io_ops uring_ops = {
	.size = sizeof(struct tn_io_ops),
	.abi = TN_IO_ABI,
	.name = "io_uring",
	.open = uring_open,
	.close = uring_close,
	.stat = tn_ioengine_stat,
	.allocate = tn_ioengine_allocate,
	.unlink = tn_ioengine_unlink,
	.submit = uring_submit,
	.poll = uring_poll,
	.cancel = uring_cancel,
	.lend = tn_ioengine_lend,
	.adopt = uring_adopt,
	.wake = uring_wake,
	.destroy = uring_destroy,
};

int tn_ioengine_uring_create(const struct tn_ioengine_opts *opts, unsigned without, struct tn_io **out)
{
	struct tn_uring *u = tn_get(opts->alloc, sizeof(*u));
	int err;

	if (!u)
		return tn_fail(-ENOMEM, "no memory for the io_uring engine (%zu bytes)", sizeof(*u));
	u->e.io.ops = &uring_ops;
	u->e.files = &u->files;
	u->clock = opts->clock;
	u->alloc = opts->alloc;
	u->log = opts->log;
	u->depth = opts->depth;
	u->nthreads = opts->threads;
	u->end_fd = -1;
	tn_iofiles_init(&u->files, opts->log);
	tn_list_init(&u->live);
	tn_list_init(&u->again);
	tn_list_init(&u->ready);
	err = tn_uring_setup(u, without);
	if (err) {
		tn_put(u->alloc, u, sizeof(*u));
		return err;
	}
	*out = &u->e.io;
	return 0;
}
