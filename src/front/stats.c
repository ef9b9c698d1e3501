/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics by name: a table of the members of struct tn_stats. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "core/stats.h"

struct stat {
	const char *name;
	size_t at;
};

#define STAT(member) {#member, offsetof(struct tn_stats, member)}

static const struct stat stats[] = {
	STAT(blocks), STAT(host_blocks), STAT(disk_blocks), STAT(capacity_blocks), STAT(lookups),
	STAT(lookup_blocks), STAT(hit_blocks), STAT(loads), STAT(load_blocks), STAT(load_failed_blocks),
	STAT(joined_blocks), STAT(saves), STAT(saved_blocks), STAT(existing_blocks), STAT(admission_rejected_blocks),
	STAT(save_failed_blocks), STAT(host_only_blocks), STAT(evicted_disk_blocks), STAT(evicted_host_blocks),
	STAT(dropped_blocks), STAT(offloaded_blocks), STAT(promoted_blocks), STAT(prefetched_blocks),
	STAT(offload_waiting_blocks), STAT(offload_waiting_bytes), STAT(offload_oldest_ns),
	STAT(offload_failed_blocks), STAT(offload_lost_blocks), STAT(bytes_read), STAT(bytes_written),
	STAT(blocks_read_back), STAT(verified_objects), STAT(corrupt_objects), STAT(io_errors),
	STAT(bounced_objects), STAT(recovered_blocks), STAT(recovery_ns), STAT(header_cache_hits),
	STAT(header_reads), STAT(unobserved_requests), STAT(resolve_ns), STAT(submit_ns), STAT(submit_layers),
	STAT(index_bytes),
};

#define COUNT (sizeof(stats) / sizeof(stats[0]))

_Static_assert(sizeof(struct tn_stats) == COUNT * sizeof(uint64_t), "every member has its name");

static uint64_t value_of(const struct tn_stats *s, uint32_t i)
{
	uint64_t value;

	memcpy(&value, (const char *)s + stats[i].at, sizeof(value));
	return value;
}

const char *tn_stat_name(uint32_t index)
{
	return index < COUNT ? stats[index].name : NULL;
}

int tn_cache_stats(struct tn_cache *cache, uint64_t *values, uint32_t n)
{
	struct tn_stats s = {0};
	int rc;

	if (!cache || (n && !values))
		return tn_fail(-EINVAL, "tn_cache_stats: no cache, or nowhere to return the statistics");
	rc = tn_stats_take(cache, &s);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n && i < COUNT; i++)
		values[i] = value_of(&s, i);
	return (int)COUNT;
}

int tn_cache_stat(struct tn_cache *cache, const char *name, uint64_t *value)
{
	struct tn_stats s = {0};
	uint32_t i = 0;
	int rc;

	if (!cache || !name || !value)
		return tn_fail(-EINVAL, "tn_cache_stat: no cache, no name, or nowhere to return the value");
	while (i < COUNT && strcmp(stats[i].name, name) != 0)
		i++;
	if (i == COUNT)
		return tn_fail(-ENOENT, "tn_cache_stat: this version has no statistic \"%.64s\"", name);
	rc = tn_stats_take(cache, &s);
	if (rc == 0)
		*value = value_of(&s, i);
	return rc;
}
