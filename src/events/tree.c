/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix tree (tenuto/prefix_tree.h): a table with linear probing, whose entries are a key and the bits of who has it.
 *
 * An entry without bits is no entry: it is taken out, and those behind it that were probing past it move up (Knuth, 6.4, algorithm R). So searches
 * stay short however many blocks come and go.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <tenuto/prefix_tree.h>

#include "base/alloc.h"
#include "base/error.h"

#define CACHES_PER_WORD 16u
#define WORDS_MAX (TN_TREE_CACHES_MAX / CACHES_PER_WORD)
#define AHEAD 8u /* keys whose entries are fetched ahead of the search */
/* One bit of each cache's four: of its best tier, and so on down. */
#define BEST UINT64_C(0x1111111111111111)

struct tn_tree {
	pthread_rwlock_t lock;
	uint64_t *entries; /* each: the key, then `words` words of bits. Key 0: free */
	uint64_t nentries, blocks, max_blocks, left_out;
	uint32_t caches, words;
};

static size_t entries_bytes(const struct tn_tree *t)
{
	return tn_array_bytes(t->nentries, (1 + (size_t)t->words) * sizeof(*t->entries));
}

int tn_tree_create(uint64_t max_blocks, uint32_t caches, struct tn_tree **out)
{
	struct tn_tree *t;

	if (max_blocks == 0 || max_blocks > TN_TREE_BLOCKS_MAX || caches == 0 || caches > TN_TREE_CACHES_MAX || !out)
		return tn_fail(-EINVAL, "tn_tree_create: %llu blocks of %u caches: give 1 to %llu blocks, and 1 to %u caches",
			       (unsigned long long)max_blocks, caches, (unsigned long long)TN_TREE_BLOCKS_MAX, TN_TREE_CACHES_MAX);
	t = tn_get(&tn_alloc_system, sizeof(*t));
	if (!t)
		return tn_fail(-ENOMEM, "no memory for a prefix tree");
	t->caches = caches;
	t->words = (caches + CACHES_PER_WORD - 1) / CACHES_PER_WORD;
	t->max_blocks = max_blocks;
	t->nentries = max_blocks + max_blocks / 3 + 8;
	t->entries = tn_get(&tn_alloc_system, entries_bytes(t));
	if (!t->entries) {
		tn_put(&tn_alloc_system, t, sizeof(*t));
		return tn_fail(-ENOMEM, "no memory for a prefix tree of %llu blocks", (unsigned long long)max_blocks);
	}
	pthread_rwlock_init(&t->lock, NULL);
	*out = t;
	return 0;
}

void tn_tree_destroy(struct tn_tree *tree)
{
	if (!tree)
		return;
	pthread_rwlock_destroy(&tree->lock);
	tn_put(&tn_alloc_system, tree->entries, entries_bytes(tree));
	tn_put(&tn_alloc_system, tree, sizeof(*tree));
}

uint64_t tn_tree_key(const void *hash, size_t bytes)
{
	const unsigned char *at = hash;
	uint64_t key = 0;

	for (size_t i = bytes > 8 ? bytes - 8 : 0; i < bytes; i++)
		key = key << 8 | at[i];
	return key;
}

/* ---- the table. With the lock. ------------------------------------------------------------------------------ */

static uint64_t *entry_at(const struct tn_tree *t, uint64_t i)
{
	return t->entries + i * (1 + t->words);
}

/* 0 marks a free entry. */
static uint64_t usable(uint64_t key)
{
	return key ? key : 1;
}

static uint64_t home_of(const struct tn_tree *t, uint64_t key)
{
	return (key * 0x9e3779b97f4a7c15u >> 32) * t->nentries >> 32;
}

/* The entry of a key, or the free one where it would be. */
static uint64_t search(const struct tn_tree *t, uint64_t key)
{
	uint64_t i = home_of(t, key);

	while (*entry_at(t, i) && *entry_at(t, i) != key)
		i = i + 1 == t->nentries ? 0 : i + 1;
	return i;
}

static bool is_empty(const struct tn_tree *t, const uint64_t *entry)
{
	uint64_t any = 0;

	for (uint32_t w = 0; w < t->words; w++)
		any |= entry[1 + w];
	return any == 0;
}

/* Entry i has nobody's bits. */
static void take_out(struct tn_tree *t, uint64_t i)
{
	size_t bytes = (1 + (size_t)t->words) * sizeof(*t->entries);
	uint64_t j = i;

	t->blocks--;
	for (;;) {
		uint64_t home;

		memset(entry_at(t, i), 0, bytes);
		do {
			j = j + 1 == t->nentries ? 0 : j + 1;
			if (*entry_at(t, j) == 0)
				return;
			home = home_of(t, *entry_at(t, j));
		} while (i <= j ? i < home && home <= j : i < home || home <= j);
		memcpy(entry_at(t, i), entry_at(t, j), bytes);
		i = j;
	}
}

static uint64_t bit_of(uint32_t cache, enum tn_tier tier)
{
	return UINT64_C(1) << (cache % CACHES_PER_WORD * 4 + (unsigned)tier - 1);
}

static int check(const struct tn_tree *t, const char *call, uint32_t cache, enum tn_tier tier)
{
	if (t && cache < t->caches && tier >= TN_TIER_DEVICE && tier <= TN_TIER_REMOTE)
		return 0;
	return tn_fail(-EINVAL, "%s: no tree, cache %u of %u, or tier %d", call, cache, t ? t->caches : 0, (int)tier);
}

int tn_tree_store(struct tn_tree *tree, uint32_t cache, enum tn_tier tier, uint64_t key)
{
	int rc = check(tree, "tn_tree_store", cache, tier);
	uint64_t *entry;

	if (rc)
		return rc;
	key = usable(key);
	pthread_rwlock_wrlock(&tree->lock);
	entry = entry_at(tree, search(tree, key));
	if (*entry == 0 && tree->blocks == tree->max_blocks) {
		tree->left_out++;
		rc = -ENOSPC;
	} else {
		tree->blocks += *entry == 0;
		*entry = key;
		entry[1 + cache / CACHES_PER_WORD] |= bit_of(cache, tier);
	}
	pthread_rwlock_unlock(&tree->lock);
	return rc;
}

int tn_tree_remove(struct tn_tree *tree, uint32_t cache, enum tn_tier tier, uint64_t key)
{
	int rc = check(tree, "tn_tree_remove", cache, tier);
	uint64_t i, *entry;

	if (rc)
		return rc;
	pthread_rwlock_wrlock(&tree->lock);
	i = search(tree, usable(key));
	entry = entry_at(tree, i);
	if (*entry) {
		entry[1 + cache / CACHES_PER_WORD] &= ~bit_of(cache, tier);
		if (is_empty(tree, entry))
			take_out(tree, i);
	}
	pthread_rwlock_unlock(&tree->lock);
	return 0;
}

static uint64_t bits_of(uint32_t cache)
{
	return UINT64_C(0xf) << cache % CACHES_PER_WORD * 4;
}

int tn_tree_clear(struct tn_tree *tree, uint32_t cache)
{
	int rc = check(tree, "tn_tree_clear", cache, TN_TIER_DEVICE);

	if (rc)
		return rc;
	pthread_rwlock_wrlock(&tree->lock);
	for (uint64_t i = 0; i < tree->nentries;) {
		uint64_t *entry = entry_at(tree, i);

		entry[1 + cache / CACHES_PER_WORD] &= ~bits_of(cache);
		if (*entry && is_empty(tree, entry))
			take_out(tree, i); /* and look again at what moved here */
		else
			i++;
	}
	pthread_rwlock_unlock(&tree->lock);
	return 0;
}

/* ---- look-ups ------------------------------------------------------------------------------------------------- */

/* Of each cache: bit of a tier: the block lies in it, or in a better one. */
static uint64_t or_better(uint64_t bits)
{
	uint64_t two = bits | (bits & BEST * 7) << 1;

	return two | (two & BEST * 3) << 2;
}

/* n blocks are there in the tiers whose bits fell. */
static void note(struct tn_tree_prefix *out, uint32_t word, uint64_t fell, uint32_t n)
{
	while (fell) {
		unsigned bit = (unsigned)__builtin_ctzll(fell);

		out[word * CACHES_PER_WORD + bit / 4].blocks[bit % 4 + 1] = n;
		fell &= fell - 1;
	}
}

static uint64_t all_of(const struct tn_tree *t, uint32_t word)
{
	uint32_t left = t->caches - word * CACHES_PER_WORD;

	return left >= CACHES_PER_WORD ? UINT64_MAX : (UINT64_C(1) << left * 4) - 1;
}

long tn_tree_find(struct tn_tree *tree, const uint64_t *keys, size_t n, struct tn_tree_prefix *out)
{
	uint64_t alive[WORDS_MAX], any = 1;
	size_t i;

	if (!tree || (n && !keys) || n > INT32_MAX || !out)
		return tn_fail(-EINVAL, "tn_tree_find: no tree, no keys, or nowhere to return what was found");
	memset(out, 0, tree->caches * sizeof(*out));
	for (uint32_t w = 0; w < tree->words; w++)
		alive[w] = all_of(tree, w);
	pthread_rwlock_rdlock(&tree->lock);
	for (i = 0; i < n && any; i++) {
		const uint64_t *entry = entry_at(tree, search(tree, usable(keys[i])));

		if (i + AHEAD < n)
			__builtin_prefetch(entry_at(tree, home_of(tree, usable(keys[i + AHEAD]))));
		any = 0;
		for (uint32_t w = 0; w < tree->words; w++) {
			uint64_t has = or_better(entry[1 + w]);

			note(out, w, alive[w] & ~has, (uint32_t)i);
			alive[w] &= has;
			any |= alive[w];
		}
	}
	pthread_rwlock_unlock(&tree->lock);
	for (uint32_t w = 0; w < tree->words; w++)
		note(out, w, alive[w], (uint32_t)i);
	return any ? (long)i : (long)i - 1;
}

int tn_tree_stats(struct tn_tree *tree, struct tn_tree_stats *out)
{
	if (!tree || !out)
		return tn_fail(-EINVAL, "tn_tree_stats: no tree, or nowhere to return the figures");
	pthread_rwlock_rdlock(&tree->lock);
	*out = (struct tn_tree_stats){tree->blocks, tree->max_blocks, tree->left_out, tree->nentries * (1 + tree->words) * sizeof(*tree->entries)};
	pthread_rwlock_unlock(&tree->lock);
	return 0;
}

uint64_t tn_tree_digest(struct tn_tree *tree, uint32_t cache, uint64_t *blocks)
{
	uint64_t sum = 0, n = 0;

	if (check(tree, "tn_tree_digest", cache, TN_TIER_DEVICE) == 0) {
		pthread_rwlock_rdlock(&tree->lock);
		for (uint64_t i = 0; i < tree->nentries; i++) {
			const uint64_t *entry = entry_at(tree, i);
			uint64_t bits = entry[1 + cache / CACHES_PER_WORD] >> cache % CACHES_PER_WORD * 4 & 0xf;
			uint64_t mixed = (entry[0] ^ bits << 60) * 0xd6e8feb86659fd93u;

			sum += bits ? mixed ^ mixed >> 32 : 0;
			n += bits != 0;
		}
		pthread_rwlock_unlock(&tree->lock);
	}
	if (blocks)
		*blocks = n;
	return sum;
}
