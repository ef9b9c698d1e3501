/* SPDX-License-Identifier: Apache-2.0 */
/* The file gets longer while the store goes on: nobody waits for a file system that takes its time. */
#include <errno.h>
#include <string.h>

#include "store/store_rig.h"

#define SECOND_NS 1000000000ull

/* Takes every slot that is there; how many. */
static uint32_t take_all(struct rig *r)
{
	uint32_t n = 0;
	tn_slot slot;

	while (tn_store_reserve(r->store, r->cls, 1, &slot) == 1)
		n++;
	return n;
}

static void slow_allocations(struct rig *r, uint64_t ns)
{
	static struct tn_simdisk_fault slow;

	slow = (struct tn_simdisk_fault){.kind = TN_SIMDISK_SLOW, .op = TN_IO_ALLOCATE, .count = UINT64_MAX, .delay_ns = ns};
	assert_int_equal(tn_simdisk_set_faults(r->disk, &slow, 1), 0);
}

static uint64_t now(struct rig *r)
{
	return tn_now_ns(r->clock);
}

static void pass(struct rig *r, uint64_t ns)
{
	for (uint64_t end = now(r) + ns; now(r) < end;)
		rig_step(r, 1);
}

static void a_reserve_takes_what_is_there_and_says_what_is_coming(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t start;
	tn_slot slot;
	uint32_t n;

	assert_int_equal(rig_open(r), 0);
	slow_allocations(r, SECOND_NS);
	start = now(r);
	n = take_all(r);
	assert_true(n > 0);
	assert_int_equal(now(r), start); /* no time passes in a reserve */
	assert_true(tn_store_moving(r->store, r->cls) >= n);
	assert_int_equal(r->evict_calls, 0);
	assert_true(rig_grown(r));
	assert_true(now(r) >= start + SECOND_NS);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 1);
	rig_free(r);
}

static void one_that_takes_too_long_is_not_waited_for(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	static const uint32_t bytes[RIG_OBJECTS] = {20000, 20000, 20000};
	uint32_t cls;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, RIG_OBJECTS, bytes, &cls), 0);
	assert_true(rig_save(r, 1) >= 0);
	slow_allocations(r, 60 * SECOND_NS);
	assert_int_equal(rig_flush(r), 0); /* the store's step begins to make the file longer */
	assert_true(r->store->dev[0].alloc.req.busy);
	assert_true(tn_store_moving(r->store, cls) > 0);
	pass(r, 3 * SECOND_NS);
	assert_true(r->store->dev[0].alloc.req.busy);
	assert_int_equal(tn_store_moving(r->store, cls), 0);
	/* Now the other size gets the only segment, as if the file could not grow. */
	assert_true(tn_store_move(r->store, cls, false, tn_store_demand(r->store)));
	assert_int_equal(r->vacated, 1);
	assert_int_equal(rig_close(r), 0); /* without waiting for the minute, or after it */
	rig_free(r);
}

/* With nothing in its place that could go, "not waited for" would call an empty store full. */
static void it_is_waited_for_if_nothing_can_go(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	slow_allocations(r, 60 * SECOND_NS);
	assert_true(take_all(r) > 0);
	pass(r, 3 * SECOND_NS);
	assert_int_equal(tn_store_moving(r->store, r->cls), 0);
	assert_int_equal(tn_store_move(r->store, r->cls, false, tn_store_demand(r->store)), TN_STORE_MOVE_GROWS);
	assert_int_equal(tn_store_move(r->store, r->cls, true, tn_store_demand(r->store)), TN_STORE_MOVE_NONE);
	assert_true(rig_grown(r));
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 1);
	rig_free(r);
}

static void a_full_disk_is_asked_again_ten_seconds_later(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t before;
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	tn_simdisk_set_capacity(r->disk, (uint64_t)tn_simdisk_size(r->disk, RIG_PATH));
	before = r->store->dev[0].allocated;
	assert_true(take_all(r) > 0);
	rig_grown(r);
	assert_int_equal(r->store->dev[0].allocated, before);
	assert_non_null(strstr(r->logs, "no free disk space for segment"));
	assert_int_equal(tn_store_moving(r->store, r->cls), 0);
	tn_simdisk_set_capacity(r->disk, UINT64_MAX);
	pass(r, 9 * SECOND_NS);
	assert_int_equal(r->store->dev[0].allocated, before);
	pass(r, 2 * SECOND_NS);
	rig_grown(r);
	assert_true(r->store->dev[0].allocated > before);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 1);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reserve_takes_what_is_there_and_says_what_is_coming),
		cmocka_unit_test(one_that_takes_too_long_is_not_waited_for),
		cmocka_unit_test(it_is_waited_for_if_nothing_can_go),
		cmocka_unit_test(a_full_disk_is_asked_again_ten_seconds_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
