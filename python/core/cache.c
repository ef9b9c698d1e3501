/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.Cache: opened here, or another process's; the list of all that are open, which are closed before the interpreter ends. */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/publish.h>

#include "client.h"
#include "op.h"

/* A first slice of a wait, and the longest: a signal comes through after one at most. */
#define SLICE_NS UINT64_C(100000000)
#define SLICE_DOUBLES 4u
/* How long the end of the interpreter waits for transfers of a cache that nobody closed. */
#define EXIT_NS UINT64_C(10000000000)

static struct tn_py_link open_caches = {&open_caches, &open_caches};

/* ---- lists ------------------------------------------------------------------------------------------------------------- */

void tn_py_link_init(struct tn_py_link *head)
{
	head->next = head->prev = head;
}

void tn_py_link_add(struct tn_py_link *head, struct tn_py_link *link)
{
	link->next = head;
	link->prev = head->prev;
	head->prev->next = link;
	head->prev = link;
}

void tn_py_link_remove(struct tn_py_link *link)
{
	if (!link->next)
		return;
	link->prev->next = link->next;
	link->next->prev = link->prev;
	tn_py_link_init(link);
}

/* ---- calls and waits --------------------------------------------------------------------------------------------------- */

bool tn_py_enter_to_end(struct tn_py_cache *cache)
{
	if (!cache->c)
		return false;
	Py_INCREF((PyObject *)cache);
	cache->inside++;
	return true;
}

bool tn_py_enter(struct tn_py_cache *cache)
{
	if (!cache->closing && tn_py_enter_to_end(cache))
		return true;
	tn_py_raise_text(-EBADF, "the cache is closed");
	return false;
}

void tn_py_leave(struct tn_py_cache *cache)
{
	cache->inside--;
	Py_DECREF((PyObject *)cache);
}

uint64_t tn_py_slice(uint32_t *slices, uint64_t deadline_ns)
{
	uint32_t doubles = *slices < SLICE_DOUBLES ? *slices : SLICE_DOUBLES;
	uint64_t until = tn_py_now_ns() + (SLICE_NS << doubles);

	(*slices)++;
	return until < deadline_ns ? until : deadline_ns;
}

int tn_py_go_on(const struct tn_py_cache *cache)
{
	if (PyErr_CheckSignals())
		return -1;
	if (!cache->closing)
		return 0;
	tn_py_raise_text(-EBADF, "the cache was closed meanwhile");
	return -1;
}

/* ---- open ------------------------------------------------------------------------------------------------------------- */

static const struct tn_py_field options[] = {
	{"instance", TN_PY_TEXT, offsetof(struct tn_cache_opts, instance)},
	{"disk_bytes", TN_PY_U64, offsetof(struct tn_cache_opts, disk_bytes)},
	{"disk_blocks", TN_PY_U64, offsetof(struct tn_cache_opts, disk_blocks)},
	{"host_bytes", TN_PY_U64, offsetof(struct tn_cache_opts, host_bytes)},
	{"max_blocks", TN_PY_U64, offsetof(struct tn_cache_opts, max_blocks)},
	{"max_ops", TN_PY_U32, offsetof(struct tn_cache_opts, max_ops)},
	{"max_op_blocks", TN_PY_U32, offsetof(struct tn_cache_opts, max_op_blocks)},
	{"io_depth", TN_PY_U32, offsetof(struct tn_cache_opts, io_depth)},
	{"io_engine", TN_PY_TEXT, offsetof(struct tn_cache_opts, io_engine)},
	{"executors", TN_PY_U32, offsetof(struct tn_cache_opts, executors)},
	{"workers", TN_PY_U32, offsetof(struct tn_cache_opts, workers)},
	{"policy", TN_PY_TEXT, offsetof(struct tn_cache_opts, policy)},
	{"verify", TN_PY_BOOL, offsetof(struct tn_cache_opts, verify)},
	{"read_only", TN_PY_BOOL, offsetof(struct tn_cache_opts, read_only)},
	{"write_bytes_per_day", TN_PY_U64, offsetof(struct tn_cache_opts, write_bytes_per_day)},
	{"header_cache_bytes", TN_PY_U64, offsetof(struct tn_cache_opts, header_cache_bytes)},
	{"lock_timeout_ns", TN_PY_U64, offsetof(struct tn_cache_opts, lock_timeout_ns)},
	{"seed", TN_PY_U64, offsetof(struct tn_cache_opts, seed)},
	{"scheduler", TN_PY_TEXT, offsetof(struct tn_cache_opts, scheduler)},
	{"write_backlog_bytes", TN_PY_U64, offsetof(struct tn_cache_opts, write_backlog_bytes)},
	{"offload_lag_ms", TN_PY_U32, offsetof(struct tn_cache_opts, offload_lag_ms)},
	{"durability_ms", TN_PY_U32, offsetof(struct tn_cache_opts, durability_ms)},
	{"device_bytes", TN_PY_U64, offsetof(struct tn_cache_opts, device_tier.bytes)},
	{"device", TN_PY_U32, offsetof(struct tn_cache_opts, device_tier.device)},
	{"transfer", TN_PY_TEXT, offsetof(struct tn_cache_opts, transfer)},
	{"transfer_streams", TN_PY_U32, offsetof(struct tn_cache_opts, transfer_streams)},
	{"cluster_secret_file", TN_PY_TEXT, offsetof(struct tn_cache_opts, cluster_secret_file)},
	{"remote", TN_PY_TEXT, offsetof(struct tn_cache_opts, remote)},
	{"offload", TN_PY_TEXT, offsetof(struct tn_cache_opts, offload)},
	{NULL, 0, 0},
};

static void log_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *done = PyObject_CallFunction(((struct tn_py_cache *)arg)->log, "iss", (int)level, where, text);

	if (!done)
		PyErr_WriteUnraisable(((struct tn_py_cache *)arg)->log);
	Py_XDECREF(done);
	PyGILState_Release(state);
}

/* Keywords that are not plain numbers or texts. Return: how many; -1 with an exception. */
static Py_ssize_t objects_from(PyObject *kw, struct tn_cache_opts *opts, struct tn_py_cache *self)
{
	PyObject *log = kw ? PyDict_GetItemString(kw, "log") : NULL, *level = kw ? PyDict_GetItemString(kw, "log_level") : NULL,
		 *geometry = kw ? PyDict_GetItemString(kw, "geometry") : NULL, *driver = kw ? PyDict_GetItemString(kw, "device_driver") : NULL; /* borrowed */

	if (log && log != Py_None) {
		self->log = Py_NewRef(log);
		opts->log = log_line;
		opts->log_arg = self;
	}
	if (level && level != Py_None) {
		long number = PyLong_AsLong(level);

		if (PyErr_Occurred())
			return -1;
		opts->log_level = (enum tn_log_level)number;
	}
	if (geometry && geometry != Py_None) {
		if (!PyObject_TypeCheck(geometry, tn_py_geometry_type)) {
			PyErr_SetString(PyExc_TypeError, "geometry is a Geometry");
			return -1;
		}
		opts->geometry = &((struct tn_py_geometry *)geometry)->g;
	}
	if (driver && driver != Py_None) {
		const char *text = PyUnicode_AsUTF8AndSize(driver, NULL);

		if (!text || !tn_py_open_driver(text, &opts->device_tier.driver))
			return -1;
	}
	return (log != NULL) + (level != NULL) + (geometry != NULL) + (driver != NULL);
}

static bool is_option(PyObject *name)
{
	static const char *const others[] = {"log", "log_level", "geometry", "device_driver"};
	bool is = false;

	for (const struct tn_py_field *f = options; f->name; f++)
		is |= PyUnicode_CompareWithASCIIString(name, f->name) == 0;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		is |= PyUnicode_CompareWithASCIIString(name, others[i]) == 0;
	return is;
}

static int options_from(PyObject *kw, struct tn_cache_opts *opts, struct tn_py_cache *self)
{
	PyObject *name, *value;
	Py_ssize_t known, at = 0;

	tn_cache_opts_init(opts);
	opts->log_level = TN_LOG_WARN;
	known = objects_from(kw, opts, self);
	if (known < 0 || tn_py_fields(kw, options, opts, &known))
		return -1;
	if (!kw || known == PyDict_Size(kw))
		return 0;
	while (PyDict_Next(kw, &at, &name, &value) && is_option(name))
		;
	PyErr_Format(PyExc_TypeError, "a cache has no option '%U': see help(tenuto.Cache)", name);
	return -1;
}

/* Whatever is open is closed before the interpreter ends: asked for with the first cache. */
static int at_exit(void)
{
	static bool asked;
	PyObject *atexit, *module, *close_all, *done = NULL;

	if (asked)
		return 0;
	atexit = PyImport_ImportModule("atexit");
	module = atexit ? PyImport_ImportModule("tenuto._core") : NULL;
	close_all = module ? PyObject_GetAttrString(module, "_close_all") : NULL;
	if (close_all)
		done = PyObject_CallMethod(atexit, "register", "O", close_all);
	asked = done != NULL;
	Py_XDECREF(done);
	Py_XDECREF(close_all);
	Py_XDECREF(module);
	Py_XDECREF(atexit);
	return asked ? 0 : -1;
}

static struct tn_py_cache *new_cache(PyTypeObject *type)
{
	struct tn_py_cache *self = at_exit() ? NULL : tn_py_new(type);

	if (!self)
		return NULL;
	for (int i = 0; i < TN_PY_CHILDREN; i++)
		tn_py_link_init(&self->children[i]);
	tn_py_link_init(&self->ops);
	tn_py_link_init(&self->open);
	self->pid = getpid();
	return self;
}

static PyObject *opened(struct tn_py_cache *self, int rc)
{
	if (rc) {
		tn_py_raise(rc);
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	tn_py_link_add(&open_caches, &self->open);
	return (PyObject *)self;
}

/* dirs: a tuple of bytes, as os.fsencode gives them. */
static PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	const char *dirs[TN_DEVICES_MAX];
	struct tn_cache_opts opts;
	struct tn_py_cache *self;
	PyObject *paths;
	Py_ssize_t n;
	int rc;

	if (!PyArg_ParseTuple(args, "O!;a tuple of directories is wanted", &PyTuple_Type, &paths))
		return NULL;
	n = PyTuple_Size(paths);
	if (n > TN_DEVICES_MAX)
		return PyErr_Format(PyExc_ValueError, "%zd directories: at most %d", n, TN_DEVICES_MAX);
	for (Py_ssize_t i = 0; i < n; i++) {
		dirs[i] = PyBytes_AsString(PyTuple_GetItem(paths, i));
		if (!dirs[i])
			return NULL;
	}
	self = new_cache(type);
	if (!self)
		return NULL;
	if (options_from(kw, &opts, self)) {
		Py_DECREF((PyObject *)self);
		return NULL;
	}
	opts.dirs = dirs;
	opts.ndirs = (size_t)n;
	Py_BEGIN_ALLOW_THREADS;
	rc = tn_cache_open(&opts, &self->c);
	Py_END_ALLOW_THREADS;
	return opened(self, rc);
}

/* Class method: attach(path, instance=None, token=None, timeout=None): with an instance, path is a directory of a store. */
static PyObject *cache_attach(PyObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"path", "instance", "token", "timeout", NULL};
	const char *path, *instance = NULL, *token = NULL;
	PyObject *timeout = Py_None;
	struct tn_attach_opts opts;
	struct tn_py_cache *self;
	int rc;

	tn_attach_opts_init(&opts);
	if (!PyArg_ParseTupleAndKeywords(args, kw, "y|zzO", names, &path, &instance, &token, &timeout) ||
	    (timeout != Py_None && tn_py_deadline(timeout, &opts.deadline_ns)))
		return NULL;
	opts.token = token;
	self = new_cache((PyTypeObject *)type);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	rc = instance ? tn_cache_attach_store(path, instance, &opts, &self->c) : tn_cache_attach(path, &opts, &self->c);
	Py_END_ALLOW_THREADS;
	return opened(self, rc);
}

/* ---- close ------------------------------------------------------------------------------------------------------------- */

/* What all of these return with an exception of a signal; another close goes on from there. */
#define INTERRUPTED (-1000)

/* Waits until nobody is inside; threads of the parent did not come along into a forked child. Return: 0; INTERRUPTED; 1 at the deadline. */
static int wait_for_calls(struct tn_py_cache *cache, uint64_t deadline_ns)
{
	const struct timespec nap = {0, 200000};

	while (cache->inside > 0 && cache->pid == getpid()) {
		if (tn_py_now_ns() >= deadline_ns)
			return 1;
		tn_py_ops_stop(cache);
		Py_BEGIN_ALLOW_THREADS;
		nanosleep(&nap, NULL);
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return INTERRUPTED;
	}
	return 0;
}

static int end_operations(struct tn_py_cache *cache, uint64_t deadline_ns)
{
	uint32_t slices = 0;
	uint64_t until;

	do {
		until = tn_py_slice(&slices, deadline_ns);
		if (tn_py_ops_end(cache, until) == 0)
			return 0;
		if (PyErr_CheckSignals())
			return INTERRUPTED;
	} while (until < deadline_ns);
	return 1;
}

#define CHILD(at, type) ((struct type *)(void *)((char *)(at)-offsetof(struct type, link)))

/* Until one cannot be. Each is held while it is closed: its last user may drop it meanwhile. */
#define CLOSE_ALL(list, type, close)                                    \
	while (rc == 0 && (list)->next != (list)) {                     \
		struct type *child = CHILD((list)->next, type);         \
		Py_INCREF((PyObject *)child);                           \
		close;                                                  \
		Py_DECREF((PyObject *)child);                           \
	}

/* Other threads drop some of them at this moment: their calls are waited for, those of pools before the memories. Return: as close_until. */
static int close_children(struct tn_py_cache *cache, uint64_t deadline_ns)
{
	struct tn_py_link *list = cache->children;
	int rc = 0;

	do {
		CLOSE_ALL(&list[TN_PY_CLIENTS], tn_py_client, tn_py_client_close(child));
		CLOSE_ALL(&list[TN_PY_POOLS], tn_py_pool, rc = tn_py_pool_close(child));
		rc = rc ? rc : wait_for_calls(cache, deadline_ns);
	} while (rc == 0 && list[TN_PY_POOLS].next != &list[TN_PY_POOLS]); /* a thread could not close one, and has put it back */
	CLOSE_ALL(&list[TN_PY_MEMORIES], tn_py_memory, rc = tn_py_memory_close(child));
	CLOSE_ALL(&list[TN_PY_SEQUENCES], tn_py_sequence, tn_py_sequence_close(child));
	CLOSE_ALL(&list[TN_PY_SPACES], tn_py_space, tn_py_space_close(child));
	CLOSE_ALL(&list[TN_PY_EVENTS], tn_py_event, tn_py_event_close(child));
	return rc ? rc : wait_for_calls(cache, deadline_ns);
}

/*
 * Return: 0; a negative errno; 1 at the deadline; INTERRUPTED. The cache is closed if it has no c afterwards: an errno may be that of
 * tn_cache_close, or say why it is still open. Then, unless it is stuck, another close goes on from there.
 */
static int close_until(struct tn_py_cache *cache, uint64_t deadline_ns)
{
	struct tn_publisher *publisher;
	struct tn_cache *c;
	int rc;

	cache->closing = true;
	rc = wait_for_calls(cache, deadline_ns);
	rc = rc ? rc : end_operations(cache, deadline_ns);
	rc = rc ? rc : close_children(cache, deadline_ns);
	if (rc == 0 && cache->stuck && cache->pid == getpid())
		rc = -EBUSY;
	if (rc)
		return rc;
	tn_py_link_remove(&cache->open);
	c = cache->c;
	cache->c = NULL;
	publisher = cache->publisher;
	cache->publisher = NULL; /* other threads ask for its figures */
	Py_BEGIN_ALLOW_THREADS;
	tn_publish_stop(publisher);
	rc = tn_cache_close(c);
	Py_END_ALLOW_THREADS;
	return rc == -ECHILD ? 0 : rc;
}

/* The exception of what close_until has returned, if it is one. */
static void raise_end(const struct tn_py_cache *cache, int rc)
{
	if (rc == -EBUSY && cache->stuck)
		tn_py_raise_text(rc, "bytes may still arrive in memory of the cache: it stays open until the process ends");
	else if (rc < 0 && rc != INTERRUPTED)
		tn_py_raise(rc);
}

static PyObject *cache_close(PyObject *self, PyObject *nothing)
{
	struct tn_py_cache *cache = (struct tn_py_cache *)self;

	raise_end(cache, cache->c ? close_until(cache, TN_FOREVER) : 0);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *tn_py_close_all(PyObject *module, PyObject *nothing)
{
	while (open_caches.next != &open_caches) {
		struct tn_py_cache *cache = (struct tn_py_cache *)(void *)((char *)open_caches.next - offsetof(struct tn_py_cache, open));
		int rc;

		tn_py_link_remove(&cache->open);
		Py_INCREF((PyObject *)cache);
		rc = cache->c ? close_until(cache, tn_py_now_ns() + EXIT_NS) : 0;
		raise_end(cache, rc);
		if (PyErr_Occurred())
			PyErr_WriteUnraisable((PyObject *)cache);
		if (!cache->c || rc == INTERRUPTED)
			Py_DECREF((PyObject *)cache); /* else its transfers need the pages until the process ends */
	}
	return Py_NewRef(Py_None);
}

static PyObject *cache_enter(PyObject *self, PyObject *nothing)
{
	return Py_NewRef(self);
}

static PyObject *cache_exit(PyObject *self, PyObject *args)
{
	PyObject *done = cache_close(self, NULL);

	if (!done)
		return NULL;
	Py_DECREF(done);
	return Py_NewRef(Py_False);
}

static void cache_dealloc(PyObject *self)
{
	struct tn_py_cache *cache = (struct tn_py_cache *)self;
	PyObject *type, *value, *trace;

	PyObject_GC_UnTrack(self);
	tn_py_link_remove(&cache->open);
	if (cache->c) { /* all of its children are gone: they hold it */
		PyErr_Fetch(&type, &value, &trace); /* of whoever drops it */
		raise_end(cache, close_until(cache, TN_FOREVER));
		if (PyErr_Occurred())
			PyErr_WriteUnraisable(NULL);
		PyErr_Restore(type, value, trace);
	}
	if (cache->c)
		return; /* left open: its threads find the log here until the process ends */
	Py_XDECREF(cache->log);
	tn_py_free(self);
}

static int cache_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct tn_py_cache *)self)->log);
	return 0;
}

/* ---- flush, serve --------------------------------------------------------------------------------------------------------- */

static PyObject *cache_flush(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct tn_py_cache *cache = (struct tn_py_cache *)self;
	PyObject *timeout = Py_None;
	uint64_t deadline_ns, until;
	uint32_t slices = 0;
	int rc;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O", names, &timeout) || tn_py_deadline(timeout, &deadline_ns))
		return NULL;
	do {
		until = tn_py_slice(&slices, deadline_ns);
		if (!tn_py_enter(cache))
			return NULL;
		TN_PY_CALL(cache, rc = tn_flush(cache->c, until));
	} while (rc == -ETIMEDOUT && until < deadline_ns && tn_py_go_on(cache) == 0);
	if (PyErr_Occurred())
		return NULL;
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

static const struct tn_py_field rule_fields[] = {
	{"uid", TN_PY_U32, offsetof(struct tn_serve_rule, uid)},
	{"token", TN_PY_TEXT, offsetof(struct tn_serve_rule, token)},
	{"read_only", TN_PY_BOOL, offsetof(struct tn_serve_rule, read_only)},
	{"max_priority", TN_PY_I32, offsetof(struct tn_serve_rule, max_priority)},
	{NULL, 0, 0},
};

/* A rule, its tenants and its quota: what C's points to. */
struct rules {
	struct tn_serve_rule rule[TN_SERVE_RULES_MAX];
	struct tn_quota quota[TN_SERVE_RULES_MAX];
	const char **tenants[TN_SERVE_RULES_MAX];
	uint32_t n;
};

static bool tenants_from(PyObject *from, struct rules *r)
{
	Py_ssize_t n = PyTuple_Check(from) ? PyTuple_Size(from) : -1;

	if (n < 0) {
		PyErr_SetString(PyExc_TypeError, "a rule's tenants are a tuple of texts");
		return false;
	}
	r->tenants[r->n] = PyMem_Calloc((size_t)n + 1, sizeof(char *));
	for (Py_ssize_t i = 0; r->tenants[r->n] && i < n; i++) {
		r->tenants[r->n][i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(from, i), NULL);
		if (!r->tenants[r->n][i])
			return false;
	}
	r->rule[r->n].tenants = r->tenants[r->n];
	r->rule[r->n].ntenants = (uint32_t)n;
	return r->tenants[r->n] || PyErr_NoMemory();
}

static bool rule_from(PyObject *from, struct rules *r)
{
	struct tn_serve_rule *rule = &r->rule[r->n];
	PyObject *tenants, *quota;
	Py_ssize_t known;

	if (!PyDict_Check(from)) {
		PyErr_SetString(PyExc_TypeError, "a rule is a dict");
		return false;
	}
	tn_serve_rule_init(rule);
	tenants = PyDict_GetItemString(from, "tenants"); /* borrowed, as quota */
	quota = PyDict_GetItemString(from, "quota");
	known = (tenants != NULL) + (quota != NULL);
	if (tn_py_fields(from, rule_fields, rule, &known) || (tenants && !tenants_from(tenants, r)) || tn_py_quota(quota, &r->quota[r->n]))
		return false;
	if (quota && quota != Py_None)
		rule->quota = &r->quota[r->n];
	if (known == PyDict_Size(from))
		return true;
	PyErr_SetString(PyExc_ValueError, "a rule has uid, token, tenants, read_only, max_priority and quota");
	return false;
}

static PyObject *cache_serve(PyObject *self, PyObject *args)
{
	struct tn_py_cache *cache = (struct tn_py_cache *)self;
	struct tn_serve_opts opts;
	struct rules *r;
	PyObject *list;
	const char *path;
	int anew, rc = -1;

	if (!PyArg_ParseTuple(args, "yO!p;a path, a tuple of rules, and whether it is served already", &path, &PyTuple_Type, &list, &anew))
		return NULL;
	r = PyMem_Calloc(1, sizeof(*r));
	if (!r)
		return PyErr_NoMemory();
	if (PyTuple_Size(list) > (Py_ssize_t)TN_SERVE_RULES_MAX)
		PyErr_Format(PyExc_ValueError, "%zd rules: at most %u", PyTuple_Size(list), TN_SERVE_RULES_MAX);
	while (!PyErr_Occurred() && (Py_ssize_t)r->n < PyTuple_Size(list) && rule_from(PyTuple_GetItem(list, r->n), r))
		r->n++;
	tn_serve_opts_init(&opts);
	opts.rules = r->rule;
	opts.nrules = r->n;
	if (!PyErr_Occurred() && tn_py_enter(cache)) {
		TN_PY_CALL(cache, rc = anew ? tn_cache_serve_anew(cache->c, &opts) : tn_cache_serve(cache->c, path, &opts));
		if (rc)
			tn_py_raise(rc);
	}
	for (uint32_t i = 0; i < TN_SERVE_RULES_MAX; i++)
		PyMem_Free(r->tenants[i]);
	PyMem_Free(r);
	return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *get_closed(PyObject *self, void *arg)
{
	const struct tn_py_cache *cache = (struct tn_py_cache *)self;

	return PyBool_FromLong(!cache->c || cache->closing);
}

static PyGetSetDef getset[] = {
	{"closed", get_closed, NULL, "whether it was closed", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
	{"_attach", WITH_KEYWORDS(cache_attach) | METH_CLASS, "_attach(path, instance=None, token=None, timeout=None)\n--\n\nWhat tenuto.attach does."},
	{"_serve", cache_serve, METH_VARARGS, "_serve(path, rules, anew)\n--\n\nWhat serve and serve_anew do."},
	{"close", cache_close, METH_NOARGS,
	 "close()\n--\n\nCancel loads, abort saves that were not committed, wait for what is in flight, flush, close.\n\n"
	 "Spaces, memories, pools and events of the cache are closed with it. Raises Error with the error of the last flush, or of blocks that could\n"
	 "not be written; the cache is closed then, too. Raises Timeout if the owner of an attached cache does not answer: call again once it does. Raises\n"
	 "Busy if a device hangs, and bytes may still arrive: the cache stays open until the process ends. To close twice is fine."},
	{"flush", WITH_KEYWORDS(cache_flush),
	 "flush(timeout=None)\n--\n\nMake durable what the saves that ended before have stored: no crash takes it after that.\n\n"
	 "Raises Timeout after timeout seconds; Error with ENOSPC, EROFS, EIO, ESTALE: some blocks could not be written."},
	{"__enter__", cache_enter, METH_NOARGS, NULL},
	{"__exit__", cache_exit, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"What tenuto.Cache is made of."},
	{Py_tp_new, (void *)cache_new},
	{Py_tp_dealloc, (void *)cache_dealloc},
	{Py_tp_traverse, (void *)cache_traverse},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_cache_spec = {
	.name = "tenuto._core.Cache",
	.basicsize = sizeof(struct tn_py_cache),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
	.slots = slots,
};
