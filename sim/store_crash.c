/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block store against power cuts and kills: a script of saves, removals, flushes, drops, checkpoints, closes and
 * opens runs on the simulated disk; at its writes and syncs the disk is cloned, the clone crashed
 * in several ways and opened again, and what it finds is held against the oracle (storedrive.h). Some
 * recoveries are cut short by a second crash, some go on with the script.
 *
 * The short form samples; TN_SIM_FULL=1 takes every event and every mode (400,000 crashes). A failure names its seed and event:
 * TN_SEED=<seed> TN_SIM_EVENT=<event> repeats that one alone (with TN_SIM_FULL=1 if it was found so).
 */
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "storedrive.h"
#include "tn_test.h"

struct script {
	const char *name;
	struct drive_opts opts;
	uint32_t steps;
	uint32_t sample; /* of this many events one is tried in the short form */
};

/* How much is tried: shares in percent of the crashes. */
struct plan {
	uint32_t modes; /* crashes at an event */
	uint32_t nested; /* recoveries that are crashed themselves */
	uint32_t again; /* recoveries that go on with the script */
	uint64_t only_event;
	bool full;
};

struct explorer {
	const struct script *script;
	struct plan plan;
	struct drive *drive;
	struct tn_rng rng; /* seeded anew at each event, so that one event can be repeated alone */
	struct tn_rng script_rng;
	uint32_t sample;
	uint32_t depth; /* 1: on the way after a recovery */
	uint64_t nonce; /* 0 at depth 0 */
	uint64_t crashes, nested, again;
	char error[768];
};

/* A crash during a recovery: at event `at` of it the disk is cloned. */
struct nested {
	uint64_t at;
	struct tn_simdisk *clone;
};

static void explore(void *arg, const struct tn_simdisk *disk, uint64_t event);

static void on_recovery_event(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct nested *n = arg;

	if (event == n->at && !n->clone)
		assert_int_equal(tn_simdisk_clone(disk, event, &n->clone), 0);
}

/*
 * The first recovery is v's; one of its own crashes must lead to the same blocks. Not if a power cut follows a kill: it may
 * take what was never synced.
 */
static bool try_nested(struct explorer *x, struct drive *v, struct tn_simdisk *clone, bool killed)
{
	enum tn_simdisk_crash mode = (enum tn_simdisk_crash)tn_rng_below(&x->rng, TN_SIMDISK_CRASH_MODES);
	bool same = !killed || mode == TN_SIMDISK_KILL;
	struct drive *w;
	bool ok;

	tn_simdisk_crash(clone, mode, tn_rng_next(&x->rng));
	w = drive_fork(x->drive, clone, tn_rng_next(&x->rng));
	w->killed_ns = same ? v->killed_ns : 0;
	if (!same)
		drive_outlived(w);
	ok = drive_open(w) && drive_verify(w) && (!same || drive_same_found(w, v));
	if (!ok)
		snprintf(x->error, sizeof(x->error), "crashed again (%s) in recovery: %s", tn_simdisk_crash_name(mode),
			 w->error);
	drive_destroy(w);
	x->nested++;
	return ok;
}

/* Goes on with the script after a recovery, crashing now and then. */
static bool go_on(struct explorer *x, struct drive *v)
{
	struct explorer y = {.script = x->script, .plan = x->plan, .drive = v, .depth = x->depth + 1};
	bool ok = true;

	y.sample = 60;
	y.plan.only_event = 0;
	y.nonce = tn_rng_next(&x->rng);
	drive_adopt(v);
	tn_simdisk_on_event(v->disk, explore, &y);
	for (uint32_t i = 0; ok && i < 25 && !y.error[0]; i++)
		ok = drive_step(v);
	tn_simdisk_on_event(v->disk, NULL, NULL);
	if (y.error[0])
		snprintf(x->error, sizeof(x->error), "after recovery: %.700s", y.error);
	ok = ok && !y.error[0] && drive_crash(v, TN_SIMDISK_TEAR, tn_rng_next(&x->rng));
	x->crashes += y.crashes;
	x->again++;
	return ok;
}

static bool try_crash(struct explorer *x, const struct tn_simdisk *disk, enum tn_simdisk_crash mode, uint64_t seed)
{
	struct nested nested = {0};
	struct tn_simdisk *clone;
	struct drive *v;
	bool ok;

	assert_int_equal(tn_simdisk_clone(disk, seed, &clone), 0);
	tn_simdisk_crash(clone, mode, seed);
	v = drive_fork(x->drive, clone, seed);
	v->killed_ns = mode == TN_SIMDISK_KILL ? tn_now_ns(tn_simdisk_clock(clone)) : 0;
	if (tn_rng_below(&x->rng, 100) < x->plan.nested) {
		/* Recoveries have few or many events: choose by a falling distribution. */
		nested.at = 1 + tn_rng_below(&x->rng, 4u << tn_rng_below(&x->rng, 5));
		tn_simdisk_on_event(clone, on_recovery_event, &nested);
	}
	ok = drive_open(v);
	tn_simdisk_on_event(clone, NULL, NULL);
	ok = ok && drive_verify(v);
	if (ok && nested.clone)
		ok = try_nested(x, v, nested.clone, mode == TN_SIMDISK_KILL);
	if (ok && x->depth == 0 && tn_rng_below(&x->rng, 100) < x->plan.again)
		ok = go_on(x, v);
	if (!ok && v->error[0] && !x->error[0])
		snprintf(x->error, sizeof(x->error), "%s", v->error);
	x->crashes++;
	drive_destroy(v);
	tn_simdisk_destroy(nested.clone);
	tn_simdisk_destroy(clone);
	return ok;
}

/* Full: each mode, torn four times. Short: some modes by chance. */
static void explore(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct explorer *x = arg;
	uint32_t n = x->plan.full && x->depth == 0 ? TN_SIMDISK_CRASH_MODES + 3 : x->plan.modes;

	if (x->error[0] || (x->plan.only_event && event != x->plan.only_event))
		return;
	tn_rng_seed(&x->rng, tn_hash64(&(uint64_t[3]){x->script->opts.seed, x->nonce, event}, 24));
	if (tn_rng_below(&x->rng, x->sample) && !x->plan.only_event)
		return;
	for (uint32_t i = 0; i < n && !x->error[0]; i++) {
		enum tn_simdisk_crash mode = i < TN_SIMDISK_CRASH_MODES ? (enum tn_simdisk_crash)i : TN_SIMDISK_TEAR;
		char text[600];

		if (n <= x->plan.modes)
			mode = (enum tn_simdisk_crash)tn_rng_below(&x->rng, TN_SIMDISK_CRASH_MODES);
		if (try_crash(x, disk, mode, tn_rng_next(&x->rng)))
			continue;
		snprintf(text, sizeof(text), "%.590s", x->error);
		snprintf(x->error, sizeof(x->error), "event %llu, %s: %s", (unsigned long long)event,
			 tn_simdisk_crash_name(mode), text[0] ? text : "failed");
	}
}

/* Errors come and go in spells; a flush that failed promises nothing, and later ones must be honest. */
static void change_faults(struct explorer *x, struct tn_simdisk *disk)
{
	struct tn_simdisk_fault f[2] = {
		{.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX, .percent = 1 + tn_rng_below(&x->script_rng, 20)},
		{.kind = TN_SIMDISK_EIO, .op = TN_IO_SYNC, .count = UINT64_MAX, .percent = 1 + tn_rng_below(&x->script_rng, 50)},
	};

	if (tn_rng_below(&x->script_rng, 3) == 0)
		f[0].kind = TN_SIMDISK_ENOSPC;
	if (tn_rng_below(&x->script_rng, 2) == 0)
		f[1].kind = TN_SIMDISK_SYNC_LOST;
	assert_int_equal(tn_simdisk_set_faults(disk, f, tn_rng_below(&x->script_rng, 3) ? 0 : 1 + tn_rng_below(&x->script_rng, 2)), 0);
}

static void run_script(const struct script *script)
{
	const char *only = getenv("TN_SIM_EVENT"), *full = getenv("TN_SIM_FULL");
	struct script s = *script;
	struct explorer x = {
		.script = &s,
		.plan = {.modes = 2, .nested = 30, .again = 3, .full = full && full[0] == '1'},
	};
	struct tn_simdisk *disk;
	bool ok;

	s.opts.seed = tn_test_seed() ^ tn_hash64(s.name, strlen(s.name));
	x.plan.only_event = only ? strtoull(only, NULL, 0) : 0;
	x.sample = x.plan.full ? 1 : s.sample;
	tn_rng_seed(&x.script_rng, s.opts.seed);
	assert_int_equal(tn_simdisk_create(&(struct tn_simdisk_opts){.seed = s.opts.seed, .submit_short_percent = 3}, &disk), 0);
	x.drive = drive_create(&s.opts, disk);
	tn_simdisk_on_event(disk, explore, &x);
	ok = drive_open(x.drive) && drive_verify(x.drive);
	if (ok)
		drive_adopt(x.drive);
	for (uint32_t i = 0; ok && !x.error[0] && i < s.steps; i++) {
		if (x.plan.full && i % (s.steps / 10) == 0)
			printf("# %s: step %u of %u, %llu crashes\n", s.name, i, s.steps, (unsigned long long)x.crashes);
		if (s.opts.faulty && i % 10 == 0)
			change_faults(&x, disk);
		ok = drive_step(x.drive);
		/* Now and then the script itself loses power and goes on. */
		if (ok && tn_rng_below(&x.script_rng, 60) == 0)
			ok = drive_crash(x.drive, TN_SIMDISK_TEAR, tn_rng_next(&x.script_rng));
	}
	assert_int_equal(tn_simdisk_set_faults(disk, NULL, 0), 0);
	ok = ok && !x.error[0] && drive_close(x.drive);
	printf("# %s: %llu events, %llu crashes (%llu twice, %llu went on), %llu saves, %llu removes, %llu flushes, "
	       "%llu drops, %llu opens, %llu starved\n",
	       s.name, (unsigned long long)tn_simdisk_events(disk), (unsigned long long)x.crashes,
	       (unsigned long long)x.nested, (unsigned long long)x.again, (unsigned long long)x.drive->n.saves,
	       (unsigned long long)x.drive->n.removes, (unsigned long long)x.drive->n.flushes,
	       (unsigned long long)x.drive->n.drops, (unsigned long long)x.drive->n.opens,
	       (unsigned long long)x.drive->n.starved);
	if (!ok || x.error[0])
		fail_msg("%s: TN_SEED=%llu: %s%s", s.name, (unsigned long long)tn_test_seed(), x.error,
			 x.error[0] ? "" : x.drive->error);
	assert_true(x.drive->n.saves > s.steps / 2); /* else the script tests nothing */
	drive_destroy(x.drive);
	tn_simdisk_destroy(disk);
}

static void every_crash_of_one_device_recovers_what_was_durable(void **state)
{
	run_script(&(struct script){
		.name = "one device",
		.opts = {.ndevices = 1, .capacity_bytes = 4u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 120, .verify_percent = 10},
		.steps = 600,
		.sample = 8,
	});
}

static void every_crash_of_two_devices_recovers_what_was_durable(void **state)
{
	run_script(&(struct script){
		.name = "two devices",
		.opts = {.ndevices = 2, .capacity_bytes = 6u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 150, .verify_percent = 10, .prepare = true},
		.steps = 600,
		.sample = 10,
	});
}

static void every_crash_with_headers_of_two_pages_recovers_what_was_durable(void **state)
{
	run_script(&(struct script){
		.name = "big headers",
		.opts = {.ndevices = 1, .capacity_bytes = 16u << 20, .segment_bytes = 4u << 20, .log_bytes = 64u << 10, .max_slots = 256,
			 .keys = 60, .verify_percent = 10, .big_percent = 12},
		.steps = 150,
		.sample = 8,
	});
}

static void every_crash_after_failed_writes_and_syncs_recovers_what_was_durable(void **state)
{
	run_script(&(struct script){
		.name = "failing device",
		.opts = {.ndevices = 2, .capacity_bytes = 6u << 20, .segment_bytes = 512u << 10, .log_bytes = 64u << 10,
			 .max_slots = 256, .keys = 150, .verify_percent = 10, .faulty = true},
		.steps = 600,
		.sample = 12,
	});
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
