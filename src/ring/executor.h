/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executors: who takes IOCBs from a ring, moves the objects, and finishes them.
 *
 * An executor has lanes (lane.h), each on a transport: an I/O engine (tn_executor_files_create) or queues of NVMe controllers (nvme.h).
 * Without threads the owner steps the one lane, which posts checksums to an exec: simulations and small machines. With threads each has a lane,
 * and checks what it reads itself. It sleeps while there is nothing to do.
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
#include "device/copier.h"
#include "device/direct.h"
#include "io/io.h"
#include "ring/ring.h"

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
 * @ndevices: 0..TN_RING_DEVICES_MAX
 * @depth:    most requests in flight, of each thread
 * @threads:  so many step it, at most TN_EXECUTOR_THREADS_MAX; 0: its owner does
 * @exec:     without threads: where checksums and copies from bounce buffers are done; NULL: on the spot
 * @wake:     with threads, any thread: the owner should step; NULL: it finds out by itself
 * @observe:  or NULL
 * @pins:     what drivers of devices reach: bounce buffers are added; NULL: no list is of memory of a device
 * @direct:   the way between files and memory of devices, its file i being device i; NULL: there is none. Destroyed before the executor is
 */
struct tn_executor_opts {
	struct tn_ring *ring;
	uint32_t ndevices;
	uint32_t depth;
	uint32_t threads;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	struct tn_exec *exec;
	void (*wake)(void *arg);
	void *wake_arg;
	tn_executor_observe observe;
	void *observe_arg;
	struct tn_pins *pins;
	struct tn_direct *direct;
};

/**
 * struct tn_executor_files - devices that are files of an I/O engine
 * @io:     the owner's engine, which has the files open; without threads it moves the bytes, and the owner polls it before each step
 * @file:   by device, its file in @io; TN_IO_NO_FILE: it is not there, and nothing moves from or to it
 * @engine: with threads: makes the engine of a thread, on that thread; it adopts the owner's files (tn_io_lend)
 */
struct tn_executor_files {
	struct tn_io *io;
	const uint32_t *file;
	int (*engine)(void *arg, struct tn_io **out);
	void *engine_arg;
};

/* Counters since create. */
struct tn_executor_stats {
	uint64_t iocbs;
	uint64_t objects;  /* moved, good or bad */
	uint64_t requests; /* to the disk */
	uint64_t bytes;	   /* read */
	uint64_t bytes_written;
	uint64_t bounced;  /* objects that went through a bounce buffer */
	uint64_t direct_bytes; /* read and written the direct way, between files and memory of devices */
	uint64_t verified; /* objects compared with their checksum */
	uint64_t again;	   /* objects moved again by themselves after a merged request failed */
	uint64_t unobserved; /* requests that observe was not told of: the owner did not step for too long */
};

struct tn_executor;

/* Most jobs that are posted to the exec and not done, of an executor of this depth: two per request; two for each device's memory and for host memory at least. */
static inline uint32_t tn_executor_jobs(uint32_t depth)
{
	return depth > TN_COPIERS_MAX ? 2 * depth : 2 * (TN_COPIERS_MAX + 1);
}

/* 0 and *out; -EINVAL: options; -ENOMEM; or the error of stat, lend, adopt, or of an engine's create. */
int tn_executor_files_create(const struct tn_executor_opts *opts, const struct tn_executor_files *files, struct tn_executor **out);
/* When nothing is issued or under way. NULL-safe. */
void tn_executor_destroy(struct tn_executor *ex);
/* Makes bounce buffers for objects of this many bytes on disk. 0 or -ENOMEM. */
int tn_executor_make_bounces(struct tn_executor *ex, uint32_t padded_bytes);
/*
 * Whole pages of memory that objects lie in for long; nothing is issued that names it, except where it shares bytes with other memory. 0, or
 * what is wrong: then no device has it, and its bytes are copied on their way.
 */
int tn_executor_map(struct tn_executor *ex, void *memory, uint64_t bytes);
/* As it was mapped; nothing happens if nobody has mapped it. */
void tn_executor_unmap(struct tn_executor *ex, void *memory, uint64_t bytes);
/* Whether the executor has any use for that. Any thread. */
bool tn_executor_maps(const struct tn_executor *ex);
/* Takes IOCBs and cancels, and goes on; whether anything happened. After every poll of the owner's engine. */
bool tn_executor_step(struct tn_executor *ex);
/* When step must be called again though nothing woke the owner; TN_FOREVER: never. */
uint64_t tn_executor_due(const struct tn_executor *ex, uint64_t now_ns);
void tn_executor_stats(struct tn_executor *ex, struct tn_executor_stats *stats);

#endif
