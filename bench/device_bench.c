/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench device`: loads and saves of pages in device memory beside those of pages in host memory, from and to the host tier and a disk.
 *
 * Four caches: one of host memory alone, and two of a directory, have two spaces each of this process: one has its pool in host memory, the other in memory
 * that a driver has allocated. The last of them has device memory take the direct way (transfer "direct"), where plugin gds serves. Another cache has a
 * device tier above its host tier, and a pool in device memory alone. All transfers of a round go one after the other, in another order in each round. Ratios are of one round. CPU time is the
 * whole process', so of a driver that copies with the CPU it has that, too. Beside it: what one copy of the same bytes costs.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <tenuto/cache.h>
#include <tenuto/device_memory.h>
#include <tenuto/session.h>

#include "../cli/content.h"
#include "../cli/pool.h"
#include "lab/paced_cache.h"

#define PATIENCE_NS 120000000000ull
#define ROUNDS_MAX 1000u
#define FLIGHTS 2u
#define FLIGHT_BYTES (32ull << 20)
#define COPIES 8u /* that are timed */

enum tier { HOST_TIER, DISK_TIER, DEVICE_TIER, DIRECT_TIER, TIERS };
enum kind { HOST, DEVICE, KINDS };
enum figure { SAVE_GBS, LOAD_GBS, LOAD_CPU, FIGURES };

static const char *const labels[TIERS] = {"host tier", "disk tier", "device tier", "disk, direct"};
static const char *const tiers[TIERS] = {"host", "disk", "device", "direct"};
static const char *const kinds[KINDS] = {"host", "device"};
static const char *const figures[FIGURES] = {"save_gbs", "load_gbs", "load_cpu_s_per_gb"};

struct device_args {
	const char *dir, *driver, *device_model;
	uint64_t device, object, layers, total, stretch, rounds;
	bool json;
};

static const struct cli_opt options[] = {
	{"driver", "NAME", "cuda", "plugin that drives the device (docs/plugins.md)", CLI_STRING, offsetof(struct device_args, driver), 0, 0},
	{"device", "N", "0", "which of its devices", CLI_COUNT, offsetof(struct device_args, device), 0, 1023},
	{"dir", "DIR", "/dev/shm", "where the store lies (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct device_args, dir), 0, 0},
	{"device-model", "NAME", "none", "a drive that the directory, best on tmpfs, is paced as: one of share/devices, or a file", CLI_STRING,
	 offsetof(struct device_args, device_model), 0, 0},
	{"stretch", "N", "16", "divides the described drive's bandwidth", CLI_COUNT, offsetof(struct device_args, stretch), 1, 10000},
	{"object", "SIZE", "128KiB", "object size", CLI_SIZE, offsetof(struct device_args, object), 4096, 64u << 20},
	{"layers", "N", "32", "objects per block", CLI_COUNT, offsetof(struct device_args, layers), 1, 256},
	{"total", "SIZE", "256MiB", "bytes that each side saves and loads per round", CLI_SIZE, offsetof(struct device_args, total), 1u << 20, 1ull << 40},
	{"rounds", "N", "15", "of all sides", CLI_COUNT, offsetof(struct device_args, rounds), 1, ROUNDS_MAX},
	{"json", NULL, NULL, "print every round as JSON", CLI_FLAG, offsetof(struct device_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench device",
	.about = "Saves and loads of pages in device memory beside those of pages in host memory: GB/s, and CPU time per GB.",
	.opts = options,
};

/* A space of a cache, with its pool. */
struct side {
	struct tn_space *space;
	struct cli_pool pool;
	void *memory;
	uint64_t bytes; /* of it */
	struct tn_key *keys;
	uint32_t *pages;
};

struct bench {
	const struct device_args *args;
	const struct tn_device_driver *driver;
	char model[4096]; /* path of the drive's; empty: none */
	char why[512];	  /* nothing takes the direct way; empty: it does */
	int tiers;	  /* that are measured */
	struct tn_cache *cache[TIERS];
	struct side side[TIERS][KINDS];
	uint32_t blocks, batch; /* per round; per load or save */
	double figure[TIERS][KINDS][FIGURES][ROUNDS_MAX];
	double copy_cpu[ROUNDS_MAX]; /* CPU s per GB of one copy */
	double within[ROUNDS_MAX];   /* share of the bytes of the device tier's loads that came from it; the others came from the host tier */
	size_t rounds;
};

/* Nothing comes from the device tier to pages in host memory. */
static bool is_measured(enum tier tier, enum kind kind)
{
	return tier != DEVICE_TIER || kind == DEVICE;
}

static uint64_t patience_deadline(void)
{
	return cli_now_ns() + PATIENCE_NS;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double gb_of(const struct bench *b)
{
	return (double)(b->blocks * b->args->layers * b->args->object) * 1e-9;
}

/* ---- a side ------------------------------------------------------------------------------------------------ */

static int make_memory(const struct bench *b, enum kind kind, struct side *s)
{
	if (kind == DEVICE)
		return b->driver->ops->allocate(b->driver, (uint32_t)b->args->device, s->bytes, &s->memory);
	s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->memory == MAP_FAILED)
		return -ENOMEM;
	madvise(s->memory, s->bytes, MADV_HUGEPAGE);
	content_fill(s->memory, s->bytes, 1, 0, 0);
	return 0;
}

static int make_keys(struct bench *b, struct side *s, uint64_t seed)
{
	uint64_t *hash = calloc(b->blocks, 16);
	long rc;

	for (uint32_t i = 0; hash && i < b->blocks; i++) {
		hash[2 * i] = seed;
		hash[2 * i + 1] = i;
	}
	rc = hash ? tn_keys_from_hashes(s->space, hash, 16, b->blocks, s->keys, b->blocks) : -ENOMEM;
	free(hash);
	return rc == (long)b->blocks ? 0 : (int)rc;
}

static int open_side(struct bench *b, enum tier tier, enum kind kind)
{
	const struct device_args *a = b->args;
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096, .npages = b->batch * FLIGHTS};
	struct side *s = &b->side[tier][kind];
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	int rc = tn_geometry_raw((uint32_t)a->layers, a->object, &g);

	s->keys = calloc(b->blocks, sizeof(*s->keys));
	s->pages = calloc(shape.npages, sizeof(*s->pages));
	if (rc || !s->keys || !s->pages)
		return rc ? rc : -ENOMEM;
	for (uint32_t i = 0; i < shape.npages; i++)
		s->pages[i] = i;
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = kinds[kind];
	rc = tn_space_open(b->cache[tier], &id, &shard, &g, NULL, &s->space);
	s->bytes = cli_pool_bytes(&g, &shape);
	if (!rc)
		rc = make_memory(b, kind, s);
	if (rc)
		return rc;
	return kind == HOST ? cli_pool_open(b->cache[tier], &g, &shape, s->memory, &s->pool)
			    : cli_pool_open_on(b->cache[tier], &g, &shape, s->memory, b->driver, (uint32_t)a->device, &s->pool);
}

static void close_side(struct bench *b, enum tier tier, enum kind kind)
{
	struct side *s = &b->side[tier][kind];

	cli_pool_close(&s->pool);
	tn_space_close(s->space);
	if (s->memory && kind == DEVICE)
		b->driver->ops->release(b->driver, (uint32_t)b->args->device, s->memory);
	free(s->keys);
	free(s->pages);
}

static int open_cache(struct bench *b, enum tier tier, const char *dir)
{
	const struct device_args *a = b->args;
	const struct tn_paced_drive drive = {*b->model ? b->model : NULL, (uint32_t)a->stretch};
	uint32_t blocks = b->blocks * KINDS * 9 / 8 + 64;
	struct tn_cache_opts o;
	struct tn_geometry g;
	int rc = tn_geometry_raw((uint32_t)a->layers, a->object, &g);

	tn_cache_opts_init(&o);
	o.geometry = &g;
	o.policy = "lru";
	o.transfer = tier == DIRECT_TIER ? "direct" : "bounce";
	o.instance = tiers[tier];
	if (tier == DISK_TIER || tier == DIRECT_TIER) {
		o.dirs = &dir;
		o.ndirs = 1;
		o.disk_blocks = blocks;
	} else {
		o.host_bytes = blocks * (a->object * a->layers + 4096);
	}
	if (tier == DEVICE_TIER)
		o.device_tier = (struct tn_device_tier){.bytes = blocks * a->object * a->layers, .driver = b->driver, .device = (uint32_t)a->device};
	if (!rc)
		rc = tier == DISK_TIER || tier == DIRECT_TIER ? tn_paced_cache_open(&o, &drive, &b->cache[tier]) : tn_cache_open(&o, &b->cache[tier]);
	for (int k = 0; !rc && k < KINDS; k++)
		rc = is_measured(tier, (enum kind)k) ? open_side(b, tier, (enum kind)k) : 0;
	return rc;
}

/* ---- saves and loads --------------------------------------------------------------------------------------- */

static int end_save(struct tn_save *save, uint32_t *stored)
{
	struct tn_save_result r = {.size = sizeof(r)};
	int rc = tn_save_end(save, patience_deadline(), &r);

	*stored += r.stored + r.host_only;
	return rc;
}

static int begin_save(struct bench *b, struct side *s, uint32_t at, uint32_t n, const uint32_t *pages, struct tn_save **save)
{
	struct tn_save_opts o;
	int rc;

	tn_save_opts_init(&o);
	o.parent = at ? &s->keys[at - 1] : NULL;
	rc = tn_save_begin(s->space, s->pool.pool, s->keys + at, n, pages, &o, save);
	for (uint32_t l = 0; !rc && l < b->args->layers; l++)
		rc = tn_save_layer(*save, l, NULL, 0);
	return rc ? rc : tn_save_commit(*save);
}

static int end_load(struct bench *b, struct tn_load *load, uint32_t n)
{
	uint64_t until = patience_deadline();
	int good = (int)n, rc;

	for (uint32_t l = 0; l < b->args->layers && good == (int)n; l++)
		good = tn_load_wait(load, l, until);
	rc = tn_load_end(load, until, NULL);
	return rc ? rc : good == (int)n ? 0 : good < 0 ? good : -ENODATA;
}

/* GB/s of all blocks of the side, FLIGHTS batches at a time, and of the flush of saves. */
static int transfer_all(struct bench *b, enum tier tier, struct side *s, bool saves, double *gbs)
{
	union { struct tn_save *save; struct tn_load *load; } op[FLIGHTS] = {{NULL}};
	uint32_t n[FLIGHTS] = {0}, stored = 0, k = 0, at = 0, flights = (b->blocks + b->batch - 1) / b->batch;
	uint64_t start = cli_now_ns();
	int rc = 0;

	for (uint32_t f = 0; !rc && f < flights + FLIGHTS; f++, k = f % FLIGHTS) {
		const uint32_t *pages = s->pages + k * b->batch;

		if (n[k])
			rc = saves ? end_save(op[k].save, &stored) : end_load(b, op[k].load, n[k]);
		n[k] = b->blocks - at < b->batch ? b->blocks - at : b->batch;
		if (rc || !n[k])
			continue;
		if (saves)
			rc = begin_save(b, s, at, n[k], pages, &op[k].save);
		else
			rc = tn_load_begin(s->space, s->pool.pool, s->keys + at, n[k], pages, NULL, &op[k].load);
		at += n[k];
	}
	if (!rc && saves)
		rc = stored == b->blocks ? tn_flush(b->cache[tier], patience_deadline()) : -ENOSPC;
	*gbs = gb_of(b) * 1e9 / (double)(cli_now_ns() - start);
	return rc;
}

static int one(struct bench *b, enum tier tier, enum kind kind, uint64_t seed, double *figure)
{
	struct side *s = &b->side[tier][kind];
	uint64_t before = 0, after = 0;
	double cpu;
	int rc;

	if (tier == DEVICE_TIER) /* its policy keeps what was loaded before, not what came last */
		tn_drop(s->space, s->keys, b->blocks);
	rc = make_keys(b, s, seed);

	if (!rc)
		rc = transfer_all(b, tier, s, true, &figure[SAVE_GBS]);
	tn_cache_stat(b->cache[tier], "loaded_device_bytes", &before);
	cpu = cpu_seconds();
	if (!rc)
		rc = transfer_all(b, tier, s, false, &figure[LOAD_GBS]);
	figure[LOAD_CPU] = (cpu_seconds() - cpu) / gb_of(b);
	tn_cache_stat(b->cache[tier], "loaded_device_bytes", &after);
	if (tier == DEVICE_TIER)
		b->within[b->rounds] = (double)(after - before) * 1e-9 / gb_of(b);
	return rc ? cli_fail(rc, "%s, %s memory", labels[tier], kinds[kind]) : CLI_OK;
}

/* CPU s per GB of one copy by the CPU between memories of the kind that session memory is, object by object. */
static int time_copy(const struct bench *b, double *cpu)
{
	uint64_t object = b->args->object, bytes = b->batch * b->args->layers * object;
	void *from, *to = NULL;
	int rc = tn_memory_alloc(bytes, NULL, &from);

	rc = rc ? rc : tn_memory_alloc(bytes, NULL, &to);
	if (rc == 0) {
		memset(from, 1, bytes);
		memset(to, 2, bytes);
		*cpu = cpu_seconds();
		for (uint32_t i = 0; i < COPIES; i++)
			for (uint64_t at = 0; at < bytes; at += object) {
				memcpy((char *)to + at, (char *)from + at, object);
				__asm__ volatile("" : : "r"(to) : "memory");
			}
		*cpu = (cpu_seconds() - *cpu) / (COPIES * 1e-9 * (double)bytes);
	}
	tn_memory_free(from);
	tn_memory_free(to);
	return rc ? cli_fail(rc, "memory of %llu bytes", (unsigned long long)bytes) : CLI_OK;
}

/* ---- the rounds --------------------------------------------------------------------------------------------- */

static int one_round(struct bench *b, uint64_t round, double figure[TIERS][KINDS][FIGURES])
{
	int rc = CLI_OK;

	for (int t = 0; t < b->tiers; t++)
		for (uint64_t k = round; k < round + KINDS && !rc; k++)
			rc = !is_measured((enum tier)t, (enum kind)(k % KINDS)) ? CLI_OK : one(b, (enum tier)t, (enum kind)(k % KINDS), 1 + round * KINDS + k % KINDS, figure[t][k % KINDS]);
	return rc;
}

/* A paced drive does not pace what goes past its engine. */
static void open_direct(struct bench *b, const char *dir)
{
	int rc = *b->model ? -ENOTSUP : open_cache(b, DIRECT_TIER, dir);

	b->tiers = rc ? DIRECT_TIER : TIERS;
	if (rc)
		snprintf(b->why, sizeof(b->why), "%s", *b->model ? "a drive that is paced" : tn_error_last()->text);
}

static int run(struct bench *b, const char *dir, struct cli_progress *progress)
{
	double figure[TIERS][KINDS][FIGURES];
	int rc = 0;

	for (int t = 0; !rc && t < DIRECT_TIER; t++)
		rc = open_cache(b, (enum tier)t, dir);
	if (rc)
		return cli_fail(rc, "open");
	open_direct(b, dir);
	rc = one_round(b, 0, figure); /* memory is touched, the store's slots are written once */
	for (; !rc && b->rounds < b->args->rounds && !cli_interrupted(); b->rounds++) {
		rc = one_round(b, b->rounds + 1, figure);
		for (int t = 0; t < b->tiers; t++)
			for (int k = 0; k < KINDS; k++)
				for (int f = 0; f < FIGURES; f++)
					b->figure[t][k][f][b->rounds] = figure[t][k][f];
		rc = rc ? rc : time_copy(b, &b->copy_cpu[b->rounds]);
		cli_progress_step(progress, b->rounds + 1);
	}
	return rc ? rc : cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted") : CLI_OK;
}

/* ---- the result --------------------------------------------------------------------------------------------- */

static void cell(struct cli_table *t, double *v, size_t n, int digits)
{
	double low, high, median = bench_median(v, n);

	bench_median_interval(v, n, &low, &high);
	cli_table_cell(t, "%.*f (%.*f - %.*f)", digits, median, digits, low, digits, high);
}

static void row(struct cli_table *t, const struct bench *b, enum tier tier, enum kind kind)
{
	double v[ROUNDS_MAX];

	cli_table_cell(t, "%s, %s memory", labels[tier], kinds[kind]);
	for (int f = 0; f < FIGURES; f++) {
		memcpy(v, b->figure[tier][kind][f], b->rounds * sizeof(*v));
		cell(t, v, b->rounds, f == LOAD_CPU ? 3 : 2);
	}
}

/* Ratios of rates; the CPU time that device memory costs more, in copies of the same bytes. The device tier is compared with the host tier. */
static void compare(struct cli_table *t, const struct bench *b, enum tier tier)
{
	bool tier_itself = tier == DEVICE_TIER;
	double v[ROUNDS_MAX];

	cli_table_cell(t, tier_itself ? "%s against host tier, device memory *" : "%s, device against host *", labels[tier]);
	for (int f = 0; f < FIGURES; f++) {
		for (size_t i = 0; i < b->rounds; i++) {
			double device = b->figure[tier][DEVICE][f][i];
			double host = tier_itself ? b->figure[HOST_TIER][DEVICE][f][i] : b->figure[tier][HOST][f][i];

			v[i] = f == LOAD_CPU ? (device - host) / b->copy_cpu[i] : device / host;
		}
		cell(t, v, b->rounds, 3);
	}
}

static int print(struct bench *b)
{
	static const char *const heads[] = {"", "save GB/s", "load GB/s", "load CPU s/GB"};
	const bool left[] = {true, false, false, false};
	struct cli_table t;
	char s[32];

	printf("%u blocks of %u objects of %s per round, %zu rounds; medians and their 95 %% intervals\n\n", b->blocks, (unsigned)b->args->layers,
	       cli_bytes(s, (double)b->args->object), b->rounds);
	cli_table_init(&t, 4, left);
	for (size_t i = 0; i < 4; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (int tier = 0; tier < b->tiers; tier++) {
		if (is_measured((enum tier)tier, HOST))
			row(&t, b, (enum tier)tier, HOST);
		row(&t, b, (enum tier)tier, DEVICE);
		compare(&t, b, (enum tier)tier);
	}
	cli_table_print(&t, stdout, true);
	printf("\n%.0f %% of the bytes of loads from the device tier came from there\n", 100 * bench_median(b->within, b->rounds));
	printf("* ratio; of CPU time: how many copies of the same bytes by the CPU it is more. One takes %.3f s/GB\n", bench_median(b->copy_cpu, b->rounds));
	if (*b->why)
		printf("Nothing took the direct way: %s\n", b->why);
	return cli_finish(CLI_OK);
}

static json_t *list(const double *v, size_t n)
{
	json_t *all = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(all, json_real(v[i]));
	return all;
}

static json_t *as_json(const struct bench *b)
{
	json_t *o = json_object();

	for (int t = 0; t < b->tiers; t++)
		for (int k = 0; k < KINDS; k++) {
			json_t *side = is_measured((enum tier)t, (enum kind)k) ? json_object() : NULL;
			char name[32];

			if (!side)
				continue;
			for (int f = 0; f < FIGURES; f++)
				json_object_set_new(side, figures[f], list(b->figure[t][k][f], b->rounds));
			snprintf(name, sizeof(name), "%s_tier_%s_memory", tiers[t], kinds[k]);
			json_object_set_new(o, name, side);
		}
	json_object_set_new(o, "copy_cpu_s_per_gb", list(b->copy_cpu, b->rounds));
	json_object_set_new(o, "device_tier_share", list(b->within, b->rounds));
	return o;
}

static void end(struct bench *b)
{
	for (int t = 0; t < TIERS; t++) {
		for (int k = 0; k < KINDS; k++)
			close_side(b, (enum tier)t, (enum kind)k);
		tn_cache_close(b->cache[t]);
	}
}

static int prepare(struct bench *b)
{
	const struct device_args *a = b->args;
	uint64_t block_bytes = a->object * a->layers;
	char detail[256] = "";
	int rc, devices;

	b->blocks = (uint32_t)(a->total / block_bytes);
	b->batch = block_bytes < FLIGHT_BYTES ? (uint32_t)(FLIGHT_BYTES / block_bytes) : 1;
	if (b->blocks == 0)
		return cli_error(CLI_USAGE, "--total: one block alone takes %llu bytes", (unsigned long long)block_bytes);
	rc = a->device_model ? cli_find_device_model(a->device_model, b->model, sizeof(b->model)) : CLI_OK;
	if (rc)
		return rc;
	rc = tn_device_driver_open(a->driver, &b->driver);
	if (rc)
		return cli_fail(rc, "--driver %s", a->driver);
	devices = b->driver->ops->count(b->driver, detail, sizeof(detail));
	if (devices < 0)
		return cli_error(CLI_ENVIRONMENT, "--driver %s: %s", a->driver, detail);
	if (a->device >= (uint64_t)devices)
		return cli_error(CLI_USAGE, "--device %llu: driver %s has %d devices, from 0 on", (unsigned long long)a->device, a->driver, devices);
	return b->driver->ops->allocate ? CLI_OK : cli_error(CLI_USAGE, "--driver %s: it allocates no memory", a->driver);
}

int cmd_bench_device(int argc, char **argv)
{
	struct device_args a = {.driver = "cuda", .dir = "/dev/shm", .object = 128u << 10, .layers = 32, .total = 256u << 20, .stretch = 16, .rounds = 15};
	struct cli_progress progress;
	struct bench *b;
	char dir[4096];
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	cli_catch_interrupts();
	rc = prepare(b);
	if (!rc)
		rc = cli_scratch_dir(a.dir, NULL, dir, sizeof(dir));
	if (rc) {
		free(b);
		return rc;
	}
	rc = cli_check_free_bytes(dir, a.total * (KINDS * 2 + 1));
	cli_progress_begin(&progress, "bench device", a.rounds);
	if (!rc)
		rc = run(b, dir, &progress);
	end(b);
	cli_progress_end(&progress);
	cli_remove_tree(dir);
	if (rc == CLI_OK)
		rc = a.json ? cli_json(as_json(b)) : print(b);
	free(b);
	return rc;
}
