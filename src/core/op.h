/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: what callers begin, and what the owner begins by itself.
 *
 *	struct tn_op		what any operation has
 *	struct tn_reading	blocks that are read: a prefetch is nothing else
 *	struct tn_load_op	a reading into an engine's pages, whose progress is told
 *	struct tn_writing	blocks that are written
 *	struct tn_save_op	a writing from an engine's pages, layer by layer as the caller gives them
 *	struct tn_offload_op	a writing from a tier's own memory to the tier below; the owner's alone
 *
 * All of it is the owner's alone. What callers ask for and what they are told lies in the region (region/face.h), where an operation of
 * a caller's has its index for a number.
 */
#ifndef TN_CORE_OP_H
#define TN_CORE_OP_H

#include <tenuto/cache.h>

#include "base/list.h"
#include "block/block.h"
#include "region/face.h"
#include "ring/ring.h"
#include "sched/sched.h"
#include "tier/drives.h"

/* A message to the owner: what is rare, or needs an answer at once. */
struct tn_cmd {
	struct tn_cmd *next;
	void (*run)(struct tn_cmd *cmd);
};

struct tn_reading;
struct tn_writing;
struct tn_save_op;
struct tn_flushes;

/* ---- the head ------------------------------------------------------------------------------------------ */

/* Tables of an operation's place, made once; which of them an operation uses depends on what it is. */
struct tn_op_tables {
	struct tn_key *keys;
	uint32_t *pages;
	void *items; /* of either kind */
	uint64_t *checks;
	uint8_t *chunk_state;
	uint64_t *before_ns;
	uint64_t *disk;
	uint64_t *offset;
	uint64_t *near;
};

/* What the entries of an operation's IOCBs are (transfers.c). */
enum tn_op_list {
	TN_LIST_PAGES,	 /* the engine's */
	TN_LIST_MEMORY,	 /* places in the memory tier */
	TN_LIST_NEAR,	 /* places in the near tier */
	TN_LIST_HEADERS, /* buffers of block headers */
	TN_LISTS
};

struct tn_part;

struct tn_op {
	uint64_t generation; /* of its life in the region, or of the last one; 0: it had none */
	bool alive;	     /* not drained yet */
	uint32_t index;	     /* of its place among the operations of all sessions, and the owner's */
	uint32_t number;     /* of its place in its session; not the owner's */
	struct tn_session *session; /* whose region it is asked for in; NULL: the owner's */
	struct tn_op_tables table;

	struct tn_list link; /* active list */
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_tier_space tier_space; /* what tiers know it by; while it has operations it is not dropped */
	const struct tn_shape *shape;	 /* of its blocks, ... */
	const struct tn_shape *header_shape; /* ... and of their headers */
	struct tn_pool *pool; /* NULL: the bytes are not in an engine's pages */
	struct tn_key *keys;
	uint32_t *pages;
	uint64_t first_page, end_page; /* those that are wanted */
	uint32_t n; /* blocks */
	int32_t priority;
	uint32_t inflight;
	bool active;
	bool cancelled;
	bool writing; /* part of a struct tn_writing, else of a struct tn_reading */
	bool goes_on, more; /* it is a batch: not the first, not the last */
	struct tn_space *between; /* its last life's, until the next batch; NULL: no batch follows */
	/* What moves its bytes (transfers.c). */
	uint64_t *offset; /* by block: of its place in the memory tier's memory */
	uint64_t *near;	  /* likewise in the near tier's; NULL: an offload's, which has none */
	struct tn_ring_list list[TN_LISTS];
	uint32_t iocbs;	    /* written, or out */
	uint64_t out_bytes; /* of them */
};

/* What transfers do (transfers.c): from where, to where. "The operation's bytes" are its pages, or without a pool its places in memory. */
enum tn_transfer_kind {
	TN_TRANSFER_READ,	  /* a device -> the operation's bytes */
	TN_TRANSFER_WRITE,	  /* the operation's bytes -> a device; from an engine's pages with their sums */
	TN_TRANSFER_IN,		  /* memory tier -> pages */
	TN_TRANSFER_OUT,	  /* pages -> memory tier; of saves with their sums */
	TN_TRANSFER_IN_NEAR,	  /* near tier -> pages */
	TN_TRANSFER_OUT_NEAR,	  /* pages -> near tier */
	TN_TRANSFER_FOLLOW,	  /* the operation's bytes -> pages of another load */
	TN_TRANSFER_CHECK,	  /* none: the operation's bytes are compared with their checksums */
	TN_TRANSFER_READ_HEADER,  /* a device -> a header buffer */
	TN_TRANSFER_WRITE_HEADER, /* a header buffer -> a device */
};

/* Who shares the IOCBs; headers are their operation's. */
enum tn_transfer_user {
	TN_TRANSFER_READS,
	TN_TRANSFER_CHECKS, /* and copies, of what was read */
	TN_TRANSFER_COPIES, /* from memory */
	TN_TRANSFER_SAVES,
	TN_TRANSFER_OFFLOADS,
	TN_TRANSFER_USERS
};

#define TN_TRANSFER_OBJECTS_MAX 64u

/* Up to TN_TRANSFER_OBJECTS_MAX neighbouring objects of one block that are to be moved. */
struct tn_transfer {
	struct tn_op *op;
	uint8_t kind, user; /* enum tn_transfer_kind, enum tn_transfer_user */
	uint8_t device;	    /* of place */
	bool verify;	    /* against the operation's checksums, which are known */
	bool again;	    /* READ: by way of the executor's memory, because its check failed in pages that another process can change */
	uint32_t window;    /* nothing of another window goes into the same IOCB */
	uint32_t block;	    /* of the operation; of headers: the buffer */
	uint32_t first, count; /* objects; of headers: 0, 1 */
	uint32_t request_bytes; /* most of one request; 0: as the executor likes */
	uint64_t place;		/* of the first object on a device: see tn_ioctx_disk */
	struct tn_op *to;	/* FOLLOW: the other load, ... */
	uint32_t to_block;	/* ... and which block of it */
};

/* What ended: objects of one block, as they were asked for; or a header. */
struct tn_part {
	struct tn_op *op;
	uint8_t kind;
	bool verified, again; /* as the transfer said */
	uint32_t block, first, count;
	uint32_t buffer; /* of headers */
	int status;
	const uint64_t *sums; /* by object: what transfers with sums computed */
};

/* ---- reading: loads and prefetches ----------------------------------------------------------------------- */

enum tn_read_state {
	TN_READ_IDLE, /* nothing to do, or over */
	TN_READ_LEAD, /* leads a flight from a tier that is no memory */
	TN_READ_COPY, /* copied from a tier's memory */
	TN_READ_FOLLOW, /* gets a copy from the leader */
};

enum tn_header_state { TN_HEADER_NONE, TN_HEADER_READING, TN_HEADER_HAVE };

#define TN_CHUNK_IDLE 0u
#define TN_CHUNK_READING 1u
#define TN_CHUNK_LANDED 2u /* read, to be checked */
#define TN_CHUNK_CHECKING 3u
#define TN_CHUNK_DONE 4u
#define TN_CHUNK_FAILED 5u
#define TN_CHUNK_DOUBTED 6u /* its check failed in pages that another process can change: to be read again, and checked elsewhere */
#define TN_CHUNK_READING_AGAIN 7u
/* Read and checked, and copied on to so many; the next copy waits, or is under way. */
#define TN_CHUNK_SOUND 16u
#define TN_CHUNK_COPYING 128u
#define TN_FOLLOWERS_MAX 100u

/* One block of a reading. */
struct tn_read_item {
	struct tn_reading *r;
	tn_block block;
	uint32_t place;     /* that it is read from, */
	uint32_t memory;    /* and one in the memory tier that is filled besides, or instead; TN_SLOT_NONE */
	uint32_t near;	    /* likewise one in the near tier, besides; TN_SLOT_NONE */
	uint16_t done_chunks;
	uint16_t inflight; /* chunks that are read, checked or copied on, and the header */
	uint16_t landed;   /* of them, those that wait for the header or for an IOCB */
	uint8_t state;     /* enum tn_read_state */
	uint8_t header;    /* enum tn_header_state */
	uint8_t tier;      /* of place: enum tn_tier */
	uint8_t device;    /* of place, where its tier has devices */
	bool frozen;       /* a verification was posted: nobody may join any more */
	bool partial;      /* only some of its pages are wanted */
	bool unfit;	   /* what was copied to the memory tier was not what had been read: it does not arrive there */
	bool near_unfit;	   /* a copy to the near tier failed: likewise */
	uint8_t nfollowers;
	int error;
	struct tn_read_item *followers; /* items of other loads that get a copy */
	union {
		struct tn_read_item *next_follower; /* TN_READ_FOLLOW */
		struct tn_tier_move *move; /* else: under way, from a tier that moves whole blocks; NULL: none is */
	};
};

/* A line of the CPU's caches: a load of 4,096 blocks goes through all of them twice before its first byte is asked for. */
_Static_assert(sizeof(struct tn_read_item) <= 64, "struct tn_read_item");

struct tn_reading {
	struct tn_op op;
	bool prefetch;  /* into the memory tier, and nobody waits for it; else part of a struct tn_load_op */
	uint32_t devices; /* bits: the drives that the scheduler lets its reads go to; 0: all of it is copied, or comes from elsewhere */
	uint32_t good;	/* prefix, in blocks */
	struct tn_key parent; /* of its first block, if another load brought that one, of the same prefix; else zero */
	uint64_t deadline_ns, begin_ns;
	uint64_t heard_ns;	      /* when one of its chunks came last, as far as was looked at, ... */
	uint32_t arrivals, heard;     /* ... and how many chunks came, and had come then */
	uint32_t hdr_i, chunk, i; /* cursors */
	uint32_t from_near;	  /* blocks that come from the near tier and are not over */
	uint32_t together;	  /* chunks from `chunk` on that are read together */
	bool whole;		  /* a load whose caller is not known to want one layer before the others */
	uint32_t landed;	  /* of all items: see tn_read_item */
	struct tn_read_item *items;
	uint64_t *checks;
	uint8_t *chunk_state; /* chunk-major: [chunk * n + i] */
	/* What the scheduler knows of it (schedule.c). */
	struct tn_sched_load sched;
	uint64_t *before_ns; /* by layer */
	uint64_t *disk; /* by block: its first object's address */
};

struct tn_load_op {
	struct tn_reading r;
	uint32_t left[TN_CHUNKS_MAX]; /* blocks of the good prefix whose chunk is missing */
	uint64_t input_tokens, start_ns;
	uint32_t last_wait; /* enum tn_wait: of the caller's load before */
};

/* ---- writing: saves and offloads ------------------------------------------------------------------------- */

enum tn_write_state {
	TN_WRITE_OVER,	 /* of a save whose blocks are not looked at yet */
	TN_WRITE_PLACE,	 /* has no place yet */
	TN_WRITE_DATA,	 /* bytes on their way */
	TN_WRITE_HEADER, /* data written, header not */
	TN_WRITE_STORED, /* all of it is there */
	TN_WRITE_EXISTING,
	TN_WRITE_REJECTED,
	TN_WRITE_FAILED,
};

/* Why a block of a save is not let into the durable tier. */
enum tn_kept_out {
	TN_KEPT_BY_POLICY,
	TN_KEPT_BY_HOLDERS, /* nothing can go for it: all is held by loads, leases and saves under way */
	TN_KEPT_BY_SHARE,   /* the saves of its session hold their part */
	TN_KEPT_BY_BUDGET,  /* of writes */
	TN_KEPT_BY_QUOTA,   /* its space may have no block there, or there is no such tier */
	TN_KEPT_BY_DEVICES, /* none takes writes */
	TN_KEPT_BY_PARENT,  /* the block before it is not there, nor on its way: nobody could find it */
	TN_KEPT_KINDS
};

/* One block of a writing. */
struct tn_write_item {
	struct tn_writing *w;
	tn_block block;
	uint32_t place;  /* that is being filled */
	uint32_t source; /* an offload's: of the memory tier */
	uint32_t near;	 /* place in the near tier that is filled besides, if its copies are over when the block is stored; TN_SLOT_NONE */
	uint64_t disk;	/* of place, where its tier has drives: of the first object */
	uint64_t sequence;   /* of its header */
	uint16_t next;	/* object: the first one not started */
	uint16_t done;	/* objects */
	uint16_t inflight; /* transfers of this item */
	uint16_t near_next, near_done; /* objects that go to the near tier, likewise */
	uint8_t state;     /* enum tn_write_state */
	uint8_t saved;     /* enum tn_saved, as soon as it is known */
	uint8_t kept_out;  /* enum tn_kept_out, of a save's that was not admitted */
	uint8_t tier;      /* of place; TN_TIER_NONE: it has none */
	uint8_t device;    /* of place, where its tier has devices */
	bool near_unfit;	   /* one of them did not get there */
	bool admitted;     /* the durable tier has let it in, or an offload's target */
	bool offered;      /* the durable tier's policy learns of it at the end */
	int error;
	struct tn_tier_move *move; /* under way, to a tier that moves whole blocks; NULL: none is */
};

struct tn_writing {
	struct tn_op op;
	struct tn_save_op *save;    /* NULL: an offload's */
	struct tn_tier_base *target; /* offloads: where to */
	struct tn_write_item *items;
	uint64_t *checks;
	uint32_t hdr_i, i;	     /* cursors */
	uint32_t through, hdr_to;    /* all data of the first so many items is written; and their headers may go */
	uint32_t ready;		     /* layers: the first so many have final bytes */
	uint32_t unplaced, unwritten; /* items without a place; with a place, but without all their data */
	uint32_t copying;	     /* of those with a place, they that have it in memory */
	int error;		     /* of the first item that failed */
	/* Waiting for places (writing.c). */
	struct tn_list place_link; /* among the cache's places.waiting, or alone */
	struct tn_place_wait wait;
};

/* A caller that waits for a durable point: of a flush or of a dropped space. */
struct tn_flush_waiter {
	struct tn_cmd cmd;
	struct tn_list link;
	struct tn_flushes *flushes;
	uint64_t offload_target; /* offload tickets to be finished first */
	bool syncing;
	uint32_t done; /* shared: futex. 2: the caller timed out, and the owner frees it */
	int status; /* before done: of the first block that could not be written */
	struct tn_save_op *save; /* that is over when this flush ends: durability_ms is 0 */
	struct tn_space *space; /* a drop's */
	uint32_t next; /* a drop's: the record to be looked at */
};

struct tn_save_op {
	struct tn_writing w;
	struct tn_key parent;
	uint64_t ttl_ns;
	bool partial_last;
	bool held;	  /* begins when its space is not being dropped any more */
	bool chained;	  /* a block is found only behind the one before it */
	bool cut;	  /* the block before the next one to be shown is not there */
	bool given_up;	  /* its caller owed the next layer, or the commit, for too long */
	uint64_t heard_ns; /* when its last layer came */
	uint32_t depth;	  /* blocks before its first one, as far as is known */
	uint32_t shown;	  /* the first so many blocks are visible, or will not be */
	int kept_off;	  /* why the first block that the policy was not asked about, or wanted, does not go to disk */
	uint64_t admitted_bytes; /* of the write backlog */
	struct tn_flush_waiter flush; /* see tn_save_flush */
};

#define TN_OFFLOAD_BLOCKS 64u /* of one offload */

struct tn_offload_op {
	struct tn_writing w;
	uint64_t first_ticket;
	uint64_t since_ns; /* since when its first block has waited */
};

/* A place for one operation of a caller's. */
union tn_op_place {
	struct tn_op op;
	struct tn_reading reading;
	struct tn_load_op load;
	struct tn_save_op save;
};

static inline struct tn_reading *tn_reading_of(struct tn_op *op)
{
	return tn_container_of(op, struct tn_reading, op);
}

static inline struct tn_load_op *tn_load_of(struct tn_op *op)
{
	return tn_container_of(op, struct tn_load_op, r.op);
}

static inline struct tn_writing *tn_writing_of(struct tn_op *op)
{
	return tn_container_of(op, struct tn_writing, op);
}

static inline struct tn_save_op *tn_save_of(struct tn_op *op)
{
	return tn_container_of(op, struct tn_save_op, w.op);
}

#endif
