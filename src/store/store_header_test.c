/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of segments that are not what the index says: which are made again, and what is told of it. */
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

#define SAVED 20u /* in several segments */
#define SEGMENT 1u

/* A killed store with SAVED durable blocks; *sb: where things are in it. */
static struct rig *killed_store(struct tn_disk_super *sb)
{
	struct rig *r = rig_new(tn_test_seed());

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	*sb = r->store->dev[0].super;
	assert_int_equal(tn_store_segment_of(r->store, tn_store_local(r->store, rig_find(r, SAVED - 1)->slot)), SEGMENT);
	tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
	rig_abandon(r);
	return r;
}

static struct tn_disk_segment header_of(struct rig *r, const struct tn_disk_super *sb, uint32_t segment)
{
	struct tn_disk_segment h;

	assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, sb->segments_offset + segment * sb->segment_bytes, &h, sizeof(h)), 0);
	return h;
}

static void put_header(struct rig *r, const struct tn_disk_super *sb, uint32_t segment, struct tn_disk_segment *h, bool seal)
{
	if (seal)
		tn_disk_seal(&h->head, TN_DISK_MAGIC_SEGMENT, sizeof(*h));
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, sb->segments_offset + segment * sb->segment_bytes, h, sizeof(*h)), 0);
}

/* All blocks are there and can be read; after the next opening, too. */
static void opens_whole(struct rig *r, bool rebuild)
{
	r->opts.rebuild = rebuild;
	for (int again = 0; again < 2; again++) {
		if (rig_open(r))
			fail_msg("does not open: %s", tn_error_last()->text);
		for (uint64_t n = 0; n < SAVED; n++)
			if (!rig_find(r, n) || rig_read(r, n))
				fail_msg("block %llu is lost", (unsigned long long)n);
		assert_int_equal(rig_close(r), 0);
		r->opts.rebuild = false;
	}
}

static void a_header_whose_version_has_a_damaged_bit_is_made_again(void **state)
{
	for (unsigned bit = 0; bit < 32; bit++) { /* version, and the two bytes behind it */
		struct tn_disk_segment h, now;
		struct tn_disk_super sb;
		struct rig *r = killed_store(&sb);

		h = now = header_of(r, &sb, SEGMENT);
		((unsigned char *)&h)[4 + bit / 8] ^= (unsigned char)(1u << bit % 8);
		put_header(r, &sb, SEGMENT, &h, false);
		opens_whole(r, bit & 1);
		h = header_of(r, &sb, SEGMENT);
		assert_int_equal(h.head.version, TN_DISK_VERSION);
		assert_memory_equal(&h.shape, &now.shape, sizeof(h.shape));
		rig_free(r);
	}
}

static void a_header_of_another_place_in_this_device_is_made_again(void **state)
{
	for (int rebuild = 0; rebuild < 2; rebuild++) {
		struct tn_disk_segment h;
		struct tn_disk_super sb;
		struct rig *r = killed_store(&sb);

		h = header_of(r, &sb, 0);
		put_header(r, &sb, SEGMENT, &h, false);
		opens_whole(r, rebuild);
		assert_int_equal(header_of(r, &sb, SEGMENT).segment, SEGMENT);
		rig_free(r);
	}
}

static void a_header_older_than_the_index_is_made_again_if_blocks_bear_out_the_index(void **state)
{
	for (int older = 0; older < 2; older++) {
		struct tn_disk_segment h;
		struct tn_disk_super sb;
		struct rig *r = killed_store(&sb);

		h = header_of(r, &sb, SEGMENT);
		h.generation -= (uint32_t)older;
		h.shape.slot_bytes += older ? 0 : TN_DISK_PAGE; /* or of other sizes */
		put_header(r, &sb, SEGMENT, &h, true);
		opens_whole(r, false);
		assert_non_null(strstr(r->logs, "damaged headers of 1 segment, made again"));
		rig_free(r);
	}
}

static void what_is_forgotten_with_a_header_newer_than_the_index_is_told(void **state)
{
	struct tn_disk_segment h;
	struct tn_disk_super sb;
	struct rig *r = killed_store(&sb);
	uint32_t left = 0;

	h = header_of(r, &sb, SEGMENT);
	h.generation++;
	put_header(r, &sb, SEGMENT, &h, true);
	assert_int_equal(rig_open(r), 0);
	assert_non_null(strstr(r->logs, "newer than the index: what it says of the blocks of 1 segment is forgotten"));
	for (uint64_t n = 0; n < SAVED; n++)
		left += rig_find(r, n) != NULL;
	assert_in_range(left, 1, SAVED - 1);
	for (uint64_t n = 100; rig_save(r, n) >= 0; n++) /* and the segment is used again */
		;
	assert_true(r->store->dev[0].segs[SEGMENT].slots[TN_SLOT_COMMITTED] > 0);
	rig_free(r);
}

/* A header is written before its record: the kill of a process leaves a header that is newer than an index without blocks. */
static void a_newer_header_of_an_empty_segment_is_no_damage(void **state)
{
	struct tn_disk_segment h;
	struct tn_disk_super sb;
	struct rig *r = killed_store(&sb);

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < SAVED; n++)
		rig_remove(r, n);
	assert_int_equal(rig_close(r), 0);
	h = header_of(r, &sb, SEGMENT);
	h.generation++;
	put_header(r, &sb, SEGMENT, &h, true);
	r->logs[0] = 0;
	assert_int_equal(rig_open(r), 0);
	assert_null(strstr(r->logs, "damaged"));
	assert_int_equal(r->store->dev[0].lost_segments, 0);
	assert_true(r->store->dev[0].segs[SEGMENT].generation >= h.generation);
	rig_free(r);
}

/* Stores before ours may have left a valid header of a later version, as on a raw drive: of another owner it is nothing. */
static void a_later_version_refuses_the_open_unless_the_header_is_of_another_store(void **state)
{
	for (int ours = 0; ours < 2; ours++) {
		struct tn_disk_segment h;
		struct tn_disk_super sb;
		struct rig *r = killed_store(&sb);
		uint32_t unused = SEGMENT + 1;
		uint64_t digest;

		h = header_of(r, &sb, SEGMENT);
		h.segment = unused;
		h.device_uuid[0] ^= !ours;
		h.generation = 1000;
		put_header(r, &sb, unused, &h, true);
		h = header_of(r, &sb, unused);
		h.head.version = TN_DISK_VERSION + 1;
		put_header(r, &sb, unused, &h, false);
		digest = tn_simdisk_digest(r->disk);
		if (ours) {
			assert_int_equal(rig_open(r), -EPROTONOSUPPORT);
			assert_int_equal(tn_simdisk_digest(r->disk), digest);
		} else {
			opens_whole(r, false);
			assert_null(strstr(r->logs, "damaged"));
		}
		rig_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_header_whose_version_has_a_damaged_bit_is_made_again),
		cmocka_unit_test(a_header_of_another_place_in_this_device_is_made_again),
		cmocka_unit_test(a_header_older_than_the_index_is_made_again_if_blocks_bear_out_the_index),
		cmocka_unit_test(what_is_forgotten_with_a_header_newer_than_the_index_is_told),
		cmocka_unit_test(a_newer_header_of_an_empty_segment_is_no_damage),
		cmocka_unit_test(a_later_version_refuses_the_open_unless_the_header_is_of_another_store),
	};

	return cmocka_run_group_tests_name("store-headers", tests, NULL, NULL);
}
