/* SPDX-License-Identifier: Apache-2.0 */
/* A cache in a sandbox that forbids io_uring, from the start or from some moment on: it goes on with threads. */
#include <string.h>

#include "cache_rig.h"
#include "tn_test.h"
#include "tn_test_seccomp.h"

#define BLOCKS 40u

struct sandbox {
	unsigned calls;
	uint32_t executors;
	bool later; /* after the cache was opened, with a save and a load under way */
};

static void begin(struct rig *r, uint64_t first, uint32_t first_page, bool save, struct tn_save **s, struct tn_load **l)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];

	for (uint32_t i = 0; i < BLOCKS; i++)
		keys[i] = rig_key(first + i);
	for (uint32_t i = 0; i < BLOCKS * RIG_PAGES; i++)
		pages[i] = first_page + i;
	for (uint32_t i = 0; save && i < BLOCKS * RIG_PAGES; i++)
		rig_content(r, first + i / RIG_PAGES, i % RIG_PAGES, first_page + i, false);
	if (save) {
		assert_int_equal(tn_save_begin(r->space, r->pool, keys, BLOCKS, pages, NULL, s), 0);
		for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
			assert_int_equal(tn_save_layer(*s, layer, NULL), 0);
		assert_int_equal(tn_save_commit(*s), 0);
	} else {
		assert_int_equal(tn_load_begin(r->space, r->pool, keys, BLOCKS, pages, NULL, l), 0);
	}
}

static int in_sandbox(void *arg)
{
	const struct sandbox *box = arg;
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *save;
	struct tn_load *load;
	struct rig r;

	rig_executors = box->executors;
	if (!box->later && tn_test_forbid(box->calls, EPERM))
		return TN_TEST_SKIP;
	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(&r, 1, BLOCKS, 0, &res);
	assert_int_equal(res.stored, BLOCKS);
	begin(&r, 1000, 0, true, &save, NULL);
	begin(&r, 1, BLOCKS * RIG_PAGES, false, NULL, &load);
	if (box->later && tn_test_forbid(box->calls, EPERM))
		return TN_TEST_SKIP;
	assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, rig_soon()), BLOCKS);
	assert_int_equal(tn_load_end(load, rig_soon(), NULL), 0);
	assert_int_equal(tn_save_end(save, rig_soon(), &res), 0);
	assert_int_equal(res.stored, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS * RIG_PAGES; i++)
		rig_content(&r, 1 + i / RIG_PAGES, i % RIG_PAGES, BLOCKS * RIG_PAGES + i, true);
	assert_int_equal(rig_load(&r, 1000, BLOCKS), BLOCKS);
	assert_int_equal(tn_flush(r.cache, rig_soon()), 0);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_match(&r, 1000, BLOCKS), BLOCKS);
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
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cache_opens_where_rings_may_be_made_but_not_entered),
		cmocka_unit_test(a_cache_opens_where_all_of_io_uring_is_forbidden),
		cmocka_unit_test(a_sandbox_that_begins_after_open_fails_no_load_and_no_save),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
