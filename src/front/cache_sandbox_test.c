/* SPDX-License-Identifier: Apache-2.0 */
/* A cache in a sandbox that forbids io_uring, from the start or from some moment on: it goes on with threads. */

#include "cache_rig.h"
#include "tn_test_seccomp.h"

#define BLOCKS 40u

struct sandbox {
	unsigned calls;
	uint32_t executors;
	bool later; /* after the cache was opened, with a save and a load under way */
};

static int in_sandbox(void *arg)
{
	const struct sandbox *box = arg;
	struct tn_save *save;
	struct tn_load *load;
	struct rig r;

	rig_executors = box->executors;
	if (!box->later && tn_test_forbid(box->calls, EPERM))
		return TN_TEST_SKIP;
	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	save = rig_save_begin(r.s, 1000, BLOCKS, 0, NULL);
	rig_save_give(r.s, save);
	load = rig_load_begin(r.s, 1, BLOCKS, BLOCKS * RIG_PAGES, NULL);
	if (box->later && tn_test_forbid(box->calls, EPERM))
		return TN_TEST_SKIP;
	assert_int_equal(rig_load_wait(r.s, load, RIG_LAYERS - 1), BLOCKS);
	rig_load_end(r.s, load);
	assert_int_equal(rig_save_end(r.s, save).stored, BLOCKS);
	rig_check_blocks(r.s, 1, BLOCKS, BLOCKS * RIG_PAGES);
	assert_int_equal(rig_load(r.s, 1000, BLOCKS), BLOCKS);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(rig_match(r.s, 1000, BLOCKS), BLOCKS);
	assert_int_equal(rig_stats(&r).io_errors, 0);
	rig_tear_down(&r);
	return 0;
}

static void check(unsigned calls, bool later)
{
	for (uint32_t executors = 0; executors < 3; executors += 2) {
		struct sandbox box = {calls, executors, later};
		int rc = tn_test_in_child(in_sandbox, &box);

		if (rc == TN_TEST_SKIP)
			tn_test_skip("no seccomp");
		assert_int_equal(rc, 0);
	}
}

static void a_cache_opens_where_rings_may_be_made_but_not_entered(void **state)
{
	check(TN_FORBID_ENTER, false);
}

static void a_cache_opens_where_all_of_io_uring_is_forbidden(void **state)
{
	check(TN_FORBID_SETUP | TN_FORBID_ENTER | TN_FORBID_REGISTER, false);
}

static void a_sandbox_that_begins_after_open_fails_no_load_and_no_save(void **state)
{
	for (int round = 0; round < 5; round++) {
		check(TN_FORBID_ENTER, true);
		check(TN_FORBID_SETUP | TN_FORBID_ENTER | TN_FORBID_REGISTER, true);
	}
}

int main(void)
{
	if (rig_namespace)
		return tn_test_skip_all("what is forbidden are calls of the engine of files");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cache_opens_where_rings_may_be_made_but_not_entered),
		cmocka_unit_test(a_cache_opens_where_all_of_io_uring_is_forbidden),
		cmocka_unit_test(a_sandbox_that_begins_after_open_fails_no_load_and_no_save),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
