/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a host and an executor share (tenuto/ring.h): how long it is, where its parts lie, and the check that each side makes
 * before it believes the head. Pure: no state, no allocation.
 */
#ifndef TN_REGION_RING_MEMORY_H
#define TN_REGION_RING_MEMORY_H

#include <tenuto/ring.h>

/**
 * struct tn_ring_memory_opts
 * @depth:  IOCBs, a power of two, 2..TN_RING_DEPTH_MAX
 * @ioctxs: most IOCTXs of one IOCB, 1..TN_IOCB_IOCTXS_MAX
 * @events: event words, up to TN_RING_EVENTS_MAX
 * @start:  where the queues' 64-bit positions begin (tests of their wrap-around)
 */
struct tn_ring_memory_opts {
	uint32_t depth;
	uint32_t ioctxs;
	uint32_t events;
	uint64_t start;
};

/* Bytes that a region takes, a multiple of TN_RING_PAGE; 0: the options are out of bounds. */
uint64_t tn_ring_memory_bytes(const struct tn_ring_memory_opts *opts);
/* Makes a region of memory of so many bytes, which begins at a page if the parts are to be mapped differently. Writes all of it. */
void tn_ring_memory_init(void *memory, const struct tn_ring_memory_opts *opts);
/*
 * Copies and checks the head of a region that is so long: 0 and *view, whose parts all lie in the region, or -EINVAL. A head that changes
 * later changes nothing.
 */
int tn_ring_memory_view(void *memory, uint64_t bytes, struct tn_ring_view *view);

#endif
