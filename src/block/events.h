/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store and remove events, raised per tier, for whoever keeps an index of what this cache holds.
 *
 * A ring of a fixed number of events, numbered from 1 on. The owner thread raises them and never waits; any thread
 * may read with a cursor of its own. A reader that comes too late gets -ESTALE and a new cursor. It then takes a snapshot
 * (the owner walks the registry with tn_registry_next) and goes on from that cursor. Events that the snapshot already
 * covers may follow; they repeat what the snapshot says.
 */
#ifndef TN_BLOCK_EVENTS_H
#define TN_BLOCK_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <tenuto/events.h>

#include "base/alloc.h"

struct tn_events;

/* capacity: events kept, 1 .. 2^24, rounded up to a power of two; -EINVAL, -ENOMEM */
int tn_events_create(uint32_t capacity, const struct tn_alloc *alloc, struct tn_events **out);
void tn_events_destroy(struct tn_events *ev);

/* Owner thread. */
void tn_events_raise(struct tn_events *ev, const struct tn_block_event *event);

/* The number of the next event: the cursor of a reader that begins now. Any thread. */
uint64_t tn_events_next(const struct tn_events *ev);

/*
 * Reads up to max events from *cursor on, in order; *cursor moves behind them. Returns how many (0: none yet). -ESTALE
 * if some of them are overwritten already: then *cursor is the next event's number, and the reader takes a snapshot.
 * -EINVAL for a cursor that was never given out. Any thread.
 */
long tn_events_read(const struct tn_events *ev, uint64_t *cursor, struct tn_block_event *out, size_t max);

#endif
