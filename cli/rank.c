/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's loads and saves: pool memory is one mapping, divided into a part for loads and a ring of parts for saves.
 *
 * A request longer than a part is loaded and saved in several pieces. A part of the ring is used again only
 * after its save has ended. That is the only back-pressure.
 */
#include "rank.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tenuto/session.h>

#include "cli.h"
#include "content.h"
#include "pool.h"

#define SAVES 4u

struct flight {
	struct tn_save *save; /* NULL: none */
	uint64_t *ids;	      /* block ids of the save; as many as one part holds */
	uint32_t n;
};

struct rank {
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	void *memory;
	uint64_t memory_bytes;
	bool shared; /* of tn_memory_alloc */
	uint32_t part; /* pages of each part; part 0 is for loads */
	uint32_t *pages; /* page indices of one part */
	struct tn_key *keys;
	uint64_t *hashes;
	uint32_t longest;
	uint64_t salt; /* of the bytes: those of two ranks differ */
	struct flight flight[SAVES];
	uint32_t next; /* flight to use next */
	uint32_t under_way;
	uint64_t writing_since;
	struct rank_totals total;
	bool verify;
};

static int open_memory(struct rank *e, uint64_t bytes)
{
	e->memory_bytes = bytes;
	if (e->shared)
		return tn_memory_alloc(bytes, NULL, &e->memory);
	e->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (e->memory == MAP_FAILED) {
		e->memory = NULL;
		return -ENOMEM;
	}
	madvise(e->memory, bytes, MADV_HUGEPAGE);
	return 0;
}

static int open_pool(struct rank *e, const struct tn_geometry *g)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .npages = (uint64_t)e->part * (SAVES + 1)};
	uint64_t bytes = cli_pool_bytes(g, &shape);
	int rc = bytes ? open_memory(e, bytes) : tn_error_last()->code;

	return rc ? rc : cli_pool_open(e->cache, g, &shape, e->memory, &e->pool);
}

int rank_space_open(struct tn_cache *cache, const struct rank_opts *o, struct tn_space **out)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = o->model;
	id.hash_algorithm = "trace-id";
	shard.tp_rank = o->rank;
	shard.tp_size = o->ranks;
	return tn_space_open(cache, &id, &shard, &o->geometry, NULL, out);
}

static bool get_tables(struct rank *e)
{
	bool got = true;

	e->pages = calloc(e->part, sizeof(*e->pages));
	e->keys = calloc(e->longest, sizeof(*e->keys));
	e->hashes = calloc(e->longest, 2 * sizeof(*e->hashes));
	for (uint32_t i = 0; i < SAVES; i++)
		got &= (e->flight[i].ids = calloc(e->part, sizeof(*e->flight[i].ids))) != NULL;
	return got && e->pages && e->keys && e->hashes;
}

uint32_t rank_part(const struct rank_opts *o)
{
	uint64_t part = o->memory_bytes / (SAVES + 1) / tn_geometry_block_bytes(&o->geometry);

	return (uint32_t)(part < 1 ? 1 : part > o->longest ? o->longest : part);
}

int rank_open(struct tn_cache *cache, const struct rank_opts *o, struct rank **out)
{
	struct rank *e = calloc(1, sizeof(*e));
	int rc = -ENOMEM;

	if (!e)
		return -ENOMEM;
	e->cache = cache;
	e->longest = o->longest;
	e->part = rank_part(o);
	e->verify = o->verify;
	e->shared = o->ranks > 1;
	e->salt = (uint64_t)o->rank << 56;
	if (get_tables(e))
		rc = rank_space_open(cache, o, &e->space);
	if (!rc)
		rc = open_pool(e, &o->geometry);
	if (rc) {
		rank_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

const struct rank_totals *rank_totals(const struct rank *e)
{
	return &e->total;
}

struct tn_space *rank_space(const struct rank *e)
{
	return e->space;
}

/* ---- bytes ------------------------------------------------------------------------------------- */

static void fill_block(struct rank *e, uint32_t page, uint64_t id)
{
	const struct tn_geometry *g = &e->pool.geometry;

	for (uint32_t layer = 0; layer < g->layers; layer++) {
		size_t offset = 0;

		for (uint32_t p = 0; p < g->nplanes; p++) {
			content_fill(cli_pool_page(&e->pool, layer, p, page), tn_geometry_page_bytes(g, p), id ^ e->salt, layer,
				     offset);
			offset += (tn_geometry_page_bytes(g, p) + 7u) & ~7u;
		}
	}
}

static void check_object(struct rank *e, uint32_t page, uint64_t id, uint32_t layer)
{
	const struct tn_geometry *g = &e->pool.geometry;
	size_t offset = 0;
	bool wrong = false;

	for (uint32_t p = 0; p < g->nplanes; p++) {
		long at = content_check(cli_pool_page(&e->pool, layer, p, page), tn_geometry_page_bytes(g, p), id ^ e->salt, layer,
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
static void wait_event(struct rank *e)
{
	struct pollfd p = {.fd = tn_cache_eventfd(e->cache), .events = POLLIN};
	uint64_t count;

	if (poll(&p, 1, 10) == 1 && read(p.fd, &count, sizeof(count)) < 0)
		return; /* another reader took the event: the caller checks its operations all the same */
}

/* The pages belong to the engine again only after tn_load_end. */
static int end_load(struct tn_load *load)
{
	return tn_load_end(load, cli_now_ns() + RANK_PATIENCE_NS, NULL);
}

/* Loads n blocks into the load part and checks them; returns how many are good. */
static int load_piece(struct rank *e, const struct tn_key *keys, const uint64_t *ids, uint32_t n)
{
	struct tn_load_opts o;
	struct tn_load *load;
	uint64_t start = cli_now_ns();
	int rc, good = (int)n;

	for (uint32_t i = 0; i < n; i++)
		e->pages[i] = i;
	tn_load_opts_init(&o);
	o.deadline_ns = start + RANK_PATIENCE_NS;
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
static int end_save(struct rank *e, struct flight *f, uint64_t deadline_ns)
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

int rank_reap(struct rank *e)
{
	for (uint32_t i = 0; i < SAVES; i++) {
		struct flight *f = &e->flight[(e->next + i) % SAVES];
		int rc = f->save ? end_save(e, f, 0) : 0;

		if (rc && rc != -ETIMEDOUT)
			return rc;
	}
	return 0;
}

int rank_settle(struct rank *e)
{
	int rc = 0;

	for (uint32_t i = 0; i < SAVES; i++) {
		struct flight *f = &e->flight[(e->next + i) % SAVES];

		if (f->save && !rc)
			rc = end_save(e, f, cli_now_ns() + RANK_PATIENCE_NS);
	}
	return rc;
}

/* The save under way that contains this block, or NULL. */
static struct flight *flight_of(struct rank *e, uint64_t id)
{
	for (uint32_t i = 0; i < SAVES; i++)
		for (uint32_t k = 0; e->flight[i].save && k < e->flight[i].n; k++)
			if (e->flight[i].ids[k] == id)
				return &e->flight[i];
	return NULL;
}

/* Calls tn_save_begin. While it says -EAGAIN, ends older saves. */
static int begin_save(struct rank *e, const struct tn_key *keys, uint32_t n, const struct tn_save_opts *o,
		      struct tn_save **save)
{
	uint64_t deadline = cli_now_ns() + RANK_PATIENCE_NS;
	int rc;

	while ((rc = tn_save_begin(e->space, e->pool.pool, keys, n, e->pages, o, save)) == -EAGAIN) {
		if (cli_now_ns() > deadline)
			return rc;
		rc = rank_reap(e);
		if (rc)
			return rc;
		wait_event(e);
	}
	return rc;
}

static int save_piece(struct rank *e, const struct tn_key *keys, const uint64_t *ids, uint32_t n,
		      const struct tn_key *parent, bool partial_last)
{
	struct flight *f = &e->flight[e->next];
	uint32_t first = e->part * (1 + e->next);
	struct tn_save_opts o;
	int rc = f->save ? end_save(e, f, cli_now_ns() + RANK_PATIENCE_NS) : 0;

	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		e->pages[i] = first + i;
		fill_block(e, first + i, ids[i]);
		rc = rank_reap(e); /* so that the time of the saves stops when they have ended */
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

int rank_keys(struct rank *e, const uint64_t *ids, uint32_t n, const struct tn_key **keys)
{
	long rc = n <= e->longest ? rank_make_keys(e->space, ids, n, e->hashes, e->keys) : -EINVAL;

	*keys = e->keys;
	return rc < 0 ? (int)rc : 0;
}

int rank_make_keys(const struct tn_space *space, const uint64_t *ids, uint32_t n, uint64_t *hashes, struct tn_key *keys)
{
	long rc;

	for (uint32_t i = 0; i < n; i++) { /* 16 bytes, as engines have them */
		hashes[2 * i] = ids[i];
		hashes[2 * i + 1] = ~ids[i] * 0x9e3779b97f4a7c15u;
	}
	rc = tn_keys_from_hashes(space, hashes, 16, n, keys, n);
	return rc < 0 ? (int)rc : 0;
}

int rank_load(struct rank *e, const uint64_t *ids, uint32_t matched)
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

int rank_save(struct rank *e, const uint64_t *ids, uint32_t from, uint32_t n, bool partial_last)
{
	int rc = 0;

	for (uint32_t at = from; at < n && !rc; at += e->part) {
		uint32_t piece = n - at < e->part ? n - at : e->part;

		rc = save_piece(e, e->keys + at, ids + at, piece, at ? &e->keys[at - 1] : NULL,
				partial_last && at + piece == n);
	}
	return rc;
}

bool rank_saves(struct rank *e, uint64_t id)
{
	return flight_of(e, id) != NULL;
}

int rank_settle_block(struct rank *e, uint64_t id)
{
	struct flight *f = flight_of(e, id);

	return f ? end_save(e, f, cli_now_ns() + RANK_PATIENCE_NS) : 0;
}

int rank_close(struct rank *e)
{
	int rc = 0;

	if (!e)
		return 0;
	for (uint32_t i = 0; i < SAVES; i++) {
		if (!e->flight[i].save)
			continue;
		rc = end_save(e, &e->flight[i], cli_now_ns() + RANK_PATIENCE_NS);
		if (rc == -EINVAL) {
			tn_save_abort(e->flight[i].save);
			rc = end_save(e, &e->flight[i], cli_now_ns() + RANK_PATIENCE_NS);
		}
		if (rc)
			return rc; /* its pages still belong to the library: nothing may be released */
	}
	rc = cli_pool_close(&e->pool);
	if (rc)
		return rc;
	tn_space_close(e->space);
	if (e->memory && e->shared)
		tn_memory_free(e->memory);
	else if (e->memory)
		munmap(e->memory, e->memory_bytes);
	free(e->pages);
	free(e->keys);
	free(e->hashes);
	for (uint32_t i = 0; i < SAVES; i++)
		free(e->flight[i].ids);
	free(e);
	return 0;
}
