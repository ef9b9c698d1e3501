/* SPDX-License-Identifier: Apache-2.0 */
/* The check of --verify finds every wrong byte that it should find; and the interval of the benchmarks. */
#include "tn_test.h"

#include <math.h>
#include <string.h>

#include "../bench/bench.h"
#include "content.h"

#define BYTES 5003u

static void a_flipped_bit_anywhere_is_found(void **state)
{
	static uint8_t b[BYTES];

	content_fill(b, BYTES, 7, 3, 0);
	assert_int_equal(content_check(b, BYTES, 7, 3, 0), -1);
	for (size_t i = 0; i < BYTES; i++) {
		b[i] ^= 0x40;
		assert_int_equal(content_check(b, BYTES, 7, 3, 0), i / 8 * 8);
		b[i] ^= 0x40;
	}
}

static void another_block_layer_or_place_is_not_taken_for_it(void **state)
{
	static uint8_t b[BYTES];

	content_fill(b, BYTES, 7, 3, 0);
	assert_int_equal(content_check(b, BYTES, 8, 3, 0), 0);
	assert_int_equal(content_check(b, BYTES, 7, 4, 0), 0);
	assert_int_equal(content_check(b, BYTES, 7, 3, 4096), 0);
	memmove(b + 512, b, 512);
	assert_int_equal(content_check(b, BYTES, 7, 3, 0), 512);
}

static void a_piece_is_checked_by_its_offset_in_the_object(void **state)
{
	static uint8_t b[BYTES], part[BYTES];

	content_fill(b, BYTES, 1, 2, 0);
	assert_int_equal(content_check(b + 1000, BYTES - 1000, 1, 2, 1000), -1);
	content_fill(part, 808, 1, 2, 1000);
	assert_memory_equal(part, b + 1000, 808);
}

static void the_interval_of_a_median_has_its_coverage(void **state)
{
	double v[20], low, high;

	for (size_t i = 0; i < 20; i++)
		v[i] = (double)(19 - i);
	assert_true(fabs(bench_median(v, 20) - 9.5) < 1e-12);
	bench_median_interval(v, 20, &low, &high); /* ranks 6 and 15 of 20: 95.9 % (Conover, table A3) */
	assert_true(fabs(low - 5) < 1e-12 && fabs(high - 14) < 1e-12);
	bench_median_interval(v, 12, &low, &high); /* ranks 3 and 10 of 12: 96.1 % */
	assert_true(fabs(low - 2) < 1e-12 && fabs(high - 9) < 1e-12);
	bench_median_interval(v, 3, &low, &high);
	assert_true(fabs(low) < 1e-12 && fabs(high - 2) < 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flipped_bit_anywhere_is_found),
		cmocka_unit_test(another_block_layer_or_place_is_not_taken_for_it),
		cmocka_unit_test(a_piece_is_checked_by_its_offset_in_the_object),
		cmocka_unit_test(the_interval_of_a_median_has_its_coverage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
