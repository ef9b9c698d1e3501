/* SPDX-License-Identifier: Apache-2.0 */
/* See api.h. */
#include "api.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What results mean to a caller. Those that are not here are -EIO. */
static const struct {
	tn_cu_result result;
	int error;
	int lost;
} meanings[] = {
	{TN_CUDA_ERROR_INVALID_VALUE, EINVAL, 0},
	{TN_CUDA_ERROR_INVALID_DEVICE, EINVAL, 0},
	{TN_CUDA_ERROR_INVALID_CONTEXT, EINVAL, 0},
	{TN_CUDA_ERROR_INVALID_HANDLE, EINVAL, 0},
	{TN_CUDA_ERROR_OUT_OF_MEMORY, ENOMEM, 0},
	{TN_CUDA_ERROR_NOT_READY, EAGAIN, 0},
	{TN_CUDA_ERROR_NOT_PERMITTED, EPERM, 0},
	{TN_CUDA_ERROR_NOT_SUPPORTED, ENOTSUP, 0},
	{TN_CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, ENOTSUP, 0},
	{TN_CUDA_ERROR_NO_BINARY_FOR_GPU, ENOTSUP, 0},
	{TN_CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, ENOTSUP, 0},
	{TN_CUDA_ERROR_NO_DEVICE, ENODEV, 0},
	{TN_CUDA_ERROR_STUB_LIBRARY, ENODEV, 0},
	{TN_CUDA_ERROR_DEVICE_UNAVAILABLE, ENODEV, 0},
	{TN_CUDA_ERROR_DEVICE_NOT_LICENSED, ENODEV, 0},
	{TN_CUDA_ERROR_SYSTEM_NOT_READY, ENODEV, 0},
	{TN_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, ENODEV, 0},
	/* A child of a fork has no context, and gets none. */
	{TN_CUDA_ERROR_NOT_INITIALIZED, ENODEV, 1},
	{TN_CUDA_ERROR_DEINITIALIZED, ENODEV, 1},
	{TN_CUDA_ERROR_ECC_UNCORRECTABLE, ENODEV, 1},
	{TN_CUDA_ERROR_NVLINK_UNCORRECTABLE, ENODEV, 1},
	{TN_CUDA_ERROR_CONTAINED, ENODEV, 1},
	{TN_CUDA_ERROR_ILLEGAL_ADDRESS, ENODEV, 1},
	{TN_CUDA_ERROR_LAUNCH_TIMEOUT, ENODEV, 1},
	{TN_CUDA_ERROR_CONTEXT_IS_DESTROYED, ENODEV, 1},
	{TN_CUDA_ERROR_ASSERT, ENODEV, 1},
	{TN_CUDA_ERROR_HARDWARE_STACK_ERROR, ENODEV, 1},
	{TN_CUDA_ERROR_ILLEGAL_INSTRUCTION, ENODEV, 1},
	{TN_CUDA_ERROR_MISALIGNED_ADDRESS, ENODEV, 1},
	{TN_CUDA_ERROR_INVALID_ADDRESS_SPACE, ENODEV, 1},
	{TN_CUDA_ERROR_INVALID_PC, ENODEV, 1},
	{TN_CUDA_ERROR_LAUNCH_FAILED, ENODEV, 1},
	{TN_CUDA_ERROR_TENSOR_MEMORY_LEAK, ENODEV, 1},
	{TN_CUDA_ERROR_MPS_CLIENT_TERMINATED, ENODEV, 1},
	{TN_CUDA_ERROR_UNKNOWN, ENODEV, 1},
};

int tn_cuda_errno(tn_cu_result result, int *lost)
{
	*lost = 0;
	if (result == TN_CUDA_SUCCESS)
		return 0;
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
		if (meanings[i].result == result) {
			*lost = meanings[i].lost;
			return -meanings[i].error;
		}
	}
	return -EIO;
}

const char *tn_cuda_name(const struct tn_cuda_api *api, tn_cu_result result)
{
	const char *name = NULL;

	if (!api->cuGetErrorName || api->cuGetErrorName(result, &name) != TN_CUDA_SUCCESS || !name)
		return "unknown error";
	return name;
}

#define NAMED(function, version, parameters) {#function, version, offsetof(struct tn_cuda_api, function)},
static const struct {
	const char *name;
	int version;
	size_t at;
} named[] = {TN_CUDA_CALLS(NAMED)};

static int find(struct tn_cuda_api *api, tn_cu_find search, char *detail, size_t detail_bytes)
{
	unsigned int status;
	void *f;

	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
		f = NULL;
		if (search(named[i].name, &f, named[i].version, 0, &status) != TN_CUDA_SUCCESS || !f) {
			snprintf(detail, detail_bytes, "libcuda.so.1 has no %s: install an NVIDIA driver of CUDA 12.0 or later", named[i].name);
			return -ENOTSUP;
		}
		memcpy((char *)api + named[i].at, &f, sizeof(f));
	}
	return 0;
}

/*
 * The version of the driver decides which declaration is asked for. A driver of 12.8 that is asked for that of 13.0 might answer with its own.
 */
static void find_batch(struct tn_cuda_api *api, tn_cu_find search, int driver)
{
	unsigned int status;
	void *f = NULL;

	if (driver >= TN_CUDA_BATCH_SINCE_13 &&
	    search("cuMemcpyBatchAsync", &f, TN_CUDA_BATCH_SINCE_13, 0, &status) == TN_CUDA_SUCCESS && f) {
		memcpy(&api->batch_since_13, &f, sizeof(f));
		return;
	}
	f = NULL;
	if (driver >= TN_CUDA_BATCH_BEFORE_13 && search("cuMemcpyBatchAsync", &f, TN_CUDA_BATCH_BEFORE_13, 0, &status) == TN_CUDA_SUCCESS && f)
		memcpy(&api->batch_before_13, &f, sizeof(f));
}

int tn_cuda_api_load(struct tn_cuda_api *api, const char *library, char *detail, size_t detail_bytes)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL), *f;
	tn_cu_find search;
	tn_cu_result r;
	int driver = 0, lost, rc;

	memset(api, 0, sizeof(*api));
	if (!handle) {
		snprintf(detail, detail_bytes, "%s: install NVIDIA's driver, or run where it is", dlerror());
		return -ENOENT;
	}
	f = dlsym(handle, "cuGetProcAddress_v2");
	if (!f) {
		snprintf(detail, detail_bytes, "%s is older than CUDA 12.0: install a newer NVIDIA driver", library);
		return -ENOTSUP;
	}
	memcpy(&search, &f, sizeof(f));
	rc = find(api, search, detail, detail_bytes);
	if (rc)
		return rc;
	r = api->cuInit(0);
	if (r == TN_CUDA_SUCCESS)
		r = api->cuDriverGetVersion(&driver);
	if (r != TN_CUDA_SUCCESS) {
		snprintf(detail, detail_bytes, "%s does not start: %s; see whether nvidia-smi works", library, tn_cuda_name(api, r));
		return tn_cuda_errno(r, &lost);
	}
	find_batch(api, search, driver);
	return 0;
}
