/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves, from what save_begin.c finds to be done to their end, on the owner thread.
 *
 * A save copies its blocks into memory if there is a tier for that (they go down later, offload.c), else it writes them
 * straight from the engine's pages (writing.c), as the caller gives the layers. When all blocks are through, they become visible together, first block first, so that a child never precedes its parent.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"

static uint32_t index_of(const struct tn_write_item *item)
{
	return (uint32_t)(item - item->w->items);
}

/* A block that does not become visible: its place, its entry and its record are free again. */
static void withdraw(struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	tn_item_release(item);
	if (item->state == TN_WRITE_EXISTING || item->block == TN_BLOCK_NONE)
		return;
	if (item->admitted)
		tn_tier_remove(cache->durable, item->block);
	tn_block_reset(cache->registry, item->block);
	item->block = TN_BLOCK_NONE;
}

/* 0, or -EINVAL: a layer was given with an event that there is not. */
static int update_ready(struct tn_save_op *save)
{
	const struct tn_shape *s = &save->w.op.space->shape;

	while (save->w.ready_chunks < s->chunks) {
		uint32_t first = tn_shape_chunk_first(s, save->w.ready_chunks);

		for (uint32_t l = first; l < first + tn_shape_chunk_count(s, save->w.ready_chunks); l++) {
			int final = tn_face_layer_is_final(&save->w.op.cache->region, save->w.op.index, l);

			if (final != 1)
				return final;
		}
		save->w.ready_chunks++;
	}
	return 0;
}

/* What lies in memory goes on from there. */
static void goes_down(struct tn_save_op *save, tn_block b, bool admitted)
{
	struct tn_cache *cache = save->w.op.cache;

	if (admitted)
		tn_dirty_push(cache, b, cache->durable);
	else
		tn_offload_further(cache, b);
}

static void arrives(struct tn_write_item *item, tn_block b)
{
	bool in_memory = tn_item_reach(item) == TN_REACH_MEMORY;

	tn_writing_publish(item, b);
	if (in_memory)
		goes_down(item->w->save, b, item->admitted);
	item->saved = item->admitted ? TN_SAVED_STORED : TN_SAVED_HOST_ONLY;
}

/* The block failed verification, and whoever pinned it keeps its record: the new bytes go there. */
static void take_over(struct tn_write_item *item, tn_block known)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_policy_block info;

	tn_save_describe(w->save, index_of(item), tn_block_parent(cache->registry, known),
			 tn_block_depth(cache->registry, known), &info);
	if (item->admitted)
		tn_tier_remove(cache->durable, item->block);
	tn_block_reset(cache->registry, item->block);
	item->block = known;
	if (item->admitted)
		tn_block_let_in(cache, cache->durable, known, &info);
	tn_watch_expire_at(cache, known, w->save->ttl_ns);
	arrives(item, known);
}

/*
 * Somebody else has saved the block meanwhile: theirs stays, and registering takes this record back. If theirs is kept out of the
 * durable tier and this one was let in, it goes there all the same; and memory takes what only a tier further down has.
 */
static void was_there(struct tn_write_item *item, tn_block known)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_registry *reg = cache->registry;
	struct tn_policy_block info;
	bool wanted;

	item->saved = tn_block_is_kept(cache, known) ? TN_SAVED_EXISTING : TN_SAVED_HOST_ONLY;
	if (item->admitted)
		tn_tier_remove(cache->durable, item->block);
	tn_block_register(reg, item->block, &item->block);
	assert(item->block == known);
	item->state = TN_WRITE_EXISTING;
	tn_watch_extend(cache, known, w->save->ttl_ns);
	wanted = item->admitted && item->saved == TN_SAVED_HOST_ONLY;
	if (wanted) {
		tn_save_describe(w->save, index_of(item), tn_block_parent(reg, known), tn_block_depth(reg, known), &info);
		tn_block_let_in(cache, cache->durable, known, &info);
		item->saved = TN_SAVED_STORED;
	}
	if (tn_item_reach(item) == TN_REACH_MEMORY ? !tn_block_is_local(cache, known) : wanted)
		tn_writing_publish(item, known);
	if (wanted && tn_tier_residency(cache->durable, known) == TN_FILLING)
		tn_dirty_push(cache, known, cache->durable);
	tn_item_release(item);
}

static void becomes_visible(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	tn_block b = item->block, known;

	known = tn_registry_find_one(cache->registry, w->op.space->index, &w->op.keys[index_of(item)], false);
	if (known != TN_BLOCK_NONE && cache->is_doomed[known] == TN_DOOM_DROPPED) {
		tn_item_failed(item, tn_fail(-EBUSY, "block %u was dropped, and somebody still holds it", index_of(item)));
		withdraw(item);
		return;
	}
	if (known != TN_BLOCK_NONE && tn_block_lies_nowhere(cache, known)) {
		take_over(item, known);
		return;
	}
	if (known != TN_BLOCK_NONE) {
		was_there(item, known);
		return;
	}
	tn_block_register(cache->registry, b, &item->block);
	cache->space_records[w->op.space->index]++;
	cache->space_recency[w->op.space->index] = cache->tick;
	tn_watch_expire_at(cache, b, w->save->ttl_ns);
	if (item->admitted) /* registering cleared it */
		tn_block_set_residency(cache->registry, b, cache->durable->tier, TN_FILLING);
	arrives(item, b);
}

/* Tells what became of the blocks; returns how many were stored. */
static uint32_t tell_results(struct tn_save_op *save)
{
	const struct tn_op *op = &save->w.op;
	struct tn_counters *c = &op->cache->c;
	uint32_t n[TN_SAVED_KINDS] = {0};
	uint8_t *saved = tn_face_saved(&op->cache->region, op->index);
	int error = op->cancelled ? 0 : save->w.error;

	for (uint32_t i = 0; i < op->n; i++) {
		saved[i] = op->cancelled ? TN_SAVED_NOT : save->w.items[i].saved;
		n[saved[i]]++;
	}
	if (!op->cancelled && !error && n[TN_SAVED_HOST_ONLY] + n[TN_SAVED_REJECTED] > 0)
		error = save->kept_off;
	tn_face_tell_saved(&op->cache->region, op->index, n, TN_SAVED_KINDS, error);
	c->saved_blocks += n[TN_SAVED_STORED];
	c->existing_blocks += n[TN_SAVED_EXISTING];
	c->host_only_blocks += n[TN_SAVED_HOST_ONLY];
	c->admission_rejected_blocks += n[TN_SAVED_REJECTED];
	c->save_failed_blocks += n[TN_SAVED_FAILED];
	return n[TN_SAVED_STORED];
}

static void finish(struct tn_save_op *save)
{
	bool commit = !save->w.op.cancelled;
	uint32_t stored;

	for (uint32_t i = 0; i < save->w.op.n; i++) {
		struct tn_write_item *item = &save->w.items[i];

		if (commit && item->state == TN_WRITE_STORED)
			becomes_visible(item);
		else
			withdraw(item);
	}
	stored = tell_results(save);
	tn_list_del(&save->w.op.link);
	save->w.op.active = false;
	save->w.op.cache->ended++;
	tn_schedule_give_back(save->w.op.cache, save->admitted_bytes);
	if (commit && stored > 0 && save->w.op.cache->o.durability_ms == 0)
		tn_save_flush(save);
	else
		tn_op_drained(&save->w.op);
}

static void cancel(struct tn_save_op *save)
{
	save->w.op.cancelled = true;
	tn_places_leave(&save->w);
}

static bool step(struct tn_save_op *save)
{
	bool busy = false;
	int rc;

	if (tn_op_is_cancelled(&save->w.op) && !save->w.op.cancelled) {
		cancel(save);
		busy = true;
	}
	if (save->held && !save->w.op.cancelled) {
		if (__atomic_load_n(&save->w.op.space->dropping, __ATOMIC_RELAXED))
			return false;
		save->held = false;
		tn_save_find_work(save);
		return true;
	}
	rc = save->w.op.cancelled ? 0 : update_ready(save);
	if (rc) {
		tn_face_tell_status(&save->w.op.cache->region, save->w.op.index, rc);
		cancel(save);
	}
	if (!tn_writing_step(&save->w, tn_op_is_committed(&save->w.op), &busy))
		return busy;
	finish(save);
	return true;
}

bool tn_saves_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	bool busy = false;

	tn_list_for_each_safe(pos, tmp, &cache->saves)
		busy |= step(tn_container_of(pos, struct tn_save_op, w.op.link));
	return busy;
}

/* Whether a layer was given whose bytes become final when a device says so, which wakes nobody. */
bool tn_save_devices_pending(const struct tn_cache *cache)
{
	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		const struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);
		const struct tn_shape *s = &save->w.op.space->shape;
		uint32_t ready = save->w.ready_chunks, l = tn_shape_chunk_first(s, ready);

		if (ready < s->chunks)
			for (uint32_t k = 0; k < tn_shape_chunk_count(s, ready); k++)
				if (tn_face_layer_is_devices(&cache->region, save->w.op.index, l + k))
					return true;
	}
	return false;
}
