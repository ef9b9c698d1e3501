/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics as the core has them; callers read them by name (front/observe.c). Each member is a statistic of that name. */
#ifndef TN_CORE_STATS_H
#define TN_CORE_STATS_H

#include <stdint.h>

#include "tier/tier.h"

struct tn_cache;

struct tn_stats {
	uint64_t blocks, tier_blocks[TN_TIER_KINDS];
	uint64_t capacity_blocks;
	uint64_t lookups, lookup_blocks, hit_blocks;
	uint64_t loads, load_blocks, load_failed_blocks, joined_blocks;
	uint64_t saves, saved_blocks, existing_blocks, admission_rejected_blocks, save_failed_blocks;
	/* Of the blocks that were not admitted: by cause (enum tn_kept_out). */
	uint64_t rejected_policy_blocks, rejected_held_blocks, rejected_share_blocks, rejected_budget_blocks, rejected_quota_blocks, rejected_devices_blocks,
		rejected_parent_blocks;
	uint64_t host_only_blocks; /**< of saves: left in host memory alone, see tn_save_result */
	uint64_t evicted_blocks[TN_TIER_KINDS], dropped_blocks;
	uint64_t offloaded_blocks, promoted_blocks, prefetched_blocks;
	uint64_t promoted_device_blocks; /**< that came to the device tier, beside a load or a save */
	uint64_t offload_waiting_blocks, offload_waiting_bytes; /**< now in host memory, admitted to disk, and not written yet */
	uint64_t offload_oldest_ns; /**< for how long the first of them has waited; see offload_lag_ms */
	uint64_t offload_failed_blocks; /**< now in host memory: admitted to disk, could not be written, and are tried again */
	uint64_t offload_lost_blocks;	/**< that were evicted from host memory before they could be written */
	uint64_t bytes_read, bytes_written, blocks_read_back;
	uint64_t verified_objects, corrupt_objects, io_errors, bounced_objects;
	uint64_t direct_bytes; /**< that went between files and memory of devices, and through no host memory */
	uint64_t staged_bytes; /**< that attached processes have copied between session memory and pages of theirs alone */
	uint64_t recovered_blocks, recovery_ns;
	uint64_t header_cache_hits, header_reads;
	uint64_t unobserved_requests; /**< reads of executors' threads that a device's health was not told of: too many at once */
	uint64_t resolve_ns;	/**< of the owner: what is asked copied and checked, keys pinned, places and checksums resolved, once per load */
	uint64_t submit_ns;	/**< of the owner: reads written down and handed to the executor */
	uint64_t submit_layers; /**< layers that took it */
	uint64_t vigils, vigils_used; /**< times that the owner stayed awake after an operation; and the next one was begun meanwhile */
	uint64_t index_bytes;
	uint64_t loaded_bytes[TN_TIER_KINDS]; /**< of loads, what arrived from each tier */
	uint64_t saved_bytes; /**< of saves, what a tier took */
};

/* Of an operation: in the cache, and in its space for those who may see some tenants only. */
#define TN_COUNT(op, member, n)                                                                                                             \
	do {                                                                                                                               \
		const uint64_t more_ = (n);                                                                                                \
		(op)->cache->c.member += more_;                                                                                            \
		(op)->space->c.member += more_;                                                                                            \
	} while (0)

/* A snapshot: 0, or -ECHILD. */
int tn_stats_take(struct tn_cache *cache, struct tn_stats *stats);

#endif
