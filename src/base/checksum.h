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

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define TN_CHECKSUM_LEAF 4096u

uint64_t tn_checksum(const void *data, size_t len);

/* Checksum of the len bytes that begin at byte skip of the iovecs; they must hold that many. */
uint64_t tn_checksum_iov(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);

#endif
