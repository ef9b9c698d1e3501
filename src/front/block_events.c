/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that arrive in a tier and leave it, for those who keep an index of their own: events, and snapshots to begin with. */
#include <errno.h>

#include "base/error.h"
#include "block/events.h"
#include "core/core.h"

long tn_cache_events(struct tn_cache *cache, uint64_t *cursor, struct tn_block_event *out, size_t max)
{
	if (!cache || !cursor || (max && !out))
		return tn_fail(-EINVAL, "tn_cache_events: cache, cursor or out is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	if (*cursor == 0)
		*cursor = tn_events_next(cache->events);
	return tn_events_read(cache->events, cursor, out, max);
}

long tn_cache_snapshot(struct tn_cache *cache, void (*fn)(void *arg, const struct tn_block_event *event), void *arg,
		       uint64_t *cursor)
{
	struct tn_watch_snapshot s = {.fn = fn, .arg = arg};
	int rc;

	if (!cache || !fn || !cursor)
		return tn_fail(-EINVAL, "tn_cache_snapshot: cache, fn or cursor is missing");
	rc = tn_owner_call(cache, tn_watch_snapshot, &s);
	if (rc)
		return rc;
	*cursor = s.cursor;
	return s.count;
}
