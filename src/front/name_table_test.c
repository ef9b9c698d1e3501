/* SPDX-License-Identifier: Apache-2.0 */
/* Names of blocks: found by space and key, replaced by newer ones, in a table that never grows. */
#include <errno.h>
#include <string.h>

#include "base/alloc_rig.h"
#include "front/name_table.h"
#include "tn_test.h"

#define N 64u

static struct tn_key key(uint64_t i)
{
	return (struct tn_key){{i * 7919, i * 104729}};
}

static void hash(uint64_t i, unsigned char out[TN_NAME_HASH_BYTES])
{
	memset(out, 0, TN_NAME_HASH_BYTES);
	memcpy(out, &i, sizeof(i));
}

/* Blocks first..first+n of one prompt, which they begin if first is 0. */
static size_t put(struct tn_names *names, uint16_t space, uint64_t first, uint32_t n, uint32_t tokens, bool *fresh)
{
	static uint32_t token[N * 16];
	unsigned char hashes[N][TN_NAME_HASH_BYTES], parent[TN_NAME_HASH_BYTES];
	struct tn_block_names in = {sizeof(in), TN_NAME_HASH_BYTES, 3, 16, hashes, first ? parent : NULL, tokens ? token : NULL};
	struct tn_key keys[N];

	hash(first - 1, parent);
	for (uint32_t i = 0; i < n; i++) {
		keys[i] = key(first + i);
		hash(first + i, hashes[i]);
		for (uint32_t t = 0; t < 16; t++)
			token[i * 16 + t] = (uint32_t)(first + i) * 16 + t;
	}
	assert_int_equal(tn_names_check(&in), 0);
	return tn_names_put(names, space, keys, n, &in, fresh);
}

static bool has(struct tn_names *names, uint16_t space, uint64_t i, struct tn_block_name *out, uint32_t *tokens)
{
	struct tn_key k = key(i);

	return tn_names_get(names, space, &k, out, tokens, 16);
}

static void a_block_is_called_as_its_engine_said(void **state)
{
	unsigned char want[TN_NAME_HASH_BYTES];
	struct tn_block_name name;
	struct tn_names *names;
	uint32_t tokens[16];
	bool fresh[N];

	assert_int_equal(tn_names_create(1024, 16, &tn_alloc_system, &names), 0);
	assert_int_equal(put(names, 1, 0, 8, 1, fresh), 8);
	for (uint64_t i = 0; i < 8; i++) {
		assert_true(has(names, 1, i, &name, tokens));
		hash(i, want);
		assert_memory_equal(name.hash, want, sizeof(want));
		assert_int_equal(name.group, 3);
		assert_int_equal(name.parent_bytes, i ? TN_NAME_HASH_BYTES : 0);
		hash(i - 1, want);
		assert_true(i == 0 || memcmp(name.parent, want, sizeof(want)) == 0);
		assert_int_equal(name.ntokens, 16);
		assert_int_equal(tokens[15], i * 16 + 15);
		assert_true(has(names, 1, i, &name, NULL));
		assert_int_equal(name.ntokens, 0);
	}
	assert_false(has(names, 2, 0, &name, NULL));
	assert_false(has(names, 1, 8, &name, NULL));
	assert_int_equal(put(names, 1, 0, 8, 0, fresh), 0);
	assert_int_equal(put(names, 1, 6, 4, 0, fresh), 2);
	assert_false(fresh[1]);
	assert_true(fresh[2]);
	tn_names_destroy(names);
}

static void a_full_table_forgets_what_was_given_first(void **state)
{
	struct tn_block_name name;
	struct tn_names *names;
	uint32_t kept = 0;
	bool fresh[N];

	assert_int_equal(tn_names_create(1000, 0, &tn_alloc_system, &names), 0);
	for (uint64_t i = 0; i < 100000; i += N)
		put(names, 1, i, N, 1, fresh);
	for (uint64_t i = 0; i < 90000; i++)
		assert_false(has(names, 1, i, &name, NULL));
	for (uint64_t i = 100000 - 500; i < 100000; i++)
		kept += has(names, 1, i, &name, NULL);
	assert_in_range(kept, 450, 500);
	tn_names_destroy(names);
}

static void a_block_is_found_by_the_end_of_its_hash_in_each_space(void **state)
{
	unsigned char hashes[2][8] = {{0, 0, 0, 0, 0, 0, 1, 2}, {0xff, 0, 0, 0, 0, 0, 0, 3}};
	const struct tn_block_names in = {sizeof(in), 8, 0, 16, hashes, NULL, NULL};
	struct tn_key keys[2] = {key(1), key(2)};
	struct tn_named found[4];
	struct tn_names *names;
	bool fresh[2];

	assert_int_equal(tn_names_create(64, 0, &tn_alloc_system, &names), 0);
	tn_names_put(names, 3, keys, 2, &in, fresh);
	tn_names_put(names, 5, keys, 1, &in, fresh);
	tn_names_put(names, 5, keys, 1, &in, fresh);
	assert_int_equal(tn_names_by_hash(names, 0x102, found, 4), 2);
	assert_int_equal(found[0].space + found[1].space, 8);
	assert_memory_equal(&found[0].key, &keys[0], sizeof(keys[0]));
	assert_int_equal(tn_names_by_hash(names, UINT64_C(0xff00000000000003), found, 4), 1);
	assert_int_equal(tn_names_by_hash(names, 4, found, 4), 0);
	tn_names_destroy(names);
}

static void what_cannot_be_is_refused(void **state)
{
	struct tn_block_names in = {sizeof(in), 33, 0, 16, "", NULL, NULL};
	struct tn_names *names;

	assert_int_equal(tn_names_check(&in), -EINVAL);
	in.hash_bytes = 32;
	in.block_tokens = 0;
	assert_int_equal(tn_names_check(&in), -EINVAL);
	in.block_tokens = 16;
	in.group = 1u << 16;
	assert_int_equal(tn_names_check(&in), -EINVAL);
	assert_int_equal(tn_names_create(0, 0, &tn_alloc_system, &names), -EINVAL);
	assert_int_equal(tn_names_create(1, TN_NAME_TOKENS_MAX + 1, &tn_alloc_system, &names), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_called_as_its_engine_said),
		cmocka_unit_test(a_full_table_forgets_what_was_given_first),
		cmocka_unit_test(a_block_is_found_by_the_end_of_its_hash_in_each_space),
		cmocka_unit_test(what_cannot_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
