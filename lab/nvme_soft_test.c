/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software controller as the judge of a driver: each rule is broken once, by hand, and that it was broken is found, and nothing else; and
 * what no driver of ours sends yet is done right: SGLs of several segments, dataset management.
 */
#include "lab/soft_rig.h"

#include <string.h>

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

/* Commands end LATE_STEPS after they were fetched. */
static void setup(struct rig *r, uint32_t sgl)
{
	struct tn_nvme_opts no = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .queues = 1, .entries = 16};
	struct tn_soft_opts so;

	tn_soft_opts_init(&so);
	so.seed = tn_test_seed();
	so.sgl = sgl;
	so.mdts = 3; /* 32 KiB */
	so.late_steps = LATE_STEPS;
	so.chances.late = 65536;
	soft_rig_up(&r->s, &so, STEP_NS);
	assert_int_equal(tn_nvme_create(&no, &r->n), 0);
	r->q = tn_nvme_io_queue(r->n, 0);
	r->data = r->s.port.get(&r->s, DATA_BYTES, &r->data_bus);
	r->list = r->s.port.get(&r->s, LIST_BYTES, &r->list_bus);
	assert_non_null(r->data);
	assert_non_null(r->list);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
