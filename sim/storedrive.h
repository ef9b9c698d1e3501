/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives a block store (src/store) as the disk tier would - reserve, write data, write header, publish, remove,
 * flush, drop, close, open - by random steps from one seed, and keeps the oracle: what must be found
 * after a crash at this moment, what may be, and what must not.
 *
 * The contents of every block follow from its key and version, so that any wrong byte is noticed. A drive
 * can be forked onto a crashed copy of its disk to see what a recovery finds. It knows nothing of the
 * store's format. One thread.
 */
#ifndef TN_SIM_STOREDRIVE_H
#define TN_SIM_STOREDRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "medium.h"
#include "store/store.h"

#define DRIVE_CLASSES 3u
#define DRIVE_SPACES 6u
#define DRIVE_BATCH 5u
#define DRIVE_FLUSHES 8u
#define DRIVE_EVICTS_MAX 256u

/**
 * struct drive_opts
 * @ndevices:      1 or 2 directories of the same disk
 * @capacity_bytes, @segment_bytes, @log_bytes, @max_slots, @prepare: the store's
 * @keys:          how many different keys the script uses
 * @big_percent:   chance that a save is of the class with a header of two pages
 * @faulty:        the disk has faults: failed flushes and saves are no failure of the store
 * @verify_percent: blocks whose data is read after each open (those written lately always)
 */
struct drive_opts {
	uint64_t seed;
	uint32_t ndevices;
	uint64_t capacity_bytes, segment_bytes, log_bytes;
	uint32_t max_slots;
	bool prepare;
	uint32_t keys;
	uint32_t big_percent;
	bool faulty;
	uint32_t verify_percent;
};

/* One save of one block: what the oracle knows of it. Times are ticks of the oracle. */
struct drive_record {
	uint32_t key; /* number of the key */
	uint32_t next; /* older record of the same key, or UINT32_MAX */
	uint64_t sequence;
	uint64_t version;
	struct tn_key parent;
	tn_slot slot;
	tn_slot found; /* where the last open reported it */
	uint64_t published; /* 0: never */
	uint64_t published_ns;
	uint64_t removed; /* 0: not */
	uint8_t dropped; /* 1: its space is being dropped, 2: was */
	uint8_t cls, space, flags;
	bool live; /* in the running store */
	bool declined; /* at the last open */
	bool asked; /* the store asked for its removal: it may be gone (after a failed sync) */
	/*
	 * A process died, or could not close in order, with this block not durable, perhaps just after a failed sync gave it up: the next
	 * power cut may take it.
	 */
	bool shaky;
};

struct drive_save;

struct drive_flush {
	struct drive *drive; /* NULL: free */
	uint64_t tick; /* what it makes durable */
	bool done;
	int status;
};

struct drive_counters {
	uint64_t saves, removes, flushes, drops, opens, starved, verified;
};

struct drive {
	struct drive_opts opts;
	struct medium *disk;
	struct tn_io *io;
	struct tn_store *store;
	struct tn_rng rng;
	struct drive_record *records;
	uint32_t nrecords, records_max;
	uint32_t *newest; /* by key: its newest record, or UINT32_MAX */
	uint64_t tick, durable_tick;
	bool cut; /* the power went and the recovery has not ended: what was not durable may be lost */
	uint64_t killed_ns; /* when only the process died: what was published 100 ms before must be found; 0: power cut */
	uint64_t version, sequence_max;
	uint16_t space[DRIVE_SPACES]; /* the store's index of each that was ever used */
	bool space_open[DRIVE_SPACES]; /* since the last open */
	uint32_t cls[DRIVE_CLASSES];
	uint32_t decline_percent; /* of blocks that `recovered` refuses */
	struct drive_save *saves; /* DRIVE_BATCH, made when first needed */
	struct drive_flush flush[DRIVE_FLUSHES];
	uint32_t own_inflight;
	uint32_t evict[DRIVE_EVICTS_MAX]; /* records that the store asked to evict */
	uint32_t evict_count;
	struct drive_counters n;
	char error[512]; /* the first failure, "" if none */
};

/* On a disk that it does not own. The store is not opened yet. */
struct drive *drive_create(const struct drive_opts *opts, struct medium *disk);
/* The oracle of d as it is now, upon another disk (a crashed copy of d's), with its own randomness. */
struct drive *drive_fork(const struct drive *d, struct medium *disk, uint64_t seed);
/* If the store is still open it is closed with the power off. */
void drive_destroy(struct drive *d);

/* Opens the store. false: d->error says what went wrong (as for all functions here). */
bool drive_open(struct drive *d);
/* Whether what the open found is what the oracle allows, and every byte of it right. */
bool drive_verify(struct drive *d);
/*
 * Its process died, or closed with an error, and a later power cut may take blocks that a failed sync had just given up. drive_adopt
 * and drive_close see to it themselves.
 */
void drive_outlived(struct drive *d);
/* Found is what is true from now on: what the open did not find must never come back. */
void drive_adopt(struct drive *d);
/* Whether two opens found the same blocks in the same slots. */
bool drive_same_found(struct drive *a, const struct drive *b);
/* One random step of the script. */
bool drive_step(struct drive *d);
/* Everything published so far becomes durable. */
bool drive_flush_wait(struct drive *d);
/* Clean close; everything is durable then. */
bool drive_close(struct drive *d);
/* Power cut now, recovery, verification, adoption; the script can go on. */
bool drive_crash(struct drive *d, enum tn_simdisk_crash mode, uint64_t seed);

#endif
