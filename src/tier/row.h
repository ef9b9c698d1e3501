/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers that there are, and what each is made of: the options of a cache and what the cache has. First all are planned, which says how many records of
 * blocks they need; then each is made, joins the row, and is opened.
 *
 * Owner thread only.
 */
#ifndef TN_TIER_ROW_H
#define TN_TIER_ROW_H

#include <tenuto/cache.h>

#include "base/exec.h"
#include "base/log.h"
#include "device/copier.h"
#include "drives/drives.h"
#include "tier/tier.h"

#define TN_TIER_JOBS 128u /* that all tiers together may have posted to the exec */

/* What a tier asks of its owner. */
struct tn_tier_owner {
	/* Of n places that could not be vacated: whether transfers under way are all that is in the way, which end without anybody's doing. */
	bool (*passes)(void *arg, uint32_t first, uint32_t n);
	/* Something that took no writes takes them again. */
	void (*takes_writes)(void *arg);
	/* Whether a background write of so many bytes may go now, and that it ended. */
	bool (*may_write)(void *arg, uint32_t device, uint64_t bytes);
	void (*written)(void *arg, uint32_t device, uint64_t bytes);
	void *arg;
};

struct tn_tier_env {
	struct tn_cache_opts *o; /* plans fill in what they left open */
	const struct tn_alloc *alloc;
	const struct tn_clock *clock;
	const struct tn_log *log;
	struct tn_io *io;	/* tn_io_wake of it wakes the owner */
	struct tn_exec *exec;	/* for copies and checksums of a tier's own; NULL: there are no workers */
	struct tn_drives *drives; /* of directories that are drives; NULL: none is */
	struct tn_copiers *copiers;
	struct tn_tier_owner owner;
	uint32_t max_blocks;	/* records of the registry, once all are planned */
	uint64_t slow_read_ns;	/* latency budget of a read */
	uint64_t segment_bytes; /* of new stores; 0: the store's choice */
	uint64_t slot_bytes;	/* of the blocks announced at open; 0: none were */
	uint64_t boot[2];	/* which boot of the machine this is; zero: the kernel is asked (simulations set it) */
	uint64_t entropy[2];	/* secrets and UUIDs of new stores come from it; zero: from the kernel (simulations set it) */
};

struct tn_tier_maker {
	/* Adds how many blocks the tier may hold. NULL: none that need records of their own. */
	int (*plan)(struct tn_tier_env *env, uint64_t *blocks);
	/* *out stays NULL if the options say that there is no such tier. The env outlives it. */
	int (*make)(const struct tn_tier_env *env, struct tn_tier_base **out);
};

/* By enum tn_tier; NULL: nobody makes it. A cache may have others in their place (struct tn_cache). */
extern const struct tn_tier_maker *const tn_tier_makers[TN_TIERS_MAX];

/* All tiers' plans, the lowest tier's first, because it knows best how large blocks are. */
int tn_tiers_plan(const struct tn_tier_maker *const *makers, struct tn_tier_env *env, uint64_t *blocks);

#endif
