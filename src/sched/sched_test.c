/* SPDX-License-Identifier: Apache-2.0 */
/* Reads before writes, quanta, the order of loads, and what changes while they run. */
#include "sched/sched_rig.h"

#include <string.h>

#include "tn_test.h"

/* ---- reads before writes --------------------------------------------------------------------------- */

/* Restores of 16 MiB at random times; their p99 time. */
static uint64_t restore_p99(struct sim *m, uint32_t writes, unsigned count)
{
	static uint64_t took[2000];

	assert_true(count <= 2000);
	for (unsigned k = 0; k < count; k++) {
		uint64_t from;

		rig_run_until(m, m->now + (10 + tn_rng_below(&m->rng, 20)) * MS, writes);
		from = m->now;
		rig_load_begin(m, 0, 64, 0, 1);
		while (!m->done_ns[0]) {
			rig_turn(m, writes);
			rig_advance(m, TN_FOREVER);
		}
		took[k] = m->done_ns[0] - from;
		for (unsigned j = k; j > 0 && took[j - 1] > took[j]; j--) {
			uint64_t t = took[j];

			took[j] = took[j - 1];
			took[j - 1] = t;
		}
	}
	return took[count * 99 / 100];
}

static void saturating_writes_cost_restores_at_most_a_quarter_at_p99(void **state)
{
	for (int known = 0; known < 2; known++) {
		struct sim *m = rig_create(1, known ? &rig_ps1010 : NULL);
		uint64_t without = restore_p99(m, 0, 1000), with, from, wrote;

		restore_p99(m, 1, 20); /* learns, if it has to */
		from = m->now;
		wrote = m->written;
		with = restore_p99(m, 1, 1000);
		print_message("# mix %s: p99 %.2f ms without writes, %.2f ms with; %.0f MB/s written\n",
			      known ? "measured" : "unknown", (double)without / 1e6, (double)with / 1e6,
			      (double)(m->written - wrote) * 1e3 / (double)(m->now - from));
		assert_true((double)with <= 1.25 * (double)without);
		assert_true(m->overlaps == 0);
		assert_true((double)(m->written - wrote) / (double)(m->now - from) > 0.3 * 0.75); /* of what gaps leave */
		rig_destroy(m);
	}
}

/* A restore of 1 GiB in 32 layers; how long it took. */
static uint64_t long_restore_ns(bool writes)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t took;

	rig_run_until(m, m->now + 50 * MS, writes);
	took = m->now;
	rig_load_begin(m, 0, 4096, 0, 1);
	while (!m->done_ns[0]) {
		rig_turn(m, writes);
		rig_advance(m, TN_FOREVER);
	}
	took = m->done_ns[0] - took;
	rig_destroy(m);
	return took;
}

static void a_long_restore_loses_hardly_anything_to_waiting_writes(void **state)
{
	uint64_t without = long_restore_ns(false), with = long_restore_ns(true);

	print_message("# %.1f ms without writes, %.1f ms with\n", (double)without / 1e6, (double)with / 1e6);
	assert_true((double)with <= 1.015 * (double)without);
}

static void a_free_mix_lets_both_go_and_another_does_not(void **state)
{
	struct tn_mix mix = rig_ps1010;

	for (int free_mix = 0; free_mix < 2; free_mix++) {
		struct sim *m;

		mix.mixed_bps = free_mix ? 1050000000 : 1000000000; /* serial use gives 1061 MB/s */
		m = rig_create(1, &mix);
		rig_load_begin(m, 0, 400, 0, 1);
		rig_run_until(m, m->now + 50 * MS, 1);
		assert_true(free_mix ? m->overlaps > 0 : m->overlaps == 0);
		assert_true((m->told[TN_CHOSE_WRITE][TN_REASON_MIX_FREE] > 0) == (free_mix == 1));
		assert_true((m->told[TN_CHOSE_WAIT][TN_REASON_READS_WAIT] > 0) == (free_mix == 0));
		rig_destroy(m);
	}
}

static void a_read_waits_for_the_writes_in_flight_but_not_for_late_ones(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from;

	rig_turn(m, 1);
	assert_true(m->writes[0] > 0);
	from = m->now;
	rig_load_begin(m, 0, 1, 0, 1);
	rig_turn(m, 0);
	assert_int_equal(m->reads[0], 0);
	assert_int_equal(m->told[TN_CHOSE_WAIT][TN_REASON_WRITES_DRAIN], 1);
	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns = m->now + 10000 * MS; /* the drive hangs */
	while (m->reads[0] == 0) {
		assert_true(tn_sched_due(m->s) != TN_FOREVER);
		rig_advance(m, TN_FOREVER);
		rig_turn(m, 0);
	}
	assert_true(m->now - from < 100 * MS);
	rig_load_begin(m, 1, 1, 0, 1); /* and the next one does not wait again */
	rig_turn(m, 0);
	assert_int_equal(m->reads[0], 2);
	rig_destroy(m);
}

/* As many chunks as may be in flight at once; none of them goes. */
static uint32_t chunks_let_go(struct tn_sched *s, uint64_t now)
{
	uint32_t n = 0;

	while (tn_sched_write(s, TN_SCHED_SAVES, 0, CHUNK, now))
		n++;
	tn_sched_write_undo(s, 0, (uint64_t)n * CHUNK);
	return n;
}

static void writes_that_did_not_go_teach_nothing(void **state)
{
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct tn_sched *s;
	uint64_t now = 1;
	uint32_t n;

	assert_int_equal(tn_sched_create(&o, &s), 0);
	tn_sched_turn(s, now);
	assert_true(tn_sched_write(s, TN_SCHED_SAVES, 0, CHUNK, now));
	now += 3 * MS; /* slow to answer */
	tn_sched_write_done(s, 0, CHUNK, now);
	n = chunks_let_go(s, now);
	assert_true(tn_sched_write(s, TN_SCHED_SAVES, 0, 5 * CHUNK, now));
	now++;
	tn_sched_write_undo(s, 0, 4 * CHUNK);
	tn_sched_write_undo(s, 0, 0);
	now += 3 * MS;
	tn_sched_write_done(s, 0, CHUNK, now);
	assert_int_equal(chunks_let_go(s, now), n);
	tn_sched_destroy(s);
}

static void an_announced_decode_phase_has_larger_quanta_until_a_load_comes(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint32_t small, large;

	rig_turn(m, 1);
	small = m->writes[0];
	rig_run_until(m, m->now + 1000 * MS, 0);
	tn_sched_calm(m->s, TN_FOREVER);
	rig_turn(m, 1);
	large = m->writes[0];
	assert_true(large >= 4 * small);
	assert_true(m->told[TN_CHOSE_WRITE][TN_REASON_DECODE] == large);
	rig_load_begin(m, 0, 4, 0, 1);
	rig_run_until(m, m->now + 1000 * MS, 0);
	rig_turn(m, 1);
	assert_true(m->writes[0] <= small);
	rig_destroy(m);
}

/* ---- order of loads -------------------------------------------------------------------------------- */

static void loads_go_by_priority_then_by_need(void **state)
{
	static const uint64_t before[4] = {0, 10 * MS, 20 * MS, 30 * MS};
	struct sim *m = rig_create(1, &rig_ps1010);
	uint32_t order[4] = {9, 9, 9, 9};

	for (uint32_t i = 0; i < 4; i++) {
		rig_load_begin(m, i, 1, i == 3, 1);
		m->load[i].layers = 4;
		m->load[i].before_ns = before;
		m->load[i].next_layer = (uint32_t[]){3, 1, 2, 3}[i];
	}
	tn_sched_turn(m->s, m->now);
	for (uint32_t k = 0; k < 4; k++)
		order[k] = (uint32_t)(tn_sched_pick(m->s, m->now) - m->load);
	assert_null(tn_sched_pick(m->s, m->now));
	assert_int_equal(order[0], 3); /* the priority */
	assert_int_equal(order[1], 1);
	assert_int_equal(order[2], 2);
	assert_int_equal(order[3], 0);
	/* The engine of load 0 is at layer 2 already: what it needs comes before what load 2 needs. */
	m->load[0].at_layer = 2;
	m->load[0].at_ns = m->now - 25 * MS;
	tn_sched_again(m->s);
	for (uint32_t k = 0; k < 4; k++)
		order[k] = (uint32_t)(tn_sched_pick(m->s, m->now) - m->load);
	assert_int_equal(order[1], 0);
	rig_destroy(m);
}

static void decisions_say_slack_and_reason(void **state)
{
	static const uint64_t before[2] = {0, 30 * MS};
	struct sim *m = rig_create(1, &rig_ps1010);

	rig_load_begin(m, 0, 3, 0, 1);
	m->load[0].layers = 2;
	m->load[0].before_ns = before;
	m->load[0].next_layer = 1;
	tn_sched_backlog(m->s, 77, 1000);
	rig_turn(m, 0);
	tn_sched_turn(m->s, m->now);
	assert_int_equal(m->told[TN_CHOSE_READ][TN_REASON_ONLY], 1);
	assert_int_equal(m->last[TN_CHOSE_READ].load, 1);
	assert_int_equal(m->last[TN_CHOSE_READ].layer, 1);
	assert_int_equal(m->last[TN_CHOSE_READ].bytes, 3 * CHUNK);
	assert_int_equal(m->last[TN_CHOSE_READ].slack_ns, 30 * MS);
	assert_int_equal(m->last[TN_CHOSE_READ].deferred_bytes, 77);
	tn_sched_refused(m->s, 5, m->now);
	assert_int_equal(m->told[TN_CHOSE_REFUSE][TN_REASON_BACKLOG], 1);
	for (uint32_t r = 0; r < TN_REASONS; r++)
		assert_string_not_equal(tn_reason_name(r), "unknown");
	assert_string_equal(tn_reason_name(TN_REASONS), "unknown");
	rig_destroy(m);
}

static void a_load_of_low_priority_is_not_starved(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);

	rig_load_begin(m, 0, 1u << 30, 5, 1);
	rig_load_begin(m, 1, 512, -5, 1);
	for (int k = 0; k < 100000 && !m->done_ns[1]; k++) {
		rig_turn(m, 0);
		rig_advance(m, TN_FOREVER);
	}
	print_message("# 128 MiB of low priority took %.1f s\n", (double)(m->done_ns[1] - 1000 * MS) / 1e9);
	assert_true(m->done_ns[1] != 0);
	assert_true(m->told[TN_CHOSE_READ][TN_REASON_AGED] > 0);
	assert_true((1u << 30) - m->left[0] > 10 * 512); /* and hardly slows the other */
	rig_destroy(m);
}

static void an_urgent_load_gets_the_device_although_another_has_much_to_read(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from;

	rig_load_begin(m, 0, 4000, 0, 1);
	rig_run_until(m, m->now + 100 * MS, 0);
	from = m->now;
	rig_load_begin(m, 1, 64, 1, 1);
	while (!m->done_ns[1]) {
		rig_turn(m, 0);
		rig_advance(m, TN_FOREVER);
	}
	print_message("# 16 MiB took %.1f ms behind what was in flight\n", (double)(m->done_ns[1] - from) / 1e6);
	assert_true(m->done_ns[1] - from < 30 * MS); /* 9.3 ms alone, 10 ms of queue */
	rig_destroy(m);
}

/* ---- changes ---------------------------------------------------------------------------------------- */

/* Steps and noise of the device's speed: the learned quantum follows, and does not swing. */
static void the_quantum_follows_a_step_of_the_devices_speed_without_swinging(void **state)
{
	struct sim *m = rig_create(1, NULL);
	unsigned turns = 0;
	int way = 0;
	uint32_t was = 0, at[4];

	for (int k = 0; k < 4000; k++) {
		m->slowness = (k / 1000 % 2 ? 4 : 1) * (0.9 + 0.2 * tn_rng_unit(&m->rng));
		rig_turn(m, 1);
		if (m->writes[0] != was && was) {
			int now = m->writes[0] > was ? 1 : -1;

			turns += way && now != way;
			way = now;
		}
		was = m->writes[0];
		at[k / 1000] = was;
		rig_advance(m, TN_FOREVER);
		while (m->n) /* the whole quantum, so that what is in flight after a turn is its size */
			rig_advance(m, TN_FOREVER);
	}
	print_message("# %u changes of direction in 4000 quanta and 3 steps; %u, %u, %u, %u writes a quantum\n", turns, at[0],
		      at[1], at[2], at[3]);
	assert_true(turns <= 3 + 40); /* the noise may cross the border between two sizes now and then */
	assert_true(at[1] < at[0] && at[1] < at[2] && at[3] < at[2]);
	rig_destroy(m);
}

static void clocks_that_jump_stop_nothing(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);

	rig_load_begin(m, 0, 1u << 30, 0, 1);
	for (int k = 0; k < 20000; k++) {
		uint64_t jump = tn_rng_below(&m->rng, 100) ? 0 : tn_rng_next(&m->rng) % (100000 * MS);

		rig_turn(m, 1);
		assert_true(m->n > 0);
		m->now = tn_rng_below(&m->rng, 2) && m->now > jump ? m->now - jump : m->now + jump;
		rig_end_one(m, tn_rng_below(&m->rng, m->n));
	}
	assert_true(m->written > 0 && m->left[0] < 1u << 30);
	assert_true(m->written < 3000ull * CHUNK); /* reads still come first */
	rig_destroy(m);
}

/* ---- nothing stands still --------------------------------------------------------------------------- */

static void in_any_run_something_is_chosen_or_a_time_to_come_back_is_given(void **state)
{
	for (int known = 0; known < 2; known++) {
		struct sim *m = rig_create(2, known ? &rig_ps1010 : NULL);
		uint32_t steps = tn_test_soak() ? 10000000 : 100000, loads = 0;

		for (uint32_t k = 0; k < steps; k++) {
			uint32_t i = tn_rng_below(&m->rng, LOADS), writes = tn_rng_below(&m->rng, 4);
			bool waits = writes != 0, any;

			if (tn_list_empty(&m->load[i].link)) {
				if (tn_rng_below(&m->rng, 4) == 0) {
					rig_load_begin(m, i, 1 + tn_rng_below(&m->rng, 200), (int32_t)tn_rng_below(&m->rng, 3),
						   1 + tn_rng_below(&m->rng, 3));
					loads++;
				}
			} else if (m->left[i] && tn_rng_below(&m->rng, 50) == 0) { /* cancelled */
				m->left[i] = 0;
				tn_sched_load_waits(m->s, &m->load[i], 0);
				if (m->flying[i] == 0)
					tn_sched_load_del(m->s, &m->load[i], m->now, false);
			}
			for (uint32_t l = 0; l < LOADS; l++)
				waits |= m->left[l] > 0;
			if (tn_rng_below(&m->rng, 1000) == 0)
				tn_sched_calm(m->s, m->now + tn_rng_below(&m->rng, 1000) * MS);
			any = rig_turn(m, writes);
			assert_true(any || !waits || m->n > 0 || (tn_sched_due(m->s) > m->now && tn_sched_due(m->s) != TN_FOREVER));
			if (m->n)
				rig_end_one(m, tn_rng_below(&m->rng, m->n));
			m->now += tn_rng_below(&m->rng, 2 * MS);
		}
		for (uint32_t k = 0; k < 100000 && m->n; k++) { /* all of it ends */
			rig_turn(m, 0);
			rig_end_one(m, m->n - 1);
			m->now += MS;
		}
		for (uint32_t l = 0; l < LOADS; l++)
			assert_int_equal(m->left[l] + m->flying[l], 0);
		assert_true(loads > 100);
		rig_destroy(m);
	}
}

static void what_nobody_asks_for_again_does_not_wake_anybody(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);

	rig_load_begin(m, 0, 1u << 20, 0, 1);
	rig_turn(m, 1);
	assert_true(tn_sched_due(m->s) != TN_FOREVER);
	rig_turn(m, 0);
	assert_true(tn_sched_due(m->s) == TN_FOREVER);
	rig_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(saturating_writes_cost_restores_at_most_a_quarter_at_p99),
		cmocka_unit_test(a_long_restore_loses_hardly_anything_to_waiting_writes),
		cmocka_unit_test(a_free_mix_lets_both_go_and_another_does_not),
		cmocka_unit_test(a_read_waits_for_the_writes_in_flight_but_not_for_late_ones),
		cmocka_unit_test(writes_that_did_not_go_teach_nothing),
		cmocka_unit_test(an_announced_decode_phase_has_larger_quanta_until_a_load_comes),
		cmocka_unit_test(loads_go_by_priority_then_by_need),
		cmocka_unit_test(decisions_say_slack_and_reason),
		cmocka_unit_test(a_load_of_low_priority_is_not_starved),
		cmocka_unit_test(an_urgent_load_gets_the_device_although_another_has_much_to_read),
		cmocka_unit_test(the_quantum_follows_a_step_of_the_devices_speed_without_swinging),
		cmocka_unit_test(clocks_that_jump_stop_nothing),
		cmocka_unit_test(in_any_run_something_is_chosen_or_a_time_to_come_back_is_given),
		cmocka_unit_test(what_nobody_asks_for_again_does_not_wake_anybody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
