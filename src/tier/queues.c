/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/queues.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

void tn_queues_init(struct tn_queues *q, enum tn_tier below, const struct tn_alloc *alloc)
{
	*q = (struct tn_queues){.alloc = alloc, .below = below};
}

void tn_queues_fini(struct tn_queues *q)
{
	tn_put(q->alloc, q->queued, q->slots);
	for (unsigned i = q->below; i < TN_TIERS_MAX; i++) {
		tn_put(q->alloc, q->to[i].dirty, q->slots);
		tn_put(q->alloc, q->to[i].place, tn_array_bytes(q->slots, sizeof(*q->to[i].place)));
	}
}

/* Tables for so many slots; all else is the old ones'. */
static int get_tables(const struct tn_queues *q, uint32_t slots, struct tn_queues *new)
{
	bool all;

	*new = *q;
	new->slots = slots;
	new->queued = tn_get(q->alloc, slots);
	all = new->queued;
	for (unsigned i = q->below; i < TN_TIERS_MAX; i++) {
		new->to[i].dirty = tn_get(q->alloc, slots);
		new->to[i].place = tn_get(q->alloc, tn_array_bytes(slots, sizeof(*new->to[i].place)));
		all = all && new->to[i].dirty && new->to[i].place;
	}
	if (all)
		return 0;
	tn_queues_fini(new);
	return tn_fail(-ENOMEM, "no memory for the queues of %u slots", slots);
}

int tn_queues_fit(struct tn_queues *q, uint32_t slots)
{
	struct tn_queues new;

	if (slots > q->slots) {
		if (get_tables(q, slots, &new))
			return -ENOMEM;
		tn_queues_fini(q);
		*q = new;
	}
	for (unsigned i = q->below; i < TN_TIERS_MAX; i++)
		q->to[i].head = q->to[i].count = 0;
	memset(q->queued, 0, q->slots);
	return 0;
}

void tn_queues_wait(struct tn_queues *q, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes, uint64_t now_ns)
{
	struct tn_queue *to = &q->to[target];

	if (!(q->queued[slot] & 1u << target)) {
		assert(to->count < q->slots);
		to->place[(to->head + to->count++) % q->slots] = (struct tn_waiting){now_ns, slot};
		to->tickets++;
		q->queued[slot] |= (uint8_t)(1u << target);
	}
	q->failed_slots -= to->dirty[slot] == TN_DIRTY_FAILED;
	to->dirty[slot] = (uint8_t)as;
	q->dirty_slots += bytes > 0;
	q->dirty_bytes += bytes;
}

void tn_queues_moves(struct tn_queues *q, uint32_t slot, enum tn_tier target)
{
	q->to[target].dirty[slot] = TN_DIRTY_MOVES;
}

void tn_queues_settled(struct tn_queues *q, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes)
{
	uint8_t *dirty = &q->to[target].dirty[slot];

	q->failed_slots -= *dirty == TN_DIRTY_FAILED;
	q->failed_slots += as == TN_DIRTY_FAILED;
	*dirty = (uint8_t)as;
	q->dirty_slots -= bytes > 0;
	q->dirty_bytes -= bytes;
}

void tn_queues_leave(struct tn_queues *q, uint32_t slot)
{
	for (unsigned i = q->below; i < TN_TIERS_MAX; i++) {
		q->failed_slots -= q->to[i].dirty[slot] == TN_DIRTY_FAILED;
		q->to[i].dirty[slot] = TN_DIRTY_NOT;
	}
}

bool tn_queues_keep(const struct tn_queues *q, uint32_t slot)
{
	for (unsigned i = q->below; i < TN_TIERS_MAX; i++)
		if (q->to[i].dirty[slot] == TN_DIRTY_WAITS || q->to[i].dirty[slot] == TN_DIRTY_MOVES)
			return true;
	return false;
}

void tn_queues_pop(struct tn_queues *q, enum tn_tier target)
{
	struct tn_queue *to = &q->to[target];

	q->queued[to->place[to->head].slot] &= (uint8_t)~(1u << target);
	to->head = (to->head + 1) % q->slots;
	to->count--;
}
