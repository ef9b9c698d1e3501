/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of a ring: getting, issuing, waiting, cancelling. Moves nothing.
 *
 * An IOCB's state says whose it is (enum tn_iocb_state). A cancelled one is finished at once, but its id
 * stays in the submission queue; it is free again when both its owner has put it and the queue has come to it.
 */
#include "ring/ring_internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/error.h"

/* An executor on a device cannot wake a futex, so nobody sleeps longer than this without looking. */
#define NAP_NS 5000000u

void tn_ring_opts_init_sized(struct tn_ring_opts *opts, size_t size)
{
	static const struct tn_ring_opts defaults = {
		.size = sizeof(defaults), .depth = 64, .ioctxs = TN_IOCB_IOCTXS_MAX, .events = 64, .lists = 64};

	tn_abi_init(opts, size, &defaults, sizeof(defaults));
}

static int check(const struct tn_ring_opts *o)
{
	if (o->depth < 2 || o->depth > TN_RING_DEPTH_MAX || (o->depth & (o->depth - 1)))
		return tn_fail(-EINVAL, "ring: depth %u: a power of two, 2..%u", o->depth, TN_RING_DEPTH_MAX);
	if (o->ioctxs == 0 || o->ioctxs > TN_IOCB_IOCTXS_MAX)
		return tn_fail(-EINVAL, "ring: %u IOCTXs an IOCB: 1..%u", o->ioctxs, TN_IOCB_IOCTXS_MAX);
	if (o->events > 65536 || o->lists == 0 || o->lists > 65536)
		return tn_fail(-EINVAL, "ring: %u events and %u lists: at most 65536, and one list", o->events, o->lists);
	return 0;
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
	uint64_t at = *end;

	*end = (at + bytes + 63) / 64 * 64;
	return at;
}

/* The head of a region that is long enough for all its parts; offsets are multiples of 64. */
static struct tn_ring_shared lay_out(const struct tn_ring_opts *o)
{
	struct tn_ring_shared s = {.magic = TN_RING_MAGIC, .version = TN_RING_VERSION};
	uint64_t end = sizeof(s), cells = o->depth * sizeof(struct tn_ring_cell);

	s.depth = o->depth;
	s.ioctxs = o->ioctxs;
	s.events = o->events;
	s.sq_at = place(&end, cells);
	s.cq_at = place(&end, cells);
	s.free_at = place(&end, cells);
	s.iocbs_at = place(&end, o->depth * sizeof(struct tn_iocb));
	s.events_at = place(&end, o->events * sizeof(uint64_t));
	s.ioctxs_at = place(&end, (uint64_t)o->depth * o->ioctxs * sizeof(struct tn_ioctx));
	s.statuses_at = place(&end, (uint64_t)o->depth * o->ioctxs * sizeof(int32_t));
	s.sums_at = place(&end, (uint64_t)o->depth * o->ioctxs * sizeof(uint64_t));
	s.bytes = end;
	return s;
}

int tn_ring_make(const struct tn_ring_opts *opts, const struct tn_alloc *alloc, struct tn_ring **out)
{
	struct tn_ring_shared head;
	struct tn_ring_opts o;
	struct tn_ring *ring;
	int err;

	tn_ring_opts_init(&o);
	err = tn_abi_in(TN_ABI(tn_ring_opts, start), &o, opts);
	if (err == 0)
		err = check(&o);
	if (err)
		return err;
	head = lay_out(&o);
	ring = tn_get(alloc, sizeof(*ring));
	if (!ring)
		return tn_fail(-ENOMEM, "ring: no memory");
	ring->alloc = alloc;
	ring->nlists = o.lists;
	ring->lists = tn_get(alloc, tn_array_bytes(o.lists, sizeof(*ring->lists)));
	ring->shared = tn_get(alloc, head.bytes);
	if (!ring->lists || !ring->shared) {
		if (ring->shared)
			tn_put(alloc, ring->shared, head.bytes);
		tn_put(alloc, ring->lists, tn_array_bytes(o.lists, sizeof(*ring->lists)));
		tn_put(alloc, ring, sizeof(*ring));
		return tn_fail(-ENOMEM, "ring: no memory for %u IOCBs of %u IOCTXs", o.depth, o.ioctxs);
	}
	memset(ring->shared, 0, head.bytes); /* touched now, so that no submission meets a page fault */
	*ring->shared = head;
	tn_ring_queue_init(&ring->shared->sq, tn_ring_cells(ring->shared, head.sq_at), head.depth, o.start);
	tn_ring_queue_init(&ring->shared->cq, tn_ring_cells(ring->shared, head.cq_at), head.depth, o.start);
	tn_ring_queue_init(&ring->shared->free, tn_ring_cells(ring->shared, head.free_at), head.depth, o.start);
	for (uint32_t i = 0; i < head.depth; i++)
		tn_ring_push(&ring->shared->free, tn_ring_cells(ring->shared, head.free_at), i);
	*out = ring;
	return 0;
}

int tn_ring_create(const struct tn_ring_opts *opts, struct tn_ring **out)
{
	return tn_ring_make(opts, &tn_alloc_system, out);
}

void tn_ring_destroy(struct tn_ring *ring)
{
	const struct tn_alloc *alloc;

	if (!ring)
		return;
	alloc = ring->alloc;
	tn_put(alloc, ring->shared, ring->shared->bytes);
	tn_put(alloc, ring->lists, tn_array_bytes(ring->nlists, sizeof(*ring->lists)));
	tn_put(alloc, ring, sizeof(*ring));
}

struct tn_ring_shared *tn_ring_memory(struct tn_ring *ring)
{
	return ring->shared;
}

struct tn_iocb *tn_ring_iocb(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_iocb_of(ring->shared, id);
}

struct tn_ioctx *tn_ring_ioctx(struct tn_ring *ring, uint32_t id)
{
	return tn_ring_ioctx_of(ring->shared, id);
}

int tn_ring_list_set(struct tn_ring *ring, uint32_t id, const struct tn_ring_list *list)
{
	if (id >= ring->nlists)
		return tn_fail(-EINVAL, "ring: list %u of %u", id, ring->nlists);
	/* Executors read it after taking an IOCB, whose issue orders this before. */
	__atomic_store_n(&ring->lists[id], list, __ATOMIC_RELEASE);
	return 0;
}

int tn_ring_attach(struct tn_ring *ring, void (*kick)(void *arg), void *arg)
{
	if (ring->nexecutors == TN_RING_EXECUTORS_MAX)
		return tn_fail(-EAGAIN, "ring: %u executors are attached, the most there can be", ring->nexecutors);
	ring->executors[ring->nexecutors].kick = kick;
	ring->executors[ring->nexecutors++].arg = arg;
	return 0;
}

void tn_ring_detach(struct tn_ring *ring, void *arg)
{
	for (uint32_t i = 0; i < ring->nexecutors; i++) {
		if (ring->executors[i].arg != arg)
			continue;
		ring->executors[i] = ring->executors[--ring->nexecutors];
		return;
	}
}

static void kick(struct tn_ring *ring)
{
	for (uint32_t i = 0; i < ring->nexecutors; i++)
		ring->executors[i].kick(ring->executors[i].arg);
}

int tn_ring_get_iocb(struct tn_ring *ring, uint32_t n, const struct tn_ring_after *after, uint32_t *id)
{
	struct tn_ring_shared *s = ring->shared;
	struct tn_iocb *cb;
	uint32_t i;

	if (n == 0 || n > s->ioctxs)
		return tn_fail(-EINVAL, "ring: %u IOCTXs: 1..%u", n, s->ioctxs);
	if (after && after->event >= s->events)
		return tn_fail(-EINVAL, "ring: event %u of %u", after->event, s->events);
	if (!tn_ring_pop(&s->free, tn_ring_cells(s, s->free_at), &i))
		return -EAGAIN; /* not an error: no detail, it is asked often */
	cb = tn_ring_iocb_of(s, i);
	cb->op = TN_IOCB_READ;
	cb->flags = 0;
	cb->list = cb->source = 0;
	cb->count = n;
	cb->after_event = after ? after->event : TN_RING_NO_EVENT;
	cb->after_value = after ? after->value : 0;
	cb->priority = 0;
	tn_ring_store32(&cb->cancel, 0);
	tn_ring_store32(&cb->ended, 0);
	tn_ring_store32(&cb->state, TN_IOCB_HELD);
	*id = i;
	return 0;
}

int tn_ring_issue(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	struct tn_ring_shared *s = ring->shared;

	for (uint32_t i = 0; i < n; i++)
		if (ids[i] >= s->depth || tn_ring_load32(&tn_ring_iocb_of(s, ids[i])->state) != TN_IOCB_HELD)
			return tn_fail(-EINVAL, "ring: IOCB %u is not held; get it first", ids[i]);
	for (uint32_t i = 0; i < n; i++) {
		struct tn_iocb *cb = tn_ring_iocb_of(s, ids[i]);

		if (tn_ring_load32(&cb->state) != TN_IOCB_HELD)
			continue; /* named twice: once is enough */
		cb->sequence = __atomic_fetch_add(&s->sequence, 1, __ATOMIC_RELAXED);
		/* What it says if it is cancelled before anyone takes it. */
		cb->status = -ECANCELED;
		cb->failed = 0;
		cb->failures = cb->count;
		for (uint32_t k = 0; k < cb->count && k < s->ioctxs; k++)
			tn_ring_statuses_of(s, ids[i])[k] = TN_RING_PENDING;
		tn_ring_store32(&cb->state, TN_IOCB_ISSUED);
		tn_ring_push_sure(&s->sq, tn_ring_cells(s, s->sq_at), ids[i]);
	}
	kick(ring);
	return 0;
}

static void completion_of(struct tn_ring *ring, uint32_t id, struct tn_ring_completion *done)
{
	const struct tn_iocb *cb = tn_ring_iocb(ring, id);

	*done = (struct tn_ring_completion){
		.id = id, .status = cb->status, .failed = cb->failed, .failures = cb->failures};
}

uint32_t tn_ring_poll(struct tn_ring *ring, struct tn_ring_completion *done, uint32_t max)
{
	struct tn_ring_shared *s = ring->shared;
	uint32_t n = 0, id;

	for (; n < max && tn_ring_pop(&s->cq, tn_ring_cells(s, s->cq_at), &id); n++)
		completion_of(ring, id, &done[n]);
	return n;
}

static bool is_finished(uint32_t state)
{
	return state == TN_IOCB_DONE || state == TN_IOCB_CANCELLED;
}

int tn_ring_result(struct tn_ring *ring, uint32_t id, struct tn_ring_completion *done)
{
	uint32_t state = id < ring->shared->depth ? tn_ring_load32(&tn_ring_iocb(ring, id)->state) : TN_IOCB_FREE;

	if (state == TN_IOCB_ISSUED || state == TN_IOCB_TAKEN)
		return -EAGAIN;
	if (!is_finished(state))
		return tn_fail(-EINVAL, "ring: IOCB %u was not issued", id);
	completion_of(ring, id, done);
	return 0;
}

/* How many of the first n are finished, from the front; -EINVAL: one was not issued. */
static int count_finished(struct tn_ring *ring, const uint32_t *ids, uint32_t n, uint32_t *finished)
{
	struct tn_ring_completion c;
	uint32_t i;

	for (i = 0; i < n; i++) {
		int err = tn_ring_result(ring, ids[i], &c);

		if (err == -EAGAIN)
			break;
		if (err)
			return err;
	}
	*finished = i;
	return 0;
}

static void nap(uint32_t *word, uint32_t value, uint64_t ns)
{
	struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &ts, NULL, 0);
}

int tn_ring_wait(struct tn_ring *ring, const uint32_t *ids, uint32_t n, uint64_t deadline_ns)
{
	uint32_t finished = 0;
	int err;

	__atomic_add_fetch(&ring->waiters, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		/* Before looking: what finishes after this changes it, and then nap returns. */
		uint32_t seq = __atomic_load_n(&ring->shared->done_seq, __ATOMIC_SEQ_CST);
		uint64_t now;

		err = count_finished(ring, ids, n, &finished);
		if (err || finished == n)
			break;
		ids += finished;
		n -= finished;
		now = tn_now_ns(&tn_clock_system);
		if (now >= deadline_ns) {
			err = -ETIMEDOUT;
			break;
		}
		nap(&ring->shared->done_seq, seq, deadline_ns - now < NAP_NS ? deadline_ns - now : NAP_NS);
	}
	__atomic_sub_fetch(&ring->waiters, 1, __ATOMIC_RELEASE);
	return err;
}

void tn_ring_notify(struct tn_ring *ring)
{
	/* Pairs with the counting in tn_ring_wait: it sees the new done_seq, or we see it wait. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&ring->waiters, __ATOMIC_RELAXED))
		syscall(SYS_futex, &ring->shared->done_seq, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

uint32_t tn_ring_cancel(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	struct tn_ring_shared *s = ring->shared;
	uint32_t cancelled = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_iocb *cb;
		int quiet;

		if (ids[i] >= s->depth)
			continue;
		cb = tn_ring_iocb_of(s, ids[i]);
		quiet = cb->flags & TN_IOCB_QUIET;
		tn_ring_store32(&cb->cancel, 1);
		if (!tn_ring_cas32(&cb->state, TN_IOCB_ISSUED, TN_IOCB_CANCELLED))
			continue;
		if (!quiet)
			tn_ring_push_sure(&s->cq, tn_ring_cells(s, s->cq_at), ids[i]);
		tn_ring_add32(&s->done_seq, 1);
		cancelled++;
	}
	if (cancelled)
		tn_ring_notify(ring);
	kick(ring);
	return cancelled;
}

/* TN_IOCB_FREE: it is free now; TN_IOCB_LEFT: whoever takes it from the submission queue frees it; else its state. */
static uint32_t let_go(struct tn_iocb *cb)
{
	for (;;) {
		uint32_t state = tn_ring_load32(&cb->state);
		uint32_t next = state == TN_IOCB_CANCELLED ? TN_IOCB_LEFT : TN_IOCB_FREE;

		if (state != TN_IOCB_HELD && state != TN_IOCB_DONE && state != TN_IOCB_CANCELLED)
			return state == TN_IOCB_TAKEN ? TN_IOCB_TAKEN : TN_IOCB_ISSUED;
		if (tn_ring_cas32(&cb->state, state, next)) /* else the queue came to it just now */
			return next;
	}
}

int tn_ring_put(struct tn_ring *ring, const uint32_t *ids, uint32_t n)
{
	struct tn_ring_shared *s = ring->shared;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t state = ids[i] < s->depth ? let_go(tn_ring_iocb_of(s, ids[i])) : TN_IOCB_ISSUED;

		if (state == TN_IOCB_FREE)
			tn_ring_push_sure(&s->free, tn_ring_cells(s, s->free_at), ids[i]);
		else if (state != TN_IOCB_LEFT)
			return tn_fail(-EBUSY, "ring: IOCB %u is not finished, or not anyone's", ids[i]);
	}
	return 0;
}

int tn_ring_signal(struct tn_ring *ring, uint32_t event, uint64_t value)
{
	uint64_t *word, old;

	if (event >= ring->shared->events)
		return tn_fail(-EINVAL, "ring: event %u of %u", event, ring->shared->events);
	word = tn_ring_event_of(ring->shared, event);
	old = __atomic_load_n(word, __ATOMIC_RELAXED);
	/* release: what was written before the signal, before the transfers that wait for it */
	while (old < value && !__atomic_compare_exchange_n(word, &old, value, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	kick(ring);
	return 0;
}
