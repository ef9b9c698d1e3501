/* SPDX-License-Identifier: Apache-2.0 */
/* Two remotes in one tier: who is asked first, who has what, and that one which fails costs the other nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "remote_rig.h"

static struct rig *node_of_two(bool read_only)
{
	return remote_node_of(&(struct remote_node_opts){.two = true, .read_only = read_only});
}

/* Moves the object to the other store. */
static void give(struct script *from, struct script *to, struct rig *r, uint64_t id)
{
	struct object *o = remote_object_in(from, r, id);

	assert_non_null(o);
	to->object[to->n++] = *o;
	*o = from->object[--from->n];
}

static void a_write_goes_to_each_that_takes_writes(void **state)
{
	for (uint32_t read_only = 0; read_only < 2; read_only++) {
		struct rig *r = node_of_two(read_only);

		assert_int_equal(remote_write(r, 1), 0);
		assert_int_equal(store.n, 1);
		assert_int_equal(second.n, 1 - read_only);
		store.fails = -EACCES;
		assert_int_equal(remote_write(r, 2), read_only ? -EACCES : 0);
		assert_int_equal(second.n, 2 * (1 - read_only));
		rig_tear_down(r);
	}
}

/* Blocks 1 to 8 at the first, 9 to 16 at the second, 17 to 24 at the first, the rest nowhere. */
static void a_look_up_follows_a_prompt_over_both(void **state)
{
	struct rig *r = node_of_two(true);

	for (uint64_t id = 1; id <= 24; id++)
		assert_int_equal(remote_write(r, id), 0);
	for (uint64_t id = 9; id <= 16; id++)
		give(&store, &second, r, id);
	assert_int_equal(remote_look_up(r, CHAIN), 24);
	store.requests = second.requests = 0;
	for (uint64_t id = 1; id <= 24; id++)
		assert_int_equal(remote_read(r, id), 0);
	assert_int_equal(store.requests, 16); /* each where the look-up found it */
	assert_int_equal(second.requests, 8);
	rig_tear_down(r);
}

static void a_read_asks_the_others_for_what_has_gone(void **state)
{
	struct rig *r = node_of_two(true);

	assert_int_equal(remote_write(r, 1), 0);
	assert_int_equal(remote_look_up(r, 1), 1);
	give(&store, &second, r, 1);
	assert_int_equal(remote_read(r, 1), 0);
	assert_int_equal(remote_read(r, 2), -ENOENT);
	remote_object_in(&second, r, 1)->bytes[0] ^= 1; /* damaged, and at the other one not at all */
	assert_int_equal(remote_read(r, 1), -ENOENT);
	rig_tear_down(r);
}

static void one_that_does_not_answer_costs_the_other_nothing(void **state)
{
	struct rig *r = node_of_two(false);
	uint64_t from;

	for (uint64_t id = 1; id <= 8; id++)
		assert_int_equal(remote_write(r, id), 0);
	store.mute = true;
	for (uint32_t i = 0; i < 3; i++)
		remote_look_up(r, 1);
	from = rig_now(r);
	store.requests = 0;
	assert_int_equal(remote_look_up(r, 8), 8);
	for (uint64_t id = 1; id <= 8; id++)
		assert_int_equal(remote_read(r, id), 0);
	assert_int_equal(remote_write(r, 9), 0);
	assert_in_range(rig_now(r) - from, 0, RIG_SECOND);
	assert_int_equal(store.requests, 0);
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), 0);
	rig_tear_down(r);
}

/* After the pause one request tries the store; what else is asked meanwhile does not wait for it. */
static void one_request_tries_a_store_that_was_left_alone(void **state)
{
	struct rig *r = node_of_two(false);

	for (uint64_t id = 1; id <= 8; id++)
		assert_int_equal(remote_write(r, id), 0);
	store.mute = true;
	for (uint32_t i = 0; i < 3; i++)
		remote_look_up(r, 1);
	rig_run(r, 6 * RIG_SECOND);
	store.requests = 0;
	assert_int_equal(remote_look_up(r, 8), 8);
	assert_int_equal(store.requests, 1);
	store.mute = false;
	rig_run(r, 6 * RIG_SECOND);
	assert_int_equal(remote_look_up(r, 8), 8);
	second.requests = 0;
	assert_int_equal(remote_look_up(r, 8), 8);
	assert_int_equal(second.requests, 0);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_write_goes_to_each_that_takes_writes),
		cmocka_unit_test(a_look_up_follows_a_prompt_over_both),
		cmocka_unit_test(a_read_asks_the_others_for_what_has_gone),
		cmocka_unit_test(one_that_does_not_answer_costs_the_other_nothing),
		cmocka_unit_test(one_request_tries_a_store_that_was_left_alone),
	};

	return tn_test_ran(cmocka_run_group_tests_name("remotes", tests, NULL, NULL));
}
