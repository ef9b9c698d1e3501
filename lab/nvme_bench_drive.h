/* SPDX-License-Identifier: Apache-2.0 */
/* A software controller that is brought up for a measurement, with memory that it reaches. */
#ifndef TN_LAB_NVME_BENCH_DRIVE_H
#define TN_LAB_NVME_BENCH_DRIVE_H

#include "lab/nvme_soft.h"

/**
 * struct tn_bench_drive_opts
 * @bytes:   of the namespace, in blocks of 4 KiB
 * @queues, @entries: I/O queue pairs, and entries of each
 * @checking: the controller checks how it is driven
 */
struct tn_bench_drive_opts {
	uint64_t bytes;
	uint32_t queues, entries;
	bool sgl, checking;
};

struct tn_bench_drive {
	struct tn_soft *soft;
	struct tn_nvme *nvme;
	const struct tn_nvme_port *port;
	unsigned char *media; /* the namespace's bytes */
};

/* The controller alone, with its bytes in memory; 0 and *out, or -errno. */
int tn_bench_soft_create(const struct tn_bench_drive_opts *o, struct tn_soft **out);
/* And brought up. 0, or -errno and nothing is left. */
int tn_bench_drive_up(struct tn_bench_drive *d, const struct tn_bench_drive_opts *o);
/* Its users are gone. Fine for zeroed memory. */
void tn_bench_drive_down(struct tn_bench_drive *d);
/* The controller found nothing wrong with how it was driven: 0, or -EIO. It has no thread. */
int tn_bench_drive_check(const struct tn_bench_drive *d);

/* Memory on huge pages where there are any; or NULL. */
unsigned char *tn_bench_memory(uint64_t bytes);
void tn_bench_memory_put(unsigned char *memory, uint64_t bytes);

#endif
