/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a transfer: whether a request is sound, what to hand to the kernel next, and what
 * the kernel's result means. Pure, but for the log lines.
 */
#include <errno.h>
#include <string.h>

#include "ioengine/engine.h"

static int refuse(const struct tn_iofiles *files, const struct tn_io_req *req, int status, const char *what)
{
	tn_log(files->log, TN_LOG_WARN, "request op %u file %u offset %llu length %u pieces %u: %s", req->op, req->file,
	       (unsigned long long)req->offset, req->length, req->iov_count, what);
	return status;
}

/* Checks the pieces: their sum and their alignment. */
static const char *check_pieces(const struct tn_iofile *f, const struct tn_io_req *req)
{
	uintptr_t mem = 0;
	size_t len = 0, sum = 0;
	bool empty = false;

	if (!req->iov || req->iov_count == 0)
		return "has no memory";
	for (uint32_t i = 0; i < req->iov_count; i++) {
		size_t n = req->iov[i].iov_len;

		if (n > UINT32_MAX) /* keeps the sum from wrapping */
			return "a piece is longer than the request";
		mem |= (uintptr_t)req->iov[i].iov_base;
		len |= n;
		sum += n;
		empty |= n == 0;
	}
	if (empty)
		return "a piece is empty";
	if (sum != req->length)
		return "length is not the sum of the pieces";
	if (f->direct && ((mem & (f->memory_align - 1)) || (len & (f->offset_align - 1))))
		return "memory is not aligned for direct I/O";
	return NULL;
}

int tn_ioxfer_begin(struct tn_iofiles *files, struct tn_io_req *req, const void *engine)
{
	struct tn_iofile *f;
	const char *what;

	memset(tn_ioxfer_of(req), 0, sizeof(struct tn_ioxfer));
	tn_list_init(&tn_ioxfer_of(req)->link);
	tn_ioxfer_of(req)->engine = engine;
	req->status = 0;
	req->transferred = 0;
	if (req->file >= TN_IO_FILES_MAX || files->f[req->file].fd < 0)
		return refuse(files, req, -EBADF, "the file is not open");
	f = &files->f[req->file];
	f->inflight++;
	tn_ioxfer_of(req)->flags = TN_IOXFER_COUNTED;
	if (req->op == TN_IO_SYNC)
		return 0;
	if (req->op >= TN_IO_OPS)
		return refuse(files, req, -EINVAL, "unknown op");
	if ((req->op == TN_IO_WRITE || req->op == TN_IO_ALLOCATE) && f->read_only)
		return refuse(files, req, -EBADF, "the file is open for reading only");
	if (!tn_ioxfer_is(req)) {
		bool sound = req->iov && req->iov_count == 1 && (req->op == TN_IO_ALLOCATE || req->iov->iov_base) &&
			     (req->op == TN_IO_ALLOCATE || req->iov->iov_len == sizeof(struct tn_io_stat));

		return sound ? 0 : refuse(files, req, -EINVAL, "must have one piece that says what to reserve or where to put the answer");
	}
	if (req->offset > (uint64_t)INT64_MAX - req->length)
		return refuse(files, req, -EINVAL, "the offset is too large");
	if (f->direct && (req->offset & (f->offset_align - 1)))
		return refuse(files, req, -EINVAL, "the offset is not aligned for direct I/O");
	what = check_pieces(f, req);
	return what ? refuse(files, req, -EINVAL, what) : 0;
}

void tn_ioxfer_end(struct tn_iofiles *files, struct tn_io_req *req)
{
	struct tn_ioxfer *x = tn_ioxfer_of(req);

	if (x->flags & TN_IOXFER_COUNTED)
		files->f[req->file].inflight--;
	x->engine = NULL;
}

const struct iovec *tn_ioxfer_next(struct tn_io_req *req, struct iovec *one, uint32_t *n)
{
	struct tn_ioxfer *x = tn_ioxfer_of(req);
	const struct iovec *iov = &req->iov[x->index];
	uint32_t left = req->iov_count - x->index;

	if (x->skip) {
		one->iov_base = (char *)iov->iov_base + x->skip;
		one->iov_len = iov->iov_len - x->skip;
		x->count = *n = 1;
		x->want = (uint32_t)one->iov_len;
		return one;
	}
	if (left <= TN_IOXFER_PIECES) {
		x->count = *n = left;
		x->want = req->length - req->transferred;
		return iov;
	}
	x->count = *n = TN_IOXFER_PIECES;
	x->want = 0;
	for (uint32_t i = 0; i < TN_IOXFER_PIECES; i++)
		x->want += (uint32_t)iov[i].iov_len;
	return iov;
}

static const char *op_name(const struct tn_io_req *req)
{
	static const char *const name[TN_IO_OPS] = {"read", "write", "sync", "allocate", "stat"};

	return name[req->op];
}

int tn_ioxfer_advance(const struct tn_iofiles *files, struct tn_io_req *req, uint32_t res)
{
	const struct tn_iofile *f = &files->f[req->file];
	struct tn_ioxfer *x = tn_ioxfer_of(req);
	uint32_t rest = res;

	req->transferred += res;
	if (res == x->want) {
		x->index += x->count;
		x->skip = 0;
		return req->transferred == req->length ? 0 : 1;
	}
	/* Zero bytes, or with direct I/O a number that is not aligned, so that the rest cannot be transferred: the end. */
	if (res == 0 || res > x->want || (f->direct && (res & (f->offset_align - 1)))) {
		tn_log(files->log, TN_LOG_WARN, "%s: %s of %u bytes at %llu ended after %u", f->name, op_name(req), req->length,
		       (unsigned long long)req->offset, req->transferred);
		return -EIO;
	}
	while (rest >= req->iov[x->index].iov_len - x->skip) {
		rest -= (uint32_t)(req->iov[x->index].iov_len - x->skip);
		x->skip = 0;
		x->index++;
	}
	x->skip += rest;
	return 1;
}

int tn_ioxfer_failed(const struct tn_iofiles *files, const struct tn_io_req *req, int status)
{
	tn_log(files->log, TN_LOG_WARN, "%s: %s of %u bytes at %llu failed after %u: %s", files->f[req->file].name, op_name(req),
	       req->length, (unsigned long long)req->offset, req->transferred, strerror(-status));
	return status;
}
