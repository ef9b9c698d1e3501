/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices and pinned memory of the host: what a copy may name, the driver's own, and that of other processes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/*
 * struct tn_cuda_pin - host memory that was pinned. @count: callers of the same range. @ours: CUDA registered it for us; else the program did
 * that before, and unpin leaves it as it is
 */
struct tn_cuda_pin {
	struct tn_cuda_pin *next;
	void *host;
	uint64_t bytes, count;
	bool ours;
};

/* struct tn_cuda_import - @address lies in what begins at @base and is one mapping of CUDA's */
struct tn_cuda_import {
	struct tn_cuda_import *next;
	uint32_t device;
	void *address;
	tn_cu_pointer base;
};

/* What exports puts into its bytes. Read by this version of the plugin alone. */
struct export {
	uint32_t version, reserved;
	tn_cu_uuid uuid;
	tn_cu_ipc_handle handle;
	uint64_t skip, bytes;
};
#define EXPORT_VERSION 0x31435543u
_Static_assert(sizeof(struct export) <= TN_DEVICE_EXPORT_BYTES, "exports hands over so many");

static tn_cu_pointer pointer_of(const void *address)
{
	return (tn_cu_pointer)(uintptr_t)address;
}

static int __attribute__((format(printf, 4, 5))) refuse(int error, char *detail, size_t detail_bytes, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (detail && detail_bytes > 0)
		vsnprintf(detail, detail_bytes, format, args);
	va_end(args);
	return error;
}

struct place {
	unsigned int type;
	int ordinal;
	struct CUctx_st *context;
};

/* What CUDA knows of an address; of one that it does not know the type is 0. */
static tn_cu_result ask_place(const struct tn_cuda *cuda, tn_cu_pointer pointer, struct place *out)
{
	unsigned int what[] = {TN_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, TN_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, TN_CU_POINTER_ATTRIBUTE_CONTEXT};
	void *answers[] = {&out->type, &out->ordinal, &out->context};

	*out = (struct place){0, -1, NULL};
	return cuda->api.cuPointerGetAttributes(3, what, answers, pointer);
}

/*
 * The first and the last byte are asked for. Memory without a context comes from cuMemCreate: torch's expandable segments, where a range may
 * span several allocations.
 */
int tn_cuda_register_range(const struct tn_device_driver *driver, const struct tn_memory_range *range, char *detail, size_t detail_bytes)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	tn_cu_pointer first = pointer_of(range->address);
	struct tn_cuda_scope scope;
	struct place place;
	tn_cu_result r;
	int rc = tn_cuda_load(cuda, detail, detail_bytes);

	if (rc)
		return rc;
	rc = tn_cuda_enter(cuda, range->device, &scope);
	if (rc)
		return refuse(rc, detail, detail_bytes, "device %u: %s", range->device,
			      rc == -EINVAL ? "there is no such device" :
			      rc == -ENODEV ? "it was lost: restart the process" :
					      "its primary context cannot be entered");
	for (int end = 0; end < 2 && !rc; end++) {
		tn_cu_pointer at = end ? first + range->bytes - 1 : first;

		r = ask_place(cuda, at, &place);
		if (r != TN_CUDA_SUCCESS)
			rc = refuse(tn_cuda_result(cuda, scope.device, r), detail, detail_bytes, "cuPointerGetAttributes of 0x%llx: %s", at,
				    tn_cuda_name(&cuda->api, r));
		else if (place.type != TN_CU_MEMORYTYPE_DEVICE || place.ordinal != (int)range->device)
			rc = refuse(-EINVAL, detail, detail_bytes, "0x%llx is no memory of device %u%s", at, range->device,
				    place.type == TN_CU_MEMORYTYPE_DEVICE ? ", but of another one" : "");
		else if (place.context && place.context != tn_cuda_context(scope.device))
			rc = refuse(-EINVAL, detail, detail_bytes, "0x%llx was allocated in another context than the primary one of device %u", at,
				    range->device);
	}
	tn_cuda_leave(&scope);
	return rc;
}

/* Nothing is kept of a range. */
void tn_cuda_unregister_range(const struct tn_device_driver *driver, const struct tn_memory_range *range)
{
}

/* Somebody has registered some of it already: that will do if it is both ends of it. */
static int pinned_before(struct tn_cuda *cuda, void *host, uint64_t bytes)
{
	struct place first, last;

	if (ask_place(cuda, pointer_of(host), &first) != TN_CUDA_SUCCESS ||
	    ask_place(cuda, pointer_of(host) + bytes - 1, &last) != TN_CUDA_SUCCESS)
		return -EIO;
	return first.type == TN_CU_MEMORYTYPE_HOST && last.type == TN_CU_MEMORYTYPE_HOST ? 0 : -EBUSY;
}

static struct tn_cuda_pin **find_pin(struct tn_cuda *cuda, const void *host, uint64_t bytes)
{
	struct tn_cuda_pin **at = &cuda->pins;

	while (*at && !((*at)->host == host && (*at)->bytes == bytes))
		at = &(*at)->next;
	return at;
}

int tn_cuda_pin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_pin *pin = NULL, **same;
	struct tn_cuda_scope scope;
	tn_cu_result r;
	int rc = tn_cuda_enter_any(cuda, &scope);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->pins_lock);
	same = find_pin(cuda, host, bytes);
	if (*same) {
		(*same)->count++;
	} else if (!(pin = malloc(sizeof(*pin)))) {
		rc = -ENOMEM;
	} else {
		r = cuda->api.cuMemHostRegister(host, bytes, TN_CU_MEMHOSTREGISTER_PORTABLE | TN_CU_MEMHOSTREGISTER_DEVICEMAP);
		*pin = (struct tn_cuda_pin){cuda->pins, host, bytes, 1, r == TN_CUDA_SUCCESS};
		rc = r == TN_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? pinned_before(cuda, host, bytes) : tn_cuda_result(cuda, scope.device, r);
		if (rc)
			free(pin);
		else
			cuda->pins = pin;
	}
	pthread_mutex_unlock(&cuda->pins_lock);
	tn_cuda_leave(&scope);
	return rc;
}

void tn_cuda_unpin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_pin *pin = NULL, **at;
	struct tn_cuda_scope scope;

	pthread_mutex_lock(&cuda->pins_lock);
	at = find_pin(cuda, host, bytes);
	if (*at && --(*at)->count == 0) {
		pin = *at;
		*at = pin->next;
	}
	pthread_mutex_unlock(&cuda->pins_lock);
	if (pin && pin->ours && tn_cuda_enter_any(cuda, &scope) == 0) {
		tn_cuda_result(cuda, scope.device, cuda->api.cuMemHostUnregister(host));
		tn_cuda_leave(&scope);
	}
	free(pin);
}

int tn_cuda_allocate(const struct tn_device_driver *driver, uint32_t device, uint64_t bytes, void **out)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;
	tn_cu_pointer p;
	int rc = tn_cuda_enter(cuda, device, &scope);

	if (rc)
		return rc;
	rc = tn_cuda_result(cuda, scope.device, cuda->api.cuMemAlloc(&p, bytes));
	if (!rc)
		*out = (void *)(uintptr_t)p;
	tn_cuda_leave(&scope);
	return rc;
}

void tn_cuda_release(const struct tn_device_driver *driver, uint32_t device, void *address)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;

	if (tn_cuda_enter(cuda, device, &scope))
		return;
	tn_cuda_result(cuda, scope.device, cuda->api.cuMemFree(pointer_of(address)));
	tn_cuda_leave(&scope);
}

int tn_cuda_exports(const struct tn_device_driver *driver, void *address, uint64_t bytes, unsigned char out[TN_DEVICE_EXPORT_BYTES])
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct export e = {.version = EXPORT_VERSION, .bytes = bytes};
	struct tn_cuda_scope scope;
	struct place place;
	tn_cu_pointer base;
	size_t all;
	tn_cu_result r;
	int rc = tn_cuda_load(cuda, NULL, 0);

	if (rc)
		return rc;
	r = ask_place(cuda, pointer_of(address), &place);
	if (r != TN_CUDA_SUCCESS)
		return tn_cuda_result(cuda, NULL, r);
	if (place.type != TN_CU_MEMORYTYPE_DEVICE)
		return -EINVAL;
	rc = tn_cuda_enter(cuda, (uint32_t)place.ordinal, &scope);
	if (rc)
		return rc;
	r = cuda->api.cuMemGetAddressRange(&base, &all, pointer_of(address));
	if (r == TN_CUDA_SUCCESS) {
		e.skip = pointer_of(address) - base;
		if (bytes > all - e.skip)
			rc = -EINVAL;
		r = cuda->api.cuDeviceGetUuid(&e.uuid, scope.device->number);
	}
	if (!rc)
		rc = tn_cuda_result(cuda, scope.device, r);
	if (!rc) {
		/* Memory of cuMemCreate has no handle of this kind: an invalid value. */
		r = cuda->api.cuIpcGetMemHandle(&e.handle, base);
		rc = r == TN_CUDA_ERROR_INVALID_VALUE ? -ENOTSUP : tn_cuda_result(cuda, scope.device, r);
	}
	if (!rc) {
		memset(out, 0, TN_DEVICE_EXPORT_BYTES);
		memcpy(out, &e, sizeof(e));
	}
	tn_cuda_leave(&scope);
	return rc;
}

/* The other process may number devices in another way: the device is that of the UUID, or -EXDEV. */
int tn_cuda_import(const struct tn_device_driver *driver, uint32_t device, const unsigned char in[TN_DEVICE_EXPORT_BYTES], void **out)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_import *import;
	struct tn_cuda_scope scope;
	struct export e;
	tn_cu_uuid uuid;
	size_t all;
	tn_cu_result r;
	int rc;

	memcpy(&e, in, sizeof(e));
	if (e.version != EXPORT_VERSION)
		return -EINVAL;
	rc = tn_cuda_enter(cuda, device, &scope);
	if (rc)
		return rc;
	import = malloc(sizeof(*import));
	rc = import ? tn_cuda_result(cuda, scope.device, cuda->api.cuDeviceGetUuid(&uuid, scope.device->number)) : -ENOMEM;
	if (!rc && memcmp(&uuid, &e.uuid, sizeof(uuid)) != 0)
		rc = -EXDEV;
	if (!rc) {
		*import = (struct tn_cuda_import){.device = device};
		rc = tn_cuda_result(cuda, scope.device, cuda->api.cuIpcOpenMemHandle(&import->base, e.handle, TN_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	}
	if (!rc) {
		/* The bytes came from another process: what it says of the mapping is compared with the mapping. */
		r = cuda->api.cuMemGetAddressRange(NULL, &all, import->base);
		rc = tn_cuda_result(cuda, scope.device, r);
		if (!rc && (e.skip > all || e.bytes > all - e.skip))
			rc = -EINVAL;
		if (rc)
			cuda->api.cuIpcCloseMemHandle(import->base);
	}
	tn_cuda_leave(&scope);
	if (rc) {
		free(import);
		return rc;
	}
	import->address = (void *)(uintptr_t)(import->base + e.skip);
	pthread_mutex_lock(&cuda->lock);
	import->next = cuda->imports;
	cuda->imports = import;
	pthread_mutex_unlock(&cuda->lock);
	*out = import->address;
	return 0;
}

void tn_cuda_import_end(const struct tn_device_driver *driver, uint32_t device, void *address)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_import *import, **at = &cuda->imports;
	struct tn_cuda_scope scope;

	pthread_mutex_lock(&cuda->lock);
	while (*at && !((*at)->address == address && (*at)->device == device))
		at = &(*at)->next;
	import = *at;
	if (import)
		*at = import->next;
	pthread_mutex_unlock(&cuda->lock);
	if (import && tn_cuda_enter(cuda, device, &scope) == 0) {
		tn_cuda_result(cuda, scope.device, cuda->api.cuIpcCloseMemHandle(import->base));
		tn_cuda_leave(&scope);
	}
	free(import);
}
