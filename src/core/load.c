/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and prefetches from their beginning (load_start.c) to their end, on the owner thread.
 *
 * A load goes through its blocks chunk by chunk: layer 0 of all blocks first, then the next layers. A block
 * on disk needs its header (checksums) beside the first chunk. A worker checks what was read before the header is
 * there; the executor that reads the rest checks it (reads.c).
 * A failure of block i shortens the good prefix to i, before any layer that lacks it is reported.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/core.h"

#define QUANTUM 512u     /* chunks a load may start before the next load's turn, */
#define COPY_QUANTUM 16u /* where one from host memory counts as so many */
#define NO_CHUNK UINT32_MAX
#define HEADER_AHEAD 64u /* headers read ahead of the data */

static uint8_t *chunk_state(struct tn_reading *r, uint32_t i, uint32_t c)
{
	return &r->chunk_state[(size_t)c * r->op.n + i];
}

static uint32_t index_of(const struct tn_read_item *item)
{
	return (uint32_t)(item - item->r->items);
}

static struct tn_span span_of(const struct tn_read_item *item)
{
	struct tn_span span = {0};

	if (item->r->prefetch)
		span.flat = tn_read_memory(item, NULL);
	else
		tn_op_span(&item->r->op, index_of(item), &span);
	return span;
}

bool tn_read_wanted(const struct tn_read_item *item)
{
	const struct tn_reading *r = item->r;

	return index_of(item) < r->good && !r->op.cancelled;
}

/* Items that still must be read although the load itself was given up: others wait for them. */
static bool due(const struct tn_read_item *item)
{
	return !item->error && (tn_read_wanted(item) || item->followers);
}

static void tell_idle(const struct tn_read_item *item)
{
	tn_face_tell_idle(&item->r->op.cache->region, item->r->op.index, index_of(item));
}

/* The pages of an item are the caller's again as soon as nothing writes to them any more, nor will. */
void tn_read_pages_free(struct tn_read_item *item)
{
	bool ahead = item->state == TN_READ_FOLLOW || (item->state != TN_READ_IDLE && due(item));

	if (item->inflight == 0 && !ahead)
		tell_idle(item);
}

/* So many blocks of the prefix lack chunk c no more; whether that was the last. A prefetch tells nobody. */
static bool arrived(struct tn_reading *r, uint32_t c, uint32_t blocks)
{
	struct tn_load_op *load = tn_load_of(&r->op);

	if (r->prefetch || blocks == 0)
		return false;
	load->left[c] -= blocks;
	if (load->left[c] > 0)
		return false;
	tn_face_tell_ready(&r->op.cache->region, r->op.index, c, r->op.generation);
	return true;
}

/* Reports a prefix of `good` blocks: first the prefix, then the chunks that only waited for what was cut off. */
void tn_read_shrink(struct tn_reading *r, uint32_t good)
{
	uint32_t was = r->good;

	if (good >= was)
		return;
	r->good = good;
	tn_face_tell_good(&r->op.cache->region, r->op.index, good);
	for (uint32_t c = 0; c < r->op.space->shape.chunks; c++) {
		uint32_t missing = 0;

		for (uint32_t i = good; i < was; i++)
			missing += *chunk_state(r, i, c) != TN_CHUNK_DONE;
		arrived(r, c, missing);
	}
	for (uint32_t i = good; i < was; i++)
		tn_read_pages_free(&r->items[i]);
	tn_op_notify(&r->op);
}

void tn_read_chunk_good(struct tn_read_item *item, uint32_t c)
{
	struct tn_reading *r = item->r;
	uint32_t i = index_of(item);

	if (*chunk_state(r, i, c) == TN_CHUNK_DONE)
		return;
	*chunk_state(r, i, c) = TN_CHUNK_DONE;
	item->done_chunks++;
	if (i < r->good && arrived(r, c, 1))
		tn_op_notify(&r->op);
}

/* ---- the end of an item ----------------------------------------------------------------------------- */

static void item_ends(struct tn_read_item *item);

static void promoted(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_tier_base *t = cache->memory;
	const struct tn_shape *s = &item->r->op.space->shape;
	tn_block b = item->block;
	uint64_t *checks;

	if (item->memory == TN_SLOT_NONE || item->state != TN_READ_LEAD)
		return;
	if (item->done_chunks < s->chunks || cache->is_doomed[b] == TN_DOOM_DROPPED || tn_tier_residency(t, b) != TN_FILLING) {
		if (tn_tier_residency(t, b) == TN_FILLING)
			tn_block_set_residency(cache->registry, b, t->tier, TN_ABSENT);
		tn_tier_release(t, item->r->op.space->index, b, item->memory, 0);
		return;
	}
	tn_read_memory(item, &checks);
	memcpy(checks, item->r->checks + (size_t)index_of(item) * s->layers, s->layers * sizeof(uint64_t));
	tn_tier_arrive(t, b, item->memory, NULL);
	if (item->r->prefetch)
		cache->c.prefetched_blocks++;
	else
		cache->c.promoted_blocks++;
}

/* Followers share the leader's fate: what it has verified was copied to them. */
static void followers_end(struct tn_read_item *leader)
{
	struct tn_read_item *f = leader->followers;

	leader->followers = NULL;
	while (f) {
		struct tn_read_item *next = f->next_follower;

		f->r->op.inflight--;
		f->next_follower = NULL;
		if (f->done_chunks < f->r->op.space->shape.chunks) {
			f->error = leader->error ? leader->error : -EIO;
			tn_read_shrink(f->r, index_of(f));
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

static void item_ends(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	bool loaded = item->done_chunks == item->r->op.space->shape.chunks;

	assert(item->inflight == 0 && item->landed == 0);
	if (item->state == TN_READ_IDLE)
		return;
	if (item->state == TN_READ_LEAD) {
		tn_flights_del(cache->flights, item->block, item);
		if (loaded && cache->tier[item->tier]->ops->traits.durable)
			count_read_back(cache, item->block);
		promoted(item);
		followers_end(item);
	}
	if (loaded)
		cache->c.load_blocks++;
	item->state = TN_READ_IDLE;
	tell_idle(item);
	tn_block_release(cache, item->block);
}

static bool item_is_over(const struct tn_read_item *item)
{
	if (item->state == TN_READ_IDLE || item->state == TN_READ_FOLLOW || item->inflight)
		return false; /* a follower is ended by its leader */
	return item->error || item->done_chunks == item->r->op.space->shape.chunks;
}

/* The bytes are not to be had from there again, unless the block failed another load before, and was saved anew since. */
static void place_failed(struct tn_read_item *item, int status)
{
	struct tn_tier_base *t = item->r->op.cache->tier[item->tier];
	enum tn_residency r = tn_tier_residency(t, item->block);
	enum tn_leave how = status == -EBADMSG ? TN_LEAVE_BAD : status == -EIO ? TN_LEAVE_EIO : TN_LEAVE_GONE;

	if ((how == TN_LEAVE_GONE && status != -ENOENT) || tn_tier_place_of(t, item->block) != item->place)
		return;
	if (r == TN_PRESENT || r == TN_DRAINING)
		tn_tier_leave(t, item->block, how);
}

static void item_fails(struct tn_read_item *item, int status)
{
	struct tn_cache *cache = item->r->op.cache;

	if (!item->error) {
		item->error = status;
		TN_TRACE3(load_failed, item->block, item->place, status);
		if (status == -EBADMSG)
			cache->c.corrupt_objects++;
		else if (status != -ECANCELED && status != -ENOENT)
			cache->c.io_errors++;
		place_failed(item, status);
	}
	tn_read_shrink(item->r, index_of(item));
	for (uint32_t c = 0; item->landed > 0; c++) {
		uint8_t *state = chunk_state(item->r, index_of(item), c);

		if (*state != TN_CHUNK_LANDED && *state != TN_CHUNK_SOUND)
			continue;
		*state = TN_CHUNK_FAILED;
		item->landed--;
		item->r->landed--;
		item->inflight--;
		item->r->op.inflight--;
	}
}

/* ---- chunks ------------------------------------------------------------------------------------------ */

/* Worker: the verified chunk goes to everybody who joined, and into host memory. */
static void copy_on(struct tn_move *mv)
{
	struct tn_read_item *item = mv->owner;
	const struct tn_shape *s = mv->shape;

	for (uint32_t l = mv->first; l < mv->first + mv->count; l++) {
		tn_span_object(&mv->mem, s, l, mv->scratch);
		for (struct tn_read_item *f = item->followers; f; f = f->next_follower) {
			struct tn_span to;

			tn_op_span(&f->r->op, index_of(f), &to);
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
static void chunk_ends(struct tn_read_item *item, uint32_t c, int status)
{
	item->r->op.inflight--;
	item->inflight--;
	if (status || item->error) {
		*chunk_state(item->r, index_of(item), c) = TN_CHUNK_FAILED;
		if (status)
			item_fails(item, status);
	} else {
		tn_read_chunk_good(item, c);
		for (struct tn_read_item *f = item->followers; f; f = f->next_follower)
			tn_read_chunk_good(f, c);
	}
	if (item_is_over(item))
		item_ends(item);
	else
		tn_read_pages_free(item);
}

static void move_done(struct tn_move *mv)
{
	struct tn_read_item *item = mv->owner;

	if (mv->verify && !mv->status)
		item->r->op.cache->c.verified_objects += mv->count;
	chunk_ends(item, mv->chunk, mv->status);
}

static struct tn_move *get_move(struct tn_read_item *item, uint32_t c, enum tn_move_user user)
{
	struct tn_reading *r = item->r;
	const struct tn_shape *s = &r->op.space->shape;
	struct tn_move *mv = tn_mover_get(r->op.cache->mover, user);

	assert(mv); /* asked tn_mover_may before */
	mv->shape = s;
	mv->first = tn_shape_chunk_first(s, c);
	mv->count = tn_shape_chunk_count(s, c);
	mv->chunk = c;
	mv->owner = item;
	mv->done = move_done;
	*chunk_state(r, index_of(item), c) = TN_CHUNK_MOVING;
	return mv;
}

/* From the leader's pages, which hold the chunk now. */
static void start_check(struct tn_read_item *item, uint32_t c, bool verify)
{
	struct tn_reading *r = item->r;
	struct tn_move *mv = get_move(item, c, TN_MOVES_CHECKS);

	mv->kind = TN_MOVE_CHECK;
	mv->verify = verify;
	mv->checks = r->checks + (size_t)index_of(item) * r->op.space->shape.layers + mv->first;
	mv->mem = span_of(item);
	if (item->memory != TN_SLOT_NONE && !r->prefetch)
		mv->to.flat = tn_read_memory(item, NULL);
	if (item->followers || mv->to.flat)
		mv->extra = copy_on;
	tn_mover_start(mv);
}

/* Goes on with a chunk that was read, as far as the header and the moves allow; false: it still waits. */
static bool go_on(struct tn_read_item *item, uint32_t c, bool verify)
{
	struct tn_cache *cache = item->r->op.cache;
	bool copies = item->followers || (item->memory != TN_SLOT_NONE && !item->r->prefetch);

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
static bool landed_go_on(struct tn_read_item *item)
{
	bool any = false;

	for (uint32_t c = 0; item->landed > 0 && c < item->r->op.space->shape.chunks; c++) {
		uint8_t *state = chunk_state(item->r, index_of(item), c), was = *state;

		if (was != TN_CHUNK_LANDED && was != TN_CHUNK_SOUND)
			continue;
		item->landed--;
		item->r->landed--;
		*state = TN_CHUNK_MOVING;
		if (go_on(item, c, was == TN_CHUNK_LANDED)) {
			any = true;
			continue;
		}
		*state = was;
		item->landed++;
		item->r->landed++;
		break;
	}
	return any;
}

void tn_load_read_ended(struct tn_read_item *item, uint32_t c, int status, bool verified)
{
	bool verify = item->r->op.cache->o.verify && !verified;

	if (status || item->error) {
		chunk_ends(item, c, status);
	} else if (!go_on(item, c, verify)) {
		*chunk_state(item->r, index_of(item), c) = verify ? TN_CHUNK_LANDED : TN_CHUNK_SOUND;
		item->landed++;
		item->r->landed++;
	}
}

static void whole_done(struct tn_tier_move *move, int status)
{
	struct tn_read_item *item = move->owner;
	uint32_t chunks = item->r->op.space->shape.chunks;

	tn_whole_put(item->r->op.cache, move);
	item->header = TN_HEADER_HAVE; /* the checksums came with the bytes */
	for (uint32_t c = 0; c < chunks; c++)
		tn_load_read_ended(item, c, status, false);
}

/* All chunks at once, with their checksums, by the tier itself; false: too many are under way. */
static bool start_whole(struct tn_read_item *item)
{
	struct tn_reading *r = item->r;
	struct tn_tier_base *t = r->op.cache->tier[item->tier];
	struct tn_tier_move *move = tn_whole_get(r->op.cache);
	uint32_t i = index_of(item), chunks = r->op.space->shape.chunks;

	if (!move)
		return false;
	*move = (struct tn_tier_move){
		.space = {r->op.space->id, r->op.space->epoch},
		.key = r->op.keys[i],
		.shape = &r->op.space->shape,
		.mem = span_of(item),
		.checks = r->checks + (size_t)i * r->op.space->shape.layers,
		.done = whole_done,
		.owner = item,
	};
	for (uint32_t c = 0; c < chunks; c++)
		*chunk_state(r, i, c) = TN_CHUNK_READING;
	item->inflight += (uint16_t)chunks;
	r->op.inflight += chunks;
	t->ops->move(t, move);
	return true;
}

/* From a tier's memory. */
static void start_copy(struct tn_read_item *item, uint32_t c)
{
	struct tn_reading *r = item->r;
	const struct tn_tier_base *t = r->op.cache->tier[item->tier];
	struct tn_move *mv = get_move(item, c, TN_MOVES_COPIES);

	mv->kind = TN_MOVE_COPY;
	mv->mem.flat = t->ops->address(t, item->place, &r->op.space->shape, NULL);
	mv->to = span_of(item);
	tn_mover_start(mv);
}

/* false: no IOCB is free, or what else it takes. */
static bool start_chunk(struct tn_read_item *item, uint32_t c)
{
	struct tn_reading *r = item->r;

	if (tn_read_reach(item) == TN_REACH_WHOLE)
		return start_whole(item);
	if (item->state == TN_READ_COPY) {
		start_copy(item, c);
	} else {
		if (!tn_reads_add(item, c))
			return false;
		*chunk_state(r, index_of(item), c) = TN_CHUNK_READING;
	}
	item->inflight++;
	r->op.inflight++;
	return true;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void header_ended(const struct tn_header_want *want, int status)
{
	struct tn_read_item *item = want->owner;

	item->r->op.inflight--;
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
		tn_read_pages_free(item);
}

/* ---- stepping ------------------------------------------------------------------------------------------- */

static bool more_to_issue(const struct tn_reading *r)
{
	return r->chunk < r->op.space->shape.chunks;
}

/* Its checksums are read from a device. */
static bool needs_header(const struct tn_read_item *item)
{
	return item->state == TN_READ_LEAD && tn_read_reach(item) == TN_REACH_DEVICE;
}

/* Whether something keeps a chunk of an item from going now. */
static bool must_wait(struct tn_read_item *item, uint32_t c)
{
	struct tn_reading *r = item->r;

	if (item->state == TN_READ_COPY)
		return !tn_mover_may(r->op.cache->mover, TN_MOVES_COPIES, 0);
	if (!needs_header(item))
		return false;
	if (r->chunk == 0) {
		if (r->hdr_i <= r->i)
			return true; /* no header buffer: next time */
		/* What is checked only later lies in its pages by then; of this block not all of it will. */
		if (item->partial && item->header == TN_HEADER_READING && !item->error)
			return true;
	}
	return !tn_reads_may_go(item, c);
}

/* Asks for the headers of the next blocks, or finds that they are known; the time it took, as work done once per load. */
static uint64_t look_ahead(struct tn_reading *r)
{
	uint64_t from_ns = tn_cpu_ns(), ns;

	tn_load_read_headers(r, r->i + HEADER_AHEAD, header_ended);
	ns = tn_cpu_ns() - from_ns;
	r->op.cache->c.resolve_ns += ns;
	return ns;
}

/* Whether all layers are wanted at once: what the caller waited for first says so, and until then what it did in its last load. */
static bool wants_whole(struct tn_reading *r)
{
	uint32_t wait;

	if (r->prefetch)
		return true;
	wait = __atomic_load_n(&tn_face_asked(&r->op.cache->region, r->op.index)->first_wait, __ATOMIC_RELAXED);
	return wait == TN_WAIT_NOT ? tn_load_of(&r->op)->whole : wait == TN_WAIT_WHOLE;
}

/*
 * How many chunks of a block are read together. An engine that computes layer by layer gets the next one first. Where the
 * caller wants all layers at once, larger requests are faster and cost less. The first chunk goes alone: its checksums come beside it.
 */
static uint32_t together(struct tn_reading *r)
{
	const struct tn_shape *s = &r->op.space->shape;
	uint32_t most = TN_IO_BYTES / (s->chunk_objects * s->padded_bytes), left = s->chunks - r->chunk;

	if (r->chunk == 0 || most < 2 || !wants_whole(r))
		return 1;
	return most < left ? most : left;
}

/* The first of the chunks read together that is not started yet; NO_CHUNK: all are. */
static uint32_t next_chunk(struct tn_reading *r)
{
	for (uint32_t c = r->chunk; c < r->chunk + r->together; c++)
		if (*chunk_state(r, r->i, c) == TN_CHUNK_IDLE)
			return c;
	return NO_CHUNK;
}

static void next_chunks(struct tn_reading *r)
{
	for (uint32_t c = 0; c < r->together; c++)
		r->op.cache->c.submit_layers += tn_shape_chunk_count(&r->op.space->shape, r->chunk + c);
	r->chunk += r->together;
	r->i = 0;
}

static uint32_t issue(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	uint64_t from_ns = 0;
	uint32_t started = 0;

	while (more_to_issue(r) && started < QUANTUM) {
		struct tn_read_item *item;
		uint32_t c;

		if (r->i >= r->op.n) {
			next_chunks(r);
			continue;
		}
		if (r->i == 0)
			r->together = together(r);
		item = &r->items[r->i];
		c = (item->state == TN_READ_LEAD || item->state == TN_READ_COPY) && due(item) ? next_chunk(r) : NO_CHUNK;
		if (c == NO_CHUNK) {
			r->i++;
			continue;
		}
		if (needs_header(item) && r->chunk == 0 && r->hdr_i <= r->i)
			from_ns += look_ahead(r);
		if (must_wait(item, c))
			break;
		if (started == 0)
			from_ns = tn_cpu_ns();
		if (!start_chunk(item, c))
			break;
		started += item->state == TN_READ_COPY ? COPY_QUANTUM : 1;
		r->i += c + 1 == r->chunk + r->together;
	}
	tn_reads_issue(cache);
	tn_schedule_load_issued(r, !more_to_issue(r));
	if (started)
		cache->c.submit_ns += tn_cpu_ns() - from_ns;
	return started;
}

static void give_up(struct tn_reading *r)
{
	uint32_t good = 0;

	tn_reads_look(r);
	r->op.cancelled = true;
	while (good < r->good && r->items[good].done_chunks == r->op.space->shape.chunks)
		good++;
	tn_read_shrink(r, good);
	for (uint32_t i = 0; i < r->op.n; i++)
		tn_read_pages_free(&r->items[i]);
	/* A follower whose leader has not verified anything yet may still leave. */
	for (uint32_t i = 0; i < r->op.n; i++) {
		struct tn_read_item *item = &r->items[i], *leader, **at;

		if (item->state != TN_READ_FOLLOW)
			continue;
		leader = tn_flights_get(r->op.cache->flights, item->block);
		for (at = leader && !leader->frozen ? &leader->followers : NULL; at && *at; at = &(*at)->next_follower) {
			if (*at != item)
				continue;
			*at = item->next_follower;
			r->op.inflight--;
			item_ends(item);
			break;
		}
	}
	tn_reads_cancel(r);
}

/* ns per MiB, an exponentially weighted mean over whole loads, by the lowest tier of the row that a load needed. */
static void update_estimate(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	uint64_t bytes = r->good * r->op.space->shape.slot_bytes, ns = tn_now_ns(&cache->clock) - r->begin_ns, old, new;
	uint32_t lowest = TN_TIER_NONE;

	if (r->op.cancelled || bytes < (1u << 20) || r->op.end_page - r->op.first_page < r->good)
		return;
	for (uint32_t i = 0; i < r->good; i++)
		lowest = r->items[i].tier > lowest ? r->items[i].tier : lowest;
	old = cache->ns_per_mib[lowest];
	new = ns / (bytes >> 20);
	__atomic_store_n(&cache->ns_per_mib[lowest], old ? (old * 7 + new) / 8 : new, __ATOMIC_RELAXED);
}

/* Chunks that were read when all moves were taken. */
static bool landed_step(struct tn_reading *r)
{
	bool any = false;

	for (uint32_t i = 0; i < r->op.n && r->landed > 0; i++) {
		struct tn_read_item *item = &r->items[i];

		if (item->landed == 0)
			continue;
		if (!tn_mover_may(r->op.cache->mover, TN_MOVES_CHECKS, 0))
			break;
		if (landed_go_on(item))
			any = true;
	}
	return any;
}

static bool finished(struct tn_reading *r)
{
	if (r->op.inflight)
		return false;
	if (more_to_issue(r))
		for (uint32_t i = 0; i < r->op.n; i++)
			if (r->items[i].state == TN_READ_LEAD || r->items[i].state == TN_READ_COPY)
				if (due(&r->items[i]) && r->items[i].done_chunks < r->op.space->shape.chunks)
					return false;
	return true;
}

static void finish(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;

	for (uint32_t i = 0; i < r->op.n; i++)
		item_ends(&r->items[i]);
	update_estimate(r);
	tn_schedule_load_over(r);
	cache->ended++;
	cache->c.load_failed_blocks += r->prefetch ? 0 : r->op.n - r->good;
	tn_list_del(&r->op.link);
	r->op.active = false;
	tn_op_drained(&r->op);
}

/* The most urgent load first, then the others in turn. */
static void raise_urgent(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp, *best = NULL;
	int32_t most = INT32_MIN;

	tn_list_for_each_safe(pos, tmp, &cache->loads) {
		struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

		if (r->op.priority > most) {
			most = r->op.priority;
			best = pos;
		}
	}
	if (best && best != cache->loads.next) {
		tn_list_del(best);
		tn_list_push_front(&cache->loads, best);
	}
}

/* The scheduler says who is next; what needs no device does not concern it. */
static bool issue_by_need(struct tn_cache *cache, uint64_t now_ns)
{
	struct tn_reading *r;
	bool busy = false;

	for (struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		r = tn_container_of(pos, struct tn_reading, op.link);
		tn_schedule_load_at(r);
		while (!r->from_device && issue(r) > 0)
			busy = true;
	}
	while ((r = tn_schedule_next(cache, now_ns))) {
		if (issue(r) == 0)
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
			struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

			if (!r->op.cancelled && (r->deadline_ns <= now_ns || tn_op_is_cancelled(&r->op))) {
				give_up(r);
				busy = true;
			}
			if (r->landed > 0 && landed_step(r))
				busy = true;
			if (!cache->schedule && issue(r) > 0)
				busy = again = true;
			if (finished(r)) {
				finish(r);
				busy = true;
			}
		}
		if (cache->schedule && issue_by_need(cache, now_ns))
			busy = again = true;
	}
	return busy;
}
