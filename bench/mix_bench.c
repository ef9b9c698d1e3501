/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench mix`: what a directory's device does when it reads, when it writes, and when it does both; left in
 * DIR/tenuto.mix, where a cache opened there takes it into account.
 */
#include "bench.h"

#include <errno.h>
#include <string.h>

#include "lab/measure.h"

#define PERMILLE 1000u
#define STRETCH 16u

struct mix_args {
	const char *device_model;
	uint64_t seconds, size, stretch;
	bool json;
};

static const struct cli_opt options[] = {
	{"seconds", "N", "6", "how long to measure", CLI_COUNT, offsetof(struct mix_args, seconds), 1, 3600},
	{"size", "SIZE", "256MiB", "of the temporary file", CLI_SIZE, offsetof(struct mix_args, size), 1u << 20, 1ull << 40},
	{"device-model", "NAME", NULL, "measure a modelled drive instead: one of share/devices, or a file; DIR best on tmpfs; nothing is stored",
	 CLI_STRING, offsetof(struct mix_args, device_model), 0, 0},
	{"stretch", "N", "16", "divides the model's bandwidth and multiplies its latency", CLI_COUNT,
	 offsetof(struct mix_args, stretch), 1, 1000000},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct mix_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench mix",
	.operands = "DIR",
	.about = "Measures what the device under a directory reads, writes, and does of both together, in five rounds of all "
		 "three: 64 requests of 256 KiB in flight, with O_DIRECT where there is; and the latency of single transfers of 4 KiB. "
		 "The result is left in DIR/tenuto.mix: a cache opened there then knows whether writes slow its reads down.",
	.opts = options,
	.min_operands = 1,
	.max_operands = 1,
};

static bool show(void *arg, double done)
{
	cli_progress_step(arg, (uint64_t)(done * PERMILLE));
	return !cli_interrupted();
}

static void warn(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	fprintf(stderr, "%s\n", text);
}

/* Rate of both together over the rate of one after the other, for as many bytes of each. */
static double against_serial(const struct tn_mix *m)
{
	return (double)m->mixed_bps * (1 / (double)m->read_bps + 1 / (double)m->write_bps) / 2;
}

static json_t *mix_as_json(const struct tn_mix *m)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:s}", "read_bps", (json_int_t)m->read_bps, "write_bps",
			 (json_int_t)m->write_bps, "mixed_bps", (json_int_t)m->mixed_bps, "read_latency_ns",
			 (json_int_t)m->read_latency_ns, "write_latency_ns", (json_int_t)m->write_latency_ns,
			 "mixed_against_serial", against_serial(m), "measured_s", (json_int_t)m->measured_s, "source", m->source);
}

static json_t *as_json(const struct mix_args *a, const char *dir, const struct tn_mix *m,
		       const struct tn_mix *model)
{
	json_t *o = mix_as_json(m);

	json_object_set_new(o, "dir", json_string(dir));
	json_object_set_new(o, "stored", json_boolean(!model));
	if (model) {
		json_object_set_new(o, "stretch", json_integer((json_int_t)a->stretch));
		json_object_set_new(o, "model", mix_as_json(model));
	}
	return o;
}

static void latency_cell(struct cli_table *t, bool measured, uint64_t ns)
{
	if (measured)
		cli_table_cell(t, "%.1f", (double)ns * 1e-3);
	else
		cli_table_cell(t, "%s", "");
}

/* Adds one row. model_bps 0: without the columns that compare. latency_ns 0: no latency. */
static void row(struct cli_table *t, const char *name, uint64_t bps, uint64_t latency_ns, uint64_t model_bps,
		uint64_t model_latency_ns)
{
	cli_table_cell(t, "%s", name);
	cli_table_cell(t, "%.3f", (double)bps * 1e-9);
	if (model_bps)
		cli_table_cell(t, "%.3f", (double)model_bps * 1e-9);
	latency_cell(t, latency_ns > 0, latency_ns);
	if (model_bps)
		latency_cell(t, latency_ns > 0, model_latency_ns);
}

static int print(const struct mix_args *a, const char *dir, const struct tn_mix *m, const struct tn_mix *model)
{
	const bool left[] = {true, false, false, false, false};
	struct tn_mix x = model ? *model : (struct tn_mix){0};
	struct cli_table t;

	cli_table_init(&t, model ? 5 : 3, left);
	cli_table_cell(&t, "op");
	cli_table_cell(&t, "GB/s");
	if (model)
		cli_table_cell(&t, "model GB/s");
	cli_table_cell(&t, "latency us");
	if (model)
		cli_table_cell(&t, "model us");
	row(&t, "read", m->read_bps, m->read_latency_ns, x.read_bps / a->stretch, x.read_latency_ns * a->stretch);
	row(&t, "write", m->write_bps, m->write_latency_ns, x.write_bps / a->stretch, x.write_latency_ns * a->stretch);
	row(&t, "both", m->mixed_bps, 0, x.mixed_bps / a->stretch, 0);
	cli_table_print(&t, stdout, true);
	printf("\nBoth together move %.2f of what one after the other moves.\n", against_serial(m));
	if (model)
		printf("Modelled: %s; stretched by %llu. Nothing was stored.\n", model->source, (unsigned long long)a->stretch);
	else
		printf("Stored in %s/tenuto.mix.\n", dir);
	return cli_finish(CLI_OK);
}

static int measure(const struct mix_args *a, const char *dir, struct tn_mix *m)
{
	struct cli_progress progress;
	struct tn_io_measure_opts o;
	int rc;

	tn_io_measure_opts_init(&o);
	o.dir = dir;
	o.seconds = (double)a->seconds;
	o.file_bytes = a->size / o.request_bytes * o.request_bytes;
	o.device_model = a->device_model;
	o.device_stretch = (uint32_t)a->stretch;
	o.progress = show;
	o.progress_arg = &progress;
	o.log = warn;
	cli_catch_interrupts();
	cli_progress_begin(&progress, "bench mix", PERMILLE);
	rc = tn_io_measure(&o, m);
	cli_progress_end(&progress);
	return rc;
}

int cmd_bench_mix(int argc, char **argv)
{
	struct mix_args a = {.seconds = 6, .size = 256u << 20};
	struct tn_mix m, model;
	char path[4200];
	int noperands, rc = cli_parse(&verb, argc, argv, &a, &noperands);

	if (rc != CLI_GO)
		return rc;
	rc = cli_check_dir("", argv[1]);
	if (rc)
		return rc;
	if (a.stretch && !a.device_model)
		return cli_error(CLI_USAGE, "--stretch is of a modelled drive: give --device-model, too");
	a.stretch = a.stretch ? a.stretch : STRETCH;
	if (a.device_model) {
		rc = cli_find_device_model(a.device_model, path, sizeof(path));
		if (rc)
			return rc;
		rc = tn_mixfile_load(path, &model);
		if (rc)
			return cli_fail(rc, "--device-model");
		a.device_model = path;
	}
	rc = measure(&a, argv[1], &m);
	if (rc == -ECANCELED)
		return cli_error(CLI_ENVIRONMENT, "interrupted; %s is as it was", argv[1]);
	if (rc == -ENOSPC)
		return cli_fail(rc, "%s has no free space for the temporary file; a smaller --size will do", argv[1]);
	if (rc)
		return cli_fail(rc, NULL);
	return a.json ? cli_json(as_json(&a, argv[1], &m, a.device_model ? &model : NULL))
		      : print(&a, argv[1], &m, a.device_model ? &model : NULL);
}
