/* SPDX-License-Identifier: Apache-2.0 */
/* The store's file is deleted underneath: noticed at once when it matters, said, and nothing is promised any more. */
#include <errno.h>
#include <string.h>

#include "store/store_rig.h"

#define SECOND_NS 1000000000ull

static struct rig *start(uint32_t ndirs)
{
	struct rig *r = rig_new(tn_test_seed());

	r->dirs[1] = "b";
	r->opts.ndirs = ndirs;
	r->opts.capacity_bytes *= ndirs;
	assert_int_equal(rig_open(r), 0);
	for (uint64_t n = 0; n < 4; n++)
		assert_true(rig_save(r, n) >= 0);
	assert_int_equal(rig_flush(r), 0);
	return r;
}

static void must_have_noticed(struct rig *r)
{
	struct tn_device_stats st;

	assert_true(tn_store_deleted(r->store));
	assert_int_equal(tn_store_health(r->store, 0), TN_READ_ONLY);
	assert_int_equal(tn_store_stats(r->store, 0, &st), 0);
	assert_true(st.deleted);
	assert_non_null(strstr(r->logs, "the file was deleted"));
	assert_null(strstr(strstr(r->logs, "the file was deleted") + 1, "the file was deleted"));
	assert_null(strstr(r->logs, "trying again"));
	for (uint64_t n = 0; n < 4; n++)
		assert_int_equal(rig_read(r, n), 0);
}

static void a_flush_of_something_says_so(void **state)
{
	struct rig *r = start(1);

	assert_int_equal(tn_io_unlink(r->io, RIG_PATH), 0);
	assert_true(rig_save(r, 10) >= 0);
	assert_false(tn_store_deleted(r->store));
	assert_int_equal(rig_flush(r), -ESTALE);
	must_have_noticed(r);
	assert_int_equal(rig_save(r, 11), -1);
	assert_int_equal(rig_flush(r), -ESTALE);
	rig_step(r, 500); /* probes do not bring it back */
	must_have_noticed(r);
	assert_int_equal(rig_close(r), -ESTALE);
	assert_int_equal(rig_open(r), 0); /* a new one */
	assert_int_equal(rig_live(r), 0);
	assert_true(rig_save(r, 1) >= 0);
	assert_int_equal(rig_flush(r), 0);
	rig_free(r);
}

static void a_flush_of_nothing_says_so(void **state)
{
	struct rig *r = start(1);

	assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_io_unlink(r->io, RIG_PATH), 0);
	assert_int_equal(rig_flush(r), -ESTALE);
	must_have_noticed(r);
	assert_int_equal(rig_close(r), -ESTALE);
	rig_free(r);
}

static void a_commit_notices_by_itself(void **state)
{
	struct rig *r = start(1);
	uint64_t start;

	assert_int_equal(tn_io_unlink(r->io, RIG_PATH), 0);
	start = tn_now_ns(r->clock);
	assert_true(rig_save(r, 10) >= 0);
	while (!tn_store_deleted(r->store) && tn_now_ns(r->clock) < start + 5 * SECOND_NS)
		rig_step(r, 1);
	must_have_noticed(r);
	assert_int_equal(rig_flush(r), -ESTALE);
	assert_int_equal(rig_close(r), -ESTALE);
	rig_free(r);
}

static void flushed(void *arg, int status)
{
	*(int *)arg = status;
}

static void each_of_several_flushes_looks_after_it_began(void **state)
{
	struct rig *r = start(1);
	int status[3] = {1, 1, 1};

	for (unsigned i = 0; i < 3; i++) {
		tn_store_flush(r->store, flushed, &status[i]);
		if (i == 1)
			assert_int_equal(tn_io_unlink(r->io, RIG_PATH), 0);
	}
	while (status[0] == 1 || status[1] == 1 || status[2] == 1)
		rig_step(r, 1);
	assert_int_equal(status[2], -ESTALE);
	assert_int_equal(rig_close(r), -ESTALE);
	rig_free(r);
}

static void the_other_device_goes_on(void **state)
{
	struct rig *r = start(2);
	struct tn_store_place place;

	assert_int_equal(tn_io_unlink(r->io, RIG_PATH), 0);
	assert_int_equal(rig_flush(r), -ESTALE);
	must_have_noticed(r);
	for (uint64_t n = 20; n < 24; n++) {
		assert_true(rig_save(r, n) >= 0);
		tn_store_locate(r->store, rig_find(r, n)->slot, &place);
		assert_int_equal(place.device, 1);
	}
	assert_int_equal(rig_flush(r), -ESTALE); /* what an earlier flush had promised is gone */
	assert_int_equal(tn_store_health(r->store, 1), TN_HEALTHY);
	assert_int_equal(rig_close(r), -ESTALE);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flush_of_something_says_so),
		cmocka_unit_test(a_flush_of_nothing_says_so),
		cmocka_unit_test(a_commit_notices_by_itself),
		cmocka_unit_test(each_of_several_flushes_looks_after_it_began),
		cmocka_unit_test(the_other_device_goes_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
