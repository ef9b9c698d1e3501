/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes and classes: what a segment is divided into, and which blocks fit which slots. Arithmetic on
 * sizes and two tables that only grow; which segment has which shape is in segment.c.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define LARGE_SLOT_BYTES 65536u /* slots from this size on begin at multiples that suit drives */
#define LARGE_SLOT_ALIGN 16384u

int tn_store_shape_get(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t *shape)
{
	uint64_t align = slot_bytes >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_STORE_BLOCK_ALIGN, n, start;
	struct tn_store_shape *sh;

	slot_bytes = tn_round_up(slot_bytes, align);
	for (uint32_t i = 0; i < s->nshapes; i++) {
		if (s->shape[i].slot_bytes == slot_bytes && s->shape[i].header_bytes == header_bytes) {
			*shape = i;
			return 0;
		}
	}
	if (slot_bytes + header_bytes + TN_DISK_PAGE > s->segment_bytes)
		return tn_fail(-EINVAL, "a block of %llu bytes does not fit into this store's segments of %llu: use another directory or "
			       "instance for larger blocks",
			       (unsigned long long)slot_bytes, (unsigned long long)s->segment_bytes);
	if (s->nshapes == TN_STORE_SHAPES_MAX)
		return tn_fail(-ENOSPC, "more than %u slot sizes in one store", TN_STORE_SHAPES_MAX);
	n = (s->segment_bytes - TN_DISK_PAGE) / (slot_bytes + header_bytes);
	if (n > (uint64_t)s->segment_pages * TN_DISK_RECORDS)
		n = (uint64_t)s->segment_pages * TN_DISK_RECORDS;
	for (;; n--) {
		start = tn_round_up(TN_DISK_PAGE + n * header_bytes, align);
		if (start + n * slot_bytes <= s->segment_bytes)
			break;
	}
	if (n == 0)
		return tn_fail(-EINVAL, "a block of %llu bytes does not fit into this store's segments of %llu: use another directory or "
			       "instance for larger blocks",
			       (unsigned long long)slot_bytes, (unsigned long long)s->segment_bytes);
	sh = &s->shape[s->nshapes];
	*sh = (struct tn_store_shape){
		.slot_bytes = slot_bytes, .header_bytes = header_bytes, .slot_count = (uint32_t)n, .data_offset = start};
	for (uint32_t d = 0; d < TN_DEVICES_MAX; d++)
		tn_list_init(&sh->has_free[d]);
	s->most_slots = s->most_slots > n ? s->most_slots : (uint32_t)n;
	*shape = s->nshapes++;
	return 0;
}

bool tn_store_shape_of(struct tn_store *s, uint64_t slot_bytes, uint32_t header_bytes, uint32_t slot_count, uint32_t *shape)
{
	return slot_bytes > 0 && slot_bytes <= s->segment_bytes && header_bytes > 0 && header_bytes % TN_DISK_PAGE == 0 &&
	       header_bytes <= tn_store_header_size(TN_STORE_OBJECTS_MAX) &&
	       tn_store_shape_get(s, slot_bytes, header_bytes, shape) == 0 && s->shape[*shape].slot_bytes == slot_bytes &&
	       s->shape[*shape].slot_count == slot_count;
}

static uint64_t padded(uint32_t bytes)
{
	return tn_round_up(bytes, TN_STORE_BLOCK_ALIGN);
}

static bool same_class(const struct tn_store_class *c, uint32_t nobjects, const uint32_t *bytes, bool uniform)
{
	if (c->nobjects != nobjects)
		return false;
	if (!c->bytes)
		return uniform && c->uniform_bytes == bytes[0];
	return !uniform && memcmp(c->bytes, bytes, nobjects * sizeof(*bytes)) == 0;
}

int tn_store_class(struct tn_store *s, uint32_t nobjects, const uint32_t *object_bytes, uint32_t *cls)
{
	struct tn_store_class c = {.nobjects = nobjects};
	bool uniform = true;
	uint64_t total = 0;
	int rc;

	if (nobjects == 0 || nobjects > TN_STORE_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u objects a block: must be 1..%u", nobjects, TN_STORE_OBJECTS_MAX);
	for (uint32_t i = 0; i < nobjects; i++) {
		if (object_bytes[i] == 0)
			return tn_fail(-EINVAL, "object %u has no bytes", i);
		uniform = uniform && object_bytes[i] == object_bytes[0];
		total += padded(object_bytes[i]);
	}
	for (uint32_t i = 0; i < s->nclasses; i++) {
		if (same_class(&s->cls[i], nobjects, object_bytes, uniform)) {
			*cls = i;
			return 0;
		}
	}
	if (s->nclasses == TN_STORE_CLASSES_MAX)
		return tn_fail(-ENOSPC, "more than %u kinds of blocks in one store", TN_STORE_CLASSES_MAX);
	rc = tn_store_shape_get(s, total, tn_store_header_size(nobjects), &c.shape);
	if (rc)
		return rc;
	if (uniform) {
		c.uniform_bytes = object_bytes[0];
	} else {
		c.bytes = tn_get(s->alloc, nobjects * sizeof(*c.bytes));
		if (!c.bytes)
			return tn_fail(-ENOMEM, "no memory for a class of %u objects", nobjects);
		memcpy(c.bytes, object_bytes, nobjects * sizeof(*c.bytes));
	}
	s->cls[s->nclasses] = c;
	*cls = s->nclasses++;
	return 0;
}

uint64_t tn_store_bytes_for(uint64_t blocks, uint32_t ndirs, uint32_t nobjects, const uint32_t *object_bytes,
			    uint64_t *segment_bytes)
{
	uint64_t slot = 0, per_segment, reserve, segments;

	for (uint32_t i = 0; i < nobjects; i++)
		slot += padded(object_bytes[i]);
	slot = tn_round_up(slot, slot >= LARGE_SLOT_BYTES ? LARGE_SLOT_ALIGN : TN_STORE_BLOCK_ALIGN);
	slot += tn_store_header_size(nobjects);
	/* Freed slots wait for their records, and some segments may belong to another class in part. */
	reserve = blocks / 16 + 64 * (uint64_t)ndirs;
	if (blocks > UINT64_MAX / 2 / slot) /* absurd: more than a store can address, which open will say */
		return UINT64_MAX;
	if (*segment_bytes == 0) {
		uint64_t want = (blocks + reserve) * slot / 64;

		if (want < 8 * slot)
			want = 8 * slot;
		*segment_bytes = tn_round_up(want < (4u << 20)	 ? 4u << 20
					     : want > (1u << 30) ? (slot > (1u << 28) ? 4 * slot : 1u << 30)
								 : want,
					     65536);
	}
	per_segment = *segment_bytes > TN_DISK_PAGE + LARGE_SLOT_ALIGN + slot
			      ? (*segment_bytes - TN_DISK_PAGE - LARGE_SLOT_ALIGN) / slot
			      : 1;
	segments = (blocks + reserve + per_segment - 1) / per_segment;
	segments = (segments + ndirs - 1) / ndirs * ndirs;
	return segments > UINT64_MAX / *segment_bytes ? UINT64_MAX : segments * *segment_bytes;
}
