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

int tn_nvme_errno(struct tn_nvme_engine *e, const struct tn_nvme_slot *s, uint32_t status)
{
	bool wished = tn_nvme_xfer_of(s->req)->flags & TN_NVME_CANCELLED;

	if (status == 0)
		return 0;
	if (status != TN_NVME_ABORTED || !wished)
		tn_log(e->o.log, TN_LOG_WARN, "nvme: op %#x of %u bytes at block %llu ended with status %#x", s->op, s->bytes,
		       (unsigned long long)s->block, status);
	if (status == TN_NVME_ABORTED && wished)
		return -ECANCELED;
	return status == TN_NVME_CAPACITY ? -ENOSPC : -EIO;
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

static const struct tn_nvme_memory *memory_of(const struct tn_nvme_engine *e, uintptr_t address, uint64_t bytes)
{
	uint32_t n = tn_nvme_memories_up_to(e, address);
	const struct tn_nvme_memory *m = n ? &e->memory[n - 1] : NULL;

	return m && bytes <= m->bytes && address - (uintptr_t)m->address <= m->bytes - bytes ? m : NULL;
}

/* Whether a command may name both, one behind the other. */
static bool joins(const struct tn_nvme_engine *e, const struct tn_nvme_piece *a, const struct tn_nvme_piece *b)
{
	return e->sgl || ((a->bus + a->length) % TN_NVME_PAGE == 0 && b->bus % TN_NVME_PAGE == 0);
}

/* Pieces of a command, from the request's next byte on, in e->scratch: how many, and *bytes of them. 0: the memory is not mapped. */
static uint32_t gather(struct tn_nvme_engine *e, const struct tn_io_req *req, uint32_t *bytes)
{
	const struct tn_nvme_xfer *x = tn_nvme_xfer_of((struct tn_io_req *)(uintptr_t)req);
	uint32_t n = 0, skip = x->skip, most = x->limit - x->sent < e->most ? x->limit - x->sent : e->most;

	*bytes = 0;
	for (uint32_t i = x->piece; *bytes < most; i++, skip = 0) {
		uintptr_t address = (uintptr_t)req->iov[i].iov_base + skip;
		uint64_t left = req->iov[i].iov_len - skip, some = left < most - *bytes ? left : most - *bytes;
		const struct tn_nvme_memory *m = memory_of(e, address, some);
		int k = m ? tn_p2p_find(m->table, address, some, e->scratch + n, TN_NVME_PIECES - n) : 0;

		if (k <= 0 || (n && !joins(e, &e->scratch[n - 1], &e->scratch[n])))
			break;
		n += (uint32_t)k;
		*bytes += (uint32_t)some;
	}
	return n;
}

/* ---- sending -------------------------------------------------------------------------------------------------------- */

uint64_t tn_nvme_block_at(const struct tn_nvme_engine *e, uint64_t offset)
{
	return e->o.first + offset / e->block_bytes;
}

bool tn_nvme_send(struct tn_nvme_engine *e, struct tn_io_req *req, struct tn_nvme_command *c, const struct tn_nvme_slot *slot)
{
	uint32_t id = e->reset_next_ns || e->gone ? TN_NVME_NO_ID : tn_nvme_queue_id(e->queue);
	struct tn_nvme_slot *s;

	if (id == TN_NVME_NO_ID)
		return false;
	c->id = (uint16_t)id;
	s = &e->slot[tn_nvme_queue_index(e->queue, id)];
	*s = *slot;
	s->req = req;
	s->id = c->id;
	s->op = c->opcode;
	s->state = TN_NVME_SENT;
	s->since_ns = tn_now_ns(e->o.clock);
	if (e->ncommands++ == 0)
		e->late_next_ns = s->since_ns; /* a device that fails is noticed soon */
	if (!req->issue_ns)
		req->issue_ns = s->since_ns;
	tn_nvme_xfer_of(req)->out++;
	e->stats.commands++;
	tn_nvme_queue_put(e->queue, c);
	return true;
}

/* Names the memory in the command, whose list lies in the page of the id that is taken next: the top of the stack. */
static int set_pieces(struct tn_nvme_engine *e, struct tn_nvme_command *c, const struct tn_nvme_piece *piece, uint32_t n)
{
	uint32_t id = tn_nvme_queue_index(e->queue, e->queue->free[e->queue->nfree - 1]);
	const struct tn_nvme_list list = {e->lists + (uint64_t)id * TN_NVME_PAGE, e->lists_bus + (uint64_t)id * TN_NVME_PAGE, TN_NVME_PAGE};

	return e->sgl ? tn_nvme_set_sgl(c, piece, n, &list) : tn_nvme_set_prps(c, piece, n, &list);
}

bool tn_nvme_set_data(struct tn_nvme_engine *e, struct tn_nvme_command *c, uint64_t bus, uint64_t bytes)
{
	const struct tn_nvme_piece piece = {bus, bytes};

	return e->queue->nfree && set_pieces(e, c, &piece, 1) == 0;
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
	struct tn_nvme_slot slot = {.at = x->sent, .piece = x->piece, .skip = x->skip, .bounce = TN_NVME_NO_BOUNCE};
	uint64_t offset = req->offset + x->sent + (x->flags & TN_NVME_RAW ? 0 : TN_VOLUME_DATA);
	bool writes = req->op == TN_IO_WRITE;
	struct tn_nvme_command c;
	uint32_t n;

	if (e->queue->nfree == 0 || e->reset_next_ns)
		return false;
	n = gather(e, req, &slot.bytes);
	if (n == 0) {
		if (!e->free_bounces)
			return false;
		slot.bounce = (uint32_t)__builtin_ctz(e->free_bounces);
		slot.bytes = x->limit - x->sent < e->bounce_bytes ? x->limit - x->sent : e->bounce_bytes;
		e->scratch[0] = (struct tn_nvme_piece){e->bounces_bus + (uint64_t)slot.bounce * e->bounce_bytes, slot.bytes};
		n = 1;
	}
	slot.block = tn_nvme_block_at(e, offset);
	c = tn_nvme_transfer(writes ? TN_NVME_WRITE : TN_NVME_READ, tn_nvme_info(e->o.nvme)->namespace_id, slot.block,
			     slot.bytes / e->block_bytes);
	if (set_pieces(e, &c, e->scratch, n)) { /* memory whose pieces end within a block of the bus: of no table that was checked */
		req->status = -EFAULT;
		return false;
	}
	if (slot.bounce != TN_NVME_NO_BOUNCE) {
		e->free_bounces &= ~(1u << slot.bounce);
		e->stats.bounced++;
		e->stats.bounced_bytes += slot.bytes;
		if (writes)
			copy(req, x->piece, x->skip, e->bounces + (uint64_t)slot.bounce * e->bounce_bytes, slot.bytes, true);
	}
	e->stats.bytes += slot.bytes;
	advance(req, slot.bytes);
	return tn_nvme_send(e, req, &c, &slot);
}

static bool send_flush(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	struct tn_nvme_command c = tn_nvme_flush(tn_nvme_info(e->o.nvme)->namespace_id);
	const struct tn_nvme_slot slot = {.bounce = TN_NVME_NO_BOUNCE};

	if (tn_nvme_info(e->o.nvme)->cache && !tn_nvme_send(e, req, &c, &slot))
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

		if (e->gone && !req->status)
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

void tn_nvme_ended(struct tn_nvme_engine *e, struct tn_nvme_slot *s, int status)
{
	struct tn_io_req *req = s->req;
	struct tn_nvme_xfer *x = tn_nvme_xfer_of(req);

	s->state = TN_NVME_FREE;
	e->ncommands--;
	x->out--;
	if (s->bounce != TN_NVME_NO_BOUNCE) {
		if (status == 0 && req->op == TN_IO_READ)
			copy(req, s->piece, s->skip, e->bounces + (uint64_t)s->bounce * e->bounce_bytes, s->bytes, false);
		e->free_bounces |= 1u << s->bounce;
	}
	if (status) {
		x->good = s->at < x->good ? s->at : x->good;
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
	uint64_t size = flags & TN_NVME_RAW ? e->capacity + TN_VOLUME_DATA : e->volume.size_bytes;
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
