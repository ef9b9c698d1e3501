/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tenuto.View: where an array lies in memory, from the buffer protocol, from DLPack, or from a pointer with shape and strides.
 *
 * A view keeps what it was made from, so that the bytes stay while it lives. A tensor's storage can lose its bytes all the same
 * (torch: resize_); for those the view can be asked whether it has moved. A view of a device's memory has its number; nobody here reads its bytes, and
 * nobody waits for its streams.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

#define DIMENSIONS_MAX ((int)(sizeof(((struct tn_py_view *)0)->shape) / sizeof(Py_ssize_t)))

/* ---- DLPack's structs, as its documents describe them (version 0, and 1.x with flags) -------------------------------- */

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

struct dl_tensor {
	void *data;
	struct {
		int32_t type;
		int32_t id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code;
		uint8_t bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape;
	int64_t *strides; /* elements; NULL: row-major */
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed *self);
};

/* ---- making one ------------------------------------------------------------------------------------------------------- */

static bool row_major(struct tn_py_view *v)
{
	Py_ssize_t stride = v->itemsize;

	for (int d = v->ndim - 1; d >= 0; d--) {
		v->strides[d] = stride;
		stride *= v->shape[d];
	}
	return true;
}

static char kind_of_format(const char *format)
{
	if (!format)
		return 'u';
	if (*format && strchr("@=<", *format))
		format++;
	if (format[0] == '\0' || format[1] != '\0')
		return '?';
	return strchr("bhilqn", *format) ? 'i' : strchr("BHILQNc?", *format) ? 'u' : strchr("efd", *format) ? 'f' : '?';
}

static bool from_buffer(struct tn_py_view *v, PyObject *array, bool writable)
{
	if (PyObject_GetBuffer(array, &v->buffer, writable ? PyBUF_FULL : PyBUF_FULL_RO))
		return false;
	v->has_buffer = true;
	if (v->buffer.suboffsets) {
		PyErr_SetString(PyExc_BufferError, "an array of pointers to arrays (suboffsets) has no place of its own");
		return false;
	}
	if (v->buffer.ndim > DIMENSIONS_MAX) {
		PyErr_Format(PyExc_ValueError, "an array of %d dimensions: at most %d", v->buffer.ndim, DIMENSIONS_MAX);
		return false;
	}
	v->pointer = v->buffer.buf;
	v->ndim = v->buffer.ndim;
	v->itemsize = v->buffer.itemsize;
	v->readonly = v->buffer.readonly;
	v->kind = kind_of_format(v->buffer.format);
	for (int d = 0; d < v->ndim; d++) {
		v->shape[d] = v->buffer.shape[d];
		v->strides[d] = v->buffer.strides ? v->buffer.strides[d] : 0;
	}
	return v->buffer.strides || row_major(v);
}

static bool copy_dl(struct tn_py_view *v, const struct dl_tensor *t)
{
	if (t->device.type != DL_CPU && t->device.type != DL_CUDA_HOST && t->device.type != DL_CUDA) {
		tn_py_raise_text(-ENOTSUP, "the tensor lies in an accelerator's memory of a kind that no driver here copies (DLPack device type other than "
					   "CPU, CUDA and CUDA's pinned host memory). Copy it to host memory");
		return false;
	}
	v->device = t->device.type == DL_CUDA ? t->device.id : -1;
	if (t->ndim < 0 || t->ndim > DIMENSIONS_MAX || t->dtype.lanes != 1 || t->dtype.bits % 8) {
		PyErr_Format(PyExc_ValueError, "a tensor of %d dimensions and %d x %d bits an element: at most %d dimensions, whole bytes", t->ndim,
			     t->dtype.lanes, t->dtype.bits, DIMENSIONS_MAX);
		return false;
	}
	v->pointer = (char *)t->data + t->byte_offset;
	v->ndim = t->ndim;
	v->itemsize = t->dtype.bits / 8;
	v->kind = t->dtype.code == DL_INT ? 'i' : t->dtype.code == DL_UINT ? 'u' : t->dtype.code == DL_FLOAT || t->dtype.code == DL_BFLOAT ? 'f' : '?';
	for (int d = 0; d < v->ndim; d++) {
		v->shape[d] = (Py_ssize_t)t->shape[d];
		v->strides[d] = t->strides ? (Py_ssize_t)t->strides[d] * v->itemsize : 0;
	}
	return t->strides || row_major(v);
}

/* torch: a storage can be resized under a tensor. */
static bool find_probe(struct tn_py_view *v, PyObject *array)
{
	PyObject *storage = PyObject_HasAttrString(array, "untyped_storage") ? PyObject_CallMethod(array, "untyped_storage", NULL) : NULL;

	if (storage) {
		PyObject *at;

		v->probe = PyObject_GetAttrString(storage, "data_ptr");
		at = v->probe ? PyObject_CallNoArgs(v->probe) : NULL;
		v->probed = at ? PyLong_AsUnsignedLongLong(at) : 0;
		Py_XDECREF(at);
		Py_DECREF(storage);
	}
	return !PyErr_Occurred();
}

static bool numbers(PyObject *from, const char *what, int ndim, Py_ssize_t scale, Py_ssize_t *out)
{
	Py_ssize_t n = PySequence_Size(from);

	if (n >= 0 && n != ndim)
		PyErr_Format(PyExc_ValueError, "%s has %zd entries for %d dimensions", what, n, ndim);
	for (int d = 0; d < ndim && !PyErr_Occurred(); d++) {
		PyObject *item = PySequence_GetItem(from, d);

		out[d] = item ? PyNumber_AsSsize_t(item, PyExc_OverflowError) * scale : 0;
		Py_XDECREF(item);
		if (out[d] < 0 && !PyErr_Occurred())
			PyErr_Format(PyExc_ValueError, "%s[%d] is below 0", what, d);
	}
	return !PyErr_Occurred();
}

/* scale: bytes of what strides count. */
static bool from_pointer(struct tn_py_view *v, unsigned long long pointer, PyObject *shape, PyObject *strides, Py_ssize_t scale)
{
	Py_ssize_t ndim = PySequence_Size(shape);

	if (ndim < 0)
		return false;
	if (ndim > DIMENSIONS_MAX || v->itemsize < 1 || pointer == 0) {
		PyErr_Format(PyExc_ValueError, "pointer %llx, %zd dimensions, %zd bytes an element: a pointer, at most %d dimensions, and at least a byte are wanted",
			     pointer, ndim, v->itemsize, DIMENSIONS_MAX);
		return false;
	}
	v->pointer = (char *)(uintptr_t)pointer;
	v->ndim = (int)ndim;
	if (!numbers(shape, "shape", v->ndim, 1, v->shape))
		return false;
	return strides == Py_None ? row_major(v) : numbers(strides, "strides", v->ndim, scale, v->strides);
}

static bool from_dlpack(struct tn_py_view *v, PyObject *array, bool of_cuda)
{
	PyObject *export = PyObject_GetAttrString(array, "__dlpack__"), *none = PyTuple_New(0);
	/* No stream waits for another one: whoever begins a load or a save has seen to that. */
	PyObject *options = of_cuda ? Py_BuildValue("{si}", "stream", -1) : NULL;
	PyObject *capsule = export && none && !PyErr_Occurred() ? PyObject_Call(export, none, options) : NULL;
	struct dl_managed *managed;

	Py_XDECREF(options);
	Py_XDECREF(none);
	Py_XDECREF(export);
	if (!capsule)
		return false;
	managed = PyCapsule_GetPointer(capsule, "dltensor");
	if (!managed) {
		Py_DECREF(capsule);
		return false;
	}
	v->capsule = capsule; /* never renamed: its own destructor gives the tensor back */
	return copy_dl(v, &managed->tensor) && find_probe(v, array);
}

/* The device of a CUDA array, -1: host memory, or what has to say so in __dlpack__; -2 with an exception. */
static int cuda_device(PyObject *array)
{
	PyObject *pair = PyObject_HasAttrString(array, "__dlpack_device__") ? PyObject_CallMethod(array, "__dlpack_device__", NULL) : NULL;
	PyObject *type = pair ? PySequence_GetItem(pair, 0) : NULL, *id = pair ? PySequence_GetItem(pair, 1) : NULL;
	long kind = type ? PyLong_AsLong(type) : 0, number = id ? PyLong_AsLong(id) : 0;

	Py_XDECREF(type);
	Py_XDECREF(id);
	Py_XDECREF(pair);
	if (PyErr_Occurred())
		return -2;
	if (pair)
		return kind == DL_CUDA ? (int)number : -1;
	return PyObject_HasAttrString(array, "__cuda_array_interface__") ? 0 : -1; /* it has no number: the driver refuses one that is another device's */
}

/* typestr: byte order, kind, bytes of an element. */
static bool from_typestr(struct tn_py_view *v, PyObject *typestr)
{
	const char *text = typestr ? PyUnicode_AsUTF8AndSize(typestr, NULL) : NULL;
	bool good = text && strlen(text) >= 3;

	v->itemsize = good ? (Py_ssize_t)strtoul(text + 2, NULL, 10) : 0;
	if (v->itemsize < 1) {
		PyErr_SetString(PyExc_ValueError, "__cuda_array_interface__ without a typestr such as \"<f2\"");
		return false;
	}
	v->kind = strchr("iuf", text[1]) ? text[1] : '?';
	return true;
}

static bool from_interface(struct tn_py_view *v, PyObject *dict)
{
	PyObject *data = PyDict_GetItemString(dict, "data"), *shape = PyDict_GetItemString(dict, "shape"), *strides = PyDict_GetItemString(dict, "strides");
	unsigned long long pointer;
	int readonly;

	if (!data || !shape || !PyTuple_Check(data) || !PyArg_ParseTuple(data, "Kp;data is (pointer, read-only)", &pointer, &readonly)) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "__cuda_array_interface__ without data or shape");
		return false;
	}
	v->readonly = readonly;
	return from_typestr(v, PyDict_GetItemString(dict, "typestr")) && from_pointer(v, pointer, shape, Py_None, 1) &&
	       (!strides || strides == Py_None || numbers(strides, "strides", v->ndim, 1, v->strides));
}

/* torch gives a tensor of another than the current device by this one only. */
static bool from_cuda(struct tn_py_view *v, PyObject *array, bool writable)
{
	PyObject *dict = PyObject_GetAttrString(array, "__cuda_array_interface__");
	bool done;

	if (dict && !PyDict_Check(dict))
		PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ is no dict");
	done = dict && PyDict_Check(dict) && from_interface(v, dict);
	Py_XDECREF(dict);
	if (done && writable && v->readonly) {
		PyErr_SetString(PyExc_BufferError, "the array is read-only");
		done = false;
	}
	return done && find_probe(v, array);
}

static bool fill(struct tn_py_view *v, PyObject *array, bool writable)
{
	if (PyObject_CheckBuffer(array))
		return from_buffer(v, array, writable);
	v->device = cuda_device(array);
	if (v->device >= 0 && PyObject_HasAttrString(array, "__cuda_array_interface__"))
		return from_cuda(v, array, writable);
	if (v->device >= -1 && PyObject_HasAttrString(array, "__dlpack__"))
		return from_dlpack(v, array, v->device >= 0);
	if (!PyErr_Occurred())
		PyErr_SetString(PyExc_TypeError, "an array is wanted: an object with the buffer protocol, __dlpack__ or __cuda_array_interface__, or "
						 "tenuto.strided(...)");
	return false;
}

PyObject *tn_py_view_of(PyObject *array, bool writable)
{
	struct tn_py_view *v;

	if (PyObject_TypeCheck(array, tn_py_view_type)) {
		v = (struct tn_py_view *)array;
		if (writable && v->readonly) {
			PyErr_SetString(PyExc_BufferError, "the array is read-only");
			return NULL;
		}
		return Py_NewRef(array);
	}
	v = tn_py_new(tn_py_view_type);
	if (!v)
		return NULL;
	v->device = -1;
	if (fill(v, array, writable)) {
		v->owner = Py_NewRef(array);
		return (PyObject *)v;
	}
	Py_DECREF((PyObject *)v);
	return NULL;
}

/* None: host memory. */
static bool device_from(struct tn_py_view *v, PyObject *device)
{
	long number = device == Py_None ? -1 : PyLong_AsLong(device);

	if (!PyErr_Occurred() && device != Py_None && (number < 0 || number > INT_MAX))
		PyErr_Format(PyExc_ValueError, "device %ld: its number from 0 on is wanted, or None for host memory", number);
	v->device = (int)number;
	return !PyErr_Occurred();
}

static PyObject *view_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"array", "writable", "pointer", "shape", "strides", "itemsize", "owner", "device", NULL};
	PyObject *array = NULL, *shape = NULL, *strides = Py_None, *owner = Py_None, *device = Py_None;
	unsigned long long pointer = 0;
	Py_ssize_t itemsize = 1;
	struct tn_py_view *v;
	int writable = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|Op$KOOnOO", names, &array, &writable, &pointer, &shape, &strides, &itemsize, &owner, &device))
		return NULL;
	if (array && (array != Py_None || !shape))
		return tn_py_view_of(array, writable);
	if (!shape) {
		PyErr_SetString(PyExc_TypeError, "View() wants an array, or pointer and shape");
		return NULL;
	}
	v = tn_py_new(type);
	if (!v)
		return NULL;
	v->itemsize = itemsize;
	v->owner = Py_NewRef(owner);
	v->kind = '?';
	if (device_from(v, device) && from_pointer(v, pointer, shape, strides, itemsize))
		return (PyObject *)v;
	Py_DECREF((PyObject *)v);
	return NULL;
}

int tn_py_view_moved(struct tn_py_view *view)
{
	PyObject *at;
	uint64_t now;

	if (!view->probe)
		return 0;
	at = PyObject_CallNoArgs(view->probe);
	now = at ? PyLong_AsUnsignedLongLong(at) : 0;
	Py_XDECREF(at);
	if (PyErr_Occurred())
		return -1;
	return now != view->probed;
}

/* ---- the type ------------------------------------------------------------------------------------------------------ */

static void view_dealloc(PyObject *self)
{
	struct tn_py_view *v = (struct tn_py_view *)self;

	PyObject_GC_UnTrack(self);
	if (v->has_buffer)
		PyBuffer_Release(&v->buffer);
	Py_XDECREF(v->probe);
	Py_XDECREF(v->capsule);
	Py_XDECREF(v->owner);
	tn_py_free(self);
}

static int view_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct tn_py_view *v = (struct tn_py_view *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(v->owner);
	Py_VISIT(v->probe);
	return 0;
}

static PyObject *sizes(const Py_ssize_t *from, int n)
{
	PyObject *out = PyTuple_New(n);

	for (int i = 0; out && i < n; i++)
		if (PyTuple_SetItem(out, i, PyLong_FromSsize_t(from[i])))
			Py_CLEAR(out);
	return out;
}

static PyObject *get_pointer(PyObject *self, void *arg)
{
	return PyLong_FromVoidPtr(((struct tn_py_view *)self)->pointer);
}

static PyObject *get_shape(PyObject *self, void *arg)
{
	return sizes(((struct tn_py_view *)self)->shape, ((struct tn_py_view *)self)->ndim);
}

static PyObject *get_strides(PyObject *self, void *arg)
{
	return sizes(((struct tn_py_view *)self)->strides, ((struct tn_py_view *)self)->ndim);
}

static PyObject *get_itemsize(PyObject *self, void *arg)
{
	return PyLong_FromSsize_t(((struct tn_py_view *)self)->itemsize);
}

static PyObject *get_readonly(PyObject *self, void *arg)
{
	return PyBool_FromLong(((struct tn_py_view *)self)->readonly);
}

static PyObject *get_device(PyObject *self, void *arg)
{
	struct tn_py_view *v = (struct tn_py_view *)self;

	return v->device < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(v->device);
}

static PyGetSetDef view_getset[] = {
	{"pointer", get_pointer, NULL, "address of the first element", NULL},
	{"shape", get_shape, NULL, "elements by dimension", NULL},
	{"strides", get_strides, NULL, "bytes from one element to the next, by dimension", NULL},
	{"itemsize", get_itemsize, NULL, "bytes of an element", NULL},
	{"device", get_device, NULL, "number of the device that has the memory; None: host memory", NULL},
	{"readonly", get_readonly, NULL, "whether the array may not be written", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot view_slots[] = {
	{Py_tp_doc, (void *)"View(array=None, writable=False, *, pointer=0, shape=None, strides=None, itemsize=1, owner=None, device=None)\n--\n\n"
			    "Where an array lies in memory; it keeps the array.\n\n"
			    "array: anything with the buffer protocol, __dlpack__ or __cuda_array_interface__; or pointer (an address), shape and strides (both in\n"
			    "elements), itemsize in bytes, owner, which is kept, and device: the number of the device that has the memory, None for host memory.\n"
			    "Raises BufferError (read-only, though writable is asked for), TypeError, ValueError, Error with ENOTSUP (an accelerator's memory\n"
			    "that is not CUDA's)."},
	{Py_tp_new, (void *)view_new},
	{Py_tp_dealloc, (void *)view_dealloc},
	{Py_tp_traverse, (void *)view_traverse},
	{Py_tp_getset, view_getset},
	{0, NULL},
};

PyType_Spec tn_py_view_spec = {
	.name = "tenuto.View",
	.basicsize = sizeof(struct tn_py_view),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = view_slots,
};
