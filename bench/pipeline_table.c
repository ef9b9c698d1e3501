/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of `tenuto bench pipeline`: every strategy at every hit rate, with and without writes.
 *
 * Each round runs all strategies, in another order, so that a drifting machine harms all alike. The rows are medians over
 * the rounds.
 */
#include "pipeline.h"

#include <math.h>
#include <stdlib.h>

struct table {
	struct pipeline_bench *b;
	struct pipeline_run *runs; /* per (hit, writes, strategy) and round */
};

static struct pipeline_run *run_at(const struct table *t, size_t hit, bool writes, uint32_t strategy, size_t round)
{
	return &t->runs[((hit * 2 + writes) * PIPELINE_MEASURED + strategy) * t->b->repeat + round];
}

/* The run that would give the same result: without hits all strategies but tenuto are alike, and recompute never hits. */
static struct pipeline_run *equal_run(const struct table *t, size_t hit, bool writes, uint32_t s, size_t round)
{
	if (s == TN_STRATEGY_RECOMPUTE)
		return hit ? run_at(t, 0, writes, s, round) : NULL;
	return t->b->hit[hit] == 0 && s != TN_STRATEGY_TENUTO ? run_at(t, hit, writes, TN_STRATEGY_RECOMPUTE, round) : NULL;
}

static int measure_one(struct table *t, size_t hit, bool writes, uint32_t s, size_t round)
{
	struct pipeline_arm arm = {.strategy = s, .blocks = t->b->hit[hit], .writes = writes};

	return equal_run(t, hit, writes, s, round) ? CLI_OK : pipeline_child(t->b, &arm, run_at(t, hit, writes, s, round));
}

/* The order of the strategies rotates by one per round. */
static int measure_round(struct table *t, size_t round)
{
	const struct pipeline_bench *b = t->b;
	int rc = CLI_OK;

	for (size_t hit = 0; !rc && hit < b->nhits; hit++)
		for (int writes = 0; !rc && writes < 2; writes++)
			for (size_t i = 0; !rc && b->writes[writes] && i < PIPELINE_MEASURED; i++)
				rc = measure_one(t, hit, writes, (uint32_t)(i + round) % PIPELINE_MEASURED, round);
	for (size_t hit = 0; !rc && hit < b->nhits; hit++)
		for (int writes = 0; writes < 2; writes++)
			for (uint32_t s = 0; s < PIPELINE_MEASURED; s++) {
				struct pipeline_run *same = equal_run(t, hit, writes, s, round);

				if (same)
					*run_at(t, hit, writes, s, round) = *same;
			}
	return rc;
}

static int add_row(struct table *t, uint32_t strategy, size_t hit, bool writes)
{
	struct pipeline_bench *b = t->b;
	double v[7][PIPELINE_REPEAT_MAX];
	size_t n = b->repeat;
	struct pipeline_row *w = &b->result->row[b->result->rows++];
	struct pipeline_run ideal = {.rc = 0};

	*w = (struct pipeline_row){.strategy = strategy, .blocks = b->hit[hit], .writes = writes,
				   .hit_rate = (double)b->hit[hit] / b->set.blocks};
	if (strategy == TN_STRATEGY_IDEAL && pipeline_ideal(&b->set, &b->device, b->hit[hit], &ideal))
		return CLI_PROBLEM;
	for (size_t i = 0; i < n; i++) {
		const struct pipeline_run *run = strategy == TN_STRATEGY_IDEAL ? &ideal : run_at(t, hit, writes, strategy, i);

		v[0][i] = run->ttft;
		v[1][i] = run->compute;
		v[2][i] = run->bubble;
		v[3][i] = (double)run->bytes_read * 1e-9 / run->ttft;
		v[4][i] = (double)run->bytes_written * 1e-9 / run->ttft;
		v[5][i] = run->cpu;
		v[6][i] = run->late;
	}
	w->ttft = bench_median(v[0], n); /* which sorts */
	w->ttft_p99 = v[0][(size_t)ceil(0.99 * (double)n) - 1];
	w->compute = bench_median(v[1], n);
	w->bubble = bench_median(v[2], n);
	w->read_gbps = bench_median(v[3], n);
	w->write_gbps = bench_median(v[4], n);
	w->cpu = bench_median(v[5], n);
	w->late = bench_median(v[6], n);
	if (strategy == TN_STRATEGY_LOAD_THEN_COMPUTE && !writes && w->blocks)
		pipeline_reads(b, w->bubble, pipeline_io_s(&b->set, &b->device, w->blocks) * b->set.geometry.layers);
	return CLI_OK;
}

/* The whole table, with the present service of the drive. */
static int measure_table(struct pipeline_bench *b)
{
	struct table t = {.b = b, .runs = calloc(b->nhits * 2 * PIPELINE_MEASURED * b->repeat, sizeof(*t.runs))};
	size_t each = b->nhits * (PIPELINE_MEASURED - 1) + 1 - (b->hit[0] ? 0 : 2);
	int rc = t.runs ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");

	pipeline_begin(b, "table", b->repeat * each * (size_t)(b->writes[0] + b->writes[1]));
	for (size_t round = 0; !rc && round < b->repeat; round++)
		rc = measure_round(&t, round);
	cli_progress_end(&b->progress);
	for (int writes = 0; !rc && writes < 2; writes++)
		for (size_t hit = 0; !rc && b->writes[writes] && hit < b->nhits; hit++)
			for (uint32_t s = 0; !rc && s < TN_STRATEGIES; s++)
				rc = add_row(&t, s, hit, writes);
	free(t.runs);
	return rc;
}

int pipeline_table(struct pipeline_bench *b)
{
	int rc = CLI_OK;

	for (int i = 0; !rc && i < PIPELINE_SERVICES; i++) {
		if (!b->services[i])
			continue;
		pipeline_serve_as(b, (enum pipeline_service)i);
		rc = measure_table(b);
	}
	if (!rc && b->args->report)
		rc = pipeline_report(b, b->args->report);
	return rc ? rc : b->args->json ? cli_json(pipeline_json(b)) : pipeline_print(b);
}
