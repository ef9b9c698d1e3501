/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of a heap: power-of-two runs of pages, aligned to their size, as a buddy allocator has them. Each belongs to a slot. The master splits one
 * that is too large, and merges neighbours that are free.
 *
 * A slot without an extent is spare: RESERVED, of TN_HEAP_SPARE, and in no stack. A slot in a stack has that stack's class. Extents never overlap, also if the master
 * dies between two steps: what loses pages is written before what gains them. Pages that belong to no slot are found by tn_heap_extents_cover.
 *
 * All functions are the master's, under its lock.
 */
#ifndef TN_HEAP_EXTENT_H
#define TN_HEAP_EXTENT_H

#include "heap/master.h"

#define TN_HEAP_SPARE TN_HEAP_CLASSES

static inline struct tn_heap_seen *tn_heap_seen_of(struct tn_heap_master *m, uint32_t rank, uint32_t slot)
{
	return &m->seen[(uint64_t)rank * m->memory->layout.hdr_count + slot];
}

static inline uint64_t tn_heap_extent_bytes(const struct tn_heap_master *m, const struct tn_heap_slot *s)
{
	uint32_t size_class = tn_heap_class_of(s);

	return size_class < TN_HEAP_CLASSES ? (uint64_t)m->memory->layout.page_bytes << size_class : 0;
}

/* Puts a free slot into its stack. */
void tn_heap_extents_stack(struct tn_heap_master *m, uint32_t rank, uint32_t slot);
/* Which slots are in stacks: who claims may have unlinked any since the master looked last, and nobody else puts one in. */
void tn_heap_extents_look(struct tn_heap_master *m, uint32_t rank);
/* A free slot of the class, RESERVED now: of a stack, else of a larger one that is split, else of new pages. TN_HEAP_NO_SLOT: there is none. */
uint32_t tn_heap_extents_take(struct tn_heap_master *m, uint32_t rank, uint32_t size_class);
/*
 * Merges the free extents of @pages pages from page @first on, aligned to that, into one. @slot_at: by page, the slot whose extent begins there. Returns its slot,
 * RESERVED. TN_HEAP_NO_SLOT: one of them is free no more.
 */
uint32_t tn_heap_extents_merge(struct tn_heap_master *m, uint32_t rank, uint32_t first, uint32_t size_class, const uint32_t *slot_at);
/* Pages of a rank's heap below are carved into extents. */
uint32_t tn_heap_extents_end(const struct tn_heap_master *m, uint32_t rank);
/* By page of a rank's heap, the slot whose extent begins there, else TN_HEAP_NO_SLOT. Valid until the next call. */
const uint32_t *tn_heap_extents_map(struct tn_heap_master *m, uint32_t rank);
/* A new master's: finds the spare slots, the end of what is carved, and pages that belong to no slot. */
void tn_heap_extents_cover(struct tn_heap_master *m, uint32_t rank);

static inline uint32_t tn_heap_pages_of(const struct tn_heap_ctl *ctl)
{
	return (uint32_t)((ctl->heap_limit - ctl->heap_base) / ctl->page_bytes);
}

#endif
