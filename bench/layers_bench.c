/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench layers`: when the first layer of a load is there, on a disk that has nothing else to do.
 *
 * Alternately: a load of one layer alone, and a load of whole blocks with as many objects per layer. The first layer of the
 * second load should be there as soon as that of the first, and the last layer no later than in a load without layers.
 *
 * With --cold: whole loads whose headers are not cached and that are waited for as a whole, alternately with one plain
 * O_DIRECT read of as many bytes of a file, and with a pass of XXH3 over as much memory.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <tenuto/cache.h>

#include "../cli/content.h"
#include "../cli/pool.h"
#include "attached.h"

#define PATIENCE_NS 120000000000ull
#define ROUNDS_MAX 1000u
#define SETS_MAX 64u	   /* loads of different blocks, so that no two in a row read the same */
#define CHECKED_BYTES (256u << 20) /* memory that the checks go round in: more than the CPU caches hold */
#define IDLE_NS 3000000u /* between loads: the device has nothing in flight */

struct layers_args {
	const char *dir;
	const char *socket;
	const char *io_engine;
	const char *scheduler;
	uint64_t object, layers, blocks, total, rounds, depth;
	bool no_verify;
	bool cold;
	bool json;
};

static const struct cli_opt options[] = {
	{"dir", "DIR", "a temporary one", "where to measure (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct layers_args, dir), 0, 0},
	{"socket", "PATH", NULL, BENCH_SOCKET_HELP, CLI_STRING, offsetof(struct layers_args, socket), 0, 0},
	{"object", "SIZE", "128KiB", "object size", CLI_SIZE, offsetof(struct layers_args, object), 4096, 64u << 20},
	{"layers", "N", "32", "objects per block", CLI_COUNT, offsetof(struct layers_args, layers), 2, 256},
	{"blocks", "N", "8", "blocks per load", CLI_COUNT, offsetof(struct layers_args, blocks), 1, 1024},
	{"total", "SIZE", "1GiB", "bytes that are stored, and loaded one set after the other", CLI_SIZE, offsetof(struct layers_args, total), 1u << 20,
	 1ull << 40},
	{"rounds", "N", "100", "loads of each kind", CLI_COUNT, offsetof(struct layers_args, rounds), 1, ROUNDS_MAX},
	{"depth", "N", "64", "io_depth", CLI_COUNT, offsetof(struct layers_args, depth), 1, 4096},
	{"io-engine", "NAME", "auto", "auto, io_uring or posix", CLI_STRING, offsetof(struct layers_args, io_engine), 0, 0},
	{"scheduler", "NAME", "the default", "of the cache", CLI_STRING, offsetof(struct layers_args, scheduler), 0, 0},
	{"no-verify", NULL, NULL, "without checksums", CLI_FLAG, offsetof(struct layers_args, no_verify), 0, 0},
	{"cold", NULL, NULL, "no cached headers, wait for the last layer only, and compare with one plain read of a file", CLI_FLAG,
	 offsetof(struct layers_args, cold), 0, 0},
	{"json", NULL, NULL, "print every load as JSON", CLI_FLAG, offsetof(struct layers_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench layers",
	.about = "When the first layer of a load is there, beside a load of one layer alone, alternately, on an idle disk; "
		 "and the whole load.",
	.opts = options,
};

/* A space with its pool, and the sets of blocks in it. */
struct side {
	struct tn_space *space;
	struct cli_pool pool;
	struct tn_key *keys;
	uint32_t *pages;
	void *memory;
	uint64_t bytes;
	uint32_t layers;
};

enum { ALONE, WHOLE, SIDES };
enum { FIRST_ALONE, FIRST, LAST, PLAIN, CHECKS, FIGURES };

struct bench {
	const struct layers_args *args;
	struct tn_cache *cache;
	struct side side[SIDES];
	uint32_t sets;
	int file; /* --cold: the file of the plain reads, and the memory of the checks */
	unsigned char *checked;
	double figure[FIGURES][ROUNDS_MAX]; /* ms */
	size_t rounds;
};

static uint64_t patience_deadline(void)
{
	return cli_now_ns() + PATIENCE_NS;
}

static int open_cache(struct bench *b, const char *dir, const struct tn_geometry *g)
{
	const struct layers_args *a = b->args;
	struct tn_cache_opts o;

	if (a->socket)
		return bench_attach(a->socket, &b->cache);
	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	/* Enough for a segment of one-layer blocks, and for the slots that are held back. */
	o.disk_blocks = (b->sets * a->blocks) * 5 / 4 + 512;
	o.geometry = g;
	o.io_depth = (uint32_t)a->depth;
	o.io_engine = a->io_engine;
	o.policy = "lru";
	o.verify = !a->no_verify;
	o.header_cache_bytes = a->cold ? 1 : o.header_cache_bytes;
	if (a->scheduler)
		o.scheduler = a->scheduler;
	return tn_cache_open(&o, &b->cache);
}

static int open_side(struct bench *b, struct side *s, uint32_t layers, const char *model)
{
	const struct layers_args *a = b->args;
	uint32_t n = (uint32_t)a->blocks * b->sets, regions;
	const struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096, .npages = a->blocks};
	uint64_t region_bytes, *hash = calloc(n, 16);
	struct tn_geometry g;
	int rc;

	s->layers = layers;
	s->keys = calloc(n, sizeof(*s->keys));
	s->pages = calloc(a->blocks, sizeof(*s->pages));
	rc = hash && s->keys && s->pages ? tn_geometry_raw(layers, a->object, &g) : -ENOMEM;
	if (!rc)
		rc = tn_layout_regions(&g, &shape, &regions, &region_bytes);
	if (!rc)
		rc = bench_space_open(b->cache, model, &g, &s->space);
	for (uint32_t i = 0; !rc && i < n; i++) {
		hash[2 * i] = 1;
		hash[2 * i + 1] = i;
	}
	if (!rc && tn_keys_from_hashes(s->space, hash, 16, n, s->keys, n) != (long)n)
		rc = -EINVAL;
	free(hash);
	if (rc)
		return rc;
	s->bytes = region_bytes * layers;
	if (a->socket) {
		s->memory = bench_memory(s->bytes);
	} else {
		s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(s->memory, s->bytes, MADV_HUGEPAGE);
	}
	if (!s->memory || s->memory == MAP_FAILED)
		return -ENOMEM;
	for (uint32_t l = 0; l < layers; l++)
		content_fill((char *)s->memory + l * region_bytes, region_bytes, 1, l, 0);
	for (uint32_t i = 0; i < a->blocks; i++)
		s->pages[i] = i;
	return cli_pool_open(b->cache, &g, &shape, s->memory, &s->pool);
}

static int save_set(const struct bench *b, const struct side *s, uint32_t set)
{
	uint32_t n = (uint32_t)b->args->blocks;
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save_opts o;
	struct tn_save *save;
	int rc;

	tn_save_opts_init(&o);
	o.parent = set ? &s->keys[set * n - 1] : NULL;
	rc = tn_save_begin(s->space, s->pool.pool, s->keys + (size_t)set * n, n, s->pages, &o, &save);
	for (uint32_t l = 0; !rc && l < s->layers; l++)
		rc = tn_save_layer(save, l, NULL, 0);
	if (!rc)
		rc = tn_save_commit(save);
	if (!rc)
		rc = tn_save_end(save, patience_deadline(), &res);
	/* An owner may keep them in host memory alone. */
	if (!rc && res.stored + (b->args->socket ? res.host_only : 0) != n)
		return res.error ? res.error : -ENOSPC;
	return rc;
}

/* Loads one set: ms until the first layer is there, and until the last. */
static int load_set(const struct bench *b, const struct side *s, uint32_t set, double *first, double *last)
{
	uint32_t n = (uint32_t)b->args->blocks;
	struct timespec idle = {.tv_nsec = IDLE_NS};
	struct tn_load *load;
	uint64_t start, until;
	int rc, good;

	nanosleep(&idle, NULL);
	start = cli_now_ns();
	until = patience_deadline();
	rc = tn_load_begin(s->space, s->pool.pool, s->keys + (size_t)set * n, n, s->pages, NULL, &load);
	if (rc)
		return rc;
	if (!b->args->cold)
		tn_load_wait(load, 0, until);
	*first = (double)(cli_now_ns() - start) * 1e-6;
	for (uint32_t l = 1; l + 1 < s->layers && !b->args->cold; l++)
		tn_load_wait(load, l, until);
	good = tn_load_wait(load, s->layers - 1, until);
	*last = (double)(cli_now_ns() - start) * 1e-6;
	rc = tn_load_end(load, until, NULL);
	if (!rc && good != (int)n)
		rc = good < 0 ? good : -ENODATA;
	return rc;
}

static uint64_t set_bytes(const struct layers_args *a)
{
	return a->object * a->layers * a->blocks;
}

/* Makes the file of the plain reads: as many bytes as all sets, and as cold. */
static int make_plain(struct bench *b, const char *dir)
{
	uint64_t each = set_bytes(b->args);
	char path[4096 + 16];

	b->checked = mmap(NULL, CHECKED_BYTES + each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->checked == MAP_FAILED)
		return -ENOMEM;
	madvise(b->checked, CHECKED_BYTES + each, MADV_HUGEPAGE);
	content_fill(b->checked, CHECKED_BYTES + each, 2, 0, 0);
	snprintf(path, sizeof(path), "%s/plain.dat", dir);
	b->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
	if (b->file < 0)
		return -errno;
	for (uint32_t i = 0; i < b->sets; i++)
		if (pwrite(b->file, b->checked, each, (off_t)(i * each)) != (ssize_t)each)
			return -EIO;
	return fsync(b->file) ? -errno : 0;
}

static int plain_read(struct bench *b, uint32_t set, double *ms)
{
	struct timespec idle = {.tv_nsec = IDLE_NS};
	uint64_t each = set_bytes(b->args), start;

	nanosleep(&idle, NULL);
	start = cli_now_ns();
	if (pread(b->file, b->side[WHOLE].memory, each, (off_t)(set * each)) != (ssize_t)each)
		return -EIO;
	*ms = (double)(cli_now_ns() - start) * 1e-6;
	return 0;
}

/* The time of one pass of checksums over as much memory as a load fills, on this thread. */
static double checksum_pass_ms(const struct bench *b, size_t round)
{
	uint64_t each = set_bytes(b->args), at = round * each % CHECKED_BYTES / 4096 * 4096, start = cli_now_ns();
	volatile uint64_t sum = XXH3_64bits(b->checked + at, each);

	(void)sum;
	return (double)(cli_now_ns() - start) * 1e-6;
}

static int cold_round(struct bench *b, uint32_t set)
{
	size_t i = b->rounds;
	int rc = 0;

	for (int side = 0; !rc && side < 2; side++) {
		if ((i + (size_t)side) % 2 == 0)
			rc = plain_read(b, set, &b->figure[PLAIN][i]);
		else
			rc = load_set(b, &b->side[WHOLE], set, &b->figure[FIRST][i], &b->figure[LAST][i]);
	}
	b->figure[CHECKS][i] = checksum_pass_ms(b, i);
	return rc;
}

static int one_round(struct bench *b, uint32_t set)
{
	size_t i = b->rounds;
	double ignored;
	int rc = 0;

	if (b->args->cold)
		return cold_round(b, set);

	for (int side = 0; !rc && side < SIDES; side++) {
		if ((i + (size_t)side) % 2 == 0)
			rc = load_set(b, &b->side[ALONE], set, &b->figure[FIRST_ALONE][i], &ignored);
		else
			rc = load_set(b, &b->side[WHOLE], set, &b->figure[FIRST][i], &b->figure[LAST][i]);
	}
	return rc;
}

static int run(struct bench *b, const char *dir, struct cli_progress *progress)
{
	const struct layers_args *a = b->args;
	struct tn_geometry g;
	int rc = tn_geometry_raw((uint32_t)a->layers, a->object, &g);

	if (!rc)
		rc = open_cache(b, dir, &g);
	if (!rc)
		rc = open_side(b, &b->side[ALONE], 1, "alone");
	if (!rc)
		rc = open_side(b, &b->side[WHOLE], (uint32_t)a->layers, "whole");
	for (uint32_t i = 0; !rc && i < SIDES * b->sets && !cli_interrupted(); i++)
		rc = save_set(b, &b->side[i % SIDES], i / SIDES);
	if (!rc)
		rc = tn_flush(b->cache, patience_deadline());
	if (!rc && a->cold)
		rc = make_plain(b, dir);
	/* Unless --cold: afterwards the headers are cached, as those of a conversation that goes on are. */
	for (uint32_t i = 0; !rc && i < b->sets; i++)
		rc = one_round(b, i);
	for (; !rc && b->rounds < a->rounds && !cli_interrupted(); b->rounds++) {
		rc = one_round(b, (uint32_t)(b->rounds % b->sets));
		cli_progress_step(progress, b->rounds + 1);
	}
	return rc;
}

static void close_side(struct side *s, bool attached)
{
	cli_pool_close(&s->pool);
	if (attached)
		bench_space_drop(s->space);
	else
		tn_space_close(s->space);
	if (attached)
		bench_memory_free(s->memory);
	else if (s->memory && s->memory != MAP_FAILED)
		munmap(s->memory, s->bytes);
	free(s->pages);
	free(s->keys);
}

/* ---- the result -------------------------------------------------------------------------------------------- */

static void row(struct cli_table *t, const char *name, const double *figure, size_t n, const char *unit)
{
	double v[ROUNDS_MAX], median, low, high;

	memcpy(v, figure, n * sizeof(*v));
	median = bench_median(v, n);
	bench_median_interval(v, n, &low, &high);
	cli_table_cell(t, "%s", name);
	cli_table_cell(t, "%.3f%s", median, unit);
	cli_table_cell(t, "%.3f - %.3f", low, high);
	cli_table_cell(t, "%.3f", v[0]);
	cli_table_cell(t, "%.3f", v[n - 1]);
}

static void ratios(const struct bench *b, double *ratio)
{
	for (size_t i = 0; i < b->rounds; i++)
		ratio[i] = b->figure[FIRST][i] / b->figure[FIRST_ALONE][i];
}

static int print_cold(const struct bench *b, struct cli_table *t)
{
	double ratio[ROUNDS_MAX], least[ROUNDS_MAX];

	for (size_t i = 0; i < b->rounds; i++) {
		ratio[i] = b->figure[LAST][i] / b->figure[PLAIN][i];
		least[i] = (b->figure[LAST][i] - b->figure[CHECKS][i] / 4) / b->figure[PLAIN][i];
	}
	row(t, "one plain read", b->figure[PLAIN], b->rounds, " ms");
	row(t, "the load", b->figure[LAST], b->rounds, " ms");
	row(t, "one pass of XXH3", b->figure[CHECKS], b->rounds, " ms");
	row(t, "load over plain read", ratio, b->rounds, "");
	row(t, "likewise, less a quarter of the pass", least, b->rounds, "");
	cli_table_print(t, stdout, true);
	return cli_finish(CLI_OK);
}

static int print(const struct bench *b)
{
	static const char *const heads[] = {"", "median", "95 % interval", "best", "worst"};
	const bool left[] = {true, false, false, false, false};
	const struct layers_args *a = b->args;
	double ratio[ROUNDS_MAX], rate[ROUNDS_MAX];
	struct cli_table t;
	char s[32];

	ratios(b, ratio);
	for (size_t i = 0; i < b->rounds; i++)
		rate[i] = (double)(a->blocks * a->layers * a->object) * 1e-6 / b->figure[LAST][i];
	printf("%" PRIu64 " blocks of %" PRIu64 " objects of %s; %zu loads of each kind, alternately\n\n", a->blocks, a->layers,
	       cli_bytes(s, (double)a->object), b->rounds);
	cli_table_init(&t, 5, left);
	for (size_t i = 0; i < 5; i++)
		cli_table_cell(&t, "%s", heads[i]);
	if (a->cold)
		return print_cold(b, &t);
	row(&t, "first layer alone", b->figure[FIRST_ALONE], b->rounds, " ms");
	row(&t, "first layer of the whole", b->figure[FIRST], b->rounds, " ms");
	row(&t, "their ratio", ratio, b->rounds, "");
	row(&t, "the whole", b->figure[LAST], b->rounds, " ms");
	row(&t, "its rate", rate, b->rounds, " GB/s");
	cli_table_print(&t, stdout, true);
	return cli_finish(CLI_OK);
}

static json_t *as_json(const struct bench *b)
{
	static const char *const names[FIGURES] = {"first_alone_ms", "first_ms", "whole_ms", "plain_read_ms", "checks_ms"};
	json_t *o = json_object();

	for (int f = 0; f < FIGURES; f++) {
		json_t *all = json_array();

		for (size_t i = 0; i < b->rounds; i++)
			json_array_append_new(all, json_real(b->figure[f][i]));
		json_object_set_new(o, names[f], all);
	}
	json_object_set_new(o, "object_bytes", json_integer((json_int_t)b->args->object));
	json_object_set_new(o, "layers", json_integer((json_int_t)b->args->layers));
	json_object_set_new(o, "blocks", json_integer((json_int_t)b->args->blocks));
	return o;
}

static int measure(struct bench *b)
{
	const struct layers_args *a = b->args;
	struct cli_progress progress;
	char dir[4096];
	int rc = a->socket ? 0 : cli_scratch_dir(a->dir, NULL, dir, sizeof(dir));

	if (rc)
		return rc;
	rc = a->socket ? 0 : cli_check_free_bytes(dir, a->total * 2);
	cli_progress_begin(&progress, "bench layers", a->rounds);
	if (!rc) {
		rc = run(b, dir, &progress);
		if (cli_interrupted())
			rc = cli_error(CLI_ENVIRONMENT, "interrupted");
		else if (rc == -ENOSPC && a->socket)
			rc = cli_error(CLI_ENVIRONMENT, "%s: the owner's cache does not take all blocks of the run: choose a smaller --total", a->socket);
		else if (rc)
			rc = cli_fail(rc, "%s", a->socket ? a->socket : dir);
		for (int i = 0; i < SIDES && b->cache; i++)
			close_side(&b->side[i], a->socket);
		tn_cache_close(b->cache);
		if (b->file > 0)
			close(b->file);
		if (b->checked && b->checked != MAP_FAILED)
			munmap(b->checked, CHECKED_BYTES + set_bytes(a));
	}
	cli_progress_end(&progress);
	if (!a->socket)
		cli_remove_tree(dir);
	return rc;
}

int cmd_bench_layers(int argc, char **argv)
{
	struct layers_args a = {.object = 128u << 10, .layers = 32, .blocks = 8, .total = 1u << 30, .rounds = 100, .depth = 64,
				.io_engine = "auto"};
	struct bench *b;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.socket && (a.dir || a.scheduler || a.no_verify || a.cold || a.depth != 64 || strcmp(a.io_engine, "auto") != 0))
		return cli_error(CLI_USAGE, "--socket: --dir, --depth, --io-engine, --scheduler, --no-verify and --cold are for a cache that this "
				 "benchmark opens itself");
	if (a.total < set_bytes(&a))
		return cli_error(CLI_USAGE, "--total: one load alone takes %" PRIu64 " bytes", set_bytes(&a));
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	b->sets = (uint32_t)(a.total / set_bytes(&a) < SETS_MAX ? a.total / set_bytes(&a) : SETS_MAX);
	cli_catch_interrupts();
	rc = measure(b);
	if (!rc)
		rc = a.json ? cli_json(as_json(b)) : print(b);
	free(b);
	return rc;
}
