/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that no CPU maps, through a provider of bus addresses: a device's in this test, at addresses of its own that nobody may touch. What the controller
 * reaches there lies in memory that only the test knows.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "lab/soft_rig.h"
#include "tn_test.h"

#define STEP_NS 1000000ull
#define BYTES (16u * TN_NVME_PAGE)
#define DEVICE ((unsigned char *)((uintptr_t)1 << 46)) /* the device's address of its memory */
#define BLOCKS 96u				       /* of 512 bytes: of a transfer */

struct rig {
	struct tn_soft *soft;
	struct tn_nvme *n;
	struct tn_clock clock;
	uint64_t now;
	struct tn_nvme_provider provider;
	unsigned char *backing;
	uint32_t attached, fails; /* fails: what attach says */
	bool lost;		  /* translate knows nothing */
};

static uint64_t now_of(void *arg)
{
	struct rig *r = arg;

	return r->now += STEP_NS;
}

/* ---- the device ------------------------------------------------------------------------------------------------ */

static int attach(void *arg, const struct tn_nvme_port *port, void *memory, uint64_t bytes)
{
	struct rig *r = arg;

	assert_ptr_equal(port, tn_soft_port(r->soft));
	assert_ptr_equal(memory, DEVICE);
	if (r->fails)
		return tn_fail(-(int)r->fails, "the device does not export it");
	r->attached++;
	return port->map(port->arg, r->backing, bytes);
}

static void detach(void *arg, const struct tn_nvme_port *port, void *memory, uint64_t bytes)
{
	struct rig *r = arg;

	assert_ptr_equal(memory, DEVICE);
	r->attached--;
	port->unmap(port->arg, r->backing, bytes);
}

static int translate(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	struct rig *r = arg;
	const struct tn_nvme_port *port = tn_soft_port(r->soft);

	if (r->lost)
		return tn_fail(-EFAULT, "the device does not know it");
	return port->translate(port->arg, address - (uintptr_t)DEVICE + (uintptr_t)r->backing, length, bus, contiguous);
}

/* ---- the controller ---------------------------------------------------------------------------------------------- */

static void setup(struct rig *r, uint32_t sgl)
{
	struct tn_nvme_opts o = {.alloc = &tn_alloc_system, .clock = &r->clock, .queues = 1, .entries = 8};
	struct tn_soft_opts so;

	memset(r, 0, sizeof(*r));
	r->clock = (struct tn_clock){.now_ns = now_of, .wall_ns = now_of, .arg = r};
	r->provider = (struct tn_nvme_provider){.attach = attach, .detach = detach, .translate = translate, .arg = r};
	tn_soft_opts_init(&so);
	so.seed = tn_test_seed();
	so.sgl = sgl;
	so.scattered = 3;
	assert_int_equal(tn_soft_create(&so, &r->soft), 0);
	o.port = tn_soft_port(r->soft);
	assert_int_equal(tn_nvme_create(&o, &r->n), 0);
	r->backing = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(r->backing != MAP_FAILED);
}

static void down(struct rig *r)
{
	assert_int_equal(r->attached, 0);
	tn_nvme_destroy(r->n);
	soft_rig_no_findings(r->soft);
	tn_soft_destroy(r->soft);
	munmap(r->backing, BYTES);
}

/* BLOCKS blocks of the device's memory; the status. */
static uint32_t transfer(struct rig *r, const struct tn_p2p *table, uint32_t opcode, uint64_t block, const unsigned char *device)
{
	const struct tn_nvme_port *port = tn_soft_port(r->soft);
	struct tn_nvme_queue *q = tn_nvme_io_queue(r->n, 0);
	struct tn_nvme_command c = tn_nvme_transfer(opcode, 1, block, BLOCKS);
	struct tn_nvme_completion done;
	struct tn_nvme_piece piece[16];
	struct tn_nvme_list list = {.bytes = TN_NVME_PAGE};
	int n = tn_p2p_find(table, (uintptr_t)device, BLOCKS * 512, piece, 16);

	assert_true(n > 1);
	list.memory = port->get(port->arg, list.bytes, &list.bus);
	assert_int_equal(tn_nvme_info(r->n)->sgl ? tn_nvme_set_sgl(&c, piece, (uint32_t)n, &list) : tn_nvme_set_prps(&c, piece, (uint32_t)n, &list), 0);
	c.id = (uint16_t)tn_nvme_queue_id(q);
	tn_nvme_queue_put(q, &c);
	tn_nvme_queue_ring(q);
	for (uint32_t i = 0; !tn_nvme_queue_poll(q, &done); i++) {
		assert_in_range(i, 0, 1000);
		port->pause(port->arg);
	}
	tn_nvme_queue_took(q);
	tn_nvme_queue_give(q, done.id);
	port->put(port->arg, list.memory, list.bytes);
	return tn_nvme_status(&done);
}

static void bytes_go_to_and_from_memory_that_only_the_provider_knows(void **state)
{
	struct rig r;

	for (uint32_t sgl = 0; sgl < 2; sgl++) {
		const struct tn_p2p *table, *again;

		setup(&r, sgl);
		assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &table), 0);
		assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &again), 0);
		assert_ptr_equal(table, again);
		assert_int_equal(r.attached, 1);
		for (uint32_t i = 0; i < BLOCKS * 512; i++)
			r.backing[TN_NVME_PAGE + i] = (unsigned char)(i * 7 + i / 512);
		assert_int_equal(transfer(&r, table, TN_NVME_WRITE, 40, DEVICE + TN_NVME_PAGE), 0);
		assert_memory_equal(tn_soft_media(r.soft) + 40 * 512, r.backing + TN_NVME_PAGE, BLOCKS * 512);
		memset(r.backing, 0, BYTES);
		assert_int_equal(transfer(&r, table, TN_NVME_READ, 40, DEVICE + 2 * TN_NVME_PAGE), 0);
		assert_memory_equal(tn_soft_media(r.soft) + 40 * 512, r.backing + 2 * TN_NVME_PAGE, BLOCKS * 512);
		tn_nvme_unmap(r.n, DEVICE, BYTES);
		assert_int_equal(r.attached, 1);
		tn_nvme_unmap(r.n, DEVICE, BYTES);
		assert_int_equal(r.attached, 0);
		down(&r);
	}
}

static void without_a_provider_it_is_refused_with_the_reason(void **state)
{
	const struct tn_p2p *table = NULL;
	struct rig r;

	setup(&r, 1);
	assert_int_equal(tn_nvme_map_other(r.n, NULL, DEVICE, BYTES, &table), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "its bus leads to memory of this process alone"));
	assert_null(table);
	down(&r);
}

static void a_provider_that_fails_leaves_nothing_behind(void **state)
{
	const struct tn_p2p *table = NULL;
	struct rig r;

	setup(&r, 1);
	assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES - 1, &table), -EINVAL);
	r.fails = EACCES;
	assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &table), -EACCES);
	r.fails = 0;
	r.lost = true;
	assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &table), -EFAULT);
	assert_int_equal(r.attached, 0);
	assert_null(table);
	r.lost = false;
	assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &table), 0);
	tn_nvme_unmap(r.n, DEVICE, BYTES);
	down(&r);
}

static void two_providers_do_not_have_the_same_memory(void **state)
{
	const struct tn_p2p *table, *none = NULL;
	struct tn_nvme_provider second;
	struct rig r;

	setup(&r, 1);
	second = r.provider;
	assert_int_equal(tn_nvme_map_other(r.n, &r.provider, DEVICE, BYTES, &table), 0);
	assert_int_equal(tn_nvme_map_other(r.n, &second, DEVICE, BYTES, &none), -EEXIST);
	assert_int_equal(tn_nvme_map_other(r.n, &second, DEVICE, 2 * BYTES, &none), -EEXIST);
	assert_int_equal(tn_nvme_map(r.n, DEVICE, BYTES, &none), -EEXIST);
	assert_null(none);
	assert_int_equal(r.attached, 1);
	tn_nvme_unmap(r.n, DEVICE, BYTES);
	down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_go_to_and_from_memory_that_only_the_provider_knows),
		cmocka_unit_test(without_a_provider_it_is_refused_with_the_reason),
		cmocka_unit_test(a_provider_that_fails_leaves_nothing_behind),
		cmocka_unit_test(two_providers_do_not_have_the_same_memory),
	};

	return cmocka_run_group_tests_name("nvme-provider", tests, NULL, NULL);
}
