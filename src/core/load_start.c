/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a load or a prefetch, on the owner thread: where each of its blocks comes from.
 *
 * One flight per block: a load that wants a block which another load is already reading joins that flight and gets a copy
 * after verification, as long as none of the block's chunks was verified yet. It joins no flight into pages of another process than
 * its own: that process could change what was verified before it is copied, or take its pages away.
 */
#include "core/core.h"
#include "core/near.h"
#include "core/pool.h"

#define HOLD_AT_ONCE 256u /* keys whose memory is loaded ahead */

static void want_promotion(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_space *space = item->r->op.space;
	struct tn_tier_base *t = cache->row.memory;
	struct tn_place_wait wait = {0};

	if (!tn_space_in(space, t) || item->partial || tn_read_passes(item->r) || tn_tier_residency(t, item->block) != TN_ABSENT)
		return;
	tn_place_wait_init(&wait, space, t);
	if (tn_tier_place(t, &wait, 1, &item->memory) == 1)
		tn_block_set_residency(cache->registry, item->block, t->tier, TN_FILLING);
	else
		item->memory = TN_SLOT_NONE;
}

/* Blocks come to the near tier from where they are loaded to, if that is its memory. */
static void want_near(struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;
	const struct tn_tier_base *t = op->cache->row.near;

	if (item->partial || !t || tn_tier_residency(t, item->block) != TN_ABSENT)
		return;
	item->near = tn_near_place(&item->r->op, (uint32_t)(item - item->r->items));
	if (item->near != TN_SLOT_NONE)
		tn_block_set_residency(op->cache->registry, item->block, t->tier, TN_FILLING);
}

/*
 * Whoever joins waits for the leader's device, and for that of the near tier if blocks of the leader's load come from there; and the leader for his.
 * A prefetch may wait for one: nobody waits for it. A load that does not join reads the block itself.
 */
static bool shares_device(const struct tn_read_item *item, const struct tn_read_item *leader)
{
	const struct tn_mapping *near = item->r->op.cache->mappings[TN_MEMORY_OF_NEAR];
	const struct tn_read_item *other = leader->r->prefetch && leader->followers ? leader->followers : leader;

	if (leader->r->from_near > 0 && tn_pool_copier(item->r->op.pool) != near->copier)
		return false;
	return (leader->r->prefetch && other == leader) || tn_pool_copier(other->r->op.pool) == tn_pool_copier(item->r->op.pool);
}

static bool may_trust(const struct tn_read_item *item, const struct tn_read_item *leader)
{
	return !tn_op_is_foreign(&leader->r->op) || leader->r->op.session == item->r->op.session;
}

static bool join(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_read_item *leader = tn_flights_get(cache->flights, item->block);

	/* A leader that nobody wants any more may have been passed over already. */
	if (!leader || leader->frozen || leader->nfollowers == TN_FOLLOWERS_MAX || !tn_read_wanted(leader) || leader->partial || item->partial || item->r->prefetch ||
	    leader->r == item->r || !may_trust(item, leader) || !shares_device(item, leader))
		return false;
	item->state = TN_READ_FOLLOW;
	item->next_follower = leader->followers;
	leader->followers = item;
	leader->nfollowers++;
	item->r->op.inflight++;
	if (leader->r->op.priority < item->r->op.priority)
		leader->r->op.priority = item->r->op.priority;
	cache->c.joined_blocks++;
	return true;
}

/*
 * The first tier of the row that has the block; of a prefetch, below memory. Of the near tier only what the tiers in the process's memory and below do not
 * have comes to pages elsewhere. NULL: it is not there.
 */
static struct tn_tier_base *source_of(const struct tn_read_item *item)
{
	struct tn_tier_base *last = NULL;

	for_each_tier(t, &item->r->op.cache->row) {
		if (!tn_tier_has(t, item->block) || (item->r->prefetch && t->ops->traits.reach == TN_REACH_MEMORY))
			continue;
		if (t != item->r->op.cache->row.near || tn_op_is_near(&item->r->op))
			return t;
		last = t;
	}
	return last;
}

/* Decides where block i comes from; false if it is not there. */
static bool activate(struct tn_read_item *item)
{
	struct tn_reading *r = item->r;
	struct tn_cache *cache = r->op.cache;
	struct tn_tier_base *t;
	tn_block b = item->block;

	if (b == TN_BLOCK_NONE || tn_watch_expired(cache->watch, b))
		return false;
	t = source_of(item);
	if (!t)
		return false;
	item->tier = (uint8_t)t->tier;
	item->place = tn_tier_place_of(t, b);
	if (t->ops->traits.reach == TN_REACH_MEMORY) {
		item->state = TN_READ_COPY;
		r->from_near += t == cache->row.near;
		want_near(item);
		return true;
	}
	if (join(item))
		return true;
	/* Whole blocks are checked in the pages that they land in: a part of one cannot be; and the tier itself writes there, which it can in host memory alone. */
	if (t->ops->traits.reach == TN_REACH_WHOLE && (item->partial || (r->op.pool && tn_pool_copier(r->op.pool))))
		return false;
	item->state = TN_READ_LEAD;
	want_promotion(item);
	if (r->prefetch && item->memory == TN_SLOT_NONE) {
		item->state = TN_READ_IDLE;
		return false;
	}
	want_near(item);
	tn_flights_set(cache->flights, b, item);
	return true;
}

/* Blocks of the sub-range: those before `first` and from `end` on have nothing to do. */
static void range_of(const struct tn_op *op, uint32_t *first, uint32_t *end)
{
	uint64_t per_block = op->space->geometry.pages_per_block;
	uint64_t from = op->first_page / per_block, to = op->end_page / per_block + (op->end_page % per_block > 0);

	*end = to < op->n ? (uint32_t)to : op->n;
	*first = from < *end ? (uint32_t)from : *end;
}

/* Of the blocks at the ends of the sub-range only some pages are wanted. */
static void mark_partial(struct tn_reading *r, uint32_t first, uint32_t end)
{
	uint64_t per_block = r->op.space->geometry.pages_per_block;

	r->items[first].partial |= r->op.first_page > first * per_block;
	r->items[end - 1].partial |= r->op.end_page < end * per_block;
}

/*
 * Pins all blocks before any is activated: what one is promoted into may be another's place in host memory. Behind a gap only a
 * prefetch wants any.
 */
static void hold_blocks(struct tn_reading *r, uint32_t first, uint32_t end)
{
	struct tn_op *op = &r->op;
	tn_block some[HOLD_AT_ONCE];
	bool gap = __atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED);

	for (uint32_t i = first, n; i < end && !gap; i += n) {
		n = end - i < HOLD_AT_ONCE ? end - i : HOLD_AT_ONCE;
		tn_registry_pin(op->cache->registry, op->space->index, op->keys + i, n, some);
		for (uint32_t k = 0; k < n; k++) {
			r->items[i + k].block = some[k];
			gap |= some[k] == TN_BLOCK_NONE && !r->prefetch;
		}
	}
}

/* Where the bytes of each block are. */
static void find_bytes(struct tn_reading *r)
{
	const struct tn_cache *cache = r->op.cache;
	const struct tn_tier_base *drives = cache->row.drives;

	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (item->state == TN_READ_COPY)
			*(tn_read_is_near(item) ? &r->op.near[i] : &r->op.offset[i]) =
				cache->row.tier[item->tier]->ops->offset(cache->row.tier[item->tier], item->place, r->op.shape, NULL);
		if (item->memory != TN_SLOT_NONE)
			r->op.offset[i] = tn_read_memory(item, NULL);
		if (item->state != TN_READ_LEAD || tn_read_reach(item) != TN_REACH_DEVICE)
			continue;
		r->disk[i] = drives->ops->drives->data_at(drives, item->place);
		item->device = (uint8_t)tn_ioctx_device(r->disk[i]);
	}
}

/* Lets go of those that turned out to be of no use. */
static void release_idle(struct tn_reading *r)
{
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (item->state == TN_READ_IDLE && item->block != TN_BLOCK_NONE) {
			tn_block_release(&r->op.cache->blocks, item->block);
			item->block = TN_BLOCK_NONE;
		}
	}
}

/* The parent is that of a load which goes on with a prefix: all of it counts as used again. */
static void touch_blocks(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	tn_block parent = TN_BLOCK_NONE;

	if (!tn_key_is_zero(&r->parent))
		parent = tn_registry_find_one(cache->registry, r->op.space->index, &r->parent, true);
	tn_request_begins(&cache->blocks, parent);
	for (uint32_t i = 0; i < r->good; i++)
		if (r->items[i].block != TN_BLOCK_NONE)
			tn_block_touch(&cache->blocks, r->items[i].block, false);
	if (!r->op.more || r->good < r->op.n) { /* of an operation in batches the last one does it for all */
		for (uint32_t i = tn_request_goes_back(&cache->blocks) ? r->op.n : 0; i-- > 0;)
			if (r->items[i].block != TN_BLOCK_NONE)
				tn_block_touch_back(&cache->blocks, r->items[i].block);
		tn_chain_touch_back(&cache->blocks, parent, cache->o.max_op_blocks); /* its caller's operation has no more */
	}
	if (parent != TN_BLOCK_NONE)
		tn_block_release(&cache->blocks, parent);
}

void tn_load_begins(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	const struct tn_shape *s = r->op.shape;
	uint32_t first, end, from[TN_TIERS_MAX] = {0};

	r->op.active = true;
	tn_list_push(&cache->loads, &r->op.link);
	TN_COUNT(&r->op, loads, !r->prefetch && !r->op.goes_on);
	r->op.session->loads += !r->prefetch && !r->op.goes_on;
	range_of(&r->op, &first, &end);
	if (first < end)
		mark_partial(r, first, end);
	hold_blocks(r, first, end);
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i];

		if (i < first || i >= end) {
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
		from[item->tier]++;
	}
	tn_face_tell_tiers(tn_op_region(&r->op), r->op.number, from);
	release_idle(r);
	find_bytes(r);
	if (!r->prefetch)
		touch_blocks(r);
	tn_schedule_load(r);
}
