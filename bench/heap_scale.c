/* SPDX-License-Identifier: Apache-2.0 */
/* Several producers at once, into the heaps of several owners: GB/s of puts, and of memcpy with commit, alternately. */
#include "heap_bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PRODUCERS_MAX 32u

static const uint64_t sizes[] = {1u << 20, 4u << 20};

/* Shared by the processes of a run. */
struct shared {
	uint32_t ready, failed;
	struct {
		double put_gbps, copy_gbps;
	} of[PRODUCERS_MAX];
};

struct scale {
	const struct heap_args *args;
	struct shared *shared;
	char name[TN_HEAP_NAME_MAX];
	uint32_t producers, owners;
	uint64_t bytes;
};

/* All begin when the last one is there. */
static void wait_for_all(const struct scale *s)
{
	__atomic_add_fetch(&s->shared->ready, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&s->shared->ready, __ATOMIC_ACQUIRE) < s->producers && !__atomic_load_n(&s->shared->failed, __ATOMIC_ACQUIRE))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Both ways to write an object, once. *ns: of a put; of memcpy and commit. */
static int run_round(const struct scale *s, struct tn_heap *heap, const unsigned char *src, uint64_t *key, uint64_t ns[2])
{
	uint32_t owner = (uint32_t)(*key / 2 % s->owners);
	struct tn_heap_plan plan;
	uint64_t start = cli_now_ns(), name = *key += 1;
	int rc = tn_heap_put(heap, &name, sizeof(name), src, s->bytes, owner, 0);

	ns[0] += cli_now_ns() - start;
	name = *key += 1;
	if (rc == 0)
		rc = tn_heap_open_for_write(heap, &name, sizeof(name), s->bytes, owner, 0, &plan);
	if (rc)
		return rc;
	start = cli_now_ns();
	memcpy(tn_heap_ptr(heap, plan.dst_rank, plan.payload_base), src, s->bytes);
	rc = tn_heap_commit(heap, &plan);
	ns[1] += cli_now_ns() - start;
	return rc;
}

static int produce(const struct scale *s, uint32_t producer)
{
	uint64_t key = (uint64_t)producer << 40, ns[2] = {0};
	unsigned char *src = malloc(s->bytes);
	struct tn_heap *heap = NULL;
	int rc = src ? tn_heap_create(s->name, s->producers + s->owners, s->owners + producer, NULL, &heap) : -ENOMEM;

	if (rc == 0) {
		memset(src, 1, s->bytes);
		wait_for_all(s);
	}
	for (uint64_t i = 0; i < s->args->rounds * 3 / 2 && rc == 0; i++) {
		rc = run_round(s, heap, src, &key, ns);
		if (i + 1 == s->args->rounds / 2) /* the first ones touch the memory */
			ns[0] = ns[1] = 0;
	}
	if (rc == 0) {
		s->shared->of[producer].put_gbps = (double)(s->args->rounds * s->bytes) / (double)ns[0];
		s->shared->of[producer].copy_gbps = (double)(s->args->rounds * s->bytes) / (double)ns[1];
	} else {
		fprintf(stderr, "tenuto: producer %u: %s\n", producer, tn_error_last()->text);
		__atomic_store_n(&s->shared->failed, 1, __ATOMIC_RELEASE);
	}
	tn_heap_destroy(heap);
	return rc;
}

static int run_producers(const struct scale *s)
{
	int status, rc = CLI_OK, one;
	pid_t pid[PRODUCERS_MAX];
	double cpu;

	fflush(NULL);
	for (uint32_t p = 0; p < s->producers; p++) {
		pid[p] = fork();
		if (pid[p] == 0) {
			bench_die_with_parent();
			_exit(produce(s, p) ? 1 : 0);
		}
		if (pid[p] < 0)
			__atomic_store_n(&s->shared->failed, 1, __ATOMIC_RELEASE);
	}
	for (uint32_t p = 0; p < s->producers; p++) {
		one = pid[p] < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : bench_wait(pid[p], NULL, NULL, &status, &cpu);
		if (one == CLI_OK && status)
			one = CLI_PROBLEM;
		rc = rc ? rc : one;
	}
	return rc;
}

/* One combination. The heap's master is this process, as owner 0; other owners need no process. */
static int run_one(struct scale *s, struct cli_table *t)
{
	double put = 0, copy = 0;
	struct tn_heap_opts o;
	struct tn_heap *heap;
	int rc;

	memset(s->shared, 0, sizeof(*s->shared));
	snprintf(s->name, sizeof(s->name), "bench-%d-%u-%u", (int)getpid(), s->producers, s->owners);
	tn_heap_opts_init(&o);
	o.heap_bytes = 32 * s->bytes;
	o.page_bytes = (uint32_t)s->args->page;
	rc = tn_heap_create(s->name, s->producers + s->owners, 0, &o, &heap);
	if (rc)
		return cli_fail(rc, "heap");
	rc = run_producers(s);
	tn_heap_destroy(heap);
	if (rc)
		return rc;
	for (uint32_t p = 0; p < s->producers; p++) {
		put += s->shared->of[p].put_gbps;
		copy += s->shared->of[p].copy_gbps;
	}
	cli_table_cell(t, "%llu", (unsigned long long)(s->bytes >> 10));
	cli_table_cell(t, "%u", s->producers);
	cli_table_cell(t, "%u", s->owners);
	cli_table_cell(t, "%.2f", put);
	cli_table_cell(t, "%.2f", copy);
	cli_table_cell(t, "%.2f", put / copy);
	return CLI_OK;
}

int heap_scale_run(const struct heap_args *a)
{
	static const bool left[6] = {false};
	struct scale s = {.args = a};
	struct cli_table t;
	int rc = CLI_OK;

	s.shared = mmap(NULL, sizeof(*s.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s.shared == MAP_FAILED)
		return cli_error(CLI_ENVIRONMENT, "mmap: %s", strerror(errno));
	cli_table_init(&t, 6, left);
	for (uint32_t i = 0; i < 6; i++)
		cli_table_cell(&t, "%s", (const char *const[]){"KiB", "producers", "owners", "put_GB/s", "copy+sum_GB/s", "put/copy+sum"}[i]);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (s.producers = 1; s.producers <= a->producers; s.producers *= 2)
			for (s.owners = 1; s.owners <= a->owners && rc == CLI_OK; s.owners *= 2) {
				s.bytes = sizes[i];
				rc = run_one(&s, &t);
			}
	munmap(s.shared, sizeof(*s.shared));
	cli_table_print(&t, stdout, true);
	return rc;
}
