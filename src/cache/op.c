/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: a pool of them sized at open, with the per-block and per-page tables that each may need,
 * so that begin allocates nothing. The tables are address space until they are used.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"

#define OFFLOAD_OPS 4u
#define PAGES_PER_BLOCK 16u  /* tables for that many pages per block ... */
#define LAYERS_PER_BLOCK 64u /* ... and that many layers; operations on larger blocks take fewer of them */
#define NO_INDEX UINT32_MAX

/*
 * A stack of indices that any thread may push and pop: head is (tag << 32 | index + 1), the tag makes a
 * recurring head differ (ABA).
 */
void tn_stack_push(uint64_t *head, uint32_t i, uint32_t *next)
{
	uint64_t old = __atomic_load_n(head, __ATOMIC_RELAXED), new;

	do {
		__atomic_store_n(next, (uint32_t)old, __ATOMIC_RELAXED);
		new = ((old >> 32) + 1) << 32 | (i + 1);
	} while (!__atomic_compare_exchange_n(head, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* Index + 1, or 0 if empty; next(arg, i) reads the link of entry i. */
uint64_t tn_stack_pop(uint64_t *head, uint32_t (*next)(void *arg, uint32_t i), void *arg)
{
	uint64_t old = __atomic_load_n(head, __ATOMIC_ACQUIRE), new;

	do {
		if ((uint32_t)old == 0)
			return 0;
		new = ((old >> 32) + 1) << 32 | next(arg, (uint32_t)old - 1);
	} while (!__atomic_compare_exchange_n(head, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return (uint32_t)old;
}

/* The tables of several operations, one array each, so that they are too large for anything but fresh pages. */
struct tables {
	uint32_t ops, blocks, objects, pages; /* of each operation */
};

struct table {
	size_t each; /* entries an operation */
	size_t size; /* of an entry */
	size_t at;   /* offset of the pointer in struct tn_op */
};

#define TABLES 11u

static void describe_tables(const struct tables *t, struct table *table)
{
	const struct table all[TABLES] = {
		{t->blocks, sizeof(struct tn_key), offsetof(struct tn_op, keys)},
		{t->blocks, sizeof(struct tn_item), offsetof(struct tn_op, items)},
		{t->blocks, TN_CHUNKS_MAX, offsetof(struct tn_op, chunk_state)},
		{t->objects, sizeof(uint64_t), offsetof(struct tn_op, checks)},
		{t->objects, sizeof(int32_t), offsetof(struct tn_op, read_status)},
		{t->blocks, sizeof(uint64_t), offsetof(struct tn_op, disk)},
		{t->blocks, sizeof(void *), offsetof(struct tn_op, flat_at)},
		{t->pages, sizeof(uint32_t), offsetof(struct tn_op, pages)},
		{TN_STORE_OBJECTS_MAX, 1, offsetof(struct tn_op, layer_state)},
		{TN_STORE_OBJECTS_MAX, sizeof(struct tn_event), offsetof(struct tn_op, layer_event)},
		{TN_STORE_OBJECTS_MAX, sizeof(uint64_t), offsetof(struct tn_op, before_ns)},
	};

	memcpy(table, all, sizeof(all));
}

static size_t table_bytes(const struct tables *t, const struct table *table)
{
	return tn_array_bytes(t->ops, tn_array_bytes(table->each, table->size));
}

static void **table_of(struct tn_op *op, const struct table *table)
{
	return (void **)(void *)((char *)op + table->at);
}

static int tables_get(const struct tn_alloc *a, struct tn_op *ops, const struct tables *t)
{
	struct table table[TABLES];

	describe_tables(t, table);
	for (unsigned k = 0; k < TABLES; k++) {
		char *memory = tn_get(a, table_bytes(t, &table[k]));

		if (!memory)
			return tn_fail(-ENOMEM, "no memory for %u operations of %u blocks; lower max_ops or max_op_blocks",
				       t->ops, t->blocks);
		for (uint32_t i = 0; i < t->ops; i++)
			*table_of(&ops[i], &table[k]) = memory + i * table[k].each * table[k].size;
	}
	return 0;
}

static void tables_put(const struct tn_alloc *a, struct tn_op *ops, const struct tables *t)
{
	struct table table[TABLES];

	describe_tables(t, table);
	for (unsigned k = 0; ops && k < TABLES; k++)
		tn_put(a, *table_of(&ops[0], &table[k]), table_bytes(t, &table[k]));
}

static struct tables op_tables(const struct tn_cache *cache)
{
	return (struct tables){cache->o.max_ops, cache->o.max_op_blocks, cache->max_objects, cache->max_pages};
}

static const struct tables offload_tables = {OFFLOAD_OPS, TN_OFFLOAD_BLOCKS, 0, 0};

int tn_ops_create(struct tn_cache *cache)
{
	struct tables t;
	int rc;

	cache->max_pages = cache->o.max_op_blocks * PAGES_PER_BLOCK;
	cache->max_objects = cache->o.max_op_blocks * LAYERS_PER_BLOCK;
	cache->ops = tn_get(cache->alloc, tn_array_bytes(cache->o.max_ops, sizeof(*cache->ops)));
	cache->offloads = tn_get(cache->alloc, tn_array_bytes(OFFLOAD_OPS, sizeof(*cache->offloads)));
	if (!cache->ops || !cache->offloads)
		return tn_fail(-ENOMEM, "no memory for %u operations", cache->o.max_ops);
	cache->noffloads = OFFLOAD_OPS;
	t = op_tables(cache);
	rc = tables_get(cache->alloc, cache->ops, &t);
	if (rc == 0)
		rc = tables_get(cache->alloc, cache->offloads, &offload_tables);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < cache->o.max_ops; i++) {
		cache->ops[i].cache = cache;
		tn_list_init(&cache->ops[i].place_link);
		tn_stack_push(&cache->free_ops, i, &cache->ops[i].next_free);
	}
	for (uint32_t i = 0; i < OFFLOAD_OPS; i++) {
		cache->offloads[i].cache = cache;
		tn_list_init(&cache->offloads[i].place_link);
	}
	return 0;
}

void tn_ops_destroy(struct tn_cache *cache)
{
	struct tables t = op_tables(cache);

	tables_put(cache->alloc, cache->ops, &t);
	tables_put(cache->alloc, cache->offloads, &offload_tables);
	tn_put(cache->alloc, cache->ops, tn_array_bytes(cache->o.max_ops, sizeof(*cache->ops)));
	tn_put(cache->alloc, cache->offloads, tn_array_bytes(OFFLOAD_OPS, sizeof(*cache->offloads)));
}

static uint32_t next_free_op(void *arg, uint32_t i)
{
	struct tn_cache *cache = arg;

	return __atomic_load_n(&cache->ops[i].next_free, __ATOMIC_RELAXED);
}

struct tn_op *tn_op_take(struct tn_cache *cache)
{
	uint64_t i = tn_stack_pop(&cache->free_ops, next_free_op, cache);

	return i ? &cache->ops[i - 1] : NULL;
}

void tn_op_give(struct tn_op *op)
{
	struct tn_cache *cache = op->cache;

	if (op->pool)
		__atomic_sub_fetch(&op->pool->ops, 1, __ATOMIC_RELEASE);
	__atomic_sub_fetch(&op->space->ops, 1, __ATOMIC_RELEASE);
	tn_stack_push(&cache->free_ops, (uint32_t)(op - cache->ops), &op->next_free);
}

/* Resets an operation and copies what it is about; the caller hands it over afterwards. */
int tn_op_arm(struct tn_op *op, struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
	      const uint32_t *pages)
{
	struct tn_cache *cache = space->cache;
	const struct tn_shape *s = &space->shape;
	uint32_t per_block = space->geometry.pages_per_block, most = cache->o.max_op_blocks;
	size_t npages = n * per_block;

	most = cache->max_objects / s->layers < most ? cache->max_objects / s->layers : most;
	if (pages)
		most = cache->max_pages / per_block < most ? cache->max_pages / per_block : most;
	if (n > most)
		return tn_fail(-E2BIG, "%zu blocks in one operation: with max_op_blocks %u at most %u blocks of %u layers and "
			       "%u pages; split it, or raise max_op_blocks", n, cache->o.max_op_blocks, most, s->layers,
			       per_block);
	__atomic_store_n(&op->kicked, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->drained, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->cancel, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->commit, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->layers_given, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->good, (uint32_t)n, __ATOMIC_RELAXED);
	for (uint32_t c = 0; c < s->chunks; c++)
		__atomic_store_n(&op->left[c], (uint32_t)n, __ATOMIC_RELAXED);
	op->space = space;
	op->pool = pool;
	op->n = (uint32_t)n;
	op->active = op->cancelled = op->flat = false;
	op->flush.status = 0;
	op->priority = 0;
	op->deadline_ns = TN_FOREVER;
	op->first_page = 0;
	op->end_page = npages;
	op->parent = (struct tn_key){{0, 0}};
	op->partial_last = false;
	op->ttl_ns = 0;
	op->outcome = NULL;
	op->kept_off = 0;
	op->input_tokens = op->start_ns = op->left_ns = 0;
	__atomic_store_n(&op->at_layer, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->at_ns, 0, __ATOMIC_RELAXED);
	op->hdr_i = op->chunk = op->i = op->inflight = op->unplaced = op->unwritten = op->copying = op->ready_chunks = 0;
	op->iocbs = op->landed = 0;
	op->reading = 0;
	op->result = (struct tn_save_result){0};
	memcpy(op->keys, keys, n * sizeof(*keys));
	if (pages)
		memcpy(op->pages, pages, npages * sizeof(*pages));
	memset(op->chunk_state, TN_CHUNK_IDLE, n * s->chunks);
	for (size_t i = 0; i < n; i++)
		op->items[i] = (struct tn_item){
			.op = op, .block = TN_BLOCK_NONE, .slot = TN_SLOT_NONE, .host_slot = TN_HOST_NONE, .busy = 1};
	__atomic_add_fetch(&space->ops, 1, __ATOMIC_RELAXED);
	if (pool)
		__atomic_add_fetch(&pool->ops, 1, __ATOMIC_RELAXED);
	return 0;
}

/* The memory of block i of the operation. */
void tn_op_span(struct tn_op *op, uint32_t i, struct tn_span *span)
{
	uint32_t per_block = op->space->geometry.pages_per_block;
	uint64_t first = (uint64_t)i * per_block;

	*span = (struct tn_span){0};
	if (op->flat) {
		span->flat = tn_host_flat(op->cache->host, op->items[i].host_slot);
		return;
	}
	span->layout = &op->pool->layout;
	span->pages = op->pages + first;
	if (op->first_page > first)
		span->page_first = (uint32_t)(op->first_page - first);
	if (op->end_page < first + per_block)
		span->page_count = (uint32_t)(op->end_page - first) - span->page_first;
	else if (span->page_first)
		span->page_count = per_block - span->page_first;
}
