/* SPDX-License-Identifier: Apache-2.0 */
/* Which headers a load reads: of the blocks that come next, neighbours together, unless their checksums are known. */
#include "core/core.h"

/* Fills *want; false if the item needs no header from disk. */
static bool wants_header(struct tn_read_item *item, struct tn_header_want *want)
{
	struct tn_reading *r = item->r;
	struct tn_cache *cache = r->op.cache;
	const struct tn_shape *s = &r->op.space->shape;
	uint32_t i = (uint32_t)(item - r->items);

	if (item->state != TN_READ_LEAD || tn_read_reach(item) != TN_REACH_DEVICE || item->header != TN_HEADER_NONE || item->error)
		return false;
	if (!cache->o.verify) {
		item->header = TN_HEADER_HAVE;
		return false;
	}
	*want = (struct tn_header_want){
		.slot = item->place,
		.key = r->op.keys[i],
		.space_id = r->op.space->id,
		.space_epoch = r->op.space->epoch,
		.sequence = tn_store_sequence(cache->store, item->place),
		.shape = s,
		.checks = r->checks + (size_t)i * s->layers,
		.owner = item,
	};
	if (tn_headers_cached(cache->headers, want)) {
		item->header = TN_HEADER_HAVE;
		return false;
	}
	return true;
}

void tn_load_read_headers(struct tn_reading *r, uint32_t up_to, tn_header_want_done done)
{
	struct tn_header_want wants[TN_HEADERS_BATCH];

	if (up_to > r->op.n)
		up_to = r->op.n;
	while (r->hdr_i < up_to) {
		uint32_t n = 0, taken;

		while (n < TN_HEADERS_BATCH && r->hdr_i + n < up_to && wants_header(&r->items[r->hdr_i + n], &wants[n]))
			n++;
		if (n == 0) {
			r->hdr_i++;
			continue;
		}
		taken = tn_headers_read(r->op.cache->headers, wants, n, done);
		if (taken == 0)
			return;
		for (uint32_t k = 0; k < taken; k++) {
			struct tn_read_item *item = &r->items[r->hdr_i + k];

			item->header = TN_HEADER_READING;
			item->inflight++;
			r->op.inflight++;
		}
		r->hdr_i += taken;
	}
}
