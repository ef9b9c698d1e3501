/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frozen copy of the first version of the public headers, as far as old_program.c needs it. It includes no header of
 * today. Members that came later are missing here.
 *
 * Never change this file. If a test with it fails, the library breaks old programs.
 */
#ifndef TENUTO_0_1_H
#define TENUTO_0_1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TN_FOREVER UINT64_MAX
#define TN_MATCH_PIN 1u
#define TN_TIERS_MAX 8u
#define TN_PLANES_MAX 8

enum tn_tier { TN_TIER_NONE, TN_TIER_DEVICE, TN_TIER_HOST, TN_TIER_DISK, TN_TIER_REMOTE };
enum tn_memory_kind { TN_MEMORY_HOST, TN_MEMORY_FD, TN_MEMORY_DEVICE };
enum tn_pool_order { TN_POOL_PLANES_PAGES, TN_POOL_PAGES_PLANES, TN_POOL_PLANE_REGION, TN_POOL_CROSS_LAYER };
enum tn_log_level { TN_LOG_ERROR, TN_LOG_WARN, TN_LOG_INFO, TN_LOG_DEBUG };
typedef void (*tn_log_fn)(void *arg, enum tn_log_level level, const char *where, const char *text);

struct tn_error {
	int code;
	char where[64];
	char text[448];
};

struct tn_key {
	uint64_t word[2];
};

struct tn_plane {
	uint32_t kind;
	uint32_t heads;
	uint32_t head_dim;
	uint32_t elem_bits;
};

struct tn_geometry {
	uint32_t layers;
	uint32_t page_tokens;
	uint32_t pages_per_block;
	uint32_t page_order;
	uint32_t nplanes;
	struct tn_plane planes[TN_PLANES_MAX];
};

struct tn_memory_range {
	void *address;
	uint64_t bytes;
	uint64_t fd_offset;
	int32_t fd;
	uint32_t device;
};

struct tn_memory_desc {
	size_t size;
	uint32_t kind;
	uint32_t nranges;
	const struct tn_memory_range *ranges;
};

struct tn_pool_layout {
	uint64_t npages;
	const uint64_t *base;
	uint64_t stride[TN_PLANES_MAX];
};

struct tn_pool_shape {
	uint32_t order;
	uint32_t alignment;
	uint64_t npages;
};

struct tn_cache;
struct tn_space;
struct tn_memory;
struct tn_pool;
struct tn_load;
struct tn_save;

struct tn_cache_opts {
	size_t size;
	const char *const *dirs;
	size_t ndirs;
	const char *instance;
	uint64_t disk_bytes;
	uint64_t disk_blocks;
	const struct tn_geometry *geometry;
	uint64_t host_bytes;
	uint64_t max_blocks;
	uint32_t max_ops;
	uint32_t max_op_blocks;
	uint32_t io_depth;
	const char *io_engine;
	uint32_t executors;
	uint32_t workers;
	const char *policy;
	bool verify;
	bool read_only;
	uint64_t write_bytes_per_day;
	uint64_t header_cache_bytes;
	uint64_t lock_timeout_ns;
	uint64_t seed;
	tn_log_fn log;
	void *log_arg;
	enum tn_log_level log_level;
};

struct tn_identity {
	size_t size;
	const char *tenant;
	const char *model;
	const char *revision;
	const char *kv_dtype;
	const char *rotary;
	const char *hash_algorithm;
	uint64_t hash_seed;
};

struct tn_shard {
	size_t size;
	uint32_t tp_rank, tp_size;
	uint32_t pp_rank, pp_size;
	uint32_t group;
	uint32_t match_rule;
	uint32_t window_tokens;
};

struct tn_quota {
	size_t size;
	uint64_t bytes[TN_TIERS_MAX];
};

struct tn_match {
	size_t size;
	uint32_t blocks;
	uint32_t first;
	uint32_t tier_blocks[TN_TIERS_MAX];
	uint64_t load_ns;
	uint64_t pin;
};

struct tn_load_opts {
	size_t size;
	uint64_t first_page;
	uint64_t npages;
	uint64_t deadline_ns;
	int32_t priority;
};

struct tn_save_opts {
	size_t size;
	const struct tn_key *parent;
	bool partial_last;
	int32_t priority;
	uint64_t ttl_ns;
};

struct tn_save_result {
	size_t size;
	uint32_t stored;
	uint32_t existing;
	uint32_t host_only;
	uint32_t rejected;
	uint32_t failed;
	int error;
};

struct tn_plan_cost {
	uint64_t ttft_ns;
	uint64_t bubble_ns;
	uint64_t compute_ns;
	uint64_t io_ns;
};

struct tn_plan {
	size_t size;
	uint32_t restore_blocks;
	uint32_t recompute_blocks;
	struct tn_plan_cost choice;
};

struct tn_device_stats {
	size_t size;
	char path[256];
	uint32_t health;
	bool deleted;
	uint64_t capacity_bytes, used_bytes;
	uint64_t blocks, quarantined_slots;
	uint64_t bytes_read, bytes_written, meta_bytes_written;
	uint64_t read_errors, write_errors;
	uint64_t lost_blocks;
};

const struct tn_error *tn_error_last(void);
int tn_geometry_raw(uint32_t layers, uint64_t object_bytes, struct tn_geometry *out);

void tn_cache_opts_init_sized(struct tn_cache_opts *opts, size_t size);
void tn_identity_init_sized(struct tn_identity *id, size_t size);
void tn_shard_init_sized(struct tn_shard *shard, size_t size);
void tn_quota_init_sized(struct tn_quota *quota, size_t size);
void tn_load_opts_init_sized(struct tn_load_opts *opts, size_t size);
void tn_save_opts_init_sized(struct tn_save_opts *opts, size_t size);

int tn_cache_open(const struct tn_cache_opts *opts, struct tn_cache **out);
int tn_cache_close(struct tn_cache *cache);
int tn_cache_stat(struct tn_cache *cache, const char *name, uint64_t *value);
int tn_cache_device_stats(struct tn_cache *cache, uint32_t index, struct tn_device_stats *stats);
int tn_flush(struct tn_cache *cache, uint64_t deadline_ns);
int tn_space_open(struct tn_cache *cache, const struct tn_identity *identity, const struct tn_shard *shard,
		  const struct tn_geometry *geometry, const struct tn_quota *quota, struct tn_space **out);
void tn_space_close(struct tn_space *space);
int tn_layout_fill(const struct tn_geometry *g, const struct tn_pool_shape *shape, const uint64_t *regions, uint64_t *base,
		   struct tn_pool_layout *out);
void tn_memory_desc_init_sized(struct tn_memory_desc *desc, size_t size);
int tn_memory_register(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_memory **out);
int tn_memory_unregister(struct tn_memory *memory);
int tn_pool_create(struct tn_memory *memory, const struct tn_geometry *geometry, const struct tn_pool_layout *layout,
		   struct tn_pool **out);
int tn_pool_destroy(struct tn_pool *pool);
long tn_keys_from_tokens(const struct tn_space *space, const uint32_t *tokens, size_t n, const void *extra,
			 size_t extra_bytes, struct tn_key *keys, size_t max);
int tn_match(struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers, struct tn_match *match,
	     unsigned flags);
int tn_unpin(struct tn_space *space, uint64_t pin);
int tn_plan(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
	    struct tn_plan *plan);
int tn_load_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_load_opts *opts, struct tn_load **out);
int tn_load_wait(struct tn_load *load, uint32_t layer, uint64_t deadline_ns);
int tn_load_end(struct tn_load *load, uint64_t deadline_ns, uint8_t *busy);
int tn_save_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
		  const uint32_t *pages, const struct tn_save_opts *opts, struct tn_save **out);
int tn_save_layer(struct tn_save *save, uint32_t layer, const void *ready);
int tn_save_commit(struct tn_save *save);
int tn_save_end(struct tn_save *save, uint64_t deadline_ns, struct tn_save_result *result);

#endif
