/* SPDX-License-Identifier: Apache-2.0 */
/* Slack tables as bytes: all that they know arrives, and bytes that anybody wrote make a sound table or none. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "sched/slack.h"
#include "tn_test.h"

#define LAYERS 3u

static struct tn_slack *given(void)
{
	static const uint64_t inputs[] = {16, 512, 4096}, prefixes[] = {0, 8192};
	struct tn_slack_cell bounded = {.size = sizeof(bounded), .window_ns = 1000, .sm_budget = 8, .most_iocbs = 3};
	struct tn_slack_desc d;
	struct tn_slack *t;

	tn_slack_desc_init(&d);
	d.model = "a model";
	d.how = TN_SLACK_PROFILED;
	d.layers = LAYERS;
	d.per_layer = true;
	d.inputs = inputs;
	d.prefixes = prefixes;
	d.ninputs = 3;
	d.nprefixes = 2;
	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t p = 0; p < 2; p++)
			for (uint32_t l = 0; l < LAYERS; l++)
				assert_int_equal(tn_slack_set(t, i, p, l, 1000 * (i + 1) + 100 * p + l), 0);
	assert_int_equal(tn_slack_set_cell(t, 1, 1, 2, &bounded), 0);
	return t;
}

static struct tn_slack *empty(void)
{
	struct tn_slack *t;

	assert_int_equal(tn_slack_create_empty(LAYERS, &t), 0);
	return t;
}

static unsigned char *bytes_of(const struct tn_slack *t)
{
	unsigned char *b = malloc(tn_slack_bytes(t));

	assert_non_null(b);
	tn_slack_store(t, b);
	return b;
}

/* Also after both have seen the same: what is learned from is there, too. */
static void check_round(struct tn_slack *t)
{
	unsigned char *b = bytes_of(t);
	struct tn_slack *u;

	assert_int_equal(tn_slack_load(b, tn_slack_bytes(t), &u), 0);
	assert_string_equal(u->d.model, t->d.model);
	assert_int_equal(u->bounded, t->bounded);
	if (t->bounded) {
		struct tn_slack_cell cell;

		tn_slack_at(u, 512, 8192, 2, &cell);
		assert_int_equal(cell.sm_budget, 8);
		assert_int_equal(cell.most_iocbs, 3);
	}
	for (uint32_t k = 0; k < 30; k++) {
		for (uint64_t at = 1; at < 100000; at *= 3)
			for (uint32_t l = 0; l <= LAYERS; l++)
				assert_int_equal(tn_slack_window(u, at, 100000 - at, l), tn_slack_window(t, at, 100000 - at, l));
		assert_int_equal(tn_slack_observe(t, 100 + 50 * k, 1000, k % LAYERS, 40000 + 1000 * k),
				 tn_slack_observe(u, 100 + 50 * k, 1000, k % LAYERS, 40000 + 1000 * k));
	}
	tn_slack_destroy(u);
	tn_slack_destroy(t);
	free(b);
}

static void a_table_is_the_same_and_learns_the_same_afterwards(void **state)
{
	struct tn_slack *t = empty();

	check_round(given());
	check_round(empty());
	for (uint32_t k = 0; k < 40; k++)
		tn_slack_observe(t, 10 + 97 * k, 300 * k, 0, 100000 + 3000 * k);
	check_round(t);
}

static void no_other_number_of_bytes_is_a_table(void **state)
{
	struct tn_slack *t = given(), *u = NULL;
	unsigned char *b = bytes_of(t);

	for (size_t n = 0; n < tn_slack_bytes(t); n++) {
		unsigned char *some = malloc(n + 1); /* ASAN guards its end */

		memcpy(some, b, n);
		assert_int_equal(tn_slack_load(some, n, &u), -EINVAL);
		free(some);
	}
	assert_null(u);
	assert_true(tn_slack_bytes(t) <= tn_slack_bytes_max(LAYERS));
	free(b);
	tn_slack_destroy(t);
}

/* A sound table says 0 or a window, whatever it is asked and whatever it sees. */
static void use(struct tn_slack *t, struct tn_rng *rng)
{
	for (uint32_t k = 0; k < 8; k++) {
		uint64_t input = tn_rng_next(rng) >> tn_rng_below(rng, 64), prefix = tn_rng_next(rng) >> tn_rng_below(rng, 64);

		assert_true(tn_slack_window(t, input, prefix, tn_rng_below(rng, LAYERS + 1)) <= TN_SLACK_WINDOW_MAX);
		tn_slack_observe(t, input, prefix, tn_rng_below(rng, LAYERS), (int64_t)(tn_rng_next(rng) >> tn_rng_below(rng, 64)));
	}
}

static void bytes_that_anybody_changed_make_a_sound_table_or_none(void **state)
{
	struct tn_slack *t[] = {given(), empty()};
	uint32_t loaded = 0, refused = 0;
	struct tn_rng rng;

	tn_slack_observe(t[1], 1000, 0, 0, 1000000);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t round = 0; round < 20000; round++) {
		const struct tn_slack *from = t[round % 2];
		size_t n = tn_slack_bytes(from);
		unsigned char *b = bytes_of(from);
		struct tn_slack *u;
		int rc;

		for (uint64_t k = tn_rng_below(&rng, 4) + 1; k > 0; k--)
			b[tn_rng_below(&rng, round % 3 ? n : 200)] = (unsigned char)tn_rng_next(&rng);
		rc = tn_slack_load(b, n, &u);
		free(b);
		refused += rc != 0;
		if (rc) {
			assert_int_equal(rc, -EINVAL);
			continue;
		}
		loaded++;
		use(u, &rng);
		tn_slack_destroy(u);
	}
	print_message("# %u tables, %u refused\n", loaded, refused);
	assert_true(loaded > 1000 && refused > 1000);
	tn_slack_destroy(t[0]);
	tn_slack_destroy(t[1]);
}

static void numbers_out_of_range_are_refused(void **state)
{
	static const double bad[] = {NAN, INFINITY, -1, 1e70};
	struct tn_slack *u;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		for (uint32_t where = 0; where < 4; where++) {
			struct tn_slack *t = given();
			unsigned char *b;

			if (where == 0)
				t->common = bad[i];
			else if (where == 1)
				t->cells[3].factor = bad[i];
			else if (where == 2)
				t->compute.t1 = bad[i];
			else
				t->cells[1].seen_ns = bad[i];
			b = bytes_of(t);
			assert_int_equal(tn_slack_load(b, tn_slack_bytes(t), &u), -EINVAL);
			free(b);
			tn_slack_destroy(t);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_table_is_the_same_and_learns_the_same_afterwards),
		cmocka_unit_test(no_other_number_of_bytes_is_a_table),
		cmocka_unit_test(bytes_that_anybody_changed_make_a_sound_table_or_none),
		cmocka_unit_test(numbers_out_of_range_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
