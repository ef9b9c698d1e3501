/* SPDX-License-Identifier: Apache-2.0 */
/* What there is of a large save while it is being written, to look-ups and after the death of the process; on a simulated disk. */
#include <errno.h>

#include "cache_rig.h"
#include "core/core.h"

#define LAYERS 16u
#define OBJECT_BYTES (128u << 10)
#define BLOCKS 60u  /* of 2 MiB each */
#define BEHIND 6u  /* blocks: of 8 MiB whose records are not written yet, and what becomes visible meanwhile */

static struct rig *rig_up(void)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = 256u << 20;
	o.segment_bytes = 8u << 20; /* each of the save's segments has a header that goes before its records */
	o.layers = LAYERS;
	o.npages = BLOCKS * 4; /* half of them for loads */
	o.head_dim = OBJECT_BYTES / 128;
	o.cache.io_depth = 1;
	o.write_ns = RIG_MS;
	return rig_start(&o);
}

/* A committed save, as far as the first so many blocks of it are found. */
static struct tn_save *save_up_to(struct rig *r, int blocks)
{
	struct tn_save *save;
	int found = 0;

	rig_fill_blocks(r->s, 1, BLOCKS, 0);
	save = rig_save_begin(r->s, 1, BLOCKS, 0, NULL);
	rig_save_give(r->s, save);
	while (found < blocks) {
		int now = rig_match(r->s, 1, BLOCKS);

		assert_in_range(now, found, BLOCKS);
		found = now;
		rig_turn(r, RIG_MS);
	}
	return save;
}

static void the_first_blocks_of_a_committed_save_are_found_before_the_last_are_written(void **state)
{
	for (int blocks = 1; blocks < (int)BLOCKS - 8; blocks += 16) {
		struct rig *r = rig_up();
		struct tn_save *save = save_up_to(r, blocks);

		assert_in_range(rig_match(r->s, 1, BLOCKS), blocks, BLOCKS - 1);
		assert_int_equal(rig_load(r->s, 1, 1), 1);
		assert_int_equal(rig_save_end(r->s, save).stored, BLOCKS);
		assert_int_equal(rig_match(r->s, 1, BLOCKS), BLOCKS);
		rig_check_quiet(r);
		rig_tear_down(r);
	}
}

static void a_process_that_dies_in_a_save_loses_the_last_blocks_only(void **state)
{
	for (int blocks = 16; blocks < (int)BLOCKS - 8; blocks += 12) {
		struct rig *r = rig_up();
		struct tn_save *save = save_up_to(r, blocks);
		int left;

		rig_power_off(r);
		rig_save_end(r->s, save);
		rig_crashed(r, TN_SIMDISK_KILL, r->o.seed);
		left = rig_match(r->s, 1, BLOCKS);
		assert_in_range(left, blocks - (int)BEHIND, BLOCKS - 1);
		for (int i = 0; i < left; i++)
			assert_int_equal(rig_load(r->s, 1 + (uint32_t)i, 1), 1);
		rig_tear_down(r);
	}
}

/* ---- saves whose layers, or commit, do not come ----------------------------------------------------------------------- */

#define N 8u
#define SECONDS (TN_SAVE_IDLE_NS / RIG_SECOND)

static struct rig *small_rig(void)
{
	struct rig_opts o = rig_simulated_opts();

	return rig_start(&o);
}

static void is_given_up(struct rig *r, struct tn_save *save)
{
	struct tn_save_result res;
	struct tn_key key = rig_key(1);

	rig_until(r, tn_list_empty(&r->cache->saves));
	for (uint32_t l = 0; l < r->s->space->shape.layers; l++)
		tn_save_layer(save, l, NULL, 0); /* too late, if it was not given before */
	for (uint32_t i = 0; i < N * 2; i++)
		rig_poison(r->s, i);
	assert_int_equal(tn_save_commit(save), 0);
	res = rig_save_end(r->s, save);
	assert_int_equal(res.failed, N);
	assert_int_equal(res.error, -ECANCELED);
	assert_int_equal(rig_match(r->s, 1, N), 0);
	assert_int_equal(rig_count(r->s, 1, N), 0);
	assert_int_equal(r->cache->own->waiting_bytes, 0);
	assert_int_equal(rig_stats(r).save_failed_blocks % N, 0);
	rig_check_quiet(r);
	/* The blocks can be saved as ever. */
	rig_fill_blocks(r->s, 1, N, 0);
	assert_int_equal(rig_save(r->s, 1, N, 0).stored, N);
	assert_int_equal(rig_load(r->s, 1, N), N);
	assert_int_equal(tn_drop(r->s->space, &key, 1), 1);
}

static struct tn_save *begin(struct rig *r)
{
	rig_fill_blocks(r->s, 1, N, 0);
	return rig_save_begin(r->s, 1, N, 0, NULL);
}

static void a_save_without_its_next_layer_or_its_commit_is_given_up(void **state)
{
	for (uint32_t given = 0; given <= 2; given++) {
		struct rig *r = small_rig();
		struct tn_save *save = begin(r);

		for (uint32_t l = 0; l < given; l++)
			assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
		rig_run(r, TN_SAVE_IDLE_NS - RIG_SECOND);
		assert_false(tn_list_empty(&r->cache->saves));
		rig_run(r, 2 * RIG_SECOND);
		is_given_up(r, save);
		rig_tear_down(r);
	}
}

static void a_layer_whose_event_does_not_come_is_missing(void **state)
{
	struct rig *r = small_rig();
	struct tn_save *save = begin(r);
	struct tn_event *event;

	assert_int_equal(tn_event_create(r->cache, &event), 0);
	for (uint32_t l = 0; l < 2; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1), 0);
	assert_int_equal(tn_save_commit(save), 0);
	rig_run(r, TN_SAVE_IDLE_NS + RIG_SECOND);
	is_given_up(r, save);
	tn_event_destroy(event);
	rig_tear_down(r);
}

static void a_save_goes_on_for_as_long_as_its_layers_come(void **state)
{
	struct rig *r = small_rig();
	struct tn_save *save = begin(r);

	for (uint32_t l = 0; l < 2; l++) {
		rig_run(r, (SECONDS - 1) * RIG_SECOND);
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	}
	rig_run(r, (SECONDS - 1) * RIG_SECOND);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(rig_save_end(r->s, save).stored, N);
	assert_int_equal(rig_load(r->s, 1, N), N);
	rig_tear_down(r);
}

static void a_block_that_was_there_stays_when_a_save_of_it_is_given_up(void **state)
{
	struct rig *r = small_rig();
	struct tn_save_result res;
	struct tn_save *save;

	rig_fill_blocks(r->s, 1, N, 0);
	assert_int_equal(rig_save(r->s, 1, 2, 0).stored, 2);
	save = begin(r);
	rig_run(r, TN_SAVE_IDLE_NS + RIG_SECOND);
	assert_int_equal(tn_save_abort(save), 0); /* as good as any other end */
	res = rig_save_end(r->s, save);
	assert_int_equal(res.existing, 2);
	assert_int_equal(res.failed, N - 2);
	assert_int_equal(rig_load(r->s, 1, N), 2);
	rig_check_quiet(r);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_without_its_next_layer_or_its_commit_is_given_up),
		cmocka_unit_test(a_layer_whose_event_does_not_come_is_missing),
		cmocka_unit_test(a_save_goes_on_for_as_long_as_its_layers_come),
		cmocka_unit_test(a_block_that_was_there_stays_when_a_save_of_it_is_given_up),
		cmocka_unit_test(the_first_blocks_of_a_committed_save_are_found_before_the_last_are_written),
		cmocka_unit_test(a_process_that_dies_in_a_save_loses_the_last_blocks_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
