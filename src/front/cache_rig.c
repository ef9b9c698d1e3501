/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"
#include "device/soft_rig.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "core/core.h"
#include "enginepool.h"
#include "far.h"
#include "ioengine/faulty_rig.h"
#include "ioengine/ioengine.h"

uint32_t rig_executors;
bool rig_attached, rig_staged, rig_on_device;

/* TN_TEST_ATTACHED=1, or =staged, and TN_TEST_DEVICE=1: as if each test had said so. */
__attribute__((constructor)) static void look_at_environment(void)
{
	const char *attached = getenv("TN_TEST_ATTACHED");

	rig_attached = attached != NULL;
	rig_staged = attached && strcmp(attached, "staged") == 0;
	rig_on_device = getenv("TN_TEST_DEVICE") != NULL;
}

/* ---- options ------------------------------------------------------------------------------------------------ */

static void on_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	if (getenv("TN_TEST_VERBOSE"))
		printf("# %llu us: log %d %s: %s\n", (unsigned long long)(rig_now(arg) / RIG_US), level, where, text);
}

/* head_dim 64 x 2 heads x 16 tokens x bf16: 4 KiB per page and plane, so pages can be read into directly. */
void rig_init_in(struct rig *r, const char *dir, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim)
{
	struct tn_cache_opts *o = &r->o.cache;

	memset(r, 0, sizeof(*r));
	snprintf(r->dir, sizeof(r->dir), "%s", dir);
	r->dirs[0] = rig_namespace ? rig_namespace_name() : r->dir;
	r->o = (struct rig_opts){.spaces = 1, .layers = RIG_LAYERS, .pages_per_block = RIG_PAGES, .heads = 2, .head_dim = head_dim,
				 .npages = RIG_POOL_PAGES, .attached = rig_attached, .staged = rig_staged, .device = rig_on_device};
	tn_cache_opts_init(o);
	o->dirs = r->dirs;
	o->ndirs = disk_bytes ? 1 : 0;
	o->disk_bytes = disk_bytes;
	o->host_bytes = host_bytes;
	o->max_blocks = 8192;
	o->max_ops = 16;
	o->max_op_blocks = 256;
	o->policy = "lru";
	o->executors = rig_executors;
	if (rig_on_device && !rig_attached && strcmp(getenv("TN_TEST_DEVICE"), "tier") == 0)
		o->device_tier = (struct tn_device_tier){.bytes = 8u << 20, .driver = tn_soft_device_driver(tn_soft_device_of_process())};
}

void rig_init(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim)
{
	const char *base = getenv("TMPDIR");
	char dir[sizeof(r->dir)];

	snprintf(dir, sizeof(dir), "%s/tn-cache-XXXXXX", base ? base : "/tmp");
	assert_non_null(mkdtemp(dir));
	if (disk_bytes)
		rig_namespace_empty();
	rig_init_in(r, dir, disk_bytes, host_bytes, head_dim);
}

void rig_dimensions(struct rig *r, uint32_t head_dim)
{
	r->o.head_dim = head_dim;
}

/* ---- spaces --------------------------------------------------------------------------------------------------- */

static struct tn_geometry geometry(const struct rig *r, const struct rig_space_opts *o)
{
	uint32_t dim = o->head_dim ? o->head_dim : r->o.head_dim;

	return (struct tn_geometry){
		.layers = r->o.layers, .page_tokens = 16, .nplanes = 2,
		.pages_per_block = o->pages_per_block ? o->pages_per_block : r->o.pages_per_block,
		.planes = {{TN_PLANE_K, r->o.heads, dim, 16}, {TN_PLANE_V, r->o.heads, dim, 16}}};
}

struct tn_geometry rig_geometry(const struct rig *r)
{
	return geometry(r, &(struct rig_space_opts){0});
}

int rig_space_open(struct rig *r, const struct rig_space_opts *o, struct rig_space *s)
{
	struct tn_identity id;
	struct tn_shard shard;
	int rc;

	*s = (struct rig_space){.rig = r, .g = geometry(r, o), .npages = r->o.npages};
	tn_identity_init(&id);
	if (o->tenant)
		id.tenant = o->tenant;
	id.model = o->model ? o->model : "test";
	id.hash_seed = o->seed;
	memcpy(id.reset_revision, &o->reset, sizeof(o->reset));
	tn_shard_init(&shard);
	if (o->window) {
		shard.match_rule = TN_MATCH_WINDOW;
		shard.window_tokens = UINT32_MAX;
	}
	if (o->ranks) {
		shard.tp_rank = o->rank;
		shard.tp_size = o->ranks;
	}
	rc = tn_space_open(r->cache, &id, &shard, &s->g, o->quota, &s->space);
	if (rc)
		return rc;
	s->salt = tn_hash64(id.model, strlen(id.model)) ^ tn_hash64(&id.hash_seed, sizeof(id.hash_seed));
	s->salt += o->rank;
	s->salt ^= o->tenant ? tn_hash64(o->tenant, strlen(o->tenant)) : 0;
	if (!o->no_pool)
		rig_pool_open(s);
	return 0;
}

void rig_open_second(struct rig *r, uint32_t head_dim, struct rig_space *s)
{
	struct rig_space_opts o = {.head_dim = head_dim};

	assert_int_equal(rig_space_open(r, &o, s), 0);
}

void rig_space_close(struct rig_space *s)
{
	assert_int_equal(enginepool_destroy(s->pool), 0);
	tn_space_close(s->space);
	rig_pool_free(s);
	*s = (struct rig_space){.rig = s->rig};
}

struct tn_quota rig_quota(struct rig *r, uint64_t disk_blocks, uint64_t host_blocks)
{
	struct tn_geometry g = rig_geometry(r);
	struct tn_shape shape;
	struct tn_quota q;

	tn_quota_init(&q);
	assert_int_equal(tn_shape_init(&g, &shape), 0);
	if (disk_blocks != UINT64_MAX)
		q.bytes[TN_TIER_DISK] = disk_blocks * shape.slot_bytes;
	if (host_blocks != UINT64_MAX)
		q.bytes[TN_TIER_HOST] = host_blocks * shape.slot_bytes;
	return q;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* Of every thread that makes an engine; the first is the owner. */
static int make_faulty(const struct tn_engines *e, uint32_t depth, struct tn_io **out)
{
	struct tn_ioengine_opts io = {.kind = TN_IOENGINE_POSIX, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct rig *r = e->devices;
	struct tn_io_faulty_opts fo = {.seed = 1};
	struct tn_io *inner;
	int rc = tn_ioengine_create(&io, &inner);

	if (rc)
		return rc;
	if (r->o.faults)
		fo = *r->o.faults;
	fo.clock = &tn_clock_system;
	rc = tn_io_faulty_create(inner, &fo, out);
	if (!r->io)
		r->io = *out;
	return rc;
}

static int open_owner(struct rig *r, const struct tn_cache_opts *opts, struct tn_cache **out)
{
	int rc;

	if (r->o.open)
		return r->o.open(opts, out);
	if (!r->o.faulty)
		return rig_namespace ? rig_namespace_open(r, opts, out) : tn_cache_open(opts, out);
	rc = tn_cache_create(opts, out);
	if (rc)
		return rc;
	r->io = NULL;
	(*out)->engines.devices = r;
	(*out)->engines.make = make_faulty;
	return tn_cache_start(*out);
}

/* Beside the directory, which some tests want to be empty. */
static const char *socket_path(const struct rig *r, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s.socket", r->dir);
	return path;
}

struct tn_cache *rig_attach(const struct rig *r)
{
	char path[sizeof(r->dir) + 16];
	struct tn_cache *cache;
	const struct tn_attach_opts o = {.size = sizeof(o), .deadline_ns = tn_test_deadline()};
	int rc = tn_cache_attach(socket_path(r, path, sizeof(path)), &o, &cache);

	if (rc)
		rig_fail(r, "attach: %d: %s", rc, tn_error_last()->text);
	return cache;
}

static int open_real(struct rig *r, const struct tn_cache_opts *opts)
{
	char path[sizeof(r->dir) + 16];
	int rc;

	if (!r->o.attached)
		return open_owner(r, opts, &r->cache);
	rc = open_owner(r, opts, &r->owner);
	if (rc) {
		r->owner = NULL;
		return rc;
	}
	rc = tn_cache_serve(r->owner, socket_path(r, path, sizeof(path)), NULL);
	if (rc)
		rig_fail(r, "serve: %d: %s", rc, tn_error_last()->text);
	r->cache = rig_attach(r);
	return 0;
}

struct tn_cache *rig_core(const struct rig *r)
{
	return r->owner ? r->owner : r->cache;
}

struct tn_session *rig_session(const struct rig *r)
{
	struct tn_cache *core = rig_core(r);

	return r->owner ? tn_container_of(core->sessions.prev, struct tn_session, link) : core->own;
}

struct tn_space *rig_core_space(const struct rig_space *s)
{
	return rig_core(s->rig)->spaces[s->space->index];
}

int rig_open(struct rig *r)
{
	static const char *const tenants[RIG_SPACES] = {"anna", "bert"};
	struct tn_cache_opts opts = r->o.cache;
	int rc;

	if (!opts.log) {
		opts.log = on_log;
		opts.log_arg = r;
	}
	rc = r->simulated ? rig_sim_open(r, &opts) : open_real(r, &opts);
	if (rc) {
		r->cache = NULL;
		return rc;
	}
	for (uint32_t i = 0; i < r->o.spaces; i++) {
		struct tn_quota quota = rig_quota(r, r->o.quota_blocks[i], UINT64_MAX);
		struct rig_space_opts so = {.tenant = r->simulated ? tenants[i] : NULL, .quota = r->o.quota_blocks[i] ? &quota : NULL};

		rc = rig_space_open(r, &so, &r->s[i]);
		if (rc)
			rig_fail(r, "space %u: %d: %s", i, rc, tn_error_last()->text);
	}
	return 0;
}

void rig_must_open(struct rig *r)
{
	int rc = rig_open(r);

	if (rc)
		rig_fail(r, "open: %d: %s", rc, tn_error_last()->text);
}

struct rig *rig_start(const struct rig_opts *o)
{
	struct rig *r = rig_simulated(o);

	rig_must_open(r);
	rig_run(r, 5 * RIG_SECOND);
	return r;
}

int rig_close(struct rig *r)
{
	struct tn_cache *cache = r->cache;
	int rc;

	for (uint32_t i = 0; i < r->o.spaces; i++)
		if (r->s[i].space)
			rig_space_close(&r->s[i]);
	if (r->simulated)
		return rig_sim_close(r);
	r->cache = NULL;
	if (r->owner) {
		assert_int_equal(tn_cache_close(cache), 0);
		cache = r->owner;
		r->owner = NULL;
	}
	rc = tn_cache_close(cache);
	rig_namespace_leave(r);
	return rc;
}

void rig_reopen(struct rig *r)
{
	int rc = rig_close(r);

	if (rc)
		rig_fail(r, "close: %d: %s", rc, tn_error_last()->text);
	rig_must_open(r);
}

void rig_set_up(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim)
{
	rig_init(r, disk_bytes, host_bytes, head_dim);
	rig_must_open(r);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void rig_tear_down(struct rig *r)
{
	if (r->simulated && r->o.faulty)
		rig_calm(r);
	if (r->cache) {
		int rc = rig_close(r);

		if (rc)
			rig_fail(r, "close: %d: %s", rc, tn_error_last()->text);
	}
	if (!r->simulated) {
		char path[sizeof(r->dir) + 16];

		unlink(socket_path(r, path, sizeof(path))); /* of an owner that was killed */
		rig_namespace_remove(r);
		assert_int_equal(nftw(r->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
		return;
	}
	tn_io_destroy(r->io);
	tn_far_destroy(r->far);
	free(r);
}

/* ---- faults --------------------------------------------------------------------------------------------------------- */

struct faults {
	struct tn_io *io;
	const struct tn_fault *faults;
	uint32_t n;
	bool release;
};

static int set_faults(struct tn_cache *cache, void *arg)
{
	struct faults *f = arg;
	int rc = tn_io_faulty_set(f->io, f->faults, f->n);

	if (f->release)
		tn_io_faulty_release(f->io);
	return rc;
}

static void change_faults(struct rig *r, struct faults f)
{
	f.io = r->io;
	assert_true(r->o.faulty);
	assert_int_equal(r->simulated ? set_faults(r->cache, &f) : tn_owner_call(rig_core(r), set_faults, &f), 0);
}

void rig_fault(struct rig *r, const struct tn_fault *faults, uint32_t n)
{
	change_faults(r, (struct faults){.faults = faults, .n = n});
}

void rig_calm(struct rig *r)
{
	change_faults(r, (struct faults){.release = true});
}

/* ---- statistics ------------------------------------------------------------------------------------------------------ */

struct tn_stats rig_stats(struct rig *r)
{
	struct tn_stats s = {0};

	assert_int_equal(tn_stats_take(r->cache, &s), 0);
	return s;
}

struct tn_device_stats rig_device(struct rig *r, uint32_t index)
{
	struct tn_device_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_device_stats(r->cache, index, &s), 0);
	return s;
}

int rig_flush(struct rig *r)
{
	struct tn_flush_waiter *w;
	int rc = 0;

	if (!r->simulated)
		return tn_test_ended(tn_flush(r->cache, rig_deadline(r)));
	w = tn_flush_begin(&r->cache->flushes);
	rig_until(r, (rc = tn_flush_poll(w)) != -EAGAIN);
	return rc;
}

/* ---- time ------------------------------------------------------------------------------------------------------------- */

uint64_t rig_now(const struct rig *r)
{
	return r->simulated ? tn_now_ns(tn_simdisk_clock(r->disk)) : tn_test_now();
}

uint64_t rig_deadline(const struct rig *r)
{
	return rig_now(r) + 60 * RIG_SECOND;
}

void rig_turn(struct rig *r, uint64_t max_ns)
{
	if (r->simulated)
		rig_sim_turn(r, max_ns);
	else
		usleep((useconds_t)(max_ns < RIG_MS ? max_ns / RIG_US : 1000));
}

void rig_run(struct rig *r, uint64_t ns)
{
	uint64_t end = rig_now(r) + ns;

	while (rig_now(r) < end)
		rig_turn(r, end - rig_now(r));
}

void rig_wait_on(struct rig *r, uint64_t end_ns, const char *condition)
{
	if (rig_now(r) > end_ns)
		rig_fail(r, "HANG: after a minute it is still not true that %s", condition);
	rig_turn(r, RIG_MS);
}

void rig_fail(const struct rig *r, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	print_error("TN_SEED=%llu: %s\n", (unsigned long long)(r->simulated ? r->o.seed : tn_test_seed()), text);
	fail();
	abort(); /* fail() does not return */
}

/* ---- keys, pages and bytes ---------------------------------------------------------------------------------------------- */

struct tn_key rig_key(uint64_t id)
{
	return (struct tn_key){{id * 0x9e3779b97f4a7c15u + 1, id}};
}

void rig_keys(uint64_t first, uint32_t n, struct tn_key *keys)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = rig_key(first + i);
}

void rig_pages(const struct rig_space *s, uint32_t first_page, uint32_t n, uint32_t *pages)
{
	for (uint32_t i = 0; i < n * s->g.pages_per_block; i++)
		pages[i] = first_page + i;
}

unsigned char *rig_plane(const struct rig_space *s, uint32_t layer, uint32_t plane, uint32_t page, uint32_t *bytes)
{
	*bytes = tn_geometry_page_bytes(&s->g, plane);
	return (unsigned char *)s->bases[layer] + ((size_t)plane * s->npages + page) * *bytes;
}

static uint64_t word_of(const struct rig_space *s, uint64_t id, uint32_t layer, uint32_t plane, uint32_t page_in_block, uint32_t i)
{
	uint64_t words[2] = {id ^ s->salt, (uint64_t)layer << 32 | plane << 16 | page_in_block};

	return tn_hash64(words, sizeof(words)) + i * 0x9e3779b97f4a7c15u;
}

void rig_fill(const struct rig_space *s, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page)
{
	for (uint32_t p = 0; p < s->g.nplanes; p++) {
		uint64_t first = word_of(s, id, layer, p, page_in_block, 0), step = word_of(s, id, layer, p, page_in_block, 1) - first;
		uint32_t bytes;
		unsigned char *at = rig_plane(s, layer, p, page, &bytes);

		for (uint32_t i = 0; i < bytes; i += 8, first += step)
			memcpy(at + i, &first, 8);
	}
}

bool rig_holds(const struct rig_space *s, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page)
{
	for (uint32_t p = 0; p < s->g.nplanes; p++) {
		uint64_t first = word_of(s, id, layer, p, page_in_block, 0), step = word_of(s, id, layer, p, page_in_block, 1) - first;
		uint32_t bytes;
		const unsigned char *at = rig_plane(s, layer, p, page, &bytes);

		for (uint32_t i = 0; i < bytes; i += 8, first += step)
			if (memcmp(at + i, &first, 8) != 0)
				return false;
	}
	return true;
}

void rig_fill_blocks(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page)
{
	uint32_t each = s->g.pages_per_block;

	for (uint32_t l = 0; l < s->g.layers; l++)
		for (uint32_t i = 0; i < n * each; i++)
			rig_fill(s, first + i / each, l, i % each, first_page + i);
}

void rig_check_blocks(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page)
{
	uint32_t each = s->g.pages_per_block;

	for (uint32_t l = 0; l < s->g.layers; l++)
		for (uint32_t i = 0; i < n * each; i++)
			if (!rig_holds(s, first + i / each, l, i % each, first_page + i))
				rig_fail(s->rig, "WRONG BYTES: block %llu layer %u page %u", (unsigned long long)(first + i / each), l,
					 i % each);
}

void rig_poison(const struct rig_space *s, uint32_t page)
{
	for (uint32_t l = 0; l < s->g.layers; l++)
		for (uint32_t p = 0; p < s->g.nplanes; p++) {
			uint32_t bytes;
			unsigned char *at = rig_plane(s, l, p, page, &bytes);

			memset(at, RIG_POISON, bytes);
		}
}

bool rig_poisoned(const struct rig_space *s, uint32_t page)
{
	for (uint32_t l = 0; l < s->g.layers; l++)
		for (uint32_t p = 0; p < s->g.nplanes; p++) {
			uint32_t bytes;
			const unsigned char *at = rig_plane(s, l, p, page, &bytes);

			for (uint32_t i = 0; i < bytes; i++)
				if (at[i] != RIG_POISON)
					return false;
		}
	return true;
}

/* ---- saves --------------------------------------------------------------------------------------------------------------- */

struct tn_save *rig_save_begin(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page, const struct tn_save_opts *o)
{
	struct tn_key keys[RIG_AT_ONCE];
	uint32_t pages[RIG_AT_ONCE * RIG_BLOCK_PAGES];
	struct tn_save *save;

	assert_true(n <= RIG_AT_ONCE && s->g.pages_per_block <= RIG_BLOCK_PAGES);
	rig_keys(first, n, keys);
	rig_pages(s, first_page, n, pages);
	rig_fill_blocks(s, first, n, first_page);
	assert_int_equal(tn_save_begin(s->space, s->pool, keys, n, pages, o, &save), 0);
	return save;
}

void rig_save_give(struct rig_space *s, struct tn_save *save)
{
	for (uint32_t l = 0; l < s->g.layers; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
}

struct tn_save_result rig_save_end(struct rig_space *s, struct tn_save *save)
{
	struct tn_save_result res = {.size = sizeof(res)};
	int rc = 0;

	if (s->rig->simulated)
		rig_until(s->rig, (rc = tn_save_end(save, 1, &res)) != -ETIMEDOUT);
	else
		rc = tn_test_ended(tn_save_end(save, rig_deadline(s->rig), &res));
	assert_int_equal(rc, 0);
	return res;
}

/* Without a look-up, which would count, where the core is here. */
static bool is_registered(const struct rig_space *s, uint64_t id)
{
	const struct tn_cache *core = rig_core(s->rig);
	struct tn_key key = rig_key(id);

	if (!core->registry)
		return rig_match(s, id, 1) == 1;
	return tn_registry_find_one(core->registry, s->space->index, &key, false) != TN_BLOCK_NONE;
}

struct tn_save_result rig_save(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page)
{
	struct tn_key parent = rig_key(first - 1);
	struct tn_save_opts so;
	struct tn_save *save;

	tn_save_opts_init(&so);
	so.parent = first > 1 && is_registered(s, first - 1) ? &parent : NULL;
	save = rig_save_begin(s, first, n, first_page, &so);
	rig_save_give(s, save);
	return rig_save_end(s, save);
}

/* ---- loads ---------------------------------------------------------------------------------------------------------------- */

struct tn_load *rig_load_begin(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page, const struct tn_load_opts *o)
{
	struct tn_key keys[RIG_AT_ONCE];
	uint32_t pages[RIG_AT_ONCE * RIG_BLOCK_PAGES];
	struct tn_load *load;

	assert_true(n <= RIG_AT_ONCE && s->g.pages_per_block <= RIG_BLOCK_PAGES);
	rig_keys(first, n, keys);
	rig_pages(s, first_page, n, pages);
	assert_int_equal(tn_load_begin(s->space, s->pool, keys, n, pages, o, &load), 0);
	return load;
}

int rig_load_wait(struct rig_space *s, struct tn_load *load, uint32_t layer)
{
	int rc = 0;

	if (s->rig->simulated)
		rig_until(s->rig, (rc = tn_load_poll(load, layer)) != -EAGAIN);
	else
		rc = tn_test_ended(tn_load_wait(load, layer, rig_deadline(s->rig)));
	return rc;
}

void rig_load_end(struct rig_space *s, struct tn_load *load)
{
	int rc = 0;

	if (s->rig->simulated)
		rig_until(s->rig, (rc = tn_load_end(load, 0, NULL)) != -EBUSY);
	else
		rc = tn_load_end(load, rig_deadline(s->rig), NULL);
	if (rc == -EBUSY)
		fail_msg("HANG: the transfers of a load did not end within a minute");
	assert_int_equal(rc, 0);
}

int rig_load(struct rig_space *s, uint64_t first, uint32_t n)
{
	uint32_t first_page = s->npages / 2;
	struct tn_load *load = rig_load_begin(s, first, n, first_page, NULL);
	int good = -1, rc;

	for (uint32_t l = 0; l < s->g.layers; l++) {
		rc = rig_load_wait(s, load, l);
		assert_true(rc >= 0 && (good < 0 || rc <= good));
		good = rc;
	}
	rig_load_end(s, load);
	rig_check_blocks(s, first, (uint32_t)good, first_page);
	return good;
}

/* ---- look-ups --------------------------------------------------------------------------------------------------------------- */

int rig_match(const struct rig_space *s, uint64_t first, uint32_t n)
{
	struct tn_key keys[RIG_AT_ONCE];
	struct tn_match m = {.size = sizeof(m)};

	assert_true(n <= RIG_AT_ONCE);
	rig_keys(first, n, keys);
	return tn_match(s->space, keys, n, NULL, &m, 0);
}

uint32_t rig_count(const struct rig_space *s, uint64_t first, uint32_t n)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++)
		found += rig_match(s, first + i, 1) == 1;
	return found;
}

uint32_t rig_count_host(const struct rig_space *s, uint64_t first, uint32_t n)
{
	struct tn_match m = {.size = sizeof(m)};
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);

		found += tn_match(s->space, &key, 1, NULL, &m, 0) == 1 && m.tier_blocks[TN_TIER_HOST] == 1;
	}
	return found;
}

uint64_t rig_pin(const struct rig_space *s, uint64_t first, uint32_t n)
{
	struct tn_key keys[RIG_AT_ONCE];
	struct tn_match m = {.size = sizeof(m)};

	assert_true(n <= RIG_AT_ONCE);
	rig_keys(first, n, keys);
	assert_int_equal(tn_match(s->space, keys, n, NULL, &m, TN_MATCH_PIN), n);
	return m.pin;
}

void rig_unpin(const struct rig_space *s, uint64_t pin)
{
	assert_int_equal(tn_unpin(s->space, pin), 0);
}
