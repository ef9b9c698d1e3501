/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The region: flat memory in which a front and the core meet.
 *
 * A front is the public calls of one process; the core is the state machine that owns the stores. What one tells the other
 * on the way of a load or a save is a word of the region. Tables are found by offsets from the region's beginning, and nothing
 * in the region is an address. In one process a region is private memory; between processes both map the same memory.
 *
 * Each word has one writer: the front or the core. The threads of one front may read-modify-write among themselves what the
 * front alone writes. The words are grouped by writer, so that each side could map the other's pages read-only:
 *
 *   header        where everything lies; written once, before the other side sees the region
 *   front's part  what is asked: commands, keys, pages, layers given, events; how long calls took (face.h, event.h,
 *                 observation.h, latency.h)
 *   core's part   what is told: the good prefix, event words, results (face.h)
 *
 * Operations have numbers, from 0 on, and each its own place in every table. How a side tells the other which
 * operation to look at is doorbell.h.
 *
 * The core trusts nothing in the front's part: it copies a field once, checks the copy and uses the copy. It does not trust its own part
 * either, because a front that maps the region could write there: the core never takes a decision from what it reads back.
 */
#ifndef TN_REGION_REGION_H
#define TN_REGION_REGION_H

#include <stdbool.h>
#include <tenuto/types.h>

#include "base/alloc.h"
#include "region/doorbell.h"

#define TN_REGION_MAGIC UINT64_C(0x6e6f696765726e74) /* "tnregion" */
#define TN_REGION_VERSION 6u
#define TN_REGION_OPS_MAX 4096u
#define TN_REGION_BLOCKS_MAX (1u << 20)
#define TN_REGION_CHUNKS_MAX 128u
#define TN_REGION_EVENTS_MAX (1u << 20)
#define TN_REGION_CALLS_MAX 256u
#define TN_REGION_CALL_BYTES_MAX (64u << 20)
#define TN_REGION_CALL_ALIGN 64u /* of the bytes of each call */
/* Compute times of layers that a front has seen and the core has not taken yet, at most. */
#define TN_REGION_OBSERVATIONS 1024u

/**
 * struct tn_region_counts - how large the tables are
 * @ops:    operations at once
 * @blocks: of one operation
 * @pages:  of one operation
 * @layers: of one block
 * @chunks: of one block: groups of layers that become ready together, each with an event word
 * @events: event words that the front raises
 * @calls:  at once (call.h); none within one process
 * @call_bytes: of one call, and of its answer; a multiple of TN_REGION_CALL_ALIGN
 */
struct tn_region_counts {
	uint32_t ops, blocks, pages, layers, chunks, events, calls, call_bytes;
};

enum tn_region_table {
	/* The front's. */
	TN_REGION_FRONT, /* struct tn_region_front */
	TN_REGION_KICKS, /* struct tn_doorbell_link, by operation */
	TN_REGION_HEARD, /* completions: uint32_t, by operation */
	TN_REGION_ASKED, /* struct tn_face_asked, by operation */
	TN_REGION_KEYS,	 /* struct tn_key, by operation and block */
	TN_REGION_PAGES, /* uint32_t, by operation and page */
	TN_REGION_GIVEN, /* struct tn_face_given, by operation and layer */
	TN_REGION_EVENTS, /* struct tn_event_word */
	TN_REGION_OBSERVED, /* struct tn_observation */
	TN_REGION_CALLS, /* struct tn_call_asked */
	TN_REGION_CALL_BYTES,
	TN_REGION_LATENCIES, /* struct tn_region_histogram */
	/* The core's. */
	TN_REGION_CORE,	       /* struct tn_region_core */
	TN_REGION_SEEN,	       /* kicks: uint32_t, by operation */
	TN_REGION_COMPLETIONS, /* struct tn_doorbell_link, by operation */
	TN_REGION_TOLD,	       /* struct tn_face_told, by operation */
	TN_REGION_READY,       /* uint64_t, by operation and chunk */
	TN_REGION_SAVED,       /* uint8_t, by operation and block */
	TN_REGION_BUSY,	       /* uint8_t, by operation and block */
	TN_REGION_ANSWERS,     /* struct tn_call_told */
	TN_REGION_ANSWER_BYTES,
	TN_REGION_TABLES,
};

/* At the region's beginning. */
struct tn_region_header {
	uint64_t magic;
	uint32_t version;
	uint32_t page_bytes; /* both parts begin at a multiple of it */
	uint64_t bytes;
	struct tn_region_counts counts;
	uint64_t at[TN_REGION_TABLES];
	uint64_t check; /* XXH3 of what is before */
};

/* Words of the front that belong to no operation; those of several threads at once on lines of their own. */
struct tn_region_front {
	_Alignas(64) uint64_t kicks; /* the doorbell's list */
	_Alignas(64) uint64_t observed; /* places of observations taken, since the beginning */
	_Alignas(64) uint64_t admitted_bytes; /* of saves that were begun, since the beginning */
	uint64_t refused_bytes; /* of saves that were not, since the beginning */
	uint64_t staged_bytes; /* copied between the front's pages and session memory, since the beginning */
	uint64_t calm_until_ns; /* of tn_phase, as of the last call */
	uint64_t calm_calls;
	_Alignas(64) uint32_t rung; /* between processes: futex word of the thread that answers calls and wakes the core */
	uint32_t wakes;	  /* how often the core was to be woken */
	uint32_t listens; /* somebody sleeps until there are completions */
};

/* Words of the core that belong to no operation. */
struct tn_region_core {
	_Alignas(64) uint64_t completions; /* the doorbell's list */
	uint64_t learned; /* observations taken, since the beginning */
	uint64_t given_back_bytes; /* of those admitted: what does not wait for the disk any more */
	uint64_t limit_bytes; /* of what is admitted and not given back; UINT64_MAX: none */
	uint64_t host_blocks; /* that host memory would take from saves */
	uint32_t scheduled; /* where engines are, and how long they compute, is of use */
	uint32_t completed; /* futex word of who listens; rises with completions. The front adds to it, too, to wake its own listener */
	uint32_t asleep;    /* of regions between processes: who rings a bell must wake the owner, too */
	uint32_t let_go;    /* likewise: nothing of the front is under way any more, nor will be */
};

/*
 * One side's view. What it says of places and counts was checked or computed by that side, which never asks the header again.
 */
struct tn_region {
	unsigned char *base;
	uint64_t bytes;
	struct tn_region_counts counts;
	uint64_t at[TN_REGION_TABLES];
	bool shared; /* with another process: futexes are not private */
	uint32_t gone; /* shared by the threads of this side, of a front: enum tn_region_gone */
};

enum tn_region_gone {
	TN_REGION_SERVED,
	TN_REGION_GONE, /* the other side answers no more */
	TN_REGION_DEAD, /* and does nothing any more; what the kernel does for it may go on */
};

static inline bool tn_region_is_gone(const struct tn_region *region)
{
	return __atomic_load_n(&region->gone, __ATOMIC_ACQUIRE) != TN_REGION_SERVED;
}

static inline bool tn_region_is_dead(const struct tn_region *region)
{
	return __atomic_load_n(&region->gone, __ATOMIC_SEQ_CST) == TN_REGION_DEAD;
}

/* Bytes of a region with such tables on pages of that size; 0: counts beyond the limits. */
uint64_t tn_region_bytes(const struct tn_region_counts *counts, uint32_t page_bytes);

/* Makes a region in zeroed memory of tn_region_bytes, aligned to a page. 0, or -EINVAL (counts). */
int tn_region_format(void *base, const struct tn_region_counts *counts, uint32_t page_bytes, bool shared, struct tn_region *out);

/*
 * The other side's view of @bytes of memory that tn_region_format has made. 0, -EPROTONOSUPPORT (not a region, or of another version), or
 * -EINVAL (a header that contradicts itself or the number of bytes).
 */
int tn_region_attach(void *base, uint64_t bytes, bool shared, struct tn_region *out);

/* A region in private memory. 0, -EINVAL, -ENOMEM. */
int tn_region_create(const struct tn_region_counts *counts, const struct tn_alloc *alloc, struct tn_region *out);
void tn_region_destroy(struct tn_region *region, const struct tn_alloc *alloc);

static inline void *tn_region_table(const struct tn_region *region, enum tn_region_table table)
{
	return region->base + region->at[table];
}

/* The whole pages that a table lies in: the region begins and ends with a page, and has a table behind each but the last. */
struct tn_region_pages {
	void *first;
	uint64_t bytes;
};

static inline struct tn_region_pages tn_region_pages(const struct tn_region *r, enum tn_region_table table)
{
	uint64_t first = r->at[table] / 4096 * 4096, end = (r->at[table + 1] + 4095) / 4096 * 4096;

	return (struct tn_region_pages){r->base + first, end - first};
}

static inline struct tn_region_front *tn_region_front(const struct tn_region *region)
{
	return tn_region_table(region, TN_REGION_FRONT);
}

static inline struct tn_region_core *tn_region_core(const struct tn_region *region)
{
	return tn_region_table(region, TN_REGION_CORE);
}

/* The front rings it, the core answers: operations that were begun, or of which the front has changed a word. */
static inline struct tn_doorbell tn_region_kicks(const struct tn_region *region)
{
	return (struct tn_doorbell){&tn_region_front(region)->kicks, tn_region_table(region, TN_REGION_KICKS),
				    tn_region_table(region, TN_REGION_SEEN), region->counts.ops};
}

/* The core rings it, the front answers: operations that have made progress. */
static inline struct tn_doorbell tn_region_completions(const struct tn_region *region)
{
	return (struct tn_doorbell){&tn_region_core(region)->completions, tn_region_table(region, TN_REGION_COMPLETIONS),
				    tn_region_table(region, TN_REGION_HEARD), region->counts.ops};
}

#endif
