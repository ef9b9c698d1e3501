/* SPDX-License-Identifier: Apache-2.0 */
/* The number of spaces that are opened in a store's life is not bounded: those that nobody has open give their numbers back. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/rng.h"
#include "core/core.h"
#include "cache_rig.h"

/* Spaces of a store's life: three times as many as it holds; in an emulated machine, where each takes long, a few more than it holds. */
static uint32_t many(void)
{
	return rig_on_drive() ? TN_SPACES_MAX + 176 : 3000;
}

/* As an engine with a new hash seed at each start. */
static int open_seed(struct rig *r, uint64_t seed, struct rig_space *s)
{
	return rig_space_open(r, &(struct rig_space_opts){.model = "seeds", .seed = seed, .no_pool = true}, s);
}

static void enter(struct rig *r, uint64_t seed, struct rig_space *s)
{
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.model = "seeds", .seed = seed}, s), 0);
}

static void dropped_and_closed_spaces_are_followed_by_any_number_of_others(void **state)
{
	struct rig r;

	for (int host = 0; host < 3; host++) { /* disk; disk and host; host */
		rig_set_up(&r, host < 2 ? 32u << 20 : 0, host ? 8u << 20 : 0, 64);
		rig_space_close(r.s);
		for (uint64_t i = 0; i < many(); i++) {
			enter(&r, i, r.s);
			if (i % 10 == 0) {
				assert_int_equal(rig_match(r.s, 1, 4), 0);
				rig_save(r.s, 1, 4, 0);
				assert_int_equal(rig_match(r.s, 1, 4), 4);
				assert_int_equal(rig_load(r.s, 1, 4), 4);
				assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), 0);
			}
			rig_space_close(r.s);
		}
		enter(&r, 0, r.s);
		assert_int_equal(rig_match(r.s, 1, 4), 0);
		rig_tear_down(&r);
	}
}

static void sessions_with_a_new_seed_each_lose_the_oldest_only(void **state)
{
	struct rig r;
	uint64_t seed = 1, last = 0;

	rig_set_up(&r, 32u << 20, 0, 64);
	rig_space_close(r.s);
	for (uint32_t session = 0; session < 40; session++) {
		for (uint32_t i = 0; i < many() / 40; i++, seed++) {
			enter(&r, seed, r.s);
			assert_int_equal(rig_save(r.s, seed, 1, 0).stored, 1);
			rig_space_close(r.s);
		}
		rig_reopen(&r);
		rig_space_close(r.s);
	}
	/* The newest are there, and each has its own block only. (Store: 32 MiB, blocks of 128 KiB.) */
	for (uint64_t s = seed - 1; s > seed - 100; s--) {
		enter(&r, s, r.s);
		assert_int_equal(rig_load(r.s, s, 1), 1);
		assert_int_equal(rig_match(r.s, s - 1, 1), 0);
		rig_space_close(r.s);
		last = s;
	}
	assert_true(last > 0);
	enter(&r, seed, r.s);
	rig_tear_down(&r);
}

static void the_least_recently_used_go_and_those_that_are_open_never(void **state)
{
	static struct rig_space held[TN_SPACES_MAX];
	struct rig_space s;
	struct rig r;
	uint32_t n = 0;

	rig_set_up(&r, 256u << 20, 0, 64); /* the rig's own is one of them */
	rig_save(r.s, 1, 8, 0);
	assert_int_equal(rig_flush(&r), 0);
	/* All that there can be, half of them with a block, half of those open. */
	for (uint64_t i = 1; i < TN_SPACES_MAX; i++) {
		enter(&r, i, &s);
		rig_save(&s, 100 + i, 1, 0);
		if (i % 2)
			assert_int_equal(open_seed(&r, i, &held[n++]), 0);
		rig_space_close(&s);
	}
	/* 300 more, each with a block: the 300 coldest closed ones go, or a batch more. */
	for (uint64_t i = 0; i < 300; i++) {
		enter(&r, 5000 + i, &s);
		rig_save(&s, 5000 + i, 1, 0);
		rig_space_close(&s);
	}
	assert_int_equal(rig_load(r.s, 1, 8), 8);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(rig_match(&held[i], 100 + 2 * i + 1, 1), 1);
	for (uint64_t i = 1000; i < TN_SPACES_MAX; i += 2) { /* the youngest of the closed ones */
		assert_int_equal(open_seed(&r, i, &s), 0);
		assert_int_equal(rig_match(&s, 100 + i, 1), 1);
		rig_space_close(&s);
	}
	for (uint32_t i = 0; i < n; i++)
		rig_space_close(&held[i]);
	rig_tear_down(&r);
}

static void when_all_are_open_there_is_no_more(void **state)
{
	static struct rig_space held[TN_SPACES_MAX];
	struct rig_space more;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	for (uint64_t i = 1; i < TN_SPACES_MAX; i++)
		assert_int_equal(open_seed(&r, i, &held[i]), 0);
	assert_int_equal(open_seed(&r, 9999, &more), -ENOSPC);
	assert_int_equal(open_seed(&r, 77, &more), 0); /* open already */
	rig_space_close(&more);
	rig_space_close(&held[5]);
	assert_int_equal(open_seed(&r, 9999, &held[5]), 0);
	for (uint64_t i = 1; i < TN_SPACES_MAX; i++)
		rig_space_close(&held[i]);
	rig_tear_down(&r);
}

/* What the waits of a load showed is not learned for a space whose number, and memory, went to another meanwhile. */
static void a_space_that_goes_takes_what_was_not_learned_of_it_yet_with_it(void **state)
{
	static struct rig_space held[TN_SPACES_MAX];
	struct rig_space more;
	struct tn_load_opts opts;
	struct tn_load *load;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	for (uint64_t i = 1; i < TN_SPACES_MAX; i++)
		assert_int_equal(open_seed(&r, i, &held[i]), 0);
	tn_load_opts_init(&opts);
	opts.input_tokens = 4096;
	load = rig_load_begin(r.s, 1, 1, 0, &opts);
	usleep(20000); /* the owner sleeps: it has nothing to do */
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_load_wait(r.s, load, l), 0);
	rig_load_end(r.s, load);
	rig_space_close(r.s);
	assert_int_equal(open_seed(&r, 9999, &more), 0);
	rig_space_close(&more);
	for (uint64_t i = 1; i < TN_SPACES_MAX; i++)
		rig_space_close(&held[i]);
	enter(&r, 1, r.s);
	rig_tear_down(&r);
}

static void who_keeps_tables_is_told_whether_one_has_changed(void **state)
{
	uint64_t changes = 7, cells = 7;
	struct tn_slack *t;
	struct rig r;

	rig_set_up(&r, 8u << 20, 0, 64);
	assert_int_equal(tn_space_slack_changes(r.s->space, &changes, &cells), 0);
	assert_int_equal(changes, 0);
	assert_int_equal(tn_slack_create_empty(RIG_LAYERS, &t), 0);
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	assert_int_equal(tn_space_slack_changes(r.s->space, &changes, &cells), 0);
	assert_int_equal(changes, 1);
	assert_int_equal(cells, 18 * 13); /* of a table that learns, in one row for all layers */
	assert_int_equal(tn_space_slack_changes(r.s->space, NULL, &cells), -EINVAL);
	rig_tear_down(&r);
}

static int nothing(struct tn_cache *cache, void *arg)
{
	return 0;
}

static uint64_t changes_of(struct rig *r)
{
	return __atomic_load_n(&r->s->space->slack_changes, __ATOMIC_ACQUIRE);
}

static void who_asks_for_a_table_gets_what_was_learned_while_it_was_held(void **state)
{
	struct tn_slack *expected, *copy;
	uint64_t changes = 0;
	bool last = false;
	struct rig r;

	rig_set_up(&r, 8u << 20, 0, 64);
	assert_int_equal(tn_slack_create_empty(RIG_LAYERS, &expected), 0);
	for (uint64_t i = 0; i < 10; i++) {
		if (i == 2)
			pthread_mutex_lock(&r.s->space->plan_lock);
		last = tn_slack_observe(expected, 1000, 500 * i, 0, (int64_t)(1000000 << i / 2));
		changes += last;
		assert_int_equal(tn_space_observe(r.s->space, 1000, 500 * i, 0, 1000000 << i / 2), 0);
		rig_until(&r, tn_owner_call(r.cache, nothing, NULL) == 0 && changes_of(&r) == changes); /* the owner sleeps, but for the calls */
		if (i == 8)
			pthread_mutex_unlock(&r.s->space->plan_lock);
	}
	assert_true(last);
	assert_int_equal(tn_owner_call(r.cache, nothing, NULL), 0);
	assert_int_equal(tn_space_slack_copy(r.s->space, &copy), 0);
	for (uint64_t prefix = 0; prefix < 6000; prefix += 100)
		assert_int_equal(tn_slack_window(copy, 1000, prefix, 0), tn_slack_window(expected, 1000, prefix, 0));
	tn_slack_destroy(copy);
	tn_slack_destroy(expected);
	rig_tear_down(&r);
}

struct opener {
	pthread_t thread;
	struct rig *r;
	uint64_t first;
	uint32_t opened;
};

/* Spaces of its own and some that all threads use, more of them together than the store knows; a lease now and then. */
/* The name of the space with the number, and whether its handle is one of the space's own. */
static struct tn_key name_at(struct rig *r, uint32_t index)
{
	struct tn_key name;
	struct tn_space *space;

	assert_int_equal(tn_space_at(r->cache, index, &space, &name), 0);
	assert_int_equal(tn_space_index(space), index);
	tn_space_close(space);
	return name;
}

static void who_keeps_tables_finds_a_space_by_its_number_and_names_it(void **state)
{
	struct tn_space *untouched = NULL;
	struct rig_space first, other;
	struct tn_key name, same, another, none;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	enter(&r, 1, &first);
	enter(&r, 2, &other);
	name = name_at(&r, tn_space_index(first.space));
	same = name_at(&r, tn_space_index(other.space)); /* engines draw a seed at each start */
	another = name_at(&r, tn_space_index(r.s->space));
	assert_true(tn_key_eq(&name, &same));
	assert_false(tn_key_eq(&name, &another));
	rig_space_close(&other);
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		if (i != tn_space_index(first.space) && i != tn_space_index(r.s->space))
			assert_int_equal(tn_space_at(r.cache, i, &untouched, &none), -ENOENT);
	assert_int_equal(tn_space_at(r.cache, TN_SPACES_MAX, &untouched, &none), -EINVAL);
	assert_int_equal(tn_space_at(r.cache, 0, NULL, &none), -EINVAL);
	assert_null(untouched);
	rig_space_close(&first);
	rig_tear_down(&r);
	rig_set_up(&r, 0, 8u << 20, 64); /* another cache has another secret */
	enter(&r, 3, &first);
	same = name_at(&r, tn_space_index(first.space));
	assert_true(tn_key_eq(&name, &same));
	rig_space_close(&first);
	rig_tear_down(&r);
}

static void *open_many(void *arg)
{
	struct opener *o = arg;
	struct tn_rng rng;

	tn_rng_seed(&rng, o->first);
	for (uint32_t i = 0; i < 800; i++) {
		uint64_t n = tn_rng_next(&rng);
		uint64_t seed = n % 4 ? o->first + n % 700 : n % 50;
		struct tn_key key = rig_key(1);
		struct tn_match m = {.size = sizeof(m)};
		struct rig_space s;

		if (open_seed(o->r, seed, &s))
			return NULL;
		o->opened++;
		if (tn_match(s.space, &key, 1, NULL, &m, TN_MATCH_PIN) == 1)
			tn_unpin(s.space, m.pin);
		if (n % 16 == 0)
			tn_space_drop(s.space, tn_test_deadline());
		tn_space_close(s.space); /* not the rig's, which asserts */
	}
	return NULL;
}

static void threads_open_and_close_spaces_beside_each_other(void **state)
{
	struct opener o[4];
	struct rig_space s;
	struct rig r;

	rig_set_up(&r, 32u << 20, 0, 64);
	rig_save(r.s, 1, 8, 0);
	for (uint64_t seed = 0; seed < 1100; seed++) { /* most have a block when the threads begin */
		enter(&r, seed, &s);
		if (seed % 8 == 0)
			rig_save(&s, 1, 1, 0);
		rig_space_close(&s);
	}
	for (uint32_t i = 0; i < 4; i++) {
		o[i] = (struct opener){.r = &r, .first = 10000 * (i + 1)};
		assert_int_equal(pthread_create(&o[i].thread, NULL, open_many, &o[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(o[i].thread, NULL), 0);
		assert_int_equal(o[i].opened, 800);
	}
	assert_int_equal(rig_load(r.s, 1, 8), 8);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dropped_and_closed_spaces_are_followed_by_any_number_of_others),
		cmocka_unit_test(sessions_with_a_new_seed_each_lose_the_oldest_only),
		cmocka_unit_test(the_least_recently_used_go_and_those_that_are_open_never),
		RIG_EMBEDDED_TEST(who_keeps_tables_is_told_whether_one_has_changed, "tables are kept by the owner"),
		RIG_EMBEDDED_TEST(who_asks_for_a_table_gets_what_was_learned_while_it_was_held, "the test holds the owner's lock"),
		cmocka_unit_test(when_all_are_open_there_is_no_more),
		cmocka_unit_test(a_space_that_goes_takes_what_was_not_learned_of_it_yet_with_it),
		RIG_EMBEDDED_TEST(who_keeps_tables_finds_a_space_by_its_number_and_names_it, "tables are kept by the owner"),
		cmocka_unit_test(threads_open_and_close_spaces_beside_each_other),
	};

	return cmocka_run_group_tests_name("cache-spaces", tests, NULL, NULL);
}
