/* SPDX-License-Identifier: Apache-2.0 */
/* The object checksum for each instruction set, in builds that link libxxhash statically on x86-64 (checksum.c). */
#ifndef TN_BASE_CHECKSUM_TARGETS_H
#define TN_BASE_CHECKSUM_TARGETS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/** TN_CHECKSUM_OF - tn_checksum_iov of one instruction set */
#define TN_CHECKSUM_OF(target) TN_CHECKSUM_JOIN(tn_checksum_iov_, target)
#define TN_CHECKSUM_JOIN(a, b) TN_CHECKSUM_PASTE(a, b)
#define TN_CHECKSUM_PASTE(a, b) a##b

uint64_t tn_checksum_iov_sse2(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);
uint64_t tn_checksum_iov_avx2(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);
uint64_t tn_checksum_iov_avx512(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);

#endif
