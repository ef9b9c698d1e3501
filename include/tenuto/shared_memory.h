/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that other processes of the machine can map, too.
 */
#ifndef TENUTO_SHARED_MEMORY_H
#define TENUTO_SHARED_MEMORY_H

#include <stdint.h>
#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * tn_memory_alloc - memory that other processes can map: the owner of a cache, and peers of a transfer agent
 * @bytes:      how many; rounded up to whole pages
 * @page_bytes: out, unless NULL: pages that it is made of: 2 MiB where huge pages are reserved for it, else the
 *              machine's, which the kernel may still merge (transparent hugepages for shared memory)
 *
 * Its ranges may be registered with tn_memory_register in an embedded cache as well as in one that is attached, and with tn_xfer_register. It is a
 * memfd that nobody can make shorter. Zero at first; of this process alone in a forked child, whose copy is gone (MADV_DONTFORK). Any thread.
 *
 * Return: 0 and *out; -EINVAL (0 bytes), -ENOMEM.
 */
TN_API int tn_memory_alloc(uint64_t bytes, uint64_t *page_bytes, void **out);

/** tn_memory_free - memory of tn_memory_alloc, after it was unregistered or deregistered; -EINVAL if it is none; NULL is fine */
TN_API int tn_memory_free(void *memory);

#ifdef __cplusplus
}
#endif
#endif
