/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a slack table, shared by its cells (slack.c), by what observations do (slack_learn.c), by the table's
 * file (slack_file.c) and bytes (slack_bytes.c), and by those who keep tables of spaces.
 *
 * In a table that was given, a cell's window is what was set, times the table's common factor, times a factor of its
 * own: the online correction. A table that learns has a shape, and in its cells what was seen.
 */
#ifndef TN_SCHED_SLACK_H
#define TN_SCHED_SLACK_H

#include <tenuto/slack.h>

/* Deviations in a row. */
struct tn_slack_run {
	uint8_t any;  /* of either direction */
	int8_t same; /* of the same: up positive, down negative */
};

struct tn_slack_entry {
	uint64_t window_ns; /* 0: a gap; not set while a table learns */
	double factor;
	double seen_input, seen_prefix, seen_ns; /* of a table that learns, once seen > 0: what was seen, and where */
	float seen; /* how often the cell was observed, by its weight among its neighbours */
	struct tn_slack_run run;
	uint16_t sm_budget, most_iocbs; /* 0: unknown, no bound */
};

/* Two coefficients by least squares, from the sums of their normal equations; nothing is known while s11 is 0. */
struct tn_slack_fit {
	double s11, s12, s22, t1, t2;
	double a, b;
	struct tn_slack_run run; /* of times that it is far off */
};

enum tn_slack_names { TN_SLACK_MODEL, TN_SLACK_GPU, TN_SLACK_ENGINE, TN_SLACK_WHEN, TN_SLACK_NAMES };

struct tn_slack {
	struct tn_slack_desc d; /* its names and lengths lie in this struct */
	char names[TN_SLACK_NAMES][TN_SLACK_NAME];
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX];
	uint32_t rows; /* one per layer, or 1 that all share */
	double common; /* factor of all cells */
	struct tn_slack_run common_run;
	bool bounded; /* a cell has most_iocbs */
	bool learns;  /* began empty */
	bool unknown; /* ... and nothing was observed yet */
	struct tn_slack_fit floor, compute;
	struct tn_slack_entry *cells; /* [row][prefix][input] */
};

static inline struct tn_slack_entry *tn_slack_entry(const struct tn_slack *t, uint32_t input, uint32_t prefix,
						    uint32_t row)
{
	return &t->cells[((size_t)row * t->d.nprefixes + prefix) * t->d.ninputs + input];
}

/* Where a length lies: between two grid points, at @share of the way; above the last, share is > 1. */
struct tn_slack_spot {
	uint32_t low, high;
	double share;
};

/* The cells around a pair of lengths, [prefix][input], and how much each has to do with the value between them. */
struct tn_slack_corners {
	double input_tokens, prefix_tokens;
	struct tn_slack_spot input, prefix;
	struct tn_slack_entry *at[4], *nearest;
	double weight[4]; /* their sum is 1 */
};

/* Parts of a description into a zeroed table, with checks; then, with d.how, d.layers and d.per_layer set, the table. */
int tn_slack_put_name(struct tn_slack *t, enum tn_slack_names which, const char *from, size_t len);
int tn_slack_put_lengths(struct tn_slack *t, bool inputs, const uint64_t *from, uint32_t n);
int tn_slack_make(struct tn_slack *like, struct tn_slack **out);

/* Puts a cell there, which has been checked; without corrections. */
void tn_slack_fill(struct tn_slack *t, struct tn_slack_entry *e, const struct tn_slack_cell *cell);

/* As tn_slack_window; a guess if the table is to learn and has observed nothing yet. */
uint64_t tn_slack_ns(const struct tn_slack *t, uint64_t input, uint64_t prefix, uint32_t layer);

/* slack_bytes.c: a table as bytes, for processes that have the same library. How many; at most, of a table with so many layers. */
size_t tn_slack_bytes(const struct tn_slack *t);
size_t tn_slack_bytes_max(uint32_t layers);
void tn_slack_store(const struct tn_slack *t, unsigned char *bytes);
/* Of bytes that anybody may have written: 0 and a table that is sound, which may have gaps; -EINVAL, -ENOMEM. */
int tn_slack_load(const unsigned char *bytes, size_t n, struct tn_slack **out);

static inline double tn_slack_clamp_ns(double ns)
{
	if (!(ns > 1))
		return 1;
	return ns < (double)TN_SLACK_WINDOW_MAX ? ns : (double)TN_SLACK_WINDOW_MAX;
}

/* slack_learn.c */

/* Whether a deviation counts, and with what gain: the first in a row never does. */
double tn_slack_gain(struct tn_slack_run *run, double ratio);
/* A factor that goes the gain's part of the way to ratio; the same way up as down. */
double tn_slack_step(double ratio, double gain);
/* Of a table that learns, the time between the corners, and what an observation there does to it. */
double tn_slack_learned_ns(const struct tn_slack *t, const struct tn_slack_corners *c);
bool tn_slack_learn(struct tn_slack *t, const struct tn_slack_corners *c, double ns);

/* Inputs below take as long as the memory does, whatever their number: they say nothing about larger ones. */
#define TN_SLACK_SMALL_INPUT 64
/* Observations after which a cell is believed more than all together. */
#define TN_SLACK_SEEN_ENOUGH 3

#endif
