/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of compiled kernels: the fake libcuda does not look into them. */
#include "plugins/cuda/driver.h"

const unsigned char tn_cuda_kernels[] = {'f', 'a', 'k', 'e'};
const size_t tn_cuda_kernels_bytes = sizeof(tn_cuda_kernels);
