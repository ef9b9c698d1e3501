/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What saves and offloads have in common, up to the moment before their blocks become visible: per block its place, then its objects, as
 * soon as they have final bytes, then - if it goes to disk - its header. Owner thread only.
 *
 * A save's block gets a place in memory if there is one at once, else in the durable tier if that has let the block in; an
 * offload's in its target. Who waits for places stands in one queue, saves and offloads alike, and its tier is asked in the
 * queue's order, so that nobody overtakes for ever.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/budget.h"
#include "core/core.h"
#include "core/near.h"
#include "core/transfers.h"

#define COPY_BYTES (1u << 20) /* most of one transfer into memory, so that those of several items share an IOCB */
#define HEADERS_BYTES (8u << 20) /* blocks of so many bytes do not wait for those behind them with their headers */

static uint32_t index_of(const struct tn_write_item *item)
{
	return (uint32_t)(item - item->w->items);
}

/* ---- what becomes of an item ------------------------------------------------------------------------------ */

void tn_item_release(struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	if (item->tier != TN_TIER_NONE)
		tn_tier_release(cache->row.tier[item->tier], item->w->op.space->index, item->block, item->place, item->error);
	item->tier = TN_TIER_NONE;
	tn_item_kept_near(item, TN_BLOCK_NONE);
}

static bool in_memory(const struct tn_write_item *item)
{
	return tn_item_reach(item) == TN_REACH_MEMORY;
}

static void data_over(struct tn_write_item *item)
{
	item->w->unwritten--;
	item->w->copying -= in_memory(item);
}

void tn_item_failed(struct tn_write_item *item, int status)
{
	struct tn_writing *w = item->w;

	if (item->state == TN_WRITE_PLACE)
		w->unplaced--;
	else if (item->state == TN_WRITE_DATA)
		data_over(item);
	item->state = TN_WRITE_FAILED;
	item->saved = TN_SAVED_FAILED;
	item->error = status;
	if (!w->error)
		w->error = status < TN_RING_NOT_COPIED ? status - TN_RING_NOT_COPIED : status;
	if (status == -EIO)
		w->op.cache->c.io_errors++;
	TN_TRACE2(save_failed, (uint32_t)(item - w->items), status);
}

static void placed(struct tn_write_item *item, const struct tn_tier_base *t, uint32_t place)
{
	struct tn_writing *w = item->w;

	item->tier = (uint8_t)t->tier;
	item->place = place;
	item->state = TN_WRITE_DATA;
	w->unplaced--;
	w->unwritten++;
	w->copying += in_memory(item);
	if (w->save)
		item->near = tn_near_place(&w->op, index_of(item));
	if (t->ops->traits.reach == TN_REACH_MEMORY)
		w->op.offset[item - w->items] = t->ops->offset(t, place, w->op.shape, NULL);
	if (t->ops->traits.reach != TN_REACH_DEVICE)
		return;
	item->disk = t->ops->drives->data_at(t, place);
	item->device = (uint8_t)tn_ioctx_device(item->disk);
}

/* ---- slots that only transfers hold ---------------------------------------------------------------------- */

/*
 * A save or an offload that waits for no place, for no device that stands, and for no call of its user any more: of layers that were given at most for
 * their events.
 */
static bool only_writes(const struct tn_writing *w)
{
	if (tn_op_stands(&w->op))
		return false;
	if (!w->save)
		return w->unplaced == 0;
	return tn_op_is_cancelled(&w->op) || (tn_op_is_committed(&w->op) && w->unplaced == 0);
}

/* Adds to *writes the slots that the operation writes to; false if it may do so for long. */
static bool writes_pass(const struct tn_writing *w, uint32_t first, uint32_t n, uint32_t *writes)
{
	uint32_t before = *writes;

	for (uint32_t i = 0; i < w->op.n; i++)
		*writes += w->items[i].tier == w->op.cache->row.durable->tier && w->items[i].place - first < n;
	return *writes == before || only_writes(w);
}

/*
 * References that loads have on blocks in these slots, wherever they load them from, and offloads on blocks that go further
 * down: they end by themselves, unless their device stands.
 */
static uint64_t transfer_refs(const struct tn_cache *cache, uint32_t first, uint32_t n)
{
	uint64_t refs = 0;

	for (uint32_t k = 0; k < cache->offloads.n; k++) {
		const struct tn_writing *w = &cache->offloads.op[k].w;

		for (uint32_t i = 0; w->op.active && i < w->op.n; i++)
			refs += tn_tier_place_of(cache->row.durable, w->items[i].block) - first < n;
	}

	for (const struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		const struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);
		uint32_t held = tn_op_stands(&r->op) ? 0 : r->op.n;

		for (uint32_t i = 0; i < held; i++)
			refs += r->items[i].state != TN_READ_IDLE &&
				tn_tier_place_of(cache->row.durable, r->items[i].block) - first < n;
	}
	return refs;
}

bool tn_places_pass(struct tn_cache *cache, uint32_t first, uint32_t n)
{
	uint64_t transfers = transfer_refs(cache, first, n), refs = 0;
	uint32_t writes = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next)
		if (!writes_pass(tn_container_of(pos, struct tn_writing, op.link), first, n, &writes))
			return false;
	for (uint32_t i = 0; i < cache->offloads.n; i++)
		if (cache->offloads.op[i].w.op.active && !writes_pass(&cache->offloads.op[i].w, first, n, &writes))
			return false;
	if (transfers + writes == 0)
		return false;
	for (uint32_t k = 0; k < n && refs <= transfers; k++) {
		tn_block b = cache->row.durable->ops->find(cache->row.durable, first + k);

		refs += b == TN_BLOCK_NONE ? 0 : tn_block_refs(cache->registry, b);
	}
	return refs <= transfers; /* each that is more is a lease's, or a look-up's on another thread */
}

/* ---- asking ------------------------------------------------------------------------------------------------ */

/* At once, or not at all. */
static bool memory_place(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_tier_base *t = w->op.cache->row.memory;
	struct tn_place_wait wait = {0};
	uint32_t place;

	if (!w->save || !tn_space_in(w->op.space, t) || !tn_session_has_share(w->op.session, t))
		return false;
	tn_place_wait_init(&wait, w->op.space, t);
	if (tn_tier_place(t, &wait, 1, &place) != 1)
		return false;
	placed(item, t, place);
	tn_session_hold(w->op.session, t->tier);
	return true;
}

static void no_places(struct tn_writing *w, int status)
{
	for (uint32_t i = w->i; i < w->op.n; i++)
		if (w->items[i].state == TN_WRITE_PLACE)
			tn_item_failed(&w->items[i], status);
}

/* Places in the tier that the operation has and that are not stored yet. */
static uint64_t filling(const struct tn_writing *w, const struct tn_tier_base *t)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < w->op.n; i++)
		n += w->items[i].tier == t->tier && (w->items[i].state == TN_WRITE_DATA || w->items[i].state == TN_WRITE_HEADER);
	return n;
}

/* Gives places to the first items that wait for one; neighbours, as the tier has them. True if anything happened. */
static bool ask(struct tn_writing *w, struct tn_tier_base *t, uint32_t want, bool first)
{
	struct tn_cache *cache = w->op.cache;
	uint32_t k = 0;
	int got;

	want = want < TN_PLACES_AT_ONCE ? want : TN_PLACES_AT_ONCE;
	tn_place_wait_init(&w->wait, w->op.space, t);
	w->wait.first = first;
	w->wait.own = filling(w, t);
	got = tn_tier_place(t, &w->wait, want, cache->places.scratch);
	if (got < 0) {
		no_places(w, got);
		return true;
	}
	for (uint32_t i = w->i; i < w->op.n && k < (uint32_t)got; i++)
		if (w->items[i].state == TN_WRITE_PLACE)
			placed(&w->items[i], t, cache->places.scratch[k++]);
	assert(k == (uint32_t)got);
	if (w->wait.due_ns < cache->places.due_ns)
		cache->places.due_ns = w->wait.due_ns;
	return got > 0 || w->wait.again;
}

/* No tier takes the block. Memory was the last one that could have. */
static void reject_item(struct tn_write_item *item)
{
	const struct tn_tier_base *memory = item->w->op.cache->row.memory;
	struct tn_save_op *save = item->w->save;

	item->state = TN_WRITE_REJECTED;
	item->saved = TN_SAVED_REJECTED;
	if (!tn_space_in(item->w->op.space, memory) || tn_session_has_share(item->w->op.session, memory))
		return;
	item->kept_out = TN_KEPT_BY_SHARE;
	if (!save->kept_off)
		save->kept_off = -EAGAIN;
}

/* True if anything happened; *waited: the tiers that somebody in front waits for, as bits. */
static bool find_places(struct tn_writing *w, uint32_t *waited)
{
	struct tn_tier_base *t = w->save ? w->op.cache->row.durable : w->target;
	uint32_t want = 0;
	bool busy = false;

	for (uint32_t i = w->i; i < w->op.n; i++) {
		struct tn_write_item *item = &w->items[i];

		if (item->state != TN_WRITE_PLACE)
			continue;
		if (memory_place(item)) {
			busy = true;
		} else if (item->admitted) {
			want++;
		} else {
			reject_item(item);
			w->unplaced--;
			busy = true;
		}
	}
	if (want) {
		busy |= ask(w, t, want, !(*waited & 1u << t->tier));
		*waited |= w->unplaced ? 1u << t->tier : 0;
	}
	return busy;
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

void tn_places_join(struct tn_writing *w)
{
	w->wait = (struct tn_place_wait){0};
	if (w->unplaced > 0)
		tn_list_push(&w->op.cache->places.waiting, &w->place_link);
}

void tn_places_leave(struct tn_writing *w)
{
	tn_list_del(&w->place_link);
}

bool tn_places_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	uint32_t waited = 0;
	bool busy = false;

	cache->places.due_ns = TN_FOREVER;
	tn_list_for_each_safe(pos, tmp, &cache->places.waiting) {
		struct tn_writing *w = tn_container_of(pos, struct tn_writing, place_link);

		if (w->save && tn_op_is_cancelled(&w->op))
			continue;
		busy |= find_places(w, &waited);
		if (w->unplaced == 0)
			tn_places_leave(w);
	}
	return busy;
}

/* ---- where the bytes are ------------------------------------------------------------------------------ */

/* Where a block lies in a tier's memory. */
static uint64_t offset_of(const struct tn_writing *w, const struct tn_tier_base *t, uint32_t place, uint64_t **checks)
{
	return t->ops->offset(t, place, w->op.shape, checks);
}

static uint64_t *item_checks(const struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	uint64_t *checks;

	if (!w->save)
		offset_of(w, cache->row.memory, item->source, &checks);
	else if (tn_item_reach(item) == TN_REACH_MEMORY)
		offset_of(w, cache->row.tier[item->tier], item->place, &checks);
	else
		checks = w->checks + (size_t)index_of(item) * w->op.shape->layers;
	return checks;
}

/* ---- data --------------------------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct tn_shape *s)
{
	return (uint64_t)s->chunk_objects * s->padded_bytes;
}

/*
 * Most bytes of one request. A disk is fastest with requests of 1 to 4 MiB, and each costs CPU; but beside loads each is one chunk, so
 * that nobody waits long for it; and without loads no more than half of the scheduler's quantum, so that the next load does not.
 */
static uint64_t request_bytes(const struct tn_write_item *item)
{
	const struct tn_writing *w = item->w;
	const struct tn_shape *s = w->op.shape;
	uint64_t most;

	if (tn_item_reach(item) != TN_REACH_DEVICE)
		return COPY_BYTES;
	if (tn_loads_move(w->op.cache))
		return chunk_bytes(s);
	most = tn_schedule_write_most(w->op.cache, item->device);
	most = most < TN_IO_BYTES ? most : TN_IO_BYTES;
	return most > chunk_bytes(s) ? most : chunk_bytes(s);
}

/* The next objects of an item, as many as may go together. */
static struct tn_transfer next_transfer(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	uint32_t padded = w->op.shape->padded_bytes, left = w->ready - item->next;
	uint64_t most = request_bytes(item);
	struct tn_transfer t = {
		.op = &w->op,
		.kind = tn_item_reach(item) == TN_REACH_DEVICE ? TN_TRANSFER_WRITE : TN_TRANSFER_OUT,
		.user = w->save ? TN_TRANSFER_SAVES : TN_TRANSFER_OFFLOADS,
		.block = index_of(item),
		.first = item->next,
		.count = most / padded < left ? (uint32_t)(most / padded) : left,
		.request_bytes = (uint32_t)most,
	};

	t.count = t.count < TN_TRANSFER_OBJECTS_MAX ? t.count : TN_TRANSFER_OBJECTS_MAX;
	t.count = t.count ? t.count : 1;
	if (t.kind == TN_TRANSFER_OUT)
		return t;
	t.device = item->device;
	t.place = item->disk + (uint64_t)t.first * (padded / TN_PLACE_ALIGN);
	return t;
}

/* Writes the next objects of an item, if they may go; *later: none of this operation may go now. */
static bool start(struct tn_write_item *item, uint32_t *taken, bool *later)
{
	struct tn_writing *w = item->w;
	struct tn_transfer t = next_transfer(item);
	uint64_t bytes = (uint64_t)t.count * w->op.shape->padded_bytes;

	if (!tn_transfer_may(&t)) {
		if (t.kind == TN_TRANSFER_WRITE)
			tn_schedule_write_waits(w);
		*later = true;
		return false;
	}
	if (t.kind == TN_TRANSFER_WRITE && (*taken >> t.device & 1 || !tn_schedule_write(w, t.device, bytes))) {
		*taken |= 1u << t.device;
		return false;
	}
	tn_transfer_add(&t);
	item->next += (uint16_t)t.count;
	item->inflight += (uint16_t)t.count;
	w->op.inflight += t.count;
	return true;
}

/* Whether some of its objects are still to go to the near tier. */
static bool owes_near(const struct tn_write_item *item)
{
	return item->near != TN_SLOT_NONE && !item->near_unfit && item->near_next < item->next && item->state == TN_WRITE_DATA;
}

/* What goes to the item's place goes to its place in the near tier, too, if there is an IOCB for it: nothing waits for that. */
static void start_near(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;

	while (owes_near(item)) {
		uint32_t left = item->next - item->near_next;
		const struct tn_transfer t = {
			.op = &w->op,
			.kind = TN_TRANSFER_OUT_NEAR,
			.user = TN_TRANSFER_SAVES,
			.block = index_of(item),
			.first = item->near_next,
			.count = left < TN_TRANSFER_OBJECTS_MAX ? left : TN_TRANSFER_OBJECTS_MAX,
		};

		if (!tn_transfer_add(&t))
			return;
		item->near_next += (uint16_t)t.count;
		item->inflight += (uint16_t)t.count;
		w->op.inflight += t.count;
	}
}

static void object_ended(struct tn_write_item *item, const struct tn_part *p)
{
	const struct tn_shape *s = item->w->op.shape;

	item->done++;
	if (p->status == 0 && p->kind == TN_TRANSFER_WRITE)
		item->w->op.cache->c.bytes_written += s->padded_bytes;
	if (p->status && item->state == TN_WRITE_DATA)
		tn_item_failed(item, p->status);
	if (p->status == 0 && item->w->save)
		item_checks(item)[p->first] = p->sums[0];
	if (item->state == TN_WRITE_DATA && item->done == s->layers) {
		data_over(item);
		item->state = tn_item_reach(item) == TN_REACH_DEVICE ? TN_WRITE_HEADER : TN_WRITE_STORED;
	}
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

	item->move = NULL;
	tn_whole_put(w->op.cache->whole, move);
	w->op.inflight--;
	item->inflight--;
	if (status) {
		tn_item_failed(item, status);
		return;
	}
	data_over(item);
	item->state = TN_WRITE_STORED;
}

/* Offloads only: the tier takes the block from memory, with its checksums. */
static bool start_whole(struct tn_write_item *item, bool *later)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_tier_move *move = tn_whole_get(cache->whole, true);

	*later = !move;
	if (!move)
		return false;
	*move = (struct tn_tier_move){
		.write = true,
		.space = w->op.tier_space,
		.key = w->op.keys[index_of(item)],
		.parent = parent_key(w, index_of(item)),
		.shape = w->op.shape,
		.done = whole_done,
		.owner = item,
	};
	move->mem.memory = cache->row.memory->memory;
	move->mem.flat = offset_of(w, cache->row.memory, item->source, &move->checks);
	item->next = (uint16_t)w->op.shape->layers;
	w->op.inflight++;
	item->inflight++;
	item->move = move;
	w->target->ops->move(w->target, move);
	return true;
}

static bool write_data(struct tn_writing *w)
{
	uint32_t all = (1u << w->op.cache->ndevices) - 1, taken = 0; /* devices that take no write now */
	bool busy = false, later = false;

	for (uint32_t i = w->i; i < w->op.n && !later && (taken != all || all == 0); i++) {
		struct tn_write_item *item = &w->items[i];

		while (item->state == TN_WRITE_DATA && item->next < w->ready &&
		       (tn_item_reach(item) == TN_REACH_WHOLE ? start_whole(item, &later) : start(item, &taken, &later)))
			busy = true;
		start_near(item);
		if (i == w->i && item->state != TN_WRITE_PLACE && !owes_near(item) &&
		    (item->state != TN_WRITE_DATA || item->next == w->op.shape->layers))
			w->i++; /* nothing left to start for the first ones */
	}
	return busy;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static uint8_t entry_flags(const struct tn_writing *w, uint32_t i)
{
	bool expires = w->save ? w->save->ttl_ns != 0 : tn_watch_expires(w->op.cache->watch, w->items[i].block);
	bool partial = w->save && w->save->partial_last && i == w->op.n - 1;

	return (uint8_t)((partial ? TN_ENTRY_PARTIAL : 0) | (expires ? TN_ENTRY_EXPIRES : 0));
}

static void fill_put(struct tn_writing *w, uint32_t i, struct tn_header_put *put)
{
	const struct tn_write_item *item = &w->items[i];

	*put = (struct tn_header_put){
		.place = item->place,
		.entry = {
			.key = w->op.keys[i],
			.parent = parent_key(w, i),
			.space = w->op.space->index,
			.recency = w->op.cache->blocks.recency[item->block],
			.flags = entry_flags(w, i),
		},
		.space = w->op.tier_space,
		.group = w->op.space->group,
		.shape = w->op.shape,
		.checks = item_checks(item),
	};
}

/* All that may be under way of it is what goes to the near tier. */
static bool header_waits(const struct tn_write_item *item)
{
	return item->state == TN_WRITE_HEADER && item->inflight == item->near_next - item->near_done;
}

/*
 * Neighbours in the order of their slots, so that their headers, neighbours too, go out in one request. *taken: devices that take no
 * write now; *later: no header may go now.
 */
static bool write_header(struct tn_write_item *item, uint32_t *taken, bool *later)
{
	struct tn_writing *w = item->w;
	struct tn_tier_base *drives = w->op.cache->row.drives;
	uint64_t bytes = w->op.header_shape->padded_bytes;
	struct tn_header_put put;
	struct tn_transfer t = {
		.op = &w->op,
		.kind = TN_TRANSFER_WRITE_HEADER,
		.user = w->save ? TN_TRANSFER_SAVES : TN_TRANSFER_OFFLOADS,
		.device = item->device,
		.count = 1,
		.place = drives->ops->drives->header_at(drives, item->place),
	};

	if (*taken >> item->device & 1)
		return false;
	t.block = tn_transfer_may(&t) ? drives->ops->drives->header_take(drives, true, index_of(item)) : TN_HEADER_NO_BUFFER;
	if (t.block == TN_HEADER_NO_BUFFER) {
		tn_schedule_write_waits(w);
		*later = true;
		return false;
	}
	if (!tn_schedule_write(w, item->device, bytes)) {
		drives->ops->drives->header_give(drives, t.block);
		*taken |= 1u << item->device;
		return false;
	}
	tn_transfer_add(&t);
	fill_put(w, index_of(item), &put);
	drives->ops->drives->header_encode(drives, t.block, &put); /* the IOCB is handed over later */
	item->sequence = put.entry.sequence;
	item->inflight++;
	w->op.inflight++;
	return true;
}

static bool data_is_over(const struct tn_write_item *item)
{
	return item->state != TN_WRITE_OVER && item->state != TN_WRITE_PLACE && item->state != TN_WRITE_DATA;
}

/*
 * Neighbours wait for each other, so that their headers are one request, but not for the whole operation: a block of a save that has
 * its header and its record outlives the process. A device that takes none keeps no other device's headers waiting.
 */
static bool write_headers(struct tn_writing *w)
{
	uint32_t all = (1u << w->op.cache->ndevices) - 1, taken = 0;
	bool busy = false, later = false;

	while (w->through < w->op.n && data_is_over(&w->items[w->through]))
		w->through++;
	if (w->through == w->op.n || (uint64_t)(w->through - w->hdr_to) * w->op.shape->slot_bytes >= HEADERS_BYTES)
		w->hdr_to = w->through;
	for (uint32_t i = w->hdr_i; i < w->hdr_to && !later && (taken != all || all == 0); i++) {
		struct tn_write_item *item = &w->items[i];

		if (header_waits(item))
			busy |= write_header(item, &taken, &later);
		if (i == w->hdr_i && !header_waits(item))
			w->hdr_i++;
	}
	return busy;
}

static void header_ended(struct tn_write_item *item, const struct tn_part *p)
{
	const struct tn_op *op = &item->w->op;
	const struct tn_header_want what = {item->place, &op->keys[p->block], &op->tier_space, item->sequence, op->shape, item_checks(item)};

	op->cache->row.drives->ops->drives->header_written(op->cache->row.drives, p->buffer, p->status, &what);
	if (p->status)
		tn_item_failed(item, p->status);
	else
		item->state = TN_WRITE_STORED;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

void tn_writing_ended(const struct tn_part *p)
{
	struct tn_write_item *item = &tn_writing_of(p->op)->items[p->block];

	p->op->inflight--;
	item->inflight--;
	if (p->kind == TN_TRANSFER_WRITE_HEADER) {
		header_ended(item, p);
	} else if (p->kind == TN_TRANSFER_OUT_NEAR) {
		item->near_done++;
		item->near_unfit |= p->status != 0;
	} else {
		object_ended(item, p);
	}
}

void tn_writing_publish(struct tn_write_item *item, tn_block b)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_index_entry entry = {
		.key = w->op.keys[index_of(item)],
		.parent = parent_key(w, index_of(item)),
		.sequence = item->sequence,
		.space = w->op.space->index,
		.recency = cache->blocks.recency ? cache->blocks.recency[b] : 0,
		.flags = entry_flags(w, index_of(item)),
	};

	if (cache->row.tier[item->tier]->ops->traits.durable)
		tn_block_set_unsure(&cache->blocks, b, tn_op_is_foreign(&w->op));
	tn_block_arrives(&cache->blocks, cache->row.tier[item->tier], b, item->place, &entry);
	item->tier = TN_TIER_NONE; /* the place is the block's now */
}

bool tn_writing_step(struct tn_writing *w, bool committed, bool *busy)
{
	if (!w->op.cancelled) {
		if (committed)
			*busy |= write_headers(w); /* before the data, which takes what it can get */
		*busy |= write_data(w);
		if (!committed || w->hdr_i < w->op.n)
			return false;
	}
	return w->op.inflight == 0;
}
