/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block events and snapshots of a session: of the spaces that it has open, in a ring of its own with numbers of its own. Nothing in it, not a
 * gap in the numbers nor an overflow, tells of the blocks of others. The ring is made when the session asks for events the first time. The
 * core writes it and waits for nobody; a reader that comes too late is told so.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "block/events.h"
#include "front/serve.h"

#define PART_EVENTS 512u

static int follow(struct tn_cache *cache, void *arg)
{
	struct tn_served *s = arg;

	return tn_watch_follow(cache->watch, s->events, s->session->may_name);
}

static int begin(struct tn_served *s)
{
	int rc;

	if (s->events)
		return 0;
	rc = tn_events_create(TN_EVENTS_KEPT, s->cache->alloc, &s->events);
	if (rc)
		return rc;
	rc = tn_owner_call(s->cache, follow, s);
	if (rc) {
		tn_events_destroy(s->events);
		s->events = NULL;
	}
	return rc;
}

int tn_served_events(struct tn_served *s, const struct tn_wire_events *w, struct tn_wire_events_told *told, struct tn_block_event *out,
		     uint32_t max)
{
	int rc = begin(s);
	long n;

	if (rc)
		return rc;
	*told = (struct tn_wire_events_told){.cursor = w->cursor ? w->cursor : tn_events_next(s->events)};
	n = tn_events_read(s->events, &told->cursor, out, w->max < max ? w->max : max);
	if (n < 0 && n != -ESTALE)
		return (int)n;
	told->status = n < 0 ? -ESTALE : 0;
	told->n = n < 0 ? 0 : (uint32_t)n;
	return 0;
}

static int part_on_owner(struct tn_cache *cache, void *arg)
{
	tn_watch_part(cache->watch, arg);
	return 0;
}

int tn_served_snapshot(struct tn_served *s, const struct tn_wire_events *w, struct tn_wire_events_told *told, struct tn_block_event *out,
		       uint32_t max)
{
	struct tn_block_event events[PART_EVENTS]; /* the core reads what it has written: not from memory of the session */
	struct tn_watch_part part = {.spaces = s->session->may_name, .at = w->at, .out = events};
	int rc = begin(s);

	part.max = max < PART_EVENTS ? max : PART_EVENTS;
	if (rc)
		return rc;
	*told = (struct tn_wire_events_told){.cursor = tn_events_next(s->events)};
	rc = tn_owner_call(s->cache, part_on_owner, &part);
	if (rc)
		return rc;
	memcpy(out, events, part.n * sizeof(*events));
	told->n = part.n;
	told->at = part.at;
	return 0;
}
