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

void tn_item_release(struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	if (tn_item_on_disk(item)) {
		cache->space_disk_coming[item->w->op.space->index]--;
		if (item->error == -EIO)
			tn_store_fail_slot(cache->store, item->slot, true);
		else
			tn_store_unreserve(cache->store, item->slot);
		item->slot = TN_SLOT_NONE;
	}
	if (item->host_slot != TN_HOST_NONE && item->w->save) {
		tn_host_slot_put(cache, item->w->op.space, item->host_slot);
		item->host_slot = TN_HOST_NONE;
	}
}

void tn_item_data_over(struct tn_write_item *item)
{
	item->w->unwritten--;
	item->w->copying -= !tn_item_on_disk(item);
}

void tn_item_failed(struct tn_write_item *item, int status)
{
	struct tn_writing *w = item->w;

	if (item->state == TN_WRITE_PLACE)
		w->unplaced--;
	else if (item->state == TN_WRITE_DATA)
		tn_item_data_over(item);
	item->state = TN_WRITE_FAILED;
	item->saved = TN_SAVED_FAILED;
	item->error = status;
	if (!w->error)
		w->error = status;
	if (status == -EIO)
		w->op.cache->c.io_errors++;
	TN_TRACE2(save_failed, (uint32_t)(item - w->items), status);
}

static void placed(struct tn_write_item *item)
{
	item->state = TN_WRITE_DATA;
	item->w->unplaced--;
	item->w->unwritten++;
	item->w->copying += !tn_item_on_disk(item);
}

/* ---- slots that only transfers hold ---------------------------------------------------------------------- */

/*
 * A save or an offload that waits for no place and for no call of its user any more: of layers that were given at most for
 * their events.
 */
static bool only_writes(const struct tn_writing *w)
{
	if (!w->save)
		return w->unplaced == 0;
	return tn_op_is_cancelled(&w->op) || (tn_op_is_committed(&w->op) && w->unplaced == 0);
}

/* Adds to *writes the slots that the operation writes to; false if it may do so for long. */
static bool writes_pass(const struct tn_writing *w, tn_slot first, uint32_t n, uint32_t *writes)
{
	uint32_t before = *writes;

	for (uint32_t i = 0; i < w->op.n; i++)
		*writes += w->items[i].slot - first < n;
	return *writes == before || only_writes(w);
}

/* References that loads have on blocks in these slots, wherever they load them from. */
static uint64_t load_refs(const struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t refs = 0;

	for (const struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		const struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

		for (uint32_t i = 0; i < r->op.n; i++)
			refs += r->items[i].state != TN_READ_IDLE &&
				tn_block_slot(cache->registry, r->items[i].block, TN_TIER_DISK) - first < n;
	}
	return refs;
}

bool tn_slots_pass(struct tn_cache *cache, tn_slot first, uint32_t n)
{
	uint64_t loads = load_refs(cache, first, n), refs = 0;
	uint32_t writes = 0;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next)
		if (!writes_pass(tn_container_of(pos, struct tn_writing, op.link), first, n, &writes))
			return false;
	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].w.op.active && !writes_pass(&cache->offloads[i].w, first, n, &writes))
			return false;
	if (loads + writes == 0)
		return false;
	for (uint32_t k = 0; k < n && refs <= loads; k++) {
		tn_block b = tn_store_cookie(cache->store, first + k);

		refs += b == TN_BLOCK_NONE ? 0 : tn_block_refs(cache->registry, b);
	}
	return refs <= loads; /* each that is more is a lease's, or a look-up's on another thread */
}

/* ---- host memory -------------------------------------------------------------------------------------------- */

static bool host_place(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;

	if (!w->save || !w->op.cache->host || !w->op.space->host_ok)
		return false;
	item->host_slot = tn_host_slot_get(w->op.cache, w->op.space, TN_BLOCK_NONE);
	return item->host_slot != TN_HOST_NONE;
}

/* ---- disk ----------------------------------------------------------------------------------------------------- */

/* Blocks of this space that its quota still lets onto the disk; makes room within the space if there is none. */
static uint32_t quota_room(struct tn_writing *w, uint32_t want)
{
	struct tn_cache *cache = w->op.cache;
	uint64_t limit = __atomic_load_n(&w->op.space->quota.bytes[TN_TIER_DISK], __ATOMIC_RELAXED) / w->op.space->shape.slot_bytes;
	uint64_t coming = cache->space_disk_coming[w->op.space->index];
	uint64_t have = cache->space_disk_blocks[w->op.space->index] + coming;

	if (limit >= have + want)
		return want;
	tn_evict_disk(cache, (uint32_t)(have + want - limit), w->op.space->index);
	have = cache->space_disk_blocks[w->op.space->index] + coming;
	return limit > have ? (uint32_t)(limit - have < want ? limit - have : want) : 0;
}

static bool no_places(struct tn_writing *w, int status)
{
	for (uint32_t i = w->i; i < w->op.n; i++)
		if (w->items[i].state == TN_WRITE_PLACE)
			tn_item_failed(&w->items[i], status);
	return true;
}

static bool quota_is_full(struct tn_writing *w)
{
	return no_places(w, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: the space's quota of %llu bytes on disk is "
				     "taken by blocks that are pinned or on their way; raise the bytes of its quota", w->unplaced,
				     (unsigned long long)w->op.space->shape.slot_bytes,
				     (unsigned long long)__atomic_load_n(&w->op.space->quota.bytes[TN_TIER_DISK], __ATOMIC_RELAXED)));
}

static uint8_t device_of(const struct tn_cache *cache, tn_slot slot)
{
	struct tn_store_place place;

	tn_store_locate(cache->store, slot, &place);
	return (uint8_t)place.device;
}

/* Gives free slots to the first items that wait for one; neighbours, as the store has them. */
static uint32_t take_slots(struct tn_writing *w, uint32_t want)
{
	struct tn_cache *cache = w->op.cache;
	uint32_t got = tn_store_reserve(cache->store, w->op.space->disk_class, want, cache->slot_scratch), k = 0;

	for (uint32_t i = w->i; i < w->op.n && k < got; i++) {
		if (w->items[i].state != TN_WRITE_PLACE)
			continue;
		w->items[i].slot = cache->slot_scratch[k++];
		w->items[i].device = device_of(cache, w->items[i].slot);
		cache->space_disk_coming[w->op.space->index]++;
		placed(&w->items[i]);
	}
	assert(k == got);
	return got;
}

/* When to look again, whether transfers are still in the way. */
static uint64_t look_ns(const struct tn_writing *w)
{
	bool some_ended = w->ended != w->op.cache->ended;

	return w->again_ns - (some_ended ? TRANSFERS_AGAIN_NS - TRANSFERS_PAUSE_NS : 0);
}

/*
 * The oldest one's demand begins, whatever was tried for those before it; or once more, when transfers were in its way and some
 * have ended: then each segment is tried again, and what is of its own size.
 */
static void demand(struct tn_writing *w, uint64_t now_ns)
{
	if (w->demand != 0 && (w->again_ns == 0 || now_ns < look_ns(w)))
		return;
	w->demand = tn_store_demand(w->op.cache->store);
	w->again_ns = 0;
	w->own_gone = false;
}

/* Transfers are in its way, and it is too early to look again: the oldest one only takes what others have freed. */
static bool waits_still(const struct tn_writing *w, uint64_t now_ns)
{
	struct tn_cache *cache = w->op.cache;
	uint64_t free_now, coming;

	if (w->again_ns == 0 || now_ns >= look_ns(w))
		return false;
	tn_store_free_slots(cache->store, w->op.space->disk_class, &free_now, &coming);
	if (free_now + coming > 0)
		return false;
	if (look_ns(w) < cache->places_due_ns)
		cache->places_due_ns = look_ns(w);
	return true;
}

/* False: for long enough. */
static bool wait_for_transfers(struct tn_writing *w, uint64_t now_ns)
{
	struct tn_cache *cache = w->op.cache;
	uint64_t end_ns = w->stuck_ns + TRANSFERS_NS;

	if (now_ns >= end_ns)
		return false;
	if (w->again_ns == 0) {
		w->again_ns = now_ns + TRANSFERS_AGAIN_NS < end_ns ? now_ns + TRANSFERS_AGAIN_NS : end_ns;
		w->ended = cache->ended;
	}
	if (look_ns(w) < cache->places_due_ns)
		cache->places_due_ns = look_ns(w);
	return true;
}

/*
 * `missing` slots are not there. Slots whose remove record is not durable yet come by themselves: only what they leave
 * open is evicted, of blocks that leave a slot of this size. A segment that moves to this size is waited for instead.
 * `older`: somebody in front waits, too; the turn to move a segment is his. True if something happened.
 */
static bool free_a_segment(struct tn_writing *w, uint32_t missing, bool older)
{
	struct tn_cache *cache = w->op.cache;
	uint32_t cls = w->op.space->disk_class;
	uint64_t free_now, coming, moving, now = tn_now_ns(&cache->clock);
	enum tn_store_move move;

	if (w->stuck_ns == 0)
		w->stuck_ns = now;
	if (!older) {
		demand(w, now);
		tn_store_move(cache->store, cls, true, w->demand);
	}
	tn_store_free_slots(cache->store, cls, &free_now, &coming);
	moving = tn_store_moving(cache->store, cls);
	if (moving == 0 && coming < missing && !w->own_gone) {
		if (tn_evict_class(cache, missing - (uint32_t)coming, cls) > 0)
			return true;
		w->own_gone = true;
	}
	if (coming + moving > 0)
		w->stuck_ns = now; /* the second is for transfers, and for older ones that wait for them */
	if (coming + moving > 0 || older)
		return false;
	/* None of this size may go, so a segment of another size must. */
	move = tn_store_move(cache->store, cls, false, w->demand);
	if (move == TN_STORE_MOVE_COMES)
		w->stuck_ns = now;
	if (move == TN_STORE_MOVE_COMES || (move == TN_STORE_MOVE_PASSES && wait_for_transfers(w, now)))
		return false;
	return no_places(w, tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: everything is pinned or in use", w->unplaced,
				     (unsigned long long)w->op.space->shape.slot_bytes));
}

static bool disk_places(struct tn_writing *w, bool older)
{
	uint32_t asked = w->unplaced < TN_PLACES_AT_ONCE ? w->unplaced : TN_PLACES_AT_ONCE, want, got;

	if (!tn_store_writable(w->op.cache->store)) /* evicting would not help */
		return no_places(w, tn_fail(-EROFS, "no device takes writes now"));
	if (!older && waits_still(w, tn_now_ns(&w->op.cache->clock)))
		return false;
	want = quota_room(w, asked);
	if (want == 0)
		return quota_is_full(w);
	got = take_slots(w, want);
	if (got > 0) {
		w->demand = w->stuck_ns = 0;
		w->own_gone = false;
	}
	return got == want || free_a_segment(w, want - got, older) || got > 0;
}

/* True if anything happened. */
static bool find_places(struct tn_writing *w, bool older)
{
	bool busy = false;
	uint32_t for_disk = 0;

	for (uint32_t i = w->i; i < w->op.n; i++) {
		struct tn_write_item *item = &w->items[i];

		if (item->state != TN_WRITE_PLACE)
			continue;
		if (host_place(item)) {
			placed(item);
			busy = true;
		} else if (item->admitted) {
			for_disk++;
		} else {
			item->state = TN_WRITE_REJECTED;
			item->saved = TN_SAVED_REJECTED;
			w->unplaced--;
			busy = true;
		}
	}
	if (for_disk)
		busy |= disk_places(w, older);
	return busy;
}

/* ---- the queue -------------------------------------------------------------------------------------------------- */

void tn_places_join(struct tn_writing *w)
{
	w->demand = w->stuck_ns = 0;
	w->own_gone = false;
	if (w->unplaced > 0)
		tn_list_push(&w->op.cache->placing, &w->place_link);
}

void tn_places_leave(struct tn_writing *w)
{
	tn_list_del(&w->place_link);
}

bool tn_places_step(struct tn_cache *cache)
{
	struct tn_list *pos, *tmp;
	bool busy = false, older = false;

	cache->places_due_ns = TN_FOREVER;
	tn_list_for_each_safe(pos, tmp, &cache->placing) {
		struct tn_writing *w = tn_container_of(pos, struct tn_writing, place_link);

		if (w->save && tn_op_is_cancelled(&w->op))
			continue;
		busy |= find_places(w, older);
		if (w->unplaced == 0)
			tn_places_leave(w);
		else
			older = true;
	}
	return busy;
}
