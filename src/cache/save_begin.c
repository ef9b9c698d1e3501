/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a save, on the owner thread: which of its blocks are there already, and which of the others admission
 * lets onto the disk. What it keeps off may still lie in host memory, and is told apart (enum tn_saved).
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "cache/cache_internal.h"

/* What the policy may know of a block that is not in its tier yet. */
void tn_save_describe(struct tn_save_op *save, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = tn_key_hash(&save->w.op.keys[i], save->w.op.space->index),
		.parent = tn_disk_entry(save->w.op.cache, parent),
		.depth = depth,
		.from_end = save->w.op.n - 1 - i,
		.partial = save->partial_last && i == save->w.op.n - 1,
		.priority = (int8_t)save->w.op.priority,
	};
}

/* Whether the block may go to disk; what is in its way for another reason than the policy's word is noted. */
static bool let_in(struct tn_save_op *save, const struct tn_policy_block *info)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_space *space = save->w.op.space;
	int why;

	if (!cache->store || space->disk_class == UINT32_MAX ||
	    __atomic_load_n(&space->quota.bytes[TN_TIER_DISK], __ATOMIC_RELAXED) < space->shape.slot_bytes)
		return false;
	why = tn_store_writable(cache->store) ? tn_disk_admit(cache, info, space->shape.slot_bytes) : -EROFS;
	if (why < 0 && !save->kept_off)
		save->kept_off = why;
	return why > 0;
}

/* A record for the new block, in state Complete: its key is known, its bytes are not stored yet. */
static int take_record(struct tn_save_op *save, uint32_t i)
{
	struct tn_cache *cache = save->w.op.cache;
	const struct tn_key *parent = i ? &save->w.op.keys[i - 1] : &save->parent;
	tn_block b;
	int rc = tn_block_take(cache->registry, &b);

	if (rc == -ENOSPC && (tn_evict_disk(cache, 16, -1) > 0 || tn_evict_host(cache, 16, -1) > 0))
		rc = tn_block_take(cache->registry, &b);
	if (rc == 0)
		rc = tn_block_complete(cache->registry, b, save->w.op.space->index, &save->w.op.keys[i], parent);
	if (rc == 0)
		save->w.items[i].block = b;
	return rc;
}

/* Asks for the block to be let onto the disk; if it is, it counts as one of the disk's from now on. */
static void admit(struct tn_save_op *save, uint32_t i, const struct tn_policy_block *info)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_write_item *item = &save->w.items[i];

	if (!let_in(save, info))
		return;
	if (take_record(save, i) == 0) {
		item->admitted = true;
		tn_disk_entry_add(cache, item->block, info);
	} else {
		tn_store_uncharge_write(cache->store, save->w.op.space->shape.slot_bytes);
	}
}

/* The block is there. If only in host memory, it is offered to the disk once more. */
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
	if (tn_block_goes_to_disk(cache, b))
		return;
	tn_save_describe(save, i, parent, depth, &info);
	item->saved = TN_SAVED_HOST_ONLY;
	if (!let_in(save, &info))
		return;
	tn_disk_entry_add(cache, b, &info);
	tn_dirty_push(cache, tn_block_slot(cache->registry, b, TN_TIER_HOST));
	item->saved = TN_SAVED_STORED;
}

static void begin_item(struct tn_save_op *save, uint32_t i, tn_block *parent, uint32_t depth)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_registry *reg = cache->registry;
	struct tn_write_item *item = &save->w.items[i];
	tn_block b = tn_registry_find_one(reg, save->w.op.space->index, &save->w.op.keys[i], false);
	struct tn_policy_block info;

	if (b != TN_BLOCK_NONE && (tn_block_residency(reg, b, TN_TIER_HOST) == TN_PRESENT ||
				   tn_block_residency(reg, b, TN_TIER_DISK) == TN_PRESENT)) {
		begin_visible(save, i, b, *parent, depth);
		*parent = b;
		return;
	}
	tn_save_describe(save, i, *parent, depth, &info);
	admit(save, i, &info);
	*parent = item->block;
	if (!item->admitted && cache->host && save->w.op.space->host_ok && take_record(save, i) == 0)
		*parent = TN_BLOCK_NONE; /* in host memory only: no parent in the disk's eyes */
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
