/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench submit`: the cost of starting a load, and of handing over each of its layers.
 *
 * A 64K-token prefix of Llama-3-8B: 4,096 pages of 16 tokens, 8,192 page planes of 32 KiB per layer, scattered over the pool;
 * as 256 blocks of 16 pages, and as 4,096 blocks of one page. The store has LAYERS of the model's 32 layers, so that it
 * fits in memory; the figures are per layer and do not depend on the number of layers. The owner thread's figures are
 * time on the clock: a thread's CPU time costs a system call to read, as much as many of the steps that are measured. The same run also
 * measures a dependent random load, because these paths touch much memory, and machines differ most in that. Last, it
 * tells when the first and the last layer are there, with the reads on the owner's thread and on one and two executors.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tenuto/cache.h>

#include "../cli/pool.h"
#include "../cli/stats.h"
#include "attached.h"
#include "lab/models.h"

#define LAYERS 4u
#define PAGES 4096u
#define PATIENCE_NS 120000000000ull
#define CHASE_BYTES (256u << 20)
#define DISK_BYTES (1ull << 30)
#define CHASE_STEPS 2000000u

struct submit_args {
	char *dir;
	const char *socket;
	uint64_t rounds;
	bool json;
};

static const struct cli_opt options[] = {
	{"dir", "DIR", NULL, "where the store lies (a new directory is made inside, and removed); default: /dev/shm", CLI_STRING,
	 offsetof(struct submit_args, dir), 0, 0},
	{"socket", "PATH", NULL, BENCH_SOCKET_HELP "; with blocks of 16 pages alone, and what others load counts, too", CLI_STRING,
	 offsetof(struct submit_args, socket), 0, 0},
	{"rounds", "N", "20", "loads of each row", CLI_COUNT, offsetof(struct submit_args, rounds), 3, 1000},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct submit_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench submit",
	.about = "Loads a 64K-token prefix of Llama-3-8B's shape (4 of its layers) and prints what tn_load_begin costs its caller, "
		 "what resolving keys and places costs the owner thread once, and what handing over a layer costs it: over many loads, "
		 "the best, the median and the worst; and when the first and the last layer are there (median). Takes 1 GiB in the directory and 1 GiB of memory.",
	.opts = options,
};

enum { BEGIN, RESOLVE, LAYER, FIRST, LAST, FIGURES };

static const char *const figures[FIGURES] = {"begin_us", "resolve_us", "layer_us", "first_ms", "last_ms"};

#define OWNERS UINT32_MAX

/* One shape of blocks with one kind of executor. */
struct row {
	uint32_t pages_per_block, executors; /* OWNERS: the owner's */
	double *figure[FIGURES]; /* per load */
};

struct side {
	bool attached;
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	char *memory;
	size_t bytes;
	struct tn_key *keys;
	uint32_t *pages;
	uint32_t blocks;
};

/* ns of a memory load whose address depends on the load before it, anywhere in 256 MiB. */
static double dependent_load_ns(void)
{
	uint32_t n = CHASE_BYTES / 64, at = 0;
	uint32_t *next = mmap(NULL, CHASE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t start;
	double ns;

	if (next == MAP_FAILED)
		return 0;
	/* A walk through all cache lines: a linear congruence with full period modulo a power of two. */
	for (uint32_t i = 0; i < n; i++)
		next[i * 16u] = (i * 1664525u + 1013904223u) % n;
	start = cli_now_ns();
	for (uint32_t i = 0; i < CHASE_STEPS; i++)
		at = next[at * 16u];
	ns = (double)(cli_now_ns() - start) / CHASE_STEPS;
	munmap(next, CHASE_BYTES);
	return at == n ? 0 : ns; /* uses the result, so that the compiler keeps the walk */
}

static int open_cache(struct side *s, const char *dir, const struct row *row, const struct tn_geometry *g)
{
	struct tn_cache_opts o;
	struct tn_identity id;
	struct tn_shard shard;
	int rc;

	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	o.disk_blocks = s->blocks + s->blocks / 8 + 8;
	o.geometry = g;
	o.policy = "lru";
	o.max_ops = 4;
	o.executors = row->executors;
	rc = tn_cache_open(&o, &s->cache);
	if (rc)
		return rc;
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "submit";
	return tn_space_open(s->cache, &id, &shard, g, NULL, &s->space);
}

/* Attached: how the cache was opened is the owner's choice. */
static int attach(struct side *s, const char *socket, const struct tn_geometry *g)
{
	int rc = bench_attach(socket, &s->cache);

	return rc ? rc : bench_space_open(s->cache, "submit", g, &s->space);
}

static int make_pool(struct side *s, const struct tn_geometry *g)
{
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = PAGES};

	s->bytes = cli_pool_bytes(g, &shape);
	if (s->bytes == 0)
		return tn_error_last()->code;
	if (s->attached) {
		s->memory = bench_memory(s->bytes);
	} else {
		s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(s->memory, s->bytes, MADV_HUGEPAGE);
	}
	if (!s->memory || s->memory == MAP_FAILED)
		return -ENOMEM;
	for (uint32_t l = 0; l < LAYERS; l++)
		memset(s->memory + l * (s->bytes / LAYERS), (int)(17 + l), s->bytes / LAYERS);
	s->pages = calloc(PAGES, sizeof(*s->pages));
	s->keys = calloc(s->blocks, sizeof(*s->keys));
	if (!s->pages || !s->keys)
		return -ENOMEM;
	for (uint32_t i = 0; i < PAGES; i++)
		s->pages[i] = (i * 1657u + 11u) % PAGES; /* scattered; 1657 is odd */
	for (uint32_t i = 0; i < s->blocks; i++)
		s->keys[i] = (struct tn_key){{(i + 1) * 0x9e3779b97f4a7c15u, i + 1}};
	return cli_pool_open(s->cache, g, &shape, s->memory, &s->pool);
}

static int save_all(struct side *s)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *save;
	int rc = tn_save_begin(s->space, s->pool.pool, s->keys, s->blocks, s->pages, NULL, &save);

	for (uint32_t l = 0; l < LAYERS && rc == 0; l++)
		rc = tn_save_layer(save, l, NULL, 0);
	if (rc == 0)
		rc = tn_save_commit(save);
	if (rc == 0)
		rc = tn_save_end(save, cli_now_ns() + PATIENCE_NS, &res);
	if (rc == 0 && res.stored + (s->attached ? res.host_only : 0) != s->blocks)
		return res.error ? res.error : -ENOSPC;
	return rc ? rc : tn_flush(s->cache, cli_now_ns() + PATIENCE_NS);
}

static int load_all(struct side *s, double *figure)
{
	struct cli_stats before, after;
	uint64_t start, until = cli_now_ns() + PATIENCE_NS;
	struct tn_load *load;
	int rc = cli_stats(s->cache, &before), good;

	if (rc)
		return rc;
	start = cli_now_ns();
	rc = tn_load_begin(s->space, s->pool.pool, s->keys, s->blocks, s->pages, NULL, &load);
	figure[BEGIN] = (double)(cli_now_ns() - start) / 1e3;
	if (rc)
		return rc;
	tn_load_wait(load, 0, until);
	figure[FIRST] = (double)(cli_now_ns() - start) / 1e6;
	good = tn_load_wait(load, LAYERS - 1, until);
	figure[LAST] = (double)(cli_now_ns() - start) / 1e6;
	rc = tn_load_end(load, until, NULL);
	if (rc)
		return rc;
	if (good != (int)s->blocks)
		return good < 0 ? good : -EIO;
	rc = cli_stats(s->cache, &after);
	figure[RESOLVE] = (double)(after.resolve_ns - before.resolve_ns) / 1e3;
	figure[LAYER] = (double)(after.submit_ns - before.submit_ns) / 1e3 / (double)(after.submit_layers - before.submit_layers);
	return rc;
}

static void close_side(struct side *s)
{
	cli_pool_close(&s->pool);
	if (s->attached)
		bench_space_drop(s->space);
	else
		tn_space_close(s->space);
	tn_cache_close(s->cache);
	if (s->attached)
		bench_memory_free(s->memory);
	else if (s->memory && s->memory != MAP_FAILED)
		munmap(s->memory, s->bytes);
	free(s->pages);
	free(s->keys);
}

/* In a cache of its own in dir, or in the one that socket leads to. */
static int run_row(const char *dir, const char *socket, struct row *row, size_t rounds, struct cli_progress *progress, uint64_t done)
{
	struct tn_geometry g;
	struct side s = {.blocks = PAGES / row->pages_per_block, .attached = socket};
	double figure[FIGURES];
	int rc = tn_model_find("llama3-8b", &g);

	g.layers = LAYERS;
	g.page_tokens = 16;
	g.pages_per_block = row->pages_per_block;
	if (rc == 0)
		rc = socket ? attach(&s, socket, &g) : open_cache(&s, dir, row, &g);
	if (rc == 0)
		rc = make_pool(&s, &g);
	if (rc == 0)
		rc = save_all(&s);
	for (int i = 0; i < 2 && rc == 0; i++) /* pages of the tables are touched, headers are cached */
		rc = load_all(&s, figure);
	for (size_t i = 0; i < rounds && rc == 0 && !cli_interrupted(); i++) {
		rc = load_all(&s, figure);
		for (int f = 0; f < FIGURES; f++)
			row->figure[f][i] = figure[f];
		cli_progress_step(progress, done + i + 1);
	}
	if (cli_interrupted())
		rc = cli_error(CLI_ENVIRONMENT, "interrupted");
	else if (rc == -ENOSPC && socket)
		rc = cli_error(CLI_ENVIRONMENT, "%s: the owner's cache does not take all of the run's %u blocks, 1 GiB", socket, s.blocks);
	else if (rc)
		rc = cli_fail(rc, "%s", socket ? socket : dir);
	if (s.cache)
		close_side(&s);
	return rc;
}

static void cell(struct cli_table *t, double *v, size_t n)
{
	double median = bench_median(v, n); /* sorts */

	cli_table_cell(t, "%.1f", v[0]);
	cli_table_cell(t, "%.1f", median);
	cli_table_cell(t, "%.1f", v[n - 1]);
}

static int print(const struct row *rows, size_t nrows, size_t n, double chase_ns)
{
	static const char *const heads[] = {"blocks", "executors", "begin: best", "median", "worst", "resolve: best", "median",
					    "worst", "layer: best", "median", "worst", "first, last ms"};
	enum { COLUMNS = sizeof(heads) / sizeof(heads[0]) };
	const bool left[COLUMNS] = {false};
	struct cli_table t;

	printf("a dependent random load in 256 MiB: %.1f ns\nus over %zu loads; per layer: the mean of each load\n\n",
	       chase_ns, n);
	cli_table_init(&t, COLUMNS, left);
	for (size_t i = 0; i < COLUMNS; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (size_t i = 0; i < nrows; i++) {
		cli_table_cell(&t, "%u", PAGES / rows[i].pages_per_block);
		if (rows[i].executors == OWNERS)
			cli_table_cell(&t, "the owner's");
		else
			cli_table_cell(&t, "%u", rows[i].executors);
		for (int f = BEGIN; f <= LAYER; f++)
			cell(&t, rows[i].figure[f], n);
		cli_table_cell(&t, "%.0f, %.0f", bench_median(rows[i].figure[FIRST], n), bench_median(rows[i].figure[LAST], n));
	}
	cli_table_print(&t, stdout, true);
	return cli_finish(CLI_OK);
}

static void add_figure(json_t *o, const char *name, double *v, size_t n)
{
	char other[64];

	json_object_set_new(o, name, json_real(bench_median(v, n)));
	snprintf(other, sizeof(other), "%s_best", name);
	json_object_set_new(o, other, json_real(v[0]));
	snprintf(other, sizeof(other), "%s_worst", name);
	json_object_set_new(o, other, json_real(v[n - 1]));
}

static json_t *as_json(const struct row *rows, size_t nrows, size_t n, double chase_ns)
{
	json_t *o = json_object(), *list = json_array();

	for (size_t i = 0; i < nrows; i++) {
		json_t *r = json_object();

		json_object_set_new(r, "blocks", json_integer(PAGES / rows[i].pages_per_block));
		json_object_set_new(r, "executors", rows[i].executors == OWNERS ? json_null() : json_integer(rows[i].executors));
		for (int f = 0; f < FIGURES; f++)
			add_figure(r, figures[f], rows[i].figure[f], n);
		json_array_append_new(list, r);
	}
	json_object_set_new(o, "chase_ns", json_real(chase_ns));
	json_object_set_new(o, "loads", json_integer((json_int_t)n));
	json_object_set_new(o, "rows", list);
	return o;
}

/* In a directory that is made for it, and removed. */
static int run_row_in(char *base, struct row *row, size_t rounds, struct cli_progress *progress, uint64_t done)
{
	char dir[4096];
	int rc = cli_scratch_dir(base, "/dev/shm", dir, sizeof(dir));

	if (rc)
		return rc;
	rc = cli_check_free_bytes(dir, DISK_BYTES);
	if (!rc)
		rc = run_row(dir, NULL, row, rounds, progress, done);
	cli_remove_tree(dir);
	return rc;
}

int cmd_bench_submit(int argc, char **argv)
{
	static struct row own[] = {{.pages_per_block = 16}, {.pages_per_block = 16, .executors = 1},
				   {.pages_per_block = 16, .executors = 2}, {.pages_per_block = 1},
				   {.pages_per_block = 1, .executors = 1}, {.pages_per_block = 1, .executors = 2}};
	static struct row attached[] = {{.pages_per_block = 16, .executors = OWNERS}};
	struct submit_args a = {.rounds = 20};
	struct cli_progress progress;
	struct row *rows;
	size_t nrows;
	double *v, chase_ns;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.socket && a.dir)
		return cli_error(CLI_USAGE, "--socket: --dir is for a cache that this benchmark opens itself");
	rows = a.socket ? attached : own;
	nrows = a.socket ? sizeof(attached) / sizeof(attached[0]) : sizeof(own) / sizeof(own[0]);
	v = calloc((size_t)a.rounds * nrows * FIGURES, sizeof(*v));
	if (!v)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	cli_catch_interrupts();
	cli_progress_begin(&progress, "bench submit", nrows * a.rounds);
	chase_ns = dependent_load_ns();
	rc = CLI_OK;
	for (size_t i = 0; i < nrows && rc == CLI_OK; i++) {
		for (size_t f = 0; f < FIGURES; f++)
			rows[i].figure[f] = v + (i * FIGURES + f) * (size_t)a.rounds;
		rc = a.socket ? run_row(NULL, a.socket, &rows[i], (size_t)a.rounds, &progress, i * a.rounds)
			      : run_row_in(a.dir, &rows[i], (size_t)a.rounds, &progress, i * a.rounds);
	}
	cli_progress_end(&progress);
	if (rc == CLI_OK)
		rc = a.json ? cli_json(as_json(rows, nrows, (size_t)a.rounds, chase_ns)) : print(rows, nrows, (size_t)a.rounds, chase_ns);
	free(v);
	return rc;
}
