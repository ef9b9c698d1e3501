/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host slots whose blocks are to go to disk: the queue of those that wait, the oldest first, and its tables. Owner thread only.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "cache/cache_internal.h"

void tn_dirty_push(struct tn_cache *cache, uint32_t host_slot)
{
	tn_block b = tn_host_block(cache->host, host_slot);

	/* A slot is in the queue once: one whose block was dropped and that is dirty again keeps its earlier place. */
	if (!cache->host_queued[host_slot]) {
		assert(cache->offload_count < cache->offload_size);
		cache->offload_queue[(cache->offload_head + cache->offload_count++) % cache->offload_size] =
			(struct tn_offload_place){tn_now_ns(&cache->clock), host_slot};
		cache->offload_queued++;
		cache->host_queued[host_slot] = 1;
	}
	cache->host_dirty[host_slot] = TN_DIRTY_WAITS;
	cache->host_dirty_slots++;
	cache->host_dirty_bytes += cache->spaces[tn_block_space(cache->registry, b)]->shape.slot_bytes;
}

void tn_dirty_settled(struct tn_cache *cache, uint32_t host_slot)
{
	tn_block b = tn_host_block(cache->host, host_slot);

	cache->host_dirty[host_slot] = TN_DIRTY_NOT;
	cache->host_dirty_slots--;
	cache->host_dirty_bytes -= cache->spaces[tn_block_space(cache->registry, b)]->shape.slot_bytes;
}

static bool goes(const struct tn_cache *cache, uint32_t slot)
{
	tn_block b = tn_host_block(cache->host, slot);

	return cache->host_dirty[slot] == TN_DIRTY_WAITS &&
	       tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_PRESENT && /* not dropped */
	       !__atomic_load_n(&cache->spaces[tn_block_space(cache->registry, b)]->dropping, __ATOMIC_RELAXED);
}

uint32_t tn_dirty_pop(struct tn_cache *cache)
{
	uint32_t slot = cache->offload_queue[cache->offload_head].slot;

	cache->offload_head = (cache->offload_head + 1) % cache->offload_size;
	cache->offload_count--;
	cache->host_queued[slot] = 0;
	return slot;
}

/* The first place of the queue whose block still needs to go; NULL: there is none. */
const struct tn_offload_place *tn_dirty_first(struct tn_cache *cache)
{
	while (cache->offload_count > 0 && !goes(cache, cache->offload_queue[cache->offload_head].slot))
		tn_dirty_pop(cache);
	return cache->offload_count > 0 ? &cache->offload_queue[cache->offload_head] : NULL;
}

/* The host tier's tables, for a number of slots. */
struct host_tables {
	uint8_t *dirty; /* and queued, behind it */
	struct tn_offload_place *queue;
	struct tn_policy *policy;
};

static uint32_t queue_size(uint32_t slots)
{
	return slots * 2; /* a slot may be queued again while its old place is still there */
}

static void host_tables_put(const struct tn_cache *cache, const struct host_tables *t, uint32_t slots)
{
	if (t->policy)
		t->policy->ops->destroy(t->policy);
	tn_put(cache->alloc, t->dirty, 2 * (size_t)slots);
	tn_put(cache->alloc, t->queue, tn_array_bytes(queue_size(slots), sizeof(struct tn_offload_place)));
}

static int host_tables_get(const struct tn_cache *cache, struct host_tables *t, uint32_t slots)
{
	struct tn_policy_opts po = {.alloc = cache->alloc, .seed = cache->o.seed, .capacity = slots};
	const struct tn_policy_ops *lru;
	int rc = tn_policy_find("lru", &lru);

	*t = (struct host_tables){tn_get(cache->alloc, 2 * (size_t)slots),
				  tn_get(cache->alloc, tn_array_bytes(queue_size(slots), sizeof(struct tn_offload_place))), NULL};
	if (rc == 0 && (!t->dirty || !t->queue))
		rc = tn_fail(-ENOMEM, "no memory for %u host slots", slots);
	return rc ? rc : lru->create(&po, &t->policy);
}

/* Makes them for the number of slots that the slab is cut into for this shape; a failure changes nothing. */
int tn_host_policy_for(struct tn_cache *cache, const struct tn_shape *shape)
{
	struct host_tables old = {cache->host_dirty, cache->offload_queue, cache->host_policy}, new;
	uint32_t before = tn_host_slots(cache->host), slots;
	int rc = tn_host_plan(cache->host, shape, &slots);

	if (rc || slots == before)
		return rc ? rc : tn_host_shape(cache->host, shape);
	rc = host_tables_get(cache, &new, slots);
	if (rc == 0)
		rc = tn_host_shape(cache->host, shape);
	if (rc) {
		host_tables_put(cache, &new, slots);
		return rc;
	}
	host_tables_put(cache, &old, before);
	cache->host_policy = new.policy;
	cache->host_dirty = new.dirty;
	cache->host_queued = new.dirty + slots;
	cache->offload_queue = new.queue;
	cache->offload_size = queue_size(slots);
	cache->offload_head = cache->offload_count = 0;
	return 0;
}
