/* SPDX-License-Identifier: Apache-2.0 */
/* Which pieces the copy kernel takes, and how much of the device. Both are guesses until scripts/gpu-check has measured them; bench-cuda-copies sets them. */
#ifndef TN_CUDA_COPY_H
#define TN_CUDA_COPY_H

#include <stdint.h>

/*
 * Pieces of fewer bytes are the kernel's, others the copy engine's: a copy engine takes about a microsecond per piece, and a kernel takes
 * multiprocessors from the model.
 */
extern uint64_t tn_cuda_kernel_below_bytes;

/* Blocks of a copy over the bus: 32 have 512 KiB under way, more than a bus needs, and leave the other multiprocessors to the model. */
extern uint32_t tn_cuda_bus_blocks;

#endif
