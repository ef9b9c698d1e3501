/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bringing the core up and down, on the owner thread: engine, registry, tiers, and what serves all.
 */
#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/secret_file.h"
#include "block/events.h"
#include "core/core.h"
#include "core/transfers.h"
#include "core/workers.h"
#include "ring/executor.h"

#define RECORD_RESERVE 4096u /* records for blocks on their way in, beyond the capacities; the tiers count on half */

/* ---- what tiers ask later ------------------------------------------------------------------------------------ */

static bool on_passes(void *arg, uint32_t first, uint32_t n)
{
	return tn_places_pass(arg, first, n);
}

static void on_takes_writes(void *arg)
{
	struct tn_cache *cache = arg;

	cache->offloads.again |= cache->row.queues && cache->row.queues->failed_slots > 0;
}

static bool on_may_write(void *arg, uint32_t device, uint64_t bytes)
{
	return tn_schedule_tier_write(arg, device, bytes);
}

static void on_written(void *arg, uint32_t device, uint64_t bytes)
{
	tn_schedule_ended(arg, TN_IO_WRITE, device, bytes, true);
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
	if (tn_workers_create(n, tn_executor_jobs(cache->o.io_depth) + TN_TIER_JOBS, cache->alloc, cache->io, &cache->workers))
		return tn_error_last()->code;
	cache->exec = tn_workers_exec(cache->workers);
	return 0;
}

/* Tables for every block that the tiers can hold. */
static int plan_tiers(struct tn_cache *cache)
{
	struct tn_tier_env *env = &cache->tiers;
	uint64_t n = RECORD_RESERVE;
	int rc;

	env->io = cache->io;
	env->exec = cache->exec;
	env->drives = cache->engines.drives;
	env->owner = (struct tn_tier_owner){on_passes, on_takes_writes, on_may_write, on_written, cache};
	rc = tn_tiers_plan(cache->makers, env, &n);
	n = cache->o.max_blocks ? cache->o.max_blocks : n;
	env->max_blocks = cache->max_blocks = (uint32_t)(n > 1u << 31 ? 1u << 31 : n);
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

	ro.max_blocks = cache->max_blocks;
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

/* Whatever refuses its options does so before a tier is opened, because an open disk tier has made or changed a store. */
static int make_tiers(struct tn_cache *cache)
{
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < TN_TIERS_MAX; i++) {
		struct tn_tier_base *t = NULL;

		if (cache->makers[i])
			rc = cache->makers[i]->make(&cache->tiers, &t);
		if (rc == 0 && t)
			tn_tier_joins(&cache->blocks, t);
	}
	for_each_tier(t, &cache->row)
		if (rc == 0 && t->ops->open)
			rc = t->ops->open(t);
	return rc;
}

/* And what is known once they are open; so is what keys and names are hashed with, unless a file says it. */
static int open_tiers(struct tn_cache *cache)
{
	const struct tn_tier_base *durable;
	int rc = cache->o.cluster_secret_file ? tn_secret_read(cache->o.cluster_secret_file, &cache->secret) : 0;

	rc = rc ? rc : make_tiers(cache);
	if (rc)
		return rc;
	durable = cache->row.durable;
	if (cache->row.drives)
		cache->ndevices = cache->row.drives->devices;
	if (durable)
		cache->c.recovered_blocks = durable->blocks;
	if (cache->o.cluster_secret_file)
		return 0;
	if (!durable)
		return tn_rng_entropy(&cache->secret, sizeof(cache->secret));
	cache->secret = durable->ops->durable->secret(durable);
	return 0;
}

/* The first error. */
static int close_tiers(struct tn_cache *cache)
{
	int rc = 0;

	for_each_tier(t, &cache->row) {
		int status = t->ops->close ? t->ops->close(t) : 0;

		rc = rc ? rc : status;
	}
	return rc;
}

static void destroy_tiers(struct tn_cache *cache)
{
	for_each_tier(t, &cache->row)
		t->ops->destroy(t);
}

/* ---- what serves all ------------------------------------------------------------------------------------------ */

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
}

int tn_core_open(struct tn_cache *cache)
{
	int rc = cache->io ? 0 : open_engine(cache);
	struct tn_error error;

	cache->messages.io = cache->io;
	if (rc == 0 && cache->o.seed == 0)
		rc = tn_rng_entropy(&cache->o.seed, sizeof(cache->o.seed));
	if (rc == 0 && !cache->exec && (cache->o.executors == 0 || cache->o.ndirs == 0))
		rc = open_workers(cache); /* executors with threads need nobody else's */
	if (rc == 0)
		rc = plan_tiers(cache);
	if (rc == 0)
		rc = open_registry(cache);
	if (rc == 0)
		rc = open_tiers(cache);
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
	close_tiers(cache);
	close_parts(cache);
	return tn_fail_at(error.where, "", rc, "%s", error.text);
}

int tn_core_close(struct tn_cache *cache)
{
	uint32_t failed;
	struct tn_error error;
	int rc;

	tn_doomed_end(&cache->blocks);
	failed = cache->row.queues ? cache->row.queues->failed_slots : 0;
	tn_transfers_destroy(cache); /* before the files that its threads share are closed */
	rc = close_tiers(cache);
	if (rc == 0 && cache->row.durable && (failed || cache->dirty.lost))
		rc = tn_fail(cache->dirty.error, "%llu blocks in host memory could not be written to disk (error %d)",
			     (unsigned long long)(failed + cache->c.offload_lost_blocks), -cache->dirty.error);
	error = *tn_error_last();

	close_parts(cache);
	return rc ? tn_fail_at(error.where, "", rc, "%s", error.text) : 0;
}
