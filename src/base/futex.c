/* SPDX-License-Identifier: Apache-2.0 */
#include "base/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <tenuto/types.h>
#include <time.h>
#include <unistd.h>

int tn_futex_wait_on(uint32_t *word, uint32_t value, uint64_t deadline_ns, bool shared)
{
	struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
	long rc;

	do {
		rc = syscall(SYS_futex, word, shared ? FUTEX_WAIT_BITSET : FUTEX_WAIT_BITSET_PRIVATE, value,
			     deadline_ns == TN_FOREVER ? NULL : &ts, NULL, FUTEX_BITSET_MATCH_ANY);
	} while (rc < 0 && errno == EINTR);
	return rc < 0 && errno == ETIMEDOUT ? -ETIMEDOUT : 0;
}

void tn_futex_wake_on(uint32_t *word, bool shared)
{
	syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
