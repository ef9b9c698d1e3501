/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/share.h"

#include "base/rng.h"
#include "tn_test.h"

#define KINDS TN_SHARE_KINDS

/* Kinds that want pieces, each as many as there are; pieces come back one by one, the oldest first. */
struct model {
	struct tn_share s;
	uint32_t total, used, want, first;
	uint32_t out[256]; /* ring: kinds of the pieces that are out */
	uint64_t got[KINDS], waited[KINDS], most[KINDS]; /* waited: pieces that ended since it wanted one in vain */
	uint32_t keep[KINDS];
};

static void model_init(struct model *m, uint32_t total, uint32_t want)
{
	*m = (struct model){.total = total, .want = want};
	tn_share_init(&m->s, total);
}

static void ask(struct model *m, uint32_t kind)
{
	while (tn_share_may(&m->s, kind, m->total - m->used, m->keep[kind])) {
		tn_share_took(&m->s, kind);
		m->out[(m->first + m->used++) % 256] = kind;
		m->got[kind]++;
		m->waited[kind] = 0;
	}
}

/* False: nothing is out, and nobody got anything. */
static bool turn(struct model *m)
{
	tn_share_turn(&m->s);
	for (uint32_t k = 0; k < KINDS; k++)
		if (m->want >> k & 1)
			ask(m, k);
	return m->used > 0 || tn_share_again(&m->s);
}

static void end_one(struct model *m)
{
	if (m->used == 0)
		return;
	tn_share_gave(&m->s, m->out[m->first % 256]);
	m->first++;
	m->used--;
	for (uint32_t k = 0; k < KINDS; k++)
		if ((m->want >> k & 1) && ++m->waited[k] > m->most[k])
			m->most[k] = m->waited[k];
}

static void the_first_to_ask_does_not_take_everything(void **state)
{
	for (uint32_t total = 2; total <= 256; total *= 2) {
		struct model m;

		model_init(&m, total, 1);
		turn(&m); /* takes all there is */
		assert_int_equal(m.used, total);
		m.want = (1u << KINDS) - 1;
		for (uint32_t k = 0; k < 20 * total; k++) {
			end_one(&m);
			turn(&m);
		}
		for (uint32_t k = 0; k < KINDS; k++) {
			print_message("# %u pieces: kind %u had %llu, waited for the end of %llu\n", total, k,
				      (unsigned long long)m.got[k], (unsigned long long)m.most[k]);
			assert_true(m.got[k] >= 15 * total / 16);
			assert_true(m.most[k] <= 2 * total + KINDS);
		}
	}
}

static void one_kind_alone_has_all_and_keeps_what_it_is_told_to(void **state)
{
	struct model m;

	model_init(&m, 64, 1u << 2);
	m.keep[2] = 48;
	turn(&m);
	assert_int_equal(m.used, 16);
	m.keep[2] = 0;
	turn(&m);
	assert_int_equal(m.used, 64);
}

/* It keeps 48 of 64 for others, who take all of them: the few that each is left are there all the same. */
static void what_a_kind_is_left_does_not_depend_on_what_it_keeps(void **state)
{
	struct model m;

	model_init(&m, 64, 1);
	m.keep[2] = 48;
	turn(&m);
	m.want = 1 | 1u << 2;
	for (uint32_t k = 0; k < 640; k++) {
		end_one(&m);
		turn(&m);
	}
	assert_in_range(m.got[2], 640 / 20, 640 / 12);
}

/* Pieces that were left to a kind that wants none any more are taken in the very next turn. */
static void nothing_stays_unused_when_a_kind_stops_asking(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t round = 0; round < 2000; round++) {
		struct model m;

		model_init(&m, 1u << (1 + tn_rng_below(&rng, 6)), 0);
		for (uint32_t k = 0; k < 200; k++) {
			m.want = tn_rng_below(&rng, 16);
			assert_true(turn(&m) || m.want == 0);
			if (tn_share_again(&m.s))
				turn(&m);
			assert_true(m.used > 0 || m.want == 0);
			for (uint32_t i = tn_rng_below(&rng, m.total + 1); i > 0; i--)
				end_one(&m);
		}
	}
}

/* Kinds that may take a piece, and do not, because they wait for something else besides. */
static void kinds_that_do_not_take_what_they_may_come_to_rest(void **state)
{
	struct tn_share s;
	uint32_t turns = 0, free_pieces = 1;

	tn_share_init(&s, 4);
	for (uint32_t k = 0; k < 3; k++)
		tn_share_took(&s, 0);
	do {
		tn_share_turn(&s);
		assert_true(++turns < 4 * KINDS);
		/* Each comes first once. */
		for (uint32_t i = 0; i < KINDS - 1; i++)
			tn_share_may(&s, 1 + (i + turns) % (KINDS - 1), turns < 3 ? 0 : free_pieces, 0);
	} while (turns < 4 || tn_share_again(&s));
	/* At rest nobody is kept from asking, and the piece is anybody's. */
	tn_share_turn(&s);
	for (uint32_t k = 1; k < KINDS; k++)
		assert_true(tn_share_may(&s, k, free_pieces, 0));
	assert_true(tn_share_may(&s, 0, free_pieces, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_to_ask_does_not_take_everything),
		cmocka_unit_test(one_kind_alone_has_all_and_keeps_what_it_is_told_to),
		cmocka_unit_test(what_a_kind_is_left_does_not_depend_on_what_it_keeps),
		cmocka_unit_test(nothing_stays_unused_when_a_kind_stops_asking),
		cmocka_unit_test(kinds_that_do_not_take_what_they_may_come_to_rest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
