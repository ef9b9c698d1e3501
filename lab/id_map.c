/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/id_map.h"

#include <errno.h>

#include "base/error.h"

static size_t slots_bytes(uint64_t capacity)
{
	return tn_array_bytes(capacity, sizeof(struct tn_id_slot));
}

static struct tn_id_slot *probe(struct tn_id_slot *slots, uint64_t capacity, uint64_t id)
{
	uint64_t h = id * 0x9e3779b97f4a7c15u;
	uint64_t i = (h ^ h >> 32) & (capacity - 1);

	while (slots[i].used && slots[i].id != id)
		i = (i + 1) & (capacity - 1);
	return &slots[i];
}

int tn_id_map_reserve(struct tn_id_map *m, uint64_t n)
{
	uint64_t capacity = m->capacity ? m->capacity : 1024;
	struct tn_id_slot *slots;

	/* At most 2/3 full. */
	while ((m->count + n) * 3 > capacity * 2 && capacity <= UINT64_MAX / 2)
		capacity *= 2;
	if (capacity == m->capacity)
		return 0;
	slots = tn_get(m->alloc, slots_bytes(capacity));
	if (!slots)
		return tn_fail(-ENOMEM, "no memory to remember %llu block ids", (unsigned long long)(m->count + n));
	for (uint64_t i = 0; i < m->capacity; i++)
		if (m->slots[i].used)
			*probe(slots, capacity, m->slots[i].id) = m->slots[i];
	tn_put(m->alloc, m->slots, slots_bytes(m->capacity));
	m->slots = slots;
	m->capacity = capacity;
	return 0;
}

struct tn_id_slot *tn_id_map_at(struct tn_id_map *m, uint64_t id, uint32_t value)
{
	struct tn_id_slot *s = probe(m->slots, m->capacity, id);

	if (!s->used) {
		*s = (struct tn_id_slot){id, value, true};
		m->count++;
	}
	return s;
}

void tn_id_map_fini(struct tn_id_map *m)
{
	tn_put(m->alloc, m->slots, slots_bytes(m->capacity));
	m->slots = NULL;
	m->capacity = m->count = 0;
}
