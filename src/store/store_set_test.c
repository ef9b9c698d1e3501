/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of a store that are lost, empty, or back after a session without them: each costs its own blocks, never the store. */
#include <errno.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/error.h"
#include "store/store_rig.h"

#define SAVED 30u
#define B_PATH "b/tenuto.store"

static struct rig *two_devices(struct tn_io *io, const struct tn_clock *clock)
{
	struct rig *r = io ? rig_new_on(io, clock, "a") : rig_new(tn_test_seed());

	r->dirs[1] = "b";
	r->opts.ndirs = 2;
	r->opts.capacity_bytes *= 2;
	return r;
}

/* A closed store of two devices with blocks 0 .. SAVED - 1; on[n]: the device of block n. */
static struct rig *saved_store(uint32_t on[SAVED])
{
	struct rig *r = two_devices(NULL, NULL);

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++) {
		assert_true(rig_save(r, n) >= 0);
		on[n] = tn_store_device_of(r->store, rig_find(r, n)->slot)->index;
	}
	assert_int_equal(rig_close(r), 0);
	return r;
}

static void opens(struct rig *r)
{
	if (rig_open(r))
		fail_msg("does not open: %s", tn_error_last()->text);
}

/* Of the saved blocks those of this device are there and right, and no other. */
static void has_only(struct rig *r, const uint32_t on[SAVED], uint32_t device)
{
	for (uint64_t n = 0; n < SAVED; n++) {
		assert_int_equal(rig_find(r, n) != NULL, on[n] == device);
		if (on[n] == device)
			assert_int_equal(rig_read(r, n), 0);
	}
}

static void goes_on(struct rig *r, uint64_t first, uint32_t devices)
{
	uint32_t used = 0;

	for (uint64_t n = first; n < first + 10; n++) {
		assert_true(rig_save(r, n) >= 0);
		used |= 1u << tn_store_device_of(r->store, rig_find(r, n)->slot)->index;
	}
	assert_int_equal(used, devices);
	assert_int_equal(rig_flush(r), 0);
	rig_step(r, 20);
	for (uint64_t n = first; n < first + 10; n++)
		assert_int_equal(rig_read(r, n), 0);
}

static void an_empty_directory_costs_its_own_blocks_and_gets_a_new_device(void **state)
{
	for (uint32_t lost = 0; lost < 2; lost++)
		for (int how = 0; how < 2; how++) {
			uint32_t on[SAVED];
			struct rig *r = saved_store(on);
			const char *path = lost ? B_PATH : RIG_PATH;

			assert_int_equal(how ? tn_io_unlink(r->io, path) : tn_simdisk_truncate(r->disk, path, 0), 0);
			opens(r);
			assert_non_null(strstr(r->logs, "is made anew (its directory is empty)"));
			has_only(r, on, !lost);
			goes_on(r, 100, 3);
			assert_int_equal(rig_close(r), 0);
			opens(r);
			for (uint64_t n = 100; n < 110; n++)
				assert_int_equal(rig_read(r, n), 0);
			has_only(r, on, !lost);
			rig_free(r);
		}
}

static void b_goes_away(struct rig *r)
{
	struct tn_simdisk_fault f[3];

	for (unsigned i = 0; i < 3; i++)
		f[i] = (struct tn_simdisk_fault){.kind = TN_SIMDISK_EIO, .path = B_PATH, .count = UINT64_MAX,
						 .op = (uint8_t[]){TN_IO_READ, TN_IO_WRITE, TN_IO_SYNC}[i]};
	assert_int_equal(tn_simdisk_set_faults(r->disk, f, 3), 0);
	for (unsigned i = 0; i < 8; i++)
		tn_store_observe(r->store, 1, TN_IO_READ, 0, 1000, -EIO);
	assert_int_equal(tn_store_health(r->store, 1), TN_OFFLINE);
}

/* A flush of what is elsewhere, the space table included, does not need it; one of what was stored or removed there does. */
static void a_device_that_is_offline_fails_only_flushes_that_need_it(void **state)
{
	for (unsigned stored = 0; stored < 2; stored++) {
		uint32_t on[SAVED], used = 0;
		struct rig *r = saved_store(on);
		uint64_t there = 0;

		opens(r);
		while (on[there] != 1)
			there++;
		assert_int_equal(rig_flush(r), 0);
		for (uint64_t n = 100; stored && !(used & 2); n++) {
			assert_true(rig_save(r, n) >= 0);
			used |= 1u << tn_store_device_of(r->store, rig_find(r, n)->slot)->index;
		}
		b_goes_away(r);
		assert_int_equal(rig_flush(r), stored ? -EIO : 0);
		assert_true(rig_save(r, 200) >= 0);
		assert_int_equal(tn_store_device_of(r->store, rig_find(r, 200)->slot)->index, 0);
		assert_int_equal(tn_store_space_drop(r->store, r->space), 0);
		assert_int_equal(rig_flush(r), stored ? -EIO : 0);
		rig_remove(r, there);
		assert_int_equal(rig_flush(r), -EIO);
		assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
		for (unsigned i = 0; i < 200 && tn_store_health(r->store, 1) != TN_HEALTHY; i++) {
			tn_simdisk_advance(r->disk, 1000000000);
			rig_step(r, 4);
		}
		rig_step(r, 20);
		assert_int_equal(rig_flush(r), 0);
		rig_free(r);
	}
}

static void each_device_can_be_opened_alone(void **state)
{
	for (uint32_t alone = 0; alone < 2; alone++) {
		struct tn_device_stats stats[2];
		uint32_t on[SAVED];
		struct rig *r = saved_store(on);

		r->dirs[0] = alone ? "b" : "a";
		r->opts.ndirs = 1;
		opens(r);
		assert_int_equal(tn_store_devices(r->store), 2);
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(tn_store_stats(r->store, i, &stats[i]), 0);
		assert_int_equal(tn_store_stats(r->store, 2, &stats[0]), -ENOENT);
		assert_int_equal(stats[!alone].health, TN_OFFLINE);
		assert_int_equal(stats[alone].health, TN_HEALTHY);
		has_only(r, on, alone);
		goes_on(r, 100, 1u << alone);
		assert_int_equal(rig_close(r), 0);
		opens(r);
		has_only(r, on, alone);
		rig_free(r);
	}
}

/* The blocks of the device that was away are gone, also those that were saved again meanwhile. */
static void a_device_that_missed_a_session_is_made_anew(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	uint64_t again = 0;

	while (on[again] != 1)
		again++;
	r->opts.ndirs = 1;
	opens(r);
	assert_true(rig_save(r, again) >= 0);
	assert_int_equal(tn_store_space_drop(r->store, r->space), 0);
	rig_remove(r, again);
	for (uint64_t n = 0; n < SAVED; n++)
		if (on[n] == 0)
			rig_remove(r, n);
	assert_int_equal(rig_close(r), 0);
	r->opts.ndirs = 2;
	r->logs[0] = 0;
	opens(r);
	assert_non_null(strstr(r->logs, "is made anew (the store was used without it)"));
	assert_int_equal(rig_live(r), 0);
	goes_on(r, 100, 3);
	assert_int_equal(rig_close(r), 0);
	r->logs[0] = 0;
	opens(r);
	assert_null(strstr(r->logs, "made anew"));
	assert_int_equal(rig_live(r), 10);
	rig_free(r);
}

static void of_two_that_were_used_apart_the_one_with_more_sessions_is_believed(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);

	r->opts.ndirs = 1;
	opens(r);
	goes_on(r, 100, 1);
	assert_int_equal(rig_close(r), 0);
	r->dirs[0] = "b";
	for (uint64_t i = 0; i < 2; i++) {
		opens(r);
		goes_on(r, 200 + 10 * i, 2);
		assert_int_equal(rig_close(r), 0);
	}
	r->dirs[0] = "a";
	r->opts.ndirs = 2;
	opens(r);
	has_only(r, on, 1);
	assert_null(rig_find(r, 100));
	assert_int_equal(rig_read(r, 200), 0);
	rig_free(r);
}

static void an_old_file_that_comes_back_over_its_successor_is_made_anew(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	uint64_t size = (uint64_t)tn_simdisk_size(r->disk, B_PATH);
	unsigned char *old = malloc(size);
	uint32_t file;

	/* The mount point was empty for a session; then the drive is mounted again. */
	assert_int_equal(tn_simdisk_peek(r->disk, B_PATH, 0, old, size), 0);
	assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	opens(r);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	assert_int_equal(tn_io_open(r->io, B_PATH, TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_allocate(r->io, file, 0, size), 0);
	assert_int_equal(tn_io_close(r->io, file), 0);
	assert_int_equal(tn_simdisk_poke(r->disk, B_PATH, 0, old, size), 0);
	opens(r);
	assert_non_null(strstr(r->logs, "the store was used without it"));
	has_only(r, on, 0);
	goes_on(r, 100, 3);
	assert_int_equal(rig_close(r), 0);
	/* Nor is anything of its earlier life found when all of its index is lost. */
	assert_int_equal(tn_simdisk_corrupt(r->disk, B_PATH, 0, 8, 5), 0);
	assert_int_equal(tn_simdisk_corrupt(r->disk, B_PATH, 65536, 8, 5), 0);
	r->opts.rebuild = true;
	opens(r);
	for (uint64_t n = 0; n < SAVED; n++)
		if (on[n] == 1)
			assert_null(rig_find(r, n));
	for (uint64_t n = 100; n < 110; n++)
		assert_int_equal(rig_read(r, n), 0);
	free(old);
	rig_free(r);
}

static void a_read_only_open_goes_without_an_empty_device_and_writes_nothing(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	uint64_t digest;

	assert_int_equal(tn_simdisk_truncate(r->disk, B_PATH, 0), 0);
	digest = tn_simdisk_digest(r->disk);
	r->opts.read_only = true;
	opens(r);
	has_only(r, on, 0);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(tn_simdisk_digest(r->disk), digest);
	rig_free(r);
}

static void a_repair_of_one_device_does_not_cost_another_its_blocks(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	struct tn_admin_store a;
	struct tn_admin_check c;
	uint64_t digest;

	tn_admin_store_init(&a);
	digest = tn_simdisk_digest(r->disk);
	r->opts.ndirs = 1;
	assert_int_equal(tn_store_admin_check(&r->opts, &a, false, &c), 0);
	assert_int_equal(c.blocks, SAVED / 2);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, true, &c), -ENODEV);
	assert_int_equal(tn_simdisk_digest(r->disk), digest);
	/* One that is lost for good is given as an empty directory. */
	r->opts.ndirs = 2;
	assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	assert_int_equal(tn_store_admin_check(&r->opts, &a, true, &c), 0);
	assert_int_equal(c.blocks, SAVED / 2);
	opens(r);
	has_only(r, on, 0);
	rig_free(r);
}

static void what_is_not_ours_is_never_taken_for_a_lost_device(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	static const uint64_t at[] = {0, 511, 4096, 100000, 327680, 500000};
	uint32_t file;
	unsigned char one = 1;

	assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		uint64_t digest;

		assert_int_equal(tn_io_open(r->io, B_PATH, TN_IO_CREATE, &file), 0);
		assert_int_equal(tn_io_allocate(r->io, file, 0, 512 << 10), 0);
		assert_int_equal(tn_io_close(r->io, file), 0);
		assert_int_equal(tn_simdisk_poke(r->disk, B_PATH, at[i], &one, 1), 0);
		digest = tn_simdisk_digest(r->disk);
		assert_int_equal(rig_open(r), -EUCLEAN);
		assert_non_null(strstr(tn_error_last()->text, "nothing of a store is in it, but it is not empty"));
		assert_int_equal(tn_simdisk_digest(r->disk), digest);
		assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	}
	opens(r);
	has_only(r, on, 0);
	rig_free(r);
}

static void an_open_that_fails_leaves_no_files(void **state)
{
	struct rig *r = two_devices(NULL, NULL);

	tn_simdisk_set_capacity(r->disk, 600 << 10); /* enough for the first index */
	assert_int_equal(rig_open(r), -ENOSPC);
	assert_int_equal(tn_simdisk_size(r->disk, RIG_PATH), -ENOENT);
	assert_int_equal(tn_simdisk_size(r->disk, B_PATH), -ENOENT);
	tn_simdisk_set_capacity(r->disk, UINT64_MAX);
	opens(r);
	goes_on(r, 0, 3);
	assert_int_equal(rig_close(r), 0);
	/* Nor does a lost device for which there is no free disk space. */
	assert_int_equal(tn_io_unlink(r->io, B_PATH), 0);
	tn_simdisk_set_capacity(r->disk, (uint64_t)tn_simdisk_size(r->disk, RIG_PATH) + (64 << 10));
	opens(r);
	assert_int_equal(tn_simdisk_size(r->disk, B_PATH), -ENOENT);
	assert_int_equal(rig_close(r), 0);
	rig_free(r);
}

/* ---- crashes ------------------------------------------------------------------------------------------------ */

struct crash {
	const uint32_t *on;
	bool busy;
	bool all; /* nothing of either device may be lost */
	uint64_t tried, whole;
};

static void crash_now(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct crash *c = arg;

	if (c->busy)
		return;
	c->busy = true;
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++) {
		struct tn_simdisk *clone;
		struct rig *r;
		uint32_t live;

		assert_int_equal(tn_simdisk_clone(disk, event, &clone), 0);
		tn_simdisk_crash(clone, (enum tn_simdisk_crash)mode, event);
		r = two_devices(tn_simdisk_io(clone), tn_simdisk_clock(clone));
		r->disk = clone;
		r->opts.entropy[0] = event + 7;
		opens(r);
		live = 0;
		for (uint64_t n = 0; n < SAVED; n++) {
			if (c->on[n] == 0 || c->all)
				assert_non_null(rig_find(r, n));
			live += c->on[n] == 1 && rig_find(r, n);
			if (rig_find(r, n))
				assert_int_equal(rig_read(r, n), 0);
		}
		/* The second device is what it was, or empty. */
		assert_true(live == 0 || live == SAVED / 2);
		c->tried++;
		c->whole += live > 0;
		assert_true(rig_save(r, 300) >= 0);
		assert_int_equal(rig_close(r), 0);
		opens(r);
		assert_int_equal(rig_read(r, 300), 0);
		rig_free(r);
	}
	c->busy = false;
}

static void after_a_crash_in_an_open_no_device_is_taken_for_one_that_missed_a_session(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	struct crash c = {.on = on, .all = true};

	tn_simdisk_on_event(r->disk, crash_now, &c);
	opens(r);
	assert_int_equal(rig_close(r), 0);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	assert_true(c.tried > 100 && c.whole == c.tried);
	rig_free(r);
}

static void a_crash_at_any_time_of_a_session_without_a_device_is_survived(void **state)
{
	uint32_t on[SAVED];
	struct rig *r = saved_store(on);
	struct crash c = {.on = on};

	r->opts.ndirs = 1;
	tn_simdisk_on_event(r->disk, crash_now, &c);
	opens(r);
	goes_on(r, 100, 1);
	assert_int_equal(rig_close(r), 0);
	assert_in_range(c.whole, 1, c.tried - 1);
	c.whole = 0;
	/* And of the next one, which makes it anew. */
	r->opts.ndirs = 2;
	opens(r);
	assert_int_equal(rig_close(r), 0);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	assert_int_equal(c.whole, 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_directory_costs_its_own_blocks_and_gets_a_new_device),
		cmocka_unit_test(a_device_that_is_offline_fails_only_flushes_that_need_it),
		cmocka_unit_test(each_device_can_be_opened_alone),
		cmocka_unit_test(a_device_that_missed_a_session_is_made_anew),
		cmocka_unit_test(of_two_that_were_used_apart_the_one_with_more_sessions_is_believed),
		cmocka_unit_test(an_old_file_that_comes_back_over_its_successor_is_made_anew),
		cmocka_unit_test(a_read_only_open_goes_without_an_empty_device_and_writes_nothing),
		cmocka_unit_test(a_repair_of_one_device_does_not_cost_another_its_blocks),
		cmocka_unit_test(what_is_not_ours_is_never_taken_for_a_lost_device),
		cmocka_unit_test(an_open_that_fails_leaves_no_files),
		cmocka_unit_test(after_a_crash_in_an_open_no_device_is_taken_for_one_that_missed_a_session),
		cmocka_unit_test(a_crash_at_any_time_of_a_session_without_a_device_is_survived),
	};

	return cmocka_run_group_tests_name("store-set", tests, NULL, NULL);
}
