/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that other processes can map: which file it is in. */
#ifndef TN_BASE_SHARED_MEMORY_H
#define TN_BASE_SHARED_MEMORY_H

#include <tenuto/shared_memory.h>

/* The file that these bytes of tn_memory_alloc are in, and where; -1: there is none. */
int tn_memory_file(const void *address, uint64_t bytes, uint64_t *offset);

/* A new descriptor of the file that is mapped there, shared, and where in it the bytes are; -1: there is none. Reads /proc. */
int tn_shared_file(const void *address, uint64_t bytes, uint64_t *offset);

#endif
