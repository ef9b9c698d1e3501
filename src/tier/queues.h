/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of a tier in memory: which of its slots hold blocks that are still to go to a tier below, one queue per such tier.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_QUEUES_H
#define TN_TIER_QUEUES_H

#include <stdbool.h>
#include <tenuto/types.h>

#include "base/alloc.h"
#include "block/block.h"

/* Whether a slot's block is still to go to a tier. */
enum tn_dirty {
	TN_DIRTY_NOT,
	TN_DIRTY_WAITS, /* in a queue; stays until it has gone */
	TN_DIRTY_COPY, /* in a queue; nobody was promised that it goes, and it may be evicted before */
	TN_DIRTY_MOVES, /* in an offload */
	TN_DIRTY_FAILED, /* could not be written: in memory only; tried again by the next flush */
};

struct tn_waiting {
	uint64_t since_ns;
	uint32_t slot;
};

/* A ring. A slot is in it once: one whose block was dropped and that waits again keeps its earlier place. */
struct tn_queue {
	struct tn_waiting *place; /* as many as there are slots */
	uint8_t *dirty;		  /* by slot: enum tn_dirty */
	uint32_t head, count;
	uint64_t tickets; /* how many were ever given */
};

struct tn_queues {
	const struct tn_alloc *alloc;
	enum tn_tier below;   /* the first tier that blocks go down to */
	uint32_t slots;	      /* that there are tables for */
	uint8_t *queued;      /* by slot: bit per tier that it is in the queue to */
	struct tn_queue to[TN_TIERS_MAX];
	uint32_t dirty_slots; /* slots that wait or move, and their bytes: of what stays until it has gone */
	uint64_t dirty_bytes;
	uint32_t failed_slots;
};

void tn_queues_init(struct tn_queues *q, enum tn_tier below, const struct tn_alloc *alloc);
void tn_queues_fini(struct tn_queues *q);
/* No slot holds a block: all queues are empty from now on, and have tables for so many slots. 0; -ENOMEM: nothing has changed. */
int tn_queues_fit(struct tn_queues *q, uint32_t slots);

static inline enum tn_dirty tn_queues_state(const struct tn_queues *q, uint32_t slot, enum tn_tier target)
{
	return (enum tn_dirty)q->to[target].dirty[slot];
}

/* The slot's block waits from now on; @as: WAITS or COPY; @bytes: that count, 0 for a copy. */
void tn_queues_wait(struct tn_queues *q, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes, uint64_t now_ns);
/* It is in an offload. */
void tn_queues_moves(struct tn_queues *q, uint32_t slot, enum tn_tier target);
/* It need not go any more, or is there (NOT), or could not be written (FAILED); @bytes: as told to wait. */
void tn_queues_settled(struct tn_queues *q, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes);
/* The slot is free. */
void tn_queues_leave(struct tn_queues *q, uint32_t slot);
/* Whether the slot's block has to stay until it has gone to a tier below. */
bool tn_queues_keep(const struct tn_queues *q, uint32_t slot);

/* Of a queue: the first place, whether its block still waits or not; NULL: the queue is empty. */
static inline const struct tn_waiting *tn_queues_first(const struct tn_queues *q, enum tn_tier target)
{
	return q->to[target].count > 0 ? &q->to[target].place[q->to[target].head] : NULL;
}

void tn_queues_pop(struct tn_queues *q, enum tn_tier target);

#endif
