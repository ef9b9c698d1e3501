/* SPDX-License-Identifier: Apache-2.0 */
/* The rates that the scheduler measures. */
#include "sched/sched_internal.h"
#include "tn_test.h"

#define REQUEST (1u << 20)

/* What a device of 100 MiB/s was seen to read in a second, if the last requests come together, this long after a measurement's end. */
static uint64_t measured(uint64_t together_ns)
{
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct tn_sched_load load = {.layers = 1, .layer_bytes = 16 * REQUEST};
	uint64_t now = SECOND, bps;
	struct tn_sched *s;

	assert_int_equal(tn_sched_create(&o, &s), 0);
	tn_sched_turn(s, now);
	tn_sched_load_add(s, &load, now);
	tn_sched_load_waits(s, &load, 1);
	for (unsigned i = 0; i < 16; i++)
		assert_true(tn_sched_read(s, &load, 0, 0, REQUEST, now));
	for (unsigned i = 0; i < 8; i++) /* each is a measurement of its own */
		tn_sched_read_done(s, 0, REQUEST, now += 10 * MS);
	for (unsigned i = 0; i < 8; i++)
		tn_sched_read_done(s, 0, REQUEST, i ? now : (now += together_ns));
	bps = tn_sched_read_bps(s);
	tn_sched_load_del(s, &load, now, true);
	tn_sched_destroy(s);
	return bps;
}

static void requests_under_way_for_long_that_end_together_tell_no_rate(void **state)
{
	assert_int_equal(measured(80 * MS), 100 * REQUEST);
	assert_int_equal(measured(MS), 100 * REQUEST);
}

/* A load of a few requests is over sooner than a measurement takes. */
static void a_short_busy_period_tells_one(void **state)
{
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct tn_sched_load load = {.layers = 1, .layer_bytes = REQUEST};
	struct tn_sched *s;

	assert_int_equal(tn_sched_create(&o, &s), 0);
	tn_sched_turn(s, SECOND);
	tn_sched_load_add(s, &load, SECOND);
	tn_sched_load_waits(s, &load, 1);
	assert_true(tn_sched_read(s, &load, 0, 0, REQUEST, SECOND));
	tn_sched_read_done(s, 0, REQUEST, SECOND + MS);
	assert_int_equal(tn_sched_read_bps(s), 1000ull * REQUEST);
	tn_sched_load_del(s, &load, SECOND + MS, true);
	tn_sched_destroy(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_under_way_for_long_that_end_together_tell_no_rate),
		cmocka_unit_test(a_short_busy_period_tells_one),
	};

	return cmocka_run_group_tests_name("sched_rate", tests, NULL, NULL);
}
