/* SPDX-License-Identifier: Apache-2.0 */
#include "object.h"

#include <errno.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ERROR_BYTES 512u

static _Thread_local char last_error[ERROR_BYTES];

int object_fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	return code;
}

const char *object_error(void)
{
	return last_error;
}

int object_number(const struct tn_xfer_param *param, uint64_t most, uint64_t *out)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(param->value, &end, 10);
	if (errno || *end || end == param->value || *param->value == '-' || v > most)
		return object_fail(-EINVAL, "backend " OBJECT_PLUGIN ": %s=%.40s: a whole number up to %llu is wanted", param->key, param->value, (unsigned long long)most);
	*out = v;
	return 0;
}

uint64_t object_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct waiting {
	struct object_transfer transfer; /* first */
	sem_t done;
};

static void wake(struct object_transfer *t)
{
	sem_post(&((struct waiting *)(void *)t)->done);
}

int object_wait(void *client, struct object_transfer *t)
{
	struct waiting w = {.transfer = *t};
	int rc;

	w.transfer.done = wake;
	rc = object_client.prepare(client, &w.transfer);
	if (rc)
		return rc;
	sem_init(&w.done, 0, 0);
	object_client.post(&w.transfer);
	while (sem_wait(&w.done))
		; /* a signal */
	sem_destroy(&w.done);
	object_client.forget(&w.transfer);
	t->code = w.transfer.code;
	t->moved = w.transfer.moved;
	t->object_bytes = w.transfer.object_bytes;
	return t->code;
}
