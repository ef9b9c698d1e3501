/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the policies are told: blocks that enter and leave their tiers, requests, and who was touched by one. Owner thread only.
 */
#include "cache/cache_internal.h"

/*
 * Entry ids: the disk policy's is the block, the host policy's the host slot. A block is an entry of the disk
 * policy exactly while its residency on disk is not ABSENT - from admission, before it is written, on.
 */
uint32_t tn_disk_entry(struct tn_cache *cache, tn_block b)
{
	if (b == TN_BLOCK_NONE || tn_block_residency(cache->registry, b, TN_TIER_DISK) == TN_ABSENT)
		return TN_ENTRY_NONE;
	return b;
}

uint32_t tn_host_entry(struct tn_cache *cache, tn_block b)
{
	if (b == TN_BLOCK_NONE || tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT)
		return TN_ENTRY_NONE;
	return tn_block_slot(cache->registry, b, TN_TIER_HOST);
}

/* The space is mixed in by its constant multiple of the golden ratio, so that spaces do not share ghosts. */
uint64_t tn_key_hash(const struct tn_key *key, uint16_t space)
{
	return key->word[0] ^ space * 0x9e3779b97f4a7c15u;
}

uint64_t tn_block_hash(const struct tn_cache *cache, tn_block b)
{
	struct tn_key key = tn_block_key(cache->registry, b);

	return tn_key_hash(&key, tn_block_space(cache->registry, b));
}

void tn_block_describe(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = tn_block_hash(cache, b),
		.parent = TN_ENTRY_NONE,
		.depth = tn_block_depth(cache->registry, b),
		.from_end = from_end,
		.partial = partial,
	};
}

void tn_request_begins(struct tn_cache *cache, uint32_t blocks, uint32_t hits, tn_block parent)
{
	struct tn_policy_request req = {blocks, hits, TN_ENTRY_NONE};

	cache->tick++;
	if (cache->disk_policy) {
		req.parent = tn_disk_entry(cache, parent);
		cache->disk_policy->ops->request(cache->disk_policy, &req);
	}
	if (cache->host_policy) {
		req.parent = tn_host_entry(cache, parent);
		cache->host_policy->ops->request(cache->host_policy, &req);
	}
}

/* For the index on disk; a request counts once, however often the policy wants to hear of it. */
static void used_now(struct tn_cache *cache, tn_block b)
{
	if (cache->recency[b] == cache->tick)
		return;
	cache->recency[b] = cache->tick;
	cache->space_recency[tn_block_space(cache->registry, b)] = cache->tick;
	if (tn_block_residency(cache->registry, b, TN_TIER_DISK) == TN_PRESENT)
		tn_store_touch(cache->store, tn_block_slot(cache->registry, b, TN_TIER_DISK), cache->tick);
}

static void touch_disk(struct tn_cache *cache, tn_block b, struct tn_policy_block *info)
{
	if (tn_disk_entry(cache, b) == TN_ENTRY_NONE)
		return;
	info->parent = tn_disk_entry(cache, tn_block_parent(cache->registry, b));
	cache->disk_policy->ops->touch(cache->disk_policy, b, info);
	used_now(cache, b);
}

static void touch_host(struct tn_cache *cache, tn_block b, struct tn_policy_block *info)
{
	uint32_t id = tn_host_entry(cache, b);

	if (id == TN_ENTRY_NONE)
		return;
	info->parent = tn_host_entry(cache, tn_block_parent(cache->registry, b));
	cache->host_policy->ops->touch(cache->host_policy, id, info);
}

/* A request references a block. First block first; then, if it goes back, last block first. */
void tn_block_touch(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial)
{
	struct tn_policy_block info;

	tn_block_describe(cache, b, from_end, partial, &info);
	touch_disk(cache, b, &info);
	touch_host(cache, b, &info);
}

bool tn_request_goes_back(const struct tn_cache *cache)
{
	return cache->host_policy || (cache->disk_policy && !cache->disk_policy->ops->forward);
}

/*
 * For policies that go by recency alone: the blocks of the request and those before them, last block first, so
 * that the first block ends up the most recent - it is needed by all the others.
 */
void tn_block_touch_back(struct tn_cache *cache, tn_block b, uint32_t from_end)
{
	struct tn_policy_block info;

	tn_block_describe(cache, b, from_end, false, &info);
	if (cache->disk_policy && !cache->disk_policy->ops->forward)
		touch_disk(cache, b, &info);
	touch_host(cache, b, &info);
}

void tn_disk_entry_add(struct tn_cache *cache, tn_block b, const struct tn_policy_block *info)
{
	tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_FILLING);
	cache->disk_policy->ops->insert(cache->disk_policy, b, info);
	cache->disk_entries++;
	cache->recency[b] = cache->tick;
}

void tn_disk_entry_del(struct tn_cache *cache, tn_block b, enum tn_policy_why why)
{
	tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_ABSENT);
	cache->disk_policy->ops->remove(cache->disk_policy, b, tn_block_hash(cache, b), why);
	cache->disk_entries--;
}
