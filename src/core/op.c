/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: what a front has written of one is copied and checked before anything is done; and what it is told.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/core.h"
#include "core/pool.h"
#include "core/transfers.h"

/* ---- what is told -------------------------------------------------------------------------------------- */

void tn_op_notify(struct tn_op *op)
{
	tn_face_notify(tn_op_region(op), op->number);
	op->session->completed = true;
}

void tn_op_tell_status(const struct tn_op *op, int status)
{
	tn_face_tell_status(tn_op_region(op), op->number, status);
}

void tn_op_ends(struct tn_op *op)
{
	if (op->between)
		op->between->ops--;
	op->between = NULL;
}

/* Between two batches the space stays in use: who drops it would leave the later half of an operation that was begun before. */
void tn_op_drained(struct tn_op *op)
{
	op->alive = false;
	op->between = op->space;
	if (!op->more || tn_op_is_cancelled(op))
		tn_op_ends(op);
	tn_face_drains(tn_op_region(op), op->number, op->generation);
	op->session->completed = true;
	tn_vigil_ended(&op->cache->vigil);
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

static int find_pool(const struct tn_op *op, const struct tn_space *space, uint32_t number, struct tn_pool **out)
{
	struct tn_pool *pool = number < TN_POOLS_MAX ? __atomic_load_n(&op->cache->pools[number], __ATOMIC_ACQUIRE) : NULL;

	if (!pool || pool->session != op->session || !tn_geometry_same(&pool->layout.geometry, &space->geometry))
		return tn_fail(-EINVAL, "pool %u is none, or its geometry is not that of space %u", number, space->index);
	if (tn_mapping_is_lost(&pool->memory->mapping))
		return tn_fail(-EFAULT, "pool %u: pages of its memory are gone, which was truncated or punched", number);
	*out = pool;
	return 0;
}

void tn_op_set_space(struct tn_op *op, struct tn_space *space)
{
	op->space = space;
	op->tier_space = (struct tn_tier_space){space->id, space->epoch};
	op->shape = &space->shape;
	op->header_shape = &space->header_shape;
}

/* Checks all that the command says and copies what it is about. */
static int take(struct tn_op *op, const struct tn_command *c)
{
	const struct tn_region *region = tn_op_region(op);
	struct tn_space *space = c->space < TN_SPACES_MAX ? op->cache->spaces[c->space] : NULL;
	bool with_pages = c->kind != TN_COMMAND_PREFETCH;
	uint64_t npages;
	int rc = 0;

	op->pool = NULL;
	if (!space || !tn_session_may_name(op->session, c->space))
		return tn_fail(-EINVAL, "operation %u: nobody has opened space %u", op->number, c->space);
	if (c->kind == TN_COMMAND_SAVE && op->session->read_only)
		return tn_fail(-EROFS, "operation %u: the session may not save", op->number);
	npages = (uint64_t)c->blocks * space->geometry.pages_per_block;
	if (c->blocks > tn_op_blocks_max(op->cache, space, with_pages) || (with_pages && c->end_page > npages))
		return tn_fail(-EINVAL, "operation %u: %u blocks, pages to %llu of %llu", op->number, c->blocks,
			       (unsigned long long)c->end_page, (unsigned long long)npages);
	if (with_pages)
		rc = find_pool(op, space, c->pool, &op->pool);
	if (rc == 0)
		rc = tn_face_take_keys(region, op->number, c->blocks, op->table.keys);
	if (rc == 0 && with_pages)
		rc = tn_face_take_pages(region, op->number, c->first_page, c->end_page, (uint32_t)op->pool->layout.npages,
					op->table.pages);
	tn_op_set_space(op, space);
	return rc;
}

/* The process copies each byte of these pages once at most. */
static void count_stageable(const struct tn_op *op)
{
	const struct tn_layout *layout = &op->pool->layout;
	uint64_t *sum = &op->session->stageable_bytes, each = 0, bytes;

	for (uint32_t p = 0; p < layout->geometry.nplanes; p++)
		each += layout->page_bytes[p];
	bytes = tn_array_bytes(op->end_page - op->first_page, tn_array_bytes(each, layout->geometry.layers));
	*sum = bytes > UINT64_MAX - *sum ? UINT64_MAX : *sum + bytes;
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
	op->priority = c->priority < op->session->max_priority ? c->priority : op->session->max_priority;
	op->first_page = c->first_page;
	op->end_page = c->end_page;
	op->inflight = 0;
	op->goes_on = c->flags & TN_COMMAND_GOES_ON;
	op->more = c->flags & TN_COMMAND_MORE;
	op->keys = op->table.keys;
	op->pages = op->table.pages;
	op->space->ops++;
	tn_op_ends(op);
	if (op->pool && op->pool->memory->staged)
		count_stageable(op);
	tn_face_begins(tn_op_region(op), op->number, op->generation, op->n);
	return 0;
}

/* Ends a life that could not begin: no block is good, and nobody waits for any layer. */
void tn_op_refuse(struct tn_op *op, uint64_t generation, int status)
{
	const struct tn_region *region = tn_op_region(op);

	tn_op_ends(op);
	op->generation = generation;
	tn_face_begins(region, op->number, generation, 0);
	tn_face_tell_good(region, op->number, 0);
	for (uint32_t c = 0; c < region->counts.chunks; c++)
		tn_face_tell_ready(region, op->number, c, generation);
	tn_face_tell_status(region, op->number, status);
	tn_face_drains(region, op->number, generation);
	op->session->completed = true;
}

void tn_reading_arm(struct tn_reading *r, const struct tn_command *c)
{
	const struct tn_op_tables *t = &r->op.table;

	memset((char *)r + sizeof(r->op), 0, sizeof(*r) - sizeof(r->op));
	r->prefetch = c->kind == TN_COMMAND_PREFETCH;
	r->deadline_ns = c->deadline_ns;
	r->parent = c->parent;
	r->items = t->items;
	r->checks = t->checks;
	r->chunk_state = t->chunk_state;
	r->before_ns = t->before_ns;
	r->disk = t->disk;
	r->op.offset = t->offset;
	r->op.near = t->near;
	r->op.writing = false;
	tn_transfers_prepare(&r->op, r->checks);
	r->good = r->op.n;
	r->from_near = 0;
	memset(r->chunk_state, TN_CHUNK_IDLE, (size_t)r->op.n * r->op.shape->chunks);
	for (uint32_t i = 0; i < r->op.n; i++)
		r->items[i] = (struct tn_read_item){
			.r = r, .block = TN_BLOCK_NONE, .place = TN_SLOT_NONE, .memory = TN_SLOT_NONE, .near = TN_SLOT_NONE};
}

void tn_load_arm(struct tn_load_op *load, const struct tn_command *c)
{
	tn_reading_arm(&load->r, c);
	for (uint32_t k = 0; k < load->r.op.shape->chunks; k++)
		load->left[k] = load->r.op.n;
	load->input_tokens = c->input_tokens;
	load->start_ns = c->start_ns;
	load->last_wait = c->flags & TN_COMMAND_WHOLE ? TN_WAIT_WHOLE : c->flags & TN_COMMAND_LAYERS ? TN_WAIT_LAYERS : TN_WAIT_NOT;
}

void tn_writing_arm(struct tn_writing *w, struct tn_write_item *items, struct tn_save_op *save)
{
	memset((char *)w + sizeof(w->op), 0, sizeof(*w) - sizeof(w->op));
	w->save = save;
	w->items = items;
	w->op.writing = true;
	tn_list_init(&w->place_link);
}

void tn_save_arm(struct tn_save_op *save, const struct tn_command *c)
{
	const struct tn_op_tables *t = &save->w.op.table;
	const struct tn_op *op = &save->w.op;

	tn_writing_arm(&save->w, t->items, save);
	memset((char *)save + sizeof(save->w), 0, sizeof(*save) - sizeof(save->w));
	save->w.checks = t->checks;
	save->w.op.offset = t->offset;
	save->w.op.near = t->near;
	tn_transfers_prepare(&save->w.op, NULL);
	save->parent = c->parent;
	save->ttl_ns = c->ttl_ns;
	save->partial_last = c->flags & TN_COMMAND_PARTIAL_LAST;
	save->admitted_bytes = op->n * op->shape->slot_bytes;
	op->session->waiting_bytes += save->admitted_bytes;
	TN_TRACE2(backlog, op->session->place, op->session->waiting_bytes);
	for (uint32_t i = 0; i < op->n; i++)
		save->w.items[i] = (struct tn_write_item){
			.w = &save->w, .block = TN_BLOCK_NONE, .tier = TN_TIER_NONE, .near = TN_SLOT_NONE};
}

/* The memory of block i of the operation: as many of its pages as are wanted. */
void tn_op_span(const struct tn_op *op, uint32_t i, struct tn_span *span)
{
	uint32_t per_block = op->space->geometry.pages_per_block;
	uint64_t first = (uint64_t)i * per_block;

	*span = (struct tn_span){.memory = &op->pool->memory->mapping, .layout = &op->pool->layout, .pages = op->pages + first};
	if (op->first_page > first)
		span->page_first = (uint32_t)(op->first_page - first);
	if (op->end_page < first + per_block)
		span->page_count = (uint32_t)(op->end_page - first) - span->page_first;
	else if (span->page_first)
		span->page_count = per_block - span->page_first;
}
