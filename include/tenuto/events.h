/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store and remove events of the cache's blocks, per tier, for whoever keeps an index of what it holds.
 *
 * The cache keeps the last 65,536 of them. A reader has a cursor of its own; one that was away for too long is told
 * so, takes a snapshot and goes on from there.
 *
 * A process that has attached (session.h) reads of the spaces that it has open, and only of those. From its first call on the cache keeps
 * the last 65,536 of these for it, with numbers of their own: what happens in other spaces moves nothing.
 */
#ifndef TENUTO_EVENTS_H
#define TENUTO_EVENTS_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_space;

enum tn_block_event_kind { TN_EVENT_STORED, TN_EVENT_REMOVED };

/**
 * struct tn_block_event - a block arrived in a tier, or left it
 * @sequence: number of the event, from 1 on
 * @time_ns:  CLOCK_MONOTONIC
 * @key:      the block
 * @parent:   the block before it; zero: first of its chain, or not known any more
 * @bytes:    size of the block
 * @depth:    blocks before it
 * @space:    tn_space_index of its space
 * @kind:     enum tn_block_event_kind
 * @tier:     enum tn_tier
 */
struct tn_block_event {
	uint64_t sequence;
	uint64_t time_ns;
	struct tn_key key;
	struct tn_key parent;
	uint64_t bytes;
	uint32_t depth;
	uint16_t space;
	uint8_t kind;
	uint8_t tier;
};

/** tn_space_index - the number by which events name a space; any thread */
TN_API uint16_t tn_space_index(const struct tn_space *space);

/**
 * tn_cache_events - events from *cursor on
 * @cursor: 0 on the first call: begins with the next event. Moves behind the events returned
 *
 * Any thread; waits for nothing.
 *
 * Return: how many (0: none yet), -ESTALE if some are gone already (*cursor is the next event's number then: take a
 * snapshot), or -EINVAL. In an attached process also -ENOMEM (the owner has none to keep its events) and -ESHUTDOWN.
 */
TN_API long tn_cache_events(struct tn_cache *cache, uint64_t *cursor, struct tn_block_event *out, size_t max);

/**
 * tn_cache_snapshot - every block that the cache holds now, as one STORED event for each tier it lies in
 * @fn:     called on the cache's own thread, which waits for it: keep it short and do not call Tenuto from it. In an attached process
 *          called on the caller's thread
 * @cursor: out: tn_cache_events goes on from here
 *
 * An attached process gets the snapshot in parts. What changes between the parts is told by events from *cursor on: whoever takes
 * over the snapshot and then those events has what the cache holds.
 *
 * Any thread. Return: events given, or -EINVAL.
 */
TN_API long tn_cache_snapshot(struct tn_cache *cache, void (*fn)(void *arg, const struct tn_block_event *event),
			      void *arg, uint64_t *cursor);

/** The place of tn_cache_snapshot_part before the first part. */
#define TN_SNAPSHOT_BEGIN UINT32_MAX

/**
 * tn_cache_snapshot_part - a part of a snapshot, for who may not stop the cache's own thread for all of it
 * @at:  TN_SNAPSHOT_BEGIN before the first part; out: where the next part begins, TN_SNAPSHOT_BEGIN: this was the last one
 * @out: @max events, TN_TIERS_MAX at least. A part may have none although more parts follow
 *
 * The caller has a cursor of tn_cache_events first, and follows the events from there after the last part: they tell what changed between the parts.
 *
 * Of a cache that this process has opened. Any thread. Return: how many events, or -EINVAL.
 */
TN_API long tn_cache_snapshot_part(struct tn_cache *cache, uint32_t *at, struct tn_block_event *out, size_t max);

#ifdef __cplusplus
}
#endif
#endif
