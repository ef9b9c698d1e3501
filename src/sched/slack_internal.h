/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a slack table, shared by its arithmetic (slack.c), what an observation counts (slack_gain.c), what an
 * empty table learns (slack_learn.c), the table's file (slack_file.c) and the analytic model (slack_model.c).
 *
 * In a table that was given, a cell's window is what was set, times the table's common factor, times a factor of its
 * own: the online correction. A table that learns has a shape, and in its cells what was seen.
 */
#ifndef TN_SCHED_SLACK_INTERNAL_H
#define TN_SCHED_SLACK_INTERNAL_H

#include <tenuto/slack.h>

/* Deviations in a row. */
struct tn_slack_run {
	uint8_t any;  /* of either direction */
	int8_t same; /* of the same: up positive, down negative */
};

struct tn_slack_entry {
	uint64_t window_ns; /* 0: a gap; not set while a table learns */
	uint32_t sm_budget, max_iocbs;
	double factor;
	double seen_input, seen_prefix, seen_ns; /* of a table that learns, once seen > 0: what was seen, and where */
	float seen; /* how often the cell was observed, by its weight among its neighbours */
	struct tn_slack_run run;
};

/* Two coefficients by least squares, from the sums of their normal equations; nothing is known while s11 is 0. */
struct tn_slack_fit {
	double s11, s12, s22, t1, t2;
	double a, b;
	struct tn_slack_run run; /* of times that it is far off */
};

struct tn_slack {
	char model[TN_SLACK_NAME], gpu[TN_SLACK_NAME], engine[TN_SLACK_NAME], when[TN_SLACK_NAME];
	uint32_t how;
	uint32_t layers, rows; /* rows: one per layer, or 1 that all share */
	bool per_layer;
	uint32_t ninputs, nprefixes;
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX];
	double common; /* factor of all cells */
	struct tn_slack_run common_run;
	bool learns;  /* began empty: slack_learn.c */
	bool unknown; /* ... and nothing was observed yet */
	struct tn_slack_fit floor, compute;
	struct tn_slack_entry *cells; /* [row][prefix][input] */
};

static inline struct tn_slack_entry *tn_slack_entry(const struct tn_slack *t, uint32_t input, uint32_t prefix,
						    uint32_t row)
{
	return &t->cells[((size_t)row * t->nprefixes + prefix) * t->ninputs + input];
}

/* Inputs below take as long as the memory does, whatever their number: they say nothing about larger ones. */
#define TN_SLACK_SMALL_INPUT 64
/* Observations after which a cell is believed more than all together. */
#define TN_SLACK_SEEN_ENOUGH 3
/* What tn_slack_gain gives for deviations that go on. */
#define TN_SLACK_GAIN_LONG 0.35

/* Where a length lies: between two grid points, at @share of the way; above the last, share is > 1. */
struct tn_slack_spot {
	uint32_t low, high;
	double share;
	double scale; /* inputs below the first: their part of it */
};

/* The cells around a pair of lengths. */
struct tn_slack_corners {
	double input_tokens, prefix_tokens;
	struct tn_slack_spot input, prefix;
	struct tn_slack_entry *at[2][2]; /* [prefix][input] */
};

static inline struct tn_slack_entry *tn_slack_nearest(const struct tn_slack_corners *c)
{
	return c->at[c->prefix.share > 0.5][c->input.share > 0.5];
}

static inline double tn_slack_clamp_ns(double ns)
{
	if (!(ns > 1))
		return 1;
	return ns < (double)TN_SLACK_WINDOW_MAX ? ns : (double)TN_SLACK_WINDOW_MAX;
}

/* Window of the cell of inputs[@input] and prefixes[@prefix] with all that was learned, 1..TN_SLACK_WINDOW_MAX. */
double tn_slack_cell_ns(const struct tn_slack *t, uint32_t input, uint32_t prefix, uint32_t row);
/* Makes a clone like its original again, after the original has learned; tables of other lengths are left alone. */
void tn_slack_renew(struct tn_slack *clone, const struct tn_slack *original);

/* slack_gain.c */

/* The weights of the corners, [prefix][input]: how much each has to do with the value between them; their sum is 1. */
void tn_slack_weigh(const struct tn_slack_corners *c, double w[4]);
/* Whether a deviation counts, and with what gain: the first in a row never does. */
double tn_slack_gain(struct tn_slack_run *run, double ratio);
/* A factor that goes the gain's part of the way to ratio; the same way up as down. */
double tn_slack_step(double ratio, double gain);

/* slack_learn.c: of a table that learns, the time between the corners, and what an observation there does to it. */
double tn_slack_learned_ns(const struct tn_slack *t, const struct tn_slack_corners *c);
bool tn_slack_learn(struct tn_slack *t, struct tn_slack_corners *c, double ns);

#endif
