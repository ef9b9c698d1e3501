/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3-64 for host and device, bit for bit as xxhash 0.8 has it (its own sources do not compile for a device): the stable algorithm of
 * Yann Collet's specification, all lengths, with a seed. Names of primes and rounds are those of xxhash.h.
 *
 * Of more than TN_XXH3_SHORT bytes the eight accumulators are four pairs that know nothing of each other until the end. So four lanes hash
 * one input: each runs a pair over 16 of every 64 bytes.
 *
 * Bytes come from a struct tn_xxh3_input: one run, or pieces that follow each other. Little-endian machines only, as every device is.
 */
#ifndef TN_CUDA_XXH3_H
#define TN_CUDA_XXH3_H

#include "body.h"

#define TN_XXH3_SHORT 240u

#define TN_P32_1 0x9E3779B1u
#define TN_P32_2 0x85EBCA77u
#define TN_P32_3 0xC2B2AE3Du
#define TN_P64_1 0x9E3779B185EBCA87ull
#define TN_P64_2 0xC2B2AE3D27D4EB4Full
#define TN_P64_3 0x165667B19E3779F9ull
#define TN_P64_4 0x85EBCA77C2B2AE63ull
#define TN_P64_5 0x27D4EB2F165667C5ull
#define TN_PMX_1 0x165667919E3779F9ull
#define TN_PMX_2 0x9FB21C651E98DF25ull

/* Bytes of the secret at which parts of the algorithm begin. */
#define TN_XXH3_SCRAMBLE 128u
#define TN_XXH3_LAST 121u
#define TN_XXH3_MERGE 11u

/* Word @i (0 to 23) of the default secret; of a seed: of the secret that is made of it for long inputs. */
TN_HD uint64_t tn_xxh3_word(uint32_t i, uint64_t seed)
{
	static const uint64_t secret[24] = {
		0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
		0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
		0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
		0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
		0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
		0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
	};

	return i % 2 == 0 ? secret[i] + seed : secret[i] - seed;
}

/* Eight bytes of it from any byte on. */
TN_HD uint64_t tn_xxh3_secret(uint32_t at, uint64_t seed)
{
	uint32_t shift = at % 8 * 8;
	uint64_t low = tn_xxh3_word(at / 8, seed);

	return shift == 0 ? low : low >> shift | tn_xxh3_word(at / 8 + 1, seed) << (64 - shift);
}

TN_HD uint64_t tn_xxh3_mul128_fold64(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
	return (a * b) ^ __umul64hi(a, b);
#else
	__extension__ unsigned __int128 p = (unsigned __int128)a * b;

	return (uint64_t)p ^ (uint64_t)(p >> 64);
#endif
}

TN_HD uint64_t tn_xxh64_avalanche(uint64_t h)
{
	h = (h ^ h >> 33) * TN_P64_2;
	h = (h ^ h >> 29) * TN_P64_3;
	return h ^ h >> 32;
}

TN_HD uint64_t tn_xxh3_avalanche(uint64_t h)
{
	h = (h ^ h >> 37) * TN_PMX_1;
	return h ^ h >> 32;
}

TN_HD uint64_t tn_xxh3_rrmxmx(uint64_t h, uint64_t len)
{
	h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
	h *= TN_PMX_2;
	h ^= (h >> 35) + len;
	h *= TN_PMX_2;
	return h ^ h >> 28;
}

/**
 * struct tn_xxh3_input - @bytes to hash
 * @flat: they follow each other in memory from here; 0: they lie in entries of @ring, from byte @skip of entry @first on
 */
struct tn_xxh3_input {
	uint64_t flat;
	const union tn_cuda_entry *ring;
	uint64_t skip;
	uint64_t bytes;
	uint32_t first;
};

TN_HD uint64_t tn_xxh3_byte(const struct tn_xxh3_input *in, uint64_t at)
{
	uint32_t i = in->first;

	if (in->flat)
		return *(const unsigned char *)(uintptr_t)(in->flat + at);
	for (at += in->skip; at >= in->ring[i % TN_CUDA_RING].span.bytes; i++)
		at -= in->ring[i % TN_CUDA_RING].span.bytes;
	return *(const unsigned char *)(uintptr_t)(in->ring[i % TN_CUDA_RING].span.from + at);
}

/* Eight bytes: one access where they lie in one piece and at a multiple of 8, as they nearly always do. */
TN_HD uint64_t tn_xxh3_read64(const struct tn_xxh3_input *in, uint64_t at)
{
	uint64_t from = in->flat + at, left = 8, v = 0, skip = at + in->skip;
	uint32_t i = in->first;

	if (!in->flat) {
		for (; skip >= in->ring[i % TN_CUDA_RING].span.bytes; i++)
			skip -= in->ring[i % TN_CUDA_RING].span.bytes;
		from = in->ring[i % TN_CUDA_RING].span.from + skip;
		left = in->ring[i % TN_CUDA_RING].span.bytes - skip;
	}
	if (from % 8 == 0 && left >= 8)
		return *(const uint64_t *)(uintptr_t)from;
	for (i = 0; i < 8; i++)
		v |= tn_xxh3_byte(in, at + i) << 8 * i;
	return v;
}

TN_HD uint64_t tn_xxh3_read32(const struct tn_xxh3_input *in, uint64_t at)
{
	uint64_t v = 0;

	for (uint32_t i = 0; i < 4; i++)
		v |= tn_xxh3_byte(in, at + i) << 8 * i;
	return v;
}

TN_HD uint64_t tn_xxh3_bswap64(uint64_t v)
{
	uint64_t r = 0;

	for (uint32_t i = 0; i < 64; i += 8)
		r |= (v >> i & 255) << (56 - i);
	return r;
}

TN_HD uint64_t tn_xxh3_0_to_16(const struct tn_xxh3_input *in, uint64_t seed)
{
	uint64_t n = in->bytes, a, b;

	if (n > 8) {
		a = tn_xxh3_read64(in, 0) ^ ((tn_xxh3_secret(24, 0) ^ tn_xxh3_secret(32, 0)) + seed);
		b = tn_xxh3_read64(in, n - 8) ^ ((tn_xxh3_secret(40, 0) ^ tn_xxh3_secret(48, 0)) - seed);
		return tn_xxh3_avalanche(n + tn_xxh3_bswap64(a) + b + tn_xxh3_mul128_fold64(a, b));
	}
	if (n >= 4) {
		seed ^= tn_xxh3_bswap64(seed & UINT32_MAX); /* the swapped low half, in the high half */
		a = tn_xxh3_read32(in, n - 4) + (tn_xxh3_read32(in, 0) << 32);
		return tn_xxh3_rrmxmx(a ^ ((tn_xxh3_secret(8, 0) ^ tn_xxh3_secret(16, 0)) - seed), n);
	}
	if (n > 0) {
		a = tn_xxh3_byte(in, 0) << 16 | tn_xxh3_byte(in, n / 2) << 24 | tn_xxh3_byte(in, n - 1) | n << 8;
		b = tn_xxh3_word(0, 0);
		return tn_xxh64_avalanche(a ^ (((b ^ b >> 32) & UINT32_MAX) + seed));
	}
	return tn_xxh64_avalanche(seed ^ tn_xxh3_secret(56, 0) ^ tn_xxh3_secret(64, 0));
}

TN_HD uint64_t tn_xxh3_mix16(const struct tn_xxh3_input *in, uint64_t at, uint32_t secret, uint64_t seed)
{
	return tn_xxh3_mul128_fold64(tn_xxh3_read64(in, at) ^ (tn_xxh3_secret(secret, 0) + seed),
				     tn_xxh3_read64(in, at + 8) ^ (tn_xxh3_secret(secret + 8, 0) - seed));
}

/** tn_xxh3_short - of at most TN_XXH3_SHORT bytes */
TN_HD uint64_t tn_xxh3_short(const struct tn_xxh3_input *in, uint64_t seed)
{
	uint64_t n = in->bytes, acc = n * TN_P64_1;
	uint32_t i;

	if (n <= 16)
		return tn_xxh3_0_to_16(in, seed);
	if (n <= 128) {
		for (i = 0; i < (n - 1) / 32 + 1; i++) {
			acc += tn_xxh3_mix16(in, 16 * i, 32 * i, seed);
			acc += tn_xxh3_mix16(in, n - 16 * (i + 1), 32 * i + 16, seed);
		}
		return tn_xxh3_avalanche(acc);
	}
	for (i = 0; i < 8; i++)
		acc += tn_xxh3_mix16(in, 16 * i, 16 * i, seed);
	acc = tn_xxh3_avalanche(acc);
	for (; i < n / 16; i++)
		acc += tn_xxh3_mix16(in, 16 * i, 16 * (i - 8) + 3, seed);
	return tn_xxh3_avalanche(acc + tn_xxh3_mix16(in, n - 16, 136 - 17, seed));
}

/* One of the four pairs of accumulators. */
struct tn_xxh3_pair {
	uint64_t acc[2];
};

TN_HD void tn_xxh3_begin(struct tn_xxh3_pair *p, uint32_t pair)
{
	p->acc[0] = pair == 0 ? TN_P32_3 : pair == 1 ? TN_P64_2 : pair == 2 ? TN_P64_4 : TN_P64_5;
	p->acc[1] = pair == 0 ? TN_P64_1 : pair == 1 ? TN_P64_3 : pair == 2 ? TN_P32_2 : TN_P32_1;
}

TN_HD void tn_xxh3_accumulate(struct tn_xxh3_pair *p, uint64_t a, uint64_t b, uint64_t key_a, uint64_t key_b)
{
	uint64_t x = a ^ key_a, y = b ^ key_b;

	p->acc[0] += b + (uint64_t)(uint32_t)x * (uint32_t)(x >> 32);
	p->acc[1] += a + (uint64_t)(uint32_t)y * (uint32_t)(y >> 32);
}

TN_HD void tn_xxh3_scramble(struct tn_xxh3_pair *p, uint64_t key_a, uint64_t key_b)
{
	p->acc[0] = (p->acc[0] ^ p->acc[0] >> 47 ^ key_a) * TN_P32_1;
	p->acc[1] = (p->acc[1] ^ p->acc[1] >> 47 ^ key_b) * TN_P32_1;
}

/* A stripe of 64 bytes that is not the last, number @stripe of the input: @a and @b are the 16 bytes of this pair. */
TN_HD void tn_xxh3_stripe(struct tn_xxh3_pair *p, uint32_t pair, uint64_t stripe, uint64_t a, uint64_t b, uint64_t seed)
{
	uint32_t word = (uint32_t)(stripe % 16) + 2 * pair;

	tn_xxh3_accumulate(p, a, b, tn_xxh3_word(word, seed), tn_xxh3_word(word + 1, seed));
	if (stripe % 16 == 15)
		tn_xxh3_scramble(p, tn_xxh3_word(16 + 2 * pair, seed), tn_xxh3_word(17 + 2 * pair, seed));
}

/* The last 64 bytes of the input, which may have been in the stripe before, too; and this pair's part of tn_xxh3_join. */
TN_HD uint64_t tn_xxh3_end(struct tn_xxh3_pair *p, uint32_t pair, uint64_t a, uint64_t b, uint64_t seed)
{
	uint32_t last = TN_XXH3_LAST + 16 * pair, merge = TN_XXH3_MERGE + 16 * pair;

	tn_xxh3_accumulate(p, a, b, tn_xxh3_secret(last, seed), tn_xxh3_secret(last + 8, seed));
	return tn_xxh3_mul128_fold64(p->acc[0] ^ tn_xxh3_secret(merge, seed), p->acc[1] ^ tn_xxh3_secret(merge + 8, seed));
}

/** tn_xxh3_join - of more than TN_XXH3_SHORT bytes, from the parts of the four pairs */
TN_HD uint64_t tn_xxh3_join(uint64_t bytes, const uint64_t part[4])
{
	return tn_xxh3_avalanche(bytes * TN_P64_1 + part[0] + part[1] + part[2] + part[3]);
}

/** tn_xxh3_part - a pair's part of an input of more than TN_XXH3_SHORT bytes, with seed 0 */
TN_HD uint64_t tn_xxh3_part(const struct tn_xxh3_input *in, uint32_t pair)
{
	uint64_t at = 16 * pair, s;
	struct tn_xxh3_pair p;

	tn_xxh3_begin(&p, pair);
	for (s = 0; s < (in->bytes - 1) / 64; s++, at += 64)
		tn_xxh3_stripe(&p, pair, s, tn_xxh3_read64(in, at), tn_xxh3_read64(in, at + 8), 0);
	at = in->bytes - 64 + 16 * pair;
	return tn_xxh3_end(&p, pair, tn_xxh3_read64(in, at), tn_xxh3_read64(in, at + 8), 0);
}

/** tn_xxh3_part_4096 - the same of 4,096 bytes at a multiple of 16: the case that has to be fast */
TN_HD uint64_t tn_xxh3_part_4096(const struct tn_cuda_16 *from, uint32_t pair)
{
	struct tn_xxh3_pair p;
	uint64_t key[18];
	uint32_t i;

	tn_xxh3_begin(&p, pair);
	TN_CUDA_UNROLL
	for (i = 0; i < 18; i++)
		key[i] = tn_xxh3_word(i + 2 * pair, 0);
	for (uint32_t block = 0; block < 4; block++) {
		TN_CUDA_UNROLL
		for (i = 0; i < 16; i++) {
			struct tn_cuda_16 v = from[64 * block + 4 * i + pair];

			if (block == 3 && i == 15)
				return tn_xxh3_end(&p, pair, v.a, v.b, 0);
			tn_xxh3_accumulate(&p, v.a, v.b, key[i], key[i + 1]);
		}
		tn_xxh3_scramble(&p, key[16], key[17]);
	}
	return 0;
}

#endif
