/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/extent.h"

#include <string.h>

static uint32_t page_of(const struct tn_heap_ctl *ctl, uint64_t offset)
{
	return (uint32_t)((offset - ctl->heap_base) / ctl->page_bytes);
}

/* ---- stacks ----------------------------------------------------------------------------------------------------- */

void tn_heap_extents_stack(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slots(ctl);

	tn_heap_push(slots, slot, &ctl->free_head[slots[slot].extra.size_class]);
	tn_heap_seen_of(m, rank, slot)->stacked = true;
}

void tn_heap_extents_look(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slots(ctl);

	for (uint32_t s = 0; s < ctl->hdr_head; s++)
		tn_heap_seen_of(m, rank, s)->stacked = false;
	for (uint32_t c = 0; c < TN_HEAP_CLASSES; c++) {
		uint32_t at = (uint32_t)tn_heap_load64(&ctl->free_head[c]) - 1;

		for (; at < ctl->hdr_head && !tn_heap_seen_of(m, rank, at)->stacked; at = tn_heap_load32(&slots[at].extra.next))
			tn_heap_seen_of(m, rank, at)->stacked = true;
	}
}

/* Takes a whole stack off, and puts back what is free. So no slot that was claimed is in it any more. */
static void restack(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slots(ctl);
	uint64_t *stack = &ctl->free_head[size_class], head;
	uint32_t at, next;

	do
		head = tn_heap_load64(stack);
	while (!tn_heap_cas64(stack, head, ((head >> 32) + 1) << 32));
	for (at = (uint32_t)head - 1; at < ctl->hdr_head; at = next) {
		next = slots[at].extra.next;
		tn_heap_seen_of(m, rank, at)->stacked = false;
		if (tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(&slots[at]))))
			tn_heap_extents_stack(m, rank, at);
	}
}

static uint32_t claim(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t epoch, slot = tn_heap_claim(tn_heap_slots(ctl), ctl->hdr_count, &ctl->free_head[size_class], TN_HEAP_RESERVED, &epoch);

	if (slot != TN_HEAP_NO_SLOT)
		tn_heap_seen_of(m, rank, slot)->stacked = false;
	return slot;
}

/* ---- slots and their extents ------------------------------------------------------------------------------------ */

static uint32_t spares(const struct tn_heap_master *m, uint32_t rank)
{
	const struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);

	return m->nspare[rank] + ctl->hdr_count - ctl->hdr_head;
}

/* A slot without an extent, RESERVED. There must be one. */
static uint32_t take_spare(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t slot = ctl->hdr_head;
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	if (m->nspare[rank])
		return m->spare[(uint64_t)rank * m->memory->dir->slots + --m->nspare[rank]];
	memset(s, 0, sizeof(*s));
	s->extra.size_class = TN_HEAP_SPARE;
	__atomic_store_n(tn_heap_state_word(s), tn_heap_word(TN_HEAP_RESERVED, 1), __ATOMIC_RELEASE);
	__atomic_store_n(&ctl->hdr_head, slot + 1, __ATOMIC_RELEASE);
	return slot;
}

/* A RESERVED slot that is in no stack loses its extent, and all that could be found in it. */
static void make_spare(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	__atomic_store_n(&s->extra.size_class, TN_HEAP_SPARE, __ATOMIC_RELEASE);
	__atomic_store_n(&s->extra.digest[0], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->extra.digest[1], 0, __ATOMIC_RELAXED);
	m->spare[(uint64_t)rank * m->memory->dir->slots + m->nspare[rank]++] = slot;
}

/* A spare slot gets an extent. The place before the class: one that is not spare has both. */
static uint32_t give_extent(struct tn_heap_master *m, uint32_t rank, uint32_t page, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t slot = take_spare(m, rank);
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	s->header.payload_base = ctl->heap_base + (uint64_t)page * ctl->page_bytes;
	__atomic_store_n(&s->extra.size_class, size_class, __ATOMIC_RELEASE);
	return slot;
}

/* RESERVED, and nobody knows of it: free. */
static void set_free(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	if (tn_heap_revoke(s, s->header.epoch))
		tn_heap_extents_stack(m, rank, slot);
}

/* The largest extent that begins at a page, is aligned, and ends at @end at most. */
static uint32_t class_at(uint32_t page, uint32_t end)
{
	uint32_t c = 0;

	while (c + 1 < TN_HEAP_CLASSES && page % (2u << c) == 0 && page + (2u << c) <= end)
		c++;
	return c;
}

/* How many extents the pages from @page to @end take. */
static uint32_t pieces(uint32_t page, uint32_t end)
{
	uint32_t n = 0;

	for (; page < end; page += 1u << class_at(page, end))
		n++;
	return n;
}

/* Free extents for these pages. There must be spare slots enough. */
static void fill_gap(struct tn_heap_master *m, uint32_t rank, uint32_t page, uint32_t end)
{
	while (page < end) {
		uint32_t c = class_at(page, end);

		set_free(m, rank, give_extent(m, rank, page, c));
		page += 1u << c;
	}
}

/* ---- taking ----------------------------------------------------------------------------------------------------- */

/* New pages, aligned; those in between become free extents. */
static uint32_t carve(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t size = 1u << size_class, page = page_of(ctl, ctl->bump_ptr), first = (page + size - 1) / size * size, slot;

	if (first + size > tn_heap_pages_of(ctl) || spares(m, rank) <= pieces(page, first))
		return TN_HEAP_NO_SLOT;
	fill_gap(m, rank, page, first);
	slot = give_extent(m, rank, first, size_class);
	__atomic_store_n(&ctl->bump_ptr, ctl->heap_base + (uint64_t)(first + size) * ctl->page_bytes, __ATOMIC_RELEASE);
	return slot;
}

/* A larger extent: its first part, and the rest free. Without spare slots for the rest it is taken whole. */
static uint32_t split(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t slot = TN_HEAP_NO_SLOT, larger, first;
	struct tn_heap_slot *s;

	for (larger = size_class + 1; larger < TN_HEAP_CLASSES && slot == TN_HEAP_NO_SLOT; larger++)
		slot = claim(m, rank, larger);
	if (slot == TN_HEAP_NO_SLOT)
		return slot;
	s = tn_heap_slot_of(m->memory, rank, slot);
	larger = s->extra.size_class;
	if (spares(m, rank) < larger - size_class)
		return slot;
	first = page_of(ctl, s->header.payload_base);
	__atomic_store_n(&s->extra.size_class, size_class, __ATOMIC_RELEASE);
	fill_gap(m, rank, first + (1u << size_class), first + (1u << larger));
	return slot;
}

uint32_t tn_heap_extents_take(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	uint32_t slot = claim(m, rank, size_class);

	if (slot == TN_HEAP_NO_SLOT)
		slot = split(m, rank, size_class);
	return slot == TN_HEAP_NO_SLOT ? carve(m, rank, size_class) : slot;
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

const uint32_t *tn_heap_extents_map(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);

	memset(m->slot_at, 0xff, tn_heap_pages_of(ctl) * sizeof(*m->slot_at));
	for (uint32_t i = 0; i < ctl->hdr_head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (s->extra.size_class < TN_HEAP_CLASSES)
			m->slot_at[page_of(ctl, s->header.payload_base)] = i;
	}
	return m->slot_at;
}

/* A certain free slot is RESERVED. False: it is not free. */
static bool claim_this(struct tn_heap_slot *s)
{
	uint64_t word = tn_heap_load64(tn_heap_state_word(s));

	return tn_heap_word_is_free(word) &&
	       tn_heap_cas64(tn_heap_state_word(s), word, tn_heap_word(TN_HEAP_RESERVED, tn_heap_word_epoch(word) + 1));
}

uint32_t tn_heap_extents_merge(struct tn_heap_master *m, uint32_t rank, uint32_t first, uint32_t size_class, const uint32_t *slot_at)
{
	uint32_t end = first + (1u << size_class), lead = slot_at[first], claimed = first, page;
	bool all = true;

	for (page = first; page < end && all; page += 1u << tn_heap_slot_of(m->memory, rank, slot_at[page])->extra.size_class) {
		all = claim_this(tn_heap_slot_of(m->memory, rank, slot_at[page]));
		claimed = all ? page + 1 : claimed;
	}
	for (uint32_t c = 0; c < size_class; c++)
		restack(m, rank, c);
	for (page = first; page < claimed; page++) {
		if (slot_at[page] == TN_HEAP_NO_SLOT || (all && page == first))
			continue;
		if (all)
			make_spare(m, rank, slot_at[page]);
		else
			set_free(m, rank, slot_at[page]);
	}
	if (!all)
		return TN_HEAP_NO_SLOT;
	__atomic_store_n(&tn_heap_slot_of(m->memory, rank, lead)->extra.size_class, size_class, __ATOMIC_RELEASE);
	return lead;
}

void tn_heap_extents_cover(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	const uint32_t *slot_at;
	uint32_t page, gap, end;

	for (uint32_t i = 0; i < ctl->hdr_head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (s->extra.size_class >= TN_HEAP_CLASSES)
			make_spare(m, rank, i);
		else if (s->header.payload_base + tn_heap_extent_bytes(m, s) > ctl->bump_ptr)
			ctl->bump_ptr = s->header.payload_base + tn_heap_extent_bytes(m, s);
	}
	tn_heap_extents_look(m, rank);
	slot_at = tn_heap_extents_map(m, rank);
	end = page_of(ctl, ctl->bump_ptr);
	for (page = gap = 0; page < end; gap = page) {
		while (page < end && slot_at[page] == TN_HEAP_NO_SLOT)
			page++;
		if (page > gap && spares(m, rank) >= pieces(gap, page))
			fill_gap(m, rank, gap, page);
		if (page < end)
			page += 1u << tn_heap_slot_of(m->memory, rank, slot_at[page])->extra.size_class;
	}
}
