/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto._core.Heap: a symmetric heap (tenuto/heap.h). Plans and locations are tuples in the order of the members below. */
#include <errno.h>
#include <string.h>
#include <tenuto/heap.h>
#include <unistd.h>

#include "binding.h"

/* @inside: calls under way without the GIL; @views: of its bytes. While there are any, it is not closed. @pid: who has it mapped. */
struct heap {
	PyObject_HEAD
	struct tn_heap *h;
	uint32_t inside, views;
	pid_t pid;
};

struct heap_bytes {
	PyObject_HEAD
	struct heap *heap;
	void *memory;
	Py_ssize_t bytes;
	int readonly;
};

static PyTypeObject *bytes_type;

/* ---- bytes of a heap ---------------------------------------------------------------------------------------------------- */

static void bytes_dealloc(PyObject *self)
{
	struct heap_bytes *b = (struct heap_bytes *)self;

	if (b->heap) {
		b->heap->views--;
		Py_DECREF((PyObject *)b->heap);
	}
	tn_py_free(self);
}

static int bytes_get(PyObject *self, Py_buffer *view, int flags)
{
	struct heap_bytes *b = (struct heap_bytes *)self;

	return PyBuffer_FillInfo(view, self, b->memory, b->bytes, b->readonly, flags);
}

static PyType_Slot bytes_slots[] = {
	{Py_tp_doc, (void *)"Bytes of a heap, with the buffer protocol; made by Heap.view."},
	{Py_tp_dealloc, (void *)bytes_dealloc},
	{Py_bf_getbuffer, (void *)bytes_get},
	{0, NULL},
};

static PyType_Spec bytes_spec = {
	.name = "tenuto._core.HeapBytes",
	.basicsize = sizeof(struct heap_bytes),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = bytes_slots,
};

/* ---- calls -------------------------------------------------------------------------------------------------------------- */

/* Before a call. A forked child does not have the heap's memory. */
static struct tn_heap *enter(struct heap *self)
{
	if (!self->h)
		return (struct tn_heap *)(void *)tn_py_raise_text(-EBADF, "the heap was closed");
	if (self->pid != getpid())
		return (struct tn_heap *)(void *)tn_py_raise_text(-ECHILD, "the process was forked from the one that has the heap: join as another rank");
	self->inside++;
	return self->h;
}

#define HEAP_CALL(self, expression)       \
	do {                              \
		Py_BEGIN_ALLOW_THREADS;   \
		expression;               \
		Py_END_ALLOW_THREADS;     \
		(self)->inside--;         \
	} while (0)

static PyObject *plan_tuple(const struct tn_heap_plan *p)
{
	PyObject *copies = PyTuple_New(p->copies), *one;

	for (uint32_t i = 0; copies && i < p->copies; i++) {
		one = Py_BuildValue("IKKI", p->copy[i].rank, (unsigned long long)p->copy[i].header_off, (unsigned long long)p->copy[i].payload_base,
				    p->copy[i].epoch);
		if (!one || PyTuple_SetItem(copies, (Py_ssize_t)i, one))
			Py_CLEAR(copies);
	}
	if (!copies)
		return NULL;
	return Py_BuildValue("KIKKIIKIN", (unsigned long long)p->key_hash, p->dst_rank, (unsigned long long)p->header_off,
			     (unsigned long long)p->payload_base, p->page_bytes, p->n_pages, (unsigned long long)p->bytes_total, p->epoch, copies);
}

static PyObject *meta_tuple(const struct tn_heap_meta *m)
{
	return Py_BuildValue("KIKKKIII", (unsigned long long)m->key_hash, m->owner_rank, (unsigned long long)m->header_off,
			     (unsigned long long)m->payload_off, (unsigned long long)m->bytes_total, m->page_bytes, m->n_pages, m->epoch);
}

static int copies_from(PyObject *tuples, struct tn_heap_plan *p)
{
	unsigned long long header, payload;
	Py_ssize_t n = PyTuple_Size(tuples);

	if (n < 0)
		return -1;
	if (n >= (Py_ssize_t)TN_HEAP_REPLICAS_MAX) {
		PyErr_Format(PyExc_ValueError, "a plan with %zd copies: %u at most", n, TN_HEAP_REPLICAS_MAX - 1);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		struct tn_heap_copy *c = &p->copy[i];

		if (!PyArg_ParseTuple(PyTuple_GetItem(tuples, i), "IKKI;a copy of a WritePlan is wanted", &c->rank, &header, &payload, &c->epoch))
			return -1;
		c->header_off = header;
		c->payload_base = payload;
	}
	p->copies = (uint32_t)n;
	return 0;
}

static int plan_from(PyObject *tuple, struct tn_heap_plan *p)
{
	unsigned long long hash, header, payload, total;
	PyObject *copies;

	*p = (struct tn_heap_plan){0};
	if (!PyArg_ParseTuple(tuple, "KIKKIIKIO!;a WritePlan is wanted", &hash, &p->dst_rank, &header, &payload, &p->page_bytes, &p->n_pages, &total,
			      &p->epoch, &PyTuple_Type, &copies))
		return -1;
	p->key_hash = hash;
	p->header_off = header;
	p->payload_base = payload;
	p->bytes_total = total;
	return copies_from(copies, p);
}

static int meta_from(PyObject *tuple, struct tn_heap_meta *m)
{
	unsigned long long hash, header, payload, total;

	if (!PyArg_ParseTuple(tuple, "KIKKKIII;an ObjMeta is wanted", &hash, &m->owner_rank, &header, &payload, &total, &m->page_bytes, &m->n_pages,
			      &m->epoch))
		return -1;
	m->key_hash = hash;
	m->header_off = header;
	m->payload_off = payload;
	m->bytes_total = total;
	return 0;
}

/* The bytes of an array whose elements follow each other. NULL with an exception. */
static struct tn_py_view *flat(PyObject *array, bool writable, uint64_t *bytes)
{
	struct tn_py_view *v = (struct tn_py_view *)tn_py_view_of(array, writable);
	Py_ssize_t step;

	if (!v)
		return NULL;
	if (v->device >= 0) {
		PyErr_Format(PyExc_ValueError, "the array lies in the memory of device %d: the heap takes host memory, copy it there first", v->device);
		Py_DECREF((PyObject *)v);
		return NULL;
	}
	step = v->itemsize;
	for (int i = v->ndim; i-- > 0;) {
		if (v->shape[i] > 1 && v->strides[i] != step) {
			Py_DECREF((PyObject *)v);
			PyErr_SetString(PyExc_ValueError, "the array's elements do not follow each other: make it contiguous");
			return NULL;
		}
		step *= v->shape[i];
	}
	*bytes = (uint64_t)step;
	return v;
}

static PyObject *done(int rc)
{
	if (rc < 0)
		return tn_py_raise(rc);
	Py_RETURN_NONE;
}

static PyObject *heap_open(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap_plan plan;
	struct tn_heap *h;
	Py_ssize_t n;
	const char *key;
	unsigned long long bytes;
	unsigned owner, flags;
	int rc;

	if (!PyArg_ParseTuple(args, "y#KII", &key, &n, &bytes, &owner, &flags) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_open_for_write(h, key, (size_t)n, bytes, owner, flags, &plan));
	return rc ? tn_py_raise(rc) : plan_tuple(&plan);
}

static PyObject *end_plan(PyObject *object, PyObject *tuple, int (*end)(struct tn_heap *, const struct tn_heap_plan *))
{
	struct heap *self = (struct heap *)object;
	struct tn_heap_plan plan;
	struct tn_heap *h;
	int rc;

	if (plan_from(tuple, &plan) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = end(h, &plan));
	return done(rc);
}

static PyObject *heap_commit(PyObject *object, PyObject *tuple)
{
	return end_plan(object, tuple, tn_heap_commit);
}

static PyObject *heap_abandon(PyObject *object, PyObject *tuple)
{
	return end_plan(object, tuple, tn_heap_abandon);
}

static PyObject *heap_put(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	struct tn_py_view *view;
	struct tn_heap *h;
	PyObject *array;
	Py_ssize_t n;
	const char *key;
	uint64_t bytes;
	unsigned owner, flags;
	int rc;

	if (!PyArg_ParseTuple(args, "y#OII", &key, &n, &array, &owner, &flags) || !(view = flat(array, false, &bytes)))
		return NULL;
	h = enter(self);
	if (h)
		HEAP_CALL(self, rc = tn_heap_put(h, key, (size_t)n, view->pointer, bytes, owner, flags));
	Py_DECREF((PyObject *)view);
	return h ? done(rc) : NULL;
}

static PyObject *heap_get(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	struct tn_py_view *view;
	uint64_t bytes, found = 0;
	struct tn_heap *h;
	PyObject *array;
	Py_ssize_t n;
	const char *key;
	int rc;

	if (!PyArg_ParseTuple(args, "y#O", &key, &n, &array) || !(view = flat(array, true, &bytes)))
		return NULL;
	h = enter(self);
	if (h)
		HEAP_CALL(self, rc = tn_heap_get(h, key, (size_t)n, view->pointer, bytes, &found));
	Py_DECREF((PyObject *)view);
	return !h ? NULL : rc ? tn_py_raise(rc) : PyLong_FromUnsignedLongLong(found);
}

static PyObject *locate(PyObject *object, PyObject *args, int (*call)(struct tn_heap *, const void *, size_t, struct tn_heap_meta *))
{
	struct heap *self = (struct heap *)object;
	struct tn_heap_meta meta;
	struct tn_heap *h;
	Py_ssize_t n;
	const char *key;
	int rc;

	if (!PyArg_ParseTuple(args, "y#", &key, &n) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = call(h, key, (size_t)n, &meta));
	return rc ? tn_py_raise(rc) : meta_tuple(&meta);
}

static PyObject *heap_location(PyObject *object, PyObject *args)
{
	return locate(object, args, tn_heap_get_location);
}

static PyObject *heap_hold(PyObject *object, PyObject *args)
{
	return locate(object, args, tn_heap_hold);
}

static PyObject *heap_release(PyObject *object, PyObject *tuple)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap_meta meta;
	struct tn_heap *h;
	int rc;

	if (meta_from(tuple, &meta) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_release(h, &meta));
	return done(rc);
}

static PyObject *heap_name(PyObject *nothing, PyObject *args)
{
	struct tn_heap_name name;
	Py_ssize_t n;
	const char *key;
	int rc;

	if (!PyArg_ParseTuple(args, "y#", &key, &n))
		return NULL;
	rc = tn_heap_name_of(key, (size_t)n, &name);
	return rc ? tn_py_raise(rc)
		  : Py_BuildValue("KKK", (unsigned long long)name.hash, (unsigned long long)name.digest[0], (unsigned long long)name.digest[1]);
}

static PyObject *heap_remove(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap *h;
	Py_ssize_t n;
	const char *key;
	int rc;

	if (!PyArg_ParseTuple(args, "y#", &key, &n) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_remove(h, key, (size_t)n));
	return done(rc);
}

static PyObject *heap_evict(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap *h;
	unsigned percent;
	int rc;

	if (!PyArg_ParseTuple(args, "I", &percent) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_evict_until_below(h, percent));
	return rc < 0 ? tn_py_raise(rc) : PyLong_FromLong(rc);
}

static PyObject *heap_take_over(PyObject *object, PyObject *nothing)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap *h = enter(self);
	int rc;

	if (!h)
		return NULL;
	HEAP_CALL(self, rc = tn_heap_take_over(h));
	return done(rc);
}

static PyObject *heap_token(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	unsigned long long read, write;
	struct tn_heap_token token;
	struct tn_heap *h;
	unsigned rank;
	int rc;

	if (!PyArg_ParseTuple(args, "IKK", &rank, &read, &write) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_token_make(h, rank, read, write, &token));
	return rc ? tn_py_raise(rc) : Py_BuildValue("KK", (unsigned long long)token.word[0], (unsigned long long)token.word[1]);
}

static const struct {
	const char *name;
	size_t offset;
} counters[] = {
	{"heap_used", offsetof(struct tn_heap_stats, heap_used)},   {"heap_total", offsetof(struct tn_heap_stats, heap_total)},
	{"ready_count", offsetof(struct tn_heap_stats, ready_count)}, {"leases", offsetof(struct tn_heap_stats, leases)},
	{"evictions", offsetof(struct tn_heap_stats, evictions)},   {"reclaims", offsetof(struct tn_heap_stats, reclaims)},
	{"oom", offsetof(struct tn_heap_stats, oom)},		    {"ann_ring_depth", offsetof(struct tn_heap_stats, ann_ring_depth)},
	{"bytes_tx", offsetof(struct tn_heap_stats, bytes_tx)},	    {"bytes_rx", offsetof(struct tn_heap_stats, bytes_rx)},
	{"failures", offsetof(struct tn_heap_stats, failures)},	    {"timeouts", offsetof(struct tn_heap_stats, timeouts)},
	{"cas_failures", offsetof(struct tn_heap_stats, cas_failures)},
	{"unverified_reads", offsetof(struct tn_heap_stats, unverified_reads)},
	{"pages", offsetof(struct tn_heap_stats, pages)},	    {"page_time_ns", offsetof(struct tn_heap_stats, page_time_ns)},
};

static PyObject *heap_stats(PyObject *object, PyObject *args)
{
	struct tn_heap_stats st = {.size = sizeof(st)};
	struct heap *self = (struct heap *)object;
	struct tn_heap *h;
	PyObject *out;
	unsigned rank;
	int rc;

	if (!PyArg_ParseTuple(args, "I", &rank) || !(h = enter(self)))
		return NULL;
	HEAP_CALL(self, rc = tn_heap_stats_get(h, rank, &st));
	if (rc)
		return tn_py_raise(rc);
	out = PyDict_New();
	for (size_t i = 0; out && i < sizeof(counters) / sizeof(counters[0]); i++) {
		uint64_t value;

		memcpy(&value, (char *)&st + counters[i].offset, sizeof(value));
		if (tn_py_set(out, counters[i].name, PyLong_FromUnsignedLongLong(value)))
			Py_CLEAR(out);
	}
	return out;
}

static void *address_of(struct heap *self, unsigned rank, unsigned long long offset)
{
	struct tn_heap *h = enter(self);
	void *p;

	if (!h)
		return NULL;
	p = tn_heap_ptr(h, rank, offset);
	self->inside--;
	if (!p)
		PyErr_Format(PyExc_ValueError, "rank %u, offset %llu: there is no such memory", rank, offset);
	return p;
}

static PyObject *heap_write_rights(PyObject *object, PyObject *nothing)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap *h = enter(self);
	uint64_t rights;

	if (!h)
		return NULL;
	rights = tn_heap_write_rights(h);
	self->inside--;
	return PyLong_FromUnsignedLongLong(rights);
}

static PyObject *heap_address(PyObject *object, PyObject *args)
{
	unsigned long long offset;
	unsigned rank;
	void *p;

	if (!PyArg_ParseTuple(args, "IK", &rank, &offset) || !(p = address_of((struct heap *)object, rank, offset)))
		return NULL;
	return PyLong_FromVoidPtr(p);
}

static PyObject *heap_view(PyObject *object, PyObject *args)
{
	struct heap *self = (struct heap *)object;
	unsigned long long offset;
	struct heap_bytes *b;
	Py_ssize_t bytes;
	int readonly;
	unsigned rank;
	void *p;

	if (!PyArg_ParseTuple(args, "IKnp", &rank, &offset, &bytes, &readonly) || !(p = address_of(self, rank, offset)))
		return NULL;
	if (bytes < 1 || !address_of(self, rank, offset + (unsigned long long)bytes - 1))
		return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "%zd bytes: at least one is wanted", bytes);
	b = tn_py_new(bytes_type);
	if (!b)
		return NULL;
	b->heap = (struct heap *)TN_PY_REF(self);
	self->views++;
	b->memory = p;
	b->bytes = bytes;
	b->readonly = readonly;
	return (PyObject *)b;
}

/* ---- beginning and end -------------------------------------------------------------------------------------------------- */

static const struct tn_py_field fields[] = {
	{"heap_bytes", TN_PY_U64, offsetof(struct tn_heap_opts, heap_bytes)},
	{"page_bytes", TN_PY_U32, offsetof(struct tn_heap_opts, page_bytes)},
	{"master_rank", TN_PY_U32, offsetof(struct tn_heap_opts, master_rank)},
	{"reclaim_ns", TN_PY_U64, offsetof(struct tn_heap_opts, reclaim_ns)},
	{"need_tokens", TN_PY_U32, offsetof(struct tn_heap_opts, need_tokens)},
	{"token_low", TN_PY_U64, offsetof(struct tn_heap_opts, token.word[0])},
	{"token_high", TN_PY_U64, offsetof(struct tn_heap_opts, token.word[1])},
	{NULL, 0, 0},
};

static PyObject *heap_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_heap_opts o;
	struct tn_heap *h;
	struct heap *self;
	Py_ssize_t found = 0;
	unsigned ranks, rank;
	const char *name;
	int rc;

	tn_heap_opts_init(&o);
	if (!PyArg_ParseTuple(args, "sII", &name, &ranks, &rank) || tn_py_fields(kw, fields, &o, &found))
		return NULL;
	if (kw && found != PyDict_Size(kw))
		return PyErr_Format(PyExc_TypeError, "Heap takes heap_bytes, page_bytes, master_rank, reclaim_ns, need_tokens, token_low and token_high");
	self = tn_py_new(type);
	if (!self)
		return NULL;
	self->pid = getpid();
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_heap_create(name, ranks, rank, &o, &h);
	Py_END_ALLOW_THREADS;
	if (rc) {
		Py_DECREF((PyObject *)self);
		return tn_py_raise(rc);
	}
	self->h = h;
	return (PyObject *)self;
}

static PyObject *heap_close(PyObject *object, PyObject *nothing)
{
	struct heap *self = (struct heap *)object;
	struct tn_heap *h = self->h;

	if (self->inside || self->views)
		return tn_py_raise_text(-EBUSY, "the heap is in use: by a call of another thread, or by an array over its memory, which must go first");
	self->h = NULL;
	Py_BEGIN_ALLOW_THREADS;
	tn_heap_destroy(h);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static void heap_dealloc(PyObject *object)
{
	tn_heap_destroy(((struct heap *)object)->h);
	tn_py_free(object);
}

static PyMethodDef methods[] = {
	{"open_for_write", heap_open, METH_VARARGS, "open_for_write(key, bytes_total, owner, flags)\n--\n\nA plan: a tuple as WritePlan."},
	{"commit", heap_commit, METH_O, "commit(plan)\n--\n\nThe object is READY."},
	{"abandon", heap_abandon, METH_O, "abandon(plan)\n--\n\nThe plan ends."},
	{"put", heap_put, METH_VARARGS, "put(key, array, owner, flags)\n--\n\nOpen, copy, commit."},
	{"get", heap_get, METH_VARARGS, "get(key, into)\n--\n\nCopies an object. Returns its bytes' number."},
	{"location", heap_location, METH_VARARGS, "location(key)\n--\n\nA tuple as ObjMeta."},
	{"hold", heap_hold, METH_VARARGS, "hold(key)\n--\n\nlocation, with a lease until release."},
	{"release", heap_release, METH_O, "release(meta)\n--\n\nThe lease ends."},
	{"name", heap_name, METH_VARARGS | METH_STATIC, "name(key)\n--\n\nWhat a header says of a key: hash, and digest in two words."},
	{"remove", heap_remove, METH_VARARGS, "remove(key)\n--\n\nThe object goes."},
	{"evict", heap_evict, METH_VARARGS, "evict(percent)\n--\n\nObjects that were evicted."},
	{"take_over", heap_take_over, METH_NOARGS, "take_over()\n--\n\nThis rank becomes the master."},
	{"token", heap_token, METH_VARARGS, "token(rank, read, write)\n--\n\nTwo words that let a process join as a rank; bits of ranks that it may read and write."},
	{"stats", heap_stats, METH_VARARGS, "stats(rank)\n--\n\nCounters by name."},
	{"write_rights", heap_write_rights, METH_NOARGS, "write_rights()\n--\n\nBits of the ranks that this one may write into the heaps of."},
	{"address", heap_address, METH_VARARGS, "address(rank, offset)\n--\n\nIn this process."},
	{"view", heap_view, METH_VARARGS, "view(rank, offset, bytes, readonly)\n--\n\nBytes with the buffer protocol."},
	{"close", heap_close, METH_NOARGS, "close()\n--\n\nLeaves the heap. Raises Busy while it is in use."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"Heap(name, ranks, rank, *, heap_bytes, page_bytes, master_rank, reclaim_ns, need_tokens, token_low, token_high)\n--\n\nA symmetric heap: tenuto.heap is made of it."},
	{Py_tp_new, (void *)heap_new},
	{Py_tp_dealloc, (void *)heap_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

static PyType_Spec heap_spec = {
	.name = "tenuto._core.Heap",
	.basicsize = sizeof(struct heap),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};

int tn_py_heap_add(PyObject *module)
{
	PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &heap_spec, NULL);
	int rc = type ? PyModule_AddType(module, type) : -1;

	Py_XDECREF((PyObject *)type);
	bytes_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &bytes_spec, NULL);
	return rc || !bytes_type ? -1 : 0;
}
