/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay --no-io --gpu NAME`: time to first token of a whole trace by arithmetic, at the model's full size,
 * without moving a byte. docs/model.md has the formulas and what they leave out.
 *
 * replay_model.c: options, sources of compute times and of the device's rates. replay_model_run.c: times of each request,
 * the queue, the largest rate. replay_model_print.c: the results as text; replay_model_report.c: as a part of the page.
 * replay_model_cost.c: dollars, and the life of the drives.
 * replay_model_paper.c: the published case beside the model.
 */
#ifndef TENUTO_CLI_REPLAY_MODEL_H
#define TENUTO_CLI_REPLAY_MODEL_H

#include "cost.h"
#include "replay.h"

#include <tenuto/slack.h>

#include "lab/models.h"
#include "lab/pipeline.h"

/* Words of scratch of a split, or of a pipeline with its bytes and times by layer. */
#define MODEL_SCRATCH(layers) (4 * (size_t)(layers))
_Static_assert(MODEL_SCRATCH(1) >= TN_SPLIT_SCRATCH(1) &&
		       MODEL_SCRATCH(1) * sizeof(uint64_t) >= sizeof(uint64_t) + sizeof(struct tn_pipeline_layer),
	       "it holds either");

struct model_device {
	double read_bps, write_bps, mixed_bps;
	uint64_t latency_ns, write_latency_ns;
	char source[200];
};

struct model_compute {
	const char *model, *gpu;       /* as given on the command line, or from the table */
	struct tn_slack *table;	       /* NULL: the analytic model, exactly */
	uint32_t layers;
	uint32_t same[TN_LAYERS_MAX]; /* per layer: the first layer that takes as long */
};

/* One request under one strategy, alone on the machine. */
struct model_cost {
	uint64_t ttft_ns, compute_ns, io_ns, read_bytes;
	uint32_t restored, read; /* blocks; how many of them come from disk */
};

struct model_request {
	double arrival_ns; /* since the first request's arrival, at the trace's own rate */
	uint64_t write_layer_bytes;
	struct model_cost cost[TN_STRATEGIES];
};

struct model_percentiles {
	double p50, p90, p99, mean;
};

/* Result of one strategy for the whole trace at one rate. */
struct model_outcome {
	struct model_percentiles ttft_ms, bubble_ms;
	double busy; /* share of the time from the first arrival to the last end during which the GPU had a request */
	double compute_s, bubble_s;
	uint64_t read_bytes, restored;
	double backlog_max_bytes, backlog_end_bytes; /* bytes that wait to be written */
};

struct model_row {
	struct model_outcome played;	   /* at the rate asked for */
	struct model_percentiles alone_ms; /* TTFT of each request, alone on the machine */
	double max_factor;		   /* largest multiple of the trace's rate within the SLO; 0: none, < 0: no limit */
	double max_p90_ms;		   /* p90 at max_factor */
	double over_factor, over_p90_ms;   /* the smallest factor tried that misses the SLO; 0: none did */
	uint32_t tries;
};

#define MODEL_PAPER_PREFIX UINT64_C(65536)
/* Published: read rate at 128K tokens, the worked example's ms per layer, crossover hit rate, bubble at 93.75 %. */
#define MODEL_PAPER_GBPS 25.9
#define MODEL_PAPER_LAYER_MS 1.2
#define MODEL_PAPER_CROSSOVER 0.983
#define MODEL_PAPER_BUBBLE_MS 6.0
#define MODEL_PAPER_SOURCE "arXiv 2605.03375, as reviewed in June 2026"

/* The model's figures of the paper's case at one read rate. */
struct model_paper_at {
	double read_gbps, layer_ms;
	uint64_t hides_from_tokens; /* input tokens from which on reading hides behind compute; 0: never */
	double crossover;	    /* the hit rate of a prompt with so many input tokens */
	double ttft_ms, bubble_ms;  /* at the hit rate below */
};

struct model_paper {
	uint32_t blocks, block_tokens, objects, object_bytes;
	uint64_t layer_bytes;
	double hit_rate;
	struct model_paper_at at[2]; /* at the published rate, and at the device's */
};

/* What the run costs. Bytes are of the whole cache, which one GPU uses. */
struct model_bill {
	struct cost_prices prices;
	struct cost_drive drive;
	uint64_t capacity_blocks, host_blocks; /* as asked for; capacity 0: all blocks that are written */
	uint64_t tokens;		       /* of all prompts */
	uint64_t written_blocks;
	double dram_bytes, ssd_bytes;
	double written_bytes, written_s; /* in so many seconds, at the rate asked for */
};

struct replay_model {
	struct tn_geometry geometry;
	struct model_bill bill;
	struct model_device device;
	struct model_compute compute;
	double slo_ms; /* 0: not asked for */
	double factor; /* arrival rate, as a multiple of the trace's */
	double trace_per_s; /* requests per second in the trace; 0: all at once */
	uint64_t seed;
	size_t n, spread; /* requests; those of them that shared their arrival time with others */
	struct model_request *request;
	uint64_t *layer_ns; /* per request and layer: compute with all hits restored */
	double *sort;	    /* scratch: n */
	double *bubble;	    /* likewise */
	struct model_row row[TN_STRATEGIES];
	struct model_paper *paper; /* NULL: the run has another model or GPU than the paper */
};

/* tn_compute_fn of a struct model_compute. */
int model_compute_ns(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns);
struct tn_pipeline_io model_io(const struct model_device *d);

bool model_paper_applies(const struct replay_model *m);
/* 0 or -errno. */
int model_paper(struct replay_model *m, struct model_paper *out);

/*
 * Plays the whole trace at factor times its rate; leaves the sorted TTFTs in m->sort. scratch: MODEL_SCRATCH(layers) words.
 * 0 or -errno.
 */
int model_play(const struct replay_model *m, uint32_t strategy, double factor, uint64_t *scratch,
	       struct model_outcome *out);

/* Once all strategies are played: sizes of the cache, and what is written in which time. An exit code. */
int model_bill(struct replay_model *m);
/* Dollars per million prompt tokens: with the GPU always busy, and at the largest rate within the SLO (0: not known). */
double model_dollars(const struct replay_model *m, uint32_t strategy);
double model_dollars_at_slo(const struct replay_model *m, uint32_t strategy);
json_t *model_bill_json(const struct replay_model *m);
/* Text: the dollars with and without the cache; the life of the SSD. */
void model_about_cost(const struct replay_model *m, char *buf);
void model_about_drive(const struct replay_model *m, char *buf);

/* "775 ms", "1688.5 s"; returns buf. */
#define MODEL_TEXT 32
char *model_ms_text(char *buf, double ms);
/* max_factor as text: "0.191/s", "none", "no limit". */
char *model_rate_text(const struct replay_model *m, const struct model_row *row, char *buf);
#define MODEL_PARAGRAPH 640
/* Text: model, GPU, and rate; the drive; how the largest rate was found ("" if it was not asked for). */
void model_about(const struct replay_model *m, char *buf);
void model_about_device(const struct replay_model *m, char *buf);
void model_about_search(const struct replay_model *m, char *buf);

/* Headers of a block on disk. */
uint64_t model_header_bytes(uint32_t layers);

#endif
