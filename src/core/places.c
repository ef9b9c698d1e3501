/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places for the blocks of saves and offloads. Owner thread only.
 *
 * A save's block gets a place in memory if there is one at once, else in the durable tier if that has let the block in; an
 * offload's in its target. Who waits for places stands in one queue, saves and offloads alike, and its tier is asked in the
 * queue's order, so that nobody overtakes for ever.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/core.h"

/* ---- what becomes of an item ------------------------------------------------------------------------------ */

void tn_item_release(struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	if (item->tier != TN_TIER_NONE)
		tn_tier_release(cache->tier[item->tier], item->w->op.space->index, item->block, item->place, item->error);
	item->tier = TN_TIER_NONE;
}

static bool in_memory(const struct tn_write_item *item)
{
	return tn_item_reach(item) == TN_REACH_MEMORY;
}

void tn_item_data_over(struct tn_write_item *item)
{
	item->w->unwritten--;
	item->w->copying -= in_memory(item);
}

void tn_item_failed(struct tn_write_item *item, int status)
{
	struct tn_writing *w = item->w;

	if (item->state == TN_WRITE_PLACE)
		w->unplaced--;
	else if (item->state == TN_WRITE_DATA)
		tn_item_data_over(item);
	item->state = TN_WRITE_FAILED;
	item->saved = TN_SAVED_FAILED;
	item->error = status;
	if (!w->error)
		w->error = status;
	if (status == -EIO)
		w->op.cache->c.io_errors++;
	TN_TRACE2(save_failed, (uint32_t)(item - w->items), status);
}

static void placed(struct tn_write_item *item, const struct tn_tier_base *t, uint32_t place)
{
	struct tn_store_place at;

	item->tier = (uint8_t)t->tier;
	item->place = place;
	item->state = TN_WRITE_DATA;
	item->w->unplaced--;
	item->w->unwritten++;
	item->w->copying += in_memory(item);
	if (t->ops->traits.reach != TN_REACH_DEVICE)
		return;
	tn_store_locate(item->w->op.cache->store, place, &at);
	item->device = (uint8_t)at.device;
}

/* ---- slots that only transfers hold ---------------------------------------------------------------------- */

/*
 * A save or an offload that waits for no place and for no call of its user any more: of layers that were given at most for
 * their events.
 */
static bool only_writes(const struct tn_writing *w)
{
	if (!w->save)
		return w->unplaced == 0;
	return tn_op_is_cancelled(&w->op) || (tn_op_is_committed(&w->op) && w->unplaced == 0);
}

/* Adds to *writes the slots that the operation writes to; false if it may do so for long. */
static bool writes_pass(const struct tn_writing *w, tn_slot first, uint32_t n, uint32_t *writes)
{
	uint32_t before = *writes;

	for (uint32_t i = 0; i < w->op.n; i++)
		*writes += w->items[i].tier == w->op.cache->durable->tier && w->items[i].place - first < n;
	return *writes == before || only_writes(w);
}

/*
 * References that loads have on blocks in these slots, wherever they load them from, and offloads on blocks that go further
 * down: they end by themselves.
 */
static uint64_t transfer_refs(const struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t refs = 0;

	for (uint32_t k = 0; k < cache->noffloads; k++) {
		const struct tn_writing *w = &cache->offloads[k].w;

		for (uint32_t i = 0; w->op.active && i < w->op.n; i++)
			refs += tn_tier_place_of(cache->durable, w->items[i].block) - first < n;
	}

	for (const struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		const struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

		for (uint32_t i = 0; i < r->op.n; i++)
			refs += r->items[i].state != TN_READ_IDLE &&
				tn_tier_place_of(cache->durable, r->items[i].block) - first < n;
	}
	return refs;
}

bool tn_slots_pass(struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t transfers = transfer_refs(cache, first, n), refs = 0;
	uint32_t writes = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next)
		if (!writes_pass(tn_container_of(pos, struct tn_writing, op.link), first, n, &writes))
			return false;
	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].w.op.active && !writes_pass(&cache->offloads[i].w, first, n, &writes))
			return false;
	if (transfers + writes == 0)
		return false;
	for (uint32_t k = 0; k < n && refs <= transfers; k++) {
		tn_block b = tn_store_cookie(cache->store, first + k);

		refs += b == TN_BLOCK_NONE ? 0 : tn_block_refs(cache->registry, b);
	}
	return refs <= transfers; /* each that is more is a lease's, or a look-up's on another thread */
}

/* ---- asking ------------------------------------------------------------------------------------------------ */

void tn_place_wait_init(struct tn_place_wait *wait, const struct tn_space *space, const struct tn_tier_base *t)
{
	wait->space = space->index;
	wait->cls = space->cls[t->tier];
	wait->block_bytes = space->shape.slot_bytes;
	wait->quota_bytes = tn_space_quota(space, t->tier);
	wait->ended = space->cache->ended;
}

/* At once, or not at all. */
static bool memory_place(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_tier_base *t = w->op.cache->memory;
	struct tn_place_wait wait = {0};
	uint32_t place;

	if (!w->save || !tn_space_in(w->op.space, t))
		return false;
	tn_place_wait_init(&wait, w->op.space, t);
	if (tn_tier_place(t, &wait, 1, &place) != 1)
		return false;
	placed(item, t, place);
	return true;
}

static void no_places(struct tn_writing *w, int status)
{
	for (uint32_t i = w->i; i < w->op.n; i++)
		if (w->items[i].state == TN_WRITE_PLACE)
			tn_item_failed(&w->items[i], status);
}

/* Gives places to the first items that wait for one; neighbours, as the tier has them. True if anything happened. */
static bool ask(struct tn_writing *w, struct tn_tier_base *t, uint32_t want, bool first)
{
	struct tn_cache *cache = w->op.cache;
	uint32_t k = 0;
	int got;

	want = want < TN_PLACES_AT_ONCE ? want : TN_PLACES_AT_ONCE;
	tn_place_wait_init(&w->wait, w->op.space, t);
	w->wait.first = first;
	got = tn_tier_place(t, &w->wait, want, cache->place_scratch);
	if (got < 0) {
		no_places(w, got);
		return true;
	}
	for (uint32_t i = w->i; i < w->op.n && k < (uint32_t)got; i++)
		if (w->items[i].state == TN_WRITE_PLACE)
			placed(&w->items[i], t, cache->place_scratch[k++]);
	assert(k == (uint32_t)got);
	if (w->wait.due_ns < cache->places_due_ns)
		cache->places_due_ns = w->wait.due_ns;
	return got > 0 || w->wait.again;
}

/* True if anything happened; *waited: the tiers that somebody in front waits for, as bits. */
static bool find_places(struct tn_writing *w, uint32_t *waited)
{
	struct tn_tier_base *t = w->save ? w->op.cache->durable : w->target;
	uint32_t want = 0;
	bool busy = false;

	for (uint32_t i = w->i; i < w->op.n; i++) {
		struct tn_write_item *item = &w->items[i];

		if (item->state != TN_WRITE_PLACE)
			continue;
		if (memory_place(item)) {
			busy = true;
		} else if (item->admitted) {
			want++;
		} else {
			item->state = TN_WRITE_REJECTED;
			item->saved = TN_SAVED_REJECTED;
			w->unplaced--;
			busy = true;
		}
	}
	if (want) {
		busy |= ask(w, t, want, !(*waited & 1u << t->tier));
		*waited |= w->unplaced ? 1u << t->tier : 0;
	}
	return busy;
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

void tn_places_join(struct tn_writing *w)
{
	w->wait = (struct tn_place_wait){0};
	if (w->unplaced > 0)
		tn_list_push(&w->op.cache->placing, &w->place_link);
}

void tn_places_leave(struct tn_writing *w)
{
	tn_list_del(&w->place_link);
}

bool tn_places_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	uint32_t waited = 0;
	bool busy = false;

	cache->places_due_ns = TN_FOREVER;
	tn_list_for_each_safe(pos, tmp, &cache->placing) {
		struct tn_writing *w = tn_container_of(pos, struct tn_writing, place_link);

		if (w->save && tn_op_is_cancelled(&w->op))
			continue;
		busy |= find_places(w, &waited);
		if (w->unplaced == 0)
			tn_places_leave(w);
	}
	return busy;
}
