/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline`: what its parts share.
 *
 * pipeline.c parses and runs the table, pipeline_rig.c is a child process's cache with the prompt that is
 * restored, pipeline_load.c the write load beside it, pipeline_request.c one request under one strategy,
 * pipeline_model.c what compute and an ideal device take, pipeline_print.c what comes out.
 */
#ifndef TENUTO_BENCH_PIPELINE_H
#define TENUTO_BENCH_PIPELINE_H

#include <pthread.h>

#include <tenuto/cache.h>

#include "bench.h"

#define PIPELINE_HITS_MAX 32u
#define PIPELINE_REPEAT_MAX 200u
#define PIPELINE_PATIENCE_NS 120000000000ull
/* Share of compute from which on a bubble counts: the crossover is the hit rate where it is reached. */
#define PIPELINE_THRESHOLD 0.05

enum pipeline_strategy {
	PIPELINE_RECOMPUTE,
	PIPELINE_LOAD_THEN_COMPUTE,
	PIPELINE_UNSCHEDULED,
	PIPELINE_TENUTO,
	PIPELINE_MEASURED, /* so many are run; the next one is computed */
	PIPELINE_IDEAL = PIPELINE_MEASURED,
	PIPELINE_STRATEGIES,
};

const char *pipeline_name(enum pipeline_strategy s);

/* What all runs of the program share; set once, read by the children. */
struct pipeline_set {
	const char *dir;	  /* of the store, made for this run */
	const char *model_name;
	const char *gpu;
	struct tn_geometry geometry;
	uint32_t blocks;	  /* of the prompt */
	uint32_t write_blocks;	  /* on disk for the write load */
	uint32_t save_blocks;	  /* of one save of it */
	uint32_t saves;		  /* of it under way at once */
	double stretch;
	bool spin;
	void *read_memory, *write_memory; /* the engine's pools, shared with the children */
	uint64_t read_bytes, write_bytes;
	uint32_t *pages;	  /* page indices of the prompt, in no order */
	const char *io_engine;
	uint64_t seed;
};

/* One run, as its child is asked for it. */
struct pipeline_arm {
	enum pipeline_strategy strategy;
	uint32_t blocks; /* restored */
	bool writes;
	uint64_t run;	 /* differs from run to run: names what the write load saves */
};

/* What came out; times in seconds. */
struct pipeline_run {
	int rc; /* exit code; -1: it died */
	char why[256];
	double ttft, compute, bubble;
	double begin;	  /* tn_load_begin alone */
	double late;	  /* most that this process woke up too late from a layer's compute */
	double cpu;
	uint64_t bytes_read, bytes_written;
	uint64_t bounced, wrong_objects;
	uint32_t layers;
	float arrived[TN_LAYERS_MAX]; /* when each layer was seen to be there, from the beginning */
};

/* ---- a child's cache ---------------------------------------------------------------------------- */

struct pipeline_rig {
	const struct pipeline_set *set;
	struct pipeline_run *run;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool, *write_pool;
	struct tn_layout layout;
	uintptr_t *table;
	struct tn_key *keys; /* WARM_BLOCKS, then the prompt's */
	uint64_t pin;
};

/* Blocks of a little prompt of its own, loaded before anything is measured. */
#define PIPELINE_WARM_BLOCKS 2u

/* 0, or -1 with the reason in rig->run. */
int rig_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, struct pipeline_run *run);
void rig_close(struct pipeline_rig *rig);
int rig_failed(struct pipeline_rig *rig, const char *what, int rc);
/* Both prompts stay on disk whatever the write load evicts. */
int rig_pin(struct pipeline_rig *rig);
/* n keys of a chain of its own. */
int rig_keys(struct pipeline_rig *rig, uint64_t chain, uint32_t n, struct tn_key *keys);
/* Marks every page of the pool, so that bytes of an earlier run cannot pass for those of this one. */
void rig_scrub(const struct pipeline_set *set);
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

/* Run in a child: a struct pipeline_job, a struct pipeline_run. */
void pipeline_request(const void *job, void *run);

/* ---- compute and the ideal ----------------------------------------------------------------------- */

struct pipeline_device {
	double read_bps;  /* as paced or measured */
	double latency_s;
};

/* Seconds that one layer of a prompt takes of which prefix_blocks are restored. */
double pipeline_compute_s(const struct pipeline_set *set, uint32_t prefix_blocks);
/* Seconds that reading one layer of so many blocks takes. */
double pipeline_io_s(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks);
/* The recurrence: fills ttft, compute, bubble, bytes_read and arrived. */
void pipeline_ideal(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks,
		    struct pipeline_run *run);

/* ---- the result ---------------------------------------------------------------------------------- */

struct pipeline_row {
	enum pipeline_strategy strategy;
	uint32_t blocks;
	double hit_rate;
	bool writes;
	double ttft, ttft_p99, compute, bubble;
	double read_gbps, write_gbps, cpu;
	double late;
};

struct pipeline_result {
	const struct pipeline_set *set;
	struct pipeline_device device;
	const char *calibrated; /* how */
	size_t nhits;
	size_t repeat;
	struct pipeline_row row[PIPELINE_HITS_MAX * 2 * PIPELINE_STRATEGIES];
	size_t rows;
	bool writes[2]; /* off, on: measured */
};

/* The row of these, or NULL. */
const struct pipeline_row *pipeline_row(const struct pipeline_result *r, enum pipeline_strategy s, size_t hit, bool writes);
/* Hit rate at which the bubble reaches the threshold, 0..1; 1 if it never does. */
double pipeline_crossover(const struct pipeline_result *r, enum pipeline_strategy s, bool writes);

json_t *pipeline_json(const struct pipeline_result *r);
int pipeline_print(const struct pipeline_result *r);
int pipeline_report(const struct pipeline_result *r, const char *path);

#endif
