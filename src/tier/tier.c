/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all tiers have in common: the policy is told of requests, blocks are let in, get places and arrive. How they leave is leave.c's.
 */
#include <errno.h>

#include "tier/share.h"

/* ---- requests ----------------------------------------------------------------------------------------------- */

void tn_tier_request(struct tn_tier_base *t, tn_block parent, uint64_t parent_hash)
{
	if (t->policy)
		t->policy->ops->request(t->policy, tn_tier_entry(t, parent), parent_hash);
}

void tn_tier_touch(struct tn_tier_base *t, tn_block b, struct tn_policy_block *info)
{
	uint32_t id = tn_tier_entry(t, b);

	if (id == TN_ENTRY_NONE)
		return;
	tn_tier_gather(t, b);
	if (tn_share_follows(t, b)) /* the entry's own reference counts */
		return;
	info->parent = tn_tier_entry(t, tn_block_parent(t->registry, b));
	t->policy->ops->touch(t->policy, id, info);
}

/* ---- coming in ---------------------------------------------------------------------------------------------- */

/* What was decided about the first share holds for the others: the policy hears of a block once. */
static bool is_let_in(struct tn_tier_base *t, const struct tn_policy_block *info, bool full)
{
	struct tn_tier_usable u = {t, -1, NULL};

	if (t->share && info->decided != TN_POLICY_UNDECIDED)
		return info->decided == TN_POLICY_LET_IN && (info->depth == 0 || info->parent != TN_ENTRY_NONE);
	return t->policy->ops->admit(t->policy, info, full, tn_tier_usable, &u);
}

/* How many blocks of the sizes that are used the tier holds when it is full: its policy's measure. */
static void expect(struct tn_tier_base *t, uint64_t capacity)
{
	uint64_t blocks = t->ranks ? capacity / t->ranks : capacity;

	if (blocks == t->expected || !t->policy->ops->expect)
		return;
	t->expected = blocks;
	t->policy->ops->expect(t->policy, blocks == 0 ? 1 : blocks < TN_ENTRY_NONE ? (uint32_t)blocks : TN_ENTRY_NONE - 1);
}

int tn_tier_admit(struct tn_tier_base *t, const struct tn_policy_block *info, uint64_t bytes)
{
	uint64_t capacity = t->ops->capacity(t), promised = info->decided == TN_POLICY_UNDECIDED ? t->promised : 0;
	bool full = t->entries + (promised < capacity / 2 ? promised : capacity / 2) >= capacity;
	int rc = t->ops->health ? t->ops->health(t) : 0;

	if (rc)
		return rc;
	if (full && t->blocks == 0)
		return -EBUSY;
	expect(t, capacity);
	if (!is_let_in(t, info, full))
		return 0;
	if (t->ops->quota && !t->ops->quota(t, bytes, true))
		return -EDQUOT;
	if (!full || tn_tier_evict(t, 1, -1, NULL) > 0)
		return 1;
	if (t->ops->quota)
		t->ops->quota(t, bytes, false);
	return -EBUSY;
}

static void insert(struct tn_tier_base *t, uint32_t id, const struct tn_policy_block *info)
{
	t->policy->ops->insert(t->policy, id, info);
	t->entries++;
}

void tn_tier_insert(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info)
{
	tn_block_set_residency(t->registry, b, t->tier, TN_FILLING);
	if (tn_share_follows(t, b))
		t->entries++;
	else
		insert(t, b, info);
}

void tn_tier_learn(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info)
{
	if (t->policy->ops->learn && (b == TN_BLOCK_NONE || !tn_share_follows(t, b)))
		t->policy->ops->learn(t->policy, tn_tier_entry(t, b), info);
}

void tn_tier_follow(struct tn_tier_base *t, tn_block b, tn_block mate)
{
	tn_share_follow(t, b, true);
	tn_share_join(t, mate, b);
}

bool tn_tier_readmit(struct tn_tier_base *t, tn_block b)
{
	struct tn_policy_block info;

	if (t->entries >= t->ops->capacity(t) && tn_tier_evict(t, 1, -1, NULL) == 0)
		return false;
	tn_tier_describe(t, b, &info);
	tn_tier_insert(t, b, &info);
	return true;
}

static void count_in(struct tn_tier_base *t, tn_block b)
{
	t->space_blocks[tn_block_space(t->registry, b)]++;
	t->blocks++;
}

void tn_tier_arrive(struct tn_tier_base *t, tn_block b, uint32_t place, const struct tn_index_entry *entry, bool dropped)
{
	struct tn_policy_block info;

	if (!t->ops->traits.keyed)
		tn_block_set_slot(t->registry, b, t->tier, place);
	t->ops->fill(t, b, place, entry);
	tn_block_set_residency(t->registry, b, t->tier, dropped ? TN_DRAINING : TN_PRESENT);
	if (t->ops->traits.entry_by_slot) {
		tn_tier_describe(t, b, &info);
		insert(t, place, &info);
	}
	t->space_coming[tn_block_space(t->registry, b)]--;
	count_in(t, b);
}

void tn_tier_adopt(struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info)
{
	tn_block_set_residency(t->registry, b, t->tier, TN_PRESENT);
	expect(t, t->ops->capacity(t));
	insert(t, b, info);
	count_in(t, b);
}

/* ---- places -------------------------------------------------------------------------------------------------- */

int tn_tier_place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	int got;

	w->again = false;
	w->due_ns = UINT64_MAX;
	got = t->ops->place(t, w, want, out);
	if (got > 0)
		t->space_coming[w->space] += (uint32_t)got;
	return got;
}

void tn_tier_release(struct tn_tier_base *t, uint16_t space, tn_block b, uint32_t place, int status)
{
	t->space_coming[space]--;
	t->ops->release(t, b, place, status);
}
