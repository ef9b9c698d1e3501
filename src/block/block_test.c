/* SPDX-License-Identifier: Apache-2.0 */
/* block: life cycle by table, chains in any order, the registry against a model and under threads. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/hash.h"
#include "base/rng.h"
#include "block/block.h"
#include "block/registry.h"
#include "tn_test.h"

static struct tn_registry *registry(uint32_t max_blocks)
{
	struct tn_registry_opts opts = {.max_blocks = max_blocks, .alloc = &tn_alloc_system};
	struct tn_registry *reg = NULL;

	assert_int_equal(tn_registry_create(&opts, &reg), 0);
	return reg;
}

/* Keys as little random as a caller may make them. */
static struct tn_key key(uint64_t i)
{
	return (struct tn_key){{i, 7}};
}

static tn_block adopt(struct tn_registry *reg, uint64_t k, uint64_t parent)
{
	struct tn_key own = key(k), up = key(parent);
	tn_block b = TN_BLOCK_NONE;

	assert_int_equal(tn_block_adopt(reg, 1, &own, parent ? &up : NULL, &b), 0);
	return b;
}

/* ---- life cycle ------------------------------------------------------------------------------ */

enum { DO_REGISTER, DO_RESET, DO_FORGET, DO_COUNT };

static int perform(struct tn_registry *reg, tn_block b, int what)
{
	tn_block out;

	switch (what) {
	case DO_REGISTER:
		return tn_block_register(reg, b, &out);
	case DO_RESET:
		return tn_block_reset(reg, b);
	default:
		return tn_block_forget(reg, b);
	}
}

static tn_block bring_to(struct tn_registry *reg, enum tn_block_state state)
{
	const struct tn_key k = key(99);
	tn_block b;

	assert_int_equal(tn_block_take(reg, 1, &k, NULL, &b), 0);
	if (state == TN_BLOCK_RESET)
		assert_int_equal(perform(reg, b, DO_RESET), 0);
	if (state == TN_BLOCK_REGISTERED)
		assert_int_equal(perform(reg, b, DO_REGISTER), 0);
	assert_int_equal(tn_block_state(reg, b), state);
	return b;
}

static void every_transition_is_either_in_the_table_or_refused(void **state)
{
	/* -1: refused; otherwise the state that follows. */
	static const int expected[3][DO_COUNT] = {
		[TN_BLOCK_RESET] = {-1, -1, -1},
		[TN_BLOCK_COMPLETE] = {TN_BLOCK_REGISTERED, TN_BLOCK_RESET, -1},
		[TN_BLOCK_REGISTERED] = {-1, -1, TN_BLOCK_RESET},
	};

	for (int from = 0; from < 3; from++)
		for (int what = 0; what < DO_COUNT; what++) {
			struct tn_registry *reg = registry(4);
			tn_block b = bring_to(reg, (enum tn_block_state)from);
			struct tn_key k = tn_block_key(reg, b);
			uint32_t count = tn_registry_count(reg);
			int rc = perform(reg, b, what);

			if (expected[from][what] >= 0) {
				assert_int_equal(rc, 0);
				assert_int_equal(tn_block_state(reg, b), expected[from][what]);
			} else {
				struct tn_key after = tn_block_key(reg, b);

				assert_int_equal(rc, -EINVAL);
				assert_int_equal(tn_block_state(reg, b), from);
				assert_memory_equal(&k, &after, sizeof(k));
				assert_int_equal(tn_registry_count(reg), count);
			}
			tn_registry_destroy(reg);
		}
}

static void a_block_in_the_pool_cannot_be_used(void **state)
{
	struct tn_registry *reg = registry(2);
	tn_block b = bring_to(reg, TN_BLOCK_COMPLETE);

	assert_int_equal(tn_block_reset(reg, b), 0);
	for (int what = 0; what < DO_COUNT; what++)
		assert_int_equal(perform(reg, b, what), -EINVAL);
	for (int what = 0; what < DO_COUNT; what++)
		assert_int_equal(perform(reg, 1, what), -EINVAL); /* never taken */
	assert_int_equal(perform(reg, TN_BLOCK_NONE, DO_RESET), -EINVAL);
	tn_registry_destroy(reg);
}

static void a_duplicate_goes_back_to_the_pool(void **state)
{
	struct tn_registry *reg = registry(2);
	struct tn_key k = key(5);
	tn_block first = adopt(reg, 5, 0), b, out = TN_BLOCK_NONE;

	assert_int_equal(tn_block_take(reg, 1, &k, NULL, &b), 0);
	assert_int_equal(tn_block_register(reg, b, &out), 1);
	assert_int_equal(out, first);
	assert_int_equal(tn_block_adopt(reg, 1, &k, NULL, &out), 1);
	assert_int_equal(out, first);
	assert_int_equal(tn_registry_count(reg), 1);
	/* The same key in another space is another block. */
	assert_int_equal(tn_block_adopt(reg, 2, &k, NULL, &out), 0);
	assert_int_not_equal(out, first);
	assert_int_equal(tn_block_take(reg, 2, &k, NULL, &b), -ENOSPC);
	k = key(6);
	assert_int_equal(tn_block_adopt(reg, 2, &k, NULL, &out), -ENOSPC);
	tn_registry_destroy(reg);
}

static void a_referenced_block_is_not_forgotten(void **state)
{
	struct tn_registry *reg = registry(2);
	struct tn_key k = key(5);
	tn_block b = adopt(reg, 5, 0);

	tn_block_ref(reg, b);
	assert_int_equal(tn_registry_find_one(reg, 1, &k, true), b);
	assert_int_equal(tn_block_refs(reg, b), 2);
	assert_int_equal(tn_block_forget(reg, b), -EBUSY);
	assert_int_equal(tn_registry_find_one(reg, 1, &k, false), b);
	tn_block_unpin(reg, b);
	tn_block_unpin(reg, b);
	assert_int_equal(tn_block_forget(reg, b), 0);
	assert_int_equal(tn_registry_find_one(reg, 1, &k, true), TN_BLOCK_NONE);
	assert_int_equal(tn_registry_next(reg, TN_BLOCK_NONE), TN_BLOCK_NONE);
	tn_registry_destroy(reg);
}

/* ---- chains ---------------------------------------------------------------------------------- */

static void a_child_outlives_its_parent_in_any_order(void **state)
{
	struct tn_registry *reg = registry(4);
	tn_block p = adopt(reg, 1, 0), a = adopt(reg, 2, 1), b = adopt(reg, 3, 1), other;
	struct tn_key up = key(1), k = key(3);

	assert_int_equal(tn_block_parent(reg, a), p);
	assert_int_equal(tn_block_depth(reg, a), 1);
	assert_int_equal(tn_block_forget(reg, p), 0);
	assert_int_equal(tn_block_parent(reg, a), TN_BLOCK_NONE);
	/* The record is used again, for another key: a and b are not its children. */
	other = adopt(reg, 9, 0);
	assert_int_equal(other, p);
	assert_int_equal(tn_block_parent(reg, b), TN_BLOCK_NONE);
	assert_int_equal(tn_block_forget(reg, a), 0);
	/* The parent comes back, in another record: b finds it when it is saved again. */
	p = adopt(reg, 1, 0);
	for (int twice = 0; twice < 2; twice++) {
		assert_int_equal(tn_block_adopt(reg, 1, &k, &up, &other), 1);
		assert_int_equal(other, b);
	}
	assert_int_equal(tn_block_parent(reg, b), p);
	assert_int_equal(tn_block_forget(reg, b), 0);
	tn_registry_destroy(reg);
}

static void a_duplicate_registration_gives_an_orphan_its_parent_back(void **state)
{
	struct tn_registry *reg = registry(4);
	tn_block p = adopt(reg, 1, 0), child = adopt(reg, 2, 1), out;
	struct tn_key k = key(2), up = key(1);

	assert_int_equal(tn_block_forget(reg, p), 0);
	p = adopt(reg, 1, 0);
	assert_int_equal(tn_block_parent(reg, child), TN_BLOCK_NONE);
	assert_int_equal(tn_block_adopt(reg, 1, &k, &up, &out), 1);
	assert_int_equal(tn_block_parent(reg, child), p);
	tn_registry_destroy(reg);
}

static void blocks_recovered_in_any_order_are_linked_by_one_pass(void **state)
{
	enum { N = 3000 };
	struct tn_registry *reg = registry(N);
	struct tn_rng rng;
	uint32_t order[N], parent[N], depth[N];
	tn_block at[N];

	tn_rng_seed(&rng, tn_test_seed());
	/* A forest: node i has a parent below i, or none. */
	for (uint32_t i = 0; i < N; i++) {
		parent[i] = i == 0 || tn_rng_below(&rng, 50) == 0 ? UINT32_MAX
								  : i - 1 - tn_rng_below(&rng, i < 8 ? i : 8);
		depth[i] = parent[i] == UINT32_MAX ? 0 : depth[parent[i]] + 1;
		order[i] = i;
	}
	for (uint32_t i = N - 1; i > 0; i--) {
		uint32_t j = tn_rng_below(&rng, i + 1), t = order[i];

		order[i] = order[j];
		order[j] = t;
	}
	for (uint32_t i = 0; i < N; i++) {
		uint32_t x = order[i];

		at[x] = adopt(reg, x + 1, parent[x] == UINT32_MAX ? 0 : parent[x] + 1);
	}
	assert_true(tn_registry_relink(reg) > N / 4);
	assert_int_equal(tn_registry_relink(reg), 0);
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(tn_block_parent(reg, at[i]), parent[i] == UINT32_MAX ? TN_BLOCK_NONE : at[parent[i]]);
		assert_int_equal(tn_block_depth(reg, at[i]), depth[i]);
		}
	tn_registry_destroy(reg);
}

static void keys_that_form_a_circle_are_cut_open(void **state)
{
	struct tn_registry *reg = registry(8);
	tn_block b[4], out;
	struct tn_key k = key(3);

	/* 1 -> 4 -> 3 -> 2 -> 1, a tail 5 -> 1, and 6, its own parent. */
	b[0] = adopt(reg, 1, 4);
	b[1] = adopt(reg, 2, 1);
	b[2] = adopt(reg, 3, 2);
	b[3] = adopt(reg, 4, 3);
	adopt(reg, 5, 1);
	out = adopt(reg, 6, 6);
	assert_int_equal(tn_block_parent(reg, out), TN_BLOCK_NONE);
	tn_registry_relink(reg);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t steps = 0;

		for (out = b[i]; out != TN_BLOCK_NONE; out = tn_block_parent(reg, out))
			assert_true(++steps <= 4);
	}
	/* Nor can a duplicate close one. */
	for (uint32_t i = 0; i < 4; i++)
		if (tn_block_parent(reg, b[i]) == TN_BLOCK_NONE) {
			struct tn_key own = key(i + 1);

			assert_int_equal(tn_block_adopt(reg, 1, &own, &k, &out), 1);
			assert_int_equal(tn_block_parent(reg, b[i]), TN_BLOCK_NONE);
		}
	tn_registry_destroy(reg);
}

/* ---- the registry ---------------------------------------------------------------------------- */

static void a_prefix_is_found_up_to_the_first_gap(void **state)
{
	struct tn_registry *reg = registry(100);
	struct tn_key keys[100];
	tn_block out[100];
	uint8_t tiers[100];

	for (uint32_t i = 0; i < 100; i++) {
		keys[i] = key(i + 1);
		out[i] = adopt(reg, i + 1, i);
		tn_block_set_residency(reg, out[i], TN_TIER_DISK, TN_PRESENT);
	}
	tn_block_set_residency(reg, out[3], TN_TIER_HOST, TN_PRESENT);
	tn_block_set_residency(reg, out[4], TN_TIER_HOST, TN_FILLING);
	assert_int_equal(tn_registry_find(reg, 1, keys, 100, true, out, tiers), 100);
	assert_int_equal(tiers[2], TN_TIER_DISK);
	assert_int_equal(tiers[3], TN_TIER_HOST);
	assert_int_equal(tiers[4], TN_TIER_DISK);
	assert_int_equal(tn_registry_find(reg, 2, keys, 100, true, out, tiers), 0);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(tn_block_refs(reg, out[i]), 1);
		tn_block_unpin(reg, out[i]);
	}
	/* A block in no tier: the look-up ends there, and pins no block beyond. */
	tn_block_set_residency(reg, out[70], TN_TIER_DISK, TN_DRAINING);
	assert_int_equal(tn_registry_find(reg, 1, keys, 100, true, out, tiers), 70);
	assert_int_equal(tn_block_refs(reg, out[70]), 0);
	assert_int_equal(tn_block_forget(reg, out[40]), -EBUSY);
	for (uint32_t i = 0; i < 70; i++)
		tn_block_unpin(reg, out[i]);
	assert_int_equal(tn_block_forget(reg, out[40]), 0);
	assert_int_equal(tn_registry_find(reg, 1, keys, 100, false, out, tiers), 40);
	assert_int_equal(tn_registry_find(reg, 1, keys, 0, false, out, tiers), 0);
	tn_registry_destroy(reg);
}

static void every_registered_key_is_pinned_whatever_lies_between(void **state)
{
	struct tn_registry *reg = registry(100);
	struct tn_key keys[100];
	tn_block blocks[100], out[100];

	for (uint32_t i = 0; i < 100; i++) {
		keys[i] = key(i + 1);
		blocks[i] = i % 7 == 3 ? TN_BLOCK_NONE : adopt(reg, i + 1, 0);
	}
	tn_registry_pin(reg, 1, keys, 100, out);
	tn_registry_pin(reg, 1, keys, 1, out); /* fewer than are looked at ahead */
	tn_registry_pin(reg, 2, keys, 100, out);
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(out[i], TN_BLOCK_NONE);
	tn_registry_pin(reg, 1, keys, 100, out);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(out[i], blocks[i]);
		if (blocks[i] != TN_BLOCK_NONE)
			assert_int_equal(tn_block_refs(reg, blocks[i]), i == 0 ? 3 : 2);
	}
	tn_registry_destroy(reg);
}

static void the_registry_agrees_with_a_model_at_full_load_for_a_long_time(void **state)
{
	enum { KEYS = 6000, MAX = 4000 };
	struct tn_registry *reg = registry(MAX);
	struct tn_rng rng;
	tn_block at[KEYS];
	uint32_t live = 0;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < KEYS; i++)
		at[i] = TN_BLOCK_NONE;
	for (uint32_t step = 0; step < 600000; step++) {
		uint32_t i = tn_rng_below(&rng, KEYS);
		struct tn_key k = key(i + 1);

		assert_int_equal(tn_registry_find_one(reg, 1, &k, false), at[i]);
		if (at[i] != TN_BLOCK_NONE) {
			assert_int_equal(tn_block_forget(reg, at[i]), 0);
			at[i] = TN_BLOCK_NONE;
			live--;
		} else if (live < MAX) {
			at[i] = adopt(reg, i + 1, 0);
			live++;
		} else {
			assert_int_equal(tn_block_adopt(reg, 1, &k, NULL, &at[i]), -ENOSPC);
			at[i] = TN_BLOCK_NONE;
		}
		assert_int_equal(tn_registry_count(reg), live);
	}
	for (uint32_t i = 0; i < KEYS; i++) {
		struct tn_key k = key(i + 1);

		assert_int_equal(tn_registry_find_one(reg, 1, &k, false), at[i]);
		if (at[i] != TN_BLOCK_NONE)
			assert_int_equal(tn_block_forget(reg, at[i]), 0);
	}
	/* Removed entries leave nothing behind that would make later searches longer. */
	for (uint32_t i = 0; i < reg->nbuckets; i++)
		assert_true(!reg->buckets[i].words[0] && !reg->buckets[i].words[1] && !reg->buckets[i].words[2]);
	for (uint32_t i = 0; i < MAX; i++) /* all records came back */
		adopt(reg, i + 1, i);
	tn_registry_destroy(reg);
}

static void a_block_of_one_space_is_found_in_no_other(void **state)
{
	struct tn_registry *reg = registry(8);

	for (uint64_t i = 1; i <= 8; i++)
		adopt(reg, i, 0);
	/* Some of the 65,535 other spaces share bucket and tag with each key. */
	for (uint64_t i = 1; i <= 8; i++) {
		struct tn_key k = key(i);

		for (uint32_t space = 0; space <= UINT16_MAX; space++) {
			tn_block b = tn_registry_find_one(reg, (uint16_t)space, &k, false);

			assert_int_equal(b != TN_BLOCK_NONE, space == 1);
		}
	}
	tn_registry_destroy(reg);
}

static void create_fails_cleanly_at_every_allocation(void **state)
{
	struct tn_alloc_counter c;
	struct tn_registry_opts opts = {.max_blocks = 1000, .alloc = &c.alloc};
	struct tn_registry *reg = NULL;
	size_t n = 0;

	tn_alloc_counter_init(&c);
	for (;; n++) {
		c.fail_after = n;
		if (tn_registry_create(&opts, &reg) == 0)
			break;
		assert_null(reg);
		assert_int_equal(c.live_bytes, 0);
	}
	assert_true(n >= 3);
	assert_int_equal(c.live_bytes, tn_registry_bytes(reg));
	tn_registry_destroy(reg);
	assert_int_equal(c.live_bytes, 0);
	opts.max_blocks = 0;
	assert_int_equal(tn_registry_create(&opts, &reg), -EINVAL);
	opts.max_blocks = (1u << 31) + 1;
	assert_int_equal(tn_registry_create(&opts, &reg), -EINVAL);
	tn_registry_destroy(NULL);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { STABLE = 64, CHURN = 192 };

struct shared {
	struct tn_registry *reg;
	uint32_t stop, some; /* shared; some: a block was pinned */
	uint64_t missed, wrong, pinned;
};

static void *reader(void *arg)
{
	struct shared *s = arg;
	uint64_t missed = 0, wrong = 0, pinned = 0;
	struct tn_rng rng;

	tn_rng_seed(&rng, 4711);
	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		uint32_t i = tn_rng_below(&rng, STABLE + CHURN);
		struct tn_key k = key(i + 1);
		tn_block b = TN_BLOCK_NONE;
		uint8_t tier;

		if (i & 1)
			b = tn_registry_find_one(s->reg, 1, &k, true);
		else if (tn_registry_find(s->reg, 1, &k, 1, true, &b, &tier) == 0)
			b = TN_BLOCK_NONE;
		if (b == TN_BLOCK_NONE) {
			missed += i < STABLE; /* these are never forgotten */
			continue;
		}
		pinned++;
		__atomic_store_n(&s->some, 1, __ATOMIC_RELAXED);
		for (int look = 0; look < 3; look++) {
			struct tn_key now = tn_block_key(s->reg, b);

			wrong += !tn_key_eq(&now, &k) || tn_block_space(s->reg, b) != 1 ||
				 tn_block_state(s->reg, b) != TN_BLOCK_REGISTERED;
		}
		tn_block_unpin(s->reg, b);
	}
	__atomic_fetch_add(&s->missed, missed, __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->wrong, wrong, __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->pinned, pinned, __ATOMIC_RELAXED);
	return NULL;
}

static void readers_never_miss_a_block_that_stays_nor_pin_a_wrong_one(void **state)
{
	struct shared s = {.reg = registry(STABLE + CHURN)};
	uint64_t deadline = tn_test_deadline();
	tn_block at[CHURN];
	pthread_t threads[2];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < STABLE; i++)
		tn_block_set_residency(s.reg, adopt(s.reg, i + 1, 0), TN_TIER_DISK, TN_PRESENT);
	for (uint32_t i = 0; i < CHURN; i++)
		at[i] = TN_BLOCK_NONE;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reader, &s), 0);
	for (uint32_t step = 0; step < 300000 || (!__atomic_load_n(&s.some, __ATOMIC_RELAXED) && tn_test_now() < deadline); step++) {
		uint32_t i = tn_rng_below(&rng, CHURN);

		if (at[i] == TN_BLOCK_NONE) {
			at[i] = adopt(s.reg, STABLE + i + 1, 0);
			tn_block_set_residency(s.reg, at[i], TN_TIER_HOST, TN_PRESENT);
		} else if (tn_block_forget(s.reg, at[i]) == 0) {
			at[i] = TN_BLOCK_NONE;
		}
	}
	__atomic_store_n(&s.stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(s.missed, 0);
	assert_int_equal(s.wrong, 0);
	assert_true(s.pinned > 0);
	for (tn_block b = tn_registry_next(s.reg, TN_BLOCK_NONE); b != TN_BLOCK_NONE; b = tn_registry_next(s.reg, b)) {
		assert_int_equal(tn_block_refs(s.reg, b), 0);
		assert_int_equal(tn_block_forget(s.reg, b), 0);
	}
	tn_registry_destroy(s.reg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_transition_is_either_in_the_table_or_refused),
		cmocka_unit_test(a_block_in_the_pool_cannot_be_used),
		cmocka_unit_test(a_duplicate_goes_back_to_the_pool),
		cmocka_unit_test(a_referenced_block_is_not_forgotten),
		cmocka_unit_test(a_child_outlives_its_parent_in_any_order),
		cmocka_unit_test(a_duplicate_registration_gives_an_orphan_its_parent_back),
		cmocka_unit_test(blocks_recovered_in_any_order_are_linked_by_one_pass),
		cmocka_unit_test(keys_that_form_a_circle_are_cut_open),
		cmocka_unit_test(a_prefix_is_found_up_to_the_first_gap),
		cmocka_unit_test(every_registered_key_is_pinned_whatever_lies_between),
		cmocka_unit_test(the_registry_agrees_with_a_model_at_full_load_for_a_long_time),
		cmocka_unit_test(a_block_of_one_space_is_found_in_no_other),
		cmocka_unit_test(create_fails_cleanly_at_every_allocation),
		cmocka_unit_test(readers_never_miss_a_block_that_stays_nor_pin_a_wrong_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
