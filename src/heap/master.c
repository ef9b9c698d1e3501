/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/extent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

/* ---- freeing ---------------------------------------------------------------------------------------------------- */

/* A slot that was freed just now. One that is in a stack still, because its last claim did not unlink it, stays there. */
static void give_back(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	uint64_t bytes = tn_heap_extent_bytes(m, tn_heap_slot_of(m->memory, rank, slot));

	/* used does not have yet what a producer has claimed by itself since it was counted. */
	m->used[rank] -= bytes < m->used[rank] ? bytes : m->used[rank];
	if (!tn_heap_seen_of(m, rank, slot)->stacked)
		tn_heap_extents_stack(m, rank, slot);
}

/* Frees a slot that is DEAD, if nobody uses it any more. */
static void reclaim(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	if (tn_heap_reclaim(tn_heap_slot_of(m->memory, rank, slot), tn_heap_leases_of(m->memory, rank, slot), m->memory->ranks))
		give_back(m, rank, slot);
}

/* A READY object goes. False: it is not READY. */
static bool kill_ready(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint32_t epoch)
{
	if (!tn_heap_move(tn_heap_slot_of(m->memory, rank, slot), epoch, TN_HEAP_READY, TN_HEAP_DEAD))
		return false;
	tn_heap_index_drop(m->memory, rank, slot);
	reclaim(m, rank, slot);
	return true;
}

/* An object that has not become READY in time goes. */
static void kill_unready(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint64_t word)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);
	uint32_t epoch = tn_heap_word_epoch(word), producer = tn_heap_word_rank(word);
	bool reserved = tn_heap_word_state(word) == TN_HEAP_RESERVED;

	if (!(reserved ? tn_heap_revoke(s, epoch)
		       : tn_heap_move(s, epoch, tn_heap_by(TN_HEAP_WRITING, producer), tn_heap_by(TN_HEAP_DEAD, producer))))
		return;
	tn_heap_index_drop(m->memory, rank, slot);
	tn_heap_count(m->memory, rank, TN_HEAP_RECLAIMS, 1);
	if (reserved)
		give_back(m, rank, slot);
}

static uint64_t used_bytes(const struct tn_heap_master *m, uint32_t rank)
{
	uint64_t used = 0;

	for (uint32_t i = 0, head = tn_heap_head(m->memory, rank); i < head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (!tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(s))))
			used += tn_heap_extent_bytes(m, s);
	}
	return used;
}

/* ---- eviction --------------------------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
	uint64_t x = ((const struct tn_heap_candidate *)a)->order, y = ((const struct tn_heap_candidate *)b)->order;

	return x < y ? -1 : x > y;
}

static bool is_leased(const struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	const uint32_t *counts = tn_heap_leases_of(m->memory, rank, slot);
	uint32_t leases = 0;

	for (uint32_t r = 0; r < m->memory->ranks; r++)
		leases |= tn_heap_load32(&counts[r]);
	return leases != 0;
}

/* Whether a slot has a READY object that may be evicted. A leased one would free nothing. */
static bool may_go(const struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	return tn_heap_word_state(tn_heap_load64(tn_heap_state_word(s))) == TN_HEAP_READY && !(s->header.flags & TN_HEAP_PIN) &&
	       !is_leased(m, rank, slot);
}

/* Objects with a lower one go first. */
static uint64_t order_of(const struct tn_heap_master *m, const struct tn_heap_slot *s)
{
	uint64_t time_ns = m->memory->order == TN_HEAP_FIFO ? s->extra.born : __atomic_load_n(&s->header.last_access, __ATOMIC_RELAXED);

	return time_ns | (s->header.flags & TN_HEAP_PRIORITY ? UINT64_C(1) << 63 : 0);
}

/* READY objects of a rank that may be evicted; the first to go first. */
static uint32_t find_candidates(struct tn_heap_master *m, uint32_t rank)
{
	uint32_t head = tn_heap_head(m->memory, rank), n = 0;

	for (uint32_t i = 0; i < head; i++)
		if (may_go(m, rank, i))
			m->candidates[n++] = (struct tn_heap_candidate){order_of(m, tn_heap_slot_of(m->memory, rank, i)), i};
	qsort(m->candidates, n, sizeof(m->candidates[0]), by_order);
	return n;
}

static bool evict_slot(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	uint32_t epoch = tn_heap_word_epoch(tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(m->memory, rank, slot))));

	if (!kill_ready(m, rank, slot, epoch))
		return false;
	tn_heap_count(m->memory, rank, TN_HEAP_EVICTIONS, 1);
	return true;
}

/* Evicts until at most so many bytes of a rank's payload are in use. Returns objects. */
static uint32_t evict_below(struct tn_heap_master *m, uint32_t rank, uint64_t bytes)
{
	uint32_t n, evicted = 0;

	m->used[rank] = used_bytes(m, rank); /* producers claim by themselves, too */
	if (m->used[rank] <= bytes)
		return 0;
	tn_heap_extents_look(m, rank); /* what producers have taken out of stacks goes back into them */
	n = find_candidates(m, rank);
	for (uint32_t i = 0; i < n && m->used[rank] > bytes; i++)
		evicted += evict_slot(m, rank, m->candidates[i].slot);
	return evicted;
}

static uint64_t percent_of(const struct tn_heap_ctl *ctl, uint32_t percent)
{
	return (ctl->heap_limit - ctl->heap_base) / 100 * percent + (ctl->heap_limit - ctl->heap_base) % 100 * percent / 100;
}

/* With so many bytes more, at most water_hi is in use; else evicts until water_lo. */
static void keep_below(struct tn_heap_master *m, uint32_t rank, uint64_t more)
{
	const struct tn_heap_ctl *ctl = &m->memory->layout;

	if (m->used[rank] + more > percent_of(ctl, ctl->water_hi))
		evict_below(m, rank, percent_of(ctl, ctl->water_lo));
}

int tn_heap_master_evict(struct tn_heap_master *m, uint32_t percent, uint64_t may)
{
	uint32_t evicted = 0;

	if (percent > 100)
		return tn_fail(-EINVAL, "%u percent: 100 at most", percent);
	for (uint32_t r = 0; r < m->memory->ranks; r++)
		if (may >> r & 1)
			evicted += evict_below(m, r, percent_of(&m->memory->layout, percent));
	return (int)evicted;
}

/* ---- what producers say, and sweeps ----------------------------------------------------------------------------- */

/*
 * An object in a slot of its producer's own choice, whose header is written: the first one of a key counts. A later one that is READY goes. Of one that is
 * WRITING the producer finds out that it is not admitted. True: it was admitted just now.
 */
static bool admit(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint64_t word)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);
	struct tn_heap_name name;
	struct tn_heap_found found;

	if (s->extra.admitted == tn_heap_word_epoch(word))
		return false;
	name = (struct tn_heap_name){s->header.key_hash, {s->extra.digest[0], s->extra.digest[1]}};
	if (tn_heap_find_any(m->memory, &name, &found) == 0) {
		kill_ready(m, rank, slot, tn_heap_word_epoch(word));
		return false;
	}
	tn_heap_index_add(&m->index, m->memory, rank, slot);
	return true;
}

/* A slot that its producer has told of. Of that epoch it has written the header before. */
static void heed(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint32_t epoch)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(m->memory, rank, slot)));

	if (tn_heap_word_epoch(word) != epoch)
		return;
	switch (tn_heap_word_state(word)) {
	case TN_HEAP_WRITING:
	case TN_HEAP_READY:
		if (admit(m, rank, slot, word)) {
			m->used[rank] += tn_heap_extent_bytes(m, tn_heap_slot_of(m->memory, rank, slot));
			keep_below(m, rank, 0);
		}
		break;
	case TN_HEAP_DEAD:
		reclaim(m, rank, slot);
		break;
	default:
		break;
	}
}

static void hear_rank(struct tn_heap_master *m, uint32_t rank, bool skip)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);

	for (uint32_t left = m->memory->layout.ann_capacity; left && tn_heap_load32(&ctl->ann_head) != tn_heap_load32(&ctl->ann_tail); left--) {
		uint32_t epoch, slot = tn_heap_take_announce(m->memory->base[rank], &m->memory->layout, skip, &epoch);

		if (slot < tn_heap_head(m->memory, rank))
			heed(m, rank, slot, epoch);
		else if (!skip)
			return;
	}
}

void tn_heap_master_hear(struct tn_heap_master *m)
{
	for (uint32_t r = 0; r < m->memory->ranks; r++)
		hear_rank(m, r, false);
}

/* One slot's turn in a sweep. */
static void sweep_slot(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint64_t now)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(m->memory, rank, slot)));
	struct tn_heap_seen *seen = tn_heap_seen_of(m, rank, slot);

	if (tn_heap_class_of(tn_heap_slot_of(m->memory, rank, slot)) == TN_HEAP_SPARE)
		return;
	/* since_ns may lie after now: a rank's end sweeps, too, within a turn of the server that began before. */
	if (tn_heap_word_state(word) == TN_HEAP_RESERVED || tn_heap_word_state(word) == TN_HEAP_WRITING) {
		if (seen->epoch != tn_heap_word_epoch(word)) {
			seen->epoch = tn_heap_word_epoch(word);
			seen->since_ns = now;
		} else if (now > seen->since_ns && now - seen->since_ns > m->memory->reclaim_ns) {
			kill_unready(m, rank, slot, word);
		}
	}
	if (tn_heap_word_state(word) == TN_HEAP_READY)
		admit(m, rank, slot, word);
	if (tn_heap_word_is_free(word) && !seen->stacked)
		tn_heap_extents_stack(m, rank, slot);
	else
		reclaim(m, rank, slot);
}

static void sweep_rank(struct tn_heap_master *m, uint32_t rank, uint64_t now)
{
	uint32_t head = tn_heap_head(m->memory, rank);

	hear_rank(m, rank, true); /* what was not written until now is found below */
	tn_heap_extents_look(m, rank);
	for (uint32_t s = 0; s < head; s++)
		sweep_slot(m, rank, s, now);
	m->used[rank] = used_bytes(m, rank);
}

void tn_heap_master_sweep(struct tn_heap_master *m, uint64_t now_ns)
{
	for (uint32_t r = 0; r < m->memory->ranks; r++)
		sweep_rank(m, r, now_ns);
}

void tn_heap_master_end_life(struct tn_heap_master *m, uint32_t dead)
{
	for (uint32_t r = 0; r < m->memory->ranks; r++)
		for (uint32_t i = 0, head = tn_heap_head(m->memory, r); i < head; i++) {
			tn_heap_store32(&tn_heap_leases_of(m->memory, r, i)[dead], 0);
			if (!tn_heap_bury(tn_heap_slot_of(m->memory, r, i), dead))
				continue;
			tn_heap_index_drop(m->memory, r, i);
			tn_heap_count(m->memory, r, TN_HEAP_RECLAIMS, 1);
		}
	__atomic_store_n(&m->memory->dir->member[dead].life, TN_HEAP_NOBODY, __ATOMIC_RELEASE);
	tn_heap_master_sweep(m, tn_now_ns(&tn_clock_system));
}

/* ---- allocation ------------------------------------------------------------------------------------------------- */

/*
 * What would have to go for an aligned run of pages to become free: *order, of the object that would have stayed longest; 0: nothing. False: something there
 * must stay. A larger extent that covers the run counts, too.
 */
static bool may_clear(const struct tn_heap_master *m, uint32_t rank, uint32_t first, uint32_t pages, const uint32_t *slot_at, uint64_t *order)
{
	*order = 0;
	for (uint32_t page = first; page < first + pages;) {
		uint32_t slot = slot_at[page];
		struct tn_heap_slot *s;

		if (slot == TN_HEAP_NO_SLOT)
			return false;
		s = tn_heap_slot_of(m->memory, rank, slot);
		if (may_go(m, rank, slot))
			*order = order_of(m, s) > *order ? order_of(m, s) : *order;
		else if (!tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(s))))
			return false;
		page += 1u << tn_heap_class_of(s);
	}
	return true;
}

/* Makes an extent of the class out of smaller ones, or of one as large: of those whose objects may go, and would go first. */
static uint32_t make_extent(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	const uint32_t *slot_at = tn_heap_extents_map(m, rank);
	uint32_t pages = 1u << size_class, end = tn_heap_extents_end(m, rank), best = UINT32_MAX, slot;
	uint64_t order, best_order = UINT64_MAX;

	for (uint32_t first = 0; first + pages <= end; first += pages)
		if (may_clear(m, rank, first, pages, slot_at, &order) && order < best_order) {
			best = first;
			best_order = order;
		}
	if (best == UINT32_MAX)
		return TN_HEAP_NO_SLOT;
	for (uint32_t page = best; page < best + pages; page++)
		if (slot_at[page] != TN_HEAP_NO_SLOT && may_go(m, rank, slot_at[page]))
			evict_slot(m, rank, slot_at[page]);
	slot = slot_at[best];
	if (tn_heap_class_of(tn_heap_slot_of(m->memory, rank, slot)) >= size_class)
		return tn_heap_extents_take(m, rank, size_class);
	return tn_heap_extents_merge(m, rank, best, size_class, slot_at);
}

/* RESERVED, with an epoch of its own. TN_HEAP_NO_SLOT: all is pinned, leased or being written. */
static uint32_t allocate(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	const struct tn_heap_ctl *ctl = &m->memory->layout;
	uint32_t slot;

	keep_below(m, rank, (uint64_t)ctl->page_bytes << size_class);
	slot = tn_heap_extents_take(m, rank, size_class);
	if (slot == TN_HEAP_NO_SLOT) {
		hear_rank(m, rank, false); /* plans that were given up */
		slot = tn_heap_extents_take(m, rank, size_class);
	}
	if (slot == TN_HEAP_NO_SLOT) {
		sweep_rank(m, rank, tn_now_ns(&tn_clock_system));
		slot = tn_heap_extents_take(m, rank, size_class);
	}
	if (slot == TN_HEAP_NO_SLOT)
		slot = make_extent(m, rank, size_class);
	if (slot != TN_HEAP_NO_SLOT)
		m->used[rank] += tn_heap_extent_bytes(m, tn_heap_slot_of(m->memory, rank, slot));
	return slot;
}

static int refuse_known(const struct tn_heap_master *m, const struct tn_heap_name *name)
{
	struct tn_heap_found found;
	int rc = tn_heap_find_any(m->memory, name, &found);

	if (rc == -ENOENT)
		return 0;
	return tn_fail(-EEXIST, "key hash %#llx: there is an object of that key at rank %u%s; remove it first", (unsigned long long)name->hash,
		       found.rank, tn_heap_word_state(found.word) == TN_HEAP_READY ? "" : ", not READY yet");
}

static int check_want(const struct tn_heap_master *m, const struct tn_heap_want *w)
{
	const struct tn_heap_ctl *ctl = &m->memory->layout;
	uint32_t size_class = tn_heap_class(ctl->page_bytes, w->bytes), replicas = tn_heap_replicas(w->flags);

	if (w->bytes == 0 || w->owner >= m->memory->ranks || (w->flags & ~TN_HEAP_FLAGS))
		return tn_fail(-EINVAL, "%llu bytes at rank %u with flags %#x: at least a byte, a rank below %u, flags of TN_HEAP_PIN, TN_HEAP_PRIORITY and "
					"TN_HEAP_REPLICAS", (unsigned long long)w->bytes, w->owner, w->flags, m->memory->ranks);
	if (replicas > TN_HEAP_REPLICAS_MAX || replicas > m->memory->ranks)
		return tn_fail(-EINVAL, "%u replicas: %u at most, and the heap has %u ranks", replicas, TN_HEAP_REPLICAS_MAX, m->memory->ranks);
	if (size_class == TN_HEAP_CLASSES || (uint64_t)ctl->page_bytes << size_class > ctl->heap_limit - ctl->heap_base)
		return tn_fail(-EFBIG, "%llu bytes: an object has 128 pages of %u bytes at most, and a power of two of pages must fit into the heap's %llu bytes",
			       (unsigned long long)w->bytes, ctl->page_bytes, (unsigned long long)(ctl->heap_limit - ctl->heap_base));
	return 0;
}

static uint32_t owner_of(const struct tn_heap_master *m, const struct tn_heap_want *w, uint32_t replica)
{
	return (w->owner + replica) % m->memory->ranks;
}

/* An extent per replica, RESERVED. Returns how many could be had. */
static uint32_t allocate_all(struct tn_heap_master *m, const struct tn_heap_want *w, uint32_t slot[TN_HEAP_REPLICAS_MAX])
{
	uint32_t n, size_class = tn_heap_class(m->memory->layout.page_bytes, w->bytes);

	for (n = 0; n < tn_heap_replicas(w->flags); n++) {
		slot[n] = allocate(m, owner_of(m, w, n), size_class);
		if (slot[n] == TN_HEAP_NO_SLOT)
			break;
	}
	return n;
}

/* Extents that were not told to anybody. */
static void free_all(struct tn_heap_master *m, const struct tn_heap_want *w, const uint32_t *slot, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, owner_of(m, w, i), slot[i]);

		if (tn_heap_revoke(s, s->header.epoch))
			give_back(m, owner_of(m, w, i), slot[i]);
	}
}

/* Where the replica is to be written; others find that it is on its way. */
static struct tn_heap_copy announce_copy(struct tn_heap_master *m, const struct tn_heap_want *w, uint32_t owner, uint32_t slot)
{
	const struct tn_heap_ctl *ctl = &m->memory->layout;
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, owner, slot);

	tn_heap_describe(s, &w->name, w->bytes, ctl->page_bytes, w->flags);
	tn_heap_index_add(&m->index, m->memory, owner, slot);
	return (struct tn_heap_copy){.header_off = ctl->hdr_base + (uint64_t)slot * sizeof(*s), .payload_base = s->header.payload_base, .rank = owner,
				     .epoch = s->header.epoch};
}

int tn_heap_master_open(struct tn_heap_master *m, const struct tn_heap_want *w, struct tn_heap_plan *plan)
{
	uint32_t slot[TN_HEAP_REPLICAS_MAX], page_bytes = m->memory->layout.page_bytes, n;
	struct tn_heap_copy copy;
	int rc = check_want(m, w);

	if (rc == 0)
		rc = refuse_known(m, &w->name);
	if (rc)
		return rc;
	n = allocate_all(m, w, slot);
	if (n < tn_heap_replicas(w->flags)) {
		tn_heap_count(m->memory, owner_of(m, w, n), TN_HEAP_OOM, 1);
		rc = tn_fail(-ENOSPC, "%llu bytes at rank %u: no extent is free that is large enough, and none can be evicted: all are pinned, leased, being written, or smaller",
			     (unsigned long long)w->bytes, owner_of(m, w, n));
	}
	if (rc == 0)
		rc = refuse_known(m, &w->name); /* the allocation may have swept, and admitted one that a producer had reserved by itself */
	if (rc) {
		free_all(m, w, slot, n);
		return rc;
	}
	*plan = (struct tn_heap_plan){.key_hash = w->name.hash, .bytes_total = w->bytes, .page_bytes = page_bytes,
				      .n_pages = (uint32_t)((w->bytes + page_bytes - 1) / page_bytes), .copies = n - 1};
	copy = announce_copy(m, w, w->owner, slot[0]);
	plan->dst_rank = copy.rank;
	plan->epoch = copy.epoch;
	plan->header_off = copy.header_off;
	plan->payload_base = copy.payload_base;
	for (uint32_t i = 1; i < n; i++)
		plan->copy[i - 1] = announce_copy(m, w, owner_of(m, w, i), slot[i]);
	return 0;
}

int tn_heap_master_remove(struct tn_heap_master *m, const struct tn_heap_name *name, uint64_t may)
{
	struct tn_heap_found found[TN_HEAP_REPLICAS_MAX];
	uint64_t seen = 0;
	uint32_t n;

	for (n = 0; n < TN_HEAP_REPLICAS_MAX && tn_heap_find(m->memory, name, UINT32_MAX, seen, &found[n]) == 0; n++) {
		if (!(may >> found[n].rank & 1))
			return tn_fail(-EACCES, "key hash %#llx: its object lies at rank %u, which the caller's token does not let it write into",
				       (unsigned long long)name->hash, found[n].rank);
		if (tn_heap_word_state(found[n].word) != TN_HEAP_READY)
			return tn_fail(-EAGAIN, "key hash %#llx: its object is not READY yet", (unsigned long long)name->hash);
		seen |= UINT64_C(1) << found[n].rank;
	}
	if (n == 0)
		return tn_fail(-ENOENT, "key hash %#llx: there is no such object", (unsigned long long)name->hash);
	for (uint32_t i = 0; i < n; i++)
		kill_ready(m, found[i].rank, found[i].slot, tn_heap_word_epoch(found[i].word));
	return 0;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

int tn_heap_master_create(struct tn_heap_memory *memory, struct tn_heap_master **out)
{
	size_t slots = memory->layout.hdr_count;
	struct tn_heap_master *m = tn_get(&tn_alloc_system, sizeof(*m));

	if (m) {
		m->memory = memory;
		m->seen = tn_get(&tn_alloc_system, slots * memory->ranks * sizeof(*m->seen));
		m->candidates = tn_get(&tn_alloc_system, slots * sizeof(*m->candidates));
		m->spare = tn_get(&tn_alloc_system, slots * memory->ranks * sizeof(*m->spare));
		m->slot_at = tn_get(&tn_alloc_system, tn_heap_pages_of(&memory->layout) * sizeof(*m->slot_at));
	}
	if (!m || !m->seen || !m->candidates || !m->spare || !m->slot_at) {
		tn_heap_master_destroy(m);
		return tn_fail(-ENOMEM, "no memory for a master of %u ranks with %zu slots", memory->ranks, slots);
	}
	pthread_mutex_init(&m->lock, NULL);
	for (uint32_t r = 0; r < memory->ranks; r++) {
		tn_heap_extents_cover(m, r);
		m->used[r] = used_bytes(m, r);
	}
	tn_heap_index_build(&m->index, memory);
	*out = m;
	return 0;
}

void tn_heap_master_destroy(struct tn_heap_master *m)
{
	size_t slots;

	if (!m)
		return;
	slots = m->memory->layout.hdr_count;
	tn_put(&tn_alloc_system, m->seen, slots * m->memory->ranks * sizeof(*m->seen));
	tn_put(&tn_alloc_system, m->candidates, slots * sizeof(*m->candidates));
	tn_put(&tn_alloc_system, m->spare, slots * m->memory->ranks * sizeof(*m->spare));
	tn_put(&tn_alloc_system, m->slot_at, tn_heap_pages_of(&m->memory->layout) * sizeof(*m->slot_at));
	tn_put(&tn_alloc_system, m, sizeof(*m));
}
