/* SPDX-License-Identifier: Apache-2.0 */
/* The duel by its own functions: a prompt that comes in pieces, as a load and a save do, hits what it would hit as a whole. */
#include "base/alloc_rig.h"
#include "base/hash.h"
#include "base/rng.h"
#include "policy/policy_duel.h"
#include "tn_test.h"

#define CHAINS 400u
#define PROMPTS 6000u
#define SAMPLED 9000u /* entries of a tier whose shadows see a part of the blocks */

enum pieces {
	WHOLE,
	IN_TURN, /* the second piece follows the first */
	APART,	 /* another prompt begins between them */
	IN_THREE, /* a load, the blocks of its save that are stored already, and after another prompt the save's new blocks */
};

static uint64_t hash_of(uint32_t chain, uint32_t depth)
{
	return tn_mix64(((uint64_t)chain << 32 | depth) + 1);
}

static void refer(struct tn_duel *d, uint32_t chain, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		const struct tn_policy_block b = {.depth = i, .parent = TN_ENTRY_NONE};

		tn_duel_refer(d, hash_of(chain, i), &b);
	}
}

static struct tn_duel *begin(uint32_t entries)
{
	const struct tn_policy_opts opts = {.capacity = entries, .alloc = &tn_alloc_system}, of_value = {.capacity = tn_duel_nodes(entries), .alloc = &tn_alloc_system};
	struct tn_duel *d = calloc(1, sizeof(*d));
	struct tn_policy *value;

	assert_non_null(d);
	assert_int_equal(tn_policy_lru.create(&of_value, &value), 0); /* stands for the order by value */
	assert_int_equal(tn_duel_init(d, &opts, value), 0);
	tn_duel_expect(d, entries);
	return d;
}

static void end(struct tn_duel *d)
{
	tn_duel_fini(d);
	free(d);
}

/* Chains of 20 to 99 blocks; the first ones are asked for more often. hits: of each order, as they fade. */
static void run(uint32_t entries, enum pieces pieces, double *hits)
{
	struct tn_duel *d = begin(entries);
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t q = 0; q < PROMPTS; q++) {
		uint32_t chain = tn_rng_below(&rng, 1 + tn_rng_below(&rng, CHAINS)), n = 20 + chain % 80, cut = 1 + tn_rng_below(&rng, n - 1), there = cut + (n - cut) / 2;

		tn_duel_request(d, 0);
		refer(d, chain, 0, pieces == WHOLE ? n : cut);
		if (pieces == WHOLE)
			continue;
		if (pieces == APART)
			tn_duel_request(d, 0);
		tn_duel_request(d, hash_of(chain, cut - 1));
		refer(d, chain, cut, pieces == IN_THREE ? there : n);
		if (pieces != IN_THREE)
			continue;
		tn_duel_request(d, 0);
		tn_duel_request(d, hash_of(chain, there - 1));
		refer(d, chain, there, n);
	}
	tn_duel_request(d, 0);
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		hits[i] = d->hits[i];
	end(d);
}

static void a_prompt_in_pieces_hits_what_it_hits_as_a_whole(void **state)
{
	static const uint32_t entries[] = {300, 2000, SAMPLED};

	for (size_t e = 0; e < sizeof(entries) / sizeof(entries[0]); e++) {
		double whole[TN_DUEL_ORDERS], in_turn[TN_DUEL_ORDERS], apart[TN_DUEL_ORDERS], in_three[TN_DUEL_ORDERS];

		run(entries[e], WHOLE, whole);
		run(entries[e], IN_TURN, in_turn);
		run(entries[e], APART, apart);
		run(entries[e], IN_THREE, in_three);
		for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++) {
			print_message("# %u entries, order %u: %.0f hits whole, %.0f in turn, %.0f apart, %.0f in three\n", entries[e], i, whole[i], in_turn[i], apart[i], in_three[i]);
			assert_true(whole[i] > 100);
			assert_true(in_turn[i] > .999 * whole[i] && in_turn[i] < 1.001 * whole[i]);
			assert_true(apart[i] > .98 * whole[i] && apart[i] < 1.02 * whole[i]);
			assert_true(in_three[i] > .985 * whole[i] && in_three[i] < 1.015 * whole[i]);
		}
	}
}

/* The hash of the last sampled block before `to`, 0: none. */
static uint64_t sampled_before(const struct tn_duel *d, uint32_t chain, uint32_t to)
{
	while (to > 0 && hash_of(chain, to - 1) & d->mask)
		to--;
	return to ? hash_of(chain, to - 1) : 0;
}

/* Several answers to one prompt, whose last block is not in the sample. Few ends are lost, to others in the same place of the table. */
static void each_branch_of_a_prompt_goes_on_from_the_prompt(void **state)
{
	struct tn_duel *d = begin(SAMPLED);
	uint32_t branches = 0, known = 0;

	for (uint32_t chain = 0; chain < 100; chain++) {
		uint32_t n = 5 + chain % 20;
		uint64_t last = hash_of(chain, n - 1), sampled = sampled_before(d, chain, n);

		tn_duel_request(d, 0);
		refer(d, chain, 0, n);
		for (uint32_t branch = 0; branch < 4; branch++) {
			tn_duel_request(d, last);
			assert_int_equal(d->end.last, last);
			if (sampled && sampled != last) {
				branches++;
				known += d->end.sampled == sampled && d->shadow[TN_DUEL_RECENCY].missed; /* the prompt is new */
			}
			refer(d, (branch + 1) * CHAINS + chain, n, n + 8);
		}
	}
	print_message("# %u of %u branches go on from their prompt\n", known, branches);
	assert_true(d->mask != 0 && branches > 100);
	assert_true(known > .98 * branches);
	end(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_prompt_in_pieces_hits_what_it_hits_as_a_whole),
		cmocka_unit_test(each_branch_of_a_prompt_goes_on_from_the_prompt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
