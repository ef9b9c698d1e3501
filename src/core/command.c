/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the owner, on a lock-free stack: what is rare, and what waits for an answer. Loads and saves go through the region. */
#include <errno.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/futex.h"
#include "core/core.h"

bool tn_messages_forked(const struct tn_messages *m)
{
	if (tn_process_is(m->opener_mark))
		return false;
	tn_fail(-ECHILD, "the cache was opened by process %d before a fork; open another instance in this one",
		(int)m->opener);
	return true;
}

void tn_messages_send(struct tn_messages *m, struct tn_cmd *cmd)
{
	struct tn_cmd *old = __atomic_load_n(&m->stack, __ATOMIC_RELAXED);

	do
		cmd->next = old;
	while (!__atomic_compare_exchange_n(&m->stack, &old, cmd, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	tn_io_wake(m->io);
}

struct tn_cmd *tn_messages_take(struct tn_messages *m)
{
	struct tn_cmd *list, *fifo = NULL;

	if (!__atomic_load_n(&m->stack, __ATOMIC_RELAXED))
		return NULL;
	list = __atomic_exchange_n(&m->stack, NULL, __ATOMIC_ACQUIRE);
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

int tn_messages_call(struct tn_messages *m, int (*fn)(struct tn_cache *cache, void *arg), void *arg)
{
	struct call c = {.cmd.run = run_call, .cache = m->cache, .fn = fn, .arg = arg};

	if (tn_messages_forked(m))
		return tn_error_last()->code;
	if (!m->owner_runs) /* a simulation: this is the owner thread */
		return fn(m->cache, arg);
	tn_messages_send(m, &c.cmd);
	while (!__atomic_load_n(&c.done, __ATOMIC_ACQUIRE))
		tn_futex_wait(&c.done, 0, TN_FOREVER);
	if (c.status < 0 && c.error.code == c.status)
		tn_fail_at(c.error.where, "", c.status, "%s", c.error.text);
	return c.status;
}
