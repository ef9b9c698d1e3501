/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slack tables of spaces. The owner's table is for the scheduler. Any thread may ask for a plan or for the table: for them there is a copy
 * under a lock of its own, which learns the same observations. The owner never waits for that lock: observations wait, and if a thread keeps
 * the lock for more than TN_SPACE_SLACK_NEWS of them, the copy misses the rest.
 */
#ifndef TN_CORE_SPACE_SLACK_H
#define TN_CORE_SPACE_SLACK_H

#include "base/alloc.h"
#include "region/observation.h"
#include "sched/slack.h"

#define TN_SPACE_SLACK_NEWS 64u

struct tn_space;

int tn_space_slack_create(struct tn_space *space, const struct tn_alloc *alloc);
void tn_space_slack_destroy(struct tn_space *space, const struct tn_alloc *alloc);
/* By the owner. */
void tn_space_observe_layer(struct tn_space *space, const struct tn_observation *o);
/* By the owner: another table from now on, whose copy the caller sets. The old one. */
struct tn_slack *tn_space_slack_replace(struct tn_space *space, struct tn_slack *table);

#endif
