/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: loads and saves of an attached cache whose pages lie in memory of this process alone, or of a device. The owner moves
 * their bytes from and to session memory, which both processes map, and a thread of this process copies them between there and the pages, or
 * has the device's driver copy them.
 *
 * A pool over such memory has session memory of its own: slots of one block each, and a pool of the owner's over them. An operation
 * takes its slots when it begins, all or none, so no operation that has begun waits for slots; they are free again when it is over.
 *
 * An operation with more blocks than the pool has slots takes half of those that are free, and goes to the owner in batches of as many blocks, one after the
 * other: to the owner each is an operation of its own, with a generation of its own, of which the last is the caller's. A load's layers are all told
 * with the last batch; a save's later batches begin when its caller has committed.
 *
 * A staged operation meets its callers not in the session's region but in a region of this process, where the thread is the core: it reads there
 * what is asked and asks the owner for the same, and it tells there what the owner has told once the bytes are in the pages. Words that a layer is
 * ready by, the good prefix, the end of an operation: all are the thread's, so whoever looks at them - a thread, a GPU - finds the bytes in place.
 *
 * | who waits | for what | who ends it, by when |
 * |---|---|---|
 * | nobody | for slots: -EAGAIN at tn_load_begin and tn_save_begin | |
 * | a layer of a load | the owner, then the copy of the layer's chunk | the thread, after at most one chunk or layer of each other operation; under a device's copy
 *   at the load's deadline, its cancel, or the owner's end |
 * | a layer of a save | its event, then the copy | the same |
 * | the end of an operation | the owner's end of it, and its copies | the owner, then the device; when the owner's process is gone the thread, at once, as it has
 *   no address of the pages: but a device's copies have, and are waited for |
 */
#ifndef TN_FRONT_STAGE_H
#define TN_FRONT_STAGE_H

#include "front/front.h"

/* Most session memory of a pool, unless its memory was registered with another number. */
#define TN_STAGE_BYTES (UINT64_C(1) << 30)

#define TN_STAGE_PIECES 8192u /* that a device's driver is asked to copy at once, at most */

struct tn_stage;

/* What copies of device memory go by in one direction (stage_copy.c). The thread's, once the pool is there. */
struct tn_stage_stream {
	void *stream;	    /* the driver's; NULL: none */
	uint32_t calls;	    /* of copies under way */
	bool failed;	    /* a copy: nothing else goes by it */
	struct tn_log_limit lines; /* of copies that failed */
};

struct tn_stage_pool {
	struct tn_memory memory; /* what the owner maps */
	struct tn_mapped_range range; /* the memory's */
	struct tn_pool_layout places; /* a pool over it, as the owner is told, ... */
	struct tn_layout layout;      /* ... and as this process sees it */
	bool joined, pinned; /* words and slots, with the device's driver; what follows is for it, too */
	struct tn_stage_stream stream[2]; /* by enum tn_device_way */
	struct tn_device_piece *piece;	  /* while a call is made of them */
	uint32_t npieces;		  /* in one call at most: TN_STAGE_PIECES, or fewer in tests */
	uint32_t nslots;
	pthread_mutex_t lock; /* of what follows */
	uint32_t nfree;
	uint32_t *free; /* slots */
};

/* The thread of an attached cache, started by the first call. 0, -ENOMEM, or an error of pthread_create. */
int tn_stage_start(struct tn_cache *cache);
/* No operation is under way any more; without a thread nothing. */
void tn_stage_stop(struct tn_cache *cache);
/* Where operations of pools that are staged meet their callers. */
const struct tn_region *tn_stage_region(const struct tn_cache *cache);
/* Lets the thread look at what its callers, and events, say. Any thread. */
void tn_stage_wake(const struct tn_cache *cache);

/* Session memory for a pool whose own layout is compiled: pool->stage. 0, -ENOMEM, -EINVAL. The owner does not know of it yet. */
int tn_stage_pool_create(struct tn_pool *pool);
void tn_stage_pool_destroy(struct tn_pool *pool);
/* Of one layer of one block. */
static inline uint64_t tn_stage_layer_bytes(const struct tn_geometry *g)
{
	uint64_t bytes = 0;

	for (uint32_t p = 0; p < g->nplanes; p++)
		bytes += (uint64_t)tn_geometry_page_bytes(g, p) * g->pages_per_block;
	return bytes;
}

/*
 * Slots for the blocks of which an operation has claimed pages, or if the pool has not so many for a batch: 0; -EAGAIN: others have them. They go
 * back when the thread lets go of the operation.
 */
int tn_stage_take(struct tn_front_op *op, const char *call);
void tn_stage_give(const struct tn_front_op *op);
/* Hands it over to the owner, and to the thread. What is asked was written down in the region of tn_stage_region. */
void tn_stage_begin(struct tn_front_op *op);
/*
 * Whether a save under way brings the block in a batch that the owner has not been asked for: it would take a save that names the block as parent for an
 * orphan. Such a save says that its parent is not known. Any thread.
 */
bool tn_stage_is_to_come(const struct tn_space *space, const struct tn_key *key);

#endif
