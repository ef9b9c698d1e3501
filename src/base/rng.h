/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The randomness seam: xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64.
 * Deterministic; not for secrets - those come from tn_rng_entropy.
 */
#ifndef TN_BASE_RNG_H
#define TN_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct tn_rng {
	uint64_t s[4];
};

void tn_rng_seed(struct tn_rng *rng, uint64_t seed);
uint64_t tn_rng_next(struct tn_rng *rng);

/* Fills buf from the kernel's generator; 0 or -errno. */
int tn_rng_entropy(void *buf, size_t len);

/* Uniform in [0, n) (Lemire's multiply-shift; its bias below 2^-32 does not matter here); n > 0. */
static inline uint32_t tn_rng_below(struct tn_rng *rng, uint32_t n)
{
	return (uint32_t)(((tn_rng_next(rng) >> 32) * n) >> 32);
}

/* Uniform in [0, 1). */
static inline double tn_rng_unit(struct tn_rng *rng)
{
	return (double)(tn_rng_next(rng) >> 11) * 0x1.0p-53;
}

#endif
