/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long an admitted block lies in host memory, on a simulated disk that is read without a pause: offload_lag_ms, also with a
 * write budget that is used up, and what a power cut leaves if nobody ever flushes.
 */
#include <errno.h>

#include "cache_sim_rig.h"
#include "store/store_internal.h"
#include "tn_test.h"

#define PER_BLOCK 2u
#define NPAGES 256u
#define OLD 512u   /* blocks on disk, that are read all the time: many more than host memory has room for */
#define LOADS 5u
#define AT_ONCE 16u /* blocks of a load */
#define BUDGET 20u  /* blocks of writes: an eighth of a day's */

struct reader {
	struct crig *r;
	struct tn_rng rng;
	struct tn_load *load[LOADS];
};

static struct crig *rig_up(uint32_t lag_ms, uint64_t write_ns)
{
	struct crig_opts o = sim_rig_opts();

	o.segment_bytes = 1u << 20;
	o.disk_bytes = 32u << 20;
	o.host_bytes = 4u << 20;
	o.offload_lag_ms = lag_ms;
	o.write_ns = write_ns;
	o.io_depth = 32;
	o.npages = NPAGES;
	return sim_rig_up(&o);
}

/* Keeps LOADS loads under way, of runs of old blocks at random. */
static void read_on(struct reader *rd)
{
	struct crig *r = rd->r;
	struct tn_key keys[AT_ONCE];
	uint32_t pages[AT_ONCE * PER_BLOCK];

	for (uint32_t k = 0; k < LOADS; k++) {
		uint32_t id = 1 + tn_rng_below(&rd->rng, OLD - AT_ONCE);

		if (rd->load[k] && (tn_load_poll(rd->load[k], 1) == -EAGAIN || tn_load_end(rd->load[k], 0, NULL) == -EBUSY))
			continue;
		for (uint32_t i = 0; i < AT_ONCE; i++)
			keys[i] = crig_key(id + i);
		for (uint32_t i = 0; i < AT_ONCE * PER_BLOCK; i++)
			pages[i] = NPAGES - 1 - k * AT_ONCE * PER_BLOCK - i;
		assert_int_equal(tn_load_begin(r->space[0], r->pool[0], keys, AT_ONCE, pages, NULL, &rd->load[k]), 0);
	}
}

static void run(struct reader *rd, uint64_t ns)
{
	uint64_t end = crig_now(rd->r) + ns;

	while (crig_now(rd->r) < end) {
		read_on(rd);
		crig_turn(rd->r, 100 * CRIG_US);
	}
}

static void stop_reading(struct reader *rd)
{
	for (uint32_t k = 0; k < LOADS; k++)
		while (rd->load[k] && tn_load_end(rd->load[k], 0, NULL) == -EBUSY)
			crig_turn(rd->r, CRIG_MS);
}

static uint8_t save(struct reader *rd, uint64_t id, bool reading)
{
	uint32_t pages[PER_BLOCK] = {0, 1};
	struct tn_key key = crig_key(id);
	struct crig *r = rd->r;
	struct tn_save_opts o;
	struct tn_save *s;
	uint8_t outcome;

	tn_save_opts_init(&o);
	o.outcome = &outcome;
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &key, 1, pages, &o, &s), 0);
	for (uint32_t l = 0; l < r->g.layers; l++) {
		for (uint32_t k = 0; k < PER_BLOCK; k++)
			crig_fill(r, 0, id, l, k, pages[k]);
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	}
	assert_int_equal(tn_save_commit(s), 0);
	while (tn_save_end(s, 1, NULL) == -ETIMEDOUT)
		if (reading)
			run(rd, CRIG_MS / 4);
		else
			crig_turn(r, CRIG_MS);
	return outcome;
}

/* AT_ONCE blocks, of whatever is in the pages. */
static void save_old(struct crig *r, uint64_t id)
{
	uint32_t pages[AT_ONCE * PER_BLOCK];
	struct tn_key keys[AT_ONCE];
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *s;

	for (uint32_t i = 0; i < AT_ONCE * PER_BLOCK; i++)
		pages[i] = i;
	for (uint32_t i = 0; i < AT_ONCE; i++)
		keys[i] = crig_key(id + i);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], keys, AT_ONCE, pages, NULL, &s), 0);
	for (uint32_t l = 0; l < r->g.layers; l++)
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	assert_int_equal(tn_save_commit(s), 0);
	while (tn_save_end(s, 1, &res) == -ETIMEDOUT)
		crig_turn(r, CRIG_MS);
	assert_int_equal(res.stored, AT_ONCE);
}

/* The old blocks are on disk; nobody reads yet. */
static void begin(struct reader *rd, uint32_t lag_ms)
{
	*rd = (struct reader){.r = rig_up(lag_ms, 0)};
	tn_rng_seed(&rd->rng, tn_test_seed());
	for (uint64_t id = 1; id <= OLD; id += AT_ONCE)
		save_old(rd->r, id);
	while (rd->r->cache->host_dirty_slots > 0)
		crig_turn(rd->r, CRIG_MS);
	run(rd, 100 * CRIG_MS);
}

/* Saves a block every 20 ms for 1.6 seconds; returns for how long one has waited at most. */
static uint64_t longest_wait(uint32_t lag_ms)
{
	uint64_t longest = 0;
	struct reader rd;

	begin(&rd, lag_ms);
	for (uint64_t id = 1000; id < 1080; id++) {
		uint64_t end = crig_now(rd.r) + 20 * CRIG_MS;

		assert_int_equal(save(&rd, id, true), TN_SAVED_STORED);
		while (crig_now(rd.r) < end) {
			uint64_t age = tn_offload_age(rd.r->cache, crig_now(rd.r));

			longest = age > longest ? age : longest;
			run(&rd, CRIG_MS);
		}
	}
	stop_reading(&rd);
	sim_rig_down(rd.r);
	return longest;
}

static void no_block_waits_longer_than_the_lag_although_loads_never_pause(void **state)
{
	uint64_t tenth = longest_wait(100);

	print_message("# of a lag of 100 ms %llu\n", (unsigned long long)(tenth / CRIG_MS));
	assert_true(tenth > 0 && tenth < 100 * CRIG_MS);
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
			saved_ns[i] = crig_now(rd.r);
			run(&rd, tn_rng_below(&rng, 40) * CRIG_MS);
		}
		cut_ns = crig_now(rd.r);
		crig_power_off(rd.r);
		stop_reading(&rd);
		crig_run(rd.r, CRIG_SECOND);
		assert_true(crig_crashed(rd.r, TN_SIMDISK_DROP, 1));
		for (uint32_t i = 0; i < n; i++)
			if (saved_ns[i] + 1100 * CRIG_MS < cut_ns) {
				older++;
				if (!sim_rig_there(rd.r, 1000 + i))
					fail_msg("block %u of %u is gone, %llu ms after its save", i, n,
						 (unsigned long long)((cut_ns - saved_ns[i]) / CRIG_MS));
			}
		print_message("# %u of %u blocks were older\n", older, n);
		sim_rig_down(rd.r);
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
	rd.r->o.write_bytes_per_day = 8 * BUDGET * rd.r->space[0]->shape.slot_bytes;
	assert_true(crig_close(rd.r) && crig_open(rd.r));
	rd = (struct reader){.r = rd.r, .rng = rd.rng};
	run(&rd, CRIG_SECOND);
	/* Of so small a budget the preparation of a segment, if it was one's turn, took all and more. */
	rd.r->cache->store->budget_tokens = (int64_t)(BUDGET * rd.r->space[0]->shape.slot_bytes);
	for (uint32_t i = 0; i < 40; i++) {
		saved[i] = save(&rd, 1000 + i, true);
		assert_int_not_equal(saved[i], TN_SAVED_FAILED);
		stored += saved[i] == TN_SAVED_STORED;
	}
	print_message("# %u were let in\n", stored);
	assert_in_range(stored, BUDGET / 2, BUDGET);
	run(&rd, 100 * CRIG_MS);
	assert_int_equal(rd.r->cache->host_dirty_slots, 0);
	assert_int_equal(rd.r->cache->c.offloaded_blocks, stored);
	run(&rd, 1100 * CRIG_MS);
	crig_power_off(rd.r);
	stop_reading(&rd);
	crig_run(rd.r, CRIG_SECOND);
	assert_true(crig_crashed(rd.r, TN_SIMDISK_DROP, 1));
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(sim_rig_there(rd.r, 1000 + i), saved[i] == TN_SAVED_STORED);
	sim_rig_down(rd.r);
}

/* Each write takes a tenth of a second. */
static void the_statistics_say_what_waits_and_since_when(void **state)
{
	struct tn_stats st = {.size = sizeof(st)};
	struct reader rd = {.r = rig_up(1000, 100 * CRIG_MS)};

	for (uint64_t id = 1; id <= 3; id++)
		assert_int_equal(save(&rd, id, false), TN_SAVED_STORED);
	crig_run(rd.r, 20 * CRIG_MS);
	assert_int_equal(tn_cache_stats(rd.r->cache, &st), 0);
	assert_int_equal(st.offload_waiting_blocks, 3);
	assert_int_equal(st.offload_waiting_bytes, 3 * rd.r->space[0]->shape.slot_bytes);
	assert_true(st.offload_oldest_ns >= 20 * CRIG_MS);
	crig_run(rd.r, 5 * CRIG_SECOND);
	assert_int_equal(tn_cache_stats(rd.r->cache, &st), 0);
	assert_int_equal(st.offload_waiting_blocks + st.offload_waiting_bytes + st.offload_oldest_ns, 0);
	sim_rig_down(rd.r);
}

/* The only block that the quota has room for is pinned for a while. */
static void what_found_no_room_is_written_without_a_flush_when_there_is_some(void **state)
{
	struct tn_key key = crig_key(1);
	struct tn_stats st = {.size = sizeof(st)};
	struct tn_match m = {.size = sizeof(m)};
	struct reader rd = {.r = rig_up(100, 0)};

	rd.r->space[0]->quota.disk_bytes = rd.r->space[0]->shape.slot_bytes;
	assert_int_equal(save(&rd, 1, false), TN_SAVED_STORED);
	crig_run(rd.r, CRIG_SECOND);
	assert_int_equal(tn_match(rd.r->space[0], &key, 1, NULL, &m, TN_MATCH_PIN), 1);
	assert_int_equal(save(&rd, 2, false), TN_SAVED_STORED);
	crig_run(rd.r, 20 * CRIG_SECOND);
	assert_int_equal(tn_cache_stats(rd.r->cache, &st), 0);
	assert_int_equal(st.offload_failed_blocks, 1);
	assert_int_equal(tn_unpin(rd.r->space[0], m.pin), 0);
	crig_run(rd.r, 6 * CRIG_SECOND);
	assert_int_equal(tn_cache_stats(rd.r->cache, &st), 0);
	assert_int_equal(st.offload_failed_blocks, 0);
	assert_int_equal(rd.r->cache->c.offloaded_blocks, 2);
	sim_rig_down(rd.r);
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
