/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy by its vtable, in a tier of this file's own that checks what the policy says: victims are
 * leaves and usable, decisions repeat, chains may break anywhere. lab/policy_sim_test.c tests what the policy hits on
 * traces.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/rng.h"
#include "policy/policy.h"
#include "policy/policy_life.h"
#include "tn_test.h"

#define ENTRIES 4096u
#define KEYS 65536u
#define GONE UINT32_MAX

/* A tier, with what the test knows of each entry. Keys are small numbers; key k's parent is parent_key[k]. */
struct tier {
	struct tn_policy *policy;
	uint32_t capacity, held, nfree, nkeys;
	uint32_t free[ENTRIES];
	uint32_t key[ENTRIES]; /* GONE: free */
	uint32_t up[ENTRIES]; /* linked parent, GONE if there is none */
	uint32_t children[ENTRIES];
	bool pinned[ENTRIES];
	uint32_t id[KEYS]; /* of a key, or GONE */
	uint32_t parent_key[KEYS];
	uint32_t depth[KEYS];
};

static struct tier *tier_new(uint32_t capacity, uint64_t seed)
{
	struct tier *t = calloc(1, sizeof(*t));
	const struct tn_policy_opts opts = {capacity, 0, seed, &tn_alloc_system};

	assert_non_null(t);
	assert_true(capacity <= ENTRIES);
	t->capacity = capacity;
	for (uint32_t i = capacity; i-- > 0;)
		t->free[t->nfree++] = i;
	memset(t->key, 0xff, sizeof(t->key));
	memset(t->up, 0xff, sizeof(t->up));
	memset(t->id, 0xff, sizeof(t->id));
	assert_int_equal(tn_policy_default.create(&opts, &t->policy), 0);
	return t;
}

static void tier_end(struct tier *t)
{
	t->policy->ops->destroy(t->policy);
	free(t);
}

static uint32_t new_key(struct tier *t, uint32_t parent)
{
	uint32_t k = t->nkeys++;

	assert_true(k < KEYS);
	t->parent_key[k] = parent;
	t->depth[k] = parent == GONE ? 0 : t->depth[parent] + 1;
	return k;
}

static bool usable(void *arg, uint32_t id)
{
	const struct tier *t = arg;

	assert_true(id < t->capacity && t->key[id] != GONE);
	return !t->pinned[id];
}

static struct tn_policy_block block_of(struct tier *t, uint32_t key, bool partial, int8_t priority)
{
	uint32_t parent = t->parent_key[key];

	return (struct tn_policy_block){
		.key_hash = key,
		.parent = parent == GONE || t->id[parent] == GONE ? TN_ENTRY_NONE : t->id[parent],
		.depth = t->depth[key],
		.partial = partial,
		.priority = priority,
	};
}

static void link_up(struct tier *t, uint32_t id, uint32_t parent)
{
	if (parent == TN_ENTRY_NONE || t->up[id] == parent)
		return;
	if (t->up[id] != GONE)
		t->children[t->up[id]]--;
	t->up[id] = parent;
	t->children[parent]++;
}

static void take_out(struct tier *t, uint32_t id, enum tn_policy_why why)
{
	t->policy->ops->remove(t->policy, id, t->key[id], why);
	if (t->up[id] != GONE)
		t->children[t->up[id]]--;
	for (uint32_t i = 0; t->children[id] && i < t->capacity; i++)
		if (t->up[i] == id) {
			t->up[i] = GONE;
			t->children[id]--;
		}
	t->up[id] = GONE;
	t->id[t->key[id]] = GONE;
	t->key[id] = GONE;
	t->pinned[id] = false;
	t->free[t->nfree++] = id;
	t->held--;
}

static void put_in_at(struct tier *t, uint32_t id, uint32_t key, const struct tn_policy_block *b)
{
	t->policy->ops->insert(t->policy, id, b);
	t->key[id] = key;
	t->id[key] = id;
	t->held++;
	link_up(t, id, b->parent);
}

static void put_in(struct tier *t, uint32_t key, const struct tn_policy_block *b)
{
	assert_true(t->nfree > 0);
	put_in_at(t, t->free[--t->nfree], key, b);
}

/* The next victim, checked. */
static uint32_t take_victim(struct tier *t)
{
	uint32_t id = t->policy->ops->victim(t->policy, usable, t);

	if (id == TN_ENTRY_NONE)
		return id;
	assert_true(usable(t, id));
	assert_int_equal(t->children[id], 0);
	return id;
}

/* n recovered blocks without parents. */
static void recover_lone(struct tier *t, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t key = new_key(t, GONE);
		struct tn_policy_block b = block_of(t, key, false, 0);

		put_in(t, key, &b);
	}
}

static void begin(struct tier *t)
{

	t->policy->ops->request(t->policy, TN_ENTRY_NONE, 0);
}

/* One block of a request as a real tier does it; whether the block is in afterwards. */
static bool refer(struct tier *t, uint32_t key, bool partial, int8_t priority)
{
	struct tn_policy_block b = block_of(t, key, partial, priority);
	bool full = t->held == t->capacity;

	if (t->id[key] != GONE) {
		t->policy->ops->touch(t->policy, t->id[key], &b);
		link_up(t, t->id[key], b.parent);
		return true;
	}
	if (!t->policy->ops->admit(t->policy, &b, full, usable, t)) {
		t->policy->ops->learn(t->policy, TN_ENTRY_NONE, &b);
		return false;
	}
	if (full) {
		uint32_t id = take_victim(t);

		assert_int_not_equal(id, TN_ENTRY_NONE);
		take_out(t, id, TN_POLICY_EVICTED);
	}
	put_in(t, key, &b);
	t->policy->ops->learn(t->policy, t->id[key], &b);
	return true;
}

/* A save of a new chain of n blocks that is given up. */
static void give_up(struct tier *t, uint32_t n)
{
	uint32_t first = t->nkeys, tail = GONE;

	begin(t);
	for (uint32_t i = 0; i < n; i++) {
		struct tn_policy_block b;

		tail = new_key(t, tail);
		b = block_of(t, tail, i == n - 1, 0);
		if (t->policy->ops->admit(t->policy, &b, t->held == t->capacity, usable, t))
			put_in(t, tail, &b);
	}
	for (uint32_t key = t->nkeys; key-- > first;)
		if (t->id[key] != GONE)
			take_out(t, t->id[key], TN_POLICY_DROPPED);
}

/* The chain that ends with key, as one request. The chain is pinned meanwhile, as in a real tier. */
static void refer_chain(struct tier *t, uint32_t key, bool partial)
{
	uint32_t chain[64], n = 0;

	for (uint32_t k = key; k != GONE && n < 64; k = t->parent_key[k])
		chain[n++] = k;
	begin(t);
	for (uint32_t i = n; i-- > 0;)
		if (refer(t, chain[i], partial && i == 0, 0))
			t->pinned[t->id[chain[i]]] = true;
	for (uint32_t i = 0; i < n; i++)
		if (t->id[chain[i]] != GONE)
			t->pinned[t->id[chain[i]]] = false;
}

static void victims_are_always_leaves(void **state)
{
	struct tier *t = tier_new(512, tn_test_seed());
	uint32_t tail = GONE, id;

	for (uint32_t i = 0; i < 512; i++) {
		tail = new_key(t, i % 16 ? tail : i > 64 ? i / 2 : GONE);
		begin(t);
		assert_true(refer(t, tail, false, 0));
	}
	while ((id = take_victim(t)) != TN_ENTRY_NONE)
		take_out(t, id, TN_POLICY_EVICTED);
	assert_int_equal(t->held, 0);
	tier_end(t);
}

static void a_pinned_block_is_never_a_victim(void **state)
{
	struct tier *t = tier_new(4000, tn_test_seed());
	const struct tn_policy_block b = {.key_hash = 1u << 20, .parent = TN_ENTRY_NONE};

	recover_lone(t, 4000);
	memset(t->pinned, true, sizeof(t->pinned));
	begin(t);
	assert_int_equal(take_victim(t), TN_ENTRY_NONE);
	assert_false(t->policy->ops->admit(t->policy, &b, true, usable, t));
	t->pinned[1234] = false; /* one usable block among thousands is found */
	assert_int_equal(take_victim(t), 1234);
	tier_end(t);
}

static void the_leaf_that_admission_compared_with_is_the_one_that_goes(void **state)
{
	struct tier *t = tier_new(4000, tn_test_seed());
	uint32_t first, admitted = 0;

	recover_lone(t, 4000);
	begin(t);
	for (uint32_t i = 0; i < 100; i++) {
		struct tn_policy_block b = block_of(t, new_key(t, GONE), false, 0);

		if (!t->policy->ops->admit(t->policy, &b, true, usable, t))
			continue;
		admitted++;
		first = take_victim(t);
		assert_int_equal(take_victim(t), first);
		t->pinned[first] = true; /* pinned by now: another block goes */
		assert_int_not_equal(take_victim(t), first);
	}
	assert_true(admitted > 10);
	tier_end(t);
}

static void a_parent_does_not_make_room_for_its_child(void **state)
{
	struct tier *t = tier_new(2, tn_test_seed());
	uint32_t a, b;

	recover_lone(t, 2);
	a = new_key(t, 0);
	b = new_key(t, a);
	begin(t);
	assert_true(refer(t, a, false, 1)); /* its priority displaces whatever may go */
	assert_int_not_equal(t->id[0], GONE);
	assert_int_equal(t->id[1], GONE);
	assert_false(refer(t, b, false, 1));
	assert_int_not_equal(t->id[a], GONE);
	assert_int_equal(take_victim(t), t->id[a]);
	tier_end(t);
}

static void a_rejected_block_that_keeps_coming_is_let_in(void **state)
{
	struct tier *t = tier_new(64, tn_test_seed());
	uint32_t key, tries = 0;

	recover_lone(t, 64);
	for (uint32_t i = 0; i < 6000; i++) { /* new blocks do not come again */
		begin(t);
		refer(t, i % 64, false, 0);
		refer(t, new_key(t, GONE), false, 0);
	}
	key = new_key(t, GONE);
	do {
		begin(t);
		for (uint32_t i = 0; i < 64; i++)
			refer(t, i, false, 0);
		begin(t);
		tries++;
		assert_true(tries < 64);
	} while (!refer(t, key, false, 0));
	assert_true(tries > 1);
	tier_end(t);
}

static void unfinished_tails_that_nobody_reads_are_soon_not_written(void **state)
{
	struct tier *t = tier_new(256, tn_test_seed());
	uint32_t written = 0, bodies = 0;

	for (uint32_t i = 0; i < 7000; i++) {
		uint32_t body = new_key(t, i < 50 ? GONE : i % 50 * 2), tail = new_key(t, body);

		refer_chain(t, tail, true);
		if (i >= 6000) {
			written += t->id[tail] != GONE;
			bodies += t->id[i % 50 * 2] != GONE;
		}
	}
	assert_true(written < 50);
	assert_true(bodies > 990); /* the starts that all share are there */
	tier_end(t);
}

/* Two tiers see the same workload; one of them sees saves that are given up, too. */
static void a_save_that_is_given_up_teaches_nothing(void **state)
{
	struct tier *t[2] = {tier_new(2000, tn_test_seed()), tier_new(2000, tn_test_seed())};
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < 60; i++)
		give_up(t[0], 512);
	for (uint32_t i = 0; i < 60 * 512; i++) /* keys are as many */
		new_key(t[1], GONE);
	for (uint32_t i = 0; i < 3000; i++) {
		uint32_t old = 60 * 512 + tn_rng_below(&rng, i + 1);
		bool again = i > 0 && tn_rng_below(&rng, 3) == 0;

		for (uint32_t k = 0; k < 2; k++)
			refer_chain(t[k], again && old < t[k]->nkeys ? old : new_key(t[k], i % 4 ? t[k]->nkeys - 1 : GONE), i % 5 == 0);
		assert_int_equal(t[0]->held, t[1]->held);
		assert_memory_equal(t[0]->key, t[1]->key, sizeof(t[0]->key));
	}
	assert_int_equal(t[0]->held, 2000);
	tier_end(t[0]);
	tier_end(t[1]);
}

static void what_has_space_comes_in_whatever_was_learned(void **state)
{
	struct tier *t = tier_new(4000, tn_test_seed());

	for (uint32_t i = 0; i < 4000; i++) { /* tails that nobody reads */
		begin(t);
		assert_true(refer(t, new_key(t, GONE), true, 0));
	}
	tier_end(t);
}

/* A day in the life of a tier with chains, pins, drops anywhere and failed writes; a hash of all decisions. */
static uint64_t random_life(uint64_t seed, uint64_t workload, uint32_t steps)
{
	struct tier *t = tier_new(700, seed);
	struct tn_rng rng;
	uint64_t h = 0;

	tn_rng_seed(&rng, workload);
	for (uint32_t s = 0; s < steps; s++) {
		uint32_t dice = tn_rng_below(&rng, 100), id = tn_rng_below(&rng, 700);

		if (dice < 60) { /* a new block below an old one, or an old chain again */
			uint32_t old = t->nkeys ? t->nkeys - 1 - tn_rng_below(&rng, t->nkeys) % 900 % t->nkeys : GONE;
			bool fresh = t->nkeys == 0 || (dice < 40 && t->nkeys < KEYS);

			refer_chain(t, fresh ? new_key(t, dice < 5 ? GONE : old) : old, dice % 4 == 0);
		} else if (dice < 70 && t->key[id] != GONE) { /* a drop or a failed write, not only of leaves */
			take_out(t, id, TN_POLICY_DROPPED);
		} else if (dice < 85) { /* a victim goes ahead of need */
			id = take_victim(t);
			if (id != TN_ENTRY_NONE)
				take_out(t, id, TN_POLICY_EVICTED);
		} else if (t->key[id] != GONE) {
			t->pinned[id] = dice < 88;
		}
		h = h * 31 + t->held * 7 + (id == TN_ENTRY_NONE ? 0 : id);
	}
	memset(t->pinned, 0, sizeof(t->pinned));
	for (uint32_t id; (id = take_victim(t)) != TN_ENTRY_NONE; h = h * 31 + id)
		take_out(t, id, TN_POLICY_EVICTED);
	assert_int_equal(t->held, 0); /* no block is stuck behind a child that is not there */
	tier_end(t);
	return h;
}

static void chains_may_break_anywhere_and_nothing_gets_stuck(void **state)
{
	for (uint64_t i = 0; i < 6; i++)
		random_life(tn_test_seed() + i, tn_test_seed() * 7 + i, 20000);
}

static void one_seed_makes_the_same_decisions_again(void **state)
{
	uint64_t seed = tn_test_seed(), h = random_life(seed, 5, 10000);

	assert_int_equal(random_life(seed, 5, 10000), h);
	assert_int_not_equal(random_life(seed + 1, 5, 10000), h);
}

static void children_of_a_removed_block_are_their_own_heads(void **state)
{
	struct tier *t = tier_new(8, tn_test_seed());
	uint32_t a = new_key(t, GONE), b = new_key(t, a), c = new_key(t, b), other, id;

	refer_chain(t, c, false);
	id = t->id[b];
	take_out(t, id, TN_POLICY_DROPPED);
	assert_int_equal(t->up[t->id[c]], GONE);
	/* The id is used again: its new block has no children, whatever becomes of c. */
	begin(t);
	other = new_key(t, GONE);
	assert_true(refer(t, other, false, 0));
	assert_int_equal(t->id[other], id);
	t->pinned[t->id[a]] = t->pinned[t->id[c]] = true;
	assert_int_equal(take_victim(t), id);
	t->pinned[id] = true;
	t->pinned[t->id[a]] = false; /* a leaf now */
	assert_int_equal(take_victim(t), t->id[a]);
	take_out(t, t->id[c], TN_POLICY_EVICTED);
	assert_int_equal(take_victim(t), t->id[a]);
	tier_end(t);
}

static void a_child_is_linked_again_when_its_parent_is_back(void **state)
{
	struct tier *t = tier_new(8, tn_test_seed());
	uint32_t a = new_key(t, GONE), b = new_key(t, a), c = new_key(t, b);

	refer_chain(t, c, false);
	take_out(t, t->id[b], TN_POLICY_DROPPED);
	t->free[t->nfree - 1] ^= t->free[0]; /* the block comes back under another id */
	t->free[0] ^= t->free[t->nfree - 1];
	t->free[t->nfree - 1] ^= t->free[0];
	refer_chain(t, c, false);
	assert_int_equal(t->up[t->id[c]], t->id[b]);
	assert_int_equal(take_victim(t), t->id[c]);
	tier_end(t);
}

static void recovered_blocks_are_linked_in_any_order_and_the_oldest_goes_first(void **state)
{
	struct tier *t = tier_new(64, tn_test_seed());
	uint32_t chain[4], lone[4], id;

	for (uint32_t i = 0; i < 4; i++)
		chain[i] = new_key(t, i ? chain[i - 1] : GONE);
	for (uint32_t i = 0; i < 4; i++)
		lone[i] = new_key(t, GONE);
	for (uint32_t i = 0; i < 4; i++)
		t->id[chain[i]] = 10 + i; /* as the tier's index has them before the policy is told */
	for (uint32_t i = 4; i-- > 0;) {
		struct tn_policy_block b = block_of(t, chain[i], false, 0);

		put_in_at(t, 10 + i, chain[i], &b);
	}
	for (uint32_t i = 0; i < 4; i++) {
		struct tn_policy_block b = block_of(t, lone[i], false, 0);

		put_in_at(t, 20 + i, lone[i], &b);
	}
	for (uint32_t i = 4; i-- > 0;) {
		assert_int_equal(take_victim(t), t->id[chain[i]]);
		take_out(t, t->id[chain[i]], TN_POLICY_EVICTED);
	}
	for (uint32_t i = 0; i < 4; i++) {
		id = take_victim(t);
		assert_int_equal(id, t->id[lone[i]]);
		take_out(t, id, TN_POLICY_EVICTED);
	}
	tier_end(t);
}

static void a_parent_that_recovery_promised_but_never_brought_does_no_harm(void **state)
{
	struct tier *t = tier_new(8, tn_test_seed());
	uint32_t child = new_key(t, GONE), late = new_key(t, GONE), id;
	const struct tn_policy_block b = {.key_hash = child, .parent = 7, .depth = 1};
	const struct tn_policy_block other = {.key_hash = late, .parent = TN_ENTRY_NONE};
	const struct tn_policy_block below = {.key_hash = 99, .parent = 7, .depth = 1};

	t->policy->ops->insert(t->policy, 0, &b);
	t->key[0] = child;
	begin(t);
	assert_true(t->policy->ops->admit(t->policy, &other, false, usable, t));
	t->policy->ops->insert(t->policy, 7, &other); /* the id belongs to another block now: a leaf */
	t->key[7] = late;
	t->pinned[0] = true;
	id = t->policy->ops->victim(t->policy, usable, t);
	assert_int_equal(id, 7);
	t->pinned[0] = false;
	/* The new block gets a child of its own, the old block's child goes: one child is left. */
	assert_true(t->policy->ops->admit(t->policy, &below, false, usable, t));
	t->policy->ops->insert(t->policy, 3, &below);
	t->key[3] = 99;
	t->pinned[3] = true;
	t->policy->ops->remove(t->policy, 0, child, TN_POLICY_EVICTED);
	t->key[0] = GONE;
	assert_int_equal(t->policy->ops->victim(t->policy, usable, t), TN_ENTRY_NONE);
	tier_end(t);
}

static void recovered_blocks_do_not_teach_that_nothing_is_ever_read(void **state)
{
	struct tier *t = tier_new(ENTRIES, tn_test_seed());
	uint32_t in = 0;

	recover_lone(t, ENTRIES);
	begin(t);
	for (uint32_t i = 0; i < 100; i++)
		in += refer(t, new_key(t, GONE), false, 0);
	assert_int_equal(in, 100);
	tier_end(t);
}

static void a_block_let_in_without_asking_counts_as_a_reference(void **state)
{
	struct tier *t = tier_new(64, tn_test_seed());
	uint32_t key, id;

	begin(t);
	for (uint32_t i = 0; i < 64; i++) {
		key = new_key(t, GONE);
		struct tn_policy_block b = block_of(t, key, false, 0);

		put_in(t, key, &b);
		if (i == 0)
			continue;
		/* Out and in again: the block keeps its history, so that it outlives the first block. */
		take_out(t, t->id[key], TN_POLICY_EVICTED);
		put_in(t, key, &b);
	}
	id = take_victim(t);
	assert_int_equal(t->key[id], 0);
	tier_end(t);
}

static void lower_priorities_go_first(void **state)
{
	struct tier *t = tier_new(600, tn_test_seed());
	const int8_t order[] = {-3, 0, 2};
	uint32_t key, at = 0;

	for (uint32_t i = 0; i < 600; i++) {
		begin(t);
		assert_true(refer(t, new_key(t, GONE), false, order[i * 7 % 3]));
	}
	key = new_key(t, GONE);
	begin(t);
	assert_false(refer(t, key, false, -4)); /* worse than all: the block displaces none */
	begin(t);
	assert_true(refer(t, key, false, 1)); /* better than the worst, whatever the block is worth */
	take_out(t, t->id[key], TN_POLICY_DROPPED);
	for (uint32_t n = 599; n-- > 0;) {
		uint32_t id = take_victim(t);

		while (order[t->key[id] * 7 % 3] != order[at])
			assert_true(++at < 3);
		take_out(t, id, TN_POLICY_EVICTED);
	}
	assert_int_equal(at, 2);
	tier_end(t);
}

static void ten_million_blocks_take_at_most_24_bytes_each(void **state)
{
	struct tn_alloc_counter counter;
	struct tn_policy_opts opts = {10000000, 0, 1, &counter.alloc};
	struct tn_policy *p;

	tn_alloc_counter_init(&counter);
	assert_int_equal(tn_policy_default.create(&opts, &p), 0);
	print_message("# %.2f bytes a block at 10,000,000\n", (double)counter.live_bytes / 1e7);
	assert_true(counter.live_bytes <= 24 * (size_t)10000000);
	p->ops->destroy(p);
	assert_int_equal(counter.live_bytes, 0);
}

static void creation_fails_cleanly_wherever_memory_ends(void **state)
{
	struct tn_alloc_counter counter;
	struct tn_policy_opts opts = {100, 50, 1, &counter.alloc};
	struct tn_policy *p = NULL;
	size_t n = 0;

	for (;; n++) {
		tn_alloc_counter_init(&counter);
		counter.fail_after = n;
		if (tn_policy_default.create(&opts, &p) == 0)
			break;
		assert_null(p);
		assert_int_equal(counter.live_bytes, 0);
	}
	assert_true(n >= 4);
	p->ops->destroy(p);
	assert_int_equal(counter.live_bytes, 0);
	opts.capacity = 0;
	assert_int_equal(tn_policy_default.create(&opts, &p), -EINVAL);
	opts.capacity = UINT32_MAX;
	assert_int_equal(tn_policy_default.create(&opts, &p), -EINVAL);
}

/* Keys of class `read` come back after 100 ticks, those of class `lost` never do. */
static void feed(struct tn_life *life, uint32_t read, uint32_t lost, uint32_t n)
{
	static uint64_t next = 1;

	for (uint32_t i = 0; i < n; i++, next++) {
		tn_life_observe(life, (next % 100) * 0x9e3779b97f4a7c15u, read);
		tn_life_observe(life, next * 0xd6e8feb86659fd93u, lost);
	}
}

static void classes_that_are_read_are_worth_more_than_those_that_are_not(void **state)
{
	const uint32_t read = 2 * TN_LIFE_LEVELS, lost = 0;
	struct tn_life *life = calloc(1, sizeof(*life));

	assert_int_equal(tn_life_init(life, &tn_alloc_system, 1000), 0);
	for (uint32_t i = 0; i < 2000; i++)
		tn_life_note_evicted(life, 1 / 2000.f);
	feed(life, read, lost, 20000);
	/* A read each 200 ticks; a block that is not read by 1,000 ticks of age will not be. */
	assert_true(life->value[read][0] > 1 / 400.f && life->value[read][0] < 1 / 100.f);
	assert_true(life->value[lost][0] < life->value[read][0] / 20);
	assert_true(life->reads_per_write[lost] < 1 / 32.f && life->reads_per_write[read] > .8f);
	assert_true(life->value[read][tn_life_bucket(190)] > life->value[read][0]);
	assert_true(life->value[read][tn_life_bucket(5000)] < life->value[read][0] / 2);
	tn_life_fini(life);
	free(life);
}

static void the_clock_may_wrap(void **state)
{
	struct tn_life *life = calloc(1, sizeof(*life)), *fresh = calloc(1, sizeof(*life));
	const uint32_t read = 2 * TN_LIFE_LEVELS;

	assert_int_equal(tn_life_init(life, &tn_alloc_system, 1000), 0);
	assert_int_equal(tn_life_init(fresh, &tn_alloc_system, 1000), 0);
	life->now = life->counted_to = UINT32_MAX - 20000;
	life->next_recompute = life->now + 1000;
	feed(life, read, 0, 40000);
	feed(fresh, read, 0, 40000);
	assert_true(life->now < 80000);
	for (uint32_t b = 0; b < TN_LIFE_BUCKETS; b++) {
		float a = life->value[read][b], c = fresh->value[read][b];

		assert_true(a > c * .9f && a < c * 1.1f);
	}
	tn_life_fini(life);
	tn_life_fini(fresh);
	free(life);
	free(fresh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(victims_are_always_leaves),
		cmocka_unit_test(a_pinned_block_is_never_a_victim),
		cmocka_unit_test(the_leaf_that_admission_compared_with_is_the_one_that_goes),
		cmocka_unit_test(a_parent_does_not_make_room_for_its_child),
		cmocka_unit_test(a_rejected_block_that_keeps_coming_is_let_in),
		cmocka_unit_test(unfinished_tails_that_nobody_reads_are_soon_not_written),
		cmocka_unit_test(a_save_that_is_given_up_teaches_nothing),
		cmocka_unit_test(what_has_space_comes_in_whatever_was_learned),
		cmocka_unit_test(chains_may_break_anywhere_and_nothing_gets_stuck),
		cmocka_unit_test(one_seed_makes_the_same_decisions_again),
		cmocka_unit_test(children_of_a_removed_block_are_their_own_heads),
		cmocka_unit_test(a_child_is_linked_again_when_its_parent_is_back),
		cmocka_unit_test(recovered_blocks_are_linked_in_any_order_and_the_oldest_goes_first),
		cmocka_unit_test(a_parent_that_recovery_promised_but_never_brought_does_no_harm),
		cmocka_unit_test(recovered_blocks_do_not_teach_that_nothing_is_ever_read),
		cmocka_unit_test(a_block_let_in_without_asking_counts_as_a_reference),
		cmocka_unit_test(lower_priorities_go_first),
		cmocka_unit_test(ten_million_blocks_take_at_most_24_bytes_each),
		cmocka_unit_test(creation_fails_cleanly_wherever_memory_ends),
		cmocka_unit_test(classes_that_are_read_are_worth_more_than_those_that_are_not),
		cmocka_unit_test(the_clock_may_wrap),
	};

	tn_test_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
