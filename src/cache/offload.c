/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host -> disk in the background, and the durable point. Owner thread only.
 *
 * Blocks saved into host memory and admitted to disk wait in a queue of host slots. A few operations of
 * the owner's own take them down in batches: as long as loads are under way only when host
 * memory is running out of clean slots. A flush waits for everything queued before it, then for the store.
 * What could not be written stays in host memory and is tried again by the next flush, when a device comes back, and
 * at the end of the cache.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"

void tn_offload_push(struct tn_cache *cache, uint32_t host_slot)
{
	/* A slot is in the queue once: one whose block was dropped and that is dirty again keeps its earlier place. */
	if (!cache->host_queued[host_slot]) {
		assert(cache->offload_count < cache->offload_size);
		cache->offload_queue[(cache->offload_head + cache->offload_count++) % cache->offload_size] = host_slot;
		cache->offload_queued++;
		cache->host_queued[host_slot] = 1;
	}
	cache->host_dirty[host_slot] = TN_DIRTY_WAITS;
	cache->host_dirty_slots++;
}

bool tn_offload_pressing(const struct tn_cache *cache)
{
	if (!cache->host)
		return false;
	return tn_list_empty(&cache->flushes) ? cache->host_dirty_slots > tn_host_slots(cache->host) / 2 : true;
}

/* The next waiting host slot, if it is of this space (0: any) and still needs to go. */
static bool next_slot(struct tn_cache *cache, const struct tn_space *space, uint32_t *slot)
{
	while (cache->offload_count > 0) {
		uint32_t s = cache->offload_queue[cache->offload_head];
		tn_block b = tn_host_block(cache->host, s);
		bool goes = cache->host_dirty[s] == TN_DIRTY_WAITS &&
			    tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_PRESENT && /* not dropped */
			    !__atomic_load_n(&cache->spaces[tn_block_space(cache->registry, b)]->dropping, __ATOMIC_RELAXED);

		if (goes && space && tn_block_space(cache->registry, b) != space->index)
			return false;
		cache->offload_head = (cache->offload_head + 1) % cache->offload_size;
		cache->offload_count--;
		cache->host_queued[s] = 0;
		if (goes) {
			*slot = s;
			return true;
		}
	}
	return false;
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
	uint64_t ticket = cache->offload_queued - cache->offload_count;
	uint32_t slot, most;

	if (!next_slot(cache, NULL, &slot))
		return false;
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

bool tn_offload_step(struct tn_cache *cache)
{
	bool busy = false;

	if (!cache->host || !cache->store)
		return false;
	if (cache->offload_again) {
		cache->offload_again = false;
		tn_offload_retry(cache);
	}
	for (uint32_t i = 0; i < cache->noffloads; i++) {
		struct tn_op *op = &cache->offloads[i];

		if (!op->active && cache->offload_count > 0 && (tn_list_empty(&cache->loads) || tn_offload_pressing(cache)))
			busy |= begin(op);
		if (op->active)
			busy |= tn_save_op_step(op);
	}
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
	tn_list_for_each_safe(pos, tmp, &cache->flushes) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (!w->syncing && !w->status && op->first_ticket < w->offload_target)
			w->status = status;
	}
}

static void flush_ends(struct tn_flush_waiter *w, int status)
{
	tn_list_del(&w->link);
	w->status = status;
	/* The waiter belongs to its caller, or - abandoned - to nobody, from the exchange on. */
	if (__atomic_exchange_n(&w->done, 1, __ATOMIC_ACQ_REL) == 2)
		tn_put(w->cache->alloc, w, sizeof(*w));
	else
		tn_futex_wake(&w->done);
}

static void synced(void *arg, int status)
{
	flush_ends(arg, status);
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
		if (!cache->store || w->status) {
			flush_ends(w, w->status);
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

	/* What failed before is among the blocks that this flush is about: it is tried again, or there is no place for it. */
	if (tn_offload_retry(w->cache) > 0)
		w->status = w->cache->offload_error;
	w->offload_target = w->cache->offload_queued;
	tn_list_push(&w->cache->flushes, &w->link);
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
