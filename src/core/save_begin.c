/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a save, on the owner thread: which of its blocks are there already, and which of the others the durable
 * tier lets in. What it keeps out may still lie in memory, and is told apart (enum tn_saved).
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

/* What the durable tier may know of a block that is not in it yet. */
void tn_save_describe(struct tn_save_op *save, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info)
{
	const struct tn_tier_base *t = save->w.op.cache->durable;

	*info = (struct tn_policy_block){
		.key_hash = tn_key_hash(&save->w.op.keys[i], save->w.op.space->index),
		.parent = t ? tn_tier_entry(t, parent) : TN_ENTRY_NONE,
		.depth = depth,
		.from_end = save->w.op.n - 1 - i,
		.partial = save->partial_last && i == save->w.op.n - 1,
		.priority = (int8_t)save->w.op.priority,
	};
}

/* Whether the durable tier lets the block in; what is in its way for another reason than the policy's word is noted. */
static bool let_in(struct tn_save_op *save, const struct tn_policy_block *info)
{
	struct tn_space *space = save->w.op.space;
	struct tn_tier_base *t = save->w.op.cache->durable;
	int rc;

	if (!tn_space_in(space, t) || tn_space_quota(space, t->tier) < space->shape.slot_bytes)
		return false;
	rc = tn_tier_admit(t, info, space->shape.slot_bytes);
	if (rc < 0 && !save->kept_off)
		save->kept_off = rc;
	return rc > 0;
}

/* For records: of the lowest tier first. */
static bool evict_some(struct tn_cache *cache)
{
	for (unsigned t = TN_TIERS_MAX; t-- > 0;)
		if (cache->tier[t] && tn_tier_evict(cache->tier[t], 16, -1, NULL) > 0)
			return true;
	return false;
}

/* A record for the new block, in state Complete: its key is known, its bytes are not stored yet. */
static int take_record(struct tn_save_op *save, uint32_t i)
{
	struct tn_cache *cache = save->w.op.cache;
	const struct tn_key *parent = i ? &save->w.op.keys[i - 1] : &save->parent;
	tn_block b;
	int rc = tn_block_take(cache->registry, &b);

	if (rc == -ENOSPC && evict_some(cache))
		rc = tn_block_take(cache->registry, &b);
	if (rc == 0)
		rc = tn_block_complete(cache->registry, b, save->w.op.space->index, &save->w.op.keys[i], parent);
	if (rc == 0)
		save->w.items[i].block = b;
	return rc;
}

/* Asks for the block to be let in; if it is, it counts as one of the tier's from now on. */
static void admit(struct tn_save_op *save, uint32_t i, const struct tn_policy_block *info)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_write_item *item = &save->w.items[i];

	if (!let_in(save, info))
		return;
	if (take_record(save, i) == 0) {
		item->admitted = true;
		tn_block_let_in(cache, cache->durable, item->block, info);
	} else if (cache->durable->ops->quota) {
		cache->durable->ops->quota(cache->durable, save->w.op.space->shape.slot_bytes, false);
	}
}

/* The block is there. If only in memory, it is offered to the durable tier once more. */
static void begin_visible(struct tn_save_op *save, uint32_t i, tn_block b, tn_block parent, uint32_t depth)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_write_item *item = &save->w.items[i];
	struct tn_policy_block info;

	item->state = TN_WRITE_EXISTING;
	item->block = b;
	tn_block_ref(cache->registry, b); /* not to be evicted for the blocks behind it; until the end of begin */
	tn_watch_extend(cache, b, save->ttl_ns); /* also if its time is over: the bytes are the key's */
	tn_block_touch(cache, b, save->w.op.n - 1 - i, save->partial_last && i == save->w.op.n - 1);
	item->saved = TN_SAVED_EXISTING;
	if (tn_block_is_kept(cache, b))
		return;
	tn_save_describe(save, i, parent, depth, &info);
	item->saved = TN_SAVED_HOST_ONLY;
	if (!let_in(save, &info))
		return;
	tn_block_let_in(cache, cache->durable, b, &info);
	tn_dirty_push(cache, b, cache->durable);
	item->saved = TN_SAVED_STORED;
}

static void begin_item(struct tn_save_op *save, uint32_t i, tn_block *parent, uint32_t depth)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_registry *reg = cache->registry;
	struct tn_write_item *item = &save->w.items[i];
	tn_block b = tn_registry_find_one(reg, save->w.op.space->index, &save->w.op.keys[i], false);
	struct tn_policy_block info;

	if (b != TN_BLOCK_NONE && tn_block_is_local(cache, b)) {
		begin_visible(save, i, b, *parent, depth);
		*parent = b;
		return;
	}
	tn_save_describe(save, i, *parent, depth, &info);
	admit(save, i, &info);
	*parent = item->block;
	if (!item->admitted && tn_space_in(save->w.op.space, cache->memory) && take_record(save, i) == 0)
		*parent = TN_BLOCK_NONE; /* in memory only: no parent in the durable tier's eyes */
	if (item->block != TN_BLOCK_NONE) {
		item->state = TN_WRITE_PLACE;
		save->w.unplaced++;
	} else {
		item->state = TN_WRITE_REJECTED;
		item->saved = TN_SAVED_REJECTED;
	}
}

/* Blocks that are there, and those before them. */
static void touch_back(struct tn_save_op *save, tn_block before)
{
	struct tn_cache *cache = save->w.op.cache;
	uint32_t n = save->w.op.n, from_end = n;

	if (!tn_request_goes_back(cache))
		return;
	for (uint32_t i = n; i-- > 0;)
		if (save->w.items[i].block != TN_BLOCK_NONE)
			tn_block_touch_back(cache, save->w.items[i].block, n - 1 - i);
	for (tn_block b = before; b != TN_BLOCK_NONE; b = tn_block_parent(cache->registry, b))
		tn_block_touch_back(cache, b, from_end++);
}

void tn_save_find_work(struct tn_save_op *save)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_registry *reg = cache->registry;
	tn_block parent = TN_BLOCK_NONE, first;
	uint32_t depth = 0;

	if (!tn_key_is_zero(&save->parent))
		parent = tn_registry_find_one(reg, save->w.op.space->index, &save->parent, true);
	first = parent;
	if (parent != TN_BLOCK_NONE)
		depth = tn_block_depth(reg, parent) + 1;
	tn_request_begins(cache, depth + save->w.op.n, depth, parent);
	for (uint32_t i = 0; i < save->w.op.n; i++)
		begin_item(save, i, &parent, depth + i);
	touch_back(save, first);
	for (uint32_t i = 0; i < save->w.op.n; i++)
		if (save->w.items[i].state == TN_WRITE_EXISTING)
			tn_block_unpin(reg, save->w.items[i].block);
	if (first != TN_BLOCK_NONE)
		tn_block_release(cache, first);
	tn_places_join(&save->w);
}

void tn_save_begins(struct tn_save_op *save)
{
	struct tn_op *op = &save->w.op;

	op->active = true;
	op->cache->c.saves++;
	tn_list_push(&op->cache->saves, &op->link);
	save->held = __atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED);
	if (!save->held)
		tn_save_find_work(save);
}
