/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host tier: a slab (slab.h) of the process's memory, and the queues of what waits to go down to another tier. Each slot holds one block flat, as
 * a slot on disk does, and its objects' checksums behind it.
 *
 * Owner thread only, but the bytes.
 */
#ifndef TN_TIER_HOST_H
#define TN_TIER_HOST_H

#include <stdbool.h>

#include "base/alloc.h"
#include "tier/tier.h"

/* Whether a slot's block is still to go to a tier. */
enum tn_dirty {
	TN_DIRTY_NOT,
	TN_DIRTY_WAITS, /* in a queue; stays until it has gone */
	TN_DIRTY_COPY, /* in a queue; nobody was promised that it goes, and it may be evicted before */
	TN_DIRTY_MOVES, /* in an offload */
	TN_DIRTY_FAILED, /* could not be written: in host memory only; tried again by the next flush */
};

struct tn_host;

int tn_host_create(uint64_t bytes, uint64_t seed, const struct tn_alloc *alloc, struct tn_host **out);
struct tn_tier_base *tn_host_tier(struct tn_host *h);
uint32_t tn_host_slots(const struct tn_host *h);
uint32_t tn_host_used(const struct tn_host *h);
tn_block tn_host_block(const struct tn_host *h, uint32_t slot);

/* ---- what waits to go down: one queue per tier that it goes to -------------------------------------------------- */

enum tn_dirty tn_host_dirty(const struct tn_host *h, uint32_t slot, enum tn_tier target);
/* Slots that wait or move, and their bytes: of what stays until it has gone. */
uint32_t tn_host_dirty_slots(const struct tn_host *h);
uint64_t tn_host_dirty_bytes(const struct tn_host *h);
uint32_t tn_host_failed_slots(const struct tn_host *h);

/* The slot's block waits from now on; @as: WAITS or COPY; @bytes: that count, 0 for a copy. */
void tn_host_wait(struct tn_host *h, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes, uint64_t now_ns);
/* It is in an offload. */
void tn_host_moves(struct tn_host *h, uint32_t slot, enum tn_tier target);
/* It need not go any more, or is there (NOT), or could not be written (FAILED); @bytes: as told to wait. */
void tn_host_settled(struct tn_host *h, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes);

struct tn_host_waiting {
	uint64_t since_ns;
	uint32_t slot;
};
/* Of a queue: the first place, whether its block still waits or not; NULL: the queue is empty. */
const struct tn_host_waiting *tn_host_first(const struct tn_host *h, enum tn_tier target);
void tn_host_pop(struct tn_host *h, enum tn_tier target);
uint32_t tn_host_queued(const struct tn_host *h, enum tn_tier target);
uint64_t tn_host_tickets(const struct tn_host *h, enum tn_tier target); /* how many were ever given */

#endif
