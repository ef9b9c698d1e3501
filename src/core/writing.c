/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What saves and offloads have in common, from their places (places.c) to the moment before their blocks become visible:
 * per block its chunks, as soon as they have final bytes, then - if it goes to disk - its header. Owner thread only.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/core.h"

static uint32_t index_of(const struct tn_write_item *item)
{
	return (uint32_t)(item - item->w->items);
}

/* Memory of a block that lies in a tier's memory. */
static unsigned char *memory_of(const struct tn_writing *w, const struct tn_tier_base *t, uint32_t place, uint64_t **checks)
{
	return t->ops->address(t, place, &w->op.space->shape, checks);
}

static uint64_t *item_checks(const struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	uint64_t *checks;

	if (!w->save)
		memory_of(w, cache->memory, item->source, &checks);
	else if (tn_item_reach(item) == TN_REACH_MEMORY)
		memory_of(w, cache->tier[item->tier], item->place, &checks);
	else
		checks = w->checks + (size_t)index_of(item) * w->op.space->shape.layers;
	return checks;
}

/* ---- data --------------------------------------------------------------------------------------------- */

/* Objects of so many chunks from the next one on. */
static uint32_t objects_of(const struct tn_write_item *item, uint32_t chunks)
{
	const struct tn_shape *s = &item->w->op.space->shape;
	uint32_t last = item->next_chunk + chunks - 1;

	return tn_shape_chunk_first(s, last) + tn_shape_chunk_count(s, last) - tn_shape_chunk_first(s, item->next_chunk);
}

static uint64_t next_bytes(const struct tn_write_item *item, uint32_t chunks)
{
	return (uint64_t)objects_of(item, chunks) * item->w->op.space->shape.padded_bytes;
}

/*
 * How many chunks the next move takes. A disk is fastest with requests of 1 to 4 MiB, and each costs CPU; but beside loads, and into
 * host memory, where workers sum and copy for loads, too, each move is one chunk, so that nobody waits long for it; and without loads
 * no more than half of the scheduler's quantum, so that the next load does not.
 */
static uint32_t together(const struct tn_write_item *item)
{
	const struct tn_writing *w = item->w;
	const struct tn_shape *s = &w->op.space->shape;
	uint64_t most;
	uint32_t n = 1;

	if (tn_item_reach(item) != TN_REACH_DEVICE || !tn_list_empty(&w->op.cache->loads))
		return n;
	most = tn_schedule_write_most(w->op.cache, item->device);
	most = most < TN_IO_BYTES ? most : TN_IO_BYTES;
	while (item->next_chunk + n < w->ready_chunks && next_bytes(item, n + 1) <= most &&
	       objects_of(item, n + 1) * s->object_iovs <= TN_OBJECT_IOVS_MAX)
		n++;
	return n;
}

static void save_move_done(struct tn_move *mv)
{
	struct tn_write_item *item = mv->owner;
	struct tn_writing *w = item->w;

	w->op.inflight--;
	item->inflight--;
	item->done_chunks += (uint16_t)mv->chunks;
	if (mv->kind == TN_MOVE_WRITE)
		tn_schedule_write_ended(w->op.cache, item->device, (uint64_t)mv->count * mv->shape->padded_bytes);
	if (mv->bounced)
		w->op.cache->c.bounced_objects += mv->count;
	if (mv->status && item->state == TN_WRITE_DATA)
		tn_item_failed(item, mv->status);
	if (item->state == TN_WRITE_DATA && item->done_chunks == w->op.space->shape.chunks) {
		tn_item_data_over(item);
		item->state = tn_item_reach(item) == TN_REACH_DEVICE ? TN_WRITE_HEADER : TN_WRITE_STORED;
	}
}

static enum tn_move_user user_of(const struct tn_writing *w)
{
	return w->save ? TN_MOVES_SAVES : TN_MOVES_OFFLOADS;
}

static void start_move(struct tn_write_item *item, uint32_t chunks)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	const struct tn_shape *s = &w->op.space->shape;
	struct tn_move *mv = tn_mover_get(cache->mover, user_of(w));

	assert(mv);
	mv->shape = s;
	mv->first = tn_shape_chunk_first(s, item->next_chunk);
	mv->count = objects_of(item, chunks);
	mv->chunks = chunks;
	mv->owner = item;
	mv->done = save_move_done;
	if (w->save) {
		tn_op_span(&w->op, index_of(item), &mv->mem);
		mv->checks = item_checks(item) + mv->first;
	} else {
		mv->mem.flat = memory_of(w, cache->memory, item->source, NULL);
	}
	if (tn_item_reach(item) == TN_REACH_DEVICE) {
		mv->kind = TN_MOVE_WRITE;
		tn_store_locate(cache->store, item->place, &mv->place);
	} else {
		mv->kind = TN_MOVE_COPY;
		mv->to.flat = memory_of(w, cache->tier[item->tier], item->place, NULL);
	}
	item->next_chunk += (uint16_t)chunks;
	w->op.inflight++;
	item->inflight++;
	tn_mover_start(mv);
}

/*
 * Reads come first: while loads are under way, writes get a quarter of the moves if nobody else wants them, and otherwise
 * what the mover leaves to each of its users.
 */
static bool may_move(const struct tn_writing *w)
{
	struct tn_cache *cache = w->op.cache;
	uint32_t keep = cache->o.io_depth / 2;

	if (!tn_list_empty(&cache->loads))
		keep += cache->o.io_depth;
	return tn_mover_may(cache->mover, user_of(w), keep);
}

static struct tn_key parent_key(const struct tn_writing *w, uint32_t i)
{
	tn_block parent;

	if (w->save)
		return i ? w->op.keys[i - 1] : w->save->parent;
	parent = tn_block_parent(w->op.cache->registry, w->items[i].block);
	return parent == TN_BLOCK_NONE ? (struct tn_key){{0, 0}} : tn_block_key(w->op.cache->registry, parent);
}

static void whole_done(struct tn_tier_move *move, int status)
{
	struct tn_write_item *item = move->owner;
	struct tn_writing *w = item->w;

	tn_whole_put(w->op.cache, move);
	w->op.inflight--;
	item->inflight--;
	if (status) {
		tn_item_failed(item, status);
		return;
	}
	tn_item_data_over(item);
	item->state = TN_WRITE_STORED;
}

/* Offloads only: the tier takes the block from memory, with its checksums. */
static bool start_whole(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_tier_move *move = tn_whole_get(cache);

	if (!move)
		return false;
	*move = (struct tn_tier_move){
		.write = true,
		.space = {w->op.space->id, w->op.space->epoch},
		.key = w->op.keys[index_of(item)],
		.parent = parent_key(w, index_of(item)),
		.shape = &w->op.space->shape,
		.done = whole_done,
		.owner = item,
	};
	move->mem.flat = memory_of(w, cache->memory, item->source, &move->checks);
	item->next_chunk = (uint16_t)w->op.space->shape.chunks;
	w->op.inflight++;
	item->inflight++;
	w->target->ops->move(w->target, move);
	return true;
}

static bool write_chunks(struct tn_writing *w)
{
	const struct tn_shape *s = &w->op.space->shape;
	uint32_t all = (1u << w->op.cache->ndevices) - 1, taken = 0; /* devices that take no write now */
	bool busy = false;

	for (uint32_t i = w->i; i < w->op.n && (taken != all || all == 0); i++) {
		struct tn_write_item *item = &w->items[i];

		while (item->state == TN_WRITE_DATA && item->next_chunk < w->ready_chunks) {
			enum tn_reach reach = tn_item_reach(item);
			uint32_t chunks;

			if (reach == TN_REACH_WHOLE) {
				if (!start_whole(item))
					return busy;
				busy = true;
				break;
			}
			if (!may_move(w)) {
				if (reach == TN_REACH_DEVICE)
					tn_schedule_write_waits(w);
				return busy;
			}
			if (reach == TN_REACH_DEVICE && taken >> item->device & 1)
				break;
			chunks = together(item);
			if (reach == TN_REACH_DEVICE && !tn_schedule_write(w, item->device, next_bytes(item, chunks))) {
				taken |= 1u << item->device;
				break;
			}
			start_move(item, chunks);
			busy = true;
		}
		if (i == w->i && item->state != TN_WRITE_PLACE &&
		    (item->state != TN_WRITE_DATA || item->next_chunk == s->chunks))
			w->i++; /* nothing left to start for the first ones */
	}
	return busy;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void header_done(const struct tn_header_put *put, int status)
{
	struct tn_write_item *item = put->owner;

	item->w->op.inflight--;
	item->inflight--;
	tn_schedule_write_ended(item->w->op.cache, item->device, TN_STORE_HEADER_BYTES);
	if (status)
		tn_item_failed(item, status);
	else
		item->state = TN_WRITE_STORED;
}

static uint8_t entry_flags(const struct tn_writing *w, uint32_t i)
{
	bool expires = w->save ? w->save->ttl_ns != 0 : w->op.cache->expiry[w->items[i].block] != 0;
	bool partial = w->save && w->save->partial_last && i == w->op.n - 1;

	return (uint8_t)((partial ? TN_ENTRY_PARTIAL : 0) | (expires ? TN_ENTRY_EXPIRES : 0));
}

static void fill_put(struct tn_writing *w, uint32_t i, struct tn_header_put *put)
{
	struct tn_cache *cache = w->op.cache;
	struct tn_write_item *item = &w->items[i];

	*put = (struct tn_header_put){
		.slot = item->place,
		.entry = {
			.key = w->op.keys[i],
			.parent = parent_key(w, i),
			.sequence = tn_store_next_sequence(cache->store),
			.space = w->op.space->index,
			.recency = cache->recency[item->block],
			.flags = entry_flags(w, i),
		},
		.space_id = w->op.space->id,
		.space_epoch = w->op.space->epoch,
		.group = w->op.space->group,
		.shape = &w->op.space->shape,
		.checks = item_checks(item),
		.owner = item,
	};
	item->sequence = put->entry.sequence;
}

/* Runs of neighbouring items, so that their headers, neighbours too, go out in one write. */
static bool write_headers(struct tn_writing *w)
{
	struct tn_header_put puts[TN_HEADERS_BATCH];
	bool busy = false;

	while (w->hdr_i < w->op.n) {
		uint8_t device = w->items[w->hdr_i].device;
		uint32_t n = 0, taken;

		while (n < TN_HEADERS_BATCH && w->hdr_i + n < w->op.n &&
		       w->items[w->hdr_i + n].state == TN_WRITE_HEADER && w->items[w->hdr_i + n].device == device) {
			fill_put(w, w->hdr_i + n, &puts[n]);
			n++;
		}
		if (n == 0) {
			w->hdr_i++;
			continue;
		}
		if (!tn_schedule_write(w, device, (uint64_t)n * TN_STORE_HEADER_BYTES))
			return busy;
		taken = tn_headers_write(w->op.cache->headers, puts, n, header_done);
		tn_schedule_write_undone(w->op.cache, device, (uint64_t)(n - taken) * TN_STORE_HEADER_BYTES);
		if (taken == 0)
			return busy;
		for (uint32_t k = 0; k < taken; k++)
			w->items[w->hdr_i + k].inflight++;
		w->op.inflight += taken;
		w->hdr_i += taken;
		busy = true;
	}
	return busy;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

void tn_writing_publish(struct tn_write_item *item, tn_block b)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_store_entry entry = {
		.key = w->op.keys[index_of(item)],
		.parent = parent_key(w, index_of(item)),
		.sequence = item->sequence,
		.space = w->op.space->index,
		.recency = cache->recency ? cache->recency[b] : 0,
		.flags = entry_flags(w, index_of(item)),
	};

	tn_tier_arrive(cache->tier[item->tier], b, item->place, &entry);
	item->tier = TN_TIER_NONE; /* the place is the block's now */
}

bool tn_writing_step(struct tn_writing *w, bool committed, bool *busy)
{
	if (!w->op.cancelled) {
		*busy |= write_chunks(w);
		if (!committed || w->unplaced || w->unwritten)
			return false;
		*busy |= write_headers(w);
		if (w->hdr_i < w->op.n)
			return false;
	}
	return w->op.inflight == 0;
}
