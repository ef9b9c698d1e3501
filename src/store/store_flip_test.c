/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One bit of a small store is flipped: in a superblock, a space table, a mark, a log group, a checkpoint, a segment header or
 * a block header. The next open brings back every block whose own header and data were not touched, reads no wrong byte, and
 * shows nothing of a space that was dropped. So does a rebuild from headers. A sample of the bits by default. With TN_SOAK=1 every
 * bit of a store that was closed once and then killed, and in other stores every bit of the first fields of each page.
 */
#include <malloc.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "store/store_rig.h"

#define SAVED 9u
#define DOOMED 100u /* the first key of the space that is dropped */
#define DROPPED 3u
#define SAMPLES 200u /* per store and way to open */
#define HEAD_BYTES 128u /* of a page: where most fields are */
#define AGAIN 16u	/* one in so many of all bits is followed by a second opening */
#define PARTS_MAX 128u

enum end { CLOSED, KILLED, POWER_CUT, ENDS };

static const char *const end_name[] = {"closed", "killed", "after a power cut"};

struct part {
	const char *name;
	uint64_t at, len;
	uint32_t block; /* whose header it is; SAVED: of none that is there */
};

struct flips {
	struct rig *r; /* closed or killed; only cloned */
	struct part part[PARTS_MAX];
	uint32_t parts;
	uint64_t bits, tried;
	const char *how;
};

static void save(struct rig *r, uint64_t n)
{
	static const uint32_t bytes[1] = {700};
	uint32_t cls;

	assert_int_equal(tn_store_class(r->store, 1, bytes, &cls), 0);
	assert_true(rig_save_in(r, n, cls, bytes, 1) >= 0);
}

/* The blocks of a space that is dropped lie between others; their headers stay on the disk. */
static void fill(struct rig *r)
{
	struct tn_key id = {{5, 6}};
	uint16_t main_space = r->space;

	assert_int_equal(tn_store_space(r->store, &id, &r->space), 0);
	for (uint64_t n = 0; n < DROPPED; n++)
		save(r, DOOMED + n);
	assert_int_equal(rig_flush(r), 0);
	r->space = main_space;
	for (uint64_t n = 0; n < SAVED - 2; n++)
		save(r, n);
	for (uint64_t n = 0; n < DROPPED; n++)
		rig_remove(r, DOOMED + n);
	assert_int_equal(tn_store_space(r->store, &id, &main_space), 0);
	assert_int_equal(tn_store_space_drop(r->store, main_space), 0);
	assert_int_equal(rig_flush(r), 0);
}

static struct part *add(struct flips *f, const char *name, uint64_t at, uint64_t len)
{
	struct part *p = &f->part[f->parts++];

	assert_true(f->parts <= PARTS_MAX);
	*p = (struct part){name, at, len, SAVED};
	f->bits += len * 8;
	return p;
}

static uint32_t magic_at(struct flips *f, uint64_t at)
{
	uint32_t magic;

	assert_int_equal(tn_simdisk_peek(f->r->disk, RIG_PATH, at, &magic, sizeof(magic)), 0);
	return magic;
}

static void list_parts(struct flips *f, const struct tn_disk_super *sb, const uint64_t *header_at)
{
	uint64_t size = (uint64_t)tn_simdisk_size(f->r->disk, RIG_PATH);

	for (int i = 0; i < 2; i++) {
		add(f, "superblock", TN_DISK_SUPER_OFFSET(i), TN_DISK_PAGE);
		add(f, "mark", TN_DISK_MARK_OFFSET(i), TN_DISK_PAGE);
		add(f, "space table", TN_DISK_SPACES_OFFSET(i), sizeof(struct tn_disk_spaces));
		add(f, "checkpoint", sb->checkpoint_offset[i], sb->checkpoint_bytes);
	}
	for (uint64_t at = sb->log_offset; at < sb->log_offset + sb->log_bytes; at += TN_DISK_PAGE)
		if (magic_at(f, at) == TN_DISK_MAGIC_LOG)
			add(f, "log group", at, TN_DISK_PAGE);
	for (uint64_t at = sb->segments_offset; at < size; at += sb->segment_bytes) {
		add(f, "segment header", at, TN_DISK_PAGE);
		for (uint64_t k = at + TN_DISK_PAGE; k < at + sb->segment_bytes; k += TN_DISK_PAGE) {
			struct part *p = magic_at(f, k) == TN_DISK_MAGIC_BLOCK ? add(f, "block header", k, TN_DISK_PAGE) : NULL;

			for (uint32_t n = 0; p && n < SAVED; n++)
				if (header_at[n] == k)
					p->block = n;
		}
	}
}

static void begin(struct flips *f, bool reopened, enum end end)
{
	struct rig *r = rig_new(tn_test_seed());
	uint64_t header_at[SAVED];
	struct tn_store_place place;
	struct tn_disk_super sb;

	memset(f, 0, sizeof(*f));
	f->r = r;
	f->how = end_name[end];
	r->opts.capacity_bytes = 3 << 16;
	r->opts.segment_bytes = 1 << 16;
	assert_int_equal(rig_open(r), 0);
	fill(r);
	if (reopened) {
		assert_int_equal(rig_close(r), 0);
		assert_int_equal(rig_open(r), 0);
	}
	for (uint64_t n = SAVED - 2; n < SAVED; n++)
		save(r, n);
	assert_int_equal(rig_flush(r), 0);
	for (uint64_t n = 0; n < SAVED; n++) {
		tn_store_locate(r->store, rig_find(r, n)->slot, &place);
		header_at[n] = place.header_offset;
	}
	sb = r->store->dev[0].super;
	if (end == CLOSED) {
		assert_int_equal(rig_close(r), 0);
	} else {
		tn_simdisk_crash(r->disk, end == KILLED ? TN_SIMDISK_KILL : TN_SIMDISK_DROP, 1);
		rig_abandon(r);
	}
	list_parts(f, &sb, header_at);
}

static void check_blocks(struct flips *f, struct rig *r, const struct part *p, uint64_t bit, const char *when)
{
	for (uint64_t n = 0; n < DROPPED; n++)
		if (rig_find(r, DOOMED + n))
			fail_msg("store %s, bit %llu of the %s at %llu, %s: a dropped block is back", f->how, (unsigned long long)bit,
				 p->name, (unsigned long long)p->at, when);
	for (uint64_t n = 0; n < SAVED; n++)
		if ((!rig_find(r, n) || rig_read(r, n)) && n != p->block)
			fail_msg("store %s, bit %llu of the %s at %llu, %s: block %llu is lost", f->how, (unsigned long long)bit, p->name,
				 (unsigned long long)p->at, when, (unsigned long long)n);
}

static void opens(struct flips *f, struct rig *r, const struct part *p, uint64_t bit, const char *when)
{
	if (rig_open(r))
		fail_msg("store %s, bit %llu of the %s at %llu, %s: %s", f->how, (unsigned long long)bit, p->name,
			 (unsigned long long)p->at, when, tn_error_last()->text);
	check_blocks(f, r, p, bit, when);
}

/* again: what the first opening wrote is opened, too; else the process is killed. */
static void flip(struct flips *f, const struct part *p, uint64_t bit, bool rebuild, bool again)
{
	struct tn_simdisk *disk;
	unsigned char byte;
	struct rig *r;

	assert_int_equal(tn_simdisk_clone(f->r->disk, bit, &disk), 0);
	assert_int_equal(tn_simdisk_peek(disk, RIG_PATH, p->at + bit / 8, &byte, 1), 0);
	byte ^= (unsigned char)(1u << bit % 8);
	assert_int_equal(tn_simdisk_poke(disk, RIG_PATH, p->at + bit / 8, &byte, 1), 0);
	r = rig_new_on(tn_simdisk_io(disk), tn_simdisk_clock(disk), "a");
	r->disk = disk;
	r->opts.rebuild = rebuild;
	opens(f, r, p, bit, rebuild ? "rebuilt" : "opened");
	r->opts.rebuild = false;
	if (again) {
		assert_int_equal(rig_close(r), 0);
		opens(f, r, p, bit, "opened again");
	} else {
		tn_simdisk_crash(disk, TN_SIMDISK_KILL, 1);
		rig_abandon(r);
	}
	rig_free(r);
	f->tried++;
}

/* A structure by chance, and in it a bit: of its first bytes half of the time. */
static void flip_some(struct flips *f, bool rebuild)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < SAMPLES; i++) {
		const struct part *p = &f->part[tn_rng_next(&rng) % f->parts];
		uint64_t bits = (tn_rng_next(&rng) & 1 ? p->len : HEAD_BYTES) * 8;

		flip(f, p, tn_rng_next(&rng) % bits, rebuild, true);
	}
}

static void flip_all(struct flips *f, bool rebuild, bool whole)
{
	for (uint32_t i = 0; i < f->parts; i++) {
		for (uint64_t bit = 0; bit < f->part[i].len * 8; bit++)
			if (whole || bit / 8 % TN_DISK_PAGE < HEAD_BYTES)
				flip(f, &f->part[i], bit, rebuild, f->tried % AGAIN == 0);
		print_message("# %s at %llu: %llu flipped so far\n", f->part[i].name, (unsigned long long)f->part[i].at,
			      (unsigned long long)f->tried);
	}
}

static void flip_bits(bool rebuild)
{
	for (int reopened = 0; reopened < 2; reopened++)
		for (enum end end = CLOSED; end < ENDS; end++) {
			struct flips f;

			begin(&f, reopened, end);
			if (tn_test_soak())
				flip_all(&f, rebuild, reopened && end == KILLED);
			else
				flip_some(&f, rebuild);
			print_message("# store %s, %s: %u structures, %llu bits, %llu flipped\n", reopened ? "opened twice" : "never reopened",
				      f.how, f.parts, (unsigned long long)f.bits, (unsigned long long)f.tried);
			rig_free(f.r);
		}
}

static void a_flipped_bit_costs_no_block_that_it_is_not_in(void **state)
{
	flip_bits(false);
}

static void nor_does_it_when_the_index_is_rebuilt(void **state)
{
	flip_bits(true);
}

static bool is_structure(uint32_t magic)
{
	static const uint32_t magics[] = {TN_DISK_MAGIC_SUPER, TN_DISK_MAGIC_SPACES, TN_DISK_MAGIC_LOG,	    TN_DISK_MAGIC_ROOT,
					  TN_DISK_MAGIC_PAGE,  TN_DISK_MAGIC_MARK,   TN_DISK_MAGIC_SEGMENT};

	for (unsigned i = 0; i < sizeof(magics) / sizeof(magics[0]); i++)
		if (magic == magics[i])
			return true;
	return false;
}

/* What of the pages of a part is of a later version is read by the open, and refused without a write. */
static uint32_t refused(struct flips *f, const struct part *p)
{
	static const uint16_t later = 2;
	uint32_t n = 0;

	for (uint64_t at = p->at; at < p->at + p->len; at += TN_DISK_PAGE) {
		struct tn_simdisk *disk;
		uint64_t digest;
		struct rig *r;
		int rc;

		if (!is_structure(magic_at(f, at)))
			continue;
		assert_int_equal(tn_simdisk_clone(f->r->disk, 1, &disk), 0);
		assert_int_equal(tn_simdisk_poke(disk, RIG_PATH, at + 4, &later, sizeof(later)), 0);
		digest = tn_simdisk_digest(disk);
		r = rig_new_on(tn_simdisk_io(disk), tn_simdisk_clock(disk), "a");
		r->disk = disk;
		rc = rig_open(r);
		if (rc) {
			assert_int_equal(rc, -EPROTONOSUPPORT);
			assert_non_null(strstr(tn_error_last()->text, "version 2, this program knows version 1"));
			assert_int_equal(tn_simdisk_digest(disk), digest);
		}
		n += rc != 0;
		rig_free(r);
	}
	return n;
}

/* Both checkpoints have a root; of the rest, those pages of the newest one are read that have assigned segments. */
static void a_structure_of_a_later_version_is_refused_and_nothing_is_written(void **state)
{
	struct flips f;
	uint32_t checkpoints = 0, groups = 0;

	begin(&f, true, KILLED);
	for (uint32_t i = 0; i < f.parts; i++) {
		const struct part *p = &f.part[i];
		uint32_t n = refused(&f, p);

		if (strcmp(p->name, "checkpoint") == 0)
			checkpoints += n;
		else if (strcmp(p->name, "log group") == 0)
			groups += n;
		else
			assert_int_equal(n, is_structure(magic_at(&f, p->at)));
	}
	assert_true(checkpoints >= 4 && groups >= 2);
	rig_free(f.r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flipped_bit_costs_no_block_that_it_is_not_in),
		cmocka_unit_test(nor_does_it_when_the_index_is_rebuilt),
		cmocka_unit_test(a_structure_of_a_later_version_is_refused_and_nothing_is_written),
	};

	/* Each open takes and gives back megabytes: half of the time would go to the kernel's pages. */
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	return cmocka_run_group_tests_name("store-flips", tests, NULL, NULL);
}
