/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of one block in a tier: those that are in, or on their way, form a ring of records. The policy knows the block once, by one of them; the
 * others follow it. So it counts one reference where each rank makes one, and one block where there are as many shares.
 *
 * A word per record: the next one of the ring, and whether it follows. There are none before ranks have come (t->share is NULL).
 *
 * Owner thread only.
 */
#ifndef TN_TIER_SHARE_H
#define TN_TIER_SHARE_H

#include "tier/tier.h"

#define TN_SHARE_FOLLOWS (1u << 31)

static inline bool tn_share_follows(const struct tn_tier_base *t, tn_block b)
{
	return t->share && t->share[b] & TN_SHARE_FOLLOWS;
}

static inline void tn_share_follow(struct tn_tier_base *t, tn_block b, bool yes)
{
	t->share[b] = (t->share[b] & ~TN_SHARE_FOLLOWS) | (yes ? TN_SHARE_FOLLOWS : 0);
}

/* The next share of the ring; b itself: it has no other. */
static inline tn_block tn_share_next(const struct tn_tier_base *t, tn_block b)
{
	return t->share ? t->share[b] & ~TN_SHARE_FOLLOWS : b;
}

static inline void tn_share_set_next(struct tn_tier_base *t, tn_block b, tn_block next)
{
	t->share[b] = (t->share[b] & TN_SHARE_FOLLOWS) | next;
}

/* Makes one ring of two. */
static inline void tn_share_join(struct tn_tier_base *t, tn_block a, tn_block b)
{
	tn_block next = tn_share_next(t, a);

	tn_share_set_next(t, a, tn_share_next(t, b));
	tn_share_set_next(t, b, next);
}

/* Takes a share out of its ring. */
static inline void tn_share_part(struct tn_tier_base *t, tn_block b)
{
	tn_block before = b;

	if (!t->share)
		return;
	while (tn_share_next(t, before) != b)
		before = tn_share_next(t, before);
	tn_share_set_next(t, before, tn_share_next(t, b));
	t->share[b] = b;
}

/* The one that the policy knows. */
static inline tn_block tn_share_known(const struct tn_tier_base *t, tn_block b)
{
	while (tn_share_follows(t, b))
		b = tn_share_next(t, b);
	return b;
}

#endif
