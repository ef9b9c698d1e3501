/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of `tenuto replay`: its options, and the sources of compute times and of the device's rates.
 */
#include "replay_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/layout.h>

#include "lab/measure.h"

#define SLACK_BYTES_MAX (64u << 20)
#define HEADER_PAGE 4096u

/* The paper's pair of drives: the figures of docs/model.md are for it. */
static const struct model_device device_default = {
	.read_bps = 29e9,
	.write_bps = 12e9,
	.mixed_bps = 12e9,
	.latency_ns = 60000,
	.write_latency_ns = 10000,
	.source = "two Solidigm D7-PS1010, as measured in arXiv 2605.03375; latencies assumed",
};

/* docs/format.md: 128 + 12 bytes per object, in whole pages. */
uint64_t model_header_bytes(uint32_t layers)
{
	return (128 + 12 * (uint64_t)layers + HEADER_PAGE - 1) / HEADER_PAGE * HEADER_PAGE;
}

struct tn_pipeline_io model_io(const struct model_device *d)
{
	struct tn_pipeline p;

	tn_pipeline_init(&p);
	p.io.read_bps = d->read_bps;
	p.io.write_bps = d->write_bps;
	p.io.mixed_bps = d->mixed_bps;
	p.io.latency_ns = d->latency_ns;
	return p.io;
}

static int known_gpus(const char *option)
{
	char names[160] = "";
	size_t n = 0;

	for (size_t i = 0; tn_gpu_at(i) && n < sizeof(names); i++)
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "", tn_gpu_at(i));
	return cli_error(CLI_USAGE, "--%s needs to know how fast layers are computed: give --gpu (%s) or --slack FILE",
			 option, names);
}

int replay_model_check(const struct replay_args *a)
{
	const struct {
		const char *name;
		bool given;
	} of_model[] = {{"slo-ms", a->slo_ms > 0}, {"device-model", a->device_model}, {"read-gbps", a->read_gbps > 0},
			{"rate", a->rate > 0}, {"price", a->price}, {"drive", a->drive}};
	const char *source = a->gpu ? "gpu" : "slack";

	for (size_t i = 0; !a->gpu && !a->slack && i < sizeof(of_model) / sizeof(of_model[0]); i++)
		if (of_model[i].given)
			return known_gpus(of_model[i].name);
	if (!a->gpu && !a->slack)
		return CLI_OK;
	if (a->gpu && a->slack)
		return cli_error(CLI_USAGE, "give either --gpu or --slack, not both: a slack table is of one GPU");
	if (!a->model)
		return cli_error(CLI_USAGE, "--%s needs --model: the size of a layer follows from it", source);
	if (!a->no_io)
		return cli_error(CLI_USAGE, "--%s needs --no-io: time to first token is computed, not measured", source);
	return CLI_OK;
}

/* ---- compute ------------------------------------------------------------------------------------ */

static uint64_t layer_ns(const struct model_compute *c, uint64_t input, uint64_t prefix, uint32_t layer, int *rc)
{
	uint64_t ns = 0;

	if (c->table)
		ns = tn_slack_window(c->table, input, prefix, layer);
	else
		*rc = tn_slack_analytic_ns(c->model, c->gpu, TN_SLACK_EFFICIENCY, input, prefix, layer, &ns);
	return ns;
}

int model_compute_ns(void *arg, uint64_t input_tokens, uint64_t prefix_tokens, uint64_t *ns)
{
	const struct model_compute *c = arg;
	int rc = 0;

	for (uint32_t l = 0; !rc && l < c->layers; l++)
		ns[l] = c->same[l] < l ? ns[c->same[l]] : layer_ns(c, input_tokens, prefix_tokens, l, &rc);
	return rc;
}

/* The analytic model has few kinds of layers: two layers that take equally long at two lengths always do. */
static int find_same_layers(struct model_compute *c)
{
	uint64_t few[TN_LAYERS_MAX], many[TN_LAYERS_MAX];
	struct tn_slack_desc d;
	int rc = 0;

	for (uint32_t l = 0; l < c->layers; l++)
		c->same[l] = l;
	if (c->table) {
		tn_slack_describe(c->table, &d);
		for (uint32_t l = 0; l < c->layers && !d.per_layer; l++)
			c->same[l] = 0;
		return 0;
	}
	rc = model_compute_ns(c, 1, 0, few);
	if (!rc)
		rc = model_compute_ns(c, 4096, 65536, many);
	for (uint32_t l = 1; !rc && l < c->layers; l++) {
		uint32_t k = 0;

		while (few[k] != few[l] || many[k] != many[l])
			k++;
		c->same[l] = k;
	}
	return rc;
}

static int read_text(const char *option, const char *path, size_t most, char **text, size_t *bytes)
{
	FILE *f = fopen(path, "re");
	char *buf = malloc(most + 1);
	int rc = CLI_OK;

	*bytes = f && buf ? fread(buf, 1, most + 1, f) : 0;
	if (!f || !buf || ferror(f))
		rc = cli_error(cli_exit_of(-errno), "--%s %s: %s", option, path, strerror(errno));
	else if (*bytes > most)
		rc = cli_error(CLI_USAGE, "--%s %s: longer than %zu bytes: no such file is", option, path, most);
	if (f)
		fclose(f);
	if (rc)
		free(buf);
	else
		*text = buf;
	return rc;
}

static int load_table(const char *path, const char *model, uint32_t layers, struct tn_slack **out)
{
	struct tn_slack_desc d;
	struct tn_slack *t;
	char *text;
	size_t n;
	int rc = read_text("slack", path, SLACK_BYTES_MAX, &text, &n);

	if (rc)
		return rc;
	rc = tn_slack_parse(text, n, &t);
	free(text);
	if (rc)
		return cli_fail(rc, "--slack %s", path);
	tn_slack_describe(t, &d);
	if (strcmp(d.model, model) || d.layers != layers) {
		rc = cli_error(CLI_USAGE, "--slack %s: the table is of %s with %u layers, --model %s has %u", path,
			       d.model, d.layers, model, layers);
		tn_slack_destroy(t);
		return rc;
	}
	*out = t;
	return CLI_OK;
}

static int create_compute(const struct replay_args *a, struct model_compute *c)
{
	struct tn_slack_desc d;
	uint64_t ns;
	int rc;

	c->model = a->model;
	c->gpu = a->gpu;
	if (a->slack) {
		rc = load_table(a->slack, a->model, c->layers, &c->table);
		if (rc)
			return rc;
		tn_slack_describe(c->table, &d);
		c->gpu = d.gpu;
	} else {
		rc = tn_slack_analytic_ns(a->model, a->gpu, TN_SLACK_EFFICIENCY, 1, 0, 0, &ns);
		if (rc)
			return cli_fail(rc, "--gpu");
	}
	rc = find_same_layers(c);
	return rc ? cli_fail(rc, "--model %s", a->model) : CLI_OK;
}

/* ---- the device ---------------------------------------------------------------------------------- */

static int create_device(const struct replay_args *a, struct model_device *d)
{
	struct tn_mix mix;
	char path[4200];
	double by;
	int rc;

	*d = device_default;
	if (a->device_model) {
		rc = cli_find_device_model(a->device_model, path, sizeof(path));
		if (rc)
			return rc;
		rc = tn_mixfile_load(path, &mix);
		if (rc)
			return cli_fail(rc, "--device-model");
		d->read_bps = (double)mix.read_bps;
		d->write_bps = (double)mix.write_bps;
		d->mixed_bps = (double)mix.mixed_bps;
		d->latency_ns = mix.read_latency_ns;
		d->write_latency_ns = mix.write_latency_ns;
		memcpy(d->source, mix.source, sizeof(mix.source));
	}
	by = a->read_gbps > 0 ? a->read_gbps * 1e9 / d->read_bps : 1;
	d->read_bps *= by;
	d->write_bps *= by;
	d->mixed_bps *= by;
	if (a->read_gbps > 0)
		snprintf(d->source + strlen(d->source), sizeof(d->source) - strlen(d->source), "; scaled to %g GB/s",
			 a->read_gbps);
	return CLI_OK;
}

/* ---- all together -------------------------------------------------------------------------------- */

int replay_model_create(const struct replay_args *a, const struct tn_geometry *g, struct replay_model **out)
{
	struct replay_model *m;
	int rc;

	*out = NULL;
	if (!a->gpu && !a->slack)
		return CLI_OK;
	m = calloc(1, sizeof(*m));
	if (!m)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	m->geometry = *g;
	m->slo_ms = a->slo_ms;
	m->factor = a->rate > 0 ? a->rate : 1;
	m->seed = a->seed;
	m->compute.layers = g->layers;
	m->bill.capacity_blocks = a->capacity_blocks;
	m->bill.host_blocks = a->host_blocks;
	rc = cost_parse_prices(a->price, &m->bill.prices);
	if (!rc)
		rc = cost_parse_drive(a->drive, &m->bill.drive);
	if (!rc)
		rc = create_device(a, &m->device);
	if (!rc)
		rc = create_compute(a, &m->compute);
	if (!rc && model_paper_applies(m)) {
		m->paper = calloc(1, sizeof(*m->paper));
		rc = m->paper ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");
	}
	if (rc)
		replay_model_destroy(m);
	else
		*out = m;
	return rc;
}

void replay_model_destroy(struct replay_model *m)
{
	if (!m)
		return;
	tn_slack_destroy(m->compute.table);
	free(m->request);
	free(m->layer_ns);
	free(m->sort);
	free(m->bubble);
	free(m->paper);
	free(m);
}
