/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench xfer`: what a transfer costs and how fast it is, by size of block and of batch; within a process, to another one, to a file, or to objects.
 *
 * Options that mean the same as nixlbench's have its names.
 */
#include "xfer_bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "xfer_objects.h"

#define PATIENCE_NS 60000000000ull
#define WARM 3u

#define AT(member) offsetof(struct xfer_bench_args, member)

static const struct cli_opt options[] = {
	{"backend", "SPEC", "memory", "memory, file, ucx, null or s3, with parameters: memory,threads=2; s3,bucket=NAME,endpoint=URL", CLI_STRING, AT(backend), 0, 0},
	{"op_type", "OP", "WRITE", "READ or WRITE", CLI_STRING, AT(op), 0, 0},
	{"peer", NULL, NULL, "memory, ucx: to another process", CLI_FLAG, AT(peer), 0, 0},
	{"start_block_size", "SIZE", "4KiB", "smallest block", CLI_SIZE, AT(start_block), 1, 1 << 30},
	{"max_block_size", "SIZE", "4MiB", "largest block; each is 8 times the one before", CLI_SIZE, AT(max_block), 1, 1 << 30},
	{"start_batch_size", "N", "1", "fewest blocks of a request", CLI_COUNT, AT(start_batch), 1, 1 << 20},
	{"max_batch_size", "N", "64", "most blocks; each is 8 times the one before", CLI_COUNT, AT(max_batch), 1, 1 << 20},
	{"num_iter", "N", "100", "requests of each size", CLI_COUNT, AT(iterations), 1, 10000000},
	{"recreate_xfer", NULL, NULL, "create a request for each transfer, not one for all", CLI_FLAG, AT(recreate), 0, 0},
	{"check", NULL, NULL, "compare every byte after each size", CLI_FLAG, AT(check), 0, 0},
	{"total_buffer_size", "SIZE", "256MiB", "bytes of each side; blocks are scattered over them", CLI_SIZE, AT(total), 4096, UINT64_C(1) << 36},
	{"dir", "DIR", NULL, "file: where the file is made; default: a scratch directory", CLI_STRING, AT(dir), 0, 0},
	{"vs", "NAME", NULL, "fio, nixl or ucx_perftest: beside it, alternately; one request of all bytes, both operations", CLI_STRING, AT(versus), 0, 0},
	{"pairs", "N", "10", "--vs: runs of each side", CLI_COUNT, AT(pairs), 1, 100},
	{"python", "PATH", "python3", "--vs nixl: a Python that has nixl", CLI_STRING, AT(python), 0, 0},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, AT(json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench xfer",
	.about = "Moves blocks with the transfer agent: times of create, post and transfer, bytes per second, and CPU time per byte, of this process alone.",
	.opts = options,
};

/* Both sides, and the agent. */
struct sides {
	struct tn_xfer_agent *agent;
	unsigned char *local, *remote;
	uint64_t base; /* address of the remote side */
	enum tn_xfer_segment segment;
	const char *peer; /* NULL: this process */
	const char *names[1];
	char name[32], path[4096], dir[4096];
	uint64_t devices; /* numbers of objects so far */
	struct xfer_peer other;
};

/* One size. */
struct row {
	uint64_t block, batch, iterations, bytes, pieces;
	double create_us, post_us, mean_us, p50_us, p99_us, gb_per_s, cpu_s_per_gb;
};

static void *map_shared(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int register_sides(const struct xfer_bench_args *a, struct sides *s)
{
	struct tn_xfer_section here = {.address = (uintptr_t)s->local, .bytes = a->total};
	struct tn_xfer_section there = {.address = s->base, .bytes = a->total, .device = s->segment == TN_XFER_OBJECT ? 0 : 1, .meta = s->segment == TN_XFER_FILE ? s->path : NULL};
	int rc = tn_xfer_register(s->agent, TN_XFER_DRAM, &here, 1);

	if (rc == 0 && s->peer)
		return xfer_peer_load(&s->other, s->agent);
	/* What objects are compared with is memory, too. */
	return rc ? rc : tn_xfer_register(s->agent, s->segment == TN_XFER_OBJECT ? TN_XFER_DRAM : s->segment, &there, 1);
}

static void fill(unsigned char *bytes, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += 8)
		memcpy(bytes + i, &(uint64_t){i * 0x9e3779b97f4a7c15u}, 8);
}

static int open_sides(const struct xfer_bench_args *a, struct sides *s)
{
	int rc = CLI_OK;

	snprintf(s->name, sizeof(s->name), "%.*s", (int)strcspn(a->backend, ","), a->backend);
	s->names[0] = s->name;
	s->segment = !strcmp(s->name, "file") ? TN_XFER_FILE : !strcmp(s->name, "s3") ? TN_XFER_OBJECT : TN_XFER_DRAM;
	s->local = map_shared(a->total);
	s->remote = map_shared(a->total);
	if (!s->local || !s->remote)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	fill(s->local, a->total);
	memset(s->remote, 0, a->total);
	s->base = s->segment == TN_XFER_FILE ? 0 : (uintptr_t)s->remote;
	s->peer = a->peer ? XFER_PEER : NULL;
	if (s->segment == TN_XFER_FILE) {
		rc = cli_scratch_dir(a->dir, NULL, s->dir, sizeof(s->dir) - 8);
		snprintf(s->path, sizeof(s->path), "%.*s/bytes", (int)sizeof(s->path) - 8, s->dir);
	}
	if (rc == CLI_OK && s->peer)
		rc = xfer_peer_start(&s->other, a->backend, s->remote, a->total);
	if (rc == CLI_OK)
		rc = xfer_agent_open("bench", a->backend, &s->agent);
	return rc ? rc : register_sides(a, s);
}

static void close_sides(const struct xfer_bench_args *a, struct sides *s)
{
	tn_xfer_agent_destroy(s->agent);
	xfer_peer_end(&s->other);
	if (s->local)
		munmap(s->local, a->total);
	if (s->remote)
		munmap(s->remote, a->total);
	if (s->dir[0])
		cli_remove_tree(s->dir);
}

/* ---- one size ---------------------------------------------------------------------------------------------------------- */

/* Blocks of both sides, every other one, in an order that leaves no neighbours to merge. */
static void choose_blocks(const struct row *row, uint64_t total, uint32_t *index)
{
	uint64_t there = total / row->block, step = there / (2 * row->batch) ? there / row->batch : 1;

	for (uint64_t i = 0; i < row->batch; i++)
		index[i] = (uint32_t)(i * step % there);
}

static int make_lists(const struct xfer_bench_args *a, struct sides *s, uint64_t block, uint64_t batch, struct tn_xfer_list *list[2])
{
	struct tn_xfer_run here = {(uintptr_t)s->local, block, 0, block, a->total / block};
	struct tn_xfer_run there = {s->base, block, s->peer ? 0 : 1, block, a->total / block};
	int rc = tn_xfer_list_create(s->agent, NULL, TN_XFER_DRAM, &here, 1, &list[0]);

	if (rc == 0 && s->segment == TN_XFER_OBJECT)
		return xfer_objects_list(s->agent, block, batch, &s->devices, &list[1]);
	return rc ? rc : tn_xfer_list_create(s->agent, s->peer, s->segment, &there, 1, &list[1]);
}

/* Objects that are read have other bytes than the memory that they go to. */
static int write_objects(const struct sides *s, uint64_t total, uint64_t block, const uint32_t *index, struct tn_xfer_list *objects)
{
	fill(s->remote, total);
	memset(s->local, 0, total);
	return xfer_objects_move(s->agent, s->name, TN_XFER_WRITE, s->remote, block, index, objects);
}

static int create(const struct xfer_bench_args *a, const struct sides *s, struct tn_xfer_list **list, const uint32_t *index, const struct row *row,
		  struct tn_xfer_request **out)
{
	struct tn_xfer_request_opts opts;

	tn_xfer_request_opts_init(&opts);
	opts.backends = s->names;
	opts.nbackends = 1;
	return tn_xfer_request_create(s->agent, !strcmp(a->op, "READ") ? TN_XFER_READ : TN_XFER_WRITE, list[0], index, list[1],
				      s->segment == TN_XFER_OBJECT ? NULL : index, (uint32_t)row->batch, &opts, out);
}

/* Times of one transfer: create, post, all. */
static int once(const struct xfer_bench_args *a, const struct sides *s, struct tn_xfer_list **list, const uint32_t *index, struct row *row,
		struct tn_xfer_request **q, double *us)
{
	uint64_t begin = cli_now_ns(), posted;
	struct tn_xfer_status st = {.size = sizeof(st)};
	int rc = *q ? 0 : create(a, s, list, index, row, q);

	if (rc)
		return rc;
	row->create_us += (double)(cli_now_ns() - begin) / 1e3;
	begin = cli_now_ns();
	rc = tn_xfer_post(*q, begin + PATIENCE_NS, NULL, TN_XFER_NO_NOTIFICATION);
	posted = cli_now_ns();
	if (rc == 0)
		rc = tn_xfer_wait(*q, TN_FOREVER);
	*us = (double)(cli_now_ns() - begin) / 1e3;
	row->post_us += (double)(posted - begin) / 1e3;
	tn_xfer_status(*q, &st);
	row->pieces = st.pieces;
	if (a->recreate) {
		tn_xfer_release(*q);
		*q = NULL;
	}
	return rc;
}

static int check(const struct xfer_bench_args *a, const struct sides *s, const struct row *row, const uint32_t *index, struct tn_xfer_list *there)
{
	FILE *f = s->segment == TN_XFER_FILE ? fopen(s->path, "rb") : NULL;
	int rc = CLI_OK;

	if (!strcmp(s->name, "null"))
		return CLI_OK;
	if (s->segment == TN_XFER_FILE && (!f || fread(s->remote, 1, a->total, f) == 0))
		rc = cli_error(CLI_PROBLEM, "%s cannot be read", s->path);
	if (s->segment == TN_XFER_OBJECT && !strcmp(a->op, "WRITE"))
		rc = xfer_objects_move(s->agent, s->name, TN_XFER_READ, s->remote, row->block, index, there);
	for (uint64_t i = 0; i < row->batch && rc == CLI_OK; i++)
		if (memcmp(s->local + index[i] * row->block, s->remote + index[i] * row->block, row->block))
			rc = cli_error(CLI_PROBLEM, "block %u of %" PRIu64 " bytes has other bytes on the two sides", index[i], row->block);
	if (f)
		fclose(f);
	return rc;
}

static int measure(const struct xfer_bench_args *a, struct sides *s, struct row *row)
{
	uint32_t *index = calloc(row->batch, sizeof(*index));
	double *us = calloc(row->iterations, sizeof(*us)), cpu = 0, ignored, sum = 0;
	struct tn_xfer_list *list[2] = {NULL, NULL};
	struct tn_xfer_request *q = NULL;
	int rc = index && us ? make_lists(a, s, row->block, row->batch, list) : -ENOMEM;

	if (rc == 0)
		choose_blocks(row, a->total, index);
	if (rc == 0 && s->segment == TN_XFER_OBJECT && !strcmp(a->op, "READ"))
		rc = write_objects(s, a->total, row->block, index, list[1]);
	for (unsigned i = 0; i < WARM && rc == 0; i++)
		rc = once(a, s, list, index, row, &q, &ignored);
	row->create_us = row->post_us = 0;
	cpu = cli_cpu_seconds();
	for (uint64_t i = 0; i < row->iterations && rc == 0; i++) {
		rc = once(a, s, list, index, row, &q, &us[i]);
		sum += us[i];
	}
	cpu = cli_cpu_seconds() - cpu;
	if (rc == 0 && a->check)
		rc = check(a, s, row, index, list[1]);
	if (rc == 0) {
		double n = (double)row->iterations;

		row->bytes = row->block * row->batch;
		row->create_us /= n;
		row->post_us /= n;
		row->mean_us = sum / n;
		row->p50_us = bench_median(us, row->iterations); /* sorts */
		row->p99_us = us[(size_t)(0.99 * (n - 1))];
		row->gb_per_s = (double)row->bytes * n / (sum * 1e3);
		row->cpu_s_per_gb = cpu / ((double)row->bytes * n / 1e9);
	}
	tn_xfer_release(q);
	tn_xfer_list_destroy(list[0]);
	tn_xfer_list_destroy(list[1]);
	free(index);
	free(us);
	return rc;
}

/* ---- the result -------------------------------------------------------------------------------------------------------- */

static void print_row(struct cli_table *t, const struct row *r)
{
	char s[32];

	cli_table_cell(t, "%s", cli_number(s, r->block));
	cli_table_cell(t, "%" PRIu64, r->batch);
	cli_table_cell(t, "%" PRIu64, r->pieces);
	cli_table_cell(t, "%.2f", r->gb_per_s);
	cli_table_cell(t, "%.3f", r->cpu_s_per_gb);
	cli_table_cell(t, "%.1f", r->create_us);
	cli_table_cell(t, "%.1f", r->post_us);
	cli_table_cell(t, "%.1f", r->mean_us);
	cli_table_cell(t, "%.1f", r->p50_us);
	cli_table_cell(t, "%.1f", r->p99_us);
}

static json_t *row_json(const struct row *r)
{
	return json_pack("{s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "block_bytes", (json_int_t)r->block, "batch", (json_int_t)r->batch, "pieces",
			 (json_int_t)r->pieces, "gb_per_s", r->gb_per_s, "cpu_s_per_gb", r->cpu_s_per_gb, "create_us", r->create_us, "post_us", r->post_us,
			 "transfer_us", r->mean_us, "transfer_us_p50", r->p50_us, "transfer_us_p99", r->p99_us);
}

static int sweep(const struct xfer_bench_args *a, struct sides *s, struct cli_table *t, json_t *list)
{
	int rc = CLI_OK;

	for (uint64_t block = a->start_block; block <= a->max_block && rc == CLI_OK; block *= 8)
		for (uint64_t batch = a->start_batch; batch <= a->max_batch && rc == CLI_OK; batch *= 8) {
			struct row row = {.block = block, .batch = batch, .iterations = a->iterations};

			if (block * batch > a->total)
				break;
			rc = measure(a, s, &row);
			if (rc < 0)
				return cli_fail(rc, "blocks of %" PRIu64 " bytes, %" PRIu64 " at a time", block, batch);
			if (rc == CLI_OK && a->json)
				json_array_append_new(list, row_json(&row));
			else if (rc == CLI_OK)
				print_row(t, &row);
		}
	return rc;
}

static int run(const struct xfer_bench_args *a)
{
	static const char *const heads[] = {"block", "batch", "pieces", "GB/s", "CPU s/GB", "create/us", "post/us", "transfer/us", "p50", "p99"};
	struct sides s = {0};
	struct cli_table t;
	json_t *list = json_array();
	int rc = open_sides(a, &s);

	cli_table_init(&t, 10, (const bool[10]){0});
	for (size_t i = 0; i < 10; i++)
		cli_table_cell(&t, "%s", heads[i]);
	if (rc < 0)
		rc = cli_fail(rc, NULL);
	else if (rc == CLI_OK)
		rc = sweep(a, &s, &t, list);
	close_sides(a, &s);
	if (rc == CLI_OK && a->json)
		return cli_json(list);
	json_decref(list);
	if (rc == CLI_OK)
		cli_table_print(&t, stdout, true);
	return rc ? rc : cli_finish(CLI_OK);
}

int cmd_bench_xfer(int argc, char **argv)
{
	struct xfer_bench_args a = {.backend = "memory", .op = "WRITE", .start_block = 4096, .max_block = 4u << 20, .start_batch = 1, .max_batch = 64,
				    .iterations = 100, .total = 256u << 20, .pairs = 10, .python = "python3"};
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (strcmp(a.op, "READ") && strcmp(a.op, "WRITE"))
		return cli_error(CLI_USAGE, "--op_type %s: READ or WRITE is wanted", a.op);
	if (a.peer && !strncmp(a.backend, "s3", 2))
		return cli_error(CLI_USAGE, "--peer: objects are reached by the agent itself, without another process");
	if (a.start_block > a.total || a.start_block > a.max_block || a.start_batch > a.max_batch)
		return cli_error(CLI_USAGE, "a smallest block or batch above the largest one, or above --total_buffer_size");
	return a.versus ? xfer_versus(&a) : run(&a);
}
