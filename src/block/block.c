/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life cycle of blocks, their chains, and what a record holds. Owner thread only; the table and
 * the look-ups that other threads make are in registry.c.
 */
#include "block/block.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "block/registry.h"

/* ---- the state machine ----------------------------------------------------------------------- */

static void meta_set(struct tn_registry *reg, tn_block b, uint32_t meta)
{
	__atomic_store_n(&reg->records[b].meta, meta, __ATOMIC_RELAXED);
}

enum tn_block_state tn_block_state(const struct tn_registry *reg, tn_block b)
{
	assert(b < reg->max_blocks);
	return (enum tn_block_state)((tn_registry_meta(reg, b) & META_STATE_MASK) >> META_STATE_SHIFT);
}

/* 0, or -EINVAL if the block is not in the state that the operation is for. */
static int check(const struct tn_registry *reg, tn_block b, enum tn_block_state wanted, const char *operation)
{
	static const char *const names[] = {"Reset", "Complete", "Registered"};

	if (b >= reg->unused)
		return tn_fail(-EINVAL, "block %u: was never taken", b);
	if (tn_block_state(reg, b) != wanted)
		return tn_fail(-EINVAL, "block %u: %s is not possible while it is %s", b, operation,
			       names[tn_block_state(reg, b)]);
	return 0;
}

static void give_back(struct tn_registry *reg, tn_block b)
{
	meta_set(reg, b, 0);
	reg->records[b].slot[0] = reg->free;
	reg->free = b;
}

/* ---- chains ---------------------------------------------------------------------------------- */

static void depth_from_parent(struct tn_registry *reg, tn_block b)
{
	struct tn_chain *c = &reg->chains[b];
	const struct tn_chain *p = &reg->chains[c->parent];

	c->depth = p->depth < UINT16_MAX ? p->depth + 1u : UINT16_MAX;
}

static void link_to(struct tn_registry *reg, tn_block b, tn_block parent)
{
	struct tn_chain *c = &reg->chains[b];

	c->wanted = 0;
	c->parent = parent;
	c->parent_generation = reg->chains[parent].generation & GENERATION_MASK;
	meta_set(reg, b, (tn_registry_meta(reg, b) & ~META_WANTED) | META_LINKED);
	depth_from_parent(reg, b);
}

tn_block tn_block_parent(const struct tn_registry *reg, tn_block b)
{
	const struct tn_chain *c = &reg->chains[b];

	if (!(tn_registry_meta(reg, b) & META_LINKED) || reg->chains[c->parent].generation != c->parent_generation)
		return TN_BLOCK_NONE;
	return c->parent;
}

static bool is_ancestor(const struct tn_registry *reg, tn_block b, tn_block of)
{
	for (; of != TN_BLOCK_NONE; of = tn_block_parent(reg, of))
		if (of == b)
			return true;
	return false;
}

static uint64_t parent_hash(uint16_t space, const struct tn_key *parent)
{
	return tn_registry_hash(space, parent->word[0], parent->word[1]);
}

/*
 * Computes the depths on the way from b up to the first ancestor whose depth is known, or that has no parent. Links made
 * in any order may have closed a circle. Brent's algorithm finds a circle, and one link of it is cut.
 */
static void settle_depth(struct tn_registry *reg, tn_block b)
{
	tn_block top = b, turtle = b, parent;
	uint32_t above = 0, lap = 0, limit = 2;
	uint32_t depth;

	while (reg->chains[top].unsettled && (parent = tn_block_parent(reg, top)) != TN_BLOCK_NONE) {
		if (parent == turtle) { /* cut here and start again: then no circle is left above b */
			meta_set(reg, top, tn_registry_meta(reg, top) & ~META_LINKED);
			reg->chains[top].depth = 0;
			reg->chains[top].unsettled = 0;
			top = turtle = b;
			above = lap = 0;
			limit = 2;
			continue;
		}
		if (++lap == limit) {
			turtle = parent;
			lap = 0;
			limit *= 2;
		}
		top = parent;
		above++;
	}
	depth = reg->chains[top].depth + above;
	for (tn_block i = b; i != top; i = tn_block_parent(reg, i), depth--) {
		reg->chains[i].depth = depth < UINT16_MAX ? depth : UINT16_MAX;
		reg->chains[i].unsettled = 0;
	}
}

/* The parent that b waits for by hash, if that parent is registered now. */
static tn_block wanted_parent(const struct tn_registry *reg, tn_block b)
{
	tn_block parent;

	if (!(tn_registry_meta(reg, b) & META_WANTED) || tn_block_state(reg, b) != TN_BLOCK_REGISTERED)
		return TN_BLOCK_NONE;
	parent = tn_registry_by_hash(reg, reg->chains[b].wanted);
	return parent == b ? TN_BLOCK_NONE : parent;
}

/* Loads the bucket of the parent that b waits for; later, the record that the bucket has for the parent. */
static void prefetch_wanted(const struct tn_registry *reg, uint64_t b, bool record)
{
	if (b >= reg->unused || !(tn_registry_meta(reg, (tn_block)b) & META_WANTED))
		return;
	if (record)
		tn_registry_prefetch_record(reg, reg->chains[b].wanted);
	else
		tn_registry_prefetch(reg, reg->chains[b].wanted);
}

uint32_t tn_registry_relink(struct tn_registry *reg)
{
	uint32_t linked = 0;

	for (tn_block b = 0; b < reg->unused; b++) {
		tn_block parent;

		prefetch_wanted(reg, (uint64_t)b + 24, false);
		prefetch_wanted(reg, (uint64_t)b + 12, true);
		parent = wanted_parent(reg, b);
		if (parent != TN_BLOCK_NONE) {
			link_to(reg, b, parent);
			linked++;
		}
		if (tn_registry_meta(reg, b) & META_LINKED)
			reg->chains[b].unsettled = 1;
	}
	for (tn_block b = 0; b < reg->unused; b++)
		if (tn_registry_meta(reg, b) & META_LINKED)
			settle_depth(reg, b);
	return linked;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

int tn_block_take(struct tn_registry *reg, uint16_t space, const struct tn_key *key, const struct tn_key *parent,
		  tn_block *out)
{
	uint32_t meta = (uint32_t)TN_BLOCK_COMPLETE << META_STATE_SHIFT | space;
	tn_block b = reg->free;
	struct tn_record *r;
	struct tn_chain *c;

	if (tn_key_is_zero(key))
		return tn_fail(-EINVAL, "key 0: means no block");
	if (b != TN_BLOCK_NONE)
		reg->free = reg->records[b].slot[0];
	else if (reg->unused < reg->max_blocks)
		b = reg->unused++;
	else
		return tn_fail(-ENOSPC, "all %u blocks are in use: evict, or raise max_blocks", reg->max_blocks);
	r = &reg->records[b];
	c = &reg->chains[b];
	__atomic_store_n(&r->refs, REFS_DEAD, __ATOMIC_RELAXED);
	__atomic_store_n(&r->key[0], key->word[0], __ATOMIC_RELAXED);
	__atomic_store_n(&r->key[1], key->word[1], __ATOMIC_RELAXED);
	r->slot[0] = r->slot[1] = TN_SLOT_NONE;
	if (reg->device_slot)
		reg->device_slot[b] = TN_SLOT_NONE;
	c->wanted = 0;
	c->depth = 0;
	if (parent && !tn_key_is_zero(parent) && !tn_key_eq(parent, key)) {
		c->wanted = parent_hash(space, parent);
		meta |= META_WANTED;
	}
	meta_set(reg, b, meta);
	*out = b;
	return 0;
}

/*
 * The key is taken: link its block to its parent again if the link was lost. Keys that an engine gives might form a circle,
 * which is not closed.
 */
static void duplicate(struct tn_registry *reg, tn_block existing, uint64_t wanted)
{
	tn_block parent = TN_BLOCK_NONE;

	if (wanted && tn_block_parent(reg, existing) == TN_BLOCK_NONE)
		parent = tn_registry_by_hash(reg, wanted);
	if (parent != TN_BLOCK_NONE && !is_ancestor(reg, existing, parent))
		link_to(reg, existing, parent);
}

static void publish(struct tn_registry *reg, tn_block b)
{
	uint32_t meta = tn_registry_meta(reg, b);
	tn_block parent = TN_BLOCK_NONE;

	meta_set(reg, b, (meta & ~META_STATE_MASK) | (uint32_t)TN_BLOCK_REGISTERED << META_STATE_SHIFT);
	if (meta & META_WANTED)
		parent = tn_registry_by_hash(reg, reg->chains[b].wanted);
	if (parent != TN_BLOCK_NONE) /* of which a new block is no ancestor */
		link_to(reg, b, parent);
	__atomic_store_n(&reg->records[b].refs, 0, __ATOMIC_RELEASE);
	tn_registry_insert(reg, b);
}

int tn_block_register(struct tn_registry *reg, tn_block b, tn_block *out)
{
	struct tn_key key;
	tn_block existing;
	int rc = check(reg, b, TN_BLOCK_COMPLETE, "register");

	if (rc)
		return rc;
	key = tn_block_key(reg, b);
	existing = tn_registry_find_one(reg, tn_block_space(reg, b), &key, false);
	if (existing != TN_BLOCK_NONE) {
		duplicate(reg, existing, tn_registry_meta(reg, b) & META_WANTED ? reg->chains[b].wanted : 0);
		give_back(reg, b);
		*out = existing;
		return 1;
	}
	publish(reg, b);
	*out = b;
	return 0;
}

int tn_block_adopt(struct tn_registry *reg, uint16_t space, const struct tn_key *key, const struct tn_key *parent,
		   tn_block *out)
{
	tn_block b;
	int rc;

	if (parent)
		tn_registry_prefetch(reg, parent_hash(space, parent)); /* so that two cache misses overlap */
	b = tn_registry_find_one(reg, space, key, false);
	if (b != TN_BLOCK_NONE) {
		duplicate(reg, b, parent && !tn_key_is_zero(parent) ? parent_hash(space, parent) : 0);
		*out = b;
		return 1;
	}
	rc = tn_block_take(reg, space, key, parent, &b);
	if (rc)
		return rc;
	publish(reg, b);
	*out = b;
	return 0;
}

int tn_block_reset(struct tn_registry *reg, tn_block b)
{
	int rc = check(reg, b, TN_BLOCK_COMPLETE, "reset");

	if (rc)
		return rc;
	give_back(reg, b);
	return 0;
}

int tn_block_forget(struct tn_registry *reg, tn_block b)
{
	uint32_t refs = 0;
	int rc = check(reg, b, TN_BLOCK_REGISTERED, "forget");

	if (rc)
		return rc;
	if (!__atomic_compare_exchange_n(&reg->records[b].refs, &refs, REFS_DEAD, false, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED))
		return tn_fail(-EBUSY, "block %u: has %u references, forget it when they are gone", b, refs);
	tn_registry_remove(reg, b);
	reg->chains[b].generation = (reg->chains[b].generation + 1) & GENERATION_MASK;
	give_back(reg, b);
	return 0;
}

/* ---- what a record holds --------------------------------------------------------------------- */

uint32_t tn_block_refs(const struct tn_registry *reg, tn_block b)
{
	uint32_t refs = __atomic_load_n(&reg->records[b].refs, __ATOMIC_ACQUIRE);

	return refs == REFS_DEAD ? 0 : refs;
}

void tn_block_ref(struct tn_registry *reg, tn_block b)
{
	uint32_t before = __atomic_fetch_add(&reg->records[b].refs, 1, __ATOMIC_RELAXED);

	assert(before < REFS_DEAD - 1); /* Registered */
}

struct tn_key tn_block_key(const struct tn_registry *reg, tn_block b)
{
	return (struct tn_key){{reg->records[b].key[0], reg->records[b].key[1]}};
}

uint16_t tn_block_space(const struct tn_registry *reg, tn_block b)
{
	return (uint16_t)tn_registry_meta(reg, b);
}

uint32_t tn_block_depth(const struct tn_registry *reg, tn_block b)
{
	return reg->chains[b].depth;
}

static uint32_t residency_shift(enum tn_tier tier)
{
	assert(tier >= TN_TIER_DEVICE && tier <= TN_TIER_REMOTE);
	return META_RESIDENCY_SHIFT + 2 * ((uint32_t)tier - 1);
}

enum tn_residency tn_block_residency(const struct tn_registry *reg, tn_block b, enum tn_tier tier)
{
	/* Acquire: who sees the tier present also sees what was written before (tn_block_set_residency). */
	return (enum tn_residency)(__atomic_load_n(&reg->records[b].meta, __ATOMIC_ACQUIRE) >> residency_shift(tier) & 3);
}

void tn_block_set_residency(struct tn_registry *reg, tn_block b, enum tn_tier tier, enum tn_residency r)
{
	uint32_t shift = residency_shift(tier);

	/* Release: a reader that sees the tier present also sees what was written before. Only the owner writes. */
	__atomic_store_n(&reg->records[b].meta, (tn_registry_meta(reg, b) & ~(3u << shift)) | (uint32_t)r << shift,
			 __ATOMIC_RELEASE);
}

/* Where the slot's number lies: of a tier whose places are slots. */
static uint32_t *slot_of(const struct tn_registry *reg, tn_block b, enum tn_tier tier)
{
	assert(tier == TN_TIER_HOST || tier == TN_TIER_DISK || (tier == TN_TIER_DEVICE && reg->device_slot));
	return tier == TN_TIER_DEVICE ? &reg->device_slot[b] : &reg->records[b].slot[tier - TN_TIER_HOST];
}

uint32_t tn_block_slot(const struct tn_registry *reg, tn_block b, enum tn_tier tier)
{
	return *slot_of(reg, b, tier);
}

void tn_block_set_slot(struct tn_registry *reg, tn_block b, enum tn_tier tier, uint32_t slot)
{
	*slot_of(reg, b, tier) = slot;
}

uint32_t tn_registry_records(const struct tn_registry *reg)
{
	return reg->unused;
}

tn_block tn_registry_next(const struct tn_registry *reg, tn_block b)
{
	for (b = b == TN_BLOCK_NONE ? 0 : b + 1; b < reg->unused; b++)
		if (tn_block_state(reg, b) == TN_BLOCK_REGISTERED)
			return b;
	return TN_BLOCK_NONE;
}

bool tn_block_withdraw(struct tn_registry *reg, tn_block b, enum tn_tier tier)
{
	tn_block_set_residency(reg, b, tier, TN_DRAINING);
	/*
	 * Here: store meta, then load refs. In a look-up: store refs, then load meta. So at least one of the two sees
	 * the other.
	 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&reg->records[b].refs, __ATOMIC_SEQ_CST) == 0)
		return true;
	tn_block_set_residency(reg, b, tier, TN_PRESENT);
	return false;
}
