/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host side of a ring keeps beside the shared memory: the executors to wake, and the lists that
 * say what an entry is in memory.
 */
#ifndef TN_RING_RING_INTERNAL_H
#define TN_RING_RING_INTERNAL_H

#include <tenuto/ring.h>

#include "base/alloc.h"
#include "layout/span.h"

#define TN_RING_EXECUTORS_MAX 4u

/**
 * struct tn_ring_list - where the objects of one load, save or buffer lie in memory, prepared once for it
 * @shape:  of all its objects; entry = block * layers + layer
 * @blocks: how many
 * @layout: the destination is a pool's pages; or NULL: flat memory
 * @pages:  with layout: pages_per_block indices a block
 * @first_page, @end_page: with layout: of those the pages that are wanted; the others are left alone
 * @flat:   without layout: by block, memory in the order and padding of the slot on disk
 * @align:  all pieces of memory have addresses and lengths that are multiples of this; 1: not known
 * @checks: by entry: expected checksums (TN_IOCB_VERIFY)
 *
 * Every object of a list has the same length. What is written, or copied from, needs all pages of its blocks.
 */
struct tn_ring_list {
	const struct tn_shape *shape;
	uint32_t blocks;
	const struct tn_layout *layout;
	const uint32_t *pages;
	uint64_t first_page, end_page;
	unsigned char *const *flat;
	uint32_t align;
	const uint64_t *checks;
};

struct tn_ring {
	struct tn_ring_shared *shared;
	const struct tn_alloc *alloc;
	const struct tn_ring_list **lists;
	uint32_t nlists;
	uint32_t waiters; /* in tn_ring_wait */
	struct {
		void (*kick)(void *arg);
		void *arg;
	} executors[TN_RING_EXECUTORS_MAX];
	uint32_t nexecutors;
};

/* tn_ring_create with another allocator. */
int tn_ring_make(const struct tn_ring_opts *opts, const struct tn_alloc *alloc, struct tn_ring **out);

/* Says what list `id` is from the next issue on; the list must stay until its IOCBs are finished. 0 or -EINVAL. */
int tn_ring_list_set(struct tn_ring *ring, uint32_t id, const struct tn_ring_list *list);

/* Before any issue: kick is called, on any thread, when there may be something to do. 0 or -EAGAIN: too many. */
int tn_ring_attach(struct tn_ring *ring, void (*kick)(void *arg), void *arg);
void tn_ring_detach(struct tn_ring *ring, void *arg);

/* Executors, after tn_ring_finish: wakes those who wait. */
void tn_ring_notify(struct tn_ring *ring);

#endif
