/* SPDX-License-Identifier: Apache-2.0 */
/* The store in daily life: places, the life of a slot, the log, checkpoints, classes, health, budget. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

static void what_was_flushed_is_there_after_closing_and_opening(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 20; n++)
		assert_true(rig_save(r, n) >= 0);
	for (uint64_t n = 0; n < 20; n += 3)
		rig_remove(r, n);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 20; n++) {
		struct rig_block *b = rig_find(r, n);
		struct tn_key parent = rig_key(n + 1000000);

		assert_int_equal(b != NULL, n % 3 != 0);
		if (!b)
			continue;
		assert_true(tn_key_eq(&b->entry.parent, &parent));
		assert_int_equal(b->entry.recency, n);
		assert_int_equal(b->entry.flags, n);
		assert_int_equal(rig_read(r, n), 0);
	}
	rig_free(r);
}

static void what_was_flushed_is_there_after_a_crash(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 20; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	for (uint64_t n = 20; n < 25; n++)
		assert_true(rig_save(r, n) >= 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), 20);
	for (uint64_t n = 0; n < 20; n++)
		assert_int_equal(rig_read(r, n), 0);
	rig_free(r);
}

static void has_sequences(struct rig *r)
{
	for (uint64_t n = 0; n < 20; n++) {
		const struct rig_block *b = rig_find(r, n);

		assert_non_null(b);
		assert_int_equal(tn_store_sequence(r->store, b->slot), b->entry.sequence);
		assert_int_equal(rig_read(r, n), 0); /* the header says so, too */
	}
}

static void the_sequence_of_a_slot_is_that_of_its_header_however_it_was_recovered(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 20; n++)
		assert_true(rig_save(r, n) >= 0);
	has_sequences(r);
	slot = rig_find(r, 7)->slot;
	rig_remove(r, 7);
	assert_int_equal(tn_store_sequence(r->store, slot), 0);
	assert_true(rig_save(r, 7) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1); /* from the log */
	has_sequences(r);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0); /* from the checkpoint */
	has_sequences(r);
	assert_int_equal(rig_close(r), 0);
	r->opts.rebuild = true;
	assert_int_equal(rig_open(r), 0); /* from the headers */
	has_sequences(r);
	rig_free(r);
}

static void the_log_wraps_around_many_times(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t oldest = 0;

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 3000; n++) {
		while (rig_save(r, n) < 0) {
			if (rig_find(r, oldest))
				rig_remove(r, oldest);
			oldest++;
			assert_int_equal(rig_flush(r), 0);
		}
		if (n % 8 == 0)
			assert_int_equal(rig_flush(r), 0);
		if (n % 500 == 499) {
			uint32_t live;

			assert_int_equal(rig_flush(r), 0);
			live = rig_live(r);
			rig_crash(r, TN_SIMDISK_TEAR, n);
			assert_int_equal(rig_live(r), live);
			for (uint64_t k = oldest; k <= n; k++)
				assert_int_equal(rig_read(r, k), 0);
		}
	}
	assert_true(r->store->dev[0].log.next.position > 8 * r->store->dev[0].super.log_bytes);
	rig_free(r);
}

/* ---- headers ------------------------------------------------------------------------------------------------ */

static void a_header_round_trips_and_any_changed_byte_is_found(void **state)
{
	static const uint32_t counts[] = {1, 2, 330, 331, 700, TN_OBJECTS_MAX};
	uint64_t uuid[2] = {5, 6}, other[2] = {5, 7};
	uint64_t *sums = calloc(TN_OBJECTS_MAX, sizeof(*sums));
	uint32_t *lens = calloc(TN_OBJECTS_MAX, sizeof(*lens));
	unsigned char *page = aligned_alloc(4096, 65536);
	struct tn_store_header h, back;

	for (uint32_t i = 0; i < TN_OBJECTS_MAX; i++) {
		sums[i] = i * 0x123456789abcull;
		lens[i] = i + 1;
	}
	for (unsigned c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
		uint32_t size = tn_store_header_size(counts[c]);

		h = (struct tn_store_header){.entry = {rig_key(1), rig_key(2), 77, 3, 99, 4},
					     .space_id = rig_key(3),
					     .space_epoch = 8,
					     .group = 9,
					     .codec = 10,
					     .key_id = 11,
					     .nobjects = counts[c],
					     .object_bytes = lens,
					     .object_checksum = sums};
		assert_int_equal(size % TN_STORE_HEADER_BYTES, 0);
		tn_store_header_encode(&h, uuid, 1234, page);
		assert_int_equal(tn_store_header_decode(page, size, uuid, 1234, &back), 0);
		assert_memory_equal(&back.entry.key, &h.entry.key, 32);
		assert_int_equal(back.entry.sequence, 77);
		assert_int_equal(back.nobjects, counts[c]);
		assert_memory_equal(back.object_bytes, lens, counts[c] * sizeof(*lens));
		assert_memory_equal(back.object_checksum, sums, counts[c] * sizeof(*sums));
		assert_int_equal(tn_store_header_decode(page, size, other, 1234, &back), -EXDEV);
		assert_int_equal(tn_store_header_decode(page, size, uuid, 1235, &back), -EBADMSG);
		assert_int_equal(tn_store_header_decode(page, size - 1, uuid, 1234, &back), -EBADMSG);
		for (uint32_t i = 0; i < size; i += 1 + i / 64) {
			page[i] ^= 0x10;
			assert_true(tn_store_header_decode(page, size, uuid, 1234, &back) < 0);
			page[i] ^= 0x10;
		}
	}
	page[4] = 2;
	assert_int_equal(tn_store_header_decode(page, 65536, uuid, 1234, &back), -EPROTONOSUPPORT);
	page[4] = 9; /* one bit from 1: a damaged version */
	assert_int_equal(tn_store_header_decode(page, 65536, uuid, 1234, &back), -EBADMSG);
	free(sums);
	free(lens);
	free(page);
}

/* ---- places --------------------------------------------------------------------------------------------------- */

static void slots_do_not_overlap_and_start_where_drives_like_it(void **state)
{
	static const uint32_t large[2] = {40000, 50000};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_place place[256];
	uint32_t cls, n = 0;
	tn_slot slot;

	r->evict_removes = false;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, 2, large, &cls), 0);
	for (unsigned i = 0; rig_reserve(r, i % 4 ? r->cls : cls, 1, &slot) == 1; i++)
		tn_store_locate(r->store, slot, &place[n++]);
	assert_true(n > 20);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(place[i].data_offset % (place[i].slot_bytes >= 65536 ? 16384 : 4096), 0);
		for (uint32_t k = 0; k < i; k++) {
			assert_true(place[i].data_offset >= place[k].data_offset + place[k].slot_bytes ||
				    place[k].data_offset >= place[i].data_offset + place[i].slot_bytes);
			assert_true(place[i].header_offset >= place[k].header_offset + place[k].header_bytes ||
				    place[k].header_offset >= place[i].header_offset + place[i].header_bytes);
			assert_true(place[i].header_offset >= place[k].data_offset + place[k].slot_bytes ||
				    place[k].data_offset >= place[i].header_offset + place[i].header_bytes);
		}
		assert_true(place[i].data_offset + place[i].slot_bytes <=
			    r->store->dev[0].super.segments_offset + (uint64_t)r->store->segment_count * r->store->segment_bytes);
	}
	rig_free(r);
}

static void blocks_saved_together_are_neighbours_and_spread_over_devices(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_place a, b;
	tn_slot slot[6];

	r->dirs[1] = "b";
	r->opts.ndirs = 2;
	r->opts.capacity_bytes *= 2;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 6, slot), 6);
	for (unsigned i = 0; i + 2 < 6; i++) {
		tn_store_locate(r->store, slot[i], &a);
		tn_store_locate(r->store, slot[i + 2], &b);
		assert_int_equal(a.device, b.device);
		assert_int_equal(b.data_offset, a.data_offset + a.slot_bytes);
		tn_store_locate(r->store, slot[i + 1], &b);
		assert_int_not_equal(a.device, b.device);
	}
	rig_free(r);
}

static void a_freed_slot_is_not_reused_before_its_record_is_durable(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0;
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	slot = rig_find(r, 3)->slot;
	rig_remove(r, 3);
	assert_int_equal(rig_save(r, n), -1);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_find(r, n)->slot, slot);
	rig_free(r);
}

static void a_saver_that_waits_for_a_freed_slot_costs_one_group_and_one_cycle(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0, freeing = 1, some, writes;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	assert_int_equal(rig_flush(r), 0);
	rig_remove(r, 3);
	writes = tn_simdisk_writes(r->disk);
	while (freeing > 0) {
		assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &(tn_slot){0}), 0);
		rig_step(r, 1);
		tn_store_free_slots(r->store, r->cls, &some, &freeing);
	}
	assert_int_equal(tn_simdisk_writes(r->disk) - writes, 2); /* the group that tells the removal, and the mark */
	rig_free(r);
}

static void tables_for_so_many_blocks_hold_so_many_blocks(void **state)
{
	static const uint64_t blocks[] = {1, 10, 100, 700};

	for (unsigned i = 0; i < 4; i++) {
		struct rig *r = rig_new(tn_test_seed());
		uint64_t n = 0;

		r->opts.segment_bytes = 0;
		r->opts.capacity_bytes = tn_store_bytes_for(blocks[i], 1, RIG_OBJECTS, r->object_bytes, &r->opts.segment_bytes);
		r->opts.max_slots = (uint32_t)blocks[i] * 2 + 128;
		assert_int_equal(rig_open(r), 0);
		while (n < blocks[i] + 30 && rig_save(r, n) >= 0)
			n++;
		assert_int_equal(n, blocks[i] + 30);
		rig_free(r);
	}
}

/* ---- failing slots ------------------------------------------------------------------------------------------------- */

static void the_first_failure_frees_a_slot_the_second_quarantines_it(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_device_stats st;
	uint64_t n = 0, k;
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	while (rig_save(r, n) >= 0)
		n++;
	slot = rig_find(r, 3)->slot;
	rig_find(r, 3)->live = false;
	tn_store_fail_slot(r->store, slot, false);
	assert_int_equal(rig_flush(r), 0);
	/* The count survives crashes and checkpoints. */
	rig_crash(r, TN_SIMDISK_DROP, 2);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 3) >= 0);
	assert_int_equal(rig_find(r, 3)->slot, slot);
	rig_find(r, 3)->live = false;
	tn_store_fail_slot(r->store, slot, false);
	/* An I/O error does it at once. */
	slot = rig_find(r, 4)->slot;
	rig_find(r, 4)->live = false;
	tn_store_fail_slot(r->store, slot, true);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(rig_save(r, 900), -1);
	for (unsigned i = 0; i < 2; i++) {
		rig_crash(r, TN_SIMDISK_DROP, 3);
		assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
		assert_int_equal(st.quarantined_slots, 2);
		assert_int_equal(st.blocks, n - 2);
		assert_int_equal(rig_save(r, 900), -1);
		assert_int_equal(rig_close(r), 0);
		assert_int_equal(rig_open(r), 0);
	}
	for (k = 0; k < n; k++)
		assert_int_equal(rig_find(r, k) != NULL, k != 3 && k != 4);
	rig_free(r);
}

/* ---- durability under trouble ----------------------------------------------------------------------------------------- */

static void recency_reaches_the_disk_when_the_store_is_closed(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	rig_find(r, 1)->entry.recency = 4711;
	tn_store_touch(r->store, rig_find(r, 1)->slot, 4711);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_find(r, 1)->entry.recency, 4711);
	rig_free(r);
}

static void a_flush_whose_write_fails_says_so_and_the_next_one_makes_good(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_simdisk_fault f = {.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = 1};

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(tn_simdisk_set_faults(r->disk, &f, 1), 0);
	assert_int_equal(rig_flush(r), -EIO);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_read(r, 1), 0);
	rig_free(r);
}

static void flushed(void *arg, int status)
{
	*(int *)arg = status;
}

static void poll_only(struct rig *r)
{
	struct tn_io_req *done[4];
	unsigned n = tn_io_poll(r->io, done, 4, 1000000);

	for (unsigned i = 0; i < n; i++)
		assert_true(tn_store_complete(r->store, done[i]));
}

static void a_full_log_only_delays_until_the_checkpoint_ends(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store_device *d;
	int done = 1;

	assert_int_equal(rig_open(r), 0);
	d = &r->store->dev[0];
	/* No steps, so that no checkpoint begins until the log is full. */
	for (uint64_t n = 0; !d->log.full; n++) {
		assert_true(n < 1000);
		assert_true(rig_save(r, 7) >= 0);
		done = 1;
		tn_store_flush(r->store, flushed, &done);
		for (unsigned i = 0; i < 40 && done == 1; i++)
			poll_only(r);
		rig_remove(r, 7);
	}
	assert_int_equal(done, 1); /* waits */
	assert_true(rig_save(r, 8) >= 0); /* a publish never does */
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(done, 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), 1);
	assert_int_equal(rig_read(r, 8), 0);
	rig_free(r);
}

static void a_full_disk_shrinks_the_store_instead_of_stopping_it(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t n = 0, many;

	assert_int_equal(rig_open(r), 0);
	while (n < 15 && rig_save(r, n) >= 0)
		n++;
	tn_simdisk_set_capacity(r->disk, (uint64_t)tn_simdisk_size(r->disk, RIG_PATH));
	while (rig_save(r, n) >= 0)
		n++;
	assert_in_range(n, 15, 40);
	assert_non_null(strstr(r->logs, "no free disk space for segment"));
	rig_remove(r, 0);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save(r, n) >= 0);
	/* Room comes back: so does the capacity, without anybody's help. */
	tn_simdisk_set_capacity(r->disk, UINT64_MAX);
	tn_simdisk_advance(r->disk, 60000000000ull);
	many = n + 10;
	while (++n < many)
		assert_true(rig_save(r, n) >= 0);
	rig_free(r);
}

static void an_owner_that_refuses_a_recovered_block_drops_it_durably(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 10; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_close(r), 0);
	r->refuse_above = 6;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(rig_live(r), 6);
	assert_int_equal(rig_flush(r), 0);
	r->refuse_above = UINT32_MAX;
	rig_crash(r, TN_SIMDISK_DROP, 1);
	assert_int_equal(rig_live(r), 6);
	rig_free(r);
}

static void memory_that_runs_out_while_opening_is_an_error_and_leaks_nothing(void **state)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(rig_close(r), 0);
	for (uint32_t n = 0; n < 200; n++) {
		r->allocs_left = n;
		if (rig_open(r) == 0)
			break;
		assert_int_equal(tn_error_last()->code, -ENOMEM);
		r->allocs_left = 0; /* closing needs none */
		assert_int_equal(rig_close(r), 0);
	}
	assert_in_range(r->allocs_left, 0, 150);
	r->allocs_left = UINT32_MAX;
	assert_int_equal(rig_read(r, 1), 0);
	rig_free(r);
}

/* ---- health, budget, preparation ------------------------------------------------------------------------------------------ */

static void wait_for_health(struct rig *r, enum tn_health want)
{
	for (unsigned i = 0; i < 200 && tn_store_health(r->store, 0) != want; i++) {
		tn_simdisk_advance(r->disk, 1000000000);
		rig_step(r, 4);
	}
	assert_int_equal(tn_store_health(r->store, 0), want);
	assert_int_equal(r->health, want);
}

static void a_device_goes_through_its_states_and_comes_back(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_simdisk_fault eio[] = {{.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX},
					 {.kind = TN_SIMDISK_EIO, .op = TN_IO_READ, .count = UINT64_MAX}};
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	for (unsigned i = 0; i < 100; i++) /* one late read in ten does nothing */
		tn_store_observe(r->store, 0, TN_IO_READ, 4096, i % 10 ? 1000 : 2000000000, 0);
	assert_int_equal(tn_store_health(r->store, 0), TN_HEALTHY);
	for (unsigned i = 0; i < 40; i++)
		tn_store_observe(r->store, 0, TN_IO_READ, 4096, 2000000000, 0);
	assert_int_equal(tn_store_health(r->store, 0), TN_SLOW);
	wait_for_health(r, TN_HEALTHY);
	tn_store_observe(r->store, 0, TN_IO_WRITE, 0, 1000, -ENOSPC);
	assert_int_equal(tn_store_health(r->store, 0), TN_READ_ONLY);
	assert_int_equal(tn_store_reserve(r->store, r->cls, 1, &slot), 0);
	wait_for_health(r, TN_HEALTHY);
	tn_simdisk_set_faults(r->disk, eio, 2);
	for (unsigned i = 0; i < 8; i++)
		tn_store_observe(r->store, 0, TN_IO_READ, 0, 1000, -EIO);
	assert_int_equal(tn_store_health(r->store, 0), TN_OFFLINE);
	tn_simdisk_advance(r->disk, 100000000000ull);
	rig_step(r, 20);
	assert_int_equal(tn_store_health(r->store, 0), TN_OFFLINE);
	tn_simdisk_set_faults(r->disk, NULL, 0);
	wait_for_health(r, TN_HEALTHY);
	assert_true(rig_save(r, 1) >= 0);
	rig_free(r);
}

static void observe(struct rig *r, enum tn_io_op op, int status, unsigned times)
{
	while (times-- > 0)
		tn_store_observe(r->store, 0, op, status ? 0 : 4096, 1000, status);
}

static void what_works_says_nothing_of_what_does_not(void **state)
{
	static const enum tn_io_op fails[] = {TN_IO_READ, TN_IO_WRITE, TN_IO_SYNC};

	for (unsigned f = 0; f < 3; f++) {
		struct rig *r = rig_new(tn_test_seed());

		assert_int_equal(rig_open(r), 0);
		for (unsigned i = 0; i < 8; i++) {
			assert_int_equal(tn_store_health(r->store, 0), TN_HEALTHY);
			for (unsigned other = 0; other < 3; other++)
				observe(r, fails[other], 0, other == f ? 0 : 20);
			observe(r, fails[f], -EIO, 1);
		}
		assert_int_equal(tn_store_health(r->store, 0), fails[f] == TN_IO_READ ? TN_OFFLINE : TN_READ_ONLY);
		wait_for_health(r, TN_HEALTHY);
		rig_free(r);
	}
}

/* How long until probes find it in order. */
static uint64_t time_away(struct rig *r)
{
	uint64_t begun = tn_now_ns(r->clock);

	assert_int_equal(tn_store_health(r->store, 0), TN_READ_ONLY);
	while (tn_store_health(r->store, 0) != TN_HEALTHY) {
		tn_simdisk_advance(r->disk, 50000000);
		rig_step(r, 1);
	}
	return tn_now_ns(r->clock) - begun;
}

static void a_device_that_fails_as_soon_as_it_is_back_is_probed_later_each_time(void **state)
{
	const uint64_t second = 1000000000;
	struct rig *r = rig_new(tn_test_seed());
	uint64_t away[8];

	assert_int_equal(rig_open(r), 0);
	for (unsigned i = 0; i < 8; i++) {
		observe(r, TN_IO_WRITE, -ENOSPC, 1);
		away[i] = time_away(r);
	}
	assert_in_range(away[0], 1 * second, 3 * second);
	assert_in_range(away[2], 4 * second, 6 * second);
	assert_in_range(away[7], 30 * second, 33 * second);
	tn_simdisk_advance(r->disk, 60 * second);
	observe(r, TN_IO_WRITE, -ENOSPC, 1);
	assert_in_range(time_away(r), 1 * second, 3 * second);
	rig_free(r);
}

static void no_slot_is_to_blame_while_its_device_is_offline(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_device_stats st;
	tn_slot slot;

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 1; n <= 2; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	tn_store_fail_slot(r->store, rig_find(r, 1)->slot, true);
	rig_find(r, 1)->live = false;
	observe(r, TN_IO_READ, -EIO, 8);
	slot = rig_find(r, 2)->slot;
	assert_true(tn_store_offline(r->store, slot));
	tn_store_fail_slot(r->store, slot, true);
	rig_find(r, 2)->live = false;
	wait_for_health(r, TN_HEALTHY);
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.quarantined_slots, 1); /* the first one */
	rig_free(r);
}

static void a_dead_device_fails_flushes_and_hangs_nobody(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_simdisk_fault f = {.kind = TN_SIMDISK_EIO, .op = TN_IO_WRITE, .count = UINT64_MAX};

	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	tn_simdisk_set_faults(r->disk, &f, 1);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(rig_flush(r), -EIO);
	assert_int_equal(tn_store_health(r->store, 0), TN_READ_ONLY);
	assert_int_equal(rig_close(r), -EIO);
	tn_simdisk_set_faults(r->disk, NULL, 0);
	assert_int_equal(rig_open(r), 0);
	rig_free(r);
}

static void the_write_budget_holds_over_any_day(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	const uint64_t day = 1 << 30, hour_ns = 3600000000000ull;
	uint64_t written[72] = {0};

	r->opts.write_bytes_per_day = day;
	assert_int_equal(rig_open(r), 0);
	for (unsigned h = 0; h < 72; h++) {
		while (tn_store_charge_write(r->store, 1 << 20))
			written[h] += 1 << 20;
		tn_simdisk_advance(r->disk, hour_ns);
	}
	for (unsigned h = 0; h + 24 <= 72; h++) {
		uint64_t sum = 0;

		for (unsigned k = 0; k < 24; k++)
			sum += written[h + k];
		assert_in_range(sum, day / 2, day);
	}
	rig_free(r);
}

static void segments_are_prepared_ahead_of_their_use(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	uint32_t prepared = 0;

	r->opts.prepare = true;
	assert_int_equal(rig_open(r), 0);
	assert_true(rig_save(r, 0) >= 0);
	rig_step(r, 100);
	for (uint32_t i = 0; i < r->store->segment_count; i++)
		prepared += r->store->dev[0].segs[i].prepared;
	assert_int_equal(prepared, 1);
	/* The next open knows it. */
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	for (uint32_t i = 0; i < r->store->segment_count; i++)
		prepared += r->store->dev[0].segs[i].prepared;
	assert_int_equal(prepared, 2);
	for (uint64_t n = 1; n < 60; n++) {
		assert_true(rig_save(r, n) >= 0);
		rig_step(r, 3);
	}
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 60; n++)
		assert_int_equal(rig_read(r, n), 0);
	rig_free(r);
}

static void spaces_keep_their_numbers_and_a_dropped_one_stays_dropped(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key id, zero = {{0, 0}};
	uint32_t epoch;
	uint16_t space;

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 1; n < 40; n++) {
		id = rig_key(n);
		assert_int_equal(tn_store_space(r->store, &id, &space), 0);
		assert_int_equal(space, n);
	}
	assert_int_equal(tn_store_space(r->store, &zero, &space), -EINVAL);
	assert_int_equal(tn_store_space_info(r->store, 900, &id, &epoch), -ENOENT);
	r->space = 7;
	for (uint64_t n = 0; n < 5; n++)
		assert_true(rig_save(r, n) >= 0);
	r->space = 8;
	for (uint64_t n = 5; n < 10; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(tn_store_space_drop(r->store, 7), 0);
	assert_int_equal(rig_flush(r), 0);
	/* A block saved after the drop is not meant by it. */
	r->space = 7;
	rig_remove(r, 4);
	assert_true(rig_save(r, 4) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_crash(r, TN_SIMDISK_DROP, 1);
	for (uint64_t n = 0; n < 10; n++)
		assert_int_equal(rig_find(r, n) != NULL, n >= 4);
	assert_int_equal(tn_store_space_info(r->store, 7, &id, &epoch), 0);
	assert_int_equal(epoch, 2);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_flushed_is_there_after_closing_and_opening),
		cmocka_unit_test(what_was_flushed_is_there_after_a_crash),
		cmocka_unit_test(the_sequence_of_a_slot_is_that_of_its_header_however_it_was_recovered),
		cmocka_unit_test(the_log_wraps_around_many_times),
		cmocka_unit_test(a_header_round_trips_and_any_changed_byte_is_found),
		cmocka_unit_test(slots_do_not_overlap_and_start_where_drives_like_it),
		cmocka_unit_test(blocks_saved_together_are_neighbours_and_spread_over_devices),
		cmocka_unit_test(a_freed_slot_is_not_reused_before_its_record_is_durable),
		cmocka_unit_test(a_saver_that_waits_for_a_freed_slot_costs_one_group_and_one_cycle),
		cmocka_unit_test(tables_for_so_many_blocks_hold_so_many_blocks),
		cmocka_unit_test(the_first_failure_frees_a_slot_the_second_quarantines_it),
		cmocka_unit_test(recency_reaches_the_disk_when_the_store_is_closed),
		cmocka_unit_test(a_flush_whose_write_fails_says_so_and_the_next_one_makes_good),
		cmocka_unit_test(a_full_log_only_delays_until_the_checkpoint_ends),
		cmocka_unit_test(a_full_disk_shrinks_the_store_instead_of_stopping_it),
		cmocka_unit_test(an_owner_that_refuses_a_recovered_block_drops_it_durably),
		cmocka_unit_test(memory_that_runs_out_while_opening_is_an_error_and_leaks_nothing),
		cmocka_unit_test(a_device_goes_through_its_states_and_comes_back),
		cmocka_unit_test(what_works_says_nothing_of_what_does_not),
		cmocka_unit_test(a_device_that_fails_as_soon_as_it_is_back_is_probed_later_each_time),
		cmocka_unit_test(no_slot_is_to_blame_while_its_device_is_offline),
		cmocka_unit_test(a_dead_device_fails_flushes_and_hangs_nobody),
		cmocka_unit_test(the_write_budget_holds_over_any_day),
		cmocka_unit_test(segments_are_prepared_ahead_of_their_use),
		cmocka_unit_test(spaces_keep_their_numbers_and_a_dropped_one_stays_dropped),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
