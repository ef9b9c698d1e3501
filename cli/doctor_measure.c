/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor --measure: does a drive read faster from starts that are multiples of 16 KiB than from 4 KiB?
 * Random reads of 32 KiB at depth 16 on a file of 256 MiB, in the order A B B A, half a second each.
 *
 * It is a hint for the layout of slots. The benchmark is `tenuto bench store`.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <liburing.h>

#include "cli.h"
#include "doctor.h"

#define FILE_BYTES (256u << 20)
#define CHUNK (4u << 20)
#define READ_BYTES (32u << 10)
#define GRID (16u << 10)
#define SHIFT 4096u
#define DEPTH 16u
#define RUN_NS 500000000u

struct run {
	struct io_uring ring;
	int fd;
	char *mem;
	uint64_t random;
};

static uint64_t next_random(struct run *r)
{
	r->random ^= r->random << 13; /* xorshift64 */
	r->random ^= r->random >> 7;
	r->random ^= r->random << 17;
	return r->random;
}

static int make_file(struct run *r, const char *dir)
{
	char own[4096], path[4096 + 8];
	int err = cli_temp_dir(dir, own, sizeof(own));

	if (err)
		return err;
	snprintf(path, sizeof(path), "%s/read", own);
	r->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	err = r->fd < 0 ? -errno : 0;
	cli_remove_tree(own);
	if (err)
		return err;
	if (fcntl(r->fd, F_SETFL, O_DIRECT))
		return -EOPNOTSUPP;
	for (uint64_t at = 0; at < FILE_BYTES; at += CHUNK) {
		for (size_t i = 0; i < CHUNK / 8; i++)
			((uint64_t *)(void *)r->mem)[i] = next_random(r); /* a drive may compress, or not store zeroes */
		ssize_t n = pwrite(r->fd, r->mem, CHUNK, (off_t)at);

		if (n < 0)
			return -errno;
		if (n != (ssize_t)CHUNK)
			return -ENOSPC;
	}
	return fdatasync(r->fd) ? -errno : 0;
}

static void issue(struct run *r, unsigned slot, unsigned shift)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
	uint64_t at = next_random(r) % (FILE_BYTES / GRID - READ_BYTES / GRID - 1) * GRID + shift;

	io_uring_prep_read(sqe, r->fd, r->mem + (size_t)slot * READ_BYTES, READ_BYTES, at);
	io_uring_sqe_set_data64(sqe, slot);
}

/* One run of half a second; adds its bytes and seconds. */
static int read_for_a_while(struct run *r, unsigned shift, double *bytes, double *seconds)
{
	uint64_t start = cli_now_ns(), now = start;
	unsigned flying = DEPTH;
	int err = 0;

	for (unsigned i = 0; i < DEPTH; i++)
		issue(r, i, shift);
	while (flying) {
		struct io_uring_cqe *cqe;
		uint64_t slot;

		io_uring_submit(&r->ring);
		if (io_uring_wait_cqe(&r->ring, &cqe))
			continue; /* a signal */
		slot = cqe->user_data;
		if (cqe->res != (int)READ_BYTES)
			err = cqe->res < 0 ? cqe->res : -EIO;
		io_uring_cqe_seen(&r->ring, cqe);
		*bytes += READ_BYTES;
		now = cli_now_ns();
		if (now - start < RUN_NS && !err)
			issue(r, (unsigned)slot, shift);
		else
			flying--;
	}
	*seconds += (double)(now - start) * 1e-9;
	return err;
}

static int measure(struct run *r, struct doctor_measure *m)
{
	static const unsigned shifts[] = {0, SHIFT, SHIFT, 0, 0, SHIFT, SHIFT, 0};
	double bytes[2] = {0, 0}, seconds[2] = {0, 0};

	for (size_t i = 0; i < sizeof(shifts) / sizeof(shifts[0]); i++) {
		unsigned which = shifts[i] != 0;
		int err = read_for_a_while(r, shifts[i], &bytes[which], &seconds[which]);

		if (err)
			return err;
	}
	m->read_bytes = READ_BYTES;
	m->aligned_gbps = bytes[0] / seconds[0] * 1e-9;
	m->shifted_gbps = bytes[1] / seconds[1] * 1e-9;
	return 0;
}

int doctor_measure(const char *dir, struct doctor_measure *m, const char **why)
{
	struct run r = {.fd = -1, .random = 88172645463325252u};
	int err = io_uring_queue_init(DEPTH, &r.ring, 0);

	*why = "io_uring";
	if (err)
		return err;
	*why = "memory";
	r.mem = aligned_alloc(4096, CHUNK);
	err = r.mem ? 0 : -ENOMEM;
	if (!err) {
		*why = "a temporary file of 256 MiB with O_DIRECT";
		err = make_file(&r, dir);
	}
	if (!err) {
		*why = "reading";
		err = measure(&r, m);
	}
	if (r.fd >= 0)
		close(r.fd);
	free(r.mem);
	io_uring_queue_exit(&r.ring);
	return err;
}
