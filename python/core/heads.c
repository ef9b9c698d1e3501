/* SPDX-License-Identifier: Apache-2.0 */
/* _core.HeadGroups: which head groups a rank has, and views of one within its pages (tenuto/heads.h). tenuto.shares makes spaces and pools of them. */
#include "binding.h"
#include "objects.h"

struct head_groups {
	PyObject_HEAD
	struct tn_geometry share; /* of the rank */
	struct tn_head_groups groups;
	struct tn_geometry geometry; /* of a group */
};

static PyObject *groups_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"geometry", "tp_size", "tp_rank", "kv_heads", "most_tp", NULL};
	struct tn_rank_heads rank;
	struct head_groups *self;
	PyObject *geometry;
	unsigned most = 0;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!III|I", names, tn_py_geometry_type, &geometry, &rank.tp_size, &rank.tp_rank, &rank.kv_heads, &most))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	self->share = ((struct tn_py_geometry *)geometry)->g;
	rc = tn_head_groups_of(&self->share, &rank, most, &self->groups);
	if (rc == 0)
		rc = tn_head_group_geometry(&self->share, &self->groups, &self->geometry);
	if (rc == 0)
		return (PyObject *)self;
	tn_py_raise(rc);
	Py_DECREF((PyObject *)self);
	return NULL;
}

static void groups_dealloc(PyObject *self)
{
	tn_py_free(self);
}

static PyObject *list_of(const uint64_t *numbers, size_t n)
{
	PyObject *out = PyList_New((Py_ssize_t)n);

	for (size_t i = 0; out && i < n; i++)
		if (PyList_SetItem(out, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(numbers[i])))
			Py_CLEAR(out);
	return out;
}

static PyObject *groups_view(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"group", "npages", "base", "strides", "order", "alignment", NULL};
	const struct head_groups *h = (struct head_groups *)self;
	PyObject *base = Py_None, *strides = Py_None, *out = NULL;
	struct tn_pool_shape shape = {.order = TN_POOL_CROSS_LAYER, .alignment = 1};
	const size_t n = (size_t)h->share.layers * h->share.nplanes;
	struct tn_pool_layout layout = {0}, view;
	unsigned long long npages;
	uint64_t *offsets, *own;
	unsigned group;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "IK|OO$II", names, &group, &npages, &base, &strides, &shape.order, &shape.alignment))
		return NULL;
	shape.npages = npages;
	offsets = tn_py_layout(&h->share, base, strides, &shape, &layout);
	if (!offsets)
		return NULL;
	own = PyMem_Malloc(n * sizeof(*own));
	rc = own ? tn_head_group_layout(&h->share, &layout, &h->groups, group, own, &view) : 0;
	if (own && rc == 0)
		out = Py_BuildValue("(KNN)", (unsigned long long)view.npages, list_of(own, n), list_of(view.stride, h->share.nplanes));
	else if (own)
		tn_py_raise(rc);
	else
		PyErr_NoMemory();
	PyMem_Free(own);
	PyMem_Free(offsets);
	return out;
}

static PyObject *groups_pages(PyObject *self, PyObject *indices)
{
	const struct head_groups *h = (struct head_groups *)self;
	PyObject *out = NULL;
	uint32_t *pages;
	size_t n, want;

	pages = tn_py_u32s(indices, "pages", &n);
	want = pages ? tn_head_group_pages(&h->share, pages, n, NULL, 0) : 0;
	if (pages)
		out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(want * sizeof(*pages)));
	if (out)
		tn_head_group_pages(&h->share, pages, n, (uint32_t *)(void *)PyBytes_AsString(out), want);
	PyMem_Free(pages);
	return out;
}

static PyObject *get_u32(PyObject *self, void *offset)
{
	return PyLong_FromUnsignedLong(*(uint32_t *)(void *)((char *)self + (size_t)offset));
}

static PyObject *get_geometry(PyObject *self, void *arg)
{
	return tn_py_geometry(&((struct head_groups *)self)->geometry);
}

#define MEMBER(name) (void *)(offsetof(struct head_groups, groups) + offsetof(struct tn_head_groups, name))

static PyGetSetDef getset[] = {
	{"heads", get_u32, NULL, "KV heads per group", MEMBER(heads)},
	{"total", get_u32, NULL, "groups of the model", MEMBER(total)},
	{"first", get_u32, NULL, "the rank's first group", MEMBER(first)},
	{"count", get_u32, NULL, "how many groups the rank has", MEMBER(count)},
	{"replica", get_u32, NULL, "0 on the first of the ranks that have these heads, else 1 and up", MEMBER(replica)},
	{"geometry", get_geometry, NULL, "of a group's space and pools, the same for ranks of every TP size", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
	{"view", (PyCFunction)(void (*)(void))groups_view, METH_VARARGS | METH_KEYWORDS,
	 "view(group, npages, base=None, strides=None, *, order=POOL_CROSS_LAYER, alignment=1)\n--\n\n"
	 "(npages, base, strides) of the pool of a group, counted from the rank's first, over a rank's pool, which is described as to Pool."},
	{"pages", groups_pages, METH_O, "pages(pages)\n--\n\nA group's pages of a rank's pages: bytes of unsigned 32-bit numbers."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"HeadGroups(geometry, tp_size, tp_rank, kv_heads, most_tp=8)\n--\n\n"
			    "The head groups of a model, and which of them a rank has. geometry: of the rank's share; most_tp: a number that every TP size divides.\n\n"
			    "Raises InvalidValue: heads that the rank does not have, or groups that it has not whole."},
	{Py_tp_new, (void *)groups_new},
	{Py_tp_dealloc, (void *)groups_dealloc},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_head_groups_spec = {
	.name = "tenuto._core.HeadGroups",
	.basicsize = sizeof(struct head_groups),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
