/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ring of an io_uring engine comes and goes. At first, what this kernel's io_uring can do: each feature is tried, and the engine
 * does without a feature that is refused. The set-up fails only if the kernel has no io_uring for this process, or is older than 5.6.
 * Later, what becomes of the engine when the kernel refuses io_uring_enter.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "ioengine/uring.h"

#define LOOK_NS 2000000u /* between two looks at the pipe, while the ring ends */

/* From the most capable to what Linux 5.6 has. */
static const struct {
	unsigned flags;
	unsigned not_with; /* TN_URING_NO_* that rule it out */
} setups[] = {
	{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
	 TN_URING_NO_DEFER | TN_URING_NO_COOP},
	{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
	 TN_URING_NO_COOP},
	{IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL, TN_URING_NO_COOP},
	{IORING_SETUP_SUBMIT_ALL, TN_URING_NO_COOP},
	{0, 0},
};

static int set_up_ring(struct tn_uring *u, unsigned without)
{
	unsigned entries = u->depth < 8 ? 8 : u->depth;
	int err = -EINVAL;

	for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++) {
		struct io_uring_params p;

		if (setups[i].not_with & without)
			continue;
		memset(&p, 0, sizeof(p));
		p.flags = setups[i].flags;
		tn_fork_lock();
		err = io_uring_queue_init_params(entries, &u->ring, &p);
		if (!err) {
			u->ring.ring_fd = u->ring.enter_ring_fd = tn_above_streams(u->ring.ring_fd);
			tn_fork_watch(&u->fork, u->ring.ring_fd);
			io_uring_ring_dontfork(&u->ring);
		}
		tn_fork_unlock();
		if (!err) {
			u->ext_arg = (p.features & IORING_FEAT_EXT_ARG) && !(without & TN_URING_NO_EXT_ARG);
			return 0;
		}
		if (err != -EINVAL)
			break;
	}
	return tn_fail(err, "io_uring with %u entries: %s (see kernel.io_uring_disabled, seccomp, RLIMIT_MEMLOCK)", entries,
		       strerror(-err));
}

static int probe_ops(struct tn_uring *u)
{
	static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC,
				     IORING_OP_ASYNC_CANCEL};
	struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
	int missing = -1;

	if (!probe)
		return tn_fail(-EOPNOTSUPP, "this kernel's io_uring cannot be probed; Linux 5.6 or later is needed");
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (!io_uring_opcode_supported(probe, needed[i]))
			missing = needed[i];
	io_uring_free_probe(probe);
	if (missing >= 0)
		return tn_fail(-EOPNOTSUPP, "this kernel's io_uring lacks operation %d", missing);
	return 0;
}

/*
 * The table of files, and behind them the far end of a pipe. Only the ring has that end. So when the near end hangs up, the
 * ring and all its requests are gone. That works even where the kernel refuses every call.
 */
static int register_file_table(struct tn_uring *u)
{
	int files[TN_IO_FILES_MAX + 1], ends[2], err;

	if (pipe2(ends, O_CLOEXEC))
		return tn_fail(-errno, "pipe: %s", strerror(errno));
	memset(files, 0xff, sizeof(files));
	files[TN_IO_FILES_MAX] = ends[1];
	err = io_uring_register_files(&u->ring, files, TN_IO_FILES_MAX + 1);
	close(ends[1]);
	if (err) {
		close(ends[0]);
		return tn_fail(err, "io_uring: %u files cannot be registered: %s (see seccomp, RLIMIT_NOFILE)",
			       TN_IO_FILES_MAX + 1, strerror(-err));
	}
	u->end_fd = tn_above_streams(ends[0]);
	return u->end_fd < 0 ? tn_fail(-errno, "pipe: %s", strerror(errno)) : 0;
}

bool tn_uring_is_refusal(int err)
{
	return err != -EINTR && err != -EAGAIN && err != -EBUSY && err != -ENOMEM && err != -ETIME;
}

/* A sandbox may allow to make a ring, but not to use it. */
static int try_enter(struct tn_uring *u)
{
	int err = io_uring_get_events(&u->ring);

	return err < 0 && tn_uring_is_refusal(err) ? tn_fail(err, "io_uring_enter: %s (see seccomp)", strerror(-err)) : 0;
}

static void close_ring(struct tn_uring *u)
{
	tn_fork_unwatch(&u->fork);
	io_uring_queue_exit(&u->ring);
}

int tn_uring_setup(struct tn_uring *u, unsigned without)
{
	int err;

	u->event_fd = tn_above_streams(eventfd(0, EFD_CLOEXEC));
	if (u->event_fd < 0)
		return tn_fail(-errno, "eventfd: %s", strerror(errno));
	err = set_up_ring(u, without);
	if (err) {
		close(u->event_fd);
		return err;
	}
	err = try_enter(u);
	if (!err)
		err = probe_ops(u);
	if (!err)
		err = register_file_table(u);
	if (err) {
		close_ring(u);
		close(u->event_fd);
		return err;
	}
	/*
	 * The ring's own descriptor is not registered: where io_uring_register is refused later, that could not be
	 * undone.
	 */
	u->fixed_files = !(without & TN_URING_NO_FILES);
	return 0;
}

void tn_uring_teardown(struct tn_uring *u)
{
	if (!u->refused) {
		/* The kernel frees the ring in the background; it lets go of the files now. */
		io_uring_unregister_files(&u->ring);
		close_ring(u);
	}
	if (u->end_fd >= 0)
		close(u->end_fd);
	close(u->event_fd);
}

void tn_uring_register_file(struct tn_uring *u, uint32_t file, int fd)
{
	if (!u->fixed_files)
		return;
	if (io_uring_register_files_update(&u->ring, file, &fd, 1) == 1)
		return;
	/* The table stays, because the end of the pipe is in it. Its other entries keep their files open, unused. */
	u->fixed_files = false;
}

/* ---- refusal -------------------------------------------------------------------------------------- */

/*
 * A sandbox that began after the engine was created may refuse io_uring_enter: then threads take over (posix.c), on the same files and
 * with the same waker, and nobody above notices.
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

/* The engine that took over; NULL if no thread can be started now. */
static struct tn_io *threads_of(struct tn_uring *u)
{
	const struct tn_ioengine_opts o = {.kind = TN_IOENGINE_POSIX, .depth = u->depth, .threads = u->nthreads,
					   .alloc = u->alloc, .clock = u->clock, .log = u->log};
	const struct tn_ioposix_parent parent = {.files = &u->files, .waker = &u->waker};
	struct tn_io *io;

	if (!u->threads && tn_ioengine_posix_create_for(&o, &parent, &io) == 0)
		__atomic_store_n(&u->threads, io, __ATOMIC_RELEASE);
	return u->threads;
}

/* For a request that the kernel does not have, or has no longer. */
static void hand_over(struct tn_uring *u, struct tn_io_req *req)
{
	struct tn_io *threads = threads_of(u);

	if (tn_ioxfer_is_cancelled(req))
		tn_uring_finish(u, req, -ECANCELED);
	else if (!threads)
		tn_uring_finish(u, req, tn_ioxfer_failed(&u->files, req, -EIO));
	else
		tn_ioengine_posix_take(threads, req);
}

/* The ring is gone, and with it the results of the requests that the kernel had. */
static void ring_has_ended(struct tn_uring *u)
{
	struct tn_io_req *req;

	close(u->end_fd);
	u->end_fd = -1;
	while ((req = tn_ioqueue_pop(&u->live)))
		if (req->op == TN_IO_SYNC && !tn_ioxfer_is_cancelled(req))
			tn_uring_finish(u, req, tn_ioxfer_failed(&u->files, req, -EIO));
		else
			hand_over(u, req);
}

void tn_uring_fall_back(struct tn_uring *u, int err)
{
	struct io_uring_sq *sq = &u->ring.sq;
	struct tn_io_req *req;

	u->refused = true;
	u->fixed_files = false;
	tn_log(u->log, TN_LOG_WARN, "io_uring_enter: %s; %u requests are carried over, and %u threads used from now on",
	       strerror(-err), u->inflight, u->nthreads);
	/* The kernel takes entries in order and says in khead how many it took. */
	for (unsigned i = *sq->khead; i != sq->sqe_tail; i++) {
		uint64_t data = sq->sqes[i & *sq->kring_mask].user_data;

		if (data != TN_URING_TAG_WAKE && data != TN_URING_TAG_CANCEL)
			hand_over(u, (struct tn_io_req *)(uintptr_t)data);
	}
	while ((req = tn_ioqueue_pop(&u->again)))
		hand_over(u, req);
	close_ring(u);
	u->event_armed = false;
	if (tn_list_empty(&u->live))
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
		int err = tn_ioxfer_begin(&u->files, reqs[k], u);

		tn_uring_finish(u, reqs[k], err ? err : -EIO);
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
	if (!tn_list_empty(&u->ready))
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
