/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: what may go to a device now, and what waits.
 *
 * Reads come strictly first: of the loads that wait, the highest priority, then the earliest need. A write
 * goes when no read waits for its device, and in quanta bounded in device time, so that a read that arrives finds the
 * device free soon; a read waits for the quantum in flight instead of mixing with it - unless the device's measured
 * mix says that mixing costs nothing. Writes that wait for too long get a small share all the same.
 *
 * Pure: time comes in, decisions go out; nothing is read, slept or allocated after create. One thread. The caller
 * asks before each transfer (tn_sched_read, tn_sched_write), says when it ended, and asks again whenever something
 * ended or at tn_sched_due. It must try what it was refused in every turn: what was not asked for since tn_sched_turn
 * does not wait.
 */
#ifndef TN_SCHED_SCHED_H
#define TN_SCHED_SCHED_H

#include <stdbool.h>
#include <tenuto/decision.h>
#include <tenuto/types.h>

#include "base/alloc.h"
#include "base/list.h"
#include "sched/mix.h"

struct tn_sched;

struct tn_sched_opts {
	uint32_t devices;
	const struct tn_alloc *alloc;
	tn_explain_fn explain; /* or NULL */
	void *explain_arg;
};

int tn_sched_create(const struct tn_sched_opts *opts, struct tn_sched **out);
void tn_sched_destroy(struct tn_sched *s);

/* What was measured of a device; version 0: nothing, so rates are learned from what ends and mixing is not free. */
void tn_sched_device(struct tn_sched *s, uint32_t device, const struct tn_mix *mix);
/* No load is expected before this time: writes may go in larger quanta. Ends when one comes all the same. */
void tn_sched_calm(struct tn_sched *s, uint64_t until_ns);
/* A turn of the owner begins: forgets what nobody asked for again. */
void tn_sched_turn(struct tn_sched *s, uint64_t now_ns);
/* When to come back if nothing ends before, later than the last turn; TN_FOREVER if only an end changes anything. */
uint64_t tn_sched_due(const struct tn_sched *s);
/* Bytes of writes that wait, and how many may wait (0: any press). Writes that press go into the slack of loads. */
void tn_sched_backlog(struct tn_sched *s, uint64_t bytes, uint64_t limit);
/* Offloads are late: they go before reads, for at most half of the time, until they are late no more. */
void tn_sched_late(struct tn_sched *s, bool late);
/* Bytes that all devices write, or read, in a second, measured or learned; 0: not known yet. */
uint64_t tn_sched_write_bps(const struct tn_sched *s);
uint64_t tn_sched_read_bps(const struct tn_sched *s);

/* What sched_slack.c keeps of a load. */
struct tn_sched_laxity {
	bool known;
	uint32_t next_layer;
	int64_t layer_ns, least_ns;
	/* Where the engine was seen last, and by what part of the table's times it was faster than the table says. */
	uint32_t seen_layer;
	uint64_t seen_ns;
	double faster;
};

/* One load, in the caller's memory. */
struct tn_sched_load {
	/* Set by the caller before tn_sched_load_add. */
	uint64_t id;
	int32_t priority;
	uint32_t layers;
	uint64_t start_ns;	   /* compute of layer 0 may begin then */
	uint64_t deadline_ns;	   /* of the whole load; 0: none */
	const uint64_t *before_ns; /* by layer: compute of all layers before it; NULL: not known. Must stay */
	uint64_t layer_bytes; /* of a layer, on the device that has most of it; 0: not known */
	uint32_t together;    /* layers that are read at once, from next_layer on; 0: one */
	/* The engine: it computes, or waits for, this layer since then. Kept up to date by the caller. */
	uint32_t at_layer;
	uint64_t at_ns;
	uint32_t next_layer; /* the first one with reads that were not let go */

	/* The scheduler's. */
	struct tn_list link;
	uint32_t devices; /* one bit per device: reads wait for the device */
	uint64_t served_ns, begin_ns;
	bool passed; /* in this turn: had its chance */
	struct tn_sched_laxity laxity;
};

void tn_sched_load_add(struct tn_sched *s, struct tn_sched_load *load, uint64_t now_ns);
/* Which devices the reads that were not let go yet are for; 0 when all of them went. */
void tn_sched_load_waits(struct tn_sched *s, struct tn_sched_load *load, uint32_t devices);
/* The load is over, one way or the other; @done: all its reads ended well, so that how long it took tells something. */
void tn_sched_load_del(struct tn_sched *s, struct tn_sched_load *load, uint64_t now_ns, bool done);
/* When the engine needs a layer. */
uint64_t tn_sched_need(const struct tn_sched_load *load, uint32_t layer);

/*
 * The load whose turn it is, of those that wait and were not picked since tn_sched_turn or tn_sched_again; NULL when
 * there is none. The caller issues some of its reads, as many as it likes up to a quantum of its own.
 */
struct tn_sched_load *tn_sched_pick(struct tn_sched *s, uint64_t now_ns);
/* All loads may be picked again: some reads went, and more may go. */
void tn_sched_again(struct tn_sched *s);

/*
 * Bytes of reads that tn_sched_read would let go at once: `least` or more, or 0. For callers that gather many small
 * reads before they ask. *later: enough is in flight to keep the device busy for a while, so it is not worth a turn to
 * ask now.
 */
uint64_t tn_sched_sendable(struct tn_sched *s, uint32_t device, uint64_t least, uint64_t now_ns, bool *later);
/* Whether reads of a layer may go; counted as in flight if so, until tn_sched_read_done. */
bool tn_sched_read(struct tn_sched *s, struct tn_sched_load *load, uint32_t layer, uint32_t device, uint64_t bytes,
		   uint64_t now_ns);
void tn_sched_read_done(struct tn_sched *s, uint32_t device, uint64_t bytes, uint64_t now_ns);
/* Bytes that were let go were not read: nothing is learned of the device. */
void tn_sched_read_undo(struct tn_sched *s, uint32_t device, uint64_t bytes);
/*
 * The same for writes. Each kind of writers waits for itself: a write of one kind does not make the other wait anew.
 * Saves and offloads alternate, transfer by transfer; the store's own writes come after both until they have waited for
 * long.
 */
enum tn_sched_writer { TN_SCHED_SAVES, TN_SCHED_OFFLOADS, TN_SCHED_STORE, TN_SCHED_WRITERS };
bool tn_sched_write(struct tn_sched *s, enum tn_sched_writer who, uint32_t device, uint64_t bytes, uint64_t now_ns);
/* Bytes that one write should have at most: half a quantum, so that one write is served while the next is on its way. */
uint64_t tn_sched_write_most(const struct tn_sched *s, uint32_t device, uint64_t now_ns);
/* A kind that waited cannot ask in this turn, because it waits for something else, too: the kind goes on waiting. */
void tn_sched_write_waits(struct tn_sched *s, enum tn_sched_writer who);
void tn_sched_write_done(struct tn_sched *s, uint32_t device, uint64_t bytes, uint64_t now_ns);
/* Bytes that were let go were not written: nothing is learned of the device. */
void tn_sched_write_undo(struct tn_sched *s, uint32_t device, uint64_t bytes);
/* A save was refused for the backlog: only told. */
void tn_sched_refused(struct tn_sched *s, uint64_t bytes, uint64_t now_ns);

#endif
