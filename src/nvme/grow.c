/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file becomes longer: zeros first, then the header that says so, one copy and then the other, each flushed. After a power cut in between, or a
 * failure, it is as long as before, or as it was to become. One request at a time; nothing else waits for it: other requests' commands are sent first, and few of its own are under way.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "nvme/engine_internal.h"

#define ZEROS_AT_ONCE 4u	 /* commands: the others' ids and the drive's time are not growth's */
#define ZEROES_BYTES (2u << 20) /* of a write zeroes: a drive that really writes them ends it in time */

static const struct tn_nvme_part no_memory = {.bounce = TN_NVME_NO_BOUNCE};

static uint64_t end_of(const struct tn_io_req *req)
{
	return req->offset + req->iov->iov_len;
}

static int check(const struct tn_nvme_engine *e, const struct tn_io_req *req)
{
	if (req->offset % TN_VOLUME_PAGE || req->iov->iov_len % TN_VOLUME_PAGE || req->offset > UINT64_MAX - req->iov->iov_len)
		return tn_fail(-EINVAL, "nvme: %zu bytes at %llu: a file grows by multiples of %u", req->iov->iov_len,
			       (unsigned long long)req->offset, TN_VOLUME_PAGE);
	if (end_of(req) > e->capacity)
		return tn_fail(-ENOSPC, "nvme: %zu bytes at %llu: the range has %llu", req->iov->iov_len, (unsigned long long)req->offset,
			       (unsigned long long)e->capacity);
	return 0;
}

static void finish(struct tn_nvme_engine *e, struct tn_io_req *req, int status)
{
	if (status == 0)
		e->volume.size_bytes = end_of(req);
	/* If the second copy failed, the next write goes to its place again: the first one may be the only whole one. */
	e->volume.sequence += status == 0 ? 2 : e->phase >= TN_NVME_COPY;
	e->phase = TN_NVME_IDLE;
	tn_nvme_end(e, req, status);
}

static void start(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	int rc = check(e, req);

	if (rc || end_of(req) <= e->volume.size_bytes) {
		tn_nvme_end(e, req, rc);
		return;
	}
	e->zeroed = e->volume.size_bytes;
	e->phase = TN_NVME_ZERO;
}

/* Of one command: the controller's limit (WZSL; 0 is none: NVM 4.1.5) says what it takes, not how long that lasts. */
static uint64_t most_zeros(const struct tn_nvme_engine *e, const struct tn_nvme_info *info)
{
	if (!info->zeroes_bytes)
		return e->bounce_bytes;
	return info->zeroes_bytes < ZEROES_BYTES ? info->zeroes_bytes : ZEROES_BYTES;
}

/* One command's worth of zeros; false: not now. */
static bool send_zeros(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	const struct tn_nvme_info *info = tn_nvme_info(e->o.nvme);
	uint64_t left = end_of(req) - e->zeroed, most = most_zeros(e, info);
	struct tn_nvme_part part = no_memory;
	struct tn_nvme_command c;

	part.bytes = (uint32_t)(left < most ? left : most);
	part.block = tn_nvme_block_at(e, TN_VOLUME_DATA + e->zeroed);
	c = tn_nvme_transfer(info->zeroes_bytes ? TN_NVME_WRITE_ZEROES : TN_NVME_WRITE, info->namespace_id, part.block, part.bytes / e->block_bytes);
	if (!info->zeroes_bytes && !tn_nvme_set_data(e, &c, e->page_bus + TN_NVME_PAGE, part.bytes))
		return false;
	if (!tn_nvme_send(e, req, &c, &part))
		return false;
	e->zeroed += part.bytes;
	return true;
}

static bool send_header(struct tn_nvme_engine *e, struct tn_io_req *req, uint32_t copy)
{
	const struct tn_volume v = {.sequence = e->volume.sequence + copy, .size_bytes = end_of(req), .exists = e->volume.exists};
	struct tn_nvme_part part = no_memory;
	struct tn_nvme_command c;

	part.bytes = TN_VOLUME_PAGE;
	part.block = tn_nvme_block_at(e, (uint64_t)tn_volume_place(&v) * TN_VOLUME_PAGE);
	tn_volume_encode(&v, e->page);
	c = tn_nvme_transfer(TN_NVME_WRITE, tn_nvme_info(e->o.nvme)->namespace_id, part.block, part.bytes / e->block_bytes);
	return tn_nvme_set_data(e, &c, e->page_bus, part.bytes) && tn_nvme_send(e, req, &c, &part);
}

/* The phase before has ended, so the flush covers it (Base 7.1). */
static bool send_flush(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	struct tn_nvme_command c = tn_nvme_flush(tn_nvme_info(e->o.nvme)->namespace_id);

	return !tn_nvme_info(e->o.nvme)->cache || tn_nvme_send(e, req, &c, &no_memory);
}

static bool begin(struct tn_nvme_engine *e, struct tn_io_req *req, enum tn_nvme_phase phase)
{
	switch (phase) {
	case TN_NVME_HEADER:
		return send_header(e, req, 1);
	case TN_NVME_COPY:
		return send_header(e, req, 2);
	default:
		return send_flush(e, req);
	}
}

/* Everything that was sent has ended well: the next phase. False: it cannot begin now, or there is none. */
static bool go_on(struct tn_nvme_engine *e, struct tn_io_req *req)
{
	if (e->phase == TN_NVME_COPY_FLUSH) {
		finish(e, req, 0);
		return false;
	}
	if (!begin(e, req, e->phase + 1))
		return false;
	e->phase++;
	return true;
}

void tn_nvme_grow(struct tn_nvme_engine *e)
{
	struct tn_io_req *req = tn_list_empty(&e->growing) ? NULL : tn_container_of(e->growing.next, struct tn_io_req, engine);
	struct tn_nvme_xfer *x;

	if (!req)
		return;
	x = tn_nvme_xfer_of(req);
	if (e->phase == TN_NVME_IDLE)
		start(e, req);
	if (x->flags & TN_NVME_ENDED)
		return;
	if (e->pair.gone && !req->status)
		req->status = -ENODEV;
	if (req->status || (x->flags & TN_NVME_CANCELLED && e->phase < TN_NVME_HEADER)) {
		if (x->out == 0)
			finish(e, req, req->status ? req->status : -ECANCELED);
		return;
	}
	while (e->phase == TN_NVME_ZERO && e->zeroed < end_of(req) && x->out < ZEROS_AT_ONCE && send_zeros(e, req))
		;
	while (x->out == 0 && (e->phase != TN_NVME_ZERO || e->zeroed == end_of(req)) && go_on(e, req))
		; /* a flush that needs no command is over at once: poll sleeps while none is under way */
}
