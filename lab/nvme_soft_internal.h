/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the software controller share. */
#ifndef TN_LAB_NVME_SOFT_INTERNAL_H
#define TN_LAB_NVME_SOFT_INTERNAL_H

#include <pthread.h>

#include "base/fork.h"
#include "base/rng.h"
#include "lab/drive.h"
#include "lab/nvme_soft.h"

#define TN_SOFT_WORK_MAX 4096u
#define TN_SOFT_PIECES_MAX 1040u /* of one command: 4 MiB in pages, and more */
#define TN_SOFT_BUS_PAGES (1u << 20)
#define TN_SOFT_REGIONS_MAX 256u
#define TN_SOFT_NO_QUEUE TN_SOFT_QUEUES_MAX /* of a command whose queue is gone */

struct tn_soft_sq {
	uint64_t bus;
	uint32_t entries, head; /* 0 entries: it is not there */
};

struct tn_soft_cq {
	uint64_t bus;
	uint32_t entries, head, tail, phase;
};

/* A command that was fetched and whose completion was not posted. */
struct tn_soft_work {
	struct tn_nvme_command c;
	uint32_t queue, result, status;
	uint64_t number;      /* of all commands that were fetched; 0: none, this is free */
	uint64_t due;	      /* the step in which it is completed at the earliest */
	bool done, lost, twice, told; /* told: its completion was posted, once at least: the host may know */
	uint64_t list_sum, data_sum; /* as they were when it was fetched */
	bool paced;
	struct tn_drive_job job; /* paced: in the drive, until it has an end */
};

/* Mapped memory: where its pages are on the bus. */
struct tn_soft_region {
	unsigned char *memory;
	uint64_t pages;
	uint32_t *bus;
};

/* A block as it was before a write that was not flushed. Those of one command follow one another. */
struct tn_soft_undo {
	struct tn_soft_undo *next; /* older */
	uint64_t block;
	uint64_t number; /* of the command that wrote it */
	uint64_t flush;	 /* number of the first flush that covers it; 0: none */
	const struct tn_soft_work *work; /* which the command was; its number is another one once the command has ended. NULL: under way when it was copied */
	uint32_t at, of; /* which block of the command, of how many */
	bool kept;	 /* a cut left the new bytes */
	unsigned char bytes[];
};

struct tn_soft {
	struct tn_soft_opts o; /* mix: the one below, or NULL */
	struct tn_mix mix;
	struct tn_drive drive;
	struct tn_soft_chances chances;
	struct tn_soft_stats stats;
	struct tn_soft_moved moved[TN_SOFT_QUEUES_MAX]; /* shared */
	struct tn_nvme_port port;
	struct tn_rng rng, map_rng; /* map_rng: under lock */
	uint64_t cap, now, number; /* number: of the last command */
	uint64_t stalls_until;	   /* this step */
	tn_soft_command_fn on_command;
	void *on_command_arg;
	unsigned char *registers, *media;
	uint64_t register_bytes;
	uint32_t cc; /* as it was seen last */
	uint32_t granted, made; /* pairs of queues */
	int file;    /* of the namespace, -1: none */
	struct tn_fork_fd fork; /* a child that outlives this process must not keep it */
	bool unplugged, hung, stop, threaded;
	pthread_t thread;
	struct tn_soft_sq sq[TN_SOFT_QUEUES_MAX];
	struct tn_soft_cq cq[TN_SOFT_QUEUES_MAX];
	struct tn_soft_work work[TN_SOFT_WORK_MAX];
	uint32_t active[TN_SOFT_WORK_MAX], nactive;
	uint32_t free_work[TN_SOFT_WORK_MAX], nfree;
	struct tn_nvme_piece piece[TN_SOFT_PIECES_MAX]; /* of the command that is looked at */
	struct tn_soft_undo *undo;
	pthread_mutex_t lock; /* of what maps memory */
	unsigned char **page; /* by page of the bus: the memory, or NULL */
	uint32_t next_page;
	struct tn_soft_region region[TN_SOFT_REGIONS_MAX];
};

void tn_soft_found(struct tn_soft *s, enum tn_soft_finding finding);

/* ---- nvme_soft_data.c ---- */
int tn_soft_data_init(struct tn_soft *s);
void tn_soft_data_fini(struct tn_soft *s);
/* Memory at a bus address that lies in one page; NULL: it is not mapped. */
void *tn_soft_at(struct tn_soft *s, uint64_t bus, uint64_t bytes);
/* A status of 0, or what the command ends with: checks everything, and remembers sums of the list and of a write's data. */
uint32_t tn_soft_look(struct tn_soft *s, struct tn_soft_work *w);
/* Moves the bytes; the status. */
uint32_t tn_soft_do(struct tn_soft *s, struct tn_soft_work *w);
/* Answer of an admin command. */
uint32_t tn_soft_to_memory(struct tn_soft *s, struct tn_soft_work *w, unsigned char *data, uint64_t bytes);
/* What a write that is under way would write, written to a copy of the controller; false: no memory. */
bool tn_soft_copy_write(struct tn_soft *s, struct tn_soft_work *w, struct tn_soft *to);

/* ---- nvme_soft_cache.c ---- */
/* These blocks are about to be written; false: no memory. */
bool tn_soft_remember(struct tn_soft *s, const struct tn_soft_work *w, uint64_t block, uint64_t blocks);
/* These blocks are durable as they are now. */
void tn_soft_settle(struct tn_soft *s, uint64_t block, uint64_t blocks);
/* A flush was fetched: it covers what has ended by now (Base 7.1). */
void tn_soft_cover(struct tn_soft *s, uint64_t flush);
/* It is done. */
void tn_soft_flush(struct tn_soft *s, uint64_t flush);
/* Of each block that was not flushed the old or the new bytes stay, by chance. */
void tn_soft_lose(struct tn_soft *s);

#endif
