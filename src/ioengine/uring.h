/* SPDX-License-Identifier: Apache-2.0 */
/* The io_uring engine's object: uring.c moves bytes, uring_setup.c finds out what the kernel can do. */
#ifndef TN_IOENGINE_URING_H
#define TN_IOENGINE_URING_H

#include <liburing.h>

#include "ioengine/engine.h"

#define TN_URING_BUFFERS 64u         /* handles */
#define TN_URING_KERNEL_BUFFERS 1024u /* the kernel's table, one entry a GiB */
#define TN_URING_BUFFER_SHIFT 30u    /* the kernel takes at most 1 GiB a buffer */

/* Linux 6.15; newer than Debian 12's header. */
#define TN_URING_OP_READV_FIXED 60
#define TN_URING_OP_WRITEV_FIXED 61

struct tn_uring {
	struct tn_io io;
	struct io_uring ring;
	struct tn_iofiles files;
	const struct tn_clock *clock;
	const struct tn_alloc *alloc;
	uint32_t depth;
	uint32_t inflight; /* taken and not returned */
	struct tn_ioqueue again; /* to be handed to the kernel once more */
	struct tn_ioqueue ready; /* completed, to be returned */
	/* What the kernel has, see uring_setup.c. */
	bool fixed_files;
	bool vec_fixed;
	bool ext_arg;
	bool taskrun_flag; /* the kernel says in shared memory whether completions wait to be run */
	bool sparse_buffers;
	struct tn_iobuffer buffers[TN_URING_BUFFERS];
	uint32_t nbuffers;
	uint32_t nkernel_buffers;
	/* Waking. */
	int event_fd;
	bool event_armed;
	uint64_t event_value; /* target of the armed read */
	/* Written by other threads: kept off the lines above. */
	struct tn_waker waker __attribute__((aligned(64)));
};

/* The ring and its features; 0 or -errno. */
int tn_uring_setup(struct tn_uring *u, unsigned without);
void tn_uring_teardown(struct tn_uring *u);
/* A file was opened, or is about to be closed (fd -1). */
void tn_uring_register_file(struct tn_uring *u, uint32_t file, int fd);
int tn_uring_register_buffer(struct tn_io *io, void *base, size_t bytes, uint16_t *buffer);

#endif
