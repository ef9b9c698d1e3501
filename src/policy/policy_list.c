/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/policy_list.h"

void tn_policy_lists_init(struct tn_policy_lists *l, struct tn_policy_link *links)
{
	*l = (struct tn_policy_lists){.links = links};
	for (uint32_t i = 0; i < TN_POLICY_LEVELS; i++)
		l->level[i] = (struct tn_policy_list){TN_ENTRY_NONE, TN_ENTRY_NONE, 0};
}

void tn_policy_list_add(struct tn_policy_lists *l, uint32_t level, uint32_t id)
{
	struct tn_policy_list *list = &l->level[level];

	l->links[id] = (struct tn_policy_link){TN_ENTRY_NONE, list->newest};
	if (list->newest != TN_ENTRY_NONE)
		l->links[list->newest].newer = id;
	else
		list->oldest = id;
	list->newest = id;
	list->count++;
	l->count++;
	l->used[level / 64] |= (uint64_t)1 << level % 64;
}

void tn_policy_list_del(struct tn_policy_lists *l, uint32_t level, uint32_t id)
{
	struct tn_policy_list *list = &l->level[level];
	struct tn_policy_link at = l->links[id];

	if (at.newer != TN_ENTRY_NONE)
		l->links[at.newer].older = at.older;
	else
		list->newest = at.older;
	if (at.older != TN_ENTRY_NONE)
		l->links[at.older].newer = at.newer;
	else
		list->oldest = at.newer;
	l->count--;
	if (--list->count == 0)
		l->used[level / 64] &= ~((uint64_t)1 << level % 64);
}

uint32_t tn_policy_level_next(const struct tn_policy_lists *l, uint32_t from)
{
	for (uint32_t w = from / 64; w < TN_POLICY_LEVELS / 64; w++) {
		uint64_t bits = l->used[w];

		if (w == from / 64)
			bits &= ~(uint64_t)0 << from % 64;
		if (bits)
			return w * 64 + (uint32_t)__builtin_ctzll(bits);
	}
	return TN_POLICY_LEVELS;
}

uint32_t tn_policy_lists_oldest(const struct tn_policy_lists *l, bool (*usable)(void *arg, uint32_t id), void *arg)
{
	for (uint32_t level = tn_policy_level_next(l, 0); level < TN_POLICY_LEVELS;
	     level = tn_policy_level_next(l, level + 1))
		for (uint32_t id = l->level[level].oldest; id != TN_ENTRY_NONE; id = l->links[id].newer)
			if (!usable || usable(arg, id))
				return id;
	return TN_ENTRY_NONE;
}

bool tn_policy_admit_all(struct tn_policy *p, const struct tn_policy_block *b, bool full,
			 bool (*usable)(void *arg, uint32_t id), void *arg)
{
	return true;
}
