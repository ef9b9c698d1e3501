/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/host.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

#define BELOW (TN_TIER_HOST + 1) /* the first tier that blocks go down to */

/* A ring. A slot is in it once: one whose block was dropped and that waits again keeps its earlier place. */
struct queue {
	struct tn_host_waiting *place;
	uint32_t head, count;
	uint64_t tickets;
};

/* What there is of each slot; made anew when the slab is cut. */
struct tables {
	tn_block *block;
	uint32_t *free_slot; /* stack */
	uint8_t *queued;     /* bit per tier that it is in the queue to */
	uint8_t *dirty[TN_TIERS_MAX]; /* enum tn_dirty */
	struct tn_host_waiting *place[TN_TIERS_MAX];
	struct tn_policy *policy;
};

struct tn_host {
	struct tn_tier_base base;
	const struct tn_alloc *alloc;
	uint64_t seed;
	unsigned char *slab;
	struct tn_mapping memory; /* the slab's */
	struct tn_mapped_range range;
	uint64_t bytes, stride;
	uint32_t nslots, used;
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

/* ---- the slab ------------------------------------------------------------------------------------------------- */

static void tables_put(const struct tn_host *h, struct tables *t, uint32_t slots)
{
	if (t->policy)
		t->policy->ops->destroy(t->policy);
	tn_put(h->alloc, t->block, tn_array_bytes(slots, sizeof(*t->block)));
	tn_put(h->alloc, t->free_slot, tn_array_bytes(slots, sizeof(*t->free_slot)));
	tn_put(h->alloc, t->queued, slots);
	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		tn_put(h->alloc, t->dirty[i], slots);
		tn_put(h->alloc, t->place[i], tn_array_bytes(slots, sizeof(*t->place[i])));
	}
}

static int tables_get(const struct tn_host *h, struct tables *t, uint32_t slots)
{
	struct tn_policy_opts po = {.alloc = h->alloc, .seed = h->seed, .capacity = slots};
	const struct tn_policy_ops *lru;
	int rc = tn_policy_find("lru", &lru);
	bool all;

	*t = (struct tables){
		.block = tn_get(h->alloc, tn_array_bytes(slots, sizeof(*t->block))),
		.free_slot = tn_get(h->alloc, tn_array_bytes(slots, sizeof(*t->free_slot))),
		.queued = tn_get(h->alloc, slots),
	};
	all = t->block && t->free_slot && t->queued;
	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		t->dirty[i] = tn_get(h->alloc, slots);
		t->place[i] = tn_get(h->alloc, tn_array_bytes(slots, sizeof(*t->place[i])));
		all = all && t->dirty[i] && t->place[i];
	}
	if (rc == 0)
		rc = all ? lru->create(&po, &t->policy) : tn_fail(-ENOMEM, "host tier: no memory for the tables of %u slots", slots);
	if (rc)
		tables_put(h, t, slots);
	return rc;
}

/* Cuts the slab for this shape if need be. 0, -ENOSPC (not one fits), -EFBIG (in use, and cut for smaller blocks), -ENOMEM. */
static int cut(struct tn_host *h, const struct tn_shape *shape)
{
	uint64_t stride = stride_of(shape), n = h->bytes / stride;
	struct tables new;
	int rc;

	if (stride <= h->stride)
		return 0;
	if (h->used)
		return tn_fail(-EFBIG, "host tier: in use and cut for blocks of %llu bytes, this space has %llu; open the "
			       "space with the largest blocks first",
			       (unsigned long long)h->stride, (unsigned long long)stride);
	if (n == 0)
		return tn_fail(-ENOSPC, "host tier: %llu bytes hold no block of %llu", (unsigned long long)h->bytes,
			       (unsigned long long)stride);
	n = n < TN_HOST_NONE ? n : TN_HOST_NONE - 1;
	rc = tables_get(h, &new, (uint32_t)n); /* a failure changes nothing */
	if (rc)
		return rc;
	tables_put(h, &h->t, h->nslots);
	h->t = new;
	h->nslots = (uint32_t)n;
	h->stride = stride;
	h->base.policy = new.policy;
	h->base.block_of = new.block;
	for (uint32_t i = 0; i < h->nslots; i++)
		new.free_slot[i] = h->nslots - 1 - i;
	for (unsigned i = 0; i < TN_TIERS_MAX; i++) {
		h->queue[i].place = new.place[i];
		h->queue[i].head = h->queue[i].count = 0;
	}
	return 0;
}

uint32_t tn_host_slots(const struct tn_host *h)
{
	return h->nslots;
}

uint32_t tn_host_used(const struct tn_host *h)
{
	return h->used;
}

tn_block tn_host_block(const struct tn_host *h, uint32_t slot)
{
	return h->t.block[slot];
}

static bool take(struct tn_host *h, uint32_t *slot)
{
	if (h->used == h->nslots)
		return false;
	*slot = h->t.free_slot[h->nslots - 1 - h->used];
	h->used++;
	h->t.block[*slot] = TN_BLOCK_NONE;
	return true;
}

static void put(struct tn_host *h, uint32_t slot)
{
	assert(h->used > 0 && slot < h->nslots);
	h->used--;
	h->t.free_slot[h->nslots - 1 - h->used] = slot;
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
		assert(q->count < h->nslots);
		q->place[(q->head + q->count++) % h->nslots] = (struct tn_host_waiting){now_ns, slot};
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
	q->head = (q->head + 1) % h->nslots;
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

/* One at a time, and at once or not at all: what is pinned, or still to go down, is not waited for. */
static int place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	struct tn_host *h = host_of(t);

	if (tn_tier_quota(t, w->space, w->quota_bytes / w->block_bytes, 1) == 0)
		return 0;
	return take(h, out) || (tn_tier_evict(t, 1, -1, NULL) > 0 && take(h, out));
}

static void release(struct tn_tier_base *t, tn_block b, uint32_t slot, int status)
{
	put(host_of(t), slot);
}

static void fill(struct tn_tier_base *t, tn_block b, uint32_t slot, const struct tn_store_entry *entry)
{
	host_of(t)->t.block[slot] = b;
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how)
{
	struct tn_host *h = host_of(t);

	for (unsigned i = BELOW; i < TN_TIERS_MAX; i++) {
		h->failed_slots -= h->t.dirty[i][slot] == TN_DIRTY_FAILED;
		h->t.dirty[i][slot] = TN_DIRTY_NOT;
	}
	put(h, slot);
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

static uint64_t capacity(const struct tn_tier_base *t)
{
	return host_at(t)->nslots;
}

static uint64_t offset(const struct tn_tier_base *t, uint32_t slot, const struct tn_shape *shape, uint64_t **checks)
{
	const struct tn_host *h = host_at(t);
	uint64_t at = slot * h->stride;

	assert(slot < h->nslots);
	if (checks)
		*checks = (uint64_t *)(void *)(h->slab + at + shape->slot_bytes);
	return at;
}

static void destroy(struct tn_tier_base *t)
{
	struct tn_host *h = host_of(t);
	const struct tn_alloc *a = h->alloc;

	tables_put(h, &h->t, h->nslots);
	tn_put(a, h->slab, h->bytes);
	tn_put(a, h, sizeof(*h));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "host",
	.traits = {.reach = TN_REACH_MEMORY, .saves = true, .promotes = true, .entry_by_slot = true},
	.space = space,
	.place = place,
	.release = release,
	.fill = fill,
	.drain = drain,
	.evict = evict,
	.capacity = capacity,
	.offset = offset,
	.destroy = destroy,
};

int tn_host_create(uint64_t bytes, uint64_t seed, const struct tn_alloc *alloc, struct tn_host **out)
{
	struct tn_host *h = tn_get(alloc, sizeof(*h));

	if (!h)
		return tn_fail(-ENOMEM, "host tier: no memory");
	h->alloc = alloc;
	h->seed = seed;
	/* At least 2 MiB, so that the slab comes page-aligned. */
	h->bytes = bytes < (2u << 20) ? 2u << 20 : bytes;
	h->slab = tn_get(alloc, h->bytes);
	if (!h->slab) {
		tn_put(alloc, h, sizeof(*h));
		return tn_fail(-ENOMEM, "host tier: no memory for %llu bytes; lower host_bytes",
			       (unsigned long long)bytes);
	}
	tn_mapping_init(&h->memory, &h->range, &(struct tn_memory_range){.address = h->slab, .bytes = h->bytes}, 1);
	h->base.ops = &ops;
	h->base.tier = TN_TIER_HOST;
	h->base.memory = &h->memory;
	*out = h;
	return 0;
}

struct tn_tier_base *tn_host_tier(struct tn_host *h)
{
	return &h->base;
}
