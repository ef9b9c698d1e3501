/* SPDX-License-Identifier: Apache-2.0 */
/* See drives.h. */
#include "drives/drives.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "drives/route.h"
#include "nvme/claim.h"
#include "nvme/engine.h"
#include "nvme/vfio.h"

#define ENTRIES 256u
#define ENGINE_PAIRS 1u /* the first one is the engine's */
#define RETRY_NS 10000000ull

struct drive {
	char prefix[sizeof(TN_DRIVE_PREFIX) + TN_NVME_BDF_BYTES];
	struct tn_nvme_vfio *vfio; /* NULL: opened by opts.open */
	const struct tn_nvme_port *port;
	struct tn_nvme *nvme;
	struct tn_io *io; /* the engine's */
};

struct tn_drives {
	struct tn_drives_opts o;
	struct drive at[TN_ROUTES_MAX];
	uint32_t n;
	const struct tn_io *made; /* the engine, once it was */
};

bool tn_drive_is(const char *dir)
{
	return strncmp(dir, TN_DRIVE_PREFIX, strlen(TN_DRIVE_PREFIX)) == 0;
}

static struct drive *find(const struct tn_drives *d, const char *dir)
{
	size_t bytes = strcspn(dir, "/");

	for (uint32_t i = 0; d && i < d->n; i++)
		if (strlen(d->at[i].prefix) == bytes && strncmp(d->at[i].prefix, dir, bytes) == 0)
			return (struct drive *)(uintptr_t)&d->at[i];
	return NULL;
}

/* ---- controllers ----------------------------------------------------------------------------------------------------- */

static int reach(const struct tn_drives *d, struct drive *v)
{
	const char *address = v->prefix + strlen(TN_DRIVE_PREFIX);
	int rc;

	if (d->o.open)
		return d->o.open(d->o.open_arg, address, &v->port);
	rc = tn_nvme_vfio_open(address, d->o.alloc, &v->vfio);
	if (rc == 0)
		v->port = tn_nvme_vfio_port(v->vfio);
	return rc;
}

/*
 * A drive that another driver has, or that something uses, is refused at once, with what to do. A process that was killed keeps its controller
 * until the kernel is through with it: that is waited for.
 */
static int reach_patiently(const struct tn_drives *d, struct drive *v)
{
	const struct timespec pause = {.tv_nsec = (long)RETRY_NS};
	uint64_t end = tn_now_ns(d->o.clock) + d->o.wait_ns;
	char bdf[TN_NVME_BDF_BYTES];
	int rc = d->o.open ? 0 : tn_nvme_claim(v->prefix + strlen(TN_DRIVE_PREFIX), bdf);

	if (rc)
		return rc;
	while ((rc = reach(d, v)) == -EBUSY && tn_now_ns(d->o.clock) < end)
		nanosleep(&pause, NULL);
	return rc;
}

static int add(struct tn_drives *d, const char *dir)
{
	const char *instance = strrchr(dir, '/'); /* as everywhere behind a directory */
	size_t bytes = strcspn(dir, "/");
	struct drive *v = &d->at[d->n];
	uint32_t executors = d->o.executors ? d->o.executors : 1, pairs;
	struct tn_nvme_opts o = {.alloc = d->o.alloc, .clock = d->o.clock, .log = d->o.log, .queues = ENGINE_PAIRS + executors, .entries = ENTRIES,
				 .admin_ns = d->o.command_ns};
	int rc;

	if (bytes == strlen(TN_DRIVE_PREFIX) || bytes >= sizeof(v->prefix))
		return tn_fail(-EINVAL, "%.*s: no address of a drive; one looks like " TN_DRIVE_PREFIX "0000:03:00.0, and `tenuto doctor` lists them",
			       instance ? (int)(instance - dir) : (int)strlen(dir), dir);
	if (find(d, dir))
		return tn_fail(-EINVAL, "%.*s is given twice", (int)bytes, dir);
	if (d->n == TN_ROUTES_MAX)
		return tn_fail(-EINVAL, "%u drives: at most %u", d->n + 1, TN_ROUTES_MAX);
	snprintf(v->prefix, sizeof(v->prefix), "%.*s", (int)bytes, dir);
	rc = reach_patiently(d, v);
	if (rc)
		return rc;
	d->n++;
	o.port = v->port;
	rc = tn_nvme_create(&o, &v->nvme);
	if (rc)
		return rc;
	pairs = tn_nvme_info(v->nvme)->queues;
	if (pairs < ENGINE_PAIRS + d->o.executors)
		return tn_fail(-EINVAL, "executors %u: %s has %u pairs of queues, of which the store has one and each executor another: give at most %u",
			       d->o.executors, v->prefix, pairs, pairs - ENGINE_PAIRS);
	return 0;
}

int tn_drives_open(const struct tn_drives_opts *opts, struct tn_drives **out)
{
	struct tn_drives *d = NULL;
	int rc = 0;

	*out = NULL;
	for (size_t i = 0; i < opts->ndirs && rc == 0; i++) {
		if (!tn_drive_is(opts->dirs[i]))
			continue;
		d = d ? d : tn_get(opts->alloc, sizeof(*d));
		if (!d)
			return tn_fail(-ENOMEM, "drives: no memory");
		d->o = *opts;
		rc = add(d, opts->dirs[i]);
	}
	if (rc)
		tn_drives_close(d);
	else
		*out = d;
	return rc;
}

void tn_drives_close(struct tn_drives *d)
{
	if (!d)
		return;
	for (uint32_t i = 0; i < d->n; i++) {
		tn_nvme_destroy(d->at[i].nvme);
		tn_nvme_vfio_close(d->at[i].vfio);
	}
	tn_put(d->o.alloc, d, sizeof(*d));
}

uint32_t tn_drives_count(const struct tn_drives *d)
{
	return d ? d->n : 0;
}

const struct tn_nvme_info *tn_drives_info(const struct tn_drives *d, const char *dir)
{
	const struct drive *v = find(d, dir);

	return v ? tn_nvme_info(v->nvme) : NULL;
}

/* ---- the engine -------------------------------------------------------------------------------------------------------- */

static int make(struct tn_drives *d, uint32_t i, uint32_t depth)
{
	struct drive *v = &d->at[i];
	const char *serial = tn_nvme_info(v->nvme)->serial;
	const struct tn_nvme_engine_opts o = {
		.nvme = v->nvme,
		.port = v->port,
		.file = TN_IO_FILES_MAX + i,
		.depth = depth,
		.command_ns = d->o.command_ns,
		.force = d->o.force_serial && strcmp(d->o.force_serial, serial) == 0,
		.alloc = d->o.alloc,
		.clock = d->o.clock,
		.log = d->o.log,
	};

	return tn_nvme_engine_create(&o, &v->io);
}

int tn_drives_engine(struct tn_drives *d, struct tn_io *files, uint32_t depth, struct tn_io **out)
{
	struct tn_route route[TN_ROUTES_MAX];
	int rc = 0;

	if (d->made)
		return tn_fail(-ENOTSUP, "drives: a namespace has one engine, and there is one already");
	for (uint32_t i = 0; i < d->n && rc == 0; i++) {
		rc = make(d, i, depth);
		route[i] = (struct tn_route){d->at[i].prefix, d->at[i].io};
	}
	rc = rc ? rc : tn_route_create(files, route, d->n, d->o.alloc, d->o.clock, out);
	for (uint32_t i = 0; rc && i < d->n; i++) {
		tn_io_destroy(d->at[i].io);
		d->at[i].io = NULL;
	}
	d->made = rc ? NULL : *out;
	return rc;
}

struct tn_io *tn_drives_io(const struct tn_drives *d, const char *dir)
{
	const struct drive *v = find(d, dir);

	return v ? v->io : NULL;
}

bool tn_drives_range(const struct tn_drives *d, const struct tn_io *io, uint32_t file, struct tn_drive_range *out)
{
	const struct drive *v;

	if (!d || io != d->made || file < TN_IO_FILES_MAX || file - TN_IO_FILES_MAX >= d->n)
		return false;
	v = &d->at[file - TN_IO_FILES_MAX];
	*out = (struct tn_drive_range){.nvme = v->nvme, .port = v->port, .pair = ENGINE_PAIRS,
				       .pairs = tn_nvme_info(v->nvme)->queues - ENGINE_PAIRS, .command_ns = d->o.command_ns};
	tn_nvme_engine_range(v->io, &out->first, &out->blocks);
	return true;
}

uint64_t tn_drives_bytes(const struct tn_drives *d, const char *dir)
{
	const struct drive *v = find(d, dir);

	return v && v->io ? tn_nvme_engine_bytes(v->io) : 0;
}

int tn_drives_format(struct tn_drives *d, const char *dir)
{
	struct drive *v = find(d, dir);

	return v && v->io ? tn_nvme_engine_format(v->io) : tn_fail(-EINVAL, "%.60s: no drive; an address looks like " TN_DRIVE_PREFIX "0000:03:00.0", dir);
}
