/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Pool: where the pages of blocks of one geometry lie in a memory; tenuto.Event: a word that an engine raises. */
#include <errno.h>

#include "binding.h"
#include "objects.h"

/* ---- pools ------------------------------------------------------------------------------------------------------------ */

uint64_t *tn_py_layout(const struct tn_geometry *g, PyObject *base, PyObject *strides, const struct tn_pool_shape *shape, struct tn_pool_layout *out)
{
	size_t n, want = (size_t)g->layers * g->nplanes, nstrides;
	uint64_t *offsets, *steps;
	int rc;

	out->npages = shape->npages;
	if (base == Py_None) {
		offsets = PyMem_Malloc(want * sizeof(*offsets));
		rc = offsets ? tn_layout_fill(g, shape, NULL, offsets, out) : 0;
		if (!offsets || rc == 0)
			return offsets ? offsets : (uint64_t *)(void *)PyErr_NoMemory();
		PyMem_Free(offsets);
		return (uint64_t *)(void *)tn_py_raise(rc);
	}
	offsets = tn_py_u64s(base, "base", &n);
	steps = offsets ? tn_py_u64s(strides, "strides", &nstrides) : NULL;
	if (steps && (n != want || nstrides != g->nplanes))
		PyErr_Format(PyExc_ValueError, "%zu offsets and %zu strides: %zu (layers x planes) and %u (planes) are wanted", n, nstrides, want, g->nplanes);
	if (steps && !PyErr_Occurred()) {
		for (uint32_t p = 0; p < g->nplanes; p++)
			out->stride[p] = steps[p];
		out->base = offsets;
	} else {
		PyMem_Free(offsets);
		offsets = NULL;
	}
	PyMem_Free(steps);
	return offsets;
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"memory", "geometry", "npages", "base", "strides", "order", "alignment", NULL};
	PyObject *memory, *geometry, *base = Py_None, *strides = Py_None;
	struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .alignment = 1};
	struct tn_pool_layout layout = {0};
	unsigned long long npages;
	struct tn_py_pool *self;
	uint64_t *offsets;
	int rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!O!K|OO$II", names, tn_py_memory_type, &memory, tn_py_geometry_type, &geometry, &npages, &base, &strides,
					 &shape.order, &shape.alignment))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	tn_py_link_init(&self->link);
	self->memory = (struct tn_py_memory *)Py_NewRef(memory);
	self->geometry = ((struct tn_py_geometry *)geometry)->g;
	self->npages = shape.npages = npages;
	offsets = tn_py_memory_check(self->memory) ? NULL : tn_py_layout(&self->geometry, base, strides, &shape, &layout);
	if (offsets && tn_py_enter(self->memory->cache)) {
		TN_PY_CALL(self->memory->cache, rc = tn_pool_create(self->memory->m, &self->geometry, &layout, &self->p));
		if (rc)
			tn_py_raise(rc);
		else
			tn_py_link_add(&self->memory->cache->children[TN_PY_POOLS], &self->link);
	}
	PyMem_Free(offsets);
	if (rc == 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

int tn_py_pool_close(struct tn_py_pool *pool)
{
	struct tn_py_cache *cache = pool->memory->cache;
	struct tn_pool *p = pool->p;
	int rc = 0;

	pool->p = NULL;
	tn_py_link_remove(&pool->link);
	if (p && tn_py_enter_to_end(cache))
		TN_PY_CALL(cache, rc = tn_py_pool_end(p));
	if (rc == -EBUSY || rc == -ETIMEDOUT) {
		pool->p = p;
		tn_py_link_add(&cache->children[TN_PY_POOLS], &pool->link);
		return rc;
	}
	if (pool->left)
		Py_DECREF((PyObject *)pool); /* whoever closes it holds it, too */
	pool->left = false;
	return 0;
}

static PyObject *pool_close(PyObject *self, PyObject *nothing)
{
	struct tn_py_pool *pool = (struct tn_py_pool *)self;
	struct tn_py_cache *cache = pool->memory->cache;
	struct tn_pool *p = pool->p;
	int rc;

	if (!p || !tn_py_enter(cache))
		return p ? NULL : Py_NewRef(Py_None);
	pool->p = NULL; /* nobody else's meanwhile */
	TN_PY_CALL(cache, rc = tn_pool_destroy(p));
	tn_py_link_remove(&pool->link);
	if (rc == 0)
		return Py_NewRef(Py_None);
	pool->p = p;
	tn_py_link_add(&cache->children[TN_PY_POOLS], &pool->link);
	return tn_py_raise(rc);
}

/* The object goes, its pool cannot: another object has it from now on, until the cache is closed, and keeps the memory and the arrays. */
static void leave(struct tn_py_pool *pool)
{
	struct tn_py_cache *cache = pool->memory->cache;
	struct tn_py_pool *other;

	tn_py_link_remove(&pool->link);
	other = tn_py_new(tn_py_pool_type);
	if (other) {
		other->p = pool->p;
		other->memory = pool->memory;
		other->left = true;
		tn_py_link_add(&cache->children[TN_PY_POOLS], &other->link);
	} else {
		PyErr_Clear();
		cache->stuck = true;
	}
	pool->memory = NULL; /* without the other one it is held for good */
}

static void pool_dealloc(PyObject *self)
{
	struct tn_py_pool *pool = (struct tn_py_pool *)self;
	PyObject *type, *value, *trace;

	PyObject_GC_UnTrack(self);
	PyErr_Fetch(&type, &value, &trace); /* of whoever drops it */
	if (pool->memory && pool->p && tn_py_pool_close(pool))
		leave(pool);
	PyErr_Restore(type, value, trace);
	Py_XDECREF((PyObject *)pool->memory);
	tn_py_free(self);
}

static int pool_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct tn_py_pool *)self)->memory);
	return 0;
}

static PyObject *get_geometry(PyObject *self, void *arg)
{
	return tn_py_geometry(&((struct tn_py_pool *)self)->geometry);
}

static PyObject *get_npages(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(((struct tn_py_pool *)self)->npages);
}

static PyObject *get_memory(PyObject *self, void *arg)
{
	return TN_PY_REF(((struct tn_py_pool *)self)->memory);
}

static PyGetSetDef pool_getset[] = {
	{"geometry", get_geometry, NULL, "of its blocks", NULL},
	{"npages", get_npages, NULL, "pages; indices are below", NULL},
	{"memory", get_memory, NULL, "that it lies in", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef pool_methods[] = {
	{"close", pool_close, METH_NOARGS,
	 "close()\n--\n\nForget the layout. Raises Busy while loads or saves use it, Timeout if the owner does not answer: call again. To close twice is fine."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
	{Py_tp_doc, (void *)"Pool(memory, geometry, npages, base=None, strides=None, *, order=POOL_CROSS_LAYER, alignment=1)\n--\n\n"
			    "Where the pages of blocks of one geometry lie in a memory; made by Cache.pool or Memory.pool.\n\n"
			    "base: by layer x planes + plane, offset of page 0 in bytes through the memory's ranges; strides: by plane, bytes from one page to\n"
			    "the next. Without them the order that an engine uses, from the memory's first byte on. Raises InvalidValue."},
	{Py_tp_new, (void *)pool_new},
	{Py_tp_dealloc, (void *)pool_dealloc},
	{Py_tp_traverse, (void *)pool_traverse},
	{Py_tp_getset, pool_getset},
	{Py_tp_methods, pool_methods},
	{0, NULL},
};

PyType_Spec tn_py_pool_spec = {
	.name = "tenuto.Pool",
	.basicsize = sizeof(struct tn_py_pool),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = pool_slots,
};

/* ---- streams ------------------------------------------------------------------------------------------------------------ */

const struct tn_device_driver *tn_py_word_driver(const struct tn_py_pool *pool)
{
	const struct tn_device_driver *driver = pool->memory->driver;

	if (driver && driver->ops->word_wait && driver->ops->word_write)
		return driver;
	tn_py_raise_text(-ENOTSUP, driver ? "streams of this driver wait for no words: wait for layers on the host (Load.wait), and raise events there" :
					    "the pool is in host memory: a stream waits for layers of pools in the memory of its device");
	return NULL;
}

bool tn_py_stream(PyObject *from, void **stream)
{
	*stream = PyLong_AsVoidPtr(from);
	return !PyErr_Occurred();
}

/* ---- events ------------------------------------------------------------------------------------------------------------- */

static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"cache", NULL};
	struct tn_py_event *self;
	PyObject *cache;
	int rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!", names, tn_py_cache_type, &cache))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	tn_py_link_init(&self->link);
	if (tn_py_enter((struct tn_py_cache *)cache)) {
		self->cache = (struct tn_py_cache *)TN_PY_REF(cache);
		rc = tn_event_create(self->cache->c, &self->e);
		tn_py_leave(self->cache);
		if (rc)
			tn_py_raise(rc);
		else
			tn_py_link_add(&self->cache->children[TN_PY_EVENTS], &self->link);
	}
	if (rc == 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

void tn_py_event_close(struct tn_py_event *event)
{
	struct tn_event *e = event->e;

	event->e = NULL;
	tn_py_link_remove(&event->link);
	if (e && event->cache->c)
		tn_event_destroy(e);
}

static void event_dealloc(PyObject *self)
{
	struct tn_py_event *event = (struct tn_py_event *)self;

	PyObject_GC_UnTrack(self);
	if (event->cache)
		tn_py_event_close(event);
	Py_XDECREF((PyObject *)event->cache);
	tn_py_free(self);
}

static int event_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct tn_py_event *)self)->cache);
	return 0;
}

static PyObject *event_raise(PyObject *self, PyObject *arg)
{
	struct tn_py_event *event = (struct tn_py_event *)self;
	unsigned long long value = PyLong_AsUnsignedLongLong(arg);
	int rc;

	if (PyErr_Occurred())
		return NULL;
	if (!event->e)
		return tn_py_raise_text(-EBADF, "the event was closed");
	rc = tn_event_raise(event->e, value);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *event_stream_raise(PyObject *self, PyObject *args)
{
	struct tn_py_event *event = (struct tn_py_event *)self;
	const struct tn_device_driver *driver;
	unsigned long long value;
	PyObject *pool, *number;
	uint64_t *word;
	void *stream;
	int rc;

	if (!PyArg_ParseTuple(args, "O!OK", tn_py_pool_type, &pool, &number, &value) || !tn_py_stream(number, &stream))
		return NULL;
	driver = tn_py_word_driver((struct tn_py_pool *)pool);
	if (!driver || !tn_py_enter(event->cache))
		return NULL;
	word = event->e ? tn_event_address(event->e) : NULL;
	rc = -EBADF;
	if (word)
		TN_PY_CALL(event->cache, rc = driver->ops->word_write(driver, stream, word, value));
	else
		tn_py_leave(event->cache);
	return rc ? tn_py_raise_text(rc, word ? "the driver's stream does not take the write of a word" : "the event was closed") : Py_NewRef(Py_None);
}

static PyObject *event_address(PyObject *self, void *arg)
{
	struct tn_py_event *event = (struct tn_py_event *)self;

	return event->e ? PyLong_FromVoidPtr(tn_event_address(event->e)) : tn_py_raise_text(-EBADF, "the event was closed");
}

static PyMethodDef event_methods[] = {
	{"raise_to", event_raise, METH_O, "raise_to(value)\n--\n\nThe word has at least this value from now on."},
	{"stream_raise", event_stream_raise, METH_VARARGS,
	 "stream_raise(pool, stream, value)\n--\n\nThe stream raises the word to the value when it gets there: what it was asked for before is done then. stream: a number, "
	 "as torch.cuda.Stream.cuda_stream, of the device that the pool is in. Nobody else raises the event."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef event_getset[] = {
	{"address", event_address, NULL, "of the 64-bit word, for a device that writes it", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot event_slots[] = {
	{Py_tp_doc, (void *)"Event(cache)\n--\n\n"
			    "A 64-bit word, 0 at first and only rising, that says when bytes of a save are final (Save.layer). Raises Again: 1,024 are in use."},
	{Py_tp_new, (void *)event_new},
	{Py_tp_dealloc, (void *)event_dealloc},
	{Py_tp_traverse, (void *)event_traverse},
	{Py_tp_methods, event_methods},
	{Py_tp_getset, event_getset},
	{0, NULL},
};

PyType_Spec tn_py_event_spec = {
	.name = "tenuto.Event",
	.basicsize = sizeof(struct tn_py_event),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = event_slots,
};
