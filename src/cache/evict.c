/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacity: how many blocks a tier holds, who is let in, and who goes for whom. Owner thread only.
 */
#include <errno.h>

#include "cache/cache_internal.h"

/*
 * How many blocks the disk holds: as many as there are slots, which the sizes of what is stored and of the spaces that are
 * open decide - not which of them came first. It changes when segments move between sizes.
 */
uint64_t tn_disk_capacity(const struct tn_cache *cache)
{
	uint64_t slots = tn_store_slots(cache->store), spare = slots / 32 < 8 ? 8 : slots / 32;
	uint32_t reserve = cache->max_blocks / 2 < TN_RECORD_RESERVE / 2 ? cache->max_blocks / 2 : TN_RECORD_RESERVE / 2;
	/* Some slots stay free: an evicted block's is not used again before its removal is durable. */
	uint64_t capacity = slots > 2 * spare ? slots - spare : (slots + 1) / 2;

	if (cache->o.disk_blocks && cache->o.disk_blocks < capacity)
		capacity = cache->o.disk_blocks;
	return capacity < cache->max_blocks - reserve ? capacity : cache->max_blocks - reserve;
}

static bool disk_usable(void *arg, uint32_t id)
{
	const struct tn_usable *u = arg;
	struct tn_registry *reg = u->cache->registry;

	return tn_block_refs(reg, id) == 0 && tn_block_residency(reg, id, TN_TIER_DISK) == TN_PRESENT &&
	       (u->space < 0 || tn_block_space(reg, id) == u->space) &&
	       (!u->cls || tn_store_frees_for(u->cache->store, tn_block_slot(reg, id, TN_TIER_DISK), *u->cls));
}

static bool host_usable(void *arg, uint32_t slot)
{
	const struct tn_usable *u = arg;
	tn_block b = tn_host_block(u->cache->host, slot);

	return (u->cache->host_dirty[slot] == TN_DIRTY_NOT || u->cache->host_dirty[slot] == TN_DIRTY_FAILED) &&
	       tn_block_refs(u->cache->registry, b) == 0 &&
	       (u->space < 0 || tn_block_space(u->cache->registry, b) == u->space);
}

static uint32_t evict_disk(struct tn_cache *cache, uint32_t want, struct tn_usable *u)
{
	uint32_t n = 0;

	if (!cache->store)
		return 0;
	while (n < want) {
		tn_block b = cache->disk_policy->ops->victim(cache->disk_policy, disk_usable, u);

		if (b == TN_ENTRY_NONE)
			break;
		if (!tn_block_withdraw(cache->registry, b, TN_TIER_DISK))
			continue; /* pinned meanwhile: not usable any more */
		tn_block_evicted_from_disk(cache, b);
		tn_block_try_forget(cache, b);
		n++;
	}
	return n;
}

/* Evicts up to `want` blocks from disk (of one space, or any: -1); returns how many. */
uint32_t tn_evict_disk(struct tn_cache *cache, uint32_t want, int space)
{
	struct tn_usable u = {cache, space, NULL};

	return evict_disk(cache, want, &u);
}

/* Likewise those whose slots blocks of this class can have. */
uint32_t tn_evict_class(struct tn_cache *cache, uint32_t want, uint32_t cls)
{
	struct tn_usable u = {cache, -1, &cls};

	return evict_disk(cache, want, &u);
}

/*
 * First a look, then all are withdrawn, and only then the first one goes: if somebody pins one meanwhile, they are all
 * there again. What was dropped before and waits to leave (it is among the doomed) goes as well.
 */
bool tn_evict_slots(struct tn_cache *cache, tn_slot first, uint32_t n)
{
	struct tn_registry *reg = cache->registry;
	uint32_t k;

	for (k = 0; k < n; k++) {
		tn_block b = tn_store_cookie(cache->store, first + k);

		if (b != TN_BLOCK_NONE && tn_block_refs(reg, b) > 0)
			return false;
	}
	for (k = 0; k < n; k++) {
		tn_block b = tn_store_cookie(cache->store, first + k);

		if (b != TN_BLOCK_NONE && cache->is_doomed[b] != TN_DOOM_DROPPED && !tn_block_withdraw(reg, b, TN_TIER_DISK))
			break;
	}
	for (uint32_t i = 0; i < k; i++) {
		tn_block b = tn_store_cookie(cache->store, first + i);

		if (b == TN_BLOCK_NONE)
			continue;
		if (k == n) {
			tn_block_evicted_from_disk(cache, b);
			tn_block_try_forget(cache, b);
		} else if (cache->is_doomed[b] != TN_DOOM_DROPPED) {
			tn_block_set_residency(reg, b, TN_TIER_DISK, TN_PRESENT);
		}
	}
	return k == n;
}

/* What was recovered beyond a smaller capacity than last time. */
void tn_evict_to_capacity(struct tn_cache *cache)
{
	uint64_t capacity = tn_disk_capacity(cache);

	if (cache->disk_entries > capacity && !cache->o.read_only)
		tn_evict_disk(cache, (uint32_t)(cache->disk_entries - capacity), -1);
}

/* Likewise from host memory. */
uint32_t tn_evict_host(struct tn_cache *cache, uint32_t want, int space)
{
	struct tn_usable u = {cache, space, NULL};
	uint32_t n = 0;

	if (!cache->host || !cache->host_policy)
		return 0;
	while (n < want) {
		uint32_t slot = cache->host_policy->ops->victim(cache->host_policy, host_usable, &u);
		tn_block b;

		if (slot == TN_ENTRY_NONE)
			break;
		b = tn_host_block(cache->host, slot);
		if (!tn_block_withdraw(cache->registry, b, TN_TIER_HOST))
			continue;
		if (cache->host_dirty[slot] == TN_DIRTY_FAILED) {
			cache->offload_lost = cache->offload_error;
			cache->c.offload_lost_blocks++;
		}
		tn_block_leaves_host(cache, b);
		tn_block_try_forget(cache, b);
		cache->c.evicted_host_blocks++;
		n++;
	}
	return n;
}

/* Whether the quota lets one more block of the space into host memory; one of its own goes for it if need be. */
static bool host_quota_room(struct tn_cache *cache, const struct tn_space *space)
{
	uint64_t limit = __atomic_load_n(&space->quota.bytes[TN_TIER_HOST], __ATOMIC_RELAXED) / space->shape.slot_bytes;
	const uint64_t *here = &cache->space_host_blocks[space->index];
	uint64_t have = *here + cache->space_host_coming[space->index];

	if (have >= limit && *here > 0)
		have -= tn_evict_host(cache, (uint32_t)(have - limit + 1), space->index);
	return have < limit;
}

/* A free host slot, evicting if need be; TN_HOST_NONE if the quota forbids, or all are pinned or still to be offloaded. */
uint32_t tn_host_slot_get(struct tn_cache *cache, const struct tn_space *space, tn_block b)
{
	uint32_t slot;

	if (!host_quota_room(cache, space))
		return TN_HOST_NONE;
	slot = tn_host_take(cache->host, b);
	if (slot == TN_HOST_NONE && tn_evict_host(cache, 1, -1) == 1)
		slot = tn_host_take(cache->host, b);
	if (slot != TN_HOST_NONE)
		cache->space_host_coming[space->index]++;
	return slot;
}

void tn_host_slot_put(struct tn_cache *cache, const struct tn_space *space, uint32_t slot)
{
	cache->space_host_coming[space->index]--;
	tn_host_put(cache->host, slot);
}

/* ---- admission ------------------------------------------------------------------------------------------- */

/* If the block takes another's place, that one is gone on return. */
int tn_disk_admit(struct tn_cache *cache, const struct tn_policy_block *info, uint64_t bytes)
{
	bool full = cache->disk_entries >= tn_disk_capacity(cache);
	struct tn_usable u = {cache, -1, NULL};

	if (!cache->disk_policy->ops->admit(cache->disk_policy, info, full, disk_usable, &u))
		return 0;
	if (!tn_store_charge_write(cache->store, bytes))
		return -EDQUOT;
	if (!full || tn_evict_disk(cache, 1, -1) == 1)
		return 1;
	tn_store_uncharge_write(cache->store, bytes);
	return 0;
}

/* A block that was admitted before and could not be written is let in again, if there is a place for it. */
bool tn_disk_readmit(struct tn_cache *cache, tn_block b)
{
	struct tn_policy_block info;

	if (cache->disk_entries >= tn_disk_capacity(cache) && tn_evict_disk(cache, 1, -1) != 1)
		return false;
	tn_block_describe(cache, b, 0, false, &info);
	info.parent = tn_disk_entry(cache, tn_block_parent(cache->registry, b));
	tn_disk_entry_add(cache, b, &info);
	return true;
}
