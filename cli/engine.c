/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in engine: the cache, and one rank in this process or several in processes of their own. */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>

#include "cli.h"
#include "engine_ranks.h"

#define POOL_BYTES (768ull << 20)
#define OBJECT_ALIGN 4096u

struct engine {
	struct tn_cache *cache;
	struct rank *rank;	    /* the only one; NULL: there are several */
	struct engine_ranks *ranks; /* NULL: there is one */
	uint32_t nranks;
	uint8_t *tiers;
	struct engine_totals total;
	bool wait_saves;
};

uint64_t engine_block_disk_bytes(const struct tn_geometry *g)
{
	return ((uint64_t)tn_geometry_object_bytes(g) + OBJECT_ALIGN - 1) / OBJECT_ALIGN * OBJECT_ALIGN * g->layers;
}

uint64_t engine_disk_bytes(const struct tn_geometry *g, uint64_t capacity_blocks)
{
	uint64_t bytes;

	/* At most 2^35 blocks, so the sum does not wrap. */
	if (__builtin_mul_overflow(engine_block_disk_bytes(g), capacity_blocks + capacity_blocks / 4 + 256, &bytes))
		return UINT64_MAX;
	return bytes;
}

/* Prints what the library reports beyond return values: a device that became slow, a slot that was quarantined. */
static void print_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	cli_error(CLI_PROBLEM, "%s: %s", level == TN_LOG_ERROR ? "error" : "warning", text);
}

static int open_cache(struct engine *e, const struct engine_opts *o, uint32_t part)
{
	uint32_t most = e->ranks ? o->longest : 8192; /* a session has tables for its operations */
	struct tn_cache_opts c;
	uint64_t block = tn_geometry_block_bytes(&o->geometry);

	tn_cache_opts_init(&c);
	c.dirs = o->dirs;
	c.ndirs = o->ndirs;
	c.disk_blocks = o->capacity_blocks * e->nranks;
	c.geometry = &o->geometry;
	if (__builtin_mul_overflow(o->host_blocks * e->nranks, block, &c.host_bytes))
		c.host_bytes = UINT64_MAX; /* more memory than there is: the open fails and says so */
	c.max_op_blocks = part > most ? part : most;
	c.policy = o->policy;
	c.io_engine = o->io_engine ? o->io_engine : "auto";
	c.seed = o->seed;
	c.explain = o->explain;
	c.explain_arg = o->explain_arg;
	c.log = print_log;
	c.log_level = TN_LOG_WARN;
	return tn_cache_open(&c, &e->cache);
}

/* Ranks are started before the cache has threads, and attach once it is there. */
static int open_ranks(struct engine *e, const struct engine_opts *o)
{
	const struct rank_opts ro = {.model = o->model, .geometry = o->geometry, .ranks = e->nranks, .longest = o->longest,
				     .memory_bytes = POOL_BYTES / 4 / e->nranks, .verify = o->verify};
	int rc = engine_ranks_start(&ro, &e->ranks);

	if (!rc)
		rc = open_cache(e, o, rank_part(&ro));
	return rc ? rc : engine_ranks_attach(e->ranks, e->cache);
}

static int open_rank(struct engine *e, const struct engine_opts *o)
{
	const struct rank_opts ro = {.model = o->model, .geometry = o->geometry, .ranks = 1, .longest = o->longest,
				     .memory_bytes = POOL_BYTES, .verify = o->verify};
	int rc = open_cache(e, o, rank_part(&ro));

	return rc ? rc : rank_open(e->cache, &ro, &e->rank);
}

int engine_open(const struct engine_opts *o, struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	int rc = -ENOMEM;

	if (!e)
		return -ENOMEM;
	e->nranks = o->ranks ? o->ranks : 1;
	e->wait_saves = o->wait_saves;
	e->tiers = calloc(o->longest, 1);
	if (e->tiers)
		rc = e->nranks > 1 ? open_ranks(e, o) : open_rank(e, o);
	if (rc) {
		engine_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

/* ---- what was done ---------------------------------------------------------------------------- */

static void take_totals(struct engine *e)
{
	const struct rank_totals *t = e->ranks ? &engine_ranks_totals(e->ranks)->all : rank_totals(e->rank);

	e->total.stored_blocks = t->stored_blocks;
	e->total.rejected_blocks = t->rejected_blocks;
	e->total.failed_blocks = t->failed_blocks;
	e->total.verified_objects = t->verified_objects;
	e->total.wrong_objects = t->wrong_objects;
	e->total.write_ns = t->write_ns;
	e->total.error = t->error;
	if (e->ranks)
		e->total.short_loads = engine_ranks_totals(e->ranks)->short_loads;
	else
		e->total.read_ns = t->read_ns;
}

const struct engine_totals *engine_totals(struct engine *e)
{
	take_totals(e);
	return &e->total;
}

/* Shares of as many blocks; a block with some of its shares counts as a part of one. */
static void whole_blocks(uint64_t *shares, uint32_t ranks)
{
	*shares = (*shares + ranks / 2) / ranks;
}

int engine_stats(struct engine *e, struct cli_stats *stats)
{
	int rc = cli_stats(e->cache, stats);
	uint64_t *shares[] = {&stats->admission_rejected_blocks, &stats->blocks_read_back, &stats->capacity_blocks, &stats->disk_blocks,
			      &stats->host_only_blocks, &stats->recovered_blocks, &stats->save_failed_blocks, &stats->saved_blocks};

	for (size_t i = 0; !rc && i < sizeof(shares) / sizeof(shares[0]); i++)
		whole_blocks(shares[i], e->nranks);
	return rc;
}

/* ---- a request --------------------------------------------------------------------------------- */

/* Looks up and pins the longest prefix. With wait_saves, a block whose save is under way does not end the prefix. */
static int match(struct engine *e, const struct tn_key *keys, const uint64_t *ids, uint32_t n, struct tn_match *m)
{
	struct tn_space *space = rank_space(e->rank);

	for (;;) {
		int rc = tn_match(space, keys, n, e->tiers, m, TN_MATCH_PIN), ended;

		if (rc < 0 || (uint32_t)rc >= n || !rank_saves(e->rank, ids[rc]))
			return rc;
		if (!e->wait_saves) {
			for (uint32_t i = (uint32_t)rc; i < n && rank_saves(e->rank, ids[i]); i++)
				e->total.in_saving_blocks++;
			return rc;
		}
		if (m->pin)
			tn_unpin(space, m->pin);
		ended = rank_settle_block(e->rank, ids[rc]);
		if (ended)
			return ended;
	}
}

/* Of the only rank. Returns how many blocks it loaded. */
static int serve(struct engine *e, const uint64_t *ids, uint32_t n, bool partial_last)
{
	struct tn_match m = {.size = sizeof(m)};
	const struct tn_key *keys;
	int rc = rank_keys(e->rank, ids, n, &keys), good;

	if (!rc)
		rc = rank_reap(e->rank);
	if (rc)
		return rc;
	rc = match(e, keys, ids, n, &m);
	if (rc < 0)
		return rc;
	good = rank_load(e->rank, ids, (uint32_t)rc);
	if (m.pin)
		tn_unpin(rank_space(e->rank), m.pin);
	for (int i = 0; i < good; i++)
		e->total.host_hit_blocks += e->tiers[i] == TN_TIER_HOST;
	if (good < 0)
		return good;
	rc = rank_save(e->rank, ids, (uint32_t)good, n, partial_last);
	return rc ? rc : good;
}

static int serve_by_ranks(struct engine *e, const uint64_t *ids, uint32_t n, bool partial_last)
{
	uint32_t good, host;
	uint64_t read_ns;
	int rc = engine_ranks_request(e->ranks, ids, n, partial_last, &good, &host, &read_ns);

	if (rc)
		return rc;
	e->total.host_hit_blocks += host;
	e->total.read_ns += read_ns;
	return (int)good;
}

int engine_request(struct engine *e, const uint64_t *ids, uint32_t n, bool partial_last, uint32_t *hits)
{
	int good = e->ranks ? serve_by_ranks(e, ids, n, partial_last) : serve(e, ids, n, partial_last);

	if (good < 0)
		return good;
	e->total.requests++;
	e->total.blocks += n;
	e->total.hit_blocks += (uint32_t)good;
	if (hits)
		*hits = (uint32_t)good;
	return 0;
}

int engine_flush(struct engine *e)
{
	int rc = e->ranks ? engine_ranks_settle(e->ranks) : rank_settle(e->rank);

	return rc ? rc : tn_flush(e->cache, cli_now_ns() + RANK_PATIENCE_NS);
}

int engine_close(struct engine *e)
{
	int rc;

	if (!e)
		return 0;
	rc = e->ranks ? engine_ranks_close(e->ranks) : rank_close(e->rank);
	if (rc)
		return rc;
	rc = e->cache ? tn_cache_close(e->cache) : 0;
	free(e->tiers);
	free(e);
	return rc;
}
