/* SPDX-License-Identifier: Apache-2.0 */
/* What _core.XferAgent tells of its peers, and its statistics. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "xfer.h"

#define STATS_TEXT_BYTES 8192 /* of another agent's statistics; about 50 lines have 1,500 */
#define SECTIONS_STEP 1024u

PyObject *tn_py_xfer_peer(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	const char *peer;
	int rc;

	if (!PyArg_ParseTuple(args, "s", &peer) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, rc = tn_xfer_peer(agent->a, peer, &info));
	if (rc == -ENOENT)
		return Py_NewRef(Py_None);
	if (rc)
		return tn_py_raise(rc);
	return Py_BuildValue("(IIKK)", info.state, info.sections, (unsigned long long)info.generation, (unsigned long long)info.revision);
}

/* Appends what is known of some sections. Return: 0; -1 with an exception. */
static int append_sections(PyObject *list, const struct tn_xfer_peer_section *s, int n)
{
	for (int i = 0; i < n; i++) {
		PyObject *item = Py_BuildValue("(IKKK)", s[i].segment, (unsigned long long)s[i].address, (unsigned long long)s[i].bytes, (unsigned long long)s[i].device);
		int rc = item ? PyList_Append(list, item) : -1;

		Py_XDECREF(item);
		if (rc)
			return -1;
	}
	return 0;
}

PyObject *tn_py_xfer_peer_sections(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_xfer_peer_section *s;
	uint32_t first = 0;
	const char *peer;
	PyObject *list;
	int n;

	if (!PyArg_ParseTuple(args, "s", &peer))
		return NULL;
	s = PyMem_Malloc(SECTIONS_STEP * sizeof(*s));
	list = s ? PyList_New(0) : PyErr_NoMemory();
	do {
		if (!list || !tn_py_xfer_enter(agent))
			break;
		TN_PY_XFER(agent, n = tn_xfer_peer_sections(agent->a, peer, first, SECTIONS_STEP, s));
		if (n < 0)
			tn_py_raise(n);
		else if (append_sections(list, s, n) == 0)
			first += (uint32_t)n;
	} while (!PyErr_Occurred() && n == (int)SECTIONS_STEP);
	PyMem_Free(s);
	if (PyErr_Occurred())
		Py_CLEAR(list);
	return list;
}

PyObject *tn_py_xfer_stats(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	uint64_t values[256];
	PyObject *dict;
	int n;

	if (!tn_py_xfer_enter(agent))
		return NULL;
	n = tn_xfer_stats(agent->a, values, 256);
	tn_py_xfer_leave(agent);
	dict = PyDict_New();
	for (int i = 0; dict && i < n && i < 256; i++)
		if (tn_py_set(dict, tn_xfer_stat_name((uint32_t)i), PyLong_FromUnsignedLongLong(values[i])))
			Py_CLEAR(dict);
	return dict;
}

PyObject *tn_py_xfer_fetch_stats(PyObject *self, PyObject *args)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	char text[STATS_TEXT_BYTES];
	const char *address;
	uint64_t deadline_ns;
	PyObject *timeout;
	int64_t n;

	if (!PyArg_ParseTuple(args, "sO", &address, &timeout) || tn_py_deadline(timeout, &deadline_ns) || !tn_py_xfer_enter(agent))
		return NULL;
	TN_PY_XFER(agent, n = tn_xfer_fetch_stats(agent->a, address, deadline_ns, text, sizeof(text)));
	return n < 0 ? tn_py_raise((long)n) : PyUnicode_FromString(text);
}

/* ---- the log ----------------------------------------------------------------------------------------------------------- */

struct tn_py_xfer_log *tn_py_xfer_log_new(void)
{
	struct tn_py_xfer_log *log = calloc(1, sizeof(*log));

	if (!log)
		return (struct tn_py_xfer_log *)(void *)PyErr_NoMemory();
	pthread_mutex_init(&log->lock, NULL);
	return log;
}

void tn_py_xfer_log_free(struct tn_py_xfer_log *log)
{
	if (log)
		pthread_mutex_destroy(&log->lock);
	free(log);
}

void tn_py_xfer_log_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct tn_py_xfer_log *log = arg;
	uint32_t at;

	pthread_mutex_lock(&log->lock);
	at = (log->first + log->n) % TN_PY_XFER_LINES;
	log->line[at].level = (int)level;
	snprintf(log->line[at].where, sizeof(log->line[at].where), "%s", where);
	snprintf(log->line[at].text, sizeof(log->line[at].text), "%s", text);
	if (log->n < TN_PY_XFER_LINES)
		log->n++;
	else
		log->first = (log->first + 1) % TN_PY_XFER_LINES; /* the oldest goes */
	pthread_mutex_unlock(&log->lock);
}

/* Takes the oldest line; false: there is none. No object is made with the lock held: that may run the collector, and what it finalizes may log. */
static bool take_line(struct tn_py_xfer_log *log, struct tn_py_xfer_line *out)
{
	bool any;

	pthread_mutex_lock(&log->lock);
	any = log->n > 0;
	if (any) {
		*out = log->line[log->first];
		log->first = (log->first + 1) % TN_PY_XFER_LINES;
		log->n--;
	}
	pthread_mutex_unlock(&log->lock);
	return any;
}

/* (level, where, text). The text may have the name of another agent, which is bytes. */
static PyObject *line_from(const struct tn_py_xfer_line *line)
{
	PyObject *text = PyUnicode_DecodeUTF8(line->text, (Py_ssize_t)strlen(line->text), "replace");

	return text ? Py_BuildValue("(isN)", line->level, line->where, text) : NULL;
}

PyObject *tn_py_xfer_log_lines(PyObject *self, PyObject *nothing)
{
	struct tn_py_xfer_agent *agent = (struct tn_py_xfer_agent *)self;
	struct tn_py_xfer_line line;
	PyObject *list;

	if (agent->pid != getpid()) /* the thread that held the lock during the fork is not here */
		return tn_py_raise_text(-ECHILD, "the agent is the parent's: create another one");
	list = PyList_New(0);
	/* No more than there may be at once, so that a log that grows meanwhile does not keep the caller here. */
	for (uint32_t i = 0; list && i < TN_PY_XFER_LINES && take_line(agent->log, &line); i++) {
		PyObject *item = line_from(&line);

		if (!item || PyList_Append(list, item))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}
