/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated disk promises: who relies on it tests crashes of the store (store_crash_test.c). */
#include "simdisk.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "tn_test.h"

#define PAGE 4096u
#define SECTOR 512u

struct fixture {
	struct tn_simdisk *disk;
	struct tn_io *io;
	uint8_t *mem; /* 64 pages, aligned */
};

static struct fixture fixture_new(uint64_t seed, struct tn_simdisk_opts o)
{
	struct fixture f = {0};

	o.seed = seed;
	assert_int_equal(tn_simdisk_create(&o, &f.disk), 0);
	f.io = tn_simdisk_io(f.disk);
	f.mem = aligned_alloc(PAGE, 64 * PAGE);
	assert_non_null(f.mem);
	return f;
}

static void fixture_free(struct fixture *f)
{
	tn_simdisk_destroy(f->disk);
	free(f->mem);
}

static uint32_t open_file(struct fixture *f, const char *path, unsigned flags)
{
	uint32_t file = UINT32_MAX;

	assert_int_equal(tn_io_open(f->io, path, flags, &file), 0);
	return file;
}

static struct tn_io_req request(uint8_t op, uint32_t file, uint64_t offset, struct iovec *iov)
{
	return (struct tn_io_req){
		.op = op,
		.file = file,
		.offset = offset,
		.length = iov ? (uint32_t)iov->iov_len : 0,
		.iov = iov,
		.iov_count = iov ? 1 : 0,
	};
}

/* Submits one request and polls until it is back. */
static int transfer(struct fixture *f, uint8_t op, uint32_t file, uint64_t offset, void *mem, size_t len)
{
	struct iovec iov = {.iov_base = mem, .iov_len = len};
	struct tn_io_req r = request(op, file, offset, op == TN_IO_SYNC ? NULL : &iov), *p = &r, *done = NULL;

	assert_int_equal(tn_io_submit(f->io, &p, 1), 1);
	while (tn_io_poll(f->io, &done, 1, UINT64_MAX) == 0)
		;
	assert_ptr_equal(done, &r);
	return r.status;
}

static int sync_file(struct fixture *f, uint32_t file)
{
	return transfer(f, TN_IO_SYNC, file, 0, NULL, 0);
}

static int write_byte(struct fixture *f, uint32_t file, uint64_t offset, size_t len, uint8_t byte)
{
	memset(f->mem, byte, len);
	return transfer(f, TN_IO_WRITE, file, offset, f->mem, len);
}

static int byte_at(struct fixture *f, const char *path, uint64_t offset)
{
	uint8_t b = 0;

	assert_int_equal(tn_simdisk_peek(f->disk, path, offset, &b, 1), 0);
	return b;
}

static void bytes_written_are_read_back_and_unwritten_ones_are_zero(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "d/f", TN_IO_CREATE);

	assert_int_equal(tn_io_allocate(f.io, file, 0, 16 * PAGE), 0);
	assert_int_equal(write_byte(&f, file, 3 * PAGE, 2 * PAGE, 7), 0);
	assert_int_equal(transfer(&f, TN_IO_READ, file, 2 * PAGE, f.mem, 4 * PAGE), 0);
	for (uint32_t i = 0; i < 4 * PAGE; i++)
		assert_int_equal(f.mem[i], i >= PAGE && i < 3 * PAGE ? 7 : 0);
	fixture_free(&f);
}

static void a_read_beyond_the_end_is_an_error_that_says_how_much_came(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE);
	struct iovec iov = {.iov_base = f.mem, .iov_len = 2 * PAGE};
	struct tn_io_req r = request(TN_IO_READ, file, 0, &iov), *p = &r, *done;

	assert_int_equal(write_byte(&f, file, 0, PAGE, 1), 0);
	assert_int_equal(tn_io_submit(f.io, &p, 1), 1);
	assert_int_equal(tn_io_poll(f.io, &done, 1, UINT64_MAX), 1);
	assert_int_equal(r.status, -EIO);
	assert_int_equal(r.transferred, PAGE);
	fixture_free(&f);
}

static void a_write_without_a_sync_is_dropped_or_kept_as_the_crash_says(void **state)
{
	for (int keep = 0; keep < 2; keep++) {
		struct fixture f = fixture_new(2, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);

		assert_int_equal(write_byte(&f, file, 0, PAGE, 1), 0);
		assert_int_equal(sync_file(&f, file), 0);
		assert_int_equal(write_byte(&f, file, 0, PAGE, 2), 0);
		tn_simdisk_crash(f.disk, keep ? TN_SIMDISK_KEEP : TN_SIMDISK_DROP, 1);
		assert_int_equal(byte_at(&f, "f", 100), keep ? 2 : 1);
		fixture_free(&f);
	}
}

static void a_synced_write_survives_every_kind_of_crash(void **state)
{
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++) {
		for (uint64_t seed = 0; seed < 20; seed++) {
			struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){0});
			uint32_t file = open_file(&f, "f", TN_IO_CREATE);

			assert_int_equal(write_byte(&f, file, 0, 4 * PAGE, 9), 0);
			assert_int_equal(sync_file(&f, file), 0);
			assert_int_equal(write_byte(&f, file, 8 * PAGE, 4 * PAGE, 5), 0);
			tn_simdisk_crash(f.disk, (enum tn_simdisk_crash)mode, seed);
			for (uint64_t i = 0; i < 4 * PAGE; i += SECTOR)
				assert_int_equal(byte_at(&f, "f", i), 9);
			fixture_free(&f);
		}
	}
}

static void a_sync_does_not_cover_what_poll_had_not_returned(void **state)
{
	int lost = 0;

	/* Write and sync in flight together: whichever completes first, the write stays volatile. */
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		struct iovec iov = {.iov_base = f.mem, .iov_len = PAGE};
		struct tn_io_req w = request(TN_IO_WRITE, file, 0, &iov), s = request(TN_IO_SYNC, file, 0, NULL);
		struct tn_io_req *both[2] = {&w, &s}, *done[2];
		unsigned n = 0;

		assert_int_equal(tn_io_allocate(f.io, file, 0, PAGE), 0);
		assert_int_equal(sync_file(&f, file), 0);
		memset(f.mem, 3, PAGE);
		assert_int_equal(tn_io_submit(f.io, both, 2), 2);
		while (n < 2)
			n += tn_io_poll(f.io, done + n, 2 - n, UINT64_MAX);
		assert_int_equal(w.status | s.status, 0);
		tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, seed);
		lost += byte_at(&f, "f", 0) == 0;
		fixture_free(&f);
	}
	assert_int_equal(lost, 50);
}

static void torn_writes_tear_at_sectors_and_nowhere_else(void **state)
{
	int mixed = 0;

	for (uint64_t seed = 0; seed < 100; seed++) {
		struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		uint8_t buf[8 * PAGE];
		int old = 0;

		assert_int_equal(write_byte(&f, file, 0, 8 * PAGE, 1), 0);
		assert_int_equal(sync_file(&f, file), 0);
		assert_int_equal(write_byte(&f, file, 0, 8 * PAGE, 2), 0);
		tn_simdisk_crash(f.disk, TN_SIMDISK_TEAR, seed);
		assert_int_equal(tn_simdisk_peek(f.disk, "f", 0, buf, sizeof(buf)), 0);
		for (uint32_t s = 0; s < sizeof(buf); s += SECTOR) {
			assert_true(buf[s] == 1 || buf[s] == 2);
			old += buf[s] == 1;
			for (uint32_t i = 1; i < SECTOR; i++)
				assert_int_equal(buf[s + i], buf[s]);
		}
		mixed += old > 0 && old < (int)(sizeof(buf) / SECTOR);
		fixture_free(&f);
	}
	assert_true(mixed > 20);
}

static void volatile_writes_survive_in_any_subset_whatever_their_order(void **state)
{
	bool only_second = false, only_first = false, both = false, none = false;

	for (uint64_t seed = 0; seed < 100; seed++) {
		struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		int a, b;

		assert_int_equal(tn_io_allocate(f.io, file, 0, 2 * PAGE), 0);
		assert_int_equal(sync_file(&f, file), 0);
		assert_int_equal(write_byte(&f, file, 0, PAGE, 1), 0);
		assert_int_equal(write_byte(&f, file, PAGE, PAGE, 1), 0);
		tn_simdisk_crash(f.disk, TN_SIMDISK_SUBSET, seed);
		a = byte_at(&f, "f", 0);
		b = byte_at(&f, "f", PAGE);
		only_first |= a && !b;
		only_second |= !a && b;
		both |= a && b;
		none |= !a && !b;
		fixture_free(&f);
	}
	assert_true(only_first && only_second && both && none);
}

static void the_adversarial_crashes_choose_by_age(void **state)
{
	static const struct {
		enum tn_simdisk_crash mode;
		int a, b, c;
	} rows[] = {
		{TN_SIMDISK_LAST_ONLY, 0, 0, 1},
		{TN_SIMDISK_LAST_LOST, 1, 1, 0},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
		uint32_t z = open_file(&f, "z", TN_IO_CREATE), y = open_file(&f, "y", TN_IO_CREATE);

		assert_int_equal(tn_io_allocate(f.io, z, 0, 2 * PAGE), 0);
		assert_int_equal(tn_io_allocate(f.io, y, 0, PAGE), 0);
		assert_int_equal(sync_file(&f, z) | sync_file(&f, y), 0);
		assert_int_equal(write_byte(&f, z, 0, PAGE, 1), 0);
		assert_int_equal(write_byte(&f, y, 0, PAGE, 1), 0);
		assert_int_equal(write_byte(&f, z, PAGE, PAGE, 1), 0);
		tn_simdisk_crash(f.disk, rows[i].mode, 1);
		assert_int_equal(byte_at(&f, "z", 0), rows[i].a);
		assert_int_equal(byte_at(&f, "y", 0), rows[i].b);
		assert_int_equal(byte_at(&f, "z", PAGE), rows[i].c);
		fixture_free(&f);
	}
}

static void a_write_in_flight_at_the_crash_may_have_happened(void **state)
{
	for (int keep = 0; keep < 2; keep++) {
		struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		struct iovec iov = {.iov_base = f.mem, .iov_len = PAGE};
		struct tn_io_req w = request(TN_IO_WRITE, file, 0, &iov), *p = &w, *done;

		assert_int_equal(tn_io_allocate(f.io, file, 0, PAGE), 0);
		assert_int_equal(sync_file(&f, file), 0);
		memset(f.mem, 4, PAGE);
		assert_int_equal(tn_io_submit(f.io, &p, 1), 1);
		tn_simdisk_crash(f.disk, keep ? TN_SIMDISK_INFLIGHT_ONLY : TN_SIMDISK_DROP, 1);
		memset(f.mem, 5, PAGE); /* the request is gone, its memory free */
		assert_int_equal(byte_at(&f, "f", 0), keep ? 4 : 0);
		assert_int_equal(tn_io_poll(f.io, &done, 1, 1000000000), 0);
		fixture_free(&f);
	}
}

static void creation_is_durable_and_an_unsynced_extension_is_not(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "d/f", TN_IO_CREATE | TN_IO_EXCLUSIVE);

	assert_int_equal(tn_io_allocate(f.io, file, 0, PAGE), 0);
	assert_int_equal(sync_file(&f, file), 0);
	assert_int_equal(tn_io_allocate(f.io, file, PAGE, 9 * PAGE), 0);
	assert_int_equal(tn_simdisk_size(f.disk, "d/f"), 10 * PAGE);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_simdisk_size(f.disk, "d/f"), PAGE);
	/* A removal comes back, until the directory is made durable by the next creation. */
	assert_int_equal(tn_io_unlink(f.io, "d/f"), 0);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_simdisk_size(f.disk, "d/f"), PAGE);
	assert_int_equal(tn_io_unlink(f.io, "d/f"), 0);
	open_file(&f, "d/g", TN_IO_CREATE);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_simdisk_size(f.disk, "d/f"), -ENOENT);
	assert_int_equal(tn_simdisk_size(f.disk, "d/g"), 0);
	fixture_free(&f);
}

static void a_lock_holds_until_close_or_crash(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t a = open_file(&f, "f", TN_IO_CREATE | TN_IO_LOCK), b;

	assert_int_equal(tn_io_open(f.io, "f", TN_IO_LOCK, &b), -EBUSY);
	assert_int_equal(tn_io_open(f.io, "f", TN_IO_READ_ONLY, &b), 0);
	assert_int_equal(tn_io_close(f.io, a), 0);
	a = open_file(&f, "f", TN_IO_LOCK);
	assert_int_equal(tn_io_open(f.io, "f", TN_IO_LOCK, &b), -EBUSY);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_io_close(f.io, a), -EBADF);
	open_file(&f, "f", TN_IO_LOCK);
	fixture_free(&f);
}

static void a_full_disk_refuses_and_leaves_the_file_as_it_was(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){.capacity_bytes = 8 * PAGE});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE);

	assert_int_equal(tn_io_allocate(f.io, file, 0, 6 * PAGE), 0);
	assert_int_equal(tn_io_allocate(f.io, file, 6 * PAGE, 3 * PAGE), -ENOSPC);
	assert_int_equal(tn_simdisk_size(f.disk, "f"), 6 * PAGE);
	assert_int_equal(write_byte(&f, file, 6 * PAGE, 3 * PAGE, 1), -ENOSPC);
	assert_int_equal(write_byte(&f, file, 6 * PAGE, 2 * PAGE, 1), 0);
	fixture_free(&f);
}

static void after_power_off_nothing_reaches_the_medium(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE);
	uint64_t digest;

	assert_int_equal(write_byte(&f, file, 0, PAGE, 1), 0);
	assert_int_equal(sync_file(&f, file), 0);
	digest = tn_simdisk_digest(f.disk);
	tn_simdisk_power_off_at(f.disk, tn_simdisk_events(f.disk) + 1); /* the submit of the next write */
	assert_int_equal(write_byte(&f, file, 0, PAGE, 2), -ENODEV);
	assert_true(tn_simdisk_is_off(f.disk));
	assert_int_equal(sync_file(&f, file), -ENODEV);
	assert_int_equal(transfer(&f, TN_IO_READ, file, 0, f.mem, PAGE), -ENODEV);
	assert_int_equal(tn_io_allocate(f.io, file, 0, 9 * PAGE), -ENODEV);
	assert_int_equal(tn_io_close(f.io, file), 0);
	assert_int_equal(tn_io_open(f.io, "f", 0, &file), -ENODEV);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_simdisk_digest(f.disk), digest);
	file = open_file(&f, "f", 0);
	assert_int_equal(transfer(&f, TN_IO_READ, file, 0, f.mem, PAGE), 0);
	assert_int_equal(f.mem[0], 1);
	fixture_free(&f);
}

static void a_clone_crashes_alone_and_shares_nothing_that_changes(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE | TN_IO_LOCK);
	struct tn_simdisk *clone;
	uint64_t digest;
	uint8_t b;

	assert_int_equal(write_byte(&f, file, 0, 300 * SECTOR - 300 * SECTOR % PAGE, 1), 0);
	assert_int_equal(sync_file(&f, file), 0);
	assert_int_equal(write_byte(&f, file, 0, 2 * PAGE, 2), 0);
	assert_int_equal(tn_simdisk_clone(f.disk, 7, &clone), 0);
	digest = tn_simdisk_digest(f.disk);
	assert_int_equal(tn_simdisk_digest(clone), digest);
	tn_simdisk_crash(clone, TN_SIMDISK_KEEP, 1);
	assert_int_equal(tn_simdisk_peek(clone, "f", 0, &b, 1), 0);
	assert_int_equal(b, 2);
	assert_int_equal(tn_simdisk_digest(f.disk), digest);
	assert_int_equal(tn_io_open(tn_simdisk_io(clone), "f", TN_IO_LOCK, &file), 0);
	assert_int_equal(tn_simdisk_corrupt(clone, "f", 0, PAGE, 3), 0);
	assert_int_equal(byte_at(&f, "f", 0), 2);
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(byte_at(&f, "f", 0), 1);
	tn_simdisk_destroy(clone);
	fixture_free(&f);
}

static void faults_hit_the_requests_they_name(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t a = open_file(&f, "a/f", TN_IO_CREATE), b = open_file(&f, "b/f", TN_IO_CREATE);
	const struct tn_simdisk_fault faults[] = {
		{.kind = TN_SIMDISK_EIO, .path = "a/", .op = TN_IO_WRITE, .from = 1, .count = 1},
		{.kind = TN_SIMDISK_SYNC_LOST, .path = "b/", .op = TN_IO_SYNC, .count = 1},
	};
	uint64_t before;

	assert_int_equal(tn_simdisk_set_faults(f.disk, faults, 2), 0);
	assert_int_equal(write_byte(&f, a, 0, PAGE, 1), 0);
	assert_int_equal(write_byte(&f, b, 0, PAGE, 1), 0);
	assert_int_equal(write_byte(&f, a, 0, PAGE, 2), -EIO);
	assert_int_equal(write_byte(&f, a, 0, PAGE, 3), 0);
	assert_int_equal(sync_file(&f, a), 0);
	assert_int_equal(sync_file(&f, b), -EIO);
	assert_int_equal(sync_file(&f, b), 0); /* says nothing of what the failed one gave up */
	tn_simdisk_crash(f.disk, TN_SIMDISK_DROP, 1);
	assert_int_equal(byte_at(&f, "a/f", 0), 3);
	assert_int_equal(byte_at(&f, "b/f", 0), 0);

	a = open_file(&f, "a/f", 0);
	assert_int_equal(tn_simdisk_bad_range(f.disk, "a/f", 100, 1), 0);
	assert_int_equal(transfer(&f, TN_IO_READ, a, 0, f.mem, PAGE), -EIO);
	assert_int_equal(tn_simdisk_bad_range(f.disk, "a/f", 0, 0), 0);
	assert_int_equal(tn_simdisk_set_faults(f.disk,
					       &(struct tn_simdisk_fault){.kind = TN_SIMDISK_SLOW,
									  .op = TN_IO_READ,
									  .count = 1,
									  .delay_ns = 5000000000},
					       1),
			 0);
	before = tn_now_ns(tn_simdisk_clock(f.disk));
	assert_int_equal(transfer(&f, TN_IO_READ, a, 0, f.mem, PAGE), 0);
	assert_true(tn_now_ns(tn_simdisk_clock(f.disk)) - before >= 5000000000);
	fixture_free(&f);
}

static void a_wait_advances_the_clock_instead_of_sleeping(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	const struct tn_clock *clock = tn_simdisk_clock(f.disk);
	uint64_t t = tn_now_ns(clock);
	struct tn_io_req *done;

	assert_int_equal(tn_io_poll(f.io, &done, 1, 3600000000000u), 0);
	assert_true(tn_now_ns(clock) - t >= 3600000000000u);
	t = tn_now_ns(clock);
	tn_io_wake(f.io);
	assert_int_equal(tn_io_poll(f.io, &done, 1, UINT64_MAX), 0);
	assert_true(tn_now_ns(clock) - t < 1000000);
	fixture_free(&f);
}

static void requests_against_the_rules_are_refused_one_by_one(void **state)
{
	struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE), ro = open_file(&f, "f", TN_IO_READ_ONLY);

	assert_int_equal(transfer(&f, TN_IO_WRITE, file, 100, f.mem, PAGE), -EINVAL);
	assert_int_equal(transfer(&f, TN_IO_WRITE, file, 0, f.mem, 100), -EINVAL);
	assert_int_equal(transfer(&f, TN_IO_WRITE, file, 0, f.mem + 64, PAGE), -EINVAL);
	assert_int_equal(transfer(&f, TN_IO_WRITE, ro, 0, f.mem, PAGE), -EBADF);
	assert_int_equal(transfer(&f, TN_IO_WRITE, 63, 0, f.mem, PAGE), -EBADF);
	assert_int_equal(transfer(&f, 17, file, 0, f.mem, PAGE), -EINVAL);
	assert_int_equal(transfer(&f, TN_IO_WRITE, file, 0, f.mem, PAGE), 0);
	fixture_free(&f);
}

static void a_cancelled_write_completes_once_and_in_whole_sectors(void **state)
{
	int cancelled = 0;

	for (uint64_t seed = 0; seed < 40; seed++) {
		struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		struct iovec iov = {.iov_base = f.mem, .iov_len = PAGE};
		struct tn_io_req w = request(TN_IO_WRITE, file, 0, &iov), *p = &w, *done;

		assert_int_equal(write_byte(&f, file, 0, PAGE, 1), 0);
		memset(f.mem, 2, PAGE);
		assert_int_equal(tn_io_submit(f.io, &p, 1), 1);
		assert_int_equal(tn_io_cancel(f.io, &w), 0);
		assert_int_equal(tn_io_close(f.io, file), -EBUSY);
		assert_int_equal(tn_io_poll(f.io, &done, 1, UINT64_MAX), 1);
		assert_int_equal(tn_io_poll(f.io, &done, 1, 1000000000), 0);
		assert_true(w.status == 0 || w.status == -ECANCELED);
		cancelled += w.status != 0;
		for (uint32_t i = 0; i < PAGE; i++)
			assert_int_equal(byte_at(&f, "f", i), byte_at(&f, "f", i - i % SECTOR));
		if (w.status == 0)
			assert_int_equal(byte_at(&f, "f", PAGE - 1), 2);
		fixture_free(&f);
	}
	assert_true(cancelled > 5 && cancelled < 35);
}

static void memory_changed_under_a_write_is_caught(void **state)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct fixture f = fixture_new(1, (struct tn_simdisk_opts){0});
		uint32_t file = open_file(&f, "f", TN_IO_CREATE);
		struct iovec iov = {.iov_base = f.mem, .iov_len = PAGE};
		struct tn_io_req w = request(TN_IO_WRITE, file, 0, &iov), *p = &w, *done;

		signal(SIGABRT, SIG_DFL);
		fclose(stderr);
		tn_io_submit(f.io, &p, 1);
		f.mem[77] ^= 1;
		tn_io_poll(f.io, &done, 1, UINT64_MAX);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* Some hundred random requests, polls and a crash; what happened, in one number. */
static uint64_t random_run(uint64_t seed)
{
	struct fixture f = fixture_new(seed, (struct tn_simdisk_opts){.submit_short_percent = 20});
	uint32_t file = open_file(&f, "f", TN_IO_CREATE);
	struct tn_io_req reqs[32], *done[32];
	struct iovec iov[32];
	bool busy[32] = {false};
	struct tn_rng rng;
	uint64_t sum;

	tn_rng_seed(&rng, seed ^ 1);
	memset(f.mem, 0, 64 * PAGE);
	for (int step = 0; step < 600; step++) {
		uint32_t i = tn_rng_below(&rng, 32);
		unsigned n = tn_io_poll(f.io, done, tn_rng_below(&rng, 8), tn_rng_below(&rng, 2) * 10000);

		for (unsigned k = 0; k < n; k++)
			busy[done[k] - reqs] = false;
		if (!busy[i]) {
			struct tn_io_req *p = &reqs[i];

			iov[i] = (struct iovec){.iov_base = f.mem + i * 2 * PAGE, .iov_len = 2 * PAGE};
			memset(iov[i].iov_base, step, 2 * PAGE);
			reqs[i] = request(tn_rng_below(&rng, 4) ? TN_IO_WRITE : TN_IO_SYNC, file,
					  tn_rng_below(&rng, 100) * PAGE, &iov[i]);
			busy[i] = tn_io_submit(f.io, &p, 1) == 1;
		}
	}
	tn_simdisk_crash(f.disk, TN_SIMDISK_TEAR, seed);
	sum = tn_simdisk_history(f.disk) ^ tn_simdisk_digest(f.disk);
	fixture_free(&f);
	return sum;
}

static void the_same_seed_gives_the_same_run_bit_for_bit(void **state)
{
	uint64_t seed = tn_test_seed();

	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(random_run(seed + i), random_run(seed + i));
	assert_int_not_equal(random_run(seed), random_run(seed + 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_written_are_read_back_and_unwritten_ones_are_zero),
		cmocka_unit_test(a_read_beyond_the_end_is_an_error_that_says_how_much_came),
		cmocka_unit_test(a_write_without_a_sync_is_dropped_or_kept_as_the_crash_says),
		cmocka_unit_test(a_synced_write_survives_every_kind_of_crash),
		cmocka_unit_test(a_sync_does_not_cover_what_poll_had_not_returned),
		cmocka_unit_test(torn_writes_tear_at_sectors_and_nowhere_else),
		cmocka_unit_test(volatile_writes_survive_in_any_subset_whatever_their_order),
		cmocka_unit_test(the_adversarial_crashes_choose_by_age),
		cmocka_unit_test(a_write_in_flight_at_the_crash_may_have_happened),
		cmocka_unit_test(creation_is_durable_and_an_unsynced_extension_is_not),
		cmocka_unit_test(a_lock_holds_until_close_or_crash),
		cmocka_unit_test(a_full_disk_refuses_and_leaves_the_file_as_it_was),
		cmocka_unit_test(after_power_off_nothing_reaches_the_medium),
		cmocka_unit_test(a_clone_crashes_alone_and_shares_nothing_that_changes),
		cmocka_unit_test(faults_hit_the_requests_they_name),
		cmocka_unit_test(a_wait_advances_the_clock_instead_of_sleeping),
		cmocka_unit_test(requests_against_the_rules_are_refused_one_by_one),
		cmocka_unit_test(a_cancelled_write_completes_once_and_in_whole_sectors),
		cmocka_unit_test(memory_changed_under_a_write_is_caught),
		cmocka_unit_test(the_same_seed_gives_the_same_run_bit_for_bit),
	};

	return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
