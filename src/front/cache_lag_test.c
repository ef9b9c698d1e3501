/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long an admitted block lies in host memory, on a simulated disk that is read without a pause: offload_lag_ms, also with a
 * write budget that is used up, and what a power cut leaves if nobody ever flushes.
 */
#include <errno.h>

#include "core/core.h"
#include "cache_rig.h"
#include "store/store_internal.h"
#include "tier/disk/disk.h"

#define PER_BLOCK 2u
#define NPAGES 256u
#define OLD 512u   /* blocks on disk, that are read all the time: many more than host memory has room for */
#define LOADS 5u
#define AT_ONCE 16u /* blocks of a load */
#define BUDGET 20u  /* blocks of writes: an eighth of a day's */

struct reader {
	struct rig *r;
	struct tn_rng rng;
	struct tn_load *load[LOADS];
};

static struct rig *rig_up(uint32_t lag_ms, uint64_t write_ns)
{
	struct rig_opts o = rig_simulated_opts();

	o.segment_bytes = 1u << 20;
	o.cache.disk_bytes = 32u << 20;
	o.cache.host_bytes = 4u << 20;
	o.cache.offload_lag_ms = lag_ms;
	o.write_ns = write_ns;
	o.cache.io_depth = 32;
	o.npages = NPAGES;
	return rig_start(&o);
}

/* Keeps LOADS loads under way, of runs of old blocks at random. */
static void read_on(struct reader *rd)
{
	struct rig *r = rd->r;
	struct tn_key keys[AT_ONCE];
	uint32_t pages[AT_ONCE * PER_BLOCK];

	for (uint32_t k = 0; k < LOADS; k++) {
		uint32_t id = 1 + tn_rng_below(&rd->rng, OLD - AT_ONCE);

		if (rd->load[k] && (tn_load_poll(rd->load[k], 1) == -EAGAIN || tn_load_end(rd->load[k], 0, NULL) == -EBUSY))
			continue;
		rig_keys(id, AT_ONCE, keys);
		for (uint32_t i = 0; i < AT_ONCE * PER_BLOCK; i++)
			pages[i] = NPAGES - 1 - k * AT_ONCE * PER_BLOCK - i;
		assert_int_equal(tn_load_begin(r->s->space, r->s->pool, keys, AT_ONCE, pages, NULL, &rd->load[k]), 0);
	}
}

static void run(struct reader *rd, uint64_t ns)
{
	uint64_t end = rig_now(rd->r) + ns;

	while (rig_now(rd->r) < end) {
		read_on(rd);
		rig_turn(rd->r, 100 * RIG_US);
	}
}

static void stop_reading(struct reader *rd)
{
	for (uint32_t k = 0; k < LOADS; k++)
		if (rd->load[k])
			rig_load_end(rd->r->s, rd->load[k]);
}

static uint8_t save(struct reader *rd, uint64_t id, bool reading)
{
	struct tn_save_opts o;
	struct tn_save *s;
	uint8_t outcome;

	tn_save_opts_init(&o);
	o.outcome = &outcome;
	s = rig_save_begin(rd->r->s, id, 1, 0, &o);
	rig_save_give(rd->r->s, s);
	if (!reading) {
		rig_save_end(rd->r->s, s);
		return outcome;
	}
	while (tn_save_end(s, 1, NULL) == -ETIMEDOUT)
		run(rd, RIG_MS / 4);
	return outcome;
}

/* The old blocks are on disk; nobody reads yet. */
static void begin(struct reader *rd, uint32_t lag_ms)
{
	*rd = (struct reader){.r = rig_up(lag_ms, 0)};
	tn_rng_seed(&rd->rng, tn_test_seed());
	for (uint64_t id = 1; id <= OLD; id += AT_ONCE)
		assert_int_equal(rig_save(rd->r->s, id, AT_ONCE, 0).stored, AT_ONCE);
	rig_until(rd->r, rd->r->cache->row.queues->dirty_slots == 0);
	run(rd, 100 * RIG_MS);
}

/* Saves a block every 20 ms for 1.6 seconds; returns for how long one has waited at most. */
static uint64_t longest_wait(uint32_t lag_ms)
{
	uint64_t longest = 0;
	struct reader rd;

	begin(&rd, lag_ms);
	for (uint64_t id = 1000; id < 1080; id++) {
		uint64_t end = rig_now(rd.r) + 20 * RIG_MS;

		assert_int_equal(save(&rd, id, true), TN_SAVED_STORED);
		while (rig_now(rd.r) < end) {
			uint64_t age = tn_offload_age(&rd.r->cache->offloads, rig_now(rd.r));

			longest = age > longest ? age : longest;
			run(&rd, RIG_MS);
		}
	}
	stop_reading(&rd);
	rig_tear_down(rd.r);
	return longest;
}

static void no_block_waits_longer_than_the_lag_although_loads_never_pause(void **state)
{
	uint64_t tenth = longest_wait(100);

	print_message("# of a lag of 100 ms %llu\n", (unsigned long long)(tenth / RIG_MS));
	assert_true(tenth > 0 && tenth < 100 * RIG_MS);
}

/* The log groups are written within a second. */
static void a_power_cut_without_any_flush_leaves_what_is_older_than_the_lag_and_a_second(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < 2; round++) {
		uint64_t saved_ns[120] = {0}, cut_ns;
		uint32_t n = 60 + tn_rng_below(&rng, 60), older = 0;
		struct reader rd;

		begin(&rd, 100);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(save(&rd, 1000 + i, true), TN_SAVED_STORED);
			saved_ns[i] = rig_now(rd.r);
			run(&rd, tn_rng_below(&rng, 40) * RIG_MS);
		}
		cut_ns = rig_now(rd.r);
		rig_power_off(rd.r);
		stop_reading(&rd);
		rig_run(rd.r, RIG_SECOND);
		rig_crashed(rd.r, TN_SIMDISK_DROP, 1);
		for (uint32_t i = 0; i < n; i++)
			if (saved_ns[i] + 1100 * RIG_MS < cut_ns) {
				older++;
				if (!rig_match(rd.r->s, 1000 + i, 1))
					fail_msg("block %u of %u is gone, %llu ms after its save", i, n,
						 (unsigned long long)((cut_ns - saved_ns[i]) / RIG_MS));
			}
		print_message("# %u of %u blocks were older\n", older, n);
		rig_tear_down(rd.r);
	}
}

/* What was let in has been charged: it goes to disk in time, though nothing else is let in any more. */
static void a_used_up_budget_holds_back_no_block_that_was_let_in(void **state)
{
	uint8_t saved[40];
	uint32_t stored = 0;
	struct reader rd;

	begin(&rd, 100);
	stop_reading(&rd);
	rd.r->o.cache.write_bytes_per_day = 8 * BUDGET * rd.r->s->space->shape.slot_bytes;
	rig_reopen(rd.r);
	rd = (struct reader){.r = rd.r, .rng = rd.rng};
	run(&rd, RIG_SECOND);
	/* Of so small a budget the preparation of a segment, if it was one's turn, took all and more. */
	tn_disk_tier_store(rd.r->cache->row.durable)->budget.left = (int64_t)(BUDGET * rd.r->s->space->shape.slot_bytes);
	for (uint32_t i = 0; i < 40; i++) {
		saved[i] = save(&rd, 1000 + i, true);
		assert_int_not_equal(saved[i], TN_SAVED_FAILED);
		stored += saved[i] == TN_SAVED_STORED;
	}
	print_message("# %u were let in\n", stored);
	assert_in_range(stored, BUDGET / 2, BUDGET);
	run(&rd, 100 * RIG_MS);
	assert_int_equal(rd.r->cache->row.queues->dirty_slots, 0);
	assert_int_equal(rd.r->cache->c.offloaded_blocks, stored);
	run(&rd, 1100 * RIG_MS);
	rig_power_off(rd.r);
	stop_reading(&rd);
	rig_run(rd.r, RIG_SECOND);
	rig_crashed(rd.r, TN_SIMDISK_DROP, 1);
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(rig_match(rd.r->s, 1000 + i, 1), saved[i] == TN_SAVED_STORED);
	rig_tear_down(rd.r);
}

/* Each write takes a tenth of a second. */
static void the_statistics_say_what_waits_and_since_when(void **state)
{
	struct tn_stats st;
	struct reader rd = {.r = rig_up(1000, 100 * RIG_MS)};

	for (uint64_t id = 1; id <= 3; id++)
		assert_int_equal(save(&rd, id, false), TN_SAVED_STORED);
	rig_run(rd.r, 20 * RIG_MS);
	st = rig_stats(rd.r);
	assert_int_equal(st.offload_waiting_blocks, 3);
	assert_int_equal(st.offload_waiting_bytes, 3 * rd.r->s->space->shape.slot_bytes);
	assert_true(st.offload_oldest_ns >= 20 * RIG_MS);
	rig_run(rd.r, 5 * RIG_SECOND);
	st = rig_stats(rd.r);
	assert_int_equal(st.offload_waiting_blocks + st.offload_waiting_bytes + st.offload_oldest_ns, 0);
	rig_tear_down(rd.r);
}

/* The only block that the quota has room for is pinned for a while. */
static void what_found_no_room_is_written_without_a_flush_when_there_is_some(void **state)
{
	struct tn_stats st;
	uint64_t pin;
	struct reader rd = {.r = rig_up(100, 0)};

	rd.r->s->space->quota.bytes[TN_TIER_DISK] = rd.r->s->space->shape.slot_bytes;
	assert_int_equal(save(&rd, 1, false), TN_SAVED_STORED);
	rig_run(rd.r, RIG_SECOND);
	pin = rig_pin(rd.r->s, 1, 1);
	assert_int_equal(save(&rd, 2, false), TN_SAVED_STORED);
	rig_run(rd.r, 20 * RIG_SECOND);
	st = rig_stats(rd.r);
	assert_int_equal(st.offload_failed_blocks, 1);
	rig_unpin(rd.r->s, pin);
	rig_run(rd.r, 6 * RIG_SECOND);
	st = rig_stats(rd.r);
	assert_int_equal(st.offload_failed_blocks, 0);
	assert_int_equal(rd.r->cache->c.offloaded_blocks, 2);
	rig_tear_down(rd.r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_block_waits_longer_than_the_lag_although_loads_never_pause),
		cmocka_unit_test(a_power_cut_without_any_flush_leaves_what_is_older_than_the_lag_and_a_second),
		cmocka_unit_test(a_used_up_budget_holds_back_no_block_that_was_let_in),
		cmocka_unit_test(the_statistics_say_what_waits_and_since_when),
		cmocka_unit_test(what_found_no_room_is_written_without_a_flush_when_there_is_some),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
