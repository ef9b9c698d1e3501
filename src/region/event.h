/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event words that a front, or a device for it, raises: the core waits until a word has reached a value. A word only rises.
 *
 * The core looks at a word when it is woken; where a device writes the word, which wakes nobody, it looks once in a while.
 */
#ifndef TN_REGION_EVENT_H
#define TN_REGION_EVENT_H

#include "region/region.h"

#define TN_EVENT_NONE UINT32_MAX

struct tn_event_word {
	uint64_t value;
	uint32_t device; /* its address was given away: it may rise without a wake-up */
	uint32_t unused;
};

static inline struct tn_event_word *tn_event_word(const struct tn_region *r, uint32_t event)
{
	return (struct tn_event_word *)tn_region_table(r, TN_REGION_EVENTS) + event;
}

static inline bool tn_event_word_reached(const struct tn_event_word *w, uint64_t value)
{
	return __atomic_load_n(&w->value, __ATOMIC_SEQ_CST) >= value;
}

/* Any thread of the front. False: it had reached the value before. */
static inline bool tn_event_word_raise(struct tn_event_word *w, uint64_t value)
{
	uint64_t old = __atomic_load_n(&w->value, __ATOMIC_RELAXED);

	while (old < value)
		if (__atomic_compare_exchange_n(&w->value, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return true;
	return false;
}

#endif
