/* SPDX-License-Identifier: Apache-2.0 */
/* From Python's values to C's: keys, numbers, times, keyword arguments. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "binding.h"

uint64_t tn_py_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int tn_py_deadline(PyObject *timeout, uint64_t *deadline_ns)
{
	double seconds;

	*deadline_ns = TN_FOREVER;
	if (!timeout || timeout == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(timeout);
	if (seconds == -1.0 && PyErr_Occurred())
		return -1;
	if (isnan(seconds)) {
		PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds, or None");
		return -1;
	}
	if (seconds <= 0)
		*deadline_ns = 1; /* long ago */
	else if (seconds < 1e9)
		*deadline_ns = tn_py_now_ns() + (uint64_t)(seconds * 1e9);
	return 0;
}

int tn_py_keys(PyObject *from, Py_buffer *view, size_t *n)
{
	if (PyObject_GetBuffer(from, view, PyBUF_SIMPLE))
		return -1;
	if (view->len % TN_PY_KEY_BYTES) {
		PyErr_Format(PyExc_ValueError, "keys: %zd bytes are no whole number of keys of %zd bytes", view->len, TN_PY_KEY_BYTES);
		PyBuffer_Release(view);
		return -1;
	}
	*n = (size_t)(view->len / TN_PY_KEY_BYTES);
	return 0;
}

/* ---- whole numbers ------------------------------------------------------------------------------------------- */

static bool negative(const char *what, size_t i)
{
	PyErr_Format(PyExc_ValueError, "%s[%zu] is below 0", what, i);
	return true;
}

/* One number of an integer array, whatever its width. */
static bool element(const struct tn_py_view *v, const char *what, size_t i, uint64_t *out)
{
	const char *at = v->pointer + (Py_ssize_t)i * v->strides[0];
	int64_t value = 0;

	if (v->kind == 'u') {
		*out = 0;
		memcpy(out, at, (size_t)v->itemsize); /* little-endian */
		return true;
	}
	switch (v->itemsize) {
	case 1:
		value = *(const int8_t *)at;
		break;
	case 2:
		value = *(const int16_t *)(const void *)at;
		break;
	case 4:
		value = *(const int32_t *)(const void *)at;
		break;
	default:
		memcpy(&value, at, sizeof(value));
	}
	*out = (uint64_t)value;
	return value >= 0 || !negative(what, i);
}

static uint64_t *from_array(PyObject *from, const char *what, size_t *n)
{
	struct tn_py_view *v = (struct tn_py_view *)tn_py_view_of(from, false);
	uint64_t *out = NULL;
	size_t i = 0;

	if (!v)
		return NULL;
	if (v->device >= 0)
		PyErr_Format(PyExc_TypeError, "%s: an array in the memory of device %d: give one in host memory, such as tensor.cpu()", what, v->device);
	else if (v->ndim != 1 || (v->kind != 'i' && v->kind != 'u') || v->itemsize > 8)
		PyErr_Format(PyExc_TypeError, "%s: an array of integers with one dimension, or a sequence, is wanted", what);
	else
		out = PyMem_Malloc(((size_t)v->shape[0] + 1) * sizeof(*out));
	if (out)
		for (*n = (size_t)v->shape[0]; i < *n && element(v, what, i, &out[i]); i++)
			;
	if (out && i < *n) {
		PyMem_Free(out);
		out = NULL;
	}
	Py_DECREF((PyObject *)v);
	return out;
}

static uint64_t *from_sequence(PyObject *from, const char *what, size_t *n)
{
	Py_ssize_t length = PySequence_Size(from);
	uint64_t *out;

	if (length < 0)
		return NULL;
	out = PyMem_Malloc(((size_t)length + 1) * sizeof(*out));
	if (!out)
		return (uint64_t *)(void *)PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < length; i++) {
		PyObject *item = PySequence_GetItem(from, i), *number = item ? PyNumber_Index(item) : NULL;

		out[i] = number ? PyLong_AsUnsignedLongLong(number) : 0;
		Py_XDECREF(number);
		Py_XDECREF(item);
		if (PyErr_Occurred()) {
			if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
				PyErr_Clear();
				PyErr_Format(PyExc_ValueError, "%s[%zd] is below 0, or too large", what, i);
			}
			PyMem_Free(out);
			return NULL;
		}
	}
	*n = (size_t)length;
	return out;
}

uint64_t *tn_py_u64s(PyObject *from, const char *what, size_t *n)
{
	if (PyObject_CheckBuffer(from) || PyObject_HasAttrString(from, "__dlpack__"))
		return from_array(from, what, n);
	if (PySequence_Check(from))
		return from_sequence(from, what, n);
	PyErr_Format(PyExc_TypeError, "%s: an array of integers with one dimension, or a sequence, is wanted", what);
	return NULL;
}

uint32_t *tn_py_u32s(PyObject *from, const char *what, size_t *n)
{
	uint64_t *wide = tn_py_u64s(from, what, n);
	uint32_t *out = wide ? PyMem_Malloc((*n + 1) * sizeof(*out)) : NULL;

	if (wide && !out)
		PyErr_NoMemory();
	for (size_t i = 0; out && i < *n; i++) {
		if (wide[i] > UINT32_MAX) {
			PyErr_Format(PyExc_ValueError, "%s[%zu] is %llu: more than 32 bits", what, i, (unsigned long long)wide[i]);
			PyMem_Free(out);
			out = NULL;
			break;
		}
		out[i] = (uint32_t)wide[i];
	}
	PyMem_Free(wide);
	return out;
}

#define WHOLE_BYTES "a whole number of bytes"

/* ---- dictionaries ----------------------------------------------------------------------------------------------- */

int tn_py_set(PyObject *dict, const char *name, PyObject *value)
{
	int rc = value ? PyDict_SetItemString(dict, name, value) : -1;

	Py_XDECREF(value);
	return rc;
}

/* In the place of what Python says of a number that cannot be taken, which names neither it nor the option. Return: -1. */
static int wrong_number(const char *name, const char *wanted, PyObject *value)
{
	PyObject *kind = PyErr_ExceptionMatches(PyExc_TypeError) ? PyExc_TypeError : PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_ValueError : NULL;

	if (!kind)
		return -1;
	PyErr_Clear();
	PyErr_Format(kind, "%s: %s is wanted, not %R", name, wanted, value);
	return -1;
}

static int u64_from(const char *name, const char *wanted, PyObject *value, unsigned long long *out)
{
	*out = PyLong_AsUnsignedLongLong(value);
	return PyErr_Occurred() ? wrong_number(name, wanted, value) : 0;
}

int tn_py_quota(PyObject *from, struct tn_quota *quota)
{
	static const char *const tiers[TN_TIERS_MAX] = {[TN_TIER_DEVICE] = "device", [TN_TIER_HOST] = "host", [TN_TIER_DISK] = "disk",
							[TN_TIER_REMOTE] = "remote"};
	Py_ssize_t found = 0;

	tn_quota_init(quota);
	if (!from || from == Py_None)
		return 0;
	if (!PyDict_Check(from)) {
		PyErr_SetString(PyExc_TypeError, "a quota is a dict: {\"host\": bytes, \"disk\": bytes}");
		return -1;
	}
	for (uint32_t t = 0; t < TN_TIERS_MAX; t++) {
		PyObject *value = tiers[t] ? PyDict_GetItemString(from, tiers[t]) : NULL; /* borrowed */
		unsigned long long bytes;

		if (!value)
			continue;
		if (u64_from("quota", WHOLE_BYTES, value, &bytes))
			return -1;
		quota->bytes[t] = bytes;
		found++;
	}
	if (found == PyDict_Size(from))
		return 0;
	PyErr_SetString(PyExc_ValueError, "a quota's keys are \"device\", \"host\", \"disk\" and \"remote\"");
	return -1;
}

static int set_field(const struct tn_py_field *f, PyObject *value, void *out)
{
	char *at = (char *)out + f->offset;
	unsigned long long number;
	int yes;

	switch (f->kind) {
	case TN_PY_BOOL:
		yes = PyObject_IsTrue(value);
		memcpy(at, &(bool){yes > 0}, sizeof(bool));
		return yes < 0 ? -1 : 0;
	case TN_PY_TEXT:
		if (!PyUnicode_Check(value)) {
			PyErr_Format(PyExc_TypeError, "%s: a text is wanted, not %R", f->name, value);
			return -1;
		}
		*(const char **)(void *)at = PyUnicode_AsUTF8AndSize(value, NULL);
		return *(const char **)(void *)at ? 0 : -1;
	case TN_PY_I32:
		*(int32_t *)(void *)at = (int32_t)PyLong_AsLong(value);
		return PyErr_Occurred() ? wrong_number(f->name, "a whole number", value) : 0;
	default:
		if (u64_from(f->name, strstr(f->name, "bytes") ? WHOLE_BYTES : "a whole number from 0 on", value, &number))
			return -1;
		if (f->kind == TN_PY_U32 && number > UINT32_MAX) {
			PyErr_Format(PyExc_ValueError, "%s: %llu is more than 32 bits", f->name, number);
			return -1;
		}
		memcpy(at, &number, f->kind == TN_PY_U32 ? sizeof(uint32_t) : sizeof(uint64_t));
		return 0;
	}
}

int tn_py_fields(PyObject *keywords, const struct tn_py_field *fields, void *out, Py_ssize_t *done)
{
	for (const struct tn_py_field *f = fields; keywords && f->name; f++) {
		PyObject *value = PyDict_GetItemString(keywords, f->name); /* borrowed */

		if (!value)
			continue;
		(*done)++;
		if (value != Py_None && set_field(f, value, out))
			return -1;
	}
	return 0;
}
