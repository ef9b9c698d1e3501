/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the rig's pools: host memory, or a soft device's. */
#include <string.h>
#include <sys/mman.h>

#include "cache_rig.h"
#include "device/soft_rig.h"
#include "enginepool.h"

/* Not from malloc, which meson has fill it: most tests use a page or two of it. */
void *rig_memory(const struct rig *r, uint64_t bytes)
{
	void *memory = MAP_FAILED;

	if (r->o.attached && !r->o.staged)
		assert_int_equal(tn_memory_alloc(bytes, NULL, &memory), 0);
	else
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

void rig_memory_free(const struct rig *r, void *memory, uint64_t bytes)
{
	if (tn_memory_free(memory)) /* it is none of tn_memory_alloc's */
		assert_int_equal(munmap(memory, bytes), 0);
}

/* That its pools lie on, or NULL. */
static struct tn_soft_device *device_of(const struct rig *r)
{
	if (!r->o.device)
		return NULL;
	return r->o.soft_device ? r->o.soft_device : tn_soft_device_of_process();
}

static uint64_t block_bytes(const struct tn_geometry *g)
{
	uint64_t bytes = 0;

	for (uint32_t p = 0; p < g->nplanes; p++)
		bytes += (uint64_t)tn_geometry_page_bytes(g, p) * g->pages_per_block * g->layers;
	return bytes;
}

void rig_pool_open(struct rig_space *s)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = s->npages};
	struct tn_soft_device *device = device_of(s->rig);
	void *regions[TN_PLANES_MAX * 8];
	uint64_t bytes;
	uint32_t count;

	assert_int_equal(tn_layout_regions(&s->g, &shape, &count, &bytes), 0);
	assert_true(count <= sizeof(s->bases) / sizeof(s->bases[0]));
	bytes = (bytes + 4095) / 4096 * 4096;
	s->memory_bytes = bytes * count;
	s->memory = device ? tn_soft_device_memory(device, s->memory_bytes) : rig_memory(s->rig, s->memory_bytes);
	if (s->rig->simulated)
		memset(s->memory, RIG_POISON, bytes * count);
	for (uint32_t i = 0; i < count; i++) {
		regions[i] = s->memory + i * bytes;
		s->bases[i] = device ? tn_soft_device_bytes(device, regions[i]) : regions[i];
	}
	assert_int_equal(enginepool_create_on(s->rig->cache, &s->g, &shape, regions, s->rig->o.stage_blocks * block_bytes(&s->g),
					      device ? tn_soft_device_driver(device) : NULL, &s->pool), 0);
}

void rig_pool_free(struct rig_space *s)
{
	if (s->memory && s->rig->o.device)
		tn_soft_device_release(device_of(s->rig), s->memory);
	else if (s->memory)
		rig_memory_free(s->rig, s->memory, s->memory_bytes);
}
