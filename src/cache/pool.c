/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: where an engine keeps the blocks of a space. Registering takes a lock; nothing on the way of a load or save does. */
#include <errno.h>

#include "base/error.h"
#include "cache/cache_internal.h"
#include "ring/p2p.h"

static void pool_free(struct tn_pool *pool, const struct tn_alloc *a)
{
	tn_p2p_destroy(pool->p2p);
	tn_put(a, pool->table, pool->table_bytes);
	tn_put(a, pool->loading, pool->loading_bytes);
	tn_put(a, pool->saving, pool->saving_bytes);
	tn_put(a, pool, sizeof(*pool));
}

/* Builds the pool's P2P table, once; on the CPU the bus is the address space. */
static int pool_map(struct tn_pool *pool, void *const *bases, const struct tn_alloc *a)
{
	size_t n = pool->layout.region_count, bytes = tn_array_bytes(n, sizeof(struct tn_p2p_range));
	struct tn_p2p_range *range = tn_get(a, bytes);
	struct tn_p2p_size size;
	int rc;

	if (!range)
		return tn_fail(-ENOMEM, "tn_pool_register: no memory for %zu regions", n);
	for (size_t i = 0; i < n; i++)
		range[i] = (struct tn_p2p_range){(uintptr_t)bases[i], tn_layout_region_bytes(&pool->layout, (uint32_t)i)};
	rc = tn_p2p_create(range, n, tn_p2p_identity, NULL, a, &pool->p2p);
	tn_put(a, range, bytes);
	if (rc)
		return rc;
	tn_p2p_size(pool->p2p, &size);
	tn_log(&pool->space->cache->log, TN_LOG_INFO,
	       "pool of %llu MiB: %llu contiguous regions, a P2P table of %llu bytes (PRP lists would take %llu)",
	       (unsigned long long)(size.memory_bytes >> 20), (unsigned long long)size.entries,
	       (unsigned long long)size.table_bytes, (unsigned long long)size.prp_bytes);
	return 0;
}

int tn_pool_register(struct tn_space *space, const struct tn_pool_layout *layout, void *const *bases, enum tn_mem mem,
		     struct tn_pool **out)
{
	const struct tn_alloc *a;
	struct tn_pool *pool;
	int rc;

	if (!space || !layout || !bases || !out)
		return tn_fail(-EINVAL, "tn_pool_register: space, layout, bases or out is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (mem != TN_MEM_HOST)
		return tn_fail(-EINVAL, "tn_pool_register: memory kind %d is not supported", (int)mem);
	if (layout->npages > UINT32_MAX)
		return tn_fail(-EOVERFLOW, "tn_pool_register: %llu pages, at most 2^32 - 1",
			       (unsigned long long)layout->npages);
	a = space->cache->alloc;
	pool = tn_get(a, sizeof(*pool));
	if (!pool)
		return tn_fail(-ENOMEM, "tn_pool_register: no memory");
	pool->space = space;
	pool->table_bytes = tn_array_bytes(space->geometry.layers * (size_t)space->geometry.nplanes, sizeof(uintptr_t));
	pool->loading_bytes = (layout->npages + 63) / 64 * sizeof(uint64_t);
	pool->table = tn_get(a, pool->table_bytes);
	pool->loading = tn_get(a, pool->loading_bytes);
	pool->saving_bytes = tn_array_bytes(layout->npages, sizeof(*pool->saving));
	pool->saving = tn_get(a, pool->saving_bytes);
	rc = pool->table && pool->loading && pool->saving ? 0 : tn_fail(-ENOMEM, "tn_pool_register: no memory for %llu pages",
							(unsigned long long)layout->npages);
	if (rc == 0)
		rc = tn_layout_init(&space->geometry, layout, bases, pool->table, &pool->layout);
	if (rc == 0)
		pool->align = tn_layout_align(&pool->layout);
	if (rc == 0)
		rc = pool_map(pool, bases, a);
	if (rc) {
		pool_free(pool, a);
		return rc;
	}
	pthread_mutex_lock(&space->cache->lock);
	space->cache->npools++;
	space->pools++;
	pthread_mutex_unlock(&space->cache->lock);
	*out = pool;
	return 0;
}

int tn_pool_unregister(struct tn_pool *pool)
{
	struct tn_cache *cache;

	if (!pool)
		return 0;
	if (tn_check_process(pool->space->cache))
		return -ECHILD;
	if (__atomic_load_n(&pool->ops, __ATOMIC_ACQUIRE) > 0)
		return tn_fail(-EBUSY, "tn_pool_unregister: %u loads or saves use it; end them first", pool->ops);
	cache = pool->space->cache;
	pthread_mutex_lock(&cache->lock);
	cache->npools--;
	pool->space->pools--;
	pthread_mutex_unlock(&cache->lock);
	pool_free(pool, cache->alloc);
	return 0;
}
