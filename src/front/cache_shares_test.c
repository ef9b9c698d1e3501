/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of the ranks of one engine: a block is there with all of its shares or with none, whatever is evicted, kept out or moved for it.
 */
#include "core/core.h"
#include "cache_rig.h"

#define RANKS 3u
#define PROMPT 6u /* blocks */
#define PROMPTS 40u

struct world {
	struct rig *r;
	struct rig_space rank[RANKS];
};

static void open_ranks(struct world *w)
{
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(rig_space_open(w->r, &(struct rig_space_opts){.rank = i, .ranks = RANKS}, &w->rank[i]), 0);
}

static void close_ranks(struct world *w)
{
	for (uint32_t i = 0; i < RANKS; i++)
		rig_space_close(&w->rank[i]);
}

static void up(struct world *w, const struct rig_opts *o)
{
	w->r = rig_start(o);
	open_ranks(w);
}

static void down(struct world *w)
{
	close_ranks(w);
	rig_tear_down(w->r);
}

static struct rig_opts in_memory(void)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.ndirs = 0;
	o.cache.host_bytes = 1u << 20;
	return o;
}

static void save(struct world *w, uint32_t rank, uint64_t first, uint32_t n)
{
	rig_save(&w->rank[rank], first, n, 0);
}

static void save_all(struct world *w, uint64_t first, uint32_t n)
{
	for (uint32_t i = 0; i < RANKS; i++)
		save(w, i, first, n);
}

/* How many ranks have their share. */
static uint32_t shares_of(const struct world *w, uint64_t id)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RANKS; i++)
		n += rig_count(&w->rank[i], id, 1);
	return n;
}

/* Blocks from 1 on with all their shares, until the tier is full; returns how many there are. */
static uint32_t fill(struct world *w)
{
	uint32_t n = 0;

	while (rig_stats(w->r).evicted_blocks[TN_TIER_HOST] == 0)
		save_all(w, 1000 + 10 * n++, 1);
	return n;
}

static void a_share_that_is_evicted_takes_the_others_along(void **state)
{
	struct rig_opts o = in_memory();
	uint32_t n, before, left = 0;
	struct world w;

	up(&w, &o);
	n = fill(&w);
	before = (uint32_t)rig_stats(w.r).tier_blocks[TN_TIER_HOST];
	for (uint32_t i = 0; i < n; i++) {
		uint32_t shares = shares_of(&w, 1000 + 10 * i);

		assert_true(shares == 0 || shares == RANKS);
		left += shares / RANKS;
	}
	assert_int_equal(before, left * RANKS);
	assert_true(left >= n - 2);
	/* One rank's new block costs one block, and the shares of the other ranks then cost nothing. */
	save(&w, 2, 5000, 1);
	save(&w, 0, 5000, 1);
	save(&w, 1, 5000, 1);
	assert_int_equal(rig_stats(w.r).tier_blocks[TN_TIER_HOST], before);
	assert_int_equal(shares_of(&w, 5000), RANKS);
	down(&w);
}

static void a_share_that_somebody_holds_stays(void **state)
{
	struct rig_opts o = in_memory();
	struct world w;
	uint64_t pin;

	up(&w, &o);
	save_all(&w, 1, 1);
	pin = rig_pin(&w.rank[1], 1, 1);
	for (uint32_t i = 0; shares_of(&w, 1) == RANKS; i++)
		save_all(&w, 1000 + 10 * i, 1);
	assert_int_equal(rig_count(&w.rank[1], 1, 1), 1);
	assert_int_equal(shares_of(&w, 1), 1);
	/* Its bytes are still right, and saving again makes it whole. */
	assert_int_equal(rig_load(&w.rank[1], 1, 1), 1);
	save_all(&w, 1, 1);
	assert_int_equal(shares_of(&w, 1), RANKS);
	rig_unpin(&w.rank[1], pin);
	down(&w);
}

static void ranks_of_other_engines_are_left_alone(void **state)
{
	const struct rig_space_opts others[] = {{.rank = 0, .ranks = 2}, {.rank = 0, .ranks = RANKS, .tenant = "bert"}, {.ranks = 1}};
	enum { OTHERS = sizeof(others) / sizeof(others[0]) };
	struct rig_space other[OTHERS];
	struct rig_opts o = in_memory();
	struct world w;

	up(&w, &o);
	save_all(&w, 1, 1);
	for (uint32_t i = 0; i < OTHERS; i++) {
		assert_int_equal(rig_space_open(w.r, &others[i], &other[i]), 0);
		rig_save(&other[i], 1, 1, 0); /* the same key, more recent */
	}
	for (uint32_t i = 0; shares_of(&w, 1) > 0; i++)
		save_all(&w, 1000 + 10 * i, 1);
	for (uint32_t i = 0; i < OTHERS; i++) {
		assert_int_equal(rig_count(&other[i], 1, 1), 1);
		rig_space_close(&other[i]);
	}
	down(&w);
}

/* ---- at random ------------------------------------------------------------------------------------------------ */

static void shuffle(struct tn_rng *rng, uint32_t *order)
{
	for (uint32_t i = 0; i < RANKS; i++)
		order[i] = i;
	for (uint32_t i = RANKS; i > 1; i--) {
		uint32_t k = (uint32_t)tn_rng_below(rng, i), t = order[i - 1];

		order[i - 1] = order[k];
		order[k] = t;
	}
}

/* All ranks save a prompt, or what it begins with, at once and in any order. */
static void ranks_save(struct world *w, struct tn_rng *rng, uint64_t prompt)
{
	uint32_t order[RANKS], n = 1 + (uint32_t)tn_rng_below(rng, PROMPT);
	struct tn_save *save[RANKS];

	shuffle(rng, order);
	for (uint32_t i = 0; i < RANKS; i++) {
		save[order[i]] = rig_save_begin(&w->rank[order[i]], prompt * 100, n, 0, NULL);
		if (tn_rng_below(rng, 2))
			rig_run(w->r, RIG_MS);
	}
	shuffle(rng, order);
	for (uint32_t i = 0; i < RANKS; i++)
		rig_save_give(&w->rank[order[i]], save[order[i]]);
	for (uint32_t i = 0; i < RANKS; i++)
		rig_save_end(&w->rank[i], save[i]);
}

/* Counts blocks that are there, and those of which only some shares are. */
static void count(const struct world *w, uint32_t *whole, uint32_t *torn)
{
	for (uint64_t p = 1; p <= PROMPTS; p++)
		for (uint32_t i = 0; i < PROMPT; i++) {
			uint32_t n = shares_of(w, p * 100 + i);

			*whole += n == RANKS;
			*torn += n > 0 && n < RANKS;
		}
}

/* Blocks of another size make segments move, and the blocks in these leave. */
static void run(const char *policy, uint64_t host_bytes, bool disk, uint32_t rounds, uint32_t most_percent)
{
	struct rig_opts o = rig_simulated_opts();
	uint32_t whole = 0, torn = 0;
	struct rig_space large;
	struct tn_rng rng;
	struct world w;

	tn_rng_seed(&rng, tn_test_seed());
	o.cache.policy = policy;
	o.cache.host_bytes = host_bytes;
	o.cache.ndirs = disk;
	up(&w, &o);
	assert_int_equal(rig_space_open(w.r, &(struct rig_space_opts){.head_dim = 256}, &large), 0);
	for (uint32_t round = 0; round < rounds; round++) {
		uint64_t p = 1 + tn_rng_below(&rng, 1 + tn_rng_below(&rng, PROMPTS));

		ranks_save(&w, &rng, p);
		if (disk && tn_rng_below(&rng, 30) == 0)
			rig_save(&large, 1 + 8 * tn_rng_below(&rng, 50), 8, 0);
		if (round % 10 == 0)
			count(&w, &whole, &torn);
	}
	print_message("# %s, host %u, disk %d: %u blocks with all shares, %u with some\n", policy, (unsigned)(host_bytes >> 20), disk, whole, torn);
	assert_true(whole > 100);
	/* A share may go while those of other ranks are still on their way: they stay until they go by themselves. */
	if (torn * 100 > whole * most_percent)
		rig_fail(w.r, "%s: %u blocks were there with some shares, %u with all", policy, torn, whole);
	rig_space_close(&large);
	down(&w);
}

static void blocks_are_there_with_all_shares_or_none(void **state)
{
	static const char *const policies[] = {"default", "lru", "fifo", "s3fifo"};

	run("default", 0, true, 1000, 2);
	for (uint32_t i = 0; i < 4; i++) {
		run(policies[i], 0, true, 300, 10);
		run(policies[i], 1u << 20, false, 300, 10);
		run(policies[i], 1u << 20, true, 300, 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_share_that_is_evicted_takes_the_others_along),
		cmocka_unit_test(a_share_that_somebody_holds_stays),
		cmocka_unit_test(ranks_of_other_engines_are_left_alone),
		cmocka_unit_test(blocks_are_there_with_all_shares_or_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
