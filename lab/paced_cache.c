/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See paced_cache.h. The functions by which a cache opens devices and makes engines are replaced before the cache
 * starts.
 */
#include "lab/paced_cache.h"

#include <errno.h>

#include "base/error.h"
#include "core/core.h"
#include "drives/drives.h"
#include "ioengine/mixfile.h"
#include "lab/paced.h"

#define STRETCH 16u /* if none is given */

struct devices {
	struct tn_paced_drive drive;
	struct tn_paced *paced;
};

static uint64_t divided(uint64_t bps, uint32_t stretch)
{
	return bps >= stretch ? bps / stretch : 1;
}

static void stretch_mix(struct tn_mix *mix, uint32_t stretch)
{
	mix->read_bps = divided(mix->read_bps, stretch);
	mix->write_bps = divided(mix->write_bps, stretch);
	mix->mixed_bps = divided(mix->mixed_bps, stretch);
	mix->read_latency_ns *= stretch;
	mix->write_latency_ns *= stretch;
}

/* Every device is the one that the model describes. */
static int model_devices(struct tn_engines *e)
{
	struct devices *d = e->devices;
	struct tn_mix mix;
	struct tn_paced_opts po = {
		.mix = &mix,
		.stretch = d->drive.stretch,
		.dirs = e->opts->dirs,
		.ndirs = (uint32_t)e->opts->ndirs,
		.alloc = e->alloc,
		.clock = e->clock,
		.log = e->log,
	};
	int rc = tn_mixfile_load(d->drive.model, &mix);

	d->drive.model = NULL; /* the string is the caller's and may be gone */
	if (rc == 0)
		rc = tn_paced_create(&po, &d->paced);
	if (rc)
		return tn_fail_cause(rc, "device_model");
	stretch_mix(&mix, d->drive.stretch);
	for (size_t i = 0; i < TN_DEVICES_MAX; i++)
		e->mix[i] = mix;
	return 0;
}

static int make_paced(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
{
	const struct devices *d = e->devices;
	struct tn_io *inner;
	int rc = tn_engine_open(e, depth, &inner);

	if (rc)
		return rc;
	rc = tn_io_paced_create(inner, depth, d->paced, out);
	if (rc)
		tn_io_destroy(inner);
	return rc;
}

static void free_devices(void *devices)
{
	struct devices *d = devices;

	tn_paced_destroy(d->paced);
	tn_put(&tn_alloc_system, d, sizeof(*d));
}

static int check(const struct tn_cache_opts *opts, const struct tn_paced_drive *drive)
{
	if (opts->ndirs == 0)
		return tn_fail(-EINVAL, "device_model %.100s without directories: there is nothing to pace", drive->model);
	for (size_t i = 0; i < opts->ndirs; i++)
		if (tn_drive_is(opts->dirs[i]))
			return tn_fail(-ENOTSUP, "device_model %.100s on %.60s: only directories are paced", drive->model, opts->dirs[i]);
	if (drive->stretch > TN_PACED_STRETCH_MAX)
		return tn_fail(-EINVAL, "device_stretch %u: must be 0 to %u", drive->stretch, TN_PACED_STRETCH_MAX);
	return 0;
}

int tn_paced_cache_open(const struct tn_cache_opts *opts, const struct tn_paced_drive *drive, struct tn_cache **out)
{
	struct tn_cache *cache;
	struct devices *d;
	int rc;

	if (!opts || !out || !drive->model)
		return tn_cache_open(opts, out);
	rc = check(opts, drive);
	if (rc == 0)
		rc = tn_cache_create(opts, &cache);
	if (rc)
		return rc;
	d = tn_get(&tn_alloc_system, sizeof(*d));
	if (!d) {
		tn_cache_free(cache);
		return tn_fail(-ENOMEM, "no memory for the described drives");
	}
	d->drive = *drive;
	d->drive.stretch = drive->stretch ? drive->stretch : STRETCH;
	cache->engines.devices = d;
	cache->engines.open = model_devices;
	cache->engines.make = make_paced;
	cache->engines.free = free_devices;
	cache->tiers.slow_read_ns *= d->drive.stretch; /* a healthy described drive takes that much longer */
	rc = tn_cache_start(cache);
	if (rc)
		return rc;
	*out = cache;
	return 0;
}
