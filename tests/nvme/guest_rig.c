/* SPDX-License-Identifier: Apache-2.0 */
/* See guest_rig.h. */
#include "guest_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

struct guest guest;

static void say(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	printf("# %s\n", text);
}

static const struct tn_log loud = {say, NULL, TN_LOG_INFO};

void guest_begin(const char *seed)
{
	guest.seed = strtoull(seed, NULL, 0);
	tn_rng_seed(&guest.rng, guest.seed);
	printf("# TN_SEED=%llu\n", (unsigned long long)guest.seed);
}

int guest_end(void)
{
	printf("# %llu commands, %llu bytes moved, %llu injected faults, by which %llu requests failed\n1..%u\n", (unsigned long long)guest.commands,
	       (unsigned long long)guest.bytes, (unsigned long long)guest.faults, (unsigned long long)guest.failed, guest.tests);
	fflush(stdout);
	return guest.failures != 0;
}

void guest_report(const char *name, bool ok)
{
	printf("%s %u - %s\n", ok ? "ok" : "not ok", ++guest.tests, name);
	if (!ok)
		printf("# TN_SEED=%llu: %s (%s)\n", (unsigned long long)guest.seed, guest.why, tn_error_last()->text);
	guest.failures += !ok;
	fflush(stdout);
}

bool guest_open(const char *bdf, struct guest_drive *d)
{
	struct tn_nvme_opts o = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &loud, .queues = GUEST_QUEUES, .entries = 64};
	int rc = tn_nvme_vfio_open(bdf, &tn_alloc_system, &d->vfio);

	must(rc == 0, "%s is not opened: %d", bdf, rc);
	snprintf(d->bdf, sizeof(d->bdf), "%s", bdf);
	o.port = d->port = tn_nvme_vfio_port(d->vfio);
	rc = tn_nvme_create(&o, &d->nvme);
	must(rc == 0, "%s is not up: %d", bdf, rc);
	d->info = tn_nvme_info(d->nvme);
	must(d->info->cache, "%s has no volatile cache", bdf);
	return true;
}

void guest_close(struct guest_drive *d)
{
	tn_nvme_destroy(d->nvme);
	tn_nvme_vfio_close(d->vfio);
	memset(d, 0, sizeof(*d));
}

void guest_prps(struct guest_drive *d, bool alone)
{
	((struct tn_nvme_info *)(uintptr_t)d->info)->sgl = !alone;
}

bool guest_engine(const struct guest_drive *d, uint32_t queue, uint64_t first, uint64_t blocks, struct tn_io **io)
{
	const struct tn_nvme_engine_opts o = {.nvme = d->nvme, .port = d->port, .queue = queue, .first = first, .blocks = blocks, .depth = 64,
					      .command_ns = 60 * GUEST_SECOND_NS, .force = d->force, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	int rc = tn_nvme_engine_create(&o, io);

	must(rc == 0, "%s: no engine on queue %u: %d", d->bdf, queue, rc);
	return true;
}

void guest_engine_end(struct tn_io *io)
{
	struct tn_nvme_engine_stats stats;

	tn_nvme_engine_stats(io, &stats);
	guest.commands += stats.commands;
	guest.bytes += stats.bytes;
	tn_io_destroy(io);
}
