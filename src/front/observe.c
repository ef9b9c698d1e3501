/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a cache tells of itself: statistics by name, from a table of the members of struct tn_stats; those of a device; how long calls take; and
 * blocks that arrive in a tier and leave it, for those who keep an index of their own: events, and snapshots to begin with.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "block/events.h"
#include "core/transfers.h"
#include "front/attach.h"
#include "region/latency.h"

/* ---- statistics ------------------------------------------------------------------------------------------- */

struct stat {
	const char *name;
	size_t at;
};

#define STAT(member) {#member, offsetof(struct tn_stats, member)}
#define TIER(before, tier, member, after, index) {before tier after, offsetof(struct tn_stats, member[index])}
/* TN_TIER_NONE has no name. */
#define TIERS(before, member, after)                                                                                                        \
	TIER(before, "device", member, after, TN_TIER_DEVICE), TIER(before, "host", member, after, TN_TIER_HOST),                                \
		TIER(before, "disk", member, after, TN_TIER_DISK), TIER(before, "remote", member, after, TN_TIER_REMOTE)
#define UNNAMED 3u

static const struct stat named[] = {
	STAT(blocks), TIERS("", tier_blocks, "_blocks"), STAT(capacity_blocks), STAT(lookups),
	STAT(lookup_blocks), STAT(hit_blocks), STAT(loads), STAT(load_blocks), STAT(load_failed_blocks),
	STAT(joined_blocks), STAT(saves), STAT(saved_blocks), STAT(existing_blocks), STAT(admission_rejected_blocks),
	STAT(rejected_policy_blocks), STAT(rejected_held_blocks), STAT(rejected_share_blocks), STAT(rejected_budget_blocks),
	STAT(rejected_quota_blocks), STAT(rejected_devices_blocks), STAT(rejected_parent_blocks), STAT(save_failed_blocks), STAT(host_only_blocks), TIERS("evicted_", evicted_blocks, "_blocks"),
	STAT(dropped_blocks), STAT(offloaded_blocks), STAT(promoted_blocks), STAT(prefetched_blocks), STAT(promoted_device_blocks),
	STAT(offload_waiting_blocks), STAT(offload_waiting_bytes), STAT(offload_oldest_ns),
	STAT(offload_failed_blocks), STAT(offload_lost_blocks), STAT(bytes_read), STAT(bytes_written),
	STAT(blocks_read_back), STAT(verified_objects), STAT(corrupt_objects), STAT(io_errors),
	STAT(bounced_objects), STAT(direct_bytes), STAT(staged_bytes), STAT(recovered_blocks), STAT(recovery_ns), STAT(header_cache_hits),
	STAT(header_reads), STAT(unobserved_requests), STAT(resolve_ns), STAT(submit_ns), STAT(submit_layers),
	STAT(vigils), STAT(vigils_used),
	STAT(index_bytes), TIERS("loaded_", loaded_bytes, "_bytes"), STAT(saved_bytes),
};

#define COUNT (sizeof(named) / sizeof(named[0]))

_Static_assert(sizeof(struct tn_stats) == (COUNT + UNNAMED) * sizeof(uint64_t), "every member has its name, and every tier of it");

static void tier_stats(const struct tn_cache *cache, struct tn_stats *s)
{
	for (uint32_t t = 0; t < TN_TIER_KINDS; t++) {
		const struct tn_tier_base *tier = cache->row.tier[t];

		s->tier_blocks[t] = tier ? tier->blocks : 0;
		s->evicted_blocks[t] = tier ? tier->evicted : 0;
		s->corrupt_objects += tier ? tier->corrupt : 0;
	}
	s->offload_waiting_blocks = cache->row.queues ? cache->row.queues->dirty_slots : 0;
	s->offload_waiting_bytes = cache->row.queues ? cache->row.queues->dirty_bytes : 0;
	s->offload_failed_blocks = cache->row.queues ? cache->row.queues->failed_slots : 0;
}

static int stats_on_owner(struct tn_cache *cache, void *arg)
{
	const struct tn_tier_base *drives = cache->row.drives;
	struct tn_drive_counts c;
	struct tn_stats *s = arg;

	*s = cache->c;
	s->blocks = tn_registry_count(cache->registry);
	s->capacity_blocks = cache->row.durable ? cache->row.durable->ops->capacity(cache->row.durable) : 0;
	s->offload_oldest_ns = tn_offload_age(&cache->offloads, tn_now_ns(&cache->clock));
	s->index_bytes = tn_registry_bytes(cache->registry);
	s->vigils = cache->vigil.vigils;
	s->vigils_used = cache->vigil.used;
	tier_stats(cache, s);
	for_each_session(session, cache)
		tn_session_add_staged(session, &s->staged_bytes);
	tn_transfers_stats(cache, s);
	if (drives) {
		drives->ops->drives->counts(drives, &c);
		s->header_cache_hits = c.header_cache_hits;
		s->header_reads = c.header_reads;
		s->recovery_ns = c.recovery_ns;
		s->index_bytes += c.index_bytes;
	}
	return 0;
}

int tn_stats_take(struct tn_cache *cache, struct tn_stats *s)
{
	int rc;

	if (cache->attached)
		return tn_check_process(cache) ? -ECHILD : tn_remote_stats(cache, s);
	rc = tn_owner_call(cache, stats_on_owner, s);
	s->lookups = __atomic_load_n(&cache->matches->lookups, __ATOMIC_RELAXED);
	s->lookup_blocks = __atomic_load_n(&cache->matches->lookup_blocks, __ATOMIC_RELAXED);
	s->hit_blocks = __atomic_load_n(&cache->matches->hit_blocks, __ATOMIC_RELAXED);
	return rc;
}

/* ---- of some tenants --------------------------------------------------------------------------------------- */

struct tenants {
	const struct tn_key *key;
	uint32_t n;
	struct tn_stats *stats;
};

int tn_tenant_order(const void *a, const void *b)
{
	const uint64_t *x = ((const struct tn_key *)a)->word, *y = ((const struct tn_key *)b)->word;
	uint32_t i = x[0] == y[0];

	return (x[i] > y[i]) - (x[i] < y[i]);
}

static void add_space(struct tn_cache *cache, struct tn_space *space, struct tn_stats *s)
{
	for (size_t i = 0; i < COUNT; i++) {
		const uint64_t *from = (const uint64_t *)(const void *)((const char *)&space->c + named[i].at);
		uint64_t *to = (uint64_t *)(void *)((char *)s + named[i].at);

		*to += __atomic_load_n(from, __ATOMIC_RELAXED);
	}
	s->blocks += cache->blocks.space_records[space->index];
	for (uint32_t t = 0; t < TN_TIER_KINDS; t++)
		s->tier_blocks[t] += cache->row.tier[t] ? cache->row.tier[t]->space_blocks[space->index] : 0;
}

static int tenants_on_owner(struct tn_cache *cache, void *arg)
{
	const struct tenants *t = arg;

	for (uint32_t i = 0; i < TN_SPACES_MAX; i++) {
		struct tn_space *space = cache->spaces[i];

		if (space && bsearch(&space->tenant, t->key, t->n, sizeof(*t->key), tn_tenant_order))
			add_space(cache, space, t->stats);
	}
	return 0;
}

int tn_stats_take_of(struct tn_cache *cache, const struct tn_key *tenants, uint32_t n, struct tn_stats *stats)
{
	struct tenants t = {tenants, n, stats};

	memset(stats, 0, sizeof(*stats));
	return tn_owner_call(cache, tenants_on_owner, &t);
}

/* ---- by name ------------------------------------------------------------------------------------------------ */

static uint64_t value_of(const struct tn_stats *s, uint32_t i)
{
	uint64_t value;

	memcpy(&value, (const char *)s + named[i].at, sizeof(value));
	return value;
}

const char *tn_stat_name(uint32_t index)
{
	return index < COUNT ? named[index].name : NULL;
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
	while (i < COUNT && strcmp(named[i].name, name) != 0)
		i++;
	if (i == COUNT)
		return tn_fail(-ENOENT, "tn_cache_stat: this version has no statistic \"%.64s\"", name);
	rc = tn_stats_take(cache, &s);
	if (rc == 0)
		*value = value_of(&s, i);
	return rc;
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

struct device_stats_call {
	uint32_t index;
	struct tn_device_stats *stats;
};

/* 1: there is such a device. */
static int device_stats_on_owner(struct tn_cache *cache, void *arg)
{
	const struct device_stats_call *c = arg;

	return cache->row.drives && cache->row.drives->ops->drives->stats(cache->row.drives, c->index, c->stats) == 0;
}

int tn_cache_device_stats(struct tn_cache *cache, uint32_t index, struct tn_device_stats *stats)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_device_stats, lost_blocks);
	struct tn_device_stats s;
	struct device_stats_call call = {index, &s};
	int rc;

	if (!cache || !stats)
		return tn_fail(-EINVAL, "tn_cache_device_stats: no cache, or nowhere to return the statistics");
	rc = tn_abi_check(abi, stats);
	if (rc)
		return rc;
	if (cache->attached)
		rc = tn_check_process(cache) ? -ECHILD : tn_remote_device_stats(cache, index, &s);
	else
		rc = tn_owner_call(cache, device_stats_on_owner, &call);
	if (rc == 0)
		return -ENOENT;
	if (rc < 0)
		return rc;
	tn_abi_out(abi, stats, &s);
	return 0;
}

/* ---- latencies -------------------------------------------------------------------------------------------- */

int tn_cache_latency(struct tn_cache *cache, enum tn_latency_kind kind, enum tn_tier tier, struct tn_latency *out)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_latency, buckets);
	struct tn_latency ours = {.size = sizeof(ours)};
	int rc;

	if (!cache || !out)
		return tn_fail(-EINVAL, "tn_cache_latency: no cache, or nowhere to return the histogram");
	if (!tn_latency_exists((uint32_t)kind, (uint32_t)tier))
		return tn_fail(-EINVAL, "tn_cache_latency: there is no histogram of kind %u and tier %u", (uint32_t)kind, (uint32_t)tier);
	if (tn_check_process(cache))
		return -ECHILD;
	rc = tn_abi_check(abi, out);
	if (rc)
		return rc;
	tn_latency_read(&cache->region, kind, (uint32_t)tier, &ours);
	tn_abi_out(abi, out, &ours);
	return 0;
}

#define PART_EVENTS_MAX 4096u /* of a snapshot, in one turn of the core */

/* ---- blocks ----------------------------------------------------------------------------------------------- */

long tn_cache_events(struct tn_cache *cache, uint64_t *cursor, struct tn_block_event *out, size_t max)
{
	if (!cache || !cursor || (max && !out))
		return tn_fail(-EINVAL, "tn_cache_events: cache, cursor or out is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_remote_events(cache, cursor, out, max);
	if (*cursor == 0)
		*cursor = tn_events_next(cache->events);
	return tn_events_read(cache->events, cursor, out, max);
}

static int snapshot_on_owner(struct tn_cache *cache, void *arg)
{
	tn_watch_snapshot(cache->watch, arg);
	return 0;
}

long tn_cache_snapshot(struct tn_cache *cache, void (*fn)(void *arg, const struct tn_block_event *event), void *arg,
		       uint64_t *cursor)
{
	struct tn_watch_snapshot s = {.fn = fn, .arg = arg};
	int rc;

	if (!cache || !fn || !cursor)
		return tn_fail(-EINVAL, "tn_cache_snapshot: cache, fn or cursor is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_remote_snapshot(cache, fn, arg, cursor);
	rc = tn_owner_call(cache, snapshot_on_owner, &s);
	if (rc)
		return rc;
	*cursor = s.cursor;
	return s.count;
}

static int part_on_owner(struct tn_cache *cache, void *arg)
{
	tn_watch_part(cache->watch, arg);
	return 0;
}

long tn_cache_snapshot_part(struct tn_cache *cache, uint32_t *at, struct tn_block_event *out, size_t max)
{
	struct tn_watch_part part = {.out = out};
	int rc;

	if (!cache || cache->attached || !at || !out || max < TN_TIERS_MAX)
		return tn_fail(-EINVAL, "tn_cache_snapshot_part: no cache of this process, or no place for %u events", TN_TIERS_MAX);
	if (tn_check_process(cache))
		return -ECHILD;
	part.at = *at == TN_SNAPSHOT_BEGIN ? TN_BLOCK_NONE : *at;
	part.max = max < PART_EVENTS_MAX ? (uint32_t)max : PART_EVENTS_MAX;
	rc = tn_owner_call(cache, part_on_owner, &part);
	if (rc)
		return rc;
	*at = part.at == TN_BLOCK_NONE ? TN_SNAPSHOT_BEGIN : part.at;
	return part.n;
}
