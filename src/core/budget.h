/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many IOCBs there are for operations on host memory, and for those on the memory of each device. A device that stands still (device/copier.h) keeps those
 * that it has for as long as it likes, and no others. Within a budget kinds of users share (sched/share.h). Owner thread only.
 */
#ifndef TN_CORE_BUDGET_H
#define TN_CORE_BUDGET_H

#include "core/core.h"
#include "device/copier.h"
#include "sched/share.h"

#define TN_BUDGET_DEPTH 64u			  /* of host memory, and of the first device, as long as that is the only one */
#define TN_BUDGET_IOCBS (4 * TN_BUDGET_DEPTH) /* of all; of them devices never have what host memory may have */

struct tn_budget {
	uint32_t taken;	       /* being written, or out */
	bool stands;	       /* in this turn: the device */
	struct tn_share share; /* by enum tn_transfer_user */
	uint64_t out_bytes[TN_TRANSFER_USERS][2]; /* to or from drives; copied */
};

struct tn_budgets {
	const struct tn_copiers *copiers;
	uint32_t taken; /* of all */
	struct tn_budget at[1 + TN_COPIERS_MAX]; /* of host memory, then by number of the copier */
	uint64_t stands_ns; /* when the next device stands, if it does not move until then */
};

void tn_budgets_init(struct tn_budgets *b, const struct tn_copiers *copiers);
/*
 * Whether the operation's pages are of a device that stands, or some of its blocks are still to come from one: then nothing of it is begun, and what is
 * under way counts nowhere. So whoever looks at what others do passes over it. And whether there are loads besides.
 */
bool tn_op_stands(const struct tn_op *op);
bool tn_loads_move(const struct tn_cache *cache);
/* A turn of the owner's begins; whether a device stands. */
bool tn_budgets_turn(struct tn_budgets *b, uint64_t now_ns);
/* After all have asked (tn_share_again). */
bool tn_budgets_again(struct tn_budgets *b);
/* Of work on memory of the copier's device; NULL: on host memory. */
struct tn_budget *tn_budget_of(struct tn_budgets *b, const struct tn_copier *copier);
/*
 * How many IOCBs it has, taken or not; and how many it may take now. Those of devices that came first may still have what was their share then: so a
 * device that comes later may find less than its share, but host memory has all of its own.
 */
uint32_t tn_budget_depth(const struct tn_copier *copier);
uint32_t tn_budget_left(struct tn_budgets *b, const struct tn_copier *copier);
/* One is taken, or given back. */
void tn_budget_took(struct tn_budgets *b, const struct tn_copier *copier, unsigned user);
void tn_budget_gave(struct tn_budgets *b, const struct tn_copier *copier, unsigned user);

#endif
