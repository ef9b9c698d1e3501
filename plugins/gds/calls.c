/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "context.h"
#include "cufile.h"
#include "driver.h"
#include "file.h"
#include "transfer.h"

#define MOST 64u /* of pieces per call; the library's own limit is 128 or more */

struct gds_caller {
	enum tn_device_file_calls calls;
	void *batch; /* NULL: it has to be set up */
	struct cufile_batch_piece piece[MOST];
	struct cufile_batch_event event[MOST];
	void *context; /* of the stream; NULL: it is that of threads without one */
	void *stream;
	size_t bytes[MOST];
	off_t offset[MOST], base_offset; /* the last is 0 */
	ssize_t moved[MOST];
};

uint32_t gds_calls_most(enum tn_device_file_calls calls)
{
	return calls == TN_DEVICE_FILE_SYNC ? 1 : MOST;
}

int gds_calls_check(enum tn_device_file_calls calls, char *detail, size_t detail_bytes)
{
	const struct cufile *l = gds_library();
	bool batches = l->batch_set_up && l->batch_submit && l->batch_status && l->batch_cancel && l->batch_destroy;

	if (calls == TN_DEVICE_FILE_SYNC || (calls == TN_DEVICE_FILE_BATCH && batches) ||
	    (calls == TN_DEVICE_FILE_ASYNC && l->read_async && l->write_async && gds_context_has_streams()))
		return 0;
	snprintf(detail, detail_bytes, "libcufile.so.0 or libcuda.so.1 lacks the calls of %s: install a cuFile of 1.7 or later",
		 calls == TN_DEVICE_FILE_BATCH ? "batches" : "streams");
	return -ENOTSUP;
}

struct gds_caller *gds_caller_create(enum tn_device_file_calls calls)
{
	struct gds_caller *c = calloc(1, sizeof(*c));

	if (c)
		c->calls = calls;
	return c;
}

/* ---- batches ---------------------------------------------------------------------------------------- */

static void end_batch(struct gds_caller *c)
{
	if (c->batch)
		gds_library()->batch_destroy(c->batch);
	c->batch = NULL;
}

static int begin_batch(struct gds_caller *c, char *detail, size_t detail_bytes)
{
	struct cufile_error e = {0};

	if (!c->batch)
		e = gds_library()->batch_set_up(&c->batch, MOST);
	if (!e.error)
		return 0;
	c->batch = NULL;
	return cufile_fail("cuFileBatchIOSetUp", e.error, e.cuda_error, detail, detail_bytes);
}

static int check_event(const struct cufile_batch_event *event, char *detail, size_t detail_bytes)
{
	const struct cufile_batch_piece *p = event->cookie;
	ssize_t moved = (ssize_t)event->moved;
	uint64_t bytes = p->u.batch.bytes, offset = (uint64_t)p->u.batch.offset;

	if (event->status != CUFILE_STATUS_COMPLETE && moved >= 0) {
		snprintf(detail, detail_bytes, "cuFileBatchIOGetStatus: %llu bytes at %llu: status 0x%x", (unsigned long long)bytes, (unsigned long long)offset,
			 (unsigned)event->status);
		return -EIO;
	}
	return gds_transfer_ended("cuFileBatchIOGetStatus", moved, EIO, bytes, offset, detail, detail_bytes);
}

/* The events of n pieces. If the library does not tell of all of them, the batch is ended: then none of them moves any more. */
static int await_batch(struct gds_caller *c, uint32_t n, char *detail, size_t detail_bytes)
{
	struct cufile_error e;
	int rc = 0;

	while (n > 0) {
		unsigned some = n;

		e = gds_library()->batch_status(c->batch, n, &some, c->event, NULL);
		if (e.error || some > n) {
			gds_library()->batch_cancel(c->batch);
			end_batch(c);
			return cufile_fail("cuFileBatchIOGetStatus", e.error, e.cuda_error, detail, detail_bytes);
		}
		for (unsigned i = 0; i < some && !rc; i++)
			rc = check_event(&c->event[i], detail, detail_bytes);
		n -= some;
	}
	return rc;
}

static int move_batch(struct gds_caller *c, struct tn_device_file *file, const struct iovec *piece, uint32_t n, uint64_t offset, int write,
		      char *detail, size_t detail_bytes)
{
	struct cufile_error e;
	int rc = begin_batch(c, detail, detail_bytes);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; offset += piece[i++].iov_len) {
		struct cufile_batch_piece *p = &c->piece[i];

		*p = (struct cufile_batch_piece){.mode = CUFILE_BATCH, .handle = gds_file_handle(file), .cookie = p,
						 .opcode = write ? CUFILE_OPCODE_WRITE : CUFILE_OPCODE_READ};
		p->u.batch.base = piece[i].iov_base;
		p->u.batch.bytes = piece[i].iov_len;
		p->u.batch.offset = (off_t)offset;
	}
	e = gds_library()->batch_submit(c->batch, n, c->piece, 0);
	if (!e.error)
		return await_batch(c, n, detail, detail_bytes);
	gds_library()->batch_cancel(c->batch); /* some of them may have begun */
	end_batch(c);
	return cufile_fail("cuFileBatchIOSubmit", e.error, e.cuda_error, detail, detail_bytes);
}

/* ---- streams ---------------------------------------------------------------------------------------- */

static void end_stream(struct gds_caller *c)
{
	if (c->stream)
		gds_stream_destroy(c->stream);
	c->stream = c->context = NULL;
}

/* A stream of the context of the address, which is the thread's now. */
static int begin_stream(struct gds_caller *c, const void *address, char *detail, size_t detail_bytes)
{
	void *context = gds_context_of(address);
	int e = 0;

	if (context != c->context)
		end_stream(c);
	if (context && !c->stream)
		e = gds_stream_create(&c->stream);
	if (e) {
		c->stream = NULL;
		snprintf(detail, detail_bytes, "cuStreamCreate: error %d of CUDA", e);
		return -EIO;
	}
	c->context = context;
	return 0;
}

static int await_stream(struct gds_caller *c, uint32_t n, const char *call, char *detail, size_t detail_bytes)
{
	int e = gds_stream_wait(c->stream), rc = 0;

	if (e) {
		end_stream(c);
		snprintf(detail, detail_bytes, "cuStreamSynchronize: error %d of CUDA", e);
		return -EIO;
	}
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = gds_transfer_ended(call, c->moved[i], EIO, c->bytes[i], (uint64_t)c->offset[i], detail, detail_bytes);
	return rc;
}

static int move_async(struct gds_caller *c, struct tn_device_file *file, const struct iovec *piece, uint32_t n, uint64_t offset, int write,
		      char *detail, size_t detail_bytes)
{
	const char *call = write ? "cuFileWriteAsync" : "cuFileReadAsync";
	int rc = begin_stream(c, piece[0].iov_base, detail, detail_bytes), over;
	struct cufile_error e = {0};
	uint32_t begun = 0;

	for (; begun < n && !rc && !e.error; begun += !e.error) {
		uint32_t i = begun;

		c->bytes[i] = piece[i].iov_len;
		c->offset[i] = (off_t)offset;
		c->moved[i] = 0;
		offset += piece[i].iov_len;
		e = (write ? gds_library()->write_async : gds_library()->read_async)(gds_file_handle(file), piece[i].iov_base, &c->bytes[i], &c->offset[i],
										    &c->base_offset, &c->moved[i], c->stream);
	}
	if (rc)
		return rc;
	over = await_stream(c, begun, call, detail, detail_bytes);
	return e.error ? cufile_fail(call, e.error, e.cuda_error, detail, detail_bytes) : over;
}

/* ---- all -------------------------------------------------------------------------------------------- */

void gds_caller_destroy(struct gds_caller *c)
{
	if (!c)
		return;
	end_batch(c);
	end_stream(c);
	free(c);
}

int gds_caller_move(struct gds_caller *c, struct tn_device_file *file, const struct iovec *piece, uint32_t n, uint64_t offset, int write,
		    char *detail, size_t detail_bytes)
{
	uint64_t at = offset;
	bool entered;
	int rc = 0;

	if (c->calls == TN_DEVICE_FILE_SYNC)
		return gds_transfer(file, piece[0].iov_base, piece[0].iov_len, offset, write, detail, detail_bytes);
	for (uint32_t i = 0; i < n && !rc; at += piece[i++].iov_len)
		rc = gds_transfer_check(piece[i].iov_base, piece[i].iov_len, at, detail, detail_bytes);
	if (rc)
		return rc;
	entered = gds_context_enter(piece[0].iov_base);
	rc = (c->calls == TN_DEVICE_FILE_BATCH ? move_batch : move_async)(c, file, piece, n, offset, write, detail, detail_bytes);
	if (entered)
		gds_context_leave();
	return rc;
}
