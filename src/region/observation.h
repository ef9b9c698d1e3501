/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long engines computed on layers, as their waits showed it, on its way from the threads of a front to the core: a bounded queue in which each
 * place has a turn number. What finds no place is lost; one timing more or less does not matter.
 */
#ifndef TN_REGION_OBSERVATION_H
#define TN_REGION_OBSERVATION_H

#include "region/region.h"

/**
 * struct tn_observation - the compute of one layer
 * @input, @prefix: tokens computed, and loaded in front of them
 * @ns:    how long; as the clock gave it
 * @space: its number
 */
struct tn_observation {
	uint64_t turn; /* place n of all that ever were has n + 1 when it is filled */
	uint64_t input, prefix;
	int64_t ns;
	uint32_t space, layer;
};

/* Any thread of the front. */
void tn_observation_put(const struct tn_region *r, const struct tn_observation *observation);

/* The core: the next one, a copy; *taken, its count of them, is 0 at first. False: there is none. */
bool tn_observation_take(const struct tn_region *r, uint64_t *taken, struct tn_observation *out);

#endif
