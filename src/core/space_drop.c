/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping a space: all its blocks go. The owner goes through the registry for them, some records per step. */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define DROP_PER_STEP 1024u /* records looked at: some microseconds */

bool tn_drops_idle(const struct tn_drops *d)
{
	return tn_list_empty(&d->waiting);
}

struct drop_call {
	struct tn_drops *drops;
	struct tn_space *space;
	struct tn_flush_waiter *waiter;
};

static int drop_on_owner(struct tn_cache *cache, void *arg)
{
	const struct drop_call *c = arg;
	struct tn_drops *d = c->drops;
	struct tn_space *space = c->space;
	uint32_t epoch = space->epoch + 1, copies = tn_offload_copies(d->flushes->offloads, space);
	int rc;

	if (__atomic_load_n(&space->dropping, __ATOMIC_RELAXED))
		return tn_fail(-EBUSY, "space %u is being dropped already", space->index);
	if (copies > 0 && space->ops == copies)
		tn_offload_forget_copies(d->flushes->offloads, space); /* the caller asks again, and they have ended by then */
	if (space->ops > 0 || __atomic_load_n(&space->held, __ATOMIC_ACQUIRE) > 0)
		return tn_fail(-EBUSY, "space %u: loads, saves or offloads are under way; end them first", space->index);
	rc = d->durable ? d->durable->ops->durable->drop(d->durable, space->index, &epoch) : 0;
	if (rc)
		return rc;
	__atomic_store_n(&space->epoch, epoch, __ATOMIC_RELAXED); /* what tiers answer to earlier look-ups is told by it */
	__atomic_store_n(&space->dropping, 1, __ATOMIC_RELEASE);
	c->waiter->space = space;
	tn_list_push(&d->waiting, &c->waiter->link);
	return 0;
}

/* Goes through the registry for the space that is being dropped, some records in each step. */
bool tn_drops_step(struct tn_drops *d)
{
	struct tn_registry *reg = d->blocks->registry;
	uint32_t records = tn_registry_records(reg);
	struct tn_flush_waiter *w;

	if (tn_list_empty(&d->waiting))
		return false;
	w = tn_container_of(d->waiting.next, struct tn_flush_waiter, link);
	for (uint32_t k = 0; k < DROP_PER_STEP && w->next < records; k++, w->next++)
		if (tn_block_state(reg, w->next) == TN_BLOCK_REGISTERED && tn_block_space(reg, w->next) == w->space->index)
			tn_block_doom(d->blocks, w->next);
	if (w->next < records)
		return true;
	__atomic_store_n(&w->space->dropping, 0, __ATOMIC_RELEASE);
	tn_list_del(&w->link);
	tn_flush_join(w);
	return true;
}

int tn_space_drop_begin(struct tn_drops *d, struct tn_space *space, struct tn_flush_waiter **out)
{
	struct drop_call call = {d, space, tn_flush_take(d->flushes)};
	int rc;

	if (!call.waiter)
		return tn_fail(-ENOMEM, "tn_space_drop: no memory");
	rc = tn_messages_call(d->messages, drop_on_owner, &call);
	if (rc)
		tn_flush_put(call.waiter);
	else
		*out = call.waiter;
	return rc;
}
