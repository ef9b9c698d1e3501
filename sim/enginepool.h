/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine does to have a pool: for tests that have memory, and want a pool in a usual order over it. */
#ifndef TN_SIM_ENGINEPOOL_H
#define TN_SIM_ENGINEPOOL_H

#include <stdlib.h>

#include "core/pool.h"

/*
 * A pool over a memory of its own, whose ranges are the regions at bases (tn_layout_regions says how many, and how large). stage_bytes, driver: as of
 * struct tn_memory_desc; driver NULL: host memory.
 */
static inline int enginepool_create_on(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape, void *const *bases,
				       uint64_t stage_bytes, const struct tn_device_driver *driver, struct tn_pool **out)
{
	struct tn_memory_range *range;
	struct tn_pool_layout layout;
	struct tn_memory_desc desc;
	struct tn_memory *memory;
	uint64_t each, *base;
	uint32_t n;
	int rc = tn_layout_regions(g, shape, &n, &each);

	if (rc)
		return rc;
	range = calloc(n, sizeof(*range));
	base = calloc((size_t)g->layers * g->nplanes, sizeof(*base));
	for (uint32_t i = 0; i < n; i++)
		range[i] = (struct tn_memory_range){.address = bases[i], .bytes = each};
	tn_memory_desc_init(&desc);
	desc.ranges = range;
	desc.nranges = n;
	desc.stage_bytes = stage_bytes;
	desc.kind = driver ? TN_MEMORY_DEVICE : TN_MEMORY_HOST;
	desc.driver = driver;
	rc = tn_memory_register(cache, &desc, &memory);
	if (rc == 0) {
		rc = tn_layout_fill(g, shape, NULL, base, &layout);
		if (rc == 0)
			rc = tn_pool_create(memory, g, &layout, out);
		if (rc)
			tn_memory_unregister(memory);
	}
	free(range);
	free(base);
	return rc;
}

static inline int enginepool_create(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape,
				    void *const *bases, struct tn_pool **out)
{
	return enginepool_create_on(cache, g, shape, bases, 0, NULL, out);
}

/* The pool and its memory. */
static inline int enginepool_destroy(struct tn_pool *pool)
{
	struct tn_memory *memory = pool ? pool->memory : NULL;
	int rc = tn_pool_destroy(pool);

	return rc ? rc : tn_memory_unregister(memory);
}

#endif
