/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Sequence: tokens as they are produced, and the lives of their blocks. */
#include <errno.h>

#include <tenuto/sequence.h>

#include "binding.h"

static struct tn_py_sequence *of(PyObject *self)
{
	return (struct tn_py_sequence *)self;
}

/* Before a call: false with an exception. */
static bool enter(PyObject *self)
{
	if (of(self)->seq)
		return tn_py_enter(of(self)->space->cache);
	tn_py_raise_text(-EBADF, "the sequence was closed, with its cache");
	return false;
}

static PyObject *sequence_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"space", NULL};
	struct tn_py_sequence *self;
	PyObject *space;
	int rc = -EBADF;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!", names, tn_py_space_type, &space))
		return NULL;
	self = tn_py_new(type);
	if (!self)
		return NULL;
	tn_py_link_init(&self->link);
	self->space = (struct tn_py_space *)TN_PY_REF(space);
	if (!self->space->s) {
		tn_py_raise_text(rc, "the space was closed");
	} else if (tn_py_enter(self->space->cache)) {
		rc = tn_sequence_create(self->space->s, &self->seq);
		tn_py_leave(self->space->cache);
		if (rc)
			tn_py_raise(rc);
		else
			tn_py_link_add(&self->space->cache->children[TN_PY_SEQUENCES], &self->link);
	}
	if (rc == 0)
		return (PyObject *)self;
	Py_DECREF((PyObject *)self);
	return NULL;
}

void tn_py_sequence_close(struct tn_py_sequence *sequence)
{
	struct tn_sequence *seq = sequence->seq;

	sequence->seq = NULL;
	tn_py_link_remove(&sequence->link);
	if (seq && sequence->space->cache->c)
		tn_sequence_destroy(seq);
}

static void sequence_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	if (of(self)->space)
		tn_py_sequence_close(of(self));
	Py_XDECREF((PyObject *)of(self)->space);
	tn_py_free(self);
}

static int sequence_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(of(self)->space);
	return 0;
}

static PyObject *sequence_init(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"salt", NULL};
	Py_buffer salt = {0};
	int rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|y*", names, &salt))
		return NULL;
	if (enter(self)) {
		rc = tn_sequence_init(of(self)->seq, salt.buf, (size_t)salt.len);
		tn_py_leave(of(self)->space->cache);
		if (rc)
			tn_py_raise(rc);
	}
	if (salt.obj)
		PyBuffer_Release(&salt);
	return rc ? NULL : Py_NewRef(Py_None);
}

static PyObject *sequence_add(PyObject *self, PyObject *from)
{
	size_t n;
	uint32_t *tokens = tn_py_u32s(from, "tokens", &n);
	long rc = -1;

	if (!tokens)
		return NULL;
	if (enter(self)) {
		rc = tn_sequence_add_tokens(of(self)->seq, tokens, n);
		tn_py_leave(of(self)->space->cache);
		if (rc < 0)
			tn_py_raise(rc);
	}
	PyMem_Free(tokens);
	return rc < 0 ? NULL : PyLong_FromLong(rc);
}

static PyObject *sequence_commit(PyObject *self, PyObject *nothing)
{
	struct tn_key key;
	int rc;

	if (!enter(self))
		return NULL;
	rc = tn_sequence_commit(of(self)->seq, &key);
	tn_py_leave(of(self)->space->cache);
	return rc ? tn_py_raise(rc) : PyBytes_FromStringAndSize((const char *)&key, TN_PY_KEY_BYTES);
}

/* What it is asked for is told without the cache: an info that has zeros is a closed one's. */
static struct tn_sequence_info info_of(PyObject *self)
{
	struct tn_sequence_info info = {.size = sizeof(info)};

	if (of(self)->seq)
		tn_sequence_info(of(self)->seq, &info);
	return info;
}

static PyObject *sequence_keys(PyObject *self, PyObject *nothing)
{
	struct tn_sequence_info info = info_of(self);
	PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)info.blocks * TN_PY_KEY_BYTES);
	long rc = -1;

	if (out && enter(self)) {
		rc = tn_sequence_keys(of(self)->seq, (struct tn_key *)(void *)PyBytes_AsString(out), info.blocks);
		tn_py_leave(of(self)->space->cache);
		if (rc < 0)
			tn_py_raise(rc);
	}
	if (rc < 0)
		Py_CLEAR(out);
	return out;
}

static PyObject *sequence_register(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"n", "outcome", NULL};
	uint64_t duplicates = 0;
	Py_buffer outcome = {0};
	Py_ssize_t n;
	long rc = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "n|y*", names, &n, &outcome))
		return NULL;
	if (n < 0 || (outcome.buf && outcome.len != n)) {
		PyErr_Format(PyExc_ValueError, "%zd blocks, and an outcome of %zd bytes: one per block is wanted", n, outcome.len);
	} else if (enter(self)) {
		TN_PY_CALL(of(self)->space->cache, rc = tn_sequence_register(of(self)->seq, (size_t)n, outcome.buf, &duplicates));
		if (rc < 0)
			tn_py_raise(rc);
	}
	if (outcome.obj)
		PyBuffer_Release(&outcome);
	return rc < 0 ? NULL : Py_BuildValue("lK", rc, (unsigned long long)duplicates);
}

static PyObject *sequence_reset(PyObject *self, PyObject *from)
{
	unsigned long long block = PyLong_AsUnsignedLongLong(from);
	int rc;

	if (PyErr_Occurred() || !enter(self))
		return NULL;
	rc = tn_sequence_reset(of(self)->seq, block);
	tn_py_leave(of(self)->space->cache);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *sequence_drop(PyObject *self, PyObject *nothing)
{
	int rc;

	if (!enter(self))
		return NULL;
	rc = tn_sequence_drop(of(self)->seq);
	tn_py_leave(of(self)->space->cache);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *get_info(PyObject *self, void *member)
{
	struct tn_sequence_info info = info_of(self);

	return PyLong_FromUnsignedLongLong(*(const uint64_t *)(const void *)((const char *)&info + (uintptr_t)member));
}

#define INFO(name, what) {#name, get_info, NULL, what, (void *)offsetof(struct tn_sequence_info, name)}
static PyGetSetDef sequence_getset[] = {
	INFO(blocks, "blocks that are Complete or Registered"),
	INFO(registered, "of them, the first ones, those that are Registered"),
	INFO(duplicates, "of those, how many were there before"),
	INFO(tokens, "of the block that is Partial"),
	{0},
};
#undef INFO

#define WITH_KEYWORDS(f) (PyCFunction)(void (*)(void))f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef sequence_methods[] = {
	{"init", WITH_KEYWORDS(sequence_init), "init(salt=b\"\")\n--\n\nReset -> Partial. salt: what the KV bytes depend on beside the tokens. Raises InvalidValue."},
	{"add", sequence_add, METH_O,
	 "add(tokens)\n--\n\nAdd tokens to the block that is Partial, as many as it has place for. Returns how many; 0: commit it. Raises InvalidValue."},
	{"commit", sequence_commit, METH_NOARGS, "commit()\n--\n\nPartial and full -> Complete; the next block is Partial. Returns the key. Raises InvalidValue."},
	{"keys", sequence_keys, METH_NOARGS, "keys()\n--\n\nPacked keys of the blocks that are Registered or Complete."},
	{"register", WITH_KEYWORDS(sequence_register),
	 "register(n, outcome=None)\n--\n\nThe first n blocks that are Complete were saved: those that the cache has are Registered, and held until drop.\n\n"
	 "outcome: of their Save, to count duplicates. Returns (registered, duplicates) of this call. Raises InvalidValue, Again (all leases are taken)."},
	{"reset", sequence_reset, METH_O, "reset(block)\n--\n\nThat block and those behind it, Partial or Complete -> Reset. Raises InvalidValue."},
	{"drop", sequence_drop, METH_NOARGS, "drop()\n--\n\nRegistered -> Reset, all of them: the cache may evict them. Raises InvalidValue."},
	{0},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "Sequence(space)\n--\n\nTokens as an engine produces them, and the lives of their blocks (docs/library.md). One thread at a time."},
	{Py_tp_new, sequence_new},	     {Py_tp_dealloc, sequence_dealloc}, {Py_tp_traverse, sequence_traverse},
	{Py_tp_methods, sequence_methods}, {Py_tp_getset, sequence_getset},   {0, NULL},
};

PyType_Spec tn_py_sequence_spec = {
	.name = "tenuto.Sequence",
	.basicsize = sizeof(struct tn_py_sequence),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.slots = slots,
};
