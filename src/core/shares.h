/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of one block: with tensor or pipeline parallelism each rank has a space of its own for its share, under the same key, and a
 * block is of use only while all of its shares are there. So what one share meets the others meet: the policy decides once whether the block is
 * worth writing, and a tier that evicts one share evicts those of the other ranks, too (tier.c).
 *
 * Only spaces that were opened since the cache was know of each other.
 *
 * Owner thread only.
 */
#ifndef TN_CORE_SHARES_H
#define TN_CORE_SHARES_H

#include "base/alloc.h"
#include "tier/tier.h"

struct tn_decision_made; /* about a block */

struct tn_shares {
	uint16_t next[TN_SPACES_MAX]; /* of the spaces of one family, in a ring; itself: there is no other */
	uint16_t first[TN_SPACES_MAX]; /* one of the ring, the same for all of it */
	uint32_t rank[TN_SPACES_MAX];
	struct tn_key family[TN_SPACES_MAX]; /* zero: nobody has opened it */
	struct tn_decision_made *made;
	uint64_t decisions;
	struct tn_tier_base *tier; /* that decides, from the second rank on */
	uint32_t *share; /* of the tier that decides (tier/share.h), from the second rank on */
	uint32_t max_blocks;
	const struct tn_alloc *alloc;
};

/* 0, -ENOMEM. */
int tn_shares_create(struct tn_shares *s, uint32_t max_blocks, const struct tn_alloc *alloc);
void tn_shares_destroy(struct tn_shares *s);
/* A space that is new, or known, is the rank's of this family, unless another space is; t decides, and may be NULL. 0, -ENOMEM. */
int tn_shares_join(struct tn_shares *s, struct tn_tier_base *t, uint16_t space, const struct tn_key *family, uint32_t rank);
void tn_shares_leave(struct tn_shares *s, uint16_t space);
/* What was decided about another share of the block: the tier has one, or a rank has asked before this one. What this one is told must be noted. */
enum tn_policy_decided tn_shares_decided(const struct tn_shares *s, const struct tn_tier_base *t, uint16_t space, const struct tn_key *key);
void tn_shares_note(struct tn_shares *s, struct tn_tier_base *t, uint16_t space, const struct tn_key *key, bool let_in);
/* A share that was let in has a record, and is inserted now. */
void tn_shares_took(struct tn_shares *s, struct tn_tier_base *t, tn_block b);

#endif
