/* SPDX-License-Identifier: Apache-2.0 */
/* Slack tables of an attached cache: as bytes, in as many parts as calls take. One table is under way at a time. */
#include <errno.h>

#include "base/error.h"
#include "front/attach.h"
#include "sched/slack.h"

static int send_table(struct tn_space *space, const unsigned char *bytes, size_t n)
{
	size_t most = space->cache->region.counts.call_bytes - sizeof(struct tn_wire_slack);
	int rc = 0;

	for (size_t at = 0; rc == 0 && at < n; at += most) {
		const struct tn_wire_slack w = {.space = space->index, .has = 1, .bytes = n, .at = at};
		const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(bytes + at, n - at < most ? n - at : most)};

		rc = tn_attached_call(space->cache, TN_WIRE_SLACK_SET, in, 2, NULL, 0);
	}
	return rc;
}

int tn_remote_slack(struct tn_space *space, const struct tn_slack *table)
{
	const struct tn_wire_slack none = {.space = space->index};
	const struct iovec in = TN_PART(&none, sizeof(none));
	struct tn_cache *cache = space->cache;
	unsigned char *bytes;
	int rc;

	if (!table)
		return tn_attached_call(cache, TN_WIRE_SLACK_SET, &in, 1, NULL, 0);
	bytes = tn_get(cache->alloc, tn_slack_bytes(table));
	if (!bytes)
		return tn_fail(-ENOMEM, "tn_space_slack: no memory");
	tn_slack_store(table, bytes);
	pthread_mutex_lock(&cache->lock);
	rc = send_table(space, bytes, tn_slack_bytes(table));
	pthread_mutex_unlock(&cache->lock);
	tn_put(cache->alloc, bytes, tn_slack_bytes(table));
	return rc;
}

static int receive_table(struct tn_space *space, unsigned char *bytes, uint64_t n)
{
	uint64_t most = space->cache->region.counts.call_bytes - sizeof(struct tn_wire_slack);
	struct tn_wire_slack told;
	int rc = 0;

	for (uint64_t at = 0; rc == 0 && at < n; at += most) {
		const struct tn_wire_slack w = {.space = space->index, .has = 1, .bytes = n - at < most ? n - at : most, .at = at};
		const struct iovec in = TN_PART(&w, sizeof(w)), out[] = {TN_PART(&told, sizeof(told)), TN_PART(bytes + at, w.bytes)};

		rc = tn_attached_call(space->cache, TN_WIRE_SLACK_GET, &in, 1, out, 2);
	}
	return rc;
}

/* The owner says how large the table is, and keeps a copy until all of it was taken. */
static int copy_table(struct tn_space *space, struct tn_slack **out)
{
	struct tn_wire_slack w = {.space = space->index};
	const struct iovec in = TN_PART(&w, sizeof(w)), answer = TN_PART(&w, sizeof(w));
	const struct tn_alloc *a = space->cache->alloc;
	unsigned char *bytes;
	int rc = tn_attached_call(space->cache, TN_WIRE_SLACK_GET, &in, 1, &answer, 1);

	if (rc)
		return rc;
	bytes = w.bytes <= tn_slack_bytes_max(TN_LAYERS_MAX) ? tn_get(a, w.bytes) : NULL;
	if (!bytes)
		return tn_fail(-ENOMEM, "tn_space_slack_copy: no memory for %llu bytes", (unsigned long long)w.bytes);
	rc = receive_table(space, bytes, w.bytes);
	if (rc == 0)
		rc = tn_slack_load(bytes, w.bytes, out);
	tn_put(a, bytes, w.bytes);
	return rc;
}

int tn_remote_slack_copy(struct tn_space *space, struct tn_slack **out)
{
	int rc;

	pthread_mutex_lock(&space->cache->lock);
	rc = copy_table(space, out);
	pthread_mutex_unlock(&space->cache->lock);
	return rc;
}
