/* SPDX-License-Identifier: Apache-2.0 */
/* The object checksum with the widest instructions that the CPU has, where libxxhash does not pick them (checksum.c). */
#include "base/checksum.h"
#include "base/checksum_targets.h"

uint64_t tn_checksum_iov(const struct iovec *iov, size_t iov_count, size_t skip, size_t len)
{
	if (__builtin_cpu_supports("avx512f"))
		return tn_checksum_iov_avx512(iov, iov_count, skip, len);
	if (__builtin_cpu_supports("avx2"))
		return tn_checksum_iov_avx2(iov, iov_count, skip, len);
	return tn_checksum_iov_sse2(iov, iov_count, skip, len);
}

uint64_t tn_checksum_copy(void *dst, const void *src, size_t len, bool past_cache)
{
	if (__builtin_cpu_supports("avx512f"))
		return tn_checksum_copy_avx512(dst, src, len, past_cache);
	if (__builtin_cpu_supports("avx2"))
		return tn_checksum_copy_avx2(dst, src, len, past_cache);
	return tn_checksum_copy_sse2(dst, src, len, past_cache);
}

uint64_t tn_checksum(const void *data, size_t len)
{
	const struct iovec all = {(void *)(uintptr_t)data, len};

	return tn_checksum_iov(&all, 1, 0, len);
}
