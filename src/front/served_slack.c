/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slack tables of a session's spaces. A table comes as bytes, in parts that follow each other, into memory of the owner's process; with the last
 * part it is checked (tn_slack_load) and becomes the space's. A copy of a space's table goes the other way. One table is under way at a time;
 * a new one takes the place of one that was not ended.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "front/serve.h"
#include "sched/slack.h"

void tn_served_slack_forget(struct tn_served *s)
{
	tn_put(s->cache->alloc, s->slack, s->slack_bytes);
	s->slack = NULL;
}

static int begin(struct tn_served *s, const struct tn_space *space, uint64_t bytes)
{
	tn_served_slack_forget(s);
	if (bytes == 0 || bytes > tn_slack_bytes_max(space->shape.layers))
		return tn_fail(-EINVAL, "process %d: a slack table of %llu bytes for %u layers", (int)s->pid, (unsigned long long)bytes,
			       space->shape.layers);
	s->slack = tn_get(s->cache->alloc, bytes);
	if (!s->slack)
		return tn_fail(-ENOMEM, "slack table: no memory for %llu bytes", (unsigned long long)bytes);
	s->slack_bytes = bytes;
	s->slack_space = space->index;
	s->slack_at = 0;
	return 0;
}

/* Whether a part of so many bytes is the next one of the table under way. */
static int check_part(const struct tn_served *s, const struct tn_space *space, const struct tn_wire_slack *w, uint64_t n)
{
	if (s->slack && s->slack_space == space->index && s->slack_at == w->at && n <= s->slack_bytes - w->at)
		return 0;
	return tn_fail(-EINVAL, "process %d: no slack table of space %u is under way at byte %llu", (int)s->pid, space->index,
		       (unsigned long long)w->at);
}

static int install(struct tn_served *s, struct tn_space *space)
{
	struct tn_slack *table;
	int rc = tn_slack_load(s->slack, s->slack_bytes, &table);

	tn_served_slack_forget(s);
	if (rc)
		return rc;
	rc = tn_space_slack(space, table);
	tn_slack_destroy(table);
	return rc;
}

int tn_served_slack_set(struct tn_served *s, struct tn_space *space, const struct tn_wire_slack *w, const unsigned char *part, uint32_t n)
{
	int rc = 0;

	if (!w->has)
		return tn_space_slack(space, NULL);
	if (w->at == 0)
		rc = begin(s, space, w->bytes);
	if (rc == 0)
		rc = check_part(s, space, w, n);
	if (rc)
		return rc;
	memcpy(s->slack + s->slack_at, part, n);
	s->slack_at += n;
	return s->slack_at == s->slack_bytes ? install(s, space) : 0;
}

static int begin_copy(struct tn_served *s, struct tn_space *space)
{
	struct tn_slack *table;
	int rc = tn_space_slack_copy(space, &table);

	if (rc)
		return rc;
	rc = begin(s, space, tn_slack_bytes(table));
	if (rc == 0)
		tn_slack_store(table, s->slack);
	tn_slack_destroy(table);
	return rc;
}

int tn_served_slack_get(struct tn_served *s, struct tn_space *space, const struct tn_wire_slack *w, struct tn_wire_slack *told,
			unsigned char *part, uint32_t n)
{
	uint64_t wanted = w->has ? w->bytes : 0;
	int rc = w->has ? 0 : begin_copy(s, space);

	if (rc == 0)
		rc = wanted > n ? tn_fail(-EINVAL, "a part of %llu bytes", (unsigned long long)wanted) : check_part(s, space, w, wanted);
	if (rc)
		return rc;
	memcpy(part, s->slack + w->at, wanted);
	s->slack_at += wanted;
	*told = (struct tn_wire_slack){.space = space->index, .has = 1, .bytes = s->slack_bytes, .at = w->at};
	if (s->slack_at == s->slack_bytes)
		tn_served_slack_forget(s);
	return (int)wanted;
}
