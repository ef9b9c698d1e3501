/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device tier (G1): a slab (slab.h) of one device's memory, which its driver allocates. It keeps copies of blocks that were loaded into pools of the
 * same device, or saved from them. A copy from there to such a pool goes within the device.
 *
 * Once the device is lost, what lies here is gone, and nothing comes in any more.
 *
 * It is a cache and nothing more: what lies here may go at any time, and nothing here is still to go down. No CPU touches its bytes.
 * Owner thread only, but the bytes, and what is marked.
 */
#ifndef TN_TIER_DEVICE_DEVICE_H
#define TN_TIER_DEVICE_DEVICE_H

#include <tenuto/device_memory.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "tier/tier.h"

struct tn_device_tier_opts {
	const struct tn_device_driver *driver; /* complete: tn_device_check */
	uint32_t device;
	uint64_t bytes, seed;
	const struct tn_alloc *alloc;
	struct tn_copiers *copiers; /* the cache's */
	const struct tn_log *log;
};

/* 0 and *out; -ENOTSUP: the driver has no memory to give; -ENOMEM; or the driver's error. The driver and the copiers outlive the tier. */
int tn_device_tier_create(const struct tn_device_tier_opts *opts, struct tn_tier_base **out);

#endif
