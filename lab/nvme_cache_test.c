/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache on raw namespaces of software controllers, one and several, beside directories: what was saved comes back, in this life and the next.
 * The controllers look at how they are driven.
 */
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "core/core.h"
#include "drives/drives.h"
#include "front/cache_rig.h"
#include "lab/nvme_soft.h"
#include "nvme/engine.h"

#define DRIVES 2u
#define BLOCKS 40u
#define DISK_BYTES (24ull << 20) /* of each */

static const char *const addresses[DRIVES] = {"0000:01:00.0", "0000:02:00.0"};
static struct tn_soft *soft[DRIVES];

static int reach(void *arg, const char *address, const struct tn_nvme_port **port)
{
	for (uint32_t i = 0; i < DRIVES; i++)
		if (strcmp(address, addresses[i]) == 0) {
			*port = tn_soft_port(soft[i]);
			return 0;
		}
	return tn_fail(-EINVAL, "%s: no such controller", address);
}

/* As tn_devices_open, with other controllers. */
static int open_soft(struct tn_engines *e)
{
	const struct tn_drives_opts o = {.dirs = e->opts->dirs, .ndirs = e->opts->ndirs, .open = reach,
					 .alloc = e->alloc, .clock = e->clock, .log = e->log};

	return tn_drives_open(&o, &e->drives);
}

static int open_cache(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	int rc = tn_cache_create(opts, out);

	if (rc)
		return rc;
	(*out)->engines.open = open_soft;
	return tn_cache_start(*out);
}

static int up(void **state)
{
	struct tn_soft_opts o;

	for (uint32_t i = 0; i < DRIVES; i++) {
		tn_soft_opts_init(&o);
		o.block_bytes = i ? 4096 : 512;
		o.blocks = (64u << 20) / o.block_bytes;
		o.sgl = i ? 0 : 1;
		o.cache = o.zeroes = true;
		o.seed = tn_test_seed() + i;
		assert_int_equal(tn_soft_create(&o, &soft[i]), 0);
		assert_int_equal(tn_soft_start(soft[i]), 0);
	}
	return 0;
}

static int down(void **state)
{
	for (uint32_t i = 0; i < DRIVES; i++) {
		struct tn_soft_stats stats;

		tn_soft_stop(soft[i]);
		tn_soft_stats(soft[i], &stats);
		for (uint32_t k = 0; k < TN_SOFT_FINDINGS; k++)
			if (stats.findings[k])
				fail_msg("the controller found: %s", tn_soft_finding_name(k));
		tn_soft_destroy(soft[i]);
	}
	return 0;
}

/* A rig on these; dirs outlives it. */
static void rig_on(struct rig *r, const char *const *dirs, uint32_t n, uint64_t host_bytes)
{
	rig_init(r, n * DISK_BYTES, host_bytes, 64);
	r->o.cache.dirs = dirs;
	r->o.cache.ndirs = n;
	r->o.open = open_cache;
	rig_must_open(r);
}

static void save_all(struct rig *r)
{
	for (uint32_t i = 0; i < BLOCKS; i += 8) {
		struct tn_save_result s = rig_save(&r->s[0], i, 8, 0);

		assert_int_equal(s.stored, 8);
	}
	assert_int_equal(rig_flush(r), 0);
}

static void load_all(struct rig *r)
{
	for (uint32_t i = 0; i < BLOCKS; i += 8)
		assert_int_equal(rig_load(&r->s[0], i, 8), 8);
}

static void saved_loaded_and_there_again(const char *const *dirs, uint32_t n, uint64_t host_bytes)
{
	struct rig r;

	rig_on(&r, dirs, n, host_bytes);
	save_all(&r);
	load_all(&r);
	rig_reopen(&r);
	assert_int_equal(rig_stats(&r).recovered_blocks, BLOCKS);
	load_all(&r);
	assert_int_equal(rig_stats(&r).corrupt_objects, 0);
	rig_tear_down(&r);
}

static void what_is_saved_on_a_namespace_is_there_in_the_next_life(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0"};

	saved_loaded_and_there_again(dirs, 1, 0);
}

static void so_it_is_with_a_host_tier_before_it(void **state)
{
	static const char *const dirs[] = {"nvme:0000:02:00.0"};

	saved_loaded_and_there_again(dirs, 1, 4u << 20);
}

static void bytes_of(uint32_t drive, uint64_t *bytes)
{
	struct tn_soft_stats stats;

	tn_soft_stop(soft[drive]);
	tn_soft_stats(soft[drive], &stats);
	assert_int_equal(tn_soft_start(soft[drive]), 0);
	*bytes = stats.bytes;
}

static void a_store_lies_on_two_namespaces_and_a_directory(void **state)
{
	static char dir[256];
	const char *dirs[] = {"nvme:0000:01:00.0", dir, "nvme:0000:02:00.0"};
	uint64_t before[DRIVES];

	snprintf(dir, sizeof(dir), "%s/tn-drives-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	for (uint32_t i = 0; i < DRIVES; i++)
		bytes_of(i, &before[i]);
	saved_loaded_and_there_again(dirs, 3, 0);
	for (uint32_t i = 0; i < DRIVES; i++) {
		uint64_t after;

		bytes_of(i, &after);
		assert_true(after - before[i] > 1u << 20);
	}
}

/* Data in pools is moved by the drive itself: what goes by way of bounce buffers are the store's own pages, which it writes beside; so the sum is a rough one. */
static void pages_of_a_pool_are_not_copied(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0"};
	struct tn_nvme_engine_stats before, after;
	struct rig r;

	rig_on(&r, dirs, 1, 0);
	save_all(&r);
	tn_nvme_engine_stats(tn_drives_io(rig_core(&r)->engines.drives, dirs[0]), &before);
	load_all(&r);
	tn_nvme_engine_stats(tn_drives_io(rig_core(&r)->engines.drives, dirs[0]), &after);
	assert_true(after.bytes - after.bounced_bytes - (before.bytes - before.bounced_bytes) >= BLOCKS * 112ull << 10);
	rig_tear_down(&r);
}

static struct tn_memory *registered(struct rig *r, unsigned char *at, uint64_t bytes)
{
	const struct tn_memory_range range = {at, bytes};
	struct tn_memory_desc d;
	struct tn_memory *m;

	tn_memory_desc_init(&d);
	d.ranges = &range;
	d.nranges = 1;
	assert_int_equal(tn_memory_register(r->cache, &d, &m), 0);
	return m;
}

struct mapping {
	const char *dir;
	unsigned char *at;
	uint64_t bytes;
	int rc;
};

static int map_it(struct tn_cache *cache, void *arg)
{
	struct mapping *m = arg;

	m->rc = tn_io_map(tn_drives_io(cache->engines.drives, m->dir), m->at, m->bytes);
	return 0;
}

static int unmap_it(struct tn_cache *cache, void *arg)
{
	const struct mapping *m = arg;

	tn_io_unmap(tn_drives_io(cache->engines.drives, m->dir), m->at, m->bytes);
	return 0;
}

/* Whether the second of two pages is mapped: others cannot map it then, together with a third one. */
static bool is_mapped(struct rig *r, const char *dir, unsigned char *at)
{
	struct mapping m = {dir, at + 4096, 8192, 0};

	tn_messages_call(&rig_core(r)->messages, map_it, &m);
	if (m.rc == 0)
		tn_messages_call(&rig_core(r)->messages, unmap_it, &m);
	return m.rc != 0;
}

/* What could not be mapped, because other memory had some of its bytes, takes nobody's mapping away when it goes. */
static void memories_that_share_bytes_are_unmapped_each_by_itself(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:02:00.0"};
	struct tn_memory *all, *some, *again, *twin;
	unsigned char *at;
	struct rig r;

	rig_on(&r, dirs, 2, 0);
	at = aligned_alloc(4096, 3 * 4096);
	assert_non_null(at);
	all = registered(&r, at, 3 * 4096);
	some = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(all), 0);
	assert_false(is_mapped(&r, dirs[0], at));
	again = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(some), 0);
	assert_true(is_mapped(&r, dirs[0], at));
	twin = registered(&r, at, 2 * 4096);
	assert_int_equal(tn_memory_unregister(again), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(is_mapped(&r, dirs[i], at));
	assert_int_equal(tn_memory_unregister(twin), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_false(is_mapped(&r, dirs[i], at));
	free(at);
	rig_tear_down(&r);
}

/* A mapping that one drive has and another has not is nobody's to take away. */
static void what_one_of_two_drives_cannot_map_none_has(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:02:00.0"};
	struct mapping other = {dirs[1], NULL, 4096, 0};
	struct tn_memory *m;
	unsigned char *at;
	struct rig r;

	rig_on(&r, dirs, 2, 0);
	at = other.at = aligned_alloc(4096, 3 * 4096);
	assert_non_null(at);
	tn_messages_call(&rig_core(&r)->messages, map_it, &other);
	assert_int_equal(other.rc, 0);
	m = registered(&r, at, 2 * 4096);
	assert_false(is_mapped(&r, dirs[0], at));
	assert_int_equal(tn_memory_unregister(m), 0);
	tn_messages_call(&rig_core(&r)->messages, unmap_it, &other);
	free(at);
	rig_tear_down(&r);
}

static void a_capacity_beyond_the_namespace_is_refused(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0"};
	struct rig r;

	rig_init(&r, 100ull << 20, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "nvme:0000:01:00.0"));
	r.o.cache.disk_bytes = (64ull << 20) - (128u << 10); /* fits, but for the index */
	assert_int_equal(rig_open(&r), -ENOSPC);
	assert_non_null(strstr(tn_error_last()->text, "index"));
	r.o.cache.disk_bytes = DISK_BYTES;
	rig_must_open(&r);
	rig_tear_down(&r);
}

static void what_a_drive_cannot_do_is_said(void **state)
{
	static const char *const dirs[] = {"nvme:0000:01:00.0", "nvme:0000:01:00.0", "nvme:nonsense"};
	struct rig r;

	rig_init(&r, DISK_BYTES, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	r.o.cache.executors = 2;
	assert_int_equal(rig_open(&r), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "executors"));
	r.o.cache.executors = 0;
	r.o.cache.ndirs = 2;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "twice"));
	r.o.cache.dirs = &dirs[2];
	r.o.cache.ndirs = 1;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "nonsense"));
	rig_tear_down(&r);
}

static void what_is_not_ours_is_not_written_over(void **state)
{
	static const char *const dirs[] = {"nvme:0000:02:00.0"};
	unsigned char *media = tn_soft_media(soft[1]);
	struct rig r;

	media[(64u << 20) - 512] = 'E'; /* of the backup of a GUID partition table */
	rig_init(&r, DISK_BYTES, 0, 64);
	r.o.cache.dirs = dirs;
	r.o.open = open_cache;
	assert_int_equal(rig_open(&r), -EUCLEAN);
	assert_non_null(strstr(tn_error_last()->text, "serial number"));
	media[(64u << 20) - 512] = 0;
	rig_must_open(&r);
	rig_tear_down(&r);
}

#define ON_DRIVES(f) cmocka_unit_test_setup_teardown(f, up, down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_DRIVES(what_is_saved_on_a_namespace_is_there_in_the_next_life),
		ON_DRIVES(so_it_is_with_a_host_tier_before_it),
		ON_DRIVES(a_store_lies_on_two_namespaces_and_a_directory),
		ON_DRIVES(pages_of_a_pool_are_not_copied),
		ON_DRIVES(memories_that_share_bytes_are_unmapped_each_by_itself),
		ON_DRIVES(what_one_of_two_drives_cannot_map_none_has),
		ON_DRIVES(a_capacity_beyond_the_namespace_is_refused),
		ON_DRIVES(what_a_drive_cannot_do_is_said),
		ON_DRIVES(what_is_not_ours_is_not_written_over),
	};

	return cmocka_run_group_tests_name("nvme-cache", tests, NULL, NULL);
}
