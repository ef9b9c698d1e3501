/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host tier's memory: one slab, cut into equal slots; each holds one block flat, as a slot on
 * disk does, and its objects' checksums behind it.
 *
 * The slab is cut for the largest shape announced while it was empty; blocks of smaller shapes use a
 * slot each, larger ones are not held here. Owner thread only, but the bytes.
 */
#ifndef TN_TIER_HOST_H
#define TN_TIER_HOST_H

#include <stdbool.h>

#include "base/alloc.h"
#include "tier/shape.h"

#define TN_HOST_NONE UINT32_MAX

struct tn_host;

int tn_host_create(uint64_t bytes, const struct tn_alloc *alloc, struct tn_host **out);
void tn_host_destroy(struct tn_host *h);

/* How many slots there would be after tn_host_shape. 0, -ENOSPC (not one fits) or -EFBIG (in use, and cut for smaller blocks). */
int tn_host_plan(const struct tn_host *h, const struct tn_shape *shape, uint32_t *slots);
/* Cuts the slab for this shape if need be. As plan, or -ENOMEM; then nothing changed. */
int tn_host_shape(struct tn_host *h, const struct tn_shape *shape);
uint32_t tn_host_slots(const struct tn_host *h);
uint32_t tn_host_used(const struct tn_host *h);

/* A slot for block b, or TN_HOST_NONE. */
uint32_t tn_host_take(struct tn_host *h, uint32_t b);
void tn_host_put(struct tn_host *h, uint32_t slot);
uint32_t tn_host_block(const struct tn_host *h, uint32_t slot);
void tn_host_set_block(struct tn_host *h, uint32_t slot, uint32_t b);
unsigned char *tn_host_flat(const struct tn_host *h, uint32_t slot);
uint64_t *tn_host_checks(const struct tn_host *h, uint32_t slot, const struct tn_shape *shape);

#endif
