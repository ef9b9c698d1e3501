/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups: tenuto.Match, of one space or of several, with a lease or without; tenuto.Query, a look-up that takes its time. */
#include <errno.h>
#include <string.h>

#include "binding.h"

/**
 * struct match - tenuto.Match
 * @space:  the lease is of; held while there is one
 * @firsts: of match_all: the first block that must be loaded of each space
 * @tiers:  bytes; NULL: not asked for
 */
struct match {
	PyObject_HEAD
	struct tn_match m;
	struct tn_py_space *space;
	uint32_t nspaces;
	uint32_t firsts[TN_MATCH_SPACES_MAX];
	PyObject *tiers;
};

struct query {
	PyObject_HEAD
	struct tn_py_cache *cache;
	PyObject *spaces; /* a tuple: they stay open until the look-up is over */
	uint64_t query;	  /* 0: over */
	bool over;
};

static PyTypeObject *match_type, *query_type;

static struct match *match_new(void)
{
	struct match *out = tn_py_new(match_type);

	if (out)
		out->m.size = sizeof(out->m);
	return out;
}

/* ---- looking up --------------------------------------------------------------------------------------------------------- */

static bool open_space(struct tn_py_space *space)
{
	if (space->s)
		return true;
	tn_py_raise_text(-EBADF, "the space was closed");
	return false;
}

static PyObject *looked_up(struct match *out, struct tn_py_space *space, int rc)
{
	if (rc < 0) {
		Py_DECREF((PyObject *)out);
		return tn_py_raise(rc);
	}
	if (out->m.pin)
		out->space = (struct tn_py_space *)TN_PY_REF(space);
	return (PyObject *)out;
}

PyObject *tn_py_space_match(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"keys", "pin", "tiers", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	int pin = 0, tiers = 0, rc = -EBADF;
	struct match *out;
	PyObject *packed;
	uint8_t *where = NULL;
	Py_buffer keys;
	size_t n;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|pp", names, &packed, &pin, &tiers) || !open_space(space) || tn_py_keys(packed, &keys, &n))
		return NULL;
	out = match_new();
	if (out && tiers) {
		out->tiers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
		where = out->tiers ? (uint8_t *)PyBytes_AsString(out->tiers) : NULL;
	}
	if (where)
		memset(where, 0, n);
	if (out && !PyErr_Occurred() && tn_py_enter(space->cache))
		TN_PY_CALL(space->cache, rc = tn_match(space->s, keys.buf, n, where, &out->m, pin ? TN_MATCH_PIN : 0));
	PyBuffer_Release(&keys);
	if (!PyErr_Occurred())
		return looked_up(out, space, rc);
	Py_XDECREF((PyObject *)out);
	return NULL;
}

/* The spaces of a look-up: all of one cache. Return: a tuple that holds them; NULL with an exception. */
static PyObject *spaces_from(PyObject *from, struct tn_space **spaces, uint32_t *n)
{
	PyObject *tuple = PySequence_Tuple(from);
	Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;

	if (tuple && (count < 1 || count > (Py_ssize_t)TN_MATCH_SPACES_MAX))
		PyErr_Format(PyExc_ValueError, "%zd spaces: 1 to %u are wanted", count, TN_MATCH_SPACES_MAX);
	for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
		PyObject *item = PyTuple_GetItem(tuple, i);
		struct tn_py_space *space = (struct tn_py_space *)item;

		if (!PyObject_TypeCheck(item, tn_py_space_type))
			PyErr_Format(PyExc_TypeError, "spaces[%zd] is no Space", i);
		else if (space->cache != ((struct tn_py_space *)PyTuple_GetItem(tuple, 0))->cache)
			PyErr_Format(PyExc_ValueError, "spaces[%zd] is of another cache", i);
		else if (open_space(space))
			spaces[i] = space->s;
	}
	if (PyErr_Occurred())
		Py_CLEAR(tuple);
	*n = (uint32_t)count;
	return tuple;
}

PyObject *tn_py_match_all(PyObject *module, PyObject *args, PyObject *kw)
{
	static char *names[] = {"spaces", "keys", "pin", NULL};
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	PyObject *from, *packed, *held, *result = NULL;
	struct tn_py_space *first;
	struct match *out;
	Py_buffer keys;
	int pin = 0, rc = -EBADF;
	uint32_t nspaces;
	size_t n;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|p", names, &from, &packed, &pin))
		return NULL;
	held = spaces_from(from, spaces, &nspaces);
	if (!held || tn_py_keys(packed, &keys, &n)) {
		Py_XDECREF(held);
		return NULL;
	}
	first = (struct tn_py_space *)PyTuple_GetItem(held, 0);
	out = match_new();
	if (out && tn_py_enter(first->cache)) {
		out->nspaces = nspaces;
		TN_PY_CALL(first->cache, rc = tn_match_all(spaces, nspaces, keys.buf, n, out->firsts, &out->m, pin ? TN_MATCH_PIN : 0));
	}
	PyBuffer_Release(&keys);
	if (!PyErr_Occurred())
		result = looked_up(out, first, rc);
	else
		Py_XDECREF((PyObject *)out);
	Py_DECREF(held);
	return result;
}

PyObject *tn_py_match_begin(PyObject *module, PyObject *args, PyObject *kw)
{
	static char *names[] = {"spaces", "keys", "timeout", "pin", NULL};
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	PyObject *from, *packed, *timeout = Py_None;
	uint64_t deadline_ns;
	struct query *out;
	Py_buffer keys;
	int pin = 0, rc = -1;
	uint32_t nspaces;
	size_t n;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|Op", names, &from, &packed, &timeout, &pin) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	out = tn_py_new(query_type);
	if (!out)
		return NULL;
	out->over = true;
	out->spaces = spaces_from(from, spaces, &nspaces);
	if (out->spaces && tn_py_keys(packed, &keys, &n) == 0) {
		out->cache = (struct tn_py_cache *)TN_PY_REF(((struct tn_py_space *)PyTuple_GetItem(out->spaces, 0))->cache);
		if (tn_py_enter(out->cache)) {
			TN_PY_CALL(out->cache, rc = tn_match_begin(spaces, nspaces, keys.buf, n, deadline_ns, pin ? TN_MATCH_PIN : 0, &out->query));
			if (rc)
				tn_py_raise(rc);
		}
		PyBuffer_Release(&keys);
	}
	out->over = rc != 0;
	if (rc == 0)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return NULL;
}

PyObject *tn_py_space_plan(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"match", "input_tokens", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	struct tn_plan plan = {.size = sizeof(plan)};
	unsigned long long tokens;
	const uint8_t *tiers;
	struct match *m;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!K", names, match_type, &m, &tokens) || !open_space(space) || !tn_py_enter(space->cache))
		return NULL;
	tiers = m->tiers ? (const uint8_t *)PyBytes_AsString(m->tiers) : NULL;
	TN_PY_CALL(space->cache, rc = tn_plan(space->s, &m->m, tiers, tokens, &plan));
	return rc ? tn_py_raise(rc)
		  : Py_BuildValue("{sI,sI,sK,sK,sK}", "restore_blocks", plan.restore_blocks, "recompute_blocks", plan.recompute_blocks, "ttft_ns",
				  (unsigned long long)plan.choice.ttft_ns, "restore_all_ttft_ns", (unsigned long long)plan.restore_all.ttft_ns,
				  "recompute_all_ttft_ns", (unsigned long long)plan.recompute_all.ttft_ns);
}

/* ---- Match -------------------------------------------------------------------------------------------------------------- */

/* Return: 0 or an errno; the cache may be closed already, and its leases with it. */
static int unpin(struct match *match)
{
	struct tn_py_space *space = match->space;
	struct tn_space *s = space ? space->s : NULL;
	uint64_t pin = match->m.pin;
	int rc = 0;

	match->m.pin = 0;
	match->space = NULL;
	if (!space)
		return 0;
	if (s && tn_py_enter_to_end(space->cache))
		TN_PY_CALL(space->cache, rc = tn_unpin(s, pin));
	Py_DECREF((PyObject *)space);
	return rc;
}

static void match_dealloc(PyObject *self)
{
	struct match *m = (struct match *)self;

	PyObject_GC_UnTrack(self);
	unpin(m);
	Py_XDECREF(m->tiers);
	tn_py_free(self);
}

static int match_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct match *)self)->space);
	return 0;
}

static PyObject *match_unpin(PyObject *self, PyObject *nothing)
{
	int rc = unpin((struct match *)self);

	return rc && rc != -ESHUTDOWN ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *match_enter(PyObject *self, PyObject *nothing)
{
	return Py_NewRef(self);
}

static PyObject *match_exit(PyObject *self, PyObject *args)
{
	unpin((struct match *)self);
	return Py_NewRef(Py_False);
}

static PyObject *get_u32(PyObject *self, void *offset)
{
	uint32_t value;

	memcpy(&value, (char *)&((struct match *)self)->m + (size_t)offset, sizeof(value));
	return PyLong_FromUnsignedLong(value);
}

static PyObject *get_load_ns(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(((struct match *)self)->m.load_ns);
}

static PyObject *get_pinned(PyObject *self, void *arg)
{
	return PyBool_FromLong(((struct match *)self)->m.pin != 0);
}

static PyObject *get_tiers(PyObject *self, void *arg)
{
	struct match *m = (struct match *)self;

	return Py_NewRef(m->tiers ? m->tiers : Py_None);
}

static PyObject *get_firsts(PyObject *self, void *arg)
{
	struct match *m = (struct match *)self;
	PyObject *out = PyTuple_New(m->nspaces);

	for (uint32_t i = 0; out && i < m->nspaces; i++)
		if (PyTuple_SetItem(out, i, PyLong_FromUnsignedLong(m->firsts[i])))
			Py_CLEAR(out);
	return out;
}

static PyObject *match_text(PyObject *self)
{
	const struct tn_match *m = &((struct match *)self)->m;

	return PyUnicode_FromFormat("Match(blocks=%u, first=%u, host_blocks=%u, disk_blocks=%u, pinned=%s)", m->blocks, m->first, m->tier_blocks[TN_TIER_HOST],
				    m->tier_blocks[TN_TIER_DISK], m->pin ? "True" : "False");
}

#define MEMBER(name) (void *)offsetof(struct tn_match, name)
#define TIER(tier) (void *)(offsetof(struct tn_match, tier_blocks) + (tier) * sizeof(uint32_t))

static PyGetSetDef match_getset[] = {
	{"blocks", get_u32, NULL, "matched blocks, from the start of the prompt", MEMBER(blocks)},
	{"first", get_u32, NULL, "first block that must be loaded; above 0 only for windows and checkpoints", MEMBER(first)},
	{"firsts", get_firsts, NULL, "match_all: the same for each space", NULL},
	{"device_blocks", get_u32, NULL, "blocks to load that lie in device memory", TIER(TN_TIER_DEVICE)},
	{"host_blocks", get_u32, NULL, "in host memory, and not above", TIER(TN_TIER_HOST)},
	{"disk_blocks", get_u32, NULL, "on disk, and not above", TIER(TN_TIER_DISK)},
	{"remote_blocks", get_u32, NULL, "on other machines, and not above", TIER(TN_TIER_REMOTE)},
	{"load_ns", get_load_ns, NULL, "estimated time to load them all; 0: not known yet", NULL},
	{"pinned", get_pinned, NULL, "whether there is a lease", NULL},
	{"tiers", get_tiers, NULL, "a byte per block (TIER_HOST, TIER_DISK, ...), if asked for", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef match_methods[] = {
	{"unpin", match_unpin, METH_NOARGS, "unpin()\n--\n\nEnd the lease, if there is one."},
	{"__enter__", match_enter, METH_NOARGS, NULL},
	{"__exit__", match_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot match_slots[] = {
	{Py_tp_doc, (void *)"What a look-up has found.\n\nA context manager, whose end ends the lease; so does the end of the object."},
	{Py_tp_dealloc, (void *)match_dealloc},
	{Py_tp_traverse, (void *)match_traverse},
	{Py_tp_repr, (void *)match_text},
	{Py_tp_getset, match_getset},
	{Py_tp_methods, match_methods},
	{0, NULL},
};

PyType_Spec tn_py_match_spec = {
	.name = "tenuto.Match",
	.basicsize = sizeof(struct match),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = match_slots,
};

/* ---- Query ------------------------------------------------------------------------------------------------------------- */

static void cancel(struct query *q)
{
	if (!q->over && q->cache->c)
		tn_match_cancel(q->cache->c, q->query);
	q->over = true;
}

static void query_dealloc(PyObject *self)
{
	struct query *q = (struct query *)self;

	PyObject_GC_UnTrack(self);
	cancel(q);
	Py_XDECREF(q->spaces);
	Py_XDECREF((PyObject *)q->cache);
	tn_py_free(self);
}

static int query_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct query *)self)->spaces);
	Py_VISIT(((struct query *)self)->cache);
	return 0;
}

static PyObject *query_poll(PyObject *self, PyObject *nothing)
{
	struct query *q = (struct query *)self;
	struct match *out;
	int rc;

	if (q->over)
		return tn_py_raise_text(-EBADF, "the look-up is over");
	if (!tn_py_enter(q->cache))
		return NULL;
	out = match_new();
	if (!out) {
		tn_py_leave(q->cache);
		return NULL;
	}
	out->nspaces = (uint32_t)PyTuple_Size(q->spaces);
	TN_PY_CALL(q->cache, rc = tn_match_poll(q->cache->c, q->query, out->firsts, &out->m));
	if (rc == -EAGAIN) {
		Py_DECREF((PyObject *)out);
		return Py_NewRef(Py_None);
	}
	q->over = rc != -EINVAL;
	return looked_up(out, (struct tn_py_space *)PyTuple_GetItem(q->spaces, 0), rc);
}

static PyObject *query_cancel(PyObject *self, PyObject *nothing)
{
	cancel((struct query *)self);
	return Py_NewRef(Py_None);
}

static PyMethodDef query_methods[] = {
	{"poll", query_poll, METH_NOARGS, "poll()\n--\n\nA Match, and the look-up is over; or None: a tier has still to answer."},
	{"cancel", query_cancel, METH_NOARGS, "cancel()\n--\n\nForget the look-up."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot query_slots[] = {
	{Py_tp_doc, (void *)"A look-up of tiers that do not answer at once (match_begin)."},
	{Py_tp_dealloc, (void *)query_dealloc},
	{Py_tp_traverse, (void *)query_traverse},
	{Py_tp_methods, query_methods},
	{0, NULL},
};

PyType_Spec tn_py_query_spec = {
	.name = "tenuto.Query",
	.basicsize = sizeof(struct query),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = query_slots,
};

int tn_py_match_add(PyObject *module)
{
	match_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tn_py_match_spec, NULL);
	query_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tn_py_query_spec, NULL);
	return match_type && query_type && PyModule_AddType(module, match_type) == 0 && PyModule_AddType(module, query_type) == 0 ? 0 : -1;
}
