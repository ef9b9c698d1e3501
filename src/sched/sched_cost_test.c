/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler itself costs. A benchmark (make bench): the bound is wall time, which no other test looks at. */
#include "sched/sched.h"

#include "tn_test.h"

#define MS 1000000ull
#define CHUNK (256u << 10)

static const struct tn_mix ps1010 = {.version = 1, .read_bps = 29000000000 / 16, .write_bps = 12000000000 / 16,
				     .mixed_bps = 12000000000 / 16, .read_latency_ns = 960000, .write_latency_ns = 160000};

static void a_decision_costs_less_than_two_microseconds_a_layer(void **state)
{
	static struct tn_sched_load load[64];
	static uint64_t before[80];
	struct tn_sched_opts o = {.devices = 2, .alloc = &tn_alloc_system};
	struct tn_sched *s;
	uint64_t best = UINT64_MAX;

	for (uint32_t l = 1; l < 80; l++)
		before[l] = before[l - 1] + 10 * MS;
	assert_int_equal(tn_sched_create(&o, &s), 0);
	for (uint32_t d = 0; d < 2; d++)
		tn_sched_device(s, d, &ps1010);
	tn_sched_backlog(s, 1, 0); /* it presses: is there slack? Not while 64 loads are to be read. */
	for (uint32_t i = 0; i < 64; i++) {
		load[i] = (struct tn_sched_load){.id = i, .layers = 80, .before_ns = before, .at_ns = 64 - i, .next_layer = 1,
						 .layer_bytes = 128 * CHUNK};
		tn_sched_load_add(s, &load[i], 1);
		tn_sched_load_waits(s, &load[i], 3);
	}
	for (unsigned round = 0; round < 200; round++) { /* 64 loads wait; each turn one layer of one goes, and ends */
		uint64_t from = tn_test_now(), ns;

		for (unsigned k = 0; k < 100; k++) {
			struct tn_sched_load *l;

			tn_sched_turn(s, k);
			l = tn_sched_pick(s, k);
			assert_true(tn_sched_read(s, l, l->next_layer, 0, CHUNK, k));
			assert_true(tn_sched_read(s, l, l->next_layer, 1, CHUNK, k));
			assert_false(tn_sched_write(s, TN_SCHED_SAVES, 0, CHUNK, k));
			tn_sched_read_done(s, 0, CHUNK, k);
			tn_sched_read_done(s, 1, CHUNK, k);
			l->next_layer = l->next_layer % 79 + 1;
		}
		ns = (tn_test_now() - from) / 100;
		best = ns < best ? ns : best;
	}
	print_message("# a turn, a pick among 64 loads, two reads and a refused write, 80 layers: %llu ns\n", (unsigned long long)best);
	assert_true(best < 2000);
	for (uint32_t i = 0; i < 64; i++)
		tn_sched_load_del(s, &load[i], 1, false);
	tn_sched_destroy(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_decision_costs_less_than_two_microseconds_a_layer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
