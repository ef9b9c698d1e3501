/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The callers' side of operations: which are free, and what all of them have in common on their way to the core and back.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/pool.h"
#include "front/front.h"

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

/* next(arg, i) reads the link of entry i. */
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

/* ---- create -------------------------------------------------------------------------------------- */

static size_t prefetch_words(const struct tn_cache *cache)
{
	return (cache->o.max_ops + 63) / 64;
}

int tn_front_create(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_front *f = tn_get(a, sizeof(*f));

	if (!f)
		return tn_fail(-ENOMEM, "no memory");
	cache->front = f;
	pthread_mutex_init(&f->reap_lock, NULL);
	pthread_mutex_init(&f->completions_lock, NULL);
	f->ops = tn_get(a, tn_array_bytes(cache->o.max_ops, sizeof(*f->ops)));
	f->prefetches = tn_get(a, prefetch_words(cache) * sizeof(*f->prefetches));
	f->completed = tn_get(a, tn_array_bytes(cache->o.max_ops, sizeof(*f->completed)));
	f->events = tn_get(a, TN_EVENTS * sizeof(*f->events));
	if (!f->ops || !f->prefetches || !f->completed || !f->events)
		return tn_fail(-ENOMEM, "no memory for %u operations", cache->o.max_ops);
	f->next_completed = cache->o.max_ops;
	for (uint32_t i = 0; i < cache->o.max_ops; i++) {
		f->ops[i].cache = cache;
		f->ops[i].number = i;
		tn_stack_push(&f->free_ops, i, &f->ops[i].next_free);
	}
	for (uint32_t i = 0; i < TN_EVENTS; i++) {
		f->events[i].cache = cache;
		f->events[i].number = i;
		tn_stack_push(&f->free_events, i, &f->events[i].next_free);
	}
	return tn_handles_create(cache);
}

void tn_front_destroy(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_front *f = cache->front;

	if (!f)
		return;
	tn_handles_destroy(cache);
	tn_put(a, f->ops, tn_array_bytes(cache->o.max_ops, sizeof(*f->ops)));
	tn_put(a, f->prefetches, prefetch_words(cache) * sizeof(*f->prefetches));
	tn_put(a, f->completed, tn_array_bytes(cache->o.max_ops, sizeof(*f->completed)));
	tn_put(a, f->events, TN_EVENTS * sizeof(*f->events));
	pthread_mutex_destroy(&f->completions_lock);
	pthread_mutex_destroy(&f->reap_lock);
	tn_put(a, f, sizeof(*f));
}

/* ---- free operations ------------------------------------------------------------------------------- */

static uint32_t next_free_op(void *arg, uint32_t i)
{
	const struct tn_front *f = arg;

	return __atomic_load_n(&f->ops[i].next_free, __ATOMIC_RELAXED);
}

static void put_free(struct tn_front_op *op)
{
	tn_stack_push(&op->cache->front->free_ops, op->number, &op->next_free);
}

void tn_front_give(struct tn_front_op *op)
{
	if (op->pool) {
		__atomic_sub_fetch(&op->pool->ops, 1, __ATOMIC_RELEASE);
		__atomic_sub_fetch(&op->space->held, 1, __ATOMIC_RELEASE);
	}
	put_free(op);
}

void tn_front_reap(struct tn_cache *cache)
{
	struct tn_front *f = cache->front;

	pthread_mutex_lock(&f->reap_lock);
	for (size_t w = 0; w < prefetch_words(cache); w++) {
		uint64_t left = __atomic_load_n(&f->prefetches[w], __ATOMIC_ACQUIRE);

		for (; left; left &= left - 1) {
			struct tn_front_op *op = &f->ops[w * 64 + (uint32_t)__builtin_ctzll(left)];

			if (!tn_front_is_over(op))
				continue;
			__atomic_fetch_and(&f->prefetches[w], ~(left & -left), __ATOMIC_RELAXED);
			put_free(op);
		}
	}
	pthread_mutex_unlock(&f->reap_lock);
}

struct tn_front_op *tn_front_take(struct tn_cache *cache)
{
	struct tn_front *f = cache->front;
	uint64_t i = tn_stack_pop(&f->free_ops, next_free_op, f);

	if (!i) {
		tn_front_reap(cache);
		i = tn_stack_pop(&f->free_ops, next_free_op, f);
	}
	return i ? &f->ops[i - 1] : NULL;
}

/* ---- there ------------------------------------------------------------------------------------------ */

int tn_front_arm(struct tn_front_op *op, const struct tn_front_args *a)
{
	const struct tn_region *region = &op->cache->region;
	uint32_t per_block = a->space->geometry.pages_per_block, most = tn_op_blocks_max(op->cache, a->space, a->pages != NULL);

	if (a->n > most) {
		put_free(op);
		return tn_fail(-E2BIG, "%zu blocks in one operation: with max_op_blocks %u at most %u blocks of %u layers and "
			       "%u pages; split it, or raise max_op_blocks", a->n, op->cache->o.max_op_blocks, most,
			       a->space->shape.layers, per_block);
	}
	op->space = a->space;
	op->pool = a->pool;
	op->n = (uint32_t)a->n;
	op->first_page = 0;
	op->end_page = a->n * per_block;
	op->outcome = NULL;
	op->tag = op->input_tokens = op->left_ns = 0;
	op->left_layer = 0;
	__atomic_store_n(&op->layers_given, 0, __ATOMIC_RELAXED);
	memcpy(tn_face_keys(region, op->number), a->keys, a->n * sizeof(*a->keys));
	if (a->pages)
		memcpy(tn_face_pages(region, op->number), a->pages, op->end_page * sizeof(*a->pages));
	if (a->pool) {
		__atomic_add_fetch(&op->space->held, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&op->pool->ops, 1, __ATOMIC_RELAXED);
	}
	return 0;
}

void tn_front_kick(struct tn_front_op *op)
{
	struct tn_doorbell kicks = tn_region_kicks(&op->cache->region);

	if (tn_doorbell_ring(&kicks, op->number))
		tn_io_wake(op->cache->io);
}

void tn_front_begin(struct tn_front_op *op, const struct tn_command *command)
{
	struct tn_command c = *command;

	c.generation = op->generation;
	c.space = op->space->index;
	c.pool = op->pool ? op->pool->number : TN_COMMAND_NO_POOL;
	c.blocks = op->n;
	c.first_page = op->first_page;
	c.end_page = op->end_page;
	tn_face_ask(&op->cache->region, op->number, &c, c.kind == TN_COMMAND_SAVE ? op->space->shape.layers : 0);
	if (c.kind == TN_COMMAND_PREFETCH)
		__atomic_fetch_or(&op->cache->front->prefetches[op->number / 64], 1ull << op->number % 64, __ATOMIC_RELEASE);
	tn_front_kick(op);
}

/* ---- and back ----------------------------------------------------------------------------------------- */

/* A ring that was not answered yet would reach whoever has the operation next. */
bool tn_front_is_over(const struct tn_front_op *op)
{
	struct tn_doorbell kicks = tn_region_kicks(&op->cache->region);

	return tn_face_is_drained(&op->cache->region, op->number, op->generation) && !tn_doorbell_pending(&kicks, op->number);
}

bool tn_front_layer_is_ready(const struct tn_front_op *op, uint32_t layer)
{
	return tn_face_is_ready(&op->cache->region, op->number, tn_shape_chunk_of(&op->space->shape, layer), op->generation);
}

bool tn_front_all_is_ready(const struct tn_front_op *op)
{
	for (uint32_t c = 0; c < op->space->shape.chunks; c++)
		if (!tn_face_is_ready(&op->cache->region, op->number, c, op->generation))
			return false;
	return true;
}

int tn_front_check_layer(const struct tn_front_op *op, uint32_t layer)
{
	if (layer >= op->space->shape.layers)
		return tn_fail(-EINVAL, "layer %u: this space has %u", layer, op->space->shape.layers);
	return 0;
}
