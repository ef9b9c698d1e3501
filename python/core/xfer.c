/* SPDX-License-Identifier: Apache-2.0 */
/* _core.XferAgent: an agent of tenuto/xfer.h. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "xfer.h"

struct tn_xfer_agent *tn_py_xfer_enter(struct tn_py_xfer_agent *agent)
{
	if (agent->a && agent->pid != getpid()) {
		tn_py_raise_text(-ECHILD, "the agent is the parent's: create another one");
		return NULL;
	}
	if (!agent->a) {
		tn_py_raise_text(-EBADF, "the agent was closed");
		return NULL;
	}
	agent->inside++;
	return agent->a;
}

void tn_py_xfer_leave(struct tn_py_xfer_agent *agent)
{
	agent->inside--;
}

/* ---- runs and sections ------------------------------------------------------------------------------------------------- */

/* An array of uint64 with 3 or 5 columns: 1; it is none: 0; -1 with an exception. */
static int runs_of_array(PyObject *from, struct tn_py_runs *out)
{
	Py_buffer view;
	const uint64_t *at;
	Py_ssize_t columns;

	if (!PyObject_CheckBuffer(from) || PyBytes_Check(from))
		return 0;
	if (PyObject_GetBuffer(from, &view, PyBUF_ND | PyBUF_FORMAT))
		return -1;
	columns = view.ndim == 2 ? view.shape[1] : 0;
	if (view.itemsize != 8 || (columns != 3 && columns != 5) || view.shape[0] > UINT32_MAX || !view.format || !strchr("lLqQ", view.format[strlen(view.format) - 1])) {
		PyBuffer_Release(&view);
		PyErr_SetString(PyExc_ValueError, "an array of descriptors has 64-bit whole numbers in 3 columns (address, bytes, device) or 5 (... stride, count)");
		return -1;
	}
	out->n = (uint32_t)view.shape[0];
	out->run = PyMem_Malloc((out->n + (size_t)1) * sizeof(*out->run));
	if (!out->run) {
		PyBuffer_Release(&view);
		PyErr_NoMemory();
		return -1;
	}
	at = view.buf;
	for (uint32_t i = 0; i < out->n; i++, at += columns)
		out->run[i] = (struct tn_xfer_run){at[0], at[1], at[2], columns == 5 ? at[3] : 0, columns == 5 ? at[4] : 1};
	PyBuffer_Release(&view);
	return 1;
}

int tn_py_xfer_runs(PyObject *from, struct tn_py_runs *out)
{
	int rc = runs_of_array(from, out);
	Py_ssize_t n;

	if (rc)
		return rc < 0 ? -1 : 0;
	n = PySequence_Size(from);
	if (n < 0 || n > (Py_ssize_t)UINT32_MAX)
		return -1;
	out->n = (uint32_t)n;
	out->run = PyMem_Malloc(((size_t)n + 1) * sizeof(*out->run));
	if (!out->run) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = PySequence_GetItem(from, i), *tuple = item ? PySequence_Tuple(item) : NULL;
		unsigned long long address, bytes, device, stride = 0, count = 1;
		bool good = tuple && PyArg_ParseTuple(tuple, "KKK|KK;a descriptor is (address, bytes, device) or (address, bytes, device, stride, count)", &address,
						      &bytes, &device, &stride, &count);

		Py_XDECREF(tuple);
		Py_XDECREF(item);
		if (!good) {
			PyMem_Free(out->run);
			return -1;
		}
		out->run[i] = (struct tn_xfer_run){address, bytes, device, stride, count};
	}
	return 0;
}

/* Sections from (address, bytes, device[, meta]) or from an array; texts belong to the tuples, which `keep` holds. */
struct sections {
	struct tn_xfer_section *s;
	uint32_t n;
	PyObject *keep;
};

static void sections_free(struct sections *s)
{
	PyMem_Free(s->s);
	Py_XDECREF(s->keep);
}

static bool sections_of_array(PyObject *from, struct sections *out)
{
	struct tn_py_runs runs = {0};

	if (runs_of_array(from, &runs) != 1)
		return false;
	out->n = runs.n;
	out->s = PyMem_Calloc(runs.n + (size_t)1, sizeof(*out->s));
	for (uint32_t i = 0; out->s && i < runs.n; i++)
		out->s[i] = (struct tn_xfer_section){runs.run[i].address, runs.run[i].bytes, runs.run[i].device, NULL};
	PyMem_Free(runs.run);
	if (!out->s)
		PyErr_NoMemory();
	return out->s != NULL;
}

static int sections_from(PyObject *from, struct sections *out)
{
	Py_ssize_t n;

	*out = (struct sections){0};
	if (sections_of_array(from, out))
		return 0;
	if (PyErr_Occurred())
		return -1;
	out->keep = PySequence_Tuple(from);
	n = out->keep ? PyTuple_Size(out->keep) : -1;
	out->s = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof(*out->s));
	if (!out->s) {
		Py_CLEAR(out->keep);
		if (!PyErr_Occurred())
			PyErr_NoMemory();
		return -1;
	}
	out->n = (uint32_t)n;
	for (Py_ssize_t i = 0; i < n; i++) {
		unsigned long long address, bytes, device = 0;

		if (!PyTuple_Check(PyTuple_GetItem(out->keep, i)) ||
		    !PyArg_ParseTuple(PyTuple_GetItem(out->keep, i), "KK|Kz;a section is (address, bytes, device, meta)", &address, &bytes, &device, &out->s[i].meta)) {
			if (!PyErr_Occurred())
				PyErr_SetString(PyExc_TypeError, "a section is a tuple (address, bytes, device, meta)");
			sections_free(out);
			return -1;
		}
		out->s[i].address = address;
		out->s[i].bytes = bytes;
		out->s[i].device = device;
	}
	return 0;
}

/* ---- the agent --------------------------------------------------------------------------------------------------------- */

/* Names from a sequence of str: an array that points into `keep`. */
static const char **texts_from(PyObject *from, uint32_t *n, PyObject **keep)
{
	const char **out;

	*keep = PySequence_Tuple(from);
	if (!*keep)
		return NULL;
	*n = (uint32_t)PyTuple_Size(*keep);
	out = PyMem_Calloc(*n + (size_t)1, sizeof(*out));
	for (uint32_t i = 0; out && i < *n; i++) {
		out[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(*keep, i), NULL);
		if (!out[i]) {
			PyMem_Free((void *)(uintptr_t)out);
			return NULL;
		}
	}
	if (!out)
		PyErr_NoMemory();
	return out;
}

static PyObject *agent_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"name", "backends", "listen", "secret", "connect_ns", "notifications_max", NULL};
	struct tn_xfer_agent_opts opts;
	PyObject *backends = Py_None, *keep = NULL;
	unsigned long long connect_ns;
	const char *secret = NULL, **specs = NULL;
	Py_ssize_t secret_bytes = 0;
	struct tn_py_xfer_agent *self;
	int rc;

	tn_xfer_agent_opts_init(&opts);
	connect_ns = opts.connect_ns;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|Ozz#KI", names, &opts.name, &backends, &opts.listen, &secret, &secret_bytes, &connect_ns,
					 &opts.notifications_max))
		return NULL;
	if (backends != Py_None) {
		specs = texts_from(backends, &opts.nbackends, &keep);
		if (!specs) {
			Py_XDECREF(keep);
			return NULL;
		}
	}
	opts.backends = specs;
	opts.secret = secret;
	opts.secret_bytes = (size_t)secret_bytes;
	opts.connect_ns = connect_ns;
	self = tn_py_new(type);
	if (self && !(self->log = tn_py_xfer_log_new()))
		Py_CLEAR(self);
	if (self) {
		opts.log = tn_py_xfer_log_line;
		opts.log_arg = self->log;
		Py_BEGIN_ALLOW_THREADS;
		rc = tn_xfer_agent_create(&opts, &self->a);
		Py_END_ALLOW_THREADS;
		self->pid = getpid();
		if (rc) {
			tn_py_raise(rc);
			Py_DECREF((PyObject *)self);
			self = NULL;
		}
	}
	PyMem_Free((void *)(uintptr_t)specs);
	Py_XDECREF(keep);
	return (PyObject *)self;
}

static PyObject *agent_close(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_xfer_agent *a = agent->a;
	int rc;

	if (!a || agent->pid != getpid())
		return Py_NewRef(Py_None);
	if (agent->inside)
		return tn_py_raise_text(-EBUSY, "another thread is in a call of the agent");
	if (agent->lists || agent->requests)
		return tn_py_raise_text(-EBUSY, "the agent has lists or requests: release them first");
	agent->a = NULL; /* no call begins any more, and none is under way */
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_xfer_agent_destroy(a);
	Py_END_ALLOW_THREADS;
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static void agent_dealloc(PyObject *self)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;

	/* Its lists and requests are gone: they hold it. */
	if (agent->a && agent->pid == getpid()) {
		Py_BEGIN_ALLOW_THREADS;
		tn_xfer_agent_destroy(agent->a);
		Py_END_ALLOW_THREADS;
	}
	tn_py_xfer_log_free(agent->log);
	tn_py_free(self);
}

static PyObject *agent_backend_add(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *spec;
	int rc;

	if (!PyArg_ParseTuple(args, "s", &spec) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_backend_add(agent->a, spec));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_backends(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_xfer_backend_info info = {.size = sizeof(info)};
	PyObject *list = PyList_New(0);

	if (!list || !tn_py_xfer_enter(agent)) {
		Py_XDECREF(list);
		return NULL;
	}
	for (uint32_t i = 0; list && tn_xfer_backend_get(agent->a, i, &info) == 0; i++) {
		PyObject *item = Py_BuildValue("(sIKK)", info.name, info.segments, (unsigned long long)info.latency_ns, (unsigned long long)info.bytes_per_s);

		if (!item || PyList_Append(list, item))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	tn_py_xfer_leave(agent);
	return list;
}

static PyObject *agent_register(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct sections s;
	PyObject *from;
	int segment, rc;

	if (!PyArg_ParseTuple(args, "iO", &segment, &from) || sections_from(from, &s))
		return NULL;
	if (!tn_py_xfer_enter(agent)) {
		sections_free(&s);
		return NULL;
	}
	TN_PY_XFER(agent, rc = tn_xfer_register(agent->a, segment, s.s, s.n));
	sections_free(&s);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_deregister(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct sections s;
	PyObject *from, *timeout;
	uint64_t deadline_ns;
	int segment, rc;

	if (!PyArg_ParseTuple(args, "iOO", &segment, &from, &timeout) || tn_py_deadline(timeout, &deadline_ns) || sections_from(from, &s))
		return NULL;
	if (!tn_py_xfer_enter(agent)) {
		sections_free(&s);
		return NULL;
	}
	TN_PY_XFER(agent, rc = tn_xfer_deregister(agent->a, segment, s.s, s.n, deadline_ns));
	sections_free(&s);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *answers(const struct tn_xfer_found *found, uint32_t n)
{
	PyObject *list = PyList_New(n);

	for (uint32_t i = 0; list && i < n; i++) {
		PyObject *item = found[i].exists ? PyLong_FromUnsignedLongLong(found[i].bytes) : Py_NewRef(Py_None);

		if (!item || PyList_SetItem(list, i, item))
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *agent_query(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_xfer_found *found;
	PyObject *from, *list = NULL;
	struct sections s;
	int segment, rc;

	if (!PyArg_ParseTuple(args, "iO", &segment, &from) || sections_from(from, &s))
		return NULL;
	found = PyMem_Calloc(s.n + (size_t)1, sizeof(*found));
	if (!found)
		PyErr_NoMemory();
	else if (tn_py_xfer_enter(agent)) {
		TN_PY_XFER(agent, rc = tn_xfer_query(agent->a, segment, s.s, s.n, found));
		list = rc ? tn_py_raise(rc) : answers(found, s.n);
	}
	PyMem_Free(found);
	sections_free(&s);
	return list;
}

static PyObject *agent_metadata(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct sections s = {0};
	PyObject *from = Py_None, *out = NULL;
	int64_t bytes = 0, got = -1;
	int segment = 0;

	if (!PyArg_ParseTuple(args, "|iO", &segment, &from) || (from != Py_None && sections_from(from, &s)))
		return NULL;
	/* It may grow or shrink between two calls. */
	while (got != bytes && tn_py_xfer_enter(agent)) {
		bytes = tn_xfer_metadata(agent->a, segment, s.s, s.n, NULL, 0);
		Py_CLEAR(out);
		out = bytes < 0 ? tn_py_raise((long)bytes) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
		got = out ? tn_xfer_metadata(agent->a, segment, s.s, s.n, PyBytes_AsString(out), (size_t)bytes) : bytes;
		tn_py_xfer_leave(agent);
	}
	if (got != bytes)
		Py_CLEAR(out); /* the agent was closed meanwhile */
	sections_free(&s);
	return out;
}

static PyObject *agent_load(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	char name[TN_XFER_NAME_BYTES];
	Py_buffer metadata;
	int rc = 0;

	if (!PyArg_ParseTuple(args, "y*", &metadata))
		return NULL;
	if (!tn_py_xfer_enter(agent)) {
		PyBuffer_Release(&metadata);
		return NULL;
	}
	TN_PY_XFER(agent, rc = tn_xfer_load(agent->a, metadata.buf, (size_t)metadata.len, name));
	PyBuffer_Release(&metadata);
	return rc ? tn_py_raise(rc) : PyUnicode_FromString(name);
}

static PyObject *agent_fetch(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	char name[TN_XFER_NAME_BYTES];
	const char *address;
	uint64_t deadline_ns;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "sO", &address, &timeout) || tn_py_deadline(timeout, &deadline_ns) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_fetch(agent->a, address, deadline_ns, name));
	return rc ? tn_py_raise(rc) : PyUnicode_FromString(name);
}

static PyObject *agent_directory(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *spec;
	int rc;

	if (!PyArg_ParseTuple(args, "s", &spec) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_directory_set(agent->a, spec));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_publish(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct sections s = {0};
	PyObject *from, *timeout;
	uint64_t deadline_ns;
	const char *label;
	int segment, rc;

	if (!PyArg_ParseTuple(args, "ziOO", &label, &segment, &from, &timeout) || tn_py_deadline(timeout, &deadline_ns) ||
	    (from != Py_None && sections_from(from, &s)))
		return NULL;
	if (!tn_py_xfer_enter(agent)) {
		sections_free(&s);
		return NULL;
	}
	TN_PY_XFER(agent, rc = tn_xfer_publish(agent->a, label, segment, s.s, s.n, deadline_ns));
	sections_free(&s);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_unpublish(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *label;
	uint64_t deadline_ns;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "zO", &label, &timeout) || tn_py_deadline(timeout, &deadline_ns) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_unpublish(agent->a, label, deadline_ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_lookup(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *peer, *label;
	uint64_t deadline_ns;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "szO", &peer, &label, &timeout) || tn_py_deadline(timeout, &deadline_ns) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_lookup(agent->a, peer, label, deadline_ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_connect(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *peer;
	uint64_t deadline_ns;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "sO", &peer, &timeout) || tn_py_deadline(timeout, &deadline_ns) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_connect(agent->a, peer, deadline_ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_invalidate(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	const char *peer;
	int rc;

	if (!PyArg_ParseTuple(args, "s", &peer) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_invalidate(agent->a, peer));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

/* ---- notifications and events --------------------------------------------------------------------------------- */

static PyObject *agent_notify(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	Py_buffer bytes;
	const char *peer;
	int rc = -EINVAL;

	if (!PyArg_ParseTuple(args, "sy*", &peer, &bytes))
		return NULL;
	if (bytes.len > (Py_ssize_t)UINT32_MAX || !tn_py_xfer_enter(agent)) {
		PyBuffer_Release(&bytes);
		return PyErr_Occurred() ? NULL : tn_py_raise_text(rc, "a notification of 4 GiB or more");
	}
	TN_PY_XFER(agent, rc = tn_xfer_notify(agent->a, peer, bytes.buf, (uint32_t)bytes.len));
	PyBuffer_Release(&bytes);
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static PyObject *agent_take(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	char sender[TN_XFER_NAME_BYTES], small[512], *at = small;
	PyObject *out = NULL;
	int64_t n;

	if (!tn_py_xfer_enter(agent))
		return NULL;
	n = tn_xfer_take(agent->a, sender, small, sizeof(small));
	if (n > (int64_t)sizeof(small)) {
		at = PyMem_Malloc(TN_XFER_NOTIFICATION_MAX);
		n = at ? tn_xfer_take(agent->a, sender, at, TN_XFER_NOTIFICATION_MAX) : -ENOMEM;
	}
	tn_py_xfer_leave(agent);
	if (n == -EAGAIN)
		out = Py_NewRef(Py_None);
	else
		out = n < 0 ? tn_py_raise((long)n) : Py_BuildValue("(sy#)", sender, at, (Py_ssize_t)n);
	if (at != small)
		PyMem_Free(at);
	return out;
}

static PyObject *agent_event(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	uint32_t word;

	if (!tn_py_xfer_enter(agent))
		return NULL;
	word = __atomic_load_n(tn_xfer_event_word(agent->a), __ATOMIC_ACQUIRE);
	tn_py_xfer_leave(agent);
	return PyLong_FromUnsignedLong(word);
}

static PyObject *agent_event_wait(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	uint64_t deadline_ns, until;
	unsigned int seen;
	uint32_t slices = 0;
	PyObject *timeout;
	int rc;

	if (!PyArg_ParseTuple(args, "IO", &seen, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	do {
		if (!tn_py_xfer_enter(agent))
			return NULL;
		until = tn_py_slice(&slices, deadline_ns);
		TN_PY_XFER(agent, rc = tn_xfer_event_wait(agent->a, seen, until));
		if (PyErr_CheckSignals())
			return NULL;
	} while (rc == -ETIMEDOUT && until < deadline_ns);
	return PyBool_FromLong(rc == 0);
}

static PyObject *agent_fileno(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	int fd;

	if (!tn_py_xfer_enter(agent))
		return NULL;
	fd = tn_xfer_eventfd(agent->a);
	tn_py_xfer_leave(agent);
	return fd < 0 ? tn_py_raise(fd) : PyLong_FromLong(fd);
}

static PyMethodDef agent_methods[] = {
	{"close", agent_close, METH_NOARGS, "close()\n--\n\nEnds the agent. Raises Busy while it has lists or requests."},
	{"backend_add", agent_backend_add, METH_VARARGS, "backend_add(spec)\n--\n\nOne more backend: \"file,engine=posix\"."},
	{"backends", agent_backends, METH_NOARGS, "backends()\n--\n\n(name, bits of segments, latency in ns, bytes per s) of each."},
	{"register", agent_register, METH_VARARGS, "register(segment, sections)\n--\n\nSections: (address, bytes, device, meta) each, or an array of 3 columns."},
	{"deregister", agent_deregister, METH_VARARGS, "deregister(segment, sections, timeout)\n--\n\nAs they were registered."},
	{"query", agent_query, METH_VARARGS, "query(segment, sections)\n--\n\nThe size of each that exists, else None."},
	{"metadata", agent_metadata, METH_VARARGS, "metadata(segment=DRAM, sections=None)\n--\n\nBytes for other agents; of some sections only, or of all."},
	{"load", agent_load, METH_VARARGS, "load(metadata)\n--\n\nTakes another agent's metadata: its name."},
	{"fetch", agent_fetch, METH_VARARGS, "fetch(address, timeout)\n--\n\nLoads the metadata of the agent that listens there: its name."},
	{"directory", agent_directory, METH_VARARGS, "directory(spec)\n--\n\nWhere metadata is published and looked up."},
	{"publish", agent_publish, METH_VARARGS, "publish(label, segment, sections, timeout)\n--\n\nPuts metadata into the directory."},
	{"unpublish", agent_unpublish, METH_VARARGS, "unpublish(label, timeout)\n--\n\nTakes an entry back."},
	{"lookup", agent_lookup, METH_VARARGS, "lookup(peer, label, timeout)\n--\n\nLoads what an agent has published."},
	{"connect", agent_connect, METH_VARARGS, "connect(peer, timeout)\n--\n\nNow, not with the first transfer."},
	{"invalidate", agent_invalidate, METH_VARARGS, "invalidate(peer)\n--\n\nForgets a peer."},
	{"peer", tn_py_xfer_peer, METH_VARARGS, "peer(name)\n--\n\n(state, sections, generation, revision), or None."},
	{"peer_sections", tn_py_xfer_peer_sections, METH_VARARGS, "peer_sections(name)\n--\n\n(segment, address, bytes, device) of each that is known."},
	{"list", tn_py_xfer_list, METH_VARARGS, "list(peer, segment, runs)\n--\n\nAn XferList; peer None: of this agent."},
	{"request", tn_py_xfer_request, METH_VARARGS,
	 "request(op, local, local_indices, remote, remote_indices, backends, notification_bytes)\n--\n\nAn XferRequest."},
	{"notify", agent_notify, METH_VARARGS, "notify(peer, bytes)\n--\n\nTells a peer something."},
	{"take", agent_take, METH_NOARGS, "take()\n--\n\n(sender, bytes) of the oldest notification, or None."},
	{"event", agent_event, METH_NOARGS, "event()\n--\n\nThe event word."},
	{"event_wait", agent_event_wait, METH_VARARGS, "event_wait(seen, timeout)\n--\n\nSleeps while the event word is seen; whether it rose."},
	{"fileno", agent_fileno, METH_NOARGS, "fileno()\n--\n\nAn eventfd that is readable after the event word rose."},
	{"stats", tn_py_xfer_stats, METH_NOARGS, "stats()\n--\n\nStatistics by name."},
	{"fetch_stats", tn_py_xfer_fetch_stats, METH_VARARGS, "fetch_stats(address, timeout)\n--\n\nOf the agent that listens there, as lines \"NAME VALUE\"."},
	{"log_lines", tn_py_xfer_log_lines, METH_NOARGS, "log_lines()\n--\n\n(level, where, text) of each line since the last call."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot agent_slots[] = {
	{Py_tp_doc, (void *)"XferAgent(name, backends=None, listen=None, secret=None, connect_ns=5000000000, notifications_max=4096)\n--\n\n"
			    "A transfer agent; tenuto.xfer.Agent is made of it."},
	{Py_tp_new, (void *)agent_new},
	{Py_tp_dealloc, (void *)agent_dealloc},
	{Py_tp_methods, agent_methods},
	{0, NULL},
};

static PyType_Spec agent_spec = {
	.name = "tenuto._core.XferAgent",
	.basicsize = sizeof(struct tn_py_xfer_agent),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = agent_slots,
};

static const struct {
	const char *name;
	long value;
} constants[] = {
	{"XFER_DRAM", TN_XFER_DRAM},	 {"XFER_VRAM", TN_XFER_VRAM},	  {"XFER_BLOCK", TN_XFER_BLOCK},   {"XFER_OBJECT", TN_XFER_OBJECT},
	{"XFER_FILE", TN_XFER_FILE},	 {"XFER_READ", TN_XFER_READ},	  {"XFER_WRITE", TN_XFER_WRITE},   {"XFER_IDLE", TN_XFER_IDLE},
	{"XFER_ACTIVE", TN_XFER_ACTIVE}, {"XFER_ENDING", TN_XFER_ENDING}, {"XFER_ENDED", TN_XFER_ENDED},   {"XFER_PEER_LOADED", TN_XFER_PEER_LOADED},
	{"XFER_PEER_CONNECTED", TN_XFER_PEER_CONNECTED},		  {"XFER_PEER_LOST", TN_XFER_PEER_LOST},
};

static PyObject *backend_names(PyObject *module, PyObject *nothing)
{
	PyObject *list = PyList_New(0);

	for (uint32_t i = 0; list && tn_xfer_backend_name(i); i++) {
		PyObject *name = PyUnicode_FromString(tn_xfer_backend_name(i));

		if (!name || PyList_Append(list, name))
			Py_CLEAR(list);
		Py_XDECREF(name);
	}
	return list;
}

static PyObject *pack(PyObject *module, PyObject *args)
{
	struct tn_py_runs runs;
	PyObject *from, *out;
	int64_t bytes;
	int segment;

	if (!PyArg_ParseTuple(args, "iO", &segment, &from) || tn_py_xfer_runs(from, &runs))
		return NULL;
	bytes = tn_xfer_runs_pack(segment, runs.run, runs.n, NULL, 0);
	out = bytes < 0 ? tn_py_raise((long)bytes) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
	if (out)
		tn_xfer_runs_pack(segment, runs.run, runs.n, PyBytes_AsString(out), (size_t)bytes);
	PyMem_Free(runs.run);
	return out;
}

static PyObject *unpack(PyObject *module, PyObject *args)
{
	enum tn_xfer_segment segment;
	struct tn_xfer_run *runs = NULL;
	PyObject *list = NULL;
	Py_buffer bytes;
	int64_t n;

	if (!PyArg_ParseTuple(args, "y*", &bytes))
		return NULL;
	n = tn_xfer_runs_unpack(bytes.buf, (size_t)bytes.len, &segment, NULL, 0);
	runs = n < 0 ? NULL : PyMem_Malloc(((size_t)n + 1) * sizeof(*runs));
	if (runs) {
		tn_xfer_runs_unpack(bytes.buf, (size_t)bytes.len, &segment, runs, (uint32_t)n);
		list = PyList_New((Py_ssize_t)n);
	}
	for (Py_ssize_t i = 0; list && i < n; i++) {
		PyObject *item = Py_BuildValue("(KKKKK)", (unsigned long long)runs[i].address, (unsigned long long)runs[i].bytes, (unsigned long long)runs[i].device,
					       (unsigned long long)runs[i].stride, (unsigned long long)runs[i].count);

		if (!item || PyList_SetItem(list, i, item))
			Py_CLEAR(list);
	}
	PyBuffer_Release(&bytes);
	PyMem_Free(runs);
	if (n < 0)
		return tn_py_raise((long)n);
	return list ? Py_BuildValue("(iN)", (int)segment, list) : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

static PyMethodDef functions[] = {
	{"xfer_backend_names", backend_names, METH_NOARGS, "xfer_backend_names()\n--\n\nOf the backends that the library has."},
	{"xfer_pack", pack, METH_VARARGS, "xfer_pack(segment, runs)\n--\n\nDescriptors as bytes."},
	{"xfer_unpack", unpack, METH_VARARGS, "xfer_unpack(bytes)\n--\n\n(segment, runs) of xfer_pack."},
	{NULL, NULL, 0, NULL},
};

int tn_py_xfer_add(PyObject *module)
{
	PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &agent_spec, NULL);

	if (!type || PyModule_AddType(module, type))
		return -1;
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value))
			return -1;
	return PyModule_AddFunctions(module, functions) || tn_py_share_add(module) || tn_py_xfer_request_add(module) ? -1 : 0;
}
