/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slack tables of spaces. The table that is corrected belongs to the owner. For tn_plan, which any thread may call, there is a
 * copy under a lock of its own that the owner never waits for: it copies when the lock is free.
 */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"
#include "sched/slack.h"
#include "sched/split.h"

#define SHARE_EVERY_NS 100000000u /* the copy is renewed no more often */

int tn_space_slack_create(struct tn_space *space, const struct tn_alloc *alloc)
{
	size_t bytes = TN_SPLIT_SCRATCH(space->shape.layers) * sizeof(uint64_t);
	int rc = tn_slack_create_empty(space->shape.layers, &space->slack);

	pthread_mutex_init(&space->plan_lock, NULL);
	if (rc == 0)
		rc = tn_slack_clone(space->slack, &space->plan_slack);
	space->plan_scratch = tn_get(alloc, bytes);
	if (rc == 0 && !space->plan_scratch)
		rc = tn_fail(-ENOMEM, "space: no memory");
	if (rc)
		tn_space_slack_destroy(space, alloc);
	return rc;
}

void tn_space_slack_destroy(struct tn_space *space, const struct tn_alloc *alloc)
{
	tn_put(alloc, space->plan_scratch, TN_SPLIT_SCRATCH(space->shape.layers) * sizeof(uint64_t));
	tn_slack_destroy(space->plan_slack);
	tn_slack_destroy(space->slack);
	pthread_mutex_destroy(&space->plan_lock);
}

void tn_space_slack_changed(struct tn_space *space)
{
	__atomic_store_n(&space->slack_changes, space->slack_changes + 1, __ATOMIC_RELEASE);
}

void tn_space_share_slack(struct tn_space *space, uint64_t now_ns)
{
	bool recent = now_ns >= space->slack_shared_ns && now_ns - space->slack_shared_ns < SHARE_EVERY_NS;

	if (space->slack_shared == space->slack_changes || recent || pthread_mutex_trylock(&space->plan_lock))
		return;
	tn_slack_renew(space->plan_slack, space->slack);
	pthread_mutex_unlock(&space->plan_lock);
	space->slack_shared = space->slack_changes;
	space->slack_shared_ns = now_ns;
}
