/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache tells of itself: completions, statistics, devices, latencies, processes, block events. Functions over a Cache. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

#define COMPLETIONS 64u
#define EVENTS 1024u

static struct tn_py_cache *cache_of(PyObject *object)
{
	if (PyObject_TypeCheck(object, tn_py_cache_type))
		return tn_py_enter((struct tn_py_cache *)object) ? (struct tn_py_cache *)object : NULL;
	PyErr_SetString(PyExc_TypeError, "a Cache is wanted");
	return NULL;
}

/* ---- completions --------------------------------------------------------------------------------------------------------- */

static PyObject *eventfd(PyObject *module, PyObject *object)
{
	struct tn_py_cache *cache = cache_of(object);
	int rc;

	if (!cache)
		return NULL;
	rc = tn_cache_eventfd(cache->c);
	tn_py_leave(cache);
	return rc < 0 ? tn_py_raise(rc) : PyLong_FromLong(rc);
}

static PyObject *completions(PyObject *module, PyObject *object)
{
	struct tn_completion done[COMPLETIONS];
	struct tn_py_cache *cache = cache_of(object);
	PyObject *out;
	int n;

	if (!cache)
		return NULL;
	TN_PY_CALL(cache, n = tn_cache_completions(cache->c, done, COMPLETIONS));
	if (n < 0)
		return tn_py_raise(n);
	out = PyList_New(n);
	for (int i = 0; out && i < n; i++)
		if (PyList_SetItem(out, i, Py_BuildValue("(KOOII)", (unsigned long long)done[i].tag, done[i].load ? Py_True : Py_False,
							 done[i].ended ? Py_True : Py_False, done[i].ready_layers, done[i].good_blocks)))
			Py_CLEAR(out);
	return out;
}

/* ---- statistics ---------------------------------------------------------------------------------------------------------- */

static PyObject *stats(PyObject *module, PyObject *object)
{
	struct tn_py_cache *cache = cache_of(object);
	uint64_t values[512];
	PyObject *out;
	int n;

	if (!cache)
		return NULL;
	TN_PY_CALL(cache, n = tn_cache_stats(cache->c, values, 512));
	if (n < 0)
		return tn_py_raise(n);
	out = PyDict_New();
	for (int i = 0; out && i < n && i < 512; i++)
		if (tn_py_set(out, tn_stat_name((uint32_t)i), PyLong_FromUnsignedLongLong(values[i])))
			Py_CLEAR(out);
	return out;
}

static PyObject *device(const struct tn_device_stats *d)
{
	static const char *const health[] = {"healthy", "slow", "read-only", "offline"};

	return Py_BuildValue("{ss,ss,sO,sK,sK,sK,sK,sK,sK,sK,sK,sK,sK}", "path", d->path, "health", d->health < 4 ? health[d->health] : "?", "deleted",
			     d->deleted ? Py_True : Py_False, "capacity_bytes", (unsigned long long)d->capacity_bytes, "used_bytes",
			     (unsigned long long)d->used_bytes, "blocks", (unsigned long long)d->blocks, "quarantined_slots",
			     (unsigned long long)d->quarantined_slots, "bytes_read", (unsigned long long)d->bytes_read, "bytes_written",
			     (unsigned long long)d->bytes_written, "meta_bytes_written", (unsigned long long)d->meta_bytes_written, "read_errors",
			     (unsigned long long)d->read_errors, "write_errors", (unsigned long long)d->write_errors, "lost_blocks",
			     (unsigned long long)d->lost_blocks);
}

static PyObject *devices(PyObject *module, PyObject *object)
{
	PyObject *out = PyList_New(0);

	for (uint32_t i = 0; out; i++) {
		struct tn_device_stats d = {.size = sizeof(d)};
		struct tn_py_cache *cache = cache_of(object);
		PyObject *item = NULL;
		int rc = -EBADF;

		if (cache)
			TN_PY_CALL(cache, rc = tn_cache_device_stats(cache->c, i, &d));
		if (rc == -ENOENT)
			break;
		if (rc == 0)
			item = device(&d);
		else if (cache)
			tn_py_raise(rc);
		if (!item || PyList_Append(out, item))
			Py_CLEAR(out);
		Py_XDECREF(item);
	}
	return out;
}

static PyObject *latency(PyObject *module, PyObject *args)
{
	struct tn_latency l = {.size = sizeof(l)};
	struct tn_py_cache *cache;
	PyObject *object, *buckets;
	unsigned kind, tier;
	int all, rc;

	if (!PyArg_ParseTuple(args, "OIIp", &object, &kind, &tier, &all))
		return NULL;
	cache = cache_of(object);
	if (!cache)
		return NULL;
	TN_PY_CALL(cache, rc = all ? tn_cache_all_latency(cache->c, (enum tn_latency_kind)kind, (enum tn_tier)tier, &l)
				   : tn_cache_latency(cache->c, (enum tn_latency_kind)kind, (enum tn_tier)tier, &l));
	if (rc)
		return tn_py_raise(rc);
	buckets = PyList_New(0);
	for (uint32_t i = 0; buckets && i < TN_LATENCY_BUCKETS; i++) {
		PyObject *item = l.buckets[i] ? Py_BuildValue("(KK)", (unsigned long long)tn_latency_bound_ns(i), (unsigned long long)l.buckets[i]) : NULL;

		if (item ? PyList_Append(buckets, item) : l.buckets[i] != 0)
			Py_CLEAR(buckets);
		Py_XDECREF(item);
	}
	return buckets ? Py_BuildValue("{sK,sK,sN}", "count", (unsigned long long)l.count, "sum_ns", (unsigned long long)l.sum_ns, "buckets", buckets) : NULL;
}

/* ---- processes --------------------------------------------------------------------------------------------------------------- */

static PyObject *owner(PyObject *module, PyObject *object)
{
	struct tn_owner_stats o = {.size = sizeof(o)};
	struct tn_py_cache *cache = cache_of(object);
	int rc;

	if (!cache)
		return NULL;
	TN_PY_CALL(cache, rc = tn_cache_owner_stats(cache->c, &o));
	if (rc)
		return tn_py_raise(rc);
	return Py_BuildValue("{sI,sI,sK,sK,sK}", "pid", o.pid, "sessions", o.sessions, "sessions_total", (unsigned long long)o.sessions_total, "open_ns",
			     (unsigned long long)o.open_ns, "write_bytes_per_day", (unsigned long long)o.write_bytes_per_day);
}

static PyObject *session(uint32_t place, const struct tn_session_stats *s)
{
	return Py_BuildValue("{sI,sI,sI,sK,sK,sK,sK,sK,sI,sI,sI,sI,sI,sI,sK}", "place", place, "pid", s->pid, "calls", s->calls, "attached_ns",
			     (unsigned long long)s->attached_ns, "loads", (unsigned long long)s->loads, "saves", (unsigned long long)s->saves, "loaded_bytes",
			     (unsigned long long)s->loaded_bytes, "saved_bytes", (unsigned long long)s->saved_bytes, "loads_now", s->loads_now, "saves_now",
			     s->saves_now, "prefetches_now", s->prefetches_now, "moving", s->moving, "waiting_turn", s->waiting_turn, "waiting_process",
			     s->waiting_process, "backlog_bytes", (unsigned long long)s->backlog_bytes);
}

static PyObject *sessions(PyObject *module, PyObject *object)
{
	PyObject *out = PyList_New(0);

	for (uint32_t place = 0; out && place < TN_SESSION_PLACES; place++) {
		struct tn_session_stats s = {.size = sizeof(s)};
		struct tn_py_cache *cache = cache_of(object);
		PyObject *item = NULL;
		int rc = -EBADF;

		if (cache)
			TN_PY_CALL(cache, rc = tn_cache_session_stats(cache->c, place, &s));
		if (rc == -ENOENT)
			continue;
		if (rc == 0)
			item = session(place, &s);
		else if (cache)
			tn_py_raise(rc);
		if (!item || PyList_Append(out, item))
			Py_CLEAR(out);
		Py_XDECREF(item);
	}
	return out;
}

/* ---- block events ------------------------------------------------------------------------------------------------------------- */

static PyObject *block_event(const struct tn_block_event *e)
{
	const uint64_t none[2] = {0, 0};
	bool parent = memcmp(&e->parent, none, sizeof(none)) != 0;

	return Py_BuildValue("(KKy#y#KIHOI)", (unsigned long long)e->sequence, (unsigned long long)e->time_ns, (const char *)&e->key, TN_PY_KEY_BYTES,
			     parent ? (const char *)&e->parent : NULL, parent ? TN_PY_KEY_BYTES : 0, (unsigned long long)e->bytes, e->depth,
			     (unsigned short)e->space, e->kind == TN_EVENT_STORED ? Py_True : Py_False, (unsigned)e->tier);
}

static PyObject *events(PyObject *module, PyObject *args)
{
	struct tn_py_cache *cache;
	unsigned long long from;
	struct tn_block_event *list;
	PyObject *object, *out = NULL;
	uint64_t cursor;
	long n;

	if (!PyArg_ParseTuple(args, "OK", &object, &from))
		return NULL;
	cursor = from;
	list = PyMem_Malloc(EVENTS * sizeof(*list));
	if (!list)
		return PyErr_NoMemory();
	cache = cache_of(object);
	if (cache) {
		TN_PY_CALL(cache, n = tn_cache_events(cache->c, &cursor, list, EVENTS));
		out = n < 0 && n != -ESTALE ? tn_py_raise(n) : PyList_New(n < 0 ? 0 : n);
		for (long i = 0; out && i < n; i++)
			if (PyList_SetItem(out, i, block_event(&list[i])))
				Py_CLEAR(out);
	}
	PyMem_Free(list);
	return out ? Py_BuildValue("(NKO)", out, (unsigned long long)cursor, n == -ESTALE ? Py_True : Py_False) : NULL;
}

struct snapshot {
	struct tn_block_event *list;
	size_t n, max;
	bool short_of_memory;
};

/* On the cache's own thread, without the GIL. */
static void add(void *arg, const struct tn_block_event *event)
{
	struct snapshot *s = arg;

	if (s->n == s->max) {
		size_t max = s->max ? s->max * 2 : 1024;
		struct tn_block_event *more = realloc(s->list, max * sizeof(*more));

		if (!more) {
			s->short_of_memory = true;
			return;
		}
		s->list = more;
		s->max = max;
	}
	s->list[s->n++] = *event;
}

static PyObject *snapshot(PyObject *module, PyObject *object)
{
	struct tn_py_cache *cache = cache_of(object);
	struct snapshot s = {0};
	uint64_t cursor = 0;
	PyObject *out = NULL;
	long n;

	if (!cache)
		return NULL;
	TN_PY_CALL(cache, n = tn_cache_snapshot(cache->c, add, &s, &cursor));
	if (n < 0)
		tn_py_raise(n);
	else if (s.short_of_memory)
		PyErr_NoMemory();
	else
		out = PyList_New((Py_ssize_t)s.n);
	for (size_t i = 0; out && i < s.n; i++)
		if (PyList_SetItem(out, (Py_ssize_t)i, block_event(&s.list[i])))
			Py_CLEAR(out);
	free(s.list);
	return out ? Py_BuildValue("(NK)", out, (unsigned long long)cursor) : NULL;
}

/* ---- the scheduler --------------------------------------------------------------------------------------------------------------- */

static PyObject *phase(PyObject *module, PyObject *args)
{
	struct tn_py_cache *cache;
	unsigned long long slack_ns;
	PyObject *object;
	unsigned which;
	int rc;

	if (!PyArg_ParseTuple(args, "OIK", &object, &which, &slack_ns))
		return NULL;
	cache = cache_of(object);
	if (!cache)
		return NULL;
	TN_PY_CALL(cache, rc = tn_phase(cache->c, (enum tn_phase)which, slack_ns));
	return rc ? tn_py_raise(rc) : Py_NewRef(Py_None);
}

PyMethodDef tn_py_observe_methods[] = {
	{"eventfd", eventfd, METH_O, "eventfd(cache)\n--\n\nWhat Cache.eventfd does."},
	{"completions", completions, METH_O, "completions(cache)\n--\n\n(tag, is a load, ended, ready_layers, good_blocks) of what has made progress."},
	{"stats", stats, METH_O, "stats(cache)\n--\n\nWhat Cache.stats does."},
	{"devices", devices, METH_O, "devices(cache)\n--\n\nWhat Cache.devices does."},
	{"latency", latency, METH_VARARGS, "latency(cache, kind, tier, all)\n--\n\nWhat Cache.latency does."},
	{"owner", owner, METH_O, "owner(cache)\n--\n\nWhat Cache.owner does."},
	{"sessions", sessions, METH_O, "sessions(cache)\n--\n\nWhat Cache.sessions does."},
	{"events", events, METH_VARARGS, "events(cache, cursor)\n--\n\n(events, cursor, whether some are gone)."},
	{"snapshot", snapshot, METH_O, "snapshot(cache)\n--\n\n(events, cursor)."},
	{"phase", phase, METH_VARARGS, "phase(cache, phase, slack_ns)\n--\n\nWhat Cache.phase does."},
	{NULL, NULL, 0, NULL},
};
