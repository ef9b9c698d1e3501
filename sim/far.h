/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier for tests, as awkward as a remote one: keyed places that are given some time after they were asked for, look-ups that
 * are answered later, whole blocks only, moved by the tier itself and slowly, blocks that get lost without a word - also while
 * they are read - or with one, and others who put blocks there and take them away.
 *
 * The remote side (struct tn_far) outlives the caches that use it, one at a time, as a remote store does.
 */
#ifndef TN_SIM_FAR_H
#define TN_SIM_FAR_H

#include "base/clock.h"
#include "tier/tier.h"

struct tn_far;

/**
 * struct tn_far_opts
 * @blocks:     most that it holds
 * @latency_ns: of a request at most; each takes a random part of it, ...
 * @least_ns:   ... beside this
 * @lose:       in one of so many steps with something under way a block is lost; 0: never
 * @others:     likewise: somebody puts a lost block back
 * @corrupt:    one of so many reads gives a wrong byte; 0: none
 * @mute:       look-ups are never answered
 */
struct tn_far_opts {
	uint64_t seed;
	uint32_t blocks;
	uint64_t latency_ns;
	uint64_t least_ns;
	uint32_t lose, others, corrupt;
	bool mute;
};

int tn_far_create(const struct tn_far_opts *opts, struct tn_far **out);
void tn_far_destroy(struct tn_far *far);

/* The tier of one cache; destroyed with it. */
int tn_far_tier(struct tn_far *far, const struct tn_clock *clock, const struct tn_alloc *alloc, struct tn_policy *policy,
		struct tn_tier_base **out);

uint32_t tn_far_blocks(const struct tn_far *far);
/* Somebody takes block i of them (0 .. tn_far_blocks - 1) away, or puts what was taken away last back; told: with an event. */
void tn_far_take_away(struct tn_far *far, uint32_t i, bool told);
bool tn_far_put_back(struct tn_far *far, bool told);
/* Requests that the tier has begun: what they will find may still change. */
uint32_t tn_far_under_way(const struct tn_far *far);

#endif
