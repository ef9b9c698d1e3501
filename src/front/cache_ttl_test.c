/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times to live, on a simulated disk: which of several saves of a block counts, before and after a power cut, and what becomes
 * of a block whose time is over while it is still there.
 */

#include "core/core.h"
#include "cache_rig.h"

#define PER_BLOCK 2u
#define HOUR (3600 * RIG_SECOND)
#define HOST (2u << 20)

static struct rig *rig_up(uint64_t host_bytes)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.host_bytes = host_bytes;
	return rig_start(&o);
}

static struct tn_save *begin_save(struct rig *r, uint64_t id, uint64_t ttl_ns)
{
	struct tn_save_opts o;
	struct tn_save *s;

	tn_save_opts_init(&o);
	o.ttl_ns = ttl_ns;
	s = rig_save_begin(r->s, id, 1, (uint32_t)id * PER_BLOCK, &o);
	rig_save_give(r->s, s);
	return s;
}

/* The block must be there then, whether it was before or not. */
static void end_save(struct rig *r, struct tn_save *s)
{
	struct tn_save_result res = rig_save_end(r->s, s);

	assert_int_equal(res.rejected + res.failed, 0);
}

static void save(struct rig *r, uint64_t id, uint64_t ttl_ns)
{
	end_save(r, begin_save(r, id, ttl_ns));
}

static void a_save_for_ever_takes_an_earlier_ones_time_away_durably(void **state)
{
	for (int host = 0; host < 2; host++)
		for (int logged = 0; logged < 2; logged++) {
			struct rig *r = rig_up(host ? HOST : 0);

			save(r, 1, HOUR);
			save(r, 2, HOUR);
			if (logged)
				assert_int_equal(rig_flush(r), 0);
			save(r, 1, 0);
			assert_int_equal(rig_flush(r), 0);
			rig_power_cut(r, TN_SIMDISK_DROP);
			assert_true(rig_match(r->s, 1, 1));
			assert_false(rig_match(r->s, 2, 1)); /* saved with a time to live alone: not recovered */
			rig_run(r, 2 * HOUR);
			assert_true(rig_match(r->s, 1, 1));
			rig_tear_down(r);
		}
}

static void the_longer_of_two_times_counts(void **state)
{
	struct rig *r = rig_up(0);

	save(r, 1, 2 * RIG_SECOND);
	save(r, 1, 60 * RIG_SECOND);
	save(r, 2, 60 * RIG_SECOND);
	save(r, 2, 2 * RIG_SECOND);
	save(r, 3, 0);
	save(r, 3, 2 * RIG_SECOND);
	rig_run(r, 10 * RIG_SECOND);
	assert_true(rig_match(r->s, 1, 1) && rig_match(r->s, 2, 1) && rig_match(r->s, 3, 1));
	rig_run(r, 60 * RIG_SECOND);
	assert_false(rig_match(r->s, 1, 1) || rig_match(r->s, 2, 1));
	assert_int_equal(rig_flush(r), 0);
	rig_power_cut(r, TN_SIMDISK_DROP);
	assert_true(rig_match(r->s, 3, 1));
	rig_tear_down(r);
}

/* Both saves began before the block was there, so that the second one finds the first one's block only at its end. */
static void of_two_saves_at_once_the_longer_time_counts(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_save *s[2];

	s[0] = begin_save(r, 1, 2 * RIG_SECOND);
	s[1] = begin_save(r, 1, 0);
	end_save(r, s[0]);
	end_save(r, s[1]);
	rig_run(r, 10 * RIG_SECOND);
	assert_true(rig_match(r->s, 1, 1));
	assert_int_equal(rig_flush(r), 0);
	rig_power_cut(r, TN_SIMDISK_DROP);
	assert_true(rig_match(r->s, 1, 1));
	rig_tear_down(r);
}

static void a_save_revives_a_block_whose_time_is_over(void **state)
{
	for (int host = 0; host < 2; host++) {
		struct rig *r = rig_up(host ? HOST : 0);
		struct tn_save *s[2];

		for (uint64_t id = 1; id <= 2; id++)
			save(r, id, RIG_SECOND);
		assert_int_equal(rig_flush(r), 0);
		rig_oversleep(r, 5 * RIG_SECOND);
		assert_false(rig_match(r->s, 1, 1) || rig_match(r->s, 2, 1));
		assert_int_equal(r->cache->c.dropped_blocks, 0); /* nobody has swept */
		s[0] = begin_save(r, 1, 0);
		s[1] = begin_save(r, 2, 60 * RIG_SECOND);
		end_save(r, s[0]);
		end_save(r, s[1]);
		assert_true(rig_match(r->s, 1, 1) && rig_match(r->s, 2, 1));
		rig_run(r, 10 * RIG_SECOND);
		assert_true(rig_match(r->s, 1, 1) && rig_match(r->s, 2, 1));
		rig_run(r, 60 * RIG_SECOND);
		assert_false(rig_match(r->s, 2, 1));
		assert_int_equal(rig_flush(r), 0);
		rig_power_cut(r, TN_SIMDISK_DROP);
		assert_true(rig_match(r->s, 1, 1));
		rig_tear_down(r);
	}
}

static void also_one_that_somebody_holds(void **state)
{
	struct rig *r = rig_up(0);
	uint64_t pin;

	save(r, 1, RIG_SECOND);
	save(r, 2, RIG_SECOND);
	pin = rig_pin(r->s, 1, 2);
	rig_run(r, 5 * RIG_SECOND);
	assert_false(rig_match(r->s, 1, 1) || rig_match(r->s, 2, 1));
	save(r, 1, 0);
	assert_true(rig_match(r->s, 1, 1));
	rig_unpin(r->s, pin);
	rig_run(r, 5 * RIG_SECOND);
	assert_true(rig_match(r->s, 1, 1));
	assert_int_equal(r->cache->c.dropped_blocks, 1);
	rig_tear_down(r);
}

/* In one turn the block's time is found to be over, and the log group is made that still names it. */
static void a_block_that_goes_as_its_record_is_written_is_not_recovered(void **state)
{
	struct rig *r = rig_up(0);

	save(r, 2, 0); /* its group has just been written: the next one waits for company */
	save(r, 1, RIG_SECOND);
	rig_oversleep(r, 3 * RIG_SECOND);
	rig_run(r, 5 * RIG_MS);
	assert_int_equal(r->cache->c.dropped_blocks, 1);
	rig_power_cut(r, TN_SIMDISK_KILL);
	assert_true(rig_match(r->s, 2, 1));
	assert_false(rig_match(r->s, 1, 1));
	rig_tear_down(r);
}

/* Saves with random times, waits, flushes and power cuts, against the rule in three lines. Times are to the second. */
static void random_saves_waits_and_power_cuts(void **state)
{
	enum { BLOCKS = 12, STEPS = 1500 };
	uint64_t until[BLOCKS] = {0};
	bool durable[BLOCKS] = {false};
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int host = 0; host < 2; host++) {
		struct rig *r = rig_up(host ? HOST : 0);

		for (uint32_t i = 0; i < BLOCKS; i++) {
			until[i] = 0;
			durable[i] = false;
		}
		for (uint32_t step = 0; step < STEPS; step++) {
			uint32_t b = tn_rng_below(&rng, BLOCKS), what = tn_rng_below(&rng, 100);
			uint64_t ttl = tn_rng_below(&rng, 4) ? (1 + tn_rng_below(&rng, 40)) * RIG_SECOND : 0, end;

			if (what < 60) {
				save(r, b, ttl);
				end = ttl ? rig_now(r) + ttl : UINT64_MAX;
				until[b] = end > until[b] ? end : until[b];
			} else if (what < 80) {
				rig_run(r, tn_rng_below(&rng, 6000) * RIG_MS);
			} else if (what < 90) {
				rig_oversleep(r, tn_rng_below(&rng, 6000) * RIG_MS);
			} else if (what < 97) {
				assert_int_equal(rig_flush(r), 0);
				for (uint32_t i = 0; i < BLOCKS; i++)
					durable[i] = until[i] == UINT64_MAX;
			} else {
				rig_power_cut(r, TN_SIMDISK_DROP);
				for (uint32_t i = 0; i < BLOCKS; i++) {
					assert_true(!durable[i] || rig_match(r->s, i, 1));
					assert_true(until[i] == UINT64_MAX || !rig_match(r->s, i, 1));
					durable[i] = rig_match(r->s, i, 1);
					until[i] = durable[i] ? UINT64_MAX : 0;
				}
			}
			for (uint32_t i = 0; i < BLOCKS; i++) {
				if (rig_now(r) < until[i])
					assert_true(rig_match(r->s, i, 1));
				else if (rig_now(r) >= until[i] + 2 * RIG_SECOND)
					assert_false(rig_match(r->s, i, 1));
			}
		}
		rig_tear_down(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_for_ever_takes_an_earlier_ones_time_away_durably),
		cmocka_unit_test(the_longer_of_two_times_counts),
		cmocka_unit_test(of_two_saves_at_once_the_longer_time_counts),
		cmocka_unit_test(a_save_revives_a_block_whose_time_is_over),
		cmocka_unit_test(also_one_that_somebody_holds),
		cmocka_unit_test(a_block_that_goes_as_its_record_is_written_is_not_recovered),
		cmocka_unit_test(random_saves_waits_and_power_cuts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
