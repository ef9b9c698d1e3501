/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing the core up and down, on the owner thread: engine, store with recovery, registry, policies, tiers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory_limit.h"
#include "base/rng.h"
#include "block/events.h"
#include "core/core.h"
#include "core/transfers.h"
#include "core/workers.h"
#include "drives/drives.h"
#include "ring/executor.h"
#include "tier/device/device.h"
#include "tier/disk/disk.h"
#include "tier/host/host.h"

#define USUAL_BLOCK_BYTES (64u << 10) /* for sizing tables before a space says how large its blocks are */
#define LEAST_BLOCK_BYTES (4u << 10)
#define SMALL_TABLE (1u << 18) /* blocks: tables up to this size are made for smaller blocks, too */
#define RECORD_RESERVE 4096u	      /* records for blocks on their way in, beyond the capacities; the disk tier counts on half */

/* ---- recovery ----------------------------------------------------------------------------------------------- */

/* What the store found: registered at once, given to the policy afterwards in the order of last use. By block. */
struct recovered {
	uint32_t recency;
	uint32_t depth; /* known once all are linked */
	tn_block block;
};

struct tn_recovery {
	struct tn_cache *cache;
	struct recovered *list;
	size_t count, size;
};

static uint32_t on_recovered(void *arg, tn_slot slot, const struct tn_index_entry *entry)
{
	struct tn_recovery *r = arg;
	struct tn_registry *reg = r->cache->registry;
	tn_block b;

	if (entry->flags & TN_ENTRY_EXPIRES)
		return UINT32_MAX;
	if (tn_block_adopt(reg, entry->space, &entry->key, &entry->parent, &b) < 0)
		return TN_STORE_REFUSED;
	tn_block_set_slot(reg, b, TN_TIER_DISK, slot);
	tn_block_set_residency(reg, b, TN_TIER_DISK, TN_PRESENT);
	r->cache->blocks.recency[b] = entry->recency;
	r->list[b] = (struct recovered){entry->recency, 0, b};
	r->count = b < r->count ? r->count : b + 1;
	return b;
}

static int by_recency(const void *a, const void *b)
{
	const struct recovered *x = a, *y = b;

	if (x->recency != y->recency)
		return x->recency < y->recency ? -1 : 1;
	if (x->depth != y->depth) /* of one request: the first block is the most recent, all others need it */
		return x->depth > y->depth ? -1 : 1;
	return x->block < y->block ? -1 : x->block > y->block;
}

static void fill_policy(struct tn_recovery *r)
{
	struct tn_cache *cache = r->cache;
	struct tn_registry *reg = cache->registry;
	size_t n = 0;

	tn_registry_relink(reg);
	for (size_t i = 0; i < r->count; i++)
		r->list[i].depth = tn_block_depth(reg, r->list[i].block);
	for (size_t b = 0; b < r->count; b++)
		if (tn_block_state(reg, (tn_block)b) == TN_BLOCK_REGISTERED &&
		    tn_block_residency(reg, (tn_block)b, TN_TIER_DISK) == TN_PRESENT)
			r->list[n++] = r->list[b];
	qsort(r->list, n, sizeof(*r->list), by_recency);
	for (size_t i = 0; i < n; i++) {
		tn_block b = r->list[i].block;
		struct tn_policy_block info;

		tn_block_describe(cache->row.durable, b, false, &info);
		info.parent = tn_tier_entry(cache->row.durable, tn_block_parent(reg, b));
		tn_tier_adopt(cache->row.durable, b, &info);
		cache->blocks.tick = r->list[i].recency; /* in the order of last use */
		tn_block_registered(&cache->blocks, tn_block_space(reg, b));
	}
	cache->c.recovered_blocks = cache->row.durable->blocks;
}

/* ---- what the store asks later ------------------------------------------------------------------------------ */

static void on_describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *entry)
{
	struct tn_cache *cache = ((struct tn_recovery *)arg)->cache;
	tn_block parent = tn_block_parent(cache->registry, cookie);

	entry->key = tn_block_key(cache->registry, cookie);
	entry->space = tn_block_space(cache->registry, cookie);
	entry->recency = cache->blocks.recency[cookie];
	entry->flags = tn_watch_expires(cache->watch, cookie) ? TN_ENTRY_EXPIRES : 0;
	entry->parent = (struct tn_key){{0, 0}};
	if (parent != TN_BLOCK_NONE)
		entry->parent = tn_block_key(cache->registry, parent);
}

static void on_evict(void *arg, tn_slot slot, uint32_t cookie)
{
	struct tn_cache *cache = ((struct tn_recovery *)arg)->cache;

	if (tn_block_residency(cache->registry, cookie, TN_TIER_DISK) == TN_PRESENT)
		tn_block_doom(&cache->blocks, cookie);
}

static bool on_vacate(void *arg, tn_slot first, uint32_t n)
{
	return tn_disk_tier_vacate(((struct tn_recovery *)arg)->cache->row.durable, first, n);
}

static bool on_passes(void *arg, tn_slot first, uint32_t n)
{
	return tn_slots_pass(((struct tn_recovery *)arg)->cache, first, n);
}

static void on_health(void *arg, uint32_t device, enum tn_health health)
{
	struct tn_cache *cache = ((struct tn_recovery *)arg)->cache;

	cache->offloads.again |= health == TN_HEALTHY && cache->row.queues && cache->row.queues->failed_slots > 0;
}

static bool on_may_write(void *arg, uint32_t device, uint64_t bytes)
{
	return tn_schedule_store_write(((struct tn_recovery *)arg)->cache, device, bytes);
}

static void on_written(void *arg, uint32_t device, uint64_t bytes)
{
	tn_schedule_ended(((struct tn_recovery *)arg)->cache, TN_IO_WRITE, device, bytes, true);
}

/* ---- parts -------------------------------------------------------------------------------------------------- */

static int open_engine(struct tn_cache *cache)
{
	uint32_t depth = 64;
	int rc;

	/* Room for the data, the headers and the store's own requests. */
	while (depth < cache->o.io_depth + 64 && depth < 4096)
		depth *= 2;
	rc = cache->engines.open(&cache->engines);
	return rc ? rc : cache->engines.make(&cache->engines, depth, &cache->io);
}

static int open_workers(struct tn_cache *cache)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t n = cache->o.workers;

	if (n == 0)
		n = cpus >= 8 ? 4 : cpus >= 2 ? (uint32_t)cpus / 2 : 1;
	if (tn_workers_create(n, tn_executor_jobs(cache->o.io_depth), cache->alloc, cache->io, &cache->workers))
		return tn_error_last()->code;
	cache->exec = tn_workers_exec(cache->workers);
	return 0;
}

/* The smallest blocks of which so many bytes are full before the tables are. */
static uint64_t least_block(uint64_t bytes)
{
	uint64_t least = USUAL_BLOCK_BYTES;

	while (least > LEAST_BLOCK_BYTES && bytes / (least / 2) <= SMALL_TABLE)
		least /= 2;
	return least;
}

/* Slots of new stores: one for each block of the size that was announced, and some for those in between. */
static uint64_t new_slots(const struct tn_cache *cache)
{
	uint64_t each = cache->slot_bytes ? cache->slot_bytes : least_block(cache->o.disk_bytes);

	return cache->o.disk_bytes / each + cache->o.disk_bytes / each / 8 + 1024;
}

/* Tables for every block that the tiers can hold. */
static uint64_t table_blocks(const struct tn_cache *cache)
{
	const struct tn_cache_opts *o = &cache->o;
	uint64_t disk = o->ndirs == 0 ? 0 : new_slots(cache) > cache->stored_slots ? new_slots(cache) : cache->stored_slots;
	uint64_t least = least_block(o->host_bytes), each = cache->slot_bytes && cache->slot_bytes < least ? cache->slot_bytes : least;
	uint64_t n = disk + o->host_bytes / each + RECORD_RESERVE;

	if (o->max_blocks)
		n = o->max_blocks;
	return n > 1u << 31 ? 1u << 31 : n;
}

/* Lays new stores out for blocks of the given geometry: the bytes that disk_blocks of them need, and the segments. */
static int plan_layout(struct tn_cache *cache, uint64_t *bytes)
{
	uint64_t blocks = cache->o.disk_blocks, least;
	struct tn_shape s;
	uint32_t *sizes;

	if (tn_shape_init(cache->o.geometry, &s))
		return tn_error_last()->code;
	if (blocks == 0) {
		blocks = cache->o.disk_bytes / (s.slot_bytes + TN_STORE_HEADER_BYTES);
		blocks = blocks > 64 ? blocks - 64 : 1;
	}
	sizes = tn_get(cache->alloc, s.layers * sizeof(*sizes));
	if (!sizes)
		return tn_fail(-ENOMEM, "no memory");
	for (uint32_t i = 0; i < s.layers; i++)
		sizes[i] = s.object_bytes;
	cache->slot_bytes = s.slot_bytes;
	least = tn_store_bytes_for(blocks, (uint32_t)cache->o.ndirs, s.layers, sizes, &cache->segment_bytes);
	tn_put(cache->alloc, sizes, s.layers * sizeof(*sizes));
	*bytes = least;
	return 0;
}

#define SMALL_BYTES (UINT64_C(1) << 30) /* a new store with less is more likely a mistake */

/* A tenth of what is free; of a drive all but what the index may need. */
static int spare_bytes(const struct tn_cache *cache, uint64_t *bytes)
{
	struct statvfs fs;

	*bytes = 0;
	for (size_t i = 0; i < cache->o.ndirs; i++) {
		if (tn_drive_is(cache->o.dirs[i])) {
			*bytes += tn_drives_bytes(cache->engines.drives, cache->o.dirs[i]) / 16 * 15;
			continue;
		}
		if (statvfs(cache->o.dirs[i], &fs))
			return tn_fail(-errno, "directory %s: %s", cache->o.dirs[i], strerror(errno));
		*bytes += (uint64_t)fs.f_bavail * fs.f_frsize / 10;
	}
	return 0;
}

/* Bytes of a directory's file system, or of a drive, all and those that are free; false: it does not say. */
static bool free_disk_of(const struct tn_cache *cache, const char *dir, uint64_t *all, uint64_t *left)
{
	struct statvfs fs;

	if (tn_drive_is(dir)) {
		*all = *left = tn_drives_bytes(cache->engines.drives, dir);
		return *all > 0;
	}

	if (statvfs(dir, &fs))
		return false;
	*all = (uint64_t)fs.f_blocks * fs.f_frsize;
	*left = (uint64_t)fs.f_bavail * fs.f_frsize;
	return true;
}

/*
 * A capacity that no file system could ever hold is refused, before tables are made for it. One that does not fit beside what is there now is said
 * to be so: it may fit later. existing: what the stores have, of which nobody knows how much is written.
 * in_blocks: the caller gave disk_blocks, and disk_bytes follows from them.
 */
static int check_free_disk(struct tn_cache *cache, uint64_t existing, bool in_blocks)
{
	uint64_t each = cache->o.ndirs ? cache->o.disk_bytes / cache->o.ndirs : 0, all, left;

	for (size_t i = 0; i < cache->o.ndirs; i++) {
		const char *dir = cache->o.dirs[i];

		if (!free_disk_of(cache, dir, &all, &left))
			continue; /* opening the store says why */
		if (each > all)
			return tn_fail(-EINVAL, "%s %llu: a capacity of %llu bytes in %s, which has %llu in all; give less",
				       in_blocks ? "disk_blocks" : "disk_bytes",
				       (unsigned long long)(in_blocks ? cache->o.disk_blocks : cache->o.disk_bytes),
				       (unsigned long long)each, dir, (unsigned long long)all);
		if (each > left && existing == 0)
			tn_log(&cache->log, TN_LOG_WARN, "%s: its capacity is %llu MiB, and %llu MiB are free: saves will fail when it is full", dir,
			       (unsigned long long)each >> 20, (unsigned long long)left >> 20);
	}
	return 0;
}

/* What the directories hold already, and the capacity of new stores if it was not given. */
static int plan_capacity(struct tn_cache *cache)
{
	struct tn_store_opts so = {.io = cache->io, .alloc = cache->alloc, .clock = &cache->clock, .log = &cache->log};
	bool in_blocks = cache->o.geometry && cache->o.disk_blocks && !cache->o.disk_bytes;
	uint64_t existing = 0, size, slots;
	int rc = 0;

	for (size_t i = 0; i < cache->o.ndirs; i++)
		if (tn_store_capacity(&so, cache->o.dirs[i], &size, &slots) == 0) {
			existing += size;
			cache->stored_slots += slots;
		}
	if (cache->o.geometry && (cache->o.disk_bytes || cache->o.disk_blocks)) {
		rc = plan_layout(cache, &size);
		if (rc == 0 && in_blocks)
			cache->o.disk_bytes = size;
	}
	if (rc == 0)
		rc = check_free_disk(cache, existing, in_blocks);
	if (rc == 0 && cache->o.disk_bytes == 0 && existing == 0) {
		rc = spare_bytes(cache, &cache->o.disk_bytes);
		if (rc == 0 && cache->o.disk_bytes < SMALL_BYTES)
			tn_log(&cache->log, TN_LOG_WARN, "new stores have %llu MiB, a tenth of what is free, and never more: for larger ones give disk_bytes, with empty directories",
			       (unsigned long long)cache->o.disk_bytes >> 20);
	}
	return rc;
}

static int open_watch(struct tn_cache *cache)
{
	const struct tn_watch_opts wo = {
		.row = &cache->row,
		.registry = cache->registry,
		.spaces = cache->spaces,
		.events = cache->events,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.max_blocks = cache->max_blocks,
	};

	return tn_watch_create(&wo, &cache->watch);
}

/* The registry, and what is kept of blocks beside it. */
static int open_registry(struct tn_cache *cache)
{
	struct tn_registry_opts ro = {.alloc = cache->alloc, .device_slots = cache->o.device_tier.bytes > 0};
	int rc;

	cache->max_blocks = ro.max_blocks = (uint32_t)table_blocks(cache);
	rc = tn_registry_create(&ro, &cache->registry);
	if (rc == 0)
		rc = tn_events_create(TN_EVENTS_KEPT, cache->alloc, &cache->events);
	if (rc == 0)
		rc = open_watch(cache);
	if (rc)
		return rc;
	cache->blocks.registry = cache->registry;
	cache->blocks.row = &cache->row;
	cache->blocks.dirty = &cache->dirty;
	cache->blocks.watch = cache->watch;
	cache->blocks.io = cache->io;
	cache->blocks.c = &cache->c;
	cache->blocks.alloc = cache->alloc;
	cache->blocks.max = cache->max_blocks;
	cache->dirty = (struct tn_dirty_blocks){
		.row = &cache->row, .registry = cache->registry, .spaces = cache->spaces, .clock = &cache->clock};
	return tn_blocks_create(&cache->blocks, cache->o.ndirs > 0);
}

/* ---- the row of tiers ---------------------------------------------------------------------------------------- */

static int make_host(struct tn_cache *cache, struct tn_tier_base **out)
{
	char what[300];
	uint64_t most = cache->o.host_bytes ? tn_memory_limit("", what, sizeof(what)) : 0;

	if (cache->o.host_bytes > most)
		return tn_fail(-EINVAL, "host_bytes %llu: more than %s of %llu bytes; give less", (unsigned long long)cache->o.host_bytes, what,
			       (unsigned long long)most);
	return cache->o.host_bytes ? tn_host_tier_create(cache->o.host_bytes, cache->o.seed, cache->alloc, out) : 0;
}

static int make_device(struct tn_cache *cache, struct tn_tier_base **out)
{
	const struct tn_device_tier_opts o = {
		.driver = cache->o.device_tier.driver,
		.device = cache->o.device_tier.device,
		.bytes = cache->o.device_tier.bytes,
		.seed = cache->o.seed,
		.alloc = cache->alloc,
		.copiers = &cache->copiers,
		.log = &cache->log,
	};

	return o.bytes ? tn_device_tier_create(&o, out) : 0;
}

static int make_disk(struct tn_cache *cache, struct tn_tier_base **out)
{
	struct tn_policy_opts po = {
		.capacity = cache->max_blocks,
		.target = (uint32_t)cache->o.disk_blocks,
		.seed = cache->o.seed,
		.alloc = cache->alloc,
	};
	struct tn_disk_opts o = {
		.store = cache->store,
		.disk_blocks = cache->o.disk_blocks,
		.max_blocks = cache->max_blocks,
		.header_cache_bytes = cache->o.header_cache_bytes,
		.alloc = cache->alloc,
		.clock = &cache->clock,
	};
	const struct tn_policy_ops *policy;
	int rc = cache->store ? tn_policy_find(cache->o.policy, &policy) : 0;

	if (rc || !cache->store)
		return rc;
	rc = policy->create(&po, &o.policy);
	if (rc)
		return rc;
	rc = tn_disk_tier_create(&o, out);
	if (rc)
		policy->destroy(o.policy);
	return rc;
}

/* Who makes each tier, by enum tn_tier; a cache may have others in its place (struct tn_cache). */
const tn_tier_make tn_tier_makers[TN_TIERS_MAX] = {
	[TN_TIER_DEVICE] = make_device,
	[TN_TIER_HOST] = make_host,
	[TN_TIER_DISK] = make_disk,
};

static int make_tiers(struct tn_cache *cache)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < TN_TIERS_MAX; i++) {
		struct tn_tier_base *t = NULL;

		if (cache->make_tier[i])
			rc = cache->make_tier[i](cache, &t);
		if (rc == 0 && t)
			tn_tier_joins(&cache->blocks, t);
	}
	return rc;
}

static void destroy_tiers(struct tn_cache *cache)
{
	for_each_tier(t, &cache->row)
		t->ops->destroy(t);
}

/* ---- the store and what serves all ------------------------------------------------------------------------------ */

static int open_store(struct tn_cache *cache, struct tn_recovery *r)
{
	struct tn_store_opts so = {
		.io = cache->io,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.log = &cache->log,
		.dirs = cache->o.dirs,
		.ndirs = (uint32_t)cache->o.ndirs,
		.capacity_bytes = cache->o.disk_bytes,
		.segment_bytes = cache->segment_bytes,
		.max_slots = (uint32_t)(new_slots(cache) < UINT32_MAX ? new_slots(cache) : UINT32_MAX),
		.read_only = cache->o.read_only,
		.prepare = true,
		.write_bytes_per_day = cache->o.write_bytes_per_day,
		.lock_timeout_ns = cache->o.lock_timeout_ns,
		.durability_ns = cache->o.durability_ms == UINT32_MAX ? UINT64_MAX : cache->o.durability_ms * 1000000ull,
		.slow_read_ns = cache->slow_read_ns,
		.boot = {cache->boot[0], cache->boot[1]},
		.entropy = {cache->entropy[0], cache->entropy[1]},
		.cb = {on_recovered, on_describe, on_evict, on_health, r, on_may_write, on_written,
		       on_vacate, on_passes},
	};
	int rc;

	r->size = cache->max_blocks;
	r->list = tn_get(cache->alloc, tn_array_bytes(r->size, sizeof(*r->list)));
	if (!r->list)
		return tn_fail(-ENOMEM, "no memory to recover %zu blocks", r->size);
	rc = tn_store_open(&so, &cache->store);
	if (rc == 0) {
		cache->ndevices = tn_store_devices(cache->store);
		cache->secret = tn_store_secret(cache->store);
		rc = make_tiers(cache);
	}
	if (rc == 0)
		fill_policy(r);
	tn_put(cache->alloc, r->list, tn_array_bytes(r->size, sizeof(*r->list)));
	r->list = NULL;
	return rc;
}

static int open_transfers(struct tn_cache *cache)
{
	uint64_t active = (uint64_t)cache->o.max_ops * cache->o.max_op_blocks;
	int rc = tn_whole_create(cache->alloc, &cache->whole);

	if (rc == 0)
		rc = tn_flights_create(cache->alloc, active < cache->max_blocks ? (uint32_t)active : cache->max_blocks,
				       &cache->flights);
	if (rc)
		return rc;
	cache->places.scratch = tn_get(cache->alloc, TN_PLACES_AT_ONCE * sizeof(*cache->places.scratch));
	return cache->places.scratch ? 0 : tn_fail(-ENOMEM, "no memory for places");
}

static int open_offloads(struct tn_cache *cache)
{
	struct tn_offloads *o = &cache->offloads;

	o->row = &cache->row;
	o->registry = cache->registry;
	o->blocks = &cache->blocks;
	o->dirty = &cache->dirty;
	o->watch = cache->watch;
	o->spaces = cache->spaces;
	o->places = &cache->places;
	o->device_loads = &cache->device_loads;
	o->c = &cache->c;
	o->alloc = cache->alloc;
	o->clock = &cache->clock;
	o->lag_ns = cache->o.offload_lag_ms == UINT32_MAX ? TN_FOREVER : cache->o.offload_lag_ms * 1000000ull;
	o->scheduled = cache->schedule != NULL;
	return tn_offloads_create(o, cache, cache->o.max_ops);
}

static int open_keyed(struct tn_cache *cache)
{
	const struct tn_keyed_opts ko = {
		.row = &cache->row,
		.registry = cache->registry,
		.blocks = &cache->blocks,
		.watch = cache->watch,
		.spaces = cache->spaces,
		.messages = &cache->messages,
		.alloc = cache->alloc,
		.lookups = cache->o.max_ops * 4,
		.keys = cache->o.max_op_blocks,
	};

	return tn_keyed_create(&ko, &cache->keyed);
}

/* Flushes, and spaces that are dropped or have to go. */
static int open_flushes(struct tn_cache *cache)
{
	const struct tn_reclaim_opts ro = {&cache->blocks, cache->spaces, cache->row.durable, cache->alloc, &cache->clock, &cache->log};

	cache->flushes = (struct tn_flushes){
		.offloads = &cache->offloads,
		.dirty = &cache->dirty,
		.messages = &cache->messages,
		.durable = cache->row.durable,
		.c = &cache->c,
		.alloc = cache->alloc,
		.read_only = cache->o.read_only,
	};
	cache->drops = (struct tn_drops){
		.blocks = &cache->blocks,
		.flushes = &cache->flushes,
		.messages = &cache->messages,
		.durable = cache->row.durable,
	};
	tn_list_init(&cache->drops.waiting);
	return tn_reclaim_create(&ro, &cache->reclaim);
}

/* ---- up and down ------------------------------------------------------------------------------------------------ */

static void close_parts(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;

	tn_workers_destroy(cache->workers);
	tn_reclaim_destroy(cache->reclaim);
	tn_schedule_destroy(cache);
	tn_flights_destroy(cache->flights);
	tn_offloads_destroy(&cache->offloads);
	tn_whole_destroy(cache->whole);
	destroy_tiers(cache);
	tn_keyed_destroy(cache->keyed);
	tn_registry_destroy(cache->registry);
	tn_blocks_destroy(&cache->blocks);
	tn_watch_destroy(cache->watch);
	tn_events_destroy(cache->events);
	tn_put(a, cache->places.scratch, TN_PLACES_AT_ONCE * sizeof(*cache->places.scratch));
	tn_io_destroy(cache->io);
	tn_put(a, cache->recovery, sizeof(*cache->recovery));
}

int tn_core_open(struct tn_cache *cache)
{
	int rc = cache->io ? 0 : open_engine(cache);
	struct tn_error error;

	cache->messages.io = cache->io;
	cache->recovery = tn_get(cache->alloc, sizeof(*cache->recovery));
	if (rc == 0 && !cache->recovery)
		rc = tn_fail(-ENOMEM, "no memory");
	if (rc == 0 && cache->o.seed == 0)
		rc = tn_rng_entropy(&cache->o.seed, sizeof(cache->o.seed));
	if (rc == 0 && !cache->exec && (cache->o.executors == 0 || cache->o.ndirs == 0))
		rc = open_workers(cache); /* executors with threads need nobody else's */
	if (rc == 0 && cache->o.ndirs)
		rc = plan_capacity(cache);
	if (rc == 0)
		rc = open_registry(cache);
	if (rc == 0 && cache->o.ndirs) {
		cache->recovery->cache = cache;
		rc = open_store(cache, cache->recovery);
	} else if (rc == 0) {
		rc = tn_rng_entropy(&cache->secret, sizeof(cache->secret));
		if (rc == 0)
			rc = make_tiers(cache);
	}
	if (rc == 0)
		rc = open_transfers(cache);
	if (rc == 0)
		rc = tn_schedule_create(cache);
	if (rc == 0)
		rc = open_offloads(cache);
	if (rc == 0)
		rc = open_keyed(cache);
	if (rc == 0)
		rc = open_flushes(cache);
	if (rc == 0)
		rc = tn_transfers_create(cache);
	if (rc == 0)
		return 0;
	error = *tn_error_last();
	tn_transfers_destroy(cache);
	if (cache->store)
		tn_store_close(cache->store);
	close_parts(cache);
	return tn_fail_at(error.where, "", rc, "%s", error.text);
}

int tn_core_close(struct tn_cache *cache)
{
	uint32_t failed;
	int rc = 0;
	struct tn_error error;

	tn_doomed_end(&cache->blocks);
	failed = cache->row.queues ? cache->row.queues->failed_slots : 0;
	tn_transfers_destroy(cache); /* before the files that its threads share are closed */
	if (cache->store)
		rc = tn_store_close(cache->store);
	if (rc && tn_error_last()->code != rc)
		rc = tn_fail(rc, "the last changes could not be made durable (error %d): the next open goes back to what was flushed", -rc);
	if (rc == 0 && cache->store && (failed || cache->dirty.lost))
		rc = tn_fail(cache->dirty.error, "%llu blocks in host memory could not be written to disk (error %d)",
			     (unsigned long long)(failed + cache->c.offload_lost_blocks), -cache->dirty.error);
	error = *tn_error_last();

	close_parts(cache);
	return rc ? tn_fail_at(error.where, "", rc, "%s", error.text) : 0;
}
