/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the heap share: heaps with names of their own, objects whose bytes follow from their keys, other processes. */
#ifndef TN_HEAP_HEAP_RIG_H
#define TN_HEAP_HEAP_RIG_H

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tenuto/heap.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "lab/scratch.h"
#include "tn_test.h"

#define HEAP_PAGE 4096u

static char heap_name[TN_HEAP_NAME_MAX];
static char heap_directory[256]; /* $XDG_RUNTIME_DIR of this program: what its killed processes leave goes with it */

/* Of the program's first process: forked ones end by _exit. */
static inline void heap_remove_directory(void)
{
	tn_scratch_remove(heap_directory);
}

/* A name that no other test has. Before the processes of the test are made. */
static inline void heap_new_name(void)
{
	static uint32_t n;

	if (!heap_directory[0]) {
		assert_int_equal(tn_scratch_make("/tmp", heap_directory, sizeof(heap_directory)), 0);
		setenv("XDG_RUNTIME_DIR", heap_directory, 1);
		atexit(heap_remove_directory);
	}
	snprintf(heap_name, sizeof(heap_name), "test-%d-%u", (int)getpid(), n++);
}

static inline struct tn_heap_opts heap_opts(uint32_t pages)
{
	struct tn_heap_opts o;

	tn_heap_opts_init(&o);
	o.heap_bytes = (uint64_t)pages * HEAP_PAGE;
	o.page_bytes = HEAP_PAGE;
	o.water_hi = o.water_lo = 100;
	return o;
}

static inline struct tn_heap *heap_open(uint32_t ranks, uint32_t rank, const struct tn_heap_opts *o)
{
	struct tn_heap *heap = NULL;
	int rc = tn_heap_create(heap_name, ranks, rank, o, &heap);

	if (rc)
		print_error("rank %u: %s\n", rank, tn_error_last()->text);
	assert_int_equal(rc, 0);
	return heap;
}

/* Each eight bytes tell of which object they are, and which of it. */
static inline void heap_fill(void *p, uint64_t bytes, uint64_t of)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)p)[i] = tn_mix64(of * 1000003 + i);
}

static inline bool heap_is_filled(const void *p, uint64_t bytes, uint64_t of)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		if (((const uint64_t *)p)[i] != tn_mix64(of * 1000003 + i))
			return false;
	return true;
}

/* An object whose bytes follow from its key. */
static inline int heap_put(struct tn_heap *heap, uint64_t key, uint64_t bytes, uint32_t owner, uint32_t flags)
{
	unsigned char *src = malloc(bytes);
	int rc;

	assert_non_null(src);
	heap_fill(src, bytes, key);
	rc = tn_heap_put(heap, &key, sizeof(key), src, bytes, owner, flags);
	free(src);
	return rc;
}

/* An object as it is expected: 0, or the error of tn_heap_get. */
static inline int heap_get(struct tn_heap *heap, uint64_t key, uint64_t bytes)
{
	unsigned char *dst = malloc(bytes);
	uint64_t n = 0;
	int rc;

	assert_non_null(dst);
	rc = tn_heap_get(heap, &key, sizeof(key), dst, bytes, &n);
	if (rc == 0)
		assert_true(n == bytes && heap_is_filled(dst, bytes, key));
	free(dst);
	return rc;
}

/* Another process that runs body(arg) and ends with its result; a failed assertion ends it otherwise. */
static inline pid_t heap_process(int (*body)(void *arg), void *arg)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(60);
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		_exit(body(arg));
	}
	return pid;
}

static inline int heap_join_process(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Ends a process that waits for that. */
static inline void heap_kill(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(heap_join_process(pid), 1000 + SIGKILL);
}

/* Until what() is true; the deadline of all waits. */
#define heap_wait_until(what)                                                                                        \
	do {                                                                                                         \
		uint64_t heap_until = tn_now_ns(&tn_clock_system) + 20 * TN_TEST_SECOND;                              \
		while (!(what)) {                                                                                    \
			assert_true(tn_now_ns(&tn_clock_system) < heap_until);                                        \
			nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);                                      \
		}                                                                                                    \
	} while (0)

static inline struct tn_heap_stats heap_stats(struct tn_heap *heap, uint32_t rank)
{
	struct tn_heap_stats st = {.size = sizeof(st)};

	assert_int_equal(tn_heap_stats_get(heap, rank, &st), 0);
	return st;
}

#endif
