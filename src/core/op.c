/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: a pool of them sized at open, with the per-block and per-page tables that each may need,
 * so that begin allocates nothing. The tables are address space until they are used. What a front has written of an operation is
 * copied into them, and checked, before anything is done.
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

#define TABLES 8u

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
	const struct tn_region_counts counts = {
		.ops = cache->o.max_ops,
		.blocks = cache->o.max_op_blocks,
		.pages = cache->o.max_op_blocks * PAGES_PER_BLOCK,
		.layers = TN_LAYERS_MAX,
		.chunks = TN_CHUNKS_MAX,
		.events = TN_EVENTS,
	};
	struct sizes t;
	int rc = tn_region_create(&counts, cache->alloc, &cache->region);

	if (rc)
		return rc;
	cache->max_pages = counts.pages;
	cache->max_objects = counts.blocks * LAYERS_PER_BLOCK;
	tn_region_core(&cache->region)->limit_bytes = UINT64_MAX;
	cache->ops = tn_get(cache->alloc, tn_array_bytes(cache->o.max_ops, sizeof(*cache->ops)));
	cache->kicked = tn_get(cache->alloc, tn_array_bytes(cache->o.max_ops, sizeof(*cache->kicked)));
	if (!cache->ops || !cache->kicked)
		return tn_fail(-ENOMEM, "no memory for %u operations", cache->o.max_ops);
	t = op_sizes(cache);
	rc = tables_get(cache, &t);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < cache->o.max_ops; i++) {
		cache->ops[i].op.cache = cache;
		cache->ops[i].op.index = i;
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
	tn_put(cache->alloc, cache->kicked, tn_array_bytes(cache->o.max_ops, sizeof(*cache->kicked)));
	if (cache->region.base)
		tn_region_destroy(&cache->region, cache->alloc);
}

/* ---- what is told -------------------------------------------------------------------------------------- */

void tn_op_notify(struct tn_op *op)
{
	tn_face_notify(&op->cache->region, op->index);
	op->cache->completions_pending = 1;
}

void tn_op_drained(struct tn_op *op)
{
	op->alive = false;
	op->space->ops--;
	tn_face_drains(&op->cache->region, op->index, op->generation);
	op->cache->completions_pending = 1;
}

/* ---- what is asked ------------------------------------------------------------------------------------- */

uint32_t tn_op_blocks_max(const struct tn_cache *cache, const struct tn_space *space, bool with_pages)
{
	uint32_t per_block = space->geometry.pages_per_block, layers = space->shape.layers, most = cache->o.max_op_blocks;

	most = cache->max_objects / layers < most ? cache->max_objects / layers : most;
	if (with_pages)
		most = cache->max_pages / per_block < most ? cache->max_pages / per_block : most;
	return most;
}

static int find_pool(const struct tn_cache *cache, const struct tn_space *space, uint32_t number, struct tn_pool **out)
{
	struct tn_pool *pool = number < TN_POOLS_MAX ? __atomic_load_n(&cache->pools[number], __ATOMIC_ACQUIRE) : NULL;

	if (!pool || !tn_geometry_same(&pool->layout.geometry, &space->geometry))
		return tn_fail(-EINVAL, "pool %u is none, or its geometry is not that of space %u", number, space->index);
	*out = pool;
	return 0;
}

/* Checks all that the command says and copies what it is about. */
static int take(struct tn_op *op, const struct tn_command *c)
{
	const struct tn_region *region = &op->cache->region;
	struct tn_space *space = c->space < TN_STORE_SPACES_MAX ? op->cache->spaces[c->space] : NULL;
	bool with_pages = c->kind != TN_COMMAND_PREFETCH;
	uint64_t npages;
	int rc = 0;

	op->pool = NULL;
	if (!space)
		return tn_fail(-EINVAL, "operation %u: nobody has opened space %u", op->index, c->space);
	npages = (uint64_t)c->blocks * space->geometry.pages_per_block;
	if (c->blocks > tn_op_blocks_max(op->cache, space, with_pages) || (with_pages && c->end_page > npages))
		return tn_fail(-EINVAL, "operation %u: %u blocks, pages to %llu of %llu", op->index, c->blocks,
			       (unsigned long long)c->end_page, (unsigned long long)npages);
	if (with_pages)
		rc = find_pool(op->cache, space, c->pool, &op->pool);
	if (rc == 0)
		rc = tn_face_take_keys(region, op->index, c->blocks, op->table.keys);
	if (rc == 0 && with_pages)
		rc = tn_face_take_pages(region, op->index, c->first_page, c->end_page, (uint32_t)op->pool->layout.npages,
					op->table.pages);
	op->space = space;
	return rc;
}

int tn_op_begin(struct tn_op *op, const struct tn_command *c)
{
	int rc = take(op, c);

	if (rc)
		return rc;
	op->generation = c->generation;
	op->alive = true;
	op->n = c->blocks;
	op->active = op->cancelled = false;
	op->priority = c->priority;
	op->first_page = c->first_page;
	op->end_page = c->end_page;
	op->inflight = 0;
	op->keys = op->table.keys;
	op->pages = op->table.pages;
	op->space->ops++;
	tn_face_begins(&op->cache->region, op->index, op->generation, op->n);
	return 0;
}

/* Ends a life that could not begin: no block is good, and nobody waits for any layer. */
void tn_op_refuse(struct tn_op *op, uint64_t generation, int status)
{
	const struct tn_region *region = &op->cache->region;

	op->generation = generation;
	tn_face_begins(region, op->index, generation, 0);
	tn_face_tell_good(region, op->index, 0);
	for (uint32_t c = 0; c < region->counts.chunks; c++)
		tn_face_tell_ready(region, op->index, c, generation);
	tn_face_tell_status(region, op->index, status);
	tn_face_drains(region, op->index, generation);
	op->cache->completions_pending = 1;
}

void tn_reading_arm(struct tn_reading *r, const struct tn_command *c)
{
	const struct tn_op_tables *t = &r->op.table;

	memset((char *)r + sizeof(r->op), 0, sizeof(*r) - sizeof(r->op));
	r->prefetch = c->kind == TN_COMMAND_PREFETCH;
	r->deadline_ns = c->deadline_ns;
	r->items = t->items;
	r->checks = t->checks;
	r->chunk_state = t->chunk_state;
	r->before_ns = t->before_ns;
	r->disk = t->disk;
	r->flat_at = t->flat_at;
	r->good = r->op.n;
	memset(r->chunk_state, TN_CHUNK_IDLE, (size_t)r->op.n * r->op.space->shape.chunks);
	for (uint32_t i = 0; i < r->op.n; i++)
		r->items[i] = (struct tn_read_item){
			.r = r, .block = TN_BLOCK_NONE, .place = TN_SLOT_NONE, .memory = TN_SLOT_NONE};
}

void tn_load_arm(struct tn_load_op *load, const struct tn_command *c)
{
	tn_reading_arm(&load->r, c);
	for (uint32_t k = 0; k < load->r.op.space->shape.chunks; k++)
		load->left[k] = load->r.op.n;
	load->input_tokens = c->input_tokens;
	load->start_ns = c->start_ns;
	load->whole = c->flags & TN_COMMAND_WHOLE;
}

void tn_writing_arm(struct tn_writing *w, struct tn_write_item *items, struct tn_save_op *save)
{
	memset((char *)w + sizeof(w->op), 0, sizeof(*w) - sizeof(w->op));
	w->save = save;
	w->items = items;
	tn_list_init(&w->place_link);
}

void tn_save_arm(struct tn_save_op *save, const struct tn_command *c)
{
	const struct tn_op_tables *t = &save->w.op.table;
	const struct tn_op *op = &save->w.op;

	tn_writing_arm(&save->w, t->items, save);
	memset((char *)save + sizeof(save->w), 0, sizeof(*save) - sizeof(save->w));
	save->w.checks = t->checks;
	save->parent = c->parent;
	save->ttl_ns = c->ttl_ns;
	save->partial_last = c->flags & TN_COMMAND_PARTIAL_LAST;
	save->admitted_bytes = op->n * op->space->shape.slot_bytes;
	for (uint32_t i = 0; i < op->n; i++)
		save->w.items[i] = (struct tn_write_item){
			.w = &save->w, .block = TN_BLOCK_NONE, .tier = TN_TIER_NONE};
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
