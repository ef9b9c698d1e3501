/* SPDX-License-Identifier: Apache-2.0 */
/* Memories and their pools. */
#ifndef TN_CORE_POOL_H
#define TN_CORE_POOL_H

#include <tenuto/memory.h>

#include "base/alloc.h"
#include "layout/layout.h"

struct tn_claims; /* the front's: front/claims.h */

struct tn_memory {
	struct tn_cache *cache;
	struct tn_memory_range *range;
	size_t nranges;
	uint32_t npools; /* under cache->lock, as what follows */
	uint32_t nclaims;
	struct tn_claims *claims[TN_MEMORY_LAYOUTS_MAX];
};

struct tn_pool {
	struct tn_memory *memory;
	uint32_t number; /* in cache->pools */
	uint32_t ops; /* shared: loads and saves of callers that have not ended them */
	uint32_t align; /* of all its pages and planes */
	struct tn_layout layout; /* its addresses are those of the claims' layout */
	struct tn_claims *claims;
};

#endif
