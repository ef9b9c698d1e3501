/* SPDX-License-Identifier: Apache-2.0 */
/* Events: words of the region that an engine, or its device, raises when a layer's bytes are final. Any thread. */
#include <errno.h>

#include "base/error.h"
#include "front/front.h"

static uint32_t next_free_event(void *arg, uint32_t i)
{
	const struct tn_front *f = arg;

	return __atomic_load_n(&f->events[i].next_free, __ATOMIC_RELAXED);
}

int tn_event_create(struct tn_cache *cache, struct tn_event **out)
{
	struct tn_event_word *word;
	uint64_t i;

	if (!cache || !out)
		return tn_fail(-EINVAL, "tn_event_create: no cache, or nowhere to return the event");
	if (tn_check_process(cache))
		return -ECHILD;
	i = tn_stack_pop(&cache->front->free_events, next_free_event, cache->front);
	if (!i)
		return tn_fail(-EAGAIN, "tn_event_create: all %u events of the cache are in use; destroy some", TN_EVENTS);
	word = tn_event_word(&cache->region, (uint32_t)i - 1);
	__atomic_store_n(&word->device, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&word->value, 0, __ATOMIC_RELAXED);
	*out = &cache->front->events[i - 1];
	return 0;
}

void tn_event_destroy(struct tn_event *event)
{
	if (event && !tn_check_process(event->cache))
		tn_stack_push(&event->cache->front->free_events, event->number, &event->next_free);
}

int tn_event_raise(struct tn_event *event, uint64_t value)
{
	if (!event)
		return tn_fail(-EINVAL, "tn_event_raise: no event");
	if (tn_check_process(event->cache))
		return -ECHILD;
	if (tn_event_word_raise(tn_event_word(&event->cache->region, event->number), value))
		tn_io_wake(event->cache->io);
	return 0;
}

uint64_t *tn_event_address(struct tn_event *event)
{
	struct tn_event_word *word;

	if (!event || tn_check_process(event->cache))
		return NULL;
	word = tn_event_word(&event->cache->region, event->number);
	__atomic_store_n(&word->device, 1, __ATOMIC_RELAXED);
	return &word->value;
}
