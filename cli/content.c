/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Word i of an object is a Weyl sequence (seed of block and layer, plus i times an odd constant) with its
 * high bits folded down. Additions, shifts and xors only: four words at a time on any vector unit.
 */
#include "content.h"

#include <string.h>

#define WEYL 0x9e3779b97f4a7c15u

typedef uint64_t vec __attribute__((vector_size(32)));

/* Finaliser of splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t scramble(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t block, uint32_t layer, size_t offset)
{
	return scramble(scramble(block + WEYL) + layer) + offset / 8 * WEYL;
}

static uint64_t word_of(uint64_t seed, size_t i)
{
	uint64_t x = seed + i * WEYL;

	return x ^ (x >> 29);
}

void content_fill(void *to, size_t bytes, uint64_t block, uint32_t layer, size_t offset)
{
	uint64_t seed = seed_of(block, layer, offset);
	vec x = {seed, seed + WEYL, seed + 2 * WEYL, seed + 3 * WEYL};
	const vec step = {4 * WEYL, 4 * WEYL, 4 * WEYL, 4 * WEYL};
	char *p = to;
	size_t i;

	for (i = 0; i + sizeof(vec) <= bytes; i += sizeof(vec)) {
		vec w = x ^ (x >> 29);

		memcpy(p + i, &w, sizeof(w));
		x += step;
	}
	for (; i < bytes; i += 8) {
		uint64_t w = word_of(seed, i / 8);

		memcpy(p + i, &w, bytes - i < 8 ? bytes - i : 8);
	}
}

static long first_wrong(const char *p, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t w = word_of(seed, i / 8);

		if (memcmp(p + i, &w, bytes - i < 8 ? bytes - i : 8))
			return (long)i;
	}
	return -1;
}

long content_check(const void *from, size_t bytes, uint64_t block, uint32_t layer, size_t offset)
{
	uint64_t seed = seed_of(block, layer, offset);
	vec x = {seed, seed + WEYL, seed + 2 * WEYL, seed + 3 * WEYL}, wrong = {0, 0, 0, 0};
	const vec step = {4 * WEYL, 4 * WEYL, 4 * WEYL, 4 * WEYL};
	const char *p = from;
	size_t whole = bytes / sizeof(vec) * sizeof(vec);

	for (size_t i = 0; i < whole; i += sizeof(vec)) {
		vec w;

		memcpy(&w, p + i, sizeof(w));
		wrong |= w ^ x ^ (x >> 29);
		x += step;
	}
	if ((wrong[0] | wrong[1] | wrong[2] | wrong[3]) == 0 &&
	    first_wrong(p + whole, bytes - whole, seed + whole / 8 * WEYL) < 0)
		return -1;
	return first_wrong(p, bytes, seed);
}
