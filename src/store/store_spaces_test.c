/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of spaces that are given back and given to others: what is found under a number is always its owner's. And the table that
 * says so: a damaged copy costs nothing, and what was dropped stays dropped.
 */
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
	for (uint64_t n = 1; n < TN_SPACES_MAX; n++) {
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

/* ---- damage -------------------------------------------------------------------------------------------------- */

static struct tn_disk_spaces table_at(struct rig *r, int copy)
{
	struct tn_disk_spaces t;

	assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, TN_DISK_SPACES_OFFSET(copy), &t, sizeof(t)), 0);
	return t;
}

static void flip_in_table(struct rig *r, int copy)
{
	assert_int_equal(tn_simdisk_corrupt(r->disk, RIG_PATH, TN_DISK_SPACES_OFFSET(copy) + TN_DISK_PAGE + 8, 1, 5), 0);
}

static void kill_it(struct rig *r)
{
	tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
	rig_abandon(r);
}

static void finds(struct rig *r, bool a, bool b)
{
	for (uint64_t n = 0; n < BLOCKS; n++) {
		assert_int_equal(rig_find(r, n) && rig_read(r, n) == 0, a);
		assert_int_equal(rig_find(r, 100 + n) && rig_read(r, 100 + n) == 0, b);
	}
}

/* A store that was never reopened: the blocks of space a are dropped, those of space b are there. *old: the table before b. */
static struct rig *store_with_a_dropped_space(struct tn_disk_spaces *old)
{
	struct rig *r = rig_new(tn_test_seed());
	struct tn_key a = id_of(1), b = id_of(2);
	uint16_t first;

	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &a, &first), 0);
	r->space = first;
	for (uint64_t n = 0; n < BLOCKS; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_store_space_drop(r->store, first), 0);
	assert_int_equal(rig_flush(r), 0);
	*old = table_at(r, 0);
	assert_int_equal(tn_store_space(r->store, &b, &r->space), 0);
	for (uint64_t n = 0; n < BLOCKS; n++)
		assert_true(rig_save(r, 100 + n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	return r;
}

static void a_change_is_in_both_copies_before_its_flush_ends(void **state)
{
	struct tn_disk_spaces old, copy[2];
	struct rig *r = store_with_a_dropped_space(&old);

	for (int change = 0; change < 3; change++) {
		assert_int_equal(tn_store_space_drop(r->store, r->space), 0);
		assert_int_equal(rig_flush(r), 0);
		copy[0] = table_at(r, 0);
		copy[1] = table_at(r, 1);
		assert_int_equal(copy[0].generation, r->store->spaces.generation);
		assert_memory_equal(&copy[0], &copy[1], sizeof(copy[0]));
	}
	rig_free(r);
}

static void one_damaged_copy_costs_nothing_and_brings_nothing_back(void **state)
{
	for (int copy = 0; copy < 2; copy++)
		for (int rebuild = 0; rebuild < 2; rebuild++) {
			struct tn_disk_spaces old, t;
			struct rig *r = store_with_a_dropped_space(&old);

			kill_it(r);
			for (int turn = 0; turn < 2; turn++) { /* then the other one, so that the first was written again */
				flip_in_table(r, copy ^ turn);
				r->opts.rebuild = rebuild;
				r->logs[0] = 0;
				assert_int_equal(rig_open(r), 0);
				finds(r, false, true);
				assert_non_null(strstr(r->logs, "one copy of the space table is damaged"));
				assert_true(rebuild || !strstr(r->logs, "rebuilding"));
				t = table_at(r, copy ^ turn);
				assert_int_equal(tn_disk_spaces_check(&t, sizeof(t), r->store->spaces.store_uuid), 0);
				kill_it(r);
			}
			rig_free(r);
		}
}

/* Marks say that a newer table was durable. Headers bring back what the table lacks, and not what it says is dropped. */
static void above_an_older_table_headers_add_spaces_and_nothing_that_was_dropped(void **state)
{
	for (int copy = 0; copy < 2; copy++)
		for (int both = 0; both < 2; both++) {
			struct tn_disk_spaces old;
			struct rig *r = store_with_a_dropped_space(&old);
			struct tn_key b = id_of(2);

			kill_it(r);
			assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, TN_DISK_SPACES_OFFSET(copy), &old, sizeof(old)), 0);
			if (both)
				assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, TN_DISK_SPACES_OFFSET(!copy), &old, sizeof(old)), 0);
			else
				flip_in_table(r, !copy);
			for (int again = 0; again < 2; again++) {
				r->logs[0] = 0;
				assert_int_equal(rig_open(r), 0);
				finds(r, false, true);
				assert_int_equal(owned(r, &b), BLOCKS);
				assert_int_equal(strstr(r->logs, "the newest space table is lost") == NULL, again);
				kill_it(r);
			}
			rig_free(r);
		}
}

static void headers_raise_what_a_table_says_and_lower_nothing(void **state)
{
	static const struct {
		uint64_t sequence;
		uint32_t epoch;
		uint64_t owner; /* id_of */
		/* then the table has */
		bool adopted;
		uint64_t min_sequence, then_owner;
		uint32_t then_epoch;
	} c[] = {
		{99, 5, 1, false, 100, 1, 5}, /* below the minimum */
		{99, 6, 2, false, 100, 1, 5},
		{200, 4, 1, false, 100, 1, 5}, /* of an earlier epoch */
		{200, 5, 2, false, 100, 1, 5}, /* of this epoch there is another owner */
		{200, 5, 1, true, 100, 1, 5},
		{300, 6, 2, true, 300, 2, 6}, /* a later one */
		{250, 6, 2, true, 250, 2, 6}, /* what is learned is lowered */
		{260, 6, 1, false, 250, 2, 6},
		{99, 6, 2, false, 250, 2, 6}, /* not below what the table had */
	};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_store *s;

	assert_int_equal(rig_open(r), 0);
	s = r->store;
	s->spaces.space[7] = (struct tn_disk_space){.id = id_of(1), .epoch = 5, .min_sequence = 100};
	s->spaces.count = 8;
	s->spaces_floor[7] = 100;
	s->spaces_doubted = true;
	for (unsigned i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		struct tn_store_header h = {
			.entry = {.space = 7, .sequence = c[i].sequence}, .space_id = id_of(c[i].owner), .space_epoch = c[i].epoch};
		struct tn_key owner = id_of(c[i].then_owner);

		assert_int_equal(tn_store_spaces_adopt(s, &h), c[i].adopted);
		assert_int_equal(s->spaces.space[7].min_sequence, c[i].min_sequence);
		assert_int_equal(s->spaces.space[7].epoch, c[i].then_epoch);
		assert_true(tn_key_eq(&s->spaces.space[7].id, &owner));
	}
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
		cmocka_unit_test(a_change_is_in_both_copies_before_its_flush_ends),
		cmocka_unit_test(one_damaged_copy_costs_nothing_and_brings_nothing_back),
		cmocka_unit_test(above_an_older_table_headers_add_spaces_and_nothing_that_was_dropped),
		cmocka_unit_test(headers_raise_what_a_table_says_and_lower_nothing),
	};

	return cmocka_run_group_tests_name("store-spaces", tests, NULL, NULL);
}
