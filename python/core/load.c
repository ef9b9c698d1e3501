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

/*
 * The pages that the options name, as far as they are this part's; false: none are. What lies behind all of the load stays with the last part, of
 * which the library refuses it.
 */
static bool sub_range(const struct tn_py_op *op, struct tn_load_opts *opts)
{
	uint64_t per_block = op->pool->geometry.pages_per_block, first = op->first * per_block, end = first + op->n * per_block;
	uint64_t from = opts->first_page, to = opts->npages > UINT64_MAX - from ? UINT64_MAX : from + opts->npages;

	if (opts->npages == 0 || (op->next && to > end))
		to = end;
	if (to <= first || (op->next && from >= end))
		return false;
	opts->first_page = from > first ? from - first : 0;
	opts->npages = opts->npages == 0 && from >= end ? 0 : to - first - opts->first_page;
	return true;
}

static int begin(struct tn_py_op *op, const struct tn_py_request *request)
{
	uint32_t per_block = op->pool->geometry.pages_per_block;
	struct tn_load_opts opts = request->opts.load;

	if (op->first || op->next) {
		op->settled = !sub_range(op, &opts);
		if (op->settled)
			return 0;
	}
	return tn_load_begin(op->space->s, op->pool->p, request->keys + op->first, op->n, request->pages + op->first * per_block, &opts, &op->load);
}

static PyObject *load_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_py_request request = {.begin = begin};
	struct tn_py_op *parts;

	if (!options_from(kw, &request.opts.load))
		return NULL;
	parts = tn_py_request_take(&request, args, request.opts.load.tag);
	return parts ? tn_py_handle_new(type, parts, &request) : NULL;
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

/* ---- the good prefix -------------------------------------------------------------------------------------------------- */

struct wait {
	struct tn_load *load;
	uint32_t layer;
};

static int wait_once(void *arg, uint64_t until_ns)
{
	const struct wait *w = arg;

	return tn_load_wait(w->load, w->layer, until_ns);
}

static int poll_once(struct tn_py_op *op, uint32_t layer)
{
	int rc = -EBADF;

	if (tn_py_enter(op->cache)) {
		rc = tn_load_poll(op->load, layer);
		tn_py_leave(op->cache);
	}
	return rc;
}

#define POLL	 0u /* as a deadline: do not wait */
#define LONG_AGO 1u /* the same for an end */

/* Deadline POLL: does not wait. Return: good blocks of a part at a layer; -EAGAIN, -ETIMEDOUT: not yet; an error, maybe with an exception. */
static int part_good(struct tn_py_op *op, uint32_t layer, uint64_t deadline_ns)
{
	struct wait w = {op->load, layer};
	int rc;

	if (op->settled)
		return op->good;
	if (!op->cache) {
		tn_py_raise_text(-EBADF, "the load has ended before");
		return -EBADF;
	}
	rc = deadline_ns == POLL ? poll_once(op, layer) : tn_py_op_wait(op, wait_once, &w, deadline_ns);
	if (rc == -ESHUTDOWN)
		rc = 0; /* the owner's death is a miss, too: nothing of the prefix is known to be there */
	if (rc >= 0)
		op->good = rc;
	return rc;
}

/* Ends a part that has arrived whole, so that another can begin. Return: 0; -EAGAIN, -ETIMEDOUT: not yet; maybe with an exception */
static int make_place(struct tn_py_op *op, uint64_t deadline_ns)
{
	int rc = tn_py_op_end_until(op, deadline_ns, NULL);

	if (PyErr_Occurred())
		return -EBADF;
	if (rc == -EBUSY)
		return deadline_ns == POLL ? -EAGAIN : -ETIMEDOUT;
	if (rc)
		op->good = 0;
	op->settled = true;
	tn_py_op_over(op);
	return 0;
}

/*
 * A part that waits begins as soon as parts before it have arrived whole. If one of them does not, nobody wants it any more.
 * Return: 0; -EAGAIN, -ETIMEDOUT: not yet; an error, maybe with an exception
 */
static int take_turn(struct tn_py_handle *h, struct tn_py_op *op, uint64_t deadline_ns)
{
	struct tn_py_op *before;
	int rc;

	while (tn_py_op_waits(op)) {
		if (tn_py_handle_begin(h, op))
			return -EBADF;
		if (!tn_py_op_waits(op))
			return 0;
		for (before = h->op; !before->cache; before = before->next)
			;
		rc = part_good(before, before->layers - 1, deadline_ns);
		if (rc == (int)before->n)
			rc = make_place(before, deadline_ns);
		else if (rc >= 0)
			tn_py_handle_forget(h);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Of all parts. Return: as part_good */
static int good_prefix(struct tn_py_handle *h, uint32_t layer, uint64_t deadline_ns)
{
	int good = 0, rc;

	if (tn_py_handle_reset(h))
		return 0;
	for (struct tn_py_op *op = h->op; op; op = op->next) {
		rc = take_turn(h, op, deadline_ns);
		if (rc == 0)
			rc = part_good(op, layer, deadline_ns);
		if (rc < 0)
			return rc;
		good += rc;
		if ((size_t)rc < op->n)
			break;
	}
	return good;
}

static struct tn_py_handle *live(PyObject *self)
{
	return tn_py_handle_live(self, "the load has ended before");
}

/* What a wait returns. */
static PyObject *told(int rc)
{
	if (PyErr_Occurred())
		return NULL;
	return rc < 0 ? tn_py_raise(rc) : PyLong_FromLong(rc);
}

static PyObject *load_wait(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"layer", "timeout", NULL};
	struct tn_py_handle *h = (struct tn_py_handle *)self;
	PyObject *number = Py_None, *timeout = Py_None;
	uint64_t deadline_ns;
	uint32_t layer;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|OO", names, &number, &timeout) || tn_py_deadline(timeout, &deadline_ns) ||
	    !layer_of(number, h->op, &layer) || !live(self))
		return NULL;
	return told(good_prefix(h, layer, deadline_ns));
}

static PyObject *load_poll(PyObject *self, PyObject *args)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;
	PyObject *number = Py_None;
	uint32_t layer;
	int rc;

	if (!PyArg_ParseTuple(args, "|O", &number) || !layer_of(number, h->op, &layer) || !live(self))
		return NULL;
	rc = good_prefix(h, layer, POLL);
	return rc == -EAGAIN && !PyErr_Occurred() ? Py_NewRef(Py_None) : told(rc);
}

/* The word of a load that is one operation, and its value. Return: false with an exception */
static bool word_of(PyObject *self, PyObject *number, const uint64_t **word, uint64_t *value)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	uint32_t layer;
	int rc;

	if (!layer_of(number, op, &layer) || !live(self))
		return false;
	if (op->next) {
		tn_py_raise_text(-EINVAL, "a load of more blocks than max_op_blocks has no one word for a layer: wait or poll, or load fewer blocks at once");
		return false;
	}
	if (!tn_py_enter(op->cache))
		return false;
	rc = tn_load_event(op->load, layer, word, value);
	tn_py_leave(op->cache);
	if (rc)
		tn_py_raise(rc);
	return rc == 0;
}

static PyObject *load_event(PyObject *self, PyObject *arg)
{
	const uint64_t *word;
	uint64_t value;

	return word_of(self, arg, &word, &value) ? Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)word, (unsigned long long)value) : NULL;
}

static PyObject *load_stream_wait(PyObject *self, PyObject *args)
{
	struct tn_py_op *op = ((struct tn_py_handle *)self)->op;
	const struct tn_device_driver *driver;
	PyObject *number, *layer = Py_None;
	struct tn_py_cache *cache;
	const uint64_t *word;
	uint64_t value;
	void *stream;
	int rc;

	if (!PyArg_ParseTuple(args, "O|O", &number, &layer) || !tn_py_stream(number, &stream) || !live(self))
		return NULL;
	driver = tn_py_word_driver(op->pool);
	cache = op->cache;
	if (!driver || !word_of(self, layer, &word, &value) || !tn_py_enter(cache))
		return NULL;
	Py_INCREF((PyObject *)cache);
	TN_PY_CALL(cache, rc = driver->ops->word_wait(driver, stream, word, value));
	Py_DECREF((PyObject *)cache);
	return rc ? tn_py_raise_text(rc, "the driver's stream does not take the wait for a word") : Py_NewRef(Py_None);
}

/* ---- the end ---------------------------------------------------------------------------------------------------------- */

/* Return: 0 or an error, with an exception if the cache is closed */
static int cancel(struct tn_py_handle *h)
{
	int rc = 0;

	tn_py_handle_forget(h);
	for (struct tn_py_op *op = h->op; op && rc == 0; op = op->next) {
		if (!op->cache)
			continue;
		if (!tn_py_enter(op->cache))
			return -EBADF;
		TN_PY_CALL(op->cache, rc = tn_load_cancel(op->load));
	}
	return rc;
}

static PyObject *load_cancel(PyObject *self, PyObject *nothing)
{
	struct tn_py_handle *h = live(self);
	int rc = h ? cancel(h) : 0;

	if (PyErr_Occurred())
		return NULL;
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

/* Adds the blocks of a part whose bit is set. Return: 0; -1 with an exception */
static int add_busy(PyObject *list, const struct tn_py_op *op, const uint8_t *busy)
{
	for (size_t i = 0; i < op->n; i++) {
		PyObject *number = busy[i / 8] >> (i % 8) & 1 ? PyLong_FromSize_t(op->first + i) : NULL;
		int rc = number ? PyList_Append(list, number) : 0;

		Py_XDECREF(number);
		if (rc)
			return -1;
	}
	return PyErr_Occurred() ? -1 : 0;
}

/* Return: 0: over; -EBUSY: pages of blocks that are in the list now, if there is one, are still written to; an error: over; maybe with an exception */
static int end_part(struct tn_py_op *op, uint64_t deadline_ns, PyObject *list)
{
	uint8_t *busy = PyMem_Malloc((op->n + 7) / 8 + 1);
	int rc;

	if (!busy) {
		PyErr_NoMemory();
		return -ENOMEM;
	}
	rc = tn_py_op_end_until(op, deadline_ns, busy);
	if (rc == -EBUSY && list && !PyErr_Occurred())
		add_busy(list, op, busy);
	else if (rc != -EBUSY && !PyErr_Occurred())
		tn_py_op_over(op);
	PyMem_Free(busy);
	return rc;
}

/* Return: 0; or the first error of a part, all are over then; maybe with an exception */
static int end_parts(struct tn_py_handle *h, uint64_t deadline_ns, PyObject *list)
{
	int first = 0;

	for (struct tn_py_op *op = h->op; op && !PyErr_Occurred(); op = op->next) {
		int rc = op->cache ? end_part(op, deadline_ns, list) : 0;

		if (first == 0 && rc != -EBUSY)
			first = rc;
	}
	return first;
}

static PyObject *end_until(struct tn_py_handle *h, uint64_t deadline_ns)
{
	PyObject *list, *out;
	int rc = 0;

	if (tn_py_handle_over(h))
		return PyTuple_New(0); /* ended before */
	tn_py_handle_reset(h);
	tn_py_handle_forget(h);
	if (h->op->next)
		rc = end_parts(h, LONG_AGO, NULL); /* what is missing of all parts is cancelled before one is waited for */
	list = PyErr_Occurred() ? NULL : PyList_New(0);
	if (list) {
		int later = end_parts(h, deadline_ns, list);

		rc = rc ? rc : later;
	}
	out = list && !PyErr_Occurred() && rc == 0 ? PyList_AsTuple(list) : NULL;
	Py_XDECREF(list);
	if (out || PyErr_Occurred())
		return out;
	return tn_py_raise(rc);
}

static PyObject *load_end(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	PyObject *timeout = Py_None;
	uint64_t deadline_ns;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	return end_until((struct tn_py_handle *)self, deadline_ns);
}

static PyObject *load_finish(PyObject *self, PyObject *nothing)
{
	struct tn_py_handle *h = live(self);
	PyObject *good, *busy;

	if (!h)
		return NULL;
	good = told(good_prefix(h, h->op->layers - 1, TN_FOREVER));
	busy = good ? end_until(h, TN_FOREVER) : NULL;
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
	PyObject *busy = end_until((struct tn_py_handle *)self, TN_FOREVER);

	if (!busy)
		return NULL;
	Py_DECREF(busy);
	return Py_NewRef(Py_False);
}

static PyObject *get_good(PyObject *self, void *arg)
{
	struct tn_py_handle *h = (struct tn_py_handle *)self;
	long good = 0;

	tn_py_handle_reset(h);
	for (const struct tn_py_op *op = h->op; op; op = op->next) {
		good += op->good;
		if ((size_t)op->good < op->n)
			break;
	}
	return PyLong_FromLong(good);
}

static PyGetSetDef getset[] = {
	{"blocks", tn_py_handle_blocks, NULL, "blocks that were asked for", NULL},
	{"good", get_good, NULL, "length of the good prefix in blocks, as the last wait or poll has said; at first all, none after a reset", NULL},
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
	{"stream_wait", load_stream_wait, METH_VARARGS,
	 "stream_wait(stream, layer=None)\n--\n\nWhat the stream is asked for from now on happens once the layer is in place (None: the last one), or has failed: so look at "
	 "wait() before what was computed is kept. stream: a number, as torch.cuda.Stream.cuda_stream, of the device that the pool is in."},
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
