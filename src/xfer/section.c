/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/section.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FIRST_CAPACITY 16u

struct tn_xfer_sec *tn_xfer_sec_new(enum tn_xfer_segment segment, const struct tn_xfer_section *section)
{
	struct tn_xfer_sec *sec = tn_get(&tn_alloc_system, sizeof(*sec));

	if (!sec)
		return NULL;
	sec->segment = segment;
	sec->address = section->address;
	sec->end = tn_xfer_section_end(section);
	sec->device = section->device;
	sec->refs = 1;
	if (section->meta) {
		size_t n = strlen(section->meta) + 1;

		sec->meta = tn_get(&tn_alloc_system, n);
		if (!sec->meta) {
			tn_put(&tn_alloc_system, sec, sizeof(*sec));
			return NULL;
		}
		memcpy(sec->meta, section->meta, n);
	}
	return sec;
}

void tn_xfer_sec_put(struct tn_xfer_sec *sec)
{
	assert(sec->refs);
	if (--sec->refs)
		return;
	if (sec->meta)
		tn_put(&tn_alloc_system, sec->meta, strlen(sec->meta) + 1);
	tn_put(&tn_alloc_system, sec, sizeof(*sec));
}

static int compare(const struct tn_xfer_sec *a, uint32_t segment, uint64_t device, uint64_t address)
{
	if (a->segment != segment)
		return a->segment < segment ? -1 : 1;
	if (a->device != device)
		return a->device < device ? -1 : 1;
	if (a->address != address)
		return a->address < address ? -1 : 1;
	return 0;
}

/* First entry behind those at or before the address. */
static uint32_t upper(const struct tn_xfer_table *t, uint32_t segment, uint64_t device, uint64_t address)
{
	uint32_t low = 0, high = t->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (compare(t->entry[mid].sec, segment, device, address) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool same_group(const struct tn_xfer_sec *a, const struct tn_xfer_sec *b)
{
	return a->segment == b->segment && a->device == b->device;
}

/* After a change at entry i. */
static void set_ends(struct tn_xfer_table *t, uint32_t i)
{
	for (uint32_t j = i; j < t->n; j++) {
		struct tn_xfer_sec_entry *e = &t->entry[j];
		uint64_t end = e->sec->end;

		if (j && same_group(e->sec, e[-1].sec)) {
			if (e[-1].max_end > end)
				end = e[-1].max_end;
		} else if (j > i) {
			return;
		}
		if (j > i && e->max_end == end)
			return;
		e->max_end = end;
	}
}

static int grow(struct tn_xfer_table *t)
{
	uint32_t capacity = t->capacity ? t->capacity * 2 : FIRST_CAPACITY;
	struct tn_xfer_sec_entry *entry = tn_get(&tn_alloc_system, tn_array_bytes(capacity, sizeof(*entry)));

	if (!entry)
		return -ENOMEM;
	if (t->n)
		memcpy(entry, t->entry, t->n * sizeof(*entry));
	tn_put(&tn_alloc_system, t->entry, t->capacity * sizeof(*entry));
	t->entry = entry;
	t->capacity = capacity;
	return 0;
}

int tn_xfer_table_add(struct tn_xfer_table *t, struct tn_xfer_sec *sec)
{
	uint32_t i;

	if (t->n == t->capacity && grow(t))
		return -ENOMEM;
	i = upper(t, sec->segment, sec->device, sec->address);
	memmove(&t->entry[i + 1], &t->entry[i], (t->n - i) * sizeof(*t->entry));
	t->entry[i] = (struct tn_xfer_sec_entry){.sec = sec};
	t->n++;
	set_ends(t, i);
	return 0;
}

void tn_xfer_table_sweep(struct tn_xfer_table *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		struct tn_xfer_sec *sec = t->entry[i].sec;

		if (sec->leaving) {
			tn_xfer_sec_put(sec);
			continue;
		}
		t->entry[n] = (struct tn_xfer_sec_entry){.sec = sec, .max_end = sec->end};
		if (n && same_group(sec, t->entry[n - 1].sec) && t->entry[n - 1].max_end > sec->end)
			t->entry[n].max_end = t->entry[n - 1].max_end;
		n++;
	}
	t->n = n;
}

static bool same_meta(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : !a && !b;
}

struct tn_xfer_sec *tn_xfer_table_exact(const struct tn_xfer_table *t, enum tn_xfer_segment segment, const struct tn_xfer_section *section)
{
	uint32_t i = upper(t, segment, section->device, section->address);

	for (; i && !compare(t->entry[i - 1].sec, segment, section->device, section->address); i--) {
		struct tn_xfer_sec *sec = t->entry[i - 1].sec;

		if (sec->end == tn_xfer_section_end(section) && same_meta(sec->meta, section->meta))
			return sec;
	}
	return NULL;
}

struct tn_xfer_sec *tn_xfer_table_sibling(const struct tn_xfer_table *t, uint32_t segment, uint64_t device)
{
	uint32_t i = upper(t, segment, device, UINT64_MAX);

	return i && t->entry[i - 1].sec->segment == segment && t->entry[i - 1].sec->device == device ? t->entry[i - 1].sec : NULL;
}

struct tn_xfer_sec *tn_xfer_table_cover(const struct tn_xfer_table *t, uint32_t segment, uint64_t device, uint64_t address, uint64_t end)
{
	for (uint32_t i = upper(t, segment, device, address); i; i--) {
		const struct tn_xfer_sec_entry *e = &t->entry[i - 1];

		if (e->sec->segment != segment || e->sec->device != device || e->max_end < end)
			return NULL;
		if (e->sec->end >= end && !e->sec->revoked)
			return e->sec;
	}
	return NULL;
}

void tn_xfer_table_clear(struct tn_xfer_table *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		tn_xfer_sec_put(t->entry[i].sec);
	tn_put(&tn_alloc_system, t->entry, t->capacity * sizeof(*t->entry));
	*t = (struct tn_xfer_table){0};
}
