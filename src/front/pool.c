/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories and pools: where an engine keeps its pages. Registering and creating take a lock; nothing on the way of a load or
 * save does.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "core/core.h"
#include "front/claims.h"

void tn_memory_desc_init_sized(struct tn_memory_desc *desc, size_t size)
{
	static const struct tn_memory_desc defaults = {.size = sizeof(defaults), .kind = TN_MEMORY_HOST};

	tn_abi_init(desc, size, &defaults, sizeof(defaults));
}

static size_t ranges_bytes(size_t n)
{
	return tn_array_bytes(n, sizeof(struct tn_memory_range));
}

static bool ranges_meet(const struct tn_memory_range *a, const struct tn_memory_range *b)
{
	uintptr_t at = (uintptr_t)a->address, other = (uintptr_t)b->address;

	return at < other + b->bytes && other < at + a->bytes;
}

static int check_ranges(const struct tn_memory_range *range, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_memory_range *r = &range[i];
		uintptr_t end;

		if (!r->address || r->bytes == 0)
			return tn_fail(-EINVAL, "tn_memory_register: range %u of %u has no address, or no bytes", i, n);
		if (__builtin_add_overflow((uintptr_t)r->address, r->bytes, &end) ||
		    __builtin_add_overflow(sum, r->bytes, &sum))
			return tn_fail(-EOVERFLOW, "tn_memory_register: range %u at %p with %llu bytes wraps around the address space",
				       i, r->address, (unsigned long long)r->bytes);
		for (uint32_t k = 0; k < i; k++)
			if (ranges_meet(r, &range[k]))
				return tn_fail(-EINVAL, "tn_memory_register: ranges %u at %p and %u at %p overlap", k, range[k].address,
					       i, r->address);
	}
	return 0;
}

int tn_memory_register(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_memory **out)
{
	struct tn_memory_desc d;
	struct tn_memory *memory;
	int rc;

	if (!cache || !desc || !out)
		return tn_fail(-EINVAL, "tn_memory_register: cache, desc or out is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	tn_memory_desc_init(&d);
	rc = tn_abi_in(TN_ABI(tn_memory_desc, ranges), &d, desc);
	if (rc)
		return rc;
	if (d.kind > TN_MEMORY_DEVICE || d.nranges == 0 || !d.ranges)
		return tn_fail(-EINVAL, "tn_memory_register: kind %u with %u ranges", d.kind, d.nranges);
	if (d.kind != TN_MEMORY_HOST)
		return tn_fail(-ENOTSUP, "tn_memory_register: this library moves bytes of host memory only, not %s",
			       d.kind == TN_MEMORY_FD ? "of files: map the file, and register the addresses" : "of a device");
	rc = check_ranges(d.ranges, d.nranges);
	if (rc)
		return rc;
	memory = tn_get(cache->alloc, sizeof(*memory));
	if (!memory)
		return tn_fail(-ENOMEM, "tn_memory_register: no memory");
	memory->cache = cache;
	memory->nranges = d.nranges;
	memory->range = tn_get(cache->alloc, ranges_bytes(d.nranges));
	if (!memory->range) {
		tn_put(cache->alloc, memory, sizeof(*memory));
		return tn_fail(-ENOMEM, "tn_memory_register: no memory for %u ranges", d.nranges);
	}
	memcpy(memory->range, d.ranges, d.nranges * sizeof(*memory->range));
	pthread_mutex_lock(&cache->lock);
	cache->nmemories++;
	pthread_mutex_unlock(&cache->lock);
	*out = memory;
	return 0;
}

int tn_memory_unregister(struct tn_memory *memory)
{
	struct tn_cache *cache;
	uint32_t pools;

	if (!memory)
		return 0;
	cache = memory->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	pthread_mutex_lock(&cache->lock);
	pools = memory->npools;
	if (pools == 0)
		cache->nmemories--;
	pthread_mutex_unlock(&cache->lock);
	if (pools > 0)
		return tn_fail(-EBUSY, "tn_memory_unregister: it has %u pools; destroy them first", pools);
	tn_put(cache->alloc, memory->range, ranges_bytes(memory->nranges));
	tn_put(cache->alloc, memory, sizeof(*memory));
	return 0;
}

/* ---- pools ------------------------------------------------------------------------------------------------ */

/* The same pages in the same bytes, whatever they hold. */
static bool same_places(const struct tn_layout *a, const struct tn_layout *b)
{
	uint32_t planes = a->geometry.nplanes, n = a->geometry.layers * planes;

	return b->geometry.layers == a->geometry.layers && b->geometry.nplanes == planes && a->npages == b->npages &&
	       memcmp(a->stride, b->stride, sizeof(a->stride)) == 0 &&
	       memcmp(a->page_bytes, b->page_bytes, sizeof(a->page_bytes)) == 0 &&
	       memcmp(a->base, b->base, n * sizeof(*a->base)) == 0;
}

/* The claims of a layout over a memory: those of pools before, or new ones. Under cache->lock. */
static int find_claims(struct tn_memory *m, const struct tn_layout *layout, struct tn_claims **out)
{
	int rc;

	for (uint32_t i = 0; i < m->nclaims; i++) {
		if (!same_places(tn_claims_layout(m->claims[i]), layout))
			continue;
		*out = m->claims[i];
		return 0;
	}
	if (m->nclaims == TN_MEMORY_LAYOUTS_MAX)
		return tn_fail(-ENOSPC, "tn_pool_create: the memory has had pools of %u layouts; destroy all of its pools, or register "
			       "its bytes as several memories", TN_MEMORY_LAYOUTS_MAX);
	rc = tn_claims_create(layout, m->cache->alloc, out);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < m->nclaims; i++)
		tn_claims_meet(m->claims[i], *out);
	m->claims[m->nclaims++] = *out;
	return 0;
}

/* The number by which operations name it. Under cache->lock. */
static int take_number(struct tn_cache *cache, struct tn_pool *pool)
{
	while (pool->number < TN_POOLS_MAX && cache->pools[pool->number])
		pool->number++;
	return pool->number < TN_POOLS_MAX ? 0 : tn_fail(-ENOSPC, "tn_pool_create: there are %u pools, the most there can be", TN_POOLS_MAX);
}

static int join_memory(struct tn_memory *memory, struct tn_pool *pool)
{
	int rc;

	pthread_mutex_lock(&memory->cache->lock);
	rc = take_number(memory->cache, pool);
	if (rc == 0)
		rc = find_claims(memory, &pool->layout, &pool->claims);
	if (rc == 0) {
		pool->layout.base = tn_claims_layout(pool->claims)->base;
		memory->npools++;
		__atomic_store_n(&memory->cache->pools[pool->number], pool, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&memory->cache->lock);
	return rc;
}

int tn_pool_create(struct tn_memory *memory, const struct tn_geometry *geometry, const struct tn_pool_layout *layout,
		   struct tn_pool **out)
{
	const struct tn_alloc *a;
	struct tn_pool *pool;
	size_t bytes = 0;
	uintptr_t *table;
	int rc;

	if (!memory || !geometry || !layout || !layout->base || !out)
		return tn_fail(-EINVAL, "tn_pool_create: memory, geometry, layout, its base or out is missing");
	if (tn_check_process(memory->cache))
		return -ECHILD;
	rc = tn_geometry_check(geometry);
	if (rc)
		return rc;
	a = memory->cache->alloc;
	bytes = tn_array_bytes(geometry->layers * (size_t)geometry->nplanes, sizeof(*table));
	pool = tn_get(a, sizeof(*pool));
	table = tn_get(a, bytes);
	rc = pool && table ? 0 : tn_fail(-ENOMEM, "tn_pool_create: no memory");
	if (rc == 0)
		rc = tn_layout_init(geometry, layout, memory->range, memory->nranges, table, &pool->layout);
	if (rc == 0) {
		pool->memory = memory;
		pool->align = tn_layout_align(&pool->layout);
		rc = join_memory(memory, pool);
	}
	tn_put(a, table, bytes);
	if (rc) {
		tn_put(a, pool, sizeof(*pool));
		return rc;
	}
	*out = pool;
	return 0;
}

int tn_pool_destroy(struct tn_pool *pool)
{
	const struct tn_alloc *a;
	struct tn_memory *m;

	if (!pool)
		return 0;
	m = pool->memory;
	if (tn_check_process(m->cache))
		return -ECHILD;
	if (__atomic_load_n(&pool->ops, __ATOMIC_ACQUIRE) > 0)
		return tn_fail(-EBUSY, "tn_pool_destroy: %u loads or saves use it; end them first", pool->ops);
	a = m->cache->alloc;
	pthread_mutex_lock(&m->cache->lock);
	m->npools--;
	__atomic_store_n(&m->cache->pools[pool->number], NULL, __ATOMIC_RELEASE);
	for (; m->npools == 0 && m->nclaims > 0; m->nclaims--)
		tn_claims_destroy(m->claims[m->nclaims - 1], a);
	pthread_mutex_unlock(&m->cache->lock);
	tn_put(a, pool, sizeof(*pool));
	return 0;
}
