/* SPDX-License-Identifier: Apache-2.0 */
/* Hints: each does what it says soon, answers the same whatever is there, and is bounded; of a process's own cache and of an attached one. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <tenuto/hints.h>

#include "cache_rig.h"
#include "tn_test.h"

#define BLOCKS 4u
#define SECONDS(n) ((n) * TN_TEST_SECOND)

static void set_up(struct rig *r, bool attached)
{
	rig_init(r, 64u << 20, 16u << 20, 64);
	r->o.attached = attached;
	rig_must_open(r);
	assert_int_equal(rig_save(r->s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(r), 0);
}

static int hint(const struct rig_space *s, enum tn_hint_kind kind, uint64_t first, uint32_t n, uint64_t ttl_ns)
{
	struct tn_key keys[BLOCKS];

	rig_keys(first, n, keys);
	return tn_hint(s->space, kind, keys, n, ttl_ns);
}

static uint64_t host_blocks(struct rig *r)
{
	return rig_stats(r).tier_blocks[TN_TIER_HOST];
}

static void wait_for_host(struct rig *r, uint64_t blocks)
{
	uint64_t until = tn_test_deadline();

	while (host_blocks(r) != blocks && tn_test_now() < until)
		usleep(1000);
	assert_int_equal(host_blocks(r), blocks);
}

static void blocks_leave_host_memory_and_come_back_as_hinted(void **state)
{
	struct rig r;

	for (int attached = 0; attached < 2; attached++) {
		set_up(&r, attached);
		assert_int_equal(host_blocks(&r), BLOCKS);
		assert_int_equal(hint(r.s, TN_HINT_DEMOTE, 2, 2, 0), 0);
		wait_for_host(&r, BLOCKS - 2);
		assert_int_equal(rig_match(r.s, 1, BLOCKS), BLOCKS); /* they are on disk */
		assert_int_equal(hint(r.s, TN_HINT_PREFETCH, 1, BLOCKS, SECONDS(10)), 0);
		wait_for_host(&r, BLOCKS);
		assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
		rig_tear_down(&r);
	}
}

static void a_pin_holds_blocks_until_its_time_is_over(void **state)
{
	struct rig r;

	set_up(&r, true);
	assert_int_equal(hint(r.s, TN_HINT_PIN, 1, BLOCKS, SECONDS(1)), 0);
	usleep(200000);
	assert_int_equal(hint(r.s, TN_HINT_DEMOTE, 1, BLOCKS, 0), 0);
	usleep(200000);
	assert_int_equal(host_blocks(&r), BLOCKS);
	usleep(900000);
	assert_int_equal(hint(r.s, TN_HINT_DEMOTE, 1, BLOCKS, 0), 0);
	wait_for_host(&r, 0);
	rig_tear_down(&r);
}

static void answers_do_not_tell_what_is_there_and_are_bounded(void **state)
{
	uint32_t here = 0, nowhere = 0;
	struct rig_space other;
	struct rig r;

	set_up(&r, false);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.tenant = "bert", .no_pool = true}, &other), 0);
	while (hint(r.s, TN_HINT_PIN, 1, BLOCKS, SECONDS(60)) == 0)
		here++;
	while (hint(&other, TN_HINT_PIN, 1, BLOCKS, SECONDS(60)) == 0)
		nowhere++;
	assert_int_equal(here, TN_HINTS_TENANT);
	assert_int_equal(nowhere, TN_HINTS_TENANT);
	assert_int_equal(hint(r.s, TN_HINT_PIN, 1, BLOCKS, SECONDS(60)), -EAGAIN);
	assert_int_equal(hint(r.s, TN_HINT_PIN, 1, BLOCKS, 0), -EINVAL);
	assert_int_equal(hint(r.s, TN_HINT_DEMOTE, 1, BLOCKS, 1), -EINVAL);
	assert_int_equal(hint(r.s, TN_HINT_PIN, 1, 0, 1), -EINVAL);
	assert_int_equal(hint(r.s, (enum tn_hint_kind)9, 1, BLOCKS, 1), -EINVAL);
	tn_space_close(other.space);
	rig_tear_down(&r); /* with pins held */
}

/* All that hints pin is not more than what one attached process may: half of the store. */
static void pins_leave_half_of_the_store_to_others(void **state)
{
	uint64_t capacity, until;
	uint32_t saved = 0, later = 0;
	struct rig r;

	rig_init(&r, 4u << 20, 0, 64);
	r.o.attached = true;
	rig_must_open(&r);
	capacity = rig_stats(&r).capacity_blocks;
	assert_in_range(capacity, 2 * BLOCKS, BLOCKS * TN_HINTS_TENANT); /* so that hints could pin all of it */
	for (uint64_t i = 0; i < capacity; i += BLOCKS)
		saved += rig_save(r.s, 1 + i, BLOCKS, 0).stored;
	for (uint64_t i = 0; i < capacity; i += BLOCKS)
		assert_int_equal(hint(r.s, TN_HINT_PIN, 1 + i, BLOCKS, SECONDS(60)), 0);
	until = tn_test_now() + SECONDS(1) / 2; /* the pins of all hints are taken by then */
	while (tn_test_now() < until)
		usleep(10000);
	for (uint64_t i = 0; i < capacity; i += BLOCKS)
		later += rig_save(r.s, 10001 + i, BLOCKS, 0).stored;
	print_message("# of %llu blocks %u were saved, and %u beside their pins\n", (unsigned long long)capacity, saved, later);
	assert_in_range(later, capacity / 2, 2 * capacity);
	rig_tear_down(&r);
}

/* Whoever asks for pins of many spaces takes the numbers of spaces from nobody: closed ones are free again. */
static void hints_keep_no_space_open(void **state)
{
	struct rig_space other;
	char tenant[16];
	struct rig r;

	set_up(&r, true);
	for (uint32_t i = 0; i < TN_SPACES_MAX + 16; i++) {
		snprintf(tenant, sizeof(tenant), "t%u", i);
		/* The last hints of spaces just closed may still be queued. */
		rig_until(&r, rig_space_open(&r, &(struct rig_space_opts){.tenant = tenant, .no_pool = true}, &other) == 0);
		assert_int_equal(hint(&other, TN_HINT_PIN, 1, BLOCKS, SECONDS(3600)), 0);
		tn_space_close(other.space);
	}
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_leave_host_memory_and_come_back_as_hinted),
		cmocka_unit_test(a_pin_holds_blocks_until_its_time_is_over),
		cmocka_unit_test(answers_do_not_tell_what_is_there_and_are_bounded),
		cmocka_unit_test(pins_leave_half_of_the_store_to_others),
		cmocka_unit_test(hints_keep_no_space_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
