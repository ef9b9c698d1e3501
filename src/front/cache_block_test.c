/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing that may block is called by the owner thread of a running cache, and when such a call hangs on whatever thread it
 * is made, what needs no disk goes on. The linker hands every call of the library that may block to this file first
 * (--wrap, tests/meson.build), which notes who makes it and can hold it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cache_rig.h"

/* ---- calls that may block ----------------------------------------------------------------------------------------- */

#define CALLS(X)                                                                                                            \
	X(fallocate64)                                                                                                      \
	X(ftruncate64)                                                                                                      \
	X(fsync)                                                                                                            \
	X(fdatasync)                                                                                                        \
	X(fstat64)                                                                                                          \
	X(statx)                                                                                                            \
	X(statvfs64)                                                                                                        \
	X(open64)                                                                                                           \
	X(fopen64)                                                                                                          \
	X(close)                                                                                                            \
	X(unlink)                                                                                                           \
	X(rename)                                                                                                           \
	X(mkdir)                                                                                                            \
	X(flock)                                                                                                            \
	X(fcntl64)                                                                                                          \
	X(preadv64)                                                                                                         \
	X(pwritev64)                                                                                                        \
	X(mmap64)                                                                                                           \
	X(munmap)                                                                                                           \
	X(madvise)                                                                                                          \
	X(nanosleep)                                                                                                        \
	X(pthread_create)                                                                                                   \
	X(pthread_join)                                                                                                     \
	X(log)

enum call {
#define X(name) CALL_##name,
	CALLS(X)
#undef X
	CALL_COUNT
};

static const char *const call_name[] = {
#define X(name) #name,
	CALLS(X)
#undef X
};

#define HOLD_NS (30 * RIG_SECOND) /* only a test that fails waits so long */

/* All shared. */
static uint32_t watching, by_owner[CALL_COUNT], held, held_to_the_end;
static uint32_t holding = CALL_COUNT; /* this one waits until it is another one's turn */
static uint32_t no_fallocate; /* or the errno it fails with */

static void enter(enum call call)
{
	char name[16] = "";

	prctl(PR_GET_NAME, name);
	if (__atomic_load_n(&watching, __ATOMIC_SEQ_CST) && strcmp(name, "tenuto-owner") == 0)
		__atomic_add_fetch(&by_owner[call], 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&holding, __ATOMIC_SEQ_CST) != (uint32_t)call)
		return;
	__atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
	for (uint64_t end = tn_test_now() + HOLD_NS; __atomic_load_n(&holding, __ATOMIC_SEQ_CST) == (uint32_t)call; usleep(1000))
		if (tn_test_now() > end) {
			__atomic_store_n(&held_to_the_end, 1, __ATOMIC_SEQ_CST);
			break;
		}
	__atomic_sub_fetch(&held, 1, __ATOMIC_SEQ_CST);
}

#define WRAP(type, name, parameters, arguments)                                                                            \
	type __real_##name parameters;                                                                                      \
	type __wrap_##name parameters;                                                                                      \
	type __wrap_##name parameters                                                                                       \
	{                                                                                                                   \
		enter(CALL_##name);                                                                                         \
		return __real_##name arguments;                                                                             \
	}

WRAP(int, ftruncate64, (int fd, off_t length), (fd, length))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, fstat64, (int fd, struct stat *st), (fd, st))
WRAP(int, statx, (int fd, const char *path, int flags, unsigned mask, struct statx *st), (fd, path, flags, mask, st))
WRAP(int, statvfs64, (const char *path, struct statvfs *st), (path, st))
WRAP(int, open64, (const char *path, int flags, int mode), (path, flags, mode))
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
WRAP(int, close, (int fd), (fd))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, flock, (int fd, int op), (fd, op))
WRAP(int, fcntl64, (int fd, int op, long arg), (fd, op, arg))
WRAP(ssize_t, preadv64, (int fd, const struct iovec *iov, int n, off_t at), (fd, iov, n, at))
WRAP(ssize_t, pwritev64, (int fd, const struct iovec *iov, int n, off_t at), (fd, iov, n, at))
WRAP(void *, mmap64, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))
WRAP(int, munmap, (void *p, size_t n), (p, n))
WRAP(int, madvise, (void *p, size_t n, int advice), (p, n, advice))
WRAP(int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
WRAP(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attr, void *(*f)(void *), void *arg),
     (thread, attr, f, arg))
WRAP(int, pthread_join, (pthread_t thread, void **result), (thread, result))

int __real_fallocate64(int fd, int mode, off_t offset, off_t length);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length)
{
	uint32_t err = __atomic_load_n(&no_fallocate, __ATOMIC_SEQ_CST);

	enter(CALL_fallocate64);
	if (!err)
		return __real_fallocate64(fd, mode, offset, length);
	errno = (int)err;
	return -1;
}

static void log_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	enter(CALL_log);
	if (getenv("TN_TEST_VERBOSE"))
		printf("# log %d %s: %s\n", level, where, text);
}

/* ---- the cache ------------------------------------------------------------------------------------------------------ */

#define DISK_BYTES (32ull << 20) /* 8 segments of 4 MiB, of about 30 blocks each */
#define HOST_BYTES (6ull << 20)	 /* 48 blocks */
#define HOT 8u			 /* blocks that stay in host memory */

static void set_up(struct rig *r, const char *engine)
{
	rig_init(r, DISK_BYTES, HOST_BYTES, 64);
	r->o.cache.io_engine = engine;
	r->o.cache.log = log_line;
	assert_int_equal(rig_open(r), 0);
	__atomic_store_n(&watching, 1, __ATOMIC_SEQ_CST);
}

static void tear_down(struct rig *r)
{
	__atomic_store_n(&watching, 0, __ATOMIC_SEQ_CST);
	rig_tear_down(r);
}

static void hold(enum call call)
{
	__atomic_store_n(&holding, call, __ATOMIC_SEQ_CST);
}

static void stop_holding(void)
{
	__atomic_store_n(&holding, CALL_COUNT, __ATOMIC_SEQ_CST);
}

static void save_some(struct rig *r, uint64_t first, uint32_t n)
{

	for (uint32_t i = 0; i < n; i += 8)
		rig_save(r->s, first + i, 8, 0);
}

/* ---- who calls --------------------------------------------------------------------------------------------------------- */

static void another_space(struct rig *r)
{
	/* Larger chunks than those that there are buffers for. */
	struct rig_space_opts o = {.model = "another", .head_dim = 768};
	struct rig_space s;

	assert_int_equal(rig_space_open(r, &o, &s), 0);
	assert_int_equal(tn_test_ended(tn_space_drop(s.space, tn_test_deadline())), 0);
	rig_space_close(&s);
}

static void work_hard(struct rig *r)
{
	save_some(r, 1, 400); /* more than both tiers hold */
	assert_int_equal(rig_flush(r), 0);
	another_space(r);
	for (uint64_t i = 1; i < 400; i += 8)
		if (rig_match(r->s, i, 8) == 8)
			rig_load(r->s, i, 8);
	__atomic_store_n(&no_fallocate, ENOSPC, __ATOMIC_SEQ_CST);
	save_some(r, 401, 64);
	__atomic_store_n(&no_fallocate, 0, __ATOMIC_SEQ_CST);
	rig_stats(r);
	assert_int_equal(rig_flush(r), 0);
}

static void the_owner_makes_no_call_that_may_block(void **state)
{
	static const char *const engines[] = {"io_uring", "posix"};
	uint32_t bad = 0;
	struct rig r;

	for (size_t e = 0; e < 2; e++) {
		set_up(&r, engines[e]);
		work_hard(&r);
		tear_down(&r);
		for (uint32_t i = 0; i < CALL_COUNT; i++) {
			if (by_owner[i])
				printf("# %s: the owner called %s %u times\n", engines[e], call_name[i], by_owner[i]);
			bad += by_owner[i];
			by_owner[i] = 0;
		}
	}
	assert_int_equal(bad, 0);
}

/* ---- what goes on meanwhile --------------------------------------------------------------------------------------------- */

static void wait_until_held(enum call call)
{
	for (uint64_t end = tn_test_deadline(); __atomic_load_n(&held, __ATOMIC_SEQ_CST) == 0; usleep(1000))
		if (tn_test_now() > end)
			fail_msg("%s was never called", call_name[call]);
}

/* Host hits and statistics, while the call is held all the time. */
static void must_serve(struct rig *r, enum call call, uint64_t first, uint32_t n)
{
	for (uint32_t i = 0; i < 5; i++) {
		assert_true(rig_stats(r).blocks >= n);
		assert_int_equal(rig_match(r->s, first, n), n);
		assert_int_equal(rig_load(r->s, first, n), n);
	}
	if (!__atomic_load_n(&held, __ATOMIC_SEQ_CST) || __atomic_load_n(&held_to_the_end, __ATOMIC_SEQ_CST))
		fail_msg("the cache waited for %s", call_name[call]);
}

/* From the first save on, the first call of this kind hangs. */
static void serve_while_held(const char *engine, enum call call, int fallocate_errno)
{
	struct rig r;

	held_to_the_end = 0;
	set_up(&r, engine);
	__atomic_store_n(&no_fallocate, (uint32_t)fallocate_errno, __ATOMIC_SEQ_CST);
	hold(call);
	save_some(&r, 1, HOT);
	wait_until_held(call);
	must_serve(&r, call, 1, HOT);
	stop_holding();
	__atomic_store_n(&no_fallocate, 0, __ATOMIC_SEQ_CST);
	assert_int_equal(rig_flush(&r), 0);
	tear_down(&r);
}

static void host_hits_go_on_while_space_is_reserved(void **state)
{
	serve_while_held("io_uring", CALL_fallocate64, 0);
	serve_while_held("posix", CALL_fallocate64, 0);
}

static void host_hits_go_on_while_a_file_without_reservation_grows(void **state)
{
	serve_while_held("io_uring", CALL_ftruncate64, EOPNOTSUPP);
	serve_while_held("posix", CALL_ftruncate64, EOPNOTSUPP);
}

static void host_hits_go_on_while_a_sync_hangs(void **state)
{
	serve_while_held("posix", CALL_fdatasync, 0);
}

static void host_hits_go_on_while_a_file_s_name_is_looked_for(void **state)
{
	serve_while_held("io_uring", CALL_fstat64, 0);
	serve_while_held("posix", CALL_fstat64, 0);
}

static void host_hits_go_on_while_a_log_line_hangs(void **state)
{
	serve_while_held("io_uring", CALL_log, ENOSPC); /* there is no room for the next segment */
	serve_while_held("posix", CALL_log, ENOSPC);
}

/* Nor does what was written before: whether a file has a name is asked beside the reservation, not behind it. */
static void a_flush_ends_while_space_is_reserved(void **state)
{
	static const char *const engines[] = {"io_uring", "posix"};
	struct rig r;

	for (size_t e = 0; e < 2; e++) {
		held_to_the_end = 0;
		set_up(&r, engines[e]);
		save_some(&r, 1, 24);
		assert_int_equal(rig_flush(&r), 0);
		hold(CALL_fallocate64);
		save_some(&r, 101, 16); /* some of them in the second segment, so that a third one is reserved */
		wait_until_held(CALL_fallocate64);
		assert_int_equal(rig_flush(&r), 0);
		must_serve(&r, CALL_fallocate64, 101, 16);
		stop_holding();
		tear_down(&r);
	}
}

/* What lies on disk alone cannot be had then: it is a miss at the deadline, and the rest goes on. */
static void a_load_ends_at_its_deadline_while_reads_hang(void **state)
{
	struct tn_load_opts lo;
	struct tn_load *load;
	struct rig r;

	held_to_the_end = 0;
	set_up(&r, "posix");
	save_some(&r, 1, HOT);
	rig_reopen(&r); /* host memory is empty */
	save_some(&r, 101, HOT);
	hold(CALL_preadv64);
	tn_load_opts_init(&lo);
	lo.deadline_ns = tn_test_now() + RIG_SECOND / 5;
	load = rig_load_begin(r.s, 1, 1, 700, &lo);
	wait_until_held(CALL_preadv64);
	assert_int_equal(rig_load_wait(r.s, load, 0), 0); /* blocks that are good */
	must_serve(&r, CALL_preadv64, 101, HOT);
	stop_holding();
	rig_load_end(r.s, load);
	tear_down(&r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_owner_makes_no_call_that_may_block),
		RIG_FILE_TEST(host_hits_go_on_while_space_is_reserved),
		RIG_FILE_TEST(host_hits_go_on_while_a_file_without_reservation_grows),
		RIG_FILE_TEST(host_hits_go_on_while_a_sync_hangs),
		RIG_FILE_TEST(host_hits_go_on_while_a_file_s_name_is_looked_for),
		RIG_FILE_TEST(host_hits_go_on_while_a_log_line_hangs),
		RIG_FILE_TEST(a_flush_ends_while_space_is_reserved),
		RIG_FILE_TEST(a_load_ends_at_its_deadline_while_reads_hang),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
