/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory seam. Memory is taken in create functions and given back in destroy; a counting allocator (alloc_rig.h) lets
 * tests measure what an index holds, and lets the n-th request fail.
 *
 * All allocations are zeroed and aligned to 64 bytes, from a page up to a page. From 2 MiB up they come from mmap, with
 * transparent hugepages asked for, so that 10-million-entry tables do not live on 4 KiB pages. A table that is made for the
 * worst case and of which little is used is better marked sparse: every first touch of a hugepage clears 2 MiB.
 */
#ifndef TN_BASE_ALLOC_H
#define TN_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

struct tn_alloc {
	void *(*get)(void *arg, size_t bytes); /* NULL when there is none */
	void (*put)(void *arg, void *p, size_t bytes); /* NULL-safe; bytes as given to get */
	void (*sparse)(void *arg, void *p, size_t bytes); /* a hint; may be NULL */
	void *arg;
};

extern const struct tn_alloc tn_alloc_system;

static inline void *tn_get(const struct tn_alloc *a, size_t bytes)
{
	return a->get(a->arg, bytes);
}

static inline void tn_put(const struct tn_alloc *a, void *p, size_t bytes)
{
	a->put(a->arg, p, bytes);
}

/* Memory that get returned will be touched in few places: no hugepages for it. NULL-safe. */
static inline void tn_sparse(const struct tn_alloc *a, void *p, size_t bytes)
{
	if (p && a->sparse)
		a->sparse(a->arg, p, bytes);
}

/* n * size, or SIZE_MAX (which no allocator grants) on overflow. */
static inline size_t tn_array_bytes(size_t n, size_t size)
{
	size_t bytes;

	return __builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes;
}

#endif
