/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of an object lie: its pieces, and copying into them. */
#include "layout/span.h"

#include <string.h>

uint32_t tn_span_object(const struct tn_span *span, const struct tn_shape *shape, uint32_t layer, struct iovec *iov)
{
	if (span->layout)
		return tn_layout_object_iov(span->layout, layer, span->pages, iov);
	iov[0] = (struct iovec){span->flat + (size_t)layer * shape->padded_bytes, shape->object_bytes};
	return 1;
}

uint32_t tn_iov_cut(struct iovec *to, const struct iovec *from, uint32_t n, uint64_t skip, uint32_t *len)
{
	uint32_t made = 0, left = *len;

	for (uint32_t i = 0; i < n && left > 0; i++) {
		size_t have = from[i].iov_len;

		if (skip >= have) {
			skip -= have;
			continue;
		}
		have -= skip;
		if (have > left)
			have = left;
		to[made++] = (struct iovec){(char *)from[i].iov_base + skip, have};
		skip = 0;
		left -= (uint32_t)have;
	}
	*len = left;
	return made;
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
