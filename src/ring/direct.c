/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See direct.h. A transfer ends on a thread of the plugin's, which puts it on a list and wakes the transport below. The lane takes the list at its next
 * poll. What fails comes back as memory that the device cannot reach (-EXDEV), whatever the cause: the lane moves it again by way of a bounce
 * buffer, and what is wrong with the drive or the memory is found there.
 */
#include "ring/direct.h"

#include <errno.h>

#include "base/error.h"
#include "base/list.h"
#include "device/direct.h"

/* By piece. */
struct transfer {
	struct tn_device_file_transfer o;
	struct direct *x;
	struct tn_lane_piece *piece;
	struct transfer *next;
};

struct direct {
	struct tn_lane_transport transport;
	struct tn_lane_transport *below;
	struct tn_direct *way;
	const struct tn_alloc *alloc;
	uint32_t depth;
	struct transfer *transfer;
	struct transfer *ended; /* shared */
};

static struct direct *of(struct tn_lane_transport *transport)
{
	return tn_container_of(transport, struct direct, transport);
}

/* A thread of the plugin's. */
static void done(struct tn_device_file_transfer *o)
{
	struct transfer *t = tn_container_of(o, struct transfer, o);
	struct direct *x = t->x;

	t->next = __atomic_load_n(&x->ended, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&x->ended, &t->next, t, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	x->below->ops->wake(x->below); /* it is there until no thread of the plugin's calls any more */
}

static bool end_pieces(struct direct *x)
{
	struct transfer *t = __atomic_exchange_n(&x->ended, NULL, __ATOMIC_ACQUIRE);
	bool any = t;

	while (t) {
		struct transfer *next = t->next; /* the lane may send another piece of that number */

		if (t->o.status)
			tn_direct_failed(x->way, tn_lane_device_of(t->piece), &t->o);
		tn_lane_piece_over(t->piece, t->o.status ? -EXDEV : 0, t->o.began_ns);
		t = next;
	}
	return any;
}

static void submit(struct direct *x, struct tn_lane_piece *p)
{
	struct transfer *t = &x->transfer[p->number];

	t->x = x;
	t->piece = p;
	t->o = (struct tn_device_file_transfer){.piece = p->iov, .npieces = p->iov_count, .write = tn_lane_op_of(p) == TN_IO_WRITE, .offset = p->offset, .done = done};
	tn_direct_submit(x->way, tn_lane_device_of(p), &t->o);
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct direct *x = of(transport);
	uint32_t sent = 0, some, took;

	while (sent < n) {
		for (; sent < n && tn_lane_on_device(piece[sent]->group); sent++)
			submit(x, piece[sent]);
		for (some = 0; sent + some < n && !tn_lane_on_device(piece[sent + some]->group);)
			some++;
		took = some ? x->below->ops->send(x->below, piece + sent, some) : 0;
		sent += took;
		if (took < some)
			break;
	}
	return sent;
}

static bool poll(struct tn_lane_transport *transport, uint64_t wait_ns)
{
	struct direct *x = of(transport);
	bool any = end_pieces(x);

	any |= x->below->ops->poll(x->below, any ? 0 : wait_ns);
	return end_pieces(x) || any;
}

static bool busy(struct tn_lane_transport *transport)
{
	struct direct *x = of(transport);

	return x->below->ops->busy(x->below);
}

static void wake(struct tn_lane_transport *transport)
{
	struct direct *x = of(transport);

	x->below->ops->wake(x->below);
}

static int map(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	struct direct *x = of(transport);

	return x->below->ops->map(x->below, memory, bytes);
}

static void unmap(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	struct direct *x = of(transport);

	x->below->ops->unmap(x->below, memory, bytes);
}

static void unmake(struct tn_lane_transport *transport)
{
	struct direct *x = of(transport);

	if (x->below)
		x->below->ops->unmake(x->below);
	tn_put(x->alloc, x->transfer, tn_array_bytes(x->depth, sizeof(*x->transfer)));
	tn_put(x->alloc, x, sizeof(*x));
}

static int make(const struct tn_executor_opts *o, const void *places, uint32_t number, struct tn_lane_transport **out)
{
	const struct tn_direct_places *p = places;
	struct direct *x = tn_get(o->alloc, sizeof(*x));
	int err;

	if (!x)
		return tn_fail(-ENOMEM, "executor: no memory");
	x->way = o->direct;
	x->alloc = o->alloc;
	x->depth = o->depth;
	x->transfer = tn_get(o->alloc, tn_array_bytes(o->depth, sizeof(*x->transfer)));
	err = x->transfer ? p->below->make(o, p->places, number, &x->below) : tn_fail(-ENOMEM, "executor: no memory for %u transfers", o->depth);
	if (err) {
		unmake(&x->transport);
		return err;
	}
	x->below->ops = p->below;
	x->transport = *x->below;
	*out = &x->transport;
	return 0;
}

const struct tn_lane_transport_ops tn_direct_transport_ops = {
	.make = make,
	.unmake = unmake,
	.send = send,
	.poll = poll,
	.busy = busy,
	.wake = wake,
	.map = map,
	.unmap = unmap,
};
