/* SPDX-License-Identifier: Apache-2.0 */
/* See ring_memory.h. */
#include "region/ring_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define ALIGN 64u

static uint64_t place(uint64_t *end, uint64_t bytes)
{
	uint64_t at = *end;

	*end = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
	return at;
}

static uint64_t pages(uint64_t bytes)
{
	return (bytes + TN_RING_PAGE - 1) / TN_RING_PAGE * TN_RING_PAGE;
}

static bool in_bounds(uint32_t depth, uint32_t ioctxs, uint32_t events)
{
	return depth >= 2 && depth <= TN_RING_DEPTH_MAX && !(depth & (depth - 1)) && ioctxs >= 1 &&
	       ioctxs <= TN_IOCB_IOCTXS_MAX && events <= TN_RING_EVENTS_MAX;
}

static struct tn_ring_shared lay_out(uint32_t depth, uint32_t ioctxs, uint32_t events)
{
	struct tn_ring_shared s = {.magic = TN_RING_MAGIC, .version = TN_RING_VERSION, .depth = depth, .ioctxs = ioctxs, .events = events};
	uint64_t all = (uint64_t)depth * ioctxs, end = sizeof(s);

	s.sq_at = place(&end, depth * sizeof(uint32_t));
	s.iocbs_at = place(&end, depth * sizeof(struct tn_iocb));
	s.events_at = place(&end, events * sizeof(uint64_t));
	s.ioctxs_at = place(&end, all * sizeof(struct tn_ioctx));
	s.executor_at = end = pages(end);
	place(&end, sizeof(struct tn_ring_executor));
	s.cq_at = place(&end, depth * sizeof(uint32_t));
	s.results_at = place(&end, depth * sizeof(struct tn_iocb_result));
	s.statuses_at = place(&end, all * sizeof(int32_t));
	s.sums_at = place(&end, all * sizeof(uint64_t));
	s.bytes = pages(end);
	return s;
}

uint64_t tn_ring_memory_bytes(const struct tn_ring_memory_opts *o)
{
	return in_bounds(o->depth, o->ioctxs, o->events) ? lay_out(o->depth, o->ioctxs, o->events).bytes : 0;
}

void tn_ring_memory_init(void *memory, const struct tn_ring_memory_opts *o)
{
	struct tn_ring_shared head = lay_out(o->depth, o->ioctxs, o->events);
	struct tn_ring_executor *ex = (void *)((char *)memory + head.executor_at);

	memset(memory, 0, head.bytes); /* touched now, so that no submission meets a page fault */
	head.issued.value = head.collected.value = o->start;
	memcpy(memory, &head, sizeof(head));
	ex->taken.value = ex->finished.value = o->start;
}

int tn_ring_memory_view(void *memory, uint64_t bytes, struct tn_ring_view *view)
{
	struct tn_ring_shared *shared = memory, head, same;
	struct tn_ring_executor *ex;
	char *at = memory;

	if (bytes < sizeof(head))
		return -EINVAL;
	memcpy(&head, memory, sizeof(head));
	if (head.magic != TN_RING_MAGIC || head.version != TN_RING_VERSION || !in_bounds(head.depth, head.ioctxs, head.events))
		return -EINVAL;
	/* There is one layout for these numbers. So no offset can lead out of the region, or from one part into another. */
	same = lay_out(head.depth, head.ioctxs, head.events);
	same.issued = head.issued;
	same.collected = head.collected;
	if (memcmp(&head, &same, sizeof(head)) || head.bytes > bytes)
		return -EINVAL;
	ex = (void *)(at + head.executor_at);
	*view = (struct tn_ring_view){
		.depth = head.depth,
		.ioctxs = head.ioctxs,
		.events = head.events,
		.issued = &shared->issued.value,
		.collected = &shared->collected.value,
		.taken = &ex->taken.value,
		.finished = &ex->finished.value,
		.sq = (void *)(at + head.sq_at),
		.cq = (void *)(at + head.cq_at),
		.iocbs = (void *)(at + head.iocbs_at),
		.ctxs = (void *)(at + head.ioctxs_at),
		.event_words = (void *)(at + head.events_at),
		.results = (void *)(at + head.results_at),
		.status_words = (void *)(at + head.statuses_at),
		.sum_words = (void *)(at + head.sums_at),
	};
	return 0;
}
