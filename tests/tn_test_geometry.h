/* SPDX-License-Identifier: Apache-2.0 */
/* Random small geometries and pools, always valid, for property tests. */
#ifndef TN_TEST_GEOMETRY_H
#define TN_TEST_GEOMETRY_H

#include <tenuto/layout.h>

#include "base/rng.h"

/* Small enough that a test can touch every byte of a pool of it. */
static inline struct tn_geometry tn_test_geometry(struct tn_rng *rng)
{
	static const uint32_t bits[] = {4, 8, 16, 32};
	struct tn_geometry g = {
		.layers = 1 + tn_rng_below(rng, 5),
		.page_tokens = 2 * (1 + tn_rng_below(rng, 8)), /* even: 4-bit elements then fill whole bytes */
		.pages_per_block = 1 + tn_rng_below(rng, 9),
		.page_order = tn_rng_below(rng, 2),
		.nplanes = 1 + tn_rng_below(rng, 5),
	};

	for (uint32_t p = 0; p < g.nplanes; p++) {
		g.planes[p] = (struct tn_plane){
			.kind = tn_rng_below(rng, TN_PLANE_STATE + 1),
			.heads = 1 + tn_rng_below(rng, 4),
			.head_dim = 2 * (1 + tn_rng_below(rng, 12)),
			.elem_bits = bits[tn_rng_below(rng, 4)],
		};
	}
	return g;
}

static inline struct tn_pool_shape tn_test_pool(struct tn_rng *rng, const struct tn_geometry *g)
{
	return (struct tn_pool_shape){
		.order = tn_rng_below(rng, TN_POOL_CROSS_LAYER + 1),
		.alignment = tn_rng_below(rng, 3) ? 1u << tn_rng_below(rng, 10) : 0,
		.npages = g->pages_per_block + tn_rng_below(rng, 20),
	};
}

#endif
