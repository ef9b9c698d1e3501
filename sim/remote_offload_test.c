/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks a cache writes to a remote store, and how many bytes it spends there. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "remote_rig.h"

static uint64_t object_bytes(struct rig *r)
{
	const struct tn_shape *s = &r->s[0].space->shape;

	return tn_object_header_bytes(s) + s->slot_bytes;
}

static void a_block_is_written_once_a_load_took_it(void **state)
{
	struct rig *r = remote_node_of(&(struct remote_node_opts){.offload = "after_reuse"});

	rig_save(&r->s[0], 1, 8, 0);
	rig_run(r, 5 * RIG_SECOND);
	assert_int_equal(store.n, 0);
	assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	assert_int_equal(store.n, 4);
	for (uint64_t id = 1; id <= 4; id++)
		assert_non_null(remote_object(r, id));
	rig_tear_down(r);
}

/* Memory holds some blocks; more than those are saved. */
static void a_block_is_written_before_it_leaves_memory(void **state)
{
	struct rig *r = remote_node_of(&(struct remote_node_opts){.offload = "on_evict"});
	struct tn_tier_base *memory = r->cache->row.memory;
	uint64_t capacity = memory->ops->capacity(memory), id = 1;

	for (; id + 8 < capacity - 32; id += 8)
		rig_save(&r->s[0], id, 8, 0);
	rig_run(r, 5 * RIG_SECOND);
	assert_int_equal(store.n, 0);
	for (; id < capacity + 32; id += 8) {
		rig_save(&r->s[0], id, 8, 0);
		rig_run(r, RIG_SECOND);
	}
	assert_in_range(memory->evicted, 16, 64);
	assert_in_range(store.n, memory->evicted, memory->evicted + 64);
	for (id = 1; id <= 8; id++)
		assert_non_null(remote_object(r, id));
	rig_tear_down(r);
}

/* Four blocks per second, and a second's worth of an eighth at once. */
static void a_second_spends_no_more_than_it_may(void **state)
{
	struct rig *r = remote_node();
	uint64_t bytes = object_bytes(r), from;

	rig_tear_down(r);
	r = remote_node_of(&(struct remote_node_opts){.limits.write_bytes_per_s = 4 * bytes, .limits.read_bytes_per_s = 4 * bytes});
	rig_save(&r->s[0], 1, 24, 0);
	for (uint32_t s = 1; s <= 5; s++) {
		rig_run(r, RIG_SECOND);
		assert_in_range(store.n, 2 * s, 4 * s + 5);
	}
	rig_until(r, store.n == 24);
	assert_int_equal(remote_write(r, 100), 0);
	rig_run(r, RIG_SECOND);
	from = rig_now(r);
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(remote_read(r, 100), 0);
	assert_in_range(rig_now(r) - from, 2 * RIG_SECOND, 5 * RIG_SECOND);
	rig_tear_down(r);
}

/* What a day's bytes do not reach for is neither written nor asked for; the next day has bytes again. */
static void a_day_spends_no_more_than_it_may(void **state)
{
	struct rig *r = remote_node();
	uint64_t bytes = object_bytes(r);
	uint32_t requests;

	rig_tear_down(r);
	r = remote_node_of(&(struct remote_node_opts){.limits.write_bytes_per_day = 64 * bytes, .limits.read_bytes_per_day = 64 * bytes});
	assert_int_equal(remote_write(r, 1), 0);
	rig_save(&r->s[0], 100, 32, 0);
	rig_run(r, 10 * RIG_SECOND);
	assert_in_range(store.n, 8, 13); /* an eighth, and what was under way */
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(remote_read(r, 1), i <= 8 ? 0 : -EDQUOT); /* the last of them goes beyond it */
	requests = store.requests;
	assert_int_equal(remote_look_up(r, 4), 0);
	assert_int_equal(store.requests, requests);
	rig_run(r, 3600 * RIG_SECOND);
	assert_int_equal(remote_read(r, 1), 0);
	assert_int_equal(remote_write(r, 200), 0);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_written_once_a_load_took_it),
		cmocka_unit_test(a_block_is_written_before_it_leaves_memory),
		cmocka_unit_test(a_second_spends_no_more_than_it_may),
		cmocka_unit_test(a_day_spends_no_more_than_it_may),
	};

	return tn_test_ran(cmocka_run_group_tests_name("remoteoffload", tests, NULL, NULL));
}
