/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in memory that are to go to a tier below: between the core's spaces and the queues of the memory tier. Owner thread only. */
#include "core/core.h"

/* Of what a flush waits for. */
static uint64_t promised_bytes(const struct tn_dirty_blocks *d, tn_block b, const struct tn_tier_base *target)
{
	if (!target->ops->traits.durable)
		return 0;
	return d->spaces[tn_block_space(d->registry, b)]->shape.slot_bytes;
}

void tn_dirty_push(struct tn_dirty_blocks *d, tn_block b, const struct tn_tier_base *target)
{
	tn_queues_wait(d->row->queues, tn_tier_place_of(d->row->memory, b), target->tier,
		     target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY, promised_bytes(d, b, target),
		     tn_now_ns(d->clock));
}

void tn_dirty_settled(struct tn_dirty_blocks *d, uint32_t slot, const struct tn_tier_base *target, enum tn_dirty as)
{
	tn_queues_settled(d->row->queues, slot, target->tier, as, promised_bytes(d, d->row->memory->block_of[slot], target));
}

static bool goes(const struct tn_dirty_blocks *d, uint32_t slot, const struct tn_tier_base *target)
{
	tn_block b = d->row->memory->block_of[slot];

	return tn_queues_state(d->row->queues, slot, target->tier) == (target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY) &&
	       tn_tier_has(d->row->memory, b) && /* not dropped */
	       !__atomic_load_n(&d->spaces[tn_block_space(d->registry, b)]->dropping, __ATOMIC_RELAXED);
}

const struct tn_waiting *tn_dirty_first(struct tn_dirty_blocks *d, const struct tn_tier_base *target)
{
	const struct tn_waiting *w;

	while ((w = tn_queues_first(d->row->queues, target->tier)) && !goes(d, w->slot, target))
		tn_queues_pop(d->row->queues, target->tier);
	return w;
}
