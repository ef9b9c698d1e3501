/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache through its public API, on real files: what was saved comes back, from every tier and after reopening;
 * what cannot come back is a miss.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache_rig.h"

static void what_was_saved_on_disk_comes_back(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(rig_save(r.s, 1, 32, 0).stored, 32);
	assert_int_equal(rig_match(r.s, 1, 33), 32);
	assert_int_equal(rig_load(r.s, 1, 32), 32);
	assert_int_equal(rig_stats(&r).verified_objects, 32 * RIG_LAYERS);
	/* Memory of attached processes is not mapped for a drive, and no drive reaches that of devices. */
	assert_int_equal(rig_stats(&r).bounced_objects > 0, rig_attached ? rig_namespace : rig_on_device);
	rig_tear_down(&r);
}

static void pages_that_direct_io_cannot_reach_are_bounced(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 65);
	assert_int_equal(rig_save(r.s, 1, 32, 0).stored, 32);
	assert_int_equal(rig_load(r.s, 1, 32), 32);
	assert_true(rig_stats(&r).bounced_objects > 0);
	rig_tear_down(&r);
}

static void blocks_in_host_memory_come_back_without_disk(void **state)
{
	struct rig r;

	rig_set_up(&r, 0, 16u << 20, 64);
	assert_int_equal(rig_save(r.s, 1, 32, 0).host_only, 32);
	assert_int_equal(rig_load(r.s, 1, 32), 32);
	rig_tear_down(&r);
}

static void the_store_is_warm_after_reopening(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 40, 0);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(rig_stats(&r).recovered_blocks, 40);
	assert_int_equal(rig_load(r.s, 1, 40), 40);
	rig_tear_down(&r);
}

static void host_blocks_are_offloaded_and_warm_after_reopening(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	assert_int_equal(rig_save(r.s, 1, 40, 0).stored, 40);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(rig_stats(&r).offloaded_blocks, 40);
	assert_int_equal(rig_load(r.s, 1, 40), 40);
	rig_reopen(&r);
	assert_int_equal(rig_load(r.s, 1, 40), 40);
	assert_int_equal(rig_stats(&r).promoted_blocks, 40);
	assert_int_equal(rig_load(r.s, 1, 40), 40);
	rig_tear_down(&r);
}

static void a_prefetched_block_is_read_from_host_memory(void **state)
{
	struct tn_key keys[8];
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	rig_save(r.s, 1, 8, 0);
	rig_reopen(&r);
	rig_keys(1, 8, keys);
	assert_int_equal(tn_prefetch(r.s->space, keys, 8, tn_test_deadline()), 8);
	rig_until(&r, rig_stats(&r).prefetched_blocks == 8);
	assert_int_equal(rig_load(r.s, 1, 8), 8);
	assert_int_equal(rig_stats(&r).promoted_blocks, 0);
	rig_tear_down(&r);
}

static void a_missing_block_shortens_the_prefix(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 10, 0);
	rig_save(r.s, 12, 10, 0);
	assert_int_equal(rig_load(r.s, 1, 20), 10);
	assert_int_equal(rig_load(r.s, 11, 5), 0);
	rig_tear_down(&r);
}

static void capacity_is_never_exceeded_and_the_newest_stay(void **state)
{
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	r.o.cache.disk_blocks = 50;
	assert_int_equal(rig_open(&r), 0);
	for (uint64_t i = 0; i < 40; i++) {
		assert_int_equal(rig_save(r.s, 1 + i * 1000, 16, 0).stored, 16);
		assert_true(rig_stats(&r).tier_blocks[TN_TIER_DISK] <= 50);
	}
	assert_int_equal(rig_load(r.s, 1 + 39 * 1000, 16), 16);
	assert_int_equal(rig_load(r.s, 1, 16), 0);
	assert_true(rig_stats(&r).evicted_blocks[TN_TIER_DISK] >= 40 * 16 - 50);
	rig_tear_down(&r);
}

static void a_smaller_capacity_holds_from_reopening_on(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 40, 0);
	assert_int_equal(rig_close(&r), 0);
	r.o.cache.disk_blocks = 25;
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], 25);
	assert_int_equal(rig_load(r.s, 1, 40), 25);
	rig_tear_down(&r);
}

static void an_aborted_save_leaves_nothing(void **state)
{
	uint32_t pages[8 * RIG_PAGES];
	struct tn_key keys[8];
	struct tn_save *save;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_keys(1, 8, keys);
	for (uint32_t i = 0; i < 8 * RIG_PAGES; i++)
		pages[i] = i;
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, 8, pages, NULL, &save), 0);
	assert_int_equal(tn_save_layer(save, 0, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), -EINVAL);
	assert_int_equal(tn_save_layer(save, 0, NULL, 0), -EINVAL);
	assert_int_equal(tn_save_layer(save, RIG_LAYERS, NULL, 0), -EINVAL);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), -EINVAL);
	assert_int_equal(tn_save_abort(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), 0);
	assert_int_equal(rig_match(r.s, 1, 8), 0);
	assert_int_equal(rig_stats(&r).blocks, 0);
	rig_tear_down(&r);
}

/* From the caller, or as a device does, which wakes nobody. */
static void a_layer_is_taken_only_when_its_event_has_come(void **state)
{
	uint32_t pages[RIG_PAGES] = {0, 1, 2, 3};
	struct tn_event *event;
	struct tn_save *save;
	struct tn_key key;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	for (uint64_t device = 0; device < 2; device++) {
		key = rig_key(1 + device);
		assert_int_equal(tn_event_create(r.cache, &event), 0);
		assert_int_equal(tn_save_begin(r.s->space, r.s->pool, &key, 1, pages, NULL, &save), 0);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save, l, l == 1 ? event : NULL, 7), 0);
		assert_int_equal(tn_save_commit(save), 0);
		assert_int_equal(tn_event_raise(event, 6), 0);
		assert_int_equal(tn_save_end(save, tn_test_now() + 5 * RIG_MS, NULL), -ETIMEDOUT);
		if (device)
			__atomic_store_n(tn_event_address(event), 8, __ATOMIC_RELEASE);
		else
			assert_int_equal(tn_event_raise(event, 8), 0);
		assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), 0);
		assert_int_equal(rig_match(r.s, 1 + device, 1), 1);
		tn_event_destroy(event);
	}
	rig_tear_down(&r);
}

static void only_the_wanted_pages_are_written(void **state)
{
	struct tn_load_opts lo;
	struct tn_load *load;
	struct tn_key keys[4];
	uint32_t pages[4 * RIG_PAGES], bytes = 0;
	struct rig r;

	for (int host = 0; host < 2; host++) {
		rig_set_up(&r, 64u << 20, host ? 16u << 20 : 0, 64);
		rig_save(r.s, 1, 4, 0);
		rig_keys(1, 4, keys);
		for (uint32_t i = 0; i < 4 * RIG_PAGES; i++) {
			pages[i] = 600 + i;
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				memset(rig_plane(r.s, l, 1, 600 + i, &bytes), 0xee, bytes);
		}
		tn_load_opts_init(&lo);
		lo.first_page = 6;
		lo.npages = 7;
		assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 4, pages, &lo, &load), 0);
		assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline()), 4);
		rig_load_end(r.s, load);
		for (uint32_t i = 0; i < 4 * RIG_PAGES; i++) {
			if (i >= 6 && i < 13) {
				for (uint32_t l = 0; l < RIG_LAYERS; l++)
					assert_true(rig_holds(r.s, 1 + i / RIG_PAGES, l, i % RIG_PAGES, pages[i]));
			} else {
				assert_int_equal(*rig_plane(r.s, 2, 1, pages[i], &bytes), 0xee);
			}
		}
		rig_tear_down(&r);
	}
}

static void bad_arguments_are_refused_by_name(void **state)
{
	uint32_t pages[2 * RIG_PAGES] = {0, 1, 2, 3, 4, 5, 6, 2};
	struct tn_key keys[2] = {rig_key(1), rig_key(2)};
	struct tn_load_opts lo;
	struct tn_load *load;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 2, pages, NULL, &load), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "pages[7] = 2"));
	pages[7] = RIG_POOL_PAGES;
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 2, pages, NULL, &load), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "1024"));
	pages[7] = 7;
	tn_load_opts_init(&lo);
	lo.first_page = 2 * RIG_PAGES + 1;
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 2, pages, &lo, &load), -EINVAL);
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 0, pages, NULL, &load), -EINVAL);
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 2, pages, NULL, &load), 0);
	assert_int_equal(tn_load_wait(load, RIG_LAYERS, tn_test_deadline()), -EINVAL);
	assert_int_equal(tn_load_wait(load, 0, tn_test_deadline()), 0);
	rig_load_end(r.s, load);
	assert_int_equal(tn_unpin(r.s->space, 12345), -EINVAL);
	assert_int_equal(tn_cache_unpin(r.cache, 12345), -EINVAL);
	assert_int_equal(tn_cache_unpin(NULL, 12345), -EINVAL);
	rig_tear_down(&r);
}

static void a_pinned_block_is_not_evicted(void **state)
{
	struct tn_key keys[16];
	struct tn_match m = {.size = sizeof(m)};
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	r.o.cache.disk_blocks = 40;
	assert_int_equal(rig_open(&r), 0);
	rig_save(r.s, 1, 16, 0);
	rig_keys(1, 16, keys);
	assert_int_equal(tn_match(r.s->space, keys, 16, NULL, &m, TN_MATCH_PIN), 16);
	assert_int_equal(m.tier_blocks[TN_TIER_DISK], 16);
	for (uint64_t i = 1; i < 10; i++)
		rig_save(r.s, 1 + i * 1000, 16, 0);
	assert_int_equal(rig_load(r.s, 1, 16), 16);
	assert_int_equal(tn_unpin(r.s->space, m.pin), 0);
	assert_int_equal(tn_unpin(r.s->space, m.pin), -EINVAL);
	for (uint64_t i = 11; i < 20; i++)
		rig_save(r.s, 1 + i * 1000, 16, 0);
	assert_int_equal(rig_load(r.s, 1, 16), 0);
	rig_tear_down(&r);
}

static void a_dropped_space_stays_empty_after_reopening(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 16, 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), 0);
	assert_int_equal(rig_match(r.s, 1, 16), 0);
	rig_save(r.s, 101, 4, 0);
	rig_reopen(&r);
	assert_int_equal(rig_match(r.s, 1, 16), 0);
	assert_int_equal(rig_load(r.s, 101, 4), 4);
	rig_tear_down(&r);
}

static void dropped_blocks_are_gone(void **state)
{
	struct tn_key key = rig_key(4);
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	rig_save(r.s, 1, 8, 0);
	assert_int_equal(rig_flush(&r), 0);
	assert_int_equal(tn_drop(r.s->space, &key, 1), 1);
	assert_int_equal(rig_match(r.s, 1, 8), 3);
	assert_int_equal(tn_drop(r.s->space, &key, 1), 0);
	rig_tear_down(&r);
}

static void a_second_opener_is_told_who_owns_it(void **state)
{
	struct tn_cache *second;
	struct rig r;
	char pid[32];

	rig_set_up(&r, 64u << 20, 0, 64);
	r.o.cache.lock_timeout_ns = 0;
	assert_int_equal(tn_cache_open(&r.o.cache, &second), -EBUSY);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	assert_non_null(strstr(tn_error_last()->text, pid));
	rig_tear_down(&r);
}

static void a_fork_cannot_use_the_parents_cache(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key key = rig_key(1);
	struct rig r;
	int status;
	pid_t pid;

	rig_set_up(&r, 64u << 20, 0, 64);
	pid = fork();
	if (pid == 0) {
		int bad = 0;

		bad |= tn_flush(r.cache, tn_test_deadline()) != -ECHILD;
		bad |= tn_match(r.s->space, &key, 1, NULL, &m, 0) > 0;
		bad |= tn_phase(r.cache, TN_PHASE_DECODE, 0) != -ECHILD;
		bad |= tn_cache_close(r.cache) != -ECHILD;
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	rig_tear_down(&r);
}

/* Flips a byte in the data of every block: offsets from the geometry of the only segment in use. */
static void corrupt_everything(struct rig *r)
{
	char path[512];
	unsigned char page[4096];
	off_t first = (off_t)rig_store_file(r, path, sizeof(path)), end;
	struct stat st;
	int fd;

	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	end = first + 2 * (off_t)r->o.cache.disk_bytes;
	end = end < st.st_size ? end : st.st_size;
	/* Data pages are the ones full of random bytes; headers and metadata are mostly zero. */
	for (off_t at = first; at + 4096 <= end; at += 4096) {
		int zeros = 0;

		assert_int_equal(pread(fd, page, sizeof(page), at), 4096);
		for (int i = 0; i < 4096; i++)
			zeros += page[i] == 0;
		if (zeros > 200)
			continue;
		page[100] ^= 1;
		assert_int_equal(pwrite(fd, page, sizeof(page), at), 4096);
	}
	close(fd);
}

static void a_corrupt_block_is_a_miss_and_never_wrong_bytes(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 16, 0);
	assert_int_equal(rig_close(&r), 0);
	corrupt_everything(&r);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_match(r.s, 1, 16), 16);
	assert_int_equal(rig_load(r.s, 1, 16), 0);
	assert_true(rig_stats(&r).corrupt_objects > 0);
	/* The first is gone; saving all again heals. */
	assert_true(rig_match(r.s, 1, 16) < 16);
	rig_tear_down(&r);
}

/* The checksums are in memory since the save, so whoever reads compares, and no worker after him. */
static void a_block_that_is_damaged_while_the_cache_is_open_is_a_miss(void **state)
{
	struct rig r;

	for (rig_executors = 0; rig_executors <= (rig_has_executors() ? 2 : 0); rig_executors += 2) {
		rig_set_up(&r, 64u << 20, 0, 64);
		rig_save(r.s, 1, 16, 0);
		assert_int_equal(rig_flush(&r), 0);
		assert_int_equal(rig_load(r.s, 1, 16), 16);
		corrupt_everything(&r);
		assert_int_equal(rig_load(r.s, 1, 16), 0);
		assert_int_equal(rig_stats(&r).header_reads, 0);
		assert_true(rig_stats(&r).corrupt_objects > 0);
		assert_true(rig_match(r.s, 1, 16) < 16);
		rig_tear_down(&r);
	}
	rig_executors = 0;
}

static void spaces_do_not_see_each_other(void **state)
{
	struct rig_space other;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 4, 0);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.tenant = "someone else"}, &other), 0);
	assert_int_equal(rig_match(&other, 1, 1), 0);
	assert_int_equal(rig_match(r.s, 1, 4), 4);
	rig_space_close(&other);
	rig_tear_down(&r);
}

static void a_quota_of_nothing_stores_nothing(void **state)
{
	struct rig_space same;
	struct tn_quota quota;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	quota = rig_quota(&r, 0, UINT64_MAX);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.quota = &quota}, &same), 0);
	assert_int_equal(rig_save(r.s, 1, 4, 0).rejected, 4);
	quota = rig_quota(&r, 10, UINT64_MAX);
	rig_space_close(&same);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.quota = &quota}, &same), 0);
	for (uint64_t i = 0; i < 10; i++)
		rig_save(r.s, 1 + i * 1000, 8, 0);
	assert_true(rig_stats(&r).tier_blocks[TN_TIER_DISK] <= 10);
	assert_int_equal(rig_load(r.s, 9001, 8), 8);
	rig_space_close(&same);
	rig_tear_down(&r);
}

static void a_block_is_gone_when_its_time_is_over(void **state)
{
	struct tn_save_opts so;
	struct tn_save *save;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 1, 0);
	tn_save_opts_init(&so);
	so.ttl_ns = RIG_SECOND / 10;
	for (int reopen = 0; reopen < 2; reopen++) {
		save = rig_save_begin(r.s, 77, 1, 0, &so);
		rig_save_give(r.s, save);
		rig_save_end(r.s, save);
		if (reopen)
			rig_reopen(&r);
		else
			rig_until(&r, rig_stats(&r).tier_blocks[TN_TIER_DISK] == 1);
		assert_int_equal(rig_match(r.s, 77, 1), 0);
		assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], 1);
	}
	rig_tear_down(&r);
}

static void count_event(void *arg, const struct tn_block_event *e)
{
	++*(int *)arg;
}

static void events_tell_what_arrived_and_left(void **state)
{
	struct tn_block_event e[64];
	struct tn_key key = rig_key(8);
	uint64_t cursor = 0;
	int blocks = 0;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(tn_cache_events(r.cache, &cursor, e, 64), 0);
	rig_save(r.s, 1, 8, 0);
	assert_int_equal(tn_drop(r.s->space, &key, 1), 1);
	rig_until(&r, rig_stats(&r).tier_blocks[TN_TIER_DISK] == 7);
	assert_int_equal(tn_cache_events(r.cache, &cursor, e, 64), 9);
	for (int i = 0; i < 9; i++) {
		struct tn_key want = rig_key(i < 8 ? (uint64_t)i + 1 : 8), parent = rig_key((uint64_t)i);

		assert_int_equal(e[i].kind, i < 8 ? TN_EVENT_STORED : TN_EVENT_REMOVED);
		assert_int_equal(e[i].tier, TN_TIER_DISK);
		assert_int_equal(e[i].space, tn_space_index(r.s->space));
		assert_memory_equal(&e[i].key, &want, sizeof(want));
		if (i > 0 && i < 8)
			assert_memory_equal(&e[i].parent, &parent, sizeof(parent));
	}
	assert_int_equal(tn_cache_snapshot(r.cache, count_event, &blocks, &cursor), 7);
	assert_int_equal(blocks, 7);
	assert_int_equal(tn_cache_events(r.cache, &cursor, e, 64), 0);
	rig_tear_down(&r);
}

static void small_blocks_fill_the_capacity_and_are_all_recovered_without_the_hint(void **state)
{
	struct tn_geometry g;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 8); /* blocks of 16 KiB */
	g = rig_geometry(&r);
	r.o.cache.instance = "small";
	r.o.cache.disk_bytes = 16u << 20;
	r.o.cache.max_blocks = 0;
	r.o.cache.geometry = &g;
	assert_int_equal(rig_open(&r), 0);
	assert_true(rig_stats(&r).capacity_blocks >= 600);
	for (uint64_t i = 0; i < 600; i += 40)
		rig_save(r.s, 1 + i, 40, 0);
	assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], 600);
	assert_int_equal(rig_close(&r), 0);
	r.o.cache.geometry = NULL;
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_stats(&r).recovered_blocks, 600);
	assert_int_equal(rig_load(r.s, 561, 40), 40);
	rig_tear_down(&r);
}

static void blocks_read_back_are_counted_once(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 8, 0);
	assert_int_equal(rig_load(r.s, 1, 5), 5);
	assert_int_equal(rig_load(r.s, 1, 6), 6);
	assert_int_equal(rig_stats(&r).blocks_read_back, 6);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_saved_on_disk_comes_back),
		cmocka_unit_test(pages_that_direct_io_cannot_reach_are_bounced),
		cmocka_unit_test(blocks_in_host_memory_come_back_without_disk),
		cmocka_unit_test(the_store_is_warm_after_reopening),
		cmocka_unit_test(host_blocks_are_offloaded_and_warm_after_reopening),
		cmocka_unit_test(a_prefetched_block_is_read_from_host_memory),
		cmocka_unit_test(a_missing_block_shortens_the_prefix),
		cmocka_unit_test(capacity_is_never_exceeded_and_the_newest_stay),
		cmocka_unit_test(a_smaller_capacity_holds_from_reopening_on),
		cmocka_unit_test(an_aborted_save_leaves_nothing),
		cmocka_unit_test(a_layer_is_taken_only_when_its_event_has_come),
		cmocka_unit_test(only_the_wanted_pages_are_written),
		cmocka_unit_test(bad_arguments_are_refused_by_name),
		cmocka_unit_test(a_pinned_block_is_not_evicted),
		cmocka_unit_test(a_dropped_space_stays_empty_after_reopening),
		cmocka_unit_test(dropped_blocks_are_gone),
		RIG_ALONE_TEST(a_second_opener_is_told_who_owns_it),
		cmocka_unit_test(a_fork_cannot_use_the_parents_cache),
		RIG_STORE_TEST(a_corrupt_block_is_a_miss_and_never_wrong_bytes),
		RIG_STORE_TEST(a_block_that_is_damaged_while_the_cache_is_open_is_a_miss),
		cmocka_unit_test(spaces_do_not_see_each_other),
		cmocka_unit_test(a_quota_of_nothing_stores_nothing),
		cmocka_unit_test(a_block_is_gone_when_its_time_is_over),
		cmocka_unit_test(events_tell_what_arrived_and_left),
		cmocka_unit_test(small_blocks_fill_the_capacity_and_are_all_recovered_without_the_hint),
		cmocka_unit_test(blocks_read_back_are_counted_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
