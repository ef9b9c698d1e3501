/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups that are begun and polled, for tiers that answer later. A query keeps its arguments, in tables that are sized at open. It
 * is named by a number as leases are, so that any other number is told from it.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "front/front.h"

struct tn_query {
	uint32_t next;	     /* free list */
	uint32_t generation; /* odd: under way. Shared. */
	unsigned flags;
	uint32_t nspaces, n;
	uint64_t deadline_ns;
	struct tn_space *space[TN_MATCH_SPACES_MAX];
	struct tn_lookup *lookup[TN_MATCH_SPACES_MAX]; /* NULL: every tier answers at once */
	struct tn_key *keys;
};

int tn_queries_create(struct tn_cache *cache)
{
	uint32_t n = cache->o.max_ops, each = cache->o.max_op_blocks;

	cache->queries = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*cache->queries)));
	cache->query_keys = tn_get(cache->alloc, tn_array_bytes(n, each * sizeof(struct tn_key)));
	if (!cache->queries || !cache->query_keys)
		return tn_fail(-ENOMEM, "no memory for %u look-ups; lower max_ops or max_op_blocks", n);
	for (uint32_t i = 0; i < n; i++) {
		cache->queries[i].keys = cache->query_keys + (size_t)i * each;
		tn_stack_push(&cache->free_queries, i, &cache->queries[i].next);
	}
	return 0;
}

void tn_queries_destroy(struct tn_cache *cache)
{
	tn_put(cache->alloc, cache->queries, tn_array_bytes(cache->o.max_ops, sizeof(*cache->queries)));
	tn_put(cache->alloc, cache->query_keys, tn_array_bytes(cache->o.max_ops, cache->o.max_op_blocks * sizeof(struct tn_key)));
}

static uint32_t next_free_query(void *arg, uint32_t i)
{
	struct tn_cache *cache = arg;

	return __atomic_load_n(&cache->queries[i].next, __ATOMIC_RELAXED);
}

/* Ends what is asked of tiers: those that have not answered do so in vain. */
static void end_lookups(struct tn_query *q)
{
	for (uint32_t i = 0; i < q->nspaces; i++) {
		if (q->lookup[i])
			tn_lookup_end(q->lookup[i]);
		q->lookup[i] = NULL;
	}
}

static bool is_answered(const struct tn_query *q)
{
	for (uint32_t i = 0; i < q->nspaces; i++)
		if (q->lookup[i] && !tn_lookup_over(q->lookup[i]))
			return false;
	return true;
}

/* Asks the tiers that answer later, once per space. 0 or -ENOMEM. */
static int begin_lookups(struct tn_cache *cache, struct tn_query *q)
{
	bool later = false;

	for_each_tier(t, cache)
		later |= t->ops->probe != NULL;
	for (uint32_t i = 0; later && q->n && q->deadline_ns && i < q->nspaces; i++) {
		q->lookup[i] = tn_lookup_begin(q->space[i], q->keys, q->n);
		if (q->lookup[i])
			continue;
		end_lookups(q);
		return tn_fail(-ENOMEM, "tn_match_begin: no memory to ask for %u keys", q->n);
	}
	return 0;
}

static void give_back(struct tn_cache *cache, struct tn_query *q)
{
	tn_stack_push(&cache->free_queries, (uint32_t)(q - cache->queries), &q->next);
}

int tn_match_begin(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint64_t deadline_ns,
		   unsigned flags, uint64_t *query)
{
	int rc = tn_match_check(spaces, nspaces, keys, n, flags);
	struct tn_cache *cache;
	struct tn_query *q;
	uint64_t i;

	if (rc == 0 && !query)
		rc = tn_fail(-EINVAL, "tn_match_begin: nowhere to return the query");
	if (rc)
		return rc;
	cache = spaces[0]->cache;
	if (n > cache->o.max_op_blocks)
		return tn_fail(-E2BIG, "tn_match_begin: %zu keys, at most max_op_blocks: %u", n, cache->o.max_op_blocks);
	i = tn_stack_pop(&cache->free_queries, next_free_query, cache);
	if (!i)
		return tn_fail(-EAGAIN, "tn_match_begin: all %u look-ups are under way; poll some or raise max_ops", cache->o.max_ops);
	q = &cache->queries[i - 1];
	q->flags = flags;
	q->nspaces = (uint32_t)nspaces;
	q->n = (uint32_t)n;
	q->deadline_ns = deadline_ns;
	memcpy(q->space, spaces, nspaces * sizeof(*spaces));
	if (n)
		memcpy(q->keys, keys, n * sizeof(*keys));
	rc = begin_lookups(cache, q);
	if (rc) {
		give_back(cache, q);
		return rc;
	}
	*query = (uint64_t)__atomic_add_fetch(&q->generation, 1, __ATOMIC_ACQ_REL) << 32 | i;
	return 0;
}

/* The query is the caller's alone until it is given back or put back; NULL: there is no such query, or another thread has it. */
static struct tn_query *take(struct tn_cache *cache, uint64_t query)
{
	uint32_t generation = (uint32_t)(query >> 32), i = (uint32_t)query;

	if (i == 0 || i > cache->o.max_ops || !(generation & 1) ||
	    !__atomic_compare_exchange_n(&cache->queries[i - 1].generation, &generation, generation + 1, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return NULL;
	return &cache->queries[i - 1];
}

static int no_query(const char *call, uint64_t query)
{
	return tn_fail(-EINVAL, "%s: no look-up %#llx (over before?)", call, (unsigned long long)query);
}

static void put_back(struct tn_query *q)
{
	__atomic_sub_fetch(&q->generation, 1, __ATOMIC_RELEASE);
}

int tn_match_poll(struct tn_cache *cache, uint64_t query, uint32_t *first, struct tn_match *match)
{
	struct tn_query *q;
	int rc;

	if (!cache || !match)
		return tn_fail(-EINVAL, "tn_match_poll: cache or match is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	q = take(cache, query);
	if (!q)
		return no_query("tn_match_poll", query);
	if (!is_answered(q) && tn_now_ns(&cache->clock) < q->deadline_ns) {
		put_back(q);
		return -EAGAIN;
	}
	end_lookups(q);
	rc = tn_match_find(q->space, q->nspaces, q->keys, q->n, first, match, q->flags);
	if (rc == -EAGAIN || rc == -EINVAL) /* no lease is free, or match cannot take the result: it can be asked again */
		put_back(q);
	else
		give_back(cache, q);
	return rc;
}

int tn_match_cancel(struct tn_cache *cache, uint64_t query)
{
	struct tn_query *q;

	if (!cache)
		return tn_fail(-EINVAL, "tn_match_cancel: no cache");
	if (tn_check_process(cache))
		return -ECHILD;
	q = take(cache, query);
	if (!q)
		return no_query("tn_match_cancel", query);
	end_lookups(q);
	give_back(cache, q);
	return 0;
}
