/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engines of the I/O contract (io/io.h) and the wrapper that breaks things on purpose.
 */
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

/* What the faulty wrapper does to the n-th matching request; actions are tried in order. */
enum tn_fault_kind {
	TN_FAULT_EIO, /* not performed, completes with -EIO */
	TN_FAULT_ENOSPC, /* writes: not performed, -ENOSPC */
	TN_FAULT_SHORT, /* performed in part, completes with -EIO and transferred < length */
	TN_FAULT_LATE, /* performed; poll returns it delay_ns later */
	TN_FAULT_HANG, /* performed; poll returns it only after cancel or tn_io_faulty_release */
	TN_FAULT_CORRUPT, /* performed, then one byte of the memory read is flipped; status 0 */
};

struct tn_fault {
	uint32_t kind;
	uint32_t op; /* enum tn_io_op of the requests that are affected */
	uint64_t from; /* first affected request of that op, counted from 0 */
	uint64_t count; /* number of affected requests; UINT64_MAX: all from `from` on */
	uint32_t percent; /* chance of each to be affected; 0 means 100 */
	uint64_t delay_ns;
};

/**
 * struct tn_io_faulty_opts
 * @faults:      what to break, copied (at most 16)
 * @reorder:     return completions in random order
 * @submit_eagain_percent: chance that submit takes nothing
 */
struct tn_io_faulty_opts {
	const struct tn_fault *faults;
	uint32_t fault_count;
	bool reorder;
	uint32_t submit_eagain_percent;
	uint64_t seed;
	const struct tn_clock *clock;
};

/* Wraps inner and owns it from then on. */
int tn_io_faulty_create(struct tn_io *inner, const struct tn_io_faulty_opts *opts, struct tn_io **out);
/* Replaces the faults of a running wrapper; its counters begin again at 0. Owner thread. */
int tn_io_faulty_set(struct tn_io *faulty, const struct tn_fault *faults, uint32_t fault_count);
/* Lets hanging requests complete. Owner thread. */
void tn_io_faulty_release(struct tn_io *faulty);

#endif
