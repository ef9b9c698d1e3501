/* SPDX-License-Identifier: Apache-2.0 */
/* A cache with a third tier that is far away: offload to it, promotion from it, losses, and what others do there. */
#include <errno.h>

#include "core/core.h"
#include "front/cache_rig.h"
#include "far.h"

#define HOST_BLOCKS 16u
#define CHAIN 8u

static struct tn_far_opts far_opts(void)
{
	return (struct tn_far_opts){.seed = tn_test_seed(), .blocks = 64, .latency_ns = 2 * RIG_MS};
}

/* A cache with host memory, a disk of so many segments, and a far tier. */
static struct rig *far_rig_of(const struct tn_far_opts *far, uint32_t segments)
{
	struct rig_opts o = rig_simulated_opts();
	struct rig *r;

	o.cache.host_bytes = 2u << 20;
	o.cache.disk_bytes = segments * o.segment_bytes;
	o.far = far;
	r = rig_simulated(&o);
	rig_must_open(r);
	return r;
}

static struct rig *far_rig(const struct tn_far_opts *far)
{
	return far_rig_of(far, 8);
}

static uint32_t in_tier(struct rig *r, enum tn_tier tier, uint64_t first, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);
		tn_block b = tn_registry_find_one(r->cache->registry, r->s[0].space->index, &key, false);

		found += b != TN_BLOCK_NONE && tn_tier_has(r->cache->row.tier[tier], b);
	}
	return found;
}

/* Saved, and gone down as far as they go. */
static void save_far(struct rig *r, uint64_t first)
{
	assert_int_equal(rig_save(&r->s[0], first, CHAIN, 0).failed, 0);
	rig_until(r, in_tier(r, TN_TIER_REMOTE, first, CHAIN) == CHAIN && tn_core_idle(r->cache));
}

static void leave(struct rig *r, enum tn_tier tier)
{
	struct tn_tier_base *t = r->cache->row.tier[tier];

	while (t->blocks > 0)
		assert_true(tn_tier_evict(t, 1, -1, NULL) == 1);
}

static void only_far(struct rig *r)
{
	leave(r, TN_TIER_HOST);
	leave(r, TN_TIER_DISK);
}

static uint64_t stat_of(struct rig *r, const char *name)
{
	uint64_t value;

	assert_int_equal(tn_cache_stat(r->cache, name, &value), 0);
	return value;
}

static void blocks_go_down_the_row_and_come_back_up(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = far_rig(&far);

	save_far(r, 1);
	assert_int_equal(in_tier(r, TN_TIER_DISK, 1, CHAIN), CHAIN);
	only_far(r);
	assert_int_equal(rig_match(&r->s[0], 1, CHAIN), CHAIN);
	assert_int_equal(stat_of(r, "remote_blocks"), CHAIN);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), CHAIN);
	assert_true(stat_of(r, "loaded_remote_bytes") > 0);
	assert_int_equal(stat_of(r, "loaded_disk_bytes"), 0);
	assert_int_equal(in_tier(r, TN_TIER_HOST, 1, CHAIN), CHAIN); /* promoted */
	assert_true(rig_stats(r).promoted_blocks >= CHAIN);
	/* Saved again, they go to the disk once more: what is far away is not durable. */
	leave(r, TN_TIER_HOST);
	assert_int_equal(rig_save(&r->s[0], 1, CHAIN, 0).stored, CHAIN);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(in_tier(r, TN_TIER_DISK, 1, CHAIN), CHAIN);
	rig_until(r, tn_core_idle(r->cache));
	rig_check_quiet(r);
	rig_tear_down(r);
}

static void a_prefetch_brings_blocks_from_afar(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = far_rig(&far);
	struct tn_key keys[CHAIN];

	save_far(r, 1);
	only_far(r);
	rig_keys(1, CHAIN, keys);
	assert_int_equal(tn_prefetch(r->s[0].space, keys, CHAIN, TN_FOREVER), CHAIN);
	rig_until(r, in_tier(r, TN_TIER_HOST, 1, CHAIN) == CHAIN);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), CHAIN);
	rig_tear_down(r);
}

/* A block that was promised is gone: the good prefix ends there, whether it went before the load or under it. */
static void a_block_that_is_lost_is_a_miss(void **state)
{
	for (int under = 0; under < 2; under++) {
		struct tn_far_opts far = far_opts();
		struct tn_load *load;
		struct rig *r;
		uint32_t before;

		far.latency_ns = 50 * RIG_MS;
		r = far_rig(&far);
		save_far(r, 1);
		only_far(r);
		if (!under)
			tn_far_take_away(r->far, 3, false);
		before = in_tier(r, TN_TIER_REMOTE, 1, CHAIN);
		assert_int_equal(before, CHAIN); /* nobody has said anything */
		load = rig_load_begin(&r->s[0], 1, CHAIN, r->s[0].npages / 2, NULL);
		if (under) {
			rig_until(r, tn_far_under_way(r->far) == CHAIN);
			tn_far_take_away(r->far, 3, false);
		}
		assert_in_range(rig_load_wait(&r->s[0], load, 0), 0, CHAIN - 1);
		rig_load_end(&r->s[0], load);
		assert_int_equal(in_tier(r, TN_TIER_REMOTE, 1, CHAIN), CHAIN - 1);
		rig_until(r, tn_core_idle(r->cache));
		rig_check_quiet(r);
		rig_tear_down(r);
	}
}

static void what_others_take_away_and_put_there_is_known_from_events(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = far_rig(&far);

	save_far(r, 1);
	only_far(r);
	for (uint32_t i = 0; i < CHAIN; i++)
		tn_far_take_away(r->far, 0, true);
	rig_until(r, in_tier(r, TN_TIER_REMOTE, 1, CHAIN) == 0);
	assert_int_equal(rig_match(&r->s[0], 1, CHAIN), 0);
	rig_check_quiet(r);
	while (tn_far_put_back(r->far, true))
		;
	rig_until(r, in_tier(r, TN_TIER_REMOTE, 1, CHAIN) == CHAIN);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), CHAIN);
	rig_tear_down(r);
}

static int poll_match(struct rig *r, uint64_t query, struct tn_match *m)
{
	*m = (struct tn_match){.size = sizeof(*m)};
	return tn_match_poll(r->cache, query, NULL, m);
}

static uint64_t begin_match(struct rig *r, uint64_t deadline_ns, unsigned flags)
{
	struct tn_key keys[CHAIN];
	uint64_t query;

	rig_keys(1, CHAIN, keys);
	assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, CHAIN, deadline_ns, flags, &query), 0);
	return query;
}

/* What a look-up finds that waits for every tier; it takes the lease at its end, if one is asked for. */
static int match_later(struct rig *r, uint64_t deadline_ns, unsigned flags, struct tn_match *m)
{
	uint64_t query = begin_match(r, deadline_ns, flags);
	int rc;

	rig_until(r, (rc = poll_match(r, query, m)) != -EAGAIN);
	return rc;
}

static void drop(struct rig *r)
{
	struct tn_flush_waiter *w;

	assert_int_equal(tn_space_drop_begin(&r->cache->drops, r->s[0].space, &w), 0);
	rig_until(r, tn_flush_poll(w) != -EAGAIN);
}

/* A cache whose blocks are far away only, and nobody has asked for them. */
static struct rig *forgotten_rig(const struct tn_far_opts *far)
{
	struct rig *r = far_rig(far);

	save_far(r, 1);
	only_far(r);
	assert_int_equal(rig_flush(r), 0);
	rig_reopen(r);
	assert_int_equal(rig_match(&r->s[0], 1, CHAIN), 0);
	return r;
}

/* Another life of the cache knows nothing of what is far away, until it asks. */
static void a_look_up_that_may_take_its_time_finds_what_is_there(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = forgotten_rig(&far);
	struct tn_match m;
	uint64_t query;
	int found;

	tn_far_take_away(r->far, CHAIN - 1, false); /* the last, or another one: the prefix ends there */
	assert_int_equal(match_later(r, 0, 0, &m), 0); /* only what is known at once */
	query = begin_match(r, rig_now(r) + RIG_MS, 0);
	assert_int_equal(poll_match(r, query, &m), -EAGAIN);
	rig_oversleep(r, RIG_MS);
	assert_int_equal(poll_match(r, query, &m), 0); /* nothing has answered by then */
	found = match_later(r, rig_deadline(r), 0, &m);
	assert_in_range(found, 0, CHAIN - 1);
	assert_int_equal(in_tier(r, TN_TIER_REMOTE, 1, CHAIN), found);
	tn_far_put_back(r->far, false);
	assert_int_equal(match_later(r, rig_deadline(r), TN_MATCH_PIN, &m), CHAIN);
	assert_int_equal(m.tier_blocks[TN_TIER_REMOTE], CHAIN);
	assert_int_equal(tn_unpin(r->s[0].space, m.pin), 0);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), CHAIN);
	/* Who gives up leaves it to the owner. */
	assert_int_equal(tn_match_cancel(r->cache, begin_match(r, TN_FOREVER, 0)), 0);
	rig_run(r, RIG_SECOND);
	assert_int_equal(r->s[0].space->held, 0);
	rig_tear_down(r);
}

static void a_look_up_that_is_never_answered_holds_nothing(void **state)
{
	struct tn_far_opts far = far_opts();
	struct tn_match m;
	struct rig *r;
	uint64_t query;

	far.mute = true;
	r = forgotten_rig(&far);
	query = begin_match(r, rig_now(r) + RIG_SECOND, 0);
	rig_run(r, RIG_MS);
	drop(r);
	assert_int_equal(poll_match(r, query, &m), -EAGAIN);
	rig_oversleep(r, RIG_SECOND);
	assert_int_equal(poll_match(r, query, &m), 0);
	/* What is asked at the same time is bounded; whoever comes later is told what is known. */
	for (uint32_t i = 0; i < 4 * r->cache->o.max_ops; i++)
		assert_int_equal(tn_match_cancel(r->cache, begin_match(r, TN_FOREVER, 0)), 0);
	assert_int_equal(match_later(r, TN_FOREVER, 0, &m), 0);
	assert_int_equal(rig_save(&r->s[0], 1, CHAIN, 0).failed, 0);
	assert_int_equal(match_later(r, TN_FOREVER, 0, &m), CHAIN);
	begin_match(r, TN_FOREVER, 0); /* nobody ends it before the cache closes */
	rig_tear_down(r);
}

static void an_answer_that_comes_after_a_drop_brings_nothing_back(void **state)
{
	struct tn_far_opts far = far_opts();
	struct tn_match m;
	struct rig *r;
	uint64_t query;
	int rc;

	far.latency_ns = 1000 * RIG_MS;
	far.least_ns = 1000 * RIG_MS; /* a drop takes less */
	r = forgotten_rig(&far);
	query = begin_match(r, TN_FOREVER, 0);
	rig_run(r, RIG_MS);
	drop(r);
	assert_int_equal(poll_match(r, query, &m), -EAGAIN);
	rig_until(r, (rc = poll_match(r, query, &m)) != -EAGAIN);
	assert_int_equal(rc, 0);
	assert_int_equal(in_tier(r, TN_TIER_REMOTE, 1, CHAIN), 0);
	rig_check_quiet(r);
	rig_tear_down(r);
}

static void wrong_bytes_from_afar_are_a_miss(void **state)
{
	struct tn_far_opts far = far_opts();
	struct rig *r;

	far.corrupt = 1;
	r = far_rig(&far);
	save_far(r, 1);
	only_far(r);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), 0);
	assert_true(rig_stats(r).corrupt_objects > 0);
	assert_int_equal(tn_far_blocks(r->far), 0); /* nobody gets them again */
	rig_tear_down(r);
}

/*
 * The disk refused a block, so it is on its way further down; then it is saved again and let in. The copy under way must not
 * make anybody forget that.
 */
static void a_copy_under_way_keeps_no_block_from_becoming_durable(void **state)
{
	for (int begun = 0; begun < 2; begun++) {
		struct tn_far_opts far = far_opts();
		struct rig *r;

		far.latency_ns = 200 * RIG_MS;
		r = far_rig(&far);
		__atomic_store_n(&r->s[0].space->quota.bytes[TN_TIER_DISK], 0, __ATOMIC_RELAXED);
		assert_int_equal(rig_save(&r->s[0], 1, CHAIN, 0).host_only, CHAIN);
		__atomic_store_n(&r->s[0].space->quota.bytes[TN_TIER_DISK], UINT64_MAX, __ATOMIC_RELAXED);
		if (begun)
			rig_until(r, tn_far_under_way(r->far) > 0);
		assert_int_equal(rig_save(&r->s[0], 1, CHAIN, 0).stored, CHAIN);
		assert_int_equal(rig_flush(r), 0);
		assert_int_equal(in_tier(r, TN_TIER_DISK, 1, CHAIN), CHAIN);
		rig_until(r, tn_core_idle(r->cache));
		assert_int_equal(in_tier(r, TN_TIER_REMOTE, 1, CHAIN), CHAIN);
		rig_check_quiet(r);
		rig_tear_down(r);
	}
}

/* They would come back without it, from another life of the cache. */
static void blocks_with_a_time_to_live_go_no_further_than_the_disk(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = far_rig(&far);
	struct tn_save_opts o;
	struct tn_save *save;

	tn_save_opts_init(&o);
	o.ttl_ns = 100 * RIG_SECOND;
	save = rig_save_begin(&r->s[0], 1, CHAIN, 0, &o);
	rig_save_give(&r->s[0], save);
	assert_int_equal(rig_save_end(&r->s[0], save).stored, CHAIN);
	assert_int_equal(rig_flush(r), 0);
	rig_until(r, tn_core_idle(r->cache));
	assert_int_equal(in_tier(r, TN_TIER_DISK, 1, CHAIN), CHAIN);
	assert_int_equal(in_tier(r, TN_TIER_REMOTE, 1, CHAIN), 0);
	rig_tear_down(r);
}

/* Copies under way hold all blocks of the disk. They end by themselves, so a save that wants a segment waits, as it does for loads. */
static void a_save_waits_for_a_segment_whose_blocks_are_being_copied(void **state)
{
	struct tn_far_opts far = far_opts();
	struct rig_space large;
	struct tn_save_result res;
	struct rig *r;

	far.latency_ns = 300 * RIG_MS;
	r = far_rig_of(&far, 2);
	rig_run(r, RIG_SECOND); /* the segments are prepared */
	for (uint64_t id = 1; id <= 5 * CHAIN / 2; id += CHAIN / 2) /* some in either */
		assert_int_equal(rig_save(&r->s[0], id, CHAIN / 2, 0).failed, 0);
	assert_int_equal(rig_flush(r), 0);
	rig_until(r, r->cache->row.queues->to[TN_TIER_REMOTE].count == 0);
	rig_open_second(r, 4 * r->o.head_dim, &large);
	res = rig_save(&large, 1001, 1, 0);
	assert_int_equal(res.failed, 0);
	assert_int_equal(res.stored + res.rejected, 1); /* admission rejects it if the tier is full and each of its blocks is held */
	rig_until(r, tn_core_idle(r->cache));
	rig_space_close(&large);
	rig_tear_down(r);
}

/* Nobody waits for copies: not a flush, not a save that wants their places in memory, not the end. */
static void a_slow_tier_is_in_nobodys_way(void **state)
{
	struct tn_far_opts far = far_opts();
	struct rig *r;
	uint64_t begin;

	far.latency_ns = 4000 * RIG_MS;
	r = far_rig(&far);
	begin = rig_now(r);
	for (uint64_t id = 1; id <= 20 * CHAIN; id += CHAIN)
		assert_int_equal(rig_save(&r->s[0], id, CHAIN, 0).failed, 0);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_now(r) - begin < 2 * RIG_SECOND);
	rig_tear_down(r);
}

/* Not with those that were begun, nor with those that belong to the same operation and were not. */
static void a_close_and_a_drop_wait_for_no_copies(void **state)
{
	for (int close = 0; close < 2; close++) {
		struct tn_far_opts far = far_opts();
		struct tn_flush_waiter *drop;
		struct rig *r;
		uint64_t begin;
		int rc = 0;

		far.least_ns = 20 * RIG_SECOND;
		r = far_rig(&far);
		assert_int_equal(rig_save(&r->s[0], 1, CHAIN, 0).failed, 0);
		rig_until(r, tn_far_under_way(r->far) > 0);
		assert_int_equal(rig_save(&r->s[0], CHAIN + 1, CHAIN, 0).failed, 0);
		assert_int_equal(rig_flush(r), 0);
		begin = rig_now(r);
		if (close) {
			assert_int_equal(rig_close(r), 0);
		} else {
			rig_until(r, (rc = tn_space_drop_begin(&r->cache->drops, r->s[0].space, &drop)) != -EBUSY);
			assert_int_equal(rc, 0);
			rig_until(r, tn_flush_poll(drop) != -EAGAIN);
			assert_int_equal(rig_match(&r->s[0], 1, CHAIN), 0);
		}
		assert_true(rig_now(r) - begin < RIG_SECOND);
		assert_int_equal(tn_far_blocks(r->far), 0);
		if (!close)
			rig_check_quiet(r);
		rig_tear_down(r);
	}
}

/* What a slow tier was asked for holds neither the caller's pages nor what others want to ask it for. */
static void a_load_that_is_given_up_withdraws_what_it_asked_for(void **state)
{
	struct tn_far_opts far = far_opts();
	struct tn_load_opts o;
	struct tn_load *load;
	struct rig *r;
	uint64_t begin;

	far.least_ns = RIG_SECOND;
	r = forgotten_rig(&far);
	assert_int_equal(match_later(r, TN_FOREVER, 0, &(struct tn_match){0}), CHAIN);
	begin = rig_now(r);
	tn_load_opts_init(&o);
	o.deadline_ns = begin + 10 * RIG_MS;
	load = rig_load_begin(&r->s[0], 1, CHAIN, 0, &o);
	rig_until(r, tn_far_under_way(r->far) == CHAIN);
	rig_oversleep(r, 10 * RIG_MS);
	rig_load_end(&r->s[0], load);
	rig_until(r, tn_far_under_way(r->far) == 0);
	assert_true(rig_now(r) - begin < 100 * RIG_MS);
	assert_int_equal(rig_stats(r).io_errors, 0);
	assert_int_equal(rig_load(&r->s[0], 1, CHAIN), CHAIN);
	rig_check_quiet(r);
	rig_tear_down(r);
}

/* More than it holds: its policy lets the oldest go, there as well. */
static void it_is_no_fuller_than_it_may_be(void **state)
{
	struct tn_far_opts far = far_opts();
	struct rig *r;

	far.blocks = 2 * CHAIN;
	r = far_rig(&far);
	for (uint64_t id = 1; id <= 6 * CHAIN; id += CHAIN) {
		assert_int_equal(rig_save(&r->s[0], id, CHAIN, 0).failed, 0);
		rig_until(r, tn_core_idle(r->cache));
		assert_true(tn_far_blocks(r->far) <= 2 * CHAIN);
		assert_int_equal(tn_far_blocks(r->far), r->cache->row.tier[TN_TIER_REMOTE]->blocks);
	}
	assert_true(tn_far_blocks(r->far) >= CHAIN);
	rig_check_quiet(r);
	rig_tear_down(r);
}

/* What was dropped with its space does not come back, whoever puts it there. */
static void blocks_of_an_earlier_life_of_a_space_stay_away(void **state)
{
	const struct tn_far_opts far = far_opts();
	struct rig *r = far_rig(&far);

	save_far(r, 1);
	for (uint32_t i = 0; i < CHAIN; i++)
		tn_far_take_away(r->far, 0, true);
	rig_until(r, in_tier(r, TN_TIER_REMOTE, 1, CHAIN) == 0); /* so that the drop does not reach them */
	drop(r);
	assert_true(tn_far_put_back(r->far, true));
	while (tn_far_put_back(r->far, true))
		;
	rig_run(r, RIG_SECOND);
	assert_int_equal(rig_match(&r->s[0], 1, CHAIN), 0);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_go_down_the_row_and_come_back_up),
		cmocka_unit_test(a_prefetch_brings_blocks_from_afar),
		cmocka_unit_test(a_block_that_is_lost_is_a_miss),
		cmocka_unit_test(what_others_take_away_and_put_there_is_known_from_events),
		cmocka_unit_test(a_look_up_that_may_take_its_time_finds_what_is_there),
		cmocka_unit_test(a_look_up_that_is_never_answered_holds_nothing),
		cmocka_unit_test(an_answer_that_comes_after_a_drop_brings_nothing_back),
		cmocka_unit_test(wrong_bytes_from_afar_are_a_miss),
		cmocka_unit_test(a_copy_under_way_keeps_no_block_from_becoming_durable),
		cmocka_unit_test(blocks_with_a_time_to_live_go_no_further_than_the_disk),
		cmocka_unit_test(a_save_waits_for_a_segment_whose_blocks_are_being_copied),
		cmocka_unit_test(a_slow_tier_is_in_nobodys_way),
		cmocka_unit_test(a_close_and_a_drop_wait_for_no_copies),
		cmocka_unit_test(a_load_that_is_given_up_withdraws_what_it_asked_for),
		cmocka_unit_test(it_is_no_fuller_than_it_may_be),
		cmocka_unit_test(blocks_of_an_earlier_life_of_a_space_stay_away),
	};

	return tn_test_ran(cmocka_run_group_tests(tests, NULL, NULL));
}
