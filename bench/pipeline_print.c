/* SPDX-License-Identifier: Apache-2.0 */
/* The result of `tenuto bench pipeline`: tables, JSON, a page with charts, and the crossover. */
#include "pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>


#include "../cli/svg.h"

const struct pipeline_row *pipeline_row(const struct pipeline_bench *b, uint32_t s, size_t hit, bool writes)
{
	size_t seen = 0;

	for (size_t i = 0; i < b->result->rows; i++)
		if (b->result->row[i].strategy == s && b->result->row[i].writes == writes && seen++ == hit)
			return &b->result->row[i];
	return NULL;
}

static double bubble_share(const struct pipeline_row *w)
{
	return w->compute > 0 ? w->bubble / w->compute : 0;
}

/*
 * Dollars per million prompt tokens, where one GPU serves such prompts all the time. The SSD holds the restored blocks.
 * Times are those of the GPU, not stretched.
 */
static double dollars_per_mtoken(const struct pipeline_bench *b, const struct pipeline_row *w)
{
	const struct pipeline_set *s = &b->set;
	double tokens = (double)s->blocks * tn_geometry_block_tokens(&s->geometry);
	double held = w->strategy == TN_STRATEGY_RECOMPUTE ? 0 : (double)w->blocks * (double)tn_geometry_block_bytes(&s->geometry);

	return cost_per_mtoken(cost_hourly(&b->prices, 0, held), w->ttft / s->stretch, tokens);
}

double pipeline_crossover(const struct pipeline_bench *b, uint32_t s, bool writes)
{
	const struct pipeline_row *last = NULL, *w;

	for (size_t i = 0; (w = pipeline_row(b, s, i, writes)); i++) {
		if (bubble_share(w) >= PIPELINE_THRESHOLD) {
			double from = last ? bubble_share(last) : 0, at = last ? last->hit_rate : 0;

			return at + (w->hit_rate - at) * (PIPELINE_THRESHOLD - from) / (bubble_share(w) - from);
		}
		last = w;
	}
	return 1;
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static json_t *row_json(const struct pipeline_bench *b, const struct pipeline_row *w)
{
	json_t *j = json_pack("{s:s, s:f, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "strategy", tn_strategy_name(w->strategy),
			      "hit_rate", w->hit_rate, "writes", (int)w->writes, "ttft_ms", w->ttft * 1e3, "ttft_p99_ms",
			      w->ttft_p99 * 1e3, "compute_ms", w->compute * 1e3, "bubble_ms", w->bubble * 1e3,
			      "bubble_share", bubble_share(w), "read_gbps", w->read_gbps, "write_gbps", w->write_gbps, "cpu_seconds",
			      w->cpu);

	json_object_set_new(j, "layer_compute_ms", json_real(w->compute / b->set.geometry.layers * 1e3));
	json_object_set_new(j, "dollars_per_mtoken", json_real(dollars_per_mtoken(b, w)));
	json_object_set_new(j, "late_wakeup_ms", json_real(w->late * 1e3));
	json_object_set_new(j, "layer_io_ms", json_real(pipeline_io_s(&b->set, &b->device, w->blocks) * 1e3));
	return j;
}

json_t *pipeline_settings(const struct pipeline_bench *b)
{
	const struct pipeline_set *s = &b->set;
	const struct tn_geometry *g = &s->geometry;
	struct utsname u;
	json_t *j;

	uname(&u);
	j = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f, s:f, s:f, s:s, s:f, s:I, s:s}", "model", s->model_name,
		      "gpu", s->gpu, "layers", (json_int_t)g->layers, "prompt_tokens",
		      (json_int_t)s->blocks * g->page_tokens * g->pages_per_block, "object_bytes",
		      (json_int_t)tn_geometry_object_bytes(g), "block_bytes", (json_int_t)tn_geometry_block_bytes(g),
		      "blocks", (json_int_t)s->blocks, "stretch", (json_int_t)s->stretch, "compute", s->spin ? "spin" : "sleep",
		      "repeat", (json_int_t)b->repeat, "device_read_gbps", b->device.read_bps * 1e-9, "device_write_gbps",
		      b->device.write_bps * 1e-9, "device_mixed_gbps", b->device.mixed_bps * 1e-9, "device_latency_us",
		      b->device.latency_s * 1e6, "device", b->device.source, "threshold", PIPELINE_THRESHOLD,
		      "save_backlog_bytes",
		      (json_int_t)((uint64_t)s->saves * s->save_blocks * tn_geometry_block_bytes(g)), "kernel", u.release);
	json_object_set_new(j, "gpu_per_hour", json_real(b->prices.gpu));
	json_object_set_new(j, "ssd_per_gb_hour", json_real(b->prices.ssd_gb));
	return j;
}

/* The first measured service from this one on; PIPELINE_SERVICES: there is none. */
static int next_service(const struct pipeline_bench *b, int from)
{
	while (from < PIPELINE_SERVICES && !b->services[from])
		from++;
	return from;
}

static json_t *service_json(const struct pipeline_bench *b)
{
	json_t *o = json_object(), *rows = json_array(), *crossover = json_object(), *busy = json_object();

	for (size_t i = 0; i < b->result->rows; i++)
		json_array_append_new(rows, row_json(b, &b->result->row[i]));
	for (uint32_t s = TN_STRATEGY_LOAD_THEN_COMPUTE; s < TN_STRATEGIES; s++) {
		if (b->writes[0])
			json_object_set_new(crossover, tn_strategy_name(s), json_real(pipeline_crossover(b, s, false)));
		if (b->writes[1])
			json_object_set_new(busy, tn_strategy_name(s), json_real(pipeline_crossover(b, s, true)));
	}
	json_object_set_new(o, "rows", rows);
	json_object_set_new(o, "crossover", crossover);
	json_object_set_new(o, "crossover_with_writes", busy);
	json_object_set_new(o, "service", json_string(pipeline_service_name(b->service)));
	return o;
}

/*
 * The first service's table is the top-level object, so that readers of one table alone still work. The other is under
 * "share".
 */
json_t *pipeline_json(struct pipeline_bench *b)
{
	int first = next_service(b, 0), second = next_service(b, first + 1);
	json_t *o;

	pipeline_serve_as(b, (enum pipeline_service)first);
	o = service_json(b);
	if (second < PIPELINE_SERVICES) {
		pipeline_serve_as(b, (enum pipeline_service)second);
		json_object_set_new(o, pipeline_service_name(b->service), service_json(b));
	}
	json_object_set_new(o, "settings", pipeline_settings(b));
	return o;
}

/* ---- text -------------------------------------------------------------------------------------- */

static void print_rows(const struct pipeline_bench *b, bool writes)
{
	static const char *const heads[] = {"hit", "strategy", "TTFT ms", "p99 ms", "compute ms", "bubble ms", "bubble",
					    "TTFT/ideal", "read GB/s", "write GB/s", "CPU s", "$/Mtok"};
	const bool left[] = {false, true, false, false, false, false, false, false, false, false, false, false};
	const size_t columns = sizeof(heads) / sizeof(heads[0]);
	struct cli_table t;

	printf("\n%s:\n", writes ? "with a write load that saturates the device" : "without writes");
	cli_table_init(&t, columns, left);
	for (size_t i = 0; i < columns; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (size_t i = 0; i < b->nhits; i++)
		for (uint32_t s = 0; s < TN_STRATEGIES; s++) {
			const struct pipeline_row *w = pipeline_row(b, s, i, writes);
			const struct pipeline_row *ideal = pipeline_row(b, TN_STRATEGY_IDEAL, i, writes);

			cli_table_cell(&t, "%.1f %%", w->hit_rate * 100);
			cli_table_cell(&t, "%s", tn_strategy_name(s));
			cli_table_cell(&t, "%.1f", w->ttft * 1e3);
			cli_table_cell(&t, "%.1f", w->ttft_p99 * 1e3);
			cli_table_cell(&t, "%.1f", w->compute * 1e3);
			cli_table_cell(&t, "%.1f", w->bubble * 1e3);
			cli_table_cell(&t, "%.1f %%", bubble_share(w) * 100);
			cli_table_cell(&t, "%.3f", w->ttft / ideal->ttft);
			cli_table_cell(&t, "%.2f", w->read_gbps);
			cli_table_cell(&t, "%.2f", w->write_gbps);
			cli_table_cell(&t, "%.2f", w->cpu);
			cli_table_cell(&t, "%.4f", dollars_per_mtoken(b, w));
		}
	cli_table_print(&t, stdout, true);
}

void pipeline_print_head(const struct pipeline_bench *b)
{
	const struct pipeline_set *s = &b->set;
	const struct tn_geometry *g = &s->geometry;
	char all[32], o[32];

	printf("%s on %s, times stretched by %u: %" PRIu64 " tokens, %u layer%s, objects of %s, %s in all; compute is %s\n",
	       s->model_name, s->gpu, s->stretch, (uint64_t)s->blocks * g->page_tokens * g->pages_per_block, g->layers,
	       g->layers == 1 ? "" : "s",
	       cli_bytes(o, (double)tn_geometry_object_bytes(g)),
	       cli_bytes(all, (double)s->blocks * (double)tn_geometry_block_bytes(g)), s->spin ? "a spinning thread" : "slept");
	printf("device: reads %.2f, writes %.2f, mixed %.2f GB/s: %s\n", b->device.read_bps * 1e-9, b->device.write_bps * 1e-9,
	       b->device.mixed_bps * 1e-9, b->device.source);
}

static void print_service(const struct pipeline_bench *b)
{
	if (b->set.device_model)
		printf("\nthe drive serves %s:\n", b->service == PIPELINE_SHARE ? "side by side" : "in order");
	for (int writes = 0; writes < 2; writes++)
		if (b->writes[writes])
			print_rows(b, writes);
	printf("\ncrossover (hit rate at which the bubble reaches %g %% of compute):\n", PIPELINE_THRESHOLD * 100);
	for (uint32_t k = TN_STRATEGY_LOAD_THEN_COMPUTE; k < TN_STRATEGIES; k++) {
		printf("  %-18s", tn_strategy_name(k));
		for (int writes = 0; writes < 2; writes++)
			if (b->writes[writes])
				printf(" %6.1f %%%s", pipeline_crossover(b, k, writes) * 100, writes ? " with writes" : "");
		putchar('\n');
	}
}

static void print_prices(const struct pipeline_bench *b)
{
	char gpu[COST_TEXT], ssd[COST_TEXT], layers[64] = "";

	if (b->set.geometry.layers < b->set.model_layers)
		snprintf(layers, sizeof(layers), ", for %u of %u layers", b->set.geometry.layers, b->set.model_layers);
	printf("$/Mtok: dollars per million prompt tokens%s, not stretched, at $%s an hour for the GPU, always busy, and $%s per GB of SSD\n",
	       layers, cost_text(gpu, b->prices.gpu), cost_text(ssd, b->prices.ssd_gb));
}

int pipeline_print(struct pipeline_bench *b)
{
	pipeline_print_head(b);
	printf("%zu run%s a row, medians\n", b->repeat, b->repeat == 1 ? "" : "s");
	print_prices(b);
	for (int i = next_service(b, 0); i < PIPELINE_SERVICES; i = next_service(b, i + 1)) {
		pipeline_serve_as(b, (enum pipeline_service)i);
		print_service(b);
	}
	return cli_finish(CLI_OK);
}

/* ---- the page ---------------------------------------------------------------------------------- */

static const int colors[TN_STRATEGIES] = {5, 2, 3, 1, 4};

typedef double (*value_fn)(const struct pipeline_row *w);

static double bubble_ms(const struct pipeline_row *w)
{
	return w->bubble * 1e3;
}

static double ttft_ms(const struct pipeline_row *w)
{
	return w->ttft * 1e3;
}

static void chart(FILE *f, const struct pipeline_bench *b, bool writes, const char *what, value_fn value, uint32_t first)
{
	double x[PIPELINE_HITS_MAX], y[TN_STRATEGIES][PIPELINE_HITS_MAX];
	struct svg_series s[TN_STRATEGIES];
	char title[96];
	struct svg_chart c = {
		.title = title,
		.note = "Times as stretched; medians; point at a dot for its value",
		.x_label = "prefix hit rate (%)",
		.y_label = "ms",
		.series = s,
	};

	snprintf(title, sizeof(title), "%s against hit rate, %s writes%s", what, writes ? "with" : "without",
		 b->service == PIPELINE_SHARE ? ", served side by side" : "");
	for (uint32_t k = first; k < TN_STRATEGIES; k++) {
		for (size_t i = 0; i < b->nhits; i++) {
			const struct pipeline_row *w = pipeline_row(b, k, i, writes);

			x[i] = w->hit_rate * 100;
			y[k][i] = value(w);
		}
		s[c.nseries++] = (struct svg_series){.name = tn_strategy_name(k), .color = colors[k], .dashed = k == TN_STRATEGY_IDEAL,
						     .dots = true, .x = x, .y = y[k], .n = b->nhits};
	}
	svg_lines(f, &c);
}

static void charts(FILE *f, const struct pipeline_bench *b)
{
	for (int writes = 0; writes < 2; writes++)
		if (b->writes[writes]) {
			chart(f, b, writes, "Bubble", bubble_ms, TN_STRATEGY_LOAD_THEN_COMPUTE);
			chart(f, b, writes, "Time to first token", ttft_ms, TN_STRATEGY_RECOMPUTE);
		}
}

int pipeline_report(struct pipeline_bench *b, const char *path)
{
	FILE *f = fopen(path, "we");

	if (!f)
		return cli_error(cli_exit_of(-errno), "--report %s: %s", path, strerror(errno));
	svg_page_begin(f, "Tenuto pipeline");
	svg_text(f, b->set.model_name);
	fputs(" on ", f);
	svg_text(f, b->set.gpu);
	fprintf(f, " &middot; times stretched by %u &middot; device reads %.2f GB/s</p>\n<div class=\"charts\">\n",
		b->set.stretch, b->device.read_bps * 1e-9);
	for (int i = next_service(b, 0); i < PIPELINE_SERVICES; i = next_service(b, i + 1)) {
		pipeline_serve_as(b, (enum pipeline_service)i);
		charts(f, b);
	}
	fputs("</div>\n", f);
	svg_page_end(f);
	if (ferror(f) | fclose(f))
		return cli_error(CLI_ENVIRONMENT, "--report %s: cannot be written", path);
	return CLI_OK;
}
