/* SPDX-License-Identifier: Apache-2.0 */
/* See soft_cache.h. The function by which a cache opens its drives is replaced before the cache starts. */
#include "lab/soft_cache.h"

#include <errno.h>

#include "base/error.h"
#include "core/core.h"
#include "drives/drives.h"
#include "lab/nvme_bench_drive.h"

#define ADDRESS TN_DRIVE_PREFIX "0000:00:00.0"

struct tn_soft_cache {
	struct tn_soft *soft;
	struct tn_cache *cache;
};

static int reach(void *arg, const char *address, const struct tn_nvme_port **port)
{
	*port = tn_soft_port(arg);
	return 0;
}

/* As tn_devices_open, with the software controller. */
static int open_soft(struct tn_engines *e)
{
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .open = reach, .open_arg = e->devices, .alloc = e->alloc,
					 .clock = e->clock, .log = e->log};

	return tn_drives_open(&o, &e->drives);
}

static int open_cache(struct tn_soft_cache *s, const struct tn_cache_opts *opts)
{
	static const char *const dirs[] = {ADDRESS};
	struct tn_cache_opts o = *opts;
	int rc;

	o.dirs = dirs;
	o.ndirs = 1;
	rc = tn_cache_create(&o, &s->cache);
	if (rc)
		return rc;
	s->cache->engines.open = open_soft;
	s->cache->engines.devices = s->soft;
	rc = tn_cache_start(s->cache);
	if (rc)
		s->cache = NULL; /* freed */
	return rc;
}

int tn_soft_cache_open(const struct tn_cache_opts *opts, uint64_t bytes, bool sgl, struct tn_soft_cache **out)
{
	struct tn_soft_cache *s;
	int rc;

	if (opts->ndirs)
		return tn_fail(-EINVAL, "%zu directories beside a software controller", opts->ndirs);
	s = tn_get(&tn_alloc_system, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "no memory for a cache on a software controller");
	rc = tn_bench_soft_create(&(struct tn_bench_drive_opts){.bytes = bytes, .queues = 1, .entries = 1024, .sgl = sgl}, &s->soft);
	rc = rc ? rc : tn_soft_start(s->soft);
	rc = rc ? rc : open_cache(s, opts);
	if (rc) {
		tn_soft_destroy(s->soft);
		tn_put(&tn_alloc_system, s, sizeof(*s));
		return rc;
	}
	*out = s;
	return 0;
}

struct tn_cache *tn_soft_cache_of(const struct tn_soft_cache *s)
{
	return s->cache;
}

int tn_soft_cache_close(struct tn_soft_cache *s)
{
	int rc = s ? tn_cache_close(s->cache) : 0;

	if (!s || rc)
		return rc;
	tn_soft_destroy(s->soft);
	tn_put(&tn_alloc_system, s, sizeof(*s));
	return 0;
}
