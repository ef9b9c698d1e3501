/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the policy of a tier knows, and how blocks leave: victims, the other ranks' shares of them, quotas. The tiers themselves ask this
 * for places that they lack; what comes in is tier.c's.
 */
#include "base/trace.h"
#include "tier/share.h"

/* ---- what the policy knows ---------------------------------------------------------------------------------- */

/*
 * Where entries are blocks, a block is one exactly while its residency is not ABSENT: from the moment it is let in,
 * before it is written, on.
 */
uint32_t tn_tier_entry(const struct tn_tier_base *t, tn_block b)
{
	enum tn_residency r = b == TN_BLOCK_NONE ? TN_ABSENT : tn_tier_residency(t, b);

	if (r == TN_ABSENT || (t->ops->traits.entry_by_slot && r != TN_PRESENT))
		return TN_ENTRY_NONE;
	return t->ops->traits.entry_by_slot ? tn_block_slot(t->registry, b, t->tier) : tn_share_known(t, b);
}

/* The space is mixed in by its constant multiple of the golden ratio. */
uint64_t tn_key_hash(const struct tn_tier_base *t, const struct tn_key *key, uint16_t space)
{
	return key->word[0] ^ t->first_share[space] * 0x9e3779b97f4a7c15u;
}

static uint64_t block_hash(const struct tn_tier_base *t, tn_block b)
{
	struct tn_key key = tn_block_key(t->registry, b);

	return tn_key_hash(t, &key, tn_block_space(t->registry, b));
}

void tn_block_describe(const struct tn_tier_base *t, tn_block b, bool partial, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = block_hash(t, b),
		.parent = TN_ENTRY_NONE,
		.depth = tn_block_depth(t->registry, b),
		.partial = partial,
	};
}

void tn_tier_describe(const struct tn_tier_base *t, tn_block b, struct tn_policy_block *info)
{
	tn_block_describe(t, b, false, info);
	info->parent = tn_tier_entry(t, tn_block_parent(t->registry, b));
}

/* ---- who may go -------------------------------------------------------------------------------------------- */

static tn_block block_of(const struct tn_tier_base *t, uint32_t id)
{
	return t->ops->traits.entry_by_slot ? t->block_of[id] : id;
}

/* Whether one that may go is what is wanted. */
static bool matches(const struct tn_tier_usable *u, tn_block b)
{
	const struct tn_tier_base *t = u->tier;

	return (u->space < 0 || tn_block_space(t->registry, b) == u->space) &&
	       (!u->cls || !t->ops->evict || t->ops->evict(t, b, tn_tier_place_of(t, b), u->cls));
}

static bool is_free(const struct tn_tier_base *t, tn_block b)
{
	return tn_block_refs(t->registry, b) == 0 && tn_tier_has(t, b) &&
	       (!t->ops->evict || t->ops->evict(t, b, tn_tier_place_of(t, b), NULL));
}

/* All shares of the block may go, and one of them is what is wanted. */
bool tn_tier_usable(void *arg, uint32_t id)
{
	const struct tn_tier_usable *u = arg;
	tn_block b = block_of(u->tier, id), other = b;
	bool wanted = false;

	do {
		if (!is_free(u->tier, other))
			return false;
		wanted = wanted || matches(u, other);
		other = tn_share_next(u->tier, other);
	} while (other != b);
	return wanted;
}

/* ---- leaving ------------------------------------------------------------------------------------------------- */

static void remove_entry(struct tn_tier_base *t, uint32_t id, tn_block b, enum tn_policy_why why)
{
	tn_block heir = tn_share_next(t, b);
	bool followed = tn_share_follows(t, b);
	struct tn_policy_block info;

	tn_block_set_residency(t->registry, b, t->tier, TN_ABSENT);
	tn_share_part(t, b);
	t->entries--;
	if (followed)
		return;
	t->policy->ops->remove(t->policy, id, block_hash(t, b), why);
	if (heir == b)
		return;
	tn_share_follow(t, heir, false);
	tn_tier_describe(t, heir, &info);
	info.decided = TN_POLICY_LET_IN; /* no reference: the policy knows the block */
	t->policy->ops->insert(t->policy, heir, &info);
}

void tn_tier_remove(struct tn_tier_base *t, tn_block b)
{
	remove_entry(t, b, b, TN_POLICY_DROPPED);
}

void tn_tier_leave(struct tn_tier_base *t, tn_block b, enum tn_leave how)
{
	uint32_t place = tn_tier_place_of(t, b), id = t->ops->traits.entry_by_slot ? place : b;

	TN_TRACE3(leave, b, t->tier, how);
	t->watch->leaves(t->watch->arg, t, b, place, how);
	remove_entry(t, id, b, how == TN_LEAVE_EVICTED || t->ops->traits.entry_by_slot ? TN_POLICY_EVICTED : TN_POLICY_DROPPED);
	if (!t->ops->traits.keyed)
		tn_block_set_slot(t->registry, b, t->tier, TN_SLOT_NONE);
	t->space_blocks[tn_block_space(t->registry, b)]--;
	t->blocks--;
	t->ops->drain(t, b, place, how);
}

static void leave_alone(struct tn_tier_base *t, tn_block b)
{
	tn_tier_leave(t, b, TN_LEAVE_EVICTED);
	t->evicted++;
	t->watch->evicted(t->watch->arg, t, b);
}

/* The next share of the block, of the spaces after *space up to the block's own; TN_BLOCK_NONE: there is no more. */
static tn_block next_share(const struct tn_tier_base *t, const struct tn_key *key, uint16_t own, uint16_t *space)
{
	tn_block b = TN_BLOCK_NONE;

	while (b == TN_BLOCK_NONE && (*space = t->next_share[*space]) != own)
		b = tn_registry_find_one(t->registry, *space, key, false);
	return b;
}

tn_block tn_tier_mate(const struct tn_tier_base *t, uint16_t space, const struct tn_key *key)
{
	uint16_t at = space;
	tn_block b;

	while ((b = next_share(t, key, space, &at)) != TN_BLOCK_NONE)
		if (tn_tier_residency(t, b) != TN_ABSENT)
			return b;
	return TN_BLOCK_NONE;
}

/*
 * Shares that were there before their ranks were, or that found no place in a ring: as of now they are one entry. The one that the policy knows
 * already stays it.
 */
void tn_tier_gather(struct tn_tier_base *t, tn_block b)
{
	uint16_t own = tn_block_space(t->registry, b), at = own;
	struct tn_key key;
	tn_block other;

	if (!t->share || t->next_share[own] == own || tn_share_next(t, b) != b)
		return;
	key = tn_block_key(t->registry, b);
	while ((other = next_share(t, &key, own, &at)) != TN_BLOCK_NONE) {
		if (tn_tier_residency(t, other) == TN_ABSENT)
			continue;
		t->policy->ops->remove(t->policy, b, block_hash(t, b), TN_POLICY_DROPPED);
		tn_share_follow(t, b, true);
		tn_share_join(t, other, b);
		return;
	}
}

/* 1 if it left and is what u says. What is held stays. */
static uint32_t leave_if_free(struct tn_tier_base *t, tn_block b, const struct tn_tier_usable *u)
{
	bool goes = is_free(t, b), counts = goes && matches(u, b);

	if (!goes || !tn_block_withdraw(t->registry, b, t->tier))
		return 0;
	leave_alone(t, b);
	return counts;
}

/* Returns how many of those that left are what u says. The entry goes last, so that no other share has to take its place. */
static uint32_t leave_with_shares(struct tn_tier_base *t, tn_block b, const struct tn_tier_usable *u)
{
	struct tn_key key = tn_block_key(t->registry, b);
	uint16_t own = tn_block_space(t->registry, b), at = own;
	uint32_t n = matches(u, b);
	tn_block next;

	for (tn_block other = tn_share_next(t, b); other != b; other = next) {
		next = tn_share_next(t, other);
		n += leave_if_free(t, other, u);
	}
	while ((next = next_share(t, &key, own, &at)) != TN_BLOCK_NONE) /* where each share is an entry, or was there before its rank */
		n += leave_if_free(t, next, u);
	leave_alone(t, b);
	return n;
}

void tn_tier_leave_evicted(struct tn_tier_base *t, tn_block b)
{
	const struct tn_tier_usable any = {t, -1, NULL};

	leave_with_shares(t, b, &any);
}

bool tn_tier_demote(struct tn_tier_base *t, tn_block b)
{
	const struct tn_tier_usable any = {t, -1, NULL};

	return leave_if_free(t, b, &any) > 0;
}

struct next {
	struct tn_tier_usable any;
	tn_block *out;
	uint32_t n, max;
};

/* Notes one after the other, until there are enough. */
static bool note(void *arg, uint32_t id)
{
	struct next *next = arg;

	if (tn_tier_usable(&next->any, id))
		next->out[next->n++] = block_of(next->any.tier, id);
	return next->n == next->max;
}

uint32_t tn_tier_next(struct tn_tier_base *t, tn_block *out, uint32_t max)
{
	struct next next = {{t, -1, NULL}, out, 0, max};

	if (t->policy && max > 0)
		t->policy->ops->victim(t->policy, note, &next);
	return next.n;
}

uint32_t tn_tier_evict(struct tn_tier_base *t, uint32_t want, int space, const uint32_t *cls)
{
	struct tn_tier_usable u = {t, space, cls};
	uint32_t n = 0;

	while (t->policy && n < want) {
		uint32_t id = t->policy->ops->victim(t->policy, tn_tier_usable, &u);
		tn_block b;

		if (id == TN_ENTRY_NONE)
			break;
		b = block_of(t, id);
		if (tn_block_withdraw(t->registry, b, t->tier))
			n += leave_with_shares(t, b, &u);
		/* else it was pinned meanwhile: not usable any more */
	}
	return n;
}

uint32_t tn_tier_quota(struct tn_tier_base *t, uint16_t space, uint64_t limit_blocks, uint32_t want)
{
	uint64_t have = t->space_blocks[space] + t->space_coming[space];

	if (limit_blocks >= have + want)
		return want;
	tn_tier_evict(t, (uint32_t)(have + want - limit_blocks), space, NULL);
	have = t->space_blocks[space] + t->space_coming[space];
	if (limit_blocks <= have)
		return 0;
	return limit_blocks - have < want ? (uint32_t)(limit_blocks - have) : want;
}
