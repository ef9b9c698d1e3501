/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for an inference engine: it does with a request what an engine does - match, load the hits, "compute" the rest, save the
 * rest - with made-up bytes that can be checked (content.h), in one process (rank.h) or in one per rank (engine_ranks.h).
 *
 * Saves go on while the next requests are served. Pool memory limits their number.
 * One thread.
 */
#ifndef TENUTO_CLI_ENGINE_H
#define TENUTO_CLI_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tenuto/cache.h>

#include "stats.h"

struct engine;

struct engine_opts {
	const char *const *dirs;
	size_t ndirs;
	const char *model; /* names the space */
	struct tn_geometry geometry; /* of a block's share */
	uint32_t ranks;		     /* 0 or 1: this process alone; else a process per rank, and this one schedules */
	uint64_t capacity_blocks; /* on disk; 0: the capacity of the existing stores */
	uint64_t host_blocks;
	uint32_t longest; /* blocks of the longest request */
	const char *policy;
	const char *io_engine;
	uint64_t seed;
	bool verify; /* compare every restored byte */
	bool wait_saves; /* a request for blocks that are being saved waits for them, instead of computing them again */
	tn_explain_fn explain; /* called with each decision of the scheduler; NULL: none */
	void *explain_arg;
};

struct engine_totals {
	uint64_t requests, blocks, hit_blocks, host_hit_blocks;
	uint64_t stored_blocks, rejected_blocks, failed_blocks;
	uint64_t in_saving_blocks; /* requested while their save was under way, so no hits; 0 with wait_saves */
	uint64_t verified_objects; /* compared here; 0 without verify */
	uint64_t wrong_objects;	   /* given back as good, but different from what was saved */
	uint64_t read_ns;  /* time with a load under way: from its begin until its last layer was there */
	uint64_t write_ns; /* time with a save under way; loads and the filling of pages may have gone on meanwhile */
	uint64_t short_loads; /* of ranks that got fewer blocks than the scheduler had found */
	int error; /* error of the first failed save */
};

/* 0 or -errno with the library's error detail set (tn_error_last), or plain -ENOMEM. */
int engine_open(const struct engine_opts *opts, struct engine **out);
/* ids: the prompt's blocks. 0, or -errno after which the caller should stop. *hits may be NULL. */
int engine_request(struct engine *e, const uint64_t *ids, uint32_t n, bool partial_last, uint32_t *hits);
/* Waits for the saves under way, then makes them durable. */
int engine_flush(struct engine *e);
const struct engine_totals *engine_totals(struct engine *e);
int engine_stats(struct engine *e, struct cli_stats *stats);
/* Ends what is under way and closes. Returns the error of the last flush. */
int engine_close(struct engine *e);

/* Bytes that one block of this geometry takes on disk. */
uint64_t engine_block_disk_bytes(const struct tn_geometry *g);
/* Bytes on disk that capacity_blocks blocks of this geometry need, with spare slots for those that wait to be reused. */
uint64_t engine_disk_bytes(const struct tn_geometry *g, uint64_t capacity_blocks);

#endif
