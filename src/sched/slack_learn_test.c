/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables that begin empty, taught by the analytic model: how many requests until what they say, and what is planned
 * with them, is near the truth.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "lab/models.h"
#include "lab/pipeline_rig.h"
#include "tn_test.h"

#define SEEDS 200

static const struct {
	const char *model, *gpu;
} engines[] = {{"llama3-8b", "h100"}, {"llama3-8b", "a100"}, {"llama3-70b", "h200"}, {"qwen3-32b", "h100"}};
#define ENGINES (sizeof(engines) / sizeof(engines[0]))

struct world {
	struct tn_slack *truth, *table;
	struct tn_rng rng;
	uint32_t layers;
	double noise;
};

static void open_world(struct world *w, size_t engine, uint64_t seed, double noise)
{
	struct tn_slack_desc d;

	*w = (struct world){.noise = noise};
	tn_rng_seed(&w->rng, seed);
	assert_int_equal(tn_slack_analytic(engines[engine].model, engines[engine].gpu, 0.5, 0, "-", &w->truth), 0);
	tn_slack_describe(w->truth, &d);
	w->layers = d.layers;
	assert_int_equal(tn_slack_create_empty(w->layers, &w->table), 0);
}

static void close_world(struct world *w)
{
	tn_slack_destroy(w->truth);
	tn_slack_destroy(w->table);
}

/* A request's layers, each with its own noise. */
static void serve(struct world *w, uint64_t input, uint64_t prefix)
{
	for (uint32_t l = 0; l < w->layers; l++) {
		double ns = (double)tn_slack_window(w->truth, input, prefix, l);

		tn_slack_observe(w->table, input, prefix, l, (int64_t)(ns * (1 + w->noise * (2 * tn_rng_unit(&w->rng) - 1))));
	}
}

static double off(const struct world *w, uint64_t input, uint64_t prefix)
{
	double ratio = (double)tn_slack_window(w->table, input, prefix, 0) / (double)tn_slack_window(w->truth, input, prefix, 0);

	return ratio > 1 ? ratio - 1 : 1 / ratio - 1;
}

/* From 64 tokens to 8192, as many short as long; now and then a single one. */
static void any_lengths(struct tn_rng *rng, uint64_t *input, uint64_t *prefix)
{
	*input = tn_rng_below(rng, 8) ? (uint64_t)(64 * exp2(7 * tn_rng_unit(rng))) : 1 + tn_rng_below(rng, 16);
	*prefix = tn_rng_below(rng, 32768);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_size);
	return v[n / 2];
}

static void from_nothing_25_requests_of_mixed_lengths_teach_a_table(void **state)
{
	static const double noises[] = {0, 0.1};
	enum { ASKED = 50 };

	for (size_t e = 0; e < ENGINES; e++)
		for (size_t n = 0; n < 2; n++) {
			double worst[SEEDS], typical[SEEDS];

			for (size_t s = 0; s < SEEDS; s++) {
				uint64_t input, prefix;
				double v[ASKED];
				struct world w;

				open_world(&w, e, tn_test_seed() + s, noises[n]);
				for (int k = 0; k < 25; k++) {
					any_lengths(&w.rng, &input, &prefix);
					serve(&w, input, prefix);
				}
				for (int k = 0; k < ASKED; k++) {
					any_lengths(&w.rng, &input, &prefix);
					v[k] = off(&w, input, prefix);
				}
				typical[s] = median(v, ASKED);
				worst[s] = v[ASKED * 9 / 10];
				close_world(&w);
			}
			median(typical, SEEDS);
			median(worst, SEEDS);
			print_message("# %s on %s, noise %.0f %%: off by %.1f %%, one in ten lengths by %.1f %%; in the worst of %d seeds %.1f and %.1f %%\n",
				      engines[e].model, engines[e].gpu, noises[n] * 100, 100 * typical[SEEDS / 2],
				      100 * worst[SEEDS / 2], SEEDS, 100 * typical[SEEDS - 1], 100 * worst[SEEDS - 1]);
			/*
			 * Of 320,000 streams, 1 in 20 is off by 2 % or more, 1 in 1,000 by 3.5 %. The worst, by 12 %,
			 * had many requests of 64 to 150 tokens and hardly one of fewer: what of their time is the
			 * weights' could not be told. So the worst has no sharp bound, but more than a few like it
			 * would be a defect.
			 */
			assert_true(typical[SEEDS * 19 / 20] < 0.03);
			assert_true(typical[SEEDS - 5] < 0.05);
			assert_true(typical[SEEDS - 1] < 0.25);
			assert_true(worst[SEEDS / 2] < 0.08);
		}
}

/* ---- what is planned ----------------------------------------------------------------------------- */

struct asked {
	const struct tn_slack *table;
	uint32_t layers;
};

static int compute(void *arg, uint64_t input, uint64_t prefix, uint64_t *ns)
{
	const struct asked *a = arg;

	for (uint32_t l = 0; l < a->layers; l++) /* which are all alike in these models */
		ns[l] = l ? ns[0] : tn_slack_window(a->table, input, prefix, l);
	return ns[0] ? 0 : -ENODATA;
}

#define BLOCK_TOKENS 64u
#define BLOCKS 128u

static void split_of(struct tn_split *s, struct asked *a, uint32_t matched, uint64_t *scratch)
{
	*s = (struct tn_split){.layers = a->layers, .window = TN_SPLIT_WINDOW};
	s->blocks = matched;
	s->block_tokens = BLOCK_TOKENS;
	s->input_tokens = (BLOCKS - matched) * BLOCK_TOKENS;
	s->object_bytes = BLOCK_TOKENS * 4096;
	s->read_bps = 6.5e9;
	s->latency_ns = 80000;
	s->compute = compute;
	s->compute_arg = a;
	s->scratch = scratch;
}

/* A prompt, of which @matched blocks could be restored: TTFT as the table splits it, over that of the right table. */
static double plan_and_serve(struct world *w, uint32_t matched)
{
	uint64_t scratch[TN_SPLIT_SCRATCH(128)], input;
	struct asked truth = {w->truth, w->layers}, table = {w->table, w->layers};
	struct tn_split_choice best, chosen = {.restore_blocks = matched};
	struct tn_restore got;
	struct tn_split s;
	int rc;

	split_of(&s, &table, matched, scratch);
	rc = tn_split_choose(&s, &chosen);
	assert_true(rc == 0 || rc == -ENODATA); /* which restores all */
	split_of(&s, &truth, matched, scratch);
	assert_int_equal(tn_split_choose(&s, &best), 0);
	assert_int_equal(tn_split_at(&s, chosen.restore_blocks, &got), 0);
	input = (BLOCKS - chosen.restore_blocks) * BLOCK_TOKENS;
	if (chosen.restore_blocks) /* what is not loaded is not observed */
		serve(w, input ? input : 1, BLOCKS * BLOCK_TOKENS - (input ? input : 1));
	return (double)got.ttft_ns / (double)best.chosen.ttft_ns;
}

static unsigned near_after(struct world *w, const uint32_t *hits, unsigned n, unsigned requests)
{
	unsigned after = 0;

	for (unsigned k = 0; k < requests; k++) {
		double over = plan_and_serve(w, BLOCKS * hits[k % n] / 100);

		if (over > 1.05)
			after = k + 1;
	}
	return after;
}

static void streams_are_planned_well(const uint32_t *hits, unsigned n, const char *what, unsigned most)
{
	for (size_t e = 0; e < ENGINES; e++) {
		double after[SEEDS / 2], sum = 0;

		for (uint64_t s = 0; s < SEEDS / 2; s++) {
			struct world w;

			open_world(&w, e, tn_test_seed() + s, s % 2 ? 0.1 : 0.02);
			after[s] = near_after(&w, hits, n, 50);
			sum += after[s];
			close_world(&w);
		}
		median(after, SEEDS / 2);
		print_message("# %s, %s on %s: within 5 %% after %.1f requests, at most %.0f\n", what, engines[e].model,
			      engines[e].gpu, sum / (SEEDS / 2.0), after[SEEDS / 2 - 1]);
		/* One stream in some 40,000 takes a request or two longer: two of 100 would be a defect. */
		assert_true(after[SEEDS / 2 - 2] <= most);
		assert_true(sum / (SEEDS / 2.0) <= 5);
	}
}

static void the_benchmarks_stream_is_planned_within_5_percent_soon(void **state)
{
	static const uint32_t hits[] = {100, 90, 80, 95, 70, 100};

	streams_are_planned_well(hits, 6, "the benchmark's stream", 25);
}

static void a_stream_of_nothing_but_full_hits_leaves_restoring_all(void **state)
{
	static const uint32_t hits[] = {100};

	streams_are_planned_well(hits, 1, "full hits", 25);
}

static void a_partial_hit_after_full_hits_is_planned_within_5_percent_soon(void **state)
{
	for (size_t e = 0; e < ENGINES; e++) {
		static const uint32_t partial[] = {50, 75};
		unsigned after;
		struct world w;

		open_world(&w, e, tn_test_seed(), 0.1);
		for (int k = 0; k < 30; k++) {
			serve(&w, 1, BLOCKS * BLOCK_TOKENS - 1); /* an engine that restores whatever the plan says */
			assert_true(off(&w, 1, BLOCKS * BLOCK_TOKENS - 1) < 0.15);
		}
		after = near_after(&w, partial, 2, 20);
		print_message("# %s on %s: within 5 %% after %u\n", engines[e].model, engines[e].gpu, after);
		assert_true(after <= 5);
		close_world(&w);
	}
}

/* ---- what must not harm -------------------------------------------------------------------------- */

static void single_tokens_say_nothing_about_many(void **state)
{
	struct world w;
	uint64_t before;

	open_world(&w, 0, tn_test_seed(), 0);
	for (int k = 0; k < 5; k++)
		serve(&w, 2048, 6144);
	before = tn_slack_window(w.table, 2048, 6144, 0);
	for (int k = 0; k < 50; k++)
		serve(&w, 1, 8191);
	assert_int_equal(tn_slack_window(w.table, 2048, 6144, 0), before);
	assert_true(off(&w, 1, 8191) < 0.02);
	assert_true(off(&w, 4096, 4096) < 0.1);
	close_world(&w);
}

static void a_first_layer_that_was_preempted_is_soon_forgotten(void **state)
{
	static const double first[] = {1000, 0.001};

	for (int i = 0; i < 2; i++) {
		double after_one[SEEDS], after_three[SEEDS];

		for (size_t s = 0; s < SEEDS; s++) {
			struct world w;

			open_world(&w, 0, tn_test_seed() + s, 0.02);
			tn_slack_observe(w.table, 2048, 6144, 0,
					 (int64_t)((double)tn_slack_window(w.truth, 2048, 6144, 0) * first[i]));
			serve(&w, 2048, 6144);
			after_one[s] = off(&w, 2048, 6144);
			serve(&w, 512, 7680);
			serve(&w, 4096, 4096);
			after_three[s] = off(&w, 3000, 5192);
			close_world(&w);
		}
		median(after_one, SEEDS);
		median(after_three, SEEDS);
		/* Of 20,000 seeds, the worst was off by 5.6 % after one request and by 4.3 % after three; 1 in 100 by 4.8 and 3.7 %. */
		assert_true(after_one[SEEDS * 9 / 10] < 0.05);
		assert_true(after_one[SEEDS - 1] < 0.07);
		assert_true(after_three[SEEDS - 1] < 0.06);
	}
}

static void outliers_and_jumping_clocks_move_nothing(void **state)
{
	struct world w;
	uint64_t before;

	open_world(&w, 0, tn_test_seed(), 0);
	for (int k = 0; k < 3; k++)
		serve(&w, 2048, 6144);
	before = tn_slack_window(w.table, 2048, 6144, 0);
	for (int k = 0; k < 100; k++) {
		assert_false(tn_slack_observe(w.table, 2048, 6144, 0, k % 2 ? INT64_MAX : -k));
		assert_false(tn_slack_observe(w.table, 2048, 6144, 0, k % 2 ? 1 : (int64_t)TN_SLACK_WINDOW_MAX));
		serve(&w, 2048, 6144);
	}
	assert_int_equal(tn_slack_window(w.table, 2048, 6144, 0), before);
	close_world(&w);
}

static void an_engine_that_becomes_slower_is_followed_without_overshoot(void **state)
{
	unsigned turns = 0;
	struct world w;
	int was = 0;

	open_world(&w, 0, tn_test_seed(), 0);
	for (int k = 0; k < 400; k++) {
		uint64_t truth = k / 100 % 2 ? 4000000 : 1000000, before = tn_slack_window(w.table, 1500, 0, 0), after;
		int way;

		tn_slack_observe(w.table, 1500, 0, 0, (int64_t)truth);
		after = tn_slack_window(w.table, 1500, 0, 0);
		way = after > before ? 1 : after < before ? -1 : 0;
		turns += way && was && way != was;
		was = way ? way : was;
		if (k % 100 == 99)
			assert_true(fabs((double)after / (double)truth - 1) < 0.05);
	}
	assert_true(turns <= 4); /* one per step of the truth */
	close_world(&w);
}

static void an_engine_of_another_speed_is_soon_known_at_lengths_not_seen_since(void **state)
{
	double v[SEEDS];

	for (size_t s = 0; s < SEEDS; s++) {
		struct world w;

		open_world(&w, 0, tn_test_seed() + s, 0.05);
		for (int k = 0; k < 60; k++) { /* six times as slow, at first */
			uint64_t input = 256 + tn_rng_below(&w.rng, 4096);

			for (uint32_t l = 0; l < w.layers; l++)
				tn_slack_observe(w.table, input, 1000, l, (int64_t)tn_slack_window(w.truth, input, 1000, l) * 6);
		}
		for (int k = 0; k < 3; k++)
			serve(&w, 700 + 1000 * (uint64_t)k, 1000);
		v[s] = off(&w, 2000, 6000);
		close_world(&w);
	}
	median(v, SEEDS);
	print_message("# off by %.1f %%, at most %.1f %%\n", 100 * v[SEEDS / 2], 100 * v[SEEDS - 1]);
	assert_true(v[SEEDS / 2] < 0.1);
	assert_true(v[SEEDS - 1] < 0.5); /* of 5 */
}

/* Whatever is observed, wherever: what the table says stays a time. */
static void absurd_observations_leave_a_table_that_says_something(void **state)
{
	for (uint64_t s = 0; s < SEEDS; s++) {
		struct tn_rng rng;
		struct tn_slack *t;

		tn_rng_seed(&rng, tn_test_seed() + s);
		assert_int_equal(tn_slack_create_empty(3, &t), 0);
		for (int k = 0; k < 500; k++) {
			uint64_t input = tn_rng_next(&rng) >> tn_rng_below(&rng, 64), prefix = tn_rng_next(&rng) >> tn_rng_below(&rng, 64);
			int64_t ns = (int64_t)(tn_rng_next(&rng) >> tn_rng_below(&rng, 64));
			uint64_t said;

			tn_slack_observe(t, input, prefix, (uint32_t)tn_rng_below(&rng, 4), ns);
			said = tn_slack_window(t, prefix, input, 1);
			assert_true(said <= TN_SLACK_WINDOW_MAX);
			assert_true(said >= 1 || k < 50);
		}
		/* And it learns again what is true. */
		for (int k = 0; k < 200; k++)
			tn_slack_observe(t, 1000, 1000, 1, 700000);
		if (fabs((double)tn_slack_window(t, 1000, 1000, 1) / 700000 - 1) >= 0.1)
			fail_msg("seed %llu: %llu ns, not 700000", (unsigned long long)(tn_test_seed() + s),
				 (unsigned long long)tn_slack_window(t, 1000, 1000, 1));
		tn_slack_destroy(t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(from_nothing_25_requests_of_mixed_lengths_teach_a_table),
		cmocka_unit_test(the_benchmarks_stream_is_planned_within_5_percent_soon),
		cmocka_unit_test(a_stream_of_nothing_but_full_hits_leaves_restoring_all),
		cmocka_unit_test(a_partial_hit_after_full_hits_is_planned_within_5_percent_soon),
		cmocka_unit_test(single_tokens_say_nothing_about_many),
		cmocka_unit_test(a_first_layer_that_was_preempted_is_soon_forgotten),
		cmocka_unit_test(outliers_and_jumping_clocks_move_nothing),
		cmocka_unit_test(an_engine_that_becomes_slower_is_followed_without_overshoot),
		cmocka_unit_test(an_engine_of_another_speed_is_soon_known_at_lengths_not_seen_since),
		cmocka_unit_test(absurd_observations_leave_a_table_that_says_something),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
