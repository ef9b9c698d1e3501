/* SPDX-License-Identifier: Apache-2.0 */
/* How long one write should be, so that no load that begins meanwhile waits for more than a quantum and a half. */
#include "base/rng.h"
#include "sched/sched_internal.h"
#include "tn_test.h"

static void one_write_is_half_a_quantum_at_most(void **state)
{
	struct tn_mix drive = {.version = 1, .read_bps = 1800000000, .mixed_bps = 500000000, .read_latency_ns = MS, .write_latency_ns = MS / 10};
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (unsigned k = 0; k < 1000; k++) {
		uint64_t most, sum = 0;
		struct tn_sched *s;

		drive.write_bps = 100000000 + tn_rng_below(&rng, 20000) * 1000000ull;
		assert_int_equal(tn_sched_create(&o, &s), 0);
		tn_sched_device(s, 0, &drive);
		most = tn_sched_write_most(s, 0, SECOND);
		assert_true(most >= 64u << 10);
		for (; tn_sched_write(s, TN_SCHED_SAVES, 0, most, SECOND); sum += most)
			;
		assert_int_equal(sum, 2 * most); /* two fill it */
		tn_sched_write_undo(s, 0, sum);
		tn_sched_destroy(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_write_is_half_a_quantum_at_most),
	};

	return cmocka_run_group_tests_name("sched_write", tests, NULL, NULL);
}
