/* SPDX-License-Identifier: Apache-2.0 */
#include "stub_cuda.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))
#define INVALID_VALUE 1

API struct stub_cuda stub_cuda;

API int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
API int cuCtxPushCurrent_v2(void *context);
API int cuCtxPopCurrent_v2(void **context);
API int cuDevicePrimaryCtxRetain(void **context, int device);
API int cuStreamCreate(void **stream, unsigned flags);
API int cuStreamSynchronize(void *stream);
API int cuStreamDestroy_v2(void *stream);

static char own_context, primary_context;
static __thread void *current;
static __thread int pushed;

static int memory(void)
{
	return __atomic_load_n(&stub_cuda.memory, __ATOMIC_ACQUIRE);
}

int cuPointerGetAttribute(void *out, int attribute, uint64_t address)
{
	if (memory() == STUB_CUDA_UNKNOWN)
		return INVALID_VALUE;
	if (attribute == 1)
		*(void **)out = memory() == STUB_CUDA_CONTEXT ? &own_context : NULL;
	else
		*(int *)out = 3;
	return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
	current = context;
	pushed++;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	*context = current;
	current = NULL;
	pushed--;
	return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	__atomic_fetch_add(&stub_cuda.retained, 1, __ATOMIC_RELAXED);
	*context = &primary_context;
	return device == 3 ? 0 : INVALID_VALUE;
}

API int stub_cuda_is_current(void)
{
	return memory() == STUB_CUDA_UNKNOWN || current == (memory() == STUB_CUDA_CONTEXT ? &own_context : &primary_context);
}

API int stub_cuda_pushed(void)
{
	return pushed;
}

/* ---- streams, each of one thread --------------------------------------------------------------------- */

struct work {
	void (*run)(void *arg);
	void *arg;
	struct work *next;
};

struct stream {
	struct work *first, **last;
	void *context;
};

static __thread struct stream of_thread;

static struct stream *stream_of(void *stream)
{
	struct stream *s = stream ? stream : &of_thread;

	if (!s->last)
		s->last = &s->first;
	return s;
}

int cuStreamCreate(void **stream, unsigned flags)
{
	int e = __atomic_exchange_n(&stub_cuda.fail_stream_create, 0, __ATOMIC_ACQ_REL);
	struct stream *s = e ? NULL : calloc(1, sizeof(*s));

	if (!s)
		return e;
	s->context = current;
	*stream = s;
	__atomic_fetch_add(&stub_cuda.streams, 1, __ATOMIC_RELAXED);
	return 0;
}

int cuStreamSynchronize(void *stream)
{
	struct stream *s = stream_of(stream);
	struct work *w = s->first;

	if (s->context != current && stream)
		return 400; /* an invalid handle */
	s->first = NULL;
	s->last = NULL;
	while (w) {
		struct work *next = w->next;

		w->run(w->arg);
		free(w);
		w = next;
	}
	return __atomic_exchange_n(&stub_cuda.fail_stream_synchronize, 0, __ATOMIC_ACQ_REL);
}

int cuStreamDestroy_v2(void *stream)
{
	__atomic_fetch_sub(&stub_cuda.streams, 1, __ATOMIC_RELAXED);
	free(stream);
	return 0;
}

API void stub_cuda_ask(void *stream, void (*run)(void *arg), void *arg)
{
	struct stream *s = stream_of(stream);
	struct work *w = malloc(sizeof(*w));

	if (!w)
		abort();
	*w = (struct work){.run = run, .arg = arg};
	*s->last = w;
	s->last = &w->next;
}
