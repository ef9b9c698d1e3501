/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/row.h"

#include "tier/device/device.h"
#include "tier/disk/disk.h"
#include "tier/host/host.h"
#include "tier/remote/remote.h"

const struct tn_tier_maker *const tn_tier_makers[TN_TIERS_MAX] = {
	[TN_TIER_DEVICE] = &tn_device_tier_maker,
	[TN_TIER_HOST] = &tn_host_tier_maker,
	[TN_TIER_DISK] = &tn_disk_tier_maker,
	[TN_TIER_REMOTE] = &tn_remote_tier_maker,
};

int tn_tiers_plan(const struct tn_tier_maker *const *makers, struct tn_tier_env *env, uint64_t *blocks)
{
	int rc = 0;

	for (unsigned i = TN_TIERS_MAX; rc == 0 && i-- > 0;)
		if (makers[i] && makers[i]->plan)
			rc = makers[i]->plan(env, blocks);
	return rc;
}
