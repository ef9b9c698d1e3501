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
#include "core/engine.h"
#include "ioengine/ioengine.h"
#include "ioengine/mixfile.h"

#define PAGE 4096u /* of the bus */

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
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .wait_ns = e->opts->lock_timeout_ns,
					 .alloc = e->alloc, .clock = e->clock, .log = e->log};
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
	if (e->opts->executors)
		rc = tn_fail(-ENOTSUP, "executors %u: a namespace has one engine, which is the owner thread's; give executors 0", e->opts->executors);
	rc = rc ? rc : tn_drives_engine(e->drives, files, depth, out);
	if (rc)
		tn_io_destroy(files);
	return rc;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static bool whole_pages(void *memory, uint64_t bytes, unsigned char **first, uint64_t *length)
{
	uintptr_t from = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE, to = ((uintptr_t)memory + bytes) / PAGE * PAGE;

	*first = (unsigned char *)memory + (from - (uintptr_t)memory);
	*length = to > from ? to - from : 0;
	return *length > 0;
}

bool tn_engines_map(const struct tn_engines *e, struct tn_io *io, void *memory, uint64_t bytes)
{
	unsigned char *first;
	uint64_t length;

	if (!whole_pages(memory, bytes, &first, &length))
		return false;
	if (tn_io_map(io, first, length) == 0)
		return true;
	tn_log(e->log, TN_LOG_WARN, "%s; its bytes are copied on their way to and from the drive", tn_error_last()->text);
	return false;
}

void tn_engines_unmap(struct tn_io *io, void *memory, uint64_t bytes)
{
	unsigned char *first;
	uint64_t length;

	if (io && whole_pages(memory, bytes, &first, &length))
		tn_io_unmap(io, first, length);
}
