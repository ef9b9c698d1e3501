/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole cache (src/cache) on a simulated disk: no thread, no real time, no real I/O. The public functions are
 * called from the thread that also steps the core, so everything follows from one seed.
 *
 * The bytes of every block follow from its number, so that any wrong byte is noticed, whoever loads it. What a
 * script does with the rig, and what it may expect to find, is cache_script.h's.
 */
#ifndef TN_SIM_SIMCACHE_H
#define TN_SIM_SIMCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "cache/cache_internal.h"
#include "simdisk.h"

#define CRIG_SPACES 2u
#define CRIG_US 1000ull
#define CRIG_MS 1000000ull
#define CRIG_SECOND 1000000000ull

#define CRIG_EACH_SAVE (UINT32_MAX - 1) /* a durability_ms */

/**
 * struct crig_opts
 * @ndirs:       0 to 2 directories of the same disk
 * @disk_bytes, @segment_bytes, @disk_blocks, @host_bytes, @write_bytes_per_day, @offload_lag_ms (0: its default), @read_only, @policy, @io_depth, @max_ops:
 *               the cache's; they may be changed while it is closed
 * @durability_ms: the cache's, where 0 is its default, and CRIG_EACH_SAVE stands for its 0
 * @medium_bytes: of the simulated disk, 0: no limit
 * @quota_blocks: of each space on disk, 0: no limit
 * @layers, @pages_per_block, @head_dim: the geometry; a page and plane has 32 * head_dim bytes
 * @npages:      of each space's pool
 * @read_ns, @write_ns, @sync_ns: mean latencies of the simulated disk; 0: its defaults
 * @job_ns:      time that each job of the one worker takes, first come, first served; 0: none to speak of, in any order
 * @wrap:        puts a wrapper around the disk that makes faults; NULL: none
 * @calm:        stops its faults and lets go what it holds
 */
struct crig_opts {
	uint64_t seed;
	uint32_t ndirs;
	uint64_t disk_bytes, segment_bytes, disk_blocks, host_bytes, medium_bytes, write_bytes_per_day;
	uint32_t offload_lag_ms, durability_ms;
	bool read_only;
	const char *policy;
	uint32_t io_depth, max_ops;
	uint32_t quota_blocks[CRIG_SPACES];
	uint32_t layers, pages_per_block, head_dim;
	uint32_t npages;
	uint64_t read_ns, write_ns, sync_ns, job_ns;
	struct tn_io *(*wrap)(struct tn_io *disk, const struct tn_clock *clock, uint64_t seed);
	void (*calm)(struct tn_io *wrapper);
};

/*
 * Runs jobs a little later and calls done later still, in any order, as worker threads would. With job_ns, one after
 * the other instead, oldest first, as one worker does.
 */
struct crig_exec {
	struct tn_exec exec;
	struct tn_job *posted, *ran; /* posted: newest first */
	struct tn_rng rng;
	const struct tn_clock *clock;
	uint64_t job_ns, next_ns; /* when the oldest one ends */
};

struct crig {
	struct crig_opts o;
	struct tn_simdisk *disk;
	struct tn_io *io; /* the disk, or the wrapper around it */
	struct crig_exec exec;
	struct tn_geometry g;
	struct tn_cache *cache; /* NULL: closed */
	struct tn_space *space[CRIG_SPACES];
	struct tn_pool *pool[CRIG_SPACES];
	unsigned char *memory[CRIG_SPACES];
	void *bases[CRIG_SPACES][TN_PLANES_MAX * 8];
	uint64_t hash; /* of what happened: two runs are the same if it is */
	uint64_t turns; /* of crig_turn */
	char error[512]; /* the first failure, "" if none */
};

struct crig *crig_create(const struct crig_opts *opts);
void crig_destroy(struct crig *r);
bool crig_open(struct crig *r);
/* No operation may be under way. */
bool crig_close(struct crig *r);
/* The power is off from now on: what is under way fails. End all operations, then call crig_crashed. */
void crig_power_off(struct crig *r);
bool crig_crashed(struct crig *r, enum tn_simdisk_crash mode, uint64_t seed);

uint64_t crig_now(const struct crig *r);
/* Steps the core until nothing happens any more; then lets at most max_ns pass, up to the next completion. */
void crig_turn(struct crig *r, uint64_t max_ns);
/* Lets this much time pass, stepping all the while. */
void crig_run(struct crig *r, uint64_t ns);

/* Records the first failure; false. */
bool crig_fail(struct crig *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void crig_note(struct crig *r, uint64_t what);

struct tn_key crig_key(uint64_t id);
void crig_fill(struct crig *r, uint32_t space, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page);
bool crig_check(struct crig *r, uint32_t space, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page);
/* A byte pattern that no block has. */
void crig_poison(struct crig *r, uint32_t space, uint32_t page);
bool crig_poisoned(const struct crig *r, uint32_t space, uint32_t page);

/* With nothing under way: no slot, record, operation or lease is lost, and all tables agree. */
bool crig_check_quiet(struct crig *r);

#endif
