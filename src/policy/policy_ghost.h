/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghosts: a first-in, first-out memory of the hashes of blocks that went, without the blocks.
 *
 * A ghost lies in one of two bins of 16 ghosts of 8 bytes: in the bin that was emptier when the ghost was put. So a
 * full bin is next to impossible; in a full bin the oldest ghost goes. Order is kept by sequence numbers and one
 * bit per number (still remembered?), so that a ghost taken from the middle needs no list. About 14 bytes per ghost.
 * Hashes must be random in all bits.
 */
#ifndef TN_POLICY_POLICY_GHOST_H
#define TN_POLICY_POLICY_GHOST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

struct tn_ghost;

struct tn_ghosts {
	const struct tn_alloc *alloc;
	struct tn_ghost *ghosts;
	uint64_t *live; /* bitmap over the last `span` sequence numbers */
	uint32_t nbins;
	uint32_t span; /* power of two */
	uint32_t most, limit, count;
	uint32_t oldest, next; /* sequence numbers, modulo 2^32 */
};

/* Remembers the last `limit` hashes put; -ENOMEM, and then, too, fini gives back what it has. */
int tn_ghosts_init(struct tn_ghosts *g, uint32_t limit, const struct tn_alloc *alloc);
/* From now on the last `limit` hashes, if not more than at first. */
void tn_ghosts_keep(struct tn_ghosts *g, uint32_t limit);
void tn_ghosts_fini(struct tn_ghosts *g);
void tn_ghosts_put(struct tn_ghosts *g, uint64_t hash);
/* Whether the hash is remembered; afterwards it is not. */
bool tn_ghosts_take(struct tn_ghosts *g, uint64_t hash);

#endif
