/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this plugin uses of CUDA's driver API: types, numbers and functions, declared here, so that it builds where CUDA is not, and found in
 * libcuda.so.1 when it runs. Each function is asked for by the version of CUDA that its declaration has, so that a newer driver answers with
 * that declaration, too. tests/cuda/api.py holds this file to NVIDIA's own headers wherever there are any.
 *
 * Names are those of cuda.h, with tn_ or TN_ before them where they would collide with it.
 */
#ifndef TN_CUDA_API_H
#define TN_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

typedef unsigned int tn_cu_result;
typedef int tn_cu_device;
typedef unsigned long long tn_cu_pointer;

#ifdef CUDA_VERSION /* behind cuda.h, in the test of this file: the assertions below are of NVIDIA's types then */
typedef CUuuid tn_cu_uuid;
typedef CUipcMemHandle tn_cu_ipc_handle;
typedef CUmemcpyAttributes tn_cu_copy_attributes;
#else
typedef struct tn_cu_uuid {
	char bytes[16];
} tn_cu_uuid;

typedef struct tn_cu_ipc_handle {
	char reserved[64];
} tn_cu_ipc_handle;

/* The hints are a type and a number each, of managed memory, which we have none of: 0. */
typedef struct tn_cu_copy_attributes {
	unsigned int srcAccessOrder;
	int srcLocHint[2];
	int dstLocHint[2];
	unsigned int flags;
} tn_cu_copy_attributes;
#endif
_Static_assert(sizeof(tn_cu_uuid) == 16 && sizeof(tn_cu_ipc_handle) == 64, "handed over by value or whole");
_Static_assert(sizeof(tn_cu_copy_attributes) == 24 && offsetof(tn_cu_copy_attributes, srcLocHint) == 4 &&
		       offsetof(tn_cu_copy_attributes, dstLocHint) == 12 && offsetof(tn_cu_copy_attributes, flags) == 20, "CUDA 12.8 and later");

/* X(name, number): constants of enums and #defines, by their names without the leading CU_ or CUDA_. */
#define TN_CUDA_NUMBERS(X)                                               \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                   \
	X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                     \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)               \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91) \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)         \
	X(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)                     \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                            \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                         \
	X(CU_MEMORYTYPE_HOST, 1)                                          \
	X(CU_MEMORYTYPE_DEVICE, 2)                                        \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                 \
	X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                \
	X(CU_STREAM_NON_BLOCKING, 1)                                      \
	X(CU_STREAM_WAIT_VALUE_GEQ, 0)                                    \
	X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                               \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                              \
	X(CU_EVENT_DISABLE_TIMING, 2)                                     \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                          \
	X(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)                           \
	X(CUDA_SUCCESS, 0)                                                \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                    \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                    \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                  \
	X(CUDA_ERROR_DEINITIALIZED, 4)                                    \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                    \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                              \
	X(CUDA_ERROR_NO_DEVICE, 100)                                      \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                 \
	X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102)                            \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                              \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                              \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                        \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                           \
	X(CUDA_ERROR_CONTAINED, 226)                                      \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                 \
	X(CUDA_ERROR_NOT_FOUND, 500)                                      \
	X(CUDA_ERROR_NOT_READY, 600)                                      \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                 \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                           \
	X(CUDA_ERROR_ASSERT, 710)                                         \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                 \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                           \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                            \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                             \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                          \
	X(CUDA_ERROR_INVALID_PC, 718)                                     \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                                  \
	X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)                             \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                  \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                  \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                               \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                         \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804)                 \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                          \
	X(CUDA_ERROR_UNKNOWN, 999)

#define TN_CUDA_NUMBER(name, number) TN_##name = number,
enum { TN_CUDA_NUMBERS(TN_CUDA_NUMBER) };

/* X(function, version of CUDA whose declaration this is, parameters) */
#define TN_CUDA_CALLS(X)                                                                                                                   \
	X(cuInit, 2000, (unsigned int flags))                                                                                              \
	X(cuDriverGetVersion, 2020, (int *version))                                                                                        \
	X(cuGetErrorName, 6000, (tn_cu_result error, const char **name))                                                                   \
	X(cuDeviceGetCount, 2000, (int *count))                                                                                            \
	X(cuDeviceGet, 2000, (tn_cu_device * device, int ordinal))                                                                         \
	X(cuDeviceGetName, 2000, (char *name, int len, tn_cu_device device))                                                               \
	X(cuDeviceGetUuid, 11040, (tn_cu_uuid * uuid, tn_cu_device device))                                                                \
	X(cuDeviceTotalMem, 3020, (size_t *bytes, tn_cu_device device))                                                                    \
	X(cuDeviceGetAttribute, 2000, (int *value, unsigned int attribute, tn_cu_device device))                                           \
	X(cuDevicePrimaryCtxRetain, 7000, (struct CUctx_st * *context, tn_cu_device device))                                               \
	X(cuCtxPushCurrent, 4000, (struct CUctx_st * context))                                                                             \
	X(cuCtxPopCurrent, 4000, (struct CUctx_st * *context))                                                                             \
	X(cuCtxGetCurrent, 4000, (struct CUctx_st * *context))                                                                             \
	X(cuThreadExchangeStreamCaptureMode, 10010, (unsigned int *mode))                                                                  \
	X(cuPointerGetAttributes, 7000, (unsigned int n, unsigned int *attributes, void **data, tn_cu_pointer pointer))                    \
	X(cuMemHostRegister, 6050, (void *host, size_t bytes, unsigned int flags))                                                         \
	X(cuMemHostUnregister, 4000, (void *host))                                                                                         \
	X(cuMemAlloc, 3020, (tn_cu_pointer * pointer, size_t bytes))                                                                       \
	X(cuMemFree, 3020, (tn_cu_pointer pointer))                                                                                        \
	X(cuMemGetAddressRange, 3020, (tn_cu_pointer * base, size_t * bytes, tn_cu_pointer pointer))                                       \
	X(cuIpcGetMemHandle, 4010, (tn_cu_ipc_handle * handle, tn_cu_pointer pointer))                                                     \
	X(cuIpcOpenMemHandle, 11000, (tn_cu_pointer * pointer, tn_cu_ipc_handle handle, unsigned int flags))                               \
	X(cuIpcCloseMemHandle, 4010, (tn_cu_pointer pointer))                                                                              \
	X(cuStreamCreate, 2000, (struct CUstream_st * *stream, unsigned int flags))                                                        \
	X(cuStreamDestroy, 4000, (struct CUstream_st * stream))                                                                            \
	X(cuStreamSynchronize, 2000, (struct CUstream_st * stream))                                                                        \
	X(cuStreamGetCtx, 9020, (struct CUstream_st * stream, struct CUctx_st * *context))                                                 \
	X(cuStreamWaitEvent, 3020, (struct CUstream_st * stream, struct CUevent_st * event, unsigned int flags))                           \
	X(cuStreamWaitValue64, 11070, (struct CUstream_st * stream, tn_cu_pointer address, uint64_t value, unsigned int flags))            \
	X(cuStreamWriteValue64, 11070, (struct CUstream_st * stream, tn_cu_pointer address, uint64_t value, unsigned int flags))           \
	X(cuEventCreate, 2000, (struct CUevent_st * *event, unsigned int flags))                                                           \
	X(cuEventDestroy, 4000, (struct CUevent_st * event))                                                                               \
	X(cuEventRecord, 2000, (struct CUevent_st * event, struct CUstream_st * stream))                                                   \
	X(cuEventQuery, 2000, (struct CUevent_st * event))                                                                                 \
	X(cuMemcpyAsync, 4000, (tn_cu_pointer to, tn_cu_pointer from, size_t bytes, struct CUstream_st * stream))                          \
	X(cuModuleLoadData, 2000, (struct CUmod_st * *module, const void *image))                                                          \
	X(cuModuleGetFunction, 2000, (struct CUfunc_st * *function, struct CUmod_st * module, const char *name))                           \
	X(cuFuncGetAttribute, 2020, (int *value, unsigned int attribute, struct CUfunc_st *function))                                      \
	X(cuLaunchKernel, 4000,                                                                                                            \
	  (struct CUfunc_st * function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,               \
	   unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, struct CUstream_st *stream, void **parameters, void **extra))

/* cuMemcpyBatchAsync as CUDA 12.8 has it; 13.0 took failIdx away. A driver has one, both or none. */
#define TN_CUDA_BATCH_BEFORE_13 12080
#define TN_CUDA_BATCH_SINCE_13 13000
typedef tn_cu_result (*tn_cu_batch_before_13)(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
					      size_t *first_of_attributes, size_t nattributes, size_t *failed, struct CUstream_st *stream);
typedef tn_cu_result (*tn_cu_batch_since_13)(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
					     size_t *first_of_attributes, size_t nattributes, struct CUstream_st *stream);
/* libcuda.so.1 exports it by this name since CUDA 12.0. */
typedef tn_cu_result (*tn_cu_find)(const char *name, void **function, int version, uint64_t flags, unsigned int *status);

#define TN_CUDA_MEMBER(function, version, parameters) tn_cu_result(*function) parameters;
struct tn_cuda_api {
	TN_CUDA_CALLS(TN_CUDA_MEMBER)
	tn_cu_batch_before_13 batch_before_13; /* NULL: the driver has another one, or none */
	tn_cu_batch_since_13 batch_since_13;
};

/*
 * tn_cuda_api_load - finds all of it, and starts the driver. @library: "libcuda.so.1"
 *
 * Return: 0; -ENOENT: no such library, -ENOTSUP: too old a driver, else why cuInit failed. @detail says what to do. libcuda stays open.
 */
int tn_cuda_api_load(struct tn_cuda_api *api, const char *library, char *detail, size_t detail_bytes);

/* Name of a result, "CUDA_ERROR_..."; of one that the driver does not know "unknown error". */
const char *tn_cuda_name(const struct tn_cuda_api *api, tn_cu_result result);

/* -errno of a result; *lost: after it nothing of that context works any more. */
int tn_cuda_errno(tn_cu_result result, int *lost);

#endif
