/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline of a restore as arithmetic: what the time to first token is when layers are read while others are
 * computed, and how many blocks of a prefix are worth reading at all.
 *
 * The recurrence is start(l) = max(end(l-1), loaded(l)), end(l) = start(l) + compute(l). Pure functions over plain
 * values: nothing here allocates, blocks or keeps state. The formulas are explained in docs/model.md. tn_plan chooses
 * with these functions; cli/ and bench/ model whole restores with them (lab/pipeline.h), other strategies and writes
 * included.
 *
 * Units: times in ns from the moment the restore begins, sizes in bytes, rates in bytes per second.
 */
#ifndef TN_SCHED_PIPELINE_H
#define TN_SCHED_PIPELINE_H

#include <tenuto/error.h>
#include <tenuto/types.h>

/** How a prefix comes back. */
enum tn_strategy {
	TN_STRATEGY_RECOMPUTE,	       /**< nothing is read: compute is all there is */
	TN_STRATEGY_LOAD_THEN_COMPUTE, /**< all layers are read, among the writes; then compute begins */
	TN_STRATEGY_UNSCHEDULED,       /**< layer by layer, reads and writes mixed as they come */
	TN_STRATEGY_TENUTO,	       /**< layer by layer, reads first; writes when all reads are done */
	TN_STRATEGY_IDEAL,	       /**< layer by layer, the device never shared, all layers in flight at once */
	TN_STRATEGIES,
};

/** Fastest device that is accepted, in bytes per second. */
#define TN_PIPELINE_BPS_MAX 1e15
/** Longest time of one layer that is accepted: 11 days. A longer time means a broken table. */
#define TN_PIPELINE_NS_MAX UINT64_C(1000000000000000)

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

/**
 * struct tn_pipeline_result - one restore
 * @ttft_ns:    end of the last layer
 * @compute_ns: sum over the layers
 * @bubble_ns:  ttft_ns - compute_ns: waiting for I/O
 * @io_ns:      when the last byte has been read; 0 if nothing is
 * @read_bytes: headers included
 * @written_bytes, @unwritten_bytes: written by ttft_ns, and still waiting then
 */
struct tn_pipeline_result {
	uint64_t ttft_ns;
	uint64_t compute_ns;
	uint64_t bubble_ns;
	uint64_t io_ns;
	uint64_t read_bytes;
	uint64_t written_bytes;
	uint64_t unwritten_bytes;
};

/** tn_strategy_name - "recompute", "load_then_compute", ... by enum tn_strategy; NULL past the last. Any thread. */
const char *tn_strategy_name(size_t strategy);

/** tn_pipeline_init - nothing to read or write, reads get half of a mixed device, a window of 4 layers. Any thread. */
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

/**
 * tn_pipeline_compute_fn - time of each layer
 * @input_tokens:  tokens to compute, at least 1
 * @prefix_tokens: tokens before them whose KV is there
 * @ns:            out: one entry per layer
 *
 * Return: 0, or -errno, which ends the caller's call.
 */
typedef int (*tn_pipeline_compute_fn)(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns);

/**
 * struct tn_split - a prefix of which the first part is read and the rest recomputed; begin with tn_split_init
 * @layers:       1 to TN_LAYERS_MAX
 * @blocks:       that could be restored
 * @host_blocks:  of them, from the first on, that need no reading because they lie in host memory; not looked at with
 *                @tiers
 * @tiers:        by block, enum tn_tier: only those on TN_TIER_DISK are read; NULL: all but @host_blocks are
 * @block_tokens: tokens per block
 * @input_tokens: beyond the blocks; if 0 and all blocks are restored, the last token is computed again
 * @object_bytes: one layer of one block
 * @header_bytes: of one block
 * @io:           the device
 * @compute:      time of each layer, with @compute_arg
 * @scratch:      TN_SPLIT_SCRATCH(layers) words
 */
struct tn_split {
	uint32_t layers;
	uint64_t blocks;
	uint64_t host_blocks;
	const uint8_t *tiers;
	uint64_t block_tokens;
	uint64_t input_tokens;
	uint64_t object_bytes;
	uint64_t header_bytes;
	struct tn_pipeline_io io;
	tn_pipeline_compute_fn compute;
	void *compute_arg;
	uint64_t *scratch;
};

/** Words of scratch that a split takes. */
#define TN_SPLIT_SCRATCH(layers) (5 * (size_t)(layers))

/**
 * struct tn_split_choice - what is best, beside both extremes
 * @restore_blocks: to restore; the rest is recomputed
 * @chosen, @restore_all, @restore_none: what to expect (TN_STRATEGY_TENUTO)
 */
struct tn_split_choice {
	uint64_t restore_blocks;
	struct tn_pipeline_result chosen;
	struct tn_pipeline_result restore_all;
	struct tn_pipeline_result restore_none;
};

/** tn_split_init - nothing to restore; the device as tn_pipeline_init leaves it. Any thread. */
void tn_split_init(struct tn_split *s);

/**
 * tn_split_at - what to expect when exactly the first @restore blocks are restored (0 to s->blocks)
 *
 * Any thread. Return: 0, -EINVAL, -EOVERFLOW, or what the compute function returned; *result is set only on success.
 */
int tn_split_at(const struct tn_split *s, uint64_t restore, struct tn_pipeline_result *result);

/**
 * tn_split_choose - how many blocks to restore so that the first token comes soonest
 *
 * Up to 64 blocks every number is tried. Beyond, the number where reading stops hiding behind compute is searched for
 * (where compute shrinks with the prefix and reading grows, the best choice is there, at an end, or behind blocks that
 * need no reading), and a grid of 16 guards against tables that are not so regular: fewer than 100 evaluations,
 * whatever the prefix. With @tiers the best number is refined, in fewer than 100 evaluations for prefixes of up to
 * 32,768 blocks, and 150 up to a million. A choice includes the blocks right behind it that lie in host memory. Never
 * worse than restoring all or none. Of equal choices the one that restores more wins, because it computes less.
 *
 * Any thread. Return: 0, -EINVAL, -EOVERFLOW, or what the compute function returned; *out is set only on success.
 */
int tn_split_choose(const struct tn_split *s, struct tn_split_choice *out);

#endif
