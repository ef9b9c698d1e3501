/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in engine: pool memory is one mapping, divided into a part for loads and a ring of parts for saves.
 *
 * A request longer than a part is loaded and saved in several pieces. A part of the ring is used again only
 * after its save has ended. That is the only back-pressure.
 */
#include "engine.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli.h"
#include "content.h"
#include "pool.h"

#define POOL_BYTES (768ull << 20)
#define SAVES 4u
#define PATIENCE_NS 60000000000ull /* longest wait for one load or save before giving up */
#define OBJECT_ALIGN 4096u

struct flight {
	struct tn_save *save; /* NULL: none */
	uint64_t *ids;	      /* block ids of the save; as many as one part holds */
	uint32_t n;
};

struct engine {
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	void *memory;
	uint64_t memory_bytes;
	uint32_t part; /* pages of each part; part 0 is for loads */
	uint32_t *pages; /* page indices of one part */
	struct tn_key *keys;
	uint64_t *hashes;
	uint8_t *tiers;
	uint32_t longest;
	struct flight flight[SAVES];
	uint32_t next; /* flight to use next */
	uint32_t under_way;
	uint64_t writing_since;
	struct engine_totals total;
	bool verify;
	bool wait_saves;
};

uint64_t engine_block_disk_bytes(const struct tn_geometry *g)
{
	return ((uint64_t)tn_geometry_object_bytes(g) + OBJECT_ALIGN - 1) / OBJECT_ALIGN * OBJECT_ALIGN * g->layers;
}

uint64_t engine_disk_bytes(const struct tn_geometry *g, uint64_t capacity_blocks)
{
	uint64_t bytes;

	/* At most 2^31 blocks, so the sum does not wrap. */
	if (__builtin_mul_overflow(engine_block_disk_bytes(g), capacity_blocks + capacity_blocks / 4 + 256, &bytes))
		return UINT64_MAX;
	return bytes;
}

/* Prints what the library reports beyond return values: a device that became slow, a slot that was quarantined. */
static void print_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	cli_error(CLI_PROBLEM, "%s: %s", level == TN_LOG_ERROR ? "error" : "warning", text);
}

static int open_cache(struct engine *e, const struct engine_opts *o)
{
	struct tn_cache_opts c;
	uint64_t block = tn_geometry_block_bytes(&o->geometry);

	tn_cache_opts_init(&c);
	c.dirs = o->dirs;
	c.ndirs = o->ndirs;
	c.disk_blocks = o->capacity_blocks;
	c.geometry = &o->geometry;
	if (__builtin_mul_overflow(o->host_blocks, block, &c.host_bytes))
		c.host_bytes = UINT64_MAX; /* more memory than there is: the open fails and says so */
	c.max_op_blocks = e->part > 8192 ? e->part : 8192;
	c.policy = o->policy;
	c.io_engine = o->io_engine ? o->io_engine : "auto";
	c.seed = o->seed;
	c.explain = o->explain;
	c.explain_arg = o->explain_arg;
	c.log = print_log;
	c.log_level = TN_LOG_WARN;
	return tn_cache_open(&c, &e->cache);
}

static int open_pool(struct engine *e, const struct engine_opts *o)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .npages = (uint64_t)e->part * (SAVES + 1)};
	uint64_t bytes = cli_pool_bytes(&o->geometry, &shape);

	if (bytes == 0)
		return tn_error_last()->code;
	e->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (e->memory == MAP_FAILED) {
		e->memory = NULL;
		return -ENOMEM;
	}
	e->memory_bytes = bytes;
	madvise(e->memory, bytes, MADV_HUGEPAGE);
	return cli_pool_open(e->cache, &o->geometry, &shape, e->memory, &e->pool);
}

static int open_space(struct engine *e, const struct engine_opts *o)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = o->model;
	id.hash_algorithm = "trace-id";
	return tn_space_open(e->cache, &id, &shard, &o->geometry, NULL, &e->space);
}

static bool get_tables(struct engine *e)
{
	bool got = true;

	e->pages = calloc(e->part, sizeof(*e->pages));
	e->keys = calloc(e->longest, sizeof(*e->keys));
	e->hashes = calloc(e->longest, 2 * sizeof(*e->hashes));
	e->tiers = calloc(e->longest, 1);
	for (uint32_t i = 0; i < SAVES; i++)
		got &= (e->flight[i].ids = calloc(e->part, sizeof(*e->flight[i].ids))) != NULL;
	return got && e->pages && e->keys && e->hashes && e->tiers;
}

int engine_open(const struct engine_opts *o, struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	uint64_t block = tn_geometry_block_bytes(&o->geometry);
	uint64_t part = POOL_BYTES / (SAVES + 1) / block;
	int rc = -ENOMEM;

	if (!e)
		return -ENOMEM;
	e->longest = o->longest;
	e->part = (uint32_t)(part < 1 ? 1 : part > o->longest ? o->longest : part);
	e->verify = o->verify;
	e->wait_saves = o->wait_saves;
	if (get_tables(e))
		rc = open_cache(e, o);
	if (!rc)
		rc = open_space(e, o);
	if (!rc)
		rc = open_pool(e, o);
	if (rc) {
		engine_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

const struct engine_totals *engine_totals(const struct engine *e)
{
	return &e->total;
}

int engine_stats(struct engine *e, struct cli_stats *stats)
{
	return cli_stats(e->cache, stats);
}

/* ---- bytes ------------------------------------------------------------------------------------- */

static void fill_block(struct engine *e, uint32_t page, uint64_t id)
{
	const struct tn_geometry *g = &e->pool.geometry;

	for (uint32_t layer = 0; layer < g->layers; layer++) {
		size_t offset = 0;

		for (uint32_t p = 0; p < g->nplanes; p++) {
			content_fill(cli_pool_page(&e->pool, layer, p, page), tn_geometry_page_bytes(g, p), id, layer,
				     offset);
			offset += (tn_geometry_page_bytes(g, p) + 7u) & ~7u;
		}
	}
}

static void check_object(struct engine *e, uint32_t page, uint64_t id, uint32_t layer)
{
	const struct tn_geometry *g = &e->pool.geometry;
	size_t offset = 0;
	bool wrong = false;

	for (uint32_t p = 0; p < g->nplanes; p++) {
		long at = content_check(cli_pool_page(&e->pool, layer, p, page), tn_geometry_page_bytes(g, p), id, layer,
					offset);

		if (at >= 0 && !wrong && e->total.wrong_objects < 5)
			cli_error(CLI_PROBLEM, "wrong bytes: block %llu layer %u plane %u from byte %ld on",
				  (unsigned long long)id, layer, p, at);
		wrong |= at >= 0;
		offset += (tn_geometry_page_bytes(g, p) + 7u) & ~7u;
	}
	e->total.verified_objects++;
	e->total.wrong_objects += wrong;
}

/* ---- loads ------------------------------------------------------------------------------------- */

/* Waits until the cache has completed something, or for 10 ms. */
static void wait_event(struct engine *e)
{
	struct pollfd p = {.fd = tn_cache_eventfd(e->cache), .events = POLLIN};
	uint64_t count;

	if (poll(&p, 1, 10) == 1 && read(p.fd, &count, sizeof(count)) < 0)
		return; /* another reader took the event: the caller checks its operations all the same */
}

/* The pages belong to the engine again only after tn_load_end. */
static int end_load(struct tn_load *load)
{
	return tn_load_end(load, cli_now_ns() + PATIENCE_NS, NULL);
}

/* Loads n blocks into the load part and checks them; returns how many are good. */
static int load_piece(struct engine *e, const struct tn_key *keys, const uint64_t *ids, uint32_t n)
{
	struct tn_load_opts o;
	struct tn_load *load;
	uint64_t start = cli_now_ns();
	int rc, good = (int)n;

	for (uint32_t i = 0; i < n; i++)
		e->pages[i] = i;
	tn_load_opts_init(&o);
	o.deadline_ns = start + PATIENCE_NS;
	rc = tn_load_begin(e->space, e->pool.pool, keys, n, e->pages, &o, &load);
	if (rc)
		return rc;
	for (uint32_t layer = 0; layer < e->pool.geometry.layers && good > 0; layer++) {
		rc = tn_load_wait(load, layer, o.deadline_ns);
		if (rc < 0) {
			tn_load_cancel(load);
			good = 0;
			break;
		}
		good = rc < good ? rc : good;
	}
	e->total.read_ns += cli_now_ns() - start;
	/* Comparing is no part of loading, so it begins after the last layer is there. */
	for (uint32_t layer = 0; e->verify && layer < e->pool.geometry.layers; layer++)
		for (int i = 0; i < good; i++)
			check_object(e, (uint32_t)i, ids[i], layer);
	rc = end_load(load);
	return rc ? rc : good;
}

/* ---- saves ------------------------------------------------------------------------------------- */

/* Ends one save: 0; -ETIMEDOUT if the save is still under way; or an error of the interface. */
static int end_save(struct engine *e, struct flight *f, uint64_t deadline_ns)
{
	struct tn_save_result r = {.size = sizeof(r)};
	int rc = tn_save_end(f->save, deadline_ns, &r);

	if (rc)
		return rc;
	f->save = NULL;
	e->total.stored_blocks += r.stored;
	e->total.rejected_blocks += r.rejected;
	e->total.failed_blocks += r.failed;
	if (r.error && !e->total.error)
		e->total.error = r.error;
	if (--e->under_way == 0)
		e->total.write_ns += cli_now_ns() - e->writing_since;
	return 0;
}

/* Ends the saves whose work is over. Does not wait. */
static int reap_saves(struct engine *e)
{
	for (uint32_t i = 0; i < SAVES; i++) {
		struct flight *f = &e->flight[(e->next + i) % SAVES];
		int rc = f->save ? end_save(e, f, 0) : 0;

		if (rc && rc != -ETIMEDOUT)
			return rc;
	}
	return 0;
}

static int drain_saves(struct engine *e)
{
	int rc = 0;

	for (uint32_t i = 0; i < SAVES; i++) {
		struct flight *f = &e->flight[(e->next + i) % SAVES];

		if (f->save && !rc)
			rc = end_save(e, f, cli_now_ns() + PATIENCE_NS);
	}
	return rc;
}

/* The save under way that contains this block, or NULL. */
static struct flight *flight_of(struct engine *e, uint64_t id)
{
	for (uint32_t i = 0; i < SAVES; i++)
		for (uint32_t k = 0; e->flight[i].save && k < e->flight[i].n; k++)
			if (e->flight[i].ids[k] == id)
				return &e->flight[i];
	return NULL;
}

/* Calls tn_save_begin. While it says -EAGAIN, ends older saves. */
static int begin_save(struct engine *e, const struct tn_key *keys, uint32_t n, const struct tn_save_opts *o,
		      struct tn_save **save)
{
	uint64_t deadline = cli_now_ns() + PATIENCE_NS;
	int rc;

	while ((rc = tn_save_begin(e->space, e->pool.pool, keys, n, e->pages, o, save)) == -EAGAIN) {
		if (cli_now_ns() > deadline)
			return rc;
		rc = reap_saves(e);
		if (rc)
			return rc;
		wait_event(e);
	}
	return rc;
}

static int save_piece(struct engine *e, const struct tn_key *keys, const uint64_t *ids, uint32_t n,
		      const struct tn_key *parent, bool partial_last)
{
	struct flight *f = &e->flight[e->next];
	uint32_t first = e->part * (1 + e->next);
	struct tn_save_opts o;
	int rc = f->save ? end_save(e, f, cli_now_ns() + PATIENCE_NS) : 0;

	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		e->pages[i] = first + i;
		fill_block(e, first + i, ids[i]);
		rc = reap_saves(e); /* so that the time of the saves stops when they have ended */
		if (rc)
			return rc;
	}
	tn_save_opts_init(&o);
	o.parent = parent;
	o.partial_last = partial_last;
	rc = begin_save(e, keys, n, &o, &f->save);
	if (rc) {
		f->save = NULL;
		return rc;
	}
	f->n = n;
	memcpy(f->ids, ids, n * sizeof(*ids));
	if (e->under_way++ == 0)
		e->writing_since = cli_now_ns();
	e->next = (e->next + 1) % SAVES;
	for (uint32_t layer = 0; layer < e->pool.geometry.layers && !rc; layer++)
		rc = tn_save_layer(f->save, layer, NULL, 0);
	return rc ? rc : tn_save_commit(f->save);
}

/* ---- a request --------------------------------------------------------------------------------- */

static int make_keys(struct engine *e, const uint64_t *ids, uint32_t n)
{
	long rc;

	for (uint32_t i = 0; i < n; i++) { /* 16 bytes, as engines have them */
		e->hashes[2 * i] = ids[i];
		e->hashes[2 * i + 1] = ~ids[i] * 0x9e3779b97f4a7c15u;
	}
	rc = tn_keys_from_hashes(e->space, e->hashes, 16, n, e->keys, n);
	return rc < 0 ? (int)rc : 0;
}

/* Loads the pinned prefix piece by piece; returns how many of its blocks are good. */
static int load_hits(struct engine *e, const uint64_t *ids, uint32_t matched)
{
	uint32_t done = 0;

	while (done < matched) {
		uint32_t n = matched - done < e->part ? matched - done : e->part;
		int good = load_piece(e, e->keys + done, ids + done, n);

		if (good < 0)
			return good;
		done += (uint32_t)good;
		if ((uint32_t)good < n)
			break;
	}
	return (int)done;
}

/* Looks up and pins the longest prefix. With wait_saves, a block whose save is under way does not end the prefix. */
static int match(struct engine *e, const uint64_t *ids, uint32_t n, struct tn_match *m)
{
	for (;;) {
		int rc = tn_match(e->space, e->keys, n, e->tiers, m, TN_MATCH_PIN), ended;
		struct flight *f = rc >= 0 && (uint32_t)rc < n ? flight_of(e, ids[rc]) : NULL;

		if (!f)
			return rc;
		if (!e->wait_saves) {
			for (uint32_t i = (uint32_t)rc; i < n && flight_of(e, ids[i]); i++)
				e->total.in_saving_blocks++;
			return rc;
		}
		if (m->pin)
			tn_unpin(e->space, m->pin);
		ended = end_save(e, f, cli_now_ns() + PATIENCE_NS);
		if (ended)
			return ended;
	}
}

int engine_request(struct engine *e, const uint64_t *ids, uint32_t n, bool partial_last, uint32_t *hits)
{
	struct tn_match m = {.size = sizeof(m)};
	int rc = n <= e->longest ? make_keys(e, ids, n) : -EINVAL;
	int good;

	if (!rc)
		rc = reap_saves(e);
	if (rc)
		return rc;
	rc = match(e, ids, n, &m);
	if (rc < 0)
		return rc;
	good = load_hits(e, ids, (uint32_t)rc);
	if (m.pin)
		tn_unpin(e->space, m.pin);
	if (good < 0)
		return good;
	e->total.requests++;
	e->total.blocks += n;
	e->total.hit_blocks += (uint32_t)good;
	for (int i = 0; i < good; i++)
		e->total.host_hit_blocks += e->tiers[i] == TN_TIER_HOST;
	for (uint32_t at = (uint32_t)good; at < n; at += e->part) {
		uint32_t piece = n - at < e->part ? n - at : e->part;

		rc = save_piece(e, e->keys + at, ids + at, piece, at ? &e->keys[at - 1] : NULL,
				partial_last && at + piece == n);
		if (rc)
			return rc;
	}
	if (hits)
		*hits = (uint32_t)good;
	return 0;
}

int engine_flush(struct engine *e)
{
	int rc = drain_saves(e);

	return rc ? rc : tn_flush(e->cache, cli_now_ns() + PATIENCE_NS);
}

int engine_close(struct engine *e)
{
	int rc = 0;

	if (!e)
		return 0;
	for (uint32_t i = 0; i < SAVES; i++) {
		if (!e->flight[i].save)
			continue;
		rc = end_save(e, &e->flight[i], cli_now_ns() + PATIENCE_NS);
		if (rc == -EINVAL) {
			tn_save_abort(e->flight[i].save);
			rc = end_save(e, &e->flight[i], cli_now_ns() + PATIENCE_NS);
		}
		if (rc)
			return rc; /* its pages still belong to the library: nothing may be released */
	}
	rc = cli_pool_close(&e->pool);
	if (rc)
		return rc;
	tn_space_close(e->space);
	rc = e->cache ? tn_cache_close(e->cache) : 0;
	if (e->memory)
		munmap(e->memory, e->memory_bytes);
	free(e->pages);
	free(e->keys);
	free(e->hashes);
	free(e->tiers);
	for (uint32_t i = 0; i < SAVES; i++)
		free(e->flight[i].ids);
	free(e);
	return rc;
}
