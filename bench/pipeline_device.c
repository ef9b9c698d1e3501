/* SPDX-License-Identifier: Apache-2.0 */
/* The device under `tenuto bench pipeline`: a described drive, or what is measured of a directory. */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/admin.h>

#define MEASURE_SECONDS 5.0

static bool show(void *arg, double done)
{
	cli_progress_step(arg, (uint64_t)(done * 100));
	return !cli_interrupted();
}

int pipeline_calibrate(const struct pipeline_set *set, struct cli_progress *progress, struct pipeline_device *d)
{
	struct tn_io_measure_opts o;
	struct tn_device_mix m;
	double by = 1;
	int rc;

	if (set->device_model) {
		rc = tn_device_model(set->device_model, &m);
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
