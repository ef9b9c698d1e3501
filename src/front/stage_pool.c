/* SPDX-License-Identifier: Apache-2.0 */
/* Session memory of pools that are staged (stage.h): where their slots lie, and what a device's driver needs to copy from and to them. */
#include <errno.h>
#include <string.h>
#include <tenuto/session.h>

#include "base/error.h"
#include "front/stage.h"

#define LAYER_ALIGN 4096u /* of the session memory of a layer: direct I/O of pages that allow it */

/* As many as the pool has blocks, and as the memory's owner allows; one at least, and pages have 32 bits. */
static uint32_t slots_of(const struct tn_pool *pool)
{
	const struct tn_geometry *g = &pool->layout.geometry;
	uint64_t slot_bytes = tn_stage_layer_bytes(g) * g->layers, most = UINT32_MAX / g->pages_per_block, n;

	n = (pool->layout.npages + g->pages_per_block - 1) / g->pages_per_block;
	if (pool->memory->stage_bytes)
		n = pool->memory->stage_bytes / slot_bytes;
	else if (n > TN_STAGE_BYTES / slot_bytes)
		n = TN_STAGE_BYTES / slot_bytes;
	n = n < most ? n : most;
	return n ? (uint32_t)n : 1;
}

/* Blocks lie in the order in which they are stored, as far as a pool allows: an object is one piece per plane. */
static int lay_out(struct tn_stage_pool *s, const struct tn_geometry *g, uint64_t *base, uint64_t *bytes)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = (uint64_t)s->nslots * g->pages_per_block};
	uint64_t each, region[TN_LAYERS_MAX];
	uint32_t count;
	int rc = tn_layout_regions(g, &shape, &count, &each);

	if (rc)
		return rc;
	each = (each + LAYER_ALIGN - 1) / LAYER_ALIGN * LAYER_ALIGN;
	for (uint32_t i = 0; i < count; i++)
		region[i] = i * each;
	*bytes = count * each;
	return tn_layout_fill(g, &shape, region, base, &s->places);
}

static size_t tables_bytes(const struct tn_geometry *g)
{
	return 2 * tn_array_bytes(g->layers * (size_t)g->nplanes, sizeof(uint64_t));
}

/* The tables begin with the offsets that the owner is told; those of the layout follow. */
static int make(struct tn_stage_pool *s, const struct tn_geometry *g, uint64_t *tables)
{
	uint64_t bytes;
	void *address;
	int rc = lay_out(s, g, tables, &bytes);

	if (rc == 0)
		rc = tn_memory_alloc(bytes, NULL, &address);
	if (rc)
		return rc;
	tn_mapping_init(&s->memory.mapping, &s->range, &(struct tn_memory_range){.address = address, .bytes = bytes}, 1);
	return tn_layout_init(g, &s->places, &s->memory.mapping, tables + g->layers * (size_t)g->nplanes, &s->layout);
}

/* What a device needs to copy from and to session memory. */
static int take_to_driver(struct tn_stage_pool *s, const struct tn_memory *memory)
{
	const struct tn_device_driver *driver = memory->driver;
	int rc;

	if (!driver)
		return 0;
	s->piece = tn_get(memory->cache->alloc, TN_STAGE_PIECES * sizeof(*s->piece));
	if (!s->piece)
		return tn_fail(-ENOMEM, "tn_pool_create: no memory for %u pieces", TN_STAGE_PIECES);
	s->npieces = TN_STAGE_PIECES;
	rc = tn_pins_join(&memory->cache->copiers.pins, driver);
	if (rc)
		return rc;
	s->joined = true;
	rc = driver->ops->pin(driver, s->range.address, s->range.bytes);
	if (rc)
		return tn_fail(rc, "tn_pool_create: driver %s does not pin %llu bytes (error %d)", driver->ops->name,
			       (unsigned long long)s->range.bytes, rc);
	s->pinned = true;
	for (uint32_t way = TN_DEVICE_TO_HOST; way <= TN_DEVICE_FROM_HOST && rc == 0; way++)
		rc = driver->ops->stream_create(driver, memory->device, &s->stream[way].stream);
	return rc ? tn_fail(rc, "tn_pool_create: driver %s makes no stream of device %u (error %d)", driver->ops->name, memory->device, rc) : 0;
}

static void leave_driver(struct tn_stage_pool *s, const struct tn_memory *memory)
{
	const struct tn_device_driver *driver = memory->driver;

	if (!driver)
		return;
	for (uint32_t way = TN_DEVICE_TO_HOST; way <= TN_DEVICE_FROM_HOST; way++)
		if (s->stream[way].stream)
			driver->ops->stream_destroy(driver, s->stream[way].stream);
	if (s->pinned)
		driver->ops->unpin(driver, s->range.address, s->range.bytes);
	if (s->joined)
		tn_pins_leave(&memory->cache->copiers.pins, driver);
	tn_put(memory->cache->alloc, s->piece, TN_STAGE_PIECES * sizeof(*s->piece));
}

int tn_stage_pool_create(struct tn_pool *pool)
{
	const struct tn_geometry *g = &pool->layout.geometry;
	struct tn_cache *cache = pool->memory->cache;
	struct tn_stage_pool *s = tn_get(cache->alloc, sizeof(*s));
	uint64_t *tables = tn_get(cache->alloc, tables_bytes(g));
	int rc;

	if (!s || !tables) {
		tn_put(cache->alloc, s, sizeof(*s));
		tn_put(cache->alloc, tables, tables_bytes(g));
		return tn_fail(-ENOMEM, "tn_pool_create: no memory");
	}
	pool->stage = s;
	pthread_mutex_init(&s->lock, NULL);
	s->places.base = tables;
	s->memory = (struct tn_memory){.cache = cache};
	s->nslots = slots_of(pool);
	s->free = tn_get(cache->alloc, tn_array_bytes(s->nslots, sizeof(*s->free)));
	rc = s->free ? make(s, g, tables) : tn_fail(-ENOMEM, "tn_pool_create: no memory for %u slots", s->nslots);
	rc = rc ? rc : take_to_driver(s, pool->memory);
	if (rc) {
		tn_stage_pool_destroy(pool);
		return rc;
	}
	while (s->nfree < s->nslots) { /* the last one is taken first: memory is used from its beginning on */
		s->free[s->nfree] = s->nslots - 1 - s->nfree;
		s->nfree++;
	}
	return 0;
}

void tn_stage_pool_destroy(struct tn_pool *pool)
{
	const struct tn_alloc *a = pool->memory->cache->alloc;
	struct tn_stage_pool *s = pool->stage;

	if (!s)
		return;
	pool->stage = NULL;
	leave_driver(s, pool->memory);
	tn_memory_free(s->range.address);
	tn_put(a, s->free, tn_array_bytes(s->nslots, sizeof(*s->free)));
	tn_put(a, (void *)(uintptr_t)s->places.base, tables_bytes(&pool->layout.geometry));
	pthread_mutex_destroy(&s->lock);
	tn_put(a, s, sizeof(*s));
}
