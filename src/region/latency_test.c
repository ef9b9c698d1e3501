/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of times: the buckets' bounds, and that no time is lost. */
#include <pthread.h>
#include <string.h>

#include "region/latency.h"
#include "tn_test.h"

static void each_time_lies_below_its_buckets_bound_and_not_below_the_one_before(void **state)
{
	for (uint32_t power = 0; power < 64; power++)
		for (uint64_t part = 0; part < 64; part++) {
			uint64_t ns = (UINT64_C(1) << power) + (power < 6 ? part >> (6 - power) : part << (power - 6));
			uint32_t b = tn_latency_bucket(ns);

			assert_true(b < TN_LATENCY_BUCKETS);
			if (b < TN_LATENCY_BUCKETS - 1)
				assert_true(ns < tn_latency_bound_ns(b));
			if (b > 0)
				assert_true(ns >= tn_latency_bound_ns(b - 1));
		}
	assert_int_equal(tn_latency_bucket(0), 0);
	assert_int_equal(tn_latency_bucket(UINT64_MAX), TN_LATENCY_BUCKETS - 1);
	assert_true(tn_latency_bound_ns(TN_LATENCY_BUCKETS - 1) == UINT64_MAX);
	/* What the header promises of the last bucket. */
	assert_true(tn_latency_bound_ns(TN_LATENCY_BUCKETS - 2) < UINT64_C(1) << 40);
	assert_int_equal(tn_latency_bucket(UINT64_C(1) << 40), TN_LATENCY_BUCKETS - 1);
}

static void no_bucket_is_wider_than_an_eighth_of_its_lower_bound(void **state)
{
	for (uint32_t b = 1; b < TN_LATENCY_BUCKETS - 1; b++) {
		uint64_t low = tn_latency_bound_ns(b - 1), high = tn_latency_bound_ns(b);

		assert_true(high > low);
		assert_true(high - low <= (low < 8 ? 1 : low / 8));
	}
}

static struct tn_region region(void)
{
	const struct tn_region_counts counts = {.ops = 1, .blocks = 1, .pages = 1, .layers = 1, .chunks = 1};
	struct tn_region r;

	assert_int_equal(tn_region_create(&counts, &tn_alloc_system, &r), 0);
	return r;
}

static void a_time_goes_into_the_histogram_of_its_kind_and_tier_alone(void **state)
{
	struct tn_region r = region();
	uint64_t ns = 1000;

	for (uint32_t kind = 0; kind <= TN_LATENCY_KINDS; kind++)
		for (uint32_t tier = 0; tier <= TN_TIERS_MAX; tier++) {
			bool exists = kind < TN_LATENCY_KINDS && (tier == 0 || (kind == TN_LATENCY_LOAD && tier < TN_TIERS_MAX));

			assert_int_equal(tn_latency_exists(kind, tier), exists);
			if (exists)
				tn_latency_add(&r, kind, tier, ns++);
		}
	ns = 1000;
	for (uint32_t kind = 0; kind < TN_LATENCY_KINDS; kind++)
		for (uint32_t tier = 0; tier < TN_TIERS_MAX; tier++) {
			struct tn_latency l;

			if (!tn_latency_exists(kind, tier))
				continue;
			tn_latency_read(&r, kind, tier, &l);
			assert_int_equal(l.count, 1);
			assert_int_equal(l.sum_ns, ns);
			assert_int_equal(l.buckets[tn_latency_bucket(ns)], 1);
			ns++;
		}
	tn_region_destroy(&r, &tn_alloc_system);
}

#define THREADS 4u
#define EACH 100000u

static void *add_many(void *arg)
{
	for (uint32_t i = 0; i < EACH; i++)
		tn_latency_add(arg, TN_LATENCY_MATCH, TN_TIER_NONE, i);
	return NULL;
}

static void no_time_is_lost_among_threads(void **state)
{
	struct tn_region r = region();
	pthread_t thread[THREADS];
	struct tn_latency l;

	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, add_many, &r), 0);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	tn_latency_read(&r, TN_LATENCY_MATCH, TN_TIER_NONE, &l);
	assert_int_equal(l.count, THREADS * EACH);
	assert_true(l.sum_ns == (uint64_t)THREADS * EACH * (EACH - 1) / 2);
	tn_region_destroy(&r, &tn_alloc_system);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_time_lies_below_its_buckets_bound_and_not_below_the_one_before),
		cmocka_unit_test(no_bucket_is_wider_than_an_eighth_of_its_lower_bound),
		cmocka_unit_test(a_time_goes_into_the_histogram_of_its_kind_and_tier_alone),
		cmocka_unit_test(no_time_is_lost_among_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
