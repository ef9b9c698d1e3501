/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the NVMe driver on the software controller (nvme_soft.h): commands of a pair of queues, objects through the I/O engine, and what
 * the executor takes to submit a layer. The controller has no volatile cache and, unless it is asked to check, looks at nothing that costs time.
 *
 * Each measurement is made once, then run round by round, so that a caller can interleave several. One thread makes all calls. Where the
 * controller has a thread of its own, it has it during a run only.
 */
#ifndef TN_LAB_NVME_BENCH_H
#define TN_LAB_NVME_BENCH_H

#include <stdbool.h>
#include <stdint.h>

/* ---- commands: reads of 4 KiB on one pair, as many under way as the queue takes -------------------------------------- */

enum tn_nvme_bench_device {
	TN_NVME_BENCH_NOTHING,	/* ends commands on the driver's thread and moves no bytes; its time is not the driver's */
	TN_NVME_BENCH_SOFT,	/* the software controller, on a thread of its own */
	TN_NVME_BENCH_CHECKING, /* likewise, and it checks how it is driven, as in tests */
};

struct tn_pair_bench;

/* 0 and *out; -EINVAL, -ENOMEM, or what bringing up a controller says. */
int tn_pair_bench_create(enum tn_nvme_bench_device device, uint32_t depth, struct tn_pair_bench **out);
/* Submits so many commands and sees them end. 0, *ns: of the driver per command, *bells: doorbells of the submission queue; -EIO: one failed. */
int tn_pair_bench_run(struct tn_pair_bench *b, uint32_t commands, double *ns, uint64_t *bells);
void tn_pair_bench_destroy(struct tn_pair_bench *b);

/* ---- objects: through the I/O engine from and to mapped memory, beside memcpy of the same bytes ---------------------- */

struct tn_object_bench;

struct tn_object_bench_figures {
	double engine_s, memcpy_s;
};

/* A file of total bytes, moved as objects of so many, depth at once. As tn_pair_bench_create. */
int tn_object_bench_create(bool sgl, uint32_t object_bytes, uint64_t total, uint32_t depth, struct tn_object_bench **out);
/* Moves all objects both ways, memcpy first or last. 0, or -EIO. */
int tn_object_bench_run(struct tn_object_bench *b, bool write, bool memcpy_first, struct tn_object_bench_figures *figures);
void tn_object_bench_destroy(struct tn_object_bench *b);

/* ---- a layer: from an IOCB to commands in the queue ------------------------------------------------------------------- */

#define TN_LAYER_BENCH_OBJECTS 256u
#define TN_LAYER_BENCH_PAGES 32u /* of an object: 4 KiB each, apart in memory */

struct tn_layer_bench;

struct tn_layer_bench_figures {
	double us;	/* of the executor's thread, until all commands are in the queue and the doorbell is rung */
	uint32_t steps; /* of the executor that it took */
	uint32_t commands, bells;
};

/* As tn_pair_bench_create. */
int tn_layer_bench_create(bool sgl, struct tn_layer_bench **out);
/* Submits one layer, then has the controller move it. 0, or -EIO. */
int tn_layer_bench_run(struct tn_layer_bench *b, bool write, struct tn_layer_bench_figures *figures);
void tn_layer_bench_destroy(struct tn_layer_bench *b);

#endif
