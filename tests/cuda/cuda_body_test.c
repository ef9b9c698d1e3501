/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of the kernels, on the CPU, lane by lane: copies against memcpy, sums against the library's own. */
#include <string.h>

#include "base/checksum.h"
#include "base/rng.h"
#include "plugins/cuda/sum.h"
#include "tn_test.h"

#define BYTES (1u << 20)

static union tn_cuda_entry ring[TN_CUDA_RING];

static unsigned char *random_bytes(struct tn_rng *rng)
{
	unsigned char *bytes = aligned_alloc(4096, BYTES);

	assert_non_null(bytes);
	for (uint32_t i = 0; i < BYTES; i += 8) {
		uint64_t v = tn_rng_next(rng);

		memcpy(bytes + i, &v, 8);
	}
	return bytes;
}

/* As a block of TN_SUM_LANES lanes does it: all lanes of a step before the next step, in the worst order. */
static uint64_t sum_of(struct tn_cuda_object object)
{
	struct tn_sum_block block;

	memset(&block, 0xa5, sizeof(block));
	object.sum = 0;
	for (uint64_t turn = 0; turn < tn_sum_turns(&object); turn++) {
		for (uint32_t lane = TN_SUM_LANES; lane-- > 0;)
			tn_sum_parts(&block, ring, &object, turn, lane);
		for (uint32_t lane = TN_SUM_LEAVES; lane-- > 0;)
			tn_sum_join(&block, &object, turn, lane);
		tn_sum_root(&block, &object, turn);
	}
	return object.sum;
}

/* An object of bytes that follow each other, cut into @pieces entries of the ring from @first on. */
static struct tn_cuda_object cut(struct tn_rng *rng, const unsigned char *from, uint32_t bytes, uint32_t pieces, uint32_t first)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < pieces; i++) {
		uint32_t n = i + 1 == pieces ? bytes - at : tn_rng_below(rng, bytes - at + 1);

		ring[(first + i) % TN_CUDA_RING].span = (struct tn_cuda_span){.from = (uintptr_t)from + at, .bytes = n};
		at += n;
	}
	return (struct tn_cuda_object){.first = first, .pieces = pieces, .bytes = bytes};
}

static void every_short_length_has_the_sum_of_the_library(void **state)
{
	struct tn_rng rng;
	unsigned char *bytes;

	tn_rng_seed(&rng, tn_test_seed());
	bytes = random_bytes(&rng);
	for (uint32_t n = 0; n <= 3 * TN_SUM_LEAF; n++) {
		assert_int_equal(sum_of(cut(&rng, bytes, n, 1, 0)), tn_checksum(bytes, n));
		assert_int_equal(sum_of(cut(&rng, bytes + 1, n, 1, 0)), tn_checksum(bytes + 1, n));
	}
	free(bytes);
}

/* Whole leaves, and one byte more or less: roots of every length up to two turns and a half, short and long ones. */
static void every_number_of_leaves_has_the_sum_of_the_library(void **state)
{
	struct tn_rng rng;
	unsigned char *bytes;

	tn_rng_seed(&rng, tn_test_seed());
	bytes = random_bytes(&rng);
	for (uint32_t leaves = 1; leaves <= 5 * TN_SUM_LEAVES / 2; leaves++) {
		for (uint32_t n = leaves * TN_SUM_LEAF - 1; n <= leaves * TN_SUM_LEAF + 1; n++)
			assert_int_equal(sum_of(cut(&rng, bytes, n, 1, 0)), tn_checksum(bytes, n));
	}
	free(bytes);
}

static void scattered_objects_have_the_sum_of_the_library(void **state)
{
	uint32_t cases = tn_test_soak() ? 100000 : 2000;
	struct tn_rng rng;
	unsigned char *bytes;

	tn_rng_seed(&rng, tn_test_seed());
	bytes = random_bytes(&rng);
	for (uint32_t i = 0; i < cases; i++) {
		uint32_t n, skip, pieces;

		n = tn_rng_below(&rng, i % 2 ? 20000 : BYTES - 64);
		skip = tn_rng_below(&rng, 2) ? 16 * tn_rng_below(&rng, 4) : tn_rng_below(&rng, 64);
		pieces = 1 + tn_rng_below(&rng, 12);
		if (sum_of(cut(&rng, bytes + skip, n, pieces, tn_rng_below(&rng, TN_CUDA_RING))) != tn_checksum(bytes + skip, n))
			fail_msg("case %u: %u bytes from %u on in %u pieces", i, n, skip, pieces);
	}
	free(bytes);
}

static void a_span_is_copied_and_nothing_beside_it(void **state)
{
	uint32_t cases = tn_test_soak() ? 100000 : 3000;
	unsigned char *from, *to, *expected = malloc(BYTES);
	struct tn_rng rng;

	assert_non_null(expected);
	tn_rng_seed(&rng, tn_test_seed());
	from = random_bytes(&rng);
	to = random_bytes(&rng);
	memcpy(expected, to, BYTES);
	for (uint32_t i = 0; i < cases; i++) {
		uint32_t bytes = tn_rng_below(&rng, i % 3 == 0 ? 100 : i % 3 == 1 ? 5000 : 70000), lanes = 1u << tn_rng_below(&rng, 10);
		uint32_t step = 1u << tn_rng_below(&rng, 5);
		uint32_t a = tn_rng_below(&rng, (BYTES - bytes) / step) * step, b = tn_rng_below(&rng, (BYTES - bytes) / step) * step;
		struct tn_cuda_span span = {(uintptr_t)to + a, (uintptr_t)from + b, bytes};

		memcpy(expected + a, from + b, bytes);
		for (uint32_t lane = lanes; lane-- > 0;)
			tn_cuda_copy_span(&span, lane, lanes);
		if (memcmp(to + a, expected + a, bytes))
			fail_msg("case %u: %u bytes from %u to %u with %u lanes", i, bytes, b, a, lanes);
	}
	assert_memory_equal(to, expected, BYTES);
	free(from);
	free(to);
	free(expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_short_length_has_the_sum_of_the_library),
		cmocka_unit_test(every_number_of_leaves_has_the_sum_of_the_library),
		cmocka_unit_test(scattered_objects_have_the_sum_of_the_library),
		cmocka_unit_test(a_span_is_copied_and_nothing_beside_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
