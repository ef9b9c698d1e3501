/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers are told when the disk fails or is late, on a simulated disk: flushes whose offloads failed, drops whose
 * sync takes long.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "cache_rig.h"
#include "ioengine/faulty_rig.h"
#include "tier/disk/disk.h"

#define PER_BLOCK 2u

static struct rig *rig_up(uint64_t host_bytes)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.host_bytes = host_bytes;
	o.faulty = true;
	return rig_start(&o);
}

static void fault(struct rig *r, enum tn_fault_kind kind, enum tn_io_op op, uint64_t delay_ns)
{
	struct tn_fault f = {.kind = kind, .op = op, .count = UINT64_MAX, .delay_ns = delay_ns};

	rig_fault(r, &f, 1);
}

/* Block `id` of a space, from pages 2 * id on; in host memory on return. */
static void save(struct rig *r, uint32_t space, uint64_t id)
{
	struct tn_save_result res = rig_save(&r->s[space], id, 1, (uint32_t)id * PER_BLOCK);

	assert_int_equal(res.stored + res.host_only, 1);
}

/* Blocks from `id` on, of whatever is in the pages. */
static void save_empty(struct rig *r, uint64_t id, uint32_t n, const uint32_t *pages)
{
	struct tn_key keys[64];
	struct tn_save_result res;
	struct tn_save *s;

	rig_keys(id, n, keys);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, keys, n, pages, NULL, &s), 0);
	rig_save_give(r->s, s);
	res = rig_save_end(r->s, s);
	assert_int_equal(res.stored + res.host_only, n); /* the disk is smaller than host memory */
}

static int flush_ends(struct rig *r, struct tn_flush_waiter *w)
{
	int rc = 0;

	rig_until(r, (rc = tn_flush_poll(w)) != -EAGAIN);
	return rc;
}

static void until_failed(struct rig *r, uint32_t blocks)
{
	for (uint32_t i = 0; i < 1000 && r->cache->row.queues->failed_slots < blocks; i++)
		rig_turn(r, RIG_MS);
	assert_int_equal(r->cache->row.queues->failed_slots, blocks);
}

static void the_next_flush_writes_what_failed_before(void **state)
{
	struct tn_fault block = {.kind = TN_FAULT_EIO, .op = TN_IO_WRITE, .count = 7}; /* the block, its objects alone, and again; not of the log */
	struct rig *r = rig_up(2u << 20);

	rig_fault(r, &block, 1);
	save(r, 0, 1);
	until_failed(r, 1);
	assert_int_equal(rig_flush(r), -EIO);
	rig_calm(r);
	assert_true(tn_store_writable(tn_disk_tier_store(r->cache->row.durable))); /* nothing but the flush makes it try again */
	assert_int_equal(rig_flush(r), 0);
	rig_power_cut(r, TN_SIMDISK_DROP);
	assert_true(rig_load(r->s, 1, 1));
	rig_tear_down(r);
}

static void what_failed_is_written_when_the_device_comes_back(void **state)
{
	struct rig *r = rig_up(2u << 20);

	fault(r, TN_FAULT_ENOSPC, TN_IO_WRITE, 0);
	save(r, 0, 1);
	until_failed(r, 1);
	rig_run(r, RIG_SECOND);
	assert_false(tn_store_writable(tn_disk_tier_store(r->cache->row.durable)));
	assert_int_equal(r->cache->row.queues->failed_slots, 1);
	rig_calm(r);
	rig_run(r, 60 * RIG_SECOND);
	assert_int_equal(r->cache->row.queues->failed_slots, 0);
	assert_int_equal(r->cache->c.offloaded_blocks, 1);
	rig_tear_down(r);
}

/* A path to a drive that is down for a minute: its blocks are misses meanwhile, and there again afterwards. */
static void an_outage_costs_no_blocks_but_those_that_showed_it(void **state)
{
	struct rig *r = rig_up(0);
	uint32_t before;

	for (uint64_t id = 1; id <= 24; id++)
		assert_int_equal(rig_save(r->s, id, 1, 0).stored, 1);
	assert_int_equal(rig_flush(r), 0);
	before = rig_count(r->s, 1, 24);
	assert_in_range(before, 20, 24);
	fault(r, TN_FAULT_EIO, TN_IO_READ, 0);
	for (unsigned again = 0; again < 3; again++)
		for (uint64_t id = 1; id <= 24; id++)
			assert_int_equal(rig_load(r->s, id, 1), 0);
	rig_run(r, 60 * RIG_SECOND);
	rig_calm(r);
	rig_run(r, 60 * RIG_SECOND);
	assert_int_equal(rig_device(r, 0).health, TN_HEALTHY);
	assert_in_range(rig_count(r->s, 1, 24), before - 8, before);
	assert_in_range(rig_device(r, 0).quarantined_slots, 0, 8);
	rig_tear_down(r);
}

/* The first flush still waits for the second block when the first one fails and the second flush comes. */
static void two_flushes_at_once_both_tell_the_truth(void **state)
{
	struct rig *r = rig_up(2u << 20);
	struct tn_flush_waiter *first, *second;
	int rc;

	fault(r, TN_FAULT_LATE, TN_IO_WRITE, 20 * RIG_MS);
	save(r, 0, 1);
	rig_until(r, r->cache->offloads.op[0].w.op.active && r->cache->offloads.op[0].w.op.inflight > 0);
	fault(r, TN_FAULT_LATE, TN_IO_WRITE, 500 * RIG_MS);
	save(r, 0, 2);
	rig_until(r, r->cache->offloads.op[1].w.op.active && r->cache->offloads.op[1].w.op.inflight > 0);
	first = tn_flush_begin(&r->cache->flushes);
	fault(r, TN_FAULT_EIO, TN_IO_WRITE, 0); /* the header of the first block */
	until_failed(r, 1);
	rig_calm(r);
	assert_false(first->done);
	second = tn_flush_begin(&r->cache->flushes);
	fault(r, TN_FAULT_LATE, TN_IO_SYNC, 10 * RIG_MS);
	rc = flush_ends(r, first);
	assert_true(rc == -EIO || (rc == 0 && r->cache->c.offloaded_blocks == 2));
	assert_int_equal(flush_ends(r, second), 0);
	assert_int_equal(r->cache->c.offloaded_blocks, 2);
	assert_int_equal(r->cache->row.queues->failed_slots, 0);
	rig_tear_down(r);
}

static void a_drop_that_waits_for_its_sync_holds_up_no_other_space(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_flush_waiter *drop;
	uint64_t begin;

	save(r, 0, 1);
	save(r, 1, 2);
	assert_int_equal(rig_flush(r), 0);
	fault(r, TN_FAULT_LATE, TN_IO_SYNC, RIG_SECOND);
	begin = rig_now(r);
	assert_int_equal(tn_space_drop_begin(&r->cache->drops, r->s->space, &drop), 0);
	assert_false(rig_load(r->s, 1, 1));
	assert_true(rig_load(&r->s[1], 2, 1));
	save(r, 1, 3);
	assert_true(rig_load(&r->s[1], 3, 1));
	assert_true(rig_now(r) - begin < RIG_SECOND / 2);
	assert_int_equal(tn_flush_poll(drop), -EAGAIN);
	assert_int_equal(flush_ends(r, drop), 0);
	rig_calm(r);
	rig_power_cut(r, TN_SIMDISK_DROP);
	assert_false(rig_load(r->s, 1, 1));
	assert_true(rig_load(&r->s[1], 2, 1));
	rig_tear_down(r);
}

static void doomed_blocks_that_are_held_cost_nothing_until_they_are_let_go_of(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_key key[2] = {rig_key(1), rig_key(2)};
	uint64_t pin;
	uint32_t head;

	save(r, 0, 1);
	save(r, 0, 2);
	save(r, 1, 3);
	pin = rig_pin(r->s, 1, 2);
	assert_int_equal(tn_drop(r->s->space, key, 2), 2);
	rig_run(r, RIG_MS);
	assert_int_equal(r->cache->blocks.doomed_count, 2);
	head = r->cache->blocks.doomed_head;
	assert_true(rig_load(&r->s[1], 3, 1));
	assert_int_equal(r->cache->blocks.doomed_head, head);
	rig_unpin(r->s, pin);
	rig_run(r, RIG_MS);
	assert_int_equal(r->cache->blocks.doomed_count, 0);
	rig_tear_down(r);
}

/* More blocks than are looked at in one step: the space is closed until all are marked, others are not held up. */
static void a_space_is_dropped_in_steps_and_closed_meanwhile(void **state)
{
	enum { MANY = 1500, AT_ONCE = 50 };
	struct rig *r = rig_up(64u << 20);
	uint32_t two[2 * PER_BLOCK] = {56, 57, 58, 59}, pages[2 * PER_BLOCK] = {60, 61, 62, 63}, one[AT_ONCE * PER_BLOCK];
	struct tn_key key[2] = {rig_key(MANY), rig_key(2 * MANY)};
	struct tn_flush_waiter *drop, *again;
	struct tn_load *load;
	struct tn_save_result res[2];
	struct tn_save *s[2];
	struct tn_match m = {.size = sizeof(m)};
	uint64_t due;

	for (uint32_t i = 0; i < AT_ONCE * PER_BLOCK; i++)
		one[i] = i % PER_BLOCK;
	for (uint32_t i = 1; i <= MANY; i += AT_ONCE)
		save_empty(r, i, AT_ONCE, one);
	save(r, 1, 1);
	assert_int_equal(rig_match(r->s, MANY, 1), 1);
	rig_until(r, tn_space_drop_begin(&r->cache->drops, r->s->space, &drop) != -EBUSY); /* the offloads end by themselves */
	assert_int_equal(rig_match(r->s, MANY, 1), 0);
	/* A save meanwhile: of a block that is being dropped, and of a new one. */
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, key, 2, two, NULL, &s[0]), 0);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, key, 1, pages, NULL, &s[1]), 0);
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, key, 1, pages + PER_BLOCK, NULL, &load), 0);
	assert_int_equal(tn_save_abort(s[1]), 0);
	assert_int_equal(tn_space_drop_begin(&r->cache->drops, r->s->space, &again), -EBUSY);
	assert_true(tn_core_step(r->cache, &due));
	assert_true(r->s->space->dropping);
	assert_int_equal(tn_load_poll(load, 0), 0);
	assert_int_equal(tn_load_end(load, 0, NULL), 0);
	assert_int_equal(flush_ends(r, drop), 0);
	assert_false(r->s->space->dropping);
	rig_until(r, r->cache->blocks.doomed_count == 0);
	assert_int_equal(r->cache->c.dropped_blocks, MANY);
	assert_true(rig_load(&r->s[1], 1, 1));
	rig_save_give(r->s, s[0]);
	for (uint32_t i = 0; i < 2; i++)
		res[i] = rig_save_end(r->s, s[i]);
	assert_int_equal(res[0].stored + res[0].host_only, 2);
	assert_int_equal(res[1].stored, 0);
	assert_int_equal(tn_match(r->s->space, key, 2, NULL, &m, 0), 2);
	rig_tear_down(r);
}

/* Of three blocks only the first is there, and its read is late. */
static void only_pages_that_may_be_written_to_are_busy_and_none_can_be_saved_from(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_key keys[3] = {rig_key(1), rig_key(8), rig_key(9)};
	uint32_t pages[3 * PER_BLOCK] = {20, 21, 22, 23, 24, 25}, mixed[PER_BLOCK] = {30, 21};
	struct tn_load *load;
	struct tn_save *s;
	uint8_t busy = 0;

	save(r, 0, 1);
	fault(r, TN_FAULT_LATE, TN_IO_READ, RIG_SECOND);
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, keys, 3, pages, NULL, &load), 0);
	rig_run(r, RIG_MS);
	assert_int_equal(tn_load_end(load, 0, &busy), -EBUSY);
	assert_int_equal(busy, 1);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, keys, 1, mixed, NULL, &s), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "pages[1] = 21"));
	rig_load_end(r->s, load);
	rig_tear_down(r);
}

static void pages_that_a_save_still_reads_are_not_loaded_into(void **state)
{
	struct rig *r = rig_up(0);
	struct tn_key key = rig_key(1), other = rig_key(2);
	uint32_t pages[PER_BLOCK] = {20, 21}, mixed[PER_BLOCK] = {30, 21}, apart[PER_BLOCK] = {30, 31};
	struct tn_load *load;
	struct tn_save *s[2];

	/* Two saves may share a page, and both must have ended. */
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, &key, 1, pages, NULL, &s[0]), 0);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, &other, 1, pages, NULL, &s[1]), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(tn_load_begin(r->s->space, r->s->pool, &key, 1, mixed, NULL, &load), -EINVAL);
		assert_non_null(strstr(tn_error_last()->text, "pages[1] = 21: still part of a save"));
		assert_int_equal(tn_save_abort(s[i]), 0);
		rig_save_end(r->s, s[i]);
	}
	/* What was refused claimed nothing: neither the page before the bad one, nor that. */
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, &key, 1, apart, NULL, &load), 0);
	rig_load_end(r->s, load);
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, &key, 1, pages, NULL, &load), 0);
	mixed[0] = 32;
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, &key, 1, mixed, NULL, &s[0]), -EINVAL);
	rig_load_end(r->s, load);
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, &key, 1, mixed, NULL, &load), 0);
	rig_load_end(r->s, load);
	rig_tear_down(r);
}

static void a_full_quota_is_called_by_its_name(void **state)
{
	struct rig *r = rig_up(0);
	uint32_t pages[PER_BLOCK] = {4, 5};
	struct tn_key keys[2] = {rig_key(1), rig_key(2)};
	struct tn_save *s;
	uint64_t pin;

	r->s->space->quota.bytes[TN_TIER_DISK] = r->s->space->shape.slot_bytes;
	save(r, 0, 1);
	pin = rig_pin(r->s, 1, 1);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, &keys[1], 1, pages, NULL, &s), 0);
	rig_run(r, RIG_MS);
	assert_non_null(strstr(tn_error_last()->text, "quota"));
	assert_int_equal(tn_save_abort(s), 0);
	rig_save_end(r->s, s);
	rig_unpin(r->s, pin);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_next_flush_writes_what_failed_before),
		cmocka_unit_test(what_failed_is_written_when_the_device_comes_back),
		cmocka_unit_test(an_outage_costs_no_blocks_but_those_that_showed_it),
		cmocka_unit_test(two_flushes_at_once_both_tell_the_truth),
		cmocka_unit_test(doomed_blocks_that_are_held_cost_nothing_until_they_are_let_go_of),
		cmocka_unit_test(only_pages_that_may_be_written_to_are_busy_and_none_can_be_saved_from),
		cmocka_unit_test(pages_that_a_save_still_reads_are_not_loaded_into),
		cmocka_unit_test(a_full_quota_is_called_by_its_name),
		cmocka_unit_test(a_space_is_dropped_in_steps_and_closed_meanwhile),
		cmocka_unit_test(a_drop_that_waits_for_its_sync_holds_up_no_other_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
