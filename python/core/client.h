/* SPDX-License-Identifier: Apache-2.0 */
/* tenuto.ObjectClient: objects saved, loaded and looked up by threads of its own, in the shape that LMCache's storage connectors have. */
#ifndef TENUTO_PYTHON_CLIENT_H
#define TENUTO_PYTHON_CLIENT_H

#include "binding.h"
#include "objects.h"

struct tn_py_request;

/** What a request asks for; each of the first three has threads of its own, drops go with look-ups. */
enum tn_py_ask { TN_PY_EXIST, TN_PY_LOAD, TN_PY_SAVE, TN_PY_DROP, TN_PY_ASKS, TN_PY_LINES = TN_PY_DROP };

#define TN_PY_CLIENT_THREADS 16u

/** struct tn_py_line - requests that wait, first in first out */
struct tn_py_line {
	struct tn_py_request *first, **last;
	pthread_cond_t more;
};

/**
 * struct tn_py_client - tenuto.ObjectClient
 * @link:     in its cache's list, while it has one
 * @cache, @objects: NULL: it has none, and finds nothing
 * @users:    threads that use @objects
 * @efd:      readable while there are completions
 * @next:     number of the next request
 * @counts:   by enum tn_py_ask: objects asked for, and those that were good
 *
 * Under lock: objects, users, closing, lines, done, counts.
 */
struct tn_py_client {
	PyObject_HEAD
	struct tn_py_link link;
	struct tn_py_cache *cache;
	pid_t pid;
	struct tn_py_objects_opts opts;
	char *tenant, *revision;
	pthread_mutex_t lock;
	pthread_cond_t unused;
	struct tn_py_objects *objects;
	uint32_t users;
	bool open, closing;
	struct tn_py_line line[TN_PY_LINES];
	struct tn_py_line done;
	uint64_t next;
	uint64_t counts[TN_PY_ASKS][2];
	int efd;
	pthread_t thread[TN_PY_CLIENT_THREADS];
	struct tn_py_runner {
		struct tn_py_client *client;
		enum tn_py_ask line;
	} runner[TN_PY_CLIENT_THREADS];
	uint32_t nthreads;
};

/** tn_py_client_close - take its cache from it */
void tn_py_client_close(struct tn_py_client *client);

extern PyType_Spec tn_py_client_spec;

#endif
