/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mover: brings chunks of blocks from memory to disk and from memory to memory, with their checksums, and checks
 * chunks that were read before their header was there. Reading is the rings' part (src/ring).
 *
 * A move covers `count` objects of one block, neighbours on disk; a write is one I/O (or a train of 1 MiB I/Os when
 * they are larger), straight from the pages when these satisfy the file's direct-I/O alignment, and through a bounce
 * buffer otherwise; a worker checksums it meanwhile.
 *
 * Owner thread only, but for run and extra of a move, which happen on a worker. Nothing allocates after
 * create, but for bounce buffers when a new shape is announced.
 */
#ifndef TN_TIER_MOVER_H
#define TN_TIER_MOVER_H

#include <stdbool.h>

#include "base/exec.h"
#include "store/store.h"
#include "tier/shape.h"

enum tn_move_kind { TN_MOVE_CHECK, TN_MOVE_WRITE, TN_MOVE_COPY };

/* Who competes for moves: loads for checks of what was read and for copies from host memory, and both that write. */
enum tn_move_user { TN_MOVES_CHECKS, TN_MOVES_COPIES, TN_MOVES_SAVES, TN_MOVES_OFFLOADS };

struct tn_mover;

struct tn_move {
	struct tn_job job;
	struct tn_mover *mover;

	uint8_t user; /* enum tn_move_user, as given to get */
	/* Set by the caller between get and start. */
	uint8_t kind;
	bool verify;        /* CHECK: compare with checks */
	const struct tn_shape *shape;
	uint32_t first, count; /* objects */
	struct tn_store_place place; /* WRITE */
	struct tn_span mem;  /* what is checked, or the source */
	struct tn_span to;   /* COPY: destination */
	uint64_t *checks;    /* of object `first`: expected (CHECK), out (WRITE, COPY), or NULL */
	void (*extra)(struct tn_move *mv); /* worker; after a good CHECK, or a COPY */
	void (*done)(struct tn_move *mv);  /* owner; the move is taken back when it returns */
	void *owner;
	uint32_t index, chunk, chunks; /* the owner's */

	/* Result. */
	int status; /* 0, -EBADMSG (checksum), or the I/O error */
	bool bounced;

	/* Private. */
	struct tn_move *next;
	unsigned char *bounce;
	uint32_t bounce_class;
	struct iovec *scratch, *scratch_to;
	uint64_t total_bytes, next_byte;
	uint32_t ios;
	bool started; /* WRITE: its checksum job was posted, if there is one, and its I/O is next */
	bool summing; /* WRITE: the checksum job is still out */
};

struct tn_mover_opts {
	struct tn_io *io;
	struct tn_store *store; /* told of latencies and errors; NULL: no disk */
	struct tn_exec *exec;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	uint32_t io_depth; /* most data I/Os in flight */
};

int tn_mover_create(const struct tn_mover_opts *opts, struct tn_mover **out);
void tn_mover_destroy(struct tn_mover *m);
/* Announces a shape: takes bounce buffers, for a chunk or TN_IO_BYTES, if none are large enough. 0 or -ENOMEM. */
int tn_mover_shape(struct tn_mover *m, const struct tn_shape *shape);

/* A turn of the owner's loop begins; and after all have asked: whether another one must follow at once (sched/share.h). */
void tn_mover_turn(struct tn_mover *m);
bool tn_mover_again(const struct tn_mover *m);
/*
 * Whether this user may take a move now, although others wait for one, too; beyond the few that each user is left while
 * it waits, it keeps `keep` moves free. Ask in every turn, else others are not kept waiting any more.
 */
bool tn_mover_may(struct tn_mover *m, enum tn_move_user user, uint32_t keep);
/* A free move, or NULL: try again after a completion. */
struct tn_move *tn_mover_get(struct tn_mover *m, enum tn_move_user user);
void tn_mover_start(struct tn_move *mv);

/* Queues another request (block headers) behind the same depth limit. req->done and owner are the caller's. */
void tn_mover_submit(struct tn_mover *m, struct tn_io_req *req);
/* To be called in such a request's done. */
void tn_mover_returned(struct tn_mover *m);
/* Hands queued requests to the engine, reads first. Call after a batch of starts and after polls. */
void tn_mover_flush(struct tn_mover *m);
bool tn_mover_idle(const struct tn_mover *m);
uint32_t tn_mover_free(const struct tn_mover *m); /* moves that get would give */
/* Bytes written to disk so far. */
uint64_t tn_mover_bytes(const struct tn_mover *m);

#endif
