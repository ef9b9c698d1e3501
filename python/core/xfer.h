/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer agent for Python: _core.XferAgent, XferList and XferRequest. tenuto.xfer makes of arrays what they take.
 *
 * A list and a request hold their agent. An agent that is closed while somebody calls it, or while it has lists and requests, stays open. The lists and requests
 * are counted here, under the GIL: the library's own count says nothing of a call that is still inside.
 */
#ifndef TN_PYTHON_XFER_H
#define TN_PYTHON_XFER_H

#include <pthread.h>

#include <tenuto/xfer.h>

#include "binding.h"

#define TN_PY_XFER_LINES 64u /* of the log that are kept */

struct tn_py_xfer_line {
	int level;
	char where[32];
	char text[480];
};

/**
 * struct tn_py_xfer_log - the last lines of an agent's log
 *
 * The agent calls with its locks held, from any thread. So lines are kept here until somebody asks: a callback that takes the GIL would wait for who has it and
 * waits for those locks.
 */
struct tn_py_xfer_log {
	pthread_mutex_t lock;
	uint32_t first, n;
	struct tn_py_xfer_line line[TN_PY_XFER_LINES];
};

struct tn_py_xfer_agent {
	PyObject_HEAD
	struct tn_xfer_agent *a; /* NULL: closed */
	pid_t pid;
	uint32_t inside; /* calls under way without the GIL */
	uint32_t lists, requests; /* that the library has */
	struct tn_py_xfer_log *log;
};

/** tn_py_xfer - the agent, and a call of it is counted; NULL with an exception if it is closed, or of a parent */
struct tn_xfer_agent *tn_py_xfer_enter(struct tn_py_xfer_agent *agent);
void tn_py_xfer_leave(struct tn_py_xfer_agent *agent);

/** TN_PY_XFER - a call without the GIL, after tn_py_xfer_enter */
#define TN_PY_XFER(agent, expression)        \
	do {                                 \
		Py_BEGIN_ALLOW_THREADS;      \
		expression;                  \
		Py_END_ALLOW_THREADS;        \
		tn_py_xfer_leave(agent);     \
	} while (0)

/** struct tn_py_runs - runs from an array of 3 or 5 columns, or from tuples */
struct tn_py_runs {
	struct tn_xfer_run *run; /* PyMem_Malloc */
	uint32_t n;
};

int tn_py_xfer_runs(PyObject *from, struct tn_py_runs *out);

/* xfer_observe.c */
/** tn_py_xfer_log_new - NULL with an exception */
struct tn_py_xfer_log *tn_py_xfer_log_new(void);
void tn_py_xfer_log_line(void *arg, enum tn_log_level level, const char *where, const char *text);
void tn_py_xfer_log_free(struct tn_py_xfer_log *log);
PyObject *tn_py_xfer_log_lines(PyObject *self, PyObject *nothing);
PyObject *tn_py_xfer_peer(PyObject *self, PyObject *args);
PyObject *tn_py_xfer_peer_sections(PyObject *self, PyObject *args);
PyObject *tn_py_xfer_stats(PyObject *self, PyObject *nothing);
PyObject *tn_py_xfer_fetch_stats(PyObject *self, PyObject *args);
/* xfer_request.c */
PyObject *tn_py_xfer_list(PyObject *self, PyObject *args);
PyObject *tn_py_xfer_request(PyObject *self, PyObject *args);
int tn_py_xfer_request_add(PyObject *module);
/* share.c */
int tn_py_share_add(PyObject *module);
/* xfer.c */
int tn_py_xfer_add(PyObject *module);

#endif
