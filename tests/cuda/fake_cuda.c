/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_cuda.h: devices, contexts, memory, and what tests set. Streams are in fake_streams.c. */
#include "fake_cuda.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_internal.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_news = PTHREAD_COND_INITIALIZER;

struct CUctx_st {
	int device;
	bool primary;
};

static struct CUctx_st contexts[FAKE_DEVICES] = {{0, true}, {1, true}}, foreign_context = {0, false};
static struct fake_allocation *allocations;
static struct registered {
	struct registered *next;
	uintptr_t at;
	size_t bytes;
} *registrations;
static int lost[FAKE_DEVICES], driver_version = 13000, without = -1;
static bool capturing, foreign;
static char fail_name[64], lacks_name[64];
static unsigned int fail_skip;
static int fail_result;
static bool fail_met;
static struct count {
	const char *name;
	unsigned int n;
} counts[64];

static __thread struct CUctx_st *stack[8];
static __thread int depth;
static __thread unsigned int capture_mode; /* 0: global, as it is at first */

unsigned int fake_stream_left(void);

/* Begins a call: the result that it has to end with, if not 0. @needs: a current context */
tn_cu_result fake_enter(const char *name, bool needs)
{
	tn_cu_result r = 0;
	unsigned int i;

	pthread_mutex_lock(&fake_lock);
	if (strcmp(fail_name, name) == 0 && !fail_met && fail_skip-- == 0) {
		fail_met = true;
		r = (tn_cu_result)fail_result;
	}
	if (r == 0 && needs && depth == 0)
		r = TN_CUDA_ERROR_INVALID_CONTEXT;
	if (r == 0 && needs && stack[depth - 1]->primary)
		r = (tn_cu_result)lost[stack[depth - 1]->device];
	for (i = 0; counts[i].name && strcmp(counts[i].name, name) != 0; i++)
		;
	assert(i + 1 < sizeof(counts) / sizeof(counts[0]));
	counts[i].name = name;
	counts[i].n += r == 0;
	pthread_mutex_unlock(&fake_lock);
	return r;
}

/* The same of a call that would break a capture. */
static tn_cu_result enter_unsafe(const char *name)
{
	tn_cu_result r = fake_enter(name, true);
	bool breaks;

	pthread_mutex_lock(&fake_lock);
	breaks = capturing && capture_mode != TN_CU_STREAM_CAPTURE_MODE_RELAXED;
	pthread_mutex_unlock(&fake_lock);
	return r ? r : breaks ? 900 : 0;
}

struct CUctx_st *fake_current(void)
{
	return stack[depth - 1];
}

int fake_device_of(const struct CUctx_st *context)
{
	return context->device;
}

void fake_lost_at(int device)
{
	pthread_mutex_lock(&fake_lock);
	lost[device] = TN_CUDA_ERROR_ILLEGAL_ADDRESS;
	pthread_mutex_unlock(&fake_lock);
}

int fake_loss(int device)
{
	int r;

	pthread_mutex_lock(&fake_lock);
	r = lost[device];
	pthread_mutex_unlock(&fake_lock);
	return r;
}

void *fake_alias(uint64_t address, uint64_t bytes, int device)
{
	void *at = NULL;

	pthread_mutex_lock(&fake_lock);
	for (const struct fake_allocation *a = allocations; a; a = a->next) {
		if (address - a->at < a->bytes && bytes <= a->bytes - (address - a->at) && (device < 0 || device == a->device))
			at = a->alias + (address - a->at);
	}
	pthread_mutex_unlock(&fake_lock);
	return at;
}

bool fake_is_pinned(uint64_t address, uint64_t bytes)
{
	bool is = false;

	pthread_mutex_lock(&fake_lock);
	for (const struct registered *r = registrations; r; r = r->next)
		is |= address - r->at < r->bytes && bytes <= r->bytes - (address - r->at);
	pthread_mutex_unlock(&fake_lock);
	return is;
}

static tn_cu_result map_memory(int fd, size_t bytes, struct CUctx_st *context, bool imported, tn_cu_pointer *out)
{
	struct fake_allocation *a = calloc(1, sizeof(*a));
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0), *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	assert(a && at != MAP_FAILED && alias != MAP_FAILED);
	*a = (struct fake_allocation){.at = (uintptr_t)at, .alias = alias, .bytes = bytes, .device = context->device, .context = context, .fd = fd,
				      .imported = imported};
	pthread_mutex_lock(&fake_lock);
	a->next = allocations;
	allocations = a;
	pthread_mutex_unlock(&fake_lock);
	*out = a->at;
	return 0;
}

static tn_cu_result unmap_memory(tn_cu_pointer pointer, bool imported)
{
	struct fake_allocation *a, **at;

	pthread_mutex_lock(&fake_lock);
	for (at = &allocations; *at && !((*at)->at == pointer && (*at)->imported == imported); at = &(*at)->next)
		;
	a = *at;
	if (a)
		*at = a->next;
	pthread_mutex_unlock(&fake_lock);
	if (!a)
		return TN_CUDA_ERROR_INVALID_VALUE;
	munmap((void *)(uintptr_t)a->at, a->bytes);
	munmap(a->alias, a->bytes);
	close(a->fd);
	free(a);
	return 0;
}

#define RETURN_IF(call)                   \
	do {                              \
		tn_cu_result r_ = (call); \
		if (r_)                   \
			return r_;        \
	} while (0)
#define BEGIN(needs) RETURN_IF(fake_enter(__func__, needs))
#define BEGIN_UNSAFE() RETURN_IF(enter_unsafe(__func__))

static tn_cu_result cuInit(unsigned int flags)
{
	BEGIN(false);
	return flags ? TN_CUDA_ERROR_INVALID_VALUE : 0;
}

static tn_cu_result cuDriverGetVersion(int *version)
{
	BEGIN(false);
	*version = driver_version;
	return 0;
}

static tn_cu_result cuGetErrorName(tn_cu_result error, const char **name)
{
#define NAME(constant, number)    \
	if (error == (number)) {  \
		*name = #constant; \
		break;            \
	}
	*name = NULL;
	do {
		if (error >= 100 || error == 1 || error == 2)
			TN_CUDA_NUMBERS(NAME)
	} while (0);
	return *name ? 0 : TN_CUDA_ERROR_INVALID_VALUE;
}

static tn_cu_result cuDeviceGetCount(int *count)
{
	BEGIN(false);
	*count = FAKE_DEVICES;
	return 0;
}

static tn_cu_result cuDeviceGet(tn_cu_device *device, int ordinal)
{
	BEGIN(false);
	*device = ordinal;
	return 0;
}

static tn_cu_result cuDeviceGetName(char *name, int len, tn_cu_device device)
{
	BEGIN(false);
	snprintf(name, (size_t)len, "fake %d", device);
	return 0;
}

static tn_cu_result cuDeviceGetUuid(tn_cu_uuid *uuid, tn_cu_device device)
{
	BEGIN(false);
	memset(uuid, 0x40 + device, sizeof(*uuid));
	return 0;
}

static tn_cu_result cuDeviceTotalMem(size_t *bytes, tn_cu_device device)
{
	BEGIN(false);
	*bytes = (size_t)(device + 1) << 30;
	return 0;
}

static tn_cu_result cuDeviceGetAttribute(int *value, unsigned int attribute, tn_cu_device device)
{
	BEGIN(false);
	*value = (int)attribute == without				     ? 0 :
		 attribute == TN_CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 4 :
		 attribute == TN_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 :
										1;
	return 0;
}

static tn_cu_result cuDevicePrimaryCtxRetain(struct CUctx_st **context, tn_cu_device device)
{
	BEGIN(false);
	*context = &contexts[device];
	return (tn_cu_result)fake_loss(device);
}

static tn_cu_result cuCtxPushCurrent(struct CUctx_st *context)
{
	BEGIN(false);
	assert(depth < 8);
	stack[depth++] = context;
	return 0;
}

static tn_cu_result cuCtxPopCurrent(struct CUctx_st **context)
{
	assert(depth > 0);
	*context = stack[--depth];
	return 0;
}

static tn_cu_result cuCtxGetCurrent(struct CUctx_st **context)
{
	BEGIN(false);
	*context = depth ? stack[depth - 1] : NULL;
	return 0;
}

static tn_cu_result cuThreadExchangeStreamCaptureMode(unsigned int *mode)
{
	unsigned int before = capture_mode;

	if (*mode == TN_CU_STREAM_CAPTURE_MODE_RELAXED) /* the way back does not fail: nobody could do anything about it */
		BEGIN(false);
	capture_mode = *mode;
	*mode = before;
	return 0;
}

static tn_cu_result cuPointerGetAttributes(unsigned int n, unsigned int *attributes, void **data, tn_cu_pointer pointer)
{
	const struct fake_allocation *a;

	BEGIN(false);
	assert(n == 3 && attributes[0] == TN_CU_POINTER_ATTRIBUTE_MEMORY_TYPE && attributes[1] == TN_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
	       attributes[2] == TN_CU_POINTER_ATTRIBUTE_CONTEXT);
	*(unsigned int *)data[0] = fake_is_pinned(pointer, 1) ? TN_CU_MEMORYTYPE_HOST : 0;
	*(int *)data[1] = 0;
	*(struct CUctx_st **)data[2] = NULL;
	pthread_mutex_lock(&fake_lock);
	for (a = allocations; a && pointer - a->at >= a->bytes; a = a->next)
		;
	if (a) {
		*(unsigned int *)data[0] = TN_CU_MEMORYTYPE_DEVICE;
		*(int *)data[1] = a->device;
		*(struct CUctx_st **)data[2] = a->context;
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static tn_cu_result cuMemHostRegister(void *host, size_t bytes, unsigned int flags)
{
	struct registered *r;
	uintptr_t at = (uintptr_t)host;

	BEGIN_UNSAFE();
	if (flags != (TN_CU_MEMHOSTREGISTER_PORTABLE | TN_CU_MEMHOSTREGISTER_DEVICEMAP) || at % 4096 || bytes == 0)
		return TN_CUDA_ERROR_INVALID_VALUE;
	r = malloc(sizeof(*r));
	assert(r);
	pthread_mutex_lock(&fake_lock);
	for (const struct registered *o = registrations; o; o = o->next) {
		if (at < o->at + o->bytes && o->at < at + bytes) {
			pthread_mutex_unlock(&fake_lock);
			free(r);
			return TN_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
		}
	}
	*r = (struct registered){registrations, at, bytes};
	registrations = r;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static tn_cu_result cuMemHostUnregister(void *host)
{
	struct registered *r, **at;

	BEGIN_UNSAFE();
	pthread_mutex_lock(&fake_lock);
	for (at = &registrations; *at && (*at)->at != (uintptr_t)host; at = &(*at)->next)
		;
	r = *at;
	if (r)
		*at = r->next;
	pthread_mutex_unlock(&fake_lock);
	free(r);
	return r ? 0 : 713;
}

static tn_cu_result cuMemAlloc(tn_cu_pointer *pointer, size_t bytes)
{
	int fd;

	BEGIN_UNSAFE();
	if (bytes == 0)
		return TN_CUDA_ERROR_INVALID_VALUE;
	fd = memfd_create("fake device memory", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		return TN_CUDA_ERROR_OUT_OF_MEMORY;
	return map_memory(fd, bytes, foreign ? &foreign_context : fake_current(), false, pointer);
}

static tn_cu_result cuMemFree(tn_cu_pointer pointer)
{
	BEGIN_UNSAFE();
	return unmap_memory(pointer, false);
}

static tn_cu_result cuMemGetAddressRange(tn_cu_pointer *base, size_t *bytes, tn_cu_pointer pointer)
{
	const struct fake_allocation *a;

	BEGIN(true);
	pthread_mutex_lock(&fake_lock);
	for (a = allocations; a && pointer - a->at >= a->bytes; a = a->next)
		;
	if (a && base)
		*base = a->at;
	if (a && bytes)
		*bytes = a->bytes;
	pthread_mutex_unlock(&fake_lock);
	return a ? 0 : TN_CUDA_ERROR_NOT_FOUND;
}

/* What a handle is made of: the other process opens /proc/PID/fd/FD. */
struct handle {
	int pid, fd;
	uint64_t bytes;
};

static tn_cu_result cuIpcGetMemHandle(tn_cu_ipc_handle *handle, tn_cu_pointer pointer)
{
	struct handle h = {.pid = getpid(), .fd = -1};

	BEGIN(true);
	pthread_mutex_lock(&fake_lock);
	for (const struct fake_allocation *a = allocations; a; a = a->next) {
		if (a->at == pointer && !a->imported) {
			h.fd = a->fd;
			h.bytes = a->bytes;
		}
	}
	pthread_mutex_unlock(&fake_lock);
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &h, sizeof(h));
	return h.fd < 0 ? TN_CUDA_ERROR_INVALID_VALUE : 0;
}

static tn_cu_result cuIpcOpenMemHandle(tn_cu_pointer *pointer, tn_cu_ipc_handle handle, unsigned int flags)
{
	struct handle h;
	char path[64];
	int fd;

	BEGIN_UNSAFE();
	memcpy(&h, &handle, sizeof(h));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || flags != TN_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
		close(fd);
		return TN_CUDA_ERROR_INVALID_VALUE;
	}
	return map_memory(fd, h.bytes, fake_current(), true, pointer);
}

static tn_cu_result cuIpcCloseMemHandle(tn_cu_pointer pointer)
{
	BEGIN_UNSAFE();
	return unmap_memory(pointer, true);
}

/* In fake_streams.c. */
#define OTHERS(X) \
	X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamGetCtx) X(cuStreamWaitEvent) X(cuStreamWaitValue64) \
	X(cuStreamWriteValue64) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuMemcpyAsync) X(cuModuleLoadData) \
	X(cuModuleGetFunction) X(cuFuncGetAttribute) X(cuLaunchKernel)
#define OWN(X) \
	X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetUuid) \
	X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetCurrent) \
	X(cuThreadExchangeStreamCaptureMode) X(cuPointerGetAttributes) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemAlloc) \
	X(cuMemFree) X(cuMemGetAddressRange) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle)
#define FIND_OWN(function)                  \
	if (strcmp(name, #function) == 0) { \
		found = (void *)(uintptr_t)function;   \
	}
#define FIND_OTHER(function)                     \
	if (strcmp(name, #function) == 0) {      \
		found = (void *)(uintptr_t)fake_##function; \
	}

/* As the real one: a declaration of the asked version, none if the driver is older than that. */
__attribute__((visibility("default"))) tn_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
									unsigned int *status);
tn_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, unsigned int *status)
{
	void *found = NULL;

	OWN(FIND_OWN)
	OTHERS(FIND_OTHER)
	if (strcmp(name, "cuMemcpyBatchAsync") == 0)
		found = version >= TN_CUDA_BATCH_SINCE_13 ? (void *)(uintptr_t)fake_batch_since_13 : (void *)(uintptr_t)fake_batch_before_13;
	if (strcmp(name, lacks_name) == 0 || version > driver_version)
		found = NULL;
	*status = found ? 0 : 1;
	*function = found;
	return found ? 0 : TN_CUDA_ERROR_NOT_FOUND;
}

void fake_cuda_fail(const char *name, unsigned int skip, int result)
{
	pthread_mutex_lock(&fake_lock);
	snprintf(fail_name, sizeof(fail_name), "%s", name ? name : "");
	fail_skip = skip;
	fail_result = result;
	fail_met = false;
	pthread_mutex_unlock(&fake_lock);
}

bool fake_cuda_failed(void)
{
	bool met;

	pthread_mutex_lock(&fake_lock);
	met = fail_met;
	pthread_mutex_unlock(&fake_lock);
	return met;
}

void fake_cuda_lacks(const char *name)
{
	snprintf(lacks_name, sizeof(lacks_name), "%s", name ? name : "");
}

void fake_cuda_version(int version)
{
	driver_version = version;
}

void fake_cuda_without(int attribute)
{
	without = attribute;
}

void fake_cuda_lose(int device, int result)
{
	pthread_mutex_lock(&fake_lock);
	lost[device] = result;
	pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_capture(bool capture)
{
	pthread_mutex_lock(&fake_lock);
	capturing = capture;
	pthread_mutex_unlock(&fake_lock);
}

unsigned int fake_cuda_calls(const char *name)
{
	unsigned int n = 0;

	pthread_mutex_lock(&fake_lock);
	for (unsigned int i = 0; counts[i].name; i++)
		n += strcmp(counts[i].name, name) == 0 ? counts[i].n : 0;
	pthread_mutex_unlock(&fake_lock);
	return n;
}

int fake_cuda_depth(void)
{
	return depth;
}

bool fake_cuda_mode_is_kept(void)
{
	return capture_mode == 0;
}

unsigned int fake_cuda_left(void)
{
	unsigned int n = fake_stream_left();

	pthread_mutex_lock(&fake_lock);
	for (const struct fake_allocation *a = allocations; a; a = a->next)
		n++;
	for (const struct registered *r = registrations; r; r = r->next)
		n++;
	pthread_mutex_unlock(&fake_lock);
	return n;
}

void fake_cuda_forget(void)
{
	while (registrations) {
		struct registered *r = registrations;

		registrations = r->next;
		free(r);
	}
	while (allocations)
		unmap_memory(allocations->at, allocations->imported);
}

void fake_cuda_peek(const void *device, void *out, uint64_t bytes)
{
	const void *alias = fake_alias((uintptr_t)device, bytes, -1);

	assert(alias);
	memcpy(out, alias, bytes);
}

void fake_cuda_poke(void *device, const void *from, uint64_t bytes)
{
	void *alias = fake_alias((uintptr_t)device, bytes, -1);

	assert(alias);
	memcpy(alias, from, bytes);
}

void fake_cuda_current(int device)
{
	depth = device >= 0;
	stack[0] = device >= 0 ? &contexts[device] : NULL;
}

void fake_cuda_foreign(bool is)
{
	foreign = is;
}

void *fake_cuda_engine_stream(int device)
{
	struct CUstream_st *stream = NULL;

	fake_cuda_current(device);
	fake_cuStreamCreate(&stream, 0);
	fake_cuda_current(-1);
	return stream;
}

void fake_cuda_engine_stream_end(void *stream)
{
	fake_cuda_current(0);
	fake_cuStreamDestroy(stream);
	fake_cuda_current(-1);
}
