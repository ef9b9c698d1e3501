/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the engine share. */
#ifndef TN_NVME_ENGINE_INTERNAL_H
#define TN_NVME_ENGINE_INTERNAL_H

#include "base/list.h"
#include "nvme/engine.h"
#include "nvme/volume.h"

#define TN_NVME_MEMORIES 512u
#define TN_NVME_NO_BOUNCE UINT32_MAX
#define TN_NVME_PIECES 256u /* of one command: a page of SGL descriptors */

enum tn_nvme_state { TN_NVME_FREE, TN_NVME_SENT, TN_NVME_ABORTING };

/* A command that has an id. */
struct tn_nvme_slot {
	struct tn_io_req *req;
	uint64_t since_ns, block;
	uint32_t at, bytes; /* of the request */
	uint32_t piece, skip; /* where these bytes begin in its memory */
	uint32_t bounce;
	uint16_t id;
	uint8_t state, op;
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
enum tn_nvme_phase { TN_NVME_IDLE, TN_NVME_ZERO, TN_NVME_ZERO_FLUSH, TN_NVME_HEADER, TN_NVME_HEADER_FLUSH };

struct tn_nvme_memory {
	void *address;
	uint64_t bytes;
	struct tn_p2p *table;
};

struct tn_nvme_engine {
	struct tn_io io;
	struct tn_nvme_engine_opts o;
	struct tn_nvme_queue *queue;
	struct tn_nvme_engine_stats stats;
	uint32_t depth, inflight; /* requests */
	uint32_t ncommands;
	uint32_t block_bytes, most; /* most: bytes of one command */
	bool sgl, gone;
	uint64_t capacity; /* bytes that the file may have */
	/* the file */
	struct tn_volume volume;
	uint32_t opens;
	bool read_only;
	/* commands */
	struct tn_nvme_slot *slot; /* by the id's index */
	uint32_t nslots;
	unsigned char *lists; /* a page per slot */
	uint64_t lists_bus, lists_bytes;
	unsigned char *bounces;
	uint64_t bounces_bus, bounces_bytes;
	uint32_t bounce_bytes, free_bounces; /* free ones, as bits */
	struct tn_nvme_memory memory[TN_NVME_MEMORIES]; /* by address */
	uint32_t nmemories;
	struct tn_nvme_piece scratch[TN_NVME_PIECES];
	unsigned char *page; /* that a header is written from, and behind it zeros */
	uint64_t page_bus, page_bytes;
	enum tn_nvme_phase phase;
	uint64_t zeroed; /* bytes of the file */
	/* requests */
	struct tn_list pending, growing, done;
	uint64_t late_next_ns, reset_next_ns;
	uint32_t wakes, wakes_seen; /* wakes: any thread */
};

static inline struct tn_nvme_engine *tn_nvme_engine_of(struct tn_io *io)
{
	return (struct tn_nvme_engine *)io;
}

/* How many of the mapped memories begin at or before the address. */
static inline uint32_t tn_nvme_memories_up_to(const struct tn_nvme_engine *e, uintptr_t address)
{
	uint32_t low = 0, high = e->nmemories;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if ((uintptr_t)e->memory[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
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
/* Sends a command of a request's; false: no id is free, or the controller is out of order. */
bool tn_nvme_send(struct tn_nvme_engine *e, struct tn_io_req *req, struct tn_nvme_command *c, const struct tn_nvme_slot *slot);
/* Names memory that is contiguous on the bus in the command that is sent next; false: no id is free. */
bool tn_nvme_set_data(struct tn_nvme_engine *e, struct tn_nvme_command *c, uint64_t bus, uint64_t bytes);
void tn_nvme_range_describe(const struct tn_nvme_engine *e, struct tn_io_stat *st);
/* Block of the namespace at an offset of the range. */
uint64_t tn_nvme_block_at(const struct tn_nvme_engine *e, uint64_t offset);
/* A command is over, and its memory is the request's again. */
void tn_nvme_ended(struct tn_nvme_engine *e, struct tn_nvme_slot *s, int status);
void tn_nvme_end(struct tn_nvme_engine *e, struct tn_io_req *req, int status);
/* What a status means for the request; logged if it is an error. */
int tn_nvme_errno(struct tn_nvme_engine *e, const struct tn_nvme_slot *s, uint32_t status);

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
