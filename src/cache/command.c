/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How callers and the owner thread reach each other: commands to the owner on a lock-free stack, and the words that callers
 * sleep on.
 */
#include <errno.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/futex.h"
#include "cache/cache_internal.h"

/* Threads do not survive a fork: the child may not use the parent's cache. */
bool tn_forked(const struct tn_cache *cache)
{
	if (tn_process_is(cache->opener_mark))
		return false;
	tn_fail(-ECHILD, "the cache was opened by process %d before a fork; open another instance in this one",
		(int)cache->opener);
	return true;
}

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

bool tn_commands_run(struct tn_cache *cache)
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
