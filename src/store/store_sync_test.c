/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncs that fail and give up what they covered, as Linux does: later ones say 0 for what is not there. Each test
 * is one way in which such bytes could be believed; the last ones are about flushes when syncs are good again. The power-cut
 * harness in sim/ has lost syncs by chance.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

/* Of the syncs from now on these are lost. */
static void lose_syncs(struct rig *r, uint64_t from, uint64_t count)
{
	struct tn_simdisk_fault f = {.kind = TN_SIMDISK_SYNC_LOST, .op = TN_IO_SYNC, .from = from, .count = count};

	assert_int_equal(tn_simdisk_set_faults(r->disk, &f, 1), 0);
}

static void the_data_of_a_failed_sync_is_given_up_and_never_called_durable(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_device_stats st;

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save(r, 2) >= 0);
	lose_syncs(r, 0, 1);
	assert_int_equal(rig_flush(r), -EIO);
	/* Until the owner was asked to remove it, no flush may claim it. */
	assert_int_equal(rig_flush(r), -EIO);
	rig_step(r, 1);
	assert_int_equal(r->evict_calls, 1);
	assert_null(rig_find(r, 2));
	assert_true(rig_save(r, 3) >= 0);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.lost_blocks, 1);
	assert_non_null(strstr(r->logs, "1 blocks that were not durable yet are given up"));
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 1), 0);
	assert_null(rig_find(r, 2));
	assert_int_equal(rig_read(r, 3), 0);
	rig_free(r);
}

static void a_block_that_was_being_written_when_a_sync_failed_is_given_up(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_index_entry e = {.key = rig_key(2)};
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 1);
	lose_syncs(r, 0, 1);
	assert_int_equal(rig_flush(r), -EIO);
	rig_step(r, 1);
	assert_int_equal(r->evict_calls, 1);
	e.sequence = tn_store_next_sequence(r->store);
	e.space = r->space;
	r->block[7] = (struct rig_block){e, slot, true};
	tn_store_publish(r->store, slot, 7, &e);
	assert_int_equal(rig_flush(r), -EIO);
	rig_step(r, 1);
	assert_int_equal(r->evict_calls, 2);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), 0);
	rig_free(r);
}

static void an_owner_that_cannot_remove_a_block_is_asked_again_and_it_is_never_logged(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	r->evict_removes = false; /* pinned */
	assert_true(rig_save(r, 1) >= 0);
	lose_syncs(r, 0, 1);
	assert_int_equal(rig_flush(r), -EIO);
	rig_step(r, 1);
	assert_int_equal(rig_flush(r), 0);
	tn_simdisk_advance(r->disk, 200000000);
	rig_step(r, 1);
	assert_true(r->evict_calls >= 2);
	assert_int_equal(rig_close(r), 0); /* with a checkpoint, which leaves it out */
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_live(r), 0);
	rig_free(r);
}

static void a_segment_header_of_a_failed_sync_is_written_again(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0); /* the first block: its segment is assigned with it */
	lose_syncs(r, 0, 1);
	assert_int_equal(rig_flush(r), -EIO);
	rig_step(r, 1);
	assert_true(rig_save(r, 2) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 2), 0);
	rig_free(r);
}

static void flushed(void *arg, int status)
{
	*(int *)arg = status;
}

static void sync_finished(struct tn_store_req *r, int status)
{
}

/*
 * A group is being written when a sync fails, and another sync waits behind that one: the good one is sent before the group ends,
 * and covers nothing of what the failed one gave up.
 */
static void a_sync_behind_a_failed_one_does_not_cover_what_that_gave_up(void **state)
{
	static const struct tn_simdisk_fault fails_late[] = {
		{.kind = TN_SIMDISK_SYNC_LOST, .op = TN_IO_SYNC, .count = 1},
		{.kind = TN_SIMDISK_SLOW, .op = TN_IO_SYNC, .count = 1, .delay_ns = 1000000000},
	};
	static const struct tn_simdisk_fault writes_slowly = {
		.kind = TN_SIMDISK_SLOW, .op = TN_IO_WRITE, .count = UINT64_MAX, .delay_ns = 3000000000u};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_device *d;
	struct tn_store_req behind;
	struct tn_store_log before;
	int first = 1, second = 1;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(rig_flush(r), 0);
	before = d->log;
	assert_true(rig_save(r, 2) >= 0);
	assert_int_equal(tn_simdisk_set_faults(r->disk, fails_late, 2), 0);
	tn_store_flush(r->store, flushed, &first);
	while (!d->syncing)
		rig_step(r, 1);
	assert_true(rig_save(r, 3) >= 0);
	assert_int_equal(tn_simdisk_set_faults(r->disk, &writes_slowly, 1), 0);
	tn_store_flush(r->store, flushed, &second);
	tn_store_step(r->store, tn_now_ns(r->clock));
	assert_int_equal(d->log.phase, TN_LOG_WRITE);
	assert_true(d->syncing && first == 1);
	tn_store_req_init(&behind, d, sync_finished); /* as a checkpoint's */
	tn_store_req_submit(&behind, TN_IO_SYNC, 0, NULL, 0);
	while (behind.busy)
		rig_step(r, 1);
	assert_int_equal(behind.io.status, 0);
	assert_int_equal(d->log.phase, TN_LOG_WRITE);
	assert_int_equal(d->log.synced.position, before.synced.position);
	assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
	while (d->log.phase != TN_LOG_IDLE)
		rig_step(r, 1);
	assert_int_equal(d->log.next.position, before.synced.position);
	assert_int_equal(first, -EIO);
	assert_int_equal(second, -EIO);
	rig_step(r, 1);
	assert_true(rig_save(r, 4) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 1), 0);
	assert_int_equal(rig_read(r, 4), 0);
	rig_free(r);
}

static void a_segment_header_that_went_with_another_group_is_written_again(void **state)
{
	static const uint32_t bytes[RIG_OBJECTS] = {20000, 20000, 20000};
	struct rig *r = rig_new(tn_test_seed());
	uint32_t cls;
	tn_slot slot;
	int status = 1;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, RIG_OBJECTS, bytes, &cls), 0);
	assert_true(rig_save(r, 1) >= 0);
	tn_store_step(r->store, tn_now_ns(r->clock)); /* the next segment's disk space, which no reserve waits for */
	assert_true(rig_grown(r));
	lose_syncs(r, 0, 1);
	tn_store_flush(r->store, flushed, &status);
	assert_int_equal(r->store->dev[0].log.phase, TN_LOG_SPACES);
	/* A segment assigned now has its header written before this group, its record only after it. */
	assert_int_equal(tn_store_reserve(r->store, cls, 1, &slot), 1);
	while (status == 1)
		rig_step(r, 1);
	assert_int_equal(status, -EIO);
	tn_store_unreserve(r->store, slot);
	rig_step(r, 1);
	assert_true(rig_save_in(r, 2, cls, bytes, RIG_OBJECTS) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_non_null(rig_find(r, 2));
	assert_int_equal(rig_read(r, 2), 0);
	rig_free(r);
}

static void pages_of_a_checkpoint_lost_by_the_log_s_sync_are_written_again(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_device *d;
	int rc;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	for (uint64_t i = 0; i < 20; i++)
		assert_true(rig_save(r, i) >= 0);
	assert_int_equal(rig_flush(r), 0);
	/* The group that proves the log comes after the pages and before their own sync. */
	lose_syncs(r, 0, 1);
	tn_store_ckpt_start(d, false);
	while (d->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	rc = rig_flush(r);
	if (rc == -EIO) /* the lost sync was its own: of another seed, the pages' sync comes later */
		rc = rig_flush(r);
	assert_int_equal(rc, 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_null(strstr(r->logs, "is damaged"));
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(rig_read(r, i), 0);
	rig_free(r);
}

/* Readable and not durable: only a second look after the next power cut tells. */
static void what_recovery_reads_of_a_session_whose_syncs_failed_is_made_durable(void **state)
{
	/* From the data sync's side, the log's, and the ones of the closing checkpoint. */
	for (uint64_t from = 0; from < 6; from++) {
		struct rig *r = rig_new(tn_test_seed());
		bool three, hundred;
		uint32_t found;

		assert_int_equal(rig_open(r), 0);
		for (uint64_t i = 0; i < 20; i++)
			assert_true(rig_save(r, i) >= 0);
		assert_int_equal(rig_flush(r), 0);
		rig_remove(r, 3);
		assert_true(rig_save(r, 100) >= 0);
		lose_syncs(r, from, UINT64_MAX);
		rig_flush(r);
		rig_close(r);
		assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
		assert_int_equal(rig_open(r), 0);
		found = rig_live(r);
		three = rig_find(r, 3);
		hundred = rig_find(r, 100);
		assert_true(found >= 19);
		assert_int_equal(rig_flush(r), 0);
		rig_crash(r, TN_SIMDISK_DROP, 1);
		assert_int_equal(rig_live(r), found);
		assert_int_equal(rig_find(r, 3) != NULL, three);
		assert_int_equal(rig_find(r, 100) != NULL, hundred);
		for (uint64_t i = 0; i < 20; i++)
			if (rig_find(r, i))
				assert_int_equal(rig_read(r, i), 0);
		assert_null(strstr(r->logs, "rebuilding"));
		/* Of a superblock whose sync failed one copy may be the older one. */
		assert_null(strstr(r->logs, "checkpoint is damaged"));
		assert_null(strstr(r->logs, "log is damaged"));
		rig_free(r);
	}
}

static void a_checkpoint_during_which_a_sync_failed_is_not_believed(void **state)
{
	for (uint64_t from = 0; from < 12; from++) {
		struct rig *r = rig_new(tn_test_seed());
		uint64_t number;

		assert_int_equal(rig_open(r), 0);
		number = r->store->dev[0].ckpt.number;
		for (uint64_t i = 0; r->store->dev[0].ckpt.number < number + 1 || i % 50 != 49; i++) {
			if (i % 50 == 0)
				lose_syncs(r, from + i / 50, 1);
			if (rig_find(r, i % 20))
				rig_remove(r, i % 20);
			rig_save(r, i % 20);
			rig_flush(r);
			rig_step(r, 2);
		}
		assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
		rig_step(r, 40);
		for (uint64_t i = 0; i < 20; i++)
			if (!rig_find(r, i))
				assert_true(rig_save(r, i) >= 0);
		assert_int_equal(rig_flush(r), 0);
		rig_crash(r, TN_SIMDISK_DROP, 1);
		for (uint64_t i = 0; i < 20; i++)
			assert_int_equal(rig_read(r, i), 0);
		assert_null(strstr(r->logs, "rebuilding"));
		rig_free(r);
	}
}

/* A page of the checkpoint is lost by the log's sync while another page is being written, which ends well. */
static void a_checkpoint_is_not_believed_if_a_sync_fails_while_its_own_write_is_on_its_way(void **state)
{
	static const struct tn_simdisk_fault faults[] = {
		{.kind = TN_SIMDISK_SLOW, .op = TN_IO_WRITE, .count = 1, .delay_ns = 500000000},
		{.kind = TN_SIMDISK_SYNC_LOST, .op = TN_IO_SYNC, .count = 1},
	};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_device *d;
	uint64_t number, writes, n;
	int status = 1;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	for (n = 0; n < 60; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_ckpt_wait(d, true), 0);
	assert_int_equal(tn_store_ckpt_wait(d, true), 0);
	/* Two pages that are no neighbours, so that they are two writes. */
	for (n = 0; tn_store_segment_of(r->store, tn_store_local(r->store, rig_find(r, n)->slot)) < 2;)
		n++;
	rig_remove(r, 0);
	rig_remove(r, n);
	assert_int_equal(rig_flush(r), 0);
	rig_remove(r, n + 1);
	number = d->ckpt.number;
	writes = tn_simdisk_writes(r->disk);
	tn_store_ckpt_start(d, false);
	assert_int_equal(tn_simdisk_writes(r->disk), writes + 1);
	assert_int_equal(tn_simdisk_set_faults(r->disk, faults, 2), 0);
	while (tn_simdisk_writes(r->disk) == writes + 1)
		rig_step(r, 1);
	tn_store_flush(r->store, flushed, &status);
	while (status == 1)
		rig_step(r, 1);
	assert_int_equal(status, -EIO);
	assert_int_equal(d->ckpt.phase, TN_CKPT_PAGES);
	assert_true(d->ckpt.req.busy);
	while (d->ckpt.phase != TN_CKPT_IDLE)
		rig_step(r, 1);
	assert_int_equal(d->ckpt.number, number);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_null(rig_find(r, 0));
	assert_null(rig_find(r, n));
	assert_null(rig_find(r, n + 1));
	assert_null(strstr(r->logs, "is damaged"));
	rig_free(r);
}

/* All syncs fail, until the next cycle by itself is seconds away; one more, and the device took no writes. Then they are good again. */
static void fail_syncs_for_long(struct rig *r, const struct tn_store_device *d)
{
	lose_syncs(r, 0, UINT64_MAX);
	while (d->durable.retry.failures < 7) {
		assert_int_equal(rig_flush(r), -EIO);
		rig_step(r, 1);
	}
	rig_step(r, 10); /* what the last one gave up is logged anew, and waits for the next one */
	assert_int_equal(tn_simdisk_set_faults(r->disk, NULL, 0), 0);
	assert_true(d->log.next.sequence > d->durable.reached.sequence);
}

static void must_flush_at_once(struct rig *r, const struct tn_store_device *d)
{
	uint64_t from = tn_now_ns(r->clock);

	assert_true(d->durable.retry.ns > from + TN_TEST_SECOND);
	assert_int_equal(rig_flush(r), 0);
	assert_in_range(tn_now_ns(r->clock) - from, 0, TN_TEST_SECOND / 50);
}

static void a_flush_tries_again_the_sync_that_its_space_table_waits_for(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	const struct tn_store_device *d;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	assert_true(rig_save(r, 1) >= 0);
	fail_syncs_for_long(r, d);
	assert_true(d->spaces_unsynced);
	assert_int_equal(tn_store_space_drop(r->store, r->space), 0);
	must_flush_at_once(r, d);
	rig_free(r);
}

static void a_flush_tries_again_the_sync_that_a_full_log_waits_for(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	const struct tn_store_device *d;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	assert_true(rig_save(r, 1) >= 0);
	fail_syncs_for_long(r, d);
	assert_true(rig_save(r, 2) >= 0);
	for (uint32_t i = 0; !d->log.full; i++) {
		assert_true(i < 1000);
		tn_store_update(r->store, rig_find(r, 2)->slot);
		rig_step(r, 1);
	}
	must_flush_at_once(r, d);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 2), 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_data_of_a_failed_sync_is_given_up_and_never_called_durable),
		cmocka_unit_test(a_block_that_was_being_written_when_a_sync_failed_is_given_up),
		cmocka_unit_test(an_owner_that_cannot_remove_a_block_is_asked_again_and_it_is_never_logged),
		cmocka_unit_test(a_segment_header_of_a_failed_sync_is_written_again),
		cmocka_unit_test(a_sync_behind_a_failed_one_does_not_cover_what_that_gave_up),
		cmocka_unit_test(a_segment_header_that_went_with_another_group_is_written_again),
		cmocka_unit_test(pages_of_a_checkpoint_lost_by_the_log_s_sync_are_written_again),
		cmocka_unit_test(what_recovery_reads_of_a_session_whose_syncs_failed_is_made_durable),
		cmocka_unit_test(a_checkpoint_during_which_a_sync_failed_is_not_believed),
		cmocka_unit_test(a_checkpoint_is_not_believed_if_a_sync_fails_while_its_own_write_is_on_its_way),
		cmocka_unit_test(a_flush_tries_again_the_sync_that_its_space_table_waits_for),
		cmocka_unit_test(a_flush_tries_again_the_sync_that_a_full_log_waits_for),
	};

	return cmocka_run_group_tests_name("store-sync", tests, NULL, NULL);
}
