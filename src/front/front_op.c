/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The callers' side of operations: which are free, their handles, and what all of them have in common on their way to the core and back.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/stack.h"
#include "front/stage.h"
#include "region/call.h"
#include "region/latency.h"

/* ---- handles ---------------------------------------------------------------------------------------- */

/*
 * The handles of loads and saves: never addresses, but the operation's place and how often it was given out, so that
 * whatever a caller passes is checked before anything is touched.
 *
 *   handle = generation (42 bits) | operation of the cache (12) | cache of the process (10)
 *
 * The lowest bit of a generation is the kind. An operation's gate has its generation, whether the handle is open, and how
 * many callers are inside a call with it. Who ends it closes the gate first, so that one only can, and waits for those
 * inside: they find it over and return.
 */
#define CACHES 1024u /* entry 0 stays empty: no handle is NULL */
#define CACHE_BITS 10u
#define OP_BITS 12u
#define GENERATION_SHIFT (CACHE_BITS + OP_BITS)
#define GENERATION_MASK ((UINT64_C(1) << (64 - GENERATION_SHIFT)) - 1)
#define GATE_SHIFT 16u
#define GATE_OPEN (UINT64_C(1) << 15)
#define GATE_INSIDE (GATE_OPEN - 1)

_Static_assert(sizeof(uintptr_t) == 8, "a handle is a pointer to nothing, of 64 bits");

/* Under the lock of fork.h: a child never has it locked by a thread that it does not have. */
static struct tn_cache *caches[CACHES];	 /* written under it */
static uint64_t generations[CACHES]; /* the highest that a cache of this entry gave out */

static int handles_create(struct tn_cache *cache)
{
	uint32_t slot = 1;

	_Static_assert(1u << OP_BITS >= 4096u, "as many as max_ops may be");
	tn_fork_lock();
	while (slot < CACHES && caches[slot])
		slot++;
	if (slot < CACHES) {
		for (uint32_t i = 0; i < cache->o.max_ops; i++)
			cache->front->ops[i].gate = generations[slot] << GATE_SHIFT;
		cache->front->handle_slot = slot;
		__atomic_store_n(&caches[slot], cache, __ATOMIC_RELEASE);
	}
	tn_fork_unlock();
	return slot < CACHES ? 0 : tn_fail(-EAGAIN, "%u caches are open in this process, the most there can be; close some", CACHES - 1);
}

static void handles_destroy(struct tn_cache *cache)
{
	uint32_t slot = cache->front->handle_slot;

	if (slot == 0)
		return;
	tn_fork_lock();
	for (uint32_t i = 0; i < cache->o.max_ops; i++)
		if (cache->front->ops[i].gate >> GATE_SHIFT > generations[slot])
			generations[slot] = cache->front->ops[i].gate >> GATE_SHIFT;
	__atomic_store_n(&caches[slot], NULL, __ATOMIC_RELEASE);
	tn_fork_unlock();
}

static void *handle(const struct tn_front_op *op, uint64_t generation)
{
	return (void *)(uintptr_t)(generation << GENERATION_SHIFT | (uint64_t)op->number << CACHE_BITS | op->cache->front->handle_slot);
}

void tn_handle_next(struct tn_front_op *op, enum tn_handle_kind kind)
{
	/* Others may be looking at it, with a handle of its last life. */
	uint64_t gate = __atomic_load_n(&op->gate, __ATOMIC_RELAXED);

	op->generation = (((gate >> (GATE_SHIFT + 1)) + op->batches.count) << 1 | kind) & GENERATION_MASK;
	__atomic_store_n(&op->gate, op->generation << GATE_SHIFT, __ATOMIC_RELAXED);
}

/* Who opens it looks afterwards whether the owner is dead, whose end looks at the generations: one sees the other. */
void *tn_handle_open(struct tn_front_op *op)
{
	__atomic_store_n(&op->gate, op->generation << GATE_SHIFT | GATE_OPEN, __ATOMIC_SEQ_CST);
	return handle(op, op->generation);
}

void *tn_handle_of(const struct tn_front_op *op, enum tn_handle_kind kind)
{
	uint64_t gate = __atomic_load_n(&op->gate, __ATOMIC_ACQUIRE), generation = gate >> GATE_SHIFT;

	return (gate & GATE_OPEN) && (generation & 1) == kind ? handle(op, generation) : NULL;
}

uint64_t tn_front_generation(const struct tn_front_op *op)
{
	return __atomic_load_n(&op->gate, __ATOMIC_SEQ_CST) >> GATE_SHIFT;
}

int tn_handle_enter(const void *handle, enum tn_handle_kind kind, const char *call, struct tn_front_op **out)
{
	uint64_t h = (uint64_t)(uintptr_t)handle, i = h >> CACHE_BITS & ((1u << OP_BITS) - 1), gate;
	struct tn_cache *cache = __atomic_load_n(&caches[h & (CACHES - 1)], __ATOMIC_ACQUIRE);
	struct tn_front_op *op;

	if (!cache || i >= cache->o.max_ops || (h >> GENERATION_SHIFT & 1) != kind)
		goto wrong;
	if (tn_check_process(cache))
		return -ECHILD;
	op = &cache->front->ops[i];
	gate = __atomic_load_n(&op->gate, __ATOMIC_RELAXED);
	do
		if ((gate & ~GATE_INSIDE) != (h >> GENERATION_SHIFT << GATE_SHIFT | GATE_OPEN) ||
		    (gate & GATE_INSIDE) == GATE_INSIDE)
			goto wrong;
	while (!__atomic_compare_exchange_n(&op->gate, &gate, gate + 1, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
	*out = op;
	return 0;
wrong:
	return tn_fail(-EINVAL, "%s: %#llx is no %s (ended before?)", call, (unsigned long long)h,
		       kind == TN_HANDLE_LOAD ? "load" : "save");
}

void tn_handle_leave(struct tn_front_op *op)
{
	__atomic_fetch_sub(&op->gate, 1, __ATOMIC_RELEASE);
}

bool tn_handle_close(struct tn_front_op *op)
{
	uint64_t gate = __atomic_fetch_and(&op->gate, ~GATE_OPEN, __ATOMIC_ACQ_REL);

	if (!(gate & GATE_OPEN))
		return false; /* another caller was first */
	while ((__atomic_load_n(&op->gate, __ATOMIC_ACQUIRE) & GATE_INSIDE) > 1)
		sched_yield(); /* the operation is over: whoever is inside is on the way out */
	return true;
}

void tn_handle_reopen(struct tn_front_op *op)
{
	__atomic_fetch_or(&op->gate, GATE_OPEN, __ATOMIC_RELEASE);
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
	f->told_in = &cache->region;
	for (uint32_t i = 0; i < cache->o.max_ops; i++) {
		f->ops[i].cache = cache;
		f->ops[i].number = i;
		f->ops[i].region = &cache->region;
		tn_stack_push(&f->free_ops, i, &f->ops[i].next_free);
	}
	for (uint32_t i = 0; i < TN_EVENTS; i++) {
		f->events[i].cache = cache;
		f->events[i].number = i;
		tn_stack_push(&f->free_events, i, &f->events[i].next_free);
	}
	return handles_create(cache);
}

void tn_front_destroy(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_front *f = cache->front;

	if (!f)
		return;
	handles_destroy(cache);
	tn_put(a, f->ops, tn_array_bytes(cache->o.max_ops, sizeof(*f->ops)));
	tn_put(a, f->prefetches, prefetch_words(cache) * sizeof(*f->prefetches));
	tn_put(a, f->completed, tn_array_bytes(cache->o.max_ops, sizeof(*f->completed)));
	tn_put(a, f->events, TN_EVENTS * sizeof(*f->events));
	pthread_mutex_destroy(&f->completions_lock);
	pthread_mutex_destroy(&f->reap_lock);
	tn_put(a, f, sizeof(*f));
}

/* ---- free operations ------------------------------------------------------------------------------- */

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
	uint32_t i = tn_stack_pop(&f->free_ops, &f->ops[0].next_free, sizeof(f->ops[0]));

	if (!i) {
		tn_front_reap(cache);
		i = tn_stack_pop(&f->free_ops, &f->ops[0].next_free, sizeof(f->ops[0]));
	}
	return i ? &f->ops[i - 1] : NULL;
}

/* ---- there ------------------------------------------------------------------------------------------ */

int tn_front_fits(const struct tn_front_args *a)
{
	const struct tn_cache *cache = a->space->cache;
	uint32_t most = tn_op_blocks_max(cache, a->space, a->pages != NULL);

	if (a->n <= most)
		return 0;
	return tn_fail(-E2BIG, "%zu blocks in one operation: with max_op_blocks %u at most %u blocks of %u layers and "
		       "%u pages; split it, or raise max_op_blocks", a->n, cache->o.max_op_blocks, most, a->space->shape.layers,
		       a->space->geometry.pages_per_block);
}

void tn_front_arm(struct tn_front_op *op, const struct tn_front_args *a)
{
	op->space = a->space;
	op->pool = a->pool;
	op->region = a->pool && a->pool->stage ? tn_stage_region(op->cache) : &op->cache->region;
	op->n = (uint32_t)a->n;
	op->first_page = 0;
	op->end_page = a->n * a->space->geometry.pages_per_block;
	op->batches = (struct tn_batches){.count = 1};
	op->outcome = NULL;
	op->tag = op->input_tokens = op->left_ns = 0;
	op->left_layer = 0;
	__atomic_store_n(&op->layers_given, 0, __ATOMIC_RELAXED);
	memcpy(tn_face_keys(op->region, op->number), a->keys, a->n * sizeof(*a->keys));
	if (a->pages)
		memcpy(tn_face_pages(op->region, op->number), a->pages, op->end_page * sizeof(*a->pages));
	if (a->pool) {
		__atomic_add_fetch(&op->space->held, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&op->pool->ops, 1, __ATOMIC_RELAXED);
	}
}

/*
 * Once it has rung, the operation may be over and another thread's: a prefetch, or one whose handle somebody else had from
 * tn_cache_completions. So what is needed of it is read before.
 */
void tn_front_kick(struct tn_front_op *op)
{
	struct tn_doorbell kicks = tn_region_kicks(op->region);
	struct tn_cache *cache = op->cache;
	bool staged = op->region != &cache->region;

	if (!tn_doorbell_ring(&kicks, op->number))
		return;
	if (staged)
		tn_stage_wake(cache);
	else
		tn_front_wake(cache);
}

void tn_front_begin(struct tn_front_op *op, const struct tn_command *command)
{
	uint32_t layers = command->kind == TN_COMMAND_SAVE ? op->space->shape.layers : 0;
	struct tn_command c = *command;

	c.generation = op->generation;
	c.space = op->space->index;
	c.pool = op->pool ? op->pool->number : TN_COMMAND_NO_POOL;
	c.blocks = op->n;
	c.first_page = op->first_page;
	c.end_page = op->end_page;
	tn_face_ask(op->region, op->number, &c, layers);
	if (c.kind == TN_COMMAND_PREFETCH)
		__atomic_fetch_or(&op->cache->front->prefetches[op->number / 64], 1ull << op->number % 64, __ATOMIC_RELEASE);
	if (op->region == &op->cache->region)
		tn_front_kick(op);
	else
		tn_stage_begin(op);
}

/* ---- and back ----------------------------------------------------------------------------------------- */

/* A ring that was not answered yet would reach whoever has the operation next. */
bool tn_front_is_over(const struct tn_front_op *op)
{
	struct tn_doorbell kicks = tn_region_kicks(op->region);

	return tn_face_is_drained(op->region, op->number, op->generation) && !tn_doorbell_pending(&kicks, op->number);
}

bool tn_front_layer_is_ready(const struct tn_front_op *op, uint32_t layer)
{
	return tn_face_is_ready(op->region, op->number, tn_shape_chunk_of(&op->space->shape, layer), op->generation);
}

bool tn_front_all_is_ready(const struct tn_front_op *op)
{
	for (uint32_t c = 0; c < op->space->shape.chunks; c++)
		if (!tn_face_is_ready(op->region, op->number, c, op->generation))
			return false;
	return true;
}

void tn_front_time_load(struct tn_front_op *op)
{
	const struct tn_cache *cache = op->cache;
	uint64_t begun = __atomic_load_n(&op->begun_ns, __ATOMIC_RELAXED);

	if (begun == 0 || __atomic_load_n(&tn_face_asked(op->region, op->number)->cancel, __ATOMIC_RELAXED))
		return;
	if (__atomic_exchange_n(&op->begun_ns, 0, __ATOMIC_RELAXED))
		tn_latency_add(&cache->region, TN_LATENCY_LOAD, tn_face_lowest_tier(op->region, op->number),
			       tn_now_ns(&cache->clock) - begun);
}
