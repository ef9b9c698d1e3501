/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts that are saved in parts: a block that nobody could find, because the block before it is not there and not on its way, is not stored. On a
 * simulated disk, with each policy.
 */
#include <errno.h>

#include "base/error.h"
#include "cache_rig.h"
#include "core/core.h"

#define PART 4u
#define PAGES (PART * 2) /* of a part */
#define POOL_PAGES 256u
#define LAYERS 2u

static const char *const policies[] = {"default", "lru", "fifo", "s3fifo"};
#define for_each_policy(p) for (const char *const *p = policies; p < policies + sizeof(policies) / sizeof(policies[0]); p++)

static struct rig *rig_of(const char *policy, uint64_t host_bytes)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.policy = policy;
	o.cache.host_bytes = host_bytes;
	o.npages = POOL_PAGES; /* half of them for loads */
	return rig_start(&o);
}

/* Each part of each prompt has pages of its own. */
static uint32_t page_of(uint64_t first, uint32_t part)
{
	return (uint32_t)(first / 100 * 4 + part) * PAGES;
}

static struct tn_save *begin_parts(struct rig *r, uint64_t first, uint32_t part, uint32_t parts)
{
	struct tn_key parent = rig_key(first + part * PART - 1);
	struct tn_save_opts o;

	tn_save_opts_init(&o);
	o.parent = part ? &parent : NULL;
	rig_fill_blocks(r->s, first + part * PART, parts * PART, page_of(first, part));
	return rig_save_begin(r->s, first + part * PART, parts * PART, page_of(first, part), &o);
}

static struct tn_save *begin(struct rig *r, uint64_t first, uint32_t part)
{
	return begin_parts(r, first, part, 1);
}

static struct tn_save_result end(struct rig *r, struct tn_save *save)
{
	return rig_save_end(r->s, save);
}

static struct tn_save_result save_parts(struct rig *r, uint64_t first, uint32_t part, uint32_t parts)
{
	struct tn_save *save = begin_parts(r, first, part, parts);

	rig_save_give(r->s, save);
	return end(r, save);
}

static struct tn_save_result save_part(struct rig *r, uint64_t first, uint32_t part)
{
	return save_parts(r, first, part, 1);
}

static void are_orphans(struct rig *r, struct tn_save_result res)
{
	assert_int_equal(res.rejected, PART);
	assert_int_equal(res.error, -ENOENT);
	rig_check_quiet(r);
}

static void a_part_whose_beginning_is_nowhere_is_not_stored(void **state)
{
	for_each_policy(p)
		for (uint32_t host = 0; host < 2; host++) {
			struct rig *r = rig_of(*p, host ? 1u << 20 : 0);

			are_orphans(r, save_part(r, 1, 1));
			are_orphans(r, save_part(r, 1, 2));
			assert_int_equal(rig_stats(r).rejected_parent_blocks, 2 * PART);
			assert_int_equal(rig_stats(r).admission_rejected_blocks, 2 * PART);
			assert_int_equal(rig_stats(r).blocks, 0);
			for (uint32_t part = 0; part < 3; part++) /* once the beginning is there */
				assert_int_equal(save_part(r, 1, part).stored, PART);
			assert_int_equal(rig_match(r->s, 1, 3 * PART), 3 * PART);
			rig_tear_down(r);
		}
}

static void a_part_that_does_not_say_what_is_before_it_is_stored_as_a_beginning(void **state)
{
	for_each_policy(p) {
		struct rig *r = rig_of(*p, 0);
		struct tn_save *save = rig_save_begin(r->s, 10, PART, 0, NULL);

		rig_save_give(r->s, save);
		assert_int_equal(end(r, save).stored, PART);
		rig_tear_down(r);
	}
}

static void a_window_is_found_without_what_is_before_it(void **state)
{
	struct rig *r = rig_of("lru", 0);
	struct rig_space s;
	struct tn_save *save;
	struct tn_key parent = rig_key(9);
	struct tn_save_opts o;

	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.window = true, .seed = 5}, &s), 0);
	tn_save_opts_init(&o);
	o.parent = &parent;
	rig_fill_blocks(&s, 10, PART, 0);
	save = rig_save_begin(&s, 10, PART, 0, &o);
	rig_save_give(&s, save);
	assert_int_equal(rig_save_end(&s, save).stored, PART);
	rig_space_close(&s);
	rig_tear_down(r);
}

/* ---- parts on their way ---------------------------------------------------------------------------------------------- */

static void a_part_may_begin_before_the_one_before_it_is_stored(void **state)
{
	for_each_policy(p)
		for (uint32_t host = 0; host < 2; host++) {
			struct rig *r = rig_of(*p, host ? 1u << 20 : 0);
			struct tn_save *save[3];
			uint32_t found = 0;

			for (uint32_t part = 0; part < 3; part++)
				save[part] = begin(r, 1, part);
			rig_run(r, RIG_MS);
			for (uint32_t part = 0; part < 3; part++)
				rig_save_give(r->s, save[part]);
			while (found < 3 * PART) {
				rig_turn(r, RIG_MS);
				found = rig_count(r->s, 1, 3 * PART);
				assert_int_equal(rig_match(r->s, 1, 3 * PART), found); /* none before what is before it */
			}
			for (uint32_t part = 3; part-- > 0;)
				assert_int_equal(end(r, save[part]).stored, PART);
			assert_int_equal(rig_load(r->s, 1, 3 * PART), 3 * PART);
			assert_int_equal(rig_flush(r), 0);
			rig_check_quiet(r);
			rig_tear_down(r);
		}
}

static void a_part_that_is_aborted_takes_those_behind_it_along(void **state)
{
	for_each_policy(p)
		for (uint32_t late = 0; late < 2; late++) {
			struct rig *r = rig_of(*p, 0);
			struct tn_save *save[3];

			for (uint32_t part = 0; part < 3; part++)
				save[part] = begin(r, 1, part);
			if (late)
				rig_run(r, RIG_MS);
			assert_int_equal(tn_save_abort(save[0]), 0);
			for (uint32_t part = 1; part < 3; part++)
				rig_save_give(r->s, save[part]);
			for (uint32_t part = 0; part < 3; part++) {
				struct tn_save_result res = end(r, save[part]);

				assert_int_equal(res.stored, 0);
				assert_int_equal(res.rejected, part ? PART : 0);
			}
			assert_int_equal(rig_count(r->s, 1, 3 * PART), 0);
			assert_int_equal(rig_stats(r).blocks, 0);
			rig_check_quiet(r);
			rig_tear_down(r);
		}
}

static void a_part_waits_for_the_one_before_it_until_that_is_committed(void **state)
{
	for_each_policy(p) {
		struct rig *r = rig_of(*p, 0);
		struct tn_save *first = begin(r, 1, 0), *second = begin(r, 1, 1);
		struct tn_save_result res = {.size = sizeof(res)};

		rig_save_give(r->s, second);
		rig_run(r, 100 * RIG_MS);
		assert_int_equal(tn_save_end(second, 1, &res), -ETIMEDOUT);
		rig_save_give(r->s, first);
		assert_int_equal(end(r, second).stored, PART);
		assert_int_equal(end(r, first).stored, PART);
		assert_int_equal(rig_load(r->s, 1, 2 * PART), 2 * PART);
		rig_check_quiet(r);
		rig_tear_down(r);
	}
}

static void a_part_waits_no_longer_than_the_one_before_it_is_under_way(void **state)
{
	struct rig *r = rig_of("default", 0);
	struct tn_save *first = begin(r, 1, 0), *second = begin(r, 1, 1);
	struct tn_save_result res = {.size = sizeof(res)};

	rig_save_give(r->s, second);
	rig_run(r, RIG_MS);
	assert_int_equal(tn_save_end(second, 1, &res), -ETIMEDOUT);
	rig_run(r, TN_SAVE_IDLE_NS);
	res = end(r, second);
	assert_int_equal(res.rejected, PART);
	assert_int_equal(res.error, -ENOENT);
	rig_save_give(r->s, first);
	assert_int_equal(end(r, first).error, -ECANCELED);
	for (uint32_t part = 0; part < 2; part++)
		assert_int_equal(save_part(r, 1, part).stored, PART);
	rig_check_quiet(r);
	rig_tear_down(r);
}

static void of_two_that_bring_what_is_before_a_part_the_one_that_is_committed_counts(void **state)
{
	struct rig *r = rig_of("default", 0);
	struct tn_save *first = begin(r, 1, 0), *again, *second;

	rig_save_give(r->s, first);
	again = rig_save_begin(r->s, 1, PART, page_of(100, 0), NULL);
	second = begin(r, 1, 1);
	rig_save_give(r->s, second);
	assert_int_equal(end(r, second).stored, PART); /* nobody has given anything of the nearer one */
	assert_int_equal(tn_save_abort(again), 0);
	end(r, again);
	assert_int_equal(end(r, first).stored, PART);
	assert_int_equal(rig_load(r->s, 1, 2 * PART), 2 * PART);
	rig_check_quiet(r);
	rig_tear_down(r);
}

/* Keys that lie: each part says that the other one is before it. */
static void parts_that_claim_to_be_behind_each_other_end(void **state)
{
	struct rig *r = rig_of("lru", 0);
	struct tn_key parent[2] = {rig_key(20), rig_key(10)};
	struct tn_save *save[2];
	struct tn_save_opts o;
	uint32_t stored = 0;

	for (uint32_t i = 0; i < 2; i++) {
		tn_save_opts_init(&o);
		o.parent = &parent[i];
		save[i] = rig_save_begin(r->s, i ? 20 : 10, 1, i * PAGES, &o);
	}
	for (uint32_t i = 0; i < 2; i++)
		rig_save_give(r->s, save[i]);
	for (uint32_t i = 0; i < 2; i++)
		stored += end(r, save[i]).stored;
	assert_int_equal(stored, 0);
	rig_check_quiet(r);
	rig_tear_down(r);
}

/* ---- cost --------------------------------------------------------------------------------------------------------- */

#define SAVES 24u
#define ROUND (SAVES * (SAVES + 1) / 2) /* each of them looks at all that began before it */

/*
 * SAVES saves of so many blocks begin after one whose last block is before them all (coming), or is not. That one gets no bytes. *first: blocks that the
 * searches for the block before have looked at when all others have done what they can. Returns likewise for the *turns of the owner after that.
 */
static uint64_t count_steps(uint32_t blocks, bool coming, uint64_t *first, uint64_t *turns)
{
	struct rig_opts o = rig_simulated_opts();
	struct tn_save *before, *save[SAVES];
	struct tn_save_opts so;
	struct tn_key parent;
	uint64_t steps;
	struct rig *r;

	o.cache.max_ops = SAVES + 1;
	o.npages = (SAVES + 1) * blocks * 2;
	r = rig_start(&o);
	before = rig_save_begin(r->s, 1, blocks, 0, NULL);
	parent = rig_key(coming ? blocks : 99);
	tn_save_opts_init(&so);
	so.parent = &parent;
	for (uint32_t i = 0; i < SAVES; i++)
		save[i] = rig_save_begin(r->s, 100 * (i + 1), blocks, (i + 1) * blocks * 2, &so);
	for (uint32_t i = 0; i < SAVES; i++)
		rig_save_give(r->s, save[i]);
	rig_run(r, 100 * RIG_MS);
	*first = r->cache->parent_steps;
	*turns = r->turns;
	rig_run(r, 100 * RIG_MS);
	steps = r->cache->parent_steps - *first;
	*turns = r->turns - *turns;
	assert_int_equal(tn_save_abort(before), 0);
	for (uint32_t i = 0; i < SAVES; i++)
		assert_int_equal(end(r, save[i]).rejected, blocks);
	end(r, before);
	rig_check_quiet(r);
	rig_tear_down(r);
	return steps;
}

/* The owner's thread serves everybody: for saves that wait it looks at one block of each earlier save, and not at all of its blocks. */
static void the_search_for_a_parent_looks_at_saves_and_not_at_their_blocks(void **state)
{
	for (uint32_t blocks = 1; blocks <= 16; blocks *= 4) {
		uint64_t first, turns;

		assert_int_equal(count_steps(blocks, false, &first, &turns), 0);
		assert_in_range(first, ROUND, 2 * ROUND); /* when they begin, and when they end */
		assert_in_range(count_steps(blocks, true, &first, &turns), ROUND, 2 * turns * ROUND);
	}
}

/* ---- mixtures ------------------------------------------------------------------------------------------------------------- */

#define PROMPTS 3u
#define PARTS 4u

struct part {
	struct tn_save *save;
	uint32_t layers;
	bool given, aborted;
};

static uint64_t first_of(uint32_t prompt)
{
	return 1 + 100 * prompt;
}

static void step_part(struct rig *r, struct part *p, uint32_t prompt, uint32_t part, uint64_t what)
{
	if (!p->save && what < 6) {
		p->save = begin(r, first_of(prompt), part);
		p->layers = 0;
		p->given = p->aborted = false;
	} else if (p->save && !p->given && !p->aborted) {
		if (what == 0) {
			p->aborted = tn_save_abort(p->save) == 0;
		} else if (p->layers < LAYERS) {
			assert_int_equal(tn_save_layer(p->save, p->layers++, NULL, 0), 0);
		} else {
			assert_int_equal(tn_save_commit(p->save), 0);
			p->given = true;
		}
	} else if (p->save && what > 2) {
		rig_save_end(r->s, p->save);
		p->save = NULL;
	}
}

static void end_part(struct rig *r, struct part *p)
{
	if (p->save && !p->given)
		tn_save_abort(p->save);
	if (p->save)
		rig_save_end(r->s, p->save);
	p->save = NULL;
}

static void whatever_is_begun_aborted_and_ended_in_whatever_order_all_that_is_stored_is_found(void **state)
{
	uint32_t runs = tn_test_cases(24);

	for (uint32_t run = 0; run < runs; run++) {
		const char *policy = policies[run % 4];
		struct rig *r = rig_of(policy, run / 4 % 2 ? 1u << 20 : 0);
		struct part parts[PROMPTS][PARTS] = {{{0}}};
		struct tn_rng rng;

		tn_rng_seed(&rng, tn_test_seed() + run);
		for (uint32_t i = 0; i < 300; i++) {
			uint32_t prompt = (uint32_t)tn_rng_below(&rng, PROMPTS), part = (uint32_t)tn_rng_below(&rng, PARTS);

			step_part(r, &parts[prompt][part], prompt, part, tn_rng_below(&rng, 8));
			if (tn_rng_below(&rng, 3) == 0)
				rig_turn(r, RIG_MS);
		}
		for (uint32_t prompt = 0; prompt < PROMPTS; prompt++)
			for (uint32_t part = 0; part < PARTS; part++)
				end_part(r, &parts[prompt][part]);
		for (uint32_t prompt = 0; prompt < PROMPTS; prompt++) {
			uint32_t found = rig_count(r->s, first_of(prompt), PARTS * PART);

			if (found != (uint32_t)rig_match(r->s, first_of(prompt), PARTS * PART))
				rig_fail(r, "seed %llu, %s, prompt %u: %u blocks are there, and %d are found",
					 (unsigned long long)(tn_test_seed() + run), policy, prompt, found,
					 rig_match(r->s, first_of(prompt), PARTS * PART));
			if (found > 0)
				assert_int_equal(rig_load(r->s, first_of(prompt), found < 16 ? found : 16), found < 16 ? found : 16);
		}
		rig_flush(r);
		rig_check_quiet(r);
		rig_tear_down(r);
	}
}

/* A policy that notes which hash it is told of with each request. */
static struct {
	struct tn_policy_ops ops;
	const struct tn_policy_ops *real;
	uint64_t hash[16];
	uint32_t n;
} noted;

static void note_request(struct tn_policy *p, uint32_t parent, uint64_t parent_hash)
{
	assert_true(noted.n < 16);
	noted.hash[noted.n++] = parent_hash;
	noted.real->request(p, parent, parent_hash);
}

static void note(struct tn_tier_base *t)
{
	noted.real = t->policy->ops;
	noted.ops = *t->policy->ops;
	noted.ops.request = note_request;
	noted.n = 0;
	t->policy->ops = &noted.ops;
}

/* A save and what it teaches are two requests of the policy. */
static void the_policy_is_told_which_block_a_part_goes_on_from(void **state)
{
	struct rig *r = rig_of("default", 0);
	struct tn_tier_base *t = r->cache->row.durable;
	struct tn_key last = rig_key(PART);
	uint64_t hash = tn_key_hash(t, &last, r->s->space->index);

	note(t);
	assert_int_equal(save_part(r, 1, 0).stored, PART);
	assert_int_equal(save_part(r, 1, 1).stored, PART);
	assert_int_equal(rig_load(r->s, 1, 2 * PART), 2 * PART);
	assert_int_equal(noted.n, 5);
	for (uint32_t i = 0; i < noted.n; i++)
		assert_true(noted.hash[i] == (i == 2 || i == 3 ? hash : 0));
	t->policy->ops = noted.real;
	rig_tear_down(r);
}

/* The first blocks of each save are stored already. */
static void the_policy_is_told_which_block_the_new_blocks_of_a_save_go_on_from(void **state)
{
	struct rig *r = rig_of("default", 0);
	struct tn_tier_base *t = r->cache->row.durable;
	struct tn_key end_of_first = rig_key(PART), end_of_third = rig_key(3 * PART);
	uint64_t first = tn_key_hash(t, &end_of_first, r->s->space->index), third = tn_key_hash(t, &end_of_third, r->s->space->index);
	const uint64_t told[] = {0, first, first, third, 0};

	assert_int_equal(save_part(r, 1, 0).stored, PART);
	note(t);
	assert_int_equal(save_parts(r, 1, 0, 3).stored, 2 * PART); /* no parent */
	assert_int_equal(save_parts(r, 1, 1, 3).stored, PART);
	assert_int_equal(save_parts(r, 1, 0, 4).stored, 0); /* nothing is new: nothing is taught */
	assert_int_equal(noted.n, sizeof(told) / sizeof(told[0]));
	for (uint32_t i = 0; i < noted.n; i++)
		assert_true(noted.hash[i] == told[i]);
	t->policy->ops = noted.real;
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_part_whose_beginning_is_nowhere_is_not_stored),
		cmocka_unit_test(a_part_that_does_not_say_what_is_before_it_is_stored_as_a_beginning),
		cmocka_unit_test(a_window_is_found_without_what_is_before_it),
		cmocka_unit_test(a_part_may_begin_before_the_one_before_it_is_stored),
		cmocka_unit_test(a_part_that_is_aborted_takes_those_behind_it_along),
		cmocka_unit_test(a_part_waits_for_the_one_before_it_until_that_is_committed),
		cmocka_unit_test(a_part_waits_no_longer_than_the_one_before_it_is_under_way),
		cmocka_unit_test(of_two_that_bring_what_is_before_a_part_the_one_that_is_committed_counts),
		cmocka_unit_test(parts_that_claim_to_be_behind_each_other_end),
		cmocka_unit_test(the_search_for_a_parent_looks_at_saves_and_not_at_their_blocks),
		cmocka_unit_test(the_policy_is_told_which_block_a_part_goes_on_from),
		cmocka_unit_test(the_policy_is_told_which_block_the_new_blocks_of_a_save_go_on_from),
		cmocka_unit_test(whatever_is_begun_aborted_and_ended_in_whatever_order_all_that_is_stored_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
