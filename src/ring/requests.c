/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of a lane (lane.h) whose devices are files of an I/O engine: each piece is one request of the I/O contract. A lane without a
 * thread uses its owner's engine, which the owner polls; one with a thread has an engine of its own, which adopts the owner's open files.
 */
#include <errno.h>

#include "base/error.h"
#include "base/list.h"
#include "ring/lane.h"

#define BATCH 64u

struct requests {
	struct tn_lane_transport transport;
	struct tn_io *io;
	bool own; /* io is the lane's own */
	const struct tn_alloc *alloc;
	uint32_t depth;
	struct tn_io_req *req; /* by piece */
	uint32_t file[TN_RING_DEVICES_MAX];
};

/* For each lane's transport. */
struct places {
	const struct tn_executor_files *files;
	struct tn_io_lent lent[TN_RING_DEVICES_MAX]; /* with threads */
};

static struct requests *of(struct tn_lane_transport *transport)
{
	return tn_container_of(transport, struct requests, transport);
}

static void done(struct tn_io_req *req)
{
	tn_lane_piece_over(req->owner, req->status, req->issue_ns);
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct requests *r = of(transport);
	struct tn_io_req *batch[BATCH];
	uint32_t sent = 0, some, took;

	do {
		for (some = 0; some < BATCH && sent + some < n; some++) {
			struct tn_lane_piece *p = piece[sent + some];

			batch[some] = &r->req[p->number];
			*batch[some] = (struct tn_io_req){.op = tn_lane_op_of(p), .file = r->file[tn_lane_device_of(p)], .offset = p->offset,
							  .length = p->length, .iov_count = p->iov_count, .iov = p->iov, .done = done,
							  .owner = p};
		}
		took = tn_io_submit(r->io, batch, some);
		sent += took;
	} while (took == some && sent < n);
	return sent;
}

static bool poll(struct tn_lane_transport *transport, uint64_t wait_ns)
{
	struct requests *r = of(transport);
	struct tn_io_req *ended[BATCH];
	unsigned n = r->own ? tn_io_poll(r->io, ended, BATCH, wait_ns) : 0;

	for (unsigned i = 0; i < n; i++)
		ended[i]->done(ended[i]);
	return n > 0;
}

static bool busy(struct tn_lane_transport *transport)
{
	return false; /* what ends wakes the owner, who waits for the engine */
}

static void wake(struct tn_lane_transport *transport)
{
	tn_io_wake(of(transport)->io);
}

static int map(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	return tn_io_map(of(transport)->io, memory, bytes);
}

static void unmap(struct tn_lane_transport *transport, void *memory, uint64_t bytes)
{
	tn_io_unmap(of(transport)->io, memory, bytes);
}

static void unmake(struct tn_lane_transport *transport)
{
	struct requests *r = of(transport);

	if (r->own)
		tn_io_destroy(r->io);
	tn_put(r->alloc, r->req, tn_array_bytes(r->depth, sizeof(*r->req)));
	tn_put(r->alloc, r, sizeof(*r));
}

static int add_device(struct requests *r, const struct places *p, uint32_t device)
{
	struct tn_io_stat st = {.offset_align = 1, .memory_align = 1};
	uint32_t *file = &r->file[device];
	int err = 0;

	*file = p->files->file[device];
	if (*file != TN_IO_NO_FILE && r->own)
		err = tn_io_adopt(r->io, &p->lent[device], file);
	if (*file != TN_IO_NO_FILE && !err)
		err = tn_io_stat(r->io, *file, &st);
	r->transport.align[device] = st.offset_align > st.memory_align ? st.offset_align : st.memory_align;
	return err;
}

static int make(const struct tn_executor_opts *o, const void *places, uint32_t number, struct tn_lane_transport **out)
{
	const struct places *p = places;
	struct requests *r = tn_get(o->alloc, sizeof(*r));
	int err = 0;

	if (!r)
		return tn_fail(-ENOMEM, "executor: no memory");
	r->own = o->threads > 0;
	r->io = r->own ? NULL : p->files->io;
	r->alloc = o->alloc;
	r->depth = o->depth;
	r->req = tn_get(o->alloc, tn_array_bytes(o->depth, sizeof(*r->req)));
	if (!r->req)
		err = tn_fail(-ENOMEM, "executor: no memory for %u requests", o->depth);
	if (!err && r->own)
		err = p->files->engine(p->files->engine_arg, &r->io);
	for (uint32_t i = 0; i < o->ndevices && !err; i++)
		err = add_device(r, p, i);
	if (err) {
		unmake(&r->transport);
		return err;
	}
	r->transport.maps = r->io->ops->map;
	*out = &r->transport;
	return 0;
}

static const struct tn_lane_transport_ops ops = {
	.make = make,
	.unmake = unmake,
	.send = send,
	.poll = poll,
	.busy = busy,
	.wake = wake,
	.map = map,
	.unmap = unmap,
};

int tn_executor_files_create(const struct tn_executor_opts *o, const struct tn_executor_files *files, struct tn_executor **out)
{
	struct places p = {.files = files};
	int err = 0;

	for (uint32_t i = 0; o->threads && i < o->ndevices && i < TN_RING_DEVICES_MAX && !err; i++)
		err = files->file[i] == TN_IO_NO_FILE ? 0 : tn_io_lend(files->io, files->file[i], &p.lent[i]);
	if (err)
		return err;
	return tn_executor_create(o, &ops, &p, out);
}
