/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a scheduler, shared by its rules (sched.c), and by what writes may take of a device (sched_slack.c).
 */
#ifndef TN_SCHED_SCHED_INTERNAL_H
#define TN_SCHED_SCHED_INTERNAL_H

#include "sched/sched.h"

#define MS 1000000ull
#define SECOND 1000000000ull
#define NS_MAX (1000000 * SECOND)
#define START_BPS 500000000u /* of a device of which nothing is known */

/*
 * The rate and the latency of a device in one direction: as its mix says, else learned from what is in flight and ends.
 * The best rate counts: a device that is not asked for all it can do looks slow. The latency is that of what goes first to
 * an idle device.
 */
struct tn_meter {
	uint64_t said_bps, said_latency_ns; /* of the mix; said_bps 0: there is none */
	uint64_t since_ns, bytes;
	uint64_t best[2], best_ns; /* bytes per second: of the present period, which began at best_ns, and of the one before */
	uint64_t latency_ns;
	bool first; /* nothing ended since the device was idle */
	bool later; /* another measurement has ended since then: most of what ends soon had begun before this one */
};

/*
 * Writes of one kind that are refused: in this turn and in the one before, and since when they got none at all.
 * starving: they waited for long and have not gone unhindered since, so that they get their share of the time.
 */
struct tn_sched_waits {
	bool asked, before, starving;
	uint64_t since_ns;
};

struct tn_sched_device {
	bool free_mix;
	uint32_t loads; /* that have reads waiting for it */
	uint64_t read_bytes, write_bytes; /* in flight */
	struct tn_meter reads, writes;
	struct tn_sched_waits waits[TN_SCHED_WRITERS];
	uint64_t due_ns; /* until when asking for a write is of no use */
	/* Left of a turn of writes that were starved, whose it is, and the next one not before. */
	uint64_t starved_bytes, starved_next_ns, late_next_ns;
	enum tn_sched_writer starved;
	/* Reads are held back for starved writes of this kind since held_ns, and until then at most; 0: they are not. */
	uint64_t held_ns, held_until_ns;
	enum tn_sched_writer holder;
	/* Writes have a turn in the reads' slack: bytes that are left of it (0: they have none), and when it is over. */
	uint64_t slack_bytes, slack_until_ns;
	bool wrote; /* in this turn of the caller's */
	/* For how long the waiting reads may go on waiting; computed once per turn. */
	bool laxity_known;
	int64_t laxity_ns;
	/* A read that waits for writes in flight. */
	bool read_asked, late; /* late: given up waiting for those in flight */
	uint64_t drains_since_ns, drain_due_ns;
	uint32_t told; /* reason of the last refusal that was told, or TN_REASONS */
};

/* Transfers let go one after the other for the same reason are told as one. */
struct tn_sched_telling {
	struct tn_decision d;
	uint64_t bytes[TN_DEVICES_MAX];
	bool any;
};

struct tn_sched {
	struct tn_sched_opts o;
	struct tn_sched_device device[TN_DEVICES_MAX];
	struct tn_list loads;
	uint64_t restore_ns; /* of short restores, smoothed; 0: none seen */
	uint64_t calm_until_ns;
	uint64_t aged_next_ns;
	struct tn_sched_load *aged; /* whose turn it is, out of turn */
	uint64_t aged_bytes;
	uint64_t backlog;
	bool pressing, late;
	enum tn_reason picked;
	struct tn_sched_telling read;
};

static inline uint64_t elapsed(uint64_t now, uint64_t since)
{
	return now > since ? now - since : 0;
}

static inline uint64_t add_ns(uint64_t a, uint64_t b)
{
	return a > TN_FOREVER - b ? TN_FOREVER : a + b;
}

static inline uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ns that bytes take at this rate (0: START_BPS), at most some days: sums of it do not overflow. */
static inline uint64_t ns_of(uint64_t bytes, uint64_t bps)
{
	double ns = (double)bytes * 1e9 / (double)(bps ? bps : START_BPS);

	return ns < (double)NS_MAX ? (uint64_t)ns : NS_MAX;
}

/* bytes moved in ns at this rate; a double holds both exactly enough. */
static inline uint64_t bytes_in(uint64_t bps, uint64_t ns)
{
	return (uint64_t)((double)bps * (double)ns / 1e9);
}

/* Bytes per second; 0: nothing is known yet. */
static inline uint64_t seen_bps(const struct tn_meter *m)
{
	return max64(m->best[0], m->best[1]);
}

static inline uint64_t bps_of(const struct tn_meter *m)
{
	return m->said_bps ? m->said_bps : seen_bps(m);
}

/* The read rate that the device has just shown, if that is slower than its mix says. */
static inline uint64_t sure_read_bps(const struct tn_sched_device *d)
{
	uint64_t seen = seen_bps(&d->reads), known = bps_of(&d->reads);

	return seen && seen < known ? seen : known;
}

static inline uint64_t latency_of(const struct tn_meter *m)
{
	return m->said_bps ? m->said_latency_ns : m->latency_ns;
}

/* No load is expected yet: tn_sched_calm. */
static inline bool calm(const struct tn_sched *s, uint64_t now)
{
	return s->calm_until_ns > now;
}

/* sched_slack.c */

/* Bytes of writes that may be in flight. */
uint64_t tn_sched_quantum(const struct tn_sched *s, const struct tn_sched_device *d, uint64_t now);
/* A restore ended well after so long: short ones set the quantum. */
void tn_sched_restore_took(struct tn_sched *s, uint64_t ns);

/* Of a load whose reads cannot be put off, or of which that is not known: no time is to be taken from the load. */
#define TN_LAXITY_NONE INT64_MIN

/*
 * For how long from now on a device that reads so fast may do something else, if no other load wanted it, and every
 * layer of this load would still be there when it is needed, a quarter of a layer early. *read_ns: the time of reading
 * the rest of the load. Both count on reads that take a quarter longer than that rate says. TN_LAXITY_NONE: no table,
 * or the engine is at the very layer that is next, or may be.
 *
 * The load keeps the result of the look at all layers until its next layer or the rate changes.
 */
int64_t tn_laxity(struct tn_sched_load *load, uint64_t read_bps, uint64_t now_ns, int64_t *read_ns);

/* Reads wait: whether a write may go into their slack, and how much that is. */
bool tn_sched_into_slack(struct tn_sched *s, uint32_t device, uint64_t bytes, int64_t *slack_ns, uint64_t now);
/* Writes have a turn in the slack of reads (slack_bytes): whether a read has to wait for them. */
bool tn_sched_put_off(struct tn_sched *s, uint32_t device, uint64_t now);

#endif
