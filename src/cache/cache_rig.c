/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "cache/cache_internal.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

uint32_t rig_executors;

uint64_t rig_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * RIG_SECOND + (uint64_t)ts.tv_nsec;
}

uint64_t rig_soon(void)
{
	return rig_now_ns() + 20 * RIG_SECOND;
}

static void quiet_or_loud(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	if (getenv("TN_TEST_VERBOSE"))
		printf("# log %d %s: %s\n", level, where, text);
}

static void open_space(struct rig *r)
{
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = RIG_POOL_PAGES};
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	id.model = "test";
	tn_shard_init(&shard);
	assert_int_equal(tn_space_open(r->cache, &id, &shard, &r->g, NULL, &r->space), 0);
	assert_int_equal(tn_pool_register(r->space, &layout, r->bases, TN_MEM_HOST, &r->pool), 0);
}

int rig_open(struct rig *r)
{
	int rc = r->open ? r->open(&r->opts, &r->cache) : tn_cache_open(&r->opts, &r->cache);

	if (rc == 0)
		open_space(r);
	return rc;
}

static struct tn_io_faulty_opts faults;

void rig_faults(const struct tn_io_faulty_opts *opts)
{
	faults = *opts;
}

static int make_faulty(const struct tn_cache *cache, uint32_t depth, struct tn_io **out)
{
	struct tn_ioengine_opts io = {.kind = TN_IOENGINE_POSIX, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_io *inner;
	int rc = tn_ioengine_create(&io, &inner);

	faults.clock = &tn_clock_system;
	return rc ? rc : tn_io_faulty_create(inner, &faults, out);
}

struct tn_io *rig_open_faulty(struct rig *r)
{
	struct tn_cache_opts opts = r->opts;
	const char *dirs[1];
	char path[300];
	struct tn_io *out;

	snprintf(path, sizeof(path), "%s/default", r->dir);
	dirs[0] = path;
	opts.dirs = dirs;
	assert_int_equal(make_faulty(NULL, 0, &out), 0);
	assert_int_equal(tn_cache_create(&opts, &r->cache), 0);
	r->cache->io = out;
	r->cache->make_engine = make_faulty;
	assert_int_equal(tn_owner_start(r->cache), 0);
	r->cache->o.dirs = r->dirs; /* the path is this function's */
	open_space(r);
	return out;
}

int rig_close(struct rig *r)
{
	assert_int_equal(tn_pool_unregister(r->pool), 0);
	tn_space_close(r->space);
	return tn_cache_close(r->cache);
}

/* head_dim 64 x 2 heads x 16 tokens x bf16: 4 KiB per page and plane, so pages can be read into directly. */
void rig_set_up(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim)
{
	const char *base = getenv("TMPDIR");
	uint64_t bytes;
	uint32_t count;
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = RIG_POOL_PAGES};

	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%s/tn-cache-XXXXXX", base ? base : "/tmp");
	assert_non_null(mkdtemp(r->dir));
	r->g = (struct tn_geometry){
		.layers = RIG_LAYERS, .page_tokens = 16, .pages_per_block = RIG_PAGES, .nplanes = 2,
		.planes = {{TN_PLANE_K, 2, head_dim, 16}, {TN_PLANE_V, 2, head_dim, 16}}};
	assert_int_equal(tn_layout_regions(&r->g, &layout, &count, &bytes), 0);
	assert_int_equal(count, RIG_LAYERS);
	r->memory = aligned_alloc(4096, (bytes * RIG_LAYERS + 4095) / 4096 * 4096);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		r->bases[l] = r->memory + l * bytes;
	tn_cache_opts_init(&r->opts);
	r->dirs[0] = r->dir;
	r->opts.dirs = r->dirs;
	r->opts.ndirs = disk_bytes ? 1 : 0;
	r->opts.disk_bytes = disk_bytes;
	r->opts.host_bytes = host_bytes;
	r->opts.max_blocks = 4096 + 4096;
	r->opts.max_ops = 16;
	r->opts.max_op_blocks = 256;
	r->opts.policy = "lru";
	r->opts.log = quiet_or_loud;
	r->opts.executors = rig_executors;
	assert_int_equal(rig_open(r), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void rig_tear_down(struct rig *r)
{
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(nftw(r->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
	free(r->memory);
}

void rig_dimensions(struct rig *r, uint32_t head_dim)
{
	r->g.planes[0].head_dim = r->g.planes[1].head_dim = head_dim;
}

void rig_open_second(struct rig *r, uint32_t head_dim, const struct tn_quota *quota, struct rig *out)
{
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = RIG_POOL_PAGES};
	struct tn_identity id;
	struct tn_shard shard;

	*out = *r;
	rig_dimensions(out, head_dim);
	tn_identity_init(&id);
	id.model = "test";
	tn_shard_init(&shard);
	assert_int_equal(tn_space_open(r->cache, &id, &shard, &out->g, quota, &out->space), 0);
	assert_int_equal(tn_pool_register(out->space, &layout, r->bases, TN_MEM_HOST, &out->pool), 0);
}

void rig_close_second(struct rig *t)
{
	assert_int_equal(tn_pool_unregister(t->pool), 0);
	tn_space_close(t->space);
}

struct tn_key rig_key(uint64_t i)
{
	return (struct tn_key){{i * 0x9e3779b97f4a7c15u + 1, i}};
}

unsigned char *rig_plane(struct rig *r, uint32_t layer, uint32_t plane, uint32_t page, uint32_t *bytes)
{
	*bytes = tn_geometry_page_bytes(&r->g, plane);
	return (unsigned char *)r->bases[layer] + ((size_t)plane * RIG_POOL_PAGES + page) * *bytes;
}

/* Content of page `page` of block `id`: different in every byte range, layer and plane. */
void rig_content(struct rig *r, uint64_t id, uint32_t page_in_block, uint32_t page, bool check)
{
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		for (uint32_t p = 0; p < 2; p++) {
			struct tn_rng rng;
			uint32_t bytes;
			unsigned char *at = rig_plane(r, l, p, page, &bytes);

			tn_rng_seed(&rng, id * 1000 + l * 100 + p * 10 + page_in_block);
			for (uint32_t i = 0; i < bytes; i += 8) {
				uint64_t v = tn_rng_next(&rng);

				if (check)
					assert_memory_equal(at + i, &v, 8);
				else
					memcpy(at + i, &v, 8);
			}
		}
}

void rig_save(struct rig *r, uint64_t first, uint32_t n, uint32_t first_page, struct tn_save_result *result)
{
	struct tn_save_opts so;
	struct tn_save *save;
	struct tn_key keys[64], parent = rig_key(first - 1);
	uint32_t pages[64 * RIG_PAGES];

	tn_save_opts_init(&so);
	so.parent = first > 1 ? &parent : NULL;
	for (uint32_t i = 0; i < n; i++) {
		keys[i] = rig_key(first + i);
		for (uint32_t k = 0; k < RIG_PAGES; k++) {
			pages[i * RIG_PAGES + k] = first_page + (i * RIG_PAGES + k) * 7 % (n * RIG_PAGES);
			rig_content(r, first + i, k, pages[i * RIG_PAGES + k], false);
		}
	}
	assert_int_equal(tn_save_begin(r->space, r->pool, keys, n, pages, &so, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL), 0);
	assert_int_equal(tn_save_commit(save), 0);
	result->size = sizeof(*result);
	assert_int_equal(tn_save_end(save, rig_soon(), result), 0);
}

/* Loads blocks first.. into pages from 512 on; returns the good prefix, whose bytes were checked. */
int rig_load(struct rig *r, uint64_t first, uint32_t n)
{
	struct tn_load *load;
	struct tn_key keys[64];
	uint32_t pages[64 * RIG_PAGES];
	int good = -1, rc;

	for (uint32_t i = 0; i < n; i++) {
		keys[i] = rig_key(first + i);
		for (uint32_t k = 0; k < RIG_PAGES; k++)
			pages[i * RIG_PAGES + k] = 512 + i * RIG_PAGES + (RIG_PAGES - 1 - k);
	}
	assert_int_equal(tn_load_begin(r->space, r->pool, keys, n, pages, NULL, &load), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		rc = tn_load_wait(load, l, rig_soon());
		assert_true(rc >= 0 && (good < 0 || rc <= good));
		good = rc;
	}
	assert_int_equal(tn_load_end(load, rig_soon(), NULL), 0);
	for (int i = 0; i < good; i++)
		for (uint32_t k = 0; k < RIG_PAGES; k++)
			rig_content(r, first + (uint64_t)i, k, pages[(uint32_t)i * RIG_PAGES + k], true);
	return good;
}

struct tn_stats rig_stats(struct rig *r)
{
	struct tn_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_stats(r->cache, &s), 0);
	return s;
}

struct tn_device_stats rig_device(struct rig *r, uint32_t index)
{
	struct tn_device_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_device_stats(r->cache, index, &s), 0);
	return s;
}

int rig_match(struct rig *r, uint64_t first, uint32_t n)
{
	struct tn_key keys[64];
	struct tn_match m = {.size = sizeof(m)};

	for (uint32_t i = 0; i < n; i++)
		keys[i] = rig_key(first + i);
	return tn_match(r->space, keys, n, NULL, &m, 0);
}

uint32_t rig_count(struct rig *r, uint64_t first, uint32_t n)
{
	struct tn_match m = {.size = sizeof(m)};
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);

		found += tn_match(r->space, &key, 1, NULL, &m, 0) == 1;
	}
	return found;
}
