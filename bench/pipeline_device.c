/* SPDX-License-Identifier: Apache-2.0 */
/* The device under `tenuto bench pipeline`: a described drive, or a directory that is measured. */
#include "pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/measure.h"

#define MEASURE_SECONDS 5.0

#define KEY "service "

const char *pipeline_service_name(enum pipeline_service service)
{
	return service == PIPELINE_SHARE ? "share" : "order";
}

/* Copies the model's text, except the line `service`. Exit code. */
static int copy_model(FILE *in, const char *from, FILE *out, const char *to, enum pipeline_service service)
{
	char line[512];

	while (fgets(line, sizeof(line), in))
		if (strncmp(line, KEY, sizeof(KEY) - 1) != 0)
			fputs(line, out);
	if (ferror(in))
		return cli_error(CLI_USAGE, "--device-model %s: %s", from, strerror(errno));
	fprintf(out, KEY "%s\n", pipeline_service_name(service));
	return ferror(out) ? cli_error(CLI_ENVIRONMENT, "%s: %s", to, strerror(errno)) : CLI_OK;
}

int pipeline_model_file(const char *from, const char *to, enum pipeline_service service)
{
	FILE *in = fopen(from, "re"), *out;
	int rc;

	if (!in)
		return cli_error(CLI_USAGE, "--device-model %s: %s", from, strerror(errno));
	out = fopen(to, "we");
	rc = out ? copy_model(in, from, out, to, service) : cli_error(CLI_ENVIRONMENT, "%s: %s", to, strerror(errno));
	fclose(in);
	if (out && fclose(out) && !rc)
		rc = cli_error(CLI_ENVIRONMENT, "%s: %s", to, strerror(errno));
	return rc;
}

void pipeline_serve_as(struct pipeline_bench *b, enum pipeline_service service)
{
	b->service = service;
	b->result = &b->results[service];
	if (b->set.device_model)
		b->set.device_model = b->set.services[service];
}

static bool show(void *arg, double done)
{
	cli_progress_step(arg, (uint64_t)(done * 100));
	return !cli_interrupted();
}

int pipeline_calibrate(const struct pipeline_set *set, struct cli_progress *progress, struct pipeline_device *d)
{
	struct tn_io_measure_opts o;
	struct tn_mix m;
	double by = 1;
	int rc;

	if (set->device_model) {
		rc = tn_mixfile_load(set->device_model, &m);
		by = set->stretch;
	} else {
		tn_io_measure_opts_init(&o);
		o.dir = set->dir;
		o.seconds = MEASURE_SECONDS;
		o.progress = show;
		o.progress_arg = progress;
		cli_progress_begin(progress, "measuring the directory", 100);
		rc = tn_io_measure(&o, &m);
	}
	if (rc == -ECANCELED && cli_interrupted())
		return cli_error(CLI_ENVIRONMENT, "interrupted");
	if (rc)
		return cli_fail(rc, set->device_model ? "--device-model" : "measuring the directory");
	*d = (struct pipeline_device){.read_bps = (double)m.read_bps / by, .write_bps = (double)m.write_bps / by,
				      .mixed_bps = (double)m.mixed_bps / by, .latency_s = (double)m.read_latency_ns * by * 1e-9};
	snprintf(d->source, sizeof(d->source), "%s", set->device_model ? m.source : "measured, not modelled");
	return CLI_OK;
}
