/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions: a class for each errno that a caller may want to catch, all of them tenuto.Error and OSError. */
#include <errno.h>
#include <string.h>

#include "binding.h"

/* An empty doc ends the list. The first is the base of all others. */
static struct kind {
	int errno_of; /* 0: the base */
	const char *name;
	PyObject **also; /* a second base class */
	const char *doc;
	PyObject *type;
} kinds[] = {
	{0, "tenuto.Error", NULL, "A call failed. errno says why, strerror has the detail: the offending value, and what to do.", NULL},
	{EINVAL, "tenuto.InvalidValue", &PyExc_ValueError, "A value that the call does not take (EINVAL, EOVERFLOW, E2BIG).", NULL},
	{EAGAIN, "tenuto.Again", &PyExc_BlockingIOError, "Nothing was begun: too much is under way. The same call may succeed later (EAGAIN).", NULL},
	{EBUSY, "tenuto.Busy", NULL, "Somebody has it: another process a store, a pool a memory, a load its pages (EBUSY).", NULL},
	{ETIMEDOUT, "tenuto.Timeout", &PyExc_TimeoutError, "The timeout was over first (ETIMEDOUT).", NULL},
	{ESHUTDOWN, "tenuto.OwnerGone", &PyExc_ConnectionError, "The process that owned the cache has closed it or died: close, and attach again (ESHUTDOWN).", NULL},
	{EBADF, "tenuto.Closed", NULL, "The cache, or what the call is about, was closed before (EBADF).", NULL},
	{ECHILD, "tenuto.Forked", &PyExc_ChildProcessError, "The process was forked from the one that has opened the cache: open or attach another one (ECHILD).", NULL},
	{ENOENT, "tenuto.NotFound", &PyExc_FileNotFoundError, "No such directory, store or socket (ENOENT).", NULL},
	{EACCES, "tenuto.Denied", &PyExc_PermissionError, "No right to do that (EACCES).", NULL},
	{EPROTONOSUPPORT, "tenuto.WrongVersion", NULL, "A store, or an owner, of another version of the format or protocol (EPROTONOSUPPORT).", NULL},
	{0, NULL, NULL, NULL, NULL},
};

int tn_py_errors_add(PyObject *module)
{
	for (struct kind *k = kinds; k->name; k++) {
		PyObject *bases = k == kinds ? PyTuple_Pack(1, PyExc_OSError)
				  : k->also  ? PyTuple_Pack(2, kinds[0].type, *k->also)
					     : PyTuple_Pack(1, kinds[0].type);

		if (!bases)
			return -1;
		k->type = PyErr_NewExceptionWithDoc(k->name, k->doc, bases, NULL);
		Py_DECREF(bases);
		if (!k->type || PyModule_AddObjectRef(module, k->name + strlen("tenuto."), k->type))
			return -1;
	}
	return 0;
}

static PyObject *type_of(int error)
{
	if (error == EOVERFLOW || error == E2BIG)
		error = EINVAL;
	for (const struct kind *k = kinds + 1; k->name; k++)
		if (k->errno_of == error)
			return k->type;
	return kinds[0].type;
}

PyObject *tn_py_raise_text(int rc, const char *text)
{
	/* Names in it come from elsewhere, and long ones are cut: it may be no UTF-8. */
	PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
	PyObject *value = words ? Py_BuildValue("(iN)", -rc, words) : NULL;

	if (value) {
		PyErr_SetObject(type_of(-rc), value);
		Py_DECREF(value);
	}
	return NULL;
}

PyObject *tn_py_raise(long rc)
{
	const struct tn_error *error = tn_error_last();

	if (rc == -ENOMEM)
		return PyErr_NoMemory();
	return tn_py_raise_text((int)rc, error->code == rc && error->text[0] ? error->text : strerror((int)-rc));
}
