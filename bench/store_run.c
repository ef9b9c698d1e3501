/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's side of the benchmark, in a child process, through the public API.
 *
 * The pool has one region per layer, as engines have it, so that every object is a transfer of its own of
 * exactly object_bytes. Enough saves and loads are under way that the queue never runs dry. The bytes are
 * made once, before the clock starts; afterwards only the library touches them, as with fio.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <tenuto/cache.h>

#include "../cli/content.h"
#include "../cli/pool.h"

/*
 * Loads or saves under way, and bytes of each, as of a prompt of some thousand tokens: as many as fio has under way where it is
 * fastest (32 requests of 2 MiB), but an eighth of the total at most; or one queue depth of objects if that is more.
 */
#define FLIGHTS 2u
#define FLIGHT_BYTES (32ull << 20)
#define PATIENCE_NS 120000000000ull
#define SPARE(n) ((n) / 8 + 8) /* slots that wait for their remove record */

struct side {
	const struct bench_job *job;
	struct bench_run *run;
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	char *memory;
	uint64_t region_bytes;
	uint32_t blocks; /* blocks of the job */
	uint32_t batch;	 /* blocks per flight */
	struct tn_key *keys;
};

static int failed(struct side *s, const char *what, int rc)
{
	const struct tn_error *e = tn_error_last();

	s->run->rc = cli_exit_of(rc) ? (int)cli_exit_of(rc) : CLI_PROBLEM;
	snprintf(s->run->why, sizeof(s->run->why), "store: %s: %.200s", what,
		 e->code == rc ? e->text : strerror(rc < 0 ? -rc : EIO));
	return -1;
}

static int open_cache(struct side *s, const struct tn_geometry *g)
{
	char dir[4096];
	const char *dirs = dir;
	struct tn_cache_opts o;
	int rc;

	snprintf(dir, sizeof(dir), "%s/store", s->job->dir);
	if (mkdir(dir, 0700) && errno != EEXIST)
		return failed(s, "mkdir", -errno);
	tn_cache_opts_init(&o);
	o.dirs = &dirs;
	o.ndirs = 1;
	o.disk_blocks = s->blocks + SPARE(s->blocks);
	o.geometry = g;
	o.io_depth = s->job->depth;
	o.io_engine = s->job->io_engine;
	o.policy = "lru"; /* admits everything */
	o.verify = s->job->verify;
	o.workers = s->job->workers;
	rc = tn_cache_open(&o, &s->cache);
	return rc ? failed(s, "open", rc) : 0;
}

static uint32_t batch_of(const struct bench_job *job)
{
	uint64_t block = (uint64_t)job->objects * job->object_bytes, depth = (uint64_t)job->depth * job->object_bytes;
	uint64_t bytes = job->total_bytes / 8 < FLIGHT_BYTES ? job->total_bytes / 8 : FLIGHT_BYTES;

	bytes = bytes > depth ? bytes : depth;
	return (uint32_t)((bytes + block - 1) / block);
}

static int open_side(struct side *s)
{
	struct tn_geometry g;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096};
	uint32_t regions;
	int rc = tn_geometry_raw(s->job->objects, s->job->object_bytes, &g);

	s->blocks = (uint32_t)(s->job->total_bytes / (s->job->objects * s->job->object_bytes));
	s->batch = batch_of(s->job);
	shape.npages = (uint64_t)s->batch * FLIGHTS;
	if (!rc)
		rc = tn_layout_regions(&g, &shape, &regions, &s->region_bytes);
	if (rc)
		return failed(s, "geometry", rc);
	if (open_cache(s, &g))
		return -1;
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "bench";
	rc = tn_space_open(s->cache, &id, &shard, &g, NULL, &s->space);
	if (rc)
		return failed(s, "space", rc);
	/* Hugepages on both sides (fio_run.c): the more scattered the memory, the more segments has a disk request. */
	s->memory = mmap(NULL, s->region_bytes * s->job->objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->memory == MAP_FAILED)
		return failed(s, "memory", -ENOMEM);
	madvise(s->memory, s->region_bytes * s->job->objects, MADV_HUGEPAGE);
	for (uint32_t i = 0; i < s->job->objects; i++)
		content_fill(s->memory + i * s->region_bytes, s->region_bytes, s->job->seed, i, 0);
	rc = cli_pool_open(s->cache, &g, &shape, s->memory, &s->pool);
	return rc ? failed(s, "pool", rc) : 0;
}

/* Keys of n blocks, a chain as of one long prompt; the same seed names the same blocks. */
static int make_keys(struct side *s, uint64_t seed, uint32_t n)
{
	uint64_t *hash = calloc(n, 16);
	long rc = -ENOMEM;

	s->keys = calloc(n, sizeof(*s->keys));
	for (uint32_t i = 0; hash && i < n; i++) {
		hash[2 * i] = seed;
		hash[2 * i + 1] = i;
	}
	if (hash && s->keys)
		rc = tn_keys_from_hashes(s->space, hash, 16, n, s->keys, n);
	free(hash);
	return rc == (long)n ? 0 : failed(s, "keys", (int)rc);
}

static void close_side(struct side *s)
{
	int rc;

	free(s->keys);
	/* After a failure, loads or saves may still be under way; this process ends anyway. */
	if (cli_pool_close(&s->pool))
		return;
	tn_space_close(s->space);
	rc = s->cache ? tn_cache_close(s->cache) : 0;
	if (!s->run->rc && rc)
		failed(s, "close", rc);
}

static uint32_t pages_of(const struct side *s, uint32_t flight, uint32_t *pages)
{
	for (uint32_t i = 0; i < s->batch; i++)
		pages[i] = flight * s->batch + i;
	return s->batch;
}

/* ---- writing ----------------------------------------------------------------------------------- */

static int end_save(struct side *s, struct tn_save *save, uint32_t *stored)
{
	struct tn_save_result r = {.size = sizeof(r)};
	int rc = tn_save_end(save, cli_now_ns() + PATIENCE_NS, &r);

	if (rc)
		return failed(s, "save", rc);
	if (r.failed || r.rejected)
		return failed(s, "save", r.error ? r.error : -ENOSPC);
	*stored += r.stored;
	return 0;
}

static int begin_save(struct side *s, const struct tn_key *keys, uint32_t n, const struct tn_key *parent,
		      const uint32_t *pages, struct tn_save **save)
{
	struct tn_save_opts o;
	int rc;

	tn_save_opts_init(&o);
	o.parent = parent;
	rc = tn_save_begin(s->space, s->pool.pool, keys, n, pages, &o, save);
	for (uint32_t layer = 0; !rc && layer < s->job->objects; layer++)
		rc = tn_save_layer(*save, layer, NULL, 0);
	if (!rc)
		rc = tn_save_commit(*save);
	return rc ? failed(s, "save", rc) : 0;
}

/* Saves keys[0..n), FLIGHTS batches at a time, and flushes. one_prompt: each batch goes on with the one before it. */
static int save_all(struct side *s, uint32_t n, bool one_prompt)
{
	struct tn_save *save[FLIGHTS] = {NULL};
	uint32_t *pages = calloc(s->batch, sizeof(*pages)), stored = 0, k = 0;
	int rc = pages ? 0 : failed(s, "memory", -ENOMEM);

	for (uint32_t at = 0; !rc && at < n; at += s->batch, k = (k + 1) % FLIGHTS) {
		uint32_t count = n - at < s->batch ? n - at : s->batch;

		if (save[k])
			rc = end_save(s, save[k], &stored);
		save[k] = NULL;
		if (rc)
			break;
		pages_of(s, k, pages);
		rc = begin_save(s, s->keys + at, count, at && one_prompt ? &s->keys[at - 1] : NULL, pages, &save[k]);
	}
	for (uint32_t i = 0; !rc && i < FLIGHTS; i++, k = (k + 1) % FLIGHTS)
		if (save[k])
			rc = end_save(s, save[k], &stored);
	free(pages);
	if (rc)
		return rc;
	rc = tn_flush(s->cache, cli_now_ns() + PATIENCE_NS);
	if (rc)
		return failed(s, "flush", rc);
	return stored == n ? 0 : failed(s, "save stored too few blocks", -ENOSPC);
}

/* ---- reading ----------------------------------------------------------------------------------- */

static int end_load(struct side *s, struct tn_load *load, uint32_t n)
{
	int rc = tn_load_wait(load, s->job->objects - 1, cli_now_ns() + PATIENCE_NS);
	int good = rc;

	for (uint32_t layer = 0; good >= 0 && layer + 1 < s->job->objects; layer++) {
		rc = tn_load_wait(load, layer, cli_now_ns() + PATIENCE_NS);
		good = rc < good ? rc : good;
	}
	rc = tn_load_end(load, cli_now_ns() + PATIENCE_NS, NULL);
	if (rc)
		return failed(s, "load", rc);
	return good == (int)n ? 0 : failed(s, "load: a saved block is missing", good < 0 ? good : -ENODATA);
}

static int load_all(struct side *s, uint32_t n)
{
	struct tn_load *load[FLIGHTS] = {NULL};
	uint32_t count[FLIGHTS] = {0}, k = 0;
	uint32_t *pages = calloc(s->batch, sizeof(*pages));
	int rc = pages ? 0 : failed(s, "memory", -ENOMEM);

	for (uint32_t at = 0; !rc && at < n; at += s->batch, k = (k + 1) % FLIGHTS) {
		if (load[k])
			rc = end_load(s, load[k], count[k]);
		load[k] = NULL;
		if (rc)
			break;
		count[k] = n - at < s->batch ? n - at : s->batch;
		pages_of(s, k, pages);
		rc = tn_load_begin(s->space, s->pool.pool, s->keys + at, count[k], pages, NULL, &load[k]);
		if (rc)
			rc = failed(s, "load", rc);
	}
	for (uint32_t i = 0; !rc && i < FLIGHTS; i++, k = (k + 1) % FLIGHTS)
		if (load[k])
			rc = end_load(s, load[k], count[k]);
	free(pages);
	return rc;
}

/* ---- the runs ---------------------------------------------------------------------------------- */

void store_fill(const struct bench_job *job, struct bench_run *run)
{
	struct side s = {.job = job, .run = run};
	uint32_t n;

	run->rc = 0;
	if (!open_side(&s)) {
		n = s.blocks + 2 * SPARE(s.blocks); /* more than fit, so that every slot is written: too long for one prompt */
		if (!make_keys(&s, job->seed, n))
			save_all(&s, n, false);
	}
	close_side(&s);
}

void store_forget(const struct bench_job *job, struct bench_run *run)
{
	struct side s = {.job = job, .run = run};
	int rc;

	run->rc = 0;
	if (!open_side(&s)) {
		rc = tn_space_drop(s.space, cli_now_ns() + PATIENCE_NS);
		if (rc)
			failed(&s, "drop", rc);
	}
	close_side(&s);
}

void store_transfer(const struct bench_job *job, struct bench_run *run)
{
	struct side s = {.job = job, .run = run};
	uint64_t start;
	double cpu;
	int rc;

	run->rc = 0;
	if (!open_side(&s) && !make_keys(&s, job->seed, s.blocks)) {
		cpu = cli_cpu_seconds();
		start = cli_now_ns();
		rc = job->op == BENCH_READ ? load_all(&s, s.blocks) : save_all(&s, s.blocks, true);
		run->seconds = (double)(cli_now_ns() - start) * 1e-9;
		run->phase_cpu = cli_cpu_seconds() - cpu;
		run->bytes = rc ? 0 : (uint64_t)s.blocks * job->objects * job->object_bytes;
	}
	close_side(&s);
}
