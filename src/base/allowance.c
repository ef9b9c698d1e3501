/* SPDX-License-Identifier: Apache-2.0 */
#include "base/allowance.h"

void tn_allowance_init(struct tn_allowance *a, uint64_t bytes, uint64_t period_ns, uint64_t now_ns)
{
	a->bytes = bytes < 1ull << 62 ? bytes : 0;
	a->period_ns = period_ns;
	a->left = (int64_t)(a->bytes / 8);
	a->filled_ns = now_ns;
}

static void refill(struct tn_allowance *a, uint64_t now_ns)
{
	int64_t most = (int64_t)(a->bytes / 8);
	double more = (double)(now_ns - a->filled_ns) / (double)a->period_ns * (double)(a->bytes - a->bytes / 8);

	if (more < 1.0)
		return;
	a->filled_ns = now_ns;
	if (more >= (double)(most - a->left))
		a->left = most;
	else
		a->left += (int64_t)more;
}

bool tn_allowance_take(struct tn_allowance *a, uint64_t bytes, uint64_t now_ns)
{
	if (a->bytes == 0)
		return true;
	refill(a, now_ns);
	if (a->left < 0 || (uint64_t)a->left < bytes)
		return false;
	a->left -= (int64_t)bytes;
	return true;
}

void tn_allowance_spend(struct tn_allowance *a, int64_t bytes)
{
	a->left -= bytes;
}

uint64_t tn_allowance_due(struct tn_allowance *a, uint64_t now_ns)
{
	if (a->bytes == 0)
		return now_ns;
	refill(a, now_ns);
	if (a->left > 0)
		return now_ns;
	return now_ns + (uint64_t)((double)(1 - a->left) * (double)a->period_ns / (double)(a->bytes - a->bytes / 8)) + 1;
}
