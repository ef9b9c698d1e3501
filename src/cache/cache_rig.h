/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small cache on a temporary directory, for tests through the public API: blocks of 4 layers and 4 pages, whose
 * content follows from their number and is checked to the byte whenever it is loaded.
 */
#ifndef TN_CACHE_RIG_H
#define TN_CACHE_RIG_H

#include <stdbool.h>
#include <tenuto/tenuto.h>

#define RIG_LAYERS 4u
#define RIG_PAGES 4u /* a block */
#define RIG_POOL_PAGES 1024u
#define RIG_SECOND 1000000000ull

struct tn_io;

struct rig {
	char dir[256];
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool;
	struct tn_geometry g;
	unsigned char *memory;
	void *bases[RIG_LAYERS];
	struct tn_cache_opts opts;
	int (*open)(const struct tn_cache_opts *opts, struct tn_cache **out); /* NULL: tn_cache_open */
	const char *dirs[1];
};

/* Threads that read, of the caches that rig_set_up opens. */
extern uint32_t rig_executors;

uint64_t rig_now_ns(void);
uint64_t rig_soon(void);
int rig_open(struct rig *r);
/* Faults of the next rig_open_faulty, of the owner's engine and of the executors' threads'. */
struct tn_io_faulty_opts;
void rig_faults(const struct tn_io_faulty_opts *opts);
/* Likewise, of directories that were opened before, on an engine that makes faults when told to (ioengine.h). */
struct tn_io *rig_open_faulty(struct rig *r);
int rig_close(struct rig *r);
void rig_set_up(struct rig *r, uint64_t disk_bytes, uint64_t host_bytes, uint32_t head_dim);
void rig_tear_down(struct rig *r);
/* Blocks of 4 layers, 4 pages and 2 planes of 64 * head_dim bytes, of spaces opened from now on. */
void rig_dimensions(struct rig *r, uint32_t head_dim);
/* Another space of the same cache, with smaller or equal blocks, on the same memory. */
void rig_open_second(struct rig *r, uint32_t head_dim, const struct tn_quota *quota, struct rig *out);
void rig_close_second(struct rig *t);
struct tn_key rig_key(uint64_t i);
unsigned char *rig_plane(struct rig *r, uint32_t layer, uint32_t plane, uint32_t page, uint32_t *bytes);
void rig_content(struct rig *r, uint64_t id, uint32_t page_in_block, uint32_t page, bool check);
void rig_save(struct rig *r, uint64_t first, uint32_t n, uint32_t first_page, struct tn_save_result *result);
int rig_load(struct rig *r, uint64_t first, uint32_t n);
struct tn_stats rig_stats(struct rig *r);
struct tn_device_stats rig_device(struct rig *r, uint32_t index);
int rig_match(struct rig *r, uint64_t first, uint32_t n);

/* How many of the blocks [first, first + n) are there, each by itself. */
uint32_t rig_count(struct rig *r, uint64_t first, uint32_t n);

#endif
