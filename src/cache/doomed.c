/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that go when nobody holds them any more: what was dropped, and records of blocks that lie nowhere. Owner thread only,
 * but for tn_doomed_unpinned.
 */
#include <assert.h>

#include "cache/cache_internal.h"

#define DOOMED_PER_STEP 64u
#define DOOMED_EVERY_NS 1000000000ull /* a look-up on another thread that held one for a moment does not tell */

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

/*
 * A block that lies nowhere any more gives its record back; later, if somebody holds it - a lease, or for a
 * moment a look-up on another thread.
 */
void tn_block_try_forget(struct tn_cache *cache, tn_block b)
{
	struct tn_registry *reg = cache->registry;

	if (cache->is_doomed[b] != TN_DOOM_NOT)
		__atomic_store_n(&cache->doomed_look, 1, __ATOMIC_RELAXED); /* perhaps it was the last who held it */
	else if (tn_block_state(reg, b) == TN_BLOCK_REGISTERED &&
	    tn_block_residency(reg, b, TN_TIER_DISK) == TN_ABSENT &&
	    tn_block_residency(reg, b, TN_TIER_HOST) == TN_ABSENT && !forget(cache, b))
		enter_ring(cache, b, TN_DOOM_NOWHERE);
}

void tn_block_release(struct tn_cache *cache, tn_block b)
{
	tn_block_unpin(cache->registry, b);
	tn_block_try_forget(cache, b);
}

static bool draining(const struct tn_cache *cache, tn_block b)
{
	return tn_block_residency(cache->registry, b, TN_TIER_DISK) == TN_DRAINING ||
	       tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_DRAINING;
}

/* A block is in the ring once, and until it leaves it its record stays its own, whatever becomes of its places. */
void tn_block_doom(struct tn_cache *cache, tn_block b)
{
	struct tn_registry *reg = cache->registry;

	if (tn_block_residency(reg, b, TN_TIER_DISK) == TN_PRESENT)
		tn_block_set_residency(reg, b, TN_TIER_DISK, TN_DRAINING);
	if (tn_block_residency(reg, b, TN_TIER_HOST) == TN_PRESENT)
		tn_block_set_residency(reg, b, TN_TIER_HOST, TN_DRAINING);
	if (!draining(cache, b))
		return;
	if (cache->is_doomed[b] == TN_DOOM_NOT)
		enter_ring(cache, b, TN_DOOM_DROPPED);
	__atomic_store_n(&cache->is_doomed[b], TN_DOOM_DROPPED, __ATOMIC_RELAXED);
}

static bool bury(struct tn_cache *cache, tn_block b, bool held_too)
{
	struct tn_registry *reg = cache->registry;
	bool dropped;

	if (tn_block_refs(reg, b) > 0 && !held_too)
		return false;
	dropped = cache->is_doomed[b] == TN_DOOM_DROPPED;
	__atomic_store_n(&cache->is_doomed[b], TN_DOOM_NOT, __ATOMIC_RELAXED);
	if (tn_block_residency(reg, b, TN_TIER_HOST) == TN_DRAINING)
		tn_block_leaves_host(cache, b);
	if (tn_block_residency(reg, b, TN_TIER_DISK) == TN_DRAINING)
		tn_block_leaves_disk(cache, b, false, false);
	/* Not before: until it has left, its record on disk must say that it has a time to live. */
	if (dropped)
		tn_watch_expire_at(cache, b, 0);
	tn_block_try_forget(cache, b);
	cache->c.dropped_blocks += dropped;
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
