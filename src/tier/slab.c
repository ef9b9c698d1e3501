/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/slab.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

void tn_slab_init(struct tn_slab *s, void *address)
{
	tn_mapping_init(&s->memory, &s->range, &(struct tn_memory_range){.address = address, .bytes = s->bytes}, 1);
	s->base.memory = &s->memory;
}

static void tables_put(const struct tn_alloc *a, tn_block *block, uint32_t *free_slot, struct tn_policy *policy, uint32_t slots)
{
	if (policy)
		policy->ops->destroy(policy);
	tn_put(a, block, tn_array_bytes(slots, sizeof(*block)));
	tn_put(a, free_slot, tn_array_bytes(slots, sizeof(*free_slot)));
}

void tn_slab_fini(struct tn_slab *s)
{
	tables_put(s->alloc, s->block, s->free_slot, s->base.policy, s->nslots);
}

int tn_slab_wants(const struct tn_slab *s, uint64_t stride, uint32_t *slots)
{
	const char *name = s->base.ops->name;
	uint64_t n = s->bytes / stride;

	*slots = 0;
	if (stride <= s->stride)
		return 0;
	if (s->used)
		return tn_fail(-EFBIG, "%s tier: in use and cut for blocks of %llu bytes, this space has %llu; open the "
			       "space with the largest blocks first",
			       name, (unsigned long long)s->stride, (unsigned long long)stride);
	if (n == 0)
		return tn_fail(-ENOSPC, "%s tier: %llu bytes hold no block of %llu", name, (unsigned long long)s->bytes, (unsigned long long)stride);
	*slots = n < TN_SLAB_SLOTS_MAX ? (uint32_t)n : TN_SLAB_SLOTS_MAX;
	return 0;
}

int tn_slab_cut(struct tn_slab *s, uint64_t stride, uint32_t slots)
{
	struct tn_policy_opts po = {.alloc = s->alloc, .seed = s->seed, .capacity = slots};
	tn_block *block = tn_get(s->alloc, tn_array_bytes(slots, sizeof(*block)));
	uint32_t *free_slot = tn_get(s->alloc, tn_array_bytes(slots, sizeof(*free_slot)));
	struct tn_policy *policy = NULL;
	const struct tn_policy_ops *ops;
	int rc = tn_policy_find(s->policy, &ops);

	if (rc == 0)
		rc = block && free_slot ? ops->create(&po, &policy)
					: tn_fail(-ENOMEM, "%s tier: no memory for the tables of %u slots", s->base.ops->name, slots);
	if (rc) {
		tables_put(s->alloc, block, free_slot, NULL, slots);
		return rc;
	}
	tn_slab_fini(s);
	s->block = block;
	s->free_slot = free_slot;
	s->stride = stride;
	s->nslots = slots;
	s->base.policy = policy;
	s->base.block_of = block;
	for (uint32_t i = 0; i < slots; i++) {
		block[i] = TN_BLOCK_NONE;
		free_slot[i] = slots - 1 - i;
	}
	return 0;
}

static bool take(struct tn_slab *s, uint32_t *slot)
{
	if (s->used == s->nslots)
		return false;
	*slot = s->free_slot[s->nslots - 1 - s->used];
	s->used++;
	return true;
}

static void put(struct tn_slab *s, uint32_t slot)
{
	assert(s->used > 0 && slot < s->nslots);
	s->used--;
	s->free_slot[s->nslots - 1 - s->used] = slot;
	s->block[slot] = TN_BLOCK_NONE;
}

int tn_slab_place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	struct tn_slab *s = tn_slab_of(t);

	if (tn_tier_quota(t, w->space, w->quota_bytes / w->block_bytes, 1) == 0)
		return 0;
	return take(s, out) || (tn_tier_evict(t, 1, -1, NULL) > 0 && take(s, out));
}

void tn_slab_release(struct tn_tier_base *t, tn_block b, uint32_t slot, int status)
{
	put(tn_slab_of(t), slot);
}

void tn_slab_fill(struct tn_tier_base *t, tn_block b, uint32_t slot, const struct tn_index_entry *entry)
{
	tn_slab_of(t)->block[slot] = b;
}

tn_block tn_slab_find(const struct tn_tier_base *t, uint32_t slot)
{
	return tn_slab_at(t)->block[slot];
}

void tn_slab_drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how)
{
	put(tn_slab_of(t), slot);
}

uint64_t tn_slab_capacity(const struct tn_tier_base *t)
{
	return tn_slab_at(t)->nslots;
}

uint64_t tn_slab_offset(const struct tn_slab *s, uint32_t slot)
{
	assert(slot < s->nslots);
	return slot * s->stride;
}
