/* SPDX-License-Identifier: Apache-2.0 */
/* _core.PoolShare: a rank's pool as others have to know it, and the lists that move blocks between two of them. */
#include <errno.h>
#include <string.h>

#include "xfer.h"

static PyTypeObject *share_type;

struct pool_share {
	PyObject_HEAD
	struct tn_pool_share share;
	uint64_t *table; /* PyMem_Malloc: the bases, then address and bytes of each range */
};

static struct tn_pool_share *of(PyObject *self)
{
	return &((struct pool_share *)self)->share;
}

/* (address, bytes) of each of a tuple's ranges, behind the bases. Return: 0; -1 with an exception. */
static int ranges_from(PyObject *from, uint64_t *out)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(from); i++) {
		PyObject *tuple = PySequence_Tuple(PyTuple_GetItem(from, i));
		unsigned long long address, bytes;
		bool good = tuple && PyArg_ParseTuple(tuple, "KK;a range is (address, bytes)", &address, &bytes);

		Py_XDECREF(tuple);
		if (!good)
			return -1;
		out[2 * i] = address;
		out[2 * i + 1] = bytes;
	}
	return 0;
}

/* Where pages lie, and in which ranges. Return: 0; -1 with an exception. */
static int place(struct pool_share *self, PyObject *from, PyObject *base, PyObject *strides)
{
	struct tn_pool_share *s = &self->share;
	size_t nbases = 0, nstrides = 0, want = (size_t)s->geometry.layers * s->geometry.nplanes;
	PyObject *ranges = PySequence_Tuple(from); /* a sequence of the caller's own class may have another length when it is asked again */
	Py_ssize_t nranges = ranges ? PyTuple_Size(ranges) : 0;
	uint64_t *bases = !ranges ? NULL : tn_py_u64s(base, "base", &nbases), *steps = bases ? tn_py_u64s(strides, "strides", &nstrides) : NULL;
	int rc = -1;

	if (steps && (nbases != want || nstrides != s->geometry.nplanes)) {
		PyErr_Format(PyExc_ValueError, "%zu offsets and %zu strides: %zu (layers x planes) and %u (planes) are wanted", nbases, nstrides, want,
			     s->geometry.nplanes);
	} else if (steps && nranges > (Py_ssize_t)TN_POOL_RANGES_MAX) {
		PyErr_Format(PyExc_ValueError, "%zd ranges: at most %u", nranges, TN_POOL_RANGES_MAX);
	} else if (steps) {
		self->table = PyMem_Malloc((want + 2 * (size_t)nranges) * sizeof(*self->table));
		if (!self->table)
			PyErr_NoMemory();
		else
			rc = ranges_from(ranges, self->table + want);
	}
	if (rc == 0) {
		memcpy(self->table, bases, want * sizeof(*bases));
		memcpy(s->layout.stride, steps, nstrides * sizeof(*steps));
		s->layout.base = self->table;
		s->range = (const struct tn_pool_range *)(void *)(self->table + want);
		s->nranges = (uint32_t)nranges;
	}
	Py_XDECREF(ranges);
	PyMem_Free(bases);
	PyMem_Free(steps);
	return rc;
}

/* Return: 0; -1 with an exception. */
static int device_from(PyObject *device, struct tn_pool_share *s)
{
	unsigned long number;

	if (device == Py_None)
		return 0;
	number = PyLong_AsUnsignedLong(device);
	if (PyErr_Occurred())
		return -1;
	if (number > UINT32_MAX) {
		PyErr_Format(PyExc_ValueError, "device %lu: at most %u", number, UINT32_MAX);
		return -1;
	}
	s->memory = TN_MEMORY_DEVICE;
	s->device = (uint32_t)number;
	return 0;
}

static PyObject *share_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"geometry", "ranges", "npages", "base", "strides", "tp_size", "tp_rank", "kv_heads", "device", NULL};
	PyObject *geometry, *ranges, *base, *strides, *device = Py_None;
	struct tn_rank_heads rank = {.tp_size = 1};
	unsigned long long npages;
	struct pool_share *self;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!OKOOIII|O", names, tn_py_geometry_type, &geometry, &ranges, &npages, &base, &strides, &rank.tp_size,
					 &rank.tp_rank, &rank.kv_heads, &device))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	self->share = (struct tn_pool_share){.geometry = ((struct tn_py_geometry *)geometry)->g, .rank = rank, .memory = TN_MEMORY_HOST};
	self->share.layout.npages = npages;
	if (device_from(device, &self->share) == 0 && place(self, ranges, base, strides) == 0) {
		rc = tn_pool_share_check(&self->share);
		if (rc == 0)
			return (PyObject *)self;
		tn_py_raise(rc);
	}
	Py_DECREF((PyObject *)self);
	return NULL;
}

static void share_dealloc(PyObject *self)
{
	PyMem_Free(((struct pool_share *)self)->table);
	tn_py_free(self);
}

static PyObject *share_from_bytes(PyObject *type, PyObject *arg)
{
	struct pool_share *self;
	int64_t words;
	Py_buffer view;

	if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE))
		return NULL;
	self = tn_py_new((PyTypeObject *)type);
	words = self ? tn_pool_share_load(view.buf, (size_t)view.len, &self->share, NULL, 0) : 0;
	if (words > 0) {
		self->table = PyMem_Malloc((size_t)words * sizeof(*self->table));
		words = self->table ? tn_pool_share_load(view.buf, (size_t)view.len, &self->share, self->table, (size_t)words) : -ENOMEM;
	}
	PyBuffer_Release(&view);
	if (!self || words > 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return tn_py_raise((long)words);
}

static PyObject *share_to_bytes(PyObject *self, PyObject *nothing)
{
	int64_t n = tn_pool_share_store(of(self), NULL, 0);
	PyObject *out = n < 0 ? tn_py_raise((long)n) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);

	if (out)
		tn_pool_share_store(of(self), PyBytes_AsString(out), (size_t)n);
	return out;
}

static PyObject *get_geometry(PyObject *self, void *arg)
{
	return tn_py_geometry(&of(self)->geometry);
}

static PyObject *get_npages(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(of(self)->layout.npages);
}

static PyObject *get_u32(PyObject *self, void *offset)
{
	uint32_t value;

	memcpy(&value, (const char *)of(self) + (size_t)offset, sizeof(value));
	return PyLong_FromUnsignedLong(value);
}

static PyObject *get_device(PyObject *self, void *arg)
{
	return of(self)->memory == TN_MEMORY_DEVICE ? PyLong_FromUnsignedLong(of(self)->device) : Py_NewRef(Py_None);
}

static PyObject *get_ranges(PyObject *self, void *arg)
{
	const struct tn_pool_share *s = of(self);
	PyObject *out = PyTuple_New((Py_ssize_t)s->nranges);

	for (uint32_t i = 0; out && i < s->nranges; i++)
		if (PyTuple_SetItem(out, i, Py_BuildValue("(KK)", (unsigned long long)s->range[i].address, (unsigned long long)s->range[i].bytes)))
			Py_CLEAR(out);
	return out;
}

/* ---- maps -------------------------------------------------------------------------------------------------------------- */

struct pages {
	uint32_t *mine, *theirs;
	struct tn_pool_pages p;
};

static bool pages_from(PyObject *mine, PyObject *theirs, unsigned long long tokens, struct pages *out)
{
	size_t nmine = 0, ntheirs = 0;

	out->mine = tn_py_u32s(mine, "my pages", &nmine);
	out->theirs = out->mine ? tn_py_u32s(theirs, "their pages", &ntheirs) : NULL;
	if (!out->theirs)
		return false;
	out->p = (struct tn_pool_pages){.mine = out->mine, .theirs = out->theirs, .nmine = (uint32_t)nmine, .ntheirs = (uint32_t)ntheirs, .tokens = tokens};
	return true;
}

static void pages_free(struct pages *pages)
{
	PyMem_Free(pages->mine);
	PyMem_Free(pages->theirs);
}

static PyObject *share_map(PyObject *self, PyObject *args)
{
	PyObject *theirs, *my_pages, *their_pages, *out = NULL;
	struct pages pages = {0};
	unsigned long long tokens;
	int64_t n;

	if (!PyArg_ParseTuple(args, "O!OOK", share_type, &theirs, &my_pages, &their_pages, &tokens))
		return NULL;
	if (pages_from(my_pages, their_pages, tokens, &pages)) {
		n = tn_pool_map(of(self), of(theirs), &pages.p, NULL, 0);
		out = n < 0 ? tn_py_raise((long)n) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n * (Py_ssize_t)sizeof(struct tn_pool_run));
		if (out)
			tn_pool_map(of(self), of(theirs), &pages.p, (struct tn_pool_run *)(void *)PyBytes_AsString(out), (size_t)n);
	}
	pages_free(&pages);
	return out;
}

static PyObject *layout_map(PyObject *module, PyObject *args)
{
	PyObject *mine, *theirs, *my_pages, *their_pages, *local = NULL, *remote = NULL;
	struct pages pages = {0};
	unsigned long long tokens;
	int64_t n = -1;

	if (!PyArg_ParseTuple(args, "O!O!OOK", share_type, &mine, share_type, &theirs, &my_pages, &their_pages, &tokens))
		return NULL;
	if (pages_from(my_pages, their_pages, tokens, &pages)) {
		n = tn_xfer_layout_map(of(mine), of(theirs), &pages.p, NULL, NULL, 0);
		if (n < 0)
			tn_py_raise((long)n);
	}
	if (n >= 0) {
		local = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n * (Py_ssize_t)sizeof(struct tn_xfer_run));
		remote = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n * (Py_ssize_t)sizeof(struct tn_xfer_run));
	}
	if (local && remote)
		n = tn_xfer_layout_map(of(mine), of(theirs), &pages.p, (struct tn_xfer_run *)(void *)PyBytes_AsString(local),
				       (struct tn_xfer_run *)(void *)PyBytes_AsString(remote), (uint32_t)n);
	pages_free(&pages);
	if (local && remote && n >= 0)
		return Py_BuildValue("(NN)", local, remote);
	Py_XDECREF(local);
	Py_XDECREF(remote);
	return PyErr_Occurred() ? NULL : tn_py_raise((long)n);
}

/* ---- the type ---------------------------------------------------------------------------------------------------------- */

#define RANK(name) (void *)(offsetof(struct tn_pool_share, rank) + offsetof(struct tn_rank_heads, name))

static PyGetSetDef share_getset[] = {
	{"geometry", get_geometry, NULL, "of the shard", NULL},
	{"npages", get_npages, NULL, "pages; indices are below", NULL},
	{"ranges", get_ranges, NULL, "(address, bytes) of each range, as their owner has them", NULL},
	{"tp_size", get_u32, NULL, "tensor-parallel ranks", RANK(tp_size)},
	{"tp_rank", get_u32, NULL, "which of them", RANK(tp_rank)},
	{"kv_heads", get_u32, NULL, "KV heads of the whole model", RANK(kv_heads)},
	{"device", get_device, NULL, "that has the memory; None: host memory", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef share_methods[] = {
	{"from_bytes", share_from_bytes, METH_O | METH_CLASS, "from_bytes(data)\n--\n\nThe inverse of to_bytes; everything is checked."},
	{"to_bytes", share_to_bytes, METH_NOARGS, "to_bytes()\n--\n\nFor another process, with version and checksum."},
	{"map", share_map, METH_VARARGS, "map(theirs, my_pages, their_pages, tokens)\n--\n\nRuns of six 64-bit numbers, as struct tn_pool_run has them."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot share_slots[] = {
	{Py_tp_doc, (void *)"PoolShare(geometry, ranges, npages, base, strides, tp_size, tp_rank, kv_heads, device=None)\n--\n\n"
			    "A rank's pool, as others have to know it; tenuto.pool_share makes one of arrays.\n\n"
			    "ranges: (address, bytes) of each; base: by layer x planes + plane, offset of page 0 in bytes through the ranges; strides: by plane,\n"
			    "bytes from one page to the next. Raises InvalidValue with the field and value."},
	{Py_tp_new, (void *)share_new},
	{Py_tp_dealloc, (void *)share_dealloc},
	{Py_tp_getset, share_getset},
	{Py_tp_methods, share_methods},
	{0, NULL},
};

static PyType_Spec share_spec = {
	.name = "tenuto._core.PoolShare",
	.basicsize = sizeof(struct pool_share),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = share_slots,
};

static PyMethodDef functions[] = {
	{"xfer_layout_map", layout_map, METH_VARARGS,
	 "xfer_layout_map(mine, theirs, my_pages, their_pages, tokens)\n--\n\n(local, remote): runs of five 64-bit numbers each, as struct tn_xfer_run has them."},
	{NULL, NULL, 0, NULL},
};

int tn_py_share_add(PyObject *module)
{
	share_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &share_spec, NULL);
	return !share_type || PyModule_AddType(module, share_type) || PyModule_AddFunctions(module, functions) ? -1 : 0;
}
