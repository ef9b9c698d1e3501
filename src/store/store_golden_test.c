/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores that earlier programs wrote still open: golden files in tests/golden, the non-zero 64-byte lines of a store
 * file as {u64 offset, 64 bytes}. store-v1.bin is of the programs that synced before each group of the log and wrote no
 * marks, store-v1-marks.bin of those that wrote one copy of a new space table; the same script run today must give the bytes of
 * store-v1-spaces.bin. When the format changes on purpose,
 * TN_GOLDEN_WRITE=tests/golden/<name> writes a new one, with a new version if a reader of the old one could be misled.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_rig.h"

#define LINE 64u
#define GOLDEN "tests/golden/store-v1-spaces.bin"
#define GOLDEN_MARKS "tests/golden/store-v1-marks.bin"
#define GOLDEN_UNMARKED "tests/golden/store-v1.bin"

/* Everything the format can say: blocks in checkpoint and log, a removed, a failed and a quarantined slot, two
   slot sizes, two spaces, one of them dropped, and no clean end. */
static struct rig *script(void)
{
	static const uint32_t other[2] = {5000, 300};
	struct rig *r = rig_new(1);
	struct tn_key id = {{33, 44}};
	uint16_t second;
	uint32_t cls;

	for (unsigned i = 0; i < RIG_OBJECTS; i++)
		r->object_bytes[i] = 40 + i;
	assert_int_equal(rig_open(r), 0);
	assert_int_equal(tn_store_space(r->store, &id, &second), 0);
	for (uint64_t n = 0; n < 6; n++)
		assert_true(rig_save(r, n) >= 0);
	rig_find(r, 2)->live = false;
	tn_store_fail_slot(r->store, r->block[2].slot, false);
	rig_find(r, 3)->live = false;
	tn_store_fail_slot(r->store, r->block[3].slot, true);
	assert_int_equal(rig_close(r), 0);
	for (unsigned i = 0; i < RIG_OBJECTS; i++)
		r->object_bytes[i] = 40 + i;
	assert_int_equal(rig_open(r), 0);
	r->space = second;
	assert_true(rig_save(r, 6) >= 0);
	assert_int_equal(tn_store_space_drop(r->store, second), 0);
	assert_int_equal(rig_flush(r), 0);
	rig_remove(r, 6);
	r->space = 0;
	assert_int_equal(tn_store_class(r->store, 2, other, &cls), 0);
	assert_true(rig_save_in(r, 7, cls, other, 2) >= 0);
	rig_remove(r, 1);
	assert_int_equal(rig_flush(r), 0);
	assert_true(rig_save(r, 8) >= 0);
	assert_int_equal(rig_flush(r), 0);
	return r;
}

static void plain(struct tn_disk_super *sb)
{
	sb->owner_pid = 1;
	sb->created_wall_ns = sb->opened_wall_ns = 1700000000000000000ull;
	tn_disk_seal(&sb->head, TN_DISK_MAGIC_SUPER, sizeof(*sb));
}

/* Process id and times are all that differs from run to run. */
static void without_whims(unsigned char *image, uint64_t size)
{
	for (uint64_t at = 0; at + TN_DISK_PAGE <= size; at += TN_DISK_PAGE) {
		struct tn_disk_super *sb = (struct tn_disk_super *)(void *)(image + at);
		struct tn_disk_root *root = (struct tn_disk_root *)(void *)(image + at);

		if (sb->head.magic == TN_DISK_MAGIC_SUPER) {
			plain(sb);
		} else if (root->head.magic == TN_DISK_MAGIC_ROOT) {
			plain(&root->super);
			tn_disk_seal(&root->head, TN_DISK_MAGIC_ROOT, sizeof(*root));
		}
	}
}

static unsigned char *image_of(struct rig *r, uint64_t *size)
{
	unsigned char *image;

	*size = (uint64_t)tn_simdisk_size(r->disk, RIG_PATH);
	image = aligned_alloc(4096, *size);
	assert_int_equal(tn_simdisk_peek(r->disk, RIG_PATH, 0, image, *size), 0);
	without_whims(image, *size);
	return image;
}

static bool is_zero(const unsigned char *p)
{
	for (unsigned i = 0; i < LINE; i++)
		if (p[i])
			return false;
	return true;
}

static void write_golden(const char *path, const unsigned char *image, uint64_t size)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(&size, 8, 1, f), 1);
	for (uint64_t at = 0; at < size; at += LINE)
		if (!is_zero(image + at))
			assert_int_equal(fwrite(&at, 8, 1, f) + fwrite(image + at, LINE, 1, f), 2);
	assert_int_equal(fclose(f), 0);
}

static unsigned char *read_golden(const char *path, uint64_t *size)
{
	FILE *f = fopen(path, "rb");
	unsigned char *image;
	uint64_t at;

	if (!f)
		fail_msg("%s is missing: run from the source root", path);
	assert_int_equal(fread(size, 8, 1, f), 1);
	image = calloc(1, *size);
	while (fread(&at, 8, 1, f) == 1) {
		assert_true(at <= *size - LINE);
		assert_int_equal(fread(image + at, LINE, 1, f), 1);
	}
	fclose(f);
	return image;
}

static void the_program_still_writes_version_1_as_it_was(void **state)
{
	struct rig *r = script();
	uint64_t size, golden_size;
	unsigned char *image = image_of(r, &size), *golden;

	if (getenv("TN_GOLDEN_WRITE"))
		write_golden(getenv("TN_GOLDEN_WRITE"), image, size);
	golden = read_golden(GOLDEN, &golden_size);
	assert_int_equal(size, golden_size);
	for (uint64_t at = 0; at < size; at++)
		if (image[at] != golden[at])
			fail_msg("byte %llu is %02x, was %02x: the format changed without its version", (unsigned long long)at,
				 image[at], golden[at]);
	free(image);
	free(golden);
	rig_free(r);
}

static void opens(const char *path)
{
	struct rig *r = rig_new(2);
	struct tn_device_stats st;
	struct tn_key id;
	uint64_t size;
	unsigned char *image = read_golden(path, &size);
	uint32_t file, epoch;

	assert_int_equal(tn_io_open(r->io, RIG_PATH, TN_IO_CREATE, &file), 0);
	assert_int_equal(tn_io_allocate(r->io, file, 0, size), 0);
	assert_int_equal(tn_simdisk_poke(r->disk, RIG_PATH, 0, image, size), 0);
	assert_int_equal(tn_io_close(r->io, file), 0);
	free(image);
	if (rig_open(r))
		fail_msg("%s", tn_error_last()->text);
	for (uint64_t n = 0; n < 9; n++) {
		bool there = n == 0 || n == 4 || n == 5 || n == 7 || n == 8;

		assert_int_equal(rig_find(r, n) != NULL, there);
		if (!there)
			continue;
		assert_int_equal(rig_read(r, n), 0);
		assert_int_equal(rig_find(r, n)->entry.recency, n);
	}
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_int_equal(st.quarantined_slots, 1);
	assert_int_equal(tn_store_space_info(r->store, 1, &id, &epoch), 0);
	assert_int_equal(epoch, 2);
	rig_free(r);
}

static void a_store_of_version_1_opens(void **state)
{
	opens(GOLDEN);
}

static void a_store_of_version_1_with_one_copy_of_a_new_space_table_opens(void **state)
{
	opens(GOLDEN_MARKS);
}

static void a_store_of_version_1_without_marks_opens(void **state)
{
	opens(GOLDEN_UNMARKED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_program_still_writes_version_1_as_it_was),
		cmocka_unit_test(a_store_of_version_1_opens),
		cmocka_unit_test(a_store_of_version_1_with_one_copy_of_a_new_space_table_opens),
		cmocka_unit_test(a_store_of_version_1_without_marks_opens),
	};

	return cmocka_run_group_tests_name("store-golden", tests, NULL, NULL);
}
