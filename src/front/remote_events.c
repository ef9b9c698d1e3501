/* SPDX-License-Identifier: Apache-2.0 */
/* Block events and snapshots of an attached cache, in as many parts as the owner's answers take. */
#include <errno.h>

#include "base/error.h"
#include "front/attach.h"

#define PART_EVENTS 512u

long tn_remote_events(struct tn_cache *cache, uint64_t *cursor, struct tn_block_event *out, size_t max)
{
	struct tn_wire_events_told told;
	size_t n = 0;

	do {
		size_t some = max - n < PART_EVENTS ? max - n : PART_EVENTS;
		const struct tn_wire_events w = {.cursor = *cursor, .max = (uint32_t)some};
		const struct iovec in = TN_PART(&w, sizeof(w)), answer[] = {TN_PART(&told, sizeof(told)), TN_PART(n ? out + n : out, some * sizeof(*out))};
		int rc = tn_attached_call(cache, TN_WIRE_EVENTS, &in, 1, answer, 2);

		if (rc < 0)
			return rc;
		if (told.status && n)
			break; /* the next call says so */
		*cursor = told.cursor;
		if (told.status)
			return tn_fail(told.status, "events before %llu are gone, %u are kept: take a snapshot and go on from its cursor",
				       (unsigned long long)told.cursor, TN_EVENTS_KEPT);
		n += told.n;
	} while (told.n > 0 && n < max);
	return (long)n;
}

long tn_remote_snapshot(struct tn_cache *cache, void (*fn)(void *arg, const struct tn_block_event *event), void *arg, uint64_t *cursor)
{
	struct tn_block_event event[PART_EVENTS];
	struct tn_wire_events_told told = {.at = TN_BLOCK_NONE};
	uint64_t first = 0;
	long n = 0;

	do {
		const struct tn_wire_events w = {.max = PART_EVENTS, .at = told.at};
		const struct iovec in = TN_PART(&w, sizeof(w)), answer[] = {TN_PART(&told, sizeof(told)), TN_PART(event, sizeof(event))};
		int rc = tn_attached_call(cache, TN_WIRE_SNAPSHOT, &in, 1, answer, 2);

		if (rc < 0)
			return rc;
		first = first ? first : told.cursor;
		for (uint32_t i = 0; i < told.n && i < PART_EVENTS; i++)
			fn(arg, &event[i]);
		n += told.n;
	} while (told.at != TN_BLOCK_NONE);
	*cursor = first;
	return n;
}
