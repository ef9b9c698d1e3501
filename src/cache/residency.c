/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks arriving in the tiers and leaving them. Owner thread only.
 */
#include "base/trace.h"
#include "cache/cache_internal.h"

bool tn_block_goes_to_disk(const struct tn_cache *cache, tn_block b)
{
	enum tn_residency disk = tn_block_residency(cache->registry, b, TN_TIER_DISK);

	if (disk == TN_PRESENT || disk == TN_FILLING)
		return true;
	return tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_PRESENT &&
	       cache->host_dirty[tn_block_slot(cache->registry, b, TN_TIER_HOST)] == TN_DIRTY_FAILED;
}

void tn_block_arrives_on_disk(struct tn_cache *cache, tn_block b, tn_slot slot)
{
	tn_block_set_slot(cache->registry, b, TN_TIER_DISK, slot);
	tn_block_set_residency(cache->registry, b, TN_TIER_DISK, cache->is_doomed[b] == TN_DOOM_DROPPED ? TN_DRAINING : TN_PRESENT);
	cache->space_disk_blocks[tn_block_space(cache->registry, b)]++;
	cache->c.disk_blocks++;
	cache->unread[b / 8u] |= (uint8_t)(1u << b % 8u);
	tn_watch_raise(cache, b, TN_TIER_DISK, TN_EVENT_STORED);
	TN_TRACE2(block_on_disk, b, slot);
}

/* An admitted block that is not on disk yet waits for its offload. */
void tn_block_arrives_in_host(struct tn_cache *cache, tn_block b, uint32_t host_slot, bool dirty)
{
	struct tn_policy_block info;

	tn_host_set_block(cache->host, host_slot, b);
	tn_block_set_slot(cache->registry, b, TN_TIER_HOST, host_slot);
	tn_block_set_residency(cache->registry, b, TN_TIER_HOST, TN_PRESENT);
	tn_block_describe(cache, b, 0, false, &info);
	info.parent = tn_host_entry(cache, tn_block_parent(cache->registry, b));
	cache->host_policy->ops->insert(cache->host_policy, host_slot, &info);
	cache->space_host_coming[tn_block_space(cache->registry, b)]--;
	cache->space_host_blocks[tn_block_space(cache->registry, b)]++;
	cache->c.host_blocks++;
	tn_watch_raise(cache, b, TN_TIER_HOST, TN_EVENT_STORED);
	if (dirty)
		tn_dirty_push(cache, host_slot);
}

/* ---- leaving -------------------------------------------------------------------------------------------- */

static tn_slot detach_from_disk(struct tn_cache *cache, tn_block b, enum tn_policy_why why)
{
	tn_slot slot = tn_block_slot(cache->registry, b, TN_TIER_DISK);

	tn_watch_raise(cache, b, TN_TIER_DISK, TN_EVENT_REMOVED);
	tn_disk_entry_del(cache, b, why);
	tn_block_set_slot(cache->registry, b, TN_TIER_DISK, TN_SLOT_NONE);
	cache->space_disk_blocks[tn_block_space(cache->registry, b)]--;
	cache->c.disk_blocks--;
	cache->unread[b / 8u] &= (uint8_t)~(1u << b % 8u);
	return slot;
}

/* Its slot failed (checksum; I/O error if eio), or it is not wanted any more. */
void tn_block_leaves_disk(struct tn_cache *cache, tn_block b, bool failed, bool eio)
{
	tn_slot slot;

	if (tn_block_residency(cache->registry, b, TN_TIER_DISK) != TN_PRESENT &&
	    tn_block_residency(cache->registry, b, TN_TIER_DISK) != TN_DRAINING)
		return;
	slot = detach_from_disk(cache, b, TN_POLICY_DROPPED);
	if (failed)
		tn_store_fail_slot(cache->store, slot, eio);
	else
		tn_store_remove(cache->store, slot);
}

/* A block that was withdrawn leaves the disk. */
void tn_block_evicted_from_disk(struct tn_cache *cache, tn_block b)
{
	TN_TRACE2(evict_disk, b, tn_block_slot(cache->registry, b, TN_TIER_DISK));
	tn_store_remove(cache->store, detach_from_disk(cache, b, TN_POLICY_EVICTED));
	cache->c.evicted_disk_blocks++;
}

void tn_block_leaves_host(struct tn_cache *cache, tn_block b)
{
	uint32_t slot = tn_block_slot(cache->registry, b, TN_TIER_HOST);

	tn_watch_raise(cache, b, TN_TIER_HOST, TN_EVENT_REMOVED);
	tn_block_set_residency(cache->registry, b, TN_TIER_HOST, TN_ABSENT);
	tn_block_set_slot(cache->registry, b, TN_TIER_HOST, TN_SLOT_NONE);
	cache->host_policy->ops->remove(cache->host_policy, slot, tn_block_hash(cache, b), TN_POLICY_EVICTED);
	cache->space_host_blocks[tn_block_space(cache->registry, b)]--;
	cache->c.host_blocks--;
	if (cache->host_dirty[slot] == TN_DIRTY_FAILED) {
		cache->failed_slots--;
	} else if (cache->host_dirty[slot]) { /* it was to go to disk; its place in the queue is skipped */
		tn_dirty_settled(cache, slot);
		tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
	}
	cache->host_dirty[slot] = TN_DIRTY_NOT;
	tn_host_put(cache->host, slot);
}
