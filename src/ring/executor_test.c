/* SPDX-License-Identifier: Apache-2.0 */
/* Executors: what they read where, what they merge, what they report. Each test runs on all drivers. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/error.h"
#include "executor_rig.h"
#include "window.h"

#define ALL RIG_LAYERS

static uint32_t threads; /* of the run */

static struct tn_executor_stats stats_of(struct rig *r)
{
	struct tn_executor_stats s;

	tn_executor_stats(r->ex, &s);
	return s;
}

static void expect_all(struct rig *r, uint32_t from, uint32_t to)
{
	for (uint32_t b = from; b < to; b++) {
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			assert_int_equal(r->status[b * RIG_LAYERS + l], 0);
			assert_true(rig_has(r, b, l));
		}
	}
}

static void objects_land_in_their_pages_and_nothing_else_is_touched(void **state)
{
	/* Aligned pages, and such that neither memory nor length satisfy the disk; flat memory. */
	static const struct rig_opts how[] = {{.page_bytes = 4096}, {.page_bytes = 4096, .shift = 8}, {.page_bytes = 400},
					      {.page_bytes = 4096, .flat = true}, {.page_bytes = 400, .flat = true}};

	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct rig_opts o = how[i];
		struct tn_executor_stats s;
		struct tn_ring_completion c;
		struct tn_io_stat st;
		struct rig *r;
		uint32_t id;

		o.threads = threads;
		r = rig_make(o);
		id = rig_iocb(r, 0, RIG_BLOCKS, ALL, TN_IOCB_VERIFY);
		rig_issue(r, id);
		c = rig_await(r, id);
		assert_int_equal(c.status, 0);
		assert_int_equal(c.failed, TN_RING_NO_INDEX);
		expect_all(r, 0, RIG_BLOCKS);
		rig_check_guards(r);
		s = stats_of(r);
		assert_int_equal(s.objects, RIG_BLOCKS * RIG_LAYERS);
		assert_int_equal(s.verified, RIG_BLOCKS * RIG_LAYERS);
		assert_int_equal(s.bytes, RIG_BLOCKS * r->shape.slot_bytes);
		assert_int_equal(tn_io_stat(r->io, r->file, &st), 0);
		if (o.flat)
			assert_int_equal(s.bounced, 0);
		else if (o.page_bytes == 400)
			assert_int_equal(s.bounced, RIG_BLOCKS * RIG_LAYERS);
		else if (st.memory_align > 8)
			assert_int_equal(s.bounced, o.shift ? RIG_BLOCKS * RIG_LAYERS : 0);
		/* Objects lie side by side: many are one request, as large as the window likes. */
		assert_true(s.requests <= s.bytes / (TN_WINDOW_PIECE_LEAST / 4) + 1);
		assert_true(r->shape.padded_bytes >= TN_WINDOW_PIECE_LEAST / 4 || s.requests < s.objects);
		assert_int_equal(r->observed, s.requests);
		rig_free(r);
	}
}

/* Of different loads; of one load, another IOCB is another layer, and is not read with the one that is wanted first. */
static void neighbours_of_different_loads_are_read_together(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	uint32_t ids[RIG_LAYERS];

	assert_int_equal(tn_ring_list_set(r->ring, 2, &r->list), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		ids[l] = rig_iocb(r, 0, RIG_BLOCKS, l, TN_IOCB_VERIFY);
		tn_ring_iocb(r->ring, ids[l])->list = 1 + l % 2;
	}
	assert_int_equal(tn_ring_issue(r->ring, ids, RIG_LAYERS), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_await(r, ids[l]).status, 0);
	expect_all(r, 0, RIG_BLOCKS);
	/* Without merging across IOCBs there would be one per object. With threads an IOCB may have begun before the next
	   one was there. */
	if (!threads)
		assert_true(stats_of(r).requests <= RIG_BLOCKS * RIG_LAYERS * 3 / 4);
	rig_free(r);
}

static void layers_of_one_load_are_not_read_together(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	uint32_t ids[RIG_LAYERS];

	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		ids[l] = rig_iocb(r, 0, RIG_BLOCKS, l, TN_IOCB_VERIFY);
	assert_int_equal(tn_ring_issue(r->ring, ids, RIG_LAYERS), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_await(r, ids[l]).status, 0);
	expect_all(r, 0, RIG_BLOCKS);
	assert_int_equal(stats_of(r).requests, RIG_BLOCKS * RIG_LAYERS);
	rig_free(r);
}

/* A device serves side by side what is in flight: what is wanted later must not be there while the first is awaited. */
static void on_an_idle_device_a_whole_load_does_not_go_at_once(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.page_bytes = 65536, .depth = 64});
	uint32_t ids[RIG_LAYERS];

	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		ids[l] = rig_iocb(r, 0, RIG_BLOCKS, l, TN_IOCB_VERIFY);
	assert_int_equal(tn_ring_issue(r->ring, ids, RIG_LAYERS), 0);
	tn_executor_step(r->ex);
	assert_in_range(stats_of(r).requests, 1, TN_WINDOW_START / r->shape.padded_bytes);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(rig_await(r, ids[l]).status, 0);
	expect_all(r, 0, RIG_BLOCKS);
	rig_free(r);
}

static struct {
	const struct tn_io_ops *ops; /* the engine's own */
	struct rig *rig;
	uint64_t verified; /* when the last request was submitted */
} watched;

static unsigned submit_watched(struct tn_io *io, struct tn_io_req **reqs, unsigned n)
{
	watched.verified = stats_of(watched.rig).verified;
	return watched.ops->submit(io, reqs, n);
}

/* Nothing waits to be sent while what was read is checked: the device would be idle. */
static void the_next_request_is_sent_before_what_was_read_is_checked(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.page_bytes = 4096, .depth = 1}); /* an object is one request */
	struct tn_io_ops ops = *r->io->ops;
	uint32_t ids[2];

	watched.ops = r->io->ops;
	watched.rig = r;
	ops.submit = submit_watched;
	r->io->ops = &ops;
	for (uint32_t l = 0; l < 2; l++) {
		ids[l] = rig_iocb(r, 0, 1, l, TN_IOCB_VERIFY);
		rig_issue(r, ids[l]);
	}
	for (uint32_t l = 0; l < 2; l++)
		assert_int_equal(rig_await(r, ids[l]).status, 0);
	assert_int_equal(stats_of(r).verified, 2);
	assert_int_equal(watched.verified, 0);
	r->io->ops = watched.ops;
	rig_free(r);
}

static void a_part_of_a_block_s_pages_leaves_the_others_alone(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	uint32_t id;

	r->list.first_page = 2;
	r->list.end_page = 2 * RIG_PAGES + 1; /* half of block 0, block 1, the first page of block 2 */
	id = rig_iocb(r, 0, 4, 1, TN_IOCB_VERIFY);
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).failures, 1); /* block 3 is not wanted at all */
	assert_int_equal(r->status[3 * RIG_LAYERS + 1], -EINVAL);
	assert_true(rig_clean(r, 3, 1));
	assert_true(rig_has(r, 1, 1));
	for (uint32_t b = 0; b < 3; b += 2) {
		for (uint32_t p = 0; p < RIG_PAGES; p++) {
			bool wanted = b == 0 ? p >= 2 : p < 1;

			for (uint32_t plane = 0; plane < 2; plane++) {
				unsigned char *at = tn_layout_address(&r->layout, &r->pool_memory, 1, plane, r->pages[b * RIG_PAGES + p]);

				/* Some byte of a wanted page differs from the guard; no byte of the others does. */
				assert_int_equal(at[0] == RIG_GUARD && !memcmp(at, at + 1, 4095), !wanted);
			}
		}
	}
	rig_check_guards(r);
	rig_free(r);
}

static void a_wrong_checksum_fails_its_object_alone(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 400});
	struct tn_ring_completion c;
	uint32_t id;

	r->checks[3 * RIG_LAYERS + 2]++;
	id = rig_iocb(r, 0, 8, ALL, TN_IOCB_VERIFY);
	rig_issue(r, id);
	c = rig_await(r, id);
	assert_int_equal(c.status, -EBADMSG);
	assert_int_equal(c.failures, 1);
	assert_int_equal(tn_ring_ioctx(r->ring, id)[c.failed].entry, 3 * RIG_LAYERS + 2);
	for (uint32_t e = 0; e < 8 * RIG_LAYERS; e++)
		assert_int_equal(r->status[e], e == 3 * RIG_LAYERS + 2 ? -EBADMSG : 0);
	assert_true(rig_clean(r, 3, 2)); /* of what was bounced, nothing wrong is copied */
	id = rig_iocb(r, 0, 8, ALL, 0); /* not asked to verify: not looked at */
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, 0);
	rig_free(r);
}

static void an_error_of_a_merged_read_fails_only_who_fails_alone(void **state)
{
	const struct tn_fault once = {.kind = TN_FAULT_EIO, .op = TN_IO_READ, .from = 0, .count = 1};
	const struct tn_fault twice = {.kind = TN_FAULT_EIO, .op = TN_IO_READ, .from = 0, .count = 2};
	struct rig *r = rig_make(
		(struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 4096, .depth = 1, .faults = &once, .nfaults = 1});
	struct tn_ring_completion c;
	uint32_t id = rig_iocb(r, 0, 4, ALL, TN_IOCB_VERIFY);

	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, 0);
	expect_all(r, 0, 4);
	assert_true(stats_of(r).again >= RIG_LAYERS);
	assert_int_equal(r->observed_errors, 1);
	rig_free(r);

	r = rig_make((struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 4096, .depth = 1, .faults = &twice, .nfaults = 1});
	id = rig_iocb(r, 0, 4, ALL, TN_IOCB_VERIFY);
	rig_issue(r, id);
	c = rig_await(r, id);
	assert_int_equal(c.status, -EIO);
	assert_int_equal(c.failures, 1);
	rig_free(r);
}

static void an_object_larger_than_a_request_takes_several(void **state)
{
	for (uint32_t shift = 0; shift <= 16; shift += 16) {
		struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 40 << 10, .depth = 1, .blocks = 3, .shift = shift});
		uint32_t id = rig_iocb(r, 0, 3, 2, TN_IOCB_VERIFY);

		tn_ring_iocb(r->ring, id)->request_bytes = 256u << 10;
		rig_issue(r, id);
		assert_int_equal(rig_await(r, id).status, 0);
		for (uint32_t b = 0; b < 3; b++)
			assert_true(rig_has(r, b, 2));
		assert_true(stats_of(r).requests >= 3 * 2); /* 320 KiB */
		rig_check_guards(r);
		rig_free(r);
	}
}

static void an_iocb_starts_after_its_event_and_not_before(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	struct tn_ring_after after = {7, 3};
	struct tn_ring_completion c;
	uint32_t id, free_one;

	assert_int_equal(tn_ring_get_iocb(r->ring, 1, &after, &id), 0);
	*tn_ring_ioctx(r->ring, id) = (struct tn_ioctx){tn_ioctx_disk(0, rig_disk(r, 1, 1)), r->shape.object_bytes, RIG_LAYERS + 1};
	tn_ring_iocb(r->ring, id)->list = 1;
	rig_issue(r, id);
	free_one = rig_iocb(r, 5, 6, 0, 0); /* issued later, waits for nothing */
	rig_issue(r, free_one);
	assert_int_equal(rig_await(r, free_one).status, 0);
	assert_int_equal(tn_ring_signal(r->ring, 7, 2), 0);
	for (int i = 0; i < 20; i++)
		rig_step(r);
	assert_int_equal(tn_ring_result(r->ring, id, &c), -EAGAIN);
	assert_true(rig_clean(r, 1, 1));
	assert_int_equal(tn_ring_signal(r->ring, 7, 3), 0);
	assert_int_equal(rig_await(r, id).status, 0);
	assert_true(rig_has(r, 1, 1));
	rig_free(r);
}

/* An engine for objects that were refused once would miss them for ever, without anybody being told. */
static void room_that_was_refused_is_asked_for_again(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	struct tn_alloc_counter a;

	tn_executor_destroy(r->ex);
	tn_alloc_counter_init(&a);
	assert_int_equal(rig_create(r, &a.alloc), 0);
	assert_int_equal(tn_executor_make_bounces(r->ex, 4096), 0);
	a.fail_after = 0;
	assert_int_equal(tn_executor_make_bounces(r->ex, 4u << 20), -ENOMEM);
	assert_non_null(strstr(tn_error_last()->text, "bounce buffers")); /* whichever thread has failed */
	assert_int_equal(tn_executor_make_bounces(r->ex, 4u << 20), -ENOMEM);
	assert_int_equal(tn_executor_make_bounces(r->ex, 4096), 0);
	a.fail_after = SIZE_MAX;
	assert_int_equal(tn_executor_make_bounces(r->ex, 4u << 20), 0);
	assert_int_equal(tn_executor_make_bounces(r->ex, 2u << 20), 0);
	tn_executor_destroy(r->ex);
	r->ex = NULL;
	assert_int_equal(a.live_bytes, 0);
	rig_free(r);
}

static void an_executor_without_memory_gives_everything_back(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096});
	struct tn_alloc_counter a;
	uint32_t id;
	size_t n;

	tn_executor_destroy(r->ex);
	for (n = 0;; n++) {
		tn_alloc_counter_init(&a);
		a.fail_after = n;
		r->ex = NULL;
		if (rig_create(r, &a.alloc) == 0)
			break;
		assert_int_equal(tn_error_last()->code, -ENOMEM);
		assert_null(r->ex);
		assert_int_equal(a.live_bytes, 0);
	}
	print_message("# after %zu failures\n", n);
	a.fail_after = SIZE_MAX;
	assert_int_equal(tn_executor_make_bounces(r->ex, r->shape.padded_bytes), 0);
	id = rig_iocb(r, 0, 4, 1, TN_IOCB_VERIFY);
	rig_issue(r, id);
	assert_int_equal(rig_await(r, id).status, 0);
	rig_free(r);
}

static void the_urgent_go_first_and_lists_take_turns(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 32 << 10, .depth = 1, .blocks = 16});
	struct tn_ring_list other = r->list;
	uint32_t ids[4], urgent, first;

	assert_int_equal(tn_ring_list_set(r->ring, 2, &other), 0);
	for (uint32_t i = 0; i < 3; i++)
		ids[i] = rig_iocb(r, 0, r->o.blocks, i, 0);
	ids[3] = rig_iocb(r, 0, r->o.blocks, 3, 0);
	tn_ring_iocb(r->ring, ids[3])->list = 2;
	first = rig_iocb(r, 0, 2, 0, 0);
	tn_ring_iocb(r->ring, first)->flags |= TN_IOCB_FIRST;
	urgent = rig_iocb(r, 0, 2, 0, 0);
	tn_ring_iocb(r->ring, urgent)->priority = 1;
	assert_int_equal(tn_ring_issue(r->ring, ids, 4), 0);
	rig_issue(r, first);
	rig_issue(r, urgent);
	/* 256 KiB per object, one request at a time: the urgent one is through before any of the others, */
	assert_int_equal(rig_await(r, urgent).status, 0);
	if (!threads)
		assert_false(rig_finished(r, first));
	/* then the one that goes first, */
	assert_int_equal(rig_await(r, first).status, 0);
	if (!threads)
		assert_false(rig_finished(r, ids[0]));
	/* and the other list's before the first list's last. */
	assert_int_equal(rig_await(r, ids[3]).status, 0);
	if (!threads)
		assert_false(rig_finished(r, ids[2]));
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(rig_await(r, ids[i]).status, 0);
	rig_free(r);
}

/* Two urgent IOCBs are always out, more than the engine takes at once. */
static void what_is_not_urgent_goes_on_beside_urgent_reads_that_never_end(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 32 << 10, .depth = 1, .blocks = 16});
	uint32_t patient = rig_iocb(r, 0, 2, 0, 0), urgent[2], rounds = 0;

	for (uint32_t k = 0; k < 2; k++) {
		urgent[k] = rig_iocb(r, 0, r->o.blocks, 1, 0);
		tn_ring_iocb(r->ring, urgent[k])->priority = 1;
		rig_issue(r, urgent[k]);
	}
	rig_issue(r, patient);
	while (!rig_finished(r, patient) && rounds < 100) {
		assert_int_equal(rig_await(r, urgent[rounds % 2]).status, 0);
		urgent[rounds % 2] = rig_iocb(r, 0, r->o.blocks, 1, 0);
		tn_ring_iocb(r->ring, urgent[rounds % 2])->priority = 1;
		rig_issue(r, urgent[rounds++ % 2]);
	}
	print_message("# after %u urgent IOCBs of %u objects\n", rounds, r->o.blocks);
	assert_in_range(rounds, 0, 20);
	for (uint32_t k = 0; k < 2; k++)
		assert_int_equal(rig_await(r, urgent[k]).status, 0);
	assert_int_equal(rig_await(r, patient).status, 0);
	rig_free(r);
}

static uint32_t issue_small(struct rig *r, uint32_t list)
{
	uint32_t id = rig_iocb(r, 0, 2, 1, 0);

	tn_ring_iocb(r->ring, id)->list = list;
	rig_issue(r, id);
	return id;
}

/* Two other lists always have something to read, but never enough for a whole turn; this one has just had one. */
static void a_list_that_had_its_turn_is_not_passed_over_for_ever_by_lists_of_little_work(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 32 << 10, .depth = 1, .blocks = 16});
	struct tn_ring_list other = r->list, third = r->list;
	uint32_t small[2], patient, rounds = 0;

	assert_int_equal(tn_ring_list_set(r->ring, 2, &other), 0);
	assert_int_equal(tn_ring_list_set(r->ring, 3, &third), 0);
	patient = rig_iocb(r, 0, r->o.blocks, 0, 0);
	rig_issue(r, patient);
	assert_int_equal(rig_await(r, patient).status, 0);
	for (uint32_t k = 0; k < 2; k++)
		small[k] = issue_small(r, 2 + k);
	patient = rig_iocb(r, 0, 2, 0, 0);
	rig_issue(r, patient);
	while (!rig_finished(r, patient) && rounds < 100) {
		assert_int_equal(rig_await(r, small[rounds % 2]).status, 0);
		small[rounds % 2] = issue_small(r, 2 + rounds % 2);
		rounds++;
	}
	print_message("# after %u IOCBs of other lists\n", rounds);
	assert_in_range(rounds, 0, 20);
	for (uint32_t k = 0; k < 2; k++)
		assert_int_equal(rig_await(r, small[k]).status, 0);
	assert_int_equal(rig_await(r, patient).status, 0);
	rig_free(r);
}

static void cancel_ends_what_has_not_begun_and_drains_the_rest(void **state)
{
	const struct tn_fault hang = {.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .delay_ns = 200000000};
	struct rig *r = rig_make((struct rig_opts){.threads = threads ? 1 : 0, .page_bytes = 32 << 10, .depth = 2, .blocks = 8,
						   .faults = &hang, .nfaults = 1});
	uint32_t id = rig_iocb(r, 0, r->o.blocks, 0, TN_IOCB_VERIFY), moved = 0;
	struct tn_ring_completion c;

	rig_issue(r, id);
	while (stats_of(r).requests == 0)
		rig_step(r);
	tn_ring_cancel(r->ring, &id, 1);
	c = rig_await(r, id);
	assert_int_equal(c.status, -ECANCELED);
	for (uint32_t b = 0; b < r->o.blocks; b++) {
		int status = r->status[b * RIG_LAYERS];

		assert_true(status == 0 || status == -ECANCELED);
		moved += status == 0;
		assert_true(status == 0 ? rig_has(r, b, 0) : rig_clean(r, b, 0));
	}
	assert_int_equal(moved + c.failures, r->o.blocks);
	assert_in_range(moved, 1, r->o.blocks - 1);
	rig_free(r);
}

/* What needs no device does not wait for one, however much is in flight there. */
static void copies_go_on_while_a_device_takes_no_more(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 4096, .depth = 1});
	uint32_t writes[2], copy;

	rig_fill(r);
	for (uint32_t i = 0; i < 2; i++) {
		writes[i] = rig_iocb(r, 0, 1, 2 * i, 0);
		rig_turn_into(r, writes[i], TN_IOCB_WRITE, false);
		rig_issue(r, writes[i]);
	}
	copy = rig_iocb(r, 4, 8, ALL, 0);
	rig_turn_into(r, copy, TN_IOCB_COPY, true);
	rig_issue(r, copy);
	for (uint32_t i = 0; i < 8 && threads == 0; i++)
		tn_executor_step(r->ex); /* and nobody looks what the device has done */
	if (threads == 0) {
		assert_false(rig_finished(r, writes[0]) || rig_finished(r, writes[1]));
		assert_true(rig_finished(r, copy));
	}
	assert_int_equal(rig_await(r, copy).status, 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(rig_await(r, writes[i]).status, 0);
	rig_free(r);
}

/* One turn of an owner's loop whose workers have not finished anything. */
static void step_without_jobs(struct rig *r)
{
	struct tn_io_req *done[32];
	unsigned n;

	tn_executor_step(r->ex);
	n = tn_io_poll(r->io, done, 32, 200000);
	for (unsigned i = 0; i < n; i++)
		done[i]->done(done[i]);
	tn_executor_step(r->ex);
}

/* Objects of a layer that are read and checked one by one. */
static uint32_t issue_singles(struct rig *r, uint32_t layer)
{
	uint32_t id = rig_iocb(r, 0, 12, layer, TN_IOCB_VERIFY);

	tn_ring_iocb(r->ring, id)->request_bytes = 4096;
	rig_issue(r, id);
	return id;
}

/* Nor for reads whose checks keep all that is free for the next ones: a job ends only after each read that may be under way has ended. */
static void copies_go_on_beside_reads_that_never_end(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.exec = true, .page_bytes = 4096, .depth = 1});
	uint32_t copy, reads[2], jobs = 0;

	rig_fill(r);
	for (uint32_t k = 0; k < 2; k++)
		reads[k] = issue_singles(r, 2 * k);
	while (r->exec.first == r->exec.last) /* until reads have all that is free */
		step_without_jobs(r);
	copy = rig_iocb(r, 4, 6, ALL, 0);
	rig_turn_into(r, copy, TN_IOCB_COPY, true);
	rig_issue(r, copy);
	while (!rig_finished(r, copy) && jobs < 100) {
		struct tn_job *job = tn_exec_inline_next(&r->exec.exec);

		if (job) {
			job->done(job);
			jobs++;
		}
		for (uint32_t i = 0; i < 20; i++)
			step_without_jobs(r);
		for (uint32_t k = 0; k < 2; k++)
			if (rig_finished(r, reads[k])) {
				assert_int_equal(rig_await(r, reads[k]).status, 0);
				reads[k] = issue_singles(r, 2 * k);
			}
	}
	print_message("# after %u jobs\n", jobs);
	assert_in_range(jobs, 0, 5);
	for (uint32_t k = 0; k < 2; k++)
		assert_int_equal(rig_await(r, reads[k]).status, 0);
	assert_int_equal(rig_await(r, copy).status, 0);
	rig_free(r);
}

/* An owner that does not step for so long learns later how much it missed. */
static void requests_that_observe_was_not_told_of_are_counted(void **state)
{
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 400});
	struct tn_executor_stats s;

	for (uint32_t i = 0; i < 50; i++) {
		uint32_t id = rig_iocb(r, 0, RIG_BLOCKS, 0, 0); /* no two lie side by side */
		uint64_t deadline = tn_test_deadline();

		rig_issue(r, id);
		while (!rig_finished(r, id)) {
			assert_true(tn_test_now() < deadline);
			if (!threads)
				rig_step(r);
			sched_yield();
		}
		assert_int_equal(tn_ring_put(r->ring, &id, 1), 0);
	}
	rig_step(r);
	s = stats_of(r);
	assert_int_equal(s.requests, 50 * RIG_BLOCKS);
	assert_int_equal(s.unobserved, threads ? 50 * RIG_BLOCKS - 1024 : 0);
	assert_int_equal(r->observed + s.unobserved, s.requests);
	rig_free(r);
}

/* Random IOCBs, cancels and events over an engine that is late, reorders, refuses and fails. */
static void a_storm_of_iocbs_ends_with_every_status_true(void **state)
{
	static const struct tn_fault faults[] = {
		{.kind = TN_FAULT_EIO, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 5},
		{.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 20, .delay_ns = 200000},
		{.kind = TN_FAULT_SHORT, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 3},
		{.kind = TN_FAULT_CORRUPT, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 3}};
	struct rig *r = rig_make((struct rig_opts){.threads = threads, .page_bytes = 400, .depth = 4, .unruly = true,
						   .faults = faults, .nfaults = 4});
	uint32_t rounds = tn_test_soak() ? 20000 : 150;

	for (uint32_t round = 0; round < rounds; round++) {
		uint32_t n = 1 + tn_rng_below(&r->rng, RIG_LAYERS), ids[RIG_LAYERS], from[RIG_LAYERS], to[RIG_LAYERS];

		rig_wipe(r);
		for (uint32_t i = 0; i < n; i++) {
			from[i] = tn_rng_below(&r->rng, RIG_BLOCKS);
			to[i] = from[i] + 1 + tn_rng_below(&r->rng, RIG_BLOCKS - from[i]);
			ids[i] = rig_iocb(r, from[i], to[i], i, TN_IOCB_VERIFY);
			tn_ring_iocb(r->ring, ids[i])->priority = (int)tn_rng_below(&r->rng, 2);
		}
		assert_int_equal(tn_ring_issue(r->ring, ids, n), 0);
		if (tn_rng_below(&r->rng, 2))
			rig_step(r);
		if (tn_rng_below(&r->rng, 3) == 0)
			tn_ring_cancel(r->ring, ids, 1 + tn_rng_below(&r->rng, n));
		for (uint32_t i = 0; i < n; i++) {
			struct tn_ring_completion c = rig_await(r, ids[i]);
			uint32_t bad = 0;

			for (uint32_t b = from[i]; b < to[i]; b++) {
				int status = r->status[b * RIG_LAYERS + i];

				if (c.status == -ECANCELED && c.failures == to[i] - from[i] && status > 0)
					continue; /* cancelled before it was taken */
				assert_true(status <= 0);
				assert_true(status == 0 ? rig_has(r, b, i) : rig_clean(r, b, i));
				bad += status != 0;
			}
			if (c.failures != to[i] - from[i])
				assert_int_equal(bad, c.failures);
		}
		rig_check_guards(r);
	}
	rig_free(r);
}

static int run_inline(void **state)
{
	threads = 0;
	return 0;
}

static int run_threads(void **state)
{
	threads = 2;
	return 0;
}

static int run_nvme(void **state)
{
	threads = 0;
	rig_drives = RIG_NVME;
	return 0;
}

static int run_nvme_thread(void **state)
{
	threads = 1;
	rig_drives = RIG_NVME_THREAD;
	return 0;
}

#define T(f) {#f, f, NULL, NULL, NULL}
#define FILES(f) {#f, f, NULL, NULL, (void *)1} /* not on NVMe: breaks requests of an engine, or looks at them */

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(objects_land_in_their_pages_and_nothing_else_is_touched),
		T(neighbours_of_different_loads_are_read_together),
		T(layers_of_one_load_are_not_read_together),
		FILES(on_an_idle_device_a_whole_load_does_not_go_at_once),
		FILES(the_next_request_is_sent_before_what_was_read_is_checked),
		T(a_part_of_a_block_s_pages_leaves_the_others_alone),
		T(a_wrong_checksum_fails_its_object_alone),
		FILES(an_error_of_a_merged_read_fails_only_who_fails_alone),
		T(an_object_larger_than_a_request_takes_several),
		T(an_iocb_starts_after_its_event_and_not_before),
		T(room_that_was_refused_is_asked_for_again),
		T(an_executor_without_memory_gives_everything_back),
		T(the_urgent_go_first_and_lists_take_turns),
		T(a_list_that_had_its_turn_is_not_passed_over_for_ever_by_lists_of_little_work),
		T(what_is_not_urgent_goes_on_beside_urgent_reads_that_never_end),
		FILES(cancel_ends_what_has_not_begun_and_drains_the_rest),
		T(copies_go_on_while_a_device_takes_no_more),
		FILES(copies_go_on_beside_reads_that_never_end),
		T(requests_that_observe_was_not_told_of_are_counted),
		T(a_storm_of_iocbs_ends_with_every_status_true),
	};
	static const struct {
		const char *name;
		CMFixtureFunction setup;
		bool nvme, threads;
	} how[] = {{"inline", run_inline}, {"threads", run_threads, .threads = true}, {"nvme", run_nvme, true},
		   {"nvme with a thread", run_nvme_thread, true, true}};
	enum { N = sizeof(tests) / sizeof(tests[0]) };
	static char names[4 * N][128];
	struct CMUnitTest all[4 * N];
	size_t n = 0;

	for (uint32_t i = 0; i < 4 * N; i++) {
		const struct CMUnitTest *test = &tests[i % N];

		if ((how[i / N].nvme && test->initial_state) || (TN_TEST_THREAD_SANITIZER && !how[i / N].threads))
			continue;
		snprintf(names[n], sizeof(names[n]), "%s: %s", how[i / N].name, test->name);
		all[n] = *test;
		all[n].name = names[n];
		all[n].setup_func = how[i / N].setup;
		n++;
	}
	return _cmocka_run_group_tests("executor", all, n, NULL, NULL);
}
