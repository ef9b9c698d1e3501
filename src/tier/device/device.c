/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/device/device.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "device/device.h"
#include "tier/slab.h"

struct device {
	struct tn_slab slab;
	const struct tn_device_driver *driver;
	struct tn_memory_range range; /* as it is registered; no bytes: it is not */
	uint32_t device;
	struct tn_copiers *copiers;
	const struct tn_log *log;
	bool lost; /* said, and its blocks leave */
};

static struct device *device_of(struct tn_tier_base *t)
{
	return (struct device *)t;
}

/* Blocks as on disk, without checksums: bytes were verified before they come here, and no CPU could compare them. */
static int space(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls)
{
	struct tn_slab *s = tn_slab_of(t);
	uint32_t slots;
	int rc = tn_slab_wants(s, shape->slot_bytes, &slots);

	if (rc == 0 && slots)
		rc = tn_slab_cut(s, shape->slot_bytes, slots);
	*cls = rc ? TN_CLASS_NONE : 0;
	return rc;
}

static int health(const struct tn_tier_base *t)
{
	return tn_copier_lost(tn_slab_at(t)->memory.copier) ? -ENODEV : 0;
}

static int place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	return health(t) ? 0 : tn_slab_place(t, w, want, out);
}

static uint64_t offset(const struct tn_tier_base *t, uint32_t slot, const struct tn_shape *shape, uint64_t **checks)
{
	assert(!checks);
	return tn_slab_offset(tn_slab_at(t), slot);
}

static bool serves(const struct tn_tier_base *t, const struct tn_mapping *pool)
{
	return pool->copier && pool->copier == tn_slab_at(t)->memory.copier;
}

/* Once the device is lost its blocks leave. */
static bool step(struct tn_tier_base *t, uint64_t now_ns, uint64_t *due_ns)
{
	struct device *g = device_of(t);

	if (g->lost || health(t) == 0)
		return false;
	g->lost = true;
	tn_log(g->log, TN_LOG_ERROR, "device tier: driver %s has lost device %u (error %d), and with it %llu blocks; loads go on from the tiers below",
	       g->driver->ops->name, g->device, -ENODEV, (unsigned long long)t->blocks);
	for (uint64_t slot = 0; slot < t->ops->capacity(t); slot++)
		if (t->block_of[slot] != TN_BLOCK_NONE)
			t->watch->quits(t->watch->arg, t, t->block_of[slot]);
	return true;
}

static void destroy(struct tn_tier_base *t)
{
	struct device *g = device_of(t);
	const struct tn_device_driver_ops *ops = g->driver->ops;

	if (g->slab.memory.copier)
		tn_copiers_leave(g->copiers, g->slab.memory.copier);
	if (g->range.bytes)
		ops->unregister_range(g->driver, &g->range);
	if (g->slab.range.address)
		ops->release(g->driver, g->device, g->slab.range.address);
	tn_slab_fini(&g->slab);
	tn_put(g->slab.alloc, g, sizeof(*g));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "device",
	.traits = {.reach = TN_REACH_MEMORY, .entry_by_slot = true},
	.space = space,
	.place = place,
	.release = tn_slab_release,
	.fill = tn_slab_fill,
	.drain = tn_slab_drain,
	.find = tn_slab_find,
	.capacity = tn_slab_capacity,
	.health = health,
	.offset = offset,
	.serves = serves,
	.step = step,
	.destroy = destroy,
};

/* The memory is registered as an engine's is: its copies name it. */
static int take_memory(struct device *g, void **address)
{
	const struct tn_device_driver *d = g->driver;
	struct tn_memory_range range;
	int rc = d->ops->allocate(d, g->device, g->slab.bytes, address);

	if (rc) {
		*address = NULL;
		return tn_fail(rc, "device tier: driver %s does not allocate %llu bytes on device %u (error %d); lower device_tier.bytes", d->ops->name,
			       (unsigned long long)g->slab.bytes, g->device, rc);
	}
	range = (struct tn_memory_range){.address = *address, .bytes = g->slab.bytes, .device = g->device};
	rc = tn_device_register(d, &range, 1);
	if (rc == 0)
		g->range = range;
	return rc;
}

/* -ENOTSUP: the driver has no memory to give; -ENOMEM; or the driver's error. */
static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	const struct tn_device_tier *o = &env->o->device_tier;
	void *address = NULL;
	struct device *g;
	int rc;

	if (o->bytes == 0)
		return 0;
	if (!o->driver->ops->allocate || !o->driver->ops->release)
		return tn_fail(-ENOTSUP, "device tier: driver %s allocates no memory; set device_tier.bytes to 0", o->driver->ops->name);
	g = tn_get(env->alloc, sizeof(*g));
	if (!g)
		return tn_fail(-ENOMEM, "device tier: no memory");
	g->driver = o->driver;
	g->device = o->device;
	g->copiers = env->copiers;
	g->log = env->log;
	g->slab.base.ops = &ops;
	g->slab.base.tier = TN_TIER_DEVICE;
	g->slab.alloc = env->alloc;
	g->slab.policy = "s3fifo"; /* what is loaded once only passes through a tenth of it */
	g->slab.seed = env->o->seed;
	g->slab.bytes = o->bytes;
	rc = take_memory(g, &address);
	tn_slab_init(&g->slab, address);
	if (rc == 0)
		rc = tn_copiers_join(env->copiers, o->driver, o->device, &g->slab.memory.copier);
	if (rc)
		destroy(&g->slab.base);
	else
		*out = &g->slab.base;
	return rc;
}

const struct tn_tier_maker tn_device_tier_maker = {.make = make};
