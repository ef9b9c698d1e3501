/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank of the stand-in engine does: it owns a paged KV pool, loads what was found, "computes" the rest and saves it, with made-up
 * bytes that can be checked (content.h) and differ from rank to rank.
 *
 * Saves go on while the next requests are served. Pool memory limits their number. One thread.
 */
#ifndef TENUTO_CLI_RANK_H
#define TENUTO_CLI_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include <tenuto/cache.h>

#define RANK_PATIENCE_NS 60000000000ull /* longest wait for one load or save before giving up */

struct rank;

struct rank_opts {
	const char *model; /* names the space */
	struct tn_geometry geometry; /* of the rank's share of a block */
	uint32_t rank, ranks;
	uint32_t longest; /* blocks of the longest request */
	uint64_t memory_bytes; /* of the pool; from tn_memory_alloc if there are several ranks */
	bool verify; /* compare every restored byte */
};

struct rank_totals {
	uint64_t stored_blocks, rejected_blocks, failed_blocks;
	uint64_t verified_objects; /* compared here; 0 without verify */
	uint64_t wrong_objects;	   /* given back as good, but different from what was saved */
	uint64_t read_ns;  /* time with a load under way: from its begin until its last layer was there */
	uint64_t write_ns; /* time with a save under way; loads and the filling of pages may have gone on meanwhile */
	int error; /* error of the first failed save */
};

/* 0 or -errno with the library's error detail set (tn_error_last), or plain -ENOMEM: so do all that return int. */
int rank_space_open(struct tn_cache *cache, const struct rank_opts *o, struct tn_space **out);
int rank_open(struct tn_cache *cache, const struct rank_opts *o, struct rank **out);
/* Blocks of the longest load or save that it makes. */
uint32_t rank_part(const struct rank_opts *o);
struct tn_space *rank_space(const struct rank *r);
const struct rank_totals *rank_totals(const struct rank *r);
/* Keys of a prompt's blocks; hashes: 2 * n words to work with. */
int rank_make_keys(const struct tn_space *space, const uint64_t *ids, uint32_t n, uint64_t *hashes, struct tn_key *keys);
/* Ends the saves whose work is over. Does not wait. */
int rank_reap(struct rank *r);
/* First of all calls about a request: its keys, until the next one. */
int rank_keys(struct rank *r, const uint64_t *ids, uint32_t n, const struct tn_key **keys);
/* Loads the first blocks, which were found. How many are good, or -errno. */
int rank_load(struct rank *r, const uint64_t *ids, uint32_t found);
/* Saves the blocks behind the first `from`. */
int rank_save(struct rank *r, const uint64_t *ids, uint32_t from, uint32_t n, bool partial_last);
/* Whether a save of the block is under way. */
bool rank_saves(struct rank *r, uint64_t id);
/* Waits for the end of that save, or of all. */
int rank_settle_block(struct rank *r, uint64_t id);
int rank_settle(struct rank *r);
/* Not while loads or saves are under way that cannot be ended: then it stays. */
int rank_close(struct rank *r);

#endif
