/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack tables: how long an engine computes on each layer, and so how much I/O hides behind it; and how much of the GPU and of
 * the ring that I/O may use meanwhile.
 *
 * A table answers: at this many input tokens (to be computed) behind this many prefix tokens (restored), how long
 * does the compute of one layer take? That time is the window in which the next layer's I/O costs nothing. Tables come
 * from an engine's own timings, from the analytic model of `tenuto profile`, from a calibrated kernel - or from nothing at all:
 * tn_slack_observe corrects any table from what was seen.
 *
 * Pure: no file, no clock, no lock. One table is for one thread at a time; give each its tn_slack_clone.
 */
#ifndef TENUTO_SLACK_H
#define TENUTO_SLACK_H

#include <stdbool.h>

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_slack;

/** Most input lengths, and most prefix lengths, of a table. */
#define TN_SLACK_LENGTHS_MAX 32u
/** Longest window, in ns: an hour. Anything longer is no layer's time. */
#define TN_SLACK_WINDOW_MAX UINT64_C(3600000000000)
/** Most tokens of a length. */
#define TN_SLACK_TOKENS_MAX (UINT64_C(1) << 40)
/** Bytes of each name in a table, with its NUL. */
#define TN_SLACK_NAME 64u
/** Largest SM budget, and most IOCBs, of a cell. */
#define TN_SLACK_BOUND_MAX 65535u
/** In place of a layer: all of them. */
#define TN_SLACK_ALL_LAYERS UINT32_MAX

/** How a table came to be. */
enum tn_slack_how {
	TN_SLACK_PROFILED,  /**< an engine's own timings */
	TN_SLACK_ANALYTIC,  /**< FLOPs and bytes over a datasheet's rates */
	TN_SLACK_SYNTHETIC, /**< a calibrated kernel run on this machine */
	TN_SLACK_LEARNED,   /**< began empty, and knows only what was observed */
};

/** tn_slack_how_name - "profiled", "analytic", "synthetic", "learned". Any thread. Return: never NULL. */
TN_API const char *tn_slack_how_name(uint32_t how);

/**
 * struct tn_slack_desc - what a table is about
 * @model:     of the compute, as the engine names it; at most TN_SLACK_NAME - 1 bytes, no line breaks, not empty
 * @gpu:       what computes, likewise
 * @engine:    whose timings, likewise; "-" when none
 * @when:      when it was measured or computed, as text, likewise
 * @how:       enum tn_slack_how
 * @layers:    layers of the model, 1..TN_LAYERS_MAX
 * @per_layer: each layer has its own cells; false: all share one
 * @inputs:    input lengths, strictly rising from > 0
 * @ninputs:   1..TN_SLACK_LENGTHS_MAX
 * @prefixes:  prefix lengths, strictly rising from >= 0
 * @nprefixes: 1..TN_SLACK_LENGTHS_MAX
 */
struct tn_slack_desc {
	size_t size;
	const char *model;
	const char *gpu;
	const char *engine;
	const char *when;
	uint32_t how;
	uint32_t layers;
	bool per_layer;
	const uint64_t *inputs;
	const uint64_t *prefixes;
	uint32_t ninputs;
	uint32_t nprefixes;
};

/** tn_slack_desc_init_sized - tn_slack_desc_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_slack_desc_init_sized(struct tn_slack_desc *desc, size_t size);

/** tn_slack_desc_init - size set, names "-", nothing else. Any thread. */
static inline void tn_slack_desc_init(struct tn_slack_desc *desc)
{
	tn_slack_desc_init_sized(desc, sizeof(*desc));
}

/**
 * tn_slack_create - a table of these lengths, without any cell
 *
 * Everything in @desc is copied. Fill it with tn_slack_set; cells that are missing are gaps, and tn_slack_check
 * names the first.
 *
 * Return: 0 and *out, or -EINVAL with the field and value, -ENOMEM.
 */
TN_API int tn_slack_create(const struct tn_slack_desc *desc, struct tn_slack **out);

/**
 * tn_slack_create_empty - a table that knows nothing and learns from tn_slack_observe
 *
 * tn_slack_window says 0 until the first observation. It has no cells to set: tn_slack_set says -EINVAL, tn_slack_check 0. Once printed and parsed it is a table like any other.
 *
 * Return: as tn_slack_create.
 */
TN_API int tn_slack_create_empty(uint32_t layers, struct tn_slack **out);

/** tn_slack_clone - a table of its own with the same cells and corrections. Return: 0 and *out, -EINVAL, -ENOMEM. */
TN_API int tn_slack_clone(const struct tn_slack *table, struct tn_slack **out);

/** tn_slack_destroy - NULL is fine */
TN_API void tn_slack_destroy(struct tn_slack *table);

/** tn_slack_describe_sized - tn_slack_describe for a caller whose struct has @size bytes */
TN_API void tn_slack_describe_sized(const struct tn_slack *table, struct tn_slack_desc *out, size_t size);

/** tn_slack_describe - what a table is about; pointers into the table, valid as long as it lives */
static inline void tn_slack_describe(const struct tn_slack *table, struct tn_slack_desc *out)
{
	tn_slack_describe_sized(table, out, sizeof(*out));
}

/**
 * tn_slack_set - the cell of inputs[@input] and prefixes[@prefix]
 * @layer:     or TN_SLACK_ALL_LAYERS, which is all there is if the layers share their cells
 * @window_ns: compute time of the layer, 1..TN_SLACK_WINDOW_MAX
 *
 * Forgets corrections of that cell, and its bounds (struct tn_slack_cell). Return: 0, -EINVAL (no such cell, a window of 0 or above TN_SLACK_WINDOW_MAX).
 */
TN_API int tn_slack_set(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer,
			uint64_t window_ns);

/**
 * struct tn_slack_cell - what a table says of a layer that is computed
 * @window_ns:  compute time of the layer, 1..TN_SLACK_WINDOW_MAX; in a result 0: nothing is known
 * @sm_budget:  streaming multiprocessors that I/O kernels may use meanwhile, at most TN_SLACK_BOUND_MAX; 0: unknown. Nothing
 *              obeys it yet: the executors of this version run on CPUs
 * @most_iocbs: IOCBs of one load's reads that may be out per device meanwhile, at most TN_SLACK_BOUND_MAX; 0: no bound. A load
 *              has one IOCB per device and chunk of layers, or more where several executors share them
 */
struct tn_slack_cell {
	size_t size;
	uint64_t window_ns;
	uint32_t sm_budget;
	uint32_t most_iocbs;
};

/** tn_slack_cell_init_sized - tn_slack_cell_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_slack_cell_init_sized(struct tn_slack_cell *cell, size_t size);

/** tn_slack_cell_init - size set, the rest 0. Any thread. */
static inline void tn_slack_cell_init(struct tn_slack_cell *cell)
{
	tn_slack_cell_init_sized(cell, sizeof(*cell));
}

/** tn_slack_set_cell - as tn_slack_set, with the whole cell. Return: as tn_slack_set, and -EINVAL for a bound that is too large. */
TN_API int tn_slack_set_cell(struct tn_slack *table, uint32_t input, uint32_t prefix, uint32_t layer,
			     const struct tn_slack_cell *cell);

/** tn_slack_check - whether a table has all its cells. Return: 0, -ENODATA with the first gap in the detail. */
TN_API int tn_slack_check(const struct tn_slack *table);

/**
 * tn_slack_window - compute time of one layer at these lengths, with all corrections
 *
 * Between the profiled lengths the value is bilinear in (input, prefix); above the largest it goes on with the last
 * slope (never falling); below the smallest input it falls in proportion to the input, below the smallest prefix it
 * stays. Never above TN_SLACK_WINDOW_MAX.
 *
 * Costs well below a microsecond. Return: ns; 0 if @layer does not exist, or if nothing is known.
 */
TN_API uint64_t tn_slack_window(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens,
				uint32_t layer);

/** tn_slack_at_sized - tn_slack_at for a caller whose struct has @size bytes */
TN_API void tn_slack_at_sized(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
			      struct tn_slack_cell *out, size_t size);

/**
 * tn_slack_at - what a table says of one layer at these lengths
 *
 * The window is that of tn_slack_window. The bounds are those of the cell with the nearest lengths: they are counts, and not
 * corrected. All are 0 if @layer does not exist, or if nothing is known. A table that learns has no bounds.
 */
static inline void tn_slack_at(const struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
			       struct tn_slack_cell *out)
{
	tn_slack_at_sized(table, input_tokens, prefix_tokens, layer, out, sizeof(*out));
}

/**
 * tn_slack_observe - a layer's compute was seen to take so long: corrects the table
 *
 * Exponentially weighted, on the cells around the lengths and - as a first guess - on all cells that were never
 * observed, but from inputs below 64 tokens only on cells of their length. A table that began empty fits its shape,
 * too (docs/model.md). A deviation must be larger than the dead band and come twice in a row before anything moves; what a
 * single observation can move is limited, so that an outlier costs nothing; durations of 0, below 0 or above
 * TN_SLACK_WINDOW_MAX (a clock that jumped) are ignored.
 *
 * Return: true if the table changed.
 */
TN_API bool tn_slack_observe(struct tn_slack *table, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer,
			     int64_t observed_ns);

/* ---- the file: text, one item per line (docs/model.md) -------------------------------------------- */

/** Version of the format that tn_slack_print writes. tn_slack_parse also reads version 2, whose cells have no bounds. */
#define TN_SLACK_VERSION 3u

/**
 * tn_slack_parse - a table from the text of a slack-table file
 * @text: not necessarily NUL-terminated
 *
 * Strict: an unknown word, a version of another time, a length given twice or not rising, a cell missing or given
 * twice, a window that is 0, negative, not a number or above TN_SLACK_WINDOW_MAX, a bound above TN_SLACK_BOUND_MAX: refused,
 * with the line.
 *
 * Return: 0 and *out, -EINVAL ("line N: ..." in the detail), -EPROTONOSUPPORT (version), -ENODATA (a gap), -ENOMEM.
 */
TN_API int tn_slack_parse(const char *text, size_t len, struct tn_slack **out);

/**
 * tn_slack_print - the text of a table, with all corrections made part of the cells
 * @buf: or NULL with @size 0, to learn the length
 *
 * Never writes past @size bytes; always ends what it writes with a NUL.
 *
 * Return: length of the whole text without NUL (more than fits: call again with a larger one), or -ENODATA (a gap).
 */
TN_API long tn_slack_print(const struct tn_slack *table, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
