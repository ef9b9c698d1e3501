/* SPDX-License-Identifier: Apache-2.0 */
/* What loads and saves have in common (op.h). */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "op.h"

/* How long the end of Python's object waits for transfers before it leaves an orphan. */
#define DROP_NS UINT64_C(100000000)

void tn_py_op_begun(struct tn_py_op *op)
{
	tn_py_link_add(&op->cache->ops, &op->link);
}

/* With the last reference to its pool the GIL is let go of: Python's object may go meanwhile, and the operation with it. */
void tn_py_op_over(struct tn_py_op *op)
{
	PyObject *held[] = {op->events, (PyObject *)op->pool, (PyObject *)op->space};

	tn_py_link_remove(&op->link);
	op->cache = NULL;
	op->load = NULL;
	op->save = NULL;
	op->events = NULL;
	op->pool = NULL;
	op->space = NULL;
	for (int i = 0; i < 3; i++)
		Py_XDECREF(held[i]);
}

void tn_py_op_free(struct tn_py_op *op)
{
	tn_py_op_over(op);
	free(op->given);
	free(op->outcome);
	free(op);
}

int tn_py_op_wait(struct tn_py_op *op, tn_py_wait *wait, void *arg, uint64_t deadline_ns)
{
	struct tn_py_cache *cache = (struct tn_py_cache *)TN_PY_REF(op->cache);
	uint32_t slices = 0;
	uint64_t until;
	int rc;

	do {
		until = tn_py_slice(&slices, deadline_ns);
		if (!tn_py_enter(cache)) {
			rc = -EBADF;
			break;
		}
		TN_PY_CALL(cache, rc = wait(arg, until));
	} while ((rc == -EBUSY || rc == -ETIMEDOUT) && until < deadline_ns && tn_py_go_on(cache) == 0);
	Py_DECREF((PyObject *)cache);
	return rc;
}

static int end_once(struct tn_py_op *op, uint64_t deadline_ns, uint8_t *busy)
{
	int rc;

	if (op->load)
		return tn_load_end(op->load, deadline_ns, busy);
	op->result.size = sizeof(op->result);
	rc = tn_save_end(op->save, deadline_ns, &op->result);
	return rc == -ETIMEDOUT ? -EBUSY : rc;
}

struct end {
	struct tn_py_op *op;
	uint8_t *busy;
};

static int end_part(void *arg, uint64_t until_ns)
{
	const struct end *e = arg;

	return end_once(e->op, until_ns, e->busy);
}

int tn_py_op_end_until(struct tn_py_op *op, uint64_t deadline_ns, uint8_t *busy)
{
	struct end e = {op, busy};

	return tn_py_op_wait(op, end_part, &e, deadline_ns);
}

/* ---- the end, whoever comes first ------------------------------------------------------------------------------------- */

static void stop(struct tn_py_op *op)
{
	if (op->load) {
		tn_load_cancel(op->load);
	} else if (op->save && !op->committed && !op->aborted) {
		tn_save_abort(op->save);
		op->aborted = true;
	}
}

void tn_py_op_drop(struct tn_py_op *op)
{
	struct tn_py_cache *cache = op->cache;
	uint64_t deadline_ns = tn_py_now_ns() + DROP_NS;
	int rc = 0;

	if (cache && cache->closing) {
		op->orphan = true; /* whoever closes the cache may be about to end it */
		return;
	}
	if (cache && tn_py_enter(cache)) {
		stop(op);
		/* What was committed may take as long as the disk does. */
		TN_PY_CALL(cache, rc = end_once(op, op->committed ? 0 : deadline_ns, NULL));
	}
	if (rc == -EBUSY)
		op->orphan = true;
	else
		tn_py_op_free(op);
}

void tn_py_ops_reap(struct tn_py_cache *cache)
{
	struct tn_py_link *next;

	for (struct tn_py_link *l = cache->ops.next; l != &cache->ops; l = next) {
		struct tn_py_op *op = (struct tn_py_op *)(void *)l;

		next = l->next;
		if (op->orphan && end_once(op, 0, NULL) != -EBUSY) {
			tn_py_op_free(op);
			next = cache->ops.next; /* its pool may have gone with it, and others meanwhile */
		}
	}
}

void tn_py_ops_stop(struct tn_py_cache *cache)
{
	for (struct tn_py_link *l = cache->ops.next; l != &cache->ops; l = l->next)
		stop((struct tn_py_op *)(void *)l);
}

void tn_py_ops_reset(struct tn_py_space *space)
{
	space->resets++;
	for (struct tn_py_link *l = space->cache->ops.next; l != &space->cache->ops; l = l->next) {
		struct tn_py_op *op = (struct tn_py_op *)(void *)l;

		if (op->space == space)
			stop(op);
	}
}

int tn_py_ops_end(struct tn_py_cache *cache, uint64_t deadline_ns)
{
	const struct timespec nap = {0, 200000};
	int rc;

	while (cache->ops.next != &cache->ops) {
		struct tn_py_op *op = (struct tn_py_op *)(void *)cache->ops.next;
		bool forked = cache->pid != getpid();

		if (op->ending && !forked) { /* another thread closes the cache, too */
			if (tn_py_now_ns() >= deadline_ns)
				return -EBUSY;
			Py_BEGIN_ALLOW_THREADS;
			nanosleep(&nap, NULL);
			Py_END_ALLOW_THREADS;
			continue;
		}
		stop(op);
		op->ending = true;
		Py_BEGIN_ALLOW_THREADS;
		rc = forked ? 0 : end_once(op, deadline_ns, NULL);
		Py_END_ALLOW_THREADS;
		op->ending = false;
		if (rc == -EBUSY)
			return rc;
		if (op->orphan)
			tn_py_op_free(op);
		else
			tn_py_op_over(op);
	}
	return 0;
}
