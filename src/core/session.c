/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: a region with a front behind it, and a pool of operations sized when it is made, with the per-block and per-page tables that each
 * may need, so that begin allocates nothing. The tables are address space until they are used.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/core.h"
#include "core/pool.h"

#define PAGES_PER_BLOCK 16u  /* tables for that many pages per block ... */
#define LAYERS_PER_BLOCK 64u /* ... and that many layers; operations on larger blocks take fewer of them */

/* The tables of several operations, one array each, so that they are too large for anything but fresh pages. */
struct sizes {
	uint32_t ops, blocks, objects, pages; /* of each operation */
};

struct table {
	size_t each; /* entries an operation */
	size_t size; /* of an entry */
	size_t at;   /* offset of the pointer in struct tn_op */
};

#define TABLES 9u

static void describe_tables(const struct sizes *t, struct table *table)
{
	const size_t item = sizeof(struct tn_read_item) > sizeof(struct tn_write_item) ? sizeof(struct tn_read_item)
											 : sizeof(struct tn_write_item);
	const struct table all[TABLES] = {
		{t->blocks, sizeof(struct tn_key), offsetof(struct tn_op_tables, keys)},
		{t->blocks, item, offsetof(struct tn_op_tables, items)},
		{t->blocks, TN_CHUNKS_MAX, offsetof(struct tn_op_tables, chunk_state)},
		{t->objects, sizeof(uint64_t), offsetof(struct tn_op_tables, checks)},
		{t->blocks, sizeof(uint64_t), offsetof(struct tn_op_tables, disk)},
		{t->blocks, sizeof(uint64_t), offsetof(struct tn_op_tables, offset)},
		{t->blocks, sizeof(uint64_t), offsetof(struct tn_op_tables, near)},
		{t->pages, sizeof(uint32_t), offsetof(struct tn_op_tables, pages)},
		{TN_OBJECTS_MAX, sizeof(uint64_t), offsetof(struct tn_op_tables, before_ns)},
	};

	memcpy(table, all, sizeof(all));
}

static size_t table_bytes(const struct sizes *t, const struct table *table)
{
	return tn_array_bytes(t->ops, tn_array_bytes(table->each, table->size));
}

static void **table_of(struct tn_op *op, const struct table *table)
{
	return (void **)(void *)((char *)&op->table + table->at);
}

static int tables_get(struct tn_session *session, const struct sizes *t)
{
	struct table table[TABLES];

	describe_tables(t, table);
	for (unsigned k = 0; k < TABLES; k++) {
		char *memory = tn_get(session->cache->alloc, table_bytes(t, &table[k]));

		if (!memory)
			return tn_fail(-ENOMEM, "no memory for %u operations of %u blocks; lower max_ops or max_op_blocks",
				       t->ops, t->blocks);
		/* The first operation would wait until whole hugepages are cleared: five milliseconds each on a virtual machine. */
		tn_sparse(session->cache->alloc, memory, table_bytes(t, &table[k]));
		for (uint32_t i = 0; i < t->ops; i++)
			*table_of(&session->ops[i].op, &table[k]) = memory + i * table[k].each * table[k].size;
	}
	return 0;
}

static struct sizes sizes_of(const struct tn_session *session)
{
	const struct tn_cache *cache = session->cache;

	return (struct sizes){session->region.counts.ops, cache->o.max_op_blocks, cache->max_objects, cache->max_pages};
}

void tn_session_counts(const struct tn_cache *cache, struct tn_region_counts *counts)
{
	*counts = (struct tn_region_counts){
		.ops = cache->o.max_ops,
		.blocks = cache->o.max_op_blocks,
		.pages = cache->o.max_op_blocks * PAGES_PER_BLOCK,
		.layers = TN_LAYERS_MAX,
		.chunks = TN_CHUNKS_MAX,
		.events = TN_EVENTS,
	};
}

void tn_session_limits(struct tn_cache *cache)
{
	cache->max_pages = cache->o.max_op_blocks * PAGES_PER_BLOCK;
	cache->max_objects = cache->o.max_op_blocks * LAYERS_PER_BLOCK;
}

int tn_session_create(struct tn_cache *cache, const struct tn_region *region, struct tn_session **out)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_session *session = tn_get(a, sizeof(*session));
	uint32_t nops = region->counts.ops;
	struct sizes t;
	int rc;

	if (!session)
		return tn_fail(-ENOMEM, "no memory");
	session->cache = cache;
	session->region = *region;
	session->max_priority = INT32_MAX;
	tn_list_init(&session->link);
	tn_region_core(region)->limit_bytes = UINT64_MAX;
	session->ops = tn_get(a, tn_array_bytes(nops, sizeof(*session->ops)));
	session->kicked = tn_get(a, tn_array_bytes(nops, sizeof(*session->kicked)));
	t = sizes_of(session);
	rc = session->ops && session->kicked ? tables_get(session, &t) : tn_fail(-ENOMEM, "no memory for %u operations", nops);
	for (uint32_t i = 0; rc == 0 && i < nops; i++) {
		session->ops[i].op.cache = cache;
		session->ops[i].op.session = session;
		session->ops[i].op.index = session->ops[i].op.number = i;
	}
	if (rc) {
		tn_session_destroy(session);
		return rc;
	}
	*out = session;
	return 0;
}

void tn_session_destroy(struct tn_session *session)
{
	const struct tn_alloc *a;
	struct table table[TABLES];
	struct sizes t;

	if (!session)
		return;
	a = session->cache->alloc;
	t = sizes_of(session);
	describe_tables(&t, table);
	for (unsigned k = 0; session->ops && k < TABLES; k++)
		tn_put(a, *table_of(&session->ops[0].op, &table[k]), table_bytes(&t, &table[k]));
	tn_put(a, session->ops, tn_array_bytes(t.ops, sizeof(*session->ops)));
	tn_put(a, session->kicked, tn_array_bytes(t.ops, sizeof(*session->kicked)));
	tn_put(a, session, sizeof(*session));
}

/* ---- of fronts that attach ------------------------------------------------------------------------------ */

static bool place_is_taken(const struct tn_cache *cache, uint32_t place)
{
	for_each_session(session, cache)
		if (session != cache->own && session->place == place)
			return true;
	return false;
}

int tn_session_join(struct tn_cache *cache, void *arg)
{
	struct tn_session *session = arg;
	uint32_t place = 0;

	while (place < TN_SESSIONS_MAX && place_is_taken(cache, place))
		place++;
	if (place == TN_SESSIONS_MAX)
		return tn_fail(-EAGAIN, "%u processes are attached, the most there can be; close the cache in one of them", TN_SESSIONS_MAX);
	session->place = place;
	for (uint32_t i = 0; i < session->region.counts.ops; i++)
		session->ops[i].op.index = cache->o.max_ops + cache->offloads.n + place * TN_SESSION_OPS_MAX + i;
	tn_list_push(&cache->sessions, &session->link);
	cache->nattached++;
	tn_sessions_share(cache);
	tn_schedule_session(session);
	return 0;
}

bool tn_session_has_share(const struct tn_session *session, const struct tn_tier_base *t)
{
	const struct tn_cache *cache = session->cache;
	uint64_t capacity, leased;

	if (tn_session_is_alone(cache))
		return true;
	capacity = t->ops->capacity(t);
	leased = session->leased ? __atomic_load_n(session->leased, __ATOMIC_RELAXED) : 0;
	leased = leased < capacity / 2 ? leased : capacity / 2;
	return cache->held[t->tier] + session->held[t->tier] + leased < capacity;
}

void tn_session_hold(struct tn_session *session, enum tn_tier tier)
{
	session->held[tier]++;
	session->cache->held[tier]++;
}

void tn_session_let_go(struct tn_session *session, enum tn_tier tier)
{
	session->held[tier]--;
	session->cache->held[tier]--;
}

void tn_sessions_share(struct tn_cache *cache)
{
	const struct tn_tier_base *t = cache->row.durable ? cache->row.durable : cache->row.memory;

	if (t)
		__atomic_store_n(&cache->lease_blocks, t->ops->capacity(t) / 2, __ATOMIC_RELAXED);
}

void tn_session_completes(struct tn_cache *cache, const struct tn_session *session)
{
	for_each_session(s, cache)
		if (s == session)
			s->completed = true;
}

/* Whether an operation of the session may still touch memory: of this pool, or of any. */
static bool is_busy(const struct tn_session *session, const struct tn_pool *pool)
{
	for (uint32_t i = 0; i < session->region.counts.ops; i++) {
		const struct tn_op *op = &session->ops[i].op;

		if (op->alive && (!pool || op->pool == pool))
			return true;
	}
	return false;
}

void tn_session_add_staged(struct tn_session *session, uint64_t *sum)
{
	uint64_t said = __atomic_load_n(&tn_region_front(&session->region)->staged_bytes, __ATOMIC_RELAXED);

	said = said < session->stageable_bytes ? said : session->stageable_bytes;
	if (said > session->staged_bytes)
		session->staged_bytes = said;
	*sum = session->staged_bytes > UINT64_MAX - *sum ? UINT64_MAX : *sum + session->staged_bytes;
}

int tn_session_leave(struct tn_cache *cache, void *arg)
{
	struct tn_session *session = arg;

	session->over = true;
	if (is_busy(session, NULL))
		return -EAGAIN;
	for (uint32_t i = 0; i < session->region.counts.ops; i++)
		tn_op_ends(&session->ops[i].op);
	tn_watch_unfollow(cache->watch, session->may_name);
	tn_session_add_staged(session, &cache->c.staged_bytes);
	tn_list_del(&session->link);
	cache->nattached--;
	return 0;
}

static void describe_op(const struct tn_op *op, struct tn_session_stats *out)
{
	const struct tn_writing *w = op->writing ? tn_container_of(op, const struct tn_writing, op) : NULL;
	bool layers_missing = w && !tn_op_is_committed(op) && (w->ready < op->shape->layers || (w->unplaced == 0 && w->unwritten == 0));

	if (w)
		out->saves_now++;
	else if (tn_container_of(op, const struct tn_reading, op)->prefetch)
		out->prefetches_now++;
	else
		out->loads_now++;
	if (op->inflight)
		out->moving++;
	else if (layers_missing)
		out->waiting_process++;
	else
		out->waiting_turn++;
}

int tn_session_describe(struct tn_cache *cache, void *arg)
{
	const struct tn_session_view *view = arg;

	for_each_session(session, cache) {
		struct tn_session_stats *out = view->out;

		if (session->over || view->place != (session == cache->own ? 0 : session->place + 1))
			continue;
		out->loads = session->loads;
		out->saves = session->saves;
		out->loaded_bytes = session->loaded_bytes;
		out->saved_bytes = session->saved_bytes;
		out->backlog_bytes = session->waiting_bytes;
		for (uint32_t i = 0; i < session->region.counts.ops; i++)
			if (session->ops[i].op.alive)
				describe_op(&session->ops[i].op, out);
		return 0;
	}
	return -ENOENT;
}

int tn_session_forget_pool(struct tn_cache *cache, void *arg)
{
	struct tn_pool *pool = arg;

	if (is_busy(pool->session, pool))
		return tn_fail(-EBUSY, "tn_pool_destroy: loads or saves use it; end them first");
	__atomic_store_n(&cache->pools[pool->number], NULL, __ATOMIC_RELEASE);
	return 0;
}

void tn_sessions_sleep(struct tn_cache *cache, bool asleep)
{
	for_each_session(session, cache)
		if (session != cache->own)
			__atomic_store_n(&tn_region_core(&session->region)->asleep, asleep, __ATOMIC_SEQ_CST);
}

bool tn_sessions_rang(const struct tn_cache *cache)
{
	for_each_session(session, cache) {
		struct tn_doorbell kicks = tn_region_kicks(&session->region);

		if (!session->over && tn_doorbell_rang(&kicks, &session->kicks))
			return true;
	}
	return false;
}
