/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long calls on a cache take: histograms, by what is timed.
 *
 * Buckets are log-linear, as HdrHistogram's: each power of two has 8 buckets of equal width. No bucket is wider than an eighth of its lower
 * bound, so a quantile that is told as the upper bound of its bucket is at most 12.5 % too high. Times below 8 ns have a bucket
 * each. The last bucket takes everything from 2^40 ns (18 minutes) on, too.
 */
#ifndef TENUTO_LATENCY_H
#define TENUTO_LATENCY_H

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;

#define TN_LATENCY_BUCKETS 304u

/** What is timed, on the thread of the caller. */
enum tn_latency_kind {
	TN_LATENCY_MATCH,      /**< tn_match, tn_match_all: the call */
	TN_LATENCY_LAYER_WAIT, /**< tn_load_wait: the call, also when the layer was there at once */
	TN_LATENCY_LOAD,       /**< from tn_load_begin until the caller sees the last layer ready; not of loads that were cancelled */
	TN_LATENCY_SAVE,       /**< from tn_save_begin until tn_save_end has returned 0; not of saves that were aborted */
	TN_LATENCY_FLUSH,      /**< tn_flush: the call */
	TN_LATENCY_KINDS,
};

/**
 * struct tn_latency - a histogram, since the cache was opened
 * @count:   of all buckets together
 * @sum_ns:  of the times; may be ahead of @count by calls that end just now, or behind
 * @buckets: how many times lie in each bucket
 */
struct tn_latency {
	size_t size;
	uint64_t count;
	uint64_t sum_ns;
	uint64_t buckets[TN_LATENCY_BUCKETS];
};

/** tn_latency_bucket - the bucket that a time lies in */
static inline uint32_t tn_latency_bucket(uint64_t ns)
{
	uint32_t power, bucket;

	if (ns < 8)
		return (uint32_t)ns;
	power = 63u - (uint32_t)__builtin_clzll(ns);
	bucket = (power - 2) * 8 + (uint32_t)(ns >> (power - 3) & 7);
	return bucket < TN_LATENCY_BUCKETS ? bucket : TN_LATENCY_BUCKETS - 1;
}

/** tn_latency_bound_ns - the times in a bucket are below it, and those in the next one are not; of the last bucket UINT64_MAX */
static inline uint64_t tn_latency_bound_ns(uint32_t bucket)
{
	if (bucket >= TN_LATENCY_BUCKETS - 1)
		return UINT64_MAX;
	return bucket < 8 ? bucket + 1 : (uint64_t)(bucket % 8 + 9) << (bucket / 8 - 1);
}

/**
 * tn_cache_latency - a snapshot of one histogram
 * @kind: what was timed
 * @tier: loads: those whose blocks came from this tier and from none below it; TN_TIER_NONE: those that found nothing. Other kinds:
 *        TN_TIER_NONE
 * @out:  size set by the caller
 *
 * Any thread; waits for nothing. Return: 0, -EINVAL.
 */
TN_API int tn_cache_latency(struct tn_cache *cache, enum tn_latency_kind kind, enum tn_tier tier, struct tn_latency *out);

#ifdef __cplusplus
}
#endif
#endif
