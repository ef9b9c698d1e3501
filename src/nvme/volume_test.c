/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two copies of the volume header: a change is in both before it is acknowledged, so a damaged one costs nothing and brings nothing back; and
 * a power cut at any command leaves a whole one.
 */
#include "nvme/volume.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "lab/soft_rig.h"
#include "nvme/engine_internal.h"
#include "tn_test.h"

#define STEP_NS 100000ull
#define TWO (2 * TN_VOLUME_PAGE)
#define OLD_BYTES 65536u
#define NEW_BYTES 262144u
#define HEADER_BITS 320u /* of the bytes that are not always zero */

struct rig {
	struct soft_rig s;
	struct tn_soft_opts o;
	struct tn_rng rng;
	struct tn_nvme *nvme;
	struct tn_io *io;
	uint32_t file;
	struct tn_log log;
	uint32_t told; /* so often the log spoke of a copy */
	uint32_t cuts, before, after; /* power cuts that were tried, and which state they left */
};

static void heard(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	((struct rig *)arg)->told += strstr(text, "one copy of the volume header") != NULL;
}

/* The file is there, with OLD_BYTES. */
static void up(struct rig *r, uint64_t seed, bool cache)
{
	struct tn_nvme_opts n = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .log = &r->log, .queues = 1, .entries = 16};
	struct tn_nvme_engine_opts e = {.port = &r->s.port, .alloc = &tn_alloc_system, .clock = &r->s.clock, .log = &r->log};

	memset(r, 0, sizeof(*r));
	tn_rng_seed(&r->rng, seed);
	tn_soft_opts_init(&r->o);
	r->o.seed = seed;
	r->o.block_bytes = tn_rng_below(&r->rng, 2) ? 512 : 4096;
	r->o.blocks = (1u << 20) / r->o.block_bytes;
	r->o.zeroes = tn_rng_below(&r->rng, 2);
	r->o.cache = cache;
	r->o.steps = 3;
	r->log = (struct tn_log){heard, r, TN_LOG_INFO};
	soft_rig_up(&r->s, &r->o, STEP_NS);
	assert_int_equal(tn_nvme_create(&n, &r->nvme), 0);
	e.nvme = r->nvme;
	assert_int_equal(tn_nvme_engine_create(&e, &r->io), 0);
	assert_int_equal(tn_io_open(r->io, "store", TN_IO_CREATE, &r->file), 0);
	assert_int_equal(tn_io_allocate(r->io, r->file, 0, OLD_BYTES), 0);
}

static void down(struct rig *r)
{
	tn_io_destroy(r->io);
	tn_nvme_destroy(r->nvme);
	soft_rig_no_findings(r->s.soft);
	tn_soft_destroy(r->s.soft);
}

static void flip(unsigned char *bytes, uint32_t bit)
{
	bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

/* It grows, or is deleted, and is not open afterwards. */
static void change(struct rig *r, bool deletes)
{
	if (deletes)
		assert_int_equal(tn_io_unlink(r->io, "store"), 0);
	else
		assert_int_equal(tn_io_allocate(r->io, r->file, 0, NEW_BYTES), 0);
	assert_int_equal(tn_io_close(r->io, r->file), 0);
}

static bool both_say(const unsigned char *two, uint64_t bytes, bool exists)
{
	bool yes = true;

	for (uint32_t copy = 0; copy < 2; copy++) {
		struct tn_volume v;

		yes &= tn_volume_decode(two + copy * TN_VOLUME_PAGE, &v) == 0 && v.size_bytes == bytes && v.exists == exists;
	}
	return yes;
}

/* Opening finds it as it was left. */
static void is_as_left(struct rig *r, bool deleted, unsigned flags)
{
	struct tn_io_stat st;
	int rc = tn_io_open(r->io, "store", flags, &r->file);

	if (rc != (deleted ? -ENOENT : 0))
		fail_msg("opening says %d (%s)", rc, tn_error_last()->text);
	if (deleted)
		return;
	assert_int_equal(tn_io_stat(r->io, r->file, &st), 0);
	assert_int_equal(st.size_bytes, NEW_BYTES);
	assert_int_equal(tn_io_close(r->io, r->file), 0);
}

static void of_two_headers_the_newer_whole_one_counts(void **state)
{
	struct tn_volume a = {.sequence = 7, .size_bytes = 4096, .exists = true}, b = {.sequence = 8, .size_bytes = 8192, .exists = true}, v;
	unsigned char two[TWO];
	bool same;

	assert_int_equal(tn_volume_place(&a), 1);
	assert_int_equal(tn_volume_place(&b), 0);
	tn_volume_encode(&b, two);
	tn_volume_encode(&a, two + TN_VOLUME_PAGE);
	assert_int_equal(tn_volume_choose(two, &v, &same), 0);
	assert_int_equal(v.size_bytes, 8192);
	assert_false(same);
	two[4000] ^= 1;
	assert_int_equal(tn_volume_choose(two, &v, &same), 0);
	assert_int_equal(v.size_bytes, 4096);
	assert_false(same);
	a.sequence = 8;
	tn_volume_encode(&a, two);
	assert_int_equal(tn_volume_choose(two, &v, &same), 0);
	assert_true(same);
	two[4000] ^= 1;
	two[TN_VOLUME_PAGE + 16] ^= 1;
	assert_int_equal(tn_volume_choose(two, &v, &same), -EUCLEAN);
}

static void a_flipped_bit_of_either_copy_costs_nothing_and_brings_nothing_back(void **state)
{
	for (uint32_t deletes = 0; deletes < 2; deletes++) {
		unsigned char two[TWO];
		struct tn_volume v;
		struct rig r;
		bool same;

		up(&r, tn_test_seed(), true);
		change(&r, deletes);
		memcpy(two, tn_soft_media(r.s.soft), TWO);
		for (uint32_t bit = 0; bit < 8 * TWO; bit++) {
			flip(two, bit);
			if (tn_volume_choose(two, &v, &same) || same || v.exists == deletes || (v.exists && v.size_bytes != NEW_BYTES) ||
			    !tn_volume_is_ours(two))
				fail_msg("bit %u: %s, %llu bytes", bit, v.exists ? "there" : "deleted", (unsigned long long)v.size_bytes);
			flip(two, bit);
		}
		down(&r);
	}
}

static void a_damaged_copy_is_told_and_written_again_unless_only_read(void **state)
{
	for (uint32_t deletes = 0; deletes < 2; deletes++) {
		unsigned char *media;
		struct rig r;

		up(&r, tn_test_seed(), true);
		media = tn_soft_media(r.s.soft);
		change(&r, deletes);
		for (uint32_t i = 0; i < 2 * (HEADER_BITS + 32); i++) {
			uint32_t n = i / 2, bit = n < HEADER_BITS ? n : tn_rng_below(&r.rng, 8 * TN_VOLUME_PAGE);

			r.told = 0;
			is_as_left(&r, deletes, 0);
			assert_int_equal(r.told, 0);
			flip(media + i % 2 * TN_VOLUME_PAGE, bit);
			is_as_left(&r, deletes, TN_IO_READ_ONLY);
			assert_int_equal(r.told, 1);
			assert_false(both_say(media, deletes ? OLD_BYTES : NEW_BYTES, !deletes));
			is_as_left(&r, deletes, 0);
			assert_int_equal(r.told, 2);
			assert_true(both_say(media, deletes ? OLD_BYTES : NEW_BYTES, !deletes));
		}
		down(&r);
	}
}

/* As programs left it that wrote the copies alternately; or one copy alone. */
static void a_volume_whose_copies_differ_is_the_newer_one_and_then_has_two(void **state)
{
	const struct tn_volume old = {.sequence = 6, .size_bytes = OLD_BYTES, .exists = true}, new = {7, NEW_BYTES, true};

	for (uint32_t alone = 0; alone < 2; alone++) {
		unsigned char *media;
		struct rig r;

		up(&r, tn_test_seed(), true);
		media = tn_soft_media(r.s.soft);
		assert_int_equal(tn_io_close(r.io, r.file), 0);
		tn_volume_encode(&old, media);
		tn_volume_encode(&new, media + TN_VOLUME_PAGE);
		if (alone)
			memset(media, 0, TN_VOLUME_PAGE);
		is_as_left(&r, false, 0);
		assert_int_equal(r.told, 1);
		assert_true(both_say(media, NEW_BYTES, true));
		is_as_left(&r, false, 0);
		assert_int_equal(r.told, 1);
		down(&r);
	}
}

/* ---- power cuts ---------------------------------------------------------------------------------------------------- */

static bool coin(void *arg, const struct tn_soft_volatile *v)
{
	return tn_rng_below(arg, 2);
}

static bool nothing_stays(void *arg, const struct tn_soft_volatile *v)
{
	return false;
}

static bool all_stays(void *arg, const struct tn_soft_volatile *v)
{
	return true;
}

/* The header's bytes that a power cut of one kind leaves. */
static void what_stays(struct tn_soft *soft, tn_soft_keeps keeps, unsigned char *two)
{
	struct tn_soft *copy;

	assert_int_equal(tn_soft_copy(soft, 1, &copy), 0);
	tn_soft_cut(copy, true, keeps, NULL);
	memcpy(two, tn_soft_media(copy), TWO);
	tn_soft_destroy(copy);
}

/* What the power leaves: the state before, or the one after; and one copy is not being written, so that it is whole whatever a write leaves. */
static void cut_here(void *arg, struct tn_soft *soft)
{
	unsigned char all[TWO], nothing[TWO];
	struct rig *r = arg;

	what_stays(soft, all_stays, all);
	what_stays(soft, nothing_stays, nothing);
	assert_true(!memcmp(all, nothing, TN_VOLUME_PAGE) || !memcmp(all + TN_VOLUME_PAGE, nothing + TN_VOLUME_PAGE, TN_VOLUME_PAGE));
	for (uint32_t i = 0; i < 4; i++) {
		unsigned char *media;
		struct tn_soft *copy;
		struct tn_volume v;
		bool same, old;

		assert_int_equal(tn_soft_copy(soft, i, &copy), 0);
		tn_soft_cut(copy, true, coin, &r->rng);
		media = tn_soft_media(copy);
		if (tn_volume_choose(media, &v, &same) || !tn_volume_is_ours(media))
			fail_msg("the power has left no whole copy");
		old = v.exists && v.size_bytes == OLD_BYTES;
		if (!old && v.exists && v.size_bytes != NEW_BYTES)
			fail_msg("a state between: %llu bytes", (unsigned long long)v.size_bytes);
		r->cuts++;
		r->before += old;
		r->after += !old;
		tn_soft_destroy(copy);
	}
}

static void a_power_cut_at_any_command_leaves_a_whole_copy_and_an_acknowledged_change_in_both(void **state)
{
	uint32_t cuts = 0;

	for (uint64_t i = 0; i < 40; i++) {
		unsigned char two[TWO];
		bool deletes = i % 2;
		struct rig r;

		up(&r, tn_test_seed() + i, true);
		tn_soft_on_command(r.s.soft, cut_here, &r);
		change(&r, deletes);
		tn_soft_on_command(r.s.soft, NULL, NULL);
		assert_true(r.before > 0 && r.after > 0);
		what_stays(r.s.soft, nothing_stays, two);
		assert_true(both_say(two, deletes ? OLD_BYTES : NEW_BYTES, !deletes));
		cuts += r.cuts;
		down(&r);
	}
	printf("# %u power cuts\n", cuts);
}

/* ---- errors ---------------------------------------------------------------------------------------------------------- */

/* It writes the other copy next. */
static void the_copy_it_counts_on_is_durable(const struct rig *r)
{
	const struct tn_volume *sure = &tn_nvme_engine_of(r->io)->volume;
	unsigned char two[TWO];
	struct tn_volume v;

	what_stays(r->s.soft, nothing_stays, two);
	assert_int_equal(tn_volume_decode(two + tn_volume_place(sure) * TN_VOLUME_PAGE, &v), 0);
	assert_int_equal(v.sequence, sure->sequence);
}

static void a_change_that_failed_leaves_a_whole_copy_and_is_in_both_once_it_succeeds(void **state)
{
	static const struct tn_soft_chances some = {.error = 20000}, none;
	uint32_t failed = 0;

	for (uint64_t i = 0; i < 60; i++) {
		bool deletes = i % 2;
		struct rig r;
		int rc;

		up(&r, tn_test_seed() + i, true);
		tn_soft_fault(r.s.soft, &some);
		do {
			rc = deletes ? tn_io_unlink(r.io, "store") : tn_io_allocate(r.io, r.file, 0, NEW_BYTES);
			failed += rc != 0;
			assert_int_not_equal(rc, -ENOENT);
			the_copy_it_counts_on_is_durable(&r);
			cut_here(&r, r.s.soft);
		} while (rc);
		assert_true(both_say(tn_soft_media(r.s.soft), deletes ? OLD_BYTES : NEW_BYTES, !deletes));
		tn_soft_fault(r.s.soft, &none);
		down(&r);
	}
	assert_true(failed > 0);
}

/* Poll sleeps while no command is under way. */
static void what_grows_has_a_command_under_way_until_it_ends(void **state)
{
	for (uint32_t cache = 0; cache < 2; cache++) {
		struct iovec iov = {NULL, NEW_BYTES};
		struct tn_io_req req = {.op = TN_IO_ALLOCATE, .iov = &iov, .iov_count = 1}, *one = &req;
		struct rig r;

		up(&r, tn_test_seed(), cache);
		req.file = r.file;
		assert_int_equal(tn_io_submit(r.io, &one, 1), 1);
		while (tn_io_poll(r.io, &one, 1, 0) == 0) {
			assert_true(tn_nvme_pair_busy(&tn_nvme_engine_of(r.io)->pair));
			soft_rig_step(&r.s);
		}
		assert_int_equal(req.status, 0);
		assert_true(both_say(tn_soft_media(r.s.soft), NEW_BYTES, true));
		down(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_two_headers_the_newer_whole_one_counts),
		cmocka_unit_test(a_flipped_bit_of_either_copy_costs_nothing_and_brings_nothing_back),
		cmocka_unit_test(a_damaged_copy_is_told_and_written_again_unless_only_read),
		cmocka_unit_test(a_volume_whose_copies_differ_is_the_newer_one_and_then_has_two),
		cmocka_unit_test(a_power_cut_at_any_command_leaves_a_whole_copy_and_an_acknowledged_change_in_both),
		cmocka_unit_test(a_change_that_failed_leaves_a_whole_copy_and_is_in_both_once_it_succeeds),
		cmocka_unit_test(what_grows_has_a_command_under_way_until_it_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
