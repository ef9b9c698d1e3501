/* SPDX-License-Identifier: Apache-2.0 */
/* What there is of a large save while it is being written, to look-ups and after the death of the process; on a simulated disk. */
#include "cache_rig.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_blocks_of_a_committed_save_are_found_before_the_last_are_written),
		cmocka_unit_test(a_process_that_dies_in_a_save_loses_the_last_blocks_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
