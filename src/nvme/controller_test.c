/* SPDX-License-Identifier: Apache-2.0 */
/* The driver against the software controller: bring-up, limits, refusals, aborts, resets, ends. Time passes by steps of the controller. */
#include <errno.h>
#include <pthread.h>
#include <linux/mman.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "lab/soft_rig.h"
#include "tn_test.h"

#define STEP_NS 1000000ull

struct rig {
	struct soft_rig s; /* first: the port's functions have it as their argument */
	struct tn_soft_opts o;
	struct tn_nvme_opts nvme;
	struct tn_nvme *n;
	bool restarted; /* shared */
	uint32_t absent; /* for so many steps it does nothing, or its registers read as ones */
};

static void setup(struct rig *r)
{
	memset(r, 0, sizeof(*r));
	tn_soft_opts_init(&r->o);
	r->o.seed = tn_test_seed();
	r->nvme = (struct tn_nvme_opts){.alloc = &tn_alloc_system, .queues = 2, .entries = 32, .admin_ns = 500 * STEP_NS};
}

static void make_controller(struct rig *r)
{
	soft_rig_up(&r->s, &r->o, STEP_NS);
	r->nvme.port = &r->s.port;
	r->nvme.clock = &r->s.clock;
}

static int up(struct rig *r)
{
	if (!r->s.soft)
		make_controller(r);
	r->n = NULL;
	return tn_nvme_create(&r->nvme, &r->n);
}

static void must_come_up(struct rig *r)
{
	int rc = up(r);

	if (rc)
		fail_msg("%d: %s", rc, tn_error_last()->text);
}

static void down(struct rig *r)
{
	tn_nvme_destroy(r->n);
	soft_rig_no_findings(r->s.soft);
	tn_soft_destroy(r->s.soft);
}

/* One block, alone on its queue; the status, or -1: nothing came. */
static int transfer(struct rig *r, uint32_t queue, uint32_t opcode, uint64_t block, unsigned char *memory, uint64_t bus, uint32_t *id)
{
	struct tn_nvme_queue *q = tn_nvme_io_queue(r->n, queue);
	struct tn_nvme_command c = tn_nvme_transfer(opcode, 1, block, 1);
	struct tn_nvme_completion done = {0};

	c.data[0] = bus;
	*id = tn_nvme_queue_id(q);
	c.id = (uint16_t)*id;
	tn_nvme_queue_put(q, &c);
	tn_nvme_queue_ring(q);
	for (int i = 0; i < 100; i++) {
		soft_rig_step(&r->s);
		if (!tn_nvme_queue_poll(q, &done))
			continue;
		tn_nvme_queue_took(q);
		assert_int_equal(done.id, *id);
		tn_nvme_queue_give(q, *id);
		return (int)tn_nvme_status(&done);
	}
	return -1;
}

static void it_comes_up_says_what_it_is_and_moves_a_block(void **state)
{
	unsigned char *memory;
	uint64_t bus;
	uint32_t id;
	struct rig r;

	setup(&r);
	r.o.stride = 2;
	r.o.sgl = 0;
	must_come_up(&r);
	assert_string_equal(tn_nvme_info(r.n)->model, "Tenuto software controller");
	assert_string_equal(tn_nvme_info(r.n)->serial, "SOFT0001");
	assert_int_equal(tn_nvme_info(r.n)->blocks, r.o.blocks);
	assert_int_equal(tn_nvme_info(r.n)->block_bytes, 512);
	assert_int_equal(tn_nvme_info(r.n)->transfer_bytes, 131072);
	assert_int_equal(tn_nvme_info(r.n)->queues, 2);
	assert_int_equal(tn_nvme_info(r.n)->entries, 32);
	assert_true(tn_nvme_info(r.n)->cache && tn_nvme_info(r.n)->discard && !tn_nvme_info(r.n)->sgl);
	memory = r.s.port.get(r.s.port.arg, TN_NVME_PAGE, &bus);
	memset(memory, 0x5a, 512);
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(transfer(&r, i % 2, TN_NVME_WRITE, i, memory, bus, &id), 0);
	assert_int_equal(transfer(&r, 1, TN_NVME_READ, 99, memory, bus + 512, &id), 0);
	assert_memory_equal(memory, memory + 512, 512);
	assert_int_equal(tn_soft_media(r.s.soft)[99 * 512 + 511], 0x5a);
	assert_int_equal(transfer(&r, 0, TN_NVME_READ, r.o.blocks - 1, memory, bus, &id), 0);
	r.s.port.put(r.s.port.arg, memory, TN_NVME_PAGE);
	down(&r);
}

static void a_controller_with_less_gives_what_it_has(void **state)
{
	struct rig r;

	setup(&r);
	r.o.entries = 8;
	r.o.queues = 1;
	r.o.mdts = 0;
	r.o.block_bytes = 4096;
	must_come_up(&r);
	assert_int_equal(tn_nvme_info(r.n)->queues, 1);
	assert_int_equal(tn_nvme_info(r.n)->entries, 8);
	assert_int_equal(tn_nvme_info(r.n)->block_bytes, 4096);
	assert_int_equal(tn_nvme_info(r.n)->transfer_bytes, 65536u * 4096);
	down(&r);
}

/* Twenty LBA formats, the last of them in use; SGLs of a kind that is reserved; a short write zeroes, or no word about it. */
static void what_the_controller_says_of_its_limits_is_kept_to(void **state)
{
	unsigned char *memory;
	uint64_t bus;
	uint32_t id;
	struct rig r;

	setup(&r);
	r.o.formats = r.o.lba_format = 19;
	r.o.flbas = 0x23;
	r.o.block_bytes = 4096;
	r.o.sgl = 3;
	r.o.zeroes = true;
	r.o.wzsl = 2;
	must_come_up(&r);
	assert_int_equal(tn_nvme_info(r.n)->block_bytes, 4096);
	assert_false(tn_nvme_info(r.n)->sgl);
	assert_int_equal(tn_nvme_info(r.n)->zeroes_bytes, 4 * 4096);
	memory = r.s.port.get(r.s.port.arg, TN_NVME_PAGE, &bus);
	assert_int_equal(transfer(&r, 0, TN_NVME_READ, 5, memory, bus, &id), 0);
	r.s.port.put(r.s.port.arg, memory, TN_NVME_PAGE);
	down(&r);
	setup(&r);
	r.o.zeroes = r.o.ignorant = true;
	must_come_up(&r);
	assert_int_equal(tn_nvme_info(r.n)->zeroes_bytes, 65536 * 512);
	down(&r);
}

static void a_namespace_that_is_not_ours_to_drive_is_refused_by_name(void **state)
{
	struct rig r;

	setup(&r);
	r.o.metadata_bytes = 8;
	assert_int_equal(up(&r), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "namespace 1 has 8 bytes of metadata per block"));
	down(&r);
	setup(&r);
	r.nvme.namespace_id = 7;
	assert_int_equal(up(&r), -EREMOTEIO);
	down(&r);
}

static void options_out_of_bounds_are_refused(void **state)
{
	struct rig r;

	setup(&r);
	r.nvme.queues = 0;
	assert_int_equal(up(&r), -EINVAL);
	r.nvme.queues = 65;
	assert_int_equal(up(&r), -EINVAL);
	r.nvme.queues = 1;
	r.nvme.entries = 1;
	assert_int_equal(up(&r), -EINVAL);
	r.nvme.entries = 4097;
	assert_int_equal(up(&r), -EINVAL);
	r.nvme.entries = 64;
	r.s.port.register_bytes = TN_NVME_DOORBELLS + 8;
	assert_int_equal(up(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "no room for the doorbells"));
	tn_soft_destroy(r.s.soft);
}

/* What is lost is aborted; what was aborted gives its id back by its completion. */
static void a_lost_command_is_aborted(void **state)
{
	const struct tn_soft_chances lose = {.lost = 65536}, none = {0};
	struct tn_nvme_completion done = {0};
	unsigned char *memory;
	uint64_t bus;
	uint32_t id;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	memory = r.s.port.get(r.s.port.arg, TN_NVME_PAGE, &bus);
	tn_soft_fault(r.s.soft, &lose);
	assert_int_equal(transfer(&r, 0, TN_NVME_READ, 5, memory, bus, &id), -1);
	tn_soft_fault(r.s.soft, &none);
	assert_int_equal(tn_nvme_abort(r.n, 0, id), 0);
	soft_rig_step(&r.s);
	assert_int_equal(tn_nvme_queue_poll(tn_nvme_io_queue(r.n, 0), &done), 1);
	tn_nvme_queue_took(tn_nvme_io_queue(r.n, 0));
	assert_int_equal(done.id, id);
	assert_int_equal(tn_nvme_status(&done), TN_NVME_ABORTED);
	tn_nvme_queue_give(tn_nvme_io_queue(r.n, 0), id);
	assert_int_equal(tn_nvme_abort(r.n, 0, id), -EALREADY);
	assert_int_equal(transfer(&r, 0, TN_NVME_READ, 5, memory, bus, &id), 0);
	r.s.port.put(r.s.port.arg, memory, TN_NVME_PAGE);
	down(&r);
}

static void a_reset_ends_what_is_under_way_and_it_goes_on(void **state)
{
	struct tn_soft_chances fault = {.lost = 65536};
	unsigned char *memory;
	uint64_t bus;
	uint32_t id;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	memory = r.s.port.get(r.s.port.arg, TN_NVME_PAGE, &bus);
	for (uint32_t i = 0; i < 20; i++) {
		tn_soft_fault(r.s.soft, &fault);
		assert_int_equal(transfer(&r, i % 2, TN_NVME_WRITE, i, memory, bus, &id), -1);
		if (i % 5 == 4) {
			fault = (struct tn_soft_chances){.fatal = 65536, .lost = 65536};
			tn_soft_fault(r.s.soft, &fault);
			soft_rig_step(&r.s);
			assert_int_equal(tn_nvme_check(r.n), -EIO);
		}
		fault = (struct tn_soft_chances){.lost = 65536};
		tn_soft_fault(r.s.soft, &(struct tn_soft_chances){0});
		assert_int_equal(tn_nvme_reset(r.n), 0);
		assert_int_equal(tn_nvme_check(r.n), 0);
		assert_int_equal(transfer(&r, i % 2, TN_NVME_WRITE, i, memory, bus, &id), 0);
	}
	r.s.port.put(r.s.port.arg, memory, TN_NVME_PAGE);
	down(&r);
}

static void one_that_is_unplugged_is_gone_and_nothing_waits(void **state)
{
	struct rig r;
	uint64_t before;

	setup(&r);
	must_come_up(&r);
	tn_soft_unplug(r.s.soft);
	before = r.s.now;
	assert_int_equal(tn_nvme_check(r.n), -ENODEV);
	assert_int_equal(tn_nvme_abort(r.n, 0, 1), -ENODEV);
	assert_int_equal(tn_nvme_reset(r.n), -ENODEV);
	tn_nvme_destroy(r.n);
	assert_true(r.s.now - before < 20 * STEP_NS);
	assert_int_equal(up(&r), -ENODEV);
	tn_soft_destroy(r.s.soft);
}

/* A controller that answers nothing: each call ends by its deadline. */
static void one_that_does_not_answer_ends_every_call_in_time(void **state)
{
	struct tn_nvme_command c = tn_nvme_command_of(TN_NVME_SET_FEATURES, 0);
	uint32_t result;
	uint64_t before;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	r.s.dead = true;
	for (int i = 0; i < 40; i++) { /* more than there are ids */
		before = r.s.now;
		assert_int_equal(tn_nvme_admin(r.n, &c, &result), -ETIMEDOUT);
		assert_true(r.s.now - before <= 502 * STEP_NS);
	}
	before = r.s.now;
	assert_int_equal(tn_nvme_reset(r.n), -ETIMEDOUT);
	assert_true(r.s.now - before <= 2100 * STEP_NS);
	r.s.dead = false;
	assert_int_equal(tn_nvme_reset(r.n), 0);
	assert_int_equal(tn_nvme_admin(r.n, &c, &result), 0);
	r.s.dead = true;
	before = r.s.now;
	tn_nvme_destroy(r.n);
	assert_true(r.s.now - before < 15000 * STEP_NS);
	tn_soft_destroy(r.s.soft);
}

static uint32_t *register_of(struct rig *r, uint32_t offset)
{
	return (uint32_t *)r->s.port.registers + offset / sizeof(uint32_t);
}

static void one_that_was_gone_is_cut_off_for_all_pairs_though_it_comes_back(void **state)
{
	uint32_t generation;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	tn_nvme_bell(register_of(&r, TN_NVME_CSTS), TN_NVME_GONE);
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), -ENODEV);
	assert_int_equal(r.s.cuts, 1);
	tn_nvme_bell(register_of(&r, TN_NVME_CSTS), TN_NVME_CSTS_READY);
	assert_int_equal(tn_nvme_check(r.n), -ENODEV);
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), -ENODEV);
	assert_int_equal(tn_nvme_renew(r.n, 0, &generation), -ENODEV);
	assert_int_equal(tn_nvme_renew(r.n, 1, &generation), -ENODEV);
	assert_int_equal(r.s.cuts, 1);
	tn_nvme_destroy(r.n);
	tn_soft_destroy(r.s.soft);
}

static void step_absent(void *arg)
{
	struct rig *r = arg;

	tn_nvme_bell(register_of(r, TN_NVME_CSTS), r->absent ? TN_NVME_GONE : TN_NVME_CSTS_READY);
	if (r->absent == 0) {
		r->s.port.pause = soft_rig_step;
		soft_rig_step(r);
		return;
	}
	r->absent--;
	r->s.now += STEP_NS;
}

/* Half a second longer than CAP.TO says, which is a second. */
static void one_that_reads_as_ones_during_its_reset_is_waited_for(void **state)
{
	uint64_t before;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	r.absent = 500;
	r.s.port.pause = step_absent;
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), 0);
	assert_int_equal(tn_nvme_check(r.n), 0);
	assert_int_equal(r.s.cuts, 0);
	r.absent = UINT32_MAX;
	r.s.port.pause = step_absent;
	before = r.s.now;
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), -ENODEV);
	assert_true(r.s.now - before >= 1500 * STEP_NS && r.s.now - before <= 2100 * STEP_NS);
	assert_int_equal(r.s.cuts, 1);
	tn_nvme_destroy(r.n);
	tn_soft_destroy(r.s.soft);
}

/* CAP.TO of 0, and 400 steps until CSTS.RDY follows CC.EN. */
static void step_slowly(void *arg)
{
	struct rig *r = arg;

	if (r->absent == 0)
		soft_rig_step(r);
	else
		r->s.now += STEP_NS;
	r->absent = r->absent ? r->absent - 1 : 400;
}

static void one_that_says_no_time_comes_up(void **state)
{
	struct rig r;

	setup(&r);
	make_controller(&r);
	*register_of(&r, TN_NVME_CAP) &= 0x00ffffff;
	r.nvme.admin_ns = 5000 * STEP_NS;
	r.absent = 400;
	r.s.port.pause = step_slowly;
	must_come_up(&r);
	r.s.port.pause = soft_rig_step;
	down(&r);
}

/* Of every other look at the clock ten seconds later, while a change of CSTS.RDY is waited for: the thread was not running, the controller was. */
static uint64_t now_of_a_thread_that_sleeps(void *arg)
{
	struct rig *r = arg;
	uint32_t cc = *register_of(r, TN_NVME_CC), status = *register_of(r, TN_NVME_CSTS);

	if ((cc & TN_NVME_CC_ENABLE) != (status & TN_NVME_CSTS_READY) && r->absent++ % 2) {
		r->s.now += 10000 * STEP_NS;
		tn_soft_step(r->s.soft);
	}
	return r->s.now;
}

static void the_status_is_read_once_more_after_the_deadline(void **state)
{
	struct rig r;

	setup(&r);
	must_come_up(&r);
	r.s.clock.now_ns = now_of_a_thread_that_sleeps;
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), 0);
	assert_int_equal(r.absent, 4);
	down(&r);
}

/* Every second for a minute, and no longer, though another pair is made again each time, before it or after it. */
static void a_pair_that_is_never_made_again_ends_with_the_controller_cut_off(void **state)
{
	for (uint32_t first = 0; first < 2; first++) {
		uint32_t generation, seconds = 0;
		struct rig r;
		int rc;

		setup(&r);
		must_come_up(&r);
		tn_soft_grant(r.s.soft, 2, 1);
		do {
			assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), 0);
			if (first)
				assert_int_equal(tn_nvme_renew(r.n, 0, &generation), 0);
			rc = tn_nvme_renew(r.n, 1, &generation);
			if (!first && rc != -ENODEV)
				assert_int_equal(tn_nvme_renew(r.n, 0, &generation), 0);
			assert_in_range(++seconds, 1, 70);
			r.s.now += 1000 * STEP_NS;
		} while (rc == -EREMOTEIO);
		assert_int_equal(rc, -ENODEV);
		assert_in_range(seconds, 55, 70);
		assert_int_equal(r.s.cuts, 1);
		tn_nvme_destroy(r.n);
		tn_soft_destroy(r.s.soft);
	}
}

static void one_that_grants_fewer_pairs_after_a_reset_has_not_come_back(void **state)
{
	struct rig r;

	setup(&r);
	must_come_up(&r);
	tn_soft_grant(r.s.soft, 1, 2);
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), -EIO);
	assert_non_null(strstr(tn_error_last()->text, "grants 1 pairs of queues after a reset, of 2 in use"));
	tn_soft_grant(r.s.soft, 3, 3);
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), 0);
	down(&r);
}

/* As a pair's thread does it. */
static void *restart(void *arg)
{
	struct rig *r = arg;
	uint32_t generation = tn_nvme_generation(r->n);

	if (tn_nvme_restart(r->n, generation) == 0 && tn_nvme_renew(r->n, 0, &generation) == 0)
		__atomic_store_n(&r->restarted, true, __ATOMIC_RELEASE);
	return NULL;
}

/* Pins for as long as a reset takes, on another thread. */
static int map_slowly(void *arg, void *memory, uint64_t bytes)
{
	struct rig *r = arg;
	const struct tn_nvme_port *p = tn_soft_port(r->s.soft);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, restart, r), 0);
	for (uint32_t ms = 0; !__atomic_load_n(&r->restarted, __ATOMIC_ACQUIRE); ms++) {
		assert_in_range(ms, 0, 20000);
		usleep(1000);
	}
	pthread_join(thread, NULL);
	return p->map(p->arg, memory, bytes);
}

static void a_reset_does_not_wait_for_memory_that_is_being_pinned(void **state)
{
	static _Alignas(TN_NVME_PAGE) unsigned char memory[4 * TN_NVME_PAGE];
	const struct tn_p2p *table;
	struct rig r;

	setup(&r);
	must_come_up(&r);
	r.s.port.map = map_slowly;
	assert_int_equal(tn_nvme_map(r.n, memory, sizeof(memory), &table), 0);
	tn_nvme_unmap(r.n, memory, sizeof(memory));
	down(&r);
}

/* A controller whose queues lie in memory of the caller's. */
static int up_in(struct rig *r, void *memory, uint64_t bytes)
{
	r->nvme.queue_memory = memory;
	r->nvme.queue_bytes = bytes;
	return up(r);
}

static bool lies_in(const void *p, const unsigned char *memory, uint64_t bytes)
{
	return (uintptr_t)p >= (uintptr_t)memory && (uintptr_t)p < (uintptr_t)memory + bytes;
}

static void queues_work_in(unsigned char *memory, uint64_t bytes)
{
	uint64_t bus, contiguous;
	unsigned char *data;
	uint32_t id;
	struct rig r;
	int rc;

	setup(&r);
	assert_true(bytes >= tn_nvme_queue_bytes(r.nvme.queues, r.nvme.entries));
	memset(memory, 0xee, bytes);
	rc = up_in(&r, memory, bytes);
	if (rc)
		fail_msg("%d: %s", rc, tn_error_last()->text);
	for (uint32_t i = 0; i < 2; i++) {
		assert_ptr_equal(tn_nvme_io_queue(r.n, i)->sq, memory + tn_nvme_queue_bytes(i, r.nvme.entries));
		assert_true(lies_in(tn_nvme_io_queue(r.n, i)->cq, memory, bytes));
	}
	data = r.s.port.get(r.s.port.arg, TN_NVME_PAGE, &bus);
	for (uint32_t i = 0; i < 100; i++) { /* several times round each queue, and a reset in the middle */
		if (i == 50)
			assert_int_equal(tn_nvme_reset(r.n), 0);
		memset(data, (int)i, 512);
		assert_int_equal(transfer(&r, i % 2, TN_NVME_WRITE, i, data, bus, &id), 0);
		assert_int_equal(tn_soft_media(r.s.soft)[i * 512 + 511], i);
	}
	r.s.port.put(r.s.port.arg, data, TN_NVME_PAGE);
	tn_nvme_destroy(r.n);
	assert_int_equal(r.s.port.translate(r.s.port.arg, (uintptr_t)memory, bytes, &bus, &contiguous), -EFAULT); /* it is the caller's alone again */
	r.n = NULL;
	down(&r);
}

#define HUGE (2u << 20)

static void queues_lie_in_memory_that_the_caller_supplies(void **state)
{
	unsigned char *mapping = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *aligned = mapping + (HUGE - (uintptr_t)mapping % HUGE) % HUGE;

	assert_true(mapping != MAP_FAILED);
	queues_work_in(aligned, HUGE);
	queues_work_in(aligned + TN_NVME_PAGE, tn_nvme_queue_bytes(2, 32));
	munmap(mapping, 2 * HUGE);
}

static void queues_lie_in_a_hugepage(void **state)
{
	unsigned char *page = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);

	if (page == MAP_FAILED)
		tn_test_skip("no hugepage of 2 MiB is free (sysctl vm.nr_hugepages)");
	queues_work_in(page, HUGE);
	munmap(page, HUGE);
}

static void memory_that_cannot_hold_the_queues_is_refused(void **state)
{
	static _Alignas(TN_NVME_PAGE) unsigned char memory[5 * TN_NVME_PAGE];
	struct rig r;

	assert_int_equal(tn_nvme_queue_bytes(2, 32), 4 * TN_NVME_PAGE);
	assert_int_equal(tn_nvme_queue_bytes(1, 4096), 80 * TN_NVME_PAGE);
	setup(&r);
	assert_int_equal(up_in(&r, memory, 3 * TN_NVME_PAGE), -EINVAL);
	assert_int_equal(up_in(&r, memory + 512, 4 * TN_NVME_PAGE), -EINVAL);
	assert_int_equal(up_in(&r, memory, 4 * TN_NVME_PAGE), 0);
	down(&r);
	setup(&r);
	r.o.scattered = 1;
	r.nvme.entries = 256; /* four pages of a queue */
	r.nvme.queues = 1;
	assert_int_equal(tn_nvme_queue_bytes(1, 256), 5 * TN_NVME_PAGE);
	assert_int_equal(up_in(&r, memory, sizeof(memory)), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "not in one piece on the bus at byte 0"));
	down(&r);
}

static void memory_that_runs_out_at_any_point_leaves_nothing_behind(void **state)
{
	uint32_t left = 0;
	struct rig r;
	int rc;

	setup(&r);
	make_controller(&r);
	do {
		r.s.gets_left = left++;
		rc = up(&r);
		assert_true(rc == 0 || rc == -ENOMEM);
	} while (rc);
	assert_int_equal(left, 8); /* identify data, and three pairs */
	down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_comes_up_says_what_it_is_and_moves_a_block),
		cmocka_unit_test(a_controller_with_less_gives_what_it_has),
		cmocka_unit_test(what_the_controller_says_of_its_limits_is_kept_to),
		cmocka_unit_test(a_namespace_that_is_not_ours_to_drive_is_refused_by_name),
		cmocka_unit_test(options_out_of_bounds_are_refused),
		cmocka_unit_test(a_lost_command_is_aborted),
		cmocka_unit_test(a_reset_ends_what_is_under_way_and_it_goes_on),
		cmocka_unit_test(one_that_is_unplugged_is_gone_and_nothing_waits),
		cmocka_unit_test(one_that_does_not_answer_ends_every_call_in_time),
		cmocka_unit_test(one_that_was_gone_is_cut_off_for_all_pairs_though_it_comes_back),
		cmocka_unit_test(one_that_reads_as_ones_during_its_reset_is_waited_for),
		cmocka_unit_test(one_that_says_no_time_comes_up),
		cmocka_unit_test(the_status_is_read_once_more_after_the_deadline),
		cmocka_unit_test(a_pair_that_is_never_made_again_ends_with_the_controller_cut_off),
		cmocka_unit_test(one_that_grants_fewer_pairs_after_a_reset_has_not_come_back),
		cmocka_unit_test(a_reset_does_not_wait_for_memory_that_is_being_pinned),
		cmocka_unit_test(queues_lie_in_memory_that_the_caller_supplies),
		cmocka_unit_test(queues_lie_in_a_hugepage),
		cmocka_unit_test(memory_that_cannot_hold_the_queues_is_refused),
		cmocka_unit_test(memory_that_runs_out_at_any_point_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
