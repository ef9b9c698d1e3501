/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offloads that are late, beside reads that never end: what part of a device's time they get, and for how long. The device
 * serves in order what it was given.
 */
#include <string.h>

#include "base/rng.h"
#include "sched/sched_internal.h"
#include "tn_test.h"

#define CHUNK (256u << 10)
#define TRANSFERS 4096u

static const struct tn_mix drive = {.version = 1, .read_bps = 1800000000, .write_bps = 750000000,
				    .mixed_bps = 500000000, .read_latency_ns = MS, .write_latency_ns = MS / 2};

struct device {
	struct tn_sched *s;
	struct tn_sched_load load;
	uint64_t now, free_at;
	struct {
		bool write;
		uint64_t end_ns;
	} t[TRANSFERS]; /* ring, in the order of their ends */
	uint32_t head, n;
	uint64_t wrote[TN_SCHED_WRITERS];
};

static void put(struct device *d, bool write)
{
	uint64_t start = d->free_at > d->now ? d->free_at : d->now;

	assert_true(d->n < TRANSFERS);
	d->free_at = start + ns_of(CHUNK, write ? drive.write_bps : drive.read_bps);
	d->t[(d->head + d->n++) % TRANSFERS] = (__typeof__(d->t[0])){write, d->free_at};
}

/* Reads, saves and offloads ask for as much as there is; then time goes on. */
static void turn(struct device *d)
{
	uint64_t due;

	tn_sched_turn(d->s, d->now);
	while (tn_sched_pick(d->s, d->now))
		while (tn_sched_read(d->s, &d->load, 0, 0, CHUNK, d->now))
			put(d, false);
	for (uint32_t who = TN_SCHED_SAVES; who <= TN_SCHED_OFFLOADS; who++)
		while (tn_sched_write(d->s, who, 0, CHUNK, d->now)) {
			d->wrote[who] += CHUNK;
			put(d, true);
		}
	due = tn_sched_due(d->s);
	d->now = d->n > 0 && d->t[d->head].end_ns < due ? d->t[d->head].end_ns : due;
	for (; d->n > 0 && d->t[d->head].end_ns <= d->now; d->n--, d->head = (d->head + 1) % TRANSFERS)
		if (d->t[d->head].write)
			tn_sched_write_done(d->s, 0, CHUNK, d->now);
		else
			tn_sched_read_done(d->s, 0, CHUNK, d->now);
}

/* The part of ten seconds that writes of each kind have. */
static void shares(struct device *d, bool late, double share[TN_SCHED_WRITERS])
{
	uint64_t from = d->now;

	memset(d->wrote, 0, sizeof(d->wrote));
	tn_sched_late(d->s, late);
	while (d->now < from + 10 * SECOND)
		turn(d);
	for (uint32_t who = 0; who < TN_SCHED_WRITERS; who++)
		share[who] = (double)ns_of(d->wrote[who], drive.write_bps) / (double)(d->now - from);
}

static void late_offloads_get_half_of_the_time_at_most_and_only_as_long_as_they_are_late(void **state)
{
	struct tn_sched_opts o = {.devices = 1, .alloc = &tn_alloc_system};
	struct device d = {.now = SECOND};
	double before[TN_SCHED_WRITERS], late[TN_SCHED_WRITERS], after[TN_SCHED_WRITERS];

	assert_int_equal(tn_sched_create(&o, &d.s), 0);
	tn_sched_device(d.s, 0, &drive);
	d.load = (struct tn_sched_load){.id = 1, .layers = 1, .start_ns = d.now};
	tn_sched_load_add(d.s, &d.load, d.now);
	tn_sched_load_waits(d.s, &d.load, 1);
	shares(&d, false, before);
	shares(&d, true, late);
	shares(&d, false, after);
	print_message("# offloads had %.3f, late %.3f, and again %.3f of the time; saves %.3f, %.3f, %.3f\n",
		      before[TN_SCHED_OFFLOADS], late[TN_SCHED_OFFLOADS], after[TN_SCHED_OFFLOADS], before[TN_SCHED_SAVES],
		      late[TN_SCHED_SAVES], after[TN_SCHED_SAVES]);
	assert_true(before[TN_SCHED_OFFLOADS] < 0.05 && after[TN_SCHED_OFFLOADS] < 0.05);
	assert_true(late[TN_SCHED_OFFLOADS] > 0.2 && late[TN_SCHED_OFFLOADS] < 0.55);
	assert_true(late[TN_SCHED_SAVES] > 0 && late[TN_SCHED_SAVES] < 0.05); /* theirs all the while */
	tn_sched_load_del(d.s, &d.load, d.now, false);
	tn_sched_destroy(d.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_offloads_get_half_of_the_time_at_most_and_only_as_long_as_they_are_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
