/* SPDX-License-Identifier: Apache-2.0 */
/* A pool over the program's own memory, in one of the orders that engines use. */
#ifndef TENUTO_CLI_POOL_H
#define TENUTO_CLI_POOL_H

#include <tenuto/memory.h>

struct cli_pool {
	struct tn_memory *memory;
	struct tn_pool *pool; /* NULL: not open */
	struct tn_geometry geometry;
	struct tn_pool_layout layout;
	uint64_t *base;
	char *at;
};

/* Bytes of a pool whose regions lie one behind the other; 0: tn_error_last says why. */
uint64_t cli_pool_bytes(const struct tn_geometry *g, const struct tn_pool_shape *shape);
/* Opens a pool over the cli_pool_bytes at `at`. 0, or -errno and nothing is left open. *pool must be zero. */
int cli_pool_open(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape, void *at,
		  struct cli_pool *pool);
/* Likewise over memory of a driver's device, whose pages this process reaches by the driver alone. */
int cli_pool_open_on(struct tn_cache *cache, const struct tn_geometry *g, const struct tn_pool_shape *shape, void *at,
		     const struct tn_device_driver *driver, uint32_t device, struct cli_pool *pool);
void *cli_pool_page(const struct cli_pool *pool, uint32_t layer, uint32_t plane, uint64_t page);
/* -EBUSY while loads or saves use the pool. 0 also if the pool is not open. */
int cli_pool_close(struct cli_pool *pool);

#endif
