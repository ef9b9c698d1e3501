/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: a pool of them sized at open, with the per-block and per-page tables that each may need,
 * so that begin allocates nothing. The tables are address space until they are used.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "cache/cache_internal.h"
#include "cache/pool.h"

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
struct sizes {
	uint32_t ops, blocks, objects, pages; /* of each operation */
};

struct table {
	size_t each; /* entries an operation */
	size_t size; /* of an entry */
	size_t at;   /* offset of the pointer in struct tn_op */
};

#define TABLES 10u

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
		{t->blocks, sizeof(void *), offsetof(struct tn_op_tables, flat_at)},
		{t->pages, sizeof(uint32_t), offsetof(struct tn_op_tables, pages)},
		{TN_STORE_OBJECTS_MAX, 1, offsetof(struct tn_op_tables, layer_state)},
		{TN_STORE_OBJECTS_MAX, sizeof(struct tn_event), offsetof(struct tn_op_tables, layer_event)},
		{TN_STORE_OBJECTS_MAX, sizeof(uint64_t), offsetof(struct tn_op_tables, before_ns)},
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

static int tables_get(struct tn_cache *cache, const struct sizes *t)
{
	struct table table[TABLES];

	describe_tables(t, table);
	for (unsigned k = 0; k < TABLES; k++) {
		char *memory = tn_get(cache->alloc, table_bytes(t, &table[k]));

		if (!memory)
			return tn_fail(-ENOMEM, "no memory for %u operations of %u blocks; lower max_ops or max_op_blocks",
				       t->ops, t->blocks);
		for (uint32_t i = 0; i < t->ops; i++)
			*table_of(&cache->ops[i].op, &table[k]) = memory + i * table[k].each * table[k].size;
	}
	return 0;
}

static struct sizes op_sizes(const struct tn_cache *cache)
{
	return (struct sizes){cache->o.max_ops, cache->o.max_op_blocks, cache->max_objects, cache->max_pages};
}

int tn_ops_create(struct tn_cache *cache)
{
	struct sizes t;
	int rc;

	cache->max_pages = cache->o.max_op_blocks * PAGES_PER_BLOCK;
	cache->max_objects = cache->o.max_op_blocks * LAYERS_PER_BLOCK;
	cache->ops = tn_get(cache->alloc, tn_array_bytes(cache->o.max_ops, sizeof(*cache->ops)));
	if (!cache->ops)
		return tn_fail(-ENOMEM, "no memory for %u operations", cache->o.max_ops);
	t = op_sizes(cache);
	rc = tables_get(cache, &t);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < cache->o.max_ops; i++) {
		struct tn_op *op = &cache->ops[i].op;

		op->cache = cache;
		op->index = i;
		tn_stack_push(&cache->free_ops, i, &op->next_free);
	}
	return 0;
}

void tn_ops_destroy(struct tn_cache *cache)
{
	struct sizes t = op_sizes(cache);
	struct table table[TABLES];

	describe_tables(&t, table);
	for (unsigned k = 0; cache->ops && k < TABLES; k++)
		tn_put(cache->alloc, *table_of(&cache->ops[0].op, &table[k]), table_bytes(&t, &table[k]));
	tn_put(cache->alloc, cache->ops, tn_array_bytes(cache->o.max_ops, sizeof(*cache->ops)));
}

static uint32_t next_free_op(void *arg, uint32_t i)
{
	struct tn_cache *cache = arg;

	return __atomic_load_n(&cache->ops[i].op.next_free, __ATOMIC_RELAXED);
}

struct tn_op *tn_op_take(struct tn_cache *cache)
{
	uint64_t i = tn_stack_pop(&cache->free_ops, next_free_op, cache);

	return i ? &cache->ops[i - 1].op : NULL;
}

void tn_op_untake(struct tn_op *op)
{
	tn_stack_push(&op->cache->free_ops, op->index, &op->next_free);
}

void tn_op_give(struct tn_op *op)
{
	if (op->pool)
		__atomic_sub_fetch(&op->pool->ops, 1, __ATOMIC_RELEASE);
	__atomic_sub_fetch(&op->space->ops, 1, __ATOMIC_RELEASE);
	tn_op_untake(op);
}

static int check_size(const struct tn_cache *cache, const struct tn_space *space, size_t n, bool with_pages)
{
	uint32_t per_block = space->geometry.pages_per_block, layers = space->shape.layers, most = cache->o.max_op_blocks;

	most = cache->max_objects / layers < most ? cache->max_objects / layers : most;
	if (with_pages)
		most = cache->max_pages / per_block < most ? cache->max_pages / per_block : most;
	if (n > most)
		return tn_fail(-E2BIG, "%zu blocks in one operation: with max_op_blocks %u at most %u blocks of %u layers and "
			       "%u pages; split it, or raise max_op_blocks", n, cache->o.max_op_blocks, most, layers, per_block);
	return 0;
}

int tn_op_arm(struct tn_op *op, const struct tn_op_args *a)
{
	size_t npages = a->n * a->space->geometry.pages_per_block;
	int rc = check_size(op->cache, a->space, a->n, a->pages != NULL);

	if (rc)
		return rc;
	__atomic_store_n(&op->kicked, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->drained, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&op->cancel, 0, __ATOMIC_RELAXED);
	op->space = a->space;
	op->pool = a->pool;
	op->n = (uint32_t)a->n;
	op->active = op->cancelled = false;
	op->priority = 0;
	op->first_page = 0;
	op->end_page = npages;
	op->inflight = 0;
	op->keys = op->table.keys;
	op->pages = op->table.pages;
	memcpy(op->keys, a->keys, a->n * sizeof(*a->keys));
	if (a->pages)
		memcpy(op->pages, a->pages, npages * sizeof(*a->pages));
	__atomic_add_fetch(&op->space->ops, 1, __ATOMIC_RELAXED);
	if (op->pool)
		__atomic_add_fetch(&op->pool->ops, 1, __ATOMIC_RELAXED);
	return 0;
}

int tn_reading_arm(struct tn_reading *r, const struct tn_op_args *a)
{
	const struct tn_op_tables *t = &r->op.table;
	int rc = tn_op_arm(&r->op, a);

	if (rc)
		return rc;
	memset((char *)r + sizeof(r->op), 0, sizeof(*r) - sizeof(r->op));
	r->deadline_ns = TN_FOREVER;
	r->items = t->items;
	r->checks = t->checks;
	r->chunk_state = t->chunk_state;
	r->before_ns = t->before_ns;
	r->disk = t->disk;
	r->flat_at = t->flat_at;
	memset(r->chunk_state, TN_CHUNK_IDLE, a->n * a->space->shape.chunks);
	for (size_t i = 0; i < a->n; i++)
		r->items[i] = (struct tn_read_item){
			.r = r, .block = TN_BLOCK_NONE, .slot = TN_SLOT_NONE, .host_slot = TN_HOST_NONE, .busy = 1};
	__atomic_store_n(&r->good, (uint32_t)a->n, __ATOMIC_RELAXED);
	return 0;
}

int tn_load_arm(struct tn_load_op *load, const struct tn_op_args *a)
{
	int rc = tn_reading_arm(&load->r, a);

	if (rc)
		return rc;
	for (uint32_t c = 0; c < a->space->shape.chunks; c++)
		__atomic_store_n(&load->left[c], (uint32_t)a->n, __ATOMIC_RELAXED);
	load->input_tokens = load->start_ns = load->left_ns = 0;
	__atomic_store_n(&load->first_wait, TN_WAIT_NOT, __ATOMIC_RELAXED);
	load->left_layer = 0;
	__atomic_store_n(&load->at_layer, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&load->at_ns, 0, __ATOMIC_RELAXED);
	return 0;
}

void tn_writing_arm(struct tn_writing *w, struct tn_write_item *items, struct tn_save_op *save)
{
	memset((char *)w + sizeof(w->op), 0, sizeof(*w) - sizeof(w->op));
	w->save = save;
	w->items = items;
	tn_list_init(&w->place_link);
}

int tn_save_arm(struct tn_save_op *save, const struct tn_op_args *a)
{
	const struct tn_op_tables *t = &save->w.op.table;
	int rc = tn_op_arm(&save->w.op, a);

	if (rc)
		return rc;
	tn_writing_arm(&save->w, t->items, save);
	memset((char *)save + sizeof(save->w), 0, sizeof(*save) - sizeof(save->w));
	save->w.checks = t->checks;
	save->layer_state = t->layer_state;
	save->layer_event = t->layer_event;
	memset(save->layer_state, 0, a->space->shape.layers);
	for (size_t i = 0; i < a->n; i++)
		save->w.items[i] = (struct tn_write_item){
			.w = &save->w, .block = TN_BLOCK_NONE, .slot = TN_SLOT_NONE, .host_slot = TN_HOST_NONE};
	return 0;
}

/* The memory of block i of the operation: as many of its pages as are wanted. */
void tn_op_span(const struct tn_op *op, uint32_t i, struct tn_span *span)
{
	uint32_t per_block = op->space->geometry.pages_per_block;
	uint64_t first = (uint64_t)i * per_block;

	*span = (struct tn_span){.layout = &op->pool->layout, .pages = op->pages + first};
	if (op->first_page > first)
		span->page_first = (uint32_t)(op->first_page - first);
	if (op->end_page < first + per_block)
		span->page_count = (uint32_t)(op->end_page - first) - span->page_first;
	else if (span->page_first)
		span->page_count = per_block - span->page_first;
}
