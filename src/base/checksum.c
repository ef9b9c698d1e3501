/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The object checksum. The shared libxxhash picks AVX2 or AVX-512 at run time. The static one of Debian has no code that picks, so a build that
 * links it compiles this file once per instruction set (TN_CHECKSUM_TARGET names it), and checksum_pick.c picks.
 */
#include "base/checksum.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef TN_CHECKSUM_TARGET
#define XXH_INLINE_ALL
#include "base/checksum_targets.h"
#define tn_checksum_iov TN_CHECKSUM_OF(TN_CHECKSUM_TARGET)
#define tn_checksum_copy TN_CHECKSUM_COPY_OF(TN_CHECKSUM_TARGET)
#else
#define XXH_STATIC_LINKING_ONLY /* the streaming state lives on the stack */
#endif
#include <xxhash.h>
#if !defined(TN_CHECKSUM_TARGET) && defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* redefines the XXH3 calls to pick AVX2 or AVX-512 at run time */
#endif

/* Leaf hashes go into the root through a streaming state, so objects of any length need no memory. */
#define ROOT_BATCH 64

struct root {
	XXH3_state_t st;
	uint64_t batch[ROOT_BATCH];
	unsigned n;
};

static void root_init(struct root *r, size_t len)
{
	XXH3_INITSTATE(&r->st); /* else reset trusts a stale seed on the stack */
	XXH3_64bits_reset_withSeed(&r->st, len);
	r->n = 0;
}

static void root_add(struct root *r, uint64_t leaf)
{
	r->batch[r->n++] = leaf;
	if (r->n == ROOT_BATCH) {
		XXH3_64bits_update(&r->st, r->batch, sizeof(r->batch));
		r->n = 0;
	}
}

static uint64_t root_end(struct root *r)
{
	XXH3_64bits_update(&r->st, r->batch, r->n * sizeof(r->batch[0]));
	return XXH3_64bits_digest(&r->st);
}

/* One leaf that lies in several iovecs, starting at byte off of iov[*i]. */
static uint64_t scattered_leaf(const struct iovec *iov, size_t *i, size_t *off, size_t len)
{
	XXH3_state_t st;

	XXH3_64bits_reset(&st);
	while (len > 0) {
		size_t n = iov[*i].iov_len - *off;

		if (n > len)
			n = len;
		XXH3_64bits_update(&st, (const unsigned char *)iov[*i].iov_base + *off, n);
		len -= n;
		*off += n;
		if (*off == iov[*i].iov_len && len > 0) {
			++*i;
			*off = 0;
		}
	}
	return XXH3_64bits_digest(&st);
}

/* A CPU finds out anew in each piece that it is read in order; until then it waits for each line. */
static void prefetch_piece(const char *piece)
{
	for (size_t at = 0; at < 512; at += 64)
		__builtin_prefetch(piece + at);
}

uint64_t tn_checksum_iov(const struct iovec *iov, size_t iov_count, size_t skip, size_t len)
{
	struct root root;
	size_t i = 0;

	root_init(&root, len);
	while (i < iov_count && skip >= iov[i].iov_len)
		skip -= iov[i++].iov_len;
	while (len > 0) {
		size_t n = len < TN_CHECKSUM_LEAF ? len : TN_CHECKSUM_LEAF;

		while (skip == iov[i].iov_len) {
			i++;
			skip = 0;
		}
		if (iov[i].iov_len - skip >= n) {
			if (iov[i].iov_len - skip < 2 * n && i + 1 < iov_count)
				prefetch_piece(iov[i + 1].iov_base);
			root_add(&root, XXH3_64bits((const unsigned char *)iov[i].iov_base + skip, n));
			skip += n;
		} else {
			root_add(&root, scattered_leaf(iov, &i, &skip, n));
		}
		len -= n;
	}
	return root_end(&root);
}

#ifdef __SSE2__
/* 16 bytes at a time, which the CPU combines into whole cache lines, so that it need not read the lines first. len: of a multiple of 64; to: aligned to 16. */
static void store_past_cache(unsigned char *to, const unsigned char *from, size_t len)
{
	for (; len > 0; to += 64, from += 64, len -= 64)
		for (unsigned i = 0; i < 64; i += 16)
			_mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}

static void end_past_cache(void)
{
	_mm_sfence();
}
#else
static void store_past_cache(unsigned char *to, const unsigned char *from, size_t len)
{
	memcpy(to, from, len);
}

static void end_past_cache(void)
{
}
#endif

uint64_t tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache)
{
	const unsigned char *from = src;
	unsigned char *to = dst;
	struct root root;
	size_t n;

	root_init(&root, len);
	for (; len > 0; from += n, to += n, len -= n) {
		n = len < TN_CHECKSUM_LEAF ? len : TN_CHECKSUM_LEAF;
		if (past_cache && n == TN_CHECKSUM_LEAF && (uintptr_t)to % 16 == 0)
			store_past_cache(to, from, n);
		else
			memcpy(to, from, n);
		root_add(&root, XXH3_64bits(from, n));
	}
	if (past_cache)
		end_past_cache();
	return root_end(&root);
}

#ifndef TN_CHECKSUM_TARGET
uint64_t tn_checksum(const void *data, size_t len)
{
	const struct iovec all = {(void *)(uintptr_t)data, len};

	return tn_checksum_iov(&all, 1, 0, len);
}
#endif
