/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/master.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

static struct tn_heap_seen *seen_of(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	return &m->seen[(uint64_t)rank * m->memory->dir->slots + slot];
}

static uint64_t extent_bytes(const struct tn_heap_master *m, const struct tn_heap_slot *s)
{
	return (uint64_t)m->memory->dir->page_bytes << s->extra.size_class;
}

/* ---- freeing ---------------------------------------------------------------------------------------------------- */

static void stack(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slots(ctl);

	tn_heap_push(slots, slot, &ctl->free_head[slots[slot].extra.size_class]);
	seen_of(m, rank, slot)->stacked = true;
}

/* A slot that was freed just now. One that is in a stack still, because its last claim did not unlink it, stays there. */
static void give_back(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	m->used[rank] -= extent_bytes(m, tn_heap_slot_of(m->memory, rank, slot));
	if (!seen_of(m, rank, slot)->stacked)
		stack(m, rank, slot);
}

/* Frees a slot that is DEAD, if nobody uses it any more. */
static void reclaim(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	if (tn_heap_reclaim(tn_heap_slot_of(m->memory, rank, slot), tn_heap_leases(m->memory->base[rank], slot), m->memory->ranks))
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

/* Which slots are in stacks: who claims may have unlinked any since the master looked last, and nobody else puts one in. */
static void find_stacked(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slots(ctl);

	for (uint32_t s = 0; s < ctl->hdr_count; s++)
		seen_of(m, rank, s)->stacked = false;
	for (uint32_t c = 0; c < TN_HEAP_CLASSES; c++) {
		uint32_t at = (uint32_t)tn_heap_load64(&ctl->free_head[c]) - 1;

		for (; at < ctl->hdr_count && !seen_of(m, rank, at)->stacked; at = tn_heap_load32(&slots[at].extra.next))
			seen_of(m, rank, at)->stacked = true;
	}
}

static uint64_t used_bytes(const struct tn_heap_master *m, uint32_t rank)
{
	uint64_t used = 0;

	for (uint32_t i = 0; i < tn_heap_ctl_of(m->memory, rank)->hdr_head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (!tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(s))))
			used += extent_bytes(m, s);
	}
	return used;
}

/* One slot's turn in a sweep. */
static void sweep_slot(struct tn_heap_master *m, uint32_t rank, uint32_t slot, uint64_t now)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(tn_heap_slot_of(m->memory, rank, slot)));
	struct tn_heap_seen *seen = seen_of(m, rank, slot);

	if (tn_heap_word_state(word) == TN_HEAP_RESERVED || tn_heap_word_state(word) == TN_HEAP_WRITING) {
		if (seen->epoch != tn_heap_word_epoch(word)) {
			seen->epoch = tn_heap_word_epoch(word);
			seen->since_ns = now;
		} else if (now - seen->since_ns > m->memory->dir->reclaim_ns) {
			kill_unready(m, rank, slot, word);
		}
	}
	if (tn_heap_word_is_free(word) && !seen->stacked)
		stack(m, rank, slot);
	else
		reclaim(m, rank, slot);
}

static void sweep_rank(struct tn_heap_master *m, uint32_t rank, uint64_t now)
{
	uint32_t head = tn_heap_ctl_of(m->memory, rank)->hdr_head;

	find_stacked(m, rank);
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
		for (uint32_t i = 0; i < tn_heap_ctl_of(m->memory, r)->hdr_head; i++) {
			tn_heap_store32(&tn_heap_leases(m->memory->base[r], i)[dead], 0);
			if (!tn_heap_bury(tn_heap_slot_of(m->memory, r, i), dead))
				continue;
			tn_heap_index_drop(m->memory, r, i);
			tn_heap_count(m->memory, r, TN_HEAP_RECLAIMS, 1);
		}
	__atomic_store_n(&m->memory->dir->member[dead].alive, TN_HEAP_NOBODY, __ATOMIC_RELEASE);
	tn_heap_master_sweep(m, tn_now_ns(&tn_clock_system));
}

/* ---- eviction --------------------------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
	uint64_t x = ((const struct tn_heap_candidate *)a)->order, y = ((const struct tn_heap_candidate *)b)->order;

	return x < y ? -1 : x > y;
}

static bool is_leased(const struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	const uint32_t *counts = tn_heap_leases(m->memory->base[rank], slot);
	uint32_t leases = 0;

	for (uint32_t r = 0; r < m->memory->ranks; r++)
		leases |= tn_heap_load32(&counts[r]);
	return leases != 0;
}

/* READY objects of a rank that may be evicted, with an extent of that class at least; the first to go first. A leased one would free nothing. */
static uint32_t find_candidates(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	bool fifo = m->memory->dir->order == TN_HEAP_FIFO;
	uint32_t head = tn_heap_ctl_of(m->memory, rank)->hdr_head, n = 0;

	for (uint32_t i = 0; i < head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (tn_heap_word_state(tn_heap_load64(tn_heap_state_word(s))) == TN_HEAP_READY && !(s->header.flags & TN_HEAP_PIN) &&
		    s->extra.size_class >= size_class && !is_leased(m, rank, i))
			m->candidates[n++] = (struct tn_heap_candidate){
				fifo ? s->extra.born : __atomic_load_n(&s->header.last_access, __ATOMIC_RELAXED), i};
	}
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

	if (m->used[rank] <= bytes)
		return 0;
	n = find_candidates(m, rank, 0);
	for (uint32_t i = 0; i < n && m->used[rank] > bytes; i++)
		evicted += evict_slot(m, rank, m->candidates[i].slot);
	return evicted;
}

static uint64_t percent_of(const struct tn_heap_ctl *ctl, uint32_t percent)
{
	return (ctl->heap_limit - ctl->heap_base) / 100 * percent + (ctl->heap_limit - ctl->heap_base) % 100 * percent / 100;
}

int tn_heap_master_evict(struct tn_heap_master *m, uint32_t percent)
{
	uint32_t evicted = 0;

	if (percent > 100)
		return tn_fail(-EINVAL, "%u percent: 100 at most", percent);
	for (uint32_t r = 0; r < m->memory->ranks; r++)
		evicted += evict_below(m, r, percent_of(tn_heap_ctl_of(m->memory, r), percent));
	return (int)evicted;
}

/* ---- allocation ------------------------------------------------------------------------------------------------- */

/* A slot with a new extent. The extent is written down before anybody can take it for another slot's. */
static uint32_t carve(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint64_t bytes = (uint64_t)ctl->page_bytes << size_class;
	uint32_t slot = ctl->hdr_head;
	struct tn_heap_slot *s;

	if (slot == ctl->hdr_count || bytes > ctl->heap_limit - ctl->bump_ptr)
		return TN_HEAP_NO_SLOT;
	s = tn_heap_slot_of(m->memory, rank, slot);
	memset(s, 0, sizeof(*s));
	s->header.payload_base = ctl->bump_ptr;
	s->extra.size_class = size_class;
	__atomic_store_n(tn_heap_state_word(s), tn_heap_word(TN_HEAP_RESERVED, 1), __ATOMIC_RELEASE);
	__atomic_store_n(&ctl->hdr_head, slot + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&ctl->bump_ptr, ctl->bump_ptr + bytes, __ATOMIC_RELEASE);
	return slot;
}

/* A slot of a stack, of the size class or a larger one. */
static uint32_t claim(struct tn_heap_master *m, uint32_t rank, uint32_t size_class, bool larger)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t slot = TN_HEAP_NO_SLOT, epoch;

	for (uint32_t c = size_class; c < TN_HEAP_CLASSES && slot == TN_HEAP_NO_SLOT && (larger || c == size_class); c++)
		slot = tn_heap_claim(tn_heap_slots(ctl), ctl->hdr_count, &ctl->free_head[c], TN_HEAP_RESERVED, &epoch);
	if (slot != TN_HEAP_NO_SLOT)
		seen_of(m, rank, slot)->stacked = false;
	return slot;
}

static uint32_t take_free(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	uint32_t slot = claim(m, rank, size_class, false);

	if (slot == TN_HEAP_NO_SLOT)
		slot = carve(m, rank, size_class);
	return slot == TN_HEAP_NO_SLOT ? claim(m, rank, size_class, true) : slot;
}

/* RESERVED, with an epoch of its own. TN_HEAP_NO_SLOT: all is pinned, leased or being written. */
static uint32_t allocate(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	const struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint64_t bytes = (uint64_t)ctl->page_bytes << size_class;
	uint32_t slot, n;

	if (m->used[rank] + bytes > percent_of(ctl, ctl->water_hi))
		evict_below(m, rank, percent_of(ctl, ctl->water_lo));
	slot = take_free(m, rank, size_class);
	if (slot == TN_HEAP_NO_SLOT) {
		sweep_rank(m, rank, tn_now_ns(&tn_clock_system));
		slot = take_free(m, rank, size_class);
	}
	n = slot == TN_HEAP_NO_SLOT ? find_candidates(m, rank, size_class) : 0;
	for (uint32_t i = 0; i < n && slot == TN_HEAP_NO_SLOT; i++)
		if (evict_slot(m, rank, m->candidates[i].slot))
			slot = claim(m, rank, size_class, true);
	if (slot != TN_HEAP_NO_SLOT)
		m->used[rank] += extent_bytes(m, tn_heap_slot_of(m->memory, rank, slot));
	return slot;
}

static int refuse_known(const struct tn_heap_master *m, const struct tn_heap_name *name)
{
	struct tn_heap_found found;
	int rc = tn_heap_find(m->memory, name, &found);

	if (rc == -ENOENT)
		return 0;
	return tn_fail(-EEXIST, "key hash %#llx: there is an object of that key at rank %u%s; remove it first", (unsigned long long)name->hash,
		       found.rank, tn_heap_word_state(found.word) == TN_HEAP_READY ? "" : ", not READY yet");
}

/* All but the state. */
static void fill(struct tn_heap_master *m, struct tn_heap_slot *s, const struct tn_heap_want *w)
{
	uint32_t page = m->memory->dir->page_bytes;

	s->header.key_hash = w->name.hash;
	s->header.n_pages = (uint32_t)((w->bytes + page - 1) / page);
	s->header.page_size = page;
	s->header.bytes_total = w->bytes;
	s->header.last_access = s->extra.born = tn_now_ns(&tn_clock_system);
	s->header.flags = w->flags;
	__atomic_store_n(&s->extra.digest[0], w->name.digest[0], __ATOMIC_RELAXED);
	__atomic_store_n(&s->extra.digest[1], w->name.digest[1], __ATOMIC_RELAXED);
	s->extra.checksum_epoch = 0;
}

int tn_heap_master_open(struct tn_heap_master *m, const struct tn_heap_want *w, struct tn_heap_plan *plan)
{
	uint32_t size_class = tn_heap_class(m->memory->dir->page_bytes, w->bytes), slot;
	struct tn_heap_ctl *ctl;
	struct tn_heap_slot *s;
	int rc;

	if (w->bytes == 0 || w->owner >= m->memory->ranks || (w->flags & ~TN_HEAP_PIN))
		return tn_fail(-EINVAL, "%llu bytes at rank %u with flags %#x: at least a byte, a rank below %u, flags 0 or TN_HEAP_PIN",
			       (unsigned long long)w->bytes, w->owner, w->flags, m->memory->ranks);
	ctl = tn_heap_ctl_of(m->memory, w->owner);
	if (size_class == TN_HEAP_CLASSES || (uint64_t)ctl->page_bytes << size_class > ctl->heap_limit - ctl->heap_base)
		return tn_fail(-EFBIG, "%llu bytes: an object has 128 pages of %u bytes at most, and a power of two of pages must fit into the heap's %llu bytes",
			       (unsigned long long)w->bytes, ctl->page_bytes, (unsigned long long)(ctl->heap_limit - ctl->heap_base));
	rc = refuse_known(m, &w->name);
	if (rc)
		return rc;
	slot = allocate(m, w->owner, size_class);
	if (slot == TN_HEAP_NO_SLOT) {
		tn_heap_count(m->memory, w->owner, TN_HEAP_OOM, 1);
		return tn_fail(-ENOSPC, "%llu bytes at rank %u: no extent is free that is large enough, and none can be evicted: all are pinned, leased, being written, or smaller",
			       (unsigned long long)w->bytes, w->owner);
	}
	s = tn_heap_slot_of(m->memory, w->owner, slot);
	fill(m, s, w);
	tn_heap_index_add(&m->index, m->memory, w->owner, slot);
	*plan = (struct tn_heap_plan){.key_hash = w->name.hash, .dst_rank = w->owner, .epoch = s->header.epoch,
				      .header_off = ctl->hdr_base + (uint64_t)slot * sizeof(*s), .payload_base = s->header.payload_base,
				      .bytes_total = w->bytes, .page_bytes = s->header.page_size, .n_pages = s->header.n_pages};
	return 0;
}

int tn_heap_master_remove(struct tn_heap_master *m, const struct tn_heap_name *name)
{
	struct tn_heap_found found;
	int rc = tn_heap_find(m->memory, name, &found);

	if (rc)
		return tn_fail(-ENOENT, "key hash %#llx: there is no such object", (unsigned long long)name->hash);
	if (!kill_ready(m, found.rank, found.slot, tn_heap_word_epoch(found.word)))
		return tn_fail(-EAGAIN, "key hash %#llx: its object is not READY yet", (unsigned long long)name->hash);
	return 0;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

/* What the headers of a rank tell. A master that died may have moved hdr_head and not bump_ptr. */
static void scan(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);

	for (uint32_t i = 0; i < ctl->hdr_head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (s->header.payload_base + extent_bytes(m, s) > ctl->bump_ptr)
			ctl->bump_ptr = s->header.payload_base + extent_bytes(m, s);
	}
	m->used[rank] = used_bytes(m, rank);
}

int tn_heap_master_create(struct tn_heap_memory *memory, struct tn_heap_master **out)
{
	size_t slots = memory->dir->slots;
	struct tn_heap_master *m = tn_get(&tn_alloc_system, sizeof(*m));

	if (m) {
		m->memory = memory;
		m->seen = tn_get(&tn_alloc_system, slots * memory->ranks * sizeof(*m->seen));
		m->candidates = tn_get(&tn_alloc_system, slots * sizeof(*m->candidates));
	}
	if (!m || !m->seen || !m->candidates) {
		tn_heap_master_destroy(m);
		return tn_fail(-ENOMEM, "no memory for a master of %u ranks with %zu slots", memory->ranks, slots);
	}
	pthread_mutex_init(&m->lock, NULL);
	for (uint32_t r = 0; r < memory->ranks; r++)
		scan(m, r);
	tn_heap_index_build(&m->index, memory);
	*out = m;
	return 0;
}

void tn_heap_master_destroy(struct tn_heap_master *m)
{
	if (!m)
		return;
	tn_put(&tn_alloc_system, m->seen, (size_t)m->memory->dir->slots * m->memory->ranks * sizeof(*m->seen));
	tn_put(&tn_alloc_system, m->candidates, m->memory->dir->slots * sizeof(*m->candidates));
	tn_put(&tn_alloc_system, m, sizeof(*m));
}
