/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/host/host.h"

#include <errno.h>

#include "base/error.h"
#include "base/memory_limit.h"
#include "tier/queues.h"
#include "tier/slab.h"

struct host {
	struct tn_slab slab;
	struct tn_queues queues;
};

static struct host *host_of(struct tn_tier_base *t)
{
	return (struct host *)t;
}

static const struct host *host_at(const struct tn_tier_base *t)
{
	return (const struct host *)t;
}

static uint64_t stride_of(const struct tn_shape *s)
{
	uint64_t tail = ((uint64_t)s->layers * sizeof(uint64_t) + 4095) / 4096 * 4096;

	return s->slot_bytes + tail;
}

/* Cuts the slab for this shape if need be. 0, -ENOSPC (not one fits), -EFBIG (in use, and cut for smaller blocks), -ENOMEM. */
static int cut(struct host *h, const struct tn_shape *shape)
{
	uint32_t slots;
	int rc = tn_slab_wants(&h->slab, stride_of(shape), &slots);

	if (rc || slots == 0)
		return rc;
	rc = tn_queues_fit(&h->queues, slots);
	return rc ? rc : tn_slab_cut(&h->slab, stride_of(shape), slots);
}

static int space(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls)
{
	int rc = cut(host_of(t), shape);

	*cls = rc ? TN_CLASS_NONE : 0;
	return rc;
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how)
{
	tn_queues_leave(&host_of(t)->queues, slot);
	tn_slab_drain(t, b, slot, how);
}

static bool evict(const struct tn_tier_base *t, tn_block b, uint32_t slot, const uint32_t *cls)
{
	return !tn_queues_keep(&host_at(t)->queues, slot);
}

static uint64_t offset(const struct tn_tier_base *t, uint32_t slot, const struct tn_shape *shape, uint64_t **checks)
{
	const struct tn_slab *s = tn_slab_at(t);
	uint64_t at = tn_slab_offset(s, slot);

	if (checks)
		*checks = (uint64_t *)(void *)(s->range.address + at + shape->slot_bytes);
	return at;
}

static void destroy(struct tn_tier_base *t)
{
	struct host *h = host_of(t);
	const struct tn_alloc *a = h->slab.alloc;

	tn_queues_fini(&h->queues);
	tn_slab_fini(&h->slab);
	tn_put(a, h->slab.range.address, h->slab.bytes);
	tn_put(a, h, sizeof(*h));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "host",
	.traits = {.reach = TN_REACH_MEMORY, .saves = true, .promotes = true, .entry_by_slot = true},
	.space = space,
	.place = tn_slab_place,
	.release = tn_slab_release,
	.fill = tn_slab_fill,
	.drain = drain,
	.find = tn_slab_find,
	.evict = evict,
	.capacity = tn_slab_capacity,
	.offset = offset,
	.destroy = destroy,
};

int tn_host_tier_create(uint64_t bytes, uint64_t seed, const struct tn_alloc *alloc, struct tn_tier_base **out)
{
	struct host *h = tn_get(alloc, sizeof(*h));
	void *memory;

	if (!h)
		return tn_fail(-ENOMEM, "host tier: no memory");
	h->slab.base.ops = &ops;
	h->slab.base.tier = TN_TIER_HOST;
	h->slab.base.queues = &h->queues;
	h->slab.alloc = alloc;
	h->slab.policy = "lru";
	h->slab.seed = seed;
	/* At least 2 MiB, so that the slab comes page-aligned. */
	h->slab.bytes = bytes < (2u << 20) ? 2u << 20 : bytes;
	memory = tn_get(alloc, h->slab.bytes);
	if (!memory) {
		tn_put(alloc, h, sizeof(*h));
		return tn_fail(-ENOMEM, "host tier: no memory for %llu bytes; lower host_bytes",
			       (unsigned long long)bytes);
	}
	tn_queues_init(&h->queues, TN_TIER_HOST + 1, alloc);
	tn_slab_init(&h->slab, memory);
	*out = &h->slab.base;
	return 0;
}

static int plan(struct tn_tier_env *env, uint64_t *blocks)
{
	uint64_t least = tn_shape_least_block(env->o->host_bytes);

	*blocks += env->o->host_bytes / (env->slot_bytes && env->slot_bytes < least ? env->slot_bytes : least);
	return 0;
}

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	uint64_t bytes = env->o->host_bytes, most;
	char what[300];

	if (bytes == 0)
		return 0;
	most = tn_memory_limit("", what, sizeof(what));
	if (bytes > most)
		return tn_fail(-EINVAL, "host_bytes %llu: more than %s of %llu bytes; give less", (unsigned long long)bytes, what,
			       (unsigned long long)most);
	return tn_host_tier_create(bytes, env->o->seed, env->alloc, out);
}

const struct tn_tier_maker tn_host_tier_maker = {.plan = plan, .make = make};
