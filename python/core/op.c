/* SPDX-License-Identifier: Apache-2.0 */
/* What loads and saves have in common (op.h). */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "op.h"

/* How long the end of Python's object waits for transfers before it leaves an orphan. */
#define DROP_NS UINT64_C(100000000)

static bool types_fit(PyObject *space, PyObject *pool)
{
	if (PyObject_TypeCheck(space, tn_py_space_type) && PyObject_TypeCheck(pool, tn_py_pool_type))
		return true;
	PyErr_SetString(PyExc_TypeError, "a Space and a Pool are wanted");
	return false;
}

static bool check(struct tn_py_op *op, size_t npages)
{
	const struct tn_py_pool *pool = op->pool;
	uint32_t per_block = pool->geometry.pages_per_block;

	if (pool->memory->cache != op->space->cache)
		PyErr_SetString(PyExc_ValueError, "the pool is of another cache than the space");
	else if (!pool->p || !op->space->s)
		tn_py_raise_text(-EBADF, "the pool or the space was closed");
	else if (op->n == 0)
		PyErr_SetString(PyExc_ValueError, "no keys: packed keys of KEY_BYTES each are wanted, one at least");
	else if (npages != op->n * per_block)
		PyErr_Format(PyExc_ValueError, "%zu pages were given, and %zu blocks of %u pages each (pages_per_block) take %zu", npages, op->n, per_block, op->n * per_block);
	else
		return tn_py_memory_check(pool->memory) == 0;
	return false;
}

struct tn_py_op *tn_py_op_new(PyObject *args, Py_buffer *keys, uint32_t **pages)
{
	PyObject *space, *pool, *packed, *indices;
	struct tn_py_op *op;
	size_t npages;

	if (!PyArg_ParseTuple(args, "OOOO;space, pool, keys and pages are wanted", &space, &pool, &packed, &indices) || !types_fit(space, pool))
		return NULL;
	op = calloc(1, sizeof(*op));
	if (!op)
		return (struct tn_py_op *)(void *)PyErr_NoMemory();
	tn_py_link_init(&op->link);
	op->space = (struct tn_py_space *)TN_PY_REF(space);
	op->pool = (struct tn_py_pool *)Py_NewRef(pool);
	op->cache = op->space->cache;
	op->layers = op->space->geometry.layers;
	if (tn_py_keys(packed, keys, &op->n)) {
		tn_py_op_free(op);
		return NULL;
	}
	*pages = tn_py_u32s(indices, "pages", &npages);
	op->given = calloc(1, op->layers / 8 + 1);
	op->outcome = calloc(1, op->n + 1);
	if (*pages && (!op->given || !op->outcome))
		PyErr_NoMemory();
	if (!PyErr_Occurred() && check(op, npages))
		return op;
	PyMem_Free(*pages);
	PyBuffer_Release(keys);
	tn_py_op_free(op);
	return NULL;
}

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

struct tn_py_op *tn_py_op_enter(PyObject *self)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;

	if (op && op->cache)
		return tn_py_enter(op->cache) ? op : NULL;
	tn_py_raise_text(-EBADF, "it has ended before");
	return NULL;
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

/* ---- what the objects of both have ------------------------------------------------------------------------------------ */

int tn_py_handle_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;

	Py_VISIT(Py_TYPE(self));
	if (op) {
		Py_VISIT(op->space);
		Py_VISIT(op->pool);
	}
	return 0;
}

void tn_py_handle_dealloc(PyObject *self)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;

	PyObject_GC_UnTrack(self);
	if (h->op)
		tn_py_op_drop(h->op);
	tn_py_free(self);
}

PyObject *tn_py_handle_blocks(PyObject *self, void *arg)
{
	return PyLong_FromSize_t(((struct tn_py_handle *)self)->op->n);
}

PyObject *tn_py_handle_tag(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(((struct tn_py_handle *)self)->op->tag);
}

PyObject *tn_py_handle_ended(PyObject *self, void *arg)
{
	return PyBool_FromLong(((struct tn_py_handle *)self)->op->cache == NULL);
}
