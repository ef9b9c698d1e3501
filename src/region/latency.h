/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the calls of a front took: its histograms (tenuto/latency.h). They are words of the front, so that whoever owns the cache reads them
 * without asking the front, and believes them as little as the rest.
 *
 * A time costs two additions to words that other threads add to as well: no lock, no allocation.
 */
#ifndef TN_REGION_LATENCY_H
#define TN_REGION_LATENCY_H

#include <tenuto/latency.h>

#include "region/region.h"

struct tn_region_histogram {
	uint64_t sum_ns;
	uint64_t buckets[TN_LATENCY_BUCKETS];
};

/* By kind; behind them those of loads by tier, from the first tier on. */
#define TN_REGION_HISTOGRAMS (TN_LATENCY_KINDS + TN_TIERS_MAX - 1)

/* Whether there is such a histogram, and its number, below TN_REGION_HISTOGRAMS. */
bool tn_latency_exists(uint32_t kind, uint32_t tier);
uint32_t tn_latency_number(enum tn_latency_kind kind, uint32_t tier);

/* Of a histogram that exists. Any thread of the front. */
void tn_latency_add(const struct tn_region *r, enum tn_latency_kind kind, uint32_t tier, uint64_t ns);

/* Likewise; any thread of either side. */
void tn_latency_read(const struct tn_region *r, enum tn_latency_kind kind, uint32_t tier, struct tn_latency *out);

/*
 * The histogram of that number as it is now, no count lower than in *seen, which it becomes. Counts of a front that writes anything there
 * are bounded, so that sums of them do not wrap.
 */
void tn_latency_look(const struct tn_region *r, uint32_t number, struct tn_region_histogram *seen);

#endif
