/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/host.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

struct tn_host {
	const struct tn_alloc *alloc;
	unsigned char *slab;
	uint64_t bytes, stride;
	uint32_t nslots, used;
	uint32_t *block;     /* by slot */
	uint32_t *free_slot; /* stack */
};

static uint64_t stride_of(const struct tn_shape *s)
{
	uint64_t tail = ((uint64_t)s->layers * sizeof(uint64_t) + 4095) / 4096 * 4096;

	return s->slot_bytes + tail;
}

int tn_host_create(uint64_t bytes, const struct tn_alloc *alloc, struct tn_host **out)
{
	struct tn_host *h = tn_get(alloc, sizeof(*h));

	if (!h)
		return tn_fail(-ENOMEM, "host tier: no memory");
	h->alloc = alloc;
	/* At least 2 MiB, so that the slab comes page-aligned. */
	h->bytes = bytes < (2u << 20) ? 2u << 20 : bytes;
	h->slab = tn_get(alloc, h->bytes);
	if (!h->slab) {
		tn_put(alloc, h, sizeof(*h));
		return tn_fail(-ENOMEM, "host tier: no memory for %llu bytes; lower host_bytes",
			       (unsigned long long)bytes);
	}
	*out = h;
	return 0;
}

static void put_tables(struct tn_host *h)
{
	tn_put(h->alloc, h->block, tn_array_bytes(h->nslots, sizeof(uint32_t)));
	tn_put(h->alloc, h->free_slot, tn_array_bytes(h->nslots, sizeof(uint32_t)));
	h->block = h->free_slot = NULL;
	h->nslots = 0;
	h->stride = 0;
}

void tn_host_destroy(struct tn_host *h)
{
	const struct tn_alloc *a;

	if (!h)
		return;
	a = h->alloc;
	put_tables(h);
	tn_put(a, h->slab, h->bytes);
	tn_put(a, h, sizeof(*h));
}

int tn_host_plan(const struct tn_host *h, const struct tn_shape *shape, uint32_t *slots)
{
	uint64_t stride = stride_of(shape), n = h->bytes / stride;

	*slots = h->nslots;
	if (stride <= h->stride)
		return 0;
	if (h->used)
		return tn_fail(-EFBIG, "host tier: in use and cut for blocks of %llu bytes, this space has %llu; open the "
			       "space with the largest blocks first",
			       (unsigned long long)h->stride, (unsigned long long)stride);
	if (n == 0)
		return tn_fail(-ENOSPC, "host tier: %llu bytes hold no block of %llu", (unsigned long long)h->bytes,
			       (unsigned long long)stride);
	*slots = n > UINT32_MAX - 1 ? UINT32_MAX - 1 : (uint32_t)n;
	return 0;
}

/* The new tables are there before the old ones go: a failure changes nothing. */
int tn_host_shape(struct tn_host *h, const struct tn_shape *shape)
{
	uint32_t slots, *block, *free_slot;
	int rc = tn_host_plan(h, shape, &slots);

	if (rc || stride_of(shape) <= h->stride)
		return rc;
	block = tn_get(h->alloc, tn_array_bytes(slots, sizeof(uint32_t)));
	free_slot = tn_get(h->alloc, tn_array_bytes(slots, sizeof(uint32_t)));
	if (!block || !free_slot) {
		tn_put(h->alloc, block, tn_array_bytes(slots, sizeof(uint32_t)));
		tn_put(h->alloc, free_slot, tn_array_bytes(slots, sizeof(uint32_t)));
		return tn_fail(-ENOMEM, "host tier: no memory for the table of %u slots", slots);
	}
	put_tables(h);
	h->nslots = slots;
	h->stride = stride_of(shape);
	h->block = block;
	h->free_slot = free_slot;
	for (uint32_t i = 0; i < slots; i++)
		free_slot[i] = slots - 1 - i;
	return 0;
}

uint32_t tn_host_slots(const struct tn_host *h)
{
	return h->nslots;
}

uint32_t tn_host_used(const struct tn_host *h)
{
	return h->used;
}

uint32_t tn_host_take(struct tn_host *h, uint32_t b)
{
	uint32_t slot;

	if (h->used == h->nslots)
		return TN_HOST_NONE;
	slot = h->free_slot[h->nslots - 1 - h->used];
	h->used++;
	h->block[slot] = b;
	return slot;
}

void tn_host_put(struct tn_host *h, uint32_t slot)
{
	assert(h->used > 0 && slot < h->nslots);
	h->used--;
	h->free_slot[h->nslots - 1 - h->used] = slot;
}

uint32_t tn_host_block(const struct tn_host *h, uint32_t slot)
{
	return h->block[slot];
}

void tn_host_set_block(struct tn_host *h, uint32_t slot, uint32_t b)
{
	h->block[slot] = b;
}

unsigned char *tn_host_flat(const struct tn_host *h, uint32_t slot)
{
	assert(slot < h->nslots);
	return h->slab + slot * h->stride;
}

uint64_t *tn_host_checks(const struct tn_host *h, uint32_t slot, const struct tn_shape *shape)
{
	return (uint64_t *)(void *)(tn_host_flat(h, slot) + shape->slot_bytes);
}
