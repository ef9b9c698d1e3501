/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An executor on NVMe queues: an IOCB's objects become commands of a controller, whose PRPs or SGLs follow from the P2P tables of the
 * memories that were mapped. No request of the I/O contract is in between.
 *
 * Each device of the ring is a range of a namespace, reached through pairs of queues that nobody else drives: so several executors, each on a
 * ring and pairs of its own, may serve one store. What moves is what any lane moves (lane.h): objects in memory that was not mapped, or that the
 * controller cannot address, go by way of bounce buffers.
 *
 * Without threads the owner steps it: at once again while commands are under way, because there are no interrupts. With threads, each has
 * a pair of each drive; it polls while its commands are under way and sleeps while there is nothing to do.
 */
#ifndef TN_RING_NVME_H
#define TN_RING_NVME_H

#include "nvme/controller.h"
#include "ring/executor.h"

/**
 * struct tn_ring_drive - a device: the bytes of a store's file, on a range of a namespace
 * @nvme:  outlives the executor; NULL: the device is not there, and nothing moves from or to it
 * @port:  of @nvme
 * @queue: the pair that the executor drives; of several threads the first: each has the next one
 * @first, @blocks: where the file's bytes lie, and how many there may be: tn_nvme_engine_range
 */
struct tn_ring_drive {
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	uint32_t queue;
	uint64_t first, blocks;
};

/**
 * struct tn_executor_drives - devices that are ranges of namespaces
 * @drive:      by device
 * @command_ns: by when a command has to be answered; 0: 5 s
 */
struct tn_executor_drives {
	const struct tn_ring_drive *drive;
	uint64_t command_ns;
	const struct tn_log *log;
};

/* 0 and *out; -EINVAL: options, among them a pair that the controller does not have; -ENOMEM. */
int tn_executor_nvme_create(const struct tn_executor_opts *opts, const struct tn_executor_drives *drives, struct tn_executor **out);

/* Counters of a drive's pairs since create: all threads' together. */
struct tn_nvme_pair_stats;
void tn_executor_nvme_pair_stats(struct tn_executor *ex, uint32_t device, struct tn_nvme_pair_stats *stats);

#endif
