/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the first version, with smaller structs, on the library of today: blocks are saved, flushed, matched, planned,
 * loaded and counted, as it always did. Behind each struct that the library writes lies a guard, which must stay as it is.
 */
#include "tenuto_0_1.h"

#include <errno.h>
#include <ftw.h>
#include <string.h>
#include <unistd.h>

#include "tn_test.h"

#define LAYERS 2u
#define OBJECT 65536u
#define BLOCKS 4u
#define GUARD 0xa5

#define GUARDED(type) \
	struct {                  \
		struct type s;    \
		unsigned char guard[64]; \
	}

#define guard_up(g) memset((g), GUARD, sizeof(*(g)))

static void untouched(const unsigned char *guard)
{
	for (int i = 0; i < 64; i++)
		assert_int_equal(guard[i], GUARD);
}

static char kv[2 * BLOCKS][LAYERS * OBJECT]; /* the first half is saved from, the second loaded into */

struct program {
	char dir[256];
	const char *dirs[1];
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_memory *memory;
	struct tn_pool *pool;
	struct tn_key keys[BLOCKS];
};

static void open_cache(struct program *p)
{
	const char *base = getenv("TMPDIR");
	GUARDED(tn_cache_opts) opts;

	snprintf(p->dir, sizeof(p->dir), "%s/tn-abi-XXXXXX", base ? base : "/tmp");
	assert_non_null(mkdtemp(p->dir));
	p->dirs[0] = p->dir;
	guard_up(&opts);
	tn_cache_opts_init_sized(&opts.s, sizeof(opts.s));
	untouched(opts.guard);
	assert_int_equal(opts.s.size, sizeof(opts.s));
	assert_string_equal(opts.s.policy, "default");
	assert_true(opts.s.verify);
	opts.s.dirs = p->dirs;
	opts.s.ndirs = 1;
	opts.s.disk_bytes = 32u << 20;
	opts.s.seed = 1;
	assert_int_equal(tn_cache_open(&opts.s, &p->cache), 0);
	untouched(opts.guard);
}

static void open_space(struct program *p)
{
	const uint32_t tokens[BLOCKS] = {11, 22, 33, 44};
	const struct tn_pool_shape order = {.order = TN_POOL_CROSS_LAYER, .npages = 2 * BLOCKS};
	const struct tn_memory_range range = {.address = kv, .bytes = sizeof(kv)};
	GUARDED(tn_identity) identity;
	GUARDED(tn_shard) shard;
	GUARDED(tn_quota) quota;
	GUARDED(tn_memory_desc) memory;
	struct tn_pool_layout layout;
	struct tn_geometry geometry;
	uint64_t base[LAYERS];

	guard_up(&identity);
	guard_up(&shard);
	guard_up(&quota);
	guard_up(&memory);
	tn_identity_init_sized(&identity.s, sizeof(identity.s));
	tn_shard_init_sized(&shard.s, sizeof(shard.s));
	tn_quota_init_sized(&quota.s, sizeof(quota.s));
	assert_int_equal(shard.s.tp_size, 1);
	assert_true(quota.s.bytes[TN_TIER_DISK] == UINT64_MAX);
	identity.s.model = "old";
	assert_int_equal(tn_geometry_raw(LAYERS, OBJECT, &geometry), 0);
	assert_int_equal(tn_space_open(p->cache, &identity.s, &shard.s, &geometry, &quota.s, &p->space), 0);
	untouched(identity.guard);
	untouched(shard.guard);
	untouched(quota.guard);
	tn_memory_desc_init_sized(&memory.s, sizeof(memory.s));
	memory.s.ranges = &range;
	memory.s.nranges = 1;
	assert_int_equal(tn_memory_register(p->cache, &memory.s, &p->memory), 0);
	untouched(memory.guard);
	assert_int_equal(tn_layout_fill(&geometry, &order, NULL, base, &layout), 0);
	assert_int_equal(tn_pool_create(p->memory, &geometry, &layout, &p->pool), 0);
	assert_int_equal(tn_keys_from_tokens(p->space, tokens, BLOCKS, NULL, 0, p->keys, BLOCKS), BLOCKS);
}

static void save(struct program *p)
{
	uint32_t pages[BLOCKS];
	GUARDED(tn_save_result) result;
	GUARDED(tn_save_opts) opts;
	struct tn_save *s;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		pages[i] = i;
		memset(kv[i], 'a' + (int)i, sizeof(kv[i]));
	}
	guard_up(&opts);
	guard_up(&result);
	result.s.size = sizeof(result.s);
	tn_save_opts_init_sized(&opts.s, sizeof(opts.s));
	opts.s.priority = 3;
	assert_int_equal(tn_save_begin(p->space, p->pool, p->keys, BLOCKS, pages, &opts.s, &s), 0);
	for (uint32_t l = 0; l < LAYERS; l++)
		assert_int_equal(tn_save_layer(s, l, NULL), 0);
	assert_int_equal(tn_save_commit(s), 0);
	assert_int_equal(tn_test_ended(tn_save_end(s, tn_test_deadline(), &result.s)), 0);
	untouched(opts.guard);
	untouched(result.guard);
	assert_int_equal(result.s.stored, BLOCKS);
	assert_int_equal(tn_test_ended(tn_flush(p->cache, tn_test_deadline())), 0);
}

static void load(struct program *p)
{
	uint32_t pages[BLOCKS];
	GUARDED(tn_load_opts) opts;
	GUARDED(tn_match) match;
	GUARDED(tn_plan) plan;
	struct tn_load *l;

	guard_up(&match);
	match.s.size = sizeof(match.s);
	assert_int_equal(tn_match(p->space, p->keys, BLOCKS, NULL, &match.s, TN_MATCH_PIN), BLOCKS);
	untouched(match.guard);
	guard_up(&plan);
	plan.s.size = sizeof(plan.s);
	assert_int_equal(tn_plan(p->space, &match.s, NULL, 100, &plan.s), 0);
	untouched(plan.guard);
	assert_int_equal(plan.s.size, sizeof(plan.s));
	assert_int_equal(plan.s.restore_blocks, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		pages[i] = BLOCKS + i;
	guard_up(&opts);
	tn_load_opts_init_sized(&opts.s, sizeof(opts.s));
	assert_true(opts.s.deadline_ns == TN_FOREVER);
	assert_int_equal(tn_load_begin(p->space, p->pool, p->keys, BLOCKS, pages, &opts.s, &l), 0);
	untouched(opts.guard);
	for (uint32_t i = 0; i < LAYERS; i++)
		assert_int_equal(tn_test_ended(tn_load_wait(l, i, tn_test_deadline())), BLOCKS);
	assert_int_equal(tn_load_end(l, tn_test_deadline(), NULL), 0);
	assert_memory_equal(kv[0], kv[BLOCKS], sizeof(kv) / 2);
	assert_int_equal(tn_unpin(p->space, match.s.pin), 0);
}

static void count(struct program *p)
{
	GUARDED(tn_device_stats) device;
	uint64_t value;

	assert_int_equal(tn_cache_stat(p->cache, "disk_blocks", &value), 0);
	assert_int_equal(value, BLOCKS);
	assert_int_equal(tn_cache_stat(p->cache, "load_blocks", &value), 0);
	assert_int_equal(value, BLOCKS);
	assert_int_equal(tn_cache_stat(p->cache, "verified_objects", &value), 0);
	assert_int_equal(value, BLOCKS * LAYERS);
	guard_up(&device);
	device.s.size = sizeof(device.s);
	assert_int_equal(tn_cache_device_stats(p->cache, 0, &device.s), 0);
	untouched(device.guard);
	assert_int_equal(device.s.blocks, BLOCKS);
	assert_int_equal(strncmp(device.s.path, p->dir, strlen(p->dir)), 0);
	assert_int_equal(tn_cache_device_stats(p->cache, 1, &device.s), -ENOENT);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void a_program_of_the_first_version_runs_with_the_library_of_today(void **state)
{
	struct program p;

	open_cache(&p);
	open_space(&p);
	save(&p);
	load(&p);
	count(&p);
	assert_int_equal(tn_pool_destroy(p.pool), 0);
	assert_int_equal(tn_memory_unregister(p.memory), 0);
	tn_space_close(p.space);
	assert_int_equal(tn_cache_close(p.cache), 0);
	assert_int_equal(nftw(p.dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_program_of_the_first_version_runs_with_the_library_of_today),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
