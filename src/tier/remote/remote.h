/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote tier: blocks as objects of stores that other nodes use, too (object.h, store.h). It has one or more remotes in an order, and each has its own
 * slots and circuit breaker:
 *
 * - A look-up asks the first remote for as many blocks as it has without a gap, then the next one from that gap on, and ends when no other remote has the
 *   block at the gap.
 * - A read asks the remote that had the block last, then the others in their order, until one has it.
 * - A write goes to each remote that takes writes, one after the other.
 *
 * What leaves the tier is forgotten here alone: nothing is deleted.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_REMOTE_REMOTE_H
#define TN_TIER_REMOTE_REMOTE_H

#include "tier/remote/store.h"
#include "tier/row.h"

extern const struct tn_tier_maker tn_remote_tier_maker;

/* With other clients than the options', in the order in which they are asked. They go with the tier, also if there is none for an error. */
int tn_remote_tier_create(const struct tn_tier_env *env, const struct tn_object_store_opts *remotes, uint32_t n, struct tn_tier_base **out);

#endif
