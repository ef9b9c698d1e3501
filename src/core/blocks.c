/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks and the row of tiers: what all tiers are told of requests, what the core does when a block arrives or leaves, and
 * blocks that go when nobody holds them any more. Owner thread only, but for tn_doomed_unpinned.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define DOOMED_PER_STEP 64u
#define DOOMED_EVERY_NS 1000000000ull /* a look-up on another thread that held one for a moment does not tell */

int tn_blocks_create(struct tn_blocks *bl, bool disks)
{
	bl->doomed = tn_get(bl->alloc, tn_array_bytes(bl->max, sizeof(tn_block)));
	bl->is_doomed = tn_get(bl->alloc, bl->max);
	bl->unread = tn_get(bl->alloc, bl->max / 8u + 1);
	bl->unsure = tn_get(bl->alloc, bl->max / 8u + 1);
	if (disks)
		bl->recency = tn_get(bl->alloc, tn_array_bytes(bl->max, sizeof(*bl->recency)));
	return tn_shares_create(&bl->shares, bl->max, bl->alloc) == 0 && bl->doomed && bl->is_doomed && bl->unread && bl->unsure && (bl->recency || !disks)
		       ? 0
		       : tn_fail(-ENOMEM, "no memory for the tables of %u blocks", bl->max);
}

void tn_blocks_destroy(struct tn_blocks *bl)
{
	if (!bl->alloc) /* it did not come to create */
		return;
	tn_shares_destroy(&bl->shares);
	tn_put(bl->alloc, bl->doomed, tn_array_bytes(bl->max, sizeof(tn_block)));
	tn_put(bl->alloc, bl->is_doomed, bl->max);
	tn_put(bl->alloc, bl->unread, bl->max / 8u + 1);
	tn_put(bl->alloc, bl->unsure, bl->max / 8u + 1);
	tn_put(bl->alloc, bl->recency, tn_array_bytes(bl->max, sizeof(*bl->recency)));
}

/* ---- requests --------------------------------------------------------------------------------------------- */

void tn_request_begins(struct tn_blocks *bl, tn_block parent)
{
	struct tn_policy_block info = {.key_hash = 0};

	bl->tick++;
	for_each_tier(t, bl->row) {
		if (parent != TN_BLOCK_NONE)
			tn_block_describe(t, parent, false, &info);
		tn_tier_request(t, parent, info.key_hash);
	}
}

/* For the index on disk; a request counts once, however often the policy wants to hear of it. */
static void used_now(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b)
{
	if (!t->ops->used || bl->recency[b] == bl->tick || tn_tier_residency(t, b) == TN_ABSENT)
		return;
	bl->recency[b] = bl->tick;
	bl->space_recency[tn_block_space(bl->registry, b)] = bl->tick;
	if (tn_tier_has(t, b))
		t->ops->used(t, tn_tier_place_of(t, b), bl->tick);
}

void tn_block_touch(struct tn_blocks *bl, tn_block b, bool partial)
{
	struct tn_policy_block info;

	for_each_tier(t, bl->row) {
		tn_block_describe(t, b, partial, &info);
		tn_tier_touch(t, b, &info);
		used_now(bl, t, b);
	}
}

static bool goes_back(const struct tn_tier_base *t)
{
	return t->policy && !t->policy->ops->forward;
}

bool tn_request_goes_back(const struct tn_blocks *bl)
{
	for_each_tier(t, bl->row)
		if (goes_back(t))
			return true;
	return false;
}

/*
 * For policies that go by recency alone: the blocks of the request and those before them, last block first, so
 * that the first block ends up the most recent - it is needed by all the others.
 */
void tn_block_touch_back(struct tn_blocks *bl, tn_block b)
{
	struct tn_policy_block info;

	for_each_tier(t, bl->row) {
		if (!goes_back(t))
			continue;
		tn_block_describe(t, b, false, &info);
		tn_tier_touch(t, b, &info);
		used_now(bl, t, b);
	}
}

void tn_chain_touch_back(struct tn_blocks *bl, tn_block last, uint32_t most)
{
	if (!tn_request_goes_back(bl))
		return;
	for (tn_block b = last; b != TN_BLOCK_NONE && most > 0; b = tn_block_parent(bl->registry, b), most--)
		tn_block_touch_back(bl, b);
}

void tn_block_let_in(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b, const struct tn_policy_block *info)
{
	tn_tier_insert(t, b, info);
	if (t->ops->used)
		bl->recency[b] = bl->tick;
}

void tn_block_arrives(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b, uint32_t place, const struct tn_index_entry *entry)
{
	tn_tier_arrive(t, b, place, entry, tn_block_is_dropped(bl, b));
	if (t->ops->traits.durable)
		bl->unread[b / 8u] |= (uint8_t)(1u << b % 8u);
	tn_watch_raise(bl->watch, b, t->tier, TN_EVENT_STORED);
}

void tn_block_registered(struct tn_blocks *bl, uint16_t space)
{
	bl->space_records[space]++;
	bl->space_recency[space] = bl->tick;
}

void tn_block_read_back(struct tn_blocks *bl, tn_block b)
{
	uint8_t bit = (uint8_t)(1u << b % 8u);

	if (bl->unread[b / 8u] & bit)
		bl->c->blocks_read_back++;
	bl->unread[b / 8u] &= (uint8_t)~bit;
}

void tn_block_set_unsure(struct tn_blocks *bl, tn_block b, bool unsure)
{
	uint8_t bit = (uint8_t)(1u << b % 8u);

	bl->unsure[b / 8u] = (uint8_t)(unsure ? bl->unsure[b / 8u] | bit : bl->unsure[b / 8u] & ~bit);
}

bool tn_block_is_unsure(const struct tn_blocks *bl, tn_block b)
{
	return bl->unsure[b / 8u] >> b % 8u & 1;
}

/* ---- where a block lies -------------------------------------------------------------------------------------- */

static bool failed_in_memory(const struct tn_blocks *bl, tn_block b)
{
	return bl->row->queues && tn_tier_has(bl->row->memory, b) &&
	       tn_queues_state(bl->row->queues, tn_tier_place_of(bl->row->memory, b), bl->row->durable->tier) == TN_DIRTY_FAILED;
}

bool tn_block_is_kept(const struct tn_blocks *bl, tn_block b)
{
	enum tn_residency r;

	if (!bl->row->durable)
		return false;
	r = tn_tier_residency(bl->row->durable, b);
	return r == TN_PRESENT || r == TN_FILLING || failed_in_memory(bl, b);
}

bool tn_block_is_local(const struct tn_blocks *bl, tn_block b)
{
	return (bl->row->memory && tn_tier_has(bl->row->memory, b)) || (bl->row->durable && tn_tier_has(bl->row->durable, b));
}

bool tn_block_lies_nowhere(const struct tn_blocks *bl, tn_block b)
{
	for_each_tier(t, bl->row) {
		enum tn_residency r = tn_tier_residency(t, b);

		if (r == TN_PRESENT || (r != TN_ABSENT && !t->ops->traits.entry_by_slot))
			return false;
	}
	return true;
}

/* ---- what tiers tell -------------------------------------------------------------------------------------------- */

/* A block that leaves the memory tier does not go further down: its places in the queues are skipped. */
static void leaves_memory(struct tn_blocks *bl, tn_block b, uint32_t slot, enum tn_leave how)
{
	for_each_tier(t, bl->row) {
		enum tn_dirty dirty = t->ops->traits.offloads ? tn_queues_state(bl->row->queues, slot, t->tier) : TN_DIRTY_NOT;

		if (dirty == TN_DIRTY_FAILED && how == TN_LEAVE_EVICTED) {
			bl->dirty->lost = bl->dirty->error;
			bl->c->offload_lost_blocks++;
		}
		if (dirty == TN_DIRTY_NOT || dirty == TN_DIRTY_FAILED)
			continue;
		tn_dirty_settled(bl->dirty, slot, t, TN_DIRTY_NOT);
		tn_tier_remove(t, b);
	}
}

static void leaves(void *arg, struct tn_tier_base *t, tn_block b, uint32_t place, enum tn_leave how)
{
	struct tn_blocks *bl = arg;

	tn_watch_raise(bl->watch, b, t->tier, TN_EVENT_REMOVED);
	if (t->ops->traits.durable)
		bl->unread[b / 8u] &= (uint8_t)~(1u << b % 8u);
	if (t == bl->row->memory)
		leaves_memory(bl, b, place, how);
}

static void evicted(void *arg, struct tn_tier_base *t, tn_block b)
{
	tn_block_try_forget(arg, b);
}

bool tn_block_is_dropped(const struct tn_blocks *bl, tn_block b)
{
	return bl->is_doomed[b] == TN_DOOM_DROPPED;
}

static bool dropped(void *arg, tn_block b)
{
	return tn_block_is_dropped(arg, b);
}

static bool dropping(void *arg)
{
	return ((const struct tn_blocks *)arg)->doomed_count > 0;
}

static void quits(void *arg, struct tn_tier_base *t, tn_block b)
{
	tn_block_quits(arg, t, b);
}

static void lost(void *arg, struct tn_tier_base *t, tn_block b)
{
	tn_block_doom(arg, b);
}

static void found(void *arg, struct tn_tier_base *t, tn_block b)
{
	struct tn_blocks *bl = arg;

	bl->tick = bl->recency[b];
	tn_block_registered(bl, tn_block_space(bl->registry, b));
}

static bool expires(void *arg, tn_block b)
{
	return tn_watch_expires(((const struct tn_blocks *)arg)->watch, b);
}

void tn_tier_joins(struct tn_blocks *bl, struct tn_tier_base *t)
{
	struct tn_row *row = bl->row;

	bl->tier_watch = (struct tn_tier_watch){leaves, evicted, dropped, dropping, quits, lost, found, expires, bl};
	t->watch = &bl->tier_watch;
	t->registry = bl->registry;
	t->next_share = bl->shares.next;
	t->first_share = bl->shares.first;
	t->recency = t->ops->traits.durable ? bl->recency : NULL;
	row->tier[t->tier] = t;
	for (unsigned i = 0, k = 0; i < TN_TIERS_MAX; i++)
		if (row->tier[i])
			row->best_first[k++] = row->tier[i];
	if (t->ops->traits.promotes) {
		row->memory = t;
		row->queues = t->queues;
	}
	if (t->ops->traits.durable)
		row->durable = t;
	if (t->ops->drives)
		row->drives = t;
	if (t->ops->serves)
		row->near = t;
}

/* ---- blocks that go when nobody holds them any more ---------------------------------------------------------- */

static void enter_ring(struct tn_blocks *bl, tn_block b, enum tn_doom why)
{
	assert(bl->doomed_count < bl->max && bl->is_doomed[b] == TN_DOOM_NOT);
	__atomic_store_n(&bl->is_doomed[b], (uint8_t)why, __ATOMIC_SEQ_CST);
	__atomic_store_n(&bl->doomed_look, 1, __ATOMIC_RELAXED);
	bl->doomed[(bl->doomed_head + bl->doomed_count++) % bl->max] = b;
}

static bool forget(struct tn_blocks *bl, tn_block b)
{
	uint16_t space = tn_block_space(bl->registry, b);

	if (tn_block_forget(bl->registry, b))
		return false;
	bl->space_records[space]--;
	return true;
}

static bool absent(const struct tn_blocks *bl, tn_block b)
{
	for_each_tier(t, bl->row)
		if (tn_tier_residency(t, b) != TN_ABSENT)
			return false;
	return true;
}

/*
 * A block that lies nowhere any more gives its record back; later, if somebody holds it - a lease, or for a
 * moment a look-up on another thread.
 */
void tn_block_try_forget(struct tn_blocks *bl, tn_block b)
{
	if (bl->is_doomed[b] != TN_DOOM_NOT)
		__atomic_store_n(&bl->doomed_look, 1, __ATOMIC_RELAXED); /* perhaps it was the last who held it */
	else if (tn_block_state(bl->registry, b) == TN_BLOCK_REGISTERED && absent(bl, b) && !forget(bl, b))
		enter_ring(bl, b, TN_DOOM_NOWHERE);
}

void tn_block_release(struct tn_blocks *bl, tn_block b)
{
	tn_block_unpin(bl->registry, b);
	tn_block_try_forget(bl, b);
}

/* A block is in the ring once, and until it leaves it its record stays its own, whatever becomes of its places. */
void tn_block_doom(struct tn_blocks *bl, tn_block b)
{
	bool draining = false;

	for_each_tier(t, bl->row) {
		if (tn_tier_has(t, b))
			tn_block_set_residency(bl->registry, b, t->tier, TN_DRAINING);
		draining |= tn_tier_residency(t, b) == TN_DRAINING;
	}
	if (!draining)
		return;
	if (bl->is_doomed[b] == TN_DOOM_NOT)
		enter_ring(bl, b, TN_DOOM_DROPPED);
	__atomic_store_n(&bl->is_doomed[b], TN_DOOM_DROPPED, __ATOMIC_RELAXED);
}

void tn_block_quits(struct tn_blocks *bl, struct tn_tier_base *t, tn_block b)
{
	if (!tn_tier_has(t, b))
		return;
	tn_block_set_residency(bl->registry, b, t->tier, TN_DRAINING);
	if (bl->is_doomed[b] == TN_DOOM_NOT)
		enter_ring(bl, b, TN_DOOM_NOWHERE);
}

static bool bury(struct tn_blocks *bl, tn_block b, bool held_too)
{
	bool was_dropped;

	if (tn_block_refs(bl->registry, b) > 0 && !held_too)
		return false;
	was_dropped = bl->is_doomed[b] == TN_DOOM_DROPPED;
	__atomic_store_n(&bl->is_doomed[b], TN_DOOM_NOT, __ATOMIC_RELAXED);
	for_each_tier(t, bl->row)
		if (tn_tier_residency(t, b) == TN_DRAINING)
			tn_tier_leave(t, b, TN_LEAVE_DROPPED);
	/* Not before: until it has left, its record on disk must say that it has a time to live. */
	if (was_dropped)
		tn_watch_expire_at(bl->watch, b, 0);
	tn_block_try_forget(bl, b);
	bl->c->dropped_blocks += was_dropped;
	return true;
}

/* At the end of the cache: nothing of what was dropped may be there at the next opening, whoever holds it. */
void tn_doomed_end(struct tn_blocks *bl)
{
	/* Once round: a record that somebody still holds comes back to the ring, but lies nowhere any more. */
	for (uint32_t k = bl->doomed_count; k > 0; k--) {
		tn_block b = bl->doomed[bl->doomed_head];

		bl->doomed_head = (bl->doomed_head + 1) % bl->max;
		bl->doomed_count--;
		bury(bl, b, true);
	}
}

void tn_doomed_unpinned(struct tn_blocks *bl, tn_block b)
{
	if (__atomic_load_n(&bl->is_doomed[b], __ATOMIC_SEQ_CST) == TN_DOOM_NOT)
		return;
	if (__atomic_exchange_n(&bl->doomed_look, 1, __ATOMIC_SEQ_CST) == 0)
		tn_io_wake(bl->io);
}

/* Goes round all of them, some in each step, when one was let go of: those in front may be held for long. */
bool tn_doomed_step(struct tn_blocks *bl, uint64_t now_ns, uint64_t *due_ns)
{
	bool look = __atomic_load_n(&bl->doomed_look, __ATOMIC_RELAXED) || bl->doomed_due_ns <= now_ns;

	*due_ns = TN_FOREVER;
	if (bl->doomed_count == 0)
		return false;
	if (look) {
		__atomic_exchange_n(&bl->doomed_look, 0, __ATOMIC_SEQ_CST); /* before the references are read */
		bl->doomed_round = bl->doomed_count;
		bl->doomed_due_ns = now_ns + DOOMED_EVERY_NS;
	}
	*due_ns = bl->doomed_due_ns;
	look = bl->doomed_round > 0;
	for (uint32_t k = 0; k < DOOMED_PER_STEP && bl->doomed_round > 0; k++) {
		tn_block b = bl->doomed[bl->doomed_head];

		bl->doomed_head = (bl->doomed_head + 1) % bl->max;
		bl->doomed_count--;
		bl->doomed_round--;
		if (!bury(bl, b, false)) {
			bl->doomed[(bl->doomed_head + bl->doomed_count) % bl->max] = b;
			bl->doomed_count++;
		}
	}
	return look;
}
