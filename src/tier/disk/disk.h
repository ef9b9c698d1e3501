/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: a store's slots and who gets them (disk.c), and the store's drives with the headers beside the data (drives.c).
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DISK_DISK_H
#define TN_TIER_DISK_DISK_H

#include "tier/drives.h"

struct tn_headers;

struct tn_disk {
	struct tn_tier_base base; /* first */
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	struct tn_store *store;
	struct tn_headers *headers;
	uint64_t disk_blocks;
	uint32_t max_blocks;
};

static inline struct tn_disk *tn_disk_of(struct tn_tier_base *t)
{
	return (struct tn_disk *)t;
}

static inline const struct tn_disk *tn_disk_at(const struct tn_tier_base *t)
{
	return (const struct tn_disk *)t;
}

struct tn_disk_opts {
	struct tn_store *store;
	struct tn_policy *policy; /* the tier's from now on */
	uint64_t disk_blocks;	  /* at most so many; 0: as many as fit */
	uint32_t max_blocks;	  /* records of the registry */
	uint64_t header_cache_bytes;
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
};
int tn_disk_tier_create(const struct tn_disk_opts *opts, struct tn_tier_base **out);
/* All blocks in these slots leave, or none if somebody holds one. */
bool tn_disk_tier_vacate(struct tn_tier_base *t, tn_slot first, uint32_t n);

extern const struct tn_drive_ops tn_disk_drive_ops;
extern const struct tn_durable_ops tn_disk_durable_ops;

#endif
