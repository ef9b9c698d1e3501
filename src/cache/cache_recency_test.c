/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was used lately is still known after a restart: the blocks that were cold before go first. On a simulated disk.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache_sim_rig.h"
#include "tn_test.h"

#define BLOCKS 160u
#define NEW 40u
#define NEW_ID 1000u

static struct crig *rig_up(const char *policy)
{
	struct crig_opts o = sim_rig_opts();

	o.disk_bytes = 8u << 20;
	o.disk_blocks = BLOCKS;
	o.policy = policy;
	o.layers = 1;
	o.pages_per_block = 1;
	return sim_rig_up(&o);
}

/* A chain of its own; of a priority at which no policy declines it. */
static void save(struct crig *r, uint64_t id)
{
	uint32_t page = 0;
	struct tn_key key = crig_key(id);
	struct tn_save_opts o;
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *s;

	tn_save_opts_init(&o);
	o.priority = 1;
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &key, 1, &page, &o, &s), 0);
	crig_fill(r, 0, id, 0, 0, page);
	assert_int_equal(tn_save_layer(s, 0, NULL), 0);
	assert_int_equal(tn_save_commit(s), 0);
	while (tn_save_end(s, 1, &res))
		crig_turn(r, CRIG_MS);
	assert_int_equal(res.stored, 1);
}

static void load(struct crig *r, uint64_t id)
{
	uint32_t page = 1;
	struct tn_key key = crig_key(id);
	struct tn_load *load;
	int good;

	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], &key, 1, &page, NULL, &load), 0);
	while ((good = tn_load_poll(load, 0)) == -EAGAIN)
		crig_turn(r, CRIG_MS);
	assert_int_equal(good, 1);
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
}

/* Saved first to last, then half of them loaded, in any order. order[]: the cold ones as saved, the hot ones as loaded. */
static void use(struct crig *r, uint32_t *order)
{
	struct tn_rng rng;
	uint32_t cold = 0, hot = BLOCKS / 2;
	bool is_hot[BLOCKS] = {false};

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < BLOCKS; i++)
		save(r, i + 1);
	assert_int_equal(sim_rig_flush(r), 0); /* the log says what it knows at that time */
	while (hot < BLOCKS) {
		uint32_t i = tn_rng_below(&rng, BLOCKS);

		if (is_hot[i])
			continue;
		is_hot[i] = true;
		order[hot++] = i + 1;
		load(r, i + 1);
	}
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (!is_hot[i])
			order[cold++] = i + 1;
}

static void new_blocks_displace_the_cold(struct crig *r, const uint32_t *order, bool in_order)
{
	uint32_t gone = 0;

	for (uint32_t i = 0; i < NEW; i++)
		save(r, NEW_ID + i);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		bool here = sim_rig_there(r, order[i]);

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
	struct crig *r = rig_up(policy);
	uint32_t order[BLOCKS];

	use(r, order);
	assert_true(crig_close(r));
	assert_true(crig_open(r));
	new_blocks_displace_the_cold(r, order, strcmp(policy, "lru") == 0);
	sim_rig_down(r);
}

/* What was saved comes back from the log, what was only read since from the checkpoint that a minute brings. */
static void killed(const char *policy)
{
	struct crig *r = rig_up(policy);
	uint32_t order[BLOCKS];

	use(r, order);
	crig_run(r, 90 * CRIG_SECOND);
	crig_power_off(r);
	assert_true(crig_crashed(r, TN_SIMDISK_DROP, 1));
	new_blocks_displace_the_cold(r, order, strcmp(policy, "lru") == 0);
	sim_rig_down(r);
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
