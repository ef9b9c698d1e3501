/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy kernel, but for its launch: what a lane does with one span of bytes. The same lines on the host, where tests run them.
 *
 * Host and kernel meet in a ring of entries in pinned host memory, which the host writes and a kernel reads. An entry is a span to copy, a
 * piece of an object to sum, or such an object (sum.h).
 */
#ifndef TN_CUDA_BODY_H
#define TN_CUDA_BODY_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/ring.h>

/* Entries of a ring: a power of two. */
#define TN_CUDA_RING 32768u
/* Lanes of a block of the copy kernel. */
#define TN_CUDA_COPY_LANES 256u

/** struct tn_cuda_span - bytes to copy; of a piece that is summed, @from and @bytes alone */
struct tn_cuda_span {
	uint64_t to;
	uint64_t from;
	uint64_t bytes;
};

/** struct tn_cuda_object - sum of @pieces entries of the ring, from entry @first on (modulo TN_CUDA_RING) */
struct tn_cuda_object {
	uint32_t first;
	uint32_t pieces;
	uint64_t bytes;
	uint64_t sum; /**< the kernel's answer */
};

union tn_cuda_entry {
	struct tn_cuda_span span;
	struct tn_cuda_object object;
};
TN_RING_CHECK(sizeof(struct tn_cuda_span) == 24 && sizeof(struct tn_cuda_object) == 24 && sizeof(union tn_cuda_entry) == 24, "host and device agree");

/** struct tn_cuda_16 - what a lane moves in one access */
struct tn_cuda_16 {
	uint64_t a, b;
} __attribute__((aligned(16)));

#ifdef __CUDACC__
#define TN_CUDA_UNROLL _Pragma("unroll")
#else
#define TN_CUDA_UNROLL
#endif

/* Four accesses are under way per lane: the first store waits for a load over the bus. */
#define TN_CUDA_COPY_AS(name, type)                                                                                         \
	TN_HD void name(type *to, const type *from, uint64_t n, uint32_t lane, uint32_t lanes)                               \
	{                                                                                                                    \
		uint64_t i = lane;                                                                                           \
		for (; i + 3ull * lanes < n; i += 4ull * lanes) {                                                            \
			type a = from[i], b = from[i + lanes], c = from[i + 2ull * lanes], d = from[i + 3ull * lanes];       \
			to[i] = a;                                                                                           \
			to[i + lanes] = b;                                                                                   \
			to[i + 2ull * lanes] = c;                                                                            \
			to[i + 3ull * lanes] = d;                                                                            \
		}                                                                                                            \
		for (; i < n; i += lanes)                                                                                    \
			to[i] = from[i];                                                                                     \
	}
TN_CUDA_COPY_AS(tn_cuda_copy_16, struct tn_cuda_16)
TN_CUDA_COPY_AS(tn_cuda_copy_8, uint64_t)
TN_CUDA_COPY_AS(tn_cuda_copy_4, uint32_t)
TN_CUDA_COPY_AS(tn_cuda_copy_1, unsigned char)

/*
 * What lane @lane of @lanes copies of a span. Accesses are as wide as both sides allow at the same time: a head of single bytes brings both to
 * a multiple of that width, and what is left behind the last whole one is single bytes again.
 */
TN_HD void tn_cuda_copy_span(const struct tn_cuda_span *span, uint32_t lane, uint32_t lanes)
{
	unsigned char *to = (unsigned char *)(uintptr_t)span->to;
	const unsigned char *from = (const unsigned char *)(uintptr_t)span->from;
	uint64_t apart = span->to ^ span->from, width = apart % 16 == 0 ? 16 : apart % 8 == 0 ? 8 : apart % 4 == 0 ? 4 : 1;
	uint64_t head = (width - span->to % width) % width, whole;

	head = head < span->bytes ? head : span->bytes;
	whole = (span->bytes - head) / width * width;
	tn_cuda_copy_1(to, from, head, lane, lanes);
	if (width == 16)
		tn_cuda_copy_16((struct tn_cuda_16 *)(void *)(to + head), (const struct tn_cuda_16 *)(const void *)(from + head), whole / 16, lane, lanes);
	else if (width == 8)
		tn_cuda_copy_8((uint64_t *)(void *)(to + head), (const uint64_t *)(const void *)(from + head), whole / 8, lane, lanes);
	else if (width == 4)
		tn_cuda_copy_4((uint32_t *)(void *)(to + head), (const uint32_t *)(const void *)(from + head), whole / 4, lane, lanes);
	else
		tn_cuda_copy_1(to + head, from + head, whole, lane, lanes);
	head += whole;
	tn_cuda_copy_1(to + head, from + head, span->bytes - head, lane, lanes);
}

#endif
