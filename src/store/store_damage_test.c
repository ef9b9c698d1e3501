/* SPDX-License-Identifier: Apache-2.0 */
/* What the store does with damaged, foreign and unfinished files: opens with what is left, or says what to do. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "store/store_rig.h"

#define SAVED 30u

/* A store with SAVED durable blocks, its process killed. */
static struct rig *killed_store(void)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++) {
		assert_true(rig_save(r, n) >= 0);
		if (n % 5 == 4)
			assert_int_equal(rig_flush(r), 0);
	}
	return r;
}

static void kill_it(struct rig *r)
{
	tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
	rig_abandon(r);
}

static struct tn_disk_super super_of(const struct rig *r)
{
	return r->store->dev[0].super;
}

static void damage(struct rig *r, uint64_t offset, uint64_t len)
{
	assert_int_equal(tn_simdisk_corrupt(r->disk, RIG_PATH, offset, len, 5), 0);
}

static uint32_t readable(struct rig *r)
{
	uint32_t n = 0;

	for (uint64_t k = 0; k < SAVED; k++)
		n += rig_find(r, k) && rig_read(r, k) == 0;
	return n;
}

static void opens_with(struct rig *r, uint32_t blocks)
{
	if (rig_open(r))
		fail_msg("does not open: %s", tn_error_last()->text);
	assert_int_equal(rig_live(r), blocks);
	assert_int_equal(readable(r), blocks);
	/* And goes on: a new block, closed and opened. */
	if (!rig_find(r, 500))
		assert_true(rig_save(r, 500) >= 0);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(readable(r), blocks);
	assert_int_equal(rig_read(r, 500), 0);
}

static void fails_with(struct rig *r, int code, const char *text)
{
	uint64_t digest = r->disk ? tn_simdisk_digest(r->disk) : 0;

	assert_int_equal(rig_open(r), code);
	if (!strstr(tn_error_last()->text, text))
		fail_msg("\"%s\" is not in \"%s\"", text, tn_error_last()->text);
	/* A file that is not ours, or not understood, is not touched. */
	assert_int_equal(tn_simdisk_digest(r->disk), digest);
}

/* ---- the log --------------------------------------------------------------------------------------------------- */

/* Nothing says of it that it was durable: a dying process may have left it so. */
static void a_torn_log_group_behind_the_mark_is_dropped_and_the_rest_kept(void **state)
{
	struct rig *r = killed_store();
	const struct tn_store_log *log = &r->store->dev[0].log;
	struct tn_disk_super sb = super_of(r);
	uint64_t last;

	for (uint64_t n = 100; n < 105; n++)
		assert_true(rig_save(r, n) >= 0);
	while (log->unlogged > 0 || log->phase != TN_LOG_IDLE)
		rig_step(r, 1);
	assert_true(r->store->dev[0].durable.reached.sequence < log->next.sequence);
	last = log->next.position - TN_DISK_PAGE;
	tn_simdisk_crash(r->disk, TN_SIMDISK_KILL, 1);
	rig_abandon(r);
	damage(r, sb.log_offset + last + 100, 1);
	opens_with(r, SAVED);
	assert_null(strstr(r->logs, "the log is damaged"));
	rig_free(r);
}

static void what_a_damaged_log_group_said_is_in_the_headers(void **state)
{
	for (uint64_t back = 1; back < 4; back++) { /* the last one, too: the mark says that it was durable */
		struct rig *r = killed_store();
		struct tn_disk_super sb = super_of(r);
		uint64_t at = r->store->dev[0].log.next.position - back * TN_DISK_PAGE;

		kill_it(r);
		damage(r, sb.log_offset + at + 100, 1);
		opens_with(r, SAVED);
		assert_non_null(strstr(r->logs, "the log is damaged at group"));
		rig_free(r);
	}
}

static void a_lost_log_is_rebuilt_from_headers(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);

	kill_it(r);
	damage(r, sb.log_offset, sb.log_bytes);
	opens_with(r, SAVED);
	assert_non_null(strstr(r->logs, "rebuilding the index from block headers"));
	rig_free(r);
}

static void the_highest_sequence_of_a_key_wins_when_headers_rebuild_the_index(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);
	uint64_t sequence;

	/* The first block 7 stays behind in a slot that is not written again. */
	rig_remove(r, 7);
	assert_true(rig_save(r, 7) >= 0);
	assert_int_equal(rig_flush(r), 0);
	sequence = rig_find(r, 7)->entry.sequence;
	kill_it(r);
	damage(r, sb.log_offset, sb.log_bytes);
	opens_with(r, SAVED);
	assert_int_equal(rig_find(r, 7)->entry.sequence, sequence);
	rig_free(r);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

static void when_both_checkpoints_are_lost_headers_rebuild_the_index(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);

	kill_it(r);
	damage(r, sb.checkpoint_offset[0], 2 * TN_DISK_PAGE);
	damage(r, sb.checkpoint_offset[1], 2 * TN_DISK_PAGE);
	opens_with(r, SAVED);
	rig_free(r);
}

static void when_one_checkpoint_is_lost_the_other_and_the_log_do(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct rig *r = killed_store();
		struct tn_disk_super sb = super_of(r);

		kill_it(r);
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(rig_close(r), 0); /* writes the second one */
		damage(r, sb.checkpoint_offset[i], 2 * TN_DISK_PAGE);
		opens_with(r, SAVED);
		rig_free(r);
	}
}

static void the_slots_of_a_damaged_checkpoint_page_come_from_headers(void **state)
{
	for (int unreadable = 0; unreadable < 2; unreadable++) {
		struct rig *r = killed_store();
		struct tn_disk_super sb = super_of(r);
		uint64_t page;

		kill_it(r);
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(rig_close(r), 0);
		assert_int_equal(rig_open(r), 0);
		/* The newest root's first slot page; the other region is damaged altogether. */
		page = sb.checkpoint_offset[!r->store->dev[0].ckpt.region] + 3 * TN_DISK_PAGE;
		damage(r, sb.checkpoint_offset[r->store->dev[0].ckpt.region], 2 * TN_DISK_PAGE);
		kill_it(r);
		if (unreadable)
			assert_int_equal(tn_simdisk_bad_range(r->disk, RIG_PATH, page, 1), 0);
		else
			damage(r, page + 70, 1);
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(rig_live(r), SAVED);
		assert_int_equal(readable(r), SAVED);
		assert_non_null(strstr(r->logs, "single pages"));
		rig_free(r);
	}
}

static void a_lost_space_table_is_rebuilt_from_headers(void **state)
{
	struct rig *r = killed_store();

	kill_it(r);
	damage(r, TN_DISK_SPACES_OFFSET(0), TN_DISK_PAGE);
	damage(r, TN_DISK_SPACES_OFFSET(1), TN_DISK_PAGE);
	opens_with(r, SAVED);
	assert_int_equal(r->space, 0);
	rig_free(r);
}

/* ---- superblocks -------------------------------------------------------------------------------------------------- */

static void one_damaged_superblock_is_repaired(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct rig *r = killed_store();

		kill_it(r);
		damage(r, TN_DISK_SUPER_OFFSET(i), TN_DISK_PAGE);
		opens_with(r, SAVED);
		assert_int_equal(rig_close(r), 0);
		/* The repaired one alone is enough. */
		damage(r, TN_DISK_SUPER_OFFSET(!i), TN_DISK_PAGE);
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(readable(r), SAVED);
		rig_free(r);
	}
}

static void in_place_of_two_damaged_superblocks_the_copy_in_a_checkpoint_is_used(void **state)
{
	for (int unreadable = 0; unreadable < 2; unreadable++) {
		struct rig *r = killed_store();

		kill_it(r);
		damage(r, TN_DISK_SUPER_OFFSET(0), 8);
		damage(r, TN_DISK_SUPER_OFFSET(1), 8);
		if (unreadable)
			assert_int_equal(tn_simdisk_bad_range(r->disk, RIG_PATH, 0, TN_DISK_SUPER_OFFSET(1) + 1), 0);
		opens_with(r, SAVED);
		assert_non_null(strstr(r->logs, "going on with the copy in a checkpoint, both are written again"));
		rig_free(r);
	}
}

static void without_any_superblock_the_file_is_refused_and_what_is_in_it_is_told(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);

	kill_it(r);
	damage(r, TN_DISK_SUPER_OFFSET(0), 8);
	damage(r, TN_DISK_SUPER_OFFSET(1), 8);
	damage(r, sb.checkpoint_offset[0], 2 * TN_DISK_PAGE);
	damage(r, sb.checkpoint_offset[1], 2 * TN_DISK_PAGE);
	fails_with(r, -EUCLEAN, "log groups from byte 327680 on");
	fails_with(r, -EUCLEAN, "remove it to begin anew");
	rig_free(r);
}

static void another_version_is_refused_naming_both(void **state)
{
	struct rig *r = killed_store();
	uint16_t version = 77;

	kill_it(r);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, TN_DISK_SUPER_OFFSET(i) + 4, &version, 2), 0);
	fails_with(r, -EPROTONOSUPPORT, "version 77, this program knows version 1");
	rig_free(r);
}

static void a_file_that_is_no_store_is_not_touched(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	unsigned char *junk = malloc(1 << 20);
	uint32_t file;

	memset(junk, 0x5a, 1 << 20);
	assert_int_equal(tn_io_open(r->io, RIG_PATH, TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_allocate(r->io, file, 0, 1 << 20), 0);
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, 0, junk, 1 << 20), 0);
	assert_int_equal(tn_io_close(r->io, file), 0);
	fails_with(r, -EUCLEAN, "both superblocks are damaged");
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, 10000), 0);
	fails_with(r, -EUCLEAN, "not a store, or cut off");
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, 1000), 0); /* less than can be read of it */
	fails_with(r, -EUCLEAN, "only 1000 bytes long: not a store, or cut off; remove it");
	free(junk);
	rig_free(r);
}

/* ---- lengths ---------------------------------------------------------------------------------------------------------- */

static void a_truncated_file_loses_the_segments_beyond_its_end_only(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);
	uint32_t left = 0;

	for (uint64_t n = 0; n < SAVED; n++)
		left += tn_store_segment_of(r->store, tn_store_local(r->store, rig_find(r, n)->slot)) < 2;
	assert_in_range(left, 1, SAVED - 1);
	kill_it(r);
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, sb.segments_offset + 2 * sb.segment_bytes + 4096), 0);
	opens_with(r, left);
	assert_non_null(strstr(r->logs, "cut off"));
	rig_free(r);
}

static void a_file_cut_off_within_its_index_is_refused(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);

	kill_it(r);
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, sb.segments_offset - 65536), 0);
	fails_with(r, -EUCLEAN, "cut off within its index");
	rig_free(r);
}

static void a_segment_whose_header_is_of_another_device_is_not_used_as_it_is(void **state)
{
	struct rig *r = killed_store();
	struct tn_disk_super sb = super_of(r);
	struct tn_disk_segment h;
	uint32_t left = 0;

	for (uint64_t n = 0; n < SAVED; n++)
		left += tn_store_segment_of(r->store, tn_store_local(r->store, rig_find(r, n)->slot)) != 1;
	kill_it(r);
	assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, sb.segments_offset + sb.segment_bytes, &h, sizeof(h)), 0);
	h.device_uuid[0]++;
	tn_disk_seal(&h.head, TN_DISK_MAGIC_SEGMENT, sizeof(h));
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, sb.segments_offset + sb.segment_bytes, &h, sizeof(h)), 0);
	opens_with(r, left);
	rig_free(r);
}

/* ---- sets -------------------------------------------------------------------------------------------------------------- */

static void devices_may_come_in_any_order_but_not_more_than_there_are(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	r->dirs[1] = "b";
	r->opts.ndirs = 2;
	r->opts.capacity_bytes *= 2;
	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_in_range(r->store->dev[0].slots[TN_SLOT_COMMITTED], SAVED / 2 - 1, SAVED / 2 + 1);
	assert_int_equal(rig_close(r), 0);
	r->dirs[0] = "b";
	r->dirs[1] = "a";
	opens_with(r, SAVED);
	assert_int_equal(rig_close(r), 0);
	r->opts.ndirs = 3;
	r->dirs[2] = "c";
	fails_with(r, -ENODEV, "3 directories were given, but they belong to a store of 2 devices");
	assert_int_equal(tn_simdisk_size(r->disk, "c/tenuto.store"), -ENOENT);
	rig_free(r);
}

static void a_device_of_another_store_is_refused(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_close(r), 0);
	r->dirs[0] = "b";
	r->opts.entropy[0] = 99;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_close(r), 0);
	r->dirs[1] = "a";
	r->opts.ndirs = 2;
	fails_with(r, -EXDEV, "belongs to another store");
	rig_free(r);
}

static void a_second_opener_is_told_who_has_the_store(void **state)
{
	struct rig *r = rig_new(tn_test_seed()), *second = rig_new_on(r->io, r->clock, "a");
	char pid[32];

	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	assert_int_equal(rig_open(r), 0);
	second->opts.lock_timeout_ns = 30000000;
	assert_int_equal(rig_open(second), -EBUSY);
	assert_non_null(strstr(tn_error_last()->text, pid));
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(second), 0);
	rig_free(second);
	rig_free(r);
}

/* ---- creation -------------------------------------------------------------------------------------------------------------- */

static void crash_in_creation(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	bool *busy = arg;

	if (*busy)
		return;
	*busy = true;
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++) {
		struct tn_simdisk *clone;
		struct rig *r;

		assert_int_equal(tn_simdisk_clone(disk, event, &clone), 0);
		tn_simdisk_crash(clone, (enum tn_simdisk_crash)mode, event);
		r = rig_new_on(tn_simdisk_io(clone), tn_simdisk_clock(clone), "a");
		r->disk = clone;
		r->dirs[1] = "b";
		r->opts.ndirs = 2;
		if (rig_open(r))
			fail_msg("event %llu, %s: %s", (unsigned long long)event,
				 tn_simdisk_crash_name((enum tn_simdisk_crash)mode), tn_error_last()->text);
		assert_true(rig_save(r, 1) >= 0);
		rig_free(r);
	}
	*busy = false;
}

static void an_unfinished_creation_is_finished_by_the_next_open(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	bool busy = false;

	r->dirs[1] = "b";
	r->opts.ndirs = 2;
	tn_simdisk_on_event(r->disk, crash_in_creation, &busy);
	assert_int_equal(rig_open(r), 0);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	rig_free(r);
}

static void absurd_sizes_are_refused_or_bounded(void **state)
{
	static const struct {
		uint64_t capacity, segment;
		uint32_t slots;
		uint64_t log;
		int code;
	} c[] = {
		{0, 0, 0, 0, -EINVAL},
		{1ull << 63, 0, 0, 0, -EINVAL},
		{UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT64_MAX, -EINVAL},
		{1 << 20, 1ull << 50, 0, 0, -EINVAL},
		{1 << 20, 65536, 10, 1ull << 62, -EINVAL},
		{1 << 20, 65536, 10, UINT64_MAX, -EINVAL},
		{1 << 20, UINT64_MAX, 0, 0, -EINVAL},
		{1ull << 56, 1ull << 40, UINT32_MAX, 0, -EINVAL},
		{1, 1, 1, 1, 0},
	};
	struct rig *r = rig_new(tn_test_seed());

	for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++) {
		r->opts.capacity_bytes = c[i].capacity;
		r->opts.segment_bytes = c[i].segment;
		r->opts.max_slots = c[i].slots;
		r->opts.log_bytes = c[i].log;
		assert_int_equal(rig_open(r), c[i].code);
		if (c[i].code)
			assert_true(strlen(tn_error_last()->text) > 10);
	}
	rig_free(r);
}

static void slots_that_could_not_be_numbered_on_all_devices_are_refused_before_anything_is_written(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	r->dirs[1] = "b";
	r->dirs[2] = "c";
	r->opts.ndirs = 3;
	r->opts.capacity_bytes = 1ull << 50;
	r->opts.segment_bytes = 1 << 30;
	r->opts.max_slots = 4100000000u;
	assert_int_equal(rig_open(r), -EINVAL);
	assert_int_equal(tn_simdisk_size(r->disk, RIG_PATH), -ENOENT);
	rig_free(r);
}

static void a_store_opened_with_more_capacity_goes_on_as_it_was_and_says_so(void **state)
{
	static const uint64_t more[] = {4 << 20, 1ull << 56, UINT64_MAX};
	struct rig *r = killed_store();

	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(rig_close(r), 0);
		r->logs[0] = 0;
		r->opts.capacity_bytes = more[i];
		assert_int_equal(rig_open(r), 0);
		assert_non_null(strstr(r->logs, "was made for 8 segments, 2097152 bytes, and cannot grow"));
		rig_step(r, 20);
		assert_int_equal(readable(r), SAVED);
	}
	rig_free(r);
}

static void a_segment_header_that_no_block_of_ours_could_have_is_not_believed(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_disk_segment h;
	uint64_t at;

	r->opts.capacity_bytes = 256 << 20;
	r->opts.segment_bytes = 128 << 20;
	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	at = r->store->dev[0].super.segments_offset;
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, at, &h, sizeof(h)), 0);
	h.shape.header_bytes = 64 << 20;
	h.shape.slot_bytes = TN_DISK_PAGE;
	h.shape.slot_count = 1;
	tn_disk_seal(&h.head, TN_DISK_MAGIC_SEGMENT, sizeof(h));
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, at, &h, sizeof(h)), 0);
	r->opts.rebuild = true;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_live(r), 0);
	rig_free(r);
}

static void a_log_group_longer_than_any_is_not_believed(void **state)
{
	const uint32_t len = TN_DISK_GROUP_MAX + TN_DISK_PAGE;
	struct tn_disk_group *g = calloc(1, len);
	uint32_t bytes;

	g->bytes = len;
	tn_disk_seal(&g->head, TN_DISK_MAGIC_LOG, len);
	assert_int_equal(tn_disk_group_check(g, len, g->device_uuid, 0, 0, 0, &bytes), -EBADMSG);
	g->bytes = TN_DISK_GROUP_MAX;
	tn_disk_seal(&g->head, TN_DISK_MAGIC_LOG, TN_DISK_GROUP_MAX);
	assert_int_equal(tn_disk_group_check(g, len, g->device_uuid, 0, 0, 0, &bytes), 0);
	free(g);
}

static void the_capacity_of_a_store_is_known_without_opening_it(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t bytes = 0, slots = 0;
	char dir[600];

	memset(dir, 'a', sizeof(dir));
	dir[sizeof(dir) - 1] = 0;
	assert_int_equal(tn_store_capacity(&r->opts, "a", &bytes, &slots), -ENOENT);
	assert_int_equal(tn_store_capacity(&r->opts, dir, &bytes, &slots), -ENAMETOOLONG);
	r->dirs[0] = dir;
	r->opts.rebuild = true; /* looks at the superblocks first */
	assert_int_equal(rig_open(r), -ENAMETOOLONG);
	r->opts.rebuild = false;
	r->dirs[0] = "a";
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_close(r), 0);
	damage(r, TN_DISK_SUPER_OFFSET(0), 8);
	assert_int_equal(tn_store_capacity(&r->opts, "a", &bytes, &slots), 0);
	assert_int_equal(bytes, 2 << 20);
	assert_int_equal(slots, 8 * TN_DISK_RECORDS);
	damage(r, TN_DISK_SUPER_OFFSET(1), 8);
	bytes = 0;
	assert_int_equal(tn_store_capacity(&r->opts, "a", &bytes, &slots), 0);
	assert_int_equal(bytes, 2 << 20);
	assert_int_equal(tn_simdisk_truncate(r->disk, RIG_PATH, 16384), 0);
	assert_int_equal(tn_store_capacity(&r->opts, "a", &bytes, &slots), -EUCLEAN);
	rig_free(r);
}

static void a_read_only_store_is_read_and_never_written(void **state)
{
	struct rig *r = killed_store();
	uint64_t digest;
	tn_slot slot;

	kill_it(r);
	digest = tn_simdisk_digest(r->disk);
	r->opts.read_only = true;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(readable(r), SAVED);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 0);
	rig_remove(r, 3);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_space_drop(r->store, r->space), -EROFS);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_simdisk_digest(r->disk), digest);
	r->dirs[0] = "nothing";
	assert_int_equal(rig_open(r), -ENOENT);
	rig_free(r);
}

static void power_that_goes_at_any_time_ends_in_errors_not_in_a_hang(void **state)
{
	for (uint64_t event = 1;; event += 3) {
		struct rig *r = rig_new(event);
		bool on;

		tn_simdisk_power_off_at(r->disk, event);
		if (rig_open(r) == 0) {
			for (uint64_t n = 0; n < 5; n++)
				(void)rig_save(r, n);
			(void)rig_flush(r);
			rig_step(r, 20);
			(void)rig_close(r);
		}
		on = !tn_simdisk_is_off(r->disk);
		rig_crash(r, TN_SIMDISK_SUBSET, event);
		rig_free(r);
		if (on)
			break;
	}
}

/* A program of a later version may have died between the two copies. A version with one damaged bit is another matter. */
static void a_store_of_which_one_superblock_is_of_a_later_version_is_left_alone(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		bool damaged = i == 0, torn = i == 1; /* its checksum does not fit */
		struct rig *r = rig_new(tn_test_seed());
		struct tn_disk_super sb, now;

		assert_int_equal(rig_open(r), 0);
		assert_true(rig_save(r, 1) >= 0);
		assert_int_equal(rig_close(r), 0);
		assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, TN_DISK_SUPER_OFFSET(0), &sb, sizeof(sb)), 0);
		sb.head.version = TN_DISK_VERSION + 1 + damaged; /* 3 is one bit from 1 */
		sb.generation += torn;
		assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, TN_DISK_SUPER_OFFSET(0), &sb, sizeof(sb)), 0);
		assert_int_equal(rig_open(r), damaged ? 0 : -EPROTONOSUPPORT);
		assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, TN_DISK_SUPER_OFFSET(0), &now, sizeof(now)), 0);
		assert_int_equal(now.head.version, damaged ? TN_DISK_VERSION : TN_DISK_VERSION + 1);
		if (damaged)
			assert_int_equal(rig_read(r, 1), 0);
		rig_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_store_of_which_one_superblock_is_of_a_later_version_is_left_alone),
		cmocka_unit_test(a_torn_log_group_behind_the_mark_is_dropped_and_the_rest_kept),
		cmocka_unit_test(what_a_damaged_log_group_said_is_in_the_headers),
		cmocka_unit_test(a_lost_log_is_rebuilt_from_headers),
		cmocka_unit_test(the_highest_sequence_of_a_key_wins_when_headers_rebuild_the_index),
		cmocka_unit_test(when_both_checkpoints_are_lost_headers_rebuild_the_index),
		cmocka_unit_test(when_one_checkpoint_is_lost_the_other_and_the_log_do),
		cmocka_unit_test(the_slots_of_a_damaged_checkpoint_page_come_from_headers),
		cmocka_unit_test(a_lost_space_table_is_rebuilt_from_headers),
		cmocka_unit_test(one_damaged_superblock_is_repaired),
		cmocka_unit_test(in_place_of_two_damaged_superblocks_the_copy_in_a_checkpoint_is_used),
		cmocka_unit_test(without_any_superblock_the_file_is_refused_and_what_is_in_it_is_told),
		cmocka_unit_test(another_version_is_refused_naming_both),
		cmocka_unit_test(a_file_that_is_no_store_is_not_touched),
		cmocka_unit_test(a_truncated_file_loses_the_segments_beyond_its_end_only),
		cmocka_unit_test(a_file_cut_off_within_its_index_is_refused),
		cmocka_unit_test(a_segment_whose_header_is_of_another_device_is_not_used_as_it_is),
		cmocka_unit_test(devices_may_come_in_any_order_but_not_more_than_there_are),
		cmocka_unit_test(a_device_of_another_store_is_refused),
		cmocka_unit_test(a_second_opener_is_told_who_has_the_store),
		cmocka_unit_test(an_unfinished_creation_is_finished_by_the_next_open),
		cmocka_unit_test(absurd_sizes_are_refused_or_bounded),
		cmocka_unit_test(slots_that_could_not_be_numbered_on_all_devices_are_refused_before_anything_is_written),
		cmocka_unit_test(a_store_opened_with_more_capacity_goes_on_as_it_was_and_says_so),
		cmocka_unit_test(a_segment_header_that_no_block_of_ours_could_have_is_not_believed),
		cmocka_unit_test(a_log_group_longer_than_any_is_not_believed),
		cmocka_unit_test(the_capacity_of_a_store_is_known_without_opening_it),
		cmocka_unit_test(a_read_only_store_is_read_and_never_written),
		cmocka_unit_test(power_that_goes_at_any_time_ends_in_errors_not_in_a_hang),
	};

	return cmocka_run_group_tests_name("store-damage", tests, NULL, NULL);
}
