/* SPDX-License-Identifier: Apache-2.0 */
#include "region/observation.h"

#include <string.h>

static struct tn_observation *place(const struct tn_region *r, uint64_t n)
{
	return (struct tn_observation *)tn_region_table(r, TN_REGION_OBSERVED) + n % TN_REGION_OBSERVATIONS;
}

void tn_observation_put(const struct tn_region *r, const struct tn_observation *observation)
{
	uint64_t *observed = &tn_region_front(r)->observed, n = __atomic_load_n(observed, __ATOMIC_RELAXED);
	struct tn_observation *p;

	do
		/* Acquire: the core has read the place before it is filled again. */
		if (n - __atomic_load_n(&tn_region_core(r)->learned, __ATOMIC_ACQUIRE) >= TN_REGION_OBSERVATIONS)
			return;
	while (!__atomic_compare_exchange_n(observed, &n, n + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	p = place(r, n);
	p->input = observation->input;
	p->prefix = observation->prefix;
	p->ns = observation->ns;
	p->space = observation->space;
	p->layer = observation->layer;
	__atomic_store_n(&p->turn, n + 1, __ATOMIC_RELEASE);
}

bool tn_observation_take(const struct tn_region *r, uint64_t *taken, struct tn_observation *out)
{
	struct tn_observation *p = place(r, *taken);

	if (__atomic_load_n(&p->turn, __ATOMIC_ACQUIRE) != *taken + 1)
		return false;
	memcpy(out, p, sizeof(*out));
	__asm__ volatile("" ::: "memory"); /* from here on only the copy */
	__atomic_store_n(&tn_region_core(r)->learned, ++*taken, __ATOMIC_RELEASE);
	return true;
}
