/* SPDX-License-Identifier: Apache-2.0 */
/* _core.XferList and _core.XferRequest. */
#include <errno.h>
#include <unistd.h>

#include "xfer.h"

#define GIVE_UP_NS 60000000000ull /* how long a request that nobody holds any more may still move bytes */

static PyTypeObject *list_type, *request_type;

struct xfer_list {
	PyObject_HEAD
	struct tn_py_xfer_agent *agent;
	struct tn_xfer_list *l; /* NULL: released */
	uint32_t inside; /* requests that are being made of it without the GIL */
};

struct xfer_request {
	PyObject_HEAD
	struct tn_py_xfer_agent *agent;
	struct tn_xfer_request *r; /* NULL: released */
	uint32_t inside;
};

/* ---- lists ------------------------------------------------------------------------------------------------------------- */

PyObject *tn_py_xfer_list(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_py_runs runs;
	struct xfer_list *list;
	const char *peer;
	PyObject *from;
	int segment, rc;

	if (!PyArg_ParseTuple(args, "ziO", &peer, &segment, &from) || tn_py_xfer_runs(from, &runs))
		return NULL;
	list = tn_py_new(list_type);
	if (!list || !tn_py_xfer_enter(agent)) {
		Py_XDECREF((PyObject *)list);
		PyMem_Free(runs.run);
		return NULL;
	}
	list->agent = (struct tn_py_xfer_agent *)TN_PY_REF(agent);
	TN_PY_XFER(agent, rc = tn_xfer_list_create(agent->a, peer, segment, runs.run, runs.n, &list->l));
	PyMem_Free(runs.run);
	agent->lists += rc == 0;
	if (rc == 0)
		return (PyObject *)list;
	tn_py_raise(rc);
	Py_DECREF((PyObject *)list);
	return NULL;
}

static PyObject *list_release(PyObject *self, PyObject *nothing)
{
	struct xfer_list *list = (struct xfer_list *)self;

	if (list->inside)
		return tn_py_raise_text(-EBUSY, "another thread makes a request of the list");
	if (list->l && list->agent->pid == getpid()) {
		tn_xfer_list_destroy(list->l);
		list->agent->lists--;
	}
	list->l = NULL;
	return Py_NewRef(Py_None);
}

static void list_dealloc(PyObject *self)
{
	Py_DECREF(list_release(self, NULL)); /* nobody is inside: a call holds it */
	Py_XDECREF((PyObject *)((struct xfer_list *)self)->agent);
	tn_py_free(self);
}

static Py_ssize_t list_length(PyObject *self)
{
	return (Py_ssize_t)tn_xfer_list_count(((struct xfer_list *)self)->l);
}

static PyMethodDef list_methods[] = {
	{"release", list_release, METH_NOARGS, "release()\n--\n\nGives it back; requests that were made of it do not need it. Raises Busy while another thread makes one."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot list_slots[] = {
	{Py_tp_doc, (void *)"Descriptors that requests name by index; its length is their number."},
	{Py_tp_dealloc, (void *)list_dealloc},
	{Py_sq_length, (void *)list_length},
	{Py_tp_methods, list_methods},
	{0, NULL},
};

static PyType_Spec list_spec = {
	.name = "tenuto._core.XferList",
	.basicsize = sizeof(struct xfer_list),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = list_slots,
};

/* ---- requests ---------------------------------------------------------------------------------------------------------- */

/* Arrays of indices, and names of backends. */
struct wanted {
	uint32_t *local, *remote;
	size_t nlocal, nremote;
	struct tn_xfer_request_opts opts;
	const char *backend[TN_XFER_BACKENDS_MAX];
	PyObject *keep;
};

static void wanted_free(struct wanted *w)
{
	PyMem_Free(w->local);
	PyMem_Free(w->remote);
	Py_XDECREF(w->keep);
}

static int wanted_from(struct wanted *w, PyObject *local, PyObject *remote, PyObject *backends)
{
	if (local != Py_None && !(w->local = tn_py_u32s(local, "local indices", &w->nlocal)))
		return -1;
	if (remote != Py_None && !(w->remote = tn_py_u32s(remote, "remote indices", &w->nremote)))
		return -1;
	if (w->local && w->remote && w->nlocal != w->nremote) {
		PyErr_Format(PyExc_ValueError, "%zu local and %zu remote indices: as many are wanted", w->nlocal, w->nremote);
		return -1;
	}
	if (backends == Py_None)
		return 0;
	w->keep = PySequence_Tuple(backends);
	if (!w->keep)
		return -1;
	if (PyTuple_Size(w->keep) > (Py_ssize_t)TN_XFER_BACKENDS_MAX) {
		PyErr_Format(PyExc_ValueError, "%zd backends: at most %d", PyTuple_Size(w->keep), (int)TN_XFER_BACKENDS_MAX);
		return -1;
	}
	w->opts.backends = w->backend;
	for (Py_ssize_t i = 0; i < PyTuple_Size(w->keep); i++) {
		w->backend[w->opts.nbackends] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(w->keep, i), NULL);
		if (!w->backend[w->opts.nbackends++])
			return -1;
	}
	return 0;
}

static PyObject *create(struct tn_py_xfer_agent *agent, int op, struct xfer_list *local, struct xfer_list *remote, const struct wanted *w)
{
	struct xfer_request *self = tn_py_new(request_type);
	size_t n = w->local ? w->nlocal : w->nremote;
	int rc;

	if (self && (!local->l || !remote->l)) {
		Py_DECREF((PyObject *)self);
		return tn_py_raise_text(-EBADF, "the list was released");
	}
	if (!self || !tn_py_xfer_enter(agent)) {
		Py_XDECREF((PyObject *)self);
		return NULL;
	}
	local->inside++;
	remote->inside++;
	self->agent = (struct tn_py_xfer_agent *)TN_PY_REF(agent);
	TN_PY_XFER(agent, rc = tn_xfer_request_create(agent->a, op, local->l, w->local, remote->l, w->remote, (uint32_t)n, &w->opts, &self->r));
	local->inside--;
	remote->inside--;
	agent->requests += rc == 0;
	if (rc == 0)
		return (PyObject *)self;
	tn_py_raise(rc);
	Py_DECREF((PyObject *)self);
	return NULL;
}

PyObject *tn_py_xfer_request(PyObject *self, PyObject *args)
{
	PyObject *local, *remote, *local_indices, *remote_indices, *backends = Py_None, *out = NULL;
	struct wanted w = {0};
	int op;

	tn_xfer_request_opts_init(&w.opts);
	if (!PyArg_ParseTuple(args, "iO!OO!O|OI", &op, list_type, &local, &local_indices, list_type, &remote, &remote_indices, &backends, &w.opts.notification_bytes))
		return NULL;
	if (wanted_from(&w, local_indices, remote_indices, backends) == 0)
		out = create((struct tn_py_xfer_agent *)self, op, (struct xfer_list *)local, (struct xfer_list *)remote, &w);
	wanted_free(&w);
	return out;
}

/* The request, and a call of it is counted; NULL with an exception. */
static struct tn_xfer_request *enter(struct xfer_request *q)
{
	if (!q->r) {
		tn_py_raise_text(-EBADF, "the request was released");
		return NULL;
	}
	if (!tn_py_xfer_enter(q->agent))
		return NULL;
	q->inside++;
	return q->r;
}

/* A call without the GIL, after enter. */
#define CALL(q, expression)                          \
	do {                                         \
		TN_PY_XFER((q)->agent, expression);  \
		(q)->inside--;                       \
	} while (0)

static PyObject *request_post(PyObject *self, PyObject *args)
{
	struct xfer_request *q = (struct xfer_request *)self;
	const char *bytes = NULL;
	Py_ssize_t n = 0;
	uint64_t deadline_ns;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "O|z#", &timeout, &bytes, &n) || tn_py_deadline(timeout, &deadline_ns) || !enter(q))
		return NULL;
	CALL(q, rc = tn_xfer_post(q->r, deadline_ns, bytes, !bytes ? TN_XFER_NO_NOTIFICATION : n < (Py_ssize_t)UINT32_MAX ? (uint32_t)n : UINT32_MAX - 1));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *request_status(PyObject *self, PyObject *nothing)
{
	struct xfer_request *q = (struct xfer_request *)self;
	struct tn_xfer_status s = {.size = sizeof(s)};
	int rc;

	if (!enter(q))
		return NULL;
	CALL(q, rc = tn_xfer_status(q->r, &s));
	if (rc)
		return tn_py_raise(rc);
	return Py_BuildValue("(IiKKKKKKs)", s.state, -s.status, (unsigned long long)s.bytes, (unsigned long long)s.post_ns, (unsigned long long)s.time_ns,
			     (unsigned long long)s.estimate_ns, (unsigned long long)s.descriptors, (unsigned long long)s.pieces, s.backend);
}

/* A call that sleeps, in slices, so that signals are seen; going_on: what it returns at the end of one. 0 and *rc; -1 with an exception. */
static int in_slices(struct xfer_request *q, PyObject *args, int (*call)(struct tn_xfer_request *, uint64_t), int going_on, int *rc)
{
	uint64_t deadline_ns, until;
	uint32_t slices = 0;
	PyObject *timeout;

	if (!PyArg_ParseTuple(args, "O", &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return -1;
	do {
		if (!enter(q))
			return -1;
		until = tn_py_slice(&slices, deadline_ns);
		CALL(q, *rc = call(q->r, until));
		if (PyErr_CheckSignals())
			return -1;
	} while (*rc == going_on && until < deadline_ns);
	return 0;
}

static PyObject *request_wait(PyObject *self, PyObject *args)
{
	int rc;

	if (in_slices((struct xfer_request *)self, args, tn_xfer_wait, -EAGAIN, &rc))
		return NULL;
	return rc && rc != -EAGAIN ? tn_py_raise(rc) : PyBool_FromLong(rc == 0);
}

static PyObject *request_cancel(PyObject *self, PyObject *args)
{
	int rc;

	if (in_slices((struct xfer_request *)self, args, tn_xfer_cancel, -EBUSY, &rc))
		return NULL;
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *request_release(PyObject *self, PyObject *nothing)
{
	struct xfer_request *q = (struct xfer_request *)self;
	int rc;

	if (!q->r)
		return Py_NewRef(Py_None);
	if (q->inside)
		return tn_py_raise_text(-EBUSY, "another thread is in a call of the request");
	if (!tn_py_xfer_enter(q->agent))
		return NULL;
	rc = tn_xfer_release(q->r);
	tn_py_xfer_leave(q->agent);
	if (rc)
		return tn_py_raise(rc);
	q->agent->requests--;
	q->r = NULL;
	return Py_NewRef(Py_None);
}

static void request_dealloc(PyObject *self)
{
	struct xfer_request *q = (struct xfer_request *)self;
	int rc;

	/* The agent is open: it has this request. One that does not end keeps it open for good, because bytes may still move. */
	if (q->r && q->agent->pid == getpid()) {
		Py_BEGIN_ALLOW_THREADS;
		rc = tn_xfer_cancel(q->r, tn_py_now_ns() + GIVE_UP_NS);
		if (rc == 0)
			rc = tn_xfer_release(q->r);
		Py_END_ALLOW_THREADS;
		q->agent->requests -= rc == 0;
	}
	Py_XDECREF((PyObject *)q->agent);
	tn_py_free(self);
}

static PyObject *request_results(PyObject *self, PyObject *args)
{
	struct xfer_request *q = (struct xfer_request *)self;
	struct tn_xfer_status s = {.size = sizeof(s)};
	struct tn_xfer_result *result;
	unsigned long long first;
	unsigned int n;
	PyObject *list = NULL;
	int rc;

	if (!PyArg_ParseTuple(args, "KI", &first, &n) || !enter(q))
		return NULL;
	CALL(q, rc = tn_xfer_status(q->r, &s));
	if (rc == 0 && n > s.descriptors)
		return PyErr_Format(PyExc_ValueError, "%u results: the request has %llu descriptors", n, (unsigned long long)s.descriptors);
	if (!enter(q))
		return NULL;
	result = PyMem_Calloc(n + (size_t)1, sizeof(*result));
	CALL(q, rc = result ? tn_xfer_results(q->r, first, n, result) : -ENOMEM);
	if (rc)
		tn_py_raise(rc);
	else
		list = PyList_New(n);
	for (unsigned int i = 0; list && i < n; i++) {
		PyObject *item = Py_BuildValue("(iK)", -result[i].status, (unsigned long long)result[i].bytes);

		if (!item || PyList_SetItem(list, i, item))
			Py_CLEAR(list);
	}
	PyMem_Free(result);
	return list;
}

static PyObject *request_explain(PyObject *self, PyObject *nothing)
{
	struct xfer_request *q = (struct xfer_request *)self;

	return q->r ? PyUnicode_FromString(tn_xfer_explain(q->r)) : tn_py_raise_text(-EBADF, "the request was released");
}

static PyMethodDef request_methods[] = {
	{"post", request_post, METH_VARARGS, "post(timeout, notification=None)\n--\n\nBegins. Raises Timeout, Busy, Error."},
	{"status", request_status, METH_NOARGS, "status()\n--\n\n(state, errno, bytes, post_ns, time_ns, estimate_ns, descriptors, pieces, backend)."},
	{"wait", request_wait, METH_VARARGS, "wait(timeout)\n--\n\nTrue: all is there; False: it still goes on. Raises why it failed."},
	{"cancel", request_cancel, METH_VARARGS, "cancel(timeout)\n--\n\nNothing of it moves when it returns. Raises Busy."},
	{"release", request_release, METH_NOARGS, "release()\n--\n\nGives it back. Raises Busy while bytes may move."},
	{"results", request_results, METH_VARARGS, "results(first, n)\n--\n\n(errno, bytes) per descriptor."},
	{"explain", request_explain, METH_NOARGS, "explain()\n--\n\nWhy it has its backend."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot request_slots[] = {
	{Py_tp_doc, (void *)"A transfer that can be posted any number of times."},
	{Py_tp_dealloc, (void *)request_dealloc},
	{Py_tp_methods, request_methods},
	{0, NULL},
};

static PyType_Spec request_spec = {
	.name = "tenuto._core.XferRequest",
	.basicsize = sizeof(struct xfer_request),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = request_slots,
};

int tn_py_xfer_request_add(PyObject *module)
{
	list_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &list_spec, NULL);
	request_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &request_spec, NULL);
	if (!list_type || !request_type)
		return -1;
	return PyModule_AddType(module, list_type) || PyModule_AddType(module, request_type) ? -1 : 0;
}
