/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing map from 64-bit ids to 32-bit values, for simulations. Values stay in their place until the next reservation.
 */
#ifndef TN_LAB_ID_MAP_H
#define TN_LAB_ID_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

struct tn_id_slot {
	uint64_t id;
	uint32_t value;
	bool used;
};

struct tn_id_map {
	const struct tn_alloc *alloc;
	struct tn_id_slot *slots;
	uint64_t capacity; /* power of two, or 0 */
	uint64_t count;
};

/* Makes free slots for n more ids; -ENOMEM. */
int tn_id_map_reserve(struct tn_id_map *m, uint64_t n);
/* The id's slot. A new id gets `value`; the caller has reserved a free slot for it. */
struct tn_id_slot *tn_id_map_at(struct tn_id_map *m, uint64_t id, uint32_t value);
void tn_id_map_fini(struct tn_id_map *m);

#endif
