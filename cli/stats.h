/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics of a cache that the program uses, each read by its name. */
#ifndef TENUTO_CLI_STATS_H
#define TENUTO_CLI_STATS_H

#include <stdint.h>

struct tn_cache;

#define CLI_STATS(STAT)                                                                                              \
	STAT(admission_rejected_blocks) STAT(blocks_read_back) STAT(bounced_objects) STAT(bytes_read) STAT(bytes_written) \
	STAT(capacity_blocks) STAT(corrupt_objects) STAT(disk_blocks) STAT(host_only_blocks) STAT(io_errors)          \
	STAT(recovered_blocks) STAT(recovery_ns) STAT(resolve_ns) STAT(save_failed_blocks) STAT(saved_blocks)         \
	STAT(submit_layers) STAT(submit_ns) STAT(verified_objects)

#define CLI_STATS_MEMBER(name) uint64_t name;

struct cli_stats {
	CLI_STATS(CLI_STATS_MEMBER)
};

/* A snapshot: 0, or -errno; a statistic that the library does not have is 0. */
int cli_stats(struct tn_cache *cache, struct cli_stats *stats);

#endif
