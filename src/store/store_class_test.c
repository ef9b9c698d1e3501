/* SPDX-License-Identifier: Apache-2.0 */
/* Segments that move between classes of blocks, and those that go because the capacity was made smaller. */
#include <string.h>

#include "store/store_rig.h"

static void a_new_class_gets_a_segment_from_the_coldest_of_another(void **state)
{
	static const uint32_t other[1] = {60000};
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0, k = 10000;
	uint32_t cls;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	/* The oldest ones are used: the second segment is the coldest now. */
	for (unsigned round = 0; round < 50; round++)
		for (uint64_t i = 0; i < 10; i++)
			tn_store_touch(r->store, rig_find(r, i)->slot, 1000 + round);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	tn_simdisk_advance(r->disk, 200000000);
	assert_int_equal(rig_save_in(r, k, cls, other, 1), -1);
	assert_int_equal(r->evict_calls, 10);
	assert_int_equal(rig_flush(r), 0);
	for (; k < 10002; k++)
		assert_true(rig_save_in(r, k, cls, other, 1) >= 0);
	assert_int_equal(r->evict_calls, 10);
	for (uint64_t i = 0; i < 30; i++)
		assert_int_equal(rig_find(r, i) != NULL, i < 10 || i >= 20);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), n - 10 + (k - 10000));
	for (uint64_t i = 10000; i < k; i++)
		assert_int_equal(rig_read(r, i), 0);
	rig_free(r);
}

static void pinned_blocks_delay_the_move_of_their_segment(void **state)
{
	static const uint32_t other[1] = {60000};
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0;
	uint32_t cls;

	r->evict_removes = false;
	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	tn_simdisk_advance(r->disk, 200000000);
	assert_int_equal(rig_save_in(r, 9000, cls, other, 1), -1);
	assert_int_equal(r->evict_calls, 10);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(rig_save_in(r, 9000, cls, other, 1), -1);
	for (uint64_t i = 0; i < 10; i++) /* now they are let go */
		rig_remove(r, i);
	assert_int_equal(rig_save(r, 500), -1); /* and nothing else goes into the segment */
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
	rig_free(r);
}

static void a_move_that_must_be_takes_a_warmer_class_and_otherwise_the_coldest_goes(void **state)
{
	static const uint32_t other[1] = {60000};
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0, k = 10000, last;
	uint32_t cls;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_int_equal(rig_save_in(r, k, cls, other, 1), -1); /* moves by itself: the class has none */
	assert_true(tn_store_moving(r->store, cls) > 0);
	assert_int_equal(rig_flush(r), 0);
	while (rig_save_in(r, k, cls, other, 1) >= 0)
		k++;
	last = k;
	/* One more went by itself, because these are warmer. Now all others are warmer still. */
	assert_int_equal(rig_flush(r), 0);
	while (rig_save_in(r, k, cls, other, 1) >= 0)
		k++;
	assert_true(k > last);
	assert_int_equal(rig_flush(r), 0);
	tn_simdisk_advance(r->disk, 1200000000);
	rig_step(r, 2); /* what had begun in vain is given up */
	for (uint64_t i = 0; i < n; i++)
		for (unsigned round = 0; rig_find(r, i) && round < 50; round++)
			tn_store_touch(r->store, rig_find(r, i)->slot, 1000000);
	while (rig_save_in(r, k, cls, other, 1) >= 0)
		k++;
	last = k;
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	assert_true(tn_store_move(r->store, cls));
	assert_true(tn_store_moving(r->store, cls) > 0);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, k, cls, other, 1) >= 0);
	rig_free(r);
}

static void a_segment_that_nobody_takes_when_it_is_empty_stays_what_it_was(void **state)
{
	static const uint32_t other[1] = {60000};
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0, left, now;
	uint32_t cls;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	assert_int_equal(rig_save_in(r, 9000, cls, other, 1), -1);
	assert_int_equal(rig_flush(r), 0);
	left = rig_live(r);
	assert_true(left < n);
	assert_int_equal(rig_save(r, 500), -1); /* it is kept for the other class for a while */
	tn_simdisk_advance(r->disk, 1200000000);
	/* Then there are slots for whoever found none, and nothing else that would tell him. */
	now = tn_now_ns(r->clock);
	assert_true(tn_store_step(r->store, now) <= now);
	rig_step(r, 2);
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	for (uint64_t i = 0; i < n - left; i++)
		assert_true(rig_save(r, 500 + i) >= 0);
	rig_free(r);
}

static bool touch(uint64_t offset, uint64_t len, const struct tn_store_place *p)
{
	return (offset < p->data_offset + p->slot_bytes && p->data_offset < offset + len) ||
	       (offset < p->header_offset + p->header_bytes && p->header_offset < offset + len);
}

static void a_segment_with_quarantined_slots_moves_and_keeps_an_eye_on_their_places(void **state)
{
	static const uint32_t other[1] = {60000};
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
	tn_store_stats(r->store, &st, 1);
	assert_int_equal(st.quarantined_slots, r->store->segment_count);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	assert_int_equal(rig_save_in(r, 9000, cls, other, 1), -1);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save_in(r, 9000, cls, other, 1) >= 0);
	rig_remove(r, 9000);
	assert_int_equal(rig_flush(r), 0);
	tn_store_stats(r->store, &st, 1);
	assert_int_equal(st.quarantined_slots, r->store->segment_count - 1);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(tn_store_class(r->store, 1, other, &cls), 0);
	/* The slots there begin with a failure: the next one is their last. Others have two. */
	while (tn_store_reserve(r->store, cls, 1, &slot) == 1) {
		uint64_t m = r->store->dev[0].meta[tn_store_local(r->store, slot)];
		bool touches;

		tn_store_locate(r->store, slot, &place);
		touches = touch(place.data_offset, place.slot_bytes, &bad) ||
			  touch(place.header_offset, place.header_bytes, &bad);
		assert_int_equal(TN_META_FAILURES(m), touches);
		suspects += touches;
		tn_store_fail_slot(r->store, slot, false);
	}
	assert_true(suspects > 0);
	tn_store_stats(r->store, &st, 1);
	assert_int_equal(st.quarantined_slots, r->store->segment_count - 1 + suspects);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_new_class_gets_a_segment_from_the_coldest_of_another),
		cmocka_unit_test(pinned_blocks_delay_the_move_of_their_segment),
		cmocka_unit_test(a_move_that_must_be_takes_a_warmer_class_and_otherwise_the_coldest_goes),
		cmocka_unit_test(a_segment_that_nobody_takes_when_it_is_empty_stays_what_it_was),
		cmocka_unit_test(a_segment_with_quarantined_slots_moves_and_keeps_an_eye_on_their_places),
		cmocka_unit_test(a_smaller_capacity_empties_the_segments_beyond_it),
	};

	return cmocka_run_group_tests_name("store-classes", tests, NULL, NULL);
}
