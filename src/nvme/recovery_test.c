/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of single commands when a controller is late, is reset, or hangs. Time passes by steps of the software controller. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "lab/soft_rig.h"
#include "nvme/engine.h"
#include "tn_test.h"

#define STEP_NS 100000ull
#define COMMAND_STEPS 300u
#define ADMIN_STEPS 100u
#define FILE_BYTES 65536u
#define SEEDS 20u

struct rig {
	struct soft_rig s; /* first: the port's functions have it as their argument */
	struct tn_soft_opts o;
	struct tn_nvme *nvme;
	struct tn_io *io;
	struct tn_io_req req;
	struct iovec iov;
	unsigned char *memory;
	uint32_t file, bell;
	bool answered;
	uint32_t asked; /* so often the log has asked to close what has the controller open */
	struct tn_log log;
};

static void setup(struct rig *r, uint64_t seed)
{
	memset(r, 0, sizeof(*r));
	tn_soft_opts_init(&r->o);
	r->o.seed = seed;
	r->o.zeroes = true;
}

static void heard(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct rig *r = arg;

	r->asked += strstr(text, "close what has it open") != NULL;
}

static void up(struct rig *r)
{
	struct tn_nvme_opts n = {.port = &r->s.port, .alloc = &tn_alloc_system, .queues = 1, .entries = 8, .admin_ns = ADMIN_STEPS * STEP_NS};
	struct tn_nvme_engine_opts e = {.port = &r->s.port, .alloc = &tn_alloc_system, .command_ns = COMMAND_STEPS * STEP_NS};

	r->log = (struct tn_log){heard, r, TN_LOG_INFO};
	n.log = e.log = &r->log;
	soft_rig_up(&r->s, &r->o, STEP_NS);
	n.clock = e.clock = &r->s.clock;
	assert_int_equal(tn_nvme_create(&n, &r->nvme), 0);
	e.nvme = r->nvme;
	assert_int_equal(tn_nvme_engine_create(&e, &r->io), 0);
	assert_int_equal(tn_io_open(r->io, "store", TN_IO_CREATE, &r->file), 0);
	assert_int_equal(tn_io_allocate(r->io, r->file, 0, FILE_BYTES), 0);
	r->memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(r->memory != MAP_FAILED);
	assert_int_equal(tn_io_map(r->io, r->memory, FILE_BYTES), 0);
}

static void down(struct rig *r)
{
	tn_io_destroy(r->io);
	tn_nvme_destroy(r->nvme);
	soft_rig_no_findings(r->s.soft);
	tn_soft_destroy(r->s.soft);
	munmap(r->memory, FILE_BYTES);
}

/* A read of the first page, which is zeros. */
static void begin_read(struct rig *r)
{
	struct tn_io_req *one = &r->req;

	r->iov = (struct iovec){r->memory, TN_NVME_PAGE};
	r->req = (struct tn_io_req){.op = TN_IO_READ, .file = r->file, .length = TN_NVME_PAGE, .iov = &r->iov, .iov_count = 1};
	memset(r->memory, 0xee, TN_NVME_PAGE);
	assert_int_equal(tn_io_submit(r->io, &one, 1), 1);
}

static int end_read(struct rig *r)
{
	struct tn_io_req *done;

	assert_int_equal(tn_io_poll(r->io, &done, 1, UINT64_MAX), 1);
	assert_ptr_equal(done, &r->req);
	assert_true(r->req.status || (r->memory[0] == 0 && r->memory[TN_NVME_PAGE - 1] == 0));
	return r->req.status;
}

static struct tn_nvme_engine_stats stats_of(const struct rig *r)
{
	struct tn_nvme_engine_stats stats;

	tn_nvme_engine_stats(r->io, &stats);
	return stats;
}

static uint32_t *register_of(struct rig *r, uint32_t offset)
{
	return (uint32_t *)r->s.port.registers + offset / sizeof(uint32_t);
}

/* ---- late commands --------------------------------------------------------------------------------------------------- */

/* The software controller aborts a command, or says that it has not, by chance. */
static void a_command_that_was_not_aborted_has_the_same_time_again(void **state)
{
	uint32_t good = 0, aborted = 0;

	for (uint64_t i = 0; i < SEEDS; i++) {
		struct tn_nvme_engine_stats stats;
		struct rig r;
		int status;

		setup(&r, tn_test_seed() + i);
		r.o.late_steps = COMMAND_STEPS + 200;
		up(&r);
		tn_soft_fault(r.s.soft, &(struct tn_soft_chances){.late = 65536});
		begin_read(&r);
		status = end_read(&r);
		stats = stats_of(&r);
		assert_int_equal(stats.late, 1);
		assert_int_equal(stats.resets, 0);
		assert_int_equal(status, stats.aborted ? -EIO : 0);
		good += status == 0;
		aborted += status != 0;
		down(&r);
	}
	printf("# %u ended by themselves, %u were aborted\n", good, aborted);
	assert_true(good > 0 && aborted > 0);
}

/* The controller sees no doorbell of its admin queue. */
static void step_deaf(void *arg)
{
	struct rig *r = arg;

	tn_nvme_bell(register_of(r, TN_NVME_DOORBELLS), r->bell);
	soft_rig_step(r);
}

static void no_reset_if_the_late_command_ends_while_its_abort_is_waited_for(void **state)
{
	struct tn_nvme_engine_stats stats;
	struct rig r;

	setup(&r, tn_test_seed());
	r.o.late_steps = COMMAND_STEPS + ADMIN_STEPS / 2;
	up(&r);
	tn_soft_fault(r.s.soft, &(struct tn_soft_chances){.late = 65536});
	r.bell = tn_ring_load32(register_of(&r, TN_NVME_DOORBELLS));
	r.s.port.pause = step_deaf;
	begin_read(&r);
	assert_int_equal(end_read(&r), 0);
	stats = stats_of(&r);
	assert_int_equal(stats.late, 1);
	assert_int_equal(stats.aborted, 0);
	assert_int_equal(stats.resets, 0);
	r.s.port.pause = soft_rig_step;
	down(&r);
}

/* The controller is ready again, and answers what was under way, before it sees that it is to be reset. */
static void step_answering(void *arg)
{
	struct rig *r = arg;

	if (!r->answered)
		tn_nvme_bell(register_of(r, TN_NVME_CSTS), TN_NVME_CSTS_READY);
	r->answered = true;
	soft_rig_step(r);
}

static void what_was_answered_before_a_reset_has_ended_well(void **state)
{
	struct rig r;

	setup(&r, tn_test_seed());
	up(&r);
	begin_read(&r);
	r.s.port.pause = step_answering;
	tn_nvme_bell(register_of(&r, TN_NVME_CSTS), 0);
	assert_int_equal(end_read(&r), 0);
	assert_int_equal(stats_of(&r).resets, 1);
	r.s.port.pause = soft_rig_step;
	begin_read(&r);
	assert_int_equal(end_read(&r), 0);
	down(&r);
}

static void the_log_says_once_that_what_is_gone_is_to_be_closed(void **state)
{
	struct rig r;

	setup(&r, tn_test_seed());
	up(&r);
	begin_read(&r);
	tn_soft_unplug(r.s.soft);
	assert_int_equal(end_read(&r), -ENODEV);
	begin_read(&r);
	assert_int_equal(end_read(&r), -ENODEV);
	assert_int_equal(r.asked, 1);
	down(&r);
}

/* ---- growth ------------------------------------------------------------------------------------------------------------ */

#define LONG_BYTES (14u << 20)

static uint64_t commands_of(const struct rig *r)
{
	return stats_of(r).commands;
}

static void begin_growth(struct rig *r, struct tn_io_req *req, struct iovec *iov)
{
	*iov = (struct iovec){NULL, LONG_BYTES};
	*req = (struct tn_io_req){.op = TN_IO_ALLOCATE, .file = r->file, .offset = FILE_BYTES, .iov = iov, .iov_count = 1};
	assert_int_equal(tn_io_submit(r->io, &req, 1), 1);
	assert_int_equal(tn_io_poll(r->io, &req, 1, 0), 0);
}

/* The queue has seven ids, of which growth could have them all, as zeros and as write zeroes of 8 KiB. */
static void a_file_that_grows_leaves_ids_for_reads(void **state)
{
	for (uint32_t zeroes = 0; zeroes < 2; zeroes++) {
		struct tn_io_req grow, *done;
		struct iovec iov;
		uint64_t commands;
		struct rig r;

		setup(&r, tn_test_seed());
		r.o.zeroes = zeroes;
		r.o.wzsl = zeroes;
		up(&r);
		commands = commands_of(&r);
		begin_growth(&r, &grow, &iov);
		assert_int_equal(commands_of(&r) - commands, 4);
		begin_read(&r);
		assert_int_equal(commands_of(&r) - commands, 5);
		assert_int_equal(end_read(&r), 0);
		assert_int_equal(tn_io_poll(r.io, &done, 1, UINT64_MAX), 1);
		assert_ptr_equal(done, &grow);
		assert_int_equal(grow.status, 0);
		down(&r);
	}
}

/* Of reads and zeros that both wait for an id the reads are sent first: seven of them, when four zeros have ended. */
static void reads_go_before_zeros(void **state)
{
	struct tn_io_req grow, read[7], *one, *done[8];
	struct iovec iov, piece[7];
	unsigned n = 0;
	struct rig r;

	setup(&r, tn_test_seed());
	r.o.wzsl = 1;
	up(&r);
	begin_growth(&r, &grow, &iov);
	for (uint32_t i = 0; i < 7; i++) {
		piece[i] = (struct iovec){r.memory + i * TN_NVME_PAGE, TN_NVME_PAGE};
		read[i] = (struct tn_io_req){.op = TN_IO_READ, .file = r.file, .length = TN_NVME_PAGE, .iov = &piece[i], .iov_count = 1};
		one = &read[i];
		assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
	}
	for (uint32_t i = 0; i < 2; i++) { /* three reads and four zeros; four reads */
		soft_rig_step(&r.s);
		n += tn_io_poll(r.io, done, 8, 0);
	}
	assert_int_equal(n, 7);
	assert_int_equal(tn_io_poll(r.io, done, 8, UINT64_MAX), 1);
	assert_ptr_equal(done[0], &grow);
	assert_int_equal(grow.status, 0);
	down(&r);
}

/* Seven of them, a flush, and each copy of the header with another flush. */
static void a_write_zeroes_without_a_limit_has_2_mib(void **state)
{
	struct tn_io_req grow, *done;
	struct iovec iov;
	uint64_t commands;
	struct rig r;

	setup(&r, tn_test_seed());
	up(&r);
	commands = commands_of(&r);
	begin_growth(&r, &grow, &iov);
	assert_int_equal(tn_io_poll(r.io, &done, 1, UINT64_MAX), 1);
	assert_int_equal(grow.status, 0);
	assert_int_equal(commands_of(&r) - commands, LONG_BYTES / (2u << 20) + 5);
	down(&r);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static int bus_of(struct rig *r, const void *memory, uint64_t *bus)
{
	uint64_t contiguous;

	return r->s.port.translate(r->s.port.arg, (uintptr_t)memory, FILE_BYTES, bus, &contiguous);
}

/* A read into memory that another user unmaps. */
static void memory_keeps_its_place_on_the_bus_until_what_hangs_has_failed(void **state)
{
	struct tn_io_req *done;
	unsigned char *other = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t bus, later, others, bounced;
	struct rig r;

	assert_true(other != MAP_FAILED);
	setup(&r, tn_test_seed());
	up(&r);
	assert_int_equal(bus_of(&r, r.memory, &bus), 0);
	r.s.dead = true;
	begin_read(&r);
	while (stats_of(&r).resets == 0)
		assert_int_equal(tn_io_poll(r.io, &done, 1, STEP_NS), 0);
	tn_io_unmap(r.io, r.memory, FILE_BYTES);
	assert_int_equal(bus_of(&r, r.memory, &later), 0);
	assert_int_equal(later, bus);
	assert_int_equal(tn_io_map(r.io, other, FILE_BYTES), 0);
	assert_int_equal(bus_of(&r, other, &others), 0);
	assert_true(others >= bus + FILE_BYTES || others + FILE_BYTES <= bus);
	assert_int_equal(tn_io_map(r.io, r.memory, FILE_BYTES), -EBUSY);
	r.s.dead = false;
	assert_int_equal(end_read(&r), -EIO);
	assert_int_equal(bus_of(&r, r.memory, &bus), -EFAULT);
	assert_int_equal(tn_io_map(r.io, r.memory, FILE_BYTES), 0);
	bounced = stats_of(&r).bounced;
	begin_read(&r);
	assert_int_equal(end_read(&r), 0);
	assert_int_equal(stats_of(&r).bounced, bounced);
	down(&r);
	munmap(other, FILE_BYTES);
}

/* ---- the header ---------------------------------------------------------------------------------------------------------- */

static void an_open_that_cannot_read_the_header_takes_nothing_from_who_has_the_file_open(void **state)
{
	struct tn_io_stat st;
	uint32_t again;
	struct rig r;

	setup(&r, tn_test_seed());
	up(&r);
	assert_int_equal(tn_io_close(r.io, r.file), 0);
	assert_int_equal(tn_io_open(r.io, "store", TN_IO_READ_ONLY, &r.file), 0);
	tn_soft_fault(r.s.soft, &(struct tn_soft_chances){.error = 65536});
	if (tn_io_open(r.io, "store", TN_IO_READ_ONLY, &again) == 0)
		assert_int_equal(tn_io_close(r.io, again), 0);
	tn_soft_fault(r.s.soft, &(struct tn_soft_chances){0});
	assert_int_equal(tn_io_stat(r.io, r.file, &st), 0);
	assert_int_equal(st.size_bytes, FILE_BYTES);
	begin_read(&r);
	assert_int_equal(end_read(&r), 0);
	down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_command_that_was_not_aborted_has_the_same_time_again),
		cmocka_unit_test(no_reset_if_the_late_command_ends_while_its_abort_is_waited_for),
		cmocka_unit_test(what_was_answered_before_a_reset_has_ended_well),
		cmocka_unit_test(the_log_says_once_that_what_is_gone_is_to_be_closed),
		cmocka_unit_test(a_file_that_grows_leaves_ids_for_reads),
		cmocka_unit_test(reads_go_before_zeros),
		cmocka_unit_test(a_write_zeroes_without_a_limit_has_2_mib),
		cmocka_unit_test(memory_keeps_its_place_on_the_bus_until_what_hangs_has_failed),
		cmocka_unit_test(an_open_that_cannot_read_the_header_takes_nothing_from_who_has_the_file_open),
	};

	return cmocka_run_group_tests_name("nvme-recovery", tests, NULL, NULL);
}
