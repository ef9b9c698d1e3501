/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing an engine: options, and what happens where the kernel forbids io_uring. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "base/alloc_rig.h"
#include "ioengine/engine.h"
#include "tn_test.h"
#include "tn_test_seccomp.h"

static struct tn_ioengine_opts defaults(void)
{
	return (struct tn_ioengine_opts){.alloc = &tn_alloc_system, .clock = &tn_clock_system};
}

static void options_out_of_range_are_refused_by_name(void **state)
{
	static const struct {
		uint32_t kind, depth, threads;
		const char *named;
	} bad[] = {{0, 3, 0, "depth 3"}, {0, 8192, 0, "depth 8192"}, {0, 0, 65, "threads 65"}, {7, 0, 0, "kind 7"}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct tn_ioengine_opts o = defaults();
		struct tn_io *io;

		o.kind = bad[i].kind;
		o.depth = bad[i].depth;
		o.threads = bad[i].threads;
		assert_int_equal(tn_ioengine_create(&o, &io), -EINVAL);
		assert_non_null(strstr(tn_error_last()->text, bad[i].named));
	}
}

static void a_failed_allocation_fails_the_creation_and_leaks_nothing(void **state)
{
	for (uint32_t kind = TN_IOENGINE_URING; kind <= TN_IOENGINE_POSIX; kind++) {
		struct tn_ioengine_opts o = defaults();
		struct tn_alloc_counter c;
		struct tn_io *io;

		tn_alloc_counter_init(&c);
		c.fail_after = 0;
		o.alloc = &c.alloc;
		o.kind = kind;
		assert_int_equal(tn_ioengine_create(&o, &io), -ENOMEM);
		assert_int_equal(c.live_bytes, 0);
	}
}

/* A path may become a FIFO between a look at it and its opening. */
static void a_fifo_is_refused_and_not_waited_for(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "/var/tmp/tn-ioengine-fifo-%d", (int)getpid());
	assert_int_equal(mkfifo(path, 0600), 0);
	for (uint32_t kind = TN_IOENGINE_AUTO; kind <= TN_IOENGINE_POSIX; kind++) {
		struct tn_ioengine_opts o = defaults();
		struct tn_io *io;
		uint32_t file;

		o.kind = kind;
		assert_int_equal(tn_ioengine_create(&o, &io), 0);
		assert_int_equal(tn_io_open(io, path, TN_IO_READ_ONLY, &file), -EINVAL);
		assert_int_equal(tn_io_open(io, path, TN_IO_CREATE | TN_IO_BUFFERED, &file), -EINVAL);
		tn_io_destroy(io);
	}
	unlink(path);
}

/* ---- where the kernel forbids io_uring -------------------------------------------------------------------- */

static int choose_where_forbidden(void *arg)
{
	const unsigned *calls = arg;
	struct tn_ioengine_opts o = defaults();
	struct tn_io *io;
	int chosen;

	if (tn_test_forbid(*calls, EPERM))
		return TN_TEST_SKIP;
	o.kind = TN_IOENGINE_URING;
	if (tn_ioengine_create(&o, &io) >= 0 || !strstr(tn_error_last()->text, "io_uring"))
		return 1;
	o.kind = TN_IOENGINE_AUTO;
	if (tn_ioengine_create(&o, &io))
		return 2;
	chosen = strcmp(io->ops->name, "posix") ? 3 : 0;
	tn_io_destroy(io);
	return chosen;
}

static void where_the_kernel_forbids_io_uring_threads_do_it(void **state)
{
	static unsigned calls[] = {TN_FORBID_SETUP, TN_FORBID_ENTER, TN_FORBID_REGISTER, TN_FORBID_ENTER | TN_FORBID_REGISTER};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		int rc = tn_test_in_child(choose_where_forbidden, &calls[i]);

		if (rc == TN_TEST_SKIP)
			tn_test_skip("no seccomp");
		assert_int_equal(rc, 0);
	}
}

/* ---- a sandbox that begins in the middle of I/O ----------------------------------------------------------- */

#define REQUESTS 32u
#define REQUEST_BYTES (256u << 10)

struct sandbox {
	unsigned calls;
	int error;
	unsigned without; /* features of io_uring */
	bool poll_first; /* nothing is submitted between the sandbox and the poll */
};

struct bench {
	struct tn_io *io;
	uint32_t file;
	unsigned char *memory;
	struct iovec iov[2 * REQUESTS + 1];
	struct tn_io_req req[2 * REQUESTS + 1];
};

static void make_request(struct bench *b, unsigned i, enum tn_io_op op, uint64_t offset)
{
	b->iov[i] = (struct iovec){b->memory + (size_t)i * REQUEST_BYTES, REQUEST_BYTES};
	b->req[i] = (struct tn_io_req){.op = (uint8_t)op, .file = b->file, .offset = offset,
				       .status = 1};
	if (op == TN_IO_SYNC)
		return;
	b->req[i].length = REQUEST_BYTES;
	b->req[i].iov_count = 1;
	b->req[i].iov = &b->iov[i];
}

/* Submits requests [from, to): 0, or 1 if they are not taken. */
static int submit(struct bench *b, unsigned from, unsigned to)
{
	struct tn_io_req *list[2 * REQUESTS + 1];

	for (unsigned i = from; i < to; i++)
		list[i - from] = &b->req[i];
	return tn_io_submit(b->io, list, to - from) != to - from;
}

/* Polls until n are back. */
static void collect(struct bench *b, unsigned n)
{
	struct tn_io_req *done[8];

	while (n > 0)
		n -= tn_io_poll(b->io, done, 8, 1000000000u);
}

/* 0, or the number of the line whose check failed. */
static int check_all(struct bench *b)
{
	for (unsigned i = 0; i < REQUESTS; i++) {
		struct tn_io_req *r = &b->req[i];

		if (r->status == -ECANCELED)
			continue;
		if (r->op == TN_IO_SYNC ? r->status != 0 && r->status != -EIO : r->status != 0)
			return __LINE__ % 256;
		if (r->op == TN_IO_READ)
			for (unsigned k = 0; k < REQUEST_BYTES; k++)
				if (b->memory[(size_t)i * REQUEST_BYTES + k] != (unsigned char)(r->offset / REQUEST_BYTES + 1))
					return __LINE__ % 256;
	}
	return 0;
}

static void *wake_soon(void *arg)
{
	usleep(20000);
	tn_io_wake(arg);
	return NULL;
}

/* Afterwards the engine works as before: files, writes, syncs, waking, destroying it. */
static int go_on(struct bench *b)
{
	struct tn_io_req *done[1];
	pthread_t thread;

	for (unsigned i = 0; i < REQUESTS; i++) {
		make_request(b, i, TN_IO_WRITE, (uint64_t)i * REQUEST_BYTES);
		memset(b->iov[i].iov_base, (int)i + 101, REQUEST_BYTES);
	}
	if (submit(b, 0, REQUESTS))
		return 11;
	collect(b, REQUESTS);
	make_request(b, 2 * REQUESTS, TN_IO_SYNC, 0);
	if (check_all(b) || submit(b, 2 * REQUESTS, 2 * REQUESTS + 1))
		return 12;
	collect(b, 1);
	if (b->req[2 * REQUESTS].status)
		return 13;
	if (tn_io_cancel(b->io, &b->req[0]) != -ENOENT)
		return 14;
	if (pthread_create(&thread, NULL, wake_soon, b->io))
		return 15;
	if (tn_io_poll(b->io, done, 1, UINT64_MAX))
		return 16;
	pthread_join(thread, NULL);
	return tn_io_close(b->io, b->file) ? 17 : 0;
}

static int begin_in_the_middle(void *arg)
{
	const struct sandbox *s = arg;
	struct tn_ioengine_opts o = defaults();
	struct bench *b = calloc(1, sizeof(*b));
	char path[64];
	int rc;

	o.depth = 128;
	o.threads = 4;
	b->memory = aligned_alloc(4096, (size_t)(2 * REQUESTS + 1) * REQUEST_BYTES);
	snprintf(path, sizeof(path), "/var/tmp/tn-sandbox-%d", (int)getpid());
	if (tn_ioengine_uring_create(&o, s->without, &b->io))
		return TN_TEST_SKIP;
	if (tn_io_open(b->io, path, TN_IO_CREATE, &b->file) || unlink(path))
		return 1;
	for (unsigned i = 0; i < REQUESTS; i++) {
		make_request(b, i, TN_IO_WRITE, (uint64_t)i * REQUEST_BYTES);
		memset(b->iov[i].iov_base, (int)i + 1, REQUEST_BYTES);
	}
	if (submit(b, 0, REQUESTS))
		return 2;
	collect(b, REQUESTS);
	memset(b->memory, 0, (size_t)REQUESTS * REQUEST_BYTES);
	for (unsigned i = 0; i < REQUESTS; i++)
		make_request(b, i, i % 8 == 7 ? TN_IO_SYNC : TN_IO_READ, (uint64_t)i * REQUEST_BYTES);
	if (submit(b, 0, REQUESTS / 2))
		return 3;
	if (tn_test_forbid(s->calls, s->error))
		return TN_TEST_SKIP;
	if (!s->poll_first && submit(b, REQUESTS / 2, REQUESTS))
		return 4;
	if (tn_io_cancel(b->io, &b->req[3]))
		return 5;
	collect(b, s->poll_first ? REQUESTS / 2 : REQUESTS);
	if (s->poll_first && submit(b, REQUESTS / 2, REQUESTS))
		return 6;
	if (s->poll_first)
		collect(b, REQUESTS / 2);
	rc = check_all(b);
	if (rc == 0)
		rc = go_on(b);
	tn_io_destroy(b->io);
	return rc;
}

static void a_sandbox_that_begins_in_the_middle_of_io_loses_no_request(void **state)
{
	static const unsigned without[] = {0, TN_URING_NO_DEFER, TN_URING_NO_ANY};
	static const int errors[] = {EPERM, ENOSYS, EACCES};

	for (unsigned i = 0; i < 3 * 3 * 2 * 2; i++) {
		struct sandbox s = {.calls = TN_FORBID_ENTER | (i & 2 ? TN_FORBID_REGISTER : 0), .error = errors[i / 4 % 3],
				    .without = without[i / 12], .poll_first = i & 1};
		int rc = tn_test_in_child(begin_in_the_middle, &s);

		if (rc == TN_TEST_SKIP)
			tn_test_skip("no seccomp, or no io_uring");
		if (rc)
			printf("# case %u ended with %d\n", i, rc);
		assert_int_equal(rc, 0);
	}
}

/* Only io_uring_register is refused: the table of files cannot change, transfers go on. */
static void without_io_uring_register_files_come_and_go_as_before(void **state)
{
	struct sandbox s = {.calls = TN_FORBID_REGISTER, .error = EPERM};
	int rc = tn_test_in_child(begin_in_the_middle, &s);

	if (rc == TN_TEST_SKIP)
		tn_test_skip("no seccomp, or no io_uring");
	assert_int_equal(rc, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_out_of_range_are_refused_by_name),
		cmocka_unit_test(a_failed_allocation_fails_the_creation_and_leaks_nothing),
		cmocka_unit_test(a_fifo_is_refused_and_not_waited_for),
		cmocka_unit_test(where_the_kernel_forbids_io_uring_threads_do_it),
		cmocka_unit_test(a_sandbox_that_begins_in_the_middle_of_io_loses_no_request),
		cmocka_unit_test(without_io_uring_register_files_come_and_go_as_before),
	};

	return cmocka_run_group_tests_name("ioengine", tests, NULL, NULL);
}
