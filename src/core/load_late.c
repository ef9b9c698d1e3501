/* SPDX-License-Identifier: Apache-2.0 */
/* See load_late.h. */
#include "core/load_late.h"

#include "core/budget.h"

static uint64_t late_ns(const struct tn_reading *r, uint64_t now_ns)
{
	uint64_t idle = __atomic_load_n(&r->op.cache->save_idle_ns, __ATOMIC_RELAXED), due;

	if (r->prefetch || r->deadline_ns != TN_FOREVER)
		return r->deadline_ns;
	due = tn_face_streams_due(tn_op_region(&r->op), r->op.number, r->heard_ns, idle);
	return due == TN_FOREVER ? now_ns + idle : due; /* who asks for a word wakes nobody */
}

uint64_t tn_loads_due(const struct tn_cache *cache, uint64_t now_ns)
{
	uint64_t due = TN_FOREVER, one;

	for (const struct tn_list *pos = cache->loads.next; pos != &cache->loads; pos = pos->next) {
		const struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

		one = r->op.cancelled ? TN_FOREVER : late_ns(r, now_ns);
		due = one < due ? one : due;
	}
	return due;
}

bool tn_load_is_late(struct tn_reading *r, uint64_t now_ns)
{
	struct tn_cache *cache = r->op.cache;

	if (r->arrivals != r->heard)
		r->heard_ns = now_ns;
	r->heard = r->arrivals;
	if (late_ns(r, now_ns) > now_ns)
		return false;
	if (r->deadline_ns > now_ns && tn_log_may(&cache->lines, &cache->log, now_ns))
		tn_log(&cache->log, TN_LOG_WARN, "a load of %u blocks that a stream waits for is given up: nothing of it came for %llu ms%s", r->op.n,
		       (unsigned long long)(now_ns - r->heard_ns) / 1000000u, tn_op_stands(&r->op) ? ", and its device stands" : "");
	return true;
}

void tn_load_withdraw(const struct tn_reading *r)
{
	for (uint32_t i = 0; i < r->op.n; i++) {
		const struct tn_read_item *item = &r->items[i];
		struct tn_tier_base *t = item->state == TN_READ_LEAD && item->move ? r->op.cache->row.tier[item->tier] : NULL;

		if (t && t->ops->cancel)
			t->ops->cancel(t, item->move);
	}
}
