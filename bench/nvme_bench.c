/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench nvme`: what driving NVMe from user space costs, on the software controller.
 *
 * Three questions. How many commands a core submits and sees end: against a device on the same thread that moves nothing, which is the driver alone,
 * and against the software controller on another CPU, which moves 4 KiB for each. How near objects come to memcpy, which is what that
 * controller moves them by: through the I/O engine, and through a whole store. And how long it takes until a layer of a 64K-token prefix is in
 * the queue. The rows of each question take turns, and figures of one round are compared with those of the same round.
 *
 * The software controller looks at nothing that costs time here, but for the row that says so; no drive is needed, and none is measured.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/nvme_bench.h"
#include "nvme_bench.h"

#define ROUNDS_MAX 1000u
#define DEPTH 32u /* objects under way through the engine */
#define LAYERS 32u /* submitted one after the other, as a load does: the first finds nothing of the executor's in the CPU's cache */

struct nvme_args {
	uint64_t rounds, commands, object, total;
	bool json;
};

static const struct cli_opt options[] = {
	{"rounds", "N", "15", "of each row", CLI_COUNT, offsetof(struct nvme_args, rounds), 3, ROUNDS_MAX},
	{"commands", "N", "100k", "of a row's round", CLI_COUNT, offsetof(struct nvme_args, commands), 1000, 100000000},
	{"object", "SIZE", "128KiB", "object size", CLI_SIZE, offsetof(struct nvme_args, object), 4096, 1u << 20},
	{"total", "SIZE", "256MiB", "bytes of objects that are moved in a round", CLI_SIZE, offsetof(struct nvme_args, total), 1u << 20, 1ull << 30},
	{"json", NULL, NULL, "print every round as JSON", CLI_FLAG, offsetof(struct nvme_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench nvme",
	.about = "Drives NVMe queues against a controller in software: commands per second of one CPU, objects through the I/O engine and "
		 "through a store beside memcpy of the same bytes, and the time to submit a layer of 256 objects of 32 pages. Needs no drive, "
		 "two CPUs, and memory: eight times --total.",
	.opts = options,
};

/* A figure per round. */
struct series {
	const char *key, *name;
	double v[ROUNDS_MAX];
};

enum { ALONE_32, ALONE_256, SOFT_32, SOFT_256, CHECKING_256, PAIRS };

static const struct {
	enum tn_nvme_bench_device device;
	uint32_t depth;
} pairs[PAIRS] = {{TN_NVME_BENCH_NOTHING, 32}, {TN_NVME_BENCH_NOTHING, 256}, {TN_NVME_BENCH_SOFT, 32}, {TN_NVME_BENCH_SOFT, 256},
		  {TN_NVME_BENCH_CHECKING, 256}};

/* Rates of what is measured, and of it over memcpy. */
enum { READ_SGL, WRITE_SGL, READ_PRP, WRITE_PRP, OBJECTS };
enum { SAVE, LOAD, SAVE_UNVERIFIED, LOAD_UNVERIFIED, STORES };
enum { LAYER_READ_SGL, LAYER_READ_PRP, LAYER_WRITE_SGL, LAYER_WRITE_PRP, LAYER_ROWS };

struct bench {
	const struct nvme_args *args;
	struct cli_progress progress;
	uint64_t done;
	struct series pair[PAIRS], object[OBJECTS], object_ratio[OBJECTS], store[STORES], store_ratio[STORES], layer[LAYER_ROWS], layer_first[LAYER_ROWS];
	uint64_t bells[PAIRS];
	uint32_t layer_steps[LAYER_ROWS], layer_bells[LAYER_ROWS]; /* of the worst round */
};

static const struct bench empty = {
	.pair = {{.key = "driver_32", .name = "the driver alone, 32 deep"},
		 {.key = "driver_256", .name = "the driver alone, 256 deep"},
		 {.key = "controller_32", .name = "controller on another CPU, 32 deep"},
		 {.key = "controller_256", .name = "controller on another CPU, 256 deep"},
		 {.key = "checking_256", .name = "likewise, and it checks everything"}},
	.object = {{.key = "engine_read_sgl", .name = "I/O engine, read, SGL"},
		   {.key = "engine_write_sgl", .name = "I/O engine, write, SGL"},
		   {.key = "engine_read_prp", .name = "I/O engine, read, PRP"},
		   {.key = "engine_write_prp", .name = "I/O engine, write, PRP"}},
	.object_ratio = {{.key = "engine_read_sgl_ratio"}, {.key = "engine_write_sgl_ratio"}, {.key = "engine_read_prp_ratio"},
			 {.key = "engine_write_prp_ratio"}},
	.store = {{.key = "store_save", .name = "store, save and flush"},
		  {.key = "store_load", .name = "store, load"},
		  {.key = "store_save_unverified", .name = "store without checksums, save"},
		  {.key = "store_load_unverified", .name = "store without checksums, load"}},
	.store_ratio = {{.key = "store_save_ratio"}, {.key = "store_load_ratio"}, {.key = "store_save_unverified_ratio"},
			{.key = "store_load_unverified_ratio"}},
	.layer = {{.key = "layer_read_sgl", .name = "read, SGL"},
		  {.key = "layer_read_prp", .name = "read, PRP"},
		  {.key = "layer_write_sgl", .name = "write, SGL"},
		  {.key = "layer_write_prp", .name = "write, PRP"}},
	.layer_first = {{.key = "layer_read_sgl_first"}, {.key = "layer_read_prp_first"}, {.key = "layer_write_sgl_first"},
			{.key = "layer_write_prp_first"}},
};

static int step(struct bench *b, int rc)
{
	cli_progress_step(&b->progress, ++b->done);
	return rc ? rc : cli_interrupted() ? -EINTR : 0;
}

/* ---- measuring: each question's rows, round by round ------------------------------------------------------------- */

static int measure_pairs(struct bench *b)
{
	struct tn_pair_bench *p[PAIRS] = {NULL};
	int rc = 0;

	for (int i = 0; i < PAIRS && rc == 0; i++)
		rc = tn_pair_bench_create(pairs[i].device, pairs[i].depth, &p[i]);
	for (uint64_t round = 0; round <= b->args->rounds && rc == 0; round++) { /* the first one warms up */
		for (int i = 0; i < PAIRS && rc == 0; i++) {
			double ns;

			rc = tn_pair_bench_run(p[i], (uint32_t)b->args->commands, &ns, &b->bells[i]);
			if (rc == 0 && round)
				b->pair[i].v[round - 1] = 1e9 / ns;
		}
		rc = step(b, rc);
	}
	for (int i = 0; i < PAIRS; i++)
		tn_pair_bench_destroy(p[i]);
	return rc;
}

static int measure_objects(struct bench *b)
{
	const struct nvme_args *a = b->args;
	struct tn_object_bench *o[2] = {NULL}; /* SGL, PRP */
	int rc = tn_object_bench_create(true, (uint32_t)a->object, a->total / a->object * a->object, DEPTH, &o[0]);

	if (rc == 0)
		rc = tn_object_bench_create(false, (uint32_t)a->object, a->total / a->object * a->object, DEPTH, &o[1]);
	for (uint64_t round = 0; round <= a->rounds && rc == 0; round++) {
		for (int i = 0; i < OBJECTS && rc == 0; i++) {
			struct tn_object_bench_figures f;

			rc = tn_object_bench_run(o[i / 2], i % 2, round % 2, &f);
			if (rc || !round)
				continue;
			b->object[i].v[round - 1] = (double)(a->total / a->object * a->object) / f.engine_s;
			b->object_ratio[i].v[round - 1] = f.memcpy_s / f.engine_s;
		}
		rc = step(b, rc);
	}
	tn_object_bench_destroy(o[0]);
	tn_object_bench_destroy(o[1]);
	return rc;
}

static int measure_store(struct bench *b, bool verify)
{
	const struct nvme_args *a = b->args;
	uint32_t row = verify ? SAVE : SAVE_UNVERIFIED;
	struct nvme_store *s = NULL;
	int rc = nvme_store_open(a->object, a->total, verify, &s), end;

	for (uint64_t round = 0; round < a->rounds && rc == 0; round++) {
		struct nvme_store_figures f;

		rc = nvme_store_round(s, round % 2, &f);
		for (int op = 0; op < NVME_STORE_OPS && rc == 0; op++) {
			b->store[row + op].v[round] = (double)nvme_store_bytes(s) / f.store_s[op];
			b->store_ratio[row + op].v[round] = f.memcpy_s[op] / f.store_s[op];
		}
		rc = step(b, rc);
	}
	end = nvme_store_close(s);
	return rc ? rc : end;
}

/* Of a round: the first layer, and the median of those that follow. */
static int measure_row_of_layers(struct bench *b, struct tn_layer_bench *l, int row, uint64_t round)
{
	double us[LAYERS];

	for (uint32_t i = 0; i < LAYERS; i++) {
		struct tn_layer_bench_figures f;
		int rc = tn_layer_bench_run(l, row / 2, &f);

		if (rc)
			return rc;
		us[i] = f.us;
		b->layer_steps[row] = f.steps > b->layer_steps[row] ? f.steps : b->layer_steps[row];
		b->layer_bells[row] = f.bells > b->layer_bells[row] ? f.bells : b->layer_bells[row];
	}
	b->layer_first[row].v[round] = us[0];
	b->layer[row].v[round] = bench_median(us + 1, LAYERS - 1);
	return 0;
}

static int measure_layers(struct bench *b)
{
	struct tn_layer_bench *l[2] = {NULL}; /* SGL, PRP */
	int rc = tn_layer_bench_create(true, &l[0]);

	if (rc == 0)
		rc = tn_layer_bench_create(false, &l[1]);
	for (uint64_t round = 0; round < b->args->rounds && rc == 0; round++) {
		for (int i = 0; i < LAYER_ROWS && rc == 0; i++) /* from one to the other, so that each row's first layer is one */
			rc = measure_row_of_layers(b, l[i % 2], i, round);
		rc = step(b, rc);
	}
	tn_layer_bench_destroy(l[0]);
	tn_layer_bench_destroy(l[1]);
	return rc;
}

static int measure(struct bench *b)
{
	int rc = measure_pairs(b);

	if (rc == 0)
		rc = measure_objects(b);
	if (rc == 0)
		rc = measure_store(b, true);
	if (rc == 0)
		rc = measure_store(b, false);
	return rc ? rc : measure_layers(b);
}

/* ---- the result ------------------------------------------------------------------------------------------------------ */

static void cell(struct cli_table *t, const struct series *s, size_t n, double unit, int digits)
{
	double v[ROUNDS_MAX], low, high, median;

	memcpy(v, s->v, n * sizeof(*v));
	median = bench_median(v, n) / unit;
	bench_median_interval(v, n, &low, &high);
	cli_table_cell(t, "%.*f", digits, median);
	cli_table_cell(t, "%.*f - %.*f", digits, low / unit, digits, high / unit);
}

static void heads(struct cli_table *t, size_t columns, const char *const *text)
{
	const bool left[CLI_COLUMNS_MAX] = {true};

	cli_table_init(t, columns, left);
	for (size_t i = 0; i < columns; i++)
		cli_table_cell(t, "%s", text[i]);
}

static void print_pairs(const struct bench *b, size_t n)
{
	static const char *const text[] = {"reads of 4 KiB on one pair of queues", "M/s", "95 % interval", "per doorbell"};
	struct cli_table t;

	heads(&t, 4, text);
	for (int i = 0; i < PAIRS; i++) {
		cli_table_cell(&t, "%s", b->pair[i].name);
		cell(&t, &b->pair[i], n, 1e6, 2);
		cli_table_cell(&t, "%.0f", (double)b->args->commands / (double)b->bells[i]);
	}
	cli_table_print(&t, stdout, true);
}

static void print_rates(const char *head, const struct series *rate, const struct series *ratio, int rows, size_t n)
{
	const char *const text[] = {head, "GB/s", "95 % interval", "of memcpy", "95 % interval"};
	struct cli_table t;

	heads(&t, 5, text);
	for (int i = 0; i < rows; i++) {
		cli_table_cell(&t, "%s", rate[i].name);
		cell(&t, &rate[i], n, 1e9, 2);
		cell(&t, &ratio[i], n, 1, 3);
	}
	cli_table_print(&t, stdout, true);
}

static void print_layers(const struct bench *b, size_t n)
{
	static const char *const text[] = {"us from the IOCB to the doorbell", "a layer", "95 % interval", "the first one", "95 % interval", "steps",
					   "doorbells"};
	struct cli_table t;

	printf("A layer of a 64K-token prefix: %u objects of %u pages of 4 KiB. Of %u in a row the first, and the median of the others:\n\n",
	       TN_LAYER_BENCH_OBJECTS, TN_LAYER_BENCH_PAGES, LAYERS);
	heads(&t, 7, text);
	for (int i = 0; i < LAYER_ROWS; i++) {
		cli_table_cell(&t, "%s", b->layer[i].name);
		cell(&t, &b->layer[i], n, 1, 1);
		cell(&t, &b->layer_first[i], n, 1, 1);
		cli_table_cell(&t, "%u", b->layer_steps[i]);
		cli_table_cell(&t, "%u", b->layer_bells[i]);
	}
	cli_table_print(&t, stdout, true);
}

static int print(const struct bench *b)
{
	size_t n = (size_t)b->args->rounds;
	char s[32];

	printf("On the software controller, which moves bytes by memcpy; %zu rounds, medians\n\n", n);
	print_pairs(b, n);
	printf("\nThe driver alone: a device on the same thread ends commands and moves nothing; its time does not count.\n"
	       "Else: the software controller has a CPU of its own, moves the bytes, and limits the rate.\n\n");
	cli_bytes(s, (double)b->args->object);
	printf("Objects of %s, beside memcpy of the same bytes in the same round:\n\n", s);
	print_rates("the engine, 32 under way", b->object, b->object_ratio, OBJECTS, n);
	printf("\n");
	print_rates("the store, all of a round in one call", b->store, b->store_ratio, STORES, n);
	printf("\n");
	print_layers(b, n);
	return cli_finish(CLI_OK);
}

static void add(json_t *o, const struct series *s, int rows, size_t n)
{
	for (int i = 0; i < rows; i++) {
		json_t *all = json_array();

		for (size_t k = 0; k < n; k++)
			json_array_append_new(all, json_real(s[i].v[k]));
		json_object_set_new(o, s[i].key, all);
	}
}

/* Commands and bytes per second, ratios, and us: every round. */
static json_t *as_json(const struct bench *b)
{
	size_t n = (size_t)b->args->rounds;
	json_t *o = json_object();

	add(o, b->pair, PAIRS, n);
	add(o, b->object, OBJECTS, n);
	add(o, b->object_ratio, OBJECTS, n);
	add(o, b->store, STORES, n);
	add(o, b->store_ratio, STORES, n);
	add(o, b->layer, LAYER_ROWS, n);
	add(o, b->layer_first, LAYER_ROWS, n);
	json_object_set_new(o, "object_bytes", json_integer((json_int_t)b->args->object));
	return o;
}

int cmd_bench_nvme(int argc, char **argv)
{
	struct nvme_args a = {.rounds = 15, .commands = 100000, .object = 128u << 10, .total = 256u << 20};
	struct bench *b;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.object % 4096)
		return cli_error(CLI_USAGE, "--object: %llu is no multiple of 4096", (unsigned long long)a.object);
	if (a.total / a.object < DEPTH)
		return cli_error(CLI_USAGE, "--total: at least %u objects, %llu bytes", DEPTH, (unsigned long long)(a.object * DEPTH));
	b = malloc(sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	*b = empty;
	b->args = &a;
	cli_catch_interrupts();
	cli_progress_begin(&b->progress, "bench nvme", 5 * a.rounds + 2);
	rc = measure(b);
	cli_progress_end(&b->progress);
	if (rc == -EINTR)
		rc = cli_error(CLI_ENVIRONMENT, "interrupted");
	else if (rc)
		rc = cli_fail(rc, NULL);
	else
		rc = a.json ? cli_json(as_json(b)) : print(b);
	free(b);
	return rc;
}
