/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places for the blocks of saves and offloads: host slots, or slots on disk. Owner thread only.
 *
 * Who finds none waits in one queue, saves and offloads alike, and is asked in its order, so that nobody overtakes
 * for ever. What is waited for is always one of these:
 *
 *	slots of the right size whose removal is not durable yet: a commit of the log brings them;
 *	a segment that moves to this size, or whose preparation stops: a commit, or one write;
 *	transfers that are all that keeps some segment from moving, and end by themselves: for a second at most;
 *	the turn to move a segment, which the oldest one in the queue has.
 *
 * The oldest one gets slots from these or fails with -ENOSPC at once, when there is nothing of its size to evict and no
 * segment that can go. No lease is waited for, and no other save that waits for its caller or for a place.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/trace.h"
#include "cache/cache_internal.h"

#define TRANSFERS_NS 1000000000ull
#define TRANSFERS_AGAIN_NS 10000000ull /* a long load lets go of one block after the other */
#define TRANSFERS_PAUSE_NS 1000000ull  /* looking costs: not for each of many short ones that end */

/* ---- what becomes of an item ------------------------------------------------------------------------------ */

void tn_item_release(struct tn_item *item)
{
	struct tn_cache *cache = item->op->cache;

	if (tn_item_on_disk(item)) {
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

void tn_item_data_over(struct tn_item *item)
{
	item->op->unwritten--;
	item->op->copying -= !tn_item_on_disk(item);
}

void tn_item_failed(struct tn_item *item, int status)
{
	struct tn_op *op = item->op;

	if (item->state == TN_ITEM_PLACE)
		op->unplaced--;
	else if (item->state == TN_ITEM_WRITE)
		tn_item_data_over(item);
	item->state = TN_ITEM_FAILED;
	item->saved = TN_SAVED_FAILED;
	item->error = status;
	if (!op->result.error)
		op->result.error = status;
	if (status == -EIO)
		op->cache->c.io_errors++;
	TN_TRACE2(save_failed, (uint32_t)(item - op->items), status);
}

static void placed(struct tn_item *item)
{
	item->state = TN_ITEM_WRITE;
	item->op->unplaced--;
	item->op->unwritten++;
	item->op->copying += !tn_item_on_disk(item);
}

/* ---- host memory -------------------------------------------------------------------------------------------- */

static bool host_place(struct tn_item *item)
{
	struct tn_op *op = item->op;

	if (op->flat || !op->cache->host || !op->space->host_ok)
		return false;
	item->host_slot = tn_host_slot_get(op->cache, op->space, TN_BLOCK_NONE);
	return item->host_slot != TN_HOST_NONE;
}

/* ---- disk ----------------------------------------------------------------------------------------------------- */

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

static bool no_places(struct tn_op *op, int status)
{
	for (uint32_t i = op->i; i < op->n; i++)
		if (op->items[i].state == TN_ITEM_PLACE)
			tn_item_failed(&op->items[i], status);
	return true;
}

static bool quota_is_full(struct tn_op *op)
{
	return no_places(op, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: the space's quota of %llu bytes on disk is "
				     "taken by blocks that are pinned or on their way; raise disk_bytes of its quota", op->unplaced,
				     (unsigned long long)op->space->shape.slot_bytes,
				     (unsigned long long)__atomic_load_n(&op->space->quota.disk_bytes, __ATOMIC_RELAXED)));
}

static uint8_t device_of(const struct tn_cache *cache, tn_slot slot)
{
	struct tn_store_place place;

	tn_store_locate(cache->store, slot, &place);
	return (uint8_t)place.device;
}

/* Gives free slots to the first items that wait for one; neighbours, as the store has them. */
static uint32_t take_slots(struct tn_op *op, uint32_t want)
{
	struct tn_cache *cache = op->cache;
	uint32_t got = tn_store_reserve(cache->store, op->space->disk_class, want, cache->slot_scratch), k = 0;

	for (uint32_t i = op->i; i < op->n && k < got; i++) {
		if (op->items[i].state != TN_ITEM_PLACE)
			continue;
		op->items[i].slot = cache->slot_scratch[k++];
		op->items[i].device = device_of(cache, op->items[i].slot);
		cache->space_disk_coming[op->space->index]++;
		placed(&op->items[i]);
	}
	assert(k == got);
	return got;
}

/* When to look again, whether transfers are still in the way. */
static uint64_t look_ns(const struct tn_op *op)
{
	bool some_ended = op->ended != op->cache->ended;

	return op->again_ns - (some_ended ? TRANSFERS_AGAIN_NS - TRANSFERS_PAUSE_NS : 0);
}

/*
 * The oldest one's demand begins, whatever was tried for those before it; or once more, when transfers were in its way and some
 * have ended: then each segment is tried again, and what is of its own size.
 */
static void demand(struct tn_op *op, uint64_t now_ns)
{
	if (op->demand != 0 && (op->again_ns == 0 || now_ns < look_ns(op)))
		return;
	op->demand = tn_store_demand(op->cache->store);
	op->again_ns = 0;
	op->own_gone = false;
}

/* Transfers are in its way, and it is too early to look again: the oldest one only takes what others have freed. */
static bool waits_still(const struct tn_op *op, uint64_t now_ns)
{
	struct tn_cache *cache = op->cache;
	uint64_t free_now, coming;

	if (op->again_ns == 0 || now_ns >= look_ns(op))
		return false;
	tn_store_free_slots(cache->store, op->space->disk_class, &free_now, &coming);
	if (free_now + coming > 0)
		return false;
	if (look_ns(op) < cache->places_due_ns)
		cache->places_due_ns = look_ns(op);
	return true;
}

/* False: for long enough. */
static bool wait_for_transfers(struct tn_op *op, uint64_t now_ns)
{
	struct tn_cache *cache = op->cache;
	uint64_t end_ns = op->stuck_ns + TRANSFERS_NS;

	if (now_ns >= end_ns)
		return false;
	if (op->again_ns == 0) {
		op->again_ns = now_ns + TRANSFERS_AGAIN_NS < end_ns ? now_ns + TRANSFERS_AGAIN_NS : end_ns;
		op->ended = cache->ended;
	}
	if (look_ns(op) < cache->places_due_ns)
		cache->places_due_ns = look_ns(op);
	return true;
}

/*
 * `missing` slots are not there. Slots whose remove record is not durable yet come by themselves: only what they leave
 * open is evicted, of blocks that leave a slot of this size. A segment that moves to this size is waited for instead.
 * `older`: somebody in front waits, too; the turn to move a segment is his. True if something happened.
 */
static bool make_room(struct tn_op *op, uint32_t missing, bool older)
{
	struct tn_cache *cache = op->cache;
	uint32_t cls = op->space->disk_class;
	uint64_t free_now, coming, moving, now = tn_now_ns(&cache->clock);
	enum tn_store_move move;

	if (op->stuck_ns == 0)
		op->stuck_ns = now;
	if (!older) {
		demand(op, now);
		tn_store_move(cache->store, cls, true, op->demand);
	}
	tn_store_free_slots(cache->store, cls, &free_now, &coming);
	moving = tn_store_moving(cache->store, cls);
	if (moving == 0 && coming < missing && !op->own_gone) {
		if (tn_evict_class(cache, missing - (uint32_t)coming, cls) > 0)
			return true;
		op->own_gone = true;
	}
	if (coming + moving > 0)
		op->stuck_ns = now; /* the second is for transfers, and for older ones that wait for them */
	if (coming + moving > 0 || older)
		return false;
	/* None of this size may go, so a segment of another size must. */
	move = tn_store_move(cache->store, cls, false, op->demand);
	if (move == TN_STORE_MOVE_COMES)
		op->stuck_ns = now;
	if (move == TN_STORE_MOVE_COMES || (move == TN_STORE_MOVE_PASSES && wait_for_transfers(op, now)))
		return false;
	return no_places(op, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: everything is pinned or in use", op->unplaced,
				     (unsigned long long)op->space->shape.slot_bytes));
}

static bool disk_places(struct tn_op *op, bool older)
{
	uint32_t asked = op->unplaced < TN_PLACES_AT_ONCE ? op->unplaced : TN_PLACES_AT_ONCE, want, got;

	if (!tn_store_writable(op->cache->store)) /* evicting would not help */
		return no_places(op, tn_fail(-EROFS, "no device takes writes now"));
	if (!older && waits_still(op, tn_now_ns(&op->cache->clock)))
		return false;
	want = quota_room(op, asked);
	if (want == 0)
		return quota_is_full(op);
	got = take_slots(op, want);
	if (got > 0) {
		op->demand = op->stuck_ns = 0;
		op->own_gone = false;
	}
	return got == want || make_room(op, want - got, older) || got > 0;
}

/* True if anything happened. */
static bool find_places(struct tn_op *op, bool older)
{
	bool busy = false;
	uint32_t for_disk = 0;

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
			item->saved = TN_SAVED_REJECTED;
			op->unplaced--;
			busy = true;
		}
	}
	if (for_disk)
		busy |= disk_places(op, older);
	return busy;
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

void tn_places_join(struct tn_op *op)
{
	op->demand = op->stuck_ns = 0;
	op->own_gone = false;
	if (op->unplaced > 0)
		tn_list_push(&op->cache->placing, &op->place_link);
}

void tn_places_leave(struct tn_op *op)
{
	tn_list_del(&op->place_link);
}

bool tn_places_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	bool busy = false, older = false;

	cache->places_due_ns = TN_FOREVER;
	tn_list_for_each_safe(pos, tmp, &cache->placing) {
		struct tn_op *op = tn_container_of(pos, struct tn_op, place_link);

		if (__atomic_load_n(&op->cancel, __ATOMIC_ACQUIRE))
			continue;
		busy |= find_places(op, older);
		if (op->unplaced == 0)
			tn_places_leave(op);
		else
			older = true;
	}
	return busy;
}
