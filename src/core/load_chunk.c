/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfers of a chunk that is loaded: how it is read, checked, read once more, and copied on to others who want it. When, and what
 * becomes of it, is up to load.c.
 *
 * Pages of another process may change at any time, or be gone. So what goes from them to the memory tier is compared with its checksums
 * once it is there; and a mismatch in the pages themselves is a reason to read again by way of memory that is the owner's alone, not to
 * blame the device.
 */
#include "core/load_chunk.h"

#include "core/transfers.h"

uint8_t *tn_chunk_state(const struct tn_reading *r, uint32_t i, uint32_t c)
{
	return &r->chunk_state[(size_t)c * r->op.n + i];
}

static uint32_t index_of(const struct tn_read_item *item)
{
	return (uint32_t)(item - item->r->items);
}

static struct tn_transfer transfer_of(struct tn_read_item *item, uint32_t c, enum tn_transfer_kind kind, enum tn_transfer_user user)
{
	const struct tn_shape *s = item->r->op.shape;

	return (struct tn_transfer){
		.op = &item->r->op,
		.kind = (uint8_t)kind,
		.user = (uint8_t)user,
		.window = c,
		.block = index_of(item),
		.first = tn_shape_chunk_first(s, c),
		.count = tn_shape_chunk_count(s, c),
	};
}

/* ---- from where it is ------------------------------------------------------------------------------------ */

static struct tn_transfer read_of(struct tn_read_item *item, uint32_t c)
{
	const struct tn_reading *r = item->r;
	struct tn_transfer t = transfer_of(item, c, TN_TRANSFER_READ, TN_TRANSFER_READS);

	t.device = item->device;
	t.place = r->disk[t.block] + (uint64_t)t.first * (r->op.shape->padded_bytes / TN_PLACE_ALIGN);
	return t;
}

bool tn_chunk_read(struct tn_read_item *item, uint32_t c)
{
	const struct tn_reading *r = item->r;
	struct tn_transfer t;

	if (item->state == TN_READ_COPY) {
		t = transfer_of(item, c, tn_read_is_near(item) ? TN_TRANSFER_IN_NEAR : TN_TRANSFER_IN, TN_TRANSFER_COPIES);
	} else {
		t = read_of(item, c);
		t.verify = r->op.cache->o.verify && item->header == TN_HEADER_HAVE;
		if (tn_chunk_goes_to_memory(item) && tn_op_is_foreign(&r->op))
			t.verify = false; /* it is checked there */
	}
	t.window = r->chunk; /* chunks that are read together may share an IOCB */
	return tn_transfer_add(&t);
}

bool tn_chunk_read_again(struct tn_read_item *item, uint32_t c)
{
	struct tn_transfer t = read_of(item, c);

	t.verify = t.again = true;
	if (!tn_transfer_may(&t) || !tn_transfers_may_read(item, c))
		return false;
	tn_transfer_add(&t);
	tn_transfers_issue(item->r->op.cache); /* at once: what was let go counts until then only */
	*tn_chunk_state(item->r, t.block, c) = TN_CHUNK_READING_AGAIN;
	return true;
}

bool tn_chunk_check(struct tn_read_item *item, uint32_t c)
{
	struct tn_transfer t = transfer_of(item, c, TN_TRANSFER_CHECK, TN_TRANSFER_CHECKS);

	t.verify = true;
	return tn_transfer_add(&t);
}

bool tn_chunk_copy_near(struct tn_read_item *item, uint32_t c)
{
	const struct tn_transfer t = transfer_of(item, c, TN_TRANSFER_OUT_NEAR, TN_TRANSFER_CHECKS);

	return tn_transfer_add(&t);
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

bool tn_chunk_goes_to_memory(const struct tn_read_item *item)
{
	return item->memory != TN_SLOT_NONE && !item->r->prefetch;
}

uint32_t tn_chunk_copies(const struct tn_read_item *item)
{
	return item->nfollowers + (uint32_t)tn_chunk_goes_to_memory(item);
}

struct tn_read_item *tn_chunk_copies_to(const struct tn_read_item *item, uint32_t copy)
{
	struct tn_read_item *f = item->followers;

	if (tn_chunk_goes_to_memory(item) && copy == 0)
		return NULL;
	for (uint32_t k = tn_chunk_goes_to_memory(item); k < copy; k++)
		f = f->next_follower;
	return f;
}

uint32_t tn_chunk_next_copy(const struct tn_read_item *item, uint32_t copy)
{
	for (; copy < tn_chunk_copies(item); copy++) {
		const struct tn_read_item *f = tn_chunk_copies_to(item, copy);

		if (f ? !f->error : !item->unfit)
			break;
	}
	return copy;
}

bool tn_chunk_copy(struct tn_read_item *item, uint32_t c, uint32_t copy, bool verify)
{
	struct tn_read_item *f = tn_chunk_copies_to(item, copy);
	struct tn_transfer t = transfer_of(item, c, f ? TN_TRANSFER_FOLLOW : TN_TRANSFER_OUT, TN_TRANSFER_CHECKS);

	t.verify = verify || (!f && tn_op_is_foreign(&item->r->op));
	if (f) {
		t.to = &f->r->op;
		t.to_block = index_of(f);
	}
	return tn_transfer_add(&t);
}
