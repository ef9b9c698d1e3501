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
void tn_save_describe(struct tn_op *op, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = tn_key_hash(&op->keys[i], op->space->index),
		.parent = tn_disk_entry(op->cache, parent),
		.depth = depth,
		.from_end = op->n - 1 - i,
		.partial = op->partial_last && i == op->n - 1,
		.priority = (int8_t)op->priority,
	};
}

/* Whether the block may go to disk; what is in its way for another reason than the policy's word is noted. */
static bool let_in(struct tn_op *op, const struct tn_policy_block *info)
{
	struct tn_cache *cache = op->cache;
	struct tn_space *space = op->space;
	int why;

	if (!cache->store || space->disk_class == UINT32_MAX ||
	    __atomic_load_n(&space->quota.disk_bytes, __ATOMIC_RELAXED) < space->shape.slot_bytes)
		return false;
	why = tn_store_writable(cache->store) ? tn_disk_admit(cache, info, space->shape.slot_bytes) : -EROFS;
	if (why < 0 && !op->kept_off)
		op->kept_off = why;
	return why > 0;
}

/* A record for the new block, in state Complete: its key is known, its bytes are not stored yet. */
static int take_record(struct tn_op *op, uint32_t i)
{
	struct tn_cache *cache = op->cache;
	const struct tn_key *parent = i ? &op->keys[i - 1] : &op->parent;
	tn_block b;
	int rc = tn_block_take(cache->registry, &b);

	if (rc == -ENOSPC && (tn_evict_disk(cache, 16, -1) > 0 || tn_evict_host(cache, 16, -1) > 0))
		rc = tn_block_take(cache->registry, &b);
	if (rc == 0)
		rc = tn_block_complete(cache->registry, b, op->space->index, &op->keys[i], parent);
	if (rc == 0)
		op->items[i].block = b;
	return rc;
}

/* Asks for the block to be let onto the disk; if it is, it counts as one of the disk's from now on. */
static void admit(struct tn_op *op, uint32_t i, const struct tn_policy_block *info)
{
	struct tn_cache *cache = op->cache;
	struct tn_item *item = &op->items[i];

	if (!let_in(op, info))
		return;
	if (take_record(op, i) == 0) {
		item->admitted = true;
		tn_disk_entry_add(cache, item->block, info);
	} else {
		tn_store_uncharge_write(cache->store, op->space->shape.slot_bytes);
	}
}

/* The block is there. If only in host memory, it is offered to the disk once more. */
static void begin_visible(struct tn_op *op, uint32_t i, tn_block b, tn_block parent, uint32_t depth)
{
	struct tn_cache *cache = op->cache;
	struct tn_item *item = &op->items[i];
	struct tn_policy_block info;

	item->state = TN_ITEM_EXISTING;
	item->block = b;
	tn_block_ref(cache->registry, b); /* not to be evicted for the blocks behind it; until the end of begin */
	tn_watch_extend(cache, b, op->ttl_ns); /* also if its time is over: the bytes are the key's */
	tn_block_touch(cache, b, op->n - 1 - i, op->partial_last && i == op->n - 1);
	item->saved = TN_SAVED_EXISTING;
	if (tn_block_goes_to_disk(cache, b))
		return;
	tn_save_describe(op, i, parent, depth, &info);
	item->saved = TN_SAVED_HOST_ONLY;
	if (!let_in(op, &info))
		return;
	tn_disk_entry_add(cache, b, &info);
	tn_offload_push(cache, tn_block_slot(cache->registry, b, TN_TIER_HOST));
	item->saved = TN_SAVED_STORED;
}

static void begin_item(struct tn_op *op, uint32_t i, tn_block *parent, uint32_t depth)
{
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	struct tn_item *item = &op->items[i];
	tn_block b = tn_registry_find_one(reg, op->space->index, &op->keys[i], false);
	struct tn_policy_block info;

	if (b != TN_BLOCK_NONE && (tn_block_residency(reg, b, TN_TIER_HOST) == TN_PRESENT ||
				   tn_block_residency(reg, b, TN_TIER_DISK) == TN_PRESENT)) {
		begin_visible(op, i, b, *parent, depth);
		*parent = b;
		return;
	}
	tn_save_describe(op, i, *parent, depth, &info);
	admit(op, i, &info);
	*parent = item->block;
	if (!item->admitted && cache->host && op->space->host_ok && take_record(op, i) == 0)
		*parent = TN_BLOCK_NONE; /* in host memory only: no parent in the disk's eyes */
	if (item->block != TN_BLOCK_NONE) {
		item->state = TN_ITEM_PLACE;
		op->unplaced++;
	} else {
		item->state = TN_ITEM_REJECTED;
		item->saved = TN_SAVED_REJECTED;
	}
}

void tn_save_begins(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	tn_block parent = TN_BLOCK_NONE, first;
	uint32_t depth = 0;

	if (!tn_key_is_zero(&op->parent))
		parent = tn_registry_find_one(reg, op->space->index, &op->parent, true);
	first = parent;
	if (parent != TN_BLOCK_NONE)
		depth = tn_block_depth(reg, parent) + 1;
	tn_request_begins(cache, depth + op->n, depth, parent);
	for (uint32_t i = 0; i < op->n; i++)
		begin_item(op, i, &parent, depth + i);
	tn_request_ends(op);
	for (uint32_t i = 0; i < op->n; i++)
		if (op->items[i].state == TN_ITEM_EXISTING)
			tn_block_unpin(reg, op->items[i].block);
	if (first != TN_BLOCK_NONE) {
		tn_block_unpin(reg, first);
		tn_block_try_forget(cache, first);
	}
	tn_places_join(op);
}

void tn_save_start(struct tn_cmd *cmd)
{
	struct tn_op *op = tn_container_of(cmd, struct tn_op, kick);

	if (!tn_op_kicked(op))
		return;
	if (op->active)
		return; /* the next step looks at what changed */
	op->active = true;
	op->cache->c.saves++;
	tn_list_push(&op->cache->saves, &op->link);
	op->held = __atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED);
	if (!op->held)
		tn_save_begins(op);
}
