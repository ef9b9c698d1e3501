/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on a word of memory, among the threads of one process (Linux's futex). */
#ifndef TN_BASE_FUTEX_H
#define TN_BASE_FUTEX_H

#include <stdint.h>

/*
 * Sleeps while *word == value, until a wake-up or the deadline (CLOCK_MONOTONIC; TN_FOREVER: none). It may return early, so the
 * caller looks at the word again. 0, or -ETIMEDOUT. Any thread.
 */
int tn_futex_wait(uint32_t *word, uint32_t value, uint64_t deadline_ns);
/* Wakes all who sleep on the word, after it has changed. The word's memory may be gone already. Any thread. */
void tn_futex_wake(uint32_t *word);

#endif
