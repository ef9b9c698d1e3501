/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline --mode learn`: how much a wrong slack table costs, and for how long.
 *
 * Most of each request's prompt hits, and computing a part of the hits again is quicker than reading all of them: tn_plan
 * splits the prompt by the table. Each arm begins with another table (the right one, times three, a third of it, none) and
 * serves the same requests. The cache corrects its table by the times that it observes.
 */
#include "pipeline.h"

#include <stdlib.h>
#include <string.h>

#define ARMS 4u
/* Hits in per cent of the prompt, request after request. */
static const uint32_t hits[] = {100, 90, 80, 95, 70, 100};
#define HITS (sizeof(hits) / sizeof(hits[0]))
#define NEAR 1.05 /* times the right table's TTFT */

static const struct {
	const char *name;
	double factor; /* 0: no table */
} tables[ARMS] = {{"right", 1}, {"times_3", 3}, {"a_third", 1.0 / 3}, {"none", 0}};

struct job {
	const struct pipeline_set *set;
	struct tn_slack *table;
	uint32_t requests;
};

struct served {
	struct pipeline_run run;
	double ttft[PIPELINE_REQUESTS_MAX];
	uint32_t restored[PIPELINE_REQUESTS_MAX];
};

/* Hits of the n-th request, counted from 0. */
static uint32_t hit_blocks(const struct pipeline_set *set, uint32_t n)
{
	return set->blocks * hits[n % HITS] / 100;
}

static void run_job(const void *arg, void *out)
{
	const struct job *job = arg;
	struct served *s = out;
	struct pipeline_rig rig;
	int rc = request_open(&rig, job->set, "slack", job->table, &s->run);

	for (uint32_t i = 0; !rc && i < job->requests; i++) {
		double estimate;

		rc = request_plan(&rig, hit_blocks(job->set, i), &s->restored[i], &estimate);
		if (!rc)
			rc = request_serve(&rig, TN_STRATEGY_TENUTO, s->restored[i]);
		s->ttft[i] = s->run.ttft;
		pipeline_done(&s->run, i + 1, job->requests);
	}
	rig_close(&rig);
}

/* ---- the result -------------------------------------------------------------------------------- */

struct learned {
	double ttft[PIPELINE_REQUESTS_MAX]; /* median over the rounds, per request */
	double restored[PIPELINE_REQUESTS_MAX];
	uint32_t near_after; /* requests after which all others are near the right table's TTFT */
};

static void sum_up(const struct pipeline_bench *b, const struct served *s, struct learned *l)
{
	uint32_t n = (uint32_t)b->args->requests;
	double v[PIPELINE_REPEAT_MAX];

	for (uint32_t arm = 0; arm < ARMS; arm++)
		for (uint32_t i = 0; i < n; i++) {
			for (size_t round = 0; round < b->repeat; round++)
				v[round] = s[round * ARMS + arm].ttft[i];
			l[arm].ttft[i] = bench_median(v, b->repeat);
			for (size_t round = 0; round < b->repeat; round++)
				v[round] = s[round * ARMS + arm].restored[i];
			l[arm].restored[i] = bench_median(v, b->repeat);
		}
	for (uint32_t arm = 0; arm < ARMS; arm++) {
		l[arm].near_after = n;
		while (l[arm].near_after && l[arm].ttft[l[arm].near_after - 1] <= NEAR * l[0].ttft[l[arm].near_after - 1])
			l[arm].near_after--;
	}
}

static json_t *as_json(const struct pipeline_bench *b, const struct learned *l)
{
	json_t *rows = json_array(), *hit = json_array();

	for (uint32_t i = 0; i < b->args->requests; i++)
		json_array_append_new(hit, json_integer(hit_blocks(&b->set, i)));
	for (uint32_t arm = 0; arm < ARMS; arm++) {
		json_t *ttft = json_array(), *restored = json_array();

		for (uint32_t i = 0; i < b->args->requests; i++) {
			json_array_append_new(ttft, json_real(l[arm].ttft[i] * 1e3));
			json_array_append_new(restored, json_real(l[arm].restored[i]));
		}
		json_array_append_new(rows, json_pack("{s:s, s:o, s:o, s:I}", "table", tables[arm].name, "ttft_ms", ttft,
						      "restored_blocks", restored, "near_after",
						      (json_int_t)l[arm].near_after));
	}
	return json_pack("{s:o, s:o, s:f, s:o}", "rows", rows, "hit_blocks", hit, "near", NEAR, "settings", pipeline_settings(b));
}

static int print(const struct pipeline_bench *b, const struct learned *l)
{
	static const uint32_t shown[] = {1, 2, 3, 5, 10, 20, 50};
	const bool left[CLI_COLUMNS_MAX] = {true};
	uint32_t n = 0;
	struct cli_table t;

	while (n < sizeof(shown) / sizeof(shown[0]) && shown[n] <= b->args->requests)
		n++;
	pipeline_print_head(b);
	printf("TTFT of the n-th request after opening, in ms, and over that with the right table; %zu run%s a row, medians\n\n",
	       b->repeat, b->repeat == 1 ? "" : "s");
	cli_table_init(&t, n + 2, left);
	cli_table_cell(&t, "table");
	for (uint32_t i = 0; i < n; i++)
		cli_table_cell(&t, "%u", shown[i]);
	cli_table_cell(&t, "within 5 %% after");
	cli_table_cell(&t, "prompt in store");
	for (uint32_t i = 0; i < n; i++)
		cli_table_cell(&t, "%.0f %%", 100.0 * hit_blocks(&b->set, shown[i] - 1) / b->set.blocks);
	cli_table_cell(&t, "%s", "");
	cli_table_cell(&t, "and restored");
	for (uint32_t i = 0; i < n; i++)
		cli_table_cell(&t, "%.0f %%", 100.0 * l[0].restored[shown[i] - 1] / b->set.blocks);
	cli_table_cell(&t, "%s", "");
	for (uint32_t arm = 0; arm < ARMS; arm++) {
		cli_table_cell(&t, "%s", tables[arm].name);
		for (uint32_t i = 0; i < n; i++)
			if (arm == 0)
				cli_table_cell(&t, "%.1f", l[0].ttft[shown[i] - 1] * 1e3);
			else
				cli_table_cell(&t, "x %.3f", l[arm].ttft[shown[i] - 1] / l[0].ttft[shown[i] - 1]);
		cli_table_cell(&t, "%u requests", l[arm].near_after);
	}
	cli_table_print(&t, stdout, true);
	putchar('\n');
	cli_wrap(stdout, 0, "Requests differ in how much of their prompt is in the store; the rest is computed, which takes its time with any "
		 "table. \"and restored\" is what the right table chose: where reading more would take longer, that is computed, too.");
	return cli_finish(CLI_OK);
}

/* The order of arms moves on by one each round. */
static int measure(struct pipeline_bench *b, struct served *s)
{
	int rc = CLI_OK;

	for (size_t round = 0; !rc && round < b->repeat; round++)
		for (uint32_t i = 0; !rc && i < ARMS; i++) {
			uint32_t arm = (uint32_t)(i + round) % ARMS;
			struct job job = {.set = &b->set, .requests = (uint32_t)b->args->requests};
			struct served *at = &s[round * ARMS + arm];
			char what[32];

			snprintf(what, sizeof(what), "table %s", tables[arm].name);
			if (tables[arm].factor > 0)
				rc = pipeline_slack_scaled(&b->set, b->set.slack, tables[arm].factor, &job.table);
			if (!rc)
				rc = pipeline_fork(b, what, run_job, &job, at, sizeof(*at));
			tn_slack_destroy(job.table);
		}
	return rc;
}

int pipeline_learn(struct pipeline_bench *b)
{
	struct served *s = calloc(ARMS * b->repeat, sizeof(*s));
	struct learned *l = calloc(ARMS, sizeof(*l));
	int rc = s && l ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");

	pipeline_begin(b, "requests", ARMS * b->repeat);
	if (!rc)
		rc = measure(b, s);
	cli_progress_end(&b->progress);
	if (!rc) {
		sum_up(b, s, l);
		rc = b->args->json ? cli_json(as_json(b, l)) : print(b, l);
	}
	free(s);
	free(l);
	return rc;
}
