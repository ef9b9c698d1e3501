/* SPDX-License-Identifier: Apache-2.0 */
/* Which headers a load reads: of the blocks that come next, unless their checksums are known. */
#include "core/core.h"
#include "core/transfers.h"

static struct tn_header_want want_of(const struct tn_read_item *item)
{
	const struct tn_op *op = &item->r->op;
	uint32_t i = (uint32_t)(item - item->r->items);

	return (struct tn_header_want){
		.place = item->place,
		.key = &op->keys[i],
		.space = &op->tier_space,
		.shape = op->shape,
		.checks = item->r->checks + (size_t)i * op->shape->layers,
	};
}

static bool is_known(const struct tn_read_item *item, struct tn_tier_base *from)
{
	const struct tn_header_want want = want_of(item);

	return from->ops->drives->header_known(from, &want);
}

/* False if the item needs no header from a drive. */
static bool wants_header(struct tn_read_item *item, struct tn_tier_base *from, bool verify)
{
	if (item->state != TN_READ_LEAD || tn_read_reach(item) != TN_REACH_DEVICE || item->header != TN_HEADER_NONE || item->error)
		return false;
	if (verify && !is_known(item, from))
		return true;
	item->header = TN_HEADER_HAVE;
	return false;
}

static bool read_header(struct tn_read_item *item, struct tn_tier_base *from)
{
	struct tn_transfer t = {
		.op = &item->r->op,
		.kind = TN_TRANSFER_READ_HEADER,
		.user = TN_TRANSFER_READS,
		.device = item->device,
		.block = from->ops->drives->header_take(from, false, (uint32_t)(item - item->r->items)),
		.count = 1,
	};

	if (t.block == TN_HEADER_NO_BUFFER)
		return false;
	t.place = from->ops->drives->header_at(from, item->place);
	if (!tn_transfer_add(&t)) {
		from->ops->drives->header_give(from, t.block);
		return false;
	}
	item->header = TN_HEADER_READING;
	item->inflight++;
	item->r->op.inflight++;
	return true;
}

void tn_load_read_headers(struct tn_reading *r, uint32_t up_to, struct tn_tier_base *from, bool verify)
{
	for (; r->hdr_i < up_to && r->hdr_i < r->op.n; r->hdr_i++)
		if (wants_header(&r->items[r->hdr_i], from, verify) && !read_header(&r->items[r->hdr_i], from))
			return;
}

int tn_load_header_ended(struct tn_read_item *item, const struct tn_part *p, struct tn_tier_base *from)
{
	const struct tn_header_want want = want_of(item);

	return from->ops->drives->header_read(from, p->buffer, p->status, &want);
}
