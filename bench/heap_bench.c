/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench heap`: what it costs to hand an object to another process through the symmetric heap.
 *
 * This process is the master and owns the memory; a child is the producer and the reader. Per size, alternately: a plan of the master (opened and given up), one without it, a put, the same bytes by
 * memcpy into memory of the heap, their checksum (a commit), a get, a lease (hold and release), the same bytes through a socket and through NIXL. Beside it: a message to
 * another process and back. And a producer that computes what it stores: into memory of its own and then put (staged), or straight into the heap (in place).
 */
#include "heap_bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS_MAX 10000u
#define SIZES 5u
#define PAGES 3u /* sizes of them in a sweep */
#define PING_BYTES 64u

enum figure { PING, PLAN, ALLOC, PUT, COPY, SUM, GET, LEASE, STAGED, IN_PLACE, SOCKET, NIXL, FIGURES };

static const char *const names[FIGURES] = {"ping_us", "plan_us", "alloc_us", "put_us", "memcpy_us", "commit_us", "get_us", "lease_us", "staged_us", "in_place_us",
					   "socket_us", "nixl_us"};
static const uint64_t sizes[SIZES] = {512u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20};

static const struct cli_opt options[] = {
	{"rounds", "N", "200", "per size", CLI_COUNT, offsetof(struct heap_args, rounds), 10, ROUNDS_MAX},
	{"page", "SIZE", "256KiB", "page of the heap, a power of two", CLI_SIZE, offsetof(struct heap_args, page), 64u << 10, 8u << 20},
	{"sweep", NULL, NULL, "also GB/s of put, in place and get with pages of 128, 256 and 512 KiB", CLI_FLAG, offsetof(struct heap_args, sweep), 0, 0},
	{"producers", "N", "1", "above 1, with --owners: GB/s of 1, 2, 4 ... N producers at once", CLI_COUNT, offsetof(struct heap_args, producers), 1, 32},
	{"owners", "N", "1", "into the heaps of 1, 2, 4 ... N owners", CLI_COUNT, offsetof(struct heap_args, owners), 1, 32},
	{"vs", "NAME", NULL, "nixl: its UCX over shared memory, alternately", CLI_STRING, offsetof(struct heap_args, versus), 0, 0},
	{"python", "PATH", "python3", "--vs nixl: a Python that has nixl", CLI_STRING, offsetof(struct heap_args, python), 0, 0},
	{"json", NULL, NULL, "print JSON", CLI_FLAG, offsetof(struct heap_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench heap",
	.about = "Hands objects of 512 KiB to 8 MiB to another process through the symmetric heap: plan, plan without the master (alloc), put, get and lease, beside memcpy, the checksum, a "
		 "socket, NIXL, and a message to another process and back. Median and 99th percentile of the time for each, and GB/s.",
	.opts = options,
};

struct heap_job {
	const struct heap_args *args;
	char name[TN_HEAP_NAME_MAX];
};

struct heap_result {
	int rc;
	char why[256];
	double p50[SIZES][FIGURES], p99[SIZES][FIGURES]; /* us */
	double alone[SIZES]; /* part of the plans without the master that needed none: alloc is of these */
};

/* The producer's side. */
struct side {
	struct tn_heap *heap;
	unsigned char *src, *dst;
	uint64_t alone; /* values in us[ALLOC] */
	struct heap_nixl nixl;
	int sock; /* to a process that reads so many bytes and answers with one */
	uint64_t key;
	double *us[FIGURES]; /* by round */
};

static double us_since(uint64_t start)
{
	return (double)(cli_now_ns() - start) * 1e-3;
}

/* ---- another process behind a socket -------------------------------------------------------------------------------- */

static bool receive_all(int sock, unsigned char *to, uint64_t bytes)
{
	while (bytes) {
		ssize_t n = recv(sock, to, bytes, 0);

		if (n <= 0)
			return false;
		to += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static bool send_all(int sock, const unsigned char *from, uint64_t bytes)
{
	while (bytes) {
		ssize_t n = send(sock, from, bytes, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		from += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

static void echo(int sock, unsigned char *to)
{
	uint64_t bytes;

	while (receive_all(sock, (unsigned char *)&bytes, sizeof(bytes)) && receive_all(sock, to, bytes) && send_all(sock, to, 1))
		;
	_exit(0);
}

static int start_echo(struct side *s)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		bench_die_with_parent();
		close(pair[0]);
		echo(pair[1], s->dst);
	}
	close(pair[1]);
	s->sock = pair[0];
	return 0;
}

static int through_socket(struct side *s, uint64_t bytes)
{
	unsigned char answer;

	if (!send_all(s->sock, (unsigned char *)&bytes, sizeof(bytes)) || !send_all(s->sock, s->src, bytes) || !receive_all(s->sock, &answer, 1))
		return -EPIPE;
	return 0;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------------ */

#define TIMED(rc, figure, call)                                  \
	do {                                                     \
		uint64_t timed_start = cli_now_ns();             \
		if (!(rc))                                       \
			(rc) = (call);                           \
		s->us[figure][round] = us_since(timed_start);    \
	} while (0)

static int copy_into(struct side *s, const struct tn_heap_plan *plan)
{
	memcpy(tn_heap_ptr(s->heap, plan->dst_rank, plan->payload_base), s->src, plan->bytes_total);
	return 0;
}

/* What a producer computes: as much as an addition per word. */
static int compute(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t word;

		memcpy(&word, from + i, sizeof(word));
		word += i;
		memcpy(to + i, &word, sizeof(word));
	}
	return 0;
}

static int write_staged(struct side *s, const uint64_t *key, uint64_t bytes)
{
	compute(s->dst, s->src, bytes);
	return tn_heap_put(s->heap, key, sizeof(*key), s->dst, bytes, 0, 0);
}

static int write_in_place(struct side *s, const uint64_t *key, uint64_t bytes)
{
	struct tn_heap_plan plan;
	int rc = tn_heap_open_for_write(s->heap, key, sizeof(*key), bytes, 0, 0, &plan);

	if (rc)
		return rc;
	compute(tn_heap_ptr(s->heap, plan.dst_rank, plan.payload_base), s->src, bytes);
	return tn_heap_commit(s->heap, &plan);
}

/* A plan that the master was asked for is no figure. */
static int reserve(struct side *s, const uint64_t *key, uint64_t bytes, struct tn_heap_plan *plan)
{
	uint64_t start = cli_now_ns();
	int rc = tn_heap_reserve(s->heap, key, sizeof(*key), bytes, 0, 0, plan);

	if (rc == 0 && plan->announces)
		s->us[ALLOC][s->alone++] = us_since(start);
	return rc;
}

static int lease(struct side *s, const uint64_t *key)
{
	struct tn_heap_meta meta;
	int rc = tn_heap_hold(s->heap, key, sizeof(*key), &meta);

	return rc ? rc : tn_heap_release(s->heap, &meta);
}

static int run_round(struct side *s, uint64_t bytes, uint64_t round)
{
	uint64_t put = ++s->key, planned = ++s->key, given_up = ++s->key, alone = ++s->key, staged = ++s->key, in_place = ++s->key, got;
	struct tn_heap_plan plan;
	int rc = 0;

	TIMED(rc, PING, through_socket(s, PING_BYTES));
	TIMED(rc, PLAN, tn_heap_open_for_write(s->heap, &given_up, sizeof(given_up), bytes, 0, 0, &plan));
	if (rc == 0)
		rc = tn_heap_abandon(s->heap, &plan);
	if (rc == 0)
		rc = reserve(s, &alone, bytes, &plan);
	if (rc == 0)
		rc = tn_heap_abandon(s->heap, &plan);
	TIMED(rc, PUT, tn_heap_put(s->heap, &put, sizeof(put), s->src, bytes, 0, 0));
	if (rc == 0)
		rc = tn_heap_open_for_write(s->heap, &planned, sizeof(planned), bytes, 0, 0, &plan);
	TIMED(rc, COPY, copy_into(s, &plan));
	TIMED(rc, SUM, tn_heap_commit(s->heap, &plan));
	TIMED(rc, GET, tn_heap_get(s->heap, &put, sizeof(put), s->dst, bytes, &got));
	TIMED(rc, LEASE, lease(s, &put));
	TIMED(rc, STAGED, write_staged(s, &staged, bytes));
	TIMED(rc, IN_PLACE, write_in_place(s, &in_place, bytes));
	TIMED(rc, SOCKET, through_socket(s, bytes));
	if (rc == 0 && s->nixl.pid)
		rc = heap_nixl_move(&s->nixl, bytes, &s->us[NIXL][round]);
	return rc;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void take_figures(struct side *s, uint64_t rounds, uint32_t i, struct heap_result *r)
{
	r->alone[i] = (double)s->alone / (double)rounds;
	for (uint32_t f = 0; f < FIGURES; f++) {
		uint64_t n = f == ALLOC ? s->alone : rounds;

		if (n == 0)
			continue;
		qsort(s->us[f], n, sizeof(double), by_value);
		r->p50[i][f] = s->us[f][n / 2];
		r->p99[i][f] = s->us[f][(n * 99 - 1) / 100];
	}
}

static int run_sizes(struct side *s, uint64_t rounds, struct heap_result *r)
{
	int rc = 0;

	for (uint32_t i = 0; i < SIZES && rc == 0; i++) {
		/* Half as many rounds first, which touch the memory. */
		for (uint64_t round = 0; round < rounds / 2 && rc == 0; round++)
			rc = run_round(s, sizes[i], round);
		s->alone = 0;
		for (uint64_t round = 0; round < rounds && rc == 0; round++)
			rc = run_round(s, sizes[i], round);
		take_figures(s, rounds, i, r);
		s->alone = 0;
	}
	return rc;
}

static void produce(const void *job, void *result)
{
	const struct heap_job *j = job;
	struct heap_result *r = result;
	struct side s = {0};

	s.src = malloc(sizes[SIZES - 1]);
	s.dst = malloc(sizes[SIZES - 1]);
	r->rc = s.src && s.dst ? 0 : -ENOMEM;
	for (uint32_t f = 0; f < FIGURES && r->rc == 0; f++)
		if (!(s.us[f] = calloc(j->args->rounds, sizeof(double))))
			r->rc = -ENOMEM;
	if (r->rc == 0) {
		memset(s.src, 1, sizes[SIZES - 1]);
		memset(s.dst, 1, sizes[SIZES - 1]);
		r->rc = start_echo(&s);
	}
	if (r->rc == 0 && j->args->versus) {
		r->rc = heap_nixl_start(&s.nixl, j->args->python, sizes[SIZES - 1], r->why, sizeof(r->why));
		if (r->rc)
			return;
	}
	if (r->rc == 0)
		r->rc = tn_heap_create(j->name, 2, 1, NULL, &s.heap);
	if (r->rc == 0)
		r->rc = run_sizes(&s, j->args->rounds, r);
	if (r->rc)
		snprintf(r->why, sizeof(r->why), "%.250s", tn_error_last()->text[0] ? tn_error_last()->text : strerror(-r->rc));
	tn_heap_destroy(s.heap);
	heap_nixl_end(&s.nixl);
}

/* ---- output ------------------------------------------------------------------------------------------------------------ */

static bool was_measured(const struct heap_result *r, uint32_t figure)
{
	return figure != NIXL || r->p50[0][NIXL] > 0;
}

/* Whether the table of times has it: that of rates has the others. */
static bool has_column(const struct heap_result *r, uint32_t figure)
{
	return was_measured(r, figure) && figure != STAGED && figure != IN_PLACE;
}

static json_t *as_json(const struct heap_result *r)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < SIZES; i++) {
		json_t *row = json_object();

		json_object_set_new(row, "bytes", json_integer((json_int_t)sizes[i]));
		json_object_set_new(row, "alloc_without_master", json_real(r->alone[i]));
		for (uint32_t f = 0; f < FIGURES; f++)
			if (was_measured(r, f))
				json_object_set_new(row, names[f], json_pack("[f,f]", r->p50[i][f], r->p99[i][f]));
		json_array_append_new(list, row);
	}
	return list;
}

static void print_times(const struct heap_result *r)
{
	static const bool left[FIGURES + 2] = {false};
	struct cli_table t;

	cli_table_init(&t, FIGURES - 1 - !was_measured(r, NIXL), left);
	cli_table_cell(&t, "KiB");
	for (uint32_t f = 0; f < FIGURES; f++)
		if (has_column(r, f))
			cli_table_cell(&t, "%s", names[f]);
	for (uint32_t i = 0; i < SIZES; i++) {
		cli_table_cell(&t, "%llu", (unsigned long long)(sizes[i] >> 10));
		for (uint32_t f = 0; f < FIGURES; f++)
			if (has_column(r, f))
				cli_table_cell(&t, "%.1f (%.1f)", r->p50[i][f], r->p99[i][f]);
	}
	cli_table_print(&t, stdout, true);
}

/* GB/s of the median. */
static void print_rate(struct cli_table *t, uint32_t i, double us)
{
	if (us > 0)
		cli_table_cell(t, "%.2f", (double)sizes[i] / us * 1e-3);
	else
		cli_table_cell(t, "-");
}

static void print_rates(const struct heap_result *r)
{
	static const char *const heads[] = {"KiB", "put_GB/s", "memcpy_GB/s", "copy+sum_GB/s", "get_GB/s", "staged_GB/s", "in_place_GB/s", "socket_GB/s", "nixl_GB/s",
					    "put/copy+sum", "plan-ping_us", "alone"};
	enum { COLUMNS = sizeof(heads) / sizeof(heads[0]) };
	static const bool left[COLUMNS] = {false};
	struct cli_table t;

	cli_table_init(&t, COLUMNS, left);
	for (uint32_t c = 0; c < COLUMNS; c++)
		cli_table_cell(&t, "%s", heads[c]);
	for (uint32_t i = 0; i < SIZES; i++) {
		const double *us = r->p50[i];

		cli_table_cell(&t, "%llu", (unsigned long long)(sizes[i] >> 10));
		print_rate(&t, i, us[PUT]);
		print_rate(&t, i, us[COPY]);
		print_rate(&t, i, us[COPY] + us[SUM]);
		print_rate(&t, i, us[GET]);
		print_rate(&t, i, us[STAGED]);
		print_rate(&t, i, us[IN_PLACE]);
		print_rate(&t, i, us[SOCKET]);
		print_rate(&t, i, us[NIXL]);
		cli_table_cell(&t, "%.2f", (us[COPY] + us[SUM]) / us[PUT]);
		cli_table_cell(&t, "%.1f", us[PLAN] - us[PING]);
		cli_table_cell(&t, "%.0f %%", 100 * r->alone[i]);
	}
	cli_table_print(&t, stdout, true);
}

static int print(const struct heap_result *r)
{
	print_times(r);
	print_rates(r);
	printf("Times: median (99th percentile). commit is the checksum and READY. put/copy+sum: rate of a put in rates of memcpy and commit. alone: plans without the\n"
	       "master that needed none; alloc is of these. staged: computed into other memory, then put; in_place: computed into the heap, then committed.\n");
	return CLI_OK;
}

/* A heap of such pages, and a producer. */
static int measure(const struct heap_args *a, uint64_t page, struct heap_result *r)
{
	struct heap_job job = {.args = a};
	struct tn_heap_opts o;
	struct tn_heap *heap;
	double cpu;
	int rc;

	*r = (struct heap_result){0};
	snprintf(job.name, sizeof(job.name), "bench-%d-%llu", (int)getpid(), (unsigned long long)page);
	tn_heap_opts_init(&o);
	o.heap_bytes = 32 * sizes[SIZES - 1];
	o.page_bytes = (uint32_t)page;
	rc = tn_heap_create(job.name, 2, 0, &o, &heap);
	if (rc)
		return cli_fail(rc, "heap");
	rc = bench_fork(produce, &job, r, sizeof(*r), NULL, &cpu);
	tn_heap_destroy(heap);
	return rc == CLI_OK && r->rc ? cli_error(CLI_PROBLEM, "%s", r->why) : rc;
}

/* Each size of page twice, one after the other, so that a slow minute does not count as a page: the faster one of both. */
static int sweep(const struct heap_args *a)
{
	static const uint64_t pages[PAGES] = {128u << 10, 256u << 10, 512u << 10};
	static const enum figure shown[] = {PUT, IN_PLACE, GET};
	enum { SHOWN = sizeof(shown) / sizeof(shown[0]), COLUMNS = 1 + PAGES * SHOWN };
	static const bool left[COLUMNS] = {false};
	double best[PAGES][SIZES][SHOWN] = {{{0}}};
	struct cli_table t;

	for (uint32_t turn = 0; turn < 2 * PAGES; turn++) {
		struct heap_result r;
		int rc = measure(a, pages[turn % PAGES], &r);

		if (rc)
			return rc;
		for (uint32_t i = 0; i < SIZES; i++)
			for (uint32_t f = 0; f < SHOWN; f++) {
				double *us = &best[turn % PAGES][i][f];

				*us = *us > 0 && *us < r.p50[i][shown[f]] ? *us : r.p50[i][shown[f]];
			}
	}
	cli_table_init(&t, COLUMNS, left);
	cli_table_cell(&t, "KiB");
	for (uint32_t f = 0; f < SHOWN; f++)
		for (uint32_t p = 0; p < PAGES; p++)
			cli_table_cell(&t, "%.*s_%llu", (int)strlen(names[shown[f]]) - 3, names[shown[f]], (unsigned long long)(pages[p] >> 10));
	for (uint32_t i = 0; i < SIZES; i++) {
		cli_table_cell(&t, "%llu", (unsigned long long)(sizes[i] >> 10));
		for (uint32_t f = 0; f < SHOWN; f++)
			for (uint32_t p = 0; p < PAGES; p++)
				print_rate(&t, i, best[p][i][f]);
	}
	cli_table_print(&t, stdout, true);
	printf("GB/s by page in KiB: the faster median of two runs.\n");
	return CLI_OK;
}

int cmd_bench_heap(int argc, char **argv)
{
	struct heap_args a = {.rounds = 200, .page = 256u << 10, .producers = 1, .owners = 1, .python = "python3"};
	struct heap_result r;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.versus && strcmp(a.versus, "nixl"))
		return cli_error(CLI_USAGE, "--vs %s: nixl is wanted", a.versus);
	if (a.producers > 1 || a.owners > 1)
		return heap_scale_run(&a);
	rc = measure(&a, a.page, &r);
	if (rc)
		return rc;
	if (a.json)
		return cli_json(as_json(&r));
	rc = print(&r);
	return rc == CLI_OK && a.sweep ? sweep(&a) : rc;
}
