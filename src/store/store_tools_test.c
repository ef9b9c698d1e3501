/* SPDX-License-Identifier: Apache-2.0 */
/* What `tenuto store info|verify|check` find and say, on the simulated disk. */
#include <errno.h>
#include <string.h>
#include <tenuto/admin.h>
#include <unistd.h>

#include "base/error.h"
#include "store/store_rig.h"

#define SAVED 30u

/* An open store with SAVED durable blocks. */
static struct rig *saved_store(void)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	return r;
}

static void damage(struct rig *r, uint64_t offset, uint64_t len)
{
	assert_int_equal(tn_simdisk_corrupt(r->disk, RIG_PATH, offset, len, 5), 0);
}

/* How often the log says this. */
static unsigned said(const struct rig *r, const char *text)
{
	unsigned n = 0;

	for (const char *p = r->logs; (p = strstr(p, text)); p++)
		n++;
	return n;
}

static struct tn_admin_check check(struct rig *r, bool rebuild)
{
	struct tn_admin_store a;
	struct tn_admin_check c;

	tn_admin_store_init(&a);
	r->logs[0] = 0;
	if (tn_store_admin_check(&r->opts, &a, rebuild, &c))
		fail_msg("check: %s", tn_error_last()->text);
	return c;
}

static void info_works_beside_the_owner(void **state)
{
	struct rig *r = saved_store();
	struct tn_admin_device d;

	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_admin_info(&r->opts, &d), 0);
	assert_true(d.in_use);
	assert_false(d.clean);
	assert_int_equal(d.blocks, SAVED);
	assert_int_equal(d.owner_pid, getpid());
	assert_string_equal(d.path, RIG_PATH);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_store_admin_info(&r->opts, &d), 0);
	assert_false(d.in_use);
	assert_true(d.clean);
	assert_int_equal(d.blocks, SAVED);
	assert_in_range(d.log_used_bytes, 0, 4 * TN_DISK_PAGE);
	rig_free(r);
}

static void verify_finds_a_flipped_bit(void **state)
{
	struct rig *r = saved_store();
	struct tn_admin_store a;
	struct tn_admin_verify v;
	struct tn_store_place place;

	tn_admin_store_init(&a);
	tn_store_locate(r->store, rig_find(r, 3)->slot, &place);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), -EBUSY);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.blocks, SAVED);
	assert_int_equal(v.objects, SAVED * RIG_OBJECTS);
	assert_int_equal(v.corrupt_objects + v.corrupt_blocks + v.io_errors, 0);
	damage(r, place.data_offset + 5, 1);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.corrupt_objects, 1);
	damage(r, place.header_offset + 200, 1);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.corrupt_blocks, 1);
	rig_free(r);
}

static void verify_reads_more_than_its_window_holds(void **state)
{
	static const uint32_t bytes[RIG_OBJECTS] = {1u << 20, 700000, 3u << 20};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_admin_store a;
	struct tn_admin_verify v;
	struct tn_store_place place;
	uint32_t cls;

	tn_admin_store_init(&a);
	r->opts.capacity_bytes = 256 << 20;
	r->opts.segment_bytes = 16 << 20;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, RIG_OBJECTS, bytes, &cls), 0);
	for (uint64_t i = 0; i < 330; i++)
		assert_true((i % 11 ? rig_save(r, i) : rig_save_in(r, i, cls, bytes, RIG_OBJECTS)) >= 0);
	tn_store_locate(r->store, rig_find(r, 319)->slot, &place);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.blocks, 330);
	assert_int_equal(v.objects, 330 * RIG_OBJECTS);
	assert_int_equal(v.corrupt_objects + v.corrupt_blocks + v.io_errors + v.lost_segments, 0);
	damage(r, place.data_offset + bytes[0] + 700000 - 1, 1);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.corrupt_objects, 1);
	assert_int_equal(tn_simdisk_bad_range(r->disk, RIG_PATH, place.data_offset + (2 << 20), 512), 0);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_int_equal(v.corrupt_objects, 0);
	assert_int_equal(v.io_errors, 1);
	assert_int_equal(v.blocks, 330);
	rig_free(r);
}

static void verify_counts_lost_segments(void **state)
{
	struct rig *r = saved_store();
	struct tn_admin_store a;
	struct tn_admin_verify v;

	tn_admin_store_init(&a);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, tn_simdisk_size(r->disk, RIG_PATH) - 600000), 0);
	assert_int_equal(tn_store_admin_verify(&r->opts, &a, &v), 0);
	assert_true(v.lost_segments > 0);
	assert_true(v.blocks < SAVED);
	assert_int_equal(v.corrupt_blocks, 0);
	rig_free(r);
}

static void check_rebuilds_a_store_without_superblocks(void **state)
{
	struct rig *r = saved_store();
	struct tn_admin_store a;
	struct tn_admin_check c;

	tn_admin_store_init(&a);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, false, &c), 0);
	assert_int_equal(c.problems + c.stale, 0);
	assert_int_equal(c.blocks, SAVED);
	damage(r, TN_DISK_SUPER_OFFSET(0), 8);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, false, &c), 0);
	assert_int_equal(c.problems, 1);
	damage(r, TN_DISK_SUPER_OFFSET(1), 8);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, false, &c), 0);
	assert_int_equal(c.problems, 1);
	assert_int_equal(c.repaired, 0);
	assert_int_equal(c.blocks, SAVED);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, true, &c), 0);
	assert_int_equal(c.problems, 1);
	assert_int_equal(c.repaired, 1);
	assert_int_equal(c.blocks, SAVED);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_live(r), SAVED);
	rig_free(r);
}

static void check_reports_a_destroyed_checkpoint_and_rebuild_makes_it_good(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct rig *r = saved_store();
		struct tn_disk_super sb = r->store->dev[0].super;
		struct tn_admin_check c;

		assert_int_equal(rig_close(r), 0);
		damage(r, sb.checkpoint_offset[i] + 100, 1);
		c = check(r, false);
		assert_true(c.problems >= 1);
		assert_int_equal(said(r, "one checkpoint is damaged"), 1);
		assert_int_equal(c.blocks, SAVED);
		assert_true(check(r, true).repaired >= 1);
		assert_int_equal(check(r, false).problems, 0);
		rig_free(r);
	}
}

static void a_checkpoint_destroyed_while_the_store_was_open_is_told_from_one_that_was_being_written(void **state)
{
	struct rig *r = saved_store();
	struct tn_store_device *d = &r->store->dev[0];
	uint64_t root = d->super.checkpoint_offset[d->ckpt.region];

	/* The second root is torn: its first half, with the head, is as it was to be. */
	assert_int_equal(tn_store_ckpt_wait(d, true), 0);
	tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
	rig_abandon(r);
	damage(r, root + TN_DISK_PAGE + 100, 1);
	assert_int_equal(check(r, false).problems, 0);
	damage(r, root, 4);
	assert_int_equal(check(r, false).problems, 1);
	assert_int_equal(said(r, "one checkpoint is damaged"), 1);
	rig_free(r);
}

static void segments_that_are_cut_off_are_one_problem_with_their_number(void **state)
{
	struct rig *r = saved_store();
	struct tn_disk_super sb = r->store->dev[0].super;

	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, sb.segments_offset), 0);
	assert_int_equal(check(r, false).problems, 1);
	assert_int_equal(said(r, "the file is cut off: the blocks of "), 1);
	rig_free(r);
}

static void damaged_segments_are_one_problem_with_their_number(void **state)
{
	struct rig *r = saved_store();
	struct tn_disk_super sb = r->store->dev[0].super;
	struct tn_admin_check c;

	assert_int_equal(rig_close(r), 0);
	damage(r, sb.segments_offset, 4);
	damage(r, sb.segments_offset + sb.segment_bytes, 4);
	c = check(r, false);
	assert_int_equal(c.problems, 1);
	assert_int_equal(c.blocks, SAVED);
	assert_int_equal(said(r, "damaged headers of 2 segments, made again from what is left"), 1);
	c = check(r, true);
	assert_int_equal(c.repaired, 1);
	assert_int_equal(c.blocks, SAVED);
	assert_int_equal(c.segments_restored, 2);
	assert_int_equal(check(r, false).problems, 0);
	rig_free(r);
}

static void a_rebuild_says_what_it_saved_and_what_not_and_why(void **state)
{
	struct rig *r = saved_store();
	struct tn_disk_super sb = r->store->dev[0].super;
	struct tn_store_place damaged, unreadable;
	struct tn_key id = {{5, 6}};
	uint32_t last;
	struct tn_admin_check c;
	uint16_t own = r->space;

	/* A block of a space that is dropped, an older version of another. */
	assert_int_equal(tn_store_space(r->store, &id, &r->space), 0);
	assert_true(rig_save(r, 200) >= 0);
	assert_int_equal(tn_store_space_drop(r->store, r->space), 0);
	r->space = own;
	rig_remove(r, 200);
	rig_remove(r, 2);
	assert_true(rig_save(r, 2) >= 0);
	assert_int_equal(rig_flush(r), 0);
	tn_store_locate(r->store, rig_find(r, 3)->slot, &damaged);
	tn_store_locate(r->store, rig_find(r, 4)->slot, &unreadable);
	last = tn_store_segment_of(r->store, tn_store_local(r->store, rig_find(r, SAVED - 1)->slot));
	assert_true(last > 0);
	assert_int_equal(rig_close(r), 0);
	damage(r, damaged.header_offset + 200, 1);
	assert_int_equal(tn_simdisk_bad_range(r->disk, RIG_PATH, unreadable.header_offset, 512), 0);
	c = check(r, true);
	assert_int_equal(c.headers_damaged, 1);
	assert_int_equal(c.headers_unreadable, 1);
	assert_int_equal(c.blocks_dropped, 1);
	assert_int_equal(c.blocks_superseded, 1);
	assert_int_equal(c.segments_lost, 0);
	assert_int_equal(c.blocks, SAVED - 2);
	assert_int_equal(said(r, "saved 28 blocks from the headers of"), 1);
	assert_int_equal(tn_simdisk_bad_range(r->disk, RIG_PATH, 0, 0), 0);
	damage(r, sb.segments_offset + last * sb.segment_bytes, sb.segment_bytes);
	c = check(r, true);
	assert_int_equal(c.segments_lost, 1);
	assert_true(c.blocks < SAVED - 2);
	rig_free(r);
}

static void with_rebuild_a_problem_is_told_once(void **state)
{
	struct rig *r = saved_store();
	struct tn_disk_super sb = r->store->dev[0].super;
	struct tn_admin_check c;

	assert_int_equal(rig_close(r), 0);
	damage(r, TN_DISK_SUPER_OFFSET(0), 8);
	damage(r, sb.segments_offset, 4);
	c = check(r, true);
	assert_int_equal(c.problems, 2);
	assert_int_equal(c.repaired, 2);
	assert_int_equal(said(r, "one superblock is damaged"), 1);
	assert_int_equal(said(r, "damaged headers"), 1);
	assert_int_equal(said(r, "opened with"), 1); /* what was there before, then what is there now */
	assert_int_equal(said(r, "rebuilt with"), 1);
	assert_int_equal(check(r, false).problems, 0);
	/* Not even that could be read: then it is told when it is repaired. */
	damage(r, TN_DISK_SUPER_OFFSET(0), 8);
	damage(r, TN_DISK_SUPER_OFFSET(1), 8);
	assert_int_equal(check(r, true).problems, 1);
	assert_int_equal(said(r, "both superblocks are damaged"), 1);
	rig_free(r);
}

static void of_an_empty_file_the_tools_say_what_it_is_and_what_to_do(void **state)
{
	struct rig *r = saved_store();
	struct tn_admin_store a;
	struct tn_admin_check c;

	tn_admin_store_init(&a);
	assert_int_equal(rig_close(r), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, i ? 1000 : 0), 0);
		for (int rebuild = 0; rebuild < 2; rebuild++) {
			r->logs[0] = 0;
			assert_int_equal(tn_store_admin_check(&r->opts, &a, rebuild, &c), i ? -EUCLEAN : -ENOENT);
			assert_string_equal(r->logs, ""); /* the error says it */
			assert_non_null(strstr(tn_error_last()->text, i ? "only 1000 bytes long" : "it is empty"));
			assert_non_null(strstr(tn_error_last()->text, "remove it"));
		}
	}
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(info_works_beside_the_owner),
		cmocka_unit_test(verify_finds_a_flipped_bit),
		cmocka_unit_test(verify_reads_more_than_its_window_holds),
		cmocka_unit_test(verify_counts_lost_segments),
		cmocka_unit_test(check_rebuilds_a_store_without_superblocks),
		cmocka_unit_test(check_reports_a_destroyed_checkpoint_and_rebuild_makes_it_good),
		cmocka_unit_test(a_checkpoint_destroyed_while_the_store_was_open_is_told_from_one_that_was_being_written),
		cmocka_unit_test(segments_that_are_cut_off_are_one_problem_with_their_number),
		cmocka_unit_test(damaged_segments_are_one_problem_with_their_number),
		cmocka_unit_test(a_rebuild_says_what_it_saved_and_what_not_and_why),
		cmocka_unit_test(with_rebuild_a_problem_is_told_once),
		cmocka_unit_test(of_an_empty_file_the_tools_say_what_it_is_and_what_to_do),
	};

	return cmocka_run_group_tests_name("store-tools", tests, NULL, NULL);
}
