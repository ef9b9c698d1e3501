/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the owner, on a lock-free stack: what is rare, and what waits for an answer. Loads and saves go through the region. */
#include <errno.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/futex.h"
#include "core/core.h"

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

struct tn_cmd *tn_messages_take(struct tn_cache *cache)
{
	struct tn_cmd *list, *fifo = NULL;

	if (!__atomic_load_n(&cache->commands, __ATOMIC_RELAXED))
		return NULL;
	list = __atomic_exchange_n(&cache->commands, NULL, __ATOMIC_ACQUIRE);
	while (list) {
		struct tn_cmd *next = list->next;

		list->next = fifo;
		fifo = list;
		list = next;
	}
	return fifo;
}

void tn_messages_run(struct tn_cmd *list)
{
	while (list) {
		struct tn_cmd *next = list->next; /* run may free the message */

		list->run(list);
		list = next;
	}
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
