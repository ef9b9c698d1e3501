/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_geometry_load: whatever the bytes, it refuses or gives a valid geometry that stores back to
 * the same bytes. The input is tried as it is, and once more with magic, version and checksum put right, for a
 * fuzzer does not guess checksums; a geometry that passes then goes through all that computes with it.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/hash.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int load_and_compare(const uint8_t *data, size_t size, struct tn_geometry *g)
{
	uint8_t again[TN_GEOMETRY_BYTES];
	int rc = tn_geometry_load(data, size, g);

	if (rc < 0)
		return rc;
	assert(rc == (int)TN_GEOMETRY_BYTES);
	assert(tn_geometry_check(g) == 0);
	assert(tn_geometry_store(g, again, sizeof(again)) == rc);
	assert(memcmp(again, data, sizeof(again)) == 0);
	return 0;
}

static void compute(const struct tn_geometry *g, const uint8_t *more, size_t size)
{
	struct tn_pool_layout pool = {0};
	struct tn_geometry d;
	uint64_t bytes;
	uint32_t count;
	uint8_t tp[3] = {4, 8, 0};

	memcpy(&pool, more, size < sizeof(pool) ? size : sizeof(pool));
	if (tn_layout_regions(g, &pool, &count, &bytes) == 0) {
		assert(count >= 1 && count <= g->layers * g->nplanes);
		assert(bytes >= pool.npages && bytes <= PTRDIFF_MAX);
	}
	assert(tn_geometry_default_pages(g) >= 1);
	memcpy(tp, more, size < sizeof(tp) ? size : sizeof(tp));
	/* A plan has up to a copy a token and head: only small ones are walked. */
	if (tn_reslice_geometry(g, tp[0], tp[1], &d) == 0 && tn_geometry_object_bytes(&d) < (1u << 16))
		(void)tn_reslice_plan(g, tp[0], tp[1], tp[2], NULL, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t fixed[TN_GEOMETRY_BYTES];
	struct tn_geometry g;
	uint64_t sum;

	load_and_compare(data, size, &g);
	if (size < sizeof(fixed))
		return 0;
	memcpy(fixed, data, sizeof(fixed));
	memcpy(fixed, "TNGEOM\0\0\1\0\0\0", 12);
	sum = tn_hash64(fixed, sizeof(fixed) - 8);
	for (unsigned i = 0; i < 8; i++)
		fixed[sizeof(fixed) - 8 + i] = (uint8_t)(sum >> (8 * i));
	if (load_and_compare(fixed, sizeof(fixed), &g) == 0)
		compute(&g, data + sizeof(fixed), size - sizeof(fixed));
	return 0;
}
