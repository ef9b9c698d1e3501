/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of the store drive: oracle (storedrive.c), transfers (_io.c), script (_step.c). */
#ifndef TN_SIM_STOREDRIVE_INTERNAL_H
#define TN_SIM_STOREDRIVE_INTERNAL_H

#include "storedrive.h"

#define NONE UINT32_MAX

/* What a save is told. */
struct drive_spec {
	uint32_t key, cls, space;
	tn_slot slot;
	uint32_t abort_stage; /* 0: no; 1: give up after the data, 2: after the header */
};

bool drive_fail(struct drive *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct tn_key drive_key(uint32_t key);
struct tn_key drive_space_id(uint32_t space);
struct tn_index_entry drive_entry(const struct drive *d, const struct drive_record *r);
uint32_t drive_record_new(struct drive *d, const struct drive_record *r);
/* The index of a space, which is made when it is first used. */
bool drive_space(struct drive *d, uint32_t space);
/* Names the classes of the store that was just opened. */
bool drive_classes(struct drive *d);
/* The live record of a key, or NONE. */
uint32_t drive_live(const struct drive *d, uint32_t key);

/* One poll of the disk, and what follows from it. Whether anything completed. */
bool drive_pump(struct drive *d, uint64_t timeout_ns);
/* Until nothing of the drive's and no flush is under way. */
bool drive_settle(struct drive *d);
/* Writes and publishes up to DRIVE_BATCH blocks side by side. */
bool drive_save_batch(struct drive *d, const struct drive_spec *specs, uint32_t n);
/* Header and data of a found block are what was saved. */
bool drive_verify_block(struct drive *d, const struct drive_record *r);
/* Starts a flush; false: DRIVE_FLUSHES are under way. */
bool drive_flush_start(struct drive *d);
void drive_remove(struct drive *d, uint32_t record, bool failed_slot);
/* A flush of its own, whose end is waited for; it may fail. */
bool drive_flush_status(struct drive *d, int *status);
void drive_memory_free(struct drive *d);

#endif
