/* SPDX-License-Identifier: Apache-2.0 */
/* base: error detail, checksum of scattered bytes, key chains, the counting allocator. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "base/hash.h"
#include "base/rng.h"
#include "tn_test.h"

static void a_cause_is_kept_behind_the_new_error(void **state)
{
	assert_int_equal(tn_fail(-EIO, "read of 4096 bytes failed"), -EIO);
	assert_int_equal(tn_fail_cause(-ENODATA, "block 7"), -ENODATA);
	assert_int_equal(tn_error_last()->code, -ENODATA);
	assert_string_equal(tn_error_last()->text, "block 7: read of 4096 bytes failed");
	assert_non_null(strstr(tn_error_last()->where, "base_test.c:"));
}

static void *other_thread(void *arg)
{
	*(int *)arg = tn_error_last()->code;
	return NULL;
}

static void the_error_detail_belongs_to_its_thread(void **state)
{
	pthread_t t;
	int code = 1;

	tn_fail(-EINVAL, "mine");
	assert_int_equal(pthread_create(&t, NULL, other_thread, &code), 0);
	pthread_join(t, NULL);
	assert_int_equal(code, 0);
}

static void a_scattered_object_has_the_checksum_of_the_contiguous_one(void **state)
{
	struct tn_rng rng;
	unsigned char buf[70000];

	tn_rng_seed(&rng, tn_test_seed());
	for (size_t i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)tn_rng_next(&rng);
	for (int round = 0; round < 2000; round++) {
		struct iovec iov[64];
		size_t n = 0, off = 0, skip = tn_rng_below(&rng, 5000);
		size_t len = tn_rng_below(&rng, sizeof(buf) - 5000);

		while (off < sizeof(buf) && n < 63) {
			size_t part = tn_rng_below(&rng, 9000);

			if (part > sizeof(buf) - off)
				part = sizeof(buf) - off;
			iov[n++] = (struct iovec){buf + off, part};
			off += part;
		}
		iov[n++] = (struct iovec){buf + off, sizeof(buf) - off};
		assert_true(tn_checksum_iov(iov, n, skip, len) == tn_checksum(buf + skip, len));
	}
}

static void a_copy_has_the_bytes_and_the_checksum_of_its_source(void **state)
{
	static uint8_t from[20000], to[20032];
	const size_t lens[] = {0, 1, 4095, 4096, 4097, 8192, sizeof(from) - 3};

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)tn_mix64(i);
	for (size_t i = 0; i < 4 * sizeof(lens) / sizeof(lens[0]); i++) {
		size_t len = lens[i / 4], skip = i % 2; /* aligned, and not */

		memset(to, 0, sizeof(to));
		assert_true(tn_checksum_copy(to + skip, from + 3 * skip, len, i & 2) == tn_checksum(from + 3 * skip, len));
		assert_memory_equal(to + skip, from + 3 * skip, len);
		assert_int_equal(to[skip + len], 0);
	}
}

static void any_changed_byte_changes_the_checksum(void **state)
{
	unsigned char buf[12289] = {0};
	uint64_t sum = tn_checksum(buf, sizeof(buf));

	for (size_t i = 0; i < sizeof(buf); i += 511) {
		buf[i] ^= 1;
		assert_true(tn_checksum(buf, sizeof(buf)) != sum);
		buf[i] ^= 1;
	}
	assert_true(tn_checksum(buf, sizeof(buf) - 1) != sum);
	assert_true(tn_checksum(buf, 4096) != tn_checksum(buf, 8192));
}

static void the_checksum_is_the_one_in_the_format_document(void **state)
{
	unsigned char buf[4100];

	for (size_t i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)(i * 7);
	/* Golden values: they never change while the format version stays 1. */
	assert_int_equal(tn_checksum(NULL, 0), 0x2d06800538d394c2);
	assert_int_equal(tn_checksum(buf, sizeof(buf)), 0x524badb1fc677488);
}

static void keys_depend_on_secret_parent_and_data(void **state)
{
	struct tn_secret s1 = {{1, 2}}, s2 = {{1, 3}};
	struct tn_key zero = {{0, 0}}, a, b;

	a = tn_hash_chain(&s1, &zero, "abc", 3);
	b = tn_hash_chain(&s2, &zero, "abc", 3);
	assert_false(tn_key_eq(&a, &b));
	b = tn_hash_chain(&s1, &a, "abc", 3);
	assert_false(tn_key_eq(&a, &b));
	b = tn_hash_chain(&s1, &zero, "abd", 3);
	assert_false(tn_key_eq(&a, &b));
	b = tn_hash_chain(&s1, &zero, "abc", 3);
	assert_true(tn_key_eq(&a, &b));
}

static void runs_of_numbers_stay_together_and_are_spread(void **state)
{
	uint64_t at[64] = {0};

	for (uint64_t x = 0; x < 1024; x += 16) {
		for (uint64_t k = 1; k < 16; k++)
			assert_int_equal(tn_mix_runs(x + k), tn_mix_runs(x) + k);
		at[tn_mix_runs(x) >> 4 & 63]++;
	}
	for (uint32_t i = 0; i < 64; i++)
		assert_true(at[i] < 8);
}

static void the_counting_allocator_counts_and_fails_on_request(void **state)
{
	struct tn_alloc_counter c;
	void *small, *big;

	tn_alloc_counter_init(&c);
	small = tn_get(&c.alloc, 100);
	big = tn_get(&c.alloc, 3u << 20);
	assert_non_null(small);
	assert_non_null(big);
	assert_int_equal(c.live_bytes, 100 + (3u << 20));
	c.fail_after = 0;
	assert_null(tn_get(&c.alloc, 1));
	tn_put(&c.alloc, small, 100);
	tn_put(&c.alloc, big, 3u << 20);
	tn_put(&c.alloc, NULL, 5);
	assert_int_equal(c.live_bytes, 0);
	assert_int_equal(tn_array_bytes(SIZE_MAX / 2, 3), SIZE_MAX);
	assert_null(tn_get(&tn_alloc_system, SIZE_MAX));
}

static void keep_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	snprintf(arg, 128, "%s", text);
}

static void lines_beyond_the_limit_are_counted_and_told(void **state)
{
	const uint64_t second = 1000000000u, now = 7 * second;
	struct tn_log_limit limit = {0};
	char line[128] = "";
	const struct tn_log log = {keep_line, line, TN_LOG_INFO};

	for (uint32_t i = 0; i < 3 * TN_LOG_LINES_PER_SECOND; i++)
		assert_true(tn_log_may(&limit, &log, now + i) == (i < TN_LOG_LINES_PER_SECOND));
	assert_false(tn_log_may(&limit, &log, now + second - 1));
	assert_string_equal(line, "");
	assert_true(tn_log_may(&limit, &log, now + second));
	assert_string_equal(line, "41 more lines of this kind were left out");
	line[0] = '\0';
	assert_true(tn_log_may(&limit, &log, now + 3 * second));
	assert_string_equal(line, "");
}

static void a_line_may_be_written_once_per_period(void **state)
{
	const uint64_t second = 1000000000u, now = 100 * second;
	struct tn_log_limit limit = {.period_ns = 10 * second};
	char line[128] = "";
	const struct tn_log log = {keep_line, line, TN_LOG_INFO};

	assert_true(tn_log_may(&limit, &log, now));
	for (uint32_t i = 0; i < 10; i++)
		assert_false(tn_log_may(&limit, &log, now + i * second));
	assert_true(tn_log_may(&limit, &log, now + 10 * second));
	assert_string_equal(line, "10 more lines of this kind were left out");
	assert_false(tn_log_may(&limit, &log, now + 20 * second - 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cause_is_kept_behind_the_new_error),
		cmocka_unit_test(the_error_detail_belongs_to_its_thread),
		cmocka_unit_test(lines_beyond_the_limit_are_counted_and_told),
		cmocka_unit_test(a_line_may_be_written_once_per_period),
		cmocka_unit_test(a_scattered_object_has_the_checksum_of_the_contiguous_one),
		cmocka_unit_test(a_copy_has_the_bytes_and_the_checksum_of_its_source),
		cmocka_unit_test(any_changed_byte_changes_the_checksum),
		cmocka_unit_test(the_checksum_is_the_one_in_the_format_document),
		cmocka_unit_test(keys_depend_on_secret_parent_and_data),
		cmocka_unit_test(runs_of_numbers_stay_together_and_are_spread),
		cmocka_unit_test(the_counting_allocator_counts_and_fails_on_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
