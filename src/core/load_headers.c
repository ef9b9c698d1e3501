/* SPDX-License-Identifier: Apache-2.0 */
/* Which headers a load reads: of the blocks that come next, unless their checksums are known. */
#include "core/core.h"
#include "core/transfers.h"

static struct tn_header_want want_of(const struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;
	uint32_t i = (uint32_t)(item - item->r->items);

	return (struct tn_header_want){
		.slot = item->place,
		.key = op->keys[i],
		.space_id = op->tier_space.id,
		.space_epoch = op->tier_space.epoch,
		.sequence = item->sequence,
		.shape = op->shape,
		.checks = item->r->checks + (size_t)i * op->shape->layers,
	};
}

/* False if the item needs no header from disk. */
static bool wants_header(struct tn_read_item *item, const struct tn_header_source *from)
{
	struct tn_header_want want;

	if (item->state != TN_READ_LEAD || tn_read_reach(item) != TN_REACH_DEVICE || item->header != TN_HEADER_NONE || item->error)
		return false;
	item->sequence = tn_store_sequence(from->store, item->place);
	want = want_of(item);
	if (from->verify && !tn_headers_cached(from->headers, &want))
		return true;
	item->header = TN_HEADER_HAVE;
	return false;
}

static bool read_header(struct tn_read_item *item, const struct tn_header_source *from)
{
	struct tn_store_place place;
	struct tn_transfer t = {
		.op = &item->r->op,
		.kind = TN_TRANSFER_READ_HEADER,
		.user = TN_TRANSFER_READS,
		.device = item->device,
		.block = tn_headers_take(from->headers, false, (uint32_t)(item - item->r->items)),
		.count = 1,
	};

	if (t.block == TN_HEADER_NO_BUFFER)
		return false;
	tn_store_locate(from->store, item->place, &place);
	t.place = tn_ioctx_disk(place.device, place.header_offset / TN_STORE_HEADER_BYTES);
	if (!tn_transfer_add(&t)) {
		tn_headers_give(from->headers, t.block);
		return false;
	}
	item->header = TN_HEADER_READING;
	item->inflight++;
	item->r->op.inflight++;
	return true;
}

void tn_load_read_headers(struct tn_reading *r, uint32_t up_to, const struct tn_header_source *from)
{
	for (; r->hdr_i < up_to && r->hdr_i < r->op.n; r->hdr_i++)
		if (wants_header(&r->items[r->hdr_i], from) && !read_header(&r->items[r->hdr_i], from))
			return;
}

int tn_load_header_ended(struct tn_read_item *item, const struct tn_part *p, struct tn_headers *headers)
{
	struct tn_header_want want = want_of(item);
	int status = p->status ? p->status : tn_headers_decode(headers, p->buffer, &want);

	tn_headers_give(headers, p->buffer);
	return status;
}
