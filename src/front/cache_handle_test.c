/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of loads and saves: misuse is answered with -EINVAL, and reaches nobody else's load. */
#include <errno.h>
#include <pthread.h>

#include "base/rng.h"
#include "cache_rig.h"

#define BLOCKS 4u

static void end_load(struct rig *r, struct tn_load *load)
{
	assert_int_equal(rig_load_wait(r->s, load, RIG_LAYERS - 1), BLOCKS);
	rig_load_end(r->s, load);
}

static void set_up(struct rig *r)
{

	rig_set_up(r, 64u << 20, 0, 64);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
}

static void refused_by_loads(struct tn_load *h)
{
	uint8_t busy[1] = {0x55};

	assert_int_equal(tn_load_wait(h, 0, tn_test_deadline()), -EINVAL);
	assert_int_equal(tn_load_poll(h, 0), -EINVAL);
	assert_int_equal(tn_load_cancel(h), -EINVAL);
	assert_int_equal(tn_load_end(h, tn_test_deadline(), busy), -EINVAL);
	assert_int_equal(busy[0], 0x55);
}

static void refused_by_saves(struct tn_save *h)
{
	struct tn_save_result res = {.size = sizeof(res)};

	assert_int_equal(tn_save_layer(h, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_save_commit(h), -EINVAL);
	assert_int_equal(tn_save_abort(h), -EINVAL);
	assert_int_equal(tn_save_end(h, tn_test_deadline(), &res), -EINVAL);
}

static void a_handle_that_was_ended_is_refused_and_its_successors_are_two(void **state)
{
	struct tn_load *first, *second, *third;
	struct rig r;

	set_up(&r);
	first = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	end_load(&r, first);
	assert_int_equal(tn_load_end(first, tn_test_deadline(), NULL), -EINVAL);
	second = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	third = rig_load_begin(r.s, 1, BLOCKS, 64, NULL);
	assert_ptr_not_equal(second, third);
	refused_by_loads(first);
	end_load(&r, second);
	end_load(&r, third);
	refused_by_loads(first);
	refused_by_loads(second);
	refused_by_loads(third);
	rig_tear_down(&r);
}

static void an_ended_save_is_refused_and_so_is_the_other_kind(void **state)
{
	struct tn_load *load;
	struct tn_save *save;
	struct rig r;

	set_up(&r);
	save = rig_save_begin(r.s, 100, BLOCKS, 128, NULL);
	load = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	refused_by_loads((struct tn_load *)save);
	refused_by_saves((struct tn_save *)load);
	assert_int_equal(tn_save_abort(save), 0);
	rig_save_end(r.s, save);
	refused_by_saves(save);
	end_load(&r, load);
	rig_tear_down(&r);
}

static void what_never_was_a_handle_is_refused(void **state)
{
	struct tn_load *load;
	struct tn_rng rng;
	struct rig r;
	int on_stack;

	set_up(&r);
	load = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	tn_rng_seed(&rng, tn_test_seed());
	refused_by_loads(NULL);
	refused_by_saves(NULL);
	refused_by_loads((struct tn_load *)(void *)&on_stack);
	refused_by_loads((struct tn_load *)(void *)r.s->memory);
	for (int i = 0; i < 64; i++)
		refused_by_loads((struct tn_load *)((uintptr_t)load ^ (uintptr_t)1 << i));
	for (int i = 0; i < 1000; i++) {
		uintptr_t v = tn_rng_next(&rng);

		if (v == (uintptr_t)load)
			continue;
		refused_by_loads((struct tn_load *)v);
		refused_by_saves((struct tn_save *)v);
	}
	end_load(&r, load);
	rig_tear_down(&r);
}

static void a_handle_of_a_closed_cache_is_none_of_the_next(void **state)
{
	struct tn_load *before, *after;
	struct rig r;

	set_up(&r);
	before = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	end_load(&r, before);
	assert_int_equal(rig_close(&r), 0);
	refused_by_loads(before);
	assert_int_equal(rig_open(&r), 0);
	for (int i = 0; i < 40; i++) { /* every operation once and more */
		after = rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
		refused_by_loads(before);
		end_load(&r, after);
	}
	rig_tear_down(&r);
}

/* ---- threads that share a handle ------------------------------------------------------------------------- */

#define THREADS 4u
#define ROUNDS 300

struct shared {
	struct tn_load *load;
	struct tn_save *save;
	uint32_t ended_loads, ended_saves;
	uint32_t stop;
	uint64_t seed;
};

static void bother(struct shared *s, struct tn_rng *rng)
{
	struct tn_load *load = __atomic_load_n(&s->load, __ATOMIC_ACQUIRE);
	struct tn_save *save = __atomic_load_n(&s->save, __ATOMIC_ACQUIRE);
	struct tn_save_result res = {.size = sizeof(res)};
	uint8_t busy[1];
	int rc = -EINVAL;

	switch (tn_rng_below(rng, 6)) {
	case 0:
		rc = tn_load_poll(load, 0);
		break;
	case 1:
		rc = tn_load_cancel(load);
		break;
	case 2:
		rc = tn_load_end(load, tn_rng_below(rng, 2) ? tn_test_deadline() : 0, busy);
		if (rc == 0)
			__atomic_add_fetch(&s->ended_loads, 1, __ATOMIC_RELAXED);
		break;
	case 3:
		rc = tn_save_abort(save);
		break;
	case 4:
		rc = tn_save_commit(save);
		break;
	default:
		rc = tn_save_end(save, tn_test_deadline(), &res);
		if (rc == 0)
			__atomic_add_fetch(&s->ended_saves, 1, __ATOMIC_RELAXED);
	}
	assert_true(rc >= 0 || rc == -EINVAL || rc == -EBUSY || rc == -EAGAIN);
}

static void *bother_all_the_time(void *arg)
{
	struct shared *s = arg;
	struct tn_rng rng;

	tn_rng_seed(&rng, __atomic_add_fetch(&s->seed, 1, __ATOMIC_RELAXED));
	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
		bother(s, &rng);
	return NULL;
}

/* Each operation is ended once, whoever does it; a page or an operation given back twice would fail the next begin. */
static void threads_that_race_on_a_handle_get_an_answer_and_one_of_them_ends_it(void **state)
{
	struct shared s = {.seed = tn_test_seed()};
	pthread_t threads[THREADS];
	struct rig r;

	set_up(&r);
	for (uint32_t t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&threads[t], NULL, bother_all_the_time, &s), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		__atomic_store_n(&s.load, rig_load_begin(r.s, 1, BLOCKS, 0, NULL), __ATOMIC_RELEASE);
		__atomic_store_n(&s.save, rig_save_begin(r.s, 100, BLOCKS, 128, NULL), __ATOMIC_RELEASE);
		rig_until(&r, __atomic_load_n(&s.ended_loads, __ATOMIC_RELAXED) > i && __atomic_load_n(&s.ended_saves, __ATOMIC_RELAXED) > i);
		assert_int_equal(__atomic_load_n(&s.ended_loads, __ATOMIC_RELAXED), i + 1);
		assert_int_equal(__atomic_load_n(&s.ended_saves, __ATOMIC_RELAXED), i + 1);
	}
	__atomic_store_n(&s.stop, 1, __ATOMIC_RELAXED);
	for (uint32_t t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_handle_that_was_ended_is_refused_and_its_successors_are_two),
		cmocka_unit_test(an_ended_save_is_refused_and_so_is_the_other_kind),
		cmocka_unit_test(what_never_was_a_handle_is_refused),
		cmocka_unit_test(a_handle_of_a_closed_cache_is_none_of_the_next),
		cmocka_unit_test(threads_that_race_on_a_handle_get_an_answer_and_one_of_them_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
