/* SPDX-License-Identifier: Apache-2.0 */
/* Each fault that the faulty wrapper can make; that it keeps the contract otherwise is io_test.c's. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "ioengine/faulty_rig.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

#define N 8u
#define BYTES 16384u
#define SECOND_NS 1000000000ull

struct fixture {
	struct tn_io *io;
	struct tn_clock clock;
	uint64_t stopped_ns; /* the time that the clock gives; 0: the real time */
	uint32_t file;
	char path[64];
	char *mem;
	struct iovec iov[N];
	struct tn_io_req req[N];
};

static uint64_t fixture_now(void *arg)
{
	const struct fixture *f = arg;

	return f->stopped_ns ? f->stopped_ns : tn_now_ns(&tn_clock_system);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct tn_ioengine_opts eo = {.alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_io_faulty_opts fo = {.seed = tn_test_seed(), .clock = &f->clock};
	struct tn_io *inner;

	*state = f;
	f->clock = (struct tn_clock){fixture_now, NULL, f};
	f->mem = aligned_alloc(4096, N * BYTES);
	snprintf(f->path, sizeof(f->path), "/tmp/tenuto-faulty-%d", (int)getpid());
	assert_int_equal(tn_ioengine_create(&eo, &inner), 0);
	assert_int_equal(tn_io_faulty_create(inner, &fo, &f->io), 0);
	assert_int_equal(tn_io_open(f->io, f->path, TN_IO_CREATE, &f->file), 0);
	assert_int_equal(tn_io_allocate(f->io, f->file, 0, N * BYTES), 0);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	tn_io_unlink(f->io, f->path);
	tn_io_destroy(f->io);
	free(f->mem);
	free(f);
	return 0;
}

static void submit(struct fixture *f, enum tn_io_op op)
{
	for (unsigned i = 0; i < N; i++) {
		struct tn_io_req *p = &f->req[i];

		f->iov[i] = (struct iovec){f->mem + i * BYTES, BYTES};
		f->req[i] = (struct tn_io_req){.op = (uint8_t)op, .file = f->file, .offset = i * BYTES,
					       .length = BYTES, .iov = &f->iov[i], .iov_count = 1};
		assert_int_equal(tn_io_submit(f->io, &p, 1), 1);
	}
}

/* Polls until n requests are back or the time is over; returns how many are back. */
static unsigned collect(struct fixture *f, unsigned n, uint64_t timeout_ns)
{
	struct tn_io_req *done[N];
	unsigned got = 0, k = 1;

	while (got < n && k) {
		k = tn_io_poll(f->io, done, n - got, timeout_ns);
		got += k;
	}
	return got;
}

static void set(struct fixture *f, struct tn_fault fault)
{
	assert_int_equal(tn_io_faulty_set(f->io, &fault, 1), 0);
}

static void an_error_hits_the_requests_it_is_for_and_no_other(void **state)
{
	struct fixture *f = *state;

	set(f, (struct tn_fault){.kind = TN_FAULT_EIO, .op = TN_IO_READ, .from = 2, .count = 3});
	submit(f, TN_IO_WRITE);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(f->req[i].status, 0);
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(f->req[i].status, i >= 2 && i < 5 ? -EIO : 0);
		assert_int_equal(f->req[i].transferred, i >= 2 && i < 5 ? 0 : BYTES);
	}
}

static void no_space_from_the_nth_write_on(void **state)
{
	struct fixture *f = *state;

	memset(f->mem, 1, N * BYTES);
	submit(f, TN_IO_WRITE);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	set(f, (struct tn_fault){.kind = TN_FAULT_ENOSPC, .op = TN_IO_WRITE, .from = 5, .count = UINT64_MAX});
	memset(f->mem, 2, N * BYTES);
	submit(f, TN_IO_WRITE);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(f->req[i].status, i >= 5 ? -ENOSPC : 0);
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(f->mem[i * BYTES], i >= 5 ? 1 : 2);
}

static void a_short_transfer_moves_a_part_and_is_an_error(void **state)
{
	struct fixture *f = *state;

	memset(f->mem, 1, N * BYTES);
	submit(f, TN_IO_WRITE);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	set(f, (struct tn_fault){.kind = TN_FAULT_SHORT, .op = TN_IO_READ, .from = 1, .count = 1});
	memset(f->mem, 0, N * BYTES);
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	assert_int_equal(f->req[0].status, 0);
	assert_int_equal(f->req[1].status, -EIO);
	assert_in_range(f->req[1].transferred, 1, BYTES - 1);
	assert_int_equal(f->mem[BYTES + f->req[1].transferred - 1], 1);
	assert_int_equal(f->mem[BYTES + f->req[1].transferred], 0);
}

static void a_late_request_comes_after_its_delay(void **state)
{
	struct fixture *f = *state;
	uint64_t t0 = tn_now_ns(&tn_clock_system);

	/* The delay goes by the clock that the wrapper was given, however long the disk takes. */
	f->stopped_ns = t0;
	set(f, (struct tn_fault){.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = 1, .delay_ns = 50000000});
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N - 1, 5 * SECOND_NS), N - 1);
	assert_int_equal(f->req[0].engine[0], (uintptr_t)f->io); /* this request is still in flight */
	assert_int_equal(tn_io_close(f->io, f->file), -EBUSY);
	f->stopped_ns = 0;
	assert_int_equal(collect(f, 1, 5 * SECOND_NS), 1);
	assert_true(tn_now_ns(&tn_clock_system) - t0 >= 50000000);
	assert_int_equal(f->req[0].status, 0);
}

static void a_hanging_request_comes_after_cancel_or_release_only(void **state)
{
	struct fixture *f = *state;

	set(f, (struct tn_fault){.kind = TN_FAULT_HANG, .op = TN_IO_READ, .from = 3, .count = 2});
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N - 2, 5 * SECOND_NS), N - 2);
	assert_int_equal(collect(f, 1, SECOND_NS / 20), 0);
	assert_int_equal(tn_io_cancel(f->io, &f->req[3]), 0);
	assert_int_equal(collect(f, 1, 5 * SECOND_NS), 1);
	assert_int_equal(f->req[3].status, -ECANCELED);
	assert_int_equal(collect(f, 1, SECOND_NS / 20), 0);
	tn_io_faulty_release(f->io);
	assert_int_equal(collect(f, 1, 5 * SECOND_NS), 1);
	assert_int_equal(f->req[4].status, 0);
}

/* However fast or slow the disk is: no poll has asked yet whether the request is done. */
static void a_hanging_request_cancelled_while_the_disk_works_on_it_is_cancelled(void **state)
{
	struct fixture *f = *state;

	set(f, (struct tn_fault){.kind = TN_FAULT_HANG, .op = TN_IO_READ, .count = 1});
	submit(f, TN_IO_READ);
	tn_io_cancel(f->io, &f->req[0]);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	assert_int_equal(f->req[0].status, -ECANCELED);
	for (unsigned i = 1; i < N; i++)
		assert_int_equal(f->req[i].status, 0);
}

/* No poll has asked yet whether the request is done. */
static void a_hanging_request_released_while_the_disk_works_on_it_completes(void **state)
{
	struct fixture *f = *state;

	set(f, (struct tn_fault){.kind = TN_FAULT_HANG, .op = TN_IO_READ, .count = 1});
	submit(f, TN_IO_READ);
	tn_io_faulty_release(f->io);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	assert_int_equal(f->req[0].status, 0);
}

static void a_corrupted_read_succeeds_with_one_wrong_byte(void **state)
{
	struct fixture *f = *state;
	unsigned wrong = 0;

	memset(f->mem, 1, N * BYTES);
	submit(f, TN_IO_WRITE);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	set(f, (struct tn_fault){.kind = TN_FAULT_CORRUPT, .op = TN_IO_READ, .from = 4, .count = 1});
	submit(f, TN_IO_READ);
	assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
	for (unsigned i = 0; i < N * BYTES; i++) {
		wrong += f->mem[i] != 1;
		assert_true(f->mem[i] == 1 || i / BYTES == 4);
	}
	assert_int_equal(wrong, 1);
	assert_int_equal(f->req[4].status, 0);
}

static void a_chance_of_half_hits_about_half(void **state)
{
	struct fixture *f = *state;
	unsigned hit = 0;

	set(f, (struct tn_fault){.kind = TN_FAULT_EIO, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 50});
	for (unsigned round = 0; round < 50; round++) {
		submit(f, TN_IO_READ);
		assert_int_equal(collect(f, N, 5 * SECOND_NS), N);
		for (unsigned i = 0; i < N; i++)
			hit += f->req[i].status == -EIO;
	}
	assert_in_range(hit, 100, 300); /* of 400: ten standard deviations */
}

/*
 * An engine whose one request is done at once, and whose poll consumes the wake when it returns the request. It never
 * really waits.
 */
struct prompt {
	struct tn_io io;
	uint64_t now_ns;
	struct tn_io_req *req;
	bool woken;
	unsigned waits; /* polls that would have waited */
};

static unsigned prompt_submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	((struct prompt *)io)->req = reqs[0];
	return 1;
}

static unsigned prompt_poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct prompt *p = (struct prompt *)io;
	unsigned n = p->req ? 1 : 0;

	if (n)
		done[0] = p->req;
	if (!n && !p->woken && timeout_ns) {
		p->waits++;
		p->now_ns += timeout_ns;
	}
	p->req = NULL;
	p->woken = false;
	return n;
}

static uint64_t prompt_now(void *arg)
{
	return ((struct prompt *)arg)->now_ns;
}

static void prompt_wake(struct tn_io *io)
{
	((struct prompt *)io)->woken = true;
}

static void prompt_destroy(struct tn_io *io)
{
}

static void a_wake_ends_the_wait_although_it_came_with_a_completion_that_is_held_back(void **state)
{
	static const enum tn_fault_kind kinds[] = {TN_FAULT_LATE, TN_FAULT_HANG};
	static const struct tn_io_ops ops = {.size = sizeof(ops), .abi = TN_IO_ABI, .name = "prompt", .submit = prompt_submit,
					     .poll = prompt_poll, .wake = prompt_wake, .destroy = prompt_destroy};

	for (unsigned i = 0; i < 2; i++) {
		struct tn_fault fault = {.kind = kinds[i], .op = TN_IO_SYNC, .count = 1, .delay_ns = 10 * SECOND_NS};
		struct prompt inner = {.io = {.ops = &ops}, .now_ns = SECOND_NS};
		struct tn_clock clock = {prompt_now, NULL, &inner};
		struct tn_io_faulty_opts o = {.clock = &clock, .faults = &fault, .fault_count = 1};
		struct tn_io_req req = {.op = TN_IO_SYNC}, *p = &req;
		struct tn_io *io;

		assert_int_equal(tn_io_faulty_create(&inner.io, &o, &io), 0);
		assert_int_equal(tn_io_submit(io, &p, 1), 1);
		tn_io_wake(io);
		assert_int_equal(tn_io_poll(io, &p, 1, SECOND_NS), 0);
		assert_int_equal(inner.waits, 0);
		/* Only once: the next poll waits. */
		assert_int_equal(tn_io_poll(io, &p, 1, SECOND_NS), 0);
		assert_int_equal(inner.waits, 1);
		tn_io_faulty_release(io);
		assert_int_equal(tn_io_poll(io, &p, 1, 20 * SECOND_NS), 1);
		tn_io_destroy(io);
	}
}

static void an_unknown_fault_is_refused(void **state)
{
	struct fixture *f = *state;
	struct tn_fault bad = {.kind = 99};

	assert_int_equal(tn_io_faulty_set(f->io, &bad, 1), -EINVAL);
	assert_int_equal(tn_io_faulty_set(f->io, NULL, 17), -EINVAL);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(an_error_hits_the_requests_it_is_for_and_no_other),
		T(no_space_from_the_nth_write_on),
		T(a_short_transfer_moves_a_part_and_is_an_error),
		T(a_late_request_comes_after_its_delay),
		T(a_hanging_request_comes_after_cancel_or_release_only),
		T(a_hanging_request_cancelled_while_the_disk_works_on_it_is_cancelled),
		T(a_hanging_request_released_while_the_disk_works_on_it_completes),
		T(a_corrupted_read_succeeds_with_one_wrong_byte),
		T(a_chance_of_half_hits_about_half),
		cmocka_unit_test(a_wake_ends_the_wait_although_it_came_with_a_completion_that_is_held_back),
		T(an_unknown_fault_is_refused),
	};

	return cmocka_run_group_tests_name("faulty", tests, NULL, NULL);
}
