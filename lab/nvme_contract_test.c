/* SPDX-License-Identifier: Apache-2.0 */
/* The contract's suite on the NVMe engine, over several kinds of software controllers. The controllers look at how they are driven. */
#include <string.h>

#include <tenuto/error.h>

#include "ioengine/io_contract.h"
#include "lab/soft_rig.h"
#include "nvme/engine.h"

#define ENGINES_MAX 8u /* at once */

/* An engine with all that is below it. */
struct stack {
	struct tn_io_ops ops;
	const struct tn_io_ops *real;
	struct tn_io *io;
	struct tn_nvme *nvme;
	struct tn_soft *soft;
};

static struct stack stacks[ENGINES_MAX];

static struct stack *stack_of(const struct tn_io *io)
{
	for (uint32_t i = 0; i < ENGINES_MAX; i++)
		if (stacks[i].io == io)
			return &stacks[i];
	return NULL;
}

static void destroy(struct tn_io *io)
{
	struct stack *s = stack_of(io);

	s->real->destroy(io);
	tn_nvme_destroy(s->nvme);
	tn_soft_stop(s->soft);
	soft_rig_no_findings(s->soft);
	tn_soft_destroy(s->soft);
	memset(s, 0, sizeof(*s));
}

static int create(const struct tn_soft_opts *o, bool threaded, uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct stack *s = stack_of(NULL);
	struct tn_nvme_opts n = {.alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = log, .queues = 1, .entries = 32};
	struct tn_nvme_engine_opts e = {.depth = depth, .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = log};
	int rc = tn_soft_create(o, &s->soft);

	assert_int_equal(rc, 0);
	if (threaded)
		assert_int_equal(tn_soft_start(s->soft), 0);
	n.port = e.port = tn_soft_port(s->soft);
	assert_int_equal(tn_nvme_create(&n, &s->nvme), 0);
	e.nvme = s->nvme;
	assert_int_equal(tn_nvme_engine_create(&e, &s->io), 0);
	s->real = s->io->ops;
	s->ops = *s->real;
	s->ops.destroy = destroy;
	s->io->ops = &s->ops;
	*out = s->io;
	return 0;
}

static struct tn_soft_opts soft_opts(void)
{
	struct tn_soft_opts o;

	tn_soft_opts_init(&o);
	o.blocks = 128 << 11; /* 128 MiB */
	o.seed = tn_test_seed();
	return o;
}

static int create_sgl(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_soft_opts o = soft_opts();

	return create(&o, false, depth, log, out);
}

/* PRPs, short transfers, blocks of 4 KiB, everything late and out of order. */
static int create_poor(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_soft_opts o = soft_opts();

	o.sgl = 0;
	o.mdts = 2;
	o.block_bytes = 4096;
	o.blocks >>= 3;
	o.steps = 5;
	o.scattered = 3;
	o.zeroes = true;
	return create(&o, false, depth, log, out);
}

static int create_threaded(uint32_t depth, const struct tn_log *log, struct tn_io **out)
{
	struct tn_soft_opts o = soft_opts();

	o.zeroes = true;
	return create(&o, true, depth, log, out);
}

static void crash(struct tn_io *io)
{
	struct stack *s = stack_of(io);

	assert_int_equal(tn_io_close(io, 0), 0);
	tn_soft_power_cut(s->soft);
	assert_int_equal(tn_nvme_reset(s->nvme), 0);
}

int main(void)
{
	static const struct tn_contract_engine engines[] = {
		{"nvme with SGLs", create_sgl, TN_CONTRACT_THREADS | TN_CONTRACT_EXACT, crash},
		{"nvme with PRPs, late", create_poor, TN_CONTRACT_EXACT, crash},
		{"nvme, its controller a thread", create_threaded, TN_CONTRACT_THREADS | TN_CONTRACT_EXACT, NULL},
	};
	static struct CMUnitTest tests[64];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
		n = tn_contract_add(tests, n, 64, &engines[i], "nvme:");
	return _cmocka_run_group_tests("nvme-contract", tests, n, NULL, NULL);
}
