/* SPDX-License-Identifier: Apache-2.0 */
/* See nvme_bench_drive.h. */
#include "lab/nvme_bench_drive.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define BLOCK_BYTES 4096u
#define MDTS 8u /* 1 MiB */

int tn_bench_soft_create(const struct tn_bench_drive_opts *o, struct tn_soft **out)
{
	struct tn_soft_opts so;
	int rc;

	tn_soft_opts_init(&so);
	so.blocks = o->bytes / BLOCK_BYTES;
	so.block_bytes = BLOCK_BYTES;
	so.entries = o->entries;
	so.queues = o->queues;
	so.mdts = MDTS;
	so.sgl = o->sgl;
	so.cache = false;
	so.trusting = !o->checking;
	rc = tn_soft_create(&so, out);
	if (rc)
		return rc;
	madvise(tn_soft_media(*out), o->bytes, MADV_HUGEPAGE);
	memset(tn_soft_media(*out), 0, o->bytes); /* its pages are there */
	return 0;
}

int tn_bench_drive_up(struct tn_bench_drive *d, const struct tn_bench_drive_opts *o)
{
	struct tn_nvme_opts no = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .queues = o->queues, .entries = o->entries};
	int rc;

	memset(d, 0, sizeof(*d));
	rc = tn_bench_soft_create(o, &d->soft);
	if (rc)
		return rc;
	d->media = tn_soft_media(d->soft);
	d->port = no.port = tn_soft_port(d->soft);
	rc = tn_nvme_create(&no, &d->nvme);
	if (rc)
		tn_bench_drive_down(d);
	return rc;
}

void tn_bench_drive_down(struct tn_bench_drive *d)
{
	tn_nvme_destroy(d->nvme);
	tn_soft_destroy(d->soft);
	memset(d, 0, sizeof(*d));
}

int tn_bench_drive_check(const struct tn_bench_drive *d)
{
	struct tn_soft_stats stats;

	tn_soft_stats(d->soft, &stats);
	for (uint32_t i = 0; i < TN_SOFT_FINDINGS; i++)
		if (stats.findings[i])
			return tn_fail(-EIO, "the software controller found: %s", tn_soft_finding_name(i));
	return 0;
}

unsigned char *tn_bench_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 0, bytes);
	return p;
}

void tn_bench_memory_put(unsigned char *memory, uint64_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}
