/* SPDX-License-Identifier: Apache-2.0 */
/* The contract's rules about requests, completions and waking, and functions that io_contract_files.c uses, too. */
#include "ioengine/io_contract.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "base/clock.h"

#define KIB 1024u
#define DEPTH 64u
#define SECOND_NS 1000000000u

/* ---- tools -------------------------------------------------------------------------------------- */

uint64_t tn_contract_now(void)
{
	return tn_now_ns(&tn_clock_system);
}

void *tn_contract_memory(size_t bytes)
{
	size_t rounded = (bytes + 4095) / 4096 * 4096;
	void *p = aligned_alloc(4096, rounded);

	assert_non_null(p);
	memset(p, 0, rounded);
	return p;
}

static void keep_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* engines with threads log from them */
	struct tn_contract *c = arg;

	(void)where;
	pthread_mutex_lock(&lock);
	if (level <= TN_LOG_WARN)
		snprintf(c->last_line, sizeof(c->last_line), "%s", text);
	pthread_mutex_unlock(&lock);
}

int tn_contract_setup(void **state)
{
	static unsigned count;
	struct tn_contract *c = *state;

	c->log = (struct tn_log){keep_line, c, TN_LOG_WARN};
	c->last_line[0] = '\0';
	tn_rng_seed(&c->rng, tn_test_seed() + count);
	snprintf(c->path, sizeof(c->path), "%s/tenuto-io-%d-%u", c->dir, (int)getpid(), count++);
	assert_int_equal(c->engine->create(DEPTH, &c->log, &c->io), 0);
	assert_int_equal(tn_io_open(c->io, c->path, TN_IO_CREATE | TN_IO_EXCLUSIVE, &c->file), 0);
	assert_int_equal(tn_io_stat(c->io, c->file, &c->st), 0);
	return 0;
}

int tn_contract_teardown(void **state)
{
	struct tn_contract *c = *state;

	tn_io_unlink(c->io, c->path);
	tn_io_destroy(c->io);
	c->io = NULL;
	return 0;
}

size_t tn_contract_append(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
			  const char *dir, const char *name, CMUnitTestFunction f)
{
	struct tn_contract *c = calloc(1, sizeof(*c));
	char *full = malloc(256);

	if (n == max || !c || !full)
		abort();
	c->engine = engine;
	c->dir = dir;
	snprintf(full, 256, "%s in %s: %s", engine->name, dir, name);
	tests[n] = (struct CMUnitTest){full, f, tn_contract_setup, tn_contract_teardown, c};
	return n + 1;
}

struct tn_io_req tn_contract_req(const struct tn_contract *c, enum tn_io_op op, uint64_t offset, struct iovec *iov,
				 uint32_t iov_count)
{
	struct tn_io_req req = {.op = (uint8_t)op, .file = c->file, .offset = offset,
				.iov = iov, .iov_count = iov_count, .status = 4711};

	for (uint32_t i = 0; i < iov_count && op <= TN_IO_SYNC; i++)
		req.length += (uint32_t)iov[i].iov_len;
	return req;
}

void tn_contract_run_all(struct tn_contract *c, struct tn_io_req *reqs, unsigned n)
{
	unsigned char *back = calloc(n, 1);
	struct tn_io_req *done[16];
	unsigned sent = 0, got = 0;

	assert_non_null(back);
	while (got < n) {
		struct tn_io_req *batch[32];
		unsigned k = 0, max = 1 + tn_rng_below(&c->rng, 32), m;

		while (k < max && sent + k < n) {
			batch[k] = &reqs[sent + k];
			k++;
		}
		sent += tn_io_submit(c->io, batch, k);
		m = tn_io_poll(c->io, done, 1 + tn_rng_below(&c->rng, 16), sent > got ? 10ull * SECOND_NS : 0);
		for (unsigned i = 0; i < m; i++) {
			assert_in_range(done[i] - reqs, 0, sent - 1);
			assert_int_equal(back[done[i] - reqs]++, 0);
			assert_true(done[i]->status <= 0);
			assert_true(done[i]->transferred <= done[i]->length);
			assert_true(done[i]->status || done[i]->op == TN_IO_SYNC || done[i]->transferred == done[i]->length);
		}
		got += m;
	}
	assert_int_equal(tn_io_poll(c->io, done, 16, 0), 0);
	free(back);
}

int tn_contract_do(struct tn_contract *c, enum tn_io_op op, uint64_t offset, void *mem, size_t bytes)
{
	struct iovec iov = {mem, bytes};
	struct tn_io_req req = tn_contract_req(c, op, offset, &iov, op == TN_IO_SYNC ? 0 : 1);

	tn_contract_run_all(c, &req, 1);
	return req.status;
}

/* An engine may refuse writes beyond the end. */
static void lengthen(struct tn_contract *c, uint64_t bytes)
{
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, bytes), 0);
}

static void fill(struct tn_rng *rng, void *mem, size_t bytes)
{
	uint64_t *w = mem;

	for (size_t i = 0; i < bytes / 8; i++)
		w[i] = tn_rng_next(rng);
}

/* Divides bytes of memory into at most max pieces of whole multiples of unit. */
static uint32_t divide(struct tn_rng *rng, char *mem, size_t bytes, size_t unit, struct iovec *iov, uint32_t max)
{
	uint32_t n = 0;

	for (size_t at = 0; at < bytes; n++) {
		size_t left = (bytes - at) / unit;
		size_t part = n + 1 == max ? left : 1 + tn_rng_below(rng, (uint32_t)left);

		iov[n] = (struct iovec){mem + at, part * unit};
		at += part * unit;
	}
	return n;
}

/* ---- transfers ---------------------------------------------------------------------------------- */

static void what_was_written_in_pieces_is_read_back_in_others(void **state)
{
	enum { N = 200, BYTES = 64 * KIB };
	struct tn_contract *c = *state;
	char *out = tn_contract_memory((size_t)N * BYTES), *in = tn_contract_memory((size_t)N * BYTES);
	struct tn_io_req *reqs = calloc(N, sizeof(*reqs));
	struct iovec(*iov)[8] = calloc(N, sizeof(*iov));

	lengthen(c, (uint64_t)N * BYTES);
	fill(&c->rng, out, (size_t)N * BYTES);
	for (unsigned i = 0; i < N; i++)
		reqs[i] = tn_contract_req(c, TN_IO_WRITE, (uint64_t)i * BYTES, iov[i],
					  divide(&c->rng, out + (size_t)i * BYTES, BYTES, 4096, iov[i], 8));
	tn_contract_run_all(c, reqs, N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(reqs[i].status, 0);
	for (unsigned i = 0; i < N; i++)
		reqs[i] = tn_contract_req(c, TN_IO_READ, (uint64_t)i * BYTES, iov[i],
					  divide(&c->rng, in + (size_t)i * BYTES, BYTES, 4096, iov[i], 8));
	tn_contract_run_all(c, reqs, N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(reqs[i].status, 0);
	assert_memory_equal(in, out, (size_t)N * BYTES);
	free(iov);
	free(reqs);
	free(in);
	free(out);
}

static void a_read_that_meets_the_end_of_the_file_is_an_error(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(32 * KIB);
	struct iovec iov[4] = {{mem, 4 * KIB}, {mem + 4 * KIB, 8 * KIB}, {mem + 12 * KIB, 4 * KIB}, {mem + 16 * KIB, 8 * KIB}};
	struct tn_io_req req;

	lengthen(c, 8 * KIB);
	memset(mem, 1, 8 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 8 * KIB), 0);
	memset(mem, 0, 32 * KIB);
	req = tn_contract_req(c, TN_IO_READ, 0, iov, 4);
	tn_contract_run_all(c, &req, 1);
	assert_int_equal(req.status, -EIO);
	assert_int_equal(req.transferred, 8 * KIB);
	assert_int_equal(mem[8 * KIB - 1], 1);
	assert_int_equal(mem[8 * KIB], 0);
	/* The log line names both lengths, if the engine logs. */
	if (c->engine->has & TN_CONTRACT_FILES) {
		assert_non_null(strstr(c->last_line, "24576"));
		assert_non_null(strstr(c->last_line, "8192"));
	}
	req = tn_contract_req(c, TN_IO_READ, 64 * KIB, iov, 1);
	tn_contract_run_all(c, &req, 1);
	assert_int_equal(req.status, -EIO);
	assert_int_equal(req.transferred, 0);
	free(mem);
}

static void a_failed_request_has_no_effect_on_the_others(void **state)
{
	enum { N = 240 };
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory((size_t)N * 4 * KIB);
	struct tn_io_req reqs[N];
	struct iovec iov[N];

	assert_int_equal(tn_io_allocate(c->io, c->file, 0, N * 4 * KIB), 0);
	memset(mem, 7, N * 4 * KIB);
	for (unsigned i = 0; i < N; i++) {
		iov[i] = (struct iovec){mem + (size_t)i * 4 * KIB, 4 * KIB};
		reqs[i] = tn_contract_req(c, i % 2 ? TN_IO_READ : TN_IO_WRITE, i * 4 * KIB, &iov[i], 1);
		switch (i % 6) {
		case 1:
			reqs[i].offset = 1u << 30;
			break;
		case 3:
			reqs[i].length--;
			break;
		case 4:
			reqs[i].file = 63;
			break;
		}
	}
	tn_contract_run_all(c, reqs, N);
	for (unsigned i = 0; i < N; i++) {
		static const int expected[6] = {0, -EIO, 0, -EINVAL, -EBADF, 0};

		assert_int_equal(reqs[i].status, expected[i % 6]);
	}
	free(mem);
}

static void a_malformed_request_completes_with_einval(void **state)
{
	enum { N = 7 };
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(12 * KIB);
	struct iovec whole[2] = {{mem, 4 * KIB}, {mem + 4 * KIB, 4 * KIB}};
	struct iovec hole[2] = {{mem, 4 * KIB}, {mem + 4 * KIB, 0}};
	struct iovec huge[2] = {{mem, SIZE_MAX - 4095}, {mem, 8 * KIB}}; /* their sum wraps to 4 KiB */
	struct tn_io_req reqs[N];

	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 16 * KIB), 0);
	for (unsigned i = 0; i < N; i++)
		reqs[i] = tn_contract_req(c, TN_IO_READ, 0, whole, 2);
	reqs[0].iov_count = 0;
	reqs[1].length = 4 * KIB;
	reqs[2] = tn_contract_req(c, TN_IO_WRITE, 0, hole, 2);
	reqs[3] = tn_contract_req(c, TN_IO_WRITE, 0, huge, 2);
	reqs[4].op = 17;
	reqs[5].offset = UINT64_MAX - 4095;
	reqs[6].length = 0;
	tn_contract_run_all(c, reqs, N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(reqs[i].status, -EINVAL);
	free(mem);
}

static void an_unaligned_request_on_a_direct_file_is_refused_alone(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(64 * KIB);
	uint32_t a = c->st.offset_align, half = a / 2;
	struct iovec good[3] = {{mem, a}, {mem + a, a}, {mem + 2 * a, a}}, odd = {mem + 4 * a, 4 * a - half};
	struct iovec off = {mem + 8 * a + c->st.memory_align / 2, 2 * a};
	struct tn_io_req reqs[5];

	if (!c->st.direct || a > 4 * KIB) {
		free(mem);
		tn_test_skip("not a direct file");
	}
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 64 * KIB), 0);
	reqs[0] = tn_contract_req(c, TN_IO_READ, 0, &good[0], 1);
	reqs[1] = tn_contract_req(c, TN_IO_READ, half, &good[1], 1);
	reqs[2] = tn_contract_req(c, TN_IO_READ, 0, &odd, 1);
	reqs[3] = tn_contract_req(c, TN_IO_WRITE, 0, &off, 1);
	reqs[4] = tn_contract_req(c, TN_IO_READ, 0, &good[2], 1);
	tn_contract_run_all(c, reqs, 5);
	assert_int_equal(reqs[0].status, 0);
	assert_int_equal(reqs[1].status, -EINVAL);
	assert_int_equal(reqs[2].status, -EINVAL);
	assert_int_equal(reqs[3].status, -EINVAL);
	assert_int_equal(reqs[4].status, 0);
	free(mem);
}

static void thousands_of_pieces_are_one_transfer_and_stay_unchanged(void **state)
{
	enum { N = 5000, PIECE = 4096 };
	struct tn_contract *c = *state;
	char *out = tn_contract_memory((size_t)N * PIECE), *in = tn_contract_memory((size_t)N * PIECE);
	struct iovec *iov = calloc(N, sizeof(*iov)), *copy = calloc(N, sizeof(*iov));
	struct tn_io_req req;

	lengthen(c, 8 * KIB + (uint64_t)N * PIECE);
	fill(&c->rng, out, (size_t)N * PIECE);
	for (unsigned i = 0; i < N; i++)
		iov[i] = (struct iovec){out + (size_t)(N - 1 - i) * PIECE, PIECE};
	req = tn_contract_req(c, TN_IO_WRITE, 8 * KIB, iov, N);
	memcpy(copy, iov, N * sizeof(*iov));
	tn_contract_run_all(c, &req, 1);
	assert_int_equal(req.status, 0);
	assert_int_equal(req.transferred, N * PIECE);
	assert_memory_equal(iov, copy, N * sizeof(*iov));
	assert_int_equal(tn_contract_do(c, TN_IO_READ, 8 * KIB, in, (size_t)N * PIECE), 0);
	for (unsigned i = 0; i < N; i++)
		assert_memory_equal(in + (size_t)i * PIECE, iov[i].iov_base, PIECE);
	/* The end of the file may lie in any of the system calls that the transfer takes. */
	req = tn_contract_req(c, TN_IO_READ, 8 * KIB + 2000 * PIECE, iov, N);
	tn_contract_run_all(c, &req, 1);
	assert_int_equal(req.status, -EIO);
	assert_int_equal(req.transferred, (N - 2000) * PIECE);
	free(copy);
	free(iov);
	free(in);
	free(out);
}

static void a_full_engine_takes_fewer_and_goes_on_after_a_poll(void **state)
{
	enum { N = 40 };
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory((size_t)N * 4 * KIB);
	struct tn_io_req reqs[N], *batch[N], *done[N];
	struct iovec iov[N];
	struct tn_io *small;
	unsigned back = 0, sent;

	if (!(c->engine->has & TN_CONTRACT_EXACT)) {
		free(mem);
		tn_test_skip("the engine may take fewer at any time");
	}
	assert_int_equal(c->engine->create(8, &c->log, &small), 0);
	/* Simulated disks do not share files, so calls on the file go through the small engine. */
	assert_int_equal(tn_io_open(small, c->path, TN_IO_CREATE, &c->file), 0);
	assert_int_equal(tn_io_allocate(small, c->file, 0, N * 4 * KIB), 0);
	for (unsigned i = 0; i < N; i++) {
		iov[i] = (struct iovec){mem + (size_t)i * 4 * KIB, 4 * KIB};
		reqs[i] = tn_contract_req(c, TN_IO_READ, i * 4 * KIB, &iov[i], 1);
		batch[i] = &reqs[i];
	}
	assert_int_equal(tn_io_submit(small, batch, N), 8);
	assert_int_equal(tn_io_submit(small, batch + 8, N - 8), 0);
	back = tn_io_poll(small, done, 1, 10ull * SECOND_NS);
	assert_int_equal(back, 1);
	sent = 8 + tn_io_submit(small, batch + 8, N - 8);
	assert_in_range(sent, 9, 16);
	while (back < sent)
		back += tn_io_poll(small, done, N, SECOND_NS);
	tn_io_destroy(small);
	free(mem);
}

static void a_sync_comes_back_and_covers_what_came_back_before(void **state)
{
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory(8 * KIB);

	lengthen(c, 4 * KIB);
	memset(mem, 5, 4 * KIB);
	assert_int_equal(tn_contract_do(c, TN_IO_WRITE, 0, mem, 4 * KIB), 0);
	assert_int_equal(tn_contract_do(c, TN_IO_SYNC, 0, NULL, 0), 0);
	if (c->engine->crash) {
		c->engine->crash(c->io);
		assert_int_equal(tn_io_open(c->io, c->path, 0, &c->file), 0);
		assert_int_equal(tn_contract_do(c, TN_IO_READ, 0, mem + 4 * KIB, 4 * KIB), 0);
		assert_memory_equal(mem, mem + 4 * KIB, 4 * KIB);
	}
	free(mem);
}

static void a_cancelled_request_comes_back_exactly_once(void **state)
{
	enum { N = 48, BYTES = 256 * KIB };
	struct tn_contract *c = *state;
	char *mem = tn_contract_memory((size_t)N * BYTES);
	struct tn_io_req reqs[N], *batch[N], *done[N];
	unsigned char back[N] = {0};
	struct iovec iov[N];
	unsigned got = 0, sent = 0;

	assert_int_equal(tn_io_allocate(c->io, c->file, 0, N * BYTES), 0);
	for (unsigned i = 0; i < N; i++) {
		iov[i] = (struct iovec){mem + (size_t)i * BYTES, BYTES};
		reqs[i] = tn_contract_req(c, TN_IO_WRITE, i * BYTES, &iov[i], 1);
		batch[i] = &reqs[i];
	}
	assert_int_equal(tn_io_cancel(c->io, &reqs[0]), -ENOENT);
	while (sent == 0)
		sent = tn_io_submit(c->io, batch, N);
	for (unsigned i = 0; i < sent; i += 2) {
		int err = tn_io_cancel(c->io, &reqs[i]);

		assert_true(err == 0 || err == -EAGAIN);
	}
	while (got < sent) {
		unsigned m = tn_io_poll(c->io, done, N, 10ull * SECOND_NS);

		for (unsigned i = 0; i < m; i++) {
			assert_int_equal(back[done[i] - reqs]++, 0);
			assert_true(done[i]->status == 0 ||
				    (done[i]->status == -ECANCELED && (done[i] - reqs) % 2 == 0));
		}
		got += m;
	}
	assert_int_equal(tn_io_cancel(c->io, &reqs[0]), -ENOENT);
	assert_int_equal(tn_io_poll(c->io, done, N, 0), 0);
	free(mem);
}

/* ---- waiting and waking ------------------------------------------------------------------------- */

static void a_poll_with_nothing_to_return_ends_at_its_time_out(void **state)
{
	struct tn_contract *c = *state;
	struct tn_io_req *done[1];
	uint64_t t0;

	if (!(c->engine->has & TN_CONTRACT_THREADS))
		tn_test_skip("no threads");
	assert_int_equal(tn_io_poll(c->io, done, 1, 0), 0);
	t0 = tn_contract_now();
	assert_int_equal(tn_io_poll(c->io, done, 1, 30000000), 0);
	assert_true(tn_contract_now() - t0 >= 30000000);
}

static void a_wake_before_the_poll_is_not_lost(void **state)
{
	struct tn_contract *c = *state;
	struct tn_io_req *done[1];
	uint64_t t0 = tn_contract_now();

	tn_io_wake(c->io);
	tn_io_wake(c->io);
	assert_int_equal(tn_io_poll(c->io, done, 1, 60ull * SECOND_NS), 0);
	assert_true(tn_contract_now() - t0 < 60ull * SECOND_NS); /* if the wake is lost, only the time-out ends the poll */
}

struct waker {
	struct tn_io *io;
	unsigned rounds;
	unsigned ball; /* odd: the owner plays next */
};

static void *wake_in_turns(void *arg)
{
	struct waker *w = arg;

	for (unsigned i = 0; i < w->rounds; i++) {
		unsigned spins = 0;

		while (__atomic_load_n(&w->ball, __ATOMIC_ACQUIRE) & 1)
			if (++spins > 100)
				sched_yield();
		__atomic_fetch_add(&w->ball, 1, __ATOMIC_RELEASE);
		tn_io_wake(w->io);
	}
	return NULL;
}

static void a_hundred_thousand_wakes_from_another_thread_and_none_is_lost(void **state)
{
	struct tn_contract *c = *state;
	struct waker w = {c->io, 100000, 0};
	struct tn_io_req *done[1];
	pthread_t t;

	if (!(c->engine->has & TN_CONTRACT_THREADS))
		tn_test_skip("no threads");
	assert_int_equal(pthread_create(&t, NULL, wake_in_turns, &w), 0);
	for (unsigned i = 0; i < w.rounds; i++) {
		while (!(__atomic_load_n(&w.ball, __ATOMIC_ACQUIRE) & 1)) {
			uint64_t t0 = tn_contract_now();

			assert_int_equal(tn_io_poll(c->io, done, 1, 60ull * SECOND_NS), 0);
			assert_true(tn_contract_now() - t0 < 60ull * SECOND_NS);
		}
		__atomic_fetch_add(&w.ball, 1, __ATOMIC_RELEASE);
	}
	pthread_join(t, NULL);
}

struct storm {
	struct tn_io *io;
	bool stop;
};

static void *wake_all_the_time(void *arg)
{
	struct storm *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
		tn_io_wake(s->io);
	return NULL;
}

static void wakes_in_between_take_no_completion_away(void **state)
{
	enum { N = 2000 };
	struct tn_contract *c = *state;
	struct storm s = {c->io, false};
	char *mem = tn_contract_memory((size_t)N * 4 * KIB);
	struct tn_io_req *reqs = calloc(N, sizeof(*reqs));
	struct iovec *iov = calloc(N, sizeof(*iov));
	pthread_t t;

	if (!(c->engine->has & TN_CONTRACT_THREADS)) {
		free(iov);
		free(reqs);
		free(mem);
		tn_test_skip("no threads");
	}
	assert_int_equal(tn_io_allocate(c->io, c->file, 0, 64 * KIB), 0);
	assert_int_equal(pthread_create(&t, NULL, wake_all_the_time, &s), 0);
	for (unsigned i = 0; i < N; i++) {
		iov[i] = (struct iovec){mem + (size_t)i * 4 * KIB, 4 * KIB};
		reqs[i] = tn_contract_req(c, TN_IO_READ, i % 16 * 4 * KIB, &iov[i], 1);
	}
	tn_contract_run_all(c, reqs, N);
	__atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(reqs[i].status, 0);
	free(iov);
	free(reqs);
	free(mem);
}

#define T(f) {#f, f}

size_t tn_contract_add(struct CMUnitTest *tests, size_t n, size_t max, const struct tn_contract_engine *engine,
		       const char *dir)
{
	static const struct {
		const char *name;
		CMUnitTestFunction f;
	} all[] = {
		T(what_was_written_in_pieces_is_read_back_in_others),
		T(a_read_that_meets_the_end_of_the_file_is_an_error),
		T(a_failed_request_has_no_effect_on_the_others),
		T(a_malformed_request_completes_with_einval),
		T(an_unaligned_request_on_a_direct_file_is_refused_alone),
		T(thousands_of_pieces_are_one_transfer_and_stay_unchanged),
		T(a_full_engine_takes_fewer_and_goes_on_after_a_poll),
		T(a_sync_comes_back_and_covers_what_came_back_before),
		T(a_cancelled_request_comes_back_exactly_once),
		T(a_poll_with_nothing_to_return_ends_at_its_time_out),
		T(a_wake_before_the_poll_is_not_lost),
		T(a_hundred_thousand_wakes_from_another_thread_and_none_is_lost),
		T(wakes_in_between_take_no_completion_away),
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		n = tn_contract_append(tests, n, max, engine, dir, all[i].name, all[i].f);
	return n;
}
