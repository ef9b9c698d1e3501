/* SPDX-License-Identifier: Apache-2.0 */
/* A request's bytes become commands: pieces of memory that the controller can reach, or a bounce buffer. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "nvme/engine_internal.h"

/* ---- ends ------------------------------------------------------------------------------------------------------ */

void tn_nvme_end(struct tn_nvme_engine *e, struct tn_io_req *req, int status)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	if (x->sent < x->good)
		x->good = x->sent;
	req->status = status;
	req->transferred = req->op == TN_IO_READ || req->op == TN_IO_WRITE ? x->good : 0;
	x->flags |= TN_NVME_ENDED;
	tn_list_del(&x->link);
	tn_list_push(&e->done, &x->link);
}

/* All commands of the request are over, and no more are sent. */
static void end_if_over(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);
	bool all = x->sent == x->limit && (req->op != TN_IO_SYNC || x->flags & TN_NVME_FLUSHED);
	int status = req->status;

	if (x->out || x->flags & TN_NVME_ENDED || !(all || status || x->flags & TN_NVME_CANCELLED))
		return;
	if (status == 0 && !all)
		status = -ECANCELED;
	if (status == 0 && x->limit < req->length) {
		tn_log(e->o.log, TN_LOG_WARN, "nvme: op %u of %u bytes at %llu: only %u are there", req->op, req->length,
		       (unsigned long long)req->offset, x->limit);
		status = -EIO;
	}
	tn_nvme_end(e, req, status);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Copies bytes between a buffer and the request's memory. */
static void copy(const struct tn_io_req *req, uint32_t piece, uint32_t skip, unsigned char *buffer, uint32_t bytes, bool to_buffer)
{
	for (uint32_t some; bytes; bytes -= some, buffer += some, piece++, skip = 0) {
		unsigned char *at = (unsigned char *)req->iov[piece].iov_base + skip;
		size_t left = req->iov[piece].iov_len - skip;

		some = left < bytes ? (uint32_t)left : bytes;
		if (to_buffer)
			memcpy(buffer, at, some);
		else
			memcpy(at, buffer, some);
	}
}

/* Pieces of a command, from the request's next byte on: how many, and *bytes of them. 0: the memory is not mapped. */
static uint32_t gather(struct tn_nvme_engine *e, const struct tn_io_req *req, struct tn_nvme_piece *piece, uint32_t *bytes)
{
	const struct tn_nvme_xfer *x = tn_nvme_xfer_of((struct tn_io_req *)(uintptr_t)req);
	uint32_t most = x->limit - x->sent < e->most ? x->limit - x->sent : e->most;

	return tn_nvme_memories_gather(&e->memories, e->pair.sgl, req->iov + x->piece, x->skip, most, piece, TN_NVME_PIECES, bytes);
}

/* ---- sending -------------------------------------------------------------------------------------------------------- */

uint64_t tn_nvme_block_at(const struct tn_nvme_engine *e, uint64_t offset)
{
	return e->o.first + offset / e->block_bytes;
}

bool tn_nvme_send(struct tn_nvme_engine *e, struct tn_io_req *req, const struct tn_nvme_command *c, const struct tn_nvme_part *part)
{
	uint64_t now = tn_now_ns(e->o.clock);
	uint32_t index;

	if (!tn_nvme_pair_ready(&e->pair))
		return false;
	*tn_nvme_pair_command(&e->pair) = *c;
	index = tn_nvme_pair_send(&e->pair, part->block, part->bytes, now);
	e->part[index] = *part;
	e->part[index].req = req;
	if (!req->issue_ns)
		req->issue_ns = now;
	tn_nvme_xfer_of(req)->out++;
	return true;
}

bool tn_nvme_set_data(struct tn_nvme_engine *e, struct tn_nvme_command *c, uint64_t bus, uint64_t bytes)
{
	const struct tn_nvme_piece piece = {bus, bytes};

	return tn_nvme_pair_ready(&e->pair) && tn_nvme_pair_pieces(&e->pair, c, &piece, 1) == 0;
}

static void advance(struct tn_io_req *req, uint32_t bytes)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	x->sent += bytes;
	while (bytes) {
		size_t left = req->iov[x->piece].iov_len - x->skip;

		if (bytes < left) {
			x->skip += bytes;
			return;
		}
		bytes -= (uint32_t)left;
		x->piece++;
		x->skip = 0;
	}
}

/* The next command of a transfer; false: not now. */
static bool send_transfer(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);
	struct tn_nvme_part part = {.at = x->sent, .piece = x->piece, .skip = x->skip, .bounce = TN_NVME_NO_BOUNCE};
	uint64_t offset = req->offset + x->sent + (x->flags & TN_NVME_RAW ? 0 : TN_VOLUME_DATA);
	bool writes = req->op == TN_IO_WRITE;
	struct tn_nvme_piece *piece;
	struct tn_nvme_command c;
	uint32_t n;

	if (!tn_nvme_pair_ready(&e->pair))
		return false;
	piece = tn_nvme_pair_scratch(&e->pair);
	n = gather(e, req, piece, &part.bytes);
	if (n == 0) {
		if (!e->free_bounces)
			return false;
		part.bounce = (uint32_t)__builtin_ctz(e->free_bounces);
		part.bytes = x->limit - x->sent < e->bounce_bytes ? x->limit - x->sent : e->bounce_bytes;
		*piece = (struct tn_nvme_piece){e->bounces_bus + (uint64_t)part.bounce * e->bounce_bytes, part.bytes};
		n = 1;
	}
	part.block = tn_nvme_block_at(e, offset);
	c = tn_nvme_transfer(writes ? TN_NVME_WRITE : TN_NVME_READ, tn_nvme_info(e->o.nvme)->namespace_id, part.block,
			     part.bytes / e->block_bytes);
	if (tn_nvme_pair_pieces(&e->pair, &c, piece, n)) { /* memory whose pieces end within a block of the bus: of no table that was checked */
		req->status = -EFAULT;
		return false;
	}
	if (part.bounce != TN_NVME_NO_BOUNCE) {
		e->free_bounces &= ~(1u << part.bounce);
		e->bounced++;
		e->bounced_bytes += part.bytes;
		if (writes)
			copy(req, x->piece, x->skip, e->bounces + (uint64_t)part.bounce * e->bounce_bytes, part.bytes, true);
	}
	e->bytes += part.bytes;
	advance(req, part.bytes);
	return tn_nvme_send(e, req, &c, &part);
}

/* Base 7.1: a flush covers the writes that have completed; a controller without a volatile write cache (VWC: 5.17.2.1) has nothing to flush. */
static bool send_flush(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	struct tn_nvme_command c = tn_nvme_flush(tn_nvme_info(e->o.nvme)->namespace_id);
	const struct tn_nvme_part part = {.bounce = TN_NVME_NO_BOUNCE};

	if (tn_nvme_info(e->o.nvme)->cache && !tn_nvme_send(e, req, &c, &part))
		return false;
	tn_nvme_xfer_of(req)->flags |= TN_NVME_FLUSHED;
	return true;
}

void tn_nvme_issue(struct tn_nvme_engine *e)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &e->pending) {
		struct tn_io_req *req = tn_container_of(pos, struct tn_io_req, engine);
		struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);
		bool more = true;

		if (e->pair.gone && !req->status)
			req->status = -ENODEV;
		if (req->op == TN_IO_SYNC)
			more = req->status || send_flush(e, req);
		while (more && x->sent < x->limit && !req->status && !(x->flags & TN_NVME_CANCELLED))
			more = send_transfer(e, req);
		if (!more && !req->status)
			return; /* in order: nobody overtakes for ever */
		tn_list_del(&x->link);
		end_if_over(e, req);
	}
}

void tn_nvme_ended(void *arg, uint32_t index, int said)
{
	struct tn_nvme_engine *e = arg;
	struct tn_nvme_part *part = &e->part[index];
	struct tn_io_req *req = part->req;
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);
	int status = tn_nvme_pair_errno(&e->pair, index, said, x->flags & TN_NVME_CANCELLED);

	x->out--;
	if (part->bounce != TN_NVME_NO_BOUNCE) {
		if (status == 0 && req->op == TN_IO_READ)
			copy(req, part->piece, part->skip, e->bounces + (uint64_t)part->bounce * e->bounce_bytes, part->bytes, false);
		e->free_bounces |= 1u << part->bounce;
	}
	if (status) {
		x->good = part->at < x->good ? part->at : x->good;
		req->status = req->status ? req->status : status;
	}
	if (!(x->flags & TN_NVME_GROWS))
		end_if_over(e, req);
}

/* ---- taking ------------------------------------------------------------------------------------------------------------- */

static int refuse(struct tn_nvme_engine *e, const struct tn_io_req *req, int status, const char *why)
{
	tn_log(e->o.log, TN_LOG_WARN, "nvme: op %u offset %llu length %u pieces %u: %s", req->op, (unsigned long long)req->offset,
	       req->length, req->iov_count, why);
	return status;
}

static int check_pieces(struct tn_nvme_engine *e, const struct tn_io_req *req)
{
	uint64_t sum = 0;

	if (!req->iov || req->iov_count == 0)
		return refuse(e, req, -EINVAL, "has no memory");
	for (uint32_t i = 0; i < req->iov_count; i++) {
		size_t n = req->iov[i].iov_len;

		if (n == 0 || n > UINT32_MAX)
			return refuse(e, req, -EINVAL, "a piece is empty, or longer than the request");
		if (n % e->block_bytes || (uintptr_t)req->iov[i].iov_base % 4)
			return refuse(e, req, -EINVAL, "a piece is not of whole blocks, or not at a multiple of 4");
		sum += n;
	}
	return sum == req->length ? 0 : refuse(e, req, -EINVAL, "length is not the sum of the pieces");
}

static int check_transfer(struct tn_nvme_engine *e, const struct tn_io_req *req, uint8_t flags)
{
	uint64_t size = flags & TN_NVME_RAW ? e->o.blocks * e->block_bytes : e->volume.size_bytes;
	int rc = check_pieces(e, req);
	struct tn_nvme_xfer *x = tn_nvme_xfer_of((struct tn_io_req *)(uintptr_t)req);

	if (rc)
		return rc;
	if (req->offset % e->block_bytes || req->offset > UINT64_MAX - req->length)
		return refuse(e, req, -EINVAL, "the offset is no multiple of a block, or too large");
	x->limit = req->offset >= size ? 0 : size - req->offset < req->length ? (uint32_t)(size - req->offset) : req->length;
	if (req->op == TN_IO_WRITE && x->limit < req->length)
		return refuse(e, req, -ENOSPC, "beyond the end of the file, which grows by allocation alone");
	x->good = x->limit;
	return 0;
}

static int do_stat(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	if (!req->iov || req->iov_count != 1 || req->iov->iov_len != sizeof(struct tn_io_stat) || !req->iov->iov_base)
		return refuse(e, req, -EINVAL, "has no memory for an answer");
	tn_nvme_range_describe(e, req->iov->iov_base);
	return 0;
}

static int check(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags)
{
	if (!(flags & TN_NVME_RAW) && (req->file != e->o.file || !e->opens))
		return refuse(e, req, -EBADF, "the file is not open");
	if ((req->op == TN_IO_WRITE || req->op == TN_IO_ALLOCATE) && e->read_only && !(flags & TN_NVME_RAW))
		return refuse(e, req, -EBADF, "the file is open for reading only");
	switch (req->op) {
	case TN_IO_READ:
	case TN_IO_WRITE:
		return check_transfer(e, req, flags);
	case TN_IO_STAT:
		return do_stat(e, req);
	case TN_IO_ALLOCATE:
		return req->iov && req->iov_count == 1 ? 0 : refuse(e, req, -EINVAL, "says no length");
	default:
		return req->op == TN_IO_SYNC ? 0 : refuse(e, req, -EINVAL, "unknown op");
	}
}

void tn_nvme_begin(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags)
{
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);
	int status;

	*x = (struct tn_nvme_xfer){.engine = e, .flags = flags};
	tn_list_init(&x->link);
	req->status = 0;
	req->transferred = 0;
	req->issue_ns = 0;
	status = check(e, req, flags);
	if (status || req->op == TN_IO_STAT) {
		tn_nvme_end(e, req, status);
	} else if (req->op == TN_IO_ALLOCATE) {
		x->flags |= TN_NVME_GROWS;
		tn_list_push(&e->growing, &x->link);
	} else {
		tn_list_push(&e->pending, &x->link);
	}
}

void tn_nvme_range_describe(const struct tn_nvme_engine *e, struct tn_io_stat *st)
{
	*st = (struct tn_io_stat){.size_bytes = e->volume.size_bytes, .links = e->volume.exists, .offset_align = e->block_bytes,
				  .memory_align = 4, .most_bytes = e->capacity, .direct = true};
}
