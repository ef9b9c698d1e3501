/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline --mode restores`: the latency of small restores beside a write load.
 *
 * A restore is some blocks of the prompt, all layers, from tn_load_begin until the last layer is there. Between two
 * restores there is a pause of random length, in which a scheduler can write. With the write load, a decode phase is
 * announced after the last restore: no more restores, no new saves. The time until all begun saves have ended is taken.
 */
#include "pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS 8u
#define PAUSE_MEAN_NS 8000000.0
#define DECODE_NS 1000000000u /* length of the decode phase */
#define ARMS 4u

struct samples {
	struct pipeline_run run;
	uint64_t backlog_bytes; /* at the begin of the decode phase */
	double drain;		/* seconds until the backlog was written */
	double seconds;		/* seconds of the restores */
	uint32_t n;
	double latency[PIPELINE_RESTORES_MAX];
};

struct job {
	const struct pipeline_set *set;
	struct pipeline_arm arm;
	uint32_t restores;
};

/* xorshift64* (Vigna, 2016) */
static uint64_t next_random(uint64_t *x)
{
	*x ^= *x >> 12;
	*x ^= *x << 25;
	*x ^= *x >> 27;
	return *x * 0x2545F4914F6CDD1Du;
}

static void pause_randomly(uint64_t *x)
{
	double u = (double)(next_random(x) >> 11) * 0x1p-53;
	uint64_t ns = (uint64_t)(-log(1 - u) * PAUSE_MEAN_NS);
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static int restore(struct pipeline_rig *rig, uint32_t first, uint32_t n, double *seconds)
{
	struct tn_load *load;
	uint64_t began = cli_now_ns();
	int rc = request_begin_load(rig, rig->keys + PIPELINE_WARM_BLOCKS + first, n, 0, &load);

	if (!rc)
		rc = request_wait_all(rig, load, n);
	*seconds = (double)(cli_now_ns() - began) * 1e-9;
	return rc ? rc : rig_end_load(rig, load);
}

/* Of one restore. */
static uint32_t blocks_of(const struct pipeline_set *set)
{
	return set->blocks < BLOCKS ? set->blocks : BLOCKS;
}

static int restore_all(struct pipeline_rig *rig, const struct job *job, struct samples *s)
{
	struct cli_stats before, after;
	uint32_t n = blocks_of(rig->set);
	uint64_t began = cli_now_ns(), x = rig->set->seed ^ 0x9e3779b97f4a7c15u;
	int rc = 0;

	cli_stats(rig->cache, &before);
	while (!rc && s->n < job->restores) {
		uint32_t first = (uint32_t)(next_random(&x) % (rig->set->blocks - n + 1));

		pause_randomly(&x);
		rc = restore(rig, first, n, &s->latency[s->n++]);
		pipeline_done(&s->run, s->n, job->restores);
	}
	s->seconds = (double)(cli_now_ns() - began) * 1e-9;
	cli_stats(rig->cache, &after);
	s->run.bytes_read = after.bytes_read - before.bytes_read;
	s->run.bytes_written = after.bytes_written - before.bytes_written;
	return rc;
}

/* Bytes of saves begun that are not on disk yet; written_before: by this cache when the write load began. */
static uint64_t backlog_bytes(const struct pipeline_rig *rig, const struct pipeline_load *load, uint64_t written_before)
{
	struct cli_stats now;
	uint64_t begun = __atomic_load_n(&load->begun, __ATOMIC_RELAXED);

	cli_stats(rig->cache, &now);
	now.bytes_written -= written_before;
	return begun > now.bytes_written ? begun - now.bytes_written : 0;
}

static int with_writes(struct pipeline_rig *rig, const struct job *job, struct samples *s)
{
	struct cli_stats before;
	struct pipeline_load load;
	uint64_t began;
	int rc;

	cli_stats(rig->cache, &before);
	if (load_start(&load, rig, PIPELINE_WRITE_CHAIN + (job->arm.run << 24)))
		return -1;
	rc = restore_all(rig, job, s);
	began = cli_now_ns();
	s->backlog_bytes = backlog_bytes(rig, &load, before.bytes_written);
	if (!rc && tn_phase(rig->cache, TN_PHASE_DECODE, DECODE_NS))
		rc = rig_failed(rig, "phase", -EINVAL);
	if (load_stop(&load))
		return -1;
	s->drain = (double)(cli_now_ns() - began) * 1e-9;
	return rc;
}

static void run_job(const void *arg, void *out)
{
	const struct job *job = arg;
	struct samples *s = out;
	struct pipeline_rig rig;
	int rc = request_open(&rig, job->set, job->arm.strategy == TN_STRATEGY_TENUTO ? "slack" : "none", NULL, &s->run);

	if (!rc)
		rc = job->arm.writes ? with_writes(&rig, job, s) : restore_all(&rig, job, s);
	rig_close(&rig);
}

/* ---- the result -------------------------------------------------------------------------------- */

struct arm_result {
	uint32_t strategy;
	bool writes;
	size_t n, rounds;
	double *latency;
	double write_gbps[PIPELINE_REPEAT_MAX], drain[PIPELINE_REPEAT_MAX], backlog[PIPELINE_REPEAT_MAX];
	double p50, p99, max, gbps, drain_s, backlog_bytes;
};

static double quantile(const double *sorted, size_t n, double q)
{
	return sorted[(size_t)ceil(q * (double)n) - 1];
}

static void add(struct arm_result *r, const struct samples *s)
{
	memcpy(r->latency + r->n, s->latency, s->n * sizeof(*s->latency));
	r->n += s->n;
	r->write_gbps[r->rounds] = (double)s->run.bytes_written * 1e-9 / s->seconds;
	r->drain[r->rounds] = s->drain;
	r->backlog[r->rounds++] = (double)s->backlog_bytes;
}

static void sum_up(struct arm_result *r)
{
	r->p50 = bench_median(r->latency, r->n); /* which sorts */
	r->p99 = quantile(r->latency, r->n, 0.99);
	r->max = r->latency[r->n - 1];
	r->gbps = bench_median(r->write_gbps, r->rounds);
	r->drain_s = bench_median(r->drain, r->rounds);
	r->backlog_bytes = bench_median(r->backlog, r->rounds);
}

static json_t *as_json(const struct pipeline_bench *b, const struct arm_result *r)
{
	json_t *rows = json_array(), *p50 = json_object(), *p99 = json_object();

	for (size_t i = 0; i < ARMS; i++) {
		json_t *j = json_pack("{s:s, s:b, s:I, s:f, s:f, s:f, s:f}", "strategy", tn_strategy_name(r[i].strategy), "writes",
				      (int)r[i].writes, "restores", (json_int_t)r[i].n, "p50_ms", r[i].p50 * 1e3, "p99_ms",
				      r[i].p99 * 1e3, "max_ms", r[i].max * 1e3, "write_gbps", r[i].gbps);

		if (r[i].writes) {
			json_object_set_new(j, "backlog_bytes", json_real(r[i].backlog_bytes));
			json_object_set_new(j, "drain_ms", json_real(r[i].drain_s * 1e3));
		}
		json_array_append_new(rows, j);
	}
	for (size_t i = 0; i + 1 < ARMS; i += 2) {
		json_object_set_new(p50, tn_strategy_name(r[i].strategy), json_real(r[i + 1].p50 / r[i].p50));
		json_object_set_new(p99, tn_strategy_name(r[i].strategy), json_real(r[i + 1].p99 / r[i].p99));
	}
	return json_pack("{s:o, s:o, s:o, s:f, s:o}", "rows", rows, "ratio_p50", p50, "ratio_p99", p99, "decode_ms", DECODE_NS * 1e-6, "settings",
			 pipeline_settings(b));
}

static int print(const struct pipeline_bench *b, const struct arm_result *r)
{
	static const char *const heads[] = {"strategy", "writes", "restores", "p50 ms", "p99 ms", "max ms", "write GB/s",
					    "backlog", "drained ms", "p99 ratio"};
	const bool left[] = {true, true, false, false, false, false, false, false, false, false};
	const size_t columns = sizeof(heads) / sizeof(heads[0]);
	struct cli_table t;
	char s[32];

	pipeline_print_head(b);
	printf("restores of %u blocks, pauses of %g ms on average between them\n\n", BLOCKS, PAUSE_MEAN_NS * 1e-6);
	cli_table_init(&t, columns, left);
	for (size_t i = 0; i < columns; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (size_t i = 0; i < ARMS; i++) {
		cli_table_cell(&t, "%s", tn_strategy_name(r[i].strategy));
		cli_table_cell(&t, "%s", r[i].writes ? "on" : "off");
		cli_table_cell(&t, "%zu", r[i].n);
		cli_table_cell(&t, "%.2f", r[i].p50 * 1e3);
		cli_table_cell(&t, "%.2f", r[i].p99 * 1e3);
		cli_table_cell(&t, "%.2f", r[i].max * 1e3);
		cli_table_cell(&t, "%.2f", r[i].gbps);
		cli_table_cell(&t, "%s", r[i].writes ? cli_bytes(s, r[i].backlog_bytes) : "");
		if (r[i].writes)
			cli_table_cell(&t, "%.0f", r[i].drain_s * 1e3);
		else
			cli_table_cell(&t, "%s", "");
		if (r[i].writes)
			cli_table_cell(&t, "%.3f", r[i].p99 / r[i - 1].p99);
		else
			cli_table_cell(&t, "%s", "");
	}
	cli_table_print(&t, stdout, true);
	printf("\nbacklog: bytes saved but not yet written when the last restore ended and a decode phase of %g ms began; drained: "
	       "time until they were\n",
	       DECODE_NS * 1e-6);
	return cli_finish(CLI_OK);
}

/* In each round each arm serves its part of the restores. The order of the arms rotates by one per round. */
static int measure(struct pipeline_bench *b, struct arm_result *r, struct samples *s)
{
	int rc = CLI_OK;

	for (size_t round = 0; !rc && round < b->repeat; round++)
		for (size_t i = 0; !rc && i < ARMS; i++) {
			struct arm_result *at = &r[(i + round) % ARMS];
			struct job job = {.set = &b->set, .arm = {.strategy = at->strategy, .writes = at->writes, .run = ++b->run}};
			char what[64];

			job.restores = (uint32_t)((b->args->restores + b->repeat - 1) / b->repeat);
			memset(s, 0, sizeof(*s));
			snprintf(what, sizeof(what), "%s%s", tn_strategy_name(at->strategy), at->writes ? ", with writes" : "");
			rc = pipeline_fork(b, what, run_job, &job, s, sizeof(*s));
			if (!rc)
				add(at, s);
		}
	for (size_t i = 0; !rc && i < ARMS; i++) {
		sum_up(&r[i]);
		if (!r[i].writes)
			pipeline_reads(b, r[i].p50, pipeline_io_s(&b->set, &b->device, blocks_of(&b->set)) * b->set.geometry.layers);
	}
	return rc;
}

int pipeline_restores(struct pipeline_bench *b)
{
	struct arm_result *r = calloc(ARMS, sizeof(*r));
	struct samples *s = calloc(1, sizeof(*s));
	int rc = r && s ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");

	for (size_t i = 0; !rc && i < ARMS; i++) {
		r[i].strategy = i < 2 ? TN_STRATEGY_TENUTO : TN_STRATEGY_UNSCHEDULED;
		r[i].writes = i % 2;
		r[i].latency = calloc(b->args->restores + b->repeat, sizeof(double));
		if (!r[i].latency)
			rc = cli_error(CLI_ENVIRONMENT, "out of memory");
	}
	pipeline_begin(b, "restores", ARMS * b->repeat);
	if (!rc)
		rc = measure(b, r, s);
	cli_progress_end(&b->progress);
	if (!rc)
		rc = b->args->json ? cli_json(as_json(b, r)) : print(b, r);
	for (size_t i = 0; r && i < ARMS; i++)
		free(r[i].latency);
	free(r);
	free(s);
	return rc;
}
