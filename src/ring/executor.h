/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executors: who takes IOCBs from a ring, moves the objects, and finishes them.
 *
 * Three drivers of one lane (lane.h), of which this file has two; the third drives NVMe queues (nvme.h). The inline one is stepped by the
 * thread that owns the I/O engine and posts checksums to an exec: simulations and small machines. The threaded one has threads with an engine
 * of their own each, which use the owner's open files (tn_io_lend) and check what they read themselves.
 *
 * A ring has one executor. The owner wakes it through the ring (tn_ring_attach); it wakes the owner through opts.wake. What is taken,
 * cancelled, finished and still out is said by the words of the ring (tenuto/ring.h).
 *
 * One thread, the owner of the ring, makes all calls. An executor is made after the files are open and destroyed before
 * they are closed.
 */
#ifndef TN_RING_EXECUTOR_H
#define TN_RING_EXECUTOR_H

#include <stdbool.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/exec.h"
#include "io/io.h"
#include "ring/ring.h"

#define TN_EXECUTOR_ABI 5u
#define TN_EXECUTOR_THREADS_MAX 16u

/* Most bytes of one request; larger objects take several. */
#define TN_RING_IO_BYTES (4u << 20)
/* Bounce buffers never run out for objects up to this size, whatever sizes were announced before. */
#define TN_RING_OBJECT_MAX (128u << 20)
/* Objects of different IOCBs are merged up to this: beyond it a disk gains little, and the later IOCB's bytes
   would delay the earlier one. */
#define TN_RING_CROSS_BYTES (256u << 10)

/* Called on the owner thread, in step, for every request that ended. */
typedef void (*tn_executor_observe)(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status);

/**
 * struct tn_executor_opts
 * @io:       the owner's engine, which has the files open
 * @files:    by device, its file in @io; TN_IO_NO_FILE: it is not there, and nothing moves from or to it
 * @ndevices: 1..TN_RING_DEVICES_MAX
 * @depth:    most requests in flight, of each thread
 * @exec:     inline: where checksums and copies from bounce buffers are done; NULL: on the spot
 * @threads:  threaded: how many
 * @engine:   threaded: makes a thread's engine, on that thread
 * @wake:     threaded, any thread: the owner should step; NULL: it finds out by itself
 * @observe:  or NULL
 */
struct tn_executor_opts {
	struct tn_ring *ring;
	struct tn_io *io;
	const uint32_t *files;
	uint32_t ndevices;
	uint32_t depth;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	struct tn_exec *exec;
	uint32_t threads;
	int (*engine)(void *arg, struct tn_io **out);
	void *engine_arg;
	void (*wake)(void *arg);
	void *wake_arg;
	tn_executor_observe observe;
	void *observe_arg;
};

/* Counters since create. */
struct tn_executor_stats {
	uint64_t iocbs;
	uint64_t objects;  /* moved, good or bad */
	uint64_t requests; /* to the disk */
	uint64_t bytes;	   /* read */
	uint64_t bytes_written;
	uint64_t bounced;  /* objects that went through a bounce buffer */
	uint64_t verified; /* objects compared with their checksum */
	uint64_t again;	   /* objects moved again by themselves after a merged request failed */
	uint64_t unobserved; /* requests that observe was not told of: the owner did not step for too long */
};

struct tn_executor;

struct tn_executor_ops {
	size_t size;
	uint32_t abi;
	const char *name;
	/* Makes bounce buffers for objects of this many bytes on disk. 0 or -ENOMEM. */
	int (*make_bounces)(struct tn_executor *ex, uint32_t padded_bytes);
	/*
	 * Whole pages of memory that objects lie in for long; nothing is issued that names it, except where it shares bytes with other memory. 0, or
	 * what is wrong: then no device has it, and its bytes are copied on their way. map NULL: the executor has no use for that. unmap as it was
	 * mapped; nothing happens if nobody has mapped it.
	 */
	int (*map)(struct tn_executor *ex, void *memory, uint64_t bytes);
	void (*unmap)(struct tn_executor *ex, void *memory, uint64_t bytes);
	/* Takes IOCBs and cancels, and goes on; whether anything happened. After every poll of the owner's engine. */
	bool (*step)(struct tn_executor *ex);
	/* When step must be called again though nothing woke the owner; TN_FOREVER: never. */
	uint64_t (*due)(struct tn_executor *ex, uint64_t now_ns);
	void (*stats)(struct tn_executor *ex, struct tn_executor_stats *stats);
	/* When nothing is issued or under way. */
	void (*destroy)(struct tn_executor *ex);
};

struct tn_executor {
	const struct tn_executor_ops *ops;
};

/* The lane runs in step. 0 and *out, or -EINVAL, -ENOMEM, or the error of stat. */
int tn_executor_inline_create(const struct tn_executor_opts *opts, struct tn_executor **out);
/* 0 and *out; besides, what an engine's create or adopt says. */
int tn_executor_threads_create(const struct tn_executor_opts *opts, struct tn_executor **out);

static inline int tn_executor_make_bounces(struct tn_executor *ex, uint32_t padded_bytes)
{
	return ex->ops->make_bounces(ex, padded_bytes);
}

static inline int tn_executor_map(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	return ex->ops->map ? ex->ops->map(ex, memory, bytes) : 0;
}

static inline void tn_executor_unmap(struct tn_executor *ex, void *memory, uint64_t bytes)
{
	if (ex->ops->map)
		ex->ops->unmap(ex, memory, bytes);
}

static inline bool tn_executor_step(struct tn_executor *ex)
{
	return ex->ops->step(ex);
}

static inline uint64_t tn_executor_due(struct tn_executor *ex, uint64_t now_ns)
{
	return ex->ops->due(ex, now_ns);
}

static inline void tn_executor_stats(struct tn_executor *ex, struct tn_executor_stats *stats)
{
	ex->ops->stats(ex, stats);
}

static inline void tn_executor_destroy(struct tn_executor *ex)
{
	if (ex)
		ex->ops->destroy(ex);
}

#endif
