/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks come to the device tier from pages on its device, by copies beside those of a load or a save; what does not come in costs the operation nothing.
 */
#include "core/g1.h"

#include "core/load_chunk.h"
#include "core/pool.h"
#include "tier/device/device.h"

static struct tn_tier_base *tier_of(const struct tn_op *op)
{
	return op->cache->row.tier[TN_TIER_DEVICE];
}

bool tn_op_on_g1(const struct tn_op *op)
{
	return tier_of(op) && op->pool && tn_g1_serves(tier_of(op), &op->pool->memory->mapping);
}

uint32_t tn_g1_place(struct tn_op *op, uint32_t i)
{
	struct tn_tier_base *t = tier_of(op);
	struct tn_place_wait wait = {0};
	uint32_t place;

	if (!tn_op_on_g1(op) || !tn_space_in(op->space, t))
		return TN_SLOT_NONE;
	tn_place_wait_init(&wait, op->space, t);
	if (tn_tier_place(t, &wait, 1, &place) != 1)
		return TN_SLOT_NONE;
	op->g1[i] = t->ops->offset(t, place, op->shape, NULL);
	return place;
}

void tn_g1_arrives(const struct tn_op *op, tn_block b, uint32_t place, bool whole)
{
	struct tn_blocks *bl = &op->cache->blocks;
	struct tn_tier_base *t = tier_of(op);

	if (place == TN_SLOT_NONE)
		return;
	if (!whole || b == TN_BLOCK_NONE || tn_block_is_dropped(bl, b) || tn_tier_residency(t, b) != TN_ABSENT || tn_g1_is_lost(t)) {
		tn_tier_release(t, op->space->index, b, place, 0);
		return;
	}
	tn_block_arrives(bl, t, b, place, NULL);
	bl->c->promoted_device_blocks++;
}

void tn_item_kept_on_device(struct tn_write_item *item, tn_block b)
{
	tn_g1_arrives(&item->w->op, b, item->g1, item->g1_done == item->w->op.shape->layers && !item->g1_unfit);
	item->g1 = TN_SLOT_NONE;
}

void tn_read_copy_to_device(struct tn_read_item *item, uint32_t c)
{
	if (item->g1 == TN_SLOT_NONE || item->g1_unfit)
		return;
	item->g1_unfit = !tn_chunk_copy_to_device(item, c);
	item->inflight += !item->g1_unfit;
	item->r->op.inflight += !item->g1_unfit;
}

void tn_read_kept_on_device(struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;

	if (item->g1 == TN_SLOT_NONE)
		return;
	if (tn_tier_residency(tier_of(op), item->block) == TN_FILLING)
		tn_block_set_residency(op->cache->registry, item->block, TN_TIER_DEVICE, TN_ABSENT);
	tn_g1_arrives(op, item->block, item->g1, item->done_chunks == op->shape->chunks && !item->g1_unfit);
	item->g1 = TN_SLOT_NONE;
}

void tn_g1_failed(const struct tn_op *op, tn_block b)
{
	tn_block_quits(&op->cache->blocks, tier_of(op), b);
}

bool tn_g1_step(struct tn_cache *cache)
{
	struct tn_tier_base *t = cache->row.tier[TN_TIER_DEVICE];

	if (!t || cache->g1_lost || !tn_g1_is_lost(t))
		return false;
	cache->g1_lost = true;
	tn_log(&cache->log, TN_LOG_ERROR, "device tier: driver %s has lost device %u (error %d), and with it %llu blocks; loads go on from the tiers below",
	       cache->o.device_tier.driver->ops->name, cache->o.device_tier.device, -ENODEV, (unsigned long long)t->blocks);
	for (uint64_t slot = 0; slot < t->ops->capacity(t); slot++)
		if (t->block_of[slot] != TN_BLOCK_NONE)
			tn_block_quits(&cache->blocks, t, t->block_of[slot]);
	return true;
}
