/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host tier: a slab (slab.h) of the process's memory, and the queues of what waits to go down to another tier. Each slot holds one block flat, as
 * a slot on disk does, and its objects' checksums behind it.
 *
 * Owner thread only, but the bytes.
 */
#ifndef TN_TIER_HOST_HOST_H
#define TN_TIER_HOST_HOST_H

#include "base/alloc.h"
#include "tier/row.h"

/* 0 and *out; -ENOMEM. */
int tn_host_tier_create(uint64_t bytes, uint64_t seed, const struct tn_alloc *alloc, struct tn_tier_base **out);

extern const struct tn_tier_maker tn_host_tier_maker;

#endif
