/* SPDX-License-Identifier: Apache-2.0 */
/* Events: words of the region that an engine, or its device, raises when a layer's bytes are final. Any thread. */
#include <errno.h>

#include "base/error.h"
#include "base/stack.h"
#include "front/stage.h"

int tn_event_create(struct tn_cache *cache, struct tn_event **out)
{
	struct tn_event_word *word;
	struct tn_front *f;
	uint32_t i;

	if (!cache || !out)
		return tn_fail(-EINVAL, "tn_event_create: no cache, or nowhere to return the event");
	if (tn_check_process(cache))
		return -ECHILD;
	f = cache->front;
	i = tn_stack_pop(&f->free_events, &f->events[0].next_free, sizeof(f->events[0]));
	if (!i)
		return tn_fail(-EAGAIN, "tn_event_create: all %u events of the cache are in use; destroy some", TN_EVENTS);
	word = tn_event_word(&cache->region, i - 1);
	__atomic_store_n(&word->device, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&word->value, 0, __ATOMIC_RELAXED);
	*out = &f->events[i - 1];
	return 0;
}

void tn_event_destroy(struct tn_event *event)
{
	if (event && !tn_check_process(event->cache))
		tn_stack_push(&event->cache->front->free_events, event->number, &event->next_free);
}

/* Whoever waits for the event looks at it again. Which saves those are is not known here. */
static void wake(struct tn_cache *cache)
{
	tn_front_wake(cache);
	if (__atomic_load_n(&cache->stage, __ATOMIC_ACQUIRE))
		tn_stage_wake(cache);
}

int tn_event_raise(struct tn_event *event, uint64_t value)
{
	if (!event)
		return tn_fail(-EINVAL, "tn_event_raise: no event");
	if (tn_check_process(event->cache))
		return -ECHILD;
	if (tn_event_word_raise(tn_event_word(&event->cache->region, event->number), value))
		wake(event->cache);
	return 0;
}

uint64_t *tn_event_address(struct tn_event *event)
{
	struct tn_event_word *word;

	if (!event || tn_check_process(event->cache))
		return NULL;
	word = tn_event_word(&event->cache->region, event->number);
	__atomic_store_n(&word->device, 1, __ATOMIC_SEQ_CST);
	wake(event->cache); /* a save that waits already is looked at now and then from now on */
	return &word->value;
}
