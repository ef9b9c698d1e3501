/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of the model of `tenuto replay`, as JSON and as tables.
 */
#include "replay_model.h"

#include <inttypes.h>
#include <stdarg.h>

static void set_real(json_t *o, const char *name, double v)
{
	json_object_set_new(o, name, json_real(v));
}

static void set_percentiles(json_t *o, const char *what, const struct model_percentiles *p)
{
	const struct {
		const char *name;
		double value;
	} each[] = {{"p50", p->p50}, {"p90", p->p90}, {"p99", p->p99}, {"mean", p->mean}};
	char name[48];

	for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		snprintf(name, sizeof(name), "%s_%s_ms", what, each[i].name);
		set_real(o, name, each[i].value);
	}
}

static json_t *row_json(const struct replay_model *m, size_t s)
{
	const struct model_row *r = &m->row[s];
	const struct model_outcome *p = &r->played;
	double dollars = model_dollars_at_slo(m, (uint32_t)s);
	json_t *o = json_object();

	json_object_set_new(o, "strategy", json_string(tn_strategy_name(s)));
	set_percentiles(o, "ttft", &p->ttft_ms);
	set_percentiles(o, "alone", &r->alone_ms);
	set_percentiles(o, "bubble", &p->bubble_ms);
	set_real(o, "bubble_share", p->compute_s > 0 ? p->bubble_s / p->compute_s : 0);
	set_real(o, "compute_seconds", p->compute_s);
	set_real(o, "bubble_seconds", p->bubble_s);
	set_real(o, "gpu_busy", p->busy);
	json_object_set_new(o, "restored_blocks", json_integer((json_int_t)p->restored));
	json_object_set_new(o, "read_bytes", json_integer((json_int_t)p->read_bytes));
	set_real(o, "backlog_max_bytes", p->backlog_max_bytes);
	set_real(o, "backlog_end_bytes", p->backlog_end_bytes);
	set_real(o, "dollars_per_mtoken", model_dollars(m, (uint32_t)s));
	if (!m->slo_ms)
		return o;
	json_object_set_new(o, "max_rate_factor", r->max_factor < 0 ? json_null() : json_real(r->max_factor));
	json_object_set_new(o, "max_requests_per_s", r->max_factor < 0 || !m->trace_per_s
							     ? json_null()
							     : json_real(r->max_factor * m->trace_per_s));
	json_object_set_new(o, "max_rate_p90_ms", r->max_factor ? json_real(r->max_p90_ms) : json_null());
	json_object_set_new(o, "over_rate_factor", r->over_factor > 0 ? json_real(r->over_factor) : json_null());
	json_object_set_new(o, "over_rate_p90_ms", r->over_factor > 0 ? json_real(r->over_p90_ms) : json_null());
	json_object_set_new(o, "rates_tried", json_integer(r->tries));
	json_object_set_new(o, "max_rate_dollars_per_mtoken", dollars > 0 ? json_real(dollars) : json_null());
	return o;
}

static json_t *paper_json(const struct model_paper *p)
{
	json_t *o = json_object(), *published = json_object(), *model = json_array();

	json_object_set_new(o, "source", json_string(MODEL_PAPER_SOURCE));
	json_object_set_new(o, "prefix_tokens", json_integer((json_int_t)MODEL_PAPER_PREFIX));
	json_object_set_new(o, "block_tokens", json_integer(p->block_tokens));
	json_object_set_new(o, "blocks", json_integer(p->blocks));
	json_object_set_new(o, "objects_a_layer", json_integer(p->objects));
	json_object_set_new(o, "object_bytes", json_integer(p->object_bytes));
	json_object_set_new(o, "layer_bytes", json_integer((json_int_t)p->layer_bytes));
	set_real(o, "hit_rate", p->hit_rate);
	set_real(published, "read_gbps", MODEL_PAPER_GBPS);
	set_real(published, "layer_ms", MODEL_PAPER_LAYER_MS);
	set_real(published, "crossover_hit_rate", MODEL_PAPER_CROSSOVER);
	set_real(published, "bubble_ms", MODEL_PAPER_BUBBLE_MS);
	json_object_set_new(o, "published", published);
	for (size_t i = 0; i < 2; i++) {
		const struct model_paper_at *a = &p->at[i];
		json_t *each = json_object();

		set_real(each, "read_gbps", a->read_gbps);
		set_real(each, "layer_ms", a->layer_ms);
		json_object_set_new(each, "hides_from_input_tokens",
				    a->hides_from_tokens ? json_integer((json_int_t)a->hides_from_tokens) : json_null());
		json_object_set_new(each, "crossover_hit_rate",
				    a->hides_from_tokens ? json_real(a->crossover) : json_null());
		set_real(each, "ttft_ms", a->ttft_ms);
		set_real(each, "bubble_ms", a->bubble_ms);
		json_array_append_new(model, each);
	}
	json_object_set_new(o, "model", model);
	return o;
}

json_t *replay_model_json(const struct replay_model *m)
{
	json_t *o = json_object(), *device = json_object(), *rows = json_array();

	json_object_set_new(o, "model", json_string(m->compute.model));
	json_object_set_new(o, "gpu", json_string(m->compute.gpu));
	json_object_set_new(o, "compute", json_string(m->compute.table ? "slack table" : "analytic"));
	json_object_set_new(device, "source", json_string(m->device.source));
	set_real(device, "read_gbps", m->device.read_bps * 1e-9);
	set_real(device, "write_gbps", m->device.write_bps * 1e-9);
	set_real(device, "mixed_gbps", m->device.mixed_bps * 1e-9);
	set_real(device, "latency_us", (double)m->device.latency_ns * 1e-3);
	set_real(device, "write_latency_us", (double)m->device.write_latency_ns * 1e-3);
	json_object_set_new(o, "device", device);
	set_real(o, "rate_factor", m->factor);
	json_object_set_new(o, "requests_per_s", m->trace_per_s ? json_real(m->factor * m->trace_per_s) : json_null());
	json_object_set_new(o, "requests_spread", json_integer((json_int_t)m->spread));
	json_object_set_new(o, "slo_ms", m->slo_ms > 0 ? json_real(m->slo_ms) : json_null());
	for (size_t s = 0; s < TN_STRATEGIES; s++)
		json_array_append_new(rows, row_json(m, s));
	json_object_set_new(o, "rows", rows);
	json_object_set_new(o, "cost", model_bill_json(m));
	if (m->paper)
		json_object_set_new(o, "paper", paper_json(m->paper));
	return o;
}

/* ---- text --------------------------------------------------------------------------------------- */

/* Short, so that all columns fit a terminal. */
char *model_ms_text(char *buf, double ms)
{
	if (ms < 1000)
		snprintf(buf, MODEL_TEXT, "%.*f ms", ms < 10 ? 1 : 0, ms);
	else
		snprintf(buf, MODEL_TEXT, "%.1f s", ms * 1e-3);
	return buf;
}

char *model_rate_text(const struct replay_model *m, const struct model_row *row, char *buf)
{
	double factor = row->max_factor;

	if (factor < 0)
		snprintf(buf, MODEL_TEXT, "no limit");
	else if (!(factor > 0))
		snprintf(buf, MODEL_TEXT, "none");
	else if (m->trace_per_s)
		snprintf(buf, MODEL_TEXT, "%.3g/s", factor * m->trace_per_s);
	else
		snprintf(buf, MODEL_TEXT, "%.3gx", factor);
	return buf;
}

void model_about(const struct replay_model *m, char *buf)
{
	char rate[64] = "", slo[64] = "";

	if (m->trace_per_s)
		snprintf(rate, sizeof(rate), " = %.3g requests per second", m->factor * m->trace_per_s);
	if (m->slo_ms > 0)
		snprintf(slo, sizeof(slo), "; rate: the largest with p90 within %g ms", m->slo_ms);
	snprintf(buf, MODEL_PARAGRAPH,
		 "Time to first token of %s on one %s (computed, no bytes moved) at %.3g times the trace's rate%s; alone: p90 without "
		 "the queue%s.", m->compute.model, m->compute.gpu, m->factor, rate, slo);
}

void model_about_device(const struct replay_model *m, char *buf)
{
	snprintf(buf, MODEL_PARAGRAPH, "Device: %s: reads %.3g, writes %.3g, both %.3g GB/s.", m->device.source,
		 m->device.read_bps * 1e-9, m->device.write_bps * 1e-9, m->device.mixed_bps * 1e-9);
}

void model_about_search(const struct replay_model *m, char *buf)
{
	const struct model_row *r = &m->row[TN_STRATEGY_TENUTO];
	char over[96] = "", at[MODEL_TEXT];
	size_t n;

	*buf = 0;
	if (!m->slo_ms)
		return;
	n = (size_t)snprintf(buf, MODEL_PARAGRAPH,
			     "The largest rate: the trace is played at its own rate, at twice or half of that and so on until one keeps the "
			     "p90 and one does not, then between them until they are 0.2 %% apart.");
	if (r->over_factor > 0 && r->max_factor > 0) {
		if (m->trace_per_s)
			snprintf(at, sizeof(at), "%.4g/s", r->over_factor * m->trace_per_s);
		else
			snprintf(at, sizeof(at), "%.4gx", r->over_factor);
		snprintf(over, sizeof(over), " tenuto: %u rates; at %s p90 is %.1f ms.", r->tries, at, r->over_p90_ms);
	}
	snprintf(buf + n, MODEL_PARAGRAPH - n, "%s", over);
}

static void cell_ms(struct cli_table *t, double ms)
{
	char text[MODEL_TEXT];

	cli_table_cell(t, "%s", model_ms_text(text, ms));
}

static void print_rows(const struct replay_model *m)
{
	static const char *const head[] = {"strategy", "TTFT p50", "p90", "p99", "alone", "bubble", "GPU", "$/Mtok", "rate"};
	const size_t columns = m->slo_ms > 0 ? 9 : 8;
	const bool left[] = {true, false, false, false, false, false, false, false, false};
	char rate[MODEL_TEXT];
	struct cli_table t;

	cli_table_init(&t, columns, left);
	for (size_t i = 0; i < columns; i++)
		cli_table_cell(&t, "%s", head[i]);
	for (size_t s = 0; s < TN_STRATEGIES; s++) {
		const struct model_row *r = &m->row[s];

		cli_table_cell(&t, "%s", tn_strategy_name(s));
		cell_ms(&t, r->played.ttft_ms.p50);
		cell_ms(&t, r->played.ttft_ms.p90);
		cell_ms(&t, r->played.ttft_ms.p99);
		cell_ms(&t, r->alone_ms.p90);
		cli_table_cell(&t, "%.1f %%", 100 * r->played.bubble_s / r->played.compute_s);
		cli_table_cell(&t, "%.0f %%", 100 * r->played.busy);
		cli_table_cell(&t, "%.4f", model_dollars(m, (uint32_t)s));
		if (m->slo_ms > 0)
			cli_table_cell(&t, "%s", model_rate_text(m, r, rate));
	}
	cli_table_print(&t, stdout, true);
}

/* A paragraph, an empty line before it. */
static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
{
	char text[MODEL_PARAGRAPH];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	putchar('\n');
	cli_wrap(stdout, 0, text);
}

static void print_paper(const struct model_paper *p)
{
	say("The published case (%s): a prefix of %" PRIu64 " tokens in %u blocks of %u is %u objects of %u KiB per layer, %" PRIu64
	    " MiB per layer. Published: %.1f GB/s, %.1f ms per layer in the worked example (which does not follow from its own "
	    "numbers), reading hides up to %.1f %% of hits, a bubble of %.0f ms at %.2f %%. The model:",
	    MODEL_PAPER_SOURCE, MODEL_PAPER_PREFIX, p->blocks, p->block_tokens, p->objects, p->object_bytes >> 10,
	    p->layer_bytes >> 20, MODEL_PAPER_GBPS, MODEL_PAPER_LAYER_MS, 100 * MODEL_PAPER_CROSSOVER,
	    MODEL_PAPER_BUBBLE_MS, 100 * p->hit_rate);
	for (size_t i = 0; i < 2; i++) {
		const struct model_paper_at *a = &p->at[i];
		char hides[96] = "does not hide even behind a million input tokens";

		if (a->hides_from_tokens)
			snprintf(hides, sizeof(hides), "hides from %" PRIu64 " input tokens on (up to %.1f %% of hits)",
				 a->hides_from_tokens, 100 * a->crossover);
		say("At %.3g GB/s %.1f ms per layer, which %s; at %.2f %% TTFT %.0f ms, of which %.1f ms are bubble.", a->read_gbps,
		    a->layer_ms, hides, 100 * p->hit_rate, a->ttft_ms, a->bubble_ms);
	}
}

void replay_model_print(const struct replay_model *m)
{
	char text[MODEL_PARAGRAPH];

	model_about(m, text);
	say("%s", text);
	model_about_device(m, text);
	say("%s", text);
	putchar('\n');
	print_rows(m);
	model_about_search(m, text);
	if (*text)
		say("%s", text);
	if (m->spread)
		say("%zu requests share their time with others: spread at random over the time to the next.", m->spread);
	model_about_cost(m, text);
	say("%s", text);
	model_about_drive(m, text);
	say("%s", text);
	if (m->paper)
		print_paper(m->paper);
}
