/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a checkpoint, its root and the log are written: each test is a moment at which a shortcut would
 * lose something, made on purpose. No power cut may ever damage an index: recovery must not speak of it.
 *
 * Not here: that a page leaves out slots whose record is still on its way (fill_slot_page). Showing them would do no
 * harm by itself - a block is published after its data was written, so the sync of the pages covers it, and replay
 * brings its record - but then a page would name what no flush has promised, and sync.c relies on it not doing so.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

#define KEYS 20u

/* Opens a copy of the disk after a power cut: the index is whole, the first blocks are there. */
static void cut(const struct rig *r, const struct tn_simdisk *disk, enum tn_simdisk_crash mode, uint64_t event)
{
	struct tn_simdisk *clone;
	struct rig *c;

	assert_int_equal(tn_simdisk_clone(disk, event, &clone), 0);
	tn_simdisk_crash(clone, mode, event);
	c = rig_new_on(tn_simdisk_io(clone), tn_simdisk_clock(clone), "a");
	c->disk = clone;
	c->opts.capacity_bytes = r->opts.capacity_bytes;
	if (rig_open(c))
		fail_msg("event %llu, %s: does not open: %s", (unsigned long long)event, tn_simdisk_crash_name(mode),
			 tn_error_last()->text);
	if (strstr(c->logs, "rebuilding") || strstr(c->logs, "checkpoint is damaged") || strstr(c->logs, "log is damaged"))
		fail_msg("event %llu, %s: the index is damaged: %s", (unsigned long long)event, tn_simdisk_crash_name(mode),
			 c->logs);
	for (uint64_t n = 0; n < KEYS; n++)
		if (!rig_find(c, n) || rig_read(c, n))
			fail_msg("event %llu, %s: block %llu is lost", (unsigned long long)event,
				 tn_simdisk_crash_name(mode), (unsigned long long)n);
	rig_abandon(c);
	rig_free(c);
}

static void cut_in_all_ways(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++)
		cut(arg, disk, (enum tn_simdisk_crash)mode, event);
}

static struct tn_store_device *device(struct rig *r)
{
	return &r->store->dev[0];
}

/* With blocks that are durable, and no checkpoint by itself. */
static struct rig *saved(void)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 2 * KEYS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	device(r)->ckpt.retry.ns = UINT64_MAX;
	return r;
}

/* Groups without inserts, so without a sync of data before them, until the log has free space for so many more pages only. */
static void fill_log(struct rig *r, uint64_t pages_left)
{
	const struct tn_store_log *log = &device(r)->log;
	uint64_t n = KEYS;

	while (device(r)->super.log_bytes - (log->next.position - log->tail) > pages_left * TN_DISK_PAGE) {
		if (rig_find(r, n))
			rig_remove(r, n++);
		else
			assert_true(rig_save(r, 500 + n) >= 0);
		if (n == 2 * KEYS)
			n = 600;
		assert_int_equal(rig_flush(r), 0);
	}
}

static void run_checkpoint(struct rig *r)
{
	uint64_t number = device(r)->ckpt.number;

	device(r)->ckpt.retry.ns = 0;
	while (device(r)->ckpt.number == number)
		rig_step(r, 1);
	device(r)->ckpt.retry.ns = UINT64_MAX;
}

static void power_that_goes_when_a_checkpoint_frees_a_full_log_damages_nothing(void **state)
{
	/* The second region holds an old checkpoint then, and not nothing. */
	for (unsigned before = 0; before < 3; before++) {
		struct rig *r = saved();

		for (unsigned i = 0; i < before; i++) {
			for (uint64_t n = 0; n < KEYS; n++)
				rig_remove(r, n);
			assert_int_equal(rig_flush(r), 0);
			for (uint64_t n = 0; n < KEYS; n++)
				assert_true(rig_save(r, n) >= 0);
			fill_log(r, 4);
			run_checkpoint(r);
		}
		fill_log(r, 0);
		rig_remove(r, KEYS + 19);
		tn_simdisk_on_event(r->disk, cut_in_all_ways, r);
		run_checkpoint(r);
		assert_int_equal(rig_flush(r), 0);
		tn_simdisk_on_event(r->disk, NULL, NULL);
		rig_free(r);
	}
}

static void checkpoint_now(struct rig *r)
{
	tn_store_ckpt_start(device(r), false);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
}

static void log_groups(struct rig *r, uint32_t n)
{
	for (; n > 0; n--) {
		tn_store_update(r->store, rig_find(r, 0)->slot);
		assert_int_equal(rig_flush(r), 0);
	}
}

/*
 * A page of the newest checkpoint is damaged, or its root is, and the log lies over the place where the older root begins to read it:
 * headers are believed instead.
 */
static void older_root_behind_the_log(bool root_too)
{
	struct rig *r = saved();
	const struct tn_disk_super *sb = &device(r)->super;
	static const char none[TN_DISK_PAGE];
	struct tn_disk_root root[2];
	uint64_t first, page;

	checkpoint_now(r);
	first = device(r)->log.tail;
	log_groups(r, 8);
	checkpoint_now(r);
	assert_true(device(r)->log.tail > first);
	while (device(r)->log.next.position < first + sb->log_bytes + TN_DISK_PAGE)
		log_groups(r, 1);
	assert_true(rig_save(r, 700) >= 0);
	assert_int_equal(rig_flush(r), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, sb->checkpoint_offset[i], &root[i], sizeof(root[i])), 0);
	page = sb->checkpoint_offset[root[1].checkpoint > root[0].checkpoint];
	page += root_too ? 0 : sizeof(root[0]) + r->store->table_pages * TN_DISK_PAGE;
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, page, none, sizeof(none)), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 700), 0);
	for (uint64_t n = 0; n < 2 * KEYS; n++)
		assert_int_equal(rig_read(r, n), 0);
	rig_free(r);
}

static void an_older_root_does_not_read_a_log_that_has_gone_round(void **state)
{
	older_root_behind_the_log(false);
	older_root_behind_the_log(true);
}

static void the_log_is_kept_from_where_a_checkpoint_began_and_not_from_where_it_ended(void **state)
{
	struct rig *r = saved();

	rig_remove(r, KEYS);
	tn_store_ckpt_start(device(r), false);
	assert_int_equal(rig_flush(r), 0);
	rig_remove(r, KEYS + 1);
	assert_int_equal(rig_flush(r), 0);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	fill_log(r, 0);
	cut_in_all_ways(r, r->disk, 1);
	rig_free(r);
}

static void a_page_written_before_its_block_was_durable_is_written_again_in_both_regions(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_ckpt_wait(device(r), false), 0);
	assert_int_equal(tn_store_ckpt_wait(device(r), false), 0);
	for (uint64_t n = 0; n < KEYS; n++)
		assert_true(rig_save(r, n) >= 0);
	/* Its pages are made at once, without blocks that are not durable; the log has them from here on. */
	tn_store_ckpt_start(device(r), false);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	assert_int_equal(rig_flush(r), 0);
	for (unsigned i = 0; i < 4; i++) {
		cut_in_all_ways(r, r->disk, i);
		assert_int_equal(tn_store_ckpt_wait(device(r), false), 0);
	}
	rig_free(r);
}

static void a_root_that_a_failed_attempt_may_have_left_is_void_before_its_pages_change(void **state)
{
	struct tn_simdisk_fault lost = {.kind = TN_SIMDISK_EIO, .op = TN_IO_SYNC, .count = 1, .percent = 100};
	struct rig *r = saved();

	tn_store_ckpt_start(device(r), false);
	while (device(r)->ckpt.phase != TN_CKPT_ROOT)
		rig_step(r, 1);
	/* The next sync, be it the root's or that of the log group, leaves the root in doubt, and the group as well. */
	assert_int_equal(tn_simdisk_set_faults(r->disk, &lost, 1), 0);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE || device(r)->log.phase != TN_LOG_IDLE)
		rig_step(r, 1);
	assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
	assert_true(device(r)->ckpt.retry.failures > 0);
	/* Other pages than the first time. */
	for (uint64_t n = KEYS; n < 2 * KEYS; n++)
		rig_remove(r, n);
	assert_int_equal(rig_flush(r), 0);
	tn_simdisk_on_event(r->disk, cut_in_all_ways, r);
	tn_store_ckpt_start(device(r), false);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	rig_free(r);
}

/* More pages than one checkpoint may write for their recency, all of them used again before each. */
static void pages_that_differ_only_in_recency_take_turns(void **state)
{
	enum { SLOTS = 8192, ROUNDS = 20 };
	struct rig *r = rig_new(tn_test_seed());
	tn_slot *slots = calloc(SLOTS, sizeof(*slots));
	uint32_t n, pages, first, written = 0, most;
	bool *seen;

	r->opts.capacity_bytes = 64u << 20;
	r->opts.segment_bytes = 256u << 10;
	assert_int_equal(rig_open(r), 0);
	n = rig_reserve(r, r->cls, SLOTS, slots);
	assert_in_range(n, 1, SLOTS - 1);
	assert_int_equal(rig_flush(r), 0);
	first = r->store->table_pages;
	pages = r->store->slot_pages;
	most = 64 + (first + pages) / 64;
	assert_true(pages > 2 * most);
	seen = calloc(pages, sizeof(*seen));
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		uint32_t region = device(r)->ckpt.region, now = 0;

		for (uint32_t i = 0; i < n; i++)
			tn_store_touch(r->store, slots[i], round);
		for (uint32_t p = 0; p < pages; p++)
			assert_true(tn_bit_test(device(r)->ckpt.soft[region], first + p));
		assert_int_equal(tn_store_ckpt_wait(device(r), false), 0);
		for (uint32_t p = 0; p < pages; p++) {
			bool wrote = !tn_bit_test(device(r)->ckpt.soft[region], first + p);

			now += wrote;
			written += round > 2 && region == 0 && wrote && !seen[p];
			seen[p] |= round > 2 && region == 0 && wrote;
		}
		assert_true(round <= 2 || now <= most); /* the first two write everything */
		assert_true(device(r)->ckpt.soft_any);
	}
	assert_int_equal(written, pages);
	assert_int_equal(tn_store_ckpt_wait(device(r), true), 0);
	assert_int_equal(tn_bit_next(device(r)->ckpt.soft[!device(r)->ckpt.region], 0, first + pages), first + pages);
	for (uint32_t i = 0; i < n; i++)
		tn_store_unreserve(r->store, slots[i]);
	free(seen);
	free(slots);
	rig_free(r);
}

/* ---- beside reads -------------------------------------------------------------------------------------- */

struct gate {
	bool open;
	uint32_t asked;
	uint64_t let, ended, most;
};

static bool gate_may_write(void *arg, uint32_t device_index, uint64_t bytes)
{
	struct gate *g = ((struct rig *)arg)->gate;

	assert_int_equal(device_index, 0);
	g->asked++;
	g->let += g->open ? bytes : 0;
	g->most = bytes > g->most ? bytes : g->most;
	return g->open;
}

static void gate_written(void *arg, uint32_t device_index, uint64_t bytes)
{
	((struct rig *)arg)->gate->ended += bytes;
}

static void close_gate(struct rig *r, struct gate *g)
{
	*g = (struct gate){.open = false};
	r->gate = g;
	r->store->cb.may_write = gate_may_write;
	r->store->cb.written = gate_written;
}

static void a_checkpoint_waits_for_reads_and_is_exact_all_the_same(void **state)
{
	struct rig *r = saved();
	struct gate g;

	close_gate(r, &g);
	tn_store_ckpt_start(device(r), false);
	for (uint64_t n = KEYS; n < KEYS + 3; n++) { /* meanwhile the store goes on */
		rig_remove(r, n);
		assert_int_equal(rig_flush(r), 0);
		assert_int_equal(device(r)->ckpt.phase, TN_CKPT_PAGES);
	}
	assert_true(g.asked > 3 && g.let == 0);
	cut_in_all_ways(r, r->disk, 1);
	tn_simdisk_on_event(r->disk, cut_in_all_ways, r);
	g.open = true;
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	assert_true(g.let > 0 && g.ended == g.let);
	assert_in_range(g.most, TN_DISK_PAGE, TN_STORE_BATCH_PAGES * TN_DISK_PAGE);
	rig_free(r);
}

static void a_checkpoint_that_may_not_begin_says_when_to_ask_again(void **state)
{
	struct rig *r = saved();
	struct gate g;
	uint64_t now;

	fill_log(r, device(r)->super.log_bytes / TN_DISK_PAGE / 5 * 2);
	close_gate(r, &g);
	device(r)->ckpt.retry.ns = 0;
	for (uint32_t k = 1; k < 4; k++) {
		now = tn_now_ns(r->clock);
		assert_in_range(tn_store_ckpt_step(device(r), now), now + 1, now + 10000000);
		assert_int_equal(g.asked, k);
	}
	g.open = true;
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	assert_true(g.let > 0);
	rig_free(r);
}

static void a_checkpoint_that_the_log_or_the_end_waits_for_waits_for_nothing(void **state)
{
	struct rig *r = saved();
	struct gate g;

	close_gate(r, &g);
	tn_store_ckpt_start(device(r), false);
	fill_log(r, device(r)->super.log_bytes / TN_DISK_PAGE / 4);
	while (device(r)->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	assert_true(g.asked > 0 && g.let == 0);
	assert_true(rig_save(r, 900) >= 0);
	assert_int_equal(rig_flush(r), 0);
	tn_store_ckpt_start(device(r), false);
	assert_int_equal(device(r)->ckpt.phase, TN_CKPT_PAGES);
	assert_int_equal(tn_store_ckpt_wait(device(r), true), 0);
	assert_true(g.let == 0 && g.ended == 0);
	cut_in_all_ways(r, r->disk, 1);
	rig_free(r);
}

static void a_checkpoint_that_waits_gives_up_when_a_sync_failed(void **state)
{
	struct tn_simdisk_fault lost = {.kind = TN_SIMDISK_EIO, .op = TN_IO_SYNC, .count = 1, .percent = 100};
	struct rig *r = saved();
	struct gate g;

	close_gate(r, &g);
	tn_store_ckpt_start(device(r), false);
	rig_remove(r, KEYS);
	assert_int_equal(tn_simdisk_set_faults(r->disk, &lost, 1), 0);
	rig_flush(r);
	assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
	for (int k = 0; k < 1000 && device(r)->ckpt.retry.failures == 0; k++)
		rig_step(r, 1);
	assert_int_equal(device(r)->ckpt.phase, TN_CKPT_IDLE);
	assert_true(device(r)->ckpt.retry.failures > 0);
	rig_free(r);
}

static void a_flush_tries_again_the_checkpoint_that_a_full_log_waits_for(void **state)
{
	struct tn_simdisk_fault lost = {.kind = TN_SIMDISK_EIO, .op = TN_IO_SYNC, .count = UINT64_MAX};
	struct rig *r = saved();
	const struct tn_store_ckpt *c = &device(r)->ckpt;
	uint64_t from;

	fill_log(r, 0);
	device(r)->ckpt.retry.ns = 0;
	assert_int_equal(tn_simdisk_set_faults(r->disk, &lost, 1), 0);
	rig_remove(r, 0);
	while (c->retry.failures < 8) {
		assert_int_equal(rig_flush(r), -EIO);
		rig_step(r, 1);
	}
	assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
	from = tn_now_ns(r->clock);
	assert_true(device(r)->log.full && c->retry.ns > from + TN_TEST_SECOND);
	assert_int_equal(rig_flush(r), 0);
	assert_in_range(tn_now_ns(r->clock) - from, 0, TN_TEST_SECOND / 50);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_root_that_a_failed_attempt_may_have_left_is_void_before_its_pages_change),
		cmocka_unit_test(power_that_goes_when_a_checkpoint_frees_a_full_log_damages_nothing),
		cmocka_unit_test(an_older_root_does_not_read_a_log_that_has_gone_round),
		cmocka_unit_test(the_log_is_kept_from_where_a_checkpoint_began_and_not_from_where_it_ended),
		cmocka_unit_test(a_page_written_before_its_block_was_durable_is_written_again_in_both_regions),
		cmocka_unit_test(pages_that_differ_only_in_recency_take_turns),
		cmocka_unit_test(a_checkpoint_waits_for_reads_and_is_exact_all_the_same),
		cmocka_unit_test(a_checkpoint_that_may_not_begin_says_when_to_ask_again),
		cmocka_unit_test(a_checkpoint_that_the_log_or_the_end_waits_for_waits_for_nothing),
		cmocka_unit_test(a_checkpoint_that_waits_gives_up_when_a_sync_failed),
		cmocka_unit_test(a_flush_tries_again_the_checkpoint_that_a_full_log_waits_for),
	};

	return cmocka_run_group_tests_name("store-checkpoint", tests, NULL, NULL);
}
