/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves and offloads from their places on (save_begin.c: what of a save needs one), on the owner thread.
 *
 * A save copies its blocks into host slots if there is a host tier (they go to disk later, offload.c), else
 * it writes them to disk straight from the engine's pages. Either way, per block: a place (places.c), then the
 * chunks as their layers become final, then - committed and on disk - the header. When all blocks are through,
 * they become visible together, first block first, so that a child never precedes its parent.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "cache/cache_internal.h"

static uint32_t index_of(const struct tn_item *item)
{
	return (uint32_t)(item - item->op->items);
}

static uint64_t *item_checks(const struct tn_item *item)
{
	struct tn_op *op = item->op;
	const struct tn_shape *s = &op->space->shape;

	if (item->host_slot != TN_HOST_NONE)
		return tn_host_checks(op->cache->host, item->host_slot, s);
	return op->checks + (size_t)index_of(item) * s->layers;
}

/* ---- the end of an item ------------------------------------------------------------------------------- */

/* A block that does not become visible: its place, its entry and its record are free again. */
static void withdraw(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;

	tn_item_release(item);
	if (item->state == TN_ITEM_EXISTING || item->block == TN_BLOCK_NONE)
		return;
	if (item->admitted)
		tn_disk_entry_del(cache, item->block, TN_POLICY_DROPPED);
	tn_block_reset(cache->registry, item->block);
	item->block = TN_BLOCK_NONE;
}

/* ---- data --------------------------------------------------------------------------------------------- */

static void update_ready(struct tn_op *op)
{
	const struct tn_shape *s = &op->space->shape;

	if (op->flat) {
		op->ready_chunks = s->chunks;
		return;
	}
	while (op->ready_chunks < s->chunks) {
		uint32_t first = tn_shape_chunk_first(s, op->ready_chunks);

		for (uint32_t l = first; l < first + tn_shape_chunk_count(s, op->ready_chunks); l++) {
			uint8_t given = __atomic_load_n(&op->layer_state[l], __ATOMIC_ACQUIRE);
			const struct tn_event *e = &op->layer_event[l];

			if (given == 1 && (!e->ready || e->ready(e->arg)))
				__atomic_store_n(&op->layer_state[l], given = 2, __ATOMIC_RELAXED);
			if (given != 2)
				return;
		}
		op->ready_chunks++;
	}
}

/* Objects of so many chunks from the next one on. */
static uint32_t objects_of(const struct tn_item *item, uint32_t chunks)
{
	const struct tn_shape *s = &item->op->space->shape;
	uint32_t last = item->next_chunk + chunks - 1;

	return tn_shape_chunk_first(s, last) + tn_shape_chunk_count(s, last) - tn_shape_chunk_first(s, item->next_chunk);
}

static uint64_t next_bytes(const struct tn_item *item, uint32_t chunks)
{
	return (uint64_t)objects_of(item, chunks) * item->op->space->shape.padded_bytes;
}

/*
 * How many chunks the next move takes. A disk is fastest with requests of 1 to 4 MiB, and each costs CPU; but beside loads, and into
 * host memory, where workers sum and copy for loads, too, each move is one chunk, so that nobody waits long for it; and without loads
 * no more than half of the scheduler's quantum, so that the next load does not.
 */
static uint32_t together(const struct tn_item *item)
{
	const struct tn_op *op = item->op;
	const struct tn_shape *s = &op->space->shape;
	uint64_t most;
	uint32_t n = 1;

	if (!tn_item_on_disk(item) || !tn_list_empty(&op->cache->loads))
		return n;
	most = tn_schedule_write_most(op->cache, item->device);
	most = most < TN_IO_BYTES ? most : TN_IO_BYTES;
	while (item->next_chunk + n < op->ready_chunks && next_bytes(item, n + 1) <= most &&
	       objects_of(item, n + 1) * s->object_iovs <= TN_OBJECT_IOVS_MAX)
		n++;
	return n;
}

static void save_move_done(struct tn_move *mv)
{
	struct tn_item *item = mv->owner;
	struct tn_op *op = item->op;

	op->inflight--;
	item->inflight--;
	item->done_chunks += (uint16_t)mv->chunks;
	if (mv->kind == TN_MOVE_WRITE)
		tn_schedule_write_ended(op->cache, item->device, (uint64_t)mv->count * mv->shape->padded_bytes);
	if (mv->bounced)
		op->cache->c.bounced_objects += mv->count;
	if (mv->status && item->state == TN_ITEM_WRITE)
		tn_item_failed(item, mv->status);
	if (item->state == TN_ITEM_WRITE && item->done_chunks == op->space->shape.chunks) {
		tn_item_data_over(item);
		item->state = tn_item_on_disk(item) ? TN_ITEM_HEADER : TN_ITEM_STORED;
	}
}

static enum tn_move_user user_of(const struct tn_op *op)
{
	return op->kind == TN_OP_OFFLOAD ? TN_MOVES_OFFLOADS : TN_MOVES_SAVES;
}

static void start_move(struct tn_item *item, uint32_t chunks)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	const struct tn_shape *s = &op->space->shape;
	struct tn_move *mv = tn_mover_get(cache->mover, user_of(op));

	assert(mv);
	mv->shape = s;
	mv->first = tn_shape_chunk_first(s, item->next_chunk);
	mv->count = objects_of(item, chunks);
	mv->chunks = chunks;
	mv->owner = item;
	mv->done = save_move_done;
	tn_op_span(op, index_of(item), &mv->mem);
	if (!op->flat)
		mv->checks = item_checks(item) + mv->first;
	if (tn_item_on_disk(item)) {
		mv->kind = TN_MOVE_WRITE;
		tn_store_locate(cache->store, item->slot, &mv->place);
	} else {
		mv->kind = TN_MOVE_COPY;
		mv->to.flat = tn_host_flat(cache->host, item->host_slot);
	}
	item->next_chunk += (uint16_t)chunks;
	op->inflight++;
	item->inflight++;
	tn_mover_start(mv);
}

/*
 * Reads come first: while loads are under way, writes get a quarter of the moves if nobody else wants them, and otherwise
 * what the mover leaves to each of its users.
 */
static bool may_move(const struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	uint32_t keep = cache->o.io_depth / 2;

	if (!tn_list_empty(&cache->loads))
		keep += cache->o.io_depth;
	return tn_mover_may(cache->mover, user_of(op), keep);
}

static bool write_chunks(struct tn_op *op)
{
	const struct tn_shape *s = &op->space->shape;
	uint32_t all = (1u << op->cache->ndevices) - 1, taken = 0; /* devices that take no write now */
	bool busy = false;

	for (uint32_t i = op->i; i < op->n && (taken != all || all == 0); i++) {
		struct tn_item *item = &op->items[i];

		while (item->state == TN_ITEM_WRITE && item->next_chunk < op->ready_chunks) {
			bool on_disk = tn_item_on_disk(item);
			uint32_t chunks;

			if (!may_move(op)) {
				if (on_disk)
					tn_schedule_write_waits(op);
				return busy;
			}
			if (on_disk && taken >> item->device & 1)
				break;
			chunks = together(item);
			if (on_disk && !tn_schedule_write(op, item->device, next_bytes(item, chunks))) {
				taken |= 1u << item->device;
				break;
			}
			start_move(item, chunks);
			busy = true;
		}
		if (i == op->i && item->state != TN_ITEM_PLACE &&
		    (item->state != TN_ITEM_WRITE || item->next_chunk == s->chunks))
			op->i++; /* nothing left to start for the first ones */
	}
	return busy;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void header_done(const struct tn_header_put *put, int status)
{
	struct tn_item *item = put->owner;

	item->op->inflight--;
	item->inflight--;
	tn_schedule_write_ended(item->op->cache, item->device, TN_STORE_HEADER_BYTES);
	if (status)
		tn_item_failed(item, status);
	else
		item->state = TN_ITEM_STORED;
}

static const struct tn_key *parent_key(const struct tn_op *op, uint32_t i)
{
	if (op->kind == TN_OP_OFFLOAD)
		return NULL;
	return i ? &op->keys[i - 1] : &op->parent;
}

static uint8_t entry_flags(const struct tn_op *op, uint32_t i)
{
	bool expires = op->kind == TN_OP_OFFLOAD ? op->cache->expiry[op->items[i].block] != 0 : op->ttl_ns != 0;

	return (uint8_t)((op->partial_last && i == op->n - 1 ? TN_ENTRY_PARTIAL : 0) | (expires ? TN_ENTRY_EXPIRES : 0));
}

static void fill_put(struct tn_op *op, uint32_t i, struct tn_header_put *put)
{
	struct tn_cache *cache = op->cache;
	struct tn_item *item = &op->items[i];
	const struct tn_key *parent = parent_key(op, i);

	*put = (struct tn_header_put){
		.slot = item->slot,
		.entry = {
			.key = op->keys[i],
			.sequence = tn_store_next_sequence(cache->store),
			.space = op->space->index,
			.recency = cache->recency[item->block],
			.flags = entry_flags(op, i),
		},
		.space_id = op->space->id,
		.space_epoch = op->space->epoch,
		.group = op->space->group,
		.shape = &op->space->shape,
		.checks = item_checks(item),
		.owner = item,
	};
	if (parent) {
		put->entry.parent = *parent;
	} else {
		tn_block p = tn_block_parent(cache->registry, item->block);

		if (p != TN_BLOCK_NONE)
			put->entry.parent = tn_block_key(cache->registry, p);
	}
	item->sequence = put->entry.sequence;
}

/* Runs of neighbouring items, so that their headers, neighbours too, go out in one write. */
static bool write_headers(struct tn_op *op)
{
	struct tn_header_put puts[TN_HEADERS_BATCH];
	bool busy = false;

	while (op->hdr_i < op->n) {
		uint8_t device = op->items[op->hdr_i].device;
		uint32_t n = 0, taken;

		while (n < TN_HEADERS_BATCH && op->hdr_i + n < op->n &&
		       op->items[op->hdr_i + n].state == TN_ITEM_HEADER && op->items[op->hdr_i + n].device == device) {
			fill_put(op, op->hdr_i + n, &puts[n]);
			n++;
		}
		if (n == 0) {
			op->hdr_i++;
			continue;
		}
		if (!tn_schedule_write(op, device, (uint64_t)n * TN_STORE_HEADER_BYTES))
			return busy;
		taken = tn_headers_write(op->cache->headers, puts, n, header_done);
		tn_schedule_write_undone(op->cache, device, (uint64_t)(n - taken) * TN_STORE_HEADER_BYTES);
		if (taken == 0)
			return busy;
		for (uint32_t k = 0; k < taken; k++)
			op->items[op->hdr_i + k].inflight++;
		op->inflight += taken;
		op->hdr_i += taken;
		busy = true;
	}
	return busy;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

static void publish(struct tn_item *item, tn_block b, const struct tn_key *parent)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	struct tn_store_entry entry = {
		.key = op->keys[index_of(item)],
		.parent = *parent,
		.sequence = item->sequence,
		.space = op->space->index,
		.recency = cache->recency[b],
		.flags = entry_flags(op, index_of(item)),
	};

	tn_store_publish(cache->store, item->slot, b, &entry);
	cache->space_disk_coming[op->space->index]--;
	tn_block_arrives_on_disk(cache, b, item->slot);
}

static void arrives(struct tn_item *item, tn_block b)
{
	struct tn_op *op = item->op;

	if (tn_item_on_disk(item))
		publish(item, b, parent_key(op, index_of(item)));
	else
		tn_block_arrives_in_host(op->cache, b, item->host_slot, item->admitted);
	item->saved = item->admitted ? TN_SAVED_STORED : TN_SAVED_HOST_ONLY;
}

static bool lies_nowhere(const struct tn_cache *cache, tn_block b)
{
	return tn_block_residency(cache->registry, b, TN_TIER_DISK) == TN_ABSENT &&
	       tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT;
}

/* The block failed verification, and whoever pinned it keeps its record: the new bytes go there. */
static void take_over(struct tn_item *item, tn_block known)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	struct tn_policy_block info;

	tn_save_describe(op, index_of(item), tn_block_parent(cache->registry, known), tn_block_depth(cache->registry, known),
		     &info);
	if (item->admitted)
		tn_disk_entry_del(cache, item->block, TN_POLICY_DROPPED);
	tn_block_reset(cache->registry, item->block);
	item->block = known;
	if (item->admitted)
		tn_disk_entry_add(cache, known, &info);
	tn_watch_expire_at(cache, known, op->ttl_ns);
	arrives(item, known);
}

/*
 * Somebody else has saved the block meanwhile: theirs stays, and registering takes this record back. If theirs is kept off the
 * disk and this one was let in, it goes there all the same.
 */
static void was_there(struct tn_item *item, tn_block known)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	struct tn_policy_block info;

	item->saved = tn_block_goes_to_disk(cache, known) ? TN_SAVED_EXISTING : TN_SAVED_HOST_ONLY;
	if (item->admitted)
		tn_disk_entry_del(cache, item->block, TN_POLICY_DROPPED);
	tn_block_register(reg, item->block, &item->block);
	assert(item->block == known);
	item->state = TN_ITEM_EXISTING;
	tn_watch_extend(cache, known, op->ttl_ns);
	if (item->admitted && item->saved == TN_SAVED_HOST_ONLY) {
		tn_save_describe(op, index_of(item), tn_block_parent(reg, known), tn_block_depth(reg, known), &info);
		tn_disk_entry_add(cache, known, &info);
		item->saved = TN_SAVED_STORED;
		if (tn_item_on_disk(item)) {
			publish(item, known, parent_key(op, index_of(item)));
			return;
		}
		tn_offload_push(cache, tn_block_slot(reg, known, TN_TIER_HOST));
	}
	tn_item_release(item);
}

static void becomes_visible(struct tn_item *item)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	tn_block b = item->block, known;

	known = tn_registry_find_one(cache->registry, op->space->index, &op->keys[index_of(item)], false);
	if (known != TN_BLOCK_NONE && cache->is_doomed[known] == TN_DOOM_DROPPED) {
		tn_item_failed(item, tn_fail(-EBUSY, "block %u was dropped, and somebody still holds it", index_of(item)));
		withdraw(item);
		return;
	}
	if (known != TN_BLOCK_NONE && lies_nowhere(cache, known)) {
		take_over(item, known);
		return;
	}
	if (known != TN_BLOCK_NONE) {
		was_there(item, known);
		return;
	}
	tn_block_register(cache->registry, b, &item->block);
	cache->space_records[op->space->index]++;
	cache->space_recency[op->space->index] = cache->tick;
	tn_watch_expire_at(cache, b, op->ttl_ns);
	if (item->admitted) /* registering cleared it */
		tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_FILLING);
	arrives(item, b);
}

static void count(struct tn_op *op)
{
	struct tn_counters *c = &op->cache->c;
	struct tn_save_result *r = &op->result;
	uint32_t n[TN_SAVED_KINDS] = {0};

	for (uint32_t i = 0; i < op->n; i++) {
		if (op->cancelled)
			op->items[i].saved = TN_SAVED_NOT;
		n[op->items[i].saved]++;
	}
	if (op->cancelled)
		r->error = 0;
	else if (!r->error && n[TN_SAVED_HOST_ONLY] + n[TN_SAVED_REJECTED] > 0)
		r->error = op->kept_off;
	r->stored = n[TN_SAVED_STORED];
	r->existing = n[TN_SAVED_EXISTING];
	r->host_only = n[TN_SAVED_HOST_ONLY];
	r->rejected = n[TN_SAVED_REJECTED];
	r->failed = n[TN_SAVED_FAILED];
	c->saved_blocks += r->stored;
	c->existing_blocks += r->existing;
	c->host_only_blocks += r->host_only;
	c->admission_rejected_blocks += r->rejected;
	c->save_failed_blocks += r->failed;
}

static void finish_save(struct tn_op *op)
{
	bool commit = !op->cancelled;

	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];

		if (commit && item->state == TN_ITEM_STORED)
			becomes_visible(item);
		else
			withdraw(item);
	}
	count(op);
	tn_list_del(&op->link);
	op->active = false;
	op->cache->ended++;
	tn_schedule_give_back(op->cache, op->admitted_bytes);
	if (commit && op->result.stored > 0 && op->cache->o.durability_ms == 0)
		tn_save_flush(op);
	else
		tn_op_drained(op);
}

static void finish_offload(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;

	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];
		tn_block b = item->block;

		bool dropped = tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT;

		tn_offload_settled(cache, item->host_slot);
		if (item->state == TN_ITEM_STORED && !dropped) {
			tn_block p = tn_block_parent(cache->registry, b);
			struct tn_key parent = {{0, 0}};

			if (p != TN_BLOCK_NONE)
				parent = tn_block_key(cache->registry, p);
			publish(item, b, &parent);
			cache->c.offloaded_blocks++;
		} else {
			if (!dropped) {
				cache->host_dirty[item->host_slot] = TN_DIRTY_FAILED;
				cache->failed_slots++;
				tn_offload_failed(op, item->error ? item->error : -EIO);
			}
			tn_item_release(item);
			tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
		}
		tn_block_unpin(cache->registry, b);
		tn_block_try_forget(cache, b);
	}
	op->active = false;
	cache->ended++;
	__atomic_sub_fetch(&op->space->ops, 1, __ATOMIC_RELEASE);
}

/* One step of a save or an offload; true if anything happened. */
bool tn_save_op_step(struct tn_op *op)
{
	bool busy = false, committed = op->kind == TN_OP_OFFLOAD || __atomic_load_n(&op->commit, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE) && !op->cancelled) {
		op->cancelled = true;
		tn_places_leave(op);
		busy = true;
	}
	if (op->held && !op->cancelled) {
		if (__atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED))
			return false;
		op->held = false;
		tn_save_begins(op);
		return true;
	}
	if (!op->cancelled) {
		update_ready(op);
		busy |= write_chunks(op);
		if (!committed || op->unplaced || op->unwritten)
			return busy;
		busy |= write_headers(op);
		if (op->hdr_i < op->n)
			return busy;
	}
	if (op->inflight)
		return busy;
	if (op->kind == TN_OP_OFFLOAD)
		finish_offload(op);
	else
		finish_save(op);
	return true;
}

bool tn_saves_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	bool busy = false;

	tn_list_for_each_safe(pos, tmp, &cache->saves)
		busy |= tn_save_op_step(tn_container_of(pos, struct tn_op, link));
	return busy;
}

/* Whether a layer was given whose bytes are not final yet, so that somebody must ask again. */
bool tn_save_events_pending(const struct tn_cache *cache)
{
	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		const struct tn_op *op = tn_container_of(pos, struct tn_op, link);
		const struct tn_shape *s = &op->space->shape;
		uint32_t l = tn_shape_chunk_first(s, op->ready_chunks);

		if (op->ready_chunks < s->chunks)
			for (uint32_t k = 0; k < tn_shape_chunk_count(s, op->ready_chunks); k++)
				if (__atomic_load_n(&op->layer_state[l + k], __ATOMIC_RELAXED) == 1)
					return true;
	}
	return false;
}
