/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of pieces of memory: what is cut out of one is what a copy of its bytes would hold. */
#include <string.h>

#include "base/rng.h"
#include "layout/layout.h"
#include "tn_test.h"

#define PIECES 12u
#define PIECE_BYTES 50u

static void a_cut_of_a_list_has_the_bytes_of_that_range_and_no_empty_piece(void **state)
{
	unsigned char memory[PIECES * PIECE_BYTES], whole[PIECES * PIECE_BYTES], got[PIECES * PIECE_BYTES];
	struct iovec list[PIECES], cut[PIECES];
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < sizeof(memory); i++)
		memory[i] = (unsigned char)tn_rng_next(&rng);
	for (uint32_t round = 0; round < 20000; round++) {
		uint32_t n = 1 + tn_rng_below(&rng, PIECES), bytes = 0, skip, want, len, made, have = 0;

		for (uint32_t i = 0; i < n; i++) {
			/* In no order, as pages lie in a pool. */
			list[i] = (struct iovec){memory + (i * 5 % PIECES) * PIECE_BYTES, 1 + tn_rng_below(&rng, PIECE_BYTES)};
			memcpy(whole + bytes, list[i].iov_base, list[i].iov_len);
			bytes += (uint32_t)list[i].iov_len;
		}
		skip = tn_rng_below(&rng, bytes + 1);
		want = tn_rng_below(&rng, bytes + 10);
		len = want;
		made = tn_iov_cut(cut, list, n, skip, &len);
		for (uint32_t i = 0; i < made; i++) {
			assert_true(cut[i].iov_len > 0);
			memcpy(got + have, cut[i].iov_base, cut[i].iov_len);
			have += (uint32_t)cut[i].iov_len;
		}
		assert_int_equal(have, want < bytes - skip ? want : bytes - skip);
		assert_int_equal(len, want - have);
		assert_memory_equal(got, whole + skip, have);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cut_of_a_list_has_the_bytes_of_that_range_and_no_empty_piece),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
