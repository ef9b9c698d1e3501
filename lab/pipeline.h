/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of a restore as arithmetic: what the time to first token is when layers are read while others are
 * computed, under several strategies, on a device that may have writes to do, too.
 *
 * The library's own recurrence (sched/split.h) is the case of one strategy without writes; a test holds them together.
 * Pure functions over plain values. The formulas are explained in docs/model.md. Units as in sched/split.h.
 */
#ifndef TN_LAB_PIPELINE_H
#define TN_LAB_PIPELINE_H

#include "sched/split.h"

/** How a prefix comes back. */
enum tn_strategy {
	TN_STRATEGY_RECOMPUTE,	       /**< nothing is read: compute is all there is */
	TN_STRATEGY_LOAD_THEN_COMPUTE, /**< all layers are read, among the writes; then compute begins */
	TN_STRATEGY_UNSCHEDULED,       /**< layer by layer, reads and writes mixed as they come */
	TN_STRATEGY_TENUTO,	       /**< layer by layer, reads first; writes when all reads are done */
	TN_STRATEGY_IDEAL,	       /**< layer by layer, the device never shared, all layers in flight at once */
	TN_STRATEGIES,
};

/**
 * struct tn_pipeline_io - the device, or all devices together
 * @read_bps:   reading alone
 * @write_bps:  writing alone; looked at only if something is written
 * @mixed_bps:  reads and writes together, in all; looked at only if something is written
 * @read_share: of mixed_bps that reads get while writes are waiting, above 0, at most 1
 * @latency_ns: from issue until the first byte moves
 * @busy_ns:    until the first read can be issued: what was in flight before, and the cost of beginning a load
 *              (nothing for TN_STRATEGY_IDEAL)
 * @window:     layers in flight at once; a layer is issued when the layer @window before it has arrived
 */
struct tn_pipeline_io {
	double read_bps;
	double write_bps;
	double mixed_bps;
	double read_share;
	uint64_t latency_ns;
	uint64_t busy_ns;
	uint32_t window;
};

/**
 * struct tn_pipeline - one restore; begin with tn_pipeline_init, then set what differs
 * @layers:       1 to TN_LAYERS_MAX
 * @compute_ns:   by layer: time to compute it for the tokens that are not restored; none may be 0
 * @bytes:        by layer: bytes to read, may be 0; not looked at for TN_STRATEGY_RECOMPUTE; NULL: nothing is read
 * @header_bytes: read with the first layer
 * @write_bytes:  waiting to be written when the restore begins
 * @write_layer_bytes: more bytes to write as each layer's compute ends
 * @io:           the device; not looked at when nothing is read or written
 */
struct tn_pipeline {
	uint32_t layers;
	const uint64_t *compute_ns;
	const uint64_t *bytes;
	uint64_t header_bytes;
	uint64_t write_bytes;
	uint64_t write_layer_bytes;
	struct tn_pipeline_io io;
};

/** struct tn_pipeline_layer - when a layer has been read, and when it is computed */
struct tn_pipeline_layer {
	uint64_t loaded_ns;
	uint64_t start_ns;
	uint64_t end_ns;
};

/** struct tn_pipeline_result - one restore, and what of the writes was written when it ended, and was not */
struct tn_pipeline_result {
	struct tn_restore restore;
	uint64_t written_bytes;
	uint64_t unwritten_bytes;
};

/** tn_strategy_name - "recompute", "load_then_compute", ... by enum tn_strategy; NULL past the last. Any thread. */
const char *tn_strategy_name(size_t strategy);

/** tn_pipeline_init - nothing to read or write, reads get half of a mixed device, a window of TN_SPLIT_WINDOW layers. Any thread. */
void tn_pipeline_init(struct tn_pipeline *p);

/**
 * tn_pipeline_run - the recurrence
 * @strategy: enum tn_strategy
 * @layer:    out and scratch: p->layers entries
 * @result:   out, set only on success
 *
 * A layer's transfer takes bytes / rate, one layer behind the other; a layer that is issued while another is moving
 * hides its latency behind that one.
 *
 * Any thread. Return: 0, -EINVAL (a field that makes no sense, with its value in the detail), -EOVERFLOW (the restore
 * would take longer than any clock counts).
 */
int tn_pipeline_run(const struct tn_pipeline *p, uint32_t strategy, struct tn_pipeline_layer *layer,
		    struct tn_pipeline_result *result);

#endif
