/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/host.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "tier/slab.h"

#define BELOW (TN_TIER_HOST + 1) /* the first tier that blocks go down to */

/* A ring. A slot is in it once: one whose block was dropped and that waits again keeps its earlier place. */
struct queue {
	struct tn_host_waiting *place;
	uint32_t head, count;
	uint64_t tickets;
};

/* What there is of each slot besides the slab's own; made anew when the slab is cut. */
struct tables {
	uint8_t *queued; /* bit per tier that it is in the queue to */
	uint8_t *dirty[TN_TIERS_MAX]; /* enum tn_dirty */
	struct tn_host_waiting *place[TN_TIERS_MAX];
};

struct tn_host {
	struct tn_slab slab;
	struct tables t;
	struct queue queue[TN_TIERS_MAX];
	uint32_t dirty_slots, failed_slots;
	uint64_t dirty_bytes;
};

static struct tn_host *host_of(struct tn_tier_base *t)
{
	return (struct tn_host *)t;
}

static const struct tn_host *host_at(const struct tn_tier_base *t)
{
	return (const struct tn_host *)t;
}

static uint64_t stride_of(const struct tn_shape *s)
{
	uint64_t tail = ((uint64_t)s->layers * sizeof(uint64_t) + 4095) / 4096 * 4096;

	return s->slot_bytes + tail;
}

/* ---- the slots ------------------------------------------------------------------------------------------------ */

static void tables_put(const struct tn_host *h, struct tables *t, uint32_t slots)
{
	tn_put(h->slab.alloc, t->queued, slots);
	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		tn_put(h->slab.alloc, t->dirty[i], slots);
		tn_put(h->slab.alloc, t->place[i], tn_array_bytes(slots, sizeof(*t->place[i])));
	}
}

static int tables_get(const struct tn_host *h, struct tables *t, uint32_t slots)
{
	bool all;

	*t = (struct tables){.queued = tn_get(h->slab.alloc, slots)};
	all = t->queued;
	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		t->dirty[i] = tn_get(h->slab.alloc, slots);
		t->place[i] = tn_get(h->slab.alloc, tn_array_bytes(slots, sizeof(*t->place[i])));
		all = all && t->dirty[i] && t->place[i];
	}
	if (all)
		return 0;
	tables_put(h, t, slots);
	return tn_fail(-ENOMEM, "host tier: no memory for the queues of %u slots", slots);
}

/* Cuts the slab for this shape if need be; a failure changes nothing. 0, -ENOSPC (not one fits), -EFBIG (in use, and cut for smaller blocks), -ENOMEM. */
static int cut(struct tn_host *h, const struct tn_shape *shape)
{
	struct tables new;
	uint32_t slots, had;
	int rc = tn_slab_wants(&h->slab, stride_of(shape), &slots);

	if (rc || slots == 0)
		return rc;
	rc = tables_get(h, &new, slots);
	if (rc)
		return rc;
	had = h->slab.nslots;
	rc = tn_slab_cut(&h->slab, stride_of(shape), slots);
	tables_put(h, rc ? &new : &h->t, rc ? slots : had);
	if (rc)
		return rc;
	h->t = new;
	for (unsigned i = 0; i < TN_TIERS_MAX; i++) {
		h->queue[i].place = new.place[i];
		h->queue[i].head = h->queue[i].count = 0;
	}
	return 0;
}

uint32_t tn_host_slots(const struct tn_host *h)
{
	return h->slab.nslots;
}

uint32_t tn_host_used(const struct tn_host *h)
{
	return h->slab.used;
}

tn_block tn_host_block(const struct tn_host *h, uint32_t slot)
{
	return h->slab.block[slot];
}

/* ---- what waits to go down ------------------------------------------------------------------------------------ */

enum tn_dirty tn_host_dirty(const struct tn_host *h, uint32_t slot, enum tn_tier target)
{
	return h->t.dirty[target][slot];
}

uint32_t tn_host_dirty_slots(const struct tn_host *h)
{
	return h->dirty_slots;
}

uint64_t tn_host_dirty_bytes(const struct tn_host *h)
{
	return h->dirty_bytes;
}

uint32_t tn_host_failed_slots(const struct tn_host *h)
{
	return h->failed_slots;
}

void tn_host_wait(struct tn_host *h, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes, uint64_t now_ns)
{
	struct queue *q = &h->queue[target];

	if (!(h->t.queued[slot] & 1u << target)) {
		assert(q->count < h->slab.nslots);
		q->place[(q->head + q->count++) % h->slab.nslots] = (struct tn_host_waiting){now_ns, slot};
		q->tickets++;
		h->t.queued[slot] |= (uint8_t)(1u << target);
	}
	h->failed_slots -= h->t.dirty[target][slot] == TN_DIRTY_FAILED;
	h->t.dirty[target][slot] = (uint8_t)as;
	h->dirty_slots += bytes > 0;
	h->dirty_bytes += bytes;
}

void tn_host_moves(struct tn_host *h, uint32_t slot, enum tn_tier target)
{
	h->t.dirty[target][slot] = TN_DIRTY_MOVES;
}

void tn_host_settled(struct tn_host *h, uint32_t slot, enum tn_tier target, enum tn_dirty as, uint64_t bytes)
{
	h->failed_slots -= h->t.dirty[target][slot] == TN_DIRTY_FAILED;
	h->failed_slots += as == TN_DIRTY_FAILED;
	h->t.dirty[target][slot] = (uint8_t)as;
	h->dirty_slots -= bytes > 0;
	h->dirty_bytes -= bytes;
}

const struct tn_host_waiting *tn_host_first(const struct tn_host *h, enum tn_tier target)
{
	const struct queue *q = &h->queue[target];

	return q->count > 0 ? &q->place[q->head] : NULL;
}

void tn_host_pop(struct tn_host *h, enum tn_tier target)
{
	struct queue *q = &h->queue[target];

	h->t.queued[q->place[q->head].slot] &= (uint8_t)~(1u << target);
	q->head = (q->head + 1) % h->slab.nslots;
	q->count--;
}

uint32_t tn_host_queued(const struct tn_host *h, enum tn_tier target)
{
	return h->queue[target].count;
}

uint64_t tn_host_tickets(const struct tn_host *h, enum tn_tier target)
{
	return h->queue[target].tickets;
}

/* ---- the tier --------------------------------------------------------------------------------------------------- */

static int space(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls)
{
	int rc = cut(host_of(t), shape);

	*cls = rc ? TN_CLASS_NONE : 0;
	return rc;
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how)
{
	struct tn_host *h = host_of(t);

	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		h->failed_slots -= h->t.dirty[i][slot] == TN_DIRTY_FAILED;
		h->t.dirty[i][slot] = TN_DIRTY_NOT;
	}
	tn_slab_drain(t, b, slot, how);
}

static bool evict(const struct tn_tier_base *t, tn_block b, uint32_t slot, const uint32_t *cls)
{
	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		enum tn_dirty dirty = host_at(t)->t.dirty[i][slot];

		if (dirty == TN_DIRTY_WAITS || dirty == TN_DIRTY_MOVES)
			return false;
	}
	return true;
}

static uint64_t offset(const struct tn_tier_base *t, uint32_t slot, const struct tn_shape *shape, uint64_t **checks)
{
	const struct tn_slab *s = tn_slab_at(t);
	uint64_t at = tn_slab_offset(s, slot);

	if (checks)
		*checks = (uint64_t *)(void *)(s->range.address + at + shape->slot_bytes);
	return at;
}

static void destroy(struct tn_tier_base *t)
{
	struct tn_host *h = host_of(t);
	const struct tn_alloc *a = h->slab.alloc;

	tables_put(h, &h->t, h->slab.nslots);
	tn_slab_fini(&h->slab);
	tn_put(a, h->slab.range.address, h->slab.bytes);
	tn_put(a, h, sizeof(*h));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "host",
	.traits = {.reach = TN_REACH_MEMORY, .saves = true, .promotes = true, .entry_by_slot = true},
	.space = space,
	.place = tn_slab_place,
	.release = tn_slab_release,
	.fill = tn_slab_fill,
	.drain = drain,
	.evict = evict,
	.capacity = tn_slab_capacity,
	.offset = offset,
	.destroy = destroy,
};

int tn_host_create(uint64_t bytes, uint64_t seed, const struct tn_alloc *alloc, struct tn_host **out)
{
	struct tn_host *h = tn_get(alloc, sizeof(*h));
	void *memory;

	if (!h)
		return tn_fail(-ENOMEM, "host tier: no memory");
	h->slab.base.ops = &ops;
	h->slab.base.tier = TN_TIER_HOST;
	h->slab.alloc = alloc;
	h->slab.policy = "lru";
	h->slab.seed = seed;
	/* At least 2 MiB, so that the slab comes page-aligned. */
	h->slab.bytes = bytes < (2u << 20) ? 2u << 20 : bytes;
	memory = tn_get(alloc, h->slab.bytes);
	if (!memory) {
		tn_put(alloc, h, sizeof(*h));
		return tn_fail(-ENOMEM, "host tier: no memory for %llu bytes; lower host_bytes",
			       (unsigned long long)bytes);
	}
	tn_slab_init(&h->slab, memory);
	*out = h;
	return 0;
}

struct tn_tier_base *tn_host_tier(struct tn_host *h)
{
	return &h->slab.base;
}
