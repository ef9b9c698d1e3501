/* SPDX-License-Identifier: Apache-2.0 */
/* `tenuto bench xfer`: its options, and the comparison with other programs. */
#ifndef TENUTO_XFER_BENCH_H
#define TENUTO_XFER_BENCH_H

#include "bench.h"

#include <tenuto/xfer.h>

struct xfer_bench_args {
	const char *backend, *op, *dir, *versus, *python;
	uint64_t start_block, max_block, start_batch, max_batch, iterations, total, pairs;
	bool peer, recreate, check, json;
};

/* --vs: exit code. */
int xfer_versus(const struct xfer_bench_args *a);

/* nixl's side of one run, by a Python that has it: all bytes of the file `path` (POSIX), or of memory to memory (UCX, path NULL). CLI_OK, or the exit code. */
int xfer_nixl_run(const char *python, const char *op, const char *path, uint64_t total, uint64_t block, struct bench_run *run);
/* The same by UCX between two processes; CPU time of both. */
int xfer_nixl_peer_run(const char *python, const char *op, uint64_t total, uint64_t block, struct bench_run *run);

/* Agents of two processes. Errors are -errno of the library, or an exit code after a message on stderr. */
#define XFER_PEER "bench-peer" /* the other one's name */

struct xfer_peer {
	pid_t pid;
	int sock;
};

int xfer_agent_open(const char *name, const char *spec, struct tn_xfer_agent **out);
/* Before this process has threads. The other one registers this memory. */
int xfer_peer_start(struct xfer_peer *p, const char *spec, void *memory, uint64_t bytes);
/* Its metadata. */
int xfer_peer_load(const struct xfer_peer *p, struct tn_xfer_agent *agent);
void xfer_peer_end(struct xfer_peer *p);

/*
 * ucx_perftest's side of one run between two processes: puts or gets of `block` bytes, as many of them in flight as `depth` says. CLI_OK, the exit code after a message on
 * stderr, or XFER_PERFTEST_LATE.
 */
#define XFER_PERFTEST_LATE (-1) /* it had not ended after 60 s */

int xfer_perftest_run(const char *op, uint64_t total, uint64_t block, uint32_t depth, struct bench_run *run);

#endif
