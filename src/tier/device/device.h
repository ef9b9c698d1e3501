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

#include "tier/row.h"

extern const struct tn_tier_maker tn_device_tier_maker;

#endif
