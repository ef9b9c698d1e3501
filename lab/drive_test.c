/* SPDX-License-Identifier: Apache-2.0 */
/* The timing of a described drive, to the nanosecond: the clock is a number. */
#include "lab/drive.h"

#include <string.h>

#include "base/rng.h"
#include "tn_test.h"

#define MS 1000000u
#define MIB (1u << 20)

/* Bandwidths in bytes per microsecond, so that the expected times are whole. */
static const struct tn_mix mix = {.version = TN_MIX_VERSION,
				  .read_bps = 4000000000,
				  .write_bps = 2000000000,
				  .mixed_bps = 2000000000,
				  .read_latency_ns = 50000,
				  .write_latency_ns = 10000};

/* The rounding is one ns per job. */
static void near(uint64_t got, uint64_t expected, uint64_t jobs)
{
	if (got < expected || got > expected + jobs)
		fail_msg("%llu ns, expected %llu", (unsigned long long)got, (unsigned long long)expected);
}

static void reads_alone_take_turns_at_the_read_bandwidth(void **state)
{
	struct tn_drive_job job[8];
	struct tn_drive d;

	tn_drive_init(&d, &mix, 1);
	tn_drive_advance(&d, 5 * MS);
	for (unsigned i = 0; i < 8; i++)
		tn_drive_enter(&d, &job[i], false, 4000000); /* a millisecond each */
	tn_drive_advance(&d, 100 * MS);
	for (unsigned i = 0; i < 8; i++)
		near(job[i].due_ns, (6 + i) * MS + 50000, i + 1);
}

static void writes_alone_have_their_own_bandwidth_and_latency(void **state)
{
	struct tn_drive_job job[2];
	struct tn_drive d;

	tn_drive_init(&d, &mix, 1);
	tn_drive_enter(&d, &job[0], true, 4000000);
	tn_drive_enter(&d, &job[1], true, 2000000);
	tn_drive_advance(&d, 100 * MS);
	near(job[0].due_ns, 2 * MS + 10000, 1);
	near(job[1].due_ns, 3 * MS + 10000, 2);
}

static void both_together_get_the_mixed_bandwidth_by_their_numbers(void **state)
{
	struct tn_drive_job r, w[3];
	struct tn_drive d;

	tn_drive_init(&d, &mix, 1);
	tn_drive_enter(&d, &r, false, 1000000);
	for (unsigned i = 0; i < 3; i++)
		tn_drive_enter(&d, &w[i], true, 1000000);
	tn_drive_advance(&d, 100 * MS);
	/*
	 * 500 MB/s for the read and 1500 MB/s for the writes, until w[0] has gone at 2/3 ms; then 667 and 1333 MB/s
	 * until w[1] has, 3/4 ms later; then 1 GB/s each: the read's last 1/6 MB takes 1/6 ms; then 2 GB/s.
	 */
	near(w[0].due_ns, 2 * MS / 3 + 10000, 1);
	near(w[1].due_ns, 2 * MS / 3 + 3 * MS / 4 + 10000, 2);
	near(r.due_ns, 2 * MS / 3 + 3 * MS / 4 + MS / 6 + 50000, 4);
	near(w[2].due_ns, 2 * MS + 10000, 4); /* 4 MB at 2 GB/s */
}

static void mixing_that_is_free_gives_neither_more_than_alone(void **state)
{
	struct tn_mix free_mix = mix;
	struct tn_drive_job r[9], w;
	struct tn_drive d;

	free_mix.mixed_bps = mix.read_bps + mix.write_bps;
	tn_drive_init(&d, &free_mix, 1);
	for (unsigned i = 0; i < 9; i++)
		tn_drive_enter(&d, &r[i], false, 4000000);
	tn_drive_enter(&d, &w, true, 4000000);
	tn_drive_advance(&d, 100 * MS);
	near(r[8].due_ns, 9 * MS + 50000, 12);
	near(w.due_ns, 2 * MS + 10000, 4);
}

static void a_stretch_divides_bandwidth_and_multiplies_latency(void **state)
{
	struct tn_drive_job job;
	struct tn_drive d;

	tn_drive_init(&d, &mix, 16);
	tn_drive_enter(&d, &job, false, 4000000);
	near(tn_drive_soonest(&d, &job), 16 * MS + 16 * 50000, 1);
	tn_drive_advance(&d, 16 * MS - 1);
	assert_int_equal(job.due_ns, 0);
	tn_drive_advance(&d, 16 * MS + 1);
	near(job.due_ns, 16 * MS + 16 * 50000, 1);
}

static void a_sync_ends_with_the_writes_before_it(void **state)
{
	struct tn_drive_job w, sync, alone;
	struct tn_drive d;

	tn_drive_init(&d, &mix, 1);
	tn_drive_enter(&d, &w, true, 2000000);
	tn_drive_enter(&d, &sync, true, 0);
	tn_drive_advance(&d, 3 * MS);
	near(sync.due_ns, MS + 10000, 1);
	tn_drive_enter(&d, &alone, true, 0);
	assert_int_equal(alone.due_ns, 3 * MS + 10000);
}

static struct tn_mix side_by_side(void)
{
	struct tn_mix m = mix;

	m.service = TN_MIX_SHARE;
	return m;
}

static void side_by_side_all_of_one_size_end_together(void **state)
{
	const struct tn_mix m = side_by_side();
	struct tn_drive_job job[8], late;
	struct tn_drive d;

	tn_drive_init(&d, &m, 1);
	tn_drive_advance(&d, 5 * MS);
	for (unsigned i = 0; i < 8; i++)
		tn_drive_enter(&d, &job[i], false, 4000000);
	near(tn_drive_soonest(&d, &job[7]), 13 * MS + 50000, 1);
	tn_drive_advance(&d, 100 * MS);
	for (unsigned i = 0; i < 8; i++)
		near(job[i].due_ns, 13 * MS + 50000, 8);
	tn_drive_enter(&d, &late, false, 4000000); /* alone again */
	tn_drive_advance(&d, 200 * MS);
	near(late.due_ns, 101 * MS + 50000, 1);
}

static void side_by_side_a_small_one_overtakes_and_a_late_one_slows_all(void **state)
{
	const struct tn_mix m = side_by_side();
	struct tn_drive_job large, small, late;
	struct tn_drive d;

	tn_drive_init(&d, &m, 1);
	tn_drive_enter(&d, &large, false, 8000000);
	tn_drive_enter(&d, &small, false, 2000000);
	tn_drive_advance(&d, MS); /* 2 MB of each served */
	near(small.due_ns, MS + 50000, 1);
	tn_drive_enter(&d, &late, false, 6000000);
	tn_drive_advance(&d, 100 * MS);
	near(large.due_ns, 4 * MS + 50000, 4);
	near(late.due_ns, 4 * MS + 50000, 4);
}

static void side_by_side_a_sync_takes_no_share_and_waits_for_all_before_it(void **state)
{
	const struct tn_mix m = side_by_side();
	struct tn_drive_job w[2], sync, behind;
	struct tn_drive d;

	tn_drive_init(&d, &m, 1);
	tn_drive_enter(&d, &w[0], true, 2000000);
	tn_drive_enter(&d, &w[1], true, 4000000);
	tn_drive_enter(&d, &sync, true, 0);
	tn_drive_advance(&d, 2 * MS); /* all of w[0] is served, and half of w[1] */
	near(w[0].due_ns, 2 * MS + 10000, 2);
	tn_drive_enter(&d, &behind, true, 8000000);
	tn_drive_advance(&d, 100 * MS);
	near(w[1].due_ns, 4 * MS + 10000, 4);
	near(sync.due_ns, 4 * MS + 10000, 4);
	near(behind.due_ns, 7 * MS + 10000, 4);
}

static void time_that_goes_back_changes_nothing(void **state)
{
	struct tn_drive_job job;
	struct tn_drive d;

	tn_drive_init(&d, &mix, 1);
	tn_drive_advance(&d, 10 * MS);
	tn_drive_enter(&d, &job, false, 4000000);
	tn_drive_advance(&d, 1 * MS);
	tn_drive_advance(&d, 12 * MS);
	near(job.due_ns, 11 * MS + 50000, 1);
}

static void the_slowest_of_drives_does_not_overflow(void **state)
{
	const struct tn_mix slow = {.version = 1, .read_bps = 1, .write_bps = 1, .mixed_bps = 1,
				    .read_latency_ns = TN_MIX_LATENCY_MAX_NS, .write_latency_ns = TN_MIX_LATENCY_MAX_NS};
	struct tn_drive_job r, w;
	struct tn_drive d;

	tn_drive_init(&d, &slow, 1000000);
	tn_drive_enter(&d, &r, false, UINT32_MAX);
	tn_drive_enter(&d, &w, true, UINT32_MAX);
	tn_drive_advance(&d, 1000ull * 1000 * MS);
	assert_int_equal(r.due_ns, 0);
	assert_true(tn_drive_soonest(&d, &r) > 1000ull * 1000 * MS);
}

/* At random: no more bytes end in any span than the drive could serve, and no transfer ends before its soonest. */
static void at_random(const struct tn_mix *m)
{
	enum { N = 4000 };
	static struct tn_drive_job job[N];
	static uint64_t bound[N], bytes[N];
	double pure[2] = {4.0, 2.0}; /* bytes per ns */
	uint64_t now = 0, total[2] = {0, 0}, last = 0;
	struct tn_drive d;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	tn_drive_init(&d, m, 1);
	for (unsigned i = 0; i < N; i++) {
		bool write = tn_rng_below(&rng, 2);

		now += tn_rng_below(&rng, 2) ? 0 : tn_rng_below(&rng, MS);
		tn_drive_advance(&d, now);
		bytes[i] = tn_rng_below(&rng, MIB);
		tn_drive_enter(&d, &job[i], write, (uint32_t)bytes[i]);
		bound[i] = tn_drive_soonest(&d, &job[i]);
		total[write] += bytes[i];
		/* An earlier transfer's bound, taken now and compared with its real end later. */
		if (i && !job[i / 2].due_ns && tn_drive_soonest(&d, &job[i / 2]) > bound[i / 2])
			bound[i / 2] = tn_drive_soonest(&d, &job[i / 2]);
	}
	tn_drive_advance(&d, now + 100000ull * MS);
	for (unsigned i = 0; i < N; i++) {
		assert_true(job[i].due_ns >= bound[i]);
		last = job[i].due_ns > last ? job[i].due_ns : last;
	}
	for (int c = 0; c < 2; c++)
		assert_true((double)last >= (double)total[c] / pure[c]);
	assert_null(d.q[0].head);
	assert_null(d.q[1].head);
	assert_int_equal(d.q[0].count + d.q[1].count, 0);
}

static void at_random_it_is_never_faster_than_described_and_soonest_is_a_bound(void **state)
{
	const struct tn_mix m = side_by_side();

	at_random(&mix);
	at_random(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_alone_take_turns_at_the_read_bandwidth),
		cmocka_unit_test(writes_alone_have_their_own_bandwidth_and_latency),
		cmocka_unit_test(both_together_get_the_mixed_bandwidth_by_their_numbers),
		cmocka_unit_test(mixing_that_is_free_gives_neither_more_than_alone),
		cmocka_unit_test(a_stretch_divides_bandwidth_and_multiplies_latency),
		cmocka_unit_test(a_sync_ends_with_the_writes_before_it),
		cmocka_unit_test(side_by_side_all_of_one_size_end_together),
		cmocka_unit_test(side_by_side_a_small_one_overtakes_and_a_late_one_slows_all),
		cmocka_unit_test(side_by_side_a_sync_takes_no_share_and_waits_for_all_before_it),
		cmocka_unit_test(time_that_goes_back_changes_nothing),
		cmocka_unit_test(the_slowest_of_drives_does_not_overflow),
		cmocka_unit_test(at_random_it_is_never_faster_than_described_and_soonest_is_a_bound),
	};

	return cmocka_run_group_tests_name("drive", tests, NULL, NULL);
}
