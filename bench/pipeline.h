/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline`: what its parts share.
 *
 * pipeline.c parses and sets up, pipeline_table.c runs the table, pipeline_restores.c, pipeline_learn.c and
 * pipeline_split.c the other modes, pipeline_rig.c is a child process's cache with the prompt that is
 * restored, pipeline_load.c the write load beside it, pipeline_request.c one request under one strategy,
 * pipeline_model.c the times of compute and of an ideal device, pipeline_print.c the results.
 */
#ifndef TENUTO_BENCH_PIPELINE_H
#define TENUTO_BENCH_PIPELINE_H

#include <pthread.h>

#include <tenuto/cache.h>

#include "../cli/cost.h"
#include "../cli/explain.h"
#include "../cli/pool.h"
#include "../cli/stats.h"
#include "bench.h"
#include "lab/models.h"
#include "lab/pipeline.h"

#define PIPELINE_HITS_MAX 32u
#define PIPELINE_REPEAT_MAX 200u
#define PIPELINE_PATIENCE_NS 120000000000ull
/* A bubble of this share of compute counts: the crossover is the hit rate at which the bubble reaches it. */
#define PIPELINE_THRESHOLD 0.05
/* Reads that take so many times the model's time show that this machine cannot keep the model's pace. */
#define PIPELINE_SLOW 1.5

/* enum tn_strategy: the strategies before the ideal are run; the ideal is computed. */
#define PIPELINE_MEASURED ((uint32_t)TN_STRATEGY_IDEAL)

/* The command line. */
struct pipeline_args {
	const char *dir;
	const char *mode;
	const char *model;
	const char *gpu;
	const char *hit_rates;
	const char *compute;
	const char *writes;
	const char *io_engine;
	const char *device_model;
	const char *service;
	const char *report;
	const char *slack;
	const char *explain;
	const char *price;
	uint64_t layers, prompt_tokens, repeat, stretch, restores, requests, seed;
	bool json;
};

/* State that all runs of the program share; set once, read by the children. */
struct pipeline_set {
	const char *dir;	  /* of the store, made for this run */
	const char *device_model; /* file; NULL: the directory is not paced */
	const char *services[2];  /* the model file per enum pipeline_service */
	const char *model_name;
	const char *gpu;
	struct tn_geometry geometry;
	uint32_t model_layers;	  /* of the whole model; the geometry may have fewer */
	uint32_t blocks;	  /* of the prompt */
	uint32_t pool_blocks;	  /* of the engine's pool for the prompt */
	uint32_t write_blocks;	  /* blocks on disk for the write load */
	uint32_t save_blocks;	  /* blocks per save of the write load */
	uint32_t saves;		  /* saves of the write load under way at once */
	uint32_t stretch;
	struct tn_slack *slack; /* compute times, stretched */
	bool spin;
	/*
	 * The engine's pools, shared with the children, so that these need not fault them in again. NULL: each child
	 * maps hugepages.
	 */
	void *read_memory, *write_memory;
	uint64_t read_bytes, write_bytes;
	uint32_t *pages;	  /* page indices of the prompt, in no order */
	const char *io_engine;
	struct explain *explain;  /* output of --explain, for runs with the scheduler; NULL: none */
	uint64_t seed;
};

/* One run: the job of its child. */
struct pipeline_arm {
	uint32_t strategy; /* enum tn_strategy */
	uint32_t blocks; /* restored */
	bool writes;
	bool split;	 /* restore only what tn_plan says */
	uint64_t run;	 /* differs from run to run: names the blocks of the write load */
};

/* Result of a run; times in seconds. */
struct pipeline_run {
	int rc; /* exit code; -1: the child died */
	uint32_t permille; /* atomic: progress of the child */
	char why[256];
	double ttft, compute, bubble;
	double begin;	  /* tn_load_begin alone */
	double late;	  /* longest delay of a wake-up after a layer's compute */
	double cpu;
	uint64_t bytes_read, bytes_written;
	uint64_t bounced, wrong_objects;
	uint32_t restored; /* blocks */
	double estimate;   /* tn_plan's estimate of ttft; 0 without tn_plan */
};

/* ---- a child's cache ---------------------------------------------------------------------------- */

struct pipeline_rig {
	const struct pipeline_set *set;
	struct pipeline_run *run;
	bool paced; /* by the set's device model, if it has one */
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool, write_pool;
	void *memory, *write_memory; /* memory of the two pools; the end of the process frees it */
	struct tn_key *keys; /* WARM_BLOCKS, then the prompt's */
	uint64_t pin;
};

/* Blocks of a small prompt that is loaded before anything is measured. */
#define PIPELINE_WARM_BLOCKS 2u

/* Bytes of a pool of so many blocks. 0 or -errno. */
int rig_pool_bytes(const struct tn_geometry *g, uint32_t blocks, uint64_t *bytes);
/* 0, or -1 with the reason in rig->run. */
int rig_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, bool paced,
	     struct pipeline_run *run);
/* Gives the cache the table of compute times; NULL: none. */
int rig_slack(struct pipeline_rig *rig, const struct tn_slack *table);
void rig_close(struct pipeline_rig *rig);
int rig_failed(struct pipeline_rig *rig, const char *what, int rc);
/* Pins both prompts, so that the write load does not evict them. */
int rig_pin(struct pipeline_rig *rig);
/*
 * Waits until the store has stopped writing. After opening it prepares segments; a store that runs for long has done
 * that.
 */
void rig_settle(const struct pipeline_rig *rig);
/* n keys of a chain of its own. */
int rig_keys(struct pipeline_rig *rig, uint64_t chain, uint32_t n, struct tn_key *keys);
/* Compares the prompt's first blocks with what was saved; number of wrong objects. */
uint64_t rig_check(const struct pipeline_rig *rig, uint32_t blocks);
/* Ends a load; waits for its transfers in flight. */
int rig_end_load(struct pipeline_rig *rig, struct tn_load *load);

/* Saves the prompts and fills the rest of the store once: run in a child. */
void pipeline_prepare(const void *set, void *run);

/* ---- the write load ------------------------------------------------------------------------------ */

/* Chains of lower numbers are the content that the store is prepared with. */
#define PIPELINE_WRITE_CHAIN (1ull << 20)

struct pipeline_load {
	struct pipeline_rig *rig;
	uint64_t chain; /* names the blocks that are saved */
	pthread_t thread;
	int stop;  /* atomic */
	uint64_t begun; /* atomic: bytes of all saves begun */
	int error; /* atomic */
	uint64_t saves_done; /* atomic */
};

/* Starts the write load and waits until it is under way. 0, or -1 with the reason in the rig's run. */
int load_start(struct pipeline_load *load, struct pipeline_rig *rig, uint64_t chain);
/* Stops the write load: no more saves; waits for those under way. */
int load_stop(struct pipeline_load *load);

/* ---- a request ----------------------------------------------------------------------------------- */

struct pipeline_job {
	const struct pipeline_set *set;
	struct pipeline_arm arm;
};

/*
 * Opens a rig that is ready for requests: paced, its prompts pinned, and the small prompt loaded, so that threads, rings
 * and page tables are there before the clock starts. 0, or -1 with the reason in run.
 * @table: compute times for the cache; NULL: none
 */
int request_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, const struct tn_slack *table,
		 struct pipeline_run *run);
/* Steps of a request. Each returns 0, or -1 with the reason in the rig's run. */
int request_begin_load(struct pipeline_rig *rig, const struct tn_key *keys, uint32_t n, uint64_t input_tokens,
		       struct tn_load **load);
int request_wait_all(struct pipeline_rig *rig, struct tn_load *load, uint32_t blocks);

/* How many of the prompt's first blocks tn_plan would restore, and its estimate of TTFT in seconds. */
int request_plan(struct pipeline_rig *rig, uint32_t matched, uint32_t *restored, double *estimate);
/* Serves a request of which so many blocks are restored; fills the rig's run. */
int request_serve(struct pipeline_rig *rig, uint32_t strategy, uint32_t blocks);

/* Runs in a child. The arguments are a struct pipeline_job and a struct pipeline_run. */
void pipeline_request(const void *job, void *run);

/* ---- compute and the ideal ----------------------------------------------------------------------- */

/* The device: as paced, or as measured. */
struct pipeline_device {
	double read_bps, write_bps, mixed_bps;
	double latency_s;
	char source[200];
};

/* The device of a set's directory: from its model, or measured (and left there for the cache). Exit code. */
int pipeline_calibrate(const struct pipeline_set *set, struct cli_progress *progress, struct pipeline_device *d);

/* The compute times of the runs: the table of the command line, or the analytic one, stretched. Exit code. */
int pipeline_slack_open(struct pipeline_set *set, const char *file);
/* Makes a table of the set's model with all times multiplied. Exit code. */
int pipeline_slack_scaled(const struct pipeline_set *set, const struct tn_slack *from, double factor, struct tn_slack **out);
/* Tokens to compute when so many blocks of the prompt are restored, and how long one layer of them takes. */
uint64_t pipeline_input_tokens(const struct pipeline_set *set, uint32_t restored);
uint64_t pipeline_compute_ns(const struct pipeline_set *set, uint32_t restored, uint32_t layer);
/* Seconds that reading one layer of so many blocks takes. */
double pipeline_io_s(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks);
/* The recurrence: fills ttft, compute, bubble and bytes_read. Exit code. */
int pipeline_ideal(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks,
		   struct pipeline_run *run);

/* ---- the restores (pipeline_restores.c) ----------------------------------------------------------- */

#define PIPELINE_RESTORES_MAX 20000u
#define PIPELINE_REQUESTS_MAX 1000u

/* ---- the result ---------------------------------------------------------------------------------- */

struct pipeline_row {
	uint32_t strategy; /* enum tn_strategy */
	uint32_t blocks;
	double hit_rate;
	bool writes;
	double ttft, ttft_p99, compute, bubble;
	double read_gbps, write_gbps, cpu;
	double late;
};

struct pipeline_result {
	struct pipeline_row row[PIPELINE_HITS_MAX * 2 * TN_STRATEGIES];
	size_t rows;
};

/* How the described drive divides its bandwidth: see share/devices. */
enum pipeline_service { PIPELINE_ORDER, PIPELINE_SHARE, PIPELINE_SERVICES };

struct pipeline_bench {
	const struct pipeline_args *args;
	struct pipeline_set set;
	struct cli_progress progress;
	uint64_t arms, begun;	     /* children of this mode; those that were begun */
	char what[128];		     /* name of the run under way, for the progress */
	uint64_t run;		     /* number of the last child */
	uint64_t timed, late;	     /* runs with compute; those of them in which it woke up late */
	bool slow_reads;	     /* the device missed its rate */
	struct pipeline_device device;
	struct cost_prices prices;
	bool writes[2];		     /* whether to measure without writes, with writes */
	size_t repeat;
	bool services[PIPELINE_SERVICES]; /* whether to measure each; a real directory has one service only, which counts as the first */
	enum pipeline_service service;	  /* the present service; `result` is its result */
	struct pipeline_result results[PIPELINE_SERVICES], *result;
	uint32_t hit[PIPELINE_HITS_MAX]; /* blocks */
	size_t nhits;
};

/* Announces the number of children. Until the first begins, the progress shows `what`. */
void pipeline_begin(struct pipeline_bench *b, const char *what, uint64_t arms);
/*
 * Runs fn in a child, with the progress on stderr. CLI_OK, or the exit code after a message on stderr.
 * @what:   name of the run: in the progress, in --explain, and in an error
 * @result: begins with a struct pipeline_run
 */
int pipeline_fork(struct pipeline_bench *b, const char *what, void (*fn)(const void *job, void *result), const void *job,
		  void *result, size_t bytes);
/* In the child: tells the parent that it has done so many of all. */
void pipeline_done(struct pipeline_run *run, uint64_t done, uint64_t all);
/* Serves one request in a child. CLI_OK, or the exit code after a message on stderr. */
int pipeline_child(struct pipeline_bench *b, const struct pipeline_arm *arm, struct pipeline_run *run);

/* Notes that reads without writes took so long, and should have taken `expected` by the device's model. */
void pipeline_reads(struct pipeline_bench *b, double seconds, double expected);

/* The modes: measure and print. */
int pipeline_table(struct pipeline_bench *b);
int pipeline_restores(struct pipeline_bench *b);
int pipeline_learn(struct pipeline_bench *b);
int pipeline_split(struct pipeline_bench *b);

const char *pipeline_service_name(enum pipeline_service service);
/* Writes the model file `from` as `to`, with another service. Exit code. */
int pipeline_model_file(const char *from, const char *to, enum pipeline_service service);
/* From now on the drive serves that way, and `result` is that service's result. */
void pipeline_serve_as(struct pipeline_bench *b, enum pipeline_service service);

/* The row with these values, or NULL. */
const struct pipeline_row *pipeline_row(const struct pipeline_bench *b, uint32_t strategy, size_t hit, bool writes);
/* Hit rate at which the bubble reaches the threshold, 0..1; 1 if it never does. */
double pipeline_crossover(const struct pipeline_bench *b, uint32_t strategy, bool writes);

json_t *pipeline_settings(const struct pipeline_bench *b);
json_t *pipeline_json(struct pipeline_bench *b);
void pipeline_print_head(const struct pipeline_bench *b);
int pipeline_print(struct pipeline_bench *b);
int pipeline_report(struct pipeline_bench *b, const char *path);

#endif
