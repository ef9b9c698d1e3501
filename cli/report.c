/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay --report`: one self-contained HTML page about a run.
 *
 * It shows what the run measured, and what other policies and capacities would have done with the same trace, by
 * simulation of the index.
 */
#include "replay.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/policy_sim.h"
#include "svg.h"

#define CAPACITIES_MAX 24
#define POLICIES 4

static const struct {
	const char *name;  /* its name in the simulation */
	const char *shown;
	int color;
} policies[POLICIES] = {{"belady", "Belady (knows the future)", 4},
			{"default", "Tenuto default", 1},
			{"s3fifo", "S3-FIFO", 3},
			{"lru", "LRU", 2}};

static void tile(FILE *f, const char *value, const char *what)
{
	fputs("<div class=\"tile\"><b>", f);
	svg_text(f, value);
	fputs("</b><span>", f);
	svg_text(f, what);
	fputs("</span></div>\n", f);
}

static void tiles(FILE *f, const struct replay_args *a, const struct replay_result *r)
{
	char b[96], n[32], d[32];

	fputs("<div class=\"tiles\">\n", f);
	snprintf(b, sizeof(b), "%.2f %%", r->blocks ? 100.0 * (double)r->hit_blocks / (double)r->blocks : 0);
	tile(f, b, "hit rate");
	snprintf(b, sizeof(b), "of %s blocks hit", cli_number(d, r->blocks));
	tile(f, cli_number(n, r->hit_blocks), b);
	tile(f, cli_number(n, r->requests), "requests");
	tile(f, cli_number(n, r->blocks_written), "blocks written");
	tile(f, cli_number(n, r->blocks_unread), "of them never read back");
	if (!a->no_io) {
		snprintf(b, sizeof(b), "%.2f GB/s",
			 r->read_seconds > 0 ? (double)r->bytes_read * 1e-9 / r->read_seconds : 0);
		tile(f, b, "read, while loading");
		snprintf(b, sizeof(b), "%.2f GB/s",
			 r->write_seconds > 0 ? (double)r->bytes_written * 1e-9 / r->write_seconds : 0);
		tile(f, b, a->host_blocks ? "written, over the run" : "written, while saves are under way");
		tile(f, cli_number(n, r->verified_objects), "objects verified");
		tile(f, cli_number(n, r->wrong_objects + r->corrupt_detected), "objects corrupt");
	}
	snprintf(b, sizeof(b), "%.1f s", r->cpu_seconds);
	snprintf(n, sizeof(n), "of CPU in %s", cli_duration(d, r->wall_seconds));
	tile(f, b, n);
	fputs("</div>\n", f);
}

/* ---- over time --------------------------------------------------------------------------------- */

/* The samples to draw, at increasing arrival times. Of samples with equal times the last one: it includes the others. */
static size_t samples_by_arrival(const struct replay_result *r, const struct replay_sample **out)
{
	size_t n = 0;

	for (size_t i = 0; i < r->samples; i++) {
		if (!n || r->sample[i].trace_s > out[n - 1]->trace_s)
			n++;
		out[n - 1] = &r->sample[i];
	}
	return n;
}

static void hits_over_time(FILE *f, const struct replay_result *r)
{
	const struct replay_sample *sample[REPLAY_SAMPLES + 1];
	double x[REPLAY_SAMPLES + 1], each[REPLAY_SAMPLES + 1], sum[REPLAY_SAMPLES + 1];
	struct replay_sample last = {0};
	size_t n = samples_by_arrival(r, sample);
	bool timed = n > 1; /* a trace may give all requests one time */
	const struct svg_series s[] = {
		{.name = "in this interval", .color = 3, .x = x, .y = each, .n = timed ? n : r->samples},
		{.name = "since the start", .color = 1, .x = x, .y = sum, .n = timed ? n : r->samples},
	};
	const struct svg_chart c = {
		.title = timed ? "Hit rate over time" : "Hit rate over the requests",
		.x_label = timed ? "arrival time in the trace (min)" : "requests served (they all arrive at one time)",
		.y_label = "hit rate",
		.y_percent = true,
		.series = s,
		.nseries = 2,
	};

	for (size_t i = 0; i < s[0].n; i++) {
		const struct replay_sample *p = timed ? sample[i] : &r->sample[i];
		uint64_t blocks = p->blocks - last.blocks;

		x[i] = timed ? p->trace_s / 60 : (double)p->requests;
		each[i] = blocks ? (double)(p->hit_blocks - last.hit_blocks) / (double)blocks : 0;
		sum[i] = p->blocks ? (double)p->hit_blocks / (double)p->blocks : 0;
		last = *p;
	}
	svg_lines(f, &c);
}

static void bandwidth_over_time(FILE *f, const struct replay_result *r)
{
	double x[REPLAY_SAMPLES + 1], in[REPLAY_SAMPLES + 1], out[REPLAY_SAMPLES + 1];
	struct replay_sample last = {0};
	size_t n = 0;
	struct svg_series s[] = {
		{.name = "read", .color = 1, .x = x, .y = in},
		{.name = "written", .color = 2, .x = x, .y = out},
	};
	const struct svg_chart c = {
		.title = "Bandwidth over time",
		.note = "Bytes moved in each interval, over its whole length",
		.x_label = "time of the run (s)",
		.y_label = "GB/s",
		.series = s,
		.nseries = 2,
	};

	for (size_t i = 0; i < r->samples; i++) {
		const struct replay_sample *p = &r->sample[i];
		double dt = p->wall_s - last.wall_s;

		if (dt <= 0)
			continue;
		x[n] = p->wall_s;
		in[n] = (double)(p->bytes_read - last.bytes_read) * 1e-9 / dt;
		out[n++] = (double)(p->bytes_written - last.bytes_written) * 1e-9 / dt;
		last = *p;
	}
	s[0].n = s[1].n = n;
	svg_lines(f, &c);
}

/* ---- what others would have done --------------------------------------------------------------- */

static int simulate(const struct trace *t, const char *policy, uint64_t capacity, uint64_t seed,
		    struct tn_policy_sim_stats *stats)
{
	struct tn_policy_sim_opts o;
	struct tn_policy_sim *sim = NULL;
	int rc;

	if (!strcmp(policy, "belady"))
		return tn_policy_sim_belady(t->ids, t->length, t->requests, capacity, NULL, stats);
	tn_policy_sim_opts_init(&o);
	o.policy = policy;
	o.capacity_blocks = capacity;
	o.max_request_blocks = t->longest;
	o.seed = seed;
	rc = tn_policy_sim_create(&o, &sim);
	for (size_t i = 0; !rc && i < t->requests; i++)
		rc = cli_interrupted() ? -ECANCELED : tn_policy_sim_request(sim, t->ids + t->first[i], t->length[i], trace_partial(t, i), NULL);
	if (!rc)
		tn_policy_sim_stats(sim, stats);
	tn_policy_sim_destroy(sim);
	return rc;
}

/* 1, 2, 5 times powers of ten, from a two-hundredth of the distinct blocks to all of them, and the run's own. */
static size_t choose_capacities(const struct trace *t, uint64_t own, uint64_t *out)
{
	static const uint64_t factor[] = {1, 2, 5};
	size_t n = 0;

	for (uint64_t p = 1; p < t->distinct && n < CAPACITIES_MAX - 2; p *= 10)
		for (size_t i = 0; i < 3; i++) {
			uint64_t v = factor[i] * p;

			if (v < t->distinct && v >= (t->distinct + 199) / 200 && v >= 2) {
				if (own && own < v && (!n || own > out[n - 1]))
					out[n++] = own;
				out[n++] = v;
			}
		}
	if (own && own < t->distinct && (!n || own > out[n - 1]))
		out[n++] = own;
	out[n++] = t->distinct;
	return n;
}

static int hits_by_capacity(FILE *f, const struct trace *t, const struct replay_args *a)
{
	uint64_t capacity[CAPACITIES_MAX];
	double x[CAPACITIES_MAX], y[POLICIES][CAPACITIES_MAX];
	struct svg_series s[POLICIES];
	char label[64];
	struct svg_chart c = {
		.title = "Hit rate against capacity",
		.note = "The whole trace, simulated on the index; point at a dot for its value",
		.x_label = label,
		.y_label = "hit rate",
		.x_log = true,
		.y_percent = true,
		.series = s,
		.nseries = POLICIES,
	};
	size_t n = choose_capacities(t, a->capacity_blocks, capacity);
	struct cli_progress p;
	int rc = 0;

	snprintf(label, sizeof(label), "capacity (blocks of %u token%s)", t->block_tokens, t->block_tokens == 1 ? "" : "s");
	cli_progress_begin(&p, "report", n * POLICIES);
	for (size_t k = 0; k < POLICIES; k++) {
		for (size_t i = 0; !rc && i < n; i++) {
			struct tn_policy_sim_stats st;

			rc = simulate(t, policies[k].name, capacity[i], a->seed, &st);
			x[i] = (double)capacity[i];
			y[k][i] = rc ? 0 : (double)st.hits / (double)st.blocks;
			cli_progress_step(&p, k * n + i + 1);
		}
		s[k] = (struct svg_series){.name = policies[k].shown, .color = policies[k].color,
					   .dashed = k == 0, .dots = true, .x = x, .y = y[k], .n = n};
	}
	cli_progress_end(&p);
	if (!rc)
		svg_lines(f, &c);
	return rc;
}

static void set_bar(struct svg_bar *b, const char *name, uint64_t written, uint64_t unread, uint64_t block_bytes)
{
	char w[32];

	b->name = name;
	b->part[0] = (double)(written - unread) * (double)block_bytes;
	b->part[1] = (double)unread * (double)block_bytes;
	snprintf(b->text, sizeof(b->text), "%s, %.0f %% of it in vain", cli_bytes(w, (double)written * (double)block_bytes),
		 written ? 100.0 * (double)unread / (double)written : 0);
}

static int print_waste(FILE *f, const struct trace *t, const struct replay_args *a, const struct replay_result *r)
{
	static const char *const parts[2] = {"read back at least once", "never read back"};
	struct svg_bar bars[POLICIES];
	char note[192], b[32];
	size_t n = 0;
	int rc = 0;

	set_bar(&bars[n++], "this run", r->blocks_written, r->blocks_unread, r->block_bytes);
	for (size_t k = 1; !rc && k < POLICIES; k++) {
		struct tn_policy_sim_stats st;

		rc = simulate(t, policies[k].name, a->capacity_blocks, a->seed, &st);
		if (!rc)
			set_bar(&bars[n++], policies[k].shown, st.inserted, st.unread, r->block_bytes);
	}
	if (rc)
		return rc;
	snprintf(note, sizeof(note), "Blocks of %s; policies simulated at the run's capacity%s",
		 cli_bytes(b, (double)r->block_bytes), r->recovered_blocks ? ", on an empty store" : "");
	svg_bars(f, "Bytes written that were never read back", note, parts, bars, n);
	return 0;
}

static int page(FILE *f, const struct replay_args *a, const char *trace_name, const struct trace *t,
		const struct replay_result *r, const struct replay_model *m)
{
	const char *slash = strrchr(trace_name, '/');
	char n[32], b[32];
	int rc;

	svg_page_begin(f, "Tenuto replay");
	svg_text(f, slash ? slash + 1 : trace_name);
	fputs(" &middot; policy ", f);
	svg_text(f, a->policy);
	fprintf(f, " &middot; capacity %s &middot; blocks of %s &middot; %s</p>\n",
		r->capacity_blocks ? cli_number(n, r->capacity_blocks) : "unlimited", cli_bytes(b, (double)r->block_bytes),
		a->no_io ? "index only" : "real bytes");
	if (r->recovered_blocks)
		fprintf(f, "<p class=\"sub\">this run began with the blocks of an earlier one: %s</p>\n",
			cli_number(n, r->recovered_blocks));
	tiles(f, a, r);
	fputs("<div class=\"charts\">\n", f);
	rc = m ? replay_model_report(m, f) : 0;
	if (rc)
		return rc;
	hits_over_time(f, r);
	if (!a->no_io)
		bandwidth_over_time(f, r);
	rc = hits_by_capacity(f, t, a);
	/* With a capacity for all blocks, every policy writes each block once. */
	if (!rc && a->capacity_blocks && a->capacity_blocks < t->distinct)
		rc = print_waste(f, t, a, r);
	fputs("</div>\n", f);
	svg_page_end(f);
	return rc;
}

int report_write(const struct replay_args *a, const char *trace_name, const struct trace *t,
		 const struct replay_result *r, const struct replay_model *m)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes); /* the page is written whole or not at all, so first to memory */
	int rc = f ? page(f, a, trace_name, t, r, m) : -ENOMEM;

	if (f && fclose(f))
		rc = rc ? rc : -ENOMEM;
	if (rc) {
		free(text);
		return cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted; no report was written")
					 : cli_fail(rc, "report");
	}
	f = fopen(a->report, "we");
	if (!f || fwrite(text, 1, bytes, f) != bytes || fflush(f))
		rc = cli_error(CLI_ENVIRONMENT, "--report %s: %s", a->report, strerror(errno));
	if (f)
		fclose(f);
	free(text);
	return rc;
}
