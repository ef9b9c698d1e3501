/* SPDX-License-Identifier: Apache-2.0 */
/* What is told about blocks to the outside - events and snapshots -, and when they expire. Owner thread. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "block/events.h"
#include "core/core.h"

#define EVENTS_KEPT 65536u
#define EXPIRY_SCAN 65536u	    /* blocks looked at in one step */
#define EXPIRY_EVERY_NS 100000000ull /* between steps */
#define SECOND_NS 1000000000ull

int tn_watch_create(struct tn_cache *cache)
{
	cache->expiry = tn_get(cache->alloc, tn_array_bytes(cache->max_blocks, sizeof(*cache->expiry)));
	if (!cache->expiry)
		return tn_fail(-ENOMEM, "no memory to watch %u blocks", cache->max_blocks);
	return tn_events_create(EVENTS_KEPT, cache->alloc, &cache->events);
}

void tn_watch_destroy(struct tn_cache *cache)
{
	tn_put(cache->alloc, cache->expiry, tn_array_bytes(cache->max_blocks, sizeof(*cache->expiry)));
	tn_events_destroy(cache->events);
}

/* ---- events ------------------------------------------------------------------------------------------------- */

static void fill_event(struct tn_cache *cache, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind,
		       struct tn_block_event *e)
{
	struct tn_registry *reg = cache->registry;
	tn_block parent = tn_block_parent(reg, b);

	*e = (struct tn_block_event){
		.time_ns = tn_now_ns(&cache->clock),
		.key = tn_block_key(reg, b),
		.depth = tn_block_depth(reg, b),
		.space = tn_block_space(reg, b),
		.kind = (uint8_t)kind,
		.tier = (uint8_t)tier,
	};
	if (parent != TN_BLOCK_NONE)
		e->parent = tn_block_key(reg, parent);
	if (cache->spaces[e->space])
		e->bytes = (uint64_t)cache->spaces[e->space]->shape.object_bytes * cache->spaces[e->space]->shape.layers;
}

void tn_watch_raise(struct tn_cache *cache, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind)
{
	struct tn_block_event e;

	fill_event(cache, b, tier, kind, &e);
	tn_events_raise(cache->events, &e);
}

uint16_t tn_space_index(const struct tn_space *space)
{
	return space->index;
}

int tn_watch_snapshot(struct tn_cache *cache, void *arg)
{
	struct tn_registry *reg = cache->registry;
	struct tn_watch_snapshot *s = arg;

	for (tn_block b = tn_registry_next(reg, TN_BLOCK_NONE); b != TN_BLOCK_NONE; b = tn_registry_next(reg, b))
		for_each_tier(t, cache) {
			struct tn_block_event e;

			if (!tn_tier_has(t, b))
				continue;
			fill_event(cache, b, t->tier, TN_EVENT_STORED, &e);
			s->fn(s->arg, &e);
			s->count++;
		}
	s->cursor = tn_events_next(cache->events);
	return 0;
}

/* ---- time to live --------------------------------------------------------------------------------------------- */

/* Seconds of the monotonic clock, rounded up; 0: never. */
static uint32_t expiry_of(const struct tn_cache *cache, uint64_t ttl_ns)
{
	uint64_t at = ttl_ns ? (tn_now_ns(&cache->clock) + ttl_ns + SECOND_NS - 1) / SECOND_NS : 0;

	return at > UINT32_MAX || (ttl_ns && at < ttl_ns / SECOND_NS) ? UINT32_MAX : (uint32_t)at;
}

static void set_expiry(struct tn_cache *cache, tn_block b, uint32_t at)
{
	if (at)
		__atomic_store_n(&cache->ttl_used, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&cache->expiry[b], at, __ATOMIC_RELAXED);
}

void tn_watch_expire_at(struct tn_cache *cache, tn_block b, uint64_t ttl_ns)
{
	set_expiry(cache, b, expiry_of(cache, ttl_ns));
}

/*
 * A block that is there was saved again: the longer of both times to live counts. The index on disk says of a block whether
 * it has one, because those that have are not recovered; so it is told when that ends.
 */
void tn_watch_extend(struct tn_cache *cache, tn_block b, uint64_t ttl_ns)
{
	uint32_t had = cache->expiry[b], at = expiry_of(cache, ttl_ns);

	if (had == 0 || (at != 0 && at <= had))
		return;
	set_expiry(cache, b, at);
	if (at == 0 && cache->durable && tn_tier_has(cache->durable, b))
		tn_store_update(cache->store, tn_tier_place_of(cache->durable, b));
}

/* Any thread. */
bool tn_watch_expired(const struct tn_cache *cache, tn_block b)
{
	uint32_t at;

	if (!__atomic_load_n(&cache->ttl_used, __ATOMIC_RELAXED))
		return false;
	at = __atomic_load_n(&cache->expiry[b], __ATOMIC_RELAXED);
	return at && at <= tn_now_ns(&cache->clock) / SECOND_NS;
}

/*
 * Gives up expired blocks, some at a time; one that somebody holds on a later round, so that until then a save may still
 * revive it. Returns when to come back.
 */
uint64_t tn_watch_step(struct tn_cache *cache, uint64_t now_ns, void (*expire)(struct tn_cache *cache, tn_block b))
{
	if (!cache->ttl_used)
		return TN_FOREVER;
	if (now_ns < cache->expiry_due_ns)
		return cache->expiry_due_ns;
	for (uint32_t k = 0; k < EXPIRY_SCAN && k < cache->max_blocks; k++) {
		tn_block b = cache->expiry_cursor;

		cache->expiry_cursor = (b + 1) % cache->max_blocks;
		if (cache->expiry[b] && tn_watch_expired(cache, b) &&
		    cache->is_doomed[b] != TN_DOOM_DROPPED && tn_block_state(cache->registry, b) == TN_BLOCK_REGISTERED &&
		    tn_block_refs(cache->registry, b) == 0)
			expire(cache, b);
	}
	cache->expiry_due_ns = now_ns + EXPIRY_EVERY_NS;
	return cache->expiry_due_ns;
}
