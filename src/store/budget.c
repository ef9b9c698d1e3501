/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write budget: how many bytes may be written in a day, so that a drive lasts as long as it was bought for.
 *
 * A token bucket of an eighth of the day's budget, refilled with the other seven eighths over a day: no 24 hours see
 * more than the budget. Whoever writes blocks asks first. The store's own writes are counted and never refused, so the
 * bucket may go below zero.
 */
#include "store/store_internal.h"

#define DAY_NS 86400000000000ull

void tn_store_budget_init(struct tn_store *s, uint64_t bytes_per_day)
{
	s->budget_rate = bytes_per_day < 1ull << 62 ? bytes_per_day : 0;
	s->budget_tokens = (int64_t)(s->budget_rate / 8);
	s->budget_ns = tn_now_ns(s->clock);
}

static void refill(struct tn_store *s)
{
	uint64_t now = tn_now_ns(s->clock), ns = now - s->budget_ns;
	int64_t most = (int64_t)(s->budget_rate / 8);
	double more = (double)ns / (double)DAY_NS * (double)(s->budget_rate - s->budget_rate / 8);

	if (more < 1.0)
		return;
	s->budget_ns = now;
	if (more >= (double)(most - s->budget_tokens))
		s->budget_tokens = most;
	else
		s->budget_tokens += (int64_t)more;
}

bool tn_store_charge_write(struct tn_store *s, uint64_t bytes)
{
	if (s->budget_rate == 0)
		return true;
	refill(s);
	if (s->budget_tokens < 0 || (uint64_t)s->budget_tokens < bytes)
		return false;
	s->budget_tokens -= (int64_t)bytes;
	return true;
}

void tn_store_uncharge_write(struct tn_store *s, uint64_t bytes)
{
	if (s->budget_rate > 0)
		s->budget_tokens += (int64_t)bytes;
}

void tn_store_charge_meta(struct tn_store_device *d, uint64_t bytes)
{
	if (d->store->budget_rate > 0)
		d->store->budget_tokens -= (int64_t)bytes;
}
