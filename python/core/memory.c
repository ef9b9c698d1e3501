/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Memory: registered bytes; tenuto.Buffer: bytes that the owner of a cache can map, too. */
#include <errno.h>

#include "binding.h"

/* ---- memories ------------------------------------------------------------------------------------------------------- */

/* (address, bytes) of host memory, or (address, bytes, device). */
static bool range_from(PyObject *from, bool of_device, struct tn_memory_range *out)
{
	PyObject *tuple = PySequence_Tuple(from);
	unsigned long long address = 0, bytes = 0;
	unsigned int device = 0;
	bool good = tuple && (of_device ? PyArg_ParseTuple(tuple, "KKI;a range of a device is (address, bytes, device)", &address, &bytes, &device)
					: PyArg_ParseTuple(tuple, "KK;a range is (address, bytes); of a device a driver is wanted, too", &address, &bytes));

	Py_XDECREF(tuple);
	*out = (struct tn_memory_range){.address = (void *)(uintptr_t)address, .bytes = bytes, .device = device};
	return good;
}

static struct tn_memory_range *ranges_from(PyObject *from, bool of_device, uint32_t *n)
{
	Py_ssize_t count = PySequence_Size(from);
	struct tn_memory_range *out;

	if (count < 0)
		return NULL;
	out = PyMem_Calloc((size_t)count + 1, sizeof(*out));
	if (!out)
		return (struct tn_memory_range *)(void *)PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(from, i);
		bool good = item && range_from(item, of_device, &out[i]);

		Py_XDECREF(item);
		if (!good) {
			PyMem_Free(out);
			return NULL;
		}
	}
	*n = (uint32_t)count;
	return out;
}

static PyObject *views_from(PyObject *from)
{
	PyObject *tuple = PySequence_Tuple(from);

	for (Py_ssize_t i = 0; tuple && i < PyTuple_Size(tuple); i++)
		if (!PyObject_TypeCheck(PyTuple_GetItem(tuple, i), tn_py_view_type)) {
			PyErr_SetString(PyExc_TypeError, "a tuple of View is wanted");
			Py_CLEAR(tuple);
		}
	return tuple;
}

bool tn_py_open_driver(const char *name, const struct tn_device_driver **driver)
{
	int rc;

	Py_BEGIN_ALLOW_THREADS;
	rc = tn_device_driver_open(name, driver);
	Py_END_ALLOW_THREADS;
	if (rc)
		tn_py_raise(rc);
	return rc == 0;
}

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"cache", "ranges", "views", "stage_bytes", "driver", NULL};
	PyObject *cache, *ranges, *views;
	const char *driver = NULL;
	unsigned long long stage_bytes = 0;
	struct tn_py_memory *self;
	struct tn_memory_desc desc;
	int rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OO|Kz", names, tn_py_cache_type, &cache, &ranges, &views, &stage_bytes, &driver))
		return NULL;
	tn_memory_desc_init(&desc);
	desc.kind = driver ? TN_MEMORY_DEVICE : desc.kind;
	if (driver && !tn_py_open_driver(driver, &desc.driver))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	tn_py_link_init(&self->link);
	desc.stage_bytes = stage_bytes;
	self->views = views_from(views);
	self->ranges = PySequence_Tuple(ranges);
	desc.ranges = self->views && self->ranges ? ranges_from(self->ranges, driver, &desc.nranges) : NULL;
	if (desc.ranges && tn_py_enter((struct tn_py_cache *)cache)) {
		self->cache = (struct tn_py_cache *)TN_PY_REF(cache);
		TN_PY_CALL(self->cache, rc = tn_memory_register(self->cache->c, &desc, &self->m));
		if (rc)
			tn_py_raise(rc);
		else
			tn_py_link_add(&self->cache->children[TN_PY_MEMORIES], &self->link);
		self->driver = desc.driver;
	}
	PyMem_Free((void *)(uintptr_t)desc.ranges);
	if (rc == 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

int tn_py_memory_close(struct tn_py_memory *memory)
{
	struct tn_py_cache *cache = memory->cache;
	struct tn_memory *m = memory->m;
	int rc;

	memory->m = NULL;
	tn_py_link_remove(&memory->link);
	if (!m || !tn_py_enter_to_end(cache))
		return 0;
	TN_PY_CALL(cache, rc = tn_memory_unregister(m));
	if (rc == -EBUSY) {
		memory->m = m;
		tn_py_link_add(&cache->children[TN_PY_MEMORIES], &memory->link);
		return rc;
	}
	if (rc == 0)
		Py_CLEAR(memory->views);
	return 0;
}

int tn_py_memory_check(struct tn_py_memory *memory)
{
	Py_ssize_t n;

	if (!memory->m) {
		tn_py_raise_text(-EBADF, "the memory was closed");
		return -1;
	}
	n = PyTuple_Size(memory->views);
	for (Py_ssize_t i = 0; i < n; i++) {
		int moved = tn_py_view_moved((struct tn_py_view *)PyTuple_GetItem(memory->views, i));

		if (moved == 0)
			continue;
		if (moved > 0)
			PyErr_Format(PyExc_BufferError, "array %zd of the memory has moved or was freed since it was registered: register it again", i);
		return -1;
	}
	return 0;
}

static PyObject *memory_close(PyObject *self, PyObject *nothing)
{
	struct tn_py_memory *m = (struct tn_py_memory *)self;
	struct tn_py_link *pools = m->cache ? &m->cache->children[TN_PY_POOLS] : NULL;

	for (struct tn_py_link *l = pools ? pools->next : NULL; m->m && l != pools; l = l->next)
		if (((struct tn_py_pool *)(void *)((char *)l - offsetof(struct tn_py_pool, link)))->memory == m)
			return tn_py_raise_text(-EBUSY, "the memory has pools: close them first");
	if (m->cache && tn_py_memory_close(m))
		return tn_py_raise_text(-EBUSY, "a pool of the memory is not closed yet: its owner does not answer, or a thread is about to close it");
	return Py_NewRef(Py_None);
}

static void memory_dealloc(PyObject *self)
{
	struct tn_py_memory *m = (struct tn_py_memory *)self;

	PyObject_GC_UnTrack(self);
	if (m->cache)
		tn_py_memory_close(m); /* its pools are gone: they hold it */
	Py_XDECREF(m->ranges);
	Py_XDECREF(m->views);
	Py_XDECREF((PyObject *)m->cache);
	tn_py_free(self);
}

static int memory_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct tn_py_memory *m = (struct tn_py_memory *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(m->cache);
	Py_VISIT(m->views);
	return 0;
}

static PyObject *get_ranges(PyObject *self, void *arg)
{
	return Py_NewRef(((struct tn_py_memory *)self)->ranges);
}

static PyGetSetDef memory_getset[] = {
	{"ranges", get_ranges, NULL, "(address, bytes) of each range, of a device (address, bytes, device); offsets in the memory count through them", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef memory_methods[] = {
	{"close", memory_close, METH_NOARGS, "close()\n--\n\nGive the arrays back. Raises Busy while the memory has pools. To close twice is fine."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot memory_slots[] = {
	{Py_tp_doc, (void *)"Memory(cache, ranges, views, stage_bytes=0, driver=None)\n--\n\n"
			    "Bytes that an engine owns, registered; made by Cache.memory.\n\n"
			    "ranges: (address, bytes) of each; views: what keeps them where they are. driver: the name of the plugin that copies memory of devices,\n"
			    "such as \"cuda\"; ranges are then (address, bytes, device), all of one device. Raises NotFound (no such plugin), Denied (one that\n"
			    "others may write), WrongVersion, Error (its device does not start): the text says what to do."},
	{Py_tp_new, (void *)memory_new},
	{Py_tp_dealloc, (void *)memory_dealloc},
	{Py_tp_traverse, (void *)memory_traverse},
	{Py_tp_getset, memory_getset},
	{Py_tp_methods, memory_methods},
	{0, NULL},
};

PyType_Spec tn_py_memory_spec = {
	.name = "tenuto._core.Memory",
	.basicsize = sizeof(struct tn_py_memory),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
	.slots = memory_slots,
};

/* ---- buffers --------------------------------------------------------------------------------------------------------- */

struct buffer {
	PyObject_HEAD
	void *memory;
	Py_ssize_t bytes;
	uint64_t page_bytes;
};

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"bytes", NULL};
	struct buffer *self;
	Py_ssize_t bytes;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "n", names, &bytes))
		return NULL;
	if (bytes < 1)
		return PyErr_Format(PyExc_ValueError, "%zd bytes: at least one is wanted", bytes);
	self = tn_py_new(type);
	if (!self)
		return NULL;
	self->bytes = bytes;
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_memory_alloc((uint64_t)bytes, &self->page_bytes, &self->memory);
	Py_END_ALLOW_THREADS;
	if (rc == 0)
		return (PyObject *)self;
	tn_py_raise(rc);
	Py_DECREF((PyObject *)self);
	return NULL;
}

static void buffer_dealloc(PyObject *self)
{
	tn_memory_free(((struct buffer *)self)->memory);
	tn_py_free(self);
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
	return PyBuffer_FillInfo(view, self, ((struct buffer *)self)->memory, ((struct buffer *)self)->bytes, 0, flags);
}

static PyObject *buffer_page_bytes(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(((struct buffer *)self)->page_bytes);
}

static PyGetSetDef buffer_getset[] = {
	{"page_bytes", buffer_page_bytes, NULL, "bytes of the pages that it is made of", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
	{Py_tp_doc, (void *)"Buffer(bytes)\n--\n\n"
			    "Zeroed memory that the owner of an attached cache can map: loads and saves then move its pages without a copy on the way.\n\n"
			    "It has the buffer protocol: numpy.frombuffer(b, dtype), torch.frombuffer(b, dtype=...). Raises MemoryError, ValueError."},
	{Py_tp_new, (void *)buffer_new},
	{Py_tp_dealloc, (void *)buffer_dealloc},
	{Py_bf_getbuffer, (void *)buffer_get},
	{Py_tp_getset, buffer_getset},
	{0, NULL},
};

PyType_Spec tn_py_buffer_spec = {
	.name = "tenuto.Buffer",
	.basicsize = sizeof(struct buffer),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = buffer_slots,
};
