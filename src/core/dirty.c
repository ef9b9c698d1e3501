/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in memory that are to go to a tier below: between the core's spaces and the queues of the memory tier. Owner thread only. */
#include "core/core.h"

/* Of what a flush waits for. */
static uint64_t promised_bytes(const struct tn_cache *cache, tn_block b, const struct tn_tier_base *target)
{
	if (!target->ops->traits.durable)
		return 0;
	return cache->spaces[tn_block_space(cache->registry, b)]->shape.slot_bytes;
}

void tn_dirty_push(struct tn_cache *cache, tn_block b, const struct tn_tier_base *target)
{
	tn_host_wait(cache->host, tn_tier_place_of(cache->memory, b), target->tier,
		     target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY, promised_bytes(cache, b, target),
		     tn_now_ns(&cache->clock));
}

void tn_dirty_settled(struct tn_cache *cache, uint32_t slot, const struct tn_tier_base *target, enum tn_dirty as)
{
	tn_host_settled(cache->host, slot, target->tier, as, promised_bytes(cache, tn_host_block(cache->host, slot), target));
}

static bool goes(const struct tn_cache *cache, uint32_t slot, const struct tn_tier_base *target)
{
	tn_block b = tn_host_block(cache->host, slot);

	return tn_host_dirty(cache->host, slot, target->tier) == (target->ops->traits.durable ? TN_DIRTY_WAITS : TN_DIRTY_COPY) &&
	       tn_tier_has(cache->memory, b) && /* not dropped */
	       !__atomic_load_n(&cache->spaces[tn_block_space(cache->registry, b)]->dropping, __ATOMIC_RELAXED);
}

const struct tn_host_waiting *tn_dirty_first(struct tn_cache *cache, const struct tn_tier_base *target)
{
	const struct tn_host_waiting *w;

	while ((w = tn_host_first(cache->host, target->tier)) && !goes(cache, w->slot, target))
		tn_host_pop(cache->host, target->tier);
	return w;
}
