/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may have. Reads files: not for the owner thread. */
#ifndef TN_BASE_MEMORY_LIMIT_H
#define TN_BASE_MEMORY_LIMIT_H

#include <stddef.h>
#include <stdint.h>

/*
 * The least of the machine's memory and the limits of the process' cgroup and its ancestors (version 1 or 2, as far up as they are visible from
 * here): with more than that the kernel kills the process. In bytes; what: out, text of what sets it. root: the directory that has proc/; "" but
 * in tests.
 */
uint64_t tn_memory_limit(const char *root, char *what, size_t what_bytes);

#endif
