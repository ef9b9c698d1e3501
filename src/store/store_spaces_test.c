/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of spaces that are given back and given to others: what is found under a number is always its owner's. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

#define BLOCKS 12u

static struct tn_key id_of(uint64_t n)
{
	return (struct tn_key){{1000 + n, 7}};
}

/* Whose block the header in a slot says it is. */
static bool header_of(struct rig *r, tn_slot slot, struct tn_key *id, uint32_t *epoch)
{
	struct tn_store_place place;
	struct tn_store_header h;
	uint64_t uuid[2];
	void *page;
	bool good;

	tn_store_locate(r->store, slot, &place);
	page = aligned_alloc(4096, place.header_bytes);
	tn_store_uuid(r->store, slot, uuid);
	good = rig_io(r, TN_IO_READ, place.file, place.header_offset, page, place.header_bytes) == 0 &&
	       tn_store_header_decode(page, place.header_bytes, uuid, slot, &h) == 0;
	if (good) {
		*id = h.space_id;
		*epoch = h.space_epoch;
	}
	free(page);
	return good;
}

/* Every block that is found lies under its own fingerprint and epoch; how many are of this one. */
static uint32_t owned(struct rig *r, const struct tn_key *whose)
{
	uint32_t n = 0, epoch, said = 0;
	struct tn_key id = {{0, 0}}, own;

	for (uint32_t i = 0; i < RIG_BLOCKS_MAX; i++) {
		if (!r->block[i].live)
			continue;
		assert_int_equal(tn_store_space_info(r->store, r->block[i].entry.space, &own, &epoch), 0);
		assert_true(header_of(r, r->block[i].slot, &id, &said));
		assert_true(tn_key_eq(&id, &own));
		assert_int_equal(said, epoch);
		n += tn_key_eq(&own, whose);
	}
	return n;
}

static void a_number_that_was_given_back_is_given_again_under_a_new_epoch(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key id = id_of(0);
	uint16_t a, b, first;
	uint32_t before, after;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &id, &a), 0);
	assert_int_equal(tn_store_space_info(r->store, a, &id, &before), 0);
	first = tn_store_spaces(r->store);
	for (uint64_t n = 1; n < 3000; n++) {
		tn_store_space_give_back(r->store, a);
		assert_int_equal(tn_store_space_info(r->store, a, &id, &after), -ENOENT);
		assert_int_equal(tn_store_space_drop(r->store, a), -ENOENT);
		id = id_of(n);
		assert_int_equal(tn_store_space(r->store, &id, &b), 0);
		assert_int_equal(b, a);
		assert_int_equal(tn_store_space_info(r->store, b, &id, &after), 0);
		assert_true(after > before);
		before = after;
		if (n % 500 == 0) { /* also over an opening */
			assert_int_equal(rig_close(r), 0);
			assert_int_equal(rig_open(r), 0);
			assert_int_equal(tn_store_space(r->store, &id, &b), 0);
			assert_int_equal(b, a);
		}
	}
	assert_int_equal(tn_store_spaces(r->store), first);
	rig_free(r);
}

static void a_full_table_takes_another_when_one_is_given_back(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key id;
	uint16_t space;

	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 1; n < TN_STORE_SPACES_MAX; n++) {
		id = id_of(n);
		assert_int_equal(tn_store_space(r->store, &id, &space), 0);
	}
	id = id_of(5000);
	assert_int_equal(tn_store_space(r->store, &id, &space), -ENOSPC);
	tn_store_space_give_back(r->store, 700);
	assert_int_equal(tn_store_space(r->store, &id, &space), 0);
	assert_int_equal(space, 700);
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &id, &space), 0);
	assert_int_equal(space, 700);
	rig_free(r);
}

/* ---- crashes ------------------------------------------------------------------------------------------------- */

struct crash {
	bool busy, rebuild;
	bool flushed_a, flushed_b; /* durable: no less may be found */
	uint64_t tried, of_a, of_b;
};

static void crash_now(void *arg, const struct tn_simdisk *disk, uint64_t event)
{
	struct tn_key a = id_of(1), b = id_of(2);
	struct crash *c = arg;

	if (c->busy)
		return;
	c->busy = true;
	for (int mode = 0; mode < TN_SIMDISK_CRASH_MODES; mode++) {
		struct tn_simdisk *clone;
		struct rig *r;
		uint32_t na, nb;

		assert_int_equal(tn_simdisk_clone(disk, event, &clone), 0);
		tn_simdisk_crash(clone, (enum tn_simdisk_crash)mode, event);
		r = rig_new_on(tn_simdisk_io(clone), tn_simdisk_clock(clone), "a");
		r->disk = clone;
		r->opts.rebuild = c->rebuild;
		if (rig_open(r))
			fail_msg("event %llu: %s", (unsigned long long)event, tn_error_last()->text);
		na = owned(r, &a);
		nb = owned(r, &b);
		assert_true(na == 0 || nb == 0); /* they have one number */
		for (uint64_t n = 0; n < BLOCKS; n++)
			/* A rebuild finds headers in slots that were free, and written to: a miss, never wrong bytes. */
			if (rig_find(r, n) && rig_read(r, n))
				assert_true(c->rebuild);
		if (c->flushed_a)
			assert_int_equal(na, BLOCKS);
		if (c->flushed_b)
			assert_int_equal(nb, BLOCKS);
		c->tried++;
		c->of_a += na > 0;
		c->of_b += nb > 0;
		rig_free(r);
	}
	c->busy = false;
}

/* Space a has blocks, loses them and its number; space b gets the number and saves the same keys. The power goes at any time. */
static void give_away(bool rebuild, bool flush_between)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key a = id_of(1), b = id_of(2);
	struct crash c = {.rebuild = rebuild};
	uint16_t first;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &a, &first), 0);
	r->space = first;
	for (uint64_t n = 0; n < BLOCKS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	c.flushed_a = true;
	tn_simdisk_on_event(r->disk, crash_now, &c);
	rig_step(r, 3);
	c.flushed_a = false;
	for (uint64_t n = 0; n < BLOCKS; n++)
		rig_remove(r, n);
	if (flush_between)
		assert_int_equal(rig_flush(r), 0);
	tn_store_space_give_back(r->store, first);
	if (flush_between)
		assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_space(r->store, &b, &r->space), 0);
	assert_int_equal(r->space, first);
	for (uint64_t n = 0; n < BLOCKS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	c.flushed_b = true;
	rig_step(r, 3);
	assert_int_equal(rig_close(r), 0);
	tn_simdisk_on_event(r->disk, NULL, NULL);
	assert_true(c.tried > 200 && c.of_a > 0 && c.of_b > 0);
	rig_free(r);
}

static void a_crash_at_any_time_shows_no_block_under_a_number_that_has_another_owner(void **state)
{
	for (int between = 0; between < 2; between++)
		give_away(false, between);
}

static void nor_does_a_rebuild_from_headers(void **state)
{
	for (int between = 0; between < 2; between++)
		give_away(true, between);
}

static void without_any_table_the_newest_owner_of_a_number_is_believed(void **state)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key a = id_of(1), b = id_of(2);
	uint16_t first;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &a, &first), 0);
	r->space = first;
	for (uint64_t n = 0; n < 2 * BLOCKS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	for (uint64_t n = 0; n < 2 * BLOCKS; n++)
		rig_remove(r, n);
	tn_store_space_give_back(r->store, first);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_space(r->store, &b, &r->space), 0);
	for (uint64_t n = 100; n < 100 + BLOCKS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_close(r), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tn_simdisk_corrupt(r->disk, RIG_PATH, TN_DISK_SPACES_OFFSET(i), TN_DISK_PAGE, 5), 0);
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(owned(r, &b), BLOCKS);
	assert_int_equal(owned(r, &a), 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_number_that_was_given_back_is_given_again_under_a_new_epoch),
		cmocka_unit_test(a_full_table_takes_another_when_one_is_given_back),
		cmocka_unit_test(a_crash_at_any_time_shows_no_block_under_a_number_that_has_another_owner),
		cmocka_unit_test(nor_does_a_rebuild_from_headers),
		cmocka_unit_test(without_any_table_the_newest_owner_of_a_number_is_believed),
	};

	return cmocka_run_group_tests_name("store-spaces", tests, NULL, NULL);
}
