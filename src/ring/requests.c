/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of a lane (lane.h) whose devices are files of an I/O engine: each piece is one request of the I/O contract. */
#include <errno.h>

#include "base/error.h"
#include "base/list.h"
#include "ring/lane.h"

#define BATCH 64u

static void done(struct tn_io_req *req)
{
	tn_lane_piece_over(req->owner, req->status, req->issue_ns);
}

static uint32_t send(struct tn_lane_transport *transport, struct tn_lane_piece *const *piece, uint32_t n)
{
	struct tn_lane_requests *r = tn_container_of(transport, struct tn_lane_requests, transport);
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

/* If the engine cannot map it, its bytes are copied once more. */
static int map(struct tn_lane_transport *transport, void *memory, size_t bytes)
{
	tn_io_map(tn_container_of(transport, struct tn_lane_requests, transport)->io, memory, bytes);
	return 0;
}

static void unmap(struct tn_lane_transport *transport, void *memory, size_t bytes)
{
	struct tn_lane_requests *r = tn_container_of(transport, struct tn_lane_requests, transport);

	if (r->io) /* one that is gone has forgotten it */
		tn_io_unmap(r->io, memory, bytes);
}

int tn_lane_requests_init(struct tn_lane_requests *r, struct tn_io *io, uint32_t depth, const struct tn_alloc *alloc)
{
	*r = (struct tn_lane_requests){.transport = {.send = send, .map = map, .unmap = unmap}, .io = io, .alloc = alloc, .depth = depth};
	r->req = tn_get(alloc, tn_array_bytes(depth, sizeof(*r->req)));
	return r->req ? 0 : tn_fail(-ENOMEM, "executor: no memory for %u requests", depth);
}

void tn_lane_requests_fini(struct tn_lane_requests *r)
{
	if (r->req)
		tn_put(r->alloc, r->req, tn_array_bytes(r->depth, sizeof(*r->req)));
}

int tn_lane_requests_add(struct tn_lane_requests *r, uint32_t file, uint32_t *align)
{
	struct tn_io_stat st = {.offset_align = 1, .memory_align = 1};
	int err = file == TN_IO_NO_FILE ? 0 : tn_io_stat(r->io, file, &st);

	if (err)
		return err;
	if (r->files == TN_RING_DEVICES_MAX)
		return tn_fail(-EINVAL, "executor: %u devices, the most an address can name", r->files);
	r->file[r->files++] = file;
	*align = st.offset_align > st.memory_align ? st.offset_align : st.memory_align;
	return 0;
}
