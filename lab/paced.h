/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wrapper of the I/O contract that gives every transfer the time of a described drive (drive.h).
 *
 * The inner engine, usually on tmpfs, moves the bytes at once. Poll gives the request back when the drive would have ended it.
 * The directory that a file lies in decides its drive. All wrappers made from one struct tn_paced share it,
 * whatever their threads. Reads, writes and syncs take time; open, close, stat, allocate and unlink do not, neither as
 * calls nor as requests. Requests that fail take their time too, and a cancel reaches the inner engine only.
 */
#ifndef TN_LAB_PACED_H
#define TN_LAB_PACED_H

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/io.h"
#include "sched/mix.h"

#define TN_PACED_STRETCH_MAX 1000000u

/* Completions are given back at whole multiples of this: a waiting owner wakes up 5,000 times per second at most. */
#define TN_PACED_QUANTUM_NS 200000u

/**
 * struct tn_paced_opts
 * @mix:     the drive
 * @stretch: divides the drive's bandwidth and multiplies its latency, 1..TN_PACED_STRETCH_MAX
 * @dirs:    one drive each, kept by pointer: the strings live as long as the state; files elsewhere are not paced.
 *           None: all files lie on one drive
 * @ndirs:   at most 16
 */
struct tn_paced_opts {
	const struct tn_mix *mix;
	uint32_t stretch;
	const char *const *dirs;
	uint32_t ndirs;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};

struct tn_paced;

/* Makes the drives. Any thread. 0 and *out, or -errno. Warns if the bandwidth is more than this machine's CPUs can copy. */
int tn_paced_create(const struct tn_paced_opts *opts, struct tn_paced **out);
/* Call it after the last wrapper is destroyed. NULL is fine. */
void tn_paced_destroy(struct tn_paced *paced);

/*
 * Wraps inner, which takes depth requests; the wrapper owns inner from then on. 0 and *out, or -errno: inner is still the
 * caller's.
 */
int tn_io_paced_create(struct tn_io *inner, uint32_t depth, struct tn_paced *paced, struct tn_io **out);

#endif
