/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits without calling a wait: event words of loads, events of saves, and completions that say whose they are. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "tn_test.h"

#define BLOCKS 4u

static struct tn_load *begin_load(struct rig *r, uint64_t first, uint32_t first_page, uint64_t tag)
{
	struct tn_load_opts o;

	tn_load_opts_init(&o);
	o.tag = tag;
	return rig_load_begin(r->s, first, BLOCKS, first_page, &o);
}

static struct tn_save *begin_save(struct rig *r, uint64_t first, uint32_t first_page, uint64_t tag)
{
	struct tn_save_opts o;

	tn_save_opts_init(&o);
	o.tag = tag;
	return rig_save_begin(r->s, first, BLOCKS, first_page, &o);
}

static void set_up(struct rig *r)
{
	rig_set_up(r, 64u << 20, 0, 64);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
}

static bool reached(const uint64_t *word, uint64_t value)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE) >= value;
}

static void wait_for_word(const uint64_t *word, uint64_t value)
{
	uint64_t until = tn_test_deadline();

	while (!reached(word, value) && tn_test_now() < until)
		usleep(100);
	assert_true(reached(word, value));
}

/* ---- event words of loads -------------------------------------------------------------------------------- */

static void a_word_says_when_a_layer_of_a_load_is_there(void **state)
{
	const uint64_t *word[RIG_LAYERS];
	uint64_t value[RIG_LAYERS];
	struct tn_load *load;
	struct rig r;

	set_up(&r);
	load = begin_load(&r, 1, 64, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_load_event(load, l, &word[l], &value[l]), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		wait_for_word(word[l], value[l]);
		assert_int_equal(tn_load_poll(load, l), BLOCKS);
	}
	rig_check_blocks(r.s, 1, BLOCKS, 64);
	assert_int_equal(tn_load_event(load, RIG_LAYERS, &word[0], &value[0]), -EINVAL);
	assert_int_equal(tn_load_event(load, 0, NULL, &value[0]), -EINVAL);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	assert_int_equal(tn_load_event(load, 0, &word[0], &value[0]), -EINVAL);
	assert_true(reached(word[1], value[1])); /* also for who comes too late */
	rig_tear_down(&r);
}

static void the_words_of_a_load_that_finds_nothing_or_is_cancelled_rise_too(void **state)
{
	const uint64_t *word;
	struct tn_load *load;
	uint64_t value;
	struct rig r;

	set_up(&r);
	for (int cancelled = 0; cancelled < 2; cancelled++) {
		load = begin_load(&r, cancelled ? 1 : 1000, 64, 0);
		assert_int_equal(tn_load_event(load, RIG_LAYERS - 1, &word, &value), 0);
		if (cancelled)
			assert_int_equal(tn_load_cancel(load), 0);
		wait_for_word(word, value);
		assert_true(tn_load_poll(load, RIG_LAYERS - 1) >= 0);
		assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	}
	rig_tear_down(&r);
}

static void words_never_fall_from_one_load_to_the_next(void **state)
{
	uint64_t highest = 0, value;
	const uint64_t *word;
	struct rig r;

	set_up(&r);
	for (int i = 0; i < 100; i++) {
		struct tn_load *load = begin_load(&r, i % 3 ? 1 : 1000, 64, 0);

		assert_int_equal(tn_load_event(load, 0, &word, &value), 0);
		wait_for_word(word, value);
		assert_true(value > highest); /* one operation is free, the one that ended last */
		highest = value;
		assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	}
	rig_tear_down(&r);
}

/* ---- events of saves --------------------------------------------------------------------------------------- */

static void events_are_counted_and_only_rise(void **state)
{
	struct tn_event *events[1025], *other;
	struct tn_save *save;
	struct rig r, r2;
	uint32_t n = 0;

	set_up(&r);
	while (n < 1025 && tn_event_create(r.cache, &events[n]) == 0)
		n++;
	assert_int_equal(n, 1024);
	assert_int_equal(tn_event_create(r.cache, &other), -EAGAIN);
	tn_event_destroy(events[7]);
	assert_int_equal(tn_event_create(r.cache, &events[7]), 0);
	assert_int_equal(tn_event_raise(events[7], 9), 0);
	assert_int_equal(tn_event_raise(events[7], 3), 0);
	assert_int_equal(*tn_event_address(events[7]), 9);
	assert_int_equal(tn_event_raise(NULL, 3), -EINVAL);
	assert_null(tn_event_address(NULL));
	tn_event_destroy(NULL);
	rig_set_up(&r2, 0, 4u << 20, 64);
	assert_int_equal(tn_event_create(r2.cache, &other), 0);
	save = begin_save(&r, 100, 0, 0);
	assert_int_equal(tn_save_layer(save, 0, other, 1), -EINVAL);
	assert_int_equal(tn_save_abort(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), 0);
	rig_tear_down(&r2);
	rig_tear_down(&r);
}

/* ---- completions --------------------------------------------------------------------------------------------- */

/* Waits until a completion with this tag says that it has ended; others may be told before. */
static struct tn_completion wait_for_end(struct rig *r, uint64_t tag, uint32_t *told)
{
	struct pollfd p = {.fd = tn_cache_eventfd(r->cache), .events = POLLIN};
	struct tn_completion c[3];
	uint64_t until = tn_test_deadline(), count;

	while (tn_test_now() < until) {
		int n = tn_cache_completions(r->cache, c, 3);

		assert_true(n >= 0 && n <= 3);
		for (int i = 0; i < n; i++) {
			++*told;
			if (c[i].tag == tag && c[i].ended)
				return c[i];
		}
		if (n == 0 && poll(&p, 1, 100) == 1)
			(void)!read(p.fd, &count, sizeof(count));
	}
	fail_msg("no completion of %llu", (unsigned long long)tag);
	return c[0];
}

static void a_completion_names_the_load_that_ended(void **state)
{
	struct tn_completion c;
	struct tn_load *load[2];
	uint32_t told = 0;
	struct rig r;

	set_up(&r);
	tn_cache_eventfd(r.cache);
	load[0] = begin_load(&r, 1, 64, 71);
	load[1] = begin_load(&r, 1000, 128, 72); /* which is not there */
	c = wait_for_end(&r, 71, &told);
	assert_ptr_equal(c.load, load[0]);
	assert_null(c.save);
	assert_int_equal(c.ready_layers, RIG_LAYERS);
	assert_int_equal(c.good_blocks, BLOCKS);
	assert_int_equal(tn_load_end(load[0], 0, NULL), 0); /* nothing to wait for */
	assert_int_equal(tn_load_wait(load[1], 0, tn_test_deadline()), 0);
	while (tn_load_end(load[1], 0, NULL) == -EBUSY)
		usleep(100);
	assert_int_equal(tn_cache_completions(r.cache, &c, 1), 0); /* of loads that were ended nothing is told */
	rig_tear_down(&r);
}

static void a_completion_names_the_save_that_ended(void **state)
{
	struct tn_completion c;
	struct tn_save *save;
	uint32_t told = 0;
	struct rig r;

	set_up(&r);
	tn_cache_eventfd(r.cache);
	assert_int_equal(tn_cache_completions(r.cache, &c, 1), 0); /* set_up's save was ended */
	save = begin_save(&r, 100, 0, UINT64_MAX);
	/* It has the place of set_up's save, whose last ring may come only now: told, but not as ended. */
	if (tn_cache_completions(r.cache, &c, 1) == 1) {
		assert_ptr_equal(c.save, save);
		assert_int_equal(c.ended, 0);
	}
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
	c = wait_for_end(&r, UINT64_MAX, &told);
	assert_ptr_equal(c.save, save);
	assert_null(c.load);
	assert_in_range(told, 1, 3); /* that ring; and the end may be told before the last call is answered */
	assert_int_equal(tn_save_end(save, 0, NULL), 0);
	assert_int_equal(tn_cache_completions(r.cache, NULL, 1), -EINVAL);
	assert_int_equal(tn_cache_completions(NULL, &c, 1), -EINVAL);
	rig_tear_down(&r);
}

/* With an array that is too small for all of them, none is lost. */
static void many_completions_are_told_a_few_at_a_time(void **state)
{
	struct tn_load *load[8];
	struct tn_completion c;
	uint32_t ended = 0;
	uint64_t until;
	struct rig r;

	set_up(&r);
	for (uint32_t i = 0; i < 8; i++)
		load[i] = begin_load(&r, 1, 64 + 16 * i, i);
	until = tn_test_deadline();
	while (ended != 255 && tn_test_now() < until) {
		if (tn_cache_completions(r.cache, &c, 1) == 0 || !c.ended)
			continue;
		assert_ptr_equal(c.load, load[c.tag]);
		ended |= 1u << c.tag;
	}
	assert_int_equal(ended, 255);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(tn_load_end(load[i], 0, NULL), 0);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_word_says_when_a_layer_of_a_load_is_there),
		cmocka_unit_test(the_words_of_a_load_that_finds_nothing_or_is_cancelled_rise_too),
		cmocka_unit_test(words_never_fall_from_one_load_to_the_next),
		cmocka_unit_test(events_are_counted_and_only_rise),
		cmocka_unit_test(a_completion_names_the_load_that_ended),
		cmocka_unit_test(a_completion_names_the_save_that_ended),
		cmocka_unit_test(many_completions_are_told_a_few_at_a_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
