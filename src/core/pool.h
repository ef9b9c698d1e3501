/* SPDX-License-Identifier: Apache-2.0 */
/* Memories and their pools. */
#ifndef TN_CORE_POOL_H
#define TN_CORE_POOL_H

#include <tenuto/memory.h>

#include "base/alloc.h"
#include "base/list.h"
#include "layout/layout.h"

struct tn_claims; /* the front's: front/pool.c */
struct tn_stage_pool; /* front/stage.c */
struct tn_session;

struct tn_memory {
	struct tn_list link; /* under cache->lock: of the cache's */
	struct tn_list pools; /* likewise */
	struct tn_cache *cache;
	struct tn_session *session; /* whose it is; NULL in an attached cache, ... */
	uint32_t number; /* ... where the owner has this number for it, ... In the owner's: of its mapping in cache->mappings, while it has pools */
	bool staged; /* ... or does not know of it: the bytes of its pools are copied (front/stage.h). In the owner's: that process says that it copies to and from it */
	uint64_t stage_bytes; /* of an attached cache: through so much session memory each; 0: the default */
	uint32_t told_lost; /* shared: in an attached cache: the owner has refused an operation for that */
	struct tn_mapping mapping;
	const struct tn_device_driver *driver; /* that copies the bytes of its pools; NULL: host memory */
	uint32_t device; /* the driver's */
	struct tn_mapped_range *range; /* the mapping's */
	bool *mapped; /* by range: the drives reach it; NULL: no engine is told of it */
	uint32_t npools; /* under cache->lock, as what follows */
	uint32_t nclaims; /* 0 for a memory of a process that has attached, in the owner's */
	struct tn_claims *claims[TN_MEMORY_LAYOUTS_MAX];
};

struct tn_pool {
	struct tn_list link; /* under cache->lock: of the memory's */
	struct tn_memory *memory;
	struct tn_session *session; /* whose operations may use it: its memory's */
	uint32_t number; /* in cache->pools */
	uint64_t life;	 /* of an attached cache: which of the session's pools, all that it ever made; a number is another pool's later */
	uint32_t ops; /* shared: loads and saves of callers that have not ended them */
	uint32_t align; /* of all its pages and planes */
	struct tn_layout layout;
	struct tn_claims *claims; /* NULL: of a process that has attached, in the owner's */
	struct tn_stage_pool *stage; /* of a memory that is staged */
};

/* Who copies the bytes of an operation's pages (its pool, or NULL), and hence what it may wait for; NULL: they lie in host memory. */
static inline struct tn_copier *tn_pool_copier(const struct tn_pool *pool)
{
	return pool ? pool->memory->mapping.copier : NULL;
}

#endif
