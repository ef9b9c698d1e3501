/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child process's cache: the store of this run, the engine's pool with its pages in random order, the prompt's keys.
 *
 * The content of every object follows from its block and layer (content.h), so loaded bytes can be compared afterwards.
 */
#include "pipeline.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../cli/content.h"
#include "lab/paced_cache.h"

#define PROMPT_CHAIN 1u
#define WARM_CHAIN 2u
#define FILL_CHAIN 3u
#define SCRUB_STEP 4096u
#define SETTLE_NS 60000000u	       /* without a write for so long, the store has settled */
#define SETTLE_MOST_NS 20000000000ull

int rig_failed(struct pipeline_rig *rig, const char *what, int rc)
{
	const struct tn_error *e = tn_error_last();

	if (rig->run->rc > 0)
		return -1; /* the first failure is the one to report */
	rig->run->rc = cli_exit_of(rc) ? (int)cli_exit_of(rc) : CLI_PROBLEM;
	snprintf(rig->run->why, sizeof(rig->run->why), "%s: %.200s", what,
		 e->code == rc ? e->text : strerror(rc < 0 ? -rc : EIO));
	return -1;
}

int rig_keys(struct pipeline_rig *rig, uint64_t chain, uint32_t n, struct tn_key *keys)
{
	uint32_t pages = rig->set->geometry.pages_per_block;
	uint64_t (*hash)[2] = calloc((size_t)n * pages, sizeof(*hash));
	long rc = -ENOMEM;

	for (uint32_t i = 0; hash && i < n * pages; i++) {
		hash[i][0] = rig->set->seed ^ chain;
		hash[i][1] = i;
	}
	if (hash)
		rc = tn_keys_from_hashes(rig->space, hash, sizeof(*hash), (size_t)n * pages, keys, n);
	free(hash);
	return rc == (long)n ? 0 : rig_failed(rig, "keys", rc < 0 ? (int)rc : -EINVAL);
}

/* One region per layer, as in engines. */
static struct tn_pool_shape pool_shape(const struct tn_geometry *g, uint32_t blocks)
{
	return (struct tn_pool_shape){.order = TN_POOL_PLANES_PAGES, .alignment = 4096,
				      .npages = (uint64_t)blocks * g->pages_per_block};
}

int rig_pool_bytes(const struct tn_geometry *g, uint32_t blocks, uint64_t *bytes)
{
	const struct tn_pool_shape shape = pool_shape(g, blocks);

	*bytes = cli_pool_bytes(g, &shape);
	return *bytes ? 0 : tn_error_last()->code;
}

/*
 * Memory of a pool. Shared memory, which has no hugepages, is enough for a described drive. A real disk's speed depends on
 * the number of pieces of the memory. Every page is marked, so that bytes of an earlier run cannot pass for those of this one.
 */
static void *pool_memory(void *shared, uint64_t bytes)
{
	void *p = shared;

	if (!p) {
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		madvise(p, bytes, MADV_HUGEPAGE);
	}
	for (uint64_t at = 0; at < bytes; at += SCRUB_STEP)
		memset((char *)p + at, 0xA5, 16);
	return p;
}

static int open_pool(struct pipeline_rig *rig, void *memory, uint32_t blocks, struct cli_pool *pool)
{
	const struct tn_pool_shape shape = pool_shape(&rig->set->geometry, blocks);

	return cli_pool_open(rig->cache, &rig->set->geometry, &shape, memory, pool);
}

/* Prints what the library reports beyond return values: a device that became slow, a slot that was quarantined. */
static void print_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	cli_error(CLI_PROBLEM, "%s: %s", level == TN_LOG_ERROR ? "error" : "warning", text);
}

static int open_cache(struct pipeline_rig *rig, const char *scheduler)
{
	const struct pipeline_set *set = rig->set;
	const struct tn_paced_drive drive = {rig->paced ? set->device_model : NULL, set->stretch};
	struct tn_cache_opts o;

	tn_cache_opts_init(&o);
	o.dirs = &set->dir;
	o.ndirs = 1;
	o.disk_blocks = set->blocks + PIPELINE_WARM_BLOCKS + set->write_blocks;
	o.geometry = &set->geometry;
	o.io_engine = set->io_engine;
	o.policy = "lru"; /* admits everything */
	o.scheduler = scheduler;
	o.explain = set->explain ? explain_decision : NULL;
	o.explain_arg = set->explain;
	o.log = print_log;
	o.log_level = TN_LOG_WARN;
	return tn_paced_cache_open(&o, &drive, &rig->cache);
}

int rig_pin(struct pipeline_rig *rig)
{
	struct tn_match m = {.size = sizeof(m)};
	uint32_t n = PIPELINE_WARM_BLOCKS + rig->set->blocks;
	int rc = tn_match(rig->space, rig->keys, n, NULL, &m, TN_MATCH_PIN);

	if (rc < 0)
		return rig_failed(rig, "match", rc);
	rig->pin = m.pin;
	return rc == (int)n ? 0 : rig_failed(rig, "the prompt is not in the store any more", -ENODATA);
}

static int open_spaces(struct pipeline_rig *rig)
{
	const struct pipeline_set *set = rig->set;
	struct tn_identity id;
	struct tn_shard shard;
	int rc;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = set->model_name;
	id.hash_algorithm = "bench";
	rc = tn_space_open(rig->cache, &id, &shard, &set->geometry, NULL, &rig->space);
	if (rc)
		return rig_failed(rig, "space", rc);
	rig->memory = pool_memory(set->read_memory, set->read_bytes);
	rig->write_memory = pool_memory(set->write_memory, set->write_bytes);
	if (!rig->memory || !rig->write_memory)
		return rig_failed(rig, "memory", -ENOMEM);
	rc = open_pool(rig, rig->memory, set->pool_blocks, &rig->pool);
	if (!rc)
		rc = open_pool(rig, rig->write_memory, set->saves * set->save_blocks, &rig->write_pool);
	return rc ? rig_failed(rig, "pool", rc) : 0;
}

int rig_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, bool paced,
	     struct pipeline_run *run)
{
	int rc;

	*rig = (struct pipeline_rig){.set = set, .run = run, .paced = paced};
	run->rc = 0;
	rig->keys = calloc(PIPELINE_WARM_BLOCKS + set->blocks, sizeof(*rig->keys));
	if (!rig->keys)
		return rig_failed(rig, "memory", -ENOMEM);
	rc = open_cache(rig, scheduler);
	if (rc)
		return rig_failed(rig, "open", rc);
	if (open_spaces(rig) || rig_keys(rig, WARM_CHAIN, PIPELINE_WARM_BLOCKS, rig->keys))
		return -1;
	return rig_keys(rig, PROMPT_CHAIN, set->blocks, rig->keys + PIPELINE_WARM_BLOCKS);
}

int rig_slack(struct pipeline_rig *rig, const struct tn_slack *table)
{
	int rc = table ? tn_space_slack(rig->space, table) : 0;

	return rc ? rig_failed(rig, "slack table", rc) : 0;
}

static uint64_t bytes_written(const struct pipeline_rig *rig)
{
	struct tn_device_stats d = {.size = sizeof(d)};
	uint64_t bytes = 0;

	for (uint32_t i = 0; tn_cache_device_stats(rig->cache, i, &d) == 0; i++)
		bytes += d.bytes_written + d.meta_bytes_written;
	return bytes;
}

void rig_settle(const struct pipeline_rig *rig)
{
	uint64_t deadline = cli_now_ns() + SETTLE_MOST_NS, since = cli_now_ns(), last = bytes_written(rig);

	while (cli_now_ns() < deadline && cli_now_ns() - since < SETTLE_NS) {
		uint64_t now;

		poll(NULL, 0, 5);
		now = bytes_written(rig);
		if (now != last)
			since = cli_now_ns();
		last = now;
	}
}

void rig_close(struct pipeline_rig *rig)
{
	int rc;

	free(rig->keys);
	if (rig->pin)
		tn_unpin(rig->space, rig->pin);
	/* After a failure, loads or saves may still be under way; this process ends anyway. */
	if (cli_pool_close(&rig->pool) || cli_pool_close(&rig->write_pool))
		return;
	tn_space_close(rig->space);
	rc = rig->cache ? tn_cache_close(rig->cache) : 0;
	if (rc)
		rig_failed(rig, "close", rc);
	if (explain_close(rig->set->explain)) /* this process's part; the parent's follows it in the file */
		rig_failed(rig, "--explain", -EIO);
}

int rig_end_load(struct pipeline_rig *rig, struct tn_load *load)
{
	int rc = tn_load_end(load, cli_now_ns() + PIPELINE_PATIENCE_NS, NULL);

	return rc ? rig_failed(rig, "load", rc) : 0;
}

/* ---- the bytes --------------------------------------------------------------------------------- */

typedef bool (*page_fn)(void *page, uint32_t bytes, uint64_t block, uint32_t layer, size_t offset);

static bool fill_page(void *page, uint32_t bytes, uint64_t block, uint32_t layer, size_t offset)
{
	content_fill(page, bytes, block, layer, offset);
	return true;
}

static bool check_page(void *page, uint32_t bytes, uint64_t block, uint32_t layer, size_t offset)
{
	return content_check(page, bytes, block, layer, offset) < 0;
}

/* Calls fn for the pages of one block in stored order; the number of objects with a page for which fn returned false. */
static uint32_t each_object(const struct pipeline_rig *rig, uint32_t block, page_fn fn)
{
	const struct tn_geometry *g = &rig->pool.geometry;
	const uint32_t *pages = rig->set->pages + (size_t)block * g->pages_per_block;
	uint32_t wrong = 0;

	for (uint32_t layer = 0; layer < g->layers; layer++) {
		size_t offset = 0;
		bool good = true;

		for (uint32_t p = 0; p < g->nplanes; p++)
			for (uint32_t i = 0; i < g->pages_per_block; i++) {
				uint32_t bytes = tn_geometry_page_bytes(g, p);

				good &= fn(cli_pool_page(&rig->pool, layer, p, pages[i]), bytes, block, layer, offset);
				offset += bytes;
			}
		wrong += !good;
	}
	return wrong;
}

uint64_t rig_check(const struct pipeline_rig *rig, uint32_t blocks)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < blocks; i++)
		wrong += each_object(rig, i, check_page);
	return wrong;
}

/* ---- preparing the store ----------------------------------------------------------------------- */

static int save_chain(struct pipeline_rig *rig, struct tn_pool *pool, const struct tn_key *keys, uint32_t n,
		      const uint32_t *pages, const struct tn_key *parent)
{
	struct tn_save_result r = {.size = sizeof(r)};
	struct tn_save_opts o;
	struct tn_save *save;
	int rc;

	tn_save_opts_init(&o);
	o.parent = parent;
	rc = tn_save_begin(rig->space, pool, keys, n, pages, &o, &save);
	for (uint32_t layer = 0; !rc && layer < rig->set->geometry.layers; layer++)
		rc = tn_save_layer(save, layer, NULL, 0);
	if (!rc)
		rc = tn_save_commit(save);
	if (!rc)
		rc = tn_save_end(save, cli_now_ns() + PIPELINE_PATIENCE_NS, &r);
	if (rc)
		return rig_failed(rig, "save", rc);
	return r.stored == n ? 0 : rig_failed(rig, "save stored too little", r.error ? r.error : -ENOSPC);
}

/* Writes every slot that the write load will use once: a first write is slower than a later one. */
static int fill_rest(struct pipeline_rig *rig)
{
	const struct pipeline_set *set = rig->set;
	uint32_t n = set->save_blocks, pages = set->geometry.pages_per_block;
	struct tn_key *keys = calloc(n, sizeof(*keys));
	uint32_t *page = calloc((size_t)n * pages, sizeof(*page));
	int rc = keys && page ? 0 : rig_failed(rig, "memory", -ENOMEM);

	for (uint32_t i = 0; !rc && i < n * pages; i++)
		page[i] = i;
	for (uint32_t at = 0; !rc && at < set->write_blocks; at += n) {
		rc = rig_keys(rig, FILL_CHAIN + at, n, keys);
		if (!rc)
			rc = save_chain(rig, rig->write_pool.pool, keys, n, page, NULL);
	}
	free(keys);
	free(page);
	return rc;
}

void pipeline_prepare(const void *arg, void *out)
{
	const struct pipeline_set *set = arg;
	struct pipeline_rig rig;
	int rc = rig_open(&rig, set, "none", false, out);

	for (uint32_t i = 0; !rc && i < set->blocks; i++)
		each_object(&rig, i, fill_page);
	if (!rc)
		rc = save_chain(&rig, rig.pool.pool, rig.keys, PIPELINE_WARM_BLOCKS, set->pages, NULL);
	if (!rc)
		rc = save_chain(&rig, rig.pool.pool, rig.keys + PIPELINE_WARM_BLOCKS, set->blocks, set->pages, NULL);
	if (!rc)
		rc = rig_pin(&rig);
	if (!rc)
		fill_rest(&rig);
	rig_close(&rig);
}
