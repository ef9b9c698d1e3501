/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner thread: takes commands, polls the engine, collects checksums, steps every operation,
 * and sleeps in the engine's poll when there is nothing to do.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fork.h"
#include "cache/cache_internal.h"

#define POLL_BATCH 128u
#define EVENT_POLL_NS 50000u /* how often a save asks whether a layer's bytes are final */

/* ---- futex ------------------------------------------------------------------------------------- */

int tn_futex_wait(uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
	struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
	long rc;

	do {
		rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, deadline_ns == TN_FOREVER ? NULL : &ts,
			     NULL, FUTEX_BITSET_MATCH_ANY);
	} while (rc < 0 && errno == EINTR);
	return rc < 0 && errno == ETIMEDOUT ? -ETIMEDOUT : 0;
}

void tn_futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Threads do not survive a fork: the child may not use the parent's cache. */
bool tn_forked(const struct tn_cache *cache)
{
	if (tn_process_is(cache->opener_mark))
		return false;
	tn_fail(-ECHILD, "the cache was opened by process %d before a fork; open another instance in this one",
		(int)cache->opener);
	return true;
}

/* ---- commands ------------------------------------------------------------------------------------ */

void tn_owner_send(struct tn_cache *cache, struct tn_cmd *cmd)
{
	struct tn_cmd *old = __atomic_load_n(&cache->commands, __ATOMIC_RELAXED);

	do
		cmd->next = old;
	while (!__atomic_compare_exchange_n(&cache->commands, &old, cmd, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	tn_io_wake(cache->io);
}

void tn_op_kick(struct tn_op *op)
{
	if (__atomic_exchange_n(&op->kicked, 1, __ATOMIC_SEQ_CST) == 0)
		tn_owner_send(op->cache, &op->kick);
}

void tn_op_notify(struct tn_op *op)
{
	__atomic_add_fetch(&op->seq, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&op->waiters, __ATOMIC_SEQ_CST))
		tn_futex_wake(&op->seq);
	op->cache->completions_pending = 1;
}

/*
 * The owner lets go of an operation. The word that waiters sleep on changes after drained is set: the other way round,
 * one who looked in between would go to sleep on the new value. By then the operation may be somebody else's already,
 * whom one more wake-up does not harm.
 */
void tn_op_drained(struct tn_op *op)
{
	__atomic_store_n(&op->drained, 1, __ATOMIC_SEQ_CST);
	tn_op_notify(op);
}

/* Takes a kick; false if it came too late, for an operation that is through. */
bool tn_op_kicked(struct tn_op *op)
{
	bool drained = __atomic_load_n(&op->drained, __ATOMIC_RELAXED);

	__atomic_store_n(&op->kicked, 0, __ATOMIC_SEQ_CST);
	if (drained) /* the one who waits to give it back may do so now */
		tn_op_notify(op);
	return !drained;
}

static bool run_commands(struct tn_cache *cache)
{
	struct tn_cmd *list, *fifo = NULL;

	if (!__atomic_load_n(&cache->commands, __ATOMIC_RELAXED))
		return false;
	list = __atomic_exchange_n(&cache->commands, NULL, __ATOMIC_ACQUIRE);
	while (list) {
		struct tn_cmd *next = list->next;

		list->next = fifo;
		fifo = list;
		list = next;
	}
	while (fifo) {
		struct tn_cmd *next = fifo->next; /* run may free the command */

		fifo->run(fifo);
		fifo = next;
	}
	return true;
}

struct call {
	struct tn_cmd cmd;
	struct tn_cache *cache;
	int (*fn)(struct tn_cache *cache, void *arg);
	void *arg;
	int status;
	struct tn_error error;
	uint32_t done;
};

static void run_call(struct tn_cmd *cmd)
{
	struct call *c = tn_container_of(cmd, struct call, cmd);

	c->status = c->fn(c->cache, c->arg);
	c->error = *tn_error_last();
	__atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
	/* The caller may return, and the word be gone, as soon as done is set: a stray wake-up is harmless. */
	tn_futex_wake(&c->done);
}

int tn_owner_call(struct tn_cache *cache, int (*fn)(struct tn_cache *cache, void *arg), void *arg)
{
	struct call c = {.cmd.run = run_call, .cache = cache, .fn = fn, .arg = arg};

	if (tn_forked(cache))
		return tn_error_last()->code;
	if (!cache->owner_runs) /* a simulation: this is the owner thread */
		return fn(cache, arg);
	tn_owner_send(cache, &c.cmd);
	while (!__atomic_load_n(&c.done, __ATOMIC_ACQUIRE))
		tn_futex_wait(&c.done, 0, TN_FOREVER);
	if (c.status < 0 && c.error.code == c.status)
		tn_fail_at(c.error.where, "", c.status, "%s", c.error.text);
	return c.status;
}

/* ---- the loop ------------------------------------------------------------------------------------- */

uint64_t tn_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

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
		struct tn_op *op = tn_container_of(pos, struct tn_op, link);

		if (op->deadline_ns < due && !op->cancelled)
			due = op->deadline_ns;
	}
	if (tn_save_events_pending(cache) && due > now + EVENT_POLL_NS)
		due = now + EVENT_POLL_NS;
	return due;
}

/* Any poll may consume a wake-up, so commands and finished jobs are looked at after it. */
bool tn_core_step(struct tn_cache *cache, uint64_t *due_ns)
{
	uint64_t now, due, store_due = TN_FOREVER, doomed_due, offload_due;
	bool busy;

	tn_mover_turn(cache->mover);
	busy = harvest(cache, 0);
	busy |= run_commands(cache);
	busy |= cache->exec->collect(cache->exec) > 0;
	busy |= tn_reads_step(cache);
	busy |= tn_reads_collect(cache);
	now = tn_now_ns(&cache->clock);
	tn_schedule_turn(cache, now);
	busy |= tn_loads_step(cache, now);
	busy |= tn_places_step(cache);
	/* In turns: what a device takes at a time is not to be the saves' for ever. */
	cache->offloads_first = !cache->offloads_first;
	busy |= cache->offloads_first ? tn_offload_step(cache, now, &offload_due) : tn_saves_step(cache);
	busy |= cache->offloads_first ? tn_saves_step(cache) : tn_offload_step(cache, now, &offload_due);
	due = tn_watch_step(cache, now);
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
	for (uint32_t i = 0; i < cache->noffloads; i++)
		if (cache->offloads[i].active)
			return false;
	return tn_list_empty(&cache->loads) && tn_list_empty(&cache->saves) && tn_list_empty(&cache->flushes) &&
	       tn_list_empty(&cache->drops) && cache->offload_count == 0 && tn_mover_idle(cache->mover);
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
