/* SPDX-License-Identifier: Apache-2.0 */
/* Slack tables: interpolation, the file, what observations do, and the analytic model. */
#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "lab/models.h"
#include "tn_test.h"

static const uint64_t inputs[] = {100, 200, 400};
static const uint64_t prefixes[] = {0, 1000};

static struct tn_slack_desc desc_of(uint32_t layers, bool per_layer)
{
	struct tn_slack_desc d;

	tn_slack_desc_init(&d);
	d.model = "m";
	d.gpu = "g";
	d.layers = layers;
	d.per_layer = per_layer;
	d.inputs = inputs;
	d.ninputs = 3;
	d.prefixes = prefixes;
	d.nprefixes = 2;
	return d;
}

/* A table whose window is 10 ns per token of input and 1 ns per token of prefix, times layer + 1 where layers differ. */
static struct tn_slack *plane(uint32_t layers, bool per_layer, double times)
{
	struct tn_slack_desc d = desc_of(layers, per_layer);
	struct tn_slack *t;

	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t r = 0; r < (per_layer ? layers : 1); r++)
		for (uint32_t p = 0; p < 2; p++)
			for (uint32_t i = 0; i < 3; i++) {
				double ns = (double)((inputs[i] * 10000 + prefixes[p] * 1000) * (r + 1)) * times;

				assert_int_equal(tn_slack_set(t, i, p, per_layer ? r : TN_SLACK_ALL_LAYERS, (uint64_t)ns), 0);
			}
	assert_int_equal(tn_slack_check(t), 0);
	return t;
}

static void between_profiled_lengths_the_value_is_bilinear(void **state)
{
	struct tn_slack *t = plane(3, true, 1);

	assert_int_equal(tn_slack_window(t, 100, 0, 0), 1000000);
	assert_int_equal(tn_slack_window(t, 150, 0, 0), 1500000);
	assert_int_equal(tn_slack_window(t, 150, 500, 0), 2000000);
	assert_int_equal(tn_slack_window(t, 300, 250, 2), 3 * 3250000);
	tn_slack_destroy(t);
}

static void outside_them_it_goes_on_with_the_slope_and_never_falls(void **state)
{
	struct tn_slack *t = plane(1, false, 1);

	assert_int_equal(tn_slack_window(t, 800, 0, 0), 8000000);
	assert_int_equal(tn_slack_window(t, 100, 3000, 0), 4000000);
	assert_int_equal(tn_slack_window(t, 50, 0, 0), 500000); /* in proportion */
	assert_int_equal(tn_slack_window(t, 0, 0, 0), 1);
	assert_int_equal(tn_slack_window(t, UINT64_MAX, UINT64_MAX, 0), TN_SLACK_WINDOW_MAX);
	assert_int_equal(tn_slack_window(t, 100, 0, 1), 0); /* no such layer */
	/* A table that falls towards long inputs is believed within its lengths, and not beyond. */
	for (uint32_t p = 0; p < 2; p++)
		assert_int_equal(tn_slack_set(t, 2, p, TN_SLACK_ALL_LAYERS, 1000), 0);
	assert_int_equal(tn_slack_window(t, 1u << 30, 0, 0), 1000);
	tn_slack_destroy(t);
}

static void a_longer_input_or_prefix_never_takes_less_in_a_rising_table(void **state)
{
	struct tn_slack *t;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 0.5, 0, "-", &t), 0);
	for (int k = 0; k < 20000; k++) {
		uint64_t i = tn_rng_below(&rng, 300000), p = tn_rng_below(&rng, 2000000);
		uint64_t w = tn_slack_window(t, i, p, 5);

		assert_true(tn_slack_window(t, i + 1 + tn_rng_below(&rng, 1000), p, 5) >= w);
		assert_true(tn_slack_window(t, i, p + 1 + tn_rng_below(&rng, 1000), 5) >= w);
	}
	tn_slack_destroy(t);
}

/* ---- refusals ------------------------------------------------------------------------------------ */

static void wrong_descriptions_are_refused(void **state)
{
	static const uint64_t falling[] = {2, 1}, zero[] = {0, 1}, twice[] = {1, 1}, huge[] = {UINT64_MAX};
	struct {
		const uint64_t *at;
		uint32_t n;
	} bad[] = {{falling, 2}, {zero, 2}, {twice, 2}, {huge, 1}, {inputs, 0}, {inputs, 33}, {NULL, 1}};
	struct tn_slack_desc d;
	struct tn_slack *t = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		d = desc_of(1, false);
		d.inputs = bad[i].at;
		d.ninputs = bad[i].n;
		assert_int_equal(tn_slack_create(&d, &t), -EINVAL);
	}
	d = desc_of(0, false);
	assert_int_equal(tn_slack_create(&d, &t), -EINVAL);
	d = desc_of(TN_LAYERS_MAX + 1, false);
	assert_int_equal(tn_slack_create(&d, &t), -EINVAL);
	d = desc_of(1, false);
	d.model = "";
	assert_int_equal(tn_slack_create(&d, &t), -EINVAL);
	d.model = "two\nlines";
	assert_int_equal(tn_slack_create(&d, &t), -EINVAL);
	assert_null(t);
}

static void a_window_of_zero_or_above_an_hour_is_no_cell(void **state)
{
	struct tn_slack *t = plane(1, false, 1);

	assert_int_equal(tn_slack_set(t, 0, 0, TN_SLACK_ALL_LAYERS, 0), -EINVAL);
	assert_int_equal(tn_slack_set(t, 0, 0, TN_SLACK_ALL_LAYERS, TN_SLACK_WINDOW_MAX + 1), -EINVAL);
	assert_int_equal(tn_slack_set(t, 3, 0, TN_SLACK_ALL_LAYERS, 1), -EINVAL);
	assert_int_equal(tn_slack_set(t, 0, 0, 0, 1), -EINVAL); /* the layers share */
	tn_slack_destroy(t);
}

static void a_table_with_a_gap_says_nothing_there(void **state)
{
	struct tn_slack_desc d = desc_of(2, true);
	struct tn_slack *t;

	assert_int_equal(tn_slack_create(&d, &t), 0);
	assert_int_equal(tn_slack_set(t, 0, 0, 1, 5), 0);
	assert_int_equal(tn_slack_check(t), -ENODATA);
	assert_non_null(strstr(tn_error_last()->text, "layer 0"));
	assert_int_equal(tn_slack_window(t, 150, 0, 1), 0);
	assert_int_equal(tn_slack_print(t, NULL, 0), -ENODATA);
	assert_false(tn_slack_observe(t, 150, 0, 1, 5));
	tn_slack_destroy(t);
}

/* ---- the file ------------------------------------------------------------------------------------ */

#define KEYS "model m\ngpu g\nengine -\nwhen 2026\nhow profiled\nlayers 2\ncells layered\ninputs 1 2\nprefixes 0\n"
#define HEAD "tenuto-slack 2\n" KEYS
#define HEAD_3 "tenuto-slack 3\n" KEYS
#define CELLS "cell 1 0 0 10\ncell 2 0 0 20\ncell 1 0 1 11\ncell 2 0 1 21\n"

static int parse(const char *text, struct tn_slack **t)
{
	return tn_slack_parse(text, strlen(text), t);
}

static void a_table_survives_its_file(void **state)
{
	struct tn_slack *t, *again;
	struct tn_slack_desc d;
	char buf[4096], twice[4096];
	long n;

	assert_int_equal(parse("tenuto-slack 2\n# about\n\n" CELLS, &t), -EINVAL);
	assert_int_equal(parse(HEAD "# about\n\n" CELLS, &t), 0);
	assert_int_equal(tn_slack_window(t, 1, 0, 1), 11);
	n = tn_slack_print(t, buf, sizeof(buf));
	assert_true(n > 0 && (size_t)n == strlen(buf));
	assert_int_equal(tn_slack_print(t, NULL, 0), n);
	assert_int_equal(tn_slack_print(t, twice, 10), n);
	assert_int_equal(strlen(twice), 9);
	assert_int_equal(tn_slack_parse(buf, (size_t)n, &again), 0);
	assert_int_equal(tn_slack_print(again, twice, sizeof(twice)), n);
	assert_string_equal(buf, twice);
	tn_slack_describe(again, &d);
	assert_string_equal(d.model, "m");
	assert_true(d.per_layer);
	tn_slack_destroy(t);
	tn_slack_destroy(again);
}

static void a_file_of_version_2_is_read_and_has_no_bounds(void **state)
{
	struct tn_slack_cell cell;
	char buf[4096], *version;
	struct tn_slack *t;

	assert_int_equal(parse(HEAD CELLS, &t), 0);
	tn_slack_at(t, 2, 0, 1, &cell);
	assert_int_equal(cell.window_ns, 21);
	assert_int_equal(cell.sm_budget, 0);
	assert_int_equal(cell.most_iocbs, 0);
	assert_true(tn_slack_print(t, buf, sizeof(buf)) > 0);
	assert_non_null(strstr(buf, "tenuto-slack 3\n"));
	assert_non_null(strstr(buf, "cell 2 0 1 21 0 0\n"));
	tn_slack_destroy(t);
	version = strchr(buf, '3');
	*version = '2';
	assert_int_equal(parse(buf, &t), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "a cell is: input prefix layer window_ns"));
}

/* The nearest cell's, in the file, in a clone, and after corrections. */
static void bounds_are_those_of_the_nearest_lengths(void **state)
{
	struct tn_slack_cell cell = {.size = sizeof(cell), .window_ns = 1000, .sm_budget = 8, .most_iocbs = 3}, out;
	struct tn_slack *t = plane(2, true, 1), *again, *clone;
	char buf[4096];

	assert_int_equal(tn_slack_set_cell(t, 1, 1, 1, &cell), 0);
	for (int k = 0; k < 5; k++)
		tn_slack_observe(t, 200, 1000, 1, 1500);
	assert_true(tn_slack_print(t, buf, sizeof(buf)) > 0);
	assert_int_equal(parse(buf, &again), 0);
	assert_int_equal(tn_slack_clone(again, &clone), 0);
	tn_slack_destroy(again);
	for (int k = 0; k < 2; k++) {
		struct tn_slack *from = k ? clone : t;

		tn_slack_at(from, 160, 600, 1, &out);
		assert_int_equal(out.window_ns, tn_slack_window(from, 160, 600, 1));
		assert_int_equal(out.sm_budget, 8);
		assert_int_equal(out.most_iocbs, 3);
		tn_slack_at(from, 140, 600, 1, &out);
		assert_int_equal(out.sm_budget + out.most_iocbs, 0);
		tn_slack_at(from, 200, 1000, 0, &out);
		assert_int_equal(out.sm_budget + out.most_iocbs, 0);
		tn_slack_at(from, 200, 1000, 2, &out); /* no such layer */
		assert_int_equal(out.window_ns + out.sm_budget + out.most_iocbs, 0);
	}
	assert_int_equal(tn_slack_set(t, 1, 1, 1, 1000), 0); /* forgets them */
	tn_slack_at(t, 200, 1000, 1, &out);
	assert_int_equal(out.sm_budget + out.most_iocbs, 0);
	cell.most_iocbs = TN_SLACK_BOUND_MAX + 1;
	assert_int_equal(tn_slack_set_cell(t, 1, 1, 1, &cell), -EINVAL);
	assert_int_equal(tn_slack_set_cell(t, 1, 1, 1, NULL), -EINVAL);
	tn_slack_destroy(clone);
	tn_slack_destroy(t);
}

static void wrong_files_are_refused_with_the_line(void **state)
{
	static const struct {
		const char *text, *says;
		int rc;
	} bad[] = {
		{"", "", -EINVAL},
		{"tenuto-slack 4\n", "version 4", -EPROTONOSUPPORT},
		{"hello\n", "line 1", -EINVAL},
		{HEAD, "without a cell", -ENODATA},
		{HEAD "cell 1 0 0 10\n", "no cell for input 2", -ENODATA},
		{HEAD CELLS "cell 1 0 0 10\n", "line 15: ", -EINVAL},
		{HEAD CELLS "layers 3\n", "line 15: layers is there twice", -EINVAL},
		{HEAD "cell 1 0 0 0\n", "line 11: \"0\" is not a time from 1 to 3600000000000 ns", -EINVAL},
		{HEAD "cell 1 0 0 -5\n", "line 11: \"-5\" is not a time from 1 to 3600000000000 ns", -EINVAL},
		{HEAD "cell 1 0 0 nan\n", "\"nan\" is not a time from 1 to 3600000000000 ns", -EINVAL},
		{HEAD "cell 1 0 0 1e9\n", "\"1e9\" is not a time from 1 to 3600000000000 ns", -EINVAL},
		{HEAD "cell 1 0 0 99999999999999999999\n", "is not a time", -EINVAL},
		{HEAD "cell 1 0 0 3600000000001\n", "is not a time", -EINVAL},
		{HEAD "cell 3 0 0 5\n", "not one of the input lengths", -EINVAL},
		{HEAD "cell 1 0 2 5\n", "no such layer", -EINVAL},
		{HEAD "cell 1 0 * 5\n", "no such layer", -EINVAL},
		{HEAD "cell 1 0 0\n", "a cell is", -EINVAL},
		{HEAD "cell 1 0 0  5\n", "a cell is", -EINVAL},
		{HEAD "cell 1 0 0 5 0 0\n", "a cell is", -EINVAL},
		{HEAD_3 "cell 1 0 0 5 65536 0\n", "line 11: \"65536\": no SM budget", -EINVAL},
		{HEAD_3 "cell 1 0 0 5 0 -1\n", "line 11: \"-1\": no number of IOCBs", -EINVAL},
		{HEAD_3 "cell 1 0 0 5 0\n", "window_ns sm_budget most_iocbs", -EINVAL},
		{HEAD "cell 1 0 0 5", "cut off", -EINVAL},
		{HEAD "model again\n", "line 11: model is there twice", -EINVAL},
		{"tenuto-slack 2\nmodel m\nwhat is this\n", "line 3: unknown key \"what\"", -EINVAL},
		{"tenuto-slack 2\ninputs 2 1\n", "line 2: slack table: input length 1 after 2; lengths must rise", -EINVAL},
		{"tenuto-slack 2\ninputs 1 1\n", "lengths must rise", -EINVAL},
		{"tenuto-slack 2\ninputs 0 1\n", "line 2: slack table: input length 0 is out of range", -EINVAL},
		{"tenuto-slack 2\nlayers 0\n", "layers are wanted", -EINVAL},
		{"tenuto-slack 2\nlayers 1\ncell 1 0 * 5\n", "line 3: no \"model\"", -EINVAL},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tn_slack *t = NULL;

		assert_int_equal(parse(bad[i].text, &t), bad[i].rc);
		assert_null(t);
		if (!strstr(tn_error_last()->text, bad[i].says))
			fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, bad[i].says);
	}
}

/* ---- observations -------------------------------------------------------------------------------- */

static bool near(uint64_t a, double b, double share)
{
	return (double)a > b * (1 - share) && (double)a < b * (1 + share);
}

/* Requests of random lengths, each with a noise of up to a tenth; how far off the window is at the end. */
static void observe_requests(struct tn_slack *t, const struct tn_slack *truth, unsigned requests, uint32_t layers,
			     struct tn_rng *rng)
{
	for (unsigned k = 0; k < requests; k++) {
		uint64_t i = 100 + tn_rng_below(rng, 300), p = tn_rng_below(rng, 1000);

		for (uint32_t l = 0; l < layers; l++)
			tn_slack_observe(t, i, p, l,
					 (int64_t)((double)tn_slack_window(truth, i, p, l) * (0.95 + 0.1 * tn_rng_unit(rng))));
	}
}

static void a_table_wrong_by_three_or_none_at_all_converges_within_50_requests(void **state)
{
	struct tn_slack *truth = plane(4, false, 1), *start[3];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	start[0] = plane(4, false, 3);
	start[1] = plane(4, false, 1 / 3.0);
	assert_int_equal(tn_slack_create_empty(4, &start[2]), 0);
	assert_int_equal(tn_slack_window(start[2], 100, 0, 0), 0);
	for (int s = 0; s < 3; s++) {
		double worst = 0, sum = 0;
		unsigned n = 0;

		observe_requests(start[s], truth, 50, 4, &rng);
		for (uint64_t i = 120; i <= 380; i += 20)
			for (uint64_t p = 0; p <= 1000; p += 100, n++) {
				double off = (double)tn_slack_window(start[s], i, p, 1) / (double)tn_slack_window(truth, i, p, 1);

				off = off > 1 ? off - 1 : 1 / off - 1;
				worst = off > worst ? off : worst;
				sum += off;
			}
		print_message("# start %d: %.1f %% off after 50 requests, at most %.1f %%\n", s, 100 * sum / n, 100 * worst);
		assert_true(sum / n < 0.1);  /* of 2 */
		assert_true(worst < 1); /* where hardly any request was */
		tn_slack_destroy(start[s]);
	}
	tn_slack_destroy(truth);
}

static void a_request_of_one_length_is_learned_to_a_few_percent(void **state)
{
	for (int s = 0; s < 3; s++) {
		struct tn_slack *t = s < 2 ? plane(1, false, s ? 3 : 1 / 3.0) : NULL;
		double worst = 0;

		if (!t)
			assert_int_equal(tn_slack_create_empty(1, &t), 0);
		for (int k = 0; k < 50; k++)
			tn_slack_observe(t, 300, 700, 0, 3700000);
		worst = (double)tn_slack_window(t, 300, 700, 0) / 3700000;
		print_message("# start %d: %.3f of the truth\n", s, worst);
		assert_true(near(tn_slack_window(t, 300, 700, 0), 3700000, 0.05));
		tn_slack_destroy(t);
	}
}

static void small_deviations_and_single_outliers_move_nothing(void **state)
{
	struct tn_slack *t = plane(1, false, 1);
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int k = 0; k < 1000; k++)
		assert_false(tn_slack_observe(t, 200, 0, 0, 1950000 + (int64_t)tn_rng_below(&rng, 100000)));
	for (int k = 0; k < 100; k++) {
		assert_false(tn_slack_observe(t, 200, 0, 0, 2000000000)); /* a preemption */
		assert_false(tn_slack_observe(t, 200, 0, 0, 2000000));
	}
	assert_int_equal(tn_slack_window(t, 200, 0, 0), 2000000);
	tn_slack_destroy(t);
}

static void clocks_that_jump_are_ignored(void **state)
{
	struct tn_slack *t = plane(1, false, 1);

	for (int k = 0; k < 10; k++) {
		assert_false(tn_slack_observe(t, 200, 0, 0, -1));
		assert_false(tn_slack_observe(t, 200, 0, 0, 0));
		assert_false(tn_slack_observe(t, 200, 0, 0, INT64_MIN));
		assert_false(tn_slack_observe(t, 200, 0, 0, INT64_MAX));
		assert_false(tn_slack_observe(t, 200, 0, 7, 5));
		assert_false(tn_slack_observe(t, 0, 0, 0, 5));
	}
	assert_int_equal(tn_slack_window(t, 200, 0, 0), 2000000);
	tn_slack_destroy(t);
}

static void single_tokens_move_only_cells_of_their_length(void **state)
{
	struct tn_slack *t;
	uint64_t before;

	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 0.5, 0, "-", &t), 0);
	before = tn_slack_window(t, 1024, 8192, 0);
	for (int k = 0; k < 100; k++)
		tn_slack_observe(t, 1, 8191, 0, 3000000);
	assert_true(near(tn_slack_window(t, 1, 8191, 0), 3000000, 0.05));
	assert_int_equal(tn_slack_window(t, 1024, 8192, 0), before);
	tn_slack_destroy(t);
	t = plane(1, false, 1); /* which begins at 100 */
	for (int k = 0; k < 100; k++)
		assert_false(tn_slack_observe(t, 1, 0, 0, 3000000));
	assert_int_equal(tn_slack_window(t, 100, 0, 0), 1000000);
	tn_slack_destroy(t);
}

/* What it knows of one length was seen, so that another one takes longer than its cells say is no reason to doubt it. */
static void a_learned_table_from_a_file_moves_only_where_it_is_wrong(void **state)
{
	struct tn_slack *learned, *t;
	uint64_t before;
	char text[65536];
	long n;

	assert_int_equal(tn_slack_create_empty(1, &learned), 0);
	for (uint64_t i = 0; i < 60; i++)
		tn_slack_observe(learned, 64ull << i % 6, 0, 0, (int64_t)(64ull << i % 6) * 10000);
	n = tn_slack_print(learned, text, sizeof(text));
	assert_in_range(n, 1, sizeof(text) - 1);
	assert_int_equal(tn_slack_parse(text, (size_t)n, &t), 0);
	before = tn_slack_window(t, 2048, 0, 0);
	for (int i = 0; i < 20; i++)
		tn_slack_observe(t, 200, 4096, 0, 2 * (int64_t)tn_slack_window(learned, 200, 4096, 0));
	assert_int_equal(tn_slack_window(t, 2048, 0, 0), before);
	assert_in_range(tn_slack_window(t, 200, 4096, 0), 19 * tn_slack_window(learned, 200, 4096, 0) / 10,
			21 * tn_slack_window(learned, 200, 4096, 0) / 10);
	tn_slack_destroy(learned);
	tn_slack_destroy(t);
}

static void a_table_that_learns_has_no_cells_to_set(void **state)
{
	struct tn_slack *t;

	assert_int_equal(tn_slack_create_empty(1, &t), 0);
	assert_int_equal(tn_slack_set(t, 0, 0, TN_SLACK_ALL_LAYERS, 5), -EINVAL);
	assert_int_equal(tn_slack_window(t, 1, 0, 0), 0);
	assert_int_equal(tn_slack_check(t), 0);
	assert_true(tn_slack_observe(t, 64, 0, 0, 7000));
	assert_int_equal(tn_slack_window(t, 64, 0, 0), 7000);
	tn_slack_destroy(t);
}

static void a_step_of_the_engines_speed_is_followed_without_overshoot(void **state)
{
	struct tn_slack *t = plane(1, false, 1);
	unsigned turns = 0;
	int was = 0;

	for (int k = 0; k < 400; k++) {
		uint64_t truth = k / 100 % 2 ? 4000000 : 1000000, before = tn_slack_window(t, 200, 0, 0), after;
		int way;

		tn_slack_observe(t, 200, 0, 0, (int64_t)truth);
		after = tn_slack_window(t, 200, 0, 0);
		way = after > before ? 1 : after < before ? -1 : 0;
		turns += way && was && way != was;
		was = way ? way : was;
		if (k % 100 == 99)
			assert_true(near(after, (double)truth, 0.05));
	}
	assert_true(turns <= 3); /* one per step of the truth */
	tn_slack_destroy(t);
}

static void what_was_learned_is_saved_and_cloned(void **state)
{
	struct tn_slack *t, *copy, *saved;
	static char buf[1 << 16];

	assert_int_equal(tn_slack_create_empty(2, &t), 0);
	for (int k = 0; k < 20; k++)
		tn_slack_observe(t, 1024, 4096, k % 2, 7000000);
	assert_int_equal(tn_slack_clone(t, &copy), 0);
	assert_true(tn_slack_print(t, buf, sizeof(buf)) < (long)sizeof(buf));
	assert_int_equal(parse(buf, &saved), 0);
	assert_true(near(tn_slack_window(t, 1024, 4096, 0), 7000000, 0.03));
	assert_int_equal(tn_slack_window(copy, 1024, 4096, 0), tn_slack_window(t, 1024, 4096, 0));
	assert_int_equal(tn_slack_window(saved, 1024, 4096, 1), tn_slack_window(t, 1024, 4096, 1));
	tn_slack_destroy(t);
	tn_slack_destroy(copy);
	tn_slack_destroy(saved);
}

/* ---- the analytic model --------------------------------------------------------------------------- */

static void an_h100_prefills_an_8b_model_at_about_4_gb_of_kv_a_second(void **state)
{
	struct tn_slack *t;
	double ns = 0, kv = 8192.0 * 2 * 8 * 128 * 2 * 32;

	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", TN_SLACK_EFFICIENCY, 0, "-", &t), 0);
	for (uint32_t l = 0; l < 32; l++)
		ns += (double)tn_slack_window(t, 8192, 0, l);
	print_message("# 8192 tokens: %.1f ms, %.2f GB/s of KV\n", ns / 1e6, kv / ns);
	assert_true(kv / ns > 3 && kv / ns < 5);
	tn_slack_destroy(t);
}

static void every_model_has_a_table_on_every_gpu_with_its_layers(void **state)
{
	for (size_t m = 0; tn_model_at(m); m++)
		for (size_t g = 0; tn_gpu_at(g); g++) {
			struct tn_slack *t;
			struct tn_slack_desc d;
			struct tn_geometry geometry;
			uint64_t ns;

			assert_int_equal(tn_slack_analytic(tn_model_at(m), tn_gpu_at(g), 0.5, 0, "-", &t), 0);
			assert_int_equal(tn_slack_check(t), 0);
			tn_slack_describe(t, &d);
			assert_int_equal(tn_model_find(d.model, &geometry), 0);
			assert_int_equal(geometry.layers, d.layers);
			assert_int_equal(tn_slack_analytic_ns(d.model, d.gpu, 0.5, 4096, 65536, d.layers - 1, &ns), 0);
			assert_int_equal(tn_slack_window(t, 4096, 65536, d.layers - 1), ns);
			/* Between the lengths of the table it is close to the formula. */
			assert_int_equal(tn_slack_analytic_ns(d.model, d.gpu, 0.5, 6000, 50000, 3, &ns), 0);
			assert_true(near(tn_slack_window(t, 6000, 50000, 3), (double)ns, 0.05));
			tn_slack_destroy(t);
		}
}

/* A layer of 64K tokens is 256 MiB and 2,048 objects of 128 KiB. */
static void an_analytic_table_has_the_sms_that_a_layer_does_not_need_and_the_iocbs_that_fit(void **state)
{
	struct tn_slack_cell cell;
	struct tn_slack *t;

	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 0.5, 25.9e9, "-", &t), 0);
	tn_slack_at(t, 1, 65536, 7, &cell);
	assert_int_equal(cell.sm_budget, 66); /* one token leaves nearly all arithmetic free: half of 132 */
	assert_int_equal(cell.most_iocbs, 2); /* 0.21 ms for what reads in 10.4 ms */
	tn_slack_at(t, 131072, 65536, 7, &cell);
	assert_int_equal(cell.sm_budget, 2); /* none is free: the smallest unit */
	print_message("# %.1f ms, %u IOCBs\n", (double)cell.window_ns * 1e-6, cell.most_iocbs);
	assert_int_equal(cell.most_iocbs, 2 + cell.window_ns / 10364236);
	tn_slack_at(t, 131072, 0, 7, &cell);
	assert_int_equal(cell.most_iocbs, 0); /* nothing is read */
	tn_slack_destroy(t);
	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 0.5, 0, "-", &t), 0);
	tn_slack_at(t, 1, 65536, 7, &cell);
	assert_int_equal(cell.most_iocbs, 0); /* no rate, no bound */
	tn_slack_destroy(t);
}

static void unknown_names_and_efficiencies_are_refused(void **state)
{
	struct tn_slack *t = NULL;
	uint64_t ns;

	assert_int_equal(tn_slack_analytic("gpt", "h100", 0.5, 0, "-", &t), -ENOENT);
	assert_non_null(strstr(tn_error_last()->text, "llama3-8b"));
	assert_int_equal(tn_slack_analytic("llama3-8b", "abacus", 0.5, 0, "-", &t), -ENOENT);
	assert_non_null(strstr(tn_error_last()->text, "h200"));
	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 0, 0, "-", &t), -EINVAL);
	assert_int_equal(tn_slack_analytic("llama3-8b", "h100", 1.1, 0, "-", &t), -EINVAL);
	assert_int_equal(tn_slack_analytic_ns("llama3-8b", "h100", 0.5, 0, 0, 0, &ns), -EINVAL);
	assert_int_equal(tn_slack_analytic_ns("llama3-8b", "h100", 0.5, 1, 0, 32, &ns), -EINVAL);
	assert_null(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(between_profiled_lengths_the_value_is_bilinear),
		cmocka_unit_test(outside_them_it_goes_on_with_the_slope_and_never_falls),
		cmocka_unit_test(a_longer_input_or_prefix_never_takes_less_in_a_rising_table),
		cmocka_unit_test(wrong_descriptions_are_refused),
		cmocka_unit_test(a_window_of_zero_or_above_an_hour_is_no_cell),
		cmocka_unit_test(a_table_with_a_gap_says_nothing_there),
		cmocka_unit_test(a_table_survives_its_file),
		cmocka_unit_test(a_file_of_version_2_is_read_and_has_no_bounds),
		cmocka_unit_test(bounds_are_those_of_the_nearest_lengths),
		cmocka_unit_test(wrong_files_are_refused_with_the_line),
		cmocka_unit_test(a_table_wrong_by_three_or_none_at_all_converges_within_50_requests),
		cmocka_unit_test(a_request_of_one_length_is_learned_to_a_few_percent),
		cmocka_unit_test(small_deviations_and_single_outliers_move_nothing),
		cmocka_unit_test(clocks_that_jump_are_ignored),
		cmocka_unit_test(single_tokens_move_only_cells_of_their_length),
		cmocka_unit_test(a_learned_table_from_a_file_moves_only_where_it_is_wrong),
		cmocka_unit_test(a_table_that_learns_has_no_cells_to_set),
		cmocka_unit_test(a_step_of_the_engines_speed_is_followed_without_overshoot),
		cmocka_unit_test(what_was_learned_is_saved_and_cloned),
		cmocka_unit_test(an_h100_prefills_an_8b_model_at_about_4_gb_of_kv_a_second),
		cmocka_unit_test(every_model_has_a_table_on_every_gpu_with_its_layers),
		cmocka_unit_test(an_analytic_table_has_the_sms_that_a_layer_does_not_need_and_the_iocbs_that_fit),
		cmocka_unit_test(unknown_names_and_efficiencies_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
