/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of the I/O contract (io/io.h). */
#ifndef TN_IOENGINE_IOENGINE_H
#define TN_IOENGINE_IOENGINE_H

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/io.h"

enum tn_ioengine_kind {
	TN_IOENGINE_AUTO, /* io_uring, or POSIX threads where the kernel forbids it */
	TN_IOENGINE_URING,
	TN_IOENGINE_POSIX,
};

/**
 * struct tn_ioengine_opts
 * @kind:    enum tn_ioengine_kind
 * @depth:   most requests in flight; a power of two, 1..4096; 0: 256
 * @threads: threads of the POSIX engine, 1..64; 0: 8
 */
struct tn_ioengine_opts {
	uint32_t kind;
	uint32_t depth;
	uint32_t threads;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};

/* 0 and *out, or -errno with detail. The engine does without io_uring features that the kernel lacks. */
int tn_ioengine_create(const struct tn_ioengine_opts *opts, struct tn_io **out);

#endif
