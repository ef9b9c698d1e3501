/* SPDX-License-Identifier: Apache-2.0 */
/* The power-cut suite of the store (powercut.h) on the simulated disk. With TN_SIM_FULL=1: 400,000 crashes. */
#include "powercut.h"
#include "tn_test.h"

static struct medium *make(uint64_t seed)
{
	return medium_simdisk(&(struct tn_simdisk_opts){.seed = seed, .submit_short_percent = 3});
}

static void every_crash_of_one_device_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "one device",
		.opts = {.ndevices = 1, .capacity_bytes = 4u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 120, .verify_percent = 10},
		.steps = 600,
		.sample = 8,
	}, make);
}

static void every_crash_of_two_devices_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "two devices",
		.opts = {.ndevices = 2, .capacity_bytes = 6u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 150, .verify_percent = 10, .prepare = true},
		.steps = 600,
		.sample = 10,
	}, make);
}

static void every_crash_with_headers_of_two_pages_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "big headers",
		.opts = {.ndevices = 1, .capacity_bytes = 16u << 20, .segment_bytes = 4u << 20, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 60, .verify_percent = 10, .big_percent = 12},
		.steps = 150,
		.sample = 8,
	}, make);
}

static void every_crash_after_failed_writes_and_syncs_recovers_what_was_durable(void **state)
{
	powercut_run(&(struct powercut_script){
		.name = "failing device",
		.opts = {.ndevices = 2, .capacity_bytes = 6u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10,
			 .max_slots = 256, .keys = 150, .verify_percent = 10, .faulty = true},
		.steps = 600,
		.sample = 12,
	}, make);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_crash_of_one_device_recovers_what_was_durable),
		cmocka_unit_test(every_crash_of_two_devices_recovers_what_was_durable),
		cmocka_unit_test(every_crash_with_headers_of_two_pages_recovers_what_was_durable),
		cmocka_unit_test(every_crash_after_failed_writes_and_syncs_recovers_what_was_durable),
	};

	return cmocka_run_group_tests_name("powercut", tests, NULL, NULL);
}
