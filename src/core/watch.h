/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the core tells of blocks to the outside - events and snapshots -, and when blocks expire (watch.c). Owner thread, but for what says
 * otherwise.
 */
#ifndef TN_CORE_WATCH_H
#define TN_CORE_WATCH_H

#include <stdbool.h>
#include <tenuto/events.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "block/block.h"

struct tn_blocks;
struct tn_events;
struct tn_row;
struct tn_watch;

struct tn_watch_opts {
	const struct tn_row *row;
	struct tn_registry *registry;
	struct tn_space *const *spaces;
	struct tn_events *events;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	uint32_t max_blocks;
};
int tn_watch_create(const struct tn_watch_opts *opts, struct tn_watch **out);
void tn_watch_destroy(struct tn_watch *w);
/* Tells fn of all blocks. */
struct tn_watch_snapshot {
	void (*fn)(void *arg, const struct tn_block_event *event);
	void *arg;
	uint64_t cursor; /* out: events from here on are newer */
	long count;	 /* out */
};
void tn_watch_snapshot(struct tn_watch *w, struct tn_watch_snapshot *s);
/*
 * Events of some spaces are raised in a ring of their own, too, so that their numbers tell nothing of other spaces. The
 * spaces are shared bits, by number; they also name the ring when it is given up. -EAGAIN: as many rings as there can be sessions.
 */
int tn_watch_follow(struct tn_watch *w, struct tn_events *ring, const uint64_t *spaces);
void tn_watch_unfollow(struct tn_watch *w, const uint64_t *spaces);
/* A part of what a snapshot of those spaces says: blocks from at on, until out is full or many were looked at. */
struct tn_watch_part {
	const uint64_t *spaces; /* NULL: all */
	tn_block at; /* the last one that was looked at, TN_BLOCK_NONE before the first; out: TN_BLOCK_NONE if that was all */
	struct tn_block_event *out;
	uint32_t n, max; /* n: out; max: TN_TIERS_MAX at least */
};
void tn_watch_part(struct tn_watch *w, struct tn_watch_part *p);
/* Says of a block that is there, in which tiers it lies: raises STORED for each. */
void tn_watch_repeat(struct tn_watch *w, tn_block b);
void tn_watch_raise(struct tn_watch *w, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind);
void tn_watch_expire_at(struct tn_watch *w, tn_block b, uint64_t ttl_ns);
/*
 * A block that is there was saved again: the longer of both times to live counts. True: it had one, and has none any more, so its record
 * on disk, if it has one, must be written anew: blocks with a time to live are not recovered.
 */
bool tn_watch_extend(struct tn_watch *w, tn_block b, uint64_t ttl_ns);
/* Whether the block has a time to live; and whether that is over, which any thread may ask. */
bool tn_watch_expires(const struct tn_watch *w, tn_block b);
bool tn_watch_expired(const struct tn_watch *w, tn_block b);
/* Gives expired blocks to @expire, some at a time; returns when to come back. */
uint64_t tn_watch_step(struct tn_watch *w, uint64_t now_ns, void (*expire)(struct tn_blocks *bl, tn_block b), struct tn_blocks *bl);

#endif
