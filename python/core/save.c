/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Save: blocks on their way from a pool's pages into the cache. */
#include <errno.h>
#include <string.h>

#include "op.h"

static PyTypeObject *result_type;

static PyStructSequence_Field result_fields[] = {
	{"stored", "blocks on disk, or on their way there, by this save"},
	{"existing", "blocks there before this save"},
	{"host_only", "blocks in host memory alone"},
	{"rejected", "blocks that were not admitted"},
	{"failed", "blocks that could not be written"},
	{"error", "errno of the first that failed, or why blocks were kept off the disk (EROFS, EDQUOT); 0"},
	{NULL, NULL},
};

static PyStructSequence_Desc result_desc = {"tenuto.SaveResult", "What became of the blocks of a save; all together they are all of them, or none after an abort.",
					    result_fields, 6};

int tn_py_save_add(PyObject *module)
{
	result_type = PyStructSequence_NewType(&result_desc);
	return result_type ? PyModule_AddObjectRef(module, "SaveResult", (PyObject *)result_type) : -1;
}

static PyObject *result_of(const struct tn_py_handle *h)
{
	PyObject *out = PyStructSequence_New(result_type);
	unsigned long counts[5] = {0};
	int error = 0;

	for (const struct tn_py_op *op = h->op; op; op = op->next) {
		const struct tn_save_result *r = &op->result;
		const uint32_t of_part[] = {r->stored, r->existing, r->host_only, r->rejected, r->failed};

		for (int i = 0; i < 5; i++)
			counts[i] += of_part[i];
		error = error ? error : r->error;
	}
	for (Py_ssize_t i = 0; out && i < 5; i++)
		PyStructSequence_SetItem(out, i, PyLong_FromUnsignedLong(counts[i]));
	if (out)
		PyStructSequence_SetItem(out, 5, PyLong_FromLong(-error));
	return out;
}

static const struct tn_py_field options[] = {
	{"partial_last", TN_PY_BOOL, offsetof(struct tn_save_opts, partial_last)},
	{"priority", TN_PY_I32, offsetof(struct tn_save_opts, priority)},
	{"tag", TN_PY_U64, offsetof(struct tn_save_opts, tag)},
	{NULL, 0, 0},
};

/* Seconds, or NULL or None: never. */
static bool ttl_from(PyObject *from, uint64_t *ns)
{
	double seconds;

	if (!from || from == Py_None)
		return true;
	seconds = PyFloat_AsDouble(from);
	if (PyErr_Occurred())
		return false;
	if (seconds > 0 && seconds < 1e9) {
		*ns = (uint64_t)(seconds * 1e9);
		return true;
	}
	PyErr_SetString(PyExc_ValueError, "a time to live is a number of seconds above 0, or None");
	return false;
}

static bool parent_from(PyObject *from, struct tn_key *key, struct tn_save_opts *opts)
{
	Py_buffer view;
	size_t n;

	if (!from || from == Py_None)
		return true;
	if (tn_py_keys(from, &view, &n))
		return false;
	if (n == 1) {
		memcpy(key, view.buf, sizeof(*key));
		opts->parent = key;
	} else {
		PyErr_SetString(PyExc_ValueError, "parent is one key");
	}
	PyBuffer_Release(&view);
	return n == 1;
}

static bool options_from(PyObject *kw, struct tn_save_opts *opts, struct tn_key *parent)
{
	PyObject *above = kw ? PyDict_GetItemString(kw, "parent") : NULL, *ttl = kw ? PyDict_GetItemString(kw, "ttl") : NULL; /* borrowed */
	Py_ssize_t known = (above != NULL) + (ttl != NULL);

	tn_save_opts_init(opts);
	if (tn_py_fields(kw, options, opts, &known) || !ttl_from(ttl, &opts->ttl_ns) || !parent_from(above, parent, opts))
		return false;
	if (!kw || known == PyDict_Size(kw))
		return true;
	PyErr_SetString(PyExc_TypeError, "a save takes parent, partial_last, priority, ttl and tag");
	return false;
}

/* What was given and committed before is so of a part that begins later, too. */
static void replay(struct tn_py_op *op, const struct tn_py_request *request)
{
	int rc = 0;

	for (uint32_t layer = 0; layer < op->layers && rc == 0; layer++) {
		const struct tn_py_final *final = &request->final[layer];

		if (final->given)
			rc = tn_save_layer(op->save, layer, final->event, final->value);
	}
	if (rc == 0 && request->commit)
		rc = tn_save_commit(op->save);
	op->committed = rc == 0 && request->commit;
	if (rc) {
		tn_save_abort(op->save);
		op->aborted = true;
	}
}

static int begin(struct tn_py_op *op, const struct tn_py_request *request)
{
	const struct tn_key *keys = request->keys + op->first;
	struct tn_save_opts opts = request->opts.save;
	int rc;

	opts.outcome = op->outcome;
	opts.parent = op->first ? keys - 1 : opts.parent ? &request->parent : NULL;
	opts.partial_last = opts.partial_last && !op->next;
	rc = tn_save_begin(op->space->s, op->pool->p, keys, op->n, request->pages + op->first * op->pool->geometry.pages_per_block, &opts, &op->save);
	if (rc == 0 && request->final)
		replay(op, request);
	return rc;
}

static PyObject *save_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_py_request request = {.begin = begin};
	struct tn_py_op *parts;

	if (!options_from(kw, &request.opts.save, &request.parent))
		return NULL;
	parts = tn_py_request_take(&request, args, request.opts.save.tag);
	return parts ? tn_py_handle_new(type, parts, &request) : NULL;
}

/* ---- its steps: each returns 0, or -1 with an exception --------------------------------------------------------------- */

/* Of all parts; of those that wait for their turn it is written down. */
static int give_layer(struct tn_py_handle *h, uint32_t layer, const struct tn_event *event, uint64_t value)
{
	struct tn_py_op *all = h->op;
	int rc = 0;

	if (tn_py_handle_reset(h))
		return 0; /* aborted, and nobody's mistake */
	for (struct tn_py_op *op = h->op; op && rc == 0; op = op->next) {
		if (!op->cache || tn_py_op_waits(op))
			continue;
		if (!tn_py_enter(op->cache))
			return -1;
		TN_PY_CALL(op->cache, rc = tn_save_layer(op->save, layer, event, value));
	}
	if (rc) {
		tn_py_raise(rc);
		return -1;
	}
	if (h->waiting)
		h->waiting->final[layer] = (struct tn_py_final){true, event, value};
	all->given[layer / 8] |= (uint8_t)(1u << layer % 8);
	all->ngiven++;
	return 0;
}

static int commit(struct tn_py_handle *h)
{
	int rc = 0;

	if (tn_py_handle_reset(h))
		return 0;
	for (struct tn_py_op *op = h->op; op && rc == 0; op = op->next) {
		if (!op->cache || tn_py_op_waits(op) || op->committed)
			continue;
		if (!tn_py_enter(op->cache))
			return -1;
		TN_PY_CALL(op->cache, rc = tn_save_commit(op->save));
		op->committed = rc == 0;
	}
	if (rc) {
		tn_py_raise(rc);
		return -1;
	}
	if (h->waiting)
		h->waiting->commit = true;
	return 0;
}

static int forget(struct tn_py_handle *h)
{
	int rc = 0;

	if (h->op->committed || h->op->aborted)
		return 0;
	tn_py_handle_forget(h);
	for (struct tn_py_op *op = h->op; op && rc == 0; op = op->next) {
		if (!op->cache || op->aborted)
			continue;
		if (!tn_py_enter(op->cache))
			return -1;
		TN_PY_CALL(op->cache, rc = tn_save_abort(op->save));
		op->aborted = rc == 0;
	}
	if (rc)
		tn_py_raise(rc);
	return rc ? -1 : 0;
}

static struct tn_py_op *first_waiting(struct tn_py_op *op)
{
	while (!tn_py_op_waits(op))
		op = op->next;
	return op;
}

/* Parts that wait begin when one before them has ended. Return: 0; -ETIMEDOUT: not all of it is over; an error; maybe with an exception */
static int end_parts(struct tn_py_handle *h, uint64_t deadline_ns)
{
	int first = 0;

	tn_py_handle_reset(h);
	for (struct tn_py_op *op = h->op; op; op = op->next) {
		int rc;

		if (tn_py_op_waits(op) && tn_py_handle_begin(h, op))
			return -EBADF;
		if (!op->cache)
			continue;
		rc = tn_py_op_end_until(op, deadline_ns, NULL);
		if (PyErr_Occurred())
			return -EBADF;
		if (rc == -EBUSY)
			return -ETIMEDOUT;
		if (rc == -EINVAL)
			return rc; /* neither committed nor aborted: it goes on */
		tn_py_op_over(op);
		first = first ? first : rc;
		if (h->waiting && tn_py_handle_begin(h, first_waiting(op)))
			return -EBADF;
	}
	return first;
}

static PyObject *end_until(struct tn_py_handle *h, uint64_t deadline_ns)
{
	int rc = end_parts(h, deadline_ns);

	if (PyErr_Occurred())
		return NULL;
	if (rc == -ETIMEDOUT && !tn_py_handle_over(h))
		return tn_py_raise_text(rc, "the save is still under way: call end() again");
	return rc ? tn_py_raise(rc) : result_of(h);
}

/* The event lives as long as a part may wait for it. */
static bool keep_event(struct tn_py_handle *h, PyObject *event)
{
	for (struct tn_py_op *op = h->op; op; op = op->next) {
		if (!op->cache)
			continue;
		if (!op->events)
			op->events = PyList_New(0);
		if (!op->events || PyList_Append(op->events, event))
			return false;
	}
	return true;
}

/* ---- methods ------------------------------------------------------------------------------------------------------------ */

static struct tn_py_handle *live(PyObject *self)
{
	return tn_py_handle_live(self, "the save has ended before");
}

static PyObject *save_layer(PyObject *self, PyObject *args)
{
	struct tn_py_handle *h = live(self);
	const struct tn_event *event = NULL;
	PyObject *object = Py_None;
	unsigned long long value = 0;
	unsigned layer;

	if (!h || !PyArg_ParseTuple(args, "I|OK", &layer, &object, &value))
		return NULL;
	if (object != Py_None && !PyObject_TypeCheck(object, tn_py_event_type))
		return PyErr_Format(PyExc_TypeError, "an Event is wanted");
	if (layer >= h->op->layers)
		return PyErr_Format(PyExc_IndexError, "layer %u of %u", layer, h->op->layers);
	if (object != Py_None) {
		event = ((struct tn_py_event *)object)->e;
		if (!event)
			return tn_py_raise_text(-EBADF, "the event was closed");
		if (!keep_event(h, object))
			return NULL;
	}
	return give_layer(h, layer, event, value) ? NULL : Py_NewRef(Py_None);
}

static PyObject *save_commit(PyObject *self, PyObject *nothing)
{
	struct tn_py_handle *h = live(self);

	return !h || commit(h) ? NULL : Py_NewRef(Py_None);
}

static PyObject *save_abort(PyObject *self, PyObject *nothing)
{
	struct tn_py_handle *h = live(self);

	return !h || forget(h) ? NULL : Py_NewRef(Py_None);
}

static PyObject *save_end(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	PyObject *timeout = Py_None;
	uint64_t deadline_ns;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	return end_until((struct tn_py_handle *)self, deadline_ns);
}

static PyObject *save_finish(PyObject *self, PyObject *nothing)
{
	struct tn_py_handle *h = live(self);
	const struct tn_py_op *op;

	if (!h)
		return NULL;
	op = h->op;
	for (uint32_t layer = 0; layer < op->layers && !op->committed && !op->aborted; layer++)
		if (!(op->given[layer / 8] >> layer % 8 & 1) && give_layer(h, layer, NULL, 0))
			return NULL;
	if (!op->aborted && commit(h))
		return NULL;
	return end_until(h, TN_FOREVER);
}

static PyObject *save_enter(PyObject *self, PyObject *nothing)
{
	return Py_NewRef(self);
}

/* A body that raised, or that has not given all layers, leaves nothing visible. */
static PyObject *save_exit(PyObject *self, PyObject *args)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;
	PyObject *raised, *value, *trace, *result;

	if (!PyArg_ParseTuple(args, "OOO", &raised, &value, &trace))
		return NULL;
	if (!tn_py_handle_over(h) && !h->op->committed && !h->op->aborted) {
		bool whole = raised == Py_None && h->op->ngiven == h->op->layers;

		if (whole ? commit(h) : forget(h))
			return NULL;
	}
	result = end_until(h, TN_FOREVER);
	if (!result)
		return NULL;
	Py_DECREF(result);
	return Py_NewRef(Py_False);
}

static PyObject *get_outcome(PyObject *self, void *arg)
{
	const struct tn_py_handle *h = (struct tn_py_handle *)self;
	PyObject *out, *part;

	if (!tn_py_handle_over(h))
		return Py_NewRef(Py_None);
	out = PyBytes_FromStringAndSize((const char *)h->op->outcome, (Py_ssize_t)h->op->n);
	for (const struct tn_py_op *op = h->op->next; op && out; op = op->next) {
		part = PyBytes_FromStringAndSize((const char *)op->outcome, (Py_ssize_t)op->n);
		PyBytes_ConcatAndDel(&out, part);
	}
	return out;
}

static PyObject *get_result(PyObject *self, void *arg)
{
	const struct tn_py_handle *h = (struct tn_py_handle *)self;

	return tn_py_handle_over(h) ? result_of(h) : Py_NewRef(Py_None);
}

static PyGetSetDef getset[] = {
	{"blocks", tn_py_handle_blocks, NULL, "blocks that were announced", NULL},
	{"tag", tn_py_handle_tag, NULL, "of the options", NULL},
	{"ended", tn_py_handle_ended, NULL, "whether the pages are the caller's again", NULL},
	{"outcome", get_outcome, NULL, "a byte per block: SAVED_STORED, SAVED_EXISTING, ...; None before the end", NULL},
	{"result", get_result, NULL, "SaveResult; None before the end", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
	{"layer", save_layer, METH_VARARGS,
	 "layer(layer, event=None, value=0)\n--\n\nThe bytes of a layer of all blocks are final: now, or once the event has reached the value.\n\n"
	 "Each layer once, in any order. Raises IndexError, InvalidValue (given before), Closed."},
	{"commit", save_commit, METH_NOARGS,
	 "commit()\n--\n\nAll layers were given: let the blocks become visible when their bytes are stored. Raises InvalidValue if a layer is missing."},
	{"abort", save_abort, METH_NOARGS, "abort()\n--\n\nForget the save; nothing of it becomes visible. After commit it does nothing."},
	{"end", (PyCFunction)(void (*)(void))save_end, METH_VARARGS | METH_KEYWORDS,
	 "end(timeout=None)\n--\n\nAfter commit or abort: wait until the pages are the caller's again. Returns a SaveResult.\n\n"
	 "Raises Timeout after timeout seconds: call again. With durability_ms=0 also what flush raises; the save has ended then, too."},
	{"finish", save_finish, METH_NOARGS, "finish()\n--\n\nGive the layers that were not given yet, commit, end. Returns a SaveResult."},
	{"__enter__", save_enter, METH_NOARGS, NULL},
	{"__exit__", save_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"Save(space, pool, keys, pages, *, parent=None, partial_last=False, priority=0, ttl=None, tag=0)\n--\n\n"
			    "Blocks on their way from a pool's pages into the cache; made by Space.save, which says what the arguments are.\n\n"
			    "A context manager: at its end the save is committed if all layers were given, else aborted, and the pages are the caller's again."},
	{Py_tp_new, (void *)save_new},
	{Py_tp_dealloc, (void *)tn_py_handle_dealloc},
	{Py_tp_traverse, (void *)tn_py_handle_traverse},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_save_spec = {
	.name = "tenuto.Save",
	.basicsize = sizeof(struct tn_py_handle),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = slots,
};
