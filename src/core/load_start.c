/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a load or a prefetch, on the owner thread: where each of its blocks comes from.
 *
 * One flight per block: a load that wants a block which another load is already reading joins that flight and gets a copy
 * after verification, as long as none of the block's chunks was verified yet.
 */
#include "core/core.h"

static void want_promotion(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_space *space = item->r->op.space;
	struct tn_tier_base *t = cache->memory;
	struct tn_place_wait wait = {0};

	if (!tn_space_in(space, t) || item->partial || tn_tier_residency(t, item->block) != TN_ABSENT)
		return;
	tn_place_wait_init(&wait, space, t);
	if (tn_tier_place(t, &wait, 1, &item->memory) == 1)
		tn_block_set_residency(cache->registry, item->block, t->tier, TN_FILLING);
	else
		item->memory = TN_SLOT_NONE;
}

static bool join(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_read_item *leader = tn_flights_get(cache->flights, item->block);

	/* A leader that nobody wants any more may have been passed over already. */
	if (!leader || leader->frozen || !tn_read_wanted(leader) || leader->partial || item->partial || item->r->prefetch ||
	    leader->r == item->r)
		return false;
	item->state = TN_READ_FOLLOW;
	item->next_follower = leader->followers;
	leader->followers = item;
	item->r->op.inflight++;
	if (leader->r->op.priority < item->r->op.priority)
		leader->r->op.priority = item->r->op.priority;
	cache->c.joined_blocks++;
	return true;
}

/* The first tier of the row that has the block; of a prefetch, below memory. NULL: it is not there. */
static struct tn_tier_base *source_of(const struct tn_read_item *item)
{
	for_each_tier(t, item->r->op.cache)
		if (tn_tier_has(t, item->block) && !(item->r->prefetch && t->ops->traits.reach == TN_REACH_MEMORY))
			return t;
	return NULL;
}

/* Decides where block i comes from; false if it is not there. */
static bool activate(struct tn_read_item *item)
{
	struct tn_reading *r = item->r;
	struct tn_cache *cache = r->op.cache;
	struct tn_tier_base *t;
	tn_block b = item->block;

	if (b == TN_BLOCK_NONE || tn_watch_expired(cache, b))
		return false;
	t = source_of(item);
	if (!t)
		return false;
	item->tier = (uint8_t)t->tier;
	item->place = tn_tier_place_of(t, b);
	if (t->ops->traits.reach == TN_REACH_MEMORY) {
		item->state = TN_READ_COPY;
		return true;
	}
	if (join(item))
		return true;
	/* Whole blocks are checked in the pages that they land in: a part of one cannot be. */
	if (item->partial && t->ops->traits.reach == TN_REACH_WHOLE)
		return false;
	item->state = TN_READ_LEAD;
	want_promotion(item);
	if (r->prefetch && item->memory == TN_SLOT_NONE) {
		item->state = TN_READ_IDLE;
		return false;
	}
	tn_flights_set(cache->flights, b, item);
	return true;
}

/* Blocks of the sub-range: those outside it have nothing to do, those at its ends only some pages. */
static bool outside(struct tn_reading *r, uint32_t i)
{
	uint64_t first = (uint64_t)i * r->op.space->geometry.pages_per_block;
	uint64_t end = first + r->op.space->geometry.pages_per_block;

	r->items[i].partial = r->op.first_page > first || r->op.end_page < end;
	return end <= r->op.first_page || first >= r->op.end_page;
}

/* Pins all blocks before any is activated: what one is promoted into may be another's place in host memory. */
static void hold_blocks(struct tn_reading *r)
{
	if (__atomic_load_n(&r->op.space->dropping, __ATOMIC_RELAXED))
		return;
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (outside(r, i))
			continue;
		item->block = tn_registry_find_one(r->op.cache->registry, r->op.space->index, &r->op.keys[i], true);
		if (item->block == TN_BLOCK_NONE && !r->prefetch)
			return;
	}
}

/* Lets go of those that turned out to be of no use. */
static void release_idle(struct tn_reading *r)
{
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (item->state == TN_READ_IDLE && item->block != TN_BLOCK_NONE) {
			tn_block_release(r->op.cache, item->block);
			item->block = TN_BLOCK_NONE;
		}
	}
}

static void touch_blocks(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;

	tn_request_begins(cache, r->op.n, r->good, TN_BLOCK_NONE);
	for (uint32_t i = 0; i < r->good; i++)
		if (r->items[i].block != TN_BLOCK_NONE)
			tn_block_touch(cache, r->items[i].block, r->op.n - 1 - i, false);
	for (uint32_t i = tn_request_goes_back(cache) ? r->op.n : 0; i-- > 0;)
		if (r->items[i].block != TN_BLOCK_NONE)
			tn_block_touch_back(cache, r->items[i].block, r->op.n - 1 - i);
}

void tn_load_begins(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	const struct tn_shape *s = &r->op.space->shape;
	uint64_t cpu_ns = tn_cpu_ns();

	r->op.active = true;
	r->begin_ns = tn_now_ns(&cache->clock);
	tn_list_push(&cache->loads, &r->op.link);
	cache->c.loads += !r->prefetch;
	hold_blocks(r);
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (outside(r, i)) {
			for (uint32_t c = 0; c < s->chunks; c++)
				tn_read_chunk_good(item, c);
			tn_read_pages_free(item);
			continue;
		}
		if (!activate(item)) {
			if (r->prefetch) {
				for (uint32_t c = 0; c < s->chunks; c++)
					tn_read_chunk_good(item, c);
				continue;
			}
			tn_read_shrink(r, i);
			break;
		}
	}
	release_idle(r);
	tn_reads_prepare(r);
	if (!r->prefetch)
		touch_blocks(r);
	tn_schedule_load(r);
	cache->c.resolve_ns += tn_cpu_ns() - cpu_ns;
}
