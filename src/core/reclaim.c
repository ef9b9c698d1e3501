/* SPDX-License-Identifier: Apache-2.0 */
/*
 * There is a fixed number of spaces; how many are opened in its life is not bounded. When a new one finds no number, one that
 * nobody has open gives its own back: an empty one at once, else the least recently used lose their blocks first, some
 * records in each step, as those of a drop do. A batch at a time, so that the registry is not gone through for each.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define BATCH 32u
#define BATCH_EVERY_NS 100000000ull /* blocks that nobody holds are gone long before */
#define RECORDS_PER_STEP 1024u /* looked at: some microseconds */

enum leaving {
	LEAVING_NOT,
	LEAVING_MARKED, /* its blocks are being looked for */
	LEAVING_DOOMED, /* they all go, as soon as nobody holds them */
};

struct tn_reclaim {
	struct tn_reclaim_opts o;
	uint8_t leaving[TN_SPACES_MAX]; /* by space: enum leaving */
	uint32_t cursor; /* of the registry: records to go; 0: nothing is looked for */
	uint64_t next_ns; /* the blocks that are on their way out may be held: then more have to go */
};

int tn_reclaim_create(const struct tn_reclaim_opts *opts, struct tn_reclaim **out)
{
	struct tn_reclaim *r = tn_get(opts->alloc, sizeof(*r));

	if (!r)
		return tn_fail(-ENOMEM, "no memory");
	r->o = *opts;
	*out = r;
	return 0;
}

void tn_reclaim_destroy(struct tn_reclaim *r)
{
	if (r)
		tn_put(r->o.alloc, r, sizeof(*r));
}

/* Nobody has it open or does anything in it; who could open it holds the lock. */
static bool idle(const struct tn_reclaim *r, uint32_t i)
{
	const struct tn_space *sp = r->o.spaces[i];

	return !sp || (sp->refs == 0 && sp->ops == 0 && __atomic_load_n(&sp->held, __ATOMIC_ACQUIRE) == 0 &&
		       !__atomic_load_n(&sp->dropping, __ATOMIC_RELAXED));
}

static uint32_t numbers(const struct tn_reclaim *r)
{
	return r->o.durable ? r->o.durable->ops->durable->numbers(r->o.durable) : TN_SPACES_MAX;
}

static bool in_use(const struct tn_reclaim *r, uint32_t i)
{
	struct tn_tier_space space;

	return r->o.durable ? r->o.durable->ops->durable->space(r->o.durable, (uint16_t)i, &space) == 0 : r->o.spaces[i] != NULL;
}

static void give_back(struct tn_reclaim *r, uint32_t i)
{
	struct tn_space *sp = r->o.spaces[i];

	for_each_tier(t, r->o.blocks->row)
		assert(t->space_blocks[i] == 0);
	if (r->o.durable)
		r->o.durable->ops->durable->give_back(r->o.durable, (uint16_t)i);
	tn_shares_leave(&r->o.blocks->shares, (uint16_t)i);
	if (sp) {
		tn_space_slack_destroy(sp, r->o.alloc);
		tn_put(r->o.alloc, sp, sizeof(*sp));
		r->o.spaces[i] = NULL;
	}
	r->leaving[i] = LEAVING_NOT;
	r->o.blocks->space_recency[i] = 0;
}

/* The least recently used space that is idle and not on its way already. */
static bool mark_coldest(struct tn_reclaim *r)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < numbers(r); i++)
		if (r->leaving[i] == LEAVING_NOT && in_use(r, i) && idle(r, i) &&
		    (best == UINT32_MAX || r->o.blocks->space_recency[i] < r->o.blocks->space_recency[best]))
			best = i;
	if (best == UINT32_MAX)
		return false;
	r->leaving[best] = LEAVING_MARKED;
	return true;
}

int tn_space_reclaim(struct tn_reclaim *r)
{
	uint64_t now = tn_now_ns(r->o.clock);
	bool leaving = r->cursor > 0 || now < r->next_ns;
	uint32_t marked = 0;

	for (uint32_t i = 0; i < numbers(r); i++) {
		if (r->o.blocks->space_records[i] == 0 && in_use(r, i) && idle(r, i)) {
			give_back(r, i);
			return 0;
		}
	}
	while (!leaving && marked < BATCH && mark_coldest(r))
		marked++;
	if (marked > 0) {
		r->cursor = tn_registry_records(r->o.blocks->registry);
		r->next_ns = now + BATCH_EVERY_NS;
		tn_log(r->o.log, TN_LOG_INFO, "%u spaces are known and one is new: the %u least recently used that nobody has open go",
		       TN_SPACES_MAX, marked);
	}
	for (uint32_t i = 0; i < numbers(r) && !leaving; i++)
		leaving = r->leaving[i] != LEAVING_NOT;
	return leaving ? -EAGAIN : tn_fail(-ENOSPC, "%u spaces are open: close some", TN_SPACES_MAX);
}

void tn_space_stays(struct tn_reclaim *r, uint16_t index)
{
	r->leaving[index] = LEAVING_NOT;
	r->o.blocks->space_recency[index] = r->o.blocks->tick;
}

bool tn_reclaim_step(struct tn_reclaim *r)
{
	struct tn_registry *reg = r->o.blocks->registry;

	if (r->cursor == 0)
		return false;
	for (uint32_t k = 0; k < RECORDS_PER_STEP && r->cursor > 0; k++) {
		tn_block b = --r->cursor;

		if (tn_block_state(reg, b) == TN_BLOCK_REGISTERED &&
		    r->leaving[tn_block_space(reg, b)] == LEAVING_MARKED)
			tn_block_doom(r->o.blocks, b);
	}
	for (uint32_t i = 0; i < TN_SPACES_MAX && r->cursor == 0; i++)
		if (r->leaving[i] == LEAVING_MARKED)
			r->leaving[i] = LEAVING_DOOMED;
	return true;
}
