/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories and pools: the bytes that an engine keeps its KV pages in, and where the pages lie in them.
 *
 * An engine registers each memory once, and creates a pool for each geometry that it keeps there. Neither belongs to a space:
 * tenants whose blocks have one geometry use one pool, and KV groups of different geometries have pools over one memory, also over the
 * same bytes of it. A page under load through one pool is refused to loads and saves through every other pool of
 * the memory whose pages share bytes with it; saves may share pages. Whatever the layouts are this is exact, and costs a few
 * comparisons per page and pool that overlaps: only where the planes of two pools overlap in more than eight ways - not where
 * their bases and strides agree, or those of one are multiples of the other's - each plane is compared with each.
 *
 * Threads: any.
 */
#ifndef TENUTO_MEMORY_H
#define TENUTO_MEMORY_H

#include <tenuto/device_memory.h>
#include <tenuto/error.h>
#include <tenuto/layout.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_memory;
struct tn_pool;

/** Most pools of different layouts over one memory. Layouts that nobody uses any more count until the memory has no pools. */
#define TN_MEMORY_LAYOUTS_MAX 16u

/**
 * struct tn_memory_desc - begin with tn_memory_desc_init, then set what differs
 * @size:    sizeof(struct tn_memory_desc), set by init
 * @kind:    enum tn_memory_kind, of all ranges; TN_MEMORY_HOST by default
 * @nranges: how many, at least 1
 * @ranges:  copied. An engine with a tensor per layer gives each as a range; offsets in the memory count through the
 *           ranges in their order, as if one followed the other
 * @stage_bytes: in an attached cache (tenuto/session.h), of device memory, and of memory that the owner's process cannot map: most session memory
 *           through which the bytes of each pool's operations are copied, at least one block; 0: as much as the pool has, at most 1 GiB. An
 *           operation that needs more is carried out in batches. For device memory the driver pins it
 * @driver:  TN_MEMORY_DEVICE: who copies (tenuto/device_memory.h). It stays until the memory is unregistered. All ranges are of one device,
 *           and their addresses are the device's: no CPU touches them
 */
struct tn_memory_desc {
	size_t size;
	uint32_t kind;
	uint32_t nranges;
	const struct tn_memory_range *ranges;
	uint64_t stage_bytes;
	const struct tn_device_driver *driver;
};

/**
 * struct tn_device_tier - an option of tn_cache_open: memory of a device that the cache owns, for blocks that are loaded into pools of the same device, or
 *                         saved from them. A load of what lies there is a copy within the device
 * @bytes:  0: none. It is a cache of the tiers below it, of which there has to be one
 * @driver: who allocates the memory and copies, the same as that of the pools; outlives the cache
 * @device: on which of its devices
 */
struct tn_device_tier {
	uint64_t bytes;
	const struct tn_device_driver *driver;
	uint32_t device;
	uint32_t reserved;
};

/** tn_memory_desc_init_sized - tn_memory_desc_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_memory_desc_init_sized(struct tn_memory_desc *desc, size_t size);

/** tn_memory_desc_init - defaults: size set, addresses of this process, no ranges. Any thread. */
static inline void tn_memory_desc_init(struct tn_memory_desc *desc)
{
	tn_memory_desc_init_sized(desc, sizeof(*desc));
}

/**
 * tn_memory_register - bytes that an engine owns, for pools
 *
 * The bytes stay the caller's, and mapped until tn_memory_unregister. In an attached cache those that the owner's process cannot map are
 * copied on the way (tenuto/session.h), in any cache those of a device by its driver (docs/device-memory.md). Bytes that are registered twice are two memories: what goes
 * on in one is not known in the other.
 *
 * Return: 0 and *out; -EINVAL (no ranges, one that is empty or without an address, or two that overlap), -EOVERFLOW (a range
 * wraps around the address space), -ENOTSUP (files: map the file, and register the addresses; device memory without a driver), an error of the driver's,
 * -ENOMEM. In an attached cache -EINVAL also of a file that is no memory, or that ends before the range, and -ENOSPC if the process has too much registered
 * (tenuto/session.h).
 */
TN_API int tn_memory_register(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_memory **out);

/** tn_memory_unregister - -EBUSY while it has pools; NULL is fine */
TN_API int tn_memory_unregister(struct tn_memory *memory);

/**
 * tn_pool_create - where the pages of blocks of one geometry lie in a memory
 * @layout: copied; tn_layout_fill makes it for the orders that engines use
 *
 * Any layout does in which every page of every plane lies in one range of the memory, and no two pages of the pool
 * share bytes. Pages whose address and size are multiples of what O_DIRECT asks for (`tenuto doctor`; 4096 is
 * always enough) move without a copy, others through a bounce buffer (statistic bounced_objects).
 *
 * Return: 0 and *out, -EINVAL, -EOVERFLOW (more than 2^32 - 1 pages), -ENOSPC (TN_MEMORY_LAYOUTS_MAX; of memory that is staged also as
 * tn_memory_register), -ENOMEM.
 */
TN_API int tn_pool_create(struct tn_memory *memory, const struct tn_geometry *geometry,
			  const struct tn_pool_layout *layout, struct tn_pool **out);

/**
 * tn_pool_destroy - NULL is fine
 *
 * Return: 0; -EBUSY while loads or saves use it; -ETIMEDOUT: the process that owns the cache has not answered (tenuto/session.h). Then the pool is used for
 * nothing more, and tn_pool_destroy is called again: it ends this pool whether or not the owner has carried out the first call.
 */
TN_API int tn_pool_destroy(struct tn_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
