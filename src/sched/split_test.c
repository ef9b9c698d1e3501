/* SPDX-License-Identifier: Apache-2.0 */
/* The split: never worse than restoring all or none, best where everything can be tried, and of bounded cost. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "lab/pipeline_rig.h"
#include "tn_test.h"

#define LAYERS_MOST 40
#define EVALUATIONS_MOST 100
#define EVALUATIONS_TIERS_MOST 150 /* of a million blocks */
#define ROUNDS 400
#define BLOCKS_MOST 5000

/* An engine: so many ns per token, and so many more per token that it attends to. */
struct engine {
	uint32_t layers;
	double token_ns, attend_ns;
	double noise; /* of each (input, prefix), up to this share */
	uint64_t calls, tokens;
	int fail;
};

static int compute(void *arg, uint64_t input, uint64_t prefix, uint64_t *ns)
{
	struct engine *e = arg;
	double n = (double)input, one = n * e->token_ns + n * ((double)prefix + n / 2) * e->attend_ns;
	struct tn_rng rng;

	e->calls++;
	assert_true(input >= 1);
	assert_int_equal(input + prefix, e->tokens);
	tn_rng_seed(&rng, input * 7919 + prefix);
	one *= 1 + e->noise * tn_rng_unit(&rng);
	for (uint32_t l = 0; l < e->layers; l++)
		ns[l] = 1 + (uint64_t)one;
	return e->fail;
}

struct prefix {
	struct tn_split s;
	struct engine engine;
	uint64_t scratch[TN_SPLIT_SCRATCH(LAYERS_MOST)];
	uint8_t tiers[BLOCKS_MOST];
};

/* Roughly Llama-3-8B on an H100 (0.5 us per token and layer), 64 tokens per block, over a disk of @bps. */
static void even(struct prefix *p, uint64_t blocks, double bps)
{
	memset(p, 0, sizeof(*p));
	p->s.window = TN_SPLIT_WINDOW;
	p->s.layers = p->engine.layers = 32;
	p->s.blocks = blocks;
	p->s.block_tokens = 64;
	p->s.input_tokens = 500;
	p->s.object_bytes = 262144;
	p->s.header_bytes = 4096;
	p->s.read_bps = bps;
	p->s.latency_ns = 100000;
	p->s.compute = compute;
	p->s.compute_arg = &p->engine;
	p->s.scratch = p->scratch;
	p->engine.token_ns = 1000;
	p->engine.attend_ns = 0.03;
	p->engine.tokens = blocks * 64 + 500;
}

static struct tn_split_choice choose(struct prefix *p)
{
	struct tn_split_choice c;
	int rc = tn_split_choose(&p->s, &c);

	if (rc)
		fail_msg("%s", tn_error_last()->text);
	return c;
}

static uint64_t best_of_all(struct prefix *p)
{
	uint64_t best = UINT64_MAX;

	for (uint64_t k = 0; k <= p->s.blocks; k++) {
		struct tn_restore r;

		assert_int_equal(tn_split_at(&p->s, k, &r), 0);
		best = r.ttft_ns < best ? r.ttft_ns : best;
	}
	return best;
}

static void random_prefix(struct tn_rng *rng, struct prefix *p, uint64_t most)
{
	even(p, tn_rng_below(rng, (uint32_t)most + 1), 1e8 * (double)(1u << tn_rng_below(rng, 10)));
	p->s.input_tokens = 1 + tn_rng_below(rng, 4000);
	p->s.host_blocks = tn_rng_below(rng, 3) ? 0 : tn_rng_below(rng, (uint32_t)p->s.blocks + 1);
	p->s.layers = p->engine.layers = 1 + tn_rng_below(rng, LAYERS_MOST);
	p->engine.tokens = p->s.blocks * 64 + p->s.input_tokens;
	p->engine.token_ns = 10 + 2000 * tn_rng_unit(rng);
	p->engine.attend_ns = tn_rng_unit(rng);
	if (tn_rng_below(rng, 2))
		return;
	/* Runs in host memory and on disk, in turn. */
	p->s.tiers = p->tiers;
	for (uint64_t b = 0, longest = 1 + tn_rng_below(rng, (uint32_t)most); b < p->s.blocks;) {
		uint8_t tier = tn_rng_below(rng, 2) ? TN_TIER_HOST : TN_TIER_DISK;

		for (uint64_t n = 1 + tn_rng_below(rng, (uint32_t)longest); n > 0 && b < p->s.blocks; n--)
			p->tiers[b++] = tier;
	}
}

/* The library's recurrence is that of lab/pipeline.c, to the last ns: both extremes and the choice, whatever the window. */
static void what_is_expected_is_what_the_pipeline_says(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct tn_restore all, none, chosen;
		struct tn_split_choice c;
		struct prefix p;

		random_prefix(&rng, &p, 600);
		p.s.window = 1 + tn_rng_below(&rng, 6);
		c = choose(&p);
		assert_int_equal(tn_split_at(&p.s, p.s.blocks, &all), 0);
		assert_int_equal(tn_split_at(&p.s, 0, &none), 0);
		assert_int_equal(tn_split_at(&p.s, c.restore_blocks, &chosen), 0);
		assert_memory_equal(&all, &c.restore_all, sizeof(all));
		assert_memory_equal(&none, &c.restore_none, sizeof(none));
		assert_memory_equal(&chosen, &c.chosen, sizeof(chosen));
	}
}

/* One layer, and then pairs: compute waits for the second of a pair. */
static void layers_that_are_read_as_one_arrive_as_one(void **state)
{
	struct tn_split_choice choice;
	struct prefix p;
	uint64_t one, compute_ns;

	even(&p, 1, 1e9);
	p.s.layers = p.engine.layers = 6;
	p.s.latency_ns = 0;
	p.s.header_bytes = 0;
	p.engine.token_ns = 1;
	p.engine.attend_ns = 0;
	p.engine.tokens = 64 + 500;
	one = p.s.object_bytes; /* ns, at 1e9 bytes per second */
	compute_ns = 501;
	assert_int_equal(tn_split_choose(&p.s, &choice), 0);
	assert_int_equal(choice.restore_all.ttft_ns, 6 * one + compute_ns);
	p.s.first_together = 1;
	p.s.together = 2;
	assert_int_equal(tn_split_choose(&p.s, &choice), 0);
	assert_int_equal(choice.restore_all.ttft_ns, 6 * one + compute_ns); /* the last layer is by itself */
	p.s.layers = p.engine.layers = 5;
	assert_int_equal(tn_split_choose(&p.s, &choice), 0);
	assert_int_equal(choice.restore_all.ttft_ns, 5 * one + 2 * compute_ns);
	p.s.first_together = p.s.together = 8;
	assert_int_equal(tn_split_choose(&p.s, &choice), 0);
	assert_int_equal(choice.restore_all.ttft_ns, 5 * one + 5 * compute_ns);
}

static void a_fast_disk_restores_all_and_a_slow_one_none(void **state)
{
	struct prefix p;
	struct tn_split_choice c;

	even(&p, 1000, 1e12);
	c = choose(&p);
	assert_int_equal(c.restore_blocks, 1000);
	assert_int_equal(c.chosen.ttft_ns, c.restore_all.ttft_ns);
	assert_true(c.chosen.ttft_ns < c.restore_none.ttft_ns);
	even(&p, 1000, 1e6);
	c = choose(&p);
	assert_int_equal(c.restore_blocks, 0);
	assert_int_equal(c.chosen.ttft_ns, c.restore_none.ttft_ns);
	assert_int_equal(c.chosen.read_bytes, 0);
}

static void between_them_a_part_is_restored_and_it_hides(void **state)
{
	struct prefix p;
	struct tn_split_choice c;

	even(&p, 1000, 3e9);
	c = choose(&p);
	assert_in_range(c.restore_blocks, 1, 999);
	assert_true(c.chosen.ttft_ns < c.restore_all.ttft_ns && c.chosen.ttft_ns < c.restore_none.ttft_ns);
	assert_true((double)c.chosen.bubble_ns < 0.1 * (double)c.chosen.ttft_ns);
	assert_int_equal(c.chosen.read_bytes, c.restore_blocks * (32 * 262144 + 4096));
}

/* Of prefixes with runs in host memory, 1 in 100,000 has two lows further apart than what is looked at round the best one. */
static void the_choice_is_the_best_there_is(void **state)
{
	struct tn_rng rng;
	unsigned missed = 0;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct prefix p;
		double over;

		random_prefix(&rng, &p, i % 2 ? 64 : 600);
		over = (double)choose(&p).chosen.ttft_ns / (double)best_of_all(&p);
		assert_true(over <= (p.s.tiers && p.s.blocks > 64 ? 1.02 : 1.001));
		missed += over > 1.001;
	}
	assert_true(missed <= 3);
}

static void an_irregular_table_costs_no_more_and_is_no_worse_than_the_extremes(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < ROUNDS * 10; i++) {
		struct prefix p;
		struct tn_split_choice c;

		random_prefix(&rng, &p, BLOCKS_MOST);
		p.engine.noise = 3;
		c = choose(&p);
		assert_true(c.chosen.ttft_ns <= c.restore_all.ttft_ns && c.chosen.ttft_ns <= c.restore_none.ttft_ns);
		assert_true(p.engine.calls <= EVALUATIONS_MOST);
	}
}

static void a_search_among_a_million_blocks_is_short(void **state)
{
	const uint32_t blocks = 1u << 20;
	uint8_t *tiers = malloc(blocks);
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned i = 0; i < 40; i++) {
		uint32_t longest = 1u << tn_rng_below(&rng, 18);
		struct prefix p;

		for (uint32_t b = 0, n = 0, tier = 0; b < blocks; b++) {
			tier = n ? tier : tn_rng_below(&rng, 2) ? TN_TIER_HOST : TN_TIER_DISK;
			n = n ? n - 1 : tn_rng_below(&rng, longest);
			tiers[b] = (uint8_t)tier;
		}
		even(&p, blocks, 1e8 * (double)(1u << tn_rng_below(&rng, 10)));
		p.engine.attend_ns = 1e-5 * tn_rng_unit(&rng);
		p.s.tiers = i % 2 ? tiers : NULL;
		choose(&p);
		assert_true(p.engine.calls <= (i % 2 ? EVALUATIONS_TIERS_MOST : EVALUATIONS_MOST));
	}
	free(tiers);
}

static void blocks_in_host_memory_are_not_read(void **state)
{
	struct prefix p;
	struct tn_split_choice c;

	even(&p, 1000, 1e6);
	p.s.host_blocks = 400;
	c = choose(&p);
	assert_int_equal(c.restore_blocks, 400);
	assert_int_equal(c.chosen.read_bytes, 0);
}

/* Of 1,000 blocks only every tenth is read, but for the last hundred: a slow disk that restores these leaves those. */
static void blocks_in_host_memory_are_not_read_wherever_they_lie(void **state)
{
	struct tn_restore r;
	struct tn_split_choice c;
	struct prefix p;

	even(&p, 1000, 1e8);
	p.s.tiers = p.tiers;
	for (uint32_t b = 0; b < 1000; b++)
		p.tiers[b] = b % 10 == 3 || b >= 900 ? TN_TIER_DISK : TN_TIER_HOST;
	assert_int_equal(tn_split_at(&p.s, 3, &r), 0);
	assert_int_equal(r.read_bytes, 0);
	assert_int_equal(tn_split_at(&p.s, 14, &r), 0);
	assert_int_equal(r.read_bytes, 2 * (32 * 262144 + 4096));
	assert_int_equal(tn_split_at(&p.s, 1000, &r), 0);
	assert_int_equal(r.read_bytes, (90 + 100) * (32ull * 262144 + 4096));
	c = choose(&p);
	print_message("# restored: %llu\n", (unsigned long long)c.restore_blocks);
	assert_in_range(c.restore_blocks, 1, 900);
	assert_int_equal(c.restore_blocks % 10, 3); /* never some of those that are there at once */
	assert_int_equal(c.chosen.read_bytes, c.restore_blocks / 10 * (32ull * 262144 + 4096));
	memset(p.tiers, TN_TIER_HOST, 1000);
	p.s.read_bps = 1e6;
	assert_int_equal(choose(&p).restore_blocks, 1000);
}

static void of_a_prompt_restored_whole_the_last_token_is_computed(void **state)
{
	struct prefix p;

	even(&p, 10, 1e12);
	p.s.input_tokens = 0;
	p.engine.tokens = 640;
	assert_int_equal(choose(&p).restore_blocks, 10);
	even(&p, 0, 1e9);
	p.s.read_bps = 0;
	p.s.window = 0;
	assert_int_equal(choose(&p).restore_blocks, 0);
}

#define REFUSED(change, rc, says)                                                                                      \
	do {                                                                                                           \
		struct tn_split_choice c_ = {.restore_blocks = 77};                                                    \
		even(&p, 100, 1e9);                                                                                    \
		change;                                                                                                \
		assert_int_equal(tn_split_choose(&p.s, &c_), rc);                                                      \
		assert_int_equal(c_.restore_blocks, 77);                                                               \
		if (!strstr(tn_error_last()->text, says))                                                              \
			fail_msg("'%s' is not in '%s'", says, tn_error_last()->text);                                  \
	} while (0)

static void what_makes_no_sense_is_refused(void **state)
{
	struct prefix p;

	REFUSED(p.s.layers = 0, -EINVAL, "0 layers");
	REFUSED(p.s.compute = NULL, -EINVAL, "compute function");
	REFUSED(p.s.scratch = NULL, -EINVAL, "scratch");
	REFUSED(p.s.host_blocks = 101, -EINVAL, "101 blocks in host memory");
	REFUSED(p.s.block_tokens = 0, -EINVAL, "0 tokens");
	REFUSED(p.s.object_bytes = 0, -EINVAL, "0 bytes");
	REFUSED(p.s.blocks = p.s.input_tokens = 0, -EINVAL, "nothing to compute");
	REFUSED(p.s.blocks = UINT64_MAX, -EOVERFLOW, "more than can be counted");
	REFUSED(p.s.read_bps = -1, -EINVAL, "read_bps");
	REFUSED(p.s.read_bps = 0.0 / 0.0, -EINVAL, "nan");
	REFUSED(p.s.read_bps = 1e300, -EINVAL, "1e+300");
	REFUSED(p.s.read_bps = 1e-3, -EOVERFLOW, "no clock");
	REFUSED(p.s.window = 0, -EINVAL, "window 0");
	REFUSED(p.s.latency_ns = UINT64_MAX, -EINVAL, "latency");
	REFUSED(p.engine.token_ns = 1e13, -EINVAL, "layer 0 computes for");
	REFUSED(p.s.object_bytes = UINT64_C(1) << 52, -EOVERFLOW, "more than can be counted");
	REFUSED(p.engine.fail = -EDOM, -EDOM, "");
}

/* Whether a prefix of so many blocks is restored as soon as it is computed. */
static bool pays(struct prefix *p, uint64_t blocks)
{
	struct tn_split_choice c;

	p->s.blocks = blocks;
	p->engine.tokens = blocks * 64 + p->s.input_tokens;
	c = choose(p);
	return c.restore_all.ttft_ns <= c.restore_none.ttft_ns;
}

static int compute_any(void *arg, uint64_t input, uint64_t prefix, uint64_t *ns)
{
	((struct engine *)arg)->tokens = input + prefix;
	return compute(arg, input, prefix, ns);
}

static void from_the_crossover_on_a_prefix_is_restored_sooner(void **state)
{
	struct prefix p;
	uint64_t at = 0;

	even(&p, 2000, 2e9); /* a block takes 131 us per layer, and 64 us to compute without a prefix */
	p.s.compute = compute_any;
	p.s.input_tokens = 64;
	assert_int_equal(tn_split_crossover(&p.s, &at), 0);
	print_message("# from %llu blocks on\n", (unsigned long long)at);
	assert_in_range(at, 2, 1999);
	assert_false(pays(&p, at - 1));
	for (uint64_t n = at; n <= 2000; n += 97)
		assert_true(pays(&p, n));
	p.s.blocks = at - 1;
	assert_int_equal(tn_split_crossover(&p.s, &at), 0);
	assert_true(at == TN_SPLIT_NEVER);
	p.s.blocks = 2000;
	p.s.read_bps = 1e12;
	assert_int_equal(tn_split_crossover(&p.s, &at), 0);
	assert_int_equal(at, 1);
	p.s.read_bps = 0;
	assert_int_equal(tn_split_crossover(&p.s, &at), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layers_that_are_read_as_one_arrive_as_one),
		cmocka_unit_test(a_fast_disk_restores_all_and_a_slow_one_none),
		cmocka_unit_test(between_them_a_part_is_restored_and_it_hides),
		cmocka_unit_test(what_is_expected_is_what_the_pipeline_says),
		cmocka_unit_test(the_choice_is_the_best_there_is),
		cmocka_unit_test(an_irregular_table_costs_no_more_and_is_no_worse_than_the_extremes),
		cmocka_unit_test(a_search_among_a_million_blocks_is_short),
		cmocka_unit_test(blocks_in_host_memory_are_not_read),
		cmocka_unit_test(blocks_in_host_memory_are_not_read_wherever_they_lie),
		cmocka_unit_test(of_a_prompt_restored_whole_the_last_token_is_computed),
		cmocka_unit_test(what_makes_no_sense_is_refused),
		cmocka_unit_test(from_the_crossover_on_a_prefix_is_restored_sooner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
