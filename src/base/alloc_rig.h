/* SPDX-License-Identifier: Apache-2.0 */
/* A counting allocator on top of tn_alloc_system, for tests. */
#ifndef TN_BASE_ALLOC_RIG_H
#define TN_BASE_ALLOC_RIG_H

#include "base/alloc.h"

struct tn_alloc_counter {
	struct tn_alloc alloc; /* hand out this one */
	size_t live_bytes; /* requested and not given back */
	size_t fail_after; /* requests that still succeed; SIZE_MAX for all */
};

static inline void *tn_alloc_counter_get(void *arg, size_t bytes)
{
	struct tn_alloc_counter *c = arg;
	void *p;

	if (c->fail_after == 0)
		return NULL;
	if (c->fail_after != SIZE_MAX)
		c->fail_after--;
	p = tn_get(&tn_alloc_system, bytes);
	if (p)
		c->live_bytes += bytes;
	return p;
}

static inline void tn_alloc_counter_put(void *arg, void *p, size_t bytes)
{
	struct tn_alloc_counter *c = arg;

	if (p)
		c->live_bytes -= bytes;
	tn_put(&tn_alloc_system, p, bytes);
}

static inline void tn_alloc_counter_init(struct tn_alloc_counter *c)
{
	c->alloc = (struct tn_alloc){tn_alloc_counter_get, tn_alloc_counter_put, tn_alloc_system.sparse, c};
	c->live_bytes = 0;
	c->fail_after = SIZE_MAX;
}

#endif
