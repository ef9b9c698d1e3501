/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay --no-io --gpu NAME`: time to first token of a whole trace by arithmetic, at the model's full size,
 * without moving a byte. docs/model.md has the formulas and what they leave out.
 *
 * replay_model.c: options, where compute times and the device's rates come from. replay_model_run.c: what each request
 * takes, the queue, the largest rate. replay_model_print.c: what comes out; replay_model_report.c: as a part of the page.
 * replay_model_paper.c: the published case beside the model.
 */
#ifndef TENUTO_CLI_REPLAY_MODEL_H
#define TENUTO_CLI_REPLAY_MODEL_H

#include "replay.h"

#include <tenuto/slack.h>

#include "lab/pipeline.h"

struct model_device {
	double read_bps, write_bps, mixed_bps;
	uint64_t latency_ns, write_latency_ns;
	char source[200];
};

struct model_compute {
	const char *model, *gpu;       /* as given, or as the table says */
	struct tn_slack *table;	       /* NULL: the analytic model, exactly */
	uint32_t layers;
	uint32_t same[TN_LAYERS_MAX]; /* the first layer that takes as long as this one */
};

/* One request under one strategy when nothing else is going on. */
struct model_cost {
	uint64_t ttft_ns, compute_ns, io_ns, read_bytes;
	uint32_t restored, read; /* blocks, and how many of them from disk */
};

struct model_request {
	double arrival_ns; /* from the first one's, at the trace's own rate */
	uint64_t write_layer_bytes;
	struct model_cost cost[TN_STRATEGIES];
};

struct model_percentiles {
	double p50, p90, p99, mean;
};

/* A strategy, played through the whole trace at one rate. */
struct model_outcome {
	struct model_percentiles ttft_ms, bubble_ms;
	double busy; /* share of the time from the first arrival to the last end in which the GPU had a request */
	double compute_s, bubble_s;
	uint64_t read_bytes, restored;
	double backlog_max_bytes, backlog_end_bytes; /* to be written */
};

struct model_row {
	struct model_outcome played;	   /* at the rate asked for */
	struct model_percentiles alone_ms; /* TTFT of each request without the others */
	double max_factor;		   /* largest multiple of the trace's rate within the SLO; 0: none, < 0: no limit */
	double max_p90_ms;		   /* there */
	double over_factor, over_p90_ms;   /* the smallest tried that is not within it; 0: each was */
	uint32_t tries;
};

#define MODEL_PAPER_PREFIX UINT64_C(65536)
/* Published: read rate at 128K tokens, the worked example's ms a layer, crossover hit rate, bubble at 93.75 %. */
#define MODEL_PAPER_GBPS 25.9
#define MODEL_PAPER_LAYER_MS 1.2
#define MODEL_PAPER_CROSSOVER 0.983
#define MODEL_PAPER_BUBBLE_MS 6.0
#define MODEL_PAPER_SOURCE "arXiv 2605.03375, as reviewed in June 2026"

/* What the model says of the paper's case at one read rate. */
struct model_paper_at {
	double read_gbps, layer_ms;
	uint64_t hides_from_tokens; /* input tokens from which on reading hides; 0: never */
	double crossover;	    /* the hit rate that they stand for */
	double ttft_ms, bubble_ms;  /* at the hit rate below */
};

struct model_paper {
	uint32_t blocks, block_tokens, objects, object_bytes;
	uint64_t layer_bytes;
	double hit_rate;
	struct model_paper_at at[2]; /* at the published rate, and at the device's */
};

struct replay_model {
	struct tn_geometry geometry;
	struct model_device device;
	struct model_compute compute;
	double slo_ms; /* 0: not asked for */
	double factor; /* arrival rate, as a multiple of the trace's */
	double trace_per_s; /* requests a second of the trace; 0: all at once */
	uint64_t seed;
	size_t n, spread; /* requests; of them, such that shared their arrival time with others */
	struct model_request *request;
	uint64_t *layer_ns; /* by request and layer: compute with all hits restored */
	double *sort;	    /* scratch: n */
	double *bubble;	    /* likewise */
	struct model_row row[TN_STRATEGIES];
	struct model_paper *paper; /* NULL: not its model and GPU */
};

/* tn_pipeline_compute_fn of a struct model_compute. */
int model_compute_ns(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns);
struct tn_pipeline_io model_io(const struct model_device *d);

bool model_paper_applies(const struct replay_model *m);
/* 0 or -errno. */
int model_paper(struct replay_model *m, struct model_paper *out);

/*
 * The whole trace at so many times its rate; leaves the sorted TTFTs in m->sort. scratch: TN_SPLIT_SCRATCH(layers) words.
 * 0 or -errno.
 */
int model_play(const struct replay_model *m, uint32_t strategy, double factor, uint64_t *scratch,
	       struct model_outcome *out);

/* "775 ms", "1688.5 s"; returns buf. */
#define MODEL_TEXT 32
char *model_ms_text(char *buf, double ms);
/* What max_factor says: "0.191/s", "none", "no limit". */
char *model_rate_text(const struct replay_model *m, const struct model_row *row, char *buf);
#define MODEL_PARAGRAPH 640
/* What is computed, for whom, and at which rate; the drive; how the largest rate was found ("" if nobody asked). */
void model_about(const struct replay_model *m, char *buf);
void model_about_device(const struct replay_model *m, char *buf);
void model_about_search(const struct replay_model *m, char *buf);

/* Headers of a block on disk. */
uint64_t model_header_bytes(uint32_t layers);

#endif
