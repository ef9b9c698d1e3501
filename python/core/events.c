/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tenuto.PrefixTree and tenuto.Subscriber, and the publisher of a Cache: thin objects over tenuto/prefix_tree.h, subscribe.h and publish.h.
 *
 * A subscriber holds its tree. on_event is called with the GIL, on the subscriber's thread.
 */
#include "events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/names.h>
#include <tenuto/prefix_tree.h>
#include <tenuto/publish.h>
#include <tenuto/subscribe.h>

static PyTypeObject *tree_type;

struct tree {
	PyObject_HEAD
	struct tn_tree *t;
	uint32_t caches;
};

struct subscriber {
	PyObject_HEAD
	struct tn_subscriber *s;
	struct tree *tree;
	PyObject *on_event;
};

/* ---- the tree ------------------------------------------------------------------------------------------------------------ */

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"max_blocks", "caches", NULL};
	unsigned long long blocks;
	unsigned caches;
	struct tree *self;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "KI", names, &blocks, &caches))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	rc = tn_tree_create(blocks, caches, &self->t);
	self->caches = caches;
	if (rc == 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return tn_py_raise(rc);
}

static void tree_free(PyObject *object)
{
	tn_tree_destroy(((struct tree *)object)->t);
	tn_py_free(object);
}

/* A hash as vLLM has it: an integer, or bytes. -1 with an exception. */
static int key_from(PyObject *hash, uint64_t *out)
{
	char *bytes;
	Py_ssize_t n;

	if (PyLong_Check(hash)) {
		*out = PyLong_AsUnsignedLongLongMask(hash);
		return PyErr_Occurred() ? -1 : 0;
	}
	if (PyBytes_AsStringAndSize(hash, &bytes, &n))
		return -1;
	*out = tn_tree_key(bytes, (size_t)n);
	return 0;
}

static uint64_t *keys_from(PyObject *hashes, Py_ssize_t *n)
{
	PyObject *list = PySequence_List(hashes);
	uint64_t *keys;

	if (!list)
		return NULL;
	*n = PyList_Size(list);
	keys = PyMem_Malloc((size_t)(*n ? *n : 1) * sizeof(*keys));
	if (!keys)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; keys && i < *n; i++)
		if (key_from(PyList_GetItem(list, i), &keys[i])) {
			PyMem_Free(keys);
			keys = NULL;
		}
	Py_DECREF(list);
	return keys;
}

static PyObject *tree_change(PyObject *object, PyObject *args, int (*change)(struct tn_tree *, uint32_t, enum tn_tier, uint64_t))
{
	unsigned cache, tier;
	PyObject *hash;
	uint64_t key;
	int rc;

	if (!PyArg_ParseTuple(args, "IIO", &cache, &tier, &hash) || key_from(hash, &key))
		return NULL;
	rc = change(((struct tree *)object)->t, cache, (enum tn_tier)tier, key);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *tree_store(PyObject *object, PyObject *args)
{
	return tree_change(object, args, tn_tree_store);
}

static PyObject *tree_remove(PyObject *object, PyObject *args)
{
	return tree_change(object, args, tn_tree_remove);
}

static PyObject *tree_clear(PyObject *object, PyObject *number)
{
	unsigned long cache = PyLong_AsUnsignedLong(number);
	int rc;

	if (PyErr_Occurred())
		return NULL;
	rc = tn_tree_clear(((struct tree *)object)->t, cache > UINT32_MAX ? UINT32_MAX : (uint32_t)cache);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *tree_find(PyObject *object, PyObject *hashes)
{
	struct tree *self = (struct tree *)object;
	struct tn_tree_prefix *found = PyMem_Malloc(self->caches * sizeof(*found));
	PyObject *out = NULL;
	Py_ssize_t n = 0;
	uint64_t *keys = found ? keys_from(hashes, &n) : (uint64_t *)(void *)PyErr_NoMemory();
	long rc;

	if (keys) {
		rc = tn_tree_find(self->t, keys, (size_t)n, found);
		out = rc < 0 ? tn_py_raise((int)rc) : PyList_New((Py_ssize_t)self->caches);
		for (uint32_t c = 0; out && c < self->caches; c++) {
			const uint32_t *b = found[c].blocks;

			if (PyList_SetItem(out, (Py_ssize_t)c, Py_BuildValue("(IIII)", b[TN_TIER_DEVICE], b[TN_TIER_HOST], b[TN_TIER_DISK], b[TN_TIER_REMOTE])))
				Py_CLEAR(out);
		}
	}
	PyMem_Free(keys);
	PyMem_Free(found);
	return out;
}

static PyObject *tree_stats(PyObject *object, PyObject *nothing)
{
	struct tn_tree_stats s;
	int rc = tn_tree_stats(((struct tree *)object)->t, &s);

	return rc ? tn_py_raise(rc) : Py_BuildValue("{sK,sK,sK,sK}", "blocks", (unsigned long long)s.blocks, "max_blocks", (unsigned long long)s.max_blocks,
						     "left_out", (unsigned long long)s.left_out, "bytes", (unsigned long long)s.bytes);
}

static PyObject *tree_digest(PyObject *object, PyObject *number)
{
	unsigned long cache = PyLong_AsUnsignedLong(number);
	uint64_t blocks, sum;

	if (PyErr_Occurred())
		return NULL;
	sum = tn_tree_digest(((struct tree *)object)->t, (uint32_t)cache, &blocks);
	return Py_BuildValue("(KK)", (unsigned long long)sum, (unsigned long long)blocks);
}

static PyMethodDef tree_methods[] = {
	{"store", tree_store, METH_VARARGS, "store(cache, tier, hash)\n--\n\nA block lies in a tier of a cache. Raises Error when the tree is full."},
	{"remove", tree_remove, METH_VARARGS, "remove(cache, tier, hash)\n--\n\nA block lies in that tier no more."},
	{"clear", tree_clear, METH_O, "clear(cache)\n--\n\nNothing lies in that cache any more."},
	{"find", tree_find, METH_O,
	 "find(hashes)\n--\n\nHow many blocks of a prompt each cache has: for each (device, host, disk, remote), in that tier or a better one.\n\n"
	 "hashes: the engine's, first block first, as integers or bytes."},
	{"stats", tree_stats, METH_NOARGS, "stats()\n--\n\nblocks, max_blocks, left_out and bytes."},
	{"digest", tree_digest, METH_O, "digest(cache)\n--\n\n(sum, blocks) of what is known of a cache: equal sums, equal knowledge."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot tree_slots[] = {
	{Py_tp_doc, "PrefixTree(max_blocks, caches)\n--\n\nWhich cache has how much of a prompt, in which tier. Takes its memory when it is made.\n\n"
		    "Safe on any thread. Raises InvalidValue and MemoryError."},
	{Py_tp_new, tree_new},
	{Py_tp_dealloc, tree_free},
	{Py_tp_methods, tree_methods},
	{0, NULL},
};

static PyType_Spec tree_spec = {
	.name = "tenuto.PrefixTree", .basicsize = sizeof(struct tree), .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, .slots = tree_slots};

/* ---- the subscriber -------------------------------------------------------------------------------------------------------- */

static PyObject *hash_of(const unsigned char *hash, uint8_t bytes)
{
	if (bytes == 0)
		return Py_NewRef(Py_None);
	return bytes == 8 ? PyLong_FromUnsignedLongLong(tn_tree_key(hash, 8)) : PyBytes_FromStringAndSize((const char *)hash, bytes);
}

/* On the subscriber's thread. An exception is printed: nobody is there to take it. */
static void call_on_event(void *arg, uint64_t sequence, const struct tn_bus_event *e)
{
	static const char *const kinds[] = {"stored", "removed", "cleared"};
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *held = Py_NewRef((PyObject *)arg); /* it may drop the subscriber */
	PyObject *told = PyObject_CallFunction(held, "KsNNIIIy#", (unsigned long long)sequence, kinds[e->kind], hash_of(e->hash, e->hash_bytes),
					       hash_of(e->parent, e->parent_bytes), (unsigned)e->tier, (unsigned)e->group, (unsigned)e->block_tokens,
					       e->ntokens ? (const char *)e->token_ids : NULL, (Py_ssize_t)(e->ntokens * sizeof(*e->token_ids)));

	if (!told)
		PyErr_WriteUnraisable(held);
	Py_XDECREF(told);
	Py_DECREF(held);
	PyGILState_Release(state);
}

static void subscriber_end(struct subscriber *self)
{
	struct tn_subscriber *s = self->s;

	self->s = NULL;
	Py_BEGIN_ALLOW_THREADS;
	tn_subscribe_stop(s);
	Py_END_ALLOW_THREADS;
}

static PyObject *subscriber_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"spec", "tree", "cache", "on_event", NULL};
	struct tn_subscribe_opts o = {.size = sizeof(o)};
	PyObject *tree = Py_None, *on_event = Py_None;
	struct subscriber *self;
	const char *spec;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|OIO", names, &spec, &tree, &o.cache, &on_event))
		return NULL;
	if (tree != Py_None && !PyObject_TypeCheck(tree, tree_type)) {
		PyErr_SetString(PyExc_TypeError, "tree is a PrefixTree, or None");
		return NULL;
	}
	self = tn_py_new(type);
	if (!self)
		return NULL;
	if (tree != Py_None) {
		self->tree = (struct tree *)Py_NewRef(tree);
		o.tree = self->tree->t;
	}
	if (on_event != Py_None) {
		self->on_event = Py_NewRef(on_event);
		o.on_event = call_on_event;
		o.arg = on_event;
	}
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_subscribe_start(spec, &o, &self->s);
	Py_END_ALLOW_THREADS;
	if (rc == 0)
		return (PyObject *)self;
	self->s = NULL;
	Py_DECREF((PyObject *)self);
	return tn_py_raise(rc);
}

static void subscriber_free(PyObject *object)
{
	struct subscriber *self = (struct subscriber *)object;

	subscriber_end(self);
	Py_XDECREF((PyObject *)self->tree);
	Py_XDECREF(self->on_event);
	tn_py_free(object);
}

static PyObject *subscriber_close(PyObject *object, PyObject *nothing)
{
	subscriber_end((struct subscriber *)object);
	Py_RETURN_NONE;
}

static PyObject *subscriber_state(PyObject *object, PyObject *nothing)
{
	struct tn_subscribe_state s = {.size = sizeof(s)};
	struct subscriber *self = (struct subscriber *)object;
	int rc = self->s ? tn_subscribe_state(self->s, &s) : -EBADF;

	if (rc)
		return self->s ? tn_py_raise(rc) : tn_py_raise_text(rc, "the subscriber was closed");
	return Py_BuildValue("{sK,sK,sK,sK,sK,sK,sK,sK,sK,sO,sO,sO}", "next", (unsigned long long)s.next, "heard_ns", (unsigned long long)s.heard_ns, "events",
			     (unsigned long long)s.events, "batches", (unsigned long long)s.batches, "gaps", (unsigned long long)s.gaps, "replays",
			     (unsigned long long)s.replays, "snapshots", (unsigned long long)s.snapshots, "restarts", (unsigned long long)s.restarts, "bad",
			     (unsigned long long)s.bad, "connected", s.connected ? Py_True : Py_False, "current", s.current ? Py_True : Py_False, "complete",
			     s.complete ? Py_True : Py_False);
}

static PyMethodDef subscriber_methods[] = {
	{"state", subscriber_state, METH_NOARGS,
	 "state()\n--\n\nnext, heard_ns (CLOCK_MONOTONIC), events, batches, gaps, replays, snapshots, restarts, bad, connected, current, complete."},
	{"close", subscriber_close, METH_NOARGS, "close()\n--\n\nEnds it. The tree keeps what it knows."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot subscriber_slots[] = {
	{Py_tp_doc,
	 "Subscriber(spec, tree=None, cache=0, on_event=None)\n--\n\nFollows the published events of one cache, of Tenuto or vLLM, for a column of a PrefixTree.\n\n"
	 "spec: 'zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558'. on_event(sequence, kind, hash, parent, tier, group, block_tokens, token_ids)\n"
	 "is called on the subscriber's own thread; token_ids: 4 bytes each, or None. Raises InvalidValue, NotFound (no such plugin), MemoryError."},
	{Py_tp_new, subscriber_new},
	{Py_tp_dealloc, subscriber_free},
	{Py_tp_methods, subscriber_methods},
	{0, NULL},
};

static PyType_Spec subscriber_spec = {.name = "tenuto.Subscriber",
				      .basicsize = sizeof(struct subscriber),
				      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
				      .slots = subscriber_slots};

/* ---- the publisher --------------------------------------------------------------------------------------------------------- */

static PyObject *publish(PyObject *module, PyObject *args)
{
	struct tn_publisher *publisher = NULL;
	struct tn_py_cache *cache;
	const char *spec;
	int rc;

	if (!PyArg_ParseTuple(args, "O!s", tn_py_cache_type, &cache, &spec) || !tn_py_enter(cache))
		return NULL;
	if (cache->publisher) {
		tn_py_leave(cache);
		return tn_py_raise_text(-EEXIST, "the cache publishes its events already");
	}
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_publish_start(cache->c, spec, &publisher);
	Py_END_ALLOW_THREADS;
	if (rc == 0 && cache->publisher) { /* another thread was faster */
		Py_BEGIN_ALLOW_THREADS;
		tn_publish_stop(publisher);
		Py_END_ALLOW_THREADS;
		tn_py_leave(cache);
		return tn_py_raise_text(-EEXIST, "the cache publishes its events already");
	}
	if (rc == 0)
		cache->publisher = publisher;
	tn_py_leave(cache);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *publish_stats(PyObject *module, PyObject *object)
{
	struct tn_publish_stats s = {.size = sizeof(s)};
	struct tn_py_cache *cache = (struct tn_py_cache *)object;

	if (!PyObject_TypeCheck(object, tn_py_cache_type) || !cache->publisher)
		return tn_py_raise_text(-ENOENT, "this is no cache that publishes its events");
	tn_publish_stats(cache->publisher, &s);
	return Py_BuildValue("{sK,sK,sK,sK,sK,sK,sK}", "events", (unsigned long long)s.events, "unnamed", (unsigned long long)s.unnamed, "batches",
			     (unsigned long long)s.batches, "bytes", (unsigned long long)s.bytes, "gaps", (unsigned long long)s.gaps, "snapshots",
			     (unsigned long long)s.snapshots, "lag_ns", (unsigned long long)s.lag_ns);
}

static PyMethodDef functions[] = {
	{"publish", publish, METH_VARARGS, "publish(cache, spec)\n--\n\nWhat Cache.publish does."},
	{"publish_stats", publish_stats, METH_O, "publish_stats(cache)\n--\n\nevents, unnamed, batches, bytes, gaps, snapshots, lag_ns."},
	{NULL, NULL, 0, NULL},
};

int tn_py_events_add(PyObject *module)
{
	PyType_Spec *const specs[] = {&tree_spec, &subscriber_spec};

	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, specs[i], NULL);

		if (!type || PyModule_AddType(module, type))
			return -1;
		if (specs[i] == &tree_spec)
			tree_type = type;
	}
	return PyModule_AddFunctions(module, functions);
}
