/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paced wrapper keeps time: never faster than the drive, and as fast as the drive if the machine is. That the
 * wrapper keeps the contract is tested by paced_contract_test.c, the model's arithmetic by drive_test.c.
 */
#include "lab/paced.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "ioengine/ioengine.h"
#include "lab/scratch.h"
#include "tn_test.h"

#define PIECE 65536u
#define PIECES 512u
#define SECOND_NS 1000000000ull
#define STRETCH 16u
#define READ_BPS 512000000ull /* after the stretch */
#define WRITE_BPS 256000000ull
#define MIXED_BPS 256000000ull

static const struct tn_mix mix = {.version = TN_MIX_VERSION, .read_bps = READ_BPS * STRETCH, .write_bps = WRITE_BPS * STRETCH,
				  .mixed_bps = MIXED_BPS * STRETCH, .read_latency_ns = 100000, .write_latency_ns = 50000};

struct rig {
	struct tn_paced *paced;
	char dir[48], path[64];
	char *mem;
};

struct runner {
	struct rig *rig;
	struct tn_io *io;
	uint32_t file;
	enum tn_io_op op;
	uint32_t pieces;
	uint64_t first_ns, last_ns; /* submitted; given back */
	const char *failed; /* what failed; asserts are for the test's own thread: in another thread cmocka ends the program */
	struct iovec iov[PIECES];
	struct tn_io_req req[PIECES];
};

static struct tn_io *try_engine(struct rig *rig, uint32_t depth)
{
	struct tn_ioengine_opts eo = {.depth = depth, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_io *inner, *io;

	if (tn_ioengine_create(&eo, &inner))
		return NULL;
	if (tn_io_paced_create(inner, depth, rig->paced, &io) == 0)
		return io;
	tn_io_destroy(inner);
	return NULL;
}

static struct tn_io *engine(struct rig *rig, uint32_t depth)
{
	struct tn_io *io = try_engine(rig, depth);

	assert_non_null(io);
	return io;
}

static int setup(void **state)
{
	struct tn_paced_opts o = {.mix = &mix, .stretch = STRETCH, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct rig *rig = calloc(1, sizeof(*rig));
	struct tn_io *io;
	uint32_t file;

	*state = rig;
	rig->mem = aligned_alloc(4096, (size_t)PIECE * PIECES);
	memset(rig->mem, 1, (size_t)PIECE * PIECES);
	assert_int_equal(tn_scratch_make(access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", rig->dir, sizeof(rig->dir)), 0);
	snprintf(rig->path, sizeof(rig->path), "%s/drive", rig->dir);
	assert_int_equal(tn_paced_create(&o, &rig->paced), 0);
	io = engine(rig, 8);
	assert_int_equal(tn_io_open(io, rig->path, TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_allocate(io, file, 0, (uint64_t)PIECE * PIECES), 0);
	tn_io_destroy(io);
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	tn_paced_destroy(rig->paced);
	tn_scratch_remove(rig->dir);
	free(rig->mem);
	free(rig);
	return 0;
}

/* Moves the pieces, all in flight, and notes the times. Uses its own engine: an io_uring belongs to one thread. */
static void *move(void *arg)
{
	struct runner *r = arg;
	struct tn_io_req *done[64];
	unsigned sent = 0, got = 0;

	r->io = try_engine(r->rig, PIECES);
	if (!r->io || tn_io_open(r->io, r->rig->path, 0, &r->file)) {
		r->failed = "no engine, or no file";
		tn_io_destroy(r->io);
		return NULL;
	}
	r->first_ns = tn_now_ns(&tn_clock_system);
	while (got < r->pieces) {
		for (; sent < r->pieces; sent++) {
			struct tn_io_req *p = &r->req[sent];

			r->iov[sent] = (struct iovec){r->rig->mem + (size_t)sent * PIECE, PIECE};
			*p = (struct tn_io_req){.op = (uint8_t)r->op, .file = r->file,
						.offset = (uint64_t)sent * PIECE, .length = PIECE, .iov = &r->iov[sent], .iov_count = 1};
			if (tn_io_submit(r->io, &p, 1) == 0)
				break;
		}
		got += tn_io_poll(r->io, done, 64, SECOND_NS);
	}
	r->last_ns = tn_now_ns(&tn_clock_system);
	for (unsigned i = 0; i < r->pieces; i++)
		if (r->req[i].status)
			r->failed = "a transfer";
	tn_io_destroy(r->io);
	return NULL;
}

/* At least the expected time. The excess is printed: how much there is depends on the machine. */
static void took(const char *what, uint64_t ns, uint64_t expected_ns)
{
	print_message("# %s: %.2f ms, the model says %.2f ms: %+.1f %%\n", what, (double)ns / 1e6, (double)expected_ns / 1e6,
		      100.0 * ((double)ns / (double)expected_ns - 1));
	assert_true(ns >= expected_ns);
}

static uint64_t ns_for(uint64_t bytes, uint64_t bps)
{
	return bytes * 1000 / (bps / 1000000);
}

static void reads_take_their_bytes_over_the_bandwidth(void **state)
{
	struct runner *r = calloc(1, sizeof(*r));

	*r = (struct runner){.rig = *state, .op = TN_IO_READ, .pieces = PIECES};
	move(r);
	assert_null(r->failed);
	took("reads", r->last_ns - r->first_ns, ns_for(PIECE * PIECES, READ_BPS) + STRETCH * mix.read_latency_ns);
	free(r);
}

static void writes_take_their_bytes_over_the_bandwidth(void **state)
{
	struct runner *r = calloc(1, sizeof(*r));

	*r = (struct runner){.rig = *state, .op = TN_IO_WRITE, .pieces = PIECES};
	move(r);
	assert_null(r->failed);
	took("writes", r->last_ns - r->first_ns, ns_for(PIECE * PIECES, WRITE_BPS) + STRETCH * mix.write_latency_ns);
	free(r);
}

static void two_threads_that_read_and_write_share_the_mixed_bandwidth(void **state)
{
	struct runner *r = calloc(2, sizeof(*r));
	uint64_t first, last;
	pthread_t t;

	r[0] = (struct runner){.rig = *state, .op = TN_IO_READ, .pieces = PIECES};
	r[1] = (struct runner){.rig = *state, .op = TN_IO_WRITE, .pieces = PIECES};
	assert_int_equal(pthread_create(&t, NULL, move, &r[0]), 0);
	move(&r[1]);
	pthread_join(t, NULL);
	assert_null(r[0].failed);
	assert_null(r[1].failed);
	first = r[0].first_ns < r[1].first_ns ? r[0].first_ns : r[1].first_ns;
	last = r[0].last_ns > r[1].last_ns ? r[0].last_ns : r[1].last_ns;
	/* Before the later thread has begun and after the earlier has ended, one thread is alone: reads may be faster then. */
	print_message("# both: %.2f ms, all of it mixed would be %.2f ms\n", (double)(last - first) / 1e6,
		      (double)ns_for(2 * PIECE * PIECES, MIXED_BPS) / 1e6);
	assert_true(last - first >= ns_for(PIECE * PIECES, READ_BPS) + ns_for(PIECE * PIECES, WRITE_BPS));
	free(r);
}

static void one_read_takes_the_latency_and_its_bytes(void **state)
{
	uint64_t expected = ns_for(PIECE, READ_BPS) + STRETCH * mix.read_latency_ns, best = UINT64_MAX;
	struct runner *r = calloc(1, sizeof(*r));

	for (unsigned i = 0; i < 5; i++) {
		*r = (struct runner){.rig = *state, .op = TN_IO_READ, .pieces = 1};
		move(r);
		assert_null(r->failed);
		assert_true(r->last_ns - r->first_ns >= expected);
		best = r->last_ns - r->first_ns < best ? r->last_ns - r->first_ns : best;
	}
	took("one read", best, expected);
	free(r);
}

static void a_sync_waits_for_the_writes_before_it_and_time_outs_hold_meanwhile(void **state)
{
	struct rig *rig = *state;
	struct tn_io *io = engine(rig, 8);
	struct iovec iov = {rig->mem, PIECE * 64};
	struct tn_io_req w = {.op = TN_IO_WRITE, .length = PIECE * 64, .iov = &iov, .iov_count = 1};
	struct tn_io_req sync = {.op = TN_IO_SYNC}, *both[2] = {&w, &sync}, *done[2];
	uint64_t takes_ns = ns_for(PIECE * 64, WRITE_BPS) + STRETCH * mix.write_latency_ns, t0, t;
	unsigned n;

	assert_int_equal(tn_io_open(io, rig->path, 0, &w.file), 0);
	sync.file = w.file;
	t0 = tn_now_ns(&tn_clock_system);
	assert_int_equal(tn_io_submit(io, both, 2), 2);
	n = tn_io_poll(io, done, 2, 3000000);
	t = tn_now_ns(&tn_clock_system) - t0;
	/* Unless the machine stood still that long. */
	if (t < takes_ns) {
		assert_int_equal(n, 0);
		assert_true(t >= 3000000);
	}
	if (n == 0)
		assert_int_equal(tn_io_close(io, w.file), -EBUSY);
	while (n < 2)
		n += tn_io_poll(io, done + n, 2 - n, SECOND_NS);
	took("write and sync", tn_now_ns(&tn_clock_system) - t0, takes_ns);
	assert_int_equal(w.status, 0);
	assert_int_equal(sync.status, 0);
	assert_int_equal(tn_io_close(io, w.file), 0);
	tn_io_destroy(io);
}

static void directories_are_drives_of_their_own_and_other_files_take_no_time(void **state)
{
	static const struct tn_mix slow = {.version = 1, .read_bps = 20480, .write_bps = 20480, .mixed_bps = 20480};
	struct tn_ioengine_opts eo = {.alloc = &tn_alloc_system, .clock = &tn_clock_system};
	char dirs[3][64] = {"/tmp/tenuto-paced-XXXXXX", "/tmp/tenuto-paced-XXXXXX", ""}, path[3][80];
	const char *two[2] = {dirs[0], dirs[1]};
	struct tn_paced_opts o = {.mix = &slow, .stretch = 1, .dirs = two, .ndirs = 2, .alloc = &tn_alloc_system,
				  .clock = &tn_clock_system};
	struct tn_paced *paced;
	struct tn_io *inner, *io, *other;
	char *mem = aligned_alloc(4096, 4096);
	struct iovec iov = {mem, 4096};
	struct tn_io_req req[3], *all[3], *done[3];
	const uint64_t each_ns = 200000000; /* 4 KiB at 20 KiB/s */
	struct tn_io_lent lent;
	uint64_t t0, t;
	unsigned n;

	memset(mem, 0, 4096);
	assert_non_null(mkdtemp(dirs[0]));
	assert_non_null(mkdtemp(dirs[1]));
	snprintf(dirs[2], sizeof(dirs[2]), "%.40s-not", dirs[0]); /* begins with a drive's name, but is not in its directory */
	assert_int_equal(tn_paced_create(&o, &paced), 0);
	assert_int_equal(tn_ioengine_create(&eo, &inner), 0);
	assert_int_equal(tn_io_paced_create(inner, 256, paced, &io), 0);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path[i], sizeof(path[i]), i == 2 ? "%s" : "%s/file", dirs[i]);
		req[i] = (struct tn_io_req){.op = TN_IO_WRITE, .length = 4096, .iov = &iov, .iov_count = 1};
		assert_int_equal(tn_io_open(io, path[i], TN_IO_CREATE, &req[i].file), 0);
		all[i] = &req[i];
	}
	t0 = tn_now_ns(&tn_clock_system);
	assert_int_equal(tn_io_submit(io, all, 3), 3);
	n = tn_io_poll(io, done, 3, SECOND_NS);
	/* Unless the machine stood still that long. */
	if (tn_now_ns(&tn_clock_system) - t0 < each_ns) {
		assert_int_equal(n, 1);
		assert_ptr_equal(done[0], &req[2]);
	}
	while (n < 3)
		n += tn_io_poll(io, done, 3, SECOND_NS);
	t = tn_now_ns(&tn_clock_system) - t0;
	took("two drives at the same time", t, each_ns);
	/* An adopted file lies on the same drive as the lender's file. */
	assert_int_equal(tn_ioengine_create(&eo, &inner), 0);
	assert_int_equal(tn_io_paced_create(inner, 256, paced, &other), 0);
	assert_int_equal(tn_io_lend(io, req[1].file, &lent), 0);
	assert_int_equal(tn_io_adopt(other, &lent, &req[1].file), 0);
	t0 = tn_now_ns(&tn_clock_system);
	assert_int_equal(tn_io_submit(other, &all[1], 1), 1);
	while (tn_io_poll(other, done, 1, SECOND_NS) == 0) /* the disk below may be busy with others for longer */
		;
	took("an adopted file", tn_now_ns(&tn_clock_system) - t0, each_ns);
	tn_io_destroy(other);
	tn_io_destroy(io);
	tn_paced_destroy(paced);
	for (unsigned i = 0; i < 3; i++)
		unlink(path[i]);
	rmdir(dirs[0]);
	rmdir(dirs[1]);
	free(mem);
}

static void keep_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	snprintf(arg, 256, "%s", text);
}

static void what_cannot_be_paced_is_refused_and_what_is_too_fast_is_told(void **state)
{
	struct tn_mix fast = mix;
	char line[256] = "";
	struct tn_log log = {keep_line, line, TN_LOG_WARN};
	struct tn_paced_opts o = {.mix = &mix, .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &log};
	struct tn_paced *paced = NULL;
	struct tn_io *io = NULL;

	assert_int_equal(tn_paced_create(&o, &paced), -EINVAL);
	o.stretch = TN_PACED_STRETCH_MAX + 1;
	assert_int_equal(tn_paced_create(&o, &paced), -EINVAL);
	o.stretch = 16;
	o.ndirs = 17;
	assert_int_equal(tn_paced_create(&o, &paced), -EINVAL);
	o.ndirs = 0;
	assert_null(paced);
	fast.write_bps = TN_MIX_BPS_MAX;
	o.mix = &fast;
	assert_int_equal(tn_paced_create(&o, &paced), 0);
	assert_non_null(strstr(line, "stretch by "));
	assert_int_equal(tn_io_paced_create(NULL, 0, paced, &io), -EINVAL);
	assert_int_equal(tn_io_paced_create(NULL, 4097, paced, &io), -EINVAL);
	assert_null(io);
	tn_paced_destroy(paced);
	tn_paced_destroy(NULL);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(reads_take_their_bytes_over_the_bandwidth),
		T(writes_take_their_bytes_over_the_bandwidth),
		T(two_threads_that_read_and_write_share_the_mixed_bandwidth),
		T(one_read_takes_the_latency_and_its_bytes),
		T(a_sync_waits_for_the_writes_before_it_and_time_outs_hold_meanwhile),
		cmocka_unit_test(directories_are_drives_of_their_own_and_other_files_take_no_time),
		cmocka_unit_test(what_cannot_be_paced_is_refused_and_what_is_too_fast_is_told),
	};

	return cmocka_run_group_tests_name("paced", tests, NULL, NULL);
}
