/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of all tests of a cache: opens a cache with its spaces and pools, makes keys, saves and loads blocks whose bytes
 * follow from their numbers, and waits with deadlines. What goes wrong here fails the test.
 *
 * A rig is real or simulated. A real one is a cache on temporary directories, with its threads. A simulated one is the same
 * core on a simulated disk (sim/simdisk.h): no thread, no real time, no real I/O; the test's own thread steps the core, so
 * everything follows from one seed. Tests set the options in rig->o between rig_init and rig_open, and while it is closed.
 */
#ifndef TN_FRONT_CACHE_RIG_H
#define TN_FRONT_CACHE_RIG_H

#include <stdbool.h>
#include <tenuto/tenuto.h>

#include "base/exec.h"
#include "base/rng.h"
#include "core/stats.h"
#include "simdisk.h"
#include "tn_test.h"

/* Of rig_init. */
#define RIG_LAYERS 4u
#define RIG_PAGES 4u /* per block */
#define RIG_POOL_PAGES 1024u

#define RIG_SPACES 2u
#define RIG_POISON 0xee /* a byte of pages that nothing was loaded to */
#define RIG_AT_ONCE 64u		/* most blocks of a call of the rig */
#define RIG_BLOCK_PAGES 16u	/* most pages per block */
#define RIG_US 1000ull
#define RIG_MS 1000000ull
#define RIG_SECOND TN_TEST_SECOND

struct tn_far;
struct tn_far_opts;
struct tn_fault;
struct tn_io_faulty_opts;
struct tn_soft_device;
struct tn_soft;
struct rig;

/**
 * struct rig_opts
 * @cache:       as tn_cache_open takes them; the rig fills in the directories (where ndirs is set) and the log
 * @spaces:      that rig_open opens: 1 or 2 (RIG_SPACES)
 * @layers, @pages_per_block, @heads, @head_dim: their geometry: K and V of 16 tokens per page and 16 bits per element
 * @npages:      of each pool
 * @quota_blocks: of each space on disk, 0: no limit
 * @faulty:      the I/O engines make faults when rig_fault tells them to
 * @faults:      and those from the beginning, or NULL
 * @attached:    the cache is one that has attached to the one that is opened, in this process
 * @staged:      and its pools lie in memory that only a process itself can map
 * @device:      the pools lie on a soft device (device/soft_rig.h), whose memory the rig reaches by the device's own mapping
 * @soft_device: which; NULL: one that the process has for all rigs
 * @stage_blocks: with session memory for so many blocks each, 0: for as many as they have
 * @open:        a real rig's, instead of tn_cache_open
 *
 * Of a simulated rig:
 * @seed:        of all that happens
 * @segment_bytes: of new stores
 * @medium_bytes: of the disk, 0: no limit
 * @read_ns, @write_ns, @sync_ns: mean latencies of the disk; 0: its defaults
 * @prepare:     called with r->cache made and not open yet; may set what only tests set, and put a wrapper in r->io around it
 * @far:         a third tier (sim/far.h), or NULL; what it holds outlives the cache
 * @job_ns:      time that each job of the one worker takes, first come, first served; 0: none to speak of, in any order
 */
struct rig_opts {
	struct tn_cache_opts cache;
	uint32_t spaces;
	uint32_t layers, pages_per_block, heads, head_dim;
	uint32_t npages, stage_blocks;
	uint64_t quota_blocks[RIG_SPACES];
	bool faulty, attached, staged, device;
	struct tn_soft_device *soft_device;
	const struct tn_io_faulty_opts *faults;
	int (*open)(const struct tn_cache_opts *opts, struct tn_cache **out);
	void (*prepare)(struct rig *r);
	const struct tn_far_opts *far;
	uint64_t seed, segment_bytes, medium_bytes, read_ns, write_ns, sync_ns, job_ns;
};

/*
 * A space of the cache, with a pool of its own memory. Pools have the order TN_POOL_PLANES_PAGES.
 * salt: the space's part in the bytes of its blocks. memory: what the pool's memory is registered by; bases: where this process finds its regions.
 */
struct rig_space {
	struct rig *rig;
	struct tn_space *space;
	struct tn_pool *pool;
	struct tn_geometry g;
	uint32_t npages;
	uint64_t salt;
	unsigned char *memory;
	uint64_t memory_bytes;
	void *bases[TN_PLANES_MAX * 8];
};

/**
 * struct rig_space_opts - zero means what the rig's first space has
 * @seed:   of the engine's hashes: spaces of different seeds are different
 * @reset:  the first bytes of the identity's reset_revision
 * @window: the rule is TN_MATCH_WINDOW, with as many tokens as there can be
 * @quota:  NULL: no limit
 * @rank, @ranks: the space is for the share of one of so many TP ranks; 0: of one
 * @no_pool: nothing is saved or loaded
 */
struct rig_space_opts {
	const char *tenant, *model;
	uint64_t seed, reset;
	uint32_t head_dim, pages_per_block;
	uint32_t rank, ranks;
	bool window;
	const struct tn_quota *quota;
	bool no_pool;
};

/*
 * Runs jobs a little later and calls done later still, in any order, as worker threads would. With job_ns, one after
 * the other instead, oldest first, as one worker does.
 */
struct rig_exec {
	struct tn_exec exec;
	struct tn_job *posted, *ran, *done; /* posted: newest first */
	bool taken; /* some of those done, in this turn */
	struct tn_rng rng;
	const struct tn_clock *clock;
	uint64_t job_ns, next_ns; /* when the oldest one ends */
};

struct rig {
	struct rig_opts o;
	struct tn_cache *cache; /* NULL: closed */
	struct tn_cache *owner; /* of an attached rig: what the cache has attached to */
	struct rig_space s[RIG_SPACES];
	struct tn_io *io; /* of a simulated rig, or of the owner of a faulty one */
	/* Real. */
	char dir[256];
	const char *dirs[1];
	struct tn_soft *soft; /* that this rig has opened, or NULL */
	/* Simulated. */
	bool simulated;
	struct tn_simdisk *disk;
	struct tn_far *far;
	struct rig_exec exec;
	uint64_t hash;	/* of what happened: two runs are the same if it is */
	uint64_t turns; /* of rig_turn */
};

/* Threads that read, of the caches of rigs that rig_init makes. */
extern uint32_t rig_executors;
/* Whether the caches of such rigs are attached ones, and their pools staged, or on the soft device: TN_TEST_ATTACHED, TN_TEST_DEVICE. */
extern bool rig_attached, rig_staged, rig_on_device;
/* Whether their disk is a raw namespace: TN_TEST_NVME (cache_drive_rig.c). */
extern bool rig_namespace;

/* ---- a cache ---------------------------------------------------------------------------------------------- */

/* A real rig: policy "lru", blocks of 4 layers, 4 pages and 2 planes of 64 * head_dim bytes. */
void rig_init(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim);
/* The same in a directory that is there, with the disk that another process of the test has, or has left. */
void rig_init_in(struct rig *r, const char *dir, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim);
/*
 * One disk of 4 MiB in segments of 512 KiB, no host memory, "lru", two spaces with blocks of 2 layers, 2 pages and
 * 2 planes of 32 * 128 bytes, pools of 64 pages.
 */
struct rig_opts rig_simulated_opts(void);
/* A simulated rig, which rig_tear_down frees. */
struct rig *rig_simulated(const struct rig_opts *o);
/* 0, or the error of tn_cache_open. */
int rig_open(struct rig *r);
void rig_must_open(struct rig *r);
/* A simulated rig that is open, and the new segments are prepared. */
struct rig *rig_start(const struct rig_opts *o);
/* Closes the spaces, too. What tn_cache_close says; of a simulated cache, 0 unless it lost what it should not have. */
int rig_close(struct rig *r);
/* Another life of the cache, with the options of now. */
void rig_reopen(struct rig *r);
/* rig_init and rig_open. */
void rig_set_up(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim);
/* Ends the faults, closes without an error, if it is open, and removes all files. */
void rig_tear_down(struct rig *r);
struct tn_stats rig_stats(struct rig *r);
struct tn_device_stats rig_device(struct rig *r, uint32_t index);
/* What a flush returns. */
int rig_flush(struct rig *r);

/* What has a core to look into: the cache, its space and its session; of an attached rig the owner's. */
struct tn_cache *rig_core(const struct rig *r);
struct tn_space *rig_core_space(const struct rig_space *s);
struct tn_session *rig_session(const struct rig *r);
/* One more process that attaches, so to speak, to the owner of an attached rig. */
struct tn_cache *rig_attach(const struct rig *r);
/* As cmocka_unit_test, of a test that has no meaning here, and why: then it is skipped. NULL: it has one. */
#define RIG_TEST(f, why) {#f, (why) ? rig_skip : (f), NULL, NULL, (void *)(uintptr_t)(why)}
/* A test that has no meaning where the cache is an attached one. */
#define RIG_EMBEDDED_TEST(f, why) RIG_TEST(f, rig_attached ? (why) : NULL)
/* A test of pages that reads go to straight. */
#define RIG_UNSTAGED_TEST(f) RIG_TEST(f, rig_staged || rig_on_device ? RIG_STAGED : NULL)
#define RIG_STAGED "of a staged load no page is written to while its reads hang: they go to session memory"
/* A test that has no meaning where the disk is a raw namespace: of files and directories, of two stores at once, of an engine's faults, of executors. */
#define RIG_FILE_TEST(f) RIG_TEST(f, rig_namespace ? RIG_FILE : NULL)
#define RIG_FILE "a raw namespace has no file and no directory"
/* A test that looks at the store's bytes from outside (rig_store_file). */
#define RIG_STORE_TEST(f) RIG_TEST(f, rig_namespace && !rig_namespace_is_soft() ? RIG_FILE : NULL)
#define RIG_ALONE_TEST(f) RIG_TEST(f, rig_namespace ? RIG_ALONE : NULL)
#define RIG_ALONE "a raw namespace holds one store and lets one process in"
#define RIG_FAULTY_TEST(f) RIG_TEST(f, rig_namespace ? RIG_FAULTY : NULL)
#define RIG_FAULTY "the engine that makes faults, or takes the time of a model, is one of files"
#define RIG_NO_EXECUTORS "a controller that tests are given has no pairs of queues for threads"
/* A test of a simulated cache. */
#define RIG_SIMULATED_TEST(f) RIG_TEST(f, rig_attached || rig_namespace ? RIG_SIMULATED : NULL)
#define RIG_SIMULATED "a simulated cache has a simulated disk, and no thread that could serve"
void rig_skip(void **state);

bool rig_namespace_is_soft(void);
/* A drive of VFIO: in an emulated machine, where everything takes many times as long. */
static inline bool rig_on_drive(void)
{
	return rig_namespace && !rig_namespace_is_soft();
}
/* A cache of the rig may have threads that move bytes. */
static inline bool rig_has_executors(void)
{
	return !rig_on_drive();
}
/* The file that has the bytes of the rig's store, and where they begin in it: not on a drive of VFIO. */
uint64_t rig_store_file(const struct rig *r, char *path, size_t bytes);

/* Zeroed memory for pools: of an attached rig, such that the owner can map it, unless it is staged. */
void *rig_memory(const struct rig *r, uint64_t bytes);
void rig_memory_free(const struct rig *r, void *memory, uint64_t bytes);

/* Replaces the faults of the owner's engine. */
void rig_fault(struct rig *r, const struct tn_fault *faults, uint32_t n);
/* No faults any more; requests that hang end. */
void rig_calm(struct rig *r);

/* ---- spaces ------------------------------------------------------------------------------------------------ */

/* Blocks of this size, of spaces opened from now on. */
void rig_dimensions(struct rig *r, uint32_t head_dim);
/* 0, or the error of tn_space_open. */
int rig_space_open(struct rig *r, const struct rig_space_opts *o, struct rig_space *s);
/* A space with blocks of another size. */
void rig_open_second(struct rig *r, uint32_t head_dim, struct rig_space *s);
void rig_space_close(struct rig_space *s);
/* What rig_space_open and rig_space_close do for the pool: it, and its memory, which is free once there is no pool. */
void rig_pool_open(struct rig_space *s);
void rig_pool_free(struct rig_space *s);
/* Of the spaces that rig_open opens. */
struct tn_geometry rig_geometry(const struct rig *r);
/* A quota of so many blocks of that geometry; UINT64_MAX: no limit. */
struct tn_quota rig_quota(struct rig *r, uint64_t disk_blocks, uint64_t host_blocks);

/* ---- keys, pages and bytes ---------------------------------------------------------------------------------- */

struct tn_key rig_key(uint64_t id);
void rig_keys(uint64_t first, uint32_t n, struct tn_key *keys);
/* Consecutive ones, of n blocks. */
void rig_pages(const struct rig_space *s, uint32_t first_page, uint32_t n, uint32_t *pages);
unsigned char *rig_plane(const struct rig_space *s, uint32_t layer, uint32_t plane, uint32_t page, uint32_t *bytes);
/* Writes the bytes of one layer and page of block id, different in every word, layer, plane and space. Any thread. */
void rig_fill(const struct rig_space *s, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page);
/* Whether they are there. Any thread. */
bool rig_holds(const struct rig_space *s, uint64_t id, uint32_t layer, uint32_t page_in_block, uint32_t page);
/* Of n blocks in consecutive pages. */
void rig_fill_blocks(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page);
void rig_check_blocks(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page);

/* ---- saves, loads, look-ups: of n consecutive blocks, from or to consecutive pages --------------------------- */

struct tn_save *rig_save_begin(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page, const struct tn_save_opts *o);
/* Gives all layers and commits. */
void rig_save_give(struct rig_space *s, struct tn_save *save);
struct tn_save_result rig_save_end(struct rig_space *s, struct tn_save *save);
/* All of it; the parent of the first block is the block before, if that is there. Else it begins a prompt. */
struct tn_save_result rig_save(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page);

struct tn_load *rig_load_begin(struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page, const struct tn_load_opts *o);
/* The good prefix. */
int rig_load_wait(struct rig_space *s, struct tn_load *load, uint32_t layer);
void rig_load_end(struct rig_space *s, struct tn_load *load);
/* Loads to the second half of the pool; returns the good prefix, whose bytes were checked. */
int rig_load(struct rig_space *s, uint64_t first, uint32_t n);

/* The longest prefix that is found. */
int rig_match(const struct rig_space *s, uint64_t first, uint32_t n);
/* How many of them are found, each by itself; in host memory. */
uint32_t rig_count(const struct rig_space *s, uint64_t first, uint32_t n);
uint32_t rig_count_host(const struct rig_space *s, uint64_t first, uint32_t n);
/* A lease on all of them. */
uint64_t rig_pin(const struct rig_space *s, uint64_t first, uint32_t n);
void rig_unpin(const struct rig_space *s, uint64_t pin);

/* ---- time ----------------------------------------------------------------------------------------------------- */

/* Of the simulated clock, or the real one. */
uint64_t rig_now(const struct rig *r);
/* A minute from now. */
uint64_t rig_deadline(const struct rig *r);
/* Lets some time pass: to the next completion of a simulated disk, max_ns at most; of a real rig, a millisecond at most. */
void rig_turn(struct rig *r, uint64_t max_ns);
/* Lets this much time pass. */
void rig_run(struct rig *r, uint64_t ns);
/* Lets time pass until the condition is true; fails the test after a minute. */
#define rig_until(r, condition)                                                          \
	for (uint64_t end_ = rig_deadline(r); !(condition); rig_wait_on(r, end_, #condition)) \
	continue
void rig_wait_on(struct rig *r, uint64_t end_ns, const char *condition);

/* ---- simulated ------------------------------------------------------------------------------------------------ */

/* The power is off from now on: what is under way fails. End all operations, then call rig_crashed. */
void rig_power_off(struct rig *r);
/* Closes, crashes the disk, opens again. */
void rig_crashed(struct rig *r, enum tn_simdisk_crash mode, uint64_t seed);
/* The same in one go, with no operation that anybody would have to end. */
void rig_power_cut(struct rig *r, enum tn_simdisk_crash mode);
/* Time passes, and the owner thread does nothing. */
void rig_oversleep(struct rig *r, uint64_t ns);
/* Fails the test, and says the seed. */
void rig_fail(const struct rig *r, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));
void rig_note(struct rig *r, uint64_t what);
/* A byte pattern that no block has. */
void rig_poison(const struct rig_space *s, uint32_t page);
bool rig_poisoned(const struct rig_space *s, uint32_t page);
/* With nothing under way: no slot, record, operation or lease is lost, and all tables agree. */
void rig_check_quiet(struct rig *r);

/* Of cache_sim_rig.c, for cache_rig.c. */
int rig_sim_open(struct rig *r, struct tn_cache_opts *opts);
int rig_sim_close(struct rig *r);
/* Of cache_drive_rig.c, for cache_rig.c; without a namespace they do nothing. */
const char *rig_namespace_name(void);
void rig_namespace_empty(void);
/* As tn_cache_open. */
int rig_namespace_open(struct rig *r, const struct tn_cache_opts *opts, struct tn_cache **out);
/* The cache is closed. */
void rig_namespace_leave(struct rig *r);
void rig_namespace_remove(struct rig *r);
void rig_sim_turn(struct rig *r, uint64_t max_ns);

#endif
