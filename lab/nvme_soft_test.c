/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software controller as the judge of a driver: each rule is broken once, by hand, and that it was broken is found, and nothing else; and
 * what no driver of ours sends yet is done right: SGLs of several segments, dataset management.
 */
#include "lab/soft_rig.h"

#include <string.h>

#include "ioengine/mixfile.h"

#define STEP_NS 1000000ull
#define LATE_STEPS 20u
#define BLOCK 512u

struct rig {
	struct soft_rig s;
	struct tn_nvme *n;
	struct tn_nvme_queue *q;
	unsigned char *data, *list; /* 16 and 2 pages, contiguous on the bus */
	uint64_t data_bus, list_bus;
};

#define DATA_BYTES (16u * TN_NVME_PAGE)
#define LIST_BYTES (2u * TN_NVME_PAGE)

static void setup_of(struct rig *r, const struct tn_soft_opts *so, uint32_t entries, uint64_t step_ns)
{
	struct tn_nvme_opts no = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .queues = 2, .entries = entries};

	soft_rig_up(&r->s, so, step_ns);
	assert_int_equal(tn_nvme_create(&no, &r->n), 0);
	r->q = tn_nvme_io_queue(r->n, 0);
	r->data = r->s.port.get(&r->s, DATA_BYTES, &r->data_bus);
	r->list = r->s.port.get(&r->s, LIST_BYTES, &r->list_bus);
	assert_non_null(r->data);
	assert_non_null(r->list);
}

/* Commands end LATE_STEPS after they were fetched. */
static void setup(struct rig *r, uint32_t sgl)
{
	struct tn_soft_opts so;

	tn_soft_opts_init(&so);
	so.seed = tn_test_seed();
	so.sgl = sgl;
	so.mdts = 3; /* 32 KiB */
	so.late_steps = LATE_STEPS;
	so.chances.late = 65536;
	setup_of(r, &so, 16, STEP_NS);
}

/* Found was this, and nothing else; TN_SOFT_FINDINGS: nothing. */
static void tear_down(struct rig *r, enum tn_soft_finding expected)
{
	struct tn_soft_stats stats;

	tn_soft_stats(r->s.soft, &stats);
	for (uint32_t i = 0; i < TN_SOFT_FINDINGS; i++)
		if ((stats.findings[i] > 0) != (i == expected))
			fail_msg("%s: found %llu times", tn_soft_finding_name(i), (unsigned long long)stats.findings[i]);
	r->s.port.put(&r->s, r->data, DATA_BYTES);
	r->s.port.put(&r->s, r->list, LIST_BYTES);
	tn_nvme_destroy(r->n);
	tn_soft_destroy(r->s.soft);
}

static struct tn_nvme_command transfer(const struct rig *r, uint32_t opcode, uint32_t bytes)
{
	struct tn_nvme_command c = tn_nvme_transfer(opcode, 1, 0, bytes / BLOCK);

	c.data[0] = r->data_bus;
	c.data[1] = r->data_bus + TN_NVME_PAGE;
	return c;
}

static void submit(struct rig *r, struct tn_nvme_command c)
{
	c.id = (uint16_t)tn_nvme_queue_id(r->q);
	tn_nvme_queue_put(r->q, &c);
	tn_nvme_queue_ring(r->q);
}

/* The status of the next completion. */
static uint32_t wait(struct rig *r)
{
	struct tn_nvme_completion c;

	for (uint32_t i = 0; i < 3 * LATE_STEPS; i++) {
		soft_rig_step(&r->s);
		if (tn_nvme_queue_poll(r->q, &c)) {
			tn_nvme_queue_took(r->q);
			return tn_nvme_status(&c);
		}
	}
	fail_msg("no completion");
	return 0;
}

static uint32_t ends_with(struct rig *r, struct tn_nvme_command c)
{
	submit(r, c);
	return wait(r);
}

static void what_is_right_is_done_and_nothing_found(void **state)
{
	struct rig r;

	setup(&r, 1);
	memset(r.data, 7, 2 * TN_NVME_PAGE);
	assert_int_equal(ends_with(&r, transfer(&r, TN_NVME_WRITE, 2 * TN_NVME_PAGE)), 0);
	memset(r.data, 0, 2 * TN_NVME_PAGE);
	assert_int_equal(ends_with(&r, transfer(&r, TN_NVME_READ, 2 * TN_NVME_PAGE)), 0);
	assert_int_equal(r.data[0], 7);
	assert_int_equal(r.data[2 * TN_NVME_PAGE - 1], 7);
	tear_down(&r, TN_SOFT_FINDINGS);
}

static void queues_that_cannot_be(void **state)
{
	struct rig r;
	uint32_t *registers;

	setup(&r, 1);
	registers = r.s.port.registers;
	registers[TN_NVME_CC / 4] = 0;
	soft_rig_step(&r.s);
	registers[TN_NVME_AQA / 4] = 0;
	registers[TN_NVME_CC / 4] = TN_NVME_CC_ENABLE | TN_NVME_CC_ENTRIES;
	soft_rig_step(&r.s);
	assert_true(registers[TN_NVME_CSTS / 4] & TN_NVME_CSTS_FATAL);
	tear_down(&r, TN_SOFT_BAD_ENABLE);
}

static void a_tail_beyond_the_queue(void **state)
{
	struct rig r;

	setup(&r, 1);
	tn_nvme_bell(r.q->sq_bell, r.q->entries);
	soft_rig_step(&r.s);
	tear_down(&r, TN_SOFT_BAD_DOORBELL);
}

static void a_head_beyond_what_was_posted(void **state)
{
	struct rig r;

	setup(&r, 1);
	tn_nvme_bell(r.q->cq_bell, 3);
	assert_int_equal(ends_with(&r, transfer(&r, TN_NVME_READ, BLOCK)), 0);
	tear_down(&r, TN_SOFT_BAD_DOORBELL);
}

/* Of a new queue, and of one that has gone round. */
static void a_doorbell_before_its_entry(void **state)
{
	for (uint32_t used = 0; used < 40; used += 20) {
		struct rig r;

		setup(&r, 1);
		for (uint32_t i = 0; i < used; i++)
			assert_int_equal(ends_with(&r, tn_nvme_flush(1)), 0);
		tn_nvme_bell(r.q->sq_bell, (r.q->tail + 1) % r.q->entries);
		soft_rig_step(&r.s);
		tear_down(&r, TN_SOFT_NO_ENTRY);
	}
}

static void an_id_that_is_in_use(void **state)
{
	struct tn_nvme_command c;
	struct rig r;

	setup(&r, 1);
	c = transfer(&r, TN_NVME_READ, BLOCK);
	c.id = 5;
	tn_nvme_queue_put(r.q, &c);
	tn_nvme_queue_put(r.q, &c);
	tn_nvme_queue_ring(r.q);
	/* One of the two is refused; which answer comes first, the specification leaves open. */
	assert_int_equal(wait(&r) + wait(&r), TN_NVME_ID_CONFLICT);
	tear_down(&r, TN_SOFT_ID_IN_USE);
}

static void prps_that_are_not_allowed(void **state)
{
	for (uint32_t i = 0; i < 4; i++) {
		struct tn_nvme_command c;
		struct rig r;
		uint64_t *list;

		setup(&r, 1);
		list = (uint64_t *)(void *)r.list;
		c = transfer(&r, i % 2 ? TN_NVME_WRITE : TN_NVME_READ, i < 2 ? 2 * TN_NVME_PAGE : 4 * TN_NVME_PAGE);
		for (uint32_t k = 0; k < 3; k++)
			list[k] = r.data_bus + (k + 1) * TN_NVME_PAGE;
		if (i >= 2)
			c.data[1] = r.list_bus;
		if (i == 0)
			c.data[0] += 2; /* not at a dword */
		else if (i == 1)
			c.data[1] += 4; /* the second one not at a page's beginning */
		else if (i == 2)
			list[1] += 64; /* nor one of a list */
		else
			c.data[1] += 4; /* the list itself not at a quadword */
		assert_int_equal(ends_with(&r, c), TN_NVME_BAD_PRP);
		tear_down(&r, TN_SOFT_BAD_LIST);
	}
}

static void sgls_that_are_not_allowed(void **state)
{
	for (uint32_t i = 0; i < 5; i++) {
		struct tn_nvme_command c;
		struct tn_nvme_sgl d[2];
		struct rig r;

		setup(&r, i == 0 ? 0 : i == 1 ? 2 : 1);
		c = transfer(&r, TN_NVME_READ, BLOCK);
		c.flags |= TN_NVME_FLAG_SGL;
		d[0] = tn_nvme_sgl_of(r.data_bus, BLOCK, TN_NVME_SGL_DATA);
		d[1] = tn_nvme_sgl_of(r.list_bus, 16, TN_NVME_SGL_LAST_SEGMENT);
		memcpy(r.list, d, sizeof(d));
		if (i == 1)
			d[0].address += 2; /* the controller wants dwords */
		else if (i == 2)
			d[0].length -= 4; /* too few bytes */
		else if (i == 3)
			d[0].type = 0x10; /* a bit bucket, which this controller has not */
		else if (i == 4)
			d[0] = tn_nvme_sgl_of(r.list_bus, 2 * sizeof(d[0]), TN_NVME_SGL_LAST_SEGMENT); /* which names a further one */
		memcpy(c.data, &d[0], sizeof(c.data));
		assert_int_equal(ends_with(&r, c), TN_NVME_BAD_SGL);
		tear_down(&r, TN_SOFT_BAD_LIST);
	}
}

static void memory_that_is_not_mapped(void **state)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct tn_nvme_command c;
		struct rig r;

		setup(&r, 1);
		c = transfer(&r, i ? TN_NVME_WRITE : TN_NVME_READ, i ? 3 * TN_NVME_PAGE : BLOCK);
		if (i)
			c.data[1] = 0; /* the list */
		else
			c.data[0] = 0;
		assert_int_not_equal(ends_with(&r, c), 0);
		tear_down(&r, TN_SOFT_BAD_ADDRESS);
	}
}

static void transfers_beyond_a_limit(void **state)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct tn_nvme_command c;
		struct rig r;

		setup(&r, 1);
		c = transfer(&r, TN_NVME_READ, i ? BLOCK : (TN_NVME_PAGE << 3) + BLOCK);
		c.dword11 = i; /* 2 TiB */
		assert_int_equal(ends_with(&r, c), i ? TN_NVME_LBA_RANGE : TN_NVME_INVALID_FIELD);
		tear_down(&r, TN_SOFT_TOO_LONG);
	}
}

static void a_list_that_is_touched_under_way(void **state)
{
	struct tn_nvme_command c;
	struct rig r;
	uint64_t *list;

	setup(&r, 1);
	list = (uint64_t *)(void *)r.list;
	c = transfer(&r, TN_NVME_READ, 3 * TN_NVME_PAGE);
	c.data[1] = r.list_bus;
	list[0] = r.data_bus + TN_NVME_PAGE;
	list[1] = r.data_bus + 2 * TN_NVME_PAGE;
	submit(&r, c);
	soft_rig_step(&r.s);
	list[1] = r.data_bus + 3 * TN_NVME_PAGE;
	assert_int_equal(wait(&r), 0);
	tear_down(&r, TN_SOFT_LIST_TOUCHED);
}

static void data_that_are_touched_under_way(void **state)
{
	struct rig r;

	setup(&r, 1);
	submit(&r, transfer(&r, TN_NVME_WRITE, BLOCK));
	soft_rig_step(&r.s);
	r.data[BLOCK - 1]++;
	assert_int_equal(wait(&r), 0);
	tear_down(&r, TN_SOFT_DATA_TOUCHED);
}

/* Pieces of 512 bytes, last one first, in segments of up to three descriptors. */
static void an_sgl_of_several_segments(void **state)
{
	enum { PIECES = 5 };
	struct tn_nvme_sgl *d;
	struct tn_nvme_command c;
	struct rig r;

	setup(&r, 1);
	d = (struct tn_nvme_sgl *)(void *)r.list;
	for (uint32_t i = 0; i < PIECES; i++)
		memset(tn_soft_media(r.s.soft) + (size_t)i * BLOCK, (int)(i + 1), BLOCK);
	for (uint32_t i = 0, at = 0; i < PIECES; i++) {
		if (i == 2 || i == 4) { /* the third descriptor of a segment names the next one, a page or 64 bytes further on */
			uint32_t next = i == 2 ? TN_NVME_PAGE / sizeof(*d) : at + 4;

			d[at] = tn_nvme_sgl_of(r.list_bus + next * sizeof(*d), (i == 2 ? 3 : 1) * sizeof(*d),
					       i == 2 ? TN_NVME_SGL_SEGMENT : TN_NVME_SGL_LAST_SEGMENT);
			at = next;
		}
		d[at++] = tn_nvme_sgl_of(r.data_bus + (PIECES - 1 - i) * BLOCK, BLOCK, TN_NVME_SGL_DATA);
	}
	c = transfer(&r, TN_NVME_READ, PIECES * BLOCK);
	c.flags |= TN_NVME_FLAG_SGL;
	d = &(struct tn_nvme_sgl){.address = r.list_bus, .length = 3 * sizeof(*d), .type = TN_NVME_SGL_SEGMENT};
	memcpy(c.data, d, sizeof(c.data));
	assert_int_equal(ends_with(&r, c), 0);
	for (uint32_t i = 0; i < PIECES; i++) {
		assert_int_equal(r.data[(PIECES - 1 - i) * BLOCK], i + 1);
		assert_int_equal(r.data[(PIECES - i) * BLOCK - 1], i + 1);
	}
	tear_down(&r, TN_SOFT_FINDINGS);
}

static void deallocated_ranges_are_empty_and_others_are_not(void **state)
{
	struct tn_nvme_command c;
	struct tn_nvme_range *range;
	struct rig r;

	setup(&r, 1);
	range = (struct tn_nvme_range *)(void *)r.list;
	memset(tn_soft_media(r.s.soft), 9, 8 * BLOCK);
	range[0] = (struct tn_nvme_range){.first = 1, .blocks = 2};
	range[1] = (struct tn_nvme_range){.first = 6, .blocks = 1};
	c = tn_nvme_deallocate(1, 2);
	c.data[0] = r.list_bus;
	assert_int_equal(ends_with(&r, c), 0);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(tn_soft_media(r.s.soft)[i * BLOCK + 1], i == 1 || i == 2 || i == 6 ? 0 : 9);
	range[1].first = UINT64_MAX;
	assert_int_equal(ends_with(&r, c), TN_NVME_LBA_RANGE);
	tear_down(&r, TN_SOFT_FINDINGS);
}

/* ---- paced by a device model ------------------------------------------------------------------------------------------ */

#define PACED_STEP_NS 1000ull
#define PACED_STRETCH 16u
#define PACED_BYTES 32768u
#define PACED_MOST 100u /* commands at once */

static struct tn_mix samsung;

static void setup_paced(struct rig *r)
{
	struct tn_soft_opts so;

	assert_int_equal(tn_mixfile_load("share/devices/samsung-pm9a3-u2.model", &samsung), 0);
	tn_soft_opts_init(&so);
	so.seed = tn_test_seed();
	so.mix = &samsung;
	so.stretch = PACED_STRETCH;
	setup_of(r, &so, PACED_MOST + 1, PACED_STEP_NS);
}

static void submit_paced(struct rig *r, uint32_t opcode, uint32_t n)
{
	const struct tn_nvme_sgl all = tn_nvme_sgl_of(r->data_bus, PACED_BYTES, TN_NVME_SGL_DATA);

	for (uint32_t i = 0; i < n; i++) {
		struct tn_nvme_command c = opcode == TN_NVME_FLUSH ? tn_nvme_flush(1) : transfer(r, opcode, PACED_BYTES);

		if (opcode != TN_NVME_FLUSH) {
			c.flags = TN_NVME_FLAG_SGL;
			memcpy(c.data, &all, sizeof(c.data));
		}
		submit(r, c);
	}
}

static void await_paced(struct rig *r, uint32_t n)
{
	struct tn_nvme_completion done;

	for (uint32_t steps = 0; n; steps++) {
		assert_in_range(steps, 0, 1000000);
		soft_rig_step(&r->s);
		if (!tn_nvme_queue_poll(r->q, &done))
			continue;
		assert_int_equal(tn_nvme_status(&done), 0);
		tn_nvme_queue_took(r->q);
		tn_nvme_queue_give(r->q, done.id);
		n--;
	}
}

/* What the model says of so many transfers at once: all bytes, and one latency. */
static uint64_t model_ns(uint32_t n, uint64_t bps, uint64_t latency_ns)
{
	return (uint64_t)(1e9 * PACED_STRETCH * PACED_BYTES / (double)bps * n) + latency_ns * PACED_STRETCH;
}

/* Since then: never less than the model says, and a few steps more at most. n completions are polled, one per step. */
static void took(const struct rig *r, uint64_t since_ns, uint64_t model, uint32_t n)
{
	assert_in_range(r->s.now - since_ns, model, model + (n + 4) * PACED_STEP_NS);
}

static void reads_writes_and_flushes_take_the_time_of_a_device_model(void **state)
{
	const uint32_t opcode[] = {TN_NVME_READ, TN_NVME_WRITE};
	struct rig r;

	setup_paced(&r);
	for (uint32_t i = 0; i < 10; i++) {
		uint64_t bps = i % 2 ? samsung.write_bps : samsung.read_bps, latency_ns = i % 2 ? samsung.write_latency_ns : samsung.read_latency_ns;
		uint32_t n = 1 + i * (PACED_MOST - 1) / 9;
		uint64_t began = r.s.now;

		submit_paced(&r, opcode[i % 2], n);
		await_paced(&r, n);
		took(&r, began, model_ns(n, bps, latency_ns), n);
	}
	for (uint32_t n = 0; n < 4; n++) {
		uint64_t began = r.s.now;

		submit_paced(&r, TN_NVME_WRITE, n);
		submit_paced(&r, TN_NVME_FLUSH, 1);
		await_paced(&r, n + 1);
		took(&r, began, model_ns(n, samsung.write_bps, samsung.write_latency_ns), n + 1);
	}
	tear_down(&r, TN_SOFT_FINDINGS);
}

static void a_reset_frees_the_drive_of_what_is_under_way(void **state)
{
	uint32_t generation;
	uint64_t began;
	struct rig r;

	setup_paced(&r);
	submit_paced(&r, TN_NVME_READ, PACED_MOST);
	soft_rig_step(&r.s);
	assert_int_equal(tn_nvme_restart(r.n, tn_nvme_generation(r.n)), 0);
	assert_int_equal(tn_nvme_renew(r.n, 0, &generation), 0);
	began = r.s.now;
	submit_paced(&r, TN_NVME_READ, 1);
	await_paced(&r, 1);
	took(&r, began, model_ns(1, samsung.read_bps, samsung.read_latency_ns), 1);
	tear_down(&r, TN_SOFT_FINDINGS);
}

/* They end as they would have, and nobody is told. */
static void commands_of_a_queue_that_is_deleted_keep_the_drive_busy(void **state)
{
	struct tn_nvme_command gone = tn_nvme_command_of(TN_NVME_DELETE_SQ, 0);
	uint64_t began;
	uint32_t result;
	struct rig r;

	setup_paced(&r);
	gone.dword10 = 1;
	began = r.s.now;
	submit_paced(&r, TN_NVME_READ, 9);
	assert_int_equal(tn_nvme_admin(r.n, &gone, &result), 0);
	r.q = tn_nvme_io_queue(r.n, 1);
	submit_paced(&r, TN_NVME_READ, 5);
	await_paced(&r, 5);
	took(&r, began, model_ns(14, samsung.read_bps, samsung.read_latency_ns), 5);
	tear_down(&r, TN_SOFT_FINDINGS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_right_is_done_and_nothing_found),
		cmocka_unit_test(queues_that_cannot_be),
		cmocka_unit_test(a_tail_beyond_the_queue),
		cmocka_unit_test(a_head_beyond_what_was_posted),
		cmocka_unit_test(a_doorbell_before_its_entry),
		cmocka_unit_test(an_id_that_is_in_use),
		cmocka_unit_test(prps_that_are_not_allowed),
		cmocka_unit_test(sgls_that_are_not_allowed),
		cmocka_unit_test(memory_that_is_not_mapped),
		cmocka_unit_test(transfers_beyond_a_limit),
		cmocka_unit_test(a_list_that_is_touched_under_way),
		cmocka_unit_test(data_that_are_touched_under_way),
		cmocka_unit_test(an_sgl_of_several_segments),
		cmocka_unit_test(deallocated_ranges_are_empty_and_others_are_not),
		cmocka_unit_test(reads_writes_and_flushes_take_the_time_of_a_device_model),
		cmocka_unit_test(a_reset_frees_the_drive_of_what_is_under_way),
		cmocka_unit_test(commands_of_a_queue_that_is_deleted_keep_the_drive_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
