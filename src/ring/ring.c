/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of a ring: getting, issuing, cancelling, collecting. Moves nothing.
 *
 *   FREE   -> HELD    get              ISSUED -> DONE   poll, when the executor has put the id into the completion queue
 *   HELD   -> ISSUED  issue            DONE   -> FREE   put
 *   HELD   -> FREE    put
 *
 * An id that the completion queue names is the executor's word: one that is not ISSUED is passed by, so that each issue is reported once.
 */
#include "ring/ring.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

enum { FREE, HELD, ISSUED, DONE };

static int check(const struct tn_ring_opts *o)
{
	if (tn_ring_memory_bytes(&o->memory) == 0)
		return tn_fail(-EINVAL, "ring: depth %u: a power of two, 2..%u; %u IOCTXs per IOCB: 1..%u; %u events: at most %u",
			       o->memory.depth, TN_RING_DEPTH_MAX, o->memory.ioctxs, TN_IOCB_IOCTXS_MAX, o->memory.events,
			       TN_RING_EVENTS_MAX);
	if (o->lists == 0 || o->lists > 65536)
		return tn_fail(-EINVAL, "ring: %u lists: 1..65536", o->lists);
	return 0;
}

int tn_ring_create(const struct tn_ring_opts *o, const struct tn_alloc *alloc, struct tn_ring **out)
{
	struct tn_ring *ring;
	int err = check(o);

	if (err)
		return err;
	ring = tn_get(alloc, sizeof(*ring));
	if (!ring)
		return tn_fail(-ENOMEM, "ring: no memory");
	ring->alloc = alloc;
	ring->nlists = o->lists;
	ring->mappings = o->mappings;
	ring->nmappings = o->nmappings;
	ring->nfree = o->memory.depth;
	ring->bytes = tn_ring_memory_bytes(&o->memory);
	ring->lists = tn_get(alloc, tn_array_bytes(o->lists, sizeof(*ring->lists)));
	ring->state = tn_get(alloc, o->memory.depth);
	ring->free = tn_get(alloc, tn_array_bytes(o->memory.depth, sizeof(*ring->free)));
	ring->borrowed = o->at;
	ring->memory = o->at ? o->at : tn_get(alloc, ring->bytes);
	ring->view.depth = o->memory.depth; /* for destroy */
	if (!ring->lists || !ring->state || !ring->free || !ring->memory) {
		tn_ring_destroy(ring);
		return tn_fail(-ENOMEM, "ring: no memory for %u IOCBs of %u IOCTXs", o->memory.depth, o->memory.ioctxs);
	}
	tn_ring_memory_init(ring->memory, &o->memory);
	tn_ring_memory_view(ring->memory, ring->bytes, &ring->view);
	for (uint32_t i = 0; i < o->memory.depth; i++)
		ring->free[i] = o->memory.depth - 1 - i;
	*out = ring;
	return 0;
}

void tn_ring_destroy(struct tn_ring *ring)
{
	const struct tn_alloc *a;

	if (!ring)
		return;
	a = ring->alloc;
	if (!ring->borrowed)
		tn_put(a, ring->memory, ring->bytes);
	tn_put(a, ring->free, tn_array_bytes(ring->view.depth, sizeof(*ring->free)));
	tn_put(a, ring->state, ring->view.depth);
	tn_put(a, ring->lists, tn_array_bytes(ring->nlists, sizeof(*ring->lists)));
	tn_put(a, ring, sizeof(*ring));
}

int tn_ring_list_set(struct tn_ring *ring, uint32_t id, const struct tn_ring_list *list)
{
	if (id >= ring->nlists)
		return tn_fail(-EINVAL, "ring: list %u of %u", id, ring->nlists);
	/* Executors read it after taking an IOCB, whose issue orders this before. */
	__atomic_store_n(&ring->lists[id], list, __ATOMIC_RELEASE);
	return 0;
}

void tn_ring_attach(struct tn_ring *ring, void (*kick)(void *arg), void *arg)
{
	ring->kick = kick;
	ring->kick_arg = arg;
}

static void kick(struct tn_ring *ring)
{
	if (ring->kick)
		ring->kick(ring->kick_arg);
}

int tn_ring_get_iocb(struct tn_ring *ring, uint32_t n, const struct tn_ring_after *after, uint32_t *id)
{
	const struct tn_ring_view *v = &ring->view;
	struct tn_iocb *cb;

	if (n == 0 || n > v->ioctxs)
		return tn_fail(-EINVAL, "ring: %u IOCTXs: 1..%u", n, v->ioctxs);
	if (after && after->event >= v->events)
		return tn_fail(-EINVAL, "ring: event %u of %u", after->event, v->events);
	if (ring->nfree == 0)
		return -EAGAIN; /* not an error: no detail, it is asked often */
	*id = ring->free[--ring->nfree];
	cb = tn_ring_iocb(ring, *id);
	*cb = (struct tn_iocb){.op = TN_IOCB_READ, .count = n, .after_event = TN_RING_NO_EVENT};
	if (after) {
		cb->after_event = after->event;
		cb->after_value = after->value;
	}
	ring->state[*id] = HELD;
	return 0;
}

int tn_ring_issue(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	const struct tn_ring_view *v = &ring->view;

	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= v->depth || ring->state[ids[i]] != HELD)
			return tn_fail(-EINVAL, "ring: IOCB %u is not held; get it first", ids[i]);
	for (uint32_t i = 0; i < n; i++) {
		if (ring->state[ids[i]] != HELD)
			continue; /* named twice: once is enough */
		ring->state[ids[i]] = ISSUED;
		tn_ring_iocb(ring, ids[i])->sequence = ++ring->sequence;
		tn_ring_push(v->issued, v->sq, v->depth, ids[i]);
	}
	kick(ring);
	return 0;
}

static struct tn_ring_completion completion_of(struct tn_ring *ring, uint32_t id)
{
	const struct tn_iocb_result *res = tn_ring_result_of(&ring->view, id);

	return (struct tn_ring_completion){.id = id, .status = res->status, .failed = res->failed, .failures = res->failures};
}

uint32_t tn_ring_poll(struct tn_ring *ring, struct tn_ring_completion *done, uint32_t max)
{
	const struct tn_ring_view *v = &ring->view;
	uint32_t n = 0, id;

	/* No more than the queue can hold, whatever the index says. */
	for (uint32_t i = 0; i < v->depth && n < max && tn_ring_pop(v->collected, v->finished, v->cq, v->depth, &id); i++) {
		if (id >= v->depth || ring->state[id] != ISSUED)
			continue;
		ring->state[id] = DONE;
		done[n++] = completion_of(ring, id);
	}
	return n;
}

int tn_ring_result(struct tn_ring *ring, uint32_t id, struct tn_ring_completion *done)
{
	uint8_t state = id < ring->view.depth ? ring->state[id] : FREE;

	if (state == ISSUED)
		return -EAGAIN;
	if (state != DONE)
		return tn_fail(-EINVAL, "ring: IOCB %u was not issued", id);
	*done = completion_of(ring, id);
	return 0;
}

void tn_ring_cancel(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	bool any = false;

	for (uint32_t i = 0; i < n; i++) {
		if (ids[i] >= ring->view.depth || ring->state[ids[i]] != ISSUED)
			continue;
		tn_ring_store32(&tn_ring_iocb(ring, ids[i])->cancel, 1);
		any = true;
	}
	if (any)
		kick(ring);
}

int tn_ring_put(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint8_t state = ids[i] < ring->view.depth ? ring->state[ids[i]] : FREE;

		if (state != HELD && state != DONE)
			return tn_fail(-EBUSY, "ring: IOCB %u is not finished, or not anyone's", ids[i]);
		ring->state[ids[i]] = FREE;
		ring->free[ring->nfree++] = ids[i];
	}
	return 0;
}

/* The IOCB that is out and was issued first after `last`, or TN_RING_NO_INDEX. */
static uint32_t next_out(struct tn_ring *ring, uint64_t last)
{
	uint32_t next = TN_RING_NO_INDEX;

	for (uint32_t id = 0; id < ring->view.depth; id++)
		if (ring->state[id] == ISSUED && tn_ring_iocb(ring, id)->sequence > last &&
		    (next == TN_RING_NO_INDEX || tn_ring_iocb(ring, id)->sequence < tn_ring_iocb(ring, next)->sequence))
			next = id;
	return next;
}

uint32_t tn_ring_repeat(struct tn_ring *ring)
{
	const struct tn_ring_view *v = &ring->view;
	uint64_t last = 0, newest = ring->sequence;
	uint32_t n = 0, id;

	/* Nobody is on the other side: its words are ours. */
	*v->collected = *v->taken = *v->finished = *v->issued;
	while ((id = next_out(ring, last)) != TN_RING_NO_INDEX && (last = tn_ring_iocb(ring, id)->sequence) <= newest) {
		/* A new life: what was told of the one before does not count. */
		tn_ring_iocb(ring, id)->sequence = ++ring->sequence;
		tn_ring_push(v->issued, v->sq, v->depth, id);
		n++;
	}
	kick(ring);
	return n;
}

int tn_ring_signal(struct tn_ring *ring, uint32_t event, uint64_t value)
{
	uint64_t *word = &ring->view.event_words[event];

	if (event >= ring->view.events)
		return tn_fail(-EINVAL, "ring: event %u of %u", event, ring->view.events);
	/* release: what was written before the signal, before the transfers that wait for it */
	if (*word < value)
		tn_ring_store64(word, value);
	kick(ring);
	return 0;
}
