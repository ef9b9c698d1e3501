/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract suite on the paced wrapper: over io_uring, over POSIX threads, and over an engine that does all that the
 * contract allows.
 */
#include "ioengine/faulty_rig.h"
#include "ioengine/io_contract.h"
#include "ioengine/ioengine.h"
#include "lab/paced.h"

static int create_engine(enum tn_ioengine_kind kind, uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_ioengine_opts o = {.kind = kind, .depth = depth, .threads = 4, .alloc = &tn_alloc_system,
				     .clock = &tn_clock_system, .log = log};

	return tn_ioengine_create(&o, out);
}

static int wrap(struct tn_io *inner, const struct tn_io_faulty_opts *opts, struct tn_io **out)
{
	int err = tn_io_faulty_create(inner, opts, out);

	if (err)
		tn_io_destroy(inner);
	return err;
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
	int err = create_engine(TN_IOENGINE_URING, depth, log, &inner);

	return err ? err : wrap(inner, &o, out);
}

/* A drive that is fast enough for the suite. All engines share it, as those of one cache do. */
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
	int err = create_engine(TN_IOENGINE_URING, depth, log, &inner);

	return err ? err : pace(inner, depth, log, out);
}

static int create_paced_posix(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_io *inner;
	int err = create_engine(TN_IOENGINE_POSIX, depth, log, &inner);

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

int main(void)
{
	static const struct tn_contract_engine engines[] = {
		{"paced", create_paced_uring, REAL | TN_CONTRACT_EXACT, NULL},
		{"paced-posix", create_paced_posix, REAL | TN_CONTRACT_EXACT, NULL},
		{"paced-unruly", create_paced_unruly, REAL, NULL},
	};

	return tn_contract_main("paced-contract", engines, sizeof(engines) / sizeof(engines[0]));
}
