/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bitmaps: bit i is bit i % 64 of word i / 64. A map knows neither its length nor what its bits stand for: who owns a
 * map keeps both. Not for maps that several threads change.
 */
#ifndef TN_STORE_BITMAP_H
#define TN_STORE_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

static inline void tn_bit_set(uint64_t *map, uint32_t i)
{
	map[i / 64] |= 1ull << (i % 64);
}

static inline void tn_bit_clear(uint64_t *map, uint32_t i)
{
	map[i / 64] &= ~(1ull << (i % 64));
}

static inline bool tn_bit_test(const uint64_t *map, uint32_t i)
{
	return map[i / 64] >> (i % 64) & 1;
}

/* First set bit at or after from, or n. */
uint32_t tn_bit_next(const uint64_t *map, uint32_t from, uint32_t n);

#endif
