/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks arriving in and leaving the tiers, and the policies being told. Owner thread only.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/trace.h"
#include "cache/cache_internal.h"

#define DOOMED_PER_STEP 64u
#define DOOMED_EVERY_NS 1000000000ull /* a look-up on another thread that held one for a moment does not tell */

/* ---- what the policies know ----------------------------------------------------------------------------- */

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

static uint32_t host_entry(struct tn_cache *cache, tn_block b)
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

static uint64_t block_hash(const struct tn_cache *cache, tn_block b)
{
	struct tn_key key = tn_block_key(cache->registry, b);

	return tn_key_hash(&key, tn_block_space(cache->registry, b));
}

static void describe(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = block_hash(cache, b),
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
		req.parent = host_entry(cache, parent);
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
	uint32_t id = host_entry(cache, b);

	if (id == TN_ENTRY_NONE)
		return;
	info->parent = host_entry(cache, tn_block_parent(cache->registry, b));
	cache->host_policy->ops->touch(cache->host_policy, id, info);
}

/* A request references a block. To be called first block first; then tn_request_ends. */
void tn_block_touch(struct tn_cache *cache, tn_block b, uint32_t from_end, bool partial)
{
	struct tn_policy_block info;

	describe(cache, b, from_end, partial, &info);
	touch_disk(cache, b, &info);
	touch_host(cache, b, &info);
}

/*
 * For policies that go by recency alone: the blocks of the request and those before them, last block first, so
 * that the first block ends up the most recent - it is needed by all the others.
 */
void tn_request_ends(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	bool disk = cache->disk_policy && !cache->disk_policy->ops->forward;
	tn_block b = TN_BLOCK_NONE;
	struct tn_policy_block info;
	uint32_t from_end = 0;

	if (!disk && !cache->host_policy)
		return;
	for (uint32_t i = op->n; i-- > 0; from_end++) {
		if (op->items[i].block == TN_BLOCK_NONE)
			continue;
		b = op->items[i].block;
		describe(cache, b, from_end, false, &info);
		if (disk)
			touch_disk(cache, b, &info);
		touch_host(cache, b, &info);
	}
	b = TN_BLOCK_NONE;
	if (!tn_key_is_zero(&op->parent))
		b = tn_registry_find_one(cache->registry, op->space->index, &op->parent, false);
	for (; b != TN_BLOCK_NONE; b = tn_block_parent(cache->registry, b), from_end++) {
		describe(cache, b, from_end, false, &info);
		if (disk)
			touch_disk(cache, b, &info);
		touch_host(cache, b, &info);
	}
}

/* ---- arriving ------------------------------------------------------------------------------------------- */

bool tn_block_goes_to_disk(const struct tn_cache *cache, tn_block b)
{
	enum tn_residency disk = tn_block_residency(cache->registry, b, TN_TIER_DISK);

	if (disk == TN_PRESENT || disk == TN_FILLING)
		return true;
	return tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_PRESENT &&
	       cache->host_dirty[tn_block_slot(cache->registry, b, TN_TIER_HOST)] == TN_DIRTY_FAILED;
}

/* If the block takes another's place, that one is gone on return. */
int tn_disk_admit(struct tn_cache *cache, const struct tn_policy_block *info, uint64_t bytes)
{
	bool full = cache->disk_entries >= tn_disk_capacity(cache);
	struct tn_usable u = {cache, -1, NULL};

	if (!cache->disk_policy->ops->admit(cache->disk_policy, info, full, tn_disk_usable, &u))
		return 0;
	if (!tn_store_charge_write(cache->store, bytes))
		return -EDQUOT;
	if (!full || tn_evict_disk(cache, 1, -1) == 1)
		return 1;
	tn_store_uncharge_write(cache->store, bytes);
	return 0;
}

void tn_disk_entry_add(struct tn_cache *cache, tn_block b, const struct tn_policy_block *info)
{
	tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_FILLING);
	cache->disk_policy->ops->insert(cache->disk_policy, b, info);
	cache->disk_entries++;
	cache->recency[b] = cache->tick;
}

/* A block that was admitted before and could not be written is let in again, if there is room. */
bool tn_disk_readmit(struct tn_cache *cache, tn_block b)
{
	struct tn_policy_block info;

	if (cache->disk_entries >= tn_disk_capacity(cache) && tn_evict_disk(cache, 1, -1) != 1)
		return false;
	describe(cache, b, 0, false, &info);
	info.parent = tn_disk_entry(cache, tn_block_parent(cache->registry, b));
	tn_disk_entry_add(cache, b, &info);
	return true;
}

void tn_disk_entry_del(struct tn_cache *cache, tn_block b, enum tn_policy_why why)
{
	tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_ABSENT);
	cache->disk_policy->ops->remove(cache->disk_policy, b, block_hash(cache, b), why);
	cache->disk_entries--;
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
	describe(cache, b, 0, false, &info);
	info.parent = host_entry(cache, tn_block_parent(cache->registry, b));
	cache->host_policy->ops->insert(cache->host_policy, host_slot, &info);
	cache->space_host_coming[tn_block_space(cache->registry, b)]--;
	cache->space_host_blocks[tn_block_space(cache->registry, b)]++;
	cache->c.host_blocks++;
	tn_watch_raise(cache, b, TN_TIER_HOST, TN_EVENT_STORED);
	if (dirty)
		tn_offload_push(cache, host_slot);
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

void tn_block_leaves_host(struct tn_cache *cache, tn_block b)
{
	uint32_t slot = tn_block_slot(cache->registry, b, TN_TIER_HOST);

	tn_watch_raise(cache, b, TN_TIER_HOST, TN_EVENT_REMOVED);
	tn_block_set_residency(cache->registry, b, TN_TIER_HOST, TN_ABSENT);
	tn_block_set_slot(cache->registry, b, TN_TIER_HOST, TN_SLOT_NONE);
	cache->host_policy->ops->remove(cache->host_policy, slot, block_hash(cache, b), TN_POLICY_EVICTED);
	cache->space_host_blocks[tn_block_space(cache->registry, b)]--;
	cache->c.host_blocks--;
	if (cache->host_dirty[slot] == TN_DIRTY_FAILED) {
		cache->failed_slots--;
	} else if (cache->host_dirty[slot]) { /* it was to go to disk; its place in the queue is skipped */
		tn_offload_settled(cache, slot);
		tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
	}
	cache->host_dirty[slot] = TN_DIRTY_NOT;
	tn_host_put(cache->host, slot);
}

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

/* ---- making room ------------------------------------------------------------------------------------------ */

bool tn_disk_usable(void *arg, uint32_t id)
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

/* A block that was withdrawn leaves the disk. */
static void evicted(struct tn_cache *cache, tn_block b)
{
	TN_TRACE2(evict_disk, b, tn_block_slot(cache->registry, b, TN_TIER_DISK));
	tn_store_remove(cache->store, detach_from_disk(cache, b, TN_POLICY_EVICTED));
	tn_block_try_forget(cache, b);
	cache->c.evicted_disk_blocks++;
}

static uint32_t evict_disk(struct tn_cache *cache, uint32_t want, struct tn_usable *u)
{
	uint32_t n = 0;

	if (!cache->store)
		return 0;
	while (n < want) {
		tn_block b = cache->disk_policy->ops->victim(cache->disk_policy, tn_disk_usable, u);

		if (b == TN_ENTRY_NONE)
			break;
		if (!tn_block_withdraw(cache->registry, b, TN_TIER_DISK))
			continue; /* pinned meanwhile: not usable any more */
		evicted(cache, b);
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
		if (k == n)
			evicted(cache, b);
		else if (cache->is_doomed[b] != TN_DOOM_DROPPED)
			tn_block_set_residency(reg, b, TN_TIER_DISK, TN_PRESENT);
	}
	return k == n;
}

/*
 * A save or an offload that waits for no place and for no call of its user any more: of layers that were given at most for
 * their events.
 */
static bool only_writes(const struct tn_op *op)
{
	bool given = op->kind == TN_OP_OFFLOAD || __atomic_load_n(&op->commit, __ATOMIC_ACQUIRE);

	return __atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE) || (given && op->unplaced == 0);
}

/* Adds to *writes the slots that the operation writes to; false if it may do so for long. */
static bool writes_pass(const struct tn_op *op, tn_slot first, uint32_t n, uint32_t *writes)
{
	uint32_t before = *writes;

	for (uint32_t i = 0; i < op->n; i++)
		*writes += op->items[i].slot - first < n;
	return *writes == before || only_writes(op);
}

/* References that loads have on blocks in these slots, wherever they load them from. */
static uint64_t load_refs(const struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t refs = 0;

	for (const struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		const struct tn_op *op = tn_container_of(pos, struct tn_op, link);

		for (uint32_t i = 0; i < op->n; i++)
			refs += op->items[i].state != TN_ITEM_IDLE &&
				tn_block_slot(cache->registry, op->items[i].block, TN_TIER_DISK) - first < n;
	}
	return refs;
}

bool tn_slots_pass(struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t loads = load_refs(cache, first, n), refs = 0;
	uint32_t writes = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next)
		if (!writes_pass(tn_container_of(pos, struct tn_op, link), first, n, &writes))
			return false;
	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].active && !writes_pass(&cache->offloads[i], first, n, &writes))
			return false;
	if (loads + writes == 0)
		return false;
	for (uint32_t k = 0; k < n && refs <= loads; k++) {
		tn_block b = tn_store_cookie(cache->store, first + k);

		refs += b == TN_BLOCK_NONE ? 0 : tn_block_refs(cache->registry, b);
	}
	return refs <= loads; /* each that is more is a lease's, or a look-up's on another thread */
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
	uint64_t limit = __atomic_load_n(&space->quota.host_bytes, __ATOMIC_RELAXED) / space->shape.slot_bytes;
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

/* ---- blocks that go when nobody holds them any more ---------------------------------------------------------- */

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
