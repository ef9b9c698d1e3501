/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings: transfers of whole objects, submitted and completed in blocks of up to 2,048 (IOCBs).
 *
 * A ring is a region of memory between one host and one executor (CPU threads, another process, later a kernel on a GPU). Plain
 * fixed-width fields, no pointers, no locks: the region begins with struct tn_ring_shared, and each side finds the parts by offsets. The host
 * fills IOCBs and puts their ids into the submission queue. The executor takes them, moves the objects, and puts the ids into the
 * completion queue. An IOCB has two ends: memory, which is the entries of a list, and places, which lie on a disk or in the memory of
 * another list.
 *
 * One writer per word. The first part of the region holds the words of the host, the rest from executor_at on, a page boundary, those of
 * the executor. Neither side ever writes to the other's part, so each side can map it read-only, and nothing is read, modified and written by both.
 * Each queue has one producer and one consumer. Neither can be full, because an id is in a queue at most once.
 *
 * Memory order, both ways through one word each:
 *   to the executor    header and IOCTXs are plain stores; the index `issued` is released after them, and acquired by the
 *                      executor. What was written before a signal is ordered by the event's word (released, acquired by
 *                      tn_ring_may_start). Event words only rise.
 *   from the executor  an object's bytes and its checksum come before its status, the statuses before `ended`, and all of
 *                      them and the results before the index `finished`: each is released, and acquired by the host. Results and statuses
 *                      tell of the IOCB whose sequence is in the result.
 *   cancel             a wish: released and acquired, but nothing depends on when it is seen. What is cancelled is finished like all else.
 * An executor copies what it uses of the host's words once, and checks the copy: of an IOCB that is written to after
 * its issue come errors, or wrong bytes in places that a list names, never a write elsewhere. The host does the same with ids.
 *
 * The TN_HD functions are the same lines on the host and in a kernel; tests run them on the host.
 */
#ifndef TENUTO_RING_H
#define TENUTO_RING_H

#include <stddef.h>
#include <stdint.h>

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
#define TN_RING_VERSION 3u
#define TN_IOCB_IOCTXS_MAX 2048u
#define TN_RING_DEPTH_MAX 4096u
#define TN_RING_EVENTS_MAX 65536u
#define TN_RING_DEVICES_MAX 256u
#define TN_RING_PAGE 4096u /* between the parts of host and executor */
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
#define TN_IOCB_SUM 2u	  /* tell the checksum of each object */
#define TN_IOCB_FIRST 4u  /* goes before others of its priority */
#define TN_IOCB_LANDED 8u /* COPY: compare or sum what lies in the list after the copy, because the source may change meanwhile */
#define TN_IOCB_BOUNCE 16u /* READ: by way of the executor's memory, because the list's may change before it is compared */
#define TN_IOCB_WHOLE 32u  /* READ: nobody waits for a part of it before the rest; the device may be given more of it at once */

/* The status of an IOCTX that has not ended. */
#define TN_RING_PENDING 1
/* The status of one whose bytes the driver of a device did not copy: its -errno below this. No drive is to blame, and no memory is gone. */
#define TN_RING_NOT_COPIED (-0x10000)

/**
 * struct tn_iocb - up to TN_IOCB_IOCTXS_MAX transfers, started and completed as one; the host's words
 * @op:            enum tn_iocb_op
 * @flags:         TN_IOCB_*
 * @list:          the list of what lies in memory
 * @source:        COPY: the list that is copied from
 * @count:         number of IOCTXs
 * @after_event:   starts when this event's word is >= @after_value; TN_RING_NO_EVENT: at once
 * @priority:      higher first
 * @sequence:      order of issue, from 1
 * @cancel:        1: start no more transfers
 * @request_bytes: most bytes of one request to a device; 0: the executor's choice
 */
struct tn_iocb {
	uint16_t op;
	uint16_t flags;
	uint32_t list;
	uint32_t source;
	uint32_t count;
	uint64_t after_value;
	uint32_t after_event;
	int32_t priority;
	uint64_t sequence;
	uint32_t cancel;
	uint32_t request_bytes;
	uint32_t reserved[4];
};

TN_RING_CHECK(sizeof(struct tn_iocb) == 64, "an IOCB header is one cache line");
TN_RING_CHECK(offsetof(struct tn_iocb, after_value) == 16 && offsetof(struct tn_iocb, sequence) == 32 &&
		      offsetof(struct tn_iocb, cancel) == 40 && offsetof(struct tn_iocb, request_bytes) == 44,
	      "layout of an IOCB header");

/**
 * struct tn_iocb_result - what became of an IOCB so far; the executor's words
 * @sequence: of the IOCB that the rest and the statuses tell of; 0: of none
 * @status:   0; or the first failed IOCTX's error; or -ECANCELED, -EINVAL for the whole
 * @failed:   index of the first failed IOCTX in the order of the array, TN_RING_NO_INDEX: none
 * @failures: how many IOCTXs failed; their statuses say which and why
 * @ended:    how many of its IOCTXs have ended so far
 */
struct tn_iocb_result {
	uint64_t sequence;
	int32_t status;
	uint32_t failed;
	uint32_t failures;
	uint32_t ended;
	uint64_t reserved[5];
};

TN_RING_CHECK(sizeof(struct tn_iocb_result) == 64 && offsetof(struct tn_iocb_result, ended) == 20, "layout of a result");

/** The next position of one side of a queue, on a line of its own; it only rises, and wraps at 2^64. */
struct tn_ring_index {
	uint64_t value;
	uint64_t pad[7];
};

/**
 * struct tn_ring_shared - what a ring's memory begins with; the rest is found by offsets from its start. The host's words
 * @executor_at: where the executor's part begins, with struct tn_ring_executor
 * @issued:      where the host puts the next id into the submission queue
 * @collected:   where the host takes the next id out of the completion queue
 */
struct tn_ring_shared {
	uint64_t magic;
	uint32_t version;
	uint32_t depth;
	uint32_t ioctxs;
	uint32_t events;
	uint64_t bytes, executor_at;
	uint64_t sq_at, iocbs_at, events_at, ioctxs_at;
	uint64_t cq_at, results_at, statuses_at, sums_at;
	uint64_t pad[3];
	struct tn_ring_index issued, collected;
};

/** struct tn_ring_executor - the other ends of the queues: taken out of the one, put into the other. The executor's words */
struct tn_ring_executor {
	struct tn_ring_index taken, finished;
};

TN_RING_CHECK(offsetof(struct tn_ring_shared, bytes) == 24 && offsetof(struct tn_ring_shared, sums_at) == 96 &&
		      offsetof(struct tn_ring_shared, issued) == 128 && sizeof(struct tn_ring_shared) == 256 &&
		      sizeof(struct tn_ring_executor) == 128,
	      "layout of a ring's head");

/** struct tn_ring_view - one side's own copy of where the parts are; made by whoever has checked them */
struct tn_ring_view {
	uint32_t depth, ioctxs, events;
	uint64_t *issued, *collected, *taken, *finished;
	uint32_t *sq, *cq;
	struct tn_iocb *iocbs;
	struct tn_ioctx *ctxs;
	uint64_t *event_words;
	struct tn_iocb_result *results;
	int32_t *status_words;
	uint64_t *sum_words;
};

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

TN_HD uint32_t tn_ring_get32(const uint32_t *p)
{
	return *(const volatile uint32_t *)p;
}

TN_HD void tn_ring_set32(uint32_t *p, uint32_t v)
{
	*(volatile uint32_t *)p = v;
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

/* Relaxed: another word orders it. */
TN_HD uint32_t tn_ring_get32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

TN_HD void tn_ring_set32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
#endif

/* ---- queues ---------------------------------------------------------------------------------------- */

/* One push or pop on its way; each step makes one access to shared memory, so that a test can try every interleaving. */
struct tn_ring_step {
	uint64_t pos;
	uint32_t id;
	uint32_t phase;
};

#define TN_RING_STEP_MORE 0
#define TN_RING_STEP_DONE 1
#define TN_RING_STEP_EMPTY 2

/* @index is the producer's own. The queue has a free cell: an id is in it at most once. */
TN_HD int tn_ring_push_step(uint64_t *index, uint32_t *cells, uint32_t depth, struct tn_ring_step *t)
{
	switch (t->phase) {
	case 0:
		t->pos = *index;
		tn_ring_set32(&cells[t->pos & (depth - 1)], t->id);
		t->phase = 1;
		return TN_RING_STEP_MORE;
	default: /* release: with the id, and all that was written for it before */
		tn_ring_store64(index, t->pos + 1);
		return TN_RING_STEP_DONE;
	}
}

/* @index is the consumer's own, @end the producer's. */
TN_HD int tn_ring_pop_step(uint64_t *index, const uint64_t *end, const uint32_t *cells, uint32_t depth, struct tn_ring_step *t)
{
	switch (t->phase) {
	case 0: /* acquire: pairs with the producer's last step */
		t->pos = *index;
		t->phase = 1;
		return tn_ring_load64(end) == t->pos ? TN_RING_STEP_EMPTY : TN_RING_STEP_MORE;
	case 1:
		t->id = tn_ring_get32(&cells[t->pos & (depth - 1)]);
		t->phase = 2;
		return TN_RING_STEP_MORE;
	default: /* release: says how far the consumer is; nobody waits for it */
		tn_ring_store64(index, t->pos + 1);
		return TN_RING_STEP_DONE;
	}
}

TN_HD void tn_ring_push(uint64_t *index, uint32_t *cells, uint32_t depth, uint32_t id)
{
	struct tn_ring_step t = {0, id, 0};

	while (tn_ring_push_step(index, cells, depth, &t) == TN_RING_STEP_MORE)
		;
}

/* 1 and *id, or 0: empty. The id is the other side's word: check it. */
TN_HD int tn_ring_pop(uint64_t *index, const uint64_t *end, const uint32_t *cells, uint32_t depth, uint32_t *id)
{
	struct tn_ring_step t = {0, 0, 0};
	int rc;

	do
		rc = tn_ring_pop_step(index, end, cells, depth, &t);
	while (rc == TN_RING_STEP_MORE);
	*id = t.id;
	return rc == TN_RING_STEP_DONE;
}

/* ---- the parts of a ring; @id is below depth -------------------------------------------------------- */

TN_HD struct tn_iocb *tn_ring_iocb_of(const struct tn_ring_view *v, uint32_t id)
{
	return v->iocbs + id;
}

TN_HD struct tn_ioctx *tn_ring_ioctx_of(const struct tn_ring_view *v, uint32_t id)
{
	return v->ctxs + (uint64_t)id * v->ioctxs;
}

TN_HD struct tn_iocb_result *tn_ring_result_of(const struct tn_ring_view *v, uint32_t id)
{
	return v->results + id;
}

/* By the index of an IOCTX: 0, -errno, TN_RING_NOT_COPIED - errno, or TN_RING_PENDING (release, acquire). */
TN_HD int32_t *tn_ring_statuses_of(const struct tn_ring_view *v, uint32_t id)
{
	return v->status_words + (uint64_t)id * v->ioctxs;
}

/* By the index of an IOCTX: the checksum, where its status is 0 and the IOCB has TN_IOCB_SUM. */
TN_HD uint64_t *tn_ring_sums_of(const struct tn_ring_view *v, uint32_t id)
{
	return v->sum_words + (uint64_t)id * v->ioctxs;
}

/* ---- the executor's side ------------------------------------------------------------------------------ */

/* Takes the next issued IOCB; 0: there is none. An id that is none of the ring's is passed by. */
TN_HD int tn_ring_take(const struct tn_ring_view *v, uint32_t *id)
{
	/* No more than the queue can hold, whatever the index says. */
	for (uint32_t i = 0; i < v->depth && tn_ring_pop(v->taken, v->issued, v->sq, v->depth, id); i++)
		if (*id < v->depth)
			return 1;
	return 0;
}

/* From here on result and statuses tell of this IOCB; @count was checked. */
TN_HD void tn_ring_begin(const struct tn_ring_view *v, uint32_t id, uint32_t count, uint64_t sequence)
{
	struct tn_iocb_result *res = tn_ring_result_of(v, id);
	int32_t *statuses = tn_ring_statuses_of(v, id);

	for (uint32_t i = 0; i < count; i++)
		tn_ring_set32((uint32_t *)&statuses[i], TN_RING_PENDING);
	tn_ring_set32(&res->ended, 0);
	/* release: none of the last IOCB's words is taken for this one's */
	tn_ring_store64(&res->sequence, sequence);
}

/* Whether the event that the IOCB waits for has come; @event was checked. */
TN_HD int tn_ring_may_start(const struct tn_ring_view *v, uint32_t event, uint64_t value)
{
	return event == TN_RING_NO_EVENT || tn_ring_load64(&v->event_words[event]) >= value;
}

/* Its results are written: gives the IOCB back. */
TN_HD void tn_ring_finish(const struct tn_ring_view *v, uint32_t id)
{
	tn_ring_push(v->finished, v->cq, v->depth, id);
}

#ifdef __cplusplus
}
#endif
#endif
