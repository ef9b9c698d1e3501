/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where objects lie in memory (objects.h): the mapping around each is registered once, and gets a pool for each size and remainder of the addresses.
 *
 * An allocator that hands out multiples of what it hands out needs one pool for each size. One that does not may need more than a memory can have; what is
 * beyond that is copied through memory of ours, as is what lies in a mapping that cannot be registered.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "objects.h"

#define REGIONS_MAX 16u
#define ALIGNMENT UINT64_C(4096)
/* How often an owner is asked for a pool, and how long it has in between. */
#define POOL_TRIES 1000
#define POOL_NAP_NS 1000000
/* Largest layer of an object that has several. */
#define LAYER_BYTES (UINT64_C(64) << 20)

struct spot {
	uint64_t bytes, stride, first;
	struct tn_pool *pool;
};

/* A mapping of this process; without a memory: it cannot be registered. */
struct region {
	uintptr_t begin, end;
	struct tn_memory *memory;
	struct spot spot[TN_MEMORY_LAYOUTS_MAX];
	uint32_t nspots;
};

struct tn_py_places {
	struct tn_cache *cache;
	pthread_mutex_t lock;
	struct region region[REGIONS_MAX];
	uint32_t nregions;
	pthread_mutex_t stage_lock;
	uint64_t stage_bytes;
	void *stage;
	struct tn_memory *stage_memory;
	struct tn_pool *stage_pool;
	uint64_t stage_object;
};

int tn_py_raw(uint64_t bytes, struct tn_geometry *g)
{
	uint64_t layers = (bytes + LAYER_BYTES - 1) / LAYER_BYTES;

	while (layers && layers < TN_LAYERS_MAX && bytes % layers)
		layers++;
	if (layers == 0 || bytes % layers)
		return -EOVERFLOW;
	return tn_geometry_raw((uint32_t)layers, bytes / layers, g);
}

int tn_py_pool_over(struct tn_memory *m, const struct tn_geometry *g, uint64_t first, uint64_t stride, uint64_t npages, struct tn_pool **out)
{
	struct tn_pool_layout layout = {.npages = npages, .stride = {stride}};
	uint64_t *base = calloc(g->layers, sizeof(*base));
	int rc;

	if (!base)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->layers; i++)
		base[i] = first + (uint64_t)i * tn_geometry_object_bytes(g);
	layout.base = base;
	rc = tn_pool_create(m, g, &layout, out);
	free(base);
	return rc;
}

int tn_py_pool_end(struct tn_pool *pool)
{
	const struct timespec nap = {0, POOL_NAP_NS};
	int rc = tn_pool_destroy(pool);

	for (int i = 0; (rc == -EBUSY || rc == -ETIMEDOUT) && i < POOL_TRIES; i++) {
		nanosleep(&nap, NULL);
		rc = tn_pool_destroy(pool);
	}
	return rc;
}

struct tn_py_places *tn_py_places_open(struct tn_cache *cache, uint64_t stage_bytes)
{
	struct tn_py_places *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->cache = cache;
	p->stage_bytes = stage_bytes;
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->stage_lock, NULL);
	return p;
}

bool tn_py_places_close(struct tn_py_places *p)
{
	bool all = tn_py_pool_end(p->stage_pool) == 0 && tn_memory_unregister(p->stage_memory) == 0;

	for (uint32_t i = 0; i < p->nregions; i++) {
		for (uint32_t k = 0; k < p->region[i].nspots; k++)
			all = all && tn_py_pool_end(p->region[i].spot[k].pool) == 0;
		all = all && tn_memory_unregister(p->region[i].memory) == 0;
	}
	if (!all)
		return false; /* bytes may still arrive in it */
	tn_memory_free(p->stage);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->stage_lock);
	free(p);
	return true;
}

/* The mapping that an address is in, if it can be read and written. */
static bool mapping_of(uintptr_t at, uintptr_t *begin, uintptr_t *end)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], rights[8];
	bool found = false;

	while (maps && !found && fgets(line, sizeof(line), maps))
		found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", begin, end, rights) == 3 && *begin <= at && at < *end && rights[0] == 'r' && rights[1] == 'w';
	if (maps)
		fclose(maps);
	return found;
}

static int memory_of(struct tn_cache *cache, void *address, uint64_t bytes, struct tn_memory **out)
{
	struct tn_memory_range range = {.address = address, .bytes = bytes};
	struct tn_memory_desc desc;

	tn_memory_desc_init(&desc);
	desc.nranges = 1;
	desc.ranges = &range;
	return tn_memory_register(cache, &desc, out);
}

static struct region *region_of(struct tn_py_places *p, uintptr_t at, uint64_t bytes)
{
	struct region *r;

	for (uint32_t i = 0; i < p->nregions; i++)
		if (p->region[i].begin <= at && at + bytes <= p->region[i].end)
			return &p->region[i];
	if (p->nregions == REGIONS_MAX)
		return NULL;
	r = &p->region[p->nregions];
	if (!mapping_of(at, &r->begin, &r->end) || at + bytes > r->end)
		return NULL;
	p->nregions++;
	if (memory_of(p->cache, (void *)r->begin, r->end - r->begin, &r->memory))
		r->memory = NULL;
	return r;
}

static uint64_t stride_of(const struct region *r, uintptr_t at, uint64_t bytes)
{
	uint64_t stride = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

	/* The last one of a mapping may have less behind it. */
	return at + stride <= r->end ? stride : bytes;
}

static struct tn_pool *spot_of(struct region *r, const struct tn_geometry *g, uint64_t bytes, uint64_t stride, uint64_t first)
{
	struct spot *spot;

	for (uint32_t i = 0; i < r->nspots; i++)
		if (r->spot[i].bytes == bytes && r->spot[i].stride == stride && r->spot[i].first == first)
			return r->spot[i].pool;
	if (r->nspots == TN_MEMORY_LAYOUTS_MAX)
		return NULL;
	spot = &r->spot[r->nspots];
	if (tn_py_pool_over(r->memory, g, first, stride, (r->end - r->begin - first) / stride, &spot->pool))
		return NULL;
	spot->bytes = bytes;
	spot->stride = stride;
	spot->first = first;
	r->nspots++;
	return spot->pool;
}

struct tn_py_place tn_py_place(struct tn_py_places *p, const struct tn_geometry *g, const void *data)
{
	uint64_t bytes = tn_geometry_block_bytes(g), stride;
	struct tn_py_place out = {NULL, 0};
	struct region *r;

	pthread_mutex_lock(&p->lock);
	r = region_of(p, (uintptr_t)data, bytes);
	if (r && r->memory) {
		uint64_t at = (uintptr_t)data - r->begin;

		stride = stride_of(r, (uintptr_t)data, bytes);
		out.pool = spot_of(r, g, bytes, stride, at % stride);
		out.page = (uint32_t)(at / stride);
	}
	pthread_mutex_unlock(&p->lock);
	return out;
}

/* The pool of the staging memory, for objects of this size. Return: 0 or a negative errno */
static int stage_pool(struct tn_py_places *p, const struct tn_geometry *g)
{
	uint64_t bytes = tn_geometry_block_bytes(g), stride = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	int rc = 0;

	if (p->stage_pool && p->stage_object == bytes)
		return 0;
	if (!p->stage)
		rc = tn_memory_alloc(p->stage_bytes, NULL, &p->stage);
	if (rc == 0 && !p->stage_memory)
		rc = memory_of(p->cache, p->stage, p->stage_bytes, &p->stage_memory);
	if (rc == 0)
		rc = tn_pool_destroy(p->stage_pool);
	if (rc)
		return rc;
	p->stage_pool = NULL;
	p->stage_object = bytes;
	return tn_py_pool_over(p->stage_memory, g, 0, stride, p->stage_bytes / stride, &p->stage_pool);
}

struct tn_pool *tn_py_stage(struct tn_py_places *p, const struct tn_geometry *g, char **memory, uint64_t *bytes)
{
	pthread_mutex_lock(&p->stage_lock);
	if (p->stage_bytes >= tn_geometry_block_bytes(g) + ALIGNMENT && stage_pool(p, g) == 0) {
		*memory = p->stage;
		*bytes = p->stage_bytes;
		return p->stage_pool;
	}
	pthread_mutex_unlock(&p->stage_lock);
	return NULL;
}

void tn_py_unstage(struct tn_py_places *p)
{
	pthread_mutex_unlock(&p->stage_lock);
}
