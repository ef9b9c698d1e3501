/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench store`: how fast the store is, and how that compares with fio on the same disk.
 *
 * fio (A) and the store (B) run in the order A B B A, so that a drifting disk harms both alike. Each neighbouring pair
 * gives a ratio; the result is the median of these with its interval. Only the I/O phase is timed on either side, with
 * the final sync of writes. All extents were written before.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAIRS_MAX 100u
#define PAIRS_FOR_INTERVAL 6u /* from this number on order statistics cover 95 % */
#define BEST_LEAST (128u << 10) /* smallest of fio's requests that is tried */
#define BEST_MOST (4u << 20)
#define TMPFS_OBJECTS 16u
#define TMPFS_MAGIC 0x01021994

struct store_args {
	const char *dir;
	const char *io_engine;
	struct cli_strings objects;
	uint64_t total;
	uint64_t pairs;
	uint64_t depth;
	uint64_t layers;
	uint64_t workers;
	bool vs_fio;
	bool no_tmpfs;
	bool no_verify;
	bool json;
};

static const struct cli_opt options[] = {
	{"vs-fio", NULL, NULL, "compare with fio, alternately: at the object size, and at its best request size", CLI_FLAG,
	 offsetof(struct store_args, vs_fio), 0, 0},
	{"dir", "DIR", "a temporary one", "where to measure (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct store_args, dir), 0, 0},
	{"object", "SIZE", "32KiB, 128KiB, 512KiB, 1MiB", "object size; may be repeated", CLI_STRINGS,
	 offsetof(struct store_args, objects), 0, 0},
	{"layers", "N", "16", "objects per block", CLI_COUNT, offsetof(struct store_args, layers), 1, BENCH_OBJECTS_MAX},
	{"total", "SIZE", "1GiB", "bytes of one run", CLI_SIZE, offsetof(struct store_args, total), 1u << 20, 1ull << 40},
	{"pairs", "N", "12", "runs of each side a row", CLI_COUNT, offsetof(struct store_args, pairs), 1, PAIRS_MAX},
	{"depth", "N", "32", "queue depth", CLI_COUNT, offsetof(struct store_args, depth), 1, 1024},
	{"io-engine", "NAME", "auto", "auto, io_uring or posix (fio then uses libaio)", CLI_STRING,
	 offsetof(struct store_args, io_engine), 0, 0},
	{"no-tmpfs", NULL, NULL, "leave out the throughput per CPU on tmpfs", CLI_FLAG,
	 offsetof(struct store_args, no_tmpfs), 0, 0},
	{"no-verify", NULL, NULL, "without checksums", CLI_FLAG, offsetof(struct store_args, no_verify), 0, 0},
	{"workers", "N", "the cache's", "threads that sum", CLI_COUNT, offsetof(struct store_args, workers), 1, 64},
	{"json", NULL, NULL, "print the result, and every run, as JSON", CLI_FLAG, offsetof(struct store_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench store",
	.about = "Measures saving and loading of whole blocks, checksums on, through the public API; with --vs-fio beside fio at the same "
		 "object size and queue depth, and beside fio at the request size (128 KiB to 4 MiB) and queue depth that are best for it, which are "
		 "looked for first; same total and final sync, on written extents. "
		 "All run alternately; GB/s are medians, and ratio is the median over the rounds of store over fio in the same round, not the "
		 "quotient of the two medians beside it. "
		 "CPU is that of the whole process (wait4). Beside it: throughput per CPU on tmpfs, checksums on and off.",
	.opts = options,
};

/* The sides that run alternately. */
enum side { STORE, FIO, FIO_BEST, SIDES };

struct row {
	uint64_t object_bytes;
	enum bench_op op;
	uint64_t best_bytes; /* fio's best request */
	uint32_t best_depth;
	double gbps[SIDES], cpu_per_gb[SIDES];
	double ratio[SIDES], low[SIDES], high[SIDES]; /* of the store over fio */
	double run_gbps[SIDES][PAIRS_MAX], run_cpu[SIDES][PAIRS_MAX];
};

struct tmpfs_row {
	uint64_t object_bytes;
	enum bench_op op;
	bool verify;
	double gbps, per_cpu;
};

#define ROWS_MAX (2 * CLI_STRINGS_MAX)

struct bench {
	const struct store_args *args;
	char dir[4096];
	struct row row[ROWS_MAX];
	size_t rows;
	struct tmpfs_row tmpfs[8];
	size_t tmpfs_rows;
	const char *tmpfs_note;
	struct cli_progress progress;
	uint64_t steps;
	uint64_t seed;
};

static void step(struct bench *b)
{
	cli_progress_step(&b->progress, ++b->steps);
}

static double rate(const struct bench_run *r)
{
	return r->seconds > 0 ? (double)r->bytes * 1e-9 / r->seconds : 0;
}

static double cpu_per_gb(const struct bench_run *r)
{
	return r->bytes ? r->cpu / ((double)r->bytes * 1e-9) : 0;
}

/*
 * One run of the store. Before a write the store forgets all blocks, so that the slots, which were written before, are
 * free.
 */
static int run_store(struct bench *b, struct bench_job *job, struct bench_run *run)
{
	int rc = CLI_OK;

	if (job->op == BENCH_WRITE) {
		rc = bench_child(store_forget, job, run);
		job->seed = ++b->seed;
	}
	return rc ? rc : bench_child(store_transfer, job, run);
}

/* Finds the request size and queue depth with which fio is fastest, by one run of each. */
static int find_best(struct bench *b, const struct bench_job *job, struct row *r)
{
	static const uint32_t depths[] = {4, 32};
	struct bench_job fio = *job;
	struct bench_run run;
	double best = 0;
	int rc = CLI_OK;

	for (uint64_t size = BEST_LEAST; !rc && size <= BEST_MOST && size <= job->total_bytes; size *= 2) {
		for (size_t d = 0; !rc && d < sizeof(depths) / sizeof(depths[0]) && !cli_interrupted(); d++) {
			fio.fio_bytes = size;
			fio.fio_depth = depths[d];
			rc = fio_run(&fio, &run);
			if (rc || rate(&run) <= best)
				continue;
			best = rate(&run);
			r->best_bytes = size;
			r->best_depth = fio.fio_depth;
		}
	}
	step(b);
	return rc;
}

static int run_side(struct bench *b, struct bench_job *job, const struct row *r, enum side side, struct bench_run *run)
{
	struct bench_job fio = *job;

	if (side == STORE)
		return run_store(b, job, run);
	fio.fio_bytes = side == FIO ? job->object_bytes : r->best_bytes;
	fio.fio_depth = side == FIO ? job->depth : r->best_depth;
	return fio_run(&fio, run);
}

static void sum_up(struct row *r, size_t sides, size_t n)
{
	double v[PAIRS_MAX];

	for (size_t k = 0; k < sides; k++) {
		memcpy(v, r->run_gbps[k], n * sizeof(*v));
		r->gbps[k] = bench_median(v, n);
		memcpy(v, r->run_cpu[k], n * sizeof(*v));
		r->cpu_per_gb[k] = bench_median(v, n);
		for (size_t i = 0; i < n; i++)
			v[i] = r->run_gbps[STORE][i] / r->run_gbps[k][i];
		r->ratio[k] = bench_median(v, n);
		bench_median_interval(v, n, &r->low[k], &r->high[k]);
	}
}

/* The rounds of one row: A B C, C B A, A B C ... */
static int measure_row(struct bench *b, struct bench_job *job)
{
	size_t n = (size_t)b->args->pairs, sides = b->args->vs_fio ? SIDES : 1;
	struct row *r = &b->row[b->rows];
	struct bench_run run;
	int rc = CLI_OK;

	r->object_bytes = job->object_bytes;
	r->op = job->op;
	if (b->args->vs_fio)
		rc = find_best(b, job, r);
	for (size_t i = 0; !rc && i < n && !cli_interrupted(); i++) {
		for (size_t k = 0; !rc && k < sides; k++) {
			size_t side = i % 2 ? k : sides - 1 - k;

			rc = run_side(b, job, r, (enum side)side, &run);
			r->run_gbps[side][i] = rate(&run);
			r->run_cpu[side][i] = cpu_per_gb(&run);
		}
		step(b);
	}
	if (rc || cli_interrupted())
		return rc ? rc : cli_error(CLI_ENVIRONMENT, "interrupted");
	sum_up(r, sides, n);
	b->rows++;
	return CLI_OK;
}

/* Writes every extent of both sides once, untimed; leaves the store empty. */
static int prepare(struct bench *b, struct bench_job *job)
{
	struct bench_run run;
	int rc = CLI_OK;

	job->op = BENCH_WRITE;
	job->seed = ++b->seed;
	if (b->args->vs_fio)
		rc = fio_run(job, &run);
	if (!rc)
		rc = bench_child(store_fill, job, &run);
	step(b);
	return rc;
}

static int measure_size(struct bench *b, uint64_t object_bytes)
{
	char sub[4200];
	struct bench_job job = {
		.dir = sub,
		.object_bytes = object_bytes,
		.objects = (uint32_t)b->args->layers,
		.total_bytes = b->args->total / (object_bytes * b->args->layers) * (object_bytes * b->args->layers),
		.depth = (uint32_t)b->args->depth,
		.fio_bytes = object_bytes,
		.fio_depth = (uint32_t)b->args->depth,
		.verify = !b->args->no_verify,
		.workers = (uint32_t)b->args->workers,
		.io_engine = b->args->io_engine,
	};
	int rc;

	/* A lower bound, because the store keeps spare slots. */
	rc = cli_check_free_bytes(b->dir, job.total_bytes * (b->args->vs_fio ? 2 : 1) + 8 * object_bytes * b->args->layers);
	if (rc)
		return rc;
	snprintf(sub, sizeof(sub), "%s/%" PRIu64, b->dir, object_bytes);
	if (mkdir(sub, 0700))
		return cli_error(CLI_ENVIRONMENT, "%s: %s", sub, strerror(errno));
	rc = prepare(b, &job);
	if (!rc)
		rc = measure_row(b, &job);
	job.op = BENCH_READ; /* reads the blocks of the last write */
	if (!rc)
		rc = measure_row(b, &job);
	cli_remove_tree(sub);
	return rc;
}

/* ---- tmpfs ------------------------------------------------------------------------------------- */

static bool tmpfs_direct(const char *dir)
{
	char path[4200];
	struct statfs fs;
	int fd;

	if (statfs(dir, &fs) || fs.f_type != TMPFS_MAGIC)
		return false;
	snprintf(path, sizeof(path), "%s/probe", dir);
	fd = open(path, O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0)
		return false;
	close(fd);
	unlink(path);
	return true;
}

static int measure_tmpfs_row(struct bench *b, struct bench_job *job, enum bench_op op, bool verify)
{
	double gbps[3], per_cpu[3];
	struct bench_run run;
	int rc = CLI_OK;

	job->op = op;
	job->verify = verify;
	for (size_t i = 0; !rc && i < 3; i++) {
		rc = run_store(b, job, &run);
		gbps[i] = rate(&run);
		per_cpu[i] = run.phase_cpu > 0 ? (double)run.bytes * 1e-9 / run.phase_cpu : 0;
		step(b);
	}
	if (!rc)
		b->tmpfs[b->tmpfs_rows++] = (struct tmpfs_row){job->object_bytes, op, verify, bench_median(gbps, 3),
							       bench_median(per_cpu, 3)};
	return rc;
}

static int measure_tmpfs(struct bench *b)
{
	char dir[4096];
	struct bench_job job = {
		.dir = dir,
		.object_bytes = 128u << 10,
		.objects = TMPFS_OBJECTS,
		.total_bytes = 256u << 20,
		.depth = (uint32_t)b->args->depth,
		.verify = true,
		.io_engine = b->args->io_engine,
	};
	struct bench_run run;
	int rc;

	if (cli_temp_dir("/dev/shm", dir, sizeof(dir))) {
		b->tmpfs_note = "no tmpfs at /dev/shm";
		return CLI_OK;
	}
	if (!tmpfs_direct(dir)) {
		b->tmpfs_note = "tmpfs of this kernel has no O_DIRECT (Linux 6.6 and later do)";
		cli_remove_tree(dir);
		return CLI_OK;
	}
	job.seed = ++b->seed;
	rc = bench_child(store_fill, &job, &run);
	for (int verify = 1; !rc && verify >= 0; verify--) {
		rc = measure_tmpfs_row(b, &job, BENCH_WRITE, verify);
		if (!rc)
			rc = measure_tmpfs_row(b, &job, BENCH_READ, verify);
	}
	cli_remove_tree(dir);
	return rc;
}

/* ---- the result -------------------------------------------------------------------------------- */

static const char *op_name(enum bench_op op)
{
	return op == BENCH_READ ? "read" : "write";
}

/* Adds rate and CPU of each round, in order. */
static void add_runs(json_t *j, const char *name, const struct row *r, enum side side, size_t n)
{
	json_t *all = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(all, json_pack("[f, f]", r->run_gbps[side][i], r->run_cpu[side][i]));
	json_object_set_new(j, name, all);
}

static json_t *as_json(const struct bench *b)
{
	json_t *o = json_object(), *rows = json_array(), *tmpfs = json_array();
	struct utsname u;

	for (size_t i = 0; i < b->rows; i++) {
		const struct row *r = &b->row[i];
		json_t *j = json_pack("{s:I, s:s, s:f, s:f}", "object_bytes", (json_int_t)r->object_bytes, "op",
				      op_name(r->op), "gbps", r->gbps[STORE], "cpu_s_per_gb", r->cpu_per_gb[STORE]);

		add_runs(j, "runs", r, STORE, (size_t)b->args->pairs);
		if (b->args->vs_fio) {
			json_object_set_new(j, "fio_gbps", json_real(r->gbps[FIO]));
			json_object_set_new(j, "ratio", json_real(r->ratio[FIO]));
			json_object_set_new(j, "ratio_ci", json_pack("[f, f]", r->low[FIO], r->high[FIO]));
			json_object_set_new(j, "fio_cpu_s_per_gb", json_real(r->cpu_per_gb[FIO]));
			json_object_set_new(j, "fio_best_request_bytes", json_integer((json_int_t)r->best_bytes));
			json_object_set_new(j, "fio_best_depth", json_integer((json_int_t)r->best_depth));
			json_object_set_new(j, "fio_best_gbps", json_real(r->gbps[FIO_BEST]));
			json_object_set_new(j, "best_ratio", json_real(r->ratio[FIO_BEST]));
			json_object_set_new(j, "best_ratio_ci", json_pack("[f, f]", r->low[FIO_BEST], r->high[FIO_BEST]));
			json_object_set_new(j, "fio_best_cpu_s_per_gb", json_real(r->cpu_per_gb[FIO_BEST]));
			add_runs(j, "fio_runs", r, FIO, (size_t)b->args->pairs);
			add_runs(j, "fio_best_runs", r, FIO_BEST, (size_t)b->args->pairs);
		}
		json_array_append_new(rows, j);
	}
	for (size_t i = 0; i < b->tmpfs_rows; i++) {
		const struct tmpfs_row *r = &b->tmpfs[i];

		json_array_append_new(tmpfs, json_pack("{s:I, s:s, s:b, s:f, s:f}", "object_bytes",
						       (json_int_t)r->object_bytes, "op", op_name(r->op), "checksums",
						       (int)r->verify, "gbps", r->gbps, "gbps_per_cpu", r->per_cpu));
	}
	uname(&u);
	json_object_set_new(o, "rows", rows);
	json_object_set_new(o, "tmpfs", tmpfs);
	if (b->tmpfs_note)
		json_object_set_new(o, "tmpfs_note", json_string(b->tmpfs_note));
	json_object_set_new(o, "queue_depth", json_integer((json_int_t)b->args->depth));
	json_object_set_new(o, "total_bytes", json_integer((json_int_t)b->args->total));
	json_object_set_new(o, "objects_per_block", json_integer((json_int_t)b->args->layers));
	json_object_set_new(o, "pairs", json_integer((json_int_t)b->args->pairs));
	json_object_set_new(o, "kernel", json_string(u.release));
	return o;
}

static void print_fio(struct cli_table *t, const struct bench *b, const struct row *r, enum side side)
{
	cli_table_cell(t, "%.3f", r->gbps[side]);
	cli_table_cell(t, "%.3f", r->cpu_per_gb[side]);
	cli_table_cell(t, "%.3f", r->ratio[side]);
	if (b->args->pairs < PAIRS_FOR_INTERVAL)
		cli_table_cell(t, "-");
	else
		cli_table_cell(t, "%.3f - %.3f", r->low[side], r->high[side]);
}

/* Beside fio at the object size, and beside fio at its best. */
static void print_rows(const struct bench *b, enum side side)
{
	const bool left[] = {false, true, false, false, false, false, false, false, true};
	const char *const heads[] = {"object", "op", "GB/s", "CPU s/GB", "fio GB/s", "fio CPU s/GB", "ratio", "95 % interval", "fio's best"};
	size_t columns = side == STORE ? 4 : side == FIO ? 8 : 9;
	struct cli_table t;
	char s[32];

	cli_table_init(&t, columns, left);
	for (size_t i = 0; i < columns; i++)
		cli_table_cell(&t, "%s", heads[i]);
	for (size_t i = 0; i < b->rows; i++) {
		const struct row *r = &b->row[i];

		cli_table_cell(&t, "%s", cli_bytes(s, (double)r->object_bytes));
		cli_table_cell(&t, "%s", op_name(r->op));
		cli_table_cell(&t, "%.3f", r->gbps[STORE]);
		cli_table_cell(&t, "%.3f", r->cpu_per_gb[STORE]);
		if (side != STORE)
			print_fio(&t, b, r, side);
		if (side == FIO_BEST)
			cli_table_cell(&t, "%s, %u deep", cli_bytes(s, (double)r->best_bytes), r->best_depth);
	}
	cli_table_print(&t, stdout, true);
}

static int print(const struct bench *b)
{
	const bool left[] = {false, true, true, false, false};
	struct cli_table t;
	char s[32];

	if (!b->args->vs_fio) {
		print_rows(b, STORE);
	} else {
		puts("beside fio at the object size:");
		print_rows(b, FIO);
		puts("\nbeside fio at its best request size and queue depth:");
		print_rows(b, FIO_BEST);
		putchar('\n');
		cli_wrap(stdout, 0, "ratio: the median over the rounds of store over fio in the same round, not the quotient of the medians beside it");
	}
	if (b->tmpfs_note)
		printf("\nper CPU on tmpfs: %s\n", b->tmpfs_note);
	if (!b->tmpfs_rows)
		return cli_finish(CLI_OK);
	puts("\non tmpfs:");
	cli_table_init(&t, 5, left);
	cli_table_cell(&t, "object");
	cli_table_cell(&t, "op");
	cli_table_cell(&t, "checksums");
	cli_table_cell(&t, "GB/s");
	cli_table_cell(&t, "GB/s per CPU");
	for (size_t i = 0; i < b->tmpfs_rows; i++) {
		const struct tmpfs_row *r = &b->tmpfs[i];

		cli_table_cell(&t, "%s", cli_bytes(s, (double)r->object_bytes));
		cli_table_cell(&t, "%s", op_name(r->op));
		cli_table_cell(&t, "%s", r->verify ? "on" : "off");
		cli_table_cell(&t, "%.2f", r->gbps);
		cli_table_cell(&t, "%.2f", r->per_cpu);
	}
	cli_table_print(&t, stdout, true);
	return cli_finish(CLI_OK);
}

static int parse_sizes(const struct store_args *a, uint64_t *size, size_t *n)
{
	static const uint64_t usual[] = {32u << 10, 128u << 10, 512u << 10, 1u << 20};
	char why[CLI_WHY], total[32], each[32], need[32];

	*n = a->objects.n;
	if (!*n) {
		memcpy(size, usual, sizeof(usual));
		*n = sizeof(usual) / sizeof(usual[0]);
	}
	for (size_t i = 0; i < a->objects.n; i++) {
		if (cli_size(a->objects.item[i], 4096, 64u << 20, &size[i], why))
			return cli_error(CLI_USAGE, "--object: %s", why);
		if (size[i] % 4096)
			return cli_error(CLI_USAGE, "--object %s: must be a multiple of 4 KiB",
					 a->objects.item[i]);
	}
	for (size_t i = 0; i < *n; i++)
		if (a->total < size[i] * a->layers)
			return cli_error(CLI_USAGE, "--total %s: objects of %s need %s at least (%u of them)",
					 cli_bytes(total, (double)a->total), cli_bytes(each, (double)size[i]),
					 cli_bytes(need, (double)(size[i] * a->layers)), (uint32_t)a->layers);
	return CLI_OK;
}

static int measure(struct bench *b, const uint64_t *size, size_t n)
{
	int rc = cli_scratch_dir(b->args->dir, NULL, b->dir, sizeof(b->dir));

	if (rc)
		return rc;
	cli_progress_begin(&b->progress, "bench store",
			   n * (1 + 2 * (b->args->pairs + b->args->vs_fio)) + (b->args->no_tmpfs ? 0 : 12));
	for (size_t i = 0; !rc && i < n; i++)
		rc = measure_size(b, size[i]);
	if (!rc && !b->args->no_tmpfs)
		rc = measure_tmpfs(b);
	cli_progress_end(&b->progress);
	cli_remove_tree(b->dir);
	return rc;
}

int cmd_bench_store(int argc, char **argv)
{
	struct store_args a = {.total = 1u << 30, .pairs = 12, .depth = 32, .layers = 16, .io_engine = "auto"};
	struct bench *b;
	uint64_t size[CLI_STRINGS_MAX];
	size_t n;
	int noperands, rc = cli_parse(&verb, argc, argv, &a, &noperands);

	if (rc != CLI_GO)
		return rc;
	rc = parse_sizes(&a, size, &n);
	if (rc)
		return rc;
	if (a.vs_fio && !bench_program_exists("fio"))
		return cli_error(CLI_ENVIRONMENT, "--vs-fio: there is no fio; on Debian: apt-get install fio");
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	b->seed = 1;
	cli_catch_interrupts();
	rc = measure(b, size, n);
	if (!rc)
		rc = a.json ? cli_json(as_json(b)) : print(b);
	free(b);
	return rc;
}
