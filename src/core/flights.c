/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which item leads the read of a block: an open-addressing map sized at create, with backward-shift
 * deletion. Owner thread only.
 */
#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "core/core.h"

struct flight {
	struct tn_read_item *item; /* NULL: empty */
	tn_block block;
};

struct tn_flights {
	const struct tn_alloc *alloc;
	uint32_t mask, count;
	struct flight *slot;
};

int tn_flights_create(const struct tn_alloc *alloc, uint32_t max, struct tn_flights **out)
{
	struct tn_flights *f = tn_get(alloc, sizeof(*f));
	uint32_t size = 64;

	if (!f)
		return tn_fail(-ENOMEM, "flights: no memory");
	while (size / 2 < max)
		size *= 2;
	f->alloc = alloc;
	f->mask = size - 1;
	f->slot = tn_get(alloc, tn_array_bytes(size, sizeof(*f->slot)));
	if (!f->slot) {
		tn_put(alloc, f, sizeof(*f));
		return tn_fail(-ENOMEM, "flights: no memory for %u entries; lower max_ops or max_op_blocks", size);
	}
	*out = f;
	return 0;
}

void tn_flights_destroy(struct tn_flights *f)
{
	const struct tn_alloc *a;

	if (!f)
		return;
	a = f->alloc;
	tn_put(a, f->slot, tn_array_bytes(f->mask + 1, sizeof(*f->slot)));
	tn_put(a, f, sizeof(*f));
}

static uint32_t home(const struct tn_flights *f, tn_block b)
{
	return (uint32_t)tn_mix_runs(b) & f->mask; /* loads want blocks that were saved together */
}

static uint32_t find(const struct tn_flights *f, tn_block b)
{
	uint32_t at = home(f, b);

	while (f->slot[at].item && f->slot[at].block != b)
		at = (at + 1) & f->mask;
	return at;
}

struct tn_read_item *tn_flights_get(const struct tn_flights *f, tn_block b)
{
	return f->slot[find(f, b)].item;
}

void tn_flights_set(struct tn_flights *f, tn_block b, struct tn_read_item *item)
{
	uint32_t at = find(f, b);

	if (!f->slot[at].item && f->count > f->mask / 2)
		return; /* nobody can join it */
	f->count += !f->slot[at].item;
	f->slot[at] = (struct flight){item, b};
}

void tn_flights_del(struct tn_flights *f, tn_block b, const struct tn_read_item *item)
{
	uint32_t at = find(f, b), next;

	if (f->slot[at].item != item)
		return; /* a later flight leads now */
	f->count--;
	for (next = (at + 1) & f->mask; f->slot[next].item; next = (next + 1) & f->mask) {
		/* An entry moves back unless its home lies between the gap and itself. */
		if (((next - home(f, f->slot[next].block)) & f->mask) >= ((next - at) & f->mask)) {
			f->slot[at] = f->slot[next];
			at = next;
		}
	}
	f->slot[at].item = NULL;
}
