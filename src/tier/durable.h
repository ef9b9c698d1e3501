/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a durable tier has besides (traits.durable): it says when changes are durable, and knows spaces by numbers that outlive the process.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DURABLE_H
#define TN_TIER_DURABLE_H

#include "base/hash.h"
#include "tier/tier.h"

struct tn_durable_ops {
	/* That keys and names are hashed with, as long as the tier's files live. */
	struct tn_secret (*secret)(const struct tn_tier_base *t);

	/* The number of the space with this id, a new one if need be. Nothing is waited for. -ENOSPC: all are taken. */
	int (*number)(struct tn_tier_base *t, const struct tn_key *id, uint16_t *number);
	/* What has the number; -ENOENT: no space. */
	int (*space)(const struct tn_tier_base *t, uint16_t number, struct tn_tier_space *space);
	/* Numbers from here on have never been a space's. */
	uint32_t (*numbers)(const struct tn_tier_base *t);
	/* The number is free for another space. No block of it is published or being written. */
	void (*give_back)(struct tn_tier_base *t, uint16_t number);
	/*
	 * The space has the next epoch; durable once a flush that was begun after it ended with 0. Its blocks leave when the core lets them. -EROFS, -ENOENT.
	 */
	int (*drop)(struct tn_tier_base *t, uint16_t number, uint32_t *epoch);

	/* What the core says of the block in this place has changed (struct tn_tier_watch: describe). */
	void (*update)(struct tn_tier_base *t, uint32_t place);
	/* Makes all changes so far durable: done(arg, status) once, perhaps before this returns. At most TN_FLUSHES_MAX are under way. */
	void (*flush)(struct tn_tier_base *t, void (*done)(void *arg, int status), void *arg);
	/* Whether what is stored is gone when the tier closes, because its files have no name any more. */
	bool (*deleted)(const struct tn_tier_base *t);
	/* Background work; returns when to call again. */
	uint64_t (*work)(struct tn_tier_base *t, uint64_t now_ns);
};

#endif
