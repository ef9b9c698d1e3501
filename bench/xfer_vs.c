/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench xfer --vs`: the agent beside fio, NIXL or ucx_perftest on the same bytes. Runs alternate (A B, B A, ...), each in a process of its own; the ratio is the median over
 * the pairs, with its 95 % interval.
 *
 * fio: one file each, O_DIRECT, sequential, synced at the end of a write; fio has the request size and depth that are best for it, found before; the agent has one
 * request of descriptors of that size. NIXL: the same list of descriptors, prepared before the clock starts: POSIX (io_uring) for file, UCX for memory, and for ucx
 * between two processes, after one transfer that connects them.
 * ucx_perftest: between two processes, the same block again and again, after as many bytes to warm up; it has the number in flight that is best for it.
 */
#include "xfer_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#define PAIRS_MAX 100u
#define BEST_LEAST (128u << 10) /* fio's smallest request that is tried */
#define BEST_MOST (4u << 20)
#define TRY_SHARE 16u		/* of the bytes, to find out what is best for ucx_perftest */
#define PERFTEST_S 8.0		/* a run of ucx_perftest, at most */
#define PATIENCE_NS 120000000000ull
#define DEPTHS 2u

static const uint32_t depths[DEPTHS] = {4, 32};

enum side { OURS, THEIRS, SIDES };

struct versus {
	const struct xfer_bench_args *args;
	char dir[4096], ours[4200], theirs[4200];
	bool file, fio, perftest, peer; /* peer: between two processes */
	const char *op;
	uint64_t total, block, their_bytes; /* their_bytes: ucx_perftest's */
	uint32_t depth; /* theirs: fio's, ucx_perftest's */
	double gbps[SIDES][PAIRS_MAX], cpu[SIDES][PAIRS_MAX]; /* CPU seconds per GB */
};

/* ---- our side, in a child ---------------------------------------------------------------------------------------------- */

static void *map_bytes(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < bytes; i += 8)
		memcpy((char *)p + i, &(uint64_t){i * 0x9e3779b97f4a7c15u}, 8);
	return p;
}

static int make_request(const struct versus *v, struct tn_xfer_agent *a, struct tn_xfer_request **out)
{
	char meta[4300];
	struct tn_xfer_section here = {.bytes = v->total}, there = {.bytes = v->total, .device = 1};
	struct tn_xfer_run run = {.bytes = v->block, .stride = v->block, .count = v->total / v->block};
	enum tn_xfer_segment segment = v->file ? TN_XFER_FILE : TN_XFER_DRAM;
	struct tn_xfer_list *list[2];
	void *mine = map_bytes(v->total), *other = v->file ? NULL : map_bytes(v->total);
	int rc = mine && (other || v->file) ? 0 : -ENOMEM;

	here.address = run.address = (uintptr_t)mine;
	there.address = (uintptr_t)other;
	snprintf(meta, sizeof(meta), "rw,direct:%s", v->ours);
	there.meta = v->file ? meta : NULL;
	if (rc == 0)
		rc = tn_xfer_register(a, TN_XFER_DRAM, &here, 1);
	if (rc == 0)
		rc = tn_xfer_register(a, segment, &there, 1);
	if (rc == 0)
		rc = tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list[0]);
	run.address = there.address;
	run.device = 1;
	if (rc == 0)
		rc = tn_xfer_list_create(a, NULL, segment, &run, 1, &list[1]);
	return rc ? rc : tn_xfer_request_create(a, !strcmp(v->op, "READ") ? TN_XFER_READ : TN_XFER_WRITE, list[0], NULL, list[1], NULL, 0, NULL, out);
}

/* Memory of each side between two processes. */
static uint64_t peer_bytes(const struct versus *v)
{
	return v->perftest ? v->block : v->total;
}

/* Beside ucx_perftest every descriptor is the same block. Beside NIXL the other side's blocks are in reverse order, so that none merge. */
static int make_peer_request(const struct versus *v, const struct xfer_peer *other, struct tn_xfer_agent *a, void *mine, void *theirs,
			     struct tn_xfer_request **out)
{
	struct tn_xfer_section here = {.address = (uintptr_t)mine, .bytes = peer_bytes(v)};
	struct tn_xfer_run run = {.address = (uintptr_t)mine, .bytes = v->block, .stride = v->block, .count = peer_bytes(v) / v->block};
	uint32_t n = (uint32_t)(v->total / v->block), *index = calloc(2 * (size_t)n, sizeof(*index));
	struct tn_xfer_list *list[2];
	int rc = index ? tn_xfer_register(a, TN_XFER_DRAM, &here, 1) : -ENOMEM;

	for (uint32_t i = 0; rc == 0 && !v->perftest && i < n; i++) {
		index[i] = i;
		index[n + i] = n - 1 - i;
	}
	if (rc == 0)
		rc = xfer_peer_load(other, a);
	if (rc == 0)
		rc = tn_xfer_list_create(a, NULL, TN_XFER_DRAM, &run, 1, &list[0]);
	run.address = (uintptr_t)theirs;
	if (rc == 0)
		rc = tn_xfer_list_create(a, XFER_PEER, TN_XFER_DRAM, &run, 1, &list[1]);
	if (rc == 0)
		rc = tn_xfer_request_create(a, !strcmp(v->op, "READ") ? TN_XFER_READ : TN_XFER_WRITE, list[0], index, list[1], index + n, n, NULL, out);
	free(index);
	return rc;
}

static int transfer(struct tn_xfer_request *q)
{
	int rc = tn_xfer_post(q, cli_now_ns() + PATIENCE_NS, NULL, TN_XFER_NO_NOTIFICATION);

	return rc ? rc : tn_xfer_wait(q, TN_FOREVER);
}

/* Of this process, and beside NIXL of the other one, too: ucx_perftest tells its client's alone. */
static double cpu_seconds(const struct versus *v, pid_t other)
{
	struct timespec t = {0};
	clockid_t clock;

	if (other > 0 && !v->perftest && !clock_getcpuclockid(other, &clock))
		clock_gettime(clock, &t);
	return cli_cpu_seconds() + (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* With a request, if rc is 0. fd: of a file that is synced, or -1. other: the peer's process, or 0. */
static void time_request(const struct versus *v, struct tn_xfer_request *q, int fd, pid_t other, int rc, struct bench_run *run)
{
	uint64_t begin = cli_now_ns();

	run->phase_cpu = cpu_seconds(v, other);
	if (rc == 0)
		rc = transfer(q);
	if (rc == 0 && fd >= 0 && !strcmp(v->op, "WRITE") && fdatasync(fd))
		rc = -errno;
	run->seconds = (double)(cli_now_ns() - begin) * 1e-9;
	run->phase_cpu = cpu_seconds(v, other) - run->phase_cpu;
	run->bytes = v->total;
	run->rc = rc ? CLI_PROBLEM : CLI_OK;
	if (rc)
		snprintf(run->why, sizeof(run->why), "%.440s (%s)", tn_error_last()->text, strerror(abs(rc)));
}

/* In a process of its own, which takes all memory with it. */
static void run_within(const void *job, void *result)
{
	const struct versus *v = job;
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *agent;
	struct tn_xfer_request *q = NULL;
	int rc, fd = -1;

	tn_xfer_agent_opts_init(&opts);
	opts.name = "bench";
	opts.backends = &v->args->backend;
	opts.nbackends = 1;
	opts.listen = "none";
	rc = tn_xfer_agent_create(&opts, &agent);
	if (rc == 0)
		rc = make_request(v, agent, &q);
	if (rc == 0 && v->file)
		fd = open(v->ours, O_RDWR | O_CLOEXEC);
	time_request(v, q, fd, 0, rc, result);
}

/* In a process of its own, with another one. The first transfer connects them. */
static void run_between(const void *job, void *result)
{
	const struct versus *v = job;
	void *mine = map_bytes(peer_bytes(v)), *theirs = map_bytes(peer_bytes(v));
	struct tn_xfer_agent *agent;
	struct tn_xfer_request *q = NULL;
	struct xfer_peer other = {0};
	int rc = mine && theirs ? xfer_peer_start(&other, v->args->backend, theirs, peer_bytes(v)) : -ENOMEM;

	if (rc == 0)
		rc = xfer_agent_open("bench", v->args->backend, &agent);
	if (rc == 0)
		rc = make_peer_request(v, &other, agent, mine, theirs, &q);
	if (rc == 0)
		rc = transfer(q);
	time_request(v, q, -1, other.pid, rc, result);
	xfer_peer_end(&other);
}

/* ---- a run of either side ---------------------------------------------------------------------------------------------- */

static int run_fio(const struct versus *v, uint64_t block, uint32_t depth, struct bench_run *run)
{
	struct bench_job job = {.dir = v->dir, .op = !strcmp(v->op, "READ") ? BENCH_READ : BENCH_WRITE, .total_bytes = v->total, .fio_bytes = block,
				.fio_depth = depth, .io_engine = "io_uring"};
	int rc = fio_run(&job, run);

	run->phase_cpu = run->cpu; /* fio's report leaves kernel workers out */
	return rc;
}

static int late(const struct versus *v)
{
	return cli_error(CLI_PROBLEM, "ucx_perftest had not moved blocks of %" PRIu64 " bytes after 60 s (%s): it wants CPUs that are idle", v->block, v->op);
}

static int run_side(const struct versus *v, enum side side, struct bench_run *run)
{
	double cpu;
	int rc;

	*run = (struct bench_run){0};
	if (side == THEIRS && v->perftest) {
		rc = xfer_perftest_run(v->op, v->their_bytes, v->block, v->depth, run);
		return rc == XFER_PERFTEST_LATE ? late(v) : rc;
	}
	if (side == THEIRS && v->peer)
		return xfer_nixl_peer_run(v->args->python, v->op, v->total, v->block, run);
	if (side == THEIRS)
		return v->fio ? run_fio(v, v->block, v->depth, run)
			      : xfer_nixl_run(v->args->python, v->op, v->file ? v->theirs : NULL, v->total, v->block, run);
	rc = bench_fork(v->peer ? run_between : run_within, v, run, sizeof(*run), NULL, &cpu);
	if (rc == CLI_OK && run->rc)
		rc = cli_error((enum cli_exit)run->rc, "%s", run->why);
	return rc;
}

/* A few bytes, so that a side that is slow ends. *rate: bytes per second, 0 if it has not ended. */
static int try_perftest(const struct versus *v, uint32_t depth, double *rate)
{
	struct bench_run run;
	uint64_t bytes = v->total / TRY_SHARE > v->block ? v->total / TRY_SHARE : v->block;
	int rc = xfer_perftest_run(v->op, bytes, v->block, depth, &run);

	*rate = rc == CLI_OK ? (double)run.bytes / run.seconds : 0;
	return rc == XFER_PERFTEST_LATE ? CLI_OK : rc;
}

/* Its best depth, and how many bytes a run of it moves. */
static int find_best_perftest(struct versus *v)
{
	double best = 0, rate;
	int rc = CLI_OK;

	for (size_t d = 0; rc == CLI_OK && d < DEPTHS; d++) {
		rc = try_perftest(v, depths[d], &rate);
		if (rate <= best)
			continue;
		best = rate;
		v->depth = depths[d];
	}
	if (rc == CLI_OK && best <= 0)
		return late(v);
	v->their_bytes = (uint64_t)(best * PERFTEST_S) < v->total ? (uint64_t)(best * PERFTEST_S) : v->total;
	if (v->their_bytes < v->block)
		v->their_bytes = v->block;
	return rc;
}

/* fio's best depth and request size, by one run of each. */
static int find_best_fio(struct versus *v)
{
	double best = 0;
	int rc = CLI_OK;

	for (uint64_t size = BEST_LEAST; rc == CLI_OK && size <= BEST_MOST && size <= v->total; size *= 2)
		for (size_t d = 0; rc == CLI_OK && d < DEPTHS; d++) {
			struct bench_run run;

			rc = run_fio(v, size, depths[d], &run);
			if (rc || (double)run.bytes / run.seconds <= best)
				continue;
			best = (double)run.bytes / run.seconds;
			v->block = size;
			v->depth = depths[d];
		}
	return rc;
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

struct row {
	double gbps[SIDES], cpu[SIDES], ratio, low, high;
};

static void sum_up(const struct versus *v, struct row *r)
{
	size_t n = v->args->pairs;
	double x[PAIRS_MAX];

	for (unsigned side = 0; side < SIDES; side++) {
		memcpy(x, v->gbps[side], n * sizeof(*x));
		r->gbps[side] = bench_median(x, n);
		memcpy(x, v->cpu[side], n * sizeof(*x));
		r->cpu[side] = bench_median(x, n);
	}
	for (size_t i = 0; i < n; i++)
		x[i] = v->gbps[OURS][i] / v->gbps[THEIRS][i];
	r->ratio = bench_median(x, n);
	bench_median_interval(x, n, &r->low, &r->high);
}

static int measure_row(struct versus *v, struct row *r)
{
	struct bench_run run;
	int rc = v->fio ? find_best_fio(v) : v->perftest ? find_best_perftest(v) : CLI_OK;

	for (uint64_t i = 0; i < v->args->pairs && rc == CLI_OK; i++)
		for (unsigned k = 0; k < SIDES && rc == CLI_OK; k++) {
			enum side side = (enum side)(i % 2 ? SIDES - 1 - k : k);

			if (cli_interrupted())
				return cli_error(CLI_ENVIRONMENT, "interrupted");
			rc = run_side(v, side, &run);
			v->gbps[side][i] = (double)run.bytes * 1e-9 / run.seconds;
			v->cpu[side][i] = run.phase_cpu / ((double)run.bytes * 1e-9);
		}
	if (rc == CLI_OK)
		sum_up(v, r);
	return rc;
}

static void add_row(const struct versus *v, const struct row *r, struct cli_table *t, json_t *list)
{
	char s[32];

	if (v->args->json) {
		json_array_append_new(list, json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "op", v->op, "block_bytes", (json_int_t)v->block, "depth",
						      (json_int_t)v->depth, "gb_per_s", r->gbps[OURS], "their_gb_per_s", r->gbps[THEIRS], "ratio", r->ratio,
						      "ratio_low", r->low, "ratio_high", r->high, "cpu_s_per_gb", r->cpu[OURS], "their_cpu_s_per_gb",
						      r->cpu[THEIRS]));
		return;
	}
	cli_table_cell(t, "%s", v->op);
	cli_table_cell(t, "%s", cli_number(s, v->block));
	cli_table_cell(t, "%.2f", r->gbps[OURS]);
	cli_table_cell(t, "%.2f", r->gbps[THEIRS]);
	cli_table_cell(t, "%.3f", r->ratio);
	cli_table_cell(t, "%.3f", r->low);
	cli_table_cell(t, "%.3f", r->high);
	cli_table_cell(t, "%.3f", r->cpu[OURS]);
	cli_table_cell(t, "%.3f", r->cpu[THEIRS]);
}

/* Both sides write their files once, untimed, so that no run has to lay one out. */
static int prepare(struct versus *v)
{
	struct bench_run run;
	int rc;

	v->op = "WRITE";
	v->block = v->fio ? BEST_MOST : v->args->start_block;
	v->depth = 4;
	rc = run_side(v, OURS, &run);
	return rc ? rc : run_side(v, THEIRS, &run);
}

static int measure(struct versus *v, struct cli_table *t, json_t *list)
{
	static const char *const ops[] = {"WRITE", "READ"};
	int rc = v->peer ? CLI_OK : prepare(v);

	for (size_t i = 0; i < 2 && rc == CLI_OK; i++)
		for (uint64_t block = v->args->start_block; block <= v->args->max_block && rc == CLI_OK; block *= 8) {
			struct row r;

			v->op = ops[i];
			v->block = block;
			v->depth = 0;
			rc = measure_row(v, &r);
			if (rc == CLI_OK)
				add_row(v, &r, t, list);
			if (v->fio)
				break; /* it has found its own size */
		}
	return rc;
}

static int check(const struct versus *v)
{
	const struct xfer_bench_args *a = v->args;

	if (!v->fio && !v->perftest && strcmp(a->versus, "nixl"))
		return cli_error(CLI_USAGE, "--vs %s: fio, nixl or ucx_perftest is wanted", a->versus);
	if (v->fio && !v->file)
		return cli_error(CLI_USAGE, "--vs fio: --backend file is wanted, it is %s", a->backend);
	if (v->perftest && strcmp(a->backend, "ucx"))
		return cli_error(CLI_USAGE, "--vs ucx_perftest: --backend ucx is wanted, it is %s", a->backend);
	if (!v->peer && !v->file && strncmp(a->backend, "memory", 6))
		return cli_error(CLI_USAGE, "--vs nixl: --backend file, memory or ucx is wanted, it is %s", a->backend);
	if ((v->fio || v->perftest) && !bench_program_exists(a->versus))
		return cli_error(CLI_ENVIRONMENT, "--vs %s: there is no %s in PATH", a->versus, a->versus);
	if (v->total < a->max_block)
		return cli_error(CLI_USAGE, "--total_buffer_size %" PRIu64 ": less than one block of %" PRIu64, v->total, a->max_block);
	return CLI_OK;
}

int xfer_versus(const struct xfer_bench_args *a)
{
	static const char *const heads[] = {"op", "block", "GB/s", "their GB/s", "ratio", "low", "high", "CPU s/GB", "their CPU s/GB"};
	struct versus v = {.args = a, .fio = !strcmp(a->versus, "fio"), .perftest = !strcmp(a->versus, "ucx_perftest"),
			   .file = !strncmp(a->backend, "file", 4), .peer = !strcmp(a->backend, "ucx"), .total = a->total / BEST_MOST * BEST_MOST};
	json_t *list = json_array();
	struct cli_table t;
	int rc = check(&v);

	if (rc == CLI_OK && v.file)
		rc = cli_scratch_dir(a->dir, NULL, v.dir, sizeof(v.dir) - 16);
	snprintf(v.ours, sizeof(v.ours), "%s/ours.dat", v.dir);
	snprintf(v.theirs, sizeof(v.theirs), "%s/theirs.dat", v.dir);
	cli_catch_interrupts();
	cli_table_init(&t, 9, (const bool[9]){true});
	for (size_t i = 0; i < 9; i++)
		cli_table_cell(&t, "%s", heads[i]);
	if (rc == CLI_OK)
		rc = measure(&v, &t, list);
	if (v.dir[0])
		cli_remove_tree(v.dir);
	if (rc == CLI_OK && a->json)
		return cli_json(list);
	json_decref(list);
	if (rc == CLI_OK)
		cli_table_print(&t, stdout, true);
	return rc ? rc : cli_finish(CLI_OK);
}
