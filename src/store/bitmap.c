/* SPDX-License-Identifier: Apache-2.0 */
/* The search in a bitmap, a word at a time. Changing and testing single bits is inline, in the header. */
#include "store/bitmap.h"

uint32_t tn_bit_next(const uint64_t *map, uint32_t from, uint32_t n)
{
	while (from < n) {
		uint64_t w = map[from / 64] >> (from % 64);

		if (w) {
			from += (uint32_t)__builtin_ctzll(w);
			return from < n ? from : n;
		}
		from = (from / 64 + 1) * 64;
	}
	return n;
}
