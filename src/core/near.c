/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks come to the near tier from pages in the same memory, by copies beside those of a load or a save; what does not come in costs the operation nothing.
 */
#include "core/near.h"

#include "core/load_chunk.h"
#include "core/pool.h"

bool tn_op_is_near(const struct tn_op *op)
{
	const struct tn_tier_base *t = op->cache->row.near;

	return t && op->pool && t->ops->serves(t, &op->pool->memory->mapping);
}

uint32_t tn_near_place(struct tn_op *op, uint32_t i)
{
	struct tn_tier_base *t = op->cache->row.near;
	struct tn_place_wait wait = {0};
	uint32_t place;

	if (!tn_op_is_near(op) || !tn_space_in(op->space, t))
		return TN_SLOT_NONE;
	tn_place_wait_init(&wait, op->space, t);
	if (tn_tier_place(t, &wait, 1, &place) != 1)
		return TN_SLOT_NONE;
	op->near[i] = t->ops->offset(t, place, op->shape, NULL);
	return place;
}

void tn_near_arrives(const struct tn_op *op, tn_block b, uint32_t place, bool whole)
{
	struct tn_blocks *bl = &op->cache->blocks;
	struct tn_tier_base *t = op->cache->row.near;

	if (place == TN_SLOT_NONE)
		return;
	if (!whole || b == TN_BLOCK_NONE || tn_block_is_dropped(bl, b) || tn_tier_residency(t, b) != TN_ABSENT || t->ops->health(t) != 0) {
		tn_tier_release(t, op->space->index, b, place, 0);
		return;
	}
	tn_block_arrives(bl, t, b, place, NULL);
	bl->c->promoted_device_blocks++;
}

void tn_item_kept_near(struct tn_write_item *item, tn_block b)
{
	tn_near_arrives(&item->w->op, b, item->near, item->near_done == item->w->op.shape->layers && !item->near_unfit);
	item->near = TN_SLOT_NONE;
}

void tn_read_copy_near(struct tn_read_item *item, uint32_t c)
{
	if (item->near == TN_SLOT_NONE || item->near_unfit)
		return;
	item->near_unfit = !tn_chunk_copy_near(item, c);
	item->inflight += !item->near_unfit;
	item->r->op.inflight += !item->near_unfit;
}

void tn_read_kept_near(struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;

	if (item->near == TN_SLOT_NONE)
		return;
	if (tn_tier_residency(op->cache->row.near, item->block) == TN_FILLING)
		tn_block_set_residency(op->cache->registry, item->block, op->cache->row.near->tier, TN_ABSENT);
	tn_near_arrives(op, item->block, item->near, item->done_chunks == op->shape->chunks && !item->near_unfit);
	item->near = TN_SLOT_NONE;
}

void tn_near_failed(const struct tn_op *op, tn_block b)
{
	tn_block_quits(&op->cache->blocks, op->cache->row.near, b);
}
