/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract suite on the real engines, on tmpfs and on disk (TMPDIR, else /var/tmp): io_uring as this
 * kernel has it and as older ones do, POSIX threads, and the faulty wrapper doing nothing, and doing all that
 * the contract allows.
 */
#include <errno.h>

#include "ioengine/engine.h"
#include "ioengine/faulty_rig.h"
#include "ioengine/io_contract.h"
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
	return create_uring_without(depth, log, TN_URING_NO_DEFER, out);
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

/* Completes late and out of order, and refuses without a reason. The contract allows all three. */
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

#define REAL (TN_CONTRACT_THREADS | TN_CONTRACT_FILES)

static const struct tn_contract_engine engines[] = {
	{"posix", create_posix, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring", create_uring, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-coop", create_uring_coop, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-5.10", create_uring_old, REAL | TN_CONTRACT_EXACT, NULL},
	{"uring-refused", create_uring_refused, REAL | TN_CONTRACT_EXACT, NULL},
	{"faulty", create_faultless, REAL | TN_CONTRACT_EXACT, NULL},
	{"unruly", create_unruly, REAL, NULL},
};

int main(void)
{
	return tn_contract_main("io", engines, sizeof(engines) / sizeof(engines[0]));
}
