/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that move between classes of blocks, and those that go because the capacity was made smaller. */
#include <errno.h>
#include <string.h>

#include "store/store_rig.h"

static const uint32_t other[1] = {60000};

/* A store full of one class, ten blocks per segment, and another class that has nothing in it; how many blocks. */
static uint64_t fill(struct rig *r, uint32_t *cls)
{
	uint64_t n = 0;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(tn_store_class(r->store, 1, other, cls), 0);
	assert_int_equal(rig_save_in(r, 9999, *cls, other, 1), -1);
	return n;
}

static void a_new_class_gets_a_segment_from_the_coldest_of_another(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t k = 10000, n;
	uint32_t cls;

	n = fill(r, &cls);
	assert_int_equal(r->vacate_calls, 0); /* a reserve by itself moves nothing */
	/* The oldest ones are used: the second segment is the coldest now. */
	for (unsigned round = 0; round < 50; round++)
		for (uint64_t i = 0; i < 10; i++)
			tn_store_touch(r->store, rig_find(r, i)->slot, 1000 + round);
	assert_true(tn_store_move(r->store, cls, true, tn_store_demand(r->store)));
	assert_int_equal(r->vacated, 10);
	assert_int_equal(rig_flush(r), 0);
	for (; k < 10002; k++)
		assert_true(rig_save_in(r, k, cls, other, 1) >= 0);
	assert_int_equal(r->vacated, 10);
	for (uint64_t i = 0; i < 30; i++)
		assert_int_equal(rig_find(r, i) != NULL, i < 10 || i >= 20);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), n - 10 + (k - 10000));
	for (uint64_t i = 10000; i < k; i++)
		assert_int_equal(rig_read(r, i), 0);
	rig_free(r);
}

/* One held block, or a slot that is being written, in a segment: the next coldest goes, and of this one nothing. */
static void blocks_that_suit_no_segment_are_refused_or_warned_of(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t cls, bytes;

	assert_int_equal(rig_open(r), 0);
	bytes = (uint32_t)r->store->segment_bytes / 5;
	assert_int_equal(tn_store_class(r->store, 1, &bytes, &cls), 0); /* four, and some headers */
	assert_null(strstr(r->logs, "unused"));
	bytes = (uint32_t)r->store->segment_bytes * 3 / 5;
	assert_int_equal(tn_store_class(r->store, 1, &bytes, &cls), 0);
	assert_non_null(strstr(r->logs, "of each segment of"));
	bytes = (uint32_t)r->store->segment_bytes;
	assert_int_equal(tn_store_class(r->store, 1, &bytes, &cls), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "in an empty directory, make a store of"));
	rig_free(r);
}

static void a_segment_of_which_a_block_is_held_is_passed_over_and_loses_nothing(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_place place;
	uint64_t n, size, segment;
	uint32_t cls, tries;
	tn_slot slot;

	n = fill(r, &cls);
	size = r->store->segment_bytes;
	rig_find(r, 3)->held = true;
	rig_remove(r, 15);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 1); /* 15's */
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_int_equal(r->vacated, 10);
	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(rig_find(r, i) != NULL, i != 15 && (i < 20 || i >= 30));
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
	tn_store_locate(r->store, rig_find(r, 9000)->slot, &place);
	segment = place.data_offset / size;
	tn_store_locate(r->store, rig_find(r, 3)->slot, &place);
	assert_true(segment != place.data_offset / size);
	/* Nothing can go: each is tried once for a demand, and nothing is lost. */
	for (uint64_t i = 0; i < n; i += 5)
		if (rig_find(r, i))
			rig_find(r, i)->held = true;
	n = rig_live(r);
	r->vacate_calls = 0;
	tries = (uint32_t)tn_store_demand(r->store);
	assert_false(tn_store_move(r->store, cls, false, tries));
	assert_true(r->vacate_calls > 0 && r->vacate_calls <= r->store->segment_count);
	r->vacate_calls = 0;
	assert_false(tn_store_move(r->store, cls, false, tries));
	assert_int_equal(r->vacate_calls, 0);
	assert_int_equal(rig_live(r), n);
	/* They are let go: the next demand finds them. */
	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++)
		r->block[i].held = false;
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	tn_store_unreserve(r->store, slot);
	rig_free(r);
}

/* Of what holds the segments some ends by itself: said so, each looked at once for a demand, and all again for the next. */
static void a_segment_that_only_transfers_hold_is_told_apart_and_tried_again_for_the_next_demand(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t demand, n;
	uint32_t cls;

	n = fill(r, &cls);
	for (uint64_t i = 0; i < n; i += 5)
		rig_find(r, i)->held = true;
	assert_int_equal(tn_store_move(r->store, cls, false, tn_store_demand(r->store)), TN_STORE_MOVE_NONE);
	r->passes = rig_find(r, 15)->slot;
	r->vacate_calls = 0;
	demand = tn_store_demand(r->store);
	assert_int_equal(tn_store_move(r->store, cls, true, demand), TN_STORE_MOVE_NONE);
	assert_int_equal(tn_store_move(r->store, cls, false, demand), TN_STORE_MOVE_PASSES);
	assert_int_equal(tn_store_move(r->store, cls, false, demand), TN_STORE_MOVE_PASSES);
	assert_true(r->vacate_calls <= r->store->segment_count);
	/* Of its own segments, too: there it is the owner's to evict. */
	assert_int_equal(tn_store_move(r->store, r->cls, false, tn_store_demand(r->store)), TN_STORE_MOVE_PASSES);
	/* What was a lease's has gone meanwhile: that one goes. */
	rig_find(r, 20)->held = rig_find(r, 25)->held = false;
	assert_int_equal(tn_store_move(r->store, cls, false, tn_store_demand(r->store)), TN_STORE_MOVE_COMES);
	assert_int_equal(r->vacated, 10);
	assert_null(rig_find(r, 20));
	rig_free(r);
}

static void a_move_that_must_be_takes_a_warmer_class_and_otherwise_the_coldest_goes(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t k = 10000, n;
	uint32_t cls;

	n = fill(r, &cls);
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_true(tn_store_move(r->store, cls, true, tn_store_demand(r->store))); /* the class has none */
	assert_true(tn_store_moving(r->store, cls) > 0);
	assert_int_equal(rig_flush(r), 0);
	while (rig_save_in(r, k, cls, other, 1) >= 0)
		k++;
	/* These are warmer than all others. */
	assert_true(tn_store_move(r->store, cls, true, tn_store_demand(r->store)));
	assert_int_equal(rig_flush(r), 0);
	while (rig_save_in(r, k, cls, other, 1) >= 0)
		k++;
	/* Now all others are warmer still. */
	for (uint64_t i = 0; i < n; i++)
		for (unsigned round = 0; rig_find(r, i) && round < 50; round++)
			tn_store_touch(r->store, rig_find(r, i)->slot, 1000000);
	assert_false(tn_store_move(r->store, cls, true, tn_store_demand(r->store)));
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_true(tn_store_moving(r->store, cls) > 0);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, k, cls, other, 1) >= 0);
	rig_free(r);
}

/* A move ends by itself, with the commit; a segment in which nothing is left goes back to whoever asks next. */
static void a_segment_that_moved_and_is_not_used_goes_to_whoever_asks(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t cls;
	uint64_t n;

	n = fill(r, &cls);
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_true(tn_store_move(r->store, r->cls, false, tn_store_demand(r->store))); /* to wait for that one's end */
	assert_int_equal(tn_store_moving(r->store, r->cls), 0);
	assert_int_equal(rig_flush(r), 0);
	rig_step(r, 2);
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_int_equal(rig_flush(r), 0); /* its assignment is durable */
	for (uint64_t i = 0; i < n - rig_live(r); i++)
		assert_true(rig_save(r, 500 + i) >= 0);
	rig_free(r);
}

static void a_move_is_given_up_when_the_log_cannot_be_written(void **state)
{
	struct tn_simdisk_fault fault = {.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX};
	struct rig *r = rig_new(tn_test_seed());
	uint64_t begun, free_now, freeing;
	uint32_t cls;

	fill(r, &cls);
	assert_int_equal(rig_flush(r), 0);
	tn_simdisk_set_faults(r->disk, &fault, 1);
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	rig_remove(r, 15);
	begun = tn_now_ns(r->clock);
	for (unsigned i = 0; i < 1000 && tn_store_moving(r->store, cls) > 0; i++) {
		rig_step(r, 1);
		tn_simdisk_advance(r->disk, 1000000);
	}
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_true(tn_now_ns(r->clock) - begun < 2000000000);
	/* Nor does anybody wait for what was removed, or for another move. */
	tn_store_free_slots(r->store, r->cls, &free_now, &freeing);
	assert_int_equal(freeing, 0);
	assert_false(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	tn_simdisk_set_faults(r->disk, NULL, 0);
	for (unsigned i = 0; i < 1000 && rig_flush(r) != 0; i++)
		tn_simdisk_advance(r->disk, 100000000);
	rig_step(r, 2);
	assert_true(rig_save(r, 500) >= 0);
	rig_free(r);
}

static bool zeros_may_go;

static bool may_write(void *arg, uint32_t device, uint64_t bytes)
{
	return zeros_may_go;
}

static void was_written(void *arg, uint32_t device, uint64_t bytes)
{
}

/*
 * The last segment without data is being prepared, a write of zeros under way: a new class waits for the end of that
 * write, and takes nothing that has data, on this device or another.
 */
static void a_new_class_waits_for_the_segment_that_is_being_prepared(void **state)
{
	for (uint32_t devices = 1; devices <= 2; devices++) {
		struct rig *r = rig_new(tn_test_seed());
		struct tn_store_device *d;
		uint64_t n = 0, demand;
		uint32_t cls;

		zeros_may_go = false; /* until all but the last segment are in use, however fast the disk is */
		r->opts.cb.may_write = may_write;
		r->opts.cb.written = was_written;
		r->opts.prepare = true;
		r->opts.ndirs = devices;
		r->dirs[1] = "b";
		r->opts.capacity_bytes *= devices;
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
		d = &r->store->dev[0];
		/* All but one segment of the first device, all of the second one. */
		while (d->assigned < d->limit - 1 || (devices == 2 && r->store->dev[1].assigned < d->limit)) {
			r->store->next_device = d->assigned == d->limit - 1;
			tn_store_step(r->store, tn_now_ns(r->clock));
			rig_grown(r); /* else what the other device has no segment for yet goes to the first one's last segment */
			assert_true(rig_save(r, n++) >= 0);
		}
		tn_store_step(r->store, tn_now_ns(r->clock));
		rig_grown(r);
		zeros_may_go = true;
		tn_store_step(r->store, tn_now_ns(r->clock));
		assert_true(d->prep.req.busy);
		assert_int_equal(d->allocated, d->limit);
		assert_int_equal(d->assigned, d->limit - 1);
		demand = tn_store_demand(r->store);
		assert_int_equal(rig_save_in(r, 9000, cls, other, 1), -1);
		assert_true(tn_store_moving(r->store, cls) > 0);
		assert_true(tn_store_move(r->store, cls, false, demand));
		assert_int_equal(r->vacate_calls, 0);
		while (d->prep.req.busy)
			rig_step(r, 1);
		assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
		assert_int_equal(r->vacate_calls + r->evict_calls, 0);
		assert_int_equal(rig_live(r), n + 1);
		rig_free(r);
	}
}

static bool touch(uint64_t offset, uint64_t len, const struct tn_store_place *p)
{
	return (offset < p->data_offset + p->slot_bytes && p->data_offset < offset + len) ||
	       (offset < p->header_offset + p->header_bytes && p->header_offset < offset + len);
}

static void a_segment_with_quarantined_slots_moves_and_keeps_an_eye_on_their_places(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_place bad, place;
	struct tn_device_stats st;
	uint32_t cls, suspects = 0;
	uint64_t n = 0;
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	/* One bad slot in every segment. */
	for (uint64_t i = 5; i < n; i += 10) {
		slot = rig_find(r, i)->slot;
		rig_find(r, i)->live = false;
		tn_store_fail_slot(r->store, slot, true);
		if (i == 5)
			tn_store_locate(r->store, slot, &bad);
	}
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.quarantined_slots, r->store->segment_count);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
	rig_remove(r, 9000);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.quarantined_slots, r->store->segment_count - 1);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	/* The slots there begin with a failure: the next one is their last. Others have two. */
	while (rig_reserve(r, cls, 1, &slot) == 1) {
		struct tn_slot_meta m = r->store->dev[0].meta[tn_store_local(r->store, slot)];
		bool touches;

		tn_store_locate(r->store, slot, &place);
		touches = touch(place.data_offset, place.slot_bytes, &bad) ||
			  touch(place.header_offset, place.header_bytes, &bad);
		assert_int_equal(m.failures, touches);
		suspects += touches;
		tn_store_fail_slot(r->store, slot, false);
	}
	assert_true(suspects > 0);
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.quarantined_slots, r->store->segment_count - 1 + suspects);
	rig_free(r);
}

static const uint32_t small[1] = {4096}, larger[1] = {8192};

/* The smaller slots were three pages of the slot table, the larger ones are two: nothing of the third is offered. */
static void a_quarantined_slot_beyond_the_last_of_the_new_shape_is_never_given_out(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t cls, more, n, last = 2 * TN_DISK_RECORDS;
	tn_slot slot[128], again;

	r->opts.capacity_bytes = r->opts.segment_bytes = 1 << 20;
	r->opts.max_slots = 3 * TN_DISK_RECORDS;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, 1, small, &cls), 0);
	for (n = 0; rig_save_in(r, n, cls, small, 1) >= 0; n++)
		if (tn_store_index_of(r->store, tn_store_local(r->store, rig_find(r, n)->slot)) == last)
			break;
	assert_int_equal(n, last);
	tn_store_fail_slot(r->store, rig_find(r, n)->slot, true);
	rig_find(r, n)->live = false;
	assert_int_equal(tn_store_class(r->store, 1, larger, &more), 0);
	assert_true(tn_store_move(r->store, more, false, tn_store_demand(r->store)));
	assert_int_equal(rig_flush(r), 0);
	n = rig_reserve(r, more, 128, slot);
	assert_in_range(n, TN_DISK_RECORDS + 1, last);
	for (uint32_t i = TN_DISK_RECORDS; i < n; i++)
		tn_store_unreserve(r->store, slot[i]);
	assert_int_equal(rig_reserve(r, more, n - TN_DISK_RECORDS, slot + TN_DISK_RECORDS), n - TN_DISK_RECORDS);
	tn_store_unreserve(r->store, slot[0]); /* of the first page, while the search goes on from the second */
	assert_int_equal(rig_reserve(r, more, 1, &again), 1);
	assert_int_equal(again, slot[0]);
	for (uint32_t i = 0; i < n; i++)
		tn_store_unreserve(r->store, slot[i]);
	rig_free(r);
}

static void a_smaller_capacity_empties_the_segments_beyond_it(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(rig_close(r), 0);
	r->opts.capacity_bytes /= 2;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_live(r), n);
	for (unsigned i = 0; i < 400 && rig_live(r) > n / 2; i++)
		rig_step(r, 4);
	assert_int_equal(rig_live(r), n / 2);
	rig_free(r);
}

/* What somebody holds beyond a smaller capacity neither takes new blocks nor keeps other segments from moving. */
static void what_is_held_beyond_the_capacity_is_in_nobodys_way(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_device *d;
	uint64_t n = 0;
	uint32_t cls;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	for (uint64_t i = 1; i < n; i += 10)
		rig_remove(r, i); /* a free slot in each segment */
	assert_int_equal(rig_close(r), 0);
	r->opts.capacity_bytes /= 2;
	r->evict_removes = false;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	d = &r->store->dev[0];
	for (unsigned i = 0; i < 40; i++) {
		rig_step(r, 1);
		tn_simdisk_advance(r->disk, 100000000);
	}
	assert_true(r->evict_calls > 0);
	while (rig_save(r, n) >= 0)
		assert_true(tn_store_segment_of(r->store, rig_find(r, n++)->slot) < d->limit);
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
	assert_true(tn_store_segment_of(r->store, rig_find(r, 9000)->slot) < d->limit);
	rig_free(r);
}

static void a_block_on_a_device_that_takes_no_writes_leaves_no_slot(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t found[2] = {0, 0};
	uint64_t n = 0;

	r->dirs[1] = "b";
	r->opts.ndirs = 2;
	assert_int_equal(rig_open(r), 0);
	while (n < 8 && rig_save(r, n) >= 0)
		n++;
	for (uint32_t round = 0; round < 2; round++) {
		for (uint64_t i = 0; i < n; i++) {
			struct tn_store_place place;

			tn_store_locate(r->store, rig_find(r, i)->slot, &place);
			found[place.device]++;
			assert_int_equal(tn_store_frees_for(r->store, rig_find(r, i)->slot, r->cls), round == 0 || place.device == 1);
		}
		tn_store_observe(r->store, 0, TN_IO_WRITE, 0, 1000, -ENOSPC);
	}
	assert_true(found[0] > 0 && found[1] > 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_class_gets_a_segment_from_the_coldest_of_another),
		cmocka_unit_test(blocks_that_suit_no_segment_are_refused_or_warned_of),
		cmocka_unit_test(a_segment_of_which_a_block_is_held_is_passed_over_and_loses_nothing),
		cmocka_unit_test(a_segment_that_only_transfers_hold_is_told_apart_and_tried_again_for_the_next_demand),
		cmocka_unit_test(a_move_that_must_be_takes_a_warmer_class_and_otherwise_the_coldest_goes),
		cmocka_unit_test(a_segment_that_moved_and_is_not_used_goes_to_whoever_asks),
		cmocka_unit_test(a_move_is_given_up_when_the_log_cannot_be_written),
		cmocka_unit_test(a_new_class_waits_for_the_segment_that_is_being_prepared),
		cmocka_unit_test(a_segment_with_quarantined_slots_moves_and_keeps_an_eye_on_their_places),
		cmocka_unit_test(a_quarantined_slot_beyond_the_last_of_the_new_shape_is_never_given_out),
		cmocka_unit_test(a_smaller_capacity_empties_the_segments_beyond_it),
		cmocka_unit_test(what_is_held_beyond_the_capacity_is_in_nobodys_way),
		cmocka_unit_test(a_block_on_a_device_that_takes_no_writes_leaves_no_slot),
	};

	return cmocka_run_group_tests_name("store-classes", tests, NULL, NULL);
}
