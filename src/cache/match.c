/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups and the leases that they take. Any thread: the registry's table is read without the owner, and a lease is a list of
 * pinned blocks from a pool that is sized at open.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "cache/front.h"

#define TIERS 5u	  /* enum tn_tier */
#define FIND_AT_ONCE 256u /* keys */

int tn_leases_create(struct tn_cache *cache)
{
	uint32_t n = cache->o.max_ops * 4, each = cache->o.max_op_blocks;

	cache->nleases = n;
	cache->leases = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*cache->leases)));
	cache->lease_blocks = tn_get(cache->alloc, tn_array_bytes(n, each * sizeof(tn_block)));
	if (!cache->leases || !cache->lease_blocks)
		return tn_fail(-ENOMEM, "no memory for %u leases; lower max_ops or max_op_blocks", n);
	for (uint32_t i = 0; i < n; i++) {
		cache->leases[i].blocks = cache->lease_blocks + (size_t)i * each;
		tn_stack_push(&cache->free_leases, i, &cache->leases[i].next);
	}
	return 0;
}

void tn_leases_destroy(struct tn_cache *cache)
{
	uint32_t n = cache->nleases, each = cache->o.max_op_blocks;

	tn_put(cache->alloc, cache->leases, tn_array_bytes(n, sizeof(*cache->leases)));
	tn_put(cache->alloc, cache->lease_blocks, tn_array_bytes(n, each * sizeof(tn_block)));
}

static uint32_t next_free_lease(void *arg, uint32_t i)
{
	struct tn_cache *cache = arg;

	return __atomic_load_n(&cache->leases[i].next, __ATOMIC_RELAXED);
}

static void unpin(struct tn_cache *cache, tn_block b)
{
	tn_block_unpin(cache->registry, b);
	tn_doomed_unpinned(cache, b);
}

static void lease_give(struct tn_cache *cache, struct tn_lease *lease)
{
	for (uint32_t i = 0; i < lease->n; i++)
		unpin(cache, lease->blocks[i]);
	lease->n = 0;
	tn_stack_push(&cache->free_leases, (uint32_t)(lease - cache->leases), &lease->next);
}

/*
 * tn_registry_find, but for blocks whose time is over. Those found are pinned if there is a list for them; tiers (may be
 * NULL) and counts[tier] are set for them.
 */
static uint32_t find_alive(struct tn_space *space, const struct tn_key *keys, uint32_t n, tn_block *blocks,
			   uint8_t *tiers, uint32_t *counts)
{
	struct tn_cache *cache = space->cache;
	tn_block some[FIND_AT_ONCE];
	uint8_t tier[FIND_AT_ONCE];
	uint32_t done = 0;

	memset(counts, 0, TIERS * sizeof(*counts));
	for (;;) {
		uint32_t want = n - done < FIND_AT_ONCE ? n - done : FIND_AT_ONCE, alive = 0, found;

		found = tn_registry_find(cache->registry, space->index, keys + done, want, blocks != NULL, some, tier);
		for (; alive < found && !tn_watch_expired(cache, some[alive]); alive++) {
			counts[tier[alive]]++;
			if (blocks)
				blocks[done + alive] = some[alive];
			if (tiers)
				tiers[done + alive] = tier[alive];
		}
		for (uint32_t i = alive; blocks && i < found; i++)
			unpin(cache, some[i]);
		done += alive;
		if (alive < want || done == n)
			return done;
	}
}

/*
 * Applies the group's rule to what was found: keys[first..end) are there, and pinned if there is a list. Returns end.
 * Tiers are said of what matched only: another look of blocks that are not pinned may find less, which is a miss.
 */
static uint32_t find_by_rule(struct tn_space *space, const struct tn_key *keys, uint32_t n, tn_block *blocks,
			     uint8_t *tiers, uint32_t *first, uint32_t *counts)
{
	uint32_t window = space->match_rule == TN_MATCH_EXACT ? 1 : space->window_blocks;

	*first = 0;
	if (space->match_rule == TN_MATCH_PREFIX)
		return find_alive(space, keys, n, blocks, tiers, counts);
	/* The longest prefix whose last `window` blocks are all there. */
	for (uint32_t end = n; end > 0; end--) {
		uint32_t from = end > window ? end - window : 0, got;

		got = find_alive(space, keys + from, end - from, blocks, NULL, counts);
		if (got == end - from && (!tiers || find_alive(space, keys + from, got, NULL, tiers + from, counts) == got)) {
			*first = from;
			return end;
		}
		for (uint32_t i = 0; blocks && i < got; i++)
			unpin(space->cache, blocks[i]);
		end = from + got + 1; /* a window that reaches the gap cannot match */
	}
	memset(counts, 0, TIERS * sizeof(*counts));
	return 0;
}

static int take_lease(struct tn_cache *cache, struct tn_lease **lease)
{
	uint64_t i = tn_stack_pop(&cache->free_leases, next_free_lease, cache);

	if (!i)
		return tn_fail(-EAGAIN, "tn_match: all %u leases are taken; tn_unpin some or raise max_ops", cache->nleases);
	*lease = &cache->leases[i - 1];
	return 0;
}

/* The lease's pin, or - nothing matched - none and the lease is free again. */
static uint64_t lease_pin(struct tn_cache *cache, struct tn_lease *lease, uint32_t n)
{
	lease->n = n;
	if (n > 0)
		return (uint64_t)__atomic_add_fetch(&lease->generation, 1, __ATOMIC_ACQ_REL) << 32 |
		       (uint64_t)(lease - cache->leases + 1);
	lease_give(cache, lease);
	return 0;
}

int tn_match(struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers, struct tn_match *match,
	     unsigned flags)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_match, pin);
	struct tn_match m = {.size = sizeof(m)};
	struct tn_lease *lease = NULL;
	uint32_t counts[TIERS];
	struct tn_cache *cache;
	uint64_t disk, host;
	int rc;

	if (!space || (n && !keys) || !match || (flags & ~TN_MATCH_PIN))
		return tn_fail(-EINVAL, "tn_match: space, keys or match is missing, or unknown flags %#x", flags);
	cache = space->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	if (n > cache->o.max_op_blocks)
		n = cache->o.max_op_blocks;
	rc = tn_abi_check(abi, match);
	if (rc == 0 && flags & TN_MATCH_PIN)
		rc = take_lease(cache, &lease);
	if (rc)
		return rc;
	if (__atomic_load_n(&space->dropping, __ATOMIC_ACQUIRE))
		n = 0;
	m.blocks = find_by_rule(space, keys, (uint32_t)n, lease ? lease->blocks : NULL, tiers, &m.first, counts);
	m.host_blocks = counts[TN_TIER_HOST];
	m.disk_blocks = counts[TN_TIER_DISK];
	if (tiers)
		memset(tiers, TN_TIER_NONE, m.first);
	disk = m.disk_blocks * space->shape.slot_bytes >> 20;
	host = m.host_blocks * space->shape.slot_bytes >> 20;
	m.load_ns = disk * __atomic_load_n(&cache->disk_ns_per_mib, __ATOMIC_RELAXED) +
		    host * __atomic_load_n(&cache->host_ns_per_mib, __ATOMIC_RELAXED);
	__atomic_add_fetch(&cache->lookups, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&cache->lookup_blocks, n, __ATOMIC_RELAXED);
	__atomic_add_fetch(&cache->hit_blocks, m.blocks, __ATOMIC_RELAXED);
	if (lease)
		m.pin = lease_pin(cache, lease, m.blocks - m.first);
	tn_abi_out(abi, match, &m);
	return (int)m.blocks;
}

int tn_unpin(struct tn_space *space, uint64_t pin)
{
	uint32_t generation = (uint32_t)(pin >> 32), i = (uint32_t)pin;
	struct tn_cache *cache;

	if (!space)
		return tn_fail(-EINVAL, "tn_unpin: no space");
	cache = space->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	/* Odd generations are taken; the exchange to even lets only one caller end the lease. */
	if (i == 0 || i > cache->nleases || !(generation & 1) ||
	    !__atomic_compare_exchange_n(&cache->leases[i - 1].generation, &generation, generation + 1, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return tn_fail(-EINVAL, "tn_unpin: no lease %#llx (ended before?)", (unsigned long long)pin);
	lease_give(cache, &cache->leases[i - 1]);
	return 0;
}
