/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timing of a described drive (struct tn_mix), as a fluid: when would these transfers end on it? Pure: the
 * caller says what time it is; the paced engine (paced.c) does the rest.
 *
 * Reads are served in the order of their arrival, and so are writes. Or, if the mix says so, they are served side by
 * side: all reads in service equally fast, and all writes equally fast. While there are only reads they get read_bps;
 * while there are only writes they get write_bps. While there are both they get mixed_bps together, divided by the
 * number of each, and neither kind gets more than it would have alone. A served transfer ends one latency later. All
 * bandwidths are divided, and all latencies multiplied, by one stretch.
 */
#ifndef TN_LAB_DRIVE_H
#define TN_LAB_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/mix.h"

/* One transfer; the caller's memory, from enter until due_ns is set. */
struct tn_drive_job {
	struct tn_drive_job *next;
	uint64_t mark; /* bytes that its queue had taken, this transfer included */
	uint64_t due_ns; /* when the transfer ends; 0: not known yet */
	double left; /* bytes still to serve; side by side: bytes that the transfer came with */
	double end;  /* side by side: tn_drive_queue.each at the moment when the transfer will have been served */
	bool write;
};

struct tn_drive_queue {
	struct tn_drive_job *head, **tail;
	uint64_t entered; /* bytes, since init */
	uint32_t count;
	double bytes_per_ns; /* alone */
	double each; /* side by side: bytes that each transfer was served since the queue was empty */
	uint64_t latency_ns;
};

struct tn_drive {
	struct tn_drive_queue q[2]; /* reads, writes */
	double mixed_bytes_per_ns;
	bool share; /* side by side */
	uint64_t now_ns;
};

/* stretch is 1 or more. The drive must not move: its queues point into it. */
void tn_drive_init(struct tn_drive *d, const struct tn_mix *mix, uint32_t stretch);

/* Time passes; sets due_ns of the transfers served until now. A time before the last one counts as the last one. */
void tn_drive_advance(struct tn_drive *d, uint64_t now_ns);

/* A transfer comes, at the time of the last advance. A transfer of 0 bytes waits for those before it, no more. */
void tn_drive_enter(struct tn_drive *d, struct tn_drive_job *job, bool write, uint32_t bytes);

/* A time before which the transfer cannot end, whatever comes later; exact once the transfer is served. */
uint64_t tn_drive_soonest(const struct tn_drive *d, const struct tn_drive_job *job);

#endif
