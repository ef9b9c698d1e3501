/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wrapper of the I/O contract that breaks things on purpose, for tests of what stands on an engine. No part of
 * libtenuto.
 */
#ifndef TN_IOENGINE_FAULTY_RIG_H
#define TN_IOENGINE_FAULTY_RIG_H

#include "base/clock.h"
#include "io/io.h"

/* What the faulty wrapper does to the n-th matching request; actions are tried in order. */
enum tn_fault_kind {
	TN_FAULT_EIO, /* not performed, completes with -EIO */
	TN_FAULT_ENOSPC, /* writes: not performed, -ENOSPC */
	TN_FAULT_SHORT, /* performed in part, completes with -EIO and transferred < length */
	TN_FAULT_LATE, /* performed, returned by poll only delay_ns later */
	TN_FAULT_HANG, /* performed, returned only after cancel or tn_io_faulty_release */
	TN_FAULT_CORRUPT, /* performed, then one byte of the memory read is flipped; status 0 */
};

struct tn_fault {
	uint32_t kind;
	uint32_t op; /* enum tn_io_op it applies to */
	uint64_t from; /* first affected request of that op, counted from 0 */
	uint64_t count; /* how many; UINT64_MAX: all from there */
	uint32_t percent; /* chance each, 0 means 100 */
	uint64_t delay_ns;
};

/**
 * struct tn_io_faulty_opts
 * @faults:      what to do, copied (at most 16)
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
/* Replaces the faults of a running wrapper; counters start again. Owner thread. */
int tn_io_faulty_set(struct tn_io *faulty, const struct tn_fault *faults, uint32_t fault_count);
/* Lets hanging requests complete, also those that the inner engine has not done yet. Owner thread. */
void tn_io_faulty_release(struct tn_io *faulty);

#endif
