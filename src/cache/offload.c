/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host -> disk in the background, and the durable point. Owner thread only.
 *
 * Blocks saved into host memory and admitted to disk wait in a queue of host slots. A few operations of
 * the owner's own take them down in batches, as the scheduler lets their writes go (sched/sched.h); with none, as long as
 * loads from disk are under way only when host memory is running out of clean slots, a flush waits, or the oldest has
 * waited for its share of offload_lag_ms. A flush waits for everything queued before it, then for the store. It is about
 * admitted blocks alone: what admission keeps in host memory is never queued.
 * What could not be written stays in host memory and is tried again by the next flush, when a device comes back, every
 * few seconds, and at the end of the cache.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "cache/cache_internal.h"

#define RETRY_NS 5000000000ull /* what could not be written is tried again so often, if nobody flushes */

void tn_offload_push(struct tn_cache *cache, uint32_t host_slot)
{
	tn_block b = tn_host_block(cache->host, host_slot);

	/* A slot is in the queue once: one whose block was dropped and that is dirty again keeps its earlier place. */
	if (!cache->host_queued[host_slot]) {
		assert(cache->offload_count < cache->offload_size);
		cache->offload_queue[(cache->offload_head + cache->offload_count++) % cache->offload_size] =
			(struct tn_offload_place){tn_now_ns(&cache->clock), host_slot};
		cache->offload_queued++;
		cache->host_queued[host_slot] = 1;
	}
	cache->host_dirty[host_slot] = TN_DIRTY_WAITS;
	cache->host_dirty_slots++;
	cache->host_dirty_bytes += cache->spaces[tn_block_space(cache->registry, b)]->shape.slot_bytes;
}

void tn_offload_settled(struct tn_cache *cache, uint32_t host_slot)
{
	tn_block b = tn_host_block(cache->host, host_slot);

	cache->host_dirty[host_slot] = TN_DIRTY_NOT;
	cache->host_dirty_slots--;
	cache->host_dirty_bytes -= cache->spaces[tn_block_space(cache->registry, b)]->shape.slot_bytes;
}

/* ---- the queue ------------------------------------------------------------------------------------------ */

static bool goes(const struct tn_cache *cache, uint32_t slot)
{
	tn_block b = tn_host_block(cache->host, slot);

	return cache->host_dirty[slot] == TN_DIRTY_WAITS &&
	       tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_PRESENT && /* not dropped */
	       !__atomic_load_n(&cache->spaces[tn_block_space(cache->registry, b)]->dropping, __ATOMIC_RELAXED);
}

static uint32_t pop(struct tn_cache *cache)
{
	uint32_t slot = cache->offload_queue[cache->offload_head].slot;

	cache->offload_head = (cache->offload_head + 1) % cache->offload_size;
	cache->offload_count--;
	cache->host_queued[slot] = 0;
	return slot;
}

/* The first place of the queue whose block still needs to go; NULL: there is none. */
static const struct tn_offload_place *first(struct tn_cache *cache)
{
	while (cache->offload_count > 0 && !goes(cache, cache->offload_queue[cache->offload_head].slot))
		pop(cache);
	return cache->offload_count > 0 ? &cache->offload_queue[cache->offload_head] : NULL;
}

/* The next waiting host slot, if it is of this space (0: any). */
static bool next_slot(struct tn_cache *cache, const struct tn_space *space, uint32_t *slot)
{
	const struct tn_offload_place *place = first(cache);

	if (!place || (space && tn_block_space(cache->registry, tn_host_block(cache->host, place->slot)) != space->index))
		return false;
	*slot = pop(cache);
	return true;
}

uint64_t tn_offload_age(struct tn_cache *cache, uint64_t now_ns)
{
	const struct tn_offload_place *place = first(cache);
	uint64_t since = place ? place->since_ns : TN_FOREVER;

	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].active && cache->offloads[i].since_ns < since)
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

static void add(struct tn_op *op, uint32_t slot)
{
	struct tn_cache *cache = op->cache;
	tn_block b = tn_host_block(cache->host, slot);
	struct tn_item *item = &op->items[op->n];

	tn_block_ref(cache->registry, b);
	cache->host_dirty[slot] = TN_DIRTY_MOVES;
	op->keys[op->n] = tn_block_key(cache->registry, b);
	*item = (struct tn_item){
		.op = op,
		.block = b,
		.slot = TN_SLOT_NONE,
		.host_slot = slot,
		.state = TN_ITEM_PLACE,
		.admitted = true,
	};
	op->n++;
	op->unplaced++;
}

/*
 * Blocks of one offload: no more than the quota on disk has room for at once, so that it need not fail when its own
 * blocks, which are visible only at its end, leave no room for its last ones.
 */
static uint32_t batch(const struct tn_cache *cache, const struct tn_space *space)
{
	uint64_t limit = __atomic_load_n(&space->quota.disk_bytes, __ATOMIC_RELAXED) / space->shape.slot_bytes;
	uint64_t coming = cache->space_disk_coming[space->index];
	uint64_t room = limit > coming ? limit - coming : 1;

	return room < TN_OFFLOAD_BLOCKS ? (uint32_t)room : TN_OFFLOAD_BLOCKS;
}

static bool begin(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	const struct tn_offload_place *place = first(cache);
	uint64_t ticket = cache->offload_queued - cache->offload_count;
	uint32_t slot, most;

	if (!place)
		return false;
	op->since_ns = place->since_ns;
	slot = pop(cache);
	op->kind = TN_OP_OFFLOAD;
	op->space = cache->spaces[tn_block_space(cache->registry, tn_host_block(cache->host, slot))];
	op->pool = NULL;
	op->flat = op->active = true;
	op->cancelled = op->partial_last = false;
	op->n = op->hdr_i = op->i = op->inflight = op->unplaced = op->unwritten = op->copying = op->ready_chunks = 0;
	op->result = (struct tn_save_result){0};
	op->first_ticket = ticket;
	__atomic_add_fetch(&op->space->ops, 1, __ATOMIC_RELAXED);
	add(op, slot);
	most = batch(cache, op->space);
	while (op->n < most && next_slot(cache, op->space, &slot))
		add(op, slot);
	tn_places_join(op);
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
		tn_offload_push(cache, s);
	}
	return left;
}

/* The one under way that began first, of those with this ticket or a later one; NULL: none. */
static struct tn_op *oldest_from(struct tn_cache *cache, uint64_t ticket)
{
	struct tn_op *oldest = NULL;

	for (uint32_t i = 0; i < cache->noffloads; i++) {
		struct tn_op *op = &cache->offloads[i];

		if (op->active && op->first_ticket >= ticket && (!oldest || op->first_ticket < oldest->first_ticket))
			oldest = op;
	}
	return oldest;
}

/* The scheduler holds back writes for reads, and not for ever; without one, only what presses goes first. */
static bool may_begin(struct tn_cache *cache, uint64_t now_ns)
{
	return cache->schedule || cache->disk_loads == 0 || tn_offload_urgency(cache, now_ns) != TN_OFFLOAD_IDLE;
}

/* Those under way go on oldest first: one that began later must not take all that there is to write with. */
bool tn_offload_step(struct tn_cache *cache, uint64_t now_ns, uint64_t *due_ns)
{
	uint64_t from = 0;
	struct tn_op *op;
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
		if (!cache->offloads[i].active)
			busy |= begin(&cache->offloads[i]);
	while ((op = oldest_from(cache, from))) {
		from = op->first_ticket + 1;
		busy |= tn_save_op_step(op);
	}
	*due_ns = next_ns(cache, now_ns);
	return busy;
}

/* ---- flush --------------------------------------------------------------------------------------------- */

/* All tickets below this one are done. */
static uint64_t offloaded_up_to(const struct tn_cache *cache)
{
	uint64_t oldest = cache->offload_queued - cache->offload_count;

	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].active && cache->offloads[i].first_ticket < oldest)
			oldest = cache->offloads[i].first_ticket;
	return oldest;
}

void tn_offload_failed(const struct tn_op *op, int status)
{
	struct tn_cache *cache = op->cache;
	struct tn_list *pos, *tmp;

	cache->offload_error = status;
	cache->offload_retry_ns = tn_now_ns(&cache->clock) + RETRY_NS;
	tn_list_for_each_safe(pos, tmp, &cache->flushes) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (!w->syncing && !w->status && op->first_ticket < w->offload_target)
			w->status = status;
	}
}

static void flush_ends(struct tn_flush_waiter *w, int status)
{
	tn_list_del(&w->link);
	/* Why no device takes writes, where it is that. */
	w->status = status && w->cache->store && tn_store_deleted(w->cache->store) ? -ESTALE : status;
	if (w->save) {
		tn_op_drained(w->save);
		return;
	}
	/* The waiter belongs to its caller, or - abandoned - to nobody, from the exchange on. */
	if (__atomic_exchange_n(&w->done, 1, __ATOMIC_ACQ_REL) == 2)
		tn_put(w->cache->alloc, w, sizeof(*w));
	else
		tn_futex_wake(&w->done);
}

/* What could be written is durable, also when something else could not be. */
static void synced(void *arg, int status)
{
	struct tn_flush_waiter *w = arg;

	flush_ends(w, w->status ? w->status : status);
}

bool tn_flush_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	bool busy = false;

	tn_list_for_each_safe(pos, tmp, &cache->flushes) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (w->syncing || offloaded_up_to(cache) < w->offload_target)
			continue;
		busy = true;
		if (!cache->store) {
			flush_ends(w, 0);
			continue;
		}
		w->syncing = true;
		tn_store_flush(cache->store, synced, w);
	}
	return busy;
}

static void flush_command(struct tn_cmd *cmd)
{
	struct tn_flush_waiter *w = tn_container_of(cmd, struct tn_flush_waiter, cmd);
	struct tn_cache *cache = w->cache;

	/* What failed before is among the blocks that this flush is about: it is tried again, or there is no place for it. */
	if (tn_offload_retry(cache) > 0)
		w->status = cache->offload_error;
	else if (cache->o.read_only && cache->store && cache->c.host_only_blocks > 0)
		w->status = -EROFS;
	if (cache->offload_lost) { /* told once */
		w->status = cache->offload_lost;
		cache->offload_lost = 0;
	}
	w->offload_target = cache->offload_queued;
	tn_list_push(&cache->flushes, &w->link);
}

void tn_save_flush(struct tn_op *op)
{
	op->flush = (struct tn_flush_waiter){.cache = op->cache, .save = op};
	flush_command(&op->flush.cmd);
}

struct tn_flush_waiter *tn_flush_begin(struct tn_cache *cache)
{
	struct tn_flush_waiter *w = tn_get(cache->alloc, sizeof(*w));

	if (!w)
		return NULL;
	w->cache = cache;
	w->cmd.run = flush_command;
	tn_owner_send(cache, &w->cmd);
	return w;
}

int tn_flush_poll(struct tn_flush_waiter *w)
{
	int status;

	if (!__atomic_load_n(&w->done, __ATOMIC_ACQUIRE))
		return -EAGAIN;
	status = w->status;
	tn_put(w->cache->alloc, w, sizeof(*w));
	return status ? tn_fail(status, "what was to be durable could not be written (error %d)", -status) : 0;
}

int tn_flush_wait(struct tn_flush_waiter *w, uint64_t deadline_ns)
{
	uint32_t pending = 0;

	while (!__atomic_load_n(&w->done, __ATOMIC_ACQUIRE)) {
		if (tn_futex_wait(&w->done, 0, deadline_ns) == -ETIMEDOUT) {
			/* The owner frees it when the flush ends, unless that happened just now. */
			if (__atomic_compare_exchange_n(&w->done, &pending, 2, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
				return tn_fail(-ETIMEDOUT, "not durable by the deadline; it goes on");
			break;
		}
	}
	return tn_flush_poll(w);
}

int tn_flush(struct tn_cache *cache, uint64_t deadline_ns)
{
	struct tn_flush_waiter *w;

	if (!cache)
		return tn_fail(-EINVAL, "tn_flush: no cache");
	if (tn_forked(cache))
		return tn_error_last()->code;
	w = tn_flush_begin(cache);
	return w ? tn_flush_wait(w, deadline_ns) : tn_fail(-ENOMEM, "tn_flush: no memory");
}
