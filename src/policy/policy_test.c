/* SPDX-License-Identifier: Apache-2.0 */
/* Policies by themselves: order, priorities, pins, ghosts. */
#include <errno.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/error.h"
#include "base/rng.h"
#include "policy/policy.h"
#include "policy/policy_ghost.h"
#include "tn_test.h"

enum { CAPACITY = 200 };

static struct tn_policy *policy(const char *name, uint32_t capacity)
{
	const struct tn_policy_opts opts = {.capacity = capacity, .seed = 1, .alloc = &tn_alloc_system};
	const struct tn_policy_ops *ops;
	struct tn_policy *p = NULL;

	assert_int_equal(tn_policy_find(name, &ops), 0);
	assert_int_equal(ops->create(&opts, &p), 0);
	return p;
}

/* Inserts an entry whose key hash is its id + 1000, as a request of its own. */
static void insert(struct tn_policy *p, uint32_t id, int8_t priority)
{
	const struct tn_policy_block b = {.key_hash = id + 1000, .parent = TN_ENTRY_NONE, .priority = priority};

	p->ops->request(p, TN_ENTRY_NONE, 0);
	p->ops->admit(p, &b, false, NULL, NULL);
	p->ops->insert(p, id, &b);
}

static void touch(struct tn_policy *p, uint32_t id)
{
	const struct tn_policy_block b = {.key_hash = id + 1000, .parent = TN_ENTRY_NONE};

	p->ops->request(p, TN_ENTRY_NONE, 0);
	p->ops->touch(p, id, &b);
}

static uint32_t evict(struct tn_policy *p)
{
	uint32_t id = p->ops->victim(p, NULL, NULL);

	if (id != TN_ENTRY_NONE)
		p->ops->remove(p, id, id + 1000, TN_POLICY_EVICTED);
	return id;
}

static void lru_evicts_in_order_of_the_last_touch(void **state)
{
	struct tn_policy *p = policy("lru", CAPACITY);

	for (uint32_t i = 0; i < 4; i++)
		insert(p, i, 0);
	touch(p, 0);
	touch(p, 2);
	assert_int_equal(evict(p), 1);
	assert_int_equal(evict(p), 3);
	assert_int_equal(evict(p), 0);
	assert_int_equal(evict(p), 2);
	assert_int_equal(evict(p), TN_ENTRY_NONE);
	p->ops->destroy(p);
}

static void fifo_keeps_the_order_of_arrival_but_the_deepest_of_a_request_goes_first(void **state)
{
	struct tn_policy *p = policy("fifo", CAPACITY);
	const struct tn_policy_block b = {.key_hash = 1};

	insert(p, 9, 0);
	p->ops->request(p, TN_ENTRY_NONE, 0);
	for (uint32_t i = 0; i < 3; i++)
		p->ops->insert(p, i, &b);
	for (uint32_t i = 3; i-- > 0;)
		p->ops->touch(p, i, &b);
	touch(p, 9);
	touch(p, 2);
	assert_int_equal(evict(p), 9);
	assert_int_equal(evict(p), 2);
	assert_int_equal(evict(p), 1);
	assert_int_equal(evict(p), 0);
	p->ops->destroy(p);
}

static void s3fifo_lets_go_what_was_never_touched_and_remembers_it(void **state)
{
	struct tn_policy *p = policy("s3fifo", 100); /* a small queue of 10 */

	for (uint32_t i = 0; i < 20; i++)
		insert(p, i, 0);
	touch(p, 0);
	assert_int_equal(evict(p), 1); /* 0 moved to the main queue */
	assert_int_equal(evict(p), 2);
	/* 1 comes back from the ghosts, into the main queue: it outlives the small one. */
	insert(p, 1, 0);
	for (uint32_t i = 3; i <= 10; i++)
		assert_int_equal(evict(p), i);
	/* The small queue is below a tenth now, so the main queue gives the victim. The touch of 0 counted for its move. */
	assert_int_equal(evict(p), 0);
	assert_int_equal(evict(p), 1);
	p->ops->remove(p, 11, 1011, TN_POLICY_DROPPED); /* dropped blocks leave no ghost: back to the small queue */
	insert(p, 11, 0);
	for (uint32_t i = 12; i < 20; i++)
		assert_int_equal(evict(p), i);
	assert_int_equal(evict(p), 11);
	assert_int_equal(evict(p), TN_ENTRY_NONE);
	p->ops->destroy(p);
}

static void s3fifo_gives_the_main_queue_another_round_for_each_touch(void **state)
{
	struct tn_policy *p = policy("s3fifo", 100);

	for (uint32_t i = 0; i < 3; i++) {
		insert(p, i, 0);
		touch(p, i);
	}
	/* All move to the main queue with no touch left; 0 then gets two rounds. */
	assert_int_equal(p->ops->victim(p, NULL, NULL), 0);
	touch(p, 0);
	touch(p, 0);
	touch(p, 1);
	assert_int_equal(evict(p), 2);
	assert_int_equal(evict(p), 1);
	assert_int_equal(evict(p), 0);
	p->ops->destroy(p);
}

static bool is_even(void *arg, uint32_t id)
{
	return id % 2 == 0;
}

static bool never(void *arg, uint32_t id)
{
	return false;
}

static void every_policy_respects_pins_and_priorities(void **state)
{
	for (size_t k = 0; tn_policy_at(k); k++) {
		struct tn_policy *p = policy(tn_policy_at(k)->name, CAPACITY);

		for (uint32_t i = 0; i < 40; i++) {
			insert(p, i, i < 20 ? 5 : i < 30 ? -128 : 127);
			if (i % 3)
				touch(p, i);
		}
		assert_int_equal(p->ops->victim(p, never, NULL), TN_ENTRY_NONE);
		for (uint32_t n = 0; n < 20; n++) {
			uint32_t id = p->ops->victim(p, is_even, NULL);

			assert_int_equal(id % 2, 0);
			assert_true(n < 5 ? id >= 20 && id < 30 : n < 15 ? id < 20 : id >= 30);
			p->ops->remove(p, id, id + 1000, TN_POLICY_EVICTED);
		}
		assert_int_equal(p->ops->victim(p, is_even, NULL), TN_ENTRY_NONE);
		for (uint32_t n = 0; n < 20; n++) {
			uint32_t id = evict(p);

			assert_true(n < 5 ? id >= 20 && id < 30 : n < 15 ? id < 20 : id >= 30);
		}
		assert_int_equal(evict(p), TN_ENTRY_NONE);
		p->ops->destroy(p);
	}
}

static void a_policy_never_names_an_entry_that_is_not_there(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (size_t k = 0; tn_policy_at(k); k++) {
		struct tn_policy *p = policy(tn_policy_at(k)->name, CAPACITY);
		bool in[CAPACITY] = {false};
		uint32_t count = 0;

		for (uint32_t step = 0; step < 50000; step++) {
			uint32_t id = tn_rng_below(&rng, CAPACITY);

			if (tn_rng_below(&rng, 40) == 0) {
				id = evict(p);
				assert_int_equal(id == TN_ENTRY_NONE, count == 0);
				if (id == TN_ENTRY_NONE)
					continue;
				assert_true(in[id]);
				in[id] = false;
				count--;
			} else if (in[id] && tn_rng_below(&rng, 10) == 0) {
				p->ops->remove(p, id, id + 1000, TN_POLICY_DROPPED);
				in[id] = false;
				count--;
			} else if (in[id]) {
				touch(p, id);
			} else {
				insert(p, id, (int8_t)tn_rng_below(&rng, 3));
				in[id] = true;
				count++;
			}
		}
		for (; count; count--)
			assert_int_not_equal(evict(p), TN_ENTRY_NONE);
		assert_int_equal(evict(p), TN_ENTRY_NONE);
		p->ops->destroy(p);
	}
}

static void create_fails_cleanly_at_every_allocation(void **state)
{
	for (size_t k = 0; tn_policy_at(k); k++) {
		struct tn_alloc_counter c;
		struct tn_policy_opts opts = {.capacity = 1000, .alloc = &c.alloc};
		struct tn_policy *p = NULL;

		tn_alloc_counter_init(&c);
		for (size_t n = 0;; n++) {
			c.fail_after = n;
			if (tn_policy_at(k)->create(&opts, &p) == 0)
				break;
			assert_null(p);
			assert_int_equal(c.live_bytes, 0);
		}
		p->ops->destroy(p);
		assert_int_equal(c.live_bytes, 0);
		opts.capacity = 0;
		assert_int_equal(tn_policy_at(k)->create(&opts, &p), -EINVAL);
		tn_policy_at(k)->destroy(NULL);
	}
}

#define OPERATION_IS(name, ...) assert_true(_Generic(((const struct tn_policy_ops *)NULL)->name, __VA_ARGS__ : true, default : false))

/* Who changes an operation here raises TN_POLICY_ABI. */
static void version_2_of_the_operations_is_this_one(void **state)
{
	assert_int_equal(TN_POLICY_ABI, 2);
	OPERATION_IS(create, int (*)(const struct tn_policy_opts *, struct tn_policy **));
	OPERATION_IS(destroy, void (*)(struct tn_policy *));
	OPERATION_IS(request, void (*)(struct tn_policy *, uint32_t, uint64_t));
	OPERATION_IS(admit, bool (*)(struct tn_policy *, const struct tn_policy_block *, bool, tn_usable_fn, void *));
	OPERATION_IS(insert, void (*)(struct tn_policy *, uint32_t, const struct tn_policy_block *));
	OPERATION_IS(learn, void (*)(struct tn_policy *, uint32_t, const struct tn_policy_block *));
	OPERATION_IS(touch, void (*)(struct tn_policy *, uint32_t, const struct tn_policy_block *));
	OPERATION_IS(victim, uint32_t (*)(struct tn_policy *, tn_usable_fn, void *));
	OPERATION_IS(remove, void (*)(struct tn_policy *, uint32_t, uint64_t, enum tn_policy_why));
	OPERATION_IS(expect, void (*)(struct tn_policy *, uint32_t));
	assert_int_equal(sizeof(struct tn_policy_ops), offsetof(struct tn_policy_ops, expect) + sizeof(void *));
}

static void an_unknown_policy_is_answered_with_the_known_ones(void **state)
{
	const struct tn_policy_ops *ops = NULL;

	assert_int_equal(tn_policy_find("mru", &ops), -EINVAL);
	assert_null(ops);
	assert_non_null(strstr(tn_error_last()->text, "\"mru\""));
	for (size_t i = 0; tn_policy_at(i); i++) {
		assert_non_null(strstr(tn_error_last()->text, tn_policy_at(i)->name));
		assert_int_equal(tn_policy_at(i)->abi, TN_POLICY_ABI);
		assert_int_equal(tn_policy_at(i)->size, sizeof(struct tn_policy_ops));
	}
	assert_int_equal(tn_policy_find("default", &ops), 0);
	assert_non_null(ops);
}

static void ghosts_are_the_last_ones_put_and_not_taken(void **state)
{
	enum { LIMIT = 100, KEYS = 400 };
	struct tn_ghosts g;
	struct tn_rng rng;
	uint64_t hash[KEYS];
	uint32_t order[KEYS] = {0}, now = 0; /* 0: not remembered */

	tn_rng_seed(&rng, tn_test_seed());
	assert_int_equal(tn_ghosts_init(&g, LIMIT, &tn_alloc_system), 0);
	for (uint32_t i = 0; i < KEYS; i++)
		hash[i] = tn_rng_next(&rng);
	for (uint32_t step = 0; step < 100000; step++) {
		uint32_t i = tn_rng_below(&rng, KEYS), remembered = 0, oldest = UINT32_MAX;

		if (order[i] || tn_rng_below(&rng, 8) == 0) {
			assert_int_equal(tn_ghosts_take(&g, hash[i]), order[i] != 0);
			order[i] = 0;
			continue;
		}
		tn_ghosts_put(&g, hash[i]);
		order[i] = ++now;
		for (uint32_t k = 0; k < KEYS; k++)
			if (order[k]) {
				remembered++;
				if (oldest == UINT32_MAX || order[k] < order[oldest])
					oldest = k;
			}
		if (remembered > LIMIT)
			order[oldest] = 0;
	}
	tn_ghosts_fini(&g);
	assert_int_equal(tn_ghosts_init(&g, 0, &tn_alloc_system), 0);
	tn_ghosts_put(&g, 5);
	assert_false(tn_ghosts_take(&g, 5));
	tn_ghosts_fini(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lru_evicts_in_order_of_the_last_touch),
		cmocka_unit_test(fifo_keeps_the_order_of_arrival_but_the_deepest_of_a_request_goes_first),
		cmocka_unit_test(s3fifo_lets_go_what_was_never_touched_and_remembers_it),
		cmocka_unit_test(s3fifo_gives_the_main_queue_another_round_for_each_touch),
		cmocka_unit_test(every_policy_respects_pins_and_priorities),
		cmocka_unit_test(a_policy_never_names_an_entry_that_is_not_there),
		cmocka_unit_test(create_fails_cleanly_at_every_allocation),
		cmocka_unit_test(an_unknown_policy_is_answered_with_the_known_ones),
		cmocka_unit_test(version_2_of_the_operations_is_this_one),
		cmocka_unit_test(ghosts_are_the_last_ones_put_and_not_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
