/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a symmetric heap: one memfd per rank (heap_layout.h), and the directory, one memfd that tells what all ranks must know. The first master
 * makes them; every process of the heap maps all of them and keeps their descriptors, so that any of them can be the next master.
 *
 * The directory's words have one writer, the master, but for counters, and for `alive`, which a rank that leaves changes last.
 */
#ifndef TN_HEAP_SEGMENT_H
#define TN_HEAP_SEGMENT_H

#include <stdbool.h>
#include <tenuto/heap.h>

#define TN_HEAP_DIRECTORY_MAGIC UINT64_C(0x3052494448544e54) /* "TNTHDIR0" */

enum tn_heap_life { TN_HEAP_NOBODY, TN_HEAP_ALIVE, TN_HEAP_LEFT };

enum tn_heap_counter {
	TN_HEAP_EVICTIONS,
	TN_HEAP_RECLAIMS,
	TN_HEAP_OOM,
	TN_HEAP_BYTES_TX,
	TN_HEAP_BYTES_RX,
	TN_HEAP_FAILURES,
	TN_HEAP_TIMEOUTS,
	TN_HEAP_CAS_FAILURES,
	TN_HEAP_UNVERIFIED,
	TN_HEAP_COUNTERS,
};

/* Who has a rank. */
struct tn_heap_member {
	_Alignas(64) uint64_t start; /* of its process, in the kernel's ticks: the number of a dead process may be another's */
	uint32_t pid;
	uint32_t alive; /* enum tn_heap_life */
	uint64_t counter[TN_HEAP_COUNTERS];
};

/* A place of the index. object: 0, never used; TN_HEAP_GONE; else rank << 32 | slot + 1. */
struct tn_heap_place {
	uint64_t key_hash;
	uint64_t object;
};

#define TN_HEAP_GONE UINT64_MAX

struct tn_heap_directory {
	uint64_t magic;
	uint32_t version;
	uint32_t ranks;
	uint32_t page_bytes;
	uint32_t slots; /* of a rank */
	uint32_t order; /* enum tn_heap_order */
	uint32_t places; /* of the index, a power of two */
	uint64_t bytes;	/* of the directory */
	uint64_t segment_bytes;
	uint64_t reclaim_ns;
	uint32_t master; /* rank */
	uint32_t turn;	 /* of the index: odd while it is built anew */
	struct tn_heap_member member[TN_HEAP_RANKS_MAX];
	struct tn_heap_place place[];
};

/* Descriptors of a heap: of the segments, of the directory, and an eventfd that wakes the master. */
#define TN_HEAP_FDS_MAX (TN_HEAP_RANKS_MAX + 2)

/* What this process maps. */
struct tn_heap_memory {
	struct tn_heap_directory *dir;
	unsigned char *base[TN_HEAP_RANKS_MAX];
	uint64_t segment_bytes; /* these three as they were checked once */
	uint64_t dir_bytes;
	uint32_t ranks;
	int fd[TN_HEAP_FDS_MAX];
};

/* Makes all memory of a heap. opts: as checked by tn_heap_opts_check. 0, -ENOMEM. */
int tn_heap_memory_make(uint32_t ranks, const struct tn_heap_opts *opts, struct tn_heap_memory *out);
/* Maps what the master has sent: its ranks + 2 descriptors; they are this function's from now on. 0, -EINVAL, -ENOMEM. */
int tn_heap_memory_map(uint32_t ranks, const int *fds, struct tn_heap_memory *out);
/* Zeroed memory is ignored. */
void tn_heap_memory_drop(struct tn_heap_memory *m);

struct tn_heap_name {
	uint64_t hash;
	uint64_t digest[2];
};

/* All of a header but its word and its place; the slot is the caller's. */
void tn_heap_describe(struct tn_heap_slot *s, const struct tn_heap_name *name, uint64_t bytes, uint32_t page_bytes, uint32_t flags);

/* 0, -EINVAL with the value. */
int tn_heap_opts_check(const struct tn_heap_opts *opts);

static inline struct tn_heap_ctl *tn_heap_ctl_of(const struct tn_heap_memory *m, uint32_t rank)
{
	return (struct tn_heap_ctl *)(void *)m->base[rank];
}

static inline struct tn_heap_slot *tn_heap_slot_of(const struct tn_heap_memory *m, uint32_t rank, uint32_t slot)
{
	return tn_heap_slots(m->base[rank]) + slot;
}

static inline void tn_heap_count(const struct tn_heap_memory *m, uint32_t rank, enum tn_heap_counter counter, uint64_t n)
{
	__atomic_add_fetch(&m->dir->member[rank].counter[counter], n, __ATOMIC_RELAXED);
}

/* ---- the index (index.c) ---------------------------------------------------------------------------------------- */

struct tn_heap_found {
	uint32_t rank, slot;
	uint64_t word; /* its state and epoch */
};

/*
 * Any process, any thread, no lock: the object of that name that is not DEAD. 0, -ENOENT, -EAGAIN (the index is being built anew for too long: its master
 * may have died).
 */
int tn_heap_find(const struct tn_heap_memory *m, const struct tn_heap_name *name, struct tn_heap_found *out);

/* The master's, under its lock. */
struct tn_heap_index {
	uint32_t filled; /* places that are not 0 */
};

void tn_heap_index_add(struct tn_heap_index *x, const struct tn_heap_memory *m, uint32_t rank, uint32_t slot);
void tn_heap_index_drop(const struct tn_heap_memory *m, uint32_t rank, uint32_t slot);
/* From the headers of all ranks. */
void tn_heap_index_build(struct tn_heap_index *x, const struct tn_heap_memory *m);

#endif
