/* SPDX-License-Identifier: Apache-2.0 */
/* Staging (stage.h): the operations, and the thread that carries them out. */
#include "front/stage.h"

#include <errno.h>
#include <string.h>
#include <tenuto/session.h>
#include <unistd.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "front/batched.h"
#include "front/stage_copy.h"
#include "region/call.h"
#include "region/event.h"

#define EVENT_POLL_NS 50000u /* how often a save looks whether a device has written an event's word; as the owner does */
#define COPY_BYTES (8u << 20) /* of a save at once */

struct tn_stage {
	struct tn_cache *cache;
	struct tn_region region; /* of this process: the callers' side of staged operations */
	pthread_t thread;
	uint32_t stopping, asleep; /* shared */
	uint64_t active[TN_REGION_OPS_MAX / 64]; /* shared: operations that have begun; cleared by the thread */
	struct tn_batched batched; /* saves */
	/* The thread's: */
	struct tn_doorbell_taker kicks, completions;
	uint32_t *numbers; /* while they are looked at */
	bool told;	   /* there are completions that a reader of the eventfd does not know */
};

/* ---- batches ------------------------------------------------------------------------------------------------- */

struct blocks {
	uint32_t first, end;
};

/* Those of which some page is claimed: one at least. */
static struct blocks blocks_of(const struct tn_front_op *op)
{
	uint32_t each = op->space->geometry.pages_per_block;

	return (struct blocks){(uint32_t)(op->first_page / each), (uint32_t)((op->end_page + each - 1) / each)};
}

static struct blocks batch_of(const struct tn_front_op *op)
{
	struct blocks all = blocks_of(op);
	uint32_t first = all.first + op->batches.index * op->batches.blocks, left = all.end - first;

	return (struct blocks){first, first + (left < op->batches.blocks ? left : op->batches.blocks)};
}

static bool is_last(const struct tn_front_op *op)
{
	return op->batches.index + 1 == op->batches.count;
}

/* The generation that the owner knows the batch by: the last one's is the operation's. */
static uint64_t life_of(const struct tn_front_op *op)
{
	return op->generation - 2ull * (op->batches.count - 1 - op->batches.index);
}

/* Writes down what the owner is asked of the batch: the command, its keys; its pages are the slots. */
static void ask(const struct tn_front_op *op)
{
	const struct tn_region *owner = &op->cache->region;
	const struct tn_key *keys = tn_face_keys(op->region, op->number);
	struct tn_command c = tn_face_asked(op->region, op->number)->command;
	struct blocks b = batch_of(op);
	uint64_t each = op->space->geometry.pages_per_block, first = b.first * each, end = b.end * each;
	bool in_whole = !tn_front_is_save(op) && op->batches.count > 1; /* no layer of it is told before most of the others are there */

	c.generation = life_of(op);
	c.blocks = b.end - b.first;
	c.first_page = op->first_page > first ? op->first_page - first : 0;
	c.end_page = (op->end_page < end ? op->end_page : end) - first;
	if (op->batches.index > 0) {
		c.parent = keys[b.first - 1];
		c.flags |= TN_COMMAND_GOES_ON;
	}
	if (!is_last(op))
		c.flags = (c.flags | TN_COMMAND_MORE) & ~TN_COMMAND_PARTIAL_LAST;
	if (in_whole) {
		c.flags |= TN_COMMAND_WHOLE;
		c.input_tokens = 0;
	}
	memcpy(tn_face_keys(owner, op->number), keys + b.first, c.blocks * sizeof(*keys));
	tn_face_ask(owner, op->number, &c, tn_front_is_save(op) ? op->space->shape.layers : 0);
	if (in_whole)
		__atomic_store_n(&tn_face_asked(owner, op->number)->first_wait, TN_WAIT_WHOLE, __ATOMIC_RELAXED);
	tn_face_pass_streams(op->region, owner, op->number);
}

/* ---- an operation -------------------------------------------------------------------------------------------- */

static void kick_owner(const struct tn_front_op *op)
{
	const struct tn_region *owner = &op->cache->region;
	struct tn_doorbell kicks = tn_region_kicks(owner);

	if (tn_doorbell_ring(&kicks, op->number))
		tn_front_wake(op->cache);
}

/* The owner will not look at the batch, nor at the session memory, again. */
static bool owner_is_through(const struct tn_front_op *op)
{
	const struct tn_region *owner = &op->cache->region;
	struct tn_doorbell kicks = tn_region_kicks(owner);

	return tn_face_is_drained(owner, op->number, life_of(op)) && !tn_doorbell_pending(&kicks, op->number);
}

/* What the owner tells is of this batch. */
static bool owner_began(const struct tn_front_op *op)
{
	return __atomic_load_n(&tn_face_told(&op->cache->region, op->number)->begun, __ATOMIC_ACQUIRE) == life_of(op);
}

/* What was counted of the batches so far, the one under way included. */
static void count(const struct tn_front_op *op, uint32_t *blocks)
{
	const struct tn_face_told *told = tn_face_told(&op->cache->region, op->number);

	for (uint32_t i = 0; i < TN_FACE_KINDS; i++)
		blocks[i] = op->batches.counted[i] + __atomic_load_n(&told->blocks[i], __ATOMIC_RELAXED);
}

static void next_batch(struct tn_front_op *op)
{
	struct tn_stage *s = op->cache->stage;

	pthread_mutex_lock(&s->batched.lock);
	op->batches.index++;
	op->batches.asked = batch_of(op).end;
	ask(op);
	kick_owner(op);
	pthread_mutex_unlock(&s->batched.lock);
}

bool tn_stage_is_to_come(const struct tn_space *space, const struct tn_key *key)
{
	struct tn_stage *s = __atomic_load_n(&space->cache->stage, __ATOMIC_ACQUIRE);

	return s && tn_batched_bring(&s->batched, space, key);
}

/* The caller may begin the operation's next life before this returns. */
static void end_operation(struct tn_stage *s, struct tn_front_op *op, int status)
{
	uint32_t number = op->number;
	uint64_t generation = op->generation;

	tn_stage_give(op);
	if (tn_front_is_save(op) && op->batches.count > 1)
		tn_batched_remove(&s->batched, number);
	__atomic_fetch_and(&s->active[number / 64], ~(1ull << number % 64), __ATOMIC_RELEASE);
	tn_face_tell_status(&s->region, number, status);
	s->told |= tn_face_drains(&s->region, number, generation);
}

static bool is_cancelled(const struct tn_front_op *op)
{
	return tn_face_is_set(&tn_face_asked(op->region, op->number)->cancel);
}

/* True: the owner is told now. */
static bool cancel(const struct tn_front_op *op)
{
	uint32_t *to = &tn_face_asked(&op->cache->region, op->number)->cancel;

	if (tn_face_is_set(to))
		return false;
	tn_face_set(to);
	return true;
}

/* Cancel and abort. True: it is passed on now. */
static bool pass_cancel(const struct tn_front_op *op)
{
	return is_cancelled(op) && cancel(op);
}

/* The owner is done with a batch, and no other follows. True: it is told now that it has had all, and will answer the ring. */
static bool end_early(const struct tn_front_op *op)
{
	if (is_last(op) || !cancel(op))
		return false;
	kick_owner(op);
	return true;
}

/* The good prefix is no longer than this. Pages of the blocks after it are idle once no copy to them is under way. */
static void tell_good(struct tn_front_op *op, uint32_t good)
{
	uint32_t old = tn_face_good(op->region, op->number), copied_to = tn_stage_copy_end(op);

	if (good < old)
		tn_face_tell_good(op->region, op->number, good);
	else
		good = old;
	for (; op->idle_block > good && op->idle_block > copied_to; op->idle_block--)
		tn_face_tell_idle(op->region, op->number, op->idle_block - 1);
}

/* The good prefix, as far as the owner has told: all blocks, or those before the first that the batch lost. */
static uint32_t good_of(const struct tn_front_op *op)
{
	uint32_t good = tn_face_good(&op->cache->region, op->number);
	struct blocks b = batch_of(op);

	if (op->batches.uncopied)
		return b.first;
	return good < b.end - b.first ? b.first + good : op->n;
}

/* A chunk of the batch that the owner has told and whose copy has not begun; chunks: there is none. */
static uint32_t next_chunk(const struct tn_front_op *op)
{
	const struct tn_shape *shape = &op->space->shape;
	uint64_t life = life_of(op);
	uint32_t c = 0;

	while (c < shape->chunks && (tn_face_is_ready(op->region, op->number, c, life) || !tn_face_is_ready(&op->cache->region, op->number, c, life) ||
				     tn_stage_copy_has(op, tn_shape_chunk_first(shape, c))))
		c++;
	return c;
}

static void begin_chunk(struct tn_front_op *op, uint32_t chunk)
{
	uint32_t first = tn_shape_chunk_first(&op->space->shape, chunk), good = good_of(op);
	struct blocks b = batch_of(op);

	tn_stage_copy_begin(op, first, first + tn_shape_chunk_count(&op->space->shape, chunk), b.first, good < b.end ? good : b.end);
}

/* The words of a chunk rise with each batch; only the last one's is what callers wait for. False: no copy is over. */
static bool end_chunk(struct tn_stage *s, struct tn_front_op *op, bool owner_over)
{
	uint32_t tiers[TN_FACE_KINDS];
	struct tn_stage_copy copy;

	if (!tn_stage_copy_take(op, &copy))
		return false;
	if (copy.error && !op->batches.uncopied) {
		op->batches.uncopied = copy.error;
		if (!owner_over && cancel(op)) /* what else is read of it is for nobody */
			kick_owner(op);
	}
	if (op->batches.told_all) { /* the words have the value that was waited for, and never fall */
		tell_good(op, good_of(op));
		return true;
	}
	if (is_last(op)) {
		count(op, tiers);
		tn_face_tell_tiers(op->region, op->number, tiers);
		tell_good(op, good_of(op));
	}
	tn_face_tell_ready(op->region, op->number, tn_shape_chunk_of(&op->space->shape, copy.first_layer), life_of(op));
	if (is_last(op))
		s->told |= tn_face_notify(op->region, op->number);
	return true;
}

/* Nothing of it comes any more: who waits for a layer goes on with the good prefix. */
static void tell_all_layers(struct tn_stage *s, struct tn_front_op *op, uint32_t good)
{
	uint32_t tiers[TN_FACE_KINDS];

	if (op->batches.told_all) {
		tell_good(op, good);
		return;
	}
	op->batches.told_all = true;
	count(op, tiers);
	tn_face_tell_tiers(op->region, op->number, tiers);
	tell_good(op, good);
	for (uint32_t c = 0; c < op->space->shape.chunks; c++)
		if (!tn_face_is_ready(op->region, op->number, c, op->generation))
			tn_face_tell_ready(op->region, op->number, c, op->generation);
	s->told |= tn_face_notify(op->region, op->number);
}

static void finish_load(struct tn_stage *s, struct tn_front_op *op, uint32_t good)
{
	tell_all_layers(s, op, good);
	if (op->batches.uncopied || !owner_began(op)) /* a driver's error shortens the prefix, and is no status: -EFAULT would mean lost memory */
		end_operation(s, op, 0);
	else
		end_operation(s, op, tn_face_told(&op->cache->region, op->number)->status);
}

static void batch_loaded(struct tn_stage *s, struct tn_front_op *op)
{
	struct blocks b = batch_of(op);

	if (is_last(op) || good_of(op) < op->n || is_cancelled(op)) {
		if (!end_early(op))
			finish_load(s, op, is_last(op) || good_of(op) < b.end ? good_of(op) : b.end);
		return;
	}
	for (uint32_t i = b.first; i < b.end; i++)
		tn_face_tell_idle(op->region, op->number, i);
	count(op, op->batches.counted);
	next_batch(op);
}

/* When to look again whether a driver's copies are over. */
static void poll_copies(const struct tn_front_op *op, uint64_t *due_ns)
{
	if (op->copies.n > 0)
		*due_ns = tn_now_ns(&op->cache->clock) + EVENT_POLL_NS;
}

/* The load is waited for no more, although its owner has brought it, or may yet. */
static bool is_given_up(const struct tn_front_op *op)
{
	uint64_t now = tn_now_ns(&op->cache->clock), idle = __atomic_load_n(&op->cache->save_idle_ns, __ATOMIC_RELAXED);

	return is_cancelled(op) || now >= tn_face_asked(op->region, op->number)->command.deadline_ns ||
	       now >= tn_face_streams_due(op->region, op->number, op->heard_ns, idle);
}

/* A device's copies are not waited for: whoever waits for a layer goes on now. Pages that copies are under way to stay busy until these are over. */
static void leave_copies(struct tn_stage *s, struct tn_front_op *op, bool owner_over)
{
	if (!op->batches.uncopied)
		op->batches.uncopied = is_cancelled(op) ? -ECANCELED : -ETIME;
	if (!owner_over && cancel(op))
		kick_owner(op);
	tell_all_layers(s, op, good_of(op));
}

/* True: something has happened. *waits: for copies of the operation, or for those of others that are before it on its stream. */
static bool step_copies(struct tn_stage *s, struct tn_front_op *op, bool over, bool gone, bool *waits)
{
	uint32_t chunks = op->space->shape.chunks, chunk = gone || op->batches.told_all ? chunks : next_chunk(op);
	bool begins = chunk < chunks && tn_stage_copy_may_begin(op), busy;

	if (begins)
		begin_chunk(op, chunk);
	busy = end_chunk(s, op, over || gone) || begins;
	if (busy)
		op->heard_ns = tn_now_ns(&op->cache->clock);
	*waits = op->copies.n > 0 || (chunk < chunks && !begins);
	if (!*waits || op->batches.told_all)
		return busy;
	if (gone)
		tell_all_layers(s, op, 0);
	else if (is_given_up(op))
		leave_copies(s, op, over);
	return busy || op->batches.told_all;
}

/* The owner has told all of a batch that is cut short: none follows, and nobody waits until its reads, which may hang, are over. */
static bool ends_with_batch(const struct tn_front_op *op)
{
	if (is_last(op) || op->batches.told_all || !owner_began(op) || good_of(op) == op->n)
		return false;
	for (uint32_t c = 0; c < op->space->shape.chunks; c++)
		if (!tn_face_is_ready(op->region, op->number, c, life_of(op)))
			return false;
	return true;
}

static bool step_load(struct tn_stage *s, struct tn_front_op *op, uint64_t *due_ns)
{
	bool over = owner_is_through(op), gone = tn_region_is_gone(&op->cache->region), busy, waits;

	if (!over && !gone && pass_cancel(op)) /* a ring after the owner's end would reach the operation's next life */
		kick_owner(op);
	busy = step_copies(s, op, over, gone, &waits);
	poll_copies(op, due_ns);
	if (busy || waits)
		return busy;
	if (gone) {
		finish_load(s, op, 0);
		return true;
	}
	if (ends_with_batch(op)) {
		tell_all_layers(s, op, good_of(op));
		return true;
	}
	if (owner_began(op)) /* pages that nothing is copied to any more are the caller's, also while the owner waits for a disk */
		tell_good(op, good_of(op));
	if (over)
		batch_loaded(s, op);
	return over;
}

/* Whether the bytes of a layer that was given are final; if only a device knows, *due_ns is when to look again. */
static bool is_final(const struct tn_front_op *op, const struct tn_face_given *given, uint64_t *due_ns)
{
	uint32_t event = __atomic_load_n(&given->event, __ATOMIC_RELAXED);
	const struct tn_event_word *word;

	if (event == TN_EVENT_NONE)
		return true;
	word = tn_event_word(&op->cache->region, event);
	if (tn_event_word_reached(word, __atomic_load_n(&given->value, __ATOMIC_RELAXED)))
		return true;
	if (__atomic_load_n(&word->device, __ATOMIC_RELAXED))
		*due_ns = tn_now_ns(&op->cache->clock) + EVENT_POLL_NS;
	return false;
}

/* Whether the copy of a layer can begin. Later batches begin when all layers are final: their events may be gone. */
static bool is_to_copy(const struct tn_front_op *op, uint32_t layer, uint64_t *due_ns)
{
	const struct tn_face_given *from = tn_face_given(op->region, op->number), *to = tn_face_given(&op->cache->region, op->number);

	return !tn_face_is_set(&to[layer].given) && tn_face_is_set(&from[layer].given) && !tn_stage_copy_has(op, layer) &&
	       (op->batches.index > 0 || is_final(op, &from[layer], due_ns));
}

/* Begins to copy layers whose bytes are final. Several small layers go together, so that the owner can write them with one request. */
static bool begin_layers(struct tn_front_op *op, uint64_t *due_ns)
{
	struct blocks b = batch_of(op);
	uint64_t each = tn_stage_layer_bytes(&op->pool->layout.geometry) * (b.end - b.first), bytes = each;
	uint32_t layers = op->space->shape.layers, first = 0, end;

	if (!tn_stage_copy_may_begin(op))
		return false;
	while (first < layers && !is_to_copy(op, first, due_ns))
		first++;
	if (first == layers)
		return false;
	for (end = first + 1; end < layers && (bytes += each) <= COPY_BYTES && is_to_copy(op, end, due_ns); end++)
		continue;
	tn_stage_copy_begin(op, first, end, b.first, b.end);
	return true;
}

/* Gives layers that were copied to the owner, or tells it to give the save up. False: no copy is over. */
static bool end_layers(struct tn_front_op *op)
{
	struct tn_face_given *to = tn_face_given(&op->cache->region, op->number);
	struct tn_stage_copy copy;

	if (!tn_stage_copy_take(op, &copy))
		return false;
	if (copy.error) {
		op->batches.uncopied = op->batches.uncopied ? op->batches.uncopied : copy.error;
		cancel(op);
		return true;
	}
	for (uint32_t l = copy.first_layer; l < copy.end_layer; l++) {
		__atomic_store_n(&to[l].event, TN_EVENT_NONE, __ATOMIC_RELAXED);
		tn_face_set(&to[l].given);
	}
	return true;
}

/* Once the owner has all layers. */
static bool pass_commit(const struct tn_front_op *op)
{
	const struct tn_face_given *to = tn_face_given(&op->cache->region, op->number);
	uint32_t *commit = &tn_face_asked(&op->cache->region, op->number)->commit;

	if (tn_face_is_set(commit) || !tn_face_is_set(&tn_face_asked(op->region, op->number)->commit))
		return false;
	for (uint32_t l = 0; l < op->space->shape.layers; l++)
		if (!tn_face_is_set(&to[l].given))
			return false;
	tn_face_set(commit);
	return true;
}

/* What becomes of the blocks from `first` on, which the owner never had. */
static void leave_rest(struct tn_front_op *op, uint32_t first, enum tn_saved saved)
{
	memset(tn_face_saved(op->region, op->number) + first, saved, op->n - first);
	op->batches.counted[saved] += op->n - first;
	op->batches.left = op->n - first;
}

/* The results of a batch that the owner took. */
static void take_results(struct tn_front_op *op)
{
	const struct tn_region *owner = &op->cache->region;
	const struct tn_face_told *told = tn_face_told(owner, op->number);
	struct blocks b = batch_of(op);

	memcpy(tn_face_saved(op->region, op->number) + b.first, tn_face_saved(owner, op->number), b.end - b.first);
	count(op, op->batches.counted);
	if (!op->batches.error)
		op->batches.error = told->error;
	if (!op->batches.status)
		op->batches.status = told->status;
}

/* The owner has given the batch up, because its bytes were not copied to it. */
static void take_failure(struct tn_front_op *op)
{
	struct blocks b = batch_of(op);

	leave_rest(op, b.first, TN_SAVED_FAILED);
	op->batches.left = op->n - b.end;
	if (!op->batches.error)
		op->batches.error = op->batches.uncopied;
}

/* The owner has refused the batch. Of the first one its caller is told so, as if it were not staged: no block has a result. */
static void take_refusal(struct tn_front_op *op)
{
	int status = tn_face_told(&op->cache->region, op->number)->status;

	if (op->batches.index > 0)
		leave_rest(op, batch_of(op).first, TN_SAVED_FAILED);
	if (!op->batches.error)
		op->batches.error = status;
	if (op->batches.index == 0 || status == -EFAULT)
		op->batches.status = status;
}

static void batch_saved(struct tn_stage *s, struct tn_front_op *op)
{
	const struct tn_face_told *told = tn_face_told(&op->cache->region, op->number);
	bool refused = tn_face_save_is_refused(&op->cache->region, op->number);
	bool given_up = told->error == -ECANCELED; /* perhaps before all layers were final, which later batches take for granted */
	bool stops = refused || given_up || is_cancelled(op) || op->batches.uncopied || told->blocks[TN_SAVED_NOT] > 0; /* an owner that ends forgets saves, too */

	if (stops && end_early(op))
		return;
	if (refused)
		take_refusal(op);
	else if (op->batches.uncopied)
		take_failure(op);
	else
		take_results(op);
	if (!stops && !is_last(op)) {
		next_batch(op);
		return;
	}
	if (!refused && !op->batches.uncopied)
		leave_rest(op, batch_of(op).end, given_up ? TN_SAVED_FAILED : TN_SAVED_NOT);
	tn_face_tell_saved(op->region, op->number, op->batches.counted, TN_FACE_KINDS, op->batches.error);
	end_operation(s, op, op->batches.status);
}

/* The owner looks at the batch no more. The pages are the caller's, and the slots others', once no copy is under way. */
static bool finish_save(struct tn_stage *s, struct tn_front_op *op, uint64_t *due_ns)
{
	struct tn_stage_copy copy;

	while (tn_stage_copy_take(op, &copy))
		continue;
	poll_copies(op, due_ns);
	if (op->copies.n > 0)
		return false;
	if (tn_region_is_gone(&op->cache->region))
		end_operation(s, op, -ESHUTDOWN);
	else
		batch_saved(s, op);
	return true;
}

static bool step_save(struct tn_stage *s, struct tn_front_op *op, uint64_t *due_ns)
{
	bool begun = false, rings;

	if (tn_region_is_gone(&op->cache->region) || owner_is_through(op))
		return finish_save(s, op, due_ns);
	rings = pass_cancel(op);
	if (!tn_face_is_set(&tn_face_asked(&op->cache->region, op->number)->cancel)) {
		begun = begin_layers(op, due_ns);
		rings |= end_layers(op);
		rings |= pass_commit(op);
		poll_copies(op, due_ns);
	}
	if (rings)
		kick_owner(op);
	return begun || rings;
}

void tn_stage_begin(struct tn_front_op *op)
{
	struct tn_stage *s = op->cache->stage;

	op->batches.asked = batch_of(op).end;
	op->idle_block = op->n;
	if (tn_front_is_save(op) && op->batches.count > 1)
		tn_batched_add(&s->batched, op->number);
	ask(op);
	tn_face_begins(&s->region, op->number, op->generation, op->n);
	__atomic_fetch_or(&s->active[op->number / 64], 1ull << op->number % 64, __ATOMIC_SEQ_CST);
	kick_owner(op);
	if (tn_region_is_gone(&op->cache->region)) /* the thread may have been told of that before, and sleep */
		tn_stage_wake(op->cache);
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static bool is_active(const struct tn_stage *s, uint32_t number)
{
	return __atomic_load_n(&s->active[number / 64], __ATOMIC_ACQUIRE) >> number % 64 & 1;
}

/* Operations under way are looked at in any case; who has rung for one that is over waits until that is answered. */
static bool take_kicks(struct tn_stage *s)
{
	struct tn_doorbell bell = tn_region_kicks(&s->region);
	uint32_t first, n = tn_doorbell_take(&bell, &s->kicks, s->numbers, &first);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t number = s->numbers[first + i];

		tn_doorbell_answer(&bell, number);
		if (!is_active(s, number))
			s->told |= tn_face_notify(&s->region, number);
	}
	return n > 0;
}

/* The owner's completions: those of operations that are not staged go on to the callers as they are. */
static bool take_completions(struct tn_stage *s)
{
	struct tn_doorbell from = tn_region_completions(&s->cache->region), to = tn_region_completions(&s->region);
	uint32_t first, n = tn_doorbell_take(&from, &s->completions, s->numbers, &first);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t number = s->numbers[first + i];

		tn_doorbell_answer(&from, number);
		if (!is_active(s, number))
			s->told |= tn_doorbell_ring(&to, number);
	}
	return n > 0;
}

/* One step of each operation. False: nothing happened. */
static bool step_all(struct tn_stage *s, uint64_t *due_ns)
{
	bool busy = take_kicks(s);
	uint64_t one = 1;

	busy |= take_completions(s);
	for (uint32_t w = 0; w < TN_REGION_OPS_MAX / 64; w++) {
		uint64_t left = __atomic_load_n(&s->active[w], __ATOMIC_SEQ_CST);

		for (; left; left &= left - 1) {
			struct tn_front_op *op = &s->cache->front->ops[w * 64 + (uint32_t)__builtin_ctzll(left)];

			busy |= tn_front_is_save(op) ? step_save(s, op, due_ns) : step_load(s, op, due_ns);
		}
	}
	if (s->told && __atomic_load_n(&s->cache->eventfd_used, __ATOMIC_SEQ_CST))
		(void)!write(s->cache->eventfd, &one, sizeof(one)); /* full: the reader is signalled anyway */
	s->told = false;
	return busy;
}

/* From now on callers are told completions by the thread, which alone takes the owner's. What they have not been told yet is told once more. */
static void take_over_completions(struct tn_stage *s)
{
	struct tn_doorbell from = tn_region_completions(&s->cache->region), to = tn_region_completions(&s->region);
	struct tn_front *f = s->cache->front;

	pthread_mutex_lock(&f->completions_lock);
	for (; f->next_completed < from.count; f->next_completed++) {
		tn_doorbell_answer(&from, f->completed[f->next_completed]);
		tn_doorbell_ring(&to, f->completed[f->next_completed]);
	}
	s->completions = f->completions;
	f->completions = (struct tn_doorbell_taker){0};
	f->told_in = &s->region;
	pthread_mutex_unlock(&f->completions_lock);
}

/*
 * The word that the thread sleeps on rises with the owner's completions. Whoever rings here, or raises an event, stores what it has to say and
 * looks at `asleep` then; the thread sets `asleep` and looks at everything once more then.
 */
static void *stage_main(void *arg)
{
	struct tn_stage *s = arg;
	uint32_t *completed = &tn_region_core(&s->cache->region)->completed;

	pthread_setname_np(pthread_self(), "tenuto-stage");
	take_over_completions(s);
	while (!__atomic_load_n(&s->stopping, __ATOMIC_SEQ_CST)) {
		uint64_t due = TN_FOREVER;
		uint32_t seen;

		if (step_all(s, &due))
			continue;
		__atomic_store_n(&s->asleep, 1, __ATOMIC_SEQ_CST);
		seen = __atomic_load_n(completed, __ATOMIC_SEQ_CST);
		due = TN_FOREVER;
		if (!step_all(s, &due) && !__atomic_load_n(&s->stopping, __ATOMIC_SEQ_CST))
			tn_futex_wait_on(completed, seen, due, true);
		__atomic_store_n(&s->asleep, 0, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

void tn_stage_wake(const struct tn_cache *cache)
{
	if (__atomic_load_n(&cache->stage->asleep, __ATOMIC_SEQ_CST))
		tn_region_tell_completed(&cache->region);
}

const struct tn_region *tn_stage_region(const struct tn_cache *cache)
{
	return &cache->stage->region;
}

/* ---- start and stop ------------------------------------------------------------------------------------------- */

static void destroy(struct tn_stage *s)
{
	const struct tn_alloc *a = s->cache->alloc;

	for (uint32_t i = 0; i < 2; i++) /* also for drivers of pools that are abandoned later */
		tn_pins_remove(&s->cache->copiers.pins, &s->cache->word_pins[i]);
	if (s->region.base)
		tn_region_destroy(&s->region, a);
	tn_put(a, s->numbers, tn_array_bytes(s->cache->region.counts.ops, sizeof(*s->numbers)));
	pthread_mutex_destroy(&s->batched.lock);
	tn_put(a, s, sizeof(*s));
}

/* Drivers of pools reach the words of staged layers and of events: their streams wait for these, and raise those. */
static int add_words(struct tn_stage *s)
{
	struct tn_region_pages layers = tn_region_pages(&s->region, TN_REGION_READY), events = tn_region_pages(&s->cache->region, TN_REGION_EVENTS);
	struct tn_cache *cache = s->cache;
	int rc = tn_pins_add(&cache->copiers.pins, &cache->word_pins[0], layers.first, layers.bytes);

	return rc ? rc : tn_pins_add(&cache->copiers.pins, &cache->word_pins[1], events.first, events.bytes);
}

static int start(struct tn_cache *cache)
{
	struct tn_region_counts counts = cache->region.counts;
	struct tn_stage *s = tn_get(cache->alloc, sizeof(*s));
	int rc;

	if (!s)
		return tn_fail(-ENOMEM, "tn_pool_create: no memory");
	s->cache = cache;
	pthread_mutex_init(&s->batched.lock, NULL);
	counts.events = counts.calls = counts.call_bytes = 0;
	s->numbers = tn_get(cache->alloc, tn_array_bytes(counts.ops, sizeof(*s->numbers)));
	rc = s->numbers ? tn_region_create(&counts, cache->alloc, &s->region) : tn_fail(-ENOMEM, "tn_pool_create: no memory");
	rc = rc ? rc : add_words(s);
	if (rc == 0) {
		rc = tn_thread_start(&s->thread, stage_main, s);
		if (rc)
			rc = tn_fail(-rc, "tn_pool_create: cannot start a thread (errno %d)", rc);
	}
	if (rc) {
		destroy(s);
		return rc;
	}
	__atomic_store_n(&tn_region_front(&cache->region)->listens, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&cache->stage, s, __ATOMIC_SEQ_CST);
	tn_region_tell_completed(&cache->region); /* the thread looks at what came before somebody listened; the other listener ends */
	return 0;
}

int tn_stage_start(struct tn_cache *cache)
{
	int rc = 0;

	pthread_mutex_lock(&cache->lock);
	if (!cache->stage)
		rc = start(cache);
	pthread_mutex_unlock(&cache->lock);
	return rc;
}

/* Operations of an owner that is gone may be under way; after this no copy of them is. */
static void settle_copies(struct tn_stage *s)
{
	for (uint32_t i = 0; i < s->cache->region.counts.ops; i++)
		if (is_active(s, i))
			tn_stage_copies_settle(&s->cache->front->ops[i]);
}

void tn_stage_stop(struct tn_cache *cache)
{
	struct tn_stage *s = cache->stage;

	if (!s)
		return;
	__atomic_store_n(&s->stopping, 1, __ATOMIC_SEQ_CST);
	tn_region_tell_completed(&cache->region);
	pthread_join(s->thread, NULL);
	settle_copies(s);
	__atomic_store_n(&cache->stage, NULL, __ATOMIC_RELEASE);
	destroy(s);
}
