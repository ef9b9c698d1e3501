/* SPDX-License-Identifier: Apache-2.0 */
/* What is true of every tier (tier/tier.h), asked of each that there is: host memory, disk, one that is far away, and the remote tier
 * over one store and over two. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "block/events.h"
#include "core/core.h"
#include "front/cache_rig.h"
#include "far.h"
#include "remote_rig.h"

#define SOME 6u

struct moved {
	bool over;
	int status;
};

/* A cache that does nothing by itself; its tiers are used behind its back. */
static struct rig *row(void)
{
	static const struct tn_far_opts far = {.seed = 3, .blocks = 24, .latency_ns = RIG_MS};
	struct rig_opts o = rig_simulated_opts();
	struct rig *r;

	o.cache.host_bytes = 2u << 20;
	o.far = &far;
	r = rig_simulated(&o);
	rig_must_open(r);
	return r;
}

static void of_remotes(void (*fn)(struct rig *r, struct tn_tier_base *t), bool two)
{
	struct rig *r = remote_node_of(&(struct remote_node_opts){.offload = "after_reuse", .max_blocks = 192, .two = two});

	fn(r, r->cache->row.tier[TN_TIER_REMOTE]);
	rig_tear_down(r);
}

/* Runs a case with a cache of its own for each tier. */
static void for_each(void (*fn)(struct rig *r, struct tn_tier_base *t))
{
	of_remotes(fn, false);
	of_remotes(fn, true);
	for (unsigned i = 0; i < TN_TIERS_MAX; i++) {
		struct rig *r = row();
		struct tn_tier_base *t = r->cache->row.tier[i];

		if (t)
			fn(r, t);
		rig_tear_down(r);
	}
}

static const struct tn_space *space_of(struct rig *r, uint32_t s)
{
	return r->s[s].space;
}

/* A place, however long it takes; or the error. */
static int get_place(struct rig *r, struct tn_tier_base *t, uint32_t s, uint32_t *place)
{
	struct tn_place_wait w = {0};
	uint64_t end = rig_now(r) + 10 * RIG_SECOND;
	int rc;

	do {
		tn_place_wait_init(&w, space_of(r, s), t);
		w.first = true;
		rc = tn_tier_place(t, &w, 1, place);
		if (rc == 0 && t->ops->traits.reach == TN_REACH_MEMORY)
			return -ENOSPC; /* at once or not at all */
		if (rc == 0)
			rig_turn(r, RIG_MS);
		assert_true(rig_now(r) < end);
	} while (rc == 0);
	return rc < 0 ? rc : 0;
}

static void move_done(struct tn_tier_move *move, int status)
{
	*(struct moved *)move->owner = (struct moved){true, status};
}

static int move_whole(struct rig *r, struct tn_tier_base *t, const struct tn_space *space, uint64_t id, unsigned char *flat,
		      bool write)
{
	const struct tn_shape *s = &space->shape;
	struct moved moved = {false, 0};
	const struct tn_mapped_range range = {.bytes = s->slot_bytes, .address = flat};
	const struct tn_mapping memory = {.range = &range, .nranges = 1};
	struct tn_tier_move m = {.write = write, .space = {space->id, space->epoch}, .key = rig_key(id), .shape = s,
				 .mem.memory = &memory, .checks = (uint64_t *)(void *)(flat + s->slot_bytes), .done = move_done,
				 .owner = &moved};

	t->ops->move(t, &m);
	rig_until(r, moved.over);
	return moved.status;
}

static unsigned char *bytes_of(const struct tn_space *space, uint64_t id)
{
	const struct tn_shape *s = &space->shape;
	unsigned char *flat = malloc(s->slot_bytes + s->layers * sizeof(uint64_t));
	uint64_t *checks = (uint64_t *)(void *)(flat + s->slot_bytes);

	assert_non_null(flat);
	memset(flat, (int)(id * 37 + 1), s->slot_bytes);
	for (uint32_t l = 0; l < s->layers; l++)
		checks[l] = tn_checksum(flat + (uint64_t)l * s->padded_bytes, s->object_bytes);
	return flat;
}

static tn_block record_of(struct rig *r, uint32_t s, uint64_t id)
{
	struct tn_key key = rig_key(id);
	tn_block b;

	if (tn_block_adopt(r->cache->registry, space_of(r, s)->index, &key, NULL, &b) == 0)
		r->cache->blocks.space_records[space_of(r, s)->index]++;
	return b;
}

/* Brings a block of space s into the tier, in the way of its reach; TN_BLOCK_NONE: it was not let in, or got no place. */
static tn_block bring(struct rig *r, struct tn_tier_base *t, uint32_t s, uint64_t id)
{
	const struct tn_space *space = space_of(r, s);
	struct tn_index_entry entry = {.key = rig_key(id), .space = space->index, .sequence = 1000 + id};
	tn_block b = record_of(r, s, id);
	struct tn_policy_block info;
	unsigned char *flat;
	uint32_t place;

	tn_block_describe(t, b, false, &info);
	if (!t->ops->traits.entry_by_slot && tn_tier_admit(t, &info, space->shape.slot_bytes) != 1)
		return TN_BLOCK_NONE;
	if (!t->ops->traits.entry_by_slot)
		tn_tier_insert(t, b, &info);
	if (get_place(r, t, s, &place))
		return TN_BLOCK_NONE;
	if (t->ops->traits.reach == TN_REACH_WHOLE) {
		flat = bytes_of(space, id);
		assert_int_equal(move_whole(r, t, space, id, flat, true), 0);
		free(flat);
	}
	tn_block_arrives(&r->cache->blocks, t, b, place, &entry);
	return b;
}

/* ---- cases --------------------------------------------------------------------------------------------------------- */

static void has_its_calls(struct rig *r, struct tn_tier_base *t)
{
	const struct tn_tier_ops *ops = t->ops;

	assert_true(ops->size == sizeof(*ops) && ops->abi == TN_TIER_ABI && ops->name);
	assert_true(ops->space && ops->place && ops->release && ops->fill && ops->drain && ops->capacity && ops->destroy);
	assert_true(ops->traits.reach != TN_REACH_MEMORY || (ops->offset && t->memory));
	assert_true(ops->traits.reach != TN_REACH_WHOLE || (ops->move && ops->step));
	assert_true(!ops->traits.keyed || (ops->probe && ops->events));
	assert_true(!ops->traits.offloads || ops->health);
	assert_int_equal(t->tier, t->ops->name[0] == 'h' ? TN_TIER_HOST : t->ops->name[0] == 'd' ? TN_TIER_DISK : TN_TIER_REMOTE);
	assert_true(tn_space_in(space_of(r, 0), t));
}

static void a_tier_has_the_calls_that_its_traits_promise(void **state)
{
	for_each(has_its_calls);
}

static void arrives_and_leaves(struct rig *r, struct tn_tier_base *t)
{
	uint16_t index = space_of(r, 0)->index;
	uint64_t cursor = tn_events_next(r->cache->events);
	struct tn_block_event e[4];
	tn_block b = bring(r, t, 0, 1);

	assert_true(tn_tier_has(t, b));
	assert_true(t->blocks == 1 && t->entries == 1 && t->space_blocks[index] == 1 && t->space_coming[index] == 0);
	assert_int_equal(tn_events_read(r->cache->events, &cursor, e, 4), 1);
	assert_true(e[0].kind == TN_EVENT_STORED && e[0].tier == t->tier);
	assert_int_equal(rig_match(&r->s[0], 1, 1), 1);
	tn_tier_leave(t, b, TN_LEAVE_DROPPED);
	assert_true(t->blocks == 0 && t->entries == 0 && t->space_blocks[index] == 0);
	assert_int_equal(tn_events_read(r->cache->events, &cursor, e, 4), 1);
	assert_true(e[0].kind == TN_EVENT_REMOVED && e[0].tier == t->tier);
	assert_int_equal(rig_match(&r->s[0], 1, 1), 0);
	tn_block_try_forget(&r->cache->blocks, b);
}

static void a_block_that_arrives_is_found_and_counted_until_it_leaves(void **state)
{
	for_each(arrives_and_leaves);
}

static void gives_back(struct rig *r, struct tn_tier_base *t)
{
	uint32_t place[SOME];

	for (uint32_t round = 0; round < 100; round++) {
		for (uint32_t i = 0; i < SOME; i++)
			assert_int_equal(get_place(r, t, 0, &place[i]), 0);
		assert_int_equal(t->space_coming[space_of(r, 0)->index], SOME);
		for (uint32_t i = 0; i < SOME; i++) {
			tn_block b = record_of(r, 0, 1 + i);

			tn_tier_release(t, space_of(r, 0)->index, b, place[i], 0);
			tn_block_try_forget(&r->cache->blocks, b);
		}
		assert_int_equal(t->space_coming[space_of(r, 0)->index], 0);
	}
}

static void places_that_are_not_used_can_be_had_again(void **state)
{
	for_each(gives_back);
}

static void evicts(struct rig *r, struct tn_tier_base *t)
{
	tn_block held, b;

	held = bring(r, t, 0, 1);
	tn_block_ref(r->cache->registry, held);
	for (uint64_t id = 2; id <= SOME; id++)
		assert_int_not_equal(bring(r, t, 0, id), TN_BLOCK_NONE);
	b = bring(r, t, 1, 100);
	assert_int_equal(tn_tier_evict(t, 1000, space_of(r, 0)->index, NULL), SOME - 1); /* not the held one, nor another space's */
	assert_true(tn_tier_has(t, held) && tn_tier_has(t, b) && t->blocks == 2 && t->evicted == SOME - 1);
	tn_block_release(&r->cache->blocks, held);
	assert_int_equal(tn_tier_evict(t, 1000, -1, NULL), 2);
	assert_int_equal(t->blocks, 0);
}

static void eviction_takes_what_nobody_holds_of_the_space_that_was_asked_for(void **state)
{
	for_each(evicts);
}

static void fills_up(struct rig *r, struct tn_tier_base *t)
{
	uint64_t capacity = t->ops->capacity(t);
	uint32_t brought = 0;

	for (uint64_t id = 1; id <= capacity + 20; id++) {
		brought += bring(r, t, 0, id) != TN_BLOCK_NONE;
		assert_true(t->blocks <= t->ops->capacity(t));
	}
	assert_int_equal(brought, capacity + 20);
	assert_true(t->evicted >= 20);
	assert_true(tn_tier_has(t, record_of(r, 0, capacity + 20))); /* the last one, not the first */
	assert_int_equal(rig_match(&r->s[0], 1, 1), 0);
}

static void a_full_tier_lets_the_oldest_go_and_holds_no_more_than_its_capacity(void **state)
{
	for_each(fills_up);
}

static void holds_quota(struct rig *r, struct tn_tier_base *t)
{
	uint16_t index = space_of(r, 0)->index;

	for (uint64_t id = 1; id <= SOME; id++)
		bring(r, t, 0, id);
	bring(r, t, 1, 100);
	assert_int_equal(tn_tier_quota(t, index, SOME, 2), 2); /* two of its own went */
	assert_int_equal(t->space_blocks[index], SOME - 2);
	assert_int_equal(tn_tier_quota(t, index, 0, 1), 0);
	assert_int_equal(t->space_blocks[index], 0);
	assert_int_equal(t->space_blocks[space_of(r, 1)->index], 1);
}

static void a_quota_is_made_true_by_the_spaces_own_blocks(void **state)
{
	for_each(holds_quota);
}

/* The bytes of a block in a tier's memory. */
static unsigned char *bytes_at(const struct tn_tier_base *t, tn_block b, const struct tn_shape *s, uint64_t **checks)
{
	return tn_mapping_address(t->memory, t->ops->offset(t, tn_tier_place_of(t, b), s, checks));
}

/* The bytes that went in come out again, and nobody else's. */
static void keeps_bytes(struct rig *r, struct tn_tier_base *t)
{
	const struct tn_shape *s = &space_of(r, 0)->shape;
	uint64_t *checks;
	tn_block b[SOME];

	if (t->ops->traits.reach == TN_REACH_DEVICE)
		return; /* the cache's tests: its bytes move with headers and sums */
	for (uint32_t i = 0; i < SOME; i++) {
		b[i] = bring(r, t, 0, 1 + i);
		if (t->ops->traits.reach == TN_REACH_MEMORY) {
			memset(bytes_at(t, b[i], s, &checks), (int)i + 1, s->slot_bytes);
			checks[s->layers - 1] = i;
		}
	}
	for (uint32_t i = 0; i < SOME; i++) {
		unsigned char *flat, *got;

		if (t->ops->traits.reach == TN_REACH_MEMORY) {
			got = bytes_at(t, b[i], s, &checks);
			assert_true(got[0] == i + 1 && got[s->slot_bytes - 1] == i + 1 && checks[s->layers - 1] == i);
			continue;
		}
		flat = bytes_of(space_of(r, 0), 1 + i);
		got = bytes_of(space_of(r, 0), 99);
		assert_int_equal(move_whole(r, t, space_of(r, 0), 1 + i, got, false), 0);
		assert_memory_equal(got, flat, s->slot_bytes + s->layers * sizeof(uint64_t));
		tn_tier_leave(t, b[i], TN_LEAVE_DROPPED);
		assert_int_equal(move_whole(r, t, space_of(r, 0), 1 + i, got, false), t->ops->traits.keeps ? 0 : -ENOENT);
		tn_block_try_forget(&r->cache->blocks, b[i]);
		free(flat);
		free(got);
	}
}

static void the_bytes_that_went_in_come_out(void **state)
{
	for_each(keeps_bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tier_has_the_calls_that_its_traits_promise),
		cmocka_unit_test(a_block_that_arrives_is_found_and_counted_until_it_leaves),
		cmocka_unit_test(places_that_are_not_used_can_be_had_again),
		cmocka_unit_test(eviction_takes_what_nobody_holds_of_the_space_that_was_asked_for),
		cmocka_unit_test(a_full_tier_lets_the_oldest_go_and_holds_no_more_than_its_capacity),
		cmocka_unit_test(a_quota_is_made_true_by_the_spaces_own_blocks),
		cmocka_unit_test(the_bytes_that_went_in_come_out),
	};

	return tn_test_ran(cmocka_run_group_tests(tests, NULL, NULL));
}
