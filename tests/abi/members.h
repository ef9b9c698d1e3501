/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of tenuto_0_1.h that grow, and the place of each member: compiled once with that header, and once with
 * today's headers.
 */
#ifndef TN_TEST_MEMBERS_H
#define TN_TEST_MEMBERS_H

#include <stddef.h>

struct member {
	const char *name;
	size_t offset, size; /* of a whole struct: 0 and its sizeof */
};

#define MEMBER(type, m) {#type "." #m, offsetof(struct type, m), sizeof(((struct type *)0)->m)}
#define WHOLE(type) {#type, 0, sizeof(struct type)}

#define CACHE_OPTS(m) MEMBER(tn_cache_opts, m)
#define DEVICE_STATS(m) MEMBER(tn_device_stats, m)

#define MEMBERS \
	CACHE_OPTS(size), CACHE_OPTS(dirs), CACHE_OPTS(ndirs), CACHE_OPTS(instance), CACHE_OPTS(disk_bytes), \
	CACHE_OPTS(disk_blocks), CACHE_OPTS(geometry), CACHE_OPTS(host_bytes), CACHE_OPTS(max_blocks), CACHE_OPTS(max_ops), \
	CACHE_OPTS(max_op_blocks), CACHE_OPTS(io_depth), CACHE_OPTS(io_engine), CACHE_OPTS(executors), CACHE_OPTS(workers), \
	CACHE_OPTS(policy), CACHE_OPTS(verify), CACHE_OPTS(read_only), CACHE_OPTS(write_bytes_per_day), \
	CACHE_OPTS(header_cache_bytes), CACHE_OPTS(lock_timeout_ns), CACHE_OPTS(seed), CACHE_OPTS(log), CACHE_OPTS(log_arg), \
	CACHE_OPTS(log_level), \
	MEMBER(tn_identity, size), MEMBER(tn_identity, tenant), MEMBER(tn_identity, model), MEMBER(tn_identity, revision), \
	MEMBER(tn_identity, kv_dtype), MEMBER(tn_identity, rotary), MEMBER(tn_identity, hash_algorithm), \
	MEMBER(tn_identity, hash_seed), \
	MEMBER(tn_shard, size), MEMBER(tn_shard, tp_rank), MEMBER(tn_shard, tp_size), MEMBER(tn_shard, pp_rank), \
	MEMBER(tn_shard, pp_size), MEMBER(tn_shard, group), MEMBER(tn_shard, match_rule), MEMBER(tn_shard, window_tokens), \
	MEMBER(tn_quota, size), MEMBER(tn_quota, bytes), \
	MEMBER(tn_load_opts, size), MEMBER(tn_load_opts, first_page), MEMBER(tn_load_opts, npages), \
	MEMBER(tn_load_opts, deadline_ns), MEMBER(tn_load_opts, priority), \
	MEMBER(tn_save_opts, size), MEMBER(tn_save_opts, parent), MEMBER(tn_save_opts, partial_last), \
	MEMBER(tn_save_opts, priority), MEMBER(tn_save_opts, ttl_ns), \
	MEMBER(tn_match, size), MEMBER(tn_match, blocks), MEMBER(tn_match, first), MEMBER(tn_match, tier_blocks), \
	 MEMBER(tn_match, load_ns), MEMBER(tn_match, pin), \
	MEMBER(tn_save_result, size), MEMBER(tn_save_result, stored), MEMBER(tn_save_result, existing), \
	MEMBER(tn_save_result, host_only), MEMBER(tn_save_result, rejected), MEMBER(tn_save_result, failed), \
	MEMBER(tn_save_result, error), \
	MEMBER(tn_memory_desc, size), MEMBER(tn_memory_desc, kind), MEMBER(tn_memory_desc, nranges), MEMBER(tn_memory_desc, ranges), \
	MEMBER(tn_plan, size), MEMBER(tn_plan, restore_blocks), MEMBER(tn_plan, recompute_blocks), MEMBER(tn_plan, choice), \
	DEVICE_STATS(size), DEVICE_STATS(path), DEVICE_STATS(health), DEVICE_STATS(deleted), DEVICE_STATS(capacity_bytes), \
	DEVICE_STATS(used_bytes), DEVICE_STATS(blocks), DEVICE_STATS(quarantined_slots), DEVICE_STATS(bytes_read), \
	DEVICE_STATS(bytes_written), DEVICE_STATS(meta_bytes_written), DEVICE_STATS(read_errors), \
	DEVICE_STATS(write_errors), DEVICE_STATS(lost_blocks)

/* First the structs that have a size and grow. Then those without a size that lie on callers' stacks: they never grow. */
#define GROWING \
	WHOLE(tn_cache_opts), WHOLE(tn_identity), WHOLE(tn_shard), WHOLE(tn_quota), WHOLE(tn_load_opts), WHOLE(tn_save_opts), \
	WHOLE(tn_plan), WHOLE(tn_device_stats), WHOLE(tn_match), WHOLE(tn_save_result), WHOLE(tn_memory_desc)
#define FIXED \
	WHOLE(tn_key), WHOLE(tn_plane), WHOLE(tn_geometry), WHOLE(tn_pool_layout), WHOLE(tn_pool_shape), WHOLE(tn_memory_range), WHOLE(tn_plan_cost), WHOLE(tn_error)

extern const struct member members_then[], growing_then[], fixed_then[];
extern const struct member members_now[], growing_now[], fixed_now[];
extern const size_t members_count, growing_count, fixed_count;

#endif
