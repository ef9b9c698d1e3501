/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of entry ids, for policies: one doubly linked list per priority. The links of all entries lie in one array,
 * which several struct tn_policy_lists may share as long as an entry is in one list at a time.
 */
#ifndef TN_POLICY_POLICY_LIST_H
#define TN_POLICY_POLICY_LIST_H

#include "policy/policy.h"

struct tn_policy_link {
	uint32_t newer, older; /* TN_ENTRY_NONE at the ends */
};

struct tn_policy_list {
	uint32_t newest, oldest;
	uint32_t count;
};

#define TN_POLICY_LEVELS 256u

struct tn_policy_lists {
	struct tn_policy_link *links;
	uint32_t count; /* entries in all lists */
	uint64_t used[TN_POLICY_LEVELS / 64]; /* levels that have entries */
	struct tn_policy_list level[TN_POLICY_LEVELS];
};

/* The level of a priority: 0 is the first to go. */
static inline uint32_t tn_policy_level(int8_t priority)
{
	return (uint32_t)((int)priority + 128);
}

void tn_policy_lists_init(struct tn_policy_lists *l, struct tn_policy_link *links);
/* Adds the entry as the newest of its level. */
void tn_policy_list_add(struct tn_policy_lists *l, uint32_t level, uint32_t id);
void tn_policy_list_del(struct tn_policy_lists *l, uint32_t level, uint32_t id);
/* The first level from `from` on that has entries, TN_POLICY_LEVELS if none. */
uint32_t tn_policy_level_next(const struct tn_policy_lists *l, uint32_t from);
/* The oldest usable entry of the lowest level that has a usable entry, or TN_ENTRY_NONE. */
uint32_t tn_policy_lists_oldest(const struct tn_policy_lists *l, bool (*usable)(void *arg, uint32_t id), void *arg);

/* admit of policies that let everything in. */
bool tn_policy_admit_all(struct tn_policy *p, const struct tn_policy_block *b, bool full,
			 bool (*usable)(void *arg, uint32_t id), void *arg);

#endif
