/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many flushes at once: callers that do not wait leave theirs behind, and hinder neither those that do, nor saves. What a flush makes durable is
 * cache_durable_test.c.
 */
#include "cache_rig.h"
#include "core/core.h"
#include "ioengine/faulty_rig.h"

#define FLOOD (TN_FLUSHES_MAX + 64u)

static int nothing(struct tn_cache *cache, void *arg)
{
	return 0;
}

/* The owner has done all that it was asked before. */
static void takes_its_turns(struct tn_cache *cache)
{
	for (uint32_t i = 0; i < 2; i++)
		tn_owner_call(cache, nothing, NULL);
}

static int count_waiters(struct tn_cache *cache, void *arg)
{
	struct tn_list *pos, *tmp;
	uint32_t *n = arg;

	tn_list_for_each_safe(pos, tmp, &cache->offloads.flushes)
		++*n;
	return 0;
}

/* Syncs hang, and many flushes wait for them whose callers have gone. */
static void flood(struct rig *r, bool at_once)
{
	const struct tn_fault hang[] = {{.kind = TN_FAULT_HANG, .op = TN_IO_SYNC, .count = UINT64_MAX},
					{.kind = TN_FAULT_HANG, .op = TN_IO_STAT, .count = UINT64_MAX}};

	rig_fault(r, hang, 2);
	for (uint32_t i = 0; i < FLOOD; i++) {
		assert_int_equal(tn_flush(r->cache, 1), -ETIMEDOUT);
		if (!at_once)
			takes_its_turns(rig_core(r));
	}
	takes_its_turns(rig_core(r));
}

/* Requests go on; also one that was still with the inner engine when the others did. The flush ends no earlier than those before it begin. */
static void goes_on(struct rig *r)
{
	struct tn_flush_waiter *w = tn_flush_begin(&rig_core(r)->flushes);

	assert_non_null(w);
	rig_until(r, (rig_calm(r), tn_flush_is_over(w)));
	assert_int_equal(tn_flush_poll(w), 0);
}

static void set_up(struct rig *r)
{
	rig_init(r, 64u << 20, 0, 64);
	r->o.faulty = true;
	r->o.cache.durability_ms = 0; /* each save ends with a flush */
	rig_must_open(r);
}

/* Those that somebody waits for get a place once there is one. */
static void flushes_that_nobody_waits_for_fail_nobody_elses(void **state)
{
	struct tn_flush_waiter *w[2];
	struct tn_save *save;
	struct rig r;

	set_up(&r);
	flood(&r, false);
	for (uint32_t i = 0; i < 2; i++) {
		w[i] = tn_flush_begin(&rig_core(&r)->flushes);
		assert_non_null(w[i]);
	}
	save = rig_save_begin(r.s, 100, 1, 0, NULL);
	rig_save_give(r.s, save);
	takes_its_turns(rig_core(&r));
	for (uint32_t i = 0; i < 2; i++)
		assert_false(tn_flush_is_over(w[i]));
	goes_on(&r);
	for (uint32_t i = 0; i < 2; i++) {
		rig_until(&r, (rig_calm(&r), tn_flush_is_over(w[i])));
		assert_int_equal(tn_flush_poll(w[i]), 0);
	}
	assert_int_equal(rig_save_end(r.s, save).stored, 1);
	assert_int_equal(rig_flush(&r), 0);
	rig_tear_down(&r);
}

/* However many there were, the owner keeps as many as the store takes, and the last one. */
static void flushes_that_nobody_waits_for_do_not_pile_up(void **state)
{
	uint32_t n = 0;
	struct rig r;

	set_up(&r);
	for (uint32_t i = 0; i < 4; i++)
		flood(&r, i == 3);
	assert_int_equal(tn_owner_call(rig_core(&r), count_waiters, &n), 0);
	assert_true(n > 0 && n <= TN_FLUSHES_MAX + 1);
	goes_on(&r);
	assert_int_equal(rig_flush(&r), 0);
	rig_tear_down(&r);
}

int main(void)
{
	const char *calls = "an attached process has 16 calls at once, and the flushes are the owner's";
	const char *why = rig_attached ? calls : rig_namespace ? RIG_FAULTY : NULL;
	const struct CMUnitTest tests[] = {
		RIG_TEST(flushes_that_nobody_waits_for_fail_nobody_elses, why),
		RIG_TEST(flushes_that_nobody_waits_for_do_not_pile_up, why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
