/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this kernel's io_uring can do. Each feature is tried, and the engine does without a feature that is refused.
 * The set-up fails only if the kernel has no io_uring for this process, or is older than 5.6.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "ioengine/uring.h"

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

static int probe_ops(struct tn_uring *u, unsigned without)
{
	static const int needed[] = {IORING_OP_READ,      IORING_OP_WRITE,	IORING_OP_READV, IORING_OP_WRITEV,
				     IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC, IORING_OP_ASYNC_CANCEL};
	struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
	int missing = -1;

	if (!probe)
		return tn_fail(-EOPNOTSUPP, "this kernel's io_uring cannot be probed; Linux 5.6 or later is needed");
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (!io_uring_opcode_supported(probe, needed[i]))
			missing = needed[i];
	u->vec_fixed = !(without & TN_URING_NO_VEC_FIXED) && io_uring_opcode_supported(probe, TN_URING_OP_READV_FIXED) &&
		       io_uring_opcode_supported(probe, TN_URING_OP_WRITEV_FIXED);
	io_uring_free_probe(probe);
	if (missing >= 0)
		return tn_fail(-EOPNOTSUPP, "this kernel's io_uring lacks operation %d", missing);
	return 0;
}

/*
 * The table of files, and behind them the far end of a pipe. Only the ring has that end. So when the near end hangs up, the
 * ring and all its requests are gone. That works even where the kernel refuses every call (uring_refused.c).
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
	u->end_fd = ends[0];
	return 0;
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

void tn_uring_close_ring(struct tn_uring *u)
{
	tn_fork_unwatch(&u->fork);
	io_uring_queue_exit(&u->ring);
}

int tn_uring_setup(struct tn_uring *u, unsigned without)
{
	int err;

	u->event_fd = eventfd(0, EFD_CLOEXEC);
	if (u->event_fd < 0)
		return tn_fail(-errno, "eventfd: %s", strerror(errno));
	err = set_up_ring(u, without);
	if (err) {
		close(u->event_fd);
		return err;
	}
	err = try_enter(u);
	if (!err)
		err = probe_ops(u, without);
	if (!err)
		err = register_file_table(u);
	if (err) {
		tn_uring_close_ring(u);
		close(u->event_fd);
		return err;
	}
	/*
	 * The ring's own descriptor is not registered: where io_uring_register is refused later, that could not be
	 * undone.
	 */
	u->fixed_files = !(without & TN_URING_NO_FILES);
	if (!(without & TN_URING_NO_BUFFERS)) {
		u->sparse_buffers = !io_uring_register_buffers_sparse(&u->ring, TN_URING_KERNEL_BUFFERS);
		u->nkernel_buffers = 0;
	} else {
		u->nkernel_buffers = TN_URING_KERNEL_BUFFERS; /* full */
	}
	return 0;
}

void tn_uring_teardown(struct tn_uring *u)
{
	if (!u->refused) {
		/* The kernel frees the ring in the background; memory that is charged to the user is given back now. */
		if (u->nbuffers || u->sparse_buffers)
			io_uring_unregister_buffers(&u->ring);
		io_uring_unregister_files(&u->ring);
		tn_uring_close_ring(u);
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

/* Registers n parts of 1 GiB: in the kernel's table, or as the whole table where the kernel cannot add to one. */
static int register_parts(struct tn_uring *u, const struct iovec *parts, uint32_t n)
{
	int err;

	if (u->sparse_buffers) {
		err = io_uring_register_buffers_update_tag(&u->ring, u->nkernel_buffers, parts, NULL, n);
		return err == (int)n ? 0 : err < 0 ? err : -ENOMEM;
	}
	if (u->nkernel_buffers)
		return -EOPNOTSUPP;
	return io_uring_register_buffers(&u->ring, parts, n);
}

int tn_uring_register_buffer(struct tn_io *io, void *base, size_t bytes, uint16_t *buffer)
{
	const size_t part = (size_t)1 << TN_URING_BUFFER_SHIFT;
	struct tn_uring *u = (struct tn_uring *)io;
	struct iovec parts[TN_URING_BUFFERS];
	uint32_t n = 0;
	int err;

	if (!base || bytes == 0)
		return tn_fail(-EINVAL, "no memory to register");
	if (u->refused)
		return tn_fail(-EOPNOTSUPP, "the kernel refuses io_uring; unregistered memory works as well");
	if (u->nbuffers == TN_URING_BUFFERS || bytes > part * TN_URING_BUFFERS ||
	    u->nkernel_buffers + (bytes + part - 1) / part > TN_URING_KERNEL_BUFFERS)
		return tn_fail(-EOPNOTSUPP, "%zu bytes more cannot be registered; unregistered memory works as well", bytes);
	for (size_t at = 0; at < bytes; at += part)
		parts[n++] = (struct iovec){(char *)base + at, bytes - at < part ? bytes - at : part};
	err = register_parts(u, parts, n);
	if (err)
		return tn_fail(err, "%zu bytes cannot be registered: %s (see ulimit -l); unregistered memory works as well", bytes,
			       strerror(-err));
	u->buffers[u->nbuffers] = (struct tn_iobuffer){(uintptr_t)base, bytes, u->nkernel_buffers};
	u->nkernel_buffers += n;
	*buffer = (uint16_t)u->nbuffers++;
	return 0;
}
