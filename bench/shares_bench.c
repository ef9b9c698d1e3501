/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench shares`: a rank's blocks stored as its own share, and by head group for ranks of every TP size (docs/shares.md), alternately in one store.
 *
 * Both sides have the same pages, the same tokens and the same directory. A round saves new blocks on one side, loads them from disk, and does the same on the
 * other. Which side begins alternates.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <tenuto/cache.h>
#include <tenuto/heads.h>

#include "../cli/pool.h"
#include "lab/models.h"

#define PATIENCE_NS 120000000000ull
#define GROUPS_MAX 64u
#define KEPT 4u /* rounds that the store holds of both sides together */

struct shares_args {
	const char *dir;
	uint64_t tp_size, layers, blocks, pages, executors, rounds;
	bool json;
};

static const struct cli_opt options[] = {
	{"tp", "N", "1", "TP size of the rank: 1, 2, 4 or 8 of llama3-8b's 8 KV heads", CLI_COUNT, offsetof(struct shares_args, tp_size), 1, 8},
	{"layers", "N", "16", "layers", CLI_COUNT, offsetof(struct shares_args, layers), 1, 128},
	{"blocks", "N", "16", "blocks of a prompt", CLI_COUNT, offsetof(struct shares_args, blocks), 1, 512},
	{"pages", "N", "16", "pages of 16 tokens per block", CLI_COUNT, offsetof(struct shares_args, pages), 1, 64},
	{"executors", "N", "0", "threads that move bytes; 0: the owner's engine", CLI_COUNT, offsetof(struct shares_args, executors), 0, 16},
	{"rounds", "N", "10", "rounds", CLI_COUNT, offsetof(struct shares_args, rounds), 1, 1000},
	{"dir", "DIR", NULL, "where the store is made; default: /dev/shm", CLI_STRING, offsetof(struct shares_args, dir), 0, 0},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct shares_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench shares",
	.about = "Saves and loads the blocks of a tensor-parallel rank as its own share, and by head group, alternately. Prints the medians of both and of their "
		 "ratio, round by round.",
	.opts = options,
};

enum { SAVE, LOAD, SAVE_CPU, LOAD_CPU, FIGURES }; /* the last two: CPU time of all threads, which other processes disturb less */

/* A way to store the rank's blocks. */
struct side {
	uint32_t n; /* spaces */
	struct tn_space *space[GROUPS_MAX];
	struct tn_pool *pool[GROUPS_MAX];
	uint32_t *pages;
	double *seconds[FIGURES];
};

struct rig {
	const struct shares_args *a;
	struct tn_cache *cache;
	struct tn_geometry g;
	struct tn_head_groups h;
	struct cli_pool whole; /* the rank's pages, and the pool of its own share */
	char *memory;
	uint64_t bytes;
	struct tn_key *keys;
	struct side rank, heads;
};

static int open_space(struct rig *r, const struct tn_geometry *g, uint32_t group, uint32_t groups, struct tn_space **out)
{
	struct tn_identity id;
	struct tn_shard shard;

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "shares";
	shard.tp_size = (uint32_t)r->a->tp_size;
	shard.head_group = group;
	shard.head_groups = groups;
	return tn_space_open(r->cache, &id, &shard, g, NULL, out);
}

static int open_rank_side(struct rig *r)
{
	r->rank.n = 1;
	r->rank.pool[0] = r->whole.pool;
	return open_space(r, &r->g, 0, 0, &r->rank.space[0]);
}

static int open_heads_side(struct rig *r)
{
	uint64_t *base = calloc((size_t)r->g.layers * r->g.nplanes, sizeof(*base));
	struct tn_pool_layout view;
	struct tn_geometry g;
	int rc = base ? tn_head_group_geometry(&r->g, &r->h, &g) : -ENOMEM;

	for (uint32_t i = 0; rc == 0 && i < r->h.count; i++) {
		rc = tn_head_group_layout(&r->g, &r->whole.layout, &r->h, i, base, &view);
		if (rc == 0)
			rc = tn_pool_create(r->whole.memory, &g, &view, &r->heads.pool[i]);
		if (rc == 0)
			rc = open_space(r, &g, r->h.first + i, r->h.total, &r->heads.space[i]);
		r->heads.n = i + 1;
	}
	free(base);
	return rc;
}

static int open_cache(struct rig *r, const char *dir)
{
	struct tn_cache_opts o;

	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	o.disk_bytes = KEPT * r->a->blocks * tn_geometry_block_bytes(&r->g) * 5 / 4;
	o.geometry = &r->g;
	o.policy = "lru"; /* admits everything */
	o.executors = (uint32_t)r->a->executors;
	return tn_cache_open(&o, &r->cache);
}

static int open_rig(struct rig *r, const char *dir)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096, .npages = r->a->blocks * r->a->pages};
	const struct tn_rank_heads rank = {.tp_size = (uint32_t)r->a->tp_size, .kv_heads = 8};
	int rc = tn_model_find("llama3-8b", &r->g);

	if (rc)
		return rc;
	r->g.layers = (uint32_t)r->a->layers;
	r->g.page_tokens = 16;
	r->g.pages_per_block = (uint32_t)r->a->pages;
	r->g.page_order = TN_PAGE_HND;
	for (uint32_t i = 0; i < r->g.nplanes; i++)
		r->g.planes[i].heads = 8 / rank.tp_size;
	rc = tn_head_groups_of(&r->g, &rank, 8, &r->h);
	if (rc == 0)
		rc = open_cache(r, dir);
	if (rc)
		return rc;
	r->bytes = cli_pool_bytes(&r->g, &shape);
	r->memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->keys = calloc(r->a->blocks, sizeof(*r->keys));
	r->rank.pages = calloc(shape.npages, sizeof(*r->rank.pages));
	if (r->memory == MAP_FAILED || !r->keys || !r->rank.pages)
		return -ENOMEM;
	madvise(r->memory, r->bytes, MADV_HUGEPAGE);
	for (uint64_t at = 0; at < r->bytes; at += 8)
		memcpy(r->memory + at, &(uint64_t){at * 0x9e3779b97f4a7c15u}, 8);
	for (uint64_t i = 0; i < shape.npages; i++)
		r->rank.pages[i] = (uint32_t)i;
	r->heads.pages = r->rank.pages; /* of TN_PAGE_HND the same */
	rc = cli_pool_open(r->cache, &r->g, &shape, r->memory, &r->whole);
	if (rc == 0)
		rc = open_rank_side(r);
	return rc ? rc : open_heads_side(r);
}

static void close_rig(struct rig *r)
{
	for (uint32_t i = 0; i < r->heads.n; i++) {
		tn_space_close(r->heads.space[i]);
		tn_pool_destroy(r->heads.pool[i]);
	}
	tn_space_close(r->rank.space[0]);
	cli_pool_close(&r->whole);
	if (r->cache)
		tn_cache_close(r->cache);
	if (r->memory && r->memory != MAP_FAILED)
		munmap(r->memory, r->bytes);
	free(r->rank.pages);
	free(r->keys);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* New blocks of all of the side's spaces, until they are stored. */
static int save(struct rig *r, struct side *s, size_t round)
{
	uint64_t start = cli_now_ns(), until = start + PATIENCE_NS, cpu = cpu_ns();
	struct tn_save *saves[GROUPS_MAX];
	uint32_t begun = 0;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < s->n; i++) {
		rc = tn_save_begin(s->space[i], s->pool[i], r->keys, r->a->blocks, s->pages, NULL, &saves[i]);
		begun += rc == 0;
	}
	for (uint32_t layer = 0; layer < r->g.layers; layer++)
		for (uint32_t i = 0; rc == 0 && i < s->n; i++)
			rc = tn_save_layer(saves[i], layer, NULL, 0);
	for (uint32_t i = 0; i < begun; i++) {
		if (rc == 0)
			rc = tn_save_commit(saves[i]);
		else
			tn_save_abort(saves[i]);
	}
	for (uint32_t i = 0; i < begun; i++) {
		struct tn_save_result result = {.size = sizeof(result)};
		int ended = tn_save_end(saves[i], until, &result);

		rc = rc ? rc : ended;
		if (rc == 0 && result.stored != r->a->blocks)
			rc = result.error ? result.error : -ENOSPC;
	}
	s->seconds[SAVE][round] = (double)(cli_now_ns() - start) / 1e9;
	s->seconds[SAVE_CPU][round] = (double)(cpu_ns() - cpu) / 1e9;
	return rc;
}

static int load(struct rig *r, struct side *s, size_t round)
{
	uint64_t start = cli_now_ns(), until = start + PATIENCE_NS, cpu = cpu_ns();
	struct tn_load *loads[GROUPS_MAX];
	uint32_t begun = 0;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < s->n; i++) {
		rc = tn_load_begin(s->space[i], s->pool[i], r->keys, r->a->blocks, s->pages, NULL, &loads[i]);
		begun += rc == 0;
		if (rc == 0)
			tn_load_poll(loads[i], r->g.layers - 1); /* all layers are wanted */
	}
	for (uint32_t i = 0; i < begun; i++) {
		int good = tn_load_wait(loads[i], r->g.layers - 1, until);

		if (rc == 0 && good != (int)r->a->blocks)
			rc = good < 0 ? good : -EIO;
	}
	s->seconds[LOAD][round] = (double)(cli_now_ns() - start) / 1e9;
	s->seconds[LOAD_CPU][round] = (double)(cpu_ns() - cpu) / 1e9;
	for (uint32_t i = 0; i < begun; i++)
		tn_load_end(loads[i], until, NULL);
	return rc;
}

static int run_round(struct rig *r, size_t round)
{
	struct side *order[2] = {&r->rank, &r->heads};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < 2; i++) {
		struct side *s = order[(round + i) % 2];

		for (uint32_t b = 0; b < r->a->blocks; b++)
			r->keys[b] = (struct tn_key){{(b + 1) * 0x9e3779b97f4a7c15u, (round << 32) + b + 1}};
		rc = save(r, s, round);
		if (rc == 0)
			rc = tn_flush(r->cache, cli_now_ns() + PATIENCE_NS);
		if (rc == 0)
			rc = load(r, s, round);
	}
	return rc;
}

static const char *const names[FIGURES] = {"save", "load", "save_cpu", "load_cpu"};

/* Rank's time over head groups' time, round by round: above 1 head groups are faster. */
static double *ratios(const struct rig *r, int figure, double *out)
{
	for (size_t i = 0; i < r->a->rounds; i++)
		out[i] = r->rank.seconds[figure][i] / r->heads.seconds[figure][i];
	return out;
}

static double rate(const struct rig *r, double seconds)
{
	return (double)(r->a->blocks * tn_geometry_block_bytes(&r->g)) / seconds / 1e6;
}

static int print(struct rig *r, double *ratio)
{
	const bool left[] = {true, false, false, false, false};
	const size_t n = (size_t)r->a->rounds;
	struct cli_table t;

	printf("TP %llu: %u head groups of %u; %llu blocks of %.1f MiB, medians of %zu rounds\n\n", (unsigned long long)r->a->tp_size, r->h.count, r->h.heads,
	       (unsigned long long)r->a->blocks, (double)tn_geometry_block_bytes(&r->g) / 1048576, n);
	cli_table_init(&t, 5, left);
	cli_table_cell(&t, "of");
	cli_table_cell(&t, "own share: MB per s");
	cli_table_cell(&t, "head groups");
	cli_table_cell(&t, "ratio");
	cli_table_cell(&t, "of the best rounds");
	for (int f = 0; f < FIGURES; f++) {
		double median = bench_median(ratios(r, f, ratio), n);

		cli_table_cell(&t, "%s", names[f]);
		cli_table_cell(&t, "%.0f", rate(r, bench_median(r->rank.seconds[f], n))); /* sorts */
		cli_table_cell(&t, "%.0f", rate(r, bench_median(r->heads.seconds[f], n)));
		cli_table_cell(&t, "%.2f", median);
		cli_table_cell(&t, "%.2f", r->rank.seconds[f][0] / r->heads.seconds[f][0]);
	}
	cli_table_print(&t, stdout, true);
	return cli_finish(CLI_OK);
}

static json_t *as_json(struct rig *r, double *ratio)
{
	json_t *o = json_object();

	json_object_set_new(o, "tp_size", json_integer((json_int_t)r->a->tp_size));
	json_object_set_new(o, "head_groups", json_integer(r->h.count));
	json_object_set_new(o, "rounds", json_integer((json_int_t)r->a->rounds));
	for (int f = 0; f < FIGURES; f++) {
		char name[32];

		snprintf(name, sizeof(name), "%s_ratio", names[f]);
		json_object_set_new(o, name, json_real(bench_median(ratios(r, f, ratio), (size_t)r->a->rounds)));
		snprintf(name, sizeof(name), "%s_own_share_mbps", names[f]);
		json_object_set_new(o, name, json_real(rate(r, bench_median(r->rank.seconds[f], (size_t)r->a->rounds))));
		snprintf(name, sizeof(name), "%s_head_groups_mbps", names[f]);
		json_object_set_new(o, name, json_real(rate(r, bench_median(r->heads.seconds[f], (size_t)r->a->rounds))));
	}
	return o;
}

/* In a directory that is made for it, and removed. */
static int run(struct rig *r, struct cli_progress *progress)
{
	char dir[4096];
	int rc = cli_scratch_dir(r->a->dir, "/dev/shm", dir, sizeof(dir));

	if (rc)
		return rc;
	rc = open_rig(r, dir);
	for (size_t i = 0; i < r->a->rounds && rc == 0 && !cli_interrupted(); i++) {
		rc = run_round(r, i);
		cli_progress_step(progress, i + 1);
	}
	if (cli_interrupted())
		rc = cli_error(CLI_ENVIRONMENT, "interrupted");
	else if (rc)
		rc = cli_fail(rc, "%s", dir);
	close_rig(r);
	cli_remove_tree(dir);
	return rc;
}

int cmd_bench_shares(int argc, char **argv)
{
	struct shares_args a = {.tp_size = 1, .layers = 16, .blocks = 16, .pages = 16, .rounds = 10};
	struct cli_progress progress;
	struct rig r = {.a = &a};
	double *v;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.tp_size & (a.tp_size - 1))
		return cli_error(CLI_USAGE, "--tp: %llu: 1, 2, 4 or 8", (unsigned long long)a.tp_size);
	v = calloc((size_t)a.rounds * (2 * FIGURES + 1), sizeof(*v));
	if (!v)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	for (int f = 0; f < FIGURES; f++) {
		r.rank.seconds[f] = v + 2 * (size_t)f * a.rounds;
		r.heads.seconds[f] = v + (2 * (size_t)f + 1) * a.rounds;
	}
	cli_catch_interrupts();
	cli_progress_begin(&progress, "bench shares", a.rounds);
	rc = run(&r, &progress);
	cli_progress_end(&progress);
	if (rc == CLI_OK) {
		double *ratio = v + 2 * FIGURES * (size_t)a.rounds;

		rc = a.json ? cli_json(as_json(&r, ratio)) : print(&r, ratio);
	}
	free(v);
	return rc;
}
