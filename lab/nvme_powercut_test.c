/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The power-cut suite of the store (sim/powercut.h) on the NVMe engine and the software controller: power goes when a command was fetched and when
 * one has ended, during recoveries, too, and takes blocks of what no flush covers. Time is the controller's: a step of it takes 20 us.
 *
 * The short form samples; TN_SIM_FULL=1 or TN_SOAK=1 takes every command and every mode.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/list.h"
#include "lab/soft_rig.h"
#include "nvme/engine.h"
#include "powercut.h"
#include "tn_test.h"

#define STEP_NS 20000ull
#define COMMAND_NS (2000 * STEP_NS)

struct soft_medium {
	struct medium m;
	struct tn_soft *soft;
	struct tn_nvme *nvme;
	struct tn_io *io;
	struct tn_io_ops ops; /* the engine's, but for submit and poll */
	const struct tn_io_ops *engine;
	struct tn_clock clock;
	uint64_t skipped_ns, boot, events;
	uint32_t inflight;
	bool off;
	medium_event_fn fn;
	void *arg;
};

static struct {
	uint64_t commands, bytes, faults, taken, kept;
} total;

static struct soft_medium *of(const struct medium *m)
{
	return (struct soft_medium *)(uintptr_t)m;
}

static uint64_t now_of(void *arg)
{
	struct soft_medium *s = arg;

	return s->skipped_ns + tn_soft_steps(s->soft) * STEP_NS;
}

/* ---- the engine, in the controller's time ----------------------------------------------------------------------------- */

static struct soft_medium *of_io(const struct tn_io *io)
{
	return tn_container_of(io->ops, struct soft_medium, ops);
}

static unsigned submit(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	struct soft_medium *s = of_io(io);

	n = s->engine->submit(io, reqs, n);
	s->inflight += n;
	return n;
}

static unsigned poll(struct tn_io *io, struct tn_io_req **done, unsigned max, uint64_t timeout_ns)
{
	struct soft_medium *s = of_io(io);
	uint64_t now = now_of(s), end = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
	unsigned n = s->engine->poll(io, done, max, 0);

	for (; n == 0 && now < end; now = now_of(s)) {
		if (s->inflight == 0) {
			assert(end != UINT64_MAX); /* else it would wait for ever */
			s->skipped_ns += end - now;
			break;
		}
		tn_soft_step(s->soft);
		n = s->engine->poll(io, done, max, 0);
	}
	s->inflight -= n;
	return n;
}

static struct tn_io *io_of(struct medium *m)
{
	struct soft_medium *s = of(m);
	struct tn_nvme_opts n = {.port = tn_soft_port(s->soft), .alloc = &tn_alloc_system, .clock = &s->clock, .queues = 1, .entries = 32};
	struct tn_nvme_engine_opts e = {.port = n.port, .depth = 64, .command_ns = COMMAND_NS, .alloc = &tn_alloc_system, .clock = &s->clock};

	if (s->io)
		return s->io;
	assert_int_equal(tn_nvme_create(&n, &s->nvme), 0);
	e.nvme = s->nvme;
	assert_int_equal(tn_nvme_engine_create(&e, &s->io), 0);
	s->engine = s->io->ops;
	s->ops = *s->engine;
	s->ops.submit = submit;
	s->ops.poll = poll;
	s->io->ops = &s->ops;
	return s->io;
}

/* Without power, so that nothing is flushed. */
static void engine_down(struct soft_medium *s)
{
	tn_soft_on_command(s->soft, NULL, NULL);
	tn_soft_unplug(s->soft);
	if (s->io)
		tn_io_destroy(s->io);
	tn_nvme_destroy(s->nvme);
	s->io = NULL;
	s->nvme = NULL;
	s->inflight = 0;
}

static void soft_down(struct soft_medium *s)
{
	struct tn_soft_stats stats;

	engine_down(s);
	tn_soft_stats(s->soft, &stats);
	soft_rig_no_findings(s->soft);
	total.commands += stats.commands;
	total.bytes += stats.bytes;
	total.faults += stats.faults;
	tn_soft_destroy(s->soft);
}

/* ---- what a cut leaves --------------------------------------------------------------------------------------------------- */

struct cut {
	enum tn_simdisk_crash mode;
	uint64_t seed;
};

/* Of one command: all, none, the first ones or any of its blocks. */
static bool torn(const struct tn_soft_volatile *v, uint64_t seed)
{
	uint64_t of_command = tn_hash64(&(uint64_t[2]){seed, v->number}, 16), of_block = tn_hash64(&(uint64_t[2]){of_command, v->at}, 16);

	switch (of_command % 4) {
	case 0:
		return false;
	case 1:
		return true;
	case 2:
		return v->at < of_command / 4 % (v->of + 1);
	default:
		return of_block % 2;
	}
}

static bool keeps(void *arg, const struct tn_soft_volatile *v)
{
	const struct cut *c = arg;
	bool keep;

	switch (c->mode) {
	case TN_SIMDISK_DROP:
		keep = false;
		break;
	case TN_SIMDISK_KEEP:
		keep = true;
		break;
	case TN_SIMDISK_LAST_ONLY:
		keep = v->index == 0;
		break;
	case TN_SIMDISK_LAST_LOST:
		keep = v->index != 0;
		break;
	case TN_SIMDISK_ONE_LOST:
		keep = v->index != c->seed % v->count;
		break;
	case TN_SIMDISK_INFLIGHT_ONLY:
		keep = v->under_way;
		break;
	case TN_SIMDISK_SUBSET:
		keep = tn_hash64(&(uint64_t[2]){c->seed, v->number}, 16) % 2;
		break;
	default: /* torn, or killed: then of what was under way */
		keep = torn(v, c->seed);
	}
	total.kept += keep;
	total.taken += !keep;
	return keep;
}

/* ---- the medium --------------------------------------------------------------------------------------------------------- */

static const struct tn_clock *clock_of(struct medium *m)
{
	return &of(m)->clock;
}

static uint64_t boot_of(const struct medium *m)
{
	return of(m)->boot;
}

static bool is_off(const struct medium *m)
{
	return of(m)->off;
}

static void power_off(struct medium *m)
{
	tn_soft_on_command(of(m)->soft, NULL, NULL);
	tn_soft_unplug(of(m)->soft);
	of(m)->off = true;
}

static void commanded(void *arg, struct tn_soft *soft)
{
	struct soft_medium *s = arg;

	s->events++;
	if (s->fn)
		s->fn(s->arg, &s->m, s->events);
}

static void crash(struct medium *m, enum tn_simdisk_crash mode, uint64_t seed)
{
	struct soft_medium *s = of(m);
	uint64_t now = now_of(s);
	struct cut c = {mode, seed};
	struct tn_soft *left;

	assert_int_equal(tn_soft_copy(s->soft, seed, &left), 0);
	tn_soft_cut(left, mode != TN_SIMDISK_KILL, keeps, &c);
	soft_down(s);
	s->soft = left;
	s->skipped_ns = now;
	s->off = false;
	s->boot += mode != TN_SIMDISK_KILL;
	tn_soft_on_command(left, commanded, s);
}

static void on_event(struct medium *m, medium_event_fn fn, void *arg)
{
	of(m)->fn = fn;
	of(m)->arg = arg;
}

static uint64_t events_of(const struct medium *m)
{
	return of(m)->events;
}

/* In spells: errors, completions that come twice, late or never, and a controller that fails and is reset. */
static void fail_some(struct medium *m, struct tn_rng *rng)
{
	struct tn_soft_chances c = {0};

	if (rng && tn_rng_below(rng, 3) == 0) {
		c.error = tn_rng_below(rng, 16000);
		c.twice = tn_rng_below(rng, 4000);
		c.late = tn_rng_below(rng, 2000);
		c.lost = tn_rng_below(rng, 3) ? 0 : 300;
		c.fatal = tn_rng_below(rng, 3) ? 0 : 30;
	}
	tn_soft_fault(of(m)->soft, &c);
}

static void destroy(struct medium *m)
{
	soft_down(of(m));
	free(of(m));
}

static struct medium *copy(struct medium *m, uint64_t seed);

static const struct medium_ops medium_ops = {
	.io = io_of, .clock = clock_of, .boot = boot_of, .is_off = is_off, .power_off = power_off, .crash = crash, .copy = copy,
	.on_event = on_event, .events = events_of, .set_faults = fail_some, .destroy = destroy,
};

static struct soft_medium *new_medium(void)
{
	struct soft_medium *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->m.ops = &medium_ops;
	s->clock = (struct tn_clock){.now_ns = now_of, .wall_ns = now_of, .arg = s};
	return s;
}

static struct medium *copy(struct medium *m, uint64_t seed)
{
	struct soft_medium *s = new_medium();

	assert_int_equal(tn_soft_copy(of(m)->soft, seed, &s->soft), 0);
	s->skipped_ns = now_of(of(m));
	s->boot = of(m)->boot;
	tn_soft_on_command(s->soft, commanded, s);
	return &s->m;
}

static struct medium *make(uint64_t seed, uint64_t bytes, uint32_t block_bytes, uint32_t sgl)
{
	struct soft_medium *s = new_medium();
	struct tn_soft_opts o;

	tn_soft_opts_init(&o);
	o.seed = seed;
	o.blocks = bytes / block_bytes;
	o.block_bytes = block_bytes;
	o.sgl = sgl;
	o.zeroes = block_bytes == 512;
	o.steps = 8;
	o.late_steps = 500;
	assert_int_equal(tn_soft_create(&o, &s->soft), 0);
	s->skipped_ns = 1000000000;
	s->boot = 1;
	tn_soft_on_command(s->soft, commanded, s);
	return &s->m;
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------ */

static struct medium *blocks_of_512(uint64_t seed)
{
	return make(seed, 6u << 20, 512, 1);
}

static struct medium *blocks_of_4096(uint64_t seed)
{
	return make(seed, 6u << 20, 4096, 0);
}

static struct medium *a_larger_one(uint64_t seed)
{
	return make(seed, 18u << 20, 512, 1);
}

static void every_cut_with_blocks_of_512_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "512 B, SGLs",
		.opts = {.ndevices = 1, .capacity_bytes = 4u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 120, .verify_percent = 10},
		.steps = 300,
		.sample = 60,
	}, blocks_of_512);
}

static void every_cut_with_blocks_of_4096_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "4 KiB, PRPs",
		.opts = {.ndevices = 1, .capacity_bytes = 4u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 120, .verify_percent = 10},
		.steps = 300,
		.sample = 60,
	}, blocks_of_4096);
}

static void every_cut_with_headers_of_two_pages_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "big headers",
		.opts = {.ndevices = 1, .capacity_bytes = 16u << 20, .segment_bytes = 4u << 20, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 60, .verify_percent = 10, .big_percent = 12},
		.steps = 100,
		.sample = 60,
	}, a_larger_one);
}

static void every_cut_after_commands_that_failed_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "failing controller",
		.opts = {.ndevices = 1, .capacity_bytes = 4u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 120, .verify_percent = 10, .faulty = true},
		.steps = 300,
		.sample = 60,
	}, blocks_of_512);
}

static void do_it(struct tn_io *io, uint32_t file, enum tn_io_op op, void *page)
{
	struct iovec iov = {page, 4096};
	struct tn_io_req req = {.op = (uint8_t)op, .file = file, .status = 1}, *one = &req, *done;

	if (op != TN_IO_SYNC) {
		req.iov = &iov;
		req.iov_count = 1;
		req.length = 4096;
	}
	assert_int_equal(tn_io_submit(io, &one, 1), 1);
	while (tn_io_poll(io, &done, 1, STEP_NS) == 0)
		;
	assert_int_equal(req.status, 0);
}

/* Between the two completions of the write comes the flush. */
static void a_flush_covers_a_write_that_completes_twice(void **state)
{
	static _Alignas(4096) unsigned char page[4096];
	struct medium *m = make(tn_test_seed(), 6u << 20, 4096, 1);
	uint32_t file;

	assert_int_equal(tn_io_open(io_of(m), "store", TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_allocate(io_of(m), file, 0, 1u << 20), 0);
	for (unsigned i = 1; i <= 50; i++) {
		tn_soft_fault(of(m)->soft, &(struct tn_soft_chances){.twice = 65536});
		memset(page, (int)i, sizeof(page));
		do_it(io_of(m), file, TN_IO_WRITE, page);
		do_it(io_of(m), file, TN_IO_SYNC, NULL);
		m->ops->crash(m, TN_SIMDISK_DROP, i);
		assert_int_equal(tn_io_open(io_of(m), "store", 0, &file), 0);
		memset(page, 0, sizeof(page));
		do_it(io_of(m), file, TN_IO_READ, page);
		assert_int_equal(page[0], i);
		assert_int_equal(page[4095], i);
	}
	medium_destroy(m);
}

static int print_totals(void **state)
{
	printf("# %llu commands, %llu MiB, %llu faults; of blocks that a cut could take %llu were taken, %llu stayed\n",
	       (unsigned long long)total.commands, (unsigned long long)(total.bytes >> 20), (unsigned long long)total.faults,
	       (unsigned long long)total.taken, (unsigned long long)total.kept);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flush_covers_a_write_that_completes_twice),
		cmocka_unit_test(every_cut_with_blocks_of_512_recovers_what_was_durable),
		cmocka_unit_test(every_cut_with_blocks_of_4096_recovers_what_was_durable),
		cmocka_unit_test(every_cut_with_headers_of_two_pages_recovers_what_was_durable),
		cmocka_unit_test(every_cut_after_commands_that_failed_recovers_what_was_durable),
	};

	if (tn_test_soak())
		setenv("TN_SIM_FULL", "1", 1);
	return cmocka_run_group_tests_name("nvme-powercut", tests, NULL, print_totals);
}
