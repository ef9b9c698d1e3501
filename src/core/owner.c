/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner thread: takes commands, polls the engine, collects checksums, steps every operation,
 * and sleeps in the engine's poll when there is nothing to do.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "core/core.h"
#include "core/load_late.h"
#include "core/logger.h"
#include "core/workers.h"
#include "core/transfers.h"

#define POLL_BATCH 128u
#define EVENT_POLL_NS 50000u /* how often a save looks whether a device has written an event's word */

/* ---- what is asked --------------------------------------------------------------------------------- */

/*
 * What reaches the owner: operations that a front has begun or changed (the region's doorbell), and messages. An operation that is
 * under way needs no more than the owner's step, which looks at the front's words.
 */
static void begin_load(struct tn_op *op, const struct tn_command *c, uint64_t from_ns)
{
	struct tn_cache *cache = op->cache;

	if (c->kind == TN_COMMAND_PREFETCH)
		tn_reading_arm(tn_reading_of(op), c);
	else
		tn_load_arm(tn_load_of(op), c);
	tn_reading_of(op)->begin_ns = tn_reading_of(op)->heard_ns = from_ns;
	tn_load_begins(tn_reading_of(op));
	cache->c.resolve_ns += tn_now_ns(&cache->clock) - from_ns;
}

static void begin_save(struct tn_op *op, const struct tn_command *c)
{
	tn_save_arm(tn_save_of(op), c);
	tn_save_begins(tn_save_of(op));
}

/* Until the ring is answered the front begins no new life of the operation: the command is copied before that. */
static void take_command(struct tn_session *session, const struct tn_doorbell *kicks, uint32_t number)
{
	struct tn_op *op = &session->ops[number].op;
	bool alive = op->alive;
	struct tn_command c;
	uint64_t from_ns;
	int rc = alive ? 0 : tn_face_take_command(&session->region, number, &c);

	tn_doorbell_answer(kicks, number);
	if (alive)
		return;
	if (c.generation <= op->generation) {
		if (tn_op_is_cancelled(op))
			tn_op_ends(op);
		tn_op_notify(op); /* rung once more, too late: who waits to give the operation back may do so now */
		return;
	}
	from_ns = tn_now_ns(&session->cache->clock);
	tn_vigil_begun(&session->cache->vigil, from_ns);
	if (rc == 0)
		rc = tn_op_begin(op, &c);
	if (rc)
		tn_op_refuse(op, c.generation, rc);
	else if (c.kind == TN_COMMAND_SAVE)
		begin_save(op, &c);
	else
		begin_load(op, &c, from_ns);
}

static bool take_kicks(struct tn_session *session)
{
	struct tn_doorbell kicks = tn_region_kicks(&session->region);
	uint32_t first, n = session->over ? 0 : tn_doorbell_take(&kicks, &session->kicks, session->kicked, &first);

	for (uint32_t i = 0; i < n; i++)
		take_command(session, &kicks, session->kicked[first + i]);
	return n > 0;
}

/* A thread that begins an operation and then sends a message finds both done in that order. */
static bool take_asked(struct tn_cache *cache)
{
	struct tn_cmd *messages = tn_messages_take(&cache->messages);
	bool any = messages;

	for_each_session(session, cache)
		any |= take_kicks(session);
	tn_messages_run(messages);
	return any;
}

/* ---- the loop ------------------------------------------------------------------------------------- */

static bool harvest(struct tn_cache *cache, uint64_t timeout_ns)
{
	struct tn_io_req *done[POLL_BATCH];
	unsigned n = tn_io_poll(cache->io, done, POLL_BATCH, timeout_ns);
	struct tn_tier_base *drives = cache->row.drives;

	for (unsigned i = 0; i < n; i++)
		if (!drives || !drives->ops->drives->complete(drives, done[i]))
			done[i]->done(done[i]);
	return n > 0;
}

/* What of operations the executor has moved, or given up. */
static bool take_ended(struct tn_cache *cache)
{
	struct tn_transfer_walk walk = tn_transfers_walk(cache, NULL);
	struct tn_part part;

	while (tn_transfers_ended(&walk, &part))
		if (part.op->writing)
			tn_writing_ended(&part);
		else
			tn_load_ended(&part);
	return walk.any;
}

static void signal_completions(struct tn_cache *cache)
{
	uint64_t one = 1;

	for_each_session(session, cache) {
		if (!session->completed)
			continue;
		session->completed = false;
		if (session != cache->own)
			tn_region_tell_completed(&session->region);
		else if (__atomic_load_n(&cache->eventfd_used, __ATOMIC_RELAXED))
			(void)!write(cache->eventfd, &one, sizeof(one)); /* full: the reader is signalled anyway */
	}
}

static uint64_t nearest_deadline(struct tn_cache *cache, uint64_t now, uint64_t due)
{
	uint64_t saves_due = tn_saves_due(cache), loads_due = tn_loads_due(cache, now);

	due = due < loads_due ? due : loads_due;
	due = due < saves_due ? due : saves_due;
	if (tn_save_devices_pending(cache) && due > now + EVENT_POLL_NS)
		due = now + EVENT_POLL_NS;
	return due;
}

/* Any poll may consume a wake-up, so commands and finished jobs are looked at after it. */
bool tn_core_step(struct tn_cache *cache, uint64_t *due_ns)
{
	uint64_t now, due, durable_due = TN_FOREVER, doomed_due, offload_due, tiers_due;
	bool busy;

	tn_transfers_turn(cache);
	tn_sessions_share(cache);
	busy = harvest(cache, 0);
	busy |= take_asked(cache);
	busy |= cache->exec && tn_exec_collect(cache->exec);
	busy |= tn_transfers_step(cache);
	busy |= take_ended(cache);
	now = tn_now_ns(&cache->clock);
	busy |= tn_keyed_step(cache->keyed, now, &tiers_due);
	tn_schedule_turn(cache, now, tn_offload_urgency(&cache->offloads, now));
	busy |= tn_loads_step(cache, now);
	busy |= tn_places_step(cache);
	/* In turns: what a device takes at a time is not to be the saves' for ever. */
	cache->offloads_first = !cache->offloads_first;
	busy |= cache->offloads_first ? tn_offload_step(&cache->offloads, now, &offload_due) : tn_saves_step(cache, now);
	busy |= cache->offloads_first ? tn_saves_step(cache, now) : tn_offload_step(&cache->offloads, now, &offload_due);
	due = tn_watch_step(cache->watch, now, tn_block_doom, &cache->blocks);
	if (cache->row.durable) {
		durable_due = cache->row.durable->ops->durable->work(cache->row.durable, now);
		busy |= cache->offloads.again; /* a device came back */
	}
	busy |= tn_drops_step(&cache->drops);
	busy |= tn_reclaim_step(cache->reclaim);
	busy |= tn_doomed_step(&cache->blocks, now, &doomed_due); /* what the watch and the tiers want to be rid of is among them */
	busy |= tn_flush_step(&cache->flushes);
	busy |= tn_transfers_again(cache);
	tn_transfers_issue(cache);
	busy |= tn_transfers_step(cache);
	signal_completions(cache);
	due = due < doomed_due ? due : doomed_due;
	due = due < offload_due ? due : offload_due;
	due = due < tiers_due ? due : tiers_due;
	due = due < cache->places.due_ns ? due : cache->places.due_ns;
	if (due > durable_due)
		due = durable_due;
	if (due > tn_schedule_due(cache))
		due = tn_schedule_due(cache);
	if (due > tn_transfers_due(cache, now))
		due = tn_transfers_due(cache, now);
	*due_ns = nearest_deadline(cache, now, due);
	return busy;
}

bool tn_core_wait(struct tn_cache *cache, uint64_t timeout_ns)
{
	return harvest(cache, timeout_ns);
}

/* With nothing else under way: a vigil takes no CPU from the cache's own work. */
static bool keeps_vigil(struct tn_cache *cache, uint64_t now)
{
	return tn_list_empty(&cache->loads) && tn_list_empty(&cache->saves) && tn_vigil_keep(&cache->vigil, now);
}

/* Somebody waits for bytes, and they have landed: a device may answer all requests at once, and then only their checks are left. */
static bool helps(struct tn_cache *cache)
{
	return cache->workers && !tn_list_empty(&cache->loads) && tn_workers_help(cache->workers);
}

/* The thread sleeps only after a step in which nothing happened: whatever came later will wake it. */
static void step_or_sleep(struct tn_cache *cache)
{
	uint64_t due, now;
	bool busy;

	if (tn_core_step(cache, &due))
		return;
	now = tn_now_ns(&cache->clock);
	if (due <= now) {
		sched_yield(); /* it may be polled for, for long: others want the CPU, too */
		return;
	}
	if (helps(cache) || keeps_vigil(cache, now))
		return;
	tn_sessions_sleep(cache, true);
	busy = tn_saves_wait_for_others(cache) ? tn_core_step(cache, &due) : tn_sessions_rang(cache);
	if (!busy) {
		now = tn_now_ns(&cache->clock);
		tn_core_wait(cache, due == TN_FOREVER ? TN_FOREVER : due > now ? due - now : 0);
	}
	tn_sessions_sleep(cache, false);
}

/* Nothing under way: no operation, no dirty host block, no transfer. */
bool tn_core_idle(const struct tn_cache *cache)
{
	return tn_list_empty(&cache->loads) && tn_list_empty(&cache->saves) && tn_list_empty(&cache->offloads.flushes) &&
	       tn_drops_idle(&cache->drops) && tn_offloads_idle(&cache->offloads) && tn_transfers_idle(cache);
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
	int rc;

	cache->vigil.able = sysconf(_SC_NPROCESSORS_ONLN) > 1;
	rc = tn_logger_start(&cache->log, cache->alloc, &cache->logger);
	if (rc)
		return rc;
	rc = tn_thread_start(&cache->owner, owner_main, cache);
	if (rc) {
		tn_logger_stop(cache->logger);
		return tn_fail(-rc, "cannot start the owner thread (errno %d)", rc);
	}
	while (!__atomic_load_n(&cache->opened, __ATOMIC_ACQUIRE))
		tn_futex_wait(&cache->opened, 0, TN_FOREVER);
	if (cache->open_status) {
		pthread_join(cache->owner, NULL);
		tn_logger_stop(cache->logger);
		return tn_fail_at(cache->open_error.where, "", cache->open_status, "%s", cache->open_error.text);
	}
	cache->messages.owner_runs = true;
	return 0;
}

int tn_owner_call(struct tn_cache *cache, int (*fn)(struct tn_cache *cache, void *arg), void *arg)
{
	return tn_messages_call(&cache->messages, fn, arg);
}

static int stop_call(struct tn_cache *cache, void *arg)
{
	cache->stopping = cache->offloads.closing = true;
	tn_offload_retry(&cache->offloads);
	return 0;
}

void tn_owner_stop(struct tn_cache *cache)
{
	if (!cache->messages.owner_runs || tn_forked(cache))
		return;
	tn_owner_call(cache, stop_call, NULL);
	__atomic_store_n(&cache->opened, 2, __ATOMIC_RELEASE);
	tn_futex_wake(&cache->opened);
	pthread_join(cache->owner, NULL);
	tn_logger_stop(cache->logger);
	cache->messages.owner_runs = false;
}
