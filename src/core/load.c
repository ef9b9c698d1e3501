/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads and prefetches from their beginning (load_start.c) to their end, on the owner thread.
 *
 * A load goes through its blocks chunk by chunk: layer 0 of all blocks first, then the next layers. A block
 * on disk needs its header (checksums) beside the first chunk. What was read before the header is there is checked afterwards, the
 * rest by the executor that reads it. A chunk that others want, too - loads that joined, the memory tier - is copied to one after the
 * other, once it is checked.
 * A failure of block i shortens the good prefix to i, before any layer that lacks it is reported.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/core.h"
#include "core/near.h"
#include "core/load_chunk.h"
#include "core/load_late.h"
#include "core/transfers.h"

#define QUANTUM 512u     /* chunks a load may start before the next load's turn, */
#define COPY_QUANTUM 16u /* where one from host memory counts as so many */
#define NO_CHUNK UINT32_MAX
#define HEADER_AHEAD 64u /* headers read ahead of the data */

static uint32_t index_of(const struct tn_read_item *item)
{
	return (uint32_t)(item - item->r->items);
}

/* Read, and waiting to be checked or copied on, or to be read again. */
static bool is_landed(uint8_t state)
{
	return state == TN_CHUNK_LANDED || state == TN_CHUNK_DOUBTED || (state >= TN_CHUNK_SOUND && state < TN_CHUNK_COPYING);
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
	tn_face_tell_idle(tn_op_region(&item->r->op), item->r->op.number, index_of(item));
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
	tn_face_tell_ready(tn_op_region(&r->op), r->op.number, c, r->op.generation);
	return true;
}

/* Reports a prefix of `good` blocks: first the prefix, then the chunks that only waited for what was cut off. */
void tn_read_shrink(struct tn_reading *r, uint32_t good)
{
	uint32_t was = r->good;

	if (good >= was)
		return;
	r->good = good;
	tn_face_tell_good(tn_op_region(&r->op), r->op.number, good);
	for (uint32_t c = 0; c < r->op.shape->chunks; c++) {
		uint32_t missing = 0;

		for (uint32_t i = good; i < was; i++)
			missing += *tn_chunk_state(r, i, c) != TN_CHUNK_DONE;
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

	if (*tn_chunk_state(r, i, c) == TN_CHUNK_DONE)
		return;
	*tn_chunk_state(r, i, c) = TN_CHUNK_DONE;
	item->done_chunks++;
	r->arrivals++;
	if (i < r->good && arrived(r, c, 1))
		tn_op_notify(&r->op);
}

/* ---- the end of an item ----------------------------------------------------------------------------- */

static void item_ends(struct tn_read_item *item);

static void promoted(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	struct tn_tier_base *t = cache->row.memory;
	const struct tn_shape *s = item->r->op.shape;
	tn_block b = item->block;
	uint64_t *checks;

	if (item->memory == TN_SLOT_NONE || item->state != TN_READ_LEAD)
		return;
	if (item->done_chunks < s->chunks || item->unfit || tn_block_is_dropped(&cache->blocks, b) || tn_tier_residency(t, b) != TN_FILLING) {
		if (tn_tier_residency(t, b) == TN_FILLING)
			tn_block_set_residency(cache->registry, b, t->tier, TN_ABSENT);
		tn_tier_release(t, tn_block_space(cache->registry, b), b, item->memory, 0);
		return;
	}
	tn_read_memory(item, &checks);
	memcpy(checks, item->r->checks + (size_t)index_of(item) * s->layers, s->layers * sizeof(uint64_t));
	tn_block_arrives(&cache->blocks, t, b, item->memory, NULL);
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
		if (f->done_chunks < f->r->op.shape->chunks) {
			f->error = leader->error ? leader->error : -EIO;
			tn_read_shrink(f->r, index_of(f));
		}
		item_ends(f);
		f = next;
	}
}

/* Its bytes are counted at the tier that they came from. A prefetch brings nobody any. */
static void count_loaded(const struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;
	uint64_t bytes = (uint64_t)op->shape->layers * op->shape->object_bytes;

	TN_COUNT(op, load_blocks, 1);
	if (item->r->prefetch)
		return;
	TN_TRACE3(loaded, item->block, item->tier, bytes);
	op->session->loaded_bytes += bytes;
	TN_COUNT(op, loaded_bytes[item->tier], bytes);
}

static void item_ends(struct tn_read_item *item)
{
	struct tn_cache *cache = item->r->op.cache;
	bool loaded = item->done_chunks == item->r->op.shape->chunks;

	assert(item->inflight == 0 && item->landed == 0);
	if (item->state == TN_READ_IDLE)
		return;
	if (item->state == TN_READ_LEAD) {
		tn_flights_del(cache->flights, item->block, item);
		if (loaded && cache->row.tier[item->tier]->ops->traits.durable)
			tn_block_read_back(&cache->blocks, item->block);
		promoted(item);
		followers_end(item);
	}
	if (loaded)
		count_loaded(item);
	if (loaded && !item->r->prefetch && !tn_read_passes(item->r) && !item->partial && cache->row.memory && tn_tier_has(cache->row.memory, item->block))
		tn_offload_further(&cache->offloads, item->block, TN_OFFER_REUSED);
	tn_read_kept_near(item);
	item->r->from_near -= item->state == TN_READ_COPY && tn_read_is_near(item);
	item->state = TN_READ_IDLE;
	tell_idle(item);
	tn_block_release(&cache->blocks, item->block);
}

static bool item_is_over(const struct tn_read_item *item)
{
	if (item->state == TN_READ_IDLE || item->state == TN_READ_FOLLOW || item->inflight)
		return false; /* a follower is ended by its leader */
	return item->error || item->done_chunks == item->r->op.shape->chunks;
}

/* The bytes are not to be had from there again, unless the block failed another load before, and was saved anew since. */
static void place_failed(struct tn_read_item *item, int status)
{
	struct tn_tier_base *t = item->r->op.cache->row.tier[item->tier];
	enum tn_residency r = tn_tier_residency(t, item->block);
	enum tn_leave how = status == -EBADMSG ? TN_LEAVE_BAD : status == -EIO ? TN_LEAVE_EIO : TN_LEAVE_GONE;

	if (tn_read_is_near(item) && status < TN_RING_NOT_COPIED) /* -EFAULT: the pages are gone */
		tn_near_failed(&item->r->op, item->block);

	/* A mismatch says nothing of the device where another process could change the bytes, before they were written or since they were read. */
	if (how == TN_LEAVE_BAD && tn_op_is_foreign(&item->r->op) && tn_read_reach(item) == TN_REACH_WHOLE)
		return;
	if (how == TN_LEAVE_BAD && t->ops->traits.durable && tn_block_is_unsure(&item->r->op.cache->blocks, item->block))
		how = TN_LEAVE_DROPPED;
	if ((how == TN_LEAVE_GONE && status != -ENOENT) || tn_tier_place_of(t, item->block) != item->place)
		return;
	if (how == TN_LEAVE_EIO && t->ops->away && t->ops->away(t, item->place))
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
		else if (status != -ECANCELED && status != -ENOENT && status != -EFAULT && status > TN_RING_NOT_COPIED)
			cache->c.io_errors++;
		place_failed(item, status);
	}
	tn_read_shrink(item->r, index_of(item));
	for (uint32_t c = 0; item->landed > 0; c++) {
		uint8_t *state = tn_chunk_state(item->r, index_of(item), c);

		if (!is_landed(*state))
			continue;
		*state = TN_CHUNK_FAILED;
		item->landed--;
		item->r->landed--;
		item->inflight--;
		item->r->op.inflight--;
	}
}

/* Something that was under way of it is over. */
static void step_over(struct tn_read_item *item)
{
	if (item_is_over(item))
		item_ends(item);
	else
		tn_read_pages_free(item);
}

/* ---- chunks ------------------------------------------------------------------------------------------ */

/* A chunk's read, check and copies are over. */
static void chunk_ends(struct tn_read_item *item, uint32_t c, int status)
{
	item->r->op.inflight--;
	item->inflight--;
	if (status || item->error) {
		*tn_chunk_state(item->r, index_of(item), c) = TN_CHUNK_FAILED;
		if (status)
			item_fails(item, status);
	} else {
		tn_read_chunk_good(item, c);
		for (struct tn_read_item *f = item->followers; f; f = f->next_follower)
			if (!f->error)
				tn_read_chunk_good(f, c);
	}
	step_over(item);
}

/*
 * Goes on with a chunk that was read: checks it, unless it is, copies it to the next who wants it, or is done with it. The first copy
 * checks what it copies. false: there is no header yet, or no IOCB.
 */
static bool go_on(struct tn_read_item *item, uint32_t c, bool checked, uint32_t copied)
{
	uint8_t *state = tn_chunk_state(item->r, index_of(item), c);
	bool copy;

	copied = tn_chunk_next_copy(item, copied);
	copy = copied < tn_chunk_copies(item);
	if (!checked && item->header != TN_HEADER_HAVE)
		return false;
	if (copy ? !tn_chunk_copy(item, c, copied, !checked) : !checked && !tn_chunk_check(item, c))
		return false;
	item->frozen = true;
	if (copy) {
		*state = (uint8_t)(TN_CHUNK_COPYING + copied);
	} else if (!checked) {
		*state = TN_CHUNK_CHECKING;
	} else {
		tn_read_copy_near(item, c);
		chunk_ends(item, c, 0);
	}
	return true;
}

/* Chunks that waited for the header, or for an IOCB. */
static bool landed_go_on(struct tn_read_item *item)
{
	bool any = false;

	for (uint32_t c = 0; item->landed > 0 && c < item->r->op.shape->chunks; c++) {
		uint8_t *state = tn_chunk_state(item->r, index_of(item), c), was = *state;

		if (!is_landed(was))
			continue;
		item->landed--;
		item->r->landed--;
		*state = TN_CHUNK_READING;
		if (was == TN_CHUNK_DOUBTED ? tn_chunk_read_again(item, c)
					    : go_on(item, c, was != TN_CHUNK_LANDED, was == TN_CHUNK_LANDED ? 0 : was - TN_CHUNK_SOUND)) {
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

static void wait_in(struct tn_read_item *item, uint32_t c, uint32_t state)
{
	*tn_chunk_state(item->r, index_of(item), c) = (uint8_t)state;
	item->landed++;
	item->r->landed++;
}

/* One step of a chunk is over. */
static void step_ends(struct tn_read_item *item, uint32_t c, int status, bool checked, uint32_t copied)
{
	if (status || item->error)
		chunk_ends(item, c, status);
	else if (!go_on(item, c, checked, copied))
		wait_in(item, c, checked ? TN_CHUNK_SOUND + copied : TN_CHUNK_LANDED);
}

/* A check is over. Who could have changed the bytes does not make their block a bad one: they are read again. */
static void check_ends(struct tn_read_item *item, uint32_t c, const struct tn_part *p, bool checked, uint32_t copied)
{
	bool doubted = p->status == -EBADMSG && !p->again && tn_op_is_foreign(&item->r->op) && item->state == TN_READ_LEAD;

	if (doubted && !item->error && tn_read_reach(item) == TN_REACH_DEVICE) {
		item->frozen = true;
		wait_in(item, c, TN_CHUNK_DOUBTED);
	} else {
		step_ends(item, c, p->status, checked, copied);
	}
}

/* A copy to the memory tier, or to somebody who joined, is over. */
static void copy_ends(struct tn_read_item *item, uint32_t c, const struct tn_part *p, uint32_t copy)
{
	struct tn_read_item *f = tn_chunk_copies_to(item, copy);

	/* Who joined has no pages any more, or his driver does not copy: no business of the others. */
	if (f && (p->status == -EFAULT || p->status < TN_RING_NOT_COPIED)) {
		f->error = p->status;
		tn_read_shrink(f->r, index_of(f));
		step_ends(item, c, 0, !p->verified, copy + 1);
		return;
	}
	item->unfit |= !f && p->status == -EBADMSG;
	check_ends(item, c, p, true, copy + 1);
}

static void header_ended(struct tn_read_item *item, const struct tn_part *p);

void tn_load_ended(const struct tn_part *p)
{
	struct tn_op *op = p->op;
	struct tn_read_item *item = &tn_reading_of(op)->items[p->block];
	uint32_t c = tn_shape_chunk_of(op->shape, p->first);
	uint8_t state = *tn_chunk_state(item->r, p->block, c);

	switch (p->kind) {
	case TN_TRANSFER_READ_HEADER:
		header_ended(item, p);
		break;
	case TN_TRANSFER_READ:
	case TN_TRANSFER_IN:
	case TN_TRANSFER_IN_NEAR:
		if (state != (p->again ? TN_CHUNK_READING_AGAIN : TN_CHUNK_READING))
			break; /* it was told before */
		if (p->kind == TN_TRANSFER_READ && !p->status)
			op->cache->c.bytes_read += (uint64_t)p->count * op->shape->padded_bytes;
		check_ends(item, c, p, p->kind != TN_TRANSFER_READ || p->verified || !op->cache->o.verify, 0);
		break;
	case TN_TRANSFER_OUT_NEAR:
		item->near_unfit |= p->status != 0;
		op->inflight--;
		item->inflight--;
		step_over(item);
		break;
	case TN_TRANSFER_CHECK:
		check_ends(item, c, p, true, 0);
		break;
	default:
		copy_ends(item, c, p, state - TN_CHUNK_COPYING);
	}
}

static void whole_done(struct tn_tier_move *move, int status)
{
	struct tn_read_item *item = move->owner;
	uint32_t chunks = item->r->op.shape->chunks;

	item->move = NULL;
	tn_whole_put(item->r->op.cache->whole, move);
	item->header = TN_HEADER_HAVE; /* the checksums came with the bytes */
	for (uint32_t c = 0; c < chunks; c++)
		step_ends(item, c, status, !item->r->op.cache->o.verify, 0);
}

/* All chunks at once, with their checksums, by the tier itself; false: too many are under way. */
static bool start_whole(struct tn_read_item *item)
{
	struct tn_reading *r = item->r;
	struct tn_tier_base *t = r->op.cache->row.tier[item->tier];
	struct tn_tier_move *move = tn_whole_get(r->op.cache->whole, false);
	uint32_t i = index_of(item), chunks = r->op.shape->chunks;

	if (!move)
		return false;
	*move = (struct tn_tier_move){
		.space = r->op.tier_space,
		.key = r->op.keys[i],
		.shape = r->op.shape,
		.checks = r->checks + (size_t)i * r->op.shape->layers,
		.done = whole_done,
		.owner = item,
	};
	if (r->prefetch)
		move->mem = (struct tn_span){.memory = r->op.cache->row.memory->memory, .flat = r->op.offset[i]};
	else
		tn_op_span(&r->op, i, &move->mem);
	for (uint32_t c = 0; c < chunks; c++)
		*tn_chunk_state(r, i, c) = TN_CHUNK_READING;
	item->inflight += (uint16_t)chunks;
	r->op.inflight += chunks;
	item->move = move;
	t->ops->move(t, move);
	return true;
}

/* false: no IOCB is free, or what else it takes. */
static bool start_chunk(struct tn_read_item *item, uint32_t c)
{
	struct tn_reading *r = item->r;

	if (tn_read_reach(item) == TN_REACH_WHOLE)
		return start_whole(item);
	if (!tn_chunk_read(item, c))
		return false;
	*tn_chunk_state(r, index_of(item), c) = TN_CHUNK_READING;
	item->inflight++;
	r->op.inflight++;
	return true;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void header_ended(struct tn_read_item *item, const struct tn_part *p)
{
	int status = tn_load_header_ended(item, p, item->r->op.cache->row.drives);

	item->r->op.inflight--;
	item->inflight--;
	if (status) {
		item_fails(item, status);
	} else {
		item->header = TN_HEADER_HAVE;
		landed_go_on(item);
	}
	step_over(item);
}

/* ---- stepping ------------------------------------------------------------------------------------------- */

static bool more_to_issue(const struct tn_reading *r)
{
	return r->chunk < r->op.shape->chunks;
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

	if (!needs_header(item))
		return false;
	if (r->chunk == 0) {
		if (r->hdr_i <= r->i)
			return true; /* no header buffer: next time */
		/* What is checked only later lies in its pages by then; of this block not all of it will. */
		if (item->partial && item->header == TN_HEADER_READING && !item->error)
			return true;
	}
	return !tn_transfers_may_read(item, c);
}

/* Asks for the headers of the next blocks, or finds that they are known; the time it took, as work done once per load. */
static uint64_t look_ahead(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	uint64_t from_ns = tn_now_ns(&cache->clock), ns;

	tn_load_read_headers(r, r->i + HEADER_AHEAD, cache->row.drives, cache->o.verify);
	ns = tn_now_ns(&cache->clock) - from_ns;
	cache->c.resolve_ns += ns;
	return ns;
}

/* How the caller of a load waits: what it waited for first says so, and until then what it did in its last load; TN_WAIT_NOT: nothing is known. */
static uint32_t wait_of(struct tn_reading *r)
{
	uint32_t wait = __atomic_load_n(&tn_face_asked(tn_op_region(&r->op), r->op.number)->first_wait, __ATOMIC_RELAXED);

	return wait == TN_WAIT_NOT ? tn_load_of(&r->op)->last_wait : wait;
}

/* Whether all layers are wanted at once. */
static bool wants_whole(struct tn_reading *r)
{
	return r->prefetch || wait_of(r) == TN_WAIT_WHOLE;
}

/*
 * How many chunks of a block are read together. An engine that computes layer by layer gets the next one first. Where the
 * caller wants all layers at once, larger requests are faster and cost less.
 */
static uint32_t together(struct tn_reading *r)
{
	const struct tn_shape *s = r->op.shape;
	uint32_t most = TN_IO_BYTES / (s->chunk_objects * s->padded_bytes), left = s->chunks - r->chunk;

	if (most < 2 || !wants_whole(r))
		return 1;
	return most < left ? most : left;
}

/* The first of the chunks read together that is not started yet; NO_CHUNK: all are. */
static uint32_t next_chunk(struct tn_reading *r)
{
	for (uint32_t c = r->chunk; c < r->chunk + r->together; c++)
		if (*tn_chunk_state(r, r->i, c) == TN_CHUNK_IDLE)
			return c;
	return NO_CHUNK;
}

static void next_chunks(struct tn_reading *r)
{
	for (uint32_t c = 0; c < r->together; c++)
		r->op.cache->c.submit_layers += tn_shape_chunk_count(r->op.shape, r->chunk + c);
	r->chunk += r->together;
	r->i = 0;
}

static uint32_t issue(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	uint64_t from_ns = 0;
	uint32_t started = 0;

	r->whole = !r->prefetch && wait_of(r) != TN_WAIT_LAYERS;
	while (more_to_issue(r) && started < QUANTUM) {
		struct tn_read_item *item;
		uint32_t c;

		if (r->i >= r->op.n) {
			next_chunks(r);
			continue;
		}
		if (r->i == 0)
			r->together = together(r);
		else if (r->together > 1 && !wants_whole(r))
			r->together = 1; /* the caller has begun to wait for a layer: the other blocks' first */
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
			from_ns = tn_now_ns(&cache->clock);
		if (!start_chunk(item, c))
			break;
		started += item->state == TN_READ_COPY ? COPY_QUANTUM : 1;
		r->i += c + 1 == r->chunk + r->together;
	}
	tn_transfers_issue(cache);
	tn_schedule_load_issued(r, !more_to_issue(r));
	if (started)
		cache->c.submit_ns += tn_now_ns(&cache->clock) - from_ns;
	return started;
}

static void give_up(struct tn_reading *r)
{
	struct tn_transfer_walk walk = tn_transfers_walk(r->op.cache, &r->op);
	struct tn_part part;
	uint32_t good = 0;

	while (tn_transfers_ended(&walk, &part)) /* what ended counts */
		tn_load_ended(&part);
	r->op.cancelled = true;
	while (good < r->good && r->items[good].done_chunks == r->op.shape->chunks)
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
			leader->nfollowers--;
			r->op.inflight--;
			item_ends(item);
			break;
		}
	}
	for (uint32_t i = 0; i < r->op.n; i++)
		if (r->items[i].followers) /* others wait for some of them */
			return;
	tn_transfers_cancel(&r->op);
	tn_load_withdraw(r);
}

/* ns per MiB, an exponentially weighted mean over whole loads, by the lowest tier of the row that a load needed. */
static void update_estimate(struct tn_reading *r)
{
	struct tn_cache *cache = r->op.cache;
	uint64_t bytes = r->good * r->op.shape->slot_bytes, ns = tn_now_ns(&cache->clock) - r->begin_ns, old, new;
	uint32_t lowest = TN_TIER_NONE;

	if (r->op.cancelled || bytes < (1u << 20) || r->op.end_page - r->op.first_page < r->good)
		return;
	for (uint32_t i = 0; i < r->good; i++)
		lowest = r->items[i].tier > lowest ? r->items[i].tier : lowest;
	old = cache->ns_per_mib[lowest];
	new = ns / (bytes >> 20);
	__atomic_store_n(&cache->ns_per_mib[lowest], old ? (old * 7 + new) / 8 : new, __ATOMIC_RELAXED);
}

/* Chunks that were read when no IOCB was free. */
static bool landed_step(struct tn_reading *r)
{
	bool any = false;

	for (uint32_t i = 0; i < r->op.n && r->landed > 0; i++) {
		struct tn_read_item *item = &r->items[i];

		if (item->landed > 0 && landed_go_on(item))
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
				if (due(&r->items[i]) && r->items[i].done_chunks < r->op.shape->chunks)
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
	cache->places.ended++;
	TN_COUNT(&r->op, load_failed_blocks, r->prefetch ? 0 : r->op.n - r->good);
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
		while (!r->devices && issue(r) > 0)
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

			if (!r->op.cancelled && (tn_load_is_late(r, now_ns) || tn_op_is_cancelled(&r->op))) {
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
