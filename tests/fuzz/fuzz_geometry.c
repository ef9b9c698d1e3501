/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of tn_geometry_load: whatever the bytes, it refuses or gives a valid geometry that stores back to
 * the same bytes. The input is tried as it is, and once more with magic, version and checksum put right, for a
 * fuzzer does not guess checksums. A valid geometry then goes through all code that computes with one: shape, last
 * tokens of a sliding window, host slot, store, layout and spans of a pool at made-up addresses, re-slicing.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include <tenuto/layout.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "layout/layout.h"
#include "store/store.h"
#include "tier/host/host.h"
#include "tier/shape.h"

#define HOST_BYTES (UINT64_C(1) << 30)
#define WALKED 4096u /* planes and pieces of one input, at most: a fuzzer's run stays short */

/* The bytes of an input behind its geometry. */
struct rest {
	struct tn_pool_shape pool;
	uint64_t disk_blocks;
	uint32_t window_tokens;
	uint8_t src_tp, dst_tp, dst_rank;
};

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

/* A page's plane lies in its region, and starts where the pool's alignment wants it. */
static void check_page(const struct tn_layout *l, const struct tn_mapping *m, const struct tn_pool_shape *shape, uint64_t region_bytes, uint32_t layer,
		       uint32_t plane, uint64_t page)
{
	uint32_t of_layer = l->geometry.nplanes, region = 0;
	uintptr_t at = (uintptr_t)tn_layout_address(l, m, layer, plane, page), begin;

	if (shape->order == TN_POOL_PLANE_REGION)
		region = layer * of_layer + plane;
	else if (shape->order != TN_POOL_CROSS_LAYER)
		region = layer;
	begin = 4096 + region * region_bytes;
	assert(at >= begin && at - begin <= region_bytes - l->page_bytes[plane]);
	assert(shape->alignment < 2 || (at - begin) % shape->alignment == 0);
}

/* An object's pieces together are as long as the object. */
static void check_object(const struct tn_layout *l, const struct tn_mapping *m, const struct tn_shape *s, uint32_t layer)
{
	static uint32_t pages[TN_BLOCK_PAGES_MAX];
	static struct iovec iov[TN_OBJECT_IOVS_MAX];
	const struct tn_span span = {.memory = m, .layout = l, .pages = pages};
	uint64_t bytes = 0;
	uint32_t n;

	for (uint32_t i = 0; i < l->geometry.pages_per_block; i++)
		pages[i] = (uint32_t)(l->npages - 1 - i % l->npages);
	n = tn_span_object(&span, s, layer, iov);
	assert(n >= 1 && n <= s->object_iovs);
	for (uint32_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	assert(bytes == s->object_bytes);
}

/* A pool at addresses that nothing is read from: one range that begins at 4096. */
static void lay_out(const struct tn_geometry *g, const struct tn_pool_shape *shape, const struct tn_shape *s)
{
	static uint64_t base[TN_LAYERS_MAX * TN_PLANES_MAX];
	static uint64_t table[TN_LAYERS_MAX * TN_PLANES_MAX];
	struct tn_memory_range range = {.address = (void *)(uintptr_t)4096};
	struct tn_mapped_range mapped;
	struct tn_mapping m;
	struct tn_pool_layout layout;
	struct tn_layout l;
	uint64_t bytes;
	uint32_t count;

	if (tn_layout_regions(g, shape, &count, &bytes))
		return;
	assert(count >= 1 && count <= g->layers * g->nplanes);
	assert(bytes >= shape->npages && bytes <= PTRDIFF_MAX);
	if (g->layers * g->nplanes > WALKED || __builtin_mul_overflow(bytes, count, &range.bytes) || range.bytes > PTRDIFF_MAX)
		return;
	assert(tn_layout_fill(g, shape, NULL, base, &layout) == 0);
	if (shape->npages > UINT32_MAX)
		return;
	tn_mapping_init(&m, &mapped, &range, 1);
	assert(tn_layout_init(g, &layout, &m, table, &l) == 0);
	assert(tn_layout_align(&l, &m) >= 1);
	for (uint32_t i = 0; i < g->layers * g->nplanes; i++) {
		check_page(&l, &m, shape, bytes, i / g->nplanes, i % g->nplanes, 0);
		check_page(&l, &m, shape, bytes, i / g->nplanes, i % g->nplanes, shape->npages - 1);
	}
	if (s) {
		check_object(&l, &m, s, 0);
		check_object(&l, &m, s, g->layers - 1);
	}
}

/* The block's size in host memory and on disk. */
static void check_shape(const struct tn_geometry *g, const struct tn_shape *s, const struct rest *rest)
{
	static uint32_t sizes[TN_LAYERS_MAX];
	struct tn_tier_base *host;
	uint64_t layers = 0, segment_bytes = 0, bytes;
	uint32_t cls;

	assert(s->object_bytes == tn_geometry_object_bytes(g) && s->padded_bytes >= s->object_bytes);
	assert(s->slot_bytes / s->padded_bytes == g->layers && s->slot_bytes >= tn_geometry_block_bytes(g));
	assert(s->chunks >= 1 && s->chunks <= TN_CHUNKS_MAX);
	assert((uint64_t)s->chunk_objects * s->object_iovs <= TN_OBJECT_IOVS_MAX);
	for (uint32_t c = 0; c < s->chunks; c++)
		layers += tn_shape_chunk_count(s, c);
	assert(layers == g->layers);
	assert(tn_host_tier_create(HOST_BYTES, 1, &tn_alloc_system, &host) == 0);
	if (host->ops->space(host, s, &cls) == 0)
		assert(host->ops->capacity(host) >= 1 && host->ops->capacity(host) <= HOST_BYTES / s->slot_bytes);
	host->ops->destroy(host);
	for (uint32_t i = 0; i < s->layers; i++)
		sizes[i] = s->object_bytes;
	bytes = tn_store_bytes_for(rest->disk_blocks, 1, s->layers, sizes, &segment_bytes);
	assert(bytes == UINT64_MAX || bytes / s->slot_bytes >= rest->disk_blocks);
}

static void compute(const struct tn_geometry *g, const uint8_t *more, size_t size)
{
	struct rest rest = {.src_tp = 4, .dst_tp = 8};
	struct tn_geometry d;
	struct tn_shape s;
	uint64_t blocks;
	bool shaped;

	memcpy(&rest, more, size < sizeof(rest) ? size : sizeof(rest));
	assert(tn_geometry_default_pages(g) >= 1);
	assert(tn_geometry_block_tokens(g) / g->pages_per_block == g->page_tokens);
	blocks = tn_shape_window_blocks(g, rest.window_tokens);
	assert(blocks * tn_geometry_block_tokens(g) >= rest.window_tokens);
	shaped = tn_shape_init(g, &s) == 0;
	if (shaped)
		check_shape(g, &s, &rest);
	lay_out(g, &rest.pool, shaped ? &s : NULL);
	/* A copy list has up to one copy per token and head: only small lists are walked. */
	if (tn_reslice_geometry(g, rest.src_tp, rest.dst_tp, &d) == 0 && tn_geometry_object_bytes(&d) < (1u << 16))
		(void)tn_reslice_plan(g, rest.src_tp, rest.dst_tp, rest.dst_rank, NULL, 0);
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
