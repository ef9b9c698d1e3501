/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every structure of a store in turn is zeroed or has a bit flipped, and so are stretches of it. Whatever it was: nothing is
 * formatted, no wrong byte is read, and every block whose own header and data are intact is back, by the next open or by
 * `tenuto store check --rebuild`. The exceptions: no copy of the superblock is left anywhere (four there were), or the file is cut off
 * within its index; then the open is refused and the file is as it was.
 */
#include <errno.h>
#include <string.h>
#include <tenuto/admin.h>

#include "base/error.h"
#include "store/store_rig.h"

#define SAVED 48u

struct place {
	uint64_t header, data;
	uint32_t header_bytes;
	uint64_t data_bytes;
};

struct sweep {
	struct rig *r; /* closed or killed; only cloned */
	struct tn_disk_super sb;
	struct place at[SAVED];
	bool root[2]; /* valid before the damage */
	uint64_t size;
	uint64_t cases, refused, by_open, by_rebuild;
};

struct harm {
	uint64_t at, len;
	int how; /* 0: zeros, 1: a bit flipped in each 4 KiB, 2: cut off from there */
};

static bool hits(const struct harm *h, uint64_t at, uint64_t len)
{
	return at < h->at + h->len && h->at < at + len;
}

static void sweep_begin(struct sweep *w, bool closed)
{
	static const uint32_t large[2] = {70000, 5000}; /* slots of 80 KiB */
	struct tn_store_place place;
	struct rig *r = rig_new(tn_test_seed());
	struct tn_disk_root root;
	uint32_t cls;

	memset(w, 0, sizeof(*w));
	w->r = r;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, 2, large, &cls), 0);
	for (uint64_t n = 0; n < SAVED; n++) {
		if (n == SAVED / 2) {
			assert_int_equal(rig_close(r), 0);
			assert_int_equal(rig_open(r), 0);
			assert_int_equal(tn_store_class(r->store, 2, large, &cls), 0);
		}
		assert_true((n % 12 ? rig_save(r, n) : rig_save_in(r, n, cls, large, 2)) >= 0);
		if (n % 7 == 6) {
			assert_true(rig_save(r, 500 + n) >= 0);
			assert_int_equal(rig_flush(r), 0);
			rig_remove(r, 500 + n);
		}
	}
	assert_int_equal(rig_flush(r), 0);
	for (uint64_t n = 0; n < SAVED; n++) {
		tn_store_locate(r->store, rig_find(r, n)->slot, &place);
		w->at[n] = (struct place){place.header_offset, place.data_offset, place.header_bytes, place.slot_bytes};
	}
	w->sb = r->store->dev[0].super;
	if (closed) {
		assert_int_equal(rig_close(r), 0);
	} else {
		tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
		rig_abandon(r);
	}
	w->size = (uint64_t)tn_simdisk_size(r->disk, RIG_PATH);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, w->sb.checkpoint_offset[i], &root, sizeof(root)), 0);
		w->root[i] = tn_disk_root_check(&root, sizeof(root), &w->sb) == 0;
	}
}

static void do_harm(struct tn_simdisk *disk, const struct harm *h)
{
	unsigned char *zero;

	if (h->how == 2) {
		assert_int_equal(tn_simdisk_truncate(disk, RIG_PATH, h->at), 0);
	} else if (h->how == 1) {
		for (uint64_t i = 0; i < h->len; i += TN_DISK_PAGE) {
			unsigned char byte;
			uint64_t at = h->at + i + (h->at + i) / TN_DISK_PAGE * 13 % 120; /* in what the structure says */

			assert_int_equal(tn_simdisk_peek(disk, RIG_PATH, at, &byte, 1), 0);
			byte ^= (unsigned char)(1u << (i / TN_DISK_PAGE % 8));
			assert_int_equal(tn_simdisk_poke(disk, RIG_PATH, at, &byte, 1), 0);
		}
	} else {
		zero = calloc(1, h->len);
		assert_int_equal(tn_simdisk_poke(disk, RIG_PATH, h->at, zero, h->len), 0);
		free(zero);
	}
}

/* Is a copy of the superblock left, and the index whole enough to have a place? */
static bool may_open(const struct sweep *w, const struct harm *h)
{
	bool left = false;

	if (h->how == 2 && h->at < w->sb.segments_offset)
		return false;
	for (int i = 0; i < 2; i++) {
		left |= !hits(h, TN_DISK_SUPER_OFFSET(i), TN_DISK_PAGE);
		left |= w->root[i] && !hits(h, w->sb.checkpoint_offset[i], 2 * TN_DISK_PAGE);
	}
	return left;
}

/* Blocks that should be there and are not. */
static uint32_t missing(struct sweep *w, struct rig *r, const struct harm *h)
{
	uint32_t n = 0;

	for (uint64_t k = 0; k < SAVED; k++) {
		bool intact = !hits(h, w->at[k].header, w->at[k].header_bytes) && !hits(h, w->at[k].data, w->at[k].data_bytes);
		bool good = rig_find(r, k) && rig_read(r, k) == 0; /* asserts that no byte is wrong */

		n += intact && !good;
	}
	return n;
}

static void fail_at(const struct harm *h, const char *what)
{
	fail_msg("%s of %llu bytes at %llu: %s (%s)", h->how == 0 ? "zeros" : h->how == 1 ? "bits flipped" : "end",
		 (unsigned long long)h->len, (unsigned long long)h->at, what, tn_error_last()->text);
}

static void judge(struct sweep *w, struct harm h)
{
	struct tn_admin_store a;
	struct tn_admin_check c;
	struct tn_simdisk *disk;
	struct rig *r;
	uint64_t digest;
	int rc;

	assert_int_equal(tn_simdisk_clone(w->r->disk, h.at, &disk), 0);
	if (h.at + h.len > w->size || h.how == 2)
		h.len = w->size - h.at;
	do_harm(disk, &h);
	digest = tn_simdisk_digest(disk);
	r = rig_new_on(tn_simdisk_io(disk), tn_simdisk_clock(disk), "a");
	r->disk = disk;
	rc = rig_open(r);
	w->cases++;
	if (rc) {
		if (rc != -EUCLEAN || may_open(w, &h))
			fail_at(&h, "does not open");
		assert_int_equal(tn_simdisk_digest(disk), digest);
		w->refused++;
		rig_free(r);
		return;
	}
	if (!may_open(w, &h))
		fail_at(&h, "was opened");
	if (missing(w, r, &h) == 0) {
		w->by_open++;
	} else {
		tn_admin_store_init(&a);
		assert_int_equal(rig_close(r), 0);
		if (tn_store_admin_check(&r->opts, &a, true, &c))
			fail_at(&h, "cannot be rebuilt");
		assert_int_equal(rig_open(r), 0);
		if (missing(w, r, &h))
			fail_at(&h, "blocks are missing");
		w->by_rebuild++;
	}
	rig_free(r);
}

static void sweep_end(struct sweep *w)
{
	print_message("# %llu cases: %llu by open, %llu by rebuild, %llu refused\n", (unsigned long long)w->cases,
		      (unsigned long long)w->by_open, (unsigned long long)w->by_rebuild, (unsigned long long)w->refused);
	rig_free(w->r);
}

static void each_page_of_the_index_in_turn(void **state)
{
	for (int closed = 0; closed < 2; closed++) {
		struct sweep w;

		sweep_begin(&w, closed);
		for (uint64_t at = 0; at < w.sb.segments_offset; at += TN_DISK_PAGE)
			for (int how = 0; how < 2; how++)
				judge(&w, (struct harm){at, TN_DISK_PAGE, how});
		assert_int_equal(w.by_open, w.cases);
		sweep_end(&w);
	}
}

static void each_header_in_turn(void **state)
{
	for (int closed = 0; closed < 2; closed++) {
		struct sweep w;

		sweep_begin(&w, closed);
		for (uint64_t at = w.sb.segments_offset; at < w.size; at += w.sb.segment_bytes)
			for (int how = 0; how < 2; how++)
				judge(&w, (struct harm){at, TN_DISK_PAGE, how});
		assert_int_equal(w.by_open, w.cases);
		for (uint32_t k = 0; k < SAVED; k++)
			for (int how = 0; how < 2; how++)
				judge(&w, (struct harm){w.at[k].header, w.at[k].header_bytes, how});
		assert_int_equal(w.refused, 0);
		sweep_end(&w);
	}
}

static void stretches_from_the_start_and_to_the_end(void **state)
{
	static const uint64_t kib[] = {4, 64, 68, 128, 192, 256, 320, 324, 384, 448, 512, 640, 768, 1024, 2048};

	for (int closed = 0; closed < 2; closed++) {
		struct sweep w;

		sweep_begin(&w, closed);
		for (unsigned i = 0; i < sizeof(kib) / sizeof(kib[0]); i++)
			for (int how = 0; how < 2; how++)
				judge(&w, (struct harm){0, kib[i] << 10, how});
		/* The segment table and all segment headers, but not the log; then the log and the checkpoints together. */
		judge(&w, (struct harm){TN_DISK_LOG_OFFSET, w.sb.segments_offset - TN_DISK_LOG_OFFSET, 0});
		judge(&w, (struct harm){TN_DISK_LOG_OFFSET, w.sb.segments_offset - TN_DISK_LOG_OFFSET + TN_DISK_PAGE, 0});
		for (uint64_t at = 65536; at < w.size; at += 65536)
			judge(&w, (struct harm){at, 0, 2});
		judge(&w, (struct harm){4096, 0, 2});
		judge(&w, (struct harm){1000, 0, 2});
		assert_true(w.refused > 0);
		sweep_end(&w);
	}
}

/* Without any index: a rebuild in which every segment header is lost, too. */
static void all_segment_headers_and_the_index_are_lost_together(void **state)
{
	struct sweep w;
	struct harm none = {0};
	struct tn_simdisk *disk;
	struct rig *r;

	sweep_begin(&w, false);
	assert_int_equal(tn_simdisk_clone(w.r->disk, 1, &disk), 0);
	do_harm(disk, &(struct harm){TN_DISK_LOG_OFFSET, w.sb.segments_offset - TN_DISK_LOG_OFFSET, 0});
	for (uint64_t at = w.sb.segments_offset; at < w.size; at += w.sb.segment_bytes)
		do_harm(disk, &(struct harm){at, TN_DISK_PAGE, 0});
	r = rig_new_on(tn_simdisk_io(disk), tn_simdisk_clock(disk), "a");
	r->disk = disk;
	for (int again = 0; again < 2; again++) {
		assert_int_equal(rig_open(r), 0);
		assert_int_equal(missing(&w, r, &none), 0);
		assert_true(rig_save(r, 300) >= 0 || again);
		assert_int_equal(rig_close(r), 0);
	}
	rig_free(r);
	sweep_end(&w);
}

/* Headers of an earlier shape lie between those of the blocks that are there: the newest block says what the segment is. */
static void a_segment_that_changed_hands_is_what_its_newest_block_says(void **state)
{
	static const uint32_t large[2] = {70000, 5000};
	struct rig *r = rig_new(tn_test_seed());
	struct tn_disk_super sb;
	uint32_t cls, n = 0;

	r->opts.capacity_bytes = 256 << 10;
	for (uint32_t index_too = 0; index_too < 2; index_too++) {
		assert_int_equal(rig_open(r), 0);
		for (n = 0; rig_save(r, n) >= 0; n++)
			;
		assert_true(n > 5 && n < SAVED);
		assert_int_equal(rig_flush(r), 0);
		for (uint64_t k = 0; k < n; k++)
			rig_remove(r, k);
		assert_int_equal(rig_flush(r), 0);
		assert_int_equal(tn_store_class(r->store, 2, large, &cls), 0);
		for (n = 100; rig_save_in(r, n, cls, large, 2) >= 0; n++)
			;
		assert_in_range(n, 102, 110);
		assert_int_equal(rig_flush(r), 0);
		sb = r->store->dev[0].super;
		tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
		rig_abandon(r);
		do_harm(r->disk, &(struct harm){sb.segments_offset, TN_DISK_PAGE, index_too ? 0 : 1});
		if (index_too)
			do_harm(r->disk, &(struct harm){TN_DISK_LOG_OFFSET, sb.segments_offset - TN_DISK_LOG_OFFSET, 0});
		assert_int_equal(rig_open(r), 0);
		for (uint64_t k = 100; k < n; k++)
			assert_int_equal(rig_read(r, k), 0);
		for (uint64_t k = 0; k < SAVED; k++)
			if (rig_find(r, k))
				rig_read(r, k); /* a miss or right */
		assert_int_equal(rig_close(r), 0);
		assert_int_equal(rig_open(r), 0);
		for (uint64_t k = 100; k < n; k++) {
			assert_int_equal(rig_read(r, k), 0);
			rig_remove(r, k);
		}
		assert_int_equal(rig_close(r), 0);
	}
	rig_free(r);
}

static void headers_of_several_pages_tell_what_a_segment_is(void **state)
{
	static uint32_t bytes[700]; /* headers of three pages */
	struct rig *r = rig_new(tn_test_seed());
	struct tn_disk_super sb;
	uint32_t cls;

	for (unsigned i = 0; i < 700; i++)
		bytes[i] = 50 + i;
	r->opts.capacity_bytes = 64 << 20;
	r->opts.segment_bytes = 16 << 20;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_class(r->store, 700, bytes, &cls), 0);
	for (uint64_t n = 0; n < 8; n++)
		assert_true(rig_save_in(r, n, cls, bytes, 700) >= 0);
	assert_int_equal(rig_flush(r), 0);
	sb = r->store->dev[0].super;
	tn_simdisk_crash(r->disk, TN_SIMDISK_DROP, 1);
	rig_abandon(r);
	do_harm(r->disk, &(struct harm){TN_DISK_LOG_OFFSET, sb.segments_offset - TN_DISK_LOG_OFFSET, 0});
	do_harm(r->disk, &(struct harm){sb.segments_offset, TN_DISK_PAGE, 1});
	do_harm(r->disk, &(struct harm){sb.segments_offset + sb.segment_bytes, TN_DISK_PAGE, 0});
	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 8; n++)
		assert_int_equal(rig_read(r, n), 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_page_of_the_index_in_turn),
		cmocka_unit_test(each_header_in_turn),
		cmocka_unit_test(stretches_from_the_start_and_to_the_end),
		cmocka_unit_test(all_segment_headers_and_the_index_are_lost_together),
		cmocka_unit_test(headers_of_several_pages_tell_what_a_segment_is),
		cmocka_unit_test(a_segment_that_changed_hands_is_what_its_newest_block_says),
	};

	return cmocka_run_group_tests_name("store-sweep", tests, NULL, NULL);
}
