/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: the life of blocks that an engine builds token by token, and what the cache says of them. */
#include <errno.h>
#include <string.h>
#include <tenuto/sequence.h>

#include "cache_rig.h"

#define TOKENS 64u /* per block of the rig */
#define DISK (16u << 20)

struct world {
	struct rig r;
	struct tn_sequence *seq;
};

static void up(struct world *w, uint64_t disk_bytes)
{
	rig_set_up(&w->r, disk_bytes, 0, 64);
	assert_int_equal(tn_sequence_create(w->r.s->space, &w->seq), 0);
}

static void down(struct world *w)
{
	tn_sequence_destroy(w->seq);
	rig_tear_down(&w->r);
}

/* Tokens of a prompt that is its number's own. */
static void tokens_of(uint32_t prompt, uint32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = prompt * 100000 + i;
}

/* n full blocks are Complete. */
static void complete(struct tn_sequence *seq, uint32_t prompt, uint32_t n)
{
	uint32_t tokens[8 * TOKENS];

	assert_true(n <= 8);
	tokens_of(prompt, tokens, n * TOKENS);
	assert_int_equal(tn_sequence_init(seq, "salt", 4), 0);
	for (uint32_t i = 0; i < n; i++) {
		/* As an engine does: some tokens at a time, and never beyond the block. */
		assert_int_equal(tn_sequence_add_tokens(seq, tokens + i * TOKENS, 50), 50);
		assert_int_equal(tn_sequence_add_tokens(seq, tokens + i * TOKENS + 50, 50), 14);
		assert_int_equal(tn_sequence_add_tokens(seq, tokens, 1), 0);
		assert_int_equal(tn_sequence_commit(seq, NULL), 0);
	}
}

/* Saves Complete blocks as an engine would. */
static void save(struct world *w, uint64_t first, uint32_t n, uint8_t *outcome)
{
	struct tn_save_opts o;
	struct tn_save *s;
	struct tn_key keys[8];
	uint32_t pages[8 * RIG_PAGES];

	tn_save_opts_init(&o);
	assert_int_equal(tn_sequence_keys(w->seq, keys, 8), first + n);
	o.parent = first ? &keys[first - 1] : NULL;
	o.outcome = outcome;
	for (uint32_t i = 0; i < n * RIG_PAGES; i++)
		pages[i] = i;
	assert_int_equal(tn_save_begin(w->r.s->space, w->r.s->pool, keys + first, n, pages, &o, &s), 0);
	for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
		assert_int_equal(tn_save_layer(s, layer, NULL, 0), 0);
	assert_int_equal(tn_save_commit(s), 0);
	assert_int_equal(tn_save_end(s, tn_test_deadline(), NULL), 0);
}

static void expect(struct tn_sequence *seq, uint64_t blocks, uint64_t registered, uint64_t duplicates, uint64_t tokens)
{
	struct tn_sequence_info info = {.size = sizeof(info)};

	assert_int_equal(tn_sequence_info(seq, &info), 0);
	assert_int_equal(info.blocks, blocks);
	assert_int_equal(info.registered, registered);
	assert_int_equal(info.duplicates, duplicates);
	assert_int_equal(info.tokens, tokens);
}

static void a_block_goes_from_reset_to_registered_and_back(void **state)
{
	struct world w;
	uint8_t outcome[2];
	uint64_t duplicates;

	up(&w, DISK);
	assert_int_equal(tn_sequence_life(w.seq, 0), TN_LIFE_RESET);
	complete(w.seq, 1, 2);
	assert_int_equal(tn_sequence_life(w.seq, 1), TN_LIFE_COMPLETE);
	assert_int_equal(tn_sequence_life(w.seq, 2), TN_LIFE_PARTIAL);
	save(&w, 0, 2, outcome);
	assert_int_equal(tn_sequence_register(w.seq, 2, outcome, &duplicates), 2);
	assert_int_equal(duplicates, 0);
	assert_int_equal(tn_sequence_life(w.seq, 1), TN_LIFE_REGISTERED);
	expect(w.seq, 2, 2, 0, 0);
	assert_int_equal(tn_sequence_drop(w.seq), 0);
	assert_int_equal(tn_sequence_life(w.seq, 0), TN_LIFE_RESET);
	expect(w.seq, 0, 0, 0, 0);
	down(&w);
}

/* Each of the seventeen that can be asked for from outside; life_test.c has them all. */
static void a_step_that_is_forbidden_is_refused_and_changes_nothing(void **state)
{
	struct world w;
	uint32_t token = 7;

	up(&w, DISK);
	assert_int_equal(tn_sequence_add_tokens(w.seq, &token, 1), -EINVAL); /* Reset */
	assert_int_equal(tn_sequence_commit(w.seq, NULL), -EINVAL);
	assert_int_equal(tn_sequence_register(w.seq, 1, NULL, NULL), -EINVAL);
	assert_int_equal(tn_sequence_reset(w.seq, 0), -EINVAL);
	assert_int_equal(tn_sequence_drop(w.seq), -EINVAL);
	assert_int_equal(tn_sequence_init(w.seq, NULL, 0), 0);
	assert_int_equal(tn_sequence_init(w.seq, NULL, 0), -EINVAL); /* Partial */
	assert_int_equal(tn_sequence_add_tokens(w.seq, &token, 1), 1);
	assert_int_equal(tn_sequence_commit(w.seq, NULL), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "1 of 64"));
	assert_int_equal(tn_sequence_register(w.seq, 1, NULL, NULL), -EINVAL);
	assert_int_equal(tn_sequence_drop(w.seq), -EINVAL);
	expect(w.seq, 0, 0, 0, 1);
	assert_int_equal(tn_sequence_reset(w.seq, 0), 0);
	complete(w.seq, 1, 1);
	assert_int_equal(tn_sequence_init(w.seq, NULL, 0), -EINVAL); /* Complete */
	assert_int_equal(tn_sequence_drop(w.seq), -EINVAL);
	save(&w, 0, 1, NULL);
	assert_int_equal(tn_sequence_register(w.seq, 2, NULL, NULL), -EINVAL);
	assert_int_equal(tn_sequence_register(w.seq, 1, NULL, NULL), 1);
	assert_int_equal(tn_sequence_init(w.seq, NULL, 0), -EINVAL); /* Registered */
	assert_int_equal(tn_sequence_register(w.seq, 1, NULL, NULL), -EINVAL);
	assert_int_equal(tn_sequence_reset(w.seq, 0), -EINVAL);
	assert_int_equal(tn_sequence_add_tokens(w.seq, &token, 1), 1);
	assert_int_equal(tn_sequence_drop(w.seq), -EINVAL);
	expect(w.seq, 1, 1, 0, 1);
	down(&w);
}

static void a_prompt_of_the_same_tokens_has_the_keys_of_the_sequence(void **state)
{
	struct world w;
	uint32_t tokens[3 * TOKENS];
	struct tn_key built[3], asked[3];

	up(&w, DISK);
	tokens_of(1, tokens, 3 * TOKENS);
	complete(w.seq, 1, 3);
	assert_int_equal(tn_sequence_keys(w.seq, built, 3), 3);
	assert_int_equal(tn_keys_from_tokens(w.r.s->space, tokens, 3 * TOKENS, "salt", 4, asked, 3), 3);
	assert_memory_equal(built, asked, sizeof(built));
	assert_int_equal(tn_sequence_reset(w.seq, 1), 0); /* and what comes behind a reset block is chained to what is left */
	assert_int_equal(tn_sequence_add_tokens(w.seq, tokens + TOKENS, TOKENS), TOKENS);
	assert_int_equal(tn_sequence_commit(w.seq, &built[1]), 0);
	assert_memory_equal(&built[1], &asked[1], sizeof(built[1]));
	down(&w);
}

static void blocks_that_were_there_before_are_counted_as_duplicates(void **state)
{
	struct world w;
	struct tn_sequence *first;
	uint8_t outcome[3];
	uint64_t duplicates;

	up(&w, DISK);
	complete(w.seq, 1, 2);
	save(&w, 0, 2, outcome);
	assert_int_equal(tn_sequence_register(w.seq, 2, outcome, NULL), 2);
	first = w.seq;
	assert_int_equal(tn_sequence_create(w.r.s->space, &w.seq), 0);
	complete(w.seq, 1, 3);
	save(&w, 0, 3, outcome);
	assert_int_equal(tn_sequence_register(w.seq, 3, outcome, &duplicates), 3);
	assert_int_equal(duplicates, 2);
	expect(w.seq, 3, 3, 2, 0);
	tn_sequence_destroy(first);
	down(&w);
}

static void a_block_that_the_cache_does_not_have_stays_complete(void **state)
{
	struct world w;

	up(&w, DISK);
	complete(w.seq, 1, 3);
	assert_int_equal(tn_sequence_register(w.seq, 3, NULL, NULL), 0);
	save(&w, 0, 3, NULL);
	assert_int_equal(tn_sequence_register(w.seq, 1, NULL, NULL), 1);
	assert_int_equal(tn_sequence_register(w.seq, 2, NULL, NULL), 2);
	expect(w.seq, 3, 3, 0, 0);
	down(&w);
}

/* Saves other blocks than the sequence's until the cache has said of one of its own that it is gone, or enough were saved. */
static bool is_evicted(struct world *w, const struct tn_key *keys, uint32_t n)
{
	struct tn_block_event events[64];
	uint64_t cursor = 0;
	bool gone = false;

	assert_int_equal(tn_cache_events(w->r.cache, &cursor, events, 64), 0);
	for (uint32_t i = 0; i < 40 && !gone; i++) {
		long got;

		rig_save(w->r.s, 1000 + 8 * i, 8, 64);
		got = tn_cache_events(w->r.cache, &cursor, events, 64);
		for (long e = 0; e < got; e++)
			for (uint32_t k = 0; k < n; k++)
				gone |= events[e].kind == TN_EVENT_REMOVED && !memcmp(&events[e].key, &keys[k], sizeof(keys[k]));
	}
	return gone;
}

static void a_registered_block_is_held_until_its_handle_is_dropped_and_then_its_removal_is_told(void **state)
{
	struct world w;
	struct tn_key keys[2];

	up(&w, 4u << 20);
	complete(w.seq, 1, 2);
	save(&w, 0, 2, NULL);
	assert_int_equal(tn_sequence_register(w.seq, 2, NULL, NULL), 2);
	tn_sequence_keys(w.seq, keys, 2);
	assert_false(is_evicted(&w, keys, 2));
	assert_int_equal(tn_sequence_drop(w.seq), 0);
	assert_true(is_evicted(&w, keys, 2));
	down(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_goes_from_reset_to_registered_and_back),
		cmocka_unit_test(a_step_that_is_forbidden_is_refused_and_changes_nothing),
		cmocka_unit_test(a_prompt_of_the_same_tokens_has_the_keys_of_the_sequence),
		cmocka_unit_test(blocks_that_were_there_before_are_counted_as_duplicates),
		cmocka_unit_test(a_block_that_the_cache_does_not_have_stays_complete),
		cmocka_unit_test(a_registered_block_is_held_until_its_handle_is_dropped_and_then_its_removal_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
