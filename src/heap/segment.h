/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a symmetric heap: two memfds per rank (heap_layout.h), and the directory, one memfd that tells what all ranks must know. One of the two has what
 * lies before the payload, the other one has the payload. They are mapped one behind the other. The first master makes all; every process of the heap maps what it has a right to, and
 * keeps the descriptors, so that any process that has all rights can be the next master.
 *
 * The directory's words have one writer, the master, but for counters, and for `life`. A rank that joins or leaves changes that by compare-and-swap.
 *
 * Any process may write wrong values into the memory that all share. So a process copies sizes and offsets once, checks the copy, and uses that. What changes
 * (slots in use, classes, places of extents) it reads once per use, and checks what it has read.
 */
#ifndef TN_HEAP_SEGMENT_H
#define TN_HEAP_SEGMENT_H

#include <stdbool.h>
#include <sys/types.h>
#include <tenuto/device_memory.h>
#include <tenuto/heap.h>

#define TN_HEAP_DIRECTORY_MAGIC UINT64_C(0x3052494448544e54) /* "TNTHDIR0" */

/* JOINING: the master has told a process the memory. The process makes it ALIVE when it has mapped that, unless a master ends the attempt. */
enum tn_heap_life { TN_HEAP_NOBODY, TN_HEAP_JOINING, TN_HEAP_ALIVE, TN_HEAP_LEFT };

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
	TN_HEAP_PAGES,
	TN_HEAP_PAGE_TIME,
	TN_HEAP_COUNTERS,
};

/* Whose payload a rank may read and write: bits of owners' ranks. */
struct tn_heap_rights {
	uint64_t read, write;
};

/* Who has a rank. */
struct tn_heap_member {
	_Alignas(64) uint64_t start; /* of its process, in the kernel's ticks: the number of a dead process may be another's */
	uint64_t life;	     /* pid << 32 | enum tn_heap_life: tn_heap_life_word */
	uint64_t counter[TN_HEAP_COUNTERS];
	struct tn_heap_rights rights;
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
	uint64_t id;	 /* random: another heap of the same name has another one */
	uint32_t master; /* rank */
	uint32_t turn;	 /* of the index: odd while it is built anew */
	uint32_t need_tokens;
	unsigned char device_export[TN_HEAP_RANKS_MAX][TN_DEVICE_EXPORT_BYTES]; /* of payload on a device (on_device.h) */
	struct tn_heap_member member[TN_HEAP_RANKS_MAX];
	struct tn_heap_place place[];
};

/* Descriptors of a heap, as they are sent: of the directory, an eventfd that wakes the master, per rank what lies before the payload, and the payloads that may be mapped. */
#define TN_HEAP_FDS_MAX (2 * TN_HEAP_RANKS_MAX + 2)

/* What this process maps. */
struct tn_heap_memory {
	struct tn_heap_directory *dir;
	unsigned char *base[TN_HEAP_RANKS_MAX];
	struct tn_heap_ctl layout; /* of each segment: what does not change, as it was checked once. So are the words below. */
	uint64_t dir_bytes;
	uint64_t reclaim_ns;
	uint64_t id;
	struct tn_heap_rights rights; /* of this process */
	uint32_t order;
	uint32_t places;
	uint32_t ranks;
	uint32_t need_tokens;
	bool on_device; /* the payload: it has no descriptors, and its addresses here are nobody's */
	int dir_fd, wake_fd;
	int ctl_fd[TN_HEAP_RANKS_MAX];
	int payload_fd[TN_HEAP_RANKS_MAX]; /* -1: neither right; else open for reading alone, or for both */
};

/* Makes all memory of a heap. opts: as checked by tn_heap_opts_check. 0, -ENOMEM. */
int tn_heap_memory_make(uint32_t ranks, const struct tn_heap_opts *opts, struct tn_heap_memory *out);
/* How many descriptors a process of those rights gets. */
static inline uint32_t tn_heap_fds_of(uint32_t ranks, bool on_device, const struct tn_heap_rights *rights)
{
	return 2 + ranks + (on_device ? 0 : (uint32_t)__builtin_popcountll(rights->read | rights->write));
}

/* The rights to all there is. */
static inline struct tn_heap_rights tn_heap_all_rights(uint32_t ranks)
{
	uint64_t all = ranks < 64 ? (UINT64_C(1) << ranks) - 1 : UINT64_MAX;

	return (struct tn_heap_rights){all, all};
}

/* Maps what the master has sent, tn_heap_fds_of descriptors; they are this function's from now on. Payload that may only be read is mapped so. 0, -EINVAL, -ENOMEM. */
int tn_heap_memory_map(uint32_t ranks, bool on_device, const struct tn_heap_rights *rights, const int *fds, struct tn_heap_memory *out);
/* Zeroed memory is ignored. */
void tn_heap_memory_drop(struct tn_heap_memory *m);

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
	return tn_heap_slots(m->base[rank], &m->layout) + slot;
}

static inline uint32_t *tn_heap_leases_of(const struct tn_heap_memory *m, uint32_t rank, uint32_t slot)
{
	return tn_heap_leases(m->base[rank], &m->layout, slot);
}

/* Slots of a rank that are in use: those below. */
static inline uint32_t tn_heap_head(const struct tn_heap_memory *m, uint32_t rank)
{
	uint32_t head = tn_heap_load32(&tn_heap_ctl_of(m, rank)->hdr_head);

	return head < m->layout.hdr_count ? head : m->layout.hdr_count;
}

/* Class of a slot's extent; TN_HEAP_CLASSES: it has none. */
static inline uint32_t tn_heap_class_of(const struct tn_heap_slot *s)
{
	uint32_t size_class = __atomic_load_n(&s->extra.size_class, __ATOMIC_ACQUIRE);

	return size_class < TN_HEAP_CLASSES ? size_class : TN_HEAP_CLASSES;
}

static inline uint64_t tn_heap_life_word(pid_t pid, enum tn_heap_life life)
{
	return (uint64_t)(uint32_t)pid << 32 | life;
}

static inline enum tn_heap_life tn_heap_life_of(uint64_t word)
{
	return (enum tn_heap_life)(uint32_t)word;
}

static inline pid_t tn_heap_pid_of(uint64_t word)
{
	return (pid_t)(word >> 32);
}

/* A rank's life of that process goes on to the next state. False: it is not in the state @from. */
static inline bool tn_heap_life_move(const struct tn_heap_memory *m, uint32_t rank, pid_t pid, enum tn_heap_life from, enum tn_heap_life to)
{
	return tn_heap_cas64(&m->dir->member[rank].life, tn_heap_life_word(pid, from), tn_heap_life_word(pid, to));
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
 * Any process, any thread, no lock: the object of that name that the master has admitted, and that is not DEAD. Of replicas a READY one: that of the rank @near, else one
 * of a rank whose process lives, else any. @without: bits of ranks that are passed by. 0, -ENOENT, -EAGAIN (the index is being built anew for too
 * long: its master may have died).
 */
int tn_heap_find(const struct tn_heap_memory *m, const struct tn_heap_name *name, uint32_t near, uint64_t without, struct tn_heap_found *out);
/* Whether there is one at all. */
static inline int tn_heap_find_any(const struct tn_heap_memory *m, const struct tn_heap_name *name, struct tn_heap_found *out)
{
	return tn_heap_find(m, name, UINT32_MAX, 0, out);
}

/* The master's, under its lock. */
struct tn_heap_index {
	uint32_t filled; /* places that are not 0 */
};

/* Admits the slot's object: from now on others find it. */
void tn_heap_index_add(struct tn_heap_index *x, const struct tn_heap_memory *m, uint32_t rank, uint32_t slot);
void tn_heap_index_drop(const struct tn_heap_memory *m, uint32_t rank, uint32_t slot);
/* From the headers of all ranks: what was admitted. */
void tn_heap_index_build(struct tn_heap_index *x, const struct tn_heap_memory *m);

#endif
