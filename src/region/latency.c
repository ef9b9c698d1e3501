/* SPDX-License-Identifier: Apache-2.0 */
#include "region/latency.h"

#include "base/trace.h"

bool tn_latency_exists(uint32_t kind, uint32_t tier)
{
	return kind < TN_LATENCY_KINDS && (tier == TN_TIER_NONE || (kind == TN_LATENCY_LOAD && tier < TN_TIERS_MAX));
}

/* 35 years of calls that take a millisecond, one after the other; and as many ns. */
#define COUNT_MOST (UINT64_C(1) << 40)
#define SUM_MOST_NS (UINT64_C(1) << 60)

uint32_t tn_latency_number(enum tn_latency_kind kind, uint32_t tier)
{
	return tier == TN_TIER_NONE ? kind : TN_LATENCY_KINDS - 1 + tier;
}

static struct tn_region_histogram *histogram(const struct tn_region *r, enum tn_latency_kind kind, uint32_t tier)
{
	struct tn_region_histogram *all = tn_region_table(r, TN_REGION_LATENCIES);

	return &all[tn_latency_number(kind, tier)];
}

void tn_latency_add(const struct tn_region *r, enum tn_latency_kind kind, uint32_t tier, uint64_t ns)
{
	struct tn_region_histogram *h = histogram(r, kind, tier);

	TN_TRACE3(latency, kind, tier, ns);
	__atomic_add_fetch(&h->sum_ns, ns, __ATOMIC_RELAXED);
	__atomic_add_fetch(&h->buckets[tn_latency_bucket(ns)], 1, __ATOMIC_RELAXED);
}

void tn_latency_read(const struct tn_region *r, enum tn_latency_kind kind, uint32_t tier, struct tn_latency *out)
{
	const struct tn_region_histogram *h = histogram(r, kind, tier);

	out->count = 0;
	out->sum_ns = __atomic_load_n(&h->sum_ns, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++) {
		out->buckets[i] = __atomic_load_n(&h->buckets[i], __ATOMIC_RELAXED);
		out->count += out->buckets[i];
	}
}

static void rise(uint64_t *seen, const uint64_t *word, uint64_t most)
{
	uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);

	now = now < most ? now : most;
	*seen = now > *seen ? now : *seen;
}

void tn_latency_look(const struct tn_region *r, uint32_t number, struct tn_region_histogram *seen)
{
	const struct tn_region_histogram *h = (const struct tn_region_histogram *)tn_region_table(r, TN_REGION_LATENCIES) + number;

	rise(&seen->sum_ns, &h->sum_ns, SUM_MOST_NS);
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++)
		rise(&seen->buckets[i], &h->buckets[i], COUNT_MOST);
}
