/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of tiers that move whole blocks by themselves: as many as may be under way, taken at open. Owner thread only. */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define MOVES 64u

struct tn_whole {
	struct tn_list free;
	struct tn_tier_move move[MOVES];
};

int tn_whole_create(struct tn_cache *cache)
{
	struct tn_whole *w = tn_get(cache->alloc, sizeof(*w));

	if (!w)
		return tn_fail(-ENOMEM, "no memory for transfers of blocks");
	tn_list_init(&w->free);
	for (uint32_t i = 0; i < MOVES; i++)
		tn_list_push(&w->free, &w->move[i].link);
	cache->whole = w;
	return 0;
}

void tn_whole_destroy(struct tn_cache *cache)
{
	tn_put(cache->alloc, cache->whole, sizeof(*cache->whole));
}

struct tn_tier_move *tn_whole_get(struct tn_cache *cache)
{
	struct tn_list *link = tn_list_pop(&cache->whole->free);

	return link ? tn_container_of(link, struct tn_tier_move, link) : NULL;
}

void tn_whole_put(struct tn_cache *cache, struct tn_tier_move *move)
{
	tn_list_push(&cache->whole->free, &move->link);
}
