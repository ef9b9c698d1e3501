/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host mappings: at which addresses a CPU of this process reaches the bytes of a memory. Layouts and lists name bytes by offsets in a memory, which
 * count through its ranges; whoever moves bytes turns an offset into an address at the last moment. Where a memory is a device's, its addresses are the
 * device's, and go to its driver alone.
 *
 * Read-only once made, so any number of threads may use it.
 */
#ifndef TN_LAYOUT_MAPPING_H
#define TN_LAYOUT_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <tenuto/types.h>

struct tn_copier;

#define TN_NO_OFFSET UINT64_MAX /* in no memory: ranges end before it */

struct tn_mapped_range {
	uint64_t offset; /* of its first byte in the memory */
	uint64_t bytes;
	unsigned char *address; /* of memory of a device: the device's, for its driver alone */
};

/**
 * struct tn_mapping - a memory, as this process reaches it
 * @range:   in the order of their offsets
 * @nranges: at least 1
 * @copier:  memory of a device, which no CPU may touch: who moves its bytes (device/copier.h). NULL: memory of the host
 * @lost:    becomes other than 0 if pages of the memory are gone (base/guard.h): what is under way fails with -EFAULT. NULL: they stay
 */
struct tn_mapping {
	const struct tn_mapped_range *range;
	uint32_t nranges;
	struct tn_copier *copier;
	const uint32_t *lost;
};

/* Of the ranges of a memory, whose bytes together do not overflow; table: memory for n ranges, which must outlive *out. */
static inline void tn_mapping_init(struct tn_mapping *out, struct tn_mapped_range *table, const struct tn_memory_range *range, uint32_t n)
{
	uint64_t offset = 0;

	for (uint32_t i = 0; i < n; offset += range[i++].bytes)
		table[i] = (struct tn_mapped_range){.offset = offset, .bytes = range[i].bytes, .address = range[i].address};
	*out = (struct tn_mapping){.range = table, .nranges = n};
}

/* The range that the offset lies in; the last one, if the memory ends before it. */
static inline const struct tn_mapped_range *tn_mapping_range(const struct tn_mapping *m, uint64_t offset)
{
	uint32_t low = 0, high = m->nranges;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (m->range[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	return &m->range[low];
}

/* The range that all of these bytes lie in, or NULL. No sum here overflows, whatever the offset and the number of bytes are. */
static inline const struct tn_mapped_range *tn_mapping_find(const struct tn_mapping *m, uint64_t offset, uint64_t bytes)
{
	const struct tn_mapped_range *r = tn_mapping_range(m, offset);
	uint64_t skip = offset - r->offset;

	return skip <= r->bytes && bytes <= r->bytes - skip ? r : NULL;
}

/* Whether all of these bytes lie in one range, and a CPU may touch them. */
static inline bool tn_mapping_has(const struct tn_mapping *m, uint64_t offset, uint64_t bytes)
{
	const struct tn_mapped_range *r = tn_mapping_find(m, offset, bytes);

	return r && r->address;
}

/* The address of a byte that the memory has. */
static inline unsigned char *tn_mapping_address(const struct tn_mapping *m, uint64_t offset)
{
	const struct tn_mapped_range *r = tn_mapping_range(m, offset);

	return r->address + (offset - r->offset);
}

static inline bool tn_mapping_is_lost(const struct tn_mapping *m)
{
	return m->lost && __atomic_load_n(m->lost, __ATOMIC_SEQ_CST);
}

#endif
