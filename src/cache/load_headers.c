/* SPDX-License-Identifier: Apache-2.0 */
/* Which headers a load reads: of the blocks that come next, neighbours together, unless their checksums are known. */
#include "cache/cache_internal.h"

/* Fills *want; false if the item needs no header from disk. */
static bool wants_header(struct tn_item *item, struct tn_header_want *want)
{
	struct tn_op *op = item->op;
	struct tn_cache *cache = op->cache;
	const struct tn_shape *s = &op->space->shape;
	uint32_t i = (uint32_t)(item - op->items);

	if (item->state != TN_ITEM_DISK || item->header != TN_HEADER_NONE || item->error)
		return false;
	if (!cache->o.verify) {
		item->header = TN_HEADER_HAVE;
		return false;
	}
	*want = (struct tn_header_want){
		.slot = item->slot,
		.key = op->keys[i],
		.space_id = op->space->id,
		.space_epoch = op->space->epoch,
		.sequence = tn_store_sequence(cache->store, item->slot),
		.shape = s,
		.checks = op->checks + (size_t)i * s->layers,
		.owner = item,
	};
	if (tn_headers_cached(cache->headers, want)) {
		item->header = TN_HEADER_HAVE;
		return false;
	}
	return true;
}

void tn_load_read_headers(struct tn_op *op, uint32_t up_to)
{
	struct tn_header_want wants[TN_HEADERS_BATCH];

	if (up_to > op->n)
		up_to = op->n;
	while (op->hdr_i < up_to) {
		uint32_t n = 0, taken;

		while (n < TN_HEADERS_BATCH && op->hdr_i + n < up_to && wants_header(&op->items[op->hdr_i + n], &wants[n]))
			n++;
		if (n == 0) {
			op->hdr_i++;
			continue;
		}
		taken = tn_headers_read(op->cache->headers, wants, n, tn_load_header_ended);
		if (taken == 0)
			return;
		for (uint32_t k = 0; k < taken; k++) {
			struct tn_item *item = &op->items[op->hdr_i + k];

			item->header = TN_HEADER_READING;
			item->inflight++;
			op->inflight++;
		}
		op->hdr_i += taken;
	}
}
