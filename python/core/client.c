/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.ObjectClient (client.h): a call puts a request into a line; threads without the GIL carry it out; an eventfd says that there are answers. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client.h"

struct tn_py_request {
	struct tn_py_request *next;
	uint64_t id;
	enum tn_py_ask ask;
	size_t n, nviews;
	struct tn_py_item *items;
	Py_buffer *views;
	int error;
};

/* ---- requests: with the GIL ----------------------------------------------------------------------------------------------- */

static void request_free(struct tn_py_request *r)
{
	for (size_t i = 0; i < r->nviews; i++)
		PyBuffer_Release(&r->views[i]);
	for (size_t i = 0; r->items && i < r->n; i++)
		free(r->items[i].model);
	free(r->views);
	free(r->items);
	free(r);
}

static void line_init(struct tn_py_line *line)
{
	line->first = NULL;
	line->last = &line->first;
	pthread_cond_init(&line->more, NULL);
}

static void line_put(struct tn_py_line *line, struct tn_py_request *r)
{
	r->next = NULL;
	*line->last = r;
	line->last = &r->next;
}

static struct tn_py_request *line_take(struct tn_py_line *line)
{
	struct tn_py_request *r = line->first;

	if (r) {
		line->first = r->next;
		if (!line->first)
			line->last = &line->first;
	}
	return r;
}

/* ---- threads: without the GIL --------------------------------------------------------------------------------------------- */

static void carry_out(struct tn_py_request *r, struct tn_py_objects *o)
{
	switch (r->ask) {
	case TN_PY_EXIST:
		tn_py_objects_exist(o, r->items, r->n);
		break;
	case TN_PY_LOAD:
		tn_py_objects_load(o, r->items, r->n);
		break;
	case TN_PY_SAVE:
		r->error = tn_py_objects_save(o, r->items, r->n);
		break;
	default:
		tn_py_objects_drop(o, r->items, r->n);
		break;
	}
}

static void count(struct tn_py_client *c, const struct tn_py_request *r)
{
	c->counts[r->ask][0] += r->n;
	for (size_t i = 0; i < r->n; i++)
		c->counts[r->ask][1] += r->items[i].good;
}

static void answer(struct tn_py_client *c, struct tn_py_request *r)
{
	const uint64_t one = 1;

	count(c, r);
	line_put(&c->done, r);
	while (write(c->efd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void *run(void *arg)
{
	const struct tn_py_runner *runner = arg;
	struct tn_py_client *c = runner->client;
	struct tn_py_line *line = &c->line[runner->line];
	struct tn_py_request *r;

	pthread_mutex_lock(&c->lock);
	while (!c->closing) {
		struct tn_py_objects *o = c->objects;

		r = line_take(line);
		if (!r) {
			pthread_cond_wait(&line->more, &c->lock);
			continue;
		}
		if (o) {
			c->users++;
			pthread_mutex_unlock(&c->lock);
			carry_out(r, o);
			pthread_mutex_lock(&c->lock);
			if (--c->users == 0)
				pthread_cond_broadcast(&c->unused);
		} else if (r->ask == TN_PY_SAVE) {
			r->error = -ESHUTDOWN;
		}
		answer(c, r);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static int start(struct tn_py_client *c, enum tn_py_ask line, uint32_t n)
{
	sigset_t all, before;
	int rc = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		c->runner[c->nthreads] = (struct tn_py_runner){c, line};
		rc = pthread_create(&c->thread[c->nthreads], NULL, run, &c->runner[c->nthreads]);
		c->nthreads += rc == 0;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

/* ---- the cache that it has ------------------------------------------------------------------------------------------------ */

void tn_py_client_close(struct tn_py_client *c)
{
	struct tn_py_objects *o = NULL;
	struct tn_py_cache *cache = c->cache;
	bool whole = true;

	tn_py_link_remove(&c->link);
	c->cache = NULL;
	if (!cache)
		return;
	cache->inside++; /* holds it as the client did */
	if (c->pid != getpid()) {
		c->objects = NULL; /* the threads, and who holds the lock, did not come along */
	} else {
		pthread_mutex_lock(&c->lock);
		o = c->objects;
		c->objects = NULL;
		pthread_mutex_unlock(&c->lock);
	}
	if (o) {
		tn_py_objects_stop(o);
		Py_BEGIN_ALLOW_THREADS;
		pthread_mutex_lock(&c->lock);
		while (c->users)
			pthread_cond_wait(&c->unused, &c->lock);
		pthread_mutex_unlock(&c->lock);
		whole = tn_py_objects_close(o);
		Py_END_ALLOW_THREADS;
	}
	if (!whole)
		cache->stuck = true;
	tn_py_leave(cache);
}

static bool usable(const struct tn_py_client *c)
{
	if (c->open && c->pid == getpid())
		return true;
	tn_py_raise_text(c->open ? -ECHILD : -EBADF, c->open ? "the client is the parent process's: make one after fork" : "the client is closed");
	return false;
}

static PyObject *client_bind(PyObject *self, PyObject *arg)
{
	struct tn_py_client *c = (struct tn_py_client *)self;
	struct tn_py_cache *cache = (struct tn_py_cache *)arg;
	struct tn_py_objects *o = NULL;
	int rc;

	if (!PyObject_TypeCheck(arg, tn_py_cache_type))
		return PyErr_Format(PyExc_TypeError, "a Cache is wanted");
	if (!usable(c))
		return NULL;
	if (c->cache)
		return tn_py_raise_text(-EINVAL, "it has a cache: unbind() first");
	if (!tn_py_enter(cache))
		return NULL;
	TN_PY_CALL(cache, rc = tn_py_objects_open(cache->c, &c->opts, &o));
	if (rc)
		return tn_py_raise(rc);
	c->cache = (struct tn_py_cache *)TN_PY_REF(arg);
	tn_py_link_add(&cache->children[TN_PY_CLIENTS], &c->link);
	pthread_mutex_lock(&c->lock);
	c->objects = o;
	pthread_mutex_unlock(&c->lock);
	return Py_NewRef(Py_None);
}

static PyObject *client_unbind(PyObject *self, PyObject *nothing)
{
	tn_py_client_close((struct tn_py_client *)self);
	return Py_NewRef(Py_None);
}

/* ---- new, close ------------------------------------------------------------------------------------------------------------ */

static bool seconds(double from, const char *what, uint64_t *ns)
{
	if (from > 0 && from < 1e9) {
		*ns = (uint64_t)(from * 1e9);
		return true;
	}
	PyErr_Format(PyExc_ValueError, "%s is a number of seconds above 0", what);
	return false;
}

static bool options_from(PyObject *args, PyObject *kw, struct tn_py_client *c, unsigned *threads)
{
	static char *names[] = {"tenant", "revision", "load_timeout", "save_timeout", "stage_bytes", "threads", "remote_timeout", NULL};
	unsigned long long stage_bytes = 64 << 20;
	const char *tenant = "", *revision = "";
	double load = 10, save = 30, remote = 0;

	*threads = 2;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "|$ssddKId", names, &tenant, &revision, &load, &save, &stage_bytes, threads, &remote) ||
	    !seconds(load, "load_timeout", &c->opts.load_timeout_ns) || !seconds(save, "save_timeout", &c->opts.save_timeout_ns) ||
	    (remote != 0 && !seconds(remote, "remote_timeout", &c->opts.remote_timeout_ns)))
		return false;
	if (*threads == 0 || *threads > (TN_PY_CLIENT_THREADS - 1) / 2) {
		PyErr_Format(PyExc_ValueError, "threads: 1 to %u", (TN_PY_CLIENT_THREADS - 1) / 2);
		return false;
	}
	c->opts.stage_bytes = stage_bytes;
	c->opts.tenant = c->tenant = strdup(tenant);
	c->opts.revision = c->revision = strdup(revision);
	if (c->tenant && c->revision)
		return true;
	PyErr_NoMemory();
	return false;
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	struct tn_py_client *c = tn_py_new(type);
	unsigned threads;
	int rc;

	if (!c)
		return NULL;
	tn_py_link_init(&c->link);
	c->pid = getpid();
	c->efd = -1;
	if (!options_from(args, kw, c, &threads)) {
		Py_DECREF((PyObject *)c);
		return NULL;
	}
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->unused, NULL);
	for (int i = 0; i < TN_PY_LINES; i++)
		line_init(&c->line[i]);
	line_init(&c->done);
	c->open = true;
	c->efd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	rc = c->efd < 0 ? errno : 0;
	rc = rc ? rc : start(c, TN_PY_EXIST, 1);
	rc = rc ? rc : start(c, TN_PY_LOAD, threads);
	rc = rc ? rc : start(c, TN_PY_SAVE, threads);
	if (rc == 0)
		return (PyObject *)c;
	Py_DECREF((PyObject *)c);
	return tn_py_raise_text(-rc, "no thread, or no eventfd, for a client");
}

static void end_threads(struct tn_py_client *c)
{
	Py_BEGIN_ALLOW_THREADS;
	pthread_mutex_lock(&c->lock);
	c->closing = true;
	if (c->objects)
		tn_py_objects_stop(c->objects);
	for (int i = 0; i < TN_PY_LINES; i++)
		pthread_cond_broadcast(&c->line[i].more);
	pthread_mutex_unlock(&c->lock);
	for (uint32_t i = 0; i < c->nthreads; i++)
		pthread_join(c->thread[i], NULL);
	Py_END_ALLOW_THREADS;
}

static void end(struct tn_py_client *c)
{
	struct tn_py_cache *cache = c->cache;
	struct tn_py_request *r;
	bool open = c->open, inside = cache && tn_py_enter_to_end(cache);

	tn_py_link_remove(&c->link); /* it may be about to be freed: who closes the cache waits for this instead */
	c->open = false;
	if (open && c->pid == getpid())
		end_threads(c);
	tn_py_client_close(c);
	if (inside)
		tn_py_leave(cache);
	if (!open)
		return;
	for (int i = 0; i <= TN_PY_LINES; i++)
		while ((r = line_take(i < TN_PY_LINES ? &c->line[i] : &c->done)))
			request_free(r);
	if (c->efd >= 0)
		close(c->efd);
	c->efd = -1;
}

static PyObject *client_close(PyObject *self, PyObject *nothing)
{
	end((struct tn_py_client *)self);
	return Py_NewRef(Py_None);
}

static void client_dealloc(PyObject *self)
{
	struct tn_py_client *c = (struct tn_py_client *)self;

	end(c);
	free(c->tenant);
	free(c->revision);
	tn_py_free(self);
}

/* ---- requests --------------------------------------------------------------------------------------------------------------- */

static bool view_of(struct tn_py_request *r, PyObject *buffers, size_t i)
{
	PyObject *buffer = PySequence_GetItem(buffers, (Py_ssize_t)i);
	int rc = buffer ? PyObject_GetBuffer(buffer, &r->views[i], r->ask == TN_PY_LOAD ? PyBUF_WRITABLE : PyBUF_SIMPLE) : -1;

	Py_XDECREF(buffer);
	if (rc)
		return false;
	r->nviews = i + 1;
	r->items[i].data = r->views[i].buf;
	r->items[i].bytes = (uint64_t)r->views[i].len;
	return true;
}

static bool item_of(struct tn_py_request *r, PyObject *keys, size_t i)
{
	PyObject *key = PySequence_GetItem(keys, (Py_ssize_t)i);
	const char *text = key ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
	int rc = text ? tn_py_item_name(&r->items[i], text) : 0;

	Py_XDECREF(key);
	if (rc)
		PyErr_NoMemory();
	return text && rc == 0;
}

static bool fill(struct tn_py_request *r, PyObject *keys, PyObject *buffers)
{
	r->items = calloc(r->n + 1, sizeof(*r->items));
	r->views = calloc(r->n + 1, sizeof(*r->views));
	if (!r->items || !r->views) {
		PyErr_NoMemory();
		return false;
	}
	for (size_t i = 0; i < r->n; i++)
		if (!item_of(r, keys, i) || (buffers && !view_of(r, buffers, i)))
			return false;
	return true;
}

static PyObject *submit(PyObject *self, enum tn_py_ask ask, PyObject *keys, PyObject *buffers)
{
	struct tn_py_client *c = (struct tn_py_client *)self;
	Py_ssize_t n = PySequence_Size(keys), nbuffers = buffers ? PySequence_Size(buffers) : n;
	struct tn_py_line *line = &c->line[ask == TN_PY_DROP ? TN_PY_EXIST : ask];
	struct tn_py_request *r;
	uint64_t id;

	if (n < 0 || nbuffers < 0 || !usable(c))
		return NULL;
	if (n != nbuffers)
		return PyErr_Format(PyExc_ValueError, "%zd keys and %zd buffers", n, nbuffers);
	r = calloc(1, sizeof(*r));
	if (!r)
		return PyErr_NoMemory();
	r->ask = ask;
	r->n = (size_t)n;
	if (!fill(r, keys, buffers)) {
		request_free(r);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	id = r->id = ++c->next;
	line_put(line, r);
	pthread_cond_signal(&line->more);
	pthread_mutex_unlock(&c->lock);
	return PyLong_FromUnsignedLongLong(id);
}

static PyObject *submit_set(PyObject *self, PyObject *args)
{
	PyObject *keys, *buffers;

	return PyArg_ParseTuple(args, "OO", &keys, &buffers) ? submit(self, TN_PY_SAVE, keys, buffers) : NULL;
}

static PyObject *submit_get(PyObject *self, PyObject *args)
{
	PyObject *keys, *buffers;

	return PyArg_ParseTuple(args, "OO", &keys, &buffers) ? submit(self, TN_PY_LOAD, keys, buffers) : NULL;
}

static PyObject *submit_exists(PyObject *self, PyObject *keys)
{
	return submit(self, TN_PY_EXIST, keys, NULL);
}

static PyObject *submit_delete(PyObject *self, PyObject *keys)
{
	return submit(self, TN_PY_DROP, keys, NULL);
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */

/* (id, ok, error, [bool, ...]); None in place of the list for a save. */
static PyObject *answer_of(const struct tn_py_request *r)
{
	PyObject *list = r->ask == TN_PY_SAVE ? Py_NewRef(Py_None) : PyList_New((Py_ssize_t)r->n), *out;
	bool ok = r->error == 0;

	for (size_t i = 0; list && i < r->n; i++) {
		if (r->ask != TN_PY_SAVE)
			PyList_SetItem(list, (Py_ssize_t)i, PyBool_FromLong(r->items[i].good));
		if (r->ask == TN_PY_LOAD)
			ok &= r->items[i].good;
	}
	if (!list)
		return NULL;
	out = Py_BuildValue("(KOsO)", (unsigned long long)r->id, ok ? Py_True : Py_False, r->error ? strerror(-r->error) : "", list);
	Py_DECREF(list);
	return out;
}

static PyObject *drain(PyObject *self, PyObject *nothing)
{
	struct tn_py_client *c = (struct tn_py_client *)self;
	struct tn_py_request *r, *next;
	PyObject *out = PyList_New(0), *one;
	uint64_t read_off;

	if (!out || !usable(c)) {
		Py_XDECREF(out);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	while (read(c->efd, &read_off, sizeof(read_off)) < 0 && errno == EINTR)
		;
	r = c->done.first;
	c->done.first = NULL;
	c->done.last = &c->done.first;
	pthread_mutex_unlock(&c->lock);
	for (; r; r = next) {
		next = r->next;
		one = out ? answer_of(r) : NULL;
		if (!one || PyList_Append(out, one))
			Py_CLEAR(out);
		Py_XDECREF(one);
		request_free(r);
	}
	return out;
}

static PyObject *event_fd(PyObject *self, PyObject *nothing)
{
	return PyLong_FromLong(((struct tn_py_client *)self)->efd);
}

static PyObject *counts(PyObject *self, PyObject *nothing)
{
	static const char *const names[TN_PY_ASKS][2] = {{"looked_up", "found"}, {"asked", "loaded"}, {"offered", "saved"}, {"to_drop", "dropped"}};
	struct tn_py_client *c = (struct tn_py_client *)self;
	uint64_t values[TN_PY_ASKS][2];
	PyObject *out = PyDict_New();

	if (!out || !usable(c)) {
		Py_XDECREF(out);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	memcpy(values, c->counts, sizeof(values));
	pthread_mutex_unlock(&c->lock);
	for (int i = 0; out && i < TN_PY_ASKS * 2; i++)
		if (tn_py_set(out, names[i / 2][i % 2], PyLong_FromUnsignedLongLong(values[i / 2][i % 2])))
			Py_CLEAR(out);
	return out;
}

static PyObject *get_gone(PyObject *self, void *arg)
{
	struct tn_py_client *c = (struct tn_py_client *)self;

	return PyBool_FromLong(c->objects && tn_py_objects_gone(c->objects));
}

static PyGetSetDef getset[] = {
	{"gone", get_gone, NULL, "whether the owner of its cache is no longer there: unbind(), and bind another", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
	{"bind", client_bind, METH_O, "bind(cache)\n--\n\nThe Cache that it uses from now on. Before, every object is a miss."},
	{"unbind", client_unbind, METH_NOARGS, "unbind()\n--\n\nGive the cache back; what is under way ends as a miss. Without a cache it does nothing."},
	{"event_fd", event_fd, METH_NOARGS, "event_fd()\n--\n\nReadable while drain_completions has something to give; the client's own."},
	{"submit_batch_set", submit_set, METH_VARARGS,
	 "submit_batch_set(keys, buffers)\n--\n\nSave the bytes of each buffer under its key. Returns the number of the request, at once.\n\n"
	 "The buffers are held until the completion was drained. Raises ValueError, Closed, Forked."},
	{"submit_batch_get", submit_get, METH_VARARGS,
	 "submit_batch_get(keys, buffers)\n--\n\nLoad into each writable buffer, whose size must be that of the object. What is not there, or damaged, is a miss."},
	{"submit_batch_exists", submit_exists, METH_O, "submit_batch_exists(keys)\n--\n\nWhether each key's object is there."},
	{"submit_batch_delete", submit_delete, METH_O, "submit_batch_delete(keys)\n--\n\nForget objects; those that were there are True in the completion."},
	{"drain_completions", drain, METH_NOARGS,
	 "drain_completions()\n--\n\nA list of (number, ok, error, list of bool): the list by key, None for a set; ok of a get only if all came."},
	{"counts", counts, METH_NOARGS, "counts()\n--\n\nObjects looked_up, found; asked, loaded; offered, saved; to_drop, dropped."},
	{"close", client_close, METH_NOARGS, "close()\n--\n\nEnd; what is under way is given up, and the buffers are free when it returns. Twice is fine."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, (void *)"ObjectClient(*, tenant='', revision='', load_timeout=10.0, save_timeout=30.0, stage_bytes=67108864, threads=2, remote_timeout=0.0)\n--\n\n"
			    "Objects of any size in a cache, under keys `model@rank@group@hash[@salt]`: what LMCache asks of a storage connector.\n\n"
			    "Nothing waits but bind, unbind and close. threads: for loads, and as many for saves; one more looks up. stage_bytes: memory through\n"
			    "which objects are copied that lie where no pool can be."},
	{Py_tp_new, (void *)client_new},
	{Py_tp_dealloc, (void *)client_dealloc},
	{Py_tp_getset, getset},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec tn_py_client_spec = {
	.name = "tenuto.ObjectClient",
	.basicsize = sizeof(struct tn_py_client),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
