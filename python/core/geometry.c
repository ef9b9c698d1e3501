/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Geometry: the shape of the KV cache of one shard and group, and how shards are cut anew. */
#include <string.h>

#include "binding.h"

static struct tn_geometry *of(PyObject *self)
{
	return &((struct tn_py_geometry *)self)->g;
}

PyObject *tn_py_geometry(const struct tn_geometry *g)
{
	struct tn_py_geometry *self = tn_py_new(tn_py_geometry_type);

	if (self)
		self->g = *g;
	return (PyObject *)self;
}

static bool planes_from(PyObject *planes, struct tn_geometry *g)
{
	Py_ssize_t n = PySequence_Size(planes);

	if (n < 0)
		return false;
	if (n < 1 || n > TN_PLANES_MAX) {
		PyErr_Format(PyExc_ValueError, "%zd planes: 1 to %d are wanted", n, TN_PLANES_MAX);
		return false;
	}
	g->nplanes = (uint32_t)n;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = PySequence_GetItem(planes, i), *tuple = item ? PySequence_Tuple(item) : NULL;
		struct tn_plane *p = &g->planes[i];
		bool good = tuple && PyArg_ParseTuple(tuple, "IIII;a plane is (kind, heads, head_dim, elem_bits)", &p->kind, &p->heads, &p->head_dim,
						      &p->elem_bits);

		Py_XDECREF(tuple);
		Py_XDECREF(item);
		if (!good)
			return false;
	}
	return true;
}

static PyObject *geometry_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"layers", "planes", "page_tokens", "pages_per_block", "page_order", NULL};
	struct tn_geometry g = {.page_tokens = 16, .page_order = TN_PAGE_NHD};
	struct tn_py_geometry *self;
	PyObject *planes;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "IO|III", names, &g.layers, &planes, &g.page_tokens, &g.pages_per_block, &g.page_order))
		return NULL;
	if (!planes_from(planes, &g))
		return NULL;
	if (g.pages_per_block == 0)
		g.pages_per_block = tn_geometry_default_pages(&g);
	rc = g.pages_per_block == 0 ? tn_error_last()->code : tn_geometry_check(&g);
	if (rc)
		return tn_py_raise(rc);
	self = tn_py_new(type);
	if (self)
		self->g = g;
	return (PyObject *)self;
}

static PyObject *raw(PyObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"layers", "object_bytes", NULL};
	unsigned long long bytes;
	struct tn_geometry g;
	unsigned layers;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "IK", names, &layers, &bytes))
		return NULL;
	rc = tn_geometry_raw(layers, bytes, &g);
	return rc ? tn_py_raise(rc) : tn_py_geometry(&g);
}

static PyObject *from_bytes(PyObject *type, PyObject *arg)
{
	struct tn_geometry g;
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE))
		return NULL;
	rc = tn_geometry_load(view.buf, (size_t)view.len, &g);
	PyBuffer_Release(&view);
	return rc < 0 ? tn_py_raise(rc) : tn_py_geometry(&g);
}

static PyObject *to_bytes(PyObject *self, PyObject *nothing)
{
	char bytes[TN_GEOMETRY_BYTES];
	int rc = tn_geometry_store(of(self), bytes, sizeof(bytes));

	return rc < 0 ? tn_py_raise(rc) : PyBytes_FromStringAndSize(bytes, rc);
}

static PyObject *page_bytes(PyObject *self, PyObject *arg)
{
	unsigned long plane = PyLong_AsUnsignedLong(arg);

	if (PyErr_Occurred())
		return NULL;
	if (plane >= of(self)->nplanes)
		return PyErr_Format(PyExc_IndexError, "plane %lu of %u", plane, of(self)->nplanes);
	return PyLong_FromUnsignedLong(tn_geometry_page_bytes(of(self), (uint32_t)plane));
}

static PyObject *resliced(PyObject *self, PyObject *args)
{
	unsigned from, to;
	struct tn_geometry g;
	int rc;

	if (!PyArg_ParseTuple(args, "II", &from, &to))
		return NULL;
	rc = tn_reslice_geometry(of(self), from, to, &g);
	return rc ? tn_py_raise(rc) : tn_py_geometry(&g);
}

/* ---- cutting anew ---------------------------------------------------------------------------------------------------- */

struct reslice {
	struct tn_copy *plan;
	long copies;
	Py_buffer src[64], dst;
	const void *objects[64];
	Py_ssize_t nsrc; /* buffers that are held */
	bool has_dst;
};

static bool take_objects(struct reslice *r, const struct tn_geometry *g, uint32_t src_tp, uint32_t dst_tp, PyObject *sources, PyObject *into)
{
	Py_ssize_t n = PySequence_Size(sources), want = tn_geometry_object_bytes(g);
	struct tn_geometry to;

	if (n < 0)
		return false;
	if (n != (Py_ssize_t)src_tp || n > 64) {
		PyErr_Format(PyExc_ValueError, "%zd source objects for %u shards (64 at most)", n, src_tp);
		return false;
	}
	for (; r->nsrc < n; r->nsrc++) {
		PyObject *item = PySequence_GetItem(sources, r->nsrc);
		int rc = item ? PyObject_GetBuffer(item, &r->src[r->nsrc], PyBUF_SIMPLE) : -1;

		Py_XDECREF(item);
		if (rc)
			return false;
		r->objects[r->nsrc] = r->src[r->nsrc].buf;
		if (r->src[r->nsrc].len == want)
			continue;
		PyErr_Format(PyExc_ValueError, "source object %zd has %zd bytes, not %zd", r->nsrc, r->src[r->nsrc].len, want);
		r->nsrc++;
		return false;
	}
	r->has_dst = PyObject_GetBuffer(into, &r->dst, PyBUF_WRITABLE) == 0;
	if (!r->has_dst || tn_reslice_geometry(g, src_tp, dst_tp, &to))
		return false;
	if (r->dst.len == (Py_ssize_t)tn_geometry_object_bytes(&to))
		return true;
	PyErr_Format(PyExc_ValueError, "the destination has %zd bytes, not %u", r->dst.len, tn_geometry_object_bytes(&to));
	return false;
}

PyObject *tn_py_reslice(PyObject *module, PyObject *args, PyObject *kw)
{
	static char *names[] = {"geometry", "src_tp", "dst_tp", "dst_rank", "sources", "into", NULL};
	unsigned src_tp, dst_tp, dst_rank;
	PyObject *g, *sources, *into;
	struct reslice r = {0};

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!IIIOO", names, tn_py_geometry_type, &g, &src_tp, &dst_tp, &dst_rank, &sources, &into))
		return NULL;
	r.copies = tn_reslice_plan(of(g), src_tp, dst_tp, dst_rank, NULL, 0);
	if (r.copies < 0)
		return tn_py_raise(r.copies);
	r.plan = PyMem_Malloc(((size_t)r.copies + 1) * sizeof(*r.plan));
	if (!r.plan)
		return PyErr_NoMemory();
	tn_reslice_plan(of(g), src_tp, dst_tp, dst_rank, r.plan, (size_t)r.copies);
	if (take_objects(&r, of(g), src_tp, dst_tp, sources, into)) {
		Py_BEGIN_ALLOW_THREADS;
		tn_reslice_run(r.plan, (size_t)r.copies, r.objects, r.dst.buf);
		Py_END_ALLOW_THREADS;
	}
	while (r.nsrc > 0)
		PyBuffer_Release(&r.src[--r.nsrc]);
	if (r.has_dst)
		PyBuffer_Release(&r.dst);
	PyMem_Free(r.plan);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- the type -------------------------------------------------------------------------------------------------------- */

static PyObject *get_u32(PyObject *self, void *offset)
{
	uint32_t value;

	memcpy(&value, (const char *)of(self) + (size_t)offset, sizeof(value));
	return PyLong_FromUnsignedLong(value);
}

static PyObject *get_planes(PyObject *self, void *arg)
{
	const struct tn_geometry *g = of(self);
	PyObject *out = PyTuple_New(g->nplanes);

	for (uint32_t i = 0; out && i < g->nplanes; i++) {
		const struct tn_plane *p = &g->planes[i];

		if (PyTuple_SetItem(out, i, Py_BuildValue("(IIII)", p->kind, p->heads, p->head_dim, p->elem_bits)))
			Py_CLEAR(out);
	}
	return out;
}

static PyObject *get_object_bytes(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLong(tn_geometry_object_bytes(of(self)));
}

static PyObject *get_block_bytes(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(tn_geometry_block_bytes(of(self)));
}

static PyObject *get_block_tokens(PyObject *self, void *arg)
{
	return PyLong_FromUnsignedLongLong(tn_geometry_block_tokens(of(self)));
}

static PyObject *compare(PyObject *self, PyObject *other, int how)
{
	bool same;

	if ((how != Py_EQ && how != Py_NE) || !PyObject_TypeCheck(other, tn_py_geometry_type))
		return Py_NewRef(Py_NotImplemented);
	same = memcmp(of(self), of(other), sizeof(struct tn_geometry)) == 0;
	return PyBool_FromLong(same == (how == Py_EQ));
}

static PyObject *text(PyObject *self)
{
	const struct tn_geometry *g = of(self);
	PyObject *planes = get_planes(self, NULL), *out;

	if (!planes)
		return NULL;
	out = PyUnicode_FromFormat("Geometry(layers=%u, planes=%R, page_tokens=%u, pages_per_block=%u, page_order=%u)", g->layers, planes, g->page_tokens,
				   g->pages_per_block, g->page_order);
	Py_DECREF(planes);
	return out;
}

static void dealloc(PyObject *self)
{
	tn_py_free(self);
}

#define MEMBER(name) (void *)offsetof(struct tn_geometry, name)

static PyGetSetDef getset[] = {
	{"layers", get_u32, NULL, "layers of the shard", MEMBER(layers)},
	{"page_tokens", get_u32, NULL, "tokens per page", MEMBER(page_tokens)},
	{"pages_per_block", get_u32, NULL, "pages per block", MEMBER(pages_per_block)},
	{"page_order", get_u32, NULL, "NHD or HND", MEMBER(page_order)},
	{"planes", get_planes, NULL, "tuple of (kind, heads, head_dim, elem_bits)", NULL},
	{"object_bytes", get_object_bytes, NULL, "bytes of one layer of one block", NULL},
	{"block_bytes", get_block_bytes, NULL, "bytes of a whole block", NULL},
	{"block_tokens", get_block_tokens, NULL, "tokens of a whole block", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
	{"raw", (PyCFunction)(void (*)(void))raw, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
	 "raw(layers, object_bytes)\n--\n\nA geometry whose objects are simply so many bytes: one plane, one page a block."},
	{"from_bytes", from_bytes, METH_O | METH_CLASS, "from_bytes(data)\n--\n\nThe inverse of to_bytes; everything is checked."},
	{"to_bytes", to_bytes, METH_NOARGS, "to_bytes()\n--\n\nThe canonical form, with version and checksum."},
	{"page_bytes", page_bytes, METH_O, "page_bytes(plane)\n--\n\nBytes of one page of a plane."},
	{"resliced", resliced, METH_VARARGS,
	 "resliced(src_tp, dst_tp)\n--\n\nGeometry of a shard of dst_tp, if this is one of src_tp. Raises InvalidValue where heads would be split."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"Geometry(layers, planes, page_tokens=16, pages_per_block=0, page_order=NHD)\n--\n\n"
			    "The shape of the KV cache of one shard and group.\n\n"
			    "planes: a sequence of (kind, heads, head_dim, elem_bits), one per plane of a layer. pages_per_block 0: as many as make objects of\n"
			    "256 KiB. Raises InvalidValue with the field and value."},
	{Py_tp_new, (void *)geometry_new},
	{Py_tp_dealloc, (void *)dealloc},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{Py_tp_repr, (void *)text},
	{Py_tp_richcompare, (void *)compare},
	{Py_tp_hash, (void *)PyObject_HashNotImplemented},
	{0, NULL},
};

PyType_Spec tn_py_geometry_spec = {
	.name = "tenuto.Geometry",
	.basicsize = sizeof(struct tn_py_geometry),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
