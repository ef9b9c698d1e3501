/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in engine with tensor parallelism: this process owns the cache, serves it, and schedules; each rank is a process that attaches, loads and saves its
 * share of every block. The scheduler goes through a session of its own, as an engine's would.
 *
 * One thread.
 */
#ifndef TENUTO_CLI_ENGINE_RANKS_H
#define TENUTO_CLI_ENGINE_RANKS_H

#include "rank.h"

#define ENGINE_RANKS_MAX 16u

struct engine_ranks;

/* What all ranks have done together. */
struct engine_ranks_totals {
	struct rank_totals all;
	uint64_t short_loads; /* of a rank, which got fewer blocks than the scheduler had found and held */
};

/*
 * The processes, forked before there is any thread; o is of each of them, but for its number. They end with the process that made them. 0 or -errno.
 */
int engine_ranks_start(const struct rank_opts *o, struct engine_ranks **out);
/* The cache is open: it is served, and the ranks attach. */
int engine_ranks_attach(struct engine_ranks *e, struct tn_cache *cache);
/*
 * A request: the prefix that all ranks have is loaded by each, the rest saved. *good: the least of what they loaded; *host: about how many of them lay in
 * host memory; *read_ns: of the slowest. A block whose save is under way is waited for.
 */
int engine_ranks_request(struct engine_ranks *e, const uint64_t *ids, uint32_t n, bool partial_last, uint32_t *good, uint32_t *host, uint64_t *read_ns);
/* Waits for the saves under way. */
int engine_ranks_settle(struct engine_ranks *e);
const struct engine_ranks_totals *engine_ranks_totals(const struct engine_ranks *e);
/* The processes have ended. NULL is fine. */
int engine_ranks_close(struct engine_ranks *e);

#endif
