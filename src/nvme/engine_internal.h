/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the engine share. */
#ifndef TN_NVME_ENGINE_INTERNAL_H
#define TN_NVME_ENGINE_INTERNAL_H

#include "base/list.h"
#include "nvme/engine.h"
#include "nvme/memory.h"
#include "nvme/pair.h"
#include "nvme/volume.h"

#define TN_NVME_NO_BOUNCE UINT32_MAX

/* What a command is for. */
struct tn_nvme_part {
	struct tn_io_req *req;
	uint64_t block;
	uint32_t at, bytes; /* of the request */
	uint32_t piece, skip; /* where these bytes begin in its memory */
	uint32_t bounce;
};

#define TN_NVME_CANCELLED 1u
#define TN_NVME_ENDED 2u
#define TN_NVME_RAW 4u	   /* offset 0 is the range's, not the file's: the engine's own */
#define TN_NVME_GROWS 8u   /* grow.c has it */
#define TN_NVME_FLUSHED 16u /* SYNC: its command was sent */

/* Lies in the request's engine words while it is in flight. */
struct tn_nvme_xfer {
	struct tn_list link; /* pending: commands are to be sent; growing; or done */
	const void *engine;
	uint32_t limit; /* bytes that there are */
	uint32_t sent;	/* of them: bytes that commands were sent for */
	uint32_t piece, skip; /* where the next ones begin in memory */
	uint32_t good;	/* all bytes before this one were moved, if nothing fails any more */
	uint16_t out;	/* commands under way */
	uint8_t flags;
};

/* The file that becomes longer: one request at a time. */
enum tn_nvme_phase {
	TN_NVME_IDLE,
	TN_NVME_ZERO,
	TN_NVME_ZERO_FLUSH,
	TN_NVME_HEADER,
	TN_NVME_HEADER_FLUSH,
	TN_NVME_COPY, /* the other one of the header */
	TN_NVME_COPY_FLUSH
};

struct tn_nvme_engine {
	struct tn_io io;
	struct tn_nvme_engine_opts o;
	struct tn_nvme_pair pair;
	uint64_t bytes, bounced, bounced_bytes; /* counters */
	uint32_t depth, inflight; /* requests */
	uint32_t block_bytes, most; /* most: bytes of one command */
	uint64_t capacity; /* bytes that the file may have */
	/* the file */
	struct tn_volume volume;
	uint32_t opens;
	bool read_only;
	struct tn_nvme_part *part; /* by the index of the command's id */
	unsigned char *bounces;
	uint64_t bounces_bus, bounces_bytes;
	uint32_t bounce_bytes, free_bounces; /* free ones, as bits */
	struct tn_nvme_memories memories;
	unsigned char *page; /* that a header is written from, and behind it zeros */
	uint64_t page_bus, page_bytes;
	enum tn_nvme_phase phase;
	uint64_t zeroed; /* bytes of the file */
	/* requests */
	struct tn_list pending, growing, done;
	uint32_t wakes, wakes_seen; /* wakes: any thread */
};

static inline struct tn_nvme_engine *tn_nvme_engine_of(struct tn_io *io)
{
	return (struct tn_nvme_engine *)io;
}

static inline struct tn_nvme_xfer *tn_nvme_xfer_of(struct tn_io_req *req)
{
	_Static_assert(sizeof(struct tn_nvme_xfer) <= sizeof(req->engine), "fits the engine words");
	return (struct tn_nvme_xfer *)(void *)req->engine;
}

/* ---- transfer.c ---- */
/* Takes a request: it ends at once, or becomes pending, or grows. flags: TN_NVME_RAW. */
void tn_nvme_begin(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags);
/* Sends what there is to send. */
void tn_nvme_issue(struct tn_nvme_engine *e);
/* Sends a command of a request's, whose data tn_nvme_pair_pieces names; false: no id is free, or the controller is out of order. */
bool tn_nvme_send(struct tn_nvme_engine *e, struct tn_io_req *req, const struct tn_nvme_command *c, const struct tn_nvme_part *part);
/* Names memory that is contiguous on the bus in the command that is sent next; false: no id is free. */
bool tn_nvme_set_data(struct tn_nvme_engine *e, struct tn_nvme_command *c, uint64_t bus, uint64_t bytes);
void tn_nvme_range_describe(const struct tn_nvme_engine *e, struct tn_io_stat *st);
/* Block of the namespace at an offset of the range. */
uint64_t tn_nvme_block_at(const struct tn_nvme_engine *e, uint64_t offset);
/* As tn_nvme_pair_opts.ended; arg: the engine. */
void tn_nvme_ended(void *arg, uint32_t index, int status);
void tn_nvme_end(struct tn_nvme_engine *e, struct tn_io_req *req, int status);

/* ---- grow.c ---- */
void tn_nvme_grow(struct tn_nvme_engine *e);

/* ---- progress.c ---- */
/* Looks at completions and at what is late, and sends what there is to send. */
void tn_nvme_turn(struct tn_nvme_engine *e);
/* Does one request, which poll never returns, and waits for it; its status. */
int tn_nvme_wait_for(struct tn_nvme_engine *e, struct tn_io_req *req, uint8_t flags);

/* ---- range.c ---- */
int tn_nvme_range_open(struct tn_io *io, const char *path, unsigned flags, uint32_t *file);
int tn_nvme_range_close(struct tn_io *io, uint32_t file);
int tn_nvme_range_stat(struct tn_io *io, uint32_t file, struct tn_io_stat *st);
int tn_nvme_range_allocate(struct tn_io *io, uint32_t file, uint64_t offset, uint64_t length);
int tn_nvme_range_unlink(struct tn_io *io, const char *path);

#endif
