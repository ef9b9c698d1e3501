/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The I/O engines of a cache and the executor on them, made as its options say, and what is known of each device's mix of reads and writes.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "drives/drives.h"
#include "ioengine/ioengine.h"
#include "ioengine/mixfile.h"
#include "ring/nvme.h"

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
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .executors = e->opts->executors,
					 .wait_ns = e->opts->lock_timeout_ns, .alloc = e->alloc, .clock = e->clock, .log = e->log};
	int rc = tn_drives_open(&o, &e->drives);

	if (rc)
		return rc;
	for (size_t i = 0; i < e->opts->ndirs; i++)
		if (!tn_drive_is(e->opts->dirs[i]))
			load_measured(e, i);
	return 0;
}

static int files_engine(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
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

int tn_engine_open(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
{
	bool only_drives = e->opts->ndirs > 0 && tn_drives_count(e->drives) == e->opts->ndirs;
	struct tn_io *files = NULL;
	int rc = only_drives ? 0 : files_engine(e, depth, &files);

	if (rc || !e->drives) {
		*out = files;
		return rc;
	}
	if (e->opts->executors && !only_drives)
		rc = tn_fail(-ENOTSUP, "executors %u: with directories beside namespaces the owner thread moves all bytes; give executors 0, or namespaces alone",
			     e->opts->executors);
	rc = rc ? rc : tn_drives_engine(e->drives, files, depth, out);
	if (rc)
		tn_io_destroy(files);
	return rc;
}

/* ---- the executor ------------------------------------------------------------------------------------------------ */

/* What the executor's devices are. */
struct places {
	struct tn_ring_drive drive[TN_RING_DEVICES_MAX];
	uint32_t drives, files;
	uint32_t pairs; /* that each drive has at least, beside the engine's */
	uint64_t command_ns;
};

static void find_places(const struct tn_engines *e, const struct tn_executor_files *files, uint32_t n, struct places *p)
{
	*p = (struct places){.pairs = UINT32_MAX};
	for (uint32_t i = 0; i < n; i++) {
		struct tn_drive_range r;

		if (files->file[i] == TN_IO_NO_FILE)
			continue;
		if (!tn_drives_range(e->drives, files->io, files->file[i], &r)) {
			p->files++;
			continue;
		}
		p->drives++;
		p->pairs = r.pairs < p->pairs ? r.pairs : p->pairs;
		p->command_ns = r.command_ns;
		p->drive[i] = (struct tn_ring_drive){.nvme = r.nvme, .port = r.port, .queue = r.pair, .first = r.first, .blocks = r.blocks};
	}
}

int tn_executor_open(const struct tn_engines *e, const struct tn_executor_opts *o, const struct tn_executor_files *files, struct tn_executor **out)
{
	struct places p;

	find_places(e, files, o->ndevices, &p);
	if (p.drives && !p.files && p.pairs)
		return tn_executor_nvme_create(o, &(struct tn_executor_drives){p.drive, p.command_ns, e->log}, out);
	if (p.drives)
		tn_log(e->log, TN_LOG_INFO, "all bytes go through the engine of the store: %s",
		       p.files ? "there are directories beside namespaces" : "a controller has one pair of queues");
	return tn_executor_files_create(o, files, out);
}
