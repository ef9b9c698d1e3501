/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O engines of a cache, made as its options say, and what is known of each device's mix of reads and writes.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "ioengine/ioengine.h"
#include "ioengine/mixfile.h"

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

int tn_devices_open(struct tn_cache *cache)
{
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

	if (strcmp(cache->o.io_engine, "auto") == 0)
		o.kind = TN_IOENGINE_AUTO;
	else if (strcmp(cache->o.io_engine, "io_uring") == 0)
		o.kind = TN_IOENGINE_URING;
	else if (strcmp(cache->o.io_engine, "posix") == 0)
		o.kind = TN_IOENGINE_POSIX;
	else
		return tn_fail(-EINVAL, "io_engine \"%s\": must be auto, io_uring or posix", cache->o.io_engine);
	return tn_ioengine_create(&o, out);
}
