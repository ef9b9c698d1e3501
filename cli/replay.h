/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay`: what its parts (index only, real bytes, report) share.
 */
#ifndef TENUTO_CLI_REPLAY_H
#define TENUTO_CLI_REPLAY_H

#include "cli.h"
#include "trace.h"

#include <tenuto/types.h>

struct replay_args {
	uint64_t capacity_blocks; /* 0: not given */
	uint64_t host_blocks;
	uint64_t limit;
	uint64_t block_tokens; /* 0: as the trace says */
	const char *timestamp_unit;
	uint64_t ranks; /* processes with a share of each block; 1: this process alone */
	uint64_t seed;
	const char *policy;
	const char *model;
	const char *report;
	const char *io_engine;
	const char *explain;
	const char *gpu, *slack, *device_model;
	const char *price, *drive; /* lists of the model's cost; NULL: the defaults */
	double slo_ms, rate, read_gbps; /* of the model; 0: not given */
	struct cli_geometry geometry;
	struct cli_strings dirs;
	double speed; /* 0: as fast as possible */
	bool no_io;
	bool verify;
	bool json;
};

/* A moment of the run: totals so far. */
struct replay_sample {
	size_t requests;
	double trace_s; /* latest arrival so far */
	double wall_s;
	double read_s, write_s;
	uint64_t blocks, hit_blocks;
	uint64_t bytes_read, bytes_written;
};

#define REPLAY_SAMPLES 96

/* What one request found, and which blocks were new. */
struct replay_hits {
	uint32_t hits, host_hits, inserted;
};

struct replay_result {
	uint64_t requests, blocks, hit_blocks, host_hit_blocks, distinct_blocks;
	uint64_t blocks_written, blocks_rejected, blocks_unread, blocks_failed, blocks_held;
	uint64_t bytes_read, bytes_written, block_bytes, block_disk_bytes;
	uint64_t verified_objects, wrong_objects, corrupt_detected, io_errors;
	uint64_t recovered_blocks;
	uint64_t in_saving_blocks;     /* requested while their save was under way */
	uint64_t written_twice_blocks; /* in bytes_written, but not in blocks_written: another save of the same block ended first */
	double read_seconds;  /* time with a load under way */
	double write_seconds; /* time with a save under way; with host memory, which is written to disk later, the whole run */
	double cpu_seconds, wall_seconds;
	uint64_t capacity_blocks; /* of the store; 0: unlimited */
	uint32_t block_tokens;
	uint64_t short_loads; /* of ranks that got less than the scheduler had found */
	uint64_t late_requests; /* with --speed: requests that began after their time */
	bool interrupted;
	struct replay_sample sample[REPLAY_SAMPLES + 1];
	size_t samples;
	struct replay_hits *each; /* per request; NULL: not wanted */
};

/* Adds a sample after each REPLAY_SAMPLES-th part of the requests, and at the end. */
void replay_sample(struct replay_result *r, const struct trace *t, size_t done, double wall_s);

/* Each returns an exit code: CLI_OK and *r, or an error after a message on stderr. */
int replay_index(const struct replay_args *a, const struct trace *t, struct replay_result *r);
/* g: of a block's share. */
int replay_bytes(const struct replay_args *a, const struct trace *t, const struct tn_geometry *g,
		 struct replay_result *r);

/*
 * The model of time to first token (replay_model.h). replay_model_create: CLI_OK, and NULL in *out if no option asks for
 * it. All three print errors on stderr.
 */
struct replay_model;

int replay_model_check(const struct replay_args *a);
int replay_model_create(const struct replay_args *a, const struct tn_geometry *g, struct replay_model **out);
int replay_model_run(struct replay_model *m, const struct trace *t, const struct replay_hits *each);
json_t *replay_model_json(const struct replay_model *m);
void replay_model_print(const struct replay_model *m);
/* The model's part of the page: a heading, a table, charts. 0 or -errno. */
int replay_model_report(const struct replay_model *m, FILE *f);
void replay_model_destroy(struct replay_model *m);

/* m: NULL if the model was not asked for. */
int report_write(const struct replay_args *a, const char *trace_name, const struct trace *t,
		 const struct replay_result *r, const struct replay_model *m);

#endif
