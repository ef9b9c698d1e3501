/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler against simulated devices: a clock that the test owns, transfers that end when the device says so.
 */
#ifndef TN_SCHED_SCHED_RIG_H
#define TN_SCHED_SCHED_RIG_H

#include "sched/sched.h"

#include "base/rng.h"

#define MS 1000000ull
#define CHUNK (256u << 10)
#define LOADS 8u

/* A pair of drives, 16 times as slow. */
extern const struct tn_mix rig_ps1010;

struct transfer {
	bool write;
	uint32_t device, load;
	uint64_t end_ns;
};

/* Serves in turn, at the mixed rate what begins among others of the other kind; a latency behind it. */
struct sim {
	struct tn_sched *s;
	struct tn_rng rng;
	uint64_t now;
	double read_bps[2], write_bps[2], slowness; /* slowness: of everything; 1 is as described */
	uint64_t free_at[2];
	struct transfer t[4096];
	uint32_t n;
	uint32_t reads[2], writes[2]; /* in flight */
	uint32_t overlaps; /* transfers let go while the other kind was in flight */
	struct tn_sched_load load[LOADS];
	uint32_t left[LOADS]; /* chunks not let go */
	uint32_t flying[LOADS];
	uint64_t done_ns[LOADS];
	uint64_t written;
	uint32_t told[4][TN_REASONS];
	struct tn_decision last[4]; /* by what was chosen */
};

struct sim *rig_create(uint32_t devices, const struct tn_mix *mix);
void rig_destroy(struct sim *m);
void rig_put(struct sim *m, bool write, uint32_t device, uint32_t load);
void rig_load_begin(struct sim *m, uint32_t i, uint32_t chunks, int32_t priority, uint32_t devices);
/* One turn, with writes always waiting for the devices given as bits. True if anything was let go. */
bool rig_turn(struct sim *m, uint32_t writes);
void rig_end_one(struct sim *m, uint32_t k);
/* Time goes on to the next end, or to the scheduler's due, or to `until`. */
void rig_advance(struct sim *m, uint64_t until);
void rig_run_until(struct sim *m, uint64_t until, uint32_t writes);

#endif
