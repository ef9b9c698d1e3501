/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench heap`: what it costs to hand an object to another process through the symmetric heap.
 *
 * This process is the master and owns the memory; a child is the producer and the reader. Per size, alternately: a plan of the master (opened and given up), one without it, a put, the same bytes by
 * memcpy into memory of the heap, their checksum (a commit), a get, a lease (hold and release), and the same bytes through a socket. Beside it: a message to another
 * process and back.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/heap.h>

#define ROUNDS_MAX 10000u
#define SIZES 5u
#define PING_BYTES 64u

enum figure { PING, PLAN, ALLOC, PUT, COPY, SUM, GET, LEASE, SOCKET, FIGURES };

static const char *const names[FIGURES] = {"ping_us", "plan_us", "alloc_us", "put_us", "memcpy_us", "commit_us", "get_us", "lease_us", "socket_us"};
static const uint64_t sizes[SIZES] = {512u << 10, 1u << 20, 2u << 20, 4u << 20, 8u << 20};

struct heap_args {
	uint64_t rounds, page;
	bool json;
};

static const struct cli_opt options[] = {
	{"rounds", "N", "200", "per size", CLI_COUNT, offsetof(struct heap_args, rounds), 10, ROUNDS_MAX},
	{"page", "SIZE", "256KiB", "page of the heap, a power of two", CLI_SIZE, offsetof(struct heap_args, page), 64u << 10, 8u << 20},
	{"json", NULL, NULL, "print JSON", CLI_FLAG, offsetof(struct heap_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench heap",
	.about = "Hands objects of 512 KiB to 8 MiB to another process through the symmetric heap: plan, plan without the master (alloc), put, get and lease, beside memcpy, the checksum, a "
		 "socket, and a message to another process and back. Median and 99th percentile of the time for each.",
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
};

/* The producer's side. */
struct side {
	struct tn_heap *heap;
	unsigned char *src, *dst;
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

static int lease(struct side *s, const uint64_t *key)
{
	struct tn_heap_meta meta;
	int rc = tn_heap_hold(s->heap, key, sizeof(*key), &meta);

	return rc ? rc : tn_heap_release(s->heap, &meta);
}

static int run_round(struct side *s, uint64_t bytes, uint64_t round)
{
	uint64_t put = ++s->key, planned = ++s->key, given_up = ++s->key, alone = ++s->key, got;
	struct tn_heap_plan plan;
	int rc = 0;

	TIMED(rc, PING, through_socket(s, PING_BYTES));
	TIMED(rc, PLAN, tn_heap_open_for_write(s->heap, &given_up, sizeof(given_up), bytes, 0, 0, &plan));
	if (rc == 0)
		rc = tn_heap_abandon(s->heap, &plan);
	TIMED(rc, ALLOC, tn_heap_reserve(s->heap, &alone, sizeof(alone), bytes, 0, 0, &plan));
	if (rc == 0)
		rc = tn_heap_abandon(s->heap, &plan);
	TIMED(rc, PUT, tn_heap_put(s->heap, &put, sizeof(put), s->src, bytes, 0, 0));
	if (rc == 0)
		rc = tn_heap_open_for_write(s->heap, &planned, sizeof(planned), bytes, 0, 0, &plan);
	TIMED(rc, COPY, copy_into(s, &plan));
	TIMED(rc, SUM, tn_heap_commit(s->heap, &plan));
	TIMED(rc, GET, tn_heap_get(s->heap, &put, sizeof(put), s->dst, bytes, &got));
	TIMED(rc, LEASE, lease(s, &put));
	TIMED(rc, SOCKET, through_socket(s, bytes));
	return rc;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int run_sizes(struct side *s, uint64_t rounds, struct heap_result *r)
{
	int rc = 0;

	for (uint32_t i = 0; i < SIZES && rc == 0; i++) {
		/* Half as many rounds first, which touch the memory. */
		for (uint64_t round = 0; round < rounds / 2 && rc == 0; round++)
			rc = run_round(s, sizes[i], round);
		for (uint64_t round = 0; round < rounds && rc == 0; round++)
			rc = run_round(s, sizes[i], round);
		for (uint32_t f = 0; f < FIGURES; f++) {
			qsort(s->us[f], rounds, sizeof(double), by_value);
			r->p50[i][f] = s->us[f][rounds / 2];
			r->p99[i][f] = s->us[f][(rounds * 99 - 1) / 100];
		}
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
	if (r->rc == 0)
		r->rc = tn_heap_create(j->name, 2, 1, NULL, &s.heap);
	if (r->rc == 0)
		r->rc = run_sizes(&s, j->args->rounds, r);
	if (r->rc)
		snprintf(r->why, sizeof(r->why), "%.250s", tn_error_last()->text[0] ? tn_error_last()->text : strerror(-r->rc));
	tn_heap_destroy(s.heap);
}

/* ---- output ------------------------------------------------------------------------------------------------------------ */

static json_t *as_json(const struct heap_result *r)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < SIZES; i++) {
		json_t *row = json_object();

		json_object_set_new(row, "bytes", json_integer((json_int_t)sizes[i]));
		for (uint32_t f = 0; f < FIGURES; f++)
			json_object_set_new(row, names[f], json_pack("[f,f]", r->p50[i][f], r->p99[i][f]));
		json_array_append_new(list, row);
	}
	return list;
}

static int print(const struct heap_result *r)
{
	static const bool left[FIGURES + 2] = {false};
	struct cli_table t;

	cli_table_init(&t, FIGURES + 2, left);
	cli_table_cell(&t, "KiB");
	for (uint32_t f = 0; f < FIGURES; f++)
		cli_table_cell(&t, "%s", names[f]);
	cli_table_cell(&t, "put/copy+sum");
	for (uint32_t i = 0; i < SIZES; i++) {
		cli_table_cell(&t, "%llu", (unsigned long long)(sizes[i] >> 10));
		for (uint32_t f = 0; f < FIGURES; f++)
			cli_table_cell(&t, "%.1f (%.1f)", r->p50[i][f], r->p99[i][f]);
		cli_table_cell(&t, "%.2f", r->p50[i][PUT] / (r->p50[i][COPY] + r->p50[i][SUM]));
	}
	cli_table_print(&t, stdout, true);
	printf("Median (99th percentile). commit is the checksum and READY; put/copy+sum: time of a put in times of memcpy and commit.\n");
	return CLI_OK;
}

int cmd_bench_heap(int argc, char **argv)
{
	struct heap_args a = {.rounds = 200, .page = 256u << 10};
	struct heap_job job = {.args = &a};
	struct heap_result r = {0};
	struct tn_heap_opts o;
	struct tn_heap *heap;
	double cpu;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	snprintf(job.name, sizeof(job.name), "bench-%d", (int)getpid());
	tn_heap_opts_init(&o);
	o.heap_bytes = 32 * sizes[SIZES - 1];
	o.page_bytes = (uint32_t)a.page;
	rc = tn_heap_create(job.name, 2, 0, &o, &heap);
	if (rc)
		return cli_fail(rc, "heap");
	rc = bench_fork(produce, &job, &r, sizeof(r), NULL, &cpu);
	tn_heap_destroy(heap);
	if (rc)
		return rc;
	if (r.rc)
		return cli_error(CLI_PROBLEM, "%s", r.why);
	return a.json ? cli_json(as_json(&r)) : print(&r);
}
