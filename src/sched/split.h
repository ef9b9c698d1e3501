/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many blocks of a prefix are worth reading, when layers are read while others are computed; the rest is computed
 * anew. tn_plan chooses with it, and cli/ models whole restores with it.
 *
 * The recurrence is start(l) = max(end(l-1), loaded(l)), end(l) = start(l) + compute(l), on a device that does nothing
 * else. docs/model.md has the formulas; lab/pipeline.h models devices that write, too. Pure: nothing here allocates,
 * blocks or keeps state.
 *
 * Units: times in ns from the moment the restore begins, sizes in bytes, rates in bytes per second.
 */
#ifndef TN_SCHED_SPLIT_H
#define TN_SCHED_SPLIT_H

#include <tenuto/error.h>
#include <tenuto/types.h>

/* Fastest device that is accepted. */
#define TN_READ_BPS_MAX 1e15
/* Longest time of one layer, or latency, that is accepted: 11 days. A longer time means a broken table. */
#define TN_LAYER_NS_MAX UINT64_C(1000000000000000)
/* Layers in flight at once, unless something else is given. */
#define TN_SPLIT_WINDOW 4u

/**
 * struct tn_restore - what a restore takes
 * @ttft_ns:    end of the last layer
 * @compute_ns: sum over the layers
 * @bubble_ns:  ttft_ns - compute_ns: waiting for I/O
 * @io_ns:      when the last byte has been read; 0 if nothing is
 * @read_bytes: headers included
 */
struct tn_restore {
	uint64_t ttft_ns;
	uint64_t compute_ns;
	uint64_t bubble_ns;
	uint64_t io_ns;
	uint64_t read_bytes;
};

/**
 * tn_compute_fn - time of each layer
 * @input_tokens:  tokens to compute, at least 1
 * @prefix_tokens: tokens before them whose KV is there
 * @ns:            out: one entry per layer, 1 to TN_LAYER_NS_MAX
 *
 * Return: 0, or -errno, which ends the caller's call.
 */
typedef int (*tn_compute_fn)(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns);

/**
 * struct tn_split - a prefix of which the first part is read and the rest recomputed; begin with window TN_SPLIT_WINDOW
 * @layers:       1 to TN_LAYERS_MAX
 * @first_together, @together: layers that arrive at once because they are read as one: the first ones, and the others; 0: each by itself
 * @window:       layers in flight at once; a layer is issued when the layer @window before it has arrived
 * @blocks:       that could be restored
 * @host_blocks:  of them, from the first on, that need no reading because they lie in host memory; not looked at with
 *                @tiers
 * @tiers:        by block, enum tn_tier: those below TN_TIER_HOST are read; NULL: all but @host_blocks are
 * @block_tokens: tokens per block
 * @input_tokens: beyond the blocks; if 0 and all blocks are restored, the last token is computed again
 * @object_bytes: one layer of one block
 * @header_bytes: of one block; read with the first layer
 * @read_bps:     of the device, or of all devices together; not looked at when nothing is read
 * @latency_ns:   from issue until the first byte moves
 * @compute:      time of each layer, with @compute_arg
 * @scratch:      TN_SPLIT_SCRATCH(layers) words
 */
struct tn_split {
	uint32_t layers;
	uint32_t first_together, together;
	uint32_t window;
	uint64_t blocks;
	uint64_t host_blocks;
	const uint8_t *tiers;
	uint64_t block_tokens;
	uint64_t input_tokens;
	uint64_t object_bytes;
	uint64_t header_bytes;
	double read_bps;
	uint64_t latency_ns;
	tn_compute_fn compute;
	void *compute_arg;
	uint64_t *scratch;
};

/* Most bytes that a split counts: exact as a double. */
#define TN_SPLIT_BYTES_MAX (UINT64_C(1) << 53)

/* Words of scratch that a split takes. */
#define TN_SPLIT_SCRATCH(layers) (2 * (size_t)(layers))

/**
 * struct tn_split_choice - what is best, beside both extremes
 * @restore_blocks: to restore; the rest is recomputed
 * @chosen, @restore_all, @restore_none: what to expect
 */
struct tn_split_choice {
	uint64_t restore_blocks;
	struct tn_restore chosen;
	struct tn_restore restore_all;
	struct tn_restore restore_none;
};

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
 * Any thread. Return: 0, -EINVAL, -EOVERFLOW (the restore would take longer than any clock counts), or what the compute
 * function returned; *out is set only on success.
 */
int tn_split_choose(const struct tn_split *s, struct tn_split_choice *out);

/* Nothing that is restored comes sooner than it is computed. */
#define TN_SPLIT_NEVER UINT64_MAX

/**
 * tn_split_crossover - from how many blocks on a prefix is restored sooner, as a whole, than it is computed
 * @s:      blocks: the longest prefix that is looked at; host_blocks 0, tiers NULL
 * @blocks: out: 1 to @s->blocks, or TN_SPLIT_NEVER: the longest is still computed sooner
 *
 * Of lengths 1, 2, 4, ... the last one that is computed sooner is looked for, and then between it and the next. Any thread.
 * Return: as tn_split_choose.
 */
int tn_split_crossover(const struct tn_split *s, uint64_t *blocks);

#endif
