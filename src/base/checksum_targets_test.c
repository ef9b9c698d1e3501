/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of each instruction set is the checksum that libxxhash picks: a wheel reads what any other build has written. */
#include "base/checksum.h"
#include "base/checksum_targets.h"
#include "base/rng.h"
#include "tn_test.h"

#include <string.h>

#define BYTES 40000u

static uint8_t bytes[BYTES], copy[BYTES];

/* The bytes from a random place on, in three pieces of random lengths. */
static void scatter(struct tn_rng *rng, size_t len, struct iovec iov[3], size_t *skip)
{
	size_t first = tn_rng_below(rng, (uint32_t)len + 1), second = first + tn_rng_below(rng, (uint32_t)(len - first) + 1);

	*skip = tn_rng_below(rng, 100);
	iov[0] = (struct iovec){bytes, *skip + first};
	iov[1] = (struct iovec){bytes + *skip + first, second - first};
	iov[2] = (struct iovec){bytes + *skip + second, len - second};
}

static void assert_copies(uint64_t (*copies)(void *dst, const void *src, size_t len, bool past_cache), const uint8_t *src, size_t len)
{
	for (int past_cache = 0; past_cache < 2; past_cache++) {
		memset(copy, 0, sizeof(copy));
		assert_int_equal(copies(copy, src, len, past_cache), tn_checksum(src, len));
		assert_memory_equal(copy, src, len);
		assert_true(len == sizeof(copy) || copy[len] == 0);
	}
}

static void each_instruction_set_gives_the_same_checksum(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (uint8_t)tn_rng_next(&rng);
	for (int i = 0; i < 2000; i++) {
		size_t len = tn_rng_below(&rng, i % 2 ? BYTES - 100 : 600), skip;
		struct iovec iov[3];
		uint64_t sum;

		scatter(&rng, len, iov, &skip);
		sum = tn_checksum_iov(iov, 3, skip, len);
		assert_int_equal(tn_checksum_iov_sse2(iov, 3, skip, len), sum);
		if (__builtin_cpu_supports("avx2"))
			assert_int_equal(tn_checksum_iov_avx2(iov, 3, skip, len), sum);
		if (__builtin_cpu_supports("avx512f"))
			assert_int_equal(tn_checksum_iov_avx512(iov, 3, skip, len), sum);
		assert_copies(tn_checksum_copy, bytes + skip, len);
		assert_copies(tn_checksum_copy_sse2, bytes + skip, len);
		if (__builtin_cpu_supports("avx2"))
			assert_copies(tn_checksum_copy_avx2, bytes + skip, len);
		if (__builtin_cpu_supports("avx512f"))
			assert_copies(tn_checksum_copy_avx512, bytes + skip, len);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_instruction_set_gives_the_same_checksum),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
