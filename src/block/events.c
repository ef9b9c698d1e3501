/* SPDX-License-Identifier: Apache-2.0 */
#include "block/events.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

#define CAPACITY_MAX (1u << 24)
#define WORDS (sizeof(struct tn_block_event) / sizeof(uint64_t))

_Static_assert(sizeof(struct tn_block_event) == 64, "an event is copied by words, and is one cache line");
_Static_assert(offsetof(struct tn_block_event, sequence) == 0, "the first word says which event a slot holds");

/* The first word is the event's number, 0 while the slot is written. */
struct slot {
	uint64_t words[WORDS];
};

struct tn_events {
	const struct tn_alloc *alloc;
	struct slot *slots;
	uint32_t capacity;
	uint64_t next; /* written by the owner, read by all */
};

static size_t slots_bytes(uint32_t capacity)
{
	return tn_array_bytes(capacity, sizeof(struct slot));
}

int tn_events_create(uint32_t capacity, const struct tn_alloc *alloc, struct tn_events **out)
{
	struct tn_events *ev;

	if (capacity == 0 || capacity > CAPACITY_MAX)
		return tn_fail(-EINVAL, "capacity %u: must be 1 to %u events", capacity, CAPACITY_MAX);
	ev = tn_get(alloc, sizeof(*ev));
	if (!ev)
		return tn_fail(-ENOMEM, "no memory for events");
	ev->alloc = alloc;
	ev->next = 1;
	for (ev->capacity = 1; ev->capacity < capacity;)
		ev->capacity *= 2;
	ev->slots = tn_get(alloc, slots_bytes(ev->capacity));
	if (!ev->slots) {
		tn_events_destroy(ev);
		return tn_fail(-ENOMEM, "no memory for %u events", capacity);
	}
	*out = ev;
	return 0;
}

void tn_events_destroy(struct tn_events *ev)
{
	const struct tn_alloc *alloc;

	if (!ev)
		return;
	alloc = ev->alloc;
	tn_put(alloc, ev->slots, slots_bytes(ev->capacity));
	tn_put(alloc, ev, sizeof(*ev));
}

/*
 * A sequence lock per slot, without fences (which ThreadSanitizer does not know): each word is stored with
 * release and loaded with acquire. So a reader that got any word of a newer event also sees that the first word
 * changed.
 */
void tn_events_raise(struct tn_events *ev, const struct tn_block_event *event)
{
	uint64_t number = ev->next;
	struct slot *slot = &ev->slots[number & (ev->capacity - 1)];
	uint64_t words[WORDS];

	memcpy(words, event, sizeof(words));
	__atomic_store_n(&slot->words[0], 0, __ATOMIC_RELAXED);
	for (size_t i = 1; i < WORDS; i++)
		__atomic_store_n(&slot->words[i], words[i], __ATOMIC_RELEASE);
	__atomic_store_n(&slot->words[0], number, __ATOMIC_RELEASE);
	__atomic_store_n(&ev->next, number + 1, __ATOMIC_RELEASE);
}

uint64_t tn_events_next(const struct tn_events *ev)
{
	return __atomic_load_n(&ev->next, __ATOMIC_ACQUIRE);
}

/* Whether the slot held the event all the time while it was copied. */
static bool copy(const struct slot *slot, uint64_t number, struct tn_block_event *out)
{
	uint64_t words[WORDS];

	for (size_t i = 0; i < WORDS; i++)
		words[i] = __atomic_load_n(&slot->words[i], __ATOMIC_ACQUIRE);
	if (words[0] != number || __atomic_load_n(&slot->words[0], __ATOMIC_RELAXED) != number)
		return false;
	memcpy(out, words, sizeof(*out));
	return true;
}

long tn_events_read(const struct tn_events *ev, uint64_t *cursor, struct tn_block_event *out, size_t max)
{
	uint64_t next = tn_events_next(ev);
	long n = 0;

	if (*cursor == 0 || *cursor > next)
		return tn_fail(-EINVAL, "cursor %llu: events are numbered 1 to %llu", (unsigned long long)*cursor,
			       (unsigned long long)next - 1);
	while (*cursor < next && (size_t)n < max) {
		if (!copy(&ev->slots[*cursor & (ev->capacity - 1)], *cursor, &out[n])) {
			if (n)
				return n; /* the next read returns -ESTALE */
			next = *cursor;
			*cursor = tn_events_next(ev);
			return tn_fail(-ESTALE, "event %llu is gone, %u are kept: take a snapshot and go on from its cursor",
				       (unsigned long long)next, ev->capacity);
		}
		n++;
		++*cursor;
	}
	return n;
}
