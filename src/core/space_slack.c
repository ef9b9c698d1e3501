/* SPDX-License-Identifier: Apache-2.0 */
/* See space_slack.h. */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"
#include "sched/slack.h"
#include "sched/split.h"

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

static void changed(struct tn_space *space)
{
	__atomic_store_n(&space->slack_changes, space->slack_changes + 1, __ATOMIC_RELEASE);
}

static bool learn(struct tn_slack *table, const struct tn_observation *o)
{
	return tn_slack_observe(table, o->input, o->prefix, o->layer, o->ns);
}

void tn_space_observe_layer(struct tn_space *space, const struct tn_observation *o)
{
	if (learn(space->slack, o))
		changed(space);
	if (space->nslack_news < TN_SPACE_SLACK_NEWS)
		space->slack_news[space->nslack_news++] = *o;
	if (pthread_mutex_trylock(&space->plan_lock))
		return;
	for (uint32_t i = 0; i < space->nslack_news; i++)
		learn(space->plan_slack, &space->slack_news[i]);
	space->nslack_news = 0;
	pthread_mutex_unlock(&space->plan_lock);
}

struct tn_slack *tn_space_slack_replace(struct tn_space *space, struct tn_slack *table)
{
	struct tn_slack *old = space->slack;

	space->slack = table;
	space->nslack_news = 0;
	changed(space);
	return old;
}
