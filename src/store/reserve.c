/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places: reserving slots, segments that are taken for it, and what of a store's slots is free, for whom.
 *
 * When no slot of a shape is left, a segment without a shape is taken. If there is none, the file begins to get longer
 * (background.c). Until then a segment whose preparation stops is taken, or an empty segment of another shape. Segments
 * with blocks move from one class of blocks to another only when the owner asks for that; and the segments beyond a
 * capacity that was made smaller are emptied.
 */
#include <float.h>

#include "store/store_internal.h"

#define TRY_PAUSE_NS 100000000ull
#define TRY_PAUSE_CALLS 8u /* a busy store fills many segments in that time */
#define LEAVE_PAUSE_NS 100000000ull
#define STUCK_FAILURES 3u /* within half a second */
#define LOOK_SLOTS 65536u /* looked at in one call: some milliseconds */

/* Nothing may wait for what a log that failed several times in a row is to make durable. */
static bool usable(const struct tn_store_device *d)
{
	return tn_store_device_writable(d) && d->log.retry.failures < STUCK_FAILURES && d->durable.retry.failures < STUCK_FAILURES &&
	       !(d->log.full && d->ckpt.retry.failures >= STUCK_FAILURES);
}

/* ---- segments ------------------------------------------------------------------------------------------------- */

static bool take_unassigned(struct tn_store_device *d, uint32_t shape)
{
	struct tn_store_segment *sg;

	if (tn_list_empty(&d->unassigned))
		return false;
	sg = tn_container_of(d->unassigned.next, struct tn_store_segment, link);
	tn_store_segment_assign(d, (uint32_t)(sg - d->segs), shape);
	return true;
}

/* A segment of another shape in which nothing is left. */
static bool take_empty(struct tn_store_device *d, uint32_t shape)
{
	for (uint32_t i = 0; d->empty > 0 && i < d->allocated && i < d->limit; i++) {
		if (!tn_store_segment_movable(d, i, shape) || !tn_store_segment_clean(d, i))
			continue;
		if (d->victim == i && d->victim_shape != shape)
			continue;
		tn_store_segment_assign(d, i, shape);
		return true;
	}
	return false;
}

static bool grow(struct tn_store_device *d, uint32_t shape)
{
	if (take_unassigned(d, shape))
		return true;
	tn_store_allocate(d, tn_now_ns(d->store->clock));
	/* Better a segment that is not fully prepared than another class's. */
	if (tn_store_prepare_stop(d) && take_unassigned(d, shape))
		return true;
	return take_empty(d, shape);
}

/* ---- slots ------------------------------------------------------------------------------------------------------ */

/* Up to n free slots of one segment, neighbours first: the search goes on where the last search ended. */
static uint32_t take_slots(struct tn_store_device *d, uint32_t segment, uint32_t n, tn_slot *slots, uint32_t stride)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];
	uint32_t got = 0;

	for (uint32_t k = 0; k <= s->segment_pages && got < n && sg->slots[TN_SLOT_FREE] > 0; k++) {
		uint32_t part = (sg->cursor + k) % s->segment_pages, page = segment * s->segment_pages + part;

		while (d->free[page] && got < n) {
			uint32_t local = page << 6 | (uint32_t)__builtin_ctzll(d->free[page]);

			tn_store_slot_set(d, local, TN_SLOT_RESERVED);
			slots[got++ * stride] = tn_store_global(d, local);
		}
		if (got == n)
			sg->cursor = part;
	}
	return got;
}

static uint32_t reserve_on(struct tn_store_device *d, uint32_t shape, uint32_t n, tn_slot *slots, uint32_t stride)
{
	struct tn_list *list = &d->store->shape[shape].has_free[d->index];
	uint32_t got = 0;

	while (got < n) {
		struct tn_store_segment *sg;

		if (tn_list_empty(list) && !grow(d, shape))
			break;
		if (tn_list_empty(list)) /* the new segment is beyond those that may be used */
			break;
		sg = tn_container_of(list->next, struct tn_store_segment, link);
		got += take_slots(d, (uint32_t)(sg - d->segs), n - got, slots + (size_t)got * stride, stride);
	}
	return got;
}

/* Moves the taken slots to the front, keeping their order. */
static uint32_t compact(tn_slot *slots, uint32_t n)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < n; i++)
		if (slots[i] != TN_SLOT_NONE)
			slots[k++] = slots[i];
	return k;
}

uint32_t tn_store_reserve(struct tn_store *s, uint32_t cls, uint32_t n, tn_slot *slots)
{
	uint32_t nd = s->ndevices, got = 0;

	assert(cls < s->nshapes);
	if (s->read_only)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		slots[i] = TN_SLOT_NONE;
	/* Block i goes to device i modulo their number; each gets its blocks as neighbours. */
	for (uint32_t k = 0; k < nd && k < n; k++) {
		struct tn_store_device *d = &s->dev[(s->next_device + k) % nd];

		if (tn_store_device_writable(d))
			got += reserve_on(d, cls, (n - k + nd - 1) / nd, slots + k, nd);
	}
	got = compact(slots, n);
	for (uint32_t k = 0; k < nd && got < n; k++) {
		struct tn_store_device *d = &s->dev[k];

		if (tn_store_device_writable(d))
			got += reserve_on(d, cls, n - got, slots + got, 1);
	}
	s->next_device = (s->next_device + got) % nd;
	if (got < n)
		s->starved = true;
	return got;
}

void tn_store_free_slots(const struct tn_store *s, uint32_t cls, uint64_t *free_now, uint64_t *freeing)
{
	*freeing = *free_now = 0;
	tn_store_each(d, s) {
		if (!tn_store_device_writable(d)) /* and what is removed there does not become free by itself */
			continue;
		for (uint32_t k = 0; k < d->allocated && usable(d); k++)
			if (d->segs[k].shape == cls && !d->segs[k].closed)
				*freeing += d->segs[k].slots[TN_SLOT_FREEING];
		*free_now += s->shape[cls].free_slots[d->index];
		for (const struct tn_list *l = d->unassigned.next; l != &d->unassigned; l = l->next)
			*free_now += s->shape[cls].slot_count;
		if (d->alloc.retry_ns == 0 && d->allocated < d->limit)
			*free_now += (uint64_t)(d->limit - d->allocated) * s->shape[cls].slot_count;
	}
}

uint64_t tn_store_slots(const struct tn_store *s)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < s->ndevices; i++)
		n += s->dev[i].assigned_slots + (uint64_t)(s->dev[i].limit - s->dev[i].assigned) * s->most_slots;
	return n;
}

bool tn_store_frees_for(const struct tn_store *s, tn_slot slot, uint32_t cls)
{
	const struct tn_store_device *d = tn_store_device_of(s, slot);
	const struct tn_store_segment *sg = &d->segs[tn_store_segment_of(s, tn_store_local(s, slot))];

	return sg->shape == cls && !sg->closed && usable(d);
}

/*
 * ---- moves ----
 *
 * A move begins only where all blocks of the segment can go at once: the owner removes every one of them, or none if
 * somebody holds one (cb.vacate). A segment with slots that are being written does not move either. So nothing is
 * evicted in vain, and what is left is to wait until the removals are durable: for a commit of the log, two if one is
 * under way.
 *
 * When no segment can go, it matters why: what leases hold is not waited for, but transfers end by themselves
 * (cb.passes). The caller is told so, and asks again, of all segments, as transfers end. The caller bounds for how
 * long.
 *
 * A move ends when the removals are durable: the segment changes hands. Or the move is given up, because the device
 * takes no writes or no records any more: then the segment keeps its class. A move waits for nothing but the device.
 */

/*
 * The coldest segment of another shape that was not tried for this demand. With `colder` only one that is colder than
 * the coldest of this shape: classes compete like blocks under LRU, a segment at a time, and each gets at least one.
 */
static uint32_t coldest(const struct tn_store_device *d, uint32_t shape, bool colder, uint64_t demand)
{
	uint32_t best = UINT32_MAX;
	float own = FLT_MAX;

	for (uint32_t i = 0; i < d->allocated && i < d->limit; i++) {
		const struct tn_store_segment *sg = &d->segs[i];

		if (sg->shape == shape)
			own = sg->warm < own ? sg->warm : own;
		else if (tn_store_segment_movable(d, i, shape) && sg->tried <= demand &&
			 (best == UINT32_MAX || sg->warm < d->segs[best].warm))
			best = i;
	}
	return colder && best != UINT32_MAX && d->segs[best].warm >= own ? UINT32_MAX : best;
}

static bool being_written(const struct tn_store_device *d, uint32_t first, uint32_t end)
{
	for (uint32_t local = first; local < end; local++)
		if (d->meta[local].state == TN_SLOT_RESERVED)
			return true;
	return false;
}

static bool begin_move(struct tn_store_device *d, uint32_t segment, uint32_t shape)
{
	struct tn_store *s = d->store;
	struct tn_store_segment *sg = &d->segs[segment];
	uint32_t first = segment * s->segment_pages << 6, n = s->segment_pages << 6;

	if (being_written(d, first, first + n) ||
	    (tn_store_used(sg) > sg->slots[TN_SLOT_FREEING] && !s->cb.vacate(s->cb.arg, tn_store_global(d, first), n))) {
		sg->tried = ++s->tries;
		return false;
	}
	tn_log(s->log, TN_LOG_INFO, "%s: segment %u moves to slots of %llu bytes", d->path, segment,
	       (unsigned long long)s->shape[shape].slot_bytes);
	s->shape[sg->shape].free_slots[d->index] -= sg->slots[TN_SLOT_FREE];
	sg->closed = true;
	d->victim = segment;
	d->victim_shape = shape;
	tn_store_segment_place(d, segment);
	return true;
}

static void give_up_move(struct tn_store_device *d)
{
	struct tn_store_segment *sg = &d->segs[d->victim];

	tn_log(d->store->log, TN_LOG_WARN, "%s: segment %u stays what it was: the device takes no records", d->path, d->victim);
	d->store->shape[sg->shape].free_slots[d->index] += sg->slots[TN_SLOT_FREE];
	sg->closed = false;
	tn_store_segment_place(d, d->victim);
	d->victim = UINT32_MAX;
}

/* Tries one segment after the other; false if none is left. *slots: how many may still be looked at in this call. */
static bool move_one(struct tn_store_device *d, uint32_t shape, bool colder, uint64_t demand, uint32_t *slots)
{
	uint32_t each = d->store->segment_pages << 6, segment;

	while ((segment = coldest(d, shape, colder, demand)) != UINT32_MAX) {
		if (*slots == 0) {
			d->store->look_again = true;
			return true;
		}
		*slots -= *slots < each ? *slots : each;
		if (begin_move(d, segment, shape))
			return true;
	}
	return false;
}

/* When all segments that are colder are held, they are tried again after a pause, or after so many calls. */
static bool may_try(struct tn_store_device *d, uint32_t shape)
{
	struct tn_store_shape *sh = &d->store->shape[shape];

	if (sh->try_calls[d->index] == 0 || tn_now_ns(d->store->clock) >= sh->try_ns[d->index])
		return true;
	sh->try_calls[d->index]--;
	return false;
}

static void tried_in_vain(struct tn_store_device *d, uint32_t shape)
{
	struct tn_store_shape *sh = &d->store->shape[shape];

	sh->try_ns[d->index] = tn_now_ns(d->store->clock) + TRY_PAUSE_NS;
	sh->try_calls[d->index] = TRY_PAUSE_CALLS;
}

/* A segment without data that the next caller can have: its preparation stops, or the file grows by this segment. */
static bool segment_comes(const struct tn_store_device *d, uint64_t now)
{
	return (d->prep.segment != UINT32_MAX && d->prep.stop) || tn_store_allocating(d, now);
}

uint64_t tn_store_moving(const struct tn_store *s, uint32_t cls)
{
	uint64_t n = 0, now = tn_now_ns(s->clock);

	tn_store_each(d, s) {
		if (tn_store_device_writable(d) &&
		    (segment_comes(d, now) || (d->victim != UINT32_MAX && d->victim_shape == cls)))
			n += s->shape[cls].slot_count;
	}
	return n;
}

int tn_store_growth_error(const struct tn_store *s)
{
	tn_store_each(d, s)
		if (tn_store_device_writable(d) && d->allocated < d->limit && d->alloc.retry_ns > 0)
			return d->alloc.status;
	return 0;
}

uint64_t tn_store_demand(struct tn_store *s)
{
	return ++s->tries;
}

/*
 * No segment that was tried for this demand could go: are transfers all that is in the way of one of them? Or in the
 * way of one of the class's own segments, whose blocks can be evicted once the transfers have ended.
 */
static bool passes(struct tn_store_device *d, uint32_t shape, uint64_t demand)
{
	struct tn_store *s = d->store;
	uint32_t n = s->segment_pages << 6;

	for (uint32_t i = 0; i < d->allocated && i < d->limit && d->passing <= demand && s->cb.passes; i++) {
		const struct tn_store_segment *sg = &d->segs[i];
		bool asked = sg->tried > demand || (sg->shape == shape && tn_store_used(sg) > sg->slots[TN_SLOT_FREEING]);

		if (asked && s->cb.passes(s->cb.arg, tn_store_global(d, i * n), n))
			d->passing = ++s->tries;
	}
	return d->passing > demand;
}

enum tn_store_move tn_store_move(struct tn_store *s, uint32_t cls, bool colder, uint64_t demand)
{
	uint32_t slots = LOOK_SLOTS;
	uint64_t tries = s->tries;
	bool wait = false, passing = false, growing = false;

	if (tn_store_moving(s, cls) > 0)
		return TN_STORE_MOVE_COMES;
	tn_store_each(d, s) {
		if (!s->cb.vacate || !usable(d) || (colder && !may_try(d, cls)))
			continue;
		if (d->victim != UINT32_MAX)
			wait = true; /* another class's: then this one's turn comes */
		else if (move_one(d, cls, colder, demand, &slots))
			return TN_STORE_MOVE_COMES;
		else if (colder && s->tries != tries)
			tried_in_vain(d, cls);
		else if (!colder && d->alloc.req.busy)
			growing = true;
		else if (!colder && passes(d, cls, demand))
			passing = true;
	}
	if (colder)
		return TN_STORE_MOVE_NONE;
	if (wait)
		return TN_STORE_MOVE_COMES;
	if (growing)
		return TN_STORE_MOVE_GROWS;
	return passing ? TN_STORE_MOVE_PASSES : TN_STORE_MOVE_NONE;
}

/* The end of a move, if it has come: whoever waits for slots is to be asked again. */
static bool end_move(struct tn_store_device *d)
{
	if (d->victim == UINT32_MAX)
		return false;
	if (!usable(d))
		give_up_move(d);
	else if (tn_store_segment_clean(d, d->victim))
		tn_store_segment_assign(d, d->victim, d->victim_shape);
	return d->victim == UINT32_MAX;
}

static uint64_t leave_step(struct tn_store_device *d, uint64_t now_ns)
{
	struct tn_store *s = d->store;
	uint32_t first;

	while (d->leaving < d->allocated && tn_store_used(&d->segs[d->leaving]) == 0)
		d->leaving++;
	if (d->leaving >= d->allocated || !s->cb.evict || !tn_store_device_writable(d))
		return TN_STORE_NEVER;
	if (now_ns < d->leave_ns)
		return d->leave_ns;
	d->leave_ns = now_ns + LEAVE_PAUSE_NS;
	first = d->leaving++ * s->segment_pages << 6;
	for (uint32_t local = first; local < first + (s->segment_pages << 6); local++)
		if (d->meta[local].state == TN_SLOT_COMMITTED)
			s->cb.evict(s->cb.arg, tn_store_global(d, local), d->cookie[local]);
	return d->leave_ns;
}

uint64_t tn_store_move_step(struct tn_store_device *d, uint64_t now_ns)
{
	bool ended = end_move(d);
	uint64_t due = leave_step(d, now_ns);

	return ended ? now_ns : due;
}
