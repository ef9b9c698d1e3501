/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's names of blocks: of a process's own cache, of one that has attached, and after a restart. */
#include <errno.h>
#include <string.h>

#include <tenuto/events.h>
#include <tenuto/names.h>

#include "cache_rig.h"
#include "tn_test.h"

#define BLOCKS 8u
#define TOKENS 16u

static void set_up(struct rig *r, bool attached, uint64_t disk_bytes)
{
	rig_init(r, disk_bytes, 16u << 20, 64);
	r->o.attached = attached;
	rig_must_open(r);
}

static void hash_of(uint64_t id, uint32_t bytes, unsigned char *out)
{
	for (uint32_t i = 0; i < bytes; i++)
		out[i] = (unsigned char)(id * 31 + i);
}

static int give(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t bytes, bool tokens)
{
	static unsigned char hashes[BLOCKS * 2 * (TN_NAME_HASH_BYTES + 1)], parent[TN_NAME_HASH_BYTES + 1]; /* one byte too many is tried, too */
	static uint32_t token[BLOCKS * 2 * TOKENS];
	struct tn_key keys[BLOCKS * 2];
	const struct tn_block_names names = {
		.size = sizeof(names),
		.hash_bytes = bytes,
		.block_tokens = TOKENS,
		.hashes = hashes,
		.parent = first > 1 ? parent : NULL,
		.token_ids = tokens ? token : NULL,
	};

	rig_keys(first, n, keys);
	hash_of(first - 1, bytes, parent);
	for (uint32_t i = 0; i < n; i++) {
		hash_of(first + i, bytes, hashes + (size_t)i * bytes);
		for (uint32_t t = 0; t < TOKENS; t++)
			token[i * TOKENS + t] = (uint32_t)(first + i) * 1000 + t;
	}
	return tn_names_give(s->space, keys, n, &names);
}

static void check(const struct rig *r, const struct rig_space *s, uint64_t id, uint32_t bytes, bool tokens)
{
	struct tn_key key = rig_key(id);
	unsigned char want[TN_NAME_HASH_BYTES];
	struct tn_block_name name;
	uint32_t token[TOKENS];

	assert_int_equal(tn_names_find(rig_core(r), tn_space_index(s->space), &key, &name, token, TOKENS), 1);
	assert_int_equal(name.hash_bytes, bytes);
	hash_of(id, bytes, want);
	assert_memory_equal(name.hash, want, bytes);
	assert_int_equal(name.parent_bytes, id > 1 ? bytes : 0);
	hash_of(id - 1, bytes, want);
	assert_true(id == 1 || memcmp(name.parent, want, bytes) == 0);
	assert_int_equal(name.ntokens, tokens ? TOKENS : 0);
	assert_true(!tokens || token[TOKENS - 1] == id * 1000 + TOKENS - 1);
}

static void names_reach_the_owner_from_every_process(void **state)
{
	static const uint32_t bytes[] = {8, 13, 32};
	struct rig r;

	for (int attached = 0; attached < 2; attached++) {
		set_up(&r, attached, 0);
		assert_int_equal(give(r.s, 1, 2, 8, false), -ENOTSUP);
		assert_int_equal(tn_names_keep(rig_core(&r), 1024, TOKENS), 0);
		assert_int_equal(tn_names_keep(rig_core(&r), 1024, TOKENS), -EEXIST);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(give(r.s, 1, BLOCKS, bytes[i], i > 0), 0);
			assert_int_equal(give(r.s, 1 + BLOCKS, BLOCKS, bytes[i], i > 0), 0);
			for (uint64_t id = 1; id <= 2 * BLOCKS; id++)
				check(&r, r.s, id, bytes[i], i > 0);
		}
		assert_int_equal(give(r.s, 1, 1, 33, false), -EINVAL);
		assert_int_equal(give(r.s, 1, 1, 0, false), -EINVAL);
		rig_tear_down(&r);
	}
}

static uint32_t count_events(struct rig *r, uint64_t *cursor)
{
	struct tn_block_event e[64];
	long n = tn_cache_events(rig_core(r), cursor, e, 64);

	assert_true(n >= 0);
	for (long i = 0; i < n; i++)
		assert_int_equal(e[i].kind, TN_EVENT_STORED);
	return (uint32_t)n;
}

static void a_block_that_is_there_is_told_again_when_it_gets_a_name(void **state)
{
	uint64_t cursor = 0;
	struct rig r;

	set_up(&r, true, 64u << 20);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(tn_names_keep(rig_core(&r), 1024, 0), 0);
	assert_int_equal(rig_match(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(count_events(&r, &cursor), 0);
	assert_int_equal(give(r.s, 1, BLOCKS, 32, false), 0);
	assert_int_equal(count_events(&r, &cursor), BLOCKS); /* on disk alone */
	assert_int_equal(give(r.s, 1, BLOCKS, 32, false), 0);
	assert_int_equal(count_events(&r, &cursor), 0);
	check(&r, r.s, 3, 32, false);
	rig_tear_down(&r);
}

static void a_snapshot_in_parts_has_every_block_once(void **state)
{
	uint32_t at = TN_SNAPSHOT_BEGIN, seen = 0, parts = 0;
	struct tn_block_event e[9];
	struct rig r;

	set_up(&r, false, 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).host_only, BLOCKS);
	do {
		long n = tn_cache_snapshot_part(r.cache, &at, e, 9);

		assert_in_range(n, 0, 9);
		for (long i = 0; i < n; i++)
			seen |= 1u << e[i].key.word[1];
		parts++;
	} while (at != TN_SNAPSHOT_BEGIN);
	assert_int_equal(seen, ((1u << BLOCKS) - 1) << 1);
	assert_true(parts > 1);
	assert_int_equal(tn_cache_snapshot_part(r.cache, &at, e, 7), -EINVAL);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_reach_the_owner_from_every_process),
		cmocka_unit_test(a_block_that_is_there_is_told_again_when_it_gets_a_name),
		cmocka_unit_test(a_snapshot_in_parts_has_every_block_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
