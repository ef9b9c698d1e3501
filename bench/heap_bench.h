/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto bench heap`: what its parts share. */
#ifndef TENUTO_HEAP_BENCH_H
#define TENUTO_HEAP_BENCH_H

#include <stdio.h>
#include <tenuto/heap.h>

#include "bench.h"

struct heap_args {
	uint64_t rounds, page, producers, owners;
	const char *versus, *python;
	bool json, sweep;
};

/* A Python process that moves bytes from its memory to another process's by NIXL with UCX over shared memory. */
struct heap_nixl {
	FILE *to, *from;
	pid_t pid;
};

/* 0, or a negative errno after a message in @why. */
int heap_nixl_start(struct heap_nixl *n, const char *python, uint64_t bytes_most, char *why, size_t why_bytes);
/* One transfer; *us: from the post to its end, as that process has measured it. 0, -EPIPE. */
int heap_nixl_move(struct heap_nixl *n, uint64_t bytes, double *us);
/* A zeroed one is ignored. */
void heap_nixl_end(struct heap_nixl *n);

/* Puts of 1, 2, 4 ... producers at once into the heaps of 1, 2, 4 ... owners, beside memcpy and commit of each; prints a table. An exit code. */
int heap_scale_run(const struct heap_args *a);

#endif
