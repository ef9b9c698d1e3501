/* SPDX-License-Identifier: Apache-2.0 */
/* The tools' door from outside: the public functions, which bring real files, drives and engines to store/admin.c. And drives made ready. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/memory_limit.h"
#include "base/secret_file.h"
#include "drives/drives.h"
#include "ioengine/ioengine.h"
#include "nvme/claim.h"
#include "store/store.h"

/* A process that was killed holds its locks until its last transfers have ended: up to 150 ms were seen. */
#define LOCK_TIMEOUT_NS 1000000000ull
#define DEPTH 256u

struct door {
	char path[TN_DEVICES_MAX][480];
	const char *dirs[TN_DEVICES_MAX];
	struct tn_log log;
	struct tn_drives *drives;
	struct tn_io *io;
	struct tn_store_opts opts;
	struct tn_admin_store store; /* as the caller gave it */
};

void tn_admin_store_init_sized(struct tn_admin_store *store, size_t size)
{
	static const struct tn_admin_store defaults = {.size = sizeof(defaults), .instance = "default"};

	tn_abi_init(store, size, &defaults, sizeof(defaults));
}

/* For files and for drives, of which the one with the serial number is taken whatever it holds. */
static int door_engine(struct door *d, const char *serial)
{
	const struct tn_ioengine_opts eo = {.kind = TN_IOENGINE_AUTO, .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &d->log};
	const struct tn_drives_opts o = {.dirs = d->dirs, .ndirs = d->store.ndirs, .wait_ns = LOCK_TIMEOUT_NS, .force_serial = serial,
					 .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &d->log};
	struct tn_io *files = NULL;
	int rc = tn_drives_open(&o, &d->drives);

	if (rc == 0 && tn_drives_count(d->drives) < d->store.ndirs)
		rc = tn_ioengine_create(&eo, &files);
	if (rc == 0 && d->drives)
		rc = tn_drives_engine(d->drives, files, DEPTH, &d->io);
	else
		d->io = files;
	if (rc && files && d->io != files)
		tn_io_destroy(files);
	return rc;
}

static int door_open(const struct tn_admin_store *store, const char *serial, struct door *d)
{
	struct tn_admin_store *a = &d->store;
	int rc;

	memset(d, 0, sizeof(*d));
	tn_admin_store_init(a);
	rc = tn_abi_in(TN_ABI(tn_admin_store, progress_arg), a, store);
	if (rc)
		return rc;
	if (a->ndirs == 0 || a->ndirs > TN_DEVICES_MAX || !a->dirs || !a->instance)
		return tn_fail(-EINVAL, "%zu directories: must be 1..%d", a->ndirs, TN_DEVICES_MAX);
	for (size_t i = 0; i < a->ndirs; i++) {
		int n = snprintf(d->path[i], sizeof(d->path[i]), "%s/%s", a->dirs[i], a->instance);

		if (n < 0 || (size_t)n >= sizeof(d->path[i]))
			return tn_fail(-ENAMETOOLONG, "directory name of %d bytes: at most %zu", n, sizeof(d->path[i]) - 1);
		d->dirs[i] = d->path[i];
	}
	d->log = (struct tn_log){a->log, a->log_arg, TN_LOG_INFO};
	d->opts = (struct tn_store_opts){.alloc = &tn_alloc_system,
					 .clock = &tn_clock_system,
					 .log = &d->log,
					 .dirs = d->dirs,
					 .ndirs = (uint32_t)a->ndirs,
					 .lock_timeout_ns = LOCK_TIMEOUT_NS};
	rc = door_engine(d, serial);
	d->opts.io = d->io;
	return rc;
}

static void door_close(struct door *d)
{
	tn_io_destroy(d->io);
	tn_drives_close(d->drives);
}

int tn_admin_store_info(const struct tn_admin_store *store, struct tn_admin_device *device)
{
	struct door d;
	int rc = door_open(store, NULL, &d);

	if (rc == 0)
		rc = tn_store_admin_info(&d.opts, device);
	door_close(&d);
	return rc;
}

int tn_admin_store_verify(const struct tn_admin_store *store, struct tn_admin_verify *result)
{
	struct door d;
	int rc = door_open(store, NULL, &d);

	if (rc == 0)
		rc = tn_store_admin_verify(&d.opts, &d.store, result);
	door_close(&d);
	return rc;
}

int tn_admin_store_check(const struct tn_admin_store *store, unsigned flags, struct tn_admin_check *result)
{
	struct door d;
	int rc;

	if (flags & ~TN_ADMIN_REBUILD)
		return tn_fail(-EINVAL, "flags %#x: only TN_ADMIN_REBUILD is known", flags);
	rc = door_open(store, NULL, &d);
	if (rc == 0)
		rc = tn_store_admin_check(&d.opts, &d.store, flags & TN_ADMIN_REBUILD, result);
	door_close(&d);
	return rc;
}

/* ---- drives -------------------------------------------------------------------------------------------------------- */

int tn_admin_format(const char *drive, const char *serial, tn_log_fn log, void *log_arg)
{
	struct tn_admin_store store;
	char dir[sizeof(TN_DRIVE_PREFIX) + TN_NVME_BDF_BYTES], address[TN_NVME_BDF_BYTES];
	const char *dirs[1] = {dir};
	struct door d;
	int rc;

	if (!drive)
		return tn_fail(-EINVAL, "tn_admin_format: no drive");
	rc = tn_nvme_claim(tn_drive_is(drive) ? drive + strlen(TN_DRIVE_PREFIX) : drive, address);
	if (rc)
		return rc;
	snprintf(dir, sizeof(dir), TN_DRIVE_PREFIX "%s", address);
	tn_admin_store_init(&store);
	store.dirs = dirs;
	store.ndirs = 1;
	store.log = log;
	store.log_arg = log_arg;
	rc = door_open(&store, serial, &d);
	if (rc == 0)
		rc = tn_drives_format(d.drives, dir);
	if (rc == 0 && serial && strcmp(serial, tn_drives_info(d.drives, dir)->serial))
		tn_log(&d.log, TN_LOG_WARN, "%s: its serial number is %s, not %.40s; nothing had to be forced", dir, tn_drives_info(d.drives, dir)->serial, serial);
	door_close(&d);
	return rc;
}

_Static_assert(sizeof(((struct tn_admin_drive *)NULL)->address) == TN_NVME_BDF_BYTES, "nvme/vfio.h");

int tn_admin_drives(struct tn_admin_drive *out, size_t max)
{
	struct tn_nvme_found found[TN_ADMIN_DRIVES_MAX];
	int n = tn_nvme_vfio_find(found, TN_ADMIN_DRIVES_MAX);

	for (int i = 0; i < n && i < (int)TN_ADMIN_DRIVES_MAX && i < (int)max; i++) {
		struct tn_admin_drive *a = &out[i];

		memset(a, 0, sizeof(*a));
		memcpy(a->address, found[i].bdf, sizeof(a->address));
		memcpy(a->driver, found[i].driver, sizeof(a->driver));
		a->iommu_group = found[i].group;
		a->usable = found[i].vfio;
		tn_nvme_lacks(&found[i], a->lacks, sizeof(a->lacks));
	}
	return n;
}

uint64_t tn_admin_memory_limit(char *what, size_t what_bytes)
{
	return tn_memory_limit("", what, what_bytes);
}

int tn_admin_secret_check(const char *path)
{
	struct tn_secret secret;
	int rc = path ? tn_secret_read(path, &secret) : tn_fail(-EINVAL, "tn_admin_secret_check: path is NULL");

	explicit_bzero(&secret, sizeof(secret));
	return rc;
}
