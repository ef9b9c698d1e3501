/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/cuda/api.h against NVIDIA's headers: compiled only, where there are any (api.py). */
#include <cuda.h>
#include <cudaTypedefs.h>

#include "plugins/cuda/api.h"

#define NUMBER(name, number) _Static_assert((int)name == (number), #name);
TN_CUDA_NUMBERS(NUMBER)

/* A typedef of NVIDIA's has the version in its name. */
#define CALL(function, version, parameters) \
	_Static_assert(__builtin_types_compatible_p(PFN_##function##_v##version, tn_cu_result(*) parameters), #function);
TN_CUDA_CALLS(CALL)
_Static_assert(__builtin_types_compatible_p(PFN_cuGetProcAddress_v12000, tn_cu_find), "cuGetProcAddress");
#if CUDA_VERSION >= TN_CUDA_BATCH_BEFORE_13
_Static_assert(__builtin_types_compatible_p(PFN_cuMemcpyBatchAsync_v12080, tn_cu_batch_before_13), "cuMemcpyBatchAsync of 12.8");
#endif
#if CUDA_VERSION >= TN_CUDA_BATCH_SINCE_13
_Static_assert(__builtin_types_compatible_p(PFN_cuMemcpyBatchAsync_v13000, tn_cu_batch_since_13), "cuMemcpyBatchAsync of 13.0");
#endif
