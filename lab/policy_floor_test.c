/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy beside LRU, S3-FIFO and FIFO on random workloads (policy_workload.h), at eight capacities each. The bar: at least 0.99 times the
 * hits of the best of the three, less 0.1 % of the look-ups, where that best has 1,000 hits. docs/policy.md lists which points are below it, and by
 * how much. So the test demands what holds today: few points below the bar, and none far below it. TN_SOAK=1: a hundred workloads.
 */
#include "lab/policy_sim.h"
#include "lab/policy_workload.h"
#include "tn_test.h"

#define FIRST_SEED 1u

static struct tn_policy_sim_stats run(const struct tn_workload *w, const char *policy, uint64_t capacity)
{
	struct tn_policy_sim_stats stats;
	struct tn_policy_sim_opts opts;
	struct tn_policy_sim *sim;
	const uint64_t *ids = w->ids;

	tn_policy_sim_opts_init(&opts);
	opts.policy = policy;
	opts.capacity_blocks = capacity;
	opts.max_request_blocks = w->longest;
	assert_int_equal(tn_policy_sim_create(&opts, &sim), 0);
	for (size_t q = 0; q < w->requests; ids += w->lengths[q++])
		assert_int_equal(tn_policy_sim_request(sim, ids, w->lengths[q], w->partial[q], NULL), 0);
	tn_policy_sim_stats(sim, &stats);
	tn_policy_sim_destroy(sim);
	return stats;
}

struct score {
	uint32_t points, below;
	double worst; /* hits of the default policy / hits of the best simple one */
};

static void compare(const struct tn_workload *w, uint64_t seed, uint64_t capacity, struct score *score)
{
	static const char *const simple[] = {"lru", "s3fifo", "fifo"};
	struct tn_policy_sim_stats s = run(w, "default", capacity);
	uint64_t hits = s.hits, best = 0;
	const char *name = "";
	double share;

	for (size_t i = 0; i < 3; i++) {
		s = run(w, simple[i], capacity);
		if (s.hits > best) {
			best = s.hits;
			name = simple[i];
		}
	}
	if (best < 1000)
		return;
	share = (double)hits / (double)best;
	score->points++;
	if (share < score->worst)
		score->worst = share;
	if ((double)hits >= .99 * (double)best - .001 * (double)s.blocks)
		return;
	score->below++;
	print_message("# seed %llu,%s: %llu blocks: default %llu hits, %s %llu (%.3f)\n", (unsigned long long)seed, w->name,
		      (unsigned long long)capacity, (unsigned long long)hits, name, (unsigned long long)best, share);
}

static void random_workloads_hit_hardly_less_than_with_the_best_simple_policy(void **state)
{
	static const double percents[] = {.2, .5, 1, 2, 5, 10, 20, 40};
	uint32_t workloads = tn_test_soak() ? 100 : 4;
	struct score score = {.worst = 1e9};

	for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + workloads; seed++) {
		struct tn_workload w;
		uint64_t distinct;

		tn_workload_make(&w, seed);
		distinct = run(&w, "lru", 0).distinct;
		for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
			if ((double)distinct * percents[i] / 100 >= 8)
				compare(&w, seed, (uint64_t)((double)distinct * percents[i] / 100), &score);
		tn_workload_free(&w);
	}
	print_message("# seeds %u to %u: %u points, %u below the bar, the worst has %.3f of the best simple policy's hits\n", FIRST_SEED,
		      FIRST_SEED + workloads - 1, score.points, score.below, score.worst);
	assert_true(score.points > 0);
	assert_true(score.below * 10 <= score.points);
	assert_true(score.worst >= .85);
}

/* Rounds over documents that all fit. */
static void what_has_room_is_found_in_the_second_round(void **state)
{
	static const uint32_t cases[][3] = {{100, 100, 10000}, {600, 40, 26400}, {1000, 100, 200000}};

	for (size_t c = 0; c < 3; c++) {
		struct tn_workload w = {.requests = 0};
		uint64_t ids[100], all = (uint64_t)cases[c][0] * cases[c][1];

		for (uint32_t r = 0; r < 2 * cases[c][0]; r++) {
			for (uint32_t i = 0; i < cases[c][1]; i++)
				ids[i] = (uint64_t)(r % cases[c][0]) * cases[c][1] + i;
			tn_workload_add(&w, ids, cases[c][1], false);
		}
		assert_int_equal(run(&w, "default", cases[c][2]).hits, all);
		tn_workload_free(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_has_room_is_found_in_the_second_round),
		cmocka_unit_test(random_workloads_hit_hardly_less_than_with_the_best_simple_policy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
