/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of batches: as documented for vLLM, both of its forms, and rubbish. */
#include <string.h>

#include "base/rng.h"
#include "tn_test.h"
#include "zmq/form.h"

static struct tn_bus_event stored(uint64_t hash, uint64_t parent)
{
	struct tn_bus_event e = {.kind = TN_BUS_STORED, .tier = 3, .hash_bytes = 8, .parent_bytes = parent ? 8 : 0, .block_tokens = 2};

	for (int i = 0; i < 8; i++) {
		e.hash[i] = (unsigned char)(hash >> (56 - 8 * i));
		e.parent[i] = (unsigned char)(parent >> (56 - 8 * i));
	}
	return e;
}

static void a_batch_has_the_bytes_that_vllm_documents(void **state)
{
	static const uint32_t tokens[] = {1, 2, 3, 300};
	/* [1.5, [{type: BlockStored, block_hashes: [5, 6], parent_block_hash: nil, token_ids: [1, 2, 3, 300], block_size: 2, lora_id: nil,
	 *         medium: STORAGE, lora_name: nil}, {type: BlockRemoved, block_hashes: [bin "abc"], medium: CPU, group_idx: 1}], 4] */
	static const char want[] =
		"\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x92"
		"\x88\xa4type\xab" "BlockStored\xac" "block_hashes\x92\x05\x06\xb1" "parent_block_hash\xc0\xa9token_ids\x94\x01\x02\x03\xcd\x01\x2c"
		"\xaa" "block_size\x02\xa7lora_id\xc0\xa6medium\xa7STORAGE\xa9lora_name\xc0"
		"\x84\xa4type\xac" "BlockRemoved\xac" "block_hashes\x91\xc4\x03" "abc\xa6medium\xa3" "CPU\xa9group_idx\x01\x04";
	struct tn_bus_event e[3] = {stored(5, 0), stored(6, 5), {.kind = TN_BUS_REMOVED, .tier = 2, .hash_bytes = 3, .group = 1, .hash = "abc"}};
	struct form_events got = {0};
	msgpack_sbuffer out;

	e[0].ntokens = e[1].ntokens = 2;
	e[0].token_ids = tokens;
	e[1].token_ids = tokens + 2;
	msgpack_sbuffer_init(&out);
	assert_int_equal(form_write(&out, 1.5, e, 3, 4), 0);
	assert_int_equal(out.size, sizeof(want) - 1);
	assert_memory_equal(out.data, want, out.size);

	assert_int_equal(form_read(out.data, out.size, &got), 0);
	assert_int_equal(got.n, 3);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(got.event[i].kind, TN_BUS_STORED);
		assert_int_equal(got.event[i].tier, 3);
		assert_memory_equal(got.event[i].hash, e[i].hash, 8);
		assert_int_equal(got.event[i].parent_bytes, i ? 8 : 0);
		assert_memory_equal(got.event[i].token_ids, tokens + 2 * i, 8);
	}
	assert_int_equal(got.event[2].kind, TN_BUS_REMOVED);
	assert_int_equal(got.event[2].group, 1);
	assert_int_equal(got.event[2].hash_bytes, 3);
	form_free(&got);
	msgpack_sbuffer_destroy(&out);
}

static void newer_sources_write_a_map_and_more_members(void **state)
{
	static const char map[] = "\x83\xa2ts\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xa6" "events\x93\x82\xa4type\xa6NewOne\xa1x\x01"
				  "\x81\xa4type\xb0" "AllBlocksCleared"
				  "\x84\xa4type\xac" "BlockRemoved\xac" "block_hashes\x91\xff\xa6medium\xc0\xa8locality\xa6REMOTE\xb2" "data_parallel_rank\xc0";
	struct form_events got = {0};

	assert_int_equal(form_read(map, sizeof(map) - 1, &got), 0);
	assert_int_equal(got.n, 2);
	assert_int_equal(got.event[0].kind, TN_BUS_CLEARED);
	assert_int_equal(got.event[1].kind, TN_BUS_REMOVED);
	assert_int_equal(got.event[1].tier, 4);
	assert_memory_equal(got.event[1].hash, "\xff\xff\xff\xff\xff\xff\xff\xff", 8); /* -1: integers of older sources have a sign */
	form_free(&got);
}

static void runs_end_where_a_chain_does(void **state)
{
	struct tn_bus_event e[4] = {stored(5, 0), stored(6, 5), stored(9, 8), stored(10, 9)};
	struct form_events got = {0};
	msgpack_sbuffer out;

	msgpack_sbuffer_init(&out);
	assert_int_equal(form_write(&out, 0, e, 4, -1), 0);
	assert_int_equal(form_read(out.data, out.size, &got), 0);
	assert_int_equal(got.n, 4);
	for (int i = 0; i < 4; i++) {
		assert_memory_equal(got.event[i].hash, e[i].hash, 8);
		assert_int_equal(got.event[i].parent_bytes, e[i].parent_bytes);
		assert_memory_equal(got.event[i].parent, e[i].parent, 8);
	}
	form_free(&got);
	msgpack_sbuffer_destroy(&out);
}

/* Whatever is read is a batch or -EBADMSG; nothing outside of it is touched (ASAN). */
static void rubbish_is_refused(void **state)
{
	struct tn_bus_event e[4] = {stored(5, 0), stored(6, 5), stored(9, 8), stored(10, 9)};
	struct form_events got = {0};
	msgpack_sbuffer out;
	struct tn_rng rng;

	assert_int_equal(form_read("", 0, &got), -EBADMSG);
	assert_int_equal(form_read("\xdd\xff\xff\xff\xff", 5, &got), -EBADMSG);
	assert_int_equal(form_read("\x92\x00\x91\x81\xa4type\xab" "BlockStored", 23, &got), -EBADMSG);
	msgpack_sbuffer_init(&out);
	assert_int_equal(form_write(&out, 0, e, 4, -1), 0);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < tn_test_cases(20000); i++) {
		char *copy = malloc(out.size);
		size_t size = tn_rng_below(&rng, 4) ? out.size : tn_rng_below(&rng, (uint32_t)out.size);
		int rc;

		assert_non_null(copy);
		memcpy(copy, out.data, out.size);
		for (uint32_t k = tn_rng_below(&rng, 4); k-- > 0;)
			copy[tn_rng_below(&rng, (uint32_t)out.size)] = (char)tn_rng_next(&rng);
		rc = form_read(copy, size, &got);
		assert_true(rc == 0 || rc == -EBADMSG);
		free(copy);
	}
	form_free(&got);
	msgpack_sbuffer_destroy(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_batch_has_the_bytes_that_vllm_documents),
		cmocka_unit_test(newer_sources_write_a_map_and_more_members),
		cmocka_unit_test(runs_end_where_a_chain_does),
		cmocka_unit_test(rubbish_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
