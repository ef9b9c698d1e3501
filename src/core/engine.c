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
static void load_measured(struct tn_engines *e, size_t device)
{
	const char *dir = e->opts->dirs[device];
	int len = (int)(strrchr(dir, '/') - dir);
	char path[PATH_MAX];

	if ((size_t)snprintf(path, sizeof(path), "%.*s/" TN_MIXFILE_NAME, len, dir) >= sizeof(path))
		return;
	if (tn_mixfile_load(path, &e->mix[device]) && tn_error_last()->code != -ENOENT)
		tn_log(e->log, TN_LOG_WARN, "%s; nothing is taken as known of the device", tn_error_last()->text);
}

int tn_devices_open(struct tn_engines *e)
{
	for (size_t i = 0; i < e->opts->ndirs; i++)
		load_measured(e, i);
	return 0;
}

int tn_engine_open(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
{
	struct tn_ioengine_opts o = {
		.depth = depth,
		.alloc = e->alloc,
		.clock = e->clock,
		.log = e->log,
	};

	if (strcmp(e->opts->io_engine, "auto") == 0)
		o.kind = TN_IOENGINE_AUTO;
	else if (strcmp(e->opts->io_engine, "io_uring") == 0)
		o.kind = TN_IOENGINE_URING;
	else if (strcmp(e->opts->io_engine, "posix") == 0)
		o.kind = TN_IOENGINE_POSIX;
	else
		return tn_fail(-EINVAL, "io_engine \"%s\": must be auto, io_uring or posix", e->opts->io_engine);
	return tn_ioengine_create(&o, out);
}
