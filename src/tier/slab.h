/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slab: one piece of memory, cut into equal slots, with a policy that says which blocks they hold. It is what the host tier (host/) and the device
 * tier (device/) have in common; the memory is the tier's own affair.
 *
 * The slab is cut for the largest shape announced while it was empty; blocks of smaller shapes use a slot each, larger ones are not held. The calls of
 * struct tn_tier_ops that begin with tn_slab_ go into the tables of both tiers. Owner thread only, but the bytes.
 */
#ifndef TN_TIER_SLAB_H
#define TN_TIER_SLAB_H

#include "base/alloc.h"
#include "tier/tier.h"

#define TN_SLAB_SLOTS_MAX (UINT32_MAX - 1)

struct tn_slab {
	struct tn_tier_base base; /* first: a tier is its slab */
	const struct tn_alloc *alloc;
	const char *policy; /* its name */
	uint64_t seed;
	uint64_t bytes, stride; /* of the memory; of a slot, 0: not cut yet */
	uint32_t nslots, used;
	tn_block *block;     /* by slot; TN_BLOCK_NONE: none, or one that is on its way */
	uint32_t *free_slot; /* stack */
	struct tn_mapping memory;
	struct tn_mapped_range range;
};

/* The tier's ops, number, allocator, policy, seed and bytes are set; the memory is at address, whoever may touch it. */
void tn_slab_init(struct tn_slab *s, void *address);
/* Tables and policy; the memory is the tier's. */
void tn_slab_fini(struct tn_slab *s);

/* How many slots of so many bytes the slab has to be cut into, 0: as it is it does. -EFBIG: in use, and cut for smaller blocks; -ENOSPC: not one fits. */
int tn_slab_wants(const struct tn_slab *s, uint64_t stride, uint32_t *slots);
/* Cuts it: 0, or -ENOMEM, and nothing has changed. */
int tn_slab_cut(struct tn_slab *s, uint64_t stride, uint32_t slots);

/* One place at a time, and at once or not at all: what is pinned, or may not go, is not waited for. */
int tn_slab_place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out);
void tn_slab_release(struct tn_tier_base *t, tn_block b, uint32_t slot, int status);
void tn_slab_fill(struct tn_tier_base *t, tn_block b, uint32_t slot, const struct tn_index_entry *entry);
void tn_slab_drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how);
tn_block tn_slab_find(const struct tn_tier_base *t, uint32_t slot);
uint64_t tn_slab_capacity(const struct tn_tier_base *t);
/* Of the slot's first byte in the memory. */
uint64_t tn_slab_offset(const struct tn_slab *s, uint32_t slot);

static inline struct tn_slab *tn_slab_of(struct tn_tier_base *t)
{
	return (struct tn_slab *)t;
}

static inline const struct tn_slab *tn_slab_at(const struct tn_tier_base *t)
{
	return (const struct tn_slab *)t;
}

#endif
