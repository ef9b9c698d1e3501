/* SPDX-License-Identifier: Apache-2.0 */
/* block keys: one by one and at once are the same, and whatever should matter does. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "block/keys.h"
#include "tn_test.h"

static const struct tn_secret secret = {{11, 22}};

static void blocks_hashed_one_by_one_have_the_keys_of_the_whole_prompt(void **state)
{
	struct tn_rng rng;
	uint32_t tokens[1000];
	struct tn_key keys[64];

	tn_rng_seed(&rng, tn_test_seed());
	for (int round = 0; round < 300; round++) {
		uint32_t per = 1 + tn_rng_below(&rng, 64), n = tn_rng_below(&rng, 1000);
		struct tn_key salt = {{tn_rng_below(&rng, 2), 0}}, prev = {{0, 0}};
		size_t salt_bytes = tn_key_is_zero(&salt) ? 0 : sizeof(salt);
		long count;

		for (uint32_t i = 0; i < n; i++)
			tokens[i] = (uint32_t)tn_rng_next(&rng);
		count = tn_block_keys_tokens(&secret, per, tokens, n, &salt, salt_bytes, keys, 64);
		assert_int_equal(count, n / per < 64 ? n / per : 64);
		for (long b = 0; b < count; b++) {
			struct tn_key k = tn_hash_chain(&secret, &prev, tokens + b * per, per * sizeof(*tokens));

			if (b == 0 && salt_bytes) /* the salt is in the first key */
				assert_int_equal(tn_block_keys_tokens(&secret, per, tokens, per, &salt, salt_bytes, &k, 1), 1);
			assert_true(tn_key_eq(&k, &keys[b]));
			prev = k;
		}
	}
}

static void a_changed_token_changes_its_block_and_all_that_follow(void **state)
{
	uint32_t tokens[64] = {0};
	struct tn_key a[8], b[8];

	assert_int_equal(tn_block_keys_tokens(&secret, 8, tokens, 64, NULL, 0, a, 8), 8);
	tokens[27] = 1;
	assert_int_equal(tn_block_keys_tokens(&secret, 8, tokens, 63, NULL, 0, b, 8), 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(tn_key_eq(&a[i], &b[i]), i < 3);
}

static void tokens_cannot_imitate_extra_keys(void **state)
{
	const uint32_t extra[4] = {1, 2, 3, 4}, prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct tn_key with[1], without[2], other[1];

	assert_int_equal(tn_block_keys_tokens(&secret, 4, prompt + 4, 4, extra, sizeof(extra), with, 1), 1);
	assert_int_equal(tn_block_keys_tokens(&secret, 4, prompt, 8, NULL, 0, without, 2), 2);
	assert_false(tn_key_eq(&with[0], &without[1]));
	assert_int_equal(tn_block_keys_tokens(&secret, 4, prompt + 4, 4, extra, 12, other, 1), 1);
	assert_false(tn_key_eq(&with[0], &other[0]));
}

static void the_last_page_names_the_block(void **state)
{
	unsigned char hashes[7][32];
	struct tn_key a[4], b[4];
	const struct tn_secret other = {{11, 23}};

	for (int i = 0; i < 7; i++)
		memset(hashes[i], i, 32);
	assert_int_equal(tn_block_keys_hashes(&secret, 2, hashes, 32, 7, a, 4), 3);
	memset(hashes[2], 99, 32);
	assert_int_equal(tn_block_keys_hashes(&secret, 2, hashes, 32, 7, b, 4), 3);
	assert_memory_equal(a, b, 3 * sizeof(a[0]));
	hashes[3][31] ^= 1;
	assert_int_equal(tn_block_keys_hashes(&secret, 2, hashes, 32, 6, b, 4), 3);
	assert_true(tn_key_eq(&a[0], &b[0]));
	assert_false(tn_key_eq(&a[1], &b[1]));
	assert_true(tn_key_eq(&a[2], &b[2]));
	assert_int_equal(tn_block_keys_hashes(&other, 2, hashes, 32, 7, b, 1), 1);
	assert_false(tn_key_eq(&a[0], &b[0]));
}

static void bad_arguments_are_named(void **state)
{
	const uint32_t tokens[8] = {0};
	struct tn_key k[8];

	assert_int_equal(tn_block_keys_tokens(&secret, 0, tokens, 8, NULL, 0, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_tokens(&secret, 4, NULL, 8, NULL, 0, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_tokens(&secret, 4, tokens, 8, NULL, 3, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_tokens(&secret, 4, tokens, 8, NULL, 0, NULL, 8), -EINVAL);
	assert_int_equal(tn_block_keys_tokens(&secret, 4, tokens, 8, NULL, 0, NULL, 0), 0);
	assert_int_equal(tn_block_keys_tokens(&secret, 9, tokens, 8, NULL, 0, k, 8), 0);
	assert_int_equal(tn_block_keys_hashes(&secret, 0, tokens, 16, 2, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_hashes(&secret, 1, tokens, 15, 2, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_hashes(&secret, 1, tokens, 33, 2, k, 8), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "hash_bytes 33"));
	assert_int_equal(tn_block_keys_hashes(&secret, 1, NULL, 16, 2, k, 8), -EINVAL);
	assert_int_equal(tn_block_keys_hashes(&secret, 1, tokens, 16, 2, NULL, 8), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_hashed_one_by_one_have_the_keys_of_the_whole_prompt),
		cmocka_unit_test(a_changed_token_changes_its_block_and_all_that_follow),
		cmocka_unit_test(tokens_cannot_imitate_extra_keys),
		cmocka_unit_test(the_last_page_names_the_block),
		cmocka_unit_test(bad_arguments_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
