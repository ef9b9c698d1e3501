/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From memory down the row of tiers, in the background. Owner thread only.
 *
 * Blocks that were saved into memory and let into the durable tier wait in a queue. A few operations of
 * the owner's own take them down in batches, as the scheduler lets their writes go (sched/sched.h); with none, as long as
 * loads from devices are under way only when memory is running out of clean slots, a flush waits, or the oldest has
 * waited for its share of offload_lag_ms. What could not be written stays in memory and is tried again by the next flush,
 * when a device comes back, every few seconds, and at the end of the cache.
 * From there, a tier further down may take a copy, while the block is still in memory. It has a queue and operations of its
 * own, so that a slow one is in nobody's way. Nobody waits for these copies or was promised them: a block may be evicted first.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "core/transfers.h"

#define RETRY_NS 5000000000ull /* what could not be written is tried again so often, if nobody flushes */

#define AHEAD 32u /* blocks that are offered before they leave memory */
#define OPS 4u /* for each tier that takes blocks */

static uint32_t targets(const struct tn_row *row)
{
	uint32_t n = 0;

	for_each_tier(t, row)
		n += t->ops->traits.offloads;
	return n;
}

int tn_offloads_create(struct tn_offloads *o, struct tn_cache *cache, uint32_t first)
{
	uint32_t n = OPS * targets(o->row), blocks = n * TN_OFFLOAD_BLOCKS, k = 0;

	tn_list_init(&o->flushes);
	if (!o->row->memory || n == 0)
		return 0;
	o->op = tn_get(o->alloc, tn_array_bytes(n, sizeof(*o->op)));
	o->keys = tn_get(o->alloc, tn_array_bytes(blocks, sizeof(*o->keys)));
	o->items = tn_get(o->alloc, tn_array_bytes(blocks, sizeof(*o->items)));
	o->offset = tn_get(o->alloc, tn_array_bytes(blocks, sizeof(*o->offset)));
	o->n = n;
	if (!o->op || !o->keys || !o->items || !o->offset)
		return tn_fail(-ENOMEM, "no memory for %u offloads", n);
	for_each_tier(t, o->row) {
		for (uint32_t i = 0; t->ops->traits.offloads && i < OPS; i++, k++) {
			struct tn_writing *w = &o->op[k].w;

			w->op.cache = cache;
			w->op.index = first + k;
			w->op.offset = o->offset + k * TN_OFFLOAD_BLOCKS;
			w->op.keys = o->keys + k * TN_OFFLOAD_BLOCKS;
			w->items = o->items + k * TN_OFFLOAD_BLOCKS;
			w->target = t;
		}
	}
	return 0;
}

void tn_offloads_destroy(struct tn_offloads *o)
{
	uint32_t blocks = o->n * TN_OFFLOAD_BLOCKS;

	if (!o->alloc) /* it did not come to create */
		return;
	tn_put(o->alloc, o->op, tn_array_bytes(o->n, sizeof(*o->op)));
	tn_put(o->alloc, o->keys, tn_array_bytes(blocks, sizeof(*o->keys)));
	tn_put(o->alloc, o->items, tn_array_bytes(blocks, sizeof(*o->items)));
	tn_put(o->alloc, o->offset, tn_array_bytes(blocks, sizeof(*o->offset)));
}

/* ---- what waits -------------------------------------------------------------------------------------------- */

uint64_t tn_offload_tickets(const struct tn_offloads *o)
{
	return o->row->queues && o->row->durable ? o->row->queues->to[o->row->durable->tier].tickets : 0;
}

uint64_t tn_offload_age(struct tn_offloads *o, uint64_t now_ns)
{
	const struct tn_waiting *first = o->row->queues && o->row->durable ? tn_dirty_first(o->dirty, o->row->durable) : NULL;
	uint64_t since = first ? first->since_ns : TN_FOREVER;

	for (uint32_t i = 0; i < o->n; i++) {
		const struct tn_offload_op *off = &o->op[i];

		if (off->w.op.active && off->w.target == o->row->durable && off->since_ns < since)
			since = off->since_ns;
	}
	if (since == TN_FOREVER)
		return 0;
	return now_ns > since ? now_ns - since : 1;
}

bool tn_offloads_idle(const struct tn_offloads *o)
{
	for (uint32_t i = 0; i < o->n; i++)
		if (o->op[i].w.op.active)
			return false;
	for_each_tier(t, o->row)
		if (t->ops->traits.offloads && o->row->queues && o->row->queues->to[t->tier].count > 0)
			return false;
	return true;
}

enum tn_offload_urgency tn_offload_urgency(struct tn_offloads *o, uint64_t now_ns)
{
	uint64_t age;

	if (!o->row->queues || !o->row->durable)
		return TN_OFFLOAD_IDLE;
	age = tn_offload_age(o, now_ns);
	if (age > 0 && age >= o->lag_ns / 2)
		return TN_OFFLOAD_LATE;
	if (!tn_list_empty(&o->flushes) || o->row->queues->dirty_slots > o->row->memory->ops->capacity(o->row->memory) / 2)
		return TN_OFFLOAD_PRESSES;
	return age > 0 && age >= o->lag_ns / 4 ? TN_OFFLOAD_PRESSES : TN_OFFLOAD_IDLE;
}

/* When what waits becomes more urgent, or what failed is tried again. */
static uint64_t next_ns(struct tn_offloads *o, uint64_t now_ns)
{
	uint64_t age = tn_offload_age(o, now_ns), lag = o->lag_ns, due = TN_FOREVER;

	if (age > 0 && lag != TN_FOREVER && age < lag / 2)
		due = now_ns + (age < lag / 4 ? lag / 4 : lag / 2) - age;
	if (o->row->queues->failed_slots > 0 && o->retry_ns < due)
		due = o->retry_ns;
	return due;
}

/* ---- one offload --------------------------------------------------------------------------------------------- */

static void add(struct tn_offloads *o, struct tn_offload_op *off, uint32_t slot)
{
	struct tn_writing *w = &off->w;
	tn_block b = o->row->memory->block_of[slot];

	tn_queues_pop(o->row->queues, w->target->tier);
	tn_block_ref(o->registry, b);
	tn_queues_moves(o->row->queues, slot, w->target->tier);
	w->op.keys[w->op.n] = tn_block_key(o->registry, b);
	w->items[w->op.n] = (struct tn_write_item){
		.w = w,
		.block = b,
		.source = slot,
		.near = TN_SLOT_NONE,
		.tier = TN_TIER_NONE,
		.state = TN_WRITE_PLACE,
		.admitted = true,
	};
	w->op.offset[w->op.n] = o->row->memory->ops->offset(o->row->memory, slot, w->op.shape, NULL);
	w->op.n++;
	w->unplaced++;
}

/*
 * Blocks of one offload: no more than the space's quota lets in at once, so that it need not fail when its own
 * blocks, which are visible only at its end, leave nothing of it for its last ones.
 */
static uint32_t batch(const struct tn_space *space, const struct tn_tier_base *t)
{
	uint64_t limit = tn_space_quota(space, t->tier) / space->shape.slot_bytes, coming = t->space_coming[space->index];
	uint64_t left = limit > coming ? limit - coming : 1;

	return left < TN_OFFLOAD_BLOCKS ? (uint32_t)left : TN_OFFLOAD_BLOCKS;
}

static bool begin(struct tn_offloads *o, struct tn_offload_op *off)
{
	struct tn_writing *w = &off->w;
	struct tn_tier_base *t = w->target;
	const struct tn_waiting *first = tn_dirty_first(o->dirty, t);
	uint32_t most;

	if (!first)
		return false;
	off->since_ns = first->since_ns;
	off->first_ticket = o->row->queues->to[t->tier].tickets - o->row->queues->to[t->tier].count;
	tn_writing_arm(w, w->items, NULL);
	w->target = t;
	tn_op_set_space(&w->op, o->spaces[tn_block_space(o->registry, o->row->memory->block_of[first->slot])]);
	w->op.n = 0;
	w->op.active = true;
	w->ready = w->op.shape->layers;
	w->op.space->ops++;
	most = batch(w->op.space, t);
	do
		add(o, off, first->slot);
	while (w->op.n < most && (first = tn_dirty_first(o->dirty, t)) &&
	       tn_block_space(o->registry, o->row->memory->block_of[first->slot]) == w->op.space->index);
	tn_transfers_prepare(&w->op, NULL);
	tn_places_join(w);
	return true;
}

uint32_t tn_offload_retry(struct tn_offloads *o)
{
	uint32_t left = 0;
	bool writable;

	if (!o->row->queues || o->row->queues->failed_slots == 0)
		return 0;
	writable = o->row->durable->ops->health(o->row->durable) == 0;
	for (uint32_t s = 0; s < o->row->queues->slots; s++) {
		tn_block b;

		if (tn_queues_state(o->row->queues, s, o->row->durable->tier) != TN_DIRTY_FAILED)
			continue;
		b = o->row->memory->block_of[s];
		if (!tn_tier_has(o->row->memory, b))
			continue; /* written, or dropped since */
		if (!writable || !tn_tier_readmit(o->row->durable, b)) {
			left++;
			continue;
		}
		o->blocks->recency[b] = o->blocks->tick;
		tn_dirty_push(o->dirty, b, o->row->durable);
	}
	return left;
}

static bool wants(const struct tn_tier_base *t, enum tn_offer when)
{
	return t->ops->wants ? t->ops->wants(t, when) : when == TN_OFFER_STORED;
}

void tn_offload_further(struct tn_offloads *o, tn_block b, enum tn_offer when)
{
	const struct tn_space *space = o->spaces[tn_block_space(o->registry, b)];
	struct tn_policy_block info;

	if (tn_watch_expires(o->watch, b)) /* it would come back without its time to live */
		return;
	for_each_tier(t, o->row) {
		if (!t->ops->traits.offloads || t == o->row->durable || !wants(t, when) || !tn_space_in(space, t) ||
		    tn_tier_residency(t, b) != TN_ABSENT)
			continue;
		tn_block_describe(t, b, false, &info);
		info.parent = tn_tier_entry(t, tn_block_parent(o->registry, b));
		if (tn_tier_admit(t, &info, space->shape.slot_bytes) != 1)
			continue;
		tn_block_let_in(o->blocks, t, b, &info);
		tn_tier_learn(t, b, &info);
		tn_dirty_push(o->dirty, b, t);
		return;
	}
}

/* Once memory is nearly full, a tier may want what leaves it next, a few blocks ahead, so that they are copied before they go. */
static void offer_leaving(struct tn_offloads *o)
{
	struct tn_tier_base *memory = o->row->memory;
	uint64_t arrivals = memory->entries + memory->evicted;
	tn_block next[AHEAD];
	bool wanted = false;
	uint32_t n;

	for_each_tier(t, o->row)
		wanted |= t->ops->traits.offloads && t != o->row->durable && wants(t, TN_OFFER_LEAVING);
	if (!wanted || arrivals < o->offer_at || memory->entries + AHEAD < memory->ops->capacity(memory))
		return;
	o->offer_at = arrivals + AHEAD / 4;
	n = tn_tier_next(memory, next, AHEAD);
	for (uint32_t i = 0; i < n; i++)
		tn_offload_further(o, next[i], TN_OFFER_LEAVING);
}

/* The one to this tier that began first, of those with this ticket or a later one; NULL: none. */
static struct tn_offload_op *oldest_from(struct tn_offloads *o, const struct tn_tier_base *t, uint64_t ticket)
{
	struct tn_offload_op *oldest = NULL;

	for (uint32_t i = 0; i < o->n; i++) {
		struct tn_offload_op *off = &o->op[i];

		if (off->w.op.active && off->w.target == t && off->first_ticket >= ticket &&
		    (!oldest || off->first_ticket < oldest->first_ticket))
			oldest = off;
	}
	return oldest;
}

/* The scheduler holds back writes for reads, and not for ever; without one, only what presses goes first. */
static bool may_begin(struct tn_offloads *o, uint64_t now_ns)
{
	return o->scheduled || *o->device_loads == 0 || tn_offload_urgency(o, now_ns) != TN_OFFLOAD_IDLE;
}

/* A block of this offload could not be written: flushes that wait for it will say so. */
static void failed(struct tn_offloads *o, const struct tn_offload_op *off, int status)
{
	struct tn_list *pos, *tmp;

	o->dirty->error = status;
	o->retry_ns = tn_now_ns(o->clock) + RETRY_NS;
	tn_list_for_each_safe(pos, tmp, &o->flushes) {
		struct tn_flush_waiter *w = tn_container_of(pos, struct tn_flush_waiter, link);

		if (!w->syncing && !w->status && off->first_ticket < w->offload_target)
			w->status = status;
	}
}


static void item_ends(struct tn_offloads *o, struct tn_offload_op *off, struct tn_write_item *item)
{
	struct tn_tier_base *t = off->w.target;
	tn_block b = item->block;
	bool dropped = !tn_tier_has(o->row->memory, b);

	if (item->state == TN_WRITE_STORED && !dropped) {
		tn_dirty_settled(o->dirty, item->source, t, TN_DIRTY_NOT);
		tn_writing_publish(item, b);
		o->c->offloaded_blocks++;
		tn_offload_further(o, b, TN_OFFER_STORED);
		return;
	}
	tn_dirty_settled(o->dirty, item->source, t, t == o->row->durable && !dropped ? TN_DIRTY_FAILED : TN_DIRTY_NOT);
	if (t == o->row->durable && !dropped)
		failed(o, off, item->error ? item->error : -EIO);
	tn_item_release(item);
	tn_tier_remove(t, b);
}

static void finish(struct tn_offloads *o, struct tn_offload_op *off)
{
	struct tn_writing *w = &off->w;

	for (uint32_t i = 0; i < w->op.n; i++) {
		tn_block b = w->items[i].block;

		item_ends(o, off, &w->items[i]);
		tn_block_release(o->blocks, b);
	}
	w->op.active = w->op.cancelled = false;
	o->places->ended++;
	w->op.space->ops--;
}

static bool step(struct tn_offloads *o, struct tn_offload_op *off)
{
	bool busy = false;

	if (!tn_writing_step(&off->w, true, &busy))
		return busy;
	finish(o, off);
	return true;
}

/* ---- copies that nobody wants any more ------------------------------------------------------------------------- */

/* Of a space, or of all (NULL). Their entries stay in the queue, which passes over them. */
static void forget_waiting(struct tn_offloads *o, struct tn_tier_base *t, const struct tn_space *space)
{
	struct tn_queues *q = o->row->queues;

	for (uint32_t i = 0; i < q->to[t->tier].count; i++) {
		uint32_t slot = q->to[t->tier].place[(q->to[t->tier].head + i) % q->slots].slot;
		tn_block b = o->row->memory->block_of[slot];

		if (tn_queues_state(q, slot, t->tier) != TN_DIRTY_COPY || (space && tn_block_space(o->registry, b) != space->index))
			continue;
		tn_dirty_settled(o->dirty, slot, t, TN_DIRTY_NOT);
		tn_tier_remove(t, b);
	}
}

static void give_up(struct tn_writing *w)
{
	struct tn_tier_base *t = w->target;

	if (w->op.cancelled)
		return;
	w->op.cancelled = true;
	tn_places_leave(w);
	for (uint32_t i = 0; i < w->op.n; i++) {
		struct tn_write_item *item = &w->items[i];

		if (item->inflight == 0 && (item->state == TN_WRITE_PLACE || item->state == TN_WRITE_DATA))
			tn_item_failed(item, -ECANCELED);
		else if (item->move && t->ops->cancel)
			t->ops->cancel(t, item->move);
	}
}

/* An operation that copies blocks of the space, or of any (NULL), to a tier where they are promised to nobody. */
static bool copies(const struct tn_offloads *o, const struct tn_writing *w, const struct tn_space *space)
{
	return w->op.active && w->target != o->row->durable && (!space || w->op.space == space);
}

uint32_t tn_offload_copies(const struct tn_offloads *o, const struct tn_space *space)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < o->n; i++)
		n += copies(o, &o->op[i].w, space);
	return n;
}

void tn_offload_forget_copies(struct tn_offloads *o, const struct tn_space *space)
{
	for_each_tier(t, o->row)
		if (t->ops->traits.offloads && t != o->row->durable && o->row->queues)
			forget_waiting(o, t, space);
	for (uint32_t i = 0; i < o->n; i++)
		if (copies(o, &o->op[i].w, space))
			give_up(&o->op[i].w);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Those under way go on oldest first: one that began later must not take all that there is to write with. */
static bool step_to(struct tn_offloads *o, struct tn_tier_base *t, uint64_t now_ns)
{
	struct tn_offload_op *off;
	uint64_t from = 0;
	bool busy = false;

	for (uint32_t i = 0; i < o->n && o->row->queues->to[t->tier].count > 0 && may_begin(o, now_ns); i++)
		if (o->op[i].w.target == t && !o->op[i].w.op.active)
			busy |= begin(o, &o->op[i]);
	while ((off = oldest_from(o, t, from))) {
		from = off->first_ticket + 1;
		busy |= step(o, off);
	}
	return busy;
}

bool tn_offload_step(struct tn_offloads *o, uint64_t now_ns, uint64_t *due_ns)
{
	bool busy = false;

	*due_ns = TN_FOREVER;
	if (o->n == 0)
		return false;
	/* The end of the cache tries each of those that failed once. */
	if (!o->closing && (o->again || (o->row->queues->failed_slots > 0 && now_ns >= o->retry_ns))) {
		o->retry_ns = now_ns + RETRY_NS;
		tn_offload_retry(o);
	}
	o->again = false;
	if (o->closing)
		tn_offload_forget_copies(o, NULL);
	else
		offer_leaving(o);
	for_each_tier(t, o->row)
		if (t->ops->traits.offloads)
			busy |= step_to(o, t, now_ns);
	*due_ns = next_ns(o, now_ns);
	return busy;
}

uint64_t tn_offloaded_up_to(const struct tn_offloads *o)
{
	uint64_t oldest = tn_offload_tickets(o);

	if (oldest > 0)
		oldest -= o->row->queues->to[o->row->durable->tier].count;
	for (uint32_t i = 0; i < o->n; i++) {
		const struct tn_offload_op *off = &o->op[i];

		if (off->w.op.active && off->w.target == o->row->durable && off->first_ticket < oldest)
			oldest = off->first_ticket;
	}
	return oldest;
}
