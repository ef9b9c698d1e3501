/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of this plugin: loops and barriers around body.h and sum.h. Their launches are in copy.c and sum.c. */
#include "sum.h"

/* A block takes every gridDim.x-th span of the ring's @n entries from @first on. It asks for the next one, which lies behind the bus, before it copies. */
extern "C" __global__ void __launch_bounds__(TN_CUDA_COPY_LANES) tn_cuda_copy_kernel(const union tn_cuda_entry *ring, uint32_t first, uint32_t n)
{
	struct tn_cuda_span next = ring[(first + blockIdx.x) % TN_CUDA_RING].span;

	for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
		struct tn_cuda_span span = next;

		if (i + gridDim.x < n)
			next = ring[(first + i + gridDim.x) % TN_CUDA_RING].span;
		tn_cuda_copy_span(&span, threadIdx.x, blockDim.x);
	}
}

/* A block of TN_SUM_LANES lanes takes every gridDim.x-th object. Each lane has its own copy: the ring lies behind the bus. */
extern "C" __global__ void __launch_bounds__(TN_SUM_LANES) tn_cuda_sum_kernel(union tn_cuda_entry *ring, uint32_t first, uint32_t n)
{
	__shared__ struct tn_sum_block block;

	for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
		struct tn_cuda_object object = ring[(first + i) % TN_CUDA_RING].object;
		uint64_t turns = tn_sum_turns(&object);

		for (uint64_t turn = 0; turn < turns; turn++) {
			tn_sum_parts(&block, ring, &object, turn, threadIdx.x);
			__syncthreads();
			if (threadIdx.x < TN_SUM_LEAVES)
				tn_sum_join(&block, &object, turn, threadIdx.x);
			__syncthreads();
			if (threadIdx.x == 0)
				tn_sum_root(&block, &object, turn);
			__syncthreads();
		}
		if (threadIdx.x == 0)
			ring[(first + i) % TN_CUDA_RING].object.sum = object.sum;
	}
}
