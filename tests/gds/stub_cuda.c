/* SPDX-License-Identifier: Apache-2.0 */
#include "stub_cuda.h"

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define INVALID_VALUE 1

API struct stub_cuda stub_cuda;

API int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
API int cuCtxPushCurrent_v2(void *context);
API int cuCtxPopCurrent_v2(void **context);
API int cuDevicePrimaryCtxRetain(void **context, int device);

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
