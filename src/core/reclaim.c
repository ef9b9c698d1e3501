/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store knows a fixed number of spaces; how many are opened in its life is not bounded. When a new one finds no number, one that
 * nobody has open gives its own back: an empty one at once, else the least recently used lose their blocks first, some
 * records in each step, as those of a drop do. A batch at a time, so that the registry is not gone through for each.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define BATCH 32u
#define BATCH_EVERY_NS 100000000ull /* blocks that nobody holds are gone long before */
#define RECORDS_PER_STEP 1024u /* looked at: some microseconds */

/* Nobody has it open or does anything in it; who could open it holds the lock. */
static bool idle(const struct tn_cache *cache, uint32_t i)
{
	const struct tn_space *sp = cache->spaces[i];

	return !sp || (sp->refs == 0 && sp->ops == 0 && __atomic_load_n(&sp->held, __ATOMIC_ACQUIRE) == 0 &&
		       !__atomic_load_n(&sp->dropping, __ATOMIC_RELAXED));
}

static uint32_t numbers(const struct tn_cache *cache)
{
	return cache->store ? tn_store_spaces(cache->store) : TN_STORE_SPACES_MAX;
}

static bool in_use(const struct tn_cache *cache, uint32_t i)
{
	struct tn_key id;
	uint32_t epoch;

	return cache->store ? tn_store_space_info(cache->store, (uint16_t)i, &id, &epoch) == 0 : cache->spaces[i] != NULL;
}

static void give_back(struct tn_cache *cache, uint32_t i)
{
	struct tn_space *sp = cache->spaces[i];

	for_each_tier(t, cache)
		assert(t->space_blocks[i] == 0);
	if (cache->store)
		tn_store_space_give_back(cache->store, (uint16_t)i);
	if (sp) {
		tn_space_slack_destroy(sp);
		tn_put(cache->alloc, sp, sizeof(*sp));
		cache->spaces[i] = NULL;
	}
	cache->space_leaving[i] = TN_LEAVING_NOT;
	cache->space_recency[i] = 0;
}

/* The least recently used space that is idle and not on its way already. */
static bool mark_coldest(struct tn_cache *cache)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < numbers(cache); i++)
		if (cache->space_leaving[i] == TN_LEAVING_NOT && in_use(cache, i) && idle(cache, i) &&
		    (best == UINT32_MAX || cache->space_recency[i] < cache->space_recency[best]))
			best = i;
	if (best == UINT32_MAX)
		return false;
	cache->space_leaving[best] = TN_LEAVING_MARKED;
	return true;
}

int tn_space_reclaim(struct tn_cache *cache)
{
	uint64_t now = tn_now_ns(&cache->clock);
	bool leaving = cache->leaving_cursor > 0 || now < cache->leaving_next_ns;
	uint32_t marked = 0;

	for (uint32_t i = 0; i < numbers(cache); i++) {
		if (cache->space_records[i] == 0 && in_use(cache, i) && idle(cache, i)) {
			give_back(cache, i);
			return 0;
		}
	}
	while (!leaving && marked < BATCH && mark_coldest(cache))
		marked++;
	if (marked > 0) {
		cache->leaving_cursor = tn_registry_records(cache->registry);
		cache->leaving_next_ns = now + BATCH_EVERY_NS;
		tn_log(&cache->log, TN_LOG_INFO, "%u spaces are known and one is new: the %u least recently used that nobody has open go",
		       TN_STORE_SPACES_MAX, marked);
	}
	for (uint32_t i = 0; i < numbers(cache) && !leaving; i++)
		leaving = cache->space_leaving[i] != TN_LEAVING_NOT;
	return leaving ? -EAGAIN : tn_fail(-ENOSPC, "%u spaces are open: close some", TN_STORE_SPACES_MAX);
}

void tn_space_stays(struct tn_cache *cache, uint16_t index)
{
	cache->space_leaving[index] = TN_LEAVING_NOT;
	cache->space_recency[index] = cache->tick;
}

bool tn_reclaim_step(struct tn_cache *cache)
{
	struct tn_registry *reg = cache->registry;

	if (cache->leaving_cursor == 0)
		return false;
	for (uint32_t k = 0; k < RECORDS_PER_STEP && cache->leaving_cursor > 0; k++) {
		tn_block b = --cache->leaving_cursor;

		if (tn_block_state(reg, b) == TN_BLOCK_REGISTERED &&
		    cache->space_leaving[tn_block_space(reg, b)] == TN_LEAVING_MARKED)
			tn_block_doom(cache, b);
	}
	for (uint32_t i = 0; i < TN_STORE_SPACES_MAX && cache->leaving_cursor == 0; i++)
		if (cache->space_leaving[i] == TN_LEAVING_MARKED)
			cache->space_leaving[i] = TN_LEAVING_DOOMED;
	return true;
}
