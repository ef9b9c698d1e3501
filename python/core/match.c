/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups: tenuto.Match, of one space or of several, with a lease or without; tenuto.Query, a look-up that takes its time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "lookup.h"

/**
 * struct match - tenuto.Match
 * @leases: of further parts
 * @cache:  the leases are of; held while there are some
 * @firsts: of match_all: the first block that must be loaded of each space
 * @tiers:  bytes; NULL: not asked for
 */
struct match {
	PyObject_HEAD
	struct tn_match m;
	struct tn_py_leases leases;
	struct tn_py_cache *cache;
	uint32_t nspaces;
	uint32_t firsts[TN_MATCH_SPACES_MAX];
	PyObject *tiers;
};

/* What a look-up needs to go on from part to part. */
struct parts {
	size_t n, most, at, want; /* keys: all, of one part at most, before the part that is under way, in it */
	uint64_t deadline_ns;
	unsigned flags;
	struct tn_key keys[];
};

/**
 * struct query - tenuto.Query
 * @spaces: a tuple: they stay open until the look-up is over
 * @query:  of the part that is under way; of no meaning if it is over
 * @over:   also: somebody has cancelled it, and who polls it sees to the rest
 * @polled: a thread is about it, and has the rest of this to itself
 * @found:  in the parts before it
 * @parts:  NULL: there is one part
 */
struct query {
	PyObject_HEAD
	struct tn_py_cache *cache;
	PyObject *spaces;
	uint64_t query;
	bool over, polled;
	struct match *found;
	struct parts *parts;
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

static void add_space(struct tn_py_lookup *l, const struct tn_py_space *space)
{
	l->most = l->nspaces && l->most < space->most ? l->most : space->most;
	l->cache = space->cache->c;
	l->windows[l->nspaces] = space->window;
	l->spaces[l->nspaces++] = space->s;
}

/* The spaces of a look-up: all of one cache. Return: a tuple that holds them; NULL with an exception. */
static PyObject *spaces_from(PyObject *from, struct tn_py_lookup *l)
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
			add_space(l, space);
	}
	if (PyErr_Occurred())
		Py_CLEAR(tuple);
	return tuple;
}

/* Return: the match with what was found; NULL with an exception */
static PyObject *looked_up(struct match *out, struct tn_py_cache *cache, const struct tn_py_lookup *l, int rc)
{
	if (rc < 0) {
		Py_DECREF((PyObject *)out);
		return tn_py_raise(rc);
	}
	out->m = l->match;
	out->leases = l->leases;
	memcpy(out->firsts, l->firsts, l->nspaces * sizeof(l->firsts[0]));
	if (out->m.pin)
		out->cache = (struct tn_py_cache *)TN_PY_REF(cache);
	return (PyObject *)out;
}

PyObject *tn_py_space_match(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"keys", "pin", "tiers", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	struct tn_py_lookup l = {.nspaces = 0};
	int pin = 0, tiers = 0, rc = -EBADF;
	struct match *out;
	PyObject *packed;
	Py_buffer keys;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|pp", names, &packed, &pin, &tiers) || !open_space(space) || tn_py_keys(packed, &keys, &l.n))
		return NULL;
	add_space(&l, space);
	l.keys = keys.buf;
	l.pin = pin;
	out = match_new();
	if (out && tiers) {
		out->tiers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)l.n);
		l.tiers = out->tiers ? (uint8_t *)PyBytes_AsString(out->tiers) : NULL;
	}
	if (l.tiers)
		memset(l.tiers, 0, l.n);
	if (out && !PyErr_Occurred() && tn_py_enter(space->cache))
		TN_PY_CALL(space->cache, rc = tn_py_look_up(&l));
	PyBuffer_Release(&keys);
	if (!PyErr_Occurred())
		return looked_up(out, space->cache, &l, rc);
	Py_XDECREF((PyObject *)out);
	return NULL;
}

PyObject *tn_py_match_all(PyObject *module, PyObject *args, PyObject *kw)
{
	static char *names[] = {"spaces", "keys", "pin", NULL};
	PyObject *from, *packed, *held, *result = NULL;
	struct tn_py_lookup l = {.nspaces = 0};
	struct tn_py_space *first;
	struct match *out;
	Py_buffer keys;
	int pin = 0, rc = -EBADF;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|p", names, &from, &packed, &pin))
		return NULL;
	held = spaces_from(from, &l);
	if (!held || tn_py_keys(packed, &keys, &l.n)) {
		Py_XDECREF(held);
		return NULL;
	}
	first = (struct tn_py_space *)PyTuple_GetItem(held, 0);
	l.keys = keys.buf;
	l.pin = pin;
	out = match_new();
	if (out && tn_py_enter(first->cache)) {
		out->nspaces = l.nspaces;
		TN_PY_CALL(first->cache, rc = tn_py_look_up(&l));
	}
	PyBuffer_Release(&keys);
	if (!PyErr_Occurred())
		result = looked_up(out, first->cache, &l, rc);
	else
		Py_XDECREF((PyObject *)out);
	Py_DECREF(held);
	return result;
}

/* More keys than one look-up takes are looked for part by part, if all spaces match by prefix; else the library refuses them. */
static bool cut(struct query *q, const struct tn_py_lookup *l, uint64_t deadline_ns, unsigned flags)
{
	for (uint32_t i = 0; i < l->nspaces; i++)
		if (l->windows[i])
			return true;
	if (l->n <= l->most)
		return true;
	q->parts = PyMem_Malloc(sizeof(*q->parts) + l->n * sizeof(struct tn_key));
	if (!q->parts) {
		PyErr_NoMemory();
		return false;
	}
	*q->parts = (struct parts){.n = l->n, .most = l->most, .want = l->most, .deadline_ns = deadline_ns, .flags = flags};
	memcpy(q->parts->keys, l->keys, l->n * sizeof(struct tn_key));
	return true;
}

PyObject *tn_py_match_begin(PyObject *module, PyObject *args, PyObject *kw)
{
	static char *names[] = {"spaces", "keys", "timeout", "pin", NULL};
	PyObject *from, *packed, *timeout = Py_None;
	struct tn_py_lookup l = {.nspaces = 0};
	uint64_t deadline_ns;
	struct query *out;
	Py_buffer keys;
	int pin = 0, rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|Op", names, &from, &packed, &timeout, &pin) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	out = tn_py_new(query_type);
	if (!out)
		return NULL;
	out->over = true;
	out->found = match_new();
	out->spaces = out->found ? spaces_from(from, &l) : NULL;
	if (out->spaces && tn_py_keys(packed, &keys, &l.n) == 0) {
		unsigned flags = pin ? TN_MATCH_PIN : 0;

		l.keys = keys.buf;
		out->found->nspaces = l.nspaces;
		out->cache = (struct tn_py_cache *)TN_PY_REF(((struct tn_py_space *)PyTuple_GetItem(out->spaces, 0))->cache);
		if (cut(out, &l, deadline_ns, flags) && tn_py_enter(out->cache)) {
			TN_PY_CALL(out->cache, rc = tn_match_begin(l.spaces, l.nspaces, l.keys, out->parts ? l.most : l.n, deadline_ns, flags, &out->query));
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

PyObject *tn_py_space_observe(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"input_tokens", "prefix_tokens", "layer", "ns", NULL};
	struct tn_py_space *space = (struct tn_py_space *)self;
	unsigned long long input, prefix, ns;
	unsigned layer;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "KKIK", names, &input, &prefix, &layer, &ns) || !open_space(space) || !tn_py_enter(space->cache))
		return NULL;
	TN_PY_CALL(space->cache, rc = tn_space_observe(space->s, input, prefix, layer, ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

/* ---- Match -------------------------------------------------------------------------------------------------------------- */

/* Return: 0 or an errno; the cache may be closed already, and its leases with it. */
static int unpin(struct match *match)
{
	struct tn_py_leases leases = match->leases;
	struct tn_py_cache *cache = match->cache;
	struct tn_match m = match->m;
	int rc = 0;

	match->m.pin = 0;
	match->leases = (struct tn_py_leases){NULL, 0};
	match->cache = NULL;
	if (!cache)
		return 0;
	if (tn_py_enter_to_end(cache))
		TN_PY_CALL(cache, rc = tn_py_unpin(cache->c, &m, &leases));
	free(leases.pin);
	Py_DECREF((PyObject *)cache);
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
	Py_VISIT(((struct match *)self)->cache);
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
	if (!q->over && !q->polled && q->cache->c)
		tn_match_cancel(q->cache->c, q->query);
	q->over = true;
}

static void query_dealloc(PyObject *self)
{
	struct query *q = (struct query *)self;

	PyObject_GC_UnTrack(self);
	cancel(q);
	PyMem_Free(q->parts);
	Py_XDECREF((PyObject *)q->found);
	Py_XDECREF(q->spaces);
	Py_XDECREF((PyObject *)q->cache);
	tn_py_free(self);
}

static int query_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct query *)self)->spaces);
	Py_VISIT(((struct query *)self)->found);
	Py_VISIT(((struct query *)self)->cache);
	return 0;
}

/* The part under way goes to what was found before. Return: matched blocks of the part; -EAGAIN: not yet; an error, maybe with an exception */
static int poll_part(struct query *q)
{
	struct match *found = q->found;
	struct tn_match m = {.size = sizeof(m)};
	int rc, added = 0;

	if (!tn_py_enter(q->cache))
		return -EAGAIN;
	TN_PY_CALL(q->cache, rc = tn_match_poll(q->cache->c, q->query, found->m.blocks ? NULL : found->firsts, &m));
	if (rc < 0)
		return rc;
	if (found->m.blocks == 0)
		found->m.first = m.first;
	found->m.blocks += m.blocks;
	added = tn_py_match_add_part(&found->m, &found->leases, &m);
	if (m.pin && !found->cache)
		found->cache = (struct tn_py_cache *)TN_PY_REF(q->cache);
	if (added && q->cache->c)
		tn_cache_unpin(q->cache->c, m.pin);
	return added ? added : rc;
}

/* Return: whether a further part is under way. If it cannot begin, what was found so far is the result. */
static bool next_part(struct query *q)
{
	struct tn_py_lookup l = {.nspaces = 0};
	struct parts *p = q->parts;
	int rc = -EBADF;

	p->at += p->want;
	p->want = p->n - p->at < p->most ? p->n - p->at : p->most;
	for (Py_ssize_t i = 0; i < PyTuple_Size(q->spaces); i++)
		add_space(&l, (struct tn_py_space *)PyTuple_GetItem(q->spaces, i));
	if (p->want && l.spaces[0] && !q->over && tn_py_enter(q->cache))
		TN_PY_CALL(q->cache, rc = tn_match_begin(l.spaces, l.nspaces, p->keys + p->at, p->want, p->deadline_ns, p->flags, &q->query));
	return rc == 0;
}

static PyObject *query_poll(PyObject *self, PyObject *nothing)
{
	struct query *q = (struct query *)self;
	PyObject *found;
	bool cancelled;
	int rc;

	if (q->over)
		return tn_py_raise_text(-EBADF, "the look-up is over");
	if (q->polled)
		return Py_NewRef(Py_None);
	q->polled = true;
	do
		rc = poll_part(q);
	while (rc >= 0 && q->parts && (size_t)rc == q->parts->want && next_part(q));
	q->polled = false;
	cancelled = q->over;
	q->over = rc != -EAGAIN && rc != -EINVAL;
	if (cancelled)
		cancel(q);
	if (PyErr_Occurred())
		return NULL;
	if (rc == -EAGAIN)
		return cancelled ? tn_py_raise_text(-EBADF, "the look-up is over") : Py_NewRef(Py_None);
	if (rc < 0)
		return rc == -ENOMEM ? PyErr_NoMemory() : tn_py_raise(rc);
	found = (PyObject *)q->found;
	q->found = NULL;
	return found;
}

static PyObject *query_cancel(PyObject *self, PyObject *nothing)
{
	cancel((struct query *)self);
	return Py_NewRef(Py_None);
}

static PyMethodDef query_methods[] = {
	{"poll", query_poll, METH_NOARGS, "poll()\n--\n\nA Match, and the look-up is over; or None: a tier has still to answer, or another thread polls."},
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
