/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Corners of the cache that a review found open: queues that churn, drops before a close, chains that must not eat
 * themselves, look-ups that must not show another tenant's tiers.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core.h"
#include "cache_rig.h"
#include "tier/disk/disk.h"

static void a_dropped_block_is_gone_after_a_close_at_once(void **state)
{
	struct tn_key keys[64];
	struct rig r;

	for (int host = 0; host < 2; host++) {
		rig_set_up(&r, 64u << 20, host ? 16u << 20 : 0, 64);
		rig_save(r.s, 1, 64, 0);
		assert_int_equal(rig_flush(&r), 0);
		rig_keys(1, 64, keys);
		rig_pin(r.s, 1, 10);
		assert_int_equal(tn_drop(r.s->space, keys, 64), 64);
		rig_reopen(&r);
		assert_int_equal(rig_match(r.s, 1, 64), 0);
		assert_int_equal(rig_stats(&r).tier_blocks[TN_TIER_DISK], 0);
		rig_tear_down(&r);
	}
}

static void saves_and_drops_in_turn_do_not_fill_the_offload_queue(void **state)
{
	struct tn_key key = rig_key(1);
	struct rig r;

	rig_set_up(&r, 64u << 20, 2u << 20, 64); /* a dozen host slots */
	for (int i = 0; i < 500; i++) {
		rig_save(r.s, 1, 1, 0);
		tn_drop(r.s->space, &key, 1);
	}
	assert_int_equal(rig_flush(&r), 0);
	rig_tear_down(&r);
}

static void a_dropped_space_is_empty_although_its_blocks_waited_for_their_offload(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 16u << 20, 64);
	rig_save(r.s, 1, 64, 0);
	assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), 0);
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(rig_stats(&r).blocks, 0);
	rig_tear_down(&r);
}

static void a_refused_directory_is_left_as_it_was(void **state)
{
	char dir[] = "/tmp/tn-edge-XXXXXX";
	const char *const twice[] = {dir, dir};
	struct tn_cache_opts opts;
	struct tn_cache *cache = NULL;

	assert_non_null(mkdtemp(dir));
	tn_cache_opts_init(&opts);
	opts.dirs = twice, opts.ndirs = 2, opts.disk_bytes = 64 << 20;
	assert_int_equal(tn_cache_open(&opts, &cache), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "given twice"));
	assert_null(cache);
	assert_int_equal(rmdir(dir), 0); /* nothing is in it */
}

static void a_save_does_not_evict_the_chain_that_it_continues(void **state)
{
	static const char *const policies[] = {"lru", "fifo", "s3fifo", "default"};
	struct rig r;

	for (unsigned p = 0; p < 4; p++) {
		rig_init(&r, 64u << 20, 0, 64);
		r.o.cache.disk_blocks = 8;
		r.o.cache.policy = policies[p];
		assert_int_equal(rig_open(&r), 0);
		rig_save(r.s, 1, 8, 0);
		rig_save(r.s, 1, 10, 0);
		assert_true(rig_match(r.s, 1, 10) >= 8);
		assert_true(rig_stats(&r).tier_blocks[TN_TIER_DISK] <= 8);
		rig_tear_down(&r);
	}
}

static void a_load_keeps_its_own_later_blocks(void **state)
{
	struct rig_space same;
	struct tn_quota quota;
	struct rig r;

	rig_set_up(&r, 64u << 20, 4u << 20, 64); /* 30 host slots */
	rig_save(r.s, 1, 20, 0);
	rig_reopen(&r); /* on disk only */
	quota = rig_quota(&r, 0, UINT64_MAX);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.quota = &quota}, &same), 0);
	rig_save(r.s, 21, 15, 0); /* in host memory only */
	assert_int_equal(rig_match(r.s, 1, 35), 35);
	assert_int_equal(rig_load(r.s, 1, 35), 35);
	rig_space_close(&same);
	rig_tear_down(&r);
}

static void a_zero_key_is_refused(void **state)
{
	uint32_t pages[RIG_PAGES] = {0, 1, 2, 3};
	struct tn_key zero = {{0, 0}};
	struct tn_save *save;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, &zero, 1, pages, NULL, &save), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "keys[0]"));
	rig_tear_down(&r);
}

static void windows_match_their_last_blocks_and_no_other_tenants_tiers(void **state)
{
	uint8_t tiers[8];
	struct tn_key keys[8];
	struct rig_space window;
	struct tn_match m = {.size = sizeof(m)};
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 8, 0);
	rig_keys(1, 8, keys);
	assert_int_equal(tn_match(r.s->space, keys, 8, tiers, &m, 0), 8);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.window = true}, &window), 0);
	memset(tiers, 0xee, sizeof(tiers));
	assert_int_equal(tn_match(window.space, keys, 8, tiers, &m, 0), 0);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(tiers[i], 0xee);
	rig_space_close(&window);
	rig_tear_down(&r);
}

static void the_eventfd_tells_what_ended_before_it_was_asked_for(void **state)
{
	uint64_t n = 0;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 1, 0);
	assert_int_equal(read(tn_cache_eventfd(r.cache), &n, sizeof(n)), sizeof(n));
	assert_true(n > 0);
	rig_tear_down(&r);
}

/* A quota on disk of four blocks, which a lease holds: what is admitted beyond it finds no place. */
static uint64_t fill_a_quota(struct rig *r)
{
	struct rig_space same;
	struct tn_quota quota;
	uint64_t pin;

	rig_set_up(r, 64u << 20, 16u << 20, 64);
	quota = rig_quota(r, 4, UINT64_MAX);
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.quota = &quota}, &same), 0);
	rig_space_close(&same);
	rig_save(r->s, 1, 4, 0);
	assert_int_equal(rig_flush(r), 0);
	pin = rig_pin(r->s, 1, 4);
	assert_int_equal(rig_save(r->s, 5, 2, 0).stored, 2);
	assert_int_equal(rig_flush(r), -ENOSPC);
	return pin;
}

static void a_flush_is_good_again_when_there_is_room_again(void **state)
{
	struct rig r;

	rig_unpin(r.s, fill_a_quota(&r));
	assert_int_equal(rig_flush(&r), 0);
	rig_reopen(&r);
	assert_int_equal(rig_load(r.s, 5, 2), 2);
	rig_tear_down(&r);
}

static void closing_says_that_admitted_blocks_found_no_room(void **state)
{
	struct rig r;

	fill_a_quota(&r);
	assert_int_equal(rig_close(&r), -ENOSPC);
	assert_non_null(strstr(tn_error_last()->text, "2 blocks"));
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_load(r.s, 1, 4), 4);
	rig_tear_down(&r);
}

struct header_at {
	struct tn_key key;
	struct tn_store_place place;
	uint64_t uuid[2];
	tn_slot slot;
};

static int find_header(struct tn_cache *cache, void *arg)
{
	struct header_at *at = arg;
	tn_block b = tn_registry_find_one(cache->registry, 0, &at->key, false);

	at->slot = tn_block_slot(cache->registry, b, TN_TIER_DISK);
	tn_store_locate(tn_disk_tier_store(cache->row.durable), at->slot, &at->place);
	tn_store_uuid(tn_disk_tier_store(cache->row.durable), at->slot, at->uuid);
	return 0;
}

/* Writes the header of a block again, valid in itself, with a sequence that is lower by `older`. */
static void rewrite_header(const struct rig *r, const struct header_at *at, uint64_t older)
{
	unsigned char *page = malloc(at->place.header_bytes), *again = calloc(1, at->place.header_bytes);
	ssize_t bytes = at->place.header_bytes;
	struct tn_store_header h;
	char path[300];
	off_t offset = (off_t)(rig_store_file(r, path, sizeof(path)) + at->place.header_offset);
	int fd;

	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, page, at->place.header_bytes, offset), bytes);
	assert_int_equal(tn_store_header_decode(page, at->place.header_bytes, at->uuid, at->slot, &h), 0);
	assert_true(h.entry.sequence > older);
	h.entry.sequence -= older;
	tn_store_header_encode(&h, at->uuid, at->slot, again);
	assert_int_equal(pwrite(fd, again, at->place.header_bytes, offset), bytes);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	free(page);
	free(again);
}

static void an_old_header_of_the_same_key_is_a_miss(void **state)
{
	struct header_at at = {.key = rig_key(2)};
	struct rig r;

	for (uint64_t older = 0; older < 2; older++) {
		rig_set_up(&r, 64u << 20, 0, 64);
		rig_save(r.s, 1, 3, 0);
		assert_int_equal(rig_flush(&r), 0);
		assert_int_equal(tn_owner_call(rig_core(&r), find_header, &at), 0);
		assert_int_equal(rig_close(&r), 0);
		rewrite_header(&r, &at, older);
		assert_int_equal(rig_open(&r), 0);
		assert_int_equal(rig_load(r.s, 1, 3), older ? 1 : 3);
		assert_int_equal(rig_stats(&r).corrupt_objects, older);
		rig_tear_down(&r);
	}
}

/* The owner would sleep for a second, and is woken: the unpinning says so. */
static void a_dropped_block_goes_when_its_lease_ends(void **state)
{
	struct rig_opts o = rig_simulated_opts();
	struct tn_key keys[8];
	struct rig *r = rig_start(&o);

	rig_keys(1, 8, keys);
	for (int round = 0; round < 5; round++) {
		uint64_t pin, from;

		rig_save(r->s, 1, 8, 0);
		assert_int_equal(rig_flush(r), 0);
		pin = rig_pin(r->s, 1, 8);
		assert_int_equal(tn_drop(r->s->space, keys, 8), 8);
		rig_run(r, (20 + (uint64_t)round * 200) * RIG_MS);
		assert_int_equal(rig_stats(r).tier_blocks[TN_TIER_DISK], 8);
		rig_run(r, RIG_MS);
		from = rig_now(r);
		rig_unpin(r->s, pin);
		tn_core_wait(r->cache, RIG_SECOND);
		assert_true(rig_now(r) - from < RIG_MS);
		rig_run(r, RIG_MS);
		assert_int_equal(r->cache->c.dropped_blocks, 8 * (round + 1));
	}
	rig_tear_down(r);
}

static void an_operation_that_never_fits_names_the_limit(void **state)
{
	static struct tn_key keys[257];
	static uint32_t pages[257 * RIG_PAGES];
	struct tn_load *load;
	struct tn_save *save;
	struct rig r;

	rig_set_up(&r, 64u << 20, 4u << 20, 64);
	rig_keys(1, 257, keys);
	assert_int_equal(tn_load_begin(r.s->space, r.s->pool, keys, 257, pages, NULL, &load), -E2BIG);
	assert_non_null(strstr(tn_error_last()->text, "max_op_blocks 256"));
	assert_int_equal(tn_save_begin(r.s->space, r.s->pool, keys, 257, pages, NULL, &save), -E2BIG);
	assert_int_equal(tn_prefetch(r.s->space, keys, 257, tn_test_deadline()), -E2BIG);
	assert_int_equal(tn_space_op_blocks(r.s->space), 256);
	assert_int_equal(tn_space_op_blocks(NULL), 0);
	rig_tear_down(&r);
}

static void a_match_without_a_pin_takes_no_lease(void **state)
{
	struct tn_match free_m = {.size = sizeof(free_m)}, m[64];
	struct tn_key key = rig_key(1);
	uint8_t tier;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	rig_save(r.s, 1, 1, 0);
	for (uint32_t i = 0; i < 64; i++) {
		m[i].size = sizeof(m[i]);
		assert_int_equal(tn_match(r.s->space, &key, 1, NULL, &m[i], TN_MATCH_PIN), 1);
	}
	assert_int_equal(tn_match(r.s->space, &key, 1, NULL, &free_m, TN_MATCH_PIN), -EAGAIN);
	assert_int_equal(tn_match(r.s->space, &key, 1, &tier, &free_m, 0), 1);
	assert_int_equal(tier, TN_TIER_DISK);
	assert_int_equal(free_m.tier_blocks[TN_TIER_DISK], 1);
	assert_int_equal(free_m.pin, 0);
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(tn_unpin(r.s->space, m[i].pin), 0);
	rig_tear_down(&r);
}

/* The file, the link to the socket, their directory and the one above. */
static void delete_directory(const struct rig *r)
{
	char path[320];

	snprintf(path, sizeof(path), "%s/default/tenuto.store", r->dir);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/default/tenuto.socket", r->dir);
	assert_int_equal(unlink(path), r->owner ? 0 : -1); /* of a cache that is served */
	snprintf(path, sizeof(path), "%s/default", r->dir);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(r->dir), 0);
}

static void a_directory_deleted_underneath_is_said_by_flush_and_health(void **state)
{
	struct rig r;

	for (int host = 0; host < 2; host++) {
		for (int more = 0; more < 2; more++) {
			rig_set_up(&r, 64u << 20, host ? 16u << 20 : 0, 64);
			rig_save(r.s, 1, 16, 0);
			assert_int_equal(rig_flush(&r), 0);
			delete_directory(&r);
			if (more)
				rig_save(r.s, 101, 16, 0);
			assert_int_equal(rig_flush(&r), -ESTALE);
			assert_int_equal(rig_device(&r, 0).health, TN_READ_ONLY);
			assert_true(rig_device(&r, 0).deleted);
			assert_int_equal(rig_load(r.s, 1, 16), 16);
			if (host) /* host memory takes it still, and nothing promises that it is more */
				rig_save(r.s, 201, 16, 0);
			assert_int_equal(rig_flush(&r), -ESTALE);
			assert_int_equal(rig_close(&r), -ESTALE);
			assert_int_equal(mkdir(r.dir, 0700), 0);
			assert_int_equal(rig_open(&r), 0);
			assert_int_equal(rig_match(r.s, 1, 16), 0);
			rig_save(r.s, 1, 16, 0);
			assert_int_equal(rig_flush(&r), 0);
			rig_tear_down(&r);
		}
	}
}

static void device_statistics_end_with_the_last_device_which_is_no_failure(void **state)
{
	struct tn_error before;
	struct tn_device_stats s = {.size = sizeof(s)};
	struct rig r;

	for (uint32_t devices = 0; devices < 2; devices++) {
		rig_set_up(&r, devices ? 64u << 20 : 0, 16u << 20, 64);
		rig_save(r.s, 1, 16, 0);
		assert_int_equal(rig_flush(&r), 0);
		if (devices) {
			assert_int_equal(tn_cache_device_stats(r.cache, 0, &s), 0);
			assert_int_equal(s.size, sizeof(s));
			assert_int_equal(s.blocks, 16);
			assert_int_equal(strncmp(s.path, r.dirs[0], strlen(r.dirs[0])), 0);
		}
		before = *tn_error_last();
		assert_int_equal(tn_cache_device_stats(r.cache, devices, &s), -ENOENT);
		assert_int_equal(tn_cache_device_stats(r.cache, UINT32_MAX, &s), -ENOENT);
		assert_memory_equal(tn_error_last(), &before, sizeof(before));
		assert_int_equal(tn_cache_device_stats(r.cache, 0, NULL), -EINVAL);
		assert_int_equal(tn_cache_device_stats(NULL, 0, &s), -EINVAL);
		rig_tear_down(&r);
	}
}

/* As when its disk is not mounted, and the directory was one inside the mount. */
static void a_directory_that_is_not_there_costs_its_blocks_but_nothing_is_made_in_its_place(void **state)
{
	char sub[280], away[280];
	const char *dirs[2];
	struct stat st;
	struct rig r;
	uint64_t left, saved = 0;

	rig_init(&r, 64u << 20, 0, 64);
	snprintf(sub, sizeof(sub), "%s/sub", r.dir);
	snprintf(away, sizeof(away), "%s/away", r.dir);
	assert_int_equal(mkdir(sub, 0700), 0);
	dirs[0] = r.dir, dirs[1] = sub;
	r.o.cache.instance = "two", r.o.cache.dirs = dirs, r.o.cache.ndirs = 2;
	assert_int_equal(rig_open(&r), 0);
	/* A device whose space is still being allocated has no slots, and a busy machine may take its time. */
	for (; rig_device(&r, 0).blocks == 0 || rig_device(&r, 1).blocks == 0; saved += 16) {
		assert_true(saved < 512);
		assert_int_equal(rig_save(r.s, saved + 1, 16, 0).stored, 16);
	}
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rename(sub, away), 0);
	assert_int_equal(rig_open(&r), 0);
	left = rig_stats(&r).recovered_blocks;
	assert_in_range(left, 1, saved - 1);
	assert_int_equal(rig_device(&r, 0).health, TN_HEALTHY);
	assert_int_equal(rig_device(&r, 1).health, TN_OFFLINE);
	assert_int_equal(stat(sub, &st), -1);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rename(away, sub), 0);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_device(&r, 1).health, TN_HEALTHY);
	assert_int_equal(rig_stats(&r).recovered_blocks, left); /* it missed a session, though that saved nothing */
	rig_tear_down(&r);
}

/* Of the device that is absent no file is known: nothing is made for it, and who attaches does not wait for it. */
static void a_cache_is_served_without_one_of_its_devices(void **state)
{
	char sub[280], other[280], socket[280], link[300], was[PATH_MAX];
	const char *dirs[2];
	struct tn_owner_stats stats = {.size = sizeof(stats)};
	struct tn_cache *user;
	struct stat st;
	struct rig r;
	int fd;

	rig_init(&r, 64u << 20, 0, 64);
	snprintf(sub, sizeof(sub), "%s/sub", r.dir);
	snprintf(other, sizeof(other), "%s/other", r.dir);
	snprintf(socket, sizeof(socket), "%s/s", r.dir);
	snprintf(link, sizeof(link), "%s/tenuto.socket", other);
	assert_int_equal(mkdir(sub, 0700) | mkdir(other, 0700), 0);
	dirs[0] = r.dir, dirs[1] = sub;
	r.o.cache.instance = "two", r.o.cache.dirs = dirs, r.o.cache.ndirs = 2;
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_close(&r), 0);
	r.o.cache.ndirs = 1;
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(tn_store_devices(tn_disk_tier_store(r.cache->row.durable)), 2);
	assert_non_null(getcwd(was, sizeof(was)));
	assert_int_equal(chdir(other), 0);
	fd = open(link, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(tn_cache_serve(r.cache, other, NULL), -EEXIST);
	assert_int_equal(tn_cache_owner_stats(r.cache, &stats), 0);
	assert_int_equal(tn_cache_serve(r.cache, socket, NULL), 0);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(tn_cache_attach(socket, NULL, &user), 0);
	assert_int_equal(tn_cache_close(user), 0);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(lstat(link, &st), 0);
	assert_int_equal(chdir(was), 0);
	rig_tear_down(&r);
}

static void a_table_that_cannot_hold_the_store_s_blocks_is_refused_and_costs_none(void **state)
{
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(rig_save(r.s, 1, 64, 0).stored, 64);
	assert_int_equal(rig_close(&r), 0);
	r.o.cache.max_blocks = 32;
	assert_int_equal(rig_open(&r), -ENOSPC);
	assert_non_null(strstr(tn_error_last()->text, "raise max_blocks"));
	r.o.cache.max_blocks = 0;
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_count(r.s, 1, 64), 64);
	rig_tear_down(&r);
}

static void a_cache_whose_only_directory_is_not_there_does_not_open_and_loses_nothing(void **state)
{
	char sub[280], away[280];
	const char *dir = sub;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	snprintf(sub, sizeof(sub), "%s/sub", r.dir);
	snprintf(away, sizeof(away), "%s/away", r.dir);
	assert_int_equal(mkdir(sub, 0700), 0);
	r.o.cache.dirs = &dir;
	assert_int_equal(rig_open(&r), 0);
	rig_save(r.s, 1, 16, 0);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rename(sub, away), 0);
	assert_int_equal(tn_cache_open(&r.o.cache, &r.cache), -ENOENT);
	assert_int_equal(rename(away, sub), 0);
	assert_int_equal(rig_open(&r), 0);
	assert_int_equal(rig_match(r.s, 1, 16), 16);
	rig_tear_down(&r);
}

/* Before tables are made for it. */
static void a_capacity_that_the_machine_never_has_is_refused(void **state)
{
	struct rig r;

	rig_init(&r, UINT64_C(1) << 50, 0, 64);
	r.o.attached = r.o.staged = false;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "disk_bytes"));
	r.o.cache.disk_bytes = 64u << 20;
	r.o.cache.host_bytes = UINT64_C(1) << 46;
	assert_int_equal(rig_open(&r), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "host_bytes"));
	r.o.cache.host_bytes = 0;
	assert_int_equal(rig_open(&r), 0);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dropped_block_is_gone_after_a_close_at_once),
		cmocka_unit_test(saves_and_drops_in_turn_do_not_fill_the_offload_queue),
		cmocka_unit_test(a_dropped_space_is_empty_although_its_blocks_waited_for_their_offload),
		RIG_FILE_TEST(a_refused_directory_is_left_as_it_was),
		RIG_TEST(a_cache_is_served_without_one_of_its_devices, rig_attached ? "it is about the owner" : rig_namespace ? RIG_FILE : NULL),
		cmocka_unit_test(a_table_that_cannot_hold_the_store_s_blocks_is_refused_and_costs_none),
		cmocka_unit_test(a_save_does_not_evict_the_chain_that_it_continues),
		cmocka_unit_test(a_load_keeps_its_own_later_blocks),
		cmocka_unit_test(a_zero_key_is_refused),
		cmocka_unit_test(a_capacity_that_the_machine_never_has_is_refused),
		cmocka_unit_test(an_operation_that_never_fits_names_the_limit),
		cmocka_unit_test(a_match_without_a_pin_takes_no_lease),
		RIG_SIMULATED_TEST(a_dropped_block_goes_when_its_lease_ends),
		RIG_STORE_TEST(an_old_header_of_the_same_key_is_a_miss),
		cmocka_unit_test(a_flush_is_good_again_when_there_is_room_again),
		RIG_FILE_TEST(a_directory_deleted_underneath_is_said_by_flush_and_health),
		cmocka_unit_test(device_statistics_end_with_the_last_device_which_is_no_failure),
		RIG_FILE_TEST(a_directory_that_is_not_there_costs_its_blocks_but_nothing_is_made_in_its_place),
		RIG_FILE_TEST(a_cache_whose_only_directory_is_not_there_does_not_open_and_loses_nothing),
		RIG_EMBEDDED_TEST(closing_says_that_admitted_blocks_found_no_room, "a lease ends with the process that has it"),
		cmocka_unit_test(windows_match_their_last_blocks_and_no_other_tenants_tiers),
		cmocka_unit_test(the_eventfd_tells_what_ended_before_it_was_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
