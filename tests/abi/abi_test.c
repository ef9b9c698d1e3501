/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of public structs: what a caller's size may be, and that the members of the first version have not moved. The other half
 * is old_program.c.
 */
#include <errno.h>
#include <string.h>
#include <tenuto/admin.h>
#include <tenuto/tenuto.h>

#include "members.h"
#include "tn_test.h"

static void no_member_of_the_first_version_has_moved(void **state)
{
	bool some_grew = false;

	for (size_t i = 0; i < members_count; i++) {
		if (members_then[i].offset != members_now[i].offset || members_then[i].size != members_now[i].size)
			fail_msg("%s: %zu bytes at %zu, and were %zu at %zu", members_then[i].name, members_now[i].size,
				 members_now[i].offset, members_then[i].size, members_then[i].offset);
	}
	for (size_t i = 0; i < growing_count; i++) {
		if (growing_now[i].size < growing_then[i].size)
			fail_msg("%s has shrunk", growing_then[i].name);
		some_grew |= growing_now[i].size > growing_then[i].size;
	}
	assert_true(some_grew);
	for (size_t i = 0; i < fixed_count; i++)
		if (fixed_now[i].size != fixed_then[i].size)
			fail_msg("%s has no size, and has %zu bytes instead of %zu", fixed_then[i].name, fixed_now[i].size,
				 fixed_then[i].size);
}

static size_t size_then(const char *name)
{
	for (size_t i = 0; i < growing_count; i++)
		if (strcmp(growing_then[i].name, name) == 0)
			return growing_then[i].size;
	fail_msg("no %s", name);
	return 0;
}

/* A struct of a later version: ours with one member more. */
#define LATER(type)              \
	struct {                 \
		struct type s;   \
		uint64_t member; \
	}

static struct tn_cache *open_cache(void)
{
	struct tn_cache_opts o;
	struct tn_cache *cache;

	tn_cache_opts_init(&o);
	o.host_bytes = 4u << 20;
	assert_int_equal(tn_cache_open(&o, &cache), 0);
	return cache;
}

/* The detail names the struct and both sizes. */
static void must_name(const char *name, size_t theirs, size_t ours)
{
	char text[100];

	snprintf(text, sizeof(text), "struct %s of %zu bytes: this library has %zu", name, theirs, ours);
	if (strncmp(tn_error_last()->text, text, strlen(text)) != 0)
		fail_msg("\"%s\" does not begin with \"%s\"", tn_error_last()->text, text);
}

static void options_of_sizes_that_no_version_has_are_refused_by_name(void **state)
{
	const size_t least = size_then("tn_cache_opts");
	const size_t sizes[] = {0, 1, sizeof(size_t), least - 1, 4097, 1u << 30, SIZE_MAX};
	struct tn_cache_opts o;
	struct tn_cache *cache = NULL;

	tn_cache_opts_init(&o);
	o.host_bytes = 4u << 20;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		o.size = sizes[i];
		assert_int_equal(tn_cache_open(&o, &cache), -EINVAL);
		must_name("tn_cache_opts", sizes[i], sizeof(o));
		assert_null(cache);
	}
	for (size_t size = least; size <= sizeof(o); size += 8) {
		o.size = size;
		assert_int_equal(tn_cache_open(&o, &cache), 0);
		assert_int_equal(tn_cache_close(cache), 0);
	}
}

static void options_of_a_later_version_are_taken_while_what_is_unknown_is_zero(void **state)
{
	LATER(tn_cache_opts) o;
	struct tn_cache *cache;

	tn_cache_opts_init_sized(&o.s, sizeof(o));
	assert_int_equal(o.s.size, sizeof(o));
	assert_int_equal(o.member, 0);
	o.s.host_bytes = 4u << 20;
	assert_int_equal(tn_cache_open(&o.s, &cache), 0);
	assert_int_equal(tn_cache_close(cache), 0);
	o.member = UINT64_C(1) << 56;
	assert_int_equal(tn_cache_open(&o.s, &cache), -EINVAL);
	must_name("tn_cache_opts", sizeof(o), sizeof(o.s));
}

/* Members that an old caller does not have keep their defaults, whatever lies behind the caller's struct. */
static void members_beyond_the_callers_size_are_not_read(void **state)
{
	struct tn_cache_opts o;
	struct tn_cache *cache;

	tn_cache_opts_init(&o);
	o.host_bytes = 4u << 20;
	o.size = size_then("tn_cache_opts");
	memset((char *)&o + o.size, 0xa5, sizeof(o) - o.size); /* a scheduler name at that address would crash */
	assert_int_equal(tn_cache_open(&o, &cache), 0);
	assert_int_equal(tn_cache_close(cache), 0);
}

static void results_of_a_later_version_are_zero_where_nothing_is_known(void **state)
{
	struct tn_cache *cache = open_cache();
	struct tn_identity identity;
	struct tn_shard shard;
	struct tn_geometry g;
	struct tn_space *space;
	struct tn_key key = {{1, 2}};
	LATER(tn_match) m;

	tn_identity_init(&identity);
	tn_shard_init(&shard);
	identity.model = "m";
	assert_int_equal(tn_geometry_raw(1, 4096, &g), 0);
	assert_int_equal(tn_space_open(cache, &identity, &shard, &g, NULL, &space), 0);
	memset(&m, 0xa5, sizeof(m));
	m.s.size = sizeof(m);
	assert_int_equal(tn_match(space, &key, 1, NULL, &m.s, 0), 0);
	assert_int_equal(m.s.size, sizeof(m));
	assert_int_equal(m.s.blocks, 0);
	assert_int_equal(m.member, 0);
	memset(&m, 0xa5, sizeof(m));
	m.s.size = size_then("tn_match") - 1;
	assert_int_equal(tn_match(space, &key, 1, NULL, &m.s, 0), -EINVAL);
	must_name("tn_match", m.s.size, sizeof(m.s));
	assert_int_equal(m.s.load_ns, 0xa5a5a5a5a5a5a5a5);
	tn_space_close(space);
	assert_int_equal(tn_cache_close(cache), 0);
}

/* Whatever a version has more of, a program finds what it knows. */
static void statistics_are_found_by_name_and_listed(void **state)
{
	struct tn_cache *cache = open_cache();
	uint64_t value[200], one;
	uint32_t n = 0;

	while (tn_stat_name(n)) {
		for (uint32_t i = 0; i < n; i++)
			assert_string_not_equal(tn_stat_name(i), tn_stat_name(n));
		n++;
	}
	assert_in_range(n, 40, 199);
	assert_null(tn_stat_name(UINT32_MAX));
	memset(value, 0xa5, sizeof(value));
	assert_int_equal(tn_cache_stats(cache, value, 3), (int)n);
	assert_true(value[2] == 0 && value[3] == 0xa5a5a5a5a5a5a5a5);
	assert_int_equal(tn_cache_stats(cache, value, 200), (int)n);
	assert_true(value[n] == 0xa5a5a5a5a5a5a5a5);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(tn_cache_stat(cache, tn_stat_name(i), &one), 0);
		assert_int_equal(one, value[i]);
	}
	assert_int_equal(tn_cache_stat(cache, "index_bytes", &one), 0);
	assert_true(one > 0);
	assert_int_equal(tn_cache_stat(cache, "no_such", &one), -ENOENT);
	assert_int_equal(tn_cache_stat(NULL, "loads", &one), -EINVAL);
	assert_int_equal(tn_cache_stats(cache, NULL, 1), -EINVAL);
	assert_int_equal(tn_cache_close(cache), 0);
}

/* A size that is too small, and a size that nobody set. */
static const size_t wrong[] = {0, 4097};

/* The call with the struct's size changed. */
#define REFUSED(type, var, call)                                         \
	do {                                                             \
		for (int i_ = 0; i_ < 2; i_++) {                         \
			(var).size = wrong[i_];                          \
			assert_int_equal((call), -EINVAL);               \
			must_name(#type, wrong[i_], sizeof(struct type)); \
		}                                                        \
		(var).size = sizeof(struct type);                        \
	} while (0)

static void every_struct_that_a_cache_is_used_with_is_checked(void **state)
{
	static char kv[65536];
	const struct tn_memory_range range = {.address = kv, .bytes = sizeof(kv)};
	const uint64_t base = 0;
	const struct tn_pool_layout layout = {.npages = 1, .base = &base, .stride = {sizeof(kv)}};
	struct tn_cache *cache = open_cache();
	struct tn_device_stats device;
	struct tn_latency latency;
	struct tn_load_opts load_opts;
	struct tn_save_opts save_opts;
	struct tn_identity identity;
	struct tn_match match = {.size = sizeof(match)};
	struct tn_save_result result;
	struct tn_key key = {{1, 2}};
	struct tn_shard shard;
	struct tn_quota quota;
	struct tn_geometry g;
	struct tn_space *space, *again;
	struct tn_memory_desc memory_desc;
	struct tn_memory *memory;
	struct tn_pool *pool;
	struct tn_load *load;
	struct tn_save *save;
	struct tn_plan plan = {.size = sizeof(plan)};
	uint32_t page = 0;

	tn_identity_init(&identity);
	tn_shard_init(&shard);
	tn_quota_init(&quota);
	tn_load_opts_init(&load_opts);
	tn_save_opts_init(&save_opts);
	identity.model = "m";
	assert_int_equal(tn_geometry_raw(1, sizeof(kv), &g), 0);
	REFUSED(tn_identity, identity, tn_space_open(cache, &identity, &shard, &g, &quota, &space));
	REFUSED(tn_shard, shard, tn_space_open(cache, &identity, &shard, &g, &quota, &space));
	REFUSED(tn_quota, quota, tn_space_open(cache, &identity, &shard, &g, &quota, &space));
	assert_int_equal(tn_space_open(cache, &identity, &shard, &g, &quota, &space), 0);
	assert_int_equal(tn_space_open(cache, &identity, &shard, &g, NULL, &again), 0);
	tn_space_close(again);
	tn_memory_desc_init(&memory_desc);
	memory_desc.ranges = &range;
	memory_desc.nranges = 1;
	REFUSED(tn_memory_desc, memory_desc, tn_memory_register(cache, &memory_desc, &memory));
	assert_int_equal(tn_memory_register(cache, &memory_desc, &memory), 0);
	assert_int_equal(tn_pool_create(memory, &g, &layout, &pool), 0);
	REFUSED(tn_load_opts, load_opts, tn_load_begin(space, pool, &key, 1, &page, &load_opts, &load));
	REFUSED(tn_save_opts, save_opts, tn_save_begin(space, pool, &key, 1, &page, &save_opts, &save));
	assert_int_equal(tn_save_begin(space, pool, &key, 1, &page, &save_opts, &save), 0);
	assert_int_equal(tn_save_abort(save), 0);
	REFUSED(tn_save_result, result, tn_save_end(save, tn_test_deadline(), &result));
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &result), 0);
	REFUSED(tn_match, match, tn_match(space, &key, 1, NULL, &match, TN_MATCH_PIN));
	REFUSED(tn_match, match, tn_plan(space, &match, NULL, 1, &plan));
	REFUSED(tn_plan, plan, tn_plan(space, &match, NULL, 1, &plan));
	REFUSED(tn_device_stats, device, tn_cache_device_stats(cache, 0, &device));
	REFUSED(tn_latency, latency, tn_cache_latency(cache, TN_LATENCY_MATCH, TN_TIER_NONE, &latency));
	assert_int_equal(tn_pool_destroy(pool), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	tn_space_close(space);
	assert_int_equal(tn_cache_close(cache), 0);
}

static void every_struct_of_the_tools_is_checked(void **state)
{
	struct tn_admin_device device;
	struct tn_admin_store store;
	const uint64_t one = 1;
	struct tn_slack_desc desc;
	struct tn_slack_cell cell;
	struct tn_slack *slack;

	tn_slack_desc_init(&desc);
	tn_slack_cell_init(&cell);
	tn_admin_store_init(&store);
	REFUSED(tn_slack_desc, desc, tn_slack_create(&desc, &slack));
	desc.inputs = desc.prefixes = &one;
	desc.layers = desc.ninputs = desc.nprefixes = 1;
	assert_int_equal(tn_slack_create(&desc, &slack), 0);
	cell.window_ns = 1;
	REFUSED(tn_slack_cell, cell, tn_slack_set_cell(slack, 0, 0, TN_SLACK_ALL_LAYERS, &cell));
	tn_slack_destroy(slack);
	REFUSED(tn_admin_store, store, tn_admin_store_info(&store, &device));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_member_of_the_first_version_has_moved),
		cmocka_unit_test(options_of_sizes_that_no_version_has_are_refused_by_name),
		cmocka_unit_test(options_of_a_later_version_are_taken_while_what_is_unknown_is_zero),
		cmocka_unit_test(members_beyond_the_callers_size_are_not_read),
		cmocka_unit_test(results_of_a_later_version_are_zero_where_nothing_is_known),
		cmocka_unit_test(statistics_are_found_by_name_and_listed),
		cmocka_unit_test(every_struct_that_a_cache_is_used_with_is_checked),
		cmocka_unit_test(every_struct_of_the_tools_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
