/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto bench xfer`: its options, and the comparison with other programs. */
#ifndef TENUTO_XFER_BENCH_H
#define TENUTO_XFER_BENCH_H

#include "bench.h"

struct xfer_bench_args {
	const char *backend, *op, *dir, *versus, *python;
	uint64_t start_block, max_block, start_batch, max_batch, iterations, total, pairs;
	bool peer, recreate, check, json;
};

/* --vs: exit code. */
int xfer_versus(const struct xfer_bench_args *a);

/* nixl's side of one run, by a Python that has it: all bytes of the file `path` (POSIX), or of memory to memory (UCX, path NULL). CLI_OK, or the exit code. */
int xfer_nixl_run(const char *python, const char *op, const char *path, uint64_t total, uint64_t block, struct bench_run *run);

#endif
