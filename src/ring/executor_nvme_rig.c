/* SPDX-License-Identifier: Apache-2.0 */
#include "executor_nvme_rig.h"

#include <string.h>

#include "lab/soft_rig.h"

#define STEPS 4u

void rig_nvme_opts_init(struct rig_nvme_opts *o)
{
	*o = (struct rig_nvme_opts){.entries = 16, .queues = 2};
	tn_soft_opts_init(&o->soft);
	o->soft.cache = false; /* nothing here cuts the power, and the cache keeps what each write that is not flushed replaced */
	o->soft.seed = tn_test_seed();
	o->soft.steps = 5;
	o->soft.late_steps = 200;
	o->soft.scattered = 3;
}

void rig_nvme_up(struct rig_nvme *n, const struct rig_nvme_opts *o)
{
	const struct tn_clock *clock = o->clock ? o->clock : &tn_clock_system;
	struct tn_nvme_opts no = {.alloc = &tn_alloc_system, .clock = clock, .queues = o->queues, .entries = o->entries, .admin_ns = o->admin_ns};
	struct tn_nvme_engine_opts eo = {.alloc = &tn_alloc_system, .clock = clock,
					 .command_ns = o->clock ? o->command_ns : 0, .force = true};
	struct tn_soft_opts so = o->soft;

	memset(n, 0, sizeof(*n));
	n->o = *o;
	so.blocks = (o->file_bytes + (1u << 20)) / so.block_bytes;
	assert_int_equal(tn_soft_create(&so, &n->soft), 0);
	tn_soft_fault(n->soft, &(struct tn_soft_chances){0}); /* until the file is there */
	if (o->thread)
		assert_int_equal(tn_soft_start(n->soft), 0);
	no.port = eo.port = tn_soft_port(n->soft);
	assert_int_equal(tn_nvme_create(&no, &n->nvme), 0);
	eo.nvme = n->nvme;
	assert_int_equal(tn_nvme_engine_create(&eo, &n->io), 0);
	assert_int_equal(tn_io_open(n->io, "store", TN_IO_CREATE, &n->file), 0);
	assert_int_equal(tn_io_allocate(n->io, n->file, 0, o->file_bytes), 0);
	n->drive = (struct tn_ring_drive){.nvme = n->nvme, .port = eo.port, .queue = 1};
	tn_nvme_engine_range(n->io, &n->drive.first, &n->drive.blocks);
	if (!o->thread)
		tn_soft_fault(n->soft, &so.chances);
}

void rig_nvme_down(struct rig_nvme *n)
{

	tn_io_destroy(n->io);
	tn_nvme_destroy(n->nvme);
	tn_soft_stop(n->soft);
	soft_rig_no_findings(n->soft);
	tn_soft_destroy(n->soft);
}

unsigned char *rig_nvme_bytes(struct rig_nvme *n)
{
	return tn_soft_media(n->soft) + n->drive.first * n->o.soft.block_bytes;
}

void rig_nvme_step(struct rig_nvme *n)
{
	for (uint32_t i = 0; i < STEPS && !n->o.thread; i++)
		tn_soft_step(n->soft);
}
