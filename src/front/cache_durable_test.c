/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tn_save_result and a tn_flush that returned 0 say together: exactly which blocks a crash leaves. On a simulated disk, in
 * every combination of policy, write budget, health and tiers.
 */
#include <errno.h>
#include <string.h>

#include "core/core.h"
#include "cache_rig.h"
#include "ioengine/faulty_rig.h"

#define PER_BLOCK 2u
#define NPAGES 128u
#define AT_ONCE 8u /* blocks of a save */
#define NEW 40u	   /* blocks that are saved while the disk is as it is */
#define OLD 160u   /* before: more than the disk holds */
#define HOST_BYTES (2u << 20)
#define NOT_SET (UINT32_MAX - 1) /* of durability_ms: its default */

/* What is known of the blocks that were saved last, 1 .. NEW. */
struct known {
	uint8_t saved[NEW + 1];	   /* enum tn_saved, of the last save */
	bool on_disk[NEW + 1];	   /* it arrived there, ... */
	bool evicted[NEW + 1];	   /* ... and left again */
	bool gave_way[NEW + 1];	   /* it left host memory */
	uint64_t cursor;
	int told; /* the first error of a flush */
};

static struct rig *rig_up(const char *policy, uint32_t ndirs, uint64_t host_bytes)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.ndirs = ndirs;
	o.cache.disk_bytes = ndirs ? o.cache.disk_bytes : 0;
	o.cache.host_bytes = host_bytes;
	o.cache.policy = policy;
	o.npages = NPAGES;
	o.faulty = true;
	return rig_start(&o);
}

/* Blocks id .. id + AT_ONCE - 1, a prompt of its own. */
static void save(struct rig *r, uint64_t id, uint8_t *outcome, struct tn_save_result *res)
{
	struct tn_save_opts o;
	struct tn_save *s;

	tn_save_opts_init(&o);
	o.outcome = outcome;
	s = rig_save_begin(r->s, id, AT_ONCE, 0, &o);
	rig_save_give(r->s, s);
	*res = rig_save_end(r->s, s);
	assert_int_equal(res->stored + res->existing + res->host_only + res->rejected + res->failed, AT_ONCE);
}

static void power_cut(struct rig *r)
{
	rig_power_off(r);
	rig_run(r, RIG_SECOND);
	r->o.cache.read_only = false;
	rig_crashed(r, TN_SIMDISK_DROP, 1);
}

static void watch(struct rig *r, struct known *k)
{
	struct tn_block_event e[64];
	long n;

	while ((n = tn_cache_events(r->cache, &k->cursor, e, 64)) > 0)
		for (long i = 0; i < n; i++) {
			uint64_t id = e[i].key.word[1];

			if (id > NEW)
				continue;
			if (e[i].tier == TN_TIER_HOST) {
				k->gave_way[id] = e[i].kind == TN_EVENT_REMOVED;
			} else {
				k->on_disk[id] |= e[i].kind == TN_EVENT_STORED;
				k->evicted[id] = e[i].kind == TN_EVENT_REMOVED;
			}
		}
	assert_true(n >= 0);
}

static void save_new(struct rig *r, struct known *k, int *error)
{
	struct tn_save_result res;
	uint32_t n[TN_SAVED_KINDS];

	for (uint64_t id = 1; id <= NEW; id += AT_ONCE) {
		save(r, id, &k->saved[id], &res);
		memset(n, 0, sizeof(n));
		for (uint32_t i = 0; i < AT_ONCE; i++)
			n[k->saved[id + i]]++;
		assert_int_equal(n[TN_SAVED_NOT], 0);
		assert_int_equal(n[TN_SAVED_STORED], res.stored);
		assert_int_equal(n[TN_SAVED_EXISTING], res.existing);
		assert_int_equal(n[TN_SAVED_HOST_ONLY], res.host_only);
		assert_int_equal(n[TN_SAVED_REJECTED], res.rejected);
		assert_int_equal(n[TN_SAVED_FAILED], res.failed);
		*error = res.error;
	}
}

static void flush_and_note(struct rig *r, struct known *k)
{
	int rc = rig_flush(r);

	if (!k->told)
		k->told = rc;
}

static bool survives(const struct known *k, uint64_t id)
{
	if (k->saved[id] != TN_SAVED_STORED && k->saved[id] != TN_SAVED_EXISTING)
		return false;
	if (!k->on_disk[id] && k->gave_way[id]) { /* it never got there: a flush has said so */
		assert_int_not_equal(k->told, 0);
		return false;
	}
	return !k->evicted[id];
}

/* The last flush returned 0. */
static void check_after_a_crash(struct rig *r, struct known *k, const char *what)
{
	watch(r, k);
	power_cut(r);
	for (uint64_t id = 1; id <= NEW; id++)
		if (rig_load(r->s, id, 1) != survives(k, id))
			fail_msg("%s: block %u, outcome %u, evicted %d: is %sthere after the crash", what, (unsigned)id,
				 k->saved[id], k->evicted[id], survives(k, id) ? "not " : "");
}

enum tiers { DISK_ONLY, BOTH, HOST_ONLY, READ_ONLY, TIERS };
enum health { HEALTHY, NO_WRITES, OFFLINE, FULL, HEALTHS };

static const char *const tiers_text[] = {"disk only", "both", "host only", "read-only"};
static const char *const health_text[] = {"healthy", "takes no writes", "offline", "full"};

static void make_sick(struct rig *r, enum health health)
{
	struct tn_fault f[3] = {{.kind = TN_FAULT_ENOSPC, .op = TN_IO_WRITE, .count = UINT64_MAX},
				{.kind = TN_FAULT_EIO, .op = TN_IO_READ, .count = UINT64_MAX},
				{.kind = TN_FAULT_EIO, .op = TN_IO_SYNC, .count = UINT64_MAX}};

	if (health == OFFLINE)
		f[0].kind = TN_FAULT_EIO;
	if (health == OFFLINE || health == NO_WRITES)
		rig_fault(r, f, health == OFFLINE ? 3 : 1);
}

/* What a save must say whose outcome admission alone decides. */
static void check_outcomes(const struct known *k, enum tiers tiers, bool spent, enum health health, int error)
{
	bool host = tiers != DISK_ONLY;
	int why = tiers == READ_ONLY ? -EROFS : spent && tiers != HOST_ONLY ? -EDQUOT : 0;

	if (tiers != HOST_ONLY && tiers != READ_ONLY && !(spent && health == HEALTHY))
		return;
	assert_int_equal(error, why);
	for (uint64_t id = 1; id <= NEW; id++)
		assert_int_equal(k->saved[id], host ? TN_SAVED_HOST_ONLY : TN_SAVED_REJECTED);
}

static void combination(const char *policy, enum tiers tiers, bool spent, enum health health, bool again)
{
	struct rig *r = rig_up(policy, tiers == HOST_ONLY ? 0 : 1, tiers == HOST_ONLY ? HOST_BYTES : 0);
	struct known k = {.cursor = 0};
	struct tn_save_result res;
	char what[128];
	int error = 0;

	snprintf(what, sizeof(what), "%s, %s, budget %s, %s%s", policy, tiers_text[tiers], spent ? "spent" : "none",
		 health_text[health], again ? ", saved twice" : "");
	for (uint64_t id = NEW + 1; id <= (health == FULL ? OLD : 2 * NEW) && tiers != HOST_ONLY; id += AT_ONCE)
		save(r, id, NULL, &res);
	r->o.cache.host_bytes = tiers == DISK_ONLY ? 0 : HOST_BYTES;
	r->o.cache.write_bytes_per_day = spent;
	r->o.cache.read_only = tiers == READ_ONLY;
	rig_reopen(r);
	tn_cache_events(r->cache, &k.cursor, NULL, 0);
	make_sick(r, health);
	save_new(r, &k, &error);
	if (again) { /* what is there by now, and what did not get in before */
		rig_run(r, 2 * RIG_SECOND);
		save_new(r, &k, &error);
	}
	check_outcomes(&k, tiers, spent, health, error);
	watch(r, &k);
	flush_and_note(r, &k);
	if (tiers == READ_ONLY)
		assert_int_equal(k.told, -EROFS);
	if (k.told && tiers != READ_ONLY) {
		rig_calm(r);
		rig_run(r, 60 * RIG_SECOND);
		watch(r, &k);
		for (int i = 0; i < 2 && rig_flush(r) != 0; i++)
			assert_int_not_equal(i, 1);
	}
	check_after_a_crash(r, &k, what);
	rig_tear_down(r);
}

static void a_save_and_a_flush_say_exactly_what_survives(void **state)
{
	static const char *const policies[] = {"default", "lru", "fifo", "s3fifo"};

	for (int p = 0; p < 4; p++)
		for (int t = 0; t < TIERS; t++)
			for (int spent = 0; spent < 2; spent++)
				for (int h = 0; h < 2 * HEALTHS; h++)
					combination(policies[p], (enum tiers)t, spent, (enum health)(h / 2), h % 2);
}

/* ---- single rules --------------------------------------------------------------------------------------- */

static void set_quota(struct rig *r, uint64_t blocks)
{
	r->s->space->quota.bytes[TN_TIER_DISK] = blocks * r->s->space->shape.slot_bytes;
}

static struct tn_save *begin_save(struct rig *r, uint64_t id, uint8_t *outcome)
{
	struct tn_save_opts o;
	struct tn_save *s;

	tn_save_opts_init(&o);
	o.outcome = outcome;
	s = rig_save_begin(r->s, id, 1, (uint32_t)id * PER_BLOCK, &o);
	rig_turn(r, 1); /* admission has decided */
	return s;
}

static void end_save(struct rig *r, struct tn_save *s)
{
	rig_save_give(r->s, s);
	rig_save_end(r->s, s);
}

static uint8_t save_one(struct rig *r, uint64_t id)
{
	uint8_t outcome;

	end_save(r, begin_save(r, id, &outcome));
	return outcome;
}

static void a_block_kept_in_host_memory_is_offered_to_the_disk_again(void **state)
{
	struct rig *r = rig_up("lru", 1, HOST_BYTES);

	set_quota(r, 0);
	assert_int_equal(save_one(r, 1), TN_SAVED_HOST_ONLY);
	assert_int_equal(save_one(r, 1), TN_SAVED_HOST_ONLY);
	assert_int_equal(r->cache->c.host_only_blocks, 2);
	set_quota(r, 100);
	assert_int_equal(save_one(r, 1), TN_SAVED_STORED);
	assert_int_equal(save_one(r, 1), TN_SAVED_EXISTING);
	assert_int_equal(rig_flush(r), 0);
	power_cut(r);
	assert_true(rig_load(r->s, 1, 1));
	rig_tear_down(r);
}

/* The first save of the block is kept off the disk, the second one is let in before the first one ends. */
static void of_two_saves_at_once_the_one_that_was_let_in_counts(void **state)
{
	for (int straight = 0; straight < 2; straight++) {
		struct rig *r = rig_up("lru", 1, HOST_BYTES);
		struct tn_save *s[2];
		uint8_t outcome[2];

		set_quota(r, 0);
		s[0] = begin_save(r, 1, &outcome[0]);
		set_quota(r, 100);
		r->s->space->cls[TN_TIER_HOST] = straight ? TN_CLASS_NONE : 0; /* or from the pages to disk */
		s[1] = begin_save(r, 1, &outcome[1]);
		r->s->space->cls[TN_TIER_HOST] = 0;
		end_save(r, s[0]);
		end_save(r, s[1]);
		assert_int_equal(outcome[0], TN_SAVED_HOST_ONLY);
		assert_int_equal(outcome[1], TN_SAVED_STORED);
		assert_int_equal(rig_flush(r), 0);
		rig_check_quiet(r);
		power_cut(r);
		assert_true(rig_load(r->s, 1, 1));
		rig_tear_down(r);
	}
}

/* One block fills the quota and is pinned when the next one, which was let in, is to go to disk. */
static void what_was_let_in_and_finds_no_room_is_an_error_of_every_flush_until_it_does(void **state)
{
	struct rig *r = rig_up("lru", 1, HOST_BYTES);
	uint64_t pin;

	set_quota(r, 1);
	assert_int_equal(save_one(r, 1), TN_SAVED_STORED);
	assert_int_equal(rig_flush(r), 0);
	pin = rig_pin(r->s, 1, 1);
	assert_int_equal(save_one(r, 2), TN_SAVED_STORED);
	for (int i = 0; i < 3; i++)
		assert_int_equal(rig_flush(r), -ENOSPC);
	assert_int_equal(save_one(r, 2), TN_SAVED_EXISTING); /* it was not given up */
	assert_int_equal(rig_flush(r), -ENOSPC);
	rig_unpin(r->s, pin);
	assert_int_equal(rig_flush(r), 0);
	power_cut(r);
	assert_true(rig_load(r->s, 2, 1));
	rig_tear_down(r);
}

static void what_gives_way_before_it_could_be_written_is_told_by_the_next_flush(void **state)
{
	struct rig *r = rig_up("lru", 1, HOST_BYTES);
	struct tn_save_result res;
	uint64_t pin;

	set_quota(r, 1);
	assert_int_equal(save_one(r, 1), TN_SAVED_STORED);
	assert_int_equal(rig_flush(r), 0);
	pin = rig_pin(r->s, 1, 1);
	assert_int_equal(save_one(r, 2), TN_SAVED_STORED);
	rig_run(r, RIG_SECOND);
	set_quota(r, 0);
	for (uint64_t id = 100; id < 200; id += AT_ONCE)
		save(r, id, NULL, &res);
	set_quota(r, 100);
	assert_int_equal(r->cache->c.offload_lost_blocks, 1);
	assert_int_equal(rig_flush(r), -ENOSPC);
	assert_int_equal(rig_flush(r), 0);
	rig_unpin(r->s, pin);
	rig_tear_down(r);
}

static void a_flush_makes_the_rest_durable_when_one_block_has_no_room(void **state)
{
	struct rig *r = rig_up("lru", 1, HOST_BYTES);
	uint64_t pin, other;

	set_quota(r, 1);
	assert_int_equal(save_one(r, 1), TN_SAVED_STORED);
	assert_int_equal(rig_flush(r), 0);
	pin = rig_pin(r->s, 1, 1);
	assert_int_equal(save_one(r, 2), TN_SAVED_STORED);
	rig_run(r, RIG_SECOND);
	r->s->space->cls[TN_TIER_HOST] = TN_CLASS_NONE;
	set_quota(r, 2);
	assert_int_equal(save_one(r, 3), TN_SAVED_STORED);
	other = rig_pin(r->s, 3, 1);
	assert_int_equal(rig_flush(r), -ENOSPC);
	rig_unpin(r->s, pin);
	rig_unpin(r->s, other);
	power_cut(r);
	assert_true(rig_load(r->s, 3, 1));
	rig_tear_down(r);
}

static void nothing_is_evicted_for_a_block_that_the_budget_keeps_off_the_disk(void **state)
{
	struct rig *r = rig_up("lru", 1, 0);
	struct tn_save_result res;

	for (uint64_t id = 1; id <= OLD; id += AT_ONCE)
		save(r, id, NULL, &res);
	r->o.cache.write_bytes_per_day = 1;
	rig_reopen(r);
	for (uint64_t id = 1000; id <= 1000 + NEW; id += AT_ONCE)
		save(r, id, NULL, &res);
	assert_int_equal(res.rejected, AT_ONCE);
	assert_int_equal(res.error, -EDQUOT);
	assert_int_equal(r->cache->row.durable->evicted, 0);
	rig_tear_down(r);
}

static void of_an_aborted_save_no_block_is_anything(void **state)
{
	struct rig *r = rig_up("lru", 1, HOST_BYTES);
	struct tn_save_result res;
	struct tn_save *s;
	uint8_t outcome = 99;

	set_quota(r, 0);
	s = begin_save(r, 1, &outcome);
	assert_int_equal(tn_save_abort(s), 0);
	res = rig_save_end(r->s, s);
	assert_int_equal(outcome, TN_SAVED_NOT);
	assert_int_equal(res.stored + res.existing + res.host_only + res.rejected + res.failed, 0);
	assert_int_equal(res.error, 0);
	rig_tear_down(r);
}

/* How many blocks of a save are there after a power cut, or a kill, that comes so long after it, without any flush. */
static uint32_t left_after(enum tn_simdisk_crash mode, uint64_t host_bytes, uint32_t durability_ms, uint64_t after_ns)
{
	struct rig *r = rig_up("lru", 1, host_bytes);
	struct tn_save_result res;
	uint8_t outcome[AT_ONCE];
	uint32_t n = 0;

	if (durability_ms != NOT_SET)
		r->o.cache.durability_ms = durability_ms;
	rig_reopen(r);
	save(r, 1, outcome, &res);
	assert_int_equal(res.stored, AT_ONCE);
	rig_run(r, after_ns);
	rig_power_cut(r, mode);
	for (uint64_t id = 1; id <= AT_ONCE; id++)
		n += rig_load(r->s, id, 1);
	rig_tear_down(r);
	return n;
}

static void what_is_stored_is_durable_as_durability_ms_says(void **state)
{
	static const uint64_t now = 1, tenth = RIG_SECOND / 10, second = RIG_SECOND + RIG_SECOND / 10;

	assert_int_equal(left_after(TN_SIMDISK_DROP, 0, 0, now), AT_ONCE);
	assert_int_equal(left_after(TN_SIMDISK_DROP, HOST_BYTES, 0, now), AT_ONCE);
	assert_int_equal(left_after(TN_SIMDISK_DROP, 0, NOT_SET, now), 0);
	assert_int_equal(left_after(TN_SIMDISK_DROP, 0, NOT_SET, second), AT_ONCE);
	assert_int_equal(left_after(TN_SIMDISK_DROP, 0, 200, 2 * tenth + RIG_MS * 10), AT_ONCE);
	assert_int_equal(left_after(TN_SIMDISK_DROP, 0, UINT32_MAX, 10 * second), 0);
	/* A kill does not ask for it. */
	assert_int_equal(left_after(TN_SIMDISK_KILL, 0, UINT32_MAX, tenth), AT_ONCE);
	assert_int_equal(left_after(TN_SIMDISK_KILL, 0, NOT_SET, tenth), AT_ONCE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_kept_in_host_memory_is_offered_to_the_disk_again),
		cmocka_unit_test(of_two_saves_at_once_the_one_that_was_let_in_counts),
		cmocka_unit_test(what_was_let_in_and_finds_no_room_is_an_error_of_every_flush_until_it_does),
		cmocka_unit_test(what_gives_way_before_it_could_be_written_is_told_by_the_next_flush),
		cmocka_unit_test(a_flush_makes_the_rest_durable_when_one_block_has_no_room),
		cmocka_unit_test(nothing_is_evicted_for_a_block_that_the_budget_keeps_off_the_disk),
		cmocka_unit_test(of_an_aborted_save_no_block_is_anything),
		cmocka_unit_test(what_is_stored_is_durable_as_durability_ms_says),
		cmocka_unit_test(a_save_and_a_flush_say_exactly_what_survives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
