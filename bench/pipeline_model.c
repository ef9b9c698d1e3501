/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of a layer's compute (a slack table, stretched) and of reading a layer; and the ideal: the recurrence
 * start(l) = max(end(l-1), loaded(l)) on a device that does nothing else, headers and the first layer's load included.
 */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/slack.h>

#define HEADER_BYTES 4096u /* per block */
#define TEXT_MAX (64u << 20)

/* ---- the table --------------------------------------------------------------------------------- */

static int read_table(const char *path, struct tn_slack **out)
{
	FILE *f = fopen(path, "re");
	char *text = f ? malloc(TEXT_MAX) : NULL;
	size_t n = text ? fread(text, 1, TEXT_MAX, f) : 0;
	int rc = f ? text ? ferror(f) ? -errno : 0 : -ENOMEM : -errno;

	if (f)
		fclose(f);
	if (rc)
		rc = cli_error(cli_exit_of(rc), "--slack %s: %s", path, strerror(-rc));
	else {
		rc = tn_slack_parse(text, n, out);
		rc = rc ? cli_fail(rc, "--slack %s", path) : CLI_OK;
	}
	free(text);
	return rc;
}

/* The same lengths for the first layers of a model. */
static int empty_copy(const struct tn_slack *from, const struct pipeline_set *set, struct tn_slack **out)
{
	struct tn_slack_desc d = {.size = sizeof(d)};

	tn_slack_describe(from, &d);
	if (d.layers < set->geometry.layers)
		return cli_error(CLI_USAGE, "the slack table has %u layers, %s has %u", d.layers, set->model_name,
				 set->geometry.layers);
	d.model = set->model_name;
	d.layers = set->geometry.layers;
	return tn_slack_create(&d, out) ? cli_error(CLI_USAGE, "slack table: %s", tn_error_last()->text) : CLI_OK;
}

static int scale(const struct tn_slack *from, struct tn_slack *to, double factor)
{
	struct tn_slack_desc d = {.size = sizeof(d)};
	uint32_t layers;
	int rc = 0;

	tn_slack_describe(to, &d);
	layers = d.per_layer ? d.layers : 1;
	for (uint32_t i = 0; !rc && i < d.ninputs; i++)
		for (uint32_t p = 0; !rc && p < d.nprefixes; p++)
			for (uint32_t k = 0; !rc && k < layers; k++) {
				struct tn_slack_cell cell;
				double ns;

				tn_slack_at(from, d.inputs[i], d.prefixes[p], k, &cell);
				ns = (double)cell.window_ns * factor;
				ns = ns < 1 ? 1 : ns > (double)TN_SLACK_WINDOW_MAX ? (double)TN_SLACK_WINDOW_MAX : ns;
				cell.window_ns = (uint64_t)ns;
				rc = tn_slack_set_cell(to, i, p, d.per_layer ? k : TN_SLACK_ALL_LAYERS, &cell);
			}
	return rc;
}

int pipeline_slack_scaled(const struct pipeline_set *set, const struct tn_slack *from, double factor, struct tn_slack **out)
{
	int rc = empty_copy(from, set, out);

	if (rc)
		return rc;
	rc = scale(from, *out, factor);
	if (rc) {
		tn_slack_destroy(*out);
		*out = NULL;
		return cli_fail(rc, "slack table");
	}
	return CLI_OK;
}

int pipeline_slack_open(struct pipeline_set *set, const char *file)
{
	struct tn_slack_desc d = {.size = sizeof(d)};
	struct tn_slack *t = NULL;
	int rc;

	if (file)
		rc = read_table(file, &t);
	else {
		rc = tn_slack_analytic(set->model_name, set->gpu, TN_SLACK_EFFICIENCY, 0, "now", &t);
		rc = rc ? cli_fail(rc, "--gpu") : CLI_OK;
	}
	if (!rc)
		tn_slack_describe(t, &d);
	if (!rc && strcmp(d.model, "-") && strcmp(d.model, set->model_name))
		rc = cli_error(CLI_USAGE, "--slack %s: the table is of %s, --model is %s", file, d.model, set->model_name);
	if (!rc)
		rc = pipeline_slack_scaled(set, t, set->stretch, &set->slack);
	tn_slack_destroy(t);
	if (rc)
		return rc;
	tn_slack_describe(set->slack, &d);
	set->gpu = d.gpu; /* the table names its GPU */
	return CLI_OK;
}

/* ---- times ------------------------------------------------------------------------------------- */

uint64_t pipeline_input_tokens(const struct pipeline_set *set, uint32_t restored)
{
	uint64_t block = tn_geometry_block_tokens(&set->geometry);

	/* If the whole prompt is restored, its last token is computed again, for the output. */
	return restored < set->blocks ? (set->blocks - restored) * block : 1;
}

uint64_t pipeline_compute_ns(const struct pipeline_set *set, uint32_t restored, uint32_t layer)
{
	uint64_t block = tn_geometry_block_tokens(&set->geometry);
	uint64_t input = pipeline_input_tokens(set, restored);

	return tn_slack_window(set->slack, input, set->blocks * block - input, layer);
}

double pipeline_io_s(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks)
{
	return (double)blocks * tn_geometry_object_bytes(&set->geometry) / d->read_bps;
}

int pipeline_ideal(const struct pipeline_set *set, const struct pipeline_device *d, uint32_t blocks,
		   struct pipeline_run *run)
{
	uint32_t n = set->geometry.layers;
	uint64_t *compute = calloc(2 * n, sizeof(*compute)), *bytes = compute + n;
	struct tn_pipeline_layer *layer = calloc(n, sizeof(*layer));
	struct tn_pipeline_result r;
	struct tn_pipeline p;
	int rc = -ENOMEM;

	tn_pipeline_init(&p);
	if (compute && layer) {
		for (uint32_t i = 0; i < n; i++) {
			compute[i] = pipeline_compute_ns(set, blocks, i);
			bytes[i] = (uint64_t)blocks * tn_geometry_object_bytes(&set->geometry);
		}
		p.layers = n;
		p.compute_ns = compute;
		p.bytes = bytes;
		p.header_bytes = (uint64_t)blocks * HEADER_BYTES;
		p.io.read_bps = d->read_bps;
		p.io.latency_ns = (uint64_t)(d->latency_s * 1e9);
		rc = tn_pipeline_run(&p, TN_STRATEGY_IDEAL, layer, &r);
	}
	free(compute);
	free(layer);
	if (rc)
		return cli_fail(rc, "the ideal");
	run->ttft = (double)r.restore.ttft_ns * 1e-9;
	run->compute = (double)r.restore.compute_ns * 1e-9;
	run->bubble = (double)r.restore.bubble_ns * 1e-9;
	run->bytes_read = r.restore.read_bytes;
	return CLI_OK;
}
