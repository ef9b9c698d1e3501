/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stack of the free entries of a table, which any thread may push and pop without a lock. Each entry has a 32-bit link. The
 * head is (tag << 32 | index + 1); the tag makes a head that recurs differ (ABA). A head of 0 is an empty stack.
 */
#ifndef TN_BASE_STACK_H
#define TN_BASE_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pushes entry i, whose link is given. */
static inline void tn_stack_push(uint64_t *head, uint32_t i, uint32_t *link)
{
	uint64_t old = __atomic_load_n(head, __ATOMIC_RELAXED), new;

	do {
		__atomic_store_n(link, (uint32_t)old, __ATOMIC_RELAXED);
		new = ((old >> 32) + 1) << 32 | (i + 1);
	} while (!__atomic_compare_exchange_n(head, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* Pops an entry: its index + 1, or 0: there is none. first: the link of entry 0; entries are so many bytes apart. */
static inline uint32_t tn_stack_pop(uint64_t *head, const uint32_t *first, size_t entry_bytes)
{
	uint64_t old = __atomic_load_n(head, __ATOMIC_ACQUIRE), new;

	do {
		const char *link = (const char *)first + ((uint32_t)old - 1) * entry_bytes;

		if ((uint32_t)old == 0)
			return 0;
		/* Whoever was faster may have pushed the entry again: then the tag has changed, and what was read is not used. */
		new = ((old >> 32) + 1) << 32 | __atomic_load_n((const uint32_t *)(const void *)link, __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(head, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return (uint32_t)old;
}

#endif
