/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner thread: takes commands, polls the engine, collects checksums, steps every operation,
 * and sleeps in the engine's poll when there is nothing to do.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/futex.h"
#include "core/core.h"

#define POLL_BATCH 128u
#define EVENT_POLL_NS 50000u /* how often a save looks whether a device has written an event's word */

/* ---- the loop ------------------------------------------------------------------------------------- */

static bool harvest(struct tn_cache *cache, uint64_t timeout_ns)
{
	struct tn_io_req *done[POLL_BATCH];
	unsigned n = tn_io_poll(cache->io, done, POLL_BATCH, timeout_ns);

	for (unsigned i = 0; i < n; i++)
		if (!cache->store || !tn_store_complete(cache->store, done[i]))
			done[i]->done(done[i]);
	return n > 0;
}

static void signal_completions(struct tn_cache *cache)
{
	uint64_t one = 1;

	if (!cache->completions_pending)
		return;
	cache->completions_pending = 0;
	if (__atomic_load_n(&cache->eventfd_used, __ATOMIC_RELAXED))
		(void)!write(cache->eventfd, &one, sizeof(one)); /* full: the reader is signalled anyway */
}

static uint64_t nearest_deadline(struct tn_cache *cache, uint64_t now, uint64_t due)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &cache->loads) {
		struct tn_reading *r = tn_container_of(pos, struct tn_reading, op.link);

		if (r->deadline_ns < due && !r->op.cancelled)
			due = r->deadline_ns;
	}
	if (tn_save_devices_pending(cache) && due > now + EVENT_POLL_NS)
		due = now + EVENT_POLL_NS;
	return due;
}

/* Any poll may consume a wake-up, so commands and finished jobs are looked at after it. */
bool tn_core_step(struct tn_cache *cache, uint64_t *due_ns)
{
	uint64_t now, due, store_due = TN_FOREVER, doomed_due, offload_due, tiers_due;
	bool busy;

	tn_mover_turn(cache->mover);
	busy = harvest(cache, 0);
	busy |= tn_intake_step(cache);
	busy |= cache->exec->collect(cache->exec) > 0;
	busy |= tn_reads_step(cache);
	busy |= tn_reads_collect(cache);
	now = tn_now_ns(&cache->clock);
	busy |= tn_tiers_step(cache, now, &tiers_due);
	tn_schedule_turn(cache, now, tn_offload_urgency(cache, now));
	busy |= tn_loads_step(cache, now);
	busy |= tn_places_step(cache);
	/* In turns: what a device takes at a time is not to be the saves' for ever. */
	cache->offloads_first = !cache->offloads_first;
	busy |= cache->offloads_first ? tn_offload_step(cache, now, &offload_due) : tn_saves_step(cache);
	busy |= cache->offloads_first ? tn_saves_step(cache) : tn_offload_step(cache, now, &offload_due);
	due = tn_watch_step(cache, now, tn_block_doom);
	if (cache->store) {
		store_due = tn_store_step(cache->store, now);
		busy |= cache->offload_again; /* a device came back */
	}
	busy |= tn_drops_step(cache);
	busy |= tn_reclaim_step(cache);
	busy |= tn_doomed_step(cache, now, &doomed_due); /* what the watch and the store want to be rid of is among them */
	busy |= tn_flush_step(cache);
	busy |= tn_mover_again(cache->mover);
	tn_mover_flush(cache->mover); /* headers before the data they are for */
	busy |= tn_reads_step(cache);
	signal_completions(cache);
	due = due < doomed_due ? due : doomed_due;
	due = due < offload_due ? due : offload_due;
	due = due < tiers_due ? due : tiers_due;
	due = due < cache->places_due_ns ? due : cache->places_due_ns;
	if (due > store_due)
		due = store_due;
	if (due > tn_schedule_due(cache))
		due = tn_schedule_due(cache);
	if (due > tn_reads_due(cache, now))
		due = tn_reads_due(cache, now);
	*due_ns = nearest_deadline(cache, now, due);
	return busy;
}

bool tn_core_wait(struct tn_cache *cache, uint64_t timeout_ns)
{
	return harvest(cache, timeout_ns);
}

/* The thread sleeps only after a step in which nothing happened: whatever came later will wake it. */
static void step_or_sleep(struct tn_cache *cache)
{
	uint64_t due, now;

	if (tn_core_step(cache, &due))
		return;
	now = tn_now_ns(&cache->clock);
	if (due > now)
		tn_core_wait(cache, due == TN_FOREVER ? TN_FOREVER : due - now);
}

/* Nothing under way: no operation, no dirty host block, no transfer. */
bool tn_core_idle(const struct tn_cache *cache)
{
	return tn_list_empty(&cache->loads) && tn_list_empty(&cache->saves) && tn_list_empty(&cache->flushes) &&
	       tn_list_empty(&cache->drops) && tn_offloads_idle(cache) && tn_mover_idle(cache->mover);
}

static void *owner_main(void *arg)
{
	struct tn_cache *cache = arg;

	pthread_setname_np(pthread_self(), "tenuto-owner");
	cache->open_status = tn_core_open(cache);
	cache->open_error = *tn_error_last();
	__atomic_store_n(&cache->opened, 1, __ATOMIC_RELEASE);
	tn_futex_wake(&cache->opened);
	if (cache->open_status)
		return NULL;
	while (!cache->stopping || !tn_core_idle(cache))
		step_or_sleep(cache);
	/* Whoever asked for it may still be on his way out of tn_io_wake. */
	while (__atomic_load_n(&cache->opened, __ATOMIC_ACQUIRE) != 2)
		tn_futex_wait(&cache->opened, 1, TN_FOREVER);
	cache->open_status = tn_core_close(cache);
	cache->open_error = *tn_error_last();
	return NULL;
}

int tn_owner_start(struct tn_cache *cache)
{
	sigset_t all, old;
	int rc = tn_logger_start(cache);

	if (rc)
		return rc;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&cache->owner, NULL, owner_main, cache);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		tn_logger_stop(cache);
		return tn_fail(-rc, "cannot start the owner thread (errno %d)", rc);
	}
	while (!__atomic_load_n(&cache->opened, __ATOMIC_ACQUIRE))
		tn_futex_wait(&cache->opened, 0, TN_FOREVER);
	if (cache->open_status) {
		pthread_join(cache->owner, NULL);
		tn_logger_stop(cache);
		return tn_fail_at(cache->open_error.where, "", cache->open_status, "%s", cache->open_error.text);
	}
	cache->owner_runs = true;
	return 0;
}

static int stop_call(struct tn_cache *cache, void *arg)
{
	cache->stopping = true;
	tn_offload_retry(cache);
	return 0;
}

void tn_owner_stop(struct tn_cache *cache)
{
	if (!cache->owner_runs || tn_forked(cache))
		return;
	tn_owner_call(cache, stop_call, NULL);
	__atomic_store_n(&cache->opened, 2, __ATOMIC_RELEASE);
	tn_futex_wake(&cache->opened);
	pthread_join(cache->owner, NULL);
	tn_logger_stop(cache);
	cache->owner_runs = false;
}
