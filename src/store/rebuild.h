/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot table of a device that is being recovered, and what block headers can tell about it (rebuild.c). Only
 * recovery.c uses this.
 */
#ifndef TN_STORE_REBUILD_H
#define TN_STORE_REBUILD_H

#include "store/store_internal.h"

/* The slot table of a device while it is being recovered: what the pages said, then what the log said. */
struct tn_store_table {
	struct tn_store_device *dev;
	struct tn_disk_page *page; /* slot_pages */
	struct tn_disk_record *seg; /* segment_count */
	uint8_t *bad; /* one byte per page: unreadable or not valid */
	uint32_t bad_pages;
	uint64_t fitting, unfit; /* blocks of the segment that was compared last */
	uint64_t max_sequence;
	uint64_t max_epoch;
	uint64_t mark_sequence, mark_epoch; /* of the newest mark */
	bool believe_all; /* there is no mark: each group was synced before the next */
	bool same_boot; /* no power cut came since the groups behind the mark were written, so nothing of them is lost */
};

/* Compares a segment's block headers with the table. A record that no header bears out is flagged to be dropped. */
int tn_store_compare_headers(struct tn_store_table *t, uint32_t segment);
/* Reads the block headers of one segment (first..last part) into the table. */
int tn_store_rebuild_parts(struct tn_store_table *t, uint32_t segment, uint32_t first_part, uint32_t parts);
/* The whole device from segment and block headers. */
int tn_store_rebuild(struct tn_store_table *t);
/* Logs one line: what the rebuild saved, what not, and why. */
void tn_store_tell_salvage(const struct tn_store_device *d);

#endif
