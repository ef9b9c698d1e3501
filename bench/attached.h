/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks in a cache that another process serves: they attach, work in a space of their own, and drop it at the end. How the cache was opened is
 * the owner's choice, and what others do at the same time is measured, too.
 */
#ifndef TENUTO_BENCH_ATTACHED_H
#define TENUTO_BENCH_ATTACHED_H

#include <stddef.h>
#include <stdint.h>

#include <tenuto/cache.h>

/* Help of the option. */
#define BENCH_SOCKET_HELP "run in the cache that a process serves there, or that has the store in this directory open"

/* At a socket, or to the owner of the store in a directory: 0, or -errno of the library. */
int bench_attach(const char *path, struct tn_cache **cache);
/* A space that no other run has. 0, or -errno of the library. */
int bench_space_open(struct tn_cache *cache, const char *name, const struct tn_geometry *g, struct tn_space **space);
/* Nothing of it stays in the owner's cache. NULL is fine. */
void bench_space_drop(struct tn_space *space);
/* Memory that the owner can map, or NULL; and its end. */
void *bench_memory(uint64_t bytes);
void bench_memory_free(void *memory);

#endif
