/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/extent.h"

#include <string.h>

#define NO_PAGE UINT32_MAX

/* Where a slot's extent begins. NO_PAGE: the slot has none, or its header is damaged. */
static uint32_t page_of(const struct tn_heap_master *m, const struct tn_heap_slot *s)
{
	const struct tn_heap_ctl *layout = &m->memory->layout;
	uint64_t at = __atomic_load_n(&s->header.payload_base, __ATOMIC_RELAXED) - layout->heap_base, page = at / layout->page_bytes;
	uint32_t size_class = tn_heap_class_of(s);

	if (size_class >= TN_HEAP_CLASSES || at % layout->page_bytes || page + (1u << size_class) > tn_heap_pages_of(layout))
		return NO_PAGE;
	return (uint32_t)page;
}

uint32_t tn_heap_extents_end(const struct tn_heap_master *m, uint32_t rank)
{
	const struct tn_heap_ctl *layout = &m->memory->layout;
	uint64_t page = (__atomic_load_n(&tn_heap_ctl_of(m->memory, rank)->bump_ptr, __ATOMIC_RELAXED) - layout->heap_base) / layout->page_bytes;

	return page < tn_heap_pages_of(layout) ? (uint32_t)page : tn_heap_pages_of(layout);
}

/* ---- stacks ----------------------------------------------------------------------------------------------------- */

void tn_heap_extents_stack(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *slots = tn_heap_slot_of(m->memory, rank, 0);
	uint32_t size_class = tn_heap_class_of(&slots[slot]);

	if (size_class == TN_HEAP_SPARE)
		return; /* its header is damaged */
	tn_heap_push(slots, slot, &tn_heap_ctl_of(m->memory, rank)->free_head[size_class]);
	tn_heap_seen_of(m, rank, slot)->stacked = true;
}

void tn_heap_extents_look(struct tn_heap_master *m, uint32_t rank)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slot_of(m->memory, rank, 0);
	uint32_t head = tn_heap_head(m->memory, rank);

	for (uint32_t s = 0; s < head; s++)
		tn_heap_seen_of(m, rank, s)->stacked = false;
	for (uint32_t c = 0; c < TN_HEAP_CLASSES; c++) {
		uint32_t at = (uint32_t)tn_heap_load64(&ctl->free_head[c]) - 1;

		for (; at < head && !tn_heap_seen_of(m, rank, at)->stacked; at = tn_heap_load32(&slots[at].extra.next))
			tn_heap_seen_of(m, rank, at)->stacked = true;
	}
}

/* Takes a whole stack off, and puts back what is free. So no slot that was claimed is in it any more. */
static void restack(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	struct tn_heap_slot *slots = tn_heap_slot_of(m->memory, rank, 0);
	uint64_t *stack = &ctl->free_head[size_class], head;
	uint32_t at, next, left = m->memory->layout.hdr_count;

	do
		head = tn_heap_load64(stack);
	while (!tn_heap_cas64(stack, head, ((head >> 32) + 1) << 32));
	for (at = (uint32_t)head - 1; at < tn_heap_head(m->memory, rank) && left--; at = next) {
		next = tn_heap_load32(&slots[at].extra.next);
		tn_heap_seen_of(m, rank, at)->stacked = false;
		if (tn_heap_word_is_free(tn_heap_load64(tn_heap_state_word(&slots[at]))))
			tn_heap_extents_stack(m, rank, at);
	}
}

static uint32_t claim(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	struct tn_heap_ctl *ctl = tn_heap_ctl_of(m->memory, rank);
	uint32_t epoch, slot = tn_heap_claim(tn_heap_slot_of(m->memory, rank, 0), m->memory->layout.hdr_count, &ctl->free_head[size_class],
					     TN_HEAP_RESERVED, &epoch);

	if (slot != TN_HEAP_NO_SLOT)
		tn_heap_seen_of(m, rank, slot)->stacked = false;
	return slot;
}

/* ---- slots and their extents ------------------------------------------------------------------------------------ */

static uint32_t spares(const struct tn_heap_master *m, uint32_t rank)
{
	return m->nspare[rank] + m->memory->layout.hdr_count - tn_heap_head(m->memory, rank);
}

/* A slot without an extent, RESERVED. There must be one. */
static uint32_t take_spare(struct tn_heap_master *m, uint32_t rank)
{
	uint32_t slot = tn_heap_head(m->memory, rank);
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	if (m->nspare[rank])
		return m->spare[(uint64_t)rank * m->memory->layout.hdr_count + --m->nspare[rank]];
	memset(s, 0, sizeof(*s));
	s->extra.size_class = TN_HEAP_SPARE;
	__atomic_store_n(tn_heap_state_word(s), tn_heap_word(TN_HEAP_RESERVED, 1), __ATOMIC_RELEASE);
	__atomic_store_n(&tn_heap_ctl_of(m->memory, rank)->hdr_head, slot + 1, __ATOMIC_RELEASE);
	return slot;
}

/* A RESERVED slot that is in no stack loses its extent, and all that could be found in it. */
static void make_spare(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	__atomic_store_n(&s->extra.size_class, TN_HEAP_SPARE, __ATOMIC_RELEASE);
	__atomic_store_n(&s->extra.digest[0], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&s->extra.digest[1], 0, __ATOMIC_RELAXED);
	if (m->nspare[rank] < m->memory->layout.hdr_count)
		m->spare[(uint64_t)rank * m->memory->layout.hdr_count + m->nspare[rank]++] = slot;
}

/* A spare slot gets an extent. The place before the class: one that is not spare has both. */
static uint32_t give_extent(struct tn_heap_master *m, uint32_t rank, uint32_t page, uint32_t size_class)
{
	const struct tn_heap_ctl *layout = &m->memory->layout;
	uint32_t slot = take_spare(m, rank);
	struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, slot);

	s->header.payload_base = layout->heap_base + (uint64_t)page * layout->page_bytes;
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
	const struct tn_heap_ctl *layout = &m->memory->layout;
	uint32_t size = 1u << size_class, page = tn_heap_extents_end(m, rank), first = (page + size - 1) / size * size, slot;

	if (first + size > tn_heap_pages_of(layout) || spares(m, rank) <= pieces(page, first))
		return TN_HEAP_NO_SLOT;
	fill_gap(m, rank, page, first);
	slot = give_extent(m, rank, first, size_class);
	__atomic_store_n(&tn_heap_ctl_of(m->memory, rank)->bump_ptr, layout->heap_base + (uint64_t)(first + size) * layout->page_bytes,
			 __ATOMIC_RELEASE);
	return slot;
}

/* A larger extent: its first part, and the rest free. Without spare slots for the rest it is taken whole. */
static uint32_t split(struct tn_heap_master *m, uint32_t rank, uint32_t size_class)
{
	uint32_t slot = TN_HEAP_NO_SLOT, larger, first;
	struct tn_heap_slot *s;

	for (larger = size_class + 1; larger < TN_HEAP_CLASSES && slot == TN_HEAP_NO_SLOT; larger++)
		slot = claim(m, rank, larger);
	if (slot == TN_HEAP_NO_SLOT)
		return slot;
	s = tn_heap_slot_of(m->memory, rank, slot);
	larger = tn_heap_class_of(s);
	first = page_of(m, s);
	if (first == NO_PAGE || larger < size_class)
		return TN_HEAP_NO_SLOT; /* its header is damaged */
	if (spares(m, rank) < larger - size_class)
		return slot;
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
	memset(m->slot_at, 0xff, tn_heap_pages_of(&m->memory->layout) * sizeof(*m->slot_at));
	for (uint32_t i = 0, head = tn_heap_head(m->memory, rank); i < head; i++) {
		uint32_t page = page_of(m, tn_heap_slot_of(m->memory, rank, i));

		if (page != NO_PAGE)
			m->slot_at[page] = i;
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

	for (page = first; page < end; page += 1u << tn_heap_class_of(tn_heap_slot_of(m->memory, rank, slot_at[page]))) {
		all = slot_at[page] != TN_HEAP_NO_SLOT && claim_this(tn_heap_slot_of(m->memory, rank, slot_at[page]));
		if (!all)
			break;
		claimed = page + 1;
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

	for (uint32_t i = 0, head = tn_heap_head(m->memory, rank); i < head; i++) {
		struct tn_heap_slot *s = tn_heap_slot_of(m->memory, rank, i);

		if (tn_heap_class_of(s) == TN_HEAP_SPARE)
			make_spare(m, rank, i);
		else if (page_of(m, s) != NO_PAGE && s->header.payload_base + tn_heap_extent_bytes(m, s) > ctl->bump_ptr)
			ctl->bump_ptr = s->header.payload_base + tn_heap_extent_bytes(m, s);
	}
	tn_heap_extents_look(m, rank);
	slot_at = tn_heap_extents_map(m, rank);
	end = tn_heap_extents_end(m, rank);
	for (page = gap = 0; page < end; gap = page) {
		while (page < end && slot_at[page] == TN_HEAP_NO_SLOT)
			page++;
		if (page > gap && spares(m, rank) >= pieces(gap, page))
			fill_gap(m, rank, gap, page);
		if (page < end)
			page += 1u << tn_heap_class_of(tn_heap_slot_of(m->memory, rank, slot_at[page]));
	}
}
