/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries carry no address of memory, they follow one another; every STRIDE-th one's is kept, so a look-up is a binary
 * search over those and a short walk.
 */
#include "nvme/p2p.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

#define STRIDE 16u

struct tn_p2p {
	const struct tn_alloc *alloc;
	struct tn_nvme_piece *entry; /* in the order of memory; a gap between ranges is an entry with bus GAP */
	uintptr_t *mark; /* the address of every STRIDE-th entry */
	uint64_t entries, marks;
	uint64_t memory_bytes;
	uintptr_t begin;
};

#define GAP UINT64_MAX

int tn_p2p_identity(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	*bus = address;
	*contiguous = length;
	return 0;
}

/* The range with the lowest address at or above `from`, or NULL. */
static const struct tn_p2p_range *next_range(const struct tn_p2p_range *ranges, size_t n, uintptr_t from)
{
	const struct tn_p2p_range *best = NULL;

	for (size_t i = 0; i < n; i++)
		if (ranges[i].address >= from && (!best || ranges[i].address < best->address))
			best = &ranges[i];
	return best;
}

static int check_ranges(const struct tn_p2p_range *ranges, size_t n)
{
	if (n == 0)
		return tn_fail(-EINVAL, "p2p: no memory to register");
	for (size_t i = 0; i < n; i++) {
		const struct tn_p2p_range *a = &ranges[i];

		if (a->length == 0 || a->address > UINTPTR_MAX - a->length)
			return tn_fail(-EINVAL, "p2p: range %zu: %llu bytes at %#llx", i, (unsigned long long)a->length,
				       (unsigned long long)a->address);
		for (size_t j = 0; j < i; j++)
			if (ranges[j].address < a->address + a->length && a->address < ranges[j].address + ranges[j].length)
				return tn_fail(-EINVAL, "p2p: ranges %zu and %zu overlap at %#llx", j, i,
					       (unsigned long long)a->address);
	}
	return 0;
}

/* Appends to the table; in the first pass only counts (no entries yet). False: it has no more than most entries. */
static bool append(struct tn_p2p *t, uint64_t most, struct tn_nvme_piece *last, uint64_t bus, uint64_t length, uintptr_t address)
{
	bool gap = bus == GAP;

	if (t->entries > 0 && (gap ? last->bus == GAP : last->bus != GAP && last->bus + last->length == bus)) {
		last->length += length;
	} else {
		if (t->entries == most)
			return false;
		*last = (struct tn_nvme_piece){bus, length};
		if (t->mark && t->entries % STRIDE == 0)
			t->mark[t->entries / STRIDE] = address;
		t->entries++;
	}
	if (t->entry)
		t->entry[t->entries - 1] = *last;
	return true;
}

static int changed(void)
{
	return tn_fail(-EAGAIN, "p2p: the mapping changed while it was read");
}

/* most: entries that the table has */
static int walk(struct tn_p2p *t, uint64_t most, const struct tn_p2p_range *ranges, size_t n, tn_p2p_translate translate, void *arg)
{
	const struct tn_p2p_range *r = next_range(ranges, n, 0);
	struct tn_nvme_piece last = {0};
	uintptr_t at = r->address;

	t->begin = at;
	t->entries = t->memory_bytes = 0;
	for (; r; r = next_range(ranges, n, at)) {
		uint64_t left = r->length, bus, some;

		if (r->address > at && !append(t, most, &last, GAP, r->address - at, at))
			return changed();
		at = r->address;
		for (; left > 0; left -= some, at += some) {
			int err = translate(arg, at, left, &bus, &some);

			if (err)
				return tn_fail_cause(err, "p2p: no bus address of %#llx", (unsigned long long)at);
			if (some == 0 || some > left || bus > UINT64_MAX - some)
				return tn_fail(-EINVAL, "p2p: %llu bytes at %#llx are said to lie at %#llx, of %llu asked for",
					       (unsigned long long)some, (unsigned long long)at, (unsigned long long)bus,
					       (unsigned long long)left);
			if (!append(t, most, &last, bus, some, at))
				return changed();
			t->memory_bytes += some;
		}
	}
	return 0;
}

int tn_p2p_create(const struct tn_p2p_range *ranges, size_t n, tn_p2p_translate translate, void *arg,
		  const struct tn_alloc *alloc, struct tn_p2p **out)
{
	int err = check_ranges(ranges, n);
	struct tn_p2p *t;
	uint64_t counted;

	if (err)
		return err;
	t = tn_get(alloc, sizeof(*t));
	if (!t)
		return tn_fail(-ENOMEM, "p2p: no memory");
	t->alloc = alloc;
	err = walk(t, UINT64_MAX, ranges, n, translate, arg);
	if (err) {
		tn_put(alloc, t, sizeof(*t));
		return err;
	}
	counted = t->entries;
	t->marks = (counted + STRIDE - 1) / STRIDE;
	t->entry = tn_get(alloc, tn_array_bytes(counted, sizeof(*t->entry)));
	t->mark = tn_get(alloc, tn_array_bytes(t->marks, sizeof(*t->mark)));
	err = t->entry && t->mark ? walk(t, counted, ranges, n, translate, arg) : tn_fail(-ENOMEM, "p2p: no memory for %llu entries",
												 (unsigned long long)counted);
	if (err == 0 && t->entries != counted)
		err = changed();
	t->entries = counted;
	if (err) {
		tn_p2p_destroy(t);
		return err;
	}
	*out = t;
	return 0;
}

void tn_p2p_destroy(struct tn_p2p *t)
{
	if (!t)
		return;
	tn_put(t->alloc, t->mark, tn_array_bytes(t->marks, sizeof(*t->mark)));
	tn_put(t->alloc, t->entry, tn_array_bytes(t->entries, sizeof(*t->entry)));
	tn_put(t->alloc, t, sizeof(*t));
}

/* The entry that an address lies in, or the first behind it if there is none; *at: where it begins. */
static uint64_t entry_of(const struct tn_p2p *t, uintptr_t address, uintptr_t *at)
{
	uint64_t lo = 0, hi = t->marks, i;

	while (hi - lo > 1) { /* the last mark at or below the address */
		uint64_t mid = lo + (hi - lo) / 2;

		if (t->mark[mid] <= address)
			lo = mid;
		else
			hi = mid;
	}
	*at = t->mark[lo];
	for (i = lo * STRIDE; i < t->entries && *at + t->entry[i].length <= address; i++)
		*at += t->entry[i].length;
	return i;
}

int tn_p2p_find(const struct tn_p2p *t, uintptr_t address, uint64_t length, struct tn_nvme_piece *pieces, uint32_t max)
{
	uint32_t n = 0;
	uintptr_t at;

	if (address < t->begin || length == 0)
		return tn_fail(-EFAULT, "p2p: %#llx is not registered", (unsigned long long)address);
	for (uint64_t i = entry_of(t, address, &at); i < t->entries && length > 0 && t->entry[i].bus != GAP; i++) {
		uint64_t skip = address - at, some = t->entry[i].length - skip;

		if (some > length)
			some = length;
		if (n == max)
			return tn_fail(-E2BIG, "p2p: %#llx takes more than %u pieces", (unsigned long long)address, max);
		pieces[n++] = (struct tn_nvme_piece){t->entry[i].bus + skip, some};
		at += t->entry[i].length;
		address += some;
		length -= some;
	}
	if (length > 0)
		return tn_fail(-EFAULT, "p2p: %#llx is not registered", (unsigned long long)address);
	return (int)n;
}

int tn_p2p_around(const struct tn_p2p *t, uintptr_t address, uintptr_t *begin, struct tn_nvme_piece *piece)
{
	uint64_t i = address < t->begin ? t->entries : entry_of(t, address, begin);

	if (i == t->entries || t->entry[i].bus == GAP)
		return tn_fail(-EFAULT, "p2p: %#llx is not registered", (unsigned long long)address);
	*piece = t->entry[i];
	return 0;
}

void tn_p2p_size(const struct tn_p2p *t, struct tn_p2p_size *size)
{
	*size = (struct tn_p2p_size){
		.memory_bytes = t->memory_bytes,
		.entries = t->entries,
		.table_bytes = t->entries * sizeof(*t->entry) + t->marks * sizeof(*t->mark),
		.prp_bytes = (t->memory_bytes + 4095) / 4096 * 8,
	};
}
