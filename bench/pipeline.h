/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline`: what its parts share.
 *
 * pipeline.c parses and sets up, pipeline_table.c runs the table, pipeline_restores.c, pipeline_learn.c and
 * pipeline_split.c the other modes, pipeline_rig.c is a child process's cache with the prompt that is
 * restored, pipeline_load.c the write load beside it, pipeline_request.c one request under one strategy,
 * pipeline_model.c what compute and an ideal device take, pipeline_print.c what comes out.
 */
#ifndef TENUTO_BENCH_PIPELINE_H
#define TENUTO_BENCH_PIPELINE_H

#include <pthread.h>

#include <tenuto/cache.h>

#include "../cli/explain.h"
#include "../cli/pool.h"
#include "bench.h"
#include "lab/pipeline.h"

#define PIPELINE_HITS_MAX 32u
#define PIPELINE_REPEAT_MAX 200u
#define PIPELINE_PATIENCE_NS 120000000000ull
/* Share of compute from which on a bubble counts: the crossover is the hit rate where it is reached. */
#define PIPELINE_THRESHOLD 0.05
/* Reads that take so many times what the device's model says show that this machine cannot keep its pace. */
#define PIPELINE_SLOW 1.5

/* enum tn_strategy: those before the ideal are run, the ideal is computed. */
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
	uint64_t layers, prompt_tokens, repeat, stretch, restores, requests, seed;
	bool json;
};

/* What all runs of the program share; set once, read by the children. */
struct pipeline_set {
	const char *dir;	  /* of the store, made for this run */
	const char *device_model; /* file; NULL: the directory is what it is */
	const char *services[2];  /* files of it, by enum pipeline_service */
	const char *model_name;
	const char *gpu;
	struct tn_geometry geometry;
	uint32_t blocks;	  /* of the prompt */
	uint32_t pool_blocks;	  /* room for it in the engine's pool */
	uint32_t write_blocks;	  /* on disk for the write load */
	uint32_t save_blocks;	  /* of one save of it */
	uint32_t saves;		  /* of it under way at once */
	uint32_t stretch;
	struct tn_slack *slack; /* compute times, stretched */
	bool spin;
	/* The engine's pools, shared with the children, which need not fault them in anew; NULL: each maps hugepages. */
	void *read_memory, *write_memory;
	uint64_t read_bytes, write_bytes;
	uint32_t *pages;	  /* page indices of the prompt, in no order */
	const char *io_engine;
	struct explain *explain;  /* of runs with the scheduler; NULL: none */
	uint64_t seed;
};

/* One run, as its child is asked for it. */
struct pipeline_arm {
	uint32_t strategy; /* enum tn_strategy */
	uint32_t blocks; /* restored */
	bool writes;
	bool split;	 /* restore only what tn_plan says */
	uint64_t run;	 /* differs from run to run: names what the write load saves */
};

/* What came out; times in seconds. */
struct pipeline_run {
	int rc; /* exit code; -1: it died */
	uint32_t permille; /* atomic: of what the child has to do, while it does it */
	char why[256];
	double ttft, compute, bubble;
	double begin;	  /* tn_load_begin alone */
	double late;	  /* most that this process woke up too late from a layer's compute */
	double cpu;
	uint64_t bytes_read, bytes_written;
	uint64_t bounced, wrong_objects;
	uint32_t restored; /* blocks */
	double estimate;   /* tn_plan's of ttft; 0 without a plan */
};

/* ---- a child's cache ---------------------------------------------------------------------------- */

struct pipeline_rig {
	const struct pipeline_set *set;
	struct pipeline_run *run;
	bool paced; /* as the set's device model, if it has one */
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool, write_pool;
	void *memory, *write_memory; /* theirs; goes with the process */
	struct tn_key *keys; /* WARM_BLOCKS, then the prompt's */
	uint64_t pin;
};

/* Blocks of a little prompt of its own, loaded before anything is measured. */
#define PIPELINE_WARM_BLOCKS 2u

/* Memory that a pool of so many blocks takes. 0 or -errno. */
int rig_pool_bytes(const struct tn_geometry *g, uint32_t blocks, uint64_t *bytes);
/* 0, or -1 with the reason in rig->run. */
int rig_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, bool paced,
	     struct pipeline_run *run);
/* What the cache is told of compute; NULL: nothing. */
int rig_slack(struct pipeline_rig *rig, const struct tn_slack *table);
void rig_close(struct pipeline_rig *rig);
int rig_failed(struct pipeline_rig *rig, const char *what, int rc);
/* Both prompts stay on disk whatever the write load evicts. */
int rig_pin(struct pipeline_rig *rig);
/* Waits until the store writes nothing any more: after opening it prepares segments, which a running one has long done. */
void rig_settle(const struct pipeline_rig *rig);
/* n keys of a chain of its own. */
int rig_keys(struct pipeline_rig *rig, uint64_t chain, uint32_t n, struct tn_key *keys);
/* Compares the prompt's first blocks with what was saved; number of wrong objects. */
uint64_t rig_check(const struct pipeline_rig *rig, uint32_t blocks);
/* Ends a load, waiting for what is still in flight. */
int rig_end_load(struct pipeline_rig *rig, struct tn_load *load);

/* Saves the prompts and fills the rest of the store once: run in a child. */
void pipeline_prepare(const void *set, void *run);

/* ---- the write load ------------------------------------------------------------------------------ */

/* Chains below are those of the store's own content. */
#define PIPELINE_WRITE_CHAIN (1ull << 20)

struct pipeline_load {
	struct pipeline_rig *rig;
	uint64_t chain; /* names what is saved */
	pthread_t thread;
	int stop;  /* atomic */
	uint64_t begun; /* atomic: bytes of all saves begun */
	int error; /* atomic */
	uint64_t saves_done; /* atomic */
};

/* Starts it and waits until it is under way. 0, or -1 with the reason in the rig's run. */
int load_start(struct pipeline_load *load, struct pipeline_rig *rig, uint64_t chain);
/* No more saves; waits for those under way. */
int load_stop(struct pipeline_load *load);

/* ---- a request ----------------------------------------------------------------------------------- */

struct pipeline_job {
	const struct pipeline_set *set;
	struct pipeline_arm arm;
};

/*
 * A rig that is ready for requests: paced, its prompts pinned, and a little one loaded, so that threads, rings and page
 * tables are there before the clock starts. 0, or -1 with the reason in run.
 * @table: NULL: the cache is told nothing of compute
 */
int request_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, const struct tn_slack *table,
		 struct pipeline_run *run);
/* Pieces of a request: 0, or -1 with the reason in the rig's run. */
int request_begin_load(struct pipeline_rig *rig, const struct tn_key *keys, uint32_t n, uint64_t input_tokens,
		       struct tn_load **load);
int request_wait_all(struct pipeline_rig *rig, struct tn_load *load, uint32_t blocks);

/* How many of the prompt's first blocks tn_plan would restore, and its estimate of TTFT in seconds. */
int request_plan(struct pipeline_rig *rig, uint32_t matched, uint32_t *restored, double *estimate);
/* Serves a request of which so many blocks are restored; fills the rig's run. */
int request_serve(struct pipeline_rig *rig, uint32_t strategy, uint32_t blocks);

/* Run in a child: a struct pipeline_job, a struct pipeline_run. */
void pipeline_request(const void *job, void *run);

/* ---- compute and the ideal ----------------------------------------------------------------------- */

/* As paced or measured. */
struct pipeline_device {
	double read_bps, write_bps, mixed_bps;
	double latency_s;
	char source[200];
};

/* What the directory of a set does: its model, or measured (and left there for the cache). Exit code. */
int pipeline_calibrate(const struct pipeline_set *set, struct cli_progress *progress, struct pipeline_device *d);

/* The table of the command line, or the analytic one, stretched: how long compute takes here. Exit code. */
int pipeline_slack_open(struct pipeline_set *set, const char *file);
/* A table of the set's model with all times multiplied. Exit code. */
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
	uint64_t arms, begun;	     /* children of this mode, those begun */
	char what[128];		     /* the one that runs, for the progress */
	uint64_t run;		     /* number of the last child */
	uint64_t timed, late;	     /* runs with compute; of them those that it woke up late in */
	bool slow_reads;	     /* the device missed its rate */
	struct pipeline_device device;
	bool writes[2];		     /* off, on: to be measured */
	size_t repeat;
	bool services[PIPELINE_SERVICES]; /* to be measured; a real directory is only what it is, and counts as the first */
	enum pipeline_service service;	  /* the present one, whose result is result */
	struct pipeline_result results[PIPELINE_SERVICES], *result;
	uint32_t hit[PIPELINE_HITS_MAX]; /* blocks */
	size_t nhits;
};

/* So many children follow; until the first begins, what is what goes on. */
void pipeline_begin(struct pipeline_bench *b, const char *what, uint64_t arms);
/*
 * Runs fn in a child, with the progress on stderr. CLI_OK, or the exit code, said on stderr.
 * @what:   names it: in the progress, to --explain, and where it fails
 * @result: begins with a struct pipeline_run
 */
int pipeline_fork(struct pipeline_bench *b, const char *what, void (*fn)(const void *job, void *result), const void *job,
		  void *result, size_t bytes);
/* In the child: it has done so many of all. */
void pipeline_done(struct pipeline_run *run, uint64_t done, uint64_t all);
/* Serves one request in a child. CLI_OK, or the exit code, said on stderr. */
int pipeline_child(struct pipeline_bench *b, const struct pipeline_arm *arm, struct pipeline_run *run);

/* Reads without writes took so long, and by the device's model should have taken expected. */
void pipeline_reads(struct pipeline_bench *b, double seconds, double expected);

/* The modes: measure and print. */
int pipeline_table(struct pipeline_bench *b);
int pipeline_restores(struct pipeline_bench *b);
int pipeline_learn(struct pipeline_bench *b);
int pipeline_split(struct pipeline_bench *b);

const char *pipeline_service_name(enum pipeline_service service);
/* Writes the model file `from` anew as `to`, with the drive serving so. Exit code. */
int pipeline_model_file(const char *from, const char *to, enum pipeline_service service);
/* From now on the drive serves so, and result is that one's. */
void pipeline_serve_as(struct pipeline_bench *b, enum pipeline_service service);

/* The row of these, or NULL. */
const struct pipeline_row *pipeline_row(const struct pipeline_bench *b, uint32_t strategy, size_t hit, bool writes);
/* Hit rate at which the bubble reaches the threshold, 0..1; 1 if it never does. */
double pipeline_crossover(const struct pipeline_bench *b, uint32_t strategy, bool writes);

json_t *pipeline_settings(const struct pipeline_bench *b);
json_t *pipeline_json(struct pipeline_bench *b);
void pipeline_print_head(const struct pipeline_bench *b);
int pipeline_print(struct pipeline_bench *b);
int pipeline_report(struct pipeline_bench *b, const char *path);

#endif
