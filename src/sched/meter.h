/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns a rate and a latency from what is in flight and ends. The best rate counts: a device that is not asked for all
 * it can do looks slow. The latency is that of what goes first to an idle device.
 */
#ifndef TN_SCHED_METER_H
#define TN_SCHED_METER_H

#include <stdbool.h>
#include <stdint.h>

struct tn_meter {
	uint64_t since_ns, bytes;
	uint64_t best[2], best_ns; /* bytes per second: of the present period, which began at best_ns, and of the one before */
	uint64_t latency_ns;
	bool first; /* nothing ended since the device was idle */
};

/* A transfer begins, or ended; @in_flight: bytes of all other transfers. */
void tn_meter_starts(struct tn_meter *m, uint64_t in_flight, uint64_t now_ns);
void tn_meter_ends(struct tn_meter *m, uint64_t bytes, uint64_t in_flight, uint64_t now_ns);
/* Bytes per second; 0: nothing was measured yet. */
uint64_t tn_meter_bps(const struct tn_meter *m);

#endif
