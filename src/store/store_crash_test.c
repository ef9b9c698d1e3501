/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts at every write and flush of a script of saves, removes, reuse, drops, checkpoints and
 * reopenings. After each, in each way that unflushed writes can be lost, the store must open; have
 * everything durable and not removed; have nothing that was removed durably; never give wrong bytes;
 * find the same when it is opened once more; and be usable.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

#define KEYS 200u

/* What may be expected of a key when the power goes now. */
struct model {
	uint64_t durable[KEYS]; /* sequence that must be found at least; 0: nothing must */
	uint64_t current[KEYS]; /* sequence of the published block, 0: none */
	bool gone[KEYS]; /* removed durably: must not be found */
	bool removed[KEYS]; /* remove issued, not durable yet */
};

struct crash_run {
	struct rig *rig;
	struct model m;
	uint64_t from_event, crashes, stride;
	uint64_t seed;
	bool armed;
};

static void check_state(struct crash_run *c, struct rig *r, const char *mode, uint64_t event)
{
	for (uint64_t n = 0; n < KEYS; n++) {
		const struct rig_block *b = rig_find(r, n);

		if (c->m.durable[n] > 0 && (!b || b->entry.sequence < c->m.durable[n]))
			fail_msg("event %llu, %s: durable block %llu is lost\n%s", (unsigned long long)event, mode,
				 (unsigned long long)n, r->logs);
		if (c->m.gone[n] && b)
			fail_msg("event %llu, %s: removed block %llu is back\n%s", (unsigned long long)event, mode,
				 (unsigned long long)n, r->logs);
		/* A record is written after its block is durable, and its slot is not reused before the next one is. */
		if (b && rig_read(r, n) != 0)
			fail_msg("event %llu, %s: block %llu is found but cannot be read\n%s", (unsigned long long)event, mode,
				 (unsigned long long)n, r->logs);
	}
}

static uint64_t fingerprint(struct rig *r)
{
	uint64_t h = 0;

	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++)
		if (r->block[i].live)
			h += tn_hash64(&r->block[i].entry.key, 16) ^ r->block[i].entry.sequence * 31 ^ r->block[i].slot;
	return h;
}

static void must_open(struct rig *r, const char *mode, uint64_t event)
{
	if (rig_open(r))
		fail_msg("event %llu, %s: does not open: %s\n%s", (unsigned long long)event, mode, tn_error_last()->text,
			 r->logs);
}

static void crash_once(struct crash_run *c, const struct tn_simdisk *disk, uint64_t event, enum tn_simdisk_crash mode)
{
	const char *name = tn_simdisk_crash_name(mode);
	struct tn_simdisk *clone;
	struct rig *r;
	uint64_t before;

	assert_int_equal(tn_simdisk_clone(disk, c->seed + event, &clone), 0);
	tn_simdisk_crash(clone, mode, c->seed ^ event << 8 ^ mode);
	r = rig_new_on(tn_simdisk_io(clone), tn_simdisk_clock(clone), "a");
	r->disk = clone;
	r->opts.capacity_bytes = c->rig->opts.capacity_bytes;
	must_open(r, name, event);
	check_state(c, r, name, event);
	before = fingerprint(r);
	tn_simdisk_crash(clone, TN_SIMDISK_DROP, event);
	rig_abandon(r);
	must_open(r, name, event);
	if (fingerprint(r) != before)
		fail_msg("event %llu, %s: recovery is not idempotent\n%s", (unsigned long long)event, name, r->logs);
	/* No power cut damages an index. */
	assert_null(strstr(r->logs, "rebuilding"));
	assert_null(strstr(r->logs, "checkpoint is damaged"));
	if (event % 7 == mode % 7) {
		for (uint64_t n = 0; n < KEYS; n++)
			if (rig_find(r, n) && n % 2)
				rig_remove(r, n);
		assert_int_equal(rig_flush(r), 0);
		assert_true(rig_save(r, 1) >= 0);
		assert_int_equal(rig_close(r), 0);
		must_open(r, name, event);
		assert_int_equal(rig_read(r, 1), 0);
	}
	rig_abandon(r);
	rig_free(r);
	c->crashes++;
}

static void on_event(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct crash_run *c = arg;

	if (!c->armed || event % c->stride != 0)
		return;
	c->armed = false;
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++)
		crash_once(c, disk, event, (enum tn_simdisk_crash)mode);
	c->armed = true;
}

/* ---- the script ------------------------------------------------------------------------------------------------ */

static void save(struct crash_run *c, uint64_t n)
{
	int cookie;

	if (rig_find(c->rig, n))
		return;
	/* From here on the key may be found again. */
	c->m.gone[n] = false;
	cookie = rig_save(c->rig, n);
	if (cookie >= 0)
		c->m.current[n] = c->rig->block[cookie].entry.sequence;
}

static void forget(struct crash_run *c, uint64_t n)
{
	if (!rig_find(c->rig, n))
		return;
	c->m.durable[n] = c->m.current[n] = 0;
	c->m.removed[n] = true;
	rig_remove(c->rig, n);
}

static void settle(struct crash_run *c)
{
	for (uint64_t n = 0; n < KEYS; n++) {
		c->m.durable[n] = c->m.current[n];
		c->m.gone[n] = c->m.removed[n] && c->m.current[n] == 0;
		c->m.removed[n] = false;
	}
}

static void flush(struct crash_run *c)
{
	if (rig_flush(c->rig) == 0)
		settle(c);
}

static void drop(struct crash_run *c)
{
	memset(c->m.durable, 0, sizeof(c->m.durable));
	for (uint64_t n = 0; n < KEYS; n++)
		c->m.removed[n] = c->m.removed[n] || c->m.current[n] > 0;
	memset(c->m.current, 0, sizeof(c->m.current));
	assert_int_equal(tn_store_space_drop(c->rig->store, c->rig->space), 0);
	assert_int_equal(rig_flush(c->rig), 0);
	settle(c);
	for (uint64_t n = 0; n < KEYS; n++)
		if (rig_find(c->rig, n))
			rig_remove(c->rig, n);
}

static void reopen(struct crash_run *c)
{
	assert_int_equal(rig_close(c->rig), 0);
	settle(c);
	assert_int_equal(rig_open(c->rig), 0);
}

static void script(struct crash_run *c, unsigned rounds)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, c->seed);
	for (unsigned i = 0; i < rounds; i++) {
		unsigned n = 1 + tn_rng_below(&rng, 5);

		for (unsigned k = 0; k < n; k++)
			save(c, tn_rng_below(&rng, KEYS));
		if (rig_live(c->rig) > 60 || tn_rng_below(&rng, 3) == 0)
			for (unsigned k = 0; k < 40; k++)
				forget(c, tn_rng_below(&rng, KEYS));
		if (tn_rng_below(&rng, 2) == 0)
			flush(c);
		else
			rig_step(c->rig, tn_rng_below(&rng, 12));
		if (tn_rng_below(&rng, 25) == 0)
			drop(c);
		if (tn_rng_below(&rng, 20) == 0)
			reopen(c);
	}
}

static void run(uint64_t seed, unsigned rounds, uint64_t stride)
{
	struct crash_run *c = calloc(1, sizeof(*c));

	c->seed = seed;
	c->stride = stride;
	c->rig = rig_new(seed);
	tn_simdisk_on_event(c->rig->disk, on_event, c);
	c->armed = true;
	assert_int_equal(rig_open(c->rig), 0);
	script(c, rounds);
	c->armed = false;
	assert_true(c->crashes > 100);
	printf("# %llu crashes at %llu events, %llu bytes of log\n", (unsigned long long)c->crashes,
	       (unsigned long long)tn_simdisk_events(c->rig->disk), (unsigned long long)c->rig->store->dev[0].log.next.position);
	rig_free(c->rig);
	free(c);
}

static void a_crash_at_every_event_of_a_short_life_loses_nothing_durable(void **state)
{
	run(tn_test_seed(), 25, 1);
}

static void a_crash_at_some_events_of_a_long_life_loses_nothing_durable(void **state)
{
	run(tn_test_seed() + 1, 400, 13);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_crash_at_every_event_of_a_short_life_loses_nothing_durable),
		cmocka_unit_test(a_crash_at_some_events_of_a_long_life_loses_nothing_durable),
	};

	return cmocka_run_group_tests_name("store-crash", tests, NULL, NULL);
}
