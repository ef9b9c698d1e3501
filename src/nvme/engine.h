/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine of the I/O contract (io/io.h) on a namespace: one file, which is a range of logical blocks, through one pair of queues.
 *
 * The range begins with a volume header (volume.h) that says how long the file is. Nothing is lent and nothing adopted: other threads
 * have engines of their own on other pairs, and the same file through the header.
 *
 * Memory that was mapped moves without a copy; other memory goes by way of the engine's bounce buffers. There are no interrupts: a poll that
 * waits looks at the queue all the time while commands are under way, and sleeps while none is.
 *
 * Commands that are not answered, and controllers that fail: pair.h. Poll waits for abort and reset, for admin_ns (tn_nvme_opts) and CAP.TO at
 * most.
 */
#ifndef TN_NVME_ENGINE_H
#define TN_NVME_ENGINE_H

#include "io/io.h"
#include "nvme/pair.h"

/**
 * struct tn_nvme_engine_opts
 * @nvme:    outlives the engine
 * @port:    of @nvme
 * @file:    handle that open gives
 * @queue:   which pair is the engine's own
 * @depth:   most requests in flight; 0: 256
 * @command_ns: by when a command has to be answered; 0: 5 s
 * @first, @blocks: the range; 0 blocks: to the end of the namespace
 * @force:   takes a range that holds something else
 */
struct tn_nvme_engine_opts {
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	uint32_t file;
	uint32_t queue;
	uint32_t depth;
	uint64_t command_ns;
	uint64_t first, blocks;
	bool force;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};

/* Counters since create. The first are those of pair.h; bounced: commands by way of bounce buffers. */
struct tn_nvme_engine_stats {
	uint64_t commands, bells, late, aborted, resets, strange;
	uint64_t bytes;
	uint64_t bounced, bounced_bytes;
};

/* 0 and *out; -EINVAL, -ENOMEM. */
int tn_nvme_engine_create(const struct tn_nvme_engine_opts *opts, struct tn_io **out);
/*
 * Whole pages of memory that requests move without a copy, until as many unmaps: the contract's map. 0; -EINVAL; -EEXIST: some of it is mapped
 * already, beside others; -ENOSPC: too many memories; what the port says. Unmap waits for what is under way, as poll does at most.
 */
int tn_nvme_engine_map(struct tn_io *io, void *memory, uint64_t bytes);
void tn_nvme_engine_unmap(struct tn_io *io, void *memory, uint64_t bytes);
/* Where the file's bytes lie, for others who have a pair of their own: the first block, and how many there may be. */
void tn_nvme_engine_range(const struct tn_io *io, uint64_t *first, uint64_t *blocks);
/* Bytes of the file at most. */
uint64_t tn_nvme_engine_bytes(const struct tn_io *io);
/* Makes an empty volume of the range, whatever it held; with opts.force also where it holds what is not ours. 0, or as open. */
int tn_nvme_engine_format(struct tn_io *io);
void tn_nvme_engine_stats(const struct tn_io *io, struct tn_nvme_engine_stats *stats);

#endif
