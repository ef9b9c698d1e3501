/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and the row of tiers: what all tiers are told of requests, what the core does when a block arrives or leaves, and
 * blocks that go when nobody holds them any more. Owner thread only, but for tn_doomed_unpinned.
 */
#include <assert.h>

#include "core/core.h"

#define DOOMED_PER_STEP 64u
#define DOOMED_EVERY_NS 1000000000ull /* a look-up on another thread that held one for a moment does not tell */

/* ---- requests --------------------------------------------------------------------------------------------- */

void tn_request_begins(struct tn_cache *cache, uint32_t blocks, uint32_t hits, tn_block parent)
{
	cache->tick++;
	for_each_tier(t, cache)
		tn_tier_request(t, blocks, hits, parent);
}

/* For the index on disk; a request counts once, however often the policy wants to hear of it. */
static void used_now(struct tn_cache *cache, struct tn_tier_base *t, tn_block b)
{
	if (!t->ops->used || cache->recency[b] == cache->tick || tn_tier_residency(t, b) == TN_ABSENT)
		return;
	cache->recency[b] = cache->tick;
	cache->space_recency[tn_block_space(cache->registry, b)] = cache->tick;
	if (tn_tier_has(t, b))
		t->ops->used(t, tn_tier_place_of(t, b), cache->tick);
}

void tn_block_touch(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial)
{
	struct tn_policy_block info;

	tn_block_describe(cache->registry, b, from_end, partial, &info);
	for_each_tier(t, cache) {
		tn_tier_touch(t, b, &info);
		used_now(cache, t, b);
	}
}

static bool goes_back(const struct tn_tier_base *t)
{
	return t->policy && !t->policy->ops->forward;
}

bool tn_request_goes_back(const struct tn_cache *cache)
{
	for_each_tier(t, cache)
		if (goes_back(t))
			return true;
	return false;
}

/*
 * For policies that go by recency alone: the blocks of the request and those before them, last block first, so
 * that the first block ends up the most recent - it is needed by all the others.
 */
void tn_block_touch_back(struct tn_cache *cache, tn_block b, uint32_t from_end)
{
	struct tn_policy_block info;

	tn_block_describe(cache->registry, b, from_end, false, &info);
	for_each_tier(t, cache)
		if (goes_back(t))
			tn_tier_touch(t, b, &info);
}

void tn_block_let_in(struct tn_cache *cache, struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info)
{
	tn_tier_insert(t, b, info);
	if (t->ops->used)
		cache->recency[b] = cache->tick;
}

/* ---- where a block lies -------------------------------------------------------------------------------------- */

static bool failed_in_memory(const struct tn_cache *cache, tn_block b)
{
	return cache->host && tn_tier_has(cache->memory, b) &&
	       tn_host_dirty(cache->host, tn_tier_place_of(cache->memory, b), cache->durable->tier) == TN_DIRTY_FAILED;
}

bool tn_block_is_kept(const struct tn_cache *cache, tn_block b)
{
	enum tn_residency r;

	if (!cache->durable)
		return false;
	r = tn_tier_residency(cache->durable, b);
	return r == TN_PRESENT || r == TN_FILLING || failed_in_memory(cache, b);
}

bool tn_block_is_local(const struct tn_cache *cache, tn_block b)
{
	return (cache->memory && tn_tier_has(cache->memory, b)) || (cache->durable && tn_tier_has(cache->durable, b));
}

bool tn_block_lies_nowhere(const struct tn_cache *cache, tn_block b)
{
	for_each_tier(t, cache) {
		enum tn_residency r = tn_tier_residency(t, b);

		if (r == TN_PRESENT || (r != TN_ABSENT && !t->ops->traits.promotes))
			return false;
	}
	return true;
}

/* ---- what tiers tell -------------------------------------------------------------------------------------------- */

static void arrived(void *arg, struct tn_tier_base *t, tn_block b)
{
	struct tn_cache *cache = arg;

	if (t->ops->traits.durable)
		cache->unread[b / 8u] |= (uint8_t)(1u << b % 8u);
	tn_watch_raise(cache, b, t->tier, TN_EVENT_STORED);
}

/* A block that leaves the memory tier does not go further down: its places in the queues are skipped. */
static void leaves_memory(struct tn_cache *cache, tn_block b, uint32_t slot, enum tn_leave how)
{
	for_each_tier(t, cache) {
		enum tn_dirty dirty = t->ops->traits.offloads ? tn_host_dirty(cache->host, slot, t->tier) : TN_DIRTY_NOT;

		if (dirty == TN_DIRTY_FAILED && how == TN_LEAVE_EVICTED) {
			cache->offload_lost = cache->offload_error;
			cache->c.offload_lost_blocks++;
		}
		if (dirty == TN_DIRTY_NOT || dirty == TN_DIRTY_FAILED)
			continue;
		tn_dirty_settled(cache, slot, t, TN_DIRTY_NOT);
		tn_tier_remove(t, b);
	}
}

static void leaves(void *arg, struct tn_tier_base *t, tn_block b, uint32_t place, enum tn_leave how)
{
	struct tn_cache *cache = arg;

	tn_watch_raise(cache, b, t->tier, TN_EVENT_REMOVED);
	if (t->ops->traits.durable)
		cache->unread[b / 8u] &= (uint8_t)~(1u << b % 8u);
	if (t == cache->memory)
		leaves_memory(cache, b, place, how);
}

static void evicted(void *arg, struct tn_tier_base *t, tn_block b)
{
	tn_block_try_forget(arg, b);
}

static bool dropped(void *arg, tn_block b)
{
	return ((const struct tn_cache *)arg)->is_doomed[b] == TN_DOOM_DROPPED;
}

void tn_tier_joins(struct tn_cache *cache, struct tn_tier_base *t)
{
	cache->tier_watch = (struct tn_tier_watch){arrived, leaves, evicted, dropped, cache};
	t->watch = &cache->tier_watch;
	t->registry = cache->registry;
	cache->tier[t->tier] = t;
	for (unsigned i = 0, k = 0; i < TN_TIERS_MAX; i++)
		if (cache->tier[i])
			cache->row[k++] = cache->tier[i];
	if (t->ops->traits.promotes)
		cache->memory = t;
	if (t->ops->traits.durable)
		cache->durable = t;
}

/* ---- blocks that go when nobody holds them any more ---------------------------------------------------------- */

static void enter_ring(struct tn_cache *cache, tn_block b, enum tn_doom why)
{
	assert(cache->doomed_count < cache->doomed_size && cache->is_doomed[b] == TN_DOOM_NOT);
	__atomic_store_n(&cache->is_doomed[b], (uint8_t)why, __ATOMIC_SEQ_CST);
	__atomic_store_n(&cache->doomed_look, 1, __ATOMIC_RELAXED);
	cache->doomed[(cache->doomed_head + cache->doomed_count++) % cache->doomed_size] = b;
}

static bool forget(struct tn_cache *cache, tn_block b)
{
	uint16_t space = tn_block_space(cache->registry, b);

	if (tn_block_forget(cache->registry, b))
		return false;
	cache->space_records[space]--;
	return true;
}

static bool absent(const struct tn_cache *cache, tn_block b)
{
	for_each_tier(t, cache)
		if (tn_tier_residency(t, b) != TN_ABSENT)
			return false;
	return true;
}

/*
 * A block that lies nowhere any more gives its record back; later, if somebody holds it - a lease, or for a
 * moment a look-up on another thread.
 */
void tn_block_try_forget(struct tn_cache *cache, tn_block b)
{
	if (cache->is_doomed[b] != TN_DOOM_NOT)
		__atomic_store_n(&cache->doomed_look, 1, __ATOMIC_RELAXED); /* perhaps it was the last who held it */
	else if (tn_block_state(cache->registry, b) == TN_BLOCK_REGISTERED && absent(cache, b) && !forget(cache, b))
		enter_ring(cache, b, TN_DOOM_NOWHERE);
}

void tn_block_release(struct tn_cache *cache, tn_block b)
{
	tn_block_unpin(cache->registry, b);
	tn_block_try_forget(cache, b);
}

/* A block is in the ring once, and until it leaves it its record stays its own, whatever becomes of its places. */
void tn_block_doom(struct tn_cache *cache, tn_block b)
{
	bool draining = false;

	for_each_tier(t, cache) {
		if (tn_tier_has(t, b))
			tn_block_set_residency(cache->registry, b, t->tier, TN_DRAINING);
		draining |= tn_tier_residency(t, b) == TN_DRAINING;
	}
	if (!draining)
		return;
	if (cache->is_doomed[b] == TN_DOOM_NOT)
		enter_ring(cache, b, TN_DOOM_DROPPED);
	__atomic_store_n(&cache->is_doomed[b], TN_DOOM_DROPPED, __ATOMIC_RELAXED);
}

static bool bury(struct tn_cache *cache, tn_block b, bool held_too)
{
	bool was_dropped;

	if (tn_block_refs(cache->registry, b) > 0 && !held_too)
		return false;
	was_dropped = cache->is_doomed[b] == TN_DOOM_DROPPED;
	__atomic_store_n(&cache->is_doomed[b], TN_DOOM_NOT, __ATOMIC_RELAXED);
	for_each_tier(t, cache)
		if (tn_tier_residency(t, b) == TN_DRAINING)
			tn_tier_leave(t, b, TN_LEAVE_DROPPED);
	/* Not before: until it has left, its record on disk must say that it has a time to live. */
	if (was_dropped)
		tn_watch_expire_at(cache, b, 0);
	tn_block_try_forget(cache, b);
	cache->c.dropped_blocks += was_dropped;
	return true;
}

/* At the end of the cache: nothing of what was dropped may be there at the next opening, whoever holds it. */
void tn_doomed_end(struct tn_cache *cache)
{
	/* Once round: a record that somebody still holds comes back to the ring, but lies nowhere any more. */
	for (uint32_t k = cache->doomed_count; k > 0; k--) {
		tn_block b = cache->doomed[cache->doomed_head];

		cache->doomed_head = (cache->doomed_head + 1) % cache->doomed_size;
		cache->doomed_count--;
		bury(cache, b, true);
	}
}

void tn_doomed_unpinned(struct tn_cache *cache, tn_block b)
{
	if (__atomic_load_n(&cache->is_doomed[b], __ATOMIC_SEQ_CST) == TN_DOOM_NOT)
		return;
	if (__atomic_exchange_n(&cache->doomed_look, 1, __ATOMIC_SEQ_CST) == 0)
		tn_io_wake(cache->io);
}

/* Goes round all of them, some in each step, when one was let go of: those in front may be held for long. */
bool tn_doomed_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns)
{
	bool look = __atomic_load_n(&cache->doomed_look, __ATOMIC_RELAXED) || cache->doomed_due_ns <= now_ns;

	*due_ns = TN_FOREVER;
	if (cache->doomed_count == 0)
		return false;
	if (look) {
		__atomic_exchange_n(&cache->doomed_look, 0, __ATOMIC_SEQ_CST); /* before the references are read */
		cache->doomed_round = cache->doomed_count;
		cache->doomed_due_ns = now_ns + DOOMED_EVERY_NS;
	}
	*due_ns = cache->doomed_due_ns;
	look = cache->doomed_round > 0;
	for (uint32_t k = 0; k < DOOMED_PER_STEP && cache->doomed_round > 0; k++) {
		tn_block b = cache->doomed[cache->doomed_head];

		cache->doomed_head = (cache->doomed_head + 1) % cache->doomed_size;
		cache->doomed_count--;
		cache->doomed_round--;
		if (!bury(cache, b, false)) {
			cache->doomed[(cache->doomed_head + cache->doomed_count) % cache->doomed_size] = b;
			cache->doomed_count++;
		}
	}
	return look;
}
