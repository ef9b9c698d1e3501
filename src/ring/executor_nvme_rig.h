/* SPDX-License-Identifier: Apache-2.0 */
/* The executor on NVMe queues, for the executors' tests: its drive is a software controller. */
#ifndef TN_RING_EXECUTOR_NVME_RIG_H
#define TN_RING_EXECUTOR_NVME_RIG_H

#include "lab/nvme_soft.h"
#include "nvme/engine.h"
#include "ring/nvme.h"
#include "tn_test.h"

/**
 * struct rig_nvme_opts
 * @thread: the executor and the controller have a thread each
 * @soft:   the controller; its blocks are for the rig to say
 * @clock:  that the driver's deadlines go by, and that moves while the driver waits; NULL: the system's, with deadlines that no busy machine meets
 */
struct rig_nvme_opts {
	bool thread;
	struct tn_soft_opts soft;
	uint32_t entries, queues; /* queues: pairs; the first is the engine's that makes the file */
	uint64_t file_bytes;
	const struct tn_clock *clock;
	uint64_t command_ns, admin_ns; /* with a clock; command_ns is the executor's without one, too, for controllers that lose commands */
};

/* A controller with a file on it. */
struct rig_nvme {
	struct rig_nvme_opts o;
	struct tn_soft *soft;
	struct tn_nvme *nvme;
	struct tn_io *io;
	uint32_t file;
	struct tn_ring_drive drive; /* for the first executor; others change the queue */
};

void rig_nvme_opts_init(struct rig_nvme_opts *o);
void rig_nvme_up(struct rig_nvme *n, const struct rig_nvme_opts *o);
/* And there were no findings. */
void rig_nvme_down(struct rig_nvme *n);
/* The file's bytes. */
unsigned char *rig_nvme_bytes(struct rig_nvme *n);
/* What the controller does meanwhile; it has no thread. */
void rig_nvme_step(struct rig_nvme *n);

#endif
