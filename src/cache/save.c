/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves and offloads, on the owner thread.
 *
 * A save copies its blocks into host slots if there is a host tier (they go to disk later, offload.c), else
 * it writes them to disk straight from the engine's pages. Either way, per block: a place, then the
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

static bool on_disk(const struct tn_item *item)
{
	return item->slot != TN_SLOT_NONE;
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

static void release_place(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;

	if (on_disk(item)) {
		cache->space_disk_coming[item->op->space->index]--;
		if (item->error == -EIO)
			tn_store_fail_slot(cache->store, item->slot, true);
		else
			tn_store_unreserve(cache->store, item->slot);
		item->slot = TN_SLOT_NONE;
	}
	if (item->host_slot != TN_HOST_NONE && !item->op->flat) {
		tn_host_slot_put(cache, item->op->space, item->host_slot);
		item->host_slot = TN_HOST_NONE;
	}
}

/* A block that does not become visible: its place, its entry and its record are free again. */
static void withdraw(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;

	release_place(item);
	if (item->state == TN_ITEM_EXISTING || item->block == TN_BLOCK_NONE)
		return;
	if (item->admitted)
		tn_disk_entry_del(cache, item->block, TN_POLICY_DROPPED);
	tn_block_reset(cache->registry, item->block);
	item->block = TN_BLOCK_NONE;
}

/* A block that had a place has all its data there, or never will. */
static void data_over(struct tn_item *item)
{
	item->op->unwritten--;
	item->op->copying -= !on_disk(item);
}

static void set_failed(struct tn_item *item, int status)
{
	struct tn_op *op = item->op;

	if (item->state == TN_ITEM_PLACE)
		op->unplaced--;
	else if (item->state == TN_ITEM_WRITE)
		data_over(item);
	item->state = TN_ITEM_FAILED;
	item->error = status;
	op->result.failed++;
	if (!op->result.error)
		op->result.error = status;
	if (status == -EIO)
		op->cache->c.io_errors++;
	TN_TRACE2(save_failed, index_of(item), status);
}

/* ---- begin -------------------------------------------------------------------------------------------- */

static bool disk_writable(const struct tn_cache *cache, const struct tn_space *space)
{
	return cache->store && tn_store_writable(cache->store) && space->disk_class != UINT32_MAX &&
	       __atomic_load_n(&space->quota.disk_bytes, __ATOMIC_RELAXED) >= space->shape.slot_bytes;
}

/* What the policy may know of a block that is not in the registry yet. */
static void describe_new(struct tn_op *op, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info)
{
	*info = (struct tn_policy_block){
		.key_hash = tn_key_hash(&op->keys[i], op->space->index),
		.parent = tn_disk_entry(op->cache, parent),
		.depth = depth,
		.from_end = op->n - 1 - i,
		.partial = op->partial_last && i == op->n - 1,
		.priority = (int8_t)op->priority,
	};
}

/* A record for the new block, in state Complete: its key is known, its bytes are not stored yet. */
static int take_record(struct tn_op *op, uint32_t i)
{
	struct tn_cache *cache = op->cache;
	const struct tn_key *parent = i ? &op->keys[i - 1] : &op->parent;
	tn_block b;
	int rc = tn_block_take(cache->registry, &b);

	if (rc == -ENOSPC && (tn_evict_disk(cache, 16, -1) > 0 || tn_evict_host(cache, 16, -1) > 0))
		rc = tn_block_take(cache->registry, &b);
	if (rc == 0)
		rc = tn_block_complete(cache->registry, b, op->space->index, &op->keys[i], parent);
	if (rc == 0)
		op->items[i].block = b;
	return rc;
}

/* Asks the policy; if it says yes, the block counts as one of the disk's from now on. */
static void admit(struct tn_op *op, uint32_t i, const struct tn_policy_block *info)
{
	struct tn_cache *cache = op->cache;
	struct tn_item *item = &op->items[i];

	if (!disk_writable(cache, op->space) || !tn_disk_admit(cache, info))
		return;
	if (!tn_store_charge_write(cache->store, op->space->shape.slot_bytes))
		return;
	if (take_record(op, i) == 0) {
		item->admitted = true;
		tn_disk_entry_add(cache, item->block, info);
	}
}

static void begin_item(struct tn_op *op, uint32_t i, tn_block *parent, uint32_t depth)
{
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	struct tn_item *item = &op->items[i];
	tn_block b = tn_registry_find_one(reg, op->space->index, &op->keys[i], false);
	struct tn_policy_block info;

	if (b != TN_BLOCK_NONE && (tn_block_residency(reg, b, TN_TIER_HOST) == TN_PRESENT ||
				   tn_block_residency(reg, b, TN_TIER_DISK) == TN_PRESENT)) {
		item->state = TN_ITEM_EXISTING;
		item->block = *parent = b;
		op->result.existing++;
		tn_block_ref(reg, b); /* not to be evicted for the blocks behind it; until the end of begin */
		/* The longer of two times to live counts; 0 is for ever. */
		if (op->ttl_ns == 0)
			tn_watch_expire_at(cache, b, 0);
		tn_block_touch(cache, b, op->n - 1 - i, op->partial_last && i == op->n - 1);
		return;
	}
	describe_new(op, i, *parent, depth, &info);
	admit(op, i, &info);
	*parent = item->block;
	if (!item->admitted && cache->host && op->space->host_ok && take_record(op, i) == 0)
		*parent = TN_BLOCK_NONE; /* in host memory only: no parent in the disk's eyes */
	if (item->block != TN_BLOCK_NONE) {
		item->state = TN_ITEM_PLACE;
		op->unplaced++;
	} else {
		item->state = TN_ITEM_REJECTED;
		op->result.rejected++;
	}
}

static void begin(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	struct tn_registry *reg = cache->registry;
	tn_block parent = TN_BLOCK_NONE, first;
	uint32_t depth = 0;

	if (!tn_key_is_zero(&op->parent))
		parent = tn_registry_find_one(reg, op->space->index, &op->parent, true);
	first = parent;
	if (parent != TN_BLOCK_NONE)
		depth = tn_block_depth(reg, parent) + 1;
	tn_request_begins(cache, depth + op->n, depth, parent);
	for (uint32_t i = 0; i < op->n; i++)
		begin_item(op, i, &parent, depth + i);
	tn_request_ends(op);
	for (uint32_t i = 0; i < op->n; i++)
		if (op->items[i].state == TN_ITEM_EXISTING)
			tn_block_unpin(reg, op->items[i].block);
	if (first != TN_BLOCK_NONE) {
		tn_block_unpin(reg, first);
		tn_block_try_forget(cache, first);
	}
}

void tn_save_start(struct tn_cmd *cmd)
{
	struct tn_op *op = tn_container_of(cmd, struct tn_op, kick);

	if (!tn_op_kicked(op))
		return;
	if (op->active)
		return; /* the next step looks at what changed */
	op->active = true;
	op->cache->c.saves++;
	tn_list_push(&op->cache->saves, &op->link);
	op->held = __atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED);
	if (!op->held)
		begin(op);
}

/* ---- places ------------------------------------------------------------------------------------------- */

static bool host_place(struct tn_item *item)
{
	struct tn_op *op = item->op;

	if (op->flat || !op->cache->host || !op->space->host_ok)
		return false;
	item->host_slot = tn_host_slot_get(op->cache, op->space, TN_BLOCK_NONE);
	return item->host_slot != TN_HOST_NONE;
}

static void placed(struct tn_item *item)
{
	item->state = TN_ITEM_WRITE;
	item->op->unplaced--;
	item->op->unwritten++;
	item->op->copying += !on_disk(item);
}

/* Blocks of this space that its quota still lets onto the disk; makes room within the space if there is none. */
static uint32_t quota_room(struct tn_op *op, uint32_t want)
{
	struct tn_cache *cache = op->cache;
	uint64_t limit = __atomic_load_n(&op->space->quota.disk_bytes, __ATOMIC_RELAXED) / op->space->shape.slot_bytes;
	uint64_t coming = cache->space_disk_coming[op->space->index];
	uint64_t have = cache->space_disk_blocks[op->space->index] + coming;

	if (limit >= have + want)
		return want;
	tn_evict_disk(cache, (uint32_t)(have + want - limit), op->space->index);
	have = cache->space_disk_blocks[op->space->index] + coming;
	return limit > have ? (uint32_t)(limit - have < want ? limit - have : want) : 0;
}

static void no_places(struct tn_op *op, int status)
{
	for (uint32_t i = op->i; i < op->n; i++)
		if (op->items[i].state == TN_ITEM_PLACE)
			set_failed(&op->items[i], status);
}

static uint8_t device_of(const struct tn_cache *cache, tn_slot slot)
{
	struct tn_store_place place;

	tn_store_locate(cache->store, slot, &place);
	return (uint8_t)place.device;
}

/* Disk slots for the items from op->i on that wait for one; neighbours, as the store has them. */
static bool disk_places(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;
	uint32_t asked = op->unplaced < TN_PLACES_AT_ONCE ? op->unplaced : TN_PLACES_AT_ONCE, want, got, k = 0;
	uint32_t cls = op->space->disk_class;
	uint64_t free_now, coming, moving;

	if (!tn_store_writable(cache->store)) { /* evicting would not help */
		no_places(op, tn_fail(-EROFS, "no device takes writes now"));
		return true;
	}
	want = quota_room(op, asked);
	got = want ? tn_store_reserve(cache->store, cls, want, cache->slot_scratch) : 0;
	for (uint32_t i = op->i; i < op->n && k < got; i++) {
		if (op->items[i].state != TN_ITEM_PLACE)
			continue;
		op->items[i].slot = cache->slot_scratch[k++];
		op->items[i].device = device_of(cache, op->items[i].slot);
		cache->space_disk_coming[op->space->index]++;
		placed(&op->items[i]);
	}
	assert(k == got);
	if (got == want && want > 0)
		return true;
	/*
	 * Slots whose remove record is not durable yet come by themselves: only what they leave open is evicted, of blocks
	 * that leave a slot of this size. A segment that is being emptied for this size was the coldest: it is waited for.
	 */
	tn_store_free_slots(cache->store, cls, &free_now, &coming);
	moving = tn_store_moving(cache->store, cls);
	if (moving == 0 && coming < want - got && tn_evict_class(cache, want - got - (uint32_t)coming, cls) > 0)
		return true;
	if (got > 0 || coming + moving > 0)
		return got > 0;
	/* None of this size may go, so a segment of another size must. */
	if (want > 0 && tn_store_move(cache->store, cls))
		return false;
	/* Nothing to evict and nothing on its way: other operations hold the rest, or it is truly full. */
	if (want < asked)
		no_places(op, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: the space's quota of %llu bytes on disk is "
				      "taken by blocks that are pinned or on their way; raise disk_bytes of its quota", op->unplaced,
				      (unsigned long long)op->space->shape.slot_bytes,
				      (unsigned long long)__atomic_load_n(&op->space->quota.disk_bytes, __ATOMIC_RELAXED)));
	else
		no_places(op, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: everything is pinned or in use",
				      op->unplaced, (unsigned long long)op->space->shape.slot_bytes));
	return true;
}

static bool find_places(struct tn_op *op)
{
	bool busy = false;
	uint32_t for_disk = 0;

	if (op->unplaced == 0)
		return false;
	for (uint32_t i = op->i; i < op->n; i++) {
		struct tn_item *item = &op->items[i];

		if (item->state != TN_ITEM_PLACE)
			continue;
		if (host_place(item)) {
			placed(item);
			busy = true;
		} else if (item->admitted) {
			for_disk++;
		} else {
			item->state = TN_ITEM_REJECTED;
			op->unplaced--;
			op->result.rejected++;
			busy = true;
		}
	}
	if (for_disk)
		busy |= disk_places(op);
	return busy;
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

/* On disk. */
static uint64_t move_bytes(const struct tn_op *op, uint32_t chunk)
{
	return (uint64_t)tn_shape_chunk_count(&op->space->shape, chunk) * op->space->shape.padded_bytes;
}

static void save_move_done(struct tn_move *mv)
{
	struct tn_item *item = mv->owner;
	struct tn_op *op = item->op;

	op->inflight--;
	item->inflight--;
	item->done_chunks++;
	if (mv->kind == TN_MOVE_WRITE)
		tn_schedule_write_ended(op->cache, item->device, move_bytes(op, mv->chunk));
	if (mv->bounced)
		op->cache->c.bounced_objects += mv->count;
	if (mv->status && item->state == TN_ITEM_WRITE)
		set_failed(item, mv->status);
	if (item->state == TN_ITEM_WRITE && item->done_chunks == op->space->shape.chunks) {
		data_over(item);
		item->state = on_disk(item) ? TN_ITEM_HEADER : TN_ITEM_STORED;
	}
}

static void start_move(struct tn_item *item, uint32_t c)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	const struct tn_shape *s = &op->space->shape;
	struct tn_move *mv = tn_mover_get(cache->mover);

	assert(mv);
	mv->shape = s;
	mv->first = tn_shape_chunk_first(s, c);
	mv->count = tn_shape_chunk_count(s, c);
	mv->chunk = c;
	mv->owner = item;
	mv->done = save_move_done;
	tn_op_span(op, index_of(item), &mv->mem);
	if (!op->flat)
		mv->checks = item_checks(item) + mv->first;
	if (on_disk(item)) {
		mv->kind = TN_MOVE_WRITE;
		tn_store_locate(cache->store, item->slot, &mv->place);
	} else {
		mv->kind = TN_MOVE_COPY;
		mv->to.flat = tn_host_flat(cache->host, item->host_slot);
	}
	op->inflight++;
	item->inflight++;
	tn_mover_start(mv);
}

/* Reads come first: while loads are under way, writes get a quarter of the moves. */
static bool may_move(const struct tn_cache *cache)
{
	uint32_t left = tn_mover_free(cache->mover), reserve = cache->o.io_depth / 2;

	if (!tn_list_empty(&cache->loads))
		reserve += cache->o.io_depth;
	return left > reserve;
}

static bool write_chunks(struct tn_op *op)
{
	const struct tn_shape *s = &op->space->shape;
	uint32_t all = (1u << op->cache->o.ndirs) - 1, taken = 0; /* devices that take no write now */
	bool busy = false;

	for (uint32_t i = op->i; i < op->n && (taken != all || all == 0); i++) {
		struct tn_item *item = &op->items[i];

		while (item->state == TN_ITEM_WRITE && item->next_chunk < op->ready_chunks) {
			if (!may_move(op->cache))
				return busy;
			if (on_disk(item) && (taken >> item->device & 1 ||
					      !tn_schedule_write(op->cache, item->device, move_bytes(op, item->next_chunk)))) {
				taken |= 1u << item->device;
				break;
			}
			start_move(item, item->next_chunk++);
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
		set_failed(item, status);
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
		if (!tn_schedule_write(op->cache, device, (uint64_t)n * TN_STORE_HEADER_BYTES))
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

	if (on_disk(item))
		publish(item, b, parent_key(op, index_of(item)));
	else
		tn_block_arrives_in_host(op->cache, b, item->host_slot, item->admitted);
	op->result.stored++;
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

	describe_new(op, index_of(item), tn_block_parent(cache->registry, known), tn_block_depth(cache->registry, known),
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

static void becomes_visible(struct tn_item *item)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	tn_block b = item->block, known;

	/* Somebody else may have saved it meanwhile: theirs stays, and registering takes this record back. */
	known = tn_registry_find_one(cache->registry, op->space->index, &op->keys[index_of(item)], false);
	if (known != TN_BLOCK_NONE && cache->is_doomed[known] == TN_DOOM_DROPPED) {
		set_failed(item, tn_fail(-EBUSY, "block %u was dropped, and somebody still holds it", index_of(item)));
		withdraw(item);
		return;
	}
	if (known != TN_BLOCK_NONE && lies_nowhere(cache, known)) {
		take_over(item, known);
		return;
	}
	if (known != TN_BLOCK_NONE && item->admitted)
		tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
	if (tn_block_register(cache->registry, b, &item->block) != 0) {
		release_place(item);
		item->state = TN_ITEM_EXISTING;
		op->result.existing++;
		return;
	}
	tn_watch_expire_at(cache, b, op->ttl_ns);
	if (item->admitted) /* registering cleared it */
		tn_block_set_residency(cache->registry, b, TN_TIER_DISK, TN_FILLING);
	arrives(item, b);
}

static void count(struct tn_op *op)
{
	struct tn_counters *c = &op->cache->c;

	c->saved_blocks += op->result.stored;
	c->existing_blocks += op->result.existing;
	c->admission_rejected_blocks += op->result.rejected;
	c->save_failed_blocks += op->result.failed;
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
	if (!commit)
		op->result = (struct tn_save_result){0};
	count(op);
	tn_list_del(&op->link);
	op->active = false;
	tn_schedule_give_back(op->cache, op->admitted_bytes);
	tn_op_drained(op);
}

static void finish_offload(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;

	for (uint32_t i = 0; i < op->n; i++) {
		struct tn_item *item = &op->items[i];
		tn_block b = item->block;

		bool dropped = tn_block_residency(cache->registry, b, TN_TIER_HOST) != TN_PRESENT;

		cache->host_dirty[item->host_slot] = TN_DIRTY_NOT;
		cache->host_dirty_slots--;
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
			release_place(item);
			tn_disk_entry_del(cache, b, TN_POLICY_DROPPED);
		}
		tn_block_unpin(cache->registry, b);
		tn_block_try_forget(cache, b);
	}
	op->active = false;
	__atomic_sub_fetch(&op->space->ops, 1, __ATOMIC_RELEASE);
}

/* One step of a save or an offload; true if anything happened. */
bool tn_save_op_step(struct tn_op *op)
{
	bool busy = false, committed = op->kind == TN_OP_OFFLOAD || __atomic_load_n(&op->commit, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE) && !op->cancelled) {
		op->cancelled = true;
		busy = true;
	}
	if (op->held && !op->cancelled) {
		if (__atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED))
			return false;
		op->held = false;
		begin(op);
	}
	if (!op->cancelled) {
		busy |= find_places(op);
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
