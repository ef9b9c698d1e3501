/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host -> disk in the background. Owner thread only.
 *
 * Blocks saved into host memory and admitted to disk wait in a queue of host slots. A few operations of
 * the owner's own take them down in batches, as the scheduler lets their writes go (sched/sched.h); with none, as long as
 * loads from disk are under way only when host memory is running out of clean slots, a flush waits, or the oldest has
 * waited for its share of offload_lag_ms.
 * What could not be written stays in host memory and is tried again by the next flush, when a device comes back, every
 * few seconds, and at the end of the cache.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"

#define RETRY_NS 5000000000ull /* what could not be written is tried again so often, if nobody flushes */

#define OPS 4u

int tn_offloads_create(struct tn_cache *cache)
{
	uint32_t n = OPS * TN_OFFLOAD_BLOCKS;

	cache->offloads = tn_get(cache->alloc, tn_array_bytes(OPS, sizeof(*cache->offloads)));
	cache->offload_keys = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*cache->offload_keys)));
	cache->offload_items = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*cache->offload_items)));
	if (!cache->offloads || !cache->offload_keys || !cache->offload_items)
		return tn_fail(-ENOMEM, "no memory for %u offloads", OPS);
	cache->noffloads = OPS;
	for (uint32_t i = 0; i < OPS; i++) {
		cache->offloads[i].w.op.cache = cache;
		cache->offloads[i].w.op.keys = cache->offload_keys + i * TN_OFFLOAD_BLOCKS;
		cache->offloads[i].w.items = cache->offload_items + i * TN_OFFLOAD_BLOCKS;
	}
	return 0;
}

void tn_offloads_destroy(struct tn_cache *cache)
{
	uint32_t n = OPS * TN_OFFLOAD_BLOCKS;

	tn_put(cache->alloc, cache->offloads, tn_array_bytes(OPS, sizeof(*cache->offloads)));
	tn_put(cache->alloc, cache->offload_keys, tn_array_bytes(n, sizeof(*cache->offload_keys)));
	tn_put(cache->alloc, cache->offload_items, tn_array_bytes(n, sizeof(*cache->offload_items)));
}

/* The next waiting host slot, if it is of this space (0: any). */
static bool next_slot(struct tn_cache *cache, const struct tn_space *space, uint32_t *slot)
{
	const struct tn_offload_place *place = tn_dirty_first(cache);

	if (!place || (space && tn_block_space(cache->registry, tn_host_block(cache->host, place->slot)) != space->index))
		return false;
	*slot = tn_dirty_pop(cache);
	return true;
}

uint64_t tn_offload_age(struct tn_cache *cache, uint64_t now_ns)
{
	const struct tn_offload_place *place = tn_dirty_first(cache);
	uint64_t since = place ? place->since_ns : TN_FOREVER;

	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].w.op.active && cache->offloads[i].since_ns < since)
			since = cache->offloads[i].since_ns;
	if (since == TN_FOREVER)
		return 0;
	return now_ns > since ? now_ns - since : 1;
}

static uint64_t lag_ns(const struct tn_cache *cache)
{
	return cache->o.offload_lag_ms == UINT32_MAX ? TN_FOREVER : cache->o.offload_lag_ms * 1000000ull;
}

enum tn_offload_urgency tn_offload_urgency(struct tn_cache *cache, uint64_t now_ns)
{
	uint64_t age;

	if (!cache->host || !cache->store)
		return TN_OFFLOAD_IDLE;
	age = tn_offload_age(cache, now_ns);
	if (age > 0 && age >= lag_ns(cache) / 2)
		return TN_OFFLOAD_LATE;
	if (!tn_list_empty(&cache->flushes) || cache->host_dirty_slots > tn_host_slots(cache->host) / 2)
		return TN_OFFLOAD_PRESSES;
	return age > 0 && age >= lag_ns(cache) / 4 ? TN_OFFLOAD_PRESSES : TN_OFFLOAD_IDLE;
}

/* When what waits becomes more urgent, or what failed is tried again. */
static uint64_t next_ns(struct tn_cache *cache, uint64_t now_ns)
{
	uint64_t age = tn_offload_age(cache, now_ns), lag = lag_ns(cache), due = TN_FOREVER;

	if (age > 0 && lag != TN_FOREVER && age < lag / 2)
		due = now_ns + (age < lag / 4 ? lag / 4 : lag / 2) - age;
	if (cache->failed_slots > 0 && cache->offload_retry_ns < due)
		due = cache->offload_retry_ns;
	return due;
}

static void add(struct tn_offload_op *off, uint32_t slot)
{
	struct tn_writing *w = &off->w;
	struct tn_cache *cache = w->op.cache;
	tn_block b = tn_host_block(cache->host, slot);

	tn_block_ref(cache->registry, b);
	cache->host_dirty[slot] = TN_DIRTY_MOVES;
	w->op.keys[w->op.n] = tn_block_key(cache->registry, b);
	w->items[w->op.n] = (struct tn_write_item){
		.w = w,
		.block = b,
		.slot = TN_SLOT_NONE,
		.host_slot = slot,
		.state = TN_WRITE_PLACE,
		.admitted = true,
	};
	w->op.n++;
	w->unplaced++;
}

/*
 * Blocks of one offload: no more than the quota on disk has room for at once, so that it need not fail when its own
 * blocks, which are visible only at its end, leave no room for its last ones.
 */
static uint32_t batch(const struct tn_cache *cache, const struct tn_space *space)
{
	uint64_t limit = __atomic_load_n(&space->quota.bytes[TN_TIER_DISK], __ATOMIC_RELAXED) / space->shape.slot_bytes;
	uint64_t coming = cache->space_disk_coming[space->index];
	uint64_t room = limit > coming ? limit - coming : 1;

	return room < TN_OFFLOAD_BLOCKS ? (uint32_t)room : TN_OFFLOAD_BLOCKS;
}

static bool begin(struct tn_offload_op *off)
{
	struct tn_writing *w = &off->w;
	struct tn_cache *cache = w->op.cache;
	const struct tn_offload_place *place = tn_dirty_first(cache);
	uint64_t ticket = cache->offload_queued - cache->offload_count;
	uint32_t slot, most;

	if (!place)
		return false;
	off->since_ns = place->since_ns;
	off->first_ticket = ticket;
	slot = tn_dirty_pop(cache);
	tn_writing_arm(w, w->items, NULL);
	w->op.space = cache->spaces[tn_block_space(cache->registry, tn_host_block(cache->host, slot))];
	w->op.n = 0;
	w->op.active = true;
	w->ready_chunks = w->op.space->shape.chunks;
	w->op.space->ops++;
	add(off, slot);
	most = batch(cache, w->op.space);
	while (w->op.n < most && next_slot(cache, w->op.space, &slot))
		add(off, slot);
	tn_places_join(w);
	return true;
}

uint32_t tn_offload_retry(struct tn_cache *cache)
{
	uint32_t left = 0;
	bool writable;

	if (cache->failed_slots == 0)
		return 0;
	writable = tn_store_writable(cache->store);
	for (uint32_t s = 0; s < tn_host_slots(cache->host); s++) {
		tn_block b = tn_host_block(cache->host, s);

		if (cache->host_dirty[s] != TN_DIRTY_FAILED ||
		    tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT)
			continue; /* written, or dropped since */
		if (!writable || !tn_disk_readmit(cache, b)) {
			left++;
			continue;
		}
		cache->failed_slots--;
		tn_dirty_push(cache, s);
	}
	return left;
}

/* The one under way that began first, of those with this ticket or a later one; NULL: none. */
static struct tn_offload_op *oldest_from(struct tn_cache *cache, uint64_t ticket)
{
	struct tn_offload_op *oldest = NULL;

	for (uint32_t i = 0; i < cache->noffloads; i++) {
		struct tn_offload_op *off = &cache->offloads[i];

		if (off->w.op.active && off->first_ticket >= ticket && (!oldest || off->first_ticket < oldest->first_ticket))
			oldest = off;
	}
	return oldest;
}

/* The scheduler holds back writes for reads, and not for ever; without one, only what presses goes first. */
static bool may_begin(struct tn_cache *cache, uint64_t now_ns)
{
	return cache->schedule || cache->disk_loads == 0 || tn_offload_urgency(cache, now_ns) != TN_OFFLOAD_IDLE;
}

/* A block of this offload could not be written: flushes that wait for it will say so. */
static void failed(const struct tn_offload_op *off, int status)
{
	struct tn_cache *cache = off->w.op.cache;
	struct tn_list *pos, *tmp;

	cache->offload_error = status;
	cache->offload_retry_ns = tn_now_ns(&cache->clock) + RETRY_NS;
	tn_list_for_each_safe(pos, tmp, &cache->flushes) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (!w->syncing && !w->status && off->first_ticket < w->offload_target)
			w->status = status;
	}
}


static void finish(struct tn_offload_op *off)
{
	struct tn_writing *w = &off->w;
	struct tn_cache *cache = w->op.cache;

	for (uint32_t i = 0; i < w->op.n; i++) {
		struct tn_write_item *item = &w->items[i];
		tn_block b = item->block;
		bool dropped = tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT;

		tn_dirty_settled(cache, item->host_slot);
		if (item->state == TN_WRITE_STORED && !dropped) {
			tn_writing_publish(item, b);
			cache->c.offloaded_blocks++;
		} else {
			if (!dropped) {
				cache->host_dirty[item->host_slot] = TN_DIRTY_FAILED;
				cache->failed_slots++;
				failed(off, item->error ? item->error : -EIO);
			}
			tn_item_release(item);
			tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
		}
		tn_block_release(cache, b);
	}
	w->op.active = false;
	cache->ended++;
	w->op.space->ops--;
}

static bool step(struct tn_offload_op *off)
{
	bool busy = false;

	if (!tn_writing_step(&off->w, true, &busy))
		return busy;
	finish(off);
	return true;
}

/* Those under way go on oldest first: one that began later must not take all that there is to write with. */
bool tn_offload_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns)
{
	uint64_t from = 0;
	struct tn_offload_op *off;
	bool busy = false;

	*due_ns = TN_FOREVER;
	if (!cache->host || !cache->store)
		return false;
	/* The end of the cache tries each of those that failed once. */
	if (!cache->stopping && (cache->offload_again || (cache->failed_slots > 0 && now_ns >= cache->offload_retry_ns))) {
		cache->offload_retry_ns = now_ns + RETRY_NS;
		tn_offload_retry(cache);
	}
	cache->offload_again = false;
	for (uint32_t i = 0; i < cache->noffloads && cache->offload_count > 0 && may_begin(cache, now_ns); i++)
		if (!cache->offloads[i].w.op.active)
			busy |= begin(&cache->offloads[i]);
	while ((off = oldest_from(cache, from))) {
		from = off->first_ticket + 1;
		busy |= step(off);
	}
	*due_ns = next_ns(cache, now_ns);
	return busy;
}

/* All tickets below this one are done. */
uint64_t tn_offloaded_up_to(const struct tn_cache *cache)
{
	uint64_t oldest = cache->offload_queued - cache->offload_count;

	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].w.op.active && cache->offloads[i].first_ticket < oldest)
			oldest = cache->offloads[i].first_ticket;
	return oldest;
}
