/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NVMe controller in software: registers, queues and an IOMMU in this process's memory, a namespace in memory or in a file.
 *
 * It does what nvme/spec.h says of a controller, and looks at how it is driven: what the specification forbids is a finding, counted by
 * kind, and never does harm. Commands end late, out of order, with errors, twice or not at all, as the options say. A thread steps it, or
 * its driver does while it waits: then a seed decides everything.
 *
 * tn_soft_step is for one thread at a time; tn_soft_fault, the registers, and memory that is mapped are for any.
 */
#ifndef TN_LAB_NVME_SOFT_H
#define TN_LAB_NVME_SOFT_H

#include <stdbool.h>

#include "nvme/controller.h"
#include "sched/mix.h"

#define TN_SOFT_QUEUES_MAX 17u /* with the admin queues */

enum tn_soft_finding {
	TN_SOFT_BAD_ENABLE,    /* enabled with sizes or queues that cannot be */
	TN_SOFT_BAD_DOORBELL,  /* a value beyond the queue, or of entries that were not polled */
	TN_SOFT_NO_ENTRY,      /* a doorbell before its entry */
	TN_SOFT_ID_IN_USE,     /* a command with the id of one under way */
	TN_SOFT_BAD_LIST,      /* PRPs or an SGL that the specification forbids */
	TN_SOFT_BAD_ADDRESS,   /* memory that is not mapped */
	TN_SOFT_TOO_LONG,      /* beyond MDTS, or beyond the namespace */
	TN_SOFT_LIST_TOUCHED,  /* a list that changed while its command was under way */
	TN_SOFT_DATA_TOUCHED,  /* data of a write, likewise */
	TN_SOFT_FINDINGS,
};

/* Chances of faults, of 65,536 commands; of fatal and stall, of as many steps in which commands are under way. */
struct tn_soft_chances {
	uint32_t error;	    /* ends with an error */
	uint32_t lost;	    /* is done, but its completion never comes, unless it is aborted */
	uint32_t twice;	    /* its completion comes twice */
	uint32_t fatal;	    /* the controller fails: CSTS.CFS */
	uint32_t late;	    /* ends after late_steps more */
	uint32_t stall;	    /* the controller does nothing for up to stall_steps, whatever is written to its registers */
};

/**
 * struct tn_soft_opts
 * @blocks, @block_bytes: of the namespace
 * @file:       it lies there, made as needed, and outlives the process; one controller at a time has it. NULL: in memory, as are copies
 * @metadata_bytes: per block: not 0 makes a namespace that no driver of ours takes
 * @entries:    CAP.MQES; 2..4096
 * @queues:     I/O queue pairs; below TN_SOFT_QUEUES_MAX
 * @mdts:       log2 of pages; 0: no limit
 * @stride:     CAP.DSTRD
 * @sgl:        as SGLS bits 1:0; 3, which is reserved: none
 * @zeroes:     has write zeroes
 * @wzsl:       most of one: log2 of pages; 0: no limit
 * @lba_format, @flbas, @formats: which of the namespace's LBA formats is the real one, byte FLBAS, and their number from 0 (NLBAF): all others are decoys with metadata
 * @ignorant:   knows no data about limits of command sets, as controllers before Base 2.0
 * @cache:      a volatile write cache: what was not flushed may be lost by tn_soft_power_cut
 * @scattered:  runs of mapped pages are that long at most on the bus; 0: as long as they are
 * @steps:      commands end up to so many steps after they were fetched, in any order; 0: at once
 * @trusting:   looks at nothing that costs time: for measurements
 * @mix:        reads, writes and flushes take the time that they would on this drive (lab/drive.h), at least; looked at by create alone. NULL: none
 * @stretch:    divides the drive's bandwidth and multiplies its latency; 0: 1
 * @clock:      of the drive's time; NULL: the system's
 */
struct tn_soft_opts {
	uint64_t blocks;
	const char *file;
	uint32_t block_bytes, metadata_bytes;
	uint32_t entries, queues, mdts, stride, sgl, wzsl;
	uint32_t lba_format, flbas, formats;
	bool cache, zeroes, ignorant, trusting;
	uint32_t scattered, steps, late_steps, stall_steps;
	uint64_t seed;
	struct tn_soft_chances chances;
	const struct tn_mix *mix;
	uint32_t stretch;
	const struct tn_clock *clock;
};

struct tn_soft;

void tn_soft_opts_init(struct tn_soft_opts *opts);
/* 0 and *out, or -EINVAL, -ENOMEM; -EBUSY: another controller has the file; or what opening it says. */
int tn_soft_create(const struct tn_soft_opts *opts, struct tn_soft **out);
/* Stops the thread, too. */
void tn_soft_destroy(struct tn_soft *s);
/* How a driver reaches it; valid while it lives. Its pause steps the controller unless a thread does. */
const struct tn_nvme_port *tn_soft_port(struct tn_soft *s);
/* Does some of what there is to do; true if there was anything. */
bool tn_soft_step(struct tn_soft *s);
/* A thread steps it from now on. 0 or -errno. */
int tn_soft_start(struct tn_soft *s);
void tn_soft_stop(struct tn_soft *s);

/* From now on these. */
void tn_soft_fault(struct tn_soft *s, const struct tn_soft_chances *chances);
/* From now on it grants so many pairs of queues, and makes none of a higher number than made. Not while a thread steps it. */
void tn_soft_grant(struct tn_soft *s, uint32_t granted, uint32_t made);
/* Stalls for ever. */
void tn_soft_hang(struct tn_soft *s);
/* Gone at once: every register reads as ones. */
void tn_soft_unplug(struct tn_soft *s);
/* Loses everything under way, and of each block that was written since the last flush the old or the new bytes stay. Comes back disabled. */
void tn_soft_power_cut(struct tn_soft *s);

/*
 * Called after each I/O command was fetched, and after each has ended: between two calls nothing changes what a power cut may leave. May copy
 * the controller, must not use it. NULL: none.
 */
typedef void (*tn_soft_command_fn)(void *arg, struct tn_soft *s);
void tn_soft_on_command(struct tn_soft *s, tn_soft_command_fn fn, void *arg);
/* How often it was stepped. */
uint64_t tn_soft_steps(const struct tn_soft *s);

/**
 * struct tn_soft_volatile - a block that the power may take
 * @number:    of the command that writes it
 * @index:     0: that is the youngest command whose blocks may be taken; so many there are: @count
 * @under_way: the command had not ended
 * @at, @of:   which block of the command it is
 */
struct tn_soft_volatile {
	uint64_t number;
	uint32_t index, count;
	bool under_way;
	uint32_t at, of;
};

typedef bool (*tn_soft_keeps)(void *arg, const struct tn_soft_volatile *v);

/*
 * Another controller with the same namespace and the same volatile cache, disabled; what is under way is in the cache, too. Its own randomness comes
 * from the seed. Not while a thread steps the first one. 0 or -ENOMEM.
 */
int tn_soft_copy(struct tn_soft *s, uint64_t seed, struct tn_soft **out);
/*
 * Of a copy: the power was cut, or (without power_cut) only the host's process died and what had ended stays in the cache. keeps is asked for
 * each block that may be taken.
 */
void tn_soft_cut(struct tn_soft *copy, bool power_cut, tn_soft_keeps keeps, void *arg);

struct tn_soft_stats {
	uint64_t commands, bytes, flushes, faults, aborts, resets, stalls;
	uint64_t findings[TN_SOFT_FINDINGS];
};

/* Whoever steps it, or after tn_soft_stop. */
void tn_soft_stats(const struct tn_soft *s, struct tn_soft_stats *stats);
const char *tn_soft_finding_name(enum tn_soft_finding finding);
/* Bytes that commands of a pair of queues have read and written so far. Any thread. */
struct tn_soft_moved {
	uint64_t read, written;
};
struct tn_soft_moved tn_soft_moved_by(const struct tn_soft *s, uint32_t queue);
/* The namespace's bytes. */
unsigned char *tn_soft_media(struct tn_soft *s);

#endif
