/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that have waited for long: their share of the time, whose it is, and reads that are held back for them. */
#include "sched/sched_rig.h"

#include "tn_test.h"

static void writes_get_a_small_share_although_reads_never_end(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from = m->now;

	rig_load_begin(m, 0, 1u << 30, 0, 1);
	rig_run_until(m, m->now + 20000 * MS, 1);
	print_message("# %.2f %% of the time, %u turns\n", 100 * (double)m->written / 0.75 / (double)(m->now - from),
		      m->told[TN_CHOSE_WRITE][TN_REASON_STARVED]);
	assert_true(m->written > 0);
	assert_true((double)m->written / 0.75 < 0.05 * (double)(m->now - from));
	assert_int_equal(m->overlaps, 0); /* beside a write, all reads in flight would be slower */
	rig_destroy(m);
}

/* A load that wants all of the device, up to the moment when its reads are held back for a write that has waited for long. */
static struct sim *reads_held(void)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from = m->now;

	rig_load_begin(m, 0, 1u << 30, 0, 1);
	while (m->told[TN_CHOSE_WAIT][TN_REASON_STARVED] == 0) {
		rig_turn(m, 1);
		rig_advance(m, TN_FOREVER);
		assert_true(m->now < from + 300 * MS);
	}
	assert_true(m->reads[0] > 0 && m->writes[0] == 0);
	return m;
}

static void reads_are_held_no_longer_than_somebody_asks_for_the_write(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	rig_turn(m, 1);
	assert_int_equal(m->reads[0], in_flight);
	rig_turn(m, 0); /* the write asked in the turn before */
	rig_turn(m, 0);
	assert_true(m->reads[0] > in_flight);
	rig_destroy(m);
}

/* Offloads that ask meanwhile have waited for nothing yet. */
static void another_kind_that_asks_does_not_keep_the_reads_held(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	for (int k = 0; k < 3; k++) {
		rig_turn(m, 0);
		assert_false(tn_sched_write(m->s, TN_SCHED_OFFLOADS, 0, CHUNK, m->now));
	}
	assert_true(m->reads[0] > in_flight);
	rig_destroy(m);
}

/* Late offloads go beside the reads in flight, all the time: each would begin the wait of the saves anew. */
static void late_offloads_do_not_end_what_is_held_for_saves(void **state)
{
	struct sim *m = reads_held();
	uint32_t in_flight = m->reads[0];

	rig_turn(m, 1);
	tn_sched_late(m->s, true);
	assert_true(tn_sched_write(m->s, TN_SCHED_OFFLOADS, 0, CHUNK, m->now));
	tn_sched_write_done(m->s, 0, CHUNK, m->now);
	rig_turn(m, 1);
	assert_int_equal(m->reads[0], in_flight);
	rig_destroy(m);
}

static void a_starved_write_does_not_wait_for_reads_that_hang(void **state)
{
	struct sim *m = reads_held();
	uint64_t from = m->now;

	for (uint32_t k = 0; k < m->n; k++)
		m->t[k].end_ns = m->now + 10000 * MS;
	while (m->writes[0] == 0) {
		assert_true(tn_sched_due(m->s) != TN_FOREVER);
		rig_advance(m, TN_FOREVER);
		rig_turn(m, 1);
	}
	assert_true(m->now - from < 100 * MS);
	rig_destroy(m);
}

/* Quanta of a tenth of a millisecond: they come more often instead, and what waits for 250 ms waits so once. */
static void that_share_is_theirs_however_small_the_quanta_are(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from = m->now + 2 * MS;

	rig_load_begin(m, 1, 0, 0, 0);
	m->now = from;
	tn_sched_load_del(m->s, &m->load[1], from, true); /* short restores, small quanta */
	rig_load_begin(m, 0, 1u << 30, 0, 1);
	rig_run_until(m, from + 10000 * MS, 1);
	print_message("# %.2f %% of the time\n", 100 * (double)m->written / 0.75 / (double)(m->now - from));
	assert_true((double)m->written / 0.75 > 0.005 * (double)(m->now - from));
	assert_true((double)m->written / 0.75 < 0.03 * (double)(m->now - from));
	rig_destroy(m);
}

/* A device that answers so slowly that a turn costs more by its latencies than by its bytes. */
static void nor_do_latencies_give_writes_more_than_their_share(void **state)
{
	struct tn_mix far = rig_ps1010;
	struct sim *m;
	uint64_t from;

	far.read_latency_ns = far.write_latency_ns = 200 * MS;
	m = rig_create(1, &far);
	from = m->now;
	rig_load_begin(m, 0, 1u << 30, 0, 1);
	rig_run_until(m, from + 20000 * MS, 1);
	print_message("# %.2f %% of the time\n", 100 * (double)m->written / 0.75 / (double)(m->now - from));
	assert_true(m->written > 0 && (double)m->written / 0.75 < 0.03 * (double)(m->now - from));
	rig_destroy(m);
}

/* Saves ask first in every turn, and always have more; no read is in the way. */
static void saves_and_offloads_take_turns_and_the_store_has_its_own(void **state)
{
	static const uint32_t bytes[TN_SCHED_WRITERS] = {CHUNK, CHUNK, 1u << 20};
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t got[TN_SCHED_WRITERS] = {0}, from = m->now;

	while (m->now < from + 5000 * MS) {
		for (bool any = true; any;) {
			any = false;
			tn_sched_turn(m->s, m->now);
			for (uint32_t who = 0; who < TN_SCHED_WRITERS; who++)
				while (tn_sched_write(m->s, who, 0, bytes[who], m->now)) {
					for (uint32_t k = 0; k < bytes[who] / CHUNK; k++)
						rig_put(m, true, 0, 0);
					got[who]++;
					any = true;
				}
		}
		rig_advance(m, TN_FOREVER);
	}
	print_message("# %llu writes of saves, %llu of offloads, %llu of the store\n", (unsigned long long)got[TN_SCHED_SAVES],
		      (unsigned long long)got[TN_SCHED_OFFLOADS], (unsigned long long)got[TN_SCHED_STORE]);
	assert_in_range(got[TN_SCHED_OFFLOADS], got[TN_SCHED_SAVES] * 9 / 10, got[TN_SCHED_SAVES] * 11 / 10);
	assert_in_range(got[TN_SCHED_STORE], 10, 40);
	rig_destroy(m);
}

/* In every other turn the writer has no move for its write, and says that it still waits. */
static void a_wait_for_something_else_does_not_begin_anew(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);

	rig_load_begin(m, 0, 1u << 30, 0, 1);
	for (uint32_t k = 0; m->written == 0 && m->now < 2000 * MS; k++) {
		rig_turn(m, k & 1);
		if (!(k & 1))
			tn_sched_write_waits(m->s, TN_SCHED_SAVES);
		rig_advance(m, TN_FOREVER);
	}
	assert_true(m->now < 1300 * MS); /* it began at 1,000 */
	rig_destroy(m);
}

/* Saves ask before the store does, in every turn, and for less. */
static void the_stores_own_writes_get_a_turn_beside_saves_and_reads_that_never_end(void **state)
{
	struct sim *m = rig_create(1, &rig_ps1010);
	uint64_t from, store = 0, chunks = (1u << 20) / CHUNK;

	rig_load_begin(m, 1, 0, 0, 0); /* a long restore: the largest quanta, so that turns are further apart than both wait */
	m->now += 400 * MS;
	tn_sched_load_del(m->s, &m->load[1], m->now, true);
	from = m->now;
	rig_load_begin(m, 0, 1u << 30, 0, 1);
	while (m->now < from + 20000 * MS) {
		rig_turn(m, 1);
		if (tn_sched_write(m->s, TN_SCHED_STORE, 0, 1u << 20, m->now)) {
			for (uint32_t k = 0; k < chunks; k++)
				rig_put(m, true, 0, 0);
			store++;
		}
		rig_advance(m, TN_FOREVER);
	}
	print_message("# %.2f %% of the time, %u turns, of which the store had %llu\n",
		      100 * (double)m->written / 0.75 / (double)(m->now - from), m->told[TN_CHOSE_WRITE][TN_REASON_STARVED],
		      (unsigned long long)store);
	assert_true(store >= 10);
	assert_true(m->written > 2 * store << 20); /* saves have theirs */
	assert_true((double)m->written / 0.75 < 0.05 * (double)(m->now - from));
	rig_destroy(m);
}

static void a_drive_that_hardly_writes_at_all_does_not_upset_the_share(void **state)
{
	struct tn_mix mix = rig_ps1010;

	for (uint64_t bytes = 1u << 18; bytes; bytes <<= 9) { /* up to 2^63, at a byte a second */
		struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
		struct tn_sched_load load = {.layers = 1};
		uint32_t went = 0;
		struct tn_sched *s;

		mix.write_bps = mix.mixed_bps = 1;
		assert_int_equal(tn_sched_create(&o, &s), 0);
		tn_sched_device(s, 0, &mix);
		tn_sched_load_add(s, &load, 1);
		tn_sched_load_waits(s, &load, 1);
		for (uint64_t now = 1; now < 10000 * MS; now += MS) {
			tn_sched_turn(s, now);
			if (tn_sched_write(s, TN_SCHED_SAVES, 0, bytes, now)) {
				tn_sched_write_done(s, 0, bytes, now);
				went++;
			}
		}
		assert_in_range(went, 5, 10); /* one in a second */
		tn_sched_load_del(s, &load, 1, false);
		tn_sched_destroy(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_get_a_small_share_although_reads_never_end),
		cmocka_unit_test(reads_are_held_no_longer_than_somebody_asks_for_the_write),
		cmocka_unit_test(another_kind_that_asks_does_not_keep_the_reads_held),
		cmocka_unit_test(late_offloads_do_not_end_what_is_held_for_saves),
		cmocka_unit_test(a_starved_write_does_not_wait_for_reads_that_hang),
		cmocka_unit_test(that_share_is_theirs_however_small_the_quanta_are),
		cmocka_unit_test(nor_do_latencies_give_writes_more_than_their_share),
		cmocka_unit_test(saves_and_offloads_take_turns_and_the_store_has_its_own),
		cmocka_unit_test(a_wait_for_something_else_does_not_begin_anew),
		cmocka_unit_test(the_stores_own_writes_get_a_turn_beside_saves_and_reads_that_never_end),
		cmocka_unit_test(a_drive_that_hardly_writes_at_all_does_not_upset_the_share),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
