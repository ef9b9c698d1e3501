/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract suite on the real engines, on tmpfs and on disk (TMPDIR, else /var/tmp): io_uring as this
 * kernel has it and as older ones do, POSIX threads, the faulty wrapper doing nothing, and doing all that
 * the contract allows, and the paced wrapper over them.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <tenuto/error.h>

#include "ioengine/engine.h"
#include "ioengine/io_contract.h"
#include "ioengine/paced.h"
#include "ioengine/uring.h"

static struct tn_ioengine_opts options(uint32_t depth, const struct tn_log *log)
{
	return (struct tn_ioengine_opts){.depth = depth, .threads = 4, .alloc = &tn_alloc_system,
					 .clock = &tn_clock_system, .log = log};
}

static int create_uring_without(uint32_t depth, const struct tn_log *log, unsigned without, struct tn_io **out)
{
	struct tn_ioengine_opts o = options(depth, log);

	return tn_ioengine_uring_create(&o, without, out);
}

static int create_uring(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	return create_uring_without(depth, log, 0, out);
}

/* Linux 5.19 to 6.0. */
static int create_uring_coop(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	return create_uring_without(depth, log, TN_URING_NO_DEFER | TN_URING_NO_VEC_FIXED, out);
}

/* Linux 5.10: nothing but the operations. */
static int create_uring_old(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	return create_uring_without(depth, log, TN_URING_NO_ANY, out);
}

/* A sandbox forbade io_uring_enter: threads took over. */
static int create_uring_refused(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	int err = create_uring(depth, log, out);

	if (!err)
		tn_uring_fall_back((struct tn_uring *)*out, -EPERM);
	return err;
}

static int create_posix(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_ioengine_opts o = options(depth, log);

	return tn_ioengine_posix_create(&o, out);
}

static int wrap(struct tn_io *inner, const struct tn_io_faulty_opts *opts, struct tn_io **out)
{
	int err = tn_io_faulty_create(inner, opts, out);

	if (err)
		tn_io_destroy(inner);
	return err;
}

static int create_faultless(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_io_faulty_opts o = {.seed = 1, .clock = &tn_clock_system};
	struct tn_io *inner;
	int err = create_uring(depth, log, &inner);

	return err ? err : wrap(inner, &o, out);
}

/* Late, out of order, and refusing for no reason: all within the contract. */
static int create_unruly(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	static const struct tn_fault late[] = {
		{.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 10, .delay_ns = 2000000},
		{.kind = TN_FAULT_LATE, .op = TN_IO_WRITE, .count = UINT64_MAX, .percent = 10, .delay_ns = 1000000}};
	struct tn_io_faulty_opts o = {.faults = late, .fault_count = 2, .reorder = true, .submit_eagain_percent = 20,
				      .seed = tn_test_seed(), .clock = &tn_clock_system};
	struct tn_io *inner;
	int err = create_uring(depth, log, &inner);

	return err ? err : wrap(inner, &o, out);
}

/* A drive that is fast enough for the suite; shared, as by the engines of one cache. */
static int pace(struct tn_io *inner, uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	static const struct tn_mix mix = {.version = TN_MIX_VERSION, .read_bps = 48000000000, .write_bps = 32000000000,
					  .mixed_bps = 32000000000, .read_latency_ns = 5000, .write_latency_ns = 2000};
	static struct tn_paced *shared;
	struct tn_paced_opts o = {.mix = &mix, .stretch = 16, .alloc = &tn_alloc_system, .clock = &tn_clock_system,
				  .log = log};
	int err = shared ? 0 : tn_paced_create(&o, &shared);

	if (!err)
		err = tn_io_paced_create(inner, depth, shared, out);
	if (err)
		tn_io_destroy(inner);
	return err;
}

static int create_paced_uring(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_io *inner;
	int err = create_uring(depth, log, &inner);

	return err ? err : pace(inner, depth, log, out);
}

static int create_paced_posix(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_io *inner;
	int err = create_posix(depth, log, &inner);

	return err ? err : pace(inner, depth, log, out);
}

/* The inner engine refuses, and comes late and out of order. */
static int create_paced_unruly(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_io *inner;
	int err = create_unruly(depth, log, &inner);

	return err ? err : pace(inner, depth, log, out);
}

#define REAL (TN_CONTRACT_THREADS | TN_CONTRACT_FILES)

static const struct tn_contract_engine engines[] = {
	{"posix", create_posix, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring", create_uring, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-coop", create_uring_coop, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-5.10", create_uring_old, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-refused", create_uring_refused, REAL | TN_CONTRACT_EXACT, NULL},
	{"faulty", create_faultless, REAL | TN_CONTRACT_EXACT, NULL},
	{"unruly", create_unruly, REAL, NULL},
	{"paced", create_paced_uring, REAL | TN_CONTRACT_EXACT, NULL},
	{"paced-posix", create_paced_posix, REAL | TN_CONTRACT_EXACT, NULL},
	{"paced-unruly", create_paced_unruly, REAL, NULL},
};

int main(void)
{
	static struct CMUnitTest tests[1024];
	const char *dirs[2] = {"/dev/shm", getenv("TMPDIR")};
	struct tn_io *probe;
	size_t n = 0, first = 0;

	if (!dirs[1] || !dirs[1][0])
		dirs[1] = "/var/tmp";
	tn_test_seed();
	if (access(dirs[0], W_OK)) {
		printf("# %s is not writable: not tested on tmpfs\n", dirs[0]);
		first = 1;
	}
	for (size_t e = 0; e < sizeof(engines) / sizeof(engines[0]); e++) {
		if (engines[e].create(8, NULL, &probe)) {
			printf("# %s: %s\n", engines[e].name, tn_error_last()->text);
			continue;
		}
		tn_io_destroy(probe);
		for (size_t d = first; d < 2; d++) {
			n = tn_contract_add(tests, n, 1024, &engines[e], dirs[d]);
			n = tn_contract_add_files(tests, n, 1024, &engines[e], dirs[d]);
		}
	}
	return _cmocka_run_group_tests("io", tests, n, NULL, NULL);
}
