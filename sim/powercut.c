/* SPDX-License-Identifier: Apache-2.0 */
/* See powercut.h. */
#include "powercut.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "tn_test.h"

/* How much is tried: shares in percent of the crashes. */
struct plan {
	uint32_t modes; /* crashes at an event */
	uint32_t nested; /* recoveries that are crashed themselves */
	uint32_t again; /* recoveries that go on with the script */
	uint64_t only_event;
	bool full;
};

struct explorer {
	const struct powercut_script *script;
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
	struct medium *clone;
};

static void explore(void *arg, struct medium *disk, uint64_t event);

static void on_recovery_event(void *arg, struct medium *disk, uint64_t event)
{
	struct nested *n = arg;

	if (event == n->at && !n->clone)
		n->clone = disk->ops->copy(disk, event);
}

/*
 * The first recovery is v's; one of its own crashes must lead to the same blocks. Not if a power cut follows a kill: it may
 * take what was never synced.
 */
static bool try_nested(struct explorer *x, struct drive *v, struct medium *clone, bool killed)
{
	enum tn_simdisk_crash mode = (enum tn_simdisk_crash)tn_rng_below(&x->rng, TN_SIMDISK_CRASH_MODES);
	bool same = !killed || mode == TN_SIMDISK_KILL;
	struct drive *w;
	bool ok;

	clone->ops->crash(clone, mode, tn_rng_next(&x->rng));
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
	v->disk->ops->on_event(v->disk, explore, &y);
	for (uint32_t i = 0; ok && i < 25 && !y.error[0]; i++)
		ok = drive_step(v);
	v->disk->ops->on_event(v->disk, NULL, NULL);
	if (y.error[0])
		snprintf(x->error, sizeof(x->error), "after recovery: %.700s", y.error);
	ok = ok && !y.error[0] && drive_crash(v, TN_SIMDISK_TEAR, tn_rng_next(&x->rng));
	x->crashes += y.crashes;
	x->again++;
	return ok;
}

static bool try_crash(struct explorer *x, struct medium *disk, enum tn_simdisk_crash mode, uint64_t seed)
{
	struct nested nested = {0};
	struct medium *clone = disk->ops->copy(disk, seed);
	struct drive *v;
	bool ok;

	clone->ops->crash(clone, mode, seed);
	v = drive_fork(x->drive, clone, seed);
	v->killed_ns = mode == TN_SIMDISK_KILL ? medium_now(clone) : 0;
	if (tn_rng_below(&x->rng, 100) < x->plan.nested) {
		/* Recoveries have few or many events: choose by a falling distribution. */
		nested.at = 1 + tn_rng_below(&x->rng, 4u << tn_rng_below(&x->rng, 5));
		clone->ops->on_event(clone, on_recovery_event, &nested);
	}
	ok = drive_open(v);
	clone->ops->on_event(clone, NULL, NULL);
	ok = ok && drive_verify(v);
	if (ok && nested.clone)
		ok = try_nested(x, v, nested.clone, mode == TN_SIMDISK_KILL);
	if (ok && x->depth == 0 && tn_rng_below(&x->rng, 100) < x->plan.again)
		ok = go_on(x, v);
	if (!ok && v->error[0] && !x->error[0])
		snprintf(x->error, sizeof(x->error), "%s", v->error);
	x->crashes++;
	drive_destroy(v);
	medium_destroy(nested.clone);
	medium_destroy(clone);
	return ok;
}

/* Full: each mode, torn four times. Short: some modes by chance. */
static void explore(void *arg, struct medium *disk, uint64_t event)
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

void powercut_run(const struct powercut_script *script, struct medium *(*make)(uint64_t seed))
{
	const char *only = getenv("TN_SIM_EVENT"), *full = getenv("TN_SIM_FULL");
	struct powercut_script s = *script;
	struct explorer x = {
		.script = &s,
		.plan = {.modes = 2, .nested = 30, .again = 3, .full = full && full[0] == '1'},
	};
	struct medium *disk;
	bool ok;

	s.opts.seed = tn_test_seed() ^ tn_hash64(s.name, strlen(s.name));
	x.plan.only_event = only ? strtoull(only, NULL, 0) : 0;
	x.sample = x.plan.full ? 1 : s.sample;
	tn_rng_seed(&x.script_rng, s.opts.seed);
	disk = make(s.opts.seed);
	x.drive = drive_create(&s.opts, disk);
	disk->ops->on_event(disk, explore, &x);
	ok = drive_open(x.drive) && drive_verify(x.drive);
	if (ok)
		drive_adopt(x.drive);
	for (uint32_t i = 0; ok && !x.error[0] && i < s.steps; i++) {
		if (x.plan.full && i % (s.steps / 10) == 0)
			printf("# %s: step %u of %u, %llu crashes\n", s.name, i, s.steps, (unsigned long long)x.crashes);
		if (s.opts.faulty && i % 10 == 0)
			disk->ops->set_faults(disk, &x.script_rng);
		ok = drive_step(x.drive);
		/* Now and then the script itself loses power and goes on. */
		if (ok && tn_rng_below(&x.script_rng, 60) == 0)
			ok = drive_crash(x.drive, TN_SIMDISK_TEAR, tn_rng_next(&x.script_rng));
	}
	disk->ops->set_faults(disk, NULL);
	ok = ok && !x.error[0] && drive_close(x.drive);
	printf("# %s: %llu events, %llu crashes (%llu twice, %llu went on), %llu saves, %llu removes, %llu flushes, "
	       "%llu drops, %llu opens, %llu starved\n",
	       s.name, (unsigned long long)disk->ops->events(disk), (unsigned long long)x.crashes,
	       (unsigned long long)x.nested, (unsigned long long)x.again, (unsigned long long)x.drive->n.saves,
	       (unsigned long long)x.drive->n.removes, (unsigned long long)x.drive->n.flushes,
	       (unsigned long long)x.drive->n.drops, (unsigned long long)x.drive->n.opens,
	       (unsigned long long)x.drive->n.starved);
	if (!ok || x.error[0])
		fail_msg("%s: TN_SEED=%llu: %s%s", s.name, (unsigned long long)tn_test_seed(), x.error,
			 x.error[0] ? "" : x.drive->error);
	assert_true(x.drive->n.saves > s.steps / 2); /* else the script tests nothing */
	drive_destroy(x.drive);
	medium_destroy(disk);
}
