/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of a ring (tenuto/ring.h): getting, issuing, cancelling and collecting IOCBs, and the lists that say what an entry is in
 * memory. What state an IOCB is in is the host's private memory.
 *
 * A list names bytes by the number of a memory and offsets in it, never by addresses. An executor of CPUs turns them into addresses when it moves the
 * bytes, by the mapping that the memory has in this process. It checks each object against that mapping first: a list of another memory's offsets, or of
 * memory that no CPU may touch, gets errors and nothing is touched.
 *
 * One thread, the owner, makes all calls. A ring has one executor, which takes and finishes.
 */
#ifndef TN_RING_RING_H
#define TN_RING_RING_H

#include <stdbool.h>

#include "base/alloc.h"
#include "layout/layout.h"
#include "region/ring_memory.h"

/**
 * struct tn_ring_list - where the objects of one load, save or buffer lie in memory, prepared once for it
 * @shape:  of all its objects; entry = block * layers + layer
 * @blocks: how many
 * @memory: the number of the memory that they lie in (struct tn_ring_opts, mappings)
 * @layout: the destination is a pool's pages; or NULL: flat memory
 * @pages:  with layout: pages_per_block indices a block
 * @first_page, @end_page: with layout: of those the pages that are wanted; the others are left alone
 * @flat:   without layout: by block, the offset of memory in the order and padding of the slot on disk
 * @align:  all pieces of memory have addresses and lengths that are multiples of this; 1: not known
 * @checks: by entry: expected checksums (TN_IOCB_VERIFY)
 *
 * Every object of a list has the same length. What is written, or copied from, needs all pages of its blocks.
 */
struct tn_ring_list {
	const struct tn_shape *shape;
	uint32_t blocks;
	uint32_t memory;
	const struct tn_layout *layout;
	const uint32_t *pages;
	uint64_t first_page, end_page;
	const uint64_t *flat;
	uint32_t align;
	const uint64_t *checks;
};

/**
 * struct tn_ring_opts - begin with tn_ring_opts_default
 * @lists:    that an executor in this process can be told of
 * @mappings: by the number of a memory, @nmappings of them: how executors in this process reach it; NULL: they do not. The caller's, who writes an entry
 *            with release, and not while an IOCB is out whose lists name it
 * @at:       memory of tn_ring_memory_bytes for the region, which the caller shares with another process and keeps; NULL: private memory
 */
struct tn_ring_opts {
	struct tn_ring_memory_opts memory;
	uint32_t lists;
	uint32_t nmappings;
	const struct tn_mapping *const *mappings;
	void *at;
};

static inline struct tn_ring_opts tn_ring_opts_default(void)
{
	return (struct tn_ring_opts){{.depth = 64, .ioctxs = TN_IOCB_IOCTXS_MAX, .events = 64}, .lists = 64};
}

/* What an IOCB waits for: the event's word to be at least value. */
struct tn_ring_after {
	uint32_t event;
	uint64_t value;
};

/* A finished IOCB; its header, IOCTXs, statuses and sums can be read until tn_ring_put. */
struct tn_ring_completion {
	uint32_t id;
	int32_t status;
	uint32_t failed;
	uint32_t failures;
};

struct tn_ring {
	struct tn_ring_view view;
	void *memory;
	uint64_t bytes;
	bool borrowed; /* the memory */
	const struct tn_alloc *alloc;
	const struct tn_ring_list **lists;
	uint32_t nlists;
	uint32_t nmappings;
	const struct tn_mapping *const *mappings;
	uint8_t *state;	/* by IOCB */
	uint32_t *free; /* IOCBs */
	uint32_t nfree;
	uint64_t sequence;
	void (*kick)(void *arg);
	void *kick_arg;
};

/* 0 and *out, -EINVAL (the option and its value), -ENOMEM. */
int tn_ring_create(const struct tn_ring_opts *opts, const struct tn_alloc *alloc, struct tn_ring **out);
/* The executor is gone; NULL is fine. */
void tn_ring_destroy(struct tn_ring *ring);

/* Says what list `id` is from the next issue on; the list must stay until its IOCBs are finished. 0 or -EINVAL. */
int tn_ring_list_set(struct tn_ring *ring, uint32_t id, const struct tn_ring_list *list);
/* Before any issue: kick is called when there may be something to do. NULL: no more. */
void tn_ring_attach(struct tn_ring *ring, void (*kick)(void *arg), void *arg);

/*
 * An IOCB to be filled, with n IOCTXs, which may be lowered (count in the header) before the issue. Its op is READ, priority 0,
 * no flags, list 0. 0 and *id, -EINVAL (n, or no such event), -EAGAIN (all IOCBs are out: poll and put some).
 */
int tn_ring_get_iocb(struct tn_ring *ring, uint32_t n, const struct tn_ring_after *after, uint32_t *id);
/* Hands IOCBs to the executor, in this order. 0, or -EINVAL: one of them is not held (then none is issued). */
int tn_ring_issue(struct tn_ring *ring, const uint32_t *ids, uint32_t n);
/* Finished IOCBs, each once; returns how many. */
uint32_t tn_ring_poll(struct tn_ring *ring, struct tn_ring_completion *done, uint32_t max);
/* What became of an IOCB: 0 and *done, -EAGAIN: it did not come through tn_ring_poll yet, -EINVAL: it was never issued. */
int tn_ring_result(struct tn_ring *ring, uint32_t id, struct tn_ring_completion *done);
/*
 * Asks for an end: no more of its transfers start. It is finished when those under way have ended, and says which entries were
 * moved; with -ECANCELED, or as if never cancelled. What is not issued, or finished, is passed by.
 */
void tn_ring_cancel(struct tn_ring *ring, const uint32_t *ids, uint32_t n);
/* Gives finished IOCBs back, or held ones that will not be issued. 0, or -EBUSY: one of them is out (those before it were given back). */
int tn_ring_put(struct tn_ring *ring, const uint32_t *ids, uint32_t n);
/*
 * The executor is gone for ever, with all I/O that it began, and what it had finished came through tn_ring_poll. Hands all that is still out to
 * the next executor, in the order of issue. Returns how many. Until then what these IOCBs name must stay reserved: transfers may be done again.
 */
uint32_t tn_ring_repeat(struct tn_ring *ring);
/* Raises an event's word; IOCBs that wait for it start. A lower value changes nothing. 0, or -EINVAL: no such event. */
int tn_ring_signal(struct tn_ring *ring, uint32_t event, uint64_t value);

/* The header and the IOCTXs of an IOCB that the caller holds. */
static inline struct tn_iocb *tn_ring_iocb(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_iocb_of(&ring->view, id);
}

static inline struct tn_ioctx *tn_ring_ioctx(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_ioctx_of(&ring->view, id);
}

/* The statuses of an IOCB that was issued (acquire each), or NULL: none of its IOCTXs has ended. */
static inline const int32_t *tn_ring_statuses(struct tn_ring *ring, uint32_t id)
{
	const struct tn_iocb_result *res = tn_ring_result_of(&ring->view, id);

	return tn_ring_load64(&res->sequence) == tn_ring_iocb(ring, id)->sequence ? tn_ring_statuses_of(&ring->view, id) : NULL;
}

/* How many of its IOCTXs have ended (acquire: their statuses are there). */
static inline uint32_t tn_ring_ended(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_statuses(ring, id) ? tn_ring_load32(&tn_ring_result_of(&ring->view, id)->ended) : 0;
}

/* The checksums of a finished IOCB. */
static inline const uint64_t *tn_ring_sums(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_sums_of(&ring->view, id);
}

#endif
