/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers are told when the disk fails or is late, on a simulated disk: flushes whose offloads failed, drops whose
 * sync takes long.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache_sim_rig.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

#define PER_BLOCK 2u

static struct crig *rig_up(uint64_t host_bytes)
{
	struct crig_opts o = sim_rig_opts();

	o.host_bytes = host_bytes;
	sim_rig_faulty(&o);
	return sim_rig_up(&o);
}

static void fault(struct crig *r, enum tn_fault_kind kind, enum tn_io_op op, uint64_t delay_ns)
{
	struct tn_fault f = {.kind = kind, .op = op, .count = UINT64_MAX, .delay_ns = delay_ns};

	assert_int_equal(tn_io_faulty_set(r->io, &f, 1), 0);
}

/* Block `id` of a space, from pages 2 * id on; in host memory on return. */
static void save(struct crig *r, uint32_t space, uint64_t id)
{
	uint32_t pages[PER_BLOCK] = {(uint32_t)id * PER_BLOCK, (uint32_t)id * PER_BLOCK + 1};
	struct tn_key key = crig_key(id);
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *s;
	int rc;

	assert_int_equal(tn_save_begin(r->space[space], r->pool[space], &key, 1, pages, NULL, &s), 0);
	for (uint32_t l = 0; l < r->g.layers; l++) {
		for (uint32_t k = 0; k < PER_BLOCK; k++)
			crig_fill(r, space, id, l, k, pages[k]);
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	}
	assert_int_equal(tn_save_commit(s), 0);
	while ((rc = tn_save_end(s, 1, &res)) == -ETIMEDOUT)
		crig_turn(r, CRIG_MS);
	assert_int_equal(rc, 0);
	assert_int_equal(res.stored + res.host_only, 1);
}

/* Blocks from `id` on, of whatever is in the pages. */
static void save_empty(struct crig *r, uint64_t id, uint32_t n, const uint32_t *pages)
{
	struct tn_key keys[64];
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *s;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = crig_key(id + i);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], keys, n, pages, NULL, &s), 0);
	for (uint32_t l = 0; l < r->g.layers; l++)
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	assert_int_equal(tn_save_commit(s), 0);
	while (tn_save_end(s, 1, &res) == -ETIMEDOUT)
		crig_turn(r, CRIG_MS);
	assert_int_equal(res.stored + res.host_only, n); /* the disk is smaller than host memory */
}

static int flush_ends(struct crig *r, struct tn_flush_waiter *w)
{
	int rc;

	while ((rc = tn_flush_poll(w)) == -EAGAIN)
		crig_turn(r, CRIG_MS);
	return rc;
}

static void until_failed(struct crig *r, uint32_t blocks)
{
	for (uint32_t i = 0; i < 1000 && r->cache->failed_slots < blocks; i++)
		crig_turn(r, CRIG_MS);
	assert_int_equal(r->cache->failed_slots, blocks);
}

static void the_next_flush_writes_what_failed_before(void **state)
{
	struct tn_fault block = {.kind = TN_FAULT_EIO, .op = TN_IO_WRITE, .count = 6}; /* few of the log, which the flush writes */
	struct crig *r = rig_up(2u << 20);

	assert_int_equal(tn_io_faulty_set(r->io, &block, 1), 0);
	save(r, 0, 1);
	until_failed(r, 1);
	assert_int_equal(sim_rig_flush(r), -EIO);
	r->o.calm(r->io);
	assert_true(tn_store_writable(r->cache->store)); /* nothing but the flush makes it try again */
	assert_int_equal(sim_rig_flush(r), 0);
	crig_power_off(r);
	crig_run(r, CRIG_SECOND);
	assert_true(crig_crashed(r, TN_SIMDISK_DROP, 1));
	assert_true(sim_rig_loads(r, 0, 1));
	sim_rig_down(r);
}

static void what_failed_is_written_when_the_device_comes_back(void **state)
{
	struct crig *r = rig_up(2u << 20);

	fault(r, TN_FAULT_ENOSPC, TN_IO_WRITE, 0);
	save(r, 0, 1);
	until_failed(r, 1);
	crig_run(r, CRIG_SECOND);
	assert_false(tn_store_writable(r->cache->store));
	assert_int_equal(r->cache->failed_slots, 1);
	r->o.calm(r->io);
	crig_run(r, 60 * CRIG_SECOND);
	assert_int_equal(r->cache->failed_slots, 0);
	assert_int_equal(r->cache->c.offloaded_blocks, 1);
	sim_rig_down(r);
}

/* The first flush still waits for the second block when the first one fails and the second flush comes. */
static void two_flushes_at_once_both_tell_the_truth(void **state)
{
	struct crig *r = rig_up(2u << 20);
	struct tn_flush_waiter *first, *second;
	int rc;

	fault(r, TN_FAULT_LATE, TN_IO_WRITE, 20 * CRIG_MS);
	save(r, 0, 1);
	while (!r->cache->offloads[0].w.op.active || r->cache->offloads[0].w.op.inflight == 0)
		crig_turn(r, CRIG_US);
	fault(r, TN_FAULT_LATE, TN_IO_WRITE, 500 * CRIG_MS);
	save(r, 0, 2);
	while (!r->cache->offloads[1].w.op.active || r->cache->offloads[1].w.op.inflight == 0)
		crig_turn(r, CRIG_US);
	first = tn_flush_begin(r->cache);
	fault(r, TN_FAULT_EIO, TN_IO_WRITE, 0); /* the header of the first block */
	until_failed(r, 1);
	r->o.calm(r->io);
	assert_false(first->done);
	second = tn_flush_begin(r->cache);
	fault(r, TN_FAULT_LATE, TN_IO_SYNC, 10 * CRIG_MS);
	rc = flush_ends(r, first);
	assert_true(rc == -EIO || (rc == 0 && r->cache->c.offloaded_blocks == 2));
	assert_int_equal(flush_ends(r, second), 0);
	assert_int_equal(r->cache->c.offloaded_blocks, 2);
	assert_int_equal(r->cache->failed_slots, 0);
	sim_rig_down(r);
}

static void a_drop_that_waits_for_its_sync_holds_up_no_other_space(void **state)
{
	struct crig *r = rig_up(0);
	struct tn_flush_waiter *drop;
	uint64_t begin;

	save(r, 0, 1);
	save(r, 1, 2);
	assert_int_equal(sim_rig_flush(r), 0);
	fault(r, TN_FAULT_LATE, TN_IO_SYNC, CRIG_SECOND);
	begin = crig_now(r);
	assert_int_equal(tn_space_drop_begin(r->space[0], &drop), 0);
	assert_false(sim_rig_loads(r, 0, 1));
	assert_true(sim_rig_loads(r, 1, 2));
	save(r, 1, 3);
	assert_true(sim_rig_loads(r, 1, 3));
	assert_true(crig_now(r) - begin < CRIG_SECOND / 2);
	assert_int_equal(tn_flush_poll(drop), -EAGAIN);
	assert_int_equal(flush_ends(r, drop), 0);
	r->o.calm(r->io);
	crig_power_off(r);
	crig_run(r, CRIG_SECOND);
	assert_true(crig_crashed(r, TN_SIMDISK_DROP, 1));
	assert_false(sim_rig_loads(r, 0, 1));
	assert_true(sim_rig_loads(r, 1, 2));
	sim_rig_down(r);
}

static void doomed_blocks_that_are_held_cost_nothing_until_they_are_let_go_of(void **state)
{
	struct crig *r = rig_up(0);
	struct tn_key key[2] = {crig_key(1), crig_key(2)};
	struct tn_match m = {.size = sizeof(m)};
	uint32_t head;

	save(r, 0, 1);
	save(r, 0, 2);
	save(r, 1, 3);
	assert_int_equal(tn_match(r->space[0], key, 2, NULL, &m, TN_MATCH_PIN), 2);
	assert_int_equal(tn_drop(r->space[0], key, 2), 2);
	crig_run(r, CRIG_MS);
	assert_int_equal(r->cache->doomed_count, 2);
	head = r->cache->doomed_head;
	assert_true(sim_rig_loads(r, 1, 3));
	assert_int_equal(r->cache->doomed_head, head);
	assert_int_equal(tn_unpin(r->space[0], m.pin), 0);
	crig_run(r, CRIG_MS);
	assert_int_equal(r->cache->doomed_count, 0);
	sim_rig_down(r);
}

/* More blocks than are looked at in one step: the space is closed until all are marked, others are not held up. */
static void a_space_is_dropped_in_steps_and_closed_meanwhile(void **state)
{
	enum { MANY = 1500, AT_ONCE = 50 };
	struct crig *r = rig_up(64u << 20);
	uint32_t two[2 * PER_BLOCK] = {56, 57, 58, 59}, pages[2 * PER_BLOCK] = {60, 61, 62, 63}, one[AT_ONCE * PER_BLOCK];
	struct tn_key key[2] = {crig_key(MANY), crig_key(2 * MANY)};
	struct tn_flush_waiter *drop, *again;
	struct tn_load *load;
	struct tn_save_result res[2] = {{.size = sizeof(res[0])}, {.size = sizeof(res[0])}};
	struct tn_save *s[2];
	struct tn_match m = {.size = sizeof(m)};
	uint64_t due;

	for (uint32_t i = 0; i < AT_ONCE * PER_BLOCK; i++)
		one[i] = i % PER_BLOCK;
	for (uint32_t i = 1; i <= MANY; i += AT_ONCE)
		save_empty(r, i, AT_ONCE, one);
	save(r, 1, 1);
	assert_int_equal(tn_match(r->space[0], &key[0], 1, NULL, &m, 0), 1);
	while (tn_space_drop_begin(r->space[0], &drop) == -EBUSY) /* the offloads end by themselves */
		crig_turn(r, CRIG_MS);
	assert_int_equal(tn_match(r->space[0], &key[0], 1, NULL, &m, 0), 0);
	/* A save meanwhile: of a block that is being dropped, and of a new one. */
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], key, 2, two, NULL, &s[0]), 0);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], key, 1, pages, NULL, &s[1]), 0);
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], key, 1, pages + PER_BLOCK, NULL, &load), 0);
	assert_int_equal(tn_save_abort(s[1]), 0);
	assert_int_equal(tn_space_drop_begin(r->space[0], &again), -EBUSY);
	assert_true(tn_core_step(r->cache, &due));
	assert_true(r->space[0]->dropping);
	assert_int_equal(tn_load_poll(load, 0), 0);
	assert_int_equal(tn_load_end(load, 0, NULL), 0);
	assert_int_equal(flush_ends(r, drop), 0);
	assert_false(r->space[0]->dropping);
	while (r->cache->doomed_count > 0)
		crig_turn(r, CRIG_MS);
	assert_int_equal(r->cache->c.dropped_blocks, MANY);
	assert_true(sim_rig_loads(r, 1, 1));
	for (uint32_t l = 0; l < r->g.layers; l++)
		assert_int_equal(tn_save_layer(s[0], l, NULL), 0);
	assert_int_equal(tn_save_commit(s[0]), 0);
	for (uint32_t i = 0; i < 2; i++)
		while (tn_save_end(s[i], 1, &res[i]) == -ETIMEDOUT)
			crig_turn(r, CRIG_MS);
	assert_int_equal(res[0].stored + res[0].host_only, 2);
	assert_int_equal(res[1].stored, 0);
	assert_int_equal(tn_match(r->space[0], key, 2, NULL, &m, 0), 2);
	sim_rig_down(r);
}

/* Of three blocks only the first is there, and its read is late. */
static void only_pages_that_may_be_written_to_are_busy_and_none_can_be_saved_from(void **state)
{
	struct crig *r = rig_up(0);
	struct tn_key keys[3] = {crig_key(1), crig_key(8), crig_key(9)};
	uint32_t pages[3 * PER_BLOCK] = {20, 21, 22, 23, 24, 25}, mixed[PER_BLOCK] = {30, 21};
	struct tn_load *load;
	struct tn_save *s;
	uint8_t busy = 0;

	save(r, 0, 1);
	fault(r, TN_FAULT_LATE, TN_IO_READ, CRIG_SECOND);
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], keys, 3, pages, NULL, &load), 0);
	crig_run(r, CRIG_MS);
	assert_int_equal(tn_load_end(load, 0, &busy), -EBUSY);
	assert_int_equal(busy, 1);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], keys, 1, mixed, NULL, &s), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "pages[1] = 21"));
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
	sim_rig_down(r);
}

static void pages_that_a_save_still_reads_are_not_loaded_into(void **state)
{
	struct crig *r = rig_up(0);
	struct tn_key key = crig_key(1), other = crig_key(2);
	uint32_t pages[PER_BLOCK] = {20, 21}, mixed[PER_BLOCK] = {30, 21}, apart[PER_BLOCK] = {30, 31};
	struct tn_load *load;
	struct tn_save *s[2];

	/* Two saves may share a page, and both must have ended. */
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &key, 1, pages, NULL, &s[0]), 0);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &other, 1, pages, NULL, &s[1]), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(tn_load_begin(r->space[0], r->pool[0], &key, 1, mixed, NULL, &load), -EINVAL);
		assert_non_null(strstr(tn_error_last()->text, "pages[1] = 21: still part of a save"));
		assert_int_equal(tn_save_abort(s[i]), 0);
		while (tn_save_end(s[i], 1, NULL) == -ETIMEDOUT)
			crig_turn(r, CRIG_MS);
	}
	/* What was refused claimed nothing: neither the page before the bad one, nor that. */
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], &key, 1, apart, NULL, &load), 0);
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], &key, 1, pages, NULL, &load), 0);
	mixed[0] = 32;
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &key, 1, mixed, NULL, &s[0]), -EINVAL);
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
	assert_int_equal(tn_load_begin(r->space[0], r->pool[0], &key, 1, mixed, NULL, &load), 0);
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
	sim_rig_down(r);
}

static void a_full_quota_is_called_by_its_name(void **state)
{
	struct crig *r = rig_up(0);
	uint32_t pages[PER_BLOCK] = {4, 5};
	struct tn_key keys[2] = {crig_key(1), crig_key(2)};
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_match m = {.size = sizeof(m)};
	struct tn_save *s;

	r->space[0]->quota.disk_bytes = r->space[0]->shape.slot_bytes;
	save(r, 0, 1);
	assert_int_equal(tn_match(r->space[0], keys, 1, NULL, &m, TN_MATCH_PIN), 1);
	assert_int_equal(tn_save_begin(r->space[0], r->pool[0], &keys[1], 1, pages, NULL, &s), 0);
	crig_run(r, CRIG_MS);
	assert_non_null(strstr(tn_error_last()->text, "quota"));
	assert_int_equal(tn_save_abort(s), 0);
	while (tn_save_end(s, 1, &res) == -ETIMEDOUT)
		crig_turn(r, CRIG_MS);
	assert_int_equal(tn_unpin(r->space[0], m.pin), 0);
	sim_rig_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_next_flush_writes_what_failed_before),
		cmocka_unit_test(what_failed_is_written_when_the_device_comes_back),
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
