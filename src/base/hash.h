/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes of keys: XXH3-128 with a 16-byte secret as seed and prefix.
 *
 * The secret keeps tenants from probing for each other's keys; it is not a cryptographic MAC.
 */
#ifndef TN_BASE_HASH_H
#define TN_BASE_HASH_H

#include <tenuto/types.h>

struct tn_secret {
	uint64_t word[2];
};

/* XXH3-128 of [secret, prev, data]; prev is the hash of the chain so far (zero at the start of a chain). */
struct tn_key tn_hash_chain(const struct tn_secret *secret, const struct tn_key *prev, const void *data, size_t len);

/* XXH3-64, for checksums of metadata pages. */
uint64_t tn_hash64(const void *data, size_t len);

/* XXH64 with seed 0, which other libraries have, too: for hashes that others compute. */
uint64_t tn_hash_xxh64(const void *data, size_t len);

#define TN_MIX64_STEP 0x9e3779b97f4a7c15u

/* One step of splitmix64 (Steele, Lea, Flood 2014): spreads bits that are not random enough to index a table. */
static inline uint64_t tn_mix64(uint64_t x)
{
	x += TN_MIX64_STEP;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* For tables by numbers that come in runs: neighbours share cache lines, runs are spread. */
static inline uint64_t tn_mix_runs(uint64_t x)
{
	return tn_mix64(x >> 4) << 4 | (x & 15);
}

static inline int tn_key_eq(const struct tn_key *a, const struct tn_key *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

static inline int tn_key_is_zero(const struct tn_key *k)
{
	return (k->word[0] | k->word[1]) == 0;
}

#endif
