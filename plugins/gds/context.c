/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* Of the CUDA driver API; the same in 11, 12 and 13. */
#define POINTER_CONTEXT 1
#define POINTER_DEVICE_ORDINAL 9
#define STREAM_NON_BLOCKING 1u /* does not wait for the stream of threads without one */
#define DEVICES_MAX 64

static struct {
	pthread_once_t once;
	int (*pointer_attribute)(void *out, int attribute, uint64_t address);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*retain_primary)(void **context, int device);
	int (*stream_create)(void **stream, unsigned flags);
	int (*stream_synchronize)(void *stream);
	int (*stream_destroy)(void *stream);
	pthread_mutex_t lock; /* of what follows */
	void *primary[DEVICES_MAX]; /* retained once, for good: contexts of devices */
} cuda = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library)
		return;
	*(void **)&cuda.push = dlsym(library, "cuCtxPushCurrent_v2");
	*(void **)&cuda.pop = dlsym(library, "cuCtxPopCurrent_v2");
	*(void **)&cuda.retain_primary = dlsym(library, "cuDevicePrimaryCtxRetain");
	*(void **)&cuda.stream_create = dlsym(library, "cuStreamCreate");
	*(void **)&cuda.stream_synchronize = dlsym(library, "cuStreamSynchronize");
	*(void **)&cuda.stream_destroy = dlsym(library, "cuStreamDestroy_v2");
	*(void **)&cuda.pointer_attribute = dlsym(library, "cuPointerGetAttribute");
}

/* Memory of a pool, and memory that is mapped, have a device and no context: they are used in the device's primary one. */
static void *primary_of(uint64_t address)
{
	void *context = NULL;
	int device = -1;

	if (cuda.pointer_attribute(&device, POINTER_DEVICE_ORDINAL, address) || device < 0 || device >= DEVICES_MAX)
		return NULL;
	pthread_mutex_lock(&cuda.lock);
	if (!cuda.primary[device] && cuda.retain_primary(&cuda.primary[device], device))
		cuda.primary[device] = NULL;
	context = cuda.primary[device];
	pthread_mutex_unlock(&cuda.lock);
	return context;
}

static bool is_there(void)
{
	pthread_once(&cuda.once, load);
	return cuda.push && cuda.pop && cuda.retain_primary && cuda.pointer_attribute;
}

void *gds_context_of(const void *address)
{
	uint64_t at = (uint64_t)(uintptr_t)address;
	void *context = NULL;

	if (!is_there())
		return NULL;
	if (cuda.pointer_attribute(&context, POINTER_CONTEXT, at))
		context = NULL;
	return context ? context : primary_of(at);
}

bool gds_context_enter(const void *address)
{
	void *context = gds_context_of(address);

	return context && cuda.push(context) == 0;
}

void gds_context_leave(void)
{
	void *context;

	cuda.pop(&context);
}

/* ---- streams ---------------------------------------------------------------------------------------- */

bool gds_context_has_streams(void)
{
	return is_there() && cuda.stream_create && cuda.stream_synchronize && cuda.stream_destroy;
}

int gds_stream_create(void **stream)
{
	return cuda.stream_create(stream, STREAM_NON_BLOCKING);
}

int gds_stream_wait(void *stream)
{
	return cuda.stream_synchronize(stream);
}

void gds_stream_destroy(void *stream)
{
	cuda.stream_destroy(stream);
}
