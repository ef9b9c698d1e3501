/* SPDX-License-Identifier: Apache-2.0 */
/* Executors: what they write, copy, check and sum. Each test runs inline, inline with jobs that end later, and on threads. */
#include <errno.h>
#include <string.h>

#include "executor_rig.h"

#define ALL RIG_LAYERS
#define OBJECTS (RIG_BLOCKS * RIG_LAYERS)

static struct rig_opts driver; /* of the run */

static struct rig *make(struct rig_opts o)
{
	o.threads = driver.threads;
	o.exec = driver.exec;
	return rig_make(o);
}

static struct tn_executor_stats stats_of(struct rig *r)
{
	struct tn_executor_stats s;

	tn_executor_stats(r->ex, &s);
	return s;
}

static uint32_t iocb(struct rig *r, uint16_t op, bool to_slots, uint32_t from, uint32_t to, uint32_t layer, uint32_t flags)
{
	uint32_t id = rig_iocb(r, from, to, layer, flags);

	rig_turn_into(r, id, op, to_slots);
	return id;
}

static struct tn_ring_completion run(struct rig *r, uint32_t id)
{
	rig_issue(r, id);
	return rig_await(r, id);
}

static void objects_are_written_from_their_pages_with_their_checksums(void **state)
{
	static const struct rig_opts how[] = {{.page_bytes = 4096}, {.page_bytes = 4096, .shift = 8}, {.page_bytes = 400},
					      {.page_bytes = 4096, .flat = true}, {.page_bytes = 400, .flat = true}};

	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct rig *r = make(how[i]);
		struct tn_executor_stats s, before;
		struct tn_io_stat st;
		bool direct;

		/* Leaves something in the bounce buffers that must not be written behind the objects. */
		assert_int_equal(run(r, iocb(r, TN_IOCB_READ, false, 0, RIG_BLOCKS, ALL, 0)).status, 0);
		before = stats_of(r);
		r->observed = r->observed_writes = 0;
		rig_wipe_disk(r);
		rig_wipe(r);
		rig_fill(r);
		assert_int_equal(run(r, iocb(r, TN_IOCB_WRITE, false, 0, RIG_BLOCKS - 1, ALL, TN_IOCB_SUM)).status, 0);
		for (uint32_t e = 0; e < OBJECTS - RIG_LAYERS; e++) {
			assert_int_equal(r->status[e], 0);
			assert_true(rig_disk_has(r, e / RIG_LAYERS, e % RIG_LAYERS));
			assert_int_equal(r->sums[e], r->checks[e]);
		}
		assert_true(rig_disk_clean(r, RIG_BLOCKS - 1, 0));
		rig_check_guards(r);
		s = stats_of(r);
		assert_int_equal(s.bytes_written, (RIG_BLOCKS - 1) * r->shape.slot_bytes);
		assert_int_equal(s.bytes, before.bytes);
		s.requests -= before.requests;
		assert_int_equal(tn_io_stat(r->io, r->file, &st), 0);
		direct = how[i].flat || (how[i].page_bytes == 4096 && (!how[i].shift || st.memory_align <= 8));
		assert_int_equal(s.bounced - before.bounced, direct ? 0 : OBJECTS - RIG_LAYERS);
		/* Neighbours go together. */
		assert_true(s.requests <= 2 * (1 + s.bytes_written / TN_RING_IO_BYTES) + 2);
		assert_int_equal(r->observed_writes, s.requests);
		rig_free(r);
	}
}

static void a_sum_is_told_only_if_it_is_asked_for_and_compared_if_it_is_known(void **state)
{
	static const struct rig_opts how[] = {{.page_bytes = 4096}, {.page_bytes = 400}};

	for (size_t i = 0; i < 2; i++) {
		struct rig *r = make(how[i]);
		struct tn_ring_completion c;

		rig_wipe_disk(r);
		rig_fill(r);
		memset(tn_ring_sums_of(&r->ring->view, 0), 0, 16 * OBJECTS * sizeof(uint64_t));
		assert_int_equal(run(r, iocb(r, TN_IOCB_WRITE, false, 0, 4, ALL, 0)).status, 0);
		for (uint32_t e = 0; e < 4 * RIG_LAYERS; e++)
			assert_int_equal(r->sums[e], 0);
		r->checks[5 * RIG_LAYERS + 1]++;
		c = run(r, iocb(r, TN_IOCB_WRITE, false, 4, 8, ALL, TN_IOCB_VERIFY));
		assert_int_equal(c.status, -EBADMSG);
		assert_int_equal(c.failures, 1);
		for (uint32_t e = 4 * RIG_LAYERS; e < 8 * RIG_LAYERS; e++)
			assert_int_equal(r->status[e], e == 5 * RIG_LAYERS + 1 ? -EBADMSG : 0);
		/* What is compared before it goes is not written. */
		if (how[i].page_bytes == 400)
			assert_true(rig_disk_clean(r, 5, 1));
		rig_free(r);
	}
}

static void a_failed_or_short_write_fails_its_object_alone(void **state)
{
	static const uint8_t kinds[] = {TN_FAULT_EIO, TN_FAULT_ENOSPC, TN_FAULT_SHORT};
	static const int errors[] = {-EIO, -ENOSPC, -EIO};

	for (uint32_t i = 0; i < 12; i++) {
		const struct tn_fault f = {.kind = kinds[i % 3], .op = TN_IO_WRITE, .from = 0, .count = 1 + i / 3 % 2};
		struct rig_opts o = {.page_bytes = i < 6 ? 4096 : 400, .depth = 1, .faults = &f, .nfaults = 1};
		struct tn_ring_completion c;
		struct rig *r;

		o.threads = driver.threads ? 1 : 0; /* one engine, so that its requests are counted */
		o.exec = driver.exec;
		r = rig_make(o);
		rig_wipe_disk(r);
		rig_fill(r);
		c = run(r, iocb(r, TN_IOCB_WRITE, false, 0, 1, ALL, TN_IOCB_SUM)); /* one request */
		assert_int_equal(stats_of(r).again, RIG_LAYERS);
		assert_int_equal(c.failures, f.count - 1);
		assert_int_equal(c.status, f.count > 1 ? errors[i % 3] : 0);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_true(r->status[l] || rig_disk_has(r, 0, l));
		rig_free(r);
	}
}

static void a_large_object_is_written_in_several_requests(void **state)
{
	for (uint32_t shift = 0; shift <= 16; shift += 16) {
		struct rig *r = make((struct rig_opts){.page_bytes = 40 << 10, .depth = 1, .blocks = 3, .shift = shift});
		uint32_t id = iocb(r, TN_IOCB_WRITE, false, 0, 3, 2, TN_IOCB_SUM);

		rig_wipe_disk(r);
		rig_fill(r);
		tn_ring_iocb(r->ring, id)->request_bytes = 256u << 10;
		assert_int_equal(run(r, id).status, 0);
		for (uint32_t b = 0; b < 3; b++) {
			assert_true(rig_disk_has(r, b, 2));
			assert_int_equal(r->sums[b * RIG_LAYERS + 2], r->checks[b * RIG_LAYERS + 2]);
			assert_true(rig_disk_clean(r, b, 1));
		}
		assert_int_equal(stats_of(r).requests, 3 * 2); /* 320 KiB */
		rig_free(r);
	}
}

/* The next layers of one save, too: nobody waits for the first one. */
static void neighbours_of_several_iocbs_are_written_together(void **state)
{
	struct rig *r = make((struct rig_opts){.page_bytes = 4096});
	uint32_t ids[RIG_LAYERS];

	rig_wipe_disk(r);
	rig_fill(r);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		ids[l] = iocb(r, TN_IOCB_WRITE, false, 0, RIG_BLOCKS, l, TN_IOCB_SUM);
	assert_int_equal(tn_ring_issue(r->ring, ids, RIG_LAYERS), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_await(r, ids[l]).status, 0);
	for (uint32_t e = 0; e < OBJECTS; e++)
		assert_true(rig_disk_has(r, e / RIG_LAYERS, e % RIG_LAYERS));
	if (!driver.threads)
		assert_true(stats_of(r).requests < OBJECTS / 2);
	rig_free(r);
}

/* What lies behind an object up to the next one, in the slots. */
static unsigned char *padding_of(struct rig *r, uint32_t e)
{
	return r->slots + r->slot[e / RIG_LAYERS] + (size_t)(e % RIG_LAYERS) * r->shape.padded_bytes + r->shape.object_bytes;
}

static void objects_are_copied_between_pages_and_slots(void **state)
{
	static const struct rig_opts how[] = {{.page_bytes = 4096}, {.page_bytes = 400}, {.page_bytes = 4096, .flat = true}};

	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct rig *r = make(how[i]);
		struct tn_ring_completion c;

		rig_fill(r);
		for (uint32_t e = 0; e < OBJECTS; e++)
			memset(padding_of(r, e), 0xaa, r->shape.padded_bytes - r->shape.object_bytes); /* another tenant's */
		assert_int_equal(run(r, iocb(r, TN_IOCB_COPY, true, 0, RIG_BLOCKS, ALL, TN_IOCB_SUM)).status, 0);
		for (uint32_t e = 0; e < OBJECTS; e++) {
			assert_true(rig_slot_has(r, e / RIG_LAYERS, e % RIG_LAYERS));
			for (uint32_t k = 0; k < r->shape.padded_bytes - r->shape.object_bytes; k++)
				assert_int_equal(padding_of(r, e)[k], 0);
			assert_int_equal(r->sums[e], r->checks[e]);
		}
		rig_wipe(r);
		r->checks[3 * RIG_LAYERS + 2]++;
		c = run(r, iocb(r, TN_IOCB_COPY, false, 0, RIG_BLOCKS - 1, ALL, TN_IOCB_VERIFY));
		assert_int_equal(c.status, -EBADMSG);
		assert_int_equal(c.failures, 1);
		for (uint32_t e = 0; e < OBJECTS - RIG_LAYERS; e++) {
			bool bad = e == 3 * RIG_LAYERS + 2;

			assert_int_equal(r->status[e], bad ? -EBADMSG : 0);
			assert_true(bad ? rig_clean(r, e / RIG_LAYERS, e % RIG_LAYERS) : rig_has(r, e / RIG_LAYERS, e % RIG_LAYERS));
		}
		assert_true(rig_clean(r, RIG_BLOCKS - 1, 0));
		rig_check_guards(r);
		assert_int_equal(stats_of(r).requests, 0);
		rig_free(r);
	}
}

static void a_part_of_a_block_is_copied_to_and_nothing_else_of_it_can_be_used(void **state)
{
	struct rig *r = make((struct rig_opts){.page_bytes = 4096});

	rig_fill_slots(r);
	r->list.first_page = 2;
	r->list.end_page = 2 * RIG_PAGES;
	assert_int_equal(run(r, iocb(r, TN_IOCB_COPY, false, 0, 2, 1, TN_IOCB_VERIFY)).status, 0);
	assert_true(rig_has(r, 1, 1));
	for (uint32_t p = 0; p < RIG_PAGES; p++) {
		unsigned char *at = tn_layout_address(&r->layout, &r->pool_memory, 1, 0, r->pages[p]);

		assert_int_equal(at[0] == RIG_GUARD && !memcmp(at, at + 1, 4095), p < 2);
	}
	assert_int_equal(run(r, iocb(r, TN_IOCB_COPY, true, 0, 1, 1, 0)).status, -EINVAL);
	assert_int_equal(run(r, iocb(r, TN_IOCB_WRITE, false, 0, 1, 1, 0)).status, -EINVAL);
	assert_int_equal(run(r, iocb(r, TN_IOCB_CHECK, false, 0, 1, 1, TN_IOCB_VERIFY)).status, -EINVAL);
	assert_int_equal(run(r, iocb(r, TN_IOCB_CHECK, false, 1, 2, 1, TN_IOCB_VERIFY)).status, 0);
	rig_check_guards(r);
	rig_free(r);
}

static void a_check_compares_and_sums_and_changes_nothing(void **state)
{
	struct rig *r = make((struct rig_opts){.page_bytes = 400});
	struct tn_ring_completion c;

	rig_fill(r);
	r->checks[2 * RIG_LAYERS]++;
	assert_int_equal(run(r, iocb(r, TN_IOCB_CHECK, false, 0, RIG_BLOCKS, ALL, TN_IOCB_SUM)).status, 0);
	for (uint32_t e = 0; e < OBJECTS; e++)
		assert_int_equal(r->sums[e], r->checks[e] - (e == 2 * RIG_LAYERS));
	c = run(r, iocb(r, TN_IOCB_CHECK, false, 0, RIG_BLOCKS, ALL, TN_IOCB_VERIFY));
	assert_int_equal(c.status, -EBADMSG);
	assert_int_equal(c.failures, 1);
	assert_int_equal(r->status[2 * RIG_LAYERS], -EBADMSG);
	for (uint32_t e = 0; e < OBJECTS; e++)
		assert_true(rig_has(r, e / RIG_LAYERS, e % RIG_LAYERS));
	rig_check_guards(r);
	rig_free(r);
}

static void nonsense_is_refused(void **state)
{
	struct rig *r = make((struct rig_opts){.page_bytes = 4096});
	struct tn_shape small = r->shape;
	struct tn_ring_list others = r->slot_list;
	uint32_t id = iocb(r, TN_IOCB_WRITE, false, 0, 3, 0, 0);

	rig_wipe_disk(r);
	tn_ring_ioctx(r->ring, id)[0].place = tn_ioctx_disk(1, 1);
	tn_ring_ioctx(r->ring, id)[1].length--;
	tn_ring_ioctx(r->ring, id)[2].entry = OBJECTS;
	assert_int_equal(run(r, id).failures, 3);
	assert_int_equal(stats_of(r).requests, 0);
	id = iocb(r, TN_IOCB_COPY, true, 0, 3, 0, 0);
	tn_ring_ioctx(r->ring, id)[0].place = OBJECTS;
	tn_ring_ioctx(r->ring, id)[1].place = UINT64_C(1) << 32;
	tn_ring_ioctx(r->ring, id)[2].entry = UINT32_MAX;
	assert_int_equal(run(r, id).failures, 3);
	id = iocb(r, TN_IOCB_COPY, true, 0, 3, 0, 0);
	tn_ring_iocb(r->ring, id)->source = 7;
	assert_int_equal(run(r, id).status, -EINVAL);
	small.object_bytes -= 16;
	others.shape = &small;
	assert_int_equal(tn_ring_list_set(r->ring, 7, &others), 0);
	id = iocb(r, TN_IOCB_COPY, true, 0, 3, 0, 0);
	tn_ring_iocb(r->ring, id)->source = 7;
	assert_int_equal(run(r, id).status, -EINVAL);
	r->list.checks = NULL;
	assert_int_equal(run(r, iocb(r, TN_IOCB_COPY, true, 0, 3, 0, TN_IOCB_VERIFY)).status, -EINVAL);
	rig_check_guards(r);
	rig_free(r);
}

static void cancelled_writes_and_copies_end_and_tell_what_was_done(void **state)
{
	const struct tn_fault late = {.kind = TN_FAULT_LATE, .op = TN_IO_WRITE, .count = UINT64_MAX, .delay_ns = 200000000};

	for (uint32_t i = 0; i < 2; i++) {
		struct rig_opts o = {.page_bytes = 32 << 10, .shift = i * 8, .depth = 2, .faults = &late, .nfaults = 1};
		uint32_t ids[2], moved = 0;
		struct tn_ring_completion c;
		struct rig *r;

		o.threads = driver.threads ? 1 : 0;
		o.exec = driver.exec;
		r = rig_make(o);
		rig_wipe_disk(r);
		rig_fill(r);
		ids[0] = iocb(r, TN_IOCB_WRITE, false, 0, r->o.blocks, 0, TN_IOCB_SUM);
		ids[1] = iocb(r, TN_IOCB_COPY, true, 0, r->o.blocks, 1, 0);
		rig_issue(r, ids[0]);
		while (stats_of(r).requests == 0)
			rig_step(r);
		rig_issue(r, ids[1]);
		tn_ring_cancel(r->ring, ids, 2);
		c = rig_await(r, ids[0]);
		assert_int_equal(c.status, -ECANCELED);
		for (uint32_t b = 0; b < r->o.blocks; b++) {
			int status = r->status[b * RIG_LAYERS];

			assert_true(status == 0 || status == -ECANCELED);
			moved += status == 0;
			assert_true(status == 0 ? rig_disk_has(r, b, 0) : rig_disk_clean(r, b, 0));
		}
		assert_int_equal(moved + c.failures, r->o.blocks);
		assert_in_range(moved, 1, r->o.blocks - 1);
		c = rig_await(r, ids[1]);
		assert_true(c.status == 0 || c.status == -ECANCELED);
		rig_free(r);
	}
}

/* What became of one IOCB of a storm; blocks are told apart by the ops, so that no two touch the same bytes. */
static void expect_outcome(struct rig *r, uint16_t op, const struct tn_ring_completion *c, uint32_t from, uint32_t to, uint32_t layer)
{
	uint32_t bad = 0;

	for (uint32_t b = from; b < to; b++) {
		uint32_t e = b * RIG_LAYERS + layer;
		int status = r->status[e];

		if (c->status == -ECANCELED && c->failures == to - from && status == TN_RING_PENDING)
			continue; /* cancelled before it was taken */
		assert_true(status <= 0);
		bad += status != 0;
		if (status)
			continue;
		if (op == TN_IOCB_WRITE)
			assert_true(rig_disk_has(r, b, layer));
		if (op == TN_IOCB_COPY)
			assert_true(rig_slot_has(r, b, layer));
		assert_true(rig_has(r, b, layer));
		if (op != TN_IOCB_READ)
			assert_int_equal(r->sums[e], r->checks[e]);
	}
	if (c->failures != to - from)
		assert_int_equal(bad, c->failures);
}

static void a_storm_of_all_operations_ends_with_every_status_true(void **state)
{
	static const struct tn_fault faults[] = {
		{.kind = TN_FAULT_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX, .percent = 5},
		{.kind = TN_FAULT_LATE, .op = TN_IO_WRITE, .count = UINT64_MAX, .percent = 20, .delay_ns = 200000},
		{.kind = TN_FAULT_SHORT, .op = TN_IO_WRITE, .count = UINT64_MAX, .percent = 3},
		{.kind = TN_FAULT_EIO, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 5},
		{.kind = TN_FAULT_CORRUPT, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 3}};
	static const uint16_t ops[RIG_LAYERS] = {TN_IOCB_READ, TN_IOCB_WRITE, TN_IOCB_COPY, TN_IOCB_CHECK};
	/* The software controller takes a step at a time; executor-nvme has storms of its own. */
	uint32_t rounds = tn_test_cases(rig_drives == RIG_FILES ? 150 : 40);

	for (uint32_t i = 0; i < 2; i++) {
		struct rig *r = make((struct rig_opts){.page_bytes = i ? 4096 : 400, .depth = 4, .unruly = true, .faults = faults,
						       .nfaults = 5});

		for (uint32_t round = 0; round < rounds / 2; round++) {
			uint32_t ids[RIG_LAYERS], from[RIG_LAYERS], to[RIG_LAYERS];

			rig_fill(r);
			for (uint32_t l = 0; l < RIG_LAYERS; l++) {
				from[l] = tn_rng_below(&r->rng, RIG_BLOCKS);
				to[l] = from[l] + 1 + tn_rng_below(&r->rng, RIG_BLOCKS - from[l]);
				ids[l] = iocb(r, ops[l], true, from[l], to[l], l, l ? TN_IOCB_SUM : TN_IOCB_VERIFY);
				tn_ring_iocb(r->ring, ids[l])->priority = (int)tn_rng_below(&r->rng, 2);
			}
			assert_int_equal(tn_ring_issue(r->ring, ids, RIG_LAYERS), 0);
			if (tn_rng_below(&r->rng, 2))
				rig_step(r);
			if (tn_rng_below(&r->rng, 3) == 0)
				tn_ring_cancel(r->ring, ids, 1 + tn_rng_below(&r->rng, RIG_LAYERS));
			for (uint32_t l = 0; l < RIG_LAYERS; l++) {
				struct tn_ring_completion c = rig_await(r, ids[l]);

				expect_outcome(r, ops[l], &c, from[l], to[l], l);
			}
			rig_check_guards(r);
		}
		rig_free(r);
	}
}

static int run_inline(void **state)
{
	driver = (struct rig_opts){0};
	return 0;
}

static int run_exec(void **state)
{
	driver = (struct rig_opts){.exec = true};
	return 0;
}

static int run_threads(void **state)
{
	driver = (struct rig_opts){.threads = 2};
	return 0;
}

static int run_nvme(void **state)
{
	driver = (struct rig_opts){0};
	rig_drives = RIG_NVME;
	return 0;
}

static int run_nvme_exec(void **state)
{
	driver = (struct rig_opts){.exec = true};
	rig_drives = RIG_NVME;
	return 0;
}

static int run_nvme_thread(void **state)
{
	driver = (struct rig_opts){.threads = 1};
	rig_drives = RIG_NVME_THREAD;
	return 0;
}

#define T(f) {#f, f, NULL, NULL, NULL}
#define FILES(f) {#f, f, NULL, NULL, (void *)1} /* not on NVMe: breaks requests of an engine */

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(objects_are_written_from_their_pages_with_their_checksums),
		T(a_sum_is_told_only_if_it_is_asked_for_and_compared_if_it_is_known),
		FILES(a_failed_or_short_write_fails_its_object_alone),
		T(a_large_object_is_written_in_several_requests),
		T(neighbours_of_several_iocbs_are_written_together),
		T(objects_are_copied_between_pages_and_slots),
		T(a_part_of_a_block_is_copied_to_and_nothing_else_of_it_can_be_used),
		T(a_check_compares_and_sums_and_changes_nothing),
		T(nonsense_is_refused),
		FILES(cancelled_writes_and_copies_end_and_tell_what_was_done),
		T(a_storm_of_all_operations_ends_with_every_status_true),
	};
	static const struct {
		const char *name;
		CMFixtureFunction setup;
		bool nvme, threads;
	} how[] = {{"inline", run_inline}, {"jobs", run_exec}, {"threads", run_threads, .threads = true}, {"nvme", run_nvme, true},
		   {"nvme, jobs", run_nvme_exec, true}, {"nvme with a thread", run_nvme_thread, true, true}};
	enum { N = sizeof(tests) / sizeof(tests[0]), DRIVERS = sizeof(how) / sizeof(how[0]) };
	static char names[DRIVERS * N][128];
	struct CMUnitTest all[DRIVERS * N];
	size_t n = 0;

	for (uint32_t i = 0; i < DRIVERS * N; i++) {
		const struct CMUnitTest *test = &tests[i % N];

		if ((how[i / N].nvme && test->initial_state) || (TN_TEST_THREAD_SANITIZER && !how[i / N].threads))
			continue;
		snprintf(names[n], sizeof(names[n]), "%s: %s", how[i / N].name, test->name);
		all[n] = *test;
		all[n].name = names[n];
		all[n].setup_func = how[i / N].setup;
		n++;
	}
	return _cmocka_run_group_tests("executor-write", all, n, NULL, NULL);
}
