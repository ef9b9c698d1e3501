/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latencies of a cache: which calls are timed, and that each is timed once. On a simulated disk, whose clock says the times exactly;
 * calls that wait are those of a real cache.
 */
#include "cache_rig.h"

#define HOST (2u << 20)

static struct tn_latency latency(struct rig *r, enum tn_latency_kind kind, enum tn_tier tier)
{
	struct tn_latency l = {.size = sizeof(l)};
	uint64_t count = 0;

	assert_int_equal(tn_cache_latency(r->cache, kind, tier, &l), 0);
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++)
		count += l.buckets[i];
	assert_int_equal(l.count, count);
	return l;
}

static uint64_t timed(struct rig *r, enum tn_latency_kind kind, enum tn_tier tier)
{
	return latency(r, kind, tier).count;
}

static uint64_t loads_timed(struct rig *r)
{
	uint64_t n = 0;

	for (uint32_t t = 0; t < TN_TIERS_MAX; t++)
		n += timed(r, TN_LATENCY_LOAD, t);
	return n;
}

static struct rig *rig_up(uint64_t host_bytes)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.host_bytes = host_bytes;
	return rig_start(&o);
}

static void a_load_is_timed_to_its_last_layer_by_the_lowest_tier_that_it_needs(void **state)
{
	struct rig *r = rig_up(HOST);
	struct tn_latency l;
	struct tn_load *load;
	uint64_t begun, ready;

	rig_save(r->s, 0, 4, 0);
	assert_int_equal(rig_load(r->s, 0, 4), 4);
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_HOST), 1);
	assert_int_equal(rig_flush(r), 0);
	rig_reopen(r); /* host memory is empty */
	assert_int_equal(loads_timed(r), 0);

	begun = rig_now(r);
	load = rig_load_begin(r->s, 0, 2, 32, NULL);
	assert_int_equal(rig_load_wait(r->s, load, r->s->g.layers - 1), 2);
	ready = rig_now(r);
	rig_run(r, 50 * RIG_MS); /* computes: no time of the load */
	rig_load_end(r->s, load);
	l = latency(r, TN_LATENCY_LOAD, TN_TIER_DISK);
	assert_int_equal(l.count, 1);
	assert_true(ready > begun);
	assert_int_equal(l.sum_ns, ready - begun);
	assert_int_equal(l.buckets[tn_latency_bucket(ready - begun)], 1);

	assert_int_equal(rig_load(r->s, 0, 2), 2); /* promoted */
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_HOST), 1);
	assert_int_equal(rig_load(r->s, 0, 4), 4); /* half of it */
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_DISK), 2);
	assert_int_equal(rig_load(r->s, 100, 2), 0);
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_NONE), 1);
	assert_int_equal(rig_load(r->s, 3, 4), 1); /* nothing of what is behind the gap */
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_HOST), 2);
	assert_int_equal(loads_timed(r), 5);
	rig_tear_down(r);
}

static void a_load_is_timed_once_however_often_it_is_looked_at(void **state)
{
	struct rig *r = rig_up(HOST);
	struct tn_completion done[4];
	struct tn_load *load;
	uint64_t begun;
	int n = 0;

	rig_save(r->s, 0, 2, 0);
	begun = rig_now(r);
	load = rig_load_begin(r->s, 0, 2, 32, NULL);
	rig_until(r, (n = tn_cache_completions(r->cache, done, 4)) > 0 && done[n - 1].ready_layers == r->s->g.layers);
	assert_int_equal(timed(r, TN_LATENCY_LOAD, TN_TIER_HOST), 1);
	assert_int_equal(latency(r, TN_LATENCY_LOAD, TN_TIER_HOST).sum_ns, rig_now(r) - begun);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(tn_load_poll(load, r->s->g.layers - 1), 2);
	rig_load_end(r->s, load);
	assert_int_equal(loads_timed(r), 1);

	/* Who waits for event words is seen at the end. */
	load = rig_load_begin(r->s, 0, 2, 32, NULL);
	rig_run(r, 10 * RIG_MS);
	rig_load_end(r->s, load);
	assert_int_equal(loads_timed(r), 2);
	rig_tear_down(r);
}

static void what_was_given_up_is_not_timed(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_save *save;
	struct tn_load *load;

	rig_save(r->s, 0, 2, 0);
	assert_int_equal(timed(r, TN_LATENCY_SAVE, TN_TIER_NONE), 1);
	load = rig_load_begin(r->s, 0, 2, 32, NULL);
	assert_int_equal(tn_load_cancel(load), 0);
	assert_int_equal(rig_load_wait(r->s, load, r->s->g.layers - 1), 0);
	rig_load_end(r->s, load);
	load = rig_load_begin(r->s, 0, 2, 32, NULL);
	rig_load_end(r->s, load); /* long before the last layer */
	assert_int_equal(loads_timed(r), 0);
	save = rig_save_begin(r->s, 10, 2, 0, NULL);
	assert_int_equal(tn_save_abort(save), 0);
	rig_save_end(r->s, save);
	assert_int_equal(timed(r, TN_LATENCY_SAVE, TN_TIER_NONE), 1);
	rig_tear_down(r);
}

static void a_save_is_timed_from_its_beginning_to_its_end(void **state)
{
	struct rig *r = rig_up(0);
	uint64_t begun = rig_now(r);

	rig_save(r->s, 0, 4, 0);
	assert_true(rig_now(r) > begun);
	assert_int_equal(latency(r, TN_LATENCY_SAVE, TN_TIER_NONE).sum_ns, rig_now(r) - begun);
	rig_tear_down(r);
}

static void calls_that_wait_are_timed_by_themselves(void **state)
{
	struct tn_space *spaces[1];
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key keys[2];
	uint64_t begun, elapsed;
	struct rig r;

	rig_set_up(&r, 16u << 20, 0, 64);
	rig_save(r.s, 0, 2, 0);
	assert_int_equal(rig_load(r.s, 0, 2), 2);
	assert_int_equal(timed(&r, TN_LATENCY_LAYER_WAIT, TN_TIER_NONE), RIG_LAYERS);
	assert_int_equal(timed(&r, TN_LATENCY_LOAD, TN_TIER_DISK), 1);
	assert_int_equal(timed(&r, TN_LATENCY_MATCH, TN_TIER_NONE), 0);
	begun = tn_test_now();
	assert_int_equal(rig_match(r.s, 0, 2), 2);
	spaces[0] = r.s->space;
	rig_keys(0, 2, keys);
	assert_int_equal(tn_match_all(spaces, 1, keys, 2, NULL, &m, 0), 2);
	elapsed = tn_test_now() - begun;
	assert_int_equal(timed(&r, TN_LATENCY_MATCH, TN_TIER_NONE), 2);
	assert_true(latency(&r, TN_LATENCY_MATCH, TN_TIER_NONE).sum_ns <= elapsed);
	begun = tn_test_now();
	assert_int_equal(rig_flush(&r), 0);
	elapsed = tn_test_now() - begun;
	assert_int_equal(timed(&r, TN_LATENCY_FLUSH, TN_TIER_NONE), 1);
	assert_true(latency(&r, TN_LATENCY_FLUSH, TN_TIER_NONE).sum_ns <= elapsed);
	rig_tear_down(&r);
}

static void a_histogram_that_there_is_not_is_refused(void **state)
{
	struct tn_latency l = {.size = sizeof(l)};
	struct rig *r = rig_up(0);

	assert_int_equal(tn_cache_latency(r->cache, TN_LATENCY_KINDS, TN_TIER_NONE, &l), -EINVAL);
	assert_int_equal(tn_cache_latency(r->cache, TN_LATENCY_MATCH, TN_TIER_DISK, &l), -EINVAL);
	assert_int_equal(tn_cache_latency(r->cache, TN_LATENCY_LOAD, TN_TIERS_MAX, &l), -EINVAL);
	assert_int_equal(tn_cache_latency(NULL, TN_LATENCY_LOAD, TN_TIER_DISK, &l), -EINVAL);
	assert_int_equal(tn_cache_latency(r->cache, TN_LATENCY_LOAD, TN_TIER_DISK, NULL), -EINVAL);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_load_is_timed_to_its_last_layer_by_the_lowest_tier_that_it_needs),
		cmocka_unit_test(a_load_is_timed_once_however_often_it_is_looked_at),
		cmocka_unit_test(what_was_given_up_is_not_timed),
		cmocka_unit_test(a_save_is_timed_from_its_beginning_to_its_end),
		cmocka_unit_test(calls_that_wait_are_timed_by_themselves),
		cmocka_unit_test(a_histogram_that_there_is_not_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
