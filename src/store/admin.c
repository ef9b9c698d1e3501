/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public door of check.c: real files through a real engine. The only file of the store that knows the
 * engines.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/abi.h"
#include "base/error.h"
#include "ioengine/ioengine.h"
#include "store/store_internal.h"

/* A process that was killed holds its locks until its last transfers have ended: up to 150 ms were seen. */
#define LOCK_TIMEOUT_NS 1000000000ull

struct door {
	char path[TN_DEVICES_MAX][480];
	const char *dirs[TN_DEVICES_MAX];
	struct tn_log log;
	struct tn_io *io;
	struct tn_store_opts opts;
	struct tn_admin_store store; /* as the caller gave it */
};

void tn_admin_store_init_sized(struct tn_admin_store *store, size_t size)
{
	static const struct tn_admin_store defaults = {.size = sizeof(defaults), .instance = "default"};

	tn_abi_init(store, size, &defaults, sizeof(defaults));
}

static int door_open(const struct tn_admin_store *store, struct door *d)
{
	struct tn_ioengine_opts eo = {.kind = TN_IOENGINE_AUTO, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
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
	eo.log = &d->log;
	d->opts = (struct tn_store_opts){.alloc = &tn_alloc_system,
					 .clock = &tn_clock_system,
					 .log = &d->log,
					 .dirs = d->dirs,
					 .ndirs = (uint32_t)a->ndirs,
					 .lock_timeout_ns = LOCK_TIMEOUT_NS};
	if (tn_ioengine_create(&eo, &d->io))
		return tn_error_last()->code;
	d->opts.io = d->io;
	return 0;
}

int tn_admin_store_info(const struct tn_admin_store *store, struct tn_admin_device *device)
{
	struct door d;
	int rc = door_open(store, &d);

	if (rc == 0)
		rc = tn_store_admin_info(&d.opts, device);
	tn_io_destroy(d.io);
	return rc;
}

int tn_admin_store_verify(const struct tn_admin_store *store, struct tn_admin_verify *result)
{
	struct door d;
	int rc = door_open(store, &d);

	if (rc == 0)
		rc = tn_store_admin_verify(&d.opts, &d.store, result);
	tn_io_destroy(d.io);
	return rc;
}

int tn_admin_store_check(const struct tn_admin_store *store, unsigned flags, struct tn_admin_check *result)
{
	struct door d;
	int rc;

	if (flags & ~TN_ADMIN_REBUILD)
		return tn_fail(-EINVAL, "flags %#x: only TN_ADMIN_REBUILD is known", flags);
	rc = door_open(store, &d);
	if (rc == 0)
		rc = tn_store_admin_check(&d.opts, &d.store, flags & TN_ADMIN_REBUILD, result);
	tn_io_destroy(d.io);
	return rc;
}
