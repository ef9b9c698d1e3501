/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t cli_pool_bytes(const struct tn_geometry *g, const struct tn_pool_shape *shape)
{
	uint32_t regions;
	uint64_t each;

	return tn_layout_regions(g, shape, &regions, &each) ? 0 : regions * each;
}

int cli_pool_open_on(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape, void *at,
		     const struct tn_device_driver *driver, uint32_t device, struct cli_pool *pool)
{
	struct tn_memory_range range = {.address = at, .bytes = cli_pool_bytes(g, shape), .device = device};
	struct tn_memory_desc desc;
	int rc;

	*pool = (struct cli_pool){.geometry = *g, .at = at, .base = calloc((size_t)g->layers * g->nplanes, sizeof(uint64_t))};
	if (!pool->base)
		return -ENOMEM;
	tn_memory_desc_init(&desc);
	desc.ranges = &range;
	desc.nranges = 1;
	desc.kind = driver ? TN_MEMORY_DEVICE : TN_MEMORY_HOST;
	desc.driver = driver;
	rc = tn_layout_fill(g, shape, NULL, pool->base, &pool->layout);
	if (!rc)
		rc = tn_memory_register(cache, &desc, &pool->memory);
	if (!rc)
		rc = tn_pool_create(pool->memory, g, &pool->layout, &pool->pool);
	if (rc)
		cli_pool_close(pool);
	return rc;
}

int cli_pool_open(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape, void *at,
		  struct cli_pool *pool)
{
	return cli_pool_open_on(cache, g, shape, at, NULL, 0, pool);
}

void *cli_pool_page(const struct cli_pool *pool, uint32_t layer, uint32_t plane, uint64_t page)
{
	return pool->at + tn_layout_offset(&pool->layout, &pool->geometry, layer, plane, page);
}

int cli_pool_close(struct cli_pool *pool)
{
	int rc = tn_pool_destroy(pool->pool);

	if (rc)
		return rc;
	pool->pool = NULL;
	rc = tn_memory_unregister(pool->memory);
	pool->memory = NULL;
	free(pool->base);
	pool->base = NULL;
	return rc;
}
