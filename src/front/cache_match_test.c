/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of several spaces at once - TP ranks and KV groups with rules of their own - against a model; keys, leases, queries. */
#include <errno.h>
#include <string.h>

#include "core/core.h"
#include "cache_rig.h"
#include "enginepool.h"

#define KEYS 24u
#define WINDOW 3u /* blocks */
#define SPACES 5u
#define TOKENS 4u /* per block */

/* Two TP ranks and a group that match by prefix, a group with a window, one with checkpoints. */
static const struct {
	uint32_t tp_rank, group, rule;
} shares[SPACES] = {
	{0, 0, TN_MATCH_PREFIX}, {1, 0, TN_MATCH_PREFIX}, {0, 1, TN_MATCH_WINDOW}, {0, 2, TN_MATCH_EXACT}, {0, 3, TN_MATCH_WINDOW},
};

#define KV_BYTES 4096u

struct world {
	struct rig r;
	struct tn_space *space[SPACES];
	struct tn_pool *pool;
	void *kv;
	struct tn_geometry g;
	struct tn_key key[KEYS];
	bool there[SPACES][KEYS];
};

static struct tn_space *open_share(struct world *w, const char *tenant, uint32_t share, uint32_t page_tokens)
{
	struct tn_geometry g = w->g;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_space *space;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.tenant = tenant;
	id.model = "shared";
	shard.tp_size = 2;
	shard.tp_rank = shares[share].tp_rank;
	shard.group = shares[share].group;
	shard.match_rule = shares[share].rule;
	shard.window_tokens = shares[share].rule == TN_MATCH_WINDOW ? WINDOW * TOKENS : 0;
	g.page_tokens = page_tokens;
	assert_int_equal(tn_space_open(w->r.cache, &id, &shard, &g, NULL, &space), 0);
	return space;
}

static void up(struct world *w)
{
	uint32_t tokens[KEYS * TOKENS];
	struct tn_key other[KEYS];

	memset(w, 0, sizeof(*w));
	rig_set_up(&w->r, 0, 32u << 20, 64);
	w->g = (struct tn_geometry){.layers = 1, .page_tokens = TOKENS, .pages_per_block = 1, .nplanes = 1,
				    .planes = {{TN_PLANE_K, 1, 512, 16}}};
	w->kv = rig_memory(&w->r, KV_BYTES);
	assert_int_equal(enginepool_create(w->r.cache, &w->g, &(struct tn_pool_shape){.npages = 1}, &w->kv, &w->pool), 0);
	for (uint32_t i = 0; i < SPACES; i++)
		w->space[i] = open_share(w, "anna", i, TOKENS);
	for (uint32_t i = 0; i < KEYS * TOKENS; i++)
		tokens[i] = 1000 + i;
	assert_int_equal(tn_keys_from_tokens(w->space[0], tokens, KEYS * TOKENS, NULL, 0, w->key, KEYS), KEYS);
	for (uint32_t i = 1; i < SPACES; i++) {
		assert_int_equal(tn_keys_from_tokens(w->space[i], tokens, KEYS * TOKENS, NULL, 0, other, KEYS), KEYS);
		assert_memory_equal(other, w->key, sizeof(other)); /* one array of keys for all */
	}
}

static void down(struct world *w)
{
	for (uint32_t i = 0; i < SPACES; i++)
		tn_space_close(w->space[i]);
	assert_int_equal(enginepool_destroy(w->pool), 0);
	rig_memory_free(&w->r, w->kv, KV_BYTES);
	rig_tear_down(&w->r);
}

static void save(struct world *w, uint32_t space, uint32_t key)
{
	const uint32_t page = 0;
	struct tn_save *s;

	assert_int_equal(tn_save_begin(w->space[space], w->pool, &w->key[key], 1, &page, NULL, &s), 0);
	assert_int_equal(tn_save_layer(s, 0, NULL, 0), 0);
	assert_int_equal(tn_save_commit(s), 0);
	assert_int_equal(tn_save_end(s, tn_test_deadline(), NULL), 0);
	w->there[space][key] = true;
}

static void drop(struct world *w, uint32_t space, uint32_t key)
{
	assert_int_equal(tn_drop(w->space[space], &w->key[key], 1), 1);
	w->there[space][key] = false;
}

/* What the space's rule must have to end there: blocks from *first on. */
static bool can_end(const struct world *w, uint32_t space, uint32_t end, uint32_t *first)
{
	*first = 0;
	if (shares[space].rule == TN_MATCH_EXACT)
		*first = end - (end > 0);
	else if (shares[space].rule == TN_MATCH_WINDOW)
		*first = end > WINDOW ? end - WINDOW : 0;
	for (uint32_t i = *first; i < end; i++)
		if (!w->there[space][i])
			return false;
	return true;
}

static void compare(struct world *w, const uint32_t *which, uint32_t nspaces, uint32_t n, bool begin)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_space *spaces[SPACES];
	uint32_t first[SPACES], want[SPACES], end, blocks = 0, least;
	bool all = false;
	uint64_t query;

	for (uint32_t i = 0; i < nspaces; i++)
		spaces[i] = w->space[which[i]];
	for (end = n + 1; end-- > 0 && !all;) {
		all = true;
		for (uint32_t i = 0; i < nspaces; i++)
			all &= can_end(w, which[i], end, &want[i]);
		if (all)
			break;
	}
	if (begin) {
		assert_int_equal(tn_match_begin(spaces, nspaces, w->key, n, 0, TN_MATCH_PIN, &query), 0);
		assert_int_equal(tn_match_poll(w->r.cache, query, first, &m), (int)end);
		assert_int_equal(tn_match_poll(w->r.cache, query, first, &m), -EINVAL);
	} else {
		assert_int_equal(tn_match_all(spaces, nspaces, w->key, n, first, &m, TN_MATCH_PIN), (int)end);
	}
	assert_int_equal(m.blocks, end);
	least = end;
	for (uint32_t i = 0; i < nspaces; i++) {
		assert_int_equal(first[i], want[i]);
		least = want[i] < least ? want[i] : least;
		blocks += end - want[i];
	}
	assert_int_equal(m.first, least);
	assert_int_equal(m.tier_blocks[TN_TIER_HOST], blocks);
	assert_true(end ? m.pin != 0 : m.pin == 0);
	if (m.pin)
		assert_int_equal(tn_unpin(spaces[0], m.pin), 0);
	if (nspaces == 1)
		assert_int_equal(tn_match(spaces[0], w->key, n, NULL, &m, 0), (int)end);
}

static void what_all_have_is_what_a_model_says(void **state)
{
	struct tn_rng rng;
	struct world w;

	tn_rng_seed(&rng, tn_test_seed());
	up(&w);
	for (uint32_t i = 0; i < SPACES; i++)
		for (uint32_t k = 0; k < KEYS; k++)
			save(&w, i, k);
	for (uint32_t round = 0; round < 400; round++) {
		uint32_t which[SPACES] = {0, 1, 2, 3, 4}, space = tn_rng_below(&rng, SPACES), key = tn_rng_below(&rng, KEYS);

		/* Mostly there in groups that need few, so that there is something to find; holes move. */
		if (!w.there[space][key])
			save(&w, space, key);
		else if (shares[space].rule != TN_MATCH_PREFIX || tn_rng_below(&rng, 8) == 0)
			drop(&w, space, key);
		for (uint32_t i = SPACES - 1; i > 0; i--) {
			uint32_t j = tn_rng_below(&rng, i + 1), t = which[i];

			which[i] = which[j];
			which[j] = t;
		}
		compare(&w, which, 1 + tn_rng_below(&rng, SPACES), tn_rng_below(&rng, KEYS + 1), tn_rng_below(&rng, 2));
	}
	down(&w);
}

/* The window ends at 10 and 6, the checkpoints at 9, 7 and 6: all agree on 6 only. */
static void groups_step_down_in_turn_until_all_agree(void **state)
{
	const uint32_t which[] = {0, 2, 3};
	struct world w;

	up(&w);
	for (uint32_t k = 0; k < 12; k++)
		save(&w, 0, k);
	for (uint32_t k = 0; k < 10; k++)
		if (k != 6)
			save(&w, 2, k);
	save(&w, 3, 8);
	save(&w, 3, 6);
	save(&w, 3, 5);
	compare(&w, which, 3, KEYS, false);
	drop(&w, 3, 5);
	compare(&w, which, 3, KEYS, false); /* nothing is left */
	down(&w);
}

static void a_lease_of_all_holds_all_and_ends_as_one(void **state)
{
	struct tn_match m = {.size = sizeof(m)}, again = {.size = sizeof(again)};
	uint64_t pin[4 * 16 / SPACES + 1];
	uint32_t n = 0;
	struct world w;

	up(&w);
	for (uint32_t i = 0; i < SPACES; i++)
		for (uint32_t k = 0; k < KEYS; k++)
			save(&w, i, k);
	while (tn_match_all(w.space, SPACES, w.key, KEYS, NULL, &m, TN_MATCH_PIN) == (int)KEYS)
		pin[n++] = m.pin;
	assert_int_equal(n, 4 * 16 / SPACES); /* a lease per space, of four per operation */
	assert_int_equal(tn_match_all(w.space, SPACES, w.key, KEYS, NULL, &m, TN_MATCH_PIN), -EAGAIN);
	assert_int_equal(tn_match_all(w.space, SPACES, w.key, KEYS, NULL, &again, 0), KEYS);
	for (uint32_t i = 1; i < n; i++)
		assert_int_equal(tn_unpin(w.space[i % SPACES], pin[i]), 0);
	assert_int_equal(tn_unpin(w.space[0], pin[1]), -EINVAL);
	/* What the last lease holds stays though it is dropped; what it does not hold goes. */
	for (uint32_t i = 0; i < SPACES; i++)
		assert_int_equal(tn_drop(w.space[i], w.key, KEYS), KEYS);
	rig_until(&w.r, rig_stats(&w.r).blocks == 2 * KEYS + 1 + 2 * WINDOW);
	assert_int_equal(tn_unpin(w.space[0], pin[0]), 0);
	rig_until(&w.r, rig_stats(&w.r).blocks == 0);
	down(&w);
}

static void spaces_that_have_other_keys_are_refused(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_space *spaces[TN_MATCH_SPACES_MAX + 1];
	const uint32_t tokens[TOKENS] = {1000, 1001, 1002, 1003};
	struct tn_key key;
	struct world w;

	up(&w);
	for (uint32_t i = 0; i <= TN_MATCH_SPACES_MAX; i++)
		spaces[i] = w.space[i % SPACES];
	assert_int_equal(tn_match_all(spaces, 0, w.key, KEYS, NULL, &m, 0), -EINVAL);
	assert_int_equal(tn_match_all(spaces, TN_MATCH_SPACES_MAX + 1, w.key, KEYS, NULL, &m, 0), -EINVAL);
	assert_int_equal(tn_match_all(spaces, 2, w.key, KEYS, NULL, &m, 2), -EINVAL);
	assert_int_equal(tn_match_all(spaces, 2, NULL, KEYS, NULL, &m, 0), -EINVAL);
	/* another tenant: its secret, and so its keys, are others */
	spaces[1] = open_share(&w, "bert", 0, TOKENS);
	assert_int_equal(tn_keys_from_tokens(spaces[1], tokens, TOKENS, NULL, 0, &key, 1), 1);
	assert_memory_not_equal(&key, &w.key[0], sizeof(key));
	assert_int_equal(tn_match_all(spaces, 2, w.key, KEYS, NULL, &m, 0), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "spaces[1]"));
	tn_space_close(spaces[1]);
	/* blocks of another number of tokens */
	spaces[1] = open_share(&w, "anna", 0, 2 * TOKENS);
	assert_int_equal(tn_match_all(spaces, 2, w.key, KEYS, NULL, &m, 0), -EINVAL);
	tn_space_close(spaces[1]);
	spaces[1] = NULL;
	assert_int_equal(tn_match_all(spaces, 2, w.key, KEYS, NULL, &m, 0), -EINVAL);
	down(&w);
}

static void a_query_ends_once_and_only_so_many_are_under_way(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	uint64_t query[17];
	struct world w;

	up(&w);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(tn_match_begin(w.space, SPACES, w.key, KEYS, 0, 0, &query[i]), 0);
	assert_int_equal(tn_match_begin(w.space, SPACES, w.key, KEYS, 0, 0, &query[16]), -EAGAIN);
	assert_int_equal(tn_match_cancel(w.r.cache, query[3]), 0);
	assert_int_equal(tn_match_cancel(w.r.cache, query[3]), -EINVAL);
	assert_int_equal(tn_match_poll(w.r.cache, query[3], NULL, &m), -EINVAL);
	assert_int_equal(tn_match_begin(w.space, SPACES, w.key, KEYS, 0, 0, &query[16]), 0);
	m.size = 1;
	assert_int_equal(tn_match_poll(w.r.cache, query[0], NULL, &m), -EINVAL); /* cannot take the result: still under way */
	m.size = sizeof(m);
	for (uint32_t i = 0; i < 17; i++)
		assert_int_equal(tn_match_poll(w.r.cache, query[i], NULL, &m), i == 3 ? -EINVAL : 0);
	assert_int_equal(tn_match_poll(w.r.cache, 0, NULL, &m), -EINVAL);
	assert_int_equal(tn_match_cancel(w.r.cache, UINT64_MAX), -EINVAL);
	assert_int_equal(tn_match_begin(w.space, SPACES, w.key, SIZE_MAX, 0, 0, &query[0]), -E2BIG);
	down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_all_have_is_what_a_model_says),
		cmocka_unit_test(groups_step_down_in_turn_until_all_agree),
		cmocka_unit_test(a_lease_of_all_holds_all_and_ends_as_one),
		cmocka_unit_test(spaces_that_have_other_keys_are_refused),
		cmocka_unit_test(a_query_ends_once_and_only_so_many_are_under_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
