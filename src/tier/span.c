/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/span.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store.h"

int tn_shape_init(const struct tn_geometry *g, struct tn_shape *shape)
{
	uint32_t bytes, padded, iovs, k, least;

	if (tn_geometry_check(g))
		return tn_error_last()->code;
	bytes = tn_geometry_object_bytes(g);
	iovs = g->nplanes * g->pages_per_block;
	if (bytes > TN_TIER_OBJECT_MAX)
		return tn_fail(-EINVAL, "objects of %u bytes: at most %u; use fewer pages a block", bytes,
			       TN_TIER_OBJECT_MAX);
	if (iovs > TN_OBJECT_IOVS_MAX)
		return tn_fail(-EINVAL, "%u pages x %u planes an object: at most %u pieces; use fewer pages a block",
			       g->pages_per_block, g->nplanes, TN_OBJECT_IOVS_MAX);
	if (g->layers > TN_STORE_OBJECTS_MAX)
		return tn_fail(-EINVAL, "%u layers: at most %u", g->layers, TN_STORE_OBJECTS_MAX);
	padded = (bytes + TN_STORE_BLOCK_ALIGN - 1) / TN_STORE_BLOCK_ALIGN * TN_STORE_BLOCK_ALIGN;
	k = TN_CHUNK_BYTES / padded;
	if (k * iovs > TN_OBJECT_IOVS_MAX)
		k = TN_OBJECT_IOVS_MAX / iovs;
	least = (g->layers + TN_CHUNKS_MAX - 1) / TN_CHUNKS_MAX;
	if (k < least)
		k = least;
	if (k * (uint64_t)iovs > TN_OBJECT_IOVS_MAX)
		return tn_fail(-EINVAL, "%u layers of %u pieces each: too scattered; use fewer pages a block", g->layers, iovs);
	if (k > g->layers)
		k = g->layers;
	*shape = (struct tn_shape){
		.layers = g->layers,
		.object_bytes = bytes,
		.padded_bytes = padded,
		.object_iovs = iovs,
		.chunk_objects = k,
		.chunks = (g->layers + k - 1) / k,
		.slot_bytes = (uint64_t)padded * g->layers,
	};
	return 0;
}

uint32_t tn_span_object(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, struct iovec *iov)
{
	if (span->layout)
		return tn_layout_object_iov(span->layout, layer, span->pages, iov);
	iov[0] = (struct iovec){span->flat + (size_t)layer * shape->padded_bytes, shape->object_bytes};
	return 1;
}

void tn_iov_copy(const struct iovec *dst, const struct iovec *src, size_t len)
{
	size_t di = 0, si = 0, doff = 0, soff = 0;

	while (len > 0) {
		size_t n = dst[di].iov_len - doff;

		if (n > src[si].iov_len - soff)
			n = src[si].iov_len - soff;
		if (n > len)
			n = len;
		memcpy((char *)dst[di].iov_base + doff, (const char *)src[si].iov_base + soff, n);
		len -= n;
		doff += n;
		soff += n;
		if (doff == dst[di].iov_len) {
			di++;
			doff = 0;
		}
		if (soff == src[si].iov_len) {
			si++;
			soff = 0;
		}
	}
}

void tn_span_store(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, const void *src,
		   struct iovec *iov)
{
	const struct tn_layout *l = span->layout;
	struct iovec from = {(void *)(uintptr_t)src, shape->object_bytes};
	const char *plane = src;

	if (span->page_count == 0) {
		tn_span_object(span, shape, layer, iov);
		tn_iov_copy(iov, &from, shape->object_bytes);
		return;
	}
	for (uint32_t p = 0; p < l->geometry.nplanes; p++) {
		size_t bytes = l->page_bytes[p];

		for (uint32_t i = span->page_first; i < span->page_first + span->page_count; i++)
			memcpy(tn_layout_address(l, layer, p, span->pages[i]), plane + i * bytes, bytes);
		plane += l->geometry.pages_per_block * bytes;
	}
}
