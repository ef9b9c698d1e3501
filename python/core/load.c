/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Load: blocks on their way into a pool's pages. What fails is a shorter good prefix, never an exception. */
#include <errno.h>

#include "op.h"

static const struct tn_py_field options[] = {
	{"first_page", TN_PY_U64, offsetof(struct tn_load_opts, first_page)},
	{"npages", TN_PY_U64, offsetof(struct tn_load_opts, npages)},
	{"priority", TN_PY_I32, offsetof(struct tn_load_opts, priority)},
	{"input_tokens", TN_PY_U64, offsetof(struct tn_load_opts, input_tokens)},
	{"start_ns", TN_PY_U64, offsetof(struct tn_load_opts, start_ns)},
	{"tag", TN_PY_U64, offsetof(struct tn_load_opts, tag)},
	{NULL, 0, 0},
};

static bool options_from(PyObject *kw, struct tn_load_opts *opts)
{
	PyObject *timeout = kw ? PyDict_GetItemString(kw, "timeout") : NULL; /* borrowed */
	Py_ssize_t known = timeout != NULL;

	tn_load_opts_init(opts);
	if (tn_py_fields(kw, options, opts, &known))
		return false;
	if (timeout && timeout != Py_None && tn_py_deadline(timeout, &opts->deadline_ns))
		return false;
	if (!kw || known == PyDict_Size(kw))
		return true;
	PyErr_SetString(PyExc_TypeError, "a load takes first_page, npages, timeout, priority, input_tokens, start_ns and tag");
	return false;
}

static PyObject *load_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_py_handle *self;
	struct tn_load_opts opts;
	struct tn_py_op *op;
	uint32_t *pages;
	Py_buffer keys;
	int rc = -1;

	if (!options_from(kw, &opts))
		return NULL;
	op = tn_py_op_new(args, &keys, &pages);
	if (!op)
		return NULL;
	self = tn_py_new(type);
	op->tag = opts.tag;
	op->good = (int)op->n;
	if (self && tn_py_enter(op->cache)) {
		tn_py_ops_reap(op->cache);
		TN_PY_CALL(op->cache, rc = tn_load_begin(op->space->s, op->pool->p, keys.buf, op->n, pages, &opts, &op->load));
		if (rc)
			tn_py_raise(rc);
		else
			tn_py_op_begun(op);
	}
	PyMem_Free(pages);
	PyBuffer_Release(&keys);
	if (rc == 0) {
		self->op = op;
		return (PyObject *)self;
	}
	tn_py_op_free(op);
	Py_XDECREF((PyObject *)self);
	return NULL;
}

/* Which layer: None is the last one. */
static bool layer_of(PyObject *from, const struct tn_py_op *op, uint32_t *layer)
{
	long number = from == Py_None ? (long)op->layers - 1 : PyLong_AsLong(from);

	if (number == -1 && PyErr_Occurred())
		return false;
	if (number < 0 || number >= (long)op->layers) {
		PyErr_Format(PyExc_IndexError, "layer %ld of %u", number, op->layers);
		return false;
	}
	*layer = (uint32_t)number;
	return true;
}

/* The owner's death is a miss, too: nothing of the prefix is known to be there. */
static PyObject *good_prefix(struct tn_py_op *op, int rc)
{
	if (rc == -ESHUTDOWN)
		rc = 0;
	if (rc < 0)
		return tn_py_raise(rc);
	op->good = rc;
	return PyLong_FromLong(rc);
}

struct wait {
	struct tn_load *load;
	uint32_t layer;
};

static int wait_once(void *arg, uint64_t until_ns)
{
	const struct wait *w = arg;

	return tn_load_wait(w->load, w->layer, until_ns);
}

/* Without tn_py_op_enter before. Return: as tn_load_wait; with an exception if a signal or a close came between. */
static int wait_until(struct tn_py_op *op, uint32_t layer, uint64_t deadline_ns)
{
	struct wait w = {op->load, layer};

	return tn_py_op_wait(op, wait_once, &w, deadline_ns);
}

/* The load of a handle that has not ended; NULL with an exception. */
static struct tn_py_op *alive(PyObject *self)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;

	if (op->cache)
		return op;
	tn_py_raise_text(-EBADF, "the load has ended before");
	return NULL;
}

static PyObject *load_wait(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"layer", "timeout", NULL};
	PyObject *number = Py_None, *timeout = Py_None;
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	uint64_t deadline_ns;
	uint32_t layer;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO", names, &number, &timeout) || tn_py_deadline(timeout, &deadline_ns) ||
	    !layer_of(number, op, &layer) || !alive(self))
		return NULL;
	rc = wait_until(op, layer, deadline_ns);
	return PyErr_Occurred() ? NULL : good_prefix(op, rc);
}

static PyObject *load_poll(PyObject *self, PyObject *args)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	PyObject *number = Py_None;
	uint32_t layer;
	int rc;

	if (!PyArg_ParseTuple(args, "|O", &number) || !layer_of(number, op, &layer) || !tn_py_op_enter(self))
		return NULL;
	rc = tn_load_poll(op->load, layer);
	tn_py_leave(op->cache);
	return rc == -EAGAIN ? Py_NewRef(Py_None) : good_prefix(op, rc);
}

static PyObject *load_event(PyObject *self, PyObject *arg)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	const uint64_t *word;
	uint64_t value;
	uint32_t layer;
	int rc;

	if (!layer_of(arg, op, &layer) || !tn_py_op_enter(self))
		return NULL;
	rc = tn_load_event(op->load, layer, &word, &value);
	tn_py_leave(op->cache);
	return rc ? tn_py_raise(rc) : Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)word, (unsigned long long)value);
}

static PyObject *load_cancel(PyObject *self, PyObject *nothing)
{
	struct tn_py_op *op = tn_py_op_enter(self);
	int rc;

	if (!op)
		return NULL;
	TN_PY_CALL(op->cache, rc = tn_load_cancel(op->load));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *busy_blocks(const uint8_t *busy, size_t n)
{
	PyObject *list = PyList_New(0), *out;

	for (size_t i = 0; list && i < n; i++) {
		PyObject *number = busy[i / 8] >> (i % 8) & 1 ? PyLong_FromSize_t(i) : NULL;

		if (number && PyList_Append(list, number))
			Py_CLEAR(list);
		Py_XDECREF(number);
	}
	out = list ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	return out;
}

static PyObject *end_until(struct tn_py_op *op, uint64_t deadline_ns)
{
	PyObject *out = NULL;
	uint8_t *busy;
	int rc;

	if (!op->cache)
		return PyTuple_New(0); /* ended before */
	busy = PyMem_Malloc((op->n + 7) / 8 + 1);
	if (!busy)
		return PyErr_NoMemory();
	rc = tn_py_op_end_until(op, deadline_ns, busy);
	if (rc == -EBUSY && !PyErr_Occurred())
		out = busy_blocks(busy, op->n);
	PyMem_Free(busy);
	if (out || PyErr_Occurred())
		return out;
	tn_py_op_over(op);
	return rc ? tn_py_raise(rc) : PyTuple_New(0);
}

static PyObject *load_end(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	PyObject *timeout = Py_None;
	uint64_t deadline_ns;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	return end_until(((struct tn_py_handle *)self)->op, deadline_ns);
}

static PyObject *load_finish(PyObject *self, PyObject *nothing)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	PyObject *good, *busy;
	int rc;

	if (!alive(self))
		return NULL;
	rc = wait_until(op, op->layers - 1, TN_FOREVER);
	good = PyErr_Occurred() ? NULL : good_prefix(op, rc);
	busy = good ? end_until(op, TN_FOREVER) : NULL;
	if (!busy)
		Py_CLEAR(good);
	Py_XDECREF(busy);
	return good;
}

static PyObject *load_enter(PyObject *self, PyObject *nothing)
{
	return Py_NewRef(self);
}

static PyObject *load_exit(PyObject *self, PyObject *args)
{
	PyObject *busy = end_until(((struct tn_py_handle *)self)->op, TN_FOREVER);

	if (!busy)
		return NULL;
	Py_DECREF(busy);
	return Py_NewRef(Py_False);
}

static PyObject *get_good(PyObject *self, void *arg)
{
	return PyLong_FromLong(((struct tn_py_handle *)self)->op->good);
}

static PyGetSetDef getset[] = {
	{"blocks", tn_py_handle_blocks, NULL, "blocks that were asked for", NULL},
	{"good", get_good, NULL, "length of the good prefix in blocks, as the last wait or poll has said; at first all", NULL},
	{"tag", tn_py_handle_tag, NULL, "of the options", NULL},
	{"ended", tn_py_handle_ended, NULL, "whether the pages are the caller's again", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
	{"wait", WITH_KEYWORDS(load_wait),
	 "wait(layer=None, timeout=None)\n--\n\nWait until a layer (None: the last) of every block of the good prefix is in place and verified.\n\n"
	 "Returns the length of the good prefix in blocks: what failed or came too late is not part of it, and it never grows. Raises Timeout after\n"
	 "timeout seconds; IndexError; Closed."},
	{"poll", load_poll, METH_VARARGS, "poll(layer=None)\n--\n\nAs wait, but returns None instead of waiting."},
	{"event", load_event, METH_O,
	 "event(layer)\n--\n\n(address, value): the layer is in place once the 64-bit word at the address is at least the value. For streams of a GPU."},
	{"cancel", load_cancel, METH_NOARGS, "cancel()\n--\n\nStop caring: what is not yet issued will not be."},
	{"end", WITH_KEYWORDS(load_end),
	 "end(timeout=None)\n--\n\nCancel what has not arrived, and wait until nothing is in flight.\n\n"
	 "Returns () when the pages are the caller's again; after timeout seconds the indices of the blocks whose pages are still written to:\n"
	 "call again. To end twice is fine."},
	{"finish", load_finish, METH_NOARGS, "finish()\n--\n\nwait() for all layers, then end(). Returns the length of the good prefix in blocks."},
	{"__enter__", load_enter, METH_NOARGS, NULL},
	{"__exit__", load_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"Load(space, pool, keys, pages, *, first_page=0, npages=0, timeout=None, priority=0, input_tokens=0, start_ns=0, tag=0)\n--\n\n"
			    "Blocks on their way into a pool's pages; made by Space.load, which says what the arguments are.\n\n"
			    "A context manager: the pages are the caller's again at its end."},
	{Py_tp_new, (void *)load_new},
	{Py_tp_dealloc, (void *)tn_py_handle_dealloc},
	{Py_tp_traverse, (void *)tn_py_handle_traverse},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_load_spec = {
	.name = "tenuto.Load",
	.basicsize = sizeof(struct tn_py_handle),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = slots,
};
