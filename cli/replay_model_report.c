/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's part of `tenuto replay --report`: a table of the strategies, how TTFT spreads at the rate asked for, how its
 * p90 grows with the rate, and how much of the GPU's time is waiting for I/O.
 */
#include "replay_model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "svg.h"

#define SHARES 100u /* points of a distribution */
#define RATES 24u   /* points of a curve */
#define RATE_MOST 1.2 /* the highest rate, as a multiple of the most that the GPU can serve */
#define RATE_LESS 0.85
#define RATE_TRIES 40 /* bounds the search: requests that come at one moment wait for each other at any rate */
#define TALL 3.0      /* a curve is drawn up to so many times the TTFT of a prompt alone */
#define TALLEST 20.0  /* or up to the SLO, unless the SLO is higher than this */

static const int colors[TN_STRATEGIES] = {5, 2, 3, 1, 4};

static struct svg_series series(uint32_t strategy, const double *x, const double *y, size_t n)
{
	return (struct svg_series){.name = tn_strategy_name(strategy), .color = colors[strategy],
				   .dashed = strategy == TN_STRATEGY_IDEAL, .x = x, .y = y, .n = n};
}

/* ---- the table ---------------------------------------------------------------------------------- */

static void cell(FILE *f, const char *text)
{
	fputs("<td>", f);
	svg_text(f, text);
	fputs("</td>", f);
}

static void row(FILE *f, const struct replay_model *m, uint32_t s)
{
	const struct model_row *r = &m->row[s];
	const struct model_outcome *p = &r->played;
	const double ms[] = {p->ttft_ms.p50, p->ttft_ms.p90, p->ttft_ms.p99, r->alone_ms.p90,
			     p->bubble_ms.p50, p->bubble_ms.p90, p->bubble_ms.p99};
	char text[MODEL_TEXT];

	fprintf(f, "<tr><td>%s</td>", tn_strategy_name(s));
	for (size_t i = 0; i < sizeof(ms) / sizeof(ms[0]); i++)
		cell(f, model_ms_text(text, ms[i]));
	fprintf(f, "<td>%.1f %%</td><td>%.0f %%</td>", p->compute_s > 0 ? 100 * p->bubble_s / p->compute_s : 0, 100 * p->busy);
	cell(f, cli_number(text, p->restored));
	fprintf(f, "<td>%.4f</td>", model_dollars(m, s));
	if (m->slo_ms > 0)
		cell(f, model_rate_text(m, r, text));
	fputs("</tr>\n", f);
}

static void table(FILE *f, const struct replay_model *m)
{
	fputs("<div class=\"scroll\"><table>\n<tr><th>strategy</th><th>TTFT p50</th><th>p90</th><th>p99</th><th>p90 alone</th>"
	      "<th>bubble p50</th><th>p90</th><th>p99</th><th>of compute</th><th>GPU busy</th><th>blocks restored</th><th>$ per Mtoken</th>", f);
	if (m->slo_ms > 0)
		fputs("<th>largest rate</th>", f);
	fputs("</tr>\n", f);
	for (uint32_t s = 0; s < TN_STRATEGIES; s++)
		row(f, m, s);
	fputs("</table></div>\n", f);
}

/* ---- charts ------------------------------------------------------------------------------------- */

/* The share of requests whose first token is there after a time, by time. */
static int distribution(FILE *f, const struct replay_model *m, uint64_t *scratch)
{
	double x[TN_STRATEGIES][SHARES], y[SHARES];
	struct svg_series s[TN_STRATEGIES];
	char title[96] = "Time to first token at the trace's moments";
	struct svg_chart c = {
		.title = title,
		.note = "Waiting for the requests before it included",
		.x_label = "time to first token (s)",
		.y_label = "share of requests",
		.x_log = true,
		.y_percent = true,
		.y_max = 1,
		.series = s,
		.nseries = TN_STRATEGIES,
	};

	if (m->trace_per_s)
		snprintf(title, sizeof(title), "Time to first token at %.3g requests per second", m->factor * m->trace_per_s);
	for (uint32_t k = 0; k < TN_STRATEGIES; k++) {
		struct model_outcome o;
		int rc = model_play(m, k, m->factor, scratch, &o);

		if (rc)
			return rc;
		for (size_t i = 0; i < SHARES; i++) {
			y[i] = (double)(i + 1) / SHARES;
			x[k][i] = m->sort[(size_t)ceil(y[i] * (double)m->n) - 1] * 1e-3;
		}
		s[k] = series(k, x[k], y, SHARES);
	}
	svg_lines(f, &c);
	return 0;
}

struct curve {
	double x[RATES], y[RATES];
	size_t n;
};

/* p90 in s, by rate, up to the point where the curve leaves the chart. */
static int compute_curve(const struct replay_model *m, uint32_t strategy, const double *factor, double y_max, uint64_t *scratch,
		  struct curve *c)
{
	for (c->n = 0; c->n < RATES;) {
		struct model_outcome o;
		int rc = cli_interrupted() ? -ECANCELED : model_play(m, strategy, factor[c->n], scratch, &o);
		size_t i = c->n++;

		if (rc)
			return rc;
		c->x[i] = factor[i] * m->trace_per_s;
		c->y[i] = o.ttft_ms.p90 * 1e-3;
		if (c->y[i] <= y_max)
			continue;
		if (i) /* where the line crosses the edge */
			c->x[i] = c->x[i - 1] + (c->x[i] - c->x[i - 1]) * (y_max - c->y[i - 1]) / (c->y[i] - c->y[i - 1]);
		c->y[i] = y_max;
		break;
	}
	return 0;
}

/* Chooses rates up to the one at which the last curve leaves the chart. */
static int choose_rates(const struct replay_model *m, uint64_t *scratch, double *factor, double *y_max)
{
	double alone = 0, gpu_s = INFINITY, last;

	for (uint32_t k = 0; k < TN_STRATEGIES; k++) {
		alone = fmax(alone, m->row[k].alone_ms.p90);
		gpu_s = fmin(gpu_s, m->row[k].alone_ms.mean * 1e-3);
	}
	*y_max = fmax(TALL * alone, fmin(1.25 * m->slo_ms, TALLEST * alone)) * 1e-3;
	last = RATE_MOST / gpu_s / m->trace_per_s;
	for (size_t i = 0; i < RATE_TRIES; i++, last *= RATE_LESS) {
		struct model_outcome o;
		int rc = model_play(m, TN_STRATEGY_IDEAL, RATE_LESS * last, scratch, &o);

		if (rc)
			return rc;
		if (o.ttft_ms.p90 * 1e-3 <= *y_max)
			break;
	}
	for (size_t i = 0; i < RATES; i++)
		factor[i] = last * (double)(i + 1) / RATES;
	return 0;
}

static int against_rate(FILE *f, const struct replay_model *m, uint64_t *scratch)
{
	struct curve curve[TN_STRATEGIES];
	struct svg_series s[TN_STRATEGIES + 1];
	double factor[RATES], slo_x[2], slo_y[2] = {m->slo_ms * 1e-3, m->slo_ms * 1e-3};
	char slo[48];
	struct svg_chart c = {
		.title = "p90 of time to first token against the request rate",
		.note = "A line that leaves the chart at its top: requests wait for each other",
		.x_label = "requests per second",
		.y_label = "p90 (s)",
		.series = s,
	};
	int rc = choose_rates(m, scratch, factor, &c.y_max);

	for (uint32_t k = 0; !rc && k < TN_STRATEGIES; k++) {
		rc = compute_curve(m, k, factor, c.y_max, scratch, &curve[k]);
		s[c.nseries] = series(k, curve[k].x, curve[k].y, curve[k].n);
		s[c.nseries++].dots = true;
	}
	if (m->slo_ms > 0 && slo_y[0] <= c.y_max) {
		slo_x[0] = factor[0] * m->trace_per_s;
		slo_x[1] = factor[RATES - 1] * m->trace_per_s;
		snprintf(slo, sizeof(slo), "asked for: %g ms", m->slo_ms);
		s[c.nseries++] = (struct svg_series){.name = slo, .color = 6, .dashed = true, .x = slo_x, .y = slo_y, .n = 2};
	}
	if (!rc)
		svg_lines(f, &c);
	return rc;
}

static void gpu_time(FILE *f, const struct replay_model *m)
{
	static const char *const parts[2] = {"computing", "waiting for I/O (bubble)"};
	struct svg_bar bars[TN_STRATEGIES];
	char d[32];

	for (uint32_t k = 0; k < TN_STRATEGIES; k++) {
		const struct model_outcome *p = &m->row[k].played;

		bars[k] = (struct svg_bar){.name = tn_strategy_name(k), .part = {p->compute_s, p->bubble_s}};
		snprintf(bars[k].text, sizeof(bars[k].text), "%s, bubble %.1f %%", cli_duration(d, p->compute_s + p->bubble_s),
			 p->compute_s > 0 ? 100 * p->bubble_s / p->compute_s : 0);
	}
	svg_bars(f, "What the GPU does with its time", "All requests together; the bubble as a share of compute", parts, bars,
		 TN_STRATEGIES);
}

/* ---- all together -------------------------------------------------------------------------------- */

static void paragraph(FILE *f, const char *text)
{
	if (!*text)
		return;
	fputs("<p class=\"note\">", f);
	svg_text(f, text);
	fputs("</p>\n", f);
}

int replay_model_report(const struct replay_model *m, FILE *f)
{
	uint64_t *scratch = calloc(MODEL_SCRATCH(m->geometry.layers), sizeof(*scratch));
	char text[MODEL_PARAGRAPH];
	int rc;

	if (!scratch)
		return -ENOMEM;
	fputs("<figure class=\"wide\">\n<h2>Time to first token (TTFT)</h2>\n", f);
	model_about(m, text);
	paragraph(f, text);
	model_about_device(m, text);
	paragraph(f, text);
	table(f, m);
	model_about_search(m, text);
	paragraph(f, text);
	model_about_cost(m, text);
	paragraph(f, text);
	model_about_drive(m, text);
	paragraph(f, text);
	fputs("</figure>\n", f);
	rc = distribution(f, m, scratch);
	if (!rc && m->trace_per_s)
		rc = against_rate(f, m, scratch);
	if (!rc)
		gpu_time(f, m);
	free(scratch);
	return rc;
}
