/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O engines of a cache: made as its options say, paced where a device model is given, and what is known of each
 * device's mix of reads and writes.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"
#include "ioengine/ioengine.h"
#include "ioengine/mixfile.h"
#include "ioengine/paced.h"

/* What was measured in the directory, DIR/<instance>'s parent. Not knowing is no reason to fail. */
static void load_measured(struct tn_cache *cache, size_t device)
{
	const char *dir = cache->o.dirs[device];
	int len = (int)(strrchr(dir, '/') - dir);
	char path[PATH_MAX];

	if ((size_t)snprintf(path, sizeof(path), "%.*s/" TN_MIXFILE_NAME, len, dir) >= sizeof(path))
		return;
	if (tn_mixfile_load(path, &cache->mix[device]) && tn_error_last()->code != -ENOENT)
		tn_log(&cache->log, TN_LOG_WARN, "%s; nothing is taken as known of the device", tn_error_last()->text);
}

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
static int model_devices(struct tn_cache *cache)
{
	struct tn_mix mix;
	struct tn_paced_opts po = {
		.mix = &mix,
		.stretch = cache->o.device_stretch,
		.dirs = cache->o.dirs,
		.ndirs = (uint32_t)cache->o.ndirs,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.log = &cache->log,
	};
	int rc = tn_mixfile_load(cache->o.device_model, &mix);

	if (rc == 0)
		rc = tn_paced_create(&po, &cache->paced);
	if (rc)
		return tn_fail_cause(rc, "device_model");
	stretch_mix(&mix, cache->o.device_stretch);
	for (size_t i = 0; i < TN_DEVICES_MAX; i++)
		cache->mix[i] = mix;
	return 0;
}

int tn_devices_open(struct tn_cache *cache)
{
	if (cache->o.device_model)
		return model_devices(cache);
	for (size_t i = 0; i < cache->o.ndirs; i++)
		load_measured(cache, i);
	return 0;
}

int tn_engine_open(const struct tn_cache *cache, uint32_t depth, struct tn_io **out)
{
	struct tn_ioengine_opts o = {
		.depth = depth,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.log = &cache->log,
	};
	struct tn_io *inner;
	int rc;

	if (strcmp(cache->o.io_engine, "auto") == 0)
		o.kind = TN_IOENGINE_AUTO;
	else if (strcmp(cache->o.io_engine, "io_uring") == 0)
		o.kind = TN_IOENGINE_URING;
	else if (strcmp(cache->o.io_engine, "posix") == 0)
		o.kind = TN_IOENGINE_POSIX;
	else
		return tn_fail(-EINVAL, "io_engine \"%s\": must be auto, io_uring or posix", cache->o.io_engine);
	rc = tn_ioengine_create(&o, &inner);
	if (rc == 0 && cache->paced) {
		struct tn_io *io;

		rc = tn_io_paced_create(inner, depth, cache->paced, &io);
		if (rc)
			tn_io_destroy(inner);
		inner = io;
	}
	if (rc == 0)
		*out = inner;
	return rc;
}
