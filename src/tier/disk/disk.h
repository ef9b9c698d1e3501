/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: a store's slots and who gets them (disk.c), the store's drives with the headers beside the data (drives.c, headers.c), what is durable
 * (durable.c), how large a new store is (capacity.c), and what was found when it was opened (open.c).
 *
 * Owner thread only.
 */
#ifndef TN_TIER_DISK_DISK_H
#define TN_TIER_DISK_DISK_H

#include "tier/drives.h"
#include "tier/durable.h"
#include "tier/row.h"

extern const struct tn_tier_maker tn_disk_tier_maker;

/* The store behind it, for tests. */
struct tn_store *tn_disk_tier_store(struct tn_tier_base *t);

/* ---- among the files of the tier ------------------------------------------------------------------------------- */

struct recovery;
struct tn_headers;

struct tn_disk {
	struct tn_tier_base base; /* first */
	const struct tn_tier_env *env;
	struct tn_store *store; /* NULL: not open */
	struct tn_headers *headers;
	struct recovery *recovery; /* while the store is opened */
};

static inline struct tn_disk *tn_disk_of(struct tn_tier_base *t)
{
	return (struct tn_disk *)t;
}

static inline const struct tn_disk *tn_disk_at(const struct tn_tier_base *t)
{
	return (const struct tn_disk *)t;
}

int tn_disk_plan(struct tn_tier_env *env, uint64_t *blocks);
uint64_t tn_disk_new_slots(const struct tn_tier_env *env);
int tn_disk_open(struct tn_tier_base *t);
int tn_disk_close(struct tn_tier_base *t);

extern const struct tn_drive_ops tn_disk_drive_ops;
extern const struct tn_durable_ops tn_disk_durable_ops;

#endif
