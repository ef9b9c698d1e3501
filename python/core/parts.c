/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and saves in parts (op.h): cut when they are made, begun as there is place for them, and what the objects of both have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

/* ---- what is asked for ------------------------------------------------------------------------------------------------ */

static bool types_fit(PyObject *space, PyObject *pool)
{
	if (PyObject_TypeCheck(space, tn_py_space_type) && PyObject_TypeCheck(pool, tn_py_pool_type))
		return true;
	PyErr_SetString(PyExc_TypeError, "a Space and a Pool are wanted");
	return false;
}

static bool check(const struct tn_py_space *space, const struct tn_py_pool *pool, size_t n, size_t npages)
{
	uint32_t per_block = pool->geometry.pages_per_block;

	if (pool->memory->cache != space->cache)
		PyErr_SetString(PyExc_ValueError, "the pool is of another cache than the space");
	else if (!pool->p || !space->s)
		tn_py_raise_text(-EBADF, "the pool or the space was closed");
	else if (n == 0)
		PyErr_SetString(PyExc_ValueError, "no keys: packed keys of KEY_BYTES each are wanted, one at least");
	else if (npages != n * per_block)
		PyErr_Format(PyExc_ValueError, "%zu pages were given, and %zu blocks of %u pages each (pages_per_block) take %zu", npages, n, per_block, n * per_block);
	else
		return tn_py_memory_check(pool->memory) == 0;
	return false;
}

bool tn_py_op_waits(const struct tn_py_op *op)
{
	return op->cache && !op->load && !op->save;
}

static void free_parts(struct tn_py_op *op)
{
	struct tn_py_op *next;

	for (; op; op = next) {
		next = op->next;
		if (tn_py_op_waits(op))
			tn_py_op_free(op);
		else
			tn_py_op_drop(op);
	}
}

static struct tn_py_op *part_new(struct tn_py_space *space, struct tn_py_pool *pool, size_t first, size_t n)
{
	struct tn_py_op *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	tn_py_link_init(&op->link);
	op->space = (struct tn_py_space *)TN_PY_REF(space);
	op->pool = (struct tn_py_pool *)TN_PY_REF(pool);
	op->cache = space->cache;
	op->layers = space->geometry.layers;
	op->resets = space->resets;
	op->first = first;
	op->n = n;
	op->good = (int)n;
	op->given = calloc(1, op->layers / 8 + 1);
	op->outcome = calloc(1, n + 1);
	if (op->given && op->outcome)
		return op;
	tn_py_op_free(op);
	return NULL;
}

static struct tn_py_op *cut(struct tn_py_space *space, struct tn_py_pool *pool, size_t n, uint64_t tag)
{
	struct tn_py_op *parts = NULL, **last = &parts;

	for (size_t first = 0; first < n; first += space->most) {
		*last = part_new(space, pool, first, n - first < space->most ? n - first : space->most);
		if (!*last) {
			free_parts(parts);
			return (struct tn_py_op *)(void *)PyErr_NoMemory();
		}
		(*last)->tag = tag;
		last = &(*last)->next;
	}
	return parts;
}

struct tn_py_op *tn_py_request_take(struct tn_py_request *request, PyObject *args, uint64_t tag)
{
	PyObject *space, *pool, *packed, *indices;
	struct tn_py_op *parts = NULL;
	size_t n, npages;

	if (!PyArg_ParseTuple(args, "OOOO;space, pool, keys and pages are wanted", &space, &pool, &packed, &indices) || !types_fit(space, pool) ||
	    tn_py_keys(packed, &request->packed, &n))
		return NULL;
	request->keys = request->packed.buf;
	request->pages = tn_py_u32s(indices, "pages", &npages);
	if (request->pages && check((struct tn_py_space *)space, (struct tn_py_pool *)pool, n, npages))
		parts = cut((struct tn_py_space *)space, (struct tn_py_pool *)pool, n, tag);
	if (!parts)
		tn_py_request_release(request);
	return parts;
}

void tn_py_request_release(struct tn_py_request *request)
{
	if (request->packed.obj)
		PyBuffer_Release(&request->packed);
	else
		PyMem_Free((void *)(uintptr_t)request->keys);
	PyMem_Free(request->pages);
	PyMem_Free(request->final);
}

/* For parts that begin later; the caller may do with the keys what he likes then. Return: NULL with an exception, and the request is given back. */
static struct tn_py_request *keep(struct tn_py_request *request, uint32_t layers)
{
	struct tn_py_request *kept = PyMem_Malloc(sizeof(*kept));
	struct tn_key *keys = PyMem_Malloc((size_t)request->packed.len);
	struct tn_py_final *final = PyMem_Calloc(layers, sizeof(*final));

	if (!kept || !keys || !final) {
		PyMem_Free(kept);
		PyMem_Free(keys);
		PyMem_Free(final);
		tn_py_request_release(request);
		return (struct tn_py_request *)(void *)PyErr_NoMemory();
	}
	memcpy(keys, request->keys, (size_t)request->packed.len);
	PyBuffer_Release(&request->packed);
	request->keys = keys;
	request->final = final;
	*kept = *request;
	return kept;
}

/* ---- beginning -------------------------------------------------------------------------------------------------------- */

/* Return: 0 or a negative errno; with an exception only where it is not about this part: the cache is closed, an array has moved */
static int begin(struct tn_py_op *op, const struct tn_py_request *request)
{
	int rc;

	if (!op->pool->p || !op->space->s || op->resets != op->space->resets)
		return -EBADF;
	if (tn_py_memory_check(op->pool->memory) || !tn_py_enter(op->cache))
		return -EBADF;
	TN_PY_CALL(op->cache, rc = request->begin(op, request));
	if (rc == 0 && op->settled)
		tn_py_op_over(op);
	else if (rc == 0)
		tn_py_op_begun(op);
	return rc;
}

static void release_waiting(struct tn_py_handle *h)
{
	if (h->waiting) {
		tn_py_request_release(h->waiting);
		PyMem_Free(h->waiting);
		h->waiting = NULL;
	}
}

void tn_py_handle_forget(struct tn_py_handle *h)
{
	for (struct tn_py_op *op = h->op; op; op = op->next) {
		if (!tn_py_op_waits(op))
			continue;
		op->good = 0;
		op->settled = true;
		tn_py_op_over(op);
	}
	release_waiting(h);
}

bool tn_py_handle_reset(struct tn_py_handle *h)
{
	for (const struct tn_py_op *op = h->op; op; op = op->next) {
		if (!op->space || op->resets == op->space->resets)
			continue;
		h->op->good = 0; /* what there is is of other weights */
		tn_py_handle_forget(h);
		return true;
	}
	return false;
}

/* It and those behind it never begin. */
static void fail(struct tn_py_handle *h, struct tn_py_op *op, int rc)
{
	for (; op; op = op->next) {
		op->result.failed = (uint32_t)op->n;
		op->result.error = rc;
		memset(op->outcome, TN_SAVED_FAILED, op->n);
	}
	tn_py_handle_forget(h);
}

static bool under_way(const struct tn_py_op *parts)
{
	for (const struct tn_py_op *op = parts; op; op = op->next)
		if (op->cache && !tn_py_op_waits(op))
			return true;
	return false;
}

int tn_py_handle_begin(struct tn_py_handle *h, struct tn_py_op *op)
{
	int rc = 0;

	for (; op && rc == 0; op = op->next) {
		rc = begin(op, h->waiting);
		if (PyErr_Occurred())
			return -1;
		if (rc && (rc != -EAGAIN || !under_way(h->op)))
			fail(h, op, rc);
	}
	if (rc == 0)
		release_waiting(h);
	return 0;
}

PyObject *tn_py_handle_new(PyTypeObject *type, struct tn_py_op *parts, struct tn_py_request *request)
{
	struct tn_py_handle *self = tn_py_new(type);
	struct tn_py_op *op = parts;
	int rc = 0;

	if (self && tn_py_enter(parts->cache)) {
		tn_py_ops_reap(parts->cache);
		tn_py_leave(parts->cache);
	}
	for (; op && rc == 0 && !PyErr_Occurred(); op = rc ? op : op->next)
		rc = begin(op, request);
	if (rc && !PyErr_Occurred() && (rc != -EAGAIN || !under_way(parts)))
		tn_py_raise(rc);
	if (rc == -EAGAIN && !PyErr_Occurred())
		self->waiting = keep(request, parts->layers);
	else
		tn_py_request_release(request);
	if (!PyErr_Occurred()) {
		self->op = parts;
		return (PyObject *)self;
	}
	free_parts(parts);
	Py_XDECREF((PyObject *)self);
	return NULL;
}

/* ---- what the objects of both have ------------------------------------------------------------------------------------ */

bool tn_py_handle_over(const struct tn_py_handle *h)
{
	for (const struct tn_py_op *op = h->op; op; op = op->next)
		if (op->cache)
			return false;
	return true;
}

struct tn_py_handle *tn_py_handle_live(PyObject *self, const char *text)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;

	if (tn_py_handle_over(h)) {
		tn_py_raise_text(-EBADF, text);
		return NULL;
	}
	if (h->waiting) { /* it would not be noticed that the cache was closed */
		const struct tn_py_op *op = h->op;

		while (!op->cache)
			op = op->next;
		if (!tn_py_enter(op->cache))
			return NULL;
		tn_py_leave(op->cache);
	}
	return h;
}

int tn_py_handle_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	for (const struct tn_py_op *op = ((struct tn_py_handle *)self)->op; op; op = op->next) {
		Py_VISIT(op->space);
		Py_VISIT(op->pool);
	}
	return 0;
}

void tn_py_handle_dealloc(PyObject *self)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;

	PyObject_GC_UnTrack(self);
	release_waiting(h);
	free_parts(h->op);
	tn_py_free(self);
}

PyObject *tn_py_handle_blocks(PyObject *self, void *arg)
{
	const struct tn_py_op *op = ((struct tn_py_handle *)self)->op;

	while (op->next)
		op = op->next;
	return PyLong_FromSize_t(op->first + op->n);
}

PyObject *tn_py_handle_tag(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(((struct tn_py_handle *)self)->op->tag);
}

PyObject *tn_py_handle_ended(PyObject *self, void *arg)
{
	return PyBool_FromLong(tn_py_handle_over((struct tn_py_handle *)self));
}
