/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The look-ups of a session that tiers answer later: which of the cache's queries are its own, and about which spaces. A process that ends or
 * closes a space may leave some behind: they are cancelled, so that no query outlives the handle of its spaces.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "front/serve.h"

/* NULL: the session has no such query. */
static struct tn_served_query *find(struct tn_served *s, uint64_t query, const char *call)
{
	uint32_t i = (uint32_t)query - 1;

	if (query && i < s->cache->matches->nqueries && s->queries[i].query == query)
		return &s->queries[i];
	tn_fail(-EINVAL, "%s: process %d has no look-up %#llx (over before?)", call, (int)s->pid, (unsigned long long)query);
	return NULL;
}

int tn_served_query(struct tn_served *s, struct tn_space *const *spaces, const struct tn_wire_match *w, const struct tn_key *keys,
		    uint64_t *query)
{
	int rc = tn_query_check(spaces, w->nspaces, keys, w->n, w->flags);
	struct tn_served_query *q;

	if (rc == 0)
		rc = tn_query_begin(s->session, &s->holder, spaces, w->nspaces, keys, w->n, w->deadline_ns, w->flags, query);
	if (rc)
		return rc;
	q = &s->queries[(uint32_t)*query - 1];
	q->query = *query;
	q->nspaces = w->nspaces;
	memcpy(q->space, w->space, w->nspaces * sizeof(*w->space));
	return 0;
}

int tn_served_query_poll(struct tn_served *s, uint64_t query, struct tn_wire_match_told *told)
{
	struct tn_served_query *q = find(s, query, "tn_match_poll");
	int rc;

	if (!q)
		return -EINVAL;
	told->nspaces = q->nspaces;
	rc = tn_match_poll(s->cache, query, told->first, &told->match);
	if (rc != -EAGAIN)
		q->query = 0;
	return rc;
}

int tn_served_query_cancel(struct tn_served *s, uint64_t query)
{
	struct tn_served_query *q = find(s, query, "tn_match_cancel");

	if (!q)
		return -EINVAL;
	q->query = 0;
	return tn_match_cancel(s->cache, query);
}

static bool is_about(const struct tn_served_query *q, uint32_t space)
{
	for (uint32_t i = 0; i < q->nspaces; i++)
		if (q->space[i] == space)
			return true;
	return space == TN_SPACES_MAX;
}

void tn_served_query_forget(struct tn_served *s, uint32_t space)
{
	for (uint32_t i = 0; i < s->cache->matches->nqueries; i++)
		if (s->queries[i].query && is_about(&s->queries[i], space))
			tn_served_query_cancel(s, s->queries[i].query);
}
