/* SPDX-License-Identifier: Apache-2.0 */
/* The object checksum for each instruction set, in builds that link libxxhash statically on x86-64 (checksum.c). */
#ifndef TN_BASE_CHECKSUM_TARGETS_H
#define TN_BASE_CHECKSUM_TARGETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/** TN_CHECKSUM_OF, TN_CHECKSUM_COPY_OF - tn_checksum_iov and tn_checksum_copy of one instruction set */
#define TN_CHECKSUM_OF(target) TN_CHECKSUM_JOIN(tn_checksum_iov_, target)
#define TN_CHECKSUM_COPY_OF(target) TN_CHECKSUM_JOIN(tn_checksum_copy_, target)
#define TN_CHECKSUM_JOIN(a, b) TN_CHECKSUM_PASTE(a, b)
#define TN_CHECKSUM_PASTE(a, b) a##b

uint64_t tn_checksum_iov_sse2(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);
uint64_t tn_checksum_iov_avx2(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);
uint64_t tn_checksum_iov_avx512(const struct iovec *iov, size_t iov_count, size_t skip, size_t len);
uint64_t tn_checksum_copy_sse2(void *dst, const void *src, size_t len, bool past_cache);
uint64_t tn_checksum_copy_avx2(void *dst, const void *src, size_t len, bool past_cache);
uint64_t tn_checksum_copy_avx512(void *dst, const void *src, size_t len, bool past_cache);

#endif
