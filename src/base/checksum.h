/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The object checksum: XXH3-64 over the XXH3-64 of the object's 4 KiB leaves (the last leaf may
 * be shorter), the leaf hashes as little-endian u64, seeded with the object's length.
 *
 * It is a tree so that a GPU can compute the leaves in parallel. The bytes may lie scattered in memory:
 * tn_checksum_iov gives the same value however they are divided.
 */
#ifndef TN_BASE_CHECKSUM_H
#define TN_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define TN_CHECKSUM_LEAF 4096u

uint64_t tn_checksum(const void *data, size_t len);

/*
 * Copies src to dst, and returns its checksum. One pass: each leaf is summed while it is in the first-level cache. They must not overlap.
 * past_cache: dst is for another process, later: stores go past the caches where the CPU can, and cost half as much for large objects. They come before all later
 * stores of the thread.
 */
uint64_t tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache);

/* Checksum of the len bytes that begin at byte skip of the iovecs; they must hold that many. */
uint64_t tn_checksum_iov(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);

#endif
