/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of a lane (lane.h) whose devices are ranges of namespaces: each piece becomes commands on pairs of queues that are the lane's
 * alone. There are no interrupts: whoever steps the lane takes a turn here before, as long as it is busy.
 *
 * The lane's thread makes all calls.
 */
#ifndef TN_RING_COMMANDS_H
#define TN_RING_COMMANDS_H

#include "ring/lane.h"
#include "ring/nvme.h"

struct tn_lane_commands;
struct tn_nvme_pair_stats;

/**
 * struct tn_lane_commands_opts
 * @depth:      of the lane
 * @ndrives:    that will be added
 * @command_ns: by when a command has to be answered; 0: 5 s
 */
struct tn_lane_commands_opts {
	uint32_t depth, ndrives;
	uint64_t command_ns;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
};

/* 0 and *out, or -ENOMEM. */
int tn_lane_commands_create(const struct tn_lane_commands_opts *opts, struct tn_lane_commands **out);
/* The lane has gone. NULL-safe. */
void tn_lane_commands_destroy(struct tn_lane_commands *c);
struct tn_lane_transport *tn_lane_commands_transport(struct tn_lane_commands *c);
/* The next device, by the pair of that number: 0 and *align, for tn_lane_device_add; -EINVAL: there is no such pair; -ENOMEM. */
int tn_lane_commands_add(struct tn_lane_commands *c, const struct tn_ring_drive *drive, uint32_t queue, uint32_t *align);
/* Collects what has ended, and sends what waits; whether anything happened. Before each tn_lane_go. */
bool tn_lane_commands_turn(struct tn_lane_commands *c);
/* Whether something ends that wakes nobody. */
bool tn_lane_commands_busy(const struct tn_lane_commands *c);
/* Lets a drive go on, where it needs that: while it is busy and a turn has found nothing. */
void tn_lane_commands_pause(const struct tn_lane_commands *c);
/* As far as the drives can: 0, or the first error, as of tn_nvme_map; pieces for those that cannot come back with -EXDEV. Nothing is issued. */
int tn_lane_commands_map(struct tn_lane_commands *c, void *memory, uint64_t bytes);
void tn_lane_commands_unmap(struct tn_lane_commands *c, void *memory, uint64_t bytes);
void tn_lane_commands_pair_stats(const struct tn_lane_commands *c, uint32_t device, struct tn_nvme_pair_stats *stats);

#endif
