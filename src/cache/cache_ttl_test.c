/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times to live, on a simulated disk: which of several saves of a block counts, before and after a power cut, and what becomes
 * of a block whose time is over while it is still there.
 */
#include <errno.h>

#include "cache_sim_rig.h"
#include "tn_test.h"

#define PER_BLOCK 2u
#define HOUR (3600 * CRIG_SECOND)
#define HOST (2u << 20)

static struct crig *rig_up(uint64_t host_bytes, uint64_t seed)
{
	struct crig_opts o = sim_rig_opts();

	o.seed = seed;
	o.host_bytes = host_bytes;
	return sim_rig_up(&o);
}

static void begin_save(struct crig *r, uint64_t id, uint64_t ttl_ns, struct tn_save **s)
{
	uint32_t pages[PER_BLOCK] = {(uint32_t)id * PER_BLOCK, (uint32_t)id * PER_BLOCK + 1};
	struct tn_key key = crig_key(id);
	struct tn_save_opts o;

	tn_save_opts_init(&o);
	o.ttl_ns = ttl_ns;
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &key, 1, pages, &o, s), 0);
	for (uint32_t l = 0; l < r->g.layers; l++) {
		for (uint32_t k = 0; k < PER_BLOCK; k++)
			crig_fill(r, 0, id, l, k, pages[k]);
		assert_int_equal(tn_save_layer(*s, l, NULL), 0);
	}
	assert_int_equal(tn_save_commit(*s), 0);
}

/* The block must be there then, whether it was before or not. */
static void end_save(struct crig *r, struct tn_save *s)
{
	struct tn_save_result res = {.size = sizeof(res)};
	int rc;

	while ((rc = tn_save_end(s, 1, &res)) == -ETIMEDOUT)
		crig_turn(r, CRIG_MS);
	assert_int_equal(rc, 0);
	assert_int_equal(res.rejected + res.failed, 0);
}

static void save(struct crig *r, uint64_t id, uint64_t ttl_ns)
{
	struct tn_save *s;

	begin_save(r, id, ttl_ns, &s);
	end_save(r, s);
}

static void power_cut(struct crig *r)
{
	crig_power_off(r);
	crig_run(r, CRIG_SECOND);
	assert_true(crig_crashed(r, TN_SIMDISK_DROP, 1));
}

/* Time passes, and the owner thread does nothing. */
static void oversleep(struct crig *r, uint64_t ns)
{
	uint64_t end = crig_now(r) + ns;

	while (crig_now(r) < end)
		tn_core_wait(r->cache, end - crig_now(r));
}

static void a_save_for_ever_takes_an_earlier_ones_time_away_durably(void **state)
{
	for (int host = 0; host < 2; host++)
		for (int logged = 0; logged < 2; logged++) {
			struct crig *r = rig_up(host ? HOST : 0, tn_test_seed());

			save(r, 1, HOUR);
			save(r, 2, HOUR);
			if (logged)
				assert_int_equal(sim_rig_flush(r), 0);
			save(r, 1, 0);
			assert_int_equal(sim_rig_flush(r), 0);
			power_cut(r);
			assert_true(sim_rig_there(r, 1));
			assert_false(sim_rig_there(r, 2)); /* saved with a time to live alone: not recovered */
			crig_run(r, 2 * HOUR);
			assert_true(sim_rig_there(r, 1));
			sim_rig_down(r);
		}
}

static void the_longer_of_two_times_counts(void **state)
{
	struct crig *r = rig_up(0, tn_test_seed());

	save(r, 1, 2 * CRIG_SECOND);
	save(r, 1, 60 * CRIG_SECOND);
	save(r, 2, 60 * CRIG_SECOND);
	save(r, 2, 2 * CRIG_SECOND);
	save(r, 3, 0);
	save(r, 3, 2 * CRIG_SECOND);
	crig_run(r, 10 * CRIG_SECOND);
	assert_true(sim_rig_there(r, 1) && sim_rig_there(r, 2) && sim_rig_there(r, 3));
	crig_run(r, 60 * CRIG_SECOND);
	assert_false(sim_rig_there(r, 1) || sim_rig_there(r, 2));
	assert_int_equal(sim_rig_flush(r), 0);
	power_cut(r);
	assert_true(sim_rig_there(r, 3));
	sim_rig_down(r);
}

/* Both saves began before the block was there, so that the second one finds the first one's block only at its end. */
static void of_two_saves_at_once_the_longer_time_counts(void **state)
{
	struct crig *r = rig_up(0, tn_test_seed());
	struct tn_save *s[2];

	begin_save(r, 1, 2 * CRIG_SECOND, &s[0]);
	begin_save(r, 1, 0, &s[1]);
	end_save(r, s[0]);
	end_save(r, s[1]);
	crig_run(r, 10 * CRIG_SECOND);
	assert_true(sim_rig_there(r, 1));
	assert_int_equal(sim_rig_flush(r), 0);
	power_cut(r);
	assert_true(sim_rig_there(r, 1));
	sim_rig_down(r);
}

static void a_save_revives_a_block_whose_time_is_over(void **state)
{
	for (int host = 0; host < 2; host++) {
		struct crig *r = rig_up(host ? HOST : 0, tn_test_seed());
		struct tn_save *s[2];

		for (uint64_t id = 1; id <= 2; id++)
			save(r, id, CRIG_SECOND);
		assert_int_equal(sim_rig_flush(r), 0);
		oversleep(r, 5 * CRIG_SECOND);
		assert_false(sim_rig_there(r, 1) || sim_rig_there(r, 2));
		assert_int_equal(r->cache->c.dropped_blocks, 0); /* nobody has swept */
		begin_save(r, 1, 0, &s[0]);
		begin_save(r, 2, 60 * CRIG_SECOND, &s[1]);
		end_save(r, s[0]);
		end_save(r, s[1]);
		assert_true(sim_rig_there(r, 1) && sim_rig_there(r, 2));
		crig_run(r, 10 * CRIG_SECOND);
		assert_true(sim_rig_there(r, 1) && sim_rig_there(r, 2));
		crig_run(r, 60 * CRIG_SECOND);
		assert_false(sim_rig_there(r, 2));
		assert_int_equal(sim_rig_flush(r), 0);
		power_cut(r);
		assert_true(sim_rig_there(r, 1));
		sim_rig_down(r);
	}
}

static void also_one_that_somebody_holds(void **state)
{
	struct crig *r = rig_up(0, tn_test_seed());
	struct tn_key keys[2] = {crig_key(1), crig_key(2)};
	struct tn_match m = {.size = sizeof(m)};

	save(r, 1, CRIG_SECOND);
	save(r, 2, CRIG_SECOND);
	assert_int_equal(tn_match(r->space[0], keys, 2, NULL, &m, TN_MATCH_PIN), 2);
	crig_run(r, 5 * CRIG_SECOND);
	assert_false(sim_rig_there(r, 1) || sim_rig_there(r, 2));
	save(r, 1, 0);
	assert_true(sim_rig_there(r, 1));
	assert_int_equal(tn_unpin(r->space[0], m.pin), 0);
	crig_run(r, 5 * CRIG_SECOND);
	assert_true(sim_rig_there(r, 1));
	assert_int_equal(r->cache->c.dropped_blocks, 1);
	sim_rig_down(r);
}

/* In one turn the block's time is found to be over, and the log group is made that still names it. */
static void a_block_that_goes_as_its_record_is_written_is_not_recovered(void **state)
{
	struct crig *r = rig_up(0, tn_test_seed());

	save(r, 2, 0); /* its group has just been written: the next one waits for company */
	save(r, 1, CRIG_SECOND);
	oversleep(r, 3 * CRIG_SECOND);
	crig_run(r, 5 * CRIG_MS);
	assert_int_equal(r->cache->c.dropped_blocks, 1);
	crig_power_off(r);
	crig_run(r, CRIG_SECOND);
	assert_true(crig_crashed(r, TN_SIMDISK_KILL, 1));
	assert_true(sim_rig_there(r, 2));
	assert_false(sim_rig_there(r, 1));
	sim_rig_down(r);
}

/* Saves with random times, waits, flushes and power cuts, against the rule in three lines. Times are to the second. */
static void random_saves_waits_and_power_cuts(void **state)
{
	enum { BLOCKS = 12, STEPS = 1500 };
	uint64_t until[BLOCKS] = {0}, seed = tn_test_seed();
	bool durable[BLOCKS] = {false};
	struct tn_rng rng;

	tn_rng_seed(&rng, seed);
	for (int host = 0; host < 2; host++) {
		struct crig *r = rig_up(host ? HOST : 0, seed);

		for (uint32_t i = 0; i < BLOCKS; i++) {
			until[i] = 0;
			durable[i] = false;
		}
		for (uint32_t step = 0; step < STEPS; step++) {
			uint32_t b = tn_rng_below(&rng, BLOCKS), what = tn_rng_below(&rng, 100);
			uint64_t ttl = tn_rng_below(&rng, 4) ? (1 + tn_rng_below(&rng, 40)) * CRIG_SECOND : 0, end;

			if (what < 60) {
				save(r, b, ttl);
				end = ttl ? crig_now(r) + ttl : UINT64_MAX;
				until[b] = end > until[b] ? end : until[b];
			} else if (what < 80) {
				crig_run(r, tn_rng_below(&rng, 6000) * CRIG_MS);
			} else if (what < 90) {
				oversleep(r, tn_rng_below(&rng, 6000) * CRIG_MS);
			} else if (what < 97) {
				assert_int_equal(sim_rig_flush(r), 0);
				for (uint32_t i = 0; i < BLOCKS; i++)
					durable[i] = until[i] == UINT64_MAX;
			} else {
				power_cut(r);
				for (uint32_t i = 0; i < BLOCKS; i++) {
					assert_true(!durable[i] || sim_rig_there(r, i));
					assert_true(until[i] == UINT64_MAX || !sim_rig_there(r, i));
					durable[i] = sim_rig_there(r, i);
					until[i] = durable[i] ? UINT64_MAX : 0;
				}
			}
			for (uint32_t i = 0; i < BLOCKS; i++) {
				if (crig_now(r) < until[i])
					assert_true(sim_rig_there(r, i));
				else if (crig_now(r) >= until[i] + 2 * CRIG_SECOND)
					assert_false(sim_rig_there(r, i));
			}
		}
		sim_rig_down(r);
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
