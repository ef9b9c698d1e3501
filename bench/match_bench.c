/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench match`: look-ups of long prefixes, pins included, among millions of blocks; or in the cache that another process serves.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../cli/pool.h"
#include "attached.h"
#include "lab/match_bench.h"

struct match_args {
	const char *socket;
	uint64_t entries;
	uint64_t keys;
	uint64_t rounds;
	uint64_t seed;
	bool json;
};

static const struct cli_opt options[] = {
	{"entries", "N", "10M", "blocks in the index", CLI_COUNT, offsetof(struct match_args, entries), 1, 1000000000},
	{"keys", "N", "8192", "blocks of the prefix that is looked up", CLI_COUNT, offsetof(struct match_args, keys), 1,
	 1000000},
	{"rounds", "N", "1000", "look-ups", CLI_COUNT, offsetof(struct match_args, rounds), 1, 1000000},
	{"seed", "N", "1", "of the made-up blocks", CLI_COUNT, offsetof(struct match_args, seed), 0, UINT64_MAX},
	{"socket", "PATH", NULL, BENCH_SOCKET_HELP "; --keys blocks are saved there, each of 4 KiB, and dropped again", CLI_STRING,
	 offsetof(struct match_args, socket), 0, 0},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct match_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench match",
	.about = "Fills an index with made-up blocks, then looks up prefixes of random ones, each found and pinned. Prints "
		 "percentiles over the look-ups of the mean time per key, and the memory of the index: the registry's, without the policy's and the store's.",
	.opts = options,
};

static const struct {
	const char *name;
	double part;
} percentiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};

#define PERCENTILES (sizeof(percentiles) / sizeof(percentiles[0]))

static double percentile(const double *sorted, size_t n, double part)
{
	size_t i = (size_t)(part * (double)n);

	return sorted[i < n ? i : n - 1];
}

/* ---- attached -------------------------------------------------------------------------------------- */

#define BLOCK_BYTES 4096u
#define HASH_BYTES 16u
#define PATIENCE_NS 60000000000ull

/* What a run has in the owner's cache. */
struct attached {
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	void *memory;
	struct tn_key *keys;
	uint32_t *pages;
	uint32_t n;
};

static int make_blocks(struct attached *b)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = b->n};
	struct tn_save_result res = {.size = sizeof(res)};
	uint64_t *hash = calloc(b->n, HASH_BYTES);
	struct tn_geometry g;
	struct tn_save *save;
	int rc = hash ? tn_geometry_raw(1, BLOCK_BYTES, &g) : -ENOMEM;

	if (rc == 0)
		rc = bench_space_open(b->cache, "match", &g, &b->space);
	for (uint32_t i = 0; rc == 0 && i < b->n; i++) {
		hash[2 * i] = i + 1;
		b->pages[i] = i;
	}
	if (rc == 0 && tn_keys_from_hashes(b->space, hash, HASH_BYTES, b->n, b->keys, b->n) != (long)b->n)
		rc = tn_error_last()->code;
	free(hash);
	if (rc == 0)
		rc = cli_pool_open(b->cache, &g, &shape, b->memory, &b->pool);
	if (rc == 0)
		rc = tn_save_begin(b->space, b->pool.pool, b->keys, b->n, b->pages, NULL, &save);
	if (rc)
		return rc;
	rc = tn_save_layer(save, 0, NULL, 0);
	if (rc == 0)
		rc = tn_save_commit(save);
	if (rc == 0)
		rc = tn_save_end(save, cli_now_ns() + PATIENCE_NS, &res);
	return rc;
}

static int look_up(const struct attached *b, double *ns)
{
	struct tn_match m = {.size = sizeof(m)};
	uint64_t start = cli_now_ns();
	int rc = tn_match(b->space, b->keys, b->n, NULL, &m, TN_MATCH_PIN);

	*ns = (double)(cli_now_ns() - start) / b->n;
	if (rc > 0)
		tn_unpin(b->space, m.pin);
	return rc;
}

/* -errno of the library, or an exit code after a message. */
static int run_attached(struct match_args *a, double *ns, uint64_t *bytes)
{
	struct attached b = {.n = (uint32_t)a->keys};
	int rc = bench_attach(a->socket, &b.cache);

	if (rc)
		return rc;
	b.memory = bench_memory((uint64_t)b.n * BLOCK_BYTES);
	b.keys = calloc(b.n, sizeof(*b.keys));
	b.pages = calloc(b.n, sizeof(*b.pages));
	rc = b.memory && b.keys && b.pages ? make_blocks(&b) : -ENOMEM;
	for (size_t i = 0; rc == 0 && i < (size_t)a->rounds; i++) {
		int found = look_up(&b, &ns[i]);

		if (found != (int)b.n)
			rc = found < 0 ? found : cli_error(CLI_PROBLEM, "the owner keeps %d of %u blocks: choose fewer --keys", found, b.n);
	}
	if (rc == 0)
		rc = tn_cache_stat(b.cache, "index_bytes", bytes);
	if (rc == 0)
		rc = tn_cache_stat(b.cache, "blocks", &a->entries);
	cli_pool_close(&b.pool);
	bench_space_drop(b.space);
	tn_cache_close(b.cache);
	bench_memory_free(b.memory);
	free(b.keys);
	free(b.pages);
	return rc;
}

/* ---- the result ------------------------------------------------------------------------------------ */

static int print(const struct match_args *a, const double *ns, uint64_t bytes)
{
	const bool left[] = {true, false, true};
	size_t n = (size_t)a->rounds;
	struct cli_table t;
	char s[32];

	cli_table_init(&t, 3, left);
	cli_table_cell(&t, "entries");
	cli_table_cell(&t, "%s", cli_number(s, a->entries));
	cli_table_cell(&t, "blocks");
	cli_table_cell(&t, "index");
	cli_table_cell(&t, "%.1f", (double)bytes / (double)a->entries);
	cli_table_cell(&t, a->socket ? "bytes a block, of all the owner's memory for it" : "bytes a block: the registry, without policy and store");
	cli_table_cell(&t, "look-up");
	cli_table_cell(&t, "%s", cli_number(s, a->keys));
	cli_table_cell(&t, "keys, all found and pinned");
	for (size_t i = 0; i < PERCENTILES; i++) {
		cli_table_cell(&t, "%s", percentiles[i].name);
		cli_table_cell(&t, "%.1f", percentile(ns, n, percentiles[i].part));
		cli_table_cell(&t, "ns per key");
	}
	cli_table_print(&t, stdout, false);
	return cli_finish(CLI_OK);
}

static json_t *as_json(const struct match_args *a, const double *ns, uint64_t bytes)
{
	json_t *o = json_object();

	json_object_set_new(o, "entries", json_integer((json_int_t)a->entries));
	json_object_set_new(o, "keys", json_integer((json_int_t)a->keys));
	json_object_set_new(o, "rounds", json_integer((json_int_t)a->rounds));
	json_object_set_new(o, "index_bytes_per_block", json_real((double)bytes / (double)a->entries));
	for (size_t i = 0; i < PERCENTILES; i++) {
		char name[32];

		snprintf(name, sizeof(name), "ns_per_key_%s", percentiles[i].name);
		json_object_set_new(o, name, json_real(percentile(ns, (size_t)a->rounds, percentiles[i].part)));
	}
	return o;
}

int cmd_bench_match(int argc, char **argv)
{
	struct match_args a = {.entries = 10000000, .keys = 8192, .rounds = 1000, .seed = 1};
	struct tn_match_bench b;
	uint64_t bytes;
	double *ns;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	ns = calloc((size_t)a.rounds, sizeof(*ns));
	if (!ns)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b = (struct tn_match_bench){(uint32_t)a.entries, (uint32_t)a.keys, (uint32_t)a.rounds, a.seed};
	rc = a.socket ? run_attached(&a, ns, &bytes) : tn_match_bench_run(&b, ns, &bytes);
	if (rc) {
		rc = rc < 0 ? cli_fail(rc, NULL) : rc;
	} else {
		bench_median(ns, (size_t)a.rounds); /* sorts */
		rc = a.json ? cli_json(as_json(&a, ns, bytes)) : print(&a, ns, bytes);
	}
	free(ns);
	return rc;
}
