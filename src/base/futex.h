/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on a word of memory (Linux's futex). */
#ifndef TN_BASE_FUTEX_H
#define TN_BASE_FUTEX_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Sleeps while *word == value, until a wake-up or the deadline (CLOCK_MONOTONIC; TN_FOREVER: none). The call may return early,
 * so the caller reads the word again. 0, or -ETIMEDOUT. Any thread. shared: other processes use the word, too.
 */
int tn_futex_wait_on(uint32_t *word, uint32_t value, uint64_t deadline_ns, bool shared);
/*
 * Wakes all who sleep on the word; call it after the word has changed. The word's memory may be unmapped by then. Any
 * thread.
 */
void tn_futex_wake_on(uint32_t *word, bool shared);

/* Among the threads of this process. */
static inline int tn_futex_wait(uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
	return tn_futex_wait_on(word, value, deadline_ns, false);
}

static inline void tn_futex_wake(uint32_t *word)
{
	tn_futex_wake_on(word, false);
}

#endif
