/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig's disk where it is a raw namespace. TN_TEST_NVME=nvme:ADDRESS: that of this controller, through VFIO; it is emptied for each rig, of which
 * there can be one at a time. TN_TEST_NVME=soft: a software controller's, which lies in a file beside the rig's directory, so that the next process
 * finds what one that was killed has left.
 */
#include <stdlib.h>
#include <string.h>
#include <tenuto/admin.h>
#include <unistd.h>

#include "base/error.h"
#include "cache_rig.h"
#include "core/core.h"
#include "drives/drives.h"
#include "lab/nvme_soft.h"
#include "nvme/volume.h"

#define SOFT "nvme:soft"
#define PATIENT_NS (600 * RIG_SECOND) /* its thread may not run for a while on a busy machine */
#define SOFT_BYTES (4ull << 30) /* a hole, but for what is written */

bool rig_namespace;
static struct tn_soft_stats total;
static uint32_t opened, skipped;

bool rig_namespace_is_soft(void)
{
	const char *drive = getenv("TN_TEST_NVME");

	return drive && strcmp(drive, "soft") == 0;
}

/* What this process did, where several may print. */
static void say(void)
{
	if (opened)
		printf("# namespace: %u caches, %llu commands, %llu bytes, %llu flushes\n", opened, (unsigned long long)total.commands,
		       (unsigned long long)total.bytes, (unsigned long long)total.flushes);
	if (skipped)
		printf("# namespace: %u tests are not for it\n", skipped);
}

__attribute__((constructor)) static void look_at_environment(void)
{
	rig_namespace = getenv("TN_TEST_NVME") != NULL;
	if (rig_namespace)
		atexit(say);
}

void rig_skip(void **state)
{
	const char *why = *state;

	skipped++;
	tn_test_skip(why);
}

const char *rig_namespace_name(void)
{
	return rig_namespace_is_soft() ? SOFT : getenv("TN_TEST_NVME");
}

void rig_namespace_empty(void)
{
	const char *drive = getenv("TN_TEST_NVME");

	if (drive && !rig_namespace_is_soft() && tn_admin_format(drive, NULL, NULL, NULL))
		fail_msg("%s: %s", drive, tn_error_last()->text);
}

/* ---- the software controller ------------------------------------------------------------------------------------------ */

static void namespace_file(const struct rig *r, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s.namespace", r->dir);
}

uint64_t rig_store_file(const struct rig *r, char *path, size_t bytes)
{
	if (!rig_namespace) {
		snprintf(path, bytes, "%s/default/tenuto.store", r->dir);
		return 0;
	}
	namespace_file(r, path, bytes);
	return TN_VOLUME_DATA;
}

/* Blocks of 512 bytes and scatter-gather lists, or of 4 KiB and pages. */
static int make_soft(struct rig *r)
{
	char path[sizeof(r->dir) + 16];
	bool large = tn_test_seed() % 2;
	struct tn_soft_opts o;
	int rc;

	namespace_file(r, path, sizeof(path));
	tn_soft_opts_init(&o);
	o.file = path;
	o.block_bytes = large ? 4096 : 512;
	o.blocks = SOFT_BYTES / o.block_bytes;
	o.sgl = large ? 0 : 1;
	o.zeroes = true;
	o.seed = tn_test_seed();
	rc = tn_soft_create(&o, &r->soft);
	return rc ? rc : tn_soft_start(r->soft);
}

static int reach(void *arg, const char *address, const struct tn_nvme_port **port)
{
	struct rig *r = arg;
	int rc = r->soft ? 0 : make_soft(r);

	if (rc == 0)
		*port = tn_soft_port(r->soft);
	return rc;
}

/* As tn_devices_open, with another controller. */
static int open_soft(struct tn_engines *e)
{
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .executors = e->opts->executors,
					 .wait_ns = e->opts->lock_timeout_ns, .command_ns = PATIENT_NS, .open = reach, .open_arg = e->devices, .alloc = e->alloc, .clock = e->clock, .log = e->log};

	return tn_drives_open(&o, &e->drives);
}

static bool has_namespace(const struct tn_cache_opts *opts)
{
	return opts->ndirs && strcmp(opts->dirs[0], rig_namespace_name()) == 0;
}

int rig_namespace_open(struct rig *r, const struct tn_cache_opts *opts, struct tn_cache **out)
{
	int rc = tn_cache_create(opts, out);

	if (rc)
		return rc;
	if (rig_namespace_is_soft()) {
		(*out)->engines.devices = r;
		(*out)->engines.open = open_soft;
	}
	opened += has_namespace(opts);
	return tn_cache_start(*out);
}

void rig_namespace_leave(struct rig *r)
{
	struct tn_soft_stats stats;

	if (!r->soft)
		return;
	tn_soft_stop(r->soft);
	tn_soft_stats(r->soft, &stats);
	tn_soft_destroy(r->soft);
	r->soft = NULL;
	total.commands += stats.commands;
	total.bytes += stats.bytes;
	total.flushes += stats.flushes;
	for (uint32_t i = 0; i < TN_SOFT_FINDINGS; i++)
		if (stats.findings[i])
			rig_fail(r, "the controller found: %s", tn_soft_finding_name((enum tn_soft_finding)i));
}

void rig_namespace_remove(struct rig *r)
{
	char path[sizeof(r->dir) + 16];

	rig_namespace_leave(r);
	namespace_file(r, path, sizeof(path));
	unlink(path);
}
