/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was used lately is still known after a restart: the blocks that were cold before go first. On a simulated disk.
 */
#include <string.h>

#include "cache_rig.h"

#define BLOCKS 160u
#define NEW 40u
#define NEW_ID 1000u

static struct rig *rig_up(const char *policy)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = 8u << 20;
	o.cache.disk_blocks = BLOCKS;
	o.cache.policy = policy;
	o.layers = 1;
	o.pages_per_block = 1;
	return rig_start(&o);
}

/* A chain of its own; of a priority at which no policy declines it. */
static void save(struct rig *r, uint64_t id)
{
	struct tn_save_opts o;
	struct tn_save *s;

	tn_save_opts_init(&o);
	o.priority = 1;
	s = rig_save_begin(r->s, id, 1, 0, &o);
	rig_save_give(r->s, s);
	assert_int_equal(rig_save_end(r->s, s).stored, 1);
}

/* Saved first to last, then half of them loaded, in any order. order[]: the cold ones as saved, the hot ones as loaded. */
static void use(struct rig *r, uint32_t *order)
{
	struct tn_rng rng;
	uint32_t cold = 0, hot = BLOCKS / 2;
	bool is_hot[BLOCKS] = {false};

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < BLOCKS; i++)
		save(r, i + 1);
	assert_int_equal(rig_flush(r), 0); /* the log says what it knows at that time */
	while (hot < BLOCKS) {
		uint32_t i = tn_rng_below(&rng, BLOCKS);

		if (is_hot[i])
			continue;
		is_hot[i] = true;
		order[hot++] = i + 1;
		assert_int_equal(rig_load(r->s, i + 1, 1), 1);
	}
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (!is_hot[i])
			order[cold++] = i + 1;
}

static void new_blocks_displace_the_cold(struct rig *r, const uint32_t *order, bool in_order)
{
	uint32_t gone = 0;

	for (uint32_t i = 0; i < NEW; i++)
		save(r, NEW_ID + i);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		bool here = rig_match(r->s, order[i], 1) == 1;

		gone += !here;
		if (i >= BLOCKS / 2 && !here)
			fail_msg("block %u, %u-th of those in use, went", order[i], i - BLOCKS / 2);
		if (in_order && here != (i >= NEW))
			fail_msg("block %u, %u-th in order of use, %s", order[i], i, here ? "stayed" : "went");
	}
	assert_int_equal(gone, NEW);
}

static void reopened(const char *policy)
{
	struct rig *r = rig_up(policy);
	uint32_t order[BLOCKS];

	use(r, order);
	rig_reopen(r);
	new_blocks_displace_the_cold(r, order, strcmp(policy, "lru") == 0);
	rig_tear_down(r);
}

/* What was saved comes back from the log, what was only read since from the checkpoint that a minute brings. */
static void killed(const char *policy)
{
	struct rig *r = rig_up(policy);
	uint32_t order[BLOCKS];

	use(r, order);
	rig_run(r, 90 * RIG_SECOND);
	rig_power_off(r);
	rig_crashed(r, TN_SIMDISK_DROP, 1);
	new_blocks_displace_the_cold(r, order, strcmp(policy, "lru") == 0);
	rig_tear_down(r);
}

static void what_was_hot_before_a_close_outlives_what_was_cold_lru(void **state)
{
	reopened("lru");
}

static void what_was_hot_before_a_close_outlives_what_was_cold_default(void **state)
{
	reopened("default");
}

static void what_was_hot_before_a_kill_outlives_what_was_cold_lru(void **state)
{
	killed("lru");
}

static void what_was_hot_before_a_kill_outlives_what_was_cold_default(void **state)
{
	killed("default");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_hot_before_a_close_outlives_what_was_cold_lru),
		cmocka_unit_test(what_was_hot_before_a_close_outlives_what_was_cold_default),
		cmocka_unit_test(what_was_hot_before_a_kill_outlives_what_was_cold_lru),
		cmocka_unit_test(what_was_hot_before_a_kill_outlives_what_was_cold_default),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
