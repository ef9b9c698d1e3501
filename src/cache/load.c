/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and prefetches, on the owner thread.
 *
 * A load goes through its blocks chunk by chunk: layer 0 of all blocks first, then the next layers. A block
 * on disk needs its header (checksums) beside the first chunk; what is read before the header is there is checked by
 * a worker afterwards, the rest by the executor that reads it (reads.c). One flight a block: a load that wants a block which another one is already reading joins it and
 * gets a copy after verification, as long as none of its chunks was verified yet.
 * A failure of block i shortens the good prefix to i, before any layer that lacks it is reported.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "cache/cache_internal.h"

#define QUANTUM 512u     /* chunks a load may start before the next load's turn, */
#define COPY_QUANTUM 16u /* where one from host memory counts as so many */
#define HEADER_AHEAD 64u /* headers read ahead of the data */

static uint8_t *chunk_state(struct tn_op *op, uint32_t i, uint32_t c)
{
	return &op->chunk_state[(size_t)c * op->n + i];
}

static uint32_t index_of(const struct tn_item *item)
{
	return (uint32_t)(item - item->op->items);
}

static bool wanted(const struct tn_item *item)
{
	const struct tn_op *op = item->op;

	return index_of(item) < op->good && !op->cancelled;
}

/* Items that still must be read although the load itself was given up: others wait for them. */
static bool due(const struct tn_item *item)
{
	return !item->error && (wanted(item) || item->followers);
}

/* The pages of an item are the caller's again as soon as nothing writes to them any more, nor will. */
static void let_go(struct tn_item *item)
{
	bool ahead = item->state == TN_ITEM_FOLLOW || (item->state != TN_ITEM_IDLE && due(item));

	if (item->inflight == 0 && !ahead)
		__atomic_store_n(&item->busy, 0, __ATOMIC_RELEASE);
}

/* Reports a prefix of `good` blocks: first the prefix, then the chunks that only waited for what was cut off. */
static void shrink(struct tn_op *op, uint32_t good)
{
	uint32_t was = op->good;

	if (good >= was)
		return;
	__atomic_store_n(&op->good, good, __ATOMIC_RELEASE);
	for (uint32_t c = 0; c < op->space->shape.chunks; c++) {
		uint32_t missing = 0;

		for (uint32_t i = good; i < was; i++)
			missing += *chunk_state(op, i, c) != TN_CHUNK_DONE;
		__atomic_sub_fetch(&op->left[c], missing, __ATOMIC_RELEASE);
	}
	for (uint32_t i = good; i < was; i++)
		let_go(&op->items[i]);
	tn_op_notify(op);
}

static void chunk_is_good(struct tn_item *item, uint32_t c)
{
	struct tn_op *op = item->op;
	uint32_t i = index_of(item);

	if (*chunk_state(op, i, c) == TN_CHUNK_DONE)
		return;
	*chunk_state(op, i, c) = TN_CHUNK_DONE;
	item->done_chunks++;
	if (i < op->good && __atomic_sub_fetch(&op->left[c], 1, __ATOMIC_RELEASE) == 0)
		tn_op_notify(op);
}

/* ---- the end of an item ----------------------------------------------------------------------------- */

static void item_ends(struct tn_item *item);

static void promoted(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;
	const struct tn_shape *s = &item->op->space->shape;
	tn_block b = item->block;

	if (item->host_slot == TN_HOST_NONE || item->state != TN_ITEM_DISK)
		return;
	if (item->done_chunks < s->chunks || cache->is_doomed[b] == TN_DOOM_DROPPED ||
	    tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_FILLING) {
		if (tn_block_residency(cache->registry, b, TN_TIER_HOST) == TN_FILLING)
			tn_block_set_residency(cache->registry, b, TN_TIER_HOST, TN_ABSENT);
		tn_host_slot_put(cache, item->op->space, item->host_slot);
		return;
	}
	memcpy(tn_host_checks(cache->host, item->host_slot, s),
	       item->op->checks + (size_t)index_of(item) * s->layers, s->layers * sizeof(uint64_t));
	tn_block_arrives_in_host(cache, b, item->host_slot, false);
	if (item->op->kind == TN_OP_PREFETCH)
		cache->c.prefetched_blocks++;
	else
		cache->c.promoted_blocks++;
}

static void unpin(struct tn_cache *cache, tn_block b)
{
	tn_block_unpin(cache->registry, b);
	tn_block_try_forget(cache, b);
}

/* Followers share the leader's fate: what it has verified was copied to them. */
static void followers_end(struct tn_item *leader)
{
	struct tn_item *f = leader->followers;

	leader->followers = NULL;
	while (f) {
		struct tn_item *next = f->next_follower;

		f->op->inflight--;
		f->next_follower = NULL;
		if (f->done_chunks < f->op->space->shape.chunks) {
			f->error = leader->error ? leader->error : -EIO;
			shrink(f->op, index_of(f));
		}
		item_ends(f);
		f = next;
	}
}

static void count_read_back(struct tn_cache *cache, tn_block b)
{
	uint8_t bit = (uint8_t)(1u << b % 8u);

	if (cache->unread[b / 8u] & bit)
		cache->c.blocks_read_back++;
	cache->unread[b / 8u] &= (uint8_t)~bit;
}

static void item_ends(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;
	bool loaded = item->done_chunks == item->op->space->shape.chunks;

	assert(item->inflight == 0 && item->landed == 0);
	if (item->state == TN_ITEM_IDLE)
		return;
	if (item->state == TN_ITEM_DISK) {
		tn_flights_del(cache->flights, item->block, item);
		if (loaded)
			count_read_back(cache, item->block);
		promoted(item);
		followers_end(item);
	}
	if (loaded)
		cache->c.load_blocks++;
	item->state = TN_ITEM_IDLE;
	__atomic_store_n(&item->busy, 0, __ATOMIC_RELEASE);
	unpin(cache, item->block);
}

static bool item_is_over(const struct tn_item *item)
{
	if (item->state == TN_ITEM_IDLE || item->state == TN_ITEM_FOLLOW || item->inflight)
		return false; /* a follower is ended by its leader */
	return item->error || item->done_chunks == item->op->space->shape.chunks;
}

static void item_fails(struct tn_item *item, int status)
{
	struct tn_cache *cache = item->op->cache;

	if (!item->error) {
		item->error = status;
		TN_TRACE3(load_failed, item->block, item->slot, status);
		if (status == -EBADMSG)
			cache->c.corrupt_objects++;
		else if (status != -ECANCELED)
			cache->c.io_errors++;
		/* Unless it failed another load before, and was saved anew since. */
		if ((status == -EBADMSG || status == -EIO) &&
		    tn_block_slot(cache->registry, item->block, TN_TIER_DISK) == item->slot)
			tn_block_leaves_disk(cache, item->block, true, status == -EIO);
	}
	shrink(item->op, index_of(item));
	for (uint32_t c = 0; item->landed > 0; c++) {
		uint8_t *state = chunk_state(item->op, index_of(item), c);

		if (*state != TN_CHUNK_LANDED && *state != TN_CHUNK_SOUND)
			continue;
		*state = TN_CHUNK_FAILED;
		item->landed--;
		item->op->landed--;
		item->inflight--;
		item->op->inflight--;
	}
}

/* ---- chunks ------------------------------------------------------------------------------------------ */

/* Worker: the verified chunk goes to everybody who joined, and into host memory. */
static void copy_on(struct tn_move *mv)
{
	struct tn_item *item = mv->owner;
	const struct tn_shape *s = mv->shape;

	for (uint32_t l = mv->first; l < mv->first + mv->count; l++) {
		tn_span_object(&mv->mem, s, l, mv->scratch);
		for (struct tn_item *f = item->followers; f; f = f->next_follower) {
			struct tn_span to;

			tn_op_span(f->op, index_of(f), &to);
			tn_span_object(&to, s, l, mv->scratch_to);
			tn_iov_copy(mv->scratch_to, mv->scratch, s->object_bytes);
		}
		if (mv->to.flat) {
			tn_span_object(&mv->to, s, l, mv->scratch_to);
			tn_iov_copy(mv->scratch_to, mv->scratch, s->object_bytes);
		}
	}
}

/* A chunk's read, check and copies are over. */
static void chunk_ends(struct tn_item *item, uint32_t c, int status)
{
	item->op->inflight--;
	item->inflight--;
	if (status || item->error) {
		*chunk_state(item->op, index_of(item), c) = TN_CHUNK_FAILED;
		if (status)
			item_fails(item, status);
	} else {
		chunk_is_good(item, c);
		for (struct tn_item *f = item->followers; f; f = f->next_follower)
			chunk_is_good(f, c);
	}
	if (item_is_over(item))
		item_ends(item);
	else
		let_go(item);
}

static void move_done(struct tn_move *mv)
{
	struct tn_item *item = mv->owner;

	if (mv->verify && !mv->status)
		item->op->cache->c.verified_objects += mv->count;
	chunk_ends(item, mv->chunk, mv->status);
}

static struct tn_move *get_move(struct tn_item *item, uint32_t c, enum tn_move_user user)
{
	struct tn_op *op = item->op;
	const struct tn_shape *s = &op->space->shape;
	struct tn_move *mv = tn_mover_get(op->cache->mover, user);

	assert(mv); /* asked tn_mover_may before */
	mv->shape = s;
	mv->first = tn_shape_chunk_first(s, c);
	mv->count = tn_shape_chunk_count(s, c);
	mv->chunk = c;
	mv->owner = item;
	mv->done = move_done;
	*chunk_state(op, index_of(item), c) = TN_CHUNK_MOVING;
	return mv;
}

/* From the leader's pages, which hold the chunk now. */
static void start_check(struct tn_item *item, uint32_t c, bool verify)
{
	struct tn_op *op = item->op;
	struct tn_move *mv = get_move(item, c, TN_MOVES_CHECKS);

	mv->kind = TN_MOVE_CHECK;
	mv->verify = verify;
	mv->checks = op->checks + (size_t)index_of(item) * op->space->shape.layers + mv->first;
	tn_op_span(op, index_of(item), &mv->mem);
	if (item->host_slot != TN_HOST_NONE && !op->flat)
		mv->to.flat = tn_host_flat(op->cache->host, item->host_slot);
	if (item->followers || mv->to.flat)
		mv->extra = copy_on;
	tn_mover_start(mv);
}

/* Goes on with a chunk that was read, as far as the header and the moves allow; false: it still waits. */
static bool go_on(struct tn_item *item, uint32_t c, bool verify)
{
	struct tn_cache *cache = item->op->cache;
	bool copies = item->followers || (item->host_slot != TN_HOST_NONE && !item->op->flat);

	if (verify && item->header != TN_HEADER_HAVE)
		return false;
	if ((verify || copies) && !tn_mover_may(cache->mover, TN_MOVES_CHECKS, 0))
		return false;
	item->frozen = true;
	if (verify || copies)
		start_check(item, c, verify);
	else
		chunk_ends(item, c, 0);
	return true;
}

/* Chunks that waited for the header, or for a move. */
static bool landed_go_on(struct tn_item *item)
{
	bool any = false;

	for (uint32_t c = 0; item->landed > 0 && c < item->op->space->shape.chunks; c++) {
		uint8_t *state = chunk_state(item->op, index_of(item), c), was = *state;

		if (was != TN_CHUNK_LANDED && was != TN_CHUNK_SOUND)
			continue;
		item->landed--;
		item->op->landed--;
		*state = TN_CHUNK_MOVING;
		if (go_on(item, c, was == TN_CHUNK_LANDED)) {
			any = true;
			continue;
		}
		*state = was;
		item->landed++;
		item->op->landed++;
		break;
	}
	return any;
}

void tn_load_read_ended(struct tn_item *item, uint32_t c, int status, bool verified)
{
	bool verify = item->op->cache->o.verify && !verified;

	if (status || item->error) {
		chunk_ends(item, c, status);
	} else if (!go_on(item, c, verify)) {
		*chunk_state(item->op, index_of(item), c) = verify ? TN_CHUNK_LANDED : TN_CHUNK_SOUND;
		item->landed++;
		item->op->landed++;
	}
}

/* false: no IOCB is free. */
static bool start_chunk(struct tn_item *item, uint32_t c)
{
	struct tn_op *op = item->op;

	if (item->state == TN_ITEM_DISK) {
		if (!tn_reads_add(item, c))
			return false;
		*chunk_state(op, index_of(item), c) = TN_CHUNK_READING;
	} else {
		struct tn_move *mv = get_move(item, c, TN_MOVES_COPIES);

		mv->kind = TN_MOVE_COPY;
		mv->mem.flat = tn_host_flat(op->cache->host, item->host_slot);
		tn_op_span(op, index_of(item), &mv->to);
		tn_mover_start(mv);
	}
	item->inflight++;
	op->inflight++;
	return true;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

void tn_load_header_ended(const struct tn_header_want *want, int status)
{
	struct tn_item *item = want->owner;

	item->op->inflight--;
	item->inflight--;
	if (status) {
		item_fails(item, status);
	} else {
		item->header = TN_HEADER_HAVE;
		landed_go_on(item);
	}
	if (item_is_over(item))
		item_ends(item);
	else
		let_go(item);
}

/* ---- activation ---------------------------------------------------------------------------------------- */

static void want_promotion(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;

	if (!cache->host || !item->op->space->host_ok || item->partial || cache->host_policy == NULL)
		return;
	if (tn_block_residency(cache->registry, item->block, TN_TIER_HOST) != TN_ABSENT)
		return;
	item->host_slot = tn_host_slot_get(cache, item->op->space, item->block);
	if (item->host_slot != TN_HOST_NONE)
		tn_block_set_residency(cache->registry, item->block, TN_TIER_HOST, TN_FILLING);
}

static bool join(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;
	struct tn_item *leader = tn_flights_get(cache->flights, item->block);

	/* A leader that nobody wants any more may have been passed over already. */
	if (!leader || leader->frozen || !wanted(leader) || leader->partial || item->partial || item->op->flat ||
	    leader->op == item->op)
		return false;
	item->state = TN_ITEM_FOLLOW;
	item->next_follower = leader->followers;
	leader->followers = item;
	item->op->inflight++;
	if (leader->op->priority < item->op->priority)
		leader->op->priority = item->op->priority;
	cache->c.joined_blocks++;
	return true;
}

/* Decides where block i comes from; false if it is not there. */
static bool activate(struct tn_item *item)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	tn_block b = item->block;

	if (b == TN_BLOCK_NONE || tn_watch_expired(cache, b))
		return false;
	if (tn_block_residency(reg, b, TN_TIER_HOST) == TN_PRESENT && op->kind == TN_OP_LOAD) {
		item->state = TN_ITEM_HOST;
		item->host_slot = tn_block_slot(reg, b, TN_TIER_HOST);
		return true;
	}
	if (tn_block_residency(reg, b, TN_TIER_DISK) != TN_PRESENT)
		return false;
	item->slot = tn_block_slot(reg, b, TN_TIER_DISK);
	if (join(item))
		return true;
	item->state = TN_ITEM_DISK;
	want_promotion(item);
	if (op->flat && item->host_slot == TN_HOST_NONE) { /* prefetch: no room */
		item->state = TN_ITEM_IDLE;
		return false;
	}
	tn_flights_set(cache->flights, b, item);
	return true;
}

/* Blocks of the sub-range: those outside it have nothing to do, those at its ends only some pages. */
static bool outside(struct tn_op *op, uint32_t i)
{
	uint64_t first = (uint64_t)i * op->space->geometry.pages_per_block;
	uint64_t end = first + op->space->geometry.pages_per_block;

	op->items[i].partial = op->first_page > first || op->end_page < end;
	return end <= op->first_page || first >= op->end_page;
}

/* Pins all blocks before any is activated: what one is promoted into may be another's place in host memory. */
static void hold_blocks(struct tn_op *op)
{
	if (__atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED))
		return;
	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];

		if (outside(op, i))
			continue;
		item->block = tn_registry_find_one(op->cache->registry, op->space->index, &op->keys[i], true);
		if (item->block == TN_BLOCK_NONE && op->kind == TN_OP_LOAD)
			return;
	}
}

/* Lets go of those that turned out to be of no use. */
static void release_idle(struct tn_op *op)
{
	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];

		if (item->state == TN_ITEM_IDLE && item->block != TN_BLOCK_NONE) {
			unpin(op->cache, item->block);
			item->block = TN_BLOCK_NONE;
		}
	}
}

void tn_load_start(struct tn_cmd *cmd)
{
	struct tn_op *op = tn_container_of(cmd, struct tn_op, kick);
	struct tn_cache *cache = op->cache;
	const struct tn_shape *s = &op->space->shape;
	uint64_t cpu_ns;

	if (!tn_op_kicked(op))
		return;
	if (op->active) {
		if (__atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE))
			op->deadline_ns = 0; /* the next step sees it pass */
		return;
	}
	op->active = true;
	cpu_ns = tn_cpu_ns();
	if (__atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE))
		op->deadline_ns = 0;
	op->begin_ns = tn_now_ns(&cache->clock);
	tn_list_push(&cache->loads, &op->link);
	cache->c.loads += op->kind == TN_OP_LOAD;
	hold_blocks(op);
	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];

		if (outside(op, i)) {
			for (uint32_t c = 0; c < s->chunks; c++)
				chunk_is_good(item, c);
			let_go(item);
			continue;
		}
		if (!activate(item)) {
			if (op->kind == TN_OP_PREFETCH) {
				for (uint32_t c = 0; c < s->chunks; c++)
					chunk_is_good(item, c);
				continue;
			}
			shrink(op, i);
			break;
		}
	}
	release_idle(op);
	tn_reads_prepare(op);
	if (op->kind == TN_OP_LOAD) {
		tn_request_begins(cache, op->n, op->good, TN_BLOCK_NONE);
		for (uint32_t i = 0; i < op->good; i++)
			if (op->items[i].block != TN_BLOCK_NONE)
				tn_block_touch(cache, op->items[i].block, op->n - 1 - i, false);
		tn_request_ends(op);
	}
	tn_schedule_load(op);
	cache->c.resolve_ns += tn_cpu_ns() - cpu_ns;
}

/* ---- stepping ------------------------------------------------------------------------------------------- */

static bool more_to_issue(const struct tn_op *op)
{
	return op->chunk < op->space->shape.chunks;
}

/* Why the next chunk of an item cannot go now, if so. */
static bool must_wait(struct tn_item *item)
{
	struct tn_op *op = item->op;

	if (item->state == TN_ITEM_HOST)
		return !tn_mover_may(op->cache->mover, TN_MOVES_COPIES, 0);
	if (op->chunk == 0) {
		if (op->hdr_i <= op->i)
			return true; /* no header buffer: next time */
		/* What is checked only later lies in its pages by then; of this block not all of it will. */
		if (item->partial && item->header == TN_HEADER_READING && !item->error)
			return true;
	}
	return !tn_reads_may_go(item, op->chunk);
}

/* Asks for the headers of the next blocks, or finds that they are known; the time it took, as work done once per load. */
static uint64_t look_ahead(struct tn_op *op)
{
	uint64_t from_ns = tn_cpu_ns(), ns;

	tn_load_read_headers(op, op->i + HEADER_AHEAD);
	ns = tn_cpu_ns() - from_ns;
	op->cache->c.resolve_ns += ns;
	return ns;
}

static uint32_t issue(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	uint64_t from_ns = 0;
	uint32_t started = 0;

	while (more_to_issue(op) && started < QUANTUM) {
		struct tn_item *item;

		if (op->i >= op->n) {
			cache->c.submit_layers += tn_shape_chunk_count(&op->space->shape, op->chunk++);
			op->i = 0;
			continue;
		}
		item = &op->items[op->i];
		if ((item->state == TN_ITEM_DISK || item->state == TN_ITEM_HOST) && due(item) &&
		    *chunk_state(op, op->i, op->chunk) == TN_CHUNK_IDLE) {
			if (item->state == TN_ITEM_DISK && op->chunk == 0 && op->hdr_i <= op->i)
				from_ns += look_ahead(op);
			if (must_wait(item))
				break;
			if (started == 0)
				from_ns = tn_cpu_ns();
			if (!start_chunk(item, op->chunk))
				break;
			started += item->state == TN_ITEM_HOST ? COPY_QUANTUM : 1;
		}
		op->i++;
	}
	tn_reads_issue(cache);
	tn_schedule_load_issued(op, !more_to_issue(op));
	if (started)
		cache->c.submit_ns += tn_cpu_ns() - from_ns;
	return started;
}

static void give_up(struct tn_op *op)
{
	uint32_t good = 0;

	tn_reads_look(op);
	op->cancelled = true;
	while (good < op->good && op->items[good].done_chunks == op->space->shape.chunks)
		good++;
	shrink(op, good);
	for (uint32_t i = 0; i < op->n; i++)
		let_go(&op->items[i]);
	/* A follower whose leader has not verified anything yet may still leave. */
	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i], *leader, **at;

		if (item->state != TN_ITEM_FOLLOW)
			continue;
		leader = tn_flights_get(op->cache->flights, item->block);
		for (at = leader && !leader->frozen ? &leader->followers : NULL; at && *at; at = &(*at)->next_follower) {
			if (*at != item)
				continue;
			*at = item->next_follower;
			op->inflight--;
			item_ends(item);
			break;
		}
	}
	tn_reads_cancel(op);
}

/* ns per MiB, an exponentially weighted mean over whole loads: of those that read from disk, and of those that did not. */
static void update_estimate(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	uint64_t bytes = op->good * op->space->shape.slot_bytes, ns = tn_now_ns(&cache->clock) - op->begin_ns;
	uint64_t *estimate = &cache->host_ns_per_mib, old, new;

	if (op->cancelled || bytes < (1u << 20) || op->end_page - op->first_page < op->good)
		return;
	for (uint32_t i = 0; i < op->good; i++)
		if (op->items[i].slot != TN_SLOT_NONE)
			estimate = &cache->disk_ns_per_mib;
	old = *estimate;
	new = ns / (bytes >> 20);
	__atomic_store_n(estimate, old ? (old * 7 + new) / 8 : new, __ATOMIC_RELAXED);
}

/* Chunks that were read when all moves were taken. */
static bool landed_step(struct tn_op *op)
{
	bool any = false;

	for (uint32_t i = 0; i < op->n && op->landed > 0; i++) {
		struct tn_item *item = &op->items[i];

		if (item->landed == 0)
			continue;
		if (!tn_mover_may(op->cache->mover, TN_MOVES_CHECKS, 0))
			break;
		if (landed_go_on(item))
			any = true;
	}
	return any;
}

static bool finished(struct tn_op *op)
{
	if (op->inflight)
		return false;
	if (more_to_issue(op))
		for (uint32_t i = 0; i < op->n; i++)
			if (op->items[i].state == TN_ITEM_DISK || op->items[i].state == TN_ITEM_HOST)
				if (due(&op->items[i]) && op->items[i].done_chunks < op->space->shape.chunks)
					return false;
	return true;
}

static void finish(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;

	for (uint32_t i = 0; i < op->n; i++)
		item_ends(&op->items[i]);
	update_estimate(op);
	tn_schedule_load_over(op);
	cache->ended++;
	cache->c.load_failed_blocks += op->kind == TN_OP_LOAD ? op->n - op->good : 0;
	tn_list_del(&op->link);
	op->active = false;
	if (op->kind == TN_OP_PREFETCH) {
		tn_op_give(op);
		return;
	}
	tn_op_drained(op);
}

/* The most urgent load first, then the others in turn. */
static void raise_urgent(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp, *best = NULL;
	int32_t most = INT32_MIN;

	tn_list_for_each_safe(pos, tmp, &cache->loads) {
		struct tn_op *op = tn_container_of(pos, struct tn_op, link);

		if (op->priority > most) {
			most = op->priority;
			best = pos;
		}
	}
	if (best && best != cache->loads.next) {
		tn_list_del(best);
		tn_list_push_front(&cache->loads, best);
	}
}

/* The scheduler says who is next; what comes from host memory alone concerns no device. */
static bool issue_by_need(struct tn_cache *cache, uint64_t now_ns)
{
	struct tn_op *op;
	bool busy = false;

	for (struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		op = tn_container_of(pos, struct tn_op, link);
		tn_schedule_load_at(op);
		while (!op->from_disk && issue(op) > 0)
			busy = true;
	}
	while ((op = tn_schedule_next(cache, now_ns))) {
		if (issue(op) == 0)
			continue;
		busy = true;
		tn_schedule_again(cache);
	}
	return busy;
}

bool tn_loads_step(struct tn_cache *cache, uint64_t now_ns)
{
	struct tn_list *pos, *tmp;
	bool busy = false, again = true;

	if (!cache->schedule)
		raise_urgent(cache);
	while (again) {
		again = false;
		tn_list_for_each_safe(pos, tmp, &cache->loads) {
			struct tn_op *op = tn_container_of(pos, struct tn_op, link);

			if (!op->cancelled && op->deadline_ns <= now_ns) {
				give_up(op);
				busy = true;
			}
			if (op->landed > 0 && landed_step(op))
				busy = true;
			if (!cache->schedule && issue(op) > 0)
				busy = again = true;
			if (finished(op)) {
				finish(op);
				busy = true;
			}
		}
		if (cache->schedule && issue_by_need(cache, now_ns))
			busy = again = true;
	}
	return busy;
}
