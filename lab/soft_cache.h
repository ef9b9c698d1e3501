/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache on a namespace of the software controller (nvme_soft.h), for measurements: the controller has no volatile cache, looks at nothing that costs
 * time, and has a thread of its own as long as the cache is open.
 */
#ifndef TN_LAB_SOFT_CACHE_H
#define TN_LAB_SOFT_CACHE_H

#include <stdint.h>

#include <tenuto/cache.h>

struct tn_soft_cache;

/* As tn_cache_open, with a namespace of so many bytes in the place of directories, of which opts names none. SGLs, or PRPs. */
int tn_soft_cache_open(const struct tn_cache_opts *opts, uint64_t bytes, bool sgl, struct tn_soft_cache **out);
/* Valid until close, which closes it. */
struct tn_cache *tn_soft_cache_of(const struct tn_soft_cache *s);
/* NULL-safe. As tn_cache_close; after an error the controller stays, and so does the cache. */
int tn_soft_cache_close(struct tn_soft_cache *s);

#endif
