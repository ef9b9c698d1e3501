/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping a space: all its blocks go. The owner goes through the registry for them, some records per step. */
#include <errno.h>

#include "base/error.h"
#include "core/core.h"

#define DROP_PER_STEP 1024u /* records looked at: some microseconds */

struct drop_call {
	struct tn_space *space;
	struct tn_flush_waiter *waiter;
};

static int drop_on_owner(struct tn_cache *cache, void *arg)
{
	const struct drop_call *c = arg;
	struct tn_space *space = c->space;
	struct tn_key id;
	uint32_t epoch;
	int rc;

	if (__atomic_load_n(&space->dropping, __ATOMIC_RELAXED))
		return tn_fail(-EBUSY, "space %u is being dropped already", space->index);
	if (space->ops > 0 || __atomic_load_n(&space->held, __ATOMIC_ACQUIRE) > 0)
		return tn_fail(-EBUSY, "space %u: loads, saves or offloads are under way; end them first", space->index);
	if (cache->store) {
		rc = tn_store_space_drop(cache->store, space->index);
		if (rc)
			return rc;
		tn_store_space_info(cache->store, space->index, &id, &epoch);
		__atomic_store_n(&space->epoch, epoch, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&space->dropping, 1, __ATOMIC_RELEASE);
	c->waiter->space = space;
	tn_list_push(&cache->drops, &c->waiter->link);
	return 0;
}

/* Goes through the registry for the space that is being dropped, some records in each step. */
bool tn_drops_step(struct tn_cache *cache)
{
	struct tn_registry *reg = cache->registry;
	uint32_t records = tn_registry_records(reg);
	struct tn_flush_waiter *w;

	if (tn_list_empty(&cache->drops))
		return false;
	w = tn_container_of(cache->drops.next, struct tn_flush_waiter, link);
	for (uint32_t k = 0; k < DROP_PER_STEP && w->next < records; k++, w->next++)
		if (tn_block_state(reg, w->next) == TN_BLOCK_REGISTERED && tn_block_space(reg, w->next) == w->space->index)
			tn_block_doom(cache, w->next);
	if (w->next < records)
		return true;
	__atomic_store_n(&w->space->dropping, 0, __ATOMIC_RELEASE);
	tn_list_del(&w->link);
	tn_list_push(&cache->flushes, &w->link); /* no offload is waited for: its target is 0 */
	return true;
}

int tn_space_drop_begin(struct tn_space *space, struct tn_flush_waiter **out)
{
	struct tn_cache *cache = space->cache;
	struct drop_call call = {space, tn_get(cache->alloc, sizeof(*call.waiter))};
	int rc;

	if (!call.waiter)
		return tn_fail(-ENOMEM, "tn_space_drop: no memory");
	call.waiter->cache = cache;
	rc = tn_owner_call(cache, drop_on_owner, &call);
	if (rc)
		tn_put(cache->alloc, call.waiter, sizeof(*call.waiter));
	else
		*out = call.waiter;
	return rc;
}
