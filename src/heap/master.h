/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master of a heap: allocates, keeps the index, evicts, ends what has waited for too long. Its own memory holds nothing that the headers do
 * not tell: a new master begins with zeros and a scan.
 *
 * All functions are called under tn_heap_master.lock.
 */
#ifndef TN_HEAP_MASTER_H
#define TN_HEAP_MASTER_H

#include <pthread.h>

#include "base/fork.h"
#include "heap/segment.h"

struct tn_heap;
struct tn_heap_server;

/* What the master has seen of a slot. */
struct tn_heap_seen {
	uint64_t since_ns; /* it is RESERVED or WRITING with that epoch */
	uint32_t epoch;
	bool stacked; /* in a stack of free slots, as far as the master knows */
};

struct tn_heap_candidate {
	uint64_t order;
	uint32_t slot;
};

struct tn_heap_master {
	pthread_mutex_t lock;
	struct tn_heap_memory *memory;
	struct tn_heap_index index;
	uint64_t used[TN_HEAP_RANKS_MAX];     /* bytes of extents that are not free */
	struct tn_heap_seen *seen;	      /* by rank and slot */
	struct tn_heap_candidate *candidates; /* by slot: of an eviction */
	uint32_t *spare;		      /* by rank: slots without an extent (extent.h) */
	uint32_t nspare[TN_HEAP_RANKS_MAX];
	uint32_t *slot_at; /* by page of one rank: tn_heap_extents_map */
};

struct tn_heap_want {
	struct tn_heap_name name;
	uint64_t bytes;
	uint32_t owner; /* rank */
	uint32_t flags;
};

/* Of a heap that may hold objects. 0, -ENOMEM. */
int tn_heap_master_create(struct tn_heap_memory *memory, struct tn_heap_master **out);
void tn_heap_master_destroy(struct tn_heap_master *m);

/* The public calls' errors. @may: bits of the ranks that the caller may write into; eviction passes the others by. */
int tn_heap_master_open(struct tn_heap_master *m, const struct tn_heap_want *want, struct tn_heap_plan *plan);
int tn_heap_master_remove(struct tn_heap_master *m, const struct tn_heap_name *name, uint64_t may);
int tn_heap_master_evict(struct tn_heap_master *m, uint32_t percent, uint64_t may);
/* Takes the announces of all heaps. */
void tn_heap_master_hear(struct tn_heap_master *m);
/* Ends what has waited for too long, and frees what nobody uses any more, in all heaps. */
void tn_heap_master_sweep(struct tn_heap_master *m, uint64_t now_ns);
/* A rank's process does nothing any more: its plans end, and its leases. */
void tn_heap_master_end_life(struct tn_heap_master *m, uint32_t dead);

#endif
