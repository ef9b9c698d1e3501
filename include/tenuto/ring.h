/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings: transfers of whole objects, submitted and completed in blocks of up to 2,048 (IOCBs).
 *
 * The structures here are shared by threads, and may be shared with a GPU: plain fixed-width fields, no
 * pointers, no locks; a region of memory that begins with struct tn_ring_shared and finds its parts by
 * offsets. The TN_HD functions are the same lines on the host and in a kernel; tests run them on the host.
 * An executor (CPU threads, later a kernel) takes IOCBs from the submission queue, moves the objects, and
 * finishes them to the completion queue. What an entry of a list means in memory, only the executor knows.
 * An IOCB has two ends: memory, which is the entries of a list, and places, which lie on a disk or in the memory of another list.
 *
 * Threads: any number issue, wait, poll, cancel and signal, and any number of executors take, at once. Between get and
 * issue an IOCB is for the one thread that holds it, and so it is from its end to its put; tn_ring_cancel alone may come
 * from anywhere in between. tn_ring_create and tn_ring_destroy are for one thread, with no executor attached.
 *
 * Memory order, both ways through one word each:
 *   to the executor    header and IOCTXs are plain stores; the cell's seq in the submission queue is released after
 *                      them, and acquired by whoever takes the id. What was written before a signal is ordered by the
 *                      event's word (released, acquired by tn_ring_may_start).
 *   from the executor  an object's bytes and its checksum come before its status, the statuses before ended, and all of
 *                      them and the header's results before state DONE: each is released, and acquired by who looks.
 *                      done_seq is raised last; it only says that it is worth looking.
 *   cancel             a wish: released and acquired, but nothing depends on when it is seen.
 * An executor copies what it uses of a header and its IOCTXs once, and checks the copy: of an IOCB that is written to after
 * its issue come errors, or wrong bytes in places that a list names, never a write elsewhere. The queues and the head of
 * the region are trusted.
 */
#ifndef TENUTO_RING_H
#define TENUTO_RING_H

#include <stddef.h>
#include <stdint.h>

#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#define TN_RING_CHECK(cond, text) static_assert(cond, text)
#else
#define TN_RING_CHECK(cond, text) _Static_assert(cond, text)
#endif

#ifdef __CUDACC__
#define TN_HD __host__ __device__ static inline
#else
#define TN_HD static inline
#endif

#define TN_RING_MAGIC 0x30474e4952544e54ull /* "TNTRING0", little-endian */
#define TN_RING_VERSION 1u
#define TN_IOCB_IOCTXS_MAX 2048u
#define TN_RING_DEPTH_MAX 4096u
#define TN_RING_DEVICES_MAX 256u
#define TN_RING_NO_EVENT UINT32_MAX
#define TN_RING_NO_INDEX UINT32_MAX

/**
 * struct tn_ioctx - the transfer of one object
 * @place:  READ, WRITE: device in the top 8 bits, 4 KiB page of it below; COPY: the entry of the IOCB's source list
 * @length: bytes in memory; on disk the object is padded to whole 4 KiB pages
 * @entry:  of the IOCB's list: block in the list * layers + layer. The list's checksums have this index
 */
struct tn_ioctx {
	uint64_t place;
	uint32_t length;
	uint32_t entry;
};

TN_RING_CHECK(sizeof(struct tn_ioctx) == 16, "an IOCTX is 16 bytes");
TN_RING_CHECK(offsetof(struct tn_ioctx, length) == 8 && offsetof(struct tn_ioctx, entry) == 12, "layout of an IOCTX");

TN_HD uint64_t tn_ioctx_disk(uint32_t device, uint64_t page)
{
	return (uint64_t)device << 56 | page;
}

TN_HD uint32_t tn_ioctx_device(uint64_t place)
{
	return (uint32_t)(place >> 56);
}

TN_HD uint64_t tn_ioctx_page(uint64_t place)
{
	return place & ((UINT64_C(1) << 56) - 1);
}

enum tn_iocb_op {
	TN_IOCB_READ = 1, /* from the disk to the list */
	TN_IOCB_WRITE,	  /* from the list to the disk */
	TN_IOCB_COPY,	  /* from the source list to the list */
	TN_IOCB_CHECK,	  /* moves nothing: compares or sums what is in the list */
};

#define TN_IOCB_VERIFY 1u /* the checksums of all entries that the bytes come from are known: compare with them */
#define TN_IOCB_QUIET 2u  /* not announced in the completion queue: its owner waits for it */
#define TN_IOCB_SUM 4u	  /* tell the checksum of each object (tn_ring_sums_of) */

/* The status of an IOCTX that has not ended. */
#define TN_RING_PENDING 1

/*
 * Where an IOCB is, and by whose hand it leaves: a plain release store where nobody else can, else compare-and-swap.
 *
 *   FREE      -> HELD       get; the free queue gives an id to one thread only
 *   HELD      -> ISSUED     issue               -> FREE       put
 *   ISSUED    -> TAKEN      an executor, swap   -> CANCELLED  cancel, swap
 *   TAKEN     -> DONE       the executor
 *   CANCELLED -> DONE       an executor, swap   -> LEFT       put, swap
 *   LEFT      -> FREE       an executor
 *   DONE      -> FREE       put
 */
enum tn_iocb_state {
	TN_IOCB_FREE,
	TN_IOCB_HELD,	   /* got, being filled */
	TN_IOCB_ISSUED,	   /* in the submission queue */
	TN_IOCB_TAKEN,	   /* an executor has it */
	TN_IOCB_DONE,	   /* its results can be read, until put */
	TN_IOCB_CANCELLED, /* as DONE with -ECANCELED, but the submission queue still names it */
	TN_IOCB_LEFT,	   /* CANCELLED and put: free when the submission queue has come to it */
};

/**
 * struct tn_iocb - up to TN_IOCB_IOCTXS_MAX transfers, started and completed as one
 * @op:            enum tn_iocb_op
 * @flags:         TN_IOCB_*
 * @list:          the executor's list of what lies in memory
 * @count:         number of IOCTXs
 * @after_event:   starts when this event's word is >= @after_value; TN_RING_NO_EVENT: at once
 * @state:         enum tn_iocb_state
 * @status:        0; or the first failed IOCTX's error; or -ECANCELED, -EINVAL for the whole
 * @failed:        index of the first failed IOCTX in the order of the array, TN_RING_NO_INDEX: none
 * @failures:      how many IOCTXs failed; their statuses (tn_ring_statuses_of) say which and why
 * @sequence:      order of issue
 * @source:        COPY: the list that is copied from
 * @priority:      higher first
 * @cancel:        set by tn_ring_cancel: start no more transfers
 * @ended:         how many of its IOCTXs have ended so far; rises while an executor has it
 */
struct tn_iocb {
	uint16_t op;
	uint16_t flags;
	uint32_t list;
	uint32_t count;
	uint32_t after_event;
	uint64_t after_value;
	uint32_t state;
	int32_t status;
	uint32_t failed;
	uint32_t failures;
	uint64_t sequence;
	uint32_t source;
	int32_t priority;
	uint32_t cancel;
	uint32_t ended;
};

TN_RING_CHECK(sizeof(struct tn_iocb) == 64, "an IOCB header is one cache line");
TN_RING_CHECK(offsetof(struct tn_iocb, after_value) == 16 && offsetof(struct tn_iocb, state) == 24 &&
		      offsetof(struct tn_iocb, sequence) == 40 && offsetof(struct tn_iocb, cancel) == 56,
	      "layout of an IOCB header");

/** One place of a queue. */
struct tn_ring_cell {
	uint64_t seq;
	uint32_t id;
	uint32_t reserved;
};

TN_RING_CHECK(sizeof(struct tn_ring_cell) == 16, "layout of a cell");

/**
 * struct tn_ring_queue - a bounded queue for many producers and many consumers
 * @enqueue, @dequeue: the next positions; they only rise, and wrap at 2^64
 * @mask: cells - 1, a power of two minus one
 *
 * Dmitry Vyukov's bounded MPMC queue: the cell of position p is free for the producer while its seq is p, and
 * holds a value for the consumer while its seq is p + 1; the consumer leaves p + cells, the producer's number
 * a lap later.
 */
struct tn_ring_queue {
	uint64_t enqueue;
	uint64_t mask;
	uint64_t pad0[6];
	uint64_t dequeue;
	uint64_t pad1[7];
};

TN_RING_CHECK(sizeof(struct tn_ring_queue) == 128 && offsetof(struct tn_ring_queue, dequeue) == 64,
	      "producers and consumers on lines of their own");

/**
 * struct tn_ring_shared - what a ring's memory begins with; the rest is found by offsets from its start
 * @done_seq: rises with every finished IOCB; what waiters sleep on
 */
struct tn_ring_shared {
	uint64_t magic;
	uint32_t version;
	uint32_t depth;
	uint32_t ioctxs;
	uint32_t events;
	uint64_t bytes;
	uint64_t sq_at, cq_at, free_at;
	uint64_t iocbs_at, ioctxs_at, events_at;
	uint64_t sequence;
	uint64_t statuses_at, sums_at;
	uint32_t done_seq;
	uint32_t reserved;
	uint64_t pad[2];
	struct tn_ring_queue sq, cq, free;
};

TN_RING_CHECK(offsetof(struct tn_ring_shared, bytes) == 24 && offsetof(struct tn_ring_shared, sequence) == 80 &&
		      offsetof(struct tn_ring_shared, sq) == 128 && sizeof(struct tn_ring_shared) == 512,
	      "layout of a ring's head");

/* ---- atomics: the host's builtins, or the device's at system scope ------------------------------ */

#ifdef __CUDA_ARCH__
TN_HD uint64_t tn_ring_load64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

TN_HD void tn_ring_store64(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
}

TN_HD uint32_t tn_ring_load32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

TN_HD void tn_ring_store32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

TN_HD int tn_ring_cas64(uint64_t *p, uint64_t old, uint64_t v)
{
	uint64_t was;

	asm volatile("atom.relaxed.sys.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "l"(p), "l"(old), "l"(v) : "memory");
	return was == old;
}

TN_HD int tn_ring_cas32(uint32_t *p, uint32_t old, uint32_t v)
{
	uint32_t was;

	asm volatile("atom.acq_rel.sys.cas.b32 %0, [%1], %2, %3;" : "=r"(was) : "l"(p), "r"(old), "r"(v) : "memory");
	return was == old;
}

TN_HD void tn_ring_add32(uint32_t *p, uint32_t v)
{
	asm volatile("red.release.sys.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}
#else
TN_HD uint64_t tn_ring_load64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

TN_HD void tn_ring_store64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

TN_HD uint32_t tn_ring_load32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

TN_HD void tn_ring_store32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* Relaxed: it only claims a position; what the position's cell holds is ordered by the cell's seq. */
TN_HD int tn_ring_cas64(uint64_t *p, uint64_t old, uint64_t v)
{
	return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

TN_HD int tn_ring_cas32(uint32_t *p, uint32_t old, uint32_t v)
{
	return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

TN_HD void tn_ring_add32(uint32_t *p, uint32_t v)
{
	__atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
#endif

/* ---- queues ---------------------------------------------------------------------------------------- */

/* One push or pop on its way; each step makes one access to shared memory, so that a test can try every interleaving. */
struct tn_ring_turn {
	uint64_t pos;
	uint32_t id;
	uint32_t phase;
};

#define TN_RING_TURN_MORE 0
#define TN_RING_TURN_DONE 1
#define TN_RING_TURN_NO 2 /* full, or empty */

TN_HD int tn_ring_push_step(struct tn_ring_queue *q, struct tn_ring_cell *cells, struct tn_ring_turn *t)
{
	struct tn_ring_cell *cell = &cells[t->pos & q->mask];
	int64_t ahead;

	switch (t->phase) {
	case 0: /* any recent value will do: the next step finds out */
		t->pos = tn_ring_load64(&q->enqueue);
		t->phase = 1;
		return TN_RING_TURN_MORE;
	case 1: /* acquire: the consumer of the lap before has read the cell before we write it */
		ahead = (int64_t)(tn_ring_load64(&cell->seq) - t->pos);
		t->phase = ahead == 0 ? 2 : 0;
		return ahead < 0 ? TN_RING_TURN_NO : TN_RING_TURN_MORE;
	case 2: /* the cell is ours if nobody else takes this position first */
		t->phase = tn_ring_cas64(&q->enqueue, t->pos, t->pos + 1) ? 3 : 0;
		return TN_RING_TURN_MORE;
	case 3:
		cell->id = t->id;
		t->phase = 4;
		return TN_RING_TURN_MORE;
	default: /* release: with the value, and all that was written for it before */
		tn_ring_store64(&cell->seq, t->pos + 1);
		return TN_RING_TURN_DONE;
	}
}

TN_HD int tn_ring_pop_step(struct tn_ring_queue *q, struct tn_ring_cell *cells, struct tn_ring_turn *t)
{
	struct tn_ring_cell *cell = &cells[t->pos & q->mask];
	int64_t ahead;

	switch (t->phase) {
	case 0:
		t->pos = tn_ring_load64(&q->dequeue);
		t->phase = 1;
		return TN_RING_TURN_MORE;
	case 1: /* acquire: pairs with the producer's last step */
		ahead = (int64_t)(tn_ring_load64(&cell->seq) - (t->pos + 1));
		t->phase = ahead == 0 ? 2 : 0;
		return ahead < 0 ? TN_RING_TURN_NO : TN_RING_TURN_MORE;
	case 2:
		t->phase = tn_ring_cas64(&q->dequeue, t->pos, t->pos + 1) ? 3 : 0;
		return TN_RING_TURN_MORE;
	case 3:
		t->id = cell->id;
		t->phase = 4;
		return TN_RING_TURN_MORE;
	default: /* release: the value was read before the producer of the next lap overwrites it */
		tn_ring_store64(&cell->seq, t->pos + q->mask + 1);
		return TN_RING_TURN_DONE;
	}
}

/* 1, or 0: full, or the consumer of the last lap has claimed the cell and not left it yet. */
TN_HD int tn_ring_push(struct tn_ring_queue *q, struct tn_ring_cell *cells, uint32_t id)
{
	struct tn_ring_turn t = {0, id, 0};
	int rc;

	do
		rc = tn_ring_push_step(q, cells, &t);
	while (rc == TN_RING_TURN_MORE);
	return rc == TN_RING_TURN_DONE;
}

/* 1 and *id, or 0: empty, or the producer has claimed the cell and not filled it yet. */
TN_HD int tn_ring_pop(struct tn_ring_queue *q, struct tn_ring_cell *cells, uint32_t *id)
{
	struct tn_ring_turn t = {0, 0, 0};
	int rc;

	do
		rc = tn_ring_pop_step(q, cells, &t);
	while (rc == TN_RING_TURN_MORE);
	if (rc != TN_RING_TURN_DONE)
		return 0;
	*id = t.id;
	return 1;
}

/* Empty, with both positions at start. */
TN_HD void tn_ring_queue_init(struct tn_ring_queue *q, struct tn_ring_cell *cells, uint32_t count, uint64_t start)
{
	q->enqueue = q->dequeue = start;
	q->mask = count - 1;
	for (uint32_t i = 0; i < count; i++)
		cells[(start + i) & q->mask].seq = start + i;
}

/* ---- the parts of a ring, and the executor's side -------------------------------------------------- */

TN_HD struct tn_ring_cell *tn_ring_cells(struct tn_ring_shared *r, uint64_t at)
{
	return (struct tn_ring_cell *)(void *)((char *)r + at);
}

TN_HD struct tn_iocb *tn_ring_iocb_of(struct tn_ring_shared *r, uint32_t id)
{
	return (struct tn_iocb *)(void *)((char *)r + r->iocbs_at) + id;
}

TN_HD struct tn_ioctx *tn_ring_ioctx_of(struct tn_ring_shared *r, uint32_t id)
{
	return (struct tn_ioctx *)(void *)((char *)r + r->ioctxs_at) + (uint64_t)id * r->ioctxs;
}

/* By the index of an IOCTX: 0, -errno, or TN_RING_PENDING (release, acquire). */
TN_HD int32_t *tn_ring_statuses_of(struct tn_ring_shared *r, uint32_t id)
{
	return (int32_t *)(void *)((char *)r + r->statuses_at) + (uint64_t)id * r->ioctxs;
}

/* By the index of an IOCTX: the checksum, where its status is 0 and the IOCB has TN_IOCB_SUM. */
TN_HD uint64_t *tn_ring_sums_of(struct tn_ring_shared *r, uint32_t id)
{
	return (uint64_t *)(void *)((char *)r + r->sums_at) + (uint64_t)id * r->ioctxs;
}

TN_HD uint64_t *tn_ring_event_of(struct tn_ring_shared *r, uint32_t event)
{
	return (uint64_t *)(void *)((char *)r + r->events_at) + event;
}

/* Both queues have as many cells as there are IOCBs, so a push waits only for a consumer between two of its steps. */
TN_HD void tn_ring_push_sure(struct tn_ring_queue *q, struct tn_ring_cell *cells, uint32_t id)
{
	while (!tn_ring_push(q, cells, id))
		;
}

/* Takes the next issued IOCB; 0: there is none. Cancelled ones are passed by. */
TN_HD int tn_ring_take(struct tn_ring_shared *r, uint32_t *id)
{
	while (tn_ring_pop(&r->sq, tn_ring_cells(r, r->sq_at), id)) {
		struct tn_iocb *cb = tn_ring_iocb_of(r, *id);

		if (tn_ring_cas32(&cb->state, TN_IOCB_ISSUED, TN_IOCB_TAKEN))
			return 1;
		if (tn_ring_cas32(&cb->state, TN_IOCB_CANCELLED, TN_IOCB_DONE))
			continue;
		tn_ring_store32(&cb->state, TN_IOCB_FREE); /* LEFT */
		tn_ring_push_sure(&r->free, tn_ring_cells(r, r->free_at), *id);
	}
	return 0;
}

/* Whether the event that the IOCB waits for has come. */
TN_HD int tn_ring_may_start(struct tn_ring_shared *r, const struct tn_iocb *cb)
{
	return cb->after_event == TN_RING_NO_EVENT ||
	       tn_ring_load64(tn_ring_event_of(r, cb->after_event)) >= cb->after_value;
}

/* Its results are written: gives a taken IOCB back. The IOCB is its owner's from here on. */
TN_HD void tn_ring_finish(struct tn_ring_shared *r, uint32_t id)
{
	struct tn_iocb *cb = tn_ring_iocb_of(r, id);
	int quiet = cb->flags & TN_IOCB_QUIET;

	/* release: the results, and the bytes in memory, before the state */
	tn_ring_store32(&cb->state, TN_IOCB_DONE);
	if (!quiet)
		tn_ring_push_sure(&r->cq, tn_ring_cells(r, r->cq_at), id);
	tn_ring_add32(&r->done_seq, 1);
}

/* ---- the host's side --------------------------------------------------------------------------------- */

struct tn_ring;

/**
 * struct tn_ring_opts - begin with tn_ring_opts_init
 * @depth:  IOCBs, a power of two, 2..TN_RING_DEPTH_MAX; default 64
 * @ioctxs: most IOCTXs of one IOCB, 1..TN_IOCB_IOCTXS_MAX; default TN_IOCB_IOCTXS_MAX
 * @events: event words, default 64
 * @lists:  lists that executors can be told of, default 64
 * @start:  where the queues' 64-bit positions begin (tests of their wrap-around), default 0
 */
struct tn_ring_opts {
	size_t size;
	uint32_t depth;
	uint32_t ioctxs;
	uint32_t events;
	uint32_t lists;
	uint64_t start;
};

/** What an IOCB waits for: the event's word to be at least value. */
struct tn_ring_after {
	uint32_t event;
	uint64_t value;
};

/** struct tn_ring_completion - a finished IOCB; its header and IOCTXs can be read until tn_ring_put */
struct tn_ring_completion {
	uint32_t id;
	int32_t status;
	uint32_t failed;
	uint32_t failures;
};

/** tn_ring_opts_init_sized - tn_ring_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_ring_opts_init_sized(struct tn_ring_opts *opts, size_t size);

/** tn_ring_opts_init - defaults. Any thread. */
static inline void tn_ring_opts_init(struct tn_ring_opts *opts)
{
	tn_ring_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_ring_create - a ring; executors are attached to it by their own create functions
 *
 * Return: 0 and *out, -EINVAL (the option and its value), -ENOMEM.
 */
TN_API int tn_ring_create(const struct tn_ring_opts *opts, struct tn_ring **out);

/** tn_ring_destroy - executors are gone, nobody waits; NULL is fine */
TN_API void tn_ring_destroy(struct tn_ring *ring);

/** tn_ring_memory - the shared memory of a ring */
TN_API struct tn_ring_shared *tn_ring_memory(struct tn_ring *ring);

/**
 * tn_ring_get_iocb - an IOCB to be filled
 * @n:     number of its IOCTXs; may be lowered (count in the header) before the issue
 * @after: what it waits for, or NULL
 *
 * Its op is READ, priority 0, no flags, list 0; change them through tn_ring_iocb before the issue.
 *
 * Return: 0 and *id, -EINVAL (n, or no such event), -EAGAIN (all IOCBs are out: poll and put some).
 */
TN_API int tn_ring_get_iocb(struct tn_ring *ring, uint32_t n, const struct tn_ring_after *after, uint32_t *id);

/** tn_ring_iocb - the header of an IOCB; the caller holds it */
TN_API struct tn_iocb *tn_ring_iocb(struct tn_ring *ring, uint32_t id);

/** tn_ring_ioctx - the IOCTXs of an IOCB; the caller holds it */
TN_API struct tn_ioctx *tn_ring_ioctx(struct tn_ring *ring, uint32_t id);

/**
 * tn_ring_issue - hand IOCBs to the executors, in this order
 *
 * Return: 0, or -EINVAL: one of them is not held (then none is issued).
 */
TN_API int tn_ring_issue(struct tn_ring *ring, const uint32_t *ids, uint32_t n);

/**
 * tn_ring_poll - finished IOCBs that are not QUIET, each once
 *
 * Return: how many were written to @done (0..max).
 */
TN_API uint32_t tn_ring_poll(struct tn_ring *ring, struct tn_ring_completion *done, uint32_t max);

/**
 * tn_ring_wait - until all of these IOCBs are finished
 * @deadline_ns: absolute CLOCK_MONOTONIC
 *
 * Does not consume them: those that are not QUIET still come through tn_ring_poll.
 *
 * Return: 0, -ETIMEDOUT, or -EINVAL: one of them was never issued.
 */
TN_API int tn_ring_wait(struct tn_ring *ring, const uint32_t *ids, uint32_t n, uint64_t deadline_ns);

/**
 * tn_ring_result - what became of a finished IOCB
 *
 * Return: 0 and *done, -EAGAIN: it is not finished, -EINVAL: it was never issued.
 */
TN_API int tn_ring_result(struct tn_ring *ring, uint32_t id, struct tn_ring_completion *done);

/**
 * tn_ring_cancel - give IOCBs up
 *
 * One that no executor has taken is finished with -ECANCELED when this returns. One that was taken starts no
 * more transfers; it is finished when those under way have ended, and says which entries were moved.
 *
 * Return: how many were finished by this call.
 */
TN_API uint32_t tn_ring_cancel(struct tn_ring *ring, const uint32_t *ids, uint32_t n);

/**
 * tn_ring_put - give finished IOCBs back, or held ones that will not be issued
 *
 * One that is not QUIET must have come through tn_ring_poll.
 *
 * Return: 0, or -EBUSY: one of them is issued or taken (those before it were given back).
 */
TN_API int tn_ring_put(struct tn_ring *ring, const uint32_t *ids, uint32_t n);

/**
 * tn_ring_signal - raise an event's word; IOCBs that wait for it start
 *
 * A word never falls: a lower value changes nothing. Return: 0, or -EINVAL: no such event.
 */
TN_API int tn_ring_signal(struct tn_ring *ring, uint32_t event, uint64_t value);

#ifdef __cplusplus
}
#endif
#endif
