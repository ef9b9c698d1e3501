/* SPDX-License-Identifier: Apache-2.0 */
#include "simcache.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "block/registry.h"
#include "store/store_internal.h"

#define POISON 0xee

static const char *const dirs[] = {"a", "b"};

/* ---- failures ------------------------------------------------------------------------------------------- */

bool crig_fail(struct crig *r, const char *fmt, ...)
{
	va_list ap;

	if (!r->error[0]) {
		va_start(ap, fmt);
		vsnprintf(r->error, sizeof(r->error), fmt, ap);
		va_end(ap);
	}
	return false;
}

void crig_note(struct crig *r, uint64_t what)
{
	uint64_t words[2] = {r->hash, what};

	r->hash = tn_hash64(words, sizeof(words));
}

static void on_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct crig *r = arg;

	if (getenv("TN_TEST_VERBOSE"))
		printf("# %llu us: log %d %s: %s\n", (unsigned long long)(crig_now(r) / CRIG_US), level, where, text);
}

/* ---- jobs ------------------------------------------------------------------------------------------------ */

static void exec_post(struct tn_exec *exec, struct tn_job *job)
{
	struct crig_exec *e = (struct crig_exec *)exec;

	if (!e->posted)
		e->next_ns = tn_now_ns(e->clock) + e->job_ns;
	job->next = e->posted;
	e->posted = job;
}

/* One worker, to which each job takes the same time. */
static unsigned collect_in_order(struct crig_exec *e)
{
	unsigned n = 0;

	while (e->posted && tn_now_ns(e->clock) >= e->next_ns) {
		struct tn_job **oldest = &e->posted, *job;

		while ((*oldest)->next)
			oldest = &(*oldest)->next;
		job = *oldest;
		*oldest = NULL;
		e->next_ns += e->job_ns;
		job->run(job);
		job->done(job);
		n++;
	}
	return n;
}

static unsigned exec_collect(struct tn_exec *exec)
{
	struct crig_exec *e = (struct crig_exec *)exec;
	struct tn_job **at, *done = NULL;
	unsigned n = 0;

	if (e->job_ns)
		return collect_in_order(e);
	for (at = &e->ran; *at;) {
		struct tn_job *job = *at;

		if (tn_rng_below(&e->rng, 3) == 0) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		job->next = done;
		done = job;
	}
	for (at = &e->posted; *at;) {
		struct tn_job *job = *at;

		if (tn_rng_below(&e->rng, 3) == 0) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		job->run(job);
		job->next = e->ran;
		e->ran = job;
	}
	while (done) {
		struct tn_job *next = done->next;

		done->done(done);
		done = next;
		n++;
	}
	return n;
}

/* ---- up and down ---------------------------------------------------------------------------------------- */

static void make_pools(struct crig *r)
{
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = r->o.npages};
	uint64_t bytes;
	uint32_t count;
	int rc = tn_layout_regions(&r->g, &layout, &count, &bytes);

	assert(rc == 0 && count <= sizeof(r->bases[0]) / sizeof(r->bases[0][0]));
	bytes = (bytes + 4095) / 4096 * 4096;
	for (uint32_t s = 0; s < CRIG_SPACES; s++) {
		r->memory[s] = aligned_alloc(4096, bytes * count);
		assert(r->memory[s]);
		memset(r->memory[s], POISON, bytes * count);
		for (uint32_t i = 0; i < count; i++)
			r->bases[s][i] = r->memory[s] + i * bytes;
	}
}

struct crig *crig_create(const struct crig_opts *opts)
{
	struct crig *r = calloc(1, sizeof(*r));
	struct tn_simdisk_opts so = {.seed = opts->seed, .depth = opts->io_depth + 32, .capacity_bytes = opts->medium_bytes, .read_ns = opts->read_ns,
				     .write_ns = opts->write_ns, .sync_ns = opts->sync_ns};
	int rc;

	assert(r);
	r->o = *opts;
	tn_rng_seed(&r->exec.rng, opts->seed ^ 0xe8ec);
	r->g = (struct tn_geometry){
		.layers = opts->layers, .page_tokens = 16, .pages_per_block = opts->pages_per_block, .nplanes = 2,
		.planes = {{TN_PLANE_K, 1, opts->head_dim, 16}, {TN_PLANE_V, 1, opts->head_dim, 16}}};
	rc = tn_simdisk_create(&so, &r->disk);
	assert(rc == 0);
	r->io = tn_simdisk_io(r->disk);
	r->exec.clock = tn_simdisk_clock(r->disk);
	r->exec.job_ns = opts->job_ns;
	if (opts->wrap)
		r->io = opts->wrap(r->io, tn_simdisk_clock(r->disk), opts->seed);
	make_pools(r);
	return r;
}

void crig_destroy(struct crig *r)
{
	if (!r)
		return;
	if (!r->cache) /* else a failed run: its memory is left behind */
		tn_io_destroy(r->io);
	for (uint32_t s = 0; s < CRIG_SPACES; s++)
		free(r->memory[s]);
	free(r);
}

static bool open_space(struct crig *r, uint32_t s)
{
	static const char *const tenants[CRIG_SPACES] = {"anna", "bert"};
	struct tn_pool_layout layout = {.order = TN_POOL_PLANES_PAGES, .npages = r->o.npages};
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_quota quota;
	struct tn_shape shape;
	int rc;

	tn_identity_init(&id);
	id.tenant = tenants[s];
	id.model = "test";
	tn_shard_init(&shard);
	tn_quota_init(&quota);
	if (r->o.quota_blocks[s] && tn_shape_init(&r->g, &shape) == 0)
		quota.disk_bytes = r->o.quota_blocks[s] * shape.slot_bytes;
	rc = tn_space_open(r->cache, &id, &shard, &r->g, &quota, &r->space[s]);
	if (rc)
		return crig_fail(r, "space: %d: %s", rc, tn_error_last()->text);
	rc = tn_pool_register(r->space[s], &layout, r->bases[s], TN_MEM_HOST, &r->pool[s]);
	return rc ? crig_fail(r, "pool: %d: %s", rc, tn_error_last()->text) : true;
}

bool crig_open(struct crig *r)
{
	struct tn_cache_opts o;
	int rc;

	tn_cache_opts_init(&o);
	o.dirs = dirs;
	o.ndirs = r->o.ndirs;
	o.disk_bytes = r->o.disk_bytes;
	o.disk_blocks = r->o.disk_blocks;
	o.host_bytes = r->o.host_bytes;
	o.write_bytes_per_day = r->o.write_bytes_per_day;
	o.read_only = r->o.read_only;
	if (r->o.offload_lag_ms)
		o.offload_lag_ms = r->o.offload_lag_ms;
	if (r->o.durability_ms)
		o.durability_ms = r->o.durability_ms == CRIG_EACH_SAVE ? 0 : r->o.durability_ms;
	o.max_blocks = 8192;
	o.max_ops = r->o.max_ops;
	o.max_op_blocks = 64;
	o.io_depth = r->o.io_depth;
	o.policy = r->o.policy;
	o.header_cache_bytes = 64u << 10;
	o.seed = r->o.seed | 1;
	o.log = on_log;
	o.log_arg = r;
	rc = tn_cache_create(&o, &r->cache);
	if (rc)
		return crig_fail(r, "create: %d: %s", rc, tn_error_last()->text);
	r->exec.exec.post = exec_post;
	r->exec.exec.collect = exec_collect;
	r->cache->io = r->io;
	r->cache->clock = *tn_simdisk_clock(r->disk);
	r->cache->exec = &r->exec.exec;
	r->cache->segment_bytes = r->o.segment_bytes;
	r->cache->boot[0] = tn_simdisk_boot(r->disk);
	r->cache->entropy[0] = r->o.seed + 1;
	r->cache->entropy[1] = 0x5eed;
	rc = tn_core_open(r->cache);
	if (rc) {
		r->cache = NULL;
		return crig_fail(r, "open: %d: %s", rc, tn_error_last()->text);
	}
	for (uint32_t s = 0; s < CRIG_SPACES; s++)
		if (!open_space(r, s))
			return false;
	return true;
}

bool crig_close(struct crig *r)
{
	int rc;

	for (uint32_t s = 0; s < CRIG_SPACES; s++) {
		rc = tn_pool_unregister(r->pool[s]);
		if (rc)
			return crig_fail(r, "pool of space %u: %d: %s", s, rc, tn_error_last()->text);
		tn_space_close(r->space[s]);
	}
	r->cache->io = NULL; /* the disk outlives the cache */
	rc = tn_core_close(r->cache);
	tn_cache_free(r->cache);
	r->cache = NULL;
	/* A small cache may have no room for all that was admitted; of a roomy one a flush has said so before. */
	if (rc && rc != -ENOSPC && !r->o.wrap && !tn_simdisk_is_off(r->disk))
		return crig_fail(r, "close: %d: %s", rc, tn_error_last()->text);
	return true;
}

void crig_power_off(struct crig *r)
{
	tn_simdisk_power_off_at(r->disk, 1);
	if (r->o.wrap)
		r->o.calm(r->io);
}

bool crig_crashed(struct crig *r, enum tn_simdisk_crash mode, uint64_t seed)
{
	if (!crig_close(r))
		return false;
	tn_simdisk_crash(r->disk, mode, seed);
	return crig_open(r);
}

/* ---- time ------------------------------------------------------------------------------------------------ */

uint64_t crig_now(const struct crig *r)
{
	return tn_now_ns(tn_simdisk_clock(r->disk));
}

void crig_turn(struct crig *r, uint64_t max_ns)
{
	uint64_t due, now, soon, steps = 0;

	r->turns++;
	while (tn_core_step(r->cache, &due)) {
		if (++steps > 100000) {
			crig_fail(r, "the core is busy for ever without anything coming of it");
			return;
		}
	}
	now = crig_now(r);
	/* A worker would wake the owner. */
	if (r->exec.posted && r->exec.job_ns)
		due = due < r->exec.next_ns ? due : r->exec.next_ns;
	else if (r->exec.posted || r->exec.ran)
		due = now + CRIG_US;
	if (due <= now || tn_core_wait(r->cache, due - now < max_ns ? due - now : max_ns))
		return;
	/* The owner thread would sleep until `due`: there must be nothing to do before, if nobody wakes it. */
	soon = crig_now(r) + 10 * CRIG_US;
	if (!r->o.wrap && !r->exec.posted && !r->exec.ran && !tn_save_events_pending(r->cache) && soon < due &&
	    soon < tn_simdisk_next_ns(r->disk) && tn_core_step(r->cache, &due))
		crig_fail(r, "LOST WAKE-UP: there is something to do before the core wants to be called again");
}

void crig_run(struct crig *r, uint64_t ns)
{
	uint64_t end = crig_now(r) + ns;

	while (crig_now(r) < end && !r->error[0])
		crig_turn(r, end - crig_now(r));
}

/* ---- contents --------------------------------------------------------------------------------------------- */

struct tn_key crig_key(uint64_t id)
{
	return (struct tn_key){{id * 0x9e3779b97f4a7c15u + 1, id}};
}

static unsigned char *plane_of(const struct crig *r, uint32_t space, uint32_t layer, uint32_t plane, uint32_t page)
{
	return tn_layout_address(&r->pool[space]->layout, layer, plane, page);
}

static uint64_t content(uint32_t space, uint64_t id, uint32_t layer, uint32_t plane, uint32_t page_in_block)
{
	uint64_t words[2] = {id << 1 | space, (uint64_t)layer << 32 | plane << 16 | page_in_block};

	return tn_hash64(words, sizeof(words)) & ~0xffffull;
}

void crig_fill(struct crig *r, uint32_t space, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page)
{
	for (uint32_t p = 0; p < r->g.nplanes; p++) {
		uint64_t *at = (uint64_t *)(void *)plane_of(r, space, layer, p, page);
		uint64_t base = content(space, id, layer, p, page_in_block);

		for (uint32_t i = 0; i < tn_geometry_page_bytes(&r->g, p) / 8; i++)
			at[i] = base + i;
	}
}

bool crig_check(struct crig *r, uint32_t space, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page)
{
	for (uint32_t p = 0; p < r->g.nplanes; p++) {
		const uint64_t *at = (const uint64_t *)(const void *)plane_of(r, space, layer, p, page);
		uint64_t base = content(space, id, layer, p, page_in_block);

		for (uint32_t i = 0; i < tn_geometry_page_bytes(&r->g, p) / 8; i++)
			if (at[i] != base + i)
				return crig_fail(r, "WRONG BYTES: space %u block %#llx layer %u plane %u page %u, word %u: "
						    "%#llx instead of %#llx", space, (unsigned long long)id, layer, p,
						 page_in_block, i, (unsigned long long)at[i],
						 (unsigned long long)(base + i));
	}
	return true;
}

void crig_poison(struct crig *r, uint32_t space, uint32_t page)
{
	for (uint32_t l = 0; l < r->g.layers; l++)
		for (uint32_t p = 0; p < r->g.nplanes; p++)
			memset(plane_of(r, space, l, p, page), POISON, tn_geometry_page_bytes(&r->g, p));
}

bool crig_poisoned(const struct crig *r, uint32_t space, uint32_t page)
{
	for (uint32_t l = 0; l < r->g.layers; l++)
		for (uint32_t p = 0; p < r->g.nplanes; p++) {
			const unsigned char *at = plane_of(r, space, l, p, page);

			for (uint32_t i = 0; i < tn_geometry_page_bytes(&r->g, p); i++)
				if (at[i] != POISON)
					return false;
		}
	return true;
}

/* ---- nothing is lost -------------------------------------------------------------------------------------- */

static uint32_t stack_length(uint64_t head, uint32_t (*next)(const struct crig *r, uint32_t i), const struct crig *r)
{
	uint32_t i = (uint32_t)head, n = 0;

	for (; i; i = next(r, i - 1))
		n++;
	return n;
}

static uint32_t next_op(const struct crig *r, uint32_t i)
{
	return r->cache->ops[i].op.next_free;
}

static uint32_t next_lease(const struct crig *r, uint32_t i)
{
	return r->cache->leases[i].next;
}

static bool check_records(struct crig *r)
{
	struct tn_cache *c = r->cache;
	uint64_t disk = 0, host = 0, space_disk[CRIG_SPACES] = {0};
	uint32_t resets = 0;

	for (tn_block b = 0; b < c->registry->unused; b++)
		if (tn_block_state(c->registry, b) == TN_BLOCK_COMPLETE)
			resets++;
	if (resets)
		return crig_fail(r, "%u records of blocks that were never registered are left", resets);
	for (tn_block b = tn_registry_next(c->registry, TN_BLOCK_NONE); b != TN_BLOCK_NONE;
	     b = tn_registry_next(c->registry, b)) {
		enum tn_residency d = tn_block_residency(c->registry, b, TN_TIER_DISK);
		enum tn_residency h = tn_block_residency(c->registry, b, TN_TIER_HOST);

		if (tn_block_refs(c->registry, b))
			return crig_fail(r, "block %u: %u references are left", b, tn_block_refs(c->registry, b));
		if ((d != TN_PRESENT && d != TN_ABSENT) || (h != TN_PRESENT && h != TN_ABSENT) || (!d && !h))
			return crig_fail(r, "block %u: residency on disk %d, in host memory %d", b, d, h);
		if (d && tn_store_cookie(c->store, tn_block_slot(c->registry, b, TN_TIER_DISK)) != b)
			return crig_fail(r, "block %u: slot %u is not its", b, tn_block_slot(c->registry, b, TN_TIER_DISK));
		if (h && tn_host_block(c->host, tn_block_slot(c->registry, b, TN_TIER_HOST)) != b)
			return crig_fail(r, "block %u: host slot is not its", b);
		disk += d == TN_PRESENT;
		host += h == TN_PRESENT;
		for (uint32_t s = 0; s < CRIG_SPACES && d; s++)
			space_disk[s] += tn_block_space(c->registry, b) == r->space[s]->index;
	}
	if (disk != c->c.disk_blocks || host != c->c.host_blocks || disk != c->disk_entries || disk != c->store->committed)
		return crig_fail(r, "blocks on disk: %llu, counted %llu, policy %llu, store %llu; host: %llu, counted %llu",
				 (unsigned long long)disk, (unsigned long long)c->c.disk_blocks,
				 (unsigned long long)c->disk_entries, (unsigned long long)c->store->committed,
				 (unsigned long long)host, (unsigned long long)c->c.host_blocks);
	for (uint32_t s = 0; s < CRIG_SPACES; s++)
		if (space_disk[s] != c->space_disk_blocks[r->space[s]->index])
			return crig_fail(r, "space %u: %llu blocks on disk, counted %llu", s,
					 (unsigned long long)space_disk[s],
					 (unsigned long long)c->space_disk_blocks[r->space[s]->index]);
	return true;
}

bool crig_check_quiet(struct crig *r)
{
	struct tn_cache *c = r->cache;
	uint32_t ops = stack_length(c->free_ops, next_op, r), leases = stack_length(c->free_leases, next_lease, r);

	if (!tn_core_idle(c) || c->doomed_count)
		return crig_fail(r, "not idle: loads %d saves %d flushes %d, %u to be offloaded, %u doomed",
				 !tn_list_empty(&c->loads), !tn_list_empty(&c->saves), !tn_list_empty(&c->flushes),
				 c->offload_count, c->doomed_count);
	if (ops != c->o.max_ops || leases != c->nleases)
		return crig_fail(r, "%u of %u operations and %u of %u leases are free", ops, c->o.max_ops, leases,
				 c->nleases);
	if (tn_mover_free(c->mover) != 2 * c->o.io_depth)
		return crig_fail(r, "%u of %u moves are free", tn_mover_free(c->mover), 2 * c->o.io_depth);
	if (c->store->reserved)
		return crig_fail(r, "%llu slots stay reserved", (unsigned long long)c->store->reserved);
	if (c->host && (tn_host_used(c->host) != c->c.host_blocks || c->host_dirty_slots))
		return crig_fail(r, "%u host slots used for %llu blocks, %u dirty", tn_host_used(c->host),
				 (unsigned long long)c->c.host_blocks, c->host_dirty_slots);
	for (uint32_t s = 0; s < CRIG_SPACES; s++)
		if (c->space_disk_coming[r->space[s]->index] || c->space_host_coming[r->space[s]->index])
			return crig_fail(r, "space %u counts blocks that are coming", s);
	for (uint32_t s = 0; s < CRIG_SPACES; s++)
		if (r->space[s]->ops)
			return crig_fail(r, "space %u counts %u operations", s, r->space[s]->ops);
	return check_records(r);
}
