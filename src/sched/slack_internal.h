/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a slack table, shared by its arithmetic (slack.c), its file (slack_file.c) and the analytic
 * model (slack_model.c).
 *
 * A cell's window is what was set, times the table's common factor, times a factor of its own: the online correction.
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
	uint64_t window_ns; /* 0: a gap */
	uint32_t sm_budget, max_iocbs;
	double factor;
	float seen; /* how often it was observed, by its weight among its neighbours */
	struct tn_slack_run run;
};

struct tn_slack {
	char model[TN_SLACK_NAME], gpu[TN_SLACK_NAME], engine[TN_SLACK_NAME], when[TN_SLACK_NAME];
	uint32_t how;
	uint32_t layers, rows; /* rows: one a layer, or 1 that all share */
	bool per_layer;
	uint32_t ninputs, nprefixes;
	uint64_t inputs[TN_SLACK_LENGTHS_MAX], prefixes[TN_SLACK_LENGTHS_MAX];
	double common; /* factor of all cells */
	struct tn_slack_run common_run;
	bool unknown; /* began empty, and nothing was observed yet */
	struct tn_slack_entry *cells; /* [row][prefix][input] */
};

static inline struct tn_slack_entry *tn_slack_entry(const struct tn_slack *t, uint32_t input, uint32_t prefix,
						    uint32_t row)
{
	return &t->cells[((size_t)row * t->nprefixes + prefix) * t->ninputs + input];
}

/* window_ns of a cell with its correction, 1..TN_SLACK_WINDOW_MAX. */
double tn_slack_entry_ns(const struct tn_slack *t, const struct tn_slack_entry *e);

/* Makes a clone like its original again, which has learned meanwhile; tables of other lengths are left alone. */
void tn_slack_renew(struct tn_slack *clone, const struct tn_slack *original);

#endif
