/* SPDX-License-Identifier: Apache-2.0 */
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
#include <errno.h>
#include <sched.h>

#include "base/error.h"
#include "front/front.h"

#define CACHES 1024u /* entry 0 stays empty: no handle is NULL */
#define CACHE_BITS 10u
#define OP_BITS 12u
#define GENERATION_SHIFT (CACHE_BITS + OP_BITS)
#define GENERATION_MASK ((UINT64_C(1) << (64 - GENERATION_SHIFT)) - 1)
#define GATE_SHIFT 16u
#define GATE_OPEN (UINT64_C(1) << 15)
#define GATE_INSIDE (GATE_OPEN - 1)

_Static_assert(sizeof(uintptr_t) == 8, "a handle is a pointer to nothing, of 64 bits");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tn_cache *caches[CACHES];	 /* written under lock */
static uint64_t generations[CACHES]; /* under lock: the highest that a cache of this entry gave out */

int tn_handles_create(struct tn_cache *cache)
{
	uint32_t slot = 1;

	_Static_assert(1u << OP_BITS >= 4096u, "as many as max_ops may be");
	pthread_mutex_lock(&lock);
	while (slot < CACHES && caches[slot])
		slot++;
	if (slot < CACHES) {
		for (uint32_t i = 0; i < cache->o.max_ops; i++)
			cache->front->ops[i].gate = generations[slot] << GATE_SHIFT;
		cache->handle_slot = slot;
		__atomic_store_n(&caches[slot], cache, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
	return slot < CACHES ? 0 : tn_fail(-EAGAIN, "%u caches are open in this process, the most there can be", CACHES - 1);
}

void tn_handles_destroy(struct tn_cache *cache)
{
	uint32_t slot = cache->handle_slot;

	if (slot == 0)
		return;
	pthread_mutex_lock(&lock);
	for (uint32_t i = 0; i < cache->o.max_ops; i++)
		if (cache->front->ops[i].gate >> GATE_SHIFT > generations[slot])
			generations[slot] = cache->front->ops[i].gate >> GATE_SHIFT;
	__atomic_store_n(&caches[slot], NULL, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

static void *handle(const struct tn_front_op *op, uint64_t generation)
{
	return (void *)(uintptr_t)(generation << GENERATION_SHIFT | (uint64_t)op->number << CACHE_BITS | op->cache->handle_slot);
}

void tn_handle_next(struct tn_front_op *op, enum tn_handle_kind kind)
{
	/* Others may be looking at it, with a handle of its last life. */
	uint64_t gate = __atomic_load_n(&op->gate, __ATOMIC_RELAXED);

	op->generation = (((gate >> (GATE_SHIFT + 1)) + 1) << 1 | kind) & GENERATION_MASK;
	__atomic_store_n(&op->gate, op->generation << GATE_SHIFT, __ATOMIC_RELAXED);
}

void *tn_handle_open(struct tn_front_op *op)
{
	__atomic_store_n(&op->gate, op->generation << GATE_SHIFT | GATE_OPEN, __ATOMIC_RELEASE);
	return handle(op, op->generation);
}

void *tn_handle_of(const struct tn_front_op *op, enum tn_handle_kind kind)
{
	uint64_t gate = __atomic_load_n(&op->gate, __ATOMIC_ACQUIRE), generation = gate >> GATE_SHIFT;

	return (gate & GATE_OPEN) && (generation & 1) == kind ? handle(op, generation) : NULL;
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
