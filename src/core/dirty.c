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
	tn_host_wait(d->row->host, tn_tier_place_of(d->row->memory, b), target->tier,
		     target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY, promised_bytes(d, b, target),
		     tn_now_ns(d->clock));
}

void tn_dirty_settled(struct tn_dirty_blocks *d, uint32_t slot, const struct tn_tier_base *target, enum tn_dirty as)
{
	tn_host_settled(d->row->host, slot, target->tier, as, promised_bytes(d, tn_host_block(d->row->host, slot), target));
}

static bool goes(const struct tn_dirty_blocks *d, uint32_t slot, const struct tn_tier_base *target)
{
	tn_block b = tn_host_block(d->row->host, slot);

	return tn_host_dirty(d->row->host, slot, target->tier) == (target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY) &&
	       tn_tier_has(d->row->memory, b) && /* not dropped */
	       !__atomic_load_n(&d->spaces[tn_block_space(d->registry, b)]->dropping, __ATOMIC_RELAXED);
}

const struct tn_host_waiting *tn_dirty_first(struct tn_dirty_blocks *d, const struct tn_tier_base *target)
{
	const struct tn_host_waiting *w;

	while ((w = tn_host_first(d->row->host, target->tier)) && !goes(d, w->slot, target))
		tn_host_pop(d->row->host, target->tier);
	return w;
}
